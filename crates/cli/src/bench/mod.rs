//! `spaceport bench`: what a Space does under load, measured from outside.
//!
//! ```text
//! reference watches ─► baseline ─► viewers join ─► measured ─► they leave ─► report
//! ```
//!
//! All viewers share a few threads and decode nothing: a frame counts when it and all that it builds on have
//! arrived whole. The same seed has them join at the same times and lose the same packets.

pub(crate) mod args;
mod plot;
mod process;
mod report;
mod session;
mod tally;
mod viewer;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use spaceport_spaces::Spaces;
use spaceport_transport::quic;
use spaceport_types::{Error, Kind, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout};

use self::args::{Bench, Carrier, Viewers, What};
use self::process::Usage;
use self::report::{Failure, Frames, Machine, Process, Report, Server, Stream};
use self::session::{Network, Session, Space};
use self::tally::{Tally, ms};
use self::viewer::{Outcome, Reference, Shared};
use crate::client::reached;
use crate::render;

/// How long the stream is watched by the reference alone, to know what it costs without viewers.
const BASELINE: Duration = Duration::from_secs(2);

/// How long viewers may take to join once the last has begun. One that takes longer counts as late and is
/// not waited for.
const JOINING: Duration = Duration::from_secs(20);

/// How long they may take to leave.
const LEAVING: Duration = Duration::from_secs(5);

/// Failures of one sort that are told apart.
const FAILURES: usize = 16;

/// QUIC viewers that share a UDP socket, where nothing depends on which one it is: enough to read many
/// packets at once, and few enough that a frame for all of them fits its buffer.
const VIEWERS_PER_SOCKET: usize = 16;

pub(crate) fn run(bench: &Bench, json: bool, agent: bool) -> Result<ExitCode> {
    let What::Viewers(viewers) = &bench.what;
    if viewers.transport == Carrier::Ws && viewers.profile.link().is_some() {
        return Err(Error::new(
            Kind::InvalidArgument,
            "what happens to TCP on a lossy network is the kernel's, and cannot be simulated here",
        )
        .hint("Give the interface the loss: `tc qdisc add dev … root netem loss 5%`"));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // One is left to the server, if it is here.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.saturating_sub(1).max(1))
        .enable_all()
        .build()?;
    let report = runtime.block_on(measure(viewers, &reached(None)?, cores))?;
    runtime.shutdown_timeout(LEAVING);
    if let Some(file) = &viewers.report {
        let text = serde_json::to_string_pretty(&report)
            .map_err(|error| Error::new(Kind::Internal, "the result is no JSON").source(error))?;
        write(file, text + "\n")?;
    }
    if let Some(file) = &viewers.svg {
        write(file, plot::svg(&report)?)?;
    }
    if json || agent {
        render::json(&report);
    } else {
        report.table();
    }
    Ok(ExitCode::SUCCESS)
}

fn write(file: &std::path::Path, text: String) -> Result<()> {
    std::fs::write(file, text).map_err(|error| {
        Error::new(Kind::Io, format!("`{}` cannot be written", file.display())).source(error)
    })
}

async fn measure(viewers: &Viewers, spaces: &Spaces, cores: usize) -> Result<Report> {
    raise_descriptors();
    let space = Space::find(spaces, &viewers.space).await?;
    let first = space.open(viewers).await?;
    let sessions = match space.open_all(viewers).await {
        Ok(sessions) => sessions,
        Err(error) => {
            space.close(&[first]).await;
            return Err(error);
        }
    };
    let measured = attach(viewers, &space, &first, &sessions, cores).await;
    space.close(&sessions).await;
    space.close(&[first]).await;
    measured
}

/// What the server and this process have used, at one time.
struct Snapshot {
    at: Instant,
    server: std::result::Result<(u32, Usage), &'static str>,
    own: Option<Usage>,
}

impl Snapshot {
    fn take(server: std::result::Result<u32, &'static str>) -> Self {
        let usage = |pid| Usage::of(pid).map(|usage| (pid, usage)).ok_or("the server has ended");
        let own = Usage::of(std::process::id());
        Self { at: Instant::now(), server: server.and_then(usage), own }
    }
}

async fn attach(
    viewers: &Viewers,
    space: &Space,
    first: &Session,
    sessions: &[Session],
    cores: usize,
) -> Result<Report> {
    let load = process::load();
    let server = process::listening(space.address);
    let origin = Instant::now();
    let (reference, clock) = Reference::start(first, origin).await?;
    let (stopping, stop) = watch::channel(false);
    let shared =
        Arc::new(Shared { tally: Tally::new(), clock, network: Network::new(viewers), stop });

    let still = Snapshot::take(server);
    let telling = tokio::spawn(reference.tell(Arc::clone(&shared)));
    sleep(BASELINE).await;
    let before = Snapshot::take(server);
    // Whatever says itself when a frame was captured needs no reference; on a network worse than the
    // reference's its demands would keep the encoder from following the viewers'.
    if viewers.transport != Carrier::Whep {
        telling.abort();
    }

    let seconds = tokio::spawn(tick(Arc::clone(&shared)));
    let mut tasks = JoinSet::new();
    let mut clients = Clients { shared: Vec::new(), alone: !shared.network.is_clear() };
    let began = Instant::now();
    let joins = joins(viewers);
    let last = began + viewers.join_over();
    for (index, after) in joins.into_iter().enumerate() {
        let most = space.per_session(viewers.transport);
        let Some(session) = sessions.get(index / most) else { break };
        let client = match viewers.transport {
            Carrier::Quic | Carrier::WebTransport => Some(clients.client(index, space)?),
            Carrier::Ws | Carrier::Whep => None,
        };
        let (session, shared) = (session.clone(), Arc::clone(&shared));
        tasks.spawn(viewer::watch(began + after, viewers.transport, session, client, shared));
    }

    let mut outcomes: Vec<Outcome> = Vec::new();
    let all = viewers.viewers as usize;
    sleep_until(last).await;
    while shared.tally.watching() + outcomes.len() < all && Instant::now() < last + JOINING {
        tokio::select! {
            Some(ended) = tasks.join_next() => outcomes.extend(ended.ok()),
            () = sleep(Duration::from_millis(50)) => {}
        }
    }
    // From the start of a second to the end of one, so that every second is measured or is not.
    let measured_from = next_second(&shared).await;
    shared.tally.measure();
    let started = Snapshot::take(server);
    for _ in 0..viewers.duration {
        next_second(&shared).await;
    }
    let ended = Snapshot::take(server);
    let (counts, seconds_of) = shared.tally.finish();
    seconds.abort();
    telling.abort();
    let watching = shared.tally.watching();
    // Nobody listens when all have left already.
    let _ = stopping.send(true);
    let leave = async {
        while let Some(ended) = tasks.join_next().await {
            outcomes.extend(ended.ok());
        }
    };
    if timeout(LEAVING, leave).await.is_err() {
        tasks.shutdown().await;
    }

    let lasted = ended.at - started.at;
    let joined = outcomes.iter().filter(|outcome| outcome.first_frame.is_some()).count();
    let per = |value: f64| value / (watching.max(1) as f64) / lasted.as_secs_f64();
    let stream_frames = counts.span.map_or(0, |(first, last)| last - first + 1);
    let total = counts.frames + counts.missing;
    let mut notes = Vec::new();
    if watching < all {
        notes.push(format!("{watching} of {all} viewers watched to the end"));
    }
    if viewers.transport == Carrier::Whep {
        notes
            .push("a further viewer on the media socket told when frames were captured".to_owned());
    }
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        transport: viewers.transport,
        viewers: viewers.viewers,
        duration_s: viewers.duration,
        join_over_s: viewers.join_over,
        profile: viewers.profile,
        seed: viewers.seed,
        sessions: sessions.len() + 1,
        machine: Machine { cores, load: [load, process::load()] },
        joined,
        failures: failures(&outcomes),
        first_frame_ms: shared.tally.first_frames().summary(),
        stream: Stream {
            frames: stream_frames,
            frames_per_second: stream_frames as f64 / lasted.as_secs_f64(),
        },
        frames: Frames {
            complete: counts.frames,
            missing: counts.missing,
            completeness: if total == 0 { 0.0 } else { counts.frames as f64 / total as f64 },
            per_second_per_viewer: per(counts.frames as f64),
        },
        interval_ms: counts.intervals.summary(),
        recovery_ms: counts.intervals.recovery().summary(),
        longest_gap_ms: outcomes.iter().map(|outcome| ms(outcome.longest_gap)).fold(0.0, f64::max),
        latency_ms: counts.latencies.summary(),
        clock_within_ms: ms(clock.within),
        bytes: counts.bytes,
        kbit_per_second_per_viewer: per(counts.bytes as f64 * 8.0 / 1000.0),
        server: server_of([&still, &before, &started, &ended], watching),
        generator: generator_of([&still, &before, &started, &ended], watching),
        network: shared.network.counts().map(Into::into),
        seconds: seconds_of,
        measured_from,
        notes,
    })
}

/// Ends each second of the tally.
async fn tick(shared: Arc<Shared>) {
    let second = Duration::from_secs(1);
    let mut ticks = interval_at(Instant::now() + second, second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.tally.tick();
    }
}

/// Waits for the end of the current second; returns how many have ended.
async fn next_second(shared: &Shared) -> usize {
    let mut ended = shared.tally.ended();
    let before = *ended.borrow_and_update();
    // The tally outlives this.
    ended.wait_for(|now| *now > before).await.map_or(before, |now| *now)
}

/// QUIC sockets, shared by some viewers or one for each.
struct Clients {
    shared: Vec<quic::Client>,
    /// Whether each has a network of its own.
    alone: bool,
}

impl Clients {
    fn client(&mut self, index: usize, space: &Space) -> Result<quic::Client> {
        let local = if space.address.is_ipv4() {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        } else {
            std::net::IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED)
        };
        let bind = || quic::Client::bind((local, 0).into());
        if self.alone {
            return bind();
        }
        if let Some(client) = self.shared.get(index / VIEWERS_PER_SOCKET) {
            return Ok(client.clone());
        }
        let client = bind()?;
        self.shared.push(client.clone());
        Ok(client)
    }
}

/// When each viewer joins: at random, in order, as the seed has it.
fn joins(viewers: &Viewers) -> Vec<Duration> {
    let mut random = spaceport_link::Random::new(viewers.seed);
    let over = viewers.join_over();
    let mut times: Vec<_> = (0..viewers.viewers).map(|_| over.mul_f64(random.unit())).collect();
    times.sort();
    times
}

fn failures(outcomes: &[Outcome]) -> Vec<Failure> {
    let mut failures: BTreeMap<String, Failure> = BTreeMap::new();
    for error in outcomes.iter().filter_map(|outcome| outcome.failed.as_ref()) {
        let report = error.report();
        let known = failures.len() < FAILURES;
        let (kind, cause, message) = (report.kind, error.cause(), report.message.clone());
        let key = format!("{kind:?} {cause:?} {message}");
        if known || failures.contains_key(&key) {
            let failure = Failure { kind, cause, message, viewers: 0 };
            failures.entry(key).or_insert(failure).viewers += 1;
        }
    }
    failures.into_values().collect()
}

fn server_of(all: [&Snapshot; 4], viewers: usize) -> Server {
    let mut usages = Vec::new();
    for snapshot in all {
        match &snapshot.server {
            Ok((pid, usage)) => usages.push((snapshot.at, *pid, usage)),
            Err(unknown) => return Server::Unknown { unknown },
        }
    }
    match usages[..] {
        [still, before, started, ended] => {
            let at = |it: (Instant, u32, _)| (it.0, it.2);
            Server::Known(used(still.1, [at(still), at(before), at(started), at(ended)], viewers))
        }
        _ => Server::Unknown { unknown: "it was not measured" },
    }
}

fn generator_of(all: [&Snapshot; 4], viewers: usize) -> Process {
    let none = Usage::default();
    let usage = all.map(|snapshot| (snapshot.at, snapshot.own.as_ref().unwrap_or(&none)));
    used(std::process::id(), usage, viewers)
}

/// What a process used, from four looks: two before there were viewers, two while there were.
fn used(pid: u32, all: [(Instant, &Usage); 4], viewers: usize) -> Process {
    let percent = |(from, a): (Instant, &Usage), (to, b): (Instant, &Usage)| {
        let cpu = b.cpu().saturating_sub(a.cpu());
        100.0 * cpu.as_secs_f64() / (to - from).as_secs_f64()
    };
    let [still, before, started, ended] = all;
    let (idle, busy) = (percent(still, before), percent(started, ended));
    let each = ((busy - idle) / viewers.max(1) as f64).max(0.0);
    let lasted = (ended.0 - started.0).as_secs_f64();
    let threads = ended.1.threads.iter().map(|(name, used)| {
        let earlier = started.1.threads.get(name).copied().unwrap_or_default();
        let share = 100.0 * used.saturating_sub(earlier).as_secs_f64() / lasted;
        (name.clone(), (share * 100.0).round() / 100.0)
    });
    let more = |a: u64, b: u64| i64::try_from(b).unwrap_or(0) - i64::try_from(a).unwrap_or(0);
    Process {
        pid,
        cpu_percent: busy,
        cpu_percent_before: idle,
        cpu_percent_per_viewer: each,
        viewers_per_core: (each > 0.0).then(|| (100.0 / each) as u64),
        memory_bytes: ended.1.resident,
        memory_bytes_before: before.1.resident,
        memory_bytes_per_viewer: more(before.1.resident, ended.1.resident)
            / i64::try_from(viewers.max(1)).unwrap_or(1),
        memory_bytes_grown: more(started.1.resident, ended.1.resident),
        descriptors: ended.1.descriptors,
        threads_cpu_percent: threads.filter(|(_, share)| *share > 0.0).collect(),
    }
}

/// A viewer has a socket or two, and a thousand of them are a common limit.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is not allowed, what does not fit fails and is counted.
    let _ = setrlimit(Resource::Nofile, limit);
}
