//! The HTTP of a player: an offer posted, a resource deleted (RFC 9725, draft-ietf-wish-whep-04).

use std::net::SocketAddr;

use axum::body::Body;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use spaceport_types::{Error, Kind, Redacted, Result};
use url::Url;

use super::super::exchange::{self, request};
use crate::problem;

/// A connection to an endpoint.
pub(super) struct Connection {
    url: Url,
    connection: exchange::Connection,
}

/// What was created by a `POST`.
pub(super) struct Resource {
    url: Option<Url>,
}

impl Connection {
    pub(super) async fn to(url: &str) -> Result<Self> {
        let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.ok_or_else(|| {
            Error::new(Kind::InvalidArgument, "this is no address of a WHEP endpoint")
                .hint("Give an address such as `http://10.0.0.7:3211/whep`")
        })?;
        let connection = exchange::Connection::to(&url).await?;
        Ok(Self { url, connection })
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.connection.local()
    }

    pub(super) fn remote(&self) -> SocketAddr {
        self.connection.remote()
    }

    /// Posts an offer; returns the answer and what it created.
    pub(super) async fn post(
        &mut self,
        offer: String,
        ticket: &Redacted<String>,
    ) -> Result<(String, Resource)> {
        let request = request(Method::POST, &self.url, Some(ticket))?
            .header(CONTENT_TYPE, "application/sdp")
            .body(Body::from(offer));
        let reply = self.connection.ask(request).await?;
        if reply.status != StatusCode::CREATED {
            return Err(problem::read(reply.status.as_u16(), &reply.body));
        }
        let url = reply.location(&self.url);
        let answer = String::from_utf8(reply.body.to_vec())
            .map_err(|_| Error::new(Kind::Json, "the server's answer is no text"))?;
        Ok((answer, Resource { url }))
    }
}

impl Resource {
    /// Ends the session at the server.
    pub(super) async fn delete(self) -> Result<()> {
        let Some(url) = self.url else { return Ok(()) };
        let mut connection = exchange::Connection::to(&url).await?;
        let request = request(Method::DELETE, &url, None)?.body(Body::empty());
        connection.ask(request).await.map(drop)
    }
}
