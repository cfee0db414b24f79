//! The client's half: watches a session over QUIC, as a native viewer, a relay or a load generator does.
//!
//! ```no_run
//! # async fn example(ticket: spaceport_types::Redacted<String>) -> spaceport_types::Result<()> {
//! use spaceport_transport::quic::{Client, Received, Remote, Video};
//!
//! let client = Client::bind("0.0.0.0:0".parse().expect("an address"))?;
//! let remote = Remote {
//!     address: "192.0.2.7:3212".parse().expect("an address"),
//!     certificates: vec!["the hash that `OpenMedia` answered".to_owned()],
//! };
//! let mut connection = client.connect(&remote, &ticket, Video::Streams).await?;
//! loop {
//!     match connection.recv().await {
//!         Received::Packet(header, payload) => println!("{} {}", header.sequence, payload.len()),
//!         Received::Control(message) => println!("{message:?}"),
//!         Received::Closed(error) => return Err(error),
//!     }
//! }
//! # }
//! ```
//!
//! `hello` and `session_opened` come first. Frames come in order, from a keyframe on; what is lost on the way is asked for again, as a keyframe.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use quinn::{ConnectionError, EndpointConfig, TokioRuntime};
use rustls::DigitallySignedStruct;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use spaceport_types::{Cause, Error, Kind, Redacted, Result};
use spaceport_wire::attach::{Attach, Video};
use spaceport_wire::close::CloseCode;
use spaceport_wire::control::{ClientMessage, ServerMessage, SessionRef};
use spaceport_wire::datagram::{self, Assembler};
use spaceport_wire::order::Order;
use spaceport_wire::packet::{self, MAX_HEADER};
use spaceport_wire::stream;
use tokio::time::{Instant, sleep_until, timeout};
use web_transport_quinn::proto::ConnectRequest;
use web_transport_quinn::{
    ClientError, RecvStream, SendStream, Session, SessionError, WebTransportError, WriteError,
};

use super::link::{Link, Windows};
use super::{identity, settings, socket};
use crate::client::{Received, closed};

/// How long connecting may take.
const PATIENCE: Duration = Duration::from_secs(6);

/// The shortest time between two requests for a keyframe; a server makes at most two a second.
const KEYFRAME_INTERVAL: Duration = Duration::from_millis(500);

/// Frames that are read at one time.
const MAX_READING: usize = 256;

/// How much of a stream is taken at a time.
const PIECE: usize = 64 << 10;

/// One UDP socket, for any number of connections.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: quinn::Endpoint,
    /// The machine that its viewers name.
    machine: Option<String>,
}

/// A server, and how it is known.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Where it listens.
    pub address: SocketAddr,
    /// SHA-256 of the certificates it may show, in hexadecimal. There is no other way to know it.
    pub certificates: Vec<String>,
}

/// One session that is watched. Dropping it is leaving.
pub struct Connection {
    session: Session,
    control: SendStream,
    messages: RecvStream,
    reader: stream::Reader,
    reading: FuturesUnordered<BoxFuture<'static, Read>>,
    order: Order<Bytes>,
    assembler: Assembler,
    video: Video,
    /// `session_opened` has been handed on, and frames may be.
    opened: bool,
    asked_at: Option<Instant>,
    wants_keyframe: bool,
    ready: VecDeque<Received>,
}

/// What became of a frame's stream.
enum Read {
    Whole(datagram::Header, Bytes),
    /// It was reset. Without an id when that was before its header had come: then it is not known which
    /// frame, and a later keyframe says that it is over.
    Lost(Option<u64>),
}

impl Client {
    /// Binds a UDP socket. To be called within a Tokio runtime.
    ///
    /// # Errors
    ///
    /// `io` when the address cannot be bound.
    pub fn bind(local: SocketAddr) -> Result<Self> {
        let unbound = |error: std::io::Error| {
            Error::new(Kind::Io, format!("cannot use UDP `{local}`"))
                .with("address", local)
                .source(error)
        };
        let socket = socket::bind(local).map_err(unbound)?;
        let runtime = Arc::new(TokioRuntime);
        let endpoint = quinn::Endpoint::new(EndpointConfig::default(), None, socket, runtime);
        Ok(Self { endpoint: endpoint.map_err(unbound)?, machine: None })
    }

    /// The same socket for viewers of one machine at a relay.
    #[must_use]
    pub fn at_machine(&self, machine: &str) -> Self {
        Self { endpoint: self.endpoint.clone(), machine: Some(machine.to_owned()) }
    }

    /// Connects, and shows the ticket. That it was good is known when something comes.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a remote without a certificate's hash, `stream` with cause `udp_blocked` when
    /// nothing answers, `permission_denied` for another certificate, `io` otherwise.
    pub async fn connect(
        &self,
        remote: &Remote,
        ticket: &Redacted<String>,
        video: Video,
    ) -> Result<Connection> {
        let connection = self.handshake(remote, super::ALPN).await?;
        let attach = self.attach(ticket, video);
        start(remote, Session::raw(connection), &attach, video).await
    }

    /// The same over WebTransport, as a browser does it.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], and `io` when what answers is no media server.
    pub async fn connect_webtransport(
        &self,
        remote: &Remote,
        ticket: &Redacted<String>,
        video: Video,
    ) -> Result<Connection> {
        let connection = self.handshake(remote, web_transport_quinn::ALPN).await?;
        let failed = |error: &dyn fmt::Display| {
            Error::new(Kind::Io, format!("no WebTransport session at `{}`", remote.address))
                .with("address", remote.address)
                .with("reason", error)
        };
        let machine = self.machine.as_ref().map(|machine| format!("/m/{machine}"));
        let machine = machine.unwrap_or_default();
        let address = format!("https://{}{machine}{}", remote.address, super::PATH);
        let address: url::Url = address.parse().map_err(|error| failed(&error))?;
        let opening = Session::connect(connection, ConnectRequest::new(address));
        match timeout(PATIENCE, opening).await {
            Ok(Ok(session)) => start(remote, session, &self.attach(ticket, video), video).await,
            Ok(Err(ClientError::Connection(error))) => Err(reason(&error.into())),
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(silent(remote)),
        }
    }

    /// Connects to a server that takes links of the protocol `alpn`.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], but for what concerns tickets.
    pub async fn link(&self, remote: &Remote, alpn: &str, windows: Windows) -> Result<Link> {
        let verifier = Arc::new(Pinned::new(&remote.certificates)?);
        let config = settings::link(verifier, alpn, windows)?;
        Ok(Link::new(self.dial(remote, config).await?, windows))
    }

    /// What is said first.
    fn attach(&self, ticket: &Redacted<String>, video: Video) -> Attach {
        Attach { ticket: ticket.clone(), video: Some(video), machine: self.machine.clone() }
    }

    /// A QUIC connection of a viewer that speaks `alpn`.
    async fn handshake(&self, remote: &Remote, alpn: &str) -> Result<quinn::Connection> {
        let verifier = Pinned::new(&remote.certificates)?;
        self.dial(remote, settings::client(Arc::new(verifier), alpn)?).await
    }

    async fn dial(
        &self,
        remote: &Remote,
        config: quinn::ClientConfig,
    ) -> Result<quinn::Connection> {
        let failed = |error: &dyn fmt::Display| {
            Error::new(Kind::Io, format!("cannot connect to `{}`", remote.address))
                .with("address", remote.address)
                .with("reason", error)
        };
        let connecting = self
            .endpoint
            .connect_with(config, remote.address, SERVER_NAME)
            .map_err(|error| failed(&error))?;
        match timeout(PATIENCE, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(ConnectionError::TimedOut)) | Err(_) => Err(silent(remote)),
            Ok(Err(ConnectionError::TransportError(error))) if is_certificate(error.code) => {
                Err(Error::new(
                    Kind::PermissionDenied,
                    format!("`{}` shows another certificate than expected", remote.address),
                )
                .with("address", remote.address)
                .hint("Open the stream again: its answer has the hash of the certificate"))
            }
            Ok(Err(error)) => Err(failed(&error)),
        }
    }

    /// Waits until what was said last on connections that are closed has left.
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }
}

fn silent(remote: &Remote) -> Error {
    Error::because(Cause::UdpBlocked, format!("nothing answers at UDP `{}`", remote.address))
        .with("address", remote.address)
        .hint("Let UDP through to that port, or watch over WebSocket")
}

/// Shows the ticket.
async fn start(
    remote: &Remote,
    session: Session,
    attach: &Attach,
    video: Video,
) -> Result<Connection> {
    let opening = async {
        let (mut control, messages) = session.open_bi().await?;
        match control.write_all(&stream::frame(&attach.to_json())).await {
            Ok(()) => Ok((control, messages)),
            Err(WriteError::SessionError(error)) => Err(error),
            Err(_) => Err(ConnectionError::Reset.into()),
        }
    };
    let (control, messages) = match timeout(PATIENCE, opening).await {
        Ok(Ok(streams)) => streams,
        Ok(Err(error)) => return Err(reason(&error)),
        Err(_) => return Err(silent(remote)),
    };
    Ok(Connection {
        session,
        control,
        messages,
        reader: stream::Reader::new(MAX_HEADER),
        reading: FuturesUnordered::new(),
        order: Order::default(),
        assembler: Assembler::default(),
        video,
        opened: false,
        asked_at: None,
        wants_keyframe: false,
        ready: VecDeque::new(),
    })
}

impl Connection {
    /// What comes next. Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Received {
        loop {
            if let Some(received) = self.next_ready() {
                return received;
            }
            if let Err(error) = self.step().await {
                // Why it ends was said before it did, and has come.
                while let Ok(Some(piece)) = self.messages.read_chunk(PIECE, true).await {
                    self.reader.push(&piece.bytes);
                }
                self.opened = true; // whatever there is: nothing else comes
                if self.listen().is_ok() && !self.ready.is_empty() {
                    continue;
                }
                return Received::Closed(error);
            }
        }
    }

    /// What has come. Frames may overtake what the server says first, and are kept until it has.
    fn next_ready(&mut self) -> Option<Received> {
        if self.opened {
            return self.ready.pop_front();
        }
        let is_message = |received: &Received| matches!(received, Received::Control(_));
        let received = self.ready.remove(self.ready.iter().position(is_message)?)?;
        self.opened = matches!(received, Received::Control(ServerMessage::SessionOpened(_)));
        Some(received)
    }

    /// Says something to the server.
    ///
    /// # Errors
    ///
    /// Why the connection is over, when it is.
    pub async fn say(&mut self, message: &ClientMessage) -> Result<()> {
        let framed = stream::frame(&message.to_json());
        match self.control.write_all(&framed).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.why()),
        }
    }

    /// The round trip to the server, as the connection sees it.
    pub fn rtt(&self) -> Duration {
        self.session.rtt()
    }

    /// Packets that were sent to the server and lost.
    pub fn lost_packets(&self) -> u64 {
        quinn::Connection::stats(&self.session).path.lost_packets
    }

    /// Leaves.
    pub fn close(self) {
        self.session.close(CloseCode::Normal.quic(), b"");
    }

    async fn step(&mut self) -> Result<()> {
        if self.wants_keyframe {
            self.ask_keyframe().await?;
        }
        let deadline = self.deadline();
        let waiting = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            piece = self.messages.read_chunk(PIECE, true) => match piece {
                Ok(Some(piece)) => {
                    self.reader.push(&piece.bytes);
                    self.listen()?;
                }
                Ok(None) => {
                    // The server has ended its side: what it closes with comes right behind.
                    let error = timeout(PATIENCE, self.session.closed()).await;
                    return Err(error.map_or_else(|_| self.why(), |error| reason(&error)));
                }
                Err(_) => return Err(self.why()),
            },
            stream = self.session.accept_uni(), if self.reading.len() < MAX_READING => {
                let stream = stream.map_err(|error| reason(&error))?;
                self.reading.push(Box::pin(read(stream)));
            }
            Some(read) = self.reading.next() => self.take(read)?,
            datagram = self.session.read_datagram(), if self.video == Video::Datagrams => {
                let datagram = datagram.map_err(|error| reason(&error))?;
                self.assemble(&datagram)?;
            }
            () = waiting => self.assembler.expire(Instant::now().into_std()),
        }
        self.wants_keyframe |= self.assembler.take_lost();
        Ok(())
    }

    /// When something is to be done that nothing comes for.
    fn deadline(&self) -> Option<Instant> {
        let expires = self.assembler.deadline().map(Instant::from_std);
        let asks = self.asked_at.filter(|_| self.wants_keyframe).map(|at| at + KEYFRAME_INTERVAL);
        expires.into_iter().chain(asks).min()
    }

    fn listen(&mut self) -> Result<()> {
        while let Some(text) = self.reader.message()? {
            if let Some(message) = ServerMessage::parse(&text)? {
                self.ready.push_back(Received::Control(message));
            }
        }
        Ok(())
    }

    fn take(&mut self, read: Read) -> Result<()> {
        let whole = !self.order.awaits_keyframe();
        match read {
            Read::Whole(header, packet) => {
                self.order.push(header.packet_id, header.keyframe, packet);
            }
            Read::Lost(Some(id)) => self.order.lost(id),
            Read::Lost(None) => {}
        }
        // Usually the server has made one already: it is why the others were reset.
        self.wants_keyframe = self.order.awaits_keyframe() && (whole || self.wants_keyframe);
        self.hand_on()
    }

    fn assemble(&mut self, datagram: &Bytes) -> Result<()> {
        let now = Instant::now().into_std();
        // One that makes no sense is as good as lost.
        let Ok(assembled) = self.assembler.push(datagram, now) else { return Ok(()) };
        if self.assembler.take_lost() {
            self.wants_keyframe = true;
        }
        let Some((header, packet)) = assembled else { return Ok(()) };
        if self.wants_keyframe && !header.keyframe {
            return Ok(()); // it continues a picture that is not there
        }
        self.wants_keyframe = false;
        let (header, payload) = packet::decode(packet)?;
        self.ready.push_back(Received::Packet(header, payload));
        Ok(())
    }

    fn hand_on(&mut self) -> Result<()> {
        while let Some(packet) = self.order.pop() {
            let (header, payload) = packet::decode(packet)?;
            self.ready.push_back(Received::Packet(header, payload));
        }
        Ok(())
    }

    async fn ask_keyframe(&mut self) -> Result<()> {
        if self.asked_at.is_some_and(|at| at.elapsed() < KEYFRAME_INTERVAL) {
            return Ok(());
        }
        self.asked_at = Some(Instant::now());
        self.say(&ClientMessage::RequestKeyframe(SessionRef::default())).await
    }

    fn why(&self) -> Error {
        let lost = || Error::new(Kind::Io, "the connection was lost");
        self.session.close_reason().map_or_else(lost, |error| reason(&error))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("remote", &self.session.remote_address())
            .finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.session.close(CloseCode::Normal.quic(), b"");
    }
}

/// Reads the stream of one frame.
async fn read(mut stream: RecvStream) -> Read {
    let mut header = [0; datagram::Header::SIZE];
    if stream.read_exact(&mut header).await.is_err() {
        return Read::Lost(None);
    }
    let Ok(header) = datagram::Header::parse(header) else { return Read::Lost(None) };
    let total = header.total as usize;
    let mut packet = BytesMut::new();
    loop {
        // Not all that the header says at once: it costs memory only as it comes.
        match stream.read_chunk(PIECE, true).await {
            Ok(Some(piece)) if packet.len() + piece.bytes.len() <= total => {
                packet.extend_from_slice(&piece.bytes);
            }
            Ok(None) if packet.len() == total => return Read::Whole(header, packet.freeze()),
            _ => return Read::Lost(Some(header.packet_id)),
        }
    }
}

/// Why a connection is over, in our words.
fn reason(error: &SessionError) -> Error {
    let code = match error {
        SessionError::WebTransportError(WebTransportError::Closed(code, _)) => {
            CloseCode::ALL.into_iter().find(|known| known.quic() == *code)
        }
        SessionError::ConnectionError(ConnectionError::ApplicationClosed(close)) => CloseCode::ALL
            .into_iter()
            .find(|code| u64::from(code.quic()) == close.error_code.into_inner()),
        SessionError::ConnectionError(ConnectionError::TimedOut) => {
            return Error::new(Kind::Timeout, "the server went silent").hint("Connect again");
        }
        _ => None,
    };
    code.map_or_else(
        || Error::new(Kind::Io, "the connection was lost").with("reason", error),
        closed,
    )
}

fn is_certificate(code: quinn::TransportErrorCode) -> bool {
    // TLS alerts 40 to 51 are about the handshake and certificates (RFC 8446 §6.2); what a verifier
    // refuses is one of them.
    let code = u64::from(code);
    (0x100 + 40..0x100 + 52).contains(&code)
}

/// The name that is asked for; servers show their certificate whatever it is.
const SERVER_NAME: &str = "spaceport.invalid";

/// Knows a server by its certificate alone.
#[derive(Debug)]
struct Pinned {
    hashes: Vec<String>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn new(hashes: &[String]) -> Result<Self> {
        let hashes: Vec<String> = hashes.iter().map(|hash| hash.to_ascii_lowercase()).collect();
        let is_hash =
            |hash: &String| hash.len() == 64 && hash.bytes().all(|it| it.is_ascii_hexdigit());
        if hashes.is_empty() || !hashes.iter().all(is_hash) {
            return Err(Error::new(
                Kind::InvalidArgument,
                "a certificate is known by the 64 hexadecimal digits of its SHA-256",
            )
            .hint("Take `quic.certificate_sha256` from the answer to `OpenMedia`"));
        }
        Ok(Self { hashes, provider: settings::provider() })
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.hashes.contains(&identity::hash(end_entity)) {
            Ok(ServerCertVerified::assertion())
        } else {
            let error = rustls::CertificateError::ApplicationVerificationFailure;
            Err(rustls::Error::InvalidCertificate(error))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
