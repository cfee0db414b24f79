//! The published Cua client, unchanged, on a real gateway.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use spaceport_testkit::Xvfb;
use spaceport_tests::{Folder, Gateway, Script, TOKEN, Window};
use spaceport_types::Size;

#[test]
fn the_published_client_adds_lists_streams_and_closes() {
    let gateway = Gateway::with_test_pattern();
    let home = Folder::new("cua");
    let mut client = client(&gateway, &home, TOKEN);

    let added = client.hear();
    assert_eq!(added["step"], "added", "{added}");
    let displays = client.hear();
    assert_eq!(
        displays["displays"],
        json!([{ "id": "test-pattern", "primary": true, "size": [1280, 720] }])
    );
    let windows = client.hear();
    // A list, or the reason why there is none, in the client's own terms.
    assert!(windows["windows"].is_u64() || windows["error"] == "CapabilityMissing", "{windows}");
    let opened = client.hear();
    assert_eq!(
        (&opened["codec"], &opened["wire_version"]),
        (&json!("h264"), &json!(2)),
        "{opened}"
    );
    assert_eq!(opened["size"], json!([1280, 720]));
    let watched = client.hear();
    let frames = watched["frames"].as_array().expect("frames");
    assert!(frames.len() >= 10, "{watched}");
    assert_eq!(frames[0]["keyframe"], true);
    for pair in frames.windows(2) {
        assert!(pair[0]["sequence"].as_u64() < pair[1]["sequence"].as_u64(), "{pair:?}");
    }
    assert_eq!(watched["events"], json!(["hello", "session_opened"]));
    assert_eq!(watched["malformed"], 0);
    let asked = client.hear();
    assert_eq!(asked["keyframe"], true, "a keyframe that was asked for did not come: {asked}");
    let closed = client.hear();
    assert_eq!(closed["close_code"], 4404, "{closed}");
    let again = client.hear();
    assert_eq!(again["error"], "NotFound", "a second close: {again}");
    let refused = client.hear();
    assert_eq!(refused["error"], "Transport", "an attach after the close: {refused}");
    assert!(refused["message"].as_str().unwrap().contains("410"), "{refused}");
}

#[test]
fn the_published_client_is_told_that_its_token_is_wrong() {
    let gateway = Gateway::with_test_pattern();
    let home = Folder::new("cua");
    let added = client(&gateway, &home, "wrong").hear();
    assert_eq!(added["error"], "Unauthenticated", "{added}");
}

#[test]
fn the_published_client_streams_windows_and_sees_one_close() {
    let server = Xvfb::start(Size::new(1024, 768)).unwrap();
    let gone = Window::open(server.display(), "Notes", "Editor", (20, 30), (333, 201));
    let _front = Window::open(server.display(), "Journal", "Reader", (500, 300), (260, 180));
    let gateway = Gateway::with_display(server.display());
    let home = Folder::new("cua");
    let mut client = script("cua_windows.py", &gateway, &home, TOKEN);

    let listed = client.hear();
    assert_eq!(
        listed["windows"],
        json!([
            { "epoch": 1, "title": "Journal", "app": "Reader" },
            { "epoch": 1, "title": "Notes", "app": "Editor" },
        ]),
        "front to back"
    );
    for size in [json!([260, 180]), json!([333, 201])] {
        let streamed = client.hear();
        assert_eq!(streamed["size"], size, "{streamed}");
        assert_eq!(streamed["first"]["keyframe"], true, "{streamed}");
    }
    let unknown = client.hear();
    assert!(unknown["message"].as_str().unwrap().contains("w999"), "{unknown}");
    drop(client.hear());
    drop(gone);
    client.go_on();
    let closed = client.hear();
    assert_eq!((&closed["close_code"], &closed["lifecycle"]), (&json!(4410), &json!("closed")));
    assert_eq!(client.hear()["other"], "still plays");
}

/// `e2e/cua_client.py` in the environment that holds the client.
fn client(gateway: &Gateway, home: &Folder, token: &str) -> Script {
    script("cua_client.py", gateway, home, token)
}

fn script(name: &str, gateway: &Gateway, home: &Folder, token: &str) -> Script {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let python = root.join("target/venv-cua/bin/python");
    assert!(
        python.exists(),
        "install the client first: python3 -m venv target/venv-cua && \
         target/venv-cua/bin/pip install -r tests/e2e/requirements.txt"
    );
    let mut command = Command::new(python);
    command
        .arg(root.join("tests/e2e").join(name))
        .args([&format!("http://{}", gateway.http()), token])
        .arg(home.path())
        .envs([("DO_NOT_TRACK", "1"), ("CUA_TELEMETRY", "0"), ("CUA_MESH", "off")])
        .envs([("NO_PROXY", "127.0.0.1"), ("no_proxy", "127.0.0.1")])
        .env("CUA_HOME", home.path());
    Script::spawn(command)
}
