//! A stream, received: the client's half of the media socket.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use spaceport_types::{Cause, Codec, Error, Kind, Result, Size};
use spaceport_wire::close::CloseCode;
use spaceport_wire::packet;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use crate::verbs::StreamEndpoint;

/// How long the upgrade may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How long nothing at all may come. A server pings at least every 20 seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// The largest message, which holds the largest packet: two lengths, a header, and a payload.
const LARGEST: usize = 64 << 20;

/// One frame of a stream.
#[derive(Clone, Debug)]
pub struct Frame {
    /// How it is encoded.
    pub codec: Codec,
    /// Its size in pixels.
    pub size: Size,
    /// Whether a decoder can start with it.
    pub keyframe: bool,
    /// When its pixels were read, by the Space's own clock.
    pub captured_at: Duration,
    /// The frame.
    pub payload: Bytes,
}

/// An attached viewer. Dropping it leaves.
#[derive(Debug)]
pub struct Viewer {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Viewer {
    /// Attaches to an open stream. The first frame is a keyframe.
    ///
    /// # Errors
    ///
    /// What the Space says against it, and `spacesd_not_available` when it does not answer.
    pub async fn attach(endpoint: &StreamEndpoint) -> Result<Self> {
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(LARGEST);
        config.max_frame_size = Some(LARGEST);
        let connecting = connect_async_with_config(&endpoint.ws_url, Some(config), true);
        match timeout(CONNECT, connecting).await {
            Ok(Ok((socket, _))) => Ok(Self { socket }),
            Ok(Err(tungstenite::Error::Http(answer))) => Err(refused(&answer)),
            Ok(Err(error)) => Err(lost().source(error)),
            Err(_) => Err(Error::new(
                Kind::Timeout,
                format!("the media socket did not open within {CONNECT:?}"),
            )),
        }
    }

    /// The next frame.
    ///
    /// # Errors
    ///
    /// Why the stream has ended.
    pub async fn next(&mut self) -> Result<Frame> {
        loop {
            let message = timeout(SILENCE, self.socket.next()).await.map_err(|_| {
                Error::new(Kind::Timeout, format!("the stream was silent for {SILENCE:?}"))
            })?;
            match message {
                Some(Ok(Message::Binary(message))) => {
                    let (header, payload) = packet::decode(message)?;
                    return Ok(Frame {
                        codec: header.codec,
                        size: Size::new(header.width_px, header.height_px),
                        keyframe: header.keyframe,
                        captured_at: Duration::from_micros(header.capture_timestamp_us),
                        payload,
                    });
                }
                Some(Ok(Message::Close(close))) => {
                    return Err(closed(close.map(|close| close.code.into())));
                }
                Some(Ok(_)) => {} // control messages, and pings, which the library answers
                Some(Err(error)) => return Err(lost().source(error)),
                None => return Err(closed(None)),
            }
        }
    }
}

fn lost() -> Error {
    Error::new(Kind::SpacesdNotAvailable, "the connection to the media socket failed")
        .hint("Open the stream again")
}

/// What the Space said instead of opening the socket.
fn refused(answer: &http::Response<Option<Vec<u8>>>) -> Error {
    crate::client::refused(answer.status(), answer.body().as_deref().unwrap_or_default())
}

fn closed(code: Option<u16>) -> Error {
    let Some(code) = code.and_then(CloseCode::from_code) else { return lost() };
    let text = code.reason();
    match code {
        CloseCode::Normal => Error::new(Kind::Cancelled, "the Space ended the stream"),
        CloseCode::Malformed => Error::new(Kind::InvalidArgument, text),
        CloseCode::Unauthenticated => Error::new(Kind::Unauthenticated, text),
        CloseCode::SessionClosed => Error::because(Cause::SessionClosed, text),
        CloseCode::Unresponsive => Error::new(Kind::Timeout, text),
        CloseCode::TargetGone => Error::because(Cause::TargetGone, text),
        CloseCode::TooManyViewers => Error::because(Cause::TooManyViewers, text),
        _ => Error::new(Kind::Env, text),
    }
}
