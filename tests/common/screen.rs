use spaceport_media::capture::counter;
use spaceport_types::Rect;
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    ChangeGCAux, ConnectionExt as _, CreateGCAux, Gcontext, Rectangle, Screen as X11Screen,
};
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

    /// Paints only the number in the corner.
    pub fn mark(&self, number: u16) {
        for wanted in [true, false] {
            let cells = counter::cells(number).filter(|&(_, white)| white == wanted);
            self.fill(if wanted { 0xff_ff_ff } else { 0 }, cells.map(|(cell, _)| cell));
        }
    }
}
