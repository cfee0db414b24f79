//! The machine's half: one connection to a relay, made again whenever it is lost.
//!
//! ```text
//! dial (QUIC, or WebSocket) ─► register ─► serve every stream that the relay opens ─► lost ─► dial …
//! ```
//!
//! Requests that come by the tunnel are served by the same router that serves the machine's own port, with a
//! [`Via`] beside them. They have no address of a peer: what only this machine's own user may ask is not
//! answered to them.

mod backoff;
pub(crate) mod dial;
mod origin;
mod probe;
pub(crate) mod serve;

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::Serialize;
use spaceport_state::ledger::millis;
use spaceport_state::private;
use spaceport_types::{Error, Kind, MachineId, Redacted, Result};
use spaceport_wire::relay::{
    Entry, FromMachine, FromRelay, Goodbye, Head, Quic, Register, Registered, VERSION,
};
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::backoff::Backoff;
use self::dial::Dialled;
pub use self::origin::Origin;
use self::probe::Probe;
use crate::directory::random_token;
use crate::media::Guest;
use crate::tunnel::{Carrier, Limits, Reader, Stream, Tunnel, write};
use crate::wall_clock;

/// How long the relay may take to judge this machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the relay may be silent; it says something every four seconds.
const SILENCE: Duration = Duration::from_secs(12);

/// How long to wait after being told what no further try changes: until somebody has done something about it.
const REFUSED: Duration = Duration::from_secs(30);

/// How long the goodbye gets to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// Which relay, and as whom.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The relay.
    pub relay: Origin,
    /// Further addresses of the same relay: those of its other nodes.
    pub others: Vec<Origin>,
    /// The machine's id; `None` for the one that it had before, or a new one made of its name.
    pub machine: Option<MachineId>,
    /// What people call it.
    pub name: String,
    /// The version of its program.
    pub software: String,
    /// The relay's registration token; needed the first time.
    pub token: Option<Redacted<String>>,
    /// Where the machine's id and its own token are kept. Unused when both are given.
    pub state: PathBuf,
    /// The machine's own token; `None` for the one that is kept.
    pub machine_token: Option<Redacted<String>>,
    /// The relays that are between it and this one already, its own first.
    pub hops: Vec<String>,
}

impl Config {
    /// A machine called `name` that joins `relay` and keeps what it is told in `state`.
    pub fn new(relay: Origin, name: impl Into<String>, state: impl Into<PathBuf>) -> Self {
        Self {
            relay,
            others: Vec::new(),
            machine: None,
            name: name.into(),
            software: env!("CARGO_PKG_VERSION").to_owned(),
            token: None,
            state: state.into(),
            machine_token: None,
            hops: Vec::new(),
        }
    }
}

/// The way by which a request came: beside every request that came by a tunnel, and nowhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via {
    /// The relay's origin, as clients use it.
    pub public_url: String,
    /// The path of this machine there: `/m/<id>`.
    pub prefix: String,
    /// The relay's UDP port for viewers of this machine, where it has one.
    pub quic: Option<Quic>,
}

impl Via {
    /// The same for a request that came in elsewhere.
    fn entered(mut self, entry: Option<Entry>) -> Self {
        // What is no origin is nobody's address.
        if let Some(entry) = entry
            && let Ok(origin) = entry.public_url.parse::<Origin>()
        {
            self.public_url = origin.to_string();
            self.quic = entry.quic;
        }
        self
    }

    /// Where that is, for who is asked next.
    pub(crate) fn entry(&self) -> Entry {
        Entry { public_url: self.public_url.clone(), quic: self.quic.clone() }
    }
}

/// How the uplink is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Status {
    /// Not there yet.
    Connecting,
    /// There, and reachable at the relay.
    Online {
        /// What carries it.
        carrier: Carrier,
        /// Where clients reach this machine.
        url: String,
    },
    /// Not there, and why.
    Offline {
        /// What went wrong last.
        reason: String,
    },
}

/// A handle to a running uplink. Cloning it makes another.
#[derive(Clone, Debug)]
pub struct Uplink {
    machine: MachineId,
    url: String,
    status: watch::Receiver<Status>,
    removed: Arc<AtomicBool>,
}

/// Keeps the connection; see [`Driver::run`].
#[derive(Debug)]
pub struct Driver {
    config: Config,
    kept: Kept,
    machine: MachineId,
    status: watch::Sender<Status>,
    removed: Arc<AtomicBool>,
    media: Option<Guest>,
    /// Which of the relay's addresses is dialled next.
    next: usize,
    /// Of the last connection.
    serial: u64,
}

/// Prepares an uplink. Nothing is sent before [`Driver::run`].
///
/// # Errors
///
/// `io` when the machine's id cannot be kept, `permission_denied` for a state that others can read.
pub fn prepare(config: Config) -> Result<(Uplink, Driver)> {
    let relay = config.relay.to_string();
    let mut kept = match (&config.machine, &config.machine_token) {
        (Some(machine), Some(token)) => Kept::given(&relay, machine, token),
        _ => Kept::read(config.state.clone())?,
    };
    let machine = match (&config.machine, kept.of(&relay)) {
        (Some(machine), _) => machine.clone(),
        (None, Some(known)) => known.machine.clone(),
        (None, None) => new_id(&config.name)?,
    };
    kept.set_machine(&relay, &machine)?;
    let (sender, status) = watch::channel(Status::Connecting);
    let url = format!("{relay}/m/{machine}");
    let removed = Arc::<AtomicBool>::default();
    let uplink = Uplink { machine: machine.clone(), url, status, removed: Arc::clone(&removed) };
    let status = sender;
    Ok((uplink, Driver { config, kept, machine, status, removed, media: None, next: 0, serial: 0 }))
}

impl Uplink {
    /// The machine's id.
    pub fn machine(&self) -> &MachineId {
        &self.machine
    }

    /// Where clients reach this machine, by the address of the relay that this one has.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How it is now.
    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Whether the relay has removed this machine. It does not ask to be let in again by itself then.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }
}

/// The stream of a registration: what the relay says, and what is said to it.
pub(crate) type Control = (Reader<ReadHalf<Stream>, FromRelay>, WriteHalf<Stream>);

/// Why a connection is over.
#[derive(Debug)]
pub(crate) struct Lost {
    error: Error,
    /// It was there: the machine was reachable.
    was_online: bool,
    /// Trying again changes nothing until somebody does something.
    for_good: bool,
    /// The relay has removed this machine.
    removed: bool,
}

impl Lost {
    fn dialling(error: Error) -> Self {
        Self { error, was_online: false, for_good: false, removed: false }
    }

    fn refused(error: Error) -> Self {
        let for_good = !matches!(error.kind(), Kind::Relay | Kind::Io | Kind::Timeout);
        Self { error, was_online: false, for_good, removed: false }
    }

    fn online(error: Error) -> Self {
        Self { error, was_online: true, for_good: false, removed: false }
    }
}

impl Driver {
    /// Lets the relay's viewers watch what `media` lets in.
    #[must_use]
    pub fn with_media(mut self, media: Guest) -> Self {
        self.media = Some(media);
        self
    }

    /// Serves `router` through the relay until `shutdown` completes. A relay that is away is waited for.
    pub async fn run(mut self, router: Router, shutdown: impl Future<Output = ()>) {
        if self.config.relay.is_exposed() {
            tracing::warn!("tokens can be read on the way to the relay: it is reached without TLS");
        }
        let (mut backoff, mut probe) = (Backoff::default(), Probe::default());
        let mut shutdown = std::pin::pin!(shutdown);
        let (stop, stopping) = watch::channel(false);
        loop {
            let lost = {
                let mut connected = std::pin::pin!(self.connect(&router, &stopping, &mut probe));
                tokio::select! {
                    lost = &mut connected => lost,
                    () = &mut shutdown => {
                        // So that the relay knows at once.
                        stop.send_replace(true);
                        drop(timeout(FAREWELL, connected).await);
                        return;
                    }
                }
            };
            if lost.was_online {
                backoff = Backoff::default();
            }
            self.next = self.next.wrapping_add(1);
            if self.is_removed() {
                // Whoever removed it meant it: it comes again when it is started again, and not before.
                self.config.token = None;
            }
            let delay = if lost.for_good { REFUSED } else { backoff.next(Instant::now()) };
            self.say(&lost, delay);
            tokio::select! {
                () = sleep(delay) => {}
                () = &mut shutdown => return,
            }
        }
    }

    fn say(&self, lost: &Lost, delay: Duration) {
        let report = lost.error.report();
        let offline = Status::Offline { reason: report.message.clone() };
        // The same again is not worth a line.
        let news = self.status.send_if_modified(|status| {
            let news = *status != offline;
            *status = offline;
            news
        });
        let (error, hint) = (&report.message, report.hint.as_deref().unwrap_or_default());
        if lost.for_good {
            tracing::error!(error, hint, "the relay does not take this machine");
        } else if news {
            tracing::warn!(error, hint, ?delay, "not connected to the relay");
        } else {
            tracing::debug!(error, ?delay, "still not connected to the relay");
        }
    }

    /// Connects once, and serves for as long as that lasts. A tunnel that had to go over TCP is exchanged for
    /// one over QUIC once that gets through; what is under way on it ends there.
    async fn connect(
        &mut self,
        router: &Router,
        stopping: &watch::Receiver<bool>,
        probe: &mut Probe,
    ) -> Lost {
        let relay = self.relay().clone();
        let dialled = match dial::dial(&relay, limits()).await {
            Ok(dialled) => dialled,
            Err(error) => return Lost::dialling(error),
        };
        let (control, mut registered) = match self.join(&dialled.tunnel, false).await {
            Ok(joined) => joined,
            Err(lost) => return lost,
        };
        let mut carrier = dialled.tunnel.carrier();
        probe.arrived(carrier);
        let (mut current, mut moved) =
            self.hold(dialled, control, self.via(&relay, &registered), router, stopping);
        // Tunnels that were moved from, with what is still under way on them.
        let mut former = FuturesUnordered::new();
        let lost = loop {
            // An older relay would end what is under way.
            let may_move = carrier == Carrier::WebSocket && registered.moves;
            let dialled = tokio::select! {
                lost = &mut current => break lost,
                Some(_) = former.next() => continue,
                // Not by this one.
                Ok(_) = moved.wait_for(|&moved| moved) => break goodbye(Goodbye::Replaced),
                dialled = probe.better(&relay, &registered.relay), if may_move => dialled,
            };
            // The relay may have taken the new one already when this one ends.
            let mut ended = None;
            let joined = {
                let mut joining = std::pin::pin!(self.join(&dialled.tunnel, true));
                tokio::select! {
                    joined = &mut joining => joined,
                    lost = &mut current => {
                        ended = Some(lost);
                        joining.await
                    }
                }
            };
            match joined {
                Ok((control, again)) => {
                    registered = again;
                    carrier = dialled.tunnel.carrier();
                    probe.arrived(carrier);
                    let via = self.via(&relay, &registered);
                    let (next, next_moved) = self.hold(dialled, control, via, router, stopping);
                    moved = next_moved;
                    let before = std::mem::replace(&mut current, next);
                    if ended.is_none() {
                        former.push(before);
                    }
                }
                Err(lost) => {
                    if let Some(ended) = ended {
                        break ended;
                    }
                    if *moved.borrow() {
                        break Lost::online(lost.error);
                    }
                    tracing::debug!(error = %lost.error, "still by WebSocket");
                }
            }
        };
        probe.left(carrier);
        if lost.removed {
            self.removed.store(true, Ordering::Relaxed);
        }
        lost
    }

    /// Has the relay take this machine by a tunnel.
    async fn join(&mut self, tunnel: &Tunnel, moves: bool) -> Result<(Control, Registered), Lost> {
        // A clock that was set back is no reason to be taken for an earlier connection.
        self.serial = millis(wall_clock()).max(self.serial + 1);
        let registering = self.register(tunnel, moves);
        let (control, registered) = match timeout(PATIENCE, registering).await {
            Ok(Ok(registered)) => registered,
            Ok(Err(error)) => return Err(Lost::refused(error)),
            Err(_) => {
                return Err(Lost::dialling(Error::new(
                    Kind::Timeout,
                    "the relay did not say whether it takes this machine",
                )));
            }
        };
        if let Some(token) = &registered.machine_token
            && let Err(error) = self.kept.set_token(&self.config.relay.to_string(), token)
        {
            // It works until this process ends. Then its id would be lost.
            tracing::error!(%error, "the machine's token could not be kept");
        }
        tunnel.admit();
        Ok((control, registered))
    }

    /// Serves what comes by a tunnel, until it is lost or has been moved from.
    fn hold(
        &self,
        dialled: Dialled,
        control: Control,
        via: Via,
        router: &Router,
        stopping: &watch::Receiver<bool>,
    ) -> (BoxFuture<'static, Lost>, watch::Receiver<bool>) {
        let url = format!("{}{}", via.public_url, via.prefix);
        let carrier = dialled.tunnel.carrier();
        tracing::info!(machine = %self.machine, %carrier, "connected to the relay");
        self.status.send_replace(Status::Online { carrier, url });
        let (router, media, stopping) = (router.clone(), self.media.clone(), stopping.clone());
        let (moves, moved) = watch::channel(false);
        let told = moved.clone();
        let held = Box::pin(async move {
            let tunnel = &dialled.tunnel;
            let lost = tokio::select! {
                lost = attend(control, stopping, moves) => lost,
                () = serve::serve(tunnel, router, via, media, moved) => {
                    Lost::online(Error::new(Kind::Relay, "the connection to the relay was lost"))
                }
            };
            tunnel.close();
            // Its goodbye leaves before its socket does.
            drop(timeout(FAREWELL, tunnel.closed()).await);
            lost
        });
        (held, told)
    }

    async fn register(&self, tunnel: &Tunnel, moves: bool) -> Result<(Control, Registered)> {
        let gone = || Error::new(Kind::Relay, "the relay ended the connection");
        let known = self.kept.of(&self.config.relay.to_string());
        let head = Head::Register(Register {
            version: VERSION,
            machine: self.machine.clone(),
            name: self.config.name.clone(),
            software: self.config.software.clone(),
            registration_token: self.config.token.clone(),
            machine_token: known.and_then(|known| known.token.clone()).map(Redacted::new),
            hops: self.config.hops.clone(),
            serial: self.serial,
            moves,
        });
        let (receive, send) = split(tunnel.open(&head).await?);
        // The same one all along: what follows the answer may have come with it.
        let mut messages = Reader::<_, FromRelay>::new(receive);
        let answer = loop {
            match messages.next().await?.ok_or_else(gone)? {
                FromRelay::Beat(_) => {}
                answer => break answer,
            }
        };
        match answer {
            FromRelay::Registered(registered) => Ok(((messages, send), registered)),
            FromRelay::Refused(refusal) => Err(refusal.into()),
            _ => Err(gone()),
        }
    }

    /// The address that is dialled next: the one after that of the last connection, which is gone.
    fn relay(&self) -> &Origin {
        let count = 1 + self.config.others.len();
        match self.next % count {
            0 => &self.config.relay,
            other => self.config.others.get(other - 1).unwrap_or(&self.config.relay),
        }
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    fn via(&self, relay: &Origin, registered: &Registered) -> Via {
        let said: Result<Origin> = registered.public_url.parse();
        let public_url = said.map_or_else(|_| relay.to_string(), |it| it.to_string());
        let prefix = format!("/m/{}", self.machine);
        Via { public_url, prefix, quic: registered.quic.clone() }
    }
}

/// Answers the relay's questions, until it is silent or says goodbye. That this machine has `moved` to another
/// tunnel is none.
pub(crate) async fn attend(
    (mut messages, mut send): Control,
    mut stopping: watch::Receiver<bool>,
    moved: watch::Sender<bool>,
) -> Lost {
    let mut silent = Instant::now() + SILENCE;
    let lost = || Lost::online(Error::new(Kind::Relay, "the connection to the relay was lost"));
    let mut stop = std::pin::pin!(async { drop(stopping.wait_for(|&stopping| stopping).await) });
    loop {
        tokio::select! {
            message = messages.next() => match message {
                Ok(Some(FromRelay::Beat(beat))) => {
                    silent = Instant::now() + SILENCE;
                    let answer = FromMachine::Beat(beat);
                    if !matches!(timeout(SILENCE, write(&mut send, &answer)).await, Ok(Ok(()))) {
                        return lost();
                    }
                }
                Ok(Some(FromRelay::Bye(Goodbye::Moved))) => {
                    moved.send_replace(true);
                }
                Ok(Some(FromRelay::Bye(why))) => return goodbye(why),
                // What else there is was said before, if at all.
                Ok(Some(_)) => {}
                Ok(None) => return lost(),
                Err(error) => {
                    let lost = Error::new(Kind::Relay, "the connection to the relay was lost");
                    return Lost::online(lost.source(error));
                }
            },
            () = sleep_until(silent) => {
                return Lost::online(Error::new(Kind::Relay, "the relay went silent"));
            }
            () = &mut stop => {
                drop(timeout(FAREWELL, write(&mut send, &FromMachine::Bye)).await);
                return lost();
            }
        }
    }
}

fn goodbye(why: Goodbye) -> Lost {
    let (message, for_good) = match why {
        Goodbye::Stopping => ("the relay was stopped", false),
        Goodbye::Moved => ("the machine has moved to another tunnel", false),
        Goodbye::Replaced => ("another machine has joined with this one's id and token", true),
        Goodbye::Removed => ("the machine was removed from the relay", true),
        Goodbye::Misbehaved => ("the relay says that this machine misbehaved", true),
    };
    let error = Error::new(Kind::Relay, message);
    let error = match why {
        Goodbye::Replaced => error.hint(
            "Was its state directory copied? Give one of them another id with `--machine-id`",
        ),
        Goodbye::Removed => error.hint("Start it again with the relay's registration token"),
        _ => error,
    };
    Lost { error, was_online: true, for_good, removed: why == Goodbye::Removed }
}

/// What this machine may be asked at one time. The relay's own limit is lower by default, and this one is so
/// that no relay can have more.
fn limits() -> Limits {
    Limits { streams: MAX_REQUESTS, window: WINDOW }
}

/// Requests that the relay may have under way.
pub(crate) const MAX_REQUESTS: usize = 256;

/// Bytes of one request that wait for the gateway. Less than its own port has: a path through a relay is longer
/// but seldom as wide, and a relay is not trusted with all of a guest's memory.
pub(crate) const WINDOW: u32 = 1 << 20;

/// What is kept of the relays that this machine has joined, by their origins.
#[derive(Debug)]
struct Kept {
    /// `None`: whoever gave it keeps it.
    path: Option<PathBuf>,
    relays: BTreeMap<String, Known>,
}

#[derive(Clone, serde::Deserialize, Serialize)]
struct Known {
    machine: MachineId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Kept {
    fn read(path: PathBuf) -> Result<Self> {
        if path.exists() {
            private::check_mode(&path)?;
        }
        let relays = private::read_json(&path)?.unwrap_or_default();
        Ok(Self { path: Some(path), relays })
    }

    fn given(relay: &str, machine: &MachineId, token: &Redacted<String>) -> Self {
        let known = Known { machine: machine.clone(), token: Some(token.expose().clone()) };
        Self { path: None, relays: BTreeMap::from([(relay.to_owned(), known)]) }
    }

    fn keep(&self) -> Result<()> {
        match &self.path {
            Some(path) => private::replace_json(path, &self.relays),
            None => Ok(()),
        }
    }

    fn of(&self, relay: &str) -> Option<&Known> {
        self.relays.get(relay)
    }

    fn set_machine(&mut self, relay: &str, machine: &MachineId) -> Result<()> {
        if self.of(relay).is_some_and(|known| known.machine == *machine) {
            return Ok(());
        }
        // The token of another id is none of this one's. It is kept before the relay hears of it: a machine that
        // is let in and does not hear of that would have lost its id.
        let token = random_token()?.expose().clone();
        let known = Known { machine: machine.clone(), token: Some(token) };
        self.relays.insert(relay.to_owned(), known);
        self.keep()
    }

    fn set_token(&mut self, relay: &str, token: &Redacted<String>) -> Result<()> {
        if let Some(known) = self.relays.get_mut(relay) {
            known.token = Some(token.expose().clone());
        }
        self.keep()
    }
}

/// An id made of a name, with enough at its end that no other machine has the same.
fn new_id(name: &str) -> Result<MachineId> {
    /// Letters that are not taken for each other.
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    /// Characters of the name, and those after it: 40 random bits.
    const OF_NAME: usize = 24;
    const RANDOM: usize = 8;
    let mut bits = [0_u8; RANDOM];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    let plain = |it: char| if it.is_ascii_alphanumeric() { it.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().take(OF_NAME).map(plain).collect();
    let random = bits.map(|bits| char::from(LETTERS[usize::from(bits) % LETTERS.len()]));
    let name = name.trim_matches('-');
    let random: String = random.into_iter().collect();
    if name.is_empty() { random.parse() } else { format!("{name}-{random}").parse() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_made_of_any_name_and_kept() {
        for (name, begins) in [("Build Box", "build-box-"), ("", ""), ("-ü-", ""), ("x.y", "x-y-")]
        {
            let id = new_id(name).unwrap();
            assert!(id.as_str().starts_with(begins), "{id}");
            assert_ne!(new_id(name).unwrap(), id);
        }
        let folder = tempfile::tempdir().unwrap();
        let config = |relay: &str| {
            Config::new(relay.parse().unwrap(), "box", folder.path().join("relay.json"))
        };
        let (first, driver) = prepare(config("http://a.example")).unwrap();
        let mut kept = driver.kept;
        kept.set_token("http://a.example", &Redacted::new("cmt_x".into())).unwrap();
        assert!(!format!("{kept:?}").contains("cmt_x"));
        let (again, driver) = prepare(config("http://a.example")).unwrap();
        assert_eq!(first.machine(), again.machine());
        assert_eq!(driver.kept.of("http://a.example").unwrap().token.as_deref(), Some("cmt_x"));
        assert_ne!(prepare(config("http://b.example")).unwrap().0.machine(), first.machine());
        let mut other = config("http://a.example");
        other.machine = Some("another-id".parse().unwrap());
        let (_, driver) = prepare(other).unwrap();
        let token = driver.kept.of("http://a.example").unwrap().token.clone().unwrap();
        assert!(token != "cmt_x" && token.starts_with("cmt_"), "that was the other's");
    }
}
