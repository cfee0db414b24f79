//! An independent client of MCP, the official SDK, calls every tool over every transport, and each does
//! what it is for.
//!
//! Which tools there are is asked of the server: one that is added and not called here fails.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{Agent, Beside, Gateway, Relay, Request, Socket, Start, TOKEN, Via, Window};
use spaceport_types::Size;

/// Every field of a Space, as the public contract has them.
const SPACE: &str = "added_at arch cloud cloud_delete cloud_place created_at_unix depth display_name \
    durable egress egress_enforced expires_at_unix features host host_name id image image_digest \
    kind labels name network network_note network_notice_pending on_expire os os_name \
    os_pretty_name parent power power_state provider root services sharing spacesd_version \
    stop_reason volumes";

const ENDPOINT: &str = "codec frame_size media_session_id needs_gateway_headers quic space ticket \
    ticket_expires_at viewer_url webtransport_url whep_url wire_version ws_url";

/// Asserts that `value` is an object with these fields, and no others.
fn has(value: &Value, fields: &str) {
    let found = value.as_object().unwrap_or_else(|| panic!("no object: {value}"));
    let found: BTreeSet<_> = found.keys().map(String::as_str).collect();
    assert_eq!(found, fields.split_whitespace().collect(), "{value}");
}

/// An agent, and the tools that it has not called with success yet.
struct Driver {
    agent: Agent,
    uncalled: BTreeSet<String>,
}

impl Driver {
    fn new(mut agent: Agent) -> Self {
        let listed = agent.ask(&json!({ "do": "list" }));
        let names = listed["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]);
        let uncalled = names.map(|name| name.as_str().unwrap().to_owned()).collect();
        Self { agent, uncalled }
    }

    fn get(&mut self, tool: &str, arguments: Value) -> Value {
        self.called(tool);
        self.agent.get(tool, arguments)
    }

    fn called(&mut self, tool: &str) {
        self.uncalled.remove(tool);
    }

    fn done(&self) {
        assert_eq!(self.uncalled, BTreeSet::new(), "no call of these here: add one");
    }
}

/// A desktop with one window, which a relay reaches, too.
struct World {
    gateway: Gateway,
    relay: Relay,
    _window: Window,
    _server: Xvfb,
}

const MACHINE: &str = "build-box";

impl World {
    fn new() -> Self {
        let server = Xvfb::start(Size::new(800, 600)).unwrap();
        let window = Window::open(server.display(), "Notes", "Editor", (120, 90), (333, 201));
        let relay = Relay::start(&[]);
        let joining = relay.joining(MACHINE);
        let arguments: Vec<_> = joining.iter().map(String::as_str).collect();
        let display = Some(server.display());
        let gateway = Gateway::start(Start { display, arguments: &arguments, ..Start::default() });
        relay.wait(MACHINE, true, Duration::from_secs(20));
        Self { gateway, relay, _window: window, _server: server }
    }

    fn there(&self) -> PathBuf {
        self.gateway.home().canonicalize().unwrap()
    }
}

/// What a stream begins with is a picture of this size.
async fn shows(at: SocketAddr, url: &str, size: [u32; 2]) {
    let path = url.strip_prefix(&format!("ws://{at}")).unwrap_or_else(|| panic!("{url}"));
    let mut socket = Socket::open(at, path, Via::Query, None).await.unwrap();
    let (header, frame) = socket.packet().await;
    assert_eq!(json!([header["width_px"], header["height_px"]]), json!(size), "{header}");
    assert!(header["keyframe"] == true && !frame.is_empty(), "{header}");
    socket.leave().await;
}

/// Calls the tools that work in one Space. `of` adds what names it to the arguments, where they need
/// that.
async fn drive_space(driver: &mut Driver, world: &World, of: fn(Value) -> Value) {
    let at = world.gateway.http();
    let status = driver.get("stream_status", of(json!({})));
    has(&status, &format!("{SPACE} limitations"));
    assert!(status["features"].as_array().unwrap().contains(&json!("window_stream")), "{status}");

    let windows = driver.get("list_space_windows", of(json!({ "app_name": "Editor" })));
    let notes = &windows[0];
    has(notes, "app_id app_name available bounds epoch focused on_screen pid title window_id");
    assert_eq!(notes["title"], "Notes");

    let endpoint = driver.get("stream_endpoint", of(json!({})));
    has(&endpoint, ENDPOINT);
    shows(at, endpoint["ws_url"].as_str().unwrap(), [800, 600]).await;
    let window = json!({ "window_id": notes["window_id"], "max_fps": 5, "ticket_ttl": 30 });
    let endpoint = driver.get("stream_space_window", of(window));
    has(&endpoint, ENDPOINT);
    shows(at, endpoint["ws_url"].as_str().unwrap(), [333, 201]).await;

    let page = driver.get("open_space_viewer", of(json!({ "display": "primary" })));
    has(&page, "media_session_id space ticket_expires_at viewer_url");
    let url = page["viewer_url"].as_str().unwrap();
    let (html, ticket) = url.split_once("#ticket=").unwrap();
    let path = html.strip_prefix(&format!("http://{at}")).unwrap();
    let shown = Request { method: "GET", path, headers: &[], body: b"" }.send(at).unwrap();
    assert_eq!(shown.status, 200);
    Socket::attach(at, ticket).await.unwrap().leave().await;

    let note = json!({ "path": "~/notes/a.md", "content": "# Ü\n" });
    let written = driver.get("space_write", of(note));
    has(&written, "bytes path sha256 space verified");
    assert_eq!(fs::read_to_string(world.there().join("notes/a.md")).unwrap(), "# Ü\n");
}

fn in_box(mut arguments: Value) -> Value {
    arguments["space"] = json!("box");
    arguments
}

/// Calls every tool of a server beside an agent, whose user has this home, and can be asked.
async fn drive(agent: Agent, home: &Path) {
    let world = World::new();
    let mut driver = Driver::new(agent);
    let url = world.gateway.http().to_string();
    let added = driver.get("add_space", json!({ "url": url, "token": TOKEN, "name": "desk" }));
    has(&added, SPACE);
    let renamed = driver.get("rename_space", json!({ "space": "desk", "name": "box" }));
    has(&renamed, SPACE);
    assert_eq!(renamed["display_name"], "box");
    assert_eq!(driver.get("list_spaces", json!({})), json!([renamed]));
    drive_space(&mut driver, &world, in_box).await;

    fs::write(home.join("task.md"), "what to do").unwrap();
    let task = |more: Value| {
        let mut arguments = in_box(json!({ "path": "~/task.md" }));
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        arguments
    };
    let sent = driver.get("send_file", task(json!({ "target_directory": "in" })));
    has(
        &sent,
        "bytes dest destination files kind respect_ignorefiles skipped_by_guest \
         skipped_by_ignorefiles skipped_count source verified",
    );
    assert_eq!(sent["dest"], world.there().join("Downloads/in/task.md").to_str().unwrap());
    assert_eq!(fs::read_to_string(sent["dest"].as_str().unwrap()).unwrap(), "what to do");
    let uploaded = driver.get("upload", task(json!({ "dest": "~/tasks/task.md" })));
    has(&uploaded, "bytes dest directories files kind sha256 source verified");
    assert_eq!(fs::read_to_string(world.there().join("tasks/task.md")).unwrap(), "what to do");
    let back = json!({ "path": "~/tasks/task.md", "dest": "~/back" });
    let downloaded = driver.get("download", in_box(back));
    has(&downloaded, "bytes dest files kind sha256 source verified");
    assert_eq!(downloaded["sha256"], uploaded["sha256"]);
    assert_eq!(fs::read_to_string(home.join("back/task.md")).unwrap(), "what to do");

    fs::create_dir(home.join(".claude")).unwrap();
    fs::write(home.join(".claude/settings.json"), r#"{"model":"x"}"#).unwrap();
    let app = json!({ "app": "claude-code" });
    let manifest = driver.get("teleport_manifest", in_box(app.clone()));
    has(
        &manifest,
        "app app_version display_name items notes profile receiver scope total_estimated_bytes",
    );
    // Where the app is not installed, it says so in `limitation`.
    assert_eq!(manifest["receiver"]["supported"], true, "{manifest}");
    has(
        &manifest["items"][0],
        "estimated_bytes is_checked_by_default is_sensitive label relative_path",
    );
    driver.called("teleport_app");
    let yes = json!({ "action": "accept", "content": { "answer": "yes" } });
    let (result, asked) = driver.agent.call_with("teleport_app", in_box(app), yes);
    assert_eq!(asked.as_array().unwrap().len(), 1, "{result}");
    let receipt: Value =
        serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    has(&receipt, "expires_ms import_ids moved receipt transferred_paths");
    assert_eq!(receipt["moved"], true);
    assert!(world.there().join(".claude/settings.json").exists());

    let far = json!({
        "relay": world.relay.url(), "machine_id": MACHINE, "token": TOKEN, "name": "far",
    });
    let far = driver.get("relay_register_space", far);
    has(&far, SPACE);
    assert_eq!(driver.get("list_spaces", json!({})).as_array().unwrap().len(), 2);
    let gone = driver.get("relay_unregister_space", json!({ "space": "far" }));
    assert_eq!(gone["id"], far["id"]);
    let gone = driver.get("remove_space", json!({ "space": "box" }));
    assert_eq!(gone["id"], added["id"]);
    assert_eq!(driver.get("list_spaces", json!({})), json!([]));
    driver.done();
}

#[tokio::test]
async fn over_stdio() {
    for lifecycle in ["initialize+person", "discover+person"] {
        let agent = Agent::new(lifecycle);
        let home = agent.home().to_owned();
        drive(agent, &home).await;
    }
}

#[tokio::test]
async fn over_http() {
    for lifecycle in ["initialize+person", "discover+person"] {
        let beside = Beside::start(&["--consent", "client"]);
        drive(beside.agent(lifecycle), beside.home()).await;
    }
}

/// A Space's own endpoint takes no `space`, and has the tools that need nothing beside it.
#[tokio::test]
async fn over_http_to_the_space_itself() {
    for lifecycle in ["initialize", "discover"] {
        let world = World::new();
        let url = format!("http://{}/mcp", world.gateway.http());
        let mut driver = Driver::new(Agent::over_http(lifecycle, &url, TOKEN));
        drive_space(&mut driver, &world, |arguments| arguments).await;
        driver.done();
    }
}

#[test]
fn both_transports_have_the_same_tools() {
    let list = json!({ "do": "list" });
    let beside = Beside::start(&[]);
    let over_http = beside.agent("initialize").ask(&list)["tools"].take();
    assert_eq!(over_http, Agent::new("initialize").ask(&list)["tools"]);
}
