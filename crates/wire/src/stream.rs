//! Control messages on a reliable byte stream, as QUIC and WebTransport carry them.
//!
//! Each message is framed as a packet is: two lengths, then the JSON text in place of the header, and
//! no payload. See [`crate::packet`] for the bytes.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::packet::Lengths;
use crate::{DecodeError, control};

/// Puts the lengths in front of a control message.
pub fn frame(text: &str) -> Bytes {
    let mut framed = BytesMut::with_capacity(Lengths::SIZE + text.len());
    // Nothing of ours is that long; a peer refuses what says so.
    framed.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    framed.put_u32(0);
    framed.put_slice(text.as_bytes());
    framed.freeze()
}

/// Takes messages out of the bytes of a stream, which come in pieces of any size.
#[derive(Debug)]
pub struct Reader {
    buffer: BytesMut,
    longest: usize,
}

impl Reader {
    /// A reader of messages of at most `longest` bytes: it holds that many and the last piece.
    pub fn new(longest: usize) -> Self {
        Self { buffer: BytesMut::new(), longest }
    }

    /// A reader of what clients send.
    pub fn of_client() -> Self {
        Self::new(control::MAX_TEXT)
    }

    /// Goes on with messages of another length.
    pub fn of_length(self, longest: usize) -> Self {
        Self { longest, ..self }
    }

    /// Adds what came next. To be called when [`Reader::message`] has no more.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole message. Nothing comes after an error: where the next one starts is not known.
    pub fn message(&mut self) -> Result<Option<String>, DecodeError> {
        let Some(prefix) = self.buffer.first_chunk() else { return Ok(None) };
        let lengths = Lengths::parse(*prefix)?;
        for (what, length, limit) in [
            ("control message", lengths.header, self.longest),
            // An audio packet, one day. A control message has none.
            ("payload of a control message", lengths.payload, 0),
        ] {
            if length > limit {
                return Err(DecodeError::TooLong {
                    what,
                    length: length as u64,
                    limit: limit as u64,
                });
            }
        }
        if self.buffer.len() < lengths.total() {
            return Ok(None);
        }
        let mut message = self.buffer.split_to(lengths.total());
        message.advance(Lengths::SIZE);
        match String::from_utf8(message.into()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(DecodeError::Malformed { what: "UTF-8 text" }),
        }
    }

    /// Whether a message has begun and not ended.
    pub fn is_midway(&self) -> bool {
        !self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_whole_however_the_stream_is_cut() {
        let texts = [r#"{"type":"get_stats"}"#, "", r#"{"type":"é"}"#];
        let bytes: Vec<u8> = texts.iter().flat_map(|text| frame(text)).collect();
        for size in 1..bytes.len() {
            let mut reader = Reader::of_client();
            let mut read = Vec::new();
            for piece in bytes.chunks(size) {
                reader.push(piece);
                while let Some(text) = reader.message().unwrap() {
                    read.push(text);
                }
            }
            assert_eq!(read, texts, "in pieces of {size}");
            assert!(!reader.is_midway());
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_has_come() {
        let mut reader = Reader::new(16);
        reader.push(&frame("seventeen letters")[..8]);
        assert!(matches!(reader.message(), Err(DecodeError::TooLong { limit: 16, .. })));
        let mut reader = Reader::new(16);
        reader.push(&[0, 0, 0, 2, 0, 0, 0, 1]);
        assert!(matches!(reader.message(), Err(DecodeError::TooLong { limit: 0, .. })));
    }

    #[test]
    fn what_is_not_text_is_refused() {
        let mut reader = Reader::of_client();
        reader.push(&[0, 0, 0, 1, 0, 0, 0, 0, 0xff]);
        assert_eq!(reader.message(), Err(DecodeError::Malformed { what: "UTF-8 text" }));
    }
}
