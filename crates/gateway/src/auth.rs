//! Who may ask.
//!
//! The Space token opens everything; a viewer ticket opens the viewer. Media tickets are the
//! sessions' own and are judged where viewers attach.

use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use spaceport_session::{Policy, Ticket, Tickets};
use spaceport_transport::bearer;
use spaceport_types::{Error, Kind, MediaKey, Redacted, Result};
use std::sync::Mutex;
use subtle::ConstantTimeEq as _;

use crate::{grpc, http as surface};

/// The header that carries the Space token when an outer hop owns `authorization`.
const SPACE_AUTHORIZATION: &str = "x-cua-env-authorization";

/// The longest a viewer ticket may live.
pub(crate) const VIEWER_TICKET_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// What a viewer ticket allows.
#[derive(Clone, Debug)]
pub(crate) struct ViewerGrant {
    pub(crate) policy: Policy,
    /// Seals what the page shows.
    pub(crate) key: Option<MediaKey>,
}

/// The secrets of one gateway.
#[derive(Debug)]
pub(crate) struct Auth {
    /// Compared as a hash, so that neither length nor content shows in the time it takes.
    token: [u8; 32],
    viewers: Mutex<Tickets<ViewerGrant>>,
}

impl Auth {
    pub(crate) fn new(token: &Redacted<String>) -> Self {
        Self { token: hash(token.expose()), viewers: Mutex::default() }
    }

    /// Checks the Space token of a request.
    ///
    /// # Errors
    ///
    /// `unauthenticated`.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<()> {
        let mut seen = false;
        for name in [AUTHORIZATION.as_str(), SPACE_AUTHORIZATION] {
            if let Some(token) = bearer(headers, name) {
                seen = true;
                if self.is_token(token) {
                    return Ok(());
                }
            }
        }
        let message = if seen {
            "the token is not this Space's token"
        } else {
            "the request carries no token"
        };
        Err(Error::new(Kind::Unauthenticated, message)
            .hint("Give the token that the Space was started with; over HTTP, as `Authorization: Bearer <token>`"))
    }

    pub(crate) fn is_token(&self, token: &str) -> bool {
        hash(token).ct_eq(&self.token).into()
    }

    /// Issues a ticket that opens the viewer page.
    pub(crate) fn viewer_ticket(
        &self,
        grant: ViewerGrant,
        ttl: Duration,
        now: Instant,
    ) -> Result<Ticket> {
        self.viewers().issue(grant, ttl.min(VIEWER_TICKET_TTL), now)
    }

    /// What a viewer ticket allows.
    pub(crate) fn viewer(&self, ticket: &str, now: Instant) -> Result<ViewerGrant> {
        self.viewers().redeem(ticket, now)
    }

    pub(crate) fn sweep(&self, now: Instant) {
        self.viewers().sweep(now);
    }

    fn viewers(&self) -> std::sync::MutexGuard<'_, Tickets<ViewerGrant>> {
        self.viewers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Lets a request through that carries the Space token; answers any other in its own language.
pub(crate) async fn require_token(
    State(auth): State<std::sync::Arc<Auth>>,
    request: Request,
    next: Next,
) -> Response {
    match auth.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) if grpc::is_grpc(request.headers()) => {
            grpc::error_response(request.headers(), &error)
        }
        Err(error) => surface::problem(&error),
    }
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn either_header_opens_and_nothing_else_does() {
        let auth = Auth::new(&Redacted::new("s3cret".to_owned()));
        let opens = |pairs: &[(&'static str, &str)]| auth.check(&headers(pairs)).is_ok();
        assert!(opens(&[("authorization", "Bearer s3cret")]));
        assert!(opens(&[("x-cua-env-authorization", "Bearer s3cret")]));
        let both = [
            ("authorization", "Bearer of-an-outer-hop"),
            ("x-cua-env-authorization", "Bearer s3cret"),
        ];
        assert!(opens(&both));
        for wrong in ["s3cret", "Basic s3cret", "Bearer s3cre", "Bearer "] {
            assert!(!opens(&[("authorization", wrong)]), "{wrong}");
        }
        assert!(!opens(&[]));
    }
}
