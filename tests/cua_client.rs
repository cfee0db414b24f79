//! The published Cua client, unchanged, on a real gateway.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use spaceport_testkit::Xvfb;
use spaceport_tests::{Folder, Gateway, Script, TOKEN, Window, cua};
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

#[test]
fn the_published_client_sends_uploads_downloads_and_writes() {
    let gateway = Gateway::with_test_pattern();
    let home = Folder::new("cua");
    let guest = gateway.home().canonicalize().unwrap();
    let large: Vec<u8> = (0..9_000_001_u32).map(|n| (n.wrapping_mul(n) >> 5) as u8).collect();
    let sources = [
        ("notes.md", &b"notes"[..]),
        ("large", &large),
        ("project/.gitignore", b"*.log\n/build/\n"),
        ("project/a.log", b"log"),
        ("project/build/out", b"out"),
        ("project/src/main.rs", b"fn main() {}"),
        ("project/src/.gitignore", b"!keep.log\n"),
        ("project/src/keep.log", b"kept"),
        ("project/src/empty", b""),
    ];
    for (path, data) in sources {
        let path = home.path().join("source").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, data).unwrap();
    }
    fs::create_dir(home.path().join("source/project/none")).unwrap();
    let script = home.path().join("source/project/src/main.rs");
    fs::set_permissions(script, PermissionsExt::from_mode(0o751)).unwrap();
    let mut client = files_script(&gateway, &home, &guest);
    let downloads = guest.join("Downloads");
    let at = |path: &str| downloads.join(path).display().to_string();
    let read = |path: &str| fs::read(guest.join(path)).unwrap();

    let file = client.hear();
    assert_eq!(file["dest"], at("notes.md"), "{file}");
    assert_eq!(file["verified"], true);
    let renamed = client.hear();
    assert_eq!(renamed["dest"], at("notes (1).md"), "{renamed}");
    assert_eq!(read("Downloads/notes (1).md"), b"rename");
    let overwritten = client.hear();
    assert_eq!(overwritten["dest"], at("notes.md"), "{overwritten}");
    let skipped = client.hear();
    assert_eq!(skipped["skipped"], json!(["notes.md"]), "{skipped}");
    assert_eq!(read("Downloads/notes.md"), b"overwrite");

    let folder = client.hear();
    assert_eq!(folder["dest"], at("in/here/project"), "{folder}");
    assert_eq!(read("Downloads/in/here/project/src/keep.log"), b"kept");
    assert_eq!(read("Downloads/in/here/project/src/empty"), b"");
    assert!(downloads.join("in/here/project/none").is_dir());
    assert!(!downloads.join("in/here/project/a.log").exists());
    assert!(!downloads.join("in/here/project/build").exists());
    let mode = fs::metadata(downloads.join("in/here/project/src/main.rs")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o7777, 0o751);
    let everything = client.hear();
    assert_eq!(everything["ignored"], json!([]), "{everything}");
    assert_eq!(read("Downloads/project/build/out"), b"out");
    for path in ["a/notes.md", "b/notes.md"] {
        assert_eq!(client.hear()["dest"], at(path));
    }
    let refused = client.hear();
    assert!(refused["error"].is_string(), "{refused}");
    let sent = client.hear();
    assert_eq!(sent["dest"], at("large"), "{sent}");
    assert!(read("Downloads/large") == large);

    let uploaded = client.hear();
    assert_eq!(uploaded["dest"], guest.join("large").display().to_string(), "{uploaded}");
    assert!(read("large") == large);
    let folder = client.hear();
    assert_eq!(folder["verified"], true, "{folder}");
    assert_eq!(read("up/src/main.rs"), b"fn main() {}");
    let outside = client.hear();
    assert_eq!(outside["error"], "PermissionDenied", "{outside}");
    let back = |path: &str| fs::read(home.path().join("back").join(path)).unwrap();
    let downloaded = client.hear();
    assert_eq!(downloaded["verified"], true, "{downloaded}");
    assert!(back("large") == large);
    let downloaded = client.hear();
    assert_eq!(downloaded["verified"], true, "{downloaded}");
    assert_eq!(back("up/src/main.rs"), b"fn main() {}");
    let missing = client.hear();
    assert_eq!(missing["error"], "NotFound", "{missing}");
    let written = client.hear();
    assert_eq!(written["bytes"], 7, "{written}");
    assert_eq!(read("new/deep/file"), b"written");
    let bash = client.hear();
    assert_eq!(bash["error"], "Unsupported", "{bash}");
    let mut left: Vec<_> =
        fs::read_dir(&downloads).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["a", "b", "in", "large", "notes (1).md", "notes.md", "project"]);
}

/// `e2e/cua_client.py` in the environment that holds the client.
fn client(gateway: &Gateway, home: &Folder, token: &str) -> Script {
    script("cua_client.py", gateway, home, token)
}

/// `e2e/cua_files.py`, which is also told where the home of the Space is.
fn files_script(gateway: &Gateway, home: &Folder, guest: &Path) -> Script {
    let mut command = command("cua_files.py", gateway, home, TOKEN);
    command.arg(guest);
    Script::spawn(command)
}

fn script(name: &str, gateway: &Gateway, home: &Folder, token: &str) -> Script {
    Script::spawn(command(name, gateway, home, token))
}

fn command(name: &str, gateway: &Gateway, home: &Folder, token: &str) -> Command {
    cua(name, &format!("http://{}", gateway.http()), token, home.path())
}
