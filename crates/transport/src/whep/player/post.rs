//! The HTTP of a player: an offer posted, a resource deleted (RFC 9725, draft-ietf-wish-whep-04).

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION};
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use spaceport_types::{Error, Kind, Redacted, Result};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::problem;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer that is read; ours have a few kilobytes.
const MAX_ANSWER: usize = 64 << 10;

/// A connection for a request or two.
pub(super) struct Connection {
    uri: Uri,
    place: String,
    local: SocketAddr,
    remote: SocketAddr,
    sender: SendRequest<Body>,
}

/// What was created by a `POST`.
pub(super) struct Resource {
    url: Option<String>,
}

impl Connection {
    pub(super) async fn to(url: &str) -> Result<Self> {
        let unusable = || {
            Error::new(Kind::InvalidArgument, "this is no address of a WHEP endpoint")
                .hint("Give an address such as `http://10.0.0.7:3211/whep`")
        };
        let uri: Uri = url.parse().map_err(|_| unusable())?;
        if uri.scheme_str() != Some("http") {
            return Err(Error::new(Kind::CapabilityMissing, "only `http` can be played here")
                .hint("Connect to the gateway itself, without a proxy that adds TLS"));
        }
        let place =
            format!("{}:{}", uri.host().ok_or_else(unusable)?, uri.port_u16().unwrap_or(80));
        let connecting = async {
            let stream = TcpStream::connect(&place).await?;
            stream.set_nodelay(true)?;
            let (local, remote) = (stream.local_addr()?, stream.peer_addr()?);
            let (sender, connection) =
                handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
            // It ends with the sender.
            tokio::spawn(async move { drop(connection.await) });
            Ok::<_, std::io::Error>((sender, local, remote))
        };
        let connected = timeout(PATIENCE, connecting).await.map_err(|_| silent(&place))?;
        let (sender, local, remote) = connected.map_err(|error| lost(&place, &error))?;
        Ok(Self { uri, place, local, remote, sender })
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Posts an offer; returns the answer and what it created.
    pub(super) async fn post(
        &mut self,
        offer: String,
        ticket: &Redacted<String>,
    ) -> Result<(String, Resource)> {
        let mut bearer: HeaderValue = format!("Bearer {}", ticket.expose())
            .parse()
            .map_err(|_| Error::new(Kind::InvalidArgument, "the ticket is none"))?;
        bearer.set_sensitive(true);
        let request = self
            .request(Method::POST)
            .header(CONTENT_TYPE, "application/sdp")
            .header(AUTHORIZATION, bearer)
            .body(Body::from(offer));
        let response = self.send(request).await?;
        let status = response.status();
        let location = response.headers().get(LOCATION).and_then(|it| it.to_str().ok());
        let url = location.map(|location| {
            // A path of the same server, or a whole address.
            if location.starts_with('/') {
                format!("http://{}{location}", self.place)
            } else {
                location.to_owned()
            }
        });
        let body = to_bytes(Body::new(response.into_body()), MAX_ANSWER);
        let body = timeout(PATIENCE, body).await.map_err(|_| silent(&self.place))?;
        let body = body.map_err(|error| lost(&self.place, &error))?;
        if status != StatusCode::CREATED {
            return Err(problem::read(status.as_u16(), &body));
        }
        let answer = String::from_utf8(body.to_vec())
            .map_err(|_| Error::new(Kind::Json, "the server's answer is no text"))?;
        Ok((answer, Resource { url }))
    }

    fn request(&self, method: Method) -> http::request::Builder {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        Request::builder().method(method).uri(path).header(HOST, &self.place)
    }

    async fn send(&mut self, request: http::Result<Request<Body>>) -> Result<Response<Incoming>> {
        let request = request.map_err(|error| lost(&self.place, &error))?;
        let answer = timeout(PATIENCE, self.sender.send_request(request)).await;
        answer.map_err(|_| silent(&self.place))?.map_err(|error| lost(&self.place, &error))
    }
}

impl Resource {
    /// Ends the session at the server.
    pub(super) async fn delete(self) -> Result<()> {
        let Some(url) = self.url else { return Ok(()) };
        let mut connection = Connection::to(&url).await?;
        let request = connection.request(Method::DELETE).body(Body::empty());
        connection.send(request).await.map(drop)
    }
}

fn silent(place: &str) -> Error {
    Error::new(Kind::Timeout, format!("`{place}` did not answer within {PATIENCE:?}"))
}

fn lost(place: &str, error: &dyn fmt::Display) -> Error {
    Error::new(Kind::Io, format!("`{place}` cannot be asked"))
        .with("address", place)
        .with("reason", error)
}
