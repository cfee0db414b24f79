//! However many watch at a relay, the machine encodes once and sends once: counted on the machine's line.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use spaceport_relay::audit::Event;
use spaceport_state::Ledger;
use spaceport_tests::{Gateway, Relay, Start, TOKEN, Tap, call_at, measured};
use spaceport_transport::Received;
use spaceport_transport::websocket::client::{self, Connection};
use spaceport_types::Redacted;
use spaceport_wire::pb::{MediaTarget, OpenMediaRequest, OpenMediaResponse, media_target};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const MACHINE: &str = "build-box-7";

/// How long a test waits for one thing, on a machine with more to do.
const SOON: Duration = Duration::from_secs(30);

/// Those who come while one watches.
const LATE: usize = 100;

/// What one measurement spans, in frames: four seconds.
const SPAN: u64 = 120;

/// What a machine makes keyframes at, at most.
const KEYFRAMES: Duration = Duration::from_millis(500);

/// The most that a judged ticket may cost on the line, both ways: the head, and what the session is.
const ADMISSION: usize = 4 << 10;

/// The most that a frame may cost on the line beyond its own bytes: its head, the tunnel's, and those of TCP and
/// what answers it. A second copy would cost the frame once more.
const FRAME: u64 = 600;

/// What crossed the machine's line, and what one viewer got of it.
#[derive(Debug)]
struct Span {
    line: usize,
    stream: usize,
    frames: u64,
    encoded: u64,
    keyframes: u64,
    time: Duration,
}

impl Span {
    /// What one copy may take of the line.
    fn one_copy(&self) -> usize {
        self.stream + (self.frames * FRAME) as usize
    }
}

/// The next frame: its number and its bytes.
async fn frame(viewer: &mut Connection) -> (u64, usize) {
    loop {
        match timeout(SOON, viewer.recv()).await.expect("nothing came") {
            Received::Packet(header, payload) => return (header.sequence, payload.len()),
            Received::Control(_) => {}
            Received::Closed(error) => panic!("closed instead: {error}"),
        }
    }
}

/// Counts what happens from `begin` on, until `enough` of it has.
async fn span(
    viewer: &mut Connection,
    tap: &Tap,
    gateway: &Gateway,
    begin: impl FnOnce(),
    mut enough: impl FnMut(u64) -> bool,
) -> Span {
    let count = || {
        ["spaceport_frames_encoded_total", "spaceport_keyframes_encoded_total"]
            .map(|name| gateway.metric(name))
    };
    let (first, _) = frame(viewer).await;
    let (began, before, line) = (Instant::now(), count(), tap.bytes());
    begin();
    let (mut last, mut stream) = (first, 0);
    while !enough(last - first) {
        let (sequence, bytes) = frame(viewer).await;
        assert_eq!(sequence, last + 1, "the one who counts missed a frame");
        (last, stream) = (sequence, stream + bytes);
    }
    let (line, time, after) = (tap.bytes() - line, began.elapsed(), count());
    Span {
        line,
        stream,
        frames: last - first,
        encoded: after[0] - before[0],
        keyframes: after[1] - before[1],
        time,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_viewers_at_a_relay_cost_the_machine_what_one_does() {
    // The relay has another address than the tap, so that the machine's QUIC leads nowhere, and the tunnel
    // goes through the tap.
    let relay = Relay::at(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), &[]);
    let tap = Tap::before(relay.http());
    let mut joining = relay.joining(MACHINE);
    joining[1] = format!("http://{}", tap.address());
    let arguments: Vec<&str> = joining.iter().map(String::as_str).collect();
    let gateway =
        Gateway::start(Start { test_pattern: true, arguments: &arguments, ..Start::default() });
    relay.wait(MACHINE, true, SOON);
    assert_eq!(
        relay.status(MACHINE)["carrier"],
        "websocket",
        "the tunnel is not where bytes are counted"
    );

    let target = media_target::Target::DisplayId("test-pattern".to_owned());
    let request = OpenMediaRequest {
        target: Some(MediaTarget { target: Some(target) }),
        ..OpenMediaRequest::default()
    };
    let opened: OpenMediaResponse =
        call_at(relay.http(), &format!("/m/{MACHINE}"), TOKEN, "StreamService/OpenMedia", &request)
            .unwrap();
    let url = Redacted::new(format!("ws://{}/m/{MACHINE}{}", relay.http(), opened.ws_path));
    let mut viewer = client::connect(&url).await.unwrap();
    // The first half second has keyframes of its own.
    for _ in 0..30 {
        frame(&mut viewer).await;
    }
    let one = span(&mut viewer, &tap, &gateway, || {}, |frames| frames >= SPAN).await;

    let mut tasks = JoinSet::new();
    let (arrived, mut seen) = tokio::sync::mpsc::channel(LATE);
    let late = RefCell::new(&mut tasks);
    let come = || {
        for _ in 0..LATE {
            let (url, arrived) = (url.clone(), arrived.clone());
            late.borrow_mut().spawn(async move {
                let mut viewer = client::connect(&url).await.unwrap();
                frame(&mut viewer).await;
                arrived.send(()).await.unwrap();
                loop {
                    frame(&mut viewer).await;
                }
            });
        }
    };
    let mut there = 0;
    let all_there = |_| {
        while seen.try_recv().is_ok() {
            there += 1;
        }
        if let Some(Err(gone)) = late.borrow_mut().try_join_next() {
            panic!("one who came late is gone: {gone}");
        }
        there == LATE
    };
    let joins = span(&mut viewer, &tap, &gateway, come, all_there).await;
    let many = span(&mut viewer, &tap, &gateway, || {}, |frames| frames >= SPAN).await;
    measured(format_args!("one: {one:?}\njoins: {joins:?}\nmany: {many:?}"));

    assert_eq!(gateway.metric("spaceport_viewers"), 1, "the relay alone");
    assert_eq!(gateway.metric("spaceport_pipelines"), 1);
    for (span, admitted) in [(&one, 0), (&joins, LATE), (&many, 0)] {
        let allowed = span.one_copy() + admitted * ADMISSION;
        assert!(span.line < allowed, "more than one copy, which is {allowed} at most: {span:?}");
        // What is on the way when one begins and ends to count.
        assert!(span.encoded <= span.frames + 15, "somebody else's encode: {span:?}");
    }
    let most = (joins.time.as_millis() / KEYFRAMES.as_millis()) as u64 + 1;
    assert!(joins.keyframes <= most, "{most} keyframes would do: {joins:?}");

    // The relay says so, too, and wrote down who came.
    assert_eq!(relay.metric("spaceport_relay_media_sessions"), 1);
    assert_eq!(relay.metric("spaceport_relay_viewers"), LATE as u64 + 1);
    let came = relay.metric("spaceport_relay_media_from_machines_bytes_total");
    assert!(came >= (one.stream + joins.stream + many.stream) as u64, "{came} bytes came");
    let delivered = relay.metric("spaceport_relay_packets_delivered_total");
    assert!(delivered > many.frames * LATE as u64, "{delivered} pictures went out");
    let (mut attached, mut session) = (0, None);
    Ledger::<Event>::at(&relay.state())
        .verify(|entry| {
            if entry.event == Event::Attached {
                attached += 1;
                assert_eq!((entry.id.as_str(), entry.facts["way"].as_str()), (MACHINE, "socket"));
                let named = entry.facts["session"].clone();
                assert_eq!(*session.get_or_insert_with(|| named.clone()), named);
            }
        })
        .expect("an unbroken chain");
    assert_eq!(attached, LATE + 1, "a line for each");
    let session = session.unwrap();
    assert!(opened.media_session_id.starts_with(&session), "{session}");
    late.into_inner().abort_all();
}
