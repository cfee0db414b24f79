//! Against a real Xvfb, without a window manager and with a real one.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use spaceport_testkit::Xvfb;
use spaceport_types::{Cause, Rect, Size};
use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    AtomEnum, ConfigureWindowAux, ConnectionExt as _, CreateWindowAux, StackMode, WindowClass,
};
use x11rb::wrapper::ConnectionExt as _;

use super::app::{App, Look, PLAIN, POPUP, own_display};
use super::*;
use crate::capture::x11::tests::Painter;

const SCREEN: Size = Size::new(800, 600);

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(10);

fn on(server: &Xvfb) -> Windows {
    Windows::new(Some(server.display()))
}

fn handles(windows: &Windows) -> Vec<String> {
    windows.list().unwrap().into_iter().map(|window| window.handle).collect()
}

/// Waits until the list is as it should be.
fn eventually(windows: &Windows, mut good: impl FnMut(&[Window]) -> bool) -> Vec<Window> {
    let mut watch = windows.watch().unwrap();
    loop {
        let list = windows.list().unwrap();
        if good(&list) {
            return list;
        }
        assert!(watch.next_within(LONG).is_some(), "nothing changes any more: {list:#?}");
    }
}

/// A window manager, ended when dropped.
struct Openbox(Child);

impl Openbox {
    fn on(server: &Xvfb, windows: &Windows) -> Self {
        let mut command = Command::new("openbox");
        command.arg("--sm-disable");
        command.env("DISPLAY", server.display()).env("HOME", "/nonexistent");
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let running = Self(quiet.spawn().expect("openbox is installed: scripts/setup test"));
        let app = App::on(server);
        let probe = app.shown(Bounds::new(0, 0, 50, 50), PLAIN);
        app.set_text(&probe, "WM_NAME", "STRING", b"probe");
        // It is there once it has put a frame around this.
        let framed = |list: &[Window]| {
            list.iter().any(|it| it.title == "probe" && it.bounds.y > 0 && it.on_screen)
        };
        eventually(windows, framed);
        app.destroy(&probe);
        running
    }
}

impl Drop for Openbox {
    fn drop(&mut self) {
        // A test that fails has its own reason; one that is done wants nothing but the end of it.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn a_window_is_on_the_monitor_that_shows_most_of_it() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, app, painter) = (on(&server), App::on(&server), Painter::on(&server));
    let screen = format!("{}.0", server.display());
    let (left, right) = (format!("{screen}/LEFT"), format!("{screen}/RIGHT"));
    let window = app.shown(Bounds::new(300, 100, 150, 100), PLAIN);
    app.finish();
    let display = || windows.list().unwrap().remove(0).display_id;
    assert_eq!(display(), screen);

    // It has 100 columns on the left one and 50 on the other, and then the other way round.
    painter.set_monitor("LEFT", Rect::new(0, 0, 400, 600), true);
    painter.set_monitor("RIGHT", Rect::new(400, 0, 400, 500), false);
    assert_eq!(display(), left);
    let handle = windows.list().unwrap().remove(0).handle;
    let place = |x, y| Placement { x: Some(x), y: Some(y), ..Placement::default() };
    assert_eq!(windows.set_bounds(&handle, 1, place(350, 100)).unwrap().display_id, right);
    // It fills the display that it is on.
    let maximized = windows.maximize(&handle, 1).unwrap();
    assert_eq!(maximized.bounds, Bounds::new(400, 0, 400, 500));
    assert_eq!((maximized.state, maximized.display_id), (State::Maximized, right));
    windows.restore(&handle, 1).unwrap();
    // Shown by none, it is on the primary one.
    assert_eq!(windows.set_bounds(&handle, 1, place(500, 550)).unwrap().display_id, left);
    painter.delete_monitor("RIGHT");
    assert_eq!(display(), screen);
    app.destroy(&window);
}

#[test]
fn windows_are_listed_front_to_back_with_what_they_say_of_themselves() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, app) = (on(&server), App::on(&server));
    assert_eq!(windows.list().unwrap(), []);
    let editor = app.shown(Bounds::new(10, 20, 300, 200), Look { border: 3, ..PLAIN });
    app.set_text(&editor, "WM_NAME", "STRING", b"T\xfcr");
    app.set_text(&editor, "WM_CLASS", "STRING", b"editor\0Editor\0");
    let host = rustix::system::uname().nodename().to_bytes().to_vec();
    app.set_text(&editor, "WM_CLIENT_MACHINE", "STRING", &host);
    app.set_numbers(&editor, "_NET_WM_PID", AtomEnum::CARDINAL, &[4321]);
    let dialog = app.shown(Bounds::new(-50, 550, 100, 100), PLAIN);
    app.set_text(&dialog, "WM_NAME", "STRING", b"plain");
    app.set_text(&dialog, "_NET_WM_NAME", "UTF8_STRING", "öffnen – 窓".as_bytes());
    app.set_text(&dialog, "WM_CLASS", "STRING", b"editor\0Editor\0");
    app.set_text(&dialog, "_GTK_APPLICATION_ID", "UTF8_STRING", b"org.example.Editor");
    app.set_text(&dialog, "WM_CLIENT_MACHINE", "STRING", b"elsewhere");
    app.set_numbers(&dialog, "_NET_WM_PID", AtomEnum::CARDINAL, &[4321]);
    app.set_numbers(&dialog, "WM_TRANSIENT_FOR", AtomEnum::WINDOW, &[editor.id]);
    // Not windows of anyone: a popup, one that was never shown, the desktop's own.
    let _popup = app.shown(Bounds::new(0, 0, 50, 50), POPUP);
    let _unseen = app.window(Bounds::new(0, 0, 50, 50), PLAIN);
    let dock = app.shown(Bounds::new(0, 570, 800, 30), PLAIN);
    let kind = app.atom("_NET_WM_WINDOW_TYPE_DOCK");
    app.set_numbers(&dock, "_NET_WM_WINDOW_TYPE", AtomEnum::ATOM, &[kind]);

    let list = windows.list().unwrap();
    let expected = [
        Window {
            handle: "w2".to_owned(),
            epoch: 1,
            title: "öffnen – 窓".to_owned(),
            app_name: "Editor".to_owned(),
            app_id: "org.example.Editor".to_owned(),
            pid: None,
            bounds: Bounds::new(-50, 550, 100, 100),
            state: State::Normal,
            kind: WindowKind::Dialog,
            focused: false,
            on_screen: true,
            z_order: 1,
            display_id: format!("{}.0", server.display()),
        },
        Window {
            handle: "w1".to_owned(),
            epoch: 1,
            title: "Tür".to_owned(),
            app_name: "Editor".to_owned(),
            app_id: "editor".to_owned(),
            pid: Some(4321),
            bounds: Bounds::new(13, 23, 300, 200),
            state: State::Normal,
            kind: WindowKind::Standard,
            focused: false,
            on_screen: true,
            z_order: 2,
            display_id: format!("{}.0", server.display()),
        },
    ];
    // Whether the editor was looked at before the dialog depends on nothing but the order of calls.
    let named: Vec<_> = list.iter().map(|window| window.title.as_str()).collect();
    assert_eq!(named, ["öffnen – 窓", "Tür"]);
    for (window, mut expected) in list.iter().zip(expected) {
        expected.handle.clone_from(&window.handle);
        assert_eq!(*window, expected);
    }
    assert_ne!(list[0].handle, list[1].handle);
    assert_eq!(windows.all().unwrap()[0].kind, WindowKind::System);

    app.configure(&editor, ConfigureWindowAux::new().stack_mode(StackMode::ABOVE).x(40));
    let list = windows.list().unwrap();
    assert_eq!((list[0].title.as_str(), list[0].bounds.x), ("Tür", 43));
    app.configure(&editor, ConfigureWindowAux::new().x(-5000));
    assert!(!windows.list().unwrap()[0].on_screen);
}

#[test]
fn a_handle_is_never_used_again() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, app) = (on(&server), App::on(&server));
    let first = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    assert_eq!(handles(&windows), ["w1"]);
    app.destroy(&first);
    assert_eq!(handles(&windows), Vec::<String>::new());
    // The very same id of the X server.
    let (depth, visual) = (x11rb::COPY_DEPTH_FROM_PARENT, x11rb::COPY_FROM_PARENT);
    let (class, aux) = (WindowClass::INPUT_OUTPUT, CreateWindowAux::new());
    app.conn
        .create_window(depth, first.id, app.root, 0, 0, 10, 10, 0, class, visual, &aux)
        .unwrap();
    app.map(&first);
    assert_eq!(handles(&windows), ["w2"]);

    let gone = windows.get("w1", 0).unwrap_err();
    assert_eq!((gone.kind(), gone.context("window")), (Kind::NotFound, Some("w1")));
    assert_eq!(windows.get("w2", 1).unwrap(), windows.get("w2", 0).unwrap());
    let stale = windows.minimize("w2", 7).unwrap_err();
    assert_eq!(stale.kind(), Kind::PreconditionFailed);
    let context = ["window", "epoch", "current_epoch"].map(|key| stale.context(key).unwrap());
    assert_eq!(context, ["w2", "7", "1"]);
    assert!(windows.native("w2", 1).unwrap() == first.id);
    assert_eq!(windows.native("w1", 1).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn without_a_window_manager_windows_are_changed_directly() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, app) = (on(&server), App::on(&server));
    let lower = app.shown(Bounds::new(10, 20, 300, 200), Look { border: 3, ..PLAIN });
    assert_eq!(handles(&windows), ["w1"]);
    let _upper = app.shown(Bounds::new(0, 0, 400, 300), PLAIN);
    assert_eq!(handles(&windows), ["w2", "w1"]);

    let active = windows.activate("w1", 1).unwrap();
    assert!(active.focused && active.z_order == 0);
    assert_eq!(app.conn.get_input_focus().unwrap().reply().unwrap().focus, lower.id);
    let to = Placement { x: Some(-20), width: Some(333), ..Placement::default() };
    let moved = windows.set_bounds("w1", 0, to).unwrap();
    assert_eq!(moved.bounds, Bounds::new(-20, 23, 333, 200));

    let small = windows.minimize("w1", 0).unwrap();
    assert_eq!((small.state, small.on_screen, small.z_order), (State::Minimized, false, 1));
    assert_eq!(handles(&windows), ["w2", "w1"]);
    let back = windows.restore("w1", 0).unwrap();
    assert_eq!((back.state, back.bounds), (State::Normal, moved.bounds));
    let large = windows.maximize("w1", 0).unwrap();
    assert_eq!((large.state, large.bounds), (State::Maximized, SCREEN.into()));
    let back = windows.restore("w1", 0).unwrap();
    assert_eq!((back.state, back.bounds), (State::Normal, moved.bounds));

    // Taken away by the app itself.
    app.unmap(&lower);
    let hidden = windows.get("w1", 0).unwrap();
    assert_eq!((hidden.state, hidden.on_screen), (State::Hidden, false));
    assert_eq!(windows.activate("w1", 0).unwrap().state, State::Normal);
}

#[test]
fn bounds_no_window_can_have_are_refused() {
    let windows = Windows::new(Some(":59000"));
    let to = Placement { width: Some(0), height: Some(40_000), x: Some(-40_000), y: Some(1) };
    let error = windows.set_bounds("w1", 0, to).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    let paths: Vec<_> = error.report().issues.into_iter().map(|issue| issue.path).collect();
    assert_eq!(paths, ["width", "height", "position.x"]);
}

#[test]
fn windows_are_asked_to_close_before_they_are_made_to() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, polite, rude) = (on(&server), App::on(&server), App::on(&server));
    let window = polite.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    let delete = polite.atom("WM_DELETE_WINDOW");
    polite.set_numbers(&window, "WM_PROTOCOLS", AtomEnum::ATOM, &[delete]);
    assert_eq!(handles(&windows), ["w1"]);
    let (display, id) = (windows.clone(), window.id);
    let asked = std::thread::spawn(move || display.close("w1", 0, false).unwrap());
    let request = loop {
        if let Event::ClientMessage(message) = polite.conn.wait_for_event().unwrap() {
            break message;
        }
    };
    assert_eq!((request.window, request.data.as_data32()[0]), (id, delete));
    polite.destroy(&window);
    assert_eq!(asked.join().unwrap(), None);

    // One that cannot be asked loses its connection, and another that is not asked, too.
    let _window = rude.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    assert_eq!(handles(&windows), ["w2"]);
    assert_eq!(windows.close("w2", 0, false).unwrap(), None);
    assert!(rude.conn.sync().is_err());
    let window = polite.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    polite.set_numbers(&window, "WM_PROTOCOLS", AtomEnum::ATOM, &[delete]);
    assert_eq!(windows.list().unwrap().len(), 1);
    let ignored = windows.close("w3", 0, false).unwrap();
    assert_eq!(ignored.unwrap().handle, "w3", "it may want to ask whether to save");
    assert_eq!(windows.close("w3", 0, true).unwrap(), None);
    assert!(polite.conn.sync().is_err());
}

#[test]
fn a_real_window_manager_is_asked() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, app) = (on(&server), App::on(&server));
    let early = app.shown(Bounds::new(100, 100, 200, 150), PLAIN);
    app.set_text(&early, "WM_NAME", "STRING", b"early");
    let before = windows.list().unwrap();
    let openbox = Openbox::on(&server, &windows);
    let late = app.shown(Bounds::new(300, 200, 210, 160), PLAIN);
    app.set_text(&late, "WM_NAME", "STRING", b"late");
    let list = eventually(&windows, |list| {
        let normal = |title| list.iter().any(|it| it.title == title && it.state == State::Normal);
        list.len() == 2 && normal("early") && normal("late")
    });
    let find = |title: &str| list.iter().find(|it| it.title == title).unwrap().clone();
    assert_eq!(find("early").handle, before[0].handle, "a frame makes no new window");
    let (early, late) = (find("early").handle, find("late").handle);

    let active = windows.activate(&early, 1).unwrap();
    assert!(active.focused, "{active:?}");
    let list = eventually(&windows, |list| list[0].handle == early);
    assert_eq!(list[1].handle, late);
    let to = Placement { x: Some(50), y: Some(60), width: Some(333), height: Some(222) };
    assert_eq!(windows.set_bounds(&early, 0, to).unwrap().bounds, Bounds::new(50, 60, 333, 222));
    let to = Placement { x: Some(70), ..Placement::default() };
    assert_eq!(windows.set_bounds(&early, 0, to).unwrap().bounds, Bounds::new(70, 60, 333, 222));

    let small = windows.minimize(&early, 0).unwrap();
    assert_eq!((small.state, small.on_screen), (State::Minimized, false));
    assert_eq!(windows.restore(&early, 0).unwrap().state, State::Normal);
    let large = windows.maximize(&early, 0).unwrap();
    assert_eq!(large.state, State::Maximized);
    assert!(large.bounds.width > 700 && large.bounds.height > 500, "{large:?}");
    let back = windows.restore(&early, 0).unwrap();
    // Openbox puts it back by where its frame was, so it may be off by what the frame is wide.
    assert_eq!((back.state, back.bounds.size()), (State::Normal, Size::new(333, 222)));
    assert!(back.bounds.x.abs_diff(70) < 30 && back.bounds.y.abs_diff(60) < 30, "{back:?}");
    windows.maximize(&early, 0).unwrap();
    let to = Placement { x: Some(80), y: Some(90), width: Some(100), height: Some(101) };
    let placed = windows.set_bounds(&early, 0, to).unwrap();
    assert_eq!((placed.state, placed.bounds), (State::Normal, Bounds::new(80, 90, 100, 101)));
    assert_eq!(windows.activate(&late, 0).unwrap().z_order, 0);

    // Windows outlive their manager, under the names they have.
    drop(openbox);
    let list = eventually(&windows, |list| list.iter().all(|it| it.state == State::Normal));
    let mut names: Vec<_> = list.iter().map(|it| it.handle.clone()).collect();
    names.sort();
    let mut expected = [early.clone(), late];
    expected.sort();
    assert_eq!(names, expected);
    let to = Placement { x: Some(5), ..Placement::default() };
    assert_eq!(windows.set_bounds(&early, 0, to).unwrap().bounds.x, 5);
    assert_eq!(windows.close(&early, 0, false).unwrap(), None);
}

#[test]
fn watchers_are_told_what_changes() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, app) = (on(&server), App::on(&server));
    let (mut watch, mut other) = (windows.watch().unwrap(), windows.watch().unwrap());
    assert_eq!(watch.next_within(LONG), Some(Change::Snapshot(Vec::new())));
    let window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    let Some(Change::Created(created)) = watch.next_within(LONG) else { panic!("not created") };
    app.set_text(&window, "WM_NAME", "STRING", b"named");
    let Some(Change::Updated(updated)) = watch.next_within(LONG) else { panic!("not updated") };
    assert_eq!((updated.title.as_str(), &updated.handle), ("named", &created.handle));
    app.destroy(&window);
    let closed = Change::Closed { handle: created.handle, epoch: 1 };
    assert_eq!(watch.next_within(LONG), Some(closed));
    assert_eq!(watch.try_next(), None);

    // The other one has not looked yet: it starts from what there is.
    assert_eq!(other.try_next(), Some(Change::Snapshot(Vec::new())));
    assert_eq!(other.try_next(), None);
    // And now falls behind, further than anyone remembers for it.
    let window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    for number in 0..600 {
        app.set_text(&window, "WM_NAME", "STRING", format!("{number}").as_bytes());
        assert_eq!(windows.list().unwrap()[0].title, number.to_string());
    }
    let Some(Change::Snapshot(list)) = other.try_next() else { panic!("no fresh start") };
    assert_eq!(list.len(), 1);
    let mut last = list[0].title.clone();
    while let Some(change) = other.try_next() {
        let Change::Updated(window) = change else { panic!("{change:?}") };
        last = window.title;
    }
    assert_eq!(last, "599");
}

#[test]
fn a_watcher_is_woken() {
    let server = Xvfb::start(SCREEN).unwrap();
    let (windows, app) = (on(&server), App::on(&server));
    let mut watch = windows.watch().unwrap();
    let wake = Arc::new(crate::wake::EventFd::new().unwrap());
    let waker = std::task::Waker::from(Arc::clone(&wake));
    let mut cx = std::task::Context::from_waker(&waker);
    let mut window = None;
    loop {
        if let std::task::Poll::Ready(change) = watch.poll_next(&mut cx) {
            match change {
                Change::Snapshot(list) => {
                    assert_eq!(list, []);
                    window = Some(app.shown(Bounds::new(0, 0, 10, 10), PLAIN));
                }
                Change::Created(_) => break,
                other => panic!("{other:?}"),
            }
            continue;
        }
        let mut fds = [rustix::event::PollFd::new(&*wake, rustix::event::PollFlags::IN)];
        let limit = crate::wake::timespec(LONG);
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "not woken");
        wake.empty();
    }
    drop(window);
}

#[test]
fn a_server_that_dies_is_an_error_and_one_that_comes_back_has_new_windows() {
    let display = own_display();
    let mut server = Xvfb::with(SCREEN, 24, &[&display]).unwrap();
    let (windows, app) = (on(&server), App::on(&server));
    let _window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    assert_eq!(handles(&windows), ["w1"]);
    let mut watch = windows.watch().unwrap();
    assert!(matches!(watch.next_within(LONG), Some(Change::Snapshot(_))));
    server.kill().unwrap();
    let closed = Change::Closed { handle: "w1".to_owned(), epoch: 1 };
    assert_eq!(watch.next_within(LONG), Some(closed));
    let error = windows.list().unwrap_err();
    assert_eq!(error.cause(), Some(Cause::CaptureFailed));
    assert!(error.report().hint.is_some());
    assert_eq!(windows.get("w1", 0).unwrap_err().cause(), Some(Cause::CaptureFailed));

    let again = Xvfb::with(SCREEN, 24, &[&display]).unwrap();
    let app = App::on(&again);
    let _window = app.shown(Bounds::new(0, 0, 10, 10), PLAIN);
    // By itself, as somebody watches.
    let Some(Change::Created(window)) = watch.next_within(LONG) else { panic!("not back") };
    assert_eq!(window.handle, "w2");
    assert_eq!(windows.get("w1", 0).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn a_server_that_is_not_there_is_a_typed_error() {
    // A number that no server gets: they count up from 0.
    let windows = Windows::new(Some(":59000"));
    let error = windows.list().unwrap_err();
    assert_eq!(error.cause(), Some(Cause::CaptureFailed));
    let mut watch = windows.watch().unwrap();
    assert_eq!(watch.next_within(LONG), Some(Change::Snapshot(Vec::new())));
    assert_eq!(Windows::new(Some("what")).list().unwrap_err().kind(), Kind::HostCapabilityMissing);
}
