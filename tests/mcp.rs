//! `spaceport mcp` as agents use it: through the official SDK, and byte by byte where that is too
//! polite.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{
    Agent, Folder, Gateway, Relay, Script, Socket, Start, TOKEN, Via, Window, binary,
};
use spaceport_types::Size;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn the_tools_are_those_of_the_golden_file_and_of_the_documentation() {
    let mut agent = Agent::new("initialize");
    assert_eq!(agent.started["serverInfo"]["name"], "spaceport");
    assert_eq!(agent.started["protocolVersion"], "2025-11-25");
    let tools = agent.ask(&json!({ "do": "list" }))["tools"].take();
    let golden = root().join("tests/mcp_tools.json");
    let text = format!("{tools:#}\n");
    if fs::read_to_string(&golden).unwrap_or_default() != text {
        let now = root().join("target/mcp_tools.json");
        fs::write(&now, text).unwrap();
        panic!(
            "the tools have changed; if that is meant, copy {} over {}",
            now.display(),
            golden.display()
        );
    }

    let documented = fs::read_to_string(root().join("docs/mcp.md")).unwrap();
    let rows = documented.lines().filter(|line| line.starts_with("| `"));
    let rows: Vec<_> = rows.map(documented_tool).collect();
    assert_eq!(rows, tools.as_array().unwrap().iter().map(listed_tool).collect::<Vec<_>>());
}

/// The name of a tool and its arguments, as its row of the documentation has them.
fn documented_tool(row: &str) -> (String, Vec<String>) {
    let mut cells = row.split(" | ").map(|cell| cell.replace(['|', '`', '\\', ' '], ""));
    let (name, arguments) = (cells.next().unwrap(), cells.next().unwrap());
    let arguments = arguments.split(',').filter(|it| !it.is_empty()).map(str::to_owned);
    (name, sorted(arguments.collect()))
}

/// The same of the tool itself; `*` marks what has to be given.
fn listed_tool(tool: &Value) -> (String, Vec<String>) {
    let schema = &tool["inputSchema"];
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
    let mark = |name: &String| if required.contains(&&json!(name)) { "*" } else { "" };
    let names = schema["properties"].as_object().unwrap().keys();
    let arguments = names.map(|name| format!("{name}{}", mark(name)));
    (tool["name"].as_str().unwrap().to_owned(), sorted(arguments.collect()))
}

#[tokio::test]
async fn an_agent_adds_a_space_and_watches_its_windows() {
    let server = Xvfb::start(Size::new(800, 600)).unwrap();
    let _small = Window::open(server.display(), "Find", "Editor", (20, 30), (90, 60));
    let _large = Window::open(server.display(), "Notes", "Editor", (120, 90), (333, 201));
    let gateway = Gateway::with_display(server.display());
    let mut agent = Agent::new("initialize");

    assert_eq!(agent.get("list_spaces", json!({})), json!([]));
    let url = format!("http://{}", gateway.http());
    let added = agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    assert_eq!(added["id"], format!("direct:{}", gateway.http()));
    assert_eq!(agent.get("list_spaces", json!({ "unknown": "ignored" })), json!([added]));

    let windows = agent.get("list_space_windows", json!({ "space": "box", "app_name": "editor" }));
    assert_eq!(windows.as_array().unwrap().len(), 2, "{windows}");
    let notes = &windows[0];
    let fields: Vec<_> = notes.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted = [
        "app_id",
        "app_name",
        "available",
        "bounds",
        "epoch",
        "focused",
        "on_screen",
        "pid",
        "title",
        "window_id",
    ];
    assert_eq!(sorted(fields), wanted);
    assert_eq!(
        (&notes["title"], &notes["bounds"]),
        (&json!("Notes"), &json!([120.0, 90.0, 333.0, 201.0]))
    );

    let arguments = json!({ "space": "box", "window_id": notes["window_id"], "max_fps": 10 });
    let endpoint = agent.get("stream_endpoint", arguments);
    for field in [
        "space",
        "media_session_id",
        "ws_url",
        "ticket",
        "ticket_expires_at",
        "codec",
        "wire_version",
        "frame_size",
        "needs_gateway_headers",
        "whep_url",
        "viewer_url",
        "quic",
    ] {
        assert!(!endpoint[field].is_null(), "no `{field}` in {endpoint}");
    }
    assert_eq!(endpoint["frame_size"], json!([333, 201]));
    assert_eq!((&endpoint["codec"], &endpoint["wire_version"]), (&json!("h264"), &json!(2)));
    let at = format!("ws://{}", gateway.http());
    let path = endpoint["ws_url"].as_str().unwrap().strip_prefix(&at).unwrap();
    let mut socket = Socket::open(gateway.http(), path, Via::Query, None).await.unwrap();
    let (header, frame) = socket.packet().await;
    assert_eq!((&header["width_px"], &header["keyframe"]), (&json!(333), &json!(true)));
    assert!(!frame.is_empty());

    // The whole desktop, the largest window of an app, and a page for a person.
    let desktop = agent.get("stream_endpoint", json!({ "space": "box" }));
    assert_eq!(desktop["frame_size"], json!([800, 600]));
    let window = agent.get("stream_space_window", json!({ "space": "box", "app_name": "Editor" }));
    assert_eq!(window["frame_size"], json!([333, 201]));
    let page = agent.get("open_space_viewer", json!({ "space": "box" }));
    let viewer = page["viewer_url"].as_str().unwrap();
    assert!(viewer.starts_with(&format!("{url}/viewer/#ticket=")), "{page}");

    let renamed = agent.get("rename_space", json!({ "space": "box", "name": "desk" }));
    assert_eq!(renamed["display_name"], "desk");
    let status = agent.get("stream_status", json!({ "space": "desk" }));
    assert!(status["features"].as_array().unwrap().contains(&json!("window_stream")), "{status}");
    assert!(status["limitations"].is_array(), "{status}");
    assert_eq!(agent.get("remove_space", json!({ "space": "desk" }))["id"], added["id"]);
    assert_eq!(agent.get("list_spaces", json!({})), json!([]));
}

#[test]
fn what_fails_says_why_in_one_shape() {
    let gateway = Gateway::with_test_pattern();
    let other = Gateway::with_test_pattern();
    let mut agent = Agent::new("initialize");
    let url = gateway.http().to_string();

    let wrong = agent.fail("add_space", json!({ "url": url, "token": "wrong" }));
    assert_eq!(wrong["kind"], "unauthenticated");
    // The server's own token is for nobody's Space.
    assert_eq!(agent.fail("add_space", json!({ "url": url }))["kind"], "unauthenticated");
    let unknown = agent.fail("list_space_windows", json!({ "space": "nowhere" }));
    assert_eq!((&unknown["kind"], &unknown["retryable"]), (&json!("not_found"), &json!(false)));
    assert!(unknown["hint"].is_string(), "{unknown}");
    let silent = agent.fail("add_space", json!({ "url": "127.0.0.1:1" }));
    assert_eq!(
        (&silent["kind"], &silent["retryable"]),
        (&json!("spacesd_not_available"), &json!(true))
    );

    for url in [&url, &other.http().to_string()] {
        agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    }
    let ambiguous = agent.fail("stream_endpoint", json!({ "space": "box" }));
    assert_eq!(ambiguous["kind"], "ambiguous_sandbox");
    assert!(ambiguous["context"]["ids"].as_str().unwrap().contains(&url), "{ambiguous}");

    let id = format!("direct:{url}");
    for (tool, arguments, path) in [
        ("stream_endpoint", json!({}), "space"),
        ("stream_endpoint", json!({ "space": ["box"] }), "space"),
        ("stream_endpoint", json!({ "space": id, "max_fps": "many" }), "max_fps"),
        ("stream_endpoint", json!({ "space": id, "ticket_ttl": -1 }), "ticket_ttl"),
        ("stream_space_window", json!({ "space": id }), "window_id"),
        ("add_space", json!({ "url": url, "token": 12_345_678 }), "token"),
        ("relay_register_space", json!({ "relay": url }), "machine_id"),
    ] {
        let error = agent.fail(tool, arguments);
        assert_eq!(
            (&error["kind"], &error["issues"][0]["path"]),
            (&json!("invalid_argument"), &json!(path))
        );
        assert!(!error.to_string().contains("12345678"), "a token was repeated: {error}");
    }
    for (relay, machine, kind) in [
        // A machine's address is no relay's, an id has its length, and a Space is no relay.
        (format!("http://{url}/m/build-box"), "build-box", "invalid_argument"),
        (url.clone(), "box", "invalid_argument"),
        (url, "../../build-box", "invalid_argument"),
        ("127.0.0.1:1".to_owned(), "build-box", "relay"),
    ] {
        let asked = json!({ "relay": relay, "machine_id": machine, "token": TOKEN });
        assert_eq!(agent.fail("relay_register_space", asked)["kind"], kind, "{relay} {machine}");
    }
    let direct = agent.fail("relay_unregister_space", json!({ "space": id }));
    assert_eq!(
        (&direct["kind"], &direct["context"]["provider"]),
        (&json!("wrong_provider"), &json!("direct"))
    );
    let gone = agent.fail("stream_endpoint", json!({ "space": id, "display": "nowhere" }));
    assert_eq!(
        (&gone["kind"], &gone["context"]["display"]),
        (&json!("not_found"), &json!("nowhere"))
    );

    // What is no call of a tool is an error of the protocol.
    assert_eq!(agent.call("teleport_everything", json!({}))["protocol_error"], -32602);
    // A token is asked for, and never told.
    let listed = agent.get("list_spaces", json!({}));
    assert!(!listed.to_string().contains(TOKEN));
}

#[test]
fn an_agent_moves_an_app_once_a_person_has_agreed() {
    let gateway = Gateway::with_test_pattern();
    let mut agent = Agent::new("initialize");
    let home = agent.home().to_owned();
    fs::create_dir(home.join(".claude")).unwrap();
    for (path, text) in [
        (".claude/.credentials.json", r#"{"claudeAiOauth":{}}"#),
        (".claude/settings.json", r#"{"model":"x"}"#),
        (".claude.json", "{}"),
    ] {
        fs::write(home.join(path), text).unwrap();
    }
    let url = gateway.http().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));

    let asked = json!({ "app": "claude-code", "space": "box" });
    let manifest = agent.get("teleport_manifest", asked);
    for field in ["app", "display_name", "scope", "items", "total_estimated_bytes", "notes"] {
        assert!(!manifest[field].is_null(), "no `{field}` in {manifest}");
    }
    let receiver = &manifest["receiver"];
    assert!(receiver["supported"].is_boolean() && receiver["supported_apps"].is_array());
    let items = manifest["items"].as_array().unwrap();
    let sensitive = items.iter().find(|item| item["is_sensitive"] == true).unwrap();
    let path = &sensitive["relative_path"];
    for (arguments, cause) in [
        (json!({ "space": "box", "app": "claude-code", "include": [] }), "nothing_selected"),
        (json!({ "space": "box", "app": "claude-code", "include": [path] }), "not_acknowledged"),
    ] {
        let refused = agent.fail("teleport_app", arguments);
        assert_eq!(
            (&refused["kind"], &refused["cause"]),
            (&json!("teleport_refused"), &json!(cause))
        );
    }
    let wrong = json!({ "app": "claude-code", "scope": "half" });
    assert_eq!(agent.fail("teleport_manifest", wrong)["issues"][0]["path"], "scope");

    let push = json!({
        "space": "box", "app": "claude-code", "include": [path], "acknowledge_sensitive": true,
    });
    let first = agent.get("teleport_app", push.clone());
    assert_eq!((&first["consent_required"], &first["would_send"]), (&json!(true), &json!([path])));
    assert_eq!(agent.get("teleport_app", push.clone())["request_id"], first["request_id"]);

    let approve = first["approve"].as_str().unwrap().strip_prefix("spaceport ").unwrap();
    let answer = |more: &str| says_yes(&home, &format!("{approve}{more}"));
    let (code, said) = answer(" --agent");
    assert!(code == 2 && said.contains("PROMPT_BLOCKED"), "{code}: {said}");
    assert_eq!(agent.get("teleport_app", push.clone())["consent_required"], true);
    let (code, said) = answer("");
    assert_eq!(code, 0, "{said}");
    let moved = agent.get("teleport_app", push);
    assert_eq!(moved["moved"], true, "{moved}");
    assert_eq!(moved["import_ids"].as_array().unwrap().len(), 1, "{moved}");
    assert_ne!(moved["transferred_paths"], json!([]), "{moved}");
}

/// A user with an app that is signed in, and one Space; their agent.
fn signed_in(agent: &mut Agent, gateway: &Gateway) -> Value {
    let home = agent.home().join(".claude");
    fs::create_dir(&home).unwrap();
    fs::write(home.join(".credentials.json"), r#"{"claudeAiOauth":{"accessToken":"s3cret"}}"#)
        .unwrap();
    fs::write(agent.home().join(".claude.json"), "{}").unwrap();
    let url = gateway.http().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    let manifest = agent.get("teleport_manifest", json!({ "app": "claude-code" }));
    let items = manifest["items"].as_array().unwrap();
    let secret = items.iter().find(|item| item["is_sensitive"] == true).unwrap();
    json!({
        "space": "box", "app": "claude-code", "include": [secret["relative_path"]],
        "acknowledge_sensitive": true,
    })
}

fn accepts(typed: &str) -> Value {
    json!({ "action": "accept", "content": { "answer": typed } })
}

#[test]
fn a_person_is_asked_where_their_agent_runs() {
    for lifecycle in ["initialize+person", "discover+person"] {
        let gateway = Gateway::with_test_pattern();
        let mut agent = Agent::new(lifecycle);
        let push = signed_in(&mut agent, &gateway);
        let there = gateway.home().join(".claude/.credentials.json");

        // Who closes the form has not answered; it can still be answered in a terminal.
        let closed = json!({ "action": "cancel" });
        let (open, asked) = agent.call_with("teleport_app", push.clone(), closed);
        let open: Value =
            serde_json::from_str(open["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(open["consent_required"], true, "{open}");
        let question = &asked[0];
        let message = question["message"].as_str().unwrap();
        for said in [
            "Claude Code",
            &format!("http://{}", gateway.http()),
            "can sign someone in",
            " bytes",
            "key ",
        ] {
            assert!(message.contains(said), "no `{said}` in {message}");
        }
        assert!(!message.contains("s3cret") && !message.contains(TOKEN), "{message}");
        let schema = &question["requestedSchema"];
        assert_eq!(schema["required"], json!(["answer"]), "{question}");
        assert!(schema["properties"]["answer"].get("default").is_none(), "{question}");
        // A form that is sent as it came is no answer, either.
        let empty = json!({ "action": "accept", "content": {} });
        let (open, asked) = agent.call_with("teleport_app", push.clone(), empty);
        assert!(
            open["content"][0]["text"].as_str().unwrap().contains("consent_required"),
            "{open}"
        );
        assert_eq!(asked.as_array().unwrap().len(), 1);
        assert!(!there.exists());

        let (moved, asked) = agent.call_with("teleport_app", push.clone(), accepts("yes"));
        let moved: Value =
            serde_json::from_str(moved["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(
            (&moved["moved"], asked.as_array().unwrap().len()),
            (&json!(true), 1),
            "{moved}"
        );
        assert!(there.exists());
        // A yes is good once.
        let (denied, asked) = agent.call_with("teleport_app", push.clone(), accepts("no"));
        assert_eq!(asked.as_array().unwrap().len(), 1);
        assert_eq!(denied["structuredContent"]["error"]["cause"], "declined", "{denied}");
        // A no stands, and nobody is asked again.
        let (denied, asked) = agent.call_with("teleport_app", push, accepts("yes"));
        assert_eq!(
            (&denied["structuredContent"]["error"]["cause"], &asked),
            (&json!("declined"), &json!([]))
        );

        let ledger = fs::read_dir(agent.home().join(".local/state/spaceport/teleport")).unwrap();
        let ledger = ledger
            .filter_map(Result::ok)
            .find(|it| it.file_name().to_string_lossy().starts_with("ledger"));
        let lines = fs::read_to_string(ledger.unwrap().path()).unwrap();
        assert!(lines.contains("\"by\":\"host mcp "), "{lines}");
    }
}

#[test]
fn a_button_that_says_no_is_one() {
    for lifecycle in ["initialize+person", "discover+person"] {
        let gateway = Gateway::with_test_pattern();
        let mut agent = Agent::new(lifecycle);
        let push = signed_in(&mut agent, &gateway);
        let no = json!({ "action": "decline" });
        let (denied, _) = agent.call_with("teleport_app", push, no);
        let error = &denied["structuredContent"]["error"];
        assert_eq!(
            (&error["kind"], &error["cause"]),
            (&json!("teleport_refused"), &json!("declined"))
        );
        assert!(!gateway.home().join(".claude").exists());
    }
}

/// Runs a command of spaceport in a terminal, where an agent could be, too, and answers `yes` when it
/// asks. Its exit code, and what it said.
fn says_yes(home: &Path, arguments: &str) -> (i32, String) {
    let line = format!("{} {arguments}", binary().display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("HOME", home);
    command.env_remove("SPACEPORT_STATE_DIR").env_remove("XDG_STATE_HOME");
    let mut person = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (person.stdin.take().unwrap(), person.stdout.take().unwrap());
    let (mut said, mut some) = (Vec::new(), [0; 1024]);
    let mut typed = false;
    while let read @ 1.. = screen.read(&mut some).unwrap() {
        said.extend_from_slice(&some[..read]);
        // What is typed before the question is no answer to it.
        if !typed && said.windows(10).any(|it| it == b"Type `yes`") {
            keys.write_all(b"yes\n").unwrap();
            typed = true;
        }
    }
    let code = person.wait().unwrap().code().unwrap();
    (code, String::from_utf8_lossy(&said).into_owned())
}

/// Everything that an agent is for, over MCP alone; but for a person's yes, which is theirs.
#[tokio::test]
async fn an_agent_does_its_whole_job() {
    let server = Xvfb::start(Size::new(800, 600)).unwrap();
    let _window = Window::open(server.display(), "Notes", "Editor", (120, 90), (333, 201));
    let gateway = Gateway::with_display(server.display());
    let mut agent = Agent::new("initialize");
    let home = agent.home().to_owned();
    fs::create_dir(home.join(".claude")).unwrap();
    let secret = r#"{"claudeAiOauth":{"accessToken":"s3cret"}}"#;
    fs::write(home.join(".claude/.credentials.json"), secret).unwrap();
    fs::write(home.join(".claude.json"), "{}").unwrap();
    fs::write(home.join("task.md"), "what to do").unwrap();
    let url = gateway.http().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN }));

    // What is there.
    let space = agent.get("list_spaces", json!({}))[0]["id"].take();
    let windows = agent.get("list_space_windows", json!({ "space": space }));
    let notes = &windows[0]["window_id"];
    // What it looks like.
    let endpoint = agent.get("stream_endpoint", json!({ "space": space, "window_id": notes }));
    let at = format!("ws://{}", gateway.http());
    let path = endpoint["ws_url"].as_str().unwrap().strip_prefix(&at).unwrap();
    let mut socket = Socket::open(gateway.http(), path, Via::Query, None).await.unwrap();
    let (header, frame) = socket.packet().await;
    assert!(header["keyframe"] == true && !frame.is_empty(), "{header}");
    socket.leave().await;
    // What it needs.
    let sent = agent.get("send_file", json!({ "space": space, "path": "~/task.md" }));
    assert_eq!(fs::read_to_string(sent["dest"].as_str().unwrap()).unwrap(), "what to do");

    // Whom it works as.
    let manifest = agent.get("teleport_manifest", json!({ "app": "claude-code", "space": space }));
    assert_eq!(manifest["receiver"]["supported"], true, "{manifest}");
    let items = manifest["items"].as_array().unwrap();
    let credentials = items.iter().find(|item| item["is_sensitive"] == true).unwrap();
    let include = json!([credentials["relative_path"]]);
    let push = |acknowledged: bool, id: &Value| {
        json!({
            "space": space, "app": "claude-code", "include": include,
            "acknowledge_sensitive": acknowledged, "request_id": id,
        })
    };
    let refused = agent.fail("teleport_app", push(false, &Value::Null));
    assert_eq!(refused["cause"], "not_acknowledged");
    let asked = agent.get("teleport_app", push(true, &Value::Null));
    assert_eq!(asked["consent_required"], true);
    let id = &asked["request_id"];
    // Asking again is no yes, and neither is another request's name.
    assert_eq!(agent.get("teleport_app", push(true, id))["consent_required"], true);
    let approve = asked["approve"].as_str().unwrap().strip_prefix("spaceport ").unwrap();
    let (code, said) = says_yes(&home, approve);
    assert_eq!(code, 0, "{said}");
    let receipt = agent.get("teleport_app", push(true, id));
    assert_eq!(receipt["moved"], true, "{receipt}");
    assert_eq!(receipt["transferred_paths"].as_array().unwrap().len(), 1, "{receipt}");
    assert_eq!(receipt["import_ids"].as_array().unwrap().len(), 1, "{receipt}");
    let there = fs::read_to_string(gateway.home().join(".claude/.credentials.json")).unwrap();
    assert_eq!(there, secret, "it is signed in there");
    assert!(!receipt.to_string().contains("s3cret"), "and nobody was told how");
}

#[tokio::test]
async fn an_agent_works_with_a_space_behind_a_relay() {
    let relay = Relay::start(&[]);
    let joining = relay.joining("build-box");
    let arguments: Vec<_> = joining.iter().map(String::as_str).collect();
    let start = Start { test_pattern: true, arguments: &arguments, ..Start::default() };
    let gateway = Gateway::start(start);
    relay.wait("build-box", true, Duration::from_secs(20));
    let mut agent = Agent::new("initialize");
    let register = |token: &str| json!({ "relay": relay.url(), "machine_id": "build-box", "token": token, "name": "far" });
    // The relay lets anybody ask; the Space lets in who has its token.
    assert_eq!(agent.fail("relay_register_space", register("wrong"))["kind"], "unauthenticated");
    let far = agent.get("relay_register_space", register(TOKEN));
    assert_eq!(
        (&far["id"], &far["provider"], &far["name"]),
        (&json!("relay:build-box"), &json!("relay"), &json!("far"))
    );
    assert_eq!(agent.get("list_spaces", json!({})), json!([far]));
    assert_eq!(far["power_state"], "running");
    let status = agent.get("stream_status", json!({ "space": "build-box" }));
    assert!(status["features"].as_array().unwrap().contains(&json!("desktop_stream")), "{status}");
    let endpoint = agent.get("stream_endpoint", json!({ "space": "far" }));
    let at = format!("ws://{}", relay.http());
    let path = endpoint["ws_url"].as_str().unwrap().strip_prefix(&at).unwrap();
    assert!(path.starts_with("/m/build-box/media?"), "{endpoint}");
    let mut socket = Socket::open(relay.http(), path, Via::Query, None).await.unwrap();
    let (header, frame) = socket.packet().await;
    assert!(header["keyframe"] == true && !frame.is_empty(), "{header}");
    socket.leave().await;
    // A person names it by its address.
    let mut command = Command::new(binary());
    command.args(["spaces", "status", &relay.machine_url("build-box"), "--json"]);
    command.env("SPACEPORT_TOKEN", TOKEN).env("SPACEPORT_CONFIG_DIR", agent.home().join("another"));
    let said: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!((&said["id"], &said["provider"]), (&json!("relay:build-box"), &json!("relay")));

    drop(gateway);
    relay.wait("build-box", false, Duration::from_secs(20));
    let gone = agent.fail("stream_status", json!({ "space": "far" }));
    assert_eq!((&gone["kind"], &gone["retryable"]), (&json!("relay"), &json!(true)), "{gone}");
    // The list says so, too, and says so of no other.
    let direct = Gateway::with_test_pattern();
    let url = direct.http().to_string();
    let direct = agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "near" }));
    let listed = agent.get("list_spaces", json!({}));
    assert_eq!((&listed[0]["id"], &listed[0]["power_state"]), (&far["id"], &json!("")));
    assert!(listed[0]["stop_reason"].as_str().unwrap().contains("not connected"), "{listed}");
    assert_eq!(listed[1], direct);
    agent.get("remove_space", json!({ "space": "near" }));
    let forgotten = agent.get("relay_unregister_space", json!({ "space": "far" }));
    assert_eq!(forgotten["id"], "relay:build-box");
    assert_eq!(agent.get("list_spaces", json!({})), json!([]));
}

#[test]
fn a_client_of_the_newest_protocol_needs_no_handshake() {
    let gateway = Gateway::with_test_pattern();
    let mut agent = Agent::new("discover");
    assert_eq!(agent.started["protocolVersion"], "2026-07-28");
    let url = gateway.http().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    let endpoint = agent.get("stream_endpoint", json!({ "space": "box" }));
    assert_eq!(endpoint["frame_size"], json!([1280, 720]));
    assert_eq!(agent.fail("stream_status", json!({ "space": "x" }))["kind"], "not_found");
}

#[test]
fn a_rude_client_is_answered_and_does_not_end_the_conversation() {
    let folder = Folder::new("mcp");
    let mut command = Command::new(binary());
    command.arg("mcp").env("SPACEPORT_CONFIG_DIR", folder.path());
    let mut server = Script::spawn(command);
    let mut ask = |id: u32, method: &str, params: Value| {
        server.tell(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let answer = server.hear();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    };
    let started = ask(
        1,
        "initialize",
        json!({
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "rude", "version": "0" },
        }),
    );
    assert_eq!(started["result"]["protocolVersion"], "2025-06-18");
    let code = |answer: &Value| answer["error"]["code"].clone();
    assert_eq!(
        code(&ask(2, "tools/call", json!({ "name": "list_spaces", "arguments": [] }))),
        -32602
    );
    assert_eq!(code(&ask(3, "tools/call", json!({}))), -32602);
    assert_eq!(code(&ask(4, "no/such/method", json!({}))), -32601);
    assert_eq!(code(&ask(5, "tools/call", json!({ "name": "x".repeat(100_000) }))), -32602);
    let listed = ask(6, "tools/call", json!({ "name": "list_spaces" }));
    assert_eq!(listed["result"]["content"][0]["text"], "[]");
    assert!(listed["result"].get("structuredContent").is_none());
    // What is no message at all does not end it, either.
    server.tell(&json!(["garbage"]));
    server.tell(&json!("x".repeat(2 << 20)));
    server.tell(&json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" }));
    let answer = std::iter::repeat_with(|| server.hear()).find(|answer| answer["id"] == 7).unwrap();
    assert!(answer["result"].is_object(), "{answer}");
    // Nothing of a later protocol in answers of an earlier one.
    assert!(listed["result"].get("resultType").is_none(), "{listed}");

    // A host that says nothing and goes is no failure.
    let mut silent = Command::new(binary());
    assert!(silent.arg("mcp").stdin(Stdio::null()).status().unwrap().success());
}

fn sorted<T: Ord>(mut list: Vec<T>) -> Vec<T> {
    list.sort();
    list
}
