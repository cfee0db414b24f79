//! The local consent page: where a person with a one-time link sees what would move, and answers.
//!
//! Only this machine can ask. The link's secret comes in a header from the page's fragment, so it is
//! in no address that a server or a browser's history keeps; the Space token opens nothing here, so
//! an agent that has it cannot answer for itself.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use http::header::{CACHE_CONTROL, HOST};
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use spaceport_teleport::consent::Request as Asked;
use spaceport_transport::{bearer, body};
use spaceport_types::{Error, Kind, Result};

use crate::http::problem;
use crate::service::Service;

/// The largest body that is read.
const MAX_BODY: usize = 4 << 10;

/// What the page asks. The page itself is among the viewer's files.
pub(crate) fn routes(service: Service) -> Router {
    Router::new()
        .route("/consent/request", post(show))
        .route("/consent/answer", post(answer))
        .layer(middleware::from_fn(only_here))
        .with_state(service)
}

/// Lets this machine's own browser through: by its address, and by the name it used, or a page
/// elsewhere could reach here by a name of its own that leads to this machine.
async fn only_here(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let near = peer.is_some_and(|ConnectInfo(peer)| peer.ip().to_canonical().is_loopback());
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|it| it.as_str()));
    if near && host.is_some_and(is_loopback) {
        return next.run(request).await;
    }
    problem(
        &Error::new(Kind::PermissionDenied, "consent is given on the machine itself")
            .hint("Open the link there, or run `spaceport teleport approve` there"),
    )
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

/// A request, and what a person compares of the destination's key.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    request: Asked,
    fingerprint: String,
}

#[derive(Deserialize)]
struct Decision {
    approve: bool,
}

async fn show(State(service): State<Service>, headers: HeaderMap) -> Response {
    let asked = match secret(&headers) {
        Ok(secret) => service.consent_request(secret).await,
        Err(error) => Err(error),
    };
    respond(asked)
}

async fn answer(State(service): State<Service>, headers: HeaderMap, body: Body) -> Response {
    let body = match body::read(body, MAX_BODY).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let decided = async {
        let decision: Decision = serde_json::from_slice(&body).map_err(|error| {
            Error::new(Kind::InvalidArgument, "the answer is not the JSON it should be")
                .source(error)
        })?;
        service.answer_request(secret(&headers)?, decision.approve).await
    };
    respond(decided.await)
}

fn secret(headers: &HeaderMap) -> Result<String> {
    let secret = bearer(headers, "authorization");
    secret.map(str::to_owned).ok_or_else(|| {
        Error::new(Kind::Unauthenticated, "the page was opened without a link")
            .hint("Run `spaceport teleport approve --page ID` in a terminal")
    })
}

fn respond(asked: Result<Asked>) -> Response {
    match asked {
        Ok(request) => {
            let fingerprint = request.terms.destination.key.fingerprint();
            let mut response = Json(Shown { request, fingerprint }).into_response();
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(error) => problem(&error.operation("consent")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "localhost:3211", "127.0.0.1:1", "[::1]:3211", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil", "10.0.0.1", ""]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
