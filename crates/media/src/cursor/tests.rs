//! Against a real Xvfb, whose pointer a connection of the test's own moves and changes.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};

use spaceport_testkit::Xvfb;
use spaceport_types::Size;
use x11rb::connection::Connection as _;
use x11rb::protocol::render::{ConnectionExt as _, CreatePictureAux, Pictformat};
use x11rb::protocol::xproto::{
    ChangeWindowAttributesAux, ConnectionExt as _, CreateGCAux, ImageFormat, MOTION_NOTIFY_EVENT,
    Rectangle, Window,
};
use x11rb::protocol::xtest::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

use super::*;
use crate::capture::Source;

const SCREEN: Size = Size::new(331, 257);
const WHOLE: Bounds = Bounds::new(0, 0, 331, 257);

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(10);

/// Someone at the desktop.
pub(crate) struct Hand {
    conn: RustConnection,
    root: Window,
}

impl Hand {
    pub(crate) fn on(server: &Xvfb) -> Self {
        let (conn, screen) = RustConnection::connect(Some(server.display())).unwrap();
        let root = conn.setup().roots[screen].root;
        Self { conn, root }
    }

    /// Puts the pointer somewhere, as a program does.
    pub(crate) fn warp(&self, x: i16, y: i16) {
        self.conn.warp_pointer(x11rb::NONE, self.root, 0, 0, 0, 0, x, y).unwrap();
        self.conn.sync().unwrap();
    }

    /// Moves the pointer somewhere, as a mouse does.
    fn push(&self, x: i16, y: i16) {
        let (kind, root) = (MOTION_NOTIFY_EVENT, self.root);
        self.conn.xtest_fake_input(kind, 0, x11rb::CURRENT_TIME, root, x, y, 0).unwrap();
        self.conn.sync().unwrap();
    }

    /// Gives the pointer an image: rows of pixels as X has them, alpha multiplied in.
    pub(crate) fn wear(&self, size: Size, hotspot: (u16, u16), pixel: impl Fn(u32, u32) -> u32) {
        let conn = &self.conn;
        let (width, height) = (size.width as u16, size.height as u16);
        let [pixmap, gc, picture, cursor] = [(); 4].map(|()| conn.generate_id().unwrap());
        conn.create_pixmap(32, pixmap, self.root, width, height).unwrap();
        conn.create_gc(gc, pixmap, &CreateGCAux::new()).unwrap();
        let pixels = (0..size.height).flat_map(|y| (0..size.width).map(move |x| (x, y)));
        let bytes: Vec<u8> = pixels.flat_map(|(x, y)| pixel(x, y).to_le_bytes()).collect();
        let format = ImageFormat::Z_PIXMAP;
        conn.put_image(format, pixmap, gc, width, height, 0, 0, 0, 32, &bytes).unwrap();
        conn.render_query_version(0, 11).unwrap().reply().unwrap();
        let argb = self.argb();
        conn.render_create_picture(picture, pixmap, argb, &CreatePictureAux::new()).unwrap();
        conn.render_create_cursor(cursor, picture, hotspot.0, hotspot.1).unwrap();
        self.put_on(cursor);
    }

    /// The pointer of old: two colours and a mask.
    fn wear_old(&self, foreground: [u16; 3], hotspot: (u16, u16)) {
        let conn = &self.conn;
        let [pixmap, gc, cursor] = [(); 3].map(|()| conn.generate_id().unwrap());
        conn.create_pixmap(1, pixmap, self.root, 16, 16).unwrap();
        conn.create_gc(gc, pixmap, &CreateGCAux::new().foreground(1)).unwrap();
        let all = Rectangle { x: 0, y: 0, width: 16, height: 16 };
        conn.poly_fill_rectangle(pixmap, gc, &[all]).unwrap();
        let ([r, g, b], (x, y)) = (foreground, hotspot);
        conn.create_cursor(cursor, pixmap, pixmap, r, g, b, 0, 0, 0, x, y).unwrap();
        self.put_on(cursor);
    }

    fn put_on(&self, cursor: u32) {
        let cursor = ChangeWindowAttributesAux::new().cursor(cursor);
        self.conn.change_window_attributes(self.root, &cursor).unwrap();
        self.conn.sync().unwrap();
    }

    fn argb(&self) -> Pictformat {
        let formats = self.conn.render_query_pict_formats().unwrap().reply().unwrap().formats;
        let argb = formats.iter().find(|it| {
            let it = (it.depth, it.direct.alpha_mask, it.direct.alpha_shift, it.direct.red_shift);
            it == (32, 0xff, 24, 16)
        });
        argb.unwrap().id
    }
}

/// A follower and what it tells.
struct Followed {
    follower: Follower,
    news: Receiver<News>,
    image: Option<Arc<CursorImage>>,
}

impl Followed {
    fn on(server: &Xvfb) -> Self {
        let (tell, news) = channel();
        let display = Some(server.display().to_owned());
        let follower = Follower::start(display, move |news| drop(tell.send(news))).unwrap();
        follower.place(Some(WHOLE));
        Self { follower, news, image: None }
    }

    /// Waits until it says that the pointer is at a place, or with `None` that there is none.
    fn until(&mut self, at: Option<(i32, i32)>) {
        let wanted = at.map(|(x, y)| CursorPosition { visible: true, x, y }).unwrap_or_default();
        loop {
            match self.news.recv_timeout(LONG).expect("no news") {
                News::Image(image) => self.image = Some(image),
                News::Position(position) if position == wanted => return,
                News::Position(_) => {}
            }
        }
    }

    /// The next image.
    fn image(&self) -> Arc<CursorImage> {
        loop {
            if let News::Image(image) = self.news.recv_timeout(LONG).expect("no news") {
                return image;
            }
        }
    }
}

/// A gradient of colours and transparency, alpha multiplied in.
fn gradient(x: u32, y: u32) -> u32 {
    let alpha = (x * 4).min(255);
    let of = |colour: u32| colour * alpha / 255;
    alpha << 24 | of(255) << 16 | of(y * 4) << 8 | of(x * 3)
}

#[test]
fn the_image_comes_with_its_hotspot_and_before_the_position() {
    let server = Xvfb::start(SCREEN).unwrap();
    let hand = Hand::on(&server);
    hand.warp(120, 80);
    hand.wear(Size::new(64, 64), (7, 61), gradient);
    let mut followed = Followed::on(&server);
    followed.until(Some((120, 80)));
    let image = followed.image.clone().expect("no image before the position");
    assert_eq!((image.size, image.hotspot), (Size::new(64, 64), (7, 61)));
    for (index, pixel) in image.rgba.as_chunks::<4>().0.iter().enumerate() {
        let (x, y) = (index as u32 % 64, index as u32 / 64);
        let alpha = (x * 4).min(255);
        assert_eq!(u32::from(pixel[3]), alpha);
        // Multiplying with little alpha and dividing again loses what eight bits cannot hold.
        let slack = 255_u32.checked_div(alpha).map_or(255, |step| step + 1);
        for (colour, wanted) in pixel[..3].iter().zip([255, y * 4, x * 3]) {
            let off = u32::from(*colour).abs_diff(wanted.min(255));
            assert!(off <= slack, "{pixel:?} at {x},{y}");
        }
    }

    // Another image, in the plain way of old, has another serial.
    hand.wear_old([0xffff, 0x8080, 0], (3, 4));
    let old = followed.image();
    assert_ne!(old.serial, image.serial);
    assert_eq!((old.size, old.hotspot), (Size::new(16, 16), (3, 4)));
    assert!(old.rgba.as_chunks::<4>().0.iter().all(|pixel| *pixel == [255, 128, 0, 255]));
    assert!(old.serial < 1 << 53);
}

#[test]
fn the_pointer_is_followed_whatever_moves_it() {
    let server = Xvfb::start(SCREEN).unwrap();
    let hand = Hand::on(&server);
    hand.wear_old([0; 3], (0, 0));
    let mut followed = Followed::on(&server);
    for step in 0..10 {
        let (x, y) = (20 + 30 * step, 200 - 17 * step);
        match step % 2 {
            0 => hand.warp(x, y),
            _ => hand.push(x, y),
        }
        followed.until(Some((x.into(), y.into())));
    }
    // The last row and column.
    hand.warp(330, 256);
    followed.until(Some((330, 256)));
}

#[test]
fn a_device_that_moves_is_reported_at_once() {
    let server = Xvfb::start(SCREEN).unwrap();
    let hand = Hand::on(&server);
    let mut pointer = Server::open(Some(server.display())).unwrap();
    assert!(pointer.reports_motion());
    pointer.read().unwrap();
    hand.push(17, 19);
    poll(&mut [PollFd::from_borrowed_fd(pointer.fd(), PollFlags::IN)], Some(&timespec(LONG)))
        .unwrap();
    assert!(pointer.read().unwrap().moved);
    assert_eq!(pointer.position().unwrap(), Some((17, 19)));
    assert!(!pointer.read().unwrap().moved, "told twice");
}

#[test]
fn a_hidden_pointer_is_told_as_one_that_is_nowhere() {
    let server = Xvfb::start(SCREEN).unwrap();
    let hand = Hand::on(&server);
    hand.warp(50, 60);
    hand.wear_old([0; 3], (0, 0));
    let mut followed = Followed::on(&server);
    followed.until(Some((50, 60)));
    hand.wear(Size::new(8, 8), (0, 0), |_, _| 0);
    followed.until(None);
    hand.warp(51, 61);
    hand.wear_old([0; 3], (0, 0));
    followed.until(Some((51, 61)));
}

#[test]
fn positions_are_those_of_the_target_wherever_it_goes() {
    let server = Xvfb::start(SCREEN).unwrap();
    let hand = Hand::on(&server);
    hand.wear_old([0; 3], (0, 0));
    hand.warp(150, 100);
    let mut followed = Followed::on(&server);
    followed.until(Some((150, 100)));
    let place = |x, y| Some(Bounds::new(x, y, 40, 30));
    followed.follower.place(place(140, 90));
    followed.until(Some((10, 10)));
    followed.follower.place(place(111, 71)); // the target moves, the pointer does not
    followed.until(Some((39, 29)));
    followed.follower.place(place(110, 71)); // now it is a column beyond the last
    followed.until(None);
    followed.follower.place(place(-10, 90));
    hand.warp(0, 90);
    followed.until(Some((10, 0)));
    followed.follower.place(None);
    followed.until(None);
    // Elsewhere it is nowhere, and its moves are nobody's business.
    for x in 200..220 {
        hand.push(x, 5);
    }
    followed.follower.place(place(200, 0));
    let next = followed.news.recv_timeout(LONG).unwrap();
    assert_eq!(next, News::Position(CursorPosition { visible: true, x: 19, y: 5 }));
}

#[test]
fn a_follower_ends_with_its_handle_and_with_its_server() {
    let mut server = Xvfb::start(SCREEN).unwrap();
    Hand::on(&server).wear_old([0; 3], (0, 0));
    let mut followed = Followed::on(&server);
    followed.until(Some((165, 128)));
    assert_eq!(threads("pointer"), 1);
    let Followed { follower, news, .. } = followed;
    drop(follower);
    assert_eq!(threads("pointer"), 0);
    assert!(news.try_recv().is_err(), "told after its end");

    let mut followed = Followed::on(&server);
    followed.until(Some((165, 128)));
    server.kill().unwrap();
    followed.until(None);
    assert!(followed.news.recv_timeout(LONG).is_err(), "the thread goes on");
}

/// How many threads of this process have a name.
pub(crate) fn threads(name: &str) -> usize {
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        // A thread may end between the two.
        if let Ok(name) = std::fs::read_to_string(task.unwrap().path().join("comm")) {
            *names.entry(name.trim().to_owned()).or_default() += 1;
        }
    }
    names.get(name).copied().unwrap_or_default()
}

/// A desktop of one colour with the pointer in its picture.
struct Desk {
    source: Baked,
}

impl Desk {
    fn on(server: &Xvfb) -> Self {
        let display = Some(server.display());
        let source = x11::Desktop::open(display, &x11::Options::default()).unwrap();
        let source = Baked::over(Box::new(source), display.map(str::to_owned)).unwrap();
        Self { source }
    }

    /// Waits for pictures until one is as it should be; returns what changed in that one.
    fn until(&mut self, pixel: impl Fn(u32, u32) -> [u8; 3]) -> Vec<spaceport_types::Rect> {
        let end = clock::now() + LONG;
        loop {
            while !self.source.has_damage(clock::now()).unwrap() {
                let left = end.saturating_sub(clock::now());
                assert!(!left.is_zero(), "the picture is another");
                let wake = self.source.wake_fd().unwrap();
                let fd = PollFd::from_borrowed_fd(wake, PollFlags::IN);
                poll(&mut [fd], Some(&timespec(left))).unwrap();
            }
            let frame = self.source.grab(clock::now(), false).unwrap();
            let good = (0..SCREEN.height).all(|y| {
                let row = &frame.pixels[y as usize * frame.stride..];
                let row = row.as_chunks::<4>().0.iter().take(SCREEN.width as usize);
                row.enumerate().all(|(x, seen)| seen[..3] == pixel(x as u32, y))
            });
            if good {
                return frame.damage.to_vec();
            }
        }
    }
}

#[test]
fn the_pointer_is_in_the_picture_where_it_is_wanted_there() {
    const GROUND: [u8; 3] = [160, 96, 32]; // blue, green, red
    let server = Xvfb::start(SCREEN).unwrap();
    let hand = Hand::on(&server);
    let ground = ChangeWindowAttributesAux::new().background_pixel(0x2060a0);
    hand.conn.change_window_attributes(hand.root, &ground).unwrap();
    hand.conn.clear_area(false, hand.root, 0, 0, 0, 0).unwrap();
    hand.warp(100, 90);
    // Opaque orange on the left, half of it on the right.
    let image = |x, _| if x < 10 { 0xffff_8000 } else { 0x8080_4000 };
    hand.wear(Size::new(20, 12), (5, 6), image);
    let half = [80, 112, 144];
    let shows = |left: i32, top: i32| {
        move |x: u32, y: u32| match (x.cast_signed() - left, y.cast_signed() - top) {
            (0..10, 0..12) => [0, 128, 255],
            (10..20, 0..12) => half,
            _ => GROUND,
        }
    };
    let mut desk = Desk::on(&server);
    desk.until(shows(95, 84));
    // A move changes what it left and what it covers, and nothing else.
    hand.warp(200, 90);
    let rect = spaceport_types::Rect::new;
    assert_eq!(desk.until(shows(195, 84)), [rect(95, 84, 20, 12), rect(195, 84, 20, 12)]);
    // Half of it is beyond the corner.
    hand.warp(330, 256);
    desk.until(shows(325, 250));
    hand.warp(0, 0);
    desk.until(shows(-5, -6));
    hand.wear(Size::new(8, 8), (0, 0), |_, _| 0);
    desk.until(|_, _| GROUND);
}
