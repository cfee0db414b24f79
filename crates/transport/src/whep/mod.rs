//! WebRTC egress: over WHEP, HTTP and SDP in, RTP out; over WHIP (`publisher`), to where others are served.
//!
//! ```text
//! POST /whep ─► http ─► offer ─► peer::negotiate ─► 201 + answer
//!                         │ Command::Add
//!                         ▼
//! session::Subscriber ─► driver ─► peer (one per viewer) ─► packetize ─► socket ─► viewer
//!                                    ▲ NACK, PLI, ICE                      │
//!                                    └─────────────────────────────────────┘
//! ```
//!
//! One UDP port and one thread serve all viewers. A frame is packetized once, whoever watches it;
//! each viewer has its own RTP clock and sequence, encryption and retransmission. The engine is
//! str0m, which does no I/O of its own; nothing outside this module knows it.
//!
//! HTTP follows draft-ietf-wish-whep and RFC 9725: strict in what is sent, lenient in what
//! deployed players send.

mod clock;
pub mod demux;
mod directory;
mod driver;
#[cfg(test)]
mod e2e;
mod exchange;
pub mod http;
mod ice_servers;
pub mod offer;
mod packetize;
mod path;
mod peer;
pub mod player;
pub mod publisher;
#[cfg(test)]
mod seeds;
mod socket;
mod tcp;

use std::any::Any;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use spaceport_session::Subscriber;
use spaceport_types::{Cause, Codec, Error, Kind, Result};
use tokio::sync::{oneshot, watch};

pub use driver::Driver;
pub use ice_servers::IceServers;

use directory::again;
use driver::{Command, Shared, State};
use offer::{Choice, Fragment, Offer};
use peer::{Identity, Local, Negotiated, Offering, negotiate};
use socket::{Socket, interface_addresses};

/// How viewers reach an endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The address of the UDP socket all viewers share. Port 0 takes any; an unspecified address
    /// offers those of all interfaces.
    pub listen: SocketAddr,
    /// Addresses that viewers are told besides, or instead where `listen` is unspecified: those of
    /// a NAT that forwards the port.
    pub advertise: Vec<IpAddr>,
    /// The address of a TCP listener that viewers may try where UDP is blocked. Whoever listens
    /// there hands over what is meant for this endpoint; see [`Endpoint::adopt`].
    pub tcp: Option<SocketAddr>,
    /// Estimate and pace towards this machine's own addresses, too, where no network lies between.
    /// For tests that put one there.
    pub pace_here: bool,
    /// Viewers at one time.
    pub max_viewers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            advertise: Vec::new(),
            tcp: None,
            pace_here: false,
            max_viewers: 512,
        }
    }
}

/// A handle to a running endpoint. Cloning it makes another; when the last is dropped, the driver
/// ends.
#[derive(Clone)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    identity: Identity,
    local: SocketAddr,
    tcp: Option<SocketAddr>,
    advertise: Vec<IpAddr>,
    pace_here: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.shut_down();
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("local", &self.inner.local).finish_non_exhaustive()
    }
}

/// Binds the socket and makes the certificate. Nothing is served before [`Driver::run`].
///
/// # Errors
///
/// `io` when the address cannot be bound.
pub fn bind(config: Config) -> Result<(Endpoint, Driver)> {
    let Config { listen, advertise, tcp, pace_here, max_viewers } = config;
    let socket = Socket::bind(listen, advertise.clone()).map_err(|error| {
        Error::new(Kind::Io, "the WebRTC port cannot be bound")
            .with("address", listen)
            .hint("Choose another port, or 0 for any")
            .source(error)
    })?;
    let shared = Arc::new(Shared::new(max_viewers)?);
    let identity = Identity::generate()?;
    let local = socket.local();
    let driver = Driver::new(Arc::clone(&shared), socket);
    Ok((
        Endpoint { inner: Arc::new(Inner { shared, identity, local, tcp, advertise, pace_here }) },
        driver,
    ))
}

/// What a `POST` gets.
#[derive(Debug)]
struct Accepted {
    answer: String,
    resource: String,
    etag: String,
}

/// What a `PATCH` gets.
#[derive(Debug)]
enum Patched {
    Candidates,
    /// Nothing: it restarts, and does not say which ICE session it means.
    Untagged,
    Restarted {
        etag: String,
        fragment: String,
    },
}

impl Endpoint {
    /// The address of the UDP socket, with the port really bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// Takes a TCP connection whose first byte is one of [`demux::is_framed`], still unread. `guard`
    /// is let go of with the connection.
    ///
    /// # Errors
    ///
    /// `limit_exceeded` when too much is going on, `stream` when the endpoint is shutting down.
    pub fn adopt(&self, stream: TcpStream, guard: impl Any + Send) -> Result<()> {
        let incoming = tcp::Incoming { stream, guard: Box::new(guard) };
        self.inner.shared.command(Command::Adopt { incoming })
    }

    /// How many viewers it serves, those included that are still connecting.
    pub fn viewers(&self) -> usize {
        self.inner.shared.directory().len()
    }

    /// Says goodbye to every viewer and lets [`Driver::run`] return.
    pub fn shut_down(&self) {
        self.inner.shared.shut_down();
    }

    /// Answers an offer. `None` when the engine will not send that codec to this viewer.
    fn accept(
        &self,
        offer: &Offer,
        choice: &Choice,
        subscriber: Subscriber,
        remote: Option<IpAddr>,
    ) -> Result<Option<Accepted>> {
        let candidates = self.candidates(remote);
        let now = driver::now();
        let inner = &self.inner;
        // The engine reads what is left of a stranger's offer here.
        let negotiated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            negotiate(&inner.identity, offer, choice, &candidates, now)
        }))
        .unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the WebRTC engine failed")))?;
        let Some((answer, negotiated)) = negotiated else { return Ok(None) };
        let etag = etag()?;
        let ufrag = offer.ufrag().to_owned();
        let (resource, _) = self.add(negotiated, subscriber, (etag.clone(), ufrag), None)?;
        Ok(Some(Accepted { answer, resource, etag }))
    }

    /// Hands a peer to the driver, as a resource with this entity tag and user fragment. Returns its name and
    /// its key.
    fn add(
        &self,
        mut negotiated: Negotiated,
        subscriber: Subscriber,
        (etag, ufrag): (String, String),
        told: Option<watch::Sender<State>>,
    ) -> Result<(String, driver::Key)> {
        let inner = &self.inner;
        negotiated.pace_here = inner.pace_here;
        let (resource, seed) = (random_name()?, u64::from_be_bytes(random()?));
        let key = inner.shared.directory().insert(resource.clone(), etag, ufrag)?;
        let negotiated = Box::new(negotiated);
        let add = Command::Add { key, negotiated, subscriber, seed, told };
        if let Err(error) = inner.shared.command(add) {
            // It was never there.
            inner.shared.directory().remove(&resource)?;
            return Err(error);
        }
        Ok((resource, key))
    }

    /// Offers to send in one of `codecs` to a server at `remote`.
    fn offer(&self, codecs: &[Codec], remote: IpAddr) -> Result<Offering> {
        peer::offer(&self.inner.identity, codecs, &self.ways(remote), driver::now())
    }

    /// Where a server at `remote` may reach us: nobody has told it of our TCP port.
    fn ways(&self, remote: IpAddr) -> Vec<Local> {
        self.candidates(Some(remote)).into_iter().filter(|local| local.is_udp()).collect()
    }

    /// Sends what was agreed on with a server, and tells `told` how that goes.
    fn send(
        &self,
        negotiated: Negotiated,
        subscriber: Subscriber,
        told: watch::Sender<State>,
    ) -> Result<Sending> {
        let (resource, key) = self.add(negotiated, subscriber, Default::default(), Some(told))?;
        Ok(Sending { endpoint: self.clone(), resource, key })
    }

    /// Adds candidates to a resource, or restarts its ICE session.
    ///
    /// `if_match` is the header's value. Players that leave it out may add candidates, which does no
    /// harm if they are of a session that is over; a restart has to say which one it ends.
    async fn patch(
        &self,
        name: &str,
        if_match: Option<&str>,
        mut fragment: Fragment,
    ) -> Result<Patched> {
        let shared = &self.inner.shared;
        let key = {
            let mut directory = shared.directory();
            let resource = directory.find(name)?;
            let matches = if_match.is_none_or(|tags| {
                tags.split(',').map(str::trim).any(|tag| tag == "*" || tag == resource.etag)
            });
            if !matches {
                return Err(Error::new(
                    Kind::PreconditionFailed,
                    "the ICE session has another entity tag now",
                )
                .with("etag", &resource.etag)
                .hint("Use the ETag of the last answer"));
            }
            let restart =
                fragment.credentials.as_ref().is_some_and(|new| new.ufrag != resource.ufrag);
            if !restart {
                resource.admit(&mut fragment.candidates);
                let (key, candidates) = (resource.key, fragment.candidates);
                drop(directory);
                if !candidates.is_empty() {
                    shared.command(Command::Trickle { key, candidates })?;
                }
                return Ok(Patched::Candidates);
            }
            if if_match.is_none() {
                return Ok(Patched::Untagged);
            }
            resource.key
        };
        let ufrag = fragment.credentials.as_ref().map(|new| new.ufrag.clone()).unwrap_or_default();
        let (reply, answer) = oneshot::channel();
        shared.command(Command::Restart { key, fragment, reply })?;
        let fragment = answer.await.map_err(ended_meanwhile)??;
        let etag = etag()?;
        shared.directory().find(name)?.restart(etag.clone(), ufrag);
        Ok(Patched::Restarted { etag, fragment })
    }

    /// Whether a resource exists, and why its stream stands still, if it does; otherwise why it
    /// exists no more.
    fn check(&self, name: &str) -> Result<Option<Error>> {
        let mut directory = self.inner.shared.directory();
        Ok(directory.find(name)?.suspended.as_deref().map(again))
    }

    /// Ends a resource.
    fn remove(&self, name: &str) -> Result<()> {
        let key = self.inner.shared.directory().remove(name)?;
        key.map_or(Ok(()), |key| self.inner.shared.command(Command::Remove { key }))
    }

    /// Where a viewer that comes from `remote` may reach this endpoint.
    fn candidates(&self, remote: Option<IpAddr>) -> Vec<Local> {
        let inner = &self.inner;
        // Only a viewer on this machine can use a loopback address.
        let near = remote.is_none_or(|remote| remote.to_canonical().is_loopback());
        let udp = self.addresses(inner.local, near).into_iter().map(Local::udp);
        let tcp = inner.tcp.into_iter().flat_map(|tcp| self.addresses(tcp, near));
        // A listener on loopback alone is of no use to others.
        let tcp = tcp.filter(|address| near || !address.ip().is_loopback()).map(Local::tcp);
        udp.chain(tcp).collect()
    }

    /// The addresses under which viewers know a socket that is bound to `local`.
    fn addresses(&self, local: SocketAddr, near: bool) -> Vec<SocketAddr> {
        let mut addresses = self.inner.advertise.clone();
        if !local.ip().is_unspecified() {
            addresses.push(local.ip());
        } else {
            let mut own = interface_addresses();
            own.retain(|ip| {
                (near || !ip.is_loopback())
                    && (addresses.is_empty() || ip.is_loopback())
                    && (local.is_ipv6() || ip.is_ipv4())
            });
            addresses.extend(own);
        }
        let mut seen = std::collections::HashSet::new();
        addresses.retain(|&address| seen.insert(address));
        addresses.into_iter().map(|ip| SocketAddr::new(ip, local.port())).collect()
    }
}

/// A peer that is sent to at our own wish. It ends with this.
struct Sending {
    endpoint: Endpoint,
    resource: String,
    key: driver::Key,
}

impl Sending {
    /// Begins an ICE restart, from the addresses that we have now; returns the fragment that asks for it.
    async fn offer_restart(&self, remote: IpAddr) -> Result<String> {
        let candidates = self.endpoint.ways(remote);
        let (reply, answer) = oneshot::channel();
        self.command(Command::OfferRestart { key: self.key, candidates, reply })?;
        answer.await.map_err(ended_meanwhile)?
    }

    /// Takes the fragment that answers it.
    async fn accept_restart(&self, fragment: Fragment) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.command(Command::AcceptRestart { key: self.key, fragment, reply })?;
        answer.await.map_err(ended_meanwhile)?
    }

    fn command(&self, command: Command) -> Result<()> {
        self.endpoint.inner.shared.command(command)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // One that is not there any more has ended by itself.
        drop(self.endpoint.remove(&self.resource));
    }
}

fn ended_meanwhile(_: oneshot::error::RecvError) -> Error {
    Error::because(Cause::SessionClosed, "the stream ended meanwhile")
}

/// 128 random bits, the whole right to a resource.
fn random_name() -> Result<String> {
    Ok(hex(&random::<16>()?))
}

/// A new entity tag; it tells two ICE sessions of one resource apart, no more.
fn etag() -> Result<String> {
    Ok(format!("\"{}\"", hex(&random::<8>()?)))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(Kind::Io, "no random bytes").source(error.to_string()))?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string can always grow");
        text
    })
}
