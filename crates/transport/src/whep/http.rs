//! The HTTP side of WHEP: draft-ietf-wish-whep-04 and what it takes over from RFC 9725.
//!
//! | request | answer |
//! |---|---|
//! | `POST /whep`, an SDP offer | 201, the answer, `Location`, `ETag` |
//! | `PATCH /whep/{resource}`, candidates | 204 |
//! | `PATCH /whep/{resource}`, an ICE restart | 200, a fragment, a new `ETag` |
//! | `DELETE /whep/{resource}` | 200 |
//! | `GET`, `HEAD`, `OPTIONS` | whether it is there, and what it takes |
//!
//! A resource's name has 128 random bits and is the right to it: players send neither token nor
//! ticket with `PATCH` and `DELETE`. Leniency beyond the draft: `If-Match` may be missing or `*`.
//! Pages of any origin may use it; what protects it is the token, which no browser adds by itself.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{ConnectInfo, Path, Request, State as Extract};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::middleware::map_response;
use axum::routing::{MethodFilter, on};
use spaceport_session::{Attach, Carrier, Sessions};
use spaceport_types::{Cause, Codec, Error, Kind, Result, SessionId};

use super::offer::{self, MAX_OFFER};
use super::{Endpoint, Patched, problem};

/// Decides who may watch what. The gateway implements it.
pub trait Gate: Send + Sync + 'static {
    /// Judges a request to watch.
    ///
    /// # Errors
    ///
    /// What the viewer is told: `unauthenticated`, `stream` with cause `ticket_expired` or
    /// `session_closed`, and so on.
    fn authorize(&self, call: &Call<'_>) -> Result<Grant>;
}

/// A request, as far as a [`Gate`] needs it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Call<'a> {
    /// The method; so far always `POST`.
    pub method: &'a Method,
    /// The headers; a token is in `Authorization`.
    pub headers: &'a HeaderMap,
    /// The query, still encoded; a ticket may be there.
    pub query: Option<&'a str>,
    /// Where it came from, if the server says so.
    pub remote: Option<SocketAddr>,
}

/// What a [`Gate`] lets a viewer do.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The session it may watch.
    pub session: SessionId,
    /// The codecs this machine can encode for it.
    pub codecs: Vec<Codec>,
}

/// What the routes need.
#[derive(Clone)]
pub struct State {
    endpoint: Endpoint,
    sessions: Sessions,
    gate: Arc<dyn Gate>,
}

impl State {
    /// Serves `sessions` over `endpoint` to whom `gate` lets in.
    pub fn new(endpoint: Endpoint, sessions: Sessions, gate: Arc<dyn Gate>) -> Self {
        Self { endpoint, sessions, gate }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// `/whep` and `/whep/{resource}`. Serve it with connection info, so that viewers on the same
/// machine are told apart from others.
pub fn router(state: State) -> Router {
    let endpoint = on(MethodFilter::POST, post)
        .on(MethodFilter::GET, probe)
        .on(MethodFilter::HEAD, probe)
        .on(MethodFilter::OPTIONS, endpoint_options)
        .fallback(endpoint_other);
    let resource = on(MethodFilter::PATCH, patch)
        .on(MethodFilter::DELETE, delete)
        .on(MethodFilter::GET, get)
        .on(MethodFilter::HEAD, get)
        .on(MethodFilter::OPTIONS, resource_options)
        .fallback(resource_other);
    Router::new()
        .route("/whep", endpoint)
        .route("/whep/{resource}", resource)
        .layer(map_response(cross_origin))
        .with_state(state)
}

async fn post(Extract(state): Extract<State>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let remote = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    let call =
        Call { method: &parts.method, headers: &parts.headers, query: parts.uri.query(), remote };
    let grant = match state.gate.authorize(&call) {
        Ok(grant) => grant,
        Err(error) => return problem::response(&error),
    };
    if !has_type(&parts.headers, SDP) {
        return accepting(wrong_type(SDP), ACCEPT_POST, SDP);
    }
    let body = match read(body, MAX_OFFER).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    match watch(&state, &grant, &body, remote) {
        Ok(accepted) => {
            let location =
                format!("{}/{}", parts.uri.path().trim_end_matches('/'), accepted.resource);
            let mut response = Response::new(Body::from(accepted.answer));
            *response.status_mut() = StatusCode::CREATED;
            set(&mut response, header::CONTENT_TYPE, SDP);
            set(&mut response, header::LOCATION, &location);
            set(&mut response, header::ETAG, &accepted.etag);
            set(&mut response, ACCEPT_PATCH, FRAGMENT);
            set(&mut response, header::CACHE_CONTROL, "no-store");
            response
        }
        Err(error) => problem::response(&error),
    }
}

/// Attaches a viewer with the best codec that both sides have.
fn watch(
    state: &State,
    grant: &Grant,
    body: &[u8],
    remote: Option<SocketAddr>,
) -> Result<super::Accepted> {
    let sdp = std::str::from_utf8(body)
        .map_err(|_| Error::new(Kind::InvalidArgument, "the offer is not UTF-8"))?;
    let offer = offer::inspect(sdp)?;
    let mut unavailable = None;
    for choice in offer.choices().filter(|choice| grant.codecs.contains(&choice.codec())) {
        let attach = Attach { codec: choice.codec(), carrier: Carrier::Peer };
        let subscriber = match state.sessions.attach(&grant.session, attach) {
            Ok(subscriber) => subscriber,
            // Another codec's encoder may work.
            Err(error) if error.cause() == Some(Cause::CodecUnavailable) => {
                unavailable = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let remote = remote.map(|remote| remote.ip());
        if let Some(accepted) = state.endpoint.accept(&offer, choice, subscriber, remote)? {
            return Ok(accepted);
        }
    }
    Err(unavailable.unwrap_or_else(|| no_codec(&offer, &grant.codecs)))
}

/// Why an offer is not answered, when no codec fits.
fn no_codec(offer: &offer::Offer, available: &[Codec]) -> Error {
    let names = |codecs: Vec<Codec>| {
        let mut names: Vec<_> = codecs.into_iter().map(Codec::name).collect();
        names.dedup();
        names.join(", ")
    };
    let can = names(available.to_vec());
    if can.is_empty() {
        return Error::because(Cause::CodecUnavailable, "this machine has no video encoder")
            .hint("Run `spaceport doctor` on it");
    }
    let offered = names(offer.choices().map(offer::Choice::codec).collect());
    Error::because(Cause::NoDecoder, "the offer has no video codec that this machine can encode")
        .with("available", can)
        .with("offered", offered)
        .hint("Offer to receive H.264 (packetization mode 1) or VP8, or watch over WebSocket")
}

async fn patch(
    Extract(state): Extract<State>,
    Path(resource): Path<String>,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    if !has_type(&parts.headers, FRAGMENT) {
        return accepting(wrong_type(FRAGMENT), ACCEPT_PATCH, FRAGMENT);
    }
    let body = match read(body, MAX_FRAGMENT).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    let fragment = std::str::from_utf8(&body)
        .map_err(|_| Error::new(Kind::InvalidArgument, "the fragment is not UTF-8"))
        .and_then(offer::fragment);
    let if_match = parts.headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok());
    let patched = match fragment {
        Ok(fragment) => state.endpoint.patch(&resource, if_match, fragment).await,
        Err(error) => Err(error),
    };
    match patched {
        Ok(Patched::Candidates) => empty(StatusCode::NO_CONTENT),
        Ok(Patched::Restarted { etag, fragment }) => {
            let mut response = Response::new(Body::from(fragment));
            set(&mut response, header::CONTENT_TYPE, FRAGMENT);
            set(&mut response, header::ETAG, &etag);
            set(&mut response, header::CACHE_CONTROL, "no-store");
            response
        }
        Err(error) => problem::response(&error),
    }
}

async fn delete(Extract(state): Extract<State>, Path(resource): Path<String>) -> Response<Body> {
    match state.endpoint.remove(&resource) {
        Ok(()) => empty(StatusCode::OK),
        Err(error) => problem::response(&error),
    }
}

/// 204 while the stream runs, then for a while the reason why it ended.
async fn get(Extract(state): Extract<State>, Path(resource): Path<String>) -> Response<Body> {
    match state.endpoint.check(&resource) {
        Ok(()) => empty(StatusCode::NO_CONTENT),
        Err(error) => problem::response(&error),
    }
}

/// Tells that this is a WHEP endpoint, without saying anything about what it has to show.
async fn probe(method: Method) -> Response<Body> {
    if method == Method::HEAD {
        let mut response = empty(StatusCode::OK);
        set(&mut response, header::CONTENT_TYPE, SDP);
        response
    } else {
        accepting(empty(StatusCode::NO_CONTENT), ACCEPT_POST, SDP)
    }
}

async fn endpoint_options() -> Response<Body> {
    accepting(empty(StatusCode::NO_CONTENT), ACCEPT_POST, SDP)
}

async fn resource_options() -> Response<Body> {
    accepting(empty(StatusCode::NO_CONTENT), ACCEPT_PATCH, FRAGMENT)
}

async fn endpoint_other(method: Method, uri: Uri) -> Response<Body> {
    not_allowed(&method, &uri, "GET, HEAD, OPTIONS, POST")
}

async fn resource_other(method: Method, uri: Uri) -> Response<Body> {
    not_allowed(&method, &uri, "DELETE, GET, HEAD, OPTIONS, PATCH")
}

fn not_allowed(method: &Method, uri: &Uri, allowed: &'static str) -> Response<Body> {
    let place =
        if uri.path().trim_end_matches('/').ends_with("whep") { "endpoint" } else { "resource" };
    let error =
        Error::new(Kind::InvalidArgument, format!("a WHEP {place} does not take `{method}`"))
            .with("allowed", allowed);
    let mut response = problem::with_status(&error, 405);
    set(&mut response, header::ALLOW, allowed);
    response
}

/// Reads a whole body of at most `max` bytes.
async fn read(body: Body, max: usize) -> Result<Bytes, Response<Body>> {
    to_bytes(body, max).await.map_err(|error| {
        // The other reason a body ends early is a client that is gone, and reads no answer.
        let error = Error::new(Kind::InvalidArgument, "the body is too large")
            .with("limit", max)
            .source(error.to_string());
        problem::with_status(&error, 413)
    })
}

fn wrong_type(expected: &'static str) -> Response<Body> {
    let error = Error::new(Kind::InvalidArgument, "the body has another content type")
        .with("expected", expected)
        .hint(format!("Send it with `Content-Type: {expected}`"));
    problem::with_status(&error, 415)
}

/// Whether the content type is `expected`, whatever its parameters.
fn has_type(headers: &HeaderMap, expected: &str) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(expected))
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

fn accepting(mut response: Response<Body>, name: HeaderName, value: &str) -> Response<Body> {
    set(&mut response, name, value);
    response
}

fn set(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// Lets pages of other origins read every answer, errors and preflights alike.
async fn cross_origin(mut response: Response<Body>) -> Response<Body> {
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, PATCH, DELETE, OPTIONS"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "Authorization, Content-Type, If-Match"),
        (
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            "Location, Link, ETag, Accept-Patch, Accept-Post, WWW-Authenticate, Retry-After",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "86400"),
    ] {
        set(&mut response, name, value);
    }
    response
}

const SDP: &str = "application/sdp";
const FRAGMENT: &str = "application/trickle-ice-sdpfrag";
const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");
const ACCEPT_PATCH: HeaderName = HeaderName::from_static("accept-patch");

/// Bytes of a fragment at most; a candidate line has about a hundred.
const MAX_FRAGMENT: usize = 16 << 10;
