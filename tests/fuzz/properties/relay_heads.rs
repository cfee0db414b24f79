//! What is said in a relay's tunnel, by either side: what is read is written as it would be read again.

use spaceport_wire::relay::{FromMachine, FromRelay, Head, MAX_TEXT, Message, Refusal};
use spaceport_wire::stream::Reader;

pub(crate) fn check(data: &[u8]) {
    let mut reader = Reader::new(MAX_TEXT);
    reader.push(data);
    while let Ok(Some(text)) = reader.message() {
        each(&text);
    }
    // And without lengths in front, which a fuzzer finds seldom.
    if let Ok(text) = std::str::from_utf8(data) {
        each(text);
    }
}

fn each(text: &str) {
    again::<Head>(text);
    again::<FromMachine>(text);
    if let Some(FromRelay::Refused(refusal)) = again::<FromRelay>(text) {
        let error = spaceport_types::Error::from(refusal);
        assert!(error.to_string().chars().count() <= 500);
        assert_eq!(Refusal::from(&error).message, error.to_string());
    }
}

fn again<M: Message + PartialEq + std::fmt::Debug>(text: &str) -> Option<M> {
    let message = M::parse(text).ok()?;
    assert_eq!(M::parse(&message.to_json()).as_ref(), Ok(&message));
    Some(message)
}
