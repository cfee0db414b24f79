//! The viewer page in Debian's Chromium and Firefox, on a real gateway.
//!
//! What is asserted are pixels: a number painted into the picture says which picture it is, and colours
//! are read back one by one.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{
    Browser, Gateway, Request, Screen, Script, Server, Socket, Window, measured, wait_until,
};
use spaceport_types::Size;

/// How long each browser watches the pattern.
const WATCH_MS: u64 = 3_000;

/// A picture that has been still for this long is as good as it gets.
const REFINED: Duration = Duration::from_secs(1);

/// Pictures a second that the pattern makes.
const FPS: u64 = 30;

/// Bars of the pattern, left to right.
const BARS: [[i64; 3]; 8] = [
    [255, 255, 255],
    [255, 255, 0],
    [0, 255, 255],
    [0, 255, 0],
    [255, 0, 255],
    [255, 0, 0],
    [0, 0, 255],
    [0, 0, 0],
];

#[test]
fn chromium_shows_the_pattern_over_websocket() {
    pattern(Browser::Chromium, "ws", "h264");
}

#[test]
fn chromium_shows_the_pattern_over_webtransport() {
    pattern(Browser::Chromium, "webtransport", "h264");
}

#[test]
fn firefox_shows_the_pattern_over_webtransport() {
    pattern(Browser::Firefox, "webtransport", "h264");
}

#[test]
fn chromium_shows_the_pattern_over_webrtc() {
    pattern(Browser::Chromium, "whep", "h264");
}

#[test]
fn firefox_shows_the_pattern_over_websocket() {
    pattern(Browser::Firefox, "ws", "h264");
}

#[test]
fn firefox_shows_the_pattern_over_webrtc() {
    // Without the plug-in that Firefox would download, it takes no H.264 over WebRTC.
    pattern(Browser::Firefox, "whep", "vp8");
}

fn pattern(browser: Browser, transport: &str, codec: &str) {
    let gateway = Gateway::with_test_pattern();
    let url = gateway.viewer_url(&format!("target=test-pattern&transport={transport}"));
    let mut script = Script::browser("pattern.mjs", browser, &[&url, &WATCH_MS.to_string()]);
    let seen = script.hear();
    let now = server_counter(&gateway);

    assert_eq!(seen["transport"], transport);
    assert_eq!(seen["codec"], codec);
    assert_eq!(seen["complaints"], json!([]), "the page or the browser complained");
    assert_eq!(seen["unreadable"], 0, "a picture came out damaged");
    let pictures = seen["pictures"].as_array().unwrap();
    let counter = |picture: &Value| picture["counter"].as_u64().unwrap();
    for pair in pictures.windows(2) {
        assert!(counter(&pair[0]) < counter(&pair[1]), "the picture went back: {pair:?}");
    }
    let (first, last) = (counter(&pictures[0]), counter(pictures.last().unwrap()));
    let due = WATCH_MS * FPS / 1000;
    assert!(last - first > due * 9 / 10, "stood still: {} of {due} pictures", last - first);
    assert!(pictures.len() as u64 > due / 2, "not smooth: {} of {due} pictures", pictures.len());
    // What was on screen a moment ago is not older than half a second, and not from the future.
    assert!((last..last + FPS).contains(&now), "shown {last}, the server is at {now}");
    if transport != "whep" {
        for picture in pictures {
            let captured_at = picture["capturedAt"].as_u64().unwrap();
            let due = u128::from(captured_at) * u128::from(FPS) / 1_000_000;
            assert_eq!(u128::from(counter(picture)), due, "another picture than its packet says");
        }
        let latency = seen["stats"]["latency"].as_f64().unwrap();
        assert!((0.0..500.0).contains(&latency), "{latency} ms from capture to picture");
    }
    let colours: Vec<[i64; 3]> = serde_json::from_value(seen["colours"].clone()).unwrap();
    measured(format_args!("{browser:?} {transport} bars {colours:?}, stats {}", seen["stats"]));
    for (seen, painted) in colours.iter().zip(BARS) {
        let off = seen.iter().zip(painted).map(|(seen, painted)| (seen - painted).abs()).max();
        // VP8 at a rate, and the other matrix or range would be off by far more.
        assert!(off <= Some(6), "{painted:?} came out as {seen:?}; all bars: {colours:?}");
    }
}

/// The number of the picture that is due now, by the server's own clock.
fn server_counter(gateway: &Gateway) -> u64 {
    let opened = gateway.open("test-pattern");
    let stats = runtime().block_on(async {
        let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
        socket.send("get_stats", json!({})).await;
        socket.control("stats").await
    });
    stats["server_time_us"].as_u64().unwrap() * FPS / 1_000_000
}

#[test]
fn a_late_viewer_of_a_still_desktop_sees_it_at_once_over_websocket_in_chromium() {
    late(Browser::Chromium, "ws", Size::new(1280, 720));
}

#[test]
fn a_late_viewer_of_a_still_desktop_sees_it_at_once_over_webtransport_in_chromium() {
    late(Browser::Chromium, "webtransport", Size::new(1280, 720));
}

#[test]
fn a_late_viewer_of_a_still_desktop_sees_it_at_once_over_webtransport_in_firefox() {
    late(Browser::Firefox, "webtransport", Size::new(1280, 720));
}

#[test]
fn a_late_viewer_of_a_still_desktop_sees_it_at_once_over_webrtc_in_chromium() {
    late(Browser::Chromium, "whep", Size::new(1280, 720));
}

#[test]
fn a_late_viewer_of_a_still_desktop_sees_it_at_once_over_websocket_in_firefox() {
    late(Browser::Firefox, "ws", Size::new(1280, 720));
}

#[test]
fn a_late_viewer_of_a_still_desktop_sees_it_at_once_over_webrtc_in_firefox() {
    late(Browser::Firefox, "whep", Size::new(1280, 720));
}

#[test]
fn a_desktop_of_odd_size_has_exact_edges_over_websocket() {
    late(Browser::Chromium, "ws", Size::new(789, 595));
}

#[test]
fn a_desktop_of_odd_size_has_exact_edges_over_webrtc() {
    late(Browser::Chromium, "whep", Size::new(789, 595));
}

/// A desktop is painted once, before anyone watches, and nothing on it changes.
fn late(browser: Browser, transport: &str, size: Size) {
    let xvfb = Xvfb::start(size).unwrap();
    let screen = Screen::connect(xvfb.display());
    screen.paint(0x20_60_a0, 1234);
    let gateway = Gateway::with_display(xvfb.display());
    let url = gateway.viewer_url(&format!("transport={transport}"));
    let corner = [size.width - 1, size.height - 1].map(|side| side.to_string());
    let [x, y] = &corner;
    let mut script = Script::browser("late.mjs", browser, &[&url, "1234", "4321", x, y]);

    let first = script.hear();
    assert_eq!(first["transport"], transport);
    let attach = first["attach"].as_f64().expect("the picture never came");
    measured(format_args!("{browser:?} {transport} {size:?}: picture {attach:.0} ms after attach"));
    assert!(attach < 500.0, "the picture came after {attach} ms");
    assert_eq!(first["size"], json!([size.width, size.height]));
    // The last pixel of all: coarse at once, and exact when the picture has been still for a moment.
    assert_close(&first["colour"], [0x20, 0x60, 0xa0], 8);
    std::thread::sleep(REFINED);
    script.go_on();
    assert_close(&script.hear()["colour"], [0x20, 0x60, 0xa0], 3);

    screen.mark(4321);
    script.go_on();
    let then = script.hear();
    let change = then["change"].as_f64().expect("the change never showed");
    measured(format_args!("{browser:?} {transport} {size:?}: change after {change:.0} ms"));
    assert!(change < 500.0, "the change showed after {change} ms");
    assert_eq!(then["complaints"], json!([]), "the page or the browser complained");
}

fn assert_close(seen: &Value, painted: [i64; 3], most: i64) {
    let seen: [i64; 3] = serde_json::from_value(seen.clone()).unwrap();
    let off = seen.iter().zip(painted).map(|(seen, painted)| (seen - painted).abs()).max();
    assert!(off <= Some(most), "{painted:?} came out as {seen:?}");
}

#[test]
fn a_desktop_that_goes_away_is_explained_and_shown_again_when_it_is_back() {
    let size = Size::new(640, 480);
    let mut xvfb = Xvfb::start(size).unwrap();
    let display = xvfb.display().to_owned();
    Screen::connect(&display).paint(0x20_60_a0, 1);
    let gateway = Gateway::with_display(&display);
    let url = gateway.viewer_url("transport=ws");
    let mut script = Script::browser("gone.mjs", Browser::Chromium, &[&url, "2"]);
    assert_eq!(script.hear()["playing"], true);
    xvfb.kill().unwrap();
    drop(xvfb);
    script.go_on();
    assert_ne!(script.hear()["notice"], "");
    let _back = Server::start(&display, size);
    Screen::connect(&display).paint(0x20_60_a0, 2);
    script.go_on();
    let back = script.hear();
    assert_eq!((&back["state"], &back["notice"]), (&json!("playing"), &json!(0)));
    assert_eq!(back["complaints"], json!([]));
}

#[test]
fn a_wrong_ticket_is_explained() {
    let gateway = Gateway::with_test_pattern();
    let url = gateway.viewer_url("");
    let (page, _) = url.split_once('#').unwrap();
    let wrong = format!("{page}#ticket=AAAAAAAAAAAAAAAAAAAAAA");
    let card = Script::browser("cards.mjs", Browser::Chromium, &["refused", &wrong]).hear();
    assert_eq!(card["shown"], true);
    assert_eq!(card["code"], "unauthenticated");
    for part in ["title", "message", "hint"] {
        assert_ne!(card[part], "", "the card has no {part}: {card}");
    }
    // The browser itself notes a 401; the page has nothing to add.
    let complaints = card["complaints"].as_array().unwrap();
    assert!(
        complaints.iter().all(|text| text.as_str().unwrap().contains("status of 401")),
        "{complaints:?}"
    );
}

#[test]
fn a_closed_session_is_explained_and_opened_again_over_websocket() {
    closed("ws");
}

#[test]
fn a_closed_session_is_explained_and_opened_again_over_webtransport() {
    closed("webtransport");
}

#[test]
fn a_closed_session_is_explained_and_opened_again_over_webrtc() {
    closed("whep");
}

fn closed(transport: &str) {
    let gateway = Gateway::with_test_pattern();
    let url = gateway.viewer_url(&format!("target=test-pattern&transport={transport}"));
    let mut script = Script::browser("cards.mjs", Browser::Chromium, &["closed", &url]);
    let opened = script.hear();
    gateway.close(opened["session"].as_str().unwrap());
    script.go_on();
    let card = script.hear();
    assert_eq!(card["shown"], true);
    assert_eq!(card["code"], "session_closed", "{card}");
    assert_ne!(card["message"], "");
    let again = script.hear();
    assert_eq!(again["card"], false, "the card stayed");
}

#[test]
fn the_page_takes_webtransport_and_the_menu_changes_that() {
    let ways = ways("menu").hear();
    assert_eq!(ways["taken"], json!(["webtransport", "whep", "ws", "webtransport"]));
    assert_eq!(ways["complaints"], json!([]));
}

#[test]
fn without_webcodecs_the_page_takes_webrtc() {
    let ways = ways("undecoded").hear();
    assert_eq!(ways["transport"], "whep");
    assert_eq!(ways["complaints"], json!([]));
}

#[test]
fn where_udp_is_blocked_the_page_takes_the_socket() {
    let ways = ways("blocked").hear();
    assert_eq!(ways["transport"], "ws");
    assert_eq!(ways["complaints"], json!([]));
}

#[test]
fn a_line_that_goes_silent_gives_way_to_another_by_itself() {
    let ways = ways("silent").hear();
    assert_eq!(ways["transport"], "ws");
    measured(format_args!("noticed {} ms after the last byte", ways["noticed"]));
    assert_eq!(ways["complaints"], json!([]));
}

#[test]
fn a_socket_that_stalls_gives_way_to_webrtc() {
    let ways = ways("stalled").hear();
    assert_eq!(ways["transport"], "whep");
    assert_eq!(ways["complaints"], json!([]));
}

#[test]
fn a_hidden_page_leaves_and_comes_back() {
    let mut ways = ways("hidden");
    assert_eq!(ways.hear()["paused"], true);
    let nobody = || ways.gateway.metric("spaceport_viewers") == 0;
    wait_until("the hidden page still watches", Duration::from_secs(3), nobody);
    ways.script.go_on();
    let back = ways.hear();
    assert_eq!(back["transport"], "webtransport");
    assert_eq!(back["complaints"], json!([]));
}

struct Ways {
    script: Script,
    gateway: Gateway,
}

fn ways(scenario: &str) -> Ways {
    let gateway = Gateway::with_test_pattern();
    let url = gateway.viewer_url("target=test-pattern");
    let script = Script::browser("ways.mjs", Browser::Chromium, &[scenario, &url]);
    Ways { script, gateway }
}

impl Ways {
    fn hear(&mut self) -> Value {
        self.script.hear()
    }
}

#[test]
fn the_page_draws_the_pointer_over_the_picture_in_chromium() {
    pointer_apart(Browser::Chromium);
}

#[test]
fn the_page_draws_the_pointer_over_the_picture_in_firefox() {
    pointer_apart(Browser::Firefox);
}

/// The pointer of these tests: a square that points with a pixel near its lower right corner.
const SIDE: u16 = 20;
const HOTSPOT: (u16, u16) = (17, 13);

fn pointer_apart(browser: Browser) {
    let xvfb = Xvfb::start(Size::new(640, 480)).unwrap();
    let screen = Screen::connect(xvfb.display());
    screen.paint(0x20_60_a0, 1);
    screen.shape_pointer(Some(0xff_80_00), SIDE, HOTSPOT);
    let gateway = Gateway::with_display(xvfb.display());
    let url = gateway.viewer_url("transport=ws");
    let places = [(320, 240), (0, 0), (639, 479), (101, 402)];
    let texts = places.map(|(x, y)| format!("{x},{y}"));
    let mut arguments = vec!["apart", &url];
    arguments.extend(texts.iter().map(String::as_str));
    let mut script = Script::browser("pointer.mjs", browser, &arguments);
    assert_eq!(script.hear()["transport"], "ws");
    for (x, y) in places {
        screen.point(x, y);
        script.go_on();
        let seen = script.hear();
        let number = |of: &str, what: &str| seen[of][what].as_f64().unwrap();
        let zoom = number("frame", "width") / 640.0;
        let wanted = [
            ("x", number("frame", "x") + f64::from(x - HOTSPOT.0.cast_signed()) * zoom),
            ("y", number("frame", "y") + f64::from(y - HOTSPOT.1.cast_signed()) * zoom),
            ("width", f64::from(SIDE) * zoom),
            ("height", f64::from(SIDE) * zoom),
        ];
        for (what, wanted) in wanted {
            let is = number("pointer", what);
            assert!((is - wanted).abs() < 0.5, "{what} is {is}, not {wanted}: {seen}");
        }
        assert_eq!(seen["colour"], json!([255, 128, 0, 255]));
    }
    screen.shape_pointer(None, SIDE, HOTSPOT);
    script.go_on();
    let end = script.hear();
    assert_eq!((&end["hidden"], &end["complaints"]), (&json!(true), &json!([])));
    // One picture, made sharper a few times: none of the pointer.
    assert!(end["frames"].as_u64() <= Some(4), "{end}");
}

#[test]
fn the_pointer_is_in_the_picture_over_webrtc_in_chromium() {
    pointer_baked(Browser::Chromium);
}

#[test]
fn the_pointer_is_in_the_picture_over_webrtc_in_firefox() {
    pointer_baked(Browser::Firefox);
}

fn pointer_baked(browser: Browser) {
    let xvfb = Xvfb::start(Size::new(640, 480)).unwrap();
    let screen = Screen::connect(xvfb.display());
    screen.paint(0x20_60_a0, 1);
    screen.shape_pointer(Some(0xff_80_00), SIDE, (10, 10));
    let gateway = Gateway::with_display(xvfb.display());
    let url = gateway.viewer_url("transport=whep");
    let arguments = ["baked", &url, "255,128,0", "320,240", "500,400"];
    let mut script = Script::browser("pointer.mjs", browser, &arguments);
    assert_eq!(script.hear()["transport"], "whep");
    for (x, y) in [(320, 240), (500, 400)] {
        screen.point(x, y);
        script.go_on();
        assert_eq!(script.hear()["overlay"], false, "drawn twice");
    }
    assert_eq!(script.hear()["complaints"], json!([]));
}

#[test]
fn what_can_be_watched_is_listed_for_whoever_may_watch_it() {
    let xvfb = Xvfb::start(Size::new(800, 600)).unwrap();
    let _window = Window::open(xvfb.display(), "Ledger", "Editor", (50, 60), (320, 240));
    let gateway = Gateway::with_display(xvfb.display());
    let ask = |method, path, ticket: &str, body: &str| {
        let bearer = format!("Bearer {ticket}");
        let headers = [("authorization", &*bearer), ("content-type", "application/json")];
        let body = body.as_bytes();
        Request { method, path, headers: &headers, body }.send(gateway.http()).unwrap()
    };
    let list = |ticket: &str| ask("GET", "/viewer/targets", ticket, "").json();
    let url = gateway.viewer_url("");
    let (_, ticket) = url.split_once("#ticket=").unwrap();
    let all = list(ticket);
    let display = json!({
        "kind": "display", "id": format!("{}.0", xvfb.display()), "name": "screen",
        "primary": true, "size": [800, 600],
    });
    let window = json!({
        "kind": "window", "id": "w1", "title": "Ledger", "app": "Editor",
        "size": [320, 240], "available": true,
    });
    assert_eq!(all, json!([display, window]));

    // A media ticket opens one session; of the rest of the desktop it tells nothing.
    for (body, only) in [("{}", &display), (r#"{"window_id":"w1"}"#, &window)] {
        let opened = ask("POST", "/viewer/open", ticket, body).json();
        assert_eq!(opened["target"], *only);
        assert_eq!(list(opened["ticket"].as_str().unwrap()), json!([only]));
    }
    assert_eq!(ask("GET", "/viewer/targets", "AAAAAAAAAAAAAAAAAAAAAA", "").status, 401);
    let bare = Request { method: "GET", path: "/viewer/targets", headers: &[], body: b"" };
    assert_eq!(bare.send(gateway.http()).unwrap().status, 401);
}

#[test]
fn the_page_switches_to_a_window_and_back_without_loading_again() {
    let xvfb = Xvfb::start(Size::new(800, 600)).unwrap();
    Screen::connect(xvfb.display()).paint(0x20_60_a0, 1);
    let window = Window::open(xvfb.display(), "Ledger", "Editor", (50, 60), (320, 240));
    let gateway = Gateway::with_display(xvfb.display());
    let url = gateway.viewer_url("");
    let arguments = ["switch", &url, "800,600", "320,240", "Ledger"];
    let mut script = Script::browser("targets.mjs", Browser::Chromium, &arguments);
    let desktop = script.hear();
    assert_eq!((&desktop["title"], &desktop["label"]), (&json!("Spaceport"), &json!("Desktop")));
    assert_eq!(desktop["target"]["kind"], "display");
    let entries = script.hear();
    assert_eq!(
        entries["entries"],
        json!([["Desktop\n800 × 600", "true"], ["Ledger\nEditor · 320 × 240", "false"]])
    );
    let shown = script.hear();
    assert_eq!(
        (&shown["title"], &shown["label"]),
        (&json!("Ledger – Spaceport"), &json!("Ledger"))
    );
    assert_eq!(shown["address"], "#ticket&window=w1");
    let colour: [i64; 3] = serde_json::from_value(shown["colour"].clone()).unwrap();
    assert!(colour[0] < 60 && colour[2] > 200, "not the window's: {colour:?}");
    window.retitle("Renamed");
    script.go_on();
    assert_eq!(script.hear()["label"], "Renamed");
    let back = script.hear();
    assert_eq!((&back["title"], &back["address"]), (&json!("Spaceport"), &json!("#ticket")));
    assert_close(&back["colour"], [0x20, 0x60, 0xa0], 8);
    assert_eq!((&back["loaded"], &back["complaints"]), (&json!(true), &json!([])));
}

#[test]
fn a_window_that_closes_is_explained_and_the_desktop_offered_over_websocket() {
    window_closes("ws");
}

#[test]
fn a_window_that_closes_is_explained_and_the_desktop_offered_over_webrtc() {
    window_closes("whep");
}

fn window_closes(transport: &str) {
    let xvfb = Xvfb::start(Size::new(800, 600)).unwrap();
    Screen::connect(xvfb.display()).paint(0x20_60_a0, 1);
    let window = Window::open(xvfb.display(), "Ledger", "Editor", (50, 60), (320, 240));
    let gateway = Gateway::with_display(xvfb.display());
    let url = gateway.viewer_url(&format!("transport={transport}&window=w1"));
    let arguments = ["closed", &url, "800,600", "320,240"];
    let mut script = Script::browser("targets.mjs", Browser::Chromium, &arguments);
    assert_eq!(script.hear()["title"], "Ledger – Spaceport");
    drop(window);
    script.go_on();
    let card = script.hear();
    assert_ne!(card["title"], "");
    assert_eq!(card["code"], "target_gone", "{card}");
    let desktop = script.hear();
    assert_eq!(desktop["card"], 0);
    assert_eq!(desktop["target"]["kind"], "display");
    assert_eq!(desktop["address"], format!("#ticket&transport={transport}"));
    assert_close(&desktop["colour"], [0x20, 0x60, 0xa0], 8);
}

#[test]
fn the_pages_types_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e");
    let output = Command::new(folder.join("node_modules/.bin/tsc"))
        .args(["--project", "tsconfig.json"])
        .current_dir(&folder)
        .output()
        .expect("run `npm ci --ignore-scripts` in tests/e2e first");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_page_is_served_with_what_a_browser_needs() {
    let gateway = Gateway::with_test_pattern();
    let get = |path, headers: &[(&str, &str)]| {
        Request { method: "GET", path, headers, body: b"" }.send(gateway.http()).unwrap()
    };
    for (path, kind) in [
        ("/viewer/", "text/html"),
        ("/viewer/style.css", "text/css"),
        ("/viewer/main.js", "text/javascript"),
        ("/viewer/transport/whep.js", "text/javascript"),
        ("/viewer/icon.svg", "image/svg+xml"),
    ] {
        let answer = get(path, &[]);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.headers["content-type"].starts_with(kind), "{path}");
        let policy = &answer.headers["content-security-policy"];
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        let etag = &*answer.headers["etag"];
        assert_eq!(get(path, &[("if-none-match", etag)]).status, 304, "{path}");
    }
    assert_eq!(get("/viewer/../Cargo.toml", &[]).status, 404);
    assert_eq!(get("/viewer/nothing.js", &[]).status, 404);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
