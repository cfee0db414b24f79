//! Machines behind NAT, reached through one that is not.
//!
//! ```text
//! guest                                relay                              viewers, clients
//! gateway's router ◄── http streams ──┐
//!     (uplink)                        ├── tunnel ── proxy ── /m/<id>/… ◄── gRPC, files, teleport, MCP
//! sessions         ◄── media streams ─┘   (join)
//! ```
//!
//! A *machine* is a guest that is registered at a relay, an *uplink* its one outbound connection, and a
//! [`tunnel`] what an uplink carries: streams of bytes that either side opens. What is said there is
//! [`spaceport_wire::relay`]'s. [`Relay`] is the one program, [`uplink`] a part of the other.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod above;
mod api;
pub mod audit;
pub mod config;
pub mod directory;
mod hop;
mod join;
pub mod media;
mod metrics;
pub mod nodes;
mod proxy;
mod server;
pub mod tunnel;
pub mod uplink;

pub use api::{Info, QuicPort};
pub use config::Config;
pub use directory::Directory;
pub use server::{Endpoints, Relay};
pub use uplink::{Uplink, Via};

/// The time of day, for records and certificates.
#[expect(clippy::disallowed_methods, reason = "what is written down and shown has a time of day")]
pub(crate) fn wall_clock() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
