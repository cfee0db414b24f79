//! Names that a sender chose.
//!
//! Bytes, as Linux has them: a name need not be UTF-8, and lands exactly as it was sent.

/// A path below a folder, that cannot lead out of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativePath(Vec<u8>);

impl RelativePath {
    /// The bytes, `/`-separated.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
