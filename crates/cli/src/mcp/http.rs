//! MCP over streamable HTTP: the endpoint `/mcp`.
//!
//! The SDK speaks the protocol; this says who may, and how many. A token is asked for around it. A
//! page of another origin is refused even with the token, since the protocol asks for that. `Host`
//! is not compared with anything: what protects a server whose name was rebound to it is the token,
//! which no browser adds by itself, and a Space has names that it does not know.
//!
//! A client of protocol 2026-07-28 has no session: each request stands alone. An older one gets a
//! session with `initialize`, and there is room for a number of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::header::{ALLOW, CONTENT_TYPE, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use spaceport_gateway::{problem, with_status};
use spaceport_spaces::Address;
use spaceport_types::{Error, Kind};

use super::{LONGEST_MESSAGE, Server};

/// How many clients of the older protocols can have a session. Each costs some tens of kilobytes and
/// a task; an agent's host has one for each agent.
const SESSIONS: usize = 64;

/// How long a session lasts in which nothing is said either way. A client whose session has ended is
/// told so, and starts another.
const IDLE: Duration = Duration::from_secs(30 * 60);

/// When one of the sessions may have ended, for who finds no room.
const ROOM_AFTER: Duration = Duration::from_secs(60);

/// The longest words of the SDK that are passed on: it quotes what it could not read.
const LONGEST_REASON: usize = 4 << 10;

const ONE_MESSAGE: &str = "Send one JSON-RPC message; before any other, `initialize`";

/// The endpoint, for whoever has got past the token.
pub(crate) fn routes(server: Server) -> Router {
    let mut sessions = SessionConfig::default();
    sessions.keep_alive = Some(IDLE);
    let mut manager = LocalSessionManager::default();
    manager.session_config = sessions;
    let manager = Arc::new(manager);
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_max_request_body_bytes(LONGEST_MESSAGE);
    let service =
        StreamableHttpService::new(move || Ok(server.clone()), Arc::clone(&manager), config);
    let room = Arc::new(Room { manager, opening: AtomicUsize::new(0) });
    Router::new()
        .route_service("/mcp", service)
        .layer(middleware::from_fn(in_our_words))
        .layer(middleware::from_fn_with_state(room, limit))
        .layer(middleware::from_fn(same_origin))
}

/// The address that a client reached this server at.
pub(crate) fn seen_at(request: &Parts) -> Option<Address> {
    let host = match request.headers.get(HOST) {
        Some(host) => host.to_str().ok()?,
        None => request.uri.authority()?.as_str(),
    };
    // With the port of plain HTTP where none is said, as a URL has it.
    Address::parse(&format!("http://{host}")).ok()
}

/// Refuses what a page of another origin asks for. A client that is no page has no origin.
async fn same_origin(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let Some(origin) = headers.get(ORIGIN) else { return next.run(request).await };
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()));
    let same = origin.to_str().ok().is_some_and(|origin| {
        let origin = origin.split_once("://").map(|(_, authority)| authority);
        origin.is_some() && origin == host
    });
    if same {
        return next.run(request).await;
    }
    problem(
        &Error::new(Kind::PermissionDenied, "pages of another origin may not use these tools")
            .hint("Call them from a program, which sends no `Origin`"),
    )
}

/// Says why a request is none of the protocol, as every other refusal here is said.
///
/// What the protocol itself refuses is JSON, and stays as it is.
async fn in_our_words(request: Request, next: Next) -> Response {
    let is_json = request.headers().get(CONTENT_TYPE).is_some_and(|kind| {
        kind.to_str().is_ok_and(|kind| kind.to_ascii_lowercase().starts_with("application/json"))
    });
    let response = next.run(request).await;
    let kind = response.headers().get(CONTENT_TYPE);
    let is_text = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"text/plain"));
    let status = response.status().as_u16();
    if status < 400 || !is_text {
        return response;
    }
    let (head, body) = response.into_parts();
    let reason = to_bytes(body, LONGEST_REASON).await.unwrap_or_default();
    let reason = String::from_utf8_lossy(&reason);
    let wrong = |message: &'static str| Error::new(Kind::InvalidArgument, message);
    let (status, error) = match status {
        404 => (
            404,
            Error::new(Kind::NotFound, "no MCP session has that id")
                .hint("It has ended: begin another with `initialize`"),
        ),
        405 => (405, wrong("MCP has no such method").hint("Send messages with `POST`")),
        406 => (
            406,
            wrong("the client takes no answer that MCP has")
                .hint("Send `Accept: application/json, text/event-stream`"),
        ),
        413 => (
            413,
            wrong("the message is too long")
                .with("limit", LONGEST_MESSAGE)
                .hint("Send less at once; `upload` moves files of any size"),
        ),
        // The SDK says this of JSON that it cannot read, too.
        415 if is_json => (400, wrong("the body is no message of MCP").hint(ONE_MESSAGE)),
        415 => {
            (415, wrong("a message of MCP is JSON").hint("Send `Content-Type: application/json`"))
        }
        400..500 => (status, wrong("the request is none of MCP").hint(ONE_MESSAGE)),
        _ => (status, Error::new(Kind::Internal, "the MCP server failed")),
    };
    let mut answer = with_status(&error.with("reason", reason), status);
    if let Some(allow) = head.headers.get(ALLOW) {
        answer.headers_mut().insert(ALLOW, allow.clone());
    }
    answer
}

/// Where sessions are, and how many are about to be.
struct Room {
    manager: Arc<LocalSessionManager>,
    opening: AtomicUsize,
}

/// Counts a session that may come to be, until it has or has not.
struct Opening<'a>(&'a AtomicUsize);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn limit(State(room): State<Arc<Room>>, request: Request, next: Next) -> Response {
    if !opens_session(request.method(), request.headers()) {
        return next.run(request).await;
    }
    // Counted before the look: two that open at once see each other.
    let opening = 1 + room.opening.fetch_add(1, Ordering::AcqRel);
    let _opening = Opening(&room.opening);
    let open = room.manager.sessions.read().await.len();
    if open + opening > SESSIONS {
        return problem(
            &Error::new(Kind::LimitExceeded, format!("{SESSIONS} MCP sessions are open"))
                .with("limit", SESSIONS)
                .retry_after(ROOM_AFTER)
                .hint("End one with `DELETE`, or use protocol 2026-07-28, which needs none"),
        );
    }
    next.run(request).await
}

/// Whether a request can be the first of a session.
fn opens_session(method: &Method, headers: &HeaderMap) -> bool {
    let version = headers.get("mcp-protocol-version").and_then(|version| version.to_str().ok());
    method == Method::POST
        && !headers.contains_key("mcp-session-id")
        // Versions are dates.
        && version.is_none_or(|version| version < "2026-07-28")
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::StatusCode;
    use spaceport_spaces::{Registry, Spaces};
    use tokio::time::sleep;
    use tower::ServiceExt as _;

    use super::super::{Call, Consent, User};
    use super::*;
    use crate::teleport::args::Kept;

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{
        "protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"0"}}}"#;
    const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    const PING: &str = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;

    async fn ask(routes: &Router, session: Option<&str>, body: &'static str) -> Response {
        let request = Request::post("/mcp")
            .header(HOST, "box:3211")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        let request = match session {
            Some(session) => request.header("mcp-session-id", session),
            None => request,
        };
        routes.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_in_which_nothing_is_said_ends() {
        let spaces = Spaces::new(Registry::new("/nowhere"));
        let user = User { spaces, kept: Kept { state_dir: None }, call: Call::default() };
        let routes = routes(Server::beside(user, Consent::Terminal));
        let opened = ask(&routes, None, INITIALIZE).await;
        let id = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let say = async |body| ask(&routes, Some(&id), body).await.status();
        assert_eq!(say(INITIALIZED).await, StatusCode::ACCEPTED);
        for _ in 0..3 {
            sleep(IDLE * 2 / 3).await;
            assert_eq!(say(PING).await, StatusCode::OK);
        }
        sleep(IDLE + Duration::from_secs(1)).await;
        assert_eq!(say(PING).await, StatusCode::NOT_FOUND);
    }
}
