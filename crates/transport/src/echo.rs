//! Which frames have arrived at a viewer, told from the answers to pings.
//!
//! A socket takes more than its path does: what it took waits in buffers here and in the network, where
//! nobody can look. But whatever a viewer is sent comes in order, so the answer to a ping that goes out
//! right behind a frame says that all of that frame is there. While frames take longer than they usually
//! do, no further one is sent: it would only be old when it came, and what it shows is not made yet.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::viewer::Arrived;

/// Frames on their way at one time. With more than that the path is as long as no path is; then the
/// oldest is forgotten, and the next answer says that it has arrived.
const MAX_FLYING: usize = 64;

/// How much the quickest arrival is forgotten with time: a viewer that changes to a longer way is not
/// taken for a slow one for ever.
const FORGET: f64 = 0.01;

/// How much longer than the quickest a frame may be on its way, in intervals of frames. As over QUIC.
const PATIENCE: (u32, u32) = (3, 2);

/// The frames on their way to one viewer.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    number: u32,
    /// Frames that have not arrived, as far as is known.
    flying: VecDeque<Flying>,
    /// Whether it answers pings at all. One that does not is not waited for.
    answers: bool,
    /// How long the quickest frame took, and when that was.
    quickest: Option<(Duration, Instant)>,
}

#[derive(Debug)]
struct Flying {
    number: u32,
    bytes: usize,
    began: Instant,
}

impl Echo {
    /// Notes a frame of `bytes` that was begun at `began` and is written now; returns the ping to send
    /// behind it.
    pub(crate) fn sent(&mut self, bytes: usize, began: Instant) -> Bytes {
        self.number = self.number.wrapping_add(1);
        if self.flying.len() >= MAX_FLYING {
            self.flying.pop_front();
        }
        self.flying.push_back(Flying { number: self.number, bytes, began });
        Bytes::copy_from_slice(&self.number.to_be_bytes())
    }

    /// Takes an answer; returns what has arrived by it.
    pub(crate) fn pong(&mut self, payload: &[u8], now: Instant) -> Option<Arrived> {
        let number = u32::from_be_bytes(payload.try_into().ok()?);
        let at = self.flying.iter().position(|flying| flying.number == number)?;
        self.answers = true;
        let Flying { bytes, began, .. } = self.flying.drain(..=at).next_back()?;
        let took = now.saturating_duration_since(began);
        let quickest = self.usual(now).map_or(took, |usual| usual.min(took));
        self.quickest = Some((quickest, now));
        Some(Arrived { bytes, waited: took - quickest })
    }

    /// For how long the path takes another frame, when one comes every `interval`; `None` while it
    /// takes none.
    pub(crate) fn room(&self, interval: Duration, now: Instant) -> Option<Duration> {
        let (Some(oldest), true) = (self.flying.front(), self.answers) else {
            return Some(Duration::MAX);
        };
        let (times, of) = PATIENCE;
        let usual = self.usual(now).unwrap_or_default();
        let left = (oldest.began + usual + interval * times / of).saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    fn usual(&self, now: Instant) -> Option<Duration> {
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
            Some(Duration::MAX),
            "nothing is known"
        );
        let arrived = Arrived { bytes: 1_000, waited: Duration::ZERO };
        assert_eq!(echo.pong(&first, start + MILLI * 20), Some(arrived));
        let at = start + MILLI * 100;
        let second = echo.sent(1_000, at);
        let left = echo.room(INTERVAL, at + MILLI * 60).unwrap();
        assert!(left < MILLI * 10, "{left:?}");
        assert_eq!(echo.room(INTERVAL, at + MILLI * 70), None);
        let waited = echo.pong(&second, at + MILLI * 300).unwrap().waited;
        // Less what was forgotten meanwhile.
        assert!((MILLI * 276..=MILLI * 280).contains(&waited), "{waited:?}");
        assert_eq!(echo.room(INTERVAL, at + MILLI * 300), Some(Duration::MAX));
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
        assert_eq!(echo.room(INTERVAL, start + INTERVAL * 1_000), Some(Duration::MAX));
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
        assert!(echo.room(INTERVAL, at(200) + MILLI * 210).is_some(), "a minute later");
        echo.pong(&ping, at(200) + MILLI * 220);
    }
}
