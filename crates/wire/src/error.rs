//! Why bytes or text could not be read.

use std::fmt;

use spaceport_types::{Error, Kind};

/// Why a peer's message could not be read.
///
/// Code branches on this; people see the [`Error`] it converts to. Text that came from the peer is
/// not part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends before the length it declares.
    Truncated {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that are there.
        received: u64,
    },
    /// The message goes on after the length it declares.
    TrailingBytes {
        /// Bytes that were declared.
        declared: u64,
        /// Bytes that are there.
        received: u64,
    },
    /// A length is over its limit.
    TooLong {
        /// What is too long.
        what: &'static str,
        /// The length.
        length: u64,
        /// The longest allowed.
        limit: u64,
    },
    /// The bytes are no such thing at all.
    Malformed {
        /// What they should have been.
        what: &'static str,
    },
    /// The text is not the JSON that it should be.
    Json {
        /// What was being read.
        what: &'static str,
        /// Line and column of the fault, 1-based; zero when it concerns the whole.
        position: (usize, usize),
    },
}

impl DecodeError {
    pub(crate) fn json(what: &'static str, error: &serde_json::Error) -> Self {
        Self::Json { what, position: (error.line(), error.column()) }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, received } => {
                write!(f, "the message is cut short: {received} of {needed} bytes")
            }
            Self::TrailingBytes { declared, received } => {
                write!(f, "the message is longer than it says: {received} of {declared} bytes")
            }
            Self::TooLong { what, length, limit } => {
                write!(f, "the {what} is too long: {length}, at most {limit}")
            }
            Self::Malformed { what } => write!(f, "what came is no {what}"),
            Self::Json { what, position: (0, _) } => write!(f, "the {what} is not as it should be"),
            Self::Json { what, position: (line, column) } => {
                write!(f, "the {what} is not as it should be at line {line} column {column}")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::new(Kind::InvalidArgument, error.to_string())
    }
}
