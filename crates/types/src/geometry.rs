//! Where pixels are: sizes, rectangles, and the epoch that says which of them belong together.

use serde::{Deserialize, Serialize};

/// A size in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Size {
    /// A size of `width` columns and `height` rows.
    pub const fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }

    /// The smallest even size that holds this one; 4:2:0 video has no odd sizes.
    #[must_use]
    pub const fn padded_to_even(self) -> Self {
        Self { width: (self.width + 1) & !1, height: (self.height + 1) & !1 }
    }

    /// The size scaled down, aspect kept, so that its longer side is at most `max_dimension`.
    /// Zero means no limit; nothing is ever scaled up, and no side falls below one pixel.
    #[must_use]
    pub fn fitted(self, max_dimension: u32) -> Self {
        let longer = self.width.max(self.height);
        if max_dimension == 0 || longer <= max_dimension {
            return self;
        }
        let scale = |side: u32| {
            let scaled = u64::from(side) * u64::from(max_dimension) + u64::from(longer / 2);
            u32::try_from(scaled / u64::from(longer)).unwrap_or(max_dimension).max(1)
        };
        Self { width: scale(self.width), height: scale(self.height) }
    }

    /// The rectangle that covers all of it.
    pub const fn bounds(self) -> Rect {
        Rect { x: 0, y: 0, width: self.width, height: self.height }
    }
}

/// A rectangle of whole pixels within a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rect {
    /// First column.
    pub x: u32,
    /// First row.
    pub y: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Rect {
    /// A rectangle of `width` by `height` pixels with its first pixel at (`x`, `y`).
    pub const fn new(x: u32, y: u32, width: u32, height: u32) -> Self {
        Self { x, y, width, height }
    }

    /// How large it is, wherever it is.
    pub const fn size(self) -> Size {
        Size { width: self.width, height: self.height }
    }

    /// One past the last column.
    pub const fn right(self) -> u32 {
        self.x + self.width
    }

    /// One past the last row.
    pub const fn bottom(self) -> u32 {
        self.y + self.height
    }

    /// Whether it holds no pixel.
    pub const fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// How many pixels it holds.
    pub const fn area(self) -> u64 {
        self.width as u64 * self.height as u64
    }

    /// The part of it that lies within a frame of `size`, or `None` when there is none.
    pub fn clamped(self, size: Size) -> Option<Self> {
        let right = self.x.saturating_add(self.width).min(size.width);
        let bottom = self.y.saturating_add(self.height).min(size.height);
        let inside = self.x < right && self.y < bottom;
        inside.then(|| Self {
            x: self.x,
            y: self.y,
            width: right - self.x,
            height: bottom - self.y,
        })
    }

    /// The part of it that lies within `area`, counted from where that begins.
    pub fn within(self, area: Self) -> Option<Self> {
        let (x, y) = (self.x.max(area.x), self.y.max(area.y));
        let (right, bottom) = (
            self.x.saturating_add(self.width).min(area.x.saturating_add(area.width)),
            self.y.saturating_add(self.height).min(area.y.saturating_add(area.height)),
        );
        let inside = x < right && y < bottom;
        inside.then(|| Self { x: x - area.x, y: y - area.y, width: right - x, height: bottom - y })
    }

    /// The smallest rectangle that holds both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let (right, bottom) = (self.right().max(other.right()), self.bottom().max(other.bottom()));
        Self { x, y, width: right - x, height: bottom - y }
    }

    /// Grown outward to even coordinates, the grid on which 4:2:0 chroma lies.
    #[must_use]
    pub const fn aligned_to_even(self) -> Self {
        let (x, y) = (self.x & !1, self.y & !1);
        let (right, bottom) = ((self.right() + 1) & !1, (self.bottom() + 1) & !1);
        Self { x, y, width: right - x, height: bottom - y }
    }
}

/// Where something lies on the desktop, in desktop pixels. Part of it may be beyond the edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bounds {
    /// First column; negative to the left of the desktop.
    pub x: i32,
    /// First row; negative above the desktop.
    pub y: i32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Bounds {
    /// Something of `width` by `height` pixels with its first pixel at (`x`, `y`).
    pub const fn new(x: i32, y: i32, width: u32, height: u32) -> Self {
        Self { x, y, width, height }
    }

    /// How large it is, wherever it is.
    pub const fn size(self) -> Size {
        Size { width: self.width, height: self.height }
    }

    /// One past the last column.
    pub const fn right(self) -> i32 {
        self.x.saturating_add_unsigned(self.width)
    }

    /// One past the last row.
    pub const fn bottom(self) -> i32 {
        self.y.saturating_add_unsigned(self.height)
    }

    /// The part that lies in `other`, too.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let (x, y) = (self.x.max(other.x), self.y.max(other.y));
        let (right, bottom) = (self.right().min(other.right()), self.bottom().min(other.bottom()));
        let inside = x < right && y < bottom;
        inside.then(|| Self { x, y, width: right.abs_diff(x), height: bottom.abs_diff(y) })
    }

    /// The smallest bounds that hold both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let (x, y) = (self.x.min(other.x), self.y.min(other.y));
        let (right, bottom) = (self.right().max(other.right()), self.bottom().max(other.bottom()));
        Self { x, y, width: right.abs_diff(x), height: bottom.abs_diff(y) }
    }
}

impl From<Rect> for Bounds {
    /// A coordinate beyond what an `i32` holds is on no desktop; it becomes the farthest one.
    fn from(rect: Rect) -> Self {
        let place = |start: u32| i32::try_from(start).unwrap_or(i32::MAX);
        Self::new(place(rect.x), place(rect.y), rect.width, rect.height)
    }
}

impl From<Size> for Bounds {
    fn from(size: Size) -> Self {
        Self::new(0, 0, size.width, size.height)
    }
}

/// What a frame shows and where that is on the desktop.
///
/// Pointer positions and damage are only meaningful together with the epoch they were made in: a
/// target that moves or changes size starts a new one. After a change of size its first frame is a
/// keyframe.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Geometry {
    /// Pixels of the frame as viewers get it, after scaling and before padding to even sides.
    pub frame_size: Size,
    /// Frame pixels per desktop pixel; below 1 when the frame was scaled down.
    pub scale: f64,
    /// The shown part of the desktop, in desktop pixels.
    pub logical_bounds: Bounds,
    /// Counts changes of any of the above; starts at 1.
    pub geometry_epoch: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fitted_size_keeps_its_aspect_and_never_grows() {
        assert_eq!(Size::new(1920, 1080).fitted(1280), Size::new(1280, 720));
        assert_eq!(Size::new(640, 360).fitted(1280), Size::new(640, 360));
        assert_eq!(Size::new(1920, 1080).fitted(0), Size::new(1920, 1080));
        assert_eq!(Size::new(4000, 1).fitted(100), Size::new(100, 1));
    }

    #[test]
    fn rectangles_clamp_join_and_align() {
        let size = Size::new(10, 10);
        assert_eq!(Rect::new(8, 8, 5, 5).clamped(size), Some(Rect::new(8, 8, 2, 2)));
        assert_eq!(Rect::new(10, 0, 1, 1).clamped(size), None);
        assert_eq!(Rect::new(1, 0, u32::MAX, 1).clamped(size), Some(Rect::new(1, 0, 9, 1)));
        let area = Rect::new(4, 2, 6, 8);
        assert_eq!(Rect::new(0, 3, 5, 20).within(area), Some(Rect::new(0, 1, 1, 7)));
        assert_eq!(area.within(area), Some(Rect::new(0, 0, 6, 8)));
        assert_eq!(Rect::new(10, 2, 5, 5).within(area), None);
        assert_eq!(Rect::new(0, 0, u32::MAX, u32::MAX).within(area), Some(Rect::new(0, 0, 6, 8)));
        assert_eq!(Rect::new(1, 1, 1, 1).union(Rect::new(4, 5, 2, 2)), Rect::new(1, 1, 5, 6));
        assert_eq!(Rect::new(1, 3, 2, 2).aligned_to_even(), Rect::new(0, 2, 4, 4));
    }

    #[test]
    fn bounds_reach_beyond_the_desktop() {
        let (desktop, window) = (Bounds::new(0, 0, 100, 80), Bounds::new(-10, -5, 20, 10));
        assert_eq!(window.intersection(desktop), Some(Bounds::new(0, 0, 10, 5)));
        assert_eq!(window.union(desktop), Bounds::new(-10, -5, 110, 85));
        assert_eq!(Bounds::new(100, 0, 5, 5).intersection(desktop), None);
        assert_eq!(Bounds::new(0, 0, u32::MAX, 1).right(), i32::MAX);
        assert_eq!(Bounds::from(Rect::new(u32::MAX, 1, 2, 3)), Bounds::new(i32::MAX, 1, 2, 3));
    }
}
