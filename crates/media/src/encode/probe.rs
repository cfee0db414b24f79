//! Which encoders this machine has, found out by encoding.
//!
//! That an element is installed says little: a driver may be missing, a library may refuse. So each
//! candidate encodes a small picture, and what comes out has to be a frame a decoder can start at.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use spaceport_types::{Bitrate, Cause, Codec, Error, Rect, Result, Size};

use super::{CANDIDATES, Candidate, Config, Mode, bitstream};
use crate::Frame;

/// What became of one candidate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProbeResult {
    /// As [`super::Encoder::name`] reports it.
    pub name: &'static str,
    /// What it produces.
    pub codec: Codec,
    /// Whether frames came out that a decoder can use.
    pub works: bool,
    /// What it does less well than the best, or why it does not work and what to do about it.
    pub limitation: Option<String>,
    /// How long opening it and encoding two frames took.
    pub took: Duration,
}

/// Tries every candidate, once in the life of the process.
pub fn probe() -> &'static [ProbeResult] {
    static RESULTS: OnceLock<Vec<ProbeResult>> = OnceLock::new();
    RESULTS.get_or_init(|| CANDIDATES.iter().map(probe_one).collect())
}

#[expect(clippy::disallowed_methods, reason = "measures how long an encoder takes")]
fn probe_one(candidate: &Candidate) -> ProbeResult {
    let started = Instant::now();
    let outcome = try_out(candidate);
    let took = started.elapsed();
    let limitation = match &outcome {
        Ok(()) => candidate.limitation.map(str::to_owned),
        Err(error) => {
            let report = error.report();
            let hint = report.hint.map(|hint| format!("; {hint}"));
            Some(report.message + hint.as_deref().unwrap_or_default())
        }
    };
    tracing::debug!(encoder = candidate.name, works = outcome.is_ok(), ?took, "probed");
    ProbeResult {
        name: candidate.name,
        codec: candidate.codec,
        works: outcome.is_ok(),
        limitation,
        took,
    }
}

/// Encodes a keyframe and a change.
fn try_out(candidate: &Candidate) -> Result<()> {
    /// Small enough to be done in a few milliseconds, large enough for hardware encoders.
    const SIZE: Size = Size::new(320, 180);
    let config = Config {
        codec: candidate.codec,
        source: SIZE,
        size: SIZE,
        bitrate: Bitrate::from_kbps(2_000),
        max_fps: 30,
        latency: Duration::from_millis(200),
    };
    let mut encoder = (candidate.open)(&config)?;
    let stride = SIZE.width as usize * 4;
    let mut pixels: Vec<u8> =
        (0..stride * SIZE.height as usize).map(|index| (index % stride / 5) as u8).collect();
    let changed = Rect::new(96, 48, 64, 64);
    for (index, mode) in [Mode::Keyframe, Mode::Delta].into_iter().enumerate() {
        let whole = [SIZE.bounds()];
        let damage = if index == 0 { &whole } else { &[changed] };
        let captured_at = Duration::from_millis(33 * index as u64);
        let frame = Frame { pixels: &pixels, stride, size: SIZE, damage, captured_at };
        let encoded = encoder.encode(&frame, mode)?;
        let wrong =
            |what| Error::because(Cause::EncoderFailed, format!("`{}` {what}", candidate.name));
        let encoded = encoded.ok_or_else(|| wrong("left out a frame"))?;
        if encoded.keyframe != (mode == Mode::Keyframe || !super::lossy(candidate.codec)) {
            return Err(wrong("does not make keyframes when it is told to"));
        }
        if mode == Mode::Keyframe && !bitstream::is_keyframe(candidate.codec, &encoded.payload) {
            return Err(wrong("makes keyframes that no decoder can start at"));
        }
        let declared = match candidate.codec {
            Codec::Vp8 => bitstream::vp8_size(&encoded.payload),
            Codec::Vp9 => bitstream::vp9_size(&encoded.payload),
            Codec::Av1 => bitstream::av1_size(&encoded.payload),
            _ => Some(SIZE),
        };
        if encoded.keyframe && declared != Some(SIZE) {
            return Err(wrong("encodes pictures of another size than it is given"));
        }
        for row in changed.y..changed.bottom() {
            let start = row as usize * stride + changed.x as usize * 4;
            pixels[start..start + changed.width as usize * 4].fill(0);
        }
    }
    Ok(())
}
