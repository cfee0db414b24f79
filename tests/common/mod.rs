mod agent;
mod beside;
mod cpu;
mod cua;
mod cut;
mod folder;
mod gateway;
mod grpc;
mod here;
mod home;
mod http;
mod internet;
mod memory;
mod network;
mod offer;
mod older;
mod pattern;
mod program;
mod redis;
mod relay;
mod screen;
mod script;
mod server;
mod site;
mod socket;
mod tap;
mod throttle;
mod watch;
mod window;

pub use agent::Agent;
pub use beside::Beside;
pub use cpu::Cpu;
pub use cua::cua;
pub use cut::{Cut, Harm, Way};
pub use folder::Folder;
pub use gateway::{Gateway, Start, TOKEN, binary};
pub use grpc::{Refused, call_at};
pub use here::{Done, Here, Looks, downloads, names, noise, tree};
pub use home::{App, Home};
pub use http::{Answer, Request};
pub use internet::Internet;
pub use memory::memory_holds;
pub use network::Network;
pub use offer::offer;
pub use older::{Lacks, Older};
pub use pattern::assert_shows_the_pattern;
pub use program::Program;
pub use redis::Redis;
pub use relay::{RELAY_TOKEN, Relay};
pub use screen::Screen;
pub use script::{Browser, Script};
pub use server::Server;
pub use site::{Site, Visit};
pub use socket::{Event, Refusal, Socket, Via};
pub use tap::Tap;
pub use throttle::Throttle;
pub use watch::Watch;
pub use window::Window;

use std::time::Duration;

use tokio::time::Instant;

/// Waits until `happened`, looking often; panics with `what` when it does not within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut happened: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !happened() {
        assert!(Instant::now() < end, "{what}: not within {limit:?}");
        std::thread::sleep(POLL);
    }
}

/// Says what was measured, for whoever wants to see more than a pass.
#[expect(clippy::print_stderr, reason = "the output of a test")]
pub fn measured(what: std::fmt::Arguments<'_>) {
    eprintln!("measured: {what}");
}

/// How often something is looked at that cannot be waited for: another process's counters.
const POLL: Duration = Duration::from_millis(20);
