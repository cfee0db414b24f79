//! One file at a path that the caller names: staged beside it, and published when it is whole.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use spaceport_types::{Cause, Error, Kind, Result};

use super::plan::parse_digest;
use super::publish::{Conflict, Place, publish};
use super::spool::Spool;
use super::stage::{Purpose, Shelf, Stage};
use super::{DEFAULT_TTL, MAX_CHUNK, MAX_ID, MAX_TTL, Received, issue, kept_mode, random_id};
use crate::digest::Digest;
use crate::files::failed;
use crate::path::{RelativePath, Shown, raw};
use crate::root::{Root, kind_of};

/// Uploads at one time.
const MAX_UPLOADS: usize = 256;

/// What to do with a file that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// The new one takes its place.
    #[default]
    Replace,
    /// It stays, and the write is refused.
    Keep,
    /// The new bytes come behind its own.
    Append,
}

/// What is to be written, and how.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Write {
    /// Where, below the root.
    pub path: RelativePath,
    /// What to do with a file that is there.
    pub existing: Existing,
    /// Permission bits; `None` keeps those of the file that is there, or takes the usual ones.
    pub mode: Option<u32>,
    /// Whether missing folders are made.
    pub create_parents: bool,
    /// How many bytes are to come, where that is known.
    pub expected_size: Option<u64>,
    /// What they hash to, in hex, where that is known.
    pub expected_sha256: Option<String>,
}

impl Write {
    /// Replaces `path`, or creates it.
    pub const fn new(path: RelativePath) -> Self {
        Self {
            path,
            existing: Existing::Replace,
            mode: None,
            create_parents: false,
            expected_size: None,
            expected_sha256: None,
        }
    }
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uploaded {
    /// Where it is, below the root.
    pub path: RelativePath,
    /// SHA-256 of the bytes that came.
    pub digest: Digest,
}

/// A file on its way in. Dropping it leaves no trace.
#[derive(Debug)]
pub struct Upload {
    stage: Stage,
    root: Root,
    write: Write,
    mode: u32,
    /// `None` once it is published.
    spool: Option<Spool>,
    /// Bytes that were there before, for one that appends.
    before: u64,
}

impl Upload {
    fn begin(shelf: &Shelf, root: Root, write: Write) -> Result<Self> {
        let path = write.path.as_bytes();
        if let Some(text) = &write.expected_sha256
            && parse_digest(text).is_none()
        {
            return Err(Error::new(Kind::InvalidArgument, "the expected digest is no SHA-256")
                .issue(issue("expected_sha256", "hex digits", 64)));
        }
        let (holder, there) = find(&root, &write)?;
        let room =
            rustix::fs::fstatvfs(&holder).map_err(|errno| failed(errno, "examined", path))?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if write.expected_size.is_some_and(|size| size > free) {
            return Err(failed(Errno::NOSPC, "written", path).with("free_bytes", free));
        }
        let mut stage = Stage::create(shelf, holder, &random_id()?)?;
        let described = stage.describe(Purpose::default());
        described.map_err(|errno| failed(errno, "written", path))?;
        let name = write.path.name();
        let spool = Spool::create(stage.files(), name);
        let spool = spool.map_err(|errno| failed(errno, "written", path))?;
        let usual = there.as_ref().map_or(0o644, |(mode, _)| *mode);
        let mode = write.mode.map_or(usual, kept_mode);
        let mut upload = Self { stage, root, write, mode, spool: Some(spool), before: 0 };
        if upload.write.existing == Existing::Append
            && let Some((_, file)) = there
        {
            upload.copy(file)?;
        }
        Ok(upload)
    }

    /// Starts with what is there.
    fn copy(&mut self, mut file: File) -> Result<()> {
        let path = self.write.path.clone();
        let spool = self.spool.as_mut().ok_or_else(over)?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            let count = file.read(&mut buffer)?;
            let Some(part) = buffer.get(..count).filter(|part| !part.is_empty()) else { break };
            spool.append(part).map_err(|errno| failed(errno, "written", path.as_bytes()))?;
        }
        self.before = spool.received();
        spool.hash_from_here();
        Ok(())
    }

    /// Bytes that have come.
    pub fn received(&self) -> u64 {
        self.spool.as_ref().map_or(0, |spool| spool.received() - self.before)
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with cause `size_mismatch` or `disk_full`, and others of the disk.
    pub fn append(&mut self, data: &[u8]) -> Result<()> {
        let path = &self.write.path;
        let received = self.received();
        let end = received.saturating_add(data.len() as u64);
        if let Some(size) = self.write.expected_size.filter(|&size| end > size) {
            return Err(self.wrong_size(size, end));
        }
        let spool = self.spool.as_mut().ok_or_else(over)?;
        spool.append(data).map_err(|errno| failed(errno, "written", path.as_bytes()))
    }

    /// Checks it and publishes it.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with cause `size_mismatch`, `digest_mismatch` or `conflict`; others of the
    /// disk. Nothing is published then.
    pub fn commit(mut self, sha256: Option<&str>) -> Result<Uploaded> {
        let received = self.received();
        if let Some(size) = self.write.expected_size.filter(|&size| size != received) {
            return Err(self.wrong_size(size, received));
        }
        let path = self.write.path.clone();
        let spool = self.spool.take().ok_or_else(over)?;
        let digest = spool
            .finish_durably(self.mode)
            .map_err(|errno| failed(errno, "written", path.as_bytes()))?;
        for expected in [self.write.expected_sha256.as_deref(), sha256].into_iter().flatten() {
            if parse_digest(expected) != Some(digest) {
                return Err(Error::because(
                    Cause::DigestMismatch,
                    format!("`{}` does not hash to what was declared", path.shown()),
                )
                .with("path", raw(path.as_bytes()))
                .with("expected_sha256", raw(expected.as_bytes()))
                .with("actual_sha256", digest)
                .hint("Send it again"));
            }
        }
        let folder = path.parent().map_or(Vec::new(), |parent| parent.as_bytes().to_vec());
        let root = self.root.again().map_err(|errno| failed(errno, "opened", &folder))?;
        let conflict = match self.write.existing {
            Existing::Keep => Conflict::Refuse,
            Existing::Replace | Existing::Append => Conflict::Overwrite,
        };
        publish(&self.stage, &Place { root, folder }, conflict, |_| Ok(()))?;
        Ok(Uploaded { path, digest })
    }

    fn wrong_size(&self, expected: u64, received: u64) -> Error {
        let path = self.write.path.shown();
        Error::because(
            Cause::SizeMismatch,
            format!("`{path}` was to have {expected} bytes, and {received} came"),
        )
        .with("path", raw(self.write.path.as_bytes()))
        .with("expected_size", expected)
        .with("received_bytes", received)
        .hint("Send it again")
    }
}

/// The folder to stage in, and what is at the path: its mode, and the file to read.
fn find(root: &Root, write: &Write) -> Result<(Root, Option<(u32, File)>)> {
    let path = write.path.as_bytes();
    let fail = |errno| failed(errno, "written", path);
    let holder = match write.path.parent() {
        None => root.again().map_err(fail)?,
        Some(parent) => {
            let (holder, depth) = root.descend(&parent).map_err(fail)?;
            if depth < parent.segments().count() {
                if !write.create_parents {
                    return Err(failed(Errno::NOENT, "opened", parent.as_bytes()));
                }
                return Ok((holder, None));
            }
            holder
        }
    };
    let Some(stat) = holder.look(write.path.name()).map_err(fail)? else {
        return Ok((holder, None));
    };
    match (kind_of(&stat), write.existing) {
        (_, Existing::Keep) => Err(fail(Errno::EXIST)),
        (FileType::Directory, _) => Err(fail(Errno::ISDIR)),
        (FileType::RegularFile, existing) => {
            let readable = existing == Existing::Append;
            let flags = if readable { OFlags::RDONLY } else { OFlags::PATH };
            let file = holder.open_file(write.path.name(), flags, Mode::empty()).map_err(fail)?;
            Ok((holder, Some((kept_mode(stat.st_mode), file))))
        }
        (FileType::Symlink, _) => Err(fail(Errno::LOOP)),
        _ => Err(fail(Errno::EXIST)),
    }
}

fn over() -> Error {
    Error::new(Kind::NotFound, "the upload is over")
}

/// Uploads that come in calls of their own, by name.
#[derive(Clone, Debug)]
pub struct Uploads {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    shelf: Shelf,
    uploads: Mutex<HashMap<String, Arc<Mutex<Kept>>>>,
}

#[derive(Debug)]
struct Kept {
    /// `None` once it is committed or aborted.
    upload: Option<Upload>,
    path: RelativePath,
    ttl: Duration,
    used: Instant,
}

impl Uploads {
    /// Writes below `root`, with notes of what is staged beside those of `receiver`, which has seen
    /// to what an earlier run left.
    pub fn new(root: PathBuf, receiver: &super::Receiver) -> Self {
        let shelf = receiver.shared.shelf.clone();
        Self { shared: Arc::new(Shared { root, shelf, uploads: Mutex::default() }) }
    }

    /// Starts an upload that the caller holds.
    ///
    /// # Errors
    ///
    /// `not_found`, `permission_denied`, `precondition_failed` for the path; `transfer_failed` with
    /// cause `conflict` or `disk_full`.
    pub fn write(&self, write: Write) -> Result<Upload> {
        Upload::begin(&self.shared.shelf, Root::open(&self.shared.root)?, write)
    }

    /// Starts an upload, or finds the one of that name: the name, how far it is, and how long it may
    /// rest.
    ///
    /// # Errors
    ///
    /// As [`Uploads::write`], and `limit_exceeded`.
    pub fn begin(
        &self,
        id: &str,
        write: Write,
        ttl: Option<Duration>,
        now: Instant,
    ) -> Result<(String, u64, Duration)> {
        if id.len() > MAX_ID {
            return Err(Error::new(Kind::InvalidArgument, "the upload's name is too long")
                .issue(issue("upload_id", "bytes at most", MAX_ID)));
        }
        let id = if id.is_empty() { random_id()? } else { id.to_owned() };
        let ttl = ttl.unwrap_or(DEFAULT_TTL).min(MAX_TTL);
        if let Ok(known) = self.kept(&id) {
            let mut known = lock(&known);
            if known.path != write.path {
                return Err(Error::new(
                    Kind::InvalidArgument,
                    format!("upload `{}` is to another path", Shown(id.as_bytes())),
                )
                .hint("Abort it, or choose another name"));
            }
            (known.used, known.ttl) = (now, ttl);
            let received = known.upload.as_ref().map_or(0, Upload::received);
            return Ok((id, received, ttl));
        }
        let path = write.path.clone();
        let upload = self.write(write)?;
        let mut uploads = self.uploads();
        if uploads.len() >= MAX_UPLOADS {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("{MAX_UPLOADS} uploads are under way"),
            )
            .with("limit", MAX_UPLOADS)
            .retry_after(Duration::from_secs(10))
            .hint("Commit or abort one first"));
        }
        let kept = Kept { upload: Some(upload), path, ttl, used: now };
        uploads.insert(id.clone(), Arc::new(Mutex::new(kept)));
        Ok((id, 0, ttl))
    }

    /// Takes the next bytes of an upload; also says how long it may rest.
    ///
    /// # Errors
    ///
    /// `not_found`; `precondition_failed` with `expected_offset`; as [`Upload::append`].
    pub fn chunk(
        &self,
        id: &str,
        offset: u64,
        data: &[u8],
        now: Instant,
    ) -> Result<(Received, Duration)> {
        if data.len() > MAX_CHUNK {
            return Err(Error::new(Kind::LimitExceeded, "the chunk is too large")
                .with("limit", MAX_CHUNK)
                .hint("Send smaller chunks"));
        }
        let kept = self.kept(id)?;
        let mut kept = lock(&kept);
        let upload = kept.upload.as_mut().ok_or_else(|| unknown(id))?;
        let path = upload.write.path.clone();
        let duplicate = super::transfer::at(offset, data, upload.received(), path.as_bytes())?;
        if !duplicate && let Err(error) = upload.append(data) {
            // Part of it may be written: nothing more can come of it.
            kept.upload = None;
            self.uploads().remove(id);
            return Err(error);
        }
        let received = upload.received();
        kept.used = now;
        Ok((Received { received, duplicate }, kept.ttl))
    }

    /// Checks an upload and publishes it.
    ///
    /// # Errors
    ///
    /// `not_found`, and as [`Upload::commit`]; the upload is over either way.
    pub fn commit(&self, id: &str, sha256: Option<&str>) -> Result<Uploaded> {
        self.take(id)?.commit(sha256)
    }

    /// Forgets an upload.
    ///
    /// # Errors
    ///
    /// `not_found`.
    pub fn abort(&self, id: &str) -> Result<()> {
        self.take(id).map(drop)
    }

    /// Ends uploads that have rested too long. To be called every few seconds.
    pub fn sweep(&self, now: Instant) {
        let mut over = Vec::new();
        self.uploads().retain(|_, kept| {
            let Ok(mut held) = kept.try_lock() else { return true }; // in use
            let stays = now.saturating_duration_since(held.used) < held.ttl;
            if !stays {
                over.extend(held.upload.take());
            }
            stays
        });
        drop(over); // without the lock
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<String, Arc<Mutex<Kept>>>> {
        self.shared.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self, id: &str) -> Result<Arc<Mutex<Kept>>> {
        self.uploads().get(id).cloned().ok_or_else(|| unknown(id))
    }

    fn take(&self, id: &str) -> Result<Upload> {
        let kept = self.uploads().remove(id).ok_or_else(|| unknown(id))?;
        let upload = lock(&kept).upload.take();
        upload.ok_or_else(|| unknown(id))
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unknown(id: &str) -> Error {
    Error::new(Kind::NotFound, format!("there is no upload `{}`", Shown(id.as_bytes())))
        .with("upload_id", raw(id.as_bytes()))
        .hint("Begin it first; one that is committed, aborted or at rest too long is gone")
}
