//! A ladder: the encodes of one target with the same settings, each for the viewers whose paths
//! carry it.
//!
//! Its first rung is what the session was opened with. The others exist while somebody is on them:
//! the policy decides who ([`policy`]), from what each path carries ([`path`]). To a viewer a move is
//! what a change of limits is: the next packet is a keyframe of another encoder.

mod path;
mod policy;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use spaceport_types::{Bitrate, Error, SessionId, Size, ViewerId};

pub use path::{Arrival, Path};

pub(crate) use policy::Rung;
use policy::{Move, Policy};

use crate::bell::Bell;
use crate::stream::{Binding, Picture, Publisher, Stream, Subscriber, TargetState, lock};
use crate::{Counters, Launch, Settings};

/// Bits that a picture of text takes for each pixel when it is coded as coarsely as can be read.
const PICTURE_BITS: f64 = 0.25;

/// How long a viewer may have to wait for a picture, in seconds.
const PICTURE_WITHIN: f64 = 2.0;

/// Frames per second of a small picture, at most: fewer pixels, but not fewer bits for each, and who
/// has so little room reads rather than watches.
const SMALL_FPS: u32 = 15;

/// All encodes of one target and one sort of picture, with the same settings.
pub(crate) struct Ladder {
    target: Arc<TargetState>,
    /// The session that has it for itself.
    owner: Option<SessionId>,
    picture: Picture,
    counters: Arc<Counters>,
    bell: Arc<Bell>,
    launch: Arc<dyn Launch>,
    state: Mutex<State>,
}

struct State {
    settings: Settings,
    /// One for each rung that is there; ended ones are replaced when they are needed.
    rungs: [Option<Arc<Stream>>; Rung::ALL.len()],
    policy: Policy,
    bindings: BTreeMap<ViewerId, Weak<Binding>>,
}

/// A stream that is new and needs a producer. To be launched when no lock is held.
#[must_use]
pub(crate) struct Launching {
    launch: Arc<dyn Launch>,
    publishers: Vec<Publisher>,
}

impl Launching {
    pub(crate) fn now(self) {
        for publisher in self.publishers {
            self.launch.launch(publisher);
        }
    }
}

impl Ladder {
    pub(crate) fn new(
        target: Arc<TargetState>,
        owner: Option<SessionId>,
        picture: Picture,
        settings: Settings,
        counters: Arc<Counters>,
        bell: Arc<Bell>,
        launch: Arc<dyn Launch>,
    ) -> Self {
        let state = State {
            settings,
            rungs: Default::default(),
            policy: Policy::new(settings.bitrate),
            bindings: BTreeMap::new(),
        };
        Self { target, owner, picture, counters, bell, launch, state: Mutex::new(state) }
    }

    /// Adds a viewer, on the first rung.
    pub(crate) fn attach(
        self: &Arc<Self>,
        viewer: ViewerId,
    ) -> (Subscriber, Arc<Binding>, Launching) {
        let mut launching = self.launching();
        let mut state = lock(&self.state);
        let stream = self.rung(&mut state, Rung::FULL, &mut launching);
        let (subscriber, binding) = Subscriber::new(viewer, Arc::clone(self), stream);
        self.join(&mut state, viewer, &binding);
        drop(state);
        (subscriber, binding, launching)
    }

    /// Takes over a viewer of another ladder.
    pub(crate) fn adopt(self: &Arc<Self>, binding: &Arc<Binding>) -> Launching {
        let mut launching = self.launching();
        let mut state = lock(&self.state);
        let stream = self.rung(&mut state, Rung::FULL, &mut launching);
        let old = binding.rebind(Some(self), stream);
        if old.is_some() {
            self.join(&mut state, binding.id(), binding);
        }
        drop(state);
        if let Some(old) = old {
            old.leave(binding.id());
        }
        launching
    }

    /// Lets a viewer go. A rung that nobody is left on ends.
    pub(crate) fn leave(&self, viewer: ViewerId) {
        let mut state = lock(&self.state);
        state.bindings.remove(&viewer);
        if let Some(rung) = state.policy.leave(viewer) {
            self.end_empty(&mut state, rung);
            state.cap();
        }
    }

    /// A packet that a viewer was given is through.
    pub(crate) fn sent(
        self: &Arc<Self>,
        viewer: ViewerId,
        queued_at: Option<Instant>,
        bytes: usize,
        now: Instant,
    ) {
        let mut state = lock(&self.state);
        state.policy.set_room(self.launch.has_room());
        let moves = state.policy.sent(viewer, queued_at, bytes, now);
        let launching = self.apply(&mut state, &moves);
        drop(state);
        launching.now();
    }

    /// A viewer's carrier knows something of its path.
    pub(crate) fn told(self: &Arc<Self>, viewer: ViewerId, path: Path, now: Instant) {
        let mut state = lock(&self.state);
        state.policy.set_room(self.launch.has_room());
        let moves = state.policy.told(viewer, path, now);
        let launching = self.apply(&mut state, &moves);
        drop(state);
        launching.now();
    }

    /// What those take whom a viewer passes its packets on to.
    pub(crate) fn beyond(self: &Arc<Self>, viewer: ViewerId, rate: Option<Bitrate>, now: Instant) {
        let mut state = lock(&self.state);
        let moves = state.policy.beyond(viewer, rate, now);
        let launching = self.apply(&mut state, &moves);
        drop(state);
        launching.now();
    }

    /// Changes the limits where the encodes run.
    pub(crate) fn set_settings(&self, settings: Settings) {
        let mut state = lock(&self.state);
        state.settings = settings;
        state.policy.set_ceiling(settings.bitrate);
        for rung in Rung::ALL {
            if let Some(stream) = &state.rungs[rung.index()] {
                stream.set_settings(limits_of(rung, settings));
            }
        }
        state.cap();
    }

    /// Ends every encode: viewers are told `reason`.
    pub(crate) fn close(&self, reason: &Arc<Error>) {
        let mut state = lock(&self.state);
        for rung in Rung::ALL {
            if let Some(stream) = state.rungs[rung.index()].take() {
                self.count(rung, false);
                stream.close(reason);
            }
        }
    }

    fn join(&self, state: &mut State, viewer: ViewerId, binding: &Arc<Binding>) {
        state.bindings.insert(viewer, Arc::downgrade(binding));
        state.policy.join(viewer);
        state.cap();
    }

    fn launching(&self) -> Launching {
        Launching { launch: Arc::clone(&self.launch), publishers: Vec::new() }
    }

    /// The stream of a rung; a new one is to be launched.
    fn rung(&self, state: &mut State, rung: Rung, launching: &mut Launching) -> Arc<Stream> {
        let slot = &mut state.rungs[rung.index()];
        if let Some(stream) = slot.as_ref().filter(|stream| !stream.ended()) {
            return Arc::clone(stream);
        }
        if slot.is_none() {
            self.count(rung, true);
        }
        let (target, counters) = (Arc::clone(&self.target), Arc::clone(&self.counters));
        let settings = limits_of(rung, state.settings);
        let halved = rung == Rung::SMALL;
        let bell = Arc::clone(&self.bell);
        let stream = Stream::new(target, self.picture, halved, settings, counters, bell);
        let stream = Arc::new(stream);
        let whole = rung == Rung::FULL;
        launching.publishers.push(Publisher::new(Arc::clone(&stream), self.owner.clone(), whole));
        *slot = Some(Arc::clone(&stream));
        stream
    }

    /// Counts the rungs below the first.
    fn count(&self, rung: Rung, more: bool) {
        match (rung, more) {
            (Rung::FULL, _) => {}
            (_, true) => self.counters.rungs.add(1),
            (_, false) => self.counters.rungs.sub(1),
        }
    }

    /// Moves viewers, and lets every encode know what its viewers' paths carry.
    fn apply(self: &Arc<Self>, state: &mut State, moves: &[Move]) -> Launching {
        let mut launching = self.launching();
        for &Move { viewer, from, to } in moves {
            let Some(binding) = state.bindings.get(&viewer).and_then(Weak::upgrade) else {
                continue;
            };
            tracing::debug!(id = %viewer, from = from.index(), to = to.index(), "viewer moves");
            if to > from { &self.counters.moves_down } else { &self.counters.moves_up }.add(1);
            let stream = self.rung(state, to, &mut launching);
            binding.rebind(None, stream);
        }
        for &Move { from, .. } in moves {
            self.end_empty(state, from);
        }
        state.policy.set_small(self.small_below(state.settings));
        state.cap();
        launching
    }

    /// Ends a rung that nobody is on. The first stays, for whoever comes.
    fn end_empty(&self, state: &mut State, rung: Rung) {
        if rung == Rung::FULL || state.policy.viewers(rung) > 0 {
            return;
        }
        if let Some(stream) = state.rungs[rung.index()].take() {
            self.count(rung, false);
            stream.close(&Arc::new(Error::because(
                spaceport_types::Cause::SessionClosed,
                "nobody is on this rung any more",
            )));
        }
    }

    /// The rate below which a picture of full size does not come in time.
    fn small_below(&self, settings: Settings) -> Bitrate {
        let Size { width, height } = self.target.current(settings.max_dimension, false).frame_size;
        let pixels = f64::from(width) * f64::from(height);
        Bitrate::from_bps((pixels * PICTURE_BITS / PICTURE_WITHIN) as u64)
    }
}

impl State {
    fn cap(&self) {
        for rung in Rung::ALL {
            if let Some(stream) = &self.rungs[rung.index()] {
                stream.set_cap(self.policy.cap(rung));
            }
        }
    }
}

impl fmt::Debug for Ladder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ladder")
            .field("target", &self.target.target)
            .field("picture", &self.picture)
            .finish_non_exhaustive()
    }
}

/// The limits of one rung; what its viewers' paths carry comes on top.
fn limits_of(rung: Rung, settings: Settings) -> Settings {
    match rung {
        Rung::SMALL => Settings { max_fps: settings.max_fps.min(SMALL_FPS), ..settings },
        _ => settings,
    }
}
