//! The grammar of `spaceport bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use spaceport_link::Profile as Link;

/// Measure what a Space does under load.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: What,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Attach simulated viewers to one stream.
    Viewers(Viewers),
}

/// Attach simulated viewers to one stream, and say what they got and what they cost.
#[derive(Debug, Args)]
pub(crate) struct Viewers {
    /// The Space: its address, or the name or id of one you have. Its token is the one kept for that Space,
    /// else `SPACEPORT_TOKEN`.
    #[arg(value_name = "URL")]
    pub(crate) space: String,
    /// What carries the stream.
    #[arg(long, value_enum)]
    pub(crate) transport: Carrier,
    /// How many watch.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) viewers: u32,
    /// Seconds to measure, from when all have joined.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) duration: u32,
    /// Seconds over which they join, at times that follow from the seed; 0 has all join at once.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=600))]
    pub(crate) join_over: u32,
    /// The network of each viewer; TCP cannot be impaired here.
    #[arg(long, value_enum, default_value_t = Profile::None)]
    pub(crate) profile: Profile,
    /// What joins, losses and jitter follow from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The display to stream. Without it: the primary one.
    #[arg(long, value_name = "ID")]
    pub(crate) display: Option<String>,
    /// Frames per second at most.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=240))]
    pub(crate) fps: u32,
    /// The stream's bitrate at most, in kbit/s. Without it: the Space's choice.
    #[arg(long, value_name = "KBPS", value_parser = clap::value_parser!(u32).range(250..=100_000))]
    pub(crate) bitrate: Option<u32>,
    /// Write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Write a plot of it to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Carrier {
    /// WebRTC.
    Whep,
    /// WebTransport, a stream for each frame.
    #[value(name = "webtransport")]
    WebTransport,
    /// QUIC as native viewers speak it, a stream for each frame.
    Quic,
    /// The media socket.
    Ws,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Profile {
    /// As it is.
    None,
    /// 5 % of all packets lost each way, 40 ms there and back.
    Lossy5,
    /// A telephone on the move: 12 Mbit/s, 60 ms there and back, jitter, a deep queue.
    Lte,
    /// Wi-Fi that many share: 4 Mbit/s, 50 ms there and back, losses in bursts.
    HotelWifi,
}

impl Profile {
    /// What happens to packets, up and down.
    pub(crate) fn link(self) -> Option<(Link, Link)> {
        let both = match self {
            Self::None => return None,
            Self::Lossy5 => Link::LOSSY5,
            Self::Lte => Link::LTE,
            Self::HotelWifi => Link::HOTEL_WIFI,
        };
        Some((both, both))
    }
}

impl Viewers {
    pub(crate) fn join_over(&self) -> Duration {
        Duration::from_secs(self.join_over.into())
    }
}
