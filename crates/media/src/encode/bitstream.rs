//! Just enough of H.264 and VP8 to tell whether a decoder can start at a frame.

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
        _ => true,
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
}
