//! Who may watch over WHEP.
//!
//! A media ticket opens its session. The Space token or a viewer ticket opens the primary display:
//! that is what a plain WHEP player has, a URL and a bearer secret.

use http::header::AUTHORIZATION;
use spaceport_session::Policy;
use spaceport_transport::whep;
use spaceport_types::{Error, Kind, Result, SessionId};
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::Instant;

use crate::auth::bearer;
use crate::service::{OpenRequest, Service};

/// Judges WHEP requests with the service's own secrets.
pub(crate) struct Gate {
    pub(crate) service: Service,
}

impl whep::http::Gate for Gate {
    fn authorize(&self, call: &whep::http::Call<'_>) -> Result<whep::http::Grant> {
        let parameter = |name| call.query.and_then(|query| parameter(query, name));
        let secret = bearer(call.headers, AUTHORIZATION.as_str()).or_else(|| parameter("ticket"));
        let Some(secret) = secret else {
            return Err(Error::new(
                Kind::Unauthenticated,
                "the request carries no token or ticket",
            )
            .hint("Send `Authorization: Bearer <token or ticket>`"));
        };
        let session = self.session(secret, parameter("display"))?;
        Ok(whep::http::Grant { session, codecs: self.service.video_codecs() })
    }
}

impl Gate {
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
