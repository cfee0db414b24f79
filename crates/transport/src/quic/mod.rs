//! Media over QUIC, for native viewers (`rcdp/2`) and for browsers (WebTransport, `h3`), on one UDP port.
//!
//! ```text
//!            ALPN rcdp/2 ─────────────────────────┐
//! endpoint ─┤                                     ├─► opening ─► viewer::serve over connection
//!            ALPN h3 ─► CONNECT /media, accepted ─┘   (ticket)
//!            ALPN of a relay ─► link, where there is one
//! ```
//!
//! What is said on a connection is `docs/wire.md`'s: the ticket first, then the messages of the media
//! socket on that same bidirectional stream, and each frame on a stream of its own or cut into datagrams.
//! Congestion control is BBR: what paces by loss is seconds behind on a path that loses two packets in a
//! hundred.
//!
//! The libraries are quinn and web-transport-quinn; nothing outside this module knows either.

pub mod client;
mod congestion;
mod connection;
mod endpoint;
mod flight;
mod frames;
mod identity;
mod link;
#[cfg(test)]
mod lossy;
mod opening;
mod settings;
mod socket;
#[cfg(test)]
mod tests;

pub use client::{Client, Connection, Remote};
pub use endpoint::{Config, Driver, Endpoint, bind};
pub use identity::Identity;
pub use link::{Link, Links, Stream, Windows};
pub(crate) use settings::provider;
pub use spaceport_wire::attach::Video;

pub use crate::client::Received;

/// The protocol of native viewers, in the TLS handshake.
pub const ALPN: &str = "rcdp/2";

/// The path of a WebTransport session with media.
pub const PATH: &str = "/media";
