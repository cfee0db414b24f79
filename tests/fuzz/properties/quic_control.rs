//! The control stream of a client, ticket first, in pieces: what comes out does not depend on how it was cut.

use spaceport_wire::attach::{self, Attach};
use spaceport_wire::control::ClientMessage;
use spaceport_wire::stream::Reader;
use spaceport_wire::{DecodeError, control};

pub(crate) fn check(data: &[u8]) {
    let whole = read(data, data.len().max(1));
    for size in [1, 3, 64] {
        assert_eq!(read(data, size), whole, "in pieces of {size}");
    }
}

/// Every message, and the error that ended them.
fn read(data: &[u8], size: usize) -> (Vec<String>, Option<DecodeError>) {
    let mut reader = Reader::new(attach::MAX_TEXT);
    let mut texts = Vec::new();
    for piece in data.chunks(size) {
        reader.push(piece);
        loop {
            match reader.message() {
                Ok(Some(text)) => {
                    if texts.is_empty() {
                        let Ok(first) = Attach::parse(&text) else { return (vec![text], None) };
                        assert_eq!(Attach::parse(&first.to_json()), Ok(first));
                        reader = reader.of_length(control::MAX_TEXT);
                    } else if let Ok(message) = ClientMessage::parse(&text) {
                        message.to_json();
                    }
                    texts.push(text);
                }
                Ok(None) => break,
                Err(error) => return (texts, Some(error)),
            }
        }
    }
    (texts, None)
}
