//! A generated picture, for tests and for people without a desktop.
//!
//! From top to bottom: the [`counter`] with the number of the picture, eight colour bars (white,
//! yellow, cyan, green, magenta, red, blue, black, each at full strength), and a strip in which a
//! block runs from left to right once in two seconds, so that a stutter is seen at once.
//!
//! Picture `n` is due at `n / fps` on the media clock and carries `n` modulo 65,536: whoever
//! reads the marker knows when the picture was made.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use spaceport_types::{Bounds, Rect, Result, Size};

use super::{Source, counter};
use crate::Frame;

/// What the pattern looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Size of the picture. One smaller than [`counter::SIZE`] carries no counter.
    pub size: Size,
    /// Pictures per second, at least 1.
    pub fps: u32,
    /// Never changes after its first picture.
    pub still: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { size: Size::new(1280, 720), fps: 30, still: false }
    }
}

/// A [`Source`] that generates its pictures.
#[derive(Debug)]
pub struct TestPattern {
    config: Config,
    pixels: Vec<u8>,
    /// The number of the picture in `pixels`; `None` before the first.
    drawn: Option<u64>,
    runner: Rect,
    damage: Vec<Rect>,
}

impl TestPattern {
    /// A pattern that looks as `config` says. Sides of zero become one pixel.
    pub fn new(mut config: Config) -> Self {
        config.size = Size::new(config.size.width.max(1), config.size.height.max(1));
        config.fps = config.fps.max(1);
        let pixels = vec![0; config.size.bounds().area() as usize * 4];
        let mut pattern =
            Self { config, pixels, drawn: None, runner: Rect::default(), damage: Vec::new() };
        pattern.draw_background();
        pattern
    }

    /// The number of the picture that is due at `now`.
    fn due(&self, now: Duration) -> u64 {
        match (self.config.still, self.drawn) {
            (true, Some(drawn)) => drawn,
            _ => (now.as_nanos() * u128::from(self.config.fps) / 1_000_000_000) as u64,
        }
    }

    fn draw_background(&mut self) {
        let size = self.config.size;
        let bars = self.bars();
        for (index, &colour) in BARS.iter().enumerate() {
            let left = size.width * index as u32 / BARS.len() as u32;
            let right = size.width * (index as u32 + 1) / BARS.len() as u32;
            self.fill(Rect::new(left, bars.y, right - left, bars.height), colour);
        }
        self.fill(Rect::new(0, 0, size.width, bars.y), STRIP);
        self.fill(self.track(), STRIP);
    }

    fn draw(&mut self, number: u64) {
        self.damage.clear();
        if counter::BOUNDS.clamped(self.config.size) == Some(counter::BOUNDS) {
            for (cell, white) in counter::cells(number as u16) {
                self.fill(cell, if white { WHITE } else { BLACK });
            }
            self.damage.push(counter::BOUNDS);
        }
        let track = self.track();
        if !track.is_empty() {
            let lap = u64::from(self.config.fps) * 2;
            let width = (track.width / 16).max(1);
            let x = (u64::from(track.width - width) * (number % lap) / lap) as u32;
            let runner = Rect::new(x, track.y, width, track.height);
            self.fill(self.runner, STRIP);
            self.fill(runner, RUNNER);
            self.damage.push(self.runner.union(runner));
            self.runner = runner;
        }
        self.drawn = Some(number);
    }

    /// Where the colour bars are: below the counter, above the track.
    fn bars(&self) -> Rect {
        let size = self.config.size;
        let top = counter::SIZE.height.min(size.height);
        Rect::new(0, top, size.width, self.track().y.saturating_sub(top))
    }

    /// The strip at the bottom that the block runs in.
    fn track(&self) -> Rect {
        let size = self.config.size;
        let height = (size.height.saturating_sub(counter::SIZE.height)) / 8;
        Rect::new(0, size.height - height, size.width, height)
    }

    fn fill(&mut self, rect: Rect, colour: [u8; 4]) {
        let Some(rect) = rect.clamped(self.config.size) else { return };
        let stride = self.config.size.width as usize * 4;
        for row in
            self.pixels.chunks_exact_mut(stride).skip(rect.y as usize).take(rect.height as usize)
        {
            let row = &mut row[rect.x as usize * 4..rect.right() as usize * 4];
            row.as_chunks_mut().0.fill(colour);
        }
    }
}

impl Source for TestPattern {
    fn bounds(&self) -> Bounds {
        self.config.size.into()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_due(&self) -> Option<Duration> {
        match self.drawn {
            None => Some(Duration::ZERO),
            Some(_) if self.config.still => None,
            // Rounded up, so that the picture really is due when the wait is over.
            Some(drawn) => Some(Duration::from_nanos(
                ((drawn + 1) * 1_000_000_000).div_ceil(u64::from(self.config.fps)),
            )),
        }
    }

    fn has_damage(&mut self, now: Duration) -> Result<bool> {
        Ok(self.drawn != Some(self.due(now)))
    }

    fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>> {
        let due = self.due(now);
        let first = self.drawn.is_none();
        self.damage.clear();
        if self.drawn != Some(due) {
            self.draw(due);
        }
        if full || first {
            self.damage.clear();
            self.damage.push(self.config.size.bounds());
        }
        Ok(Frame {
            pixels: &self.pixels,
            stride: self.config.size.width as usize * 4,
            size: self.config.size,
            damage: &self.damage,
            captured_at: now,
        })
    }
}

// Blue, green, red, unused.
const WHITE: [u8; 4] = [255, 255, 255, 255];
const BLACK: [u8; 4] = [0, 0, 0, 255];
const STRIP: [u8; 4] = [48, 40, 36, 255];
const RUNNER: [u8; 4] = [80, 176, 255, 255];
const BARS: [[u8; 4]; 8] = [
    WHITE,
    [0, 255, 255, 255],
    [255, 255, 0, 255],
    [0, 255, 0, 255],
    [255, 0, 255, 255],
    [0, 0, 255, 255],
    [255, 0, 0, 255],
    BLACK,
];

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pixel(frame: &Frame<'_>, x: u32, y: u32) -> [u8; 4] {
        let at = y as usize * frame.stride + x as usize * 4;
        frame.pixels[at..at + 4].try_into().unwrap()
    }

    fn counter_of(frame: &Frame<'_>) -> Option<u16> {
        counter::decode(|x, y| pixel(frame, x, y)[1])
    }

    #[test]
    fn the_counter_tells_when_the_picture_was_due() {
        let mut pattern = TestPattern::new(Config { fps: 10, ..Config::default() });
        let frame = pattern.grab(SECOND * 3, false).unwrap();
        assert_eq!(counter_of(&frame), Some(30));
        assert_eq!(frame.damage, [Size::new(1280, 720).bounds()], "the first picture is all new");
        assert_eq!(pattern.next_due(), Some(Duration::from_millis(3100)));
        assert!(!pattern.has_damage(Duration::from_millis(3099)).unwrap());
        assert!(pattern.has_damage(Duration::from_millis(3100)).unwrap());
    }

    #[test]
    fn only_what_the_damage_names_changes() {
        let size = Size::new(789, 595);
        let mut pattern = TestPattern::new(Config { size, ..Config::default() });
        let mut seen = pattern.grab(Duration::ZERO, false).unwrap().pixels.to_vec();
        for step in 1..200 {
            let frame = pattern.grab(SECOND * step / 30, false).unwrap();
            let stride = frame.stride;
            for rect in frame.damage {
                assert_eq!(rect.clamped(size), Some(*rect));
                for y in rect.y as usize..rect.bottom() as usize {
                    let row =
                        y * stride + rect.x as usize * 4..y * stride + rect.right() as usize * 4;
                    seen[row.clone()].copy_from_slice(&frame.pixels[row]);
                }
            }
            assert!(seen == frame.pixels, "picture {step} changed outside its damage");
        }
    }

    #[test]
    fn a_still_pattern_changes_once() {
        let mut pattern = TestPattern::new(Config { still: true, ..Config::default() });
        assert!(pattern.has_damage(SECOND).unwrap());
        pattern.grab(SECOND, false).unwrap();
        assert!(!pattern.has_damage(SECOND * 60).unwrap());
        assert_eq!(pattern.next_due(), None);
        assert!(pattern.grab(SECOND * 60, false).unwrap().damage.is_empty());
        assert!(!pattern.grab(SECOND * 60, true).unwrap().damage.is_empty());
    }

    #[test]
    fn the_bars_are_pure_and_any_size_works() {
        for size in [Size::new(1, 1), Size::new(3, 40), Size::new(383, 33), Size::new(1920, 1080)] {
            let mut pattern = TestPattern::new(Config { size, ..Config::default() });
            let frame = pattern.grab(SECOND, false).unwrap();
            assert_eq!(frame.pixels.len(), size.bounds().area() as usize * 4);
            if size.width == 1920 {
                assert_eq!(pixel(&frame, 10, 500), WHITE);
                assert_eq!(pixel(&frame, 1910, 500), BLACK);
            }
        }
    }
}
