//! SHA-256, as text and in JSON.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Serialize, Serializer};
use spaceport_types::{Error, Kind};

/// A SHA-256. As text, and in JSON, 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        let mut pairs = text.as_bytes().chunks_exact(2);
        let filled = bytes.iter_mut().zip(&mut pairs).try_fold(0, |filled, (byte, pair)| {
            let [high, low] = <[u8; 2]>::try_from(pair).ok()?.map(digit);
            *byte = high? << 4 | low?;
            Some(filled + 2)
        });
        if text.len() == 64 && filled == Some(64) {
            Ok(Self(bytes))
        } else {
            Err(Error::new(Kind::InvalidArgument, "a SHA-256 is 64 lowercase hexadecimal digits"))
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_goes_both_ways_and_nothing_else_is_read() {
        let digest = Digest(std::array::from_fn(|index| index as u8 * 7));
        let text = digest.to_string();
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        for wrong in
            [text.to_uppercase(), text[1..].to_owned(), format!("{text}00"), text.replace('0', "g")]
        {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
