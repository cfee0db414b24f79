//! Captured pixels to the 4:2:0 picture an encoder reads.
//!
//! A [`Canvas`] keeps the whole converted picture between frames, so only what changed is
//! converted: 1 us for a caret, 0.65 ms for all of 1920x1080. Rectangles are grown outward to the
//! even grid on which chroma lies. Odd sides are padded by repeating the last row and column; a
//! picture larger than what is encoded is first averaged down, again only where it changed.

use spaceport_types::{Error, Kind, Rect, Result, Size};
use yuv::{
    BufferStoreMut, YuvBiPlanarImageMut, YuvConversionMode, YuvPlanarImageMut, YuvRange,
    YuvStandardMatrix, bgra_to_yuv_nv12, bgra_to_yuv420,
};

use crate::Frame;

/// How the two chroma planes lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One plane of U and V in turn.
    #[cfg_attr(
        not(any(test, feature = "x264")),
        expect(dead_code, reason = "only libx264 takes it")
    )]
    Nv12,
    /// A plane of U, then a plane of V.
    I420,
}

/// Which weights turn RGB into luma and chroma. Always in the limited range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matrix {
    /// What a VP8 decoder assumes, for the bitstream cannot say otherwise (RFC 6386 §9.2), and what
    /// the VUI of libx264's stream declares.
    ///
    /// Browsers without a GPU convert with weights in 64ths that end at 2. BT.709 has 2.11 for blue,
    /// so there pure blue came out as 241 and yellow got 13 of it, in Chromium and Firefox alike;
    /// BT.601 has 2.02, and nothing is off by more than 3. With a GPU both are exact.
    Bt601,
    /// For an encoder that declares nothing: what decoders then take pictures of this size to be.
    Bt709,
}

/// The converted picture, kept from frame to frame.
#[derive(Debug)]
pub(super) struct Canvas {
    layout: Layout,
    matrix: YuvStandardMatrix,
    source: Size,
    size: Size,
    coded: Size,
    planes: Vec<u8>,
    damage: Vec<Rect>,
    scaler: Option<Scaler>,
    /// The last two rows of a rectangle, before and after conversion.
    edge: Vec<u8>,
    started: bool,
}

impl Canvas {
    /// A canvas for pictures of `source`, encoded at `size`, which is not larger.
    pub(super) fn new(layout: Layout, matrix: Matrix, source: Size, size: Size) -> Self {
        let coded = size.padded_to_even();
        let luma = coded.width as usize * coded.height as usize;
        Self {
            layout,
            matrix: match matrix {
                Matrix::Bt601 => YuvStandardMatrix::Bt601,
                Matrix::Bt709 => YuvStandardMatrix::Bt709,
            },
            source,
            size,
            coded,
            planes: vec![0; luma + luma / 2],
            damage: Vec::new(),
            scaler: (size != source).then(|| Scaler::new(source, size)),
            edge: Vec::new(),
            started: false,
        }
    }

    /// The size of the planes: even, and at least the size that is encoded.
    pub(super) const fn coded(&self) -> Size {
        self.coded
    }

    /// All planes, one after the other, without gaps: luma rows are `coded().width` apart.
    pub(super) fn planes(&self) -> &[u8] {
        &self.planes
    }

    /// The luma plane.
    #[cfg_attr(
        not(any(test, feature = "x264")),
        expect(dead_code, reason = "only libx264 takes it")
    )]
    pub(super) fn luma(&self) -> &[u8] {
        &self.planes[..self.coded.width as usize * self.coded.height as usize]
    }

    /// What the last update changed, in coded pixels; even, within `coded()`.
    #[cfg_attr(
        not(any(test, feature = "x264")),
        expect(dead_code, reason = "only libx264 takes it")
    )]
    pub(super) fn damage(&self) -> &[Rect] {
        &self.damage
    }

    /// Converts what `frame` says has changed; everything, the first time.
    pub(super) fn update(&mut self, frame: &Frame<'_>) -> Result<()> {
        check(frame, self.source)?;
        self.damage.clear();
        let whole = [self.source.bounds()];
        let changed = if self.started { frame.damage } else { &whole };
        for rect in changed {
            let Some(rect) = rect.clamped(self.source) else { continue };
            let rect = match &mut self.scaler {
                None => rect.aligned_to_even().clamped(self.size),
                Some(scaler) => Some(scaler.scale(frame, rect)),
            };
            if let Some(rect) = rect.filter(|rect| !rect.is_empty()) {
                self.convert(frame, rect)?;
                self.damage.extend(rect.aligned_to_even().clamped(self.coded));
            }
        }
        self.started = true;
        Ok(())
    }

    /// Converts `rect`, which starts on the even grid and lies within `size`, and pads it.
    ///
    /// `yuv` walks its slices in whole strides and so leaves out rows that have less than a stride
    /// behind their first pixel, as the last two rows of a plane do. Those go through a small
    /// picture of their own, which is also where an odd last row is repeated.
    fn convert(&mut self, frame: &Frame<'_>, rect: Rect) -> Result<()> {
        let (pixels, stride) = match &self.scaler {
            None => (frame.pixels, frame.stride),
            Some(scaler) => (scaler.pixels(), scaler.stride()),
        };
        let width = self.coded.width as usize;
        let (luma, chroma) = self.planes.split_at_mut(width * self.coded.height as usize);
        let (x, y, columns) = (rect.x as usize, rect.y as usize, rect.width as usize);
        let last = self.coded.height as usize - 2;

        let rows = (rect.bottom() as usize).min(last).saturating_sub(y);
        if rows > 0 {
            let input = &pixels[y * stride + x * 4..][..rows * stride];
            let luma = &mut luma[y * width + x..][..rows * width];
            let chroma = Chroma::at(self.layout, chroma, width, x, y, rows);
            convert(input, stride, luma, chroma, width, columns, self.matrix)?;
            if columns % 2 == 1 {
                for row in luma.chunks_exact_mut(width) {
                    row[columns] = row[columns - 1];
                }
            }
        }
        if rect.bottom() as usize > last {
            let even = columns.next_multiple_of(2);
            self.edge.resize(even * (8 + 2 + 1), 0);
            let (input, output) = self.edge.split_at_mut(even * 8);
            for (row, line) in input.chunks_exact_mut(even * 4).enumerate() {
                let source = (last + row).min(self.size.height as usize - 1);
                line[..columns * 4]
                    .copy_from_slice(&pixels[source * stride + x * 4..][..columns * 4]);
                line.copy_within((columns - 1) * 4..columns * 4, (even - 1) * 4);
            }
            let (edge_luma, edge_chroma) = output.split_at_mut(even * 2);
            let small = Chroma::at(self.layout, edge_chroma, even, 0, 0, 2);
            convert(input, even * 4, edge_luma, small, even, even, self.matrix)?;
            for (row, line) in edge_luma.chunks_exact(even).enumerate() {
                luma[(last + row) * width + x..][..even].copy_from_slice(line);
            }
            match Chroma::at(self.layout, chroma, width, x, last, 2) {
                Chroma::Nv12(uv) => uv[..even].copy_from_slice(edge_chroma),
                Chroma::I420(u, v) => {
                    u[..even / 2].copy_from_slice(&edge_chroma[..even / 2]);
                    v[..even / 2].copy_from_slice(&edge_chroma[even / 2..]);
                }
            }
        }
        Ok(())
    }
}

/// A part of the chroma planes.
enum Chroma<'a> {
    Nv12(&'a mut [u8]),
    I420(&'a mut [u8], &'a mut [u8]),
}

impl<'a> Chroma<'a> {
    /// What belongs to `rows` luma rows from (`x`, `y`) on, in planes of a picture `width` wide.
    /// Ends with a whole stride, or with the plane.
    fn at(
        layout: Layout,
        planes: &'a mut [u8],
        width: usize,
        x: usize,
        y: usize,
        rows: usize,
    ) -> Self {
        let part = |plane: &'a mut [u8], stride: usize, x: usize| {
            let end = plane.len().min(y / 2 * stride + x + rows / 2 * stride);
            &mut plane[y / 2 * stride + x..end]
        };
        match layout {
            Layout::Nv12 => Self::Nv12(part(planes, width, x)),
            Layout::I420 => {
                let (u, v) = planes.split_at_mut(planes.len() / 2);
                Self::I420(part(u, width / 2, x / 2), part(v, width / 2, x / 2))
            }
        }
    }
}

/// Converts as many rows as `luma` has strides of `width`; `columns` of each.
fn convert(
    pixels: &[u8],
    stride: usize,
    luma: &mut [u8],
    chroma: Chroma<'_>,
    width: usize,
    columns: usize,
    matrix: YuvStandardMatrix,
) -> Result<()> {
    let (range, mode) = (YuvRange::Limited, YuvConversionMode::Balanced);
    let (stride, luma_stride) = (stride as u32, width as u32);
    let (width, height) = (columns as u32, (luma.len() / width) as u32);
    let y_plane = BufferStoreMut::Borrowed(luma);
    let done = match chroma {
        Chroma::Nv12(uv) => {
            let mut image = YuvBiPlanarImageMut {
                y_plane,
                y_stride: luma_stride,
                uv_plane: BufferStoreMut::Borrowed(uv),
                uv_stride: luma_stride,
                width,
                height,
            };
            bgra_to_yuv_nv12(&mut image, pixels, stride, range, matrix, mode)
        }
        Chroma::I420(u, v) => {
            let mut image = YuvPlanarImageMut {
                y_plane,
                y_stride: luma_stride,
                u_plane: BufferStoreMut::Borrowed(u),
                u_stride: luma_stride / 2,
                v_plane: BufferStoreMut::Borrowed(v),
                v_stride: luma_stride / 2,
                width,
                height,
            };
            bgra_to_yuv420(&mut image, pixels, stride, range, matrix, mode)
        }
    };
    done.map_err(|error| {
        Error::new(Kind::Internal, format!("a picture could not be converted: {error}"))
            .with("columns", columns)
            .with("rows", height)
    })
}

/// Checks that `frame` is what the encoder was opened for, so that slicing below cannot panic.
pub(super) fn check(frame: &Frame<'_>, source: Size) -> Result<()> {
    let row = frame.size.width as usize * 4;
    let needed = match frame.size.height as usize {
        0 => 0,
        height => frame.stride.saturating_mul(height - 1).saturating_add(row),
    };
    if frame.size != source || frame.stride < row || frame.pixels.len() < needed {
        return Err(Error::new(Kind::Internal, "a frame is not what its encoder was opened for")
            .with("expected", format!("{}x{}", source.width, source.height))
            .with("received", format!("{}x{}", frame.size.width, frame.size.height))
            .with("stride", frame.stride)
            .with("bytes", frame.pixels.len()));
    }
    Ok(())
}

/// Averages a picture down, keeping the result between frames.
#[derive(Debug)]
pub(super) struct Scaler {
    size: Size,
    columns: Vec<Taps>,
    rows: Vec<Taps>,
    /// One output row, averaged over rows but not yet over columns.
    line: Vec<u16>,
    pixels: Vec<u8>,
}

/// The source pixels one output pixel is the average of; the weights add up to 256.
#[derive(Debug)]
struct Taps {
    start: usize,
    weights: Vec<u16>,
}

impl Scaler {
    pub(super) fn new(source: Size, size: Size) -> Self {
        Self {
            size,
            columns: taps(source.width, size.width),
            rows: taps(source.height, size.height),
            line: vec![0; source.width as usize * 4],
            pixels: vec![0; size.width as usize * size.height as usize * 4],
        }
    }

    pub(super) fn stride(&self) -> usize {
        self.size.width as usize * 4
    }

    /// The result: rows of `stride` bytes, without a gap.
    pub(super) fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Scales what `rect` of the source touches and returns where that is in the result, on the
    /// even grid and within it.
    pub(super) fn scale(&mut self, frame: &Frame<'_>, rect: Rect) -> Rect {
        let (x, right) = touched(&self.columns, rect.x as usize, rect.right() as usize);
        let (y, bottom) = touched(&self.rows, rect.y as usize, rect.bottom() as usize);
        let rect = Rect::new(x, y, right - x, bottom - y).aligned_to_even();
        let Some(rect) = rect.clamped(self.size) else {
            return Rect::default();
        };
        let columns = &self.columns[rect.x as usize..rect.right() as usize];
        let (Some(first), Some(last)) = (columns.first(), columns.last()) else {
            return Rect::default();
        };
        let bytes = first.start * 4..(last.start + last.weights.len()) * 4;
        let stride = self.size.width as usize * 4;
        for row in rect.y as usize..rect.bottom() as usize {
            let taps = &self.rows[row];
            let line = &mut self.line[bytes.clone()];
            line.fill(0);
            for (offset, &weight) in taps.weights.iter().enumerate() {
                let from = (taps.start + offset) * frame.stride;
                let source = &frame.pixels[from + bytes.start..from + bytes.end];
                for (sum, &value) in line.iter_mut().zip(source) {
                    // At most 255 * 256, since the weights add up to 256.
                    *sum += u16::from(value) * weight;
                }
            }
            let output = &mut self.pixels[row * stride + rect.x as usize * 4..];
            for (pixel, taps) in output.chunks_exact_mut(4).zip(columns) {
                let mut sums = [0u32; 4];
                let inputs = self.line[taps.start * 4..].chunks_exact(4);
                for (input, &weight) in inputs.zip(&taps.weights) {
                    for (sum, &value) in sums.iter_mut().zip(input) {
                        *sum += u32::from(value) * u32::from(weight);
                    }
                }
                for (byte, sum) in pixel.iter_mut().zip(sums) {
                    *byte = ((sum + (1 << 15)) >> 16).min(255) as u8;
                }
            }
        }
        rect
    }
}

/// For each of `to` output pixels, the part of `from` input pixels that it covers.
fn taps(from: u32, to: u32) -> Vec<Taps> {
    let (from, to) = (u64::from(from), u64::from(to));
    (0..to)
        .map(|index| {
            // In units of 1/to of an input pixel, so that every edge is a whole number.
            let (left, right) = (index * from, (index + 1) * from);
            let start = left / to;
            let end = right.div_ceil(to);
            let mut given = 0;
            let weights = (start..end)
                .map(|input| {
                    let covered = ((input + 1) * to).min(right) - left;
                    let so_far = (covered * 256 + from / 2) / from;
                    let weight = so_far - given;
                    given = so_far;
                    weight as u16
                })
                .collect();
            Taps { start: start as usize, weights }
        })
        .collect()
}

/// The first and one past the last output pixel that input pixels `start..end` contribute to.
fn touched(taps: &[Taps], start: usize, end: usize) -> (u32, u32) {
    let first = taps.partition_point(|taps| taps.start + taps.weights.len() <= start);
    let last = taps.partition_point(|taps| taps.start < end);
    (first as u32, last.max(first) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::tests::Screen;

    const CASES: [(Layout, Matrix); 2] =
        [(Layout::Nv12, Matrix::Bt709), (Layout::I420, Matrix::Bt601)];

    /// Sizes on and off the even grid and the width of a vector register, some smaller than both.
    const SIZES: [(u32, u32); 7] =
        [(640, 360), (789, 595), (1, 1), (2, 3), (33, 2), (127, 65), (17, 16)];

    fn rectangles(size: Size) -> Vec<Rect> {
        let Size { width, height } = size;
        let all = [
            Rect::new(0, 0, 1, 1),
            Rect::new(width - 1, height - 1, 1, 1),
            Rect::new(width / 2, 0, 1, height),
            Rect::new(3, height - 1, width, 1),
            Rect::new(width / 3, height / 3, width / 2 + 1, height / 2 + 1),
            Rect::new(7, 5, 90, 31),
        ];
        all.into_iter().filter_map(|rect| rect.clamped(size)).collect()
    }

    /// What has to be in the planes, by definition: every chroma sample is the average of its four
    /// pixels, and what lies beyond the picture repeats its edge.
    fn reference(canvas: &Canvas, screen: &Screen, matrix: Matrix) -> Vec<f64> {
        let (kr, kb) = match matrix {
            Matrix::Bt601 => (0.299, 0.114),
            Matrix::Bt709 => (0.2126, 0.0722),
        };
        let Size { width, height } = canvas.coded();
        let pixel = |x: u32, y: u32| {
            let (x, y) = (x.min(screen.size.width - 1), y.min(screen.size.height - 1));
            let at = y as usize * screen.stride() + x as usize * 4;
            [0, 1, 2].map(|channel| f64::from(screen.pixels[at + channel]))
        };
        let luma = |[b, g, r]: [f64; 3]| kr * r + (1.0 - kr - kb) * g + kb * b;
        let mut planes = Vec::new();
        for y in 0..height {
            planes.extend((0..width).map(|x| 16.0 + luma(pixel(x, y)) * 219.0 / 255.0));
        }
        let mut chroma = [Vec::new(), Vec::new()];
        for (x, y) in (0..height / 2).flat_map(|y| (0..width / 2).map(move |x| (x * 2, y * 2))) {
            let four = [pixel(x, y), pixel(x + 1, y), pixel(x, y + 1), pixel(x + 1, y + 1)];
            let mean = [0, 1, 2].map(|channel| four.iter().map(|p| p[channel]).sum::<f64>() / 4.0);
            let [b, _, r] = mean;
            chroma[0].push(128.0 + (b - luma(mean)) / (1.0 - kb) * 112.0 / 255.0);
            chroma[1].push(128.0 + (r - luma(mean)) / (1.0 - kr) * 112.0 / 255.0);
        }
        let [u, v] = chroma;
        match canvas.layout {
            Layout::I420 => planes.extend(u.into_iter().chain(v)),
            Layout::Nv12 => planes.extend(u.into_iter().zip(v).flat_map(|(u, v)| [u, v])),
        }
        planes
    }

    #[test]
    fn every_sample_is_what_the_matrix_says() {
        for ((layout, matrix), (width, height)) in
            CASES.into_iter().flat_map(|case| SIZES.map(|size| (case, size)))
        {
            let mut screen = Screen::new(width, height);
            screen.noise(screen.size.bounds());
            let mut canvas = Canvas::new(layout, matrix, screen.size, screen.size);
            canvas.update(&screen.frame(&[])).unwrap();
            let expected = reference(&canvas, &screen, matrix);
            assert_eq!(canvas.planes().len(), expected.len());
            for (index, (&value, expected)) in canvas.planes().iter().zip(expected).enumerate() {
                let off = (f64::from(value) - expected).abs();
                assert!(off <= 1.6, "{value} for {expected} at {index} of {width}x{height}");
            }
        }
    }

    #[test]
    fn converting_what_changed_is_converting_everything() {
        for ((layout, matrix), (width, height)) in
            CASES.into_iter().flat_map(|case| SIZES.map(|size| (case, size)))
        {
            for divisor in [1, 2, 3] {
                let mut screen = Screen::new(width, height);
                let size = Size::new(width.div_ceil(divisor), height.div_ceil(divisor));
                let mut canvas = Canvas::new(layout, matrix, screen.size, size);
                canvas.update(&screen.frame(&[])).unwrap();
                for rect in rectangles(screen.size) {
                    screen.noise(rect);
                    canvas.update(&screen.frame(&[rect])).unwrap();
                    for damage in canvas.damage() {
                        assert_eq!(damage.aligned_to_even(), *damage);
                        assert_eq!(damage.clamped(canvas.coded()), Some(*damage));
                    }
                }
                let mut fresh = Canvas::new(layout, matrix, screen.size, size);
                fresh.update(&screen.frame(&[])).unwrap();
                assert!(canvas.planes() == fresh.planes(), "{width}x{height} / {divisor}");
            }
        }
    }

    #[test]
    fn the_pixels_next_to_the_damage_stay_as_they_were() {
        for (layout, matrix) in CASES {
            let mut screen = Screen::new(200, 100);
            screen.noise(screen.size.bounds());
            let mut canvas = Canvas::new(layout, matrix, screen.size, screen.size);
            canvas.update(&screen.frame(&[])).unwrap();
            let before = canvas.planes().to_vec();
            // All of the screen changes, but only this much is said to.
            let said = Rect::new(50, 40, 60, 60);
            screen.noise(screen.size.bounds());
            canvas.update(&screen.frame(&[said])).unwrap();
            for (index, (old, new)) in before.iter().zip(canvas.luma()).enumerate() {
                let (x, y) = (index as u32 % 200, index as u32 / 200);
                let inside = (50..110).contains(&x) && (40..100).contains(&y);
                assert!(inside || old == new, "{x},{y}");
            }
        }
    }

    #[test]
    fn scaling_averages_and_keeps_flat_colors_flat() {
        let scaled = |screen: &mut Screen, size| {
            let mut scaler = Scaler::new(screen.size, size);
            let whole = [screen.size.bounds()];
            let rect = scaler.scale(&screen.frame(&whole), whole[0]);
            assert_eq!(rect, size.bounds());
            scaler.pixels
        };
        let mut screen = Screen::new(131, 97);
        screen.fill(screen.size.bounds(), [255, 7, 200]);
        for pixel in scaled(&mut screen, Size::new(50, 41)).chunks_exact(4) {
            assert_eq!(pixel[..3], [255, 7, 200]);
        }
        let mut screen = Screen::new(4, 4);
        screen.noise(screen.size.bounds());
        let halves = scaled(&mut screen, Size::new(2, 2));
        for (index, &value) in halves.iter().enumerate() {
            let (x, y, channel) = (index / 4 % 2 * 2, index / 8 * 2, index % 4);
            let four = [(x, y), (x + 1, y), (x, y + 1), (x + 1, y + 1)];
            let sum: u32 =
                four.iter().map(|(x, y)| u32::from(screen.pixels[y * 16 + x * 4 + channel])).sum();
            assert!((f64::from(value) - f64::from(sum) / 4.0).abs() <= 1.0);
        }
    }

    #[test]
    fn a_frame_of_another_shape_is_refused() {
        let mut screen = Screen::new(64, 48);
        let mut canvas = Canvas::new(Layout::Nv12, Matrix::Bt709, screen.size, Size::new(64, 48));
        let frame = screen.frame(&[]);
        let short = Frame { pixels: &frame.pixels[..frame.pixels.len() - 1], ..frame };
        let narrow = Frame { stride: frame.stride - 1, ..frame };
        let smaller = Frame { size: Size::new(64, 47), ..frame };
        for wrong in [short, narrow, smaller] {
            assert_eq!(canvas.update(&wrong).unwrap_err().kind(), Kind::Internal);
        }
        canvas.update(&frame).unwrap();
    }
}
