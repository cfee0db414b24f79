//! The grammar of the command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use spaceport_gateway::config::{HTTP_PORT, QUIC_PORT, WEBRTC_PORT, read_secret};
use spaceport_gateway::{Config, IceServers};
use spaceport_teleport::Machine;
use spaceport_types::{Redacted, Result};

use crate::client::args as client;

/// Show a desktop to browsers and agents.
#[derive(Debug, Parser)]
#[command(name = "spaceport", version, about, propagate_version = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
    /// Print data as JSON on stdout.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Never ask anything, and print an error as one line of JSON on stderr.
    #[arg(long, global = true)]
    pub(crate) agent: bool,
    /// Log more; twice for every decision.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Serve this machine's desktop.
    Serve(Serve),
    /// Say which displays, encoders and ports work here, and why not.
    Doctor(Doctor),
    /// Move a signed-in app session to a Space, and back.
    Teleport(crate::teleport::args::Teleport),
    /// List what waits for a person's yes, and what became of the rest.
    Approvals(crate::teleport::args::Kept),
    /// List the Spaces you have; add, remove, rename or examine one.
    Spaces(client::Registered),
    /// List the windows of a Space.
    Windows(client::Windows),
    /// Open a stream of a Space and say every way in; or close one.
    Stream(client::Stream),
    /// Look at a Space in a browser.
    Open(client::Open),
    /// Send files and folders to a Space.
    Send(client::Send),
    /// Download files and folders from a Space.
    Download(client::Download),
    /// Measure what simulated viewers get of a Space, and what they cost it.
    Bench(crate::bench::args::Bench),
    /// Say what a kind of error means, and what programs get to see of it.
    Errors(Errors),
    /// Serve the Spaces you have to an agent, as MCP tools on stdin and stdout.
    Mcp(Mcp),
    /// Print what lets a shell complete these verbs and their flags.
    Completions(Completions),
}

/// Serve this machine's desktop to viewers, over WebTransport, QUIC, WebSocket and WebRTC.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) at: At,
    /// Start a virtual desktop with something moving on it, and show that instead.
    #[arg(long)]
    pub(crate) demo: bool,
    /// Offer a generated test pattern as a further display, `test-pattern`.
    #[arg(long)]
    pub(crate) test_pattern: bool,
    /// Read the Space token from this file, which only you may be able to read. Without it:
    /// `SPACEPORT_TOKEN`, or a token kept in the state directory.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A further address at which WebRTC viewers reach this machine, such as its public one.
    #[arg(long, value_name = "IP")]
    pub(crate) advertise: Vec<IpAddr>,
    /// Tell WebRTC viewers of the STUN and TURN servers in this file: a JSON list of `urls`, with
    /// `username` and `credential`, or with a `secret` that is shared with the TURN server.
    #[arg(long, value_name = "FILE")]
    pub(crate) ice_servers: Option<PathBuf>,
    /// Media sessions at one time, each of which takes 8 sockets.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_sessions: u16,
    /// Use this encoder only, by the name `spaceport doctor` shows.
    #[arg(long, value_name = "NAME")]
    pub(crate) encoder: Option<String>,
    /// Where files that are sent arrive. Without it: `Downloads` in the home.
    #[arg(long, value_name = "DIR")]
    pub(crate) downloads_dir: Option<PathBuf>,
    /// The folder that clients may read and write files below. Without it: the home; `/` for all that
    /// you may.
    #[arg(long, value_name = "DIR")]
    pub(crate) files_root: Option<PathBuf>,
    /// Where the token and the addresses are kept.
    #[arg(long, value_name = "DIR", env = "SPACEPORT_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Examine this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) at: At,
}

/// Explain errors.
#[derive(Debug, clap::Args)]
pub(crate) struct Errors {
    /// The kind or the cause, as `kind`, `code` or `cause` of an error has it. Without it: all kinds.
    pub(crate) kind: Option<String>,
    /// Print the page of the documentation that lists all of it.
    #[arg(long, hide = true, conflicts_with = "kind")]
    pub(crate) markdown: bool,
}

/// Complete in a shell.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// Serve the Spaces you have to an agent.
#[derive(Debug, clap::Args)]
pub(crate) struct Mcp {
    /// Speak streamable HTTP at this address instead, path `/mcp`; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<SocketAddr>,
    /// Ask for the token in this file, which only you may be able to read. Without it: one that is
    /// made and kept in the state directory.
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) kept: crate::teleport::args::Kept,
}

/// What is shown, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// Where HTTP, gRPC and the media socket listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value_t = SocketAddr::from(([127, 0, 0, 1], HTTP_PORT)))]
    pub(crate) listen: SocketAddr,
    /// The UDP port for QUIC and WebTransport; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = QUIC_PORT)]
    pub(crate) quic_port: u16,
    /// The UDP port that all WebRTC viewers share; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = WEBRTC_PORT)]
    pub(crate) webrtc_port: u16,
    /// The X display to show.
    #[arg(long, value_name = ":N", env = "DISPLAY")]
    pub(crate) display: Option<String>,
}

impl Serve {
    /// The configuration these flags and the environment ask for.
    pub(crate) fn config(&self) -> Result<Config> {
        let environment = Environment::read();
        let state_dir = self.state_dir.clone().unwrap_or(environment.state_dir);
        let mut config = Config::new(state_dir);
        config.token = match &self.token_file {
            Some(file) => Some(read_secret(file)?),
            None => environment.token,
        };
        self.at.apply(&mut config);
        config.demo = self.demo;
        config.test_pattern = self.test_pattern;
        config.advertise = self.advertise.clone();
        if let Some(file) = &self.ice_servers {
            config.ice_servers = IceServers::read(file)?;
        }
        config.encoder = self.encoder.clone();
        config.max_sessions = self.max_sessions.into();
        config.home = environment.home;
        config.downloads_dir = self.downloads_dir.clone();
        config.files_root = self.files_root.clone();
        config.machine = Machine::from_environment(std::env::vars_os());
        Ok(config)
    }
}

impl Doctor {
    pub(crate) fn config(&self) -> Config {
        let mut config = Config::new(Environment::read().state_dir);
        self.at.apply(&mut config);
        config
    }
}

impl At {
    fn apply(&self, config: &mut Config) {
        config.listen = self.listen;
        config.quic_port = self.quic_port;
        config.webrtc_port = self.webrtc_port;
        config.display = self.display.clone().filter(|display| !display.is_empty());
    }
}

/// The part of the environment that is not a flag's default. A token is never a flag: the list of
/// processes shows flags to everyone.
pub(crate) struct Environment {
    pub(crate) token: Option<Redacted<String>>,
    pub(crate) state_dir: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// Where the Spaces of this user are listed.
    pub(crate) config_dir: PathBuf,
    /// Whether there is a desktop to open a browser on.
    pub(crate) desktop: bool,
}

impl Environment {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    pub(crate) fn read() -> Self {
        let read = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let state_home = read("XDG_STATE_HOME").map(PathBuf::from);
        let home = || read("HOME").map(|home| PathBuf::from(home).join(".local/state"));
        let base = state_home.or_else(home).unwrap_or_else(std::env::temp_dir);
        let config_home = || {
            let home = || read("HOME").map(|home| PathBuf::from(home).join(".config"));
            let base = read("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
            base.unwrap_or_else(std::env::temp_dir).join("spaceport")
        };
        Self {
            token: read("SPACEPORT_TOKEN").map(Redacted::new),
            state_dir: base.join("spaceport"),
            home: read("HOME").map(PathBuf::from),
            config_dir: read("SPACEPORT_CONFIG_DIR").map_or_else(config_home, PathBuf::from),
            desktop: read("DISPLAY").or_else(|| read("WAYLAND_DISPLAY")).is_some(),
        }
    }
}
