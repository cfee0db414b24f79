//! Machines behind NAT, reached through one that is not.
//!
//! ```text
//! guest                                relay                              viewers, clients
//! gateway's router ◄── http streams ──┐
//!                                     ├── tunnel ── proxy ── /m/<id>/… ◄── gRPC, files, teleport, MCP
//! sessions         ◄── media streams ─┘
//! ```
//!
//! A *machine* is a guest that is registered at a relay, an *uplink* its one outbound connection, and a
//! [`tunnel`] what an uplink carries: streams of bytes that either side opens. What is said there is
//! [`spaceport_wire::relay`]'s.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod media;
pub mod tunnel;
