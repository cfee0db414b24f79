//! How QUIC is spoken here: congestion control, windows, time-outs.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, ConnectionId, ConnectionIdGenerator, EndpointConfig, IdleTimeout, ServerConfig,
    TransportConfig, VarInt,
};
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::server::ResolvesServerCert;
use sha2::{Digest as _, Sha256};
use spaceport_types::{Error, Kind, Result};

use super::congestion;
use super::link::{Links, Windows};

/// How long a peer may be silent before it counts as gone. A train's tunnel is shorter, and a viewer that
/// is away for longer wants a fresh start.
const IDLE: Duration = Duration::from_secs(20);

/// How often a still connection shows that it lives. Three may be lost; and no NAT forgets sooner.
const KEEP_ALIVE: Duration = Duration::from_secs(6);

/// The same for a link: a server that was started again can say so only in answer to something.
const LINK_KEEP_ALIVE: Duration = Duration::from_secs(1);

/// How long the other end of a link may be silent. Each of its answers is asked for several times by then; a
/// machine whose node has died is to be at the next one soon, and one that was too hasty is back at once.
const LINK_IDLE: Duration = Duration::from_secs(6);

/// Bytes sent and not acknowledged, of one viewer. A gigabit over 60 ms, and what a stalled viewer costs.
const SEND_WINDOW: u64 = 8 << 20;

/// Bytes that a client may send on one stream, and on all, before anyone has read them. Control messages
/// have 64 KiB at most.
const CLIENT_STREAM: u32 = 128 << 10;
const CLIENT_ALL: u32 = 256 << 10;

/// Streams that a client may have open. HTTP/3 takes three or four of one direction, and the request and
/// the control stream are two of both.
const CLIENT_UNI: u32 = 8;
const CLIENT_BIDI: u32 = 4;

/// Bytes of datagrams that wait to be sent. More would be older than the picture after it: at 4 Mbit/s
/// these are an eighth of a second.
const DATAGRAMS_OUT: usize = 64 << 10;

/// Bytes of datagrams from a server that wait to be read: a large keyframe, which comes all at once.
const DATAGRAMS_IN: usize = 4 << 20;

/// Bytes that a server may send before they are read: on one stream the largest packet has to fit the
/// window only piece by piece, so this is a matter of a fast link and not of size.
const SERVER_STREAM: u32 = 4 << 20;
const SERVER_ALL: u32 = 16 << 20;

/// Frames that may be on their way at one time.
const SERVER_UNI: u32 = 256;

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .congestion_controller_factory(Arc::new(congestion::Config::default()))
        .max_idle_timeout(IdleTimeout::try_from(IDLE).ok())
        .keep_alive_interval(Some(KEEP_ALIVE))
        .send_window(SEND_WINDOW);
    config
}

/// What an endpoint is that serves. `secret` is the same after a restart: whoever was connected to the process
/// before is told at once that it is gone (RFC 9000 §10.3), and does not wait for its silence to last.
pub(super) fn endpoint(secret: &[u8]) -> Result<EndpointConfig> {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
    let mut config = EndpointConfig::new(Arc::new(key));
    let ids = Ids::new()?;
    config.cid_generator(move || Box::new(ids.clone())).min_reset_interval(RESET_INTERVAL);
    Ok(config)
}

/// The shortest time between two that are told so. A thousand come back within a second or two.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// Makes ids of connections. None is known for a stranger's by itself: those of the process before are not, either.
#[derive(Clone)]
struct Ids {
    key: [u8; 32],
    count: u64,
}

impl Ids {
    const LENGTH: usize = 8;

    fn new() -> Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|error| {
            Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
        })?;
        Ok(Self { key, count: 0 })
    }
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        self.count += 1;
        let hash = Sha256::new_with_prefix(self.key).chain_update(self.count.to_be_bytes());
        ConnectionId::new(&hash.finalize()[..Self::LENGTH])
    }

    fn cid_len(&self) -> usize {
        Self::LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// A server of native viewers and of browsers, and of links where it takes them.
pub(super) fn server(
    identity: Arc<dyn ResolvesServerCert>,
    links: Option<&Links>,
) -> Result<ServerConfig> {
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_no_client_auth()
        .with_cert_resolver(identity);
    tls.alpn_protocols = vec![web_transport_quinn::ALPN.into(), super::ALPN.into()];
    tls.alpn_protocols.extend(links.map(|links| links.alpn.into()));
    // A viewer comes once, with a ticket that is of no use to it a minute later.
    tls.send_tls13_tickets = 0;
    let tls = QuicServerConfig::try_from(tls)
        .map_err(|error| Error::new(Kind::Internal, "TLS is not fit for QUIC").source(error))?;
    let mut transport = transport();
    transport
        // What is told in the handshake holds for viewers and links alike, and a stream's cannot be made
        // wider later. A viewer does not get beyond what holds for all of its streams.
        .stream_receive_window(links.map_or(CLIENT_STREAM, |links| links.windows.stream).into())
        .receive_window(CLIENT_ALL.into())
        .max_concurrent_uni_streams(CLIENT_UNI.into())
        .max_concurrent_bidi_streams(CLIENT_BIDI.into())
        .datagram_receive_buffer_size(Some(CLIENT_STREAM as usize))
        .datagram_send_buffer_size(DATAGRAMS_OUT);
    let mut config = ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// A viewer that speaks `alpn`.
pub(super) fn client(verifier: Arc<dyn ServerCertVerifier>, alpn: &str) -> Result<ClientConfig> {
    let mut transport = transport();
    transport
        .stream_receive_window(SERVER_STREAM.into())
        .receive_window(SERVER_ALL.into())
        .max_concurrent_uni_streams(SERVER_UNI.into())
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(Some(DATAGRAMS_IN));
    speaking(verifier, alpn, transport)
}

/// The end of a link that dials.
pub(super) fn link(
    verifier: Arc<dyn ServerCertVerifier>,
    alpn: &str,
    windows: Windows,
) -> Result<ClientConfig> {
    let mut transport = transport();
    transport
        .stream_receive_window(windows.stream.into())
        .receive_window(windows.all.into())
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .max_concurrent_bidi_streams(windows.streams.into())
        .keep_alive_interval(Some(LINK_KEEP_ALIVE))
        .max_idle_timeout(IdleTimeout::try_from(LINK_IDLE).ok())
        .datagram_receive_buffer_size(None);
    speaking(verifier, alpn, transport)
}

fn speaking(
    verifier: Arc<dyn ServerCertVerifier>,
    alpn: &str,
    transport: TransportConfig,
) -> Result<ClientConfig> {
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.into()];
    let tls = QuicClientConfig::try_from(tls)
        .map_err(|error| Error::new(Kind::Internal, "TLS is not fit for QUIC").source(error))?;
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

fn unusable(error: rustls::Error) -> Error {
    Error::new(Kind::Internal, "TLS cannot be set up").source(error)
}
