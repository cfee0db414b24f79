//! Why a stream does not come about or does not go on: each cause is provoked for real and said, here or
//! in the test that the table names.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{
    Agent, Browser, Event, Folder, Gateway, Relay, Request, Script, Socket, Start, TOKEN, Window,
    binary, offer,
};
use spaceport_types::{Cause, Kind, Size};
use spaceport_wire::close::CloseCode;
use spaceport_wire::pb::{
    MediaCodec, MediaTarget, OpenMediaRequest, OpenMediaResponse, WindowRef, media_target,
};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);

/// Where each is provoked.
const TABLE: [(Cause, &str); 19] = [
    (Cause::UdpBlocked, "tests/blocked_networks.rs"),
    (Cause::RelayUnreachable, "tests/stream_causes.rs"),
    (Cause::IceFailed, "crates/transport/src/whep/peer.rs"),
    (Cause::DtlsFailed, "tests/hostile_clients.rs"),
    (Cause::CodecUnavailable, "tests/stream_causes.rs"),
    (Cause::NoDecoder, "tests/whep_conformance.rs"),
    (Cause::EncoderFailed, "crates/media/src/pipeline.rs"),
    (Cause::CaptureFailed, "tests/failures.rs"),
    (Cause::DisplayBlanked, "tests/displays.rs"),
    (Cause::Minimized, "tests/stream_causes.rs"),
    (Cause::WindowUnavailable, "tests/stream_causes.rs"),
    (Cause::TargetGone, "tests/displays.rs"),
    (Cause::SessionClosed, "tests/media_socket.rs"),
    (Cause::TicketExpired, "tests/media_socket.rs"),
    (Cause::ViewerTooSlow, "tests/cli.rs"),
    (Cause::TooManyViewers, "crates/session/src/sessions.rs"),
    (Cause::GuestOffline, "tests/blocked_networks.rs"),
    (Cause::PublishRefused, "tests/publish.rs"),
    (Cause::PublishUnavailable, "tests/publish.rs"),
];

fn word(cause: Cause) -> String {
    serde_json::to_value(cause).unwrap().as_str().unwrap().to_owned()
}

#[test]
fn every_cause_has_its_place() {
    let causes = Cause::ALL.into_iter().filter(|cause| cause.kind() == Kind::Stream);
    assert!(causes.eq(TABLE.map(|row| row.0)));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (cause, file) in TABLE {
        let text = std::fs::read_to_string(root.join(file)).unwrap();
        let said = text.contains(&format!("\"{}\"", word(cause)));
        assert!(said || text.contains(&format!("Some(Cause::{cause:?})")), "{cause:?} {file}");
    }
}

/// The window of a Space, as it is streamed; what it says once something was done to the window.
async fn suspended(what: impl FnOnce(&Window)) -> Value {
    let server = Xvfb::start(Size::new(800, 600)).unwrap();
    let window = Window::open(server.display(), "Notes", "Editor", (120, 90), (320, 200));
    let gateway = Gateway::with_display(server.display());
    let mut agent = Agent::new("initialize");
    let url = gateway.http().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    let opened = agent.get("stream_endpoint", json!({ "space": "box", "app_name": "Editor" }));
    let ticket = opened["ticket"].as_str().unwrap();
    let mut socket = Socket::attach(gateway.http(), ticket).await.unwrap();
    socket.packet().await;
    what(&window);
    timeout(LONG, socket.control("lifecycle")).await.expect("nobody said so")
}

#[tokio::test]
async fn a_window_that_cannot_be_seen_says_why() {
    for (minimized, cause) in [(true, "minimized"), (false, "window_unavailable")] {
        let said = suspended(|window| window.hide(minimized)).await;
        assert_eq!((&said["event"], &said["reason"]), (&json!("suspended"), &json!(cause)));
        let error = &said["error"];
        assert_eq!((&error["kind"], &error["cause"]), (&json!("stream"), &json!(cause)), "{said}");
        assert!(error["hint"].is_string(), "{said}");
    }
}

#[test]
fn a_relay_that_is_gone_is_said_to_an_agent_and_on_the_page() {
    let mut relay = Relay::start(&[]);
    let joining = relay.joining("build-box");
    let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
    let gateway =
        Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() });
    relay.wait("build-box", true, LONG);
    let mut agent = Agent::new("initialize");
    let space = json!({ "url": relay.machine_url("build-box"), "token": TOKEN });
    agent.get("add_space", space);
    let here = gateway.viewer_url("target=test-pattern");
    let (_, page) = here.split_once("/viewer/").unwrap();
    let there = format!("{}/viewer/{page}", relay.machine_url("build-box"));
    let mut page = Script::browser("blocked.mjs", Browser::Chromium, &["cut", &there]);
    page.hear();

    relay.kill();
    let refused = agent.fail("stream_endpoint", json!({ "space": "relay:build-box" }));
    assert_eq!(
        (&refused["kind"], &refused["cause"]),
        (&json!("stream"), &json!("relay_unreachable"))
    );
    assert_eq!((&refused["retryable"], refused["hint"].is_string()), (&json!(true), true));
    // What is no stream has no such cause.
    let refused = agent.fail("list_space_windows", json!({ "space": "relay:build-box" }));
    assert_eq!((&refused["kind"], &refused["cause"]), (&json!("relay"), &Value::Null));
    page.go_on();
    let said = page.hear();
    assert_eq!(said["failure"]["code"], "relay_unreachable", "{said}");
    assert_ne!(said["failure"]["hint"], "");

    relay.start_again();
    page.go_on();
    assert_eq!(page.hear()["card"], false, "the card stayed");
}

#[tokio::test]
async fn a_session_takes_so_many_viewers() {
    const TOO_MANY: u16 = 4429;
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    let mut viewers = Vec::new();
    let code = loop {
        assert!(viewers.len() < 64, "there is no limit");
        let mut viewer = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
        let first = loop {
            match viewer.next_within(LONG).await.expect("a viewer is left in the dark") {
                Event::Packet(..) => break None,
                Event::Closed(code, _) => break Some(code),
                Event::Control(..) => {}
            }
        };
        viewers.push(viewer);
        if let Some(code) = first {
            break code;
        }
    };
    assert_eq!((viewers.len(), code), (9, TOO_MANY));
    assert_eq!(CloseCode::from_code(code), Some(CloseCode::TooManyViewers));
}

#[test]
fn a_codec_that_nobody_has_is_said() {
    let gateway = Gateway::with_test_pattern();
    let request = OpenMediaRequest { codecs: vec![99], ..Default::default() };
    let refused = gateway.call::<OpenMediaResponse>("StreamService/OpenMedia", &request);
    let info = refused.unwrap_err().info.unwrap();
    assert_eq!(info.metadata["cause"], "codec_unavailable", "{info:?}");
    assert!(info.metadata["hint"].contains("h264"), "{info:?}");
}

#[test]
fn a_window_that_never_was_is_not_found() {
    let server = Xvfb::start(Size::new(320, 200)).unwrap();
    let gateway = Gateway::with_display(server.display());
    let window = WindowRef { id: "no-such-window".to_owned(), epoch: 0 };
    let target = Some(MediaTarget { target: Some(media_target::Target::Window(window)) });
    let request = OpenMediaRequest { target, ..OpenMediaRequest::default() };
    let refused = gateway.call::<OpenMediaResponse>("StreamService/OpenMedia", &request);
    assert_eq!(refused.unwrap_err().info.unwrap().metadata["kind"], "not_found");
}

/// Who started it to encode VP8 only gets that where it can be carried, and a refusal elsewhere.
#[tokio::test]
async fn a_space_that_encodes_another_codec_offers_no_h264() {
    let arguments = &["--encoder", "vp8enc"];
    let gateway = Gateway::start(Start { test_pattern: true, arguments, ..Start::default() });
    let open = |codecs: &[MediaCodec]| {
        let target = media_target::Target::DisplayId("primary".to_owned());
        let codecs = codecs.iter().map(|&codec| codec.into()).collect();
        let target = Some(MediaTarget { target: Some(target) });
        let request = OpenMediaRequest { target, codecs, ..OpenMediaRequest::default() };
        gateway.call::<OpenMediaResponse>("StreamService/OpenMedia", &request)
    };
    let refused = open(&[MediaCodec::H264]).unwrap_err();
    let said = &refused.info.unwrap().metadata;
    assert_eq!(said["cause"], "codec_unavailable");
    assert!(said["hint"].contains("png") && !said["hint"].contains("h264"), "{said:?}");
    let opened = open(&[]).unwrap();
    assert_eq!(opened.codec(), MediaCodec::Png);
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let (header, picture) = socket.packet().await;
    assert_eq!(header["codec"], "png");
    assert!(picture.starts_with(b"\x89PNG"));
    // A player of WebRTC.
    let authorization = format!("Bearer {TOKEN}");
    let post = |codec: &str| {
        let headers = [("authorization", &*authorization), ("content-type", "application/sdp")];
        let body = offer(codec);
        let body = body.as_bytes();
        Request { method: "POST", path: "/whep", headers: &headers, body }
            .send(gateway.http())
            .unwrap()
    };
    let answered = post("VP8");
    assert_eq!(answered.status, 201, "{}", answered.text());
    assert!(answered.text().contains("VP8/90000"));
    let refused = post("H264");
    assert_eq!((refused.status, &refused.json()["cause"]), (406, &json!("no_decoder")));
}

#[test]
fn an_encoder_that_nobody_knows_is_refused_at_once() {
    let mut command = Command::new(binary());
    let folder = Folder::new("encoder");
    command.args(["serve", "--encoder", "nonsense", "--json", "--state-dir"]).arg(folder.path());
    let output = command.env("HOME", folder.path()).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["error"]["kind"], "invalid_argument", "{said}");
    assert!(said["error"]["hint"].as_str().unwrap().contains("vp8enc"), "{said}");
}
