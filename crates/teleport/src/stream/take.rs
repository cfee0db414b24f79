//! The side that the files go to: stages what comes, and publishes it.

use std::os::unix::ffi::OsStrExt as _;
use std::time::Instant;

use bytes::Bytes;
use spaceport_types::{Error, Kind, Result};
use spaceport_wire::pb::files as pb;

use super::pack::{Record, corrupt, records};
use crate::digest::Digest;
use crate::path::raw;
use crate::receive::{Begin, Committed, Conflict, Declared, Hold, MAX_ENTRIES, Receiver, Standing};

/// Bytes of paths that one transfer may declare.
const MAX_LISTING: usize = 60 << 20;

/// Paths that were skipped and are named one by one.
const MAX_SKIPPED: usize = 1_000;

/// Collects what the other side declares.
#[derive(Debug, Default)]
pub struct Declaring {
    entries: Vec<pb::Entry>,
    bytes: usize,
}

impl Declaring {
    /// Adds some entries; true once they are all there.
    ///
    /// # Errors
    ///
    /// `limit_exceeded` for too many.
    pub fn add(&mut self, some: pb::Entries) -> Result<bool> {
        self.bytes += some.entries.iter().map(|entry| entry.path.len()).sum::<usize>();
        if self.entries.len() + some.entries.len() > MAX_ENTRIES || self.bytes > MAX_LISTING {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("more than {MAX_ENTRIES} files and folders cannot be sent at once"),
            )
            .with("limit", MAX_ENTRIES)
            .hint("Send it in several parts"));
        }
        if some.entries.is_empty() && !some.last {
            return Err(corrupt("a message declares nothing"));
        }
        // Out of the message they came in, which would be held for the sake of one path.
        self.entries.extend(
            some.entries
                .into_iter()
                .map(|entry| pb::Entry { path: entry.path.to_vec().into(), ..entry }),
        );
        Ok(some.last)
    }

    /// What was declared.
    pub fn entries(&self) -> &[pb::Entry] {
        &self.entries
    }

    /// Gives what was declared without permission bits these.
    pub(super) fn default_mode(&mut self, mode: u32) {
        for entry in &mut self.entries {
            entry.mode.get_or_insert(mode);
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.size))
    }
}

/// Takes what comes, pack by pack.
#[derive(Debug)]
pub struct Taker {
    hold: Hold,
}

/// Begins a transfer, or goes on with it.
///
/// # Errors
///
/// As [`Receiver::begin`].
pub fn begin(
    receiver: &Receiver,
    begin: Begin,
    declared: &Declaring,
    now: Instant,
) -> Result<Taker> {
    let entries = declared.entries.iter().map(|entry| Declared {
        path: &entry.path,
        directory: entry.directory,
        size: entry.size,
        sha256: "",
        mode: entry.mode,
        modified: Some((
            entry.modified_seconds,
            i32::try_from(entry.modified_nanos).unwrap_or(i32::MAX),
        )),
    });
    let begun = receiver.begin(Begin { trailing: true, ..begin }, entries, now)?;
    Ok(Taker { hold: receiver.hold(&begun.id)? })
}

impl Taker {
    /// How far it is.
    pub fn standing(&self) -> Standing {
        self.hold.standing()
    }

    /// Takes the records of a pack.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with the cause and the entry.
    pub fn pack(&self, pack: &[u8], now: Instant) -> Result<()> {
        let taken = self.records(pack);
        // Also when one of them was wrong: the others are there.
        let settled = self.hold.settle(now);
        taken.and(settled)
    }

    fn records(&self, bytes: &[u8]) -> Result<()> {
        for record in records(bytes) {
            match record? {
                Record::Part { index, offset, data } => self.hold.part(index, offset, data)?,
                Record::Hole { index, offset, length } => self.hold.hole(index, offset, length)?,
                Record::End { index, digest } => self.hold.end(index, digest)?,
                Record::Whole { index, data, digest } => self.hold.whole(index, data, digest)?,
            }
        }
        Ok(())
    }

    /// Everything has come: checks and publishes it.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with the cause and the entry.
    pub fn commit(&self, end: &pb::End) -> Result<Committed> {
        let total =
            <[u8; 32]>::try_from(&end.sha256[..]).map_err(|_| corrupt("the end has no digest"))?;
        self.hold.commit(Digest(total))
    }

    /// Gives it up, and removes what has come.
    pub fn abort(&self) {
        self.hold.abort();
    }
}

/// How far it is, as a message.
pub(super) fn begun(standing: &Standing) -> pb::Begun {
    let mut whole: Vec<pb::Span> = Vec::new();
    let mut digests = Vec::with_capacity(32 * standing.whole.len());
    for (index, digest) in &standing.whole {
        match whole.last_mut() {
            Some(span) if span.first + span.count == *index => span.count += 1,
            _ => whole.push(pb::Span { first: *index, count: 1 }),
        }
        digests.extend_from_slice(&digest.0);
    }
    let parts = standing.parts.iter();
    let parts = parts.map(|&(index, received)| pb::Part { index, received }).collect();
    pb::Begun { whole, digests: digests.into(), parts }
}

/// What to do with names that are taken, from a message.
///
/// # Errors
///
/// `invalid_argument` for what is none.
pub(super) fn conflict_of(number: i32) -> Result<Conflict> {
    match pb::Conflict::try_from(number) {
        Ok(pb::Conflict::Unspecified | pb::Conflict::Rename) => Ok(Conflict::Rename),
        Ok(pb::Conflict::Overwrite) => Ok(Conflict::Overwrite),
        Ok(pb::Conflict::Skip) => Ok(Conflict::Skip),
        Ok(pb::Conflict::Refuse) => Ok(Conflict::Refuse),
        Err(_) => Err(Error::new(Kind::InvalidArgument, "there is no such conflict policy")
            .with("conflict", number)),
    }
}

/// What was published, as a message.
pub(super) fn done(committed: &Committed) -> pb::Done {
    pb::Done {
        destination: committed.destination.as_os_str().as_bytes().to_vec().into(),
        names: committed.names.iter().map(|name| name.clone().into()).collect(),
        files: committed.files.len() as u64,
        bytes: committed.files.iter().map(|file| file.size).sum(),
        skipped: committed.skipped.iter().take(MAX_SKIPPED).map(|it| it.clone().into()).collect(),
        skipped_count: committed.skipped.len() as u64,
    }
}

/// Names and paths, to be shown.
pub(super) fn shown(paths: &[Bytes]) -> Vec<String> {
    paths.iter().map(|path| raw(path)).collect()
}
