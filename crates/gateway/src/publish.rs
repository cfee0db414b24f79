//! One session of this machine, for whoever sends it elsewhere: no port is opened, and nobody is let in.

use spaceport_media::clock;
use spaceport_media::demo::Demo;
use spaceport_media::windows::Window;
use spaceport_session::{Open, Policy};
use spaceport_transport::whep::publisher::Stream;
use spaceport_types::{Bitrate, Bounds, Cause, Codec, Error, Kind, Result, Target};
use tokio::time::Instant;

use crate::config::Config;
use crate::producer::{Producer, encoder, video_codecs};
use crate::service::blocking;

/// What is to be shown, and how.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Wanted {
    /// What.
    pub what: What,
    /// Frames per second at most; 0 for the default.
    pub max_fps: u32,
    /// The longer side of a frame at most, in pixels; 0 for all there are.
    pub max_dimension: u32,
    /// Upper bound of the rate.
    pub bitrate: Option<Bitrate>,
}

/// A display or a window.
#[derive(Clone, Debug, Default)]
pub enum What {
    /// The primary display.
    #[default]
    Primary,
    /// The display of this id; `desktop` for all of them together.
    Display(String),
    /// The largest window of the app of this name.
    App(String),
    /// The largest window with this in its title.
    Title(String),
}

/// What is shown. The desktop that was started for it ends with it.
pub struct Source {
    /// The session, as a publisher takes it.
    pub stream: Stream,
    /// What it shows, for people.
    pub shows: String,
    demo: Option<Demo>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let demo = self.demo.is_some();
        f.debug_struct("Source").field("shows", &self.shows).field("demo", &demo).finish()
    }
}

/// Opens a session of what is `wanted`. Nothing is captured before somebody attaches.
///
/// # Errors
///
/// `not_found` for a display or a window that is not there, `stream` with cause `capture_failed` or
/// `codec_unavailable`.
pub async fn open(config: &Config, wanted: Wanted) -> Result<Source> {
    clock::origin(); // media time counts from here
    let encoder = encoder(config)?;
    let Producer { demo, windows, targets, sessions, .. } =
        Producer::start(config, &encoder).await?;
    let (target, bounds, shows) = match wanted.what {
        What::Primary => display(blocking(move || targets.find(None)).await?),
        What::Display(id) => display(blocking(move || targets.find(Some(&id))).await?),
        What::App(name) => {
            let all = blocking(move || windows.list()).await?;
            window(largest(all, "app", &name, |window| &window.app_name)?)
        }
        What::Title(text) => {
            let all = blocking(move || windows.list()).await?;
            window(largest(all, "title", &text, |window| &window.title)?)
        }
    };
    let codecs = blocking(move || Ok(video_codecs(&encoder))).await?;
    let codec = codecs.first().copied().ok_or_else(|| {
        Error::because(Cause::CodecUnavailable, "this machine encodes no video")
            .hint("See what `spaceport doctor` says of its encoders")
    })?;
    let open = Open {
        target,
        bounds,
        // For sockets, of which there are none here; a peer says which it takes.
        codec: if codecs.contains(&Codec::H264) { Codec::H264 } else { codec },
        max_fps: wanted.max_fps,
        max_dimension: wanted.max_dimension,
        bitrate: wanted.bitrate,
        policy: Policy::ViewOnly,
        ticket_ttl: None,
        key: None,
    };
    let session = sessions.open(open, Instant::now().into_std())?.info.id;
    Ok(Source { stream: Stream { sessions, session, codecs }, shows, demo })
}

fn display(display: crate::service::Display) -> (Target, Bounds, String) {
    (display.target, display.bounds.into(), display.name)
}

fn window(window: Window) -> (Target, Bounds, String) {
    let target = Target::Window { handle: window.handle, epoch: window.epoch };
    (target, window.bounds, window.title)
}

/// The largest of the windows that have `wanted` in what `name` gives, whatever its case.
fn largest(
    windows: Vec<Window>,
    what: &'static str,
    wanted: &str,
    name: impl Fn(&Window) -> &str,
) -> Result<Window> {
    let lower = wanted.to_lowercase();
    let known: Vec<_> = windows.iter().map(|window| name(window).to_owned()).collect();
    let fits = |window: &Window| name(window).to_lowercase().contains(&lower);
    let area = |window: &Window| u64::from(window.bounds.width) * u64::from(window.bounds.height);
    windows.into_iter().filter(fits).max_by_key(area).ok_or_else(|| {
        Error::new(Kind::NotFound, format!("no window has `{wanted}` as its {what}"))
            .with(what, wanted)
            .with("known", known.join(", "))
            .hint("Name one of those that are there")
    })
}
