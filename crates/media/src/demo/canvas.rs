//! Smooth shapes on a buffer of pixels: just what the demo desktop is drawn with.
//!
//! Every shape is a distance function; the half pixel around its edge is blended.

use spaceport_types::{Rect, Size};

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

/// Pixels as an X server takes them: blue, green, red, unused.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    size: Size,
    pixels: Vec<[u8; 4]>,
}

/// A rectangle with round corners, in pixels, not necessarily whole ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    pub(super) x: f32,
    pub(super) y: f32,
    pub(super) width: f32,
    pub(super) height: f32,
    pub(super) radius: f32,
}

impl Canvas {
    pub(super) fn new(size: Size) -> Self {
        Self { size, pixels: vec![[0; 4]; size.bounds().area() as usize] }
    }

    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// A copy of a part of it.
    pub(super) fn crop(&self, rect: Rect) -> Self {
        let pixels = self.rows(rect).flatten().copied().collect();
        Self { size: Size::new(rect.width, rect.height), pixels }
    }

    /// The bytes of a part of it, row by row.
    pub(super) fn bytes(&self, rect: Rect) -> Vec<u8> {
        self.rows(rect).flat_map(|row| row.as_flattened()).copied().collect()
    }

    fn rows(&self, rect: Rect) -> impl Iterator<Item = &[[u8; 4]]> {
        let width = self.size.width as usize;
        (rect.y as usize..rect.bottom() as usize).map(move |y| {
            &self.pixels[y * width + rect.x as usize..y * width + rect.right() as usize]
        })
    }

    /// Computes every pixel from its middle. Values are 0 to 255; what lies between two of them
    /// is spread by a fixed pattern, or a gradient as slow as a sky would show its steps.
    pub(super) fn shade(&mut self, colour: impl Fn(f32, f32) -> [f32; 3]) {
        let width = self.size.width as usize;
        for (index, pixel) in self.pixels.iter_mut().enumerate() {
            let (x, y) = (index % width, index / width);
            let [r, g, b] = colour(x as f32 + 0.5, y as f32 + 0.5);
            let threshold = (BAYER[y % 4][x % 4] + 0.5) / 16.0;
            *pixel = [b, g, r, 0.0].map(|value| (value + threshold) as u8);
        }
    }

    /// Paints a panel.
    pub(super) fn panel(&mut self, panel: Panel, colour: Colour, alpha: f32) {
        let around = (panel.x, panel.y, panel.x + panel.width, panel.y + panel.height);
        self.paint(around, 1.0, colour, |x, y| alpha * coverage(panel.distance(x, y)));
    }

    /// Darkens what lies around a panel, as if it floated above.
    pub(super) fn shadow(&mut self, panel: Panel, blur: f32, alpha: f32) {
        let around = (panel.x, panel.y, panel.x + panel.width, panel.y + panel.height);
        self.paint(around, blur, [0, 0, 0], |x, y| {
            let near = (1.0 - panel.distance(x, y) / blur).clamp(0.0, 1.0);
            alpha * near * near
        });
    }

    /// Paints a line with round ends; a dot when both ends are one point.
    pub(super) fn line(
        &mut self,
        from: (f32, f32),
        to: (f32, f32),
        radius: f32,
        colour: Colour,
        alpha: f32,
    ) {
        let around = (from.0.min(to.0), from.1.min(to.1), from.0.max(to.0), from.1.max(to.1));
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = (dx * dx + dy * dy).max(f32::EPSILON);
        self.paint(around, radius + 1.0, colour, |x, y| {
            let (px, py) = (x - from.0, y - from.1);
            let along = ((px * dx + py * dy) / length).clamp(0.0, 1.0);
            alpha * coverage((px - along * dx).hypot(py - along * dy) - radius)
        });
    }

    /// Blends `colour` over the pixels within `margin` of a box, each as much as `alpha` says.
    pub(super) fn paint(
        &mut self,
        (left, top, right, bottom): (f32, f32, f32, f32),
        margin: f32,
        colour: Colour,
        alpha: impl Fn(f32, f32) -> f32,
    ) {
        let [r, g, b] = colour;
        // Casts from below zero saturate at it.
        let columns = (left - margin) as u32..((right + margin + 1.0) as u32).min(self.size.width);
        let rows = (top - margin) as u32..((bottom + margin + 1.0) as u32).min(self.size.height);
        for (y, x) in rows.flat_map(|y| columns.clone().map(move |x| (y, x))) {
            let alpha = alpha(x as f32 + 0.5, y as f32 + 0.5);
            if alpha <= 0.0 {
                continue;
            }
            let pixel = &mut self.pixels[(y * self.size.width + x) as usize];
            for (old, new) in pixel.iter_mut().zip([b, g, r]) {
                let (from, to) = (f32::from(*old), f32::from(new));
                *old = (from + (to - from) * alpha + 0.5) as u8;
            }
        }
    }
}

impl Panel {
    /// How far a point is outside; negative inside.
    pub(super) fn distance(&self, x: f32, y: f32) -> f32 {
        let (half_width, half_height) = (self.width / 2.0, self.height / 2.0);
        let dx = (x - self.x - half_width).abs() - half_width + self.radius;
        let dy = (y - self.y - half_height).abs() - half_height + self.radius;
        dx.max(0.0).hypot(dy.max(0.0)) + dx.max(dy).min(0.0) - self.radius
    }
}

/// How much of a pixel a shape covers whose edge is `distance` from its middle.
fn coverage(distance: f32) -> f32 {
    (0.5 - distance).clamp(0.0, 1.0)
}

/// Ordered dithering: thresholds that are far apart where pixels are near.
const BAYER: [[f32; 4]; 4] =
    [[0.0, 8.0, 2.0, 10.0], [12.0, 4.0, 14.0, 6.0], [3.0, 11.0, 1.0, 9.0], [15.0, 7.0, 13.0, 5.0]];

#[cfg(test)]
mod tests {
    use super::*;

    fn at(canvas: &Canvas, x: u32, y: u32) -> Colour {
        let [b, g, r, _] = canvas.pixels[(y * canvas.size.width + x) as usize];
        [r, g, b]
    }

    #[test]
    fn shapes_cover_what_they_should_and_nothing_else() {
        let mut canvas = Canvas::new(Size::new(20, 20));
        let panel = Panel { x: 2.0, y: 3.0, width: 10.0, height: 8.0, radius: 3.0 };
        canvas.panel(panel, [200, 100, 50], 1.0);
        assert_eq!(at(&canvas, 6, 6), [200, 100, 50]);
        assert_eq!(at(&canvas, 2, 6), [200, 100, 50], "an edge on the pixel grid is sharp");
        assert_eq!(at(&canvas, 1, 6), [0, 0, 0]);
        assert_eq!(at(&canvas, 12, 6), [0, 0, 0]);
        assert_eq!(at(&canvas, 2, 3), [0, 0, 0], "corners are round");
        canvas.line((15.0, 15.0), (15.0, 15.0), 2.0, [9, 9, 9], 1.0);
        assert_eq!(at(&canvas, 15, 15), [9, 9, 9]);
        assert_eq!(at(&canvas, 15, 18), [0, 0, 0]);
    }

    #[test]
    fn shapes_beyond_the_edge_are_cut() {
        let mut canvas = Canvas::new(Size::new(4, 4));
        let panel = Panel { x: -10.0, y: -10.0, width: 100.0, height: 100.0, radius: 5.0 };
        canvas.panel(panel, [255, 255, 255], 1.0);
        canvas.line((-5.0, 2.0), (50.0, 2.0), 90.0, [1, 2, 3], 1.0);
        assert_eq!(at(&canvas, 3, 3), [1, 2, 3]);
        assert_eq!(canvas.bytes(Rect::new(1, 1, 2, 1)), [3, 2, 1, 0, 3, 2, 1, 0]);
    }

    #[test]
    fn a_gradient_is_dithered_around_its_value() {
        let mut canvas = Canvas::new(Size::new(16, 16));
        canvas.shade(|_, _| [10.25, 0.0, 255.0]);
        let reds: Vec<_> = (0..256).map(|i| at(&canvas, i % 16, i / 16)[0]).collect();
        assert_eq!(reds.iter().filter(|&&red| red == 11).count(), 64);
        assert!(reds.iter().all(|&red| red == 10 || red == 11));
        assert_eq!(at(&canvas, 5, 5)[2], 255);
    }
}
