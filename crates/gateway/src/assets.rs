//! The viewer page, embedded in the binary.

use axum::extract::{Path, Request};
use axum::response::{IntoResponse as _, Response};
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, StatusCode};
use rust_embed::RustEmbed;

use crate::http::not_found;

#[derive(RustEmbed)]
#[folder = "../../viewer"]
struct Viewer;

/// Nothing from elsewhere, nothing inline, and connections only to the page's own host. WebSocket
/// sources are spelled out: `'self'` does not cover them in every browser; and WebTransport's, which has
/// another port.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' \
                      data: blob:; media-src 'self' blob:; worker-src 'self'; connect-src 'self' \
                      ws: wss: https:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

pub(crate) async fn index(request: Request) -> Response {
    serve("index.html", request).await
}

pub(crate) async fn file(Path(path): Path<String>, request: Request) -> Response {
    serve(&path, request).await
}

async fn serve(path: &str, request: Request) -> Response {
    let Some(file) = Viewer::get(path) else { return not_found(request).await };
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
