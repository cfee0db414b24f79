//! Puts frames that came on streams of their own back in order.
//!
//! Streams overtake each other, and the server resets those that a newer keyframe has made worthless. So
//! frames are handed on as their ids say, except that a keyframe waits for nobody.

use std::collections::BTreeMap;

/// Frames that wait for the one before them.
#[derive(Debug)]
pub struct Order<T> {
    /// The id that is handed on next.
    next: u64,
    waiting: BTreeMap<u64, (bool, T)>,
    /// Whether nothing can be handed on before a keyframe.
    broken: bool,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Self { next: 0, waiting: BTreeMap::new(), broken: true }
    }
}

impl<T> Order<T> {
    /// Takes a frame that is complete.
    pub fn push(&mut self, id: u64, keyframe: bool, frame: T) {
        if id < self.next {
            return;
        }
        if keyframe {
            self.broken = false;
            self.next = id;
            self.waiting.retain(|&waiting, _| waiting > id);
        }
        self.waiting.insert(id, (keyframe, frame));
        if self.waiting.len() > MAX_WAITING {
            self.broken = true;
            self.waiting.pop_first();
        }
    }

    /// Says that a frame will not come: its stream was reset.
    pub fn lost(&mut self, id: u64) {
        if id >= self.next {
            // What waits may still be of use: the keyframe before it may be the last to come.
            self.broken = true;
        }
    }

    /// The next frame, if it is there.
    pub fn pop(&mut self) -> Option<T> {
        if self.broken {
            return None;
        }
        let (_, frame) = self.waiting.remove(&self.next)?;
        self.next += 1;
        Some(frame)
    }

    /// Whether nothing is handed on before the next keyframe.
    pub fn awaits_keyframe(&self) -> bool {
        self.broken
    }
}

/// Frames that may wait for one before them; about a second at 60 fps, as long as a server's queue.
const MAX_WAITING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [u64; 0] = [];

    fn drain(order: &mut Order<u64>) -> Vec<u64> {
        std::iter::from_fn(|| order.pop()).collect()
    }

    #[test]
    fn frames_are_handed_on_in_order_from_the_first_keyframe_on() {
        let mut order = Order::default();
        order.push(1, false, 1);
        assert_eq!(drain(&mut order), NONE, "before any keyframe");
        order.push(2, true, 2);
        order.push(4, false, 4);
        assert_eq!(drain(&mut order), [2]);
        order.push(3, false, 3);
        assert_eq!(drain(&mut order), [3, 4]);
        order.push(3, false, 3);
        assert_eq!(drain(&mut order), NONE, "twice");
    }

    #[test]
    fn what_overtakes_its_keyframe_is_not_lost() {
        let mut order = Order::default();
        for id in [2, 1, 0, 3] {
            order.push(id, id == 0, id);
        }
        assert_eq!(drain(&mut order), [0, 1, 2, 3]);
        order.lost(4);
        for id in [7, 6, 5] {
            order.push(id, id == 6, id);
        }
        assert_eq!(drain(&mut order), [6, 7]);
    }

    #[test]
    fn a_keyframe_waits_for_nobody() {
        let mut order = Order::default();
        order.push(0, true, 0);
        order.push(2, false, 2);
        order.push(5, false, 5);
        order.push(4, true, 4);
        assert_eq!(drain(&mut order), [4, 5]);
        order.push(1, false, 1);
        assert_eq!(drain(&mut order), NONE);
    }

    #[test]
    fn after_a_frame_that_is_lost_nothing_is_shown_before_a_keyframe() {
        let mut order = Order::default();
        order.push(0, true, 0);
        assert_eq!(drain(&mut order), [0]);
        order.push(2, false, 2);
        order.lost(1);
        assert!(order.awaits_keyframe());
        order.push(3, false, 3);
        assert_eq!(drain(&mut order), NONE);
        order.push(4, true, 4);
        assert_eq!(drain(&mut order), [4]);
        order.lost(3);
        assert!(!order.awaits_keyframe(), "an old one, which nobody waits for");
    }

    #[test]
    fn frames_that_wait_are_bounded() {
        let mut order = Order::default();
        order.push(0, true, 0);
        order.pop();
        for id in 2..1_000 {
            order.push(id, false, id);
            assert!(order.waiting.len() <= MAX_WAITING);
        }
        assert!(order.awaits_keyframe());
    }
}
