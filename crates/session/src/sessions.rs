//! The media sessions of one gateway, and the streams they share.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use spaceport_types::{
    Bitrate, Bounds, Cause, Codec, Error, Geometry, Issue, Kind, MediaKey, Result, SessionId,
    Target, ViewerId,
};

use crate::bell::{Bell, Ringing};
use crate::hold::{Closing, Hold, Life};
use crate::ladder::{Ladder, Launching};
use crate::stream::{Binding, Picture, Publisher, Subscriber, TargetState, lock};
use crate::ticket::{Ticket, Tickets, random_name};
use crate::{Counters, Cursor, Settings};

/// How long a session without viewers outlives its last ticket; a reconnecting viewer needs a
/// moment to ask for a new one.
const IDLE: Duration = Duration::from_secs(30);

/// The least time between two changes of limits that start another encode: as for keyframes, two a
/// second.
const MOVE_INTERVAL: Duration = Duration::from_millis(500);

/// Starts a producer for a stream. The gateway connects this to whatever makes packets.
pub trait Launch: Send + Sync {
    /// Takes the publisher to a producer of its own and returns at once.
    fn launch(&self, publisher: Publisher);

    /// Whether there is room for one more encode beside those that run. Without it, who suffers beside others
    /// that do not is left to them, and gets fewer frames: one more encode would take from everyone.
    fn has_room(&self) -> bool {
        true
    }
}

/// How much one gateway takes on.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sessions open at one time.
    pub sessions: usize,
    /// WebSocket and QUIC viewers of one session.
    pub sockets_per_session: usize,
    /// WebRTC viewers of one session.
    pub peers_per_session: usize,
    /// Streams of one session to relays, each of which serves viewers of its own.
    pub relays_per_session: usize,
    /// The longest life of a ticket.
    pub ticket_ttl: Duration,
    /// The life of a ticket when nothing is asked for.
    pub default_ticket_ttl: Duration,
    /// The lowest and highest rate a session may ask for.
    pub bitrate: (Bitrate, Bitrate),
    /// Frames per second at most.
    pub max_fps: u32,
}

impl Default for Limits {
    /// The limits of the public contract; the number of peers is ours.
    fn default() -> Self {
        Self {
            sessions: 64,
            sockets_per_session: 8,
            peers_per_session: 1_000,
            // A few relays, each with every rung of two sorts of pictures.
            relays_per_session: 32,
            ticket_ttl: Duration::from_secs(600),
            default_ticket_ttl: Duration::from_secs(60),
            bitrate: (Bitrate::from_kbps(250), Bitrate::from_kbps(100_000)),
            max_fps: 120,
        }
    }
}

/// What a session's viewers may do besides watching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nothing.
    #[default]
    ViewOnly,
    /// Send input that does not raise windows.
    BackgroundOnly,
    /// Send any input.
    AllowActivation,
}

/// A request to open a session. Zeros mean the default.
#[derive(Clone, Debug)]
pub struct Open {
    /// What to show.
    pub target: Target,
    /// What the target shows now, in desktop pixels.
    pub bounds: Bounds,
    /// The codec its sockets get.
    pub codec: Codec,
    /// Frames per second at most.
    pub max_fps: u32,
    /// The longer side of a frame at most, in pixels.
    pub max_dimension: u32,
    /// Upper bound of the rate.
    pub bitrate: Option<Bitrate>,
    /// What viewers may do.
    pub policy: Policy,
    /// The life of the first ticket.
    pub ticket_ttl: Option<Duration>,
    /// Seals its frames between here and its viewers; nothing in between can read them then.
    pub key: Option<MediaKey>,
}

/// A session of another machine, to be served here under the same name.
#[derive(Clone, Debug)]
pub struct Adopt {
    /// Its name there.
    pub id: SessionId,
    /// What it shows.
    pub target: Target,
    /// The codec its sockets get.
    pub codec: Codec,
    /// The limits in force there.
    pub settings: Settings,
    /// What viewers may do.
    pub policy: Policy,
    /// What its frames show now.
    pub geometry: Geometry,
    /// Whether its frames are sealed there, and opened by viewers alone.
    pub sealed: bool,
}

/// What a client gets for opening a session.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The session.
    pub info: SessionInfo,
    /// Opens attaches to it.
    pub ticket: Ticket,
}

/// What a session is.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Its name.
    pub id: SessionId,
    /// What it shows.
    pub target: Target,
    /// The codec its sockets get.
    pub codec: Codec,
    /// The limits in force.
    pub settings: Settings,
    /// What viewers may do.
    pub policy: Policy,
    /// What its frames show now.
    pub geometry: Geometry,
    /// How many sockets watch it now.
    pub sockets: usize,
    /// What its frames are sealed with, if that is done here.
    pub key: Option<MediaKey>,
    /// Whether its frames are sealed, here or where they come from.
    pub sealed: bool,
}

/// How a viewer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A socket: WebSocket, QUIC, WebTransport.
    Socket,
    /// A WebRTC peer.
    Peer,
    /// A relay.
    Relay,
}

/// A request to watch.
#[derive(Clone, Copy, Debug)]
pub struct Attach {
    /// The codec this viewer takes.
    pub codec: Codec,
    /// How it comes.
    pub carrier: Carrier,
    /// Where it is to see the pointer.
    pub cursor: Cursor,
}

/// New limits for a session; `None` keeps what is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preferences {
    /// Frames per second at most.
    pub max_fps: Option<u32>,
    /// The longer side of a frame at most, in pixels.
    pub max_dimension: Option<u32>,
    /// Upper bound of the rate.
    pub bitrate: Option<Bitrate>,
}

/// All media sessions of one gateway. Cloning it makes another handle.
#[derive(Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    launch: Arc<dyn Launch>,
    counters: Arc<Counters>,
    bell: Arc<Bell>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Session>,
    ladders: BTreeMap<LadderKey, Arc<Ladder>>,
    targets: BTreeMap<Target, Arc<TargetState>>,
    tickets: Tickets<SessionId>,
    next_viewer: u64,
}

struct Session {
    target: Arc<TargetState>,
    codec: Codec,
    settings: Settings,
    policy: Policy,
    key: Option<MediaKey>,
    sealed: bool,
    /// The sorts of pictures its viewers get, each a stream.
    pictures: BTreeSet<Picture>,
    viewers: Vec<(Carrier, Weak<Binding>)>,
    /// Until when a ticket can open it.
    open_until: Instant,
    /// Its streams are its own: packets come for it, and are not made here.
    adopted: bool,
    life: Arc<Life>,
    /// When it last left a shared stream for another.
    moved_at: Option<Instant>,
}

/// What two sessions must have in common to share their encodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LadderKey {
    /// The session that has it for itself.
    owner: Option<SessionId>,
    target: Target,
    picture: Picture,
    settings: Settings,
}

impl Sessions {
    /// No sessions yet. `launch` is called for every stream that gets its first viewer.
    pub fn new(limits: Limits, launch: Arc<dyn Launch>) -> Self {
        let (counters, bell, state) = Default::default();
        Self { inner: Arc::new(Inner { limits, launch, counters, bell, state }) }
    }

    /// The limits it runs under.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Wakes viewers in the runtime that polls this, for producers which are threads of their own. Nobody has to:
    /// with many viewers it takes less of the machine.
    pub fn ringing(&self) -> Ringing {
        Ringing(Arc::clone(&self.inner.bell))
    }

    /// Totals over all streams.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// How many sessions are open.
    pub fn len(&self) -> usize {
        self.state().sessions.len()
    }

    /// Whether none is open.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens a session. Nothing is captured before somebody attaches.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for limits out of range, `limit_exceeded` when too many are open.
    pub fn open(&self, request: Open, now: Instant) -> Result<Opened> {
        let limits = &self.inner.limits;
        let settings = Settings {
            max_fps: check_fps(request.max_fps, limits)?,
            max_dimension: request.max_dimension,
            bitrate: check_bitrate(request.bitrate, limits)?,
        };
        let ttl = request.ticket_ttl.unwrap_or(limits.default_ticket_ttl).min(limits.ticket_ttl);
        let id = SessionId::new(format!("media-{}", random_name()?));

        let mut state = self.state();
        if state.sessions.len() >= limits.sessions {
            state.sweep(now);
        }
        if state.sessions.len() >= limits.sessions {
            return Err(full(state.sessions.len(), limits));
        }
        let ticket = state.tickets.issue(id.clone(), ttl, now)?;
        let target = state.target(&request.target);
        target.geometry(request.bounds, settings.max_dimension, false);
        let session = Session {
            target,
            codec: request.codec,
            settings,
            policy: request.policy,
            sealed: request.key.is_some(),
            key: request.key,
            pictures: BTreeSet::new(),
            viewers: Vec::new(),
            open_until: ticket.expires_at,
            adopted: false,
            life: Arc::default(),
            moved_at: None,
        };
        let info = session.info(&id);
        state.sessions.insert(id, session);
        Ok(Opened { info, ticket })
    }

    /// Opens a session of another machine under the name that it has there, or keeps it open for longer.
    /// Its packets are to come from whoever is launched for its streams, by [`Publisher::forward`].
    ///
    /// # Errors
    ///
    /// `limit_exceeded` when too many are open.
    pub fn adopt(&self, session: Adopt, now: Instant) -> Result<SessionInfo> {
        let limits = &self.inner.limits;
        let mut state = self.state();
        if let Ok(open) = state.session(&session.id) {
            open.open_until = now;
            return Ok(open.info(&session.id));
        }
        if state.sessions.len() >= limits.sessions {
            state.sweep(now);
        }
        if state.sessions.len() >= limits.sessions {
            return Err(full(state.sessions.len(), limits));
        }
        // What another machine says is not to be out of range either.
        let (lowest, highest) = limits.bitrate;
        let settings = Settings {
            max_fps: session.settings.max_fps.clamp(1, limits.max_fps),
            max_dimension: session.settings.max_dimension,
            bitrate: session.settings.bitrate.clamp(lowest, highest),
        };
        let target = state.target(&session.target);
        target.adopt(session.geometry);
        let adopted = Session {
            target,
            codec: session.codec,
            settings,
            policy: session.policy,
            key: None,
            sealed: session.sealed,
            pictures: BTreeSet::new(),
            viewers: Vec::new(),
            open_until: now,
            adopted: true,
            life: Arc::default(),
            moved_at: None,
        };
        let info = adopted.info(&session.id);
        state.sessions.insert(session.id, adopted);
        Ok(info)
    }

    /// Keeps a session open until it is closed by name, or until the hold is dropped.
    ///
    /// # Errors
    ///
    /// `stream` with cause `session_closed`.
    pub fn hold(&self, id: &SessionId) -> Result<Hold> {
        let state = self.state();
        let session = state.sessions.get(id).ok_or_else(|| closed(id))?;
        Ok(session.life.hold())
    }

    /// What tells of the end of a session without keeping it open.
    ///
    /// # Errors
    ///
    /// `stream` with cause `session_closed`.
    pub fn closing(&self, id: &SessionId) -> Result<Closing> {
        let state = self.state();
        let session = state.sessions.get(id).ok_or_else(|| closed(id))?;
        Ok(session.life.closing())
    }

    /// Issues a further ticket for an open session.
    ///
    /// # Errors
    ///
    /// `not_found` when it is not open.
    pub fn ticket(&self, id: &SessionId, ttl: Option<Duration>, now: Instant) -> Result<Ticket> {
        let limits = &self.inner.limits;
        let ttl = ttl.unwrap_or(limits.default_ticket_ttl).min(limits.ticket_ttl);
        let mut state = self.state();
        state.session(id)?;
        let ticket = state.tickets.issue(id.clone(), ttl, now)?;
        let session = state.session(id)?;
        session.open_until = session.open_until.max(ticket.expires_at);
        Ok(ticket)
    }

    /// The session a ticket opens.
    ///
    /// # Errors
    ///
    /// `unauthenticated` for an unknown ticket; `stream` with cause `ticket_expired` or, when the
    /// session is no longer open, `session_closed`.
    pub fn redeem(&self, ticket: &str, now: Instant) -> Result<SessionId> {
        let state = self.state();
        let id = state.tickets.redeem(ticket, now)?;
        if state.sessions.contains_key(&id) { Ok(id) } else { Err(closed(&id)) }
    }

    /// Adds a viewer. Its first packet is a keyframe.
    ///
    /// # Errors
    ///
    /// `stream` with cause `session_closed` or `too_many_viewers`; `capability_missing` for a WebRTC peer
    /// of a sealed session, because no browser would open what it gets.
    pub fn attach(&self, id: &SessionId, attach: Attach) -> Result<Subscriber> {
        let limits = &self.inner.limits;
        let mut state = self.state();
        let viewer = ViewerId::new(state.next_viewer);
        state.next_viewer += 1;
        let session = state.sessions.get_mut(id).ok_or_else(|| closed(id))?;
        if session.sealed && attach.carrier == Carrier::Peer {
            return Err(Error::new(
                Kind::CapabilityMissing,
                format!("session `{id}` is sealed from end to end, which WebRTC cannot carry"),
            )
            .with("session", id)
            .hint("Watch over WebTransport, QUIC or the media socket"));
        }
        session.viewers.retain(|(_, binding)| binding.strong_count() > 0);
        let limit = match attach.carrier {
            Carrier::Socket => limits.sockets_per_session,
            Carrier::Peer => limits.peers_per_session,
            Carrier::Relay => limits.relays_per_session,
        };
        if session.viewers_by(attach.carrier) >= limit {
            return Err(Error::because(
                Cause::TooManyViewers,
                format!("session `{id}` has {limit} viewers of this sort already"),
            )
            .with("session", id)
            .with("limit", limit)
            .retry_after(Duration::from_secs(5))
            .hint("Open another session; those with the same settings share one encode"));
        }
        let verbatim = session.adopted && session.sealed;
        let picture = session.picture(attach);
        session.pictures.insert(picture);
        let key = session.key(id, picture);
        let ladder = self.ladder(&mut state, key);
        let (mut subscriber, binding, launching) = ladder.attach(viewer);
        if verbatim {
            // What is sealed says of which packet it is, as that was there.
            subscriber.keep_epochs();
        }
        if let Some(session) = state.sessions.get_mut(id) {
            session.viewers.push((attach.carrier, Arc::downgrade(&binding)));
        }
        drop(state);
        launching.now();
        Ok(subscriber)
    }

    /// What a session is now.
    ///
    /// # Errors
    ///
    /// `not_found` when it is not open.
    pub fn info(&self, id: &SessionId) -> Result<SessionInfo> {
        Ok(self.state().session(id)?.info(id))
    }

    /// Changes the limits of a session, live. Its viewers see a keyframe at most.
    ///
    /// # Errors
    ///
    /// `not_found` when it is not open, `invalid_argument` for a limit out of range,
    /// `limit_exceeded` for a stream that is shared and changed a moment ago; nothing is changed
    /// then.
    pub fn set_preferences(
        &self,
        id: &SessionId,
        wanted: Preferences,
        now: Instant,
    ) -> Result<Settings> {
        let limits = &self.inner.limits;
        let mut state = self.state();
        let session = state.session(id)?;
        let old = session.settings;
        let settings = Settings {
            max_fps: wanted.max_fps.map_or(Ok(old.max_fps), |fps| check_fps(fps, limits))?,
            max_dimension: wanted.max_dimension.unwrap_or(old.max_dimension),
            bitrate: wanted
                .bitrate
                .map_or(Ok(old.bitrate), |bitrate| check_bitrate(Some(bitrate), limits))?,
        };
        if settings == old {
            return Ok(settings);
        }
        let pictures: Vec<Picture> = session.pictures.iter().copied().collect();
        let (target, adopted) = (session.target.target.clone(), session.adopted);
        let moves: Vec<_> = pictures
            .into_iter()
            .map(|picture| {
                let owner = adopted.then(|| id.clone());
                let old_key = LadderKey { owner, target: target.clone(), picture, settings: old };
                let new_key = LadderKey { settings, ..old_key.clone() };
                // Nobody else watches this encode: it can be changed where it runs.
                let alone = state.users(&old_key) == 1 && !state.ladders.contains_key(&new_key);
                (picture, old_key, new_key, alone)
            })
            .collect();
        if moves.iter().any(|(.., alone)| !alone) {
            state.session(id)?.move_at(now)?;
        }
        let mut launching: Vec<Launching> = Vec::new();
        for (picture, old_key, new_key, alone) in moves {
            if alone && let Some(ladder) = state.ladders.remove(&old_key) {
                ladder.set_settings(settings);
                state.ladders.insert(new_key, ladder);
            } else {
                let ladder = self.ladder(&mut state, new_key);
                let bindings = state.session(id)?.bindings();
                let bindings = bindings.filter(|binding| binding.stream().picture == picture);
                launching.extend(bindings.map(|binding| ladder.adopt(&binding)));
            }
        }
        state.session(id)?.settings = settings;
        state.close_unused();
        drop(state);
        launching.into_iter().for_each(Launching::now);
        Ok(settings)
    }

    /// Asks for a keyframe for every viewer of a session.
    ///
    /// # Errors
    ///
    /// `not_found` when it is not open.
    pub fn request_keyframe(&self, id: &SessionId) -> Result<()> {
        let mut state = self.state();
        let session = state.session(id)?;
        for binding in session.bindings() {
            binding.stream().request_keyframe();
        }
        Ok(())
    }

    /// Closes a session: its tickets open nothing any more, and its viewers are told.
    ///
    /// # Errors
    ///
    /// `not_found` when it is not open.
    pub fn close(&self, id: &SessionId) -> Result<()> {
        let mut state = self.state();
        state.session(id)?;
        state.close(id, closed(id));
        Ok(())
    }

    /// The same for a reason that its viewers are told.
    ///
    /// # Errors
    ///
    /// `not_found` when it is not open.
    pub fn close_because(&self, id: &SessionId, reason: Error) -> Result<()> {
        let mut state = self.state();
        state.session(id)?;
        state.close(id, reason);
        Ok(())
    }

    /// Closes sessions that nobody watches and no ticket opens any more, and forgets old tickets.
    /// To be called every few seconds.
    pub fn sweep(&self, now: Instant) {
        let mut state = self.state();
        state.sweep(now);
        state.tickets.sweep(now);
    }

    /// Closes every session, for shutdown.
    pub fn close_all(&self) {
        let mut state = self.state();
        let ids: Vec<SessionId> = state.sessions.keys().cloned().collect();
        for id in ids {
            let reason = closed(&id);
            state.close(&id, reason);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.inner.state)
    }

    fn ladder(&self, state: &mut State, key: LadderKey) -> Arc<Ladder> {
        if let Some(ladder) = state.ladders.get(&key) {
            return Arc::clone(ladder);
        }
        let target = state.target(&key.target);
        let Inner { counters, bell, launch, .. } = &*self.inner;
        let (counters, bell, launch) = (Arc::clone(counters), Arc::clone(bell), Arc::clone(launch));
        let owner = key.owner.clone();
        let ladder = Ladder::new(target, owner, key.picture, key.settings, counters, bell, launch);
        let ladder = Arc::new(ladder);
        state.ladders.insert(key, Arc::clone(&ladder));
        ladder
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("open", &self.len()).finish_non_exhaustive()
    }
}

impl State {
    fn session(&mut self, id: &SessionId) -> Result<&mut Session> {
        self.sessions.get_mut(id).ok_or_else(|| {
            Error::new(Kind::NotFound, format!("no media session `{id}` is open"))
                .with("session", id)
                .hint("Open the stream again")
        })
    }

    fn target(&mut self, target: &Target) -> Arc<TargetState> {
        let entry = self.targets.entry(target.clone());
        Arc::clone(entry.or_insert_with_key(|target| Arc::new(TargetState::new(target.clone()))))
    }

    /// How many sessions use a ladder.
    fn users(&self, key: &LadderKey) -> usize {
        self.sessions.iter().filter(|(id, session)| session.uses(id, key)).count()
    }

    fn close(&mut self, id: &SessionId, reason: Error) {
        if let Some(session) = self.sessions.remove(id) {
            let reason = Arc::new(reason);
            session.life.end(&reason);
            for binding in session.bindings() {
                binding.end(&reason);
            }
            tracing::info!(session = id.short(), "session closed");
        }
        self.close_unused();
    }

    /// Ends the ladders that no session uses.
    fn close_unused(&mut self) {
        let unused: Vec<LadderKey> =
            self.ladders.keys().filter(|key| self.users(key) == 0).cloned().collect();
        for key in unused {
            if let Some(ladder) = self.ladders.remove(&key) {
                ladder.close(&Arc::new(Error::because(
                    Cause::SessionClosed,
                    "no session uses this stream any more",
                )));
            }
        }
    }

    fn sweep(&mut self, now: Instant) {
        let over: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| now >= session.open_until + IDLE && !session.is_needed())
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            let reason = closed(&id);
            self.close(&id, reason);
        }
    }
}

impl Session {
    fn info(&self, id: &SessionId) -> SessionInfo {
        SessionInfo {
            id: id.clone(),
            target: self.target.target.clone(),
            codec: self.codec,
            settings: self.settings,
            policy: self.policy,
            geometry: self.target.current(self.settings.max_dimension, false),
            sockets: self.viewers_by(Carrier::Socket),
            key: self.key.clone(),
            sealed: self.sealed,
        }
    }

    fn viewers_by(&self, carrier: Carrier) -> usize {
        let here = |(by, binding): &&(Carrier, Weak<Binding>)| {
            *by == carrier && binding.strong_count() > 0
        };
        self.viewers.iter().filter(here).count()
    }

    /// The sort of pictures a viewer gets. A generated one has no pointer that could be in it.
    fn picture(&self, attach: Attach) -> Picture {
        let pointed = self.target.target != Target::TestPattern;
        let cursor = if pointed { attach.cursor } else { Cursor::Apart };
        Picture { codec: attach.codec, cursor }
    }

    fn key(&self, id: &SessionId, picture: Picture) -> LadderKey {
        let owner = self.adopted.then(|| id.clone());
        LadderKey { owner, target: self.target.target.clone(), picture, settings: self.settings }
    }

    fn uses(&self, id: &SessionId, key: &LadderKey) -> bool {
        key.owner.as_ref() == self.adopted.then_some(id)
            && self.settings == key.settings
            && self.target.target == key.target
            && self.pictures.contains(&key.picture)
    }

    fn bindings(&self) -> impl Iterator<Item = Arc<Binding>> {
        self.viewers.iter().filter_map(|(_, binding)| binding.upgrade())
    }

    /// Allows the session to leave a shared stream for another, which starts a source and an
    /// encoder: now and then, not at every twitch of a slider.
    fn move_at(&mut self, now: Instant) -> Result<()> {
        if let Some(at) = self.moved_at
            && now < at + MOVE_INTERVAL
        {
            return Err(Error::new(
                Kind::LimitExceeded,
                "the limits of a shared stream just changed",
            )
            .retry_after(at + MOVE_INTERVAL - now)
            .hint("Send the last value again after the pause"));
        }
        self.moved_at = Some(now);
        Ok(())
    }

    /// Whether somebody watches or holds it.
    fn is_needed(&self) -> bool {
        self.life.is_held() || self.viewers.iter().any(|(_, binding)| binding.strong_count() > 0)
    }
}

fn full(open: usize, limits: &Limits) -> Error {
    Error::new(Kind::LimitExceeded, format!("{open} media sessions are open"))
        .with("limit", limits.sessions)
        .retry_after(limits.default_ticket_ttl)
        .hint("Close one, or wait until those without viewers end")
}

fn closed(id: &SessionId) -> Error {
    Error::because(Cause::SessionClosed, format!("session `{id}` is closed"))
        .with("session", id)
        .hint("Open the stream again")
}

fn check_fps(wanted: u32, limits: &Limits) -> Result<u32> {
    /// What viewers get that do not say.
    const DEFAULT: u32 = 30;
    match wanted {
        0 => Ok(DEFAULT),
        fps if fps <= limits.max_fps => Ok(fps),
        fps => Err(out_of_range("max_fps", fps, "maximum", limits.max_fps)),
    }
}

fn check_bitrate(wanted: Option<Bitrate>, limits: &Limits) -> Result<Bitrate> {
    /// A ceiling, not a target: a desktop needs a fraction of it nearly always.
    const DEFAULT: Bitrate = Bitrate::from_kbps(8_000);
    let (lowest, highest) = limits.bitrate;
    match wanted {
        None => Ok(DEFAULT),
        Some(rate) if rate.bps() == 0 => Ok(DEFAULT),
        Some(rate) if rate < lowest => {
            Err(out_of_range("bitrate_kbps", rate.kbps(), "minimum", lowest.kbps()))
        }
        Some(rate) if rate > highest => {
            Err(out_of_range("bitrate_kbps", rate.kbps(), "maximum", highest.kbps()))
        }
        Some(rate) => Ok(rate),
    }
}

fn out_of_range(path: &str, value: u32, constraint: &'static str, limit: u32) -> Error {
    Error::new(Kind::InvalidArgument, format!("`{path}` is {value}; its {constraint} is {limit}"))
        .issue(Issue {
            path: path.to_owned(),
            constraint: constraint.into(),
            limit: Some(limit.to_string()),
        })
        .hint("Leave it out for the default")
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::{Context, Waker};

    use bytes::Bytes;
    use spaceport_types::{CursorImage, CursorPosition, Size, Suspension};

    use super::*;
    use crate::{Event, Path, Published};

    /// Keeps publishers where a test can reach them.
    #[derive(Default)]
    struct Launched(Mutex<Vec<Publisher>>);

    impl Launch for Launched {
        fn launch(&self, publisher: Publisher) {
            lock(&self.0).push(publisher);
        }
    }

    impl Launched {
        fn take(&self) -> Vec<Publisher> {
            std::mem::take(&mut *lock(&self.0))
        }
    }

    const SOCKET: Attach =
        Attach { codec: Codec::H264, carrier: Carrier::Socket, cursor: Cursor::Apart };

    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn setup() -> (Sessions, Arc<Launched>, Instant) {
        let launched = Arc::new(Launched::default());
        (Sessions::new(Limits::default(), launched.clone()), launched, Instant::now())
    }

    fn open() -> Open {
        Open {
            target: Target::TestPattern,
            bounds: Bounds::new(0, 0, 640, 360),
            codec: Codec::H264,
            max_fps: 0,
            max_dimension: 0,
            bitrate: None,
            policy: Policy::ViewOnly,
            ticket_ttl: None,
            key: None,
        }
    }

    fn publish(publisher: &Publisher, keyframe: bool, codec_epoch: u32, now: Instant) {
        let frame = Published {
            keyframe,
            codec_epoch,
            geometry: publisher.geometry(Bounds::new(0, 0, 640, 360), 0),
            captured_at: Duration::ZERO,
            encode_duration: Duration::ZERO,
            payload: Bytes::from_static(b"x"),
        };
        publisher.publish(frame, now);
    }

    fn packets(subscriber: &mut Subscriber) -> Vec<(u64, bool, u32)> {
        std::iter::from_fn(|| match subscriber.try_recv() {
            Some(Event::Packet(packet)) => {
                Some((packet.sequence, packet.keyframe, packet.codec_epoch))
            }
            _ => None,
        })
        .collect()
    }

    #[test]
    fn nothing_is_launched_before_the_first_viewer() {
        let (sessions, launched, now) = setup();
        let opened = sessions.open(open(), now).unwrap();
        assert_eq!(launched.take().len(), 0);
        let viewer = sessions.attach(&opened.info.id, SOCKET).unwrap();
        let publishers = launched.take();
        assert_eq!(publishers.len(), 1);
        assert_eq!(publishers[0].demand(now).viewers, 1);
        drop(viewer);
        assert_eq!(publishers[0].demand(now).viewers, 0);
        assert!(!publishers[0].demand(now).closed, "the session is still open");
    }

    #[test]
    fn sessions_with_the_same_settings_share_one_encode() {
        let (sessions, launched, now) = setup();
        let viewers: Vec<_> = (0..3)
            .map(|_| {
                let id = sessions.open(open(), now).unwrap().info.id;
                sessions.attach(&id, SOCKET).unwrap()
            })
            .collect();
        let publishers = launched.take();
        assert_eq!(publishers.len(), 1);
        assert_eq!(publishers[0].demand(now).viewers, viewers.len());
        let other = Open { max_fps: 10, ..open() };
        let id = sessions.open(other, now).unwrap().info.id;
        let _viewer = sessions.attach(&id, SOCKET).unwrap();
        assert_eq!(launched.take().len(), 1);
    }

    #[test]
    fn a_closed_session_is_gone_for_tickets_viewers_and_its_producer() {
        let (sessions, launched, now) = setup();
        let opened = sessions.open(open(), now).unwrap();
        let id = opened.info.id;
        let ticket = opened.ticket.secret.expose();
        assert_eq!(sessions.redeem(ticket, now).unwrap(), id);
        let mut viewer = sessions.attach(&id, SOCKET).unwrap();
        let publishers = launched.take();

        sessions.close(&id).unwrap();
        assert!(publishers[0].demand(now).closed);
        let Some(Event::Ended(reason)) = viewer.try_recv() else { panic!("not told") };
        assert_eq!(reason.cause(), Some(Cause::SessionClosed));
        assert_eq!(sessions.redeem(ticket, now).unwrap_err().http_status(), 410);
        assert_eq!(sessions.attach(&id, SOCKET).unwrap_err().http_status(), 410);
        assert_eq!(sessions.close(&id).unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn the_ninth_socket_is_refused_until_one_leaves() {
        let (sessions, _launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let mut viewers: Vec<_> = (0..8).map(|_| sessions.attach(&id, SOCKET).unwrap()).collect();
        let refused = sessions.attach(&id, SOCKET).unwrap_err();
        assert_eq!(refused.cause(), Some(Cause::TooManyViewers));
        viewers.pop();
        sessions.attach(&id, SOCKET).unwrap();
    }

    #[test]
    fn an_unwatched_session_ends_some_time_after_its_ticket() {
        let (sessions, _launched, now) = setup();
        let watched = sessions.open(open(), now).unwrap().info.id;
        let viewer = sessions.attach(&watched, SOCKET).unwrap();
        let unwatched = sessions.open(open(), now).unwrap().info.id;
        let later = now + Duration::from_secs(60) + IDLE;
        sessions.sweep(later - Duration::from_millis(1));
        assert_eq!(sessions.len(), 2);
        sessions.sweep(later);
        assert!(sessions.info(&unwatched).is_err());
        assert!(sessions.info(&watched).is_ok());
        drop(viewer);
        sessions.sweep(later);
        assert!(sessions.is_empty());
    }

    #[test]
    fn preferences_change_an_unshared_stream_where_it_runs() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let _viewer = sessions.attach(&id, SOCKET).unwrap();
        let publishers = launched.take();
        let wanted = Preferences { max_fps: Some(5), ..Preferences::default() };
        assert_eq!(sessions.set_preferences(&id, wanted, now).unwrap().max_fps, 5);
        assert_eq!(publishers[0].demand(now).settings.max_fps, 5);
        assert!(launched.take().is_empty());
    }

    #[test]
    fn preferences_move_viewers_off_a_shared_stream_with_one_keyframe() {
        let (sessions, launched, now) = setup();
        let stays = sessions.open(open(), now).unwrap().info.id;
        let moves = sessions.open(open(), now).unwrap().info.id;
        let mut staying = sessions.attach(&stays, SOCKET).unwrap();
        let mut moving = sessions.attach(&moves, SOCKET).unwrap();
        let first = launched.take().remove(0);
        publish(&first, true, 1, now);
        assert_eq!(packets(&mut moving), [(1, true, 1)]);

        let wanted = Preferences { max_dimension: Some(320), ..Preferences::default() };
        sessions.set_preferences(&moves, wanted, now).unwrap();
        let second = launched.take().remove(0);
        assert_eq!((first.demand(now).viewers, second.demand(now).viewers), (1, 1));
        publish(&first, false, 1, now);
        publish(&second, false, 1, now);
        publish(&second, true, 1, now);
        assert_eq!(packets(&mut moving), [(4, true, 2)], "a keyframe first, in a new epoch");
        assert_eq!(packets(&mut staying), [(1, true, 1), (2, false, 1)]);
        assert_eq!(sessions.info(&moves).unwrap().geometry.frame_size.width, 320);
        assert_eq!(sessions.info(&stays).unwrap().geometry.frame_size.width, 640);
    }

    #[test]
    fn what_a_viewer_got_is_known_after_it_moved_and_after_its_session_closed() {
        let (sessions, launched, now) = setup();
        let _stays = sessions.attach(&sessions.open(open(), now).unwrap().info.id, SOCKET).unwrap();
        let id = sessions.open(open(), now).unwrap().info.id;
        let mut viewer = sessions.attach(&id, SOCKET).unwrap();
        let first = launched.take().remove(0);
        publish(&first, true, 1, now);
        assert_eq!(packets(&mut viewer).len(), 1);
        let wanted = Preferences { max_dimension: Some(320), ..Preferences::default() };
        sessions.set_preferences(&id, wanted, now).unwrap();
        let second = launched.take().remove(0);
        publish(&second, true, 1, now);
        assert_eq!(packets(&mut viewer).len(), 1);
        assert_eq!(viewer.stats().delivered, 2);
        sessions.close(&id).unwrap();
        assert_eq!(viewer.stats().delivered, 2);
    }

    #[test]
    fn limits_changed_without_end_cost_two_keyframes_a_second_and_the_last_ones_hold() {
        let (sessions, launched, mut now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let mut viewer = sessions.attach(&id, SOCKET).unwrap();
        let publisher = launched.take().remove(0);
        publish(&publisher, true, 1, now);
        let (mut known, mut keyframes) = (publisher.demand(now).settings, 0);
        for step in 0..200_u32 {
            let (max_dimension, bitrate) = (320 + step % 2, Bitrate::from_kbps(1000 + step));
            let wanted = Preferences {
                max_dimension: Some(max_dimension),
                bitrate: Some(bitrate),
                ..Preferences::default()
            };
            sessions.set_preferences(&id, wanted, now).unwrap();
            now += Duration::from_millis(10);
            let told = publisher.demand(now).settings;
            assert_eq!(told.bitrate, bitrate, "what costs no keyframe holds at once");
            if told.max_dimension != known.max_dimension {
                keyframes += 1;
                publish(&publisher, true, 1 + keyframes, now);
            }
            known = told;
        }
        assert!((3..=4).contains(&keyframes), "{keyframes} in two seconds");
        let due = publisher.demand(now).keyframe;
        assert!(due.is_none_or(|due| due <= now + Duration::from_millis(500)));
        let later = publisher.demand(now + Duration::from_millis(500)).settings;
        assert_eq!(later, sessions.info(&id).unwrap().settings);
        assert!(!packets(&mut viewer).is_empty());
    }

    fn image(serial: u64) -> Arc<CursorImage> {
        let rgba = Bytes::from_static(&[255; 4]);
        Arc::new(CursorImage { serial, size: Size::new(1, 1), hotspot: (0, 0), rgba })
    }

    fn at(x: i32, y: i32) -> CursorPosition {
        CursorPosition { visible: true, x, y }
    }

    /// What a viewer is told, with serials and positions for short.
    fn told(subscriber: &mut Subscriber) -> Vec<String> {
        std::iter::from_fn(|| subscriber.try_recv())
            .map(|event| match event {
                Event::Packet(packet) => format!("packet {}", packet.sequence),
                Event::CursorImage(image) => format!("image {}", image.serial),
                Event::CursorPosition(at) => format!("at {},{}", at.x, at.y),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn only_viewers_that_want_the_pointer_are_told_and_only_while_they_do() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let mut plain = sessions.attach(&id, SOCKET).unwrap();
        let mut drawing = sessions.attach(&id, SOCKET).unwrap();
        let publisher = launched.take().remove(0);
        assert!(!publisher.demand(now).cursor);
        drawing.want_cursor(true);
        assert!(publisher.demand(now).cursor);
        let pointer = publisher.pointer();
        pointer.cursor_image(image(7));
        pointer.cursor_position(at(1, 2));
        assert_eq!(told(&mut drawing), ["image 7", "at 1,2"]);
        assert_eq!(told(&mut plain), [""; 0]);

        drawing.want_cursor(false);
        pointer.cursor_position(at(3, 4));
        assert_eq!(told(&mut drawing), [""; 0]);
        assert!(!publisher.demand(now).cursor);
        drawing.want_cursor(true);
        assert!(publisher.demand(now).cursor);
        drop(drawing);
        assert!(!publisher.demand(now).cursor, "it left");
    }

    #[test]
    fn a_slow_viewer_gets_the_newest_of_the_pointer_and_the_image_first() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let mut slow = sessions.attach(&id, SOCKET).unwrap();
        slow.want_cursor(true);
        let publisher = launched.take().remove(0);
        let pointer = publisher.pointer();
        for step in 0..1000 {
            pointer.cursor_position(at(step, 0));
            pointer.cursor_image(image(step as u64));
        }
        publish(&publisher, true, 1, now);
        assert_eq!(told(&mut slow), ["image 999", "at 999,0", "packet 1"]);
        // The same image again is not news to one who has it; the position is.
        pointer.cursor_position(at(5, 5));
        assert_eq!(told(&mut slow), ["at 5,5"]);
    }

    #[test]
    fn a_late_viewer_gets_the_pointer_as_it_is_and_not_as_it_was_when_nobody_looked() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let early = sessions.attach(&id, SOCKET).unwrap();
        early.want_cursor(true);
        let publisher = launched.take().remove(0);
        let pointer = publisher.pointer();
        pointer.cursor_image(image(1));
        pointer.cursor_position(at(1, 1));
        let mut late = sessions.attach(&id, SOCKET).unwrap();
        late.want_cursor(true);
        late.want_cursor(true);
        assert_eq!(told(&mut late), ["image 1", "at 1,1"]);

        drop(pointer); // nobody follows it any more
        let mut later = sessions.attach(&id, SOCKET).unwrap();
        later.want_cursor(true);
        assert_eq!(told(&mut later), [""; 0]);
    }

    #[test]
    fn a_viewer_that_is_moved_to_another_stream_still_wants_the_pointer() {
        let (sessions, launched, now) = setup();
        let stays = sessions.open(open(), now).unwrap().info.id;
        let moves = sessions.open(open(), now).unwrap().info.id;
        let _staying = sessions.attach(&stays, SOCKET).unwrap();
        let mut moving = sessions.attach(&moves, SOCKET).unwrap();
        moving.want_cursor(true);
        let first = launched.take().remove(0);
        let wanted = Preferences { max_dimension: Some(320), ..Preferences::default() };
        sessions.set_preferences(&moves, wanted, now).unwrap();
        let second = launched.take().remove(0);
        assert_eq!((first.demand(now).cursor, second.demand(now).cursor), (false, true));
        second.pointer().cursor_position(at(8, 9));
        assert_eq!(told(&mut moving), ["at 8,9"]);
    }

    #[test]
    fn a_waiting_viewer_is_woken_by_the_pointer_it_wants() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let viewers: Vec<_> = (0..2).map(|_| sessions.attach(&id, SOCKET).unwrap()).collect();
        viewers[1].want_cursor(true);
        let publisher = launched.take().remove(0);
        let woken = [(); 2].map(|()| Arc::new(Woken::default()));
        for (viewer, woken) in viewers.iter().zip(&woken) {
            viewer.set_waker(&Waker::from(Arc::clone(woken)));
        }
        publisher.pointer().cursor_position(at(1, 1));
        let woken = woken.map(|woken| woken.0.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(woken, [false, true]);
    }

    #[test]
    fn a_pointer_in_the_picture_is_another_stream_and_plain_viewers_keep_theirs() {
        let (sessions, launched, now) = setup();
        let target = Target::Display { display_id: "primary".to_owned() };
        let id = sessions.open(Open { target, ..open() }, now).unwrap().info.id;
        let mut plain = sessions.attach(&id, SOCKET).unwrap();
        let baked = Attach { cursor: Cursor::Baked, ..SOCKET };
        let mut with_pointer = sessions.attach(&id, baked).unwrap();
        let _another = sessions.attach(&id, baked).unwrap();
        let publishers = launched.take();
        let cursors: Vec<Cursor> = publishers.iter().map(Publisher::cursor).collect();
        assert_eq!(cursors, [Cursor::Apart, Cursor::Baked]);
        publish(&publishers[1], true, 1, now);
        assert_eq!(packets(&mut plain), []);
        assert_eq!(packets(&mut with_pointer).len(), 1);

        // A change of limits keeps them apart.
        let wanted = Preferences { max_fps: Some(5), ..Preferences::default() };
        sessions.set_preferences(&id, wanted, now).unwrap();
        assert!(launched.take().is_empty());
        assert_eq!(publishers.iter().map(|it| it.demand(now).viewers).collect::<Vec<_>>(), [1, 2]);

        // There is no pointer over a generated picture: one encode serves both.
        let id = sessions.open(open(), now).unwrap().info.id;
        let _viewers = [SOCKET, baked].map(|attach| sessions.attach(&id, attach).unwrap());
        assert_eq!(launched.take().len(), 1);
    }

    #[test]
    fn a_session_leaves_shared_streams_at_most_twice_a_second() {
        let (sessions, launched, start) = setup();
        let stays = sessions.open(open(), start).unwrap().info.id;
        let flips = sessions.open(open(), start).unwrap().info.id;
        let _staying = sessions.attach(&stays, SOCKET).unwrap();
        let _flipping = sessions.attach(&flips, SOCKET).unwrap();
        drop(launched.take());
        let mut refused = None;
        for step in 0..400 {
            let max_dimension = Some(if step % 2 == 0 { 320 } else { 0 }); // away, and back again
            let wanted = Preferences { max_dimension, ..Preferences::default() };
            let now = start + Duration::from_millis(5) * step;
            refused = sessions.set_preferences(&flips, wanted, now).err().or(refused);
        }
        assert!(launched.take().len() <= 4, "in two seconds");
        let report = refused.unwrap().report();
        assert!(report.retryable && report.retry_after_ms.unwrap() <= 500);
    }

    /// Says for long enough that what is sent waits, over a path that carries `kbps`.
    fn congest(viewer: &Subscriber, kbps: u32, now: Instant) -> Instant {
        let capacity = Some(Bitrate::from_kbps(kbps));
        let path = Path { capacity, queued: Duration::from_millis(300), ..Path::default() };
        for step in [0, 150, 300] {
            viewer.path(path, now + Duration::from_millis(step));
        }
        now + Duration::from_millis(300)
    }

    fn recover(viewer: &Subscriber, now: Instant) -> Instant {
        let path = Path { capacity: Some(Bitrate::from_kbps(50_000)), ..Path::default() };
        let later = now + Duration::from_secs(3);
        viewer.path(path, later);
        later
    }

    #[test]
    fn a_viewer_whose_path_carries_less_gets_a_rung_while_it_does_and_the_other_keeps_its_stream() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let [mut fast, mut slow] = [(); 2].map(|()| sessions.attach(&id, SOCKET).unwrap());
        let full = launched.take().remove(0);
        publish(&full, true, 1, now);
        assert_eq!(
            (packets(&mut fast), packets(&mut slow)),
            (vec![(1, true, 1)], vec![(1, true, 1)])
        );

        let now = congest(&slow, 3_000, now);
        let rung = launched.take().remove(0);
        assert_eq!((full.demand(now).viewers, rung.demand(now).viewers), (1, 1));
        assert_eq!(full.demand(now).settings.bitrate, Bitrate::from_kbps(8_000));
        assert_eq!(rung.demand(now).settings.bitrate, Bitrate::from_kbps(2_700));
        assert!(full.demand(now).keyframe.is_none() && rung.demand(now).keyframe.is_some());
        assert_eq!(sessions.counters().rungs.get(), 1);
        publish(&full, false, 1, now);
        publish(&rung, true, 1, now);
        assert_eq!(packets(&mut fast), [(2, false, 1)]);
        assert_eq!(packets(&mut slow), [(3, true, 2)]);

        // What the full picture has in its cache is older than what the viewer has seen.
        let now = recover(&slow, now);
        assert!(rung.demand(now).closed, "nobody needs it");
        assert_eq!(full.demand(now).viewers, 2);
        assert!(full.demand(now).keyframe.is_some());
        assert_eq!(packets(&mut slow), []);
        publish(&full, true, 1, now);
        assert_eq!(packets(&mut slow), [(4, true, 3)]);
        let counters = sessions.counters();
        let moves = (counters.moves_down.get(), counters.moves_up.get(), counters.rungs.get());
        assert_eq!(moves, (1, 1, 0));
        assert_eq!(counters.viewers.get(), 2);
    }

    #[test]
    fn a_rung_ends_with_its_last_viewer_and_with_its_session() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let _fast = sessions.attach(&id, SOCKET).unwrap();
        let slow = sessions.attach(&id, SOCKET).unwrap();
        let _full = launched.take();
        congest(&slow, 3_000, now);
        let rung = launched.take().remove(0);
        drop(slow);
        assert!(rung.demand(now).closed);
        assert_eq!(sessions.counters().rungs.get(), 0);

        let slow = sessions.attach(&id, SOCKET).unwrap();
        congest(&slow, 3_000, now);
        let rung = launched.take().remove(0);
        sessions.close(&id).unwrap();
        assert!(rung.demand(now).closed);
        drop(slow);
        let counters = sessions.counters();
        assert_eq!((counters.rungs.get(), counters.viewers.get()), (0, 0));
    }

    #[test]
    fn a_path_without_room_for_a_picture_gets_half_of_it() {
        let (sessions, launched, now) = setup();
        let big = Open { bounds: Bounds::new(0, 0, 1920, 1080), ..open() };
        let id = sessions.open(big, now).unwrap().info.id;
        let viewer = sessions.attach(&id, SOCKET).unwrap();
        let full = launched.take().remove(0);
        congest(&viewer, 150, now);
        let rung = launched.take().remove(0);
        let bounds = Bounds::new(0, 0, 1920, 1080);
        assert_eq!(rung.geometry(bounds, 0).frame_size, Size::new(960, 540));
        assert_eq!(full.geometry(bounds, 0).frame_size, Size::new(1920, 1080));
        assert_eq!(rung.demand(now).settings.max_fps, 15);
        assert_eq!(full.demand(now).viewers, 0, "nothing is encoded twice");
    }

    fn adopted(id: &str) -> Adopt {
        let frame_size = Size::new(640, 360);
        Adopt {
            id: SessionId::new(id),
            target: Target::TestPattern,
            codec: Codec::H264,
            settings: Settings {
                max_fps: 30,
                max_dimension: 0,
                bitrate: Bitrate::from_kbps(8_000),
            },
            policy: Policy::ViewOnly,
            geometry: Geometry {
                frame_size,
                scale: 1.0,
                logical_bounds: frame_size.into(),
                geometry_epoch: 7,
            },
            sealed: false,
        }
    }

    fn packet(sequence: u64, keyframe: bool) -> spaceport_types::Packet {
        spaceport_types::Packet {
            sequence,
            codec: Codec::H264,
            keyframe,
            codec_epoch: 4,
            geometry: adopted("a").geometry,
            captured_at: Duration::from_secs(9),
            encode_duration: Duration::from_millis(3),
            payload: Bytes::from_static(b"x"),
        }
    }

    #[test]
    fn packets_of_another_machine_keep_their_sequence_and_geometry() {
        let (sessions, launched, now) = setup();
        let info = sessions.adopt(adopted("media-a"), now).unwrap();
        assert_eq!(info.geometry, adopted("a").geometry);
        let mut viewer = sessions.attach(&info.id, SOCKET).unwrap();
        let publisher = launched.take().remove(0);
        assert_eq!(publisher.session(), Some(&info.id));
        assert!(publisher.is_whole());
        publisher.forward(&packet(41, true), now, true);
        publisher.forward(&packet(44, false), now, true);
        let mut late = sessions.attach(&info.id, SOCKET).unwrap();
        assert_eq!(packets(&mut viewer), [(41, true, 1), (44, false, 1)]);
        assert_eq!(packets(&mut late), [(41, true, 1), (44, false, 1)]);
        assert!(publisher.demand(now).keyframe.is_none(), "the late one had what was there");
        publisher.suspend(Suspension::CaptureFailed, Error::because(Cause::GuestOffline, "gone"));
        publisher.forward(&packet(45, true), now, false);
        assert!(matches!(viewer.try_recv(), Some(Event::Suspended(..))));
        assert_eq!(packets(&mut viewer), [(45, true, 1)]);
        publisher.forward(&packet(46, false), now, true);
        assert!(matches!(viewer.try_recv(), Some(Event::Resumed)));
    }

    #[test]
    fn what_another_machine_has_sealed_stays_as_it_is_and_is_not_for_webrtc() {
        let (sessions, launched, now) = setup();
        let sealed = Adopt { sealed: true, ..adopted("media-a") };
        let info = sessions.adopt(sealed, now).unwrap();
        assert!(info.sealed);
        let mut viewer = sessions.attach(&info.id, SOCKET).unwrap();
        let publisher = launched.take().remove(0);
        publisher.forward(&packet(1, true), now, true);
        assert_eq!(packets(&mut viewer), [(1, true, 4)]);
        let peer = Attach { carrier: Carrier::Peer, ..SOCKET };
        let refused = sessions.attach(&info.id, peer).unwrap_err();
        assert_eq!(refused.kind(), Kind::CapabilityMissing);
    }

    #[test]
    fn adopted_sessions_share_no_stream_and_are_opened_once() {
        let (sessions, launched, now) = setup();
        for id in ["media-a", "media-b", "media-a"] {
            sessions.adopt(adopted(id), now).unwrap();
        }
        assert_eq!(sessions.len(), 2);
        let ids = ["media-a", "media-b"].map(SessionId::new);
        let _viewers = ids.each_ref().map(|id| sessions.attach(id, SOCKET).unwrap());
        let publishers = launched.take();
        let owners: Vec<_> = publishers.iter().filter_map(Publisher::session).collect();
        assert_eq!(owners, [&ids[0], &ids[1]]);
        sessions.close(&ids[0]).unwrap();
        assert_eq!(
            publishers.iter().map(|it| it.demand(now).closed).collect::<Vec<_>>(),
            [true, false]
        );
        // What is out of range at another machine is not in range because of that.
        let wild = Settings { max_fps: 0, bitrate: Bitrate::from_kbps(1), ..adopted("c").settings };
        let info = sessions.adopt(Adopt { settings: wild, ..adopted("media-c") }, now).unwrap();
        assert_eq!((info.settings.max_fps, info.settings.bitrate.kbps()), (1, 250));
    }

    #[test]
    fn a_held_session_outlives_its_tickets_and_says_when_it_is_closed() {
        let (sessions, _launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let hold = sessions.hold(&id).unwrap();
        let long_after = now + Duration::from_secs(3_600);
        sessions.sweep(long_after);
        assert_eq!(sessions.len(), 1);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut closed = std::pin::pin!(hold.closed());
        assert!(closed.as_mut().poll(&mut cx).is_pending());
        sessions.close(&id).unwrap();
        assert!(woken.0.load(std::sync::atomic::Ordering::Relaxed));
        let std::task::Poll::Ready(reason) = closed.as_mut().poll(&mut cx) else { panic!() };
        assert_eq!(reason.cause(), Some(Cause::SessionClosed));
        assert!(sessions.hold(&id).is_err());

        let id = sessions.open(open(), now).unwrap().info.id;
        let closing = sessions.closing(&id).unwrap();
        drop(sessions.hold(&id).unwrap());
        sessions.sweep(long_after);
        assert!(sessions.is_empty(), "nobody holds it any more, and who only waits does not");
        let closed = std::pin::pin!(closing.closed());
        assert!(closed.poll(&mut cx).is_ready());
    }

    #[test]
    fn a_relay_gets_what_its_viewers_take_and_leaves_the_others_theirs() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let relay = Attach { carrier: Carrier::Relay, ..SOCKET };
        let whole = sessions.attach(&id, relay).unwrap();
        let less = sessions.attach(&id, relay).unwrap();
        let full = launched.take().remove(0);
        less.beyond(Some(Bitrate::from_kbps(2_700)), now);
        let rung = launched.take().remove(0);
        assert!(full.is_whole() && !rung.is_whole());
        assert_eq!(rung.demand(now).settings.bitrate, Bitrate::from_kbps(2_700));
        assert_eq!(full.demand(now).settings.bitrate, Bitrate::from_kbps(8_000));
        drop(less);
        assert!(rung.demand(now).closed);
        // Where all of its viewers are alike, there is one encode that follows them.
        whole.beyond(Some(Bitrate::from_kbps(3_000)), now);
        assert!(launched.take().is_empty());
        assert_eq!(full.demand(now).settings.bitrate, Bitrate::from_kbps(3_000));
        whole.beyond(None, now);
        assert_eq!(full.demand(now).settings.bitrate, Bitrate::from_kbps(8_000));
    }

    #[test]
    fn limits_change_on_every_rung() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let _fast = sessions.attach(&id, SOCKET).unwrap();
        let slow = sessions.attach(&id, SOCKET).unwrap();
        let full = launched.take().remove(0);
        let now = congest(&slow, 3_000, now);
        let rung = launched.take().remove(0);
        let bitrate = Some(Bitrate::from_kbps(4_000));
        let wanted = Preferences { max_fps: Some(5), bitrate, ..Preferences::default() };
        sessions.set_preferences(&id, wanted, now).unwrap();
        let settings = [&full, &rung].map(|publisher| publisher.demand(now).settings);
        assert_eq!(settings.map(|settings| settings.max_fps), [5, 5]);
        assert_eq!(settings.map(|settings| settings.bitrate.kbps()), [4_000, 2_700]);
    }

    #[test]
    fn a_viewer_on_a_rung_whose_session_leaves_its_stream_takes_its_path_along() {
        let (sessions, launched, now) = setup();
        let stays = sessions.open(open(), now).unwrap().info.id;
        let moves = sessions.open(open(), now).unwrap().info.id;
        let _staying = sessions.attach(&stays, SOCKET).unwrap();
        let moving = sessions.attach(&moves, SOCKET).unwrap();
        let _full = launched.take();
        let now = congest(&moving, 3_000, now);
        let rung = launched.take().remove(0);
        let wanted = Preferences { max_fps: Some(5), ..Preferences::default() };
        sessions.set_preferences(&moves, wanted, now).unwrap();
        assert!(rung.demand(now).closed);
        let other = launched.take().remove(0);
        assert_eq!(other.demand(now).viewers, 1);
        moving.path(Path { capacity: Some(Bitrate::from_kbps(3_000)), ..Path::default() }, now);
        assert_eq!(other.demand(now).settings.bitrate.kbps(), 2_700);
        drop(moving);
        assert_eq!(other.demand(now).viewers, 0);
        assert_eq!(sessions.counters().rungs.get(), 0);
    }

    #[test]
    fn limits_out_of_range_name_the_argument_and_the_bound() {
        let (sessions, _launched, now) = setup();
        let request = Open { bitrate: Some(Bitrate::from_kbps(100)), ..open() };
        let report = sessions.open(request, now).unwrap_err().report();
        assert_eq!(report.issues[0].path, "bitrate_kbps");
        assert_eq!(report.issues[0].limit.as_deref(), Some("250"));
    }

    #[test]
    fn a_stream_whose_producer_failed_is_launched_anew_for_the_next_viewer() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let mut viewer = sessions.attach(&id, SOCKET).unwrap();
        launched.take().remove(0).fail(Error::because(Cause::TargetGone, "gone"));
        assert!(matches!(viewer.try_recv(), Some(Event::Ended(_))));
        let mut again = sessions.attach(&id, SOCKET).unwrap();
        let publisher = launched.take().remove(0);
        publish(&publisher, true, 1, now);
        assert_eq!(packets(&mut again).len(), 1);
    }

    #[test]
    fn a_waiting_viewer_is_woken_by_a_packet() {
        let (sessions, launched, now) = setup();
        let id = sessions.open(open(), now).unwrap().info.id;
        let mut viewer = sessions.attach(&id, SOCKET).unwrap();
        let publisher = launched.take().remove(0);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        {
            let mut recv = std::pin::pin!(viewer.recv());
            assert!(recv.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        publish(&publisher, true, 1, now);
        assert!(woken.0.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(packets(&mut viewer).len(), 1);
    }

    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
