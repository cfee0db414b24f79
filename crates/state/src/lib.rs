//! What outlives a run: private files, written whole or not at all, and ledgers whose lines are chained.
//!
//! Calls touch the disk and block. Nothing looks at a clock: callers pass `now`.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod digest;
pub mod ledger;
pub mod private;

pub use digest::Digest;
pub use ledger::{Ledger, Record};
