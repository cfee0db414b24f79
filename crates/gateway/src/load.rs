//! How much of the cores that this process may use it uses.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How often it is to be looked at. A shorter time has bursts in it, as when viewers come.
pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

/// With more than this part of its cores in use, another encode would leave every viewer with less.
const CROWDED: f64 = 0.75;

#[derive(Debug)]
pub(crate) struct Load {
    cores: f64,
    /// What had been used, and when.
    last: Mutex<Option<(Duration, Instant)>>,
    crowded: AtomicBool,
}

impl Load {
    /// Of this process, which may have been given fewer cores than the machine has.
    pub(crate) fn new() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    fn of(cores: usize) -> Self {
        Self { cores: cores as f64, last: Mutex::default(), crowded: AtomicBool::new(false) }
    }

    /// Looks how much was used since the last time.
    pub(crate) fn look(&self, now: Instant) {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        self.learn(Duration::try_from(used).unwrap_or_default(), now);
    }

    fn learn(&self, used: Duration, now: Instant) {
        let before = self.last.lock().unwrap_or_else(PoisonError::into_inner).replace((used, now));
        let Some((used_before, at)) = before else { return };
        let could = now.saturating_duration_since(at).as_secs_f64() * self.cores;
        let share = used.saturating_sub(used_before).as_secs_f64() / could.max(f64::EPSILON);
        self.crowded.store(share > CROWDED, Ordering::Relaxed);
    }

    /// Whether its cores have no room for another encode.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn a_process_that_uses_most_of_its_cores_is_crowded_until_it_does_not() {
        let (load, start) = (Load::of(2), Instant::now());
        let at = |second, used_ms| {
            load.learn(Duration::from_millis(used_ms), start + Duration::from_secs(second));
            load.is_crowded()
        };
        assert!(!at(0, 9_000), "before it was looked at, it was another time");
        assert!(!at(1, 10_400));
        assert!(at(2, 12_100));
        assert!(!at(3, 12_200));
    }
}
