//! Names that must not be mixed up with each other.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Names one media session, as `media_session_id` on the wire.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(String);

impl SessionId {
    /// Takes an id as it stands, from the wire or from a generator.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first characters, enough to follow one session through a log.
    pub fn short(&self) -> &str {
        let end = self.0.char_indices().nth(10).map_or(self.0.len(), |(index, _)| index);
        &self.0[..end]
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names one attached viewer of one stream; unique for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewerId(u64);

impl ViewerId {
    /// Wraps a number the caller never uses twice.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for ViewerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}
