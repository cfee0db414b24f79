//! Why a stream does not come about or does not go on: each cause is provoked for real and said, here or
//! in the test that the table names.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{Agent, Event, Gateway, Socket, TOKEN, Window};
use spaceport_types::{Cause, Kind, Size};
use spaceport_wire::close::CloseCode;
use spaceport_wire::pb::{
    MediaTarget, OpenMediaRequest, OpenMediaResponse, WindowRef, media_target,
};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);

/// Where each is provoked.
const TABLE: [(Cause, &str); 17] = [
    (Cause::UdpBlocked, "tests/blocked_networks.rs"),
    (Cause::RelayUnreachable, ""),
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
    (Cause::ViewerTooSlow, ""),
    (Cause::TooManyViewers, "crates/session/src/sessions.rs"),
    (Cause::GuestOffline, "tests/blocked_networks.rs"),
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
        if !file.is_empty() {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            let said = text.contains(&format!("\"{}\"", word(cause)));
            assert!(said || text.contains(&format!("Some(Cause::{cause:?})")), "{cause:?} {file}");
        }
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
