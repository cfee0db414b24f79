//! Puts a gateway together, and runs it.
//!
//! Order matters: the demo desktop comes before anything that looks for a display, the token
//! before any port is open, and the ports before anyone is told of them.

use std::future::Future;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ::http::{HeaderName, Method, Request};
use axum::Router;
use axum::extract::ConnectInfo;
use axum::middleware;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use spaceport_media::demo::Demo;
use spaceport_media::windows::Windows;
use spaceport_media::{capture, clock, encode, pipeline};
use spaceport_session::{Limits, Policy, Sessions};
use spaceport_teleport::consent::Desk;
use spaceport_teleport::inbox::Inbox;
use spaceport_transport::{Media, quic, websocket, whep};
use spaceport_types::{Error, Kind, Redacted, Result, Size};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep, timeout};
use tower::ServiceExt as _;
use tower_http::cors::{Any, CorsLayer};

use crate::auth::{self, Auth};
use crate::config::{Config, read_private, write_private};
use crate::gate::Gate;
use crate::launcher::Launcher;
use crate::machine::Facts;
use crate::opening::Opening;
use crate::service::{Service, blocking};
use crate::storage::Storage;
use crate::targets::Targets;
use crate::teleport::{self, Teleport};
use crate::{consent, grpc, http};

/// TCP connections at one time. Each costs tens of kilobytes; a flood ends here, and those who
/// are connected stay so.
const MAX_CONNECTIONS: usize = 1024;

/// How long a client may take to say what it speaks, and then over the head of each request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest head of an HTTP/1.1 request. Anyone can send one, and it is held in memory.
const MAX_HEAD: usize = 64 << 10;

/// How long connections get to finish at shutdown.
const DRAIN: Duration = Duration::from_secs(3);

/// How often expired sessions and tickets are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How often imports that have expired are looked for; the public contract's promise.
const IMPORT_SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The size of the demo desktop.
const DEMO_SIZE: Size = Size::new(1280, 720);

/// Flow-control windows that a fast link fills, as the deployed clients use them.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// The largest HTTP/2 frame.
const MAX_FRAME: u32 = 1 << 20;

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
        let token = config.resolve_token()?;
        let auth = Arc::new(Auth::new(&token));
        let demo = if config.demo { Some(start_demo().await?) } else { None };

        let mut capture = capture::Config::default();
        capture.display = config.display.clone();
        if let Some(demo) = &demo {
            capture.display = Some(demo.display().to_owned());
            capture.framebuffer = Some(demo.framebuffer().to_owned());
        }
        let windows = Windows::new(capture.display.as_deref());
        capture.windows = Some(windows.clone());
        let mut preference = encode::Preference::default();
        preference.encoder = config.encoder.clone();
        let targets = Targets { capture: capture.clone(), test_pattern: config.test_pattern };
        let mut pipelines = pipeline::Config::default();
        pipelines.capture = capture;
        pipelines.encoder = preference;
        let limits = Limits { sessions: config.max_sessions, ..Limits::default() };
        let sessions = Sessions::new(limits, Arc::new(Launcher { config: pipelines }));

        let listener = bind(config.listen).await?;
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
        let media = Media { sessions: sessions.clone(), clock: clock::now };
        let quic = Quic::bind(&config, address, media.clone())?;
        let endpoints = Endpoints {
            http: address,
            quic: quic.endpoint.local_addr(),
            webrtc: SocketAddr::new(address.ip(), endpoint.local_addr().port()),
            viewer: format!("http://{address}/viewer/"),
        };
        let storage = Storage::open(&config)?;
        let udp = quic.endpoint.clone();
        let teleport = open_teleport(&config).await?;
        let service = Service::new(sessions, auth, targets, windows, udp, storage, teleport);
        let guarded = !address.ip().is_loopback();
        let gate = Gate { service: service.clone(), ice_servers: config.ice_servers };
        let router = assemble(&service, media, (endpoint.clone(), gate), guarded);
        write_private(
            &config.state_dir.join("endpoints.json"),
            &serde_json::to_string_pretty(&endpoints).map_err(|error| {
                Error::new(Kind::Internal, "the endpoints are not JSON").source(error)
            })?,
        )?;
        let whep = (endpoint, driver);
        Ok(Self { service, router, listener, endpoints, token, quic, whep, demo })
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

    /// The viewer page's address with a fresh ticket in its fragment, where nothing logs it.
    ///
    /// # Errors
    ///
    /// As [`Service::viewer_ticket`].
    pub fn viewer_url(&self) -> Result<Redacted<String>> {
        let ticket = self.service.viewer_ticket(Some(auth::VIEWER_TICKET_TTL), Policy::ViewOnly)?;
        Ok(Redacted::new(format!("{}{}", self.url(), ticket.viewer_path.expose())))
    }

    /// Serves until `shutdown` completes, then says goodbye to everyone.
    ///
    /// # Errors
    ///
    /// `io` when the listener fails for good.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let Self { service, router, listener, quic, whep: (endpoint, driver), demo, .. } = self;
        let Quic { endpoint: quic, driver: viewers, kept } = quic;
        let viewers = tokio::spawn(viewers.run());
        let peers = std::thread::Builder::new().name("whep".into()).spawn(|| driver.run())?;
        let connections = Connections::new(router, endpoint.clone());
        let mut sweeps = interval(SWEEP_INTERVAL);
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
                _ = import_sweeps.tick() => service.sweep_imports(),
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => connections.serve(stream, peer),
                    Err(error) => {
                        // The peer's fault, or a lack of descriptors that passes.
                        tracing::warn!(%error, "a connection could not be accepted");
                        if !matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) {
                            sleep(Duration::from_millis(100)).await;
                        }
                    }
                },
            }
        }
        tracing::info!("shutting down");
        service.sessions().close_all();
        endpoint.shut_down();
        quic.shut_down();
        connections.drain().await;
        if let Err(error) = viewers.await {
            tracing::error!(%error, "the QUIC driver failed");
        }
        service.end_windows();
        drop(demo);
        match peers.join() {
            Ok(ended) => ended,
            Err(_) => Err(Error::new(Kind::Internal, "the WebRTC driver panicked")),
        }
    }
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
    (endpoint, gate): (whep::Endpoint, Gate),
    guarded: bool,
) -> Router {
    let peers = whep::http::State::new(endpoint, service.sessions().clone(), Arc::new(gate));
    Router::new()
        .merge(http::routes(service.clone()))
        .merge(http::metrics(service.clone(), guarded))
        .merge(consent::routes(service.clone()))
        .merge(websocket::router(media))
        .merge(whep::http::router(peers))
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

/// The TCP connections of one gateway.
struct Connections {
    router: Router,
    /// Takes those that carry media.
    endpoint: whep::Endpoint,
    builder: auto::Builder<TokioExecutor>,
    graceful: GracefulShutdown,
    permits: Arc<Semaphore>,
    /// Connections refused since that was last said.
    refused: AtomicU64,
}

impl Connections {
    fn new(router: Router, endpoint: whep::Endpoint) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(MAX_HEAD);
        builder
            .http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(MAX_FRAME)
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        Self {
            router,
            endpoint,
            builder,
            graceful: GracefulShutdown::new(),
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            refused: AtomicU64::new(0),
        }
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
        prepare(&stream);
        let router = self.router.clone().map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(peer));
            request
        });
        let service = TowerToHyperService::new(router);
        let (builder, watcher) = (self.builder.clone(), self.graceful.watcher());
        let endpoint = self.endpoint.clone();
        tokio::spawn(async move {
            let Some(first) = first_byte(&stream).await else { return };
            if whep::demux::is_framed(first) {
                let adopted = stream.into_std().map_err(Error::from);
                if let Err(error) = adopted.and_then(|stream| endpoint.adopt(stream, permit)) {
                    tracing::debug!(%error, "a media connection was not taken");
                }
                return;
            }
            let stream = TokioIo::new(Opening::new(stream, HEADER_TIMEOUT));
            let connection = builder.serve_connection_with_upgrades(stream, service);
            if let Err(error) = watcher.watch(connection.into_owned()).await {
                tracing::debug!(%error, "connection");
            }
            drop(permit);
        });
    }

    /// Says how many were refused. Not at each, or who floods the port floods the log.
    fn report(&self) {
        let refused = self.refused.swap(0, Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, limit = MAX_CONNECTIONS, "too many connections");
        }
    }

    async fn drain(self) {
        if timeout(DRAIN, self.graceful.shutdown()).await.is_err() {
            tracing::debug!("some connections did not finish in time");
        }
    }
}

/// What a connection begins with, still unread. `None` for one that says nothing in time.
async fn first_byte(stream: &TcpStream) -> Option<u8> {
    let mut first = [0];
    let peeked = timeout(HEADER_TIMEOUT, stream.peek(&mut first)).await;
    matches!(peeked, Ok(Ok(1))).then_some(first[0])
}

/// Media must not wait for an acknowledgement (Nagle), and must not pile up in the kernel where
/// the slow-viewer rule does not see it.
fn prepare(stream: &TcpStream) {
    /// Bytes the kernel may hold unsent: an eighth of a second where a path carries 1 Mbit/s, and no
    /// limit on faster ones, since what has been sent does not count.
    const UNSENT: u32 = 16 << 10;
    let results =
        [stream.set_nodelay(true).map_err(|error| error.to_string()), limit_unsent(stream, UNSENT)];
    for error in results.into_iter().filter_map(std::result::Result::err) {
        tracing::debug!(error, "a socket option was refused");
    }
}

fn limit_unsent(stream: &TcpStream, bytes: u32) -> std::result::Result<(), String> {
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(bytes).map_err(|error| error.to_string())
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

async fn start_demo() -> Result<Demo> {
    match tokio::task::spawn_blocking(|| Demo::start(DEMO_SIZE)).await {
        Ok(demo) => demo,
        Err(error) => Err(Error::new(Kind::Internal, "the demo desktop failed").source(error)),
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => "Stop what listens there, or choose another with `--listen`",
            ErrorKind::PermissionDenied => "Choose a port above 1023 with `--listen`",
            _ => "Choose an address of this machine with `--listen`",
        };
        Error::new(Kind::Io, format!("cannot listen on `{address}`"))
            .with("listen", address)
            .hint(hint)
            .source(error)
    })
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
