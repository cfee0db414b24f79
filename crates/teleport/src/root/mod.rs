//! A folder by its handle, and everything that is opened beneath it.
//!
//! A path is never resolved twice: what is checked is what is opened. The kernel refuses to leave
//! the folder or to follow a link on the way (openat2(2), `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`),
//! so another process that swaps folders for links meanwhile gains nothing. Where that call is
//! missing, a path is opened name by name, and no name may be a link.

mod open;
mod tree;

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use spaceport_types::{Cause, Error, Kind, Result};

use crate::path::{RelativePath, Shown, raw, split};

pub(crate) use open::{Links, open_beneath};
pub(crate) use tree::remove_tree;

/// A folder that is held open. Everything is found beneath it, wherever its path leads by then.
#[derive(Debug)]
pub struct Root {
    handle: OwnedFd,
}

impl Root {
    /// Opens a folder that the operator named. On the way to it links are followed: they are the
    /// operator's own.
    ///
    /// # Errors
    ///
    /// `not_found`, and `transfer_failed` or `io` for the rest.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| io_error(errno, "opened", path.as_os_str().as_bytes()))?;
        Ok(Self { handle })
    }

    /// The same; makes it, and what is missing on the way, where it is not there yet.
    ///
    /// # Errors
    ///
    /// As [`Root::open`].
    pub fn create(path: &Path) -> Result<Self> {
        match std::fs::create_dir_all(path) {
            Ok(()) => Self::open(path),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Err(io_error(errno, "made", path.as_os_str().as_bytes()))
            }
        }
    }

    pub(crate) const fn from_handle(handle: OwnedFd) -> Self {
        Self { handle }
    }

    /// Another handle of the same folder.
    pub(crate) fn again(&self) -> Result<Self, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.handle, 0).map(Self::from_handle)
    }

    /// The folder at `path` beneath this one, through no link.
    ///
    /// # Errors
    ///
    /// What the kernel says: `ELOOP` for a link on the way, `ENOTDIR` for something else in its place.
    pub(crate) fn folder(&self, path: &[u8]) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open_beneath(self.as_fd(), path, flags, Mode::empty(), Links::Refused)
            .map(Self::from_handle)
    }

    /// Opens what is at `path`, through no link.
    pub(crate) fn open_file(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<File, Errno> {
        open_beneath(self.as_fd(), path, flags, mode, Links::Refused).map(File::from)
    }

    /// The folder that holds `path`, and its name in there.
    pub(crate) fn holder<'a>(&self, path: &'a [u8]) -> Result<(Self, &'a [u8]), Errno> {
        match split(path) {
            (Some(parent), name) => Ok((self.folder(parent)?, name)),
            (None, name) => Ok((self.again()?, name)),
        }
    }

    /// Makes one folder in this one. That it exists is no error; false then.
    pub(crate) fn make_folder(&self, name: &[u8], mode: Mode) -> Result<bool, Errno> {
        match rustix::fs::mkdirat(&self.handle, OsStr::from_bytes(name), mode) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// What a name in this folder is, the name itself and not what it may link to.
    pub(crate) fn stat(&self, name: &[u8]) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.handle, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The same, `None` where there is nothing of that name.
    pub(crate) fn look(&self, name: &[u8]) -> Result<Option<Stat>, Errno> {
        match self.stat(name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// What this folder itself is.
    pub(crate) fn stat_self(&self) -> Result<Stat, Errno> {
        rustix::fs::fstat(&self.handle)
    }

    /// Renames `from` in this folder to `to` in another, which may be this one.
    pub(crate) fn rename(
        &self,
        from: &[u8],
        into: &Self,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let (from, to) = (OsStr::from_bytes(from), OsStr::from_bytes(to));
        rustix::fs::renameat_with(&self.handle, from, &into.handle, to, flags)
    }

    /// Removes a file.
    pub(crate) fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.handle, OsStr::from_bytes(name), AtFlags::empty())
    }

    /// Removes an empty folder.
    pub(crate) fn remove_folder(&self, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::unlinkat(&self.handle, OsStr::from_bytes(name), AtFlags::REMOVEDIR)
    }

    /// The names in this folder, in no order.
    pub(crate) fn names(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.handle)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Where this folder is now, as the kernel knows it.
    pub(crate) fn location(&self) -> Result<PathBuf, Errno> {
        use std::os::fd::AsRawFd as _;
        let link = format!("/proc/self/fd/{}", self.handle.as_raw_fd());
        let path = rustix::fs::readlink(link, Vec::new())?;
        Ok(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
    }

    /// As deep into `path` as there are folders, through no link: the last of them, and how many
    /// names of `path` it took to get there.
    pub(crate) fn descend(&self, path: &RelativePath) -> Result<(Self, usize), Errno> {
        let (mut at, mut depth) = (self.again()?, 0);
        for segment in path.segments() {
            match at.folder(segment) {
                Ok(next) => at = next,
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(errno),
            }
            depth += 1;
        }
        Ok((at, depth))
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

pub(crate) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// What the kernel said about `path`, as an error with a cause. `done` is what could not be done to
/// it: `written`, `opened`.
pub(crate) fn io_error(errno: Errno, done: &'static str, path: &[u8]) -> Error {
    let shown = Shown(path);
    let (cause, message, hint) = match errno {
        Errno::NOSPC => (
            Cause::DiskFull,
            format!("no space is left for `{shown}`"),
            "Make room on the destination, and send it again",
        ),
        Errno::DQUOT => (
            Cause::DiskFull,
            format!("the quota leaves no room for `{shown}`"),
            "Make room within the quota of the destination, and send it again",
        ),
        Errno::ACCESS | Errno::PERM => (
            Cause::Permission,
            format!("`{shown}` may not be {done}"),
            "Choose another folder, or change its permissions",
        ),
        Errno::ROFS => (
            Cause::Permission,
            format!("`{shown}` is on a read-only file system"),
            "Choose a folder on another file system",
        ),
        Errno::LOOP | Errno::XDEV => (
            Cause::PathEscape,
            format!("`{shown}` leads through a link"),
            "Name the folder itself: links are not followed",
        ),
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => (
            Cause::NameUnusable,
            format!("the file system has no name `{shown}`"),
            "Rename it, and send it again",
        ),
        Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY => (
            Cause::Conflict,
            format!("something else is in the place of `{shown}`"),
            "Move it away, or choose another folder",
        ),
        Errno::NOENT => {
            return Error::new(Kind::NotFound, format!("there is no `{shown}`"))
                .with("path", raw(path))
                .source(std::io::Error::from(errno));
        }
        _ => {
            return Error::new(Kind::Io, format!("`{shown}` cannot be {done}"))
                .with("path", raw(path))
                .source(std::io::Error::from(errno));
        }
    };
    Error::because(cause, message)
        .with("entry", raw(path))
        .hint(hint)
        .source(std::io::Error::from(errno))
}

#[cfg(test)]
mod tests;
