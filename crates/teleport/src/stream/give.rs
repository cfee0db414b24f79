//! The side that has the files: reads, hashes and packs them.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use spaceport_types::{Error, Result};
use spaceport_wire::pb::files as pb;

use super::pack::{PACK, Packer, Record, corrupt};
use super::walk::{Item, Listing, gone};
use crate::digest::Digest;
use crate::receive::{MAX_ENTRIES, Standing, Total};
use crate::root::io_error;

/// Files up to this size are packed whole.
const SMALL: u64 = 256 << 10;

/// Entries that are declared in one message.
const DECLARED: usize = 2_000;

/// Zeros that are hashed in one go.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Where packs go, and who is told.
pub struct Giving<'a> {
    /// Takes a pack, and waits until there is room for the next.
    pub sink: &'a mut dyn FnMut(pb::Pack) -> Result<()>,
    /// Whether compressing the next pack is worth it, where it shrinks.
    pub compress: &'a mut dyn FnMut() -> bool,
    /// Told how many bytes of files have been dealt with.
    pub told: &'a mut dyn FnMut(u64),
}

impl std::fmt::Debug for Giving<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Giving").finish_non_exhaustive()
    }
}

/// What there is, as messages.
pub fn entries(listing: &Listing) -> impl Iterator<Item = pb::Entries> {
    let chunks = listing.items.chunks(DECLARED);
    let count = chunks.len();
    chunks.zip(1..).map(move |(items, number)| pb::Entries {
        entries: items.iter().map(entry).collect(),
        last: number == count,
    })
}

fn entry(item: &Item) -> pb::Entry {
    pb::Entry {
        path: item.path.to_vec().into(),
        directory: item.directory,
        size: item.size,
        mode: item.mode,
        modified_seconds: item.modified.0,
        modified_nanos: item.modified.1,
    }
}

/// How far the other side is, as it said.
///
/// # Errors
///
/// `transfer_failed` with cause `corrupt_bundle` for what cannot be.
pub fn standing(begun: &pb::Begun) -> Result<Standing> {
    let mut whole = Vec::new();
    let mut digests = begun.digests.chunks_exact(32);
    for span in &begun.whole {
        for number in 0..span.count {
            let digest = digests.next().and_then(|digest| <[u8; 32]>::try_from(digest).ok());
            let index = span.first.checked_add(number);
            match (index, digest) {
                (Some(index), Some(digest)) if whole.len() < MAX_ENTRIES => {
                    whole.push((index, Digest(digest)));
                }
                _ => return Err(corrupt("the other side has files that were never named")),
            }
        }
    }
    let parts = begun.parts.iter().map(|part| (part.index, part.received)).collect();
    Ok(Standing { whole, parts })
}

/// Gives everything of which the other side has not yet all; returns what the whole hashes to.
///
/// # Errors
///
/// `transfer_failed` naming the file that cannot be read or has changed, and what the sink says.
pub fn give(listing: &Listing, standing: &Standing, giving: Giving<'_>) -> Result<Digest> {
    let whole: std::collections::HashMap<_, _> = standing.whole.iter().copied().collect();
    let parts: std::collections::HashMap<_, _> = standing.parts.iter().copied().collect();
    let mut giver = Giver { listing, giving, packer: Packer::default(), done: 0 };
    let mut total = Total::default();
    for (index, item) in (0..).zip(&listing.items) {
        let digest = match whole.get(&index) {
            _ if item.directory => None,
            Some(&digest) => {
                giver.done += item.size;
                Some(digest)
            }
            None => {
                let received = parts.get(&index).copied().unwrap_or(0).min(item.size);
                Some(giver.file(index, item, received)?)
            }
        };
        total.add(&item.path, digest.as_ref());
    }
    giver.flush()?;
    Ok(total.finish())
}

struct Giver<'l, 'g> {
    listing: &'l Listing,
    giving: Giving<'g>,
    packer: Packer,
    done: u64,
}

impl Giver<'_, '_> {
    fn file(&mut self, index: u32, item: &Item, received: u64) -> Result<Digest> {
        let file = self.listing.open(item)?;
        if item.size <= SMALL && received == 0 {
            return self.small(index, item, &file);
        }
        let digest = self.large(index, item, &file, received)?;
        check(item, &file)?;
        if self.packer.room() < 64 {
            self.flush()?;
        }
        self.packer.push(Record::End { index, digest });
        Ok(digest)
    }

    fn small(&mut self, index: u32, item: &Item, file: &File) -> Result<Digest> {
        let size = usize::try_from(item.size).unwrap_or(usize::MAX);
        if self.packer.room() < size {
            self.flush()?;
        }
        let mut data = Vec::with_capacity(size + 1);
        // One more than there should be: a file that grew is seen at once.
        file.take(item.size + 1).read_to_end(&mut data).map_err(|error| failed(&error, item))?;
        if data.len() != size {
            return Err(gone(item));
        }
        check(item, file)?;
        let digest = Digest(Sha256::digest(&data).into());
        self.packer.push(Record::Whole { index, data: &data, digest });
        self.done += item.size;
        Ok(digest)
    }

    fn large(&mut self, index: u32, item: &Item, file: &File, received: u64) -> Result<Digest> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; PACK];
        let (mut at, mut data, mut end) = (0, true, 0);
        while at < item.size {
            // Asked once for each: some file systems look at every page up to the next hole.
            if at == end {
                (data, end) = extent(file, at, item.size);
            }
            if !data {
                // Announced first: the other side hashes zeros at the same time.
                let from = at.max(received);
                if end > from {
                    self.packer.push(Record::Hole { index, offset: from, length: end - from });
                    self.flush()?;
                }
                let mut left = end - at;
                while left > 0 {
                    let length = ZEROS.len().min(usize::try_from(left).unwrap_or(ZEROS.len()));
                    hash.update(ZEROS.get(..length).unwrap_or_default());
                    left -= length as u64;
                }
                self.done += end - at;
                at = end;
                continue;
            }
            // What the other side has is only hashed.
            let stop = if at < received { end.min(received) } else { end };
            let mut room = self.packer.room();
            if room < PACK / 4 {
                self.flush()?;
                room = PACK;
            }
            let length = room.min(usize::try_from(stop - at).unwrap_or(PACK)).min(buffer.len());
            let part = buffer.get_mut(..length).unwrap_or_default();
            read_at(file, part, at, item)?;
            hash.update(&*part);
            if at >= received {
                self.packer.push(Record::Part { index, offset: at, data: part });
            }
            at += length as u64;
            self.done += length as u64;
            if self.packer.room() == 0 {
                self.flush()?;
            }
            (self.giving.told)(self.done);
        }
        Ok(Digest(hash.finalize().into()))
    }

    fn flush(&mut self) -> Result<()> {
        if self.packer.is_empty() {
            return Ok(());
        }
        let compress = (self.giving.compress)();
        let pack = self.packer.take(compress);
        (self.giving.sink)(pack)?;
        (self.giving.told)(self.done);
        Ok(())
    }
}

/// Whether there is data or a hole at `at`, and where that ends.
fn extent(file: &File, at: u64, size: u64) -> (bool, u64) {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) if data > at => (false, data.min(size)),
        Ok(_) => match rustix::fs::seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole > at => (true, hole.min(size)),
            _ => (true, size),
        },
        Err(Errno::NXIO) => (false, size), // nothing but a hole up to the end
        Err(_) => (true, size),            // a file system that does not say
    }
}

fn read_at(file: &File, mut buffer: &mut [u8], mut at: u64, item: &Item) -> Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(file, &mut *buffer, at) {
            Ok(0) => return Err(gone(item)),
            Ok(count) => {
                buffer = buffer.get_mut(count..).unwrap_or_default();
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(io_error(errno, "read", &item.path)),
        }
    }
    Ok(())
}

/// What was read is what was listed, from its first byte to its last.
fn check(item: &Item, file: &File) -> Result<()> {
    match rustix::fs::fstat(file.as_fd()) {
        Ok(stat) if item.is_still(&stat) => Ok(()),
        Ok(_) => Err(gone(item)),
        Err(errno) => Err(io_error(errno, "read", &item.path)),
    }
}

fn failed(error: &std::io::Error, item: &Item) -> Error {
    io_error(Errno::from_io_error(error).unwrap_or(Errno::IO), "read", &item.path)
}
