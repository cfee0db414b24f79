//! Who joined, who was refused and who watches, in a ledger whose lines are chained.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use spaceport_state::Ledger;
use spaceport_types::MachineId;

use crate::media::Attached;

/// What happens at a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// A machine was let in for the first time.
    Registered,
    /// A machine was not let in.
    Refused,
    /// A machine has come.
    Joined,
    /// A machine has gone.
    Left,
    /// A machine was removed.
    Removed,
    /// A viewer was let in to a session.
    Attached,
}

/// The ledger of one relay.
#[derive(Clone, Debug)]
pub struct Audit {
    ledger: Ledger<Event>,
    refusals: Arc<Mutex<Refusals>>,
    /// Who writes that a viewer came: one thread waits for the disk, however many come at once.
    attaching: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Refusals {
    /// When one was written last.
    written: Option<SystemTime>,
    /// How many were not, since.
    unwritten: u64,
}

/// The shortest time between two lines about refusals: who tries tokens does not get to fill the disk.
const REFUSALS: Duration = Duration::from_secs(1);

impl Audit {
    pub(crate) fn at(folder: &Path) -> Self {
        Self { ledger: Ledger::at(folder), refusals: Arc::default(), attaching: Arc::default() }
    }

    /// Writes a line. That it could not be written stops nothing, and is said.
    pub(crate) fn record<const N: usize>(
        &self,
        event: Event,
        machine: &MachineId,
        facts: [(&str, String); N],
        now: SystemTime,
    ) {
        if let Err(error) = self.ledger.record(event, machine.as_str(), facts, now) {
            tracing::error!(%error, "the ledger could not be written");
        }
    }

    /// Writes that a viewer was let in, and returns once that is on the disk.
    pub(crate) async fn attached(&self, machine: MachineId, attached: Attached, now: SystemTime) {
        let turn = Arc::clone(&self.attaching).lock_owned().await;
        let audit = self.clone();
        let written = tokio::task::spawn_blocking(move || {
            let Attached { session, way } = attached;
            let facts = [("session", session.short().to_owned()), ("way", way.to_owned())];
            audit.record(Event::Attached, &machine, facts, now);
            drop(turn);
        });
        if let Err(error) = written.await {
            tracing::error!(%error, "the ledger could not be written");
        }
    }

    /// Writes that a machine was refused, once a second at most and with how many were.
    pub(crate) fn refused(&self, machine: &MachineId, why: String, now: SystemTime) {
        let unwritten = {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            let recent = |at| now.duration_since(at).is_ok_and(|passed| passed < REFUSALS);
            if refusals.written.is_some_and(recent) {
                refusals.unwritten += 1;
                return;
            }
            refusals.written = Some(now);
            std::mem::take(&mut refusals.unwritten)
        };
        tracing::warn!(%machine, why, unwritten, "a machine was refused");
        let facts = [("why", why), ("others", unwritten.to_string())];
        self.record(Event::Refused, machine, facts, now);
    }
}
