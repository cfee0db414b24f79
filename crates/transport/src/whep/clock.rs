//! When a frame was captured, on one viewer's RTP clock.

use std::time::{Duration, Instant};

/// Ticks a second of every video RTP clock.
const RATE: i64 = 90_000;

/// The least time between two frames: one millisecond.
///
/// Two frames may not share a timestamp, and frames older than the viewer (the cached keyframe and
/// what followed it) are sent this close together, so that a jitter buffer is not made to wait for
/// a past it never saw.
const MIN_STEP: i64 = RATE / 1_000;

/// Maps capture times to RTP timestamps.
///
/// The shortest time any frame took to get here is taken for the path's true delay; a frame's
/// timestamp is its capture time plus that. A keyframe that has been lying in the cache for a
/// minute is thus stamped as if it were new, and the first live frame after it sets the delay
/// right, without a jump.
#[derive(Debug)]
pub(super) struct Clock {
    origin: Instant,
    base: u32,
    delay: Option<i64>,
    last: Option<i64>,
}

impl Clock {
    /// A clock that starts at `origin` with the timestamp `base`, which should be random.
    pub(super) fn new(origin: Instant, base: u32) -> Self {
        Self { origin, base, delay: None, last: None }
    }

    /// The timestamp of a frame captured at `captured_at` and sent at `now`; it rises every time.
    pub(super) fn stamp(&mut self, captured_at: Duration, now: Instant) -> u32 {
        let (now, captured) =
            (micros(now.saturating_duration_since(self.origin)), micros(captured_at));
        let delay = self.delay.map_or(now - captured, |delay| delay.min(now - captured));
        self.delay = Some(delay);
        let ticks = (captured + delay) * RATE / 1_000_000;
        let ticks = self.last.map_or(ticks, |last| ticks.max(last + MIN_STEP));
        self.last = Some(ticks);
        // Truncation is what an RTP timestamp does: it wraps (RFC 3550 §5.1).
        self.base.wrapping_add(ticks as u32)
    }
}

/// Microseconds, up to 3,000 years; `RATE` times that stays within `i64`.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / RATE / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any instant will do as an origin")]
    fn origin() -> Instant {
        Instant::now()
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn live_frames_keep_their_distances() {
        let start = origin();
        let mut clock = Clock::new(start, u32::MAX);
        let first = clock.stamp(MS(1000), start + MS(5));
        assert_eq!(clock.stamp(MS(1033), start + MS(38)).wrapping_sub(first), 33 * 90);
        // A frame that took 7 ms longer is not stamped later for it.
        assert_eq!(clock.stamp(MS(1066), start + MS(78)).wrapping_sub(first), 66 * 90);
    }

    #[test]
    fn replayed_frames_are_a_millisecond_apart_and_lead_into_the_live_ones() {
        let start = origin();
        let mut clock = Clock::new(start, 7);
        let joined = start + MS(200);
        // A keyframe of a minute ago, two frames after it, all sent at once.
        let first = clock.stamp(MS(1_000), joined);
        assert_eq!(first, 7 + 200 * 90);
        assert_eq!(clock.stamp(MS(1_500), joined), first + 90);
        assert_eq!(clock.stamp(MS(61_000), joined), first + 180);
        // The next one is captured 40 ms after joining.
        let live = clock.stamp(MS(61_040), start + MS(240));
        assert_eq!(live, first + 40 * 90);
    }

    #[test]
    fn timestamps_rise_even_if_capture_times_do_not() {
        let start = origin();
        let mut clock = Clock::new(start, 0);
        let first = clock.stamp(MS(50), start + MS(50));
        assert_eq!(clock.stamp(MS(50), start + MS(50)), first + 90);
        assert_eq!(clock.stamp(MS(10), start + MS(50)), first + 180);
        clock.stamp(Duration::MAX, start + MS(60));
    }
}
