//! Records packed together, and how hostile ones are read.
//!
//! ```text
//! 1  part    index offset length  bytes
//! 2  hole    index offset length
//! 3  end     index                SHA-256
//! 4  whole   index length         bytes SHA-256
//! ```
//!
//! The first byte is the kind; numbers are LEB128, of 64 bits at most.

use std::borrow::Cow;

use spaceport_types::{Cause, Error, Result};

use super::slab::Slab;
use crate::digest::Digest;

/// Bytes of records that a pack is filled to: large enough that what a message costs does not show,
/// small enough that it stays in a core's own cache while it is read, hashed and sealed, and that
/// little is sent again.
pub const PACK: usize = 512 << 10;

/// Bytes of records in a pack at most. More is no pack of ours, and is not unpacked.
pub const MAX_PACK: usize = 2 * PACK;

/// How much of a pack is tried before all of it is compressed.
const PROBE: usize = 16 << 10;

/// The level of zstd: faster than any path that it helps on.
const LEVEL: i32 = 1;

const PART: u8 = 1;
const HOLE: u8 = 2;
const END: u8 = 3;
const WHOLE: u8 = 4;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Some bytes of a file, in order.
    Part {
        /// The file's number.
        index: u32,
        /// Where in the file they are.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// Zeros that are not sent.
    Hole {
        /// The file's number.
        index: u32,
        /// Where in the file they are.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// All of a file has come.
    End {
        /// The file's number.
        index: u32,
        /// What it hashes to.
        digest: Digest,
    },
    /// A small file.
    Whole {
        /// The file's number.
        index: u32,
        /// All that is in it.
        data: &'a [u8],
        /// What it hashes to.
        digest: Digest,
    },
}

/// Puts records together, where they are sealed and sent from.
#[derive(Debug, Default)]
pub struct Packer {
    slab: Slab,
}

impl Packer {
    /// Adds a record.
    pub fn push(&mut self, record: Record<'_>) {
        match record {
            Record::Part { index, offset, data } => {
                self.part(index, offset, data.len()).copy_from_slice(data);
            }
            Record::Hole { index, offset, length } => {
                self.head(HOLE, &[index.into(), offset, length]);
            }
            Record::End { index, digest } => {
                self.head(END, &[index.into()]);
                self.slab.grow(32).copy_from_slice(&digest.0);
            }
            Record::Whole { index, data, digest } => {
                self.whole(index, data.len()).copy_from_slice(data);
                self.digest(&digest);
            }
        }
    }

    /// Adds a part whose bytes are read into the place that is returned.
    pub(super) fn part(&mut self, index: u32, offset: u64, length: usize) -> &mut [u8] {
        self.head(PART, &[index.into(), offset, length as u64]);
        self.slab.grow(length)
    }

    /// Adds a small file, which is read into the place that is returned; its
    /// [`digest`](Self::digest) has to follow.
    pub(super) fn whole(&mut self, index: u32, length: usize) -> &mut [u8] {
        self.head(WHOLE, &[index.into(), length as u64]);
        self.slab.grow(length)
    }

    /// What the file hashes to whose bytes were added last.
    pub(super) fn digest(&mut self, digest: &Digest) {
        self.slab.grow(32).copy_from_slice(&digest.0);
    }

    fn head(&mut self, kind: u8, numbers: &[u64]) {
        self.slab.push(kind);
        for &number in numbers {
            let mut rest = number;
            while rest >= 0x80 {
                self.slab.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            self.slab.push(rest as u8);
        }
    }

    /// Bytes of the records so far.
    pub fn len(&self) -> usize {
        self.slab.body().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more bytes it is filled with.
    pub fn room(&self) -> usize {
        PACK.saturating_sub(self.len())
    }

    /// What is in it, as it is sealed; the next records go to `fresh`. With `compress`, compressed
    /// where that helps. Second, whether it is.
    pub(super) fn take(&mut self, fresh: Slab, compress: bool) -> (Slab, bool) {
        let mut slab = std::mem::replace(&mut self.slab, fresh);
        let Some(squeezed) = compress.then(|| squeezed(slab.body())).flatten() else {
            return (slab, false);
        };
        let size = slab.body().len() as u32;
        slab.clear();
        slab.grow(4).copy_from_slice(&size.to_le_bytes());
        slab.grow(squeezed.len()).copy_from_slice(&squeezed);
        (slab, true)
    }

    /// What it would be sealed as, and whether that is compressed.
    pub fn packed(&mut self, compress: bool) -> (Vec<u8>, bool) {
        let (slab, compressed) = self.take(Slab::default(), compress);
        (slab.body().to_vec(), compressed)
    }
}

/// The records compressed, unless a part of them shows that it is no use.
fn squeezed(records: &[u8]) -> Option<Vec<u8>> {
    if records.len() > 2 * PROBE {
        let middle = (records.len() - PROBE) / 2;
        let probe = records.get(middle..middle + PROBE)?;
        let tried = zstd::bulk::compress(probe, LEVEL).ok()?;
        if tried.len() > PROBE / 10 * 9 {
            return None;
        }
    }
    let squeezed = zstd::bulk::compress(records, LEVEL).ok()?;
    (squeezed.len() < records.len()).then_some(squeezed)
}

/// The records of a pack, unpacked.
///
/// # Errors
///
/// `transfer_failed` with cause `corrupt_bundle`.
pub fn unpack(pack: &[u8], compressed: bool) -> Result<Cow<'_, [u8]>> {
    if !compressed {
        return match pack.len() {
            0..=MAX_PACK => Ok(Cow::Borrowed(pack)),
            _ => Err(corrupt("a pack is too large")),
        };
    }
    let (size, squeezed) =
        pack.split_first_chunk().ok_or_else(|| corrupt("a pack ends where it begins"))?;
    let size = u32::from_le_bytes(*size) as usize;
    if size > MAX_PACK {
        return Err(corrupt("a pack is too large"));
    }
    match zstd::bulk::decompress(squeezed, size) {
        Ok(records) if records.len() == size => Ok(Cow::Owned(records)),
        Ok(_) => Err(corrupt("a pack is shorter than it says")),
        Err(error) => Err(corrupt("a pack cannot be unpacked").source(error)),
    }
}

/// The records one after another; the first that is none ends them.
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { rest: bytes }
}

/// Reads records.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.read();
        if record.is_none() {
            self.rest = &[];
        }
        Some(record.ok_or_else(|| corrupt("a pack has something in it that is no record")))
    }
}

impl<'a> Records<'a> {
    fn read(&mut self) -> Option<Record<'a>> {
        let kind = self.bytes(1)?.first().copied()?;
        let index = u32::try_from(self.number()?).ok()?;
        Some(match kind {
            PART => {
                let (offset, length) = (self.number()?, self.number()?);
                Record::Part { index, offset, data: self.bytes(length)? }
            }
            HOLE => Record::Hole { index, offset: self.number()?, length: self.number()? },
            END => Record::End { index, digest: self.digest()? },
            WHOLE => {
                let length = self.number()?;
                Record::Whole { index, data: self.bytes(length)?, digest: self.digest()? }
            }
            _ => return None,
        })
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.bytes(1)?.first().copied()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, length: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(bytes)
    }

    fn digest(&mut self) -> Option<Digest> {
        self.bytes(32)?.try_into().ok().map(Digest)
    }
}

pub(super) fn corrupt(message: &'static str) -> Error {
    Error::because(Cause::CorruptBundle, message).hint("Send it again: it goes on where it was")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_out_as_they_went_in() {
        let digest = Digest([7; 32]);
        let records = [
            Record::Whole { index: 0, data: b"", digest },
            Record::Part { index: 300, offset: u64::MAX, data: &[3; 500] },
            Record::Hole { index: u32::MAX, offset: 1 << 40, length: u64::MAX },
            Record::End { index: 1, digest },
            Record::Whole { index: 127, data: b"abc", digest },
        ];
        for compress in [false, true] {
            let mut packer = Packer::default();
            records.iter().for_each(|&record| packer.push(record));
            let (pack, compressed) = packer.packed(compress);
            assert!(packer.is_empty());
            assert_eq!(compressed, compress);
            let bytes = unpack(&pack, compressed).unwrap();
            let read: Vec<_> = super::records(&bytes).map(Result::unwrap).collect();
            assert_eq!(read, records);
        }
    }

    #[test]
    fn what_does_not_shrink_is_left_as_it_is() {
        let mut noise = vec![0; PACK];
        getrandom::fill(&mut noise).unwrap();
        let mut packer = Packer::default();
        packer.push(Record::Part { index: 0, offset: 0, data: &noise });
        assert!(!packer.packed(true).1);
    }

    #[test]
    fn a_pack_that_is_cut_is_refused() {
        let mut packer = Packer::default();
        packer.push(Record::Part { index: 0, offset: 0, data: b"hello" });
        let (pack, _) = packer.packed(false);
        for end in 1..pack.len() {
            let cut = records(&pack[..end]).last().unwrap();
            assert_eq!(cut.unwrap_err().cause(), Some(Cause::CorruptBundle), "{end}");
        }
    }

    #[test]
    fn a_pack_unfolds_to_what_it_says_and_no_further() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        for unpacked in [MAX_PACK as u32, u32::MAX, 5] {
            let pack = [&unpacked.to_le_bytes()[..], &bomb].concat();
            assert_eq!(unpack(&pack, true).unwrap_err().cause(), Some(Cause::CorruptBundle));
        }
        assert!(unpack(b"ab", true).is_err());
    }
}
