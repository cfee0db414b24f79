//! The HTTP side of WHEP: draft-ietf-wish-whep-04 and what it takes over from RFC 9725.
//!
//! | request | answer |
//! |---|---|
//! | `POST /whep`, an SDP offer | 201, the answer, `Location`, `ETag`, `Link` to STUN and TURN servers |
//! | `PATCH /whep/{resource}`, candidates | 204 |
//! | `PATCH /whep/{resource}`, an ICE restart | 200, a fragment, a new `ETag` |
//! | `DELETE /whep/{resource}` | 200 |
//! | `GET`, `HEAD`, `OPTIONS` | whether it is there, and what it takes |
//!
//! A resource's name has 128 random bits and is the right to it: players send neither token nor
//! ticket with `PATCH` and `DELETE`. Leniency beyond the draft: `If-Match` may be missing or `*`.
//! `GET` answers 204 while the stream runs, 200 and a problem document that says why while it stands
//! still, and for a while after its end the problem that ended it.
//! `?cursor=baked` has the pointer in the picture, for players that cannot draw it.
//! Pages of any origin may use it; what protects it is the token, which no browser adds by itself.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequestParts, OriginalUri, Path, Request, State as Extract};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, header};
use axum::middleware::map_response;
use axum::routing::{MethodFilter, on};
use futures_util::future::BoxFuture;
use serde::Deserialize;
use spaceport_session::{Attach, Carrier, Cursor, Sessions};
use spaceport_types::{Cause, Codec, Error, Issue, Kind, Redacted, Result, SessionId};

use super::directory::UNKNOWN;
use super::offer::{self, MAX_OFFER};
use super::{Endpoint, Patched};
use crate::bearer;
use crate::body::read;
use crate::problem::{problem, with_status};

/// Decides who may watch what. The gateway implements it.
pub trait Gate: Send + Sync + 'static {
    /// Judges a request to watch.
    ///
    /// # Errors
    ///
    /// What the viewer is told: `unauthenticated`, `stream` with cause `ticket_expired` or
    /// `session_closed`, and so on.
    fn authorize<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Grant>>;

    /// The STUN and TURN servers for a viewer. Those with credentials are only for who may watch.
    fn ice_servers<'a>(&'a self, _call: Call<'a>) -> BoxFuture<'a, Vec<IceServer>> {
        Box::pin(std::future::ready(Vec::new()))
    }
}

/// A STUN or TURN server that a viewer may use to get here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IceServer {
    /// Its address, as browsers take it: `turn:turn.example.org:3478?transport=udp`.
    pub url: String,
    /// The user name and the credential it asks for.
    pub login: Option<(String, Redacted<String>)>,
}

impl IceServer {
    /// The `Link` that tells of it (RFC 9725 §4.6).
    fn link(&self) -> Option<HeaderValue> {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let mut link = format!("<{}>; rel=\"ice-server\"", self.url);
        if let Some((username, credential)) = &self.login {
            let (username, credential) = (quoted(username), quoted(credential.expose()));
            link += &format!(
                "; username=\"{username}\"; credential=\"{credential}\"; \
                 credential-type=\"password\""
            );
        }
        let mut value = HeaderValue::from_str(&link).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// A request, as far as a [`Gate`] needs it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Call<'a> {
    /// The method: `POST`, or `OPTIONS` from who wants to know the servers first.
    pub method: &'a Method,
    /// The path, before any part of it was taken for routing.
    pub path: &'a str,
    /// The headers; a token is in `Authorization`.
    pub headers: &'a HeaderMap,
    /// The query, still encoded; a ticket may be there.
    pub query: Option<&'a str>,
    /// Where it came from, if the server says so.
    pub remote: Option<SocketAddr>,
}

impl<'a> Call<'a> {
    /// Its token or ticket: the bearer, or `ticket` in the query for a player that sends no header.
    ///
    /// # Errors
    ///
    /// `unauthenticated` when it has none.
    pub fn secret(&self) -> Result<&'a str> {
        let bearer = bearer(self.headers, header::AUTHORIZATION.as_str());
        bearer.or_else(|| self.parameter("ticket")).ok_or_else(|| {
            Error::new(Kind::Unauthenticated, "the request carries no token or ticket")
                .hint("Send `Authorization: Bearer <token or ticket>`")
        })
    }

    /// One parameter of its query, as it stands. Tickets and display ids need no percent-encoding.
    pub fn parameter(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.query?.split('&');
        pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

/// What a [`Gate`] lets a viewer do.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Where the session is that it may watch.
    pub sessions: Sessions,
    /// The session.
    pub session: SessionId,
    /// The codecs this machine can encode for it.
    pub codecs: Vec<Codec>,
}

/// What the routes need.
#[derive(Clone)]
pub struct State {
    endpoint: Endpoint,
    gate: Arc<dyn Gate>,
}

impl State {
    /// Serves over `endpoint` whom `gate` lets in.
    pub fn new(endpoint: Endpoint, gate: Arc<dyn Gate>) -> Self {
        Self { endpoint, gate }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// `/whep` and `/whep/{resource}`. Serve it with connection info, so that viewers on the same
/// machine are told apart from others. A relay nests it at `/m/<id>`.
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
        .route("/whep", endpoint.clone())
        .route("/whep/", endpoint)
        .route("/whep/{resource}", resource)
        .layer(map_response(cross_origin))
        .with_state(state)
}

impl<'a> Call<'a> {
    fn new(parts: &'a Parts, uri: &'a Uri) -> Self {
        let remote = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        Self {
            method: &parts.method,
            path: uri.path(),
            headers: &parts.headers,
            query: uri.query(),
            remote,
        }
    }
}

async fn post(
    Extract(state): Extract<State>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let call = Call::new(&parts, &uri);
    let grant = match state.gate.authorize(call).await {
        Ok(grant) => grant,
        Err(error) => return problem(&error),
    };
    if !has_type(&parts.headers, SDP) {
        return accepting(wrong_type(SDP), ACCEPT_POST, SDP);
    }
    let body = match read(body, MAX_OFFER).await {
        Ok(body) => body,
        Err(response) => return response,
    };
    let cursor = match wanted_cursor(call.query) {
        Ok(cursor) => cursor,
        Err(error) => return problem(&error),
    };
    match watch(&state, &grant, &body, cursor, call.remote) {
        Ok(accepted) => {
            let location = format!("{}/{}", call.path.trim_end_matches('/'), accepted.resource);
            let mut response = Response::new(Body::from(accepted.answer));
            *response.status_mut() = StatusCode::CREATED;
            set(&mut response, header::CONTENT_TYPE, SDP);
            set(&mut response, header::LOCATION, &location);
            set(&mut response, header::ETAG, &accepted.etag);
            set(&mut response, ACCEPT_PATCH, FRAGMENT);
            set(&mut response, header::CACHE_CONTROL, "no-store");
            link(&mut response, &state, call).await;
            response
        }
        Err(error) => problem(&error),
    }
}

/// Tells of the servers that `call` may know.
async fn link(response: &mut Response<Body>, state: &State, call: Call<'_>) {
    for link in state.gate.ice_servers(call).await.iter().filter_map(IceServer::link) {
        response.headers_mut().append(header::LINK, link);
    }
}

/// Attaches a viewer with the best codec that both sides have.
fn watch(
    state: &State,
    grant: &Grant,
    body: &[u8],
    cursor: Cursor,
    remote: Option<SocketAddr>,
) -> Result<super::Accepted> {
    let sdp = std::str::from_utf8(body)
        .map_err(|_| Error::new(Kind::InvalidArgument, "the offer is not UTF-8"))?;
    let offer = offer::inspect(sdp)?;
    let mut unavailable = None;
    for choice in offer.choices().filter(|choice| grant.codecs.contains(&choice.codec())) {
        let attach = Attach { codec: choice.codec(), carrier: Carrier::Peer, cursor };
        let subscriber = match grant.sessions.attach(&grant.session, attach) {
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

/// Where the query wants the pointer.
fn wanted_cursor(query: Option<&str>) -> Result<Cursor> {
    let mut pairs = query.unwrap_or_default().split('&');
    match pairs.find_map(|pair| pair.strip_prefix("cursor=")) {
        None | Some("apart") => Ok(Cursor::Apart),
        Some("baked") => Ok(Cursor::Baked),
        Some(_) => {
            let limit = Some("apart, baked".to_owned());
            let issue = Issue { path: "cursor".to_owned(), constraint: "one of".into(), limit };
            Err(Error::new(Kind::InvalidArgument, "`cursor` is neither `apart` nor `baked`")
                .issue(issue)
                .hint("Use `cursor=baked` to have the pointer in the picture"))
        }
    }
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
        .hint("Offer to receive H.264 (packetization mode 1), VP8, VP9 or AV1, or watch over WebSocket")
}

/// The resource that a path names.
struct Name(String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Response<Body>;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        /// By name: there is another before it where the routes are nested.
        #[derive(Deserialize)]
        struct Named {
            resource: String,
        }
        match Path::from_request_parts(parts, state).await {
            Ok(Path(Named { resource })) => Ok(Self(resource)),
            // It is no text, so it is no name that was ever given out.
            Err(_) => Err(problem(&Error::new(Kind::NotFound, UNKNOWN))),
        }
    }
}

async fn patch(
    Extract(state): Extract<State>,
    Name(resource): Name,
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
        // RFC 9725 §4.3.1, by way of RFC 6585 §3.
        Ok(Patched::Untagged) => {
            let error = Error::new(Kind::PreconditionFailed, "a restart needs an entity tag")
                .hint("Send `If-Match` with the ETag of the last answer, or `*`");
            with_status(&error, 428)
        }
        Ok(Patched::Restarted { etag, fragment }) => {
            let mut response = Response::new(Body::from(fragment));
            set(&mut response, header::CONTENT_TYPE, FRAGMENT);
            set(&mut response, header::ETAG, &etag);
            set(&mut response, header::CACHE_CONTROL, "no-store");
            response
        }
        Err(error) => problem(&error),
    }
}

async fn delete(Extract(state): Extract<State>, Name(resource): Name) -> Response<Body> {
    match state.endpoint.remove(&resource) {
        Ok(()) => empty(StatusCode::OK),
        Err(error) => problem(&error),
    }
}

/// 204 while the stream runs, then for a while the reason why it ended. A stream that stands still
/// because there is nothing to see is there, and says why.
async fn get(Extract(state): Extract<State>, Name(resource): Name) -> Response<Body> {
    let mut response = match state.endpoint.check(&resource) {
        Ok(None) => empty(StatusCode::NO_CONTENT),
        Ok(Some(suspended)) => with_status(&suspended, 200),
        Err(error) => problem(&error),
    };
    set(&mut response, header::CACHE_CONTROL, "no-store");
    response
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

async fn endpoint_options(
    Extract(state): Extract<State>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Response<Body> {
    let (parts, _) = request.into_parts();
    let mut response = accepting(empty(StatusCode::NO_CONTENT), ACCEPT_POST, SDP);
    link(&mut response, &state, Call::new(&parts, &uri)).await;
    response
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
    let mut response = with_status(&error, 405);
    set(&mut response, header::ALLOW, allowed);
    response
}

fn wrong_type(expected: &'static str) -> Response<Body> {
    let error = Error::new(Kind::InvalidArgument, "the body has another content type")
        .with("expected", expected)
        .hint(format!("Send it with `Content-Type: {expected}`"));
    with_status(&error, 415)
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

#[cfg(test)]
mod tests {
    use axum::http::request::Builder;

    use super::super::e2e::{Server, offering};
    use super::super::offer::tests::{AUDIO, CHROMIUM, DATA, FIREFOX, browser};
    use super::*;

    fn json(server: &Server, response: Response<Body>) -> serde_json::Value {
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let status = response.status().as_u16();
        let problem: serde_json::Value = serde_json::from_str(&server.text(response)).unwrap();
        assert_eq!(problem["status"], status);
        problem
    }

    fn plain(builder: Builder) -> Request {
        builder.body(Body::empty()).unwrap()
    }

    /// A resource and its entity tag.
    fn play(server: &Server) -> (String, String) {
        let response = server.send(offering(browser(&[CHROMIUM])));
        assert_eq!(response.status(), 201);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        (header("location"), header("etag"))
    }

    fn patching(resource: &str, if_match: Option<&str>, body: &str) -> Request {
        let mut builder = Request::patch(resource).header("content-type", FRAGMENT);
        if let Some(tag) = if_match {
            builder = builder.header("if-match", tag);
        }
        builder.body(Body::from(body.to_owned())).unwrap()
    }

    const CANDIDATE: &str = "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901\r\na=mid:0\r\n\
                             a=candidate:1 1 udp 1 127.0.0.1 9 typ host\r\n";

    /// Draft §4.1: 201 with the answer, `Location` and, as the server takes PATCH, an `ETag`.
    #[test]
    fn an_offer_is_answered_with_a_resource() {
        let server = Server::start(&[Codec::H264]);
        let response = server.send(offering(browser(&[AUDIO, CHROMIUM, DATA])));
        assert_eq!(response.status(), 201);
        let headers = response.headers().clone();
        assert_eq!(headers["content-type"], "application/sdp");
        assert_eq!(headers["accept-patch"], "application/trickle-ice-sdpfrag");
        let location = headers["location"].to_str().unwrap();
        let name = location.strip_prefix("/whep/").unwrap();
        assert_eq!(name.len(), 32);
        let etag = headers["etag"].to_str().unwrap();
        assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() > 2);
        let answer = server.text(response);
        assert!(answer.starts_with("v=0\r\n") && answer.contains("m=video 9"));
        let port = server.endpoint.local_addr().port();
        assert!(answer.contains(&format!("127.0.0.1 {port} typ host")));
        assert_ne!(play(&server).0, location);
    }

    /// RFC 9725 §4.5 asks for a media type with parameters to be taken as well.
    #[test]
    fn a_content_type_is_read_leniently_and_required() {
        let server = Server::start(&[Codec::H264]);
        for (value, status) in [
            ("application/sdp; charset=utf-8", 201),
            ("Application/SDP", 201),
            ("application/json", 415),
            ("application/sdpx", 415),
        ] {
            let mut request = offering(browser(&[CHROMIUM]));
            request.headers_mut().insert("content-type", value.parse().unwrap());
            let response = server.send(request);
            assert_eq!(response.status(), status, "{value}");
            if status == 415 {
                assert_eq!(response.headers()["accept-post"], "application/sdp");
                assert_eq!(json(&server, response)["kind"], "invalid_argument");
            }
        }
        let mut request = offering(browser(&[CHROMIUM]));
        request.headers_mut().remove("content-type");
        assert_eq!(server.send(request).status(), 415);
    }

    #[test]
    fn the_query_says_where_the_pointer_is_wanted() {
        let wanted = |query| wanted_cursor(query).unwrap();
        assert_eq!(wanted(None), Cursor::Apart);
        assert_eq!(wanted(Some("ticket=x")), Cursor::Apart);
        assert_eq!(wanted(Some("ticket=x&cursor=baked")), Cursor::Baked);
        assert_eq!(wanted(Some("cursor=apart&ticket=x")), Cursor::Apart);
        let server = Server::start(&[Codec::H264]);
        for (query, status) in [("cursor=baked", 201), ("cursor=boiled", 400)] {
            let mut request = offering(browser(&[CHROMIUM]));
            *request.uri_mut() = format!("/whep?{query}").parse().unwrap();
            let response = server.send(request);
            assert_eq!(response.status(), status, "{query}");
            match response.headers().get("location") {
                // The resource's address has no query.
                Some(location) => assert!(!location.to_str().unwrap().contains('?')),
                None => assert_eq!(json(&server, response)["issues"][0]["path"], "cursor"),
            }
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_not_found() {
        let server = Server::start(&[Codec::H264]);
        for request in [Request::get("/whep/%ff"), Request::delete("/whep/%ff")] {
            let response = server.send(plain(request));
            assert_eq!(response.status(), 404);
            assert_eq!(json(&server, response)["kind"], "not_found");
        }
    }

    #[test]
    fn a_request_without_a_token_learns_the_scheme() {
        let server = Server::start(&[Codec::H264]);
        let mut request = offering(browser(&[CHROMIUM]));
        request.headers_mut().remove("authorization");
        let response = server.send(request);
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
        assert_eq!(json(&server, response)["kind"], "unauthenticated");
    }

    #[test]
    fn what_is_no_offer_is_a_bad_request_and_what_is_too_large_is_not_read() {
        let server = Server::start(&[Codec::H264]);
        for body in [Vec::new(), b"hello".to_vec(), vec![0xff; 10]] {
            let response = server.send(offering(body));
            assert_eq!(response.status(), 400);
            assert_eq!(json(&server, response)["retryable"], false);
        }
        let response = server.send(offering(vec![b'v'; MAX_OFFER + 1]));
        assert_eq!(response.status(), 413);
        assert_eq!(json(&server, response)["context"]["limit"], "65536");
        assert_eq!(server.send(offering(vec![b'v'; MAX_OFFER])).status(), 400);
    }

    #[test]
    fn no_common_codec_is_not_acceptable_and_attaches_nobody() {
        let server = Server::start(&[Codec::H264]);
        for sdp in [
            browser(&[FIREFOX]),
            browser(&[AUDIO]),
            browser(&[&CHROMIUM.replace("recvonly", "sendonly")]),
        ] {
            let response = server.send(offering(sdp));
            assert_eq!(response.status(), 406);
            let problem = json(&server, response);
            assert_eq!(problem["kind"], "stream");
            assert_eq!(problem["cause"], "no_decoder");
            assert_eq!(problem["context"]["available"], "h264");
        }
        let none = Server::start(&[]);
        let response = none.send(offering(browser(&[CHROMIUM])));
        assert_eq!(response.status(), 406);
        assert_eq!(json(&none, response)["cause"], "codec_unavailable");
        assert_eq!((server.endpoint.viewers(), none.endpoint.viewers()), (0, 0));
    }

    #[test]
    fn a_closed_session_is_gone() {
        let server = Server::start(&[Codec::H264]);
        server.sessions.close(&server.session).unwrap();
        let response = server.send(offering(browser(&[CHROMIUM])));
        assert_eq!(response.status(), 410);
        assert_eq!(json(&server, response)["cause"], "session_closed");
    }

    /// Strict where the draft leaves no doubt, lenient where players leave `If-Match` out.
    #[test]
    fn candidates_are_taken_by_the_tag_by_any_tag_and_without_one() {
        let server = Server::start(&[Codec::H264]);
        let (resource, etag) = play(&server);
        for (tag, status) in [
            (Some(etag.as_str()), 204),
            (Some("*"), 204),
            (None, 204),
            (Some("\"other\", *"), 204),
            (Some("\"other\""), 412),
        ] {
            let response = server.send(patching(&resource, tag, CANDIDATE));
            assert_eq!(response.status(), status, "{tag:?}");
            // RFC 9725 §4.3.1: a 204 has no entity tag.
            assert!(!response.headers().contains_key("etag"));
        }
        assert_eq!(server.send(patching(&resource, None, "")).status(), 204);
        assert_eq!(server.send(patching(&resource, None, "{}")).status(), 400);
        let large = "a=x\r\n".repeat(MAX_FRAGMENT);
        assert_eq!(server.send(patching(&resource, None, &large)).status(), 413);
        let mut request = patching(&resource, None, CANDIDATE);
        request.headers_mut().insert("content-type", "application/sdp".parse().unwrap());
        let response = server.send(request);
        assert_eq!(response.status(), 415);
        assert_eq!(response.headers()["accept-patch"], "application/trickle-ice-sdpfrag");
    }

    #[test]
    fn a_resource_lives_until_it_is_deleted() {
        let server = Server::start(&[Codec::H264]);
        let (resource, _) = play(&server);
        assert_eq!(server.send(plain(Request::get(&resource))).status(), 204);
        assert_eq!(server.send(plain(Request::head(&resource))).status(), 204);
        // Neither a token nor the tag is asked for.
        let delete = Request::delete(&resource).header("if-match", "\"other\"");
        assert_eq!(server.send(plain(delete)).status(), 200);
        for request in [
            plain(Request::get(&resource)),
            plain(Request::delete(&resource)),
            patching(&resource, None, CANDIDATE),
        ] {
            assert_eq!(server.send(request).status(), 410);
        }
        assert_eq!(server.send(plain(Request::get("/whep/0123"))).status(), 404);
        assert_eq!(server.send(plain(Request::delete("/whep/0123"))).status(), 404);
        assert_eq!(server.send(patching("/whep/0123", None, CANDIDATE)).status(), 404);
    }

    #[test]
    fn the_endpoint_tells_what_it_is() {
        let server = Server::start(&[Codec::H264]);
        let head = server.send(plain(Request::head("/whep")));
        assert_eq!(
            (head.status().as_u16(), &head.headers()["content-type"]),
            (200, &HeaderValue::from_static(SDP))
        );
        let get = server.send(plain(Request::get("/whep")));
        assert_eq!((get.status().as_u16(), server.text(get)), (204, String::new()));
        let options = server.send(plain(Request::options("/whep")));
        assert_eq!(options.status(), 204);
        assert_eq!(options.headers()["accept-post"], "application/sdp");
        let put = server.send(plain(Request::put("/whep")));
        assert_eq!(
            (put.status().as_u16(), &put.headers()["allow"]),
            (405, &HeaderValue::from_static("GET, HEAD, OPTIONS, POST"))
        );
        let put = server.send(plain(Request::post("/whep/0123")));
        assert_eq!(put.status(), 405);
        json(&server, put);
    }

    #[test]
    fn below_another_path_a_resource_is_below_it_too() {
        let server = Server::start(&[Codec::H264]).nested("/m/{machine}");
        let mut request = offering(browser(&[CHROMIUM]));
        *request.uri_mut() = "/m/box-7/whep".parse().unwrap();
        let response = server.send(request);
        assert_eq!(response.status(), 201);
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        assert!(location.starts_with("/m/box-7/whep/"), "{location}");
        assert_eq!(server.send(plain(Request::get(&location))).status(), 204);
        assert_eq!(server.send(plain(Request::delete(&location))).status(), 200);
    }

    #[test]
    fn a_trailing_slash_is_the_same_endpoint() {
        let server = Server::start(&[Codec::H264]);
        let mut request = offering(browser(&[CHROMIUM]));
        *request.uri_mut() = "/whep/".parse().unwrap();
        let response = server.send(request);
        assert_eq!(response.status(), 201);
        let location = response.headers()["location"].to_str().unwrap().to_owned();
        assert!(location.starts_with("/whep/") && !location.contains("//"), "{location}");
        assert_eq!(server.send(plain(Request::delete(&location))).status(), 200);
        assert_eq!(server.send(plain(Request::options("/whep/"))).status(), 204);
    }

    /// RFC 9725 §4.6, and quotes as in any quoted string.
    #[test]
    fn servers_travel_as_links() {
        let server = |login| IceServer { url: "turn:t.example.org?transport=udp".into(), login };
        let link = |login| server(login).link().unwrap().to_str().unwrap().to_owned();
        assert_eq!(link(None), "<turn:t.example.org?transport=udp>; rel=\"ice-server\"");
        let login = ("1:a".to_owned(), Redacted::new("q\"b\\".to_owned()));
        assert_eq!(
            link(Some(login)),
            "<turn:t.example.org?transport=udp>; rel=\"ice-server\"; username=\"1:a\"; \
             credential=\"q\\\"b\\\\\"; credential-type=\"password\""
        );
        assert!(server(Some(("a\n".to_owned(), Redacted::new("b".to_owned())))).link().is_none());
    }

    #[test]
    fn who_may_watch_is_told_of_the_servers() {
        let server = Server::start(&[Codec::H264]);
        let links = |request: Request| {
            let response = server.send(request);
            response.headers().get_all("link").iter().count()
        };
        assert_eq!(links(offering(browser(&[CHROMIUM]))), 1);
        assert_eq!(links(offering(browser(&[FIREFOX]))), 0, "it is not let in");
        let asking = |token: &str| {
            plain(Request::options("/whep").header("authorization", format!("Bearer {token}")))
        };
        assert_eq!((links(asking("good")), links(asking("bad"))), (1, 0));
    }

    #[test]
    fn every_answer_can_be_read_by_pages_of_any_origin() {
        let server = Server::start(&[Codec::H264]);
        let (resource, _) = play(&server);
        for request in [
            plain(Request::options("/whep")),
            plain(Request::options(&resource)),
            plain(Request::post("/whep")),
            plain(Request::put("/whep")),
            plain(Request::delete("/whep/0123")),
            offering(browser(&[FIREFOX])),
            offering(browser(&[CHROMIUM])),
            patching(&resource, Some("\"other\""), CANDIDATE),
        ] {
            let headers = server.send(request).headers().clone();
            assert_eq!(headers["access-control-allow-origin"], "*");
            let lists = |name: &str, item: &str| headers[name].to_str().unwrap().contains(item);
            for method in ["GET", "HEAD", "POST", "PATCH", "DELETE", "OPTIONS"] {
                assert!(lists("access-control-allow-methods", method));
            }
            for name in ["Authorization", "Content-Type", "If-Match"] {
                assert!(lists("access-control-allow-headers", name));
            }
            for name in
                ["Location", "Link", "ETag", "Accept-Patch", "WWW-Authenticate", "Retry-After"]
            {
                assert!(lists("access-control-expose-headers", name));
            }
        }
    }
}
