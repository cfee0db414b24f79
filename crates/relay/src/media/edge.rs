//! The relay's side: who comes for which machine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::http::Method;
use futures_util::future::BoxFuture;
use spaceport_session::{Limits, Sessions};
use spaceport_transport::whep::IceServers;
use spaceport_transport::whep::http::{Call, Gate, Grant, IceServer};
use spaceport_transport::{Door, Media, Pass, machine as named, page, websocket, whep};
use spaceport_types::{Error, Kind, MachineId, Result, SessionId};
use spaceport_wire::relay_media::{Resume, Way};
use tokio::time::Instant;

use super::guest::{Admission, Host};
use super::machine::{Entry, Machine};
use crate::tunnel::Tunnel;
use crate::wall_clock;

/// The longest secret worth a machine's look.
const MAX_SECRET: usize = 1024;

/// Finds machines.
pub trait Machines: fmt::Debug + Send + Sync + 'static {
    /// The tunnel to a machine.
    ///
    /// # Errors
    ///
    /// `not_found` for one that nobody knows, `relay` for one that is not connected.
    fn find<'a>(&'a self, machine: &'a MachineId) -> BoxFuture<'a, Result<Tunnel>>;

    /// The machine has let in a viewer. Returns once that is written down, and then the viewer is served.
    fn attached<'a>(&'a self, machine: &'a MachineId, attached: Attached) -> BoxFuture<'a, ()>;
}

/// Who was let in.
#[derive(Clone, Debug)]
pub struct Attached {
    /// To which session.
    pub session: SessionId,
    /// By which way: `socket` or `whep`.
    pub way: &'static str,
}

/// Where viewers come in. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Edge {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: Arc<dyn Machines>,
    limits: Limits,
    /// What WebRTC viewers are told of.
    ice_servers: IceServers,
    /// Those that somebody watches; so there are no more than the directory has.
    machines: Mutex<BTreeMap<MachineId, Arc<Machine>>>,
    /// What those carried that are not among them any more.
    forgotten: Mutex<Carried>,
}

/// What an edge carries, and has carried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Carried {
    /// Sessions of machines that are served now.
    pub(crate) sessions: u64,
    /// Viewers now.
    pub(crate) viewers: u64,
    /// Bytes of pictures that came from machines, once for all viewers.
    pub(crate) bytes: u64,
    /// Packets that were handed to viewers, and those that slow ones missed.
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
}

impl Carried {
    fn add(&mut self, sessions: &Sessions) {
        let counters = sessions.counters();
        self.sessions += sessions.len() as u64;
        self.viewers += counters.viewers.get();
        self.bytes += counters.encoded_bytes.get();
        self.delivered += counters.delivered.get();
        self.lost += counters.lost.get();
    }
}

impl Edge {
    /// Serves the machines of `directory`, each within `limits`, and tells WebRTC viewers of `ice_servers`.
    pub fn new(directory: Arc<dyn Machines>, limits: Limits, ice_servers: IceServers) -> Self {
        Self {
            inner: Arc::new(Inner {
                directory,
                limits,
                ice_servers,
                machines: Mutex::default(),
                forgotten: Mutex::default(),
            }),
        }
    }

    /// The limits of a relay: as many viewers as come, of as many sessions as a machine has.
    pub fn limits() -> Limits {
        Limits { sockets_per_session: 10_000, peers_per_session: 10_000, ..Limits::default() }
    }

    /// What the transports need.
    pub fn media(&self) -> Media {
        Media::new(self.clone())
    }

    /// `/m/<id>/media`, `/m/<id>/whep`, that one over `endpoint`, and `/m/<id>/viewer/`.
    pub fn routes(&self, endpoint: whep::Endpoint) -> Router {
        let peers = whep::http::State::new(endpoint, Arc::new(self.clone()));
        let routes =
            websocket::router(self.media()).merge(whep::http::router(peers)).merge(page::router());
        Router::new().nest("/m/{id}", routes)
    }

    /// A machine as another relay has it, which reaches it through this one.
    pub(crate) fn host(&self, machine: MachineId) -> Arc<dyn Host> {
        Arc::new(Onward { edge: self.clone(), machine })
    }

    /// Ends what nobody watches any more. To be called every few seconds.
    pub fn sweep(&self) {
        let now = Instant::now().into_std();
        self.lock().retain(|_, machine| {
            machine.sessions().sweep(now);
            let keep = !machine.sessions().is_empty() || Arc::strong_count(machine) > 1;
            if !keep {
                // Totals only grow, whoever is forgotten.
                self.forgotten().add(machine.sessions());
            }
            keep
        });
    }

    /// Says goodbye to every viewer.
    pub fn close_all(&self) {
        self.lock().values().for_each(|machine| machine.sessions().close_all());
    }

    /// The sessions that are served now, machine by machine.
    pub fn sessions(&self) -> Vec<Sessions> {
        self.lock().values().map(|machine| machine.sessions().clone()).collect()
    }

    /// What is and was carried.
    pub(crate) fn carried(&self) -> Carried {
        let machines = self.lock();
        // With the lock: what is forgotten is in one of the two, and not in both.
        let mut carried = *self.forgotten();
        for machine in machines.values() {
            carried.add(machine.sessions());
        }
        carried
    }

    fn forgotten(&self) -> MutexGuard<'_, Carried> {
        self.inner.forgotten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn admit(&self, machine: Option<&str>, secret: &str, way: Way) -> Result<Entry> {
        let Some(machine) = machine else {
            return Err(Error::new(Kind::InvalidArgument, "the request names no machine")
                .hint("Connect to `/m/<machine>/…`, or name the `machine` beside the ticket"));
        };
        if secret.len() > MAX_SECRET {
            return Err(Error::new(Kind::Unauthenticated, "that is no ticket and no token"));
        }
        let (id, by) = (machine.parse()?, name(&way));
        let entry = self.machine(&id).await?.admit(secret, way).await?;
        let attached = Attached { session: entry.pass.session.clone(), way: by };
        self.inner.directory.attached(&id, attached).await;
        Ok(entry)
    }

    /// Whether the machine would let in a WebRTC viewer. That is nobody who watches yet, and not in the ledger.
    async fn lets_in(&self, call: Call<'_>) -> Result<()> {
        let secret = call.secret().ok().filter(|secret| secret.len() <= MAX_SECRET);
        let (Some(machine), Some(secret)) = (named(call.path).0, secret) else {
            return Err(Error::new(Kind::Unauthenticated, "that is no ticket and no token"));
        };
        let way = Way::Whep { display: call.parameter("display").map(str::to_owned) };
        self.machine(&machine.parse()?).await?.admit(secret, way).await?;
        Ok(())
    }

    async fn machine(&self, id: &MachineId) -> Result<Arc<Machine>> {
        // Before anything is kept for it: anybody can ask for any name.
        self.inner.directory.find(id).await?;
        let new = || Machine::new(id.clone(), Arc::clone(&self.inner.directory), self.inner.limits);
        Ok(Arc::clone(self.lock().entry(id.clone()).or_insert_with(new)))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MachineId, Arc<Machine>>> {
        self.inner.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A way in, as the ledger has it.
fn name(way: &Way) -> &'static str {
    match way {
        Way::Socket => "socket",
        Way::Whep { .. } => "whep",
    }
}

/// One machine, to those who come by another relay.
struct Onward {
    edge: Edge,
    machine: MachineId,
}

impl Host for Onward {
    fn admit<'a>(&'a self, secret: &'a str, way: &'a Way) -> BoxFuture<'a, Result<Admission>> {
        Box::pin(async move {
            let machine = Some(self.machine.as_str());
            let Entry { pass, codecs, key } = self.edge.admit(machine, secret, way.clone()).await?;
            Ok(Admission { pass, codecs, key: Some(key) })
        })
    }

    fn resume<'a>(&'a self, resume: &'a Resume) -> BoxFuture<'a, Result<Admission>> {
        Box::pin(async move {
            let machine = self.edge.machine(&self.machine).await?;
            let Entry { pass, codecs, key } = machine.resume(resume).await?;
            Ok(Admission { pass, codecs, key: Some(key) })
        })
    }
}

impl Door for Edge {
    fn redeem<'a>(
        &'a self,
        machine: Option<&'a str>,
        ticket: &'a str,
    ) -> BoxFuture<'a, Result<Pass>> {
        Box::pin(async move { Ok(self.admit(machine, ticket, Way::Socket).await?.pass) })
    }
}

impl Gate for Edge {
    fn authorize<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Grant>> {
        Box::pin(async move {
            let secret = call.secret()?;
            let way = Way::Whep { display: call.parameter("display").map(str::to_owned) };
            let Entry { pass, codecs, .. } = self.admit(named(call.path).0, secret, way).await?;
            Ok(Grant { sessions: pass.sessions, session: pass.session, codecs })
        })
    }

    /// Servers with credentials are for those whom the machine lets in. That was asked before a `POST` is answered;
    /// for who wants to know the servers first, it is asked now, and the session is there for the `POST`.
    fn ice_servers<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Vec<IceServer>> {
        Box::pin(async move {
            if self.inner.ice_servers.is_empty() {
                return Vec::new();
            }
            let known = *call.method == Method::POST || self.lets_in(call).await.is_ok();
            let servers = if known {
                self.inner.ice_servers.for_viewer(wall_clock())
            } else {
                Ok(Vec::new())
            };
            servers.unwrap_or_else(|error| {
                tracing::warn!(%error, "viewers are told of no ICE servers");
                Vec::new()
            })
        })
    }
}
