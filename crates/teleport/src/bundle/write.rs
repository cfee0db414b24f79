use std::fmt;
use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};
use zstd::Encoder;

use super::{BLOCK, END, Expected, FILE, LEVEL, MAGIC, MAX_CONTENTS, Totals, VERSION, WINDOW_LOG};
use crate::hex;

/// Writes a bundle, file by file.
pub struct Writer<W> {
    out: Hashing<W>,
    totals: Totals,
}

impl<W> fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl<W: Write> Writer<W> {
    /// Begins a bundle with its table of contents.
    ///
    /// # Errors
    ///
    /// `limit_exceeded` for contents beyond 64 MiB, `io`.
    pub fn new(out: W, contents: &[u8]) -> Result<Self> {
        let length = u32::try_from(contents.len()).ok().filter(|&length| length <= MAX_CONTENTS);
        let length = length.ok_or_else(|| {
            Error::new(Kind::LimitExceeded, "there are too many files for one bundle")
                .with("bytes", contents.len())
                .with("limit", MAX_CONTENTS)
                .hint("Choose fewer items")
        })?;
        let mut out = Hashing { out, hash: Sha256::new() };
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_be_bytes())?;
        out.write_all(&length.to_be_bytes())?;
        frame(&mut out, contents, u64::from(length))?;
        Ok(Self { out, totals: Totals::default() })
    }

    /// Adds the next file of the contents.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `size_mismatch` or `digest_mismatch` when the file is not what the
    /// contents say, `io`.
    pub fn file(&mut self, expected: &Expected, input: impl Read) -> Result<()> {
        self.out.write_all(&[FILE])?;
        let mut input = Hashing { out: input.take(expected.len + 1), hash: Sha256::new() };
        let length = frame(&mut self.out, &mut input, expected.len)?;
        if length != expected.len {
            return Err(Error::because(Cause::SizeMismatch, "a file changed while it was packed")
                .with("expected", expected.len)
                .with("actual", length)
                .hint("Try again"));
        }
        let actual: [u8; 32] = input.hash.finalize().into();
        if actual != expected.sha256 {
            return Err(Error::because(
                Cause::DigestMismatch,
                "a file changed while it was packed",
            )
            .with("expected_sha256", hex::encode(&expected.sha256))
            .with("actual_sha256", hex::encode(&actual))
            .hint("Try again"));
        }
        self.totals.files += 1;
        self.totals.bytes += length;
        Ok(())
    }

    /// Writes the trailer.
    ///
    /// # Errors
    ///
    /// `io`.
    pub fn finish(mut self) -> Result<(W, Totals)> {
        self.out.write_all(&[END])?;
        self.out.write_all(&self.totals.files.to_be_bytes())?;
        self.out.write_all(&self.totals.bytes.to_be_bytes())?;
        let Hashing { mut out, hash } = self.out;
        out.write_all(&hash.finalize())?;
        out.flush()?;
        Ok((out, self.totals))
    }
}

/// Compresses all of `input` into pieces. Returns how many bytes it had.
fn frame(out: impl Write, mut input: impl Read, length: u64) -> Result<u64> {
    let mut encoder = Encoder::new(Pieces { out, piece: Vec::new() }, LEVEL)?;
    if length > 1 << WINDOW_LOG {
        encoder.window_log(WINDOW_LOG)?;
    }
    let copied = io::copy(&mut input, &mut encoder)?;
    encoder.finish()?.finish()?;
    Ok(copied)
}

/// Cuts what is written into pieces with their lengths before them.
struct Pieces<W> {
    out: W,
    piece: Vec<u8>,
}

impl<W: Write> Pieces<W> {
    fn piece(&mut self) -> io::Result<()> {
        if !self.piece.is_empty() {
            self.out.write_all(&(self.piece.len() as u32).to_be_bytes())?;
            self.out.write_all(&self.piece)?;
            self.piece.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.piece()?;
        self.out.write_all(&0_u32.to_be_bytes())
    }
}

impl<W: Write> Write for Pieces<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let taken = data.len().min(BLOCK - self.piece.len());
        self.piece.extend_from_slice(&data[..taken]);
        if self.piece.len() == BLOCK {
            self.piece()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Hashes what passes, in either direction.
pub(super) struct Hashing<T> {
    pub(super) out: T,
    pub(super) hash: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.out.write(data)?;
        self.hash.update(&data[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.out.read(buffer)?;
        self.hash.update(&buffer[..length]);
        Ok(length)
    }
}
