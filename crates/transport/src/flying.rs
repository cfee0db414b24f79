//! The frames on their way to one viewer, and whether its path takes another.
//!
//! Whoever carries them tells when one is begun and when it has arrived, and knows how fast the path is: by these
//! arrivals where they come in order ([`Pace`]). This says when the path will be through with what it has. A further
//! frame is due when it finds the path just free: sooner it would only be old when it came, and what it shows is
//! not made yet; later the path would stand idle.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::viewer::{Arrived, Room};

/// How much longer than usual a frame may be on its way before no further one is sent, in intervals of frames.
const PATIENCE: (u32, u32) = (3, 2);

/// The same where frames are known to take longer than that.
const LATE: (u32, u32) = (1, 2);

/// An arrival that took longer tells how fast the path is. A shorter one tells how fast it is at least: the viewer's
/// machine, and the clocks here and there, have grains of their own.
const TELLING: Duration = Duration::from_millis(20);

/// The frames that have not arrived, oldest first. How many there are at most is for whoever begins them to say.
#[derive(Debug, Default)]
pub(crate) struct Flying {
    frames: VecDeque<Frame>,
    /// When the last one arrived.
    arrived_at: Option<Instant>,
}

/// How fast a path is by the frames that arrive on it.
///
/// Only where one that is held up holds up those behind it: elsewhere a frame also takes longer because a packet
/// of it was lost, and the path is as fast as before.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Bytes a second, by the last frame that told, and the one before. The lower counts: a path may carry more for
    /// a moment, after a pause.
    rates: Option<[f64; 2]>,
}

impl Pace {
    pub(crate) fn learn(&mut self, arrived: Arrived) {
        let Arrived { bytes, took, .. } = arrived;
        let rate = bytes as f64 / took.as_secs_f64().max(f64::EPSILON);
        self.rates = match self.rates {
            Some(known) if took < TELLING => Some(known.map(|known| known.max(rate))),
            known => Some([rate, known.map_or(rate, |[last, _]| last)]),
        };
    }

    /// Bytes a second.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rates.map(|[last, before]| last.min(before))
    }
}

#[derive(Debug)]
struct Frame {
    number: u64,
    bytes: usize,
    began: Instant,
}

impl Flying {
    /// A frame is begun. Numbers rise.
    pub(crate) fn begin(&mut self, number: u64, bytes: usize, began: Instant) {
        self.frames.push_back(Frame { number, bytes, began });
    }

    /// A frame is there; one that finds the path free `usual`ly takes that long. `None` for one that is not known.
    pub(crate) fn arrive(&mut self, number: u64, usual: Duration, now: Instant) -> Option<Arrived> {
        let Frame { bytes, began, .. } = self.forget(number)?;
        let waited = now.saturating_duration_since(began).saturating_sub(usual);
        let before = self.arrived_at.replace(now);
        let took = before.map_or(waited, |at| waited.min(now.saturating_duration_since(at)));
        Some(Arrived { bytes, waited, took })
    }

    /// When a frame was begun.
    pub(crate) fn began(&self, number: u64) -> Option<Instant> {
        self.frames.iter().find(|frame| frame.number == number).map(|frame| frame.began)
    }

    fn forget(&mut self, number: u64) -> Option<Frame> {
        let at = self.frames.iter().position(|frame| frame.number == number)?;
        self.frames.remove(at)
    }

    /// A frame will not arrive, or nobody will say so.
    pub(crate) fn lose(&mut self, number: u64) {
        self.forget(number);
    }

    /// Those up to `number` will not be heard of by themselves.
    pub(crate) fn lose_before(&mut self, number: u64) {
        self.frames.retain(|frame| frame.number >= number);
    }

    /// The oldest gives way.
    pub(crate) fn lose_oldest(&mut self) {
        self.frames.pop_front();
    }

    /// None of them matters any more.
    pub(crate) fn clear(&mut self) {
        self.frames.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether a path of `rate` bytes a second, as far as that is known, takes another frame, when one comes every
    /// `interval` and one that finds the path free takes `usual`.
    pub(crate) fn room(
        &self,
        rate: Option<f64>,
        usual: Duration,
        interval: Duration,
        now: Instant,
    ) -> Room {
        let part = |(times, of): (u32, u32)| interval * times / of;
        let Some(oldest) = self.frames.front() else { return Room::Takes(Duration::MAX) };
        let patience = part(PATIENCE).max(takes(oldest, rate) + part(LATE));
        let left = (oldest.began + usual + patience).saturating_duration_since(now);
        if left.is_zero() {
            return Room::Waits(None);
        }
        let ahead = self
            .through(rate, usual)
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now + usual));
        if ahead.is_zero() { Room::Takes(left) } else { Room::Waits(Some(ahead.min(left))) }
    }

    /// When all of them will have arrived.
    fn through(&self, rate: Option<f64>, usual: Duration) -> Option<Instant> {
        self.frames.iter().fold(self.arrived_at, |free, frame| {
            let could = frame.began + usual;
            Some(free.map_or(could, |free| free.max(could)) + takes(frame, rate))
        })
    }
}

/// How long a path of `rate` bytes a second is at a frame.
fn takes(frame: &Frame, rate: Option<f64>) -> Duration {
    // An arrival that a viewer made up may leave any rate here, and so any time.
    let time = rate.map_or(0.0, |rate| frame.bytes as f64 / rate);
    Duration::try_from_secs_f64(time).unwrap_or(Duration::MAX).min(LONGEST)
}

/// No frame is expected to take longer: by then it is late whatever the path is like.
const LONGEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const INTERVAL: Duration = Duration::from_millis(32);

    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_frame_that_takes_longer_than_usual_holds_the_next_one_back() {
        let (mut flying, start) = (Flying::default(), origin());
        assert_eq!(flying.room(None, MILLI, INTERVAL, start), Room::Takes(Duration::MAX));
        flying.begin(0, 1_000, start);
        let room = |flying: &Flying, millis| {
            flying.room(None, MILLI * 10, INTERVAL, start + MILLI * millis)
        };
        assert_eq!(room(&flying, 50), Room::Takes(MILLI * 8));
        assert_eq!(room(&flying, 58), Room::Waits(None));
        flying.arrive(0, MILLI * 10, start + MILLI * 300).unwrap();
        assert_eq!(room(&flying, 300), Room::Takes(Duration::MAX));
    }

    #[test]
    fn on_a_narrow_path_the_next_frame_is_due_when_it_finds_it_just_free() {
        let (mut flying, start, usual) = (Flying::default(), origin(), MILLI * 40);
        flying.begin(0, 20_000, start);
        let arrived = flying.arrive(0, usual, start + MILLI * 200).unwrap();
        let mut pace = Pace::default();
        pace.learn(arrived);
        let rate = pace.rate();
        assert_eq!((arrived.waited, arrived.took), (MILLI * 160, MILLI * 160));
        let start = start + MILLI * 200;
        flying.begin(1, 20_000, start);
        // It will be there after 200 ms; what is sent 40 ms before that comes right behind it.
        let room =
            |flying: &Flying, millis| flying.room(rate, usual, INTERVAL, start + MILLI * millis);
        assert_eq!(room(&flying, 10), Room::Waits(Some(MILLI * 150)));
        assert!(matches!(room(&flying, 161), Room::Takes(_)), "{:?}", room(&flying, 161));
        flying.begin(2, 10_000, start + MILLI * 161);
        assert!(matches!(room(&flying, 162), Room::Waits(Some(_))));
        // The first of them is overdue.
        assert_eq!(room(&flying, 220), Room::Waits(None));
        flying.arrive(1, usual, start + MILLI * 221).unwrap();
        assert_eq!(flying.arrive(2, usual, start + MILLI * 301).unwrap().took, MILLI * 80);
        assert!(flying.is_empty());
    }

    #[test]
    fn arrivals_that_cannot_be_are_no_reason_to_wait_for_ever() {
        let (mut flying, mut pace, start) = (Flying::default(), Pace::default(), origin());
        // Before it was begun, at once, after an hour, and without a byte.
        let made_up =
            [(0, 20_000, 0), (50, 20_000, 50), (60, 1, 3_600_000), (3_600_001, 0, 3_700_000)];
        for (number, (began, bytes, arrived)) in made_up.into_iter().enumerate() {
            let number = number as u64;
            flying.begin(number, bytes, start + MILLI * began);
            pace.learn(flying.arrive(number, MILLI, start + MILLI * arrived).unwrap());
            assert!(flying.arrive(number, MILLI, start).is_none(), "a second time");
        }
        let now = start + MILLI * 3_700_000;
        flying.begin(9, 20_000, now);
        let Room::Waits(Some(wait)) = flying.room(pace.rate(), MILLI, INTERVAL, now) else {
            panic!()
        };
        assert!(wait <= LONGEST + INTERVAL, "{wait:?}");
    }

    #[test]
    fn a_path_that_is_fast_again_is_known_by_the_first_frame() {
        let (mut flying, mut now, usual) = (Flying::default(), origin(), MILLI);
        let mut pace = Pace::default();
        for (number, takes) in [160, 160, 5].into_iter().enumerate() {
            flying.begin(number as u64, 20_000, now);
            now += usual + MILLI * takes;
            pace.learn(flying.arrive(number as u64, usual, now).unwrap());
        }
        flying.begin(3, 20_000, now);
        // As long as the one before took, and not as those before that.
        assert_eq!(flying.room(pace.rate(), usual, INTERVAL, now), Room::Waits(Some(MILLI * 5)));
        let room = flying.room(pace.rate(), usual, INTERVAL, now + MILLI * 5);
        assert!(matches!(room, Room::Takes(_)), "{room:?}");
    }
}
