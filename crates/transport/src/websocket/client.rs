//! The client's half of the media socket, as a viewer or a load generator uses it.

use std::fmt;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use http::Uri;
use http::header::HOST;
use spaceport_types::{Error, Kind, Redacted, Result};
use spaceport_wire::close::CloseCode;
use spaceport_wire::control::{ClientMessage, ServerMessage};
use spaceport_wire::packet::{self, MAX_HEADER, MAX_PAYLOAD};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

use crate::client::{Received, closed};
use crate::problem;

/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(6);

/// What may be read ahead of a message: enough for most pictures, and small where there are hundreds of
/// viewers.
const READ_BUFFER: usize = 16 << 10;

/// One session that is watched. Dropping it is leaving.
pub struct Connection {
    socket: WebSocketStream<TcpStream>,
}

/// Connects to an address as `OpenMedia` names it, `ws://…/media?ticket=…`.
///
/// # Errors
///
/// What the server refuses it with, `capability_missing` for `wss`, `timeout` and `io` when nobody answers.
pub async fn connect(address: &Redacted<String>) -> Result<Connection> {
    let unusable = || Error::new(Kind::InvalidArgument, "this is no address of a media socket");
    let uri: Uri = address.expose().parse().map_err(|_| unusable())?;
    if uri.scheme_str() != Some("ws") {
        return Err(Error::new(Kind::CapabilityMissing, "only `ws` addresses can be watched here")
            .hint("Connect to the gateway itself, without a proxy that adds TLS"));
    }
    let (host, port) = (uri.host().ok_or_else(unusable)?, uri.port_u16().unwrap_or(80));
    let place = format!("{host}:{port}");
    let failed = |error: &dyn fmt::Display| {
        Error::new(Kind::Io, format!("cannot connect to `{place}`"))
            .with("address", &place)
            .with("reason", error)
    };
    let connecting = async {
        let stream = TcpStream::connect(&place).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        let mut request = uri.clone().into_client_request().map_err(|error| failed(&error))?;
        if let Ok(value) = place.parse() {
            request.headers_mut().insert(HOST, value);
        }
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .max_message_size(Some(MAX_HEADER + MAX_PAYLOAD + packet::Lengths::SIZE))
            .max_frame_size(Some(MAX_HEADER + MAX_PAYLOAD + packet::Lengths::SIZE));
        match client_async_with_config(request, stream, Some(config)).await {
            Ok((socket, _)) => Ok(Connection { socket }),
            Err(SocketError::Http(response)) => {
                let body = response.body().as_deref().unwrap_or_default();
                Err(problem::read(response.status().as_u16(), body))
            }
            Err(error) => Err(failed(&error)),
        }
    };
    timeout(PATIENCE, connecting).await.unwrap_or_else(|_| {
        Err(Error::new(Kind::Timeout, format!("`{place}` did not answer within {PATIENCE:?}")))
    })
}

impl Connection {
    /// What comes next. Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Received {
        loop {
            match self.socket.next().await {
                Some(Ok(message)) => match read(message) {
                    Ok(Some(received)) => return received,
                    Ok(None) => {}
                    Err(error) => return Received::Closed(error),
                },
                Some(Err(error)) => return Received::Closed(lost(&error)),
                None => return Received::Closed(Error::new(Kind::Io, "the connection was lost")),
            }
        }
    }

    /// Says something to the server.
    ///
    /// # Errors
    ///
    /// `io` when the connection is over.
    pub async fn say(&mut self, message: &ClientMessage) -> Result<()> {
        let sent = self.socket.send(Message::Text(message.to_json().into())).await;
        sent.map_err(|error| lost(&error))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

fn read(message: Message) -> Result<Option<Received>> {
    match message {
        Message::Binary(packet) => {
            let (header, payload) = packet::decode(packet)?;
            Ok(Some(Received::Packet(header, payload)))
        }
        Message::Text(text) => Ok(ServerMessage::parse(&text)?.map(Received::Control)),
        Message::Close(frame) => {
            let code = frame.and_then(|frame| CloseCode::from_code(frame.code.into()));
            let lost = || Error::new(Kind::Io, "the connection was lost");
            Ok(Some(Received::Closed(code.map_or_else(lost, closed))))
        }
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(None),
    }
}

fn lost(error: &SocketError) -> Error {
    Error::new(Kind::Io, "the connection was lost").with("reason", error)
}
