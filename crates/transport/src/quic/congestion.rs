//! Congestion control: BBR that knows a lossy path from a full one.
//!
//! quinn's BBR answers a loss with a round trip in which no more is sent than arrives. Between two frames hardly
//! anything is on its way, so the frame after a loss would begin with a window of four packets and take several
//! round trips more. But a queue that overflows has grown before, and with it the round trip: a loss without that
//! is the air's, and no reason to send less.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

/// A round trip that is longer than the shortest by half of it and by this has a queue in it: more than
/// acknowledgements are held back for.
const QUEUE: Duration = Duration::from_millis(15);

/// Makes one for each connection.
#[derive(Debug, Default)]
pub(super) struct Config(Arc<BbrConfig>);

impl ControllerFactory for Config {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let bbr = Arc::clone(&self.0).build(now, mtu);
        Box::new(LossAware { bbr, queued: false })
    }
}

struct LossAware {
    bbr: Box<dyn Controller>,
    /// Whether packets wait in a queue on the way.
    queued: bool,
}

impl Controller for LossAware {
    fn on_sent(&mut self, now: Instant, bytes: u64, last: u64) {
        self.bbr.on_sent(now, bytes, last);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.queued = rtt.get() > rtt.min() * 3 / 2 + QUEUE;
        self.bbr.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        self.bbr.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        if self.queued || persistent {
            self.bbr.on_congestion_event(now, sent, persistent, lost);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.bbr.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        self.bbr.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.bbr.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { bbr: self.bbr.clone_box(), queued: self.queued })
    }

    fn initial_window(&self) -> u64 {
        self.bbr.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
