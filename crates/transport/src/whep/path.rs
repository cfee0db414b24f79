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

/// The least time between two reports to the session while something waits.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A path that carries less than this part of what was just sent has collapsed: what is on its way and
/// what would have to be sent again is more than it carries in the time that anyone waits.
const COLLAPSE: (u64, u64) = (1, 2);

/// What is believed of a path that collapsed is not believed to have collapsed again before this.
const COLLAPSE_AGAIN: Duration = Duration::from_secs(3);

/// What was held back this recently is still wanted.
const RECENTLY: Duration = Duration::from_millis(500);

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
    desired: u64,
    media: Option<Instant>,
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
            desired: 0,
            media: None,
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

    /// Takes the engine's estimate. Returns whether the path has collapsed.
    pub(super) fn estimated(&mut self, estimate: u64, now: Instant) -> bool {
        if estimate < self.estimate / 20 * 19 {
            self.fell = Some(now);
        }
        self.estimate = estimate;
        let (part, of) = COLLAPSE;
        let again = |at| now.saturating_duration_since(at) >= COLLAPSE_AGAIN;
        let busy = self.media.is_some_and(|at| now.saturating_duration_since(at) < IDLE_AFTER);
        let collapsed = !self.open
            && busy
            && estimate < self.peak / of * part
            && self.collapsed.is_none_or(again);
        if collapsed {
            self.collapsed = Some(now);
            // From here on that much is a lot. What is looked for stays: the path may come back.
            self.peak = estimate;
        }
        collapsed
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
            (*began, *sent) = (now, 0);
        }
        *sent += bytes as u64;
    }

    /// Whether no further frame is to be taken while `queue` waits to leave.
    pub(super) fn is_full(&self, queue: Queue) -> bool {
        !self.open && (self.lasts(queue.bytes) > AHEAD || queue.age > AHEAD)
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
        let holding = self
            .held
            .filter(|&(_, last)| now.saturating_duration_since(last) < RECENTLY)
            .map(|(since, _)| now.saturating_duration_since(since));
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
        let queued = self.lasts(queue.bytes).max(queue.age);
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

    #[test]
    fn a_path_is_full_when_what_waits_takes_long_to_leave() {
        let start = now();
        let mut path = Path::new(start);
        path.estimated(1_000_000, start);
        // 50 ms of 1 Mbit/s are 6,250 bytes.
        let queue = |bytes, age| Queue { bytes, age: MS(age) };
        assert!(!path.is_full(queue(6_250, 50)));
        assert!(path.is_full(queue(6_251, 0)));
        path.estimated(10_000_000, start);
        assert!(!path.is_full(queue(6_251, 0)));
        assert!(path.is_full(queue(6_251, 51)));
    }

    #[test]
    fn a_viewer_is_cut_only_where_a_keyframe_is_the_smaller_answer() {
        let start = now();
        let mut path = Path::new(start);
        path.estimated(1_000_000, start);
        path.sent(60_000, true, start);
        assert!(path.is_behind(10, 80_000));
        assert!(!path.is_behind(10, 50_000), "a keyframe would take longer");
        assert!(!path.is_behind(2, 80_000), "nobody makes frames it cannot take");
        path.estimated(20_000_000, start);
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
            if path.estimated(estimate, now) {
                collapsed.push(step);
            }
        }
        assert_eq!(collapsed, [30]);
        // A picture that hardly moves loses nothing by an estimate that falls.
        let mut still = Path::new(start);
        still.sent(1_000, false, start);
        still.sent(1_000, false, start + MS(1_500));
        assert!(!still.estimated(300_000, start + MS(1_600)));
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
        path.estimated(1_000_000, start);
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
            path.estimated(3_000_000 - 160_000 * step.min(15), now);
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
        path.estimated(1_000_000, start);
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
        assert!(!path.is_full(queue) && !path.is_behind(60, 1 << 20));
        assert_eq!(path.report(queue, start), None);
        assert_eq!(path.advise(queue, start), Advice { desired: Some(0), restart: None });
    }
}
