//! What comes and goes leaves nothing behind: no memory, no descriptor, no thread.
//!
//! A real gateway, a real window that is resized while it is watched, and viewers that come and go over
//! WebSocket and WHEP. The numbers are the kernel's.

use std::fmt;
use std::time::Duration;

use spaceport_testkit::Xvfb;
use spaceport_tests::{Answer, Event, Gateway, Request, Socket, Via, Window, measured, wait_until};
use spaceport_transport::quic;
use spaceport_transport::whep::player::{self, Played, Player};
use spaceport_types::{Redacted, Size};
use spaceport_wire::pb::{
    ListWindowsRequest, ListWindowsResponse, MediaTarget, OpenMediaRequest, OpenMediaResponse,
    media_target,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Resident memory, in KiB.
    memory: u64,
    descriptors: u64,
    threads: u64,
}

impl Held {
    fn by(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        Self { memory: number("VmRSS:"), descriptors, threads: number("Threads:") }
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, descriptors, threads } = self;
        write!(f, "{memory} KiB, {descriptors} descriptors, {threads} threads")
    }
}

/// Descriptors and threads that may be there one moment and gone the next.
const SLACK: u64 = 4;

/// An offer for H.264, as a player makes it.
const OFFER: &str = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\n\
m=video 9 UDP/TLS/RTP/SAVPF 96\r\nc=IN IP4 0.0.0.0\r\na=mid:0\r\na=recvonly\r\na=rtcp-mux\r\n\
a=setup:actpass\r\na=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\n\
a=fingerprint:sha-256 00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF\r\n\
a=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1;profile-level-id=42e01f;level-asymmetry-allowed=1\r\n\
a=rtcp-fb:96 nack pli\r\n";

/// One gateway and one window.
struct World {
    gateway: Gateway,
    window: Window,
    opened: OpenMediaResponse,
    _xvfb: Xvfb,
}

impl World {
    fn new() -> Self {
        let xvfb = Xvfb::start(Size::new(1280, 1024)).unwrap();
        let window = Window::open(xvfb.display(), "Ledger", "Editor", (20, 20), (400, 300));
        let gateway = Gateway::with_display(xvfb.display());
        let opened = Self::open(&gateway);
        Self { gateway, window, opened, _xvfb: xvfb }
    }

    fn open(gateway: &Gateway) -> OpenMediaResponse {
        let listed: ListWindowsResponse =
            gateway.call("WindowsService/ListWindows", &ListWindowsRequest::default()).unwrap();
        let reference = listed.windows[0].r#ref.clone().unwrap();
        let target = Some(MediaTarget { target: Some(media_target::Target::Window(reference)) });
        let request = OpenMediaRequest { target, ..OpenMediaRequest::default() };
        gateway.call("StreamService/OpenMedia", &request).unwrap()
    }

    async fn attach(&self) -> Socket {
        Socket::open(self.gateway.http(), &self.opened.ws_path, Via::Query, None).await.unwrap()
    }

    /// Resizes the window under a viewer, through odd and tiny sizes.
    async fn resize(&mut self, times: u32) {
        self.reopen();
        let mut socket = self.attach().await;
        for step in 0..times {
            let (width, height) = (1 + step * 37 % 800, 1 + step * 53 % 600);
            self.window.resize(width as u16, height as u16);
            if step % 4 == 0 {
                let shown = async {
                    loop {
                        let (header, _) = socket.packet().await;
                        if header["width_px"] == width && header["height_px"] == height {
                            break;
                        }
                    }
                };
                timeout(Duration::from_secs(10), shown).await.expect("never shown");
            } else {
                // One that is read as it comes; the next size may be faster.
                while let Some(event) = socket.next_within(Duration::from_millis(1)).await {
                    assert!(!matches!(event, Event::Closed(..)), "{event:?}");
                }
            }
        }
        self.window.resize(400, 300);
        socket.leave().await;
    }

    /// Viewers that come, see a picture and go: some say goodbye, some do not.
    async fn join_sockets(&mut self, times: u32) {
        self.reopen();
        for step in 0..times {
            if step % 200 == 199 {
                self.reopen(); // before the ticket expires
            }
            let mut socket = self.attach().await;
            assert_eq!(socket.packet().await.0["keyframe"], true);
            if step % 2 == 0 {
                socket.leave().await;
            }
        }
    }

    fn reopen(&mut self) {
        self.gateway.close(&self.opened.media_session_id);
        self.opened = Self::open(&self.gateway);
    }

    /// The same over WHEP, as far as signalling goes.
    fn join_peers(&mut self, times: u32) {
        self.reopen();
        for step in 0..times {
            if step % 200 == 199 {
                self.reopen();
            }
            let bearer = format!("Bearer {}", self.opened.ticket);
            let headers = [("authorization", &*bearer), ("content-type", "application/sdp")];
            let answer = self.ask("POST", "/whep", &headers, OFFER.as_bytes());
            assert_eq!(answer.status, 201, "{}", answer.text());
            let resource = answer.headers["location"].clone();
            let answer = self.ask("DELETE", &resource, &headers[..1], b"");
            assert!((200..300).contains(&answer.status), "{}", answer.text());
        }
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        Request { method, path, headers, body }.send(self.gateway.http()).unwrap()
    }

    fn settled(&self, what: &str) -> Held {
        settled(&self.gateway, what)
    }

    /// Does everything so many times, twice: what the first round leaves is what a gateway that has
    /// worked holds (buffers, pools, threads of the runtime), and the second may not add to it.
    async fn come_and_go(&mut self, resizes: u32, sockets: u32, peers: u32, grows: u64) {
        self.settled("before");
        self.resize(resizes / 10).await;
        self.join_sockets(sockets / 10).await;
        self.join_peers(peers / 10);
        let warm = self.settled("after a tenth");
        self.resize(resizes / 2).await;
        self.settled("after half of the resizes");
        self.resize(resizes / 2).await;
        self.settled("after the resizes");
        self.join_sockets(sockets).await;
        self.settled("after the sockets");
        self.join_peers(peers);
        let after = self.settled("after the peers");
        // The runtime's idle threads come and go; what leaks one for each of a hundred is seen.
        assert!(after.descriptors <= warm.descriptors + SLACK, "{after} after {warm}");
        assert!(after.threads <= warm.threads + SLACK, "{after} after {warm}");
        assert!(after.memory <= warm.memory + grows, "{after} after {warm}");
    }
}

/// What the gateway holds when everybody has left and everything has closed.
fn settled(gateway: &Gateway, what: &str) -> Held {
    let names = ["spaceport_viewers", "spaceport_pipelines", "spaceport_rungs"];
    let idle = || names.iter().all(|name| gateway.metric(name) == 0);
    wait_until("viewers or pipelines stay", Duration::from_secs(20), idle);
    // Connections and idle threads go in their own time: until nothing has changed for a while.
    let (mut held, mut same) = (Held::by(gateway.pid()), 0);
    let end = Instant::now() + Duration::from_secs(20);
    while same < 12 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(250));
        let now = Held::by(gateway.pid());
        let still = (now.descriptors, now.threads) == (held.descriptors, held.threads);
        same = if still { same + 1 } else { 0 };
        held = now;
    }
    measured(format_args!("{what}: {held}"));
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_and_goes_leaves_nothing_behind() {
    World::new().come_and_go(200, 100, 40, 24 << 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a quarter of an hour"]
async fn what_comes_and_goes_by_the_thousands_leaves_nothing_behind() {
    World::new().come_and_go(5_000, 2_000, 500, 8 << 10).await;
}

/// Viewers of one crowd, and those of them that come over QUIC: a session has room for eight sockets.
const CROWD: usize = 20;
const OVER_QUIC: usize = 8;

/// How long one may take to its first picture, on a machine that is busy with the others.
const PICTURE: Duration = Duration::from_secs(20);

/// A crowd that comes at once, sees a picture and goes. Half of it does not say goodbye.
async fn crowd(gateway: &Gateway, times: u32) {
    for _ in 0..times {
        let opened = gateway.open("test-pattern");
        let ticket = Redacted::new(opened.ticket.clone());
        let quic = opened.quic.as_ref().unwrap();
        let remote = quic::Remote {
            address: (gateway.http().ip(), u16::try_from(quic.port).unwrap()).into(),
            certificates: vec![quic.certificate_sha256.clone()],
        };
        let client = quic::Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}/whep", gateway.http());
        let peer = player::Remote { url, ticket: ticket.clone() };
        let mut viewers = JoinSet::new();
        for index in 0..CROWD {
            let (client, remote, ticket, peer) =
                (client.clone(), remote.clone(), ticket.clone(), peer.clone());
            viewers.spawn(async move {
                let polite = index % 2 == 0;
                if index < OVER_QUIC {
                    let mut connection =
                        client.connect(&remote, &ticket, quic::Video::Streams).await.unwrap();
                    while !matches!(connection.recv().await, quic::Received::Packet(..)) {}
                    if polite {
                        connection.close();
                    }
                } else {
                    let mut player = Player::connect(&peer, Ok).await.unwrap();
                    assert!(matches!(player.recv().await, Played::Frame(_)));
                    if polite {
                        player.leave().await;
                    }
                }
            });
        }
        while let Some(ended) = timeout(PICTURE, viewers.join_next()).await.unwrap() {
            ended.unwrap();
        }
        gateway.close(&opened.media_session_id);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_viewers_that_come_and_go_fifty_times_leave_nothing_behind() {
    let gateway = Gateway::with_test_pattern();
    crowd(&gateway, 10).await;
    let warm = settled(&gateway, "after ten times");
    crowd(&gateway, 50).await;
    let after = settled(&gateway, "after fifty more");
    assert!(after.descriptors <= warm.descriptors + SLACK, "{after} after {warm}");
    assert!(after.threads <= warm.threads + SLACK, "{after} after {warm}");
    // Of a thousand viewers; an allocator's pools take some megabytes more or less.
    assert!(after.memory <= warm.memory + (8 << 10), "{after} after {warm}");
}
