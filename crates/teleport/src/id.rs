//! Names and secrets that nobody can guess.

use spaceport_types::{Error, Kind, Result};

use crate::hex;

/// A new name for a request and the import that may come of it.
pub(crate) fn new() -> Result<String> {
    Ok(format!("tp-{}", hex::encode(&random::<16>()?)))
}

/// A secret of 256 bits.
pub(crate) fn secret() -> Result<String> {
    Ok(hex::encode(&random::<32>()?))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(bytes)
}
