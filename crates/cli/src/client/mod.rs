//! The verbs that work with Spaces. Each translates to and from `spaceport-spaces`, and adds nothing.

pub(crate) mod args;
pub(crate) mod files;
mod handover;
mod keep;
mod mp4;
pub(crate) mod open;
mod play;
pub(crate) mod spaces;
pub(crate) mod stream;
pub(crate) mod windows;

use std::path::Path;
use std::time::SystemTime;

use spaceport_gateway::config::read_secret;
use spaceport_spaces::{Registry, Spaces};
use spaceport_types::Result;

use crate::args::Environment;

/// The Spaces of this user.
pub(crate) fn mine() -> Spaces {
    Spaces::new(Registry::new(Environment::read().config_dir))
}

/// The Spaces of this user, and those that are named by their address. A token in a file opens any;
/// one in the environment those that are named by their address.
pub(crate) fn reached(token_file: Option<&Path>) -> Result<Spaces> {
    let spaces = mine().or_at_address(Environment::read().token);
    Ok(match token_file {
        Some(file) => spaces.opened_by(read_secret(file)?),
        None => spaces,
    })
}

/// Runs what has to wait for a Space.
pub(crate) fn wait<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

#[expect(clippy::disallowed_methods, reason = "a Space is added at a time of day")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
