//! How Chromium and Electron encrypt single values on Linux.
//!
//! AES-128-CBC with PKCS#7 padding and a fixed initialization vector; the first three bytes say which
//! key. `v10` has a password that everyone knows, so it only keeps values from being seen by chance.
//! `v11` has one from the keyring, which differs from machine to machine and must not leave it.

use aes::cipher::block_padding::Pkcs7;
use aes::cipher::{BlockDecryptMut as _, BlockEncryptMut as _, KeyIvInit as _};
use zeroize::Zeroizing;

use super::secret::Secret;

/// Chromium's password for `v10` on Linux.
const KNOWN_PASSWORD: &[u8] = b"peanuts";
const SALT: &[u8] = b"saltysalt";
const ITERATIONS: u32 = 1;
const IV: [u8; 16] = [b' '; 16];

/// The keys of one app on one machine.
#[derive(Clone)]
pub(crate) struct Keys {
    known: Key,
    keyring: Option<Key>,
}

type Key = Zeroizing<[u8; 16]>;

/// Why a value could not be decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It needs a key that is not there.
    NoKey,
    /// It is damaged, or was encrypted with another key.
    Damaged,
}

impl Keys {
    /// The key that every machine has and, where there is one, that of a keyring's password.
    pub(crate) fn new(keyring_password: Option<&[u8]>) -> Self {
        Self { known: derive(KNOWN_PASSWORD), keyring: keyring_password.map(derive) }
    }

    /// Decrypts one value. An empty one is not encrypted.
    pub(crate) fn decrypt(&self, value: &[u8]) -> Result<Secret, Unreadable> {
        if value.is_empty() {
            return Ok(Secret::new(Vec::new()));
        }
        let (version, cipher) = value.split_at_checked(3).ok_or(Unreadable::Damaged)?;
        let key = match version {
            b"v10" => &self.known,
            b"v11" => self.keyring.as_ref().ok_or(Unreadable::NoKey)?,
            // v12: the desktop portal's secret.
            _ => return Err(Unreadable::NoKey),
        };
        let cbc = cbc::Decryptor::<aes::Aes128>::new((&**key).into(), (&IV).into());
        let plain = cbc.decrypt_padded_vec_mut::<Pkcs7>(cipher);
        plain.map(Secret::new).map_err(|_| Unreadable::Damaged)
    }

    /// Encrypts one value so that the app on any machine can read it.
    pub(crate) fn encrypt(&self, value: &[u8]) -> Vec<u8> {
        let cbc = cbc::Encryptor::<aes::Aes128>::new((&*self.known).into(), (&IV).into());
        let mut encrypted = b"v10".to_vec();
        encrypted.extend(cbc.encrypt_padded_vec_mut::<Pkcs7>(value));
        encrypted
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("keyring", &self.keyring.is_some()).finish_non_exhaustive()
    }
}

fn derive(password: &[u8]) -> Key {
    let mut key = Zeroizing::new([0; 16]);
    pbkdf2::pbkdf2_hmac::<sha1::Sha1>(password, SALT, ITERATIONS, &mut *key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Chromium 156 on Debian wrote for a cookie of 127.0.0.1 with the value `abc`.
    const WRITTEN_BY_CHROMIUM: &[u8] = b"v10+\xb0\x1e\xeb\xe4\x0c\xcf\xf8\xb9\xd3\xb7\x00'1X\xb0\
        \x1e\xeek\xed\xee\xca\xb4\xdem\xba\x08\x16\xa5k\x008\xe30O\xb3N\x08wXU\xbb\xbb\xa10\x9a\xdd\xb0";

    #[test]
    fn reads_and_writes_what_chromium_does() {
        use sha2::Digest as _;
        let keys = Keys::new(None);
        let plain = keys.decrypt(WRITTEN_BY_CHROMIUM).unwrap();
        let expected = [sha2::Sha256::digest(b"127.0.0.1").as_slice(), b"abc"].concat();
        assert_eq!(plain.expose(), expected);
        assert_eq!(keys.encrypt(&expected), WRITTEN_BY_CHROMIUM);
    }

    #[test]
    fn a_missing_key_is_told_from_damage() {
        let here = Keys::new(Some(b"one"));
        let mut foreign = b"v11".to_vec();
        foreign.extend(&here.encrypt(b"x")[3..]);
        assert_eq!(Keys::new(None).decrypt(&foreign), Err(Unreadable::NoKey));
        for damaged in [&b"v1"[..], b"v10", b"v10abc", &WRITTEN_BY_CHROMIUM[..40]] {
            assert_eq!(here.decrypt(damaged), Err(Unreadable::Damaged));
        }
        assert_eq!(here.decrypt(b"v12xxxxxxxxxxxxxxxx"), Err(Unreadable::NoKey));
        assert_eq!(here.decrypt(b"").unwrap().expose(), b"");
    }
}
