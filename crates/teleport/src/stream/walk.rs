//! What there is to send: files and folders, without what ignore files leave out.
//!
//! The rules are those of the contract's own client: nested `.gitignore` and `.ignore`, a
//! `.dockerignore` at the top, `.git` never, links never. Nothing is opened through a link.

use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, Stat, memfd_create};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};

use crate::digest::Digest;
use crate::files::Files;
use crate::ignore::{Judge, MAX_FILE, Rules};
use crate::path::{MAX_DEPTH, Shown, raw};
use crate::receive::MAX_ENTRIES;
use crate::root::{Root, io_error, kind_of};

/// How many of the paths that ignore files leave out are named; the rest are counted.
const MAX_NAMED: usize = 200;

/// Something to send, by where it is.
#[derive(Debug)]
pub struct Source {
    /// What it is below.
    root: Root,
    /// Where it is there.
    at: Vec<u8>,
    /// What it is called at the destination.
    name: Vec<u8>,
    /// A text that is nowhere but in memory.
    text: Option<File>,
}

impl Source {
    /// What a path of this machine names. Links on the way are its owner's own, and are followed.
    ///
    /// # Errors
    ///
    /// `not_found`, `transfer_failed` for what cannot be opened, `invalid_argument` for the root.
    pub fn at(path: &Path) -> Result<Self> {
        let shown = path.as_os_str().as_bytes();
        let found = path.canonicalize().map_err(|error| {
            io_error(Errno::from_io_error(&error).unwrap_or(Errno::IO), "found", shown)
        })?;
        let (Some(parent), Some(last)) = (found.parent(), found.file_name()) else {
            return Err(Error::new(Kind::InvalidArgument, "the whole file system cannot be sent")
                .hint("Name a folder in it"));
        };
        // A link is called what it is called, not what it leads to.
        let name = path.file_name().unwrap_or(last);
        let at = last.as_bytes().to_vec();
        Ok(Self { root: Root::open(parent)?, at, name: name.as_bytes().to_vec(), text: None })
    }

    /// What a caller names below a root that nothing may lead out of. No link is followed.
    ///
    /// # Errors
    ///
    /// As [`Files::resolve_entry`].
    pub fn of(files: &Files, path: &str) -> Result<Self> {
        let below = files.resolve_entry(path)?;
        let (at, name) = (below.as_bytes().to_vec(), below.name().to_vec());
        Ok(Self { root: Root::open(files.root())?, at, name, text: None })
    }

    /// A text, which is on no disk and has the permission bits of what it replaces.
    ///
    /// # Errors
    ///
    /// `io` when there is no memory for it.
    pub fn text(text: &str) -> Result<Self> {
        use std::io::Write as _;
        let failed = |errno| io_error(errno, "held", b"a text");
        let memory = memfd_create("text", MemfdFlags::CLOEXEC).map_err(failed)?;
        let mut file = File::from(memory);
        file.write_all(text.as_bytes())?;
        let root = Root::open(Path::new("/"))?;
        Ok(Self { root, at: Vec::new(), name: b"text".to_vec(), text: Some(file) })
    }

    /// The same under another name at the destination.
    #[must_use]
    pub fn called(self, name: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Where one of its entries is below the root.
    fn place(&self, path: &[u8]) -> Vec<u8> {
        let rest = path.get(self.name.len()..).unwrap_or_default();
        [&self.at, rest].concat()
    }
}

/// One file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where it goes.
    pub path: Box<[u8]>,
    source: u32,
    /// Whether it is a folder.
    pub directory: bool,
    /// Bytes of a file.
    pub size: u64,
    /// Permission bits; `None` for those of what it replaces, or the usual ones.
    pub mode: Option<u32>,
    /// When it was changed last: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// Inode, and when anything about it changed: what tells whether it is still the same.
    identity: (u64, i64, i64),
}

/// What is not sent, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    /// Ignore files say so; a folder counts once.
    pub ignored: u64,
    /// Links.
    pub links: u64,
    /// Pipes, sockets and devices.
    pub special: u64,
}

/// Everything that is to be sent.
#[derive(Debug, Default)]
pub struct Listing {
    sources: Vec<Source>,
    /// Files and folders, a folder before what is in it.
    pub items: Vec<Item>,
    /// Bytes of all files.
    pub bytes: u64,
    /// How many files.
    pub files: u64,
    /// What is not sent.
    pub left_out: LeftOut,
    /// Some of what ignore files leave out, by its path.
    pub ignored: Vec<Vec<u8>>,
}

impl Listing {
    /// Walks them all. With `everything`, ignore files do not count.
    ///
    /// # Errors
    ///
    /// `transfer_failed` or `io` naming what cannot be read; `limit_exceeded` for too much.
    pub fn walk(sources: Vec<Source>, everything: bool) -> Result<Self> {
        let mut listing = Self::default();
        for (number, source) in (0..).zip(&sources) {
            let mut walk = Walk { listing: &mut listing, source, number, judge: None };
            walk.start(everything)?;
        }
        listing.sources = sources;
        if listing.items.is_empty() {
            return Err(Error::new(Kind::InvalidArgument, "there is nothing to send")
                .hint("Name a file or folder; links, pipes and devices are not sent"));
        }
        Ok(listing)
    }

    /// Opens one of its files.
    pub(crate) fn open(&self, item: &Item) -> Result<File> {
        let source = self.sources.get(item.source as usize).ok_or_else(|| gone(item))?;
        if let Some(text) = &source.text {
            return Ok(text.try_clone()?);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
        source.root.open_file(&source.place(&item.path), flags, Mode::empty()).map_err(|errno| {
            match errno {
                Errno::NOENT | Errno::LOOP | Errno::NOTDIR => gone(item),
                errno => io_error(errno, "read", &item.path),
            }
        })
    }

    /// What tells these files, as they are, from others and from themselves after a change.
    pub fn identity(&self) -> Digest {
        let mut hash = Sha256::new();
        for item in &self.items {
            hash.update((item.path.len() as u64).to_be_bytes());
            hash.update(&item.path);
            hash.update([u8::from(item.directory)]);
            hash.update(item.size.to_be_bytes());
            hash.update(item.mode.unwrap_or(u32::MAX).to_be_bytes());
            hash.update(item.modified.0.to_be_bytes());
            hash.update(item.modified.1.to_be_bytes());
            if !item.directory {
                hash.update(item.identity.0.to_be_bytes());
                hash.update(item.identity.1.to_be_bytes());
                hash.update(item.identity.2.to_be_bytes());
            }
        }
        Digest(hash.finalize().into())
    }
}

impl Item {
    fn new(path: Vec<u8>, source: u32, stat: &Stat) -> Self {
        let directory = kind_of(stat) == FileType::Directory;
        Self {
            path: path.into_boxed_slice(),
            source,
            directory,
            size: if directory { 0 } else { u64::try_from(stat.st_size).unwrap_or(0) },
            mode: Some(stat.st_mode & 0o777),
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            identity: identity(stat),
        }
    }

    /// Whether what is open is still what was listed.
    pub(super) fn is_still(&self, stat: &Stat) -> bool {
        u64::try_from(stat.st_size) == Ok(self.size)
            && kind_of(stat) == FileType::RegularFile
            && identity(stat) == self.identity
    }
}

#[expect(clippy::useless_conversion, reason = "the types differ between platforms")]
fn identity(stat: &Stat) -> (u64, i64, i64) {
    let nanos = i64::try_from(stat.st_ctime_nsec).unwrap_or(0);
    (stat.st_ino.into(), stat.st_ctime.into(), nanos)
}

/// The error for a file that is not what it was.
pub(super) fn gone(item: &Item) -> Error {
    Error::because(
        Cause::SizeMismatch,
        format!("`{}` was changed while it was being sent", Shown(&item.path)),
    )
    .with("entry", raw(&item.path))
    .hint("Send it again when nothing writes to it")
}

struct Walk<'a> {
    listing: &'a mut Listing,
    source: &'a Source,
    number: u32,
    /// `None`: everything is sent.
    judge: Option<Judge>,
}

impl Walk<'_> {
    fn start(&mut self, everything: bool) -> Result<()> {
        let at = &self.source.at;
        let failed = |errno| io_error(errno, "looked at", at);
        if let Some(text) = &self.source.text {
            let stat = rustix::fs::fstat(text).map_err(failed)?;
            self.add(self.source.name.clone(), &stat)?;
            self.listing.items.iter_mut().for_each(|item| item.mode = None);
            return Ok(());
        }
        let (holder, name) = self.source.root.holder(at).map_err(failed)?;
        let stat = holder.stat(name).map_err(failed)?;
        drop(holder);
        self.judge = (!everything).then(|| Judge::new(None));
        match kind_of(&stat) {
            FileType::Directory => self.folder(&self.source.name.clone(), &stat, 1),
            FileType::RegularFile => self.add(self.source.name.clone(), &stat),
            FileType::Symlink => {
                self.listing.left_out.links += 1;
                Ok(())
            }
            _ => {
                self.listing.left_out.special += 1;
                Ok(())
            }
        }
    }

    fn folder(&mut self, path: &[u8], stat: &Stat, depth: usize) -> Result<()> {
        let failed = |errno| io_error(errno, "read", path);
        if depth > MAX_DEPTH {
            return Err(crate::path::Flaw::TooDeep.error(path));
        }
        self.add(path.to_vec(), stat)?;
        let folder = self.source.root.folder(&self.source.place(path)).map_err(failed)?;
        self.enter(&folder, path)?;
        let mut names = folder.names().map_err(failed)?;
        names.sort_unstable_by(|a, b| crate::ignore::tree_order(a, b));
        for name in names {
            let path = [path, b"/", &name[..]].concat();
            let stat = match folder.stat(&name) {
                Err(Errno::NOENT) => continue, // gone since
                stat => stat.map_err(|errno| io_error(errno, "looked at", &path))?,
            };
            let kind = kind_of(&stat);
            match kind {
                FileType::Directory | FileType::RegularFile if self.ignores(&path, &name, kind) => {
                    self.listing.left_out.ignored += 1;
                    if self.listing.ignored.len() < MAX_NAMED {
                        self.listing.ignored.push(path);
                    }
                }
                FileType::Directory => self.folder(&path, &stat, depth + 1)?,
                FileType::RegularFile => self.add(path, &stat)?,
                FileType::Symlink => self.listing.left_out.links += 1,
                _ => self.listing.left_out.special += 1,
            }
        }
        Ok(())
    }

    fn ignores(&mut self, path: &[u8], name: &[u8], kind: FileType) -> bool {
        let Some(judge) = &mut self.judge else { return false };
        let inner = path.get(self.source.name.len() + 1..).unwrap_or_default();
        let directory = kind == FileType::Directory;
        (directory && name == b".git") || judge.ignores(inner, directory)
    }

    /// Reads the ignore files of a folder.
    fn enter(&mut self, folder: &Root, path: &[u8]) -> Result<()> {
        let Some(judge) = &mut self.judge else { return Ok(()) };
        let inner = path.get(self.source.name.len() + 1..).unwrap_or_default();
        let mut patterns = Vec::new();
        for name in [&b".dockerignore"[..], b".gitignore", b".ignore"] {
            if name == b".dockerignore" && !inner.is_empty() {
                continue;
            }
            let Ok(file) = folder.open_file(name, OFlags::RDONLY, Mode::empty()) else { continue };
            if !file.metadata().is_ok_and(|it| it.is_file()) {
                continue;
            }
            use std::io::Read as _;
            file.take(MAX_FILE as u64)
                .read_to_end(&mut patterns)
                .map_err(|error| Error::from(error).with("entry", raw(path)))?;
            patterns.push(b'\n');
        }
        if !patterns.is_empty() {
            judge.enter(Rules::of_file(inner, &patterns)?);
        }
        Ok(())
    }

    fn add(&mut self, path: Vec<u8>, stat: &Stat) -> Result<()> {
        if self.listing.items.len() == MAX_ENTRIES {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("more than {MAX_ENTRIES} files and folders cannot be sent at once"),
            )
            .with("limit", MAX_ENTRIES)
            .hint("Send it in several parts"));
        }
        let item = Item::new(path, self.number, stat);
        self.listing.bytes = self.listing.bytes.saturating_add(item.size);
        self.listing.files += u64::from(!item.directory);
        self.listing.items.push(item);
        Ok(())
    }
}
