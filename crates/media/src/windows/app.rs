//! An app for tests: it makes windows, draws on them and remembers what it drew.

use std::sync::atomic::{AtomicU32, Ordering};

use spaceport_testkit::Xvfb;
use spaceport_types::{Bounds, Size};
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{
    Atom, AtomEnum, ChangeGCAux, ColormapAlloc, ConfigureWindowAux, ConnectionExt as _,
    CreateGCAux, CreateWindowAux, PropMode, Rectangle, VisualClass, WindowClass,
};
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

pub(crate) struct App {
    pub(crate) conn: RustConnection,
    pub(crate) root: u32,
}

/// A window, and what is on it.
pub(crate) struct Painted {
    pub(crate) id: u32,
    gc: u32,
    pub(crate) size: Size,
    pub(crate) pixels: Vec<[u8; 3]>,
}

/// How a window is made.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) depth: u8,
    pub(crate) border: u16,
    pub(crate) popup: bool,
}

pub(crate) const PLAIN: Look = Look { depth: 24, border: 0, popup: false };

pub(crate) const POPUP: Look = Look { popup: true, ..PLAIN };

/// A display number that no other test gets, for servers that are killed: whoever looks for one
/// must not find another's. Servers that are not told count up from 0.
pub(crate) fn own_display() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = std::process::id() + NEXT.fetch_add(1, Ordering::Relaxed);
    format!(":{}", 10_000 + number % 40_000)
}

impl App {
    pub(crate) fn on(server: &Xvfb) -> Self {
        let (conn, screen) = RustConnection::connect(Some(server.display())).unwrap();
        let root = conn.setup().roots[screen].root;
        Self { conn, root }
    }

    /// Waits until everything asked so far is done.
    pub(crate) fn finish(&self) {
        self.conn.sync().unwrap();
    }

    /// A window that is not shown yet, with its outer corner at the place of `bounds`.
    pub(crate) fn window(&self, bounds: Bounds, look: Look) -> Painted {
        let Bounds { x, y, width, height } = bounds;
        let conn = &self.conn;
        let screen = &conn.setup().roots[0];
        let depth = screen.allowed_depths.iter().find(|it| it.depth == look.depth).unwrap();
        let visual = depth.visuals.iter().find(|it| it.class == VisualClass::TRUE_COLOR).unwrap();
        let (id, gc) = (conn.generate_id().unwrap(), conn.generate_id().unwrap());
        let colormap = conn.generate_id().unwrap();
        let visual = visual.visual_id;
        conn.create_colormap(ColormapAlloc::NONE, colormap, self.root, visual).unwrap();
        let aux = CreateWindowAux::new()
            .background_pixel(0xff00_0000)
            .border_pixel(0xffff_00ff)
            .colormap(colormap)
            .override_redirect(u32::from(look.popup));
        let (x, y, width, height) = (x as i16, y as i16, width as u16, height as u16);
        let class = WindowClass::INPUT_OUTPUT;
        let (root, border) = (self.root, look.border);
        conn.create_window(look.depth, id, root, x, y, width, height, border, class, visual, &aux)
            .unwrap()
            .check()
            .unwrap();
        conn.create_gc(gc, id, &CreateGCAux::new()).unwrap();
        let size = bounds.size();
        let pixels = vec![[0; 3]; size.bounds().area() as usize];
        Painted { id, gc, size, pixels }
    }

    /// A shown window.
    pub(crate) fn shown(&self, bounds: Bounds, look: Look) -> Painted {
        let window = self.window(bounds, look);
        self.map(&window);
        window
    }

    pub(crate) fn map(&self, window: &Painted) {
        self.conn.map_window(window.id).unwrap();
        self.finish();
    }

    pub(crate) fn unmap(&self, window: &Painted) {
        self.conn.unmap_window(window.id).unwrap();
        self.finish();
    }

    pub(crate) fn destroy(&self, window: &Painted) {
        self.conn.destroy_window(window.id).unwrap();
        self.finish();
    }

    pub(crate) fn configure(&self, window: &Painted, to: ConfigureWindowAux) {
        self.conn.configure_window(window.id, &to).unwrap();
        self.finish();
    }

    /// Changes a window's size; what was on it is gone.
    pub(crate) fn resize(&self, window: &mut Painted, size: Size) {
        let to = ConfigureWindowAux::new().width(size.width).height(size.height);
        self.configure(window, to);
        window.size = size;
        window.pixels = vec![[0; 3]; size.bounds().area() as usize];
    }

    pub(crate) fn fill(&self, window: &mut Painted, colour: u32, at: Bounds) {
        self.conn.change_gc(window.gc, &ChangeGCAux::new().foreground(colour)).unwrap();
        let Bounds { x, y, width, height } = at;
        let (x, y, width, height) = (x as i16, y as i16, width as u16, height as u16);
        let rects = [Rectangle { x, y, width, height }];
        self.conn.poly_fill_rectangle(window.id, window.gc, &rects).unwrap();
        self.finish();
        let [blue, green, red, _] = colour.to_le_bytes();
        let Some(at) = at.intersection(window.size.into()) else { return };
        for y in at.y..at.bottom() {
            for x in at.x..at.right() {
                window.pixels[y as usize * window.size.width as usize + x as usize] =
                    [blue, green, red];
            }
        }
    }

    /// Draws something on every part of a window, another thing for every `seed`.
    pub(crate) fn paint(&self, window: &mut Painted, seed: u32) {
        let size = window.size;
        self.fill(window, 0x0030_5070 + seed * 0x1357, size.into());
        for step in 0..12_u32 {
            let at = (step * 7 + seed) as i32;
            let colour = 0x40ff_8000_u32.wrapping_add((seed * 31 + step) * 0x0a_3b1d);
            let bounds = Bounds::new(at, at * 2 / 3, 3 + step * 2, 5 + step);
            self.fill(window, colour, bounds);
        }
        // The last row and column, where a size that is off by one shows.
        let (right, bottom) = (size.width as i32 - 1, size.height as i32 - 1);
        self.fill(window, 0x00ff_ffff, Bounds::new(right, 0, 1, size.height));
        self.fill(window, 0x00ff_0000, Bounds::new(0, bottom, size.width, 1));
    }

    pub(crate) fn atom(&self, name: &str) -> Atom {
        self.conn.intern_atom(false, name.as_bytes()).unwrap().reply().unwrap().atom
    }

    pub(crate) fn set_text(&self, window: &Painted, name: &str, kind: &str, text: &[u8]) {
        let (name, kind) = (self.atom(name), self.atom(kind));
        self.conn.change_property8(PropMode::REPLACE, window.id, name, kind, text).unwrap();
        self.finish();
    }

    pub(crate) fn set_numbers(&self, window: &Painted, name: &str, kind: AtomEnum, values: &[u32]) {
        let name = self.atom(name);
        self.conn.change_property32(PropMode::REPLACE, window.id, name, kind, values).unwrap();
        self.finish();
    }
}
