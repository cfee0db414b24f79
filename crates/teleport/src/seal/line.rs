//! Sealing what two machines say to each other: only they can read it, and neither end can be taken
//! for another.
//!
//! The caller knows the other's key, the one that bundles are sealed to as well, and makes one of its
//! own for this one call. Two HPKE agreements (RFC 9180), one each way:
//!
//! ```text
//! caller  header: magic, suite, the key it is sealed to, an agreement with that key, its own key
//!         what it asks for, sealed by that agreement
//! other   answer: magic, an agreement with the caller's key, in PSK mode under the first one
//! both    everything else, sealed by the second agreement
//! ```
//!
//! So the caller need not wait before it says what it wants. Whoever records that and says it again
//! gets an answer that they cannot read, and cannot go on: the second agreement takes fresh randomness
//! of either side. It takes the caller's key, too, which is gone afterwards: who gets hold of the other's
//! key later can read what was asked for, and nothing that was moved.
//!
//! Chunks are sealed as in a bundle: each has its number, and whether it is the last of its kind, in
//! its nonce.

use hpke::aead::ExportOnlyAead;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable as _, Kem, OpModeR, OpModeS, PskBundle, Serializable as _};
use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};
use zeroize::Zeroizing;

use super::{Chunks, Identity, PublicKey, TAG};

/// Bytes that a caller begins with.
pub const HEADER_LEN: usize = 80;

/// Bytes that an answer begins with.
pub const ANSWER_LEN: usize = 40;

/// Bytes that sealing adds to a chunk.
pub const OVERHEAD: usize = TAG;

const HEADER_MAGIC: [u8; 4] = *b"SPL1";
const ANSWER_MAGIC: [u8; 4] = *b"SPA1";

/// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, and then AES-256-GCM.
const AES: u8 = 1;

/// The same with ChaCha20-Poly1305, for callers that have no instructions for AES.
const CHACHA: u8 = 2;

type Secret = <X25519HkdfSha256 as Kem>::PrivateKey;
type Public = <X25519HkdfSha256 as Kem>::PublicKey;
type Encapped = <X25519HkdfSha256 as Kem>::EncappedKey;

/// A call that has not been answered.
pub struct Call {
    header: [u8; HEADER_LEN],
    purpose: Vec<u8>,
    algorithm: &'static Algorithm,
    secret: Secret,
    agreed: Zeroizing<[u8; 32]>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

impl Call {
    /// Calls the holder of `key`, who has to expect the same `purpose`. Second, what seals the chunks
    /// up to the answer.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `key_unavailable` for a key that no secret fits.
    pub fn new(key: &PublicKey, purpose: &str) -> Result<(Self, Sealing)> {
        let weak = |_| {
            Error::because(Cause::KeyUnavailable, "the Space's seal key cannot be sealed to")
                .with("fingerprint", key.fingerprint())
        };
        let suite = if has_aes() { AES } else { CHACHA };
        let algorithm = algorithm(suite).ok_or_else(bug)?;
        let public = Public::from_bytes(key.as_bytes()).map_err(weak)?;
        let (encapped, context) =
            hpke::setup_sender::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
                &OpModeS::Base,
                &public,
                &info(purpose),
            )
            .map_err(weak)?;
        let (secret, own) = X25519HkdfSha256::gen_keypair();
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&HEADER_MAGIC);
        header[4] = suite;
        header[8..16].copy_from_slice(&key.id());
        header[16..48].copy_from_slice(&encapped.to_bytes());
        header[48..].copy_from_slice(&own.to_bytes());
        let mut agreed = Zeroizing::new([0; 32]);
        context.export(b"answer", &mut *agreed).map_err(|_| bug())?;
        let first =
            Chunks::new(algorithm, &header, "first", |label, out| context.export(label, out))?;
        let purpose = info(purpose);
        Ok((Self { header, purpose, algorithm, secret, agreed }, Sealing(first)))
    }

    /// What is said first.
    pub const fn header(&self) -> &[u8; HEADER_LEN] {
        &self.header
    }

    /// The other has answered: what seals the chunks from here on, and opens theirs.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `corrupt_bundle` for what is no answer. One of somebody else opens
    /// nothing afterwards.
    pub fn answered(self, answer: &[u8]) -> Result<(Sealing, Opening)> {
        let broken = || corrupt("the answer is not sealed as it should be");
        let answer: &[u8; ANSWER_LEN] = answer.try_into().map_err(|_| broken())?;
        if answer[..4] != ANSWER_MAGIC || answer[4..8] != [0; 4] {
            return Err(broken());
        }
        let encapped = Encapped::from_bytes(&answer[8..]).map_err(|_| broken())?;
        let id = Sha256::digest(self.header);
        let psk = PskBundle::new(&*self.agreed, &id).map_err(|_| bug())?;
        let context = hpke::setup_receiver::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
            &OpModeR::Psk(psk),
            &self.secret,
            &encapped,
            &self.purpose,
        )
        .map_err(|_| broken())?;
        let whole = [&self.header[..], answer].concat();
        let half = |label| {
            Chunks::new(self.algorithm, &whole, label, |label, out| context.export(label, out))
        };
        Ok((Sealing(half("up")?), Opening(half("down")?)))
    }
}

/// A call that was taken.
#[derive(Debug)]
pub struct Taken {
    /// What is said first.
    pub answer: [u8; ANSWER_LEN],
    /// Opens what the caller says before it has heard the answer.
    pub first: Opening,
    /// Opens what it says then.
    pub up: Opening,
    /// Seals what is said to it.
    pub down: Sealing,
}

/// Takes a call to `identity`.
///
/// # Errors
///
/// `teleport_refused` with `key_unavailable` when it is sealed to another key, `transfer_failed` with
/// `corrupt_bundle` when it is no call.
pub fn take(identity: &Identity, purpose: &str, header: &[u8; HEADER_LEN]) -> Result<Taken> {
    let algorithm = algorithm(header[4]).filter(|_| header[..4] == HEADER_MAGIC);
    let Some(algorithm) = algorithm.filter(|_| header[5..8] == [0; 3]) else {
        return Err(corrupt("this is not sealed in a way that this version knows"));
    };
    if header[8..16] != identity.public.id() {
        return Err(Error::because(
            Cause::KeyUnavailable,
            "what comes is sealed to another key than this Space's",
        )
        .with("fingerprint", identity.public.fingerprint())
        .hint("Fetch this Space's key again, and compare its fingerprint"));
    }
    let broken = |_| corrupt("the seal holds no usable key");
    let encapped = Encapped::from_bytes(&header[16..48]).map_err(broken)?;
    let caller = Public::from_bytes(&header[48..]).map_err(broken)?;
    let purpose = info(purpose);
    let first = hpke::setup_receiver::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        &identity.secret,
        &encapped,
        &purpose,
    )
    .map_err(broken)?;
    let mut agreed = Zeroizing::new([0; 32]);
    first.export(b"answer", &mut *agreed).map_err(|_| bug())?;
    let id = Sha256::digest(header);
    let psk = PskBundle::new(&*agreed, &id).map_err(|_| bug())?;
    let (encapped, second) = hpke::setup_sender::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
        &OpModeS::Psk(psk),
        &caller,
        &purpose,
    )
    .map_err(broken)?;
    let mut answer = [0; ANSWER_LEN];
    answer[..4].copy_from_slice(&ANSWER_MAGIC);
    answer[8..].copy_from_slice(&encapped.to_bytes());
    let whole = [&header[..], &answer].concat();
    let half =
        |label| Chunks::new(algorithm, &whole, label, |label, out| second.export(label, out));
    let first = Chunks::new(algorithm, header, "first", |label, out| first.export(label, out))?;
    Ok(Taken {
        answer,
        first: Opening(first),
        up: Opening(half("up")?),
        down: Sealing(half("down")?),
    })
}

/// Seals chunks, one after another.
pub struct Sealing(Chunks);

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealing").field("chunks", &self.0.next).finish_non_exhaustive()
    }
}

impl Sealing {
    /// Seals a chunk where it is; what is returned comes after it. Whoever opens it has to know
    /// whether it is the last.
    ///
    /// # Errors
    ///
    /// `transfer_failed` after four thousand million chunks.
    pub fn seal(&mut self, chunk: &mut [u8], last: bool) -> Result<[u8; OVERHEAD]> {
        let nonce = self.0.next_nonce(last)?;
        let sealed = self.0.key.seal_in_place_separate_tag(nonce, Aad::from(self.0.aad), chunk);
        let tag = sealed.map_err(|_| Error::new(Kind::Internal, "a chunk could not be sealed"))?;
        tag.as_ref().try_into().map_err(|_| bug())
    }
}

/// Opens chunks, one after another.
pub struct Opening(Chunks);

impl std::fmt::Debug for Opening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opening").field("chunks", &self.0.next).finish_non_exhaustive()
    }
}

impl Opening {
    /// Opens the next chunk where it is.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `corrupt_bundle` when it is not what was sealed.
    pub fn open<'a>(&mut self, chunk: &'a mut [u8], last: bool) -> Result<&'a mut [u8]> {
        let index = self.0.next;
        let nonce = self.0.next_nonce(last)?;
        let opened = self.0.key.open_in_place(nonce, Aad::from(self.0.aad), chunk);
        opened.map_err(|_| {
            corrupt("what came is damaged, or is not from whom it should be").with("chunk", index)
        })
    }
}

fn info(purpose: &str) -> Vec<u8> {
    let mut info = Vec::new();
    for field in ["spaceport line 1", purpose] {
        info.extend((field.len() as u64).to_be_bytes());
        info.extend(field.as_bytes());
    }
    info
}

fn algorithm(suite: u8) -> Option<&'static Algorithm> {
    match suite {
        AES => Some(&AES_256_GCM),
        CHACHA => Some(&CHACHA20_POLY1305),
        _ => None,
    }
}

/// Whether AES takes instructions of its own here; without them it is several times slower.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

fn bug() -> Error {
    Error::new(Kind::Internal, "the seal's key could not be derived")
}

fn corrupt(message: &'static str) -> Error {
    Error::because(Cause::CorruptBundle, message).hint("Send it again: it goes on where it was")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(sealing: &mut Sealing, text: &[u8], last: bool) -> Vec<u8> {
        let mut chunk = text.to_vec();
        let tag = sealing.seal(&mut chunk, last).unwrap();
        chunk.extend(tag);
        chunk
    }

    fn opens(opening: &mut Opening, chunk: &[u8], last: bool) -> Result<Vec<u8>> {
        opening.open(&mut chunk.to_vec(), last).map(|it| it.to_vec())
    }

    #[test]
    fn both_hear_each_other_and_nobody_else() {
        let identity = Identity::generate();
        let (call, mut first) = Call::new(identity.public(), "send").unwrap();
        let mut taken = take(&identity, "send", call.header()).unwrap();
        let asked = sealed(&mut first, b"may I", true);
        assert_eq!(opens(&mut taken.first, &asked, true).unwrap(), b"may I");
        let (mut up, mut down) = call.answered(&taken.answer).unwrap();
        for text in [&b"one"[..], b"", b"three"] {
            let said = sealed(&mut up, text, false);
            assert_eq!(opens(&mut taken.up, &said, false).unwrap(), text);
            let heard = sealed(&mut taken.down, text, false);
            assert_eq!(opens(&mut down, &heard, false).unwrap(), text);
            assert_ne!(said, heard, "the directions have keys of their own");
        }
    }

    #[test]
    fn chunks_do_not_change_and_do_not_change_places() {
        let identity = Identity::generate();
        let (call, _) = Call::new(identity.public(), "send").unwrap();
        let mut taken = take(&identity, "send", call.header()).unwrap();
        let (mut up, mut down) = call.answered(&taken.answer).unwrap();
        let [first, second] = [b"first", b"other"].map(|text| sealed(&mut up, text, false));
        assert!(opens(&mut taken.up, &second, false).is_err(), "the first is missing");
        assert!(opens(&mut taken.up, &first, false).is_err(), "a number is used up");
        let back = sealed(&mut taken.down, b"back", false);
        assert!(opens(&mut taken.up, &back, false).is_err(), "sent back to whom it came from");
        assert!(opens(&mut down, &back, true).is_err(), "as the last, which it is not");
        let mut flipped = sealed(&mut taken.down, b"next", false);
        flipped[2] ^= 1;
        let error = opens(&mut down, &flipped, false).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::CorruptBundle));
    }

    #[test]
    fn a_call_that_is_played_again_hears_nothing() {
        let identity = Identity::generate();
        let (call, mut first) = Call::new(identity.public(), "fetch").unwrap();
        let asked = sealed(&mut first, b"the file", true);
        let mut once = take(&identity, "fetch", call.header()).unwrap();
        let mut again = take(&identity, "fetch", call.header()).unwrap();
        assert_ne!(once.answer, again.answer);
        assert!(opens(&mut again.first, &asked, true).is_ok(), "what is asked can be asked again");
        // The same words to both are different bytes: no key is used twice.
        let to_one = sealed(&mut once.down, b"contents", false);
        let to_other = sealed(&mut again.down, b"contents", false);
        assert_ne!(to_one, to_other);
        let (_, mut down) = call.answered(&once.answer).unwrap();
        assert!(opens(&mut down, &to_other, false).is_err());
        assert!(once.up.0.aad != again.up.0.aad);
    }

    #[test]
    fn who_has_no_key_cannot_answer() {
        let (identity, other) = (Identity::generate(), Identity::generate());
        let (call, _) = Call::new(identity.public(), "send").unwrap();
        let refused = take(&other, "send", call.header()).unwrap_err();
        assert_eq!(refused.cause(), Some(Cause::KeyUnavailable));
        // One in the middle makes a call of its own to the other's place, and answers with that.
        let mut header = *call.header();
        header[8..16].copy_from_slice(&other.public().id());
        let mut taken = take(&other, "send", &header).unwrap();
        let (_, mut down) = call.answered(&taken.answer).unwrap();
        let said = sealed(&mut taken.down, b"trust me", false);
        assert!(opens(&mut down, &said, false).is_err());
    }

    #[test]
    fn what_is_no_call_and_what_is_no_answer_are_refused() {
        let identity = Identity::generate();
        let (call, mut first) = Call::new(identity.public(), "send").unwrap();
        let asked = sealed(&mut first, b"x", true);
        for at in 0..8 {
            let mut header = *call.header();
            header[at] ^= 0x40;
            let error = take(&identity, "send", &header).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::CorruptBundle), "{at}");
        }
        for at in 16..HEADER_LEN {
            let mut header = *call.header();
            header[at] ^= 1;
            let taken = take(&identity, "send", &header);
            let opened = taken.and_then(|mut taken| opens(&mut taken.first, &asked, true));
            assert!(opened.is_err(), "{at}");
        }
        let mut elsewhere = take(&identity, "fetch", call.header()).unwrap();
        assert!(opens(&mut elsewhere.first, &asked, true).is_err(), "it was for something else");
        let answer = elsewhere.answer;
        for wrong in [&answer[..39], &[], &[0; ANSWER_LEN]] {
            let (call, _) = Call::new(identity.public(), "send").unwrap();
            assert!(call.answered(wrong).is_err());
        }
        assert!(Call::new(&PublicKey([0; 32]), "send").is_err(), "a point of small order");
    }
}
