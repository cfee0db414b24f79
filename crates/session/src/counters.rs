//! What a gateway has done so far, for metrics and for tests that prove a promise.

use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Bytes that encoders put out.
    pub encoded_bytes: Counter,
    /// Packets handed to viewers.
    pub delivered: Counter,
    /// Packets that a viewer did not get because it was too slow or was waiting for a keyframe.
    pub lost: Counter,
    /// Times a slow viewer was cut to the next keyframe.
    pub cuts: Counter,
    /// Gauge: viewers attached now.
    pub viewers: Counter,
    /// Gauge: pipelines that have a source open now.
    pub pipelines: Counter,
}
