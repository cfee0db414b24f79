//! Staging folders: where what arrives waits until all of it is there.
//!
//! A stage lies beside its destination, so that publishing is a rename. Where every stage is, is
//! noted before it is made (the *shelf*, in the state directory), so that the next start finds what
//! a crash left behind without looking through anyone's folders.
//!
//! ```text
//! .spaceport-<id>/    0700, locked while in use
//!     plan            what it is for, and how long it may rest
//!     files/          the tree as it will be
//!     digests         what files hash to whose digest came after them
//!     journal         what is being published; once all of it is, it is called `done`
//! ```

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use spaceport_types::{Error, Kind, Result};

use super::plan::parse_digest;
use crate::hex;
use crate::root::{Root, io_error, remove_tree};

/// What every stage's name starts with.
pub(crate) const PREFIX: &str = ".spaceport-";

/// First line of a stage's `plan`. What has none was not made here and is not touched.
const MAGIC: &str = "spaceport stage 1";

/// What there is in a stage, at its top.
const OWN: [&[u8]; 5] = [b"digests", b"done", b"files", b"journal", b"plan"];

/// Bytes of a `plan` or of a note that are read.
const MAX_NOTE: u64 = 8 << 10;

/// Other names that are tried where something has a stage's.
const NAME_ATTEMPTS: usize = 16;

/// The folder with the notes of where stages are.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    folder: PathBuf,
}

impl Shelf {
    pub(crate) fn open(folder: PathBuf) -> Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&folder).map_err(|error| {
            Error::new(Kind::Io, format!("`{}` cannot be made", folder.display()))
                .hint("Give a folder you may write to with `--state-dir`")
                .source(error)
        })?;
        Ok(Self { folder })
    }

    /// The notes and where they lead.
    pub(crate) fn stages(&self) -> Result<Vec<(PathBuf, PathBuf)>> {
        let mut stages = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let note = entry?.path();
            let mut location = Vec::new();
            let read =
                File::open(&note).and_then(|file| file.take(MAX_NOTE).read_to_end(&mut location));
            match read {
                Ok(_) => stages.push((note, PathBuf::from(OsStr::from_bytes(&location)))),
                Err(error) => {
                    tracing::warn!(%error, note = %note.display(), "a note is unreadable");
                }
            }
        }
        Ok(stages)
    }

    /// Notes where a stage is about to be; `None` where one of that name is noted already, whose note
    /// that stays.
    fn note(&self, name: &str, location: &Path) -> Result<Option<PathBuf>> {
        let note = self.folder.join(name);
        let written = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&note)
            .and_then(|mut file| file.write_all(location.as_os_str().as_bytes()));
        match written {
            Ok(()) => Ok(Some(note)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(io_error(errno, "written", note.as_os_str().as_bytes()))
            }
        }
    }
}

/// What a stage is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Purpose {
    /// Tells one request from another.
    pub(crate) fingerprint: [u8; 32],
    /// How long it may rest over a restart; `None`: not at all.
    pub(crate) keep: Option<Duration>,
}

/// A staging folder in use. Removed when dropped, unless it is kept for the next start.
#[derive(Debug)]
pub(crate) struct Stage {
    holder: Root,
    name: Vec<u8>,
    note: PathBuf,
    root: Root,
    files: Root,
    purpose: Purpose,
    gone: AtomicBool,
}

impl Stage {
    /// Makes a stage in `holder`.
    pub(crate) fn create(shelf: &Shelf, holder: Root, id: &str) -> Result<Self> {
        let place = holder.location().map_err(|errno| io_error(errno, "found", b"."))?;
        let failed = |errno| io_error(errno, "written", place.as_os_str().as_bytes());
        let short = short_name(id);
        for attempt in 0..NAME_ATTEMPTS {
            let name = match attempt {
                0 => format!("{PREFIX}{short}"),
                more => format!("{PREFIX}{short}-{more}"),
            };
            let note_name = name.trim_start_matches('.');
            let Some(note) = shelf.note(note_name, &place.join(&name))? else { continue };
            match holder.make_folder(name.as_bytes(), Mode::RWXU) {
                Ok(true) => {}
                Ok(false) => {
                    // Something of another's.
                    drop(std::fs::remove_file(&note));
                    continue;
                }
                Err(errno) => {
                    drop(std::fs::remove_file(&note));
                    return Err(failed(errno));
                }
            }
            return Self::furnish(holder, name.into_bytes(), note).map_err(failed);
        }
        Err(failed(Errno::EXIST))
    }

    fn furnish(holder: Root, name: Vec<u8>, note: PathBuf) -> Result<Self, Errno> {
        let root = holder.folder(&name)?;
        flock(&root, FlockOperation::NonBlockingLockExclusive)?;
        root.make_folder(b"files", Mode::RWXU)?;
        let files = root.folder(b"files")?;
        let (purpose, gone) = (Purpose::default(), AtomicBool::new(false));
        Ok(Self { holder, name, note, root, files, purpose, gone })
    }

    /// Writes down what it is for. A stage of which that is not known is not kept.
    pub(crate) fn describe(&mut self, purpose: Purpose) -> Result<(), Errno> {
        let keep = purpose.keep.map_or(0, |keep| keep.as_secs());
        let plan = format!("{MAGIC}\n{}\n{keep}\n", hex::encode(&purpose.fingerprint));
        self.create_own(b"plan", plan.as_bytes())?;
        self.purpose = purpose;
        Ok(())
    }

    /// Takes over what an earlier run left at `location`. `None` where that is not a stage, or is in
    /// use.
    pub(crate) fn adopt(note: PathBuf, location: &Path) -> Result<Option<Self>, Errno> {
        let (Some(parent), Some(name)) = (location.parent(), location.file_name()) else {
            return Ok(None);
        };
        let Ok(holder) = Root::open(parent) else { return Ok(None) };
        let name = name.as_bytes().to_vec();
        let root = match holder.folder(&name) {
            Ok(root) => root,
            Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let stat = root.stat_self()?;
        let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0;
        if !ours || flock(&root, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let purpose = match read_plan(&root) {
            Some(purpose) => purpose,
            // Made and not yet furnished, or half removed: nothing in it would be worth keeping.
            None if root.names()?.iter().all(|name| OWN.contains(&name.as_slice())) => {
                Purpose::default()
            }
            None => return Ok(None),
        };
        root.make_folder(b"files", Mode::RWXU)?;
        let files = root.folder(b"files")?;
        let gone = AtomicBool::new(false);
        Ok(Some(Self { holder, name, note, root, files, purpose, gone }))
    }

    /// The tree that is staged.
    pub(crate) const fn files(&self) -> &Root {
        &self.files
    }

    /// The staging folder itself.
    pub(crate) const fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) const fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// How long ago it was last used, by the file system's clock and ours.
    pub(crate) fn rested(&self, now: std::time::SystemTime) -> Duration {
        let stat = self.root.stat(b"plan");
        let seconds = stat.map_or(0, |stat| u64::try_from(stat.st_mtime).unwrap_or(0));
        let then = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        now.duration_since(then).unwrap_or_default()
    }

    /// Notes that it is in use.
    pub(crate) fn touch(&self) {
        use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_NOW, utimensat};
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        if let Err(error) = utimensat(&self.root, "plan", &times, AtFlags::SYMLINK_NOFOLLOW) {
            tracing::debug!(%error, "a stage cannot be marked as used");
        }
    }

    /// Writes a file of its own, durably.
    pub(crate) fn write(&self, name: &[u8], content: &[u8]) -> Result<(), Errno> {
        let file = self.create_own(name, content)?;
        rustix::fs::fsync(&file)?;
        rustix::fs::fsync(&self.root)
    }

    fn create_own(&self, name: &[u8], content: &[u8]) -> Result<File, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.root.open_file(name, flags, Mode::RUSR | Mode::WUSR)?;
        file.write_all(content)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(file)
    }

    /// Reads a file of its own; `None` when it is not there.
    pub(crate) fn read(&self, name: &[u8], limit: u64) -> Result<Option<Vec<u8>>, Errno> {
        read(&self.root, name, limit)
    }

    /// Removes it with everything in it, and forgets it. What cannot be removed now is tried again
    /// at the next start.
    pub(crate) fn remove(&self) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        match remove_tree(&self.holder, &self.name) {
            Ok(()) => drop(std::fs::remove_file(&self.note)),
            Err(error) => {
                let place = self.holder.location().unwrap_or_default();
                tracing::warn!(%error, place = %place.display(), "a staging folder cannot be removed");
            }
        }
    }

    /// Leaves it for the next start.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The part of a stage's name that comes from the transfer's.
pub(crate) fn short_name(id: &str) -> String {
    let digest = Sha256::digest(id);
    hex::encode(digest.get(..8).unwrap_or_default())
}

fn read(folder: &Root, name: &[u8], limit: u64) -> Result<Option<Vec<u8>>, Errno> {
    let file = match folder.open_file(name, OFlags::RDONLY, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mut content = Vec::new();
    file.take(limit)
        .read_to_end(&mut content)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(Some(content))
}

fn read_plan(folder: &Root) -> Option<Purpose> {
    let content = read(folder, b"plan", MAX_NOTE).ok()??;
    let text = std::str::from_utf8(&content).ok()?;
    let mut lines = text.lines();
    if lines.next()? != MAGIC {
        return None;
    }
    let fingerprint = parse_digest(lines.next()?)?.0;
    let keep = lines.next()?.parse().ok().filter(|&seconds: &u64| seconds > 0);
    Some(Purpose { fingerprint, keep: keep.map(Duration::from_secs) })
}
