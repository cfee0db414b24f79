//! What travels: a table of contents, every file as a zstd frame of its own, and a trailer.
//!
//! ```text
//! magic 8 "SPBUNDLE" · version u32 · length of the contents u32
//! contents    one frame
//! per file    'F' · one frame
//! trailer     'E' · files u64 · bytes u64 · SHA-256 of all before it
//! zeros       any number of them
//! frame       u32 length + that many bytes, up to 1 MiB, again and again; then u32 0
//! ```
//!
//! Numbers are big-endian. The contents come first, so a receiver knows every name, size and digest
//! before the first byte of a file. A frame of its own for each file means that no secret shares a
//! compression window with anything that somebody else could have written. Nothing is ever held
//! whole: both sides work in constant memory, and the reader writes at most the declared bytes.
//!
//! What the contents say is not known here; see [`crate::package`].

mod read;
mod write;

pub use read::{File, Reader};
pub use write::Writer;

use spaceport_types::{Cause, Error};

/// The version of this format. The contract's own begins at 1 and is not public; ours begins where
/// nobody mistakes one for the other.
pub const VERSION: u32 = 1001;

/// What a bundle begins with.
const MAGIC: [u8; 8] = *b"SPBUNDLE";

/// A file follows.
const FILE: u8 = b'F';

/// The trailer follows.
const END: u8 = b'E';

/// Compressed bytes in one piece of a frame: what both sides hold at a time.
const BLOCK: usize = 1 << 20;

/// The longest table of contents: 200,000 files with names as long as they come.
const MAX_CONTENTS: u32 = 64 << 20;

/// zstd's default, where profiles shrink to a tenth and a core keeps up with a disk.
const LEVEL: i32 = 3;

/// The largest window of a frame that is read, as a power of two: what the writer uses at most, so
/// a hostile frame costs no more memory than a good one.
const WINDOW_LOG: u32 = 23;

/// How long a file is and what it hashes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its length in bytes.
    pub len: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
}

/// What went through a bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many files.
    pub files: u64,
    /// Their bytes, before compression.
    pub bytes: u64,
}

fn corrupt(message: &'static str) -> Error {
    Error::because(Cause::CorruptBundle, message).hint("Send it again")
}

#[cfg(test)]
mod tests;
