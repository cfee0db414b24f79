//! A WebSocket that carries bytes and no viewer: between a relay and a machine whose network passes no UDP.
//!
//! Binary messages are pieces of one stream of bytes in each direction; where one ends says nothing.

use std::fmt;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use futures_util::{Sink as _, Stream as _};
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use http::{HeaderValue, StatusCode};
use hyper_util::rt::TokioIo;
use spaceport_types::{Error, Kind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use super::websocket_key;
use crate::{problem, tls};

/// The longest message that is sent or taken.
const MAX_MESSAGE: usize = 64 << 10;

/// What may wait to be written before the writer has to.
const WRITE_BUFFER: usize = 256 << 10;

/// How long the server may take to answer the handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// One WebSocket as a stream of bytes.
pub struct Link {
    socket: WebSocketStream<Io>,
    /// What is left of the last message.
    piece: Bytes,
}

enum Io {
    Server(TokioIo<hyper::upgrade::Upgraded>),
    Client(tls::Stream),
}

/// Takes a request to become a link: the answer to it, and what comes of it once that has been sent.
///
/// # Errors
///
/// `invalid_argument` for a request that is no WebSocket handshake.
pub fn accept(
    request: &mut Request,
) -> Result<(Response, impl Future<Output = Option<Link>> + Send + use<>)> {
    let Some(key) = websocket_key(request.headers()) else {
        return Err(Error::new(Kind::InvalidArgument, "this path takes WebSocket upgrades only")
            .hint("Connect with `spaceport serve --relay`"));
    };
    let upgrading = hyper::upgrade::on(request);
    let linked = async {
        let io = Io::Server(TokioIo::new(upgrading.await.ok()?));
        let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config())).await;
        Some(Link { socket, piece: Bytes::new() })
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    Ok((response, linked))
}

/// Makes a link over `stream` to `url`, whose scheme does not matter any more.
///
/// # Errors
///
/// What the server refuses it with, `io` and `timeout`.
pub async fn connect(stream: tls::Stream, url: &str) -> Result<Link> {
    let failed = |error: &dyn fmt::Display| {
        Error::new(Kind::Io, "the WebSocket was not opened").with("reason", error)
    };
    let request = url.into_client_request().map_err(|error| failed(&error))?;
    let opening = client_async_with_config(request, Io::Client(stream), Some(config()));
    match timeout(PATIENCE, opening).await {
        Ok(Ok((socket, _))) => Ok(Link { socket, piece: Bytes::new() }),
        Ok(Err(SocketError::Http(response))) => {
            let body = response.body().as_deref().unwrap_or_default();
            Err(problem::read(response.status().as_u16(), body))
        }
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(Error::new(Kind::Timeout, "the WebSocket was not opened in time")),
    }
}

fn config() -> WebSocketConfig {
    WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
        .write_buffer_size(MAX_MESSAGE)
        .max_write_buffer_size(WRITE_BUFFER)
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.piece.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(piece))) => self.piece = piece,
                Some(Ok(Message::Text(_))) => {
                    return Poll::Ready(Err(ErrorKind::InvalidData.into()));
                }
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        let length = self.piece.len().min(buffer.remaining());
        buffer.put_slice(&self.piece[..length]);
        self.piece.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(broken)?;
        let length = bytes.len().min(MAX_MESSAGE);
        let message = Message::Binary(Bytes::copy_from_slice(&bytes[..length]));
        Pin::new(&mut self.socket).start_send(message).map_err(broken)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(broken)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_close(cx).map_err(broken)
    }
}

fn broken(error: SocketError) -> io::Error {
    match error {
        SocketError::Io(error) => error,
        SocketError::ConnectionClosed | SocketError::AlreadyClosed => ErrorKind::BrokenPipe.into(),
        error => io::Error::new(ErrorKind::InvalidData, error),
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Server(io) => Pin::new(io).poll_read(cx, buffer),
            Self::Client(io) => Pin::new(io).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Server(io) => Pin::new(io).poll_write(cx, bytes),
            Self::Client(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Server(io) => Pin::new(io).poll_flush(cx),
            Self::Client(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Server(io) => Pin::new(io).poll_shutdown(cx),
            Self::Client(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}
