//! Every committed fuzz seed of this crate, held to the property it is fuzzed with.

#[path = "../../../tests/fuzz/properties/packet_header.rs"]
mod packet_header;
#[path = "../../../tests/fuzz/properties/rcdp_control.rs"]
mod rcdp_control;
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;

#[test]
fn packet_header_seeds_hold() {
    replay::replay("packet_header", packet_header::check);
}

#[test]
fn rcdp_control_seeds_hold() {
    replay::replay("rcdp_control", rcdp_control::check);
}
