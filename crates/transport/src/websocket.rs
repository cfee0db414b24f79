//! Media over WebSocket: rcdp v2 on `/media`, as `docs/wire.md` has it.
//!
//! The ticket is judged before the upgrade, so that a client without one gets an HTTP status and
//! not a socket. One task serves one viewer: it alone reads the subscriber and writes the socket,
//! and what it cannot write stays in the subscriber's queue, where the slow-viewer rule sees it.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use hyper_util::rt::TokioIo;
use spaceport_session::{
    Attach, Carrier, Cursor, Event, Path, Policy, Preferences, Sessions, Subscriber,
};
use spaceport_types::{Bitrate, Error, Geometry, Kind, Packet, Result, SessionId};
use spaceport_wire::close::CloseCode;
use spaceport_wire::control::{
    ActionResult, AppliedPreferences, ClientMessage, CursorMode, Failure, GeometryControl,
    InputAcknowledgement, Lifecycle, LifecycleEvent, Policy as WirePolicy, ServerMessage,
    SessionOpened, Stats, capability,
};
use spaceport_wire::{packet, ticket};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode as Code, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use crate::echo::Echo;
use crate::pointer::Pointer;
use crate::problem::problem;

/// How often the server pings. Shorter than the idle limit of any proxy worth the name (60 s).
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How long a viewer may stay silent, pongs included, before it counts as gone.
const SILENCE: Duration = Duration::from_secs(60);

/// The longest frame that is sent in one piece; deployed clients refuse one of more than 16 MiB.
const MAX_FRAME: usize = 8 << 20;

/// The longest message a client may send: the longest control message, and room to say so.
const MAX_INBOUND: usize = 128 << 10;

/// The longest ticket worth a look; ours have 22 characters.
const MAX_TICKET: usize = 256;

/// What serving `/media` needs.
#[derive(Clone, Debug)]
pub struct Media {
    /// Where tickets lead.
    pub sessions: Sessions,
    /// Reads the clock that packets are stamped with.
    pub clock: fn() -> Duration,
}

/// Serves `/media`.
pub fn router(media: Media) -> Router {
    Router::new().route("/media", get(upgrade)).with_state(media)
}

/// Judges the ticket, then hands the connection to [`serve`].
async fn upgrade(State(media): State<Media>, mut request: Request) -> Response {
    let offer = {
        let protocols = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
        ticket::Offer::parse(protocols.iter().filter_map(|value| value.to_str().ok()))
    };
    let in_query = request.uri().query().and_then(query_ticket);
    let secret = in_query.or_else(|| offer.ticket.as_ref().map(|ticket| ticket.expose().clone()));
    let session = match judge(&media, secret.as_deref()) {
        Ok(session) => session,
        Err(error) => return problem(&error),
    };
    let Some(key) = websocket_key(request.headers()) else {
        let error = Error::new(Kind::InvalidArgument, "`/media` takes WebSocket upgrades only")
            .hint("Connect with a WebSocket client (RFC 6455, version 13)");
        let mut response = problem(&error);
        *response.status_mut() = StatusCode::UPGRADE_REQUIRED;
        let headers = response.headers_mut();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return response;
    };
    let upgrading = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_INBOUND))
            .max_frame_size(Some(MAX_INBOUND));
        match upgrading.await {
            Ok(io) => {
                let io = TokioIo::new(io);
                let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
                serve(socket, media, session).await;
            }
            Err(error) => tracing::debug!(%error, "the client left before the upgrade"),
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    // A client that offered no subprotocol fails on one in the answer.
    if let Some(answer) = offer.answer
        && let Ok(answer) = HeaderValue::from_str(answer.expose())
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, answer);
    }
    response
}

fn judge(media: &Media, ticket: Option<&str>) -> Result<SessionId> {
    let Some(ticket) = ticket.filter(|ticket| ticket.len() <= MAX_TICKET) else {
        return Err(Error::new(Kind::Unauthenticated, "the request carries no media ticket")
            .hint("Open a stream first, and connect to the path it returns"));
    };
    media.sessions.redeem(ticket, Instant::now().into_std())
}

fn query_ticket(query: &str) -> Option<String> {
    // Tickets are base64url, so nothing in one is ever percent-encoded.
    query.split('&').find_map(|pair| pair.strip_prefix("ticket=")).map(str::to_owned)
}

/// The key of a WebSocket handshake, if this is one (RFC 6455 §4.2.1).
fn websocket_key(headers: &HeaderMap) -> Option<String> {
    let has = |name, token: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.split(',').any(|item| item.trim().eq_ignore_ascii_case(token)))
    };
    let upgrade = has(UPGRADE, "websocket") && has(CONNECTION, "upgrade");
    let version = headers.get(SEC_WEBSOCKET_VERSION).is_some_and(|version| version == "13");
    let key = headers.get(SEC_WEBSOCKET_KEY)?.to_str().ok()?;
    (upgrade && version).then(|| key.to_owned())
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// One viewer, from attach to close.
#[tracing::instrument("viewer", skip_all, fields(session = session.short(), transport = "ws"))]
async fn serve(mut socket: Socket, media: Media, session: SessionId) {
    let attached = media.sessions.info(&session).and_then(|info| {
        let cursor = Cursor::Apart;
        let attach = Attach { codec: info.codec, carrier: Carrier::Socket, cursor };
        Ok((media.sessions.attach(&session, attach)?, info))
    });
    let (subscriber, info) = match attached {
        Ok(attached) => attached,
        Err(error) => return close(&mut socket, CloseCode::for_error(&error)).await,
    };
    let mut viewer = Viewer {
        media,
        session,
        subscriber,
        geometry: info.geometry,
        pointer: Pointer::default(),
        sent: Sent::default(),
        echo: Echo::default(),
        heard_at: Instant::now(),
    };
    tracing::info!(id = %viewer.subscriber.id(), "viewer attached");
    let ended = match viewer.greet(&mut socket, &info).await {
        Ok(()) => viewer.run(&mut socket).await,
        Err(end) => end,
    };
    let stats = viewer.subscriber.stats();
    drop(viewer);
    match ended {
        End::Close(code) => close(&mut socket, code).await,
        End::Gone => {}
    }
    tracing::info!(
        delivered = stats.delivered,
        lost = stats.lost,
        cuts = stats.cuts,
        "viewer left"
    );
}

/// Says goodbye; a peer that does not listen is not waited for.
async fn close(socket: &mut Socket, code: CloseCode) {
    /// Long enough for a round trip around the world, short enough for a shutdown.
    const PATIENCE: Duration = Duration::from_secs(2);
    let frame = CloseFrame { code: Code::from(code.code()), reason: code.reason().into() };
    let goodbye = async {
        socket.close(Some(frame)).await?;
        while let Some(message) = socket.next().await {
            message?;
        }
        Ok::<_, SocketError>(())
    };
    if let Ok(Err(error)) = timeout(PATIENCE, goodbye).await {
        tracing::trace!(%error, "close");
    }
}

/// Why a viewer's task ends.
enum End {
    /// We close, with this code.
    Close(CloseCode),
    /// The client has closed, or the connection is broken.
    Gone,
}

impl From<SocketError> for End {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::Capacity(_) | SocketError::Protocol(_) | SocketError::Utf8(_) => {
                Self::Close(CloseCode::Malformed)
            }
            _ => Self::Gone,
        }
    }
}

#[derive(Default)]
struct Sent {
    frames: u64,
    bytes: u64,
    last_at: Option<Instant>,
}

struct Viewer {
    media: Media,
    session: SessionId,
    subscriber: Subscriber,
    geometry: Geometry,
    pointer: Pointer,
    sent: Sent,
    echo: Echo,
    heard_at: Instant,
}

impl Viewer {
    /// What the server says unprompted, before the first packet.
    async fn greet(
        &self,
        socket: &mut Socket,
        info: &spaceport_session::SessionInfo,
    ) -> Result<(), End> {
        let capabilities =
            [capability::DESKTOP, capability::KEYFRAME_ON_ATTACH, capability::CURSOR];
        self.say(socket, &ServerMessage::hello(capabilities)).await?;
        let opened = SessionOpened {
            session_id: self.session.to_string(),
            target: info.target.clone(),
            codec: info.codec,
            geometry_epoch: info.geometry.geometry_epoch,
            codec_epoch: 1,
            geometry: info.geometry,
            max_fps: info.settings.max_fps,
            max_dimension: info.settings.max_dimension,
            bitrate_kbps: info.settings.bitrate.kbps(),
            policy: wire_policy(info.policy),
            geometry_control: GeometryControl::ObserveOnly,
            capabilities: capabilities.into_iter().map(Into::into).collect(),
            actions: Vec::new(),
        };
        self.say(socket, &ServerMessage::SessionOpened(Box::new(opened))).await
    }

    async fn run(&mut self, socket: &mut Socket) -> End {
        let mut pings = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let step = tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(message)) => self.hear(socket, message).await,
                    Some(Err(error)) => Err(error.into()),
                    None => Err(End::Gone),
                },
                event = self.subscriber.recv() => self.show(socket, event).await,
                _ = pings.tick() => self.ping(socket).await,
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    async fn show(&mut self, socket: &mut Socket, event: Event) -> Result<(), End> {
        match event {
            Event::Packet(packet) => self.send_packet(socket, &packet).await,
            Event::Suspended(reason, error) => {
                let error = Some(Failure::from(&*error));
                self.tell(socket, LifecycleEvent::Suspended { reason, error }).await
            }
            Event::Resumed => self.tell(socket, LifecycleEvent::Resumed).await,
            Event::Titled(title) => {
                let title = title.to_string();
                self.tell(socket, LifecycleEvent::TitleChanged { title }).await
            }
            Event::CursorImage(image) => {
                for message in self.pointer.image(&image, self.geometry) {
                    self.say(socket, &message).await?;
                }
                Ok(())
            }
            Event::CursorPosition(position) => {
                let message = self.pointer.moved(position, self.geometry);
                self.say(socket, &message).await
            }
            Event::Ended(error) => {
                let failure = Some(Failure::from(&*error));
                self.tell(socket, LifecycleEvent::Closed { error: failure }).await?;
                Err(End::Close(CloseCode::for_error(&error)))
            }
        }
    }

    async fn send_packet(&mut self, socket: &mut Socket, packet: &Packet) -> Result<(), End> {
        if packet.geometry != self.geometry {
            self.geometry = packet.geometry;
            let geometry = packet.geometry;
            self.tell(socket, LifecycleEvent::GeometryChanged { geometry }).await?;
            if let Some(message) = self.pointer.place(geometry) {
                self.say(socket, &message).await?;
            }
        }
        let encoded = match packet::encode(&self.session, packet) {
            Ok(encoded) => encoded,
            Err(error) => {
                tracing::error!(%error, "a packet could not be framed");
                return Err(End::Close(CloseCode::Internal));
            }
        };
        let bytes = encoded.payload.len() as u64;
        if let Some(ping) = self.echo.ping(Instant::now().into_std()) {
            self.push(socket, Message::Ping(ping)).await?;
        }
        let began = Instant::now();
        self.write(socket, encoded.into_message()).await?;
        self.echo.deaf(began.elapsed());
        self.subscriber.sent(Instant::now().into_std());
        self.sent.frames += 1;
        self.sent.bytes += bytes;
        self.sent.last_at = Some(Instant::now());
        Ok(())
    }

    /// Writes one binary message, in pieces when it is long.
    async fn write(&self, socket: &mut Socket, message: Bytes) -> Result<(), End> {
        if message.len() <= MAX_FRAME {
            return self.push(socket, Message::Binary(message)).await;
        }
        let mut rest = message;
        let mut data = Data::Binary;
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(MAX_FRAME));
            let frame = Frame::message(piece, OpCode::Data(data), rest.is_empty());
            self.push(socket, Message::Frame(frame)).await?;
            data = Data::Continue;
        }
        Ok(())
    }

    async fn hear(&mut self, socket: &mut Socket, message: Message) -> Result<(), End> {
        self.heard_at = Instant::now();
        match message {
            Message::Text(text) => match ClientMessage::parse(&text) {
                Ok(message) => self.answer(socket, message).await,
                Err(error) => {
                    tracing::debug!(%error, "malformed control message");
                    Err(End::Close(CloseCode::Malformed))
                }
            },
            // No audio track is ever granted here, and no other binary message exists.
            Message::Binary(_) => Err(End::Close(CloseCode::Malformed)),
            Message::Close(_) => Err(End::Gone),
            Message::Pong(payload) => {
                let now = Instant::now().into_std();
                if let Some(queued) = self.echo.pong(&payload, now) {
                    self.subscriber.path(Path { capacity: None, queued }, now);
                }
                Ok(())
            }
            Message::Ping(_) | Message::Frame(_) => Ok(()),
        }
    }

    async fn answer(&mut self, socket: &mut Socket, message: ClientMessage) -> Result<(), End> {
        let session_id = self.session.to_string();
        let answer = match message {
            ClientMessage::RequestKeyframe(_) => {
                self.subscriber.request_keyframe();
                ServerMessage::KeyframeRequested { session_id }
            }
            ClientMessage::SetStreamPreferences(wanted) => {
                let set = |value: Option<u32>| value.filter(|value| *value > 0);
                let wanted = Preferences {
                    max_fps: set(wanted.max_fps),
                    max_dimension: set(wanted.max_dimension),
                    bitrate: set(wanted.bitrate_kbps).map(Bitrate::from_kbps),
                };
                let now = Instant::now().into_std();
                match self.media.sessions.set_preferences(&self.session, wanted, now) {
                    Ok(settings) => ServerMessage::StreamPreferencesApplied(AppliedPreferences {
                        session_id,
                        max_fps: settings.max_fps,
                        max_dimension: settings.max_dimension,
                        bitrate_kbps: settings.bitrate.kbps(),
                    }),
                    Err(error) => ServerMessage::Error(Failure::from(&error)),
                }
            }
            ClientMessage::GetStats(request) => ServerMessage::Stats(Stats {
                session_id,
                server_time_us: (self.media.clock)().as_micros() as u64,
                client_time_us: request.client_time_us,
                frames_since_attach: self.sent.frames,
                frames_dropped: self.subscriber.stats().lost,
                bytes_since_attach: self.sent.bytes,
                queued_frames: self.subscriber.backlog() as u64,
                last_frame_age_ms: self.sent.last_at.map(|at| at.elapsed().as_millis() as u64),
                target_idle: self.subscriber.backlog() == 0,
                audio_tracks: Vec::new(),
            }),
            ClientMessage::InteractiveInput(input) => {
                let last = input.first_sequence.saturating_add(input.events.len() as u64);
                ServerMessage::InteractiveInputAcknowledgement(InputAcknowledgement {
                    session_id,
                    through_sequence: last.saturating_sub(1),
                    delivered: false,
                    error: Some(view_only()),
                })
            }
            ClientMessage::Action(action) => ServerMessage::ActionResult(ActionResult {
                action_id: action.action_id,
                delivered: false,
                error: Some(view_only()),
            }),
            // What is known of the pointer is the answer, and comes as what changes does.
            ClientMessage::SetCursor(wanted) => {
                self.pointer.forget_place();
                self.subscriber.want_cursor(wanted.mode == CursorMode::OutOfBand);
                return Ok(());
            }
            ClientMessage::Unknown { kind } => ServerMessage::unsupported(&kind),
            other => {
                tracing::debug!(?other, "a message that is not served");
                ServerMessage::unsupported("this message")
            }
        };
        self.say(socket, &answer).await
    }

    async fn ping(&self, socket: &mut Socket) -> Result<(), End> {
        if self.heard_at.elapsed() > SILENCE {
            return Err(End::Close(CloseCode::Unresponsive));
        }
        self.push(socket, Message::Ping(Bytes::new())).await
    }

    async fn tell(&self, socket: &mut Socket, event: LifecycleEvent) -> Result<(), End> {
        let lifecycle = Lifecycle { session_id: self.session.to_string(), event };
        self.say(socket, &ServerMessage::Lifecycle(lifecycle)).await
    }

    async fn say(&self, socket: &mut Socket, message: &ServerMessage) -> Result<(), End> {
        self.push(socket, Message::Text(message.to_json().into())).await
    }

    /// Writes, and gives up on a viewer that has not read for as long as one may be silent.
    async fn push(&self, socket: &mut Socket, message: Message) -> Result<(), End> {
        match timeout(SILENCE, socket.send(message)).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(End::Gone),
        }
    }
}

fn view_only() -> Failure {
    let error = Error::new(Kind::PermissionDenied, "this session is view only")
        .hint("Open the stream with a policy that allows input");
    Failure::from(&error)
}

fn wire_policy(policy: Policy) -> WirePolicy {
    match policy {
        Policy::ViewOnly => WirePolicy::ViewOnly,
        Policy::BackgroundOnly => WirePolicy::BackgroundOnly,
        Policy::AllowActivation => WirePolicy::AllowActivation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_found_among_other_parameters() {
        assert_eq!(query_ticket("a=b&ticket=xyz&c").as_deref(), Some("xyz"));
        assert_eq!(query_ticket("tickets=xyz"), None);
    }

    #[test]
    fn only_a_whole_handshake_is_one() {
        let headers = |upgrade: &'static str, version: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
            headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
            headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static(version));
            headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
            headers
        };
        assert!(websocket_key(&headers("WebSocket", "13")).is_some());
        assert!(websocket_key(&headers("h2c", "13")).is_none());
        assert!(websocket_key(&headers("websocket", "8")).is_none());
    }
}
