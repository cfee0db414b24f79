//! What goes wrong around a gateway is said in words, and the gateway lives on.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use spaceport_testkit::Xvfb;
use spaceport_tests::{
    Event, Folder, Gateway, Request, Screen, Server, Socket, Start, TOKEN, binary,
};
use spaceport_types::Size;
use spaceport_wire::pb::{
    GetCapabilitiesRequest, GetCapabilitiesResponse, MediaTarget, OpenMediaRequest,
    OpenMediaResponse, media_target,
};
use tokio::time::timeout;

/// No server has it: they are given out from :0 on, and machines have few.
const NO_DISPLAY: &str = ":4711";

const NOT_FOUND: i32 = 5;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

#[test]
fn without_an_x_server_the_gateway_runs_and_says_what_is_missing() {
    let mut gateway = Gateway::with_display(NO_DISPLAY);
    let capabilities: GetCapabilitiesResponse =
        gateway.call("SystemService/GetCapabilities", &GetCapabilitiesRequest {}).unwrap();
    let desktop = capabilities.features.iter().find(|feature| feature.name == "desktop_stream");
    let desktop = desktop.unwrap();
    assert!(!desktop.supported);
    assert!(desktop.limitation.contains(NO_DISPLAY), "{}", desktop.limitation);

    let request = OpenMediaRequest::default();
    let refused = gateway.call::<OpenMediaResponse>("StreamService/OpenMedia", &request);
    assert_eq!(refused.unwrap_err().code, UNAVAILABLE);

    let opened = open_viewer(&gateway, "{}");
    assert_eq!(opened["kind"], "stream");
    assert_eq!(opened["cause"], "capture_failed");
    assert_ne!(opened["hint"], Value::Null);
    assert!(gateway.is_alive());
}

#[test]
fn an_unknown_display_is_named() {
    let gateway = Gateway::with_test_pattern();
    let target = media_target::Target::DisplayId("nowhere".to_owned());
    let request = OpenMediaRequest {
        target: Some(MediaTarget { target: Some(target) }),
        ..OpenMediaRequest::default()
    };
    let refused =
        gateway.call::<OpenMediaResponse>("StreamService/OpenMedia", &request).unwrap_err();
    assert_eq!(refused.code, NOT_FOUND);
    assert!(refused.message.contains("nowhere"), "{}", refused.message);

    let opened = open_viewer(&gateway, r#"{"display_id":"nowhere"}"#);
    assert_eq!(opened["kind"], "not_found");
    assert_eq!(opened["context"]["known"], "test-pattern");
}

/// The answer to what the viewer page asks.
fn open_viewer(gateway: &Gateway, body: &str) -> Value {
    let url = gateway.viewer_url("");
    let (_, ticket) = url.split_once("#ticket=").unwrap();
    let headers =
        [("authorization", &*format!("Bearer {ticket}")), ("content-type", "application/json")];
    let request =
        Request { method: "POST", path: "/viewer/open", headers: &headers, body: body.as_bytes() };
    request.send(gateway.http()).unwrap().json()
}

#[test]
fn a_wrong_token_is_code_16_and_opens_nothing() {
    let gateway = Gateway::with_test_pattern();
    for token in ["wrong", ""] {
        let refused = gateway
            .call_as::<GetCapabilitiesResponse>(
                token,
                "SystemService/GetCapabilities",
                &GetCapabilitiesRequest {},
            )
            .unwrap_err();
        assert_eq!(refused.code, UNAUTHENTICATED, "`{token}`");
    }
    let log = gateway.log();
    assert!(!log.contains(TOKEN), "the token is in the log");
}

#[tokio::test]
async fn an_x_server_that_dies_and_comes_back_is_shown_again() {
    let mut xvfb = Xvfb::start(Size::new(640, 480)).unwrap();
    let display = xvfb.display().to_owned();
    Screen::connect(&display).paint(0x20_60_a0, 1);
    let mut gateway = Gateway::with_display(&display);
    let opened = gateway.open("");
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let last = socket.packet().await.0["sequence"].as_u64().unwrap();

    xvfb.kill().unwrap();
    let lifecycle = timeout(Duration::from_secs(5), socket.control("lifecycle")).await;
    let lifecycle = lifecycle.expect("the viewer was left in the dark");
    assert_eq!(lifecycle["event"], "suspended");
    assert_eq!(lifecycle["reason"], "capture_failed");
    assert_ne!(lifecycle["error"]["message"], Value::Null);
    assert!(gateway.is_alive());
    drop(xvfb);

    let _again = Server::start(&display, Size::new(640, 480));
    Screen::connect(&display).paint(0xa0_60_20, 2);
    let picture = async {
        loop {
            match socket.next_within(Duration::from_secs(15)).await.expect("nothing came") {
                Event::Packet(header, _) => return header,
                Event::Control(..) => {}
                Event::Closed(code, reason) => panic!("closed: {code} {reason}"),
            }
        }
    };
    let header = timeout(Duration::from_secs(15), picture).await.expect("no picture came back");
    assert_eq!(header["keyframe"], true);
    assert!(header["sequence"].as_u64().unwrap() > last);
    // A new viewer finds it, too.
    let mut other = Socket::attach(gateway.http(), &gateway.open("").ticket).await.unwrap();
    assert_eq!(other.packet().await.0["keyframe"], true);
    assert!(gateway.is_alive());
}

#[test]
fn beyond_loopback_a_token_is_demanded() {
    let folder = Folder::new("beyond");
    let output = Command::new(binary())
        .args([
            "serve",
            "--listen",
            "0.0.0.0:0",
            "--quic-port",
            "0",
            "--webrtc-port",
            "0",
            "--test-pattern",
            "--json",
        ])
        .arg("--state-dir")
        .arg(folder.path())
        .env_remove("SPACEPORT_TOKEN")
        .env_remove("DISPLAY")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "precondition_failed exits with 4");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["error"]["kind"], "precondition_failed");
    assert!(report["error"]["hint"].as_str().unwrap().contains("SPACEPORT_TOKEN"));
}

#[test]
fn two_gateways_do_not_share_a_port() {
    let first = Gateway::with_test_pattern();
    let folder = Folder::new("second");
    let output = Command::new(binary())
        .args([
            "serve",
            "--quic-port",
            "0",
            "--webrtc-port",
            "0",
            "--test-pattern",
            "--json",
            "--listen",
        ])
        .arg(first.http().to_string())
        .arg("--state-dir")
        .arg(folder.path())
        .env("SPACEPORT_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["error"]["kind"], "io");
    let message = report["error"]["message"].as_str().unwrap();
    assert!(message.contains(&first.http().to_string()), "{message}");
}

#[test]
fn a_gateway_that_is_asked_to_end_ends_with_its_viewers() {
    let gateway = Gateway::start(Start { test_pattern: true, ..Start::default() });
    let opened = gateway.open("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
        socket.packet().await;
        let pid = rustix::process::Pid::from_raw(gateway.pid().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let (code, _) = timeout(Duration::from_secs(3), socket.closed()).await.unwrap();
        // Going away (RFC 6455 §7.4.1), or a close of ours: never a line that is simply cut.
        assert_ne!(code, 1006);
    });
    let mut gateway = gateway;
    spaceport_tests::wait_until("it does not end", Duration::from_secs(3), || !gateway.is_alive());
}
