//! Encoders behind one trait.

use std::time::Duration;

use bytes::Bytes;
use spaceport_types::{Bitrate, Codec, Result, Size};

use crate::Frame;

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
    /// H.264: one Annex B access unit, SPS and PPS before every IDR. VP8: one frame.
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
