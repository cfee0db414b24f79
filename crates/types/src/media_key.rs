//! The secret that opens the frames of a session that is sealed from end to end.

use std::fmt;

use crate::{Error, Kind, Redacted, Result};

/// A key that only a guest and those who watch have. Between the two, frames are sealed with it.
///
/// In text it is lower-case hexadecimal, which stands in the fragment of a viewer's address: no
/// browser sends that anywhere.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct MediaKey(Redacted<[u8; Self::SIZE]>);

impl MediaKey {
    /// Bytes of a key.
    pub const SIZE: usize = 32;

    /// A key of these random bytes.
    pub const fn new(bytes: [u8; Self::SIZE]) -> Self {
        Self(Redacted::new(bytes))
    }

    /// Reads the secret.
    pub const fn expose(&self) -> &[u8; Self::SIZE] {
        self.0.expose()
    }

    /// The key as text.
    pub fn to_text(&self) -> Redacted<String> {
        Redacted::new(self.expose().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads what [`MediaKey::to_text`] wrote.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for anything else. The text is not part of the error.
    pub fn from_text(text: &str) -> Result<Self> {
        let digit = |byte: &u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let digits: Option<Vec<u8>> = text.as_bytes().iter().map(digit).collect();
        let mut bytes = [0; Self::SIZE];
        match digits {
            Some(digits) if digits.len() == 2 * Self::SIZE => {
                for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                    *byte = pair.iter().fold(0, |byte, digit| byte << 4 | digit);
                }
                Ok(Self::new(bytes))
            }
            _ => Err(Error::new(Kind::InvalidArgument, "that is no media key")
                .with("limit", "64 digits, lower-case hexadecimal")
                .hint("Use the whole address of the viewer, `key=` included")),
        }
    }
}

impl fmt::Debug for MediaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_key_are_one_and_neither_is_shown() {
        let key = MediaKey::new(std::array::from_fn(|at| 7 * at as u8));
        let text = key.to_text();
        assert_eq!(MediaKey::from_text(text.expose()).unwrap(), key);
        assert!(text.expose().starts_with("00070e15"));
        assert_eq!(format!("{key:?} {text:?}"), "[redacted] [redacted]");
    }

    #[test]
    fn what_is_no_key_is_refused_without_repeating_it() {
        let good = "0a".repeat(32);
        for bad in
            ["", "zz", &good[1..], &format!("{good}0"), &good.to_uppercase(), &"é".repeat(32)]
        {
            let error = MediaKey::from_text(bad).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument);
            assert!(bad.is_empty() || !format!("{error:?}").contains(bad));
        }
    }
}
