//! The Spaces a person or an agent works with: their addresses, and the registry that keeps them.
//!
//! This runs beside the one who asks, not in the Space. It knows no transport of media and no
//! desktop; what it knows of a Space is what the Space says of itself.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod address;
mod info;
mod registry;

pub use address::{Address, Route};
pub use info::SpaceInfo;
pub use registry::{Entry, Registry};
