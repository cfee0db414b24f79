//! One captured picture, borrowed from whoever captured it.

use std::time::Duration;

use spaceport_types::{Rect, Size};

/// A picture and what changed in it since the one before.
///
/// The pixels stay where the source has them (a shared-memory pixmap, a mapped framebuffer), and
/// are only good until the source is asked for the next picture.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Rows of B, G, R, unused; `stride` bytes apart, top row first.
    pub pixels: &'a [u8],
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The true size, which may be odd.
    pub size: Size,
    /// What changed, clamped to `size`. Empty when nothing did.
    pub damage: &'a [Rect],
    /// When the pixels were read, on the server's media clock.
    pub captured_at: Duration,
}
