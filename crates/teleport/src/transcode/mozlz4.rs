//! Mozilla's wrapping of one LZ4 block: eight bytes that name it, the length of what is inside, the block.

use spaceport_types::{Cause, Error, Result};

const MAGIC: &[u8; 8] = b"mozLz40\0";

/// Largest content that is unpacked. A session of a thousand tabs has some ten megabytes; a length of
/// four gigabytes is somebody's joke.
const MAX: u32 = 256 << 20;

/// The content of such a file.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<u8>> {
    let damaged = |why: &'static str| Error::because(Cause::CorruptBundle, why);
    let content = bytes
        .strip_prefix(MAGIC)
        .and_then(|rest| rest.split_first_chunk::<4>())
        .ok_or_else(|| damaged("a session file of Firefox does not begin like one"))?;
    let (len, block) = (u32::from_le_bytes(*content.0), content.1);
    if len > MAX {
        return Err(damaged("a session file of Firefox says that it is larger than 256 MiB"));
    }
    // An LZ4 block holds at most 255 times its own length, so a small one cannot ask for much memory.
    if u64::from(len) > block.len() as u64 * 255 + 64 {
        return Err(damaged("a session file of Firefox says that it is larger than it can be"));
    }
    let content = lz4_flex::block::decompress(block, len as usize)
        .map_err(|_| damaged("a session file of Firefox is damaged"))?;
    if content.len() != len as usize {
        return Err(damaged("a session file of Firefox is shorter than it says"));
    }
    Ok(content)
}

/// Such a file with this content.
pub(crate) fn encode(content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(len.to_le_bytes());
    bytes.extend(lz4_flex::block::compress(content));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_both_ways() {
        for content in [&b""[..], b"{}", &b"{\"windows\":[]}".repeat(1000)] {
            assert_eq!(decode(&encode(content)).unwrap(), content);
        }
    }

    #[test]
    fn damage_is_an_error() {
        let good = encode(&b"{\"windows\":[]}".repeat(100));
        for len in 0..good.len() {
            assert!(decode(&good[..len]).is_err(), "cut at {len}");
        }
        let mut bomb = good;
        bomb[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(decode(&bomb).is_err());
        bomb[8..12].copy_from_slice(&MAX.to_le_bytes());
        assert!(decode(&bomb).is_err());
    }
}
