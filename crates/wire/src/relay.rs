//! What is said in a relay's tunnel: the head of every stream, and the messages of the first one.
//!
//! All of it is JSON in the framing of [`crate::stream`]. A stream begins with a [`Head`], which says what
//! it is for. On the stream that a machine registers with, messages follow for as long as the tunnel is
//! there; after a head of another kind, the stream belongs to whom it is for.
//!
//! ```json
//! {"type":"register","payload":{"machine":"build-box-7","token":"…"}}
//! {"type":"http","payload":{"protocol":"h2"}}
//! ```

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use spaceport_types::{Cause, Error, Kind, MachineId, Redacted};

use crate::{DecodeError, relay_media};

/// The longest head or message: an error with its hint, and room for members of later versions.
pub const MAX_TEXT: usize = 16 << 10;

/// The version of all this; a machine says it when it registers.
pub const VERSION: u32 = 1;

/// What a stream is for: the first thing on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Head {
    /// A machine joins. The first stream of a tunnel, opened by the machine; messages follow.
    Register(Register),
    /// One request to the machine's own HTTP server, opened by the relay. HTTP follows.
    Http(Http),
    /// A viewer wants in. Messages of the session follow.
    Admit(relay_media::Admit),
    /// A session that the relay has goes on. The same.
    Resume(relay_media::Resume),
    /// Pictures of a session. They follow.
    Watch(relay_media::Watch),
    /// A node wants a machine that this one has. The first stream of a tunnel, opened by the node; messages
    /// follow, and further streams are as those that a relay opens to a machine.
    Reach(Reach),
}

/// A machine that wants to be reached through a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// The version of this protocol.
    pub version: u32,
    /// Which machine it is.
    pub machine: MachineId,
    /// What people call it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The version of its program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub software: String,
    /// Lets new machines in.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "secret")]
    pub registration_token: Option<Redacted<String>>,
    /// Shows that it is the machine that registered under this id before. A new machine makes it up.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "secret")]
    pub machine_token: Option<Redacted<String>>,
    /// The relays that are between, the machine's own first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<String>,
    /// Grows with every connection of this machine, to whichever node of a relay: of two, the later one is
    /// the one that counts. Zero says nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub serial: u64,
    /// Whether it is here by another tunnel and moves to this one: requests under way end there, and new ones
    /// come here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// One request, or one connection that is upgraded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Http {
    /// What is spoken on the stream.
    pub protocol: Protocol,
    /// Where the client came in, when that is another relay than the one that the machine has joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
}

/// A node of a relay, which wants one of the machines that another node has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The version of this protocol.
    pub version: u32,
    /// Which machine.
    pub machine: MachineId,
    /// Which node asks.
    pub node: String,
    /// What the other node is to prove itself with.
    pub nonce: String,
    /// Where clients come in at the node that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
}

/// The answer to [`Reach`]: a node shows that it is one, and has the other show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// What the asking node is to prove itself with.
    pub nonce: String,
    /// HMAC-SHA-256 by the secret of the nodes, in hexadecimal, over what `docs/relay.md` says.
    pub proof: String,
}

/// Where clients come in at a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The relay's origin, as clients are to use it.
    pub public_url: String,
    /// The relay's UDP port for viewers, and how its certificate is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quic: Option<Quic>,
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1, which can be upgraded.
    #[serde(rename = "http/1.1")]
    Http1,
    /// HTTP/2 with prior knowledge, which has trailers.
    #[serde(rename = "h2")]
    Http2,
}

/// What a relay says on the stream of a machine's registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case")]
pub enum FromRelay {
    /// The machine is in.
    Registered(Registered),
    /// The machine is not, and why. The last message.
    Refused(Refusal),
    /// The relay lives; the machine answers with the same number.
    Beat(u64),
    /// The relay ends the tunnel. The last message.
    Bye(Goodbye),
    /// To a node: this is one, too.
    Challenge(Challenge),
    /// To a node: the machine is reached by this tunnel from now on.
    Reached,
}

/// What a machine says there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case")]
pub enum FromMachine {
    /// The answer to [`FromRelay::Beat`].
    Beat(u64),
    /// The machine leaves, and is not coming back by itself. The last message.
    Bye,
    /// A node's answer to [`FromRelay::Challenge`].
    Proof(String),
}

/// How a machine is reached from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// To be shown the next time. Only when the relay made it, for a machine that had none worth the name.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "secret")]
    pub machine_token: Option<Redacted<String>>,
    /// The relay's origin, as clients are to use it.
    pub public_url: String,
    /// The relay itself, in lists of hops.
    pub relay: String,
    /// The relay's UDP port for viewers, and how its certificate is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quic: Option<Quic>,
    /// Whether a machine that moves to another tunnel keeps this one for what is under way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves: bool,
}

/// A QUIC port, and the SHA-256 of the certificates that may be met there, in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quic {
    /// The UDP port.
    pub port: u16,
    /// The one that is met now first.
    pub certificates: Vec<String>,
}

/// An error on its way to the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Its kind.
    pub kind: Kind,
    /// Its cause, for the kinds that have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// What happened.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Why a relay ends a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goodbye {
    /// The relay stops, and may be back in a moment.
    Stopping,
    /// The same machine has joined again.
    Replaced,
    /// The machine has moved to another tunnel. This one stays until what is under way on it is done.
    Moved,
    /// The machine was removed from the relay.
    Removed,
    /// The machine did not keep to what is agreed.
    Misbehaved,
}

/// Something that is said in a tunnel.
pub trait Message: Serialize + DeserializeOwned {
    /// What it is called in errors.
    const WHAT: &'static str;

    /// The text to send, to be framed by [`crate::stream::frame`].
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers, texts and lists of them")
    }

    /// Reads what the other side says.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] for what is too long or is not this; it says nothing of what was there instead.
    fn parse(text: &str) -> Result<Self, DecodeError> {
        if text.len() > MAX_TEXT {
            let (length, limit) = (text.len() as u64, MAX_TEXT as u64);
            return Err(DecodeError::TooLong { what: Self::WHAT, length, limit });
        }
        serde_json::from_str(text).map_err(|error| DecodeError::json(Self::WHAT, &error))
    }
}

impl Message for Head {
    const WHAT: &'static str = "head of a stream";
}

impl Message for FromRelay {
    const WHAT: &'static str = "message of a relay";
}

impl Message for FromMachine {
    const WHAT: &'static str = "message of a machine";
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        let report = error.report();
        Self {
            kind: report.kind,
            cause: report.cause,
            message: cut(&report.message),
            hint: report.hint.as_deref().map(cut),
        }
    }
}

impl From<Refusal> for Error {
    /// The error as it was at the other side. What kind a cause is of is not the peer's to say.
    fn from(refusal: Refusal) -> Self {
        let message = cut(&refusal.message);
        let error = match refusal.cause {
            Some(cause) => Self::because(cause, message),
            None => Self::new(refusal.kind, message),
        };
        match &refusal.hint {
            Some(hint) => error.hint(cut(hint)),
            None => error,
        }
    }
}

/// Not longer than a paragraph, and without what drives terminals.
fn cut(text: &str) -> String {
    /// Characters of another's text that are handed on.
    const LONGEST: usize = 500;
    text.chars().take(LONGEST).map(|it| if it.is_control() { '\u{fffd}' } else { it }).collect()
}

/// Tokens, which print as `[redacted]` everywhere but here.
mod secret {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use spaceport_types::Redacted;

    pub(super) fn serialize<S: Serializer>(
        secret: &Option<Redacted<String>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(Redacted::expose).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Redacted<String>>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Redacted::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> Register {
        Register {
            version: VERSION,
            machine: "build-box-7".parse().unwrap(),
            name: "Build box".into(),
            software: "0.1.0".into(),
            registration_token: Some(Redacted::new("s3cret".into())),
            machine_token: None,
            hops: Vec::new(),
            serial: 0,
            moves: false,
        }
    }

    #[test]
    fn heads_are_as_documented_and_hide_their_tokens() {
        let head = Head::Register(register());
        let text = r#"{"type":"register","payload":{"version":1,"machine":"build-box-7","name":"Build box","software":"0.1.0","registration_token":"s3cret"}}"#;
        assert_eq!(head.to_json(), text);
        assert_eq!(Head::parse(text), Ok(head.clone()));
        assert!(!format!("{head:?}").contains("s3cret"));
        for (text, protocol) in [
            (r#"{"type":"http","payload":{"protocol":"h2"}}"#, Protocol::Http2),
            (r#"{"type":"http","payload":{"protocol":"http/1.1"}}"#, Protocol::Http1),
        ] {
            assert_eq!(Head::parse(text), Ok(Head::Http(Http { protocol, entry: None })));
            assert_eq!(Head::Http(Http { protocol, entry: None }).to_json(), text);
        }
        let further = Head::Http(Http {
            protocol: Protocol::Http2,
            entry: Some(Entry { public_url: "https://outer.example".into(), quic: None }),
        });
        let text = r#"{"type":"http","payload":{"protocol":"h2","entry":{"public_url":"https://outer.example"}}}"#;
        assert_eq!((&*further.to_json(), Head::parse(text)), (text, Ok(further)));
    }

    #[test]
    fn moving_is_said_only_by_who_moves_and_understood_by_who_knows_of_it() {
        let stays = Head::Register(register()).to_json();
        assert!(!stays.contains("moves"), "{stays}");
        let moves = Head::Register(Register { moves: true, ..register() });
        assert_eq!(Head::parse(&moves.to_json()), Ok(moves));
        let older = r#"{"type":"registered","payload":{"public_url":"","relay":"r1"}}"#;
        let Ok(FromRelay::Registered(older)) = FromRelay::parse(older) else { panic!() };
        assert!(!older.moves, "who does not say so ends what is under way");
    }

    #[test]
    fn messages_of_both_sides_go_there_and_back() {
        for message in [
            FromRelay::Beat(7),
            FromRelay::Reached,
            FromRelay::Challenge(Challenge { nonce: "n".into(), proof: "ab".into() }),
            FromRelay::Bye(Goodbye::Replaced),
            FromRelay::Bye(Goodbye::Moved),
            FromRelay::Refused(Refusal::from(&Error::new(Kind::Unauthenticated, "no"))),
            FromRelay::Registered(Registered {
                machine_token: Some(Redacted::new("cmt_x".into())),
                public_url: "https://relay.example".into(),
                relay: "r1".into(),
                quic: Some(Quic { port: 3212, certificates: vec!["ab".into()] }),
                moves: true,
            }),
        ] {
            assert_eq!(FromRelay::parse(&message.to_json()), Ok(message));
        }
        for message in [FromMachine::Beat(7), FromMachine::Bye, FromMachine::Proof("ab".into())] {
            assert_eq!(FromMachine::parse(&message.to_json()), Ok(message));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "{}",
            "null",
            r#"{"type":"http"}"#,
            r#"{"type":"http","payload":{"protocol":"gopher"}}"#,
            r#"{"type":"register","payload":{"version":1,"machine":"../../etc"}}"#,
            r#"{"type":"register","payload":{"version":-1,"machine":"build-box-7"}}"#,
            r#"{"type":"of later","payload":{}}"#,
        ] {
            assert!(Head::parse(text).is_err(), "{text}");
        }
        let long = format!("\"{}\"", "a".repeat(MAX_TEXT));
        assert!(matches!(Head::parse(&long), Err(DecodeError::TooLong { .. })));
    }

    #[test]
    fn an_error_arrives_as_it_was_and_not_longer_than_it_should_be() {
        let error =
            Error::new(Kind::PermissionDenied, "that id is another machine's").hint("Choose");
        let arrived = Error::from(Refusal::from(&error));
        assert_eq!((arrived.kind(), arrived.to_string()), (error.kind(), error.to_string()));
        assert_eq!(arrived.report().hint.as_deref(), Some("Choose"));
        let hostile = Refusal {
            kind: Kind::Relay,
            cause: Some(Cause::GuestOffline),
            message: "\u{1b}[2J".repeat(1000),
            hint: None,
        };
        let arrived = Error::from(hostile);
        assert_eq!(arrived.kind(), Kind::Stream, "the cause decides");
        assert!(arrived.to_string().chars().count() <= 500);
        assert!(!arrived.to_string().contains('\u{1b}'));
    }
}
