//! What a gateway says over plain HTTP: health, metrics, the viewer page, and how the page opens a
//! stream.

use std::net::IpAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use spaceport_media::windows::{State as WindowState, Window};
use spaceport_relay::Via;
use spaceport_types::{Error, Kind, Result};

pub(crate) use spaceport_transport::problem::problem;
use spaceport_transport::problem::with_status;
use spaceport_transport::{bearer, body, page, quic};

use crate::service::{Display, OpenRequest, Opened, QuicWay, RELAY, Service};
use crate::{auth, metrics};

/// The largest body that any of these routes reads.
const MAX_BODY: usize = 64 << 10;

/// The open routes: health, the page and its assets, and opening a stream with a viewer ticket.
pub(crate) fn routes(service: Service) -> Router {
    Router::new()
        .route("/", get(|| to("viewer/")))
        .route("/health", get(health))
        .route("/viewer", get(|| to("viewer/")))
        .merge(page::router())
        .route("/viewer/open", post(open))
        .route("/viewer/targets", get(targets))
        .with_state(service)
}

/// `/metrics`; behind the token when others than this machine can ask.
pub(crate) fn metrics(service: Service, guarded: bool) -> Router {
    let auth = service.auth().clone();
    let router = Router::new().route("/metrics", get(render_metrics)).with_state(service);
    if guarded {
        router.layer(middleware::from_fn_with_state(auth, auth::require_token))
    } else {
        router
    }
}

/// What no route matches.
pub(crate) async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    problem(
        &Error::new(Kind::NotFound, format!("there is nothing at `{path}`"))
            .hint("The viewer page is at `/viewer/`"),
    )
}

/// Puts the router's own refusal of a method, which has no body, into the form that all have.
pub(crate) async fn explain(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let bare = !response.headers().contains_key(CONTENT_TYPE);
    if response.status() != StatusCode::METHOD_NOT_ALLOWED || !bare {
        return response;
    }
    let error = Error::new(Kind::InvalidArgument, format!("`{path}` does not take `{method}`"));
    let mut explained = with_status(&error, 405);
    if let Some(allowed) = response.headers().get(ALLOW) {
        explained.headers_mut().insert(ALLOW, allowed.clone());
    }
    explained
}

/// Headers that every answer carries.
pub(crate) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    response
}

/// A relative redirect, so that it holds under any path prefix.
#[expect(clippy::unused_async, reason = "a handler")]
async fn to(path: &'static str) -> Response {
    let mut response = StatusCode::TEMPORARY_REDIRECT.into_response();
    response.headers_mut().insert(LOCATION, HeaderValue::from_static(path));
    response
}

/// 204 when everything works, a problem that names the fault when something does not.
async fn health(State(service): State<Service>) -> Response {
    let (components, _) = service.health().await;
    let faults: Vec<_> = components
        .into_iter()
        // A relay that is away is no fault of this machine; and whoever asks here has reached it.
        .filter(|component| component.name != RELAY)
        .filter_map(|component| Some((component.name, component.fault?)))
        .collect();
    if faults.is_empty() {
        return StatusCode::NO_CONTENT.into_response();
    }
    let mut error = Error::new(Kind::SpacesdNotAvailable, "not everything works here")
        .hint("Run `spaceport doctor` on this machine")
        .retry_after(Duration::from_secs(5));
    for (name, fault) in faults {
        error = error.with(name, fault);
    }
    with_status(&error, 503)
}

async fn render_metrics(State(service): State<Service>) -> Response {
    let mut response = metrics::render(service.sessions()).into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// What the viewer page asks for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ViewerRequest {
    display_id: Option<String>,
    window_id: Option<String>,
    max_fps: u32,
    max_dimension: u32,
}

/// Something a viewer page can watch.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Watchable {
    Display { id: String, name: String, primary: bool, size: [u32; 2] },
    Window { id: String, title: String, app: String, size: [u32; 2], available: bool },
}

impl From<Display> for Watchable {
    fn from(display: Display) -> Self {
        let size = [display.bounds.width, display.bounds.height];
        Self::Display { id: display.id, name: display.name, primary: display.primary, size }
    }
}

impl From<Window> for Watchable {
    fn from(window: Window) -> Self {
        Self::Window {
            id: window.handle,
            title: window.title,
            app: window.app_name,
            size: [window.bounds.width, window.bounds.height],
            available: !matches!(window.state, WindowState::Minimized | WindowState::Hidden),
        }
    }
}

/// The way in for a viewer page. Paths are relative to the gateway's origin and prefix.
#[derive(Serialize)]
struct ViewerAnswer {
    session_id: String,
    /// What it shows; missing when that has just gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Watchable>,
    ticket: String,
    ticket_expires_in_ms: u64,
    ws_path: &'static str,
    whep_path: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    webtransport: Option<WebTransport>,
    codec: &'static str,
    codecs: Vec<&'static str>,
    frame_size: [u32; 2],
    policy: &'static str,
    /// Frames can only be opened with the key in the page's address.
    sealed: bool,
}

/// How to connect with WebTransport, which has a port and a certificate of its own.
#[derive(Serialize)]
struct WebTransport {
    port: u16,
    path: String,
    /// For `serverCertificateHashes`: SHA-256, in hexadecimal.
    certificates: Vec<String>,
    /// What `localhost` means here. A browser that takes it for the address of the other family finds
    /// nothing there, and does not try again.
    loopback: String,
}

async fn open(
    State(service): State<Service>,
    via: Option<Extension<Via>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let via = via.map(|Extension(via)| via);
    let body = match body::read(body, MAX_BODY).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match open_viewer(&service, &headers, &body, via.as_ref()).await {
        Ok(answer) => Json(answer).into_response(),
        Err(error) => problem(&error.operation("open_stream")),
    }
}

async fn open_viewer(
    service: &Service,
    headers: &HeaderMap,
    body: &[u8],
    via: Option<&Via>,
) -> Result<ViewerAnswer> {
    let ticket = page_ticket(headers)?;
    let wanted: ViewerRequest = if body.is_empty() {
        ViewerRequest::default()
    } else {
        serde_json::from_slice(body).map_err(|error| {
            Error::new(Kind::InvalidArgument, "the request is not the JSON it should be")
                .source(error)
        })?
    };
    let request = OpenRequest {
        display: wanted.display_id,
        window: wanted.window_id.map(|handle| (handle, 0)), // whichever has the id now
        max_fps: wanted.max_fps,
        max_dimension: wanted.max_dimension,
        ..OpenRequest::default()
    };
    let opened = service.open_viewer(ticket, request).await?;
    let target = service.shown(&opened.target).await.ok().and_then(|it| watchable(it).next());
    Ok(answer(service, &opened, target, via))
}

/// What can be watched with the ticket of a page.
async fn targets(State(service): State<Service>, headers: HeaderMap) -> Response {
    let listed = match page_ticket(&headers) {
        Ok(ticket) => service.viewer_targets(ticket).await,
        Err(error) => Err(error),
    };
    match listed {
        Ok(listed) => {
            let mut response = Json(watchable(listed).collect::<Vec<_>>()).into_response();
            // Titles of windows are for the holder of the ticket, and old a moment later.
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(error) => problem(&error.operation("list_targets")),
    }
}

fn watchable((displays, windows): (Vec<Display>, Vec<Window>)) -> impl Iterator<Item = Watchable> {
    let displays = displays.into_iter().map(Watchable::from);
    displays.chain(windows.into_iter().map(Watchable::from))
}

fn page_ticket(headers: &HeaderMap) -> Result<&str> {
    bearer(headers, "authorization").ok_or_else(|| {
        Error::new(Kind::Unauthenticated, "the page was opened without a ticket")
            .hint("Use the whole address that `spaceport serve` printed, `#ticket=` included")
    })
}

fn web_transport(service: &Service, via: Option<&Via>) -> Option<WebTransport> {
    let QuicWay { port, loopback, prefix, certificates } = service.quic(via)?;
    let loopback = match loopback {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let path = format!("{prefix}{}", quic::PATH);
    Some(WebTransport { port, path, certificates, loopback })
}

fn answer(
    service: &Service,
    opened: &Opened,
    target: Option<Watchable>,
    via: Option<&Via>,
) -> ViewerAnswer {
    let size = opened.geometry.frame_size;
    ViewerAnswer {
        session_id: opened.session_id.to_string(),
        target,
        ticket: opened.ticket.expose().clone(),
        ticket_expires_in_ms: opened.expires_in.as_millis() as u64,
        ws_path: "/media",
        whep_path: "/whep",
        webtransport: web_transport(service, via),
        sealed: opened.sealed,
        codec: opened.codec.name(),
        codecs: service.codecs().iter().map(|codec| codec.name()).collect(),
        frame_size: [size.width, size.height],
        policy: match opened.policy {
            spaceport_session::Policy::ViewOnly => "view_only",
            spaceport_session::Policy::BackgroundOnly => "background_only",
            spaceport_session::Policy::AllowActivation => "allow_activation",
        },
    }
}
