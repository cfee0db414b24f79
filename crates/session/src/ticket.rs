//! Tickets: short-lived secrets that open exactly one thing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use spaceport_types::{Cause, Error, Kind, Redacted, Result};

/// How long an expired ticket is still known as expired, rather than as never issued.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Tickets kept at most. Far more than sixty-four sessions need; a flood of requests for tickets
/// ends here.
const CAPACITY: usize = 4096;

/// A freshly issued ticket.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// 128 random bits, base64url without padding.
    pub secret: Redacted<String>,
    /// When it stops opening anything.
    pub expires_at: Instant,
}

/// Issued tickets and what each of them opens.
///
/// Only their hashes are kept, so neither a memory dump nor the time a lookup takes tells a
/// ticket.
#[derive(Debug)]
pub struct Tickets<T> {
    issued: HashMap<[u8; 32], Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    grant: T,
    expires_at: Instant,
}

impl<T> Default for Tickets<T> {
    fn default() -> Self {
        Self { issued: HashMap::new() }
    }
}

impl<T: Clone> Tickets<T> {
    /// Issues a ticket that opens `grant` for `ttl`.
    ///
    /// # Errors
    ///
    /// `limit_exceeded` when too many are out, `io` when the system has no random bytes.
    pub fn issue(&mut self, grant: T, ttl: Duration, now: Instant) -> Result<Ticket> {
        if self.issued.len() >= CAPACITY {
            self.sweep(now);
            if self.issued.len() >= CAPACITY {
                return Err(Error::new(Kind::LimitExceeded, "too many tickets are out")
                    .with("limit", CAPACITY)
                    .retry_after(Duration::from_secs(60))
                    .hint("Wait until some have expired"));
            }
        }
        let secret = random_name()?;
        let expires_at = now + ttl;
        self.issued.insert(hash(&secret), Entry { grant, expires_at });
        Ok(Ticket { secret: Redacted::new(secret), expires_at })
    }

    /// What a ticket opens. It can be redeemed again until it expires.
    ///
    /// # Errors
    ///
    /// `unauthenticated` for a ticket that was never issued (or expired long ago), `stream` with
    /// cause `ticket_expired` for one whose time is over.
    pub fn redeem(&self, secret: &str, now: Instant) -> Result<T> {
        let Some(entry) = self.issued.get(&hash(secret)) else {
            return Err(Error::new(Kind::Unauthenticated, "the ticket is not known here")
                .hint("Open the stream again for a fresh ticket"));
        };
        if now >= entry.expires_at {
            return Err(Error::because(Cause::TicketExpired, "the ticket has expired")
                .hint("Open the stream again for a fresh ticket"));
        }
        Ok(entry.grant.clone())
    }

    /// Forgets tickets that expired long ago.
    pub fn sweep(&mut self, now: Instant) {
        self.issued.retain(|_, entry| now < entry.expires_at + REMEMBERED);
    }
}

/// 128 random bits as text.
pub(crate) fn random_name() -> Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(URL_SAFE_NO_PAD.encode(bits))
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn a_ticket_opens_its_grant_until_it_expires() {
        let now = Instant::now();
        let mut tickets = Tickets::default();
        let ticket = tickets.issue(7, Duration::from_secs(60), now).unwrap();
        let secret = ticket.secret.expose();
        assert_eq!(secret.len(), 22);

        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(tickets.redeem(secret, at(59)).unwrap(), 7);
        let late = tickets.redeem(secret, at(60)).unwrap_err();
        assert_eq!(late.cause(), Some(Cause::TicketExpired));
        assert_eq!(tickets.redeem("guess", now).unwrap_err().kind(), Kind::Unauthenticated);

        tickets.sweep(at(60 + 601));
        assert_eq!(tickets.redeem(secret, at(59)).unwrap_err().kind(), Kind::Unauthenticated);
    }
}
