//! `/m/<id>/…`: one request of a client becomes one stream of a tunnel.
//!
//! The relay reads the head of a request, takes `/m/<id>` off its path and speaks HTTP with the machine's own
//! server on a fresh stream. Bodies and trailers go through as they come, and wait where nobody reads them;
//! an upgraded connection is joined to the stream. The machine's token is not looked at.
//!
//! What a machine answers is shown under the relay's origin, which other machines share. So no answer can be a
//! page there: markup is offered for download, scripts in it have no origin, and cookies are dropped.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::header::{self, HeaderName};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use spaceport_transport::grpc;
use spaceport_transport::problem::problem;
use spaceport_types::{Error, Kind, MachineId, Result};
use spaceport_wire::relay::{Entry, Head, Http, Protocol};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional_with_sizes};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{sleep, timeout};

use crate::server::Shared;
use crate::tunnel::{Stream, Tunnel};
use crate::uplink::Via;

/// Serves `/m/<id>` and everything below it.
pub(crate) async fn forward(State(shared): State<Shared>, request: Request) -> Response {
    let form = request.headers().clone();
    shared.counters.requests.add(1);
    match exchange(&shared, request).await {
        Ok(response) => response,
        Err(error) => {
            shared.counters.refused.add(1);
            refuse(&form, &error)
        }
    }
}

/// An error of the relay's own, in the form that the client speaks. A header tells it from the machine's.
pub(crate) fn refuse(headers: &HeaderMap, error: &Error) -> Response {
    let mut response =
        if grpc::is_grpc(headers) { grpc::error_response(headers, error) } else { problem(error) };
    let what = match error.kind() {
        Kind::Relay => "machine_offline",
        Kind::NotFound => "unknown_machine",
        Kind::LimitExceeded => "limit_exceeded",
        Kind::InvalidArgument => "invalid_request",
        Kind::Unauthenticated => "unauthenticated",
        _ => "relay",
    };
    let headers = response.headers_mut();
    headers.insert("x-cua-relay-error", HeaderValue::from_static(what));
    if let Some(limit) = error.context("limit").and_then(|limit| limit.parse().ok()) {
        headers.insert("x-cua-relay-limit", limit);
    }
    response
}

/// The machine that a path leads to, and what is left of it: `/m/<id>` alone leaves nothing.
pub(crate) fn split(path: &str) -> Option<(Result<MachineId>, &str)> {
    let rest = path.strip_prefix("/m/")?;
    let end = rest.find('/').unwrap_or(rest.len());
    Some((rest[..end].parse(), &rest[end..]))
}

async fn exchange(shared: &Shared, request: Request) -> Result<Response> {
    let (machine, path) = split(request.uri().path())
        .ok_or_else(|| Error::new(Kind::NotFound, "there is no machine at this path"))?;
    let machine = machine?;
    if path.is_empty() {
        return Ok(to_folder(&machine, request.uri().query()));
    }
    let uri = inner_uri(request.uri(), path)?;
    let tunnel = shared.machines.find(&machine).await?;
    pass_on(shared, &machine, &tunnel, uri, None, request).await
}

/// What another relay asks of a machine that it reaches through this one.
pub(crate) async fn forward_further(
    shared: &Shared,
    machine: &MachineId,
    via: &Via,
    request: Request,
) -> Response {
    let form = request.headers().clone();
    shared.counters.requests.add(1);
    let exchanged = async {
        let uri = inner_uri(request.uri(), request.uri().path())?;
        // Here alone: what came by another relay is not sent on to a third by guessing.
        let tunnel = shared.directory.find(machine).await?;
        pass_on(shared, machine, &tunnel, uri, Some(via.entry()), request).await
    };
    exchanged.await.unwrap_or_else(|error| {
        shared.counters.refused.add(1);
        refuse(&form, &error)
    })
}

async fn pass_on(
    shared: &Shared,
    machine: &MachineId,
    tunnel: &Tunnel,
    uri: Uri,
    entry: Option<Entry>,
    mut request: Request,
) -> Result<Response> {
    let Ok(permit) = Arc::clone(&shared.requests).try_acquire_owned() else {
        return Err(Error::new(Kind::LimitExceeded, "the relay has as many requests as it takes")
            .with("limit", shared.limits.requests())
            .retry_after(Duration::from_secs(1))
            .hint("Try again in a moment"));
    };
    // gRPC comes by HTTP/2 and has trailers; what is to be upgraded comes by HTTP/1.1.
    let is_h2 = request.version() == Version::HTTP_2;
    let protocol = if is_h2 { Protocol::Http2 } else { Protocol::Http1 };
    let stream = tunnel.open(&Head::Http(Http { protocol, entry })).await?;
    let lease = Lease::new(shared, permit);
    let stream = Metered { stream, lease: Arc::clone(&lease) };

    let upgrade = (!is_h2).then(|| wanted_upgrade(request.headers())).flatten();
    clean_request(request.headers_mut(), upgrade.as_ref());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    *request.uri_mut() = if is_h2 { uri } else { origin_form(&uri) };
    if !is_h2 {
        *request.version_mut() = Version::HTTP_11;
    }
    // What this connection knows of the client is not the machine's to see, and would not arrive.
    request.extensions_mut().clear();
    let (end, ended) = oneshot::channel();
    let (idle, io) = (shared.limits.idle(), TokioIo::new(stream));
    let failed = |error: hyper::Error| {
        Error::new(Kind::Relay, format!("the machine `{machine}` did not answer the request"))
            .with("machine", machine)
            .disposition(spaceport_types::Disposition::UnknownAfterDispatch)
            .source(error)
    };
    let window = shared.limits.window();
    let mut response = if is_h2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .initial_stream_window_size(window)
            .initial_connection_window_size(window)
            .max_header_list_size(MAX_HEAD)
            .max_send_buf_size(SEND_BUFFER);
        let (mut sender, connection) = builder.handshake(io).await.map_err(failed)?;
        tokio::spawn(lease.drive(connection, ended, idle));
        sender.send_request(request).await.map_err(failed)?
    } else {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD as usize);
        let (mut sender, connection) = builder.handshake(io).await.map_err(failed)?;
        tokio::spawn(lease.drive(connection.with_upgrades(), ended, idle));
        sender.send_request(request).await.map_err(failed)?
    };
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    clean_response(&mut response, upgraded);
    if upgraded {
        let Some(client) = client else {
            return Err(Error::new(Kind::Relay, "the machine upgrades what nobody asked it to"));
        };
        let machine = hyper::upgrade::on(&mut response);
        tokio::spawn(join(client, machine, lease, idle));
        let (parts, _) = response.into_parts();
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    Ok(response.map(|body| Body::new(Answer { body, end: Some(end) })))
}

/// `/m/<id>` without a slash: what is relative below it would miss the id.
fn to_folder(machine: &MachineId, query: Option<&str>) -> Response {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    if let Ok(location) = HeaderValue::from_str(&format!("/m/{machine}/{query}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The address that the machine sees.
fn inner_uri(outer: &Uri, path: &str) -> Result<Uri> {
    let wrong = || Error::new(Kind::InvalidArgument, "the path of the request cannot be read");
    let query = outer.query().map(|query| format!("?{query}")).unwrap_or_default();
    let path = PathAndQuery::try_from(format!("{path}{query}")).map_err(|_| wrong())?;
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(path);
    parts.scheme = Some(Scheme::HTTP);
    // HTTP/1.1 has it in a header.
    let authority = outer.authority().cloned();
    parts.authority =
        Some(authority.unwrap_or_else(|| http::uri::Authority::from_static("machine.invalid")));
    Uri::from_parts(parts).map_err(|_| wrong())
}

/// The same without host, as HTTP/1.1 has it.
fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().cloned().map(Uri::from).unwrap_or_default()
}

/// What the client wants its connection to become.
fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut listed = headers.get_all(header::CONNECTION).iter().filter_map(|it| it.to_str().ok());
    let asked = listed.any(|it| it.split(',').any(|it| it.trim().eq_ignore_ascii_case("upgrade")));
    headers.get(header::UPGRADE).filter(|_| asked).cloned()
}

/// Takes out what concerns this connection alone (RFC 9110 §7.6.1), and what browsers add by themselves.
fn clean_request(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    let trailers = headers.get(header::TE).is_some_and(|te| te == "trailers");
    remove_hop_by_hop(headers);
    // Another machine may have set it, in earlier days or by a script.
    headers.remove(header::COOKIE);
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade.clone());
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Makes an answer one that is no page, and that binds nobody to anything.
fn clean_response<B>(response: &mut http::Response<B>, upgraded: bool) {
    let headers = response.headers_mut();
    let upgrade = headers.get(header::UPGRADE).filter(|_| upgraded).cloned();
    remove_hop_by_hop(headers);
    for name in OF_THE_ORIGIN {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        return;
    }
    if is_markup(headers) {
        headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'; frame-ancestors 'none'"),
    );
}

/// Headers by which an answer says something of its whole origin, which is not the machine's to say.
const OF_THE_ORIGIN: [&str; 9] = [
    "set-cookie",
    "clear-site-data",
    "strict-transport-security",
    "alt-svc",
    "nel",
    "report-to",
    "reporting-endpoints",
    "service-worker-allowed",
    "refresh",
];

/// Whether a browser would make a page of it. What says nothing of itself is not trusted to be none.
fn is_markup(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let Some(kind) = kind else { return headers.contains_key(header::CONTENT_TYPE) };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.contains("html") || kind.contains("xml") || kind.contains("svg") || kind.contains("pdf")
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [
        header::CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ] {
        headers.remove(name);
    }
}

/// Joins two upgraded connections until either is over.
async fn join(
    client: hyper::upgrade::OnUpgrade,
    machine: hyper::upgrade::OnUpgrade,
    lease: Arc<Lease>,
    idle: Duration,
) {
    let joined = async {
        let (client, machine) = tokio::try_join!(client, machine).ok()?;
        let (mut client, mut machine) = (TokioIo::new(client), TokioIo::new(machine));
        copy_bidirectional_with_sizes(&mut client, &mut machine, PIECE, PIECE).await.ok()
    };
    tokio::select! {
        _ = joined => {}
        () = lease.idle(idle) => tracing::debug!("a connection was idle for too long"),
    }
}

/// What one request has of the relay, for as long as any part of it is there.
#[derive(Debug)]
struct Lease {
    up: AtomicU64,
    down: AtomicU64,
    counters: Arc<crate::metrics::Counters>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    fn new(shared: &Shared, permit: OwnedSemaphorePermit) -> Arc<Self> {
        let counters = Arc::clone(&shared.counters);
        counters.streams.add(1);
        Arc::new(Self { up: AtomicU64::new(0), down: AtomicU64::new(0), counters, _permit: permit })
    }

    /// Drives a connection to a machine until it is done, nobody wants its answer any more, or it is idle.
    fn drive<E: std::fmt::Display + Send>(
        self: &Arc<Self>,
        connection: impl Future<Output = std::result::Result<(), E>> + Send + 'static,
        ended: oneshot::Receiver<()>,
        idle: Duration,
    ) -> impl Future<Output = ()> + Send + 'static {
        let lease = Arc::clone(self);
        async move {
            let mut connection = std::pin::pin!(connection);
            let done = tokio::select! {
                done = &mut connection => Some(done),
                ended = ended => match ended {
                    Ok(()) => timeout(FAREWELL, connection).await.ok(),
                    // Whoever asked has gone: the stream is reset.
                    Err(_) => None,
                },
                () = lease.idle(idle) => None,
            };
            if let Some(Err(error)) = done {
                tracing::debug!(%error, "a request to a machine");
            }
        }
    }

    /// Returns when nothing has moved for `limit`.
    async fn idle(&self, limit: Duration) {
        let moved = || (self.up.load(Ordering::Relaxed), self.down.load(Ordering::Relaxed));
        loop {
            let before = moved();
            sleep(limit).await;
            if moved() == before {
                return;
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.counters.streams.subtract(1);
    }
}

/// A stream to a machine, whose bytes are counted.
struct Metered {
    stream: Stream,
    lease: Arc<Lease>,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let read = (buffer.filled().len() - before) as u64;
        self.lease.down.fetch_add(read, Ordering::Relaxed);
        self.lease.counters.from_machines.add(read);
        polled
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.lease.up.fetch_add(written as u64, Ordering::Relaxed);
            self.lease.counters.to_machines.add(written as u64);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The body of an answer. When it is gone, so is the request.
struct Answer {
    body: hyper::body::Incoming,
    /// Told at the end of the body. Dropped without, nobody wants the rest.
    end: Option<oneshot::Sender<()>>,
}

impl Answer {
    fn end(&mut self) {
        if let Some(end) = self.end.take() {
            // The machine may be gone by now.
            let _ = end.send(());
        }
    }
}

impl HttpBody for Answer {
    type Data = bytes::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.end(),
            Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => self.end(),
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // One without a body is not read at all.
        if self.body.is_end_stream() {
            self.end();
        }
    }
}

/// The largest head of an answer.
const MAX_HEAD: u32 = 64 << 10;

/// Bytes of a body that wait for a machine, in hyper and beyond the window.
const SEND_BUFFER: usize = 64 << 10;

/// What is moved at a time between connections that are joined.
const PIECE: usize = 16 << 10;

/// How long a connection whose answer is over may take to end in order.
const FAREWELL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_a_machine_and_keeps_the_rest_as_it_is() {
        let split = |path| split(path).map(|(id, rest)| (id.ok().map(String::from), rest));
        let machine = Some("machine-1".to_owned());
        assert_eq!(split("/m/machine-1/a/b%2Fc"), Some((machine.clone(), "/a/b%2Fc")));
        assert_eq!(split("/m/machine-1/"), Some((machine.clone(), "/")));
        assert_eq!(split("/m/machine-1"), Some((machine, "")));
        assert_eq!(split("/m/../etc"), Some((None, "/etc")));
        assert_eq!(split("/m/"), Some((None, "")));
        assert_eq!(split("/metrics"), None);
    }

    #[test]
    fn the_machine_sees_its_own_path_and_the_query() {
        let inner = |outer: &str, path| inner_uri(&outer.parse().unwrap(), path).unwrap();
        let uri = inner("https://relay.example/m/machine-1/media?ticket=a%20b", "/media");
        assert_eq!(uri.to_string(), "http://relay.example/media?ticket=a%20b");
        assert_eq!(origin_form(&uri).to_string(), "/media?ticket=a%20b");
        assert_eq!(inner("/m/machine-1/", "/").to_string(), "http://machine.invalid/");
    }

    #[test]
    fn no_answer_is_a_page_or_speaks_for_the_origin() {
        for kind in [
            "text/html",
            "Text/HTML; charset=utf-8",
            "application/xhtml+xml",
            "image/svg+xml",
            "text/xml",
            "application/pdf",
            "\u{ff}",
        ] {
            let mut response = http::Response::new(());
            let headers = response.headers_mut();
            headers.insert("content-type", HeaderValue::from_bytes(kind.as_bytes()).unwrap());
            headers.append("set-cookie", HeaderValue::from_static("a=1"));
            headers.append("set-cookie", HeaderValue::from_static("b=2"));
            headers.insert("clear-site-data", HeaderValue::from_static("\"*\""));
            clean_response(&mut response, false);
            let headers = response.headers();
            assert_eq!(headers["content-disposition"], "attachment", "{kind}");
            assert!(
                !headers.contains_key("set-cookie") && !headers.contains_key("clear-site-data")
            );
            assert_eq!(headers["x-content-type-options"], "nosniff");
            assert!(headers["content-security-policy"].to_str().unwrap().starts_with("sandbox"));
        }
        let mut response = http::Response::new(());
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        clean_response(&mut response, false);
        assert!(!response.headers().contains_key("content-disposition"));
    }

    #[test]
    fn what_concerns_one_connection_does_not_reach_the_next() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, x-secret-of-a-hop"),
            ("keep-alive", "5"),
            ("x-secret-of-a-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("cookie", "of=another"),
            ("authorization", "Bearer token"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        clean_request(&mut headers, None);
        assert_eq!(headers.len(), 2, "{headers:?}");
        assert_eq!(
            (&headers["authorization"], &headers["te"]),
            (&HeaderValue::from_static("Bearer token"), &HeaderValue::from_static("trailers"))
        );
    }
}
