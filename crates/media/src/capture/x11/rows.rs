//! Finds what changed in a picture by the hashes of its rows.

use spaceport_types::{Rect, Size};

/// The hashes of a picture's rows, and which of them changed since they were last taken.
#[derive(Debug)]
pub(super) struct Rows {
    hashes: Vec<u64>,
    changed: Vec<bool>,
}

impl Rows {
    pub(super) fn new(size: Size) -> Self {
        let height = size.height as usize;
        Self { hashes: vec![0; height], changed: vec![false; height] }
    }

    /// The rows of a picture, none of them changed.
    pub(super) fn of(pixels: &[u8], stride: usize, size: Size) -> Self {
        let mut rows = Self::new(size);
        rows.compare(pixels, stride, size.width);
        rows.changed.fill(false);
        rows
    }

    /// Compares the rows of `pixels`, of which the first `width` pixels count.
    pub(super) fn compare(&mut self, pixels: &[u8], stride: usize, width: u32) {
        let rows = self.hashes.iter_mut().zip(&mut self.changed);
        for ((hash, changed), row) in rows.zip(pixels.chunks(stride)) {
            let new = hash_row(&row[..width as usize * 4]);
            *changed |= new != *hash;
            *hash = new;
        }
    }

    /// Takes over the rows that `rects` cover, and marks those that they cover in part as changed:
    /// what else is new in these, nobody knows.
    pub(super) fn take_over(&mut self, pixels: &[u8], stride: usize, width: u32, rects: &[Rect]) {
        for rect in rects.iter().filter(|rect| rect.width != width) {
            if let Some(rows) = self.changed.get_mut(rect.y as usize..rect.bottom() as usize) {
                rows.fill(true);
            }
        }
        for rect in rects.iter().filter(|rect| rect.width == width) {
            let rows = self.hashes.iter_mut().zip(&mut self.changed).zip(pixels.chunks(stride));
            for ((hash, changed), row) in rows.skip(rect.y as usize).take(rect.height as usize) {
                *hash = hash_row(&row[..width as usize * 4]);
                *changed = false;
            }
        }
    }

    pub(super) fn any_changed(&self) -> bool {
        self.changed.contains(&true)
    }

    /// Appends the changed rows, neighbours joined, and forgets them.
    pub(super) fn take_changed(&mut self, width: u32, rects: &mut Vec<Rect>) {
        let mut y = 0;
        for run in self.changed.chunk_by(|a, b| a == b) {
            let height = run.len() as u32;
            if run[0] {
                rects.push(Rect::new(0, y, width, height));
            }
            y += height;
        }
        self.changed.fill(false);
    }
}

/// Multiplicative hashing, eight bytes at a time: it runs at the speed of memory, and nobody gains
/// by forging a collision with their own screen.
fn hash_row(row: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = row.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    let hash = words.iter().fold(1, |hash, word| mix(hash, u64::from_ne_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| mix(hash, u64::from(byte)))
}
