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
use crate::padding::padded;
use crate::payload::{Head, MAX_RECORDS, Payload, PayloadWriter, Record};

/// Bytes that stay free on a disk that a payload is unpacked to: the machine goes on working.
const SPARE: u64 = 64 << 20;

/// Bundles up to this length are all of one.
const SHORTEST: u64 = 16 << 10;

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

/// Writes a payload as a bundle, with zeros behind it that hide how long it is: who sees it sealed does
/// not see whether there is one password in it or three. `progress` is told how many bytes of it are done, and can
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
    let mut writer = Writer::new(Counting { out, length: 0 }, &contents)?;
    let mut done = 0;
    for (index, record) in payload.records().iter().enumerate() {
        writer.file(&expected(record), payload.open(index)?)?;
        done += record.len;
        progress(done)?;
    }
    let (Counting { mut out, length }, totals) = writer.finish()?;
    let zeros = padded(length, SHORTEST) - length;
    io::copy(&mut io::repeat(0).take(zeros), &mut out)?;
    Ok((out, totals))
}

/// Counts what is written.
struct Counting<W> {
    out: W,
    length: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{App, Scope};
    use crate::payload::{Entry, ItemPath, RecordKind};
    use crate::scratch::Scratch;

    fn packed(secret: &[u8]) -> Vec<u8> {
        let scratch = Scratch::new();
        let head = Head {
            app: App::Firefox,
            scope: Scope::Session,
            profile: "p".to_owned(),
            app_version: None,
            home: "/home/a".into(),
        };
        let mut writer = PayloadWriter::create(scratch.path(), head).unwrap();
        let entry = Entry {
            item: "Cookies".to_owned(),
            kind: RecordKind::File,
            path: ItemPath::new("secret").unwrap(),
            is_executable: false,
            modified_ns: 0,
            is_secret: true,
        };
        writer.add(entry, &mut &*secret).unwrap();
        let payload = writer.finish();
        pack(&payload, Digest([0; 32]), Vec::new(), &mut |_| Ok(())).unwrap().0
    }

    #[test]
    fn how_long_a_secret_is_does_not_show() {
        let mut noise = vec![0; 9_000];
        getrandom::fill(&mut noise).unwrap();
        let (short, long) = (packed(b"hunter2"), packed(&noise));
        assert_eq!(short.len(), long.len());
        let scratch = Scratch::new();
        let read = unpack(&long[..], scratch.path()).unwrap();
        assert_eq!(read.payload().bytes(), 9_000);
        // Nothing but zeros may follow.
        let mut changed = long;
        *changed.last_mut().unwrap() = 1;
        let error = unpack(&changed[..], scratch.path()).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::CorruptBundle));
    }
}
