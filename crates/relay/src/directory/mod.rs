//! Which machines there are, who they are, and which of them are here now.
//!
//! Who has the registration token lets machines in. A machine is given a token of its own then, and shows it
//! whenever it comes again: nobody else gets its id, not even with the registration token. Both are kept as
//! SHA-256. What is said of a machine is what is true: it is online for exactly as long as its tunnel is held.

mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::BoxFuture;
use serde::Serialize;
use spaceport_types::{Error, Kind, MachineId, Redacted, Result};
use spaceport_wire::relay::{Goodbye, Register};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub(crate) use self::record::Record;
use self::record::{Records, seconds};
use crate::audit::{Audit, Event};
use crate::media::{Attached, Machines};
use crate::nodes::Holder;
use crate::tunnel::{Carrier, Tunnel};
use crate::uplink;

/// The machines of one relay. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Directory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// SHA-256 of what lets machines in.
    registration: [u8; 32],
    machines: Mutex<BTreeMap<MachineId, Machine>>,
    records: Records,
    audit: Audit,
    max: usize,
    grace: Duration,
    /// Changes whenever a machine comes or goes.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct Machine {
    record: Record,
    state: State,
}

#[derive(Debug)]
enum State {
    Online {
        tunnel: Tunnel,
        since: SystemTime,
        /// Tells one connection of a machine from the next.
        number: u64,
        /// The same, as the machine counts them: at whichever node.
        serial: u64,
        /// The relays that are between.
        hops: Vec<String>,
        /// Ends it.
        bye: Bye,
        /// The tunnel that it has moved from, until that is done with. One at most: who moves again ends it.
        former: Option<(Tunnel, Bye)>,
    },
    /// At another node, as that one says.
    Elsewhere(Holder),
    Offline {
        since: SystemTime,
        /// When it left, or the relay was started.
        left: Instant,
    },
}

/// What is known of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Its id.
    pub id: MachineId,
    /// What people call it.
    pub name: String,
    /// Whether it can be reached now.
    pub online: bool,
    /// Since when that is so, in seconds since 1970.
    pub since: u64,
    /// What its tunnel is carried by, while it is online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carrier: Option<Carrier>,
    /// Requests under way, while it is online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<usize>,
    /// The version of its program, as it said last.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub software: String,
    /// When it was first let in, in seconds since 1970.
    pub registered: u64,
    /// How it is at the relay above, where there is one and while it is online.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uplink: Option<uplink::Status>,
    /// The node of this relay that has it, when it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Until when that was known, in seconds since 1970, while the directory of the nodes is away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub as_of: Option<u64>,
}

/// A machine that is connected to this relay.
#[derive(Clone, Debug)]
pub(crate) struct Present {
    /// Tells one connection of the machine from the next.
    pub(crate) number: u64,
    /// The same, as the machine counts them.
    pub(crate) serial: u64,
    /// In seconds since 1970.
    pub(crate) since: u64,
    pub(crate) name: String,
    pub(crate) software: String,
    /// The relays that are between.
    pub(crate) hops: Vec<String>,
}

/// Where a machine is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// It is connected to this relay.
    Here(Tunnel),
    /// It is connected to another node of it.
    There(Holder),
    /// It is not, and since when; and when this relay began to miss it.
    Nowhere(SystemTime, Instant),
}

/// What the task of a tunnel is told; that it has moved comes before the last word. Dropping it ends the tunnel.
type Bye = watch::Sender<Option<Goodbye>>;

impl Machines for Directory {
    fn find<'a>(&'a self, machine: &'a MachineId) -> BoxFuture<'a, Result<Tunnel>> {
        Box::pin(self.find(machine))
    }

    fn attached<'a>(&'a self, machine: &'a MachineId, attached: Attached) -> BoxFuture<'a, ()> {
        Box::pin(self.inner.audit.attached(machine.clone(), attached, crate::wall_clock()))
    }
}

/// A machine that is online, for as long as this is held.
#[derive(Debug)]
pub(crate) struct Presence {
    directory: Directory,
    machine: MachineId,
    number: u64,
}

impl Directory {
    /// The machines that were let in before, all of them offline.
    pub(crate) fn open(
        folder: &Path,
        registration: &Redacted<String>,
        max: usize,
        grace: Duration,
        now: SystemTime,
    ) -> Result<Self> {
        let records = Records::at(folder);
        let (left, since) = (Instant::now(), now);
        let machines = records
            .read()?
            .into_iter()
            .map(|(id, record)| (id, Machine { record, state: State::Offline { since, left } }));
        Ok(Self {
            inner: Arc::new(Inner {
                registration: record::hash(registration.expose()),
                machines: Mutex::new(machines.collect()),
                records,
                audit: Audit::at(folder),
                max,
                grace,
                changed: watch::channel(0).0,
            }),
        })
    }

    /// Whether a token lets machines in, and shows who may ask for all of them.
    pub(crate) fn lets_in(&self, token: &str) -> bool {
        record::hash(token).ct_eq(&self.inner.registration).into()
    }

    /// Judges a machine that wants to join, and lets it in; with a token of its own the first time.
    ///
    /// # Errors
    ///
    /// `unauthenticated`, `permission_denied` for an id that is another machine's, `limit_exceeded`, `io`.
    pub(crate) fn judge(
        &self,
        wanted: &Register,
        now: SystemTime,
    ) -> Result<Option<Redacted<String>>> {
        let judged = self.judge_quietly(wanted, now);
        if let Err(error) = &judged
            && error.kind() != Kind::Io
        {
            self.inner.audit.refused(&wanted.machine, error.to_string(), now);
        }
        judged
    }

    fn judge_quietly(
        &self,
        wanted: &Register,
        now: SystemTime,
    ) -> Result<Option<Redacted<String>>> {
        let shown = wanted.machine_token.as_ref().map(|token| record::hash(token.expose()));
        if let Some(machine) = self.lock().get(&wanted.machine) {
            let known = machine.record.token.0;
            return match shown {
                Some(shown) if bool::from(shown.ct_eq(&known)) => Ok(None),
                _ => Err(taken(&wanted.machine)),
            };
        }
        let lets_in =
            wanted.registration_token.as_ref().is_some_and(|token| self.lets_in(token.expose()));
        if !lets_in {
            return Err(match &wanted.registration_token {
                Some(_) => {
                    Error::new(Kind::Unauthenticated, "the registration token is not this relay's")
                        .hint(
                            "Take it from whoever runs the relay, and set `SPACEPORT_RELAY_TOKEN`",
                        )
                }
                None if shown.is_some() => Error::new(
                    Kind::Unauthenticated,
                    format!("this relay does not know the machine `{}` any more", wanted.machine),
                )
                .hint(
                    "Set `SPACEPORT_RELAY_TOKEN` to the relay's registration token, to join again",
                ),
                None => {
                    Error::new(Kind::Unauthenticated, "a new machine needs a registration token")
                        .hint("Set `SPACEPORT_RELAY_TOKEN` to the relay's registration token")
                }
            });
        }
        // One that it has made itself cannot be lost on its way.
        let own = wanted.machine_token.clone().filter(|token| is_long(token.expose()));
        let minted = own.is_none();
        let token = own.map_or_else(random_token, Ok)?;
        self.let_in_as(&wanted.machine, &wanted.name, &token, now)?;
        Ok(minted.then_some(token))
    }

    /// Lets a new machine in, and returns the token that it has to show.
    pub(crate) fn let_in(
        &self,
        id: &MachineId,
        name: &str,
        now: SystemTime,
    ) -> Result<Redacted<String>> {
        let token = random_token()?;
        self.let_in_as(id, name, &token, now)?;
        Ok(token)
    }

    fn let_in_as(
        &self,
        id: &MachineId,
        name: &str,
        token: &Redacted<String>,
        now: SystemTime,
    ) -> Result<()> {
        {
            let mut machines = self.lock();
            if machines.contains_key(id) {
                return Err(taken(id));
            }
            if machines.len() >= self.inner.max {
                return Err(Error::new(
                    Kind::LimitExceeded,
                    format!("{} machines are registered at this relay", self.inner.max),
                )
                .with("limit", self.inner.max)
                .hint("Have whoever runs the relay remove one, or raise `limits.machines`"));
            }
            let record = Record::new(name, token.expose(), now);
            let state = State::Offline { since: now, left: Instant::now() };
            machines.insert(id.clone(), Machine { record, state });
            self.keep(&machines)?;
        }
        self.inner.audit.record(Event::Registered, id, [("name", short(name))], now);
        Ok(())
    }

    /// Takes a machine's tunnel. Another one that it has is ended, or kept for what is under way if the machine
    /// moves.
    ///
    /// # Errors
    ///
    /// `not_found` when the machine has been removed meanwhile.
    pub(crate) fn arrive(
        &self,
        wanted: &Register,
        tunnel: Tunnel,
        now: SystemTime,
    ) -> Result<(Presence, watch::Receiver<Option<Goodbye>>)> {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let carrier = tunnel.carrier();
        let (bye, asked) = watch::channel(None);
        {
            let mut machines = self.lock();
            let machine =
                machines.get_mut(&wanted.machine).ok_or_else(|| unknown(&wanted.machine))?;
            let changed = machine.record.described(&wanted.name, &wanted.software);
            let (serial, hops) = (wanted.serial, wanted.hops.clone());
            let offline = State::Offline { since: now, left: Instant::now() };
            let before = std::mem::replace(&mut machine.state, offline);
            let (since, former) = match before {
                State::Online { tunnel, since, bye, former, .. } if wanted.moves => {
                    if let Some((_, bye)) = former {
                        bye.send_replace(Some(Goodbye::Replaced));
                    }
                    bye.send_replace(Some(Goodbye::Moved));
                    tunnel.leave();
                    // It was there all the time.
                    (since, Some((tunnel, bye)))
                }
                before => {
                    before.end(Goodbye::Replaced);
                    (now, None)
                }
            };
            machine.state = State::Online { tunnel, since, number, serial, hops, bye, former };
            if changed {
                // It is online whether that is written down or not.
                drop(self.keep(&machines).inspect_err(|error| {
                    tracing::warn!(%error, "the list of machines could not be kept");
                }));
            }
        }
        self.tell();
        let facts = [("carrier", carrier.to_string()), ("software", short(&wanted.software))];
        self.inner.audit.record(Event::Joined, &wanted.machine, facts, now);
        let machine = wanted.machine.clone();
        Ok((Presence { directory: self.clone(), machine, number }, asked))
    }

    /// The tunnel to a machine. One that has only just gone is waited for.
    ///
    /// # Errors
    ///
    /// `not_found`, and `relay` for a machine that is not connected.
    pub async fn find(&self, id: &MachineId) -> Result<Tunnel> {
        let mut changed = self.inner.changed.subscribe();
        let (since, left) = match self.look(id)? {
            Place::Here(tunnel) => return Ok(tunnel),
            Place::There(holder) => return Err(elsewhere(id, &holder)),
            Place::Nowhere(since, left) => (since, left),
        };
        let coming = async {
            loop {
                if changed.changed().await.is_err() {
                    return std::future::pending().await;
                }
                match self.look(id) {
                    Ok(Place::Here(tunnel)) => return Ok(tunnel),
                    Ok(Place::There(_) | Place::Nowhere(..)) => {}
                    Err(error) => return Err(error),
                }
            }
        };
        let patience = self.inner.grace.saturating_sub(left.elapsed());
        timeout(patience, coming).await.unwrap_or_else(|_| Err(offline(id, since)))
    }

    /// Where a machine is.
    ///
    /// # Errors
    ///
    /// `not_found`.
    pub(crate) fn look(&self, id: &MachineId) -> Result<Place> {
        let machines = self.lock();
        let machine = machines.get(id).ok_or_else(|| unknown(id))?;
        Ok(match &machine.state {
            State::Online { tunnel, .. } if !tunnel.is_closed() => Place::Here(tunnel.clone()),
            // Its task gets to it in a moment.
            State::Online { .. } => Place::Nowhere(SystemTime::UNIX_EPOCH, Instant::now()),
            State::Elsewhere(holder) => Place::There(holder.clone()),
            State::Offline { since, left } => Place::Nowhere(*since, *left),
        })
    }

    /// The machines that are connected to this relay.
    pub(crate) fn present(&self) -> BTreeMap<MachineId, Present> {
        let machines = self.lock();
        let present = machines.iter().filter_map(|(id, machine)| match &machine.state {
            State::Online { number, serial, since, hops, .. } => {
                let Record { name, software, .. } = machine.record.clone();
                let (number, serial, since) = (*number, *serial, seconds(*since));
                let hops = hops.clone();
                Some((id.clone(), Present { number, serial, since, name, software, hops }))
            }
            State::Elsewhere(_) | State::Offline { .. } => None,
        });
        present.collect()
    }

    /// Whether a machine is registered.
    pub(crate) fn knows(&self, id: &MachineId) -> bool {
        self.lock().contains_key(id)
    }

    /// What is kept of a machine.
    pub(crate) fn record(&self, id: &MachineId) -> Option<Record> {
        self.lock().get(id).map(|machine| machine.record.clone())
    }

    /// What is kept of machines that are not among these.
    pub(crate) fn beyond(&self, known: &BTreeSet<MachineId>) -> Vec<(MachineId, Record)> {
        let machines = self.lock();
        let beyond = machines.iter().filter(|(id, _)| !known.contains(*id));
        beyond.map(|(id, machine)| (id.clone(), machine.record.clone())).collect()
    }

    /// Takes what the nodes agree on: who is registered, and who was removed. Their word is the last one.
    pub(crate) fn learn(&self, agreed: impl IntoIterator<Item = (MachineId, Option<Record>)>) {
        let now = crate::wall_clock();
        let mut removed = Vec::new();
        {
            let mut machines = self.lock();
            let mut is_news = false;
            for (id, record) in agreed {
                let has_room = machines.len() < self.inner.max;
                match (record, machines.get_mut(&id)) {
                    (Some(record), Some(known)) if known.record == record => {}
                    (Some(record), Some(known)) => {
                        if known.record.token != record.token {
                            // That id is another machine's, and was so first.
                            let offline = State::Offline { since: now, left: Instant::now() };
                            std::mem::replace(&mut known.state, offline).end(Goodbye::Removed);
                        }
                        known.record = record;
                        is_news = true;
                    }
                    (Some(record), None) if has_room => {
                        let state = State::Offline { since: now, left: Instant::now() };
                        machines.insert(id, Machine { record, state });
                        is_news = true;
                    }
                    (None, Some(_)) => {
                        if let Some(machine) = machines.remove(&id) {
                            machine.state.end(Goodbye::Removed);
                        }
                        removed.push(id);
                        is_news = true;
                    }
                    (_, None) => {}
                }
            }
            if !is_news {
                return;
            }
            // What is agreed on holds whether it is written down here or not.
            drop(self.keep(&machines).inspect_err(|error| {
                tracing::warn!(%error, "the list of machines could not be kept");
            }));
        }
        for id in removed {
            self.inner.audit.record(Event::Removed, &id, [], now);
        }
        self.tell();
    }

    /// Takes who is at which other node. Those that are here are here.
    pub(crate) fn place(&self, mut there: BTreeMap<MachineId, Holder>) {
        let (since, left) = (crate::wall_clock(), Instant::now());
        let mut is_news = false;
        for (id, machine) in self.lock().iter_mut() {
            let state = match (&machine.state, there.remove(id)) {
                (State::Online { .. }, _) | (State::Offline { .. }, None) => continue,
                (State::Elsewhere(before), Some(holder)) if *before == holder => continue,
                (_, Some(holder)) => State::Elsewhere(holder),
                (State::Elsewhere(_), None) => State::Offline { since, left },
            };
            machine.state = state;
            is_news = true;
        }
        if is_news {
            self.tell();
        }
    }

    /// Ends a machine's connection, since it has made a later one to another node.
    pub(crate) fn replaced(&self, id: &MachineId, connection: u64) {
        if let Some(machine) = self.lock().get_mut(id)
            && let State::Online { number, .. } = &machine.state
            && *number == connection
        {
            machine.state.say(Goodbye::Replaced);
        }
    }

    /// How many machines there may be.
    pub(crate) fn most(&self) -> usize {
        self.inner.max
    }

    /// How long one that has just gone is waited for.
    pub(crate) fn grace(&self) -> Duration {
        self.inner.grace
    }

    /// Changes whenever a machine comes, goes or is removed.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.inner.changed.subscribe()
    }

    /// What is known of every machine, by id.
    pub fn list(&self) -> Vec<Status> {
        self.lock().iter().map(|(id, machine)| machine.status(id)).collect()
    }

    /// What is known of one.
    ///
    /// # Errors
    ///
    /// `not_found`.
    pub fn status(&self, id: &MachineId) -> Result<Status> {
        let machines = self.lock();
        machines.get(id).map(|machine| machine.status(id)).ok_or_else(|| unknown(id))
    }

    /// Forgets a machine, and ends its tunnel. It needs the registration token to come again.
    ///
    /// # Errors
    ///
    /// `not_found`, `io`.
    pub(crate) fn remove(&self, id: &MachineId, now: SystemTime) -> Result<()> {
        {
            let mut machines = self.lock();
            let machine = machines.remove(id).ok_or_else(|| unknown(id))?;
            machine.state.end(Goodbye::Removed);
            self.keep(&machines)?;
        }
        self.tell();
        self.inner.audit.record(Event::Removed, id, [], now);
        Ok(())
    }

    /// The ledger of what happens here.
    pub fn audit(&self) -> &Audit {
        &self.inner.audit
    }

    /// Ends every tunnel, because the relay stops.
    pub(crate) fn stop(&self) {
        for machine in self.lock().values() {
            machine.state.say(Goodbye::Stopping);
        }
    }

    /// Machines that are registered, and of those the ones that are online.
    pub(crate) fn count(&self) -> (usize, usize) {
        let machines = self.lock();
        let is_online = |machine: &&Machine| matches!(machine.state, State::Online { .. });
        (machines.len(), machines.values().filter(is_online).count())
    }

    fn keep(&self, machines: &BTreeMap<MachineId, Machine>) -> Result<()> {
        self.inner.records.write(machines.iter().map(|(id, machine)| (id, &machine.record)))
    }

    fn tell(&self) {
        self.inner.changed.send_modify(|number| *number += 1);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MachineId, Machine>> {
        self.inner.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    fn status(&self, id: &MachineId) -> Status {
        let mut requests = None;
        let (online, since, tunnel, node) = match &self.state {
            State::Online { tunnel, since, former, .. } => {
                let former = former.as_ref().map_or(0, |(tunnel, _)| tunnel.streams());
                requests = Some(tunnel.streams() + former);
                (true, seconds(*since), Some(tunnel), None)
            }
            State::Elsewhere(holder) => (true, holder.since, None, Some(holder.url.to_string())),
            State::Offline { since, .. } => (false, seconds(*since), None, None),
        };
        Status {
            id: id.clone(),
            name: self.record.name.clone(),
            online,
            since,
            carrier: tunnel.map(Tunnel::carrier),
            requests,
            software: self.record.software.clone(),
            registered: self.record.registered,
            uplink: None,
            node,
            as_of: None,
        }
    }
}

impl State {
    fn end(self, why: Goodbye) {
        self.say(why);
    }

    /// Has what there is of tunnels end. Of two words the last one counts.
    fn say(&self, why: Goodbye) {
        if let Self::Online { bye, former, .. } = self {
            bye.send_replace(Some(why));
            if let Some((_, bye)) = former {
                bye.send_replace(Some(why));
            }
        }
    }
}

impl Presence {
    /// Ends it, which is then written down.
    pub(crate) fn leave(self, why: &'static str, now: SystemTime) {
        let facts = [("why", why.to_owned())];
        self.directory.inner.audit.record(Event::Left, &self.machine, facts, now);
        self.offline(now);
    }

    fn offline(&self, now: SystemTime) {
        {
            let mut machines = self.directory.lock();
            let Some(machine) = machines.get_mut(&self.machine) else { return };
            match &machine.state {
                State::Online { number, .. } if *number == self.number => {}
                // It has come again, or has left already.
                _ => return,
            }
            machine.state = State::Offline { since: now, left: Instant::now() };
        }
        self.directory.tell();
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.offline(crate::wall_clock());
    }
}

pub(crate) fn taken(id: &MachineId) -> Error {
    Error::new(Kind::PermissionDenied, format!("the id `{id}` is another machine's"))
        .with("machine", id)
        .hint(
            "Give this machine another with `--machine-id`; if it is the same one and has lost its \
             state, have whoever runs the relay remove the old one",
        )
}

fn unknown(id: &MachineId) -> Error {
    Error::new(Kind::NotFound, format!("no machine `{id}` is registered at this relay"))
        .with("machine", id)
        .hint("Look at the id that `spaceport serve --relay` printed")
}

pub(crate) fn offline(id: &MachineId, since: SystemTime) -> Error {
    let error =
        Error::new(Kind::Relay, format!("the machine `{id}` is not connected to the relay"))
            .with("machine", id)
            .with("reason", "guest_offline")
            .hint("See that `spaceport serve --relay` runs there and has a network");
    match seconds(since) {
        0 => error,
        since => error.with("offline_since", since),
    }
}

fn elsewhere(id: &MachineId, holder: &Holder) -> Error {
    Error::new(Kind::Relay, format!("the machine `{id}` is at another node of the relay"))
        .with("machine", id)
        .with("node", &holder.url)
}

/// Whether a token that a machine has made is as long as ours are: nobody guesses it then.
fn is_long(token: &str) -> bool {
    (40..=200).contains(&token.len())
}

/// A token of one machine.
pub(crate) fn random_token() -> Result<Redacted<String>> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(Redacted::new(format!("cmt_{}", URL_SAFE_NO_PAD.encode(bits))))
}

/// A machine's own words, as long as a name is.
pub(crate) fn short(text: &str) -> String {
    /// Characters.
    const LONGEST: usize = 80;
    text.chars().filter(|it| !it.is_control()).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::tunnel::Limits;

    const NOW: SystemTime = UNIX_EPOCH;

    fn at(folder: &Path) -> Directory {
        let token = Redacted::new("let-me-in".to_owned());
        Directory::open(folder, &token, 2, Duration::from_secs(3), NOW).unwrap()
    }

    fn id(name: &str) -> MachineId {
        name.parse().unwrap()
    }

    fn wanted(
        machine: &str,
        registration: Option<&str>,
        token: Option<&Redacted<String>>,
    ) -> Register {
        Register {
            version: 1,
            machine: id(machine),
            name: "Box".into(),
            software: "0".into(),
            registration_token: registration.map(|token| Redacted::new(token.to_owned())),
            machine_token: token.cloned(),
            hops: Vec::new(),
            serial: 0,
            moves: false,
        }
    }

    #[tokio::test]
    async fn an_id_belongs_to_who_came_first_and_outlives_the_relay() {
        let folder = tempfile::tempdir().unwrap();
        let directory = at(folder.path());
        let refused = |register: &Register, directory: &Directory| {
            directory.judge(register, NOW).unwrap_err().kind()
        };
        assert_eq!(refused(&wanted("machine-1", None, None), &directory), Kind::Unauthenticated);
        let wrong = wanted("machine-1", Some("let-me-i"), None);
        assert_eq!(refused(&wrong, &directory), Kind::Unauthenticated);
        let first = wanted("machine-1", Some("let-me-in"), None);
        let token = directory.judge(&first, NOW).unwrap().expect("a token of its own");
        assert!(token.expose().starts_with("cmt_"));

        let again = at(folder.path());
        // Another one, with the registration token but without the machine's.
        assert_eq!(refused(&first, &again), Kind::PermissionDenied);
        let guess = Redacted::new("cmt_guess".to_owned());
        let guessed = wanted("machine-1", Some("let-me-in"), Some(&guess));
        assert_eq!(refused(&guessed, &again), Kind::PermissionDenied);
        // The machine itself, without the registration token.
        assert!(again.judge(&wanted("machine-1", None, Some(&token)), NOW).unwrap().is_none());
        let kept = std::fs::read_to_string(folder.path().join("machines.json")).unwrap();
        assert!(!kept.contains(token.expose()) && !kept.contains("let-me-in"));

        again.remove(&id("machine-1"), NOW).unwrap();
        let gone = wanted("machine-1", None, Some(&token));
        assert_eq!(refused(&gone, &again), Kind::Unauthenticated);
        assert_eq!(again.remove(&id("machine-1"), NOW).unwrap_err().kind(), Kind::NotFound);
    }

    #[tokio::test]
    async fn a_machine_that_is_let_in_and_does_not_hear_of_it_comes_again() {
        let folder = tempfile::tempdir().unwrap();
        let own = random_token().unwrap();
        let first = wanted("machine-1", Some("let-me-in"), Some(&own));
        assert_eq!(at(folder.path()).judge(&first, NOW).unwrap(), None);
        assert_eq!(at(folder.path()).judge(&first, NOW).unwrap(), None, "it is the same one");
        let short = Redacted::new("cmt_short".to_owned());
        let guessable = wanted("machine-2", Some("let-me-in"), Some(&short));
        assert!(
            at(folder.path()).judge(&guessable, NOW).unwrap().is_some(),
            "it is given a better one"
        );
    }

    #[tokio::test]
    async fn there_are_only_so_many_machines() {
        let folder = tempfile::tempdir().unwrap();
        let directory = at(folder.path());
        for name in ["machine-1", "machine-2"] {
            directory.judge(&wanted(name, Some("let-me-in"), None), NOW).unwrap();
        }
        let third = wanted("machine-3", Some("let-me-in"), None);
        assert_eq!(directory.judge(&third, NOW).unwrap_err().kind(), Kind::LimitExceeded);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_comes_in_time_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let directory = at(folder.path());
        let register = wanted("machine-1", Some("let-me-in"), None);
        directory.judge(&register, NOW).unwrap();
        assert_eq!(directory.find(&id("machine-9")).await.unwrap_err().kind(), Kind::NotFound);
        let (_machine, relay) = Tunnel::pair(Limits::default());
        let arriving = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            directory.arrive(&register, relay, NOW).unwrap()
        };
        let machine = id("machine-1");
        let (found, (presence, _bye)) = tokio::join!(directory.find(&machine), arriving);
        found.unwrap();
        assert!(directory.status(&machine).unwrap().online);
        presence.leave("test", NOW);
        assert!(!directory.status(&machine).unwrap().online);
        let began = Instant::now();
        let error = directory.find(&machine).await.unwrap_err();
        assert_eq!((error.kind(), error.context("machine")), (Kind::Relay, Some("machine-1")));
        assert_eq!(began.elapsed().as_secs(), 3);
        let began = Instant::now();
        directory.find(&machine).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 0, "it has been gone for a while");
    }

    #[tokio::test]
    async fn a_machine_that_comes_again_replaces_itself() {
        let folder = tempfile::tempdir().unwrap();
        let directory = at(folder.path());
        let register = wanted("machine-1", Some("let-me-in"), None);
        directory.judge(&register, NOW).unwrap();
        let (_a, first) = Tunnel::pair(Limits::default());
        let (_b, second) = Tunnel::pair(Limits::default());
        let (older, mut bye) = directory.arrive(&register, first, NOW).unwrap();
        let (_newer, _bye) = directory.arrive(&register, second, NOW).unwrap();
        bye.changed().await.unwrap();
        assert_eq!(*bye.borrow(), Some(Goodbye::Replaced));
        drop(older);
        assert!(
            directory.status(&id("machine-1")).unwrap().online,
            "the older one's end is its own"
        );
        assert_eq!(directory.count(), (1, 1));
    }

    #[tokio::test]
    async fn a_machine_that_moves_keeps_one_former_tunnel_and_removal_ends_both() {
        let folder = tempfile::tempdir().unwrap();
        let directory = at(folder.path());
        let mut register = wanted("machine-1", Some("let-me-in"), None);
        let token = directory.judge(&register, NOW).unwrap().unwrap();
        register.moves = true;
        let refused = directory.judge(&register, NOW).unwrap_err().kind();
        assert_eq!(refused, Kind::PermissionDenied, "who moves shows the same token");
        let guess = Redacted::new("cmt_guess".to_owned());
        register.machine_token = Some(guess);
        let refused = directory.judge(&register, NOW).unwrap_err().kind();
        assert_eq!(refused, Kind::PermissionDenied);
        register.machine_token = Some(token);
        directory.judge(&register, NOW).unwrap();
        let pairs: [_; 3] = std::array::from_fn(|_| Tunnel::pair(Limits::default()));
        let [(_a, first), (_b, second), (_c, third)] = pairs;
        let later = NOW + Duration::from_secs(60);
        let (_first, bye_1) = directory.arrive(&register, first, NOW).unwrap();
        let (_second, bye_2) = directory.arrive(&register, second, later).unwrap();
        assert_eq!((*bye_1.borrow(), *bye_2.borrow()), (Some(Goodbye::Moved), None));
        assert_eq!(directory.status(&id("machine-1")).unwrap().since, 0, "it was never away");
        let (_third, bye_3) = directory.arrive(&register, third, later).unwrap();
        assert_eq!(
            (*bye_1.borrow(), *bye_2.borrow()),
            (Some(Goodbye::Replaced), Some(Goodbye::Moved))
        );
        directory.remove(&id("machine-1"), later).unwrap();
        assert_eq!(
            (*bye_2.borrow(), *bye_3.borrow()),
            (Some(Goodbye::Removed), Some(Goodbye::Removed))
        );
    }
}
