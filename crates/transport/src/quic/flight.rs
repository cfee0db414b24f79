//! What is on its way on one connection, and how long the path will be at it.
//!
//! Told from acknowledgements, packet by packet, where congestion control sees them ([`Meter`]): a path that
//! has become narrow shows in the second of them, a round trip after its first packet, and long before a
//! frame is late as a whole. Whoever makes frames asks here before making another.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::frames::ACK_DELAY;

/// A path that has so much to do with what is on its way, beyond the time that takes anyway, is behind: twice
/// the time between two frames of a moving picture.
const BEHIND: Duration = Duration::from_millis(60);

/// A rate is told from acknowledgements between which the path was busy for so long, and for half of that without
/// the one before which it was busy for longest: it may only have been held up. Less may be a clock's grain.
const BUSY: Duration = Duration::from_millis(20);

/// More than a packet has.
const PACKET: u64 = 1_500;

/// How old acknowledgements may be that tell a rate, and how many are kept.
const RECENT: Duration = Duration::from_millis(150);
const KEPT: usize = 64;

/// The flight of one connection, shared by its congestion control and its frames.
#[derive(Debug, Default)]
pub(super) struct Flight {
    meter: Mutex<Meter>,
    /// Told when the path comes to be behind, and when it no longer is.
    changed: Notify,
}

impl Flight {
    pub(super) fn sent(&self, now: Instant, bytes: u64) {
        self.lock().sent(now, bytes);
    }

    pub(super) fn acked(&self, sent: Instant, bytes: u64) {
        self.lock().acked(sent, bytes);
    }

    pub(super) fn end_acks(&self, now: Instant, in_flight: u64) {
        let mut meter = self.lock();
        let before = meter.is_behind();
        meter.end_acks(now, in_flight);
        if meter.is_behind() != before {
            self.changed.notify_one();
        }
    }

    /// How long a packet and the answer to it take when nothing waits, as far as that is known.
    pub(super) fn way(&self) -> Option<Duration> {
        self.lock().way
    }

    pub(super) fn is_behind(&self) -> bool {
        self.lock().is_behind()
    }

    /// Bytes a second that go through, while the path is what holds them up.
    pub(super) fn rate(&self) -> Option<f64> {
        self.lock().rate()
    }

    /// The most bytes that may be on their way, while the path is what holds them up.
    pub(super) fn most(&self) -> Option<u64> {
        self.lock().most()
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pure: `now` is an argument.
#[derive(Debug, Default)]
struct Meter {
    way: Option<Duration>,
    in_flight: u64,
    /// The same when something was acknowledged last.
    after_ack: u64,
    /// When a packet was sent with nothing else on its way.
    alone: Option<Instant>,
    /// What has been acknowledged since the last [`Meter::end_acks`].
    batch: Option<Batch>,
    last: Option<Instant>,
    /// Of the last acknowledgements: when they came, for how long the path was busy with what they are for, and
    /// how much that was.
    acks: VecDeque<(Instant, Duration, u64)>,
    /// How long the path will be busy with what is on its way.
    ahead: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    /// When the last of its packets was sent.
    sent: Instant,
    bytes: u64,
    packets: u32,
    alone: bool,
}

impl Meter {
    fn sent(&mut self, now: Instant, bytes: u64) {
        if self.in_flight == 0 {
            self.alone = Some(now);
        }
        self.in_flight += bytes;
    }

    fn acked(&mut self, sent: Instant, bytes: u64) {
        let alone = self.alone == Some(sent);
        let batch = self.batch.get_or_insert(Batch { sent, bytes: 0, packets: 0, alone });
        batch.sent = batch.sent.max(sent);
        batch.bytes += bytes;
        batch.packets += 1;
        batch.alone |= alone;
    }

    fn end_acks(&mut self, now: Instant, in_flight: u64) {
        self.in_flight = in_flight;
        self.after_ack = in_flight;
        let Some(Batch { sent, bytes, packets, alone }) = self.batch.take() else { return };
        let took = now.saturating_duration_since(sent);
        // One that met nobody knows the way, also when it has become longer. The others may have waited.
        let way = match self.way {
            Some(way) if !alone => way.min(took),
            _ => took,
        };
        self.way = Some(way);
        if alone {
            self.alone = None;
        }
        let could = self.last.replace(now).map_or(sent + way, |last| last.max(sent + way));
        // A packet that no other came with may have been answered late.
        let held = if packets < 2 { ACK_DELAY } else { Duration::ZERO };
        let busy = now.saturating_duration_since(could).saturating_sub(held);
        if self.acks.len() >= KEPT {
            self.acks.pop_front();
        }
        self.acks.push_back((now, busy, bytes));
        while self.acks.front().is_some_and(|&(at, ..)| now > at + RECENT) {
            self.acks.pop_front();
        }
        self.ahead = self.rate().map_or(Duration::ZERO, |rate| {
            // A client that acknowledges almost nothing makes a path that takes for ever.
            let time = Duration::try_from_secs_f64(in_flight as f64 / rate);
            time.unwrap_or(Duration::MAX).saturating_sub(way)
        });
    }

    /// Bytes a second that go through, if the path is what holds them up.
    fn rate(&self) -> Option<f64> {
        let (mut time, mut longest, mut total) = (Duration::ZERO, Duration::ZERO, 0);
        for &(_, busy, bytes) in self.acks.iter().rev() {
            time += busy;
            longest = longest.max(busy);
            total += bytes;
            if time >= BUSY && time - longest >= BUSY / 2 && total > 0 {
                return Some(total as f64 / time.as_secs_f64());
            }
        }
        None
    }

    fn is_behind(&self) -> bool {
        self.ahead > BEHIND
    }

    /// What the path takes until it would be behind. More would be lost where its queue is full, and would have
    /// to be sent again. Where there is more than that, each acknowledgement lets one packet go all the same: what
    /// was lost counts as on its way until a later packet has arrived.
    fn most(&self) -> Option<u64> {
        let time = (self.way? + BEHIND).as_secs_f64();
        self.rate().map(|rate| ((rate * time) as u64).max(self.after_ack.saturating_add(PACKET)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const PACKET: u64 = 1_400;
    const _: () = assert!(PACKET < super::PACKET, "a packet is let go");
    const WAY: Duration = Duration::from_millis(40);

    /// A path with a bottleneck that acknowledges every second packet.
    struct Line {
        meter: Meter,
        now: Instant,
        free_at: Instant,
        flying: VecDeque<(Instant, Instant)>,
        odd: Option<Instant>,
    }

    impl Line {
        #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
        fn new() -> Self {
            let now = Instant::now();
            let (meter, flying) = (Meter::default(), VecDeque::new());
            Self { meter, now, free_at: now, flying, odd: None }
        }

        /// Sends a frame at once, then lets `time` pass; returns when the path was found to be behind.
        fn frame(&mut self, bytes: u64, kbps: u64, time: Duration) -> Option<Duration> {
            let takes = Duration::from_micros(PACKET * 8_000 / kbps);
            for _ in 0..bytes.div_ceil(PACKET) {
                self.meter.sent(self.now, PACKET);
                self.free_at = self.free_at.max(self.now) + takes;
                self.flying.push_back((self.now, self.free_at + WAY));
            }
            let (began, end) = (self.now, self.now + time);
            let mut behind = None;
            while let Some(&(sent, at)) = self.flying.front().filter(|(_, at)| *at <= end) {
                self.flying.pop_front();
                match self.odd.take() {
                    None if !self.flying.is_empty() => self.odd = Some(sent),
                    odd => {
                        for sent in odd.into_iter().chain([sent]) {
                            self.meter.acked(sent, PACKET);
                        }
                        self.meter.end_acks(at, self.flying.len() as u64 * PACKET);
                        if self.meter.is_behind() {
                            behind.get_or_insert(at - began);
                        }
                    }
                }
            }
            self.now = end;
            behind
        }
    }

    #[test]
    fn a_path_that_has_room_is_never_behind() {
        let mut line = Line::new();
        for frame in 0..300 {
            // Frames as large as the path takes, now and then a keyframe on a fast one.
            let behind = line.frame(28_000, 8_000, MILLI * 33);
            assert_eq!(behind, None, "at frame {frame}");
        }
        let mut fast = Line::new();
        for frame in 0..300 {
            let bytes = if frame % 30 == 0 { 100_000 } else { 2_000 };
            assert_eq!(fast.frame(bytes, 100_000, MILLI * 33), None, "at frame {frame}");
        }
    }

    #[test]
    fn a_path_that_became_narrow_is_known_a_round_trip_after_its_first_packets() {
        let mut line = Line::new();
        for _ in 0..30 {
            line.frame(28_000, 8_000, MILLI * 33);
        }
        let found = (0..10_u32)
            .find_map(|frame| Some(MILLI * 33 * frame + line.frame(28_000, 1_000, MILLI * 33)?));
        let found = found.expect("it was never found");
        assert!(found < WAY + MILLI * 60, "{found:?}");
        // Until what was sent has arrived.
        line.frame(0, 1_000, MILLI * 2_000);
        assert!(!line.meter.is_behind());
    }

    #[test]
    fn a_client_that_acknowledges_next_to_nothing_or_out_of_order_is_only_behind() {
        let (mut meter, start) = (Meter::default(), Line::new().now);
        meter.sent(start, PACKET);
        meter.acked(start, 0);
        meter.end_acks(start + MILLI * 10, u64::MAX);
        meter.acked(start + MILLI, 0);
        meter.end_acks(start + MILLI * 100, u64::MAX);
        assert_eq!(meter.most(), None, "nothing went through, so there is no rate");
        let later = start + Duration::from_secs(3_600);
        for now in [later, later + MILLI * 100] {
            meter.acked(start + MILLI, 1);
            meter.acked(start + MILLI, 1);
            meter.end_acks(now, u64::MAX);
        }
        assert!(meter.is_behind());
        assert_eq!(meter.most(), Some(u64::MAX), "each acknowledgement lets one go");
        for (sent, now) in [(later, later), (start, later + MILLI), (later + MILLI * 9, later)] {
            meter.acked(sent, PACKET);
            meter.end_acks(now, 0);
            assert!(!meter.is_behind());
        }
    }

    #[test]
    fn answers_that_come_late_or_not_at_all_make_no_path_narrow() {
        let (mut meter, mut now) = (Meter::default(), Line::new().now);
        for frame in 0..300_u32 {
            (0..7).for_each(|_| meter.sent(now, PACKET));
            // Two at a time; the last alone, as late as that may be. Of some frames an answer is lost, or one
            // and all after it are held up on the way.
            let late = if frame % 10 == 0 { MILLI * 70 } else { Duration::ZERO };
            for (packets, held) in [(2, Duration::ZERO), (2, late), (2, late), (1, ACK_DELAY)] {
                if packets == 2 && frame % 7 == 0 && held.is_zero() {
                    continue;
                }
                (0..packets).for_each(|_| meter.acked(now, PACKET));
                meter.end_acks(now + WAY + held.max(late), 0);
                assert_eq!(meter.rate(), None, "at frame {frame}");
            }
            now += MILLI * 33;
        }
    }

    #[test]
    fn a_longer_way_is_learned_from_a_packet_that_met_nobody() {
        let (mut meter, mut now) = (Meter::default(), Line::new().now);
        for way in [20, 20, 90, 90, 30] {
            meter.sent(now, PACKET);
            meter.acked(now, PACKET);
            meter.end_acks(now + MILLI * way, 0);
            assert_eq!(meter.way, Some(MILLI * way));
            now += MILLI * 200;
        }
        assert!(!meter.is_behind());
    }
}
