//! What one viewer's path carries, and how its stream is kept within that.
//!
//! The engine estimates the rate from the viewer's feedback and paces what it sends. This module
//! decides what follows from the estimate: when the viewer takes no frame for now (so that frames
//! wait before the encoder and not on the way), when it is cut to a keyframe, how much the engine
//! should look for, and when nothing is to be looked for at all, because the picture stands still.
//! It is pure; `now` is an argument, and rates are bits a second.

use std::time::{Duration, Instant};

use spaceport_types::Bitrate;

/// The estimate a path starts with. Enough for a desktop someone works on; the first probes, of
/// three and six times this, find out at once whether there is more, with the first keyframe.
pub(super) const START: u64 = 5_000_000;

/// What is looked for until it is known what the stream needs, and how long that takes.
const FIRST: u64 = 10_000_000;
const FIRST_FOR: Duration = Duration::from_secs(3);

/// The most that is looked for. A 4K desktop in motion needs less.
const MOST: u64 = 20_000_000;

/// The least that is looked for, so that a path at its lowest is probed at all.
const LEAST: u64 = 500_000;

/// A viewer with this much waiting to leave takes no further frame: longer than the engine's own
/// bursts, and less than two frames of a moving picture. The estimate is a mean over seconds; when
/// the path just got worse, what has waited this long says it sooner.
const AHEAD: Duration = Duration::from_millis(50);

/// A viewer with this much waiting, and more of it than a keyframe has, is cut to a keyframe.
const CUT: Duration = Duration::from_millis(150);

/// What waits on the way for longer than this is not to become more: no further frame is taken until
/// it is less. More than a radio link holds a packet back for, and less than a person notices.
const AHEAD_ON_WAY: Duration = Duration::from_millis(100);

/// The share of packets that are lost where a queue overflows, rather than on the air.
const OVERFLOW: f32 = 0.1;

/// A queue that grows by so much from report to report, so many times in a row, and to such a length, is filled
/// with twice of what leaves it. A link that only stood still for a moment has one long round trip, not several.
const GROWS: Duration = Duration::from_millis(20);
const GROWN: (u32, Duration) = (3, Duration::from_millis(150));

/// Where packets wait for less, and less of them are lost, the path carries all that is sent.
const FREE: Duration = Duration::from_millis(50);
const LOST: f32 = 0.02;

/// How much of the shortest round trip is forgotten with time: a viewer may come to be farther away.
const FORGET: f64 = 0.01;

/// Frames that wait without anyone being slow; see the session's own gate.
const FEW: usize = 2;

/// A path without media for this long is idle.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// How often an idle peer's clocks are looked after: ICE and RTCP have theirs in seconds.
const IDLE_TICK: Duration = Duration::from_millis(500);

/// How long frames are held back before more is looked for, and the most that grows to while
/// nothing more is found.
const LOOK_AFTER: Duration = Duration::from_secs(2);
const LOOK_AFTER_MOST: Duration = Duration::from_secs(16);

/// How long looking for more takes, and what it leaves in queues.
const LOOKS_FOR: Duration = Duration::from_millis(300);

/// The least time between two reports to the session while something waits.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A path that carries less than this part of what was just sent has collapsed: what is on its way and
/// what would have to be sent again is more than it carries in the time that anyone waits.
const COLLAPSE: (u64, u64) = (1, 2);

/// What is believed of a path that collapsed is not believed to have collapsed again before this.
const COLLAPSE_AGAIN: Duration = Duration::from_secs(3);

/// How long a queue is given to empty where it is not known how long it is, and at most.
const DRAIN_LEAST: Duration = Duration::from_millis(150);
const DRAIN_MOST: Duration = Duration::from_millis(500);

/// A stream that takes this part of the estimate, or more, is kept from taking more by it: it is told less than all
/// of it, and an encoder seldom takes all it is told.
const TAKES_ALL: (u64, u64) = (3, 5);

/// What was held back this recently is still wanted.
const RECENTLY: Duration = Duration::from_millis(500);

/// A path that collapsed is taken to carry this part of what was sent. Rather too little: the probes that
/// follow find out within a round trip if it is more, and what is too much costs the time of a queue.
const AFTER_COLLAPSE: u64 = 8;

/// What the engine has measured of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) estimate: u64,
    /// Of the last packet that the viewer told of.
    pub(super) round_trip: Option<Duration>,
    /// The share of the last second's packets that did not arrive.
    pub(super) lost: f32,
}

/// How an estimate starts again.
#[derive(Clone, Copy, Debug)]
struct Restart {
    estimate: u64,
    /// Not before this.
    at: Instant,
    /// Whether more is looked for.
    looks: bool,
}

/// What the engine is to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Advice {
    /// Look for this much, and no more; 0 for not at all.
    pub(super) desired: Option<u64>,
    /// Start the estimate again from this, which probes for more at once.
    pub(super) restart: Option<u64>,
}

/// What the engine holds to pace it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) bytes: usize,
    /// How long the first of them has waited.
    pub(super) age: Duration,
}

/// What the session is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) capacity: Bitrate,
    /// How long a frame waits that is given to the engine now.
    pub(super) queued: Duration,
}

/// The state of one path.
#[derive(Debug)]
pub(super) struct Path {
    since: Instant,
    /// Whether there is no network, and so no limit.
    open: bool,
    estimate: u64,
    /// When the estimate last went down by more than its noise.
    fell: Option<Instant>,
    /// The last round trip, which says something once, and the shortest of late.
    round_trip: Option<Duration>,
    shortest: Option<(Duration, Instant)>,
    /// How long the last packet that is known of waited, and how often in a row that has grown.
    waited: Duration,
    grown: u32,
    /// Until when a packet that is sent now waits on the way.
    clears: Option<Instant>,
    /// How the estimate is to start again.
    restart: Option<Restart>,
    /// Until when nothing is looked for, because it came to nothing.
    quiet: Option<Instant>,
    desired: u64,
    media: Option<Instant>,
    /// Since when the stream has taken what it may.
    limited: Option<Instant>,
    /// Since when frames have been held back without much of a pause, and when last.
    held: Option<(Instant, Instant)>,
    look_after: Duration,
    /// When more was looked for, and what the estimate was.
    looked: Option<(Instant, u64)>,
    /// What was sent in the second that began then, and in the fullest of late.
    second: (Instant, u64),
    busiest: u64,
    /// The same, since the path last collapsed.
    peak: u64,
    keyframe: usize,
    /// When it last collapsed.
    collapsed: Option<Instant>,
    /// What the session was told last, and when.
    told: Option<(Told, Instant)>,
}

impl Path {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            open: false,
            estimate: START,
            fell: None,
            round_trip: None,
            shortest: None,
            waited: Duration::ZERO,
            grown: 0,
            clears: None,
            restart: None,
            quiet: None,
            desired: 0,
            media: None,
            limited: None,
            held: None,
            look_after: LOOK_AFTER,
            looked: None,
            second: (now, 0),
            busiest: 0,
            peak: 0,
            keyframe: 0,
            collapsed: None,
            told: None,
        }
    }

    /// No network lies between. There is only the viewer's own slowness to be mistaken for one.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// Takes what the engine measured. Returns whether the path has collapsed.
    ///
    /// The estimate takes seconds to fall by much. A queue that is full shows at once: packets take longer,
    /// and those that find no room in it are lost.
    pub(super) fn measured(&mut self, measured: Measured, now: Instant) -> bool {
        let Measured { estimate, round_trip, lost } = measured;
        if estimate < self.estimate / 20 * 19 {
            self.fell = Some(now);
        }
        if let Some(round_trip) = round_trip {
            self.waited(round_trip, now);
        }
        // A probe that this machine was too busy to send in time arrives as slowly as it was sent, and the engine
        // takes that for the path's rate. But of a path that carries less packets wait or are lost.
        let free = round_trip.is_some() && self.waited < FREE && lost < LOST;
        if self.restart.is_some() {
            // It is over with that estimate.
        } else if free && estimate < self.estimate / 2 {
            self.restart = Some(Restart { estimate: self.estimate, at: now, looks: false });
        } else {
            self.estimate = estimate;
        }
        let (part, of) = COLLAPSE;
        let (times, long) = GROWN;
        let overflows = self.waited >= AHEAD_ON_WAY && lost >= OVERFLOW
            || self.grown >= times && self.waited >= long;
        // What was sent to look for more fills a queue, too.
        let looked = |(at, _)| now.saturating_duration_since(at) < LOOKS_FOR;
        let overflows = overflows && !self.looked.is_some_and(looked);
        let again = |at| now.saturating_duration_since(at) >= COLLAPSE_AGAIN;
        let busy = self.media.is_some_and(|at| now.saturating_duration_since(at) < IDLE_AFTER);
        let collapsed = !self.open
            && busy
            && (overflows || estimate < self.peak / of * part)
            && self.collapsed.is_none_or(again);
        if collapsed {
            self.collapsed = Some(now);
            let sent = self.peak.max(self.second.1 * 8);
            if overflows && estimate > sent / AFTER_COLLAPSE {
                self.estimate = (sent / AFTER_COLLAPSE).max(LEAST);
                let at = self.drained(now);
                self.restart = Some(Restart { estimate: self.estimate, at, looks: true });
            }
            // From here on that much is a lot. What is looked for stays: the path may come back.
            self.peak = self.estimate;
            self.second = (now, 0);
        }
        collapsed
    }

    /// Takes the round trip of the last packet that is known of.
    fn waited(&mut self, round_trip: Duration, now: Instant) {
        let shortest = self.shortest.map_or(round_trip, |(shortest, at)| {
            let passed = now.saturating_duration_since(at);
            round_trip.min(shortest + passed.mul_f64(FORGET))
        });
        self.shortest = Some((shortest, now));
        if self.round_trip.replace(round_trip) != Some(round_trip) {
            let before = std::mem::replace(&mut self.waited, round_trip - shortest);
            self.grown = if self.waited >= before + GROWS { self.grown + 1 } else { 0 };
            self.clears = Some(now + self.waited);
        }
    }

    /// The shortest round trip of late.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.shortest.map(|(shortest, _)| shortest)
    }

    /// How long what is sent now waits on the way: as long as the last that is known of did, less the time
    /// since then. What was sent meanwhile will be told of.
    fn on_way(&self, now: Instant) -> Duration {
        self.clears.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    /// Notes a frame that was given to the engine.
    pub(super) fn sent(&mut self, bytes: usize, keyframe: bool, now: Instant) {
        self.media = Some(now);
        if keyframe {
            self.keyframe = bytes;
        }
        let (began, sent) = &mut self.second;
        if now.saturating_duration_since(*began) >= Duration::from_secs(1) {
            // Half of it is forgotten each second, so that a busy moment counts for a while.
            self.busiest = (*sent * 8).max(self.busiest / 2);
            self.peak = (*sent * 8).max(self.peak / 2);
            let (part, of) = TAKES_ALL;
            let all = *sent * 8 >= self.estimate / of * part;
            self.limited = all.then(|| self.limited.unwrap_or(*began));
            (*began, *sent) = (now, 0);
        }
        *sent += bytes as u64;
    }

    /// Whether no further frame is to be taken while `queue` waits to leave.
    pub(super) fn is_full(&self, queue: Queue, now: Instant) -> bool {
        let ahead = self.lasts(queue.bytes).max(queue.age) > AHEAD;
        !self.open && (ahead || self.on_way(now) > AHEAD_ON_WAY)
    }

    /// When a path that is full because of what is on the way is not any more.
    pub(super) fn clears(&self, now: Instant) -> Option<Instant> {
        let at = self.clears? - AHEAD_ON_WAY;
        (!self.open && at > now).then_some(at)
    }

    /// Until when nothing is to be sent on a path that just collapsed: its queue is full of what nobody can
    /// use any more.
    pub(super) fn drained(&self, now: Instant) -> Instant {
        now + self.on_way(now).clamp(DRAIN_LEAST, DRAIN_MOST)
    }

    /// Whether `bytes` in `frames` frames that wait are more than a keyframe would cost.
    pub(super) fn is_behind(&self, frames: usize, bytes: usize) -> bool {
        !self.open && frames > FEW && bytes > self.keyframe && self.lasts(bytes) > CUT
    }

    /// Notes that a frame waits because the path is full.
    pub(super) fn held(&mut self, now: Instant) {
        let since = match self.held {
            Some((since, last)) if now.saturating_duration_since(last) < RECENTLY => since,
            _ => now,
        };
        self.held = Some((since, now));
    }

    /// Whether nothing has been sent for a while and nothing waits.
    fn is_idle(&self, queue: Queue, now: Instant) -> bool {
        let quiet = |media| now.saturating_duration_since(media) >= IDLE_AFTER;
        queue.bytes == 0 && self.media.is_some_and(quiet)
    }

    /// The engine's `deadline`, or a later one when nothing is due.
    pub(super) fn deadline(&self, deadline: Instant, queue: Queue, now: Instant) -> Instant {
        if self.is_idle(queue, now) { deadline.max(now + IDLE_TICK) } else { deadline }
    }

    /// What follows from all this.
    pub(super) fn advise(&mut self, queue: Queue, now: Instant) -> Advice {
        let mut advice = Advice::default();
        if let Some(Restart { estimate, at, looks }) = self.restart {
            // Whatever is sent before that finds a queue, not the path.
            self.desired = match (now >= at, looks) {
                (false, _) => 0,
                (true, true) => (estimate * AFTER_COLLAPSE).min(MOST),
                (true, false) => 0,
            };
            advice.desired = Some(self.desired);
            if now >= at {
                self.restart = None;
                self.looked = Some((now, estimate));
                self.quiet = (!looks).then_some(now + LOOK_AFTER);
                advice.restart = Some(estimate);
            }
            return advice;
        }
        let under_way = |(at, _)| now.saturating_duration_since(at) < LOOKS_FOR;
        if self.looked.is_some_and(under_way) || self.quiet.is_some_and(|until| now < until) {
            return advice;
        }
        let held = self.held.filter(|&(_, last)| now.saturating_duration_since(last) < RECENTLY);
        let since = [held.map(|(since, _)| since), self.limited].into_iter().flatten().min();
        let holding = since.map(|since| now.saturating_duration_since(since));
        let desired = if self.open || self.is_idle(queue, now) {
            0
        } else if now.saturating_duration_since(self.since) < FIRST_FOR {
            FIRST
        } else if holding.is_some() {
            (self.estimate * 2).clamp(LEAST, MOST)
        } else {
            (self.busiest.max(self.second.1 * 8) * 5 / 4).clamp(LEAST, MOST)
        };
        // The engine looks again whenever it is told; only news is worth that.
        if desired != self.desired && desired.abs_diff(self.desired) * 4 >= self.desired {
            self.desired = desired;
            advice.desired = Some(desired);
        }
        let fell = self.fell.is_some_and(|fell| now.saturating_duration_since(fell) < LOOK_AFTER);
        if let Some(holding) = holding
            && holding >= LOOK_AFTER
            && !fell
            && self.estimate < MOST
            && self
                .looked
                .is_none_or(|(at, _)| now.saturating_duration_since(at) >= self.look_after)
        {
            let found = self.looked.is_none_or(|(_, before)| self.estimate > before / 4 * 5);
            self.look_after =
                if found { LOOK_AFTER } else { (self.look_after * 2).min(LOOK_AFTER_MOST) };
            self.looked = Some((now, self.estimate));
            advice.restart = Some(self.estimate);
        }
        advice
    }

    /// What the session should be told, if that is news.
    pub(super) fn report(&mut self, queue: Queue, now: Instant) -> Option<Told> {
        if self.open {
            return None;
        }
        let queued = self.lasts(queue.bytes).max(queue.age) + self.on_way(now);
        let told = Told { capacity: Bitrate::from_bps(self.estimate), queued };
        let news = self.told.is_none_or(|(before, at)| {
            let (new, old) = (told.capacity.bps(), before.capacity.bps());
            let waits = !queued.is_zero() || !before.queued.is_zero();
            new.abs_diff(old) > old / 50
                || waits && now.saturating_duration_since(at) >= REPORT_EVERY
        });
        if news {
            self.told = Some((told, now));
        }
        news.then_some(told)
    }

    fn lasts(&self, bytes: usize) -> Duration {
        Duration::from_micros(bytes as u64 * 8_000_000 / self.estimate.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::now;
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn estimated(path: &mut Path, estimate: u64, now: Instant) -> bool {
        path.measured(Measured { estimate, round_trip: None, lost: 0.0 }, now)
    }

    /// A path of 40 ms there and back that has carried 8 Mbit/s for two seconds, and the time after that.
    fn carried() -> (Path, Instant) {
        let start = now();
        let mut path = Path::new(start);
        for step in 0..21 {
            let now = start + MS(100 * step);
            path.sent(100_000, false, now);
            assert!(
                !path.measured(found(40 + step % 5, 0.05), now),
                "losses alone are no collapse"
            );
        }
        path.restart = None;
        (path, start + MS(2_000))
    }

    fn found(round_trip: u64, lost: f32) -> Measured {
        Measured { estimate: 9_000_000, round_trip: Some(MS(round_trip)), lost }
    }

    #[test]
    fn a_path_is_full_when_what_waits_takes_long_to_leave() {
        let start = now();
        let mut path = Path::new(start);
        estimated(&mut path, 1_000_000, start);
        // 50 ms of 1 Mbit/s are 6,250 bytes.
        let queue = |bytes, age| Queue { bytes, age: MS(age) };
        assert!(!path.is_full(queue(6_250, 50), start));
        assert!(path.is_full(queue(6_251, 0), start));
        estimated(&mut path, 10_000_000, start);
        assert!(!path.is_full(queue(6_251, 0), start));
        assert!(path.is_full(queue(6_251, 51), start));
    }

    #[test]
    fn a_viewer_is_cut_only_where_a_keyframe_is_the_smaller_answer() {
        let start = now();
        let mut path = Path::new(start);
        estimated(&mut path, 1_000_000, start);
        path.sent(60_000, true, start);
        assert!(path.is_behind(10, 80_000));
        assert!(!path.is_behind(10, 50_000), "a keyframe would take longer");
        assert!(!path.is_behind(2, 80_000), "nobody makes frames it cannot take");
        estimated(&mut path, 20_000_000, start);
        assert!(!path.is_behind(10, 80_000), "it is through in no time");
    }

    #[test]
    fn a_path_that_carries_half_of_what_is_sent_has_collapsed_once() {
        let start = now();
        let mut path = Path::new(start);
        let mut collapsed = Vec::new();
        for step in 0..60 {
            let now = start + MS(100 * step);
            path.sent(if step < 30 { 100_000 } else { 10_000 }, false, now);
            let estimate = if step < 30 { 9_000_000 } else { 1_000_000 };
            if estimated(&mut path, estimate, now) {
                collapsed.push(step);
            }
        }
        assert_eq!(collapsed, [30]);
        // A picture that hardly moves loses nothing by an estimate that falls.
        let mut still = Path::new(start);
        still.sent(1_000, false, start);
        still.sent(1_000, false, start + MS(1_500));
        assert!(!estimated(&mut still, 300_000, start + MS(1_600)));
    }

    #[test]
    fn a_queue_that_overflows_is_a_collapse_whatever_the_estimate_says() {
        let (mut path, start) = carried();
        assert!(!path.measured(found(240, 0.05), start), "it only takes longer");
        let (mut path, start) = carried();
        assert!(path.measured(found(240, 0.3), start));
        assert_eq!(path.drained(start), start + MS(200));
        assert_eq!(path.advise(Queue::default(), start + MS(199)).restart, None);
        let advice = path.advise(Queue::default(), start + MS(200));
        assert_eq!(advice.restart, Some(1_000_000), "an eighth of what was sent");
        assert!(!path.measured(found(241, 0.5), start + MS(50)), "once is enough");
    }

    #[test]
    fn a_queue_that_grows_as_fast_as_time_passes_is_a_collapse_before_anything_is_lost() {
        let (mut path, start) = carried();
        let mut collapsed = Vec::new();
        for (step, round_trip) in [60, 100, 150, 200, 240].into_iter().enumerate() {
            let now = start + MS(50 * step as u64);
            if path.measured(found(round_trip, 0.0), now) {
                collapsed.push(round_trip);
            }
        }
        assert_eq!(collapsed, [200]);
        // A radio link that stood still: one long round trip, and then ever shorter ones.
        let (mut path, start) = carried();
        for (step, round_trip) in [300, 250, 200, 90].into_iter().enumerate() {
            let now = start + MS(50 * step as u64);
            assert!(!path.measured(found(round_trip, 0.0), now), "{round_trip}");
        }
    }

    #[test]
    fn an_estimate_that_falls_for_no_reason_is_not_believed() {
        let (mut path, start) = carried();
        let low = Measured { estimate: 140_000, ..found(60, 0.0) };
        path.measured(low, start);
        let again = path.advise(Queue::default(), start);
        assert_eq!((again.restart, again.desired), (Some(9_000_000), Some(0)));
        assert_eq!(path.report(Queue::default(), start).unwrap().capacity.kbps(), 9_000);
        let (mut path, start) = carried();
        path.measured(Measured { estimate: 140_000, ..found(120, 0.0) }, start);
        assert_eq!(path.report(Queue::default(), start).unwrap().capacity.kbps(), 140);
    }

    #[test]
    fn no_frame_is_taken_until_what_is_on_the_way_is_little() {
        let (mut path, start) = carried();
        path.measured(found(240, 0.0), start);
        assert!(path.is_full(Queue::default(), start + MS(99)));
        assert_eq!(path.clears(start), Some(start + MS(100)));
        // The same again is no news: nobody has told of anything since.
        path.measured(found(240, 0.0), start + MS(50));
        assert!(!path.is_full(Queue::default(), start + MS(100)));
        assert_eq!(path.clears(start + MS(100)), None);
    }

    #[test]
    fn a_viewer_farther_away_is_not_taken_for_a_slow_one_for_ever() {
        let (mut path, start) = carried();
        for step in 1..200 {
            let now = start + MS(100 * step);
            path.measured(found(240 + step % 3, 0.0), now);
        }
        assert!(!path.is_full(Queue::default(), start + MS(20_000)));
    }

    #[test]
    fn nothing_is_looked_for_while_the_picture_stands_still() {
        let start = now();
        let mut path = Path::new(start);
        path.sent(100_000, true, start);
        assert_eq!(path.advise(Queue::default(), start).desired, Some(FIRST));
        assert_eq!(path.advise(Queue::default(), start + MS(10)), Advice::default(), "told once");
        let later = start + FIRST_FOR;
        assert_eq!(path.advise(Queue::default(), later).desired, Some(0));
        let (none, some) = (Queue::default(), Queue { bytes: 1, age: MS(0) });
        assert_eq!(path.deadline(later, none, later), later + IDLE_TICK);
        assert_eq!(path.deadline(later, some, later), later, "what waits is not kept waiting");
        path.sent(1_000, false, later);
        assert_eq!(path.deadline(later, none, later), later);
        assert_eq!(path.advise(Queue::default(), later).desired, Some(800_000 * 5 / 4));
    }

    #[test]
    fn more_is_looked_for_when_frames_are_held_back_and_less_often_when_it_is_in_vain() {
        let start = now();
        let mut path = Path::new(start);
        estimated(&mut path, 1_000_000, start);
        path.sent(10_000, false, start);
        let mut looked = Vec::new();
        for step in 0..400 {
            let now = start + MS(100 * step);
            path.sent(10_000, false, now);
            path.held(now);
            if path.advise(Queue::default(), now).restart.is_some() {
                looked.push(step / 10);
            }
        }
        assert_eq!(looked, [2, 4, 8, 16, 32]);
    }

    #[test]
    fn a_path_that_just_got_worse_is_left_alone() {
        let start = now();
        let mut path = Path::new(start);
        for step in 0..30 {
            let now = start + MS(100 * step);
            estimated(&mut path, 3_000_000 - 160_000 * step.min(15), now);
            path.held(now);
            assert_eq!(path.advise(Queue::default(), now).restart, None);
        }
    }

    #[test]
    fn the_session_is_told_of_news_and_of_what_waits_ten_times_a_second() {
        let start = now();
        let mut path = Path::new(start);
        let none = Queue::default();
        assert!(path.report(none, start).is_some());
        assert_eq!(path.report(none, start + MS(500)), None);
        estimated(&mut path, 1_000_000, start);
        let told = path.report(none, start + MS(501)).unwrap();
        assert_eq!(told.capacity, Bitrate::from_kbps(1_000));
        let queue = Queue { bytes: 12_500, age: MS(20) };
        let waits = (600..1_600).filter(|&at| {
            path.report(queue, start + MS(at)).is_some_and(|it| it.queued == MS(100))
        });
        assert_eq!(waits.count(), 10);
        assert!(path.report(none, start + MS(1_700)).is_some_and(|told| told.queued.is_zero()));
        assert_eq!(path.report(none, start + MS(1_900)), None);
    }

    #[test]
    fn where_there_is_no_network_nothing_is_held_back_looked_for_or_reported() {
        let start = now();
        let mut path = Path::new(start);
        assert_eq!(path.advise(Queue::default(), start).desired, Some(FIRST));
        path.open();
        let queue = Queue { bytes: 1 << 20, age: MS(500) };
        assert!(!path.is_full(queue, start) && !path.is_behind(60, 1 << 20));
        assert_eq!(path.report(queue, start), None);
        assert_eq!(path.advise(queue, start), Advice { desired: Some(0), restart: None });
    }
}
