//! Fan-out: one publisher's packets to many viewers.
//!
//! A pure state machine; the caller owns every lock, waker and clock. Each viewer has its own
//! bounded queue. One that overflows is cut to the next keyframe and counted, so a slow viewer
//! costs itself and nobody else, and what it sees after a stall is now, not then.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spaceport_types::{Error, Packet, Suspension, ViewerId};

use crate::cursor::Pointer;
use crate::stream::Event;

/// Packets a viewer may lag before it is cut to the next keyframe; about a second at 60 fps.
const VIEWER_PACKETS: usize = 64;

/// Bytes a viewer may lag before it is cut. Two seconds at 16 Mbit/s, and room for any keyframe:
/// an empty queue takes one packet whatever its size.
const VIEWER_BYTES: usize = 4 << 20;

/// How old what waits for a viewer may become. What it shows after a stall is then not long ago. By then
/// a viewer that reads, only slowly, has been moved to a lower rung.
const VIEWER_AGE: Duration = Duration::from_millis(1_500);

/// A viewer with fewer packets waiting than this can take another one.
///
/// One: the encoder works on the next frame while the transport sends the last one, which does not wait
/// here any more. A second one would be of the past by the time it can be sent.
const READY_BELOW: usize = 1;

/// A viewer with this many waiting is behind: what was made for others comes faster than it takes it.
const BEHIND: usize = 2;

/// The least time between two keyframes of one stream, whatever viewers ask: two a second.
const KEYFRAME_INTERVAL: Duration = Duration::from_millis(500);

/// Deltas kept after the last keyframe for viewers who come late. More would take a decoder longer
/// to catch up with than a fresh keyframe takes to make.
const CACHED_DELTAS: usize = 32;

/// Bytes of cached deltas; beyond this a fresh keyframe is the smaller answer.
const CACHED_BYTES: usize = 1 << 20;

/// What one viewer got and did not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewerStats {
    /// Packets handed over.
    pub delivered: u64,
    /// Packets it missed.
    pub lost: u64,
    /// Times it was cut to the next keyframe.
    pub cuts: u64,
}

impl ViewerStats {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            delivered: self.delivered + other.delivered,
            lost: self.lost + other.lost,
            cuts: self.cuts + other.cuts,
        }
    }
}

/// How a viewer comes to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// It has seen nothing yet.
    New,
    /// From another stream of the same target, where it has got all up to a sequence number.
    Moved { after: u64 },
}

/// Why a keyframe is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// A viewer came, and no older keyframe would do.
    Join,
    /// A viewer asked.
    Request,
    /// A viewer was too slow and lost what was between.
    Cut,
    /// The encoder is new, as after a change of size.
    Encoder,
}

/// What [`Fanout::next`] did.
#[derive(Default)]
pub(crate) struct Next {
    pub(crate) event: Option<Event>,
    /// Since when a packet has waited; not known for one from before the viewer came.
    pub(crate) queued_at: Option<Instant>,
    /// Whether what viewers want from the producer has changed.
    pub(crate) demand_changed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Fanout {
    viewers: BTreeMap<ViewerId, Viewer>,
    cache: Cache,
    /// Why a keyframe is wanted, if one is: for the first who did.
    keyframe_wanted: Option<Reason>,
    last_keyframe: Option<Instant>,
    /// The last packet that was handed out.
    last: u64,
    /// Whether the producer knows that a viewer can take a packet, or is about to ask.
    ready_told: bool,
    suspended: Option<(Suspension, Arc<Error>)>,
    /// The pointer as it is now, for viewers that come to want it.
    pointer: Pointer,
    ended: Option<Arc<Error>>,
}

#[derive(Debug, Default)]
struct Viewer {
    /// Packets and since when each has waited.
    queue: VecDeque<(Packet, Option<Instant>)>,
    queued_bytes: usize,
    /// Gets nothing before the next keyframe: it just came, or it was cut.
    awaits_keyframe: bool,
    /// Its path takes no frame for now.
    held: bool,
    /// What it has seen elsewhere: nothing up to there is for it, not even a keyframe. Only packets of another
    /// machine, which come as they were kept there, can be so old.
    after: Option<u64>,
    /// Why it would want one.
    reason: Option<Reason>,
    notice: Option<Event>,
    /// A title it has not been told.
    title: Option<Arc<str>>,
    /// What it has not been told of the pointer, if it wants to be.
    pointer: Option<Pointer>,
    stats: ViewerStats,
}

impl Fanout {
    /// Adds a viewer. What the cache holds is its first packets; without a cache a keyframe is
    /// wanted for it, and so it is where the cache is older than what the viewer has seen.
    pub(crate) fn attach(&mut self, id: ViewerId, join: Join) {
        let mut viewer =
            Viewer { awaits_keyframe: true, reason: Some(Reason::Join), ..Viewer::default() };
        if let Some((reason, error)) = &self.suspended {
            viewer.notice = Some(Event::Suspended(*reason, Arc::clone(error)));
        }
        let after = match join {
            Join::New => 0,
            Join::Moved { after } => after,
        };
        viewer.after = (after > 0).then_some(after);
        if self.cache.packets.first().is_some_and(|packet| packet.sequence > after) {
            viewer.awaits_keyframe = false;
            for packet in &self.cache.packets {
                viewer.push(packet.clone(), None);
            }
        } else {
            self.keyframe_wanted.get_or_insert(Reason::Join);
        }
        self.viewers.insert(id, viewer);
    }

    pub(crate) fn detach(&mut self, id: ViewerId) -> Option<ViewerStats> {
        let viewer = self.viewers.remove(&id)?;
        if self.viewers.is_empty() {
            self.keyframe_wanted = None;
        }
        Some(viewer.stats)
    }

    /// Hands one packet to everyone who can use it, and says what that came to.
    pub(crate) fn publish(&mut self, packet: &Packet, now: Instant) -> Handed {
        let mut handed = Handed::default();
        if packet.keyframe {
            handed.keyframe = Some(self.keyframe_wanted.take().unwrap_or(Reason::Encoder));
            self.last_keyframe = Some(now);
        }
        self.cache.keep(packet);
        self.last = packet.sequence;
        self.ready_told = false;
        for viewer in self.viewers.values_mut() {
            viewer.offer(packet, now, &mut handed);
            if packet.keyframe && viewer.awaits_keyframe {
                self.keyframe_wanted.get_or_insert(Reason::Join);
            }
        }
        handed
    }

    /// The next thing for one viewer.
    pub(crate) fn next(&mut self, id: ViewerId) -> Next {
        let Some(viewer) = self.viewers.get_mut(&id) else { return Next::default() };
        let news = |event| Next { event: Some(event), ..Next::default() };
        if let Some(reason) = &self.ended {
            viewer.clear();
            return news(Event::Ended(Arc::clone(reason)));
        }
        if let Some(notice) = viewer.notice.take() {
            return news(notice);
        }
        if let Some(title) = viewer.title.take() {
            return news(Event::Titled(title));
        }
        if let Some(event) = viewer.pointer.as_mut().and_then(Pointer::next) {
            return news(event);
        }
        let was_ready = viewer.ready();
        if let Some((packet, queued_at)) = viewer.pop() {
            let is_news = !was_ready && viewer.ready();
            // The first of them is enough to make a frame for.
            let demand_changed = is_news && !std::mem::replace(&mut self.ready_told, true);
            return Next { queued_at, demand_changed, ..news(Event::Packet(packet)) };
        }
        if !viewer.awaits_keyframe || self.keyframe_wanted.is_some() {
            return Next::default();
        }
        // Asked for only now: a viewer that has stopped reading costs no keyframes.
        self.keyframe_wanted = viewer.reason;
        Next { demand_changed: true, ..Next::default() }
    }

    /// Whether [`Fanout::next`] has something for this viewer.
    pub(crate) fn has_next(&self, id: ViewerId) -> bool {
        self.viewers.get(&id).is_some_and(|viewer| {
            self.ended.is_some()
                || viewer.notice.is_some()
                || viewer.title.is_some()
                || viewer.pointer.as_ref().is_some_and(|news| !news.is_empty())
                || !viewer.queue.is_empty()
        })
    }

    pub(crate) fn want_keyframe(&mut self, reason: Reason) {
        self.keyframe_wanted.get_or_insert(reason);
    }

    /// When a keyframe may be made, if one is wanted.
    pub(crate) fn keyframe_due(&self, now: Instant) -> Option<Instant> {
        let earliest = self.last_keyframe.map_or(now, |last| last + KEYFRAME_INTERVAL);
        self.keyframe_wanted.map(|_| earliest.max(now))
    }

    pub(crate) fn viewers(&self) -> usize {
        self.viewers.len()
    }

    /// Whether a viewer can take a packet. For the producer, which then knows.
    pub(crate) fn ready(&mut self) -> bool {
        self.ready_told = self.viewers.values().any(Viewer::ready);
        self.ready_told
    }

    pub(crate) fn backlog(&self, id: ViewerId) -> usize {
        self.viewers.get(&id).map_or(0, |viewer| viewer.queue.len())
    }

    pub(crate) fn backlog_bytes(&self, id: ViewerId) -> usize {
        self.viewers.get(&id).map_or(0, |viewer| viewer.queued_bytes)
    }

    pub(crate) fn stats(&self, id: ViewerId) -> ViewerStats {
        self.viewers.get(&id).map(|viewer| viewer.stats).unwrap_or_default()
    }

    /// Forgets the cached packets: no later delta will continue them.
    pub(crate) fn forget(&mut self) {
        self.cache = Cache::default();
    }

    /// What comes next begins anew, and may repeat what was there: each viewer goes on at the first keyframe
    /// that is news to it.
    pub(crate) fn restart(&mut self) {
        self.forget();
        for viewer in self.viewers.values_mut() {
            viewer.after = viewer.after.max(Some(self.last).filter(|&last| last > 0));
            viewer.awaits_keyframe = true;
            viewer.reason = Some(Reason::Join);
        }
    }

    pub(crate) fn suspend(&mut self, reason: Suspension, error: &Arc<Error>) {
        self.suspended = Some((reason, Arc::clone(error)));
        for viewer in self.viewers.values_mut() {
            viewer.notice = Some(Event::Suspended(reason, Arc::clone(error)));
        }
    }

    pub(crate) fn resume(&mut self) {
        if self.suspended.take().is_some() {
            for viewer in self.viewers.values_mut() {
                viewer.notice = Some(Event::Resumed);
            }
        }
    }

    pub(crate) fn retitle(&mut self, title: &Arc<str>) {
        for viewer in self.viewers.values_mut() {
            viewer.title = Some(Arc::clone(title));
        }
    }

    /// Has a viewer told of the pointer from now on, or no more.
    pub(crate) fn want_cursor(&mut self, id: ViewerId, wanted: bool) {
        if let Some(viewer) = self.viewers.get_mut(&id)
            && viewer.pointer.is_some() != wanted
        {
            viewer.pointer = wanted.then(|| self.pointer.clone());
        }
    }

    /// Says whether a viewer's path takes frames now, and returns whether that is news to the producer.
    pub(crate) fn take(&mut self, id: ViewerId, takes: bool) -> bool {
        let Some(viewer) = self.viewers.get_mut(&id) else { return false };
        viewer.held = !takes;
        viewer.ready() && !std::mem::replace(&mut self.ready_told, true)
    }

    /// Whether a viewer wants to be told of the pointer.
    pub(crate) fn cursor_wanted(&self) -> bool {
        self.viewers.values().any(|viewer| viewer.pointer.is_some())
    }

    /// Tells those who want to know what is new of the pointer. A slow viewer gets the newest alone.
    pub(crate) fn point(&mut self, news: &Pointer) {
        self.pointer.update(news);
        for untold in self.viewers.values_mut().filter_map(|viewer| viewer.pointer.as_mut()) {
            untold.update(news);
        }
    }

    /// Nobody looks at the pointer any more: what is known of it will soon be wrong.
    pub(crate) fn forget_pointer(&mut self) {
        self.pointer = Pointer::default();
    }

    /// Ends the stream for everyone. The first reason stays.
    pub(crate) fn end(&mut self, reason: &Arc<Error>) {
        self.ended.get_or_insert_with(|| Arc::clone(reason));
        self.cache = Cache::default();
    }

    pub(crate) fn ended(&self) -> Option<&Arc<Error>> {
        self.ended.as_ref()
    }
}

impl Viewer {
    fn ready(&self) -> bool {
        !self.held && self.queue.len() < READY_BELOW
    }

    fn offer(&mut self, packet: &Packet, now: Instant, handed: &mut Handed) {
        if self.after.is_some_and(|after| packet.sequence <= after) {
            return;
        }
        if packet.keyframe {
            if self.queue.len() >= BEHIND {
                self.cut(handed); // the keyframe says all that the backlog would, and later
            }
            self.awaits_keyframe = false;
        } else if self.awaits_keyframe {
            self.lose(1, handed);
            return;
        } else if self.is_full(packet, now) {
            self.cut(handed);
            self.awaits_keyframe = true;
            self.reason = Some(Reason::Cut);
            self.lose(1, handed);
            return;
        }
        self.push(packet.clone(), Some(now));
    }

    /// Whether one more packet is too much.
    fn is_full(&self, packet: &Packet, now: Instant) -> bool {
        let Some((_, oldest)) = self.queue.front() else { return false };
        self.queue.len() >= VIEWER_PACKETS
            || self.queued_bytes + packet.payload.len() > VIEWER_BYTES
            || self.queue.len() >= BEHIND && oldest.is_some_and(|at| now > at + VIEWER_AGE)
    }

    fn lose(&mut self, packets: u64, handed: &mut Handed) {
        self.stats.lost += packets;
        handed.lost += packets;
    }

    /// Drops the whole backlog.
    fn cut(&mut self, handed: &mut Handed) {
        self.lose(self.queue.len() as u64, handed);
        self.stats.cuts += 1;
        handed.cuts += 1;
        self.clear();
    }

    fn clear(&mut self) {
        self.queue.clear();
        self.queued_bytes = 0;
    }

    fn push(&mut self, packet: Packet, now: Option<Instant>) {
        self.queued_bytes += packet.payload.len();
        self.queue.push_back((packet, now));
    }

    fn pop(&mut self) -> Option<(Packet, Option<Instant>)> {
        let (packet, queued_at) = self.queue.pop_front()?;
        self.queued_bytes -= packet.payload.len();
        self.stats.delivered += 1;
        Some((packet, queued_at))
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Handed {
    /// What viewers that could not keep up lost by it.
    pub(crate) lost: u64,
    pub(crate) cuts: u64,
    /// Why it is a keyframe, if it is one.
    pub(crate) keyframe: Option<Reason>,
}

/// The last keyframe and every delta since, while that is little enough to be worth replaying.
#[derive(Debug, Default)]
struct Cache {
    packets: Vec<Packet>,
    delta_bytes: usize,
}

impl Cache {
    fn usable(&self) -> bool {
        !self.packets.is_empty()
    }

    fn keep(&mut self, packet: &Packet) {
        if packet.keyframe {
            self.packets.clear();
            self.packets.push(packet.clone());
            self.delta_bytes = 0;
        } else if self.usable() {
            self.delta_bytes += packet.payload.len();
            if self.packets.len() > CACHED_DELTAS || self.delta_bytes > CACHED_BYTES {
                *self = Self::default();
            } else {
                self.packets.push(packet.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use spaceport_types::{Bounds, Codec, Geometry, Kind, Size};

    use super::*;

    const A: ViewerId = ViewerId::new(1);
    const B: ViewerId = ViewerId::new(2);

    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn packet(sequence: u64, keyframe: bool, bytes: usize) -> Packet {
        Packet {
            sequence,
            codec: Codec::H264,
            keyframe,
            codec_epoch: 1,
            geometry: Geometry {
                frame_size: Size::new(2, 2),
                scale: 1.0,
                logical_bounds: Bounds::new(0, 0, 2, 2),
                geometry_epoch: 1,
            },
            captured_at: Duration::from_millis(sequence),
            encode_duration: Duration::ZERO,
            payload: Bytes::from(vec![0; bytes]),
        }
    }

    fn drain(fanout: &mut Fanout, id: ViewerId) -> Vec<u64> {
        std::iter::from_fn(|| match fanout.next(id).event {
            Some(Event::Packet(packet)) => Some(packet.sequence),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn the_first_packet_of_every_attach_is_a_keyframe() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        assert_eq!(fanout.keyframe_due(now), Some(now));
        fanout.publish(&packet(1, false, 1), now);
        assert_eq!(drain(&mut fanout, A), []);
        fanout.publish(&packet(2, true, 1), now);
        fanout.publish(&packet(3, false, 1), now);
        assert_eq!(drain(&mut fanout, A), [2, 3]);
    }

    #[test]
    fn a_late_viewer_is_served_from_the_cache_and_asks_the_producer_for_nothing() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        for (sequence, keyframe) in [(1, true), (2, false), (3, false)] {
            fanout.publish(&packet(sequence, keyframe, 1), now);
        }
        fanout.attach(B, Join::New);
        assert_eq!(drain(&mut fanout, B), [1, 2, 3]);
        assert_eq!(fanout.keyframe_due(now), None);
    }

    #[test]
    fn a_cache_that_grew_too_long_is_dropped_and_a_keyframe_wanted_instead() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.publish(&packet(0, true, 1), now);
        for sequence in 1..=CACHED_DELTAS as u64 + 1 {
            fanout.publish(&packet(sequence, false, 1), now);
            drain(&mut fanout, A);
        }
        fanout.attach(B, Join::New);
        assert_eq!(drain(&mut fanout, B), []);
        assert_eq!(fanout.keyframe_due(now), Some(now + KEYFRAME_INTERVAL));
    }

    #[test]
    fn a_slow_viewer_loses_frames_and_the_others_none() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.attach(B, Join::New);
        fanout.publish(&packet(0, true, 1), now);
        let mut seen = drain(&mut fanout, A);
        for sequence in 1..200 {
            fanout.publish(&packet(sequence, false, 1), now);
            seen.extend(drain(&mut fanout, A));
        }
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert_eq!(fanout.stats(A), ViewerStats { delivered: 200, lost: 0, cuts: 0 });
        assert_eq!(fanout.stats(B).cuts, 1);
        assert_eq!(fanout.keyframe_due(now), None, "a viewer that does not read costs no keyframe");

        // It reads again: it waits for a keyframe, asks for one, and goes on from there.
        assert_eq!(drain(&mut fanout, B), []);
        assert!(fanout.keyframe_due(now).is_some());
        fanout.publish(&packet(200, false, 1), now);
        assert_eq!(drain(&mut fanout, B), []);
        fanout.publish(&packet(201, true, 1), now);
        assert_eq!(drain(&mut fanout, B), [201]);
    }

    #[test]
    fn what_a_viewer_shows_after_a_stall_is_not_long_ago() {
        let (mut fanout, start) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        let frame = Duration::from_millis(100);
        for sequence in 0..16 {
            let now = start + frame * sequence;
            fanout.publish(&packet(sequence.into(), sequence == 0, 1), now);
        }
        assert_eq!(fanout.backlog(A), 16);
        fanout.publish(&packet(16, false, 1), start + frame * 16);
        assert_eq!((fanout.backlog(A), fanout.stats(A).lost), (0, 17));
        assert!(fanout.next(A).demand_changed, "it reads again, and wants a keyframe");
    }

    #[test]
    fn one_who_comes_from_another_stream_is_shown_nothing_older_than_it_has_seen() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.publish(&packet(5, true, 1), now);
        fanout.publish(&packet(9, false, 1), now);
        fanout.attach(B, Join::Moved { after: 4 });
        assert_eq!(drain(&mut fanout, B), [5, 9]);
        assert_eq!(fanout.keyframe_due(now), None);
        fanout.detach(B);
        fanout.attach(B, Join::Moved { after: 5 });
        assert_eq!(drain(&mut fanout, B), []);
        assert!(fanout.keyframe_due(now).is_some());
    }

    #[test]
    fn one_who_has_seen_a_keyframe_elsewhere_waits_for_the_next() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.attach(B, Join::Moved { after: 5 });
        fanout.publish(&packet(5, true, 1), now);
        fanout.publish(&packet(6, false, 1), now);
        assert_eq!((drain(&mut fanout, A), drain(&mut fanout, B)), (vec![5, 6], vec![]));
        assert!(fanout.keyframe_due(now).is_some());
        fanout.publish(&packet(7, true, 1), now);
        assert_eq!((drain(&mut fanout, A), drain(&mut fanout, B)), (vec![7], vec![7]));
        assert!(fanout.keyframe_due(now).is_none());
    }

    #[test]
    fn what_begins_anew_repeats_nothing_and_serves_who_is_new() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.publish(&packet(5, true, 1), now);
        assert_eq!(drain(&mut fanout, A), [5]);
        fanout.restart();
        fanout.attach(B, Join::New);
        fanout.publish(&packet(5, true, 1), now);
        fanout.publish(&packet(6, false, 1), now);
        assert_eq!((drain(&mut fanout, A), drain(&mut fanout, B)), (vec![], vec![5, 6]));
        assert!(fanout.keyframe_due(now).is_some());
        fanout.publish(&packet(7, true, 1), now);
        assert_eq!((drain(&mut fanout, A), drain(&mut fanout, B)), (vec![7], vec![7]));
    }

    #[test]
    fn a_keyframe_is_made_for_the_first_reason() {
        let (mut fanout, now) = (Fanout::default(), origin());
        let reason = |fanout: &mut Fanout| fanout.publish(&packet(1, true, 1), now).keyframe;
        assert_eq!(reason(&mut fanout), Some(Reason::Encoder));
        fanout.forget();
        fanout.attach(A, Join::New);
        fanout.want_keyframe(Reason::Request);
        assert_eq!(reason(&mut fanout), Some(Reason::Join));
        fanout.want_keyframe(Reason::Request);
        assert_eq!(reason(&mut fanout), Some(Reason::Request));
        assert_eq!(fanout.publish(&packet(2, false, 1), now).keyframe, None);
    }

    #[test]
    fn a_backlog_of_large_packets_is_cut_by_its_bytes() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.publish(&packet(0, true, VIEWER_BYTES + 1), now);
        assert_eq!(fanout.backlog(A), 1, "one packet always fits");
        fanout.publish(&packet(1, false, 1), now);
        assert_eq!(fanout.backlog(A), 0);
        assert_eq!(fanout.stats(A).lost, 2);
    }

    #[test]
    fn a_keyframe_replaces_a_backlog() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        for sequence in 0..10 {
            fanout.publish(&packet(sequence, sequence == 0, 1), now);
        }
        fanout.publish(&packet(10, true, 1), now);
        assert_eq!(drain(&mut fanout, A), [10]);
    }

    #[test]
    fn the_producer_is_gated_while_nobody_can_take_a_frame() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.attach(B, Join::New);
        for sequence in 0..READY_BELOW as u64 {
            assert!(fanout.ready());
            fanout.publish(&packet(sequence, sequence == 0, 1), now);
        }
        assert!(!fanout.ready());
        assert!(fanout.next(B).demand_changed, "room for a frame is news to the producer");
        assert!(!fanout.next(A).demand_changed, "and a second one's is not");
        assert!(fanout.ready());
        assert!(!fanout.next(B).demand_changed);
    }

    #[test]
    fn keyframes_come_at_most_twice_a_second() {
        let (mut fanout, start) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        let mut keyframes = 0;
        for millis in 0..2_000 {
            let now = start + Duration::from_millis(millis);
            fanout.want_keyframe(Reason::Request);
            if fanout.keyframe_due(now) == Some(now) {
                fanout.publish(&packet(millis, true, 1), now);
                drain(&mut fanout, A);
                keyframes += 1;
            }
        }
        assert_eq!(keyframes, 4);
    }

    #[test]
    fn a_suspended_stream_says_so_and_says_when_it_goes_on() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.suspend(Suspension::Minimized, &Arc::new(Error::new(Kind::Stream, "x")));
        let minimized = |event| matches!(event, Some(Event::Suspended(Suspension::Minimized, _)));
        assert!(minimized(fanout.next(A).event));
        fanout.attach(B, Join::New);
        assert!(minimized(fanout.next(B).event));
        fanout.publish(&packet(1, true, 1), now);
        assert_eq!(drain(&mut fanout, A), [1], "what was last seen, and no word of going on");
        fanout.resume();
        fanout.publish(&packet(2, false, 1), now);
        assert!(matches!(fanout.next(A).event, Some(Event::Resumed)));
        assert_eq!(drain(&mut fanout, A), [2]);
        fanout.resume();
        assert!(!fanout.has_next(A), "a stream that runs does not go on once more");
    }

    #[test]
    fn the_last_title_is_told_once_and_before_packets() {
        let (mut fanout, now) = (Fanout::default(), origin());
        fanout.attach(A, Join::New);
        fanout.publish(&packet(1, true, 1), now);
        for title in ["one", "two"] {
            fanout.retitle(&title.into());
        }
        let Some(Event::Titled(title)) = fanout.next(A).event else { panic!("no title") };
        assert_eq!(&*title, "two");
        assert_eq!(drain(&mut fanout, A), [1]);
    }

    #[test]
    fn an_ended_stream_keeps_its_first_reason() {
        let mut fanout = Fanout::default();
        fanout.attach(A, Join::New);
        fanout.end(&Arc::new(Error::new(Kind::Stream, "first")));
        fanout.end(&Arc::new(Error::new(Kind::Stream, "second")));
        let Some(Event::Ended(reason)) = fanout.next(A).event else { panic!("not ended") };
        assert_eq!(reason.to_string(), "first");
        assert!(fanout.has_next(A), "and keeps saying it");
    }
}
