//! Pictures that lose nothing: raw pixels, and the part that PNG shares with them.

use bytes::Bytes;
use spaceport_types::{Bitrate, Cause, Codec, Error, Rect, Result, Size};

use super::convert::{Scaler, check};
use super::{Config, Encoded, Encoder, Mode};
use crate::Frame;

/// The largest payload that the media socket carries.
const MAX_PAYLOAD: u64 = 64 << 20;

/// How many bytes of raw pixels are sent in a second: 30 pictures of 1920x1080. Each is copied some
/// four times on its way, which is then a gigabyte a second.
const RAW_BYTES: u64 = 30 * 1920 * 1080 * 4;

/// What changed, in the size that is sent.
#[derive(Debug)]
pub(super) struct Pixels {
    source: Size,
    size: Size,
    scaler: Option<Scaler>,
    damage: Vec<Rect>,
    started: bool,
}

/// Rows of B, G, R, unused, and which of them changed.
#[derive(Debug)]
pub(super) struct Changed<'a> {
    pixels: &'a [u8],
    stride: usize,
    pub(super) damage: &'a [Rect],
}

impl Pixels {
    pub(super) fn open(config: &Config) -> Result<Self> {
        let Config { source, size, .. } = *config;
        if size.bounds().area() * 4 > MAX_PAYLOAD {
            let message = format!("{} has no pictures that large", config.codec);
            return Err(Error::because(Cause::EncoderFailed, message)
                .with("width", size.width)
                .with("height", size.height)
                .hint("Set a smaller `max_dimension`"));
        }
        let scaler = (size != source).then(|| Scaler::new(source, size));
        Ok(Self { source, size, scaler, damage: Vec::new(), started: false })
    }

    /// Scales what `frame` says has changed; everything, the first time.
    pub(super) fn update<'a>(&'a mut self, frame: &Frame<'a>) -> Result<Changed<'a>> {
        check(frame, self.source)?;
        self.damage.clear();
        let whole = [self.source.bounds()];
        let changed = if self.started { frame.damage } else { &whole };
        for rect in changed {
            let Some(rect) = rect.clamped(self.source) else { continue };
            let rect = match &mut self.scaler {
                None => rect,
                Some(scaler) => scaler.scale(frame, rect),
            };
            self.damage.extend(rect.clamped(self.size).filter(|rect| !rect.is_empty()));
        }
        self.started = true;
        let (pixels, stride) = match &self.scaler {
            None => (frame.pixels, frame.stride),
            Some(scaler) => (scaler.pixels(), scaler.stride()),
        };
        Ok(Changed { pixels, stride, damage: &self.damage })
    }
}

impl Changed<'_> {
    /// The pixels of one row, from `x` on, `width` of them.
    pub(super) fn row(&self, y: usize, x: usize, width: usize) -> &[[u8; 4]] {
        let (pixels, _) = self.pixels[y * self.stride + x * 4..][..width * 4].as_chunks();
        pixels
    }
}

/// `bgra`: every picture as it is.
#[derive(Debug)]
pub(super) struct Raw {
    pixels: Pixels,
    /// The last picture, opaque.
    picture: Vec<u8>,
}

impl Raw {
    pub(super) fn open(config: &Config) -> Result<Self> {
        let pixels = Pixels::open(config)?;
        let bytes = config.size.bounds().area() * 4;
        Ok(Self { pixels, picture: vec![0; bytes as usize] })
    }

    /// The most pictures of `size` that are worth sending in a second.
    pub(super) fn max_fps(size: Size) -> u32 {
        let picture = (size.bounds().area() * 4).max(1);
        u32::try_from(RAW_BYTES / picture).unwrap_or(u32::MAX).max(1)
    }
}

impl Encoder for Raw {
    fn codec(&self) -> Codec {
        Codec::Bgra
    }

    fn name(&self) -> &'static str {
        super::RAW_NAME
    }

    fn encode(&mut self, frame: &Frame<'_>, mode: Mode) -> Result<Option<Encoded>> {
        let width = self.pixels.size.width as usize;
        let changed = self.pixels.update(frame)?;
        for rect in changed.damage {
            for y in rect.y as usize..rect.bottom() as usize {
                let source = changed.row(y, rect.x as usize, rect.width as usize);
                let start = (y * width + rect.x as usize) * 4;
                let (target, _) = self.picture[start..][..rect.width as usize * 4].as_chunks_mut();
                for (target, &[b, g, r, _]) in target.iter_mut().zip(source) {
                    *target = [b, g, r, u8::MAX];
                }
            }
        }
        if mode == Mode::Refine {
            return Ok(None);
        }
        Ok(Some(Encoded { payload: Bytes::copy_from_slice(&self.picture), keyframe: true }))
    }

    fn set_bitrate(&mut self, _: Bitrate) -> Result<()> {
        // There is nothing to leave out.
        Ok(())
    }
}
