//! Clients that flood, stall or lie cost themselves, and nobody else anything.
//!
//! On a real gateway. While each of them is at work a viewer watches over WebSocket: it must go on
//! getting pictures, no more keyframes than there may be, and what the gateway holds must not grow.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::DigitallySignedStruct;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::json;
use spaceport_tests::{
    Answer, Event, Gateway, Request, Script, Socket, TOKEN, measured, offer, wait_until,
};
use spaceport_transport::quic::{Client, Received, Remote, Video};
use spaceport_types::{Cause, Kind, Redacted};
use tokio::time::Instant;

/// How much a gateway may grow while it is attacked: its allocator's arenas and a few full queues. A
/// leak of what came would be more than this many times over, or is looked for in `leaks`.
const GROWTH_KB: u64 = 48 << 10;

/// A picture may come this much later than the one before it, on a machine that is busy with the attack
/// itself: both share two cores.
const GAP: Duration = Duration::from_secs(2);

/// A gateway with a viewer that watches the test pattern meanwhile.
struct World {
    gateway: Gateway,
    runtime: tokio::runtime::Runtime,
    seen: Arc<Mutex<Seen>>,
    memory: u64,
    began: Instant,
}

/// What the viewer got.
#[derive(Debug)]
struct Seen {
    pictures: u64,
    keyframes: u64,
    last: Instant,
    longest_gap: Duration,
    closed: Option<u16>,
}

impl World {
    fn new() -> Self {
        let gateway = Gateway::with_test_pattern();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let ticket = gateway.open("test-pattern").ticket;
        let mut viewer =
            runtime.block_on(Socket::attach(gateway.http(), &ticket)).expect("it can be watched");
        runtime.block_on(viewer.packet());
        let began = Instant::now();
        let (pictures, keyframes, longest_gap) = (0, 0, Duration::ZERO);
        let seen = Seen { pictures, keyframes, last: began, longest_gap, closed: None };
        let seen = Arc::new(Mutex::new(seen));
        let shared = Arc::clone(&seen);
        runtime.spawn(async move {
            while let Some(event) = viewer.next_within(Duration::from_secs(60)).await {
                let mut seen = shared.lock().unwrap();
                match event {
                    Event::Packet(header, _) => {
                        seen.pictures += 1;
                        seen.keyframes += u64::from(header["keyframe"] == true);
                        seen.longest_gap = seen.longest_gap.max(seen.last.elapsed());
                        seen.last = Instant::now();
                    }
                    Event::Control(..) => {}
                    Event::Closed(code, _) => return seen.closed = Some(code),
                }
            }
        });
        let memory = resident(&gateway);
        Self { gateway, runtime, seen, memory, began }
    }

    /// The viewer got all there was, and the gateway is what it was.
    fn assert_untouched(mut self) {
        let lasted = self.began.elapsed();
        let before = self.seen.lock().unwrap().pictures;
        wait_until("the viewer gets pictures", Duration::from_secs(5), || {
            self.seen.lock().unwrap().pictures > before + 10
        });
        let memory = resident(&self.gateway);
        let seen = self.seen.lock().unwrap();
        measured(format_args!("{lasted:?}: {seen:?}; {} kB became {memory} kB", self.memory));
        assert_eq!(seen.closed, None);
        assert!(seen.longest_gap < GAP, "{seen:?}");
        assert!(seen.keyframes <= 2 + 2 * lasted.as_secs(), "{seen:?} in {lasted:?}");
        assert!(memory < self.memory + GROWTH_KB, "{} kB became {memory} kB", self.memory);
        assert!(self.gateway.is_alive());
        assert!(!self.gateway.log().contains("panicked"), "it panicked");
    }

    fn post(&self, offer: &str) -> Answer {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("Authorization", &*bearer), ("Content-Type", "application/sdp")];
        let path = "/whep?display=test-pattern";
        Request { method: "POST", path, headers: &headers, body: offer.as_bytes() }
            .send(self.gateway.http())
            .unwrap()
    }

    /// A client of `hostile.py`.
    fn hostile(&self, what: &str) -> Script {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let python = root.join("../target/venv-aiortc/bin/python");
        assert!(python.exists(), "aiortc is missing: run `scripts/setup test`");
        let endpoint = format!("http://{}/whep?display=test-pattern", self.gateway.http());
        let mut command = Command::new(python);
        command.arg(root.join("e2e/hostile.py")).args([what, &endpoint, TOKEN]);
        Script::spawn(command)
    }

    /// The gateway's UDP port for WebRTC or QUIC.
    fn udp(&self, name: &str) -> SocketAddr {
        self.gateway.endpoints()[name].as_str().unwrap().parse().unwrap()
    }

    fn health(&self) -> Duration {
        let began = Instant::now();
        let answer = self.gateway.get("/health");
        assert!(matches!(answer.status, 200 | 204), "{}", answer.status);
        began.elapsed()
    }
}

/// Memory of the gateway's own, in kB.
fn resident(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Candidates at which nobody is, a line each.
fn candidates(count: usize) -> String {
    let line = |it| {
        format!("a=candidate:{it} 1 udp {it} 127.0.{}.{} 9 typ host\r\n", it / 250, 1 + it % 250)
    };
    (0..count).map(line).collect()
}

#[test]
fn offers_with_a_thousand_candidates() {
    let world = World::new();
    for _ in 0..50 {
        let answer = world.post(&(offer("H264") + &candidates(1_000)));
        assert_eq!(answer.status, 201, "{}", answer.text());
        let resource = &answer.headers["location"];
        let fragment = format!(
            "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901\r\nm=video 9 RTP/AVP 0\r\n\
             a=mid:0\r\n{}",
            candidates(200)
        );
        let headers = [("Content-Type", "application/trickle-ice-sdpfrag")];
        let request = Request {
            method: "PATCH",
            path: resource,
            headers: &headers,
            body: fragment.as_bytes(),
        };
        assert_eq!(request.send(world.gateway.http()).unwrap().status, 204);
    }
    world.assert_untouched();
}

#[test]
fn a_viewer_that_asks_for_keyframes_all_the_time() {
    let world = World::new();
    let said = world.hostile("pli").hear();
    assert!(said["sent"].as_u64().unwrap() > 200, "{said}");
    world.assert_untouched();
}

#[test]
fn a_viewer_that_connects_and_never_begins_dtls_is_given_up_with_the_cause() {
    let world = World::new();
    let mut client = world.hostile("no_dtls");
    assert_eq!(client.hear()["connected"], true);
    let said = client.hear();
    assert_eq!(said["cause"], "dtls_failed", "{said}");
    world.assert_untouched();
}

#[test]
fn floods_of_ice_checks_with_wrong_names_wrong_signatures_and_right_ones() {
    let world = World::new();
    let said = world.hostile("checks").hear();
    assert_eq!((&said["sent"], &said["deleted"]), (&json!(30_000), &json!(200)));
    world.assert_untouched();
}

/// What comes to the media ports and is nothing, or the half of something.
#[test]
fn floods_of_datagrams_that_are_empty_cut_short_too_long_or_noise() {
    let world = World::new();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut noise = 1_u64;
    let mut next = || {
        // xorshift: the same flood each time.
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise
    };
    for round in 0..10_000_usize {
        let length = [0, 1, 19, 20, 60, 1_200, 1_500, 9_000, 65_507][round % 9];
        let mut datagram: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        // As STUN, DTLS, RTP and QUIC begin (RFC 7983, RFC 9000 §17.2).
        if let Some(first) = datagram.first_mut() {
            *first = [0, 1, 22, 128, 0xc0, 0xff][round % 6];
        }
        for port in ["webrtc", "quic"] {
            // A full buffer on the way is what a flood gets.
            drop(socket.send_to(&datagram, world.udp(port)));
        }
    }
    world.assert_untouched();
}

/// Connections that send a byte now and then; those of requests that never end, and of bodies.
#[test]
fn slow_requests_are_let_go_of_and_hold_nobody_up() {
    let world = World::new();
    let head =
        |line: &str| format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/sdp\r\n");
    let body = format!(
        "{}Authorization: Bearer {TOKEN}\r\nContent-Length: 1000\r\n\r\nv=0",
        head("POST /whep?display=test-pattern")
    );
    let mut slow: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(world.gateway.http()).unwrap();
            stream.set_nonblocking(true).unwrap();
            let begin = match number % 4 {
                0 => String::new(),
                1 => "G".to_owned(),
                2 => head("GET /health"),
                _ => body.clone(),
            };
            stream.write_all(begin.as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut slowest = Duration::ZERO;
    wait_until("all of them are let go of", Duration::from_secs(40), || {
        slowest = slowest.max(world.health());
        // A byte more, to those that still listen.
        slow.retain_mut(|stream| {
            let trickled = stream.write(b"x");
            let mut answer = [0; 1024];
            let ended = match stream.read(&mut answer) {
                Ok(read) => read == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
            !ended && trickled.is_ok()
        });
        std::thread::sleep(Duration::from_millis(250)); // the pace of the drip
        slow.is_empty()
    });
    measured(format_args!("the slowest answer to another took {slowest:?}"));
    assert!(slowest < Duration::from_secs(2), "others waited {slowest:?}");
    world.assert_untouched();
}

#[test]
fn a_quic_client_with_a_stale_ticket_is_refused_and_told_why() {
    let world = World::new();
    let opened = world.gateway.open("");
    world.gateway.close(&opened.media_session_id);
    let quic = opened.quic.as_ref().unwrap();
    let remote =
        Remote { address: world.udp("quic"), certificates: vec![quic.certificate_sha256.clone()] };
    let refused = world.runtime.block_on(async {
        let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut refused = Vec::new();
        for _ in 0..20 {
            let ticket = Redacted::new(opened.ticket.clone());
            // QUIC itself is open to all; the ticket is the first thing that is said on it.
            refused.push(match client.connect(&remote, &ticket, Video::Streams).await {
                Ok(mut connection) => loop {
                    if let Received::Closed(error) = connection.recv().await {
                        break error;
                    }
                },
                Err(error) => error,
            });
        }
        refused
    });
    for error in refused {
        measured(format_args!("{error}"));
        let stale = error.kind() == Kind::Unauthenticated
            || matches!(error.cause(), Some(Cause::TicketExpired | Cause::SessionClosed));
        assert!(stale, "{error:?}");
    }
    world.assert_untouched();
}

/// A client that completes the handshake and then says nothing, or half a word, is let go, and told by which code.
#[test]
fn a_quic_client_that_never_speaks_after_its_handshake_is_closed() {
    /// How many at once; a server takes in a hundred without a ticket.
    const SILENT: usize = 40;
    let world = World::new();
    let address = world.udp("quic");
    let began = Instant::now();
    let codes = world.runtime.block_on(async {
        let mut config = silent_client();
        // Only our own patience, or the server's: not an idle connection's end.
        let mut transport = quinn::TransportConfig::default();
        transport.keep_alive_interval(Some(Duration::from_secs(1)));
        config.transport_config(Arc::new(transport));
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut silent = tokio::task::JoinSet::new();
        for index in 0..SILENT {
            let connecting = endpoint.connect_with(config.clone(), address, "any.name").unwrap();
            silent.spawn(async move {
                let connection = connecting.await.unwrap();
                let mut control = None;
                if index % 2 == 0 {
                    let (mut send, receive) = connection.open_bi().await.unwrap();
                    send.write_all(&[0, 0]).await.unwrap();
                    control = Some((send, receive));
                }
                let closed = tokio::time::timeout(Duration::from_secs(60), connection.closed());
                let closed = closed.await.expect("it stays open");
                drop(control);
                match closed {
                    quinn::ConnectionError::ApplicationClosed(close) => {
                        close.error_code.into_inner()
                    }
                    other => panic!("{other}"),
                }
            });
        }
        silent.join_all().await
    });
    measured(format_args!("{} silent clients were closed in {:?}", codes.len(), began.elapsed()));
    assert_eq!(codes, [0x401; SILENT]);
    world.assert_untouched();
}

/// Speaks the media protocol's name and takes any certificate.
fn silent_client() -> quinn::ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec!["rcdp/2".into()];
    let tls = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    quinn::ClientConfig::new(Arc::new(tls))
}

#[derive(Debug)]
struct Anybody(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A socket that is open and answers nothing: no ping, no close. It is let go after a minute of that.
#[test]
fn a_socket_that_never_says_a_word_is_closed() {
    let world = World::new();
    let opened = world.gateway.open("test-pattern");
    let address = world.gateway.http();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "GET /media?ticket={} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        opened.ticket
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    // It reads, so that nothing but its silence is held against it.
    let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
    let ended = loop {
        match stream.read(&mut buffer) {
            Ok(0) => break true,
            Ok(length) => read += length,
            Err(error) => break error.kind() == ErrorKind::ConnectionReset,
        }
    };
    measured(format_args!("{read} bytes, closed: {ended}"));
    assert!(ended && read > 10_000, "{read} bytes, closed: {ended}");
    world.assert_untouched();
}
