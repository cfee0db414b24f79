//! Bodies of requests: whole, small, and soon.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::response::Response;
use spaceport_types::{Error, Kind};
use tokio::time::timeout;

use crate::problem::with_status;

/// How long a client may take over the body of a request.
///
/// The largest that is read here is 64 KiB, so this is a matter of latency and not of bandwidth.
/// Without a limit, a client that sends a byte a minute keeps its connection for good, and a
/// gateway has only so many.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a whole body of at most `max` bytes.
///
/// # Errors
///
/// The answer to the request: 413 when the body is longer, 408 when it does not come.
pub async fn read(body: Body, max: usize) -> Result<Bytes, Response> {
    match timeout(PATIENCE, to_bytes(body, max)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => {
            // The other reason a body ends early is a client that is gone, and reads no answer.
            let error = Error::new(Kind::InvalidArgument, "the body is too large")
                .with("limit", max)
                .source(error.to_string());
            Err(with_status(&error, 413))
        }
        Err(_) => {
            let error = Error::new(Kind::InvalidArgument, "the body did not come in time")
                .with("limit_ms", PATIENCE.as_millis())
                .hint("Send the whole body at once");
            Err(with_status(&error, 408))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_not_waited_for() {
        let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
        let refused = read(Body::from_stream(never), 1024).await.unwrap_err();
        assert_eq!(refused.status(), 408);
        assert_eq!(refused.headers()["content-type"], "application/problem+json");
    }

    #[tokio::test]
    async fn a_body_is_as_long_as_it_may_be_and_no_longer() {
        assert_eq!(read(Body::from("1234"), 4).await.unwrap(), "1234");
        assert_eq!(read(Body::from("12345"), 4).await.unwrap_err().status(), 413);
    }
}
