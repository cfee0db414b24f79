//! Which viewer gets which rung, and what each rung is encoded at.
//!
//! A pure state machine: `now` is an argument, and moves are returned. Its rules:
//!
//! - Viewers whose paths carry about the same share one encode, and that follows what they carry. A
//!   stream that everybody finds too much, be it one viewer or fifty, needs no second encode.
//! - A viewer that suffers beside others that do not is moved down, to a rung of its like.
//! - Where there is no room for another encode, it stays, unless others are on a rung of its like.
//! - A viewer whose path carries more than its rung, and has for a while, is moved up again. One that
//!   then falls again waits twice as long the next time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use spaceport_types::{Bitrate, ViewerId};

use super::path::{Path, Track};

/// One step of a ladder; a lower one has a higher number.
///
/// The size stays as long as it can: text at half size is lost, while text at a coarse quantizer can
/// still be read, and a coarse picture becomes sharp as soon as nothing moves. So the rate goes down
/// first, the encoder leaves out frames when that is not enough, and the size comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Rung(usize);

impl Rung {
    /// What the session was opened with.
    pub(crate) const FULL: Self = Self(0);
    /// A fraction of the rate, for paths that carry a quarter of the full rate and more.
    const LESS: Self = Self(1);
    /// The same for those that carry less than that.
    const LEAST: Self = Self(2);
    /// Half the size, for paths that cannot carry a picture of full size in time.
    pub(crate) const SMALL: Self = Self(3);
    /// From the highest down.
    pub(crate) const ALL: [Self; 4] = [Self::FULL, Self::LESS, Self::LEAST, Self::SMALL];

    pub(crate) const fn index(self) -> usize {
        self.0
    }
}

/// Where [`Rung::LESS`] ends, as a part of the full rate. Those who share a rung get what the slowest
/// of them takes, so the rungs are not further apart.
const LESS_ENDS: f64 = 0.25;

/// A limit has to be so much above where a rung begins before a viewer is moved up to it.
const CLEARLY: f64 = 1.25;

/// How long a viewer stays before it is moved up: at first, and at most, when that kept failing.
const HOLD: Duration = Duration::from_secs(2);
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// A viewer that falls within this time of being moved up should not have been.
const FAILED: Duration = Duration::from_secs(10);

/// Time between two looks at everybody, if nothing urgent happens.
const LOOK: Duration = Duration::from_millis(100);

/// The viewers of one ladder.
#[derive(Debug)]
pub(super) struct Policy {
    /// The full rate.
    ceiling: Bitrate,
    /// Paths that carry less get a smaller picture.
    small: Bitrate,
    members: BTreeMap<ViewerId, Member>,
    /// Whether there is room for another encode.
    has_room: bool,
    /// The latest time that was passed.
    now: Option<Instant>,
    looked_at: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    rung: Rung,
    track: Track,
    moved_at: Option<Instant>,
    rose_at: Option<Instant>,
    hold: Duration,
}

/// A viewer and the rung it is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) viewer: ViewerId,
    pub(super) from: Rung,
    pub(super) to: Rung,
}

impl Policy {
    pub(super) fn new(ceiling: Bitrate) -> Self {
        let members = BTreeMap::new();
        let small = Bitrate::default();
        Self { ceiling, small, members, has_room: true, now: None, looked_at: None }
    }

    /// Sets whether there is room for another encode beside those that there are.
    pub(super) fn set_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }

    pub(super) fn set_ceiling(&mut self, ceiling: Bitrate) {
        self.ceiling = ceiling;
    }

    /// Sets below which rate a picture of full size does not come in time.
    pub(super) fn set_small(&mut self, small: Bitrate) {
        self.small = small;
    }

    /// A viewer came; it begins with the full picture.
    pub(super) fn join(&mut self, viewer: ViewerId) {
        let (track, hold) = (Track::default(), HOLD);
        let member = Member { rung: Rung::FULL, track, moved_at: None, rose_at: None, hold };
        self.members.insert(viewer, member);
        self.looked_at = None;
    }

    /// A viewer left; returns the rung it had.
    pub(super) fn leave(&mut self, viewer: ViewerId) -> Option<Rung> {
        self.looked_at = None;
        self.members.remove(&viewer).map(|member| member.rung)
    }

    /// A packet is through; see [`Track::sent`].
    pub(super) fn sent(
        &mut self,
        viewer: ViewerId,
        queued_at: Option<Instant>,
        bytes: usize,
        now: Instant,
    ) -> Vec<Move> {
        self.learn(viewer, now, |track, ceiling, current| {
            track.sent(queued_at, bytes, now, ceiling, current)
        })
    }

    /// A carrier knows something; see [`Track::told`].
    pub(super) fn told(&mut self, viewer: ViewerId, path: Path, now: Instant) -> Vec<Move> {
        self.learn(viewer, now, |track, ceiling, current| track.told(path, now, ceiling, current))
    }

    /// What those beyond a carrier take; see [`Track::set_beyond`].
    pub(super) fn beyond(
        &mut self,
        viewer: ViewerId,
        rate: Option<Bitrate>,
        now: Instant,
    ) -> Vec<Move> {
        self.looked_at = None;
        self.learn(viewer, now, |track, _, _| {
            track.set_beyond(rate);
            false
        })
    }

    /// How many viewers have a rung.
    pub(super) fn viewers(&self, rung: Rung) -> usize {
        self.members.values().filter(|member| member.rung == rung).count()
    }

    /// What a rung is encoded at, at most.
    ///
    /// The full picture is only held back when that suits everyone who gets it.
    pub(super) fn cap(&self, rung: Rung) -> Bitrate {
        let Some(now) = self.now else { return self.ceiling };
        let members = || self.members.values().filter(|member| member.rung == rung);
        if rung == Rung::FULL && self.shared_band(rung).is_none() {
            return self.ceiling;
        }
        members().filter_map(|member| member.track.limit(now)).fold(self.ceiling, Bitrate::min)
    }

    fn learn(
        &mut self,
        viewer: ViewerId,
        now: Instant,
        lesson: impl FnOnce(&mut Track, Bitrate, Bitrate) -> bool,
    ) -> Vec<Move> {
        self.now = Some(now);
        let Some(rung) = self.members.get(&viewer).map(|member| member.rung) else {
            return Vec::new();
        };
        let (ceiling, current) = (self.ceiling, self.cap(rung));
        let Some(member) = self.members.get_mut(&viewer) else { return Vec::new() };
        let full = lesson(&mut member.track, ceiling, current);
        if full {
            let limit = member.track.capacity().map(tracing::field::display);
            tracing::debug!(id = %viewer, rung = rung.index(), limit, "path is full");
        }
        if !full && self.looked_at.is_some_and(|at| now < at + LOOK) {
            return Vec::new();
        }
        self.looked_at = Some(now);
        self.look(now)
    }

    /// Decides who is to be moved, and takes it for done.
    fn look(&mut self, now: Instant) -> Vec<Move> {
        let mut moves = Vec::new();
        for rung in Rung::ALL {
            let shared = self.shared_band(rung);
            let viewers: Vec<ViewerId> = self
                .members
                .iter()
                .filter(|(_, member)| member.rung == rung)
                .map(|(&viewer, _)| viewer)
                .collect();
            for viewer in viewers {
                let Some(to) = self.place(viewer, rung, shared, now) else { continue };
                if let Some(member) = self.members.get_mut(&viewer) {
                    member.moved(to, now);
                }
                moves.push(Move { viewer, from: rung, to });
            }
        }
        moves
    }

    /// Where a viewer belongs, if that is elsewhere.
    fn place(
        &self,
        viewer: ViewerId,
        rung: Rung,
        shared: Option<Rung>,
        now: Instant,
    ) -> Option<Rung> {
        let member = self.members.get(&viewer)?;
        if member.moved_at == Some(now) {
            return None;
        }
        let limit = member.track.capacity();
        let down = self.band(limit);
        if down > rung {
            // Where all are alike the encode follows them; a smaller picture has to be another.
            let alone = shared.is_some() && down != Rung::SMALL;
            let one_more = self.viewers(down) == 0 && self.viewers(rung) > 1;
            let may = !alone && (self.has_room || !one_more);
            return (member.track.strained(now) && may).then_some(down);
        }
        let up = self.band(limit.map(|limit| scaled(limit, 1.0 / CLEARLY)));
        if up >= rung || member.moved_at.is_some_and(|at| now < at + member.hold) {
            return None;
        }
        if rung == Rung::SMALL && self.viewers(Rung::FULL) == 0 {
            return Some(Rung::FULL);
        }
        // A rung whose viewers all rose rises with them, unless another is like that already.
        let stays = shared.is_some() && rung != Rung::SMALL && self.viewers(up) == 0;
        (!stays).then_some(up)
    }

    /// The rung that all viewers of `rung` belong to, if they are alike and all below the full one.
    fn shared_band(&self, rung: Rung) -> Option<Rung> {
        let mut bands = self
            .members
            .values()
            .filter(|member| member.rung == rung)
            .map(|member| self.band(member.track.capacity()));
        let first = bands.next().filter(|&band| band != Rung::FULL)?;
        bands.all(|band| band == first).then_some(first)
    }

    fn band(&self, limit: Option<Bitrate>) -> Rung {
        match limit {
            None => Rung::FULL,
            Some(limit) if limit < self.small => Rung::SMALL,
            Some(limit) if limit >= self.ceiling => Rung::FULL,
            Some(limit) if limit >= scaled(self.ceiling, LESS_ENDS) => Rung::LESS,
            Some(_) => Rung::LEAST,
        }
    }
}

impl Member {
    fn moved(&mut self, to: Rung, now: Instant) {
        if to < self.rung {
            self.rose_at = Some(now);
        } else {
            let failed = self.rose_at.is_some_and(|at| now < at + FAILED);
            self.hold = if failed { (self.hold * 2).min(LONGEST_HOLD) } else { HOLD };
        }
        self.rung = to;
        self.moved_at = Some(now);
        self.track.moved(now);
    }
}

fn scaled(rate: Bitrate, by: f64) -> Bitrate {
    Bitrate::from_bps((rate.bps() as f64 * by) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::path::tests::{CEILING, FRAME, Line};
    use super::*;

    /// Viewers behind lines of their own, each of which takes what its rung is encoded at.
    struct World {
        policy: Policy,
        lines: Vec<(ViewerId, Line, Bitrate)>,
        moves: Vec<Move>,
    }

    const FAST: u32 = 50_000;

    impl World {
        fn of(paths: &[u32]) -> Self {
            let mut policy = Policy::new(CEILING);
            policy.set_small(Bitrate::from_kbps(250));
            let mut world = Self { policy, lines: Vec::new(), moves: Vec::new() };
            paths.iter().for_each(|&kbps| world.join(kbps));
            world
        }

        fn join(&mut self, kbps: u32) {
            let id = ViewerId::new(self.lines.len() as u64);
            self.policy.join(id);
            let mut line = Line::new();
            if let Some((_, first, _)) = self.lines.first() {
                line.now = first.now;
            }
            self.lines.push((id, line, Bitrate::from_kbps(kbps)));
        }

        fn set(&mut self, viewer: usize, kbps: u32) {
            self.lines[viewer].2 = Bitrate::from_kbps(kbps);
        }

        /// Returns the moves of that time: the viewer, and where to.
        fn play(&mut self, seconds: u64) -> Vec<(u64, Rung)> {
            self.moves.clear();
            for _ in 0..Duration::from_secs(seconds).as_millis() / FRAME.as_millis() {
                for index in 0..self.lines.len() {
                    let (id, line, path) = &mut self.lines[index];
                    let (id, path) = (*id, *path);
                    let Some(rung) = self.policy.members.get(&id).map(|member| member.rung) else {
                        continue;
                    };
                    let rate = self.policy.cap(rung);
                    for (queued_at, sent_at, bytes) in line.step(rate, path) {
                        let moves = self.policy.sent(id, Some(queued_at), bytes, sent_at);
                        self.moves.extend(moves);
                    }
                }
            }
            let number = |id: ViewerId| id.to_string()[1..].parse().unwrap();
            self.moves.iter().map(|it| (number(it.viewer), it.to)).collect()
        }

        fn rung(&self, viewer: u64) -> Rung {
            self.policy.members[&ViewerId::new(viewer)].rung
        }
    }

    #[test]
    fn a_single_viewer_needs_no_second_encode() {
        let mut world = World::of(&[1_000]);
        assert_eq!(world.play(30), []);
        let cap = world.policy.cap(Rung::FULL);
        assert!((500..2_000).contains(&cap.kbps()), "{cap}");
        world.set(0, FAST);
        world.play(10);
        assert_eq!(world.policy.cap(Rung::FULL), CEILING);
    }

    #[test]
    fn of_two_that_disagree_the_slow_one_is_moved_and_comes_back() {
        let mut world = World::of(&[FAST, FAST]);
        assert_eq!(world.play(10), []);
        world.set(1, 1_000);
        let moves = world.play(60);
        assert_eq!(moves.len(), 1, "{moves:?}");
        assert_eq!(moves[0].0, 1);
        assert_eq!(world.policy.cap(Rung::FULL), CEILING, "the other keeps what it has");
        let cap = world.policy.cap(world.rung(1));
        assert!((500..2_000).contains(&cap.kbps()), "{cap}");
        world.set(1, FAST);
        assert_eq!(world.play(10), [(1, Rung::FULL)]);
    }

    #[test]
    fn viewers_that_are_alike_share_a_rung() {
        let mut world = World::of(&[FAST, 1_000, 1_200, 900]);
        world.play(60);
        let rungs: Vec<Rung> = (1..4).map(|viewer| world.rung(viewer)).collect();
        assert!(rungs.iter().all(|&rung| rung == rungs[0] && rung != Rung::FULL), "{rungs:?}");
        assert_eq!(world.rung(0), Rung::FULL);
    }

    #[test]
    fn a_slow_viewer_that_was_alone_is_moved_when_another_comes() {
        let mut world = World::of(&[1_000]);
        world.play(10);
        world.join(FAST);
        let moves = world.play(5);
        assert_eq!(moves.len(), 1, "{moves:?}");
        assert_eq!((moves[0].0, world.rung(1)), (0, Rung::FULL));
        assert_eq!(world.policy.cap(Rung::FULL), CEILING);
        // It stays where it is when the other leaves: going back would cost a keyframe.
        world.policy.leave(ViewerId::new(1));
        assert_eq!(world.play(10), []);
    }

    #[test]
    fn where_there_is_no_room_for_another_encode_a_slow_viewer_stays() {
        let mut world = World::of(&[1_000, FAST, 1_000]);
        world.policy.set_room(false);
        assert_eq!(world.play(10), []);
        world.policy.leave(ViewerId::new(2));
        world.policy.set_room(true);
        assert_eq!(world.play(5).len(), 1);
        // One of its like goes to the encode that is there now.
        world.policy.set_room(false);
        world.join(1_000);
        world.play(10);
        assert_eq!((world.rung(0), world.rung(3)), (Rung::LEAST, Rung::LEAST));
    }

    #[test]
    fn only_a_path_that_carries_no_full_picture_gets_a_smaller_one() {
        let mut world = World::of(&[150]);
        world.play(30);
        assert_eq!(world.rung(0), Rung::SMALL);
        world.set(0, 3_000);
        world.play(30);
        assert_eq!(world.rung(0), Rung::FULL, "with nobody there, it has it to itself");
    }

    #[test]
    fn a_path_that_comes_and_goes_is_moved_less_and_less() {
        let mut world = World::of(&[FAST, FAST]);
        let mut moves = Vec::new();
        for _ in 0..40 {
            world.set(1, 1_000);
            moves.push(world.play(4).len());
            world.set(1, FAST);
            moves.push(world.play(8).len());
        }
        let (early, late): (usize, usize) = (moves[..16].iter().sum(), moves[64..].iter().sum());
        assert!(early >= 4 && late < early, "{moves:?}");
        assert!(late <= 6, "{moves:?}");
    }

    #[test]
    fn estimates_hold_an_encode_back_only_where_all_agree() {
        let mut policy = Policy::new(CEILING);
        let [a, b] = [1, 2].map(ViewerId::new);
        let now = Line::new().now;
        let estimate = |kbps| Path { capacity: Some(Bitrate::from_kbps(kbps)), ..Path::default() };
        policy.join(a);
        assert_eq!(policy.told(a, estimate(3_000), now), []);
        assert_eq!(policy.cap(Rung::FULL), Bitrate::from_kbps(2_700));
        policy.join(b);
        assert_eq!(policy.cap(Rung::FULL), CEILING);
        assert_eq!(policy.told(a, estimate(3_000), now + FRAME), [], "it does not suffer");
        let full = Path { queued: Duration::from_millis(400), ..estimate(3_000) };
        let at = |millis| now + Duration::from_millis(millis);
        let moves: Vec<Move> = [100, 200, 350]
            .into_iter()
            .flat_map(|millis| policy.told(a, full, at(millis)))
            .collect();
        assert_eq!(moves, [Move { viewer: a, from: Rung::FULL, to: Rung::LESS }]);
        assert_eq!(policy.cap(Rung::LESS), Bitrate::from_kbps(2_700));
        // It carries everything again: up, but not before it has been there for a while.
        assert_eq!(policy.told(a, estimate(30_000), at(1_000)), []);
        let moves = policy.told(a, estimate(30_000), at(350) + HOLD);
        assert_eq!(moves, [Move { viewer: a, from: Rung::LESS, to: Rung::FULL }]);
    }

    #[test]
    fn who_left_is_not_decided_about() {
        let mut policy = Policy::new(CEILING);
        let (id, now) = (ViewerId::new(1), Line::new().now);
        policy.join(id);
        assert_eq!(policy.leave(id), Some(Rung::FULL));
        assert_eq!(policy.leave(id), None);
        assert_eq!(policy.sent(id, Some(now), 1, now), []);
        assert_eq!(policy.viewers(Rung::FULL), 0);
    }
}
