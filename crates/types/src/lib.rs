//! The nouns every other crate speaks.
//!
//! Plain data only: no sockets, no clocks, no async runtime. A type lives here when at least two
//! crates exchange it; a type used by one crate lives in that crate.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod cursor;
mod error;
mod geometry;
mod id;
mod media_key;
mod packet;
mod redact;
mod remedy;
mod suspension;
mod units;

pub use cursor::{CursorImage, CursorPosition};
pub use error::{Cause, Disposition, Error, Issue, Kind, Report, Result, Retry, Spec};
pub use geometry::{Bounds, Geometry, Rect, Size};
pub use id::{MachineId, SessionId, ViewerId};
pub use media_key::MediaKey;
pub use packet::{Codec, Packet, Target};
pub use redact::Redacted;
pub use suspension::Suspension;
pub use units::Bitrate;
