//! One encoded frame, and what it is of.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::Geometry;

/// How a frame is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Codec {
    /// H.264; an Annex B access unit, parameter sets before every IDR.
    H264,
    /// VP8; one frame (RFC 6386).
    Vp8,
    /// VP9; one frame, superframes whole.
    Vp9,
    /// AV1; one temporal unit in the low-overhead format.
    Av1,
    /// Uncompressed, top-down, four bytes a pixel.
    Bgra,
    /// One PNG file a frame.
    Png,
}

impl Codec {
    /// The name used in media messages and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::H264 => "h264",
            Self::Vp8 => "vp8",
            Self::Vp9 => "vp9",
            Self::Av1 => "av1",
            Self::Bgra => "bgra",
            Self::Png => "png",
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a stream shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Target {
    /// A whole display, by the id that `ListDisplays` gave.
    Display {
        /// The id of the display.
        display_id: String,
    },
    /// One window, with the menus and tooltips that belong to it.
    Window {
        /// The id that a list of windows gave. Never the window system's own.
        handle: String,
        /// Tells apart windows that had the same id at different times.
        epoch: u64,
    },
    /// A generated picture with a counter in it, for tests and for people without a desktop.
    TestPattern,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Display { display_id } => write!(f, "display `{display_id}`"),
            Self::Window { handle, .. } => write!(f, "window `{handle}`"),
            Self::TestPattern => f.write_str("the test pattern"),
        }
    }
}

/// One encoded frame. Cloning it is cheap: the payload is shared.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Counts the frames of one target over all its streams. Strictly rising for any viewer; a gap
    /// is a frame that was replaced by a newer one.
    pub sequence: u64,
    /// How the payload is encoded.
    pub codec: Codec,
    /// Whether a decoder can start here.
    pub keyframe: bool,
    /// Counts encoder replacements; starts at 1, and the first frame of each is a keyframe.
    pub codec_epoch: u32,
    /// What the frame shows. Its `frame_size` is the true size; the coded size may be padded.
    pub geometry: Geometry,
    /// When the pixels were read, on the clock that all of a server's media share.
    pub captured_at: Duration,
    /// How long encoding took.
    pub encode_duration: Duration,
    /// The encoded bytes.
    pub payload: Bytes,
}
