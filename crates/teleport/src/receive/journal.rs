//! What is being published, written down before the first step of it.
//!
//! A crash in the middle leaves the journal in the stage; the next start reads it and takes back
//! what was done, so that the destination is as before. Nothing in it is trusted: a path that leads
//! anywhere else makes it no journal.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::path::{MAX_PATH, check};

const MAGIC: &[u8] = b"spaceport journal 1\n";

/// Steps that one publication may have, which also bounds what is read: every entry may be one, and
/// every folder on the way to the destination.
pub(crate) const MAX_STEPS: usize = 200_000 + 256;

/// Bytes of the largest journal that can have been written.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

/// One step of a publication. Paths to are beneath the destination's root, paths from beneath the
/// staged tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Makes a folder that was missing.
    Make { to: Vec<u8> },
    /// Moves what is staged to where nothing is.
    Move { from: Vec<u8>, to: Vec<u8>, inode: u64 },
    /// Swaps what is staged with what is there.
    Swap { from: Vec<u8>, to: Vec<u8>, inode: u64 },
}

/// Writes a journal of steps beneath `root`.
pub(crate) fn encode(root: &Path, steps: &[Step]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    let put = |bytes: &mut Vec<u8>, path: &[u8]| {
        bytes.extend((path.len() as u32).to_be_bytes()); // MAX_PATH bounds it
        bytes.extend(path);
    };
    put(&mut bytes, root.as_os_str().as_bytes());
    for step in steps {
        let (kind, from, to, inode) = match step {
            Step::Make { to } => (b'd', &[][..], to, 0),
            Step::Move { from, to, inode } => (b'm', &from[..], to, *inode),
            Step::Swap { from, to, inode } => (b'x', &from[..], to, *inode),
        };
        bytes.push(kind);
        bytes.extend(inode.to_be_bytes());
        put(&mut bytes, from);
        put(&mut bytes, to);
    }
    let digest = Sha256::digest(&bytes);
    bytes.extend(digest);
    bytes
}

/// Reads one. `None` for what is not a whole one, which then was never acted on.
pub(crate) fn decode(bytes: &[u8]) -> Option<(PathBuf, Vec<Step>)> {
    let (bytes, digest) = bytes.split_last_chunk::<32>()?;
    let mut rest = bytes.strip_prefix(MAGIC)?;
    if Sha256::digest(bytes).as_slice() != digest {
        return None;
    }
    let root = take_path(&mut rest)?;
    let root = PathBuf::from(OsStr::from_bytes(root));
    let mut steps = Vec::new();
    while let Some((&kind, after)) = rest.split_first() {
        let (inode, after) = after.split_first_chunk::<8>()?;
        let inode = u64::from_be_bytes(*inode);
        rest = after;
        let (from, to) = (take_path(&mut rest)?, take_path(&mut rest)?);
        let usable = |path: &[u8]| check(path).is_ok();
        let (from, to) = (from.to_vec(), to.to_vec());
        steps.push(match kind {
            b'd' if usable(&to) => Step::Make { to },
            b'm' if usable(&from) && usable(&to) => Step::Move { from, to, inode },
            b'x' if usable(&from) && usable(&to) => Step::Swap { from, to, inode },
            _ => return None,
        });
        if steps.len() > MAX_STEPS {
            return None;
        }
    }
    root.is_absolute().then_some((root, steps))
}

fn take_path<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_PATH {
        return None;
    }
    let (path, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<Step> {
        let path = |path: &str| path.as_bytes().to_vec();
        vec![
            Step::Make { to: path("sub") },
            Step::Move { from: path("a"), to: path("sub/a (1)"), inode: 7 },
            Step::Swap { from: path("b/c"), to: path("sub/b/c"), inode: u64::MAX },
        ]
    }

    #[test]
    fn a_journal_reads_as_it_was_written() {
        let bytes = encode(Path::new("/home/u"), &steps());
        assert_eq!(decode(&bytes), Some((PathBuf::from("/home/u"), steps())));
    }

    #[test]
    fn a_damaged_journal_is_none() {
        let bytes = encode(Path::new("/home/u"), &steps());
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None, "cut to {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "bit flipped at {at}");
        }
    }

    #[test]
    fn a_journal_that_leads_elsewhere_is_none() {
        for to in ["../x", "/etc/passwd", "a//b", ""] {
            let step = Step::Move { from: b"a".to_vec(), to: to.as_bytes().to_vec(), inode: 1 };
            assert_eq!(decode(&encode(Path::new("/home/u"), &[step])), None, "{to}");
        }
        assert_eq!(decode(&encode(Path::new("home"), &[])), None);
    }
}
