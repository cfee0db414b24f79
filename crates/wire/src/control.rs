//! Control messages of the media plane (rcdp v2): JSON text, `{"type": …, "payload": {…}}`.
//!
//! A server reads [`ClientMessage`]s and writes [`ServerMessage`]s; a client does the reverse. Text
//! that is not a control message ends the connection with
//! [`CloseCode::Malformed`](crate::close::CloseCode::Malformed). A message of an unknown type never
//! does: the server answers it with [`ServerMessage::unsupported`], the client passes it over.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use spaceport_types::Suspension;
use spaceport_types::{Codec, Error, Geometry, Target};

use crate::{DecodeError, WIRE_VERSION};

/// What a server says on a media connection.
///
/// `hello`, then `session_opened`, come unprompted and before the first packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServerMessage {
    /// Which protocol this is and what the server can do.
    Hello(Hello),
    /// What the viewer is attached to.
    SessionOpened(Box<SessionOpened>),
    /// Something happened to the target.
    Lifecycle(Lifecycle),
    /// The answer to [`ClientMessage::RequestKeyframe`]: a keyframe comes soon.
    KeyframeRequested {
        /// The media session.
        session_id: String,
    },
    /// The answer to [`ClientMessage::SetStreamPreferences`].
    StreamPreferencesApplied(AppliedPreferences),
    /// The answer to [`ClientMessage::GetStats`].
    Stats(Stats),
    /// The answer to [`ClientMessage::InteractiveInput`].
    InteractiveInputAcknowledgement(InputAcknowledgement),
    /// The answer to [`ClientMessage::Action`].
    ActionResult(ActionResult),
    /// The pointer looks like this from now on; only after [`ClientMessage::SetCursor`].
    CursorImage(CursorImage),
    /// The pointer is here now; only after [`ClientMessage::SetCursor`].
    Cursor(Cursor),
    /// A request failed, or the stream did.
    Error(Failure),
}

impl ServerMessage {
    /// The `hello` of this wire version.
    pub fn hello(capabilities: impl IntoIterator<Item = &'static str>) -> Self {
        Self::Hello(Hello {
            protocol: Hello::PROTOCOL.into(),
            versions: vec![WIRE_VERSION],
            selected_version: WIRE_VERSION,
            capabilities: capabilities.into_iter().map(Cow::Borrowed).collect(),
        })
    }

    /// The answer to a message whose type this server does not know, or no longer serves.
    pub fn unsupported(kind: &str) -> Self {
        Self::Error(Failure {
            code: "unsupported_operation".into(),
            message: format!("`{kind}` is not served on this connection"),
            ..Failure::default()
        })
    }

    /// The text to send.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// Reads a server's text. `None` is a message of a type that this version does not know.
    pub fn parse(text: &str) -> Result<Option<Self>, DecodeError> {
        let Envelope { kind, payload } = Envelope::parse(text)?;
        Ok(Some(match &*kind {
            "hello" => Self::Hello(read(payload)?),
            "session_opened" => Self::SessionOpened(read(payload)?),
            "lifecycle" => Self::Lifecycle(read(payload)?),
            "keyframe_requested" => {
                let SessionRef { session_id } = read(payload)?;
                Self::KeyframeRequested { session_id: session_id.unwrap_or_default() }
            }
            "stream_preferences_applied" => Self::StreamPreferencesApplied(read(payload)?),
            "stats" => Self::Stats(read(payload)?),
            "interactive_input_acknowledgement" => {
                Self::InteractiveInputAcknowledgement(read(payload)?)
            }
            "action_result" => Self::ActionResult(read(payload)?),
            "cursor_image" => Self::CursorImage(read(payload)?),
            "cursor" => Self::Cursor(read(payload)?),
            "error" => Self::Error(read(payload)?),
            _ => return Ok(None),
        }))
    }
}

/// What a client says on a media connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", content = "payload", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ClientMessage {
    /// Wants a frame that a decoder can start at.
    RequestKeyframe(SessionRef),
    /// Wants other limits.
    SetStreamPreferences(Preferences),
    /// Wants to know how the stream is doing.
    GetStats(GetStats),
    /// Pointer and key events, in order.
    InteractiveInput(InteractiveInput),
    /// One tool call, tied to what the viewer saw.
    Action(Action),
    /// Wants to be told of the pointer, or no more. Without it nothing of the pointer is sent: it is
    /// no message of the public contract.
    SetCursor(SetCursor),
    /// A type this version does not know, cut to [`MAX_ECHO`] bytes. Answer with
    /// [`ServerMessage::unsupported`].
    #[serde(untagged)]
    Unknown {
        /// The type.
        #[serde(rename = "type")]
        kind: String,
    },
}

impl ClientMessage {
    /// The text to send.
    pub fn to_json(&self) -> String {
        to_json(self)
    }

    /// Reads a client's text.
    ///
    /// Fails on text that is no control message, and on a known type with a payload that is not
    /// its own. An unknown type is [`ClientMessage::Unknown`], not a failure.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        if text.len() > MAX_TEXT {
            return Err(too_long("control message", text.len(), MAX_TEXT));
        }
        let Envelope { kind, payload } = Envelope::parse(text)?;
        Ok(match &*kind {
            "request_keyframe" => Self::RequestKeyframe(read(payload)?),
            "set_stream_preferences" => Self::SetStreamPreferences(read(payload)?),
            "get_stats" => Self::GetStats(read(payload)?),
            "interactive_input" => {
                let input: InteractiveInput = read(payload)?;
                if input.events.len() > MAX_EVENTS {
                    return Err(too_long("input batch", input.events.len(), MAX_EVENTS));
                }
                Self::InteractiveInput(input)
            }
            "action" => Self::Action(read(payload)?),
            "set_cursor" => Self::SetCursor(read(payload)?),
            _ => {
                let end = kind.floor_char_boundary(MAX_ECHO);
                Self::Unknown { kind: kind[..end].to_owned() }
            }
        })
    }
}

/// What every control message looks like from outside.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    payload: Value,
}

impl<'a> Envelope<'a> {
    fn parse(text: &'a str) -> Result<Self, DecodeError> {
        serde_json::from_str(text).map_err(|error| DecodeError::json("control message", &error))
    }
}

/// Reads a payload; one that is missing or null counts as empty.
fn read<T: DeserializeOwned>(payload: Value) -> Result<T, DecodeError> {
    let payload = if payload.is_null() { Value::Object(<_>::default()) } else { payload };
    serde_json::from_value(payload).map_err(|error| DecodeError::json("message payload", &error))
}

fn too_long(what: &'static str, length: usize, limit: usize) -> DecodeError {
    DecodeError::TooLong { what, length: length as u64, limit: limit as u64 }
}

fn to_json<T: Serialize>(message: &T) -> String {
    serde_json::to_string(message).expect("maps with text keys and finite or null numbers only")
}

/// The server's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Always [`Hello::PROTOCOL`].
    pub protocol: Cow<'static, str>,
    /// Wire versions the server speaks.
    pub versions: Vec<u32>,
    /// The one it speaks here.
    pub selected_version: u32,
    /// What it can do; names are in [`capability`].
    #[serde(default)]
    pub capabilities: Vec<Cow<'static, str>>,
}

impl Hello {
    /// The name of the protocol.
    pub const PROTOCOL: &'static str = "rcdp";
}

/// Names for [`Hello::capabilities`].
pub mod capability {
    /// Pointer and key events are taken.
    pub const INPUT: &str = "input.interactive.v2";
    /// Whole desktops are streamed, not only windows.
    pub const DESKTOP: &str = "desktop.v1";
    /// The first packet of every attach is a keyframe.
    pub const KEYFRAME_ON_ATTACH: &str = "keyframe_on_attach.v1";
    /// Audio can be had.
    pub const AUDIO: &str = "audio.v1";
    /// The pointer is told beside the picture when asked for.
    pub const CURSOR: &str = "cursor.v1";
    /// The payload of every packet is sealed from end to end ([`crate::sealed`]).
    pub const SEALED: &str = "sframe.v1";
}

/// What a viewer is attached to, and under which terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionOpened {
    /// The media session.
    pub session_id: String,
    /// What it shows.
    pub target: Target,
    /// How its packets are encoded.
    pub codec: Codec,
    /// The epoch of `geometry`, again, where clients look for it.
    pub geometry_epoch: u64,
    /// The epoch of the encoder; the first packet may already be of a later one.
    pub codec_epoch: u32,
    /// What the first packet shows.
    pub geometry: Geometry,
    /// The most frames a second.
    pub max_fps: u32,
    /// The longer side's limit in pixels; zero is none.
    pub max_dimension: u32,
    /// The bitrate aimed at.
    pub bitrate_kbps: u32,
    /// What the viewer may do.
    pub policy: Policy,
    /// Whether the viewer's size changes the target's.
    pub geometry_control: GeometryControl,
    /// What the server can do here, as in [`Hello`].
    pub capabilities: Vec<Cow<'static, str>>,
    /// Tools that [`ClientMessage::Action`] may call.
    #[serde(default)]
    pub actions: Vec<String>,
}

/// What viewers of a session may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Look.
    #[default]
    ViewOnly,
    /// Look, and act without raising or focusing anything.
    BackgroundOnly,
    /// Look and act.
    AllowActivation,
}

/// Whether a viewer's size changes the target's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GeometryControl {
    /// It does not.
    #[default]
    ObserveOnly,
    /// It does; one session per target.
    Bidirectional,
}

/// Something happened to the target of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lifecycle {
    /// The media session.
    pub session_id: String,
    /// What happened.
    #[serde(flatten)]
    pub event: LifecycleEvent,
}

/// What happened to a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LifecycleEvent {
    /// It has another size or place; packets of the new epoch follow.
    GeometryChanged {
        /// The new geometry.
        geometry: Geometry,
    },
    /// Its title changed.
    TitleChanged {
        /// The new title.
        title: String,
    },
    /// No frames come until `resumed`.
    Suspended {
        /// Why, in the contract's words.
        reason: Suspension,
        /// Why, in ours.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
    /// Frames come again, a keyframe first.
    Resumed,
    /// The session is over; the connection closes next.
    Closed {
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
    },
}

/// The limits in force after a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedPreferences {
    /// The media session.
    pub session_id: String,
    /// The most frames a second.
    pub max_fps: u32,
    /// The longer side's limit in pixels; zero is none.
    pub max_dimension: u32,
    /// The bitrate aimed at.
    pub bitrate_kbps: u32,
}

/// How a stream is doing, for one viewer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// The media session.
    pub session_id: String,
    /// Now, in microseconds of the media clock that packets are stamped with. With the time the
    /// answer took, it lets a viewer map packet timestamps to its own clock.
    pub server_time_us: u64,
    /// [`GetStats::client_time_us`], sent back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_time_us: Option<u64>,
    /// Packets sent to this viewer.
    pub frames_since_attach: u64,
    /// Packets this viewer was too slow for.
    pub frames_dropped: u64,
    /// Payload bytes sent to this viewer.
    pub bytes_since_attach: u64,
    /// Packets that wait to be sent.
    pub queued_frames: u64,
    /// How long ago the last packet was sent; `None` before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_frame_age_ms: Option<u64>,
    /// Whether the target simply does not change: an old last frame is then no fault.
    pub target_idle: bool,
    /// Audio, track by track.
    pub audio_tracks: Vec<AudioTrackStats>,
}

/// How one audio track is doing, for one viewer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AudioTrackStats {
    /// The track, as in its packets.
    pub track_id: u16,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped because they were too old to be heard.
    pub packets_dropped: u64,
}

/// What the pointer looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorImage {
    /// Names it in [`Cursor`].
    pub serial: u64,
    /// Columns, in pixels of the target: the viewer scales it as it scales the target.
    pub width: u32,
    /// Rows, likewise.
    pub height: u32,
    /// Column of the pixel that points.
    pub hotspot_x: u32,
    /// Row of the pixel that points.
    pub hotspot_y: u32,
    /// A PNG file with transparency, in base64.
    pub png: String,
}

/// The images that a client keeps, the last ones it was sent. The server does not send one of them
/// again, so that a busy animated pointer costs its pictures once.
pub const KEPT_CURSOR_IMAGES: usize = 32;

/// Where the pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cursor {
    /// Whether there is one to draw; the rest only matters then.
    pub visible: bool,
    /// Column of its hotspot in the frame; a fraction where the frame is scaled down.
    pub x: f64,
    /// Row, likewise.
    pub y: f64,
    /// Which [`CursorImage`] to draw.
    pub serial: u64,
}

/// The answer to a batch of input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputAcknowledgement {
    /// The media session.
    pub session_id: String,
    /// The last event that is settled, one way or the other.
    pub through_sequence: u64,
    /// Whether the events reached the desktop.
    pub delivered: bool,
    /// Why not; always there when `delivered` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// The answer to an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionResult {
    /// The action, by the client's id.
    pub action_id: String,
    /// Whether it reached the desktop.
    pub delivered: bool,
    /// Why not; always there when `delivered` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

/// A failure, as messages carry it: the fields of a [`Report`](spaceport_types::Report), and a
/// `code` that clients match on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// One word for what failed: the contract's where it has one, else the cause or the kind.
    pub code: String,
    /// For people.
    pub message: String,
    /// The kind of error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The exact reason, for kinds that have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether the same request may succeed later, with nobody doing anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
    /// How long to wait first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// After input for an older geometry: the present one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_geometry_epoch: Option<u64>,
    /// After a gap in the input: where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_sequence: Option<u64>,
    /// Facts about this occurrence.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub context: BTreeMap<String, String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let report = error.report();
        let kind = name(&report.kind);
        let cause = report.cause.as_ref().map(name);
        let context = report.context.into_iter().map(|(key, value)| (key.into_owned(), value));
        Self {
            code: cause.clone().unwrap_or_else(|| kind.clone()),
            message: report.message,
            kind: Some(kind),
            cause,
            hint: report.hint,
            retryable: Some(report.retryable),
            retry_after_ms: report.retry_after_ms,
            current_geometry_epoch: None,
            expected_sequence: None,
            context: context.collect(),
        }
    }
}

/// The serialized name of a kind or cause.
fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name,
        _ => "internal".to_owned(),
    }
}

/// Names a media session. Clients may leave it out: a connection belongs to one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRef {
    /// The media session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// Limits a client wants. What is zero or missing stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Preferences {
    /// The media session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The most frames a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fps: Option<u32>,
    /// The longer side's limit in pixels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_dimension: Option<u32>,
    /// The bitrate to aim at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bitrate_kbps: Option<u32>,
}

/// Asks for [`Stats`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GetStats {
    /// The media session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The client's clock, to be sent back: the answer then says by itself how long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_time_us: Option<u64>,
}

/// Says where the viewer is to see the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetCursor {
    /// Where.
    pub mode: CursorMode,
}

/// Where a viewer sees the pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CursorMode {
    /// It draws it over the picture.
    OutOfBand,
    /// Nowhere.
    #[default]
    None,
}

/// A batch of input events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InteractiveInput {
    /// The media session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// The number of the first event; the others follow it without gaps.
    pub first_sequence: u64,
    /// The events, oldest first; at most [`MAX_EVENTS`].
    pub events: Vec<InputEvent>,
}

/// One input event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum InputEvent {
    /// The pointer moved, or a button changed.
    Pointer {
        /// What it did.
        phase: PointerPhase,
        /// Which button; meaningless for a move.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        button: Option<String>,
        /// Where, from 0 at the left edge of the frame to 1 at the right.
        x_normalized: f64,
        /// Where, from 0 at the top of the frame to 1 at the bottom.
        y_normalized: f64,
        /// Modifier keys that are held.
        #[serde(default)]
        modifiers: Vec<String>,
    },
    /// A kind this version does not know.
    #[serde(other)]
    Other,
}

/// What the pointer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointerPhase {
    /// It moved.
    Move,
    /// A button went down.
    Down,
    /// A button went up.
    Up,
}

/// One tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The client's id for it, sent back with the result.
    pub action_id: String,
    /// The media session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Which tool.
    pub tool: String,
    /// What the tool is told.
    #[serde(default)]
    pub arguments: Value,
    /// What the caller saw when it decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
}

/// What an action's positions refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// What kind of thing; `pixel` is a frame of this stream.
    pub kind: String,
    /// The geometry the caller saw.
    #[serde(default)]
    pub geometry_epoch: u64,
    /// The frame the caller saw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_sequence: Option<u64>,
}

/// The longest text a client may send, in bytes. The contract's limit for an input batch, and ample
/// for every other message.
pub const MAX_TEXT: usize = 64 << 10;

/// The most events in one batch, fixed by the contract.
pub const MAX_EVENTS: usize = 256;

/// The most bytes of an unknown type that are kept to be named in the answer.
pub const MAX_ECHO: usize = 64;

#[cfg(test)]
mod tests {
    use serde_json::json;
    use spaceport_types::{Bounds, Cause, Kind, Size};

    use super::*;

    fn sent(message: &ServerMessage) -> Value {
        serde_json::from_str(&message.to_json()).unwrap()
    }

    #[test]
    fn hello_is_as_the_contract_has_it() {
        let hello = ServerMessage::hello([capability::DESKTOP, capability::KEYFRAME_ON_ATTACH]);
        assert_eq!(
            hello.to_json(),
            r#"{"type":"hello","payload":{"protocol":"rcdp","versions":[2],"selected_version":2,"capabilities":["desktop.v1","keyframe_on_attach.v1"]}}"#
        );
        assert_eq!(ServerMessage::parse(&hello.to_json()), Ok(Some(hello)));
    }

    #[test]
    fn session_opened_has_every_documented_member() {
        let opened = ServerMessage::SessionOpened(Box::new(SessionOpened {
            session_id: "m1".into(),
            target: Target::Display { display_id: "primary".into() },
            codec: Codec::H264,
            geometry_epoch: 3,
            codec_epoch: 1,
            geometry: Geometry {
                frame_size: Size::new(1280, 720),
                scale: 0.5,
                logical_bounds: Bounds::new(0, 0, 2560, 1440),
                geometry_epoch: 3,
            },
            max_fps: 30,
            max_dimension: 1280,
            bitrate_kbps: 4000,
            policy: Policy::ViewOnly,
            geometry_control: GeometryControl::ObserveOnly,
            capabilities: vec![capability::DESKTOP.into()],
            actions: vec![],
        }));
        assert_eq!(
            sent(&opened),
            json!({"type": "session_opened", "payload": {
                "session_id": "m1",
                "target": {"kind": "display", "display_id": "primary"},
                "codec": "h264",
                "geometry_epoch": 3,
                "codec_epoch": 1,
                "geometry": {
                    "frame_size": {"width": 1280, "height": 720},
                    "scale": 0.5,
                    "logical_bounds": {"x": 0, "y": 0, "width": 2560, "height": 1440},
                    "geometry_epoch": 3,
                },
                "max_fps": 30,
                "max_dimension": 1280,
                "bitrate_kbps": 4000,
                "policy": "view_only",
                "geometry_control": "observe_only",
                "capabilities": ["desktop.v1"],
                "actions": [],
            }})
        );
        assert_eq!(ServerMessage::parse(&opened.to_json()), Ok(Some(opened)));
    }

    #[test]
    fn a_suspension_says_why_in_both_vocabularies() {
        let error = Error::because(Cause::DisplayBlanked, "display `:0` is off")
            .with("display", ":0")
            .hint("Wake it");
        let lifecycle = ServerMessage::Lifecycle(Lifecycle {
            session_id: "m1".into(),
            event: LifecycleEvent::Suspended {
                reason: Suspension::for_error(&error),
                error: Some(Failure::from(&error)),
            },
        });
        assert_eq!(
            sent(&lifecycle),
            json!({"type": "lifecycle", "payload": {
                "session_id": "m1",
                "event": "suspended",
                "reason": "display_blanked",
                "error": {
                    "code": "display_blanked",
                    "message": "display `:0` is off",
                    "kind": "stream",
                    "cause": "display_blanked",
                    "hint": "Wake it",
                    "retryable": false,
                    "context": {"display": ":0"},
                },
            }})
        );
        assert_eq!(ServerMessage::parse(&lifecycle.to_json()), Ok(Some(lifecycle)));
    }

    #[test]
    fn a_failure_without_a_cause_is_named_by_its_kind() {
        let failure = Failure::from(&Error::new(Kind::PermissionDenied, "view only"));
        assert_eq!((failure.code.as_str(), failure.cause), ("permission_denied", None));
    }

    #[test]
    fn every_client_message_reads_as_the_contract_writes_it() {
        let keyframe = ClientMessage::RequestKeyframe(SessionRef::default());
        for text in [
            r#"{"type":"request_keyframe","payload":{}}"#,
            r#"{"type":"request_keyframe"}"#,
            r#"{"payload":null,"type":"request_keyframe"}"#,
            r#"{"type":"request_keyframe","payload":{"session_id":null,"new":1}}"#,
        ] {
            assert_eq!(ClientMessage::parse(text), Ok(keyframe.clone()), "{text}");
        }
        let text =
            r#"{"type":"set_stream_preferences","payload":{"max_fps":15,"max_dimension":0}}"#;
        assert_eq!(
            ClientMessage::parse(text),
            Ok(ClientMessage::SetStreamPreferences(Preferences {
                max_fps: Some(15),
                max_dimension: Some(0),
                ..Preferences::default()
            }))
        );
        let text = r#"{"type":"interactive_input","payload":{"session_id":"m1","first_sequence":9,
            "events":[{"kind":"pointer","phase":"down","button":"left","x_normalized":0.25,
            "y_normalized":1,"modifiers":["shift"]},{"kind":"eye","gaze":[1]}]}}"#;
        assert_eq!(
            ClientMessage::parse(text),
            Ok(ClientMessage::InteractiveInput(InteractiveInput {
                session_id: Some("m1".into()),
                first_sequence: 9,
                events: vec![
                    InputEvent::Pointer {
                        phase: PointerPhase::Down,
                        button: Some("left".into()),
                        x_normalized: 0.25,
                        y_normalized: 1.0,
                        modifiers: vec!["shift".into()],
                    },
                    InputEvent::Other,
                ],
            }))
        );
        let text = r#"{"type":"action","payload":{"action_id":"a","tool":"click","arguments":
            {"x":1},"basis":{"kind":"pixel","geometry_epoch":2,"frame_sequence":5}}}"#;
        let Ok(ClientMessage::Action(action)) = ClientMessage::parse(text) else { panic!() };
        assert_eq!((action.tool.as_str(), &action.arguments["x"]), ("click", &json!(1)));
        assert_eq!(action.basis.unwrap().frame_sequence, Some(5));
    }

    #[test]
    fn what_a_client_writes_is_what_a_server_reads() {
        let messages = [
            ClientMessage::RequestKeyframe(SessionRef { session_id: Some("m1".into()) }),
            ClientMessage::SetStreamPreferences(Preferences::default()),
            ClientMessage::GetStats(GetStats { client_time_us: Some(7), session_id: None }),
            ClientMessage::SetCursor(SetCursor { mode: CursorMode::OutOfBand }),
            ClientMessage::SetCursor(SetCursor { mode: CursorMode::None }),
            ClientMessage::Unknown { kind: "dance".into() },
        ];
        for message in messages {
            assert_eq!(ClientMessage::parse(&message.to_json()), Ok(message));
        }
    }

    #[test]
    fn an_unknown_type_is_named_in_the_answer_and_not_a_failure() {
        for text in [r#"{"type":"list_windows","payload":[1]}"#, r#"{"type":"list_windows"}"#] {
            let message = ClientMessage::parse(text).unwrap();
            assert_eq!(message, ClientMessage::Unknown { kind: "list_windows".into() });
        }
        assert_eq!(
            sent(&ServerMessage::unsupported("list_windows"))["payload"],
            json!({
                "code": "unsupported_operation",
                "message": "`list_windows` is not served on this connection",
            })
        );
        // 64 bytes fall into the middle of a two-byte character here.
        let long = format!(r#"{{"type":"x{}"}}"#, "ü".repeat(100));
        let Ok(ClientMessage::Unknown { kind }) = ClientMessage::parse(&long) else { panic!() };
        assert_eq!(kind.len(), 63);
        assert_eq!(ServerMessage::parse(r#"{"type":"dance"}"#), Ok(None));
    }

    #[test]
    fn text_that_is_no_control_message_is_refused() {
        let refused = [
            "",
            "hello",
            "null",
            "{}",
            r#"{"type":7}"#,
            r#"{"type":"request_keyframe""#,
            r#"{"type":"request_keyframe","payload":"now"}"#,
            r#"{"type":"set_stream_preferences","payload":{"max_fps":-1}}"#,
            r#"{"type":"set_stream_preferences","payload":{"max_fps":4294967296}}"#,
            r#"{"type":"set_cursor"}"#,
            r#"{"type":"set_cursor","payload":{"mode":"baked"}}"#,
            r#"{"type":"interactive_input","payload":{}}"#,
            r#"{"type":"interactive_input","payload":{"first_sequence":0,"events":[{"kind":"pointer"}]}}"#,
        ];
        for text in refused {
            let error = ClientMessage::parse(text).unwrap_err();
            assert!(matches!(error, DecodeError::Json { .. }), "{text}: {error:?}");
        }
        let deep = format!(r#"{{"type":"action","payload":{}}}"#, "[".repeat(30_000));
        assert!(matches!(ClientMessage::parse(&deep), Err(DecodeError::Json { .. })));
    }

    #[test]
    fn text_and_batches_over_their_limits_are_refused() {
        let long = format!(r#"{{"type":"x","payload":"{}"}}"#, "a".repeat(MAX_TEXT));
        assert!(matches!(ClientMessage::parse(&long), Err(DecodeError::TooLong { .. })));
        let batch = |count| {
            let events = vec![r#"{"kind":"x"}"#; count].join(",");
            ClientMessage::parse(&format!(
                r#"{{"type":"interactive_input","payload":{{"first_sequence":0,"events":[{events}]}}}}"#
            ))
        };
        assert!(batch(MAX_EVENTS).is_ok());
        assert_eq!(
            batch(MAX_EVENTS + 1),
            Err(DecodeError::TooLong { what: "input batch", length: 257, limit: 256 })
        );
    }
}
