//! Every committed fuzz seed of an offer, held to the property it is fuzzed with.

use super::offer;

#[path = "../../../../tests/fuzz/replay.rs"]
mod replay;
#[path = "../../../../tests/fuzz/properties/sdp_offer.rs"]
mod sdp_offer;

#[test]
fn sdp_offer_seeds_hold() {
    replay::replay("sdp_offer", sdp_offer::check);
}
