//! The files of this Space: where they may land, and the handles that see to it.

use std::path::PathBuf;
use std::time::SystemTime;

use spaceport_teleport::files::Files;
use spaceport_teleport::receive::{Config as Receive, Receiver, Uploads};
use spaceport_types::{Error, Kind, Result};
use tokio::time::Instant;

use crate::config::Config;

/// What receives, writes and reads files. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Transfers, into the downloads folder.
    pub receiver: Receiver,
    /// Single files, anywhere below the root.
    pub uploads: Uploads,
    /// Everything below the root.
    pub files: Files,
    /// The user's home, where relative paths start.
    pub home: PathBuf,
}

impl Storage {
    /// Opens it as the configuration says, and sees to what an earlier run left half done. `None`
    /// where there is no home to serve.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>> {
        let Some(home) = config.home.clone().or_else(|| config.files_root.clone()) else {
            return Ok(None);
        };
        // A root that is reached through links is named by where it is.
        let root = config.files_root.as_ref().unwrap_or(&home);
        let root = root.canonicalize().map_err(|error| {
            Error::new(Kind::Io, format!("`{}` cannot be served", root.display()))
                .with("path", root.display())
                .hint("Give a folder that is there with `--files-root`")
                .source(error)
        })?;
        let home = home.canonicalize().unwrap_or(home);
        let downloads = config.downloads_dir.clone().unwrap_or_else(|| home.join("Downloads"));
        #[expect(clippy::disallowed_methods, reason = "compared with the file system's own clock")]
        let wall = SystemTime::now();
        let state = config.state_dir.clone();
        let receiver = Receiver::open(Receive::new(downloads, state), now(), wall)?;
        let uploads = Uploads::new(root.clone(), &receiver);
        Ok(Some(Self { receiver, uploads, files: Files::new(root, &home), home }))
    }

    /// Ends what has rested too long.
    pub(crate) fn sweep(&self) {
        self.receiver.sweep(now());
        self.uploads.sweep(now());
    }
}

/// The time by which transfers rest.
pub(crate) fn now() -> std::time::Instant {
    Instant::now().into_std()
}
