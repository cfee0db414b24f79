//! What is to be sent: the files of this machine, as they are now.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};
use tokio_util::sync::CancellationToken;

use super::{CHUNK, MAX_ENTRIES, What, at, digest};

/// How many of the paths that ignore rules left out are named; the rest are counted.
const MAX_NAMED: usize = 200;

/// Folders within folders. More are a loop of mounts, or a trap.
const MAX_DEPTH: usize = 128;

/// Files with rules of their folder. A later one wins.
const RULES: [&str; 2] = [".gitignore", ".ignore"];

/// Everything of one transfer.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) what: What,
    /// Folders before what is in them; the first is the whole.
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: u64,
    /// Paths that ignore rules left out, and how many there were.
    pub(super) left_out: (Vec<String>, usize),
}

pub(super) struct Entry {
    /// From the name of the whole on, separated by `/`.
    pub(super) relative: String,
    pub(super) path: PathBuf,
    pub(super) folder: bool,
    pub(super) size: u64,
    pub(super) sha256: String,
    pub(super) mode: u32,
    pub(super) modified: (i64, i64),
}

impl Source {
    /// Looks at `path` and hashes what is there.
    pub(super) async fn read(path: &Path, rules: bool, stop: &CancellationToken) -> Result<Self> {
        let (path, stop) = (path.to_owned(), stop.clone());
        tokio::task::spawn_blocking(move || Self::look(&path, rules, &stop)).await.map_err(
            |error| Error::new(Kind::Internal, "the files could not be read").source(error),
        )?
    }

    fn look(path: &Path, rules: bool, stop: &CancellationToken) -> Result<Self> {
        // The one link that is followed: the path that was given.
        let path = fs::canonicalize(path).map_err(|error| at(path, error))?;
        let metadata = fs::metadata(&path).map_err(|error| at(&path, error))?;
        let name = match path.file_name() {
            Some(name) => named(name.to_str(), &path)?.to_owned(),
            None => {
                return Err(Error::new(Kind::InvalidArgument, "the root of a machine has no name")
                    .hint("Name what is to be sent"));
            }
        };
        let what = match () {
            () if metadata.is_file() => What::File,
            () if metadata.is_dir() => What::Folder,
            () => {
                return Err(Error::new(
                    Kind::InvalidArgument,
                    format!("`{}` is neither a file nor a folder", path.display()),
                ));
            }
        };
        let mut source = Self {
            path: path.clone(),
            name: name.clone(),
            what,
            entries: Vec::new(),
            bytes: 0,
            left_out: (Vec::new(), 0),
        };
        source.add(name, path, &metadata, stop)?;
        if what == What::Folder {
            let mut walk = Walk { rules, stop, judges: Vec::new() };
            if rules {
                walk.learn(&source.path, &[".dockerignore"]);
            }
            walk.folder(&mut source, 0, 0)?;
        }
        Ok(source)
    }

    fn add(
        &mut self,
        relative: String,
        path: PathBuf,
        metadata: &Metadata,
        stop: &CancellationToken,
    ) -> Result<()> {
        if self.entries.len() >= MAX_ENTRIES {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("`{}` has more than {MAX_ENTRIES} entries", self.path.display()),
            )
            .with("limit", MAX_ENTRIES)
            .hint("Send it in several parts"));
        }
        let folder = metadata.is_dir();
        let (size, sha256) = if folder { (0, String::new()) } else { hashed(&path, stop)? };
        self.bytes += size;
        self.entries.push(Entry {
            relative,
            path,
            folder,
            size,
            sha256,
            mode: metadata.permissions().mode() & 0o777,
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        });
        Ok(())
    }

    fn leave_out(&mut self, relative: String) {
        self.left_out.1 += 1;
        if self.left_out.0.len() < MAX_NAMED {
            self.left_out.0.push(relative);
        }
    }
}

struct Walk<'a> {
    rules: bool,
    stop: &'a CancellationToken,
    /// The rules of the folders around, the outermost first.
    judges: Vec<Gitignore>,
}

impl Walk<'_> {
    /// Adds what is in the folder that is entry `index`.
    fn folder(&mut self, source: &mut Source, index: usize, depth: usize) -> Result<()> {
        let Some(entry) = source.entries.get(index) else { return Ok(()) };
        let (folder, relative) = (entry.path.clone(), entry.relative.clone());
        if depth >= MAX_DEPTH {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("`{}` is more than {MAX_DEPTH} folders deep", folder.display()),
            )
            .with("limit", MAX_DEPTH));
        }
        let known = self.judges.len();
        if self.rules {
            self.learn(&folder, &RULES);
        }
        let listed = fs::read_dir(&folder).map_err(|error| at(&folder, error))?;
        let mut children = listed
            .map(|child| child.map(|child| child.path()))
            .collect::<std::io::Result<Vec<_>>>()
            .map_err(|error| at(&folder, error))?;
        children.sort_unstable();
        for path in children {
            let metadata = fs::symlink_metadata(&path).map_err(|error| at(&path, error))?;
            // Links lead elsewhere, and pipes and devices have no end.
            if !metadata.is_dir() && !metadata.is_file() {
                continue;
            }
            let name = named(path.file_name().and_then(|name| name.to_str()), &path)?;
            let relative = format!("{relative}/{name}");
            if metadata.is_dir() && name == ".git" || self.left_out(&path, metadata.is_dir()) {
                source.leave_out(relative);
                continue;
            }
            let (index, folder) = (source.entries.len(), metadata.is_dir());
            source.add(relative, path, &metadata, self.stop)?;
            if folder {
                self.folder(source, index, depth + 1)?;
            }
        }
        self.judges.truncate(known);
        Ok(())
    }

    /// Reads the rules of a folder. What is no rule is passed over, as git does.
    fn learn(&mut self, folder: &Path, files: &[&str]) {
        let mut builder = GitignoreBuilder::new(folder);
        let mut any = false;
        for file in files.iter().map(|name| folder.join(name)).filter(|file| file.is_file()) {
            any = true;
            drop(builder.add(file));
        }
        if any && let Ok(rules) = builder.build() {
            self.judges.push(rules);
        }
    }

    fn left_out(&self, path: &Path, folder: bool) -> bool {
        let verdict =
            self.judges.iter().rev().find_map(|rules| match rules.matched(path, folder) {
                Match::None => None,
                Match::Ignore(_) => Some(true),
                Match::Whitelist(_) => Some(false),
            });
        verdict.unwrap_or(false)
    }
}

fn named<'a>(name: Option<&'a str>, path: &Path) -> Result<&'a str> {
    name.ok_or_else(|| {
        let shown = path.display();
        Error::because(Cause::NameUnusable, format!("the name of `{shown}` is not UTF-8"))
            .with("path", shown)
            .hint("Rename it; nothing was sent")
    })
}

fn hashed(path: &Path, stop: &CancellationToken) -> Result<(u64, String)> {
    let mut file = File::open(path).map_err(|error| at(path, error))?;
    let (mut hash, mut size, mut some) = (Sha256::new(), 0, vec![0; CHUNK]);
    loop {
        if stop.is_cancelled() {
            return Err(Error::new(Kind::Cancelled, "the transfer was stopped"));
        }
        match file.read(&mut some).map_err(|error| at(path, error))? {
            0 => return Ok((size, digest(hash))),
            read => {
                hash.update(some.get(..read).unwrap_or_default());
                size += read as u64;
            }
        }
    }
}

/// A file that is being sent.
pub(super) struct Reading {
    path: PathBuf,
    file: File,
}

impl Reading {
    /// Opens it at `offset`.
    pub(super) fn open(path: &Path, offset: u64) -> Result<Self> {
        use std::io::{Seek as _, SeekFrom};
        let mut file = File::open(path).map_err(|error| at(path, error))?;
        file.seek(SeekFrom::Start(offset)).map_err(|error| at(path, error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The next bytes, at most `most`; none at the end.
    pub(super) async fn next(mut self, most: usize) -> Result<(Self, Bytes)> {
        tokio::task::spawn_blocking(move || {
            let mut chunk = BytesMut::zeroed(most);
            let mut filled = 0;
            while let Some(rest @ [_, ..]) = chunk.get_mut(filled..) {
                match self.file.read(rest).map_err(|error| at(&self.path, error))? {
                    0 => break,
                    read => filled += read,
                }
            }
            chunk.truncate(filled);
            Ok((self, chunk.freeze()))
        })
        .await
        .map_err(|error| Error::new(Kind::Internal, "the file could not be read").source(error))?
    }
}
