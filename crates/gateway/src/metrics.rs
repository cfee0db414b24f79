//! The totals as Prometheus reads them (text exposition format 0.0.4).

use std::fmt::Write as _;

use spaceport_session::{Counters, Sessions};

/// Renders all metrics of one gateway.
pub(crate) fn render(sessions: &Sessions) -> String {
    let Counters {
        captured,
        encoded,
        keyframes,
        keyframes_join,
        keyframes_request,
        keyframes_cut,
        keyframes_encoder,
        encoded_bytes,
        delivered,
        lost,
        cuts,
        moves_down,
        moves_up,
        rungs,
        viewers,
        pipelines,
        ..
    } = sessions.counters();
    #[rustfmt::skip]
    let rows = [
        ("spaceport_frames_captured_total", "counter", "Pictures read from a source.", captured.get()),
        ("spaceport_frames_encoded_total", "counter", "Pictures encoded, once for all viewers.", encoded.get()),
        ("spaceport_keyframes_encoded_total", "counter", "Of those, keyframes.", keyframes.get()),
        ("spaceport_keyframes_for_joins_total", "counter", "Keyframes for viewers that came.", keyframes_join.get()),
        ("spaceport_keyframes_for_requests_total", "counter", "Keyframes for viewers that asked.", keyframes_request.get()),
        ("spaceport_keyframes_for_cuts_total", "counter", "Keyframes for viewers that were too slow and were cut.", keyframes_cut.get()),
        ("spaceport_keyframes_of_encoders_total", "counter", "First keyframes of new encoders.", keyframes_encoder.get()),
        ("spaceport_encoded_bytes_total", "counter", "Bytes that encoders put out.", encoded_bytes.get()),
        ("spaceport_packets_delivered_total", "counter", "Packets handed to viewers.", delivered.get()),
        ("spaceport_packets_lost_total", "counter", "Packets that slow viewers missed.", lost.get()),
        ("spaceport_viewer_cuts_total", "counter", "Times a slow viewer was cut to the next keyframe.", cuts.get()),
        ("spaceport_rung_moves_down_total", "counter", "Times a viewer was moved to a lower rung, for want of room on its path.", moves_down.get()),
        ("spaceport_rung_moves_up_total", "counter", "Times a viewer was moved to a higher rung.", moves_up.get()),
        ("spaceport_rungs", "gauge", "Lower rungs that somebody is on now, each an encode.", rungs.get()),
        ("spaceport_viewers", "gauge", "Viewers attached now.", viewers.get()),
        ("spaceport_pipelines", "gauge", "Pipelines that have a source open now.", pipelines.get()),
        ("spaceport_media_sessions", "gauge", "Media sessions open now.", sessions.len() as u64),
    ];
    let mut text = String::new();
    for (name, kind, help, value) in rows {
        let written = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        debug_assert!(written.is_ok(), "a String takes any text");
    }
    text
}
