//! The totals as Prometheus reads them (text exposition format 0.0.4).

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use spaceport_transport::tcp;

use crate::media::Carried;
use crate::nodes::Nodes;

/// One total.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn subtract(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Requests for machines.
    pub(crate) requests: Counter,
    /// Of those, such that the relay answered itself with an error.
    pub(crate) refused: Counter,
    /// Requests under way.
    pub(crate) streams: Counter,
    pub(crate) to_machines: Counter,
    pub(crate) from_machines: Counter,
    /// Machines that have come, by carrier.
    pub(crate) joined_quic: Counter,
    pub(crate) joined_websocket: Counter,
    /// Of those, the ones that moved from one tunnel to another.
    pub(crate) moved: Counter,
    /// Machines that were not let in.
    pub(crate) not_joined: Counter,
    /// Rounds with the directory of the nodes.
    pub(crate) renewals: Counter,
    pub(crate) renewals_failed: Counter,
    /// Nodes that were given a machine of this one, and those that were not.
    pub(crate) nodes_served: Counter,
    pub(crate) nodes_refused: Counter,
}

/// Renders all metrics of one relay.
pub(crate) fn render(
    counters: &Counters,
    (registered, online): (usize, usize),
    above: Option<usize>,
    nodes: Option<&Nodes>,
    connections: tcp::Counts,
    media: Carried,
) -> String {
    #[rustfmt::skip]
    let mut rows = vec![
        ("machines", "gauge", "Machines that are registered.", registered as u64),
        ("machines_online", "gauge", "Machines that are connected now.", online as u64),
        ("machines_joined_by_quic_total", "counter", "Times a machine has come over QUIC.", counters.joined_quic.get()),
        ("machines_joined_by_websocket_total", "counter", "Times a machine has come over a WebSocket.", counters.joined_websocket.get()),
        ("machines_moved_total", "counter", "Times a machine has moved to a better tunnel.", counters.moved.get()),
        ("machines_refused_total", "counter", "Times a machine was not let in.", counters.not_joined.get()),
        ("requests_total", "counter", "Requests for machines.", counters.requests.get()),
        ("requests_refused_total", "counter", "Of those, such that the relay answered itself, with an error.", counters.refused.get()),
        ("requests_open", "gauge", "Requests under way now.", counters.streams.get()),
        ("to_machines_bytes_total", "counter", "Bytes of requests that went to machines.", counters.to_machines.get()),
        ("from_machines_bytes_total", "counter", "Bytes of answers that came from machines.", counters.from_machines.get()),
        ("media_sessions", "gauge", "Media sessions of machines that are served here now.", media.sessions),
        ("viewers", "gauge", "Viewers of those now, relays that join this one among them.", media.viewers),
        ("media_from_machines_bytes_total", "counter", "Bytes of pictures that came from machines, once for all viewers.", media.bytes),
        ("packets_delivered_total", "counter", "Pictures handed to viewers.", media.delivered),
        ("packets_lost_total", "counter", "Pictures that slow viewers missed.", media.lost),
        ("connections", "gauge", "TCP connections now.", connections.connections as u64),
        ("connections_opening", "gauge", "Of those, such that have not sent the head of a request.", connections.opening as u64),
        ("connections_refused_total", "counter", "TCP connections that were refused or sent away.", connections.refused),
    ];
    if let Some(nodes) = nodes {
        #[rustfmt::skip]
        rows.extend([
            ("nodes", "gauge", "Nodes of this relay that live, this one among them.", nodes.count() as u64),
            ("directory_up", "gauge", "Whether the directory of the nodes answers.", nodes.away().is_none().into()),
            ("lease_renewals_total", "counter", "Times this node has renewed its lease in the directory.", counters.renewals.get()),
            ("lease_renewals_failed_total", "counter", "Times it could not.", counters.renewals_failed.get()),
            ("nodes_served_total", "counter", "Times another node was given a way to a machine here.", counters.nodes_served.get()),
            ("nodes_refused_total", "counter", "Times it was not.", counters.nodes_refused.get()),
            ("node_streams", "gauge", "Streams to machines at other nodes now.", nodes.streams() as u64),
        ]);
    }
    if let Some(above) = above {
        rows.push((
            "machines_online_above",
            "gauge",
            "Machines that are connected to the relay above now.",
            above as u64,
        ));
    }
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        let name = format!("spaceport_relay_{name}");
        let written = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        debug_assert!(written.is_ok(), "a String takes any text");
    }
    text
}
