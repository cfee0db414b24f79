//! The pointer, apart from the picture.

use std::fmt;

use bytes::Bytes;

use crate::Size;

/// What a pointer looks like. Shared by everyone who draws it, and told apart by its serial.
#[derive(Clone, PartialEq, Eq)]
pub struct CursorImage {
    /// Another picture has another serial.
    pub serial: u64,
    /// Pixels across and down.
    pub size: Size,
    /// The pixel that points, from the top left.
    pub hotspot: (u32, u32),
    /// Rows of R, G, B, A, colours not multiplied by alpha.
    pub rgba: Bytes,
}

impl fmt::Debug for CursorImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CursorImage")
            .field("serial", &self.serial)
            .field("size", &self.size)
            .field("hotspot", &self.hotspot)
            .finish_non_exhaustive()
    }
}

/// Where the pointer is over a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CursorPosition {
    /// Whether it is over the target and not hidden.
    pub visible: bool,
    /// Column of its hotspot in the target's own pixels, before any scaling.
    pub x: i32,
    /// Row, likewise.
    pub y: i32,
}
