//! What the viewers got, counted as it comes.
//!
//! All sums are bounded: a distribution has a fixed number of buckets however many values it is made of, and
//! of each second only its summary is kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

/// Buckets for each power of two: values are known to about 1.5 %.
const FINE: usize = 64;

/// Powers of two from a microsecond to more than an hour.
const POWERS: usize = 32;

/// How much longer than usual it takes until a picture counts as one that did not come when it was due: half as long
/// again. Less is how a machine's timers and schedulers are.
const OVERDUE: (u32, u32) = (3, 2);

/// Frames of the reference that are remembered: two seconds of 120 a second.
const REFERENCE: usize = 256;

/// A distribution of durations.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    buckets: Box<[u32]>,
    count: u64,
    most: Duration,
}

impl Default for Spread {
    fn default() -> Self {
        Self { buckets: vec![0; FINE * POWERS].into(), count: 0, most: Duration::ZERO }
    }
}

impl Spread {
    pub(crate) fn add(&mut self, value: Duration) {
        self.add_some(value, 1);
    }

    fn add_some(&mut self, value: Duration, times: u32) {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX).max(1);
        let power = micros.ilog2() as usize;
        let within = ((u128::from(micros) * FINE as u128) >> power) as usize - FINE;
        let place = (power * FINE + within).min(self.buckets.len() - 1);
        if let Some(bucket) = self.buckets.get_mut(place) {
            *bucket = bucket.saturating_add(times);
        }
        self.count += u64::from(times);
        self.most = self.most.max(value);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (into, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *into = into.saturating_add(*from);
        }
        self.count += other.count;
        self.most = self.most.max(other.most);
    }

    /// The value that `share` of all are not above.
    pub(crate) fn at(&self, share: f64) -> Duration {
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (place, &bucket) in self.buckets.iter().enumerate() {
            seen += u64::from(bucket);
            if seen >= wanted {
                return self.end(place);
            }
        }
        self.most
    }

    /// The upper end of a bucket, so that nothing looks better than it is.
    fn end(&self, place: usize) -> Duration {
        // The last one has none.
        if place + 1 >= self.buckets.len() {
            return self.most;
        }
        let (power, within) = (place / FINE, place % FINE);
        let micros = ((FINE + within + 1) as u128 * (1_u128 << power)) / FINE as u128;
        Duration::from_micros(micros as u64).min(self.most)
    }

    /// Of the intervals between pictures: how long after one was due that did not come the next one was shown.
    ///
    /// One is due as long after the last as most take (the median), whichever transport carries it. What had to be
    /// left out at the sender counts as what was lost on the way: a viewer sees no difference.
    pub(crate) fn recovery(&self) -> Self {
        let due = self.at(0.5);
        let mut recovery = Self::default();
        for (place, &bucket) in self.buckets.iter().enumerate().filter(|(_, bucket)| **bucket > 0) {
            let interval = self.end(place);
            if interval > due * OVERDUE.0 / OVERDUE.1 {
                recovery.add_some(interval - due, bucket);
            }
        }
        recovery
    }

    pub(crate) fn summary(&self) -> Option<Summary> {
        (self.count > 0).then(|| Summary {
            n: self.count,
            p50: ms(self.at(0.5)),
            p95: ms(self.at(0.95)),
            max: ms(self.most),
        })
    }
}

/// A distribution in a few numbers, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Summary {
    pub(crate) n: u64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) max: f64,
}

/// One second of all viewers together.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Second {
    pub(crate) second: usize,
    /// Viewers that had a picture at its end.
    pub(crate) watching: usize,
    pub(crate) frames: u64,
    pub(crate) missing: u64,
    pub(crate) kbit: u64,
    pub(crate) latency_ms: Option<Summary>,
}

/// What is counted in one go: a second, or the time that is measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) frames: u64,
    pub(crate) missing: u64,
    pub(crate) bytes: u64,
    pub(crate) intervals: Spread,
    pub(crate) latencies: Spread,
    /// The first and the last frame of the stream that anyone saw, by their numbers.
    pub(crate) span: Option<(u64, u64)>,
}

impl Counts {
    fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.missing += other.missing;
        self.bytes += other.bytes;
        self.intervals.merge(&other.intervals);
        self.latencies.merge(&other.latencies);
        self.see(other.span);
    }

    fn see(&mut self, span: Option<(u64, u64)>) {
        let Some((first, last)) = span else { return };
        let (from, to) = self.span.unwrap_or((first, last));
        self.span = Some((from.min(first), to.max(last)));
    }
}

/// A frame at one viewer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its number in the stream, where that is known.
    pub(crate) sequence: Option<u64>,
    pub(crate) bytes: usize,
    /// Frames before it that did not come.
    pub(crate) missing: u64,
    /// Since the one before it.
    pub(crate) interval: Option<Duration>,
}

/// Shared by all viewers.
#[derive(Debug)]
pub(crate) struct Tally {
    inner: Mutex<Inner>,
    /// How many seconds have ended.
    ended: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Inner {
    watching: usize,
    /// Whether what comes is part of the result.
    measuring: bool,
    now: Counts,
    measured: Counts,
    seconds: Vec<Second>,
    reference: Reference,
    first_frames: Spread,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Self { inner: Mutex::default(), ended: watch::Sender::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A viewer has its first picture.
    pub(crate) fn joined(&self, after: Duration) {
        let mut inner = self.lock();
        inner.watching += 1;
        inner.first_frames.add(after);
    }

    /// A viewer that had a picture is gone.
    pub(crate) fn left(&self) {
        self.lock().watching -= 1;
    }

    pub(crate) fn watching(&self) -> usize {
        self.lock().watching
    }

    pub(crate) fn first_frames(&self) -> Spread {
        self.lock().first_frames.clone()
    }

    pub(crate) fn seen(&self, seen: Seen, latency: Option<Duration>) {
        let mut inner = self.lock();
        let now = &mut inner.now;
        now.frames += 1;
        now.missing += seen.missing;
        now.bytes += seen.bytes as u64;
        if let Some(interval) = seen.interval {
            now.intervals.add(interval);
        }
        if let Some(latency) = latency {
            now.latencies.add(latency);
        }
        now.see(seen.sequence.map(|number| (number, number)));
    }

    /// What the latency of a frame turned out to be.
    pub(crate) fn took(&self, latency: Duration) {
        self.lock().now.latencies.add(latency);
    }

    /// Ends a second.
    pub(crate) fn tick(&self) {
        let mut inner = self.lock();
        let counts = std::mem::take(&mut inner.now);
        let second = Second {
            second: inner.seconds.len(),
            watching: inner.watching,
            frames: counts.frames,
            missing: counts.missing,
            kbit: counts.bytes * 8 / 1000,
            latency_ms: counts.latencies.summary(),
        };
        inner.seconds.push(second);
        if inner.measuring {
            inner.measured.merge(&counts);
        }
        let ended = inner.seconds.len();
        drop(inner);
        self.ended.send_replace(ended);
    }

    /// How many seconds have ended, and when another does.
    pub(crate) fn ended(&self) -> watch::Receiver<usize> {
        self.ended.subscribe()
    }

    /// From here on it counts; call it between two seconds.
    pub(crate) fn measure(&self) {
        self.lock().measuring = true;
    }

    pub(crate) fn finish(&self) -> (Counts, Vec<Second>) {
        let mut inner = self.lock();
        inner.measuring = false;
        (std::mem::take(&mut inner.measured), std::mem::take(&mut inner.seconds))
    }

    /// The stream as it left: one frame, by its end and when it was captured.
    pub(crate) fn refer(&self, tail: Tail, sequence: u64, captured: Duration) {
        let mut inner = self.lock();
        inner.reference.add(tail, captured);
        inner.now.see(Some((sequence, sequence)));
    }

    /// When the last frame with this end was captured, as far as it is known; see [`Matches`].
    pub(crate) fn captured(&self, tail: Tail) -> Option<Duration> {
        self.lock().reference.known.get(&tail).copied()
    }
}

/// The last bytes of an encoded frame.
pub(crate) type Tail = [u8; 16];

/// When the last frames of the stream were captured, by their ends. Of those that end alike, the newest.
#[derive(Debug, Default)]
struct Reference {
    known: HashMap<Tail, Duration>,
    order: VecDeque<(Tail, Duration)>,
}

impl Reference {
    fn add(&mut self, tail: Tail, captured: Duration) {
        self.known.insert(tail, captured);
        self.order.push_back((tail, captured));
        if self.order.len() > REFERENCE
            && let Some((oldest, captured)) = self.order.pop_front()
            && self.known.get(&oldest) == Some(&captured)
        {
            self.known.remove(&oldest);
        }
    }
}

/// Tells a frame from an earlier one that ended alike, by its RTP timestamp.
///
/// An earlier one makes the distance between the two clocks look smaller than it is, and nothing makes it look
/// larger: so the largest is right, and what is far from it is no match.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Matches {
    /// The last timestamp, counted on past its wraps.
    ticks: Option<i64>,
    distance: Option<i64>,
    seen: u32,
}

impl Matches {
    /// The timestamp in microseconds, without its wraps.
    pub(crate) fn unwrap(&mut self, timestamp: u32) -> i64 {
        let ticks = match self.ticks {
            // The difference of two timestamps is signed (RFC 3550 §5.1).
            Some(last) => last + i64::from(timestamp.wrapping_sub(last as u32).cast_signed()),
            None => i64::from(timestamp),
        };
        self.ticks = Some(ticks);
        ticks * 100 / 9
    }

    /// Whether the frame stamped with `micros` can be the one captured at `captured`.
    pub(crate) fn confirm(&mut self, micros: i64, captured: Duration) -> bool {
        let distance = i64::try_from(captured.as_micros()).unwrap_or(i64::MAX) - micros;
        let largest = self.distance.map_or(distance, |largest| largest.max(distance));
        self.distance = Some(largest);
        self.seen += 1;
        self.seen > LEARNING && largest - distance < ALIKE
    }
}

/// Matches before any is believed.
const LEARNING: u32 = 8;

/// Microseconds by which the server's delay may change; frames that end alike are further apart.
const ALIKE: i64 = 200_000;

/// The clock of this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) origin: Instant,
    /// What the server's media clock shows more than this one, in microseconds.
    pub(crate) ahead: i64,
    /// How exactly that is known.
    pub(crate) within: Duration,
}

impl Clock {
    /// How long ago `captured` was, by the server's clock.
    pub(crate) fn since(&self, captured: Duration, at: Instant) -> Option<Duration> {
        let here = i64::try_from(at.duration_since(self.origin).as_micros()).ok()?;
        let micros = here + self.ahead - i64::try_from(captured.as_micros()).ok()?;
        u64::try_from(micros).ok().map(Duration::from_micros)
    }
}

/// Milliseconds with two places.
pub(crate) fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 100_000.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_knows_its_values_to_two_percent() {
        let mut spread = Spread::default();
        for micros in 1..=100_000 {
            spread.add(Duration::from_micros(micros));
        }
        for (share, exact) in [(0.5, 0.05), (0.95, 0.095), (1.0, 0.1)] {
            let off = spread.at(share).as_secs_f64() / exact;
            assert!((0.98..1.02).contains(&off), "{share}: {off}");
        }
        spread.add(Duration::ZERO);
        spread.add(Duration::from_secs(100_000));
        assert_eq!(spread.at(1.0), Duration::from_secs(100_000));
        assert!(Spread::default().summary().is_none());
    }

    #[test]
    fn recovery_is_from_when_a_picture_was_due_to_when_one_is_shown() {
        let spread = |intervals: &[u64]| {
            let mut spread = Spread::default();
            intervals.iter().for_each(|&millis| spread.add(Duration::from_millis(millis)));
            spread.recovery()
        };
        let near = |value: Duration, millis: f64| (ms(value) / millis - 1.0).abs() < 0.05;
        // As even as timers are, and what waited behind a late one comes at once after it: no gap of its own.
        assert!(spread(&[33, 34, 32, 33, 45, 21, 33]).summary().is_none());
        assert!(spread(&[]).summary().is_none());
        let gaps = spread(&[33, 33, 83, 1, 16, 33, 33, 33, 103, 1, 1, 33, 33, 33, 33, 533, 33, 33]);
        assert_eq!(gaps.count, 3);
        assert!(near(gaps.at(0.5), 70.0) && near(gaps.most, 500.0), "{:?}", gaps.summary());
        assert!(near(gaps.at(0.1), 50.0), "{:?}", gaps.summary());
        // Pictures that were never made are missed as those that were lost.
        assert_eq!(spread(&[33, 67, 33, 67, 33, 67, 33]).count, 3);
    }

    #[test]
    fn only_what_is_measured_is_in_the_result_and_every_second_has_its_own() {
        let tally = Tally::new();
        let seen =
            |sequence| Seen { sequence: Some(sequence), bytes: 125, missing: 1, interval: None };
        tally.joined(Duration::from_millis(5));
        tally.seen(seen(1), None);
        tally.tick();
        tally.measure();
        tally.seen(seen(3), Some(Duration::from_millis(2)));
        tally.seen(seen(5), None);
        tally.tick();
        let (counts, seconds) = tally.finish();
        assert_eq!((counts.frames, counts.missing, counts.span), (2, 2, Some((3, 5))));
        let kbits: Vec<_> = seconds.iter().map(|second| (second.frames, second.kbit)).collect();
        assert_eq!(kbits, [(1, 1), (2, 2)]);
        assert_eq!(seconds[1].latency_ms.unwrap().n, 1);
    }

    #[test]
    fn of_frames_that_end_alike_the_newest_is_known_and_old_ones_are_forgotten() {
        let tally = Tally::new();
        let tail = |number: u16| {
            let mut tail = [0; 16];
            tail[..2].copy_from_slice(&number.to_be_bytes());
            tail
        };
        tally.refer(tail(1), 1, Duration::from_millis(1));
        tally.refer(tail(1), 2, Duration::from_millis(2));
        assert_eq!(tally.captured(tail(1)), Some(Duration::from_millis(2)));
        for number in 2..2_000 {
            tally.refer(tail(number), number.into(), Duration::from_millis(number.into()));
        }
        assert!(tally.lock().reference.known.len() <= REFERENCE);
        assert_eq!(tally.captured(tail(2)), None);
        assert_eq!(tally.captured(tail(1_999)), Some(Duration::from_millis(1_999)));
    }

    #[test]
    fn a_frame_is_not_taken_for_an_earlier_one_that_ended_alike() {
        let mut matches = Matches::default();
        let frame = |number: u64| Duration::from_millis(5_000 + number * 40);
        // The timestamps begin shortly before their wrap.
        let stamp = |number: u64| (u32::MAX - 9_000).wrapping_add(number as u32 * 3_600);
        for number in 0..20 {
            let micros = matches.unwrap(stamp(number));
            let believed = matches.confirm(micros, frame(number));
            assert_eq!(believed, number >= u64::from(LEARNING), "{number}");
        }
        let micros = matches.unwrap(stamp(100));
        assert!(!matches.confirm(micros, frame(50)));
        assert!(matches.confirm(micros, frame(100)));
    }
}
