use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::handshake::client::{Request, generate_key};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

/// How a client hands over its ticket.
#[derive(Clone, Copy, Debug)]
pub enum Via<'a> {
    /// As native clients do: in the query, no subprotocol.
    Query,
    /// As browsers do; the subprotocols as they stand in the header.
    Subprotocols(&'a str),
}

/// A media socket, without any mercy for the server: what comes is what the test sees.
#[derive(Debug)]
pub struct Socket {
    stream: WebSocketStream<TcpStream>,
    /// The subprotocol the server chose.
    pub protocol: Option<String>,
    /// The extensions the server chose.
    pub extensions: Option<String>,
}

/// An upgrade that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Something the server sent.
#[derive(Clone, Debug)]
pub enum Event {
    /// A control message: its type and payload.
    Control(String, Value),
    /// A video packet: its header, and how many bytes the frame has.
    Packet(Value, Vec<u8>),
    /// The end: the close code, 1006 for a cut line, and the reason.
    Closed(u16, String),
}

impl Socket {
    /// Attaches by the query.
    pub async fn attach(to: SocketAddr, ticket: &str) -> Result<Self, Refusal> {
        let path = format!("/media?ticket={ticket}");
        Self::open(to, &path, Via::Query, None).await
    }

    /// Attaches with everything as the test wants it. `receive_buffer` makes the kernel take no more than
    /// about that many bytes while nobody reads.
    pub async fn open(
        to: SocketAddr,
        path: &str,
        via: Via<'_>,
        receive_buffer: Option<u32>,
    ) -> Result<Self, Refusal> {
        let socket = TcpSocket::new_v4().unwrap();
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes).unwrap();
        }
        let tcp = socket.connect(to).await.unwrap();
        let mut request = Request::builder()
            .uri(format!("ws://{to}{path}"))
            .header("Host", to.to_string())
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", generate_key());
        if let Via::Subprotocols(names) = via {
            request = request.header("Sec-WebSocket-Protocol", names);
        }
        match client_async(request.body(()).unwrap(), tcp).await {
            Ok((stream, response)) => {
                let header = |name| {
                    response.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
                };
                let protocol = header("sec-websocket-protocol");
                let extensions = header("sec-websocket-extensions");
                Ok(Self { stream, protocol, extensions })
            }
            Err(Error::Http(response)) => {
                let body = response.body().as_deref().unwrap_or_default();
                let body = String::from_utf8_lossy(body).into_owned();
                Err(Refusal { status: response.status().as_u16(), body })
            }
            Err(error) => panic!("the upgrade failed: {error}"),
        }
    }

    /// The next event; panics when none comes within five seconds.
    pub async fn next(&mut self) -> Event {
        self.next_within(PATIENCE).await.expect("the server said nothing")
    }

    /// The next event, or `None` when none comes in time.
    pub async fn next_within(&mut self, limit: Duration) -> Option<Event> {
        let end = tokio::time::Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(tokio::time::Instant::now());
            let message = timeout(left, self.stream.next()).await.ok()?;
            return Some(match message {
                Some(Ok(Message::Text(text))) => {
                    let mut message: Value = serde_json::from_str(&text).unwrap();
                    let kind = message["type"].as_str().unwrap().to_owned();
                    Event::Control(kind, message["payload"].take())
                }
                Some(Ok(Message::Binary(bytes))) => {
                    let lengths: [u8; 8] = bytes[..8].try_into().unwrap();
                    let lengths = spaceport_wire::packet::Lengths::parse(lengths).unwrap();
                    assert_eq!(lengths.total(), bytes.len(), "one packet a message, exactly");
                    let (header, payload) = bytes[8..].split_at(lengths.header);
                    let mut header: Value = serde_json::from_slice(header).unwrap();
                    assert_eq!(header["direction"], "video");
                    Event::Packet(header["message"].take(), payload.to_vec())
                }
                Some(Ok(Message::Close(frame))) => match frame {
                    Some(frame) => Event::Closed(frame.code.into(), frame.reason.to_string()),
                    None => Event::Closed(CloseCode::Status.into(), String::new()),
                },
                Some(Ok(_)) => continue, // pings, which tungstenite answers
                Some(Err(_)) | None => Event::Closed(CloseCode::Abnormal.into(), String::new()),
            });
        }
    }

    /// The next video packet.
    pub async fn packet(&mut self) -> (Value, Vec<u8>) {
        loop {
            match self.next().await {
                Event::Packet(header, payload) => return (header, payload),
                Event::Control(..) => {}
                Event::Closed(code, reason) => panic!("closed instead: {code} {reason}"),
            }
        }
    }

    /// The next control message of a type.
    pub async fn control(&mut self, wanted: &str) -> Value {
        loop {
            match self.next().await {
                Event::Control(kind, payload) if kind == wanted => return payload,
                Event::Closed(code, reason) => {
                    panic!("closed instead of `{wanted}`: {code} {reason}")
                }
                _ => {}
            }
        }
    }

    /// The close code, whatever comes before it.
    pub async fn closed(&mut self) -> (u16, String) {
        loop {
            if let Event::Closed(code, reason) = self.next().await {
                return (code, reason);
            }
        }
    }

    /// Sends a control message.
    pub async fn send(&mut self, kind: &str, payload: Value) {
        self.send_text(&json!({ "type": kind, "payload": payload }).to_string()).await;
    }

    /// Sends any text.
    pub async fn send_text(&mut self, text: &str) {
        self.stream.send(Message::text(text)).await.unwrap();
    }

    /// Sends any bytes.
    pub async fn send_bytes(&mut self, bytes: &'static [u8]) {
        self.stream.send(Message::binary(bytes)).await.unwrap();
    }

    /// Leaves as a client should.
    pub async fn leave(mut self) {
        self.stream.close(None).await.unwrap();
    }
}

/// How long a test waits for one event.
const PATIENCE: Duration = Duration::from_secs(5);
