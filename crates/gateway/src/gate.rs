//! Who may watch over WHEP.
//!
//! A media ticket opens its session. The Space token or a viewer ticket opens the primary display:
//! that is what a plain WHEP player has, a URL and a bearer secret.

use std::time::SystemTime;

use http::header::AUTHORIZATION;
use spaceport_session::Policy;
use spaceport_transport::whep;
use spaceport_transport::whep::http::IceServer;
use spaceport_types::{Error, Kind, Result, SessionId};
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::auth::bearer;
use crate::ice_servers::IceServers;
use crate::service::{OpenRequest, Service};

/// Judges WHEP requests with the service's own secrets.
pub(crate) struct Gate {
    pub(crate) service: Service,
    pub(crate) ice_servers: IceServers,
}

impl whep::http::Gate for Gate {
    fn authorize(&self, call: &whep::http::Call<'_>) -> Result<whep::http::Grant> {
        let Some(secret) = secret(call) else {
            return Err(Error::new(
                Kind::Unauthenticated,
                "the request carries no token or ticket",
            )
            .hint("Send `Authorization: Bearer <token or ticket>`"));
        };
        let display = call.query.and_then(|query| parameter(query, "display"));
        let session = self.session(secret, display)?;
        Ok(whep::http::Grant { session, codecs: self.service.video_codecs() })
    }

    fn ice_servers(&self, call: &whep::http::Call<'_>) -> Vec<IceServer> {
        if !secret(call).is_some_and(|secret| self.opens(secret)) {
            return Vec::new();
        }
        self.ice_servers.for_viewer(wall_clock()).unwrap_or_else(|error| {
            tracing::warn!(%error, "viewers are told of no ICE servers");
            Vec::new()
        })
    }
}

/// The token or ticket of a request.
fn secret<'a>(call: &whep::http::Call<'a>) -> Option<&'a str> {
    bearer(call.headers, AUTHORIZATION.as_str()).or_else(|| parameter(call.query?, "ticket"))
}

/// The time that a TURN server has, too.
#[expect(clippy::disallowed_methods, reason = "credentials end at a time of day")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

impl Gate {
    /// Whether `secret` opens anything, without opening it.
    fn opens(&self, secret: &str) -> bool {
        let (auth, now) = (self.service.auth(), Instant::now().into_std());
        auth.is_token(secret)
            || auth.viewer(secret, now).is_ok()
            || self.service.sessions().redeem(secret, now).is_ok()
    }

    fn session(&self, secret: &str, display: Option<&str>) -> Result<SessionId> {
        let request = OpenRequest { display: display.map(str::to_owned), ..OpenRequest::default() };
        if self.service.auth().is_token(secret) {
            return self.wait(self.service.open_shared(request, Policy::ViewOnly));
        }
        let now = Instant::now().into_std();
        match self.service.auth().viewer(secret, now) {
            Ok(grant) => self.wait(self.service.open_shared(request, grant.policy)),
            Err(error) if error.kind() == Kind::Unauthenticated => {
                self.service.sessions().redeem(secret, now)
            }
            Err(error) => Err(error),
        }
    }

    /// The gate is asked from a task and answers at once, give or take a question to the X server.
    fn wait(&self, opening: impl Future<Output = Result<SessionId>>) -> Result<SessionId> {
        block_in_place(|| Handle::current().block_on(opening))
    }
}

/// One parameter of a query. Tickets and display ids need no percent-encoding.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}
