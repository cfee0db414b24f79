//! Packets to viewers, one module per way to watch.
//!
//! Every transport takes a [`spaceport_session::Subscriber`] and turns its events into what its
//! carrier speaks. None of them knows where packets come from.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod bearer;
pub mod body;
mod client;
mod door;
mod echo;
mod flying;
pub mod grpc;
pub mod page;
mod pointer;
pub mod problem;
pub mod quic;
pub mod relayed;
pub mod tcp;
pub mod tls;
mod viewer;
pub mod websocket;
pub mod whep;

pub use bearer::bearer;
pub use client::Received;
pub use door::{Clock, Door, Media, Pass, machine};
