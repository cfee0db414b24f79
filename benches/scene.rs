//! What happens on the screen: drawn by a client of its own, the same in every run.
//!
//! Everything is in pixmaps of the server before the run, so that a step is a few requests and the
//! drawing costs next to nothing. The last request of every step writes the step's number into the
//! picture, as 16 blocks of 16 pixels, black or white. Whoever decodes the picture can read it.
//!
//! All of it is drawn into one window that covers the screen, and that has a title like any app's:
//! who watches the display and who watches the window see the same pixels.

use std::time::Duration;

use spaceport_types::Rect;
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{
    AtomEnum, ConnectionExt as _, CreateGCAux, CreateWindowAux, Gcontext, ImageFormat, Pixmap,
    PropMode, Rectangle, Window, WindowClass,
};
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

use crate::process::now;
use crate::{Result, SCREEN};

/// What there is to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Nothing happens.
    Idle,
    /// Somebody types into a terminal.
    Typing,
    /// A terminal of 1000 by 900 scrolls by 36 pixels, 30 times a second.
    Scroll,
    /// A window of 800 by 600 is dragged over a photo, 30 steps a second.
    Drag,
    /// A film of 1280 by 720, 30 pictures a second.
    Video,
}

/// One change: its number, and when the first request of it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) number: u16,
    pub(crate) at: u64,
}

/// The title of the window that everything is drawn into.
pub(crate) const TITLE: &str = "scenes of spaceport-compare";

/// Pixels on a side of one bit of the number.
pub(crate) const BLOCK: u16 = 16;

/// The terminal that is typed into and scrolled.
const TERMINAL: Rectangle = Rectangle { x: 460, y: 90, width: 1_000, height: 900 };
/// One character of it.
const CELL: (u16, u16) = (9, 15);
/// Rows of text kept ready.
const TEXT: u16 = 4_500;
/// How far it scrolls in a step.
const SCROLLED: u16 = 36;
/// The window that is dragged.
const DRAGGED: (u16, u16) = (800, 600);
/// Where the film plays, and how many different pictures it has.
const FILM: Rectangle = Rectangle { x: 320, y: 180, width: 1_280, height: 720 };
const FILM_PICTURES: usize = 20;

impl Scene {
    pub(crate) const ALL: [Self; 5] =
        [Self::Idle, Self::Typing, Self::Scroll, Self::Drag, Self::Video];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Typing => "typing",
            Self::Scroll => "scroll",
            Self::Drag => "drag",
            Self::Video => "video",
        }
    }

    /// Where it changes something: of the typist's, the line that is typed.
    pub(crate) fn area(self) -> Rect {
        let Rectangle { x, y, width, height } = match self {
            Self::Typing => Rectangle { height: CELL.1, ..TERMINAL },
            Self::Scroll => TERMINAL,
            Self::Video => FILM,
            Self::Idle | Self::Drag => return SCREEN.bounds(),
        };
        Rect::new(x as u32, y as u32, width.into(), height.into())
    }
}

/// Everything that can be drawn.
pub(crate) struct Stage {
    connection: RustConnection,
    window: Window,
    black: Gcontext,
    white: Gcontext,
    photo: Pixmap,
    text: Pixmap,
    dragged: Pixmap,
    film: Vec<Pixmap>,
}

/// One scene, as it plays.
pub(crate) struct Player<'a> {
    stage: &'a Stage,
    scene: Scene,
    random: Random,
    number: u16,
    /// Rows of text shown so far.
    row: u16,
    /// Where the dragged window is, and where it is going.
    place: (i16, i16),
    speed: (i16, i16),
}

impl Stage {
    pub(crate) fn new(display: &str) -> Result<Self> {
        let (connection, screen) = x11rb::connect(Some(display))?;
        let screen = &connection.setup().roots[screen];
        let (root, depth) = (screen.root, screen.root_depth);
        let window = connection.generate_id()?;
        let (width, height) = (SCREEN.width as u16, SCREEN.height as u16);
        let attributes = CreateWindowAux::new().background_pixel(0);
        let class = WindowClass::INPUT_OUTPUT;
        connection.create_window(
            depth,
            window,
            root,
            0,
            0,
            width,
            height,
            0,
            class,
            0,
            &attributes,
        )?;
        let (name, text) = (AtomEnum::WM_NAME, AtomEnum::STRING);
        connection.change_property8(PropMode::REPLACE, window, name, text, TITLE.as_bytes())?;
        connection.map_window(window)?;
        let [black, white] = [0, 0x00ff_ffff].map(|color| -> Result<Gcontext> {
            let gc = connection.generate_id()?;
            let values = CreateGCAux::new().foreground(color).graphics_exposures(0);
            connection.create_gc(gc, window, &values)?;
            Ok(gc)
        });
        let (black, white) = (black?, white?);
        let mut random = Random(1);
        let pixmap = |width: u16, height: u16, pixel: &mut dyn FnMut(u16, u16) -> u32| {
            upload(&connection, window, depth, black, width, height, pixel)
        };
        let photo = pixmap(width, height, &mut |x, y| waves(x, y, 0, &mut random))?;
        let glyphs = Glyphs::new();
        let text = pixmap(TERMINAL.width, TEXT, &mut |x, y| glyphs.pixel(x, y))?;
        let dragged = pixmap(DRAGGED.0, DRAGGED.1, &mut |x, y| {
            if y < 24 { 0x0030_5080 } else { glyphs.pixel(x, y + 600) ^ 0x00ff_ffff }
        })?;
        let film = (0..FILM_PICTURES as u16).map(|picture| {
            pixmap(FILM.width, FILM.height, &mut |x, y| waves(x, y, picture + 1, &mut random))
        });
        let film = film.collect::<Result<_>>()?;
        connection.sync()?;
        Ok(Self { connection, window, black, white, photo, text, dragged, film })
    }

    /// Draws the first picture of `scene`. The same `round` gives the same run.
    pub(crate) fn set(&self, scene: Scene, round: u32) -> Result<Player<'_>> {
        let (width, height) = (SCREEN.width as u16, SCREEN.height as u16);
        self.copy(self.photo, (0, 0), (0, 0), (width, height))?;
        match scene {
            Scene::Idle | Scene::Typing | Scene::Scroll => {
                let Rectangle { x, y, width, height } = TERMINAL;
                self.copy(self.text, (0, 0), (x, y), (width, height))?;
            }
            Scene::Drag => self.copy(self.dragged, (0, 0), (100, 100), DRAGGED)?,
            Scene::Video => {
                self.copy(self.film[0], (0, 0), (FILM.x, FILM.y), (FILM.width, FILM.height))?;
            }
        }
        let random = Random(u64::from(round) * 0x1234_5678 + 77);
        let row = TERMINAL.height;
        let (place, speed) = ((100, 100), (12, 5));
        let player = Player { stage: self, scene, random, number: 0, row, place, speed };
        player.write_number()?;
        self.connection.sync()?;
        Ok(player)
    }

    fn copy(
        &self,
        from: u32,
        source: (i16, i16),
        target: (i16, i16),
        size: (u16, u16),
    ) -> Result<()> {
        let (window, gc) = (self.window, self.black);
        self.connection
            .copy_area(from, window, gc, source.0, source.1, target.0, target.1, size.0, size.1)?;
        Ok(())
    }
}

impl Player<'_> {
    /// Plays for `length` and returns what changed when.
    pub(crate) fn play(&mut self, length: Duration) -> Result<Vec<Step>> {
        let start = now();
        let end = start + length.as_nanos() as u64;
        let mut steps = Vec::new();
        let mut due = start;
        loop {
            due += match self.scene {
                Scene::Idle => length.as_nanos() as u64,
                // As fast as people type, and never in step with anybody's clock.
                Scene::Typing => 80_000_000 + self.random.below(120_000_000),
                // 30 a second, for the same reason a few milliseconds early or late.
                _ => 29_333_333 + self.random.below(8_000_000),
            };
            if due >= end {
                std::thread::sleep(Duration::from_nanos(end.saturating_sub(now())));
                return Ok(steps);
            }
            std::thread::sleep(Duration::from_nanos(due.saturating_sub(now())));
            self.number += 1;
            let at = now();
            self.step()?;
            self.write_number()?;
            self.stage.connection.flush()?;
            steps.push(Step { number: self.number, at });
        }
    }

    /// Goes on by one step, without its number, and returns when it is drawn.
    pub(crate) fn advance(&mut self) -> Result<()> {
        self.number += 1;
        self.step()?;
        self.stage.connection.sync()?;
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let stage = self.stage;
        match self.scene {
            Scene::Idle => {}
            Scene::Typing => {
                let index = self.number - 1;
                let (column, line) = (index % 100, index / 100 % 50);
                let from = (self.random.below(100) as u16 * CELL.0, 30 * CELL.1);
                let to = (TERMINAL.x as u16 + column * CELL.0, TERMINAL.y as u16 + line * CELL.1);
                stage.copy(stage.text, signed(from), signed(to), CELL)?;
            }
            Scene::Scroll => {
                let Rectangle { x, y, width, height } = TERMINAL;
                let kept = height - SCROLLED;
                let below = (x, y + SCROLLED as i16);
                stage.copy(stage.window, below, (x, y), (width, kept))?;
                let from = (0, self.row as i16);
                stage.copy(stage.text, from, (x, y + kept as i16), (width, SCROLLED))?;
                self.row = (self.row + SCROLLED) % (TEXT - SCROLLED);
            }
            Scene::Drag => {
                let (old, (width, height)) = (self.place, DRAGGED);
                let turn = |at: i16, speed: &mut i16, room: i16| {
                    if !(40..room).contains(&(at + *speed)) {
                        *speed = -*speed;
                    }
                    at + *speed
                };
                let x = turn(old.0, &mut self.speed.0, SCREEN.width as i16 - width as i16);
                let y = turn(old.1, &mut self.speed.1, SCREEN.height as i16 - height as i16);
                self.place = (x, y);
                // What the window uncovers, then the window.
                let (dx, dy) = (x - old.0, y - old.1);
                let left = if dx > 0 { old.0 } else { x + width as i16 };
                let top = if dy > 0 { old.1 } else { y + height as i16 };
                let columns = (left, old.1);
                stage.copy(stage.photo, columns, columns, (dx.unsigned_abs(), height))?;
                let rows = (old.0, top);
                stage.copy(stage.photo, rows, rows, (width, dy.unsigned_abs()))?;
                stage.copy(stage.dragged, (0, 0), (x, y), DRAGGED)?;
            }
            Scene::Video => {
                let picture = stage.film[self.number as usize % FILM_PICTURES];
                stage.copy(picture, (0, 0), (FILM.x, FILM.y), (FILM.width, FILM.height))?;
            }
        }
        Ok(())
    }

    fn write_number(&self) -> Result<()> {
        let stage = self.stage;
        let side = BLOCK;
        let all = Rectangle { x: 0, y: 0, width: side * 16, height: side };
        stage.connection.poly_fill_rectangle(stage.window, stage.black, &[all])?;
        let ones: Vec<_> = (0..16)
            .filter(|bit| self.number >> bit & 1 == 1)
            .map(|bit| Rectangle { x: bit * side as i16, y: 0, width: side, height: side })
            .collect();
        stage.connection.poly_fill_rectangle(stage.window, stage.white, &ones)?;
        Ok(())
    }
}

fn signed((x, y): (u16, u16)) -> (i16, i16) {
    (x as i16, y as i16)
}

/// Makes a pixmap of what `pixel` says.
fn upload(
    connection: &RustConnection,
    window: Window,
    depth: u8,
    gc: Gcontext,
    width: u16,
    height: u16,
    pixel: &mut dyn FnMut(u16, u16) -> u32,
) -> Result<Pixmap> {
    /// Rows in one request; well below the server's limit of 256 KB without BIG-REQUESTS.
    const ROWS: u16 = 16;
    let pixmap = connection.generate_id()?;
    connection.create_pixmap(depth, pixmap, window, width, height)?;
    for top in (0..height).step_by(ROWS.into()) {
        let rows = ROWS.min(height - top);
        let pixels: Vec<u8> = (top..top + rows)
            .flat_map(|y| (0..width).map(move |x| (x, y)))
            .flat_map(|(x, y)| pixel(x, y).to_le_bytes())
            .collect();
        let format = ImageFormat::Z_PIXMAP;
        connection.put_image(format, pixmap, gc, width, rows, 0, top as i16, 0, depth, &pixels)?;
    }
    Ok(pixmap)
}

/// A pixel of something like a photo: broad waves, finer ones on top, and a little noise. `time`
/// moves the waves.
fn waves(x: u16, y: u16, time: u16, random: &mut Random) -> u32 {
    let (x, y, time) = (f32::from(x), f32::from(y), f32::from(time));
    let broad = (x / 210.0 + time * 0.11).sin() + (y / 170.0 - time * 0.07).cos();
    let fine = ((x + y) / 23.0 + time * 0.31).sin() * ((x - y) / 37.0).cos();
    let noise = random.below(9) as f32 - 4.0;
    let channel = |offset: f32| {
        let value = 128.0 + 45.0 * (broad + offset).sin() + 14.0 * fine + noise;
        value.clamp(0.0, 255.0) as u32
    };
    channel(0.0) << 16 | channel(1.1) << 8 | channel(2.3)
}

/// Text that nobody can read: light on dark, glyphs of 6 by 10 in cells of 9 by 15.
struct Glyphs {
    shapes: Vec<u64>,
}

impl Glyphs {
    fn new() -> Self {
        let mut random = Random(5);
        // Two draws, so that three in four pixels of a glyph are background.
        Self { shapes: (0..94).map(|_| random.draw() & random.draw()).collect() }
    }

    fn pixel(&self, x: u16, y: u16) -> u32 {
        let (column, line) = (x / CELL.0, y / CELL.1);
        let mut random = Random(u64::from(line) * 7_919 + 3);
        let length = 20 + random.below(90) as u16;
        let (dx, dy) = (x % CELL.0, (y % CELL.1).wrapping_sub(3));
        if column >= length || dx >= 6 || dy >= 10 {
            return 0x0010_1418;
        }
        let glyph = Random(u64::from(line) << 16 | u64::from(column)).draw() as usize;
        let bit = dy * 6 + dx;
        if self.shapes[glyph % self.shapes.len()] >> bit & 1 == 1 {
            0x00d0_d8e0
        } else {
            0x0010_1418
        }
    }
}

/// Splitmix64: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }
}
