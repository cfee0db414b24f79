//! What makes packets here: the desktop that is shown, what of it can be, and the sessions of it.
//!
//! The left half of a gateway, without any way in. It ends with the demo desktop, if there is one.

use std::sync::Arc;

use spaceport_media::demo::Demo;
use spaceport_media::encode::Preference;
use spaceport_media::windows::Windows;
use spaceport_media::{capture, encode, pipeline};
use spaceport_session::{Limits, Sessions};
use spaceport_types::{Codec, Error, Kind, Result, Size};

use crate::config::Config;
use crate::launcher::Launcher;
use crate::load::Load;
use crate::targets::Targets;

/// The size of the demo desktop.
const DEMO_SIZE: Size = Size::new(1280, 720);

/// Everything that is needed to show something.
pub(crate) struct Producer {
    pub(crate) demo: Option<Demo>,
    pub(crate) windows: Windows,
    pub(crate) targets: Targets,
    pub(crate) sessions: Sessions,
    /// To be looked at while there are sessions.
    pub(crate) load: Arc<Load>,
}

impl Producer {
    /// Starts the demo desktop, if that is wanted; nothing else runs before somebody watches.
    pub(crate) async fn start(config: &Config, encoder: &Preference) -> Result<Self> {
        let demo = if config.demo { Some(start_demo().await?) } else { None };
        let mut capture = capture::Config::default();
        capture.display = config.display.clone();
        if let Some(demo) = &demo {
            capture.display = Some(demo.display().to_owned());
            capture.framebuffer = Some(demo.framebuffer().to_owned());
        }
        let windows = Windows::new(capture.display.as_deref());
        capture.windows = Some(windows.clone());
        let targets = Targets { capture: capture.clone(), test_pattern: config.test_pattern };
        let mut pipelines = pipeline::Config::default();
        pipelines.capture = capture;
        pipelines.encoder = encoder.clone();
        let load = Arc::new(Load::new());
        let limits = Limits { sessions: config.max_sessions, ..Limits::default() };
        let launcher = Launcher { config: pipelines, load: Arc::clone(&load) };
        let sessions = Sessions::new(limits, Arc::new(launcher));
        Ok(Self { demo, windows, targets, sessions, load })
    }
}

/// Which encoder is wanted.
///
/// # Errors
///
/// As [`Preference::check`].
pub(crate) fn encoder(config: &Config) -> Result<Preference> {
    let mut preference = Preference::default();
    preference.encoder = config.encoder.clone();
    preference.check()?;
    Ok(preference)
}

/// What can be encoded as video then, the best first.
pub(crate) fn video_codecs(encoder: &Preference) -> Vec<Codec> {
    encoder.codecs().into_iter().filter(|&codec| encode::lossy(codec)).collect()
}

async fn start_demo() -> Result<Demo> {
    match tokio::task::spawn_blocking(|| Demo::start(DEMO_SIZE)).await {
        Ok(demo) => demo,
        Err(error) => Err(Error::new(Kind::Internal, "the demo desktop failed").source(error)),
    }
}
