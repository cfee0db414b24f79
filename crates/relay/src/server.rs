//! Puts a relay together, and runs it.
//!
//! Order matters: the token and the list of machines come before any port is open, and the ports before anyone
//! is told of them.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::middleware::{self, Next};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderValue;
use serde::Serialize;
use spaceport_state::private;
use spaceport_transport::quic::Identity;
use spaceport_transport::tcp::{self, Connections};
use spaceport_transport::tls::Certificate;
use spaceport_transport::{Media, quic, whep};
use spaceport_types::{Error, Kind, Redacted, Result};
use spaceport_wire::relay::Quic;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{interval, sleep, timeout};

use crate::above::Above;
use crate::config::{Config, Limits};
use crate::directory::Directory;
use crate::media::Edge;
use crate::metrics::Counters;
use crate::nodes::{Nodes, Whereabouts};
use crate::tunnel::ALPN;
use crate::{api, join, nodes, wall_clock};

/// How often certificates are looked after, and refusals said.
const SWEEP: Duration = Duration::from_secs(5);

/// Links that wait to be taken. Whoever takes them does nothing else.
const UNTAKEN: usize = 64;

/// Viewers by WebRTC at one time, and such by QUIC. Each costs some tens of kilobytes.
const VIEWERS: usize = 10_000;

/// How long the goodbyes to machines get to leave.
const FAREWELL: Duration = Duration::from_millis(1500);

/// Where a relay can be reached, as bound.
#[derive(Clone, Debug, Serialize)]
pub struct Endpoints {
    /// Everything over TCP.
    pub http: SocketAddr,
    /// The UDP port for QUIC.
    pub quic: SocketAddr,
    /// The UDP port that WebRTC viewers share.
    pub webrtc: SocketAddr,
    /// The origin under which clients and machines reach it.
    pub url: String,
    /// Where the registration token is kept, when nobody chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

/// A relay with its ports bound, not yet serving.
pub struct Relay {
    shared: Shared,
    router: Router,
    listener: TcpListener,
    endpoints: Endpoints,
    tls: Option<Certificate>,
    driver: quic::Driver,
    whep: (whep::Endpoint, whep::Driver),
    links: mpsc::Receiver<quic::Link>,
    /// Where the QUIC certificate outlives a run.
    kept: PathBuf,
}

/// What every part of a relay has. Cloning it makes another handle.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) directory: Directory,
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<Counters>,
    /// Requests to machines, which reserve the memory that they may come to need.
    pub(crate) requests: Arc<Semaphore>,
    /// Machines that have not said yet who they are.
    pub(crate) joining: Arc<Semaphore>,
    pub(crate) quic: quic::Endpoint,
    /// Where viewers come in.
    pub(crate) edge: Edge,
    pub(crate) public_url: Option<String>,
    /// Names this relay among others; another one at each start.
    pub(crate) relay_id: String,
    /// The same in lists of hops, with where it is for whoever reads of a circle.
    pub(crate) hop: String,
    /// Finds machines, wherever they are.
    pub(crate) machines: Whereabouts,
    /// The other nodes of this relay, if there are any.
    pub(crate) nodes: Option<Arc<Nodes>>,
    /// The relay above, if there is one.
    pub(crate) above: Option<Above>,
    /// Others than this machine can connect.
    pub(crate) guarded: bool,
    connections: OnceLock<tcp::Gauge>,
}

impl Deref for Shared {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl Shared {
    pub(crate) fn connections(&self) -> tcp::Counts {
        self.connections.get().map(tcp::Gauge::read).unwrap_or_default()
    }
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Relay {
    /// Builds a relay and binds its ports.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration, and `io` for a port that is taken.
    pub async fn load(config: Config) -> Result<Self> {
        let Config { listen, quic_port, webrtc_port, advertise, ice_servers, .. } = config;
        let Config { public_url, tls, state_dir, token, uplink, nodes, limits, .. } = config;
        let public_url = public_url.map(|url| origin(&url)).transpose()?;
        let tls =
            tls.map(|(certificate, key)| Certificate::load(&certificate, &key)).transpose()?;
        if nodes.is_some() && token.is_none() {
            return Err(Error::new(
                Kind::InvalidArgument,
                "nodes of one relay have one registration token, and none was given",
            )
            .hint("Give each the same by `--token-file` or in `SPACEPORT_RELAY_TOKEN`"));
        }
        let (token, token_file) = registration_token(token, &state_dir)?;
        let directory =
            Directory::open(&state_dir, &token, limits.machines, limits.grace(), wall_clock())?;
        let listener = tcp::bind(listen).await?;
        let address = listener.local_addr()?;
        let kept = state_dir.join("quic-certificate.json");
        let (sender, links) = mpsc::channel(UNTAKEN);
        let relay_id = random_id()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let own = format!("{scheme}://{address}");
        let of_nodes = nodes.as_ref().map(|nodes| nodes.secret.clone());
        let nodes = match &nodes {
            Some(nodes) => {
                let (directory, limits) = (directory.clone(), limits.tunnel());
                Some(Arc::new(Nodes::new(nodes, relay_id.clone(), &own, directory, limits)?))
            }
            None => None,
        };
        let machines = Whereabouts { directory: directory.clone(), nodes: nodes.clone() };
        let edge = Edge::new(Arc::new(machines.clone()), Edge::limits(), ice_servers);
        let (endpoint, driver) =
            bind_quic(address, quic_port, &kept, limits, (sender, edge.media()))?;
        let mut peers = whep::Config::default();
        // As at a gateway: every address, and the TCP port where UDP is blocked and no TLS is before it.
        let every = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        peers.listen = SocketAddr::new(every, webrtc_port);
        peers.advertise = advertise;
        peers.tcp = tls.is_none().then_some(address);
        peers.max_viewers = VIEWERS;
        let whep = whep::bind(peers)?;
        let endpoints = Endpoints {
            http: address,
            quic: endpoint.local_addr(),
            webrtc: SocketAddr::new(address.ip(), whep.0.local_addr().port()),
            url: public_url.clone().unwrap_or(own),
            token_file,
        };
        private::replace_json(&state_dir.join("endpoints.json"), &endpoints)?;
        if let Some(nodes) = &nodes {
            let certificates = endpoint.identity().hashes();
            let quic = Quic { port: endpoints.quic.port(), certificates };
            nodes.enter(endpoints.url.clone(), quic);
        }
        let hop = format!("{relay_id}@{}", endpoints.url.split_once("://").map_or("", |it| it.1));
        let above = match uplink {
            Some(uplink) => {
                // Machines that move from node to node are the same ones there.
                let secret = match of_nodes {
                    Some(secret) => secret,
                    None => kept_secret(&state_dir.join("uplink-secret"), "cus_")?,
                };
                Some(Above::new(uplink, secret, hop.clone()))
            }
            None => None,
        };
        let shared = Shared(Arc::new(Parts {
            directory,
            limits,
            counters: Arc::default(),
            requests: Arc::new(Semaphore::new(limits.requests())),
            joining: Arc::new(Semaphore::new(limits.joining)),
            quic: endpoint,
            edge,
            public_url,
            relay_id,
            hop,
            machines,
            nodes,
            above,
            guarded: !address.ip().is_loopback(),
            connections: OnceLock::new(),
        }));
        let media = shared.edge.routes(whep.0.clone());
        let router = api::routes(shared.clone()).merge(media).layer(middleware::from_fn(harden));
        Ok(Self { shared, router, listener, endpoints, tls, driver, whep, links, kept })
    }

    /// Where it can be reached.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Its machines.
    pub fn directory(&self) -> &Directory {
        &self.shared.directory
    }

    /// Serves until `shutdown` completes, then says goodbye to everyone.
    ///
    /// # Errors
    ///
    /// None yet: what fails while it runs is said and gone on from.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self { shared, router, listener, tls, driver, whep, links, kept, .. } = self;
        let (endpoint, peers) = whep;
        let limits = shared.limits;
        let quic = tokio::spawn(driver.run());
        let peers = std::thread::Builder::new().name("whep".into()).spawn(|| peers.run())?;
        let machines = tokio::spawn(join::take(shared.clone(), links));
        let (stop, stopping) = watch::channel(false);
        let above = {
            let shared = shared.clone();
            async move {
                match &shared.above {
                    Some(above) => above.run(shared.clone(), stopping).await,
                    None => drop(stopping),
                }
            }
        };
        let above = tokio::spawn(above);
        let (part, parting) = watch::channel(false);
        let nodes = shared.nodes.clone().map(|nodes| {
            let counters = Arc::clone(&shared.counters);
            tokio::spawn(async move { nodes::sync::run(&nodes, &counters, parting).await })
        });
        let mut config = tcp::Config::default();
        config.connections = limits.connections;
        config.opening = limits.opening;
        config.patience = limits.patience();
        config.head = limits.head_kib << 10;
        config.stream_window = limits.window();
        // Several at once, which hold up each other when the client reads none of them.
        config.connection_window = limits.window().saturating_mul(4);
        config.media = Some(endpoint.clone());
        config.tls = tls.clone();
        let connections = Connections::new(router, config);
        // This is the only time.
        drop(shared.connections.set(connections.gauge()));
        let mut sweeps = interval(SWEEP);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                _ = sweeps.tick() => {
                    connections.report();
                    shared.edge.sweep();
                    if let Some(nodes) = &shared.nodes {
                        nodes.sweep();
                    }
                    keep(shared.quic.identity(), &kept);
                    renew(tls.as_ref());
                }
                () = connections.accept(&listener) => {}
            }
        }
        tracing::info!("shutting down");
        drop(listener);
        shared.edge.close_all();
        endpoint.shut_down();
        // Requests first, as their machines have to be there for that.
        connections.drain(limits.drain()).await;
        stop.send_replace(true);
        drop(timeout(FAREWELL, above).await);
        part.send_replace(true);
        if let Some(nodes) = nodes {
            drop(timeout(FAREWELL, nodes).await);
        }
        shared.directory.stop();
        let gone = async {
            while shared.directory.count().1 > 0 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        drop(timeout(FAREWELL, gone).await);
        machines.abort();
        shared.quic.shut_down();
        if let Err(error) = quic.await {
            tracing::error!(%error, "the QUIC driver failed");
        }
        match peers.join() {
            Ok(ended) => ended,
            Err(_) => Err(Error::new(Kind::Internal, "the WebRTC driver panicked")),
        }
    }
}

fn bind_quic(
    address: SocketAddr,
    port: u16,
    kept: &Path,
    limits: Limits,
    (taken, media): (mpsc::Sender<quic::Link>, Media),
) -> Result<(quic::Endpoint, quic::Driver)> {
    /// Streams that a machine may open: the one that it registers with, and no use for others.
    const OF_MACHINE: u32 = 4;
    let mut config = quic::Config::default();
    config.listen = SocketAddr::new(address.ip(), port);
    let windows = limits.tunnel().windows(OF_MACHINE);
    config.links = Some(quic::Links { alpn: ALPN, taken, windows });
    config.max_connections = VIEWERS + limits.machines;
    quic::bind(config, identity(kept)?, media).map_err(|error| {
        error.hint("Stop what listens there, or choose another with `--quic-port`")
    })
}

/// The certificate of the last run, or a new one.
fn identity(kept: &Path) -> Result<Identity> {
    let now = wall_clock();
    let kept_text: Option<serde_json::Value> = if kept.exists() {
        private::check_mode(kept)?;
        private::read_json(kept)?
    } else {
        None
    };
    let identity = match kept_text.map(|text| Identity::load(&text.to_string(), now)) {
        Some(Ok(identity)) => identity,
        Some(Err(error)) => {
            // Nobody depends on the last one: machines are told the hash first.
            tracing::warn!(%error, "the QUIC certificate is made anew");
            Identity::generate(now)?
        }
        None => Identity::generate(now)?,
    };
    private::replace(kept, identity.to_text().expose().as_bytes())?;
    Ok(identity)
}

/// Replaces the QUIC certificate in time.
fn keep(identity: &Identity, kept: &Path) {
    let result = identity.keep(wall_clock()).and_then(|changed| {
        if changed {
            tracing::info!("the QUIC certificate was replaced, or the next one made");
            private::replace(kept, identity.to_text().expose().as_bytes())?;
        }
        Ok(())
    });
    if let Err(error) = result {
        tracing::warn!(%error, "the QUIC certificate could not be kept");
    }
}

/// Takes a certificate that was renewed.
fn renew(tls: Option<&Certificate>) {
    match tls.map(Certificate::refresh) {
        Some(Ok(true)) => tracing::info!("the TLS certificate was renewed"),
        Some(Err(error)) => tracing::warn!(%error, "the TLS certificate could not be renewed"),
        Some(Ok(false)) | None => {}
    }
}

/// What was given, or what is kept; made when there is none. A token of 256 random bits needs nobody to choose
/// it, wherever the relay listens.
fn registration_token(
    given: Option<Redacted<String>>,
    state_dir: &Path,
) -> Result<(Redacted<String>, Option<PathBuf>)> {
    let check = |token: Redacted<String>| {
        let text = token.expose();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::new(
                Kind::InvalidArgument,
                "the registration token is empty or has characters that do not fit a header",
            )
            .hint("Use letters, digits and punctuation, without spaces"));
        }
        Ok(token)
    };
    if let Some(token) = given {
        return Ok((check(token)?, None));
    }
    let path = state_dir.join("registration-token");
    let token =
        check(kept_secret(&path, "crt_")?).map_err(|error| error.with("path", path.display()))?;
    Ok((token, Some(path)))
}

/// The secret in a file, made when there is none.
fn kept_secret(path: &Path, begins: &str) -> Result<Redacted<String>> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(no_random)?;
    private::create(path, format!("{begins}{}\n", URL_SAFE_NO_PAD.encode(bits)).as_bytes())?;
    private::check_mode(path)?;
    let text = std::fs::read_to_string(path).map_err(|error| private::failed(path, error))?;
    Ok(Redacted::new(text.trim().to_owned()))
}

fn random_id() -> Result<String> {
    let mut bits = [0; 9];
    getrandom::fill(&mut bits).map_err(no_random)?;
    Ok(URL_SAFE_NO_PAD.encode(bits))
}

fn no_random(error: getrandom::Error) -> Error {
    Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
}

/// An origin without a slash at its end.
fn origin(url: &str) -> Result<String> {
    let wrong = || {
        Error::new(Kind::InvalidArgument, format!("`{url}` is not the origin of a relay"))
            .hint("Give scheme, host and port alone, such as `https://relay.example`")
    };
    let uri: http::Uri = url.parse().map_err(|_| wrong())?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    let bare = uri.path() == "/" && uri.query().is_none();
    match uri.authority() {
        Some(authority) if known && bare && !authority.as_str().contains('@') => {
            Ok(format!("{}://{authority}", uri.scheme_str().unwrap_or_default()))
        }
        _ => Err(wrong()),
    }
}

/// Headers that every answer carries.
async fn harden(request: axum::extract::Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_an_origin() {
        assert_eq!(origin("https://relay.example/").unwrap(), "https://relay.example");
        assert_eq!(origin("http://127.0.0.1:3220").unwrap(), "http://127.0.0.1:3220");
        for url in ["relay.example", "ftp://x", "https://a/b", "https://me@a", "https://a?b", ""] {
            assert!(origin(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_registration_token_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let (first, file) = registration_token(None, folder.path()).unwrap();
        assert_eq!(registration_token(None, folder.path()).unwrap().0, first);
        assert_eq!(file.unwrap(), folder.path().join("registration-token"));
        let given = Some(Redacted::new("two words".to_owned()));
        assert!(registration_token(given, folder.path()).is_err());
    }
}
