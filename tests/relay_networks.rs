//! A guest behind a NAT, a relay, and a client somewhere else, each with a network of its own: what works on
//! one machine works between three, by UDP and where that is blocked.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_tests::{
    Folder, Gateway, Internet, Relay, Script, Start, TOKEN, binary, call_at, cua, measured,
    wait_until,
};
use spaceport_transport::{Received, websocket};
use spaceport_types::Redacted;
use spaceport_wire::control::{LifecycleEvent, ServerMessage};
use spaceport_wire::pb::{MediaTarget, OpenMediaRequest, OpenMediaResponse, media_target};
use tokio::time::{Instant, timeout};

const SOON: Duration = Duration::from_secs(20);

/// Machines are back this soon after a relay that was killed is there again.
const BACK: Duration = Duration::from_secs(3);

const ID: &str = "guest-behind-nat";

fn guest(internet: &Internet, relay: &Relay) -> Gateway {
    let joining = relay.joining(ID);
    let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
    let namespace = internet.guest();
    let gateway = Gateway::start(Start {
        test_pattern: true,
        namespace: Some(&namespace),
        arguments: &arguments,
        ..Start::default()
    });
    relay.wait(ID, true, SOON);
    gateway
}

/// The same command on the client's machine.
fn there(internet: &Internet, command: &Command) -> Command {
    let mut far = internet.client(command.get_program().to_str().unwrap());
    far.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => far.env(name, value),
            None => far.env_remove(name),
        };
    }
    far
}

/// What the published client sees of the guest: a picture.
fn client_plays(internet: &Internet, relay: &Relay) {
    let home = Folder::new("cua");
    let command = cua("cua_client.py", &relay.machine_url(ID), TOKEN, home.path());
    let mut client = Script::spawn(there(internet, &command));
    let added = client.hear();
    assert_eq!(added["step"], "added", "{added}");
    assert_eq!(client.hear()["displays"][0]["id"], "test-pattern");
    drop(client.hear());
    assert_eq!(client.hear()["codec"], "h264");
    let watched = client.hear();
    assert!(watched["frames"].as_array().unwrap().len() >= 10, "{watched}");
    assert_eq!(watched["frames"][0]["keyframe"], true);
}

/// A file goes to the guest and is whole there.
fn client_sends(internet: &Internet, relay: &Relay, guest: &Gateway, name: &str) {
    let here = Folder::new("here");
    let bytes: Vec<u8> = (0..8_000_001_u32).map(|n| (n.wrapping_mul(n) >> 5) as u8).collect();
    fs::write(here.path().join(name), &bytes).unwrap();
    let mut send = internet.client(binary().to_str().unwrap());
    send.args(["send", "--json", "--to", &relay.machine_url(ID), name])
        .current_dir(here.path())
        .env("SPACEPORT_TOKEN", TOKEN)
        .env("SPACEPORT_CONFIG_DIR", here.path().join("config"))
        .env("XDG_STATE_HOME", here.path().join("state"))
        .stdin(Stdio::null());
    let began = Instant::now();
    let output = send.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let sent: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(sent["files"], 1, "{sent}");
    measured(format_args!("8 MB in {:?} by {}", began.elapsed(), relay.status(ID)["carrier"]));
    assert!(fs::read(guest.home().join("Downloads").join(name)).unwrap() == bytes);
}

#[test]
fn a_guest_behind_a_nat_is_reached_by_quic() {
    let Some(internet) = Internet::new() else { return };
    let relay = Relay::at(internet.relay(), &[]);
    let guest = guest(&internet, &relay);
    assert_eq!(relay.status(ID)["carrier"], "quic");
    client_plays(&internet, &relay);
    client_sends(&internet, &relay, &guest, "by-quic");
}

#[test]
fn a_guest_whose_network_drops_udp_is_reached_by_websocket() {
    let Some(internet) = Internet::new() else { return };
    let relay = Relay::at(internet.relay(), &[]);
    internet.block_udp();
    let guest = guest(&internet, &relay);
    assert_eq!(relay.status(ID)["carrier"], "websocket");
    client_plays(&internet, &relay);
    client_sends(&internet, &relay, &guest, "by-websocket");
}

#[test]
fn a_guest_moves_to_quic_once_udp_passes_and_what_is_under_way_is_not_disturbed() {
    let Some(internet) = Internet::new() else { return };
    let relay = Relay::at(internet.relay(), &[]);
    internet.block_udp();
    let guest = guest(&internet, &relay);
    assert_eq!(relay.status(ID)["carrier"], "websocket");
    let since = relay.status(ID)["since"].clone();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let mut viewer = runtime.block_on(watch(&relay));
    runtime.block_on(sees(&mut viewer, 5));
    // Half of a request, which the guest has begun to read.
    let begin = || {
        let mut under_way = TcpStream::connect(relay.http()).unwrap();
        let head = format!(
            "POST /m/{ID}/whep HTTP/1.1\r\nHost: relay\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/sdp\r\nContent-Length: 10\r\nConnection: close\r\n\r\nno "
        );
        under_way.write_all(head.as_bytes()).unwrap();
        under_way
    };
    let (idle, mut under_way) = (relay.status(ID)["requests"].as_u64().unwrap(), begin());
    wait_until("the guest has the request", SOON, || {
        relay.status(ID)["requests"].as_u64().is_some_and(|requests| requests > idle)
    });
    // A file that takes longer than the move does.
    let shape = "qdisc add dev cable root tbf rate 3mbit burst 32kb latency 400ms";
    assert!(internet.client("tc").args(shape.split(' ')).status().unwrap().success());
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| client_sends(&internet, &relay, &guest, "across-the-move"));
        internet.mend();
        let (began, mut last) = (Instant::now(), Instant::now());
        wait_until("the guest moves", Duration::from_secs(120), || {
            // A guest waits ten seconds for the rest.
            if last.elapsed() > Duration::from_secs(5) {
                (under_way, last) = (begin(), Instant::now());
            }
            let status = relay.status(ID);
            assert_eq!(status["online"], true, "it is there all the time");
            runtime.block_on(sees(&mut viewer, 1));
            status["carrier"] == "quic"
        });
        let passed = began.elapsed();
        measured(format_args!("moved {passed:?} after UDP; sent: {}", sending.is_finished()));
        under_way.write_all(b"offer..").unwrap();
        let mut answer = String::new();
        under_way.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("v=0"), "{answer}");
        runtime.block_on(sees(&mut viewer, 30));
        sending.join().unwrap();
    });
    assert_eq!(relay.status(ID)["since"], since);
    assert_eq!(relay.metric("spaceport_relay_machines_moved_total"), 1);
    assert!(!relay.log().contains("it has moved"), "the viewer keeps it");
    client_sends(&internet, &relay, &guest, "by-the-new-way");
    drop(viewer);
    wait_until("the old tunnel is closed", SOON, || relay.log().contains("it has moved"));
    assert_eq!(relay.status(ID)["carrier"], "quic");
    client_plays(&internet, &relay);
}

/// A viewer of the guest, at the relay.
async fn watch(relay: &Relay) -> websocket::client::Connection {
    let display_id = "test-pattern".to_owned();
    let target = MediaTarget { target: Some(media_target::Target::DisplayId(display_id)) };
    let request = OpenMediaRequest { target: Some(target), ..OpenMediaRequest::default() };
    let (http, prefix) = (relay.http(), format!("/m/{ID}"));
    let opened: OpenMediaResponse =
        call_at(http, &prefix, TOKEN, "StreamService/OpenMedia", &request).unwrap();
    let url = format!("ws://{http}{prefix}{}", opened.ws_path);
    websocket::client::connect(&Redacted::new(url)).await.unwrap()
}

/// It sees more of the picture, which nothing has stopped.
async fn sees(viewer: &mut websocket::client::Connection, frames: usize) {
    let mut seen = 0;
    while seen < frames {
        match timeout(SOON, viewer.recv()).await.expect("nothing came") {
            Received::Packet(..) => seen += 1,
            Received::Control(ServerMessage::Lifecycle(it)) => {
                let stopped = matches!(it.event, LifecycleEvent::Suspended { .. });
                assert!(!stopped, "{it:?}");
            }
            Received::Control(_) => {}
            Received::Closed(error) => panic!("closed instead: {error}"),
        }
    }
}

#[test]
fn a_relay_that_was_killed_and_a_network_that_was_cut_are_gone_on_from() {
    let Some(internet) = Internet::new() else { return };
    let mut relay = Relay::at(internet.relay(), &[]);
    let guest = guest(&internet, &relay);
    relay.kill();
    relay.start_again();
    let began = Instant::now();
    relay.wait(ID, true, BACK);
    measured(format_args!("back {:?} after the relay", began.elapsed()));
    client_sends(&internet, &relay, &guest, "after-a-restart");

    internet.cut();
    relay.wait(ID, false, Duration::from_secs(30));
    let offline = relay.ask("GET", &format!("/m/{ID}/health"));
    assert_eq!((offline.status, &offline.json()["kind"]), (502, &json!("relay")));
    internet.mend();
    let began = Instant::now();
    relay.wait(ID, true, SOON);
    measured(format_args!("back {:?} after the network", began.elapsed()));
    client_sends(&internet, &relay, &guest, "after-a-cut");
}
