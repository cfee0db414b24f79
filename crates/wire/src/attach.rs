//! The first message of a client on a QUIC connection or in a WebTransport session: its ticket, and how it
//! wants to be sent video.
//!
//! ```json
//! {"type":"ticket","payload":{"ticket":"…","video":"streams"}}
//! ```
//!
//! At a relay a native viewer also names the machine, as `"machine":"build-box-7"`; a browser has done so in the
//! path.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use spaceport_types::Redacted;

use crate::DecodeError;

/// How packets travel on a QUIC connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Video {
    /// In datagrams, as the public contract has it. What is lost is not sent again.
    #[default]
    Datagrams,
    /// Each on a stream of its own, so that what is lost comes again while it matters.
    Streams,
}

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Opens the session.
    pub ticket: Redacted<String>,
    /// How it wants video; `None` leaves that to the carrier.
    pub video: Option<Video>,
    /// The machine whose session it is, at a relay.
    pub machine: Option<String>,
}

impl Attach {
    /// The text to send.
    pub fn to_json(&self) -> String {
        let payload = Payload {
            ticket: self.ticket.expose().into(),
            video: self.video,
            machine: self.machine.as_deref().map(Cow::Borrowed),
        };
        serde_json::to_string(&Message { kind: TICKET.into(), payload }).expect("a map of texts")
    }

    /// Reads a client's first text.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] for anything that is not a ticket; it says nothing of what was there instead.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        if text.len() > MAX_TEXT {
            return Err(DecodeError::TooLong {
                what: "ticket message",
                length: text.len() as u64,
                limit: MAX_TEXT as u64,
            });
        }
        let Message { kind, payload } = serde_json::from_str(text)
            .map_err(|error| DecodeError::json("ticket message", &error))?;
        if kind != TICKET {
            return Err(DecodeError::Malformed { what: "ticket message" });
        }
        Ok(Self {
            ticket: Redacted::new(payload.ticket.into_owned()),
            video: payload.video,
            machine: payload.machine.map(Cow::into_owned),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct Message<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    payload: Payload<'a>,
}

#[derive(Serialize, Deserialize)]
struct Payload<'a> {
    ticket: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    video: Option<Video>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    machine: Option<Cow<'a, str>>,
}

const TICKET: &str = "ticket";

/// The longest first message: a ticket, and room for members of later versions.
pub const MAX_TEXT: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_the_contract_is_read_and_a_choice_of_video_with_it() {
        let plain = Attach::parse(r#"{"type":"ticket","payload":{"ticket":"t0"}}"#).unwrap();
        assert_eq!((plain.ticket.expose().as_str(), plain.video), ("t0", None));
        for (name, video) in [("datagrams", Video::Datagrams), ("streams", Video::Streams)] {
            let text =
                format!(r#"{{"type":"ticket","payload":{{"ticket":"t0","video":"{name}"}}}}"#);
            let attach = Attach::parse(&text).unwrap();
            assert_eq!(attach.video, Some(video));
            assert_eq!(attach.to_json(), text);
            assert!(!format!("{attach:?}").contains("t0"));
        }
    }

    #[test]
    fn a_viewer_at_a_relay_names_the_machine() {
        let text = r#"{"type":"ticket","payload":{"ticket":"t0","machine":"build-box-7"}}"#;
        let attach = Attach::parse(text).unwrap();
        assert_eq!(attach.machine.as_deref(), Some("build-box-7"));
        assert_eq!(attach.to_json(), text);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "{}",
            r#"{"type":"get_stats"}"#,
            r#"{"type":"get_stats","payload":{"ticket":"t0"}}"#,
            r#"{"type":"ticket"}"#,
            r#"{"type":"ticket","payload":{"ticket":7}}"#,
            r#"{"type":"ticket","payload":{"ticket":"t0","video":"smoke signals"}}"#,
        ] {
            assert!(Attach::parse(text).is_err(), "{text}");
        }
        let long =
            format!(r#"{{"type":"ticket","payload":{{"ticket":"{}"}}}}"#, "a".repeat(MAX_TEXT));
        assert!(matches!(Attach::parse(&long), Err(DecodeError::TooLong { .. })));
    }
}
