//! Encoders behind one trait.
//!
//! An encoder belongs to one pipeline thread and does everything on it: converts what changed
//! (`convert`), encodes, and hands out the bytes. Which encoders there are is one table,
//! [`candidates`]; [`open`] takes the first that opens, in the order of [`ranked`].

mod bitstream;
mod convert;
mod gst;
#[cfg(feature = "x264")]
mod motion;
mod pixels;
mod png;
mod probe;
#[cfg(feature = "x264")]
mod rate;
#[cfg(test)]
mod tests;
#[cfg(feature = "x264")]
mod x264;

use std::time::Duration;

use bytes::Bytes;
use spaceport_types::{Bitrate, Cause, Codec, Error, Kind, Result, Size};

use crate::Frame;

pub use probe::{ProbeResult, probe, ranked};

/// How one frame is to be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Only what the damage list names has changed.
    #[default]
    Delta,
    /// A picture a decoder can start from: an IDR with its parameter sets.
    Keyframe,
    /// Nothing changed; spend bits on making the standing picture sharper.
    Refine,
}

/// One encoded picture.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// As [`Codec`] says. H.264 has SPS and PPS before every IDR, AV1 a sequence header before every
    /// keyframe.
    pub payload: Bytes,
    /// Whether a decoder can start here.
    pub keyframe: bool,
}

/// Turns pictures into packets, one in, at most one out, never reordered.
pub trait Encoder: Send {
    /// The codec of what comes out.
    fn codec(&self) -> Codec;

    /// The implementation, as it is reported: `x264`, `openh264enc`, `vp8enc`.
    fn name(&self) -> &'static str;

    /// Encodes `frame`. `None` when the encoder had nothing to say (its rate control skipped it).
    ///
    /// # Errors
    ///
    /// `stream` with cause `encoder_failed`. The caller replaces the encoder.
    fn encode(&mut self, frame: &Frame<'_>, mode: Mode) -> Result<Option<Encoded>>;

    /// Caps the rate from the next frame on, without a keyframe.
    ///
    /// # Errors
    ///
    /// As [`Encoder::encode`].
    fn set_bitrate(&mut self, bitrate: Bitrate) -> Result<()>;
}

/// What an encoder is made for. A change of size or codec needs a new encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The codec to produce.
    pub codec: Codec,
    /// The size of the captured picture.
    pub source: Size,
    /// The size to encode at; never larger than `source`, equal to it when nothing is scaled.
    /// Odd sides are padded to even by repeating the last row and column.
    pub size: Size,
    /// Upper bound of the rate.
    pub bitrate: Bitrate,
    /// The highest frame rate that will be asked for.
    pub max_fps: u32,
    /// How long a frame of average size may take on the wire at `bitrate`; bounds the VBV buffer.
    pub latency: Duration,
}

/// What the caller would rather have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preference {
    /// Of what is lossy, only this implementation, by the name [`Encoder::name`] reports; of what loses
    /// nothing, where that is one of those. Unset: the first of [`ranked`] that opens.
    pub encoder: Option<String>,
    /// Every picture at this quantizer, on the encoder's own scale, whatever the rate: to compare
    /// encoders, not to stream. What loses nothing has none and ignores it.
    pub quantizer: Option<u8>,
}

impl Preference {
    /// The implementation insisted on for streams of `codec`. What loses nothing is no rival of a lossy
    /// one: whoever insists on a video encoder still gets a picture as PNG.
    pub fn encoder_for(&self, codec: Codec) -> Option<&str> {
        let name = self.encoder.as_deref()?;
        let rivals =
            CANDIDATES.iter().any(|it| it.name == name && !lossy(it.codec)) || lossy(codec);
        rivals.then_some(name)
    }

    /// The codecs that streams can have, the best first: those that an encoder works for, and for which
    /// the one that is insisted on is not another's.
    pub fn codecs(&self) -> Vec<Codec> {
        let mut codecs = Vec::new();
        for result in probe() {
            let offered = match self.encoder_for(result.codec) {
                // Also one that the probe had doubts about: it fails with its reason.
                Some(name) => name == result.name,
                None => result.works,
            };
            if offered && !codecs.contains(&result.codec) {
                codecs.push(result.codec);
            }
        }
        codecs
    }

    /// Checks that there is such an encoder, whether or not it works here.
    ///
    /// # Errors
    ///
    /// `invalid_argument` naming those there are.
    pub fn check(&self) -> Result<()> {
        let Some(name) = &self.encoder else { return Ok(()) };
        if CANDIDATES.iter().any(|candidate| candidate.name == name) {
            return Ok(());
        }
        let names: Vec<_> = CANDIDATES.iter().map(|candidate| candidate.name).collect();
        let message = format!("no encoder is called `{}`", name.escape_debug());
        Err(Error::new(Kind::InvalidArgument, message)
            .with("encoder", name.escape_debug())
            .hint(format!("Choose one of: {}", names.join(", "))))
    }
}

/// One implementation that this build knows of, whether or not this machine has it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Candidate {
    /// As [`Encoder::name`] reports it.
    pub name: &'static str,
    /// What it produces.
    pub codec: Codec,
    /// What it does less well than the best, for capability reports.
    pub limitation: Option<&'static str>,
    /// The device it works on, if that is not the processor.
    device: Option<&'static gst::Device>,
    open: Open,
}

/// How a candidate is opened.
#[derive(Clone, Copy, Debug)]
enum Open {
    Element(&'static gst::Kind),
    Own(OpenOwn),
}

/// Opens one of our own, at a fixed quantizer if there is one.
type OpenOwn = fn(&Config, Option<u8>) -> Result<Box<dyn Encoder>>;

/// The one list of implementations. Of each codec, those in software come best first; those in
/// hardware come after them, and [`ranked`] decides.
const CANDIDATES: &[Candidate] = &[
    #[cfg(feature = "x264")]
    Candidate {
        name: X264_NAME,
        codec: Codec::H264,
        limitation: None,
        device: None,
        open: Open::Own(|config, quantizer| Ok(Box::new(x264::X264::open(config, quantizer)?))),
    },
    Candidate::element(
        &gst::OPENH264,
        "takes about four times the CPU of x264, and exceeds the bitrate on noisy video",
    ),
    Candidate::element(&gst::VA, HARDWARE),
    Candidate::element(&gst::VA_LOW_POWER, HARDWARE),
    Candidate::element(&gst::VAAPI, HARDWARE),
    Candidate::element(&gst::NVIDIA_H264, HARDWARE),
    Candidate::element(&gst::V4L2_H264, HARDWARE),
    Candidate::element(
        &gst::VP8,
        "takes about four times the CPU of H.264, and scrolling ten times the bits",
    ),
    Candidate::element(
        &gst::VP9,
        "takes about four times the CPU of H.264, and scrolling seven times the bits",
    ),
    Candidate::element(
        &gst::AV1,
        "takes five to fourteen times the CPU of H.264, and a keyframe of 1920x1080 0.3 s",
    ),
    Candidate {
        name: PNG_NAME,
        codec: Codec::Png,
        limitation: Some(LOSSLESS),
        device: None,
        open: Open::Own(|config, _| Ok(Box::new(png::Png::open(config)?))),
    },
    Candidate {
        name: RAW_NAME,
        codec: Codec::Bgra,
        limitation: Some(LOSSLESS),
        device: None,
        open: Open::Own(|config, _| Ok(Box::new(pixels::Raw::open(config)?))),
    },
];

const HARDWARE: &str = "is not told what changed, so a small change takes more bits than with x264";
const LOSSLESS: &str =
    "loses nothing, whatever the rate; 30 pictures of 1920x1080 a second at most";

impl Candidate {
    const fn element(kind: &'static gst::Kind, limitation: &'static str) -> Self {
        Self {
            name: kind.name,
            codec: kind.codec,
            limitation: Some(limitation),
            device: kind.device.as_ref(),
            open: Open::Element(kind),
        }
    }

    fn open(&self, config: &Config, quantizer: Option<u8>) -> Result<Box<dyn Encoder>> {
        match self.open {
            Open::Element(kind) => Ok(Box::new(gst::Gst::open(kind, config, quantizer)?)),
            Open::Own(open) => open(config, quantizer),
        }
    }
}

/// How our own encoders are reported.
const PNG_NAME: &str = "png";
const RAW_NAME: &str = "raw";

/// How libx264 is reported.
#[cfg(feature = "x264")]
const X264_NAME: &str = "x264";

/// The implementations of `codec` that this build knows of.
pub fn candidates(codec: Codec) -> Vec<Candidate> {
    CANDIDATES.iter().filter(|candidate| candidate.codec == codec).copied().collect()
}

/// Whether a picture can be made sharper than it came out. Without that, every picture is whole.
pub const fn lossy(codec: Codec) -> bool {
    !matches!(codec, Codec::Bgra | Codec::Png)
}

/// The most pictures of `size` that are worth encoding in a second, whatever viewers want: a codec
/// that leaves nothing out has no other way to spare the machine.
pub fn max_fps(codec: Codec, size: Size) -> u32 {
    match codec {
        Codec::Png => png::Png::max_fps(size),
        Codec::Bgra => pixels::Raw::max_fps(size),
        _ => u32::MAX,
    }
}

/// Opens the best encoder for `config`.
///
/// # Errors
///
/// `stream` with cause `codec_unavailable` when nothing here produces the codec, or not by the
/// name that `preference` insists on; `encoder_failed` when there is an encoder and it refuses
/// `config`.
pub fn open(config: &Config, preference: &Preference) -> Result<Box<dyn Encoder>> {
    let wanted = preference.encoder_for(config.codec);
    let candidates = match wanted {
        // Also one that the probe had doubts about.
        Some(_) => candidates(config.codec),
        None => ranked(config.codec),
    };
    let mut refusal = None;
    for candidate in &candidates {
        if wanted.is_some_and(|name| name != candidate.name) {
            continue;
        }
        match candidate.open(config, preference.quantizer) {
            Ok(encoder) => return Ok(encoder),
            Err(error) => {
                tracing::debug!(encoder = candidate.name, %error, "encoder did not open");
                refusal.get_or_insert(error);
            }
        }
    }
    Err(refusal.unwrap_or_else(|| unavailable(config.codec, wanted, &candidates)))
}

/// There is no candidate to try.
fn unavailable(codec: Codec, wanted: Option<&str>, candidates: &[Candidate]) -> Error {
    let names: Vec<_> = candidates.iter().map(|candidate| candidate.name).collect();
    let message = match wanted {
        Some(name) => format!("there is no encoder `{name}` for {codec}"),
        None => format!("there is no encoder for {codec}"),
    };
    let error = Error::because(Cause::CodecUnavailable, message).with("codec", codec);
    match names.as_slice() {
        [] => error,
        names => error.hint(format!("Choose one of: {}", names.join(", "))),
    }
}
