//! Which quantizer a frame gets, so that the path can take it.
//!
//! The quantizer is [`SHARP`] unless the path is full. x264's own rate control would do, but it
//! counts frames where a desktop needs time counted, and the half-size copy of every picture that
//! it predicts from costs a third of the CPU of a small change. Here the prediction is made from
//! what is known anyway: how busy each changed macroblock is, what busy macroblocks have cost so
//! far, and which unchanged ones were coded so coarsely that x264 will go over them again.

use std::time::Duration;

use spaceport_types::{Bitrate, Size};

use super::Mode;

/// The quantizers in use, finest first.
///
/// Steps of three and more: an unchanged macroblock is coded again when it could be finer, and a
/// step of one is not worth that. At the end of the scale text can just be read; what would need a
/// coarser one is worth more late than illegible, so it waits until the path has room.
const LADDER: [u8; 8] = [FINEST, 20, SHARP, 26, 29, 32, 36, COARSEST];

/// Of ordinary frames: text stays crisp, and 1920x1080 scrolls in 8 KB a frame.
const SHARP: u8 = 23;

/// Of what stands still: close to what an eye can tell apart.
const FINEST: u8 = 17;

const COARSEST: u8 = 40;

/// Luma rows and columns of a macroblock.
const SIDE: usize = 16;

/// What a macroblock without any detail still costs, as activity.
const HEADER: u32 = 64;

/// How long a macroblock has not changed when it is worth being coded finely, though others go on
/// changing: what moved past left it as it came out at [`SHARP`], with a faint trace of itself.
const SETTLED: Duration = Duration::from_millis(200);

/// Time between two frames that are finer for the sake of what has settled. Such a frame is as fine
/// all over, also where things move; at 30 frames a second this is one in eight. x264 would take an
/// offset for each macroblock, but only along with its own rate control, which costs half as much
/// again as a small change does.
const SETTLE_INTERVAL: Duration = Duration::from_millis(250);

/// The most such a frame may take, as a part of what may be on the way: no move becomes jerky by it.
const SETTLE_SHARE: f64 = 0.25;

/// Frames smaller than this, in bits, are mostly headers and teach nothing about content.
const TELLING: f64 = 16_000.0;

/// What a macroblock is coded as; each costs differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// In a keyframe, from nothing.
    Intra,
    /// Changed.
    Changed,
    /// Changed, by moving as a whole, which the motion search will find.
    Moved,
    /// Unchanged, but coded more coarsely before.
    Sharpened,
}

/// Bits for each unit of activity at quantizer [`SHARP`] before anything was learned, in the order
/// of [`Class`]; measured on text.
const FIRST_COSTS: [f64; 4] = [0.11, 0.11, 0.007, 0.05];

/// The state of one stream's rate.
#[derive(Debug)]
pub(super) struct Rate {
    path: Path,
    columns: usize,
    /// How busy each macroblock is.
    activity: Vec<u32>,
    /// The quantizer each macroblock was coded with.
    quantizer: Vec<u8>,
    /// When each macroblock last changed, or was blurred a little by one beside it that did.
    changed_at: Vec<Duration>,
    /// When a frame was last made finer for what had settled.
    settled_at: Option<Duration>,
    cost: [f64; 4],
    /// Whether any frame has taught what this content costs.
    taught: bool,
    plan: Plan,
}

/// What was decided for the frame that is being encoded.
#[derive(Clone, Copy, Debug)]
struct Plan {
    quantizer: u8,
    class: Class,
    /// Bits predicted for changed and for sharpened macroblocks.
    predicted: [f64; 2],
    /// Bits that it may take.
    allowed: f64,
}

impl Rate {
    /// For pictures of `size`, over a path that takes `bitrate` and may be behind by `latency`.
    pub(super) fn new(size: Size, bitrate: Bitrate, latency: Duration, max_fps: u32) -> Self {
        let columns = size.width.div_ceil(16) as usize;
        let macroblocks = columns * size.height.div_ceil(16) as usize;
        Self {
            path: Path::new(bitrate, latency, max_fps),
            columns,
            activity: vec![0; macroblocks],
            quantizer: vec![COARSEST; macroblocks],
            changed_at: vec![Duration::ZERO; macroblocks],
            settled_at: None,
            cost: FIRST_COSTS,
            taught: false,
            plan: Plan { quantizer: SHARP, class: Class::Intra, predicted: [0.0; 2], allowed: 0.0 },
        }
    }

    pub(super) fn set_bitrate(&mut self, bitrate: Bitrate) {
        self.path.set_bitrate(bitrate);
    }

    /// Chooses the quantizer for a frame that is captured at `now`; `None` when the path is so full
    /// that the change has to wait. `luma` is `size` large, and `unchanged` has a 1 for every
    /// macroblock that is as it was.
    pub(super) fn plan(
        &mut self,
        now: Duration,
        luma: &[u8],
        width: usize,
        unchanged: &[u8],
        mode: Mode,
        moved: bool,
    ) -> Option<u8> {
        self.measure(luma, width, unchanged);
        self.touch(now, unchanged);
        let allowed = self.path.allowed(now, mode == Mode::Keyframe);
        let class = match mode {
            Mode::Keyframe => Class::Intra,
            _ if moved => Class::Moved,
            _ => Class::Changed,
        };
        // Activity of what is coded anew, and of the rest by the quantizer it was coded with.
        let (mut fresh, mut coarse) = (0.0, [0.0; COARSEST as usize + 1]);
        let blocks = self.activity.iter().zip(&self.quantizer).zip(unchanged);
        for ((&activity, &quantizer), &unchanged) in blocks {
            if mode == Mode::Keyframe || unchanged == 0 {
                fresh += f64::from(activity);
            } else {
                coarse[quantizer as usize] += f64::from(activity);
            }
        }
        let predict = |quantizer: u8| {
            let coarser = LADDER.into_iter().filter(|&old| old > quantizer);
            let sharpened: f64 =
                coarser.map(|old| coarse[old as usize] * (share(quantizer) - share(old))).sum();
            [
                self.cost[class as usize] * fresh * share(quantizer),
                self.cost[Class::Sharpened as usize] * sharpened,
            ]
        };
        let finest = match mode {
            Mode::Refine => FINEST,
            Mode::Delta if self.has_settled(now, unchanged) => FINEST,
            _ => SHARP,
        };
        let spare = allowed.min(self.path.burst * SETTLE_SHARE);
        let fits = |&quantizer: &u8| {
            let limit = if mode == Mode::Delta && quantizer < SHARP { spare } else { allowed };
            predict(quantizer).iter().sum::<f64>() <= limit
        };
        let quantizer = LADDER.into_iter().filter(|&it| it >= finest).find(fits);
        if quantizer.is_none() && mode == Mode::Delta && self.path.saved < 0.0 {
            return None;
        }
        let quantizer = quantizer.unwrap_or(COARSEST);
        if quantizer < SHARP {
            self.settled_at = Some(now);
        }
        self.plan = Plan { quantizer, class, predicted: predict(quantizer), allowed };
        Some(quantizer)
    }

    /// Whether a keyframe came out so much larger than it may be that a path with room for it would carry another
    /// one sooner. Then what it costs has been learned, and it is to be planned again.
    ///
    /// A keyframe builds on nothing, so nothing is lost by throwing one away; and the first is where costs are
    /// least known, and a path that has just become narrow least bears it.
    pub(super) fn is_too_much(&mut self, bytes: usize) -> bool {
        /// So much more is worth the time that it takes to encode it once more: then it is a second and more
        /// that a narrow path would be busy with it, at the rates of usual ones never.
        const TOO_MUCH: f64 = 3.0;
        let Plan { quantizer, class, allowed, .. } = self.plan;
        let again = class == Class::Intra
            && quantizer < COARSEST
            && bytes as f64 * 8.0 > (allowed * TOO_MUCH).max(TELLING);
        if again {
            self.learn(bytes);
        }
        again
    }

    /// Takes in what the planned frame came to.
    pub(super) fn spent(&mut self, bytes: usize, unchanged: &[u8]) {
        self.path.spend(bytes as f64 * 8.0);
        self.learn(bytes);
        let Plan { quantizer, class, .. } = self.plan;
        for (old, &unchanged) in self.quantizer.iter_mut().zip(unchanged) {
            if unchanged == 0 || class == Class::Intra || *old > quantizer {
                *old = quantizer;
            }
        }
        // x264's deblocking filter reaches across the edge of what was coded, and x264 then takes
        // the other side for no finer than the next frame.
        let columns = self.columns;
        for index in (0..unchanged.len()).filter(|&index| unchanged[index] == 0) {
            for beside in neighbours(index, columns, unchanged.len()) {
                self.quantizer[beside] = self.quantizer[beside].max(quantizer);
            }
        }
    }

    /// Learns from the planned frame what such content costs.
    fn learn(&mut self, bytes: usize) {
        let bits = bytes as f64 * 8.0;
        let Plan { class, predicted, .. } = self.plan;
        let total = predicted[0] + predicted[1];
        if bits.max(total) <= TELLING || total <= 0.0 {
            return;
        }
        let off = (bits / total).clamp(1.0 / 16.0, 16.0);
        if !std::mem::replace(&mut self.taught, true) && off > 1.0 {
            // All that is known is that it is worse than text: so it is in whatever frame it comes.
            self.cost.iter_mut().for_each(|cost| *cost *= off);
            return;
        }
        // Half the way in one frame, on a logarithmic scale: content changes at once, but one
        // odd frame should not.
        for (class, predicted) in [(class, predicted[0]), (Class::Sharpened, predicted[1])] {
            self.cost[class as usize] *= off.powf(0.5 * predicted / total);
        }
    }

    /// Takes note of what has changed now.
    fn touch(&mut self, now: Duration, unchanged: &[u8]) {
        for index in (0..unchanged.len()).filter(|&index| unchanged[index] == 0) {
            self.changed_at[index] = now;
            for beside in neighbours(index, self.columns, unchanged.len()) {
                self.changed_at[beside] = now;
            }
        }
    }

    /// Whether something stands still that could be finer, and it is time for that.
    fn has_settled(&self, now: Duration, unchanged: &[u8]) -> bool {
        let recent = |at: Duration| now < at + SETTLE_INTERVAL;
        if self.settled_at.is_some_and(recent) {
            return false;
        }
        let blocks = self.quantizer.iter().zip(&self.changed_at).zip(unchanged);
        blocks.into_iter().any(|((&quantizer, &changed_at), &unchanged)| {
            unchanged != 0 && quantizer > FINEST && now >= changed_at + SETTLED
        })
    }

    /// Measures how busy the changed macroblocks are now: the differences between neighbouring
    /// pixels, of every other row.
    fn measure(&mut self, luma: &[u8], width: usize, unchanged: &[u8]) {
        for (index, activity) in self.activity.iter_mut().enumerate() {
            if unchanged[index] != 0 {
                continue;
            }
            let (x, y) = (index % self.columns * SIDE, index / self.columns * SIDE);
            let columns = x..(x + SIDE).min(width);
            let rows = luma[y * width..].chunks_exact(width).take(SIDE);
            let mut pairs = rows.clone().zip(rows.skip(1)).step_by(2);
            *activity = pairs
                .try_fold(HEADER, |sum: u32, (row, below)| {
                    let (row, below) = (&row[columns.clone()], &below[columns.clone()]);
                    let across = row.iter().zip(&row[1..]).map(|(a, b)| u32::from(a.abs_diff(*b)));
                    let down = row.iter().zip(below).map(|(a, b)| u32::from(a.abs_diff(*b)));
                    sum.checked_add(across.sum::<u32>() + down.sum::<u32>())
                })
                .unwrap_or(u32::MAX);
        }
    }
}

/// The macroblocks left, right, above and below.
fn neighbours(index: usize, columns: usize, count: usize) -> impl Iterator<Item = usize> {
    let column = index % columns;
    let beside = [
        (column > 0).then(|| index - 1),
        (column + 1 < columns).then_some(index + 1),
        index.checked_sub(columns),
        Some(index + columns),
    ];
    beside.into_iter().flatten().filter(move |&beside| beside < count)
}

/// Bits at `quantizer`, as a share of those at [`SHARP`].
fn share(quantizer: u8) -> f64 {
    /// Steps of the quantizer that halve the bits: 6 for noise, 18 for text.
    const HALVED_BY: f64 = 12.0;
    ((f64::from(SHARP) - f64::from(quantizer)) / HALVED_BY).exp2()
}

/// What the path can take, counted by the clock.
#[derive(Debug)]
struct Path {
    bits_per_second: f64,
    latency: Duration,
    max_fps: u32,
    /// The most that can be saved up: what the path takes in `latency`.
    burst: f64,
    /// Bits that can be sent now without a queue; below zero, what the queue holds.
    saved: f64,
    last: Option<Duration>,
}

impl Path {
    fn new(bitrate: Bitrate, latency: Duration, max_fps: u32) -> Self {
        let mut path = Self {
            bits_per_second: 0.0,
            latency,
            max_fps: max_fps.max(1),
            burst: 0.0,
            saved: f64::INFINITY,
            last: None,
        };
        path.set_bitrate(bitrate);
        path
    }

    fn set_bitrate(&mut self, bitrate: Bitrate) {
        // Below this, no quantizer leaves a picture that resembles anything.
        const MIN_BPS: f64 = 50_000.0;
        self.bits_per_second = (bitrate.bps() as f64).max(MIN_BPS);
        // No less than two frames' share, or every frame would find the path full.
        let frames = 2.0 / f64::from(self.max_fps);
        self.burst = self.bits_per_second * self.latency.as_secs_f64().max(frames);
        self.saved = self.saved.min(self.burst);
    }

    /// Counts the time up to `now` and says how many bits a frame may take: what has flowed off
    /// since the frame before, or half of what is saved. The half is what keeps a moving picture
    /// at an even quality, where spending it all would make one sharp frame and then many coarse.
    fn allowed(&mut self, now: Duration, keyframe: bool) -> f64 {
        /// The least a frame may take, as a part of the burst, however full the path is.
        const LEAST: f64 = 0.05;
        let elapsed = self.last.map_or(self.latency, |last| now.saturating_sub(last));
        self.last = Some(now);
        let gained = self.bits_per_second * elapsed.as_secs_f64();
        self.saved = (self.saved + gained).min(self.burst);
        if keyframe {
            // Somebody looks at nothing but this one; what comes after it can wait.
            return self.saved.max(self.burst / 2.0);
        }
        gained.min(self.saved).max(self.saved / 2.0).max(self.burst * LEAST)
    }

    fn spend(&mut self, bits: f64) {
        // What was sent is on the way for as long as the path needs. Only what nobody would wait for,
        // since another picture is worth more, is forgiven.
        const LONGEST_DEBT: f64 = 1.0;
        self.saved = (self.saved - bits).max(-self.bits_per_second * LONGEST_DEBT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size::new(160, 160);
    const FRAME: Duration = Duration::from_millis(20);

    /// A picture of columns in black and white, which is as busy as it gets.
    fn busy() -> Vec<u8> {
        (0..160 * 160).map(|index| if index % 2 == 0 { 16 } else { 235 }).collect()
    }

    fn rate(kbps: u32) -> Rate {
        Rate::new(SIZE, Bitrate::from_kbps(kbps), Duration::from_millis(100), 50)
    }

    /// Encodes `frames` whole pictures that come to `bytes` at quantizer 23 and halve every 12
    /// steps; returns the quantizers, 0 for one that had to wait, and the bytes.
    fn play(rate: &mut Rate, frames: u32, bytes: f64) -> (Vec<u8>, f64) {
        let (luma, unchanged) = (busy(), [0; 100]);
        let mut total = 0.0;
        let quantizers = (0..frames).map(|index| {
            let now = FRAME * index;
            match rate.plan(now, &luma, 160, &unchanged, Mode::Delta, false) {
                Some(quantizer) => {
                    let size = bytes * share(quantizer);
                    rate.spent(size as usize, &unchanged);
                    total += size;
                    quantizer
                }
                None => 0,
            }
        });
        (quantizers.collect(), total)
    }

    #[test]
    fn the_quantizer_is_constant_while_the_path_has_room() {
        // 50 frames of 10 KB a second are 4 Mbit/s.
        let (quantizers, _) = play(&mut rate(20_000), 200, 10_000.0);
        assert!(quantizers[20..].iter().all(|&quantizer| quantizer == SHARP), "{quantizers:?}");
    }

    #[test]
    fn a_full_path_makes_frames_coarser_and_holds_the_rate() {
        let (quantizers, total) = play(&mut rate(2_000), 200, 10_000.0);
        assert!(quantizers.iter().all(|&quantizer| quantizer != 0), "{quantizers:?}");
        let kbps = total * 8.0 / 4.0 / 1_000.0;
        assert!((1_700.0..2_300.0).contains(&kbps), "{kbps}");
    }

    #[test]
    fn what_is_too_much_even_at_the_coarsest_waits() {
        let (quantizers, total) = play(&mut rate(500), 200, 10_000.0);
        assert!(quantizers.contains(&0) && quantizers.contains(&COARSEST), "{quantizers:?}");
        let kbps = total * 8.0 / 4.0 / 1_000.0;
        assert!((400.0..650.0).contains(&kbps), "{kbps}");
    }

    #[test]
    fn a_small_change_need_not_wait_and_what_was_coarse_is_not_coded_again_meanwhile() {
        let mut rate = rate(500);
        let (luma, whole) = (busy(), [0; 100]);
        let key = rate.plan(FRAME, &luma, 160, &whole, Mode::Keyframe, false).unwrap();
        assert_eq!(key, COARSEST, "50 kbit will not hold all of it");
        rate.spent(20_000, &whole);
        assert_eq!(rate.plan(FRAME * 2, &luma, 160, &whole, Mode::Delta, false), None);
        let mut caret = [1; 100];
        caret[55] = 0;
        let next = rate.plan(FRAME * 3, &luma, 160, &caret, Mode::Delta, false);
        assert_eq!(next, Some(COARSEST));
        rate.spent(30, &caret);
        // A second later there is room to go over all of it.
        let later = Duration::from_secs(1);
        let sharper = rate.plan(later, &luma, 160, &caret, Mode::Delta, false).unwrap();
        assert!(sharper < COARSEST);
    }

    #[test]
    fn the_first_keyframe_that_is_far_too_large_is_made_again_and_teaches_what_all_of_it_costs() {
        let mut rate = rate(2_000);
        let (luma, whole) = (busy(), [0; 100]);
        let mut encode = |now, mode| {
            let quantizer = rate.plan(now, &luma, 160, &whole, mode, false)?;
            let size = |quantizer| (200_000.0 * share(quantizer)) as usize;
            let again = mode == Mode::Keyframe && rate.is_too_much(size(quantizer));
            let last =
                if again { rate.plan(now, &luma, 160, &whole, mode, false)? } else { quantizer };
            assert!(!rate.is_too_much(size(last)) || last == COARSEST, "once is enough");
            rate.spent(size(last), &whole);
            Some((quantizer, last))
        };
        let (first, last) = encode(FRAME, Mode::Keyframe).unwrap();
        assert!(first < last, "{first} and then {last}");
        // 25 KB may be on the way, and more than that is.
        assert_eq!(encode(FRAME * 2, Mode::Delta), None);
    }

    #[test]
    fn only_a_refinement_is_finer_than_sharp() {
        let mut rate = rate(100_000);
        let (luma, still) = (busy(), [1; 100]);
        assert_eq!(rate.plan(FRAME, &luma, 160, &[0; 100], Mode::Keyframe, false), Some(SHARP));
        rate.spent(1_000, &[0; 100]);
        assert_eq!(rate.plan(FRAME * 2, &luma, 160, &still, Mode::Delta, false), Some(SHARP));
        rate.spent(10, &still);
        let refined = rate.plan(FRAME * 3, &luma, 160, &still, Mode::Refine, false);
        assert_eq!(refined, Some(LADDER[0]));
    }

    #[test]
    fn what_has_settled_beside_a_move_is_made_finer_in_few_frames() {
        let mut rate = rate(100_000);
        let luma = busy();
        assert_eq!(rate.plan(FRAME, &luma, 160, &[0; 100], Mode::Keyframe, false), Some(SHARP));
        rate.spent(1_000, &[0; 100]);
        let mut moving = [1; 100];
        moving[44] = 0;
        let mut finer = Vec::new();
        for index in 2..52 {
            let now = FRAME * index;
            let quantizer = rate.plan(now, &luma, 160, &moving, Mode::Delta, false).unwrap();
            rate.spent(200, &moving);
            if quantizer == FINEST {
                finer.push(now);
            } else {
                assert_eq!(quantizer, SHARP);
            }
        }
        // The keyframe settles after 200 ms. What moves, and what is beside it, never does, so there
        // is nothing left to do.
        assert_eq!(finer, [Duration::from_millis(220)]);
        // It stops, and something else goes on.
        let mut other = [1; 100];
        other[0] = 0;
        for index in 52..82 {
            let now = FRAME * index;
            if rate.plan(now, &luma, 160, &other, Mode::Delta, false) == Some(FINEST) {
                finer.push(now);
            }
            rate.spent(200, &other);
        }
        assert_eq!(finer[1..], [FRAME * 51 + SETTLED]);
    }

    #[test]
    fn making_finer_what_has_settled_takes_a_small_part_of_the_path() {
        let (luma, whole) = (busy(), [0; 100]);
        let mut moving = [1; 100];
        moving[44] = 0;
        let later = FRAME + SETTLED;
        let plan = |kbps: u32| {
            let mut rate = rate(kbps);
            rate.plan(FRAME, &luma, 160, &whole, Mode::Keyframe, false).unwrap();
            rate.spent(1_000, &whole);
            // As if it had been coded at the usual quantizer, for all rates alike.
            rate.quantizer.fill(SHARP);
            rate.plan(later, &luma, 160, &moving, Mode::Delta, false).unwrap()
        };
        let quantizers = [100_000, 12_000, 7_000, 500].map(plan);
        assert_eq!(quantizers[0], FINEST);
        assert!(quantizers.is_sorted(), "{quantizers:?}");
        assert!(quantizers[3] >= SHARP, "{quantizers:?}");
    }

    #[test]
    fn neighbours_are_within_the_picture() {
        let of = |index| neighbours(index, 3, 6).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(5)), (vec![1, 3], vec![0, 2, 4], vec![4, 2]));
    }

    #[test]
    fn activity_is_that_of_the_macroblock() {
        let mut rate = Rate::new(Size::new(40, 20), Bitrate::default(), FRAME, 50);
        let luma: Vec<u8> = (0..40 * 20).map(|index| u8::from(index % 40 == 20) * 100).collect();
        rate.measure(&luma, 40, &[0; 6]);
        // A line one pixel wide has two edges in each of eight rows of the upper macroblock, and
        // in each of two rows of the lower one, which is cut off.
        assert_eq!(rate.activity, [64, 64 + 8 * 200, 64, 64, 64 + 2 * 200, 64]);
    }
}
