//! What the nodes of a relay write for each other into Redis.
//!
//! Whoever can write there can write anything. So each of it is checked when it is read, and what is not as it
//! should be is as if it were not there.
//!
//! ```json
//! {"name":"Build box","software":"0.1.0","token":"<SHA-256 in hexadecimal>","registered":1700000000}
//! {"node":"dGhlIG5vZGUx","serial":1700000000000,"since":1700000000}
//! ```

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest text that is looked at: several times what any of ours has.
pub const LONGEST: usize = 2048;

/// Numbers beyond this are not exact in Redis's scripts.
pub const MAX_SERIAL: u64 = (1 << 53) - 1;

/// A machine that is registered, or was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// What people call it.
    #[serde(default)]
    pub name: String,
    /// The version of its program.
    #[serde(default)]
    pub software: String,
    /// SHA-256 of its token, in lower-case hexadecimal. `None`: it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// When it was let in, in seconds since 1970.
    #[serde(default)]
    pub registered: u64,
}

/// Where a machine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The node that has it.
    pub node: String,
    /// How the machine counts its connections.
    pub serial: u64,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

impl Registered {
    /// Reads one.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let is_hash = |token: &String| {
            token.len() == 64 && token.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
        };
        read(text).filter(|it: &Self| it.token.as_ref().is_none_or(is_hash))
    }

    /// The text that is read again.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers")
    }
}

impl Held {
    /// Reads one.
    pub fn parse(text: &[u8]) -> Option<Self> {
        read(text).filter(|held: &Self| is_name(&held.node) && held.serial <= MAX_SERIAL)
    }

    /// The text that is read again.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers")
    }
}

/// Whether that can name a node, or be a nonce: letters as base64 has them.
pub fn is_name(text: &str) -> bool {
    (8..=64).contains(&text.len())
        && text.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-' || it == b'_')
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    if text.len() > LONGEST {
        return None;
    }
    serde_json::from_slice(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let token = Some("ab".repeat(32));
        let one = Registered { name: "Box".into(), token, ..Registered::default() };
        assert_eq!(Registered::parse(one.to_json().as_bytes()), Some(one));
        let removed = Registered::default();
        assert_eq!(Registered::parse(removed.to_json().as_bytes()), Some(removed));
        let held = Held { node: "abcdefgh".into(), serial: 7, since: 1 };
        assert_eq!(Held::parse(held.to_json().as_bytes()), Some(held));
        for odd in [
            &b"garbage"[..],
            b"",
            b"\xff\xfe",
            b"[1,2]",
            br#"{"node":"../../../etc","serial":1,"since":1}"#,
            br#"{"node":"abcdefgh","serial":-1,"since":1}"#,
            br#"{"node":"abcdefgh","serial":18446744073709551615,"since":1}"#,
        ] {
            assert_eq!(Held::parse(odd), None);
        }
        assert_eq!(Registered::parse(br#"{"token":"ABAB"}"#), None);
        let long = format!("{{\"name\":\"{}\"}}", "x".repeat(LONGEST));
        assert_eq!(Registered::parse(long.as_bytes()), None);
    }
}
