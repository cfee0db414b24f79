//! Every committed fuzz seed of this crate, held to the property it is fuzzed with.

#[expect(dead_code, unreachable_pub, reason = "by path: most of what is tested is private")]
#[path = "../src/whep/offer.rs"]
mod offer;
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/properties/sdp_offer.rs"]
mod sdp_offer;

#[test]
fn sdp_offer_seeds_hold() {
    replay::replay("sdp_offer", sdp_offer::check);
}
