//! Runs a property over the committed seeds of its fuzz target, as an ordinary test.
//!
//! A crash that fuzzing finds is fixed and its input committed below `seeds`; this keeps it fixed.

use std::fs;
use std::path::Path;

pub(crate) fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/seeds").join(target);
    let mut seeds = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        check(&fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds >= 10, "{} has {seeds} seeds", folder.display());
}
