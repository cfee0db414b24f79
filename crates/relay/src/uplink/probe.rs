//! Looks for a better way to the relay than the one that is in use.
//!
//! A machine whose network drops UDP is reached over TCP. That may pass, when a laptop comes home or somebody
//! opens a port, and then QUIC is the better carrier: one request that loses a packet holds up no other. So it is
//! tried now and then, ever less often, and least of all where it was found and lost again.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::backoff::jittered;
use super::dial::{self, Dialled};
use super::{Origin, limits};
use crate::tunnel::Carrier;

/// The first wait, and the longest.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(600);

/// How long QUIC has to hold for the next look to come soon again.
const HELD: Duration = Duration::from_secs(300);

/// When to look next.
#[derive(Debug, Default)]
pub(super) struct Probe {
    looks: u32,
    /// Since when QUIC is in use.
    quic: Option<Instant>,
}

impl Probe {
    /// The machine has come by `carrier`.
    pub(super) fn arrived(&mut self, carrier: Carrier) {
        self.quic = (carrier == Carrier::Quic).then(Instant::now);
    }

    /// It is not there any more.
    pub(super) fn left(&mut self, carrier: Carrier) {
        if carrier == Carrier::Quic && self.quic.is_some_and(|since| since.elapsed() >= HELD) {
            self.looks = 0;
        }
        self.quic = None;
    }

    /// Returns once QUIC gets through. What was dialled by a look that is dropped is gone; the next comes as
    /// late as that one would have.
    pub(super) async fn better(&mut self, relay: &Origin, id: &str) -> Dialled {
        loop {
            sleep(self.wait()).await;
            self.looks = self.looks.saturating_add(1);
            match dial::by_quic(relay, id, limits()).await {
                Ok(dialled) => return dialled,
                Err(error) => tracing::debug!(%error, "still no QUIC to the relay"),
            }
        }
    }

    fn wait(&self) -> Duration {
        jittered(FIRST.saturating_mul(1 << self.looks.min(16)).min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_become_rare_and_soon_again_only_after_quic_has_held() {
        let mut probe = Probe::default();
        assert!(probe.wait() >= FIRST / 2 && probe.wait() <= FIRST);
        probe.looks = 40;
        assert!(probe.wait() >= LONGEST / 2 && probe.wait() <= LONGEST);
        probe.arrived(Carrier::Quic);
        tokio::time::advance(HELD / 2).await;
        probe.left(Carrier::Quic);
        assert!(probe.wait() >= LONGEST / 2, "a path that comes and goes is not run after");
        probe.arrived(Carrier::Quic);
        tokio::time::advance(HELD).await;
        probe.left(Carrier::Quic);
        assert!(probe.wait() <= FIRST);
    }
}
