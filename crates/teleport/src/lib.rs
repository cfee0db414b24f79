//! Files and app sessions move house: consented to, verified, all or nothing.
//!
//! What arrives is staged beside its destination, opened beneath a directory handle, checked byte
//! for byte against the SHA-256 that was promised, and then published in one step. Nothing here
//! knows what carries the bytes: a caller hands over entries and chunks, and gets typed errors back.
//! Calls that touch the disk block; callers run them off their async threads. Nothing looks at a
//! clock: callers pass `now`.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod path;

pub use path::RelativePath;
