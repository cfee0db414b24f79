//! What a machine says of a session, and a relay of its viewers: no panic, and what is read comes back as it is.

use spaceport_wire::control::{Failure, ServerMessage};
use spaceport_wire::relay::Message as _;
use spaceport_wire::relay_media::{FromSession, Upward, error};

pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(message) = FromSession::parse(text) {
        // Numbers that no text can name come back as null, which is none; the first round settles them.
        if let Ok(again) = FromSession::parse(&message.to_json()) {
            assert_eq!(FromSession::parse(&again.to_json()), Ok(again));
        }
    }
    if let Ok(message) = Upward::parse(text) {
        assert_eq!(Upward::parse(&message.to_json()), Ok(message));
    }
    if let Ok(failure) = serde_json::from_str::<Failure>(text) {
        let report = error(&failure).report();
        assert!(report.message.chars().count() <= 500);
        assert!(!report.message.chars().any(char::is_control));
    }
    drop(ServerMessage::parse(text));
}
