//! Pixels to packets: read a desktop, encode what changed.
//!
//! One thread per running pipeline ([`pipeline`]) does everything: it waits for damage, reads the
//! damaged pixels ([`capture`]), converts and encodes them ([`encode`]) and publishes the result.
//! What viewers want comes back as a value, [`spaceport_session::Demand`]. The only crate that
//! links GStreamer, X11 and libx264, and the only one with `unsafe`.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod capture;
pub mod clock;
mod cursor;
pub mod demo;
pub mod encode;
mod frame;
mod memory;
pub mod pipeline;
pub mod play;
mod wake;
pub mod windows;

pub use frame::Frame;
