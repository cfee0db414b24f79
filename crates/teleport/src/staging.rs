//! A folder for plain text on its way, gone with the process that made it.
//!
//! Whoever dies without cleaning up leaves the folder, but not the lock on it: the next start sees
//! that nobody holds it, and removes it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use spaceport_types::Result;

use crate::{Machine, id, private};

/// Such a folder.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    _held: File,
}

impl Staging {
    /// Makes one in memory where the machine has such a place, and there is room for `bytes` twice;
    /// otherwise below `folder`.
    pub(crate) fn new(machine: &Machine, folder: &Path, bytes: u64) -> Result<Self> {
        let memory = in_memory(machine);
        let fits = machine.runtime.is_dir()
            && rustix::fs::statvfs(&machine.runtime)
                .is_ok_and(|it| it.f_bavail.saturating_mul(it.f_frsize) / 2 > bytes);
        let base = if fits { memory } else { on_disk(folder) };
        let path = base.join(id::new()?);
        private::folder(&path)?;
        let held = private::append(&path.join("lock"))?;
        // Nobody else knows its name yet.
        flock(&held, FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| private::failed(&path, error.into()))?;
        Ok(Self { path, _held: held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, "a staging folder could not be removed");
        }
    }
}

/// Removes what processes have left that are no more.
pub(crate) fn sweep(machine: &Machine, folder: &Path) {
    for base in [in_memory(machine), on_disk(folder)] {
        let Ok(entries) = fs::read_dir(&base) else { continue };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let lock = File::open(path.join("lock"));
            let held = lock
                .as_ref()
                .is_ok_and(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err());
            if !held && let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!(%error, path = %path.display(), "a left-over cannot be removed");
            }
        }
    }
}

fn in_memory(machine: &Machine) -> PathBuf {
    machine.runtime.join("spaceport-teleport")
}

fn on_disk(folder: &Path) -> PathBuf {
    folder.join("staging")
}
