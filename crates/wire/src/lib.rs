//! The bytes spaceport puts on a network, and how to read hostile ones.
//!
//! Sans-I/O: functions over slices and strings, no sockets, no clocks, no tasks. Every length is
//! checked before it is trusted with an allocation, and nothing here panics on outside input.
//! `docs/wire.md` has the same bytes in words; a test decodes its examples.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod attach;
pub mod close;
pub mod control;
pub mod datagram;
mod error;
pub mod order;
pub mod packet;
pub mod pb;
pub mod relay;
pub mod relay_media;
pub mod relay_nodes;
pub mod sealed;
pub mod status;
pub mod stream;
pub mod ticket;
pub mod transfer;

pub use error::DecodeError;

/// The version of the media wire that this crate speaks, as `wire_version` in the contract.
pub const WIRE_VERSION: u32 = 2;
