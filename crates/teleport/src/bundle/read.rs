use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read};

use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Result};
use zstd::Decoder;

use super::write::Hashing;
use super::{
    BLOCK, END, Expected, FILE, MAGIC, MAX_CONTENTS, Totals, VERSION, WINDOW_LOG, corrupt,
};
use crate::hex;

/// Reads a bundle, file by file. Nothing counts until [`Reader::finish`] has seen the trailer.
pub struct Reader<R> {
    input: Hashing<R>,
    totals: Totals,
}

impl<R> fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl<R: Read> Reader<R> {
    /// Reads the beginning; returns the table of contents, too.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `not_importable` for another version, `transfer_failed` with
    /// `corrupt_bundle` for what is no bundle, `io`, and whatever error of ours the input returns.
    pub fn new(input: R) -> Result<(Self, Vec<u8>)> {
        let mut input = Hashing { out: input, hash: Sha256::new() };
        if exactly::<8>(&mut input)? != MAGIC {
            return Err(corrupt("this is not a bundle"));
        }
        let version = u32::from_be_bytes(exactly(&mut input)?);
        if version != VERSION {
            return Err(Error::because(
                Cause::NotImportable,
                format!("the bundle has version {version}, and {VERSION} is known here"),
            )
            .with("bundle_version", version)
            .hint("Use the same version of spaceport on both machines"));
        }
        let length = u32::from_be_bytes(exactly(&mut input)?);
        if length > MAX_CONTENTS {
            return Err(corrupt("the bundle's contents are longer than any can be"));
        }
        // Grows with what is there, not with what is claimed.
        let mut contents = Vec::new();
        Frame::new(&mut input, u64::from(length))?.read_to_end(&mut contents)?;
        Ok((Self { input, totals: Totals::default() }, contents))
    }

    /// The next file. Reading it to its end checks it; until then nothing of it counts.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `corrupt_bundle` when there is no further file.
    pub fn file(&mut self, expected: &Expected) -> Result<File<'_, R>> {
        if exactly::<1>(&mut self.input)? != [FILE] {
            return Err(corrupt("the bundle has fewer files than its contents name"));
        }
        self.totals.files += 1;
        self.totals.bytes = self
            .totals
            .bytes
            .checked_add(expected.len)
            .ok_or_else(|| corrupt("the bundle's files are longer than any can be"))?;
        let frame = Frame::new(&mut self.input, expected.len)?;
        Ok(File { frame, hash: Sha256::new(), sha256: expected.sha256 })
    }

    /// Reads the trailer, and that nothing but zeros follows it.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `size_mismatch`, `digest_mismatch` or `corrupt_bundle`.
    pub fn finish(mut self) -> Result<Totals> {
        if exactly::<1>(&mut self.input)? != [END] {
            return Err(corrupt("the bundle has more files than its contents name"));
        }
        let files = u64::from_be_bytes(exactly(&mut self.input)?);
        let bytes = u64::from_be_bytes(exactly(&mut self.input)?);
        if (Totals { files, bytes }) != self.totals {
            return Err(Error::because(
                Cause::SizeMismatch,
                "the bundle does not hold what its trailer says",
            )
            .with("expected", bytes)
            .with("actual", self.totals.bytes)
            .hint("Send it again"));
        }
        let Hashing { out: mut input, hash } = self.input;
        let actual: [u8; 32] = hash.finalize().into();
        if exactly::<32>(&mut input)? != actual {
            return Err(Error::because(
                Cause::DigestMismatch,
                "the bundle hashes to another digest than its trailer says",
            )
            .with("actual_sha256", hex::encode(&actual))
            .hint("Send it again"));
        }
        // What lies behind the trailer was never checked, and a sealed stream ends only after the
        // chunk that says so.
        let mut zeros = [0; 4096];
        loop {
            match input.read(&mut zeros)? {
                0 => return Ok(self.totals),
                count if zeros.get(..count).is_some_and(|it| it.iter().all(|&byte| byte == 0)) => {}
                _ => return Err(corrupt("something follows the bundle's trailer")),
            }
        }
    }
}

fn exactly<const N: usize>(input: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes).map_err(ended)?;
    Ok(bytes)
}

fn ended(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => corrupt("the bundle ends early"),
        _ => error.into(),
    }
}

/// One file of a bundle: at most the declared bytes, and their end only when they hash right.
///
/// Errors of ours come wrapped in an [`io::Error`], and back out by `From`.
pub struct File<'a, R: Read> {
    frame: Frame<&'a mut Hashing<R>>,
    hash: Sha256,
    sha256: [u8; 32],
}

impl<R: Read> fmt::Debug for File<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("left", &self.frame.left).finish_non_exhaustive()
    }
}

impl<R: Read> Read for File<'_, R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.frame.read(out)?;
        self.hash.update(&out[..count]);
        if count > 0 || out.is_empty() {
            return Ok(count);
        }
        let actual: [u8; 32] = self.hash.clone().finalize().into();
        if actual == self.sha256 {
            return Ok(0);
        }
        Err(io::Error::other(
            Error::because(Cause::DigestMismatch, "a file hashes to another digest")
                .with("expected_sha256", hex::encode(&self.sha256))
                .with("actual_sha256", hex::encode(&actual))
                .hint("Send it again"),
        ))
    }
}

/// Decompresses one frame that must hold exactly the declared bytes.
struct Frame<R: Read> {
    decoder: Decoder<'static, Pieces<R>>,
    declared: u64,
    left: u64,
}

impl<R: Read> Frame<R> {
    fn new(input: R, declared: u64) -> Result<Self> {
        let pieces = Pieces { input, piece: Vec::new(), taken: 0, ended: false };
        let mut decoder = Decoder::with_buffer(pieces)?.single_frame();
        decoder.window_log_max(WINDOW_LOG)?;
        Ok(Self { decoder, declared, left: declared })
    }

    fn wrong_size(&self, message: &'static str) -> io::Error {
        let error = Error::because(Cause::SizeMismatch, message).with("expected", self.declared);
        io::Error::other(error.hint("Send it again"))
    }
}

impl<R: Read> Read for Frame<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let count = self.decoder.read(out).map_err(damaged)?;
        if count > 0 {
            let left = self.left.checked_sub(count as u64);
            self.left =
                left.ok_or_else(|| self.wrong_size("a file is longer than the contents say"))?;
            return Ok(count);
        }
        if self.left > 0 {
            return Err(self.wrong_size("a file is shorter than the contents say"));
        }
        match self.decoder.get_mut().fill_buf()?.is_empty() {
            true => Ok(0),
            false => Err(io::Error::other(corrupt("something follows a file within its frame"))),
        }
    }
}

/// What zstd says of bytes that are no frame; our own errors pass through it unchanged.
fn damaged(error: io::Error) -> io::Error {
    io::Error::other(match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => corrupt("a file does not decompress").source(error),
    })
}

/// A frame's pieces as one stream.
struct Pieces<R> {
    input: R,
    piece: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl<R: Read> Pieces<R> {
    fn next(&mut self) -> Result<()> {
        let length = u32::from_be_bytes(exactly(&mut self.input)?) as usize;
        if length > BLOCK {
            return Err(corrupt("a piece of the bundle is longer than any can be"));
        }
        self.ended = length == 0;
        self.taken = 0;
        self.piece.resize(length, 0);
        self.input.read_exact(&mut self.piece).map_err(ended)
    }
}

impl<R: Read> BufRead for Pieces<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken == self.piece.len() && !self.ended {
            self.next().map_err(io::Error::other)?;
        }
        Ok(self.piece.get(self.taken..).unwrap_or_default())
    }

    fn consume(&mut self, count: usize) {
        self.taken = (self.taken + count).min(self.piece.len());
    }
}

impl<R: Read> Read for Pieces<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}
