//! The verbs that work with Spaces. Each translates to and from `spaceport-spaces`, and adds nothing.

pub(crate) mod args;
pub(crate) mod files;
mod handover;
mod keep;
mod mp4;
pub(crate) mod open;
pub(crate) mod spaces;
pub(crate) mod stream;
pub(crate) mod windows;

use std::time::SystemTime;

use spaceport_spaces::{Registry, Spaces};
use spaceport_types::Result;

use crate::args::Environment;

/// The Spaces of this user.
pub(crate) fn mine() -> Spaces {
    Spaces::new(Registry::new(Environment::read().config_dir))
}

/// Runs what has to wait for a Space.
pub(crate) fn wait<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

#[expect(clippy::disallowed_methods, reason = "a Space is added at a time of day")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
