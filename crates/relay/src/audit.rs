//! Who joined and who was refused, in a ledger whose lines are chained.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use spaceport_state::Ledger;
use spaceport_types::MachineId;

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
        Self { ledger: Ledger::at(folder), refusals: Arc::default() }
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
