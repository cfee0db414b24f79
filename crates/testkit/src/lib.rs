//! What tests of several crates share. A dev-dependency only; nothing here ships.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod link;
mod xvfb;

pub use xvfb::Xvfb;
