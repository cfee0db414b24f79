//! Reading one file, piece by piece.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use spaceport_types::Result;

use super::{Below, Entry, EntryKind, Files, failed};
use crate::digest::Digest;
use crate::path::RelativePath;

/// A file that is being read.
#[derive(Debug)]
pub struct Reading {
    file: File,
    entry: Entry,
    hash: Sha256,
    offset: u64,
    left: u64,
    read: u64,
}

impl Files {
    /// Opens a file to read `length` bytes from `offset` on; 0 is up to the end.
    ///
    /// # Errors
    ///
    /// As [`Files::stat`]; `precondition_failed` for what is no file.
    pub fn read(&self, path: &Below, offset: u64, length: u64) -> Result<Reading> {
        let shown = path.as_ref().map_or(&b"."[..], RelativePath::as_bytes);
        let fail = |errno| failed(errno, "read", shown);
        let root = self.open()?;
        let file = self.open_at(&root, path, OFlags::RDONLY).map_err(|errno| match errno {
            // A socket, or a device without a driver.
            Errno::NXIO => fail(Errno::PERM),
            errno => fail(errno),
        })?;
        let stat = rustix::fs::fstat(&file).map_err(fail)?;
        let entry = self.entry(path.as_ref(), &stat, None);
        match entry.kind {
            EntryKind::File => {}
            EntryKind::Folder => return Err(fail(Errno::ISDIR)),
            _ => return Err(fail(Errno::PERM).hint("Only files can be read")),
        }
        let left = if length == 0 { u64::MAX } else { length };
        Ok(Reading { file, entry, hash: Sha256::new(), offset, left, read: 0 })
    }
}

impl Reading {
    /// What is being read.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The next bytes, `size` at most, and where they are in the file; `None` at the end.
    ///
    /// # Errors
    ///
    /// `io`.
    pub fn next(&mut self, size: usize) -> Result<Option<(u64, Vec<u8>)>> {
        let size = size.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut data = vec![0; size];
        let mut filled = 0;
        while let Some(rest) = data.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, self.offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        data.truncate(filled);
        if data.is_empty() {
            return Ok(None);
        }
        self.hash.update(&data);
        let offset = self.offset;
        self.offset += filled as u64;
        self.left -= filled as u64;
        self.read += filled as u64;
        Ok(Some((offset, data)))
    }

    /// How many bytes were read, and their SHA-256.
    pub fn finish(self) -> (u64, Digest) {
        (self.read, Digest(self.hash.finalize().into()))
    }
}
