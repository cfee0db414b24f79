//! The thread that serves all peers.
//!
//! One thread owns the socket and every peer, and waits in `poll(2)` for packets, for the session
//! and for the next deadline. A thread of its own, rather than a task: encrypting a keyframe for
//! a hundred viewers takes milliseconds of CPU that no request on the runtime has to wait for, and
//! a wake-up is one write to an eventfd with no timer wheel in between.
//!
//! Datagrams find their peer by source address. A STUN check names the peer by our user fragment
//! and, once the peer has verified it, claims its source address, so a viewer that comes back on
//! another network, or a new viewer on an old one's address, is found at once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spaceport_session::Subscriber;
use spaceport_types::{Cause, Error, Kind, Result};
use str0m::net::Protocol;
use tokio::sync::{oneshot, watch};

use super::demux::stun_ufrag;
use super::directory::Directory;
use super::offer::Fragment;
use super::packetize::Packetizer;
use super::peer::{Connection, End, Local, Negotiated, Peer, Totals};
use super::socket::{Buffers, Socket};
use super::tcp::Incoming;

/// Requests that wait for the driver. It takes them within a millisecond; if it does not, HTTP
/// clients are told to come back.
const COMMANDS: usize = 256;

/// Reads in one turn, so that a flood cannot keep frames from being sent.
const READS_PER_TURN: usize = 16;

/// Source addresses remembered for one peer. A viewer has one for each of its interfaces; beyond
/// that, its packets are found by their user fragment only.
const ADDRESSES_PER_PEER: usize = 32;

/// Names a peer for as long as the endpoint lives.
pub(super) type Key = u64;

/// What HTTP asks of the driver.
pub(super) enum Command {
    Add {
        key: Key,
        negotiated: Box<Negotiated>,
        subscriber: Subscriber,
        seed: u64,
        told: Option<watch::Sender<State>>,
    },
    Trickle {
        key: Key,
        candidates: Vec<String>,
    },
    Restart {
        key: Key,
        fragment: Fragment,
        reply: oneshot::Sender<Result<String>>,
    },
    OfferRestart {
        key: Key,
        candidates: Vec<Local>,
        reply: oneshot::Sender<Result<String>>,
    },
    AcceptRestart {
        key: Key,
        fragment: Fragment,
        reply: oneshot::Sender<Result<()>>,
    },
    Remove {
        key: Key,
    },
    Adopt {
        incoming: Incoming,
    },
}

/// How a peer is, for whoever wants to be told.
#[derive(Clone, Debug)]
pub(super) enum State {
    Connecting,
    Connected,
    /// Nothing comes back from it.
    Lost,
    Ended(Ended),
}

/// How a peer ended; without a reason it is the other side that left.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) reason: Option<Arc<Error>>,
    pub(super) totals: Totals,
}

/// What the driver and its handles share.
pub(super) struct Shared {
    commands: Mutex<VecDeque<Command>>,
    ready: Mutex<Vec<Key>>,
    signal: OwnedFd,
    signalled: AtomicBool,
    shutdown: AtomicBool,
    directory: Mutex<Directory>,
}

impl Shared {
    pub(super) fn new(max_peers: usize) -> Result<Self> {
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(std::io::Error::from)?;
        Ok(Self {
            commands: Mutex::default(),
            ready: Mutex::default(),
            signal,
            signalled: AtomicBool::new(false),
            shutdown: AtomicBool::new(false),
            directory: Mutex::new(Directory::new(max_peers)),
        })
    }

    pub(super) fn directory(&self) -> MutexGuard<'_, Directory> {
        lock(&self.directory)
    }

    /// Hands `command` to the driver.
    pub(super) fn command(&self, command: Command) -> Result<()> {
        let mut commands = lock(&self.commands);
        if self.shutdown.load(Ordering::Acquire) {
            return Err(Error::because(Cause::SessionClosed, "the gateway is shutting down"));
        }
        if commands.len() >= COMMANDS {
            return Err(Error::new(Kind::LimitExceeded, "too many requests at once")
                .with("limit", COMMANDS)
                .retry_after(Duration::from_secs(1)));
        }
        commands.push_back(command);
        drop(commands);
        self.wake();
        Ok(())
    }

    /// Ends the driver.
    pub(super) fn shut_down(&self) {
        self.shutdown.store(true, Ordering::Release);
        self.wake();
    }

    /// Wakes the driver; of many calls before it wakes up, one costs a system call.
    fn wake(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel)
            && let Err(error) = rustix::io::write(&self.signal, &1_u64.to_ne_bytes())
        {
            tracing::warn!(%error, "the driver could not be woken");
        }
    }

    /// Takes the signal back. Must come before the queues are looked at: what is queued after this
    /// signals again.
    fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read means a wake-up that has been seen already.
        let _spurious = rustix::io::read(&self.signal, &mut count).is_err();
        self.signalled.store(false, Ordering::Release);
    }
}

/// Puts one peer on the list of those that have something to send.
struct PeerWaker {
    key: Key,
    shared: Arc<Shared>,
}

impl Wake for PeerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.shared.ready).push(self.key);
        self.shared.wake();
    }
}

/// Serves all peers of one endpoint. Give [`Driver::run`] a thread of its own.
pub struct Driver {
    shared: Arc<Shared>,
    socket: Socket,
    buffers: Buffers,
    table: Table,
    dropped: Dropped,
}

/// What was said about dropped datagrams, and when.
struct Dropped {
    reported: u64,
    at: Instant,
}

/// The peers, and the ways to find them.
struct Table {
    shared: Arc<Shared>,
    packetizer: Packetizer,
    peers: HashMap<Key, Slot>,
    by_address: HashMap<SocketAddr, Key>,
    by_ufrag: HashMap<String, Key>,
    timers: BTreeSet<(Instant, Key)>,
}

/// The way a datagram came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) protocol: Protocol,
    pub(super) remote: SocketAddr,
    pub(super) local: SocketAddr,
}

/// One peer, and the keys it is found by.
struct Slot {
    peer: Peer,
    since: Instant,
    ufrag: String,
    addresses: Vec<SocketAddr>,
    timer: Instant,
    span: tracing::Span,
    told: Option<watch::Sender<State>>,
}

impl Slot {
    /// Tells how the peer is, if that is news.
    fn tell(&self) {
        let Some(told) = &self.told else { return };
        let state = match self.peer.connection() {
            Connection::Connecting { .. } => State::Connecting,
            Connection::Connected => State::Connected,
            Connection::Lost { .. } => State::Lost,
        };
        told.send_if_modified(|known| {
            let news = std::mem::discriminant(known) != std::mem::discriminant(&state);
            if news {
                *known = state;
            }
            news
        });
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("peers", &self.table.peers.len()).finish_non_exhaustive()
    }
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, socket: Socket) -> Self {
        let table = Table {
            shared: Arc::clone(&shared),
            packetizer: Packetizer::default(),
            peers: HashMap::new(),
            by_address: HashMap::new(),
            by_ufrag: HashMap::new(),
            timers: BTreeSet::new(),
        };
        let dropped = Dropped { reported: 0, at: now() };
        Self { shared, socket, buffers: Buffers::new(), table, dropped }
    }

    /// Serves until the endpoint is shut down or its last handle is dropped, then says goodbye to
    /// every viewer.
    ///
    /// # Errors
    ///
    /// `io` when waiting for the socket fails, which no condition of the network causes.
    pub fn run(mut self) -> Result<()> {
        tracing::debug!(address = %self.socket.local(), "WebRTC is served");
        while !self.shared.shutdown.load(Ordering::Acquire) {
            let ready = self.wait()?;
            self.turn(now(), &ready);
        }
        let reason = Arc::new(
            Error::because(Cause::SessionClosed, "the gateway is shutting down")
                .hint("Start the stream again"),
        );
        let now = now();
        for key in self.table.peers.keys().copied().collect::<Vec<_>>() {
            let end = End::Because(Arc::clone(&reason));
            self.table.with(key, now, &mut self.socket, |_, _, _| Err(end));
        }
        self.socket.drain();
        // Commands that came too late leave with their subscribers and replies.
        lock(&self.shared.commands).clear();
        Ok(())
    }

    /// Sleeps until there is something to do, and returns whose TCP connections have something.
    fn wait(&self) -> Result<Vec<SocketAddr>> {
        let timer = self.table.timers.first().map(|&(at, _)| at);
        let timeout = [timer, self.socket.tcp.deadline()].into_iter().flatten().min().map(|at| {
            let left = at.saturating_duration_since(now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let writable = if self.socket.is_blocked() { PollFlags::OUT } else { PollFlags::empty() };
        let mut sources = vec![
            PollFd::from_borrowed_fd(self.shared.signal.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.udp().as_fd(), PollFlags::IN | writable),
        ];
        let mut remotes = Vec::new();
        for (remote, stream, flags) in self.socket.tcp.sources() {
            sources.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
            remotes.push(remote);
        }
        match poll(&mut sources, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let ready = remotes.into_iter().zip(sources.iter().skip(2));
        Ok(ready.filter(|(_, it)| !it.revents().is_empty()).map(|(remote, _)| remote).collect())
    }

    /// One round: requests, frames, packets, deadlines. Frames come before packets, because they
    /// are what people wait for.
    fn turn(&mut self, now: Instant, connections: &[SocketAddr]) {
        let Self { shared, socket, buffers, table, dropped } = self;
        shared.clear();
        let was_blocked = socket.is_blocked();
        socket.drain();

        let commands = std::mem::take(&mut *lock(&shared.commands));
        for command in commands {
            table.command(command, now, socket);
        }
        // Its own statement, because the lock must be free again: a producer that wakes a peer
        // holds the stream, which that peer is about to read.
        let ready = std::mem::take(&mut *lock(&shared.ready));
        for key in ready {
            table.media_waits(key, now, socket);
        }
        if was_blocked && !socket.is_blocked() {
            for key in table.peers.keys().copied().collect::<Vec<_>>() {
                table.send_media(key, now, socket);
            }
        }
        // Datagrams are handed on after each read: a peer that answers needs the socket.
        let mut arrived = Vec::new();
        for _ in 0..READS_PER_TURN {
            arrived.clear();
            let any = socket.receive(buffers, |source, destination, datagram| {
                arrived.push((source, destination, datagram.to_vec()));
            });
            for (source, destination, datagram) in &arrived {
                let route = Route { protocol: Protocol::Udp, remote: *source, local: *destination };
                table.receive(route, datagram, now, socket);
            }
            if !any {
                break;
            }
        }
        for &remote in connections {
            table.connection(remote, now, socket);
        }
        socket.tcp.expire(now);
        while let Some(&(at, key)) = table.timers.first()
            && at <= now
        {
            table.with(key, now, socket, |peer, _, socket| peer.timeout(now, socket));
            // A peer whose deadline did not move forward must not hold up the others.
            table.postpone(key, now);
        }
        let total = socket.dropped();
        if total > dropped.reported && now >= dropped.at + REPORT_EVERY {
            let datagrams = total - dropped.reported;
            tracing::warn!(datagrams, "dropped, because the kernel takes no more");
            *dropped = Dropped { reported: total, at: now };
        }
    }
}

impl Table {
    fn command(&mut self, command: Command, now: Instant, socket: &mut Socket) {
        match command {
            Command::Add { key, negotiated, subscriber, seed, told } => {
                let transport = negotiated.protocol;
                let span = tracing::info_span!("viewer", id = %subscriber.id(), transport);
                let waker = PeerWaker { key, shared: Arc::clone(&self.shared) };
                let ufrag = negotiated.ufrag.clone();
                let waker = Waker::from(Arc::new(waker));
                let peer = Peer::new(*negotiated, subscriber, waker, seed, now);
                self.by_ufrag.insert(ufrag.clone(), key);
                self.timers.insert((now, key));
                let addresses = Vec::new();
                let slot = Slot { peer, since: now, ufrag, addresses, timer: now, span, told };
                self.peers.insert(key, slot);
                // The engine starts its clock with the first timeout.
                self.with(key, now, socket, |peer, _, socket| peer.timeout(now, socket));
            }
            Command::Trickle { key, candidates } => {
                self.with(key, now, socket, |peer, _, socket| {
                    peer.add_candidates(&candidates, now, socket)
                });
            }
            Command::Restart { key, fragment, reply } => {
                let mut answer = None;
                self.with(key, now, socket, |peer, _, socket| {
                    answer = Some(peer.restart(&fragment, now, socket)?);
                    Ok(())
                });
                let restarted = answer.ok_or_else(|| {
                    Error::new(Kind::CapabilityMissing, "ICE could not be restarted")
                        .hint("Start the stream again with a new offer")
                });
                let restarted = restarted.map(|(ufrag, answer)| {
                    self.rename(key, ufrag);
                    answer
                });
                if reply.send(restarted).is_err() {
                    tracing::debug!("nobody waits for the answer to a restart");
                }
            }
            Command::OfferRestart { key, candidates, reply } => {
                let mut offer = None;
                self.with(key, now, socket, |peer, _, _| {
                    offer = Some(peer.offer_restart(candidates)?);
                    Ok(())
                });
                // Who waits no more has given the peer up.
                drop(reply.send(offer.ok_or_else(not_restarted)));
            }
            Command::AcceptRestart { key, fragment, reply } => {
                let mut ufrag = None;
                self.with(key, now, socket, |peer, _, socket| {
                    ufrag = Some(peer.accept_restart(&fragment, now, socket)?);
                    Ok(())
                });
                let restarted = ufrag.map(|ufrag| self.rename(key, ufrag));
                drop(reply.send(restarted.ok_or_else(not_restarted)));
            }
            Command::Remove { key } => {
                self.with(key, now, socket, |peer, _, socket| {
                    peer.close(now, socket);
                    Err(End::Left)
                });
            }
            Command::Adopt { incoming } => {
                if let Err(error) = socket.tcp.add(incoming, now) {
                    tracing::debug!(%error, "a TCP connection could not be taken");
                }
            }
        }
    }

    /// Has a peer found by another user fragment of ours.
    fn rename(&mut self, key: Key, ufrag: String) {
        if let Some(slot) = self.peers.get_mut(&key) {
            self.by_ufrag.remove(&slot.ufrag);
            self.by_ufrag.insert(ufrag.clone(), key);
            slot.ufrag = ufrag;
        }
    }

    fn media_waits(&mut self, key: Key, now: Instant, socket: &mut Socket) {
        if let Some(slot) = self.peers.get_mut(&key) {
            slot.peer.media_waits();
            self.send_media(key, now, socket);
        }
    }

    fn send_media(&mut self, key: Key, now: Instant, socket: &mut Socket) {
        self.with(key, now, socket, |_, _, _| Ok(()));
    }

    /// Serves a TCP connection that has something to read or takes more.
    fn connection(&mut self, remote: SocketAddr, now: Instant, socket: &mut Socket) {
        socket.tcp.flush(remote);
        let mut arrived = Vec::new();
        socket.tcp.receive(remote, |local, frame| arrived.push((local, frame.to_vec())));
        for (local, frame) in arrived {
            let route = Route { protocol: Protocol::Tcp, remote, local };
            self.receive(route, &frame, now, socket);
        }
        if let Some(key) = socket.tcp.owner(remote) {
            self.send_media(key, now, socket);
        }
    }

    /// Finds whose datagram it is.
    fn receive(&mut self, route: Route, datagram: &[u8], now: Instant, socket: &mut Socket) {
        let over_tcp = route.protocol == Protocol::Tcp;
        let known = if over_tcp {
            socket.tcp.owner(route.remote)
        } else {
            self.by_address.get(&route.remote).copied()
        };
        // A check names its peer, whoever the address belonged to before.
        let named = stun_ufrag(datagram).and_then(|ufrag| self.by_ufrag.get(ufrag).copied());
        let key = match (known, named) {
            (known, Some(named)) if known != Some(named) => {
                let Some(slot) = self.peers.get_mut(&named) else { return };
                if !slot.peer.accepts(now, route, datagram) {
                    return;
                }
                if !over_tcp {
                    self.claim(route.remote, named);
                } else if !socket.tcp.claim(route.remote, named) {
                    return;
                }
                named
            }
            (Some(known), _) => known,
            _ => return,
        };
        self.with(key, now, socket, |peer, _, socket| peer.receive(now, route, datagram, socket));
    }

    /// Lets packets from `address` go to `key` from now on.
    fn claim(&mut self, address: SocketAddr, key: Key) {
        let Some(slot) = self.peers.get_mut(&key) else { return };
        if slot.addresses.len() >= ADDRESSES_PER_PEER {
            return;
        }
        slot.addresses.push(address);
        if let Some(before) = self.by_address.insert(address, key)
            && let Some(slot) = self.peers.get_mut(&before)
        {
            slot.addresses.retain(|&other| other != address);
        }
    }

    /// Runs `action` on a peer, sends what frames wait for it, and sees to what follows: its next
    /// deadline, new addresses, its end. A panic is a bug, and ends that peer only.
    fn with(
        &mut self,
        key: Key,
        now: Instant,
        socket: &mut Socket,
        action: impl FnOnce(&mut Peer, &mut Packetizer, &mut Socket) -> Result<(), End>,
    ) {
        let Some(slot) = self.peers.get_mut(&key) else { return };
        let entered = slot.span.clone().entered();
        let Slot { peer, .. } = slot;
        let packetizer = &mut self.packetizer;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            action(peer, packetizer, socket)?;
            if peer.has_media() { peer.send_media(now, packetizer, socket) } else { Ok(()) }
        }));
        let works = outcome.is_ok();
        let outcome = outcome.unwrap_or_else(|_| {
            let bug = Error::new(Kind::Internal, "the WebRTC engine failed");
            Err(End::because(
                bug.hint("Start the stream again, and report this if it happens twice"),
            ))
        });
        if let Err(end) = outcome {
            let peer = self.remove(key, &end, now);
            // After the reason is known where it will ask for it.
            if let (Some(mut peer), End::Because(_), true) = (peer, &end, works) {
                peer.close(now, socket);
            }
            socket.tcp.remove(key);
            return;
        }
        let deadline = slot.peer.deadline();
        if deadline != slot.timer {
            self.timers.remove(&(slot.timer, key));
            slot.timer = deadline;
            self.timers.insert((deadline, key));
        }
        slot.tell();
        let Slot { peer, addresses, .. } = slot;
        if let Some(reason) = peer.suspended() {
            self.shared.directory().suspend(key, reason);
        }
        for address in peer.routes() {
            // Answers to our own checks come from where they went, if nobody else is there.
            if addresses.len() < ADDRESSES_PER_PEER && !self.by_address.contains_key(&address) {
                self.by_address.insert(address, key);
                addresses.push(address);
            }
        }
        drop(entered);
    }

    /// Makes sure that a deadline is later than `now`.
    fn postpone(&mut self, key: Key, now: Instant) {
        let Some(slot) = self.peers.get_mut(&key) else { return };
        if slot.timer <= now {
            self.timers.remove(&(slot.timer, key));
            slot.timer = now + LEAST_DELAY;
            self.timers.insert((slot.timer, key));
        }
    }

    /// Takes a peer out, and notes why it ended.
    fn remove(&mut self, key: Key, end: &End, now: Instant) -> Option<Peer> {
        let slot = self.peers.remove(&key)?;
        self.timers.remove(&(slot.timer, key));
        if self.by_ufrag.get(&slot.ufrag) == Some(&key) {
            self.by_ufrag.remove(&slot.ufrag);
        }
        for address in &slot.addresses {
            self.by_address.remove(address);
        }
        self.shared.directory().ended(key, end);
        let lasted = now.saturating_duration_since(slot.since);
        let (totals, stats) = (slot.peer.totals(), slot.peer.subscriber().stats());
        if let Some(told) = slot.told {
            let reason = match end {
                End::Left => None,
                End::Because(reason) => Some(Arc::clone(reason)),
            };
            told.send_replace(State::Ended(Ended { reason, totals }));
        }
        match end {
            End::Left => tracing::info!(?lasted, ?totals, ?stats, "viewer left"),
            End::Because(reason) => {
                let source = std::error::Error::source(&**reason).map(ToString::to_string);
                tracing::info!(%reason, source, ?lasted, ?totals, ?stats, "viewer dropped");
            }
        }
        Some(slot.peer)
    }
}

fn not_restarted() -> Error {
    Error::because(Cause::IceFailed, "ICE could not be restarted")
}

/// The least time between two reports of the same trouble.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The least time to the next deadline of a peer that was just served.
const LEAST_DELAY: Duration = Duration::from_millis(1);

/// A panic elsewhere while the lock was held leaves whole values behind; going on is right.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The driver has the socket, and so the time its packets come and go.
#[expect(clippy::disallowed_methods, reason = "the one clock of a thread that does I/O")]
pub(super) fn now() -> Instant {
    Instant::now()
}
