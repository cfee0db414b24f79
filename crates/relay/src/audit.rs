//! Who joined, who was refused and who watches, in a ledger whose lines are chained.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use spaceport_state::{Ledger, Record};
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
    /// Viewers that were let in and are not on the disk yet.
    attached: Arc<Mutex<Vec<Record<Event>>>>,
    /// Who writes them: one at a time, for all that came while the one before waited for the disk.
    writing: Arc<tokio::sync::Mutex<()>>,
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
        Self {
            ledger: Ledger::at(folder),
            refusals: Arc::default(),
            attached: Arc::default(),
            writing: Arc::default(),
        }
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
        let Attached { session, way } = attached;
        let facts = [("session", session.short().to_owned()), ("way", way.to_owned())];
        let record = Record::new(Event::Attached, machine.as_str(), facts, now);
        self.attached.lock().unwrap_or_else(PoisonError::into_inner).push(record);
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let records =
            std::mem::take(&mut *self.attached.lock().unwrap_or_else(PoisonError::into_inner));
        if records.is_empty() {
            return; // The turn before wrote it.
        }
        let ledger = self.ledger.clone();
        let written = tokio::task::spawn_blocking(move || {
            let written = ledger.record_all(records);
            drop(turn);
            written
        });
        match written.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the ledger could not be written"),
            Err(error) => tracing::error!(%error, "the ledger could not be written"),
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

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use futures_util::future::join_all;
    use spaceport_types::SessionId;

    use super::*;

    fn attached() -> Attached {
        Attached { session: SessionId::new("ms-0123456789abcdef"), way: "whep" }
    }

    #[tokio::test]
    async fn every_viewer_is_written_also_of_those_that_come_at_once_or_leave_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::at(folder.path());
        let machine: MachineId = "space-one".parse().unwrap();
        let attach = || audit.attached(machine.clone(), attached(), UNIX_EPOCH);
        let busy = audit.writing.lock().await;
        let mut left = Box::pin(attach());
        assert!(futures_util::poll!(&mut left).is_pending());
        drop((left, busy));
        join_all((0..100).map(|_| attach())).await;
        assert_eq!(audit.ledger.verify(drop).unwrap().entries, 101);
    }
}
