//! Encoders of GStreamer, behind the same trait.
//!
//! `appsrc ! encoder ! appsink` with nothing that converts: the picture is ours ([`super::convert`])
//! and the encoder's own thread only encodes. One picture is pushed and one packet is waited for,
//! so to the caller it is a function, like libx264. For H.264 where the GPL is not wanted, and for
//! VP8, VP9 and AV1; no element takes hints about what has not changed.

use std::time::Duration;

use bytes::Bytes;
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;
use spaceport_types::{Bitrate, Cause, Codec, Error, Result};

use super::convert::{Canvas, Layout, Matrix};
use super::{Config, Encoded, Encoder, Mode, bitstream};
use crate::Frame;

/// How long one frame may take: longer than the slowest encoder needs for a 4K keyframe on one
/// loaded core, shorter than a viewer waits before it asks what is wrong.
const FRAME_TIMEOUT: Duration = Duration::from_secs(2);

/// The smallest step between two time stamps: at 90 kHz, VP8's clock, still 90 ticks.
const MIN_STEP: Duration = Duration::from_millis(1);

/// One element, and what it has to be told.
#[derive(Debug)]
pub(super) struct Kind {
    /// The element.
    pub(super) name: &'static str,
    /// What it produces.
    pub(super) codec: Codec,
    /// The Debian package it is in.
    pub(super) package: &'static str,
    /// Caps of what it is asked for.
    caps: &'static str,
    matrix: Matrix,
    /// Its smallest side.
    min_side: u32,
    /// Whether it makes a keyframe when it is told to. One that does not is started again for each.
    forces_keyframes: bool,
    /// Properties, as `gst-launch` writes them.
    settings: fn(&Config) -> Vec<(&'static str, String)>,
    /// The property that holds the rate, and how many bits per second it counts in.
    bitrate: (&'static str, u64),
}

/// BSD-licensed H.264, in Debian with no separate download.
pub(super) const OPENH264: Kind = Kind {
    name: "openh264enc",
    codec: Codec::H264,
    package: "gstreamer1.0-plugins-bad",
    caps: "video/x-h264,stream-format=byte-stream,alignment=au,profile=constrained-baseline",
    matrix: Matrix::Bt709,
    min_side: 16,
    forces_keyframes: true,
    settings: |_| {
        [
            ("usage-type", "screen"),
            ("complexity", "low"),
            ("rate-control", "bitrate"),
            ("gop-size", "0"),
            // A scene change would be a keyframe nobody asked for.
            ("scene-change-detection", "false"),
            ("enable-frame-skip", "false"),
            ("background-detection", "false"),
            ("adaptive-quantization", "false"),
            ("multi-thread", "1"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec()
    },
    bitrate: ("bitrate", 1),
};

/// VP8 by libvpx, for browsers without H.264 in WebRTC.
pub(super) const VP8: Kind = Kind {
    name: "vp8enc",
    codec: Codec::Vp8,
    package: "gstreamer1.0-plugins-good",
    caps: "video/x-vp8",
    matrix: Matrix::Bt601,
    min_side: 1,
    forces_keyframes: true,
    settings: |config| {
        let latency = config.latency.as_millis();
        let mut settings = [
            ("deadline", "1"),
            // Negative is a fixed speed; positive would follow the load of the machine.
            ("cpu-used", "-12"),
            ("lag-in-frames", "0"),
            ("end-usage", "cbr"),
            ("error-resilient", "0"),
            ("keyframe-mode", "disabled"),
            ("keyframe-max-dist", "2147483647"),
            ("dropframe-threshold", "0"),
            ("static-threshold", "100"),
            // libvpx waits for its other threads in a loop of its own: on two busy cores a second
            // thread made a frame cost up to fifteen times the CPU, and take several times as long.
            ("threads", "1"),
            ("undershoot", "100"),
            ("overshoot", "15"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec();
        settings.extend([
            ("buffer-size", (latency * 2).to_string()),
            ("buffer-initial-size", latency.to_string()),
            ("buffer-optimal-size", latency.to_string()),
        ]);
        settings
    },
    bitrate: ("target-bitrate", 1),
};

/// VP9 by libvpx: half the bits of VP8 where text scrolls, for a third more CPU.
pub(super) const VP9: Kind = Kind {
    name: "vp9enc",
    codec: Codec::Vp9,
    package: "gstreamer1.0-plugins-good",
    // Profile 0 is the one that WebRTC offers mean.
    caps: "video/x-vp9,profile=(string)0",
    matrix: Matrix::Bt601,
    min_side: 1,
    forces_keyframes: true,
    settings: |config| {
        let latency = config.latency.as_millis();
        let mut settings = [
            ("deadline", "1"),
            ("cpu-used", "8"),
            ("lag-in-frames", "0"),
            ("end-usage", "cbr"),
            ("error-resilient", "0"),
            ("keyframe-mode", "disabled"),
            ("keyframe-max-dist", "2147483647"),
            ("dropframe-threshold", "0"),
            ("static-threshold", "0"),
            ("tune-content", "screen"),
            // What stands still becomes sharper a part at a time.
            ("aq-mode", "cyclic-refresh"),
            ("frame-parallel-decoding", "false"),
            ("threads", "1"),
            ("row-mt", "false"),
            ("tile-columns", "0"),
            ("undershoot", "100"),
            ("overshoot", "15"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec();
        settings.extend([
            ("buffer-size", (latency * 2).to_string()),
            ("buffer-initial-size", latency.to_string()),
            ("buffer-optimal-size", latency.to_string()),
        ]);
        settings
    },
    bitrate: ("target-bitrate", 1),
};

/// AV1 by libaom: the fewest bits, and keyframes that take 300 ms.
pub(super) const AV1: Kind = Kind {
    name: "av1enc",
    codec: Codec::Av1,
    package: "gstreamer1.0-plugins-bad",
    caps: "video/x-av1",
    matrix: Matrix::Bt601,
    min_side: 4,
    forces_keyframes: false, // as of GStreamer 1.22
    settings: |config| {
        let latency = config.latency.as_millis();
        let mut settings = [
            ("usage-profile", "realtime"),
            ("cpu-used", "10"),
            ("lag-in-frames", "0"),
            // With "cbr", libaom 3.6 leaves blocks as they were that have changed altogether.
            ("end-usage", "vbr"),
            ("keyframe-mode", "disabled"),
            ("keyframe-max-dist", "2147483647"),
            // The default is lossless, whatever the rate.
            ("min-quantizer", "2"),
            ("max-quantizer", "58"),
            ("drop-frame", "0"),
            ("threads", "1"),
            ("row-mt", "false"),
            ("undershoot-pct", "100"),
            ("overshoot-pct", "15"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec();
        settings.extend([
            ("buf-sz", (latency * 2).to_string()),
            ("buf-initial-sz", latency.to_string()),
            ("buf-optimal-sz", latency.to_string()),
        ]);
        settings
    },
    bitrate: ("target-bitrate", 1_000),
};

/// A running element.
#[derive(Debug)]
pub(super) struct Gst {
    kind: &'static Kind,
    canvas: Canvas,
    pipeline: gst::Pipeline,
    source: gst_app::AppSrc,
    element: gst::Element,
    sink: gst_app::AppSink,
    /// The one picture buffer, written again once the encoder has let go of it.
    picture: gst::Buffer,
    /// The time stamp of the last picture; `None` before the first, which is a keyframe anyway.
    last: Option<Duration>,
}

impl Gst {
    pub(super) fn open(kind: &'static Kind, config: &Config) -> Result<Self> {
        gst::init().map_err(|error| {
            Error::because(Cause::CodecUnavailable, "GStreamer could not be initialised")
                .source(error)
                .hint("Install libgstreamer1.0-0 and gstreamer1.0-plugins-base")
        })?;
        let canvas = Canvas::new(Layout::I420, kind.matrix, config.source, config.size);
        let coded = canvas.coded();
        if coded.width.min(coded.height) < kind.min_side {
            return Err(Error::because(
                Cause::EncoderFailed,
                format!(
                    "`{}` encodes no pictures smaller than {} pixels",
                    kind.name, kind.min_side
                ),
            ));
        }
        let element = gst::ElementFactory::make(kind.name).build().map_err(|_| missing(kind))?;
        for (name, value) in (kind.settings)(config) {
            // Versions differ in what they know; what is left out is the element's default.
            if let Some(property) = element.find_property(name)
                && let Ok(value) = gst::glib::Value::deserialize(&value, property.value_type())
            {
                element.set_property_from_value(name, &value);
            }
        }
        let colorimetry = match kind.matrix {
            Matrix::Bt601 => "bt601",
            Matrix::Bt709 => "bt709",
        };
        let input = gst::Caps::builder("video/x-raw")
            .field("format", "I420")
            .field("width", coded.width as i32)
            .field("height", coded.height as i32)
            .field("framerate", gst::Fraction::new(config.max_fps.clamp(1, 240) as i32, 1))
            .field("colorimetry", colorimetry)
            .build();
        let output: gst::Caps = kind.caps.parse().map_err(|error| {
            Error::new(spaceport_types::Kind::Internal, "encoder caps do not parse").source(error)
        })?;
        let source = gst_app::AppSrc::builder().caps(&input).format(gst::Format::Time).build();
        let sink = gst_app::AppSink::builder().caps(&output).sync(false).max_buffers(2).build();
        let pipeline = gst::Pipeline::new();
        let mut gst = Self {
            kind,
            picture: picture(&canvas),
            canvas,
            pipeline,
            source,
            element,
            sink,
            last: None,
        };
        gst.set_bitrate(config.bitrate)?;
        let elements = [gst.source.upcast_ref(), &gst.element, gst.sink.upcast_ref()];
        gst.pipeline.add_many(elements).map_err(|error| gst.failed().source(error))?;
        gst::Element::link_many(elements).map_err(|error| gst.failed().source(error))?;
        gst.set_state(gst::State::Playing)?;
        Ok(gst)
    }

    fn set_state(&self, state: gst::State) -> Result<()> {
        let changed = self.pipeline.set_state(state);
        changed.map(|_| ()).map_err(|error| self.failed().source(error))
    }

    /// The error that is on the bus, or that nothing came out.
    fn failed(&self) -> Error {
        let reason = self.pipeline.bus().and_then(|bus| {
            let message = bus.pop_filtered(&[gst::MessageType::Error])?;
            match message.view() {
                gst::MessageView::Error(error) => Some(error.error()),
                _ => None,
            }
        });
        let error = Error::because(
            Cause::EncoderFailed,
            format!("`{}` did not encode a frame", self.kind.name),
        );
        match reason {
            Some(reason) => error.source(reason),
            None => error,
        }
    }

    /// Sees to it that the next picture becomes a keyframe.
    fn force_keyframe(&self) -> Result<()> {
        if self.last.is_none() {
            return Ok(());
        }
        if !self.kind.forces_keyframes {
            self.set_state(gst::State::Null)?;
            return self.set_state(gst::State::Playing);
        }
        let event = gst_video::UpstreamForceKeyUnitEvent::builder().all_headers(true).build();
        // Refused only by an element that is shutting down, which the next push finds out.
        self.sink.send_event(event);
        Ok(())
    }
}

impl Encoder for Gst {
    fn codec(&self) -> Codec {
        self.kind.codec
    }

    fn name(&self) -> &'static str {
        self.kind.name
    }

    fn encode(&mut self, frame: &Frame<'_>, mode: Mode) -> Result<Option<Encoded>> {
        self.canvas.update(frame)?;
        if mode == Mode::Keyframe {
            self.force_keyframe()?;
        }
        let least = self.last.map_or(Duration::ZERO, |last| last + MIN_STEP);
        let time = frame.captured_at.max(least);
        self.last = Some(time);
        let picture = self.picture.make_mut();
        picture.set_pts(gst::ClockTime::from_nseconds(time.as_nanos() as u64));
        let copied = picture.copy_from_slice(0, self.canvas.planes());
        copied.map_err(|_| self.failed())?;
        self.source.push_buffer(self.picture.clone()).map_err(|_| self.failed())?;
        let timeout = gst::ClockTime::from_nseconds(FRAME_TIMEOUT.as_nanos() as u64);
        let sample = self.sink.try_pull_sample(timeout).ok_or_else(|| self.failed())?;
        let buffer = sample.buffer_owned().ok_or_else(|| self.failed())?;
        let map = buffer.into_mapped_buffer_readable().map_err(|_| self.failed())?;
        let mut payload = Bytes::copy_from_slice(map.as_slice());
        let keyframe = bitstream::is_keyframe(self.kind.codec, &payload);
        // libaom is not told what it could say.
        if self.kind.codec == Codec::Av1
            && keyframe
            && let Some(described) = bitstream::av1_with_colors(&payload)
        {
            payload = described.into();
        }
        Ok(Some(Encoded { payload, keyframe }))
    }

    fn set_bitrate(&mut self, bitrate: Bitrate) -> Result<()> {
        // The narrower of the two property types; nobody sends a screen at 2 Gbit/s.
        let bps = bitrate.bps().min(i32::MAX as u64);
        let (property, unit) = self.kind.bitrate;
        self.element.set_property_from_str(property, &(bps / unit).max(1).to_string());
        Ok(())
    }
}

impl Drop for Gst {
    fn drop(&mut self) {
        // Nothing can be done about an element that does not stop, and nothing more is asked of it.
        let _stopped = self.pipeline.set_state(gst::State::Null);
    }
}

/// A buffer for the planes of `canvas`, which says how they lie.
fn picture(canvas: &Canvas) -> gst::Buffer {
    let (width, height) = (canvas.coded().width as usize, canvas.coded().height as usize);
    let (luma, chroma) = (width * height, width / 2 * (height / 2));
    let mut buffer = gst::Buffer::from_mut_slice(vec![0u8; luma + 2 * chroma]);
    let added = gst_video::VideoMeta::add_full(
        buffer.make_mut(),
        gst_video::VideoFrameFlags::empty(),
        gst_video::VideoFormat::I420,
        canvas.coded().width,
        canvas.coded().height,
        &[0, luma, luma + chroma],
        &[width as i32, width as i32 / 2, width as i32 / 2],
    );
    debug_assert!(added.is_ok(), "a new buffer of the right size takes a description");
    buffer
}

fn missing(kind: &Kind) -> Error {
    Error::because(Cause::CodecUnavailable, format!("encoder `{}` is not installed", kind.name))
        .with("encoder", kind.name)
        .hint(format!("Install {}", kind.package))
}
