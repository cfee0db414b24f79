//! The receiving side of files: declared, staged, verified, published.
//!
//! A transfer declares every entry before its first byte; what cannot land is refused then. Bytes
//! are staged beside the destination, in order per file, any number of files at a time, and hashed
//! as they come. The commit checks every digest and publishes everything with renames, or nothing
//! (see `publish`). A transfer that fails for good, is aborted or rests too long takes its staged
//! bytes with it; what a crash leaves is seen to by the next start.
//!
//! Calls block on the disk: callers run them off their async threads.

mod journal;
mod names;
mod plan;
mod publish;
mod spool;
mod stage;
#[cfg(test)]
mod tests;
mod trailing;
mod transfer;
mod upload;

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Issue, Kind, Result};

pub use crate::ignore::MAX_PATTERNS;
pub use plan::{Declared, MAX_ENTRIES};
pub use publish::Conflict;
pub use trailing::{Hold, Standing, Total};
pub use transfer::{Committed, PublishedFile, Received};
pub use upload::{Existing, Upload, Uploaded, Uploads, Write};

use crate::hex;
use crate::ignore::Rules;
use crate::path::{RelativePath, Shown, raw};
use crate::root::{Root, io_error};
use names::Names;
use plan::{KEPT_MODE, Plan};
use stage::{Purpose, Shelf, Stage, short_name};
use transfer::{Options, Transfer};

/// Bytes of one chunk. The deployed clients never send more.
pub const MAX_CHUNK: usize = 4 << 20;

/// How long a transfer may rest when it does not say.
pub const DEFAULT_TTL: Duration = Duration::from_secs(3600);

/// How long a transfer may rest at most: its bytes take room meanwhile.
const MAX_TTL: Duration = Duration::from_secs(7 * 24 * 3600);

/// Transfers at one time. Each holds its list of entries in memory.
const MAX_TRANSFERS: usize = 64;

/// In the place of a digest that is to come.
const UNKNOWN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Bytes of a transfer's name.
const MAX_ID: usize = 256;

/// Where files are received.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The folder that destinations are below. Made where it is missing.
    pub downloads: PathBuf,
    /// Where notes of what is staged are kept.
    pub state: PathBuf,
}

impl Config {
    /// Receives into `downloads`.
    pub fn new(downloads: impl Into<PathBuf>, state: impl Into<PathBuf>) -> Self {
        Self { downloads: downloads.into(), state: state.into() }
    }
}

/// What a sender asks for, besides the entries.
#[derive(Clone, Debug, Default)]
pub struct Begin {
    /// The sender's name for the transfer; the same again resumes it. Empty: one is made.
    pub id: String,
    /// The folder below the root; empty is the root itself.
    pub destination: String,
    /// The root, which is there; `None` for the downloads folder.
    pub root: Option<PathBuf>,
    /// Patterns of what is not to be sent, as in `.gitignore`.
    pub ignore_patterns: Vec<String>,
    /// Whether `.gitignore` files among the entries count. They are looked at in the commit.
    pub honor_gitignore: bool,
    /// What to do with names that are taken.
    pub conflict: Conflict,
    /// How long the transfer may rest. Given, it also outlives a restart that long.
    pub ttl: Option<Duration>,
    /// Whether the digests come after the bytes, with [`Hold::end`]. What entries declare is not
    /// looked at then.
    pub trailing: bool,
}

/// How far a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Its number among the accepted entries.
    pub index: u32,
    /// Bytes that are there.
    pub received: u64,
}

/// A transfer has begun, or goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its name.
    pub id: String,
    /// The declared entries that are not accepted, by their number. The others are numbered anew, in
    /// the order they were declared.
    pub ignored: Vec<u32>,
    /// The files of which something is there.
    pub progress: Vec<Progress>,
}

/// Receives transfers. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Receiver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Config,
    shelf: Shelf,
    transfers: Mutex<HashMap<String, Slot>>,
    orphans: Mutex<HashMap<String, Orphan>>,
}

#[derive(Debug)]
enum Slot {
    /// Being checked and staged; the name is taken.
    Beginning,
    Open(Arc<Transfer>),
}

/// What an earlier run left, and was asked to keep.
#[derive(Debug)]
struct Orphan {
    stage: Stage,
    until: Instant,
}

impl Receiver {
    /// Opens the receiver, and sees to what an earlier run left: what it was about to publish is
    /// taken back, what nobody asked to keep is removed.
    ///
    /// # Errors
    ///
    /// `io` when the state directory cannot be used.
    pub fn open(config: Config, now: Instant, wall: SystemTime) -> Result<Self> {
        let shelf = Shelf::open(config.state.join("receiving"))?;
        let mut orphans = HashMap::new();
        for (note, location) in shelf.stages()? {
            if let Some((name, orphan)) = recover(note, &location, now, wall) {
                orphans.insert(name, orphan);
            }
        }
        let (transfers, orphans) = (Mutex::default(), Mutex::new(orphans));
        Ok(Self { shared: Arc::new(Shared { config, shelf, transfers, orphans }) })
    }

    /// Checks everything that a transfer declares, and makes room for it. The same transfer again
    /// says how far it is.
    ///
    /// # Errors
    ///
    /// `transfer_failed` naming every entry that cannot land; `disk_full`, `permission` or
    /// `path_escape` for the destination; `limit_exceeded`, `invalid_argument`.
    pub fn begin<'a>(
        &self,
        begin: Begin,
        entries: impl IntoIterator<Item = Declared<'a>>,
        now: Instant,
    ) -> Result<Begun> {
        if begin.id.len() > MAX_ID {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("a transfer's name of {} bytes is too long", begin.id.len()),
            )
            .issue(issue("transfer_id", "bytes at most", MAX_ID)));
        }
        let id = if begin.id.is_empty() { random_id()? } else { begin.id.clone() };
        let known = self.shared.reserve(&id)?;
        let reservation = Reservation { shared: &self.shared, id: &id, fresh: known.is_none() };
        let (transfer, ignored, fresh) = self.check(&id, begin, entries, known, now)?;
        if fresh {
            tracing::info!(
                transfer = %Shown(id.as_bytes()),
                entries = transfer.plan.len(),
                bytes = transfer.plan.bytes(),
                "receiving"
            );
            self.shared.transfers().insert(id.clone(), Slot::Open(Arc::clone(&transfer)));
        }
        drop(reservation);
        transfer.touch(now);
        Ok(Begun { id, ignored, progress: transfer.progress() })
    }

    /// The transfer that a request asks for: the one there is, one from before a restart, or a new
    /// one.
    fn check<'a>(
        &self,
        id: &str,
        begin: Begin,
        entries: impl IntoIterator<Item = Declared<'a>>,
        known: Option<Arc<Transfer>>,
        now: Instant,
    ) -> Result<(Arc<Transfer>, Vec<u32>, bool)> {
        let subfolder = destination(&begin.destination)?;
        let rules = match &begin.ignore_patterns[..] {
            [] => None,
            patterns => Some(Rules::of_request(patterns)?),
        };
        let place = begin.root.as_ref().unwrap_or(&self.shared.config.downloads).clone();
        let root = match begin.root {
            Some(_) => Root::open(&place)?,
            None => Root::create(&place)?,
        };
        let location = root.location().map_err(|errno| io_error(errno, "found", b"."))?;
        let depth = subfolder.as_ref().map_or(0, |subfolder| subfolder.as_bytes().len() + 1);
        let room = location.as_os_str().len() + 1 + depth;
        // As deep as the destination goes already: it may be a file system of its own.
        let holder = match &subfolder {
            None => root,
            Some(path) => root.descend(path).map_err(|errno| through(errno, path))?.0,
        };
        let ttl = begin.ttl.map(|ttl| ttl.min(MAX_TTL));
        let options = Options {
            conflict: begin.conflict,
            honor_gitignore: begin.honor_gitignore,
            ttl: ttl.unwrap_or(DEFAULT_TTL),
            trailing: begin.trailing,
            subfolder,
        };
        let entries = entries.into_iter().map(|entry| match begin.trailing {
            true => Declared { sha256: UNKNOWN, ..entry },
            false => entry,
        });
        let (names, stage) = match &known {
            Some(_) => (Names::default(), None),
            None => {
                let again = holder.again().map_err(|errno| io_error(errno, "opened", b"."))?;
                let stage = Stage::create(&self.shared.shelf, again, id)?;
                let names = Names::probe(stage.files());
                (names.map_err(|errno| io_error(errno, "written", b"."))?, Some(stage))
            }
        };
        let (plan, ignored) = Plan::new(entries, rules, names, room)?;
        let fingerprint = fingerprint(&plan, &begin);
        let (Some(mut stage), None) = (stage, &known) else {
            let transfer = known.ok_or_else(|| Error::new(Kind::Internal, "no stage was made"))?;
            if transfer.stage.purpose().fingerprint != fingerprint {
                return Err(Error::new(
                    Kind::InvalidArgument,
                    format!("transfer `{}` was begun with other entries", Shown(id.as_bytes())),
                )
                .issue(issue("transfer_id", "a name of its own", ""))
                .hint("Abort it, or choose another name"));
            }
            return Ok((transfer, ignored, false));
        };
        if let Some(orphan) = self.shared.take_orphan(id, fingerprint) {
            let transfer = Transfer::new(plan, orphan, options, place, now);
            transfer.take_stock();
            return Ok((Arc::new(transfer), ignored, true));
        }
        make_sure_of_room(&holder, &plan)?;
        let described = stage.describe(Purpose { fingerprint, keep: ttl });
        described.map_err(|errno| io_error(errno, "written", b"."))?;
        Ok((Arc::new(Transfer::new(plan, stage, options, place, now)), ignored, true))
    }

    /// Takes the next bytes of a file.
    ///
    /// # Errors
    ///
    /// `not_found` for the transfer; `precondition_failed` with `expected_offset`; `transfer_failed`
    /// with cause `size_mismatch`, or with `disk_full` or `permission`, which end the transfer.
    pub fn chunk(
        &self,
        id: &str,
        index: u32,
        offset: u64,
        data: &[u8],
        now: Instant,
    ) -> Result<Received> {
        let transfer = self.shared.transfer(id)?;
        let result = transfer.chunk(index, offset, data);
        match &result {
            Ok(_) => transfer.touch(now),
            Err(error) if ends(error) => {
                tracing::warn!(transfer = %Shown(id.as_bytes()), %error, "receiving failed");
                self.shared.forget(id, &transfer);
                transfer.end();
            }
            Err(_) => {}
        }
        result
    }

    /// Checks every digest and publishes everything, or nothing. Whatever comes out, the transfer is
    /// over afterwards; only where bytes are missing it goes on.
    ///
    /// # Errors
    ///
    /// `not_found`; `transfer_failed` with the cause and the entry.
    pub fn commit(&self, id: &str) -> Result<Committed> {
        let transfer = self.shared.transfer(id)?;
        let result = transfer.commit();
        if transfer.is_closed() {
            self.shared.forget(id, &transfer);
        }
        match &result {
            Ok(done) => tracing::info!(
                transfer = %Shown(id.as_bytes()),
                files = done.files.len(),
                skipped = done.skipped.len(),
                bytes = transfer.plan.bytes(),
                "received"
            ),
            Err(error) => tracing::warn!(transfer = %Shown(id.as_bytes()), %error, "not received"),
        }
        result
    }

    /// Forgets a transfer and what has come of it.
    ///
    /// # Errors
    ///
    /// `not_found`.
    pub fn abort(&self, id: &str) -> Result<()> {
        let transfer = self.shared.transfer(id)?;
        self.shared.forget(id, &transfer);
        transfer.end();
        tracing::info!(transfer = %Shown(id.as_bytes()), "receiving was aborted");
        Ok(())
    }

    /// Ends transfers that have rested too long. To be called every few seconds.
    pub fn sweep(&self, now: Instant) {
        let mut over = Vec::new();
        for (id, slot) in &*self.shared.transfers() {
            if let Slot::Open(transfer) = slot
                && transfer.is_over(now)
            {
                over.push((id.clone(), Arc::clone(transfer)));
            }
        }
        for (id, transfer) in over {
            tracing::info!(transfer = %Shown(id.as_bytes()), "a transfer that rested is removed");
            self.shared.forget(&id, &transfer);
            transfer.end();
        }
        let mut orphans = self.shared.orphans();
        let old: Vec<_> = orphans.extract_if(|_, orphan| orphan.until <= now).collect();
        drop(orphans);
        drop(old); // which removes them, without the lock
    }

    /// How many transfers are under way.
    pub fn transfers(&self) -> usize {
        self.shared.transfers().len()
    }
}

impl Shared {
    fn transfers(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn orphans(&self) -> MutexGuard<'_, HashMap<String, Orphan>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a name, or finds the transfer that has it.
    fn reserve(&self, id: &str) -> Result<Option<Arc<Transfer>>> {
        let mut transfers = self.transfers();
        match transfers.get(id) {
            Some(Slot::Open(transfer)) => return Ok(Some(Arc::clone(transfer))),
            Some(Slot::Beginning) => {
                return Err(Error::new(
                    Kind::PreconditionFailed,
                    format!("transfer `{}` is just being begun", Shown(id.as_bytes())),
                )
                .hint("Wait for the answer to the first call"));
            }
            None => {}
        }
        if transfers.len() >= MAX_TRANSFERS {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("{MAX_TRANSFERS} transfers are under way"),
            )
            .with("limit", MAX_TRANSFERS)
            .retry_after(Duration::from_secs(10))
            .hint("Commit or abort one first"));
        }
        transfers.insert(id.to_owned(), Slot::Beginning);
        Ok(None)
    }

    fn transfer(&self, id: &str) -> Result<Arc<Transfer>> {
        match self.transfers().get(id) {
            Some(Slot::Open(transfer)) => Ok(Arc::clone(transfer)),
            Some(Slot::Beginning) | None => Err(Error::new(
                Kind::NotFound,
                format!("there is no transfer `{}`", Shown(id.as_bytes())),
            )
            .with("transfer_id", raw(id.as_bytes()))
            .hint("Begin it first; one that is committed, aborted or at rest too long is gone")),
        }
    }

    /// Drops the name of a transfer, if it still is that transfer's.
    fn forget(&self, id: &str, transfer: &Arc<Transfer>) {
        let mut transfers = self.transfers();
        if let Some(Slot::Open(current)) = transfers.get(id)
            && Arc::ptr_eq(current, transfer)
        {
            transfers.remove(id);
        }
    }

    /// What an earlier run left of this very transfer. Of another one with its name, nothing is
    /// kept.
    fn take_orphan(&self, id: &str, fingerprint: [u8; 32]) -> Option<Stage> {
        let orphan = self.orphans().remove(&short_name(id))?;
        (orphan.stage.purpose().fingerprint == fingerprint).then_some(orphan.stage)
    }
}

impl Drop for Shared {
    /// What may outlive a restart does.
    fn drop(&mut self) {
        let transfers = self.transfers.get_mut().unwrap_or_else(PoisonError::into_inner);
        for slot in transfers.values() {
            if let Slot::Open(transfer) = slot
                && transfer.stage.purpose().keep.is_some()
            {
                transfer.stage.leave();
            }
        }
        let orphans = self.orphans.get_mut().unwrap_or_else(PoisonError::into_inner);
        for orphan in orphans.values() {
            orphan.stage.leave();
        }
    }
}

/// Gives a name back when beginning fails.
struct Reservation<'a> {
    shared: &'a Shared,
    id: &'a str,
    fresh: bool,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.fresh {
            let mut transfers = self.shared.transfers();
            if matches!(transfers.get(self.id), Some(Slot::Beginning)) {
                transfers.remove(self.id);
            }
        }
    }
}

/// Sees to one stage of an earlier run; returns it when it is to be kept.
fn recover(
    note: PathBuf,
    location: &Path,
    now: Instant,
    wall: SystemTime,
) -> Option<(String, Orphan)> {
    let place = location.display();
    let stage = match Stage::adopt(note.clone(), location) {
        Ok(Some(stage)) => stage,
        Ok(None) => {
            // Gone, or another program's: one that is in use keeps its note.
            if !location.exists() {
                drop(std::fs::remove_file(note));
            }
            return None;
        }
        Err(error) => {
            tracing::warn!(%error, %place, "a staging folder cannot be seen to");
            return None;
        }
    };
    if let Err(error) = publish::recover(&stage) {
        tracing::warn!(%error, %place, "what a crash interrupted cannot be taken back");
        stage.leave();
        return None;
    }
    let done = stage.read(b"done", 0).is_ok_and(|done| done.is_some());
    let left = stage.purpose().keep.and_then(|keep| keep.checked_sub(stage.rested(wall)));
    let Some(left) = left.filter(|_| !done) else {
        tracing::info!(%place, "a staging folder of an earlier run is removed");
        return None; // and with that it is
    };
    let name = location.file_name()?.to_str()?.strip_prefix(stage::PREFIX)?;
    let name = name.split('-').next().unwrap_or(name).to_owned();
    Some((name, Orphan { stage, until: now + left }))
}

/// Where a transfer goes, below the downloads folder.
fn destination(path: &str) -> Result<Option<RelativePath>> {
    // What people write; the rest of the rules are those of every path.
    let path = path.strip_suffix('/').filter(|path| !path.is_empty()).unwrap_or(path);
    if path.is_empty() || path == "." {
        return Ok(None);
    }
    RelativePath::parse(path).map(Some).map_err(|flaw| {
        flaw.error(path.as_bytes()).hint("Name a folder below the downloads folder")
    })
}

fn through(errno: rustix::io::Errno, path: &RelativePath) -> Error {
    match errno {
        rustix::io::Errno::NOTDIR => Error::because(
            Cause::Conflict,
            format!("`{}` leads through something that is no folder", path.shown()),
        )
        .with("entry", raw(path.as_bytes()))
        .hint("Move it away, or choose another folder"),
        errno => io_error(errno, "opened", path.as_bytes()),
    }
}

/// Tells one request from another.
fn fingerprint(plan: &Plan, begin: &Begin) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(plan.fingerprint());
    hash.update([begin.conflict as u8, u8::from(begin.honor_gitignore)]);
    if begin.trailing {
        hash.update(b"trailing");
    }
    if let Some(root) = &begin.root {
        hash.update(b"root");
        hash.update(root.as_os_str().as_bytes());
    }
    for text in std::iter::once(&begin.destination).chain(&begin.ignore_patterns) {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

/// Refuses what the disk cannot hold as things are. That it fills up meanwhile is noticed as well,
/// only later.
fn make_sure_of_room(holder: &Root, plan: &Plan) -> Result<()> {
    let failed = |errno| io_error(errno, "examined", b".");
    let room = rustix::fs::fstatvfs(holder).map_err(failed)?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if plan.bytes() > free {
        return Err(Error::because(
            Cause::DiskFull,
            format!("{} bytes do not fit into the {free} that are free", plan.bytes()),
        )
        .with("needed_bytes", plan.bytes())
        .with("free_bytes", free)
        .hint("Make room on the destination, or send less"));
    }
    if room.f_files > 0 && plan.len() as u64 > room.f_favail {
        return Err(Error::because(
            Cause::DiskFull,
            format!(
                "{} entries do not fit: the file system has room for {} more",
                plan.len(),
                room.f_favail
            ),
        )
        .with("needed_entries", plan.len())
        .with("free_entries", room.f_favail)
        .hint("Remove files from the destination, or send fewer"));
    }
    Ok(())
}

/// Whether nothing more can come of a transfer.
fn ends(error: &Error) -> bool {
    matches!(error.cause(), Some(Cause::DiskFull | Cause::Permission)) || error.kind() == Kind::Io
}

fn random_id() -> Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(hex::encode(&bits))
}

fn issue(path: &str, constraint: &'static str, limit: impl std::fmt::Display) -> Issue {
    let limit = Some(limit.to_string()).filter(|limit| !limit.is_empty());
    Issue { path: path.to_owned(), constraint: constraint.into(), limit }
}

/// The permission bits of a declared mode that are kept.
pub const fn kept_mode(mode: u32) -> u32 {
    mode & KEPT_MODE
}

/// Makes a folder and those around it, beneath `root` and through no link.
pub(crate) fn make_folders(root: &Root, path: &[u8]) -> Result<(), rustix::io::Errno> {
    spool::make_parents(root, path)?;
    spool::make_folder(root, path)
}
