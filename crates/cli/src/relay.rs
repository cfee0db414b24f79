//! `spaceport relay`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use spaceport_gateway::config::read_secret;
use spaceport_relay::config::{Config, EXAMPLE, PORT, QUIC_PORT, WEBRTC_PORT};
use spaceport_relay::uplink::Origin;
use spaceport_relay::{Endpoints, Relay as Server, above, nodes};
use spaceport_transport::whep::IceServers;
use spaceport_types::{Error, Kind, Redacted, Result};

use crate::args::Environment;
use crate::render;
use crate::serve::stop_signal;

/// Bring machines behind NAT to clients and viewers, who reach them at `/m/<machine-id>/`.
#[derive(Debug, clap::Args)]
pub(crate) struct Relay {
    /// Read everything from this file first. `--example` prints one with every default.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print a configuration file with every default, and nothing else.
    #[arg(long)]
    example: bool,
    /// Where HTTP and WebSockets listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", help = listen_help())]
    listen: Option<SocketAddr>,
    /// The UDP port for QUIC; 0 takes a free one.
    #[arg(long, value_name = "PORT", help = quic_port_help())]
    quic_port: Option<u16>,
    /// The UDP port that WebRTC viewers share; 0 takes a free one.
    #[arg(long, value_name = "PORT", help = webrtc_port_help())]
    webrtc_port: Option<u16>,
    /// Tell WebRTC viewers of the STUN and TURN servers in this file: a JSON list of `urls`, with `username` and
    /// `credential`, or with a `secret` that is shared with the TURN server.
    #[arg(long, value_name = "FILE")]
    ice_servers: Option<PathBuf>,
    /// The origin under which clients and machines reach the relay, such as `https://relay.example`.
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Serve TLS with the certificate in this PEM file, its chain included.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, as a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Read the registration token from this file, which only you may be able to read. Without it:
    /// `SPACEPORT_RELAY_TOKEN`, or a token kept in the state directory.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Have the machines of this relay reached through the relay at this address, too. Its registration token
    /// has to be in `SPACEPORT_UPLINK_TOKEN`.
    #[arg(long, value_name = "URL")]
    uplink: Option<Origin>,
    /// Read that relay's registration token from this file, which only you may be able to read.
    #[arg(long, value_name = "FILE")]
    uplink_token_file: Option<PathBuf>,
    /// Be one of several nodes, which share their machines in the Redis at this address, such as
    /// `redis://10.0.0.5:6379`. One with a password belongs in `SPACEPORT_DIRECTORY`, or in a file.
    #[arg(long, value_name = "URL", conflicts_with = "directory_file")]
    directory: Option<String>,
    /// Read that address from this file, which only you may be able to read.
    #[arg(long, value_name = "FILE")]
    directory_file: Option<PathBuf>,
    /// The origin at which other nodes reach this one. Without it: the address it listens on.
    #[arg(long, value_name = "URL")]
    node_url: Option<String>,
    /// Read the secret by which nodes know each other from this file, which only you may be able to read.
    /// Without it: `SPACEPORT_NODE_SECRET`.
    #[arg(long, value_name = "FILE")]
    node_secret_file: Option<PathBuf>,
    /// Where machines, keys and the ledger are kept.
    #[arg(long, value_name = "DIR", env = "SPACEPORT_STATE_DIR")]
    state_dir: Option<PathBuf>,
}

fn listen_help() -> String {
    format!("Where HTTP and WebSockets listen; port 0 takes a free one [default: 127.0.0.1:{PORT}]")
}

fn webrtc_port_help() -> String {
    format!("The UDP port that WebRTC viewers share; 0 takes a free one [default: {WEBRTC_PORT}]")
}

fn quic_port_help() -> String {
    format!("The UDP port for QUIC; 0 takes a free one [default: {QUIC_PORT}]")
}

impl Relay {
    /// The nodes, if this is to be one.
    fn nodes(&self, environment: &Environment) -> Result<Option<nodes::Config>> {
        if self.directory.as_ref().is_some_and(|url| url.contains('@')) {
            return Err(Error::new(
                Kind::InvalidArgument,
                "the address of the directory has a password, which everybody sees in the list of processes",
            )
            .hint("Put it into `SPACEPORT_DIRECTORY`, or into a file for `--directory-file`"));
        }
        let directory = match (&self.directory, &self.directory_file) {
            (Some(url), _) => Some(Redacted::new(url.clone())),
            (None, Some(file)) => Some(read_secret(file)?),
            (None, None) => environment.directory.clone(),
        };
        let Some(directory) = directory else { return Ok(None) };
        let secret = match &self.node_secret_file {
            Some(file) => Some(read_secret(file)?),
            None => environment.node_secret.clone(),
        };
        let secret = secret.ok_or_else(|| {
            Error::new(Kind::InvalidArgument, "nodes that share a directory need a secret")
                .hint("Make one with `openssl rand -hex 32`, and give every node the same by `--node-secret-file`")
        })?;
        let mut nodes = nodes::Config::new(directory, secret);
        nodes.url.clone_from(&self.node_url);
        Ok(Some(nodes))
    }

    fn config(&self) -> Result<Config> {
        let environment = Environment::read();
        let nodes = self.nodes(&environment)?;
        let state_dir = self.state_dir.clone();
        let mut config =
            Config::new(state_dir.unwrap_or_else(|| environment.state_dir.join("relay")));
        if let Some(file) = &self.config {
            config.read(file)?;
        }
        config.token = match &self.token_file {
            Some(file) => Some(read_secret(file)?),
            None => environment.relay_token,
        };
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        if let Some(port) = self.quic_port {
            config.quic_port = port;
        }
        if let Some(port) = self.webrtc_port {
            config.webrtc_port = port;
        }
        if let Some(file) = &self.ice_servers {
            config.ice_servers = IceServers::read(file)?;
        }
        if let Some(url) = &self.public_url {
            config.public_url = Some(url.clone());
        }
        config.nodes = nodes;
        if let Some(uplink) = &self.uplink {
            config.uplink = Some(above::Config::new(uplink.clone()));
        }
        if let Some(uplink) = &mut config.uplink {
            uplink.token = match &self.uplink_token_file {
                Some(file) => Some(read_secret(file)?),
                None => environment.uplink_token,
            };
        }
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            config.tls = Some((certificate.clone(), key.clone()));
        }
        Ok(config)
    }
}

pub(crate) fn run(relay: &Relay, json: bool) -> Result<ExitCode> {
    if relay.example {
        render::text_out(EXAMPLE);
        return Ok(ExitCode::SUCCESS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // Before anything is started, so that a signal ends it in order.
        let stop = stop_signal()?;
        let server = Server::load(relay.config()?).await?;
        if json {
            render::json(server.endpoints());
        } else {
            announce(server.endpoints());
        }
        server.run(stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

fn announce(endpoints: &Endpoints) {
    let token = endpoints.token_file.as_ref().map_or_else(
        || "the one you gave".to_owned(),
        |file| format!("kept in {}", render::printable(&file.display().to_string())),
    );
    let Endpoints { http, quic, url, .. } = endpoints;
    render::line_out(&format!(
        "\n  The relay is up. On a machine that is to be reached through it:\n\n    \
         SPACEPORT_RELAY_TOKEN=… spaceport serve --relay {url}\n\n  \
         Machines             {url}/m/<machine-id>/\n  \
         HTTP, WebSocket      tcp {http}\n  \
         QUIC                 udp {quic}\n  \
         Registration token   {token}\n\n  \
         Ctrl-C ends it.\n"
    ));
}
