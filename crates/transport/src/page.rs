//! The viewer page, embedded in the binary. What it asks and what it connects to is relative to where it is, so
//! that it works below any path.

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};
use rust_embed::{EmbeddedFile, RustEmbed};

#[derive(RustEmbed)]
#[folder = "../../viewer"]
struct Viewer;

/// Nothing from elsewhere, nothing inline, and connections only to the page's own host. WebSocket
/// sources are spelled out: `'self'` does not cover them in every browser; and WebTransport's, which has
/// another port.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
                      data: blob:; media-src 'self' blob:; worker-src 'self'; connect-src 'self' \
                      ws: wss: https:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

/// `/viewer/` and each of its files, and nothing else below it. A relay nests it at `/m/<id>`.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let page = |path: &'static str| {
        get(move |request: Request| async move {
            match Viewer::get(path) {
                Some(file) => serve(path, file, &request),
                None => StatusCode::NOT_FOUND.into_response(),
            }
        })
    };
    let router = Router::new().route("/viewer/", page("index.html"));
    Viewer::iter().fold(router, |router, path| {
        // There is one router for each port, and each has the few names for good.
        let path: &'static str = path.into_owned().leak();
        router.route(&format!("/viewer/{path}"), page(path))
    })
}

fn serve(path: &str, file: EmbeddedFile, request: &Request) -> Response {
    let hash = file.metadata.sha256_hash();
    let etag = format!("\"{:016x}\"", u64::from_be_bytes(std::array::from_fn(|i| hash[i])));
    let known = request.headers().get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let mut response = if known.is_some_and(|known| known.split(", ").any(|known| known == etag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        file.data.into_owned().into_response()
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(path)));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-embedder-policy", HeaderValue::from_static("require-corp"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        headers.insert(ETAG, etag);
    }
    response
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}
