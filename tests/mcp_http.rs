//! MCP over HTTP: a Space's own endpoint, and the one beside an agent.

use std::net::SocketAddr;

use serde_json::{Value, json};
use spaceport_tests::{Agent, Answer, Beside, Gateway, Request, Socket, TOKEN, Via};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{
    "protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"rude","version":"0"}}}"#;

/// One request, with what a client of the protocol sends and `more`, of which an empty value takes
/// the header of that name away.
fn ask(at: SocketAddr, method: &str, more: &[(&str, &str)], body: &str) -> Answer {
    let authorization = format!("Bearer {TOKEN}");
    let mut headers = vec![
        ("authorization", &*authorization),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    for &(name, value) in more {
        headers.retain(|header| header.0 != name);
        if !value.is_empty() {
            headers.push((name, value));
        }
    }
    let body = body.as_bytes();
    Request { method, path: "/mcp", headers: &headers, body }.send(at).unwrap()
}

/// The names of the tools that an agent has, each with whether it wants to know which Space.
fn tools(agent: &mut Agent) -> Vec<(String, bool)> {
    let listed = agent.ask(&json!({ "do": "list" }));
    let tools = listed["tools"].as_array().unwrap().iter().map(|tool| {
        let space = &tool["inputSchema"]["properties"]["space"];
        (tool["name"].as_str().unwrap().to_owned(), !space.is_null())
    });
    tools.collect()
}

#[tokio::test]
async fn a_space_has_tools_of_its_own_for_every_protocol() {
    let gateway = Gateway::with_test_pattern();
    let url = format!("http://{}/mcp", gateway.http());
    for (lifecycle, version) in [("initialize", "2025-11-25"), ("discover", "2026-07-28")] {
        let mut agent = Agent::over_http(lifecycle, &url, TOKEN);
        assert_eq!(agent.started["protocolVersion"], version);
        let names = [
            "stream_status",
            "list_space_windows",
            "stream_endpoint",
            "stream_space_window",
            "open_space_viewer",
            "space_write",
        ];
        assert_eq!(tools(&mut agent), names.map(|name| (name.to_owned(), false)));
        assert_eq!(agent.call("list_spaces", json!({}))["protocol_error"], -32602);

        let status = agent.get("stream_status", json!({}));
        assert!(status["features"].as_array().unwrap().contains(&json!("desktop_stream")));
        // Whatever it is called, it is this one.
        let endpoint = agent.get("stream_endpoint", json!({ "space": "another" }));
        let at = format!("ws://{}", gateway.http());
        let path = endpoint["ws_url"].as_str().unwrap().strip_prefix(&at).unwrap().to_owned();
        let mut socket = Socket::open(gateway.http(), &path, Via::Query, None).await.unwrap();
        assert_eq!(socket.packet().await.0["keyframe"], true);
        let missing = agent.fail("stream_endpoint", json!({ "display": "nowhere" }));
        assert_eq!(missing["kind"], "not_found");
        let wrong = agent.fail("stream_endpoint", json!({ "max_fps": "many" }));
        assert_eq!(wrong["issues"][0]["path"], "max_fps");

        let text = json!({ "path": "~/notes/a.txt", "content": "hello" });
        let written = agent.get("space_write", text);
        assert_eq!((&written["bytes"], &written["verified"]), (&json!(5), &json!(true)));
        let path = gateway.home().join("notes/a.txt");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "hello");
    }
}

#[test]
fn what_it_answers_leads_where_the_client_came_from() {
    let gateway = Gateway::with_test_pattern();
    let name = format!("localhost:{}", gateway.http().port());
    let mut agent = Agent::over_http("discover", &format!("http://{name}/mcp"), TOKEN);
    let endpoint = agent.get("stream_endpoint", json!({}));
    for (field, start) in [("ws_url", "ws"), ("whep_url", "http"), ("viewer_url", "http")] {
        let url = endpoint[field].as_str().unwrap();
        assert!(url.starts_with(&format!("{start}://{name}/")), "{url}");
    }
}

#[test]
fn who_may_not_is_told_so() {
    let gateway = Gateway::with_test_pattern();
    let at = gateway.http();
    for wrong in ["Bearer wrong", ""] {
        let refused = ask(at, "POST", &[("authorization", wrong)], INITIALIZE);
        assert_eq!((refused.status, &refused.json()["kind"]), (401, &json!("unauthenticated")));
    }
    let own = format!("http://{at}");
    for (origin, status) in
        [("https://evil.example", 403), ("null", 403), ("http://localhost:1", 403), (&*own, 200)]
    {
        let answer = ask(at, "POST", &[("origin", origin)], INITIALIZE);
        assert_eq!(answer.status, status, "{origin}");
        if status == 403 {
            assert_eq!(answer.json()["kind"], "permission_denied");
        }
    }
    let version = ("mcp-protocol-version", "1999-01-01");
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    let session = |answer: &Answer| answer.headers["mcp-session-id"].clone();
    let id = session(&ask(at, "POST", &[], INITIALIZE));
    let with = [("mcp-session-id", &*id)];
    for (more, body, status) in [
        (&[("accept", "text/html")][..], INITIALIZE, 406),
        (&[("content-type", "text/plain")], INITIALIZE, 415),
        (&[("mcp-session-id", "another")], list, 404),
        (&[], &"x".repeat(17 << 20), 413),
        // A call without a session.
        (&[], list, 400),
        (&[], "no json", 400),
        (&[], r#"{"jsonrpc":"2.0","id":NaN,"method":"ping"}"#, 400),
        (&[with[0], version], list, 400),
    ] {
        let answer = ask(at, "POST", more, body);
        assert_eq!(answer.status, status, "{more:?} {body:.40}");
        let problem = answer.json();
        let kind = if status == 404 { "not_found" } else { "invalid_argument" };
        assert_eq!((&problem["status"], &problem["kind"]), (&json!(status), &json!(kind)));
        assert!(problem["hint"].is_string(), "{problem}");
    }
    let wrong = ask(at, "PUT", &[], "{}");
    assert_eq!((wrong.status, &wrong.json()["kind"]), (405, &json!("invalid_argument")));
    assert!(wrong.headers.contains_key("allow"));
    // A session that was ended is gone.
    assert!((200..300).contains(&ask(at, "DELETE", &with, "").status));
    assert_eq!(ask(at, "POST", &with, list).status, 404);
}

#[test]
fn there_is_room_for_so_many_sessions() {
    let gateway = Gateway::with_test_pattern();
    let open = || ask(gateway.http(), "POST", &[], INITIALIZE);
    let sessions: Vec<_> = (0..64)
        .map(|_| {
            let opened = open();
            assert_eq!(opened.status, 200);
            opened.headers["mcp-session-id"].clone()
        })
        .collect();
    let refused = open();
    assert_eq!((refused.status, &refused.json()["kind"]), (429, &json!("limit_exceeded")));
    assert!(refused.json()["retry_after_ms"].is_u64());
    // A client that needs none has room.
    let url = format!("http://{}/mcp", gateway.http());
    let mut agent = Agent::over_http("discover", &url, TOKEN);
    agent.get("stream_status", json!({}));
    ask(gateway.http(), "DELETE", &[("mcp-session-id", &sessions[0])], "");
    assert_eq!(open().status, 200);
}

#[test]
fn a_token_is_no_person_unless_whoever_started_the_server_vouches_for_its_clients() {
    for (more, lifecycle, consent) in [
        (&[][..], "initialize+person", "terminal"),
        (&["--consent", "client"], "initialize+person", "client"),
        (&["--consent", "client"], "discover+person", "client"),
    ] {
        let gateway = Gateway::with_test_pattern();
        let beside = Beside::start(more);
        let folder = beside.home().join(".claude");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("settings.json"), r#"{"model":"x"}"#).unwrap();
        let mut agent = beside.agent(lifecycle);
        let url = gateway.http().to_string();
        agent.call("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
        let push = json!({ "space": "box", "app": "claude-code" });
        let yes = json!({ "action": "accept", "content": { "answer": "yes" } });
        let (result, asked) = agent.call_with("teleport_app", push, yes);
        let text = result["content"][0]["text"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap();
        let by_client = consent == "client";
        assert_eq!(asked.as_array().unwrap().len(), usize::from(by_client), "{asked}");
        assert_eq!(value["moved"] == true, by_client, "{value}");
        assert_eq!(value["consent_required"] == true, !by_client, "{value}");
    }
}
