//! Files and app sessions move house: consented to, verified, all or nothing.
//!
//! What arrives is staged beside its destination, opened beneath a directory handle, checked byte
//! for byte against the SHA-256 that was promised, and then published in one step. Nothing here
//! knows what carries the bytes: a caller hands over entries and chunks, and gets typed errors back.
//! Calls that touch the disk block; callers run them off their async threads. Nothing looks at a
//! clock: callers pass `now`.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod bundle;
pub mod carry;
pub mod consent;
pub mod contract;
pub mod files;
mod hex;
mod id;
mod ignore;
pub mod inbox;
pub mod journal;
pub mod ledger;
mod machine;
pub mod manifest;
mod outbox;
#[doc(hidden)]
pub mod outside;
pub mod package;
mod padding;
mod path;
pub mod payload;
pub mod provider;
pub mod push;
pub mod receipt;
pub mod receive;
mod root;
#[cfg(test)]
mod scratch;
pub mod seal;
mod snapshot;
mod staging;
pub mod stream;
mod transcode;
mod trust;

pub use journal::Journal;
pub use ledger::Ledger;
pub use machine::Machine;
pub use manifest::{App, Choice, Manifest, Scope, Selection};
pub use path::{Flaw, MAX_DEPTH, MAX_NAME, MAX_PATH, RelativePath, Shown, raw};
pub use payload::{Payload, PayloadWriter, Record};
pub use provider::Provider;
pub use root::Root;
pub use spaceport_state::Digest;
use spaceport_state::{digest, private};
pub use trust::Keys;

/// The providers of all apps whose state can move.
pub fn providers() -> Vec<&'static dyn Provider> {
    App::ALL.into_iter().map(provider::provider).collect()
}
