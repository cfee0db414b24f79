//! What is on the demo desktop: a sky, a clock, a terminal, and a card that drifts.
//!
//! Still things are painted once, smoothly, into the background. Each window is a real X window
//! whose background pixmap is its content, so the server repairs by itself what another window
//! uncovers. Text is the font that is built into every X server.

use std::f32::consts::TAU;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use spaceport_types::{Cause, Error, Rect, Result, Size};
use x11rb::connection::Connection;
use x11rb::errors::{ConnectionError, ReplyError, ReplyOrIdError};
use x11rb::protocol::shape::{self, ConnectionExt as _};
use x11rb::protocol::xproto::{
    AtomEnum, ChangeGCAux, ChangeWindowAttributesAux, ClipOrdering, ConfigureWindowAux,
    ConnectionExt as _, CreateGCAux, CreateWindowAux, Gcontext, ImageFormat, Pixmap, PropMode,
    Rectangle, Window, WindowClass,
};
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

use super::canvas::{Canvas, Colour, Panel};

/// The desktop as it is drawn on.
#[derive(Debug)]
pub(super) struct Scene {
    x: Connected,
    size: Size,
    clock: Option<Clock>,
    terminal: Option<Terminal>,
    card: Pane,
}

/// The connection and what every drawing request needs.
#[derive(Debug)]
struct Connected {
    conn: RustConnection,
    root: Window,
    gc: Gcontext,
}

/// A window, and the pixmap that is its content.
#[derive(Debug)]
struct Pane {
    window: Window,
    pixmap: Pixmap,
    canvas: Canvas,
}

#[derive(Debug)]
struct Clock {
    pane: Pane,
    face: Face,
    /// What the digits show.
    shown: [u8; 7],
}

#[derive(Debug)]
struct Terminal {
    pane: Pane,
    /// Where the lines are, in the window.
    text: Rect,
    written: u64,
}

impl Scene {
    /// Paints the desktop on a display that has nothing on it yet.
    pub(super) fn paint(display: &str, size: Size) -> Result<Self> {
        Self::try_paint(display, size).map_err(|error| gone(&error))
    }

    fn try_paint(display: &str, size: Size) -> Result<Self, ReplyOrIdError> {
        let x = Connected::open(display)?;
        let layout = Layout::of(size);
        let mut sky = Canvas::new(size);
        paint_sky(&mut sky);
        for panel in [layout.clock, layout.terminal].into_iter().flatten() {
            paint_panel(&mut sky, panel, layout.scale);
        }
        let background = x.pixmap(&sky)?;
        let attributes = ChangeWindowAttributesAux::new().background_pixmap(background);
        x.conn.change_window_attributes(x.root, &attributes)?;
        x.conn.clear_area(false, x.root, 0, 0, 0, 0)?;

        let clock = match layout.clock {
            Some(rect) => Some(Clock::open(&x, &sky, rect, layout.scale)?),
            None => None,
        };
        let terminal = match layout.terminal {
            Some(rect) => Some(Terminal::open(&x, &sky, rect, layout.scale, display)?),
            None => None,
        };
        let card = open_card(&x, layout.card, layout.scale)?;
        let mut scene = Self { x, size, clock, terminal, card };
        scene.try_advance(Duration::ZERO)?;
        // Whoever is told that the desktop is there finds it painted.
        scene.x.conn.sync()?;
        Ok(scene)
    }

    /// Shows the desktop as it is some time after it was painted.
    pub(super) fn advance(&mut self, elapsed: Duration) -> Result<()> {
        self.try_advance(elapsed).map_err(|error| gone(&error))
    }

    /// Waits until the server has drawn everything.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        self.x.conn.sync().unwrap();
    }

    fn try_advance(&mut self, elapsed: Duration) -> Result<(), ReplyOrIdError> {
        let x = &self.x;
        // One step is one change: whoever watches does not see half of it.
        x.conn.grab_server()?;
        let time = elapsed.as_secs_f32();
        // Two waves whose periods have no common multiple worth mentioning: it never repeats.
        let room = |side: u32, own: u32| side.saturating_sub(own) as f32;
        let across = room(self.size.width, self.card.canvas.size().width);
        let down = room(self.size.height, self.card.canvas.size().height);
        let left = across * (0.5 + 0.46 * (time * TAU / 23.0 + 2.6).sin());
        let top = down * (0.72 + 0.2 * (time * TAU / 14.3).sin());
        let at = ConfigureWindowAux::new().x(left as i32).y(top as i32);
        x.conn.configure_window(self.card.window, &at)?;
        if let Some(clock) = &mut self.clock {
            clock.advance(x)?;
        }
        if let Some(terminal) = &mut self.terminal {
            let lines = elapsed.as_millis() as u64 * LINES_PER_SECOND / 1000;
            if terminal.written < lines {
                terminal.write(x, &telemetry(terminal.written))?;
                terminal.written += 1;
            }
        }
        x.conn.ungrab_server()?;
        x.conn.flush()?;
        // Nothing is expected, but what is not read would gather.
        while let Some(event) = x.conn.poll_for_event()? {
            tracing::trace!(?event, "demo event");
        }
        Ok(())
    }
}

impl Connected {
    fn open(display: &str) -> Result<Self, ReplyOrIdError> {
        let (conn, screen) = RustConnection::connect(Some(display))
            .map_err(|error| ConnectionError::from(std::io::Error::other(error.to_string())))?;
        let root = conn.setup().roots[screen].root;
        let (font, gc) = (conn.generate_id()?, conn.generate_id()?);
        conn.open_font(font, b"fixed")?;
        let values = CreateGCAux::new().font(font).graphics_exposures(0);
        conn.create_gc(gc, root, &values)?;
        Ok(Self { conn, root, gc })
    }

    /// A pixmap with what is on a canvas.
    fn pixmap(&self, canvas: &Canvas) -> Result<Pixmap, ReplyOrIdError> {
        let pixmap = self.conn.generate_id()?;
        let Size { width, height } = canvas.size();
        self.conn.create_pixmap(DEPTH, pixmap, self.root, width as u16, height as u16)?;
        self.put(pixmap, canvas, canvas.size().bounds(), (0, 0))?;
        Ok(pixmap)
    }

    /// Copies a part of a canvas to a pixmap, in requests of a size that every server takes.
    fn put(
        &self,
        pixmap: Pixmap,
        canvas: &Canvas,
        rect: Rect,
        (x, y): (i16, i16),
    ) -> Result<(), ConnectionError> {
        let rows = (MAX_REQUEST / (rect.width * 4)).max(1);
        for from in (0..rect.height).step_by(rows as usize) {
            let height = rows.min(rect.height - from);
            let part = Rect::new(rect.x, rect.y + from, rect.width, height);
            let (width, height) = (rect.width as u16, height as u16);
            let (y, bytes) = (y + from as i16, canvas.bytes(part));
            let format = ImageFormat::Z_PIXMAP;
            self.conn.put_image(format, pixmap, self.gc, width, height, x, y, 0, DEPTH, &bytes)?;
        }
        Ok(())
    }

    /// Writes one line of text, its parts each in a colour, and returns where it ends.
    fn text<'a>(
        &self,
        pane: &Pane,
        x: u32,
        y: u32,
        ground: Colour,
        parts: impl IntoIterator<Item = (&'a str, Colour)>,
    ) -> Result<u32, ConnectionError> {
        let mut x = x;
        for (text, colour) in parts {
            let text = &text.as_bytes()[..text.len().min(usize::from(u8::MAX))];
            let colours = ChangeGCAux::new().foreground(pixel(colour)).background(pixel(ground));
            self.conn.change_gc(self.gc, &colours)?;
            let baseline = (y + ASCENT) as i16;
            self.conn.image_text8(pane.pixmap, self.gc, x as i16, baseline, text)?;
            x += text.len() as u32 * ADVANCE;
        }
        Ok(x)
    }

    /// A window that shows `canvas`, with a title for whoever lists windows.
    fn pane(&self, canvas: Canvas, at: Rect, title: &str) -> Result<Pane, ReplyOrIdError> {
        let window = self.conn.generate_id()?;
        let pixmap = self.pixmap(&canvas)?;
        let (x, y) = (at.x as i16, at.y as i16);
        let (width, height) = (at.width as u16, at.height as u16);
        let aux = CreateWindowAux::new().background_pixmap(pixmap);
        let (depth, class) = (x11rb::COPY_DEPTH_FROM_PARENT, WindowClass::INPUT_OUTPUT);
        self.conn
            .create_window(depth, window, self.root, x, y, width, height, 0, class, 0, &aux)?;
        let (name, string) = (AtomEnum::WM_NAME, AtomEnum::STRING);
        self.conn.change_property8(PropMode::REPLACE, window, name, string, title.as_bytes())?;
        let class = b"demo\0spaceport\0";
        let name = AtomEnum::WM_CLASS;
        self.conn.change_property8(PropMode::REPLACE, window, name, string, class)?;
        Ok(Pane { window, pixmap, canvas })
    }

    fn map(&self, pane: &Pane) -> Result<(), ConnectionError> {
        drop(self.conn.map_window(pane.window)?);
        Ok(())
    }

    /// Shows a part of the pixmap that was drawn on.
    fn show(&self, pane: &Pane, rect: Rect) -> Result<(), ConnectionError> {
        let (x, y) = (rect.x as i16, rect.y as i16);
        let (width, height) = (rect.width as u16, rect.height as u16);
        drop(self.conn.clear_area(false, pane.window, x, y, width, height)?);
        Ok(())
    }
}

impl Clock {
    fn open(x: &Connected, sky: &Canvas, at: Rect, scale: f32) -> Result<Self, ReplyOrIdError> {
        let pane = x.pane(sky.crop(at), at, "Clock")?;
        paint_title(x, &pane, "Clock, UTC", scale)?;
        x.map(&pane)?;
        let face = Face::within(at, scale);
        Ok(Self { pane, face, shown: [u8::MAX; 7] })
    }

    /// Shows the time, to a tenth of a second.
    fn advance(&mut self, x: &Connected) -> Result<(), ConnectionError> {
        let now = clock_gettime(ClockId::Realtime);
        let seconds = now.tv_sec.rem_euclid(24 * 60 * 60) as u32;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        let pairs = [hours, minutes, seconds];
        let mut digits = [0; 7];
        for (digits, pair) in digits.chunks_exact_mut(2).zip(pairs) {
            digits.copy_from_slice(&[(pair / 10) as u8, (pair % 10) as u8]);
        }
        digits[6] = (nanos / 100_000_000) as u8;
        for (index, &digit) in digits.iter().enumerate() {
            if self.shown[index] != digit {
                self.show(x, self.face.digits[index], |canvas, face| {
                    face.paint_digit(canvas, index, digit);
                })?;
            }
        }
        if self.shown[0] == u8::MAX {
            for colon in self.face.colons {
                self.show(x, colon, |canvas, face| face.paint_colon(canvas, colon))?;
            }
        }
        self.shown = digits;
        let done = nanos as f32 / 1e9;
        self.show(x, self.face.bar, |canvas, face| face.paint_bar(canvas, done))
    }

    /// Repaints a part of the face.
    fn show(
        &self,
        x: &Connected,
        rect: Rect,
        paint: impl FnOnce(&mut Canvas, &Face),
    ) -> Result<(), ConnectionError> {
        let mut canvas = self.pane.canvas.crop(rect);
        paint(&mut canvas, &self.face);
        let all = canvas.size().bounds();
        x.put(self.pane.pixmap, &canvas, all, (rect.x as i16, rect.y as i16))?;
        x.show(&self.pane, rect)
    }
}

/// Where the parts of the clock are, in its window.
#[derive(Clone, Copy, Debug)]
struct Face {
    /// Hours, minutes, seconds, and a smaller tenth.
    digits: [Rect; 7],
    colons: [Rect; 2],
    bar: Rect,
}

impl Face {
    fn within(panel: Rect, scale: f32) -> Self {
        let px = |length: f32| (length * scale) as u32;
        let (width, height, gap) = (px(56.0), px(104.0), px(12.0));
        let (colon, small) = (px(20.0), px(34.0));
        let total = 6 * width + 8 * gap + 2 * colon + small;
        let mut x = panel.width.saturating_sub(total) / 2;
        let top = px(HEADER) + px(34.0);
        let bottom = top + height;
        let mut take = |width: u32, height: u32| {
            let rect = Rect::new(x, bottom - height, width, height);
            x += width + gap;
            rect
        };
        let (h1, h2, c1) = (take(width, height), take(width, height), take(colon, height));
        let (m1, m2, c2) = (take(width, height), take(width, height), take(colon, height));
        let (s1, s2, t) = (take(width, height), take(width, height), take(small, px(62.0)));
        let bar = Rect::new(h1.x, bottom + px(30.0), t.right() - h1.x, px(8.0).max(3));
        Self { digits: [h1, h2, m1, m2, s1, s2, t], colons: [c1, c2], bar }
    }

    /// Seven strokes, lit or faint, leaning a little.
    fn paint_digit(&self, canvas: &mut Canvas, index: usize, digit: u8) {
        let Size { width, height } = canvas.size();
        let (width, height) = (width as f32, height as f32);
        let radius = width * 0.085;
        let lean = |x: f32, y: f32| (x + (height / 2.0 - y) * 0.06, y);
        let (left, right) = (radius + width * 0.09, width - radius - width * 0.09);
        let (top, middle, bottom) = (radius + 1.0, height / 2.0, height - radius - 1.0);
        let gap = radius * 1.3;
        let strokes = [
            ((left + gap, top), (right - gap, top)),
            ((right, top + gap), (right, middle - gap)),
            ((right, middle + gap), (right, bottom - gap)),
            ((left + gap, bottom), (right - gap, bottom)),
            ((left, middle + gap), (left, bottom - gap)),
            ((left, top + gap), (left, middle - gap)),
            ((left + gap, middle), (right - gap, middle)),
        ];
        let colour = if index == 6 { AMBER } else { CYAN };
        let lit = SEGMENTS[usize::from(digit) % SEGMENTS.len()];
        for (stroke, (from, to)) in strokes.into_iter().enumerate() {
            let alpha = if lit >> stroke & 1 == 1 { 1.0 } else { 0.07 };
            canvas.line(lean(from.0, from.1), lean(to.0, to.1), radius, colour, alpha);
        }
    }

    fn paint_colon(&self, canvas: &mut Canvas, rect: Rect) {
        let (width, height) = (rect.width as f32, rect.height as f32);
        for y in [0.34, 0.66] {
            let at = (width / 2.0 + height * (0.5 - y) * 0.06, height * y);
            canvas.line(at, at, width * 0.24, CYAN, 0.9);
        }
    }

    /// A line that fills up in one second.
    fn paint_bar(&self, canvas: &mut Canvas, done: f32) {
        let (width, height) = (self.bar.width as f32, self.bar.height as f32);
        let (middle, radius) = (height / 2.0, height / 2.0);
        let end = radius + (width - height) * done;
        canvas.line((radius, middle), (width - radius, middle), radius, CYAN, 0.12);
        canvas.line((radius, middle), (end, middle), radius, CYAN, 0.85);
    }
}

impl Terminal {
    fn open(
        x: &Connected,
        sky: &Canvas,
        at: Rect,
        scale: f32,
        display: &str,
    ) -> Result<Self, ReplyOrIdError> {
        let pane = x.pane(sky.crop(at), at, "Terminal")?;
        paint_title(x, &pane, "Terminal", scale)?;
        let top = (HEADER * scale) as u32 + MARGIN;
        let lines = at.height.saturating_sub(top + MARGIN) / LINE;
        let text = Rect::new(MARGIN, top, at.width - 2 * MARGIN, lines * LINE);
        let terminal = Self { pane, text, written: 0 };
        for line in welcome(display) {
            terminal.write(x, &line)?;
        }
        x.map(&terminal.pane)?;
        Ok(terminal)
    }

    /// Moves everything up by one line and writes below.
    fn write(&self, x: &Connected, line: &[(String, Colour)]) -> Result<(), ConnectionError> {
        let Rect { x: left, y: top, width, height } = self.text;
        if height < 2 * LINE {
            return Ok(());
        }
        let (from, pixmap) = ((top + LINE) as i16, self.pane.pixmap);
        let (to_x, to_y) = (left as i16, top as i16);
        let (columns, rows) = (width as u16, (height - LINE) as u16);
        x.conn.copy_area(pixmap, pixmap, x.gc, to_x, from, to_x, to_y, columns, rows)?;
        let last = top + height - LINE;
        x.conn.change_gc(x.gc, &ChangeGCAux::new().foreground(pixel(PANEL)))?;
        let below = Rectangle { x: to_x, y: last as i16, width: columns, height: LINE as u16 };
        x.conn.poly_fill_rectangle(pixmap, x.gc, &[below])?;
        let mut room = (width / ADVANCE) as usize;
        let parts = line.iter().map(|(text, colour)| {
            let text = &text[..text.len().min(room)];
            room -= text.len();
            (text, *colour)
        });
        x.text(&self.pane, left, last + (LINE - ASCENT) / 2, PANEL, parts)?;
        x.show(&self.pane, self.text)
    }
}

/// A card with a planet on it.
fn open_card(x: &Connected, at: Rect, scale: f32) -> Result<Pane, ReplyOrIdError> {
    let (width, height) = (at.width as f32, at.height as f32);
    let mut canvas = Canvas::new(Size::new(at.width, at.height));
    canvas
        .shade(|x, y| mix([58.0, 46.0, 120.0], [28.0, 34.0, 84.0], (x / width + y / height) / 2.0));
    let radius = RADIUS * scale;
    let edge = Panel { x: 0.5, y: 0.5, width: width - 1.0, height: height - 1.0, radius };
    canvas.paint((0.0, 0.0, width, height), 0.0, LILAC, |x, y| {
        0.55 * (1.0 - edge.distance(x, y).abs()).clamp(0.0, 1.0)
    });
    let (cx, cy, r) = (height * 0.52, height * 0.5, height * 0.24);
    let around = (cx - 2.0 * r, cy - 2.0 * r, cx + 2.0 * r, cy + 2.0 * r);
    // A ring in the plane of an ellipse that leans; `front` is the half that passes the planet.
    let ring = |front: bool| {
        move |x: f32, y: f32| {
            let (dx, dy) = (x - cx, y - cy);
            let (u, v) = (dx * 0.95 - dy * 0.31, dx * 0.31 + dy * 0.95);
            let distance = (u / (r * 1.75)).hypot(v / (r * 0.5)) - 1.0;
            let inside = (1.3 - distance.abs() * r * 0.5 / scale.max(0.5)).clamp(0.0, 1.0);
            if (v > 0.0) == front { 0.9 * inside } else { 0.0 }
        }
    };
    canvas.paint(around, 0.0, LILAC, ring(false));
    canvas.line((cx, cy), (cx, cy), r, AMBER, 1.0);
    // Its night side.
    canvas.paint(around, 0.0, [70, 20, 60], |x, y| {
        let inside = (r + 0.5 - (x - cx).hypot(y - cy)).clamp(0.0, 1.0);
        let dark = (((x - cx) + (y - cy)) / (r * 1.6) + 0.25).clamp(0.0, 1.0);
        0.85 * inside * dark
    });
    canvas.paint(around, 0.0, LILAC, ring(true));

    let pane = x.pane(canvas, at, "Drifting card")?;
    // Without a window manager nothing else rounds its corners.
    x.conn.shape_rectangles(
        shape::SO::SET,
        shape::SK::BOUNDING,
        ClipOrdering::YX_BANDED,
        pane.window,
        0,
        0,
        &rounded(at, radius),
    )?;
    let label = Panel {
        x: height * 1.08,
        y: height * 0.5 - 26.0,
        width: width - height * 1.08 - 14.0,
        height: 52.0,
        radius: 8.0,
    };
    if label.width >= 20.0 * ADVANCE as f32 && height >= 60.0 {
        let mut pane = pane;
        pane.canvas.panel(label, PANEL, 1.0);
        x.put(pane.pixmap, &pane.canvas, pane.canvas.size().bounds(), (0, 0))?;
        let (left, top) = (label.x as u32 + 10, label.y as u32);
        x.text(&pane, left, top + 9, PANEL, [("spaceport", TEXT)])?;
        x.text(&pane, left, top + 30, PANEL, [("a window adrift", DIM)])?;
        x.map(&pane)?;
        return Ok(pane);
    }
    x.map(&pane)?;
    Ok(pane)
}

/// A rectangle with round corners as rows.
fn rounded(rect: Rect, radius: f32) -> Vec<Rectangle> {
    let (width, height) = (rect.width as i32, rect.height as i32);
    (0..height)
        .map(|y| {
            let into = radius - (y.min(height - 1 - y) as f32 + 0.5);
            let inset = match into > 0.0 {
                true => (radius - (radius * radius - into * into).max(0.0).sqrt()) as i32,
                false => 0,
            };
            let inset = inset.min(width / 2);
            let (x, y, width) = (inset as i16, y as i16, (width - 2 * inset) as u16);
            Rectangle { x, y, width, height: 1 }
        })
        .collect()
}

/// Where everything is.
#[derive(Clone, Copy, Debug)]
struct Layout {
    scale: f32,
    clock: Option<Rect>,
    terminal: Option<Rect>,
    card: Rect,
}

impl Layout {
    /// Drawn for 1280x720, and scaled to what there is; what does not fit is left out.
    fn of(size: Size) -> Self {
        let (width, height) = (size.width as f32, size.height as f32);
        let scale = (width / 1280.0).min(height / 720.0).clamp(0.4, 3.0);
        let rect = |x: f32, y: f32, width: f32, height: f32| {
            Rect::new(x as u32, y as u32, (width * scale) as u32, (height * scale) as u32)
        };
        let fits = |rect: Rect| rect.clamped(size) == Some(rect);
        let clock = rect(width * 0.05, height * 0.1, 556.0, 262.0);
        let terminal = rect(width * 0.515, height * 0.2, 566.0, 432.0);
        Self {
            scale,
            clock: Some(clock).filter(|&rect| fits(rect)),
            terminal: Some(terminal).filter(|&rect| fits(rect)),
            card: rect(0.0, 0.0, 268.0, 108.0).clamped(size).unwrap_or(size.bounds()),
        }
    }
}

/// Night above the edge of a planet, just before sunrise.
fn paint_sky(sky: &mut Canvas) {
    let (width, height) = (sky.size().width as f32, sky.size().height as f32);
    let radius = width.max(height) * 1.3;
    let centre = (width * 0.5, height * 0.83 + radius);
    let sun = width * 0.3;
    sky.shade(|x, y| {
        let down = y / height;
        let night = mix([7.0, 9.0, 26.0], [30.0, 22.0, 74.0], down * down);
        let above = ((x - centre.0).hypot(y - centre.1) - radius) / height;
        let near_sun = (-((x - sun) / (width * 0.34)).powi(2)).exp();
        let light = mix([52.0, 110.0, 235.0], [255.0, 176.0, 112.0], near_sun * 0.8);
        let strength = 0.3 + 0.7 * near_sun;
        // Air: a thin bright line, and a wide faint one.
        let air = 0.85 * (-above.max(0.0) / 0.012).exp() + 0.4 * (-above.max(0.0) / 0.11).exp();
        let ground = 0.5 * (above.min(0.0) / 0.02).exp() + 0.12 * (above.min(0.0) / 0.12).exp();
        let sky = mix(night, light, (air * strength).min(1.0));
        let planet = mix([5.0, 8.0, 22.0], light, ground * strength);
        mix(planet, sky, (above * height + 0.5).clamp(0.0, 1.0))
    });
    // Stars, the same every time, where it is dark enough to see them.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 40) as f32 / (1_u64 << 24) as f32
    };
    for _ in 0..STARS {
        let (x, y) = (next() * width, next() * height);
        let (size, shine) = (0.4 + 0.7 * next() * next(), 0.25 + 0.65 * next());
        if (x - centre.0).hypot(y - centre.1) - radius > 0.04 * height {
            sky.line((x, y), (x, y), size, TEXT, shine);
        }
    }
}

/// A window's frame, with its shadow around it.
fn paint_panel(sky: &mut Canvas, at: Rect, scale: f32) {
    let radius = RADIUS * scale;
    let (x, y) = (at.x as f32, at.y as f32);
    let (width, height) = (at.width as f32, at.height as f32);
    let panel = Panel { x, y, width, height, radius };
    sky.shadow(Panel { y: y + 10.0 * scale, ..panel }, 34.0 * scale, 0.5);
    sky.panel(panel, EDGE, 1.0);
    let inner = Panel {
        x: x + 1.0,
        y: y + 1.0,
        width: width - 2.0,
        height: height - 2.0,
        radius: radius - 1.0,
    };
    sky.panel(inner, PANEL, 1.0);
    let header = HEADER * scale;
    sky.paint((x, y, x + width, y + header), 0.0, TITLE, |px, py| {
        if py < y + header { (0.5 - inner.distance(px, py)).clamp(0.0, 1.0) } else { 0.0 }
    });
    for (index, colour) in [RED, AMBER, GREEN].into_iter().enumerate() {
        let at = (x + (20.0 + 20.0 * index as f32) * scale, y + header / 2.0);
        sky.line(at, at, 5.5 * scale, colour, 1.0);
    }
}

/// The title of a window, in the middle of its frame's upper edge.
fn paint_title(x: &Connected, pane: &Pane, title: &str, scale: f32) -> Result<(), ConnectionError> {
    let left = pane.canvas.size().width.saturating_sub(title.len() as u32 * ADVANCE) / 2;
    let top = ((HEADER * scale) as u32).saturating_sub(ASCENT) / 2;
    x.text(pane, left, top, TITLE, [(title, DIM)])?;
    Ok(())
}

type Line = Vec<(String, Colour)>;

/// The first lines of the terminal.
fn welcome(display: &str) -> [Line; 7] {
    let line = |text: &str, colour| vec![(text.to_owned(), colour)];
    let prompt = |text: &str| vec![("$ ".to_owned(), GREEN), (text.to_owned(), TEXT)];
    [
        line("This desktop was started by spaceport for you to look at.", TEXT),
        line("Any program can appear on it:", DIM),
        Line::new(),
        prompt(&format!("DISPLAY={display} xterm")),
        Line::new(),
        prompt("launch --to low-earth-orbit"),
        Line::new(),
    ]
}

/// One line of the flight that the terminal reports on: ten minutes up, then round and round.
fn telemetry(line: u64) -> Line {
    let seconds = line * SECONDS_PER_LINE;
    let clock =
        format!("T+{:02}:{:02}:{:02}  ", seconds / 3600 % 100, seconds / 60 % 60, seconds % 60);
    let mut parts = vec![(clock, DIM)];
    if let Some((_, event)) = EVENTS.iter().find(|(at, _)| *at == seconds) {
        parts.push(((*event).to_owned(), AMBER));
        return parts;
    }
    let mut value = |name: &str, value: String, unit: &str| {
        parts.push((format!("{name} "), DIM));
        parts.push((value, TEXT));
        parts.push((format!(" {unit}  "), DIM));
    };
    let climbed = (seconds as f32 / ORBIT_AT as f32).min(1.0);
    let altitude = 408.0 * climbed * climbed * (3.0 - 2.0 * climbed);
    value("alt", format!("{altitude:6.1}"), "km");
    value("vel", format!("{:5.2}", 7.66 * climbed.powf(1.4)), "km/s");
    if climbed < 1.0 {
        let thrust = if seconds < 156 { 7_607 } else { 981 };
        value("thrust", format!("{thrust:5}"), "kN");
    } else {
        let turn = (seconds - ORBIT_AT) as f32 / 5_560.0 * TAU;
        value("lat", format!("{:+6.1}", 51.6 * turn.sin()), "deg");
    }
    parts.push(("nominal".to_owned(), GREEN));
    parts
}

fn mix(from: [f32; 3], to: [f32; 3], amount: f32) -> [f32; 3] {
    std::array::from_fn(|index| from[index] + (to[index] - from[index]) * amount)
}

const fn pixel([r, g, b]: Colour) -> u32 {
    (r as u32) << 16 | (g as u32) << 8 | b as u32
}

fn gone(error: &ReplyOrIdError) -> Error {
    let source = match error {
        ReplyOrIdError::X11Error(error) => ReplyError::X11Error(error.clone()).to_string(),
        error => error.to_string(),
    };
    Error::because(Cause::CaptureFailed, format!("the demo desktop's X server failed: {source}"))
        .hint("Start the demo desktop again")
}

/// The depth of the screen that [`super::server`] asks for.
const DEPTH: u8 = 24;

/// Bytes of an image in one request; the least that a server must take is a little more.
const MAX_REQUEST: u32 = 200 << 10;

// The font `fixed`: six pixels from one character to the next, eleven above the baseline.
const ADVANCE: u32 = 6;
const ASCENT: u32 = 11;
const LINE: u32 = 16;

// At a scale of 1.
const HEADER: f32 = 32.0;
const RADIUS: f32 = 12.0;
const MARGIN: u32 = 18;

const STARS: u32 = 260;
const LINES_PER_SECOND: u64 = 3;
const SECONDS_PER_LINE: u64 = 2;
const ORBIT_AT: u64 = 540;

const EVENTS: [(u64, &str); 6] = [
    (0, "lift-off"),
    (70, "maximum dynamic pressure"),
    (156, "main engine cut-off, stage separation"),
    (164, "second stage ignition"),
    (228, "fairing separation"),
    (ORBIT_AT, "second engine cut-off: welcome to orbit"),
];

/// Which strokes a digit lights: from the top clockwise, then the middle; lowest bit first.
const SEGMENTS: [u8; 10] = [
    0b011_1111, 0b000_0110, 0b101_1011, 0b100_1111, 0b110_0110, 0b110_1101, 0b111_1101, 0b000_0111,
    0b111_1111, 0b110_1111,
];

const PANEL: Colour = [14, 18, 42];
const TITLE: Colour = [25, 30, 64];
const EDGE: Colour = [58, 66, 118];
const TEXT: Colour = [222, 228, 255];
const DIM: Colour = [118, 130, 178];
const LILAC: Colour = [190, 178, 255];
const CYAN: Colour = [126, 232, 250];
const AMBER: Colour = [255, 190, 98];
const GREEN: Colour = [116, 226, 160];
const RED: Colour = [255, 108, 118];
