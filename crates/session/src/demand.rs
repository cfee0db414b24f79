//! What viewers want from a producer.

use std::time::Instant;

use spaceport_types::Bitrate;

/// The limits a stream runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Settings {
    /// Frames per second at most.
    pub max_fps: u32,
    /// The longer side of a frame at most, in pixels; 0 for no limit.
    pub max_dimension: u32,
    /// Upper bound of the rate.
    pub bitrate: Bitrate,
}

/// What viewers want, merged over all of them. A value to read, not an event to handle.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Demand {
    /// How many are watching. With none, nothing is to be captured or encoded.
    pub viewers: usize,
    /// Whether at least one can take a frame now. While none can, a frame would only age in a
    /// queue: wait, and the next one is newer.
    pub ready: bool,
    /// A keyframe is wanted, and this is the earliest time to make it.
    pub keyframe: Option<Instant>,
    /// Whether at least one draws the pointer itself and has to be told of it.
    pub cursor: bool,
    /// The limits in force now.
    pub settings: Settings,
    /// Nobody can attach again: the producer can end.
    pub closed: bool,
}
