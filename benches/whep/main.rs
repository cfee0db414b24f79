//! Measures what WebRTC viewers get over a network that is not as good as loopback, and what they
//! cost.
//!
//! An endpoint, a producer that makes frames as an encoder would (at most 30 a second, none while
//! nobody can take one, a keyframe when one is wanted), and viewers that are another WebRTC stack's
//! user, all in one process. `README.md` says how to read the numbers.

mod producer;
mod server;
mod viewer;

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spaceport_testkit::link::{Profile, Proxy};

use crate::producer::Producer;
use crate::server::{Server, thread_time};
use crate::viewer::{Frame, Viewer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: spaceport-whep-bench cost|loss|drop [--viewers N] [--seconds N] \
                     [--rate BITS] [--seed N] [--no-feedback] [--paced]";

struct Options {
    viewers: usize,
    seconds: u64,
    rate: u64,
    seed: u64,
    feedback: bool,
    paced: bool,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().ok_or(USAGE)?;
    let mut options = Options {
        viewers: 20,
        seconds: 10,
        rate: 2_500_000,
        seed: 1,
        feedback: true,
        paced: false,
    };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().and_then(|value| value.parse().ok()).ok_or(USAGE);
        match name.as_str() {
            "--viewers" => options.viewers = value()? as usize,
            "--seconds" => options.seconds = value()?,
            "--rate" => options.rate = value()?,
            "--seed" => options.seed = value()?,
            "--paced" => options.paced = true,
            "--no-feedback" => options.feedback = false,
            _ => return Err(USAGE.into()),
        }
    }
    let result = match mode.as_str() {
        "cost" => cost(&options)?,
        "loss" => loss(&options)?,
        "drop" => drop_and_rise(&options)?,
        _ => return Err(USAGE.into()),
    };
    writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(&result)?)?;
    Ok(())
}

/// CPU of the driver's thread for some viewers on loopback.
fn cost(options: &Options) -> Result<Value> {
    let server = Server::start(options.paced)?;
    let viewers: Vec<_> = (0..options.viewers)
        .map(|_| Viewer::start(&server, None, options.feedback))
        .collect::<Result<_>>()?;
    let producer = Producer::start(server.publisher()?, options.rate);
    std::thread::sleep(Duration::from_secs(2));
    let (began, before) = (now(), thread_time("whep")?);
    std::thread::sleep(Duration::from_secs(options.seconds));
    let (cpu, lasted) = (thread_time("whep")? - before, began.elapsed());
    let frames: usize = viewers.iter().map(|viewer| viewer.since(began).len()).sum();
    drop(producer);
    Ok(json!({
        "viewers": options.viewers,
        "feedback": options.feedback,
        "paced": options.paced,
        "rate": options.rate,
        "driver_percent_of_a_core": 100.0 * cpu.as_secs_f64() / lasted.as_secs_f64(),
        "frames_per_viewer_and_second":
            frames as f64 / options.viewers as f64 / lasted.as_secs_f64(),
    }))
}

/// 5 % loss each way and 40 ms there and back.
fn loss(options: &Options) -> Result<Value> {
    let server = Server::start(true)?;
    let proxy = Proxy::start(server.media(), Profile::LOSSY5, Profile::LOSSY5, options.seed)?;
    let viewer = Viewer::start(&server, Some(proxy.address()), options.feedback)?;
    let producer = Producer::start(server.publisher()?, options.rate);
    viewer.wait_for_picture()?;
    std::thread::sleep(Duration::from_secs(2));
    let (began, made) = (now(), producer.made());
    std::thread::sleep(Duration::from_secs(options.seconds));
    let made = producer.made() - made;
    // What is on its way still counts.
    std::thread::sleep(Duration::from_millis(500));
    let frames = viewer.since(began);
    let least = frames.iter().map(|frame| frame.latency).min().unwrap_or_default();
    let late: Vec<_> =
        frames.iter().map(|frame| frame.latency - least).filter(|late| *late > MS(20)).collect();
    let [_, down] = proxy.counts();
    Ok(json!({
        "seconds": options.seconds,
        "made": made,
        "arrived_whole": frames.len(),
        "per_second": frames.len() as f64 / options.seconds as f64,
        "least_latency_ms": ms(least),
        "latency_ms": spread(frames.iter().map(|frame| frame.latency)),
        "repaired": late.len(),
        "recovery_ms": spread(late.into_iter()),
        "longest_gap_ms": ms(longest_gap(&frames)),
        "lost_packets": down.lost,
        "packets": down.packets,
    }))
}

/// 8 Mbit/s, then 1, then 8 again, with 200 ms of buffer.
fn drop_and_rise(options: &Options) -> Result<Value> {
    let path = Profile { delay: MS(20), queue: MS(200), ..Profile::CLEAR };
    let server = Server::start(true)?;
    let proxy = Proxy::start(server.media(), path, path.capped(8_000_000), options.seed)?;
    let viewer = Viewer::start(&server, Some(proxy.address()), options.feedback)?;
    let _producer = Producer::start(server.publisher()?, options.rate);
    viewer.wait_for_picture()?;
    let began = now();
    let phase = Duration::from_secs(options.seconds);
    std::thread::sleep(phase);
    proxy.change(path, path.capped(1_000_000));
    std::thread::sleep(phase);
    proxy.change(path, path.capped(8_000_000));
    std::thread::sleep(phase);
    let frames = viewer.since(began);
    let at = |index: u32| began + phase * index;
    let within = |from: Instant, to: Instant| {
        frames.iter().filter(move |frame| frame.at >= from && frame.at < to)
    };
    let per_second: Vec<Value> = (0..3 * options.seconds)
        .map(|second| {
            let from = began + Duration::from_secs(second);
            let these: Vec<_> = within(from, from + Duration::from_secs(1)).collect();
            let bytes: usize = these.iter().map(|frame| frame.bytes).sum();
            let latency = these.iter().map(|frame| frame.latency).max();
            json!([second, these.len(), bytes * 8 / 1000, latency.map(ms)])
        })
        .collect();
    let spreads = |index: u32, skip: Duration| {
        spread(within(at(index) + skip, at(index + 1)).map(|frame| frame.latency))
    };
    Ok(json!({
        "seconds_per_phase": options.seconds,
        "before_latency_ms": spreads(0, Duration::from_secs(2)),
        "during_latency_ms": spreads(1, Duration::ZERO),
        "during_after_a_second_latency_ms": spreads(1, Duration::from_secs(1)),
        "after_latency_ms": spreads(2, Duration::ZERO),
        "after_a_second_latency_ms": spreads(2, Duration::from_secs(1)),
        "longest_gap_ms": ms(longest_gap(&frames)),
        "dropped_by_the_link": proxy.counts()[1].dropped,
        "second_frames_kbit_worst_latency_ms": per_second,
    }))
}

const MS: fn(u64) -> Duration = Duration::from_millis;

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

fn longest_gap(frames: &[Frame]) -> Duration {
    frames.windows(2).map(|pair| pair[1].at - pair[0].at).max().unwrap_or_default()
}

fn spread(all: impl Iterator<Item = Duration>) -> Value {
    let mut all: Vec<_> = all.collect();
    all.sort();
    let at = |share: f64| all.get(((all.len() as f64 * share) as usize).min(all.len() - 1));
    if all.is_empty() {
        return Value::Null;
    }
    let named = |share| at(share).copied().map(ms);
    json!({ "n": all.len(), "p50": named(0.5), "p95": named(0.95), "max": named(1.0) })
}

#[expect(clippy::disallowed_methods, reason = "the one clock of a bench")]
fn now() -> Instant {
    Instant::now()
}

/// Shared by those who stamp frames.
type Stamps = Arc<std::sync::Mutex<Vec<Instant>>>;
