//! The TCP port of a server: HTTP/1.1, HTTP/2 and media on one port, with TLS or without, told apart by the
//! first bytes.
//!
//! A connection is *opening* until the head of its first request is there. Of those there are only so many:
//! one more sends away the one that has waited longest of whoever has most of them, so that a flood of
//! connections that say nothing costs those who speak nothing.

mod lobby;
mod opening;

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use spaceport_types::{Error, Kind, Result};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use self::lobby::{Guard, Lobby};
use self::opening::Opening;
use crate::tls::{Certificate, Stream};
use crate::whep;

/// Who is let in, and how much each may cost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Connections at one time. Each costs tens of kilobytes; a flood ends here, and those who are connected
    /// stay so.
    pub connections: usize,
    /// Of those, such that have not said what they want.
    pub opening: usize,
    /// How long a client may take to say what it speaks, and then over the head of each request.
    pub patience: Duration,
    /// The largest head of a request. Anyone can send one, and it is held in memory.
    pub head: usize,
    /// Requests of one HTTP/2 connection at one time.
    pub streams: u32,
    /// Bytes that a client may send of one request before anyone has read them.
    pub stream_window: u32,
    /// The same for all requests of a connection.
    pub connection_window: u32,
    /// Serves TLS, and nothing without it.
    pub tls: Option<Certificate>,
    /// Takes the connections that carry media.
    pub media: Option<whep::Endpoint>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connections: 1024,
            opening: 512,
            patience: Duration::from_secs(10),
            head: 64 << 10,
            streams: 200,
            // Flow-control windows that a fast link fills, as the deployed clients use them.
            stream_window: 4 << 20,
            connection_window: 16 << 20,
            tls: None,
            media: None,
        }
    }
}

/// The TCP connections of one server.
pub struct Connections {
    gauge: Gauge,
    graceful: GracefulShutdown,
}

/// Says how many there are. Cloning it makes another.
#[derive(Clone)]
pub struct Gauge {
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    lobby: Lobby,
    limit: usize,
}

/// What every connection has.
struct Shared {
    router: Router,
    builder: auto::Builder<TokioExecutor>,
    patience: Duration,
    tls: Option<Certificate>,
    media: Option<whep::Endpoint>,
    /// Connections refused, in all and since that was last said.
    refused: AtomicU64,
    unsaid: AtomicU64,
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections now.
    pub connections: usize,
    /// Of those, such that have not said what they want.
    pub opening: usize,
    /// Refused or sent away since the start.
    pub refused: u64,
}

/// Binds a TCP port.
///
/// # Errors
///
/// `io` when that is not possible.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
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

impl Connections {
    /// Serves `router` to whoever comes.
    pub fn new(router: Router, config: Config) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(config.patience)
            .max_buf_size(config.head);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(config.streams)
            .max_header_list_size(u32::try_from(config.head).unwrap_or(u32::MAX))
            .initial_stream_window_size(config.stream_window)
            .initial_connection_window_size(config.connection_window)
            .max_frame_size(MAX_FRAME)
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        let shared = Shared {
            router,
            builder,
            patience: config.patience,
            tls: config.tls,
            media: config.media,
            refused: AtomicU64::new(0),
            unsaid: AtomicU64::new(0),
        };
        let gauge = Gauge {
            shared: Arc::new(shared),
            permits: Arc::new(Semaphore::new(config.connections)),
            lobby: Lobby::new(config.opening),
            limit: config.connections,
        };
        Self { gauge, graceful: GracefulShutdown::new() }
    }

    /// Serves the next connection. Nothing is lost when the future is dropped.
    pub async fn accept(&self, listener: &TcpListener) {
        match listener.accept().await {
            Ok((stream, peer)) => self.serve(stream, peer),
            Err(error) => {
                // The peer's fault, or a lack of descriptors that passes.
                tracing::warn!(%error, "a connection could not be accepted");
                let of_peer = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
                if !of_peer.contains(&error.kind()) {
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream, peer: SocketAddr) {
        let gauge = &self.gauge;
        let Ok(permit) = Arc::clone(&gauge.permits).try_acquire_owned() else {
            gauge.shared.refuse();
            return;
        };
        prepare(&stream);
        let (guard, sent_away) = gauge.lobby.enter(peer.ip());
        let (shared, watcher) = (Arc::clone(&gauge.shared), self.graceful.watcher());
        tokio::spawn(async move {
            tokio::select! {
                () = shared.serve(stream, peer, permit, guard, watcher) => {}
                // Not when it is over because the client has spoken.
                Ok(()) = sent_away => shared.refuse(),
            }
        });
    }

    /// Says how many there are, wherever these are.
    pub fn gauge(&self) -> Gauge {
        self.gauge.clone()
    }

    /// Says how many were refused. Not at each, or who floods the port floods the log.
    pub fn report(&self) {
        let refused = self.gauge.shared.unsaid.swap(0, Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, limit = self.gauge.limit, "too many connections");
        }
    }

    /// Lets every connection finish what it is at, for as long as that may take.
    pub async fn drain(self, patience: Duration) {
        if timeout(patience, self.graceful.shutdown()).await.is_err() {
            tracing::debug!("some connections did not finish in time");
        }
    }
}

impl Gauge {
    /// How many there are now.
    pub fn read(&self) -> Counts {
        Counts {
            connections: self.limit - self.permits.available_permits(),
            opening: self.lobby.len(),
            refused: self.shared.refused.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Gauge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("gauge", &self.gauge).finish_non_exhaustive()
    }
}

impl Shared {
    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.unsaid.fetch_add(1, Ordering::Relaxed);
    }

    /// Serves one connection to its end.
    async fn serve(
        &self,
        mut stream: TcpStream,
        peer: SocketAddr,
        permit: OwnedSemaphorePermit,
        guard: Guard,
        watcher: Watcher,
    ) {
        let Some(first) = self.first_byte(&stream).await else { return };
        if let Some(media) = &self.media
            && whep::demux::is_framed(first)
        {
            let adopted = stream.into_std().map_err(Error::from);
            if let Err(error) = adopted.and_then(|stream| media.adopt(stream, permit)) {
                tracing::debug!(%error, "a media connection was not taken");
            }
            return;
        }
        let Some(tls) = &self.tls else {
            return self.http(Stream::Plain(stream), peer, guard, watcher).await;
        };
        if first != TLS_HANDSHAKE {
            // Whoever forgot the `s` of `https` is told so.
            drop(timeout(self.patience, stream.write_all(TLS_ONLY)).await);
            return;
        }
        match timeout(self.patience, tls.accept(stream)).await {
            Ok(Ok(stream)) => self.http(stream, peer, guard, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "no TLS handshake"),
            Err(_) => tracing::debug!("no TLS handshake in time"),
        }
    }

    async fn http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: SocketAddr,
        guard: Guard,
        watcher: Watcher,
    ) {
        let guard = Mutex::new(Some(guard));
        let guard = Arc::new(guard);
        let router = self.router.clone().map_request(move |mut request: Request<Incoming>| {
            drop(guard.lock().unwrap_or_else(PoisonError::into_inner).take());
            request.extensions_mut().insert(ConnectInfo(peer));
            request
        });
        let stream = TokioIo::new(Opening::new(stream, self.patience));
        let service = TowerToHyperService::new(router);
        let connection = self.builder.serve_connection_with_upgrades(stream, service);
        if let Err(error) = watcher.watch(connection.into_owned()).await {
            tracing::debug!(%error, "connection");
        }
    }

    /// What a connection begins with, still unread. `None` for one that says nothing in time.
    async fn first_byte(&self, stream: &TcpStream) -> Option<u8> {
        let mut first = [0];
        let peeked = timeout(self.patience, stream.peek(&mut first)).await;
        matches!(peeked, Ok(Ok(1))).then_some(first[0])
    }
}

/// Media must not wait for an acknowledgement (Nagle), and must not pile up in the kernel where the
/// slow-viewer rule does not see it; and a peer that is gone or does not read is let go.
fn prepare(stream: &TcpStream) {
    /// Bytes the kernel may hold unsent: an eighth of a second where a path carries 1 Mbit/s, and no limit on
    /// faster ones, since what has been sent does not count.
    const UNSENT: u32 = 16 << 10;
    /// How long what was sent may stay unread. Longer than any train's tunnel, and the same as a viewer has.
    const UNREAD: Duration = Duration::from_secs(60);
    let socket = SockRef::from(stream);
    let keep_alive = TcpKeepalive::new().with_time(UNREAD).with_interval(KEEP_ALIVE);
    for result in [
        stream.set_nodelay(true),
        socket.set_tcp_notsent_lowat(UNSENT),
        socket.set_tcp_user_timeout(Some(UNREAD)),
        socket.set_tcp_keepalive(&keep_alive),
    ] {
        if let Err(error) = result {
            tracing::debug!(%error, "a socket option was refused");
        }
    }
}

/// The first byte of TLS: a record that is part of a handshake (RFC 8446 §5.1).
const TLS_HANDSHAKE: u8 = 22;

/// What is said to HTTP without TLS where there is TLS.
const TLS_ONLY: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n\
    content-length: 39\r\n\r\nThis port speaks TLS: use `https://`.\r\n";

/// The largest HTTP/2 frame.
const MAX_FRAME: u32 = 1 << 20;

/// How often an idle connection has to show that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
