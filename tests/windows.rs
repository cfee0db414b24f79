//! Windows of real programs, pixel for pixel: what is streamed is what the screen shows.
//!
//! The stream carries raw pixels, so that nothing but capture can differ, and the screen is read
//! through the X server beside it. Programs blink and redraw; a comparison waits until both agree.

use std::time::Duration;

use serde_json::Value;
use spaceport_testkit::Xvfb;
use spaceport_tests::{Event, Folder, Gateway, Program, Screen, Socket, Via, wait_until};
use spaceport_types::{Bounds, Size};
use spaceport_wire::pb::{
    ListTargetsRequest, ListTargetsResponse, MediaCodec, MediaTarget, OpenMediaRequest,
    OpenMediaResponse, SetWindowBoundsRequest, SetWindowBoundsResponse, WindowInfo, media_target,
    stream_target,
};
use tokio::time::Instant;

/// What shows the windows, apart from the X server.
#[derive(Clone, Copy, Debug)]
enum Desktop {
    /// Nothing: windows are where the programs put them.
    Bare,
    /// A window manager.
    Managed,
    /// A window manager, and a compositor that draws the screen from the windows' own pictures.
    Composited,
}

#[tokio::test]
async fn windows_and_their_menus_are_exact_on_a_bare_server() {
    windows_and_menus(Desktop::Bare).await;
}

#[tokio::test]
async fn windows_and_their_menus_are_exact_under_a_window_manager() {
    windows_and_menus(Desktop::Managed).await;
}

#[tokio::test]
async fn windows_and_their_menus_are_exact_under_a_compositor() {
    windows_and_menus(Desktop::Composited).await;
}

async fn windows_and_menus(desktop: Desktop) {
    let server = Xvfb::start(Size::new(1280, 900)).unwrap();
    let display = server.display();
    let screen = Screen::connect(display);
    // A menu with a shadow lets it show through; a stream of the window alone has black there.
    screen.wallpaper(0);
    let home = Folder::new("programs");
    let plain = home.path().join("openbox.xml");
    std::fs::write(&plain, UNDECORATED).unwrap();
    let plain = plain.to_str().unwrap();
    let _manager = match desktop {
        Desktop::Bare => Vec::new(),
        Desktop::Managed => vec![Program::start(display, "openbox", &[])],
        // Frames would show through the shadows of menus; they are no part of a window.
        Desktop::Composited => vec![
            Program::start(display, "openbox", &["--config-file", plain]),
            Program::start(display, "xcompmgr", &[]),
        ],
    };
    let gateway = Gateway::with_display(display);
    let profile = format!("--user-data-dir={}", home.path().join("chromium").display());
    let page = "--app=data:text/html,<title>Page</title><body style='background:linear-gradient(90deg,red,blue)'><h1>Page</h1>";
    let chromium = [
        &*profile,
        "--no-sandbox",
        "--no-first-run",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--password-store=basic",
        "--window-position=520,80",
        "--window-size=401,303",
        page,
    ];
    let xterm = ["-geometry", "40x12+20+30", "-e", "sleep", "600"];

    // One after the other: none may cover another, and not every program can be told where to be.
    let programs: [(&str, &[&str], Option<u8>); 3] =
        [("xterm", &xterm, None), ("l3afpad", &[], Some(3)), ("chromium", &chromium, Some(3))];
    for (app, arguments, menu) in programs {
        let _program = Program::start(display, app, arguments);
        let window = find(&gateway, app);
        let mut view = View::open(&gateway, &window).await;
        view.agrees_with(&screen, app).await;
        let Some(button) = menu else { continue };
        // At the lower right corner, so that the menu leaves the window.
        let at = view.area;
        let right = i32::try_from(at.width).unwrap() - 24;
        let bottom = i32::try_from(at.height).unwrap() - 24;
        screen.click(
            button,
            (at.x + right).try_into().unwrap(),
            (at.y + bottom).try_into().unwrap(),
        );
        wait_until("a menu", PATIENCE, || !screen.popups().is_empty());
        view.agrees_with(&screen, &format!("{app} with a menu")).await;
        let canvas = view.area;
        assert!(
            screen.popups().iter().all(|popup| popup.intersection(canvas) == Some(*popup)),
            "{app}: menus at {:?} and a canvas of {canvas:?}",
            screen.popups()
        );
        screen.click(1, 4, 890);
        wait_until("no menu", PATIENCE, || screen.popups().is_empty());
        view.agrees_with(&screen, &format!("{app} after its menu")).await;
        assert_eq!(view.area, at, "{app}: the canvas is the window's again");
    }
}

/// A user drags a corner, an agent arranges windows: every size is a new canvas.
#[tokio::test]
async fn a_window_that_is_resized_every_100_ms_is_exact_wherever_it_rests() {
    let server = Xvfb::start(Size::new(1600, 1000)).unwrap();
    let display = server.display();
    let gateway = Gateway::with_display(display);
    let screen = Screen::connect(display);
    let _editor = Program::start(display, "l3afpad", &[]);
    let window = find(&gateway, "l3afpad");
    let mut view = View::open(&gateway, &window).await;
    view.agrees_with(&screen, "before").await;

    let mut pace = tokio::time::interval(Duration::from_millis(100));
    for round in 0..3_u32 {
        let mut last = (0.0, 0.0);
        for step in 0..12_u32 {
            pace.tick().await;
            last = (f64::from(301 + 71 * step + round), f64::from(203 + 37 * step));
            let request = SetWindowBoundsRequest {
                window: window.r#ref.clone(),
                position: None,
                width: Some(last.0),
                height: Some(last.1),
            };
            let placed: SetWindowBoundsResponse =
                gateway.call("WindowsService/SetWindowBounds", &request).unwrap();
            assert!(placed.window.is_some());
            while let Some(event) = view.socket.next_within(Duration::from_millis(1)).await {
                view.take(event);
            }
        }
        view.window = Bounds::new(0, 0, 1600, 1000); // all of the picture is the window's
        view.agrees_with(&screen, "at rest").await;
        let rested = (f64::from(view.area.width), f64::from(view.area.height));
        assert_eq!(rested, last, "an odd size, to the pixel");
    }
}

/// The window of an app, once there is one.
fn find(gateway: &Gateway, app: &str) -> WindowInfo {
    let mut found = None;
    wait_until(app, PATIENCE, || {
        let request = ListTargetsRequest { include_windows: true, window_filter: None };
        let listed: ListTargetsResponse =
            gateway.call("StreamService/ListTargets", &request).unwrap();
        found = listed.targets.into_iter().find_map(|target| match target.target {
            Some(stream_target::Target::Window(window)) => {
                let name = window.app.as_ref().map(|app| app.name.to_lowercase());
                (target.available && name.is_some_and(|name| name.contains(app))).then_some(window)
            }
            _ => None,
        });
        found.is_some()
    });
    found.unwrap()
}

/// One viewer of a window, and the newest picture it has.
struct View {
    socket: Socket,
    /// What the pictures show, in pixels of the screen.
    area: Bounds,
    /// The window alone; the picture grows with its menus.
    window: Bounds,
    size: (u64, u64),
    pixels: Vec<u8>,
}

impl View {
    async fn open(gateway: &Gateway, window: &WindowInfo) -> Self {
        let target = media_target::Target::Window(window.r#ref.clone().unwrap());
        let request = OpenMediaRequest {
            target: Some(MediaTarget { target: Some(target) }),
            codecs: vec![MediaCodec::Bgra.into()],
            ..OpenMediaRequest::default()
        };
        let opened: OpenMediaResponse = gateway.call("StreamService/OpenMedia", &request).unwrap();
        let via = Via::Query;
        let socket = Socket::open(gateway.http(), &opened.ws_path, via, None).await.unwrap();
        let nothing = Bounds::new(0, 0, 0, 0);
        Self { socket, area: nothing, window: nothing, size: (0, 0), pixels: Vec::new() }
    }

    /// Waits until the picture is what the screen shows of the window and of its menus.
    async fn agrees_with(&mut self, screen: &Screen, what: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(event) = self.socket.next_within(Duration::from_millis(100)).await {
                self.take(event);
                continue; // what is on the way belongs to the picture
            }
            let difference = self.difference(screen);
            if difference == Some(0) {
                return;
            }
            assert!(
                Instant::now() < end,
                "{what}: {difference:?} pixels differ in {:?} of {:?}",
                self.area,
                self.size
            );
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Packet(header, payload) => {
                self.size =
                    (header["width_px"].as_u64().unwrap(), header["height_px"].as_u64().unwrap());
                self.pixels = payload;
            }
            Event::Control(kind, payload) => {
                let bounds = match &*kind {
                    "session_opened" | "lifecycle" => &payload["geometry"]["logical_bounds"],
                    _ => return,
                };
                if !bounds.is_null() {
                    self.area = bounds_of(bounds);
                    if kind == "session_opened" {
                        self.window = self.area;
                    }
                }
            }
            Event::Closed(code, reason) => panic!("closed: {code} {reason}"),
        }
    }

    /// How many pixels of the window and its menus are not as on the screen; `None` while the sizes
    /// do not fit. A canvas that grew for a menu has corners that belong to neither.
    fn difference(&self, screen: &Screen) -> Option<usize> {
        let area = self.area;
        let size = (u64::from(area.width), u64::from(area.height));
        if self.size != size || self.pixels.len() as u64 != size.0 * size.1 * 4 || size.0 == 0 {
            return None;
        }
        let shown = screen.read(area);
        let parts: Vec<_> = screen.popups().into_iter().chain([self.window]).collect();
        let differ = |(index, (seen, shown)): &(usize, (&[u8], &[u8]))| {
            let index = i32::try_from(*index).unwrap();
            let width = i32::try_from(area.width).unwrap();
            let point = Bounds::new(area.x + index % width, area.y + index / width, 1, 1);
            seen[..3] != shown[..3] && parts.iter().any(|part| part.intersection(point).is_some())
        };
        let pairs = self.pixels.chunks_exact(4).zip(shown.chunks_exact(4)).enumerate();
        Some(pairs.filter(differ).count())
    }
}

fn bounds_of(bounds: &Value) -> Bounds {
    let number = |name: &str| bounds[name].as_f64().unwrap();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole pixels")]
    Bounds::new(
        number("x") as i32,
        number("y") as i32,
        number("width") as u32,
        number("height") as u32,
    )
}

/// A window manager that adds nothing to a window.
const UNDECORATED: &str = r#"<openbox_config xmlns="http://openbox.org/3.4/rc"><theme><keepBorder>no</keepBorder></theme><applications>
<application class="*"><decor>no</decor></application>
</applications></openbox_config>"#;

/// Starting a browser takes a while on a machine that does other things, too.
const PATIENCE: Duration = Duration::from_secs(12);
