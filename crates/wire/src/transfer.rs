//! The one request that declares very much, read within bounds.
//!
//! A message of 64 MiB can declare tens of millions of empty entries, each of which would take fifty
//! times its room once it is read. What is beyond the limit is counted and dropped as it is read;
//! the rest is as generated code has it.

use bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, bool, int32, message, skip_field, string};
use prost::{DecodeError, Message};

use crate::pb::TransferEntry;

/// Entries of one transfer.
pub const MAX_ENTRIES: usize = 200_000;

/// Ignore patterns of one transfer. They are compiled into one automaton.
pub const MAX_PATTERNS: usize = 1_000;

/// `cua.env.v1.BeginReceiveFilesRequest`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BeginReceiveFilesRequest {
    /// The sender's name for the transfer.
    pub transfer_id: String,
    /// Below the downloads directory.
    pub destination_subdir: String,
    /// At most [`MAX_ENTRIES`] of those declared.
    pub entries: Vec<TransferEntry>,
    /// At most [`MAX_PATTERNS`] of those given.
    pub ignore_patterns: Vec<String>,
    /// Whether `.gitignore` files among the entries count.
    pub honor_gitignore: bool,
    /// A [`ConflictPolicy`](crate::pb::ConflictPolicy).
    pub conflict_policy: i32,
    /// How long the transfer may rest.
    pub ttl: Option<prost_types::Duration>,
    /// Entries and patterns that were declared beyond the limits, and are not here.
    pub surplus: usize,
}

impl Message for BeginReceiveFilesRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if !self.transfer_id.is_empty() {
            string::encode(1, &self.transfer_id, buf);
        }
        if !self.destination_subdir.is_empty() {
            string::encode(2, &self.destination_subdir, buf);
        }
        message::encode_repeated(3, &self.entries, buf);
        string::encode_repeated(4, &self.ignore_patterns, buf);
        if self.honor_gitignore {
            bool::encode(5, &self.honor_gitignore, buf);
        }
        if self.conflict_policy != 0 {
            int32::encode(6, &self.conflict_policy, buf);
        }
        if let Some(ttl) = &self.ttl {
            message::encode(7, ttl, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => string::merge(wire_type, &mut self.transfer_id, buf, ctx),
            2 => string::merge(wire_type, &mut self.destination_subdir, buf, ctx),
            3 if self.entries.len() < MAX_ENTRIES => {
                message::merge_repeated(wire_type, &mut self.entries, buf, ctx)
            }
            4 if self.ignore_patterns.len() < MAX_PATTERNS => {
                string::merge_repeated(wire_type, &mut self.ignore_patterns, buf, ctx)
            }
            3 | 4 => {
                self.surplus += 1;
                skip_field(wire_type, tag, buf, ctx)
            }
            5 => bool::merge(wire_type, &mut self.honor_gitignore, buf, ctx),
            6 => int32::merge(wire_type, &mut self.conflict_policy, buf, ctx),
            7 => message::merge(wire_type, self.ttl.get_or_insert_default(), buf, ctx),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let text = |tag, text: &String| match text.is_empty() {
            true => 0,
            false => string::encoded_len(tag, text),
        };
        let policy = self.conflict_policy;
        text(1, &self.transfer_id)
            + text(2, &self.destination_subdir)
            + message::encoded_len_repeated(3, &self.entries)
            + string::encoded_len_repeated(4, &self.ignore_patterns)
            + if self.honor_gitignore { bool::encoded_len(5, &true) } else { 0 }
            + if policy != 0 { int32::encoded_len(6, &policy) } else { 0 }
            + self.ttl.as_ref().map_or(0, |ttl| message::encoded_len(7, ttl))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> BeginReceiveFilesRequest {
        BeginReceiveFilesRequest {
            transfer_id: "t".to_owned(),
            destination_subdir: "sub".to_owned(),
            entries: vec![
                TransferEntry {
                    relative_path: "a".to_owned(),
                    size: 7,
                    ..TransferEntry::default()
                },
                TransferEntry {
                    relative_path: "d".to_owned(),
                    directory: true,
                    ..TransferEntry::default()
                },
            ],
            ignore_patterns: vec!["*.log".to_owned(), String::new()],
            honor_gitignore: true,
            conflict_policy: 2,
            ttl: Some(prost_types::Duration { seconds: 60, nanos: 1 }),
            surplus: 0,
        }
    }

    // The bytes of the same message, worked out by hand from the contract's field numbers.
    #[test]
    fn the_bytes_are_the_contracts() {
        let expected = [
            b"\x0a\x01t\x12\x03sub".as_slice(),
            b"\x1a\x05\x0a\x01a\x18\x07\x1a\x05\x0a\x01d\x10\x01",
            b"\x22\x05*.log\x22\x00\x28\x01\x30\x02\x3a\x04\x08\x3c\x10\x01",
        ]
        .concat();
        let request = request();
        assert_eq!(request.encode_to_vec(), expected);
        assert_eq!(request.encoded_len(), expected.len());
        assert_eq!(BeginReceiveFilesRequest::decode(&expected[..]).unwrap(), request);
        assert_eq!(BeginReceiveFilesRequest::default().encoded_len(), 0);
    }

    #[test]
    fn what_is_too_much_is_counted_and_not_kept() {
        let mut bytes = request().encode_to_vec();
        for _ in 0..3 * MAX_ENTRIES {
            bytes.extend(b"\x1a\x00\x22\x00");
        }
        let read = BeginReceiveFilesRequest::decode(&bytes[..]).unwrap();
        assert_eq!(read.entries.len(), MAX_ENTRIES);
        assert_eq!(read.ignore_patterns.len(), MAX_PATTERNS);
        assert_eq!(read.surplus, 2 * (3 * MAX_ENTRIES + 2) - MAX_ENTRIES - MAX_PATTERNS);
        assert_eq!(read.transfer_id, "t");
        // What is dropped still has to be a message.
        bytes.extend(b"\x1a\x05");
        assert!(BeginReceiveFilesRequest::decode(&bytes[..]).is_err());
    }
}
