//! Notices that a picture scrolled, and by how much.
//!
//! Motion search wide enough for a scroll costs twice the CPU on anything else, so it is only
//! switched on for a frame this module calls a scroll. Rows are hashed in strips of
//! [`STRIP`] columns; rows that reappear some rows further up or down vote for that distance.
//! Text scrolls by whole pixels, so equal luma is enough, and noise or video never votes.

use spaceport_types::{Rect, Size};

/// Columns that are hashed together: narrow enough that a window holds a few whole ones, wide
/// enough that a hash is worth its table entry.
const STRIP: usize = 128;

/// The largest distance looked for, in rows. Further apart, so little of a window is common to
/// both pictures that a wide search no longer pays.
const MAX_DISTANCE: usize = 240;

/// Rows, over all strips, that must agree: fewer is a coincidence, or not worth a wide search.
const MIN_VOTES: u32 = 48;

/// One in this many rows that changed must agree.
const AGREEING_SHARE: u32 = 4;

/// Row hashes of the last picture.
#[derive(Debug)]
pub(super) struct Detector {
    size: Size,
    strips: usize,
    /// Strip after strip, one hash a row.
    hashes: Vec<u64>,
    /// For one strip: the hashes its rows had before this picture.
    before: Vec<u64>,
    /// For one strip: the row each hash was at. Open addressing, at most half full.
    table: Vec<(u64, u32)>,
    votes: Vec<u32>,
}

/// Marks a free table entry.
const FREE: u32 = u32::MAX;

/// Marks a hash that several rows have: blank lines say nothing about distance.
const AMBIGUOUS: u32 = u32::MAX - 1;

impl Detector {
    /// A detector for luma planes of `size`.
    pub(super) fn new(size: Size) -> Self {
        let (strips, rows) = (size.width as usize / STRIP, size.height as usize);
        Self {
            size,
            strips,
            hashes: vec![0; strips * rows],
            before: vec![0; rows],
            table: vec![(0, FREE); (rows * 2).next_power_of_two()],
            votes: vec![0; MAX_DISTANCE * 2 + 1],
        }
    }

    /// Takes in what changed in `luma` and says by how many rows it scrolled, positive for
    /// content that moved down; `None` when it did not.
    pub(super) fn observe(&mut self, luma: &[u8], damage: &[Rect]) -> Option<i32> {
        let rows = self.size.height as usize;
        let mut changed = 0;
        self.votes.fill(0);
        for strip in 0..self.strips {
            let (left, right) = ((strip * STRIP) as u32, ((strip + 1) * STRIP) as u32);
            let touches = |rect: &&Rect| rect.x < right && rect.right() > left;
            let Some(span) = damage.iter().filter(touches).copied().reduce(Rect::union) else {
                continue;
            };
            let (top, bottom) = (span.y as usize, (span.bottom() as usize).min(rows));
            let hashes = &mut self.hashes[strip * rows..(strip + 1) * rows];
            let before = &mut self.before[top..bottom];
            before.copy_from_slice(&hashes[top..bottom]);
            for (offset, slot) in hashes[top..bottom].iter_mut().enumerate() {
                let start = (top + offset) * self.size.width as usize + strip * STRIP;
                *slot = hash(&luma[start..start + STRIP]);
            }
            if bottom - top >= MIN_VOTES as usize / 2 {
                changed += vote(&mut self.table, &mut self.votes, before, &hashes[top..bottom]);
            }
        }
        let (index, &votes) = self.votes.iter().enumerate().max_by_key(|&(_, &votes)| votes)?;
        let scrolled = votes >= MIN_VOTES && votes * AGREEING_SHARE >= changed;
        scrolled.then(|| index as i32 - MAX_DISTANCE as i32)
    }
}

/// Votes for the distance of every row that can be recognised; returns how many rows changed.
fn vote(table: &mut [(u64, u32)], votes: &mut [u32], before: &[u64], after: &[u64]) -> u32 {
    table.fill((0, FREE));
    let mask = table.len() - 1;
    let find = |table: &[(u64, u32)], hash: u64| {
        let mut slot = hash as usize & mask;
        while table[slot].1 != FREE && table[slot].0 != hash {
            slot = (slot + 1) & mask;
        }
        slot
    };
    for (row, &hash) in before.iter().enumerate() {
        let slot = find(table, hash);
        let seen = table[slot].1 != FREE;
        table[slot] = (hash, if seen { AMBIGUOUS } else { row as u32 });
    }
    let mut changed = 0;
    for (row, &hash) in after.iter().enumerate() {
        if before[row] == hash {
            continue;
        }
        let (_, old) = table[find(table, hash)];
        if old == AMBIGUOUS {
            continue;
        }
        changed += 1;
        if old != FREE {
            let index = (row + MAX_DISTANCE).checked_sub(old as usize);
            if let Some(votes) = index.and_then(|index| votes.get_mut(index)) {
                *votes += 1;
            }
        }
    }
    changed
}

/// A fast hash of one row of a strip; two lanes, so that one multiplication need not wait for the
/// other.
fn hash(row: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut lanes = [0u64; 2];
    for pair in row.chunks_exact(16) {
        for (lane, word) in lanes.iter_mut().zip(pair.chunks_exact(8)) {
            let word = word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            *lane = (*lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
        }
    }
    (lanes[0] ^ lanes[1].rotate_left(32)).wrapping_mul(FACTOR).rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::convert::{Canvas, Layout, Matrix};
    use crate::encode::tests::Screen;

    /// A screen, and what the detector makes of its changes.
    struct Watch {
        screen: Screen,
        canvas: Canvas,
        detector: Detector,
    }

    impl Watch {
        fn new(draw: impl FnOnce(&mut Screen)) -> Self {
            let mut screen = Screen::new(1280, 720);
            draw(&mut screen);
            let canvas = Canvas::new(Layout::Nv12, Matrix::Bt709, screen.size, screen.size);
            let detector = Detector::new(canvas.coded());
            let mut watch = Self { screen, canvas, detector };
            assert_eq!(watch.see(Rect::new(0, 0, 1280, 720)), None, "the first picture");
            watch
        }

        fn see(&mut self, damage: Rect) -> Option<i32> {
            self.canvas.update(&self.screen.frame(&[damage])).unwrap();
            self.detector.observe(self.canvas.luma(), self.canvas.damage())
        }
    }

    const WINDOW: Rect = Rect::new(100, 50, 900, 600);

    #[test]
    fn scrolled_text_is_a_hit_with_its_distance() {
        let mut watch = Watch::new(|screen| screen.text(WINDOW));
        for rows in [1, 16, 36, 120, 7, 240] {
            watch.screen.scroll(WINDOW, rows);
            assert_eq!(watch.see(WINDOW), Some(-(rows as i32)));
        }
        watch.screen.scroll(WINDOW, 300);
        assert_eq!(watch.see(WINDOW), None, "further than the motion search reaches");
    }

    #[test]
    fn a_scroll_is_seen_around_a_caret_that_moved() {
        let mut watch = Watch::new(|screen| screen.text(WINDOW));
        watch.screen.scroll(WINDOW, 32);
        watch.screen.fill(Rect::new(300, 300, 8, 16), [0, 0, 255]);
        assert_eq!(watch.see(WINDOW), Some(-32));
    }

    #[test]
    fn what_does_not_scroll_is_no_hit() {
        let mut watch = Watch::new(|screen| screen.text(WINDOW));
        watch.screen.text(WINDOW);
        assert_eq!(watch.see(WINDOW), None, "all of the text is new");
        watch.screen.noise(WINDOW);
        assert_eq!(watch.see(WINDOW), None, "noise");
        watch.screen.fill(WINDOW, [255, 255, 255]);
        assert_eq!(watch.see(WINDOW), None, "one color");
        watch.screen.fill(WINDOW, [0, 0, 0]);
        assert_eq!(watch.see(WINDOW), None, "another color");
        assert_eq!(watch.see(WINDOW), None, "no change at all");
        watch.screen.fill(Rect::new(300, 300, 8, 16), [0, 0, 255]);
        assert_eq!(watch.see(Rect::new(300, 300, 8, 16)), None, "a caret");
    }

    #[test]
    fn a_picture_narrower_than_a_strip_is_no_hit_and_no_panic() {
        let mut detector = Detector::new(Size::new(2, 2));
        assert_eq!(detector.observe(&[0; 4], &[Rect::new(0, 0, 2, 2)]), None);
    }
}
