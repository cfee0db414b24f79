//! Encoders of GStreamer, behind the same trait.
//!
//! `appsrc ! encoder ! appsink` with nothing that converts: the picture is ours ([`super::convert`])
//! and the encoder's own thread only encodes. One picture is pushed and one packet is waited for,
//! so to the caller it is a function, like libx264. For H.264 where the GPL is not wanted or the
//! machine has hardware for it, and for VP8, VP9 and AV1; no element takes hints about what has not
//! changed.

use std::time::Duration;

use bytes::Bytes;
use gstreamer as gst;
use gstreamer::glib::{ParamSpecInt, ParamSpecUInt};
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
    /// The device it works on, where that is not the processor.
    pub(super) device: Option<Device>,
    /// Caps of what it is asked for.
    caps: &'static str,
    layout: Layout,
    matrix: Matrix,
    /// Its smallest side.
    min_side: u32,
    /// Whether it makes a keyframe when it is told to. One that does not is started again for each.
    forces_keyframes: bool,
    /// Properties, as `gst-launch` writes them.
    settings: fn(&Config) -> Vec<(&'static str, String)>,
    /// The property that holds the rate, and its value for one in bits per second.
    bitrate: (&'static str, fn(u64) -> String),
    /// The properties that bound its quantizer; none where a device decides.
    quantizer: &'static [&'static str],
    /// The finest quantizers that are of use, of what changes and of what stands still; `None` for
    /// an encoder that knows by itself when to stop.
    finest: Option<[u8; 2]>,
}

/// A device that encodes.
#[derive(Debug)]
pub(super) struct Device {
    /// What it is.
    name: &'static str,
    /// Where it is found: a directory, and how the names of its files begin.
    node: (&'static str, &'static str),
}

impl Device {
    /// Whether this machine has one; if not, why one that has may not find it either.
    pub(super) fn check(&self) -> Result<()> {
        let (directory, prefix) = self.node;
        let found = std::fs::read_dir(directory).is_ok_and(|entries| {
            let mut names = entries.flatten().map(|entry| entry.file_name());
            names.any(|name| name.to_string_lossy().starts_with(prefix))
        });
        if found {
            return Ok(());
        }
        let message = format!("there is no {}: no {directory}/{prefix}*", self.name);
        Err(Error::because(Cause::CodecUnavailable, message)
            .hint("In a container, pass the device in"))
    }
}

/// A GPU with a driver of the kernel's own.
const RENDER: Device = Device { name: "GPU", node: ("/dev/dri", "renderD") };
const NVIDIA: Device = Device { name: "NVIDIA GPU", node: ("/dev", "nvidiactl") };
const V4L2: Device = Device { name: "video device", node: ("/dev", "video") };

/// Of libvpx and libaom, from 0 to 63.
const QUANTIZERS: &[&str] = &["min-quantizer", "max-quantizer"];

/// Bits per second, as most elements count.
fn bits(bps: u64) -> String {
    bps.to_string()
}

fn kilobits(bps: u64) -> String {
    (bps / 1_000).max(1).to_string()
}

/// BSD-licensed H.264, in Debian with no separate download.
pub(super) const OPENH264: Kind = Kind {
    name: "openh264enc",
    codec: Codec::H264,
    package: "gstreamer1.0-plugins-bad",
    device: None,
    caps: "video/x-h264,stream-format=byte-stream,alignment=au,profile=constrained-baseline",
    layout: Layout::I420,
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
    bitrate: ("bitrate", bits),
    quantizer: &["qp-min", "qp-max"],
    finest: None,
};

/// VP8 by libvpx, for browsers without H.264 in WebRTC.
pub(super) const VP8: Kind = Kind {
    name: "vp8enc",
    codec: Codec::Vp8,
    package: "gstreamer1.0-plugins-good",
    device: None,
    caps: "video/x-vp8",
    layout: Layout::I420,
    matrix: Matrix::Bt601,
    min_side: 1,
    forces_keyframes: true,
    settings: |config| {
        // Negative is a fixed speed; positive would follow the load of the machine.
        libvpx(config, &[("cpu-used", "-12"), ("static-threshold", "100")])
    },
    bitrate: ("target-bitrate", bits),
    quantizer: QUANTIZERS,
    // In change so sharp that a bar of one colour stays that colour, in rest as sharp as x264. To a
    // constant rate, a caret is reason to make the whole picture as sharp as 8 Mbit/s can.
    finest: Some([10, 4]),
};

/// VP9 by libvpx: little more than half the bits of VP8 where text scrolls, for a sixth more CPU.
pub(super) const VP9: Kind = Kind {
    name: "vp9enc",
    codec: Codec::Vp9,
    package: "gstreamer1.0-plugins-good",
    device: None,
    // Profile 0 is the one that WebRTC offers mean.
    caps: "video/x-vp9,profile=(string)0",
    layout: Layout::I420,
    matrix: Matrix::Bt601,
    min_side: 1,
    forces_keyframes: true,
    settings: |config| {
        let own = [
            // The fastest: at 8, text that scrolls takes 35 ms a picture and one processor does not
            // keep up with 30 a second; at 9, 27 ms, for 7 in 100 more bits.
            ("cpu-used", "9"),
            ("static-threshold", "0"),
            ("tune-content", "screen"),
            // What stands still becomes sharper a part at a time.
            ("aq-mode", "cyclic-refresh"),
            ("frame-parallel-decoding", "false"),
            ("row-mt", "false"),
            ("tile-columns", "0"),
        ];
        libvpx(config, &own)
    },
    bitrate: ("target-bitrate", bits),
    quantizer: QUANTIZERS,
    finest: Some([18, 8]),
};

/// The settings of VP8 and VP9 alike, with a codec's own.
fn libvpx(config: &Config, own: &[(&'static str, &'static str)]) -> Vec<(&'static str, String)> {
    let alike = [
        ("deadline", "1"),
        ("lag-in-frames", "0"),
        ("end-usage", "cbr"),
        ("error-resilient", "0"),
        ("keyframe-mode", "disabled"),
        ("keyframe-max-dist", "2147483647"),
        ("dropframe-threshold", "0"),
        // libvpx waits for its other threads in a loop of its own: on two busy cores a second
        // thread made a frame cost up to fifteen times the CPU, and take several times as long.
        ("threads", "1"),
        ("undershoot", "100"),
        ("overshoot", "15"),
    ];
    let latency = config.latency.as_millis();
    let buffer = [
        ("buffer-size", (latency * 2).to_string()),
        ("buffer-initial-size", latency.to_string()),
        ("buffer-optimal-size", latency.to_string()),
    ];
    let fixed = alike.iter().chain(own).map(|&(name, value)| (name, value.to_owned()));
    fixed.chain(buffer).collect()
}

/// AV1 by libaom: the fewest bits of film, the most of text that scrolls (its tools for screens are
/// out of reach of GStreamer 1.22), and keyframes that take 0.3 s.
pub(super) const AV1: Kind = Kind {
    name: "av1enc",
    codec: Codec::Av1,
    package: "gstreamer1.0-plugins-bad",
    device: None,
    caps: "video/x-av1",
    layout: Layout::I420,
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
    bitrate: ("target-bitrate", kilobits),
    quantizer: QUANTIZERS,
    finest: None,
};

/// H.264 by a GPU's VA-API driver, as newer GStreamers reach it.
pub(super) const VA: Kind = Kind {
    name: "vah264enc",
    package: "gstreamer1.0-plugins-bad and the VA-API driver of the GPU",
    device: Some(RENDER),
    settings: |_| va_settings(),
    bitrate: ("bitrate", kilobits),
    ..HARDWARE
};

/// The same by the part of Intel's GPUs that only encodes.
pub(super) const VA_LOW_POWER: Kind = Kind { name: "vah264lpenc", ..VA };

/// H.264 by a GPU's VA-API driver, as older GStreamers reach it.
pub(super) const VAAPI: Kind = Kind {
    name: "vaapih264enc",
    package: "gstreamer1.0-vaapi and the VA-API driver of the GPU",
    device: Some(RENDER),
    settings: |_| {
        [
            ("rate-control", "cbr"),
            ("keyframe-period", "2147483647"),
            ("max-bframes", "0"),
            ("refs", "1"),
            ("cabac", "false"),
            ("dct8x8", "false"),
            ("quality-level", "7"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec()
    },
    bitrate: ("bitrate", kilobits),
    ..HARDWARE
};

/// H.264 by an NVIDIA GPU.
pub(super) const NVIDIA_H264: Kind = Kind {
    name: "nvh264enc",
    package: "gstreamer1.0-plugins-bad and the NVIDIA driver's libnvidia-encode1",
    device: Some(NVIDIA),
    settings: |_| {
        [
            // Names of presets differ between versions; what is not known is left out.
            ("preset", "low-latency-hp"),
            ("preset", "p2"),
            ("tune", "ultra-low-latency"),
            ("rc-mode", "cbr"),
            ("gop-size", "-1"),
            ("bframes", "0"),
            ("rc-lookahead", "0"),
            ("zerolatency", "true"),
            ("aud", "false"),
            ("repeat-sequence-header", "true"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec()
    },
    bitrate: ("bitrate", kilobits),
    ..HARDWARE
};

/// H.264 by the video block of a small board.
pub(super) const V4L2_H264: Kind = Kind {
    name: "v4l2h264enc",
    package: "gstreamer1.0-plugins-good",
    device: Some(V4L2),
    // Drivers refuse to choose a level themselves.
    caps: "video/x-h264,stream-format=byte-stream,alignment=au,profile=constrained-baseline,\
           level=(string)4",
    settings: |_| Vec::new(),
    bitrate: ("extra-controls", |bps| {
        format!(
            "controls,repeat_sequence_header=1,h264_i_frame_period=2147483647,\
             video_bitrate_mode=1,video_bitrate={bps}"
        )
    }),
    ..HARDWARE
};

/// What encoders in hardware have in common.
const HARDWARE: Kind = Kind {
    name: "",
    codec: Codec::H264,
    package: "",
    device: None,
    caps: "video/x-h264,stream-format=byte-stream,alignment=au,profile=constrained-baseline",
    layout: Layout::Nv12,
    matrix: Matrix::Bt709,
    min_side: 128,
    forces_keyframes: true,
    settings: |_| Vec::new(),
    bitrate: ("bitrate", kilobits),
    quantizer: &[],
    finest: None,
};

fn va_settings() -> Vec<(&'static str, String)> {
    [
        ("rate-control", "cbr"),
        // The most there can be; 0 would be a keyframe every few seconds.
        ("key-int-max", "1024"),
        ("b-frames", "0"),
        ("ref-frames", "1"),
        ("cabac", "false"),
        ("dct8x8", "false"),
        ("aud", "false"),
        ("cc-insert", "false"),
        ("target-usage", "7"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .to_vec()
}

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
    /// The finest quantizer it may use now; `None` while that is its own affair.
    finest: Option<u8>,
}

impl Gst {
    pub(super) fn open(
        kind: &'static Kind,
        config: &Config,
        quantizer: Option<u8>,
    ) -> Result<Self> {
        if let Some(device) = &kind.device {
            device.check()?;
        }
        gst::init().map_err(|error| {
            Error::because(Cause::CodecUnavailable, "GStreamer could not be initialised")
                .source(error)
                .hint("Install libgstreamer1.0-0 and gstreamer1.0-plugins-base")
        })?;
        let canvas = Canvas::new(kind.layout, kind.matrix, config.source, config.size);
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
            set(&element, name, &value);
        }
        if let Some(quantizer) = quantizer {
            if kind.quantizer.is_empty() {
                let message = format!("`{}` takes no fixed quantizer", kind.name);
                return Err(Error::because(Cause::EncoderFailed, message));
            }
            for name in kind.quantizer {
                set(&element, name, &quantizer.to_string());
            }
        }
        let colorimetry = match kind.matrix {
            Matrix::Bt601 => "bt601",
            Matrix::Bt709 => "bt709",
        };
        let input = gst::Caps::builder("video/x-raw")
            .field("format", video_format(kind.layout).to_str())
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
            picture: picture(&canvas, kind.layout),
            canvas,
            pipeline,
            source,
            element,
            sink,
            last: None,
            finest: None,
        };
        gst.finest = kind.finest.filter(|_| quantizer.is_none()).map(|[changing, _]| changing);
        gst.bound_quantizer();
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

    /// Says how fine a picture may become at most.
    fn bound_quantizer(&self) {
        if let (Some(finest), Some(property)) = (self.finest, self.kind.quantizer.first()) {
            set(&self.element, property, &finest.to_string());
        }
    }

    /// Lets a picture that stands still become finer than one that changes.
    fn sharpen(&mut self, mode: Mode) {
        let (Some(now), Some([changing, still])) = (self.finest, self.kind.finest) else { return };
        let finest = if mode == Mode::Refine { still } else { changing };
        if finest != now {
            self.finest = Some(finest);
            self.bound_quantizer();
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
        self.sharpen(mode);
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
        let (property, value) = self.kind.bitrate;
        set(&self.element, property, &value(bps));
        Ok(())
    }
}

impl Drop for Gst {
    fn drop(&mut self) {
        // Nothing can be done about an element that does not stop, and nothing more is asked of it.
        let _stopped = self.pipeline.set_state(gst::State::Null);
    }
}

/// Sets a property that the element has, to a value that it knows, or the nearest that it allows.
fn set(element: &gst::Element, name: &str, value: &str) {
    let Some(property) = element.find_property(name) else { return };
    let signed = property.downcast_ref::<ParamSpecInt>();
    let unsigned = property.downcast_ref::<ParamSpecUInt>();
    let range = signed
        .map(|range| (range.minimum().into(), range.maximum().into()))
        .or(unsigned.map(|range| (range.minimum().into(), range.maximum().into())));
    let nearest = match (range, value.parse::<i64>()) {
        (Some((least, most)), Ok(number)) => number.clamp(least, most).to_string(),
        _ => value.to_owned(),
    };
    if let Ok(value) = gst::glib::Value::deserialize(&nearest, property.value_type()) {
        element.set_property_from_value(name, &value);
    }
}

fn video_format(layout: Layout) -> gst_video::VideoFormat {
    match layout {
        Layout::Nv12 => gst_video::VideoFormat::Nv12,
        Layout::I420 => gst_video::VideoFormat::I420,
    }
}

/// A buffer for the planes of `canvas`, which says how they lie.
fn picture(canvas: &Canvas, layout: Layout) -> gst::Buffer {
    let (width, height) = (canvas.coded().width as usize, canvas.coded().height as usize);
    let (luma, chroma) = (width * height, width / 2 * (height / 2));
    let mut buffer = gst::Buffer::from_mut_slice(vec![0u8; luma + 2 * chroma]);
    let stride = width as i32;
    let (offsets, strides): (&[usize], &[i32]) = match layout {
        Layout::Nv12 => (&[0, luma], &[stride, stride]),
        Layout::I420 => (&[0, luma, luma + chroma], &[stride, stride / 2, stride / 2]),
    };
    let added = gst_video::VideoMeta::add_full(
        buffer.make_mut(),
        gst_video::VideoFrameFlags::empty(),
        video_format(layout),
        canvas.coded().width,
        canvas.coded().height,
        offsets,
        strides,
    );
    debug_assert!(added.is_ok(), "a new buffer of the right size takes a description");
    buffer
}

fn missing(kind: &Kind) -> Error {
    Error::because(Cause::CodecUnavailable, format!("encoder `{}` is not installed", kind.name))
        .with("encoder", kind.name)
        .hint(format!("Install {}", kind.package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_element_does_not_know_is_left_as_it_is() {
        gst::init().unwrap();
        let element = gst::ElementFactory::make(VP9.name).build().unwrap();
        set(&element, "no-such-property", "1");
        set(&element, "end-usage", "no such mode");
        set(&element, "threads", "1000");
        assert_eq!(element.property::<i32>("threads"), 64, "the most it allows");
        set(&element, "threads", "-3");
        assert_eq!(element.property::<i32>("threads"), 0);
    }

    #[test]
    fn a_device_is_looked_for_where_it_would_be() {
        let here = Device { name: "null", node: ("/dev", "nul") };
        here.check().unwrap();
        for node in [("/dev", "no-such-device"), ("/no-such-directory", "")] {
            let error = Device { name: "GPU", node }.check().unwrap_err();
            assert_eq!(error.cause(), Some(Cause::CodecUnavailable));
            assert!(error.to_string().contains("there is no GPU"), "{error}");
        }
    }
}
