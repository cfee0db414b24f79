//! Several relays that are one: nodes, which share their machines by way of Redis.
//!
//! ```text
//! machine ──► node B ── "it is here" ──► Redis ◄── "where is it?" ── node A ◄── viewers, clients
//!                ▲                                                     │
//!                └───────────── a tunnel, as if it were the machine ───┘
//! ```
//!
//! Each node keeps a [`Directory`] of its own in memory, and asks nobody for what it holds;
//! `sync` keeps it and Redis alike. Who comes to the wrong node is served there nonetheless: it dials the one
//! that has the machine, and that one answers as the machine would, so that nothing else has to know of nodes.
//! It does so for machines of its own alone: nobody is sent from node to node.

mod commons;
mod proof;
pub(crate) mod sync;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use spaceport_types::{Error, Kind, MachineId, Redacted, Result};
use spaceport_wire::relay::{
    Challenge, Entry, FromMachine, FromRelay, Head, Quic, Reach, Refusal, VERSION,
};
use spaceport_wire::relay_nodes::is_name;
use tokio::io::split;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, timeout};

use self::commons::Commons;
use self::proof::Talk;
use crate::directory::{Directory, Place};
use crate::hop::Hop;
use crate::media::Guest;
use crate::server::Shared;
use crate::tunnel::{Limits, Reader, Stream, Tunnel, write};
use crate::uplink::{self, Origin, Via};
use crate::{join, media};

/// How long another node may take to be there and to show that it is one.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a connection to another node is kept for the next who wants the same machine.
const IDLE: Duration = Duration::from_secs(60);

/// The shortest secret. Ours have 43 characters; a person's own should not be a word.
const SHORTEST_SECRET: usize = 32;

/// How a relay is one node of several.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The Redis that they share: `redis://user:password@host:6379`.
    pub directory: Redacted<String>,
    /// By which nodes know each other.
    pub secret: Redacted<String>,
    /// The origin at which other nodes reach this one. `None`: the address it listens on.
    pub url: Option<String>,
}

impl Config {
    /// A node of those that share `directory` and `secret`.
    pub fn new(directory: Redacted<String>, secret: Redacted<String>) -> Self {
        Self { directory, secret, url: None }
    }
}

/// A node that has a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) node: String,
    pub(crate) url: Origin,
    /// In seconds since 1970.
    pub(crate) since: u64,
}

/// The other nodes, as this one has them.
pub(crate) struct Nodes {
    me: String,
    url: Origin,
    secret: Redacted<String>,
    commons: Commons,
    directory: Directory,
    limits: Limits,
    /// Where clients come in here; set once the ports are bound.
    entry: OnceLock<Entry>,
    /// Ways to machines at other nodes, each made by the first who needs it.
    ways: Mutex<HashMap<MachineId, Arc<tokio::sync::Mutex<Option<Reached>>>>>,
    /// What other nodes watch of machines here: it outlives their connections.
    watched: Mutex<BTreeMap<MachineId, Guest>>,
    /// Since when Redis is away, and why.
    away: watch::Sender<Option<(Instant, String)>>,
    /// How many nodes there are, this one among them.
    count: std::sync::atomic::AtomicUsize,
}

/// A way to a machine at another node.
struct Reached {
    node: String,
    tunnel: Tunnel,
    used: Instant,
}

impl Nodes {
    pub(crate) fn new(
        config: &Config,
        me: String,
        own: &str,
        directory: Directory,
        limits: Limits,
    ) -> Result<Self> {
        if config.secret.expose().len() < SHORTEST_SECRET {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("the secret of the nodes has fewer than {SHORTEST_SECRET} characters"),
            )
            .hint("Make one with `openssl rand -hex 32`, and give every node the same"));
        }
        let url: Origin = config.url.as_deref().unwrap_or(own).parse()?;
        if url.host().parse().is_ok_and(|it: std::net::IpAddr| it.is_unspecified()) {
            return Err(Error::new(
                Kind::InvalidArgument,
                "other nodes cannot tell at which address they reach this one",
            )
            .hint("Say so with `--node-url`, such as `http://10.0.0.2:3220`"));
        }
        if url.is_exposed() {
            tracing::warn!("what goes from node to node can be read on the way: it has no TLS");
        }
        Ok(Self {
            me,
            url,
            secret: config.secret.clone(),
            commons: Commons::at(&config.directory)?,
            directory,
            limits,
            entry: OnceLock::new(),
            ways: Mutex::default(),
            watched: Mutex::default(),
            away: watch::channel(None).0,
            count: 1.into(),
        })
    }

    /// Notes where clients come in.
    pub(crate) fn enter(&self, public_url: String, quic: Quic) {
        // There is one, from the start.
        drop(self.entry.set(Entry { public_url, quic: Some(quic) }));
    }

    /// For how long Redis has been away, and why.
    pub(crate) fn away(&self) -> Option<(Duration, String)> {
        self.away.borrow().as_ref().map(|(since, why)| (since.elapsed(), why.clone()))
    }

    /// How many nodes there were when it was asked last.
    pub(crate) fn count(&self) -> usize {
        self.count.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Streams to machines at other nodes.
    pub(crate) fn streams(&self) -> usize {
        let ways = self.ways();
        let open = ways.values().filter_map(|way| {
            let way = way.try_lock().ok()?;
            // One is not anybody's request.
            way.as_ref().map(|reached| reached.tunnel.streams().saturating_sub(1))
        });
        open.sum()
    }

    /// Learns who has an id, before a machine is judged that claims it.
    ///
    /// # Errors
    ///
    /// `relay` for an id that is not known here, while Redis is away.
    pub(crate) async fn consult(&self, machine: &MachineId) -> Result<()> {
        match self.commons.machine(machine).await {
            Ok(Some(record)) => {
                self.directory.learn([(machine.clone(), record)]);
                Ok(())
            }
            Ok(None) => Ok(()),
            // It is judged by what was known last.
            Err(_) if self.directory.knows(machine) => Ok(()),
            Err(error) => {
                Err(error
                    .hint("Try again when it is back: a new machine has to be told to every node"))
            }
        }
    }

    /// Takes an id for a machine that was let in here.
    ///
    /// # Errors
    ///
    /// `permission_denied` when another node has let another one in at the same time; `relay`.
    pub(crate) async fn claim(&self, machine: &MachineId) -> Result<()> {
        let Some(record) = self.directory.record(machine) else { return Ok(()) };
        match self.commons.claim(machine, &record).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.directory.learn([(machine.clone(), None)]);
                Err(crate::directory::taken(machine))
            }
            // It was let in by what is known here, and is told to the others later.
            Err(_) => Ok(()),
        }
    }

    /// Forgets a machine at every node.
    ///
    /// # Errors
    ///
    /// `relay` while Redis is away: the others would let it in.
    pub(crate) async fn remove(&self, machine: &MachineId) -> Result<()> {
        self.commons.remove(machine).await
    }

    /// A tunnel to a machine that another node has.
    ///
    /// # Errors
    ///
    /// `relay` when that node does not answer, or has it no more.
    pub(crate) async fn reach(&self, machine: &MachineId, holder: &Holder) -> Result<Tunnel> {
        let way = Arc::clone(self.ways().entry(machine.clone()).or_default());
        let mut way = way.lock().await;
        if let Some(reached) = &mut *way
            && reached.node == holder.node
            && !reached.tunnel.is_closed()
        {
            reached.used = Instant::now();
            return Ok(reached.tunnel.clone());
        }
        let dialled = timeout(PATIENCE, self.dial(machine, holder)).await.unwrap_or_else(|_| {
            Err(Error::new(Kind::Relay, "the node that has the machine does not answer"))
        });
        let tunnel = dialled.map_err(|error| {
            Error::new(Kind::Relay, format!("the node that has `{machine}` cannot be reached"))
                .with("machine", machine)
                .with("node", &holder.url)
                .with("reason", &error)
                .hint("Try again in a moment: a machine whose node is gone joins another")
        })?;
        let (node, used) = (holder.node.clone(), Instant::now());
        *way = Some(Reached { node, tunnel: tunnel.clone(), used });
        Ok(tunnel)
    }

    async fn dial(&self, machine: &MachineId, holder: &Holder) -> Result<Tunnel> {
        let gone = || Error::new(Kind::Relay, "the other node ended the connection");
        let tunnel = uplink::dial::websocket(&holder.url, self.limits).await?.tunnel;
        let asked = nonce()?;
        let head = Head::Reach(Reach {
            version: VERSION,
            machine: machine.clone(),
            node: self.me.clone(),
            nonce: asked.clone(),
            entry: self.entry.get().cloned(),
        });
        let (receive, mut send) = split(tunnel.open(&head).await?);
        let mut messages = Reader::<_, FromRelay>::new(receive);
        let challenge = match messages.next().await?.ok_or_else(gone)? {
            FromRelay::Challenge(challenge) => challenge,
            FromRelay::Refused(refusal) => return Err(refusal.into()),
            _ => return Err(gone()),
        };
        let talk = Talk { machine, node: &self.me, asked: &asked, answered: &challenge.nonce };
        if !is_name(&challenge.nonce) || !talk.is_answered(&self.secret, &challenge.proof) {
            return Err(stranger());
        }
        write(&mut send, &FromMachine::Proof(talk.asks(&self.secret))).await?;
        match messages.next().await?.ok_or_else(gone)? {
            FromRelay::Reached => {}
            FromRelay::Refused(refusal) => return Err(refusal.into()),
            _ => return Err(gone()),
        }
        let (watching, machine) = (tunnel.clone(), machine.clone());
        // It leaves when it is closed, and not by a word.
        let (stop, never) = watch::channel(false);
        let (moved, _) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = uplink::attend((messages, send), never, moved) => {}
                () = watching.closed() => {}
            }
            tracing::debug!(%machine, "the way to a machine at another node is over");
            watching.close();
            drop(stop);
        });
        Ok(tunnel)
    }

    /// Lets go of ways that nobody uses. To be called every few seconds.
    pub(crate) fn sweep(&self) {
        self.ways().retain(|_, way| {
            let Ok(way) = way.try_lock() else { return true };
            let Some(reached) = &*way else { return false };
            // One stream is ours.
            let is_used = reached.tunnel.streams() > 1 || reached.used.elapsed() < IDLE;
            if !is_used {
                reached.tunnel.close();
            }
            is_used && !reached.tunnel.is_closed()
        });
        self.watched().retain(|machine, _| self.directory.knows(machine));
    }

    /// Ends every way, because the relay stops.
    fn stop(&self) {
        self.ways().clear();
        self.watched().clear();
    }

    fn ways(&self) -> MutexGuard<'_, HashMap<MachineId, Arc<tokio::sync::Mutex<Option<Reached>>>>> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<MachineId, Guest>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("me", &self.me).finish_non_exhaustive()
    }
}

/// Answers a node that wants a machine of this one, and is the machine to it for as long as that lasts.
/// `joining` is a place among those who have not shown yet that they may.
pub(crate) async fn answer(
    shared: &Shared,
    tunnel: &Tunnel,
    mut control: Stream,
    reach: Reach,
    joining: OwnedSemaphorePermit,
) {
    let proved = prove(shared, &mut control, &reach).await;
    drop(joining);
    match proved {
        Ok(machine) => serve(shared, tunnel, control, reach, machine).await,
        Err(error) => {
            shared.counters.nodes_refused.add(1);
            tracing::warn!(%error, "a node was not let in");
            let refused = FromRelay::Refused(Refusal::from(&error));
            drop(timeout(PATIENCE, join::say_last(&mut control, &refused)).await);
        }
    }
    tunnel.close();
}

/// Has it show that it is one. Returns the machine's tunnel.
async fn prove(shared: &Shared, control: &mut Stream, reach: &Reach) -> Result<Tunnel> {
    let Some(nodes) = &shared.nodes else {
        return Err(Error::new(Kind::PermissionDenied, "this relay is not one of several nodes"));
    };
    if reach.version != VERSION {
        return Err(Error::new(Kind::PreconditionFailed, "the nodes are of different versions")
            .hint("Install the same version of spaceport on both"));
    }
    if !is_name(&reach.node) || !is_name(&reach.nonce) {
        return Err(Error::new(Kind::InvalidArgument, "a node's name or nonce is none"));
    }
    let answered = nonce()?;
    let (node, asked) = (reach.node.as_str(), reach.nonce.as_str());
    let talk = Talk { machine: &reach.machine, node, asked, answered: &answered };
    let challenge = Challenge { nonce: answered.clone(), proof: talk.answers(&nodes.secret) };
    write(control, &FromRelay::Challenge(challenge)).await?;
    let proof =
        timeout(PATIENCE, async { Reader::<_, FromMachine>::new(&mut *control).next().await });
    match proof.await {
        Ok(Ok(Some(FromMachine::Proof(proof)))) if talk.is_asked(&nodes.secret, &proof) => {}
        _ => return Err(stranger()),
    }
    // Of its own alone: who is not here is not looked for elsewhere.
    match shared.directory.look(&reach.machine)? {
        Place::Here(tunnel) => Ok(tunnel),
        Place::There(_) | Place::Nowhere(..) => {
            Err(Error::new(Kind::Relay, format!("`{}` is not at this node", reach.machine)))
        }
    }
}

async fn serve(
    shared: &Shared,
    tunnel: &Tunnel,
    mut control: Stream,
    reach: Reach,
    machine: Tunnel,
) {
    let Some(nodes) = &shared.nodes else { return };
    if write(&mut control, &FromRelay::Reached).await.is_err() {
        return;
    }
    tunnel.admit();
    shared.counters.nodes_served.add(1);
    let hop = Hop::new(shared.clone(), reach.machine.clone());
    let media = nodes.watched().entry(reach.machine.clone()).or_insert_with(|| hop.media()).clone();
    let entry = reach.entry.unwrap_or(Entry { public_url: String::new(), quic: None });
    let via = Via {
        public_url: entry.public_url,
        prefix: format!("/m/{}", reach.machine),
        quic: entry.quic,
    };
    // A node's way to a machine is not moved; the machine may be, and is reached on by the same way.
    let (_stays, moved) = watch::channel(false);
    let served = uplink::serve::serve(tunnel, hop.router(), via, Some(media), moved);
    let gone = async {
        let mut machine = machine;
        loop {
            machine.closed().await;
            match shared.directory.look(&reach.machine) {
                Ok(Place::Here(other)) => machine = other,
                _ => return,
            }
        }
    };
    tokio::select! {
        why = join::beat(control) => tracing::debug!(why, "a node lets go of a machine"),
        () = served => {}
        () = gone => {}
    }
}

/// Finds machines wherever they are: here, at another node, or nowhere.
#[derive(Clone, Debug)]
pub(crate) struct Whereabouts {
    pub(crate) directory: Directory,
    pub(crate) nodes: Option<Arc<Nodes>>,
}

impl Whereabouts {
    /// The tunnel to a machine. One that has only just gone is waited for, at whichever node.
    ///
    /// # Errors
    ///
    /// `not_found`, and `relay` for a machine that is not connected, or whose node does not answer.
    pub(crate) async fn find(&self, machine: &MachineId) -> Result<Tunnel> {
        let Some(nodes) = &self.nodes else { return self.directory.find(machine).await };
        let mut changed = self.directory.changed();
        // Since when it was looked for at a node that does not answer.
        let mut failing = None;
        loop {
            let (error, until) = match self.directory.look(machine)? {
                Place::Here(tunnel) => return Ok(tunnel),
                Place::There(holder) => match nodes.reach(machine, &holder).await {
                    Ok(tunnel) => return Ok(tunnel),
                    Err(error) => {
                        let since = *failing.get_or_insert_with(Instant::now);
                        (error, since + nodes.patience())
                    }
                },
                Place::Nowhere(since, left) => {
                    (crate::directory::offline(machine, since), left + self.directory.grace())
                }
            };
            let next = async { drop(changed.changed().await) };
            if tokio::time::timeout_at(until, next).await.is_err() {
                return Err(error);
            }
        }
    }
}

impl media::Machines for Whereabouts {
    fn find<'a>(
        &'a self,
        machine: &'a MachineId,
    ) -> futures_util::future::BoxFuture<'a, Result<Tunnel>> {
        Box::pin(self.find(machine))
    }

    fn attached<'a>(
        &'a self,
        machine: &'a MachineId,
        attached: media::Attached,
    ) -> futures_util::future::BoxFuture<'a, ()> {
        self.directory.attached(machine, attached)
    }
}

impl Nodes {
    /// How long it may take until it is known that a node is gone, and where its machines are.
    fn patience(&self) -> Duration {
        commons::LEASE + self.directory.grace()
    }
}

fn stranger() -> Error {
    Error::new(
        Kind::Unauthenticated,
        "the other side is no node of this relay: its secret is another",
    )
    .hint("Give every node the same `--node-secret-file`")
}

fn nonce() -> Result<String> {
    let mut bits = [0; 24];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(URL_SAFE_NO_PAD.encode(bits))
}
