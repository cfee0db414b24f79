//! Two relays that are one: nodes that share their machines by way of a real Redis. Who comes to either sees all
//! of them, and a node that dies takes none of them with it.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spaceport_tests::{
    Folder, Gateway, RELAY_TOKEN, Redis, Relay, Request, Script, Start, TOKEN, Watch, binary, cua,
    measured, wait_until,
};
use spaceport_transport::Received;
use spaceport_wire::control::{LifecycleEvent, ServerMessage};
use tokio::runtime::Runtime;
use tokio::time::Instant;

const MACHINE: &str = "build-box-7";

/// How long a test waits for one thing, on a machine with more to do.
const SOON: Duration = Duration::from_secs(30);

/// A Redis, and nodes that share it.
struct Nodes {
    redis: Redis,
    folder: Folder,
}

impl Nodes {
    fn new() -> Self {
        Self { redis: Redis::start(), folder: Folder::new("nodes") }
    }

    fn secret(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("{name}-{}", "0123456789abcdef".repeat(2))).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn node(&self) -> Relay {
        self.node_with("secret")
    }

    fn node_with(&self, secret: &str) -> Relay {
        let (secret, url) = (self.secret(secret), self.redis.url_file());
        Relay::start(&[
            "--directory-file",
            url.to_str().unwrap(),
            "--node-secret-file",
            secret.to_str().unwrap(),
        ])
    }
}

/// A machine that knows both, and joins the first while that is there.
fn machine(first: &Relay, second: &Relay, id: &str) -> Gateway {
    let mut arguments = first.joining(id);
    arguments.extend(["--relay".to_owned(), second.url()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() })
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn health(relay: &Relay) -> (u16, String) {
    let answer = relay.ask("GET", "/healthz");
    (answer.status, answer.text())
}

#[test]
fn viewers_of_either_node_see_the_machine_and_the_picture_comes_back_when_its_node_dies() {
    let nodes = Nodes::new();
    let (mut one, two) = (nodes.node(), nodes.node());
    let gateway = machine(&one, &two, MACHINE);
    for node in [&one, &two] {
        node.wait(MACHINE, true, SOON);
        let list = node.ask("GET", "/v1/machines").json();
        assert_eq!(list["machines"][0]["id"], MACHINE, "{list}");
    }
    assert_eq!(two.status(MACHINE)["node"], one.url(), "{}", two.status(MACHINE));
    let home = Folder::new("cua");
    let mut client =
        Script::spawn(cua("cua_client.py", &two.machine_url(MACHINE), TOKEN, home.path()));
    assert_eq!(client.hear()["step"], "added");
    assert_eq!(client.hear()["displays"][0]["id"], "test-pattern");
    drop(client.hear());
    drop(client.hear());
    assert!(client.hear()["frames"].as_array().unwrap().len() >= 10);
    drop(client);

    let runtime = runtime();
    let opened = Watch::open(two.http(), MACHINE);
    let quic = opened.quic.as_ref().expect("a way in by QUIC is named");
    assert_eq!(quic.port, u32::from(two.quic().port()), "where the client came in");
    let mut near = Watch::attach(&runtime, one.http(), MACHINE, &opened).unwrap();
    let mut far = Watch::attach(&runtime, two.http(), MACHINE, &opened).unwrap();
    for viewer in [&mut near, &mut far] {
        assert!(viewer.frames(&runtime, 5), "a keyframe first");
    }
    // What the client has watched is kept for a moment.
    wait_until("its own node alone", SOON, || gateway.metric("spaceport_viewers") == 1);
    assert!(one.metric("spaceport_relay_nodes_served_total") >= 1);
    assert_eq!(two.metric("spaceport_relay_nodes"), 2);
    assert!(two.metric("spaceport_relay_lease_renewals_total") >= 1);

    one.kill();
    let killed = Instant::now();
    loop {
        match far.next(&runtime) {
            Received::Control(ServerMessage::Lifecycle(it))
                if matches!(it.event, LifecycleEvent::Suspended { .. }) =>
            {
                break;
            }
            Received::Closed(error) => panic!("{error}"),
            _ => {}
        }
    }
    measured(format_args!("the viewer is told after {:?}", killed.elapsed()));
    far.keyframe(&runtime);
    measured(format_args!("the picture is back {:?} after its node was killed", killed.elapsed()));
    let status = two.status(MACHINE);
    assert!(status["online"] == true && status["node"].is_null(), "it is here now: {status}");
    wait_until("the dead node is forgotten", SOON, || two.metric("spaceport_relay_nodes") == 1);
    // It comes back, empty, and serves the machine through the other one.
    one.start_again();
    one.wait(MACHINE, true, SOON);
    let mut again = Watch::attach(&runtime, one.http(), MACHINE, &opened).unwrap();
    assert!(again.frames(&runtime, 3));
    let log = two.log();
    assert!(!log.contains("a-password-of-a-test"), "no password is logged");
}

#[test]
fn a_node_goes_on_without_redis_and_says_so() {
    let mut nodes = Nodes::new();
    let (one, two) = (nodes.node(), nodes.node());
    let _gateway = machine(&one, &two, MACHINE);
    two.wait(MACHINE, true, SOON);
    assert_eq!(health(&one).0, 204);
    nodes.redis.kill();
    wait_until("it is said", SOON, || health(&one).0 == 200 && health(&two).0 == 200);
    assert!(health(&one).1.contains("directory"), "{}", health(&one).1);
    assert_eq!(one.metric("spaceport_relay_directory_up"), 0);
    let runtime = runtime();
    for node in [&one, &two] {
        let opened = Watch::open(node.http(), MACHINE);
        let mut viewer = Watch::attach(&runtime, node.http(), MACHINE, &opened).unwrap();
        assert!(viewer.frames(&runtime, 3), "it is served on");
    }
    assert!(two.status(MACHINE)["as_of"].is_u64(), "{}", two.status(MACHINE));
    // What every node would have to hear of is not done by halves.
    assert_eq!(one.ask("DELETE", &format!("/v1/machines/{MACHINE}")).status, 502);
    nodes.redis.start_again();
    wait_until("it is back", SOON, || health(&one).0 == 204 && health(&two).0 == 204);
    two.wait(MACHINE, true, SOON);
    assert_eq!(one.log().matches("the directory is away").count(), 1, "{}", one.log());
    assert_eq!(one.metric("spaceport_relay_directory_up"), 1);
}

#[test]
fn a_node_that_was_asleep_takes_no_machine_back() {
    let nodes = Nodes::new();
    let (one, two) = (nodes.node(), nodes.node());
    let _gateway = machine(&one, &two, MACHINE);
    two.wait(MACHINE, true, SOON);
    let signal = |name: &str| {
        let pid = one.pid().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    wait_until("the machine has moved", SOON, || {
        let status = two.status(MACHINE);
        status["online"] == true && status["node"].is_null()
    });
    signal("-CONT");
    wait_until("the node that slept knows", SOON, || {
        let status = one.status(MACHINE);
        status["online"] == true && status["node"] == two.url()
    });
    let status = two.status(MACHINE);
    assert!(status["online"] == true && status["node"].is_null(), "{status}");
    let runtime = runtime();
    let opened = Watch::open(one.http(), MACHINE);
    let mut viewer = Watch::attach(&runtime, one.http(), MACHINE, &opened).unwrap();
    assert!(viewer.frames(&runtime, 3));
}

#[test]
fn an_id_is_not_stolen_at_the_other_node_and_is_removed_at_both() {
    let nodes = Nodes::new();
    let (one, two) = (nodes.node(), nodes.node());
    let owner = machine(&one, &one, MACHINE);
    two.wait(MACHINE, true, SOON);
    let thief = machine(&two, &two, MACHINE);
    wait_until("it is refused", SOON, || thief.log().contains("another machine's"));
    assert_eq!(two.status(MACHINE)["node"], one.url());
    drop(thief);
    // Removed at the one that does not have it.
    assert_eq!(two.ask("DELETE", &format!("/v1/machines/{MACHINE}")).status, 204);
    wait_until("it is gone", SOON, || {
        let path = format!("/v1/machines/{MACHINE}");
        one.ask("GET", &path).status == 404 && two.ask("GET", &path).status == 404
    });
    wait_until("the machine is told", SOON, || owner.log().contains("removed"));
}

#[test]
fn a_node_with_a_wrong_secret_reaches_nothing_and_is_given_nothing() {
    let nodes = Nodes::new();
    let (one, two) = (nodes.node(), nodes.node_with("another"));
    let gateway = machine(&one, &one, MACHINE);
    // It is in Redis, so the other one sees that there is such a machine, and where.
    two.wait(MACHINE, true, SOON);
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let path = format!("/m/{MACHINE}/health");
    let request = Request { method: "GET", path: &path, headers: &headers, body: b"" };
    let refused = request.send(two.http()).unwrap();
    assert_eq!(refused.status, 502, "{}", refused.text());
    assert!(!refused.text().contains(TOKEN));
    let answered = request.send(one.http()).unwrap();
    assert_eq!(answered.status, 204, "its own node serves it");
    drop(gateway);
}

#[test]
fn garbage_in_redis_harms_nobody() {
    let nodes = Nodes::new();
    let redis = &nodes.redis;
    let huge = "x".repeat(100_000);
    let text = |key: &str| format!("{{spaceport-relay}}:{key}");
    for key in ["machines", "held"] {
        for (field, value) in [
            ("../../etc", "{}"),
            ("machine-1", "garbage"),
            ("machine-2", "{\"node\":7,\"serial\":\"x\",\"token\":[]}"),
            ("machine-3", &huge),
            (MACHINE, "[[[[[[[["),
        ] {
            redis.ask(&["HSET", &text(key), field, value]);
        }
    }
    redis.ask(&["HSET", &text("nodes"), "attacker", "99999999999999 file:///etc/passwd"]);
    redis.ask(&["HSET", &text("nodes"), "a b", "garbage"]);
    redis.ask(&["SET", &text("version"), "7"]);
    let (one, two) = (nodes.node(), nodes.node());
    let _gateway = machine(&one, &two, MACHINE);
    two.wait(MACHINE, true, SOON);
    let list = two.ask("GET", "/v1/machines").json();
    assert_eq!(list["machines"].as_array().unwrap().len(), 1, "{list}");
    // What cannot be an answer at all: the node goes on with what it has, and comes back.
    redis.ask(&["SET", &text("version"), "no number"]);
    wait_until("it is noticed", SOON, || {
        redis.ask(&["HDEL", &text("nodes"), "nobody"]);
        redis.ask(&["DEL", &text("nodes")]);
        health(&two).0 == 200
    });
    two.wait(MACHINE, true, SOON);
    redis.ask(&["DEL", &text("version")]);
    wait_until("it is back", SOON, || health(&two).0 == 204);
}

#[test]
fn what_is_no_redis_is_no_directory() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // Says that an endless answer follows, and goes on for as long as somebody reads.
    let endless = std::thread::spawn(move || {
        for stream in listener.incoming() {
            if stopped.load(Ordering::Relaxed) {
                return;
            }
            let Ok(mut stream) = stream else { continue };
            let mut piece = [0; 1024];
            if stream.read(&mut piece).is_ok() && stream.write_all(b"$900000000000\r\n").is_ok() {
                while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
            }
        }
    });
    let folder = Folder::new("nodes");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef".repeat(2)).unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let url = format!("redis://{address}");
    let node = Relay::start(&["--directory", &url, "--node-secret-file", secret.to_str().unwrap()]);
    wait_until("it is noticed", SOON, || {
        health(&node).0 == 200 && node.metric("spaceport_relay_lease_renewals_failed_total") >= 3
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 200 << 10, "what it says is not kept: {kib} KiB");
    stop.store(true, Ordering::Relaxed);
    drop(node);
    drop(std::net::TcpStream::connect(address));
    endless.join().unwrap();
    // A password does not belong in the list of processes.
    let output = std::process::Command::new(binary())
        .args(["relay", "--directory", "redis://:hush@127.0.0.1:1", "--node-secret-file"])
        .arg(&secret)
        .args(["--state-dir"])
        .arg(folder.path())
        .env("SPACEPORT_RELAY_TOKEN", RELAY_TOKEN)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("SPACEPORT_DIRECTORY"), "{said}");
    assert!(!said.contains("hush"), "{said}");
}
