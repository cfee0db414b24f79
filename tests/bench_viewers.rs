//! `spaceport bench viewers` on a real gateway: what it says is what happened. No times: those are a bench's.

use std::fs;
use std::process::Command;

use serde_json::Value;
use spaceport_tests::{Folder, Gateway, TOKEN, binary};

/// Runs it on `gateway` for two seconds and returns what it wrote.
fn bench(gateway: &Gateway, arguments: &[&str]) -> Value {
    let folder = Folder::new("bench");
    let (report, svg) = (folder.path().join("report.json"), folder.path().join("plot.svg"));
    let output = Command::new(binary())
        .args(["bench", "viewers", "--duration", "2", "--join-over", "1"])
        .args(["--display", "test-pattern", "--json", "--report"])
        .arg(&report)
        .arg("--svg")
        .arg(&svg)
        .args(arguments)
        .arg(format!("http://{}", gateway.http()))
        .env("SPACEPORT_TOKEN", TOKEN)
        .env("SPACEPORT_CONFIG_DIR", folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{}", String::from_utf8_lossy(&output.stdout));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(printed, written);
    let plot = fs::read_to_string(svg).unwrap();
    assert!(plot.starts_with("<svg ") && plot.contains("frames a second"), "{plot}");
    printed
}

/// Viewers on loopback all join and miss nothing, and the server is known by its process.
fn everything_comes(transport: &str, viewers: &str) {
    let gateway = Gateway::with_test_pattern();
    let report = bench(&gateway, &["--transport", transport, "--viewers", viewers]);
    let wanted: u64 = viewers.parse().unwrap();
    assert_eq!(report["joined"], wanted, "{report}");
    assert_eq!(report["failures"].as_array().map(Vec::len), Some(0), "{report}");
    assert_eq!(report["first_frame_ms"]["n"], wanted);
    let (complete, missing) = (&report["frames"]["complete"], &report["frames"]["missing"]);
    assert!(complete.as_u64().unwrap() > wanted, "{report}");
    assert_eq!(missing, 0, "{report}");
    assert!(report["latency_ms"]["n"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["server"]["pid"], gateway.pid(), "{report}");
    assert!(report["network"].is_null());
    // All have left, and their sessions are closed.
    assert_eq!(gateway.metric("spaceport_media_sessions"), 0);
}

#[test]
fn quic_viewers_get_every_frame() {
    everything_comes("quic", "10"); // more than one session takes
}

#[test]
fn webtransport_viewers_get_every_frame() {
    everything_comes("webtransport", "3");
}

#[test]
fn socket_viewers_get_every_frame() {
    everything_comes("ws", "3");
}

#[test]
fn whep_viewers_get_every_frame() {
    everything_comes("whep", "3");
}

/// On a network that loses packets some are lost, and frames come all the same.
fn some_is_lost(transport: &str) {
    let gateway = Gateway::with_test_pattern();
    let arguments = ["--transport", transport, "--viewers", "2", "--profile", "lossy5"];
    let report = bench(&gateway, &arguments);
    let down = &report["network"]["down"];
    let (packets, lost) = (down["packets"].as_u64().unwrap(), down["lost"].as_u64().unwrap());
    assert!(lost > 0 && lost < packets / 4, "{report}");
    assert_eq!(report["joined"], 2, "{report}");
    // All of them came that way, and not by another.
    let complete = report["frames"]["complete"].as_u64().unwrap();
    assert!(complete > 0 && complete < packets, "{report}");
}

#[test]
fn a_lossy_network_loses_packets_of_quic() {
    some_is_lost("quic");
}

#[test]
fn a_lossy_network_loses_packets_of_webtransport() {
    some_is_lost("webtransport");
}

#[test]
fn a_lossy_network_loses_packets_of_whep() {
    some_is_lost("whep");
}

#[test]
fn what_cannot_be_simulated_is_refused_before_anything_is_opened() {
    let output = Command::new(binary())
        .args(["bench", "viewers", "--transport", "ws", "--profile", "lte", "--agent"])
        .arg("http://127.0.0.1:1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "invalid_argument");
    assert!(error["error"]["hint"].as_str().unwrap().contains("netem"));
}

#[test]
fn a_wrong_token_is_said_at_once() {
    let gateway = Gateway::with_test_pattern();
    let folder = Folder::new("bench");
    let output = Command::new(binary())
        .args(["bench", "viewers", "--transport", "quic", "--agent"])
        .arg(format!("http://{}", gateway.http()))
        .env("SPACEPORT_TOKEN", "another")
        .env("SPACEPORT_CONFIG_DIR", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "unauthenticated");
}
