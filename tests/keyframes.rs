//! Keyframes are rare whatever viewers do: they cost every viewer, not only the one that wants one.

use std::time::Duration;

use serde_json::json;
use spaceport_tests::{Event, Gateway, Socket, measured};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// What every stream promises: one keyframe in half a second at most.
const INTERVAL: Duration = Duration::from_millis(500);

/// What a viewer that only watches has got.
#[derive(Debug, Default)]
struct Watched {
    frames: u64,
    keyframes: u64,
    /// Frames it did not get because it was too slow or waited for a keyframe, as the gateway counts.
    lost: u64,
}

/// Watches for some time.
fn watch(mut socket: Socket, time: Duration) -> JoinHandle<Watched> {
    tokio::spawn(async move {
        let (end, mut watched) = (Instant::now() + time, Watched::default());
        loop {
            match socket.next_within(end.saturating_duration_since(Instant::now())).await {
                Some(Event::Packet(header, _)) => {
                    watched.frames += 1;
                    watched.keyframes += u64::from(header["keyframe"] == true);
                }
                Some(Event::Control(..)) => {}
                Some(Event::Closed(code, reason)) => panic!("closed: {code} {reason}"),
                None => break,
            }
        }
        socket.send("get_stats", json!({})).await;
        watched.lost = socket.control("stats").await["frames_dropped"].as_u64().unwrap();
        watched
    })
}

/// The most keyframes that one stream makes in `time`.
fn most(time: Duration) -> u64 {
    (time.as_millis() / INTERVAL.as_millis()) as u64 + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_joins_cost_two_keyframes_a_second_and_nobody_a_frame() {
    let gateway = Gateway::with_test_pattern();
    // Sessions with the same settings share one encode; each takes eight sockets.
    let tickets: Vec<String> = (0..26).map(|_| gateway.open("").ticket).collect();
    let mut steady = Socket::attach(gateway.http(), &tickets[25]).await.unwrap();
    steady.packet().await;
    let begun = Instant::now();
    let span = Duration::from_secs(8);
    let watching = watch(steady, span);
    let counters = ["spaceport_keyframes_encoded_total", "spaceport_keyframes_for_joins_total"];
    let before = counters.map(|name| gateway.metric(name));
    sleep(Duration::from_secs(1)).await;

    let joining = Instant::now();
    let joins: Vec<_> = (0..200_u32)
        .map(|index| {
            let (http, ticket) = (gateway.http(), tickets[index as usize / 8].clone());
            tokio::spawn(async move {
                sleep(Duration::from_millis(5) * index).await;
                let mut socket = Socket::attach(http, &ticket).await.unwrap();
                let asked = Instant::now();
                let (header, _) = socket.packet().await;
                assert_eq!(header["keyframe"], true, "the first packet of a join");
                (asked.elapsed(), socket)
            })
        })
        .collect();
    let mut waits = Vec::new();
    let mut sockets = Vec::new();
    for join in joins {
        let (wait, socket) = join.await.unwrap();
        waits.push(wait);
        sockets.push(watch(socket, Duration::from_secs(1)));
    }
    let took = joining.elapsed();
    let [keyframes, for_joins] =
        std::array::from_fn(|at| gateway.metric(counters[at]) - before[at]);
    let elapsed = begun.elapsed();
    let watched = watching.await.unwrap();
    waits.sort_unstable();
    measured(format_args!(
        "200 joins in {took:?}; first packet after {:?} (p50), {:?} (most); {keyframes} keyframes, \
         {for_joins} of them for joins; a steady viewer: {watched:?}",
        waits[100], waits[199],
    ));
    // Of each encode; on a machine that can not keep up, some of the two hundred get a lower rung.
    assert!(watched.keyframes <= most(span), "{watched:?}");
    let moves = gateway.metric("spaceport_rung_moves_down_total");
    assert!(moves > 0 || keyframes <= most(elapsed), "{keyframes} keyframes in {elapsed:?}");
    assert!(watched.frames > 60, "{watched:?}");
    // Two hundred clients in this process, and their gateway, are more than a busy machine has time for:
    // then it is not joining that costs frames.
    let share = if took < Duration::from_millis(1_500) { 20 } else { 4 };
    assert!(watched.lost * share < watched.frames, "{watched:?}");
    for socket in sockets {
        let joined = socket.await.unwrap();
        assert!(joined.frames > 0, "nothing came after the first packet");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_requests_costs_two_keyframes_a_second() {
    let gateway = Gateway::with_test_pattern();
    let ticket = gateway.open("").ticket;
    let mut steady = Socket::attach(gateway.http(), &ticket).await.unwrap();
    steady.packet().await;
    let mut greedy = Socket::attach(gateway.http(), &ticket).await.unwrap();
    greedy.packet().await;
    let before = gateway.metric("spaceport_keyframes_for_requests_total");
    let (begun, span) = (Instant::now(), Duration::from_secs(4));
    let watching = watch(steady, span);
    let mut asked = 0;
    while begun.elapsed() < span {
        greedy.send("request_keyframe", json!({})).await;
        asked += 1;
        while timeout(Duration::from_millis(10), greedy.next()).await.is_ok() {}
    }
    let watched = watching.await.unwrap();
    let made = gateway.metric("spaceport_keyframes_for_requests_total") - before;
    let elapsed = begun.elapsed();
    measured(format_args!(
        "{asked} requests in {elapsed:?}: {made} keyframes; beside it {watched:?}"
    ));
    assert!(asked > 20, "{asked} requests are no flood");
    assert!(made >= 2, "requests are answered");
    assert!(made <= most(elapsed), "{made} keyframes in {elapsed:?}");
    assert!(watched.keyframes <= most(span), "{watched:?}");
    assert!(watched.lost * 20 < watched.frames, "{watched:?}");
}
