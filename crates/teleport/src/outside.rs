//! Readers of outside bytes that no caller needs, for the fuzzers.

use spaceport_types::Result;

use crate::provider::cookies;
use crate::transcode::{mozlz4, session_store};

/// A session file of Firefox, reduced to its tabs.
///
/// # Errors
///
/// `corrupt_bundle` for what is none.
pub fn session_tabs(packed: &[u8]) -> Result<Vec<u8>> {
    Ok(mozlz4::encode(&session_store::only_tabs(&mozlz4::decode(packed)?)?))
}

/// Cookies on their way, read and written again.
///
/// # Errors
///
/// `corrupt_bundle` for what is none.
pub fn cookies(lines: &[u8]) -> Result<Vec<u8>> {
    let (head, read) = cookies::read(lines)?;
    let mut written = Vec::new();
    cookies::write(head, &read, &mut written)?;
    Ok(written)
}
