use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    AtomEnum, ChangeGCAux, ConfigureWindowAux, ConnectionExt as _, CreateGCAux, CreateWindowAux,
    PropMode, Rectangle, WindowClass,
};
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

/// An app with one window that is never still. Dropping it closes the window.
#[derive(Debug)]
pub struct Window {
    /// A connection of this side; the painter has one of its own.
    control: RustConnection,
    id: u32,
    stop: Arc<AtomicBool>,
    painter: Option<JoinHandle<()>>,
}

impl Window {
    /// Opens a window of `size` at `place`, with a title and an app name.
    pub fn open(
        display: &str,
        title: &str,
        app: &str,
        place: (i16, i16),
        size: (u16, u16),
    ) -> Self {
        let (connection, screen) = x11rb::connect(Some(display)).unwrap();
        let screen = &connection.setup().roots[screen];
        let window = connection.generate_id().unwrap();
        let aux = CreateWindowAux::new().background_pixel(0x20_40_60);
        let ((x, y), (width, height), depth) = (place, size, x11rb::COPY_DEPTH_FROM_PARENT);
        let class = WindowClass::INPUT_OUTPUT;
        connection
            .create_window(depth, window, screen.root, x, y, width, height, 0, class, 0, &aux)
            .unwrap();
        let set = |property: AtomEnum, text: &[u8]| {
            let kind = AtomEnum::STRING;
            connection.change_property8(PropMode::REPLACE, window, property, kind, text).unwrap();
        };
        set(AtomEnum::WM_NAME, title.as_bytes());
        set(AtomEnum::WM_CLASS, format!("{}\0{app}\0", app.to_lowercase()).as_bytes());
        connection.map_window(window).unwrap();
        let gc = connection.generate_id().unwrap();
        connection.create_gc(gc, window, &CreateGCAux::new()).unwrap();
        connection.sync().unwrap();

        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let painter = std::thread::spawn(move || {
            let mut step = 0_u32;
            while !stopped.load(Ordering::Relaxed) {
                let colour = ChangeGCAux::new().foreground(0x10_00 * (step % 16) + 0xff);
                connection.change_gc(gc, &colour).unwrap();
                let all = Rectangle { x: 0, y: 0, width, height };
                connection.poly_fill_rectangle(window, gc, &[all]).unwrap();
                connection.sync().unwrap();
                step += 1;
                std::thread::sleep(Duration::from_millis(50)); // the pace of the picture
            }
            connection.destroy_window(window).unwrap();
            connection.sync().unwrap();
        });
        let (control, _) = x11rb::connect(Some(display)).unwrap();
        Self { control, id: window, stop, painter: Some(painter) }
    }

    /// Gives it another size.
    pub fn resize(&self, width: u16, height: u16) {
        let size = ConfigureWindowAux::new().width(u32::from(width)).height(u32::from(height));
        self.control.configure_window(self.id, &size).unwrap();
        self.control.sync().unwrap();
    }

    /// Takes it off the screen: as a window manager that minimizes it does, or as an app that hides it.
    pub fn hide(&self, minimized: bool) {
        const ICONIC: u32 = 3;
        let name = self.control.intern_atom(false, b"WM_STATE").unwrap().reply().unwrap().atom;
        if minimized {
            let (set, value) = (PropMode::REPLACE, [ICONIC, x11rb::NONE]);
            self.control.change_property32(set, self.id, name, name, &value).unwrap();
        }
        self.control.unmap_window(self.id).unwrap();
        self.control.sync().unwrap();
    }

    /// Gives it another title.
    pub fn retitle(&self, title: &str) {
        let (property, kind) = (AtomEnum::WM_NAME, AtomEnum::STRING);
        let set = PropMode::REPLACE;
        self.control.change_property8(set, self.id, property, kind, title.as_bytes()).unwrap();
        self.control.sync().unwrap();
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(painter) = self.painter.take() {
            drop(painter.join());
        }
    }
}
