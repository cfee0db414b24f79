//! The way back: a stream's frames, decoded and shown in a window of the desktop that this runs on.
//!
//! `appsrc ! decodebin ! videoconvert ! videoscale ! sink`, with nothing that waits: what has come is
//! shown at once. GStreamer chooses the decoder, and the sink is the first that finds a desktop.

use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_app as gst_app;
use spaceport_types::{Cause, Codec, Error, Kind, Result, Size};

#[cfg(test)]
mod tests;

/// Frames that may wait for the decoder: what a keyframe holds up. Whoever brings more waits, and the
/// stream's own rules for slow viewers do the rest.
const AHEAD: u64 = 4;

/// How soon it is looked again whether the decoder has caught up.
const BEHIND: Duration = Duration::from_millis(2);

/// What shows video, in the order it is tried, and the Debian package it is in.
const SINKS: [(&str, &str); 4] = [
    (WAYLAND, BAD),
    ("xvimagesink", "gstreamer1.0-x"),
    ("ximagesink", "gstreamer1.0-x"),
    ("glimagesink", "gstreamer1.0-gl"),
];

const WAYLAND: &str = "waylandsink";

const BASE: &str = "gstreamer1.0-plugins-base";
const GOOD: &str = "gstreamer1.0-plugins-good";
const BAD: &str = "gstreamer1.0-plugins-bad";

/// Where a window is to be, and what is said above it.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The title.
    pub title: String,
    /// An X display, for example `:7`; without one, the desktop that this runs on.
    pub display: Option<String>,
    /// Whether that desktop is a Wayland one.
    pub wayland: bool,
}

/// A window that shows a stream. Dropping it closes it.
#[derive(Debug)]
pub struct Window {
    pipeline: gst::Pipeline,
    source: gst_app::AppSrc,
    codec: Codec,
    title: String,
    /// Of the last frame; `None` before the first.
    size: Option<Size>,
}

/// Whether frames of this codec can be shown here, as far as GStreamer's registry knows.
pub fn decodes(codec: Codec) -> bool {
    if gst::init().is_err() {
        return false;
    }
    if codec == Codec::Bgra {
        return true;
    }
    let caps = caps(codec, Size::new(16, 16));
    let kind = gst::ElementFactoryType::DECODER;
    let decoders = gst::ElementFactory::factories_with_type(kind, gst::Rank::MARGINAL);
    decoders.into_iter().any(|decoder| decoder.can_sink_any_caps(&caps))
}

impl Window {
    /// Opens a window for a stream of `codec`; it appears with the first frame. `ended` is told once
    /// when it cannot go on: `cancelled` when somebody has closed it, `stream` when it has failed.
    ///
    /// # Errors
    ///
    /// `stream` with `no_decoder` when nothing here can decode it, `host_capability_missing` when there
    /// is nothing to show a window with, or no desktop to show it on; the hint says what to install.
    pub fn open(
        codec: Codec,
        options: &Options,
        ended: impl FnOnce(Error) + Send + 'static,
    ) -> Result<Self> {
        gst::init().map_err(|error| {
            Error::new(Kind::HostCapabilityMissing, "GStreamer does not start").source(error)
        })?;
        if !decodes(codec) {
            let message = format!("GStreamer has no decoder of {codec} here");
            let hint = format!("Install one: `apt install {}`", decoder_package(codec));
            return Err(Error::because(Cause::NoDecoder, message).hint(hint));
        }
        let sink = sink(options)?;
        let source = gst_app::AppSrc::builder()
            .is_live(true)
            .format(gst::Format::Time)
            .do_timestamp(true)
            .build();
        let decoder = element("decodebin", BASE)?;
        let convert = element("videoconvert", BASE)?;
        let scale = element("videoscale", BASE)?;
        let pipeline = gst::Pipeline::new();
        pipeline
            .add_many([source.upcast_ref(), &decoder, &convert, &scale, &sink])
            .map_err(broken)?;
        source.link(&decoder).map_err(broken)?;
        gst::Element::link_many([&convert, &scale, &sink]).map_err(broken)?;
        let into = convert.downgrade();
        decoder.connect_pad_added(move |_, pad| {
            let into = into.upgrade().and_then(|convert| convert.static_pad("sink"));
            // What cannot be linked stops the stream, which is said on the bus.
            if let Some(into) = into.filter(|into| !into.is_linked()) {
                let _ = pad.link(&into);
            }
        });
        let bus = pipeline.bus().ok_or_else(|| broken(Missing("bus")))?;
        let ended = Mutex::new(Some(ended));
        bus.set_sync_handler(move |_, message| {
            if let Some(error) = ending(message)
                && let Some(ended) = ended.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                ended(error);
            }
            gst::BusSyncReply::Drop
        });
        Ok(Self { pipeline, source, codec, title: options.title.clone(), size: None })
    }

    /// Shows a frame, once the decoder is near it. The first has to be a keyframe. False when that
    /// cannot be any more.
    pub fn show(&mut self, payload: Bytes, size: Size) -> bool {
        let before = self.size.replace(size);
        if before != Some(size) {
            self.source.set_caps(Some(&caps(self.codec, size)));
        }
        // Its parts are told what comes before they are told to begin.
        if before.is_none() && !self.begin() {
            return false;
        }
        // GStreamer would show what is left of the one before.
        let whole = (u64::from(size.width) * u64::from(size.height)).saturating_mul(4);
        if self.codec == Codec::Bgra && payload.len() as u64 != whole {
            let length = payload.len();
            gst::element_error!(
                self.source,
                gst::StreamError::Format,
                ("a frame of {length} bytes, and {whole} are needed")
            );
            return false;
        }
        let mut tries = PATIENCE.as_millis() / BEHIND.as_millis();
        while self.source.property::<u64>("current-level-buffers") >= AHEAD {
            tries = tries.saturating_sub(1);
            if tries == 0 {
                return false;
            }
            std::thread::sleep(BEHIND);
        }
        self.source.push_buffer(gst::Buffer::from_slice(payload)).is_ok()
    }
}

impl Window {
    fn begin(&self) -> bool {
        if self.pipeline.set_state(gst::State::Playing).is_err() {
            return false;
        }
        let mut tags = gst::TagList::new();
        tags.make_mut().add::<gst::tags::Title>(&&*self.title, gst::TagMergeMode::Replace);
        self.source.send_event(gst::event::Tag::new(tags))
    }
}

/// How long a decoder may be stuck: longer than the slowest takes for a keyframe.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a window has to close. One on a desktop that does not answer never does.
const CLOSING: Duration = Duration::from_secs(1);

impl Drop for Window {
    fn drop(&mut self) {
        let pipeline = self.pipeline.clone();
        let (closed, done) = mpsc::channel();
        let closing = move || {
            let _ = pipeline.set_state(gst::State::Null);
            let _ = closed.send(());
        };
        // Not joined: what is stuck goes with the process.
        if std::thread::Builder::new().name("closing".to_owned()).spawn(closing).is_ok() {
            let _ = done.recv_timeout(CLOSING);
        }
    }
}

/// What a message says has ended it.
fn ending(message: &gst::Message) -> Option<Error> {
    match message.view() {
        gst::MessageView::Error(said) => {
            let closed = gst::ResourceError::NotFound;
            let by_sink = message.src().is_some_and(is_sink);
            if by_sink && said.error().matches(closed) {
                return Some(Error::new(Kind::Cancelled, "the window was closed"));
            }
            // What it says to programmers has the reason, after where it is in the code.
            let why = said.debug().map(|it| it.to_string());
            let why = why.as_deref().and_then(|it| it.lines().last()).unwrap_or_default();
            Some(broken(said.error()).with("gstreamer", why))
        }
        gst::MessageView::Eos(_) => Some(Error::new(Kind::Cancelled, "the window was closed")),
        _ => None,
    }
}

fn is_sink(object: &gst::Object) -> bool {
    let name = object.downcast_ref::<gst::Element>().and_then(gst::Element::factory);
    name.is_some_and(|factory| SINKS.iter().any(|(sink, _)| *sink == factory.name()))
}

fn broken(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::because(Cause::NoDecoder, "GStreamer cannot show the stream").source(source)
}

/// A part of a pipeline that every pipeline has.
#[derive(Debug)]
struct Missing(&'static str);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "it has no {}", self.0)
    }
}

impl std::error::Error for Missing {}

fn element(name: &'static str, package: &str) -> Result<gst::Element> {
    gst::ElementFactory::make(name).build().map_err(|error| {
        Error::new(Kind::HostCapabilityMissing, format!("GStreamer's `{name}` is missing here"))
            .hint(format!("Install it: `apt install {package}`"))
            .source(error)
    })
}

/// The first sink that is here and finds a desktop.
fn sink(options: &Options) -> Result<gst::Element> {
    let mut installed = false;
    for (name, _) in SINKS {
        let Ok(sink) = gst::ElementFactory::make(name).build() else { continue };
        installed = true;
        let on_x = sink.has_property("display");
        match &options.display {
            Some(display) if on_x => sink.set_property("display", display),
            Some(_) => continue,
            // It complains aloud where there is none.
            None if name == WAYLAND && !options.wayland => continue,
            None => {}
        }
        // What is late is shown late: there is nothing better to show.
        sink.set_property("sync", false);
        sink.set_property("qos", false);
        let found = sink.set_state(gst::State::Ready).is_ok();
        let _ = sink.set_state(gst::State::Null);
        if found {
            return Ok(sink);
        }
    }
    if !installed {
        let [x, wayland] = [SINKS[2].1, SINKS[0].1];
        return Err(Error::new(
            Kind::HostCapabilityMissing,
            "GStreamer has nothing here that shows video",
        )
        .hint(format!(
            "Install it: `apt install {x}` where the desktop is X11, `{wayland}` where it is Wayland"
        )));
    }
    Err(Error::new(Kind::HostCapabilityMissing, "there is no desktop here to open a window on")
        .hint("Run it on a desktop, with DISPLAY or WAYLAND_DISPLAY set; or look at it in a browser: `spaceport open`"))
}

fn caps(codec: Codec, size: Size) -> gst::Caps {
    match codec {
        Codec::H264 => gst::Caps::builder("video/x-h264")
            .field("stream-format", "byte-stream")
            .field("alignment", "au")
            .build(),
        Codec::Vp8 => gst::Caps::new_empty_simple("video/x-vp8"),
        Codec::Vp9 => gst::Caps::new_empty_simple("video/x-vp9"),
        Codec::Av1 => gst::Caps::builder("video/x-av1")
            .field("stream-format", "obu-stream")
            .field("alignment", "tu")
            .build(),
        Codec::Png => {
            gst::Caps::builder("image/png").field("framerate", gst::Fraction::new(0, 1)).build()
        }
        _ => gst::Caps::builder("video/x-raw")
            .field("format", "BGRx")
            .field("width", size.width.cast_signed())
            .field("height", size.height.cast_signed())
            .field("framerate", gst::Fraction::new(0, 1))
            .build(),
    }
}

/// The Debian package of a decoder.
fn decoder_package(codec: Codec) -> &'static str {
    match codec {
        Codec::H264 => "gstreamer1.0-libav",
        Codec::Av1 => BAD,
        _ => GOOD,
    }
}
