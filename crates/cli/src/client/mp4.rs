//! H.264 into fragmented MP4, as it comes and without encoding anything again.
//!
//! The file can be played while it grows, and after a crash: each frame is a fragment of its own
//! behind a header that needs no end (ISO/IEC 14496-12 §8.8). A frame is written when the next one
//! says how long it was shown, since a screen that is still sends none.

use std::io::Write;
use std::time::Duration;

use spaceport_types::{Error, Kind, Result, Size};

/// Units of time in a second: those of the media clock of RTP, which every frame rate divides.
const TIMESCALE: u32 = 90_000;

/// Says that a sample starts where a decoder can (§8.8.3.1: it depends on no other).
const SYNC: u32 = 0x0200_0000;

/// Says that it is none, and depends on others.
const DELTA: u32 = 0x0101_0000;

/// Writes one recording.
#[derive(Debug)]
pub(crate) struct Recording<W> {
    out: W,
    started: Option<Started>,
    frames: u32,
}

#[derive(Debug)]
struct Started {
    size: Size,
    parameters: Parameters,
    first: Duration,
    pending: Sample,
}

/// A frame that waits for its end.
#[derive(Debug)]
struct Sample {
    at: Duration,
    keyframe: bool,
    /// NAL units behind their lengths.
    data: Vec<u8>,
}

/// What a decoder has to know first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Parameters {
    sps: Vec<u8>,
    pps: Vec<u8>,
}

impl<W: Write> Recording<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, started: None, frames: 0 }
    }

    /// Adds an Annex B access unit. What comes before the first keyframe is passed over.
    ///
    /// # Errors
    ///
    /// `io` for the file, and `precondition_failed` when the stream has become another: a file has
    /// one size.
    pub(crate) fn add(
        &mut self,
        unit: &[u8],
        size: Size,
        keyframe: bool,
        at: Duration,
    ) -> Result<()> {
        let (data, parameters) = split(unit);
        let sample = Sample { at, keyframe, data };
        let Some(started) = &mut self.started else {
            let Some(parameters) = parameters.filter(|_| keyframe) else { return Ok(()) };
            self.out.write_all(&head(size, &parameters)?)?;
            self.started = Some(Started { size, parameters, first: at, pending: sample });
            return Ok(());
        };
        let other = parameters.is_some_and(|parameters| parameters != started.parameters);
        if other || size != started.size {
            return Err(Error::new(
                Kind::PreconditionFailed,
                format!(
                    "the picture became {}x{}, and a recording has one size",
                    size.width, size.height
                ),
            )
            .hint("What was recorded until then is in the file; start another recording"));
        }
        let done = std::mem::replace(&mut started.pending, sample);
        let shown = at.saturating_sub(done.at);
        let start = done.at.saturating_sub(started.first);
        self.write(&done, start, shown)
    }

    /// Writes the last frame, which was shown for so long, and answers how many there are.
    ///
    /// # Errors
    ///
    /// `io` for the file.
    pub(crate) fn finish(mut self, shown: Duration) -> Result<u32> {
        if let Some(Started { pending, first, .. }) = self.started.take() {
            let start = pending.at.saturating_sub(first);
            self.write(&pending, start, shown)?;
        }
        self.out.flush()?;
        Ok(self.frames)
    }

    fn write(&mut self, sample: &Sample, start: Duration, shown: Duration) -> Result<()> {
        self.frames += 1;
        let end = ticks(start + shown);
        let duration = u32::try_from(end.saturating_sub(ticks(start))).unwrap_or(u32::MAX);
        let size = length(sample.data.len())?;
        let flags = if sample.keyframe { SYNC } else { DELTA };
        // §8.8.7: base is this `moof`; §8.8.8: offset, then duration, size and flags of one sample.
        let moof = |offset: u32| {
            let mfhd = full("mfhd", 0, 0, &self.frames.to_be_bytes());
            let tfhd = full("tfhd", 0, 0x02_0000, &1_u32.to_be_bytes());
            let tfdt = full("tfdt", 1, 0, &ticks(start).to_be_bytes());
            let entry = [1, offset, duration, size, flags].map(u32::to_be_bytes);
            let trun = full("trun", 0, 0x701, entry.as_flattened());
            boxed("moof", &[mfhd, boxed("traf", &[tfhd, tfdt, trun].concat())].concat())
        };
        let behind = length(moof(0).len() + 8)?;
        self.out.write_all(&moof(behind))?;
        self.out.write_all(&boxed("mdat", &sample.data))?;
        // Whoever looks at the file while it grows sees whole frames.
        self.out.flush()?;
        Ok(())
    }
}

fn ticks(time: Duration) -> u64 {
    (time.as_micros() * u128::from(TIMESCALE) / 1_000_000) as u64
}

fn length(bytes: usize) -> Result<u32> {
    u32::try_from(bytes)
        .map_err(|_| Error::new(Kind::LimitExceeded, "a frame is larger than a file can say"))
}

/// The NAL units with their lengths before them, and the parameter sets among them, which go to the
/// head of the file. What has neither meaning nor place there, the delimiter, is left out.
fn split(unit: &[u8]) -> (Vec<u8>, Option<Parameters>) {
    let mut data = Vec::with_capacity(unit.len() + 16);
    let mut parameters = Parameters::default();
    for nal in nals(unit) {
        match nal.first().map(|first| first & 31) {
            Some(7) => parameters.sps = nal.to_vec(),
            Some(8) => parameters.pps = nal.to_vec(),
            Some(9) | None => {}
            Some(_) => {
                data.extend((nal.len() as u32).to_be_bytes());
                data.extend(nal);
            }
        }
    }
    let found = !parameters.sps.is_empty() && !parameters.pps.is_empty();
    (data, found.then_some(parameters))
}

/// What is between the start codes of Annex B.
fn nals(unit: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = start(unit).and_then(|at| unit.get(at + 3..));
    std::iter::from_fn(move || {
        let all = rest?;
        let end = start(all);
        rest = end.and_then(|at| all.get(at + 3..));
        let nal = all.get(..end.unwrap_or(all.len()))?;
        // A start code of four bytes, and filling, begin with zeros that belong to no unit.
        let kept = nal.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
        nal.get(..kept)
    })
}

fn start(bytes: &[u8]) -> Option<usize> {
    bytes.windows(3).position(|three| three == [0, 0, 1])
}

/// `ftyp` and `moov`: one track of AVC, whose samples are in fragments.
fn head(size: Size, parameters: &Parameters) -> Result<Vec<u8>> {
    let Parameters { sps, pps } = parameters;
    let [_, profile, compatibility, level, ..] = sps[..] else {
        return Err(Error::new(Kind::Env, "the stream has no sequence parameters that are some"));
    };
    let (sps_length, pps_length) = (short(sps.len())?, short(pps.len())?);
    let (width, height) = (short(size.width as usize)?, short(size.height as usize)?);
    let identity = [0x1_0000, 0, 0, 0, 0x1_0000, 0, 0, 0, 0x4000_0000_u32].map(u32::to_be_bytes);
    let identity = identity.as_flattened();
    let zeros = |count| vec![0_u8; count];

    let ftyp = boxed("ftyp", &[&b"iso6"[..], &[0, 0, 0, 1], b"iso6avc1mp41"].concat());
    let scale = TIMESCALE.to_be_bytes();
    // Times of creation and change, then the scale; a length of 0 is not known.
    let mvhd = [
        &zeros(8)[..],
        &scale,
        &zeros(4),
        &[0, 1, 0, 0, 1, 0],
        &zeros(10),
        identity,
        &zeros(24),
        &2_u32.to_be_bytes(),
    ];
    let mvhd = full("mvhd", 0, 0, &mvhd.concat());
    let tkhd = [
        &zeros(8)[..],
        &1_u32.to_be_bytes(),
        &zeros(24),
        identity,
        &width,
        &[0, 0],
        &height,
        &[0, 0],
    ];
    let tkhd = full("tkhd", 0, 3, &tkhd.concat());
    // 0x55c4 is `und`, in five bits a letter.
    let mdhd =
        full("mdhd", 0, 0, &[&zeros(8)[..], &scale, &zeros(4), &[0x55, 0xc4, 0, 0]].concat());
    let hdlr = full("hdlr", 0, 0, &[&zeros(4)[..], b"vide", &zeros(12), b"video\0"].concat());
    let vmhd = full("vmhd", 0, 1, &zeros(8));
    let url = full("url ", 0, 1, &[]);
    let dinf = boxed("dinf", &full("dref", 0, 0, &[&1_u32.to_be_bytes()[..], &url].concat()));
    // ISO/IEC 14496-15 §5.3.3.1: lengths of four bytes, one set of each kind.
    let avcc = [
        &[1, profile, compatibility, level, 0xff, 0xe1][..],
        &sps_length,
        sps,
        &[1],
        &pps_length,
        pps,
    ];
    let avc1 = [
        &zeros(6)[..],
        &[0, 1],
        &zeros(16),
        &width,
        &height,
        &0x48_0000_u32.to_be_bytes(),
        &0x48_0000_u32.to_be_bytes(), // 72 dpi, as everybody says
        &zeros(4),
        &[0, 1],
        &zeros(32),
        &[0, 24, 0xff, 0xff],
        &boxed("avcC", &avcc.concat()),
    ];
    let avc1 = boxed("avc1", &avc1.concat());
    let stsd = full("stsd", 0, 0, &[&1_u32.to_be_bytes()[..], &avc1].concat());
    let none = |name| full(name, 0, 0, &[0; 4]);
    let stsz = full("stsz", 0, 0, &[0; 8]);
    let stbl = boxed("stbl", &[stsd, none("stts"), none("stsc"), stsz, none("stco")].concat());
    let minf = boxed("minf", &[vmhd, dinf, stbl].concat());
    let mdia = boxed("mdia", &[mdhd, hdlr, minf].concat());
    let trak = boxed("trak", &[tkhd, mdia].concat());
    let trex = [1, 1, 0, 0, 0_u32].map(u32::to_be_bytes);
    let mvex = boxed("mvex", &full("trex", 0, 0, trex.as_flattened()));
    let moov = boxed("moov", &[mvhd, trak, mvex].concat());
    Ok([ftyp, moov].concat())
}

fn short(number: usize) -> Result<[u8; 2]> {
    u16::try_from(number)
        .map(u16::to_be_bytes)
        .map_err(|_| Error::new(Kind::LimitExceeded, "the picture is too large for a recording"))
}

/// A box: its length, its name, and what is in it (§4.2).
fn boxed(name: &str, content: &[u8]) -> Vec<u8> {
    let length = (content.len() + 8) as u32; // a frame is checked before, and all else is small
    [&length.to_be_bytes(), name.as_bytes(), content].concat()
}

/// A box with a version and flags.
fn full(name: &str, version: u8, flags: u32, content: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = flags.to_be_bytes();
    boxed(name, &[&[version, high, middle, low], content].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_found_behind_either_start_code() {
        let unit = b"\0\0\0\x01\x67abc\0\0\x01\x68de\0\0\0\x01\x65fgh\0\0";
        assert_eq!(nals(unit).collect::<Vec<_>>(), [&b"gabc"[..], b"hde", b"efgh"]);
        let (data, parameters) = split(unit);
        assert_eq!(data, b"\0\0\0\x04efgh");
        assert_eq!(parameters.unwrap().sps, b"gabc");
        for empty in [&b""[..], b"\0\0\x01", b"abc", b"\0\0\0"] {
            assert_eq!(nals(empty).filter(|nal| !nal.is_empty()).count(), 0);
        }
    }

    // What comes from a Space is not trusted: whatever it is, it is cut up and nothing else.
    #[test]
    fn any_bytes_are_cut_into_units_that_hold_no_start_code() {
        const BYTES: [u8; 6] = [0, 0, 1, 0x67, 0x68, 0x65];
        for seed in 0..6_u32.pow(7) / 5 {
            let digits = std::iter::successors(Some(seed * 5), |rest| Some(rest / 6));
            let unit: Vec<u8> = digits.take(7).map(|digit| BYTES[digit as usize % 6]).collect();
            let units: Vec<_> = nals(&unit).collect();
            assert!(units.iter().all(|nal| start(nal).is_none()), "{unit:?}");
            let (data, _) = split(&unit);
            let kept = units.iter().filter(|nal| matches!(nal.first(), Some(0x65 | 1 | 0)));
            assert_eq!(data.len(), kept.map(|nal| nal.len() + 4).sum::<usize>(), "{unit:?}");
            drop(head(Size::new(2, 2), &Parameters { sps: unit.clone(), pps: unit }));
        }
    }

    #[test]
    fn frames_wait_for_the_next_and_a_recording_has_one_size() {
        let unit = b"\0\0\x01\x67\x42\0\x1e\xff\0\0\x01\x68d\0\0\x01\x65x";
        let size = Size::new(4, 2);
        let mut recording = Recording::new(Vec::new());
        recording.add(b"\0\0\x01\x41x", size, false, Duration::ZERO).unwrap();
        assert!(recording.started.is_none(), "it starts with a keyframe");
        recording.add(unit, size, true, Duration::from_secs(1)).unwrap();
        assert_eq!(recording.frames, 0);
        recording.add(b"\0\0\x01\x41x", size, false, Duration::from_secs(3)).unwrap();
        assert_eq!(recording.frames, 1);
        // Two seconds of it, at the start of the file.
        let duration = (2 * TIMESCALE).to_be_bytes();
        assert!(recording.out.windows(4).any(|four| four == duration));
        let other = recording.add(unit, Size::new(8, 2), true, Duration::from_secs(4)).unwrap_err();
        assert_eq!(other.kind(), Kind::PreconditionFailed);
        assert_eq!(recording.finish(Duration::from_secs(1)).unwrap(), 2);
    }
}
