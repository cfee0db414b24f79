//! The two ends of a stream: the handle that publishes and the handles that watch.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use spaceport_types::{
    Bitrate, Bounds, Codec, CursorImage, CursorPosition, Error, Geometry, Kind, Packet, SessionId,
    Suspension, Target, ViewerId,
};

use crate::bell::Bell;
use crate::cursor::Pointer;
use crate::fanout::{Fanout, Join, Reason, ViewerStats};
use crate::ladder::Ladder;
use crate::{Counters, Cursor, Demand, Path, Settings};

/// One encoded picture as a producer hands it over.
#[derive(Clone, Debug)]
pub struct Published {
    /// Whether a decoder can start here.
    pub keyframe: bool,
    /// Counts the encoders of this stream; the first packet of each is a keyframe.
    pub codec_epoch: u32,
    /// What it shows, from [`Publisher::geometry`].
    pub geometry: Geometry,
    /// When the pixels were read, on the media clock.
    pub captured_at: Duration,
    /// How long encoding took.
    pub encode_duration: Duration,
    /// The encoded bytes.
    pub payload: Bytes,
}

/// What a viewer gets.
#[derive(Clone, Debug)]
pub enum Event {
    /// One encoded frame.
    Packet(Packet),
    /// No changes for now, and why: in one word, and in full. The attach stays.
    Suspended(Suspension, Arc<Error>),
    /// Frames come again; the next one is a keyframe or continues the last.
    Resumed,
    /// The target has another title now.
    Titled(Arc<str>),
    /// The pointer looks like this from now on; only for viewers that asked.
    CursorImage(Arc<CursorImage>),
    /// The pointer is here now; only for viewers that asked. Of several, a viewer may only get the
    /// last; the image to draw there came before.
    CursorPosition(CursorPosition),
    /// The stream is over, and why. Nothing follows.
    Ended(Arc<Error>),
}

/// What all streams of one target share, so that sequences and epochs mean the same in each.
#[derive(Debug)]
pub(crate) struct TargetState {
    pub(crate) target: Target,
    sequence: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    bounds: Option<Bounds>,
    epoch: u64,
}

impl TargetState {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, sequence: AtomicU64::new(0), seen: Mutex::default() }
    }

    /// The geometry of a frame of this target, in a new epoch when `bounds` is news.
    pub(crate) fn geometry(&self, bounds: Bounds, max_dimension: u32, halved: bool) -> Geometry {
        let mut seen = lock(&self.seen);
        if seen.bounds != Some(bounds) {
            seen.bounds = Some(bounds);
            seen.epoch += 1;
        }
        geometry(bounds, max_dimension, halved, seen.epoch)
    }

    /// Takes a geometry as the machine has it that makes the packets.
    pub(crate) fn adopt(&self, geometry: Geometry) {
        let mut seen = lock(&self.seen);
        seen.bounds = Some(geometry.logical_bounds);
        seen.epoch = geometry.geometry_epoch;
    }

    /// The geometry as it was last seen.
    pub(crate) fn current(&self, max_dimension: u32, halved: bool) -> Geometry {
        let seen = lock(&self.seen);
        geometry(seen.bounds.unwrap_or_default(), max_dimension, halved, seen.epoch)
    }
}

fn geometry(bounds: Bounds, max_dimension: u32, halved: bool, geometry_epoch: u64) -> Geometry {
    let whole = bounds.size().fitted(max_dimension);
    let half = (whole.width.max(whole.height) / 2).max(1);
    let frame_size = if halved { whole.fitted(half) } else { whole };
    let longer = bounds.width.max(bounds.height).max(1);
    let scale = f64::from(frame_size.width.max(frame_size.height)) / f64::from(longer);
    Geometry { frame_size, scale, logical_bounds: bounds, geometry_epoch }
}

/// What sort of pictures a stream has, of those that a viewer can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Picture {
    pub(crate) codec: Codec,
    pub(crate) cursor: Cursor,
}

/// One encode of one target, seen from the middle.
pub(crate) struct Stream {
    pub(crate) target: Arc<TargetState>,
    pub(crate) picture: Picture,
    /// Half the size that its settings say.
    halved: bool,
    counters: Arc<Counters>,
    bell: Arc<Bell>,
    state: Mutex<State>,
}

struct State {
    fanout: Fanout,
    /// The limits that were asked for last, and those that the producer knows of.
    wanted: Settings,
    settings: Settings,
    /// What the paths of its viewers carry.
    cap: Bitrate,
    closed: bool,
    producer: Option<Waker>,
    wakers: std::collections::BTreeMap<ViewerId, Waker>,
}

impl Stream {
    pub(crate) fn new(
        target: Arc<TargetState>,
        picture: Picture,
        halved: bool,
        settings: Settings,
        counters: Arc<Counters>,
        bell: Arc<Bell>,
    ) -> Self {
        let state = State {
            fanout: Fanout::default(),
            wanted: settings,
            settings,
            cap: settings.bitrate,
            closed: false,
            producer: None,
            wakers: std::collections::BTreeMap::new(),
        };
        Self { target, picture, halved, counters, bell, state: Mutex::new(state) }
    }

    fn attach(&self, id: ViewerId, join: Join) {
        self.counters.viewers.add(1);
        let mut state = lock(&self.state);
        state.fanout.attach(id, join);
        state.wake_producer();
    }

    fn want_cursor(&self, id: ViewerId, wanted: bool) {
        let mut state = lock(&self.state);
        state.fanout.want_cursor(id, wanted);
        state.wake_producer();
        self.wake_viewers(state);
    }

    fn take(&self, id: ViewerId, takes: bool) {
        let mut state = lock(&self.state);
        if state.fanout.take(id, takes) {
            state.wake_producer();
        }
    }

    /// Lets a viewer go, and returns what it got here.
    fn detach(&self, id: ViewerId) -> ViewerStats {
        let mut state = lock(&self.state);
        state.wakers.remove(&id);
        let stats = state.fanout.detach(id);
        if let Some(stats) = stats {
            self.counters.viewers.sub(1);
            tracing::debug!(%id, ?stats, "viewer left");
        }
        state.wake_producer();
        stats.unwrap_or_default()
    }

    pub(crate) fn request_keyframe(&self) {
        let mut state = lock(&self.state);
        state.fanout.want_keyframe(Reason::Request);
        state.wake_producer();
    }

    /// Changes the limits of a running stream. The producer learns of them when it may answer with a
    /// keyframe.
    pub(crate) fn set_settings(&self, settings: Settings) {
        let mut state = lock(&self.state);
        state.wanted = settings;
        state.wake_producer();
    }

    /// Caps the rate at what the paths of its viewers carry.
    pub(crate) fn set_cap(&self, cap: Bitrate) {
        let mut state = lock(&self.state);
        if state.cap != cap {
            state.cap = cap;
            state.wake_producer();
        }
    }

    /// Ends the stream: viewers are told `reason`, and the producer that it can go.
    pub(crate) fn close(&self, reason: &Arc<Error>) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.fanout.end(reason);
        state.wake_producer();
        self.wake_viewers(state);
    }

    pub(crate) fn ended(&self) -> bool {
        lock(&self.state).fanout.ended().is_some()
    }

    /// Wakes the viewers that have something waiting: when the lock is free that they will want.
    fn wake_viewers(&self, mut state: MutexGuard<'_, State>) {
        let State { fanout, wakers, .. } = &mut *state;
        let woken = wakers.extract_if(.., |&id, _| fanout.has_next(id)).map(|(_, waker)| waker);
        let woken = woken.collect();
        drop(state);
        self.bell.ring(woken);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("target", &self.target.target)
            .field("picture", &self.picture)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Lets the producer know of new limits, unless they cost a keyframe and it is too early for one:
    /// another size or a higher frame rate is another encoder. A viewer that changes them without
    /// end gets the last it asked for, twice a second.
    fn settle(&mut self, now: Instant) {
        let (wanted, known) = (self.wanted, self.settings);
        if wanted == known {
            return;
        }
        if wanted.max_dimension != known.max_dimension || wanted.max_fps > known.max_fps {
            self.fanout.want_keyframe(Reason::Encoder);
            if self.fanout.keyframe_due(now).is_some_and(|due| due > now) {
                self.settings.bitrate = wanted.bitrate;
                return;
            }
        }
        self.settings = wanted;
    }

    fn wake_later(&mut self, viewer: ViewerId, waker: &Waker) {
        self.wakers.insert(viewer, waker.clone());
    }

    fn wake_producer(&self) {
        if let Some(waker) = &self.producer {
            waker.wake_by_ref();
        }
    }
}

/// The producer's end of a stream. Dropping it ends the stream.
#[derive(Debug)]
pub struct Publisher {
    stream: Arc<Stream>,
    owner: Option<SessionId>,
    whole: bool,
}

impl Publisher {
    pub(crate) fn new(stream: Arc<Stream>, owner: Option<SessionId>, whole: bool) -> Self {
        Self { stream, owner, whole }
    }

    /// The session it is for, if it is one of another machine.
    pub fn session(&self) -> Option<&SessionId> {
        self.owner.as_ref()
    }

    /// Whether it is for all viewers whose paths carry what the session may take, and not a lower rung.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// What to capture.
    pub fn target(&self) -> &Target {
        &self.stream.target.target
    }

    /// How to encode it.
    pub fn codec(&self) -> Codec {
        self.stream.picture.codec
    }

    /// Whether the pointer is to be in the pictures.
    pub fn cursor(&self) -> Cursor {
        self.stream.picture.cursor
    }

    /// What viewers want now.
    pub fn demand(&self, now: Instant) -> Demand {
        let mut state = lock(&self.stream.state);
        state.settle(now);
        Demand {
            viewers: state.fanout.viewers(),
            ready: state.fanout.ready(),
            cursor: state.fanout.cursor_wanted(),
            keyframe: state.fanout.keyframe_due(now),
            settings: Settings { bitrate: state.settings.bitrate.min(state.cap), ..state.settings },
            closed: state.closed,
        }
    }

    /// Wakes `waker` from now on whenever [`Publisher::demand`] may have changed.
    pub fn set_waker(&self, waker: Waker) {
        lock(&self.stream.state).producer = Some(waker);
    }

    /// The geometry of a frame that shows `bounds`, in a new epoch when that is news.
    pub fn geometry(&self, bounds: Bounds, max_dimension: u32) -> Geometry {
        self.stream.target.geometry(bounds, max_dimension, self.stream.halved)
    }

    /// Hands one picture to every viewer that can use it. A suspended stream goes on with it.
    pub fn publish(&self, frame: Published, now: Instant) {
        self.hand_out(frame, now, true);
    }

    /// Hands out a picture of what was last seen of a target that has nothing to show now, for
    /// viewers who came since. The stream stays suspended.
    pub fn publish_held(&self, frame: Published, now: Instant) {
        self.hand_out(frame, now, false);
    }

    /// Hands out a packet that another machine made, as it is there: with its sequence, its geometry and its
    /// codec epoch. `resume` says whether a suspended stream goes on with it.
    pub fn forward(&self, packet: &Packet, now: Instant, resume: bool) {
        self.stream.target.adopt(packet.geometry);
        self.hand_over(lock(&self.stream.state), packet, now, resume);
    }

    fn hand_out(&self, frame: Published, now: Instant, resume: bool) {
        let state = lock(&self.stream.state);
        // Under the lock, so that no viewer sees two sequences swapped.
        let sequence = self.stream.target.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let packet = Packet {
            sequence,
            codec: self.stream.picture.codec,
            keyframe: frame.keyframe,
            codec_epoch: frame.codec_epoch,
            geometry: frame.geometry,
            captured_at: frame.captured_at,
            encode_duration: frame.encode_duration,
            payload: frame.payload,
        };
        self.hand_over(state, &packet, now, resume);
    }

    fn hand_over(
        &self,
        mut state: MutexGuard<'_, State>,
        packet: &Packet,
        now: Instant,
        resume: bool,
    ) {
        let counters = &self.stream.counters;
        if resume {
            state.fanout.resume();
        }
        let handed = state.fanout.publish(packet, now);
        counters.lost.add(handed.lost);
        counters.cuts.add(handed.cuts);
        if let Some(reason) = handed.keyframe {
            counters.keyframes_for(reason).add(1);
        }
        self.stream.wake_viewers(state);
    }

    /// The gateway's totals, for the producer to add to.
    pub fn counters(&self) -> &Counters {
        &self.stream.counters
    }

    /// Tells viewers that no frames come for now, and why: in the contract's word and in full. The
    /// next [`Publisher::publish`] ends that.
    pub fn suspend(&self, reason: Suspension, error: Error) {
        let mut state = lock(&self.stream.state);
        state.fanout.suspend(reason, &Arc::new(error));
        self.stream.wake_viewers(state);
    }

    /// Tells viewers that the target has another title. Of several, a viewer may only get the last.
    pub fn retitle(&self, title: String) {
        let mut state = lock(&self.stream.state);
        state.fanout.retitle(&title.into());
        self.stream.wake_viewers(state);
    }

    /// A handle for whoever follows the pointer, in a thread of its own. What viewers know of the
    /// pointer lasts as long as the handle: there is to be one at a time.
    pub fn pointer(&self) -> PointerPublisher {
        PointerPublisher { stream: Arc::clone(&self.stream) }
    }

    /// Says that the encoder is gone: what late viewers are served from can not be continued.
    pub fn forget(&self) {
        lock(&self.stream.state).fanout.forget();
    }

    /// Says that what is forwarded next begins anew, and may repeat what was there before: the way from the
    /// other machine is another one.
    pub fn restart(&self) {
        lock(&self.stream.state).fanout.restart();
    }

    /// Ends the stream with a reason that viewers are told.
    pub fn fail(self, reason: Error) {
        self.stream.close(&Arc::new(reason));
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if !self.stream.ended() {
            let reason = Error::new(Kind::Internal, "the stream's producer ended without a reason")
                .hint("Open the stream again, and report this if it happens twice");
            self.stream.close(&Arc::new(reason));
        }
    }
}

/// Tells those viewers of a stream that draw the pointer themselves how it looks and where it is.
#[derive(Debug)]
pub struct PointerPublisher {
    stream: Arc<Stream>,
}

impl PointerPublisher {
    /// It looks like this now.
    pub fn cursor_image(&self, image: Arc<CursorImage>) {
        self.point(&Pointer { image: Some(image), position: None });
    }

    /// It is here now.
    pub fn cursor_position(&self, position: CursorPosition) {
        self.point(&Pointer { image: None, position: Some(position) });
    }

    fn point(&self, news: &Pointer) {
        let mut state = lock(&self.stream.state);
        state.fanout.point(news);
        self.stream.wake_viewers(state);
    }
}

impl Drop for PointerPublisher {
    fn drop(&mut self) {
        lock(&self.stream.state).fanout.forget_pointer();
    }
}

/// A viewer's end of a stream. Dropping it is leaving.
pub struct Subscriber {
    id: ViewerId,
    codec: Codec,
    binding: Arc<Binding>,
    epochs: Epochs,
    /// Since when the packet waited that was received last, and its bytes.
    received: Option<(Option<Instant>, usize)>,
}

/// Which stream a viewer watches now. A session that changes its limits moves its viewers to
/// another stream; to them that is one more keyframe.
#[derive(Debug)]
pub(crate) struct Binding {
    id: ViewerId,
    bound: Mutex<Bound>,
}

#[derive(Debug)]
struct Bound {
    ladder: Arc<Ladder>,
    stream: Arc<Stream>,
    /// The last packet it got: nothing older may follow.
    last: u64,
    /// Counts the moves, so that an epoch of one stream is not taken for the same of another.
    moves: u32,
    /// Whether it wants to be told of the pointer.
    wants_cursor: bool,
    /// Whether its path takes frames now.
    takes: bool,
    /// What it got from streams that it has left.
    before: ViewerStats,
    ended: Option<Arc<Error>>,
    /// The viewer is gone.
    left: bool,
    waker: Option<Waker>,
}

impl Binding {
    pub(crate) fn id(&self) -> ViewerId {
        self.id
    }

    pub(crate) fn stream(&self) -> Arc<Stream> {
        Arc::clone(&lock(&self.bound).stream)
    }

    /// Moves the viewer to another stream, of `ladder` if that is not the one it has, and returns the
    /// ladder it had. One that is gone already, or whose stream has ended, is not moved.
    pub(crate) fn rebind(
        &self,
        ladder: Option<&Arc<Ladder>>,
        stream: Arc<Stream>,
    ) -> Option<Arc<Ladder>> {
        let mut bound = lock(&self.bound);
        if bound.left || bound.ended.is_some() || Arc::ptr_eq(&bound.stream, &stream) {
            return None;
        }
        bound.leave(self.id);
        stream.attach(self.id, Join::Moved { after: bound.last });
        stream.want_cursor(self.id, bound.wants_cursor);
        stream.take(self.id, bound.takes);
        bound.stream = stream;
        bound.moves += 1;
        bound.wake();
        let ladder = Arc::clone(ladder.unwrap_or(&bound.ladder));
        Some(std::mem::replace(&mut bound.ladder, ladder))
    }

    /// Ends the stream for this viewer alone.
    pub(crate) fn end(&self, reason: &Arc<Error>) {
        let mut bound = lock(&self.bound);
        bound.ended.get_or_insert_with(|| Arc::clone(reason));
        bound.leave(self.id);
        bound.wake();
    }
}

impl Bound {
    fn leave(&mut self, id: ViewerId) {
        self.before = self.before.plus(self.stream.detach(id));
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn wake_later(&mut self, waker: &Waker) {
        match &mut self.waker {
            Some(known) => known.clone_from(waker),
            None => self.waker = Some(waker.clone()),
        }
    }
}

/// Numbers encoders as one viewer sees them: from 1, one more with each replacement.
#[derive(Debug, Default)]
struct Epochs {
    /// They stay what they are.
    kept: bool,
    seen: Option<(u32, u32)>,
    number: u32,
}

impl Epochs {
    fn number(&mut self, moves: u32, codec_epoch: u32) -> u32 {
        if self.kept {
            return codec_epoch;
        }
        if self.seen != Some((moves, codec_epoch)) {
            self.seen = Some((moves, codec_epoch));
            self.number += 1;
        }
        self.number
    }
}

impl Subscriber {
    pub(crate) fn new(
        id: ViewerId,
        ladder: Arc<Ladder>,
        stream: Arc<Stream>,
    ) -> (Self, Arc<Binding>) {
        stream.attach(id, Join::New);
        let codec = stream.picture.codec;
        let bound = Bound {
            ladder,
            stream,
            last: 0,
            moves: 0,
            wants_cursor: false,
            takes: true,
            before: ViewerStats::default(),
            ended: None,
            left: false,
            waker: None,
        };
        let binding = Arc::new(Binding { id, bound: Mutex::new(bound) });
        let epochs = Epochs::default();
        (Self { id, codec, binding: Arc::clone(&binding), epochs, received: None }, binding)
    }

    /// Leaves the codec epochs of its packets as they came.
    pub(crate) fn keep_epochs(&mut self) {
        self.epochs.kept = true;
    }

    /// This viewer's name in logs.
    pub fn id(&self) -> ViewerId {
        self.id
    }

    /// How its packets are encoded.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Waits for the next event.
    pub async fn recv(&mut self) -> Event {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The next event, or a wake-up when there may be one.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        self.next_or(Some(cx.waker())).map_or(Poll::Pending, Poll::Ready)
    }

    /// The next event if there is one; for a driver that serves many viewers.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.next_or(None)
    }

    /// The next event, or has `waker` woken when there may be one.
    fn next_or(&mut self, waker: Option<&Waker>) -> Option<Event> {
        let mut bound = lock(&self.binding.bound);
        if let Some(reason) = &bound.ended {
            return Some(Event::Ended(Arc::clone(reason)));
        }
        let mut state = lock(&bound.stream.state);
        let next = state.fanout.next(self.id);
        if next.demand_changed {
            state.wake_producer();
        }
        if let (None, Some(waker)) = (&next.event, waker) {
            state.wake_later(self.id, waker);
            drop(state);
            bound.wake_later(waker);
            return None;
        }
        drop(state);
        let mut event = next.event?;
        if let Event::Packet(packet) = &mut event {
            bound.stream.counters.delivered.add(1);
            bound.last = packet.sequence;
            self.received = Some((next.queued_at, packet.payload.len()));
            packet.codec_epoch = self.epochs.number(bound.moves, packet.codec_epoch);
        }
        Some(event)
    }

    /// Wakes `waker` once when [`Subscriber::try_recv`] may have something new.
    pub fn set_waker(&self, waker: &Waker) {
        let mut bound = lock(&self.binding.bound);
        lock(&bound.stream.state).wake_later(self.id, waker);
        bound.wake_later(waker);
    }

    /// Says that the packet received last has been taken by the path: written to a socket that takes
    /// no more than the path does. How long that took decides what this viewer gets from now on.
    pub fn sent(&mut self, now: Instant) {
        let Some((queued_at, bytes)) = self.received.take() else { return };
        let ladder = Arc::clone(&lock(&self.binding.bound).ladder);
        ladder.sent(self.id, queued_at, bytes, now);
    }

    /// Says what the carrier knows of the path; for one that has congestion control or queues of its
    /// own. To be said whenever that changes, and some ten times a second while anything waits.
    pub fn path(&self, path: Path, now: Instant) {
        let ladder = Arc::clone(&lock(&self.binding.bound).ladder);
        ladder.told(self.id, path, now);
    }

    /// Says what those take whom this viewer passes its packets on to: all it is to be sent, or `None` for as
    /// much as there is. For a relay, which has decided which of its viewers are alike.
    pub fn beyond(&self, rate: Option<Bitrate>, now: Instant) {
        let ladder = Arc::clone(&lock(&self.binding.bound).ladder);
        ladder.beyond(self.id, rate, now);
    }

    /// Packets that wait for this viewer.
    pub fn backlog(&self) -> usize {
        let bound = lock(&self.binding.bound);
        lock(&bound.stream.state).fanout.backlog(self.id)
    }

    /// Bytes that wait for this viewer.
    pub fn backlog_bytes(&self) -> usize {
        let bound = lock(&self.binding.bound);
        lock(&bound.stream.state).fanout.backlog_bytes(self.id)
    }

    /// Asks for a keyframe. Requests are merged, and their rate is capped per stream.
    pub fn request_keyframe(&self) {
        self.binding.stream().request_keyframe();
    }

    /// Asks to be told of the pointer from now on, as it is now first; or no more.
    pub fn want_cursor(&self, wanted: bool) {
        let mut bound = lock(&self.binding.bound);
        bound.wants_cursor = wanted;
        bound.stream.want_cursor(self.id, wanted);
    }

    /// Says whether the path takes frames now, as it does at first. While it takes none, none is made for
    /// this viewer: what is made then is of the past when it can be sent.
    pub fn take(&self, takes: bool) {
        let mut bound = lock(&self.binding.bound);
        if bound.takes != takes {
            bound.takes = takes;
            bound.stream.take(self.id, takes);
        }
    }

    /// What this viewer got and did not get, from all streams it has watched.
    pub fn stats(&self) -> ViewerStats {
        let bound = lock(&self.binding.bound);
        bound.before.plus(lock(&bound.stream.state).fanout.stats(self.id))
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let mut bound = lock(&self.binding.bound);
        bound.left = true;
        bound.stream.detach(self.id);
        let ladder = Arc::clone(&bound.ladder);
        drop(bound);
        ladder.leave(self.id);
    }
}

/// A panic elsewhere while the lock was held leaves plain counters and queues behind, all of them
/// valid; going on is right.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
