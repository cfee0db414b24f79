//! Looking at, reading and arranging files below one root, for callers who name paths.
//!
//! Reading follows links as long as they stay below the root. Whatever changes something follows
//! none: who writes through a link does not know where.

mod list;
mod read;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use spaceport_types::{Cause, Error, Kind, Result};

pub use list::{List, Page};
pub use read::Reading;

use crate::path::{RelativePath, Shown, raw};
use crate::root::{Links, Root, kind_of, open_beneath, remove_tree};

/// The files below one folder.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
    home: PathBuf,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device.
    Other,
}

/// One entry, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name; empty for the root.
    pub name: Vec<u8>,
    /// Where it is, from the top of the file system.
    pub path: PathBuf,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Number of the user it belongs to.
    pub owner: u32,
    /// Number of the group it belongs to.
    pub group: u32,
    /// When it was changed last: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// Where a link leads, as it is written.
    pub link: Option<Vec<u8>>,
}

/// A path below the root; `None` is the root itself.
type Below = Option<RelativePath>;

impl Files {
    /// The files below `root`. Paths that are relative or start with `~` count from `home`.
    pub fn new(root: impl Into<PathBuf>, home: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), home: home.into() }
    }

    /// The folder that everything is below.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What a caller's path is below the root; `None` for the root.
    ///
    /// # Errors
    ///
    /// `permission_denied` for a path that is not below it; `transfer_failed` for one that is no
    /// path.
    pub fn resolve(&self, path: &str) -> Result<Below> {
        let given = Path::new(path);
        let absolute = match given.strip_prefix("~") {
            Ok(below) => self.home.join(below),
            Err(_) => self.home.join(given), // which an absolute path replaces
        };
        let mut parts: Vec<&OsStr> = Vec::new();
        for component in absolute.components() {
            match component {
                Component::Normal(name) => parts.push(name),
                Component::ParentDir => {
                    return Err(outside(path).hint("Write the path without `..`"));
                }
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        let root = self.root.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let mut parts = parts.into_iter();
        for wanted in root {
            if parts.next() != Some(wanted) {
                return Err(outside(path).hint(format!(
                    "Name a path below `{}`; `--files-root` of `spaceport serve` widens that",
                    self.root.display()
                )));
            }
        }
        let below: Vec<&[u8]> = parts.map(|part| part.as_bytes()).collect();
        if below.is_empty() {
            return Ok(None);
        }
        RelativePath::parse(below.join(&b'/')).map(Some).map_err(|flaw| flaw.error(path.as_bytes()))
    }

    /// The same for what has to be below the root.
    ///
    /// # Errors
    ///
    /// As [`Files::resolve`], and for the root.
    pub fn resolve_entry(&self, path: &str) -> Result<RelativePath> {
        self.resolve(path)?.ok_or_else(|| outside(path).hint("Name something in that folder"))
    }

    /// Where a path below the root is.
    pub fn absolute(&self, path: Option<&RelativePath>) -> PathBuf {
        path.map_or_else(|| self.root.clone(), |path| self.root.join(path.as_path()))
    }

    fn open(&self) -> Result<Root> {
        Root::open(&self.root)
    }

    /// Links are followed within these bounds when reading.
    fn links(&self) -> Links {
        if self.root == Path::new("/") { Links::Within } else { Links::Beneath }
    }

    /// Opens what is at a path, for reading or only to look at it.
    fn open_at(&self, root: &Root, path: &Below, flags: OFlags) -> Result<std::fs::File, Errno> {
        let bytes = path.as_ref().map_or(&b"."[..], RelativePath::as_bytes);
        open_beneath(root.as_fd(), bytes, flags, Mode::empty(), self.links()).map(Into::into)
    }

    /// What is at a path; with `follow`, what a link there leads to.
    ///
    /// # Errors
    ///
    /// `not_found`, `permission_denied`, `precondition_failed` for a file that is used as a folder.
    pub fn stat(&self, path: &Below, follow: bool) -> Result<Entry> {
        let root = self.open()?;
        let shown = path.as_ref().map_or(&b"."[..], RelativePath::as_bytes);
        let fail = |errno| failed(errno, "looked at", shown);
        if follow {
            let file = self.open_at(&root, path, OFlags::PATH).map_err(fail)?;
            let stat = rustix::fs::fstat(&file).map_err(fail)?;
            return Ok(self.entry(path.as_ref(), &stat, None));
        }
        let Some(path) = path else {
            return root.stat_self().map(|stat| self.entry(None, &stat, None)).map_err(fail);
        };
        let holder = match path.parent() {
            Some(parent) => self.folder(&root, &Some(parent)).map_err(fail)?,
            None => root,
        };
        self.entry_in(&holder, path).map_err(fail)
    }

    fn folder(&self, root: &Root, path: &Below) -> Result<Root, Errno> {
        let file = self.open_at(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Root::from_handle(file.into()))
    }

    /// One name in a folder that is open.
    fn entry_in(&self, holder: &Root, path: &RelativePath) -> Result<Entry, Errno> {
        let stat = holder.stat(path.name())?;
        let link = match kind_of(&stat) {
            FileType::Symlink => {
                let name = OsStr::from_bytes(path.name());
                let link = rustix::fs::readlinkat(holder.as_fd(), name, Vec::new())?;
                Some(link.into_bytes())
            }
            _ => None,
        };
        Ok(self.entry(Some(path), &stat, link))
    }

    fn entry(&self, path: Option<&RelativePath>, stat: &Stat, link: Option<Vec<u8>>) -> Entry {
        Entry {
            name: path.map_or_else(Vec::new, |path| path.name().to_vec()),
            path: self.absolute(path),
            kind: match kind_of(stat) {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Folder,
                FileType::Symlink => EntryKind::Link,
                _ => EntryKind::Other,
            },
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode & 0o7777,
            owner: stat.st_uid,
            group: stat.st_gid,
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            link,
        }
    }

    /// Makes a folder; with `parents`, also those around it. That it is there is no error; false
    /// then.
    ///
    /// # Errors
    ///
    /// `not_found` for the folder around it, `transfer_failed` with cause `conflict` where something
    /// else is, and others of the disk.
    pub fn make_folder(
        &self,
        path: &RelativePath,
        parents: bool,
        mode: Option<u32>,
    ) -> Result<bool> {
        let root = self.open()?;
        let bytes = path.as_bytes();
        let fail = |errno| failed(errno, "made", bytes);
        if parents {
            make_parents(&root, path)?;
        }
        let (holder, name) = root.holder(bytes).map_err(fail)?;
        let mode = Mode::from_raw_mode(mode.map_or(0o755, crate::receive::kept_mode));
        let made = holder.make_folder(name, mode).map_err(fail)?;
        if made {
            // The umask is not the caller's.
            let folder = holder.folder(name).map_err(fail)?;
            rustix::fs::fchmod(&folder, mode).map_err(fail)?;
        } else if kind_of(&holder.stat(name).map_err(fail)?) != FileType::Directory {
            return Err(fail(Errno::EXIST));
        }
        Ok(made)
    }

    /// Moves or renames an entry.
    ///
    /// # Errors
    ///
    /// `not_found`; `transfer_failed` with cause `conflict` where something is and `overwrite` is not
    /// given; others of the disk.
    pub fn rename(
        &self,
        from: &RelativePath,
        to: &RelativePath,
        overwrite: bool,
        parents: bool,
    ) -> Result<()> {
        let root = self.open()?;
        if parents {
            make_parents(&root, to)?;
        }
        let (source, old) = root
            .holder(from.as_bytes())
            .map_err(|errno| failed(errno, "moved", from.as_bytes()))?;
        source.stat(old).map_err(|errno| failed(errno, "moved", from.as_bytes()))?;
        let fail = |errno| failed(errno, "moved", to.as_bytes());
        let (target, new) = root.holder(to.as_bytes()).map_err(fail)?;
        let flags = if overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        source.rename(old, &target, new, flags).map_err(fail)
    }

    /// Removes a file, a link or an empty folder; with `recursive`, whatever is there. False when
    /// there was nothing.
    ///
    /// # Errors
    ///
    /// `precondition_failed` for a folder that is not empty, and others of the disk.
    pub fn remove(&self, path: &RelativePath, recursive: bool) -> Result<bool> {
        let root = self.open()?;
        let fail = |errno| failed(errno, "removed", path.as_bytes());
        let (holder, name) = match root.holder(path.as_bytes()) {
            Err(Errno::NOENT) => return Ok(false),
            holder => holder.map_err(fail)?,
        };
        let Some(stat) = holder.look(name).map_err(fail)? else { return Ok(false) };
        if recursive {
            remove_tree(&holder, name).map_err(fail)?;
        } else if kind_of(&stat) == FileType::Directory {
            holder.remove_folder(name).map_err(fail)?;
        } else {
            holder.unlink(name).map_err(fail)?;
        }
        Ok(true)
    }
}

fn make_parents(root: &Root, path: &RelativePath) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    crate::receive::make_folders(root, parent.as_bytes())
        .map_err(|errno| failed(errno, "made", parent.as_bytes()))
}

fn outside(path: &str) -> Error {
    Error::new(
        Kind::PermissionDenied,
        format!("`{}` is not below the folder that is served", Shown(path.as_bytes())),
    )
    .with("path", raw(path.as_bytes()))
}

/// What the kernel said about a path that a caller named.
pub(crate) fn failed(errno: Errno, done: &'static str, path: &[u8]) -> Error {
    let shown = Shown(path);
    let error = match errno {
        Errno::NOENT => Error::new(Kind::NotFound, format!("there is no `{shown}`"))
            .hint("List the folder to see what is there"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            Error::new(Kind::PermissionDenied, format!("`{shown}` may not be {done}"))
                .hint("Choose another path, or change its permissions")
        }
        Errno::LOOP => {
            Error::new(Kind::PermissionDenied, format!("`{shown}` leads through a link"))
                .hint("Name the place itself: links are not followed")
        }
        Errno::XDEV => {
            Error::new(Kind::PermissionDenied, format!("`{shown}` leads out of what is served"))
                .hint("Name the place itself")
        }
        Errno::NOTDIR => Error::new(Kind::PreconditionFailed, format!("`{shown}` is in no folder"))
            .with("expected_type", "directory")
            .hint("What comes before its last name has to be a folder"),
        Errno::ISDIR => Error::new(Kind::PreconditionFailed, format!("`{shown}` is a folder"))
            .with("expected_type", "file")
            .hint("Name a file"),
        Errno::NOTEMPTY => Error::new(Kind::PreconditionFailed, format!("`{shown}` is not empty"))
            .hint("Ask for it to be removed with everything in it"),
        Errno::EXIST => Error::because(Cause::Conflict, format!("`{shown}` is there already"))
            .hint("Choose another path, or allow it to be replaced"),
        Errno::NOSPC | Errno::DQUOT => {
            Error::because(Cause::DiskFull, format!("no space is left for `{shown}`"))
                .hint("Make room, and try again")
        }
        Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => {
            Error::because(Cause::NameUnusable, format!("the file system has no name `{shown}`"))
                .hint("Choose another name")
        }
        _ => Error::new(Kind::Io, format!("`{shown}` cannot be {done}")),
    };
    error.with("path", raw(path)).source(std::io::Error::from(errno))
}
