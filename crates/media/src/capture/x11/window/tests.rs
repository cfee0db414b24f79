//! Against a real Xvfb, with windows of the test's own: what is captured is compared, pixel by
//! pixel, with what was drawn.

use rustix::event::{PollFd, PollFlags, poll};
use spaceport_testkit::Xvfb;
use x11rb::protocol::xproto::{AtomEnum, ConfigureWindowAux, StackMode};

use super::super::Method;
use super::*;
use crate::wake::timespec;
use crate::windows::app::{App, Look, PLAIN, POPUP, Painted};

const SCREEN: Size = Size::new(640, 480);

struct Watched {
    toplevel: Toplevel,
    /// Repeats what frames say has changed, as an encoder does.
    picture: Vec<[u8; 3]>,
}

impl Watched {
    fn open(server: &Xvfb, window: &Painted) -> Self {
        Self::by(server, window, None)
    }

    fn by(server: &Xvfb, window: &Painted, method: Option<Method>) -> Self {
        let options = Options { method, ..Options::default() };
        let toplevel = Toplevel::open(Some(server.display()), "w1", window.id, &options).unwrap();
        Self { toplevel, picture: Vec::new() }
    }

    /// Takes in what has happened up to now.
    fn look(&mut self) -> Result<bool> {
        use x11rb::wrapper::ConnectionExt as _;
        // Answers come in order, so this has anything that was still to come on its way.
        if let Err(error) = self.toplevel.conn.sync() {
            panic!("{error}");
        }
        self.toplevel.has_damage(Duration::ZERO)
    }

    /// Grabs what has happened up to now.
    fn grab(&mut self) {
        self.look().unwrap();
        let full = self.picture.is_empty();
        let frame = self.toplevel.grab(Duration::ZERO, full).unwrap();
        let new = pixels(&frame);
        if self.picture.len() != new.len() {
            assert_eq!(frame.damage, [frame.size.bounds()], "a new size is all new");
            self.picture = vec![[1, 2, 3]; new.len()];
        }
        for rect in frame.damage {
            assert_eq!(rect.clamped(frame.size), Some(*rect), "damage beyond the picture");
            for y in rect.y..rect.bottom() {
                let row = (y * frame.size.width) as usize;
                let row = row + rect.x as usize..row + rect.right() as usize;
                self.picture[row.clone()].copy_from_slice(&new[row]);
            }
        }
        assert!(self.picture == new, "damage misses something");
    }

    /// Grabs, and compares with `layers`, bottom first, at their places.
    fn expect(&mut self, bounds: Bounds, layers: &[(i32, i32, &Painted)]) {
        self.grab();
        assert_eq!(self.toplevel.bounds(), bounds);
        assert_eq!(self.toplevel.hidden(), None);
        let mut expected = vec![[0; 3]; bounds.size().bounds().area() as usize];
        for &(x, y, layer) in layers {
            for (at, pixel) in layer.pixels.iter().enumerate() {
                let (row, column) = (at as u32 / layer.size.width, at as u32 % layer.size.width);
                let (x, y) = (x + column as i32 - bounds.x, y + row as i32 - bounds.y);
                let inside =
                    x >= 0 && y >= 0 && x < bounds.width as i32 && y < bounds.height as i32;
                if inside {
                    expected[y as usize * bounds.width as usize + x as usize] = *pixel;
                }
            }
        }
        if let Some(at) = (0..expected.len()).find(|&at| expected[at] != self.picture[at]) {
            let (x, y) = (at as u32 % bounds.width, at as u32 / bounds.width);
            panic!("({x}, {y}) is {:x?} and not {:x?}", self.picture[at], expected[at]);
        }
    }
}

fn pixels(frame: &Frame<'_>) -> Vec<[u8; 3]> {
    let width = frame.size.width as usize * 4;
    let rows = frame.pixels.chunks(frame.stride).take(frame.size.height as usize);
    let colours = |pixel: &[u8; 4]| [pixel[0], pixel[1], pixel[2]];
    rows.flat_map(|row| row[..width].as_chunks::<4>().0.iter().map(colours)).collect()
}

fn methods() -> [Method; 3] {
    [Method::SharedPixmap, Method::SharedImage, Method::Image]
}

#[test]
fn a_covered_window_is_seen_whole_by_every_method() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    for method in methods() {
        let bounds = Bounds::new(51, 33, 211, 147);
        let mut window = app.shown(bounds, PLAIN);
        let mut cover = app.shown(Bounds::new(0, 0, 640, 480), PLAIN);
        app.paint(&mut cover, 9);
        let mut watched = Watched::by(&server, &window, Some(method));
        assert_eq!(watched.toplevel.canvas.reader.method(), method);
        for seed in 0..5 {
            app.paint(&mut window, seed);
            watched.expect(bounds, &[(51, 33, &window)]);
        }
        // A small change is a small change.
        app.fill(&mut window, 0x12_3456, Bounds::new(200, 140, 5, 5));
        assert!(watched.look().unwrap());
        let frame = watched.toplevel.grab(Duration::ZERO, false).unwrap();
        assert_eq!(frame.damage, [Rect::new(200, 140, 5, 5)]);
        assert!(!watched.look().unwrap(), "a still window has no damage");
        app.destroy(&window);
        app.destroy(&cover);
    }
}

#[test]
fn a_window_partly_off_the_screen_is_seen_whole_and_where_it_is() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    for (x, y) in [(-37, -21), (601, 455), (-1000, 20)] {
        let bounds = Bounds::new(x, y, 101, 77);
        let mut window = app.shown(bounds, PLAIN);
        let mut watched = Watched::open(&server, &window);
        app.paint(&mut window, 3);
        watched.expect(bounds, &[(x, y, &window)]);
        app.destroy(&window);
    }
}

#[test]
fn borders_are_cut_off_and_inner_windows_are_in_the_picture() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let mut window = app.shown(Bounds::new(20, 30, 99, 63), Look { border: 7, ..PLAIN });
    let mut watched = Watched::open(&server, &window);
    app.paint(&mut window, 1);
    watched.expect(Bounds::new(27, 37, 99, 63), &[(27, 37, &window)]);

    let mut inner = app.window(Bounds::new(0, 0, 31, 17), PLAIN);
    app.conn.reparent_window(inner.id, window.id, 40, 20).unwrap();
    app.map(&inner);
    app.paint(&mut inner, 2);
    watched.expect(Bounds::new(27, 37, 99, 63), &[(27, 37, &window), (67, 57, &inner)]);
}

#[test]
fn the_colours_of_a_window_with_an_alpha_channel_are_taken_as_they_are() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    for method in methods() {
        let bounds = Bounds::new(10, 10, 95, 61);
        let mut window = app.shown(bounds, Look { depth: 32, ..PLAIN });
        let mut watched = Watched::by(&server, &window, Some(method));
        for alpha in [0xff00_0000, 0x8000_0000, 0] {
            app.fill(&mut window, alpha | 0x20_4060, Bounds::new(0, 0, 95, 61));
            watched.expect(bounds, &[(10, 10, &window)]);
        }
        app.destroy(&window);
    }
}

#[test]
fn resizes_are_followed_through_odd_and_tiny_sizes() {
    let server = Xvfb::start(Size::new(1600, 1000)).unwrap();
    let app = App::on(&server);
    let mut window = app.shown(Bounds::new(5, 6, 300, 200), PLAIN);
    let mut watched = Watched::open(&server, &window);
    let sizes = [(789, 595), (1, 1), (1512, 949), (2, 1), (301, 7), (300, 200)];
    for (seed, (width, height)) in (0..).zip(sizes.into_iter().cycle().take(30)) {
        app.resize(&mut window, Size::new(width, height));
        app.paint(&mut window, seed);
        watched.expect(Bounds::new(5, 6, width, height), &[(5, 6, &window)]);
    }
}

#[test]
fn a_resize_between_look_and_grab_gives_a_whole_picture() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let mut window = app.shown(Bounds::new(0, 0, 300, 200), PLAIN);
    let mut watched = Watched::open(&server, &window);
    app.resize(&mut window, Size::new(111, 77));
    app.paint(&mut window, 4);
    let frame = watched.toplevel.grab(Duration::ZERO, true).unwrap();
    assert_eq!(frame.size, Size::new(300, 200));
    assert!(frame.pixels.len() >= frame.stride * 200);
    watched.expect(Bounds::new(0, 0, 111, 77), &[(0, 0, &window)]);
}

#[test]
fn a_move_is_a_new_place_and_no_new_picture() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let mut window = app.shown(Bounds::new(0, 0, 80, 60), PLAIN);
    let mut watched = Watched::open(&server, &window);
    app.paint(&mut window, 1);
    watched.grab();
    app.configure(&window, ConfigureWindowAux::new().x(123).y(-7));
    watched.look().unwrap();
    assert_eq!(watched.toplevel.bounds(), Bounds::new(123, -7, 80, 60));
    assert!(watched.toplevel.grab(Duration::ZERO, false).unwrap().damage.is_empty());
    // Moved and drawn on in one go.
    app.configure(&window, ConfigureWindowAux::new().x(124));
    app.fill(&mut window, 0x77_6655, Bounds::new(10, 31, 7, 3));
    watched.look().unwrap();
    let frame = watched.toplevel.grab(Duration::ZERO, false).unwrap();
    assert_eq!(frame.damage, [Rect::new(0, 31, 80, 3)]);
    app.configure(&window, ConfigureWindowAux::new().x(123));
    app.paint(&mut window, 2);
    watched.expect(Bounds::new(123, -7, 80, 60), &[(123, -7, &window)]);
}

#[test]
fn a_window_in_a_frame_moves_and_hides_with_it() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let frame = app.shown(Bounds::new(50, 40, 200, 150), POPUP);
    let mut window = app.window(Bounds::new(0, 0, 90, 70), PLAIN);
    app.conn.reparent_window(window.id, frame.id, 4, 20).unwrap();
    app.map(&window);
    let mut watched = Watched::open(&server, &window);
    app.paint(&mut window, 1);
    watched.expect(Bounds::new(54, 60, 90, 70), &[(54, 60, &window)]);
    app.configure(&frame, ConfigureWindowAux::new().x(100));
    app.paint(&mut window, 2);
    watched.expect(Bounds::new(104, 60, 90, 70), &[(104, 60, &window)]);
    app.unmap(&frame);
    assert!(!watched.look().unwrap());
    let hidden = Hidden { reason: Suspension::WindowUnavailable, held: true };
    assert_eq!(watched.toplevel.hidden(), Some(hidden));
    app.map(&frame);
    app.paint(&mut window, 3);
    watched.expect(Bounds::new(104, 60, 90, 70), &[(104, 60, &window)]);
    // A window manager that ends gives windows back to the root window.
    app.conn.reparent_window(window.id, app.root, 9, 8).unwrap();
    app.paint(&mut window, 4);
    watched.expect(Bounds::new(9, 8, 90, 70), &[(9, 8, &window)]);
}

#[test]
fn what_is_not_shown_is_held_until_it_is_shown_again() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let bounds = Bounds::new(30, 20, 97, 55);
    let mut window = app.window(bounds, PLAIN);
    let mut watched = Watched::open(&server, &window);
    let hidden = |reason, held| Some(Hidden { reason, held });
    assert!(!watched.look().unwrap());
    assert_eq!(watched.toplevel.hidden(), hidden(Suspension::WindowUnavailable, false));

    app.map(&window);
    app.paint(&mut window, 1);
    watched.expect(bounds, &[(30, 20, &window)]);
    app.unmap(&window);
    assert!(!watched.look().unwrap());
    assert_eq!(watched.toplevel.hidden(), hidden(Suspension::WindowUnavailable, true));
    let frame = watched.toplevel.grab(Duration::ZERO, true).unwrap();
    assert!(pixels(&frame) == window.pixels, "the last picture is held");

    // Said after the fact, as window managers do.
    app.set_numbers(&window, "WM_STATE", AtomEnum::CARDINAL, &[ICONIC, 0]);
    assert!(!watched.look().unwrap());
    assert_eq!(watched.toplevel.hidden(), hidden(Suspension::Minimized, true));
    app.map(&window);
    app.paint(&mut window, 2);
    watched.expect(bounds, &[(30, 20, &window)]);

    // Away and back in one go: it is drawn somewhere else now.
    app.unmap(&window);
    app.map(&window);
    app.paint(&mut window, 3);
    watched.expect(bounds, &[(30, 20, &window)]);
}

#[test]
fn a_closed_window_is_a_typed_error() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    let mut watched = Watched::open(&server, &window);
    watched.grab();
    app.destroy(&window);
    let error = watched.look().unwrap_err();
    assert_eq!(error.cause(), Some(Cause::TargetGone));
    assert_eq!(error.context("window"), Some("w1"));
    let options = Options::default();
    let error = Toplevel::open(Some(server.display()), "w1", window.id, &options).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::TargetGone));
}

#[test]
fn a_killed_server_is_a_typed_error() {
    let mut server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    let mut watched = Watched::open(&server, &window);
    watched.grab();
    server.kill().unwrap();
    let fd = watched.toplevel.wake_fd().unwrap();
    let limit = timespec(Duration::from_secs(5));
    let ready = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit));
    assert_eq!(ready, Ok(1));
    let error = watched.toplevel.has_damage(Duration::ZERO).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::CaptureFailed));
}

#[test]
fn a_server_without_composite_says_so() {
    let server = Xvfb::with(SCREEN, 24, &["-extension", "Composite"]).unwrap();
    let app = App::on(&server);
    let window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    let options = Options::default();
    let error = Toplevel::open(Some(server.display()), "w1", window.id, &options).unwrap_err();
    assert_eq!(error.kind(), Kind::HostCapabilityMissing);
    assert_eq!(error.context("extension"), Some("Composite"));
}

#[test]
fn a_title_is_told_once_when_it_changes() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    app.set_text(&window, "WM_NAME", "STRING", b"old");
    let mut watched = Watched::open(&server, &window);
    assert_eq!(watched.toplevel.new_title(), None);
    app.set_text(&window, "_NET_WM_NAME", "UTF8_STRING", "neu: ü".as_bytes());
    watched.look().unwrap();
    assert_eq!(watched.toplevel.new_title().as_deref(), Some("neu: ü"));
    assert_eq!(watched.toplevel.new_title(), None);
}

#[test]
fn popups_are_in_the_picture_and_the_canvas_grows_for_them() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    for method in methods() {
        let at = Bounds::new(200, 150, 151, 101);
        let mut window = app.shown(at, PLAIN);
        app.paint(&mut window, 1);
        let mut watched = Watched::by(&server, &window, Some(method));
        app.paint(&mut window, 1);
        watched.expect(at, &[(200, 150, &window)]);

        // Inside: the canvas stays.
        let mut menu = app.shown(Bounds::new(220, 160, 41, 33), POPUP);
        app.paint(&mut menu, 2);
        watched.expect(at, &[(200, 150, &window), (220, 160, &menu)]);
        app.paint(&mut window, 5);
        watched.expect(at, &[(200, 150, &window), (220, 160, &menu)]);

        // Out over the bottom right corner, and its submenu further.
        app.configure(&menu, ConfigureWindowAux::new().x(330).y(240));
        watched.expect(Bounds::new(200, 150, 171, 123), &[(200, 150, &window), (330, 240, &menu)]);
        let mut submenu = app.shown(Bounds::new(365, 250, 30, 50), POPUP);
        app.paint(&mut submenu, 3);
        let grown = Bounds::new(200, 150, 195, 150);
        let all = [(200, 150, &window), (330, 240, &menu), (365, 250, &submenu)];
        watched.expect(grown, &all);
        // The lower one comes up.
        app.configure(&menu, ConfigureWindowAux::new().stack_mode(StackMode::ABOVE));
        let all = [(200, 150, &window), (365, 250, &submenu), (330, 240, &menu)];
        watched.expect(grown, &all);

        app.destroy(&submenu);
        app.unmap(&menu);
        watched.expect(at, &[(200, 150, &window)]);
        // The same menu again, elsewhere and larger, up over the left edge of the screen's window.
        app.resize(&mut menu, Size::new(77, 35));
        app.configure(&menu, ConfigureWindowAux::new().x(150).y(130));
        app.map(&menu);
        app.paint(&mut menu, 7);
        watched.expect(Bounds::new(150, 130, 201, 121), &[(200, 150, &window), (150, 130, &menu)]);
        app.destroy(&menu);
        watched.expect(at, &[(200, 150, &window)]);
        app.destroy(&window);
    }
}

#[test]
fn a_menu_that_was_open_before_is_in_the_first_picture() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let at = Bounds::new(100, 100, 120, 90);
    let mut window = app.shown(at, PLAIN);
    let mut menu = app.shown(Bounds::new(110, 180, 50, 60), Look { border: 2, ..POPUP });
    let mut watched = Watched::open(&server, &window);
    // Its line around it is part of how a menu looks.
    let mut line = app.window(Bounds::new(0, 0, 54, 64), PLAIN);
    app.fill(&mut line, 0xff_00ff, Bounds::new(0, 0, 54, 64));
    for seed in 0..2 {
        app.paint(&mut window, seed);
        app.paint(&mut menu, seed + 2);
        let layers = [(100, 100, &window), (110, 180, &line), (112, 182, &menu)];
        watched.expect(Bounds::new(100, 100, 120, 144), &layers);
    }
}

#[test]
fn popups_of_another_depth_are_converted() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    for (below, above) in [(24, 32), (32, 24)] {
        let at = Bounds::new(100, 100, 120, 90);
        let mut window = app.shown(at, Look { depth: below, ..PLAIN });
        let mut menu = app.shown(Bounds::new(190, 150, 50, 60), Look { depth: above, ..POPUP });
        let mut watched = Watched::open(&server, &window);
        for seed in 0..3 {
            app.paint(&mut window, seed);
            app.paint(&mut menu, seed + 10);
            let grown = Bounds::new(100, 100, 140, 110);
            watched.expect(grown, &[(100, 100, &window), (190, 150, &menu)]);
        }
        app.destroy(&menu);
        app.destroy(&window);
    }
}

#[test]
fn popups_are_see_through_where_a_compositing_manager_shows_them_so() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let at = Bounds::new(100, 100, 120, 90);
    let mut window = app.shown(at, PLAIN);
    let manager = app.atom("_NET_WM_CM_S0");
    app.conn.set_selection_owner(window.id, manager, x11rb::CURRENT_TIME).unwrap();
    let mut watched = Watched::open(&server, &window);
    let mut menu = app.shown(Bounds::new(110, 110, 60, 40), Look { depth: 32, ..POPUP });
    // What of it is not see-through.
    let mut solid = app.window(Bounds::new(0, 0, 30, 40), PLAIN);
    for seed in 0..3 {
        app.paint(&mut window, seed);
        app.fill(&mut menu, 0xff30_6090 + seed, Bounds::new(0, 0, 30, 40));
        app.fill(&mut solid, 0xff30_6090 + seed, Bounds::new(0, 0, 30, 40));
        app.fill(&mut menu, 0, Bounds::new(30, 0, 30, 40));
        watched.expect(at, &[(100, 100, &window), (110, 110, &solid)]);
    }
}

#[test]
fn only_popups_that_belong_to_the_window_are_taken() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (app, other) = (App::on(&server), App::on(&server));
    let at = Bounds::new(100, 100, 120, 90);
    let mut window = app.shown(at, PLAIN);
    let second = app.shown(Bounds::new(0, 0, 20, 20), PLAIN);
    let mut watched = Watched::open(&server, &window);
    app.paint(&mut window, 1);
    let inside = Bounds::new(130, 120, 30, 30);
    let transient = |app: &App, popup: &Painted, of: u32| {
        app.set_numbers(popup, "WM_TRANSIENT_FOR", AtomEnum::WINDOW, &[of]);
    };

    let strange = other.shown(inside, POPUP);
    watched.expect(at, &[(100, 100, &window)]);
    other.destroy(&strange);
    // Of the same client, but of its other window, or far away, or dragged around.
    let elsewhere = app.window(inside, POPUP);
    transient(&app, &elsewhere, second.id);
    app.map(&elsewhere);
    let far = app.shown(Bounds::new(500, 400, 30, 30), POPUP);
    let dragged = app.window(inside, POPUP);
    let kind = app.atom("_NET_WM_WINDOW_TYPE_DND");
    app.set_numbers(&dragged, "_NET_WM_WINDOW_TYPE", AtomEnum::ATOM, &[kind]);
    app.map(&dragged);
    app.paint(&mut window, 2);
    watched.expect(at, &[(100, 100, &window)]);
    for popup in [&elsewhere, &far, &dragged] {
        app.destroy(popup);
    }

    // Of other clients: by what they are for, and by process.
    let mut named = other.window(Bounds::new(110, 110, 20, 20), POPUP);
    transient(&other, &named, window.id);
    other.map(&named);
    other.paint(&mut named, 3);
    let mut sub = other.window(Bounds::new(125, 115, 20, 20), POPUP);
    transient(&other, &sub, named.id);
    other.map(&sub);
    other.paint(&mut sub, 4);
    watched.expect(at, &[(100, 100, &window), (110, 110, &named), (125, 115, &sub)]);
    // What is for a popup goes with it.
    other.destroy(&named);
    app.paint(&mut window, 3);
    watched.expect(at, &[(100, 100, &window)]);
    other.destroy(&sub);

    let mut tagged = app.shown(at, PLAIN);
    app.set_numbers(&tagged, "_NET_WM_PID", AtomEnum::CARDINAL, &[4242]);
    let mut watched = Watched::open(&server, &tagged);
    let mut tooltip = other.window(inside, POPUP);
    other.set_numbers(&tooltip, "_NET_WM_PID", AtomEnum::CARDINAL, &[4242]);
    other.map(&tooltip);
    other.paint(&mut tooltip, 6);
    app.paint(&mut tagged, 5);
    watched.expect(at, &[(100, 100, &tagged), (130, 120, &tooltip)]);
}

#[test]
fn popups_go_away_with_a_hidden_window_and_come_back() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let at = Bounds::new(100, 100, 120, 90);
    let mut window = app.shown(at, PLAIN);
    let mut watched = Watched::open(&server, &window);
    let mut menu = app.shown(Bounds::new(190, 150, 50, 60), POPUP);
    app.paint(&mut window, 1);
    app.paint(&mut menu, 2);
    let grown = Bounds::new(100, 100, 140, 110);
    watched.expect(grown, &[(100, 100, &window), (190, 150, &menu)]);
    app.unmap(&window);
    app.unmap(&menu);
    watched.look().unwrap();
    assert!(watched.toplevel.hidden().is_some());
    app.map(&window);
    app.paint(&mut window, 3);
    watched.expect(at, &[(100, 100, &window)]);
    app.unmap(&window);
    watched.look().unwrap();
    app.map(&menu);
    app.paint(&mut menu, 4);
    app.map(&window);
    app.configure(&menu, ConfigureWindowAux::new().stack_mode(StackMode::ABOVE));
    app.paint(&mut window, 5);
    watched.expect(grown, &[(100, 100, &window), (190, 150, &menu)]);
}

#[test]
fn nothing_is_left_on_the_server_of_popups_that_come_and_go() {
    let server = Xvfb::start(SCREEN).unwrap();
    let app = App::on(&server);
    let mut window = app.shown(Bounds::new(100, 100, 120, 90), PLAIN);
    let mut watched = Watched::open(&server, &window);
    for seed in 0..200 {
        let mut menu = app.shown(Bounds::new(110 + seed % 7, 180, 50, 60), POPUP);
        app.paint(&mut menu, seed as u32);
        watched.grab();
        app.destroy(&menu);
        app.paint(&mut window, seed as u32);
        watched.grab();
    }
    assert!(watched.toplevel.popups.is_empty() && watched.toplevel.stale_pixmaps.is_empty());
    watched.expect(Bounds::new(100, 100, 120, 90), &[(100, 100, &window)]);
}
