//! What is to be sent as the contract has it: every file with its digest before the first byte.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};
use tokio_util::sync::CancellationToken;

use super::{CHUNK, What, digest};
use crate::path::Shown;
use crate::raw;
use crate::stream::{Item, Listing, Source};

/// Everything of one transfer.
pub(super) struct Files {
    pub(super) path: PathBuf,
    pub(super) name: String,
    pub(super) what: What,
    /// Folders before what is in them; the first is the whole.
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: u64,
    /// Paths that ignore rules left out, and how many there were.
    pub(super) left_out: (Vec<String>, u64),
    listing: Arc<Listing>,
}

/// One file or folder.
pub(super) struct Entry {
    /// From the name of the whole on, separated by `/`.
    pub(super) relative: String,
    pub(super) folder: bool,
    pub(super) size: u64,
    pub(super) sha256: String,
    pub(super) mode: u32,
    pub(super) modified: (i64, u32),
    /// Its number in the listing.
    index: usize,
}

impl Files {
    /// Looks at `path` and hashes what is there.
    pub(super) async fn read(path: &Path, rules: bool, stop: &CancellationToken) -> Result<Self> {
        let (path, stop) = (path.to_owned(), stop.clone());
        tokio::task::spawn_blocking(move || Self::look(&path, rules, &stop)).await.map_err(
            |error| Error::new(Kind::Internal, "the files could not be read").source(error),
        )?
    }

    fn look(path: &Path, rules: bool, stop: &CancellationToken) -> Result<Self> {
        let listing = Listing::walk(vec![Source::at(path)?], !rules)?;
        let mut entries = Vec::with_capacity(listing.items.len());
        for (index, item) in listing.items.iter().enumerate() {
            let relative = std::str::from_utf8(&item.path).map_err(|_| {
                Error::because(
                    Cause::NameUnusable,
                    format!("the name of `{}` is not UTF-8", Shown(&item.path)),
                )
                .with("entry", raw(&item.path))
                .hint("Rename it; nothing was sent")
            })?;
            entries.push(Entry {
                relative: relative.to_owned(),
                folder: item.directory,
                size: item.size,
                sha256: if item.directory { String::new() } else { hashed(&listing, item, stop)? },
                mode: item.mode.unwrap_or_default(),
                modified: item.modified,
                index,
            });
        }
        let name = entries.first().map(|whole| whole.relative.clone()).unwrap_or_default();
        let what = match entries.first() {
            Some(Entry { folder: true, .. }) => What::Folder,
            _ => What::File,
        };
        let ignored = listing.ignored.iter().map(|path| raw(path)).collect();
        Ok(Self {
            path: path.canonicalize().unwrap_or_else(|_| path.to_owned()),
            name,
            what,
            entries,
            bytes: listing.bytes,
            left_out: (ignored, listing.left_out.ignored),
            listing: Arc::new(listing),
        })
    }

    /// Opens one of the files at `offset`.
    pub(super) fn open(&self, entry: &Entry, offset: u64) -> Result<Reading> {
        use std::io::{Seek as _, SeekFrom};
        let item = self.listing.items.get(entry.index);
        let item = item.ok_or_else(|| Error::new(Kind::Internal, "an entry is of no file"))?;
        let mut file = self.listing.open(item)?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Reading { shown: entry.relative.clone(), file })
    }
}

fn hashed(listing: &Listing, item: &Item, stop: &CancellationToken) -> Result<String> {
    use std::io::Read as _;
    let mut file = listing.open(item)?;
    let (mut hash, mut size, mut some) = (Sha256::new(), 0, vec![0; CHUNK]);
    loop {
        if stop.is_cancelled() {
            return Err(Error::new(Kind::Cancelled, "the transfer was stopped"));
        }
        match file
            .read(&mut some)
            .map_err(|error| Error::from(error).with("entry", raw(&item.path)))?
        {
            0 if size == item.size => return Ok(digest(hash)),
            0 => return Err(changed(&raw(&item.path))),
            read => {
                hash.update(some.get(..read).unwrap_or_default());
                size += read as u64;
            }
        }
    }
}

/// The error for a file that is not what it was.
pub(super) fn changed(shown: &str) -> Error {
    Error::because(Cause::SizeMismatch, format!("`{shown}` was changed while it was being sent"))
        .with("entry", shown)
        .hint("Send it again once nothing writes to it")
}

/// A file that is being sent.
pub(super) struct Reading {
    shown: String,
    file: File,
}

impl Reading {
    /// The next bytes, at most `most`; none at the end.
    pub(super) async fn next(mut self, most: usize) -> Result<(Self, Bytes)> {
        use std::io::Read as _;
        tokio::task::spawn_blocking(move || {
            let mut chunk = BytesMut::zeroed(most);
            let mut filled = 0;
            while let Some(rest @ [_, ..]) = chunk.get_mut(filled..) {
                let read = self.file.read(rest);
                match read.map_err(|error| Error::from(error).with("entry", &self.shown))? {
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
