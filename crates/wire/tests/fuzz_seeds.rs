//! Every committed fuzz seed of this crate, held to the property it is fuzzed with.

#[path = "../../../tests/fuzz/properties/packet_header.rs"]
mod packet_header;
#[path = "../../../tests/fuzz/properties/quic_control.rs"]
mod quic_control;
#[path = "../../../tests/fuzz/properties/rcdp_control.rs"]
mod rcdp_control;
#[path = "../../../tests/fuzz/properties/relay_heads.rs"]
mod relay_heads;
#[path = "../../../tests/fuzz/properties/relay_media.rs"]
mod relay_media;
#[path = "../../../tests/fuzz/properties/relay_nodes.rs"]
mod relay_nodes;
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/properties/sealed_frame.rs"]
mod sealed_frame;
#[path = "../../../tests/fuzz/properties/video_datagram.rs"]
mod video_datagram;

#[test]
fn packet_header_seeds_hold() {
    replay::replay("packet_header", packet_header::check);
}

#[test]
fn quic_control_seeds_hold() {
    replay::replay("quic_control", quic_control::check);
}

#[test]
fn video_datagram_seeds_hold() {
    replay::replay("video_datagram", video_datagram::check);
}

#[test]
fn relay_media_seeds_hold() {
    replay::replay("relay_media", relay_media::check);
}

#[test]
fn rcdp_control_seeds_hold() {
    replay::replay("rcdp_control", rcdp_control::check);
}

#[test]
fn relay_heads_seeds_hold() {
    replay::replay("relay_heads", relay_heads::check);
}

#[test]
fn relay_nodes_seeds_hold() {
    replay::replay("relay_nodes", relay_nodes::check);
}

#[test]
fn sealed_frame_seeds_hold() {
    replay::replay("sealed_frame", sealed_frame::check);
}
