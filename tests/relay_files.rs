//! Files through a real relay: it carries them, and cannot read them; what it could read it does not get.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_tests::{
    Agent, Gateway, Here, Lacks, Older, Relay, Start, TOKEN, Tap, call_at, downloads, memory_holds,
    names, tree,
};
use spaceport_wire::pb::{StatRequest, StatResponse};

const MACHINE: &str = "build-box-7";

/// How long a machine may take to join, on one with more to do.
const SOON: Duration = Duration::from_secs(20);

/// Something that nobody on the way may see: in names and in files.
const CANARY: &str = "canary-9d417a60-goes-through-a-relay";

fn joined() -> (Relay, Gateway) {
    let relay = Relay::start(&[]);
    let joining = relay.joining(MACHINE);
    let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
    let gateway = Gateway::start(Start { arguments: &arguments, ..Start::default() });
    relay.wait(MACHINE, true, SOON);
    (relay, gateway)
}

/// An agent that has the machine at `url` as `box`, and a file with the canary in its home.
fn agent(url: &str) -> Agent {
    let mut agent = Agent::new("initialize");
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    fs::create_dir(agent.home().join("folder")).unwrap();
    for path in [CANARY, &format!("folder/{CANARY}")] {
        fs::write(agent.home().join(path), CANARY.repeat(1000)).unwrap();
    }
    agent
}

/// Every way in which an agent moves files.
fn moves() -> Vec<(&'static str, Value)> {
    let file = format!("~/{CANARY}");
    vec![
        ("space_write", json!({ "space": "box", "path": file, "content": CANARY })),
        ("upload", json!({ "space": "box", "path": file, "dest": format!("~/up/{CANARY}") })),
        ("upload", json!({ "space": "box", "path": file })),
        ("upload", json!({ "space": "box", "path": "~/folder", "dest": "~/a/folder" })),
        ("send_file", json!({ "space": "box", "path": "~/folder" })),
        ("download", json!({ "space": "box", "path": file, "dest": "~/in" })),
    ]
}

#[test]
fn a_relay_carries_files_and_cannot_read_them() {
    let ((relay, gateway), here) = (joined(), Here::new());
    let tap = Tap::before(relay.http());
    let url = format!("http://{}/m/{MACHINE}", tap.address());
    let top = here.files().join("secrets");
    fs::create_dir(&top).unwrap();
    fs::write(top.join(CANARY), CANARY).unwrap();
    fs::write(top.join("large"), CANARY.repeat(200_000)).unwrap();
    here.send(&url, &["secrets"]).sent();
    assert_eq!(tree(&downloads(&gateway).join("secrets")), tree(&top));
    here.download(&[&format!("{url}:~/Downloads/secrets"), "in"]).sent();
    assert_eq!(tree(&here.files().join("in/secrets")), tree(&top));

    let mut agent = agent(&url);
    for (tool, arguments) in moves() {
        agent.get(tool, arguments);
    }
    let read = |path: &str| fs::read_to_string(gateway.home().join(path)).unwrap();
    assert_eq!(read(CANARY), CANARY);
    assert_eq!(read(&format!("up/{CANARY}")), CANARY.repeat(1000));
    assert_eq!(read(&format!("Downloads/{CANARY}")), CANARY.repeat(1000));
    assert_eq!(read(&format!("a/folder/{CANARY}")), CANARY.repeat(1000));
    assert_eq!(read(&format!("Downloads/folder/{CANARY}")), CANARY.repeat(1000));
    assert_eq!(fs::read_to_string(agent.home().join("in").join(CANARY)).unwrap(), CANARY);
    // An error names what it is about.
    let missing = json!({ "space": "box", "path": format!("~/none/{CANARY}") });
    assert_eq!(agent.fail("download", missing)["kind"], "not_found");

    assert!(tap.bytes() > 100_000, "it was listened to");
    assert!(!tap.heard(CANARY.as_bytes()), "it is in what the relay is sent");
    assert!(relay.metric("spaceport_relay_to_machines_bytes_total") > 0, "it came this way");
    assert!(memory_holds(relay.pid(), MACHINE.as_bytes()), "its memory can be looked into");
    assert!(!memory_holds(relay.pid(), CANARY.as_bytes()), "it is in the relay's memory");

    // The contract's own calls can be read: that is what would be found.
    let (path, prefix) = (format!("~/{CANARY}"), format!("/m/{MACHINE}"));
    let stat = StatRequest { path, ..StatRequest::default() };
    let method = "FilesystemService/Stat";
    drop(call_at::<StatResponse>(tap.address(), &prefix, TOKEN, method, &stat).unwrap());
    assert!(tap.heard(CANARY.as_bytes()));
}

#[test]
fn through_a_relay_nothing_goes_that_is_not_sealed() {
    let ((relay, gateway), here) = (joined(), Here::new());
    fs::write(here.files().join(CANARY), CANARY).unwrap();
    let there = gateway.home().join(CANARY);
    fs::write(&there, CANARY).unwrap();
    for lacks in [Lacks::Key, Lacks::Line] {
        let older = Older::before(relay.http(), lacks);
        let url = format!("http://{}/m/{MACHINE}", older.address());
        here.send(&url, &[CANARY]).failed(6, "relay_unsealed");
        here.download(&[&format!("{url}:{CANARY}"), "in"]).failed(6, "relay_unsealed");
        let mut agent = agent(&url);
        for (tool, arguments) in moves() {
            assert_eq!(agent.fail(tool, arguments)["cause"], "relay_unsealed", "{tool}");
        }
        assert!(!agent.home().join("in").exists());
    }
    // One that takes files to its downloads and nowhere else still does that.
    let older = Older::before(relay.http(), Lacks::Anywhere);
    let url = format!("http://{}/m/{MACHINE}", older.address());
    let mut agent = agent(&url);
    for (tool, arguments) in moves() {
        let elsewhere = tool == "space_write" || arguments["dest"].is_string() && tool == "upload";
        match elsewhere {
            true => assert_eq!(agent.fail(tool, arguments)["cause"], "relay_unsealed"),
            false => drop(agent.get(tool, arguments)),
        }
    }
    // What GStreamer keeps is none of this.
    drop(fs::remove_dir_all(gateway.home().join(".cache")));
    assert_eq!(names(&gateway.home()), ["Downloads", CANARY]);
    assert!(!memory_holds(relay.pid(), CANARY.as_bytes()), "it is in the relay's memory");
}
