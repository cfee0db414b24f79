//! What an endpoint's answer means that is no acceptance, in words for whoever chose the endpoint.

use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde::Deserialize;
use spaceport_types::{Cause, Error, Kind};
use url::Url;

use super::super::exchange::{Reply, place};

/// The longest wait that an endpoint is believed.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Characters of its own words that are handed on.
const LONGEST_SAID: usize = 300;

/// Why an offer was not taken that was posted to `url`.
pub(super) fn of_offer(url: &Url, reply: &Reply) -> Error {
    let place = place(url);
    let status = reply.status.as_u16();
    let refused = |message| Error::because(Cause::PublishRefused, message);
    let error = match status {
        401 => Error::new(Kind::Unauthenticated, format!("`{place}` does not let in without a valid token"))
            .hint("Give its token with `--token-file`, or in `SPACEPORT_WHIP_TOKEN`"),
        403 => Error::new(Kind::PermissionDenied, format!("`{place}` does not allow publishing with this token"))
            .hint("Use a token that may publish there"),
        404 | 410 => Error::new(Kind::NotFound, format!("`{place}` has no endpoint of that address"))
            .hint("Check the path of the address; servers name it in their documentation of WHIP"),
        405 | 415 | 501 => refused(format!("`{place}` takes no offer at that address"))
            .hint("Give the address of a WHIP endpoint; it takes a `POST` of `application/sdp`"),
        406 => Error::because(Cause::NoDecoder, format!("`{place}` takes none of the codecs that this machine sends"))
            .hint("Have the endpoint take H.264; `spaceport doctor` lists what this machine encodes"),
        // Often a session of ours that the endpoint has not missed yet.
        409 => unavailable(format!("`{place}` has somebody publishing there already"))
            .hint("End what else publishes there, or wait until the endpoint has found out that it is gone"),
        413 => refused(format!("`{place}` finds the offer too large"))
            .hint("Raise its limit for requests; an offer has a few kilobytes"),
        429 | 500.. => unavailable(format!("`{place}` cannot take the stream now"))
            .hint("See whether the endpoint is well, and try again"),
        300..=399 => refused(format!("`{place}` leads elsewhere in a way that an offer cannot follow"))
            .hint("Give the address that it leads to"),
        200..=299 => refused(format!("`{place}` answered {status}, and not 201"))
            .hint("Give the address of a WHIP endpoint"),
        _ => refused(format!("`{place}` does not take the offer"))
            .hint("See what the endpoint logs about it"),
    };
    let error = error.with("status", status).with("address", &place);
    let error = match said(reply) {
        Some(said) => error.with("said", said),
        None => error,
    };
    match retry_after(reply) {
        Some(wait) if matches!(status, 409 | 429 | 503) => error.retry_after(wait),
        _ => error,
    }
}

/// The answer is there, and is no SDP.
pub(super) fn of_answer(url: &Url, reply: &Reply) -> Error {
    let sort = reply.headers.get(CONTENT_TYPE).and_then(|sort| sort.to_str().ok());
    let sort: String = sort.unwrap_or("something").chars().take(80).collect();
    let place = place(url);
    Error::because(
        Cause::PublishRefused,
        format!("`{place}` answered with `{sort}` that is no SDP"),
    )
    .with("address", place)
    .with("content_type", sort)
    .hint("Give the address of a WHIP endpoint, not of a page or a player")
}

/// Something that may be over soon.
pub(super) fn unavailable(message: String) -> Error {
    Error::because(Cause::PublishUnavailable, message)
}

/// How long the endpoint wants to be left alone.
fn retry_after(reply: &Reply) -> Option<Duration> {
    let seconds = reply.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

/// What the endpoint says itself: a problem's detail (RFC 9457), or plain text.
fn said(reply: &Reply) -> Option<String> {
    #[derive(Deserialize)]
    struct Problem {
        detail: Option<String>,
        title: Option<String>,
    }
    let sort = reply.headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let text = if sort.contains("json") {
        let problem: Problem = serde_json::from_slice(&reply.body).ok()?;
        problem.detail.or(problem.title)?
    } else if sort.starts_with("text/plain") {
        String::from_utf8_lossy(&reply.body).trim().to_owned()
    } else {
        return None;
    };
    let short: String = text.chars().take(LONGEST_SAID).collect();
    (!short.is_empty()).then_some(short)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;

    fn reply(status: u16, headers: &[(&'static str, &'static str)], body: &'static str) -> Reply {
        let headers: HeaderMap = headers
            .iter()
            .map(|&(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect();
        let status = StatusCode::from_u16(status).unwrap();
        Reply { status, headers, body: Bytes::from_static(body.as_bytes()) }
    }

    fn url() -> Url {
        Url::parse("https://sfu.example/whip/a-secret-key").unwrap()
    }

    #[test]
    fn every_status_has_a_kind_and_a_next_step_and_shows_no_secret() {
        for (status, kind, cause, again) in [
            (401, Kind::Unauthenticated, None, false),
            (403, Kind::PermissionDenied, None, false),
            (404, Kind::NotFound, None, false),
            (400, Kind::Stream, Some(Cause::PublishRefused), false),
            (405, Kind::Stream, Some(Cause::PublishRefused), false),
            (406, Kind::Stream, Some(Cause::NoDecoder), false),
            (409, Kind::Stream, Some(Cause::PublishUnavailable), true),
            (415, Kind::Stream, Some(Cause::PublishRefused), false),
            (422, Kind::Stream, Some(Cause::PublishRefused), false),
            (429, Kind::Stream, Some(Cause::PublishUnavailable), true),
            (500, Kind::Stream, Some(Cause::PublishUnavailable), true),
            (503, Kind::Stream, Some(Cause::PublishUnavailable), true),
            (302, Kind::Stream, Some(Cause::PublishRefused), false),
            (204, Kind::Stream, Some(Cause::PublishRefused), false),
        ] {
            let error = of_offer(&url(), &reply(status, &[], ""));
            let report = error.report();
            assert_eq!(
                (report.kind, report.cause, report.retryable),
                (kind, cause, again),
                "{status}"
            );
            assert!(report.hint.is_some(), "{status}");
            assert!(!format!("{report:?}").contains("a-secret-key"), "{report:?}");
        }
    }

    #[test]
    fn an_endpoint_says_when_and_why_and_is_not_believed_beyond_reason() {
        let wait = |value| {
            let reply = reply(503, &[("retry-after", value)], "");
            of_offer(&url(), &reply).report().retry_after_ms
        };
        assert_eq!(wait("7"), Some(7_000));
        assert_eq!(wait("99999999"), Some(3_600_000));
        assert_eq!(wait("Wed, 21 Oct 2026 07:28:00 GMT"), None);
        let problem =
            reply(422, &[("content-type", "application/problem+json")], r#"{"detail":"no room"}"#);
        assert_eq!(of_offer(&url(), &problem).context("said"), Some("no room"));
        let page = reply(422, &[("content-type", "text/html")], "<html>");
        assert_eq!(of_offer(&url(), &page).context("said"), None);
    }
}
