//! Consistent copies of files that another program is writing.
//!
//! What is consistent depends on how a file is written, so there is one way for each kind: databases
//! ([`sqlite`]), LevelDB stores ([`leveldb`]), files that only grow ([`file`] takes them up to the
//! length they have when opened), and files that are replaced by a rename ([`file`] again: an open file
//! is one whole version). A bare copy of a database is torn up to half of the time under load.
//!
//! Only regular files are read, no link is followed, and nothing at the source is changed.

mod freeze;
mod leveldb;
mod sqlite;
mod tree;

pub(crate) use leveldb::leveldb;
pub(crate) use sqlite::sqlite;
pub(crate) use tree::{tree, tree_bytes};

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Take};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;
use spaceport_types::{Cause, Error, Result};

use crate::payload::no_room;

/// Looks this often before giving up on a file that never holds still.
const TRIES: u32 = 15;

/// A regular file as it is now, up to its present length; `None` when there is none.
pub(crate) fn file(path: &Path) -> Result<Option<(Take<File>, Metadata)>> {
    let opened = OpenOptions::new()
        .read(true)
        // A link is somebody else's file, and a FIFO would never open.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // ELOOP: it is a link.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(path, error)),
    };
    let metadata = file.metadata().map_err(|error| unreadable(path, error))?;
    if !metadata.is_file() {
        return Ok(None);
    }
    Ok(Some((file.take(metadata.len()), metadata)))
}

/// Copies a regular file as it is now. Whether there was one.
fn copy(from: &Path, to: &Path) -> Result<bool> {
    let Some((mut bytes, _)) = file(from)? else { return Ok(false) };
    let mut copy = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)
        .map_err(|error| no_room(error, "a copy of the app's state"))?;
    io::copy(&mut bytes, &mut copy).map_err(|error| no_room(error, "a copy of the app's state"))?;
    Ok(true)
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    let cause = match error.kind() {
        io::ErrorKind::PermissionDenied => Cause::Permission,
        _ => return Error::from(error).with("path", path.display()),
    };
    Error::because(cause, format!("`{}` may not be read", path.display()))
        .with("path", path.display())
        .source(error)
}

/// What was never seen at rest.
fn never_still(path: &Path) -> Error {
    Error::because(Cause::AppRunning, format!("`{}` never held still", path.display()))
        .with("path", path.display())
        .hint("Close the app, and try again")
}

/// Tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Result<Option<Self>> {
        match path.symlink_metadata() {
            Ok(metadata) => Ok(Some(Self::new(&metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unreadable(path, error)),
        }
    }

    fn new(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }

    /// Whether a change made right now might leave the same stamp: the kernel stamps files with a
    /// clock that ticks every few milliseconds, and this file has the present tick.
    fn is_fresh(&self) -> bool {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        self.modified >= (now.tv_sec, now.tv_nsec)
    }
}
