//! Against a real Xvfb, drawn on through a connection of the test's own.

use std::os::unix::fs::FileExt as _;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spaceport_testkit::Xvfb;
use x11rb::COPY_DEPTH_FROM_PARENT;
use x11rb::protocol::randr::{ConnectionExt as _, ModeInfo, MonitorInfo, Rotation};
use x11rb::protocol::xproto::{
    ChangeGCAux, CreateGCAux, CreateWindowAux, Gcontext, ImageFormat, Rectangle, ScreenSaver,
    WindowClass,
};
use x11rb::rust_connection::RustConnection;
use x11rb::wrapper::ConnectionExt as _;

use super::*;

/// An odd size, so that nothing works by accident.
pub(super) const SIZE: Size = Size::new(331, 257);

/// Someone who draws, on the root window and on a window in it.
pub(crate) struct Painter {
    conn: RustConnection,
    pub(crate) root: Window,
    pub(crate) window: Window,
    gc: Gcontext,
}

impl Painter {
    pub(crate) fn on(server: &Xvfb) -> Self {
        let (conn, screen) = RustConnection::connect(Some(server.display())).unwrap();
        let root = conn.setup().roots[screen].root;
        let (window, gc) = (conn.generate_id().unwrap(), conn.generate_id().unwrap());
        let depth = COPY_DEPTH_FROM_PARENT;
        let class = WindowClass::INPUT_OUTPUT;
        let aux = CreateWindowAux::new().background_pixel(0x20_4060).override_redirect(1);
        conn.create_window(depth, window, root, 101, 53, 117, 91, 0, class, 0, &aux).unwrap();
        conn.map_window(window).unwrap();
        conn.create_gc(gc, window, &CreateGCAux::new()).unwrap();
        let painter = Self { conn, root, window, gc };
        painter.finish();
        painter
    }

    pub(crate) fn fill(
        &self,
        window: Window,
        colour: u32,
        x: i16,
        y: i16,
        width: u16,
        height: u16,
    ) {
        self.conn.change_gc(self.gc, &ChangeGCAux::new().foreground(colour)).unwrap();
        let rects = [Rectangle { x, y, width, height }];
        self.conn.poly_fill_rectangle(window, self.gc, &rects).unwrap();
    }

    /// Waits until everything drawn so far is on the screen.
    pub(crate) fn finish(&self) {
        self.conn.sync().unwrap();
    }

    /// What the screen shows, read in the plainest way there is.
    pub(super) fn screen(&self, size: Size) -> Vec<[u8; 3]> {
        let (width, height) = (size.width as u16, size.height as u16);
        let format = ImageFormat::Z_PIXMAP;
        let image = self.conn.get_image(format, self.root, 0, 0, width, height, !0).unwrap();
        image.reply().unwrap().data.as_chunks::<4>().0.iter().map(colours).collect()
    }

    /// Sets an area of the screen apart as if it were a monitor, as `xrandr --setmonitor` does; the
    /// name may be that of one there is. With `output`, it takes the place of the screen's own.
    pub(crate) fn set_monitor(&self, name: &str, area: Rect, output: bool) {
        let conn = &self.conn;
        conn.randr_query_version(1, 5).unwrap().reply().unwrap();
        let resources = conn.randr_get_screen_resources(self.root).unwrap().reply().unwrap();
        let monitor = MonitorInfo {
            name: self.atom(name),
            x: area.x as i16,
            y: area.y as i16,
            width: area.width as u16,
            height: area.height as u16,
            width_in_millimeters: area.width / 4 + 1,
            height_in_millimeters: area.height / 4 + 1,
            outputs: if output { resources.outputs } else { Vec::new() },
            ..MonitorInfo::default()
        };
        // A name that is taken is refused; one that is not cannot be taken away.
        drop(conn.randr_delete_monitor(self.root, monitor.name).unwrap().check());
        conn.randr_set_monitor(self.root, monitor).unwrap().check().unwrap();
    }

    pub(crate) fn delete_monitor(&self, name: &str) {
        let deleted = self.conn.randr_delete_monitor(self.root, self.atom(name)).unwrap();
        deleted.check().unwrap();
    }

    fn atom(&self, name: &str) -> u32 {
        self.conn.intern_atom(false, name.as_bytes()).unwrap().reply().unwrap().atom
    }

    /// Switches the screen off as its saver does, or on again.
    pub(crate) fn switch_off(&self, off: bool) {
        let mode = if off { ScreenSaver::ACTIVE } else { ScreenSaver::RESET };
        self.conn.force_screen_saver(mode).unwrap().check().unwrap();
    }

    /// Makes the screen's own monitor the primary one, or says that none is.
    pub(crate) fn set_primary(&self, primary: bool) {
        let conn = &self.conn;
        conn.randr_query_version(1, 5).unwrap().reply().unwrap();
        let resources = conn.randr_get_screen_resources(self.root).unwrap().reply().unwrap();
        let output = if primary { resources.outputs[0] } else { x11rb::NONE };
        conn.randr_set_output_primary(self.root, output).unwrap().check().unwrap();
    }

    /// Changes the size of the screen as `xrandr` does.
    pub(crate) fn resize(&self, size: Size) {
        let (width, height) = (size.width as u16, size.height as u16);
        let conn = &self.conn;
        conn.randr_query_version(1, 3).unwrap().reply().unwrap();
        let now = conn.randr_get_screen_resources(self.root).unwrap().reply().unwrap();
        // Names of modes are unique, and a fresh id is the nearest unique thing.
        let name = format!("{width}x{height}-{}", conn.generate_id().unwrap());
        let mode = ModeInfo {
            width,
            height,
            dot_clock: 60 * u32::from(width) * u32::from(height),
            htotal: width,
            vtotal: height,
            name_len: name.len() as u16,
            ..ModeInfo::default()
        };
        let mode = conn.randr_create_mode(self.root, mode, name.as_bytes()).unwrap();
        let mode = mode.reply().unwrap().mode;
        let (output, crtc) = (now.outputs[0], now.crtcs[0]);
        conn.randr_add_output_mode(output, mode).unwrap().check().unwrap();
        let set = |mode, outputs: &[u32]| {
            let (now, at, rotation) =
                (x11rb::CURRENT_TIME, now.config_timestamp, Rotation::ROTATE0);
            let done = conn.randr_set_crtc_config(crtc, now, at, 0, 0, mode, rotation, outputs);
            done.unwrap().reply().unwrap();
        };
        // A screen must hold what its CRTCs show, so the CRTC is off while the size changes.
        set(x11rb::NONE, &[]);
        let (mm_width, mm_height) = (u32::from(width) / 4 + 1, u32::from(height) / 4 + 1);
        conn.randr_set_screen_size(self.root, width, height, mm_width, mm_height).unwrap();
        set(mode, &[output]);
        self.finish();
    }
}

fn colours(pixel: &[u8; 4]) -> [u8; 3] {
    [pixel[0], pixel[1], pixel[2]]
}

/// The true pixels of a frame, without what pads its rows.
pub(super) fn pixels(frame: &Frame<'_>) -> Vec<[u8; 3]> {
    let width = frame.size.width as usize * 4;
    let rows = frame.pixels.chunks(frame.stride).take(frame.size.height as usize);
    rows.flat_map(|row| row[..width].as_chunks::<4>().0.iter().map(colours)).collect()
}

/// Repeats in `picture` what the frame says has changed, as an encoder does.
pub(super) fn follow(picture: &mut [[u8; 3]], frame: &Frame<'_>) {
    let new = pixels(frame);
    for rect in frame.damage {
        assert_eq!(rect.clamped(frame.size), Some(*rect), "damage beyond the picture");
        for y in rect.y..rect.bottom() {
            let row = (y * frame.size.width) as usize;
            let row = row + rect.x as usize..row + rect.right() as usize;
            picture[row.clone()].copy_from_slice(&new[row]);
        }
    }
}

/// Waits for a change. `now` is media time far enough on that a poll is due.
pub(super) fn wait_for_damage(desktop: &mut Desktop, now: Duration) -> Result<()> {
    while !desktop.has_damage(now)? {
        wait_for_event(desktop);
    }
    Ok(())
}

fn wait_for_event(desktop: &Desktop) {
    let fd = desktop.wake_fd().unwrap();
    let timeout = Timespec { tv_sec: 5, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&timeout));
    assert_eq!(ready, Ok(1), "nothing happened for five seconds");
}

pub(super) fn every_way(server: &Xvfb) -> impl Iterator<Item = Options> {
    let framebuffer = Some(server.framebuffer());
    Method::ALL.into_iter().flat_map(move |method| {
        [false, true].map(|without_damage| Options {
            framebuffer: framebuffer.clone(),
            method: Some(method),
            without_damage,
            ..Options::default()
        })
    })
}

#[test]
fn every_method_gives_the_pixels_that_were_drawn() {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    for (round, options) in (0..).zip(every_way(&server)) {
        let mut desktop = Desktop::open(Some(server.display()), &options).unwrap();
        assert_eq!(Some(desktop.method()), options.method);
        let mut now = Duration::ZERO;
        let frame = desktop.grab(now, true).unwrap();
        assert_eq!((frame.size, frame.damage), (SIZE, &[SIZE.bounds()][..]));
        let mut picture = pixels(&frame);
        assert!(picture == painter.screen(SIZE), "first picture, {options:?}");

        for step in 0..20_u16 {
            now += Duration::from_secs(1);
            let at = step as i16;
            let colour = (0x0a_1b2c + 0x12_3455 * u32::from(step) + round) & 0xff_ffff;
            painter.fill(painter.root, colour, 3 + 13 * at, 250 - 11 * at, 1 + step * 5, 7 + step);
            painter.fill(painter.window, colour ^ 0xff_ffff, 5 * at, 3 * at, 9, 1 + step);
            painter.finish();
            wait_for_damage(&mut desktop, now).unwrap();
            let frame = desktop.grab(now, false).unwrap();
            let area: u64 = frame.damage.iter().map(|rect| rect.area()).sum();
            assert!(area < SIZE.bounds().area(), "all of it for a small change, {options:?}");
            follow(&mut picture, &frame);
            let screen = painter.screen(SIZE);
            assert!(pixels(&frame) == screen, "picture {step}, {options:?}");
            assert!(picture == screen, "damage of picture {step} misses something, {options:?}");
        }
    }
}

#[test]
fn the_cheapest_method_is_chosen() {
    let server = Xvfb::start(SIZE).unwrap();
    let display = Some(server.display());
    let desktop = Desktop::open(display, &Options::default()).unwrap();
    assert_eq!(desktop.method(), Method::SharedPixmap);
    let options = Options { framebuffer: Some(server.framebuffer()), ..Options::default() };
    assert_eq!(Desktop::open(display, &options).unwrap().method(), Method::Framebuffer);

    let facts = check(display, &Options::default()).unwrap();
    assert_eq!((facts.method, facts.damage, facts.size), (Method::SharedPixmap, true, SIZE));
    assert_eq!(facts.unusable.len(), 1, "{:?}", facts.unusable);
    assert!(facts.extensions.iter().all(|extension| extension.present), "{facts:?}");
    assert!(!facts.vendor.is_empty());
}

#[test]
fn a_server_without_extensions_is_still_read() {
    let off = ["-extension", "DAMAGE", "-extension", "MIT-SHM", "-extension", "RANDR"];
    let server = Xvfb::with(SIZE, 24, &off).unwrap();
    let painter = Painter::on(&server);
    let mut desktop = Desktop::open(Some(server.display()), &Options::default()).unwrap();
    assert_eq!(desktop.method(), Method::Image);
    painter.fill(painter.root, 0xff_8000, 10, 20, 30, 40);
    painter.finish();
    let frame = desktop.grab(Duration::ZERO, false).unwrap();
    assert!(pixels(&frame) == painter.screen(SIZE));
    assert_eq!(displays(Some(server.display())).unwrap().len(), 1);
}

#[test]
fn a_still_screen_has_no_damage() {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    for options in every_way(&server) {
        let mut desktop = Desktop::open(Some(server.display()), &options).unwrap();
        let mut now = Duration::from_secs(1);
        assert!(desktop.has_damage(now).unwrap(), "the first picture is new, {options:?}");
        desktop.grab(now, false).unwrap();
        for _ in 0..3 {
            now += Duration::from_secs(1);
            // Answers come in order, so this has anything that was still to come on its way.
            desktop.conn.sync().unwrap();
            assert!(!desktop.has_damage(now).unwrap(), "{options:?}");
        }
        assert!(desktop.grab(now, false).unwrap().damage.is_empty(), "{options:?}");
        painter.fill(painter.root, 0x01_0203 + now.as_secs() as u32, 1, 1, 1, 1);
        painter.finish();
        now += Duration::from_secs(1);
        wait_for_damage(&mut desktop, now).unwrap();
        desktop.grab(now, false).unwrap();
        painter.fill(painter.root, 0, 1, 1, 1, 1);
        painter.finish();
    }
}

/// Draws past the X server, into the memory that its screen is.
pub(crate) fn draw_unseen(server: &Xvfb, colour: u32, area: Rect) {
    let file = std::fs::File::options().read(true).write(true).open(server.framebuffer()).unwrap();
    let mut header = [0; 100];
    file.read_exact_at(&mut header, 0).unwrap();
    let word =
        |index: usize| u64::from(u32::from_be_bytes(header[index * 4..][..4].try_into().unwrap()));
    // The size of the header, the number of colours behind it, the bytes from row to row.
    let (start, stride) = (word(0) + 12 * word(19), word(12));
    let row = colour.to_le_bytes().repeat(area.width as usize);
    for y in area.y..area.bottom() {
        file.write_all_at(&row, start + u64::from(y) * stride + u64::from(area.x) * 4).unwrap();
    }
}

#[test]
fn a_change_that_the_server_did_not_report_is_found() {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    let area = Rect::new(40, 60, 71, 3);
    for options in every_way(&server).filter(|options| !options.without_damage) {
        draw_unseen(&server, 0, area);
        let mut desktop = Desktop::open(Some(server.display()), &options).unwrap();
        let mut now = Duration::from_secs(1);
        desktop.has_damage(now).unwrap();
        let mut picture = pixels(&desktop.grab(now, false).unwrap());
        // Reported changes before and after do not hide it.
        painter.fill(painter.root, 0x11_0000, 0, 50, 20, 40);
        painter.finish();
        wait_for_damage(&mut desktop, now).unwrap();
        follow(&mut picture, &desktop.grab(now, false).unwrap());
        draw_unseen(&server, 0x33_6699, area);
        painter.fill(painter.root, 0x22_0000, 300, 61, 20, 1);
        painter.finish();
        wait_for_damage(&mut desktop, now).unwrap();
        follow(&mut picture, &desktop.grab(now, false).unwrap());

        let due = desktop.next_due().unwrap();
        assert!(!desktop.has_damage(due - Duration::from_millis(1)).unwrap(), "{options:?}");
        assert!(picture != painter.screen(SIZE), "it was reported, {options:?}");
        now = due;
        assert!(desktop.has_damage(now).unwrap(), "{options:?}");
        let frame = desktop.grab(now, false).unwrap();
        let found = Rect::new(0, area.y, SIZE.width, area.height);
        if options.method == Some(Method::Framebuffer) {
            // There is no telling what changed in rows of which a part was reported.
            assert_eq!(frame.damage, [Rect::new(0, 50, SIZE.width, 40)]);
        } else {
            assert_eq!(frame.damage, [found], "{options:?}");
        }
        follow(&mut picture, &frame);
        assert!(picture == painter.screen(SIZE), "{options:?}");
        // And that was all.
        for _ in 0..10 {
            now = desktop.next_due().unwrap();
            assert!(!desktop.has_damage(now).unwrap(), "{options:?}");
        }
        assert!(desktop.next_due().unwrap() - now >= Duration::from_secs(60));
    }
}

#[test]
fn a_screen_that_is_switched_off_says_so_and_is_still_read() {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    for (round, options) in (0..).zip(every_way(&server)) {
        let mut desktop = Desktop::open(Some(server.display()), &options).unwrap();
        let mut now = Duration::from_secs(1);
        desktop.has_damage(now).unwrap();
        desktop.grab(now, false).unwrap();
        assert_eq!(desktop.hidden(), None);
        painter.switch_off(true);
        let off = Some(Hidden { reason: Suspension::DisplayBlanked, held: true });
        while desktop.hidden() != off {
            wait_for_event(&desktop);
            desktop.has_damage(now).unwrap();
        }
        // Whoever comes now is told at once.
        let late = Desktop::open(Some(server.display()), &options).unwrap();
        assert_eq!(late.hidden(), off);
        painter.fill(painter.root, 0x40_0000 + round, 9, 9, 30, 30);
        painter.finish();
        now += Duration::from_secs(1);
        wait_for_damage(&mut desktop, now).unwrap();
        assert!(pixels(&desktop.grab(now, false).unwrap()) == painter.screen(SIZE), "{options:?}");

        painter.switch_off(false);
        wait_for_damage(&mut desktop, now).unwrap();
        assert_eq!(desktop.hidden(), None);
        let frame = desktop.grab(now, false).unwrap();
        assert_eq!(frame.damage, [SIZE.bounds()], "{options:?}");
    }
}

#[test]
fn what_is_not_grabbed_gathers() {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    let mut desktop = Desktop::open(Some(server.display()), &Options::default()).unwrap();
    desktop.grab(Duration::ZERO, false).unwrap();
    for x in [10, 200] {
        painter.fill(painter.root, 0xff_0000, x, 5, 20, 10);
        painter.finish();
        wait_for_damage(&mut desktop, Duration::ZERO).unwrap();
    }
    let frame = desktop.grab(Duration::ZERO, false).unwrap();
    let rects = [Rect::new(10, 5, 20, 10), Rect::new(200, 5, 20, 10)];
    assert_eq!(frame.damage, rects);
}

#[test]
fn a_region_of_very_many_pieces_is_taken_whole() {
    let server = Xvfb::start(SIZE).unwrap();
    let painter = Painter::on(&server);
    let mut desktop = Desktop::open(Some(server.display()), &Options::default()).unwrap();
    desktop.grab(Duration::ZERO, false).unwrap();
    for (x, y) in (0..40).flat_map(|x| (0..40).map(move |y| (x, y))) {
        painter.fill(painter.root, 0xff_0000, 2 * x, 2 * y, 1, 1);
    }
    painter.finish();
    wait_for_damage(&mut desktop, Duration::ZERO).unwrap();
    let frame = desktop.grab(Duration::ZERO, false).unwrap();
    assert_eq!(frame.damage, [Rect::new(0, 0, 79, 79)]);
    assert!(pixels(&frame) == painter.screen(SIZE));
}

#[test]
fn a_screen_that_changes_size_is_followed() {
    let start = Size::new(800, 600);
    let server = Xvfb::start(start).unwrap();
    let painter = Painter::on(&server);
    for options in every_way(&server) {
        let mut desktop = Desktop::open(Some(server.display()), &options).unwrap();
        let mut now = Duration::ZERO;
        assert_eq!(desktop.bounds(), start.into());
        desktop.grab(now, false).unwrap();
        for size in [Size::new(333, 201), Size::new(789, 595), Size::new(1, 1), start] {
            now += Duration::from_secs(1);
            painter.resize(size);
            painter.fill(painter.root, 0x40_8020 + now.as_secs() as u32, 0, 0, 25, 25);
            painter.finish();
            wait_for_damage(&mut desktop, now).unwrap();
            while desktop.bounds() != size.into() {
                wait_for_damage(&mut desktop, now).unwrap();
            }
            let frame = desktop.grab(now, false).unwrap();
            assert_eq!((frame.size, frame.damage), (size, &[size.bounds()][..]), "{options:?}");
            assert!(pixels(&frame) == painter.screen(size), "{size:?} {options:?}");
        }
    }
}

#[test]
fn a_resize_between_look_and_grab_is_survived() {
    let start = Size::new(640, 480);
    let server = Xvfb::start(start).unwrap();
    let painter = Painter::on(&server);
    for options in every_way(&server) {
        let mut desktop = Desktop::open(Some(server.display()), &options).unwrap();
        painter.resize(Size::new(99, 77));
        // Whatever the size of this picture, it is a whole one.
        let frame = desktop.grab(Duration::ZERO, true).unwrap();
        assert!(frame.pixels.len() >= frame.stride * frame.size.height as usize);
        assert!(desktop.has_damage(Duration::from_secs(1)).unwrap(), "{options:?}");
        let frame = desktop.grab(Duration::from_secs(1), false).unwrap();
        assert!(pixels(&frame) == painter.screen(Size::new(99, 77)), "{options:?}");
        painter.resize(start);
    }
}

#[test]
fn a_killed_server_is_a_typed_error() {
    let mut server = Xvfb::start(SIZE).unwrap();
    let mut desktop = Desktop::open(Some(server.display()), &Options::default()).unwrap();
    let mut other = Desktop::open(Some(server.display()), &Options::default()).unwrap();
    desktop.grab(Duration::ZERO, false).unwrap();
    server.kill().unwrap();
    let error = wait_for_damage(&mut desktop, Duration::ZERO).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::CaptureFailed));
    assert!(error.report().hint.is_some());
    let error = other.grab(Duration::ZERO, false).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::CaptureFailed));
}

#[test]
fn a_display_that_nobody_serves_is_a_typed_error() {
    // A number that no server gets: they count up from 0.
    let error = Desktop::open(Some(":59000"), &Options::default()).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::CaptureFailed));
    assert!(error.report().hint.is_some());
}

#[test]
fn an_error_of_a_request_nobody_waited_for_is_survived() {
    let server = Xvfb::start(SIZE).unwrap();
    let mut desktop = Desktop::open(Some(server.display()), &Options::default()).unwrap();
    desktop.grab(Duration::ZERO, false).unwrap();
    drop(desktop.conn.destroy_window(0x1234).unwrap());
    desktop.conn.sync().unwrap();
    assert!(!desktop.has_damage(Duration::ZERO).unwrap());
    desktop.grab(Duration::ZERO, true).unwrap();
}

#[test]
fn another_depth_is_named_in_the_error() {
    let server = Xvfb::with(SIZE, 16, &[]).unwrap();
    let error = Desktop::open(Some(server.display()), &Options::default()).unwrap_err();
    assert_eq!(error.kind(), Kind::HostCapabilityMissing);
    assert_eq!(error.context("depth"), Some("16"));
}

#[test]
fn the_display_is_listed_under_the_id_it_opens_by() {
    let server = Xvfb::start(SIZE).unwrap();
    let list = displays(Some(server.display())).unwrap();
    let roles: Vec<_> = list.iter().map(|display| display.role).collect();
    assert_eq!(roles, [Role::Display, Role::Alias]);
    assert_eq!(list[0].id, format!("{}.0", server.display()));
    assert!(list[0].primary && list[0].refresh_hz >= 1.0 && !list[0].name.is_empty());
    assert_eq!(list[0].bounds, SIZE.bounds());
    for id in ["", "primary", "desktop", server.display(), &list[0].id, &list[1].id] {
        let place = resolve(Some(server.display()), id).unwrap();
        let options = Options { part: place.part, ..Options::default() };
        let desktop = Desktop::open(Some(&place.screen), &options).unwrap();
        assert_eq!((place.screen, desktop.bounds()), (list[0].id.clone(), SIZE.into()), "{id}");
    }
}
