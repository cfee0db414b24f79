//! Errors as WHEP answers: `application/problem+json` (RFC 9457).

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use spaceport_types::{Error, Report};

/// The members of a problem, followed by those of the [`Report`] that RFC 9457 has no name for.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    status: u16,
    detail: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// The answer to a request that failed with `error`.
pub fn response(error: &Error) -> Response<Body> {
    with_status(error, error.http_status())
}

/// The same with another status, where HTTP has a closer one than the error's kind.
pub(super) fn with_status(error: &Error, status: u16) -> Response<Body> {
    let report = error.report();
    let kind = serde_json::to_value(report.kind).unwrap_or_default();
    let problem = Problem {
        r#type: format!("urn:spaceport:error:{}", kind.as_str().unwrap_or("internal")),
        status,
        detail: &report.message,
        report: &report,
    };
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    let waits = report.retryable || report.retry_after_ms.is_some();
    if waits && matches!(status, 409 | 429 | 502 | 503 | 504) {
        let delay = report.retry_after_ms.unwrap_or(RETRY_AFTER_MS);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(delay.div_ceil(1_000).max(1)));
    }
    response
}

/// How long to wait when the error does not say: about as long as a stream takes to start.
const RETRY_AFTER_MS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spaceport_types::{Cause, Kind};

    use super::*;

    async fn body(response: Response<Body>) -> serde_json::Value {
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 16).await.unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[tokio::test]
    async fn a_problem_has_the_standard_members_and_the_report() {
        let error = Error::because(Cause::NoDecoder, "no codec fits")
            .hint("Use another browser")
            .with("available", "h264");
        let response = response(&error);
        assert_eq!(response.status(), 406);
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        let problem = body(response).await;
        assert_eq!(problem["type"], "urn:spaceport:error:stream");
        assert_eq!(problem["title"], "The stream failed");
        assert_eq!(problem["status"], 406);
        assert_eq!(problem["detail"], "no codec fits");
        assert_eq!(problem["kind"], "stream");
        assert_eq!(problem["cause"], "no_decoder");
        assert_eq!(problem["hint"], "Use another browser");
        assert_eq!(problem["retryable"], false);
        assert_eq!(problem["context"]["available"], "h264");
    }

    #[test]
    fn what_can_be_tried_again_says_when() {
        let full = Error::because(Cause::TooManyViewers, "full");
        assert_eq!(response(&full).headers()["retry-after"], "1");
        let later = full.retry_after(Duration::from_millis(2_500));
        assert_eq!(response(&later).headers()["retry-after"], "3");
        let closed = response(&Error::because(Cause::SessionClosed, "closed"));
        assert_eq!(closed.status(), 410);
        assert!(!closed.headers().contains_key("retry-after"));
    }

    #[test]
    fn a_missing_token_names_the_scheme() {
        let response = response(&Error::new(Kind::Unauthenticated, "no token"));
        assert_eq!(
            (response.status().as_u16(), &response.headers()["www-authenticate"]),
            (401, &HeaderValue::from_static("Bearer"))
        );
    }
}
