//! Sealing: bytes that only one destination can read, in an order that cannot be changed.
//!
//! HPKE (RFC 9180) in base mode agrees on a key with the destination's X25519 key; the bytes then go
//! in chunks of 1 MiB under AES-256-GCM, each with its number and whether it is the last in its
//! nonce (the STREAM construction). So a relay learns nothing but the size, and a chunk that is
//! changed, moved, repeated, left out or taken from another bundle does not open. What the bundle is
//! for goes into the key as well: sealed for one import, it opens for no other.
//!
//! A sealed stream is made once and kept: what is sent again is the same bytes, so that no nonce is
//! ever used for two texts. What two machines say to each other while both are there is sealed by
//! [`mod@line`].

pub mod line;

use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

use hpke::aead::ExportOnlyAead;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable as _, Kem, OpModeR, OpModeS, Serializable as _};
use ring::aead::{AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};
use zeroize::Zeroizing;

use crate::hex;
use crate::private;

/// Bytes of a sealed stream before its first chunk.
pub const HEADER_LEN: usize = 48;

/// Plain bytes of every chunk but the last.
const CHUNK: usize = 1 << 20;

/// Bytes that AES-GCM adds to each.
const TAG: usize = 16;

/// What a sealed stream begins with: the format and its version.
const MAGIC: [u8; 4] = *b"SPS1";

/// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-256-GCM in STREAM chunks. The only suite so far.
const SUITE: u8 = 1;

/// The public half of a destination's key.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Takes the 32 bytes of an X25519 key.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `key_unavailable` when they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let unusable = || {
            Error::because(Cause::KeyUnavailable, "the Space's seal key is not an X25519 key")
                .with("bytes", bytes.len())
                .hint("Ask whoever runs the Space for a version that can receive sealed bundles")
        };
        let key: [u8; 32] = bytes.try_into().map_err(|_| unusable())?;
        <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&key).map_err(|_| unusable())?;
        Ok(Self(key))
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// What a person compares: the first half of the key's SHA-256, in groups of four.
    pub fn fingerprint(&self) -> String {
        let digest = hex::encode(&Sha256::digest(self.0)[..16]);
        let groups: Vec<&str> =
            digest.as_bytes().chunks(4).filter_map(|it| std::str::from_utf8(it).ok()).collect();
        groups.join("-")
    }

    fn id(&self) -> [u8; 8] {
        let digest: [u8; 32] = Sha256::digest(self.0).into();
        std::array::from_fn(|index| digest[index])
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        hex::encode(&key.0)
    }
}

impl TryFrom<String> for PublicKey {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::from_bytes(&hex::decode(&text).unwrap_or_default())
    }
}

/// The key of a destination. Its secret half stays in one file of the state directory.
pub struct Identity {
    secret: <X25519HkdfSha256 as Kem>::PrivateKey,
    public: PublicKey,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("public", &self.public).finish_non_exhaustive()
    }
}

impl Identity {
    /// The key kept in `path`, made when there is none.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `key_unavailable` when the file holds no key, `permission_denied`
    /// when others can read it, `io` when it can be neither read nor made.
    pub fn load(path: &Path) -> Result<Self> {
        if !path.exists() {
            let fresh = Zeroizing::new(Self::generate().secret.to_bytes().to_vec());
            private::create(path, hex::encode(&fresh).as_bytes())?;
        }
        private::check_mode(path)?;
        let text = Zeroizing::new(fs::read_to_string(path).map_err(|e| private::failed(path, e))?);
        let bytes = Zeroizing::new(hex::decode(text.trim()).unwrap_or_default());
        let secret = <X25519HkdfSha256 as Kem>::PrivateKey::from_bytes(&bytes).map_err(|_| {
            Error::because(
                Cause::KeyUnavailable,
                format!("`{}` does not hold this Space's seal key", path.display()),
            )
            .with("path", path.display())
            .hint("Put the file back, or remove it: a new key is made, and senders are asked to trust it")
        })?;
        Ok(Self::of(secret))
    }

    /// A new key that is kept nowhere.
    pub fn generate() -> Self {
        Self::of(X25519HkdfSha256::gen_keypair().0)
    }

    fn of(secret: <X25519HkdfSha256 as Kem>::PrivateKey) -> Self {
        let public = X25519HkdfSha256::sk_to_pk(&secret).to_bytes();
        Self { secret, public: PublicKey(public.into()) }
    }

    /// The half that senders seal to.
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }
}

/// What a sealed stream is for. Both sides must name the same, or nothing opens.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// Names the import; used for one bundle only.
    pub import_id: &'a str,
    /// The app whose state it is.
    pub app: &'a str,
}

impl Purpose<'_> {
    fn info(&self) -> Vec<u8> {
        let mut info = Vec::new();
        for field in ["spaceport teleport seal 1", self.import_id, self.app] {
            info.extend((field.len() as u64).to_be_bytes());
            info.extend(field.as_bytes());
        }
        info
    }
}

/// Encrypts what is written to it. [`Sealer::finish`] writes the last chunk; without it the stream
/// does not open.
pub struct Sealer<W> {
    out: W,
    chunks: Chunks,
    pending: Zeroizing<Vec<u8>>,
}

impl<W> fmt::Debug for Sealer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("chunks", &self.chunks.next).finish_non_exhaustive()
    }
}

impl<W: Write> Sealer<W> {
    /// Begins a stream to the holder of `key`, and writes its header.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `key_unavailable` for a key that no secret fits, `io`.
    pub fn new(mut out: W, key: &PublicKey, purpose: &Purpose<'_>) -> Result<Self> {
        let weak = |_| {
            Error::because(Cause::KeyUnavailable, "the Space's seal key cannot be sealed to")
                .with("fingerprint", key.fingerprint())
        };
        let public = <X25519HkdfSha256 as Kem>::PublicKey::from_bytes(&key.0).map_err(weak)?;
        let (shared, context) = hpke::setup_sender::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
            &OpModeS::Base,
            &public,
            &purpose.info(),
        )
        .map_err(weak)?;
        let mut header = [0; HEADER_LEN];
        header[..4].copy_from_slice(&MAGIC);
        header[4] = SUITE;
        header[5] = CHUNK.trailing_zeros() as u8;
        header[8..16].copy_from_slice(&key.id());
        header[16..].copy_from_slice(&shared.to_bytes());
        out.write_all(&header)?;
        let chunks =
            Chunks::new(&AES_256_GCM, &header, "stream", |label, out| context.export(label, out))?;
        Ok(Self { out, chunks, pending: Zeroizing::new(Vec::with_capacity(CHUNK + TAG)) })
    }

    /// Writes what is left, marked as the end.
    ///
    /// # Errors
    ///
    /// `io`.
    pub fn finish(mut self) -> Result<W> {
        self.seal(true)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn seal(&mut self, last: bool) -> Result<()> {
        let nonce = self.chunks.next_nonce(last)?;
        let aad = Aad::from(self.chunks.aad);
        self.chunks
            .key
            .seal_in_place_append_tag(nonce, aad, &mut *self.pending)
            .map_err(|_| Error::new(Kind::Internal, "a chunk could not be sealed"))?;
        self.out.write_all(&self.pending)?;
        self.pending.clear();
        Ok(())
    }
}

impl<W: Write> Write for Sealer<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        // A full chunk waits until more comes: only then is it known not to be the last.
        if self.pending.len() == CHUNK && !data.is_empty() {
            self.seal(false).map_err(io::Error::other)?;
        }
        let taken = data.len().min(CHUNK - self.pending.len());
        self.pending.extend_from_slice(&data[..taken]);
        Ok(taken)
    }

    /// Nothing can be done early: a chunk is sealed when it is full, or the last.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decrypts a sealed stream. What it returns has been authenticated; the end comes only after the
/// chunk that says so.
pub struct Opener<R> {
    input: R,
    chunks: Chunks,
    /// Sealed bytes that were read; more than one chunk unless it is the last.
    sealed: Vec<u8>,
    plain: Zeroizing<Vec<u8>>,
    taken: usize,
    ended: bool,
}

impl<R> fmt::Debug for Opener<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("chunks", &self.chunks.next).finish_non_exhaustive()
    }
}

impl<R: Read> Opener<R> {
    /// Reads the header and agrees on the key.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `corrupt_bundle` when it is no sealed stream, `teleport_refused` with
    /// `key_unavailable` when it was sealed to another key.
    pub fn new(mut input: R, identity: &Identity, purpose: &Purpose<'_>) -> Result<Self> {
        let mut header = [0; HEADER_LEN];
        input.read_exact(&mut header).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => corrupt("the bundle ends within its seal's header"),
            _ => error.into(),
        })?;
        if header[..4] != MAGIC {
            return Err(corrupt("the bundle is not sealed")
                .hint("Send it with `spaceport teleport push`, which seals it"));
        }
        if header[4] != SUITE
            || usize::from(header[5]) != CHUNK.trailing_zeros() as usize
            || header[6..8] != [0, 0]
        {
            return Err(corrupt("the bundle is sealed in a way this version does not know"));
        }
        if header[8..16] != identity.public.id() {
            return Err(Error::because(
                Cause::KeyUnavailable,
                "the bundle is sealed to another key than this Space's",
            )
            .with("fingerprint", identity.public.fingerprint())
            .hint("Let the sender fetch this Space's key again, and compare its fingerprint"));
        }
        let shared = <X25519HkdfSha256 as Kem>::EncappedKey::from_bytes(&header[16..]);
        let context = shared.and_then(|shared| {
            hpke::setup_receiver::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
                &OpModeR::Base,
                &identity.secret,
                &shared,
                &purpose.info(),
            )
        });
        let context = context.map_err(|_| corrupt("the bundle's seal holds no usable key"))?;
        let chunks =
            Chunks::new(&AES_256_GCM, &header, "stream", |label, out| context.export(label, out))?;
        Ok(Self {
            input,
            chunks,
            sealed: Vec::with_capacity(2 * (CHUNK + TAG)),
            plain: Zeroizing::new(Vec::with_capacity(CHUNK + TAG)),
            taken: 0,
            ended: false,
        })
    }

    fn next_chunk(&mut self) -> Result<()> {
        const FULL: usize = CHUNK + TAG;
        let wanted = FULL + 1 - self.sealed.len().min(FULL);
        (&mut self.input).take(wanted as u64).read_to_end(&mut self.sealed)?;
        let last = self.sealed.len() <= FULL;
        let length = self.sealed.len().min(FULL);
        self.plain.clear();
        self.taken = 0;
        self.plain.extend_from_slice(&self.sealed[..length]);
        self.sealed.drain(..length);
        let index = self.chunks.next;
        let nonce = self.chunks.next_nonce(last)?;
        let aad = Aad::from(self.chunks.aad);
        let opened = self.chunks.key.open_in_place(nonce, aad, &mut self.plain).map(|it| it.len());
        let Ok(length) = opened else {
            self.plain.clear();
            return Err(corrupt("a part of the bundle is damaged, missing or out of order")
                .with("chunk", index));
        };
        self.plain.truncate(length);
        self.ended = last;
        Ok(())
    }
}

impl<R: Read> Read for Opener<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.plain.len() {
            if self.ended || out.is_empty() {
                return Ok(0);
            }
            self.next_chunk().map_err(io::Error::other)?;
        }
        let length = out.len().min(self.plain.len() - self.taken);
        out[..length].copy_from_slice(&self.plain[self.taken..self.taken + length]);
        self.taken += length;
        Ok(length)
    }
}

/// The key of a stream, and the number of its next chunk.
struct Chunks {
    key: LessSafeKey,
    prefix: [u8; 7],
    /// The header's SHA-256, bound to every chunk.
    aad: [u8; 32],
    next: u32,
}

impl Chunks {
    /// `label` tells one direction from another under the same agreement.
    fn new(
        algorithm: &'static Algorithm,
        header: &[u8],
        label: &str,
        export: impl Fn(&[u8], &mut [u8]) -> std::result::Result<(), hpke::HpkeError>,
    ) -> Result<Self> {
        let bug = || Error::new(Kind::Internal, "the seal's key could not be derived");
        let mut key = Zeroizing::new([0; 32]);
        let mut prefix = [0; 7];
        export(format!("{label} key").as_bytes(), &mut *key).map_err(|_| bug())?;
        export(format!("{label} nonce").as_bytes(), &mut prefix).map_err(|_| bug())?;
        let key = UnboundKey::new(algorithm, &*key).map_err(|_| bug())?;
        Ok(Self { key: LessSafeKey::new(key), prefix, aad: Sha256::digest(header).into(), next: 0 })
    }

    /// Uses up one number: no two chunks share a nonce, and none wraps around.
    fn next_nonce(&mut self, last: bool) -> Result<Nonce> {
        let mut nonce = [0; 12];
        nonce[..7].copy_from_slice(&self.prefix);
        nonce[7..11].copy_from_slice(&self.next.to_be_bytes());
        nonce[11] = u8::from(last);
        self.next = self.next.checked_add(1).ok_or_else(|| {
            Error::because(Cause::SizeMismatch, "the bundle is larger than 4 PiB")
        })?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

fn corrupt(message: &'static str) -> Error {
    Error::because(Cause::CorruptBundle, message).hint("Send it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSE: Purpose<'_> = Purpose { import_id: "imp-1", app: "firefox" };

    fn seal(plain: &[u8], to: &Identity) -> Vec<u8> {
        let mut sealer = Sealer::new(Vec::new(), to.public(), &PURPOSE).unwrap();
        sealer.write_all(plain).unwrap();
        sealer.finish().unwrap()
    }

    fn open(sealed: &[u8], with: &Identity, purpose: &Purpose<'_>) -> Result<Vec<u8>> {
        let mut plain = Vec::new();
        let mut opener = Opener::new(sealed, with, purpose)?;
        opener.read_to_end(&mut plain)?;
        Ok(plain)
    }

    #[test]
    fn what_was_sealed_opens_at_every_length() {
        let identity = Identity::generate();
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7] {
            let plain: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            let sealed = seal(&plain, &identity);
            assert_eq!(open(&sealed, &identity, &PURPOSE).unwrap(), plain, "{length}");
        }
    }

    #[test]
    fn a_changed_byte_anywhere_does_not_open() {
        let identity = Identity::generate();
        let sealed = seal(b"cookies and such", &identity);
        for index in 0..sealed.len() {
            let mut flipped = sealed.clone();
            flipped[index] ^= 1;
            assert!(open(&flipped, &identity, &PURPOSE).is_err(), "byte {index}");
        }
    }

    #[test]
    fn a_stream_cut_anywhere_does_not_open() {
        let identity = Identity::generate();
        let sealed = seal(&vec![7; 2 * CHUNK + 10], &identity);
        let first = HEADER_LEN + CHUNK + TAG;
        for end in [0, 10, HEADER_LEN, first - 1, first, first + 1, sealed.len() - 1] {
            let error = open(&sealed[..end], &identity, &PURPOSE).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::CorruptBundle), "{end}");
        }
        assert!(open(&[&sealed[..], b"x"].concat(), &identity, &PURPOSE).is_err());
    }

    #[test]
    fn chunks_do_not_change_places_or_streams() {
        let identity = Identity::generate();
        let sealed = seal(&vec![7; 3 * CHUNK], &identity);
        let other = seal(&vec![8; 3 * CHUNK], &identity);
        let at = |number: usize| HEADER_LEN + number * (CHUNK + TAG);
        let (first, second) = (at(0)..at(1), at(1)..at(2));
        let swapped = [
            &sealed[..HEADER_LEN],
            &sealed[second.clone()],
            &sealed[first.clone()],
            &sealed[at(2)..],
        ];
        assert!(open(&swapped.concat(), &identity, &PURPOSE).is_err());
        let repeated = [&sealed[..at(1)], &sealed[first], &sealed[at(2)..]];
        assert!(open(&repeated.concat(), &identity, &PURPOSE).is_err());
        let foreign = [&sealed[..at(1)], &other[second], &sealed[at(2)..]];
        assert!(open(&foreign.concat(), &identity, &PURPOSE).is_err());
    }

    #[test]
    fn it_opens_for_its_purpose_and_its_key_only() {
        let (identity, other) = (Identity::generate(), Identity::generate());
        let sealed = seal(b"x", &identity);
        let wrong = open(&sealed, &other, &PURPOSE).unwrap_err();
        assert_eq!(wrong.cause(), Some(Cause::KeyUnavailable));
        for purpose in [
            Purpose { import_id: "imp-2", ..PURPOSE },
            Purpose { app: "chrome", ..PURPOSE },
            Purpose { import_id: "imp-1f", app: "irefox" },
        ] {
            assert!(open(&sealed, &identity, &purpose).is_err(), "{purpose:?}");
        }
    }

    #[test]
    fn the_secret_is_in_a_private_file_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seal-key");
        let first = Identity::load(&path).unwrap();
        assert_eq!(Identity::load(&path).unwrap().public(), first.public());
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "not a key").unwrap();
        assert_eq!(Identity::load(&path).unwrap_err().cause(), Some(Cause::KeyUnavailable));
    }

    #[test]
    fn a_key_of_another_size_is_refused() {
        for bytes in [&[][..], &[1; 31], &[1; 33]] {
            let error = PublicKey::from_bytes(bytes).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::KeyUnavailable));
        }
        // A point of small order: whoever knows it could read everything.
        let sealed = PublicKey::from_bytes(&[0; 32])
            .and_then(|key| Sealer::new(Vec::new(), &key, &PURPOSE).map(drop));
        assert_eq!(sealed.unwrap_err().cause(), Some(Cause::KeyUnavailable));
    }
}
