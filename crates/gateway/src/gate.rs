//! Who may watch over WHEP.
//!
//! A media ticket opens its session. The Space token or a viewer ticket opens the primary display:
//! that is what a plain WHEP player has, a URL and a bearer secret. Who comes by a relay is judged here, too.

use std::time::SystemTime;

use futures_util::future::{BoxFuture, ready};
use spaceport_media::clock;
use spaceport_relay::media;
use spaceport_transport::whep::http::{Call, IceServer};
use spaceport_transport::{Clock, Pass, whep};
use spaceport_types::{Kind, Result, SessionId};
use spaceport_wire::relay_media::Way;
use tokio::time::Instant;

use crate::auth::ViewerGrant;
use crate::service::{OpenRequest, Service};

/// Judges WHEP requests with the service's own secrets.
pub(crate) struct Gate {
    pub(crate) service: Service,
    pub(crate) ice_servers: whep::IceServers,
}

impl whep::http::Gate for Gate {
    fn authorize<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<whep::http::Grant>> {
        Box::pin(async move {
            let session = self.session(call.secret()?, call.parameter("display")).await?;
            let (sessions, codecs) = (self.service.sessions(), self.service.video_codecs());
            Ok(whep::http::Grant { sessions: sessions.clone(), session, codecs })
        })
    }

    fn ice_servers<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Vec<IceServer>> {
        let known = call.secret().is_ok_and(|secret| self.opens(secret));
        let servers =
            if known { self.ice_servers.for_viewer(wall_clock()) } else { Ok(Vec::new()) };
        let servers = servers.unwrap_or_else(|error| {
            tracing::warn!(%error, "viewers are told of no ICE servers");
            Vec::new()
        });
        Box::pin(ready(servers))
    }
}

impl media::Host for Gate {
    fn admit<'a>(
        &'a self,
        secret: &'a str,
        way: &'a Way,
    ) -> BoxFuture<'a, Result<media::Admission>> {
        Box::pin(async move {
            let session = match way {
                Way::Socket => self.service.sessions().redeem(secret, Instant::now().into_std())?,
                Way::Whep { display } => self.session(secret, display.as_deref()).await?,
            };
            let (sessions, clock) = (self.service.sessions().clone(), Clock::new(clock::now));
            let pass = Pass { sessions, session, clock };
            Ok(media::Admission { pass, codecs: self.service.video_codecs(), key: None })
        })
    }
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

    async fn session(&self, secret: &str, display: Option<&str>) -> Result<SessionId> {
        let request = OpenRequest { display: display.map(str::to_owned), ..OpenRequest::default() };
        if self.service.auth().is_token(secret) {
            return self.service.open_shared(request).await;
        }
        let now = Instant::now().into_std();
        match self.service.auth().viewer(secret, now) {
            Ok(ViewerGrant { policy, key }) => {
                self.service.open_shared(OpenRequest { policy, key, ..request }).await
            }
            Err(error) if error.kind() == Kind::Unauthenticated => {
                self.service.sessions().redeem(secret, now)
            }
            Err(error) => Err(error),
        }
    }
}
