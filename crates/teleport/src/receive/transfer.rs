//! One transfer: how far each file is, and the commit.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use spaceport_types::{Cause, Error, Issue, Kind, Result};

use super::plan::{Entry, Plan};
use super::publish::{Conflict, Place, Published, publish};
use super::spool::{Spool, make_folder, make_parents, set_modified};
use super::stage::Stage;
use super::trailing::Trailing;
use super::{MAX_CHUNK, Progress};
use crate::digest::Digest;
use crate::ignore::{Judge, MAX_FILE, Rules};
use crate::path::{RelativePath, Shown, raw};
use crate::root::{Root, io_error};

/// Files of one transfer that are open at a time. A sender has some tens in flight at most; one
/// that is closed is read again, to hash it, when more of it comes.
const MAX_OPEN: usize = 64;

/// Up to so many files are made durable one by one; more, with one call for the file system. That
/// one waits for whatever else is being written there.
const SYNC_EACH: usize = 16;

/// SHA-256 of nothing.
const EMPTY: Digest = Digest([
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
]);

/// What a transfer asked for besides its entries.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) subfolder: Option<RelativePath>,
    pub(crate) conflict: Conflict,
    pub(crate) honor_gitignore: bool,
    pub(crate) ttl: Duration,
    /// Whether digests come after the bytes.
    pub(crate) trailing: bool,
}

/// A transfer that is under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) plan: Plan,
    pub(crate) stage: Stage,
    pub(crate) options: Options,
    /// The digests that come after the bytes, where they do.
    pub(super) trailing: Option<Trailing>,
    /// Where the destination's root is; opened anew for the commit.
    root: PathBuf,
    /// Chunks hold it to read, the commit to write. True once no more chunks are taken.
    closed: RwLock<bool>,
    files: Mutex<Files>,
    used: Mutex<Used>,
}

/// A file that several calls may want at once.
pub(super) type Shared = Arc<Mutex<Spool>>;

#[derive(Debug)]
struct Used {
    at: Instant,
    /// When the stage was last marked as used.
    marked: Instant,
}

/// How far the files are.
#[derive(Debug, Default)]
struct Files {
    received: Vec<u64>,
    /// Files whose digest is not yet known to be right, once they are whole.
    doubtful: BTreeMap<u32, Doubt>,
    open: HashMap<u32, Shared>,
    /// Open files, the one that was longest not used first.
    order: VecDeque<u32>,
}

/// What is to be said about a whole file at the commit.
#[derive(Debug)]
pub(super) enum Doubt {
    /// It hashed to this instead.
    Digest(Digest),
    /// It came before a restart, and is hashed once more.
    Unhashed,
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes of this file there are now.
    pub received: u64,
    /// All of it had been there before.
    pub duplicate: bool,
}

/// A file that was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
    /// Its SHA-256.
    pub digest: Digest,
}

/// What a commit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The folder everything went to.
    pub destination: PathBuf,
    /// What is there now at its top, by the names it has there.
    pub names: Vec<Vec<u8>>,
    /// Every file, in the order they were declared.
    pub files: Vec<PublishedFile>,
    /// Paths that were declared and not published, as declared.
    pub skipped: Vec<Vec<u8>>,
}

impl Transfer {
    pub(crate) fn new(
        plan: Plan,
        stage: Stage,
        options: Options,
        root: PathBuf,
        now: Instant,
    ) -> Self {
        let received = vec![0; plan.len()];
        Self {
            trailing: options.trailing.then(Trailing::default),
            plan,
            stage,
            options,
            root,
            closed: RwLock::new(false),
            files: Mutex::new(Files { received, ..Files::default() }),
            used: Mutex::new(Used { at: now, marked: now }),
        }
    }

    /// Finds out how far an earlier run came.
    pub(crate) fn take_stock(&self) {
        let mut files = self.files();
        for (index, path, entry) in self.plan.in_order() {
            if entry.directory || entry.size == 0 {
                continue;
            }
            let stat = self.stage.files().holder(path).and_then(|(holder, name)| holder.stat(name));
            let length = stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
            let length = length.min(entry.size);
            if length == entry.size && self.trailing.is_none() {
                files.doubtful.insert(index, Doubt::Unhashed);
            }
            if let Some(received) = files.received.get_mut(index as usize) {
                *received = length;
            }
        }
        self.read_log(|index, doubt| {
            files.doubtful.insert(index, doubt);
        });
    }

    /// The entry that bytes are for, if they fit into it.
    pub(super) fn expect(&self, index: u32, offset: u64, length: u64) -> Result<(&[u8], &Entry)> {
        let path = self.plan.path(index);
        let entry = self.plan.entry(index).filter(|entry| !entry.directory).ok_or_else(|| {
            Error::new(Kind::InvalidArgument, format!("`{index}` is not the number of a file"))
                .issue(Issue {
                    path: "index".to_owned(),
                    constraint: "the number of a file in `accepted`".into(),
                    limit: Some(self.plan.len().to_string()),
                })
        })?;
        if offset.checked_add(length).is_none_or(|end| end > entry.size) {
            return Err(Error::because(
                Cause::SizeMismatch,
                format!("`{}` has more bytes than the {} declared", Shown(path), entry.size),
            )
            .with("entry", raw(path))
            .with("expected_size", entry.size)
            .hint("Begin again: the file has changed since it was declared"));
        }
        Ok((path, entry))
    }

    /// Notes how much of a file there is.
    pub(super) fn note(&self, index: u32, received: u64) {
        if let Some(known) = self.files().received.get_mut(index as usize) {
            *known = received;
        }
    }

    /// Takes a file from those that are open; second, how much of it there is.
    pub(super) fn take_open(&self, index: u32) -> (Option<Shared>, u64) {
        let mut files = self.files();
        let received = files.received.get(index as usize).copied().unwrap_or(0);
        let open = files.open.remove(&index);
        if open.is_some() {
            files.order.retain(|&other| other != index);
        }
        (open, received)
    }

    /// Whether nothing has come of a file.
    pub(super) fn is_untouched(&self, index: u32) -> bool {
        let files = self.files();
        files.received.get(index as usize) == Some(&0) && !files.open.contains_key(&index)
    }

    /// Whether it has rested too long.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used().at) >= self.options.ttl
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something came.
    pub(crate) fn touch(&self, now: Instant) {
        /// A restart may take a stage for this much older than it is.
        const MARK: Duration = Duration::from_secs(30);
        let mut used = self.used();
        used.at = now;
        if self.stage.purpose().keep.is_some() && now.saturating_duration_since(used.marked) > MARK
        {
            used.marked = now;
            drop(used);
            self.stage.touch();
        }
    }

    /// The files of which something is there.
    pub(crate) fn progress(&self) -> Vec<Progress> {
        let files = self.files();
        let started = (0..).zip(&files.received).filter(|&(_, &received)| received > 0);
        started.map(|(index, &received)| Progress { index, received }).collect()
    }

    /// The next bytes of a file.
    pub(crate) fn chunk(&self, index: u32, offset: u64, data: &[u8]) -> Result<Received> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Error::new(Kind::NotFound, "the transfer is over"));
        }
        if data.len() > MAX_CHUNK {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("a chunk of {} bytes is more than {MAX_CHUNK}", data.len()),
            )
            .with("limit", MAX_CHUNK)
            .hint("Send smaller chunks"));
        }
        let (path, entry) = self.expect(index, offset, data.len() as u64)?;
        self.append(index, entry, path, offset, data)
    }

    fn append(
        &self,
        index: u32,
        entry: &Entry,
        path: &[u8],
        offset: u64,
        data: &[u8],
    ) -> Result<Received> {
        let failed = |errno| io_error(errno, "written", path);
        loop {
            let (spool, received) = self.spool(index, path).map_err(failed)?;
            let Some(spool) = spool else {
                return at(offset, data, received, path)
                    .map(|_| Received { received, duplicate: true });
            };
            let mut held = spool.lock().unwrap_or_else(PoisonError::into_inner);
            // While we waited it may have been finished, or closed to make room.
            if !self.is_current(index, &spool) {
                continue;
            }
            if at(offset, data, held.received(), path)? {
                return Ok(Received { received: held.received(), duplicate: true });
            }
            if let Err(errno) = held.append(data) {
                self.files().open.remove(&index);
                return Err(failed(errno));
            }
            let received = held.received();
            drop(held);
            if received == entry.size && self.trailing.is_none() {
                self.finish(index, entry, spool).map_err(failed)?;
            } else if let Some(known) = self.files().received.get_mut(index as usize) {
                *known = received;
            }
            return Ok(Received { received, duplicate: false });
        }
    }

    /// The open file; `None` when all of it is there. Second, how much that is.
    pub(super) fn spool(&self, index: u32, path: &[u8]) -> Result<(Option<Shared>, u64), Errno> {
        let size = self.plan.entry(index).map_or(0, |entry| entry.size);
        let mut files = self.files();
        let received = files.received.get(index as usize).copied().unwrap_or(0);
        if let Some(spool) = files.open.get(&index) {
            let spool = Arc::clone(spool);
            files.use_again(index);
            return Ok((Some(spool), received));
        }
        if received == size {
            return Ok((None, received));
        }
        // Under the lock: two that open one file would each have a hash of half of it.
        let spool = match received {
            0 => match Spool::create(self.stage.files(), path) {
                Err(Errno::EXIST) => Spool::resume(self.stage.files(), path, 0)?,
                spool => spool?,
            },
            some => Spool::resume(self.stage.files(), path, some)?,
        };
        let spool = Arc::new(Mutex::new(spool));
        files.open.insert(index, Arc::clone(&spool));
        files.order.push_back(index);
        files.make_room();
        Ok((Some(spool), received))
    }

    fn is_current(&self, index: u32, spool: &Shared) -> bool {
        self.files().open.get(&index).is_some_and(|current| Arc::ptr_eq(current, spool))
    }

    /// All of a file is there.
    fn finish(&self, index: u32, entry: &Entry, spool: Shared) -> Result<(), Errno> {
        let mut files = self.files();
        files.open.remove(&index);
        files.order.retain(|&other| other != index);
        if let Some(received) = files.received.get_mut(index as usize) {
            *received = entry.size;
        }
        // Another call for this file may still hold it, only to find that it is finished.
        match Arc::try_unwrap(spool) {
            Ok(spool) => {
                drop(files);
                let spool = spool.into_inner().unwrap_or_else(PoisonError::into_inner);
                let digest = spool.finish(entry.mode(), entry.modified)?;
                if digest != entry.digest {
                    self.files().doubtful.insert(index, Doubt::Digest(digest));
                }
            }
            Err(_) => drop(files.doubtful.insert(index, Doubt::Unhashed)),
        }
        Ok(())
    }

    /// Checks everything and publishes it. Afterwards the transfer is over, unless bytes are
    /// missing: then it goes on, and the error says so.
    pub(crate) fn commit(&self) -> Result<Committed> {
        let mut closed = self.closed.write().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Error::new(Kind::NotFound, "the transfer is over"));
        }
        self.check_whole()?;
        *closed = true;
        let result = self.check_digests().and_then(|()| self.publish());
        self.stage.remove();
        result
    }

    /// Whether it takes no more chunks.
    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more chunks, and removes what has come.
    pub(crate) fn end(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.stage.remove();
    }

    fn check_whole(&self) -> Result<()> {
        let files = self.files();
        let is_short = |&(index, entry): &(u32, &Entry)| {
            !entry.directory
                && (files.received.get(index as usize) != Some(&entry.size)
                    || self.trailing.as_ref().is_some_and(|it| it.digest(index).is_none()))
        };
        let mut short = self.plan.iter().filter(is_short);
        let Some((index, entry)) = short.next() else { return Ok(()) };
        let received = files.received.get(index as usize).copied().unwrap_or(0);
        let path = self.plan.path(index);
        let (shown, size) = (Shown(path), entry.size);
        let message = match short.count() {
            0 => format!("of `{shown}`, {received} of {size} bytes have come"),
            more => format!(
                "of `{shown}`, {received} of {size} bytes have come, and {more} more files are not whole"
            ),
        };
        Err(Error::because(Cause::SizeMismatch, message)
            .with("entry", raw(path))
            .with("expected_size", size)
            .with("received_bytes", received)
            .hint("Send the rest, and commit again"))
    }

    /// Files of no bytes have had no chunk; those of an earlier run have not been hashed.
    fn check_digests(&self) -> Result<()> {
        let doubtful = std::mem::take(&mut self.files().doubtful);
        for (index, doubt) in doubtful {
            let (Some(entry), path) = (self.plan.entry(index), self.plan.path(index)) else {
                continue;
            };
            let actual = match doubt {
                Doubt::Digest(actual) => actual,
                Doubt::Unhashed => Spool::resume(self.stage.files(), path, entry.size)
                    .and_then(|spool| spool.finish(entry.mode(), entry.modified))
                    .map_err(|errno| io_error(errno, "read", path))?,
            };
            let expected = self.digest_of(index, entry);
            if actual != expected {
                return Err(wrong_digest(path, &expected, &actual));
            }
        }
        if self.trailing.is_some() {
            return Ok(()); // which came for empty files as well
        }
        let empty = |&(_, entry): &(u32, &Entry)| !entry.directory && entry.size == 0;
        for (index, entry) in self.plan.iter().filter(empty) {
            let path = self.plan.path(index);
            if entry.digest != EMPTY {
                return Err(wrong_digest(path, &entry.digest, &EMPTY));
            }
            Spool::create(self.stage.files(), path)
                .and_then(|spool| spool.finish(entry.mode(), entry.modified))
                .map_err(|errno| io_error(errno, "written", path))?;
        }
        Ok(())
    }

    fn digest_of(&self, index: u32, entry: &Entry) -> Digest {
        self.trailing.as_ref().and_then(|it| it.digest(index)).unwrap_or(entry.digest)
    }

    fn publish(&self) -> Result<Committed> {
        let mut skipped = self.make_folders_and_ignore()?;
        self.dress_folders()?;
        self.sync()?;
        let root = Root::open(&self.root)?;
        let folder = self.options.subfolder.as_ref().map_or(&[][..], RelativePath::as_bytes);
        let place = Place { root, folder: folder.to_vec() };
        let published = publish(&self.stage, &place, self.options.conflict, |published| {
            self.dress_in_place(&place, published)
        })?;
        let location = place.root.location().map_err(|errno| io_error(errno, "found", folder))?;
        let destination = match &self.options.subfolder {
            Some(subfolder) => location.join(subfolder.as_path()),
            None => location,
        };
        for path in &published.skipped {
            skipped.extend(self.plan.below(path).map(|(index, ..)| index));
        }
        skipped.sort_unstable();
        skipped.dedup();
        let files = self
            .plan
            .iter()
            .filter(|&(index, entry)| !entry.directory && skipped.binary_search(&index).is_err());
        let files = files.map(|(index, entry)| PublishedFile {
            path: destination.join(os(&published.path_of(self.plan.path(index)))),
            size: entry.size,
            digest: self.digest_of(index, entry),
        });
        let mut names: Vec<Vec<u8>> = Vec::new();
        for (index, _) in self.plan.iter() {
            let path = published.path_of(self.plan.path(index));
            let top = path.split(|&byte| byte == b'/').next().unwrap_or_default();
            // They come folder by folder.
            let again = names.last().is_some_and(|last| last == top);
            if !again && skipped.binary_search(&index).is_err() {
                names.push(top.to_vec());
            }
        }
        Ok(Committed {
            names,
            files: files.collect(),
            skipped: skipped.iter().map(|&index| self.plan.path(index).to_vec()).collect(),
            destination,
        })
    }

    /// Makes the declared folders, and takes out what the tree's own ignore files leave out. Returns
    /// what was.
    fn make_folders_and_ignore(&self) -> Result<Vec<u32>> {
        let files = self.stage.files();
        let mut judge = self.options.honor_gitignore.then(|| Judge::new(None));
        let mut rules_of = None;
        let mut ignored = BTreeSet::new();
        for (index, path, entry) in self.plan.in_order() {
            let failed = |errno| io_error(errno, "written", path);
            if let Some(judge) = &mut judge {
                let parent = crate::path::split(path).0.unwrap_or_default();
                if rules_of.as_deref() != Some(parent) {
                    enter_all(files, judge, rules_of.as_deref(), parent)?;
                    rules_of = Some(parent.to_vec());
                }
                if judge.ignores(path, entry.directory) {
                    ignored.insert(index);
                    if !entry.directory {
                        self.take_out(path, &ignored).map_err(failed)?;
                    }
                    continue;
                }
            }
            if entry.directory {
                make_parents(files, path)
                    .and_then(|()| make_folder(files, path))
                    .map_err(failed)?;
            }
        }
        Ok(ignored.into_iter().collect())
    }

    /// Removes a staged file, and the folders around it that are empty by that and were not to come
    /// for their own sake.
    fn take_out(&self, path: &[u8], ignored: &BTreeSet<u32>) -> Result<(), Errno> {
        let files = self.stage.files();
        let (holder, name) = files.holder(path)?;
        holder.unlink(name)?;
        let mut rest = path;
        while let (Some(parent), _) = crate::path::split(rest) {
            let first = self.plan.below(parent).next();
            let wanted =
                first.is_some_and(|(index, found, _)| found == parent && !ignored.contains(&index));
            let (holder, name) = files.holder(parent)?;
            if wanted || holder.remove_folder(name).is_err() {
                break;
            }
            rest = parent;
        }
        Ok(())
    }

    /// Gives folders their times and modes, the deepest first. Their owner keeps every right until
    /// they are in place: a folder without it cannot be moved.
    fn dress_folders(&self) -> Result<()> {
        for (_, path, entry) in self.plan.in_order().rev().filter(|(.., entry)| entry.directory) {
            let folder = match self.stage.files().folder(path) {
                Err(Errno::NOENT) => continue, // left out
                folder => folder,
            };
            folder
                .and_then(|folder| {
                    rustix::fs::fchmod(&folder, Mode::from_raw_mode(entry.mode() | 0o700))?;
                    set_modified(folder.as_fd(), entry.modified)
                })
                .map_err(|errno| io_error(errno, "changed", path))?;
        }
        Ok(())
    }

    /// Takes from the owner what the sender's mode does not give, the deepest first.
    fn dress_in_place(&self, place: &Place, published: &Published) -> Result<()> {
        let strict = |(_, path, entry): &(u32, &[u8], &Entry)| {
            entry.directory
                && entry.mode() & 0o700 != 0o700
                && !published.merged.iter().any(|merged| merged == path)
        };
        for (_, path, entry) in self.plan.in_order().rev().filter(strict) {
            let to = place.at(&published.path_of(path));
            match place.root.folder(&to) {
                Err(Errno::NOENT) => {} // left out
                folder => folder
                    .and_then(|folder| {
                        rustix::fs::fchmod(&folder, Mode::from_raw_mode(entry.mode()))
                    })
                    .map_err(|errno| io_error(errno, "changed", &to))?,
            }
        }
        Ok(())
    }

    /// Everything is on the disk before any of it has its name.
    fn sync(&self) -> Result<()> {
        let failed = |errno| io_error(errno, "written", b".");
        if self.plan.len() > SYNC_EACH {
            return rustix::fs::syncfs(self.stage.root()).map_err(failed);
        }
        for (_, path, entry) in self.plan.in_order() {
            let flags = if entry.directory { OFlags::DIRECTORY } else { OFlags::empty() };
            match self.stage.files().open_file(path, OFlags::RDONLY | flags, Mode::empty()) {
                Ok(file) => {
                    rustix::fs::fsync(&file).map_err(|errno| io_error(errno, "written", path))?;
                }
                Err(Errno::NOENT) => {} // left out
                // Its mode keeps us from opening it again.
                Err(_) => return rustix::fs::syncfs(self.stage.root()).map_err(failed),
            }
        }
        rustix::fs::fsync(self.stage.files()).map_err(failed)
    }
}

impl Published {
    /// Where a staged path went, relative to the destination.
    fn path_of(&self, path: &[u8]) -> Vec<u8> {
        let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
        let (top, rest) = path.split_at(end);
        match self.renamed.get(top) {
            Some(renamed) => [renamed, rest].concat(),
            None => path.to_vec(),
        }
    }
}

impl Files {
    fn use_again(&mut self, index: u32) {
        if self.order.back() != Some(&index) {
            self.order.retain(|&other| other != index);
            self.order.push_back(index);
        }
    }

    /// Closes what was not used for longest. A call that holds it goes on, and notes how far it is.
    fn make_room(&mut self) {
        while self.open.len() > MAX_OPEN {
            let Some(oldest) = self.order.pop_front() else { return };
            // One that is being written to is in use, whatever the order says.
            if let Some(spool) = self.open.get(&oldest)
                && Arc::strong_count(spool) > 1
            {
                self.order.push_back(oldest);
                return;
            }
            self.open.remove(&oldest);
        }
    }
}

/// Whether a chunk is all there already; an error where it is not the next one.
pub(super) fn at(offset: u64, data: &[u8], received: u64, path: &[u8]) -> Result<bool> {
    let end = offset.saturating_add(data.len() as u64);
    if offset == received && !data.is_empty() {
        return Ok(false);
    }
    if end <= received {
        return Ok(true);
    }
    Err(Error::new(
        Kind::PreconditionFailed,
        format!("`{}` goes on at {received}, not at {offset}", Shown(path)),
    )
    .with("entry", raw(path))
    .with("expected_offset", received)
    .with("offset", offset)
    .hint("Send the bytes from `expected_offset` on"))
}

pub(super) fn wrong_digest(path: &[u8], expected: &Digest, actual: &Digest) -> Error {
    Error::because(
        Cause::DigestMismatch,
        format!("`{}` does not hash to what was declared", Shown(path)),
    )
    .with("entry", raw(path))
    .with("expected_sha256", expected)
    .with("actual_sha256", actual)
    .hint("Send it again")
}

/// Reads the ignore files of the folders that are entered between two entries.
fn enter_all(files: &Root, judge: &mut Judge, before: Option<&[u8]>, folder: &[u8]) -> Result<()> {
    let known = |path: &[u8]| {
        before.is_some_and(|before| {
            path.is_empty() || before == path || crate::ignore::is_below(before, path)
        })
    };
    let ends = folder.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
    let ends = [0].into_iter().chain(ends).chain((!folder.is_empty()).then_some(folder.len()));
    for path in ends.filter_map(|end| folder.get(..end)).filter(|path| !known(path)) {
        let file =
            if path.is_empty() { b".gitignore".to_vec() } else { [path, b"/.gitignore"].concat() };
        let content = match files.open_file(&file, OFlags::RDONLY, Mode::empty()) {
            Ok(file) => read_start(file),
            Err(_) => continue, // there is none, or nobody may read it
        };
        judge.enter(Rules::of_file(path, &content?)?);
    }
    Ok(())
}

fn read_start(file: std::fs::File) -> Result<Vec<u8>> {
    use std::io::Read as _;
    let mut content = Vec::new();
    file.take(MAX_FILE as u64).read_to_end(&mut content)?;
    Ok(content)
}

fn os(path: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt as _;
    std::path::Path::new(std::ffi::OsStr::from_bytes(path))
}
