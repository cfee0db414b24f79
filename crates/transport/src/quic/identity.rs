//! The certificate, and the next one.
//!
//! Browsers take a certificate that no authority signed when they are told its SHA-256, and only one that is
//! valid for at most fourteen days. So there are always going to be others, and nobody may notice: well before
//! a certificate is replaced, the one to come exists and its hash is told beside the first.
//!
//! Nothing here looks at a clock; whoever does calls [`Identity::keep`] from time to time.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Error, Kind, Redacted, Result};

/// How long a certificate is valid. Browsers allow fourteen days between both ends, [`BACKDATED`] included.
const VALIDITY: Duration = Duration::from_secs(13 * DAY);

/// How long before it was made a certificate is valid, for clients whose clocks are slow.
const BACKDATED: Duration = Duration::from_secs(60 * 60);

/// When so much is left of a certificate, the next is made and its hash told.
const ANNOUNCED: Duration = Duration::from_secs(4 * DAY);

/// When so much is left of a certificate, the next one takes its place. Whoever was told hashes since
/// [`ANNOUNCED`] knows it.
const REPLACED: Duration = Duration::from_secs(2 * DAY);

const DAY: u64 = 24 * 60 * 60;

/// What a server shows its clients. Cloning it makes another handle.
#[derive(Clone)]
pub struct Identity {
    keys: Arc<RwLock<Keys>>,
}

struct Keys {
    current: Key,
    next: Option<Key>,
}

#[derive(Clone)]
struct Key {
    certified: Arc<CertifiedKey>,
    stored: Stored,
    hash: String,
}

/// One certificate as it is kept.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    /// DER, in base64.
    certificate: String,
    /// PKCS #8, in base64.
    key: String,
    /// Seconds of Unix time.
    not_before: u64,
    not_after: u64,
}

#[derive(Serialize, Deserialize)]
struct File {
    current: Stored,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Stored>,
}

impl Identity {
    /// A new one.
    ///
    /// # Errors
    ///
    /// `internal` when no certificate can be made.
    pub fn generate(now: SystemTime) -> Result<Self> {
        Ok(Self::with(Keys { current: Key::generate(now)?, next: None }))
    }

    /// The one that was kept as `text`, as far as it is still good.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a text that is none.
    pub fn load(text: &str, now: SystemTime) -> Result<Self> {
        let file: File = serde_json::from_str(text).map_err(|error| {
            // Without its source, which may quote what it choked on: a private key.
            Error::new(Kind::InvalidArgument, "the kept certificate is not the JSON it should be")
                .with("line", error.line())
        })?;
        let mut keys =
            Keys { current: Key::load(file.current)?, next: file.next.map(Key::load).transpose()? };
        keys.keep(now)?;
        Ok(Self::with(keys))
    }

    /// What [`Identity::load`] reads. A secret: it holds private keys.
    pub fn to_text(&self) -> Redacted<String> {
        let keys = self.read();
        let next = keys.next.as_ref().map(|key| key.stored.clone());
        let file = File { current: keys.current.stored.clone(), next };
        Redacted::new(serde_json::to_string_pretty(&file).unwrap_or_default())
    }

    /// SHA-256 of the certificates that clients may meet, in lower-case hexadecimal: the one they meet now
    /// first.
    pub fn hashes(&self) -> Vec<String> {
        let keys = self.read();
        let next = keys.next.as_ref().map(|key| key.hash.clone());
        std::iter::once(keys.current.hash.clone()).chain(next).collect()
    }

    /// Something that nobody else knows and that is the same after a restart.
    pub(super) fn secret(&self) -> [u8; 32] {
        let keys = self.read();
        let secret = Sha256::new_with_prefix("spaceport reset key");
        secret.chain_update(keys.current.stored.key.as_bytes()).finalize().into()
    }

    /// Makes the next certificate in time, and takes it in time. Connections that are open stay. To be called
    /// every hour or more often; says whether something changed, which is then to be kept.
    ///
    /// # Errors
    ///
    /// As [`Identity::generate`].
    pub fn keep(&self, now: SystemTime) -> Result<bool> {
        if !self.read().is_due(now) {
            return Ok(false);
        }
        self.keys.write().unwrap_or_else(PoisonError::into_inner).keep(now)
    }

    fn with(keys: Keys) -> Self {
        Self { keys: Arc::new(RwLock::new(keys)) }
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("hashes", &self.hashes()).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.read().current.certified))
    }
}

impl Keys {
    fn is_due(&self, now: SystemTime) -> bool {
        let left = self.current.left(now);
        left < REPLACED || (left < ANNOUNCED && self.next.is_none())
    }

    fn keep(&mut self, now: SystemTime) -> Result<bool> {
        if !self.is_due(now) {
            return Ok(false);
        }
        // A gateway that was off for weeks finds neither of them good any more.
        let next = self.next.take().filter(|next| next.left(now) >= REPLACED);
        let next = next.map_or_else(|| Key::generate(now), Ok)?;
        if self.current.left(now) < REPLACED {
            self.current = next;
        } else {
            self.next = Some(next);
        }
        Ok(true)
    }
}

impl Key {
    fn generate(now: SystemTime) -> Result<Self> {
        let failed = |error: rcgen::Error| {
            Error::new(Kind::Internal, "a certificate could not be made").source(error)
        };
        // The name is not looked at: clients know the certificate itself.
        let mut params =
            CertificateParams::new(vec!["spaceport.invalid".to_owned()]).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "spaceport");
        // Whole seconds, as the certificate has them.
        let made = seconds(now);
        let not_before = made.saturating_sub(BACKDATED.as_secs());
        let not_after = made + VALIDITY.as_secs();
        params.not_before = at(not_before).into();
        params.not_after = at(not_after).into();
        // WebTransport asks for this kind of key.
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let certificate = params.self_signed(&pair).map_err(failed)?;
        Self::load(Stored {
            certificate: STANDARD.encode(certificate.der()),
            key: STANDARD.encode(pair.serialize_der()),
            not_before,
            not_after,
        })
    }

    fn load(stored: Stored) -> Result<Self> {
        let unusable = || Error::new(Kind::InvalidArgument, "the kept certificate cannot be used");
        let read = |text: &str| STANDARD.decode(text).map_err(|_| unusable());
        let certificate = read(&stored.certificate)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(read(&stored.key)?));
        let hash = hash(&certificate);
        let key = rustls::crypto::ring::sign::any_ecdsa_type(&key).map_err(|_| unusable())?;
        let certified = CertifiedKey::new(vec![CertificateDer::from(certificate)], key);
        Ok(Self { certified: Arc::new(certified), stored, hash })
    }

    /// How long it is good for; nothing when it is not.
    fn left(&self, now: SystemTime) -> Duration {
        let now = seconds(now);
        // One from the future was made while the clock was wrong.
        let begun = now >= self.stored.not_before;
        let left = if begun { self.stored.not_after.saturating_sub(now) } else { 0 };
        Duration::from_secs(left)
    }
}

/// SHA-256 in lower-case hexadecimal.
pub(super) fn hash(certificate: &[u8]) -> String {
    Sha256::digest(certificate).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn day(days: u64) -> SystemTime {
        at(START + days * DAY)
    }

    #[test]
    fn a_certificate_is_what_browsers_ask_of_one_that_nobody_signed() {
        let identity = Identity::generate(day(0)).unwrap();
        let stored = identity.read().current.stored.clone();
        assert!(stored.not_after - stored.not_before <= 14 * DAY);
        assert!(stored.not_before < START, "a client's clock may be slow");
        let der = STANDARD.decode(&stored.certificate).unwrap();
        // id-ecPublicKey with prime256v1 (RFC 5480), as DER has them.
        let p256 = [
            &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01][..],
            &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        ]
        .concat();
        assert!(der.windows(p256.len()).any(|window| window == p256));
        // 2027-01-15 07:00:00 and 2027-01-28 08:00:00, UTCTime (RFC 5280 §4.1.2.5.1).
        let validity = b"\x17\x0d270115070000Z\x17\x0d270128080000Z";
        assert!(der.windows(validity.len()).any(|window| window == validity));
        assert_eq!(identity.hashes(), [hash(&der)]);
        assert_eq!(identity.hashes()[0].len(), 64);
    }

    #[test]
    fn a_certificate_is_announced_before_it_is_used_and_used_before_the_last_one_ends() {
        let identity = Identity::generate(day(0)).unwrap();
        let first = identity.hashes();
        assert!(!identity.keep(day(9)).unwrap(), "four days are left");
        assert_eq!(identity.hashes(), first);

        assert!(identity.keep(day(10)).unwrap());
        let both = identity.hashes();
        assert_eq!((both.len(), &both[..1]), (2, &first[..]), "the first is still shown");
        assert!(!identity.keep(day(10)).unwrap());

        assert!(identity.keep(day(12)).unwrap());
        assert_eq!(identity.hashes(), both[1..], "what was announced is shown");
        // And so on, for good.
        let mut known = identity.hashes();
        for day in (12..400).map(day) {
            identity.keep(day).unwrap();
            let hashes = identity.hashes();
            assert!(known.contains(&hashes[0]), "a certificate that nobody was told of");
            assert!(identity.read().current.left(day) >= REPLACED);
            known = hashes;
        }
    }

    #[test]
    fn what_is_kept_is_the_same_after_a_restart() {
        let identity = Identity::generate(day(0)).unwrap();
        identity.keep(day(10)).unwrap();
        let text = identity.to_text();
        assert_eq!(format!("{text:?}"), "[redacted]");
        let again = Identity::load(text.expose(), day(11)).unwrap();
        assert_eq!(again.hashes(), identity.hashes());
    }

    #[test]
    fn what_is_no_longer_good_is_replaced_at_the_start() {
        let identity = Identity::generate(day(0)).unwrap();
        identity.keep(day(10)).unwrap();
        let text = identity.to_text();
        let both = identity.hashes();
        let load = |now| Identity::load(text.expose(), now).unwrap().hashes();
        assert_eq!(load(day(14)), both[1..], "the one that was to come");
        assert!(!both.contains(&load(day(60))[0]), "off for weeks");
        let earlier = SystemTime::UNIX_EPOCH + Duration::from_secs(DAY);
        assert!(!both.contains(&load(earlier)[0]), "a clock that was set back");
    }

    #[test]
    fn a_file_that_is_none_is_refused_without_a_word_of_it() {
        for text in ["", "{}", r#"{"current":{"certificate":"s3cret","key":"s3cret"}}"#] {
            let error = Identity::load(text, day(0)).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument);
            assert!(!format!("{error:?}").contains("s3cret"));
        }
        let broken =
            r#"{"current":{"certificate":"AAAA","key":"AAAA","not_before":0,"not_after":9}}"#;
        assert_eq!(Identity::load(broken, day(0)).unwrap_err().kind(), Kind::InvalidArgument);
    }
}
