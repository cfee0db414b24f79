//! A network that is not as good as loopback: delay, loss, a bottleneck with a bounded queue.
//!
//! [`Link`] is one direction of it, a pure model: the caller passes `now`, and the same seed and
//! the same packets at the same times meet the same fate. [`Proxy`] puts two of them between real
//! UDP sockets.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod proxy;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use proxy::{Counts, Proxy};

/// What one direction of a link does to packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// From one end to the other, without waiting for other packets.
    pub delay: Duration,
    /// Up to this much more, another for each packet. Packets stay in order.
    pub jitter: Duration,
    /// The share of packets that are lost, whatever else happens to them.
    pub loss: f64,
    /// How many packets in a row are lost once one is, on average; 1 for losses that know nothing
    /// of each other.
    pub burst: f64,
    /// Bits a second that pass; `None` for as many as come.
    pub rate: Option<u64>,
    /// How long the bottleneck's queue may get. What comes to a full queue is dropped.
    pub queue: Duration,
}

impl Profile {
    /// No delay, no loss, no bottleneck.
    pub const CLEAR: Self = Self {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0.0,
        burst: 1.0,
        rate: None,
        queue: Duration::from_millis(200),
    };

    /// 5 % random loss, and 40 ms there and back.
    pub const LOSSY5: Self = Self { delay: Duration::from_millis(20), loss: 0.05, ..Self::CLEAR };

    /// A telephone on the move: 12 Mbit/s, 60 ms there and back, jitter, a deep queue.
    pub const LTE: Self = Self {
        delay: Duration::from_millis(30),
        jitter: Duration::from_millis(15),
        loss: 0.005,
        burst: 3.0,
        rate: Some(12_000_000),
        queue: Duration::from_millis(400),
    };

    /// Wi-Fi that many share: 4 Mbit/s, 50 ms there and back, losses that come in bursts.
    pub const HOTEL_WIFI: Self = Self {
        delay: Duration::from_millis(25),
        jitter: Duration::from_millis(30),
        loss: 0.02,
        burst: 4.0,
        rate: Some(4_000_000),
        queue: Duration::from_millis(250),
    };

    /// The same with a bottleneck of `rate` bits a second.
    #[must_use]
    pub fn capped(self, rate: u64) -> Self {
        Self { rate: Some(rate), ..self }
    }
}

/// What became of a packet at the near end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is on its way.
    Sent,
    /// It was lost at random.
    Lost,
    /// The bottleneck's queue was full.
    Dropped,
}

/// One direction of a link, with packets of any sort on it.
#[derive(Debug)]
pub struct Link<T> {
    profile: Profile,
    random: Random,
    /// Whether the last packet was lost, for losses in bursts.
    losing: bool,
    /// Before the bottleneck: what waits, its bits, and when it came.
    waiting: VecDeque<(u64, Instant, T)>,
    waiting_bits: u64,
    /// When the bottleneck has sent what it had.
    free_at: Option<Instant>,
    /// Behind it: when it arrives.
    flying: VecDeque<(Instant, T)>,
}

impl<T> Link<T> {
    /// A link whose losses and jitter follow from `seed`.
    pub fn new(profile: Profile, seed: u64) -> Self {
        Self {
            profile,
            random: Random(seed),
            losing: false,
            waiting: VecDeque::new(),
            waiting_bits: 0,
            free_at: None,
            flying: VecDeque::new(),
        }
    }

    /// What it does now.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Makes it another link from `now` on. What waits at the bottleneck leaves at the new rate.
    pub fn change(&mut self, profile: Profile, now: Instant) {
        self.advance(now);
        self.profile = profile;
    }

    /// Puts a packet of `bytes` on it.
    pub fn send(&mut self, packet: T, bytes: usize, now: Instant) -> Fate {
        self.advance(now);
        if self.loses() {
            return Fate::Lost;
        }
        let bits = bytes as u64 * 8;
        if let Some(rate) = self.profile.rate {
            let room = u64::try_from(self.profile.queue.as_micros()).unwrap_or(u64::MAX);
            let room = rate.saturating_mul(room) / 1_000_000;
            // One packet always fits, or a slow link would be none.
            if !self.waiting.is_empty() && self.waiting_bits + bits > room {
                return Fate::Dropped;
            }
        }
        self.waiting_bits += bits;
        self.waiting.push_back((bits, now, packet));
        self.advance(now);
        Fate::Sent
    }

    /// When [`Link::receive`] has something next, as things stand.
    pub fn due(&self) -> Option<Instant> {
        if let Some(&(at, _)) = self.flying.front() {
            return Some(at);
        }
        let &(bits, came, _) = self.waiting.front()?;
        Some(self.leaves(bits, came) + self.profile.delay)
    }

    /// The next packet that has arrived by `now`.
    pub fn receive(&mut self, now: Instant) -> Option<T> {
        self.advance(now);
        if self.flying.front()?.0 > now {
            return None;
        }
        self.flying.pop_front().map(|(_, packet)| packet)
    }

    /// How long what waits at the bottleneck will take to leave it.
    pub fn backlog(&self) -> Duration {
        self.profile.rate.map_or(Duration::ZERO, |rate| lasts(self.waiting_bits, rate))
    }

    /// When a packet that came to the bottleneck at `came` has left it, if it is the next.
    fn leaves(&self, bits: u64, came: Instant) -> Instant {
        let begins = self.free_at.map_or(came, |free| free.max(came));
        self.profile.rate.map_or(begins, |rate| begins + lasts(bits, rate))
    }

    /// Lets everything leave the bottleneck that has by `now`.
    fn advance(&mut self, now: Instant) {
        while let Some(&(bits, came, _)) = self.waiting.front() {
            let left = self.leaves(bits, came);
            if left > now {
                return;
            }
            let Some((bits, _, packet)) = self.waiting.pop_front() else { return };
            self.waiting_bits -= bits;
            self.free_at = Some(left);
            let jitter = self.profile.jitter.mul_f64(self.random.unit());
            let arrives = left + self.profile.delay + jitter;
            let before = self.flying.back().map(|&(at, _)| at);
            self.flying.push_back((before.map_or(arrives, |before| before.max(arrives)), packet));
        }
    }

    /// Whether the next packet is lost (Gilbert's model: two states, all lost in one of them).
    fn loses(&mut self) -> bool {
        let Profile { loss, burst, .. } = self.profile;
        if loss <= 0.0 {
            return false;
        }
        let stays = 1.0 - 1.0 / burst.max(1.0);
        let chance = if burst <= 1.0 {
            loss
        } else if self.losing {
            stays
        } else {
            // So that the share of the time in the losing state is `loss`.
            (1.0 - stays) * loss / (1.0 - loss).max(f64::EPSILON)
        };
        self.losing = self.random.unit() < chance;
        self.losing
    }
}

/// How long `bits` take at `rate` bits a second.
fn lasts(bits: u64, rate: u64) -> Duration {
    Duration::from_nanos(bits.saturating_mul(1_000_000_000) / rate.max(1))
}

/// Numbers that look random and follow from a seed (`SplitMix64`).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Those that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one, from 0 up to but not including 1.
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[expect(clippy::disallowed_methods, reason = "the origin of a virtual clock")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn arrivals(link: &mut Link<u32>, start: Instant) -> Vec<(u32, u64)> {
        let mut arrived = Vec::new();
        while let Some(at) = link.due() {
            while let Some(packet) = link.receive(at) {
                arrived.push((packet, (at - start).as_millis() as u64));
            }
        }
        arrived
    }

    #[test]
    fn a_bottleneck_spaces_packets_and_drops_what_its_queue_has_no_room_for() {
        let start = origin();
        let queue = MS(30);
        let profile = Profile { delay: MS(5), queue, ..Profile::CLEAR }.capped(1_000_000);
        let mut link = Link::new(profile, 1);
        // 1,250 bytes take 10 ms.
        let fates: Vec<_> = (0..5).map(|packet| link.send(packet, 1_250, start)).collect();
        assert_eq!(fates[..3], [Fate::Sent; 3]);
        assert_eq!(fates[3..], [Fate::Dropped; 2]);
        assert_eq!(link.backlog(), MS(30));
        assert_eq!(arrivals(&mut link, start), [(0, 15), (1, 25), (2, 35)]);
    }

    #[test]
    fn what_waits_leaves_at_the_rate_that_is_in_force() {
        let start = origin();
        let slow = Profile { queue: MS(100), ..Profile::CLEAR }.capped(1_000_000);
        let mut link = Link::new(slow, 1);
        for packet in 0..3 {
            link.send(packet, 1_250, start);
        }
        link.change(slow.capped(10_000_000), start + MS(10));
        assert_eq!(arrivals(&mut link, start), [(0, 10), (1, 11), (2, 12)]);
    }

    #[test]
    fn losses_follow_from_the_seed_and_come_to_what_the_profile_says() {
        for burst in [1.0, 4.0] {
            let profile = Profile { burst, ..Profile::LOSSY5 };
            let fates = |seed| {
                let (mut link, now) = (Link::new(profile, seed), origin());
                (0..40_000_u32).map(|n| link.send(n, 100, now)).collect::<Vec<_>>()
            };
            let once = fates(7);
            assert_eq!(once, fates(7));
            assert_ne!(once, fates(8));
            let lost = once.iter().filter(|&&fate| fate == Fate::Lost).count();
            assert!((1_600..2_400).contains(&lost), "{lost} of 40,000");
            let bursts = once.windows(2).filter(|pair| *pair == [Fate::Sent, Fate::Lost]).count();
            let mean = lost as f64 / bursts as f64;
            assert!((mean - burst).abs() < 0.4, "bursts of {mean}");
        }
    }

    #[test]
    fn jitter_keeps_the_order() {
        let start = origin();
        let mut link = Link::new(Profile { jitter: MS(50), ..Profile::CLEAR }, 3);
        for packet in 0..100 {
            link.send(packet, 100, start + MS(packet.into()));
        }
        let arrived = arrivals(&mut link, start);
        assert!(arrived.is_sorted(), "{arrived:?}");
        assert_eq!(arrived.len(), 100);
        assert!(arrived.iter().any(|&(packet, at)| at > u64::from(packet) + 10));
    }
}
