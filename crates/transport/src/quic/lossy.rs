//! Frames on a path that loses packets and is as wide as ever: hardly one is held back.
//!
//! All of it in virtual time, and what counts are decisions: a machine that is busy changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use spaceport_testkit::link::{Link, Profile};

use super::flight::Flight;
use super::frames::{self, ACK_DELAY};
use crate::flying::Flying;
use crate::viewer::Room;

const MILLI: Duration = Duration::from_millis(1);

/// Thirty frames a second of 2500 kbit/s.
const INTERVAL: Duration = Duration::from_millis(33);
const PACKET: u64 = 1_400;
const PACKETS: usize = 8;

/// Half a minute of them.
const FRAMES: u64 = 900;

/// Losses of so many kinds.
const SEEDS: u64 = 20;

/// Frames that may be held back of all of these: 1130 were when this was written. Where a wait for a lost packet, or an
/// acknowledgement that comes late, is read as a narrow path, more than 1600 are.
const HELD: u64 = 1_300;

/// Frames that may be on their way when it ends.
const ON_THEIR_WAY: u64 = 8;

/// A packet is lost when one sent so many later has arrived (RFC 9002 §6.1.1), or after nine eighths of a round trip.
const REORDERED: u64 = 3;

/// What a client remembers to have received when it acknowledges.
const ACKNOWLEDGED: usize = 64;

/// A client that acknowledges every second packet, at once what comes after a gap, and the rest in time.
#[derive(Default)]
struct Client {
    received: BTreeSet<u64>,
    expected: u64,
    waiting: u32,
    since: Option<Instant>,
}

impl Client {
    fn receive(&mut self, number: u64, now: Instant) {
        self.received.insert(number);
        self.waiting += if number == self.expected { 1 } else { 2 };
        self.expected = self.expected.max(number + 1);
        self.since.get_or_insert(now);
    }

    fn acknowledge(&mut self, now: Instant) -> Option<BTreeSet<u64>> {
        let since = self.since?;
        if self.waiting < 2 && now < since + ACK_DELAY {
            return None;
        }
        (self.waiting, self.since) = (0, None);
        while self.received.len() > ACKNOWLEDGED {
            self.received.pop_first();
        }
        Some(self.received.clone())
    }
}

/// What QUIC does at the sender: numbers, acknowledgements, losses, and sending again.
struct Sender {
    flight: Flight,
    begun: Flying,
    down: Link<u64>,
    next: u64,
    largest: u64,
    last_sent: Instant,
    /// Packets on their way: when they were sent, and of which frame they are.
    unacked: BTreeMap<u64, (Instant, u64)>,
    /// Packets of a frame that have not arrived.
    missing: BTreeMap<u64, usize>,
}

impl Sender {
    fn way(&self) -> Duration {
        self.flight.way().unwrap_or(MILLI * 40)
    }

    fn send(&mut self, frame: u64, now: Instant) {
        let number = self.next;
        self.next += 1;
        self.last_sent = now;
        self.unacked.insert(number, (now, frame));
        self.flight.sent(now, PACKET);
        self.down.send(number, PACKET as usize, now);
    }

    fn acked(&mut self, numbers: &BTreeSet<u64>, now: Instant) {
        let mut arrived = Vec::new();
        for number in numbers {
            let Some((sent, frame)) = self.unacked.remove(number) else { continue };
            self.flight.acked(sent, PACKET);
            self.largest = self.largest.max(*number);
            if let Some(left) = self.missing.get_mut(&frame) {
                *left -= 1;
                if *left == 0 {
                    self.missing.remove(&frame);
                    arrived.push(frame);
                }
            }
        }
        self.flight.end_acks(now, self.unacked.len() as u64 * PACKET);
        let usual = frames::usual(self.way());
        for frame in arrived {
            self.begun.arrive(frame, usual, now).expect("a frame that was begun");
        }
    }

    fn send_again(&mut self, now: Instant) {
        let (way, largest) = (self.way(), self.largest);
        let mut lost: Vec<_> = self
            .unacked
            .iter()
            .filter(|&(&number, &(sent, _))| {
                number + REORDERED <= largest || number < largest && now > sent + way * 9 / 8
            })
            .map(|(&number, _)| number)
            .collect();
        // Nothing has come for so long that the last of them may be lost.
        if lost.is_empty() && now > self.last_sent + way * 3 / 2 + ACK_DELAY {
            lost.extend(self.unacked.keys().next());
        }
        for number in lost {
            let (_, frame) = self.unacked.remove(&number).unwrap();
            self.send(frame, now);
        }
    }
}

/// How many frames were held back, and how many have arrived.
#[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
fn run(down: Profile, up: Profile, seed: u64) -> (u64, u64) {
    let origin = Instant::now();
    let mut up = Link::new(up, seed + 1_000);
    let mut client = Client::default();
    let mut sender = Sender {
        flight: Flight::default(),
        begun: Flying::default(),
        down: Link::new(down, seed),
        next: 0,
        largest: 0,
        last_sent: origin,
        unacked: BTreeMap::new(),
        missing: BTreeMap::new(),
    };
    let (mut held, mut sent) = (0, 0);
    let mut now = origin;
    for frame in 0..FRAMES {
        let way = sender.way();
        if let Room::Takes(_) = frames::room(&sender.begun, &sender.flight, way, INTERVAL, now) {
            sender.begun.begin(frame, PACKETS * PACKET as usize, now);
            sender.missing.insert(frame, PACKETS);
            (0..PACKETS).for_each(|_| sender.send(frame, now));
            sent += 1;
        } else {
            held += 1;
        }
        for _ in 0..INTERVAL.as_millis() {
            now += MILLI;
            while let Some(number) = sender.down.receive(now) {
                client.receive(number, now);
            }
            if let Some(numbers) = client.acknowledge(now) {
                up.send(numbers, 60, now);
            }
            while let Some(numbers) = up.receive(now) {
                sender.acked(&numbers, now);
            }
            sender.send_again(now);
        }
    }
    (held, sent - sender.missing.len() as u64)
}

#[test]
fn at_five_percent_lost_few_frames_are_held_back() {
    let mut all = 0;
    for seed in 1..=SEEDS {
        let (held, arrived) = run(Profile::LOSSY5, Profile::LOSSY5, seed);
        assert!(held + arrived + ON_THEIR_WAY >= FRAMES, "{seed}: {held} held, {arrived} arrived");
        all += held;
    }
    assert!(all <= HELD, "{all} of {} frames were held back", FRAMES * SEEDS);
}

#[test]
fn a_path_that_loses_nothing_holds_none_back_and_a_narrow_one_does() {
    let clear = Profile { loss: 0.0, ..Profile::LOSSY5 };
    assert_eq!(run(clear, clear, 1).0, 0);
    // Of 2.7 Mbit/s, headers and all, it takes less than half.
    let (held, arrived) = run(clear.capped(1_200_000), clear, 1);
    assert!(held > FRAMES / 2 && arrived > FRAMES / 3, "{held} held, {arrived} arrived");
}
