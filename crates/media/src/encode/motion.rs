//! Notices that a part of the picture moved as a whole: a scroll, a window that is dragged.
//!
//! Motion search wide enough to find that costs twice the CPU on anything else, so it is only
//! switched on for a frame that is known to need it. Before a change, some busy spots are
//! remembered from where it will be; after it, they are looked for nearby. Most of those that are
//! not where they were have to be found at one and the same distance. Desktops move by whole
//! pixels, so a spot is found only if every pixel of it is equal, and noise or video never agrees.

use spaceport_types::{Rect, Size};

/// Spots that are remembered at most: enough that a quarter of them is no coincidence.
const SPOTS: usize = 64;

/// Spots that are searched for everywhere; the others only where those were found.
const SEARCHES: usize = 12;

/// Pixels of a spot, in a row and in rows. About two characters of text, without their whole
/// height, so that not every other word has it.
const WIDTH: usize = 16;
const HEIGHT: usize = 6;

/// How far up and down a scroll is looked for, in pixels. Further, and so little of a window is
/// common to both pictures that a wide search no longer pays.
const SCROLL: i32 = 240;

/// How far in any direction: a window that is dragged fast, at 30 pictures a second.
const DRAG: i32 = 64;

/// Spots that have to agree, and what part of those that are not where they were.
const MIN_VOTES: u32 = 4;
const AGREEING_SHARE: u32 = 3;

/// A change smaller than this on either side is not worth the search.
const MIN_SIDE: u32 = 48;

/// How far something moved, in pixels to the right and down.
pub(super) type Distance = (i32, i32);

/// Remembers spots of one picture to find them in the next.
#[derive(Debug)]
pub(super) struct Detector {
    size: Size,
    spots: Vec<Spot>,
    /// Where spots were found, and how many there.
    found: Vec<(Distance, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Spot {
    x: usize,
    y: usize,
    rows: [[u8; WIDTH]; HEIGHT],
}

impl Detector {
    /// A detector for luma planes of `size`.
    pub(super) fn new(size: Size) -> Self {
        Self { size, spots: Vec::with_capacity(SPOTS), found: Vec::new() }
    }

    /// Remembers what is in `luma` where `damage` says that it will change.
    pub(super) fn before(&mut self, luma: &[u8], damage: &[Rect]) {
        self.spots.clear();
        let large = |rect: &Rect| rect.width >= MIN_SIDE && rect.height >= MIN_SIDE;
        let rects = || damage.iter().filter_map(|rect| rect.clamped(self.size)).filter(large);
        let area: u64 = rects().map(Rect::area).sum();
        for rect in rects() {
            // A grid of cells as square as can be, each giving one spot.
            let share = (SPOTS as u64 * rect.area() / area).max(4) as f64;
            let aspect = f64::from(rect.width) / f64::from(rect.height);
            let columns = (share * aspect).sqrt().clamp(1.0, share) as u32;
            let rows = (share as u32 / columns).max(1);
            for (column, row) in (0..rows).flat_map(|row| (0..columns).map(move |it| (it, row))) {
                let (width, height) = (rect.width / columns, rect.height / rows);
                let cell = Rect::new(rect.x + column * width, rect.y + row * height, width, height);
                if self.spots.len() < SPOTS
                    && let Some(spot) = self.busy_spot(luma, cell)
                {
                    self.spots.push(spot);
                }
            }
        }
    }

    /// Says how far most of what was remembered has moved, now that `luma` has changed; `None`
    /// when it did not, or not together.
    pub(super) fn after(&mut self, luma: &[u8]) -> Option<Distance> {
        self.found.clear();
        let (mut moved, mut searches) = (0, 0);
        // In an order that jumps about, so that the few searches are spread over the picture.
        let count = self.spots.len();
        for index in (0..8).flat_map(|first| (first..count).step_by(8)) {
            let spot = self.spots[index];
            if self.is_at(luma, &spot, (0, 0)) {
                continue;
            }
            moved += 1;
            let known = self.found.iter().position(|&(there, _)| self.is_at(luma, &spot, there));
            if let Some(known) = known {
                self.found[known].1 += 1;
            } else if searches < SEARCHES {
                searches += 1;
                self.found.extend(self.search(luma, &spot).map(|distance| (distance, 1)));
            }
        }
        let &(distance, votes) = self.found.iter().max_by_key(|&&(_, votes)| votes)?;
        (votes >= MIN_VOTES && votes * AGREEING_SHARE >= moved).then_some(distance)
    }

    /// A spot of `cell` that can be told from others.
    fn busy_spot(&self, luma: &[u8], cell: Rect) -> Option<Spot> {
        /// Rows of a cell that are looked at: enough to get past the space between two lines.
        const TRIES: u32 = 24;
        /// Differences between neighbours that stand out, in all of a spot.
        const EDGES: usize = 20;
        let middle = cell.y + cell.height / 2;
        (0..TRIES).step_by(3).find_map(|offset| {
            let y = (middle + offset) as usize;
            let x = (cell.x + cell.width / 2) as usize;
            let rows = self.rows_at(luma, x, y)?;
            let edges = rows.iter().flat_map(|row| row.windows(2));
            let edges = edges.filter(|pair| pair[0].abs_diff(pair[1]) > 8).count();
            (edges >= EDGES).then_some(Spot { x, y, rows })
        })
    }

    fn rows_at(&self, luma: &[u8], x: usize, y: usize) -> Option<[[u8; WIDTH]; HEIGHT]> {
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        if x + WIDTH > width || y + HEIGHT > height {
            return None;
        }
        let mut rows = [[0; WIDTH]; HEIGHT];
        for (offset, row) in rows.iter_mut().enumerate() {
            row.copy_from_slice(&luma[(y + offset) * width + x..][..WIDTH]);
        }
        Some(rows)
    }

    fn is_at(&self, luma: &[u8], spot: &Spot, (dx, dy): Distance) -> bool {
        let place = |at: usize, by: i32| usize::try_from(at as i64 + i64::from(by)).ok();
        let (Some(x), Some(y)) = (place(spot.x, dx), place(spot.y, dy)) else { return false };
        self.rows_at(luma, x, y).is_some_and(|rows| rows == spot.rows)
    }

    /// Looks for `spot` everywhere: up and down first, then all around.
    fn search(&self, luma: &[u8], spot: &Spot) -> Option<Distance> {
        let straight = (1..=SCROLL).flat_map(|by| [(0, -by), (0, by)]);
        if let Some(found) = { straight }.find(|&there| self.is_at(luma, spot, there)) {
            return Some(found);
        }
        let (width, height) = (self.size.width as usize, self.size.height as usize);
        let left = spot.x.saturating_sub(DRAG as usize);
        let right = (spot.x + DRAG as usize + WIDTH).min(width);
        let top = spot.y.saturating_sub(DRAG as usize);
        let bottom = (spot.y + DRAG as usize + HEIGHT).min(height);
        for y in top..bottom {
            let row = &luma[y * width + left..y * width + right];
            for (offset, pixels) in row.windows(WIDTH).enumerate() {
                if pixels == spot.rows[0] {
                    let dx = (left + offset) as i32 - spot.x as i32;
                    let distance = (dx, y as i32 - spot.y as i32);
                    if distance != (0, 0) && self.is_at(luma, spot, distance) {
                        return Some(distance);
                    }
                }
            }
        }
        None
    }
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
            let mut canvas = Canvas::new(Layout::Nv12, Matrix::Bt709, screen.size, screen.size);
            canvas.update(&screen.frame(&[])).unwrap();
            let detector = Detector::new(canvas.coded());
            Self { screen, canvas, detector }
        }

        fn see(&mut self, damage: &[Rect]) -> Option<Distance> {
            self.detector.before(self.canvas.luma(), damage);
            self.canvas.update(&self.screen.frame(damage)).unwrap();
            self.detector.after(self.canvas.luma())
        }
    }

    const WINDOW: Rect = Rect::new(100, 50, 900, 600);

    #[test]
    fn scrolled_text_is_found_with_its_distance() {
        let mut watch = Watch::new(|screen| screen.text(WINDOW));
        for rows in [1, 16, 36, 120, 7, 240] {
            watch.screen.scroll(WINDOW, rows);
            assert_eq!(watch.see(&[WINDOW]), Some((0, -(rows as i32))));
        }
        watch.screen.scroll(WINDOW, 300);
        assert_eq!(watch.see(&[WINDOW]), None, "further than is looked for");
    }

    #[test]
    fn a_scroll_is_seen_around_a_caret_that_moved() {
        let mut watch = Watch::new(|screen| screen.text(WINDOW));
        watch.screen.scroll(WINDOW, 32);
        watch.screen.fill(Rect::new(300, 300, 8, 16), [0, 0, 255]);
        assert_eq!(watch.see(&[WINDOW]), Some((0, -32)));
    }

    #[test]
    fn a_dragged_window_is_found_in_every_direction() {
        let mut at = Rect::new(300, 200, 400, 300);
        let mut watch = Watch::new(|screen| {
            screen.noise(screen.size.bounds());
            screen.text(at);
        });
        for (dx, dy) in [(12, 5), (-64, 3), (1, -1), (0, 40), (-7, -64), (33, 0)] {
            let place = |from: u32, by: i32| from.checked_add_signed(by).unwrap();
            let to = Rect { x: place(at.x, dx), y: place(at.y, dy), ..at };
            watch.screen.drag(at, to);
            assert_eq!(watch.see(&[at.union(to)]), Some((dx, dy)));
            at = to;
        }
    }

    #[test]
    fn what_does_not_move_is_not_found() {
        let mut watch = Watch::new(|screen| screen.text(WINDOW));
        watch.screen.text(WINDOW);
        assert_eq!(watch.see(&[WINDOW]), None, "all of the text is new");
        watch.screen.noise(WINDOW);
        assert_eq!(watch.see(&[WINDOW]), None, "noise for text");
        watch.screen.noise(WINDOW);
        assert_eq!(watch.see(&[WINDOW]), None, "noise for noise");
        watch.screen.fill(WINDOW, [255, 255, 255]);
        assert_eq!(watch.see(&[WINDOW]), None, "one color");
        watch.screen.fill(WINDOW, [0, 0, 0]);
        assert_eq!(watch.see(&[WINDOW]), None, "another color");
        assert_eq!(watch.see(&[WINDOW]), None, "no change at all");
        let caret = Rect::new(300, 300, 8, 16);
        watch.screen.fill(caret, [0, 0, 255]);
        assert_eq!(watch.see(&[caret]), None, "a caret");
        assert_eq!(watch.see(&[]), None, "no damage");
    }

    #[test]
    fn small_pictures_and_damage_at_their_edge_are_no_trouble() {
        for (width, height) in [(2, 2), (16, 6), (60, 60), (66, 130)] {
            let mut detector = Detector::new(Size::new(width, height));
            let mut screen = Screen::new(width, height);
            for _ in 0..2 {
                screen.noise(screen.size.bounds());
                let luma: Vec<u8> = screen.pixels.iter().step_by(4).copied().collect();
                detector.before(&luma, &[Rect::new(0, 0, u32::MAX, u32::MAX)]);
                assert_eq!(detector.after(&luma), None);
            }
        }
    }
}
