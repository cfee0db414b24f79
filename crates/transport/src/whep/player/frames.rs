//! From RTP packets in any order to frames that can be decoded.
//!
//! Only whole frames are handed on, and after a gap that nothing filled only from the next keyframe: what a
//! decoder would show. What is inside a frame is not looked at.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// How long a missing packet is waited for. Retransmission takes a few round trips; what has not come by
/// then was not in the server's memory any more.
const STUCK: Duration = Duration::from_secs(1);

/// Packets that are kept behind a gap: two seconds of 20 Mbit/s. The oldest go first.
const WAITING: usize = 4096;

/// Bytes of a frame's end that tell it from others.
pub const TAIL: usize = 24;

/// A frame that arrived whole, after all that it builds on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When it was made, on a clock of 90 kHz that starts anywhere and wraps.
    pub timestamp: u32,
    /// Whether a decoder can start here.
    pub keyframe: bool,
    /// The bytes of its packets' payloads.
    pub bytes: usize,
    /// Its first packet's payload, and the last bytes of its last one.
    pub head: Bytes,
    /// The last bytes of the encoded frame, [`TAIL`] at most.
    pub tail: Bytes,
}

/// One packet, as far as this goes.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) timestamp: u32,
    pub(super) last: bool,
    pub(super) payload: Bytes,
}

impl Piece {
    /// Whether a keyframe begins with it: parameter sets, alone or together, come before every one
    /// (RFC 6184 §5.4).
    fn begins_keyframe(&self) -> bool {
        self.payload.first().is_some_and(|first| matches!(first & 0x1f, 7 | 24))
    }
}

#[derive(Debug, Default)]
pub(super) struct Frames {
    waiting: BTreeMap<u64, Piece>,
    next: Option<u64>,
    /// Since when a packet has been missing.
    stuck: Option<Instant>,
    current: Option<Frame>,
    /// Whether a picture is there that others can build on.
    shown: bool,
    wants_keyframe: bool,
    lost: u64,
}

impl Frames {
    pub(super) fn push(&mut self, place: u64, piece: Piece) {
        if self.next.is_some_and(|next| place < next) {
            return; // it came twice
        }
        self.next.get_or_insert(place);
        self.waiting.insert(place, piece);
        if self.waiting.len() > WAITING {
            self.waiting.pop_first();
        }
    }

    /// The next frame that is whole.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Frame> {
        loop {
            let (&place, _) = self.waiting.first_key_value()?;
            if place > self.next? && !self.jump(now) {
                return None;
            }
            let (place, piece) = self.waiting.pop_first()?;
            self.next = Some(place + 1);
            self.stuck = None;
            if let Some(frame) = self.add(piece) {
                return Some(frame);
            }
        }
    }

    /// Whether a keyframe is to be asked for, once.
    pub(super) fn take_wants_keyframe(&mut self) -> bool {
        std::mem::take(&mut self.wants_keyframe)
    }

    /// Frames that will not be shown: those a gap cut into, and those between it and the next keyframe. What
    /// a gap held from end to end is counted as one.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    fn add(&mut self, piece: Piece) -> Option<Frame> {
        let keyframe = piece.begins_keyframe();
        let frame = self.current.get_or_insert_with(|| Frame {
            timestamp: piece.timestamp,
            keyframe,
            bytes: 0,
            head: piece.payload.clone(),
            tail: Bytes::new(),
        });
        frame.bytes += piece.payload.len();
        if !piece.last {
            return None;
        }
        let mut frame = self.current.take()?;
        // Of a fragmented one the first two bytes are not the encoder's (RFC 6184 §5.8).
        frame.tail = piece.payload.slice(piece.payload.len().saturating_sub(TAIL)..);
        self.shown |= frame.keyframe;
        if self.shown {
            return Some(frame);
        }
        self.lost += 1;
        None
    }

    /// A whole keyframe behind the gap makes up for it.
    fn jump(&mut self, now: Instant) -> bool {
        let keyframes = self.waiting.iter().filter(|(_, piece)| piece.begins_keyframe());
        let whole = keyframes.map(|(&place, _)| place).find(|&first| {
            let unbroken = self.waiting.range(first..).zip(first..);
            let unbroken = unbroken.take_while(|((place, _), expected)| **place == *expected);
            unbroken.map(|(entry, _)| entry).any(|(_, piece)| piece.last)
        });
        if let Some(place) = whole {
            let after = self.waiting.split_off(&place);
            let skipped = std::mem::replace(&mut self.waiting, after);
            let mut broken: Vec<u32> = skipped.values().map(|piece| piece.timestamp).collect();
            broken.extend(self.current.take().map(|frame| frame.timestamp));
            broken.sort_unstable();
            broken.dedup();
            self.lost += broken.len().max(1) as u64;
            self.next = Some(place);
            return true;
        }
        let since = *self.stuck.get_or_insert(now);
        if now.saturating_duration_since(since) >= STUCK {
            self.wants_keyframe = true;
            self.stuck = Some(now);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(timestamp: u32, keyframe: bool, last: bool) -> Piece {
        let kind = if keyframe { 24 } else { 1 };
        Piece { timestamp, last, payload: Bytes::from(vec![kind, timestamp as u8]) }
    }

    #[expect(clippy::disallowed_methods, reason = "any instant will do as an origin")]
    fn now() -> Instant {
        Instant::now()
    }

    fn times(frames: &mut Frames, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| frames.pop(now)).map(|frame| frame.timestamp).collect()
    }

    #[test]
    fn packets_out_of_order_and_twice_make_frames_in_order() {
        let (mut frames, now) = (Frames::default(), now());
        frames.push(10, piece(1, true, false));
        frames.push(12, piece(2, false, false));
        frames.push(13, piece(2, false, true));
        assert!(times(&mut frames, now).is_empty());
        frames.push(11, piece(1, false, true));
        frames.push(11, piece(1, false, true));
        assert_eq!(times(&mut frames, now), [1, 2]);
        frames.push(12, piece(2, false, false));
        assert_eq!((times(&mut frames, now), frames.lost()), (vec![], 0));
    }

    #[test]
    fn a_gap_that_nothing_fills_is_passed_with_the_next_whole_keyframe() {
        let (mut frames, start) = (Frames::default(), now());
        frames.push(1, piece(1, true, true));
        assert_eq!(times(&mut frames, start), [1]);
        // 2 is missing; 3 cannot be decoded without it.
        frames.push(3, piece(3, false, true));
        assert!(times(&mut frames, start).is_empty());
        assert!(!frames.take_wants_keyframe());
        assert!(times(&mut frames, start + STUCK).is_empty());
        assert!(frames.take_wants_keyframe() && !frames.take_wants_keyframe());
        frames.push(4, piece(4, true, false));
        assert!(times(&mut frames, start + STUCK).is_empty());
        frames.push(5, piece(4, false, true));
        assert_eq!(times(&mut frames, start + STUCK), [4]);
        assert_eq!(frames.lost(), 1);
    }

    #[test]
    fn what_waits_behind_a_gap_is_bounded() {
        let (mut frames, now) = (Frames::default(), now());
        frames.push(0, piece(0, true, true));
        assert_eq!(times(&mut frames, now), [0]);
        for place in 2..20_000 {
            frames.push(place, piece(place as u32, false, true));
        }
        assert!(frames.waiting.len() <= WAITING);
        assert!(times(&mut frames, now).is_empty());
    }
}
