//! What a relay is told before it starts: one file, with a default for everything.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use spaceport_transport::whep::IceServers;
use spaceport_types::{Error, Kind, Redacted, Result};

use crate::{above, nodes, tunnel};

/// The TCP port of a relay, where none is given.
pub const PORT: u16 = 3220;

/// The UDP port of a relay, where none is given.
pub const QUIC_PORT: u16 = 3220;

/// The UDP port of a relay that WebRTC viewers share, where none is given.
pub const WEBRTC_PORT: u16 = 3221;

/// The configuration file with every default, commented.
pub const EXAMPLE: &str = include_str!("relay.example.toml");

/// Configuration of one relay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where HTTP and WebSockets listen. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The UDP port for QUIC, on the same address. 0 takes a free one.
    pub quic_port: u16,
    /// The UDP port that WebRTC viewers share. 0 takes a free one.
    pub webrtc_port: u16,
    /// Addresses that WebRTC viewers are told besides: those of a NAT in front of the relay.
    pub advertise: Vec<IpAddr>,
    /// The STUN and TURN servers that WebRTC viewers are told of.
    pub ice_servers: IceServers,
    /// The origin under which clients and machines reach it, such as `https://relay.example`. `None`: the
    /// address it listens on.
    pub public_url: Option<String>,
    /// Certificate and key for TLS on the TCP port, as PEM files. `None`: without TLS, for loopback, a LAN, or
    /// behind a proxy that has it.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Where machines, keys and the ledger are kept.
    pub state_dir: PathBuf,
    /// Lets machines in. `None`: the one in the state directory, made when missing.
    pub token: Option<Redacted<String>>,
    /// The relay that this one's machines are to be reached through, too. `None`: this is the last one.
    pub uplink: Option<above::Config>,
    /// The other nodes of this relay. `None`: there are none.
    pub nodes: Option<nodes::Config>,
    /// How much it takes on.
    pub limits: Limits,
}

impl Config {
    /// The defaults, with everything that outlives a run under `state_dir`.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        let file = File::default();
        Self {
            listen: file.listen,
            quic_port: file.quic_port,
            webrtc_port: file.webrtc_port,
            advertise: file.advertise,
            ice_servers: IceServers::default(),
            public_url: file.public_url,
            tls: None,
            state_dir: state_dir.into(),
            token: None,
            uplink: None,
            nodes: None,
            limits: file.limits,
        }
    }

    /// Takes what a file says.
    ///
    /// # Errors
    ///
    /// `io` for a file that cannot be read, `invalid_argument` for what is in it.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).map_err(|error| {
            Error::new(Kind::Io, format!("`{}` cannot be read", path.display()))
                .with("path", path.display())
                .source(error)
        })?;
        let file: File = toml::from_str(&text).map_err(|error| {
            Error::new(
                Kind::InvalidArgument,
                format!("`{}` is not a relay's configuration: {}", path.display(), error.message()),
            )
            .with("path", path.display())
            .hint("Compare it with `spaceport relay --example`")
        })?;
        self.listen = file.listen;
        self.quic_port = file.quic_port;
        self.webrtc_port = file.webrtc_port;
        self.advertise = file.advertise;
        self.ice_servers = match &file.ice_servers {
            Some(servers) => IceServers::read(servers)?,
            None => IceServers::default(),
        };
        self.public_url = file.public_url;
        self.tls = match (file.tls_cert, file.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                return Err(Error::new(
                    Kind::InvalidArgument,
                    format!("`{}` names a certificate or a key alone", path.display()),
                )
                .hint("Set `tls_cert` and `tls_key`, or neither"));
            }
        };
        self.uplink = match file.uplink {
            Some(url) => Some(above::Config::new(url.parse()?)),
            None => None,
        };
        self.limits = file.limits.checked()?;
        Ok(())
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    listen: SocketAddr,
    quic_port: u16,
    webrtc_port: u16,
    advertise: Vec<IpAddr>,
    ice_servers: Option<PathBuf>,
    public_url: Option<String>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    uplink: Option<String>,
    limits: Limits,
}

impl Default for File {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], PORT)),
            quic_port: QUIC_PORT,
            webrtc_port: WEBRTC_PORT,
            advertise: Vec::new(),
            ice_servers: None,
            public_url: None,
            tls_cert: None,
            tls_key: None,
            uplink: None,
            limits: Limits::default(),
        }
    }
}

/// How much a relay takes on. `relay.example.toml` says what each is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Limits {
    /// Machines that may be registered.
    pub machines: usize,
    /// Machines that have connected and not said yet who they are.
    pub joining: usize,
    /// TCP connections of clients.
    pub connections: usize,
    /// Of those, such that have not said what they want.
    pub opening: usize,
    /// The largest head of a request, in KiB.
    pub head_kib: usize,
    /// Bytes of one request, or of its answer, that wait for someone to read them, in KiB.
    pub window_kib: usize,
    /// What may wait of all requests to one machine, in MiB.
    pub machine_memory_mib: usize,
    /// The same of all requests to all machines.
    pub memory_mib: usize,
    /// How long a client may take over the head of a request, and a machine to say who it is, in seconds.
    pub patience_s: u64,
    /// How long a request may be there without a byte either way, in seconds.
    pub idle_s: u64,
    /// How long a machine that has just gone is waited for, in milliseconds.
    pub grace_ms: u64,
    /// How long requests get to finish when the relay stops, in seconds.
    pub drain_s: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            machines: 1024,
            joining: 64,
            connections: 4096,
            opening: 512,
            head_kib: 64,
            window_kib: 512,
            machine_memory_mib: 128,
            memory_mib: 1024,
            patience_s: 10,
            idle_s: 1800,
            grace_ms: 3000,
            drain_s: 5,
        }
    }
}

impl Limits {
    /// Refuses what nothing would work with.
    fn checked(self) -> Result<Self> {
        let mut error: Option<Error> = None;
        for (name, value, least, most) in [
            ("machines", self.machines, 1, 1 << 20),
            ("joining", self.joining, 1, 1 << 16),
            ("connections", self.connections, 1, 1 << 20),
            ("opening", self.opening, 1, 1 << 20),
            // hyper takes no smaller buffer.
            ("head_kib", self.head_kib, 8, 1 << 10),
            ("window_kib", self.window_kib, 64, 64 << 10),
            ("machine_memory_mib", self.machine_memory_mib, 1, 1 << 16),
            ("memory_mib", self.memory_mib, 1, 1 << 20),
            ("patience_s", self.patience_s as usize, 1, 3600),
            ("idle_s", self.idle_s as usize, 1, 1 << 30),
            ("grace_ms", self.grace_ms as usize, 0, 60_000),
            ("drain_s", self.drain_s as usize, 0, 3600),
        ] {
            if !(least..=most).contains(&value) {
                let issue = spaceport_types::Issue {
                    path: format!("limits.{name}"),
                    constraint: "range".into(),
                    limit: Some(format!("{least} to {most}")),
                };
                let found = error.take().unwrap_or_else(|| {
                    Error::new(
                        Kind::InvalidArgument,
                        format!("`limits.{name}` has to be from {least} to {most}, and is {value}"),
                    )
                });
                error = Some(found.issue(issue));
            }
        }
        match error {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    /// Bytes of one request that may wait, one way.
    pub(crate) fn window(&self) -> u32 {
        u32::try_from(self.window_kib << 10).unwrap_or(u32::MAX)
    }

    /// Requests to all machines at one time: each may have a window waiting either way.
    pub(crate) fn requests(&self) -> usize {
        (self.memory_mib << 10) / (2 * self.window_kib).max(1)
    }

    /// What one tunnel may hold.
    pub(crate) fn tunnel(&self) -> tunnel::Limits {
        let streams = (self.machine_memory_mib << 10) / (2 * self.window_kib).max(1);
        tunnel::Limits { streams: streams.max(1), window: self.window() }
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience_s)
    }

    pub(crate) fn idle(&self) -> Duration {
        Duration::from_secs(self.idle_s)
    }

    pub(crate) fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_has_every_default() {
        assert_eq!(toml::from_str::<File>(EXAMPLE).unwrap(), File::default());
        // And commented out, each is said nonetheless.
        for name in ["public_url", "tls_cert", "tls_key", "uplink"] {
            assert!(EXAMPLE.contains(&format!("# {name} = ")), "{name}");
        }
        let limits = EXAMPLE.split("[limits]").nth(1).unwrap();
        let said = limits.lines().filter(|line| line.contains(" = ") && !line.starts_with('#'));
        assert_eq!(said.count(), 12, "every limit");
    }

    #[test]
    fn a_file_that_is_wrong_says_where() {
        let path =
            std::env::temp_dir().join(format!("spaceport-relay-{}.toml", std::process::id()));
        for (text, word) in [
            ("lisen = \"127.0.0.1:1\"", "lisen"),
            ("[limits]\nmachines = 0", "limits.machines"),
            ("[limits]\nwindow_kib = 1", "limits.window_kib"),
            ("tls_cert = \"a.pem\"", "certificate"),
            ("[limits", ""),
        ] {
            fs::write(&path, text).unwrap();
            let error = Config::new("/nowhere").read(&path).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument, "{text}");
            assert!(error.to_string().contains(word), "{error}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(Config::new("/nowhere").read(&path).unwrap_err().kind(), Kind::Io);
    }

    #[test]
    fn what_waits_adds_up_to_the_memory_that_was_given() {
        let limits = Limits::default();
        let tunnel = limits.tunnel();
        assert_eq!(tunnel.streams * 2 * tunnel.window as usize, 128 << 20);
        assert_eq!(limits.requests() * 2 * limits.window() as usize, 1 << 30);
    }
}
