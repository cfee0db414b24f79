//! An [`Error`] as gRPC has it: a status code, and a typed detail that clients branch on.

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use prost::Message as _;
use serde::Serialize;
use spaceport_types::{Cause, Error, Kind, Report, Retry};
use spaceport_wire::pb::{ErrorInfo, ErrorReason};
use spaceport_wire::status;
use tonic::{Code, Status};

/// Turns an error into a status with an [`ErrorInfo`] in its details.
///
/// A passing failure without a reason of its own goes out bare: the deployed clients retry an
/// UNAVAILABLE only when it has no detail, and take a detail for a final answer.
pub fn status(error: &Error) -> Status {
    let report = error.report();
    let code = report.kind.spec().grpc;
    let reason = reason(error, &report);
    if reason == ErrorReason::Unspecified && report.retry == Retry::Backoff {
        return Status::new(Code::from(code), report.message);
    }
    let feature = match reason {
        ErrorReason::FeatureUnsupported => error.context("feature").unwrap_or("desktop_stream"),
        _ => "",
    };
    let info = ErrorInfo {
        reason: reason.into(),
        message: report.message.clone(),
        feature: feature.to_owned(),
        metadata: metadata(&report),
    };
    let details = status::Status::with_info(code, &info).encode_to_vec();
    Status::with_details(Code::from(code), report.message, details.into())
}

/// The contract's word for an error. Where the kind says too little, the context's keys name what
/// the error is about.
fn reason(error: &Error, report: &Report) -> ErrorReason {
    let about = |keys: &[&str]| keys.iter().any(|key| error.context(key).is_some());
    if let Some(reason) = report.cause.and_then(reason_of_cause) {
        return reason;
    }
    match report.kind {
        Kind::Unauthenticated => ErrorReason::Unauthenticated,
        Kind::PermissionDenied | Kind::TeleportRefused => ErrorReason::PermissionDenied,
        Kind::CapabilityMissing | Kind::HostCapabilityMissing | Kind::WrongProvider => {
            ErrorReason::FeatureUnsupported
        }
        Kind::NotFound if about(&["path"]) => ErrorReason::PathNotFound,
        Kind::NotFound if about(&["display", "window"]) => ErrorReason::TargetUnavailable,
        Kind::NotFound if about(&["pid", "tag"]) => ErrorReason::ProcessNotFound,
        Kind::NotFound => ErrorReason::SessionNotFound,
        Kind::PreconditionFailed if error.context("expected_type") == Some("directory") => {
            ErrorReason::NotADirectory
        }
        Kind::PreconditionFailed if error.context("expected_type") == Some("file") => {
            ErrorReason::IsADirectory
        }
        Kind::PreconditionFailed if about(&["expected_offset"]) => ErrorReason::OffsetMismatch,
        Kind::PreconditionFailed if about(&["expected_sequence"]) => ErrorReason::SequenceGap,
        Kind::PreconditionFailed if about(&["geometry_epoch"]) => ErrorReason::StaleGeometry,
        Kind::PreconditionFailed if about(&["window"]) => ErrorReason::StaleHandle,
        Kind::LimitExceeded if report.retry_after_ms.is_some() => ErrorReason::RateLimited,
        Kind::LimitExceeded => ErrorReason::LimitExceeded,
        // Final, though it may pass: a relay has waited already.
        Kind::Relay => ErrorReason::TargetUnavailable,
        Kind::Env | Kind::Mcp | Kind::Io | Kind::Json | Kind::Internal => ErrorReason::Internal,
        _ => ErrorReason::Unspecified,
    }
}

fn reason_of_cause(cause: Cause) -> Option<ErrorReason> {
    Some(match cause {
        Cause::TargetGone
        | Cause::CaptureFailed
        | Cause::DisplayBlanked
        | Cause::Minimized
        | Cause::WindowUnavailable => ErrorReason::TargetUnavailable,
        Cause::SessionClosed => ErrorReason::SessionNotFound,
        Cause::TicketExpired => ErrorReason::Unauthenticated,
        Cause::TooManyViewers => ErrorReason::LimitExceeded,
        Cause::CodecUnavailable | Cause::NoDecoder | Cause::NotImportable => {
            ErrorReason::FeatureUnsupported
        }
        Cause::EncoderFailed => ErrorReason::Internal,
        Cause::DigestMismatch | Cause::SizeMismatch | Cause::CorruptBundle => {
            ErrorReason::ChecksumMismatch
        }
        Cause::DiskFull => ErrorReason::DiskFull,
        Cause::Permission | Cause::PathEscape => ErrorReason::PermissionDenied,
        Cause::Conflict => ErrorReason::PathExists,
        Cause::Interrupted | Cause::PeerGone => ErrorReason::DeliveryFailed,
        _ => return None,
    })
}

/// What the error knows, as text. Our own words come last, so that no fact can take their place.
fn metadata(report: &Report) -> std::collections::BTreeMap<String, String> {
    let facts = report.context.iter().map(|(key, value)| (key.to_string(), value.clone()));
    let issues = report.issues.iter().map(|issue| {
        let limit = issue.limit.as_deref().unwrap_or_default();
        let wrong = format!("{} {limit}", issue.constraint);
        (format!("issue.{}", issue.path), wrong.trim_end().to_owned())
    });
    let ours = [
        ("kind", Some(name(&report.kind))),
        ("cause", report.cause.as_ref().map(name)),
        ("hint", report.hint.clone()),
        ("operation", report.operation.map(str::to_owned)),
        ("retryable", Some(report.retryable.to_string())),
        ("retry_after_ms", report.retry_after_ms.map(|delay| delay.to_string())),
    ];
    let ours = ours.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    facts.chain(issues).chain(ours).collect()
}

/// The serialized name of a kind or cause.
fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "internal".to_owned(),
    }
}

/// Whether a request is gRPC in any of its forms.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    content_type(headers).starts_with("application/grpc")
}

/// Answers a request that no service has seen with an error, in the form its client speaks.
pub fn error_response(headers: &HeaderMap, error: &Error) -> Response {
    Form::of(headers).respond(status(error), Response::default())
}

/// How a client expects an answer without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As response headers and no body, what gRPC calls Trailers-Only.
    Native,
    /// As a trailer frame in the body.
    Web,
    /// As a trailer frame in the body, in base64.
    WebText,
}

impl Form {
    /// The form that a request's client speaks.
    pub fn of(headers: &HeaderMap) -> Self {
        let kind = content_type(headers);
        if kind.starts_with("application/grpc-web-text") {
            Self::WebText
        } else if kind.starts_with("application/grpc-web") {
            Self::Web
        } else {
            Self::Native
        }
    }

    /// Makes `status` the answer. Headers of `response` that do not concern gRPC stay.
    pub fn respond(self, status: Status, response: Response) -> Response {
        let (mut parts, _) = response.into_parts();
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            // Only when its text cannot be a header value; the code alone can.
            trailers.insert(Status::GRPC_STATUS, HeaderValue::from(i32::from(status.code())));
        }
        for name in [Status::GRPC_STATUS, Status::GRPC_MESSAGE, Status::GRPC_STATUS_DETAILS] {
            parts.headers.remove(name);
        }
        parts.headers.remove(CONTENT_LENGTH);
        let (kind, body) = match self {
            Self::Native => {
                parts.headers.extend(trailers);
                ("application/grpc", Body::empty())
            }
            Self::Web => ("application/grpc-web+proto", Body::from(frame(&trailers))),
            Self::WebText => {
                let text = STANDARD.encode(frame(&trailers));
                ("application/grpc-web-text+proto", Body::from(text))
            }
        };
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        Response::from_parts(parts, body)
    }
}

/// A trailer frame: flag 0x80, a length, and lines as HTTP/1.1 would have them.
fn frame(trailers: &HeaderMap) -> bytes::Bytes {
    let mut lines = BytesMut::new();
    for (name, value) in trailers {
        lines.put_slice(name.as_ref());
        lines.put_u8(b':');
        lines.put_slice(value.as_bytes());
        lines.put_slice(b"\r\n");
    }
    let mut frame = BytesMut::with_capacity(5 + lines.len());
    frame.put_u8(0x80);
    frame.put_u32(lines.len() as u32); // headers: nowhere near 4 GiB
    frame.put(lines);
    frame.freeze()
}

fn content_type(headers: &HeaderMap) -> &str {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn info(error: &Error) -> (Code, ErrorInfo) {
        let status = status(error);
        let detail = status::Status::decode(status.details()).unwrap();
        assert_eq!(detail.code, i32::from(status.code()));
        assert_eq!(detail.message, status.message());
        (status.code(), detail.info().unwrap())
    }

    fn reason(error: &Error) -> ErrorReason {
        info(error).1.reason()
    }

    #[test]
    fn an_error_keeps_everything_it_knows() {
        let error = Error::new(Kind::LimitExceeded, "64 media sessions are open")
            .with("limit", 64)
            .hint("Close one")
            .operation("open_stream")
            .retry_after(Duration::from_millis(1500));
        let (code, info) = info(&error);
        assert_eq!(code, Code::ResourceExhausted);
        assert_eq!(info.reason(), ErrorReason::RateLimited);
        assert_eq!(info.message, "64 media sessions are open");
        let metadata: Vec<_> =
            info.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            metadata,
            [
                ("hint", "Close one"),
                ("kind", "limit_exceeded"),
                ("limit", "64"),
                ("operation", "open_stream"),
                ("retry_after_ms", "1500"),
                ("retryable", "true"),
            ]
        );
    }

    #[test]
    fn what_is_not_found_is_told_by_the_context() {
        let missing = |key| Error::new(Kind::NotFound, "x").with(key, "y");
        assert_eq!(reason(&missing("session")), ErrorReason::SessionNotFound);
        assert_eq!(reason(&missing("path")), ErrorReason::PathNotFound);
        assert_eq!(reason(&missing("display")), ErrorReason::TargetUnavailable);
        assert_eq!(reason(&missing("window")), ErrorReason::TargetUnavailable);
        assert_eq!(info(&missing("session")).0, Code::NotFound);
    }

    #[test]
    fn a_missing_feature_is_named() {
        let error = Error::new(Kind::CapabilityMissing, "x").with("feature", "window_stream");
        let (code, detail) = info(&error);
        assert_eq!((code, detail.feature.as_str()), (Code::Unimplemented, "window_stream"));
        let codec = Error::because(Cause::CodecUnavailable, "x");
        assert_eq!(info(&codec).1.feature, "desktop_stream");
    }

    #[test]
    fn a_cause_decides_before_its_kind() {
        let by_cause = |cause| reason(&Error::because(cause, "x"));
        assert_eq!(by_cause(Cause::TicketExpired), ErrorReason::Unauthenticated);
        assert_eq!(by_cause(Cause::DiskFull), ErrorReason::DiskFull);
        assert_eq!(by_cause(Cause::DigestMismatch), ErrorReason::ChecksumMismatch);
        assert_eq!(by_cause(Cause::Declined), ErrorReason::PermissionDenied);
    }

    // The deployed clients retry it only when it is bare.
    #[test]
    fn a_passing_failure_has_no_detail() {
        let status = status(&Error::new(Kind::SpacesdNotAvailable, "starting"));
        assert_eq!((status.code(), status.details().len()), (Code::Unavailable, 0));
    }

    #[test]
    fn a_wrong_argument_is_named() {
        let issue = spaceport_types::Issue {
            path: "bitrate_kbps".into(),
            constraint: "maximum".into(),
            limit: Some("100000".into()),
        };
        let (code, info) = info(&Error::new(Kind::InvalidArgument, "x").issue(issue));
        assert_eq!(code, Code::InvalidArgument);
        assert_eq!(info.metadata["issue.bitrate_kbps"], "maximum 100000");
    }

    #[test]
    fn each_form_is_told_by_its_content_type() {
        let form = |kind: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
            (is_grpc(&headers), Form::of(&headers))
        };
        assert_eq!(form("application/grpc"), (true, Form::Native));
        assert_eq!(form("application/grpc+proto"), (true, Form::Native));
        assert_eq!(form("application/grpc-web"), (true, Form::Web));
        assert_eq!(form("application/grpc-web+proto"), (true, Form::Web));
        assert_eq!(form("application/grpc-web-text"), (true, Form::WebText));
        assert!(!form("application/json").0);
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
