//! Just enough of each bitstream to tell whether a decoder can start at a frame.

use spaceport_types::{Codec, Size};

/// NAL unit types (ITU-T H.264 table 7-1).
const IDR: u8 = 5;
const SPS: u8 = 7;
const PPS: u8 = 8;

/// Whether a decoder that knows nothing yet can start with `payload`.
pub(super) fn is_keyframe(codec: Codec, payload: &[u8]) -> bool {
    match codec {
        Codec::H264 => {
            let kinds: Vec<u8> = nal_units(payload).map(|unit| unit[0] & 0x1f).collect();
            [SPS, PPS, IDR].iter().all(|kind| kinds.contains(kind))
        }
        Codec::Vp8 => vp8_size(payload).is_some(),
        Codec::Vp9 => vp9_size(payload).is_some(),
        Codec::Av1 => av1_starts(payload),
        // Every picture is whole.
        Codec::Bgra | Codec::Png => true,
        _ => false,
    }
}

/// The NAL units of an Annex B access unit, none of them empty, without start codes.
pub(super) fn nal_units(stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = after_start_code(stream);
    std::iter::from_fn(move || {
        let unit = rest?;
        let end = unit.windows(3).position(|bytes| bytes == [0, 0, 1]).unwrap_or(unit.len());
        rest = after_start_code(unit);
        // A four-byte start code leaves its first zero at the end of the unit before it, where no
        // zero belongs (7.4.1: the last byte of a NAL unit is not zero).
        let unit = &unit[..end];
        let length = unit.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Some(&unit[..length])
    })
    .filter(|unit| !unit.is_empty())
}

fn after_start_code(stream: &[u8]) -> Option<&[u8]> {
    let start = stream.windows(3).position(|bytes| bytes == [0, 0, 1])?;
    Some(&stream[start + 3..])
}

/// The size in the header of a VP8 keyframe; `None` for any other frame (RFC 6386 §9.1).
pub(super) fn vp8_size(frame: &[u8]) -> Option<Size> {
    let header: &[u8; 10] = frame.first_chunk()?;
    let key = header[0] & 1 == 0 && header[3..6] == [0x9d, 0x01, 0x2a];
    let side = |low, high| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
    key.then(|| Size::new(side(header[6], header[7]), side(header[8], header[9])))
}

/// The size in the header of a VP9 keyframe of profile 0; `None` for any other frame (VP9
/// bitstream specification 6.2).
pub(super) fn vp9_size(frame: &[u8]) -> Option<Size> {
    let header: &[u8; 9] = frame.first_chunk()?;
    // Frame marker 2, profile 0, no existing frame to show, and 0 for a keyframe.
    let key = header[0] & 0b1111_1100 == 0b1000_0000 && header[1..4] == [0x49, 0x83, 0x42];
    // Color space and range, 4 bits, then two sides of 16 bits, each less one.
    let sides =
        u64::from_be_bytes([0, 0, 0, header[4], header[5], header[6], header[7], header[8]]);
    let side = |shift: u32| (sides >> shift & 0xffff) as u32 + 1;
    key.then(|| Size::new(side(20), side(4)))
}

/// OBU types (AV1 bitstream specification 6.2.2).
const OBU_SEQUENCE_HEADER: u8 = 1;
const OBU_FRAME_HEADER: u8 = 3;
const OBU_FRAME: u8 = 6;

/// Whether a temporal unit of AV1 has a sequence header and then a keyframe.
fn av1_starts(unit: &[u8]) -> bool {
    let mut described = false;
    let frame = Obus(unit).find(|obu| {
        described |= obu.kind == OBU_SEQUENCE_HEADER;
        matches!(obu.kind, OBU_FRAME_HEADER | OBU_FRAME)
    });
    // No existing frame to show, and 0 for a keyframe (5.9.2).
    described && frame.is_some_and(|obu| obu.body.first().is_some_and(|first| first >> 5 == 0))
}

/// The size in the sequence header of a temporal unit of AV1; `None` when it has none.
pub(super) fn av1_size(unit: &[u8]) -> Option<Size> {
    let header = Obus(unit).find(|obu| obu.kind == OBU_SEQUENCE_HEADER)?;
    Some(Sequence::read(header.body)?.size)
}

/// Writes into the sequence header of a temporal unit of AV1 what its colors are, where that is left
/// unsaid: primaries and transfer of BT.709, weights of BT.601. `None` where there is nothing to
/// write.
pub(super) fn av1_with_colors(unit: &[u8]) -> Option<Vec<u8>> {
    const COLORS: [u8; 3] = [1, 1, 6];
    let header = Obus(unit).find(|obu| obu.kind == OBU_SEQUENCE_HEADER)?;
    let sequence = Sequence::read(header.body).filter(|sequence| !sequence.has_colors)?;
    // The flag, three bytes, and then what was after the flag, by three bytes later.
    let (at, bit) = (sequence.flag / 8, sequence.flag % 8);
    let after = u8::MAX.checked_shr(bit as u32 + 1).unwrap_or(0);
    let mut carry = header.body[at] & !after | 0x80 >> bit;
    let mut body = header.body[..at].to_vec();
    for color in COLORS {
        body.push(carry | color.checked_shr(bit as u32 + 1).unwrap_or(0));
        carry = color.checked_shl(7 - bit as u32).unwrap_or(0) & !after;
    }
    body.push(carry | header.body[at] & after);
    body.extend_from_slice(&header.body[at + 1..]);

    let start = header.body.as_ptr().addr() - unit.as_ptr().addr();
    let head = start - header.head;
    let mut described = unit[..head].to_vec();
    // Without an extension; with its size, which fits a byte or is written as it is.
    described.push(OBU_SEQUENCE_HEADER << 3 | OBU_HAS_SIZE);
    described.push(u8::try_from(body.len()).ok().filter(|&size| size < 0x80)?);
    described.extend_from_slice(&body);
    described.extend_from_slice(&unit[start + header.body.len()..]);
    Some(described)
}

const OBU_HAS_EXTENSION: u8 = 0x04;
const OBU_HAS_SIZE: u8 = 0x02;

/// One OBU of a temporal unit.
struct Obu<'a> {
    kind: u8,
    /// How long its header is, size included.
    head: usize,
    body: &'a [u8],
}

/// The OBUs of a temporal unit; ends where something is wrong.
struct Obus<'a>(&'a [u8]);

impl<'a> Iterator for Obus<'a> {
    type Item = Obu<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&header, mut rest) = self.0.split_first()?;
        if header & OBU_HAS_EXTENSION != 0 {
            rest = rest.get(1..)?;
        }
        let length = if header & OBU_HAS_SIZE == 0 {
            rest.len()
        } else {
            // leb128, of which nine bytes are more than any length here has.
            let bytes = rest.iter().take(8).position(|byte| byte & 0x80 == 0)? + 1;
            let (digits, after) = rest.split_at(bytes);
            rest = after;
            digits.iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f))
        };
        let body = rest.get(..length)?;
        let obu = Obu { kind: header >> 3 & 0x0f, head: self.0.len() - rest.len(), body };
        self.0 = &rest[length..];
        Some(obu)
    }
}

/// What a sequence header of AV1 says (5.5.1), as far as its colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sequence {
    size: Size,
    /// Where `color_description_present_flag` is, in bits, and what it says.
    flag: usize,
    has_colors: bool,
}

impl Sequence {
    /// `None` for what no encoder of live video makes: a still picture, or one with timing.
    fn read(header: &[u8]) -> Option<Self> {
        let mut bits = Bits { bytes: header, at: 0 };
        let profile = bits.u(3)?;
        let (_still, reduced, timing) = (bits.u(1)?, bits.u(1)?, bits.u(1)?);
        if reduced + timing > 0 {
            return None;
        }
        let delays = bits.u(1)?;
        for _ in 0..=bits.u(5)? {
            bits.u(12)?;
            if bits.u(5)? > 7 {
                bits.u(1)?;
            }
            if delays == 1 && bits.u(1)? == 1 {
                bits.u(4)?;
            }
        }
        let (width, height) = (bits.u(4)? + 1, bits.u(4)? + 1);
        let size = Size::new(bits.u(width)? + 1, bits.u(height)? + 1);
        if bits.u(1)? == 1 {
            bits.u(7)?;
        }
        // Larger superblocks, two tools within a picture, four between pictures.
        bits.u(3 + 4)?;
        let ordered = bits.u(1)?;
        if ordered == 1 {
            bits.u(2)?;
        }
        // Tools for screens, chosen by the picture or once for all; then integer motion likewise.
        let screen = bits.u(1)? == 1 || bits.u(1)? == 1;
        if screen && bits.u(1)? == 0 {
            bits.u(1)?;
        }
        if ordered == 1 {
            bits.u(3)?;
        }
        bits.u(3)?;
        let deep = bits.u(1)?;
        if profile == 2 && deep == 1 {
            bits.u(1)?;
        }
        if profile != 1 {
            bits.u(1)?;
        }
        let flag = bits.at;
        Some(Self { size, flag, has_colors: bits.u(1)? == 1 })
    }
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    /// The next `count` bits, at most 32.
    fn u(&mut self, count: u32) -> Option<u32> {
        let mut value = 0;
        for _ in 0..count {
            let byte = self.bytes.get(self.at / 8)?;
            value = value << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_found_after_start_codes_of_either_length() {
        let stream = [0, 0, 0, 1, 0x67, 1, 0, 0, 1, 0x68, 2, 0, 0, 0, 1, 0x65, 3];
        let units: Vec<_> = nal_units(&stream).collect();
        assert_eq!(units, [&[0x67, 1][..], &[0x68, 2], &[0x65, 3]]);
        assert!(is_keyframe(Codec::H264, &stream));
        assert!(!is_keyframe(Codec::H264, &stream[9..]), "without an SPS");
        assert_eq!(nal_units(&[]).count() + nal_units(&[0, 0, 1]).count(), 0);
        assert_eq!(nal_units(&[9, 9, 0, 0]).count(), 0);
    }

    #[test]
    fn a_vp8_keyframe_says_its_size() {
        let key = [0x10, 0, 0, 0x9d, 0x01, 0x2a, 0x80, 0x02, 0x68, 0x41, 0];
        assert_eq!(vp8_size(&key), Some(Size::new(640, 360)));
        assert_eq!(vp8_size(&key[..9]), None);
        assert_eq!(vp8_size(&[0x11, 0, 0, 0x9d, 0x01, 0x2a, 0x80, 0x02, 0x68, 0x41]), None);
        assert!(is_keyframe(Codec::Vp8, &key));
    }

    #[test]
    fn a_vp9_keyframe_says_its_size() {
        // 1920x1080 is 0x77f and 0x437, less one, half a byte in.
        let key = [0x82, 0x49, 0x83, 0x42, 0x20, 0x77, 0xf0, 0x43, 0x70, 0];
        assert_eq!(vp9_size(&key), Some(Size::new(1920, 1080)));
        assert_eq!(vp9_size(&key[..8]), None);
        let inter = [0x86, 0x49, 0x83, 0x42, 0x20, 0x77, 0xf0, 0x43, 0x70];
        assert_eq!(vp9_size(&inter), None);
        assert!(is_keyframe(Codec::Vp9, &key) && !is_keyframe(Codec::Vp9, &inter));
    }

    #[test]
    fn an_av1_keyframe_has_a_sequence_header_before_it() {
        let (delimiter, sequence) = ([0x12, 0], [0x0a, 3, 1, 2, 3]);
        let (key, inter) = ([0x32, 2, 0x10, 9], [0x32, 2, 0x30, 9]);
        assert!(is_keyframe(Codec::Av1, &[&delimiter[..], &sequence, &key].concat()));
        assert!(!is_keyframe(Codec::Av1, &[&delimiter[..], &sequence, &inter].concat()));
        assert!(!is_keyframe(Codec::Av1, &[&delimiter[..], &key].concat()));
        // Cut off, or of a length that nobody can mean.
        assert!(!is_keyframe(Codec::Av1, &[&sequence[..], &key[..3]].concat()));
        assert!(!is_keyframe(
            Codec::Av1,
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]
        ));
        assert!(!is_keyframe(Codec::Av1, &[]));
    }

    #[test]
    fn the_colors_of_av1_are_said_where_they_were_not() {
        // The sequence header that libaom writes for 640x360, between a delimiter and a frame.
        let header = [0x00, 0x00, 0x00, 0x0c, 0xc4, 0xff, 0x67, 0xe0, 0x6d, 0x7c, 0x80, 0x20];
        let unit = [&[0x12, 0, 0x0a, 12][..], &header, &[0x32, 2, 0x10, 9]].concat();
        assert_eq!(av1_size(&unit), Some(Size::new(640, 360)));
        let said = av1_with_colors(&unit).unwrap();
        assert_eq!(said.len(), unit.len() + 3);
        assert_eq!((&said[..4], &said[19..]), (&[0x12, 0, 0x0a, 15][..], &[0x32, 2, 0x10, 9][..]));
        let (old, new) = (Sequence::read(&header).unwrap(), Sequence::read(&said[4..19]).unwrap());
        assert_eq!((old.has_colors, new.has_colors), (false, true));
        assert_eq!((old.size, old.flag), (new.size, new.flag));
        let mut colors = Bits { bytes: &said[4..19], at: new.flag + 1 };
        assert_eq!([colors.u(8), colors.u(8), colors.u(8)], [Some(1), Some(1), Some(6)]);
        let mut rest = Bits { bytes: &header, at: old.flag + 1 };
        for _ in rest.at..header.len() * 8 {
            assert_eq!(rest.u(1), colors.u(1));
        }
        assert_eq!(colors.u(1), None);
        // Nothing to add, and nothing to add it to.
        assert_eq!(av1_with_colors(&said), None);
        assert_eq!(av1_with_colors(&unit[..15]), None);
        assert_eq!(av1_with_colors(&[0x12, 0]), None);
    }
}
