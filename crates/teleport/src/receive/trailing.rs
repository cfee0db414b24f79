//! Transfers whose digests come after the bytes: every file is hashed once at either side.
//!
//! The digest of a file that is whole is logged in the stage, so that a restart knows what the file
//! has to hash to. What was whole when it was logged and is not after a crash of the machine is
//! found by the commit, which hashes it again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Result};

use super::spool::Spool;
use super::transfer::{Committed, Doubt, Transfer, at, wrong_digest};
use super::{Receiver, ends};
use crate::digest::Digest;
use crate::path::{Shown, raw};
use crate::root::io_error;

/// The log in a stage: for each file that is whole its number (u32, little-endian) and its digest.
const LOG: &[u8] = b"digests";

/// Bytes of one line of the log.
const LINE: usize = 4 + 32;

/// The digests that have come.
#[derive(Debug, Default)]
pub(super) struct Trailing {
    known: Mutex<Known>,
    /// Counts the streams that have taken over; only the last may write.
    streams: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    digests: BTreeMap<u32, Digest>,
    /// Lines that are not in the log yet.
    lines: Vec<u8>,
    log: Option<File>,
}

/// How far a transfer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Files that are whole, by number, in order.
    pub whole: Vec<(u32, Digest)>,
    /// Files of which something is there, and how much.
    pub parts: Vec<(u32, u64)>,
}

/// One stream's hold on a transfer. The next one that takes hold of it ends this one.
#[derive(Debug)]
pub struct Hold {
    receiver: Receiver,
    transfer: Arc<Transfer>,
    id: String,
    stream: u64,
}

impl Trailing {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn digest(&self, index: u32) -> Option<Digest> {
        self.known().digests.get(&index).copied()
    }
}

impl Receiver {
    /// Takes hold of a transfer that was begun with [`Begin::trailing`](super::Begin).
    ///
    /// # Errors
    ///
    /// `not_found`; `precondition_failed` for one that was begun otherwise.
    pub fn hold(&self, id: &str) -> Result<Hold> {
        let transfer = self.shared.transfer(id)?;
        let Some(trailing) = &transfer.trailing else {
            return Err(Error::new(
                spaceport_types::Kind::PreconditionFailed,
                format!("transfer `{}` is not received as a stream", Shown(id.as_bytes())),
            ));
        };
        let stream = trailing.streams.fetch_add(1, Ordering::AcqRel) + 1;
        let (receiver, id) = (self.clone(), id.to_owned());
        Ok(Hold { receiver, transfer, id, stream })
    }
}

impl Hold {
    /// How far it is.
    pub fn standing(&self) -> Standing {
        let whole: Vec<_> = match &self.transfer.trailing {
            Some(trailing) => {
                trailing.known().digests.iter().map(|(&index, &digest)| (index, digest)).collect()
            }
            None => Vec::new(),
        };
        let ended = |index: u32| whole.binary_search_by_key(&index, |&(index, _)| index).is_ok();
        let parts = self.transfer.progress().into_iter().filter(|part| !ended(part.index));
        let parts = parts.map(|part| (part.index, part.received)).collect();
        Standing { whole, parts }
    }

    /// The next bytes of a file.
    ///
    /// # Errors
    ///
    /// As [`Receiver::chunk`].
    pub fn part(&self, index: u32, offset: u64, data: &[u8]) -> Result<()> {
        self.run(|transfer| transfer.chunk(index, offset, data).map(drop))
    }

    /// So many zeros that are not written.
    ///
    /// # Errors
    ///
    /// As [`Receiver::chunk`].
    pub fn hole(&self, index: u32, offset: u64, length: u64) -> Result<()> {
        self.run(|transfer| transfer.hole(index, offset, length))
    }

    /// All of a file is there, and this is what it hashes to.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with cause `digest_mismatch` when it does not: it is received anew then;
    /// and as [`Receiver::chunk`].
    pub fn end(&self, index: u32, digest: Digest) -> Result<()> {
        self.run(|transfer| transfer.end_file(index, digest))
    }

    /// A small file in one piece.
    ///
    /// # Errors
    ///
    /// As [`Hold::part`] and [`Hold::end`].
    pub fn whole(&self, index: u32, data: &[u8], digest: Digest) -> Result<()> {
        self.run(|transfer| transfer.whole(index, data, digest))
    }

    /// Writes down which files are whole, and notes that the transfer is not at rest. To be called
    /// once for some MiB.
    ///
    /// # Errors
    ///
    /// `transfer_failed` or `io` when the disk takes no more.
    pub fn settle(&self, now: Instant) -> Result<()> {
        self.transfer.touch(now);
        self.run(Transfer::log)
    }

    /// What the whole transfer hashes to: every entry's path and digest, in the order of their
    /// numbers.
    pub fn total(&self) -> Digest {
        let mut total = Total::default();
        let trailing = self.transfer.trailing.as_ref();
        for (index, entry) in self.transfer.plan.iter() {
            let digest = trailing.and_then(|trailing| trailing.digest(index));
            let digest = digest.filter(|_| !entry.directory);
            total.add(self.transfer.plan.path(index), digest.as_ref());
        }
        total.finish()
    }

    /// Publishes it; see [`Receiver::commit`].
    ///
    /// # Errors
    ///
    /// `transfer_failed` with cause `digest_mismatch` when the whole is not what the sender has;
    /// as [`Receiver::commit`].
    pub fn commit(&self, total: Digest) -> Result<Committed> {
        self.current()?;
        if self.total() != total {
            return Err(Error::because(
                Cause::DigestMismatch,
                "what has come is not all that the sender has",
            )
            .with("expected_sha256", total)
            .with("actual_sha256", self.total())
            .hint("Send it again"));
        }
        self.receiver.commit(&self.id)
    }

    /// Gives it up, and removes what has come.
    pub fn abort(&self) {
        if self.current().is_ok() {
            drop(self.receiver.abort(&self.id));
        }
    }

    fn current(&self) -> Result<()> {
        let streams = self.transfer.trailing.as_ref().map(|it| it.streams.load(Ordering::Acquire));
        if streams == Some(self.stream) {
            return Ok(());
        }
        Err(Error::because(Cause::Interrupted, "another stream goes on with this transfer")
            .hint("It was begun again; let that one finish"))
    }

    fn run(&self, work: impl FnOnce(&Transfer) -> Result<()>) -> Result<()> {
        self.current()?;
        let result = work(&self.transfer);
        if let Err(error) = &result
            && ends(error)
        {
            tracing::warn!(transfer = %Shown(self.id.as_bytes()), %error, "receiving failed");
            self.receiver.shared.forget(&self.id, &self.transfer);
            self.transfer.end();
        }
        result
    }
}

impl Transfer {
    fn hole(&self, index: u32, offset: u64, length: u64) -> Result<()> {
        let (path, entry) = self.expect(index, offset, length)?;
        let failed = |errno| io_error(errno, "written", path);
        let (spool, received) = self.spool(index, path).map_err(failed)?;
        let Some(spool) = spool else {
            return at(offset, b"0", received, path).map(drop);
        };
        let mut held = spool.lock().unwrap_or_else(PoisonError::into_inner);
        if offset != held.received() {
            return at(offset, b"0", held.received(), path).map(drop);
        }
        held.skip(length).map_err(failed)?;
        self.note(index, held.received().min(entry.size));
        Ok(())
    }

    fn end_file(&self, index: u32, digest: Digest) -> Result<()> {
        let (path, entry) = self.expect(index, 0, 0)?;
        let Some(trailing) = &self.trailing else { return Ok(()) };
        if let Some(known) = trailing.digest(index) {
            return if known == digest { Ok(()) } else { Err(wrong_digest(path, &digest, &known)) };
        }
        let failed = |errno| io_error(errno, "written", path);
        let (open, received) = self.take_open(index);
        if received != entry.size {
            return Err(Error::because(
                Cause::SizeMismatch,
                format!("of `{}`, {received} of {} bytes have come", Shown(path), entry.size),
            )
            .with("entry", raw(path))
            .with("expected_size", entry.size)
            .with("received_bytes", received)
            .hint("Send it again"));
        }
        let open = open.and_then(|spool| Arc::try_unwrap(spool).ok());
        let spool =
            match open.map(|spool| spool.into_inner().unwrap_or_else(PoisonError::into_inner)) {
                Some(spool) => spool,
                None if entry.size == 0 => match Spool::create(self.stage.files(), path) {
                    Err(Errno::EXIST) => Spool::resume(self.stage.files(), path, 0),
                    spool => spool,
                }
                .map_err(failed)?,
                None => Spool::resume(self.stage.files(), path, entry.size).map_err(failed)?,
            };
        let actual = spool.finish(entry.mode(), entry.modified).map_err(failed)?;
        if actual != digest {
            // What there is of it is of no use; the same sender sends it anew.
            self.note(index, 0);
            let removed =
                self.stage.files().holder(path).and_then(|(holder, name)| holder.unlink(name));
            removed.map_err(failed)?;
            return Err(wrong_digest(path, &digest, &actual));
        }
        trailing.known().add(index, digest);
        Ok(())
    }

    fn whole(&self, index: u32, data: &[u8], digest: Digest) -> Result<()> {
        let (path, entry) = self.expect(index, 0, data.len() as u64)?;
        let untouched = self.is_untouched(index);
        if !untouched || entry.size != data.len() as u64 {
            if !data.is_empty() {
                self.chunk(index, 0, data)?;
            }
            return self.end_file(index, digest);
        }
        let Some(trailing) = &self.trailing else { return Ok(()) };
        let actual = Digest(Sha256::digest(data).into());
        if actual != digest {
            return Err(wrong_digest(path, &digest, &actual));
        }
        Spool::write(self.stage.files(), path, data, entry.mode(), entry.modified)
            .map_err(|errno| io_error(errno, "written", path))?;
        self.note(index, entry.size);
        trailing.known().add(index, digest);
        Ok(())
    }

    /// Appends to the log what is not in it yet.
    fn log(&self) -> Result<()> {
        let Some(trailing) = &self.trailing else { return Ok(()) };
        let mut known = trailing.known();
        let failed = |errno| io_error(errno, "written", LOG);
        if known.lines.is_empty() {
            return Ok(());
        }
        let mut log = match known.log.take() {
            Some(log) => log,
            None => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
                let mode = Mode::RUSR | Mode::WUSR;
                self.stage.root().open_file(LOG, flags, mode).map_err(failed)?
            }
        };
        let lines = std::mem::take(&mut known.lines);
        log.write_all(&lines)
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        known.log = Some(log);
        Ok(())
    }

    /// Reads the log of an earlier run. What it says of files that are not whole is passed over.
    pub(super) fn read_log(&self, mut doubt: impl FnMut(u32, Doubt)) {
        let Some(trailing) = &self.trailing else { return };
        let limit = (self.plan.len() * LINE) as u64;
        let log = self.stage.read(LOG, limit).ok().flatten().unwrap_or_default();
        let mut known = trailing.known();
        for line in log.chunks_exact(LINE) {
            let Some((index, digest)) = line.split_first_chunk::<4>() else { continue };
            let Ok(digest) = <[u8; 32]>::try_from(digest) else { continue };
            let index = u32::from_le_bytes(*index);
            let path = self.plan.path(index);
            let Some(entry) = self.plan.entry(index).filter(|entry| !entry.directory) else {
                continue;
            };
            let stat = self.stage.files().holder(path).and_then(|(holder, name)| holder.stat(name));
            if stat.is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(entry.size)) {
                known.digests.insert(index, Digest(digest));
                doubt(index, Doubt::Unhashed);
            }
        }
    }
}

impl Known {
    fn add(&mut self, index: u32, digest: Digest) {
        self.digests.insert(index, digest);
        self.lines.extend(index.to_le_bytes());
        self.lines.extend(digest.0);
    }
}

/// Sums a transfer up.
#[derive(Debug, Default)]
pub struct Total(Sha256);

impl Total {
    /// Adds an entry: its path, and the digest of a file.
    pub fn add(&mut self, path: &[u8], digest: Option<&Digest>) {
        self.0.update((path.len() as u32).to_be_bytes());
        self.0.update(path);
        self.0.update(digest.map_or([0; 32], |digest| digest.0));
    }

    /// What all of them hash to.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}
