//! What a relay and a machine say about media, on streams that the relay opens in the tunnel.
//!
//! | head | what the stream is for |
//! |---|---|
//! | [`Admit`] | a viewer has come with a ticket: the machine answers with [`FromSession`], and holds the session for as long as the stream is open |
//! | [`Resume`] | the same for a session that the relay has, after the tunnel was lost |
//! | [`Watch`] | one sort of pictures of a session that is held: packets and messages as on a media socket, in the framing of [`crate::packet`] |
//!
//! On a stream of pictures the relay says what a viewer does ([`crate::control::ClientMessage`]), and besides
//! it [`Upward`].

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use spaceport_types::{Codec, Error, Geometry, Kind, Redacted, Target};

use crate::control::{Failure, Policy};
use crate::relay::{Message, Refusal};

/// A viewer wants in. The machine judges what it shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admit {
    /// What the viewer shows.
    #[serde(with = "secret")]
    pub secret: Redacted<String>,
    /// How it comes.
    #[serde(flatten)]
    pub way: Way,
}

/// How a viewer comes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum Way {
    /// With the ticket of a session.
    Socket,
    /// As a WHEP player, whose secret may open a session first.
    Whep {
        /// The display it wants, if not the primary one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        display: Option<String>,
    },
}

/// A session that was lost with the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The session.
    pub session_id: String,
    /// What [`Admitted`] gave for this.
    #[serde(with = "secret")]
    pub key: Redacted<String>,
}

/// Pictures of a session that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The session.
    pub session_id: String,
    /// How they are to be encoded.
    pub codec: Codec,
    /// Whether the pointer is to be in them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub baked_cursor: bool,
    /// The most kilobits a second that its viewers take; none for as much as there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond_kbps: Option<u32>,
}

/// What a machine says of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case")]
pub enum FromSession {
    /// The viewer may watch. The first message.
    Admitted(Box<Admitted>),
    /// It may not, and why. The only message.
    Refused(Refusal),
    /// The session is closed, and why. The last message.
    Closed(Refusal),
}

/// A session, as the relay needs to know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admitted {
    /// The session.
    pub session_id: String,
    /// Takes it up again on another tunnel, for as long as the machine keeps it.
    #[serde(with = "secret")]
    pub key: Redacted<String>,
    /// What it shows.
    pub target: Target,
    /// The codec its sockets get.
    pub codec: Codec,
    /// What the machine can encode as video, the best first.
    #[serde(default)]
    pub codecs: Vec<Codec>,
    /// Frames per second at most.
    pub max_fps: u32,
    /// The longer side's limit in pixels; zero is none.
    pub max_dimension: u32,
    /// The most bits a second.
    pub bitrate_kbps: u32,
    /// What viewers may do.
    pub policy: Policy,
    /// What its frames show now.
    pub geometry: Geometry,
    /// Whether its frames are sealed, for viewers to open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// The clock that packets are stamped with, in microseconds.
    pub clock_us: u64,
}

/// What only a relay says on a stream of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case")]
pub enum Upward {
    /// So many frames have come, and somebody takes the next one.
    Arrived(u32),
    /// Its viewers take so many kilobits a second and not more; `None`: as much as there is.
    Beyond(Option<u32>),
}

impl Message for FromSession {
    const WHAT: &'static str = "message of a session";
}

impl Message for Upward {
    const WHAT: &'static str = "message of a relay's viewers";
}

/// A failure that a machine tells of, as an error. Not longer than it should be, and a kind that is not known
/// here is one of the relay's.
pub fn error(failure: &Failure) -> Error {
    fn known<T: DeserializeOwned>(name: Option<&String>) -> Option<T> {
        serde_json::from_value(Value::String(name?.clone())).ok()
    }
    Error::from(Refusal {
        kind: known(failure.kind.as_ref()).unwrap_or(Kind::Relay),
        cause: known(failure.cause.as_ref()),
        message: failure.message.clone(),
        hint: failure.hint.clone(),
    })
}

/// A secret, which prints as `[redacted]` everywhere but here.
mod secret {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use spaceport_types::Redacted;

    pub(super) fn serialize<S: Serializer>(
        secret: &Redacted<String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        secret.expose().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Redacted<String>, D::Error> {
        Ok(Redacted::new(String::deserialize(deserializer)?))
    }
}

#[cfg(test)]
mod tests {
    use spaceport_types::{Cause, Size};

    use super::*;
    use crate::relay::Head;

    #[test]
    fn heads_are_as_documented_and_hide_their_secrets() {
        let secret = Redacted::new("t0p".to_owned());
        for (head, text) in [
            (
                Head::Admit(Admit { secret: secret.clone(), way: Way::Socket }),
                r#"{"type":"admit","payload":{"secret":"t0p","way":"socket"}}"#,
            ),
            (
                Head::Admit(Admit {
                    secret: secret.clone(),
                    way: Way::Whep { display: Some("1".into()) },
                }),
                r#"{"type":"admit","payload":{"secret":"t0p","way":"whep","display":"1"}}"#,
            ),
            (
                Head::Resume(Resume { session_id: "media-a".into(), key: secret }),
                r#"{"type":"resume","payload":{"session_id":"media-a","key":"t0p"}}"#,
            ),
            (
                Head::Watch(Watch {
                    session_id: "media-a".into(),
                    codec: Codec::Vp8,
                    baked_cursor: true,
                    beyond_kbps: Some(900),
                }),
                r#"{"type":"watch","payload":{"session_id":"media-a","codec":"vp8","baked_cursor":true,"beyond_kbps":900}}"#,
            ),
        ] {
            assert_eq!(head.to_json(), text);
            assert!(!format!("{head:?}").contains("t0p"));
            assert_eq!(Head::parse(text), Ok(head));
        }
    }

    #[test]
    fn messages_go_there_and_back() {
        let frame_size = Size::new(640, 360);
        let admitted = Admitted {
            session_id: "media-a".into(),
            key: Redacted::new("k".into()),
            target: Target::TestPattern,
            codec: Codec::H264,
            codecs: vec![Codec::H264, Codec::Vp8],
            max_fps: 30,
            max_dimension: 0,
            bitrate_kbps: 8_000,
            policy: Policy::ViewOnly,
            geometry: Geometry {
                frame_size,
                scale: 1.0,
                logical_bounds: frame_size.into(),
                geometry_epoch: 3,
            },
            sealed: true,
            clock_us: 17,
        };
        for message in [
            FromSession::Admitted(Box::new(admitted)),
            FromSession::Refused(Refusal::from(&Error::new(Kind::Unauthenticated, "no"))),
            FromSession::Closed(Refusal::from(&Error::new(Kind::Stream, "over"))),
        ] {
            assert_eq!(FromSession::parse(&message.to_json()), Ok(message));
        }
        for message in [Upward::Arrived(7), Upward::Beyond(Some(2_700)), Upward::Beyond(None)] {
            assert_eq!(Upward::parse(&message.to_json()), Ok(message));
        }
        let offline = Error::because(Cause::GuestOffline, "away").hint("Wait");
        let arrived = error(&Failure::from(&offline));
        assert_eq!((arrived.cause(), arrived.to_string()), (offline.cause(), offline.to_string()));
        let odd = Failure { kind: Some("odd".into()), ..Failure::default() };
        assert_eq!(error(&odd).kind(), Kind::Relay);
        // What a viewer says is not for this.
        assert!(Upward::parse(r#"{"type":"request_keyframe","payload":{}}"#).is_err());
    }
}
