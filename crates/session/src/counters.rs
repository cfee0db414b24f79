//! What a gateway has done so far, for metrics and for tests that prove a promise.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fanout::Reason;

/// A number that goes up; a gauge may also go down.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// Takes `amount` away; for gauges.
    pub fn sub(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Totals over every stream of one gateway.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Pictures read from a source.
    pub captured: Counter,
    /// Pictures encoded; one, however many viewers it goes to.
    pub encoded: Counter,
    /// Of those, keyframes.
    pub keyframes: Counter,
    /// Of those, the ones for viewers that came,
    pub keyframes_join: Counter,
    /// for viewers that asked,
    pub keyframes_request: Counter,
    /// for viewers that were too slow and were cut,
    pub keyframes_cut: Counter,
    /// and the first ones of new encoders.
    pub keyframes_encoder: Counter,
    /// Bytes that encoders put out.
    pub encoded_bytes: Counter,
    /// Packets handed to viewers.
    pub delivered: Counter,
    /// Packets that a viewer did not get because it was too slow or was waiting for a keyframe.
    pub lost: Counter,
    /// Times a slow viewer was cut to the next keyframe.
    pub cuts: Counter,
    /// Times a viewer was moved to a lower rung, for want of room on its path.
    pub moves_down: Counter,
    /// Times a viewer was moved to a higher rung.
    pub moves_up: Counter,
    /// Gauge: rungs below the first that somebody is on now.
    pub rungs: Counter,
    /// Gauge: viewers attached now.
    pub viewers: Counter,
    /// Gauge: pipelines that have a source open now.
    pub pipelines: Counter,
}

impl Counters {
    pub(crate) fn keyframes_for(&self, reason: Reason) -> &Counter {
        match reason {
            Reason::Join => &self.keyframes_join,
            Reason::Request => &self.keyframes_request,
            Reason::Cut => &self.keyframes_cut,
            Reason::Encoder => &self.keyframes_encoder,
        }
    }
}
