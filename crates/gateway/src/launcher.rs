//! Starts a pipeline for every stream that gets a viewer.

use std::sync::Arc;

use spaceport_media::pipeline;
use spaceport_session::{Launch, Publisher};

use crate::load::Load;

/// Connects sessions to the media crate: neither knows the other's makers.
pub(crate) struct Launcher {
    pub(crate) config: pipeline::Config,
    pub(crate) load: Arc<Load>,
}

impl Launch for Launcher {
    fn launch(&self, publisher: Publisher) {
        let target = publisher.target().to_string();
        if let Err(error) = pipeline::spawn(publisher, self.config.clone()) {
            // The publisher is gone with it, which tells the viewers.
            tracing::error!(%error, target, "a pipeline could not be started");
        }
    }

    fn has_room(&self) -> bool {
        !self.load.is_crowded()
    }
}
