//! What tests of several crates share. A dev-dependency only; nothing here ships.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod xvfb;

pub use spaceport_link as link;
pub use xvfb::Xvfb;
