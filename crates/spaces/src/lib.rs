//! The Spaces a person or an agent works with: their addresses, the registry that keeps them, and
//! the client that speaks with them.
//!
//! This runs beside the one who asks, not in the Space. It knows no transport of media and no
//! desktop; what it knows of a Space is what the Space says of itself.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod address;
mod client;
mod info;
pub mod media;
mod registry;
pub mod verbs;

pub use address::{Address, Route};
pub use client::Client;
pub use info::SpaceInfo;
pub use registry::{Entry, Registry};
pub use verbs::Spaces;
