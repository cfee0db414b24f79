//! The clock that every picture and sound of this process is stamped with.
//!
//! Monotonic, and counted from one origin for the whole process, so that the timestamps of two
//! streams can be compared.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// The instant that media time counts from: the first time anyone asked.
pub fn origin() -> Instant {
    *ORIGIN.get_or_init(instant)
}

/// Media time now.
pub fn now() -> Duration {
    let origin = origin();
    instant().saturating_duration_since(origin)
}

/// Where `instant` lies in media time; zero for what was before its origin.
pub fn at(instant: Instant) -> Duration {
    instant.saturating_duration_since(origin())
}

/// The one place in this crate that reads a clock. Capture runs on plain threads that wait in
/// `poll`, so there is no runtime whose clock could be used instead.
#[expect(clippy::disallowed_methods, reason = "this module is the media clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_time_and_instants_are_one_line() {
        let start = now();
        let between = instant();
        let end = now();
        assert!(start <= at(between) && at(between) <= end);
        assert_eq!(at(origin()), Duration::ZERO);
    }
}
