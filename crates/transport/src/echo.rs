//! How long what is sent now waits on the way, told from the round trip of pings.
//!
//! A socket takes more than its path does: what it took waits in buffers here and in the network, where
//! nobody can look. But whatever a viewer is sent comes in order, so a ping that goes out before a frame
//! comes back once all that is ahead of that frame is through. What its round trip takes beyond the
//! quickest one is that wait.

use std::time::{Duration, Instant};

use bytes::Bytes;

/// The least time between two pings. Six bytes and their answer ten times a second, while frames are
/// sent and no longer.
const EVERY: Duration = Duration::from_millis(100);

/// How much the quickest round trip is forgotten with time: a viewer that changes to a longer way is not
/// taken for one that waits for ever, and a wait of a minute is still one.
const FORGET: f64 = 0.001;

/// The pings of one viewer.
#[derive(Debug, Default)]
pub(crate) struct Echo {
    number: u16,
    /// When the ping that is on its way was sent.
    sent_at: Option<Instant>,
    last_sent: Option<Instant>,
    /// For how long we were busy writing a frame just now, and heard nothing.
    deaf: Duration,
    quickest: Option<(Duration, Instant)>,
}

impl Echo {
    /// The ping to send before the next frame, if it is time for one.
    pub(crate) fn ping(&mut self, now: Instant) -> Option<Bytes> {
        let early = self.last_sent.is_some_and(|at| now < at + EVERY);
        if early || self.sent_at.is_some() {
            return None;
        }
        self.number = self.number.wrapping_add(1);
        (self.sent_at, self.last_sent) = (Some(now), Some(now));
        self.deaf = Duration::ZERO;
        Some(Bytes::copy_from_slice(&self.number.to_be_bytes()))
    }

    /// Says for how long nothing was read, since a frame was being written. An answer that is read next
    /// may have come at any time meanwhile, but no sooner.
    pub(crate) fn deaf(&mut self, time: Duration) {
        self.deaf = time;
    }

    /// Takes an answer. Returns how long its ping waited at least, if it is the one that is expected.
    pub(crate) fn pong(&mut self, payload: &[u8], now: Instant) -> Option<Duration> {
        if payload != self.number.to_be_bytes() {
            return None;
        }
        let took = now.saturating_duration_since(self.sent_at.take()?);
        let quickest = self.quickest(now).map_or(took, |quickest| quickest.min(took));
        self.quickest = Some((quickest, now));
        Some((took - quickest).saturating_sub(self.deaf))
    }

    fn quickest(&self, now: Instant) -> Option<Duration> {
        let (quickest, at) = self.quickest?;
        Some(quickest + now.saturating_duration_since(at).mul_f64(FORGET))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn what_a_round_trip_takes_beyond_the_quickest_is_the_wait() {
        let (mut echo, start) = (Echo::default(), origin());
        let mut trip = |at: u32, takes: u32| {
            let sent = start + MILLI * at;
            let ping = echo.ping(sent).unwrap();
            echo.pong(&ping, sent + MILLI * takes).unwrap()
        };
        assert_eq!(trip(0, 30), Duration::ZERO);
        let wait = trip(100, 80);
        assert!((MILLI * 49..=MILLI * 50).contains(&wait), "{wait:?}");
        assert_eq!(trip(300, 20), Duration::ZERO, "quicker than ever");
    }

    #[test]
    fn one_ping_is_on_its_way_at_a_time() {
        let (mut echo, start) = (Echo::default(), origin());
        let first = echo.ping(start).unwrap();
        assert_eq!(echo.ping(start + MILLI * 500), None);
        echo.pong(&first, start + MILLI * 10).unwrap();
        assert_eq!(echo.ping(start + MILLI * 50), None, "too early");
        let second = echo.ping(start + MILLI * 200).unwrap();
        for other in [&first[..], b"", b"keep-alive"] {
            assert_eq!(echo.pong(other, start + MILLI * 600), None);
        }
        assert!(echo.pong(&second, start + MILLI * 600).is_some());
        assert_eq!(echo.pong(&second, start + MILLI * 600), None, "once");
    }

    #[test]
    fn an_answer_that_came_while_a_long_frame_was_written_tells_nothing() {
        let (mut echo, start) = (Echo::default(), origin());
        let ping = echo.ping(start).unwrap();
        echo.pong(&ping, start + MILLI * 10).unwrap();
        let ping = echo.ping(start + MILLI * 100).unwrap();
        echo.deaf(MILLI * 299);
        assert_eq!(echo.pong(&ping, start + MILLI * 400), Some(Duration::ZERO));
        let ping = echo.ping(start + MILLI * 500).unwrap();
        echo.deaf(MILLI * 50);
        assert!(echo.pong(&ping, start + MILLI * 800).unwrap() > MILLI * 230);
    }

    #[test]
    fn a_longer_way_becomes_usual_and_a_wait_of_a_minute_does_not() {
        let (mut echo, start) = (Echo::default(), origin());
        let mut waits = (0..3_000).map(|step: u32| {
            let sent = start + MILLI * 200 * step;
            let ping = echo.ping(sent).unwrap();
            let takes = if step == 0 { 20 } else { 320 };
            echo.pong(&ping, sent + MILLI * takes).unwrap()
        });
        assert!(waits.nth(300).unwrap() > MILLI * 200, "a minute");
        assert_eq!(waits.last(), Some(Duration::ZERO), "ten minutes");
    }
}
