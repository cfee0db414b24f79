//! A control message that can be read can be written, and is the same message when it is read again.

use std::mem::discriminant;

use spaceport_wire::control::{ClientMessage, MAX_ECHO, MAX_EVENTS, MAX_TEXT, ServerMessage};

pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(message) = ClientMessage::parse(text) {
        assert!(text.len() <= MAX_TEXT);
        match &message {
            ClientMessage::Unknown { kind } => assert!(kind.len() <= MAX_ECHO),
            ClientMessage::InteractiveInput(input) => assert!(input.events.len() <= MAX_EVENTS),
            _ => {}
        }
        let written = message.to_json();
        if written.len() <= MAX_TEXT {
            // Not equality: a coordinate may move by its last bit.
            let again = ClientMessage::parse(&written).unwrap();
            assert_eq!(discriminant(&again), discriminant(&message), "{written}");
        }
    }
    if let Ok(Some(message)) = ServerMessage::parse(text) {
        let written = message.to_json();
        let again = ServerMessage::parse(&written).unwrap().unwrap();
        assert_eq!(discriminant(&again), discriminant(&message), "{written}");
    }
}
