//! A viewer whose path does not carry the stream gets less, keeps up, and costs the others nothing.
//!
//! Real sockets behind a proxy that reads no faster than it is told. What is shown is noise, which no
//! encoder makes small: as much as the path takes is always wanted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_testkit::link::{Profile, Proxy};
use spaceport_tests::{Event, Gateway, Screen, Socket, Throttle, Via, measured};
use spaceport_transport::quic::{Client, Connection, Received, Remote, Video};
use spaceport_types::{Redacted, Size};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

/// What a narrow path carries, and what a wide one does.
const NARROW: u64 = 1_000_000;
const WIDE: u64 = 8_000_000;

/// The same losses each time.
const SEED: u64 = 1;

/// Noise on a display, thirty times a second.
struct Noise {
    stop: Arc<AtomicBool>,
    painter: Option<JoinHandle<()>>,
}

impl Noise {
    fn on(display: &str) -> Self {
        let (screen, stop) = (Screen::connect(display), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let painter = std::thread::spawn(move || {
            let mut seed = 0;
            while !stopped.load(Ordering::Relaxed) {
                screen.noise(100 + 240 * (seed % 2) as i16, 100, seed);
                seed += 1;
                std::thread::sleep(Duration::from_millis(33)); // the pace of the picture
            }
        });
        Self { stop, painter: Some(painter) }
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.painter.take().map(JoinHandle::join));
    }
}

/// One picture as it came.
#[derive(Clone, Debug)]
struct Seen {
    at: Instant,
    /// Since it was captured, by a clock that started at another time.
    delay: Duration,
    sequence: u64,
    keyframe: bool,
    codec_epoch: u64,
    width: u64,
    bytes: usize,
}

/// Reads a socket for as long as it lives.
struct Watcher {
    seen: Arc<Mutex<Vec<Seen>>>,
    ask: mpsc::UnboundedSender<()>,
    stats: mpsc::UnboundedReceiver<Value>,
}

impl Watcher {
    /// Watches, and fails the test when what comes could not be decoded.
    fn over(mut socket: Socket, start: Instant) -> Self {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (ask, mut asked) = mpsc::unbounded_channel();
        let (answer, stats) = mpsc::unbounded_channel();
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut epoch = 0;
            loop {
                tokio::select! {
                    asked = asked.recv() => match asked {
                        Some(()) => socket.send("get_stats", json!({})).await,
                        None => return,
                    },
                    event = socket.next_within(Duration::from_secs(30)) => match event {
                        Some(Event::Packet(header, payload)) => {
                            let number = |name: &str| header[name].as_u64().unwrap();
                            let at = Instant::now();
                            let captured = Duration::from_micros(number("capture_timestamp_us"));
                            let packet = Seen {
                                at,
                                delay: (at - start + Duration::from_secs(60)) - captured,
                                sequence: number("sequence"),
                                keyframe: header["keyframe"] == true,
                                codec_epoch: number("codec_epoch"),
                                width: number("width_px"),
                                bytes: payload.len(),
                            };
                            assert!(packet.keyframe || packet.codec_epoch == epoch, "{packet:?}");
                            assert!(packet.codec_epoch >= epoch, "{packet:?} after {epoch}");
                            epoch = packet.codec_epoch;
                            let mut kept = kept.lock().unwrap();
                            let last = kept.last().map_or(0, |last: &Seen| last.sequence);
                            assert!(packet.sequence > last, "{packet:?} after {last}");
                            kept.push(packet);
                        }
                        Some(Event::Control(kind, payload)) if kind == "stats" => {
                            drop(answer.send(payload));
                        }
                        Some(Event::Control(..)) => {}
                        other => panic!("{other:?}"),
                    },
                }
            }
        });
        Self { seen, ask, stats }
    }

    /// The same of a QUIC connection, of which no statistics are asked.
    fn over_quic(mut connection: Connection, start: Instant) -> Self {
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (ask, _) = mpsc::unbounded_channel();
        let (_, stats) = mpsc::unbounded_channel();
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            loop {
                match connection.recv().await {
                    Received::Packet(header, payload) => {
                        let at = Instant::now();
                        let captured = Duration::from_micros(header.capture_timestamp_us);
                        kept.lock().unwrap().push(Seen {
                            at,
                            delay: (at - start + Duration::from_secs(60)) - captured,
                            sequence: header.sequence,
                            keyframe: header.keyframe,
                            codec_epoch: header.codec_epoch.into(),
                            width: header.width_px.into(),
                            bytes: payload.len(),
                        });
                    }
                    Received::Control(_) => {}
                    Received::Closed(error) => panic!("{error}"),
                }
            }
        });
        Self { seen, ask, stats }
    }

    async fn attach(to: std::net::SocketAddr, path: &str, start: Instant) -> Self {
        Self::over(Socket::open(to, path, Via::Query, None).await.unwrap(), start)
    }

    /// What came since `since`.
    fn since(&self, since: Instant) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|packet| packet.at >= since).cloned().collect()
    }

    async fn stats(&mut self) -> Value {
        self.ask.send(()).unwrap();
        let stats = timeout(Duration::from_secs(10), self.stats.recv()).await;
        stats.expect("no stats came").expect("the socket is closed")
    }
}

/// What is spoken over QUIC.
#[derive(Clone, Copy, Debug)]
enum Way {
    Native,
    WebTransport,
}

/// A gateway that shows noise, a path to it, and viewers.
struct World {
    start: Instant,
    gateway: Gateway,
    throttle: Throttle,
    path: String,
    _noise: Noise,
    _xvfb: Xvfb,
}

impl World {
    async fn new() -> Self {
        let xvfb = Xvfb::start(Size::new(1280, 720)).unwrap();
        let noise = Noise::on(xvfb.display());
        let gateway = Gateway::with_display(xvfb.display());
        let throttle = Throttle::before(gateway.http()).await;
        let path = gateway.open("").ws_path;
        Self { start: Instant::now(), gateway, throttle, path, _noise: noise, _xvfb: xvfb }
    }

    async fn direct(&self) -> Watcher {
        Watcher::attach(self.gateway.http(), &self.path, self.start).await
    }

    async fn throttled(&self) -> Watcher {
        Watcher::attach(self.throttle.address(), &self.path, self.start).await
    }

    /// Over QUIC, behind a link whose losses follow from `seed`.
    async fn over_quic(&self, way: Way, up: Profile, down: Profile, seed: u64) -> (Proxy, Watcher) {
        let opened = self.gateway.open("");
        let quic = opened.quic.as_ref().unwrap();
        let server = (self.gateway.http().ip(), u16::try_from(quic.port).unwrap()).into();
        let proxy = Proxy::start(server, up, down, seed).unwrap();
        let remote = Remote {
            address: proxy.address(),
            certificates: vec![quic.certificate_sha256.clone()],
        };
        let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let ticket = Redacted::new(opened.ticket.clone());
        let connected = match way {
            Way::Native => client.connect(&remote, &ticket, Video::Streams).await,
            Way::WebTransport => {
                client.connect_webtransport(&remote, &ticket, Video::Streams).await
            }
        };
        let connection = connected.unwrap();
        (proxy, Watcher::over_quic(connection, self.start))
    }

    fn metric(&self, name: &str) -> u64 {
        self.gateway.metric(name)
    }

    /// Waits until there are so many rungs below the first.
    async fn rungs(&self, wanted: u64, limit: Duration) -> Duration {
        let began = Instant::now();
        while self.metric("spaceport_rungs") != wanted {
            assert!(began.elapsed() < limit, "not {wanted} rungs within {limit:?}");
            sleep(Duration::from_millis(50)).await;
        }
        began.elapsed()
    }
}

/// Milliseconds that packets took longer than the quickest of `usual`.
fn added(packets: &[Seen], usual: &[Seen]) -> Vec<u64> {
    let least = usual.iter().map(|packet| packet.delay).min().unwrap();
    let mut delays: Vec<u64> = packets
        .iter()
        .map(|packet| packet.delay.saturating_sub(least).as_millis() as u64)
        .collect();
    delays.sort_unstable();
    delays
}

fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

fn kbps(packets: &[Seen], time: Duration) -> u64 {
    let bytes: usize = packets.iter().map(|packet| packet.bytes).sum();
    (bytes as f64 * 8.0 / time.as_secs_f64() / 1000.0) as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_viewer_gets_a_rung_of_its_own_and_the_others_lose_nothing() {
    let world = World::new().await;
    let mut healthy = [world.direct().await, world.direct().await];
    let slow = world.throttled().await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(world.metric("spaceport_rungs"), 0, "nobody is slow yet");
    let usual = slow.since(world.start);
    assert!(usual.len() > 20, "{} pictures", usual.len());

    let narrowed = Instant::now();
    world.throttle.limit(Some(NARROW));
    let took = world.rungs(1, Duration::from_secs(10)).await;
    sleep(Duration::from_secs(4)).await;
    let settled = Instant::now();
    sleep(Duration::from_secs(5)).await;
    let fresh = slow.since(settled);
    let delays = added(&fresh, &usual);
    let changes: Vec<Seen> = slow.since(narrowed).into_iter().filter(|it| it.keyframe).collect();
    measured(format_args!(
        "a rung after {took:?}; then {} pictures in 5 s, {} kbit/s, late by {} ms (p50), {} ms (p95)",
        fresh.len(),
        kbps(&fresh, Duration::from_secs(5)),
        percentile(&delays, 50),
        percentile(&delays, 95),
    ));
    assert!(!changes.is_empty(), "a rung begins with a keyframe");
    assert!(fresh.len() >= 10, "{} pictures in five seconds", fresh.len());
    assert!(fresh.iter().all(|packet| packet.width == 1280), "the size stays");
    // Without a rung it is a second and more, and grows.
    assert!(percentile(&delays, 50) < 500, "late by {delays:?}");

    for healthy in &mut healthy {
        let stats = healthy.stats().await;
        let (lost, sent) = (&stats["frames_dropped"], &stats["frames_since_attach"]);
        let (lost, sent) = (lost.as_u64().unwrap(), sent.as_u64().unwrap());
        measured(format_args!("a healthy viewer lost {lost} beside {sent}"));
        assert!(lost * 50 < sent, "lost {lost} beside {sent}");
        let keyframes = healthy.since(narrowed).iter().filter(|packet| packet.keyframe).count();
        assert!(keyframes <= 1, "{keyframes} keyframes for the slow one");
    }

    world.throttle.limit(None);
    let took = world.rungs(0, Duration::from_secs(20)).await;
    measured(format_args!("back on the full picture after {took:?}"));
    sleep(Duration::from_secs(1)).await;
    let back = Instant::now();
    sleep(Duration::from_secs(2)).await;
    let sequences = |watcher: &Watcher| -> Vec<u64> {
        watcher.since(back).iter().map(|packet| packet.sequence).collect()
    };
    let (all, same) = (sequences(&healthy[0]), sequences(&slow));
    let common = same.iter().filter(|sequence| all.contains(sequence)).count();
    assert!(common * 10 >= all.len() * 9, "{common} of {} pictures are the same", all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_viewer_that_is_alone_needs_no_second_encode() {
    let world = World::new().await;
    let slow = world.throttled().await;
    sleep(Duration::from_secs(3)).await;
    let usual = slow.since(world.start);
    let narrowed = Instant::now();
    world.throttle.limit(Some(NARROW));
    sleep(Duration::from_secs(4)).await;
    let settled = Instant::now();
    sleep(Duration::from_secs(5)).await;
    let fresh = slow.since(settled);
    let delays = added(&fresh, &usual);
    measured(format_args!(
        "{} pictures in 5 s, {} kbit/s, late by {} ms (p50), {} ms (p95)",
        fresh.len(),
        kbps(&fresh, Duration::from_secs(5)),
        percentile(&delays, 50),
        percentile(&delays, 95),
    ));
    assert!(fresh.len() >= 10, "{} pictures in five seconds", fresh.len());
    assert!(percentile(&delays, 50) < 500, "late by {delays:?}");
    assert!(
        slow.since(narrowed).iter().all(|packet| !packet.keyframe),
        "the rate needs no keyframe"
    );
    for (name, wanted) in [("spaceport_rungs", 0), ("spaceport_rung_moves_down_total", 0)] {
        assert_eq!(world.metric(name), wanted, "{name}");
    }
}

/// How long the path is narrow where that is measured.
const NARROW_FOR: Duration = Duration::from_secs(20);

/// The measurement behind the numbers in docs/adr/0007: 8 Mbit/s, then 1 for [`NARROW_FOR`], then 8 again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two minutes; run it alone on a quiet machine"]
async fn eight_one_eight() {
    for others in [0, 1] {
        let world = World::new().await;
        let mut healthy = Vec::new();
        for _ in 0..others {
            healthy.push(world.direct().await);
        }
        world.throttle.limit(Some(WIDE));
        let slow = world.throttled().await;
        let limit = |bits| world.throttle.limit(Some(bits));
        narrows(&format!("websocket, {others} others"), &world, &slow, limit).await;
        for healthy in &mut healthy {
            let stats = healthy.stats().await;
            measured(format_args!(
                "beside it: {} delivered, {} lost",
                stats["frames_since_attach"], stats["frames_dropped"]
            ));
        }
    }
}

/// The same over QUIC, behind a link that delays each packet by 20 ms and queues 200 ms of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "one minute; run it alone on a quiet machine"]
async fn eight_one_eight_over_quic() {
    eight_one_eight_by(Way::Native).await;
}

/// The same as a browser speaks it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "one minute; run it alone on a quiet machine"]
async fn eight_one_eight_over_webtransport() {
    eight_one_eight_by(Way::WebTransport).await;
}

async fn eight_one_eight_by(way: Way) {
    let world = World::new().await;
    let path = Profile { delay: Duration::from_millis(20), ..Profile::CLEAR };
    let (proxy, slow) = world.over_quic(way, path, path.capped(WIDE), SEED).await;
    let name = format!("{way:?}").to_lowercase();
    narrows(&name, &world, &slow, |bits| proxy.change(path, path.capped(bits))).await;
    measured(format_args!("{name}: the link down had {:?}", proxy.counts()[1]));
}

/// Pictures of a desktop over QUIC where one packet in twenty is lost each way, 40 ms there and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute; run it alone on a quiet machine"]
async fn five_percent_lost_over_quic() {
    five_percent_lost_by(Way::Native).await;
}

/// The same as a browser speaks it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute; run it alone on a quiet machine"]
async fn five_percent_lost_over_webtransport() {
    five_percent_lost_by(Way::WebTransport).await;
}

async fn five_percent_lost_by(way: Way) {
    let world = World::new().await;
    let lossy5 = Profile::LOSSY5;
    let (_proxy, lossy) = world.over_quic(way, lossy5, lossy5, SEED).await;
    sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    sleep(Duration::from_secs(20)).await;
    let seen = lossy.since(began);
    let late: Vec<u64> = added(&seen, &seen).into_iter().filter(|late| *late > 20).collect();
    measured(format_args!(
        "{} pictures in 20 s, {} kbit/s; {} were more than 20 ms late: {} ms (p50), {} ms (p95)",
        seen.len(),
        kbps(&seen, Duration::from_secs(20)),
        late.len(),
        late.get(late.len() / 2).copied().unwrap_or_default(),
        late.get(late.len() * 95 / 100).copied().unwrap_or_default(),
    ));
}

/// Plays ten seconds at [`WIDE`], then what is measured.
async fn narrows(name: &str, world: &World, slow: &Watcher, limit: impl Fn(u64)) {
    sleep(Duration::from_secs(10)).await;
    let usual = slow.since(world.start + Duration::from_secs(2));
    let narrowed = Instant::now();
    limit(NARROW);
    sleep(NARROW_FOR).await;
    let lifted = Instant::now();
    limit(WIDE);
    sleep(Duration::from_secs(20)).await;

    let (all, wide) = (slow.since(narrowed), slow.since(lifted));
    let narrow: Vec<Seen> = all.iter().filter(|packet| packet.at < lifted).cloned().collect();
    let delays = added(&narrow, &usual);
    let drained = narrow.iter().find(|packet| {
        packet.at > narrowed + Duration::from_millis(300)
            && added(std::slice::from_ref(packet), &usual)[0] < 300
    });
    let gap = narrow.windows(2).map(|pair| pair[1].at - pair[0].at).max();
    let rate = |from: Instant, packets: &[Seen]| {
        let end = from + Duration::from_secs(1);
        let within = |packet: &&Seen| packet.at >= from && packet.at < end;
        let packets: Vec<Seen> = packets.iter().filter(within).cloned().collect();
        kbps(&packets, Duration::from_secs(1))
    };
    let before = kbps(&usual, narrowed - world.start - Duration::from_secs(2));
    let restored = (0..190)
        .map(|tenth| Duration::from_millis(100) * tenth)
        .find(|&after| rate(lifted + after, &wide) * 10 >= before * 8);
    let moves =
        ["down", "up"].map(|way| world.metric(&format!("spaceport_rung_moves_{way}_total")));
    let keyframes = all.iter().filter(|packet| packet.keyframe).count();
    measured(format_args!(
        "{name}: before {before} kbit/s; at 1 Mbit/s {} pictures, {} kbit/s, late by {} ms (p50), {} ms \
         (p95), {} ms (most), longest gap {gap:?}, drained after {:?}; 80 % of before after \
         {restored:?}; {moves:?} moves, {keyframes} keyframes",
        narrow.len(),
        kbps(&narrow, NARROW_FOR),
        percentile(&delays, 50),
        percentile(&delays, 95),
        percentile(&delays, 100),
        drained.map(|packet| packet.at - narrowed),
    ));
    // Milliseconds since the path became narrow, milliseconds late, bytes; of each picture that came.
    let raw: Vec<[u64; 3]> = all
        .iter()
        .map(|packet| {
            let at = (packet.at - narrowed).as_millis() as u64;
            [at, added(std::slice::from_ref(packet), &usual)[0], packet.bytes as u64]
        })
        .collect();
    measured(format_args!("{name}: raw {}", json!(raw)));
}
