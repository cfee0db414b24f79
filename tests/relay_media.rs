//! Media through a real relay: viewers of every sort see a machine's picture there, and the machine sends it once.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_tests::{
    Browser, Folder, Gateway, Relay, Request, Script, Socket, Start, TOKEN, call_at, measured,
    memory_holds, offer, wait_until,
};
use spaceport_transport::quic::{self, Client, Remote, Video};
use spaceport_transport::whep::player::{self, Played, Player};
use spaceport_transport::{Received, websocket};
use spaceport_types::{Cause, Redacted};
use spaceport_wire::control::{LifecycleEvent, ServerMessage};
use spaceport_wire::pb::{
    CloseMediaRequest, CloseMediaResponse, MediaTarget, OpenMediaRequest, OpenMediaResponse,
    media_target,
};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

const MACHINE: &str = "build-box-7";

/// How long a test waits for one thing, on a machine with more to do.
const SOON: Duration = Duration::from_secs(20);

struct World {
    relay: Relay,
    gateway: Gateway,
    runtime: Runtime,
}

impl World {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(arguments: &[&str]) -> Self {
        let relay = Relay::start(arguments);
        let joining = relay.joining(MACHINE);
        let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
        let gateway =
            Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() });
        relay.wait(MACHINE, true, SOON);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { relay, gateway, runtime: runtime.unwrap() }
    }

    /// Opens a session through the relay.
    fn open(&self) -> OpenMediaResponse {
        let display_id = "test-pattern".to_owned();
        let target = MediaTarget { target: Some(media_target::Target::DisplayId(display_id)) };
        let request = OpenMediaRequest { target: Some(target), ..OpenMediaRequest::default() };
        self.call("StreamService/OpenMedia", &request)
    }

    fn close(&self, session: &str) {
        let request = CloseMediaRequest { media_session_id: session.to_owned() };
        let _: CloseMediaResponse = self.call("StreamService/CloseMedia", &request);
    }

    fn call<A: prost::Message + Default>(&self, method: &str, request: &impl prost::Message) -> A {
        let prefix = format!("/m/{MACHINE}");
        call_at(self.relay.http(), &prefix, TOKEN, method, request).unwrap()
    }

    /// How every keyframe of the pattern begins: its parameter sets, from the machine itself.
    fn keyframe(&self) -> Vec<u8> {
        let opened = self.gateway.open("test-pattern");
        self.runtime.block_on(async {
            let mut socket = Socket::attach(self.gateway.http(), &opened.ticket).await.unwrap();
            let (_, keyframe) = socket.packet().await;
            socket.leave().await;
            keyframe[..20].to_vec()
        })
    }

    /// The way in by QUIC that the machine names.
    fn remote(&self, opened: &OpenMediaResponse) -> Remote {
        let quic = opened.quic.as_ref().expect("no way in by QUIC is named");
        let port = u16::try_from(quic.port).unwrap();
        assert_eq!(port, self.relay.quic().port(), "it is the relay's");
        let address = SocketAddr::new(self.relay.http().ip(), port);
        Remote { address, certificates: vec![quic.certificate_sha256.clone()] }
    }

    fn socket(&self, opened: &OpenMediaResponse) -> websocket::client::Connection {
        let url = format!("ws://{}/m/{MACHINE}{}", self.relay.http(), opened.ws_path);
        self.runtime.block_on(websocket::client::connect(&Redacted::new(url))).unwrap()
    }
}

/// What comes over any transport of the media protocol.
trait Watching {
    async fn next(&mut self) -> Received;
}

impl Watching for websocket::client::Connection {
    async fn next(&mut self) -> Received {
        timeout(SOON, self.recv()).await.expect("nothing came")
    }
}

impl Watching for quic::Connection {
    async fn next(&mut self) -> Received {
        timeout(SOON, self.recv()).await.expect("nothing came")
    }
}

/// The sequences of `frames` frames; the first is a keyframe.
async fn frames(viewer: &mut impl Watching, frames: usize) -> Vec<u64> {
    let mut sequences = Vec::new();
    while sequences.len() < frames {
        match viewer.next().await {
            Received::Packet(header, _) => {
                assert!(header.keyframe || !sequences.is_empty(), "no keyframe first");
                assert!(sequences.last().is_none_or(|&last| header.sequence > last));
                sequences.push(header.sequence);
            }
            Received::Control(_) => {}
            Received::Closed(error) => panic!("closed instead: {error}"),
        }
    }
    sequences
}

#[test]
fn viewers_of_every_sort_see_the_picture_and_the_machine_sends_it_once() {
    let world = World::new();
    let opened = world.open();
    let client = {
        let _runtime = world.runtime.enter();
        Client::bind("127.0.0.1:0".parse().unwrap()).unwrap().at_machine(MACHINE)
    };
    let (remote, ticket) = (world.remote(&opened), Redacted::new(opened.ticket.clone()));
    let mut sockets: Vec<_> = (0..12).map(|_| world.socket(&opened)).collect();
    world.runtime.block_on(async {
        for socket in &mut sockets {
            frames(socket, 5).await;
        }
        let mut native = client.connect(&remote, &ticket, Video::Streams).await.unwrap();
        frames(&mut native, 5).await;
        let mut datagrams = client.connect(&remote, &ticket, Video::Datagrams).await.unwrap();
        frames(&mut datagrams, 5).await;
        let mut web = client.connect_webtransport(&remote, &ticket, Video::Streams).await.unwrap();
        frames(&mut web, 5).await;
        let remote = player::Remote {
            url: format!("{}/whep", world.relay.machine_url(MACHINE)),
            ticket: ticket.clone(),
        };
        let mut player = Player::connect(&remote, Ok).await.unwrap();
        for _ in 0..5 {
            match timeout(SOON, player.recv()).await.expect("no picture came") {
                Played::Frame(_) => {}
                Played::Closed(error) => panic!("{error}"),
            }
        }
        assert_eq!(world.gateway.metric("spaceport_viewers"), 1, "the relay alone");
        assert_eq!(world.gateway.metric("spaceport_pipelines"), 1);
    });
    drop(sockets);
}

#[test]
fn the_relay_tells_of_its_turn_server_whom_the_machine_lets_in_and_nobody_else() {
    let folder = Folder::new("relay-ice-servers");
    let file = folder.path().join("servers.json");
    let servers = json!([{ "urls": "turn:turn.example.org", "secret": "a-shared-secret" }]);
    std::fs::write(&file, servers.to_string()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let world = World::with(&["--ice-servers", file.to_str().unwrap()]);
    let path = format!("/m/{MACHINE}/whep?display=test-pattern");
    let link = |method: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", &*bearer), ("content-type", "application/sdp")];
        let offer = if method == "POST" { offer("H264") } else { String::new() };
        let request = Request { method, path: &path, headers: &headers, body: offer.as_bytes() };
        let answer = request.send(world.relay.http()).unwrap();
        (answer.status, answer.headers.get("link").cloned())
    };
    let (status, asked) = link("OPTIONS", TOKEN);
    let asked = asked.expect("OPTIONS tells of no server");
    assert!(status == 204 && asked.starts_with("<turn:turn.example.org>; rel=\"ice-server\""));
    let ledger = || std::fs::read_to_string(world.relay.state().join("ledger.jsonl")).unwrap();
    assert!(!ledger().contains("attached"), "who only asks is no viewer");
    let (status, answered) = link("POST", TOKEN);
    let answered = answered.expect("201 tells of no server");
    assert!(status == 201 && answered.contains("credential-type=\"password\""), "{status}");
    assert!(ledger().contains("attached"));
    assert_ne!(asked, answered, "each has credentials of its own");
    assert_eq!(link("OPTIONS", "0123456789abcdef-not-the-token"), (204, None));
    assert_eq!(link("POST", "0123456789abcdef-not-the-token"), (401, None));
}

#[test]
fn a_late_viewer_at_a_warm_relay_is_served_there() {
    let world = World::new();
    let opened = world.open();
    let mut first = world.socket(&opened);
    world.runtime.block_on(frames(&mut first, 40));
    let began = Instant::now();
    let mut late = world.socket(&opened);
    world.runtime.block_on(frames(&mut late, 1));
    measured(format_args!("first picture through a warm relay: {:?}", began.elapsed()));
    assert_eq!(world.gateway.metric("spaceport_viewers"), 1, "nobody came to the machine");
}

#[test]
fn a_session_that_is_closed_is_over_at_the_relay_at_once() {
    let world = World::new();
    let opened = world.open();
    let mut viewer = world.socket(&opened);
    world.runtime.block_on(frames(&mut viewer, 2));
    world.close(&opened.media_session_id);
    let error = world.runtime.block_on(async {
        loop {
            if let Received::Closed(error) = viewer.next().await {
                return error;
            }
        }
    });
    assert_eq!(error.cause(), Some(Cause::SessionClosed));
    // The ticket that opened it opens nothing any more, though it has not expired.
    let url = format!("ws://{}/m/{MACHINE}{}", world.relay.http(), opened.ws_path);
    let refused = world.runtime.block_on(websocket::client::connect(&Redacted::new(url)));
    assert_eq!(refused.unwrap_err().cause(), Some(Cause::SessionClosed));
}

#[test]
fn a_ticket_of_another_machine_opens_nothing() {
    let world = World::new();
    let joining = world.relay.joining("other-box-9");
    let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
    let _other =
        Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() });
    world.relay.wait("other-box-9", true, SOON);
    let opened = world.open();
    for (machine, path) in [
        ("other-box-9", opened.ws_path),
        (MACHINE, "/media?ticket=AAAAAAAAAAAAAAAAAAAAAA".to_owned()),
    ] {
        let url = Redacted::new(format!("ws://{}/m/{machine}{path}", world.relay.http()));
        let refused = world.runtime.block_on(websocket::client::connect(&url)).unwrap_err();
        assert_eq!(refused.kind(), spaceport_types::Kind::Unauthenticated, "{machine}");
    }
}

#[test]
fn a_picture_stands_still_while_the_relay_has_no_machine_and_goes_on_by_itself() {
    let world = World::new();
    let opened = world.open();
    let mut viewer = world.socket(&opened);
    world.runtime.block_on(frames(&mut viewer, 5));
    // The machine stops for longer than the relay believes in it, and then goes on.
    let signal = |name: &str| {
        let pid = world.gateway.pid().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    let suspended = world.runtime.block_on(async {
        loop {
            match viewer.next().await {
                Received::Control(ServerMessage::Lifecycle(it)) => return it.event,
                Received::Closed(error) => panic!("{error}"),
                _ => {}
            }
        }
    });
    signal("-CONT");
    let LifecycleEvent::Suspended { error: Some(error), .. } = suspended else {
        panic!("{suspended:?}")
    };
    assert_eq!(error.cause.as_deref(), Some("guest_offline"));
    let began = Instant::now();
    let again = world.runtime.block_on(async {
        loop {
            match viewer.next().await {
                Received::Packet(header, _) => return header,
                Received::Closed(error) => panic!("{error}"),
                Received::Control(_) => {}
            }
        }
    });
    assert!(again.keyframe);
    measured(format_args!("the picture is back {:?} after the machine is", began.elapsed()));
}

#[test]
fn chromium_shows_the_pattern_through_a_relay_by_webtransport() {
    browser("webtransport");
}

#[test]
fn chromium_shows_the_pattern_through_a_relay_by_webrtc() {
    browser("whep");
}

#[test]
fn chromium_shows_the_pattern_through_a_relay_by_websocket() {
    browser("ws");
}

fn browser(transport: &str) {
    let world = World::new();
    let at_machine =
        world.gateway.viewer_url(&format!("target=test-pattern&transport={transport}"));
    let (_, page) = at_machine.split_once("/viewer/").unwrap();
    let url = format!("{}/viewer/{page}", world.relay.machine_url(MACHINE));
    let seen = Script::browser("pattern.mjs", Browser::Chromium, &[&url, "2000"]).hear();
    assert_eq!(seen["transport"], transport);
    assert_eq!(seen["complaints"], json!([]), "the page or the browser complained");
    let pictures = seen["pictures"].as_array().unwrap();
    let counter = |picture: &Value| picture["counter"].as_u64().unwrap();
    for pair in pictures.windows(2) {
        assert!(counter(&pair[0]) < counter(&pair[1]), "the picture went back: {pair:?}");
    }
    assert!(pictures.len() > 10, "not smooth: {} pictures", pictures.len());
    if transport != "whep" {
        // The machine's clock, told by the relay.
        let latency = seen["stats"]["latency"].as_f64().unwrap();
        assert!((0.0..1_000.0).contains(&latency), "{latency} ms from capture to picture");
    }
    measured(format_args!("{transport}: {} pictures, {}", pictures.len(), seen["stats"]));
    if transport == "ws" {
        // A browser that is killed says goodbye over TCP alone.
        let gone = || world.gateway.metric("spaceport_viewers") == 0;
        wait_until("the relay watches still", SOON, gone);
    }
}

/// The link that `serve --relay` prints: pictures in Chromium, and none at the relay that carries them.
#[test]
fn a_relay_holds_no_picture_of_a_sealed_link() {
    let world = World::new();
    let link = world.gateway.endpoints()["relay_viewer_url"].as_str().unwrap();
    for transport in ["webtransport", "ws"] {
        let url = format!("{link}&target=test-pattern&transport={transport}");
        let mut script = Script::browser("pattern.mjs", Browser::Chromium, &[&url, "1000"]);
        let seen = script.hear();
        assert_eq!(seen["transport"], transport);
        assert_eq!(seen["complaints"], json!([]), "the page or the browser complained");
        assert_eq!(seen["unreadable"], 0, "a picture came out damaged");
        assert!(seen["pictures"].as_array().unwrap().len() > 10, "{seen}");

        assert!(!memory_holds(world.relay.pid(), &world.keyframe()), "{transport}");
    }
    let opened = world.open();
    let mut viewer = world.socket(&opened);
    world.runtime.block_on(frames(&mut viewer, 5));
    assert!(memory_holds(world.relay.pid(), &world.keyframe()), "the search finds what is there");
}
