//! Which frames have arrived at a viewer, told from the answers to pings.
//!
//! A socket takes more than its path does: what it took waits in buffers here and in the network, where
//! nobody can look. But whatever a viewer is sent comes in order, so the answer to a ping that goes out
//! right behind a frame says that all of that frame is there. When it was to be, and when the next one is
//! due, `flying` knows.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::flying::{Flying, Pace};
use crate::viewer::{Arrived, Room};

/// Frames on their way at one time. With more than that the path is as long as no path is; then the
/// oldest is forgotten, and the next answer says that it has arrived.
const MAX_FLYING: usize = 64;

/// How much the quickest arrival is forgotten with time: a viewer that changes to a longer way is not
/// taken for a slow one for ever.
const FORGET: f64 = 0.01;

/// How old what is known of the way may become before it is asked for again.
const ASK_AFTER: Duration = Duration::from_millis(500);

/// What the payload of a ping that asks for the way begins with.
const ASKS: u8 = b'w';

/// The frames on their way to one viewer.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    number: u32,
    flying: Flying,
    pace: Pace,
    /// Whether it answers pings at all. One that does not is not waited for.
    answers: bool,
    /// How long the quickest frame took, and when that was.
    quickest: Option<(Duration, Instant)>,
    /// How long an answer took with nothing before it.
    way: Option<Duration>,
    /// The number of the question for the way that was sent last, and when that was.
    asked: Option<(u32, Instant)>,
    /// Whether that is still to be answered. Only the first answer tells how long the way is.
    asking: bool,
}

impl Echo {
    /// Notes a frame of `bytes` that was begun at `began` and is written now; returns the ping to send
    /// behind it.
    pub(crate) fn sent(&mut self, bytes: usize, began: Instant) -> Bytes {
        self.number = self.number.wrapping_add(1);
        if self.flying.len() >= MAX_FLYING {
            self.flying.lose_oldest();
        }
        self.flying.begin(self.number.into(), bytes, began);
        Bytes::copy_from_slice(&self.number.to_be_bytes())
    }

    /// A ping to send before the next frame, if it is time to learn how long the way is when nothing waits on
    /// it. Frames alone do not tell: on a narrow path the quickest is as slow as it is large.
    pub(crate) fn ask(&mut self, now: Instant) -> Option<Bytes> {
        let lately = self.asked.is_some_and(|(_, at)| now < at + ASK_AFTER);
        if lately || !self.flying.is_empty() {
            return None;
        }
        let number = self.asked.map_or(0, |(number, _)| number.wrapping_add(1));
        self.asked = Some((number, now));
        self.asking = true;
        Some([ASKS].into_iter().chain(number.to_be_bytes()).collect())
    }

    /// Takes an answer; returns what has arrived by it.
    pub(crate) fn pong(&mut self, payload: &[u8], now: Instant) -> Option<Arrived> {
        if let Some((&ASKS, number)) = payload.split_first()
            && let Ok(number) = number.try_into()
        {
            let asked = self.asked.filter(|(asked, _)| *asked == u32::from_be_bytes(number));
            if let Some((_, at)) = asked
                && std::mem::take(&mut self.asking)
            {
                self.way = Some(now.saturating_duration_since(at));
            }
            return None;
        }
        let number = u64::from(u32::from_be_bytes(payload.try_into().ok()?));
        let began = self.flying.began(number)?;
        self.answers = true;
        self.flying.lose_before(number);
        let took = now.saturating_duration_since(began);
        let quickest = self.usual(now).map_or(took, |usual| usual.min(took));
        self.quickest = Some((quickest, now));
        self.way = self.way.map(|way| way.min(took));
        let arrived = self.flying.arrive(number, quickest, now)?;
        self.pace.learn(arrived);
        Some(arrived)
    }

    /// Whether the path takes another frame, when one comes every `interval`.
    pub(crate) fn room(&self, interval: Duration, now: Instant) -> Room {
        if !self.answers {
            return Room::Takes(Duration::MAX);
        }
        let usual = self.usual(now).unwrap_or_default();
        self.flying.room(self.pace.rate(), usual, interval, now)
    }

    fn usual(&self, now: Instant) -> Option<Duration> {
        // Nothing of it is forgotten: where the way has become longer, frames wait for each other until
        // there is none on it, and it is asked for again.
        if self.way.is_some() {
            return self.way;
        }
        let (quickest, at) = self.quickest?;
        Some(quickest + now.saturating_duration_since(at).mul_f64(FORGET))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const INTERVAL: Duration = Duration::from_millis(30);

    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_frame_that_takes_longer_than_usual_holds_the_next_one_back_until_it_is_there() {
        let (mut echo, start) = (Echo::default(), origin());
        let first = echo.sent(1_000, start);
        assert_eq!(
            echo.room(INTERVAL, start + MILLI * 900),
            Room::Takes(Duration::MAX),
            "nothing is known"
        );
        let arrived = Arrived { bytes: 1_000, waited: Duration::ZERO, took: Duration::ZERO };
        assert_eq!(echo.pong(&first, start + MILLI * 20), Some(arrived));
        let at = start + MILLI * 100;
        let second = echo.sent(1_000, at);
        assert!(
            matches!(echo.room(INTERVAL, at + MILLI * 60), Room::Takes(left) if left < MILLI * 10)
        );
        assert_eq!(echo.room(INTERVAL, at + MILLI * 70), Room::Waits(None));
        let waited = echo.pong(&second, at + MILLI * 300).unwrap().waited;
        // Less what was forgotten meanwhile.
        assert!((MILLI * 276..=MILLI * 280).contains(&waited), "{waited:?}");
        assert_eq!(echo.room(INTERVAL, at + MILLI * 300), Room::Takes(Duration::MAX));
    }

    #[test]
    fn an_answer_speaks_for_all_frames_before_its_own() {
        let (mut echo, start) = (Echo::default(), origin());
        let first = echo.sent(1_000, start);
        echo.pong(&first, start + MILLI);
        let pings: Vec<Bytes> = (1..=3).map(|at| echo.sent(1_000, start + MILLI * at)).collect();
        echo.pong(&pings[1], start + MILLI * 900);
        assert_eq!(echo.flying.len(), 1);
        for other in [&pings[0][..], b"", b"keep-alive", &[0; 4]] {
            assert_eq!(echo.pong(other, start + MILLI * 901), None);
        }
        assert_eq!(echo.flying.len(), 1, "an answer that was not waited for says nothing");
    }

    #[test]
    fn who_answers_no_pings_is_not_waited_for_and_costs_no_memory() {
        let (mut echo, start) = (Echo::default(), origin());
        for at in 0..1_000 {
            echo.sent(1_000, start + INTERVAL * at);
        }
        assert_eq!(echo.flying.len(), MAX_FLYING);
        assert_eq!(echo.room(INTERVAL, start + INTERVAL * 1_000), Room::Takes(Duration::MAX));
    }

    #[test]
    fn on_a_narrow_path_the_way_is_not_taken_for_as_long_as_frames_are() {
        let (mut echo, mut now) = (Echo::default(), origin());
        let (way, takes) = (MILLI * 4, MILLI * 160);
        for round in 0..200 {
            let asked = echo.ask(now);
            let ping = echo.sent(20_000, now);
            if let Some(asked) = asked {
                assert_eq!(echo.pong(&asked, now + way), None);
            }
            if round > 0 {
                let room = echo.room(INTERVAL, now + takes - INTERVAL);
                assert!(matches!(room, Room::Waits(_)), "{room:?} after {round}");
            }
            now += way + takes;
            let arrived = echo.pong(&ping, now).unwrap();
            // Less what was forgotten since it was asked for.
            assert!(round == 0 || arrived.waited > takes - MILLI * 8, "{arrived:?} after {round}");
        }
    }

    #[test]
    fn an_answer_that_comes_again_makes_the_way_no_longer() {
        let (mut echo, start) = (Echo::default(), origin());
        let asked = echo.ask(start).unwrap();
        echo.pong(&asked, start + MILLI * 4);
        for again in 1..10 {
            echo.pong(&asked, start + MILLI * 900 * again);
        }
        let ping = echo.sent(1_000, start);
        let arrived = echo.pong(&ping, start + MILLI * 304).unwrap();
        assert_eq!(arrived.waited, MILLI * 300);
    }

    #[test]
    fn a_frame_behind_another_tells_how_long_it_took_itself() {
        let (mut echo, start) = (Echo::default(), origin());
        let asked = echo.ask(start).unwrap();
        assert_eq!(echo.ask(start), None, "once is enough");
        let first = echo.sent(28_000, start);
        let second = echo.sent(28_000, start + MILLI * 40);
        echo.pong(&asked, start + MILLI);
        echo.pong(&first, start + MILLI * 225);
        let Arrived { waited, took, .. } = echo.pong(&second, start + MILLI * 449).unwrap();
        assert!(waited > MILLI * 390, "{waited:?}");
        assert_eq!(took, MILLI * 224);
        for other in [&asked[..], b"w", b"wwwww"] {
            assert_eq!(echo.pong(other, start + MILLI * 450), None);
        }
    }

    #[test]
    fn a_longer_way_becomes_usual() {
        let (mut echo, start) = (Echo::default(), origin());
        let first = echo.sent(1_000, start);
        echo.pong(&first, start + MILLI);
        let at = |step: u32| start + MILLI * 300 * step;
        for step in 1..200 {
            let ping = echo.sent(1_000, at(step));
            echo.pong(&ping, at(step) + MILLI * 200);
        }
        let ping = echo.sent(1_000, at(200));
        assert!(
            matches!(echo.room(INTERVAL, at(200) + MILLI * 210), Room::Takes(_)),
            "a minute later"
        );
        echo.pong(&ping, at(200) + MILLI * 220);
    }
}
