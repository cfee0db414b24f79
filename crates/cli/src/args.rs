//! The grammar of the command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use spaceport_gateway::Config;
use spaceport_gateway::config::{HTTP_PORT, QUIC_PORT, WEBRTC_PORT, read_secret};
use spaceport_gateway::service::Facts;
use spaceport_relay::uplink::{self, Origin};
use spaceport_teleport::Machine;
use spaceport_transport::whep::IceServers;
use spaceport_types::{MachineId, Redacted, Result};

use crate::client::args as client;

/// Where the flags that every verb has stand: behind its own.
const EVERYWHERE: usize = 900;

/// What a newcomer does first, below the list of verbs.
const FIRST_STEPS: &str = "\
First steps:
  spaceport serve --demo              Show a desktop of its own; open the address that it prints
  spaceport spaces add HOST           Add a Space that runs elsewhere, and ask it what it can do
  spaceport open HOST                 Look at it in a browser
  spaceport send FILE --to HOST       Send it a file
  spaceport teleport manifest APP     See what of an app could move there, such as firefox

A Space is the desktop of a machine or a container that runs `spaceport serve`. Its token is never \
an argument: it comes from SPACEPORT_TOKEN, `--token-file`, or is kept when a Space is added.";

/// Show the desktops of machines and containers to people and agents, and move apps and files there.
#[derive(Debug, Parser)]
#[command(name = "spaceport", version, about, propagate_version = true, max_term_width = 100)]
#[command(after_help = FIRST_STEPS)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) verb: Verb,
    /// Print data as JSON on stdout.
    #[arg(long, global = true, display_order = EVERYWHERE)]
    pub(crate) json: bool,
    /// Never ask anything, and print an error as one line of JSON on stderr.
    #[arg(long, global = true, display_order = EVERYWHERE)]
    pub(crate) agent: bool,
    /// Log more; twice for every decision.
    #[arg(short, long, global = true, display_order = EVERYWHERE, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Show this machine's desktop: be a Space.
    Serve(Serve),
    /// Send this machine's desktop, or one window, to an SFU over WHIP.
    Publish(crate::publish::Publish),
    /// Bring machines behind NAT to clients and viewers.
    Relay(crate::relay::Relay),
    /// Say which displays, encoders and ports work here, and why not.
    Doctor(Doctor),
    /// List the Spaces you have; add, remove, rename or examine one.
    Spaces(client::Registered),
    /// Look at a Space in a browser.
    Open(client::Open),
    /// List the windows of a Space.
    Windows(client::Windows),
    /// Open a stream of a Space and say every way in; play it, or keep a picture or a recording.
    Stream(client::Stream),
    /// Send files and folders to a Space.
    Send(client::Send),
    /// Download files and folders from a Space.
    Download(client::Download),
    /// Move a signed-in app session to a Space, and back.
    Teleport(crate::teleport::args::Teleport),
    /// List what waits for a person's yes, and what became of the rest.
    Approvals(crate::teleport::args::Kept),
    /// Give an agent the Spaces you have, as MCP tools on stdin and stdout or over HTTP.
    Mcp(Mcp),
    /// Measure what simulated viewers get of a Space, and what they cost it.
    Bench(crate::bench::args::Bench),
    /// Say what a kind of error means, and what to do about it.
    Errors(Errors),
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
    /// Seal what the printed viewer link shows: its pictures open with the key in the link alone, whatever
    /// relay or proxy lies between.
    #[arg(long)]
    pub(crate) sealed: bool,
    /// Media sessions at one time, each of which takes 8 sockets.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_sessions: u16,
    /// Encode video with this only, by the name `spaceport doctor` shows; video of another codec is not
    /// offered then.
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
    /// Have others reach this machine through the relay at this address, such as `https://relay.example`.
    /// The first time, its registration token has to be in `SPACEPORT_RELAY_TOKEN`. Given several times, these
    /// are nodes of one relay: whichever is there is taken.
    #[arg(long, value_name = "URL")]
    pub(crate) relay: Vec<Origin>,
    /// Read the relay's registration token from this file, which only you may be able to read.
    #[arg(long, value_name = "FILE", requires = "relay")]
    pub(crate) relay_token_file: Option<PathBuf>,
    /// This machine's id at the relay. Without it: the one that it had before, or one made of its name.
    #[arg(long, value_name = "ID", requires = "relay")]
    pub(crate) machine_id: Option<MachineId>,
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

/// Give an agent the Spaces you have, as MCP tools.
///
/// An agent's host starts it and speaks on its stdin: `{"command": "spaceport", "args": ["mcp"]}`.
#[derive(Debug, clap::Args)]
pub(crate) struct Mcp {
    /// Speak streamable HTTP at this address instead, path `/mcp`; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", value_parser = listen)]
    pub(crate) http: Option<SocketAddr>,
    /// Ask for the token in this file, which only you may be able to read. Without it: one that is
    /// made and kept in the state directory.
    #[arg(long, value_name = "FILE", requires = "http")]
    pub(crate) token_file: Option<PathBuf>,
    /// Where a person may agree to a teleport. Without it: `client` on stdin, whose other end has
    /// started this; `terminal` over HTTP, where it may be anybody with the token.
    #[arg(long, value_name = "WHERE", value_enum)]
    pub(crate) consent: Option<Consent>,
    #[command(flatten)]
    pub(crate) kept: crate::teleport::args::Kept,
}

/// Where a person may agree to a teleport that an agent asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Consent {
    /// In the program that the agent runs in, where that can ask; and in a terminal.
    Client,
    /// In a terminal of this machine only.
    Terminal,
}

/// What is shown, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct At {
    /// Where HTTP, gRPC and the media socket listen, or their port alone; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", value_parser = listen, default_value_t = SocketAddr::from(([127, 0, 0, 1], HTTP_PORT)))]
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

/// Where to listen: an address and a port, or one of them.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let text =
        text.strip_prefix("localhost").map_or(text.to_owned(), |rest| format!("{loopback}{rest}"));
    let address = text.parse().ok();
    let port = || text.parse().ok().map(|port: u16| SocketAddr::new(loopback, port));
    let ip = || text.parse().ok().map(|ip: IpAddr| SocketAddr::new(ip, HTTP_PORT));
    address.or_else(port).or_else(ip).ok_or_else(|| {
        "write it as 127.0.0.1:3211, or as 0.0.0.0:3211 to be reached from other machines"
            .to_owned()
    })
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
        config.sealed = self.sealed;
        config.max_sessions = self.max_sessions.into();
        config.relay = self.uplink(&config, environment.relay_token)?;
        config.home = environment.home;
        config.downloads_dir = self.downloads_dir.clone();
        config.files_root = self.files_root.clone();
        config.machine = Machine::from_environment(std::env::vars_os());
        Ok(config)
    }
}

impl Serve {
    fn uplink(
        &self,
        config: &Config,
        token: Option<Redacted<String>>,
    ) -> Result<Option<uplink::Config>> {
        let mut relays = self.relay.iter().cloned();
        let Some(relay) = relays.next() else { return Ok(None) };
        let name = Facts::read().hostname;
        let mut uplink = uplink::Config::new(relay, name, config.relay_path());
        uplink.others = relays.collect();
        uplink.machine = self.machine_id.clone();
        uplink.token = match &self.relay_token_file {
            Some(file) => Some(read_secret(file)?),
            None => token,
        };
        Ok(Some(uplink))
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
    /// Lets machines in at a relay.
    pub(crate) relay_token: Option<Redacted<String>>,
    /// Lets a relay's machines in at the next one.
    pub(crate) uplink_token: Option<Redacted<String>>,
    /// The Redis that the nodes of a relay share.
    pub(crate) directory: Option<Redacted<String>>,
    /// By which they know each other.
    pub(crate) node_secret: Option<Redacted<String>>,
    /// Opens a WHIP endpoint.
    pub(crate) whip_token: Option<Redacted<String>>,
    pub(crate) state_dir: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// Where the Spaces of this user are listed.
    pub(crate) config_dir: PathBuf,
    /// Whether there is a desktop to open a browser on.
    pub(crate) desktop: bool,
    /// Whether that is a Wayland one.
    pub(crate) wayland: bool,
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
            relay_token: read("SPACEPORT_RELAY_TOKEN").map(Redacted::new),
            uplink_token: read("SPACEPORT_UPLINK_TOKEN").map(Redacted::new),
            directory: read("SPACEPORT_DIRECTORY").map(Redacted::new),
            node_secret: read("SPACEPORT_NODE_SECRET").map(Redacted::new),
            whip_token: read("SPACEPORT_WHIP_TOKEN").map(Redacted::new),
            state_dir: read("SPACEPORT_STATE_DIR")
                .map_or_else(|| base.join("spaceport"), PathBuf::from),
            home: read("HOME").map(PathBuf::from),
            config_dir: read("SPACEPORT_CONFIG_DIR").map_or_else(config_home, PathBuf::from),
            wayland: read("WAYLAND_DISPLAY").is_some(),
            desktop: read("DISPLAY").or_else(|| read("WAYLAND_DISPLAY")).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_listen_at_is_read_as_people_write_it() {
        for (written, meant) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("3300", "127.0.0.1:3300"),
            ("0", "127.0.0.1:0"),
            ("0.0.0.0", "0.0.0.0:3211"),
            ("localhost", "127.0.0.1:3211"),
            ("localhost:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("::", "[::]:3211"),
        ] {
            assert_eq!(listen(written).unwrap().to_string(), meant, "{written}");
        }
        for written in ["", "box:80", "70000", "127.0.0.1:", ":80", "http://127.0.0.1:80"] {
            assert!(listen(written).unwrap_err().contains("127.0.0.1:3211"), "{written}");
        }
    }
}
