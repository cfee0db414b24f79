//! Video over QUIC: the 24 bytes in front of every piece of a packet.
//!
//! ```text
//! 0      4         5       6       8       10         12          20      24
//! | RVD2 | version | flags | index | count | reserved | packet id | total | bytes of the packet |
//! ```
//!
//! All numbers are big-endian. A datagram carries one piece of `count`; a stream of its own carries a
//! whole packet behind the same header, as piece 0 of 1. The packet id counts what one viewer was sent.

use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::DecodeError;
use crate::packet::{Encoded, Lengths, MAX_HEADER, MAX_PAYLOAD};

/// What stands in front of a piece of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whether a decoder can start at the packet.
    pub keyframe: bool,
    /// Which piece this is, from 0.
    pub index: u16,
    /// How many pieces there are.
    pub count: u16,
    /// Names the packet; rises by one with each that a viewer is sent.
    pub packet_id: u64,
    /// Bytes of the whole packet, its own lengths included.
    pub total: u32,
}

impl Header {
    /// Bytes it takes.
    pub const SIZE: usize = 24;

    /// The header of a packet that is sent in one piece, on a stream of its own.
    ///
    /// # Errors
    ///
    /// [`DecodeError::TooLong`] for a packet that no receiver takes.
    pub fn whole(packet_id: u64, keyframe: bool, packet: &Encoded) -> Result<Self, DecodeError> {
        let total = total(packet)?;
        Ok(Self { keyframe, index: 0, count: 1, packet_id, total })
    }

    /// The bytes of it.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let mut buffer = &mut bytes[..];
        buffer.put_slice(&MAGIC);
        buffer.put_u8(VERSION);
        buffer.put_u8(u8::from(self.keyframe) * KEYFRAME);
        buffer.put_u16(self.index);
        buffer.put_u16(self.count);
        buffer.put_u16(0);
        buffer.put_u64(self.packet_id);
        buffer.put_u32(self.total);
        bytes
    }

    /// Reads one. What it says is possible; whether its pieces keep to it is for the receiver.
    pub fn parse(bytes: [u8; Self::SIZE]) -> Result<Self, DecodeError> {
        let [m0, m1, m2, m3, version, flags, i0, i1, c0, c1, _, _, rest @ ..] = bytes;
        let [p0, p1, p2, p3, p4, p5, p6, p7, t0, t1, t2, t3] = rest;
        if [m0, m1, m2, m3] != MAGIC || version != VERSION {
            return Err(DecodeError::Malformed { what: "video datagram of this version" });
        }
        let header = Self {
            keyframe: flags & KEYFRAME != 0,
            index: u16::from_be_bytes([i0, i1]),
            count: u16::from_be_bytes([c0, c1]),
            packet_id: u64::from_be_bytes([p0, p1, p2, p3, p4, p5, p6, p7]),
            total: u32::from_be_bytes([t0, t1, t2, t3]),
        };
        let total = header.total as usize;
        if total > MAX_TOTAL {
            return Err(DecodeError::TooLong {
                what: "packet",
                length: header.total.into(),
                limit: MAX_TOTAL as u64,
            });
        }
        // No piece is empty, so there are at most as many as bytes.
        if header.index >= header.count || total < Lengths::SIZE.max(header.count.into()) {
            return Err(DecodeError::Malformed { what: "piece of a packet" });
        }
        Ok(header)
    }
}

/// Cuts a packet into datagrams of at most `longest` bytes, header included.
///
/// # Errors
///
/// [`DecodeError::TooLong`] for a packet that no receiver takes, or one that needs more pieces than can
/// be counted.
pub fn pieces(
    packet_id: u64,
    keyframe: bool,
    packet: &Encoded,
    longest: usize,
) -> Result<impl Iterator<Item = Bytes> + Send + use<>, DecodeError> {
    let total = total(packet)?;
    let room = longest.saturating_sub(Header::SIZE).max(1);
    let needed = (total as usize).div_ceil(room);
    let Ok(count) = u16::try_from(needed) else {
        return Err(DecodeError::TooLong {
            what: "packet for its datagrams",
            length: needed as u64,
            limit: u16::MAX.into(),
        });
    };
    let (mut head, mut tail) = (packet.header.clone(), packet.payload.clone());
    Ok((0..count).map(move |index| {
        let header = Header { keyframe, index, count, packet_id, total };
        let mut datagram = BytesMut::with_capacity(Header::SIZE + room);
        datagram.put_slice(&header.to_bytes());
        let from_head = head.split_to(head.len().min(room));
        datagram.put_slice(&from_head);
        datagram.put_slice(&tail.split_to(tail.len().min(room - from_head.len())));
        datagram.freeze()
    }))
}

fn total(packet: &Encoded) -> Result<u32, DecodeError> {
    let length = packet.len();
    match u32::try_from(length) {
        Ok(total) if length <= MAX_TOTAL => Ok(total),
        _ => Err(DecodeError::TooLong {
            what: "packet",
            length: length as u64,
            limit: MAX_TOTAL as u64,
        }),
    }
}

/// Puts packets together again from datagrams that are lost, late, doubled or in no order.
///
/// It holds one packet, the newest of which anything has come. A packet that is not complete when a newer
/// one begins, or after [`DEADLINE`], is given up.
#[derive(Debug, Default)]
pub struct Assembler {
    partial: Option<Partial>,
    /// The newest packet that is over, complete or not.
    done: Option<u64>,
    /// Whether packets have been given up since that was last asked.
    lost: bool,
}

#[derive(Debug)]
struct Partial {
    header: Header,
    pieces: Vec<Option<Bytes>>,
    missing: usize,
    bytes: usize,
    began: Instant,
}

impl Assembler {
    /// Takes a datagram, and returns the packet it completes.
    pub fn push(
        &mut self,
        datagram: &Bytes,
        now: Instant,
    ) -> Result<Option<(Header, Bytes)>, DecodeError> {
        self.expire(now); // whatever this datagram is: garbage keeps nothing alive
        let Some(header) = datagram.first_chunk() else {
            let needed = Header::SIZE as u64;
            return Err(DecodeError::Truncated { needed, received: datagram.len() as u64 });
        };
        let header = Header::parse(*header)?;
        let piece = datagram.slice(Header::SIZE..);
        if piece.is_empty() {
            return Err(DecodeError::Malformed { what: "piece of a packet" });
        }
        let newest = self.partial.as_ref().map(|partial| partial.header.packet_id);
        let over = self.done.is_some_and(|done| header.packet_id <= done);
        if over || newest.is_some_and(|newest| header.packet_id < newest) {
            return Ok(None); // given up, or had already
        }
        if newest != Some(header.packet_id) {
            self.lost |= self.partial.is_some();
            self.lost |= self.done.is_some_and(|done| header.packet_id - 1 > done);
            self.partial = Some(Partial {
                header,
                pieces: vec![None; header.count.into()],
                missing: header.count.into(),
                bytes: 0,
                began: now,
            });
        }
        let Some(partial) = &mut self.partial else { return Ok(None) };
        partial.add(header, piece)?;
        if partial.missing > 0 {
            return Ok(None);
        }
        let Some(Partial { header, pieces, bytes, .. }) = self.partial.take() else {
            return Ok(None);
        };
        self.done = Some(header.packet_id);
        let mut packet = BytesMut::with_capacity(bytes);
        for piece in pieces.into_iter().flatten() {
            packet.extend_from_slice(&piece);
        }
        Ok(Some((header, packet.freeze())))
    }

    /// Gives up what has waited too long. To be called at [`Assembler::deadline`].
    pub fn expire(&mut self, now: Instant) {
        if let Some(deadline) = self.deadline()
            && now >= deadline
            && let Some(partial) = self.partial.take()
        {
            self.done = Some(partial.header.packet_id);
            self.lost = true;
        }
    }

    /// When the packet that is being put together is given up.
    pub fn deadline(&self) -> Option<Instant> {
        Some(self.partial.as_ref()?.began + DEADLINE)
    }

    /// Whether packets have been lost since this was last asked: until the next keyframe, what comes can
    /// not be decoded.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }
}

impl Partial {
    fn add(&mut self, header: Header, piece: Bytes) -> Result<(), DecodeError> {
        let same = (header.count, header.total) == (self.header.count, self.header.total);
        let Some(place) = self.pieces.get_mut(usize::from(header.index)).filter(|_| same) else {
            return Err(DecodeError::Malformed { what: "piece of that packet" });
        };
        if place.is_some() {
            return Ok(()); // networks double datagrams
        }
        let total = header.total as usize;
        let bytes = self.bytes + piece.len();
        if bytes > total || (self.missing == 1 && bytes < total) {
            return Err(DecodeError::Malformed { what: "piece of that packet" });
        }
        *place = Some(piece);
        self.bytes = bytes;
        self.missing -= 1;
        Ok(())
    }
}

/// How long the pieces of a packet are waited for, by the public contract.
pub const DEADLINE: Duration = Duration::from_millis(150);

const MAGIC: [u8; 4] = *b"RVD2";

const VERSION: u8 = 2;

/// The flag of a packet that a decoder can start at. Other bits are not defined and passed over.
const KEYFRAME: u8 = 1;

/// The longest packet.
const MAX_TOTAL: usize = Lengths::SIZE + MAX_HEADER + MAX_PAYLOAD;

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn packet(length: usize) -> (Encoded, Bytes) {
        let whole: Bytes = (0..length).map(|at| at as u8).collect();
        let encoded = Encoded { header: whole.slice(..10), payload: whole.slice(10..) };
        (encoded, whole)
    }

    fn cut(packet_id: u64, keyframe: bool, length: usize) -> (Vec<Bytes>, Bytes) {
        let (encoded, whole) = packet(length);
        (pieces(packet_id, keyframe, &encoded, 124).unwrap().collect(), whole)
    }

    #[test]
    fn a_header_has_the_bytes_of_the_contract() {
        let header =
            Header { keyframe: true, index: 2, count: 3, packet_id: 0x0102, total: 0x0304 };
        let bytes = header.to_bytes();
        assert_eq!(
            bytes,
            *b"RVD2\x02\x01\x00\x02\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02\x00\x00\x03\x04"
        );
        assert_eq!(Header::parse(bytes), Ok(header));
    }

    #[test]
    fn a_header_that_cannot_be_is_refused() {
        let good = Header { keyframe: false, index: 0, count: 1, packet_id: 1, total: 8 };
        let with = |at: usize, value: u8| {
            let mut bytes = good.to_bytes();
            bytes[at] = value;
            Header::parse(bytes)
        };
        assert!(Header::parse(good.to_bytes()).is_ok());
        // magic, version, index not below count, no pieces, more pieces than bytes, shorter than two
        // lengths, longer than any packet
        for (at, value) in [(0, b'r'), (4, 1), (7, 1), (9, 0), (9, 9), (23, 7), (20, 5)] {
            assert!(with(at, value).is_err(), "byte {at} = {value}");
        }
        assert!(with(5, 0xfe).is_ok(), "flags of a later version");
        assert!(with(10, 0xff).is_ok(), "reserved");
    }

    #[test]
    fn packets_of_any_length_come_together_in_any_order() {
        let now = origin();
        for length in [10, 11, 99, 100, 101, 200, 1_000] {
            let (datagrams, whole) = cut(5, true, length);
            assert_eq!(datagrams.len(), length.div_ceil(100));
            assert!(datagrams.iter().all(|datagram| datagram.len() <= 124));
            let mut assembler = Assembler::default();
            let mut done = Vec::new();
            for datagram in datagrams.iter().rev().chain(&datagrams) {
                done.extend(assembler.push(datagram, now).unwrap());
            }
            let [(header, packet)] = &done[..] else { panic!("{length}: {done:?}") };
            assert_eq!((header.packet_id, header.keyframe, packet), (5, true, &whole));
            assert!(!assembler.take_lost());
        }
    }

    #[test]
    fn a_newer_packet_replaces_one_that_is_not_complete() {
        let now = origin();
        let (old, _) = cut(5, true, 300);
        let (new, whole) = cut(6, false, 50);
        let mut assembler = Assembler::default();
        assert_eq!(assembler.push(&old[0], now), Ok(None));
        assert_eq!(assembler.push(&new[0], now).unwrap().unwrap().1, whole);
        assert!(assembler.take_lost());
        for late in &old {
            assert_eq!(assembler.push(late, now), Ok(None), "too late");
        }
        assert!(!assembler.take_lost(), "said once");
    }

    #[test]
    fn a_packet_that_does_not_come_at_all_is_missed() {
        let now = origin();
        let mut assembler = Assembler::default();
        assembler.push(&cut(5, true, 50).0[0], now).unwrap().unwrap();
        assembler.push(&cut(6, false, 50).0[0], now).unwrap().unwrap();
        assert!(!assembler.take_lost());
        assembler.push(&cut(8, false, 50).0[0], now).unwrap().unwrap();
        assert!(assembler.take_lost());
    }

    #[test]
    fn pieces_are_waited_for_as_long_as_the_contract_says() {
        let now = origin();
        let (datagrams, _) = cut(5, true, 300);
        let mut assembler = Assembler::default();
        assembler.push(&datagrams[0], now).unwrap();
        assert_eq!(assembler.deadline(), Some(now + Duration::from_millis(150)));
        assembler.expire(now + Duration::from_millis(149));
        assert!(!assembler.take_lost());
        assembler.expire(now + Duration::from_millis(150));
        assert!(assembler.take_lost());
        assert_eq!(assembler.deadline(), None);
        let late = now + Duration::from_millis(151);
        assert_eq!(assembler.push(&datagrams[1], late), Ok(None));
        assert_eq!(assembler.deadline(), None, "nothing is kept of it");
    }

    #[test]
    fn pieces_that_contradict_each_other_are_refused_and_cost_nothing() {
        let now = origin();
        let mut assembler = Assembler::default();
        let piece = |index, count, total, bytes: usize| -> Bytes {
            let header = Header { keyframe: true, index, count, packet_id: 1, total };
            [&header.to_bytes()[..], &vec![7; bytes]].concat().into()
        };
        assembler.push(&piece(0, 2, 20, 10), now).unwrap();
        assert!(assembler.push(&piece(1, 3, 20, 10), now).is_err(), "another count");
        assert!(assembler.push(&piece(1, 2, 21, 10), now).is_err(), "another total");
        assert!(assembler.push(&piece(1, 2, 20, 11), now).is_err(), "more than there are");
        assert!(assembler.push(&piece(1, 2, 20, 9), now).is_err(), "fewer than there are");
        assert!(assembler.push(&piece(1, 2, 20, 0), now).is_err(), "none");
        assert!(assembler.push(&Bytes::from_static(b"RVD2"), now).is_err(), "cut short");
        assert!(assembler.push(&piece(1, 2, 20, 10), now).unwrap().is_some());
    }

    #[test]
    fn a_packet_of_too_many_pieces_is_not_sent() {
        let (encoded, _) = packet(200_000);
        assert!(pieces(1, true, &encoded, Header::SIZE + 2).is_err());
        assert!(pieces(1, true, &encoded, 0).is_err());
    }
}
