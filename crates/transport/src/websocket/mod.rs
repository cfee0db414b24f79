//! Media over WebSocket: rcdp v2 on `/media`, as `docs/wire.md` has it.
//!
//! The ticket is judged before the upgrade, so that a client without one gets an HTTP status and
//! not a socket. What is said then is `viewer`'s; here is how it becomes WebSocket messages.

pub mod client;
pub mod link;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{OriginalUri, Request, State};
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
use spaceport_types::{Error, Kind};
use spaceport_wire::close::CloseCode;
use spaceport_wire::ticket;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode as Code, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use crate::door::{Media, machine};
use crate::echo::Echo;
use crate::problem::problem;
use crate::viewer::{self, Carrier, End, Frame as Picture, Heard, Room};

/// How long a viewer may stay silent, pongs included, before it counts as gone.
const SILENCE: Duration = Duration::from_secs(60);

/// The longest frame that is sent in one piece; deployed clients refuse one of more than 16 MiB.
const MAX_FRAME: usize = 8 << 20;

/// The longest message a client may send: the longest control message, and room to say so.
const MAX_INBOUND: usize = 128 << 10;

/// What is read at once. A viewer says little; the default of 128 KiB would be most of what it costs. Longer
/// messages are read in parts.
const READ_BUFFER: usize = 4 << 10;

/// Serves `/media`. A relay nests it at `/m/<id>`.
pub fn router(media: Media) -> Router {
    Router::new().route("/media", get(upgrade)).with_state(media)
}

/// Judges the ticket, then hands the connection to [`viewer::serve`].
async fn upgrade(
    State(media): State<Media>,
    OriginalUri(uri): OriginalUri,
    mut request: Request,
) -> Response {
    let offer = {
        let protocols = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
        ticket::Offer::parse(protocols.iter().filter_map(|value| value.to_str().ok()))
    };
    let in_query = request.uri().query().and_then(query_ticket);
    let secret = in_query.or_else(|| offer.ticket.as_ref().map(|ticket| ticket.expose().clone()));
    let pass = match media.redeem(machine(uri.path()).0, secret.as_deref()).await {
        Ok(pass) => pass,
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
            .read_buffer_size(READ_BUFFER)
            .max_message_size(Some(MAX_INBOUND))
            .max_frame_size(Some(MAX_INBOUND));
        match upgrading.await {
            Ok(io) => {
                let io = TokioIo::new(io);
                let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
                let carrier = Socket { socket, echo: Echo::default(), heard_at: Instant::now() };
                viewer::serve(pass, None, carrier).await;
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

/// A viewer's socket.
struct Socket {
    socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
    echo: Echo,
    heard_at: Instant,
}

impl Carrier for Socket {
    fn name(&self) -> &'static str {
        "ws"
    }

    async fn say(&mut self, text: String) -> Result<(), End> {
        self.push(Message::Text(text.into())).await
    }

    async fn show(&mut self, picture: Picture) -> Result<(), End> {
        if let Some(ask) = self.echo.ask(Instant::now().into_std()) {
            // Sent by itself: behind a TLS record of the picture it would say how long that is.
            self.push(Message::Ping(ask)).await?;
        }
        let began = Instant::now().into_std();
        let message = picture.packet.into_message();
        let bytes = message.len();
        self.write(message).await?;
        let ping = self.echo.sent(bytes, began);
        self.push(Message::Ping(ping)).await
    }

    async fn hear(&mut self) -> Result<Heard, End> {
        let message = self.socket.next().await.ok_or(End::Gone)??;
        self.heard_at = Instant::now();
        match message {
            Message::Text(text) => Ok(Heard::Text(text.as_str().to_owned())),
            // No audio track is ever granted here, and no other binary message exists.
            Message::Binary(_) => Err(End::Close(CloseCode::Malformed)),
            Message::Close(_) => Err(End::Gone),
            Message::Pong(payload) => {
                let arrived = self.echo.pong(&payload, Instant::now().into_std());
                Ok(arrived.map_or(Heard::Nothing, Heard::Arrived))
            }
            Message::Ping(_) | Message::Frame(_) => Ok(Heard::Nothing),
        }
    }

    fn room(&self, interval: Duration) -> Room {
        self.echo.room(interval, Instant::now().into_std())
    }

    async fn keep_alive(&mut self) -> Result<(), End> {
        if self.heard_at.elapsed() > SILENCE {
            return Err(End::Close(CloseCode::Unresponsive));
        }
        self.push(Message::Ping(Bytes::new())).await
    }

    /// Says goodbye; a peer that does not listen is not waited for.
    async fn close(mut self, code: CloseCode) {
        /// Long enough for a round trip around the world, short enough for a shutdown.
        const PATIENCE: Duration = Duration::from_secs(2);
        let frame = CloseFrame { code: Code::from(code.code()), reason: code.reason().into() };
        let goodbye = async {
            self.socket.close(Some(frame)).await?;
            while let Some(message) = self.socket.next().await {
                message?;
            }
            Ok::<_, SocketError>(())
        };
        if let Ok(Err(error)) = timeout(PATIENCE, goodbye).await {
            tracing::trace!(%error, "close");
        }
    }
}

impl Socket {
    /// Writes one binary message, in pieces when it is long.
    async fn write(&mut self, message: Bytes) -> Result<(), End> {
        if message.len() <= MAX_FRAME {
            return self.push(Message::Binary(message)).await;
        }
        let mut rest = message;
        let mut data = Data::Binary;
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(MAX_FRAME));
            let frame = Frame::message(piece, OpCode::Data(data), rest.is_empty());
            self.push(Message::Frame(frame)).await?;
            data = Data::Continue;
        }
        Ok(())
    }

    /// Writes, and gives up on a viewer that has not read for as long as one may be silent.
    async fn push(&mut self, message: Message) -> Result<(), End> {
        match timeout(SILENCE, self.socket.send(message)).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(End::Gone),
        }
    }
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
