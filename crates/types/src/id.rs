//! Names that must not be mixed up with each other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Kind};

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

/// Names one machine at a relay, as in `/m/<id>`: 8 to 64 lower-case letters, digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MachineId(String);

impl MachineId {
    /// The shortest, in characters: with less of it random, two machines would get the same one.
    pub const SHORTEST: usize = 8;

    /// The longest, in characters.
    pub const LONGEST: usize = 64;

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for MachineId {
    type Error = Error;

    fn try_from(id: String) -> Result<Self, Error> {
        let fits = (Self::SHORTEST..=Self::LONGEST).contains(&id.len());
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if fits && id.bytes().all(plain) {
            return Ok(Self(id));
        }
        // What is far too long or no text is not repeated.
        let shown: String = id.chars().take(Self::LONGEST).collect();
        Err(Error::new(
            Kind::InvalidArgument,
            format!("`{}` cannot be the id of a machine", shown.escape_debug()),
        )
        .hint("Use 8 to 64 lower-case letters, digits and hyphens, such as `build-box-7`"))
    }
}

impl FromStr for MachineId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Error> {
        // The copy of one that is too long would be for nothing.
        Self::try_from(id.get(..Self::LONGEST + 1).unwrap_or(id).to_owned())
    }
}

impl From<MachineId> for String {
    fn from(id: MachineId) -> Self {
        id.0
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_named_by_what_fits_a_path_and_a_host() {
        for id in ["abcdefgh", "build-box-7", "--------", &"x".repeat(64)] {
            assert_eq!(id.parse::<MachineId>().unwrap().as_str(), id);
        }
        for id in ["", "short", "Build-box", "build_box", "build/box", "büld-box", "a.b.c.d.e"] {
            assert!(id.parse::<MachineId>().is_err(), "{id}");
        }
        let error = "\u{1b}[2J".repeat(100_000).parse::<MachineId>().unwrap_err();
        assert!(error.to_string().len() < 1000 && !error.to_string().contains('\u{1b}'));
        assert!("é".repeat(65).parse::<MachineId>().is_err());
        assert!(serde_json::from_str::<MachineId>("\"../../etc\"").is_err());
    }
}
