//! The video message: a length prefix, a JSON header, and the encoded frame.
//!
//! ```text
//! 0        4        8                8+H                    8+H+P
//! | H: u32 | P: u32 | header, UTF-8  | payload               |
//! ```
//!
//! Both lengths are big-endian. On a WebSocket one binary message holds one packet; on a reliable
//! stream packets follow each other, and [`Lengths`] says how much to read next.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use spaceport_types::{Codec, Error, Kind, Packet, Result, SessionId};

use crate::DecodeError;

/// The two lengths that open every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the JSON header.
    pub header: usize,
    /// Bytes of the payload.
    pub payload: usize,
}

impl Lengths {
    /// Bytes the two lengths take themselves.
    pub const SIZE: usize = 8;

    /// Reads the prefix of a packet. Both limits are checked, so the result may size a buffer.
    pub fn parse(prefix: [u8; Self::SIZE]) -> Result<Self, DecodeError> {
        let [h0, h1, h2, h3, p0, p1, p2, p3] = prefix;
        let within = |what, bytes, limit: usize| {
            let length = u32::from_be_bytes(bytes);
            match usize::try_from(length) {
                Ok(length) if length <= limit => Ok(length),
                _ => Err(DecodeError::TooLong { what, length: length.into(), limit: limit as u64 }),
            }
        };
        Ok(Self {
            header: within("packet header", [h0, h1, h2, h3], MAX_HEADER)?,
            payload: within("packet payload", [p0, p1, p2, p3], MAX_PAYLOAD)?,
        })
    }

    /// Bytes of the whole packet, prefix included.
    pub const fn total(self) -> usize {
        Self::SIZE + self.header + self.payload
    }
}

/// What the header says about a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header<'a> {
    /// The media session the frame was sent in.
    pub session_id: Cow<'a, str>,
    /// Counts the frames of one target; strictly rising on a socket, gaps are replaced frames.
    pub sequence: u64,
    /// Which geometry the frame has.
    #[serde(default)]
    pub geometry_epoch: u64,
    /// Counts encoder replacements.
    #[serde(default)]
    pub codec_epoch: u32,
    /// Columns of the frame, without the padding of odd sizes.
    #[serde(default)]
    pub width_px: u32,
    /// Rows of the frame, without the padding of odd sizes.
    #[serde(default)]
    pub height_px: u32,
    /// When the pixels were read, in microseconds of the server's media clock.
    #[serde(default)]
    pub capture_timestamp_us: u64,
    /// How long encoding took, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encode_duration_us: Option<u64>,
    /// How the payload is encoded.
    pub codec: Codec,
    /// Whether a decoder can start here.
    #[serde(default)]
    pub keyframe: bool,
}

impl<'a> Header<'a> {
    /// The header of `packet` when it is sent in `session`.
    pub fn new(session: &'a SessionId, packet: &Packet) -> Self {
        let geometry = packet.geometry;
        Self {
            session_id: session.as_str().into(),
            sequence: packet.sequence,
            geometry_epoch: geometry.geometry_epoch,
            codec_epoch: packet.codec_epoch,
            width_px: geometry.frame_size.width,
            height_px: geometry.frame_size.height,
            capture_timestamp_us: micros(packet.captured_at),
            encode_duration_us: Some(micros(packet.encode_duration)),
            codec: packet.codec,
            keyframe: packet.keyframe,
        }
    }
}

/// The canonical JSON around a [`Header`].
#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    direction: Direction,
    #[serde(borrow)]
    message: Header<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Direction {
    Video,
}

/// A packet ready to be sent, in the two pieces it is made of.
///
/// The payload is the one every viewer shares. Only [`Encoded::into_message`] copies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Length prefix and JSON header.
    pub header: Bytes,
    /// The encoded frame.
    pub payload: Bytes,
}

impl Encoded {
    /// Bytes of the whole packet.
    #[expect(clippy::len_without_is_empty, reason = "a packet has a prefix and is never empty")]
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Both pieces in one buffer, for carriers that send a message from one.
    pub fn into_message(self) -> Bytes {
        let mut message = BytesMut::with_capacity(self.len());
        message.extend_from_slice(&self.header);
        message.extend_from_slice(&self.payload);
        message.freeze()
    }
}

/// Frames `packet` for one viewer of `session`.
///
/// Fails when the payload is longer than a packet may carry, as an uncompressed 8K frame is.
pub fn encode(session: &SessionId, packet: &Packet) -> Result<Encoded> {
    let header = Header::new(session, packet);
    encode_parts(header, packet.payload.clone())
}

/// Puts a payload behind its header.
pub fn encode_parts(header: Header<'_>, payload: Bytes) -> Result<Encoded> {
    let envelope = Envelope { direction: Direction::Video, message: header };
    let mut buffer = BytesMut::with_capacity(TYPICAL_HEADER).writer();
    buffer.get_mut().put_bytes(0, Lengths::SIZE);
    serde_json::to_writer(&mut buffer, &envelope)
        .map_err(|error| Error::new(Kind::Internal, "a packet header is not JSON").source(error))?;
    let mut header = buffer.into_inner();
    let lengths = [
        prefix("header", header.len() - Lengths::SIZE, MAX_HEADER)?,
        prefix("payload", payload.len(), MAX_PAYLOAD)?,
    ];
    header[..Lengths::SIZE].copy_from_slice(lengths.as_flattened());
    Ok(Encoded { header: header.freeze(), payload })
}

/// Reads one whole packet. The payload is a slice of `message`, not a copy.
pub fn decode(message: Bytes) -> Result<(Header<'static>, Bytes), DecodeError> {
    let received = message.len() as u64;
    let Some(prefix) = message.first_chunk() else {
        return Err(DecodeError::Truncated { needed: Lengths::SIZE as u64, received });
    };
    let lengths = Lengths::parse(*prefix)?;
    let declared = lengths.total() as u64;
    if received < declared {
        return Err(DecodeError::Truncated { needed: declared, received });
    }
    if received > declared {
        return Err(DecodeError::TrailingBytes { declared, received });
    }
    let payload_at = Lengths::SIZE + lengths.header;
    let header = decode_header(&message[Lengths::SIZE..payload_at])?;
    Ok((header, message.slice(payload_at..)))
}

/// Reads the JSON header of a packet whose [`Lengths`] have been read.
pub fn decode_header(json: &[u8]) -> Result<Header<'static>, DecodeError> {
    let Envelope { direction: Direction::Video, message } =
        serde_json::from_slice(json).map_err(|error| DecodeError::json("packet header", &error))?;
    Ok(Header { session_id: message.session_id.into_owned().into(), ..message })
}

fn prefix(what: &'static str, length: usize, limit: usize) -> Result<[u8; 4]> {
    match u32::try_from(length) {
        Ok(prefix) if length <= limit => Ok(prefix.to_be_bytes()),
        _ => Err(Error::new(Kind::LimitExceeded, format!("a packet {what} is too long to send"))
            .with("length", length)
            .with("limit", limit)
            .hint("Set a smaller `max_dimension`, or choose a compressed codec")),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The longest JSON header, fixed by the contract. It also keeps the first byte of every packet
/// zero, which is how an audio packet (first byte 0x52) is told apart.
pub const MAX_HEADER: usize = 1 << 20;

/// The longest payload, fixed by the contract: room for an uncompressed 4K frame, twice.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// What a header takes with ids of ordinary length, so that the buffer does not grow while it is
/// written.
const TYPICAL_HEADER: usize = 320;

#[cfg(test)]
mod tests {
    use spaceport_types::{Bounds, Geometry, Size};

    use super::*;

    fn packet() -> (SessionId, Packet) {
        let frame_size = Size::new(640, 360);
        let packet = Packet {
            sequence: 7,
            codec: Codec::H264,
            keyframe: true,
            codec_epoch: 1,
            geometry: Geometry {
                frame_size,
                scale: 1.0,
                logical_bounds: Bounds::new(0, 0, 640, 360),
                geometry_epoch: 1,
            },
            captured_at: Duration::from_micros(123_456),
            encode_duration: Duration::from_micros(900),
            payload: Bytes::from_static(&[0, 0, 0, 1, 0x65]),
        };
        (SessionId::new("m\"1"), packet)
    }

    fn message(header: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u32).to_be_bytes().to_vec();
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(header);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn a_packet_has_the_canonical_bytes() {
        let (session, packet) = packet();
        let header = br#"{"direction":"video","message":{"session_id":"m\"1","sequence":7,"geometry_epoch":1,"codec_epoch":1,"width_px":640,"height_px":360,"capture_timestamp_us":123456,"encode_duration_us":900,"codec":"h264","keyframe":true}}"#;
        let encoded = encode(&session, &packet).unwrap();
        assert_eq!(encoded.len(), 8 + header.len() + 5);
        assert_eq!(encoded.into_message(), message(header, &[0, 0, 0, 1, 0x65]));
    }

    #[test]
    fn the_payload_is_shared_not_copied() {
        let (session, packet) = packet();
        let encoded = encode(&session, &packet).unwrap();
        assert_eq!(encoded.payload.as_ptr(), packet.payload.as_ptr());

        let message = encoded.into_message();
        let (header, payload) = decode(message.clone()).unwrap();
        assert_eq!(header, Header::new(&session, &packet));
        assert_eq!(payload, packet.payload);
        assert_eq!(payload.as_ptr_range().end, message.as_ptr_range().end);
    }

    #[test]
    fn every_truncation_and_every_extra_byte_is_refused() {
        let (session, packet) = packet();
        let whole = encode(&session, &packet).unwrap().into_message();
        for length in 0..whole.len() {
            let error = decode(whole.slice(..length)).unwrap_err();
            assert!(matches!(error, DecodeError::Truncated { .. }), "{length}: {error:?}");
        }
        let longer = [&whole[..], &[0]].concat();
        let error = decode(longer.into()).unwrap_err();
        assert!(matches!(error, DecodeError::TrailingBytes { .. }), "{error:?}");
    }

    #[test]
    fn lengths_over_the_limit_are_refused_before_anything_is_read() {
        let parse = |header: u32, payload: u32| {
            let prefix = [header.to_be_bytes(), payload.to_be_bytes()].concat();
            Lengths::parse(prefix.try_into().unwrap())
        };
        let most = parse(MAX_HEADER as u32, MAX_PAYLOAD as u32).unwrap();
        assert_eq!(most.total(), 8 + MAX_HEADER + MAX_PAYLOAD);
        assert_eq!(
            parse(u32::MAX, 0),
            Err(DecodeError::TooLong {
                what: "packet header",
                length: u32::MAX.into(),
                limit: MAX_HEADER as u64
            })
        );
        let payload = parse(2, MAX_PAYLOAD as u32 + 1).unwrap_err();
        assert!(payload.to_string().contains("packet payload"), "{payload}");
    }

    #[test]
    fn a_header_that_is_not_a_video_header_is_refused() {
        let refused = [
            &b""[..],
            b"{}",
            b"[]",
            b"\xff\xfe",
            br#"{"direction":"audio","message":{"session_id":"a","sequence":1,"codec":"h264"}}"#,
            br#"{"direction":"video","message":{"session_id":"a","codec":"h264"}}"#,
            br#"{"direction":"video","message":{"session_id":"a","sequence":-1,"codec":"h264"}}"#,
            br#"{"direction":"video","message":{"session_id":"a","sequence":1,"codec":"mpeg1"}}"#,
        ];
        for header in refused {
            let error = decode(message(header, b"x").into()).unwrap_err();
            assert!(matches!(error, DecodeError::Json { .. }), "{header:?}: {error:?}");
        }
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        assert!(decode(message(&deep, b"").into()).is_err());
    }

    // A newer server may say more, and an older one less, than we know.
    #[test]
    fn unknown_members_are_passed_over_and_optional_ones_may_be_missing() {
        let json = br#"{"future":[1],"direction":"video","message":
            {"session_id":"a","sequence":1,"codec":"png","color":{"range":"full"}}}"#;
        let (header, payload) = decode(message(json, b"").into()).unwrap();
        assert_eq!((header.sequence, header.codec, header.keyframe), (1, Codec::Png, false));
        assert_eq!((header.width_px, header.encode_duration_us), (0, None));
        assert!(payload.is_empty());
    }

    #[test]
    fn a_payload_over_the_limit_is_not_sent() {
        let (session, mut packet) = packet();
        packet.payload = vec![0; MAX_PAYLOAD + 1].into();
        let error = encode(&session, &packet).unwrap_err();
        assert_eq!(error.kind(), Kind::LimitExceeded);
        assert_eq!(error.context("length"), Some("67108865"));
    }
}
