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
use spaceport_wire::pb::files as pb;

use crate::digest::Digest;

/// Bytes of records that a pack is filled to: large enough that what a message costs does not show,
/// small enough that little is sent again.
pub const PACK: usize = 1 << 20;

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

/// Puts records together.
#[derive(Debug, Default)]
pub struct Packer {
    records: Vec<u8>,
}

impl Packer {
    /// Adds a record.
    pub fn push(&mut self, record: Record<'_>) {
        match record {
            Record::Part { index, offset, data } => {
                self.head(PART, &[index.into(), offset, data.len() as u64]);
                self.records.extend_from_slice(data);
            }
            Record::Hole { index, offset, length } => {
                self.head(HOLE, &[index.into(), offset, length]);
            }
            Record::End { index, digest } => {
                self.head(END, &[index.into()]);
                self.records.extend_from_slice(&digest.0);
            }
            Record::Whole { index, data, digest } => {
                self.head(WHOLE, &[index.into(), data.len() as u64]);
                self.records.extend_from_slice(data);
                self.records.extend_from_slice(&digest.0);
            }
        }
    }

    fn head(&mut self, kind: u8, numbers: &[u64]) {
        if self.records.capacity() == 0 {
            self.records.reserve_exact(PACK + PACK / 8);
        }
        self.records.push(kind);
        for &number in numbers {
            let mut rest = number;
            while rest >= 0x80 {
                self.records.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            self.records.push(rest as u8);
        }
    }

    /// Bytes of the records so far.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many more bytes it is filled with.
    pub fn room(&self) -> usize {
        PACK.saturating_sub(self.records.len())
    }

    /// What is in it, as it is sent; it is empty then. With `compress`, where that helps.
    pub fn take(&mut self, compress: bool) -> pb::Pack {
        let records = std::mem::take(&mut self.records);
        let (records, unpacked) = match compress.then(|| squeezed(&records)).flatten() {
            Some(squeezed) => (squeezed, records.len() as u32),
            None => (records, 0),
        };
        let checksum = simd_adler32::adler32(&records.as_slice());
        pb::Pack { records: records.into(), unpacked, checksum }
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

/// The records of a pack, checked against its checksum and unpacked.
///
/// # Errors
///
/// `transfer_failed` with cause `corrupt_bundle`.
pub fn unpack(pack: &pb::Pack) -> Result<Cow<'_, [u8]>> {
    if simd_adler32::adler32(&&pack.records[..]) != pack.checksum {
        return Err(corrupt("a pack has changed on its way"));
    }
    if pack.unpacked == 0 {
        return match pack.records.len() {
            0..=MAX_PACK => Ok(Cow::Borrowed(&pack.records)),
            _ => Err(corrupt("a pack is too large")),
        };
    }
    let size = pack.unpacked as usize;
    if size > MAX_PACK {
        return Err(corrupt("a pack is too large"));
    }
    match zstd::bulk::decompress(&pack.records, size) {
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
            let pack = packer.take(compress);
            assert!(packer.is_empty());
            assert_eq!(pack.unpacked > 0, compress);
            let bytes = unpack(&pack).unwrap();
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
        assert_eq!(packer.take(true).unpacked, 0);
    }

    #[test]
    fn a_changed_pack_is_refused_before_it_is_read() {
        let mut packer = Packer::default();
        packer.push(Record::Part { index: 0, offset: 0, data: b"hello" });
        let pack = packer.take(false);
        for at in 0..pack.records.len() {
            let mut records = pack.records.to_vec();
            records[at] ^= 0x10;
            let changed = pb::Pack { records: records.into(), ..pack.clone() };
            let error = unpack(&changed).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::CorruptBundle));
        }
        for end in 1..pack.records.len() {
            let cut = records(&pack.records[..end]).last().unwrap();
            assert_eq!(cut.unwrap_err().cause(), Some(Cause::CorruptBundle), "{end}");
        }
    }

    #[test]
    fn a_pack_unfolds_to_what_it_says_and_no_further() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        let checksum = simd_adler32::adler32(&bomb.as_slice());
        for unpacked in [MAX_PACK as u32, u32::MAX, 5] {
            let pack = pb::Pack { records: bomb.clone().into(), unpacked, checksum };
            assert_eq!(unpack(&pack).unwrap_err().cause(), Some(Cause::CorruptBundle));
        }
    }
}
