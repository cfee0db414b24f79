//! Puts a gateway together, and runs it.
//!
//! Order matters: the demo desktop comes before anything that looks for a display, the token
//! before any port is open, and the ports before anyone is told of them.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::http::{HeaderName, Method};
use axum::Router;
use axum::middleware;
use serde::Serialize;
use spaceport_media::clock;
use spaceport_media::demo::Demo;
use spaceport_relay::media::Guest;
use spaceport_relay::uplink;
use spaceport_session::Policy;
use spaceport_teleport::consent::Desk;
use spaceport_teleport::inbox::Inbox;
use spaceport_transport::tcp::{self, Connections};
use spaceport_transport::{Media, quic, websocket, whep};
use spaceport_types::{Error, Kind, MediaKey, Redacted, Result};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::interval;
use tower_http::cors::{Any, CorsLayer};

use crate::auth::{self, Auth};
use crate::config::{Config, read_private, write_private};
use crate::gate::Gate;
use crate::load::{self, Load};
use crate::machine::Facts;
use crate::producer::{self, Producer};
use crate::service::{Service, blocking};
use crate::storage::Storage;
use crate::teleport::{self, Teleport};
use crate::{consent, files, grpc, http};

/// How long connections get to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(3);

/// How often expired sessions and tickets are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How often imports that have expired are looked for; the public contract's promise.
const IMPORT_SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Where a gateway can be reached, as bound.
#[derive(Clone, Debug, Serialize)]
pub struct Endpoints {
    /// HTTP, gRPC, the media socket, WHEP and the viewer page.
    pub http: SocketAddr,
    /// The UDP port for QUIC and WebTransport.
    pub quic: SocketAddr,
    /// The UDP port that WebRTC viewers share.
    pub webrtc: SocketAddr,
    /// The viewer page without a ticket.
    pub viewer: String,
    /// Where others reach this machine, by a relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
}

/// A gateway with its ports bound, not yet serving.
pub struct Gateway {
    service: Service,
    router: Router,
    listener: TcpListener,
    endpoints: Endpoints,
    token: Redacted<String>,
    quic: Quic,
    whep: (whep::Endpoint, whep::Driver),
    /// Whether the viewer page's pictures are sealed.
    sealed: bool,
    uplink: Option<uplink::Driver>,
    load: Arc<Load>,
    /// Ends with the gateway.
    demo: Option<Demo>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Builds a gateway and binds its ports.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration, and `io` for a port that is taken.
    pub async fn load(config: Config) -> Result<Self> {
        let preference = producer::encoder(&config)?;
        let token = config.resolve_token()?;
        let auth = Arc::new(Auth::new(&token));
        let Producer { demo, windows, targets, sessions, load } =
            Producer::start(&config, &preference).await?;

        let uplink = config.relay.clone().map(uplink::prepare).transpose()?;
        let listener = tcp::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let mut peers = whep::Config::default();
        // Every address, even beside HTTP on loopback: Firefox sends from an interface that is not
        // loopback. Without credentials from an authorized request nobody gets an answer there.
        let every = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        peers.listen = SocketAddr::new(every, config.webrtc_port);
        peers.advertise = config.advertise.clone();
        // Where UDP is blocked, the port that already works carries media, too.
        peers.tcp = Some(address);
        let (endpoint, driver) = whep::bind(peers)?;
        clock::origin(); // media time counts from here, not from the first who asks
        let media = Media::of(sessions.clone(), clock::now);
        let quic = Quic::bind(&config, address, media.clone())?;
        let endpoints = Endpoints {
            http: address,
            quic: quic.endpoint.local_addr(),
            webrtc: SocketAddr::new(address.ip(), endpoint.local_addr().port()),
            viewer: format!("http://{address}/viewer/"),
            relay: uplink.as_ref().map(|(uplink, _)| uplink.url().to_owned()),
        };
        let storage = Storage::open(&config)?;
        let udp = quic.endpoint.clone();
        let teleport = open_teleport(&config).await?;
        let service =
            Service::new(sessions, auth, preference, targets, windows, udp, storage, teleport);
        let guarded = !address.ip().is_loopback();
        let gate = Arc::new(Gate { service: service.clone(), ice_servers: config.ice_servers });
        let guest = Guest::new(Arc::<Gate>::clone(&gate));
        let router = assemble(&service, media, (endpoint.clone(), gate), guarded);
        write_private(
            &config.state_dir.join("endpoints.json"),
            &serde_json::to_string_pretty(&endpoints).map_err(|error| {
                Error::new(Kind::Internal, "the endpoints are not JSON").source(error)
            })?,
        )?;
        let whep = (endpoint, driver);
        let sealed = config.sealed;
        let uplink = uplink.map(|(uplink, driver)| {
            service.reached_by(uplink);
            driver.with_media(guest)
        });
        Ok(Self {
            service,
            router,
            listener,
            endpoints,
            token,
            quic,
            whep,
            sealed,
            uplink,
            load,
            demo,
        })
    }

    /// Serves a program's tools beside its own routes, to whoever has the Space token.
    #[must_use]
    pub fn with_tools(mut self, tools: Router) -> Self {
        let tools = guarded(tools, &self.token)
            .layer(middleware::from_fn(http::explain))
            .layer(middleware::from_fn(http::harden));
        self.router = self.router.merge(tools);
        self
    }

    /// Where this machine reaches it.
    pub fn url(&self) -> String {
        format!("http://{}", reachable(self.endpoints.http))
    }

    /// Where it can be reached.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// What clients can ask of it.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// The token that opens it.
    pub fn token(&self) -> &Redacted<String> {
        &self.token
    }

    /// The viewer page's address with a fresh ticket in its fragment, where nothing logs it, and with the
    /// key to what it shows where that is sealed.
    ///
    /// # Errors
    ///
    /// As [`Service::viewer_ticket`].
    pub fn viewer_url(&self) -> Result<Redacted<String>> {
        self.page(&self.url(), self.sealed)
    }

    /// The same by the relay, if there is one. What that carries is sealed: it has no part in it.
    ///
    /// # Errors
    ///
    /// As [`Service::viewer_ticket`].
    pub fn relay_viewer_url(&self) -> Result<Option<Redacted<String>>> {
        self.endpoints.relay.as_deref().map(|url| self.page(url, true)).transpose()
    }

    fn page(&self, base: &str, sealed: bool) -> Result<Redacted<String>> {
        let key = if sealed { Some(media_key()?) } else { None };
        let ttl = Some(auth::VIEWER_TICKET_TTL);
        let ticket = self.service.viewer_ticket(ttl, Policy::ViewOnly, key)?;
        Ok(Redacted::new(format!("{base}{}", ticket.viewer_path.expose())))
    }

    /// Serves until `shutdown` completes, then says goodbye to everyone.
    ///
    /// # Errors
    ///
    /// `io` when the listener fails for good.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self {
            service,
            router,
            listener,
            quic,
            whep: (endpoint, driver),
            uplink,
            load,
            demo,
            ..
        } = self;
        let Quic { endpoint: quic, driver: viewers, kept } = quic;
        let viewers = tokio::spawn(viewers.run());
        let ringer = tokio::spawn(service.sessions().ringing());
        let peers = std::thread::Builder::new().name("whep".into()).spawn(|| driver.run())?;
        let (leave, leaving) = oneshot::channel::<()>();
        let uplink = uplink.map(|driver| {
            let left = async { drop(leaving.await) };
            tokio::spawn(driver.run(router.clone(), left))
        });
        let mut limits = tcp::Config::default();
        limits.media = Some(endpoint.clone());
        let connections = Connections::new(router, limits);
        let mut sweeps = interval(SWEEP_INTERVAL);
        let mut looks = interval(load::INTERVAL);
        let mut import_sweeps = interval(IMPORT_SWEEP_INTERVAL);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                _ = sweeps.tick() => {
                    service.sweep();
                    connections.report();
                    keep(quic.identity(), &kept);
                }
                _ = looks.tick() => load.look(tokio::time::Instant::now().into_std()),
                _ = import_sweeps.tick() => service.sweep_imports(),
                () = connections.accept(&listener) => {}
            }
        }
        tracing::info!("shutting down");
        service.sessions().close_all();
        endpoint.shut_down();
        quic.shut_down();
        drop(leave);
        if let Some(uplink) = uplink
            && let Err(error) = uplink.await
        {
            tracing::error!(%error, "the uplink failed");
        }
        connections.drain(DRAIN).await;
        if let Err(error) = viewers.await {
            tracing::error!(%error, "the QUIC driver failed");
        }
        service.end_windows();
        drop(demo);
        ringer.abort();
        match peers.join() {
            Ok(ended) => ended,
            Err(_) => Err(Error::new(Kind::Internal, "the WebRTC driver panicked")),
        }
    }
}

fn media_key() -> Result<MediaKey> {
    let mut bytes = [0; MediaKey::SIZE];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(Kind::Io, "no random bytes").source(error.to_string()))?;
    Ok(MediaKey::new(bytes))
}

/// Routes that only the token opens.
pub fn guarded(routes: Router, token: &Redacted<String>) -> Router {
    let auth = Arc::new(Auth::new(token));
    routes.layer(middleware::from_fn_with_state(auth, auth::require_token))
}

/// Everything that is served on the one TCP port.
fn assemble(
    service: &Service,
    media: Media,
    (endpoint, gate): (whep::Endpoint, Arc<Gate>),
    guarded: bool,
) -> Router {
    let peers = whep::http::State::new(endpoint, gate);
    Router::new()
        .merge(http::routes(service.clone()))
        .merge(http::metrics(service.clone(), guarded))
        .merge(consent::routes(service.clone()))
        .merge(websocket::router(media))
        .merge(whep::http::router(peers))
        .merge(files::routes(service.clone()))
        .merge(grpc::routes(service.clone()).layer(cross_origin()))
        .fallback(http::not_found)
        .layer(middleware::from_fn(http::explain))
        .layer(middleware::from_fn(http::harden))
}

/// Lets pages of any origin call gRPC-Web. What protects a Space is its token, which no browser adds
/// by itself.
fn cross_origin() -> CorsLayer {
    let names = |names: &[&'static str]| -> Vec<HeaderName> {
        names.iter().copied().map(HeaderName::from_static).collect()
    };
    CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::POST])
        .allow_headers(names(&[
            "authorization",
            "content-type",
            "grpc-timeout",
            "x-cua-env-authorization",
            "x-cua-principal-bin",
            "x-grpc-web",
            "x-user-agent",
        ]))
        .expose_headers(names(&["grpc-message", "grpc-status", "grpc-status-details-bin"]))
}

/// The QUIC port of one gateway.
struct Quic {
    endpoint: quic::Endpoint,
    driver: quic::Driver,
    /// Where its certificate outlives a run.
    kept: PathBuf,
}

impl Quic {
    /// Binds it on the address of HTTP and on no other: viewers dial it as they dial that.
    fn bind(config: &Config, http: SocketAddr, media: Media) -> Result<Self> {
        let kept = config.state_dir.join("quic-certificate.json");
        let identity = identity(&kept)?;
        let mut quic = quic::Config::default();
        quic.listen = SocketAddr::new(http.ip(), config.quic_port);
        let (endpoint, driver) = quic::bind(quic, identity, media).map_err(|error| {
            error.hint("Stop what listens there, or choose another with `--quic-port`")
        })?;
        Ok(Self { endpoint, driver, kept })
    }
}

/// The certificate of the last run, or a new one.
fn identity(kept: &Path) -> Result<quic::Identity> {
    let now = wall_clock();
    let loaded = read_private(kept).and_then(|text| quic::Identity::load(text.expose(), now));
    let identity = match loaded {
        Ok(identity) => identity,
        Err(error) => {
            // Nobody depends on the last one: who connects is told the hash first.
            if error.kind() != Kind::NotFound {
                tracing::warn!(%error, "the QUIC certificate is made anew");
            }
            quic::Identity::generate(now)?
        }
    };
    write_private(kept, identity.to_text().expose())?;
    Ok(identity)
}

/// Replaces the certificate in time.
fn keep(identity: &quic::Identity, kept: &Path) {
    let result = identity.keep(wall_clock()).and_then(|changed| {
        if changed {
            tracing::info!("the QUIC certificate was replaced, or the next one made");
            write_private(kept, identity.to_text().expose())?;
        }
        Ok(())
    });
    if let Err(error) = result {
        tracing::warn!(%error, "the QUIC certificate could not be kept");
    }
}

#[expect(clippy::disallowed_methods, reason = "certificates are valid by the wall clock")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// What takes in sessions, and where consent is asked for.
async fn open_teleport(config: &Config) -> Result<Teleport> {
    let folder = config.teleport_dir();
    let desk = Desk::at(&folder);
    let Some(machine) = config.machine.clone() else {
        return Ok(Teleport { inbox: None, desk });
    };
    let opened = blocking(move || {
        let name = Facts::read().hostname;
        Inbox::open(
            &folder,
            &name,
            machine,
            spaceport_teleport::providers(),
            teleport::wall_clock(),
        )
    });
    Ok(Teleport { inbox: Some(Arc::new(opened.await?)), desk })
}

/// An address to type into a browser on this machine: `0.0.0.0` is not one.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        let loopback = match address {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        address.set_ip(loopback);
    }
    address
}
