//! Where a desktop has several monitors, each is a display of its own.

use std::time::Duration;

use spaceport_testkit::Xvfb;
use spaceport_tests::{Event, Gateway, Screen, Socket, Window};
use spaceport_types::{Rect, Size};
use spaceport_wire::pb::{
    Display, ListDisplaysRequest, ListDisplaysResponse, ListTargetsRequest, ListTargetsResponse,
    ListWindowsRequest, ListWindowsResponse, MediaCodec, MediaTarget, OpenMediaRequest,
    OpenMediaResponse, WindowFilter, media_target, stream_target,
};
use tokio::time::timeout;

const SCREEN: Size = Size::new(640, 360);
const LEFT: Rect = Rect::new(0, 0, 300, 360);
const RIGHT: Rect = Rect::new(300, 40, 340, 311);
const RED: u32 = 0xd0_20_30;
const BLUE: u32 = 0x10_40_e0;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A desktop of two monitors, the left one red, the right one blue.
fn desktop() -> (Xvfb, Screen) {
    let xvfb = Xvfb::start(SCREEN).unwrap();
    let screen = Screen::connect(xvfb.display());
    screen.set_monitor("LEFT", LEFT, true);
    screen.set_monitor("RIGHT", RIGHT, false);
    screen.fill(RED, [LEFT]);
    screen.fill(BLUE, [RIGHT]);
    (xvfb, screen)
}

/// Opens a display for exact pixels.
fn open(gateway: &Gateway, display: &str) -> OpenMediaResponse {
    let target = media_target::Target::DisplayId(display.to_owned());
    let request = OpenMediaRequest {
        target: Some(MediaTarget { target: Some(target) }),
        codecs: vec![MediaCodec::Bgra.into()],
        ..OpenMediaRequest::default()
    };
    gateway.call("StreamService/OpenMedia", &request).unwrap()
}

fn bounds(display: &Display) -> (f64, f64, f64, f64) {
    let rect = display.bounds.unwrap();
    (rect.x, rect.y, rect.width, rect.height)
}

fn of(rect: Rect) -> (f64, f64, f64, f64) {
    (rect.x.into(), rect.y.into(), rect.width.into(), rect.height.into())
}

fn bgra(colour: u32) -> [u8; 4] {
    let [_, red, green, blue] = colour.to_be_bytes();
    [blue, green, red, 255]
}

/// Waits for a picture of one size that is of one colour all over.
async fn until_all(socket: &mut Socket, size: Size, colour: u32) -> serde_json::Value {
    let wanted = async {
        loop {
            let (header, payload) = socket.packet().await;
            let pixels = payload.as_chunks::<4>().0;
            let fits = pixels.len() as u64 == size.bounds().area();
            if fits && pixels.iter().all(|pixel| *pixel == bgra(colour)) {
                assert_eq!(header["width_px"], size.width);
                assert_eq!(header["height_px"], size.height);
                break header;
            }
        }
    };
    timeout(LONG, wanted).await.expect("no such picture came")
}

#[test]
fn monitors_are_displays_and_the_desktop_is_a_target() {
    let (xvfb, screen) = desktop();
    let gateway = Gateway::with_display(xvfb.display());
    let list = || -> Vec<Display> {
        let request = ListDisplaysRequest::default();
        let answer: ListDisplaysResponse =
            gateway.call("ComputerService/ListDisplays", &request).unwrap();
        answer.displays
    };
    let displays = list();
    let facts = displays.iter().map(|it| (it.name.as_str(), it.primary, bounds(it)));
    let facts: Vec<_> = facts.collect();
    assert_eq!(facts, [("LEFT", true, of(LEFT)), ("RIGHT", false, of(RIGHT))]);
    for display in &displays {
        let native = display.native_size.unwrap();
        let (_, _, width, height) = bounds(display);
        assert_eq!((f64::from(native.width), f64::from(native.height)), (width, height));
        assert!((display.scale_factor - 1.0).abs() < f64::EPSILON && display.refresh_rate_hz > 0);
    }

    // One window on each, and one that reaches from one into the other.
    let _windows = [("l", 20), ("r", 500), ("both", 280)]
        .map(|(title, x)| Window::open(xvfb.display(), title, "App", (x, 50), (100, 80)));
    let request = ListTargetsRequest { include_windows: true, ..ListTargetsRequest::default() };
    let listed: ListTargetsResponse = gateway.call("StreamService/ListTargets", &request).unwrap();
    let mut shown = Vec::new();
    let mut windows = Vec::new();
    for target in listed.targets {
        assert!(target.available);
        match target.target.unwrap() {
            stream_target::Target::Display(display) => {
                assert!(windows.is_empty(), "displays come first");
                shown.push(display);
            }
            stream_target::Target::Window(window) => {
                windows.push((window.title, window.display_id));
            }
        }
    }
    assert_eq!(shown[..2], displays);
    assert_eq!((shown.len(), shown[2].primary), (3, false));
    assert_eq!(bounds(&shown[2]), of(SCREEN.bounds()), "{shown:?}");
    let on = |title: &str, display: usize| (title.to_owned(), displays[display].id.clone());
    windows.sort();
    assert_eq!(windows, [on("both", 1), on("l", 0), on("r", 1)]);

    let titles = |display: &str| {
        let filter = WindowFilter { display_id: display.to_owned(), ..WindowFilter::default() };
        let request = ListWindowsRequest { filter: Some(filter) };
        let found: ListWindowsResponse =
            gateway.call("WindowsService/ListWindows", &request).unwrap();
        let mut titles: Vec<_> = found.windows.into_iter().map(|window| window.title).collect();
        titles.sort();
        titles
    };
    assert_eq!(titles("primary"), ["l"]);
    assert_eq!(titles(&displays[1].id), ["both", "r"]);
    for all in ["", "desktop", &*shown[2].id] {
        assert_eq!(titles(all), ["both", "l", "r"], "`{all}`");
    }
    assert!(titles("nowhere").is_empty());

    // The ids stay when a monitor is gone for a while, and when it is alone.
    screen.delete_monitor("LEFT");
    assert_ne!(list(), displays);
    screen.set_monitor("LEFT", LEFT, true);
    assert_eq!(list(), displays);
    screen.delete_monitor("RIGHT");
    assert_eq!(list().iter().map(bounds).collect::<Vec<_>>(), [of(SCREEN.bounds())]);
    let opened = open(&gateway, &displays[0].id);
    let size = opened.geometry.unwrap().frame_size.unwrap();
    assert_eq!((size.width, size.height), (LEFT.width, LEFT.height));
}

#[tokio::test]
async fn a_stream_of_a_monitor_shows_its_pixels_and_no_others() {
    let (xvfb, screen) = desktop();
    let gateway = Gateway::with_display(xvfb.display());
    let mut sockets = Vec::new();
    for (display, area, colour) in [("primary", LEFT, RED), ("RIGHT", RIGHT, BLUE)] {
        let id = match display {
            "primary" => display.to_owned(),
            _ => format!("{}.0/RIGHT", xvfb.display()),
        };
        let opened = open(&gateway, &id);
        let geometry = opened.geometry.unwrap();
        let at = geometry.logical_bounds.unwrap();
        assert_eq!((at.x, at.y, at.width, at.height), of(area));
        let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
        until_all(&mut socket, area.size(), colour).await;
        sockets.push(socket);
    }
    // One changes, and the other hears nothing of it.
    screen.fill(0x20_c0_40, [LEFT]);
    let [left, right] = sockets.as_mut_slice() else { unreachable!() };
    until_all(left, LEFT.size(), 0x20_c0_40).await;
    screen.fill(0x70_70_70, [RIGHT]);
    let header = until_all(right, RIGHT.size(), 0x70_70_70).await;
    assert_eq!(header["geometry_epoch"], 1);

    // The whole desktop is there, too, also what no monitor shows.
    let opened = open(&gateway, "desktop");
    screen.fill(0x12_34_56, [SCREEN.bounds()]);
    let mut whole = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    until_all(&mut whole, SCREEN, 0x12_34_56).await;
}

#[tokio::test]
async fn a_stream_follows_its_monitor_and_ends_with_it() {
    let (xvfb, screen) = desktop();
    let gateway = Gateway::with_display(xvfb.display());
    let opened = open(&gateway, &format!("{}.0/RIGHT", xvfb.display()));
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let first = until_all(&mut socket, RIGHT.size(), BLUE).await;

    // It moves, then it changes size: a new epoch each time, which begins with a keyframe.
    let moved = Rect::new(0, 0, RIGHT.width, RIGHT.height);
    screen.fill(RED, [SCREEN.bounds()]);
    screen.delete_monitor("RIGHT");
    screen.set_monitor("RIGHT", moved, false);
    screen.fill(0x30_90_60, [moved]);
    let second = until_all(&mut socket, moved.size(), 0x30_90_60).await;
    assert!(second["geometry_epoch"].as_u64() > first["geometry_epoch"].as_u64());
    assert!(second["codec_epoch"].as_u64() > first["codec_epoch"].as_u64());
    let smaller = Rect::new(40, 60, 100, 75);
    screen.delete_monitor("RIGHT");
    screen.set_monitor("RIGHT", smaller, false);
    screen.fill(BLUE, [smaller]);
    let third = until_all(&mut socket, smaller.size(), BLUE).await;
    assert!(third["geometry_epoch"].as_u64() > second["geometry_epoch"].as_u64());

    screen.delete_monitor("RIGHT");
    let mut said = Vec::new();
    let end = async {
        loop {
            match socket.next_within(LONG).await.expect("the viewer was left in the dark") {
                Event::Control(kind, payload) if kind == "lifecycle" => said.push(payload),
                Event::Closed(code, _) => break code,
                _ => {}
            }
        }
    };
    assert_eq!(timeout(LONG, end).await.expect("it did not end"), 4410);
    assert_eq!(said.first().unwrap()["reason"], "display_blanked");
    let closed = said.last().unwrap();
    assert_eq!(
        (&closed["event"], &closed["error"]["cause"]),
        (&"closed".into(), &"target_gone".into())
    );

    let target = media_target::Target::DisplayId(format!("{}.0/RIGHT", xvfb.display()));
    let request = OpenMediaRequest {
        target: Some(MediaTarget { target: Some(target) }),
        ..OpenMediaRequest::default()
    };
    let refused = gateway.call::<OpenMediaResponse>("StreamService/OpenMedia", &request);
    assert!(refused.unwrap_err().message.contains("RIGHT"));
}

#[tokio::test]
async fn a_display_that_is_switched_off_says_so_and_is_shown_all_the_same() {
    let (xvfb, screen) = desktop();
    let gateway = Gateway::with_display(xvfb.display());
    let opened = open(&gateway, "");
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    until_all(&mut socket, LEFT.size(), RED).await;
    screen.switch_off(true);
    let off = timeout(LONG, socket.control("lifecycle")).await.expect("nobody said so");
    assert_eq!((&off["event"], &off["reason"]), (&"suspended".into(), &"display_blanked".into()));
    assert_eq!(off["error"]["cause"], "display_blanked");
    let mut late = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let told = timeout(LONG, late.control("lifecycle")).await.expect("nobody told who came later");
    assert_eq!(told["reason"], "display_blanked");
    until_all(&mut late, LEFT.size(), RED).await;
    screen.fill(BLUE, [LEFT]);
    until_all(&mut socket, LEFT.size(), BLUE).await;
    screen.switch_off(false);
    let on = timeout(LONG, socket.control("lifecycle")).await.expect("it stays off");
    assert_eq!(on["event"], "resumed");
}
