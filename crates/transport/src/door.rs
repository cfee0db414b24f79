//! Where a ticket leads.
//!
//! Transports take in whoever shows a ticket, and ask a [`Door`] what it opens: the sessions of this machine,
//! or, at a relay, those of the machine that the viewer names.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use spaceport_session::Sessions;
use spaceport_types::{Error, Kind, Result, SessionId};
use tokio::time::Instant;

/// The longest ticket worth a look; ours have 22 characters.
const MAX_TICKET: usize = 256;

/// Judges tickets.
pub trait Door: fmt::Debug + Send + Sync + 'static {
    /// What `ticket` opens, at `machine` if the viewer names one.
    ///
    /// # Errors
    ///
    /// What the viewer is told: `unauthenticated` for an unknown ticket, `stream` with cause
    /// `ticket_expired` or `session_closed`, and so on.
    fn redeem<'a>(
        &'a self,
        machine: Option<&'a str>,
        ticket: &'a str,
    ) -> BoxFuture<'a, Result<Pass>>;
}

/// What a ticket opens.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Where the session is.
    pub sessions: Sessions,
    /// The session.
    pub session: SessionId,
    /// Reads the clock that its packets are stamped with.
    pub clock: Clock,
}

/// A clock that packets are stamped with.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// The clock that `now` reads.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time on it.
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

/// What serving viewers needs. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Media {
    door: Arc<dyn Door>,
}

impl Media {
    /// Serves whom `door` lets in.
    pub fn new(door: impl Door) -> Self {
        Self { door: Arc::new(door) }
    }

    /// Serves the sessions of this machine, whose packets are stamped with the clock that `clock` reads.
    pub fn of(sessions: Sessions, clock: fn() -> Duration) -> Self {
        Self::new(Local { sessions, clock: Clock::new(clock) })
    }

    /// What a viewer's ticket opens.
    pub(crate) async fn redeem(&self, machine: Option<&str>, ticket: Option<&str>) -> Result<Pass> {
        let Some(ticket) = ticket.filter(|ticket| ticket.len() <= MAX_TICKET) else {
            return Err(Error::new(Kind::Unauthenticated, "the request carries no media ticket")
                .hint("Open a stream first, and connect to the path it returns"));
        };
        self.door.redeem(machine, ticket).await
    }
}

/// This machine's own sessions. Which machine a viewer means is of no interest: there is one.
#[derive(Debug)]
struct Local {
    sessions: Sessions,
    clock: Clock,
}

impl Door for Local {
    fn redeem<'a>(&'a self, _: Option<&'a str>, ticket: &'a str) -> BoxFuture<'a, Result<Pass>> {
        let redeemed = self.sessions.redeem(ticket, Instant::now().into_std());
        let pass = redeemed.map(|session| Pass {
            sessions: self.sessions.clone(),
            session,
            clock: self.clock.clone(),
        });
        Box::pin(std::future::ready(pass))
    }
}

/// The machine that a path names, and the path at that machine: a relay serves each at `/m/<id>/…`.
pub fn machine(path: &str) -> (Option<&str>, &str) {
    let below = path.strip_prefix("/m/").and_then(|rest| {
        let end = rest.find('/')?;
        Some((Some(&rest[..end]), &rest[end..]))
    });
    below.unwrap_or((None, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_machine_or_none() {
        assert_eq!(machine("/media"), (None, "/media"));
        assert_eq!(machine("/m/box-7/media"), (Some("box-7"), "/media"));
        assert_eq!(machine("/m//media"), (Some(""), "/media"));
        for path in ["", "/", "/m", "/m/", "/m/box-7", "/media/m/box-7/"] {
            assert_eq!(machine(path), (None, path));
        }
    }
}
