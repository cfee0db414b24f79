//! Quantities with their unit in the type.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A rate of bits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bitrate(u64);

impl Bitrate {
    /// A rate given in bits per second.
    pub const fn from_bps(bps: u64) -> Self {
        Self(bps)
    }

    /// A rate given in kilobits (1,000 bits) per second, the unit of the public contract.
    pub const fn from_kbps(kbps: u32) -> Self {
        Self(kbps as u64 * 1_000)
    }

    /// Bits per second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// Kilobits per second, rounded down and saturating.
    pub const fn kbps(self) -> u32 {
        let kbps = self.0 / 1_000;
        if kbps > u32::MAX as u64 { u32::MAX } else { kbps as u32 }
    }
}

impl fmt::Display for Bitrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bps if bps >= 1_000_000 => write!(f, "{:.1} Mbit/s", bps as f64 / 1e6),
            bps if bps >= 1_000 => write!(f, "{:.1} kbit/s", bps as f64 / 1e3),
            bps => write!(f, "{bps} bit/s"),
        }
    }
}
