//! What one viewer's path can carry, told from how long its packets wait.
//!
//! A carrier with congestion control says so itself ([`Path::capacity`]). Over a socket only the wait
//! is known: a packet that is handed over late was held up by those before it, here or on the way. One
//! late packet says
//! little, and neither does a keyframe that took a while; packets that are *all* late for some time
//! mean that more is sent than the path takes (the idea of `CoDel`, RFC 8289). Then the limit becomes
//! what went through meanwhile, less a little, so that the queue empties. Afterwards it is raised step
//! by step for as long as nothing waits.

use std::time::{Duration, Instant};

use spaceport_types::Bitrate;

/// What a carrier knows of the path to its viewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// What it can carry, from the carrier's congestion control. `None`: not known, or only what
    /// happened to be sent, which says nothing about the path.
    pub capacity: Option<Bitrate>,
    /// How long what is handed over now waits before it is through, in queues that the carrier knows of:
    /// a pacer, the buffers of a connection, those on the way.
    pub queued: Duration,
    /// What arrived last, where the carrier knows that: `queued` is then how much longer it took than the
    /// quickest, its own length on the path included.
    pub arrival: Option<Arrival>,
}

/// A packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its length.
    pub bytes: usize,
    /// How long the path was busy with it alone: since the one before it had arrived, or since it could have.
    pub took: Duration,
}

impl Arrival {
    /// The rate that it went through at.
    fn rate(self) -> Option<f64> {
        (self.took >= TELLING).then(|| self.bytes as f64 * 8.0 / self.took.as_secs_f64())
    }
}

/// What takes less is no measure of a rate: the machine may have been busy.
const TELLING: Duration = Duration::from_millis(50);

/// A packet that waited longer was held up. Half of what a person notices, and more than a busy
/// machine needs to wake a task.
const LATE: Duration = Duration::from_millis(120);

/// A packet that waited less than this found the path free, at any usual frame rate.
const ROOM: Duration = Duration::from_millis(50);

/// Two arrivals in a row of which less than this part of what is sent went through tell of a path that is much
/// narrower than it was: nothing is gained by waiting for more of them.
const NARROWER: f64 = 0.5;

/// How long everything has to be late before the path counts as full: longer than a keyframe takes
/// on a path that has room for the stream.
const FULL_AFTER: Duration = Duration::from_millis(200);

/// And how much has to have been sent meanwhile: what is late on a path that is full waits behind
/// something. A few late packets of a few bytes tell of a machine that is busy, here or there; to encode
/// once more because of that would make it busier.
const FULL_WITH: u64 = 24 << 10;

/// The part of what went through that is sent from then on: the rest empties the queue.
const KEEP: f64 = 0.85;

/// At least this much less than what was too much, in case more went through than the path takes:
/// into the buffers of this machine. But no less than a part of what went through: where an encoder
/// sends more than it is told, telling it less is no help.
const BACK_OFF: f64 = 0.7;
const KEEP_LEAST: f64 = 0.5;

/// The part of a carrier's estimate that pictures may take; the rest is for what is sent again.
const OF_ESTIMATE: f64 = 0.9;

/// No limit is lower: what cannot carry this carries no picture.
const FLOOR: Bitrate = Bitrate::from_kbps(100);

/// For how long after a cut less is sent still, and how much: until the buffers on the way are empty. Where
/// arrivals are known, frames wait for those before them, and nothing more is in the buffers.
const DRAIN: Duration = Duration::from_secs(1);
const DRAIN_SHARE: f64 = 0.7;

/// How long lateness counts for nothing after a cut or a move: it is of what was sent before.
const SETTLE: Duration = Duration::from_millis(400);
const SETTLE_MOVED: Duration = Duration::from_secs(1);

/// Time between two raises; it doubles with every raise that was too much, up to the longest. That
/// one is short enough for a path that has recovered to be used in full within ten seconds.
const RAISE: (Duration, Duration) = (Duration::from_millis(600), Duration::from_millis(3_600));

/// The first raises, which find out whether there is room at all, and the later ones.
const FIRST_STEP: f64 = 1.25;
const LATER_STEP: f64 = 1.5;
const FIRST_STEPS: u32 = 2;

/// A path of which less than this part was used has proved nothing. It is raised more slowly, and
/// only while packets hardly wait at all.
const PROOF: f64 = 0.8;
const UNPROVED: u32 = 8;
const IDLE: Duration = Duration::from_millis(20);

/// A raise that is followed by a cut within this time was too much.
const RAISE_FAILED: Duration = Duration::from_secs(3);

/// The shortest time over which a rate is measured.
const MEASURE: Duration = Duration::from_millis(100);

/// How long what a carrier said of its queues is taken for true.
const TOLD: Duration = Duration::from_millis(500);

/// How long after it was last full a path counts as strained.
const STRAINED: Duration = Duration::from_secs(3);

/// What was learned of one path.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Bits per second that pictures may take; `None` while nothing is in the way.
    limit: Option<f64>,
    /// Whether the limit is a carrier's estimate.
    estimated: bool,
    /// What those beyond the carrier take, where it is not the viewer itself.
    beyond: Option<f64>,
    /// Since when everything has been late, and the bytes sent by then.
    late: Option<(Instant, u64)>,
    /// Bytes sent.
    total: u64,
    /// Since when the path has been busy without a pause, and the bytes it took.
    busy: Option<(Instant, u64)>,
    last_sent: Option<Instant>,
    /// What the carrier said last that waits below, and when.
    below: Option<(Duration, Instant)>,
    /// What it said last that went through.
    through: Option<f64>,
    /// The bytes of an arrival that was held up for so long that the path must be much narrower.
    narrower: Option<u64>,
    strained_at: Option<Instant>,
    settled_at: Option<Instant>,
    raise: Raise,
}

/// How a limit is raised again.
#[derive(Debug)]
struct Raise {
    interval: Duration,
    /// When it was last raised, or cut.
    since: Option<Instant>,
    /// Bytes since then.
    bytes: u64,
    /// Raises since the last cut.
    steps: u32,
}

impl Default for Raise {
    fn default() -> Self {
        Self { interval: RAISE.0, since: None, bytes: 0, steps: 0 }
    }
}

impl Track {
    /// One packet of `bytes` was taken by the path at `now`, and had waited since `queued_at`; not
    /// known for one that is shown from the past. `ceiling` is the most that is ever sent, and
    /// `current` the rate that is sent at. Returns whether the path turned out to be full.
    pub(super) fn sent(
        &mut self,
        queued_at: Option<Instant>,
        bytes: usize,
        now: Instant,
        ceiling: Bitrate,
        current: Bitrate,
    ) -> bool {
        let bytes = bytes as u64;
        self.raise.bytes += bytes;
        self.total += bytes;
        let began_at = self.last_sent.replace(now);
        let waited_before =
            queued_at.zip(began_at).is_some_and(|(queued_at, began)| queued_at <= began);
        let busy = match (&mut self.busy, waited_before) {
            (Some(busy), true) => busy,
            (busy, _) => busy.insert((queued_at.unwrap_or(now), 0)),
        };
        busy.1 += bytes;
        let Some(queued_at) = queued_at else { return false };
        // Its own way takes as long as it is large; what it takes beyond that at the rate that is taken
        // for right is a wait, like that behind those before it.
        let way = self.way(bytes, current);
        let wait = now.saturating_duration_since(queued_at).saturating_sub(way);
        self.waited(wait + self.below(now), now, ceiling, current)
    }

    /// The carrier said what it knows. Returns whether the path turned out to be full.
    pub(super) fn told(
        &mut self,
        path: Path,
        now: Instant,
        ceiling: Bitrate,
        current: Bitrate,
    ) -> bool {
        self.estimated = path.capacity.is_some();
        if let Some(capacity) = path.capacity {
            let limit = capacity.bps() as f64 * OF_ESTIMATE;
            self.limit = (limit < ceiling.bps() as f64).then_some(limit.max(FLOOR.bps() as f64));
        }
        // As in `sent`: what it takes by itself is no wait.
        let way =
            path.arrival.map_or(Duration::ZERO, |arrival| self.way(arrival.bytes as u64, current));
        let wait = path.queued.saturating_sub(way);
        self.below = Some((wait, now));
        self.through = path.arrival.and_then(Arrival::rate);
        if self.is_much_narrower(path, now, current) {
            self.cut(now, path.queued, current);
            return true;
        }
        if self.last_sent.is_some_and(|at| now < at + TOLD) {
            return false; // what is sent knows the rest of the wait
        }
        self.waited(wait, now, ceiling, current)
    }

    /// How long `bytes` are at the rate that is taken for right.
    fn way(&self, bytes: u64, current: Bitrate) -> Duration {
        let rate = self.limit.unwrap_or(current.bps() as f64).max(FLOOR.bps() as f64);
        Duration::from_secs_f64(bytes as f64 * 8.0 / rate)
    }

    /// Sets what those beyond the carrier take.
    pub(super) fn set_beyond(&mut self, rate: Option<Bitrate>) {
        self.beyond = rate.map(|rate| (rate.bps() as f64).max(FLOOR.bps() as f64));
    }

    /// The path's limit, or what is taken beyond it if that is less.
    fn least(&self) -> Option<f64> {
        match (self.limit, self.beyond) {
            (Some(here), Some(beyond)) => Some(here.min(beyond)),
            (here, beyond) => here.or(beyond),
        }
    }

    /// What pictures may take now.
    pub(super) fn limit(&self, now: Instant) -> Option<Bitrate> {
        let draining = !self.estimated
            && self.below.is_none()
            && self.raise.steps == 0
            && self.strained_at.is_some_and(|at| now < at + DRAIN);
        let share = if draining { DRAIN_SHARE } else { 1.0 };
        Some(Bitrate::from_bps((self.least()? * share).max(FLOOR.bps() as f64) as u64))
    }

    /// What the path is believed to carry, which does not change while its queue empties.
    pub(super) fn capacity(&self) -> Option<Bitrate> {
        Some(Bitrate::from_bps(self.least()? as u64))
    }

    /// Whether the viewer suffers from what its path can not carry. An estimate that is lower than
    /// what might be sent is no suffering: a desktop hardly ever takes all it may.
    pub(super) fn strained(&self, now: Instant) -> bool {
        let lately = self.strained_at.is_some_and(|at| now < at + STRAINED);
        // What is taken beyond has been decided there, by those who suffered.
        lately || self.beyond.is_some() || self.limit.is_some() && !self.estimated
    }

    /// The viewer gets another stream from now on, beginning with a keyframe.
    pub(super) fn moved(&mut self, now: Instant) {
        self.late = None;
        self.busy = None;
        self.settled_at = Some(now + SETTLE_MOVED);
        self.raise.since = Some(now);
        self.raise.bytes = 0;
    }

    /// Whether this arrival and the one before say so.
    fn is_much_narrower(&mut self, path: Path, now: Instant, current: Bitrate) -> bool {
        let settled = self.settled_at.is_none_or(|at| now >= at);
        let sent = self.limit.unwrap_or(current.bps() as f64).min(current.bps() as f64);
        let slow = path.arrival.filter(|arrival| {
            let rate = arrival.rate().is_some_and(|rate| rate < sent * NARROWER);
            rate && path.queued >= LATE && settled
        });
        let bytes = slow.map(|arrival| arrival.bytes as u64);
        let before = std::mem::replace(&mut self.narrower, bytes);
        let both = before.zip(bytes).map(|(before, bytes)| before + bytes);
        let narrower = both.is_some_and(|bytes| bytes >= FULL_WITH);
        if narrower {
            self.narrower = None;
        }
        narrower
    }

    fn below(&self, now: Instant) -> Duration {
        self.below.filter(|&(_, at)| now < at + TOLD).map(|(wait, _)| wait).unwrap_or_default()
    }

    fn waited(&mut self, wait: Duration, now: Instant, ceiling: Bitrate, current: Bitrate) -> bool {
        if self.settled_at.is_some_and(|at| now < at) {
            return false;
        }
        if wait < LATE {
            self.late = None;
            if !self.estimated && wait < ROOM {
                self.raise(wait, now, ceiling);
            }
            return false;
        }
        let (since, before) = *self.late.get_or_insert((now, self.total));
        // A carrier with queues of its own says nothing of bytes, and does not look at the clock alone.
        let enough = self.last_sent.is_none() || self.total >= before + FULL_WITH;
        if !enough || now < since + FULL_AFTER {
            return false;
        }
        self.cut(now, wait, current);
        true
    }

    fn cut(&mut self, now: Instant, wait: Duration, current: Bitrate) {
        self.late = None;
        self.strained_at = Some(now);
        self.settled_at = Some(now + SETTLE.max(wait.min(SETTLE_MOVED)));
        let went_through = self.busy.take().and_then(|(since, bytes)| {
            let time = now.saturating_duration_since(since);
            (time >= MEASURE).then(|| bytes as f64 * 8.0 / time.as_secs_f64())
        });
        // Where the carrier holds frames back, what is sent here says nothing; it knows itself.
        let went_through = self.through.or(went_through);
        if !self.estimated {
            let less = self.limit.unwrap_or(current.bps() as f64) * BACK_OFF;
            let limit =
                went_through.map_or(less, |rate| less.min(rate * KEEP).max(rate * KEEP_LEAST));
            self.limit = Some(limit.max(FLOOR.bps() as f64));
        }
        let failed =
            self.raise.steps > 0 && self.raise.since.is_some_and(|at| now < at + RAISE_FAILED);
        let (first, longest) = RAISE;
        let interval = if failed { (self.raise.interval * 2).min(longest) } else { first };
        self.raise = Raise { interval, since: Some(now), bytes: 0, steps: 0 };
    }

    fn raise(&mut self, wait: Duration, now: Instant, ceiling: Bitrate) {
        let Some(limit) = self.limit else { return };
        let since = *self.raise.since.get_or_insert(now);
        let time = now.saturating_duration_since(since);
        if time < self.raise.interval {
            return;
        }
        let used = self.raise.bytes as f64 * 8.0 / time.as_secs_f64();
        let unproved = wait >= IDLE || time < self.raise.interval * UNPROVED;
        if used < limit * PROOF && unproved {
            return;
        }
        let step = if self.raise.steps < FIRST_STEPS { FIRST_STEP } else { LATER_STEP };
        // Where the rate that goes through shows, no more than that is tried.
        let most = self.through.filter(|_| self.below.is_some_and(|(_, at)| now < at + TOLD));
        let raised = most.map_or(limit * step, |most| most.min(limit * step));
        if raised <= limit {
            return;
        }
        self.raise.steps += 1;
        if self.raise.steps > FIRST_STEPS {
            self.raise.interval = RAISE.0;
        }
        self.limit = (raised < ceiling.bps() as f64).then_some(raised);
        self.raise.since = Some(now);
        self.raise.bytes = 0;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::ladder) const CEILING: Bitrate = Bitrate::from_kbps(8_000);

    /// A path that takes so many bits a second, behind a buffer without end, and a stream that is
    /// encoded at its limit and waits while two packets do.
    pub(in crate::ladder) struct Line {
        pub(in crate::ladder) now: Instant,
        /// When the path is free again.
        free_at: Instant,
        /// Packets on the way: when they were queued, are through, and their size.
        queue: std::collections::VecDeque<(Instant, Instant, usize)>,
        pub(in crate::ladder) worst: Duration,
    }

    impl Line {
        #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
        pub(in crate::ladder) fn new() -> Self {
            let now = Instant::now();
            Self {
                now,
                free_at: now,
                queue: std::collections::VecDeque::new(),
                worst: Duration::ZERO,
            }
        }

        /// One frame later: returns what went through meanwhile.
        pub(in crate::ladder) fn step(
            &mut self,
            rate: Bitrate,
            path: Bitrate,
        ) -> Vec<(Instant, Instant, usize)> {
            self.now += FRAME;
            if self.queue.len() < 2 {
                let bytes = (rate.bps() as f64 / 8.0 * FRAME.as_secs_f64()) as usize;
                let takes = Duration::from_secs_f64(bytes as f64 * 8.0 / path.bps() as f64);
                self.free_at = self.free_at.max(self.now) + takes;
                self.queue.push_back((self.now, self.free_at, bytes));
            }
            let mut through = Vec::new();
            while let Some(&sent) = self.queue.front().filter(|sent| sent.1 <= self.now) {
                self.worst = self.worst.max(sent.1 - sent.0);
                through.push(sent);
                self.queue.pop_front();
            }
            through
        }
    }

    pub(in crate::ladder) const FRAME: Duration = Duration::from_millis(33);

    /// Plays a stream that takes all it may, or `load`, over a path for some time.
    fn play(track: &mut Track, line: &mut Line, path: u32, load: Option<u32>, seconds: u64) -> u32 {
        let (path, end) = (Bitrate::from_kbps(path), line.now + Duration::from_secs(seconds));
        line.worst = Duration::ZERO;
        let mut cuts = 0;
        while line.now < end {
            let allowed = track.limit(line.now).unwrap_or(CEILING);
            let rate = load.map_or(allowed, |load| allowed.min(Bitrate::from_kbps(load)));
            for (queued_at, sent_at, bytes) in line.step(rate, path) {
                cuts += u32::from(track.sent(Some(queued_at), bytes, sent_at, CEILING, CEILING));
            }
        }
        cuts
    }

    fn kbps(track: &Track) -> u32 {
        track.capacity().map_or(u32::MAX, Bitrate::kbps)
    }

    /// An arrival of `bytes` that took `waited` longer than it should have.
    fn arrival(bytes: usize, waited: Duration) -> Path {
        let arrival = Some(Arrival { bytes, took: waited });
        Path { capacity: None, queued: waited, arrival }
    }

    #[test]
    fn two_arrivals_that_took_much_too_long_are_enough() {
        let (mut track, now) = (Track::default(), Line::new().now);
        track.sent(Some(now), 30_000, now, CEILING, CEILING);
        let late = arrival(20_000, Duration::from_millis(160));
        assert!(!track.told(late, now + late.queued, CEILING, CEILING), "one may be a hiccup");
        let now = now + late.queued * 2;
        assert!(track.told(late, now, CEILING, CEILING));
        let limit = track.capacity().unwrap().kbps();
        assert!((500..=1_000).contains(&limit), "{limit} of 1000");
        assert!(
            !track.told(late, now + late.queued, CEILING, CEILING),
            "it is of what was sent before"
        );
    }

    #[test]
    fn a_busy_machine_and_a_large_keyframe_are_no_narrow_path() {
        let small = arrival(2_000, Duration::from_millis(160));
        let large = arrival(200_000, Duration::from_millis(200));
        for late in [small, large] {
            let (mut track, now) = (Track::default(), Line::new().now);
            track.sent(Some(now), 30_000, now, CEILING, CEILING);
            for at in [1, 2] {
                assert!(!track.told(late, now + late.queued * at, CEILING, CEILING), "{late:?}");
            }
        }
    }

    #[test]
    fn a_path_with_room_has_no_limit() {
        let (mut track, mut line) = (Track::default(), Line::new());
        assert_eq!(play(&mut track, &mut line, 20_000, None, 30), 0);
        assert_eq!(track.limit(line.now), None);
        assert!(!track.strained(line.now));
    }

    #[test]
    fn a_path_that_narrows_is_followed_at_once_and_used_in_full_within_ten_seconds_after() {
        let (mut track, mut line) = (Track::default(), Line::new());
        play(&mut track, &mut line, 10_000, None, 5);
        play(&mut track, &mut line, 1_000, None, 2);
        assert!((500..1_500).contains(&kbps(&track)), "{}", kbps(&track));
        play(&mut track, &mut line, 1_000, None, 58);
        assert!(line.worst < Duration::from_millis(500), "{:?}", line.worst);
        // Where frames wait before the encoder, twice as much costs frames and no time.
        assert!((500..2_100).contains(&kbps(&track)), "{}", kbps(&track));
        play(&mut track, &mut line, 10_000, None, 10);
        assert_eq!(track.limit(line.now), None);
    }

    #[test]
    fn raises_that_fail_become_rare() {
        let (mut track, mut line) = (Track::default(), Line::new());
        play(&mut track, &mut line, 1_000, None, 20);
        let cuts = play(&mut track, &mut line, 1_000, None, 60);
        assert!(cuts <= 14, "{cuts} in a minute");
    }

    #[test]
    fn a_limit_that_is_not_used_is_raised_slowly() {
        let (mut track, mut line) = (Track::default(), Line::new());
        play(&mut track, &mut line, 1_000, None, 5);
        let before = kbps(&track);
        play(&mut track, &mut line, 1_000, Some(50), 5);
        assert!(kbps(&track) <= before * 2, "{} after {before}", kbps(&track));
        play(&mut track, &mut line, 1_000, Some(50), 120);
        assert_eq!(track.limit(line.now), None, "but not kept for ever");
    }

    #[test]
    fn a_late_packet_or_two_cut_nothing() {
        let (mut track, mut line) = (Track::default(), Line::new());
        for _ in 0..100 {
            // As a machine that was busy for a second: all that waited goes out at once.
            line.now += Duration::from_secs(1);
            for late in (0..30).rev() {
                let queued_at = line.now - FRAME * late;
                assert!(!track.sent(Some(queued_at), 10_000, line.now, CEILING, CEILING));
            }
        }
        assert_eq!(track.limit(line.now), None);
    }

    #[test]
    fn what_is_shown_from_the_past_is_not_late() {
        let (mut track, mut line) = (Track::default(), Line::new());
        for _ in 0..100 {
            line.now += FRAME;
            assert!(!track.sent(None, 10_000, line.now, CEILING, CEILING));
        }
    }

    #[test]
    fn an_estimate_is_the_limit_but_no_suffering() {
        let (mut track, line) = (Track::default(), Line::new());
        let estimate = |kbps| Path { capacity: Some(Bitrate::from_kbps(kbps)), ..Path::default() };
        assert!(!track.told(estimate(2_000), line.now, CEILING, CEILING));
        assert_eq!(track.limit(line.now), Some(Bitrate::from_kbps(1_800)));
        assert!(!track.strained(line.now));
        track.told(estimate(20_000), line.now, CEILING, CEILING);
        assert_eq!(track.limit(line.now), None);

        // A queue that stays is.
        let full = Path { queued: Duration::from_millis(400), ..estimate(2_000) };
        let at = |millis| line.now + Duration::from_millis(millis);
        let cuts = [0, 100, 250].map(|millis| track.told(full, at(millis), CEILING, CEILING));
        assert_eq!(cuts, [false, false, true]);
        assert_eq!(track.limit(at(250)), Some(Bitrate::from_kbps(1_800)), "it knows better");
        assert!(track.strained(at(300)));
    }
}
