//! How long to wait before dialling again.

use std::time::Duration;

use tokio::time::Instant;

/// The waits after the first try, which is made at once: short ones first, jittered, so that the machines of
/// one relay do not all come back at the same moment.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    tries: u32,
    /// When the first was made.
    began: Option<Instant>,
}

/// The first wait that is one.
const FIRST: Duration = Duration::from_millis(200);

/// The longest, for as long as the relay may only be restarting. Machines are back within it.
const SOON: Duration = Duration::from_millis(1500);

/// How long that is.
const RESTART: Duration = Duration::from_secs(300);

/// The longest after that.
const LATER: Duration = Duration::from_secs(20);

impl Backoff {
    pub(super) fn next(&mut self, now: Instant) -> Duration {
        let began = *self.began.get_or_insert(now);
        let doubled = match self.tries {
            0 => Duration::ZERO,
            tries => FIRST.saturating_mul(1 << (tries - 1).min(16)),
        };
        self.tries = self.tries.saturating_add(1);
        let longest = if now.duration_since(began) < RESTART { SOON } else { LATER };
        jittered(doubled.min(longest))
    }
}

/// From half of it to all of it.
pub(super) fn jittered(delay: Duration) -> Duration {
    let mut bits = [0];
    if getrandom::fill(&mut bits).is_err() {
        // They come together then, as they would without this.
        return delay;
    }
    delay / 2 + delay * u32::from(bits[0]) / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_try_is_made_at_once_and_none_is_late_for_a_restart() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.next(Instant::now()), Duration::ZERO);
        let mut waits = Vec::new();
        for _ in 0..1000 {
            let wait = backoff.next(Instant::now());
            if backoff.began.unwrap().elapsed() < RESTART {
                assert!(wait <= SOON, "{wait:?}");
            }
            assert!(wait >= FIRST / 2 && wait <= LATER);
            tokio::time::advance(wait).await;
            waits.push(wait);
        }
        assert!(waits.iter().any(|&wait| wait > SOON), "a relay that stays away is asked less");
        let different: std::collections::BTreeSet<_> = waits.iter().collect();
        assert!(different.len() > 100, "jittered");
    }
}
