use spaceport_media::capture::counter;
use spaceport_types::{Bounds, Rect};
use x11rb::connection::Connection as _;
use x11rb::protocol::randr::{ConnectionExt as _, MonitorInfo};
use x11rb::protocol::xproto::{
    AtomEnum, BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ChangeGCAux, ChangeWindowAttributesAux,
    ConnectionExt as _, CreateGCAux, Gcontext, ImageFormat, MapState, PropMode, Rectangle,
    Screen as X11Screen, ScreenSaver,
};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

/// Draws on the root window of an X display.
#[derive(Debug)]
pub struct Screen {
    connection: RustConnection,
    root: X11Screen,
    gc: Gcontext,
}

impl Screen {
    /// Connects to a display, for example `:7`.
    pub fn connect(display: &str) -> Self {
        let (connection, number) = x11rb::connect(Some(display)).unwrap();
        let root = connection.setup().roots[number].clone();
        let gc = connection.generate_id().unwrap();
        connection.create_gc(gc, root.root, &CreateGCAux::new()).unwrap();
        Self { connection, root, gc }
    }

    /// Fills rectangles with a colour, 0xRRGGBB, and returns once the server has drawn them.
    pub fn fill(&self, colour: u32, areas: impl IntoIterator<Item = Rect>) {
        let areas: Vec<_> = areas
            .into_iter()
            .map(|area| Rectangle {
                x: area.x.try_into().unwrap(),
                y: area.y.try_into().unwrap(),
                width: area.width.try_into().unwrap(),
                height: area.height.try_into().unwrap(),
            })
            .collect();
        self.connection.change_gc(self.gc, &ChangeGCAux::new().foreground(colour)).unwrap();
        self.connection.poly_fill_rectangle(self.root.root, self.gc, &areas).unwrap();
        self.connection.sync().unwrap();
    }

    /// Paints a picture that a test can recognise: a colour all over, and `number` in the corner.
    pub fn paint(&self, colour: u32, number: u16) {
        let (width, height) = (self.root.width_in_pixels, self.root.height_in_pixels);
        self.fill(colour, [Rect::new(0, 0, width.into(), height.into())]);
        self.mark(number);
    }

    /// Leaves a wallpaper of one colour, 0xRRGGBB, where compositors look for it; they paint one of
    /// their own otherwise.
    pub fn wallpaper(&self, colour: u32) {
        let [tile, gc] = [(); 2].map(|()| self.connection.generate_id().unwrap());
        self.connection.create_pixmap(self.root.root_depth, tile, self.root.root, 1, 1).unwrap();
        self.connection.create_gc(gc, tile, &CreateGCAux::new().foreground(colour)).unwrap();
        let all = Rectangle { x: 0, y: 0, width: 1, height: 1 };
        self.connection.poly_fill_rectangle(tile, gc, &[all]).unwrap();
        let name = self.connection.intern_atom(false, b"_XROOTPMAP_ID").unwrap().reply().unwrap();
        let (kind, set) = (AtomEnum::PIXMAP, PropMode::REPLACE);
        self.connection.change_property32(set, self.root.root, name.atom, kind, &[tile]).unwrap();
        self.connection.sync().unwrap();
    }

    /// Fills a square of 240 pixels with coarse noise, another one for every `seed`: much to encode, at any
    /// quality.
    pub fn noise(&self, x: i16, y: i16, seed: u32) {
        const SIDE: u16 = 240;
        const GRAIN: usize = 6;
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut row = || -> Vec<u8> {
            let grains = (0..usize::from(SIDE) / GRAIN).flat_map(|_| {
                // xorshift
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                std::iter::repeat_n(state.to_ne_bytes(), GRAIN)
            });
            grains.flatten().collect()
        };
        let rows = usize::from(SIDE) / GRAIN;
        let pixels: Vec<u8> = (0..rows).flat_map(|_| row().repeat(GRAIN)).collect();
        let (depth, format) = (self.root.root_depth, ImageFormat::Z_PIXMAP);
        self.connection
            .put_image(format, self.root.root, self.gc, SIDE, SIDE, x, y, 0, depth, &pixels)
            .unwrap();
        self.connection.sync().unwrap();
    }

    /// Puts the pointer somewhere.
    pub fn point(&self, x: i16, y: i16) {
        self.connection.warp_pointer(x11rb::NONE, self.root.root, 0, 0, 0, 0, x, y).unwrap();
        self.connection.sync().unwrap();
    }

    /// Makes the pointer over the root window a square of one colour, 0xRRGGBB, that points with its
    /// pixel at `hotspot`; `None` hides it.
    pub fn shape_pointer(&self, colour: Option<u32>, side: u16, hotspot: (u16, u16)) {
        let [shape, mask, gc, cursor] = [(); 4].map(|()| self.connection.generate_id().unwrap());
        for pixmap in [shape, mask] {
            self.connection.create_pixmap(1, pixmap, self.root.root, side, side).unwrap();
        }
        self.connection.create_gc(gc, shape, &CreateGCAux::new().foreground(1)).unwrap();
        let all = Rectangle { x: 0, y: 0, width: side, height: side };
        self.connection.poly_fill_rectangle(shape, gc, &[all]).unwrap();
        let seen = u32::from(colour.is_some());
        self.connection.change_gc(gc, &ChangeGCAux::new().foreground(seen)).unwrap();
        self.connection.poly_fill_rectangle(mask, gc, &[all]).unwrap();
        let [_, red, green, blue] =
            colour.unwrap_or_default().to_be_bytes().map(|byte| u16::from(byte) * 0x101);
        let (x, y) = hotspot;
        self.connection
            .create_cursor(cursor, shape, mask, red, green, blue, 0, 0, 0, x, y)
            .unwrap();
        let wear = ChangeWindowAttributesAux::new().cursor(cursor);
        self.connection.change_window_attributes(self.root.root, &wear).unwrap();
        self.connection.sync().unwrap();
    }

    /// Moves the pointer there and presses a button of it once, as a hand would.
    pub fn click(&self, button: u8, x: i16, y: i16) {
        self.point(x, y);
        for event in [BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT] {
            self.connection
                .xtest_fake_input(event, button, x11rb::CURRENT_TIME, x11rb::NONE, 0, 0, 0)
                .unwrap();
        }
        self.connection.sync().unwrap();
    }

    /// What can be seen in an area: four bytes a pixel, blue first, top down.
    pub fn read(&self, area: Bounds) -> Vec<u8> {
        let (x, y) = (area.x.try_into().unwrap(), area.y.try_into().unwrap());
        let (width, height) = (area.width.try_into().unwrap(), area.height.try_into().unwrap());
        let format = ImageFormat::Z_PIXMAP;
        let image =
            self.connection.get_image(format, self.root.root, x, y, width, height, !0).unwrap();
        image.reply().unwrap().data
    }

    /// Where menus and other windows are that no window manager touches, but for those that fill
    /// the screen or cannot be seen.
    pub fn popups(&self) -> Vec<Bounds> {
        let tree = self.connection.query_tree(self.root.root).unwrap().reply().unwrap();
        let (width, height) = (self.root.width_in_pixels, self.root.height_in_pixels);
        let screen = Bounds::new(0, 0, width.into(), height.into());
        let popup = |window| {
            // A window may go between being listed and being asked.
            let about = self.connection.get_window_attributes(window).unwrap().reply().ok()?;
            let place = self.connection.get_geometry(window).unwrap().reply().ok()?;
            let shown = about.override_redirect && about.map_state == MapState::VIEWABLE;
            let border = 2 * u32::from(place.border_width);
            let (width, height) =
                (u32::from(place.width) + border, u32::from(place.height) + border);
            let area = Bounds::new(place.x.into(), place.y.into(), width, height);
            let area = area.intersection(screen)?;
            (shown && width > 1 && height > 1 && area != screen).then_some(area)
        };
        tree.children.into_iter().filter_map(popup).collect()
    }

    /// Sets a part of the screen apart as a monitor, as `xrandr --setmonitor` does. The first of them is
    /// to be `instead` of the monitor that the screen has by itself.
    pub fn set_monitor(&self, name: &str, area: Rect, instead: bool) {
        let (connection, root) = (&self.connection, self.root.root);
        connection.randr_query_version(1, 5).unwrap().reply().unwrap();
        let known = connection.randr_get_screen_resources(root).unwrap().reply().unwrap();
        let monitor = MonitorInfo {
            name: self.atom(name),
            x: area.x.try_into().unwrap(),
            y: area.y.try_into().unwrap(),
            width: area.width.try_into().unwrap(),
            height: area.height.try_into().unwrap(),
            width_in_millimeters: area.width,
            height_in_millimeters: area.height,
            outputs: if instead { known.outputs } else { Vec::new() },
            ..MonitorInfo::default()
        };
        connection.randr_set_monitor(root, monitor).unwrap().check().unwrap();
    }

    /// Switches the screen off as its saver does, or on again.
    pub fn switch_off(&self, off: bool) {
        let mode = if off { ScreenSaver::ACTIVE } else { ScreenSaver::RESET };
        self.connection.force_screen_saver(mode).unwrap().check().unwrap();
    }

    /// Takes such a monitor away.
    pub fn delete_monitor(&self, name: &str) {
        let name = self.atom(name);
        self.connection.randr_delete_monitor(self.root.root, name).unwrap().check().unwrap();
    }

    fn atom(&self, name: &str) -> u32 {
        self.connection.intern_atom(false, name.as_bytes()).unwrap().reply().unwrap().atom
    }

    /// Paints only the number in the corner.
    pub fn mark(&self, number: u16) {
        for wanted in [true, false] {
            let cells = counter::cells(number).filter(|&(_, white)| white == wanted);
            self.fill(if wanted { 0xff_ff_ff } else { 0 }, cells.map(|(cell, _)| cell));
        }
    }
}
