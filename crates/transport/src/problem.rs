//! Errors over HTTP: problem details (RFC 9457).

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use spaceport_types::{Error, Kind, Report};

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
    let report = error.report();
    let status = error.http_status();
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
    if let Some(delay) = report.retry_after_ms {
        headers.insert(RETRY_AFTER, HeaderValue::from(delay.div_ceil(1000)));
    }
    response
}

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
}
