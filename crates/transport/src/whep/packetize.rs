//! One encoded frame to RTP payloads, once for all viewers.
//!
//! H.264 follows RFC 6184 in packetization mode 1 (single NAL unit, STAP-A, FU-A), VP8 RFC 7741,
//! VP9 RFC 9628 in non-flexible mode without layers, AV1 the RTP payload format of AOM. VP8 and VP9
//! have a 15-bit picture id that each viewer overwrites with its own count. Payloads are shared: a
//! hundred viewers of a frame hold a hundred references to the same bytes, but for VP9, where the
//! picture id makes them copies.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use spaceport_types::{Codec, Packet, Size};

/// The RTP payloads of one frame, in sending order.
pub(super) type Payloads = Arc<[Arc<[u8]>]>;

/// Largest RTP payload.
///
/// With 12 bytes of RTP header, 16 of extensions, 16 of SRTP tag, 2 of RTX and 48 of IPv6 and UDP
/// a packet stays below the 1,280 bytes that every IPv6 path carries, tunnels included.
pub(super) const MAX_PAYLOAD: usize = 1120;

/// Packetized frames kept for viewers that are still to send them.
///
/// Viewers of one stream send the same frame within a millisecond of each other; a viewer that
/// catches up after its handshake is the exception, and at worst it packetizes again.
const RECENT_FRAMES: usize = 64;

/// Bytes of packetized frames kept, whatever their number: two keyframes of a 4K desktop.
const RECENT_BYTES: usize = 8 << 20;

/// Turns frames into payloads and remembers the latest.
#[derive(Debug, Default)]
pub(super) struct Packetizer {
    recent: VecDeque<Recent>,
    bytes: usize,
}

/// A frame and its payloads.
///
/// All viewers of a frame share its allocation, so its address names it for as long as this entry
/// keeps it alive.
#[derive(Debug)]
struct Recent {
    frame: Bytes,
    payloads: Payloads,
}

impl Packetizer {
    /// The payloads of `packet`; empty when its bytes hold nothing that can be sent.
    pub(super) fn payloads(&mut self, packet: &Packet) -> Payloads {
        let frame = &packet.payload;
        let same = |recent: &&Recent| {
            recent.frame.as_ptr() == frame.as_ptr() && recent.frame.len() == frame.len()
        };
        if let Some(recent) = self.recent.iter().rev().find(same) {
            return Arc::clone(&recent.payloads);
        }
        let payloads: Payloads = packetize(packet).into();
        self.bytes += frame.len();
        self.recent.push_back(Recent { frame: frame.clone(), payloads: Arc::clone(&payloads) });
        while self.recent.len() > RECENT_FRAMES || self.bytes > RECENT_BYTES {
            let Some(oldest) = self.recent.pop_front() else { break };
            self.bytes -= oldest.frame.len();
        }
        payloads
    }
}

/// Cuts a frame into RTP payloads of at most [`MAX_PAYLOAD`] bytes.
fn packetize(packet: &Packet) -> Vec<Arc<[u8]>> {
    let frame = &packet.payload;
    match packet.codec {
        Codec::H264 => h264(frame),
        Codec::Vp8 => vp8(frame),
        Codec::Vp9 => {
            let size = packet.geometry.frame_size.padded_to_even();
            vp9(frame, packet.keyframe.then_some(size))
        }
        Codec::Av1 => av1(frame, packet.keyframe),
        _ => Vec::new(),
    }
}

/// An Annex B access unit in packetization mode 1.
fn h264(frame: &[u8]) -> Vec<Arc<[u8]>> {
    let mut payloads = Vec::with_capacity(frame.len() / MAX_PAYLOAD + 2);
    let mut small = Aggregate::default();
    for unit in Units::new(frame) {
        match unit[0] & UNIT_TYPE {
            // RTP has its own frame boundaries, and filler is there to be dropped.
            ACCESS_UNIT_DELIMITER | FILLER_DATA => {}
            // Slices stay on their own; what precedes them (SEI, SPS, PPS) travels together.
            kind if kind > LAST_SLICE_TYPE && unit.len() <= MAX_PAYLOAD => {
                if !small.fits(unit) {
                    small.flush(&mut payloads);
                }
                small.push(unit);
            }
            _ => {
                small.flush(&mut payloads);
                if unit.len() <= MAX_PAYLOAD {
                    payloads.push(unit.into());
                } else {
                    fragment(unit, &mut payloads);
                }
            }
        }
    }
    small.flush(&mut payloads);
    payloads
}

/// Small NAL units on their way into one STAP-A (RFC 6184 §5.7.1).
#[derive(Default)]
struct Aggregate<'a> {
    units: Vec<&'a [u8]>,
    size: usize,
}

impl<'a> Aggregate<'a> {
    /// Whether `unit` and its length field still fit, next to the STAP-A's own header.
    fn fits(&self, unit: &[u8]) -> bool {
        1 + self.size + 2 + unit.len() <= MAX_PAYLOAD
    }

    /// Adds `unit`. One that fits nowhere is alone, and leaves as a single NAL unit packet.
    fn push(&mut self, unit: &'a [u8]) {
        self.size += 2 + unit.len();
        self.units.push(unit);
    }

    /// Emits what was collected, as it is when there is only one.
    fn flush(&mut self, payloads: &mut Vec<Arc<[u8]>>) {
        match self.units.as_slice() {
            [] => {}
            [unit] => payloads.push((*unit).into()),
            units => {
                let mut payload = Vec::with_capacity(1 + self.size);
                // RFC 6184 §5.7: F is set if any unit's is, NRI is the highest of all.
                let forbidden = units.iter().fold(0, |bit, unit| bit | (unit[0] & FORBIDDEN));
                let importance = units.iter().map(|unit| unit[0] & IMPORTANCE).max().unwrap_or(0);
                payload.push(forbidden | importance | STAP_A);
                for unit in units {
                    let length = u16::try_from(unit.len()).expect("a unit that fits is short");
                    payload.extend_from_slice(&length.to_be_bytes());
                    payload.extend_from_slice(unit);
                }
                payloads.push(payload.into());
            }
        }
        self.units.clear();
        self.size = 0;
    }
}

/// A NAL unit that is too large, as FU-A fragments (RFC 6184 §5.8).
fn fragment(unit: &[u8], payloads: &mut Vec<Arc<[u8]>>) {
    let (header, body) = (unit[0], &unit[1..]);
    let last = body.len().div_ceil(MAX_PAYLOAD - 2) - 1;
    for (index, part) in even_chunks(body, MAX_PAYLOAD - 2).enumerate() {
        let mut payload = Vec::with_capacity(2 + part.len());
        payload.push((header & (FORBIDDEN | IMPORTANCE)) | FU_A);
        let edge = if index == 0 { FU_START } else { 0 } | if index == last { FU_END } else { 0 };
        payload.push(edge | (header & UNIT_TYPE));
        payload.extend_from_slice(part);
        payloads.push(payload.into());
    }
}

/// One VP8 frame; its picture id is zero until a viewer sets it.
fn vp8(frame: &[u8]) -> Vec<Arc<[u8]>> {
    let parts = even_chunks(frame, MAX_PAYLOAD - VP8_DESCRIPTOR);
    let cut = |(index, part): (usize, &[u8])| {
        let mut payload = Vec::with_capacity(VP8_DESCRIPTOR + part.len());
        // RFC 7741 §4.2: X set, S on the first packet of the frame, partition index 0; then I,
        // and a picture id with M set, which makes it 15 bits.
        payload.extend_from_slice(&[if index == 0 { 0x90 } else { 0x80 }, 0x80, 0x80, 0x00]);
        payload.extend_from_slice(part);
        payload.into()
    };
    parts.enumerate().map(cut).collect()
}

/// One VP9 frame, of which a keyframe says its `size`; its picture id is zero until a viewer sets
/// it.
fn vp9(frame: &[u8], size: Option<Size>) -> Vec<Arc<[u8]>> {
    let parts = even_chunks(frame, MAX_PAYLOAD - VP9_DESCRIPTOR - VP9_STRUCTURE);
    let last = parts.len().saturating_sub(1);
    let cut = |(index, part): (usize, &[u8])| {
        let mut payload = Vec::with_capacity(VP9_DESCRIPTOR + VP9_STRUCTURE + part.len());
        // RFC 9628 §4.2: I, P where it is predicted from other frames, B and E on the first and
        // the last packet, V before a scalability structure; then a picture id of 15 bits.
        let mut first = VP9_PICTURE_ID;
        if size.is_none() {
            first |= VP9_PREDICTED;
        }
        if index == 0 {
            first |= VP9_BEGIN;
        }
        if index == last {
            first |= VP9_END;
        }
        let structure = size.filter(|_| index == 0);
        if structure.is_some() {
            first |= VP9_STRUCTURED;
        }
        payload.extend_from_slice(&[first, 0x80, 0x00]);
        if let Some(Size { width, height }) = structure {
            // §4.2.1: one layer, Y, no picture group.
            payload.push(0x10);
            for side in [width, height] {
                payload.extend_from_slice(&u16::try_from(side).unwrap_or(u16::MAX).to_be_bytes());
            }
        }
        payload.extend_from_slice(part);
        payload.into()
    };
    parts.enumerate().map(cut).collect()
}

/// A payload of VP9 with the picture id of one viewer.
pub(super) fn with_vp9_picture_id(payload: &[u8], id: u16) -> Arc<[u8]> {
    let mut copy: Arc<[u8]> = payload.into();
    if let Some(bytes) = Arc::get_mut(&mut copy).and_then(|copy| copy.get_mut(1..3)) {
        bytes.copy_from_slice(&(id | 0x8000).to_be_bytes());
    }
    copy
}

/// One temporal unit of AV1: its OBUs without their sizes, and without the temporal delimiter (RTP
/// payload format for AV1, 4 and 5).
fn av1(unit: &[u8], keyframe: bool) -> Vec<Arc<[u8]>> {
    let mut data = Vec::with_capacity(unit.len());
    let mut ends = Vec::new();
    let mut rest = unit;
    while !rest.is_empty() {
        let Some(obu) = Obu::split(&mut rest) else { return Vec::new() };
        if !matches!(obu.kind(), OBU_TEMPORAL_DELIMITER | OBU_TILE_LIST | OBU_PADDING) {
            data.push(obu.header[0] & !OBU_HAS_SIZE);
            data.extend_from_slice(&obu.header[1..]);
            data.extend_from_slice(obu.body);
            ends.push(data.len());
        }
    }
    // Packets equally long, each with its header and two bytes for the length of every element.
    let size = data.len() + AV1_LENGTH * ends.len();
    let parts = size.div_ceil(MAX_PAYLOAD - 1 - AV1_LENGTH).max(1);
    let room = size.div_ceil(parts) + AV1_LENGTH;
    let mut payloads = Vec::with_capacity(parts + 1);
    let (mut at, mut next, mut open) = (0, 0, false);
    while let Some(&end) = ends.get(next) {
        let mut first = if open { AV1_CONTINUES } else { 0 };
        if keyframe && payloads.is_empty() {
            first |= AV1_NEW_SEQUENCE;
        }
        let (mut end, mut used) = (end, 0);
        let mut elements = Vec::new();
        while used + AV1_LENGTH < room {
            let part = (end - at).min(room - used - AV1_LENGTH);
            elements.push(&data[at..at + part]);
            used += AV1_LENGTH + part;
            at += part;
            open = at < end;
            if open {
                first |= AV1_GOES_ON;
                break;
            }
            next += 1;
            let Some(&following) = ends.get(next) else { break };
            end = following;
        }
        // With up to three elements, their number says which is the last; that has no length.
        let counted = elements.len() <= 3;
        if counted {
            first |= (elements.len() as u8) << 4;
        }
        let mut payload = Vec::with_capacity(1 + used);
        payload.push(first);
        for (index, element) in elements.iter().enumerate() {
            if !counted || index + 1 < elements.len() {
                leb128(element.len(), &mut payload);
            }
            payload.extend_from_slice(element);
        }
        payloads.push(payload.into());
    }
    payloads
}

/// One OBU of the low-overhead format (AV1 5.3), whose header may have an extension.
struct Obu<'a> {
    header: &'a [u8],
    body: &'a [u8],
}

impl<'a> Obu<'a> {
    fn kind(&self) -> u8 {
        self.header[0] >> 3 & 0x0f
    }

    /// Takes the first OBU off `data`.
    fn split(data: &mut &'a [u8]) -> Option<Self> {
        let &first = data.first()?;
        let (header, mut rest) =
            data.split_at_checked(if first & OBU_HAS_EXTENSION == 0 { 1 } else { 2 })?;
        let mut length = rest.len();
        if first & OBU_HAS_SIZE != 0 {
            // leb128; what does not fit eight bytes fits no frame.
            let digits = rest.iter().take(8).position(|byte| byte & 0x80 == 0)? + 1;
            let (size, after) = rest.split_at(digits);
            length = size.iter().rev().fold(0, |size, byte| size << 7 | usize::from(byte & 0x7f));
            rest = after;
        }
        let (body, after) = rest.split_at_checked(length)?;
        *data = after;
        Some(Self { header, body })
    }
}

fn leb128(mut value: usize, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 & 0x7f | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// `data` in the fewest parts of at most `max` bytes, all but the last equally long.
///
/// Equal lengths let the kernel take the whole frame as one segmented datagram, and spare a frame
/// from ending in a packet of three bytes.
fn even_chunks(data: &[u8], max: usize) -> std::slice::Chunks<'_, u8> {
    let parts = data.len().div_ceil(max).max(1);
    data.chunks(data.len().div_ceil(parts).max(1))
}

/// The NAL units of an Annex B byte stream, without start codes and trailing zeros.
struct Units<'a> {
    rest: &'a [u8],
}

impl<'a> Units<'a> {
    fn new(stream: &'a [u8]) -> Self {
        // What stands before the first start code is no NAL unit.
        let rest = start_code(stream).map_or(&[][..], |at| &stream[at + 3..]);
        Self { rest }
    }
}

impl<'a> Iterator for Units<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while !self.rest.is_empty() {
            let (unit, rest) = match start_code(self.rest) {
                Some(at) => (&self.rest[..at], &self.rest[at + 3..]),
                None => (self.rest, &[][..]),
            };
            self.rest = rest;
            // No NAL unit ends in a zero byte (H.264 §7.4.1), so these are trailing_zero_8bits,
            // or the first byte of a four-byte start code.
            let end = unit.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
            if end > 0 {
                return Some(&unit[..end]);
            }
        }
        None
    }
}

/// Where the next `00 00 01` begins.
fn start_code(data: &[u8]) -> Option<usize> {
    let mut at = 0;
    // The third byte decides how far to go: above 1 it cannot be part of a start code at all.
    while let Some(&[first, second, third]) = data.get(at..at + 3).and_then(|b| b.first_chunk()) {
        match third {
            1 if first == 0 && second == 0 => return Some(at),
            0 => at += 1,
            _ => at += 3,
        }
    }
    None
}

const FORBIDDEN: u8 = 0x80;
const IMPORTANCE: u8 = 0x60;
const UNIT_TYPE: u8 = 0x1f;

/// Types 1 to 5 are slices.
const LAST_SLICE_TYPE: u8 = 5;
const ACCESS_UNIT_DELIMITER: u8 = 9;
const FILLER_DATA: u8 = 12;
const STAP_A: u8 = 24;
const FU_A: u8 = 28;
const FU_START: u8 = 0x80;
const FU_END: u8 = 0x40;

/// Required octet, extension octet, two of picture id.
const VP8_DESCRIPTOR: usize = 4;

/// Required octet, two of picture id.
const VP9_DESCRIPTOR: usize = 3;
/// Octet of flags, two sides.
const VP9_STRUCTURE: usize = 5;
const VP9_PICTURE_ID: u8 = 0x80;
const VP9_PREDICTED: u8 = 0x40;
const VP9_BEGIN: u8 = 0x08;
const VP9_END: u8 = 0x04;
const VP9_STRUCTURED: u8 = 0x02;

const OBU_TEMPORAL_DELIMITER: u8 = 2;
const OBU_TILE_LIST: u8 = 8;
const OBU_PADDING: u8 = 15;
const OBU_HAS_EXTENSION: u8 = 0x04;
const OBU_HAS_SIZE: u8 = 0x02;

/// Of the aggregation header: Z, Y and N.
const AV1_CONTINUES: u8 = 0x80;
const AV1_GOES_ON: u8 = 0x40;
const AV1_NEW_SEQUENCE: u8 = 0x08;
/// The length of an element, in bytes; no packet holds what needs a third.
const AV1_LENGTH: usize = 2;

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use spaceport_types::{Bounds, Geometry};

    use super::*;

    /// Puts NAL units back together from RTP payloads, as an independent reading of RFC 6184.
    pub(in super::super) fn depacketize_h264<'a>(
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> Vec<Vec<u8>> {
        let mut units: Vec<Vec<u8>> = Vec::new();
        let mut open = false;
        for payload in payloads {
            match payload[0] & 0x1f {
                1..=23 => units.push(payload.to_vec()),
                24 => {
                    let mut rest = &payload[1..];
                    while !rest.is_empty() {
                        let length = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
                        units.push(rest[2..2 + length].to_vec());
                        rest = &rest[2 + length..];
                    }
                }
                28 => {
                    if payload[1] & 0x80 != 0 {
                        assert!(!open, "a start without the end of the one before");
                        units.push(vec![(payload[0] & 0xe0) | (payload[1] & 0x1f)]);
                        open = true;
                    }
                    assert!(open, "a fragment without its start");
                    units.last_mut().unwrap().extend_from_slice(&payload[2..]);
                    open = payload[1] & 0x40 == 0;
                }
                other => panic!("payload type {other}"),
            }
        }
        assert!(!open, "the last fragment is missing");
        units
    }

    fn unit(header: u8, length: usize) -> Vec<u8> {
        let mut unit = vec![header];
        unit.extend((1..length).map(|index| (index % 254 + 1) as u8));
        unit
    }

    fn annex_b(units: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for (index, unit) in units.iter().enumerate() {
            stream.extend_from_slice(if index % 2 == 0 { &[0, 0, 0, 1] } else { &[0, 0, 1] });
            stream.extend_from_slice(unit);
        }
        stream
    }

    fn round_trip(units: &[Vec<u8>]) -> Vec<Arc<[u8]>> {
        let payloads = h264(&annex_b(units));
        assert!(payloads.iter().all(|payload| payload.len() <= MAX_PAYLOAD));
        assert_eq!(depacketize_h264(payloads.iter().map(|p| &p[..])), units);
        payloads
    }

    #[test]
    fn parameter_sets_travel_together_and_slices_alone() {
        let payloads = round_trip(&[unit(0x67, 20), unit(0x28, 4), unit(0x65, 500)]);
        assert_eq!(payloads.len(), 2);
        // NRI is the highest of the two, whichever comes first.
        assert_eq!(payloads[0][0], 0x78);
        assert_eq!(payloads[1][0], 0x65);
    }

    #[test]
    fn parameter_sets_too_large_for_one_packet_are_not_lost() {
        let payloads = round_trip(&[unit(0x67, 600), unit(0x68, 600), unit(0x65, 10)]);
        assert_eq!(payloads.len(), 3);
        round_trip(&[unit(0x67, 2000), unit(0x68, 8), unit(0x65, 10)]);
        round_trip(&[unit(0x67, 8), unit(0x68, MAX_PAYLOAD), unit(0x06, 2), unit(0x65, 10)]);
    }

    #[test]
    fn aggregates_and_single_units_fill_a_packet_to_the_last_byte() {
        let full = round_trip(&[unit(0x67, 100), unit(0x68, MAX_PAYLOAD - 1 - 2 - 100 - 2)]);
        assert_eq!((full.len(), full[0].len()), (1, MAX_PAYLOAD));
        assert_eq!(round_trip(&[unit(0x67, 100), unit(0x68, MAX_PAYLOAD - 104)]).len(), 2);
        assert_eq!(round_trip(&[unit(0x65, MAX_PAYLOAD)]).len(), 1);
        assert_eq!(round_trip(&[unit(0x65, MAX_PAYLOAD + 1)]).len(), 2);
    }

    #[test]
    fn fragments_are_equally_long_but_for_the_last() {
        for length in [1121, 2236, 2237, 2238, 50_000, 300_000] {
            let payloads = round_trip(&[unit(0x65, length)]);
            let (last, others) = payloads.split_last().unwrap();
            assert!(others.iter().all(|payload| payload.len() == others[0].len()));
            assert!(last.len() <= others[0].len());
            assert_eq!(payloads.len(), (length - 1).div_ceil(MAX_PAYLOAD - 2));
        }
    }

    #[test]
    fn delimiters_filler_and_zeros_are_left_out() {
        let mut stream = vec![0xff, 0, 0, 0, 1, 0x09, 0xf0, 0, 0, 1, 0x0c, 0xff];
        stream.extend_from_slice(&[0, 0, 0, 1, 0x41, 7, 0, 0, 0, 0, 0, 1]);
        let payloads = h264(&stream);
        assert_eq!(payloads.len(), 1);
        assert_eq!(payloads[0][..], [0x41, 7]);
        for nothing in [&[][..], &[0], &[0, 0, 1], &[0, 0, 0, 1, 0, 0], &[1, 2, 3, 4]] {
            assert!(h264(nothing).is_empty(), "{nothing:?}");
        }
    }

    #[test]
    fn a_vp8_frame_starts_once_and_has_a_picture_id_to_overwrite() {
        for length in [1, 1116, 1117, 40_000] {
            let frame: Vec<u8> = (0..length).map(|index| index as u8).collect();
            let payloads = vp8(&frame);
            let mut whole = Vec::new();
            for (index, payload) in payloads.iter().enumerate() {
                assert!(payload.len() <= MAX_PAYLOAD);
                assert_eq!(payload[..4], [if index == 0 { 0x90 } else { 0x80 }, 0x80, 0x80, 0]);
                whole.extend_from_slice(&payload[4..]);
            }
            assert_eq!(whole, frame);
        }
        assert!(vp8(&[]).is_empty());
    }

    /// Puts a VP9 frame back together, as an independent reading of RFC 9628. Returns its picture id,
    /// whether it is predicted, its size, and the frame.
    pub(in super::super) fn depacketize_vp9<'a>(
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> (u16, bool, Option<Size>, Vec<u8>) {
        let payloads: Vec<_> = payloads.into_iter().collect();
        let (mut ids, mut predicted, mut size, mut frame) =
            (Vec::new(), Vec::new(), None, Vec::new());
        for (index, payload) in payloads.iter().enumerate() {
            let flag = |bit: u8| payload[0] >> bit & 1 == 1;
            assert!(flag(7) && !flag(5) && !flag(4), "I, no layers, not flexible");
            assert_eq!((flag(3), flag(2)), (index == 0, index + 1 == payloads.len()), "B and E");
            assert_eq!(payload[1] >> 7, 1, "15 bits");
            ids.push(u16::from_be_bytes([payload[1] & 0x7f, payload[2]]));
            predicted.push(flag(6));
            let mut rest = &payload[3..];
            if flag(1) {
                assert_eq!(rest[0], 0b0001_0000, "one layer, with its size");
                let side = |at: usize| u32::from(u16::from_be_bytes([rest[at], rest[at + 1]]));
                size = Some(Size::new(side(1), side(3)));
                rest = &rest[5..];
            }
            frame.extend_from_slice(rest);
        }
        assert!(
            ids.iter().all(|&id| id == ids[0]) && predicted.iter().all(|&it| it == predicted[0])
        );
        (ids[0], predicted[0], size, frame)
    }

    #[test]
    fn a_vp9_frame_begins_and_ends_once_and_a_keyframe_says_its_size() {
        for length in [1, 1112, 1113, 40_000] {
            let frame: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            for size in [None, Some(Size::new(1920, 1080))] {
                let payloads = vp9(&frame, size);
                assert!(payloads.iter().all(|payload| payload.len() <= MAX_PAYLOAD));
                let numbered: Vec<_> =
                    payloads.iter().map(|payload| with_vp9_picture_id(payload, 0x1234)).collect();
                let read = depacketize_vp9(numbered.iter().map(|payload| &**payload));
                assert_eq!(read, (0x1234, size.is_none(), size, frame.clone()));
            }
        }
        assert!(vp9(&[], None).is_empty());
        assert_eq!(with_vp9_picture_id(&[1], 7)[..], [1], "too short to have one");
    }

    /// Puts the OBUs of a temporal unit back together, as an independent reading of the RTP payload
    /// format.
    pub(in super::super) fn depacketize_av1<'a>(
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> (bool, Vec<Vec<u8>>) {
        let (mut obus, mut open, mut new): (Vec<Vec<u8>>, _, _) = (Vec::new(), false, Vec::new());
        for payload in payloads {
            let (z, y, w) = (payload[0] >> 7 == 1, payload[0] >> 6 & 1 == 1, payload[0] >> 4 & 3);
            new.push(payload[0] >> 3 & 1 == 1);
            assert_eq!(payload[0] & 7, 0);
            assert_eq!(z, open, "an element goes on that was not open, or the other way round");
            let mut rest = &payload[1..];
            let mut count = 0;
            while !rest.is_empty() {
                count += 1;
                let mut length = rest.len();
                if count != w {
                    length = usize::from(rest[0] & 0x7f);
                    let long = rest[0] & 0x80 != 0;
                    if long {
                        assert_eq!(rest[1] & 0x80, 0);
                        length |= usize::from(rest[1]) << 7;
                    }
                    rest = &rest[1 + usize::from(long)..];
                }
                let (element, after) = rest.split_at(length);
                assert!(!element.is_empty());
                rest = after;
                match obus.last_mut() {
                    Some(obu) if z && count == 1 => obu.extend_from_slice(element),
                    _ => obus.push(element.to_vec()),
                }
            }
            assert!(w == 0 || w == count, "{count} elements, not {w}");
            open = y;
        }
        assert!(!open, "the last element is not whole");
        assert!(new[1..].iter().all(|new| !new), "only the first packet begins a sequence");
        (new[0], obus)
    }

    /// An OBU with and without its size.
    fn obu(kind: u8, length: usize) -> [Vec<u8>; 2] {
        let body: Vec<u8> = (0..length).map(|index| (index % 253) as u8).collect();
        let mut sized = vec![kind << 3 | 2];
        leb128(length, &mut sized);
        sized.extend_from_slice(&body);
        [sized, [vec![kind << 3], body].concat()]
    }

    #[test]
    fn a_temporal_unit_goes_without_sizes_and_delimiter() {
        for frame in
            [0, 1, 1100, 1104, 1105, 1106, 1117, 1118, 1119, 1120, 2232, 2233, 2234, 70_000]
        {
            let (delimiter, sequence, frame) = (obu(2, 0), obu(1, 12), obu(6, frame));
            let unit = [&delimiter[0][..], &sequence[0], &frame[0]].concat();
            let payloads = av1(&unit, true);
            assert!(payloads.iter().all(|payload| payload.len() <= MAX_PAYLOAD));
            let read = depacketize_av1(payloads.iter().map(|payload| &**payload));
            assert_eq!(read, (true, vec![sequence[1].clone(), frame[1].clone()]));
            assert!(payloads.len() <= (unit.len() + 4).div_ceil(MAX_PAYLOAD - 3), "{}", unit.len());
            let payloads = av1(&[&delimiter[0][..], &frame[0]].concat(), false);
            let read = depacketize_av1(payloads.iter().map(|payload| &**payload));
            assert_eq!(read, (false, vec![frame[1].clone()]));
        }
    }

    #[test]
    fn many_obus_and_extensions_stay_apart() {
        let mut unit = Vec::new();
        let mut expected = Vec::new();
        for length in [3, 130, 0, 700, 5, 5, 5, 1200, 1] {
            let [sized, bare] = obu(4, length);
            // With an extension, of which the size comes after.
            unit.extend_from_slice(&[sized[0] | 4, 0x28]);
            unit.extend_from_slice(&sized[1..]);
            expected.push([&[bare[0] | 4, 0x28][..], &bare[1..]].concat());
        }
        // The last may be without its size.
        unit.extend_from_slice(&[6 << 3, 1, 2, 3]);
        expected.push(vec![6 << 3, 1, 2, 3]);
        let payloads = av1(&unit, false);
        assert_eq!(depacketize_av1(payloads.iter().map(|payload| &**payload)), (false, expected));
    }

    #[test]
    fn what_is_no_temporal_unit_is_not_sent() {
        let whole = [obu(2, 0)[0].clone(), obu(6, 40)[0].clone()].concat();
        assert_eq!(av1(&whole, false).len(), 1);
        assert!(av1(&whole[..whole.len() - 1], false).is_empty(), "cut off");
        for nothing in
            [&[][..], &[0x12, 0], &[0x32], &[0x36], &[0x32, 0xff, 0xff, 0xff, 0xff, 0xff]]
        {
            assert!(av1(nothing, true).is_empty(), "{nothing:?}");
        }
    }

    pub(in super::super) fn packet(codec: Codec, payload: Vec<u8>) -> Packet {
        Packet {
            sequence: 1,
            codec,
            keyframe: true,
            codec_epoch: 1,
            geometry: Geometry {
                frame_size: Size::new(64, 64),
                scale: 1.0,
                logical_bounds: Bounds::new(0, 0, 64, 64),
                geometry_epoch: 1,
            },
            captured_at: Duration::ZERO,
            encode_duration: Duration::ZERO,
            payload: payload.into(),
        }
    }

    #[test]
    fn a_frame_is_packetized_once_for_all_its_viewers() {
        let mut packetizer = Packetizer::default();
        let first = packet(Codec::H264, annex_b(&[unit(0x65, 3000)]));
        let again = packetizer.payloads(&first.clone());
        assert!(Arc::ptr_eq(&packetizer.payloads(&first), &again));
        // The same bytes elsewhere are another frame, and the old ones make room in time.
        for _ in 0..2 * RECENT_FRAMES {
            let other = packet(Codec::H264, annex_b(&[unit(0x65, 3000)]));
            assert!(!Arc::ptr_eq(&packetizer.payloads(&other), &again));
        }
        assert_eq!(packetizer.recent.len(), RECENT_FRAMES);
        let large = packet(Codec::H264, annex_b(&[unit(0x65, RECENT_BYTES - 100)]));
        packetizer.payloads(&large);
        assert!(packetizer.bytes <= RECENT_BYTES);
        let kept: usize = packetizer.recent.iter().map(|recent| recent.frame.len()).sum();
        assert_eq!(packetizer.bytes, kept);
    }
}
