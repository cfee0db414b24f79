//! Frames are the same however the bytes arrive, little is kept of an unfinished one, and no frame's
//! name is more than it holds.

use super::demux::{Deframer, MAX_FRAME, stun_ufrag};

pub(crate) fn check(data: &[u8]) {
    // The first byte says how the rest arrives.
    let Some((&step, bytes)) = data.split_first() else { return };
    let (whole, whole_goes_on) = frames(bytes, bytes.len().max(1));
    let (parts, parts_go_on) = frames(bytes, usize::from(step).max(1));
    assert_eq!(whole_goes_on, parts_go_on);
    assert_eq!(whole, parts);
    for frame in &whole {
        if let Some(ufrag) = stun_ufrag(frame) {
            assert!(frame.len() >= 24 + ufrag.len());
        }
    }
    // A datagram is not framed.
    stun_ufrag(bytes);
}

fn frames(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut deframer, mut all) = (Deframer::default(), Vec::new());
    for part in bytes.chunks(step) {
        if !deframer.push(part, |frame| all.push(frame.to_vec())) {
            return (all, false);
        }
        assert!(deframer.pending() < MAX_FRAME + 2);
    }
    (all, true)
}
