//! The endpoint from outside: our own client, and a QUIC client that keeps to nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use spaceport_session::{Launch, Limits, Open, Policy, Published, Publisher, Sessions};
use spaceport_types::{Bounds, Cause, Codec, Error, Kind, Redacted, SessionId, Target};
use spaceport_wire::control::{ClientMessage, GetStats, LifecycleEvent, ServerMessage};
use spaceport_wire::packet::Header;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::{
    Client, Config, Connection, Driver, Endpoint, Identity, Received, Remote, Video, bind,
};
use crate::Media;

const BOUNDS: Bounds = Bounds::new(0, 0, 64, 48);

/// How long a test waits for one thing.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Launched(Mutex<Vec<Publisher>>);

impl Launch for Launched {
    fn launch(&self, publisher: Publisher) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(publisher);
    }
}

/// An endpoint on loopback, and one session of one stream.
struct Server {
    sessions: Sessions,
    launched: Arc<Launched>,
    endpoint: Endpoint,
    driver: JoinHandle<()>,
    session: SessionId,
    ticket: Redacted<String>,
}

impl Server {
    fn start() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let launched = Arc::new(Launched::default());
        let sessions = Sessions::new(Limits::default(), Arc::<Launched>::clone(&launched));
        let media = Media::of(sessions.clone(), || Duration::ZERO);
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let identity = Identity::generate(now).unwrap();
        let (endpoint, driver): (_, Driver) = bind(config, identity, media).unwrap();
        let driver = tokio::spawn(driver.run());
        let opened = sessions.open(open(), Instant::now().into_std()).unwrap();
        let (session, ticket) = (opened.info.id, opened.ticket.secret);
        Self { sessions, launched, endpoint, driver, session, ticket }
    }

    fn remote(&self) -> Remote {
        Remote {
            address: self.endpoint.local_addr(),
            certificates: self.endpoint.identity().hashes(),
        }
    }

    async fn connect(&self, video: Video) -> Connection {
        let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        client.connect(&self.remote(), &self.ticket, video).await.unwrap()
    }

    /// Publishes a frame, once somebody watches.
    fn publish(&self, keyframe: bool, payload: impl Into<Bytes>) {
        let launched = self.launched.0.lock().unwrap_or_else(PoisonError::into_inner);
        let publisher = launched.first().expect("nobody has attached");
        let frame = Published {
            keyframe,
            codec_epoch: 1,
            geometry: publisher.geometry(BOUNDS, 0),
            captured_at: Duration::ZERO,
            encode_duration: Duration::ZERO,
            payload: payload.into(),
        };
        publisher.publish(frame, Instant::now().into_std());
    }

    async fn stop(self) {
        self.sessions.close_all();
        self.endpoint.shut_down();
        timeout(PATIENCE, self.driver).await.expect("it did not end").unwrap();
    }
}

fn open() -> Open {
    Open {
        target: Target::Display { display_id: "test".to_owned() },
        bounds: BOUNDS,
        codec: Codec::H264,
        max_fps: 30,
        max_dimension: 0,
        bitrate: None,
        policy: Policy::ViewOnly,
        ticket_ttl: None,
        key: None,
    }
}

async fn next(connection: &mut Connection) -> Received {
    timeout(PATIENCE, connection.recv()).await.expect("nothing came")
}

async fn message(connection: &mut Connection) -> ServerMessage {
    match next(connection).await {
        Received::Control(message) => message,
        other => panic!("{other:?}"),
    }
}

async fn packet(connection: &mut Connection) -> (Header<'static>, Bytes) {
    match next(connection).await {
        Received::Packet(header, payload) => (header, payload),
        other => panic!("{other:?}"),
    }
}

async fn closed(connection: &mut Connection) -> Error {
    loop {
        if let Received::Closed(error) = next(connection).await {
            return error;
        }
    }
}

/// Attaches, and returns once the server serves.
async fn attached(server: &Server, video: Video) -> Connection {
    let mut connection = server.connect(video).await;
    assert!(matches!(message(&mut connection).await, ServerMessage::Hello(_)));
    let ServerMessage::SessionOpened(opened) = message(&mut connection).await else {
        panic!("no session");
    };
    assert_eq!(opened.session_id, server.session.as_str());
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_on_streams_come_whole_and_in_order() {
    frames(Video::Streams).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_in_datagrams_come_whole_and_in_order() {
    frames(Video::Datagrams).await;
}

async fn frames(video: Video) {
    let server = Server::start();
    let mut connection = attached(&server, video).await;
    let sizes = [30_000, 1, 1_200, 5_000, 0, 60_000, 77];
    for (index, size) in sizes.into_iter().enumerate() {
        server.publish(index == 0, vec![index as u8; size]);
        let (header, payload) = packet(&mut connection).await;
        assert_eq!((header.keyframe, payload.len()), (index == 0, size));
        assert!(payload.iter().all(|&byte| byte == index as u8));
    }
    connection.say(&ClientMessage::GetStats(GetStats::default())).await.unwrap();
    let ServerMessage::Stats(stats) = message(&mut connection).await else { panic!("no stats") };
    assert_eq!(stats.frames_since_attach, sizes.len() as u64);

    server.sessions.close(&server.session).unwrap();
    let ServerMessage::Lifecycle(closing) = message(&mut connection).await else { panic!() };
    assert!(matches!(closing.event, LifecycleEvent::Closed { .. }));
    assert_eq!(closed(&mut connection).await.cause(), Some(Cause::SessionClosed));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_frames_loses_none_towards_a_viewer_that_keeps_up() {
    let server = Server::start();
    let mut connection = attached(&server, Video::Streams).await;
    server.publish(true, vec![0; 50_000]);
    packet(&mut connection).await;
    for round in 0..20 {
        for index in 0..10 {
            server.publish(false, vec![round * 10 + index; 4_000]);
        }
        for index in 0..10 {
            assert_eq!(packet(&mut connection).await.1[0], round * 10 + index);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_is_none_is_refused_and_says_so() {
    let server = Server::start();
    let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for ticket in ["AAAAAAAAAAAAAAAAAAAAAA", "", &"A".repeat(1_000)] {
        let ticket = Redacted::new(ticket.to_owned());
        let mut refused = client.connect(&server.remote(), &ticket, Video::Streams).await.unwrap();
        assert_eq!(closed(&mut refused).await.kind(), Kind::Unauthenticated);
    }
    assert_eq!(server.sessions.counters().viewers.get(), 0);
    server.stop().await;
}

/// A QUIC client that keeps to nothing: what it sends and reads are bytes.
struct Raw {
    connection: quinn::Connection,
    _endpoint: quinn::Endpoint,
}

/// Takes any certificate.
#[derive(Debug)]
struct Anybody(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl Raw {
    async fn connect(server: &Server, alpn: &str) -> Result<Self, quinn::ConnectionError> {
        Self::with(server, alpn, quinn::TransportConfig::default()).await
    }

    async fn with(
        server: &Server,
        alpn: &str,
        transport: quinn::TransportConfig,
    ) -> Result<Self, quinn::ConnectionError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_no_client_auth();
        tls.alpn_protocols = vec![alpn.into()];
        let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
        let mut config = quinn::ClientConfig::new(Arc::new(tls));
        config.transport_config(Arc::new(transport));
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = server.endpoint.local_addr();
        let connection = endpoint.connect_with(config, address, "any.name").unwrap().await?;
        Ok(Self { connection, _endpoint: endpoint })
    }

    /// Opens the control stream with whatever bytes.
    async fn open(&self, bytes: &[u8]) -> (quinn::SendStream, quinn::RecvStream) {
        let (mut send, receive) = self.connection.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        (send, receive)
    }

    /// The code that the server closes with.
    async fn closed(&self) -> u64 {
        let error = timeout(PATIENCE, self.connection.closed()).await.expect("it stayed open");
        match error {
            quinn::ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("{other}"),
        }
    }
}

fn framed(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], &[0; 4], text.as_bytes()].concat()
}

fn ticket(server: &Server, more: &str) -> Vec<u8> {
    let secret = server.ticket.expose();
    framed(&format!(r#"{{"type":"ticket","payload":{{"ticket":"{secret}"{more}}}}}"#))
}

async fn read_message(stream: &mut quinn::RecvStream) -> serde_json::Value {
    let mut lengths = [0; 8];
    timeout(PATIENCE, stream.read_exact(&mut lengths)).await.expect("nothing came").unwrap();
    assert_eq!(lengths[4..], [0; 4], "a control message has no payload");
    let mut text = vec![0; u32::from_be_bytes(lengths[..4].try_into().unwrap()) as usize];
    stream.read_exact(&mut text).await.unwrap();
    serde_json::from_slice(&text).unwrap()
}

async fn raw_attached(server: &Server, more: &str) -> (Raw, quinn::SendStream, quinn::RecvStream) {
    let raw = Raw::connect(server, "rcdp/2").await.unwrap();
    let (send, mut receive) = raw.open(&ticket(server, more)).await;
    assert_eq!(read_message(&mut receive).await["type"], "hello");
    assert_eq!(read_message(&mut receive).await["type"], "session_opened");
    (raw, send, receive)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_contract_gets_datagrams_with_the_header_it_describes() {
    let server = Server::start();
    let (raw, mut send, mut receive) = raw_attached(&server, "").await;
    server.publish(true, vec![7; 5_000]);
    let mut packet = Vec::new();
    let mut index = 0;
    loop {
        let datagram = timeout(PATIENCE, raw.connection.read_datagram()).await.unwrap().unwrap();
        let (header, piece) = datagram.split_at(24);
        assert_eq!(&header[..6], b"RVD2\x02\x01");
        assert_eq!(u16::from_be_bytes([header[6], header[7]]), index);
        assert_eq!(header[10..20], [0; 10], "reserved, and the first packet");
        packet.extend_from_slice(piece);
        index += 1;
        if index == u16::from_be_bytes([header[8], header[9]]) {
            let total = u32::from_be_bytes(header[20..24].try_into().unwrap());
            assert_eq!(packet.len(), total as usize);
            break;
        }
    }
    assert!(index > 1, "it did not need to be cut");
    let head = u32::from_be_bytes(packet[..4].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&packet[8..8 + head]).unwrap();
    assert_eq!(header["direction"], "video");
    assert_eq!(header["message"]["keyframe"], true);
    assert_eq!(packet[8 + head..], vec![7; 5_000]);

    send.write_all(&framed(r#"{"type":"make_coffee"}"#)).await.unwrap();
    let answer = read_message(&mut receive).await;
    assert_eq!(answer["payload"]["code"], "unsupported_operation");
    send.finish().unwrap();
    assert_eq!(raw.closed().await, 0, "who ends its side leaves");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_for_streams_gets_one_for_each_frame() {
    let server = Server::start();
    let (raw, _send, _receive) = raw_attached(&server, r#","video":"streams""#).await;
    for (index, size) in [(0, 5_000), (1, 10)] {
        server.publish(index == 0, vec![index as u8; size]);
        let mut stream = timeout(PATIENCE, raw.connection.accept_uni()).await.unwrap().unwrap();
        let bytes = stream.read_to_end(1 << 20).await.unwrap();
        let (header, packet) = bytes.split_at(24);
        assert_eq!(&header[..4], b"RVD2");
        assert_eq!(header[4..12], [2, u8::from(index == 0), 0, 0, 0, 1, 0, 0]);
        assert_eq!(u64::from_be_bytes(header[12..20].try_into().unwrap()), index);
        assert_eq!(u32::from_be_bytes(header[20..].try_into().unwrap()) as usize, packet.len());
        assert!(packet.ends_with(&vec![index as u8; size]));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_ticket_ends_the_connection() {
    let server = Server::start();
    let long = format!(r#"{{"type":"ticket","payload":{{"ticket":"{}"}}}}"#, "a".repeat(5_000));
    for bytes in [
        framed(r#"{"type":"get_stats"}"#),
        framed("no JSON"),
        framed(&long),
        b"GET /media HTTP/1.1\r\n\r\n".to_vec(),
        vec![0, 0, 0, 2, 0, 0, 0, 1, b'{', b'}', 0],
        framed(r#"{"type":"ticket","payload":{"ticket":"AAAAAAAAAAAAAAAAAAAAAA"}}"#),
    ] {
        let raw = Raw::connect(&server, "rcdp/2").await.unwrap();
        let _streams = raw.open(&bytes).await;
        assert_eq!(raw.closed().await, 0x401, "{}", String::from_utf8_lossy(&bytes));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_ticket_is_refused_and_one_of_a_closed_session_says_that() {
    let server = Server::start();
    let stale = Open { ticket_ttl: Some(Duration::ZERO), ..open() };
    let stale = server.sessions.open(stale, Instant::now().into_std()).unwrap().ticket.secret;
    let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut refused = client.connect(&server.remote(), &stale, Video::Streams).await.unwrap();
    assert_eq!(closed(&mut refused).await.kind(), Kind::Unauthenticated);
    server.sessions.close(&server.session).unwrap();
    let mut over = server.connect(Video::Streams).await;
    assert_eq!(closed(&mut over).await.cause(), Some(Cause::SessionClosed));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_end_the_connection_of_their_sender_alone() {
    let server = Server::start();
    let mut other = attached(&server, Video::Streams).await;
    for bytes in [
        framed("no JSON"),
        framed(r#"{"type":"get_stats","payload":7}"#),
        vec![0, 0, 0, 2, 0, 0, 0, 1, b'{', b'}', 0],
        vec![0xff; 8],
        vec![0, 0, 0, 1, 0, 0, 0, 0, 0xff],
    ] {
        let (raw, mut send, _receive) = raw_attached(&server, "").await;
        send.write_all(&bytes).await.unwrap();
        assert_eq!(raw.closed().await, 0x400, "{bytes:?}");
    }
    server.publish(true, vec![1]);
    assert_eq!(packet(&mut other).await.1[..], [1]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ninth_viewer_is_told_that_there_are_too_many() {
    let server = Server::start();
    let mut viewers = Vec::new();
    for _ in 0..8 {
        viewers.push(attached(&server, Video::Streams).await);
    }
    let mut ninth = server.connect(Video::Streams).await;
    assert_eq!(closed(&mut ninth).await.cause(), Some(Cause::TooManyViewers));
    server.stop().await;
}

fn impatient() -> Config {
    Config { patience: Duration::from_millis(300), ..Config::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_never_speaks_is_sent_away() {
    let server = Server::with(impatient());
    // Nothing at all, a stream with nothing whole on it, and HTTP/3 without a request.
    for (alpn, bytes) in [("rcdp/2", None), ("rcdp/2", Some(&[0, 0, 0][..])), ("h3", None)] {
        let raw = Raw::connect(&server, alpn).await.unwrap();
        let _streams = match bytes {
            Some(bytes) => Some(raw.open(bytes).await),
            None => None,
        };
        assert_eq!(raw.closed().await, 0x401, "{alpn} {bytes:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protocol_that_is_not_spoken_here_is_refused_in_the_handshake() {
    let server = Server::start();
    assert!(Raw::connect(&server, "rcdp/3").await.is_err());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_clients_without_tickets_is_bounded_and_touches_no_viewer() {
    let config = Config { max_opening: 4, validate_above: 2, ..impatient() };
    let server = Server::with(config);
    let mut viewer = attached(&server, Video::Streams).await;
    // All at once: four find room, two of those without having to prove their address.
    let flood = (0..24).map(|_| Raw::connect(&server, "rcdp/2"));
    let flood: Vec<_> = futures_util::future::join_all(flood).await;
    let (inside, refused): (Vec<_>, Vec<_>) = flood.into_iter().partition(Result::is_ok);
    assert!(!inside.is_empty() && !refused.is_empty(), "{} of 24 let in", inside.len());
    server.publish(true, vec![1]);
    assert_eq!(packet(&mut viewer).await.1[..], [1]);
    for raw in inside.into_iter().flatten() {
        assert_eq!(raw.closed().await, 0x401);
    }
    // They are gone, and there is room again.
    let another = attached(&server, Video::Streams).await;
    another.close();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_and_streams_that_nobody_asked_for_cost_no_viewer_anything() {
    let server = Server::start();
    let mut other = attached(&server, Video::Streams).await;
    let (raw, _send, _receive) = raw_attached(&server, "").await;
    for size in [0, 1, 24, 1_000] {
        for _ in 0..100 {
            raw.connection.send_datagram(vec![0x52; size].into()).unwrap();
        }
    }
    // As many streams as the server lets it open, each as full as it takes.
    let mut streams = Vec::new();
    let open = async {
        loop {
            let mut stream = raw.connection.open_uni().await.unwrap();
            drop(timeout(Duration::from_millis(100), stream.write_all(&[0; 1 << 20])).await);
            streams.push(stream);
        }
    };
    assert!(timeout(Duration::from_secs(2), open).await.is_err());
    assert!(streams.len() <= 8, "{} streams", streams.len());
    for number in 0..10 {
        server.publish(number == 0, vec![number; 4_000]);
        assert_eq!(packet(&mut other).await.1[0], number);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_viewer_that_does_not_read_costs_itself_and_nobody_else() {
    let server = Server::start();
    let mut healthy = attached(&server, Video::Streams).await;
    // It takes a few frames' worth of bytes and reads none.
    let mut transport = quinn::TransportConfig::default();
    transport.receive_window(20_000_u32.into());
    let slow = Raw::with(&server, "rcdp/2", transport).await.unwrap();
    let (_send, mut receive) = slow.open(&ticket(&server, r#","video":"streams""#)).await;
    assert_eq!(read_message(&mut receive).await["type"], "hello");
    assert_eq!(read_message(&mut receive).await["type"], "session_opened");

    for number in 0..200_u8 {
        server.publish(number == 0, vec![number; 4_000]);
        assert_eq!(packet(&mut healthy).await.1[0], number);
    }
    let counters = server.sessions.counters();
    assert!(counters.cuts.get() > 0, "it was not cut");
    // What the server holds for it has an end: a keyframe of now is what it gets next.
    server.publish(true, vec![200; 4_000]);
    assert_eq!(packet(&mut healthy).await.1[0], 200);
    let mut shown = Vec::new();
    while shown.last() != Some(&200) {
        let mut stream = timeout(PATIENCE, slow.connection.accept_uni()).await.unwrap().unwrap();
        // Those that were superseded are reset.
        if let Ok(bytes) = stream.read_to_end(1 << 20).await {
            shown.push(*bytes.last().unwrap());
        }
    }
    assert!(shown.len() < 100, "it was sent what it could not take: {shown:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_for_new_connections_and_the_old_ones_stay() {
    let server = Server::start();
    let told = server.remote();
    let mut viewer = attached(&server, Video::Streams).await;
    let day = |days: u64| UNIX_EPOCH + Duration::from_secs(1_800_000_000 + days * 24 * 60 * 60);
    assert!(server.endpoint.identity().keep(day(10)).unwrap());
    let announced = server.remote();
    assert!(server.endpoint.identity().keep(day(12)).unwrap());

    let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refused = client.connect(&told, &server.ticket, Video::Streams).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::PermissionDenied, "{refused}");
    let mut new = client.connect(&announced, &server.ticket, Video::Streams).await.unwrap();
    assert!(matches!(message(&mut new).await, ServerMessage::Hello(_)));
    server.publish(true, vec![1]);
    assert_eq!(packet(&mut viewer).await.1[..], [1]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nobody_listens_the_client_says_that_udp_does_not_get_through() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let remote =
        Remote { address: socket.local_addr().unwrap(), certificates: vec!["0".repeat(64)] };
    let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let ticket = Redacted::new(String::new());
    let error = client.connect(&remote, &ticket, Video::Streams).await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::UdpBlocked));
    let unpinned = Remote { certificates: Vec::new(), ..remote };
    let error = client.connect(&unpinned, &ticket, Video::Streams).await.unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
}
