//! Every committed fuzz seed, held to the property it is fuzzed with.

use super::{demux, offer};

#[path = "../../../../tests/fuzz/properties/ice_tcp.rs"]
mod ice_tcp;
#[path = "../../../../tests/fuzz/replay.rs"]
mod replay;
#[path = "../../../../tests/fuzz/properties/sdp_offer.rs"]
mod sdp_offer;

#[test]
fn sdp_offer_seeds_hold() {
    replay::replay("sdp_offer", sdp_offer::check);
}

#[test]
fn ice_tcp_seeds_hold() {
    replay::replay("ice_tcp", ice_tcp::check);
}
