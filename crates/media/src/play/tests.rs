use spaceport_testkit::Xvfb;
use spaceport_types::{Bitrate, Rect};
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{AtomEnum, ConnectionExt as _, ImageFormat};

use super::*;
use crate::Frame;
use crate::encode::{Config, Mode, Preference, open};

const SIZE: Size = Size::new(320, 240);

/// One picture, encoded: red on the left, blue on the right.
fn encoded(codec: Codec) -> Bytes {
    let config = Config {
        codec,
        source: SIZE,
        size: SIZE,
        bitrate: Bitrate::from_kbps(4_000),
        max_fps: 30,
        latency: Duration::from_millis(200),
    };
    let mut encoder = open(&config, &Preference::default()).unwrap();
    let stride = SIZE.width as usize * 4;
    let (red, blue) = ([0, 0, 220, 0], [220, 0, 0, 0]);
    let row = [red.repeat(SIZE.width as usize / 2), blue.repeat(SIZE.width as usize / 2)].concat();
    let pixels = row.repeat(SIZE.height as usize);
    let whole: [Rect; 1] = [SIZE.bounds()];
    let frame = Frame {
        pixels: &pixels,
        stride,
        size: SIZE,
        damage: &whole,
        captured_at: Duration::from_millis(1),
    };
    encoder.encode(&frame, Mode::Keyframe).unwrap().unwrap().payload
}

/// What a screen shows, and whether a window on it has a title.
struct Eyes {
    connection: x11rb::rust_connection::RustConnection,
    root: u32,
}

impl Eyes {
    fn on(server: &Xvfb) -> Self {
        let (connection, screen) = x11rb::connect(Some(server.display())).unwrap();
        let root = connection.setup().roots[screen].root;
        Self { connection, root }
    }

    /// The colours 50 pixels into the window from the left, and from the right.
    fn colours(&self) -> Option<[[u8; 3]; 2]> {
        let window = self.window()?;
        let about = self.connection.get_geometry(window).unwrap().reply().ok()?;
        let pixel = |x: i16| {
            let (y, format) = (about.height as i16 / 2, ImageFormat::Z_PIXMAP);
            let image = self.connection.get_image(format, window, x, y, 1, 1, !0).unwrap();
            let data = image.reply().ok()?.data;
            Some([data[2], data[1], data[0]])
        };
        Some([pixel(50)?, pixel(about.width as i16 - 50)?])
    }

    fn window(&self) -> Option<u32> {
        let tree = self.connection.query_tree(self.root).unwrap().reply().unwrap();
        tree.children.into_iter().find(|&window| self.title(window).is_some())
    }

    fn title(&self, window: u32) -> Option<String> {
        let (name, any) = (AtomEnum::WM_NAME, AtomEnum::ANY);
        let title = self.connection.get_property(false, window, name, any, 0, 99).unwrap();
        let title = title.reply().ok()?.value;
        (!title.is_empty()).then(|| String::from_utf8_lossy(&title).into_owned())
    }

    /// Waits until the window shows the picture.
    fn wait(&self) -> [[u8; 3]; 2] {
        let near = |colour: [u8; 3], wanted: [u8; 3]| {
            colour.iter().zip(wanted).all(|(&is, wanted)| is.abs_diff(wanted) < 24)
        };
        let mut seen = None;
        for _ in 0..500 {
            seen = self.colours();
            if seen.is_some_and(|[left, right]| near(left, [220, 0, 0]) && near(right, [0, 0, 220]))
            {
                return seen.unwrap();
            }
            std::thread::sleep(Duration::from_millis(20)); // a window shows no event to others
        }
        panic!("the window shows {seen:?}");
    }
}

#[test]
fn one_frame_of_each_codec_is_seen_as_it_was() {
    let server = Xvfb::start(Size::new(640, 480)).unwrap();
    let display = Some(server.display().to_owned());
    for codec in [Codec::H264, Codec::Vp8, Codec::Vp9, Codec::Av1, Codec::Png, Codec::Bgra] {
        let title = format!("the {codec} box");
        let options =
            Options { title: title.clone(), display: display.clone(), ..Options::default() };
        let mut window = Window::open(codec, &options, |error| panic!("{error:?}")).unwrap();
        // A desktop that stands still sends no second one.
        assert!(window.show(encoded(codec), SIZE));
        let eyes = Eyes::on(&server);
        eyes.wait();
        let shown = eyes.title(eyes.window().unwrap()).unwrap();
        assert!(shown.contains(&title), "{shown}");
    }
}

#[test]
fn a_window_that_is_closed_says_so_and_takes_no_more() {
    let server = Xvfb::start(Size::new(640, 480)).unwrap();
    let options = Options {
        title: "box".to_owned(),
        display: Some(server.display().to_owned()),
        wayland: false,
    };
    let (told, ended) = mpsc::channel();
    let say = move |error| told.send(error).unwrap();
    let mut window = Window::open(Codec::Bgra, &options, say).unwrap();
    let picture = encoded(Codec::Bgra);
    assert!(window.show(picture.clone(), SIZE));
    let eyes = Eyes::on(&server);
    eyes.wait();
    // As a window manager does when its button is pressed.
    let (connection, id) = (&eyes.connection, eyes.window().unwrap());
    let atom = |name: &[u8]| connection.intern_atom(false, name).unwrap().reply().unwrap().atom;
    let data = [atom(b"WM_DELETE_WINDOW"), 0, 0, 0, 0];
    let kind = atom(b"WM_PROTOCOLS");
    let event = x11rb::protocol::xproto::ClientMessageEvent::new(32, id, kind, data);
    let mask = x11rb::protocol::xproto::EventMask::NO_EVENT;
    connection.send_event(false, id, mask, event).unwrap();
    connection.flush().unwrap();
    let error = ended.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(error.kind(), Kind::Cancelled, "{error:?}");
    assert!((0..20).any(|_| !window.show(picture.clone(), SIZE)));
}

#[test]
fn a_frame_that_is_cut_short_is_an_error() {
    let server = Xvfb::start(Size::new(640, 480)).unwrap();
    let options = Options {
        title: "box".to_owned(),
        display: Some(server.display().to_owned()),
        wayland: false,
    };
    let (told, ended) = mpsc::channel();
    let say = move |error| told.send(error).unwrap();
    let mut window = Window::open(Codec::Bgra, &options, say).unwrap();
    window.show(Bytes::from_static(b"no picture"), SIZE);
    let error = ended.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(error.kind(), Kind::Stream, "{error:?}");
}

#[test]
fn where_there_is_no_desktop_it_says_what_to_do() {
    let options =
        Options { title: String::new(), display: Some(":99999".to_owned()), wayland: false };
    let error = Window::open(Codec::Bgra, &options, drop).unwrap_err();
    assert_eq!(error.kind(), Kind::HostCapabilityMissing);
    assert!(error.report().hint.unwrap().contains("DISPLAY"));
}
