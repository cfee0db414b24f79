//! From an address to a tunnel: QUIC where that gets through, a WebSocket where it does not.
//!
//! QUIC has a head start. Both are tried from then on, and whichever is there first is taken: a network that
//! drops UDP without a word costs that head start and no more.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use spaceport_transport::quic::{Client, Remote};
use spaceport_transport::tls;
use spaceport_transport::websocket::link;
use spaceport_types::{Error, Kind, Result};
use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use super::{MAX_REQUESTS, Origin};
use crate::api::{CONNECT, INFO, Info, QuicPort};
use crate::tunnel::{ALPN, Carrier, Limits, Side, Tunnel};

/// How much earlier QUIC is tried.
const HEAD_START: Duration = Duration::from_millis(400);

/// How long the relay may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer to that.
const MAX_INFO: usize = 64 << 10;

/// A tunnel, and what it needs to be there.
pub(crate) struct Dialled {
    pub(crate) tunnel: Tunnel,
    /// The socket of a QUIC connection.
    _client: Option<Client>,
}

/// Connects to a relay.
pub(super) async fn dial(relay: &Origin, limits: Limits) -> Result<Dialled> {
    let info = info(relay).await?;
    let Some(port) = info.quic.filter(|quic| quic.alpn == ALPN) else {
        return websocket(relay, limits).await;
    };
    let by_quic = quic(relay, &port, limits);
    let by_websocket = async {
        sleep(HEAD_START).await;
        websocket(relay, limits).await
    };
    let (mut by_quic, mut by_websocket) = (std::pin::pin!(by_quic), std::pin::pin!(by_websocket));
    tokio::select! {
        dialled = &mut by_quic => match dialled {
            Ok(dialled) => Ok(dialled),
            Err(error) => {
                tracing::debug!(%error, "no QUIC");
                by_websocket.await
            }
        },
        dialled = &mut by_websocket => match dialled {
            Ok(dialled) => Ok(dialled),
            Err(error) => by_quic.await.map_err(|_| error),
        },
    }
}

/// The same by QUIC, or not at all; and to the relay called `id` alone, since another node may answer at the same
/// address.
pub(super) async fn by_quic(relay: &Origin, id: &str, limits: Limits) -> Result<Dialled> {
    let info = info(relay).await?;
    if info.relay != id {
        return Err(Error::new(Kind::Relay, "another relay answers at this address now"));
    }
    let port = info.quic.filter(|quic| quic.alpn == ALPN);
    let port =
        port.ok_or_else(|| Error::new(Kind::Relay, "the relay takes no machines by QUIC"))?;
    quic(relay, &port, limits).await
}

async fn quic(relay: &Origin, port: &QuicPort, limits: Limits) -> Result<Dialled> {
    let mut last = None;
    for address in resolve(relay, port.port).await? {
        let any: SocketAddr = if address.is_ipv4() {
            SocketAddr::from(([0, 0, 0, 0], 0))
        } else {
            SocketAddr::from(([0_u16; 8], 0))
        };
        let remote = Remote { address, certificates: port.certificates.clone() };
        let windows = limits.windows(u32::try_from(MAX_REQUESTS).unwrap_or(u32::MAX));
        let client = Client::bind(any)?;
        match client.link(&remote, ALPN, windows).await {
            Ok(link) => {
                return Ok(Dialled { tunnel: Tunnel::quic(link, limits), _client: Some(client) });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| unresolved(relay)))
}

/// The same by a WebSocket alone.
pub(crate) async fn websocket(relay: &Origin, limits: Limits) -> Result<Dialled> {
    let stream = tls::connect(relay.host(), relay.port(), relay.is_secure()).await?;
    // The scheme is not looked at any more; the host is what is said to the relay.
    let link = link::connect(stream, &format!("ws://{}{CONNECT}", relay.authority())).await?;
    let tunnel = Tunnel::over(link, Carrier::WebSocket, Side::Machine, limits);
    Ok(Dialled { tunnel, _client: None })
}

async fn resolve(relay: &Origin, port: u16) -> Result<Vec<SocketAddr>> {
    match timeout(PATIENCE, lookup_host((relay.host(), port))).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(unresolved(relay).source(error)),
        Err(_) => Err(unresolved(relay)),
    }
}

fn unresolved(relay: &Origin) -> Error {
    Error::new(Kind::Relay, format!("`{}` has no address", relay.host()))
        .hint("See that the name is right and that this machine has a network")
}

/// What the relay says of itself.
async fn info(relay: &Origin) -> Result<Info> {
    let asked = async {
        let stream = tls::connect(relay.host(), relay.port(), relay.is_secure()).await?;
        let failed = |error: hyper::Error| {
            Error::new(Kind::Relay, format!("`{relay}` did not answer")).source(error)
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let request = Request::get(INFO)
            .header(HOST, relay.authority())
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, concat!("spaceport/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())
            .map_err(|error| Error::new(Kind::Internal, "a request is none").source(error))?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_INFO).collect().await;
            Ok::<_, Error>((status, body.map(|body| body.to_bytes()).unwrap_or_default()))
        };
        tokio::pin!(connection, exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            _ = &mut connection => exchange.await,
        }
    };
    let (status, body) = match timeout(PATIENCE, asked).await {
        Ok(answer) => answer?,
        Err(_) => {
            let message = format!("`{relay}` did not answer within {PATIENCE:?}");
            return Err(Error::new(Kind::Timeout, message));
        }
    };
    let parsed = serde_json::from_slice(&body).ok().filter(|_| status == StatusCode::OK);
    parsed.ok_or_else(|| {
        Error::new(Kind::Relay, format!("`{relay}` is not a relay: it answered {status}"))
            .hint("Give the address that `spaceport relay` printed")
    })
}
