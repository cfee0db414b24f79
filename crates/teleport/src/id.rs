//! Names that nobody can guess, and whether a name from outside can be one of ours.

use spaceport_types::{Error, Issue, Kind, Result};

use crate::hex;

/// The longest name of an import. Other senders choose their own; UUIDs have 36 characters.
const MAX: usize = 64;

/// A new name for a request and the import that may come of it.
pub(crate) fn new() -> Result<String> {
    Ok(format!("tp-{}", hex::encode(&random::<16>()?)))
}

/// A secret of 256 bits.
pub(crate) fn secret() -> Result<String> {
    Ok(hex::encode(&random::<32>()?))
}

/// Lets a name through that can be a file's, whoever chose it.
pub(crate) fn check(id: &str) -> Result<&str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !id.is_empty() && id.len() <= MAX && id.bytes().all(plain) {
        return Ok(id);
    }
    let error = Error::new(Kind::InvalidArgument, "the import's name cannot be used");
    Err(error
        .issue(Issue {
            path: "import_id".to_owned(),
            constraint: "letters, digits, `-` and `_`, at most".into(),
            limit: Some(MAX.to_string()),
        })
        .hint("Use a UUID"))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(bytes)
}
