//! When to look for changes that the server did not report.
//!
//! There should be none. Yet drivers have drawn past DAMAGE, and programs can: a viewer would then
//! look at old pixels until something else is drawn there. So now and then all of the picture is
//! read and compared with what was captured, soon after something was drawn, and ever more seldom
//! while nothing is. What that costs is what it took last, and decides how soon it is done again.
//!
//! A still desktop of 1920x1080 pixels with a viewer costs one tick of the kernel's count in the ten
//! seconds that begin two after its last change, which is 0.1 % of a core (`tests/idle.rs`); it is
//! never looked at more often.

use std::time::Duration;

/// How soon after a change it is looked whether that was all.
const FIRST: Duration = Duration::from_secs(2);

/// How long nobody looks at most.
const LONGEST: Duration = Duration::from_secs(60);

/// While nothing changes, looking takes at most a thousandth of the time, as long as that does not
/// have it wait for longer than [`LONGEST`].
const QUIET: u32 = 1000;

/// While something does, at most a hundredth.
const BUSY: u32 = 100;

/// When to look next, and how long ago that was decided.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verify {
    due: Option<Duration>,
    interval: Duration,
    /// What the last look took.
    took: Duration,
}

impl Verify {
    /// When to look next; `None` before the first picture.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// A change was captured.
    pub(super) fn changed(&mut self, now: Duration) {
        self.interval = FIRST.max(self.took * BUSY).min(LONGEST);
        let due = now + self.interval;
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    /// It was looked, which took so long.
    pub(super) fn looked(&mut self, now: Duration, took: Duration) {
        self.took = took;
        self.interval = (self.interval * 2).max(took * QUIET).min(LONGEST);
        self.due = Some(now + self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_quiet_screen_is_looked_at_ever_more_seldom_and_a_busy_one_steadily() {
        let mut verify = Verify::default();
        assert!(!verify.is_due(seconds(1000)), "there is nothing to compare with yet");
        let mut now = seconds(10);
        verify.changed(now);
        let mut waits = Vec::new();
        for _ in 0..8 {
            let due = verify.due().unwrap();
            assert!(!verify.is_due(due - Duration::from_nanos(1)) && verify.is_due(due));
            waits.push((due - now).as_secs());
            now = due;
            verify.looked(now, Duration::from_millis(2));
        }
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60, 60]);
        // Always new changes put it off by no more than the first.
        for _ in 0..3 {
            let began = now;
            while !verify.is_due(now) {
                verify.changed(now);
                now += Duration::from_millis(16);
            }
            assert!(now - began <= seconds(2) + Duration::from_millis(16));
            verify.looked(now, Duration::from_millis(2));
        }
    }

    #[test]
    fn a_look_that_takes_long_is_taken_seldom() {
        let mut verify = Verify::default();
        verify.changed(seconds(0));
        verify.looked(seconds(2), Duration::from_millis(40));
        assert_eq!(verify.due(), Some(seconds(42)));
        verify.changed(seconds(10));
        assert_eq!(verify.due(), Some(seconds(14)));
        verify.looked(seconds(14), seconds(1));
        assert_eq!(verify.due(), Some(seconds(74)));
    }
}
