//! A machine as another relay has it: reached through this one.
//!
//! What comes down a tunnel from another relay is answered as a machine answers it. Requests go on to the
//! machine, each on a stream of its own. Media does not: this relay watches the machine once, and the other one
//! is a viewer here, whom the machine judges like any.

use std::fmt;

use axum::Router;
use axum::extract::Request;
use axum::response::Response;
use http::StatusCode;
use spaceport_types::MachineId;

use crate::media::Guest;
use crate::proxy;
use crate::server::Shared;
use crate::uplink::Via;

/// One machine, for one other relay. Cloning it makes another handle.
#[derive(Clone)]
pub(crate) struct Hop {
    shared: Shared,
    machine: MachineId,
    media: Guest,
}

impl Hop {
    pub(crate) fn new(shared: Shared, machine: MachineId) -> Self {
        let media = Guest::new(shared.edge.host(machine.clone()));
        Self { shared, machine, media }
    }

    /// Answers what the other relay's clients ask.
    pub(crate) fn router(&self) -> Router {
        let hop = self.clone();
        Router::new().fallback(move |request: Request| async move { hop.answer(request).await })
    }

    /// Lets the other relay watch what its viewers have shown a ticket for.
    pub(crate) fn media(&self) -> Guest {
        self.media.clone()
    }

    async fn answer(&self, request: Request) -> Response {
        let Some(via) = request.extensions().get::<Via>().cloned() else {
            // Every request of a tunnel has one.
            let mut response = Response::default();
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        };
        proxy::forward_further(&self.shared, &self.machine, &via, request).await
    }
}

impl fmt::Debug for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hop").field("machine", &self.machine).finish_non_exhaustive()
    }
}
