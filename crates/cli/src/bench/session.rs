//! The media sessions that the viewers share, and how each transport gets at one.

use std::net::SocketAddr;

use spaceport_link::{Counts, Proxy};
use spaceport_spaces::{Client, Spaces};
use spaceport_transport::quic::Remote;
use spaceport_transport::whep::player;
use spaceport_types::{Error, Kind, Redacted, Result};
use spaceport_wire::pb::{
    CloseMediaRequest, CloseMediaResponse, MediaCodec, MediaTarget, OpenMediaRequest,
    OpenMediaResponse, media_target,
};
use tokio::net::lookup_host;

use super::args::{Carrier, Viewers};

/// Viewers of one session: what every server of the contract lets in. Sessions with the same target and
/// settings share one encode.
const SOCKETS_PER_SESSION: usize = 8;
const PEERS_PER_SESSION: usize = 500;

/// The same through a relay, which serves them itself.
const AT_RELAY: usize = 10_000;

/// How long a ticket lets viewers in: the longest there is, so that all can join.
const TICKET: i64 = 600;

/// The Space that is measured.
pub(crate) struct Space {
    client: Client,
    /// Where its gateway answers TCP.
    pub(crate) address: SocketAddr,
}

/// One open media session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    id: String,
    pub(crate) socket: Redacted<String>,
    pub(crate) whep: player::Remote,
    pub(crate) quic: Option<Remote>,
    /// The machine whose session it is, at a relay.
    pub(crate) machine: Option<String>,
    pub(crate) ticket: Redacted<String>,
}

impl Space {
    /// The Space that was named, or the one at an address.
    pub(crate) async fn find(spaces: &Spaces, named: &str) -> Result<Self> {
        let (client, _) = spaces.client(named)?;
        let address = client.address();
        if address.is_secure() {
            return Err(Error::new(
                Kind::CapabilityMissing,
                "a Space behind TLS cannot be measured",
            )
            .with("address", address)
            .hint("Measure the gateway itself, at its `http` address"));
        }
        let authority = address.authority();
        let unknown = |error: std::io::Error| {
            Error::new(Kind::Io, format!("`{authority}` has no address")).source(error)
        };
        let mut found = lookup_host(&authority).await.map_err(unknown)?;
        let found = found
            .next()
            .ok_or_else(|| Error::new(Kind::Io, format!("`{authority}` has no address")))?;
        Ok(Self { client, address: found })
    }

    /// Opens a session as wide as `viewers` asks for.
    pub(crate) async fn open(&self, viewers: &Viewers) -> Result<Session> {
        let display = viewers.display.clone().unwrap_or_else(|| "primary".to_owned());
        let request = OpenMediaRequest {
            target: Some(MediaTarget { target: Some(media_target::Target::DisplayId(display)) }),
            codecs: vec![MediaCodec::H264.into()],
            max_fps: viewers.fps,
            bitrate_kbps: viewers.bitrate.unwrap_or_default(),
            ticket_ttl: Some(prost_types::Duration { seconds: TICKET, nanos: 0 }),
            ..OpenMediaRequest::default()
        };
        let opened: OpenMediaResponse =
            self.client.call("StreamService/OpenMedia", request).await?;
        let base = self.client.address().to_string();
        let ticket = opened.ticket;
        let socket = match &*opened.ws_path {
            "" => format!("/media?ticket={ticket}"),
            path => path.to_owned(),
        };
        let quic = opened.quic.and_then(|quic| {
            let port = u16::try_from(quic.port).ok().filter(|&port| port != 0)?;
            let address = SocketAddr::new(self.address.ip(), port);
            Some(Remote { address, certificates: vec![quic.certificate_sha256] })
        });
        Ok(Session {
            id: opened.media_session_id,
            socket: Redacted::new(base.replacen("http", "ws", 1) + &socket),
            whep: player::Remote {
                url: format!("{base}/whep"),
                ticket: Redacted::new(ticket.clone()),
            },
            quic,
            machine: self.machine(),
            ticket: Redacted::new(ticket),
        })
    }

    /// The machine that it is at a relay, if that is what was named.
    fn machine(&self) -> Option<String> {
        let below = format!("{}/", self.client.address().prefix());
        spaceport_transport::machine(&below).0.map(str::to_owned)
    }

    /// Viewers that share one session. A relay bounds them by what it has in all.
    pub(crate) fn per_session(&self, transport: Carrier) -> usize {
        match transport {
            _ if self.machine().is_some() => AT_RELAY,
            Carrier::Whep => PEERS_PER_SESSION,
            _ => SOCKETS_PER_SESSION,
        }
    }

    /// As many sessions as the viewers need.
    pub(crate) async fn open_all(&self, viewers: &Viewers) -> Result<Vec<Session>> {
        let most = self.per_session(viewers.transport);
        let mut sessions = Vec::new();
        for _ in 0..(viewers.viewers as usize).div_ceil(most) {
            match self.open(viewers).await {
                Ok(session) => sessions.push(session),
                Err(error) => {
                    self.close(&sessions).await;
                    return Err(error);
                }
            }
        }
        Ok(sessions)
    }

    /// Closes them. One that cannot be closed ends by itself.
    pub(crate) async fn close(&self, sessions: &[Session]) {
        for session in sessions {
            let request = CloseMediaRequest { media_session_id: session.id.clone() };
            let closed: Result<CloseMediaResponse> =
                self.client.call("StreamService/CloseMedia", request).await;
            drop(closed);
        }
    }
}

/// The networks between the viewers and the server: one for each viewer, made when the server's address is
/// known.
pub(crate) struct Network {
    profiles: Option<(spaceport_link::Profile, spaceport_link::Profile)>,
    seed: u64,
    proxy: std::sync::Mutex<Option<(SocketAddr, Proxy)>>,
}

impl Network {
    pub(crate) fn new(viewers: &Viewers) -> Self {
        Self {
            profiles: viewers.profile.link(),
            seed: viewers.seed,
            proxy: std::sync::Mutex::default(),
        }
    }

    pub(crate) fn is_clear(&self) -> bool {
        self.profiles.is_none()
    }

    /// Where to send what is meant for `server`.
    pub(crate) fn towards(&self, server: SocketAddr) -> Result<SocketAddr> {
        let Some((up, down)) = self.profiles else { return Ok(server) };
        let mut proxy = self.proxy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((known, proxy)) = &*proxy
            && *known == server
        {
            return Ok(proxy.address());
        }
        let started = Proxy::start(server, up, down, self.seed)?;
        let address = started.address();
        *proxy = Some((server, started));
        Ok(address)
    }

    /// What happened to packets, up and down.
    pub(crate) fn counts(&self) -> Option<[Counts; 2]> {
        let proxy = self.proxy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        proxy.as_ref().map(|(_, proxy)| proxy.counts())
    }
}
