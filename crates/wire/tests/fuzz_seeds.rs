//! Every committed fuzz seed, held to the property it is fuzzed with.
//!
//! A crash that fuzzing finds is fixed, and its input committed below `tests/fuzz/seeds`; this test then keeps it fixed.

use std::fs;
use std::path::Path;

#[path = "../../../tests/fuzz/properties/packet_header.rs"]
mod packet_header;
#[path = "../../../tests/fuzz/properties/rcdp_control.rs"]
mod rcdp_control;

#[test]
fn packet_header_seeds_hold() {
    replay("packet_header", packet_header::check);
}

#[test]
fn rcdp_control_seeds_hold() {
    replay("rcdp_control", rcdp_control::check);
}

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/seeds").join(target);
    let mut seeds = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        check(&fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 10, "{} has {seeds} seeds", folder.display());
}
