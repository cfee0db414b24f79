//! A payload as a bundle, and back.
//!
//! The table of contents says what the payload is of, which manifest it was chosen from, and every
//! record with its size and digest. [`unpack`] is the only way to a [`Verified`] payload, and a
//! verified payload is the only thing that is imported.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use spaceport_types::{Cause, Error, Kind, Result};

use crate::Digest;
use crate::bundle::{Expected, Reader, Totals, Writer};
use crate::payload::{Head, MAX_RECORDS, Payload, PayloadWriter, Record};

/// Bytes that stay free on a disk that a payload is unpacked to: the machine goes on working.
const SPARE: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents<H, R> {
    manifest: Digest,
    head: H,
    records: R,
}

/// A payload of which every byte was checked, up to the end of its bundle.
#[derive(Debug)]
pub struct Verified {
    payload: Payload,
    manifest: Digest,
}

impl Verified {
    /// What was carried.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// The digest of the manifest it was chosen from, which a person at the source has seen.
    pub fn manifest(&self) -> Digest {
        self.manifest
    }
}

/// Writes a payload as a bundle. `progress` is told how many bytes of it are done, and can
/// stop it.
///
/// # Errors
///
/// `limit_exceeded` for too many files, `transfer_failed` when a file is not what it was, `io`.
pub fn pack<W: Write>(
    payload: &Payload,
    manifest: Digest,
    out: W,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<(W, Totals)> {
    let contents = Contents { manifest, head: payload.head(), records: payload.records() };
    let contents = serde_json::to_vec(&contents).map_err(|error| {
        Error::new(Kind::Internal, "the contents of a bundle are not JSON").source(error)
    })?;
    let mut writer = Writer::new(out, &contents)?;
    let mut done = 0;
    for (index, record) in payload.records().iter().enumerate() {
        writer.file(&expected(record), payload.open(index)?)?;
        done += record.len;
        progress(done)?;
    }
    writer.finish()
}

/// Reads a bundle into a private folder below `parent`, and checks all of it.
///
/// # Errors
///
/// `transfer_failed` with `corrupt_bundle`, `size_mismatch`, `digest_mismatch` or `disk_full`;
/// `teleport_refused` with `not_importable` for another version; `io`.
pub fn unpack(input: impl Read, parent: &Path) -> Result<Verified> {
    let (mut reader, contents) = Reader::new(input)?;
    let contents: Contents<Head, Vec<Record>> =
        serde_json::from_slice(&contents).map_err(|error| {
            Error::because(Cause::CorruptBundle, "the bundle's contents cannot be read")
                .hint("Use the same version of spaceport on both machines")
                .source(error)
        })?;
    let Contents { manifest, head, records } = contents;
    if records.len() > MAX_RECORDS {
        return Err(Error::because(Cause::CorruptBundle, "the bundle names too many files")
            .with("files", records.len())
            .with("limit", MAX_RECORDS));
    }
    make_room(&records, parent)?;
    let mut writer = PayloadWriter::create(parent, head)?;
    for record in records {
        let mut file = reader.file(&expected(&record))?;
        writer.receive(record, &mut file)?;
        // What the writer left unread, and that the frame ends there.
        io::copy(&mut file, &mut io::sink())?;
    }
    reader.finish()?;
    Ok(Verified { payload: writer.finish(), manifest })
}

/// Refuses what will not fit before the first byte of it is written.
fn make_room(records: &[Record], parent: &Path) -> Result<()> {
    let sum = records.iter().try_fold(0_u64, |sum, record| sum.checked_add(record.len));
    fs::create_dir_all(parent)?;
    let free = rustix::fs::statvfs(parent).map(|it| it.f_bavail.saturating_mul(it.f_frsize));
    let free = free.map_err(io::Error::from)?.saturating_sub(SPARE);
    match sum {
        Some(sum) if sum <= free => Ok(()),
        sum => Err(Error::because(
            Cause::DiskFull,
            "there is no space to unpack the bundle on this machine",
        )
        .with(
            "needed",
            sum.map_or_else(|| "more than any disk has".to_owned(), |it| it.to_string()),
        )
        .with("free", free)
        .hint("Free some space there, or move fewer items")),
    }
}

fn expected(record: &Record) -> Expected {
    Expected { len: record.len, sha256: record.sha256.0 }
}
