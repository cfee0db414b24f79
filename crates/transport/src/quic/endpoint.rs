//! The UDP port, and who is let in.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn::{Incoming, TokioRuntime, VarInt};
use spaceport_types::{Error, Kind, Result};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::identity::Identity;
use super::link::Links;
use super::{opening, settings, socket};
use crate::door::Media;
use crate::viewer;

/// How an endpoint is reached, and by how many.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The address of the UDP socket. Port 0 takes any.
    pub listen: SocketAddr,
    /// Connections at one time. Further ones are refused, and those that are open stay.
    pub max_connections: usize,
    /// Of those, clients that have not shown a ticket yet.
    pub max_opening: usize,
    /// So many clients without a ticket make this a flood: from then on a client has to show that its address
    /// is its own before anything is kept for it.
    pub validate_above: usize,
    /// How long a client may take from its first packet to its ticket.
    pub patience: Duration,
    /// The links that are taken beside viewers, if any are.
    pub links: Option<Links>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            max_connections: 1024,
            // Those of 64 sessions of 8 viewers may all come at once; each has shown that its address is its own.
            max_opening: 512,
            validate_above: 16,
            // Some round trips to the other side of the world, on a bad day.
            patience: Duration::from_secs(6),
            links: None,
        }
    }
}

/// A handle to a running endpoint. Cloning it makes another.
#[derive(Clone, Debug)]
pub struct Endpoint {
    identity: Identity,
    local: SocketAddr,
    shutdown: Arc<Notify>,
}

/// Serves viewers; see [`Driver::run`].
#[derive(Debug)]
pub struct Driver {
    endpoint: quinn::Endpoint,
    media: Media,
    connections: Arc<Semaphore>,
    opening: Arc<Semaphore>,
    max_opening: usize,
    validate_above: usize,
    patience: Duration,
    links: Option<Links>,
    shutdown: Arc<Notify>,
    refused: AtomicU64,
}

/// Binds the socket. Nothing is served before [`Driver::run`]. To be called within a Tokio runtime.
///
/// # Errors
///
/// `io` when the address cannot be bound.
pub fn bind(config: Config, identity: Identity, media: Media) -> Result<(Endpoint, Driver)> {
    let Config { listen, max_connections, max_opening, validate_above, patience, links } = config;
    let unbound = |error: std::io::Error| {
        Error::new(Kind::Io, format!("cannot listen on UDP `{listen}`"))
            .with("address", listen)
            .hint("Stop what listens there, or choose another port, or 0 for any")
            .source(error)
    };
    let socket = socket::bind(listen).map_err(unbound)?;
    let server = settings::server(Arc::new(identity.clone()), links.as_ref())?;
    let own = settings::endpoint(&identity.secret())?;
    let runtime = Arc::new(TokioRuntime);
    let endpoint = quinn::Endpoint::new(own, Some(server), socket, runtime).map_err(unbound)?;
    let local = endpoint.local_addr()?;
    let shutdown = Arc::new(Notify::new());
    let driver = Driver {
        endpoint,
        media,
        connections: Arc::new(Semaphore::new(max_connections)),
        opening: Arc::new(Semaphore::new(max_opening)),
        max_opening,
        validate_above,
        patience,
        links,
        shutdown: Arc::clone(&shutdown),
        refused: AtomicU64::new(0),
    };
    Ok((Endpoint { identity, local, shutdown }, driver))
}

impl Endpoint {
    /// The address of the UDP socket, with the port really bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// What it shows its clients.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Ends the driver, once viewers have been told or a few seconds have passed. Their sessions are to be
    /// closed first.
    pub fn shut_down(&self) {
        self.shutdown.notify_one();
    }
}

impl Driver {
    /// Serves until [`Endpoint::shut_down`].
    pub async fn run(self) {
        let mut viewers = JoinSet::new();
        let mut reports = interval(REPORT);
        reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.shutdown.notified() => break,
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.admit(incoming, &mut viewers),
                    None => break,
                },
                Some(ended) = viewers.join_next() => report(ended),
                _ = reports.tick() => self.report(),
            }
        }
        let leave = async { while viewers.join_next().await.is_some() {} };
        if timeout(DRAIN, leave).await.is_err() {
            tracing::debug!("some viewers were not told in time");
        }
        viewers.shutdown().await;
        self.endpoint.close(VarInt::from_u32(0), b"");
        // So that the last packets leave.
        let _ = timeout(DRAIN, self.endpoint.wait_idle()).await;
    }

    /// Lets one in, if there is room.
    fn admit(&self, incoming: Incoming, viewers: &mut JoinSet<()>) {
        let under_way = self.max_opening - self.opening.available_permits();
        if under_way >= self.validate_above && !incoming.remote_address_validated() {
            // It comes back with a token that only who receives at its address can have.
            if incoming.retry().is_err() {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let permits = Arc::clone(&self.connections).try_acquire_owned().and_then(|connection| {
            Ok((connection, Arc::clone(&self.opening).try_acquire_owned()?))
        });
        let Ok((connection, opening)) = permits else {
            incoming.refuse();
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let opening =
            Opening { patience: self.patience, links: self.links.clone(), permit: opening };
        viewers.spawn(serve(incoming, self.media.clone(), connection, opening));
    }

    /// Says how many were refused. Not at each, or who floods the port floods the log.
    fn report(&self) {
        let refused = self.refused.swap(0, Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, "too many QUIC connections");
        }
    }
}

/// A client without a ticket.
struct Opening {
    patience: Duration,
    links: Option<Links>,
    permit: OwnedSemaphorePermit,
}

async fn serve(
    incoming: Incoming,
    media: Media,
    connection: OwnedSemaphorePermit,
    opening: Opening,
) {
    let opened = opening::open(incoming, &media, opening.links.as_ref(), opening.patience).await;
    drop(opening.permit);
    if let Some((pass, carrier)) = opened {
        viewer::serve(pass, None, carrier).await;
    }
    drop(connection);
}

fn report(ended: std::result::Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "the task of a viewer failed");
    }
}

/// How long viewers get to be told that it is over.
const DRAIN: Duration = Duration::from_secs(3);

/// How often refusals are said.
const REPORT: Duration = Duration::from_secs(5);
