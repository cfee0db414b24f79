//! The HTTP of WebRTC clients: a request sent, its answer read whole and bounded.
//!
//! Players (WHEP) and publishers (WHIP) say the same words: an offer posted, fragments patched, a resource
//! deleted. What an answer means is theirs to judge.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use spaceport_types::{Error, Kind, Redacted, Result};
use tokio::time::timeout;
use url::{Host, Url};

use crate::tls;

/// How long a server may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer that is read; ours have a few kilobytes.
const MAX_ANSWER: usize = 64 << 10;

/// A connection for a request or two.
pub(super) struct Connection {
    place: String,
    local: SocketAddr,
    remote: SocketAddr,
    sender: SendRequest<Body>,
}

/// What a server answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Reply {
    /// Where the `Location` header leads, as seen from `from`; `None` without one that can be used.
    pub(super) fn location(&self, from: &Url) -> Option<Url> {
        let location = self.headers.get(LOCATION)?.to_str().ok()?;
        from.join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
    }
}

impl Connection {
    /// Connects to the server of `url`.
    pub(super) async fn to(url: &Url) -> Result<Self> {
        let place = place(url);
        let host = match url.host() {
            Some(Host::Domain(name)) => name.to_owned(),
            Some(Host::Ipv4(ip)) => ip.to_string(),
            Some(Host::Ipv6(ip)) => ip.to_string(),
            None => return Err(Error::new(Kind::InvalidArgument, "the address names no host")),
        };
        let port = url.port_or_known_default().unwrap_or(80);
        let stream = tls::connect(&host, port, url.scheme() == "https").await?;
        let lost = |error: std::io::Error| lost(&place, &error);
        let local = stream.tcp().local_addr().map_err(lost)?;
        let remote = stream.tcp().peer_addr().map_err(lost)?;
        let shaken = timeout(PATIENCE, handshake(TokioIo::new(stream))).await;
        let shaken = shaken.map_err(|_| silent(&place))?;
        let (sender, connection) = shaken.map_err(|error| self::lost(&place, &error))?;
        // It ends with the sender.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self { place, local, remote, sender })
    }

    /// Our address of it.
    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// The server's address.
    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Sends a request and reads the whole answer.
    pub(super) async fn ask(&mut self, request: http::Result<Request<Body>>) -> Result<Reply> {
        let place = &self.place;
        let request = request.map_err(|error| lost(place, &error))?;
        let asking = async {
            let answer = self.sender.send_request(request).await;
            let (parts, body) = answer.map_err(|error| lost(place, &error))?.into_parts();
            let body = to_bytes(Body::new(body), MAX_ANSWER).await;
            let body = body.map_err(|error| lost(place, &error))?;
            Ok(Reply { status: parts.status, headers: parts.headers, body })
        };
        timeout(PATIENCE, asking).await.map_err(|_| silent(place))?
    }
}

/// A request to what `url` names, with the secret that opens it.
pub(super) fn request(
    method: Method,
    url: &Url,
    secret: Option<&Redacted<String>>,
) -> Result<http::request::Builder> {
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let mut request = Request::builder().method(method).uri(path).header(HOST, place(url));
    if let Some(secret) = secret {
        let mut bearer: HeaderValue = format!("Bearer {}", secret.expose())
            .parse()
            .map_err(|_| Error::new(Kind::InvalidArgument, "the token cannot be sent"))?;
        bearer.set_sensitive(true);
        request = request.header(AUTHORIZATION, bearer);
    }
    Ok(request)
}

/// Host and port of an address: all of it that may be shown, for the rest may be a secret.
pub(super) fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn silent(place: &str) -> Error {
    Error::new(Kind::Timeout, format!("`{place}` did not answer within {PATIENCE:?}"))
        .with("address", place)
}

fn lost(place: &str, error: &dyn fmt::Display) -> Error {
    Error::new(Kind::Io, format!("`{place}` cannot be asked"))
        .with("address", place)
        .with("reason", error)
}
