//! Real machines behind a real relay: everything that a gateway answers at its own port it answers through
//! `/m/<id>`, what the relay says of them is true, and who attacks it costs the others nothing.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request as Asked;
use axum::response::Response;
use axum::routing::{any, get};
use serde_json::{Value, json};
use spaceport_relay::audit::Event;
use spaceport_relay::uplink::{self, Status};
use spaceport_relay::{Uplink, Via};
use spaceport_state::Ledger;
use spaceport_tests::{
    Folder, Gateway, RELAY_TOKEN, Relay, Request, Script, Start, TOKEN, binary, cua, measured,
    wait_until,
};
use spaceport_types::{Kind, Redacted};
use spaceport_wire::pb;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// What has to have happened by then, on a machine with more to do.
const SOON: Duration = Duration::from_secs(20);

/// A relay may be away for as long as it takes; then its machines are back within this.
const BACK: Duration = Duration::from_secs(3);

/// A gateway that has joined a relay.
fn joined(relay: &Relay, id: &str, arguments: &[&str]) -> Gateway {
    let joining = relay.joining(id);
    let arguments: Vec<&str> =
        joining.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
    let gateway =
        Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() });
    relay.wait(id, true, SOON);
    gateway
}

/// The program on a machine of its own, with that machine's files.
fn program(home: &Folder, arguments: &[&str]) -> Output {
    Command::new(binary())
        .args(arguments)
        .current_dir(home.path())
        .env("SPACEPORT_TOKEN", TOKEN)
        .env("SPACEPORT_CONFIG_DIR", home.path().join("config"))
        .env("XDG_STATE_HOME", home.path().join("state"))
        .env("HOME", home.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn value(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length / 8).flat_map(next).collect()
}

#[test]
fn the_published_client_works_through_a_relay() {
    let relay = Relay::start(&[]);
    let _gateway = joined(&relay, "machine-1", &[]);
    let home = Folder::new("cua");
    let url = relay.machine_url("machine-1");
    let mut client = Script::spawn(cua("cua_client.py", &url, TOKEN, home.path()));
    let added = client.hear();
    assert_eq!(added["step"], "added", "{added}");
    assert_eq!(client.hear()["displays"][0]["id"], "test-pattern");
    drop(client.hear()); // windows, or why there are none
    let opened = client.hear();
    assert_eq!(
        (&opened["codec"], &opened["wire_version"]),
        (&json!("h264"), &json!(2)),
        "{opened}"
    );
    let watched = client.hear();
    assert!(watched["frames"].as_array().unwrap().len() >= 10, "{watched}");
    assert_eq!(watched["frames"][0]["keyframe"], true);
    assert_eq!(client.hear()["keyframe"], true);
    assert_eq!(client.hear()["close_code"], 4404);
    let again = client.hear();
    assert_eq!(again["error"], "NotFound", "{again}");
    let refused = client.hear();
    assert!(refused["message"].as_str().unwrap().contains("410"), "{refused}");
}

#[test]
fn the_published_client_is_told_what_is_wrong_through_a_relay() {
    let relay = Relay::start(&["--config", "/dev/null"]);
    let gateway = joined(&relay, "machine-1", &[]);
    let home = Folder::new("cua");
    let add = |machine: &str, token: &str| {
        Script::spawn(cua("cua_client.py", &relay.machine_url(machine), token, home.path())).hear()
    };
    let wrong = add("machine-1", "wrong");
    assert_eq!(wrong["error"], "Unauthenticated", "{wrong}");
    drop(gateway);
    relay.wait("machine-1", false, SOON);
    let offline = add("machine-1", TOKEN);
    assert!(offline["error"].is_string(), "{offline}");
}

#[test]
fn files_go_through_a_relay_whole_and_come_back() {
    let relay = Relay::start(&[]);
    let gateway = joined(&relay, "machine-1", &[]);
    let here = Folder::new("here");
    let large = noise(24 << 20);
    fs::create_dir_all(here.path().join("tree/deep")).unwrap();
    fs::write(here.path().join("tree/large"), &large).unwrap();
    for number in 0..200 {
        fs::write(here.path().join(format!("tree/deep/{number}")), number.to_string()).unwrap();
    }
    let url = relay.machine_url("machine-1");
    let sent = value(&program(&here, &["send", "--json", "--to", &url, "tree"]));
    assert_eq!(sent["files"], 201, "{sent}");
    let arrived = gateway.home().join("Downloads/tree");
    assert!(fs::read(arrived.join("large")).unwrap() == large);
    assert_eq!(fs::read_to_string(arrived.join("deep/199")).unwrap(), "199");
    let back = here.path().join("back");
    let from = format!("{url}:Downloads/tree");
    fs::create_dir(&back).unwrap();
    let output = program(&here, &["download", "--json", &from, "back"]);
    assert!(output.status.success(), "{from}: {output:?}");
    assert!(fs::read(back.join("tree/large")).unwrap() == large);
    assert!(relay.metric("spaceport_relay_to_machines_bytes_total") >= large.len() as u64);
    assert!(relay.metric("spaceport_relay_from_machines_bytes_total") >= large.len() as u64);
    wait_until("requests end", SOON, || relay.metric("spaceport_relay_requests_open") == 0);
}

#[test]
fn a_space_through_a_relay_names_no_way_in_that_leads_nowhere() {
    let relay = Relay::start(&[]);
    let gateway = joined(&relay, "machine-1", &[]);
    let answer = |to: SocketAddr, prefix: &str| {
        let request = pb::GetCapabilitiesRequest::default();
        spaceport_tests::call_at::<pb::GetCapabilitiesResponse>(
            to,
            prefix,
            TOKEN,
            "SystemService/GetCapabilities",
            &request,
        )
    };
    let direct = answer(gateway.http(), "").unwrap();
    let relayed = answer(relay.http(), "/m/machine-1").unwrap();
    assert_eq!(direct.hostname, relayed.hostname);
    assert_ne!(direct.side_channels.unwrap().media_quic_port, 0);
    let port = relayed.side_channels.unwrap().media_quic_port;
    assert_eq!(port, u32::from(relay.quic().port()), "the relay's own");
}

#[test]
fn consent_is_not_given_through_a_relay() {
    let relay = Relay::start(&[]);
    let gateway = joined(&relay, "machine-1", &[]);
    let ask = |to: SocketAddr, path: &str| {
        let headers = [("host", "127.0.0.1")];
        Request { method: "POST", path, headers: &headers, body: b"{}" }.send(to).unwrap()
    };
    // The machine's own user is asked for a link that is good; anybody else is not even that.
    assert_ne!(ask(gateway.http(), "/consent/request").status, 403);
    let refused = ask(relay.http(), "/m/machine-1/consent/request");
    assert_eq!((refused.status, &refused.json()["kind"]), (403, &json!("permission_denied")));
}

#[test]
fn an_id_is_its_machines_and_a_wrong_token_lets_nobody_in() {
    let relay = Relay::start(&[]);
    let gateway = joined(&relay, "machine-1", &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = Folder::new("rogue");
    let join = |id: &str, token: &str, name: &str| {
        let mut config = uplink::Config::new(
            relay.url().parse().unwrap(),
            name,
            folder.path().join(format!("{name}.json")),
        );
        config.machine = Some(id.parse().unwrap());
        config.token = Some(Redacted::new(token.to_owned()));
        Joined::start(&runtime, config, Router::new())
    };
    let thief = join("machine-1", RELAY_TOKEN, "thief");
    thief.wait_offline("another machine's");
    let guesser = join("machine-2", "wrong", "guesser");
    guesser.wait_offline("not this relay's");
    assert_eq!(relay.status("machine-1")["online"], true, "the real one is still there");
    assert_eq!(relay.status("machine-2"), Value::Null);
    assert_eq!(relay.ask("GET", "/m/machine-1/health").status, 204);
    assert!(relay.metric("spaceport_relay_machines_refused_total") >= 2);

    // Who may ask for the list of machines.
    let bare = Request { method: "GET", path: "/v1/machines", headers: &[], body: b"" };
    assert_eq!(bare.send(relay.http()).unwrap().status, 401);
    let list = relay.ask("GET", "/v1/machines").json();
    assert_eq!(list["machines"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(list["machines"][0]["id"], "machine-1");
    assert_eq!(list["machines"][0]["carrier"], "quic");

    // Removed, it is gone at once, and does not come back without being let in anew.
    assert_eq!(relay.ask("DELETE", "/v1/machines/machine-1").status, 204);
    assert_eq!(relay.ask("GET", "/m/machine-1/health").status, 404);
    assert_eq!(relay.ask("DELETE", "/v1/machines/machine-1").status, 404);
    drop(gateway);

    drop((thief, guesser));
    let mut events = Vec::new();
    Ledger::<Event>::at(&relay.state())
        .verify(|entry| events.push((entry.event, entry.id)))
        .expect("an unbroken chain");
    let has = |event, id: &str| events.contains(&(event, id.to_owned()));
    assert!(has(Event::Registered, "machine-1") && has(Event::Joined, "machine-1"), "{events:?}");
    assert!(has(Event::Refused, "machine-1") && has(Event::Removed, "machine-1"), "{events:?}");
    let log = relay.log();
    assert!(
        !log.contains(RELAY_TOKEN) && !log.contains("cmt_") && !log.contains("127.0.0.1"),
        "{log}"
    );
}

#[test]
fn a_machine_can_be_let_in_beforehand() {
    let relay = Relay::start(&[]);
    let body = json!({ "id": "machine-7", "name": "Seven" }).to_string();
    let authorization = format!("Bearer {RELAY_TOKEN}");
    let register = |body: &str| {
        let headers = [("authorization", &*authorization), ("content-type", "application/json")];
        let body = body.as_bytes();
        Request { method: "POST", path: "/v1/machines", headers: &headers, body }
            .send(relay.http())
            .unwrap()
    };
    let let_in = register(&body);
    assert_eq!(let_in.status, 201, "{}", let_in.text());
    assert!(let_in.json()["machine_token"].as_str().unwrap().starts_with("cmt_"));
    assert_eq!(let_in.json()["machine"]["online"], false);
    assert_eq!(register(&body).status, 403, "the id is taken");
    assert_eq!(register("{}").status, 400);
    assert_eq!(register(r#"{"id":"../../etc/passwd"}"#).status, 400);
    assert_eq!(relay.status("machine-7")["name"], "Seven");
}

#[test]
fn what_is_said_of_a_machine_is_true_when_it_leaves_dies_and_comes_back() {
    let relay = Relay::start(&[]);
    let gateway = joined(&relay, "machine-1", &[]);
    assert_eq!(relay.metric("spaceport_relay_machines_online"), 1);
    drop(gateway); // SIGTERM: it says goodbye
    let began = Instant::now();
    relay.wait("machine-1", false, Duration::from_secs(3));
    measured(format_args!("offline {:?} after a goodbye", began.elapsed()));
    assert_eq!(relay.metric("spaceport_relay_machines_online"), 0);

    let offline = relay.ask("GET", "/m/machine-1/health");
    assert_eq!(offline.status, 502, "{}", offline.text());
    let problem = offline.json();
    assert_eq!((&problem["kind"], &problem["retryable"]), (&json!("relay"), &json!(true)));
    assert_eq!(problem["context"]["reason"], "guest_offline");
    assert_eq!(problem["context"]["machine"], "machine-1");
    assert!(problem["hint"].as_str().unwrap().contains("serve --relay"));
    assert_eq!(offline.headers["x-cua-relay-error"], "machine_offline");
    let refused = spaceport_tests::call_at::<pb::GetCapabilitiesResponse>(
        relay.http(),
        "/m/machine-1",
        TOKEN,
        "SystemService/GetCapabilities",
        &pb::GetCapabilitiesRequest::default(),
    )
    .unwrap_err();
    assert_eq!(refused.code, 14, "{refused:?}");
    let info = refused.info.expect("a typed detail");
    assert_eq!(info.reason(), pb::ErrorReason::TargetUnavailable);
    assert_eq!(info.metadata["kind"], "relay");
    let unknown = relay.ask("GET", "/m/no-such-machine/health");
    assert_eq!((unknown.status, &*unknown.headers["x-cua-relay-error"]), (404, "unknown_machine"));
    assert_eq!(relay.ask("GET", "/m/x/health").status, 400);
}

#[test]
fn a_machine_that_dies_without_a_word_is_offline_soon() {
    let relay = Relay::start(&[]);
    let gateway = joined(&relay, "machine-1", &[]);
    kill(gateway.pid());
    relay.wait("machine-1", false, Duration::from_secs(30));
}

#[test]
fn a_relay_that_was_killed_has_its_machines_back_when_it_is_there_again() {
    let mut relay = Relay::start(&[]);
    let _gateways = ["machine-1", "machine-2"].map(|id| joined(&relay, id, &[]));
    for _ in 0..2 {
        relay.kill();
        relay.start_again();
        let began = Instant::now();
        // Whoever asks now is not told that it is offline: it comes in time.
        assert_eq!(relay.ask("GET", "/m/machine-1/health").status, 204);
        relay.wait("machine-2", true, BACK);
        measured(format_args!("back {:?} after the relay", began.elapsed()));
        assert!(began.elapsed() < BACK);
    }
}

#[test]
fn a_relay_that_is_asked_to_end_finishes_what_is_under_way_and_machines_come_back() {
    let mut relay = Relay::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (reached, finish) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let router = {
        let (reached, finish) = (Arc::clone(&reached), Arc::clone(&finish));
        Router::new().route(
            "/slow",
            get(move || async move {
                reached.notify_one();
                finish.notified().await;
                "done"
            }),
        )
    };
    let folder = Folder::new("slow");
    let machine = Joined::start(&runtime, config(&relay, &folder, "machine-1"), router);
    machine.wait_online();
    let asking = {
        let to = relay.http();
        std::thread::spawn(move || {
            let path = "/m/machine-1/slow";
            Request { method: "GET", path, headers: &[], body: b"" }.send(to)
        })
    };
    runtime.block_on(reached.notified());
    relay.terminate();
    wait_until("no new connections", SOON, || TcpStream::connect(relay.http()).is_err());
    finish.notify_one();
    let answer = asking.join().unwrap().unwrap();
    assert_eq!((answer.status, answer.text().as_str()), (200, "done"));
    assert!(relay.ended(), "in order");
    machine.wait_offline("");
    relay.start_again();
    relay.wait("machine-1", true, BACK);
}

#[test]
fn a_rogue_machine_shows_no_page_and_sets_no_cookie_on_the_relay() {
    let relay = Relay::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let page = |kind: &'static str| {
        get(move || async move {
            Response::builder()
                .header("content-type", kind)
                .header("set-cookie", "session=stolen; Path=/")
                .header("service-worker-allowed", "/")
                .header("content-security-policy", "default-src *")
                .body(Body::from("<script>alert(1)</script>"))
                .unwrap()
        })
    };
    let echo = any(|asked: Asked| async move {
        let via = asked.extensions().get::<Via>().cloned();
        format!(
            "{} {} cookie={:?} via={:?}",
            asked.method(),
            asked.uri(),
            asked.headers().get("cookie"),
            via.map(|via| via.prefix),
        )
    });
    let router = Router::new()
        .route("/page", page("text/html"))
        .route("/viewer/other.html", page("TEXT/html;x"))
        .route("/picture", page("image/svg+xml"))
        .fallback(echo);
    let folder = Folder::new("rogue");
    let machine = Joined::start(&runtime, config(&relay, &folder, "machine-1"), router);
    machine.wait_online();
    for path in ["/page", "/viewer/other.html", "/picture"] {
        let answer = relay.ask("GET", &format!("/m/machine-1{path}"));
        assert_eq!(answer.status, 200);
        assert!(answer.text().contains("alert"), "{path}");
        let header = |name: &str| answer.headers.get(name).map(String::as_str);
        assert_eq!(header("content-disposition"), Some("attachment"), "{path}");
        assert_eq!(header("set-cookie"), None);
        assert_eq!(header("service-worker-allowed"), None);
        assert_eq!(header("x-content-type-options"), Some("nosniff"));
        assert!(header("content-security-policy").unwrap().starts_with("sandbox;"));
    }
    let headers = [("cookie", "of=the-origin"), ("connection-of", "this hop")];
    let path = "/m/machine-1/a%2Fb/c?x=%20&y";
    let answer =
        Request { method: "PUT", path, headers: &headers, body: b"" }.send(relay.http()).unwrap();
    assert_eq!(answer.text(), "PUT /a%2Fb/c?x=%20&y cookie=None via=Some(\"/m/machine-1\")");
    let moved = relay.ask("GET", "/m/machine-1");
    assert_eq!((moved.status, &*moved.headers["location"]), (308, "/m/machine-1/"));
}

#[test]
fn a_request_ends_when_its_client_has_gone_and_a_stalled_one_holds_up_no_other() {
    let relay = Relay::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let under_way = Arc::new(AtomicUsize::new(0));
    let router = {
        let under_way = Arc::clone(&under_way);
        Router::new()
            .route(
                "/endless",
                get(move || async move {
                    let held = Held::new(&under_way);
                    let pieces = futures_util::stream::repeat_with(move || {
                        let _held: &Held = &held;
                        Ok::<_, std::io::Error>(bytes::Bytes::from_static(&[7; 16 << 10]))
                    });
                    Response::new(Body::from_stream(pieces))
                }),
            )
            .route("/short", get(|| async { "short" }))
    };
    let folder = Folder::new("endless");
    let machine = Joined::start(&runtime, config(&relay, &folder, "machine-1"), router);
    machine.wait_online();
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let mut client = TcpStream::connect(relay.http()).unwrap();
        client.write_all(b"GET /m/machine-1/endless HTTP/1.1\r\nhost: relay\r\n\r\n").unwrap();
        client.read_exact(&mut [0; 1024]).unwrap();
        stalled.push(client);
    }
    assert_eq!(under_way.load(Ordering::SeqCst), 8);
    let moved = || relay.metric("spaceport_relay_from_machines_bytes_total");
    let mut before = moved();
    wait_until("nothing moves that nobody reads", SOON, || {
        let now = moved();
        std::mem::replace(&mut before, now) == now
    });
    assert_eq!(relay.ask("GET", "/m/machine-1/short").text(), "short");
    assert!(before < 8 * (8 << 20), "{before} bytes are held, at most a few windows each");
    drop(stalled);
    wait_until("requests end", SOON, || under_way.load(Ordering::SeqCst) == 0);
    wait_until("streams end", SOON, || relay.metric("spaceport_relay_requests_open") == 0);
}

#[test]
fn there_are_only_so_many_requests_and_the_next_is_told_so() {
    let folder = Folder::new("limits");
    let file = folder.path().join("relay.toml");
    fs::write(&file, "[limits]\nmachine_memory_mib = 4\n").unwrap();
    let relay = Relay::start(&["--config", &file.display().to_string()]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let router = Router::new().route("/wait", get(std::future::pending::<()>));
    let machine = Joined::start(&runtime, config(&relay, &folder, "machine-1"), router);
    machine.wait_online();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        let mut client = TcpStream::connect(relay.http()).unwrap();
        client.write_all(b"GET /m/machine-1/wait HTTP/1.1\r\nhost: relay\r\n\r\n").unwrap();
        waiting.push(client);
    }
    wait_until("they wait", SOON, || relay.metric("spaceport_relay_requests_open") == 4);
    let refused = relay.ask("GET", "/m/machine-1/wait");
    assert_eq!((refused.status, &refused.json()["kind"]), (429, &json!("limit_exceeded")));
    assert_eq!(&refused.headers["x-cua-relay-error"], "limit_exceeded");
    drop(waiting);
    wait_until("they end", SOON, || relay.metric("spaceport_relay_requests_open") == 0);
}

#[test]
fn floods_and_large_heads_cost_those_who_send_them() {
    let folder = Folder::new("flood");
    let file = folder.path().join("relay.toml");
    fs::write(&file, "[limits]\nopening = 64\npatience_s = 3\n").unwrap();
    let relay = Relay::start(&["--config", &file.display().to_string()]);
    let gateway = joined(&relay, "machine-1", &[]);
    let health = || relay.ask("GET", "/m/machine-1/health").status;

    let silent: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(relay.http()).unwrap()).collect();
    assert_eq!(health(), 204, "while hundreds say nothing");
    wait_until("most are sent away", SOON, || {
        relay.metric("spaceport_relay_connections_opening") <= 65
    });
    assert!(relay.metric("spaceport_relay_connections_refused_total") >= 200);
    drop(silent);

    // A byte a second, for as long as it lasts.
    let mut loris = TcpStream::connect(relay.http()).unwrap();
    loris.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let began = Instant::now();
    loop {
        // Once it is gone, that shows in what is read.
        drop(loris.write(b"G"));
        match loris.read(&mut [0; 64]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => break,
        }
        assert!(began.elapsed() < SOON, "it is still there");
    }
    assert_eq!(health(), 204);

    for (name, value) in [("x-large", "x".repeat(200 << 10)), ("x-many", "x".repeat(90 << 10))] {
        let headers = [(name, value.as_str())];
        let path = "/m/machine-1/health";
        let answer =
            Request { method: "GET", path, headers: &headers, body: b"" }.send(relay.http());
        // Refused by word, or cut off while it was still being sent.
        assert!(answer.map_or(true, |answer| answer.status == 431), "{name}");
    }
    // Half-open tunnels: sockets that never say who they are.
    let sockets: Vec<_> = (0..100).map(|_| upgrade(relay.http())).collect();
    assert_eq!(health(), 204);
    wait_until("machines without a name are sent away", SOON, || sockets.iter().all(is_over));
    assert_eq!(health(), 204);
    drop(gateway);
}

#[test]
fn what_is_no_registration_is_refused() {
    let relay = Relay::start(&[]);
    let plain = relay.ask("GET", "/relay/v1/connect");
    assert_eq!((plain.status, &plain.json()["kind"]), (400, &json!("invalid_argument")));
    for nonsense in [&b"\x82\x04junk"[..], b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64]] {
        let mut socket = upgrade(relay.http());
        socket.write_all(nonsense).unwrap();
        wait_until("it is closed", SOON, || is_over(&socket));
    }
    assert_eq!(relay.ask("GET", "/healthz").status, 204);
    let info = relay.ask("GET", "/v1/info").json();
    assert_eq!((&info["static_tokens"], &info["account_auth"]), (&json!(true), &json!(false)));
    assert_eq!(info["quic"]["alpn"], "spaceport-relay/1");
    assert_eq!(relay.ask("GET", "/nowhere").status, 404);
}

#[test]
fn a_guest_says_what_is_wrong_with_its_relay() {
    let refused = |arguments: &[&str]| {
        let folder = Folder::new("guest");
        let state = folder.path().join("state").display().to_string();
        let base = ["serve", "--listen", "127.0.0.1:0", "--state-dir", &state];
        program(&folder, &[&base[..], arguments].concat())
    };
    for arguments in [
        &["--relay", "relay.example"][..],
        &["--relay", "https://relay.example/m/x"],
        &["--relay", "https://relay.example", "--machine-id", "Not An Id"],
        &["--machine-id", "machine-1"],
    ] {
        let output = refused(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
    // One that is no relay is said to be none, and tried again.
    let other = Gateway::with_test_pattern();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = Folder::new("guest");
    let url = format!("http://{}", other.http());
    let config =
        uplink::Config::new(url.parse().unwrap(), "guest", folder.path().join("relay.json"));
    let machine = Joined::start(&runtime, config, Router::new());
    machine.wait_offline("is not a relay");
}

#[test]
fn the_machine_that_comes_last_with_an_id_has_it() {
    let relay = Relay::start(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = Folder::new("twice");
    let named = |name: &'static str| Router::new().route("/", get(move || async move { name }));
    let first = Joined::start(&runtime, config(&relay, &folder, "machine-1"), named("first"));
    first.wait_online();
    // The same state, as a machine has that was copied.
    let second = Joined::start(&runtime, config(&relay, &folder, "machine-1"), named("second"));
    second.wait_online();
    first.wait_offline("another machine has joined");
    assert_eq!(relay.ask("GET", "/m/machine-1/").text(), "second");
}

#[test]
fn errors_of_a_relay_have_their_kind() {
    let relay = Relay::start(&[]);
    let here = Folder::new("here");
    fs::write(here.path().join("note"), "x").unwrap();
    let url = relay.machine_url("machine-9");
    let output = program(&here, &["send", "--json", "--to", &url, "note"]);
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["error"]["kind"], "not_found", "{error}");
    assert_eq!(output.status.code(), Some(i32::from(Kind::NotFound.spec().exit)));
}

#[test]
fn a_relay_with_a_certificate_is_reached_by_tls_and_by_who_trusts_it() {
    let folder = Folder::new("tls");
    let path = |name: &str| folder.path().join(name).display().to_string();
    // An authority, and a certificate that it has signed.
    let openssl = |arguments: &[&str]| {
        let status = Command::new("openssl")
            .args(arguments)
            .stderr(Stdio::null())
            .status()
            .expect("openssl is installed (`scripts/setup test`)");
        assert!(status.success(), "openssl {arguments:?}");
    };
    let [ca, ca_key, key, request, certificate] =
        ["ca.pem", "ca.key", "relay.key", "relay.csr", "relay.pem"].map(path);
    let kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let subject = ["-subj", "/CN=a test", "-keyout"];
    let authority = ["-x509", "-days", "2", "-out", &ca];
    openssl(&[&["req"][..], &kind, &subject, &[&ca_key], &authority].concat());
    let asked = ["-out", &request, "-addext", "subjectAltName=IP:127.0.0.1"];
    openssl(&[&["req"][..], &kind, &subject, &[&key], &asked].concat());
    openssl(&[
        "x509",
        "-req",
        "-in",
        &request,
        "-CA",
        &ca,
        "-CAkey",
        &ca_key,
        "-CAcreateserial",
        "-days",
        "2",
        "-copy_extensions",
        "copy",
        "-out",
        &certificate,
    ]);
    let relay = Relay::start(&["--tls-cert", &certificate, "--tls-key", &key]);
    let url = format!("https://{}", relay.http());
    let plain = relay.ask("GET", "/healthz");
    assert!(plain.status == 400 && plain.text().contains("https://"), "{}", plain.text());

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config =
        uplink::Config::new(url.parse().unwrap(), "guest", folder.path().join("relay.json"));
    let stranger = Joined::start(&runtime, config, Router::new());
    stranger.wait_offline("cannot show that it is");

    let state = path("state");
    let token_file = relay.token_file().display().to_string();
    let guest = Command::new(binary())
        .args(["serve", "--json", "--test-pattern", "--listen", "127.0.0.1:0", "--quic-port", "0"])
        .args(["--webrtc-port", "0", "--state-dir", &state, "--machine-id", "machine-1"])
        .args(["--relay", &url, "--relay-token-file", &token_file])
        .env("SSL_CERT_FILE", &ca)
        .env("SPACEPORT_TOKEN", TOKEN)
        .env("HOME", folder.path())
        .env_remove("DISPLAY")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let guest = Killed(guest);
    fs::write(folder.path().join("note"), "by TLS").unwrap();
    let to = format!("{url}/m/machine-1");
    wait_until("a file arrives by TLS", SOON, || {
        let sent = Command::new(binary())
            .args(["send", "--json", "--to", &to, "note"])
            .current_dir(folder.path())
            .env("SSL_CERT_FILE", &ca)
            .env("SPACEPORT_TOKEN", TOKEN)
            .env("SPACEPORT_CONFIG_DIR", path("config"))
            .env("XDG_STATE_HOME", path("state-of-client"))
            .output()
            .unwrap();
        sent.status.success()
    });
    assert_eq!(fs::read_to_string(folder.path().join("Downloads/note")).unwrap(), "by TLS");
    drop(guest);
}

/// A program that is ended with the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A machine of this process that has joined a relay.
struct Joined {
    uplink: Uplink,
    _leave: oneshot::Sender<()>,
}

impl Joined {
    fn start(runtime: &tokio::runtime::Runtime, config: uplink::Config, router: Router) -> Self {
        let (uplink, driver) = uplink::prepare(config).unwrap();
        let (leave, left) = oneshot::channel::<()>();
        runtime.spawn(driver.run(router, async { drop(left.await) }));
        Self { uplink, _leave: leave }
    }

    #[track_caller]
    fn wait_online(&self) {
        wait_until("online", SOON, || matches!(self.uplink.status(), Status::Online { .. }));
    }

    #[track_caller]
    fn wait_offline(&self, why: &str) {
        wait_until(why, SOON, || match self.uplink.status() {
            Status::Offline { reason } => reason.contains(why),
            _ => false,
        });
    }
}

fn config(relay: &Relay, folder: &Folder, id: &str) -> uplink::Config {
    let state = folder.path().join("relay.json");
    let mut config = uplink::Config::new(relay.url().parse().unwrap(), "test", state);
    config.machine = Some(id.parse().unwrap());
    config.token = Some(Redacted::new(RELAY_TOKEN.to_owned()));
    config
}

/// Counts for as long as it is held.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A socket that was upgraded to become a tunnel, and has said nothing on it.
fn upgrade(relay: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(relay).unwrap();
    stream
        .write_all(
            b"GET /relay/v1/connect HTTP/1.1\r\nhost: relay\r\nconnection: upgrade\r\n\
              upgrade: websocket\r\nsec-websocket-version: 13\r\n\
              sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    stream
}

/// Whether the other side has ended it. What came before that is read away.
fn is_over(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}
