//! Plain WHEP players, which know an address and a token and nothing else of spaceport.
//!
//! One of our own that lets media travel by one way only, with a real TURN server between; and those
//! that others wrote, on WebRTC stacks of their own: two for browsers, aiortc and GStreamer.

use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use spaceport_tests::{
    Browser, Folder, Gateway, Relay, Script, Start, TOKEN, assert_shows_the_pattern, wait_until,
};

/// What a player says once it plays, and again a little later.
fn play(gateway: &Gateway, browser: Browser, way: &str) -> (Value, Value) {
    play_at(&format!("http://{}", gateway.http()), browser, way)
}

fn play_at(origin: &str, browser: Browser, way: &str) -> (Value, Value) {
    let mut player = Script::browser("player.mjs", browser, &[origin, TOKEN, way]);
    let first = player.hear();
    player.go_on();
    (first, player.hear())
}

#[test]
fn chromium_plays_where_only_the_tcp_port_passes() {
    let gateway = Gateway::with_test_pattern();
    let (played, _) = play(&gateway, Browser::Chromium, "tcp");
    assert!(played["frames"].as_u64().unwrap() >= 10, "{played}");
    assert_eq!(played["remote"]["protocol"], "tcp", "{played}");
    assert_eq!(played["servers"], json!([]));
}

#[test]
fn chromium_takes_udp_where_both_pass() {
    let gateway = Gateway::with_test_pattern();
    let (played, _) = play(&gateway, Browser::Chromium, "any");
    assert!(played["frames"].as_u64().unwrap() >= 10, "{played}");
    assert_eq!(played["remote"]["protocol"], "udp", "{played}");
    assert!(played["candidates"].as_u64().unwrap() >= 2, "{played}");
}

#[test]
fn chromium_plays_through_a_turn_server_over_udp() {
    relayed("udp");
}

#[test]
fn chromium_plays_through_a_turn_server_over_tcp() {
    relayed("tcp");
}

/// The machine knows of no TURN server; its relay does.
#[test]
fn chromium_plays_through_a_relay_and_the_turn_server_that_it_names() {
    let turn = Turn::start("a-shared-secret");
    let (folder, urls) = servers(&turn);
    let config = folder.path().join("relay.toml");
    let file = folder.path().join("servers.json");
    std::fs::write(&config, format!("ice_servers = \"{}\"\n", file.display())).unwrap();
    let relay = Relay::start(&["--config", config.to_str().unwrap()]);
    let joining = relay.joining("build-box-7");
    let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
    let gateway =
        Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() });
    relay.wait("build-box-7", true, Duration::from_secs(20));
    let (played, _) = play_at(&relay.machine_url("build-box-7"), Browser::Chromium, "turn-udp");
    assert_eq!(played["servers"], json!(urls));
    assert!(played["frames"].as_u64().unwrap() >= 10, "{played}");
    let local = &played["local"];
    assert_eq!((&local["type"], &local["relay"]), (&json!("relay"), &json!("udp")), "{played}");
    assert!(!relay.log().contains("a-shared-secret") && !gateway.log().contains("a-shared-secret"));
}

/// A file that names `turn`, in a folder, and its addresses.
fn servers(turn: &Turn) -> (Folder, [String; 2]) {
    let folder = Folder::new("ice-servers");
    let file = folder.path().join("servers.json");
    let urls = ["udp", "tcp"].map(|by| format!("turn:{}?transport={by}", turn.address));
    let servers = json!([{ "urls": urls, "secret": "a-shared-secret" }]);
    std::fs::write(&file, servers.to_string()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    (folder, urls)
}

/// Credentials are minted from the secret that gateway and TURN server share.
fn relayed(transport: &str) {
    let turn = Turn::start("a-shared-secret");
    let (folder, urls) = servers(&turn);
    let file = folder.path().join("servers.json");
    let gateway = Gateway::start(Start {
        test_pattern: true,
        arguments: &["--ice-servers", file.to_str().unwrap()],
        ..Start::default()
    });
    let (played, _) = play(&gateway, Browser::Chromium, &format!("turn-{transport}"));
    assert_eq!(played["servers"], json!(urls));
    assert!(played["frames"].as_u64().unwrap() >= 10, "{played}");
    let local = &played["local"];
    assert_eq!((&local["type"], &local["relay"]), (&json!("relay"), &json!(transport)), "{played}");
    assert!(!gateway.log().contains("a-shared-secret"));
}

/// `whip-whep` sends two PATCHes without `If-Match`, and the token with each request.
#[test]
fn a_player_that_others_wrote_is_refused_without_the_token_and_plays_with_it() {
    let gateway = Gateway::with_test_pattern();
    let origin = format!("http://{}", gateway.http());
    let mut player = Script::browser("whip_whep.mjs", Browser::Chromium, &[&origin, TOKEN]);
    let said = player.hear();
    assert!(said["refused"].as_str().unwrap().contains("401"), "{said}");
    assert!(said["decoded"].as_u64().unwrap() >= 10, "{said}");
    let requests: Vec<(String, u64)> = serde_json::from_value(said["requests"].clone()).unwrap();
    let has = |method: &str, status| {
        requests.iter().any(|(asked, answered)| asked == method && *answered == status)
    };
    assert!(has("POST", 401) && has("POST", 201) && has("DELETE", 200), "{said}");
    let patches = requests.iter().filter(|(method, _)| method == "PATCH");
    assert!(patches.clone().count() > 0 && patches.clone().all(|(_, it)| *it == 204), "{said}");
}

/// `@eyevinn/webrtc-player` asks for sound as well, and takes the picture from the track's stream.
#[test]
fn another_player_for_browsers_is_refused_without_the_token_and_plays_with_it() {
    let gateway = Gateway::with_test_pattern();
    let origin = format!("http://{}", gateway.http());
    let said = Script::browser("eyevinn.mjs", Browser::Chromium, &[&origin, TOKEN]).hear();
    assert_eq!(said["refused"], true, "{said}");
    assert_shows_the_pattern(&said);
    assert_eq!(said["requests"], json!([["POST", 401], ["POST", 201], ["DELETE", 200]]));
}

#[test]
fn aiortc_plays_h264() {
    let said = aiortc(TOKEN, "h264");
    assert_shows_the_pattern(&said);
    assert_eq!(said["deleted"], 200, "{said}");
}

#[test]
fn aiortc_plays_vp8() {
    assert_shows_the_pattern(&aiortc(TOKEN, "vp8"));
}

#[test]
fn aiortc_is_refused_without_the_token() {
    let said = aiortc("wrong", "h264");
    assert_eq!(
        (&said["status"], &said["problem"]["kind"]),
        (&json!(401), &json!("unauthenticated"))
    );
}

/// What a player in Python says.
fn aiortc(token: &str, codec: &str) -> Value {
    let gateway = Gateway::with_test_pattern();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../target/venv-aiortc/bin/python");
    assert!(python.exists(), "aiortc is missing: run `scripts/setup test`");
    let mut command = Command::new(python);
    command.arg(root.join("e2e/aiortc_player.py")).args([&*endpoint(&gateway), token, codec]);
    Script::spawn(command).hear()
}

/// GStreamer's DTLS has an RSA certificate, and its offer names no codec parameters.
#[test]
fn whepsrc_of_gstreamer_plays_h264() {
    assert_shows_the_pattern(&whepsrc(TOKEN, "h264"));
}

#[test]
fn whepsrc_of_gstreamer_plays_vp8() {
    assert_shows_the_pattern(&whepsrc(TOKEN, "vp8"));
}

#[test]
fn whepsrc_of_gstreamer_is_refused_without_the_token() {
    let said = whepsrc("wrong", "h264");
    assert_eq!(said["frames"], 0);
    assert!(said["error"].as_str().unwrap().contains("401"), "{said}");
}

/// What GStreamer's player says.
fn whepsrc(token: &str, codec: &str) -> Value {
    let gateway = Gateway::with_test_pattern();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/whepsrc/debug/spaceport-whepsrc");
    assert!(Path::new(program).exists(), "`whepsrc` is missing: run `scripts/setup test`");
    let mut command = Command::new(program);
    command.args([&*endpoint(&gateway), token, codec]);
    Script::spawn(command).hear()
}

fn endpoint(gateway: &Gateway) -> String {
    format!("http://{}/whep?display=test-pattern", gateway.http())
}

/// A coturn of its own, stopped when dropped.
struct Turn {
    child: Child,
    address: SocketAddr,
    _folder: Folder,
}

impl Turn {
    fn start(secret: &str) -> Self {
        let folder = Folder::new("turn");
        // Both transports have to be free; nobody else takes a port that was just free.
        let address = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let config = folder.path().join("turnserver.conf");
        // In a file: the list of processes shows arguments to everyone.
        std::fs::write(&config, format!("use-auth-secret\nstatic-auth-secret={secret}\n")).unwrap();
        let child = Command::new("turnserver")
            .arg("-c")
            .arg(&config)
            .args(["--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1", "--realm=test"])
            .arg(format!("--listening-port={}", address.port()))
            .arg(format!("--userdb={}", folder.path().join("users").display()))
            .arg(format!("--pidfile={}", folder.path().join("pid").display()))
            .args(["--allow-loopback-peers", "--fingerprint", "--log-file=stdout"])
            .args(["--no-tls", "--no-dtls", "--no-cli"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("coturn is installed (`scripts/setup test`)");
        wait_until("coturn listens", Duration::from_secs(10), || {
            TcpStream::connect(address).is_ok()
        });
        Self { child, address, _folder: folder }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        drop(self.child.wait());
    }
}
