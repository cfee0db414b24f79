//! What came of it: JSON, and a table for people.

use std::collections::BTreeMap;

use serde::Serialize;
use spaceport_link::Counts as Packets;
use spaceport_types::{Cause, Kind};

use super::args::{Carrier, Profile};
use super::tally::{Second, Summary};
use crate::render;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) transport: Carrier,
    pub(crate) viewers: u32,
    pub(crate) duration_s: u32,
    pub(crate) join_over_s: u32,
    pub(crate) profile: Profile,
    pub(crate) seed: u64,
    pub(crate) sessions: usize,
    pub(crate) machine: Machine,
    /// Viewers that had a picture.
    pub(crate) joined: usize,
    pub(crate) failures: Vec<Failure>,
    /// From when a viewer began to connect.
    pub(crate) first_frame_ms: Option<Summary>,
    pub(crate) stream: Stream,
    pub(crate) frames: Frames,
    pub(crate) interval_ms: Option<Summary>,
    /// From when a picture was due that did not come (half as late again as `interval_ms.p50`) to when the next
    /// one could be shown; `n` counts these gaps.
    pub(crate) recovery_ms: Option<Summary>,
    /// The longest that any viewer stood still.
    pub(crate) longest_gap_ms: f64,
    /// From when the pixels were read to when the frame was whole at the viewer.
    pub(crate) latency_ms: Option<Summary>,
    /// How exactly the two clocks are known to each other.
    pub(crate) clock_within_ms: f64,
    pub(crate) bytes: u64,
    pub(crate) kbit_per_second_per_viewer: f64,
    pub(crate) server: Server,
    pub(crate) generator: Process,
    pub(crate) network: Option<Network>,
    pub(crate) seconds: Vec<Second>,
    /// The first of `seconds` that is measured.
    pub(crate) measured_from: usize,
    /// What a reader should know before believing a number.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    /// The load average of a minute, before and after.
    pub(crate) load: [Option<f64>; 2],
}

/// Viewers that failed alike.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) cause: Option<Cause>,
    pub(crate) message: String,
    pub(crate) viewers: usize,
}

/// What the server published meanwhile, as far as it is known.
#[derive(Debug, Serialize)]
pub(crate) struct Stream {
    pub(crate) frames: u64,
    pub(crate) frames_per_second: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Frames {
    /// That could be shown, of all viewers together.
    pub(crate) complete: u64,
    /// That a viewer missed between two that it got.
    pub(crate) missing: u64,
    /// The complete ones' share of both.
    pub(crate) completeness: f64,
    pub(crate) per_second_per_viewer: f64,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Server {
    Known(Process),
    Unknown { unknown: &'static str },
}

/// What a process used while it was measured, and for each viewer more than before they came.
#[derive(Debug, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) cpu_percent: f64,
    pub(crate) cpu_percent_before: f64,
    pub(crate) cpu_percent_per_viewer: f64,
    /// How many viewers one core carries, if each costs the same.
    pub(crate) viewers_per_core: Option<u64>,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_bytes_before: u64,
    pub(crate) memory_bytes_per_viewer: i64,
    /// How much it grew while it was measured, when no one came or went.
    pub(crate) memory_bytes_grown: i64,
    pub(crate) descriptors: usize,
    pub(crate) threads_cpu_percent: BTreeMap<String, f64>,
}

/// What happened to packets on the simulated networks.
#[derive(Debug, Serialize)]
pub(crate) struct Network {
    pub(crate) up: Way,
    pub(crate) down: Way,
}

#[derive(Debug, Serialize)]
pub(crate) struct Way {
    packets: u64,
    lost: u64,
    dropped: u64,
    bytes: u64,
    longest_queue_ms: f64,
}

impl From<[Packets; 2]> for Network {
    fn from([up, down]: [Packets; 2]) -> Self {
        let way = |counts: Packets| Way {
            packets: counts.packets,
            lost: counts.lost,
            dropped: counts.dropped,
            bytes: counts.bytes,
            longest_queue_ms: super::tally::ms(counts.longest),
        };
        Self { up: way(up), down: way(down) }
    }
}

impl Report {
    /// How gaps ended, in words.
    pub(crate) fn recovery(&self) -> String {
        self.recovery_ms.as_ref().map_or_else(
            || "no picture came late".to_owned(),
            |all| {
                let Summary { n, p50, p95, max } = all;
                format!("p50 {p50:.1} ms, p95 {p95:.1} ms, max {max:.1} ms, of {n} gaps")
            },
        )
    }

    /// For people.
    pub(crate) fn table(&self) {
        let spread = |all: &Option<Summary>| {
            let shown = |all: &Summary| {
                format!("p50 {:.1} ms, p95 {:.1} ms, max {:.1} ms", all.p50, all.p95, all.max)
            };
            all.as_ref().map_or_else(|| "unknown".to_owned(), shown)
        };
        let process = |of: &Process| {
            let per_core = of
                .viewers_per_core
                .map_or_else(String::new, |viewers| format!(", one core carries {viewers}"));
            format!(
                "{:.1} % of a core, {:.3} % for each viewer{per_core}; {:.1} MiB, {:.0} KiB for each \
                 viewer",
                of.cpu_percent,
                of.cpu_percent_per_viewer,
                of.memory_bytes as f64 / f64::from(1 << 20),
                of.memory_bytes_per_viewer as f64 / 1024.0,
            )
        };
        let server = match &self.server {
            Server::Known(server) => format!("pid {}: {}", server.pid, process(server)),
            Server::Unknown { unknown } => format!("unknown: {unknown}"),
        };
        let frames = &self.frames;
        let mut rows = vec![
            (
                "viewers",
                format!("{} of {} over {}", self.joined, self.viewers, name(self.transport)),
            ),
            ("first frame", spread(&self.first_frame_ms)),
            (
                "frames",
                format!(
                    "{:.2} % complete ({} of {}), {:.1} a second for each viewer",
                    frames.completeness * 100.0,
                    frames.complete,
                    frames.complete + frames.missing,
                    frames.per_second_per_viewer
                ),
            ),
            ("interval", spread(&self.interval_ms)),
            ("recovery", self.recovery()),
            ("longest gap", format!("{:.1} ms", self.longest_gap_ms)),
            ("latency", spread(&self.latency_ms)),
            ("rate", format!("{:.0} kbit/s for each viewer", self.kbit_per_second_per_viewer)),
            ("server", server),
            ("generator", process(&self.generator)),
        ];
        if let Some(network) = &self.network {
            let way = &network.down;
            let (packets, lost, dropped) = (way.packets, way.lost, way.dropped);
            rows.push((
                "network",
                format!("{packets} packets down, {lost} lost, {dropped} dropped"),
            ));
        }
        for failure in &self.failures {
            rows.push(("failed", format!("{}: {}", failure.viewers, failure.message)));
        }
        for note in &self.notes {
            rows.push(("note", note.clone()));
        }
        let rows: Vec<_> = rows.iter().map(|(name, value)| (*name, &**value)).collect();
        render::facts(&rows);
    }
}

/// The name of a transport, as it is typed.
pub(crate) fn name(transport: Carrier) -> &'static str {
    match transport {
        Carrier::Whep => "whep",
        Carrier::WebTransport => "webtransport",
        Carrier::Quic => "quic",
        Carrier::Ws => "ws",
    }
}
