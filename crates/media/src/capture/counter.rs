//! A number painted into a picture so that a machine can read it back from the other end.
//!
//! Whoever sees the picture, however late, scaled and lossy it is, can say which one it is: a
//! browser test reads it with `getImageData`, a benchmark subtracts two clocks.
//!
//! The marker is [`SIZE`] pixels at the top left corner: two rows of [`CELLS`] square cells, each
//! [`CELL`] pixels wide and high. A bit is one column of two cells: white over black is 1, black
//! over white is 0. The lower row is a guard: a column whose cells are not clearly different is
//! not a marker. From the left:
//!
//! | columns | bits |
//! |---|---|
//! | 0-3 | `1010`, so that plain areas and half-drawn pictures are not taken for a marker |
//! | 4-19 | the counter, most significant bit first |
//! | 20-23 | checksum: the exclusive or of the counter's four nibbles and `0101` |
//!
//! To decode, sample the middle of each cell: x = 16 * column + 8, y = 8 and 24, both multiplied
//! by the scale of the picture.

use spaceport_types::{Rect, Size};

/// Side of one cell, in pixels. A 4:2:0 codec at a low rate still keeps its middle clean.
pub const CELL: u32 = 16;

/// Columns of the marker.
pub const CELLS: usize = 24;

/// Size of the whole marker.
pub const SIZE: Size = Size::new(CELL * CELLS as u32, CELL * 2);

/// Where the marker lies.
pub const BOUNDS: Rect = SIZE.bounds();

/// How far apart, of 255, the two cells of a column must be.
const CONTRAST: i32 = 64;

/// The columns that show `counter`.
pub fn encode(counter: u16) -> [bool; CELLS] {
    let word = SYNC << 20 | u32::from(counter) << 4 | checksum(counter);
    std::array::from_fn(|column| word >> (CELLS - 1 - column) & 1 == 1)
}

/// Reads a marker from the luma (0 to 255) at a pixel of the unscaled picture; `None` when there
/// is none, or when it is damaged.
pub fn decode(mut luma: impl FnMut(u32, u32) -> u8) -> Option<u16> {
    let mut word = 0;
    for column in 0..CELLS as u32 {
        let x = column * CELL + CELL / 2;
        let upper = i32::from(luma(x, CELL / 2));
        let lower = i32::from(luma(x, CELL + CELL / 2));
        if (upper - lower).abs() < CONTRAST {
            return None;
        }
        word = word << 1 | u32::from(upper > lower);
    }
    let counter = (word >> 4 & 0xffff) as u16;
    (word >> 20 == SYNC && word & 0xf == checksum(counter)).then_some(counter)
}

/// The marker as rectangles to fill, and whether each is white; for painting it with any API.
pub fn cells(counter: u16) -> impl Iterator<Item = (Rect, bool)> {
    encode(counter).into_iter().enumerate().flat_map(|(column, bit)| {
        let x = column as u32 * CELL;
        [(Rect::new(x, 0, CELL, CELL), bit), (Rect::new(x, CELL, CELL, CELL), !bit)]
    })
}

const SYNC: u32 = 0b1010;

fn checksum(counter: u16) -> u32 {
    let nibbles = [counter >> 12, counter >> 8, counter >> 4, counter];
    u32::from(nibbles.into_iter().fold(0b0101, |sum, nibble| sum ^ nibble & 0xf))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luma_of(counter: u16) -> impl Fn(u32, u32) -> u8 {
        let cells: Vec<_> = cells(counter).collect();
        move |x, y| {
            let hit = cells.iter().find(|(cell, _)| {
                (cell.x..cell.right()).contains(&x) && (cell.y..cell.bottom()).contains(&y)
            });
            if hit.unwrap().1 { 235 } else { 16 }
        }
    }

    #[test]
    fn every_counter_is_read_back() {
        for counter in 0..=u16::MAX {
            let bits = encode(counter);
            let read = decode(|x, y| {
                let bit = bits[(x / CELL) as usize] ^ (y >= CELL);
                if bit { 200 } else { 40 }
            });
            assert_eq!(read, Some(counter));
        }
        assert_eq!(decode(luma_of(0xbeef)), Some(0xbeef));
    }

    #[test]
    fn what_is_not_a_marker_is_not_read() {
        assert_eq!(decode(|_, _| 255), None);
        assert_eq!(decode(|x, _| if (x / CELL).is_multiple_of(2) { 255 } else { 0 }), None);
        let good = luma_of(1234);
        for column in 0..CELLS as u32 {
            let flipped =
                |x: u32, y: u32| if x / CELL == column { 255 - good(x, y) } else { good(x, y) };
            assert_eq!(decode(flipped), None, "a flipped column {column} went unnoticed");
        }
    }
}
