//! Which encoders this machine has, found out by encoding.
//!
//! That an element is installed says little: a driver may be missing, a library may refuse. So each
//! candidate encodes a small picture, and what comes out has to be a frame a decoder can start at.
//!
//! Software comes first. It is told what has changed, where hardware looks at every pixel of a
//! caret, and its bits are known to be good. Hardware that passes goes before it only where it is
//! faster at a large picture that changes altogether, which is when speed matters.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
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
    /// Whether it works on a device of its own, not on the processor.
    pub hardware: bool,
    /// Whether frames came out that a decoder can use.
    pub works: bool,
    /// What it does less well than the best, or why it does not work and what to do about it.
    pub limitation: Option<String>,
    /// How long opening it and encoding three frames took.
    pub took: Duration,
}

/// Tries every candidate, once in the life of the process.
pub fn probe() -> &'static [ProbeResult] {
    static RESULTS: OnceLock<Vec<ProbeResult>> = OnceLock::new();
    RESULTS.get_or_init(|| CANDIDATES.iter().map(probe_one).collect())
}

/// The implementations of `codec` to try, best first: software in the order of the table, and
/// hardware that works where its speed puts it.
pub fn ranked(codec: Codec) -> Vec<Candidate> {
    let (hardware, software): (Vec<_>, Vec<_>) =
        super::candidates(codec).into_iter().partition(|candidate| candidate.device.is_some());
    // Most machines have none, and then nothing needs to be tried.
    let present = |candidate: &Candidate| candidate.device.is_some_and(|it| it.check().is_ok());
    if !hardware.iter().any(present) {
        return software;
    }
    let works = |candidate: &Candidate| {
        probe().iter().any(|result| result.name == candidate.name && result.works)
    };
    let timed = |candidate: &Candidate| (*candidate, speed(candidate));
    let hardware = hardware.iter().filter(|candidate| works(candidate)).map(timed).collect();
    let best = software.first().and_then(speed);
    rank(software, hardware, best)
}

/// Puts hardware that is faster than the best in software before it, the fastest first, and the rest
/// after all software.
fn rank(
    software: Vec<Candidate>,
    mut hardware: Vec<(Candidate, Option<Duration>)>,
    best: Option<Duration>,
) -> Vec<Candidate> {
    hardware.sort_by_key(|&(_, time)| time.unwrap_or(Duration::MAX));
    let faster =
        |time: &Option<Duration>| time.is_some_and(|time| best.is_none_or(|best| time < best));
    let (before, after): (Vec<_>, Vec<_>) =
        hardware.into_iter().partition(|(_, time)| faster(time));
    let names = |list: Vec<(Candidate, _)>| list.into_iter().map(|(candidate, _)| candidate);
    names(before).chain(software).chain(names(after)).collect()
}

/// How long a candidate takes for a large picture that changes altogether; `None` when it fails at
/// it. Found out once in the life of the process.
fn speed(candidate: &Candidate) -> Option<Duration> {
    static SPEEDS: Mutex<BTreeMap<&str, Option<Duration>>> = Mutex::new(BTreeMap::new());
    let mut speeds = SPEEDS.lock().unwrap_or_else(PoisonError::into_inner);
    *speeds.entry(candidate.name).or_insert_with(|| time(candidate).ok())
}

#[expect(clippy::disallowed_methods, reason = "measures how long an encoder takes")]
fn time(candidate: &Candidate) -> Result<Duration> {
    const SIZE: Size = Size::new(1920, 1080);
    /// The first is a keyframe, and the best of the others is what counts: this machine may be busy.
    const PICTURES: u64 = 6;
    let config = Config {
        codec: candidate.codec,
        source: SIZE,
        size: SIZE,
        bitrate: Bitrate::from_kbps(20_000),
        max_fps: 30,
        latency: Duration::from_millis(200),
    };
    let mut encoder = candidate.open(&config, None)?;
    let stride = SIZE.width as usize * 4;
    let mut pixels = vec![0; stride * SIZE.height as usize];
    let whole = [SIZE.bounds()];
    let mut best = Duration::MAX;
    for index in 0..PICTURES {
        // Slopes that move: neither still nor noise.
        for (at, byte) in pixels.iter_mut().enumerate() {
            *byte = (at / stride * 3 + at % stride / 7 + index as usize * 29) as u8;
        }
        let captured_at = Duration::from_millis(33 * index);
        let frame = Frame { pixels: &pixels, stride, size: SIZE, damage: &whole, captured_at };
        let mode = if index == 0 { Mode::Keyframe } else { Mode::Delta };
        let started = Instant::now();
        encoder.encode(&frame, mode)?;
        if mode == Mode::Delta {
            best = best.min(started.elapsed());
        }
    }
    Ok(best)
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
        hardware: candidate.device.is_some(),
        works: outcome.is_ok(),
        limitation,
        took,
    }
}

/// Encodes a keyframe, a change, and a keyframe that is asked for.
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
    let mut encoder = candidate.open(&config, None)?;
    let stride = SIZE.width as usize * 4;
    let mut pixels: Vec<u8> =
        (0..stride * SIZE.height as usize).map(|index| (index % stride / 5) as u8).collect();
    let changed = Rect::new(96, 48, 64, 64);
    for (index, mode) in [Mode::Keyframe, Mode::Delta, Mode::Keyframe].into_iter().enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_goes_first_where_it_is_faster() {
        let find = |name| *CANDIDATES.iter().find(|candidate| candidate.name == name).unwrap();
        let software = vec![find("openh264enc"), find("vp8enc")];
        let [slow, fast, broken] = ["vah264enc", "nvh264enc", "v4l2h264enc"].map(find);
        let names = |hardware: &[(Candidate, Option<u64>)], best: Option<u64>| {
            let time = |millis: Option<u64>| millis.map(Duration::from_millis);
            let hardware = hardware.iter().map(|&(it, millis)| (it, time(millis))).collect();
            let ranked = rank(software.clone(), hardware, time(best));
            ranked.iter().map(|candidate| candidate.name).collect::<Vec<_>>()
        };
        let all = [(slow, Some(9)), (broken, None), (fast, Some(3))];
        assert_eq!(
            names(&all, Some(6)),
            ["nvh264enc", "openh264enc", "vp8enc", "vah264enc", "v4l2h264enc"]
        );
        assert_eq!(names(&[(slow, Some(9))], None)[0], "vah264enc", "software that does not work");
        assert_eq!(names(&[], Some(6)), ["openh264enc", "vp8enc"]);
    }

    #[test]
    fn a_candidate_is_timed_at_a_large_picture() {
        let best = ranked(Codec::H264)[0];
        let time = speed(&best).expect("it works here");
        assert!((Duration::ZERO..Duration::from_secs(2)).contains(&time), "{time:?}");
        assert_eq!(speed(&best), Some(time), "timed again");
    }
}
