//! The part of a sealed bundle that has arrived.
//!
//! One file that only grows: its length is how far the transfer is, so whoever dies on either side,
//! the next chunk goes on from there. It holds sealed bytes only.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Issue, Kind, Result};

use super::Chunk;
use crate::manifest::App;
use crate::{Digest, private};

/// The largest chunk, as the contract has it.
pub const MAX_CHUNK: usize = 4 << 20;

/// How far ahead of the file's end a chunk may be that waits for those before it. A sender with
/// several chunks on their way has no say in which is handled first.
const WINDOW: u64 = 32 << 20;

/// How long such a chunk waits. Its neighbours were sent before it, so they are nearly there.
const HOLD: Duration = Duration::from_secs(2);

/// Bundles that may be on their way at one time. One person moves one app at a time; the rest is
/// for those that were given up.
const MAX_PARTS: usize = 16;

/// How long a part may rest before it is forgotten.
const REST: Duration = Duration::from_secs(60 * 60);

/// Bytes that stay free on the disk.
const SPARE: u64 = 256 << 20;

/// Everything that is on its way to one inbox.
#[derive(Debug)]
pub(super) struct Parts {
    folder: PathBuf,
    open: Mutex<BTreeMap<String, Arc<Part>>>,
}

#[derive(Debug)]
struct Part {
    folder: PathBuf,
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Debug)]
struct State {
    /// `None` once the part was taken or dropped.
    file: Option<File>,
    length: u64,
}

/// What a part is of: the first chunk says so, and the others must agree.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Of {
    app: App,
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that have arrived.
    pub received: u64,
    /// Whether they had arrived before.
    pub duplicate: bool,
}

impl Parts {
    pub(super) fn at(folder: &Path) -> Self {
        Self { folder: folder.join("inbox"), open: Mutex::default() }
    }

    /// Appends a chunk, or says that it was there already.
    pub(super) fn receive(&self, id: &str, chunk: &Chunk<'_>) -> Result<Progress> {
        if chunk.data.len() > MAX_CHUNK {
            return Err(Error::new(Kind::InvalidArgument, "the chunk is too large").issue(Issue {
                path: "data".to_owned(),
                constraint: "maximum".into(),
                limit: Some(MAX_CHUNK.to_string()),
            }));
        }
        let part = self.part(id, chunk)?;
        let mut state = part.lock();
        let end = chunk.offset.checked_add(chunk.data.len() as u64);
        let end = end.ok_or_else(|| mismatch(state.length, chunk.offset))?;
        if end <= state.length {
            return Ok(Progress { received: state.length, duplicate: true });
        }
        if chunk.offset > state.length && chunk.offset - state.length <= WINDOW {
            let ahead = |state: &mut State| state.file.is_some() && state.length < chunk.offset;
            let waited = part.grown.wait_timeout_while(state, HOLD, ahead);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if chunk.offset != state.length {
            return Err(mismatch(state.length, chunk.offset));
        }
        part.append(&mut state, chunk.data)?;
        let received = state.length;
        drop(state);
        part.grown.notify_all();
        Ok(Progress { received, duplicate: false })
    }

    /// The whole part, when it hashes to `expected`. Nothing can be appended any more; it is gone
    /// with [`Whole::forget`], and on its way again without.
    pub(super) fn take(&self, id: &str, app: App, expected: Digest) -> Result<Whole> {
        let part = self.find(id)?.ok_or_else(|| unknown(id))?;
        part.agree(&Of { app })?;
        let mut state = part.lock();
        if state.file.is_none() {
            return Err(Error::because(Cause::Conflict, "the import is being committed already")
                .with("import_id", id)
                .hint("Wait for that to end"));
        }
        let path = part.bundle();
        let mut file = File::open(&path).map_err(|error| private::failed(&path, error))?;
        let actual = digest(&mut file)?;
        if actual != expected {
            let length = state.length;
            drop(state);
            self.forget(id);
            return Err(Error::because(
                Cause::DigestMismatch,
                "what has arrived hashes to another digest than was sent",
            )
            .with("expected_sha256", expected)
            .with("actual_sha256", actual)
            .with("bytes", length)
            .hint("Send it again from the beginning"));
        }
        state.file = None;
        let length = state.length;
        drop(state);
        self.lock().remove(id);
        Ok(Whole { path, length, sha256: actual })
    }

    /// Forgets a part; false when there is none.
    pub(super) fn forget(&self, id: &str) -> bool {
        if let Some(part) = self.lock().remove(id) {
            part.lock().file = None;
            part.grown.notify_all();
        }
        fs::remove_dir_all(self.folder.join(id)).is_ok()
    }

    /// Every part that is there.
    pub(super) fn ids(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    /// Forgets what has rested too long.
    pub(super) fn sweep(&self, now: SystemTime) {
        for id in self.ids() {
            let bundle = self.folder.join(&id).join("bundle");
            let changed = fs::metadata(bundle).and_then(|it| it.modified()).ok();
            let rested = changed.and_then(|it| now.duration_since(it).ok());
            if changed.is_none() || rested.is_some_and(|rested| rested > REST) {
                tracing::info!(import = id, "a transfer that rested too long is forgotten");
                self.forget(&id);
            }
        }
    }

    /// The part of this name, made with its first chunk.
    fn part(&self, id: &str, chunk: &Chunk<'_>) -> Result<Arc<Part>> {
        let of = Of { app: chunk.app };
        if let Some(part) = self.find(id)? {
            part.agree(&of)?;
            return Ok(part);
        }
        if chunk.offset > WINDOW {
            return Err(unknown(id));
        }
        let mut open = self.lock();
        if let Some(part) = open.get(id) {
            return Ok(Arc::clone(part));
        }
        if self.ids().len() >= MAX_PARTS {
            return Err(Error::new(Kind::LimitExceeded, "too many imports are on their way here")
                .with("limit", MAX_PARTS)
                .hint("Wipe those that were given up: `spaceport teleport wipe ID`")
                .retry_after(REST));
        }
        let folder = self.folder.join(id);
        private::folder(&folder)?;
        private::replace_json(&folder.join("of.json"), &of)?;
        let part = Arc::new(Part::open(folder)?);
        open.insert(id.to_owned(), Arc::clone(&part));
        Ok(part)
    }

    /// The part of this name, also when an earlier process received it.
    fn find(&self, id: &str) -> Result<Option<Arc<Part>>> {
        let mut open = self.lock();
        if let Some(part) = open.get(id) {
            return Ok(Some(Arc::clone(part)));
        }
        let folder = self.folder.join(id);
        if !folder.join("of.json").exists() {
            return Ok(None);
        }
        let part = Arc::new(Part::open(folder)?);
        open.insert(id.to_owned(), Arc::clone(&part));
        Ok(Some(part))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Part>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    fn open(folder: PathBuf) -> Result<Self> {
        let path = folder.join("bundle");
        let file = private::append(&path)?;
        let length = file.metadata().map_err(|error| private::failed(&path, error))?.len();
        let state = Mutex::new(State { file: Some(file), length });
        Ok(Self { folder, state, grown: Condvar::new() })
    }

    fn bundle(&self) -> PathBuf {
        self.folder.join("bundle")
    }

    fn agree(&self, of: &Of) -> Result<()> {
        match private::read_json::<Of>(&self.folder.join("of.json"))? {
            Some(before) if before == *of => Ok(()),
            _ => Err(Error::new(Kind::PreconditionFailed, "the import was begun for another app")
                .hint("Use a new `import_id`")),
        }
    }

    fn append(&self, state: &mut State, data: &[u8]) -> Result<()> {
        let path = self.bundle();
        let Some(file) = &mut state.file else {
            return Err(Error::new(Kind::PreconditionFailed, "the import is complete"));
        };
        let free = rustix::fs::statvfs(&self.folder);
        let free = free.map_or(u64::MAX, |it| it.f_bavail.saturating_mul(it.f_frsize));
        let written = if free.saturating_sub(SPARE) < data.len() as u64 {
            Err(ErrorKind::StorageFull.into())
        } else {
            file.write_all(data)
        };
        match written {
            Ok(()) => {
                state.length += data.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Half a chunk must not look like progress.
                drop(file.set_len(state.length));
                Err(private::failed(&path, error))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bundle that is here to its last byte.
#[derive(Debug)]
pub(super) struct Whole {
    path: PathBuf,
    pub(super) length: u64,
    pub(super) sha256: Digest,
}

impl Whole {
    pub(super) fn open(&self) -> Result<File> {
        File::open(&self.path).map_err(|error| private::failed(&self.path, error))
    }
}

fn digest(file: &mut File) -> Result<Digest> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(Digest(hash.finalize().into())),
            count => hash.update(buffer.get(..count).unwrap_or_default()),
        }
    }
}

fn mismatch(expected: u64, offset: u64) -> Error {
    Error::new(
        Kind::PreconditionFailed,
        format!("the next chunk must begin at {expected}, and this one begins at {offset}"),
    )
    .with("expected_offset", expected)
    .hint("Go on from `expected_offset`")
}

pub(super) fn unknown(id: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no import `{id}`"))
        .with("import_id", id)
        .hint("`spaceport teleport receipts` lists those that were completed")
}
