//! Frames that only a guest and its viewers can read, whatever lies between: SFrame (RFC 9605).
//!
//! The payload of a packet is one SFrame ciphertext, cipher suite AES_256_GCM_SHA512_128. The header
//! of the packet stays readable, so that a relay can count, cut and start viewers at keyframes; what
//! it says of the picture is authenticated with it, as *metadata*:
//!
//! ```text
//! | session id, UTF-8 | 0 | sequence: u64 | geometry epoch: u64 | codec epoch: u32 |
//! | width: u32 | height: u32 | keyframe: u8 | codec's name, UTF-8 |
//! ```
//!
//! Integers are big-endian. The capture time is left out: a relay has a clock of its own, and says
//! it on that.

use std::collections::VecDeque;
use std::fmt;

use bytes::Bytes;
use sframe::CipherSuite;
use sframe::frame::{EncryptedFrameView, MediaFrameView, MonotonicCounter};
use sframe::key::{DecryptionKey, EncryptionKey};
use spaceport_types::{Cause, Error, Kind, MediaKey, Result};

use crate::packet::Header;

/// The one cipher suite in use (RFC 9605 §4.5).
const SUITE: CipherSuite = CipherSuite::AesGcm256Sha512;

/// Senders that an [`Opener`] remembers. A viewer meets a new one when its relay connects again or
/// it is moved to another rung; the one unheard of for longest is forgotten.
const SENDERS: usize = 16;

/// Seals the frames that are sent to one viewer.
pub struct Sealer {
    key: EncryptionKey,
    counter: MonotonicCounter,
}

impl Sealer {
    /// A sender of its own. `key_id` is never to be used twice with one key: nonces are counted for
    /// each (RFC 9605 §4.4.1).
    ///
    /// # Errors
    ///
    /// `internal` when no key can be derived.
    pub fn new(key: &MediaKey, key_id: u64) -> Result<Self> {
        let key = EncryptionKey::derive_from(SUITE, key_id, key.expose()).map_err(internal)?;
        Ok(Self { key, counter: MonotonicCounter::default() })
    }

    /// Seals one frame, which is to be sent under this header.
    ///
    /// # Errors
    ///
    /// `internal` when it cannot be.
    pub fn seal(&mut self, header: &Header<'_>, payload: &[u8]) -> Result<Bytes> {
        let metadata = metadata(header);
        let mut sealed = Vec::new();
        MediaFrameView::try_with_meta_data(&mut self.counter, payload, &metadata)
            .and_then(|frame| frame.encrypt_into(&self.key, &mut sealed).map(|_| ()))
            .map_err(internal)?;
        Ok(Bytes::from(sealed).slice(metadata.len()..))
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("key_id", &self.key.key_id()).finish_non_exhaustive()
    }
}

/// Opens what [`Sealer`]s of the same key have sealed.
pub struct Opener {
    key: MediaKey,
    /// The one heard of last at the end.
    senders: VecDeque<Sender>,
}

struct Sender {
    key_id: u64,
    key: DecryptionKey,
    /// The counter of its last frame.
    last: Option<u64>,
}

impl AsRef<DecryptionKey> for Sender {
    fn as_ref(&self) -> &DecryptionKey {
        &self.key
    }
}

impl Opener {
    /// Knows no sender yet.
    pub fn new(key: MediaKey) -> Self {
        Self { key, senders: VecDeque::new() }
    }

    /// Opens one frame, which came under this header.
    ///
    /// # Errors
    ///
    /// `stream` with cause `no_decoder` when the frame was sealed with another key, is not whole, came
    /// under another header, or came before.
    pub fn open(&mut self, header: &Header<'_>, payload: &[u8]) -> Result<Bytes> {
        let metadata = metadata(header);
        let frame = EncryptedFrameView::try_with_meta_data(payload, &metadata).map_err(closed)?;
        let (key_id, counter) = (frame.header().key_id(), frame.header().counter());
        let mut sender = self.sender(key_id)?;
        if sender.last.is_some_and(|last| counter <= last) {
            return Err(closed("it came before"));
        }
        let mut opened = Vec::new();
        frame.decrypt_into(&sender.key, &mut opened).map_err(closed)?;
        sender.last = Some(counter);
        // Only now: a forged key id may not push out one that is in use.
        self.senders.retain(|known| known.key_id != key_id);
        self.senders.push_back(sender);
        if self.senders.len() > SENDERS {
            self.senders.pop_front();
        }
        Ok(Bytes::from(opened).slice(metadata.len()..))
    }

    fn sender(&self, key_id: u64) -> Result<Sender> {
        let known = self.senders.iter().find(|known| known.key_id == key_id);
        let last = known.and_then(|known| known.last);
        let key = match known {
            Some(known) => known.key.clone(),
            None => {
                DecryptionKey::derive_from(SUITE, key_id, self.key.expose()).map_err(internal)?
            }
        };
        Ok(Sender { key_id, key, last })
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("senders", &self.senders.len()).finish_non_exhaustive()
    }
}

/// What of a header is authenticated.
fn metadata(header: &Header<'_>) -> Vec<u8> {
    let mut metadata = Vec::with_capacity(96);
    metadata.extend_from_slice(header.session_id.as_bytes());
    metadata.push(0);
    metadata.extend_from_slice(&header.sequence.to_be_bytes());
    metadata.extend_from_slice(&header.geometry_epoch.to_be_bytes());
    metadata.extend_from_slice(&header.codec_epoch.to_be_bytes());
    metadata.extend_from_slice(&header.width_px.to_be_bytes());
    metadata.extend_from_slice(&header.height_px.to_be_bytes());
    metadata.push(header.keyframe.into());
    metadata.extend_from_slice(header.codec.name().as_bytes());
    metadata
}

fn internal(reason: impl fmt::Display) -> Error {
    Error::new(Kind::Internal, "a frame could not be sealed").with("reason", reason)
}

fn closed(reason: impl fmt::Display) -> Error {
    Error::because(Cause::NoDecoder, "a frame that is sealed from end to end cannot be opened")
        .with("reason", reason)
        .hint(
            "Use the whole address of the viewer, `key=` included; ask for a new one if it is old",
        )
}

#[cfg(test)]
mod tests {
    use spaceport_types::Codec;

    use super::*;

    fn key() -> MediaKey {
        MediaKey::new([7; 32])
    }

    fn header(sequence: u64) -> Header<'static> {
        Header {
            session_id: "media-1".into(),
            sequence,
            geometry_epoch: 1,
            codec_epoch: 1,
            width_px: 640,
            height_px: 480,
            capture_timestamp_us: 5,
            encode_duration_us: None,
            codec: Codec::H264,
            keyframe: sequence == 1,
        }
    }

    #[test]
    fn what_is_sealed_is_opened_and_is_not_in_the_open() {
        let mut sealer = Sealer::new(&key(), 3).unwrap();
        let mut opener = Opener::new(key());
        for sequence in 1..40 {
            let picture = format!("picture number {sequence}");
            let sealed = sealer.seal(&header(sequence), picture.as_bytes()).unwrap();
            assert!(!sealed.windows(7).any(|window| window == b"picture"));
            assert!(sealed.len() <= picture.len() + 32, "a header of 17 bytes, a tag of 16");
            let mut later = header(sequence);
            later.capture_timestamp_us += 1000; // a relay's clock
            assert_eq!(opener.open(&later, &sealed).unwrap(), picture);
        }
    }

    /// The last of RFC 9605's vectors for this suite (Appendix C.3), with its own metadata.
    #[test]
    fn the_suite_is_the_standard_one() {
        fn bytes(hex: &str) -> Vec<u8> {
            (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect()
        }
        let key = bytes("000102030405060708090a0b0c0d0e0f");
        let key = EncryptionKey::derive_from(SUITE, 0x123_u64, &key).unwrap();
        let mut counter = MonotonicCounter::with_start_value(0x4567, u64::MAX);
        let (metadata, picture) = (*b"IETF SFrame WG", *b"draft-ietf-sframe-enc");
        let mut sealed = Vec::new();
        MediaFrameView::try_with_meta_data(&mut counter, &picture, &metadata)
            .unwrap()
            .encrypt_into(&key, &mut sealed)
            .unwrap();
        let expected =
            "990123456794f509d36e9beacb0e261d99c7d1e972f1fed787d4049f17ca21353c1cc24d56ceabced279";
        assert_eq!(sealed[metadata.len()..], bytes(expected));
    }

    #[test]
    fn a_frame_opens_once_under_its_own_header_with_its_own_key() {
        let mut sealer = Sealer::new(&key(), 3).unwrap();
        let sealed = sealer.seal(&header(1), b"a picture").unwrap();
        let refused = |opener: &mut Opener, header: &Header<'_>, payload: &[u8]| {
            let error = opener.open(header, payload).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::NoDecoder), "{error}");
        };
        let mut opener = Opener::new(key());
        refused(&mut Opener::new(MediaKey::new([8; 32])), &header(1), &sealed);
        let altered: [fn(&mut Header<'static>); 7] = [
            |header| header.session_id = "media-2".into(),
            |header| header.sequence += 1,
            |header| header.geometry_epoch += 1,
            |header| header.codec_epoch += 1,
            |header| header.width_px += 1,
            |header| header.keyframe = false,
            |header| header.codec = Codec::Vp8,
        ];
        for alter in altered {
            let mut header = header(1);
            alter(&mut header);
            refused(&mut opener, &header, &sealed);
        }
        for at in 0..sealed.len() {
            let mut flipped = sealed.to_vec();
            flipped[at] ^= 1;
            refused(&mut opener, &header(1), &flipped);
            refused(&mut opener, &header(1), &sealed[..at]);
        }
        assert_eq!(opener.open(&header(1), &sealed).unwrap(), &b"a picture"[..]);
        refused(&mut opener, &header(1), &sealed);
    }

    #[test]
    fn senders_have_counters_of_their_own_and_the_longest_unheard_is_forgotten() {
        let mut opener = Opener::new(key());
        for key_id in 0..50 {
            let mut sealer = Sealer::new(&key(), key_id).unwrap();
            for sequence in 1..3 {
                let sealed = sealer.seal(&header(sequence), b"a picture").unwrap();
                opener.open(&header(sequence), &sealed).unwrap();
            }
            assert!(opener.senders.len() <= SENDERS);
        }
    }
}
