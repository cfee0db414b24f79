//! Errors over HTTP: problem details (RFC 9457), as servers say and clients read them.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use spaceport_types::{Cause, Error, Kind, Report};

#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    status: u16,
    detail: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// Answers a request with an error: the report's own members, and the ones that problem details
/// name (`type`, `title`, `status`, `detail`).
pub fn problem(error: &Error) -> Response {
    with_status(error, error.http_status())
}

/// The same with another status, where HTTP has a closer one than the error's kind.
pub fn with_status(error: &Error, status: u16) -> Response {
    let report = error.report();
    let kind = serde_json::to_value(report.kind).ok();
    let kind = kind.as_ref().and_then(|kind| kind.as_str()).unwrap_or("internal");
    let body = Problem {
        r#type: format!("urn:spaceport:error:{kind}"),
        status,
        detail: &report.message,
        report: &report,
    };
    let json = serde_json::to_vec(&body).unwrap_or_default();
    let mut response = Response::new(Body::from(json));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == 401 || error.kind() == Kind::Unauthenticated {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    let later = report.retryable && matches!(status, 429 | 502 | 503);
    if let Some(delay) = report.retry_after_ms.or(later.then_some(RETRY_AFTER_MS)) {
        headers.insert(RETRY_AFTER, HeaderValue::from(delay.div_ceil(1000)));
    }
    response
}

/// What a server meant that refused a request with `status` and `body`.
pub(crate) fn read(status: u16, body: &[u8]) -> Error {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Told {
        kind: Option<Kind>,
        cause: Option<Cause>,
        detail: Option<String>,
        hint: Option<String>,
    }
    // One that is no problem document is known by its status alone.
    let told: Told = serde_json::from_slice(body).unwrap_or_default();
    let message = told.detail.map(|text| text.chars().take(LONGEST_DETAIL).collect());
    let message = message.unwrap_or_else(|| format!("the server answered {status}"));
    let error = match (told.cause, told.kind) {
        (Some(cause), _) => Error::because(cause, message),
        (None, Some(kind)) => Error::new(kind, message),
        (None, None) => Error::new(
            match status {
                401 => Kind::Unauthenticated,
                403 => Kind::PermissionDenied,
                404 => Kind::NotFound,
                429 => Kind::LimitExceeded,
                _ => Kind::SpacesdNotAvailable,
            },
            message,
        ),
    };
    match told.hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
    .with("status", status)
}

/// Characters of another's message that are handed on.
const LONGEST_DETAIL: usize = 500;

/// How long to wait when the error does not say: about as long as a stream takes to start.
const RETRY_AFTER_MS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use spaceport_types::Cause;

    use super::*;

    #[tokio::test]
    async fn a_problem_has_the_members_of_the_rfc_and_of_the_report() {
        let error = Error::because(Cause::SessionClosed, "session `m1` is closed").hint("Open it");
        let response = problem(&error);
        assert_eq!(response.status(), 410);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(json["type"], "urn:spaceport:error:stream");
        assert_eq!(json["title"], "The stream failed");
        assert_eq!(json["status"], 410);
        assert_eq!(json["detail"], "session `m1` is closed");
        assert_eq!(json["cause"], "session_closed");
        assert_eq!(json["hint"], "Open it");
    }

    #[test]
    fn what_can_be_tried_again_says_when() {
        let header = |error: &Error| problem(error).headers().get(RETRY_AFTER).cloned();
        let full = Error::because(Cause::TooManyViewers, "full");
        assert_eq!(header(&full).unwrap(), "1");
        let later = full.retry_after(std::time::Duration::from_millis(2_500));
        assert_eq!(header(&later).unwrap(), "3");
        assert_eq!(header(&Error::because(Cause::SessionClosed, "closed")), None);
    }

    #[test]
    fn another_status_can_be_given_and_a_missing_token_names_the_scheme() {
        let response = with_status(&Error::new(Kind::InvalidArgument, "too large"), 413);
        assert_eq!(response.status(), 413);
        let unauthenticated = problem(&Error::new(Kind::Unauthenticated, "no token"));
        assert_eq!(unauthenticated.headers()[WWW_AUTHENTICATE], "Bearer");
    }
}
