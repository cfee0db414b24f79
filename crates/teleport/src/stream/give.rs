//! The side that has the files: reads, hashes and packs them.

use std::fs::File;
use std::os::fd::AsFd as _;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use spaceport_types::Result;
use spaceport_wire::pb::files as pb;

use super::pack::{PACK, Packer, Record, corrupt};
use super::walk::{Item, Listing, gone};
use crate::digest::Digest;
use crate::receive::{MAX_ENTRIES, Standing, Total};
use crate::root::io_error;

/// Files up to this size are packed whole.
const SMALL: u64 = 256 << 10;

/// Entries that are declared in one message, and bytes of their paths.
const DECLARED: usize = 2_000;
const DECLARED_BYTES: usize = 256 << 10;

/// How much is read and hashed in one go: what stays in the fastest caches.
const STEP: usize = 64 << 10;

/// Zeros that are hashed in one go.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Where packs go, and who is told.
pub(super) struct Giving<'a> {
    /// Takes what is packed, and waits until there is room for the next.
    pub(super) sink: &'a mut dyn FnMut(&mut Packer) -> Result<()>,
    /// Told how many bytes of files have been dealt with.
    pub(super) told: &'a mut dyn FnMut(u64),
    /// Told what a file hashes to, of every one.
    pub(super) file: &'a mut dyn FnMut(&Item, Digest),
}

/// What there is, as messages.
pub(super) fn entries(listing: &Listing) -> impl Iterator<Item = pb::Entries> {
    let mut left = &listing.items[..];
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |item: &&Item| {
            bytes += item.path.len();
            bytes <= DECLARED_BYTES
        };
        let some = left.iter().take(DECLARED).take_while(fits).count().max(1);
        let (now, later) = left.split_at_checked(some)?;
        left = later;
        Some(pb::Entries { entries: now.iter().map(entry).collect(), last: later.is_empty() })
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
pub(super) fn standing(begun: &pb::Begun) -> Result<Standing> {
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
pub(super) fn give(listing: &Listing, standing: &Standing, giving: Giving<'_>) -> Result<Digest> {
    let whole: std::collections::HashMap<_, _> = standing.whole.iter().copied().collect();
    let parts: std::collections::HashMap<_, _> = standing.parts.iter().copied().collect();
    let mut giver =
        Giver { listing, giving, packer: Packer::default(), scratch: Vec::new(), done: 0 };
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
        if let Some(digest) = digest {
            (giver.giving.file)(item, digest);
        }
        total.add(&item.path, digest.as_ref());
    }
    giver.flush()?;
    Ok(total.finish())
}

struct Giver<'l, 'g> {
    listing: &'l Listing,
    giving: Giving<'g>,
    packer: Packer,
    /// Where what the other side has is read to, to be hashed.
    scratch: Vec<u8>,
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
        let data = self.packer.whole(index, size);
        read_at(file, data, 0, item)?;
        let digest = Digest(Sha256::digest(&*data).into());
        check(item, file)?;
        self.packer.digest(&digest);
        self.done += item.size;
        Ok(digest)
    }

    fn large(&mut self, index: u32, item: &Item, file: &File, received: u64) -> Result<Digest> {
        let mut hash = Sha256::new();
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
            let length = room.min(usize::try_from(stop - at).unwrap_or(PACK));
            let part = if at < received {
                self.scratch.resize(PACK, 0);
                self.scratch.get_mut(..length).unwrap_or_default()
            } else {
                self.packer.part(index, at, length)
            };
            for step in part.chunks_mut(STEP) {
                read_at(file, step, at, item)?;
                hash.update(&*step);
                at += step.len() as u64;
            }
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
        (self.giving.sink)(&mut self.packer)?;
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
