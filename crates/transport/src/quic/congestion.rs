//! Congestion control: BBR that knows a lossy path from a full one.
//!
//! quinn's BBR answers a loss with a round trip in which no more is sent than arrives. Between two frames hardly
//! anything is on its way, so the frame after a loss would begin with a window of four packets and take several
//! round trips more. But a queue that overflows has grown before, and with it the round trip: a loss without that
//! is the air's, and no reason to send less.
//!
//! What it sees of the path, frames see, too ([`Flight`]).

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

use super::flight::Flight;

/// A round trip that is longer than the shortest by half of it and by this has a queue in it: more than
/// acknowledgements are held back for.
const QUEUE: Duration = Duration::from_millis(15);

/// There is always room for so many bytes: a few packets, without which no acknowledgement would come.
const LEAST: u64 = 6_000;

/// Makes one for each connection.
#[derive(Debug, Default)]
pub(super) struct Config(Arc<BbrConfig>);

impl ControllerFactory for Config {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let bbr = Arc::clone(&self.0).build(now, mtu);
        Box::new(LossAware { bbr, queued: false, flight: Arc::default() })
    }
}

/// The flight of a connection, if it is one of ours.
pub(super) fn flight(connection: &quinn::Connection) -> Option<Arc<Flight>> {
    let control = connection.congestion_state().into_any().downcast::<LossAware>();
    control.ok().map(|control| control.flight)
}

struct LossAware {
    bbr: Box<dyn Controller>,
    /// Whether packets wait in a queue on the way.
    queued: bool,
    flight: Arc<Flight>,
}

impl Controller for LossAware {
    fn on_sent(&mut self, now: Instant, bytes: u64, last: u64) {
        self.flight.sent(now, bytes);
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
        self.flight.acked(sent, bytes);
        self.bbr.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest: Option<u64>,
    ) {
        self.flight.end_acks(now, in_flight);
        self.bbr.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost: u64) {
        // Where the path's rate is known, no more is sent than that; what BBR would do is to begin anew.
        if persistent || self.queued && self.flight.most().is_none() {
            self.bbr.on_congestion_event(now, sent, persistent, lost);
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.bbr.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        // BBR goes on for ten round trips as if a path were what it was.
        let most = self.flight.most().map_or(u64::MAX, |most| most.max(LEAST));
        self.bbr.window().min(most)
    }

    fn metrics(&self) -> ControllerMetrics {
        self.bbr.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        let flight = Arc::clone(&self.flight);
        Box::new(Self { bbr: self.bbr.clone_box(), queued: self.queued, flight })
    }

    fn initial_window(&self) -> u64 {
        self.bbr.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
