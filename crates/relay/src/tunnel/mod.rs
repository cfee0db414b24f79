//! Streams of bytes between a relay and one machine, whatever carries them.
//!
//! Over QUIC each is a QUIC stream; where UDP is blocked they share one WebSocket, by yamux. Either way a
//! stream that nobody reads holds up its writer and no other stream, and one that is dropped before it was
//! shut down is reset: the other side does not take half of something for all of it.

mod head;
mod mux;
mod stream;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use spaceport_transport::quic::{Link, Windows};
use spaceport_types::{Error, Kind, Result};
use spaceport_wire::relay::Head;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

pub use head::{Reader, read_head, write};
pub use stream::Stream;

/// The protocol of tunnels over QUIC, in the TLS handshake.
pub const ALPN: &str = "spaceport-relay/1";

/// How long the other side may take to let a stream be opened. It has no reason to take any time.
const PATIENCE: Duration = Duration::from_secs(10);

/// What carries a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carrier {
    /// QUIC, over UDP.
    Quic,
    /// A WebSocket, over TCP.
    WebSocket,
    /// A pipe within this process.
    Memory,
}

/// Which end of a tunnel this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The machine's, which dialled.
    Machine,
    /// The relay's.
    Relay,
}

/// How much a tunnel may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Streams that this side has open at one time. Further ones are refused.
    pub streams: usize,
    /// Bytes that the other side may send on one stream before anyone has read them.
    pub window: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams: 128, window: 512 << 10 }
    }
}

/// A handle to a tunnel. Cloning it makes another; the tunnel is there for as long as a handle or a stream is.
#[derive(Clone)]
pub struct Tunnel {
    inner: Arc<Inner>,
}

struct Inner {
    way: Way,
    carrier: Carrier,
    streams: Arc<Semaphore>,
    limit: usize,
    /// Whether there is a later one for what is new.
    left: watch::Sender<bool>,
}

enum Way {
    Mux(mux::Mux),
    Link(Link),
}

impl Limits {
    /// The same for a link of QUIC, to which the other side opens `streams`.
    pub fn windows(self, streams: u32) -> Windows {
        // Room on each stream, so that those that are not read do not take it from the others.
        let all = u64::from(self.window) * (self.streams as u64 + 1);
        Windows { streams, stream: self.window, all: u32::try_from(all).unwrap_or(u32::MAX) }
    }
}

impl Tunnel {
    /// A tunnel over one stream of bytes in each direction.
    pub(crate) fn over<T>(io: T, carrier: Carrier, side: Side, limits: Limits) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::new(Way::Mux(mux::Mux::start(io, side, limits)), carrier, limits)
    }

    /// A tunnel over QUIC.
    pub fn quic(link: Link, limits: Limits) -> Self {
        Self::new(Way::Link(link), Carrier::Quic, limits)
    }

    /// Both ends of one within this process, the machine's first; for tests.
    pub fn pair(limits: Limits) -> (Self, Self) {
        /// What is on its way; as much as a socket has.
        const PIPE: usize = 256 << 10;
        let (machine, relay) = tokio::io::duplex(PIPE);
        let over = |io, side| Self::over(io, Carrier::Memory, side, limits);
        (over(machine, Side::Machine), over(relay, Side::Relay))
    }

    fn new(way: Way, carrier: Carrier, limits: Limits) -> Self {
        let streams = Arc::new(Semaphore::new(limits.streams));
        let (left, _) = watch::channel(false);
        Self { inner: Arc::new(Inner { way, carrier, streams, limit: limits.streams, left }) }
    }

    /// Opens a stream and says what it is for.
    ///
    /// # Errors
    ///
    /// `limit_exceeded` when too many are open, `relay` when the tunnel is closed.
    pub async fn open(&self, head: &Head) -> Result<Stream> {
        let Ok(permit) = Arc::clone(&self.inner.streams).try_acquire_owned() else {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("{} requests to this machine are under way", self.inner.limit),
            )
            .with("limit", self.inner.limit)
            .hint("Try again when some of them are done"));
        };
        let opening = async {
            let mut stream = match &self.inner.way {
                Way::Mux(mux) => Stream::new(mux.open().await?, self.clone(), Some(permit)),
                Way::Link(link) => {
                    let stream = link.open().await.map_err(|error| closed().source(error))?;
                    Stream::new(stream, self.clone(), Some(permit))
                }
            };
            write(&mut stream, head).await.map_err(|error| closed().source(error))?;
            Ok(stream)
        };
        timeout(PATIENCE, opening).await.unwrap_or_else(|_| {
            Err(Error::new(Kind::Relay, "the machine takes no further request")
                .hint("Try again in a moment"))
        })
    }

    /// The next stream that the other side opens; `None` when there will be none. One that is not taken in
    /// time is refused. To be called by one task at a time.
    pub async fn accept(&self) -> Option<Stream> {
        match &self.inner.way {
            Way::Mux(mux) => Some(Stream::new(mux.accept().await?, self.clone(), None)),
            Way::Link(link) => Some(Stream::new(link.accept().await?, self.clone(), None)),
        }
    }

    /// Returns once the tunnel is closed, by whomever.
    pub async fn closed(&self) {
        match &self.inner.way {
            Way::Mux(mux) => mux.closed().await,
            Way::Link(link) => link.closed().await,
        }
    }

    /// Says that the machine has moved to a later tunnel: what lasts should go over.
    pub(crate) fn leave(&self) {
        self.inner.left.send_replace(true);
    }

    /// Returns once the machine has moved to a later one.
    pub(crate) async fn left(&self) {
        // An error cannot be: the sender is here.
        drop(self.inner.left.subscribe().wait_for(|&left| left).await);
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        match &self.inner.way {
            Way::Mux(mux) => mux.is_closed(),
            Way::Link(link) => link.is_closed(),
        }
    }

    /// Closes it, with every stream on it.
    pub fn close(&self) {
        match &self.inner.way {
            Way::Mux(mux) => mux.close(),
            Way::Link(link) => link.close(),
        }
    }

    /// Gives the other side all the room that it is to have, now that it is known who that is.
    pub(crate) fn admit(&self) {
        match &self.inner.way {
            Way::Mux(mux) => mux.admit(),
            Way::Link(link) => link.admit(),
        }
    }

    /// What carries it.
    pub fn carrier(&self) -> Carrier {
        self.inner.carrier
    }

    /// Streams that this side has open.
    pub fn streams(&self) -> usize {
        self.inner.limit - self.inner.streams.available_permits()
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("carrier", &self.inner.carrier).finish_non_exhaustive()
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quic => "quic",
            Self::WebSocket => "websocket",
            Self::Memory => "memory",
        })
    }
}

fn closed() -> Error {
    Error::new(Kind::Relay, "the tunnel is closed").hint("Try again in a moment")
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use spaceport_wire::relay::{Http, Protocol};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const HEAD: Head = Head::Http(Http { protocol: Protocol::Http2, entry: None });

    fn pair() -> (Tunnel, Tunnel) {
        Tunnel::pair(Limits { streams: 4, ..Limits::default() })
    }

    #[tokio::test]
    async fn either_side_opens_streams_and_says_what_for() {
        let (machine, relay) = pair();
        for (from, to) in [(&machine, &relay), (&relay, &machine)] {
            let mut near = from.open(&HEAD).await.unwrap();
            let mut far = to.accept().await.unwrap();
            assert_eq!(read_head(&mut far).await.unwrap(), HEAD);
            near.write_all(b"there").await.unwrap();
            near.shutdown().await.unwrap();
            let mut text = String::new();
            far.read_to_string(&mut text).await.unwrap();
            far.write_all(b"and back").await.unwrap();
            far.shutdown().await.unwrap();
            near.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "thereand back");
        }
    }

    #[tokio::test]
    async fn a_stream_that_nobody_reads_holds_up_no_other() {
        let (machine, relay) = pair();
        let mut stuck = relay.open(&HEAD).await.unwrap();
        let mut far_stuck = machine.accept().await.unwrap();
        read_head(&mut far_stuck).await.unwrap();
        let writing = tokio::spawn(async move { stuck.write_all(&vec![1; 16 << 20]).await });
        let mut near = relay.open(&HEAD).await.unwrap();
        let mut far = machine.accept().await.unwrap();
        read_head(&mut far).await.unwrap();
        let large = vec![7; 4 << 20];
        let write = async {
            near.write_all(&large).await.unwrap();
            near.shutdown().await.unwrap();
        };
        let mut read = Vec::new();
        let (_, length) = tokio::join!(write, far.read_to_end(&mut read));
        assert_eq!(length.unwrap(), large.len());
        assert!(!writing.is_finished(), "what nobody reads is not buffered");
        drop(far_stuck);
        assert!(writing.await.unwrap().is_err(), "the writer learns of it");
    }

    #[tokio::test]
    async fn half_of_something_does_not_pass_for_all_of_it() {
        let (machine, relay) = pair();
        let mut near = relay.open(&HEAD).await.unwrap();
        let mut far = machine.accept().await.unwrap();
        read_head(&mut far).await.unwrap();
        near.write_all(b"half").await.unwrap();
        drop(near);
        let error = far.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn streams_are_counted_and_too_many_refused() {
        let (_machine, relay) = pair();
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(relay.open(&HEAD).await.unwrap());
        }
        assert_eq!(relay.streams(), 4);
        assert_eq!(relay.open(&HEAD).await.unwrap_err().kind(), Kind::LimitExceeded);
        open.pop();
        open.push(relay.open(&HEAD).await.unwrap());
    }

    #[tokio::test]
    async fn the_end_of_a_tunnel_is_the_end_of_its_streams() {
        let (machine, relay) = pair();
        let mut near = relay.open(&HEAD).await.unwrap();
        let mut far = machine.accept().await.unwrap();
        read_head(&mut far).await.unwrap();
        assert!(!relay.is_closed());
        machine.close();
        relay.closed().await;
        machine.closed().await;
        assert!(relay.is_closed() && machine.accept().await.is_none());
        assert_eq!(relay.open(&HEAD).await.unwrap_err().kind(), Kind::Relay);
        let error = near.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_to_a_side_that_reads_nothing_any_more_still_closes() {
        let (near, _far) = tokio::io::duplex(256);
        let machine = Tunnel::over(near, Carrier::Memory, Side::Machine, Limits::default());
        let mut stream = machine.open(&HEAD).await.unwrap();
        // More than the pipe holds, so that the goodbye has to wait behind it.
        stream.write_all(&[1; 4096]).await.unwrap();
        machine.close();
        timeout(PATIENCE, machine.closed()).await.expect("it closes by itself");
        assert!(machine.is_closed());
        assert!(stream.write_all(&[1; 4096]).await.is_err());
    }

    #[tokio::test]
    async fn a_head_that_is_none_is_an_error() {
        for bytes in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 2, 0, 0, 0, 0, b'{', b'}'], &[0, 0]]
        {
            assert!(read_head(&mut &*bytes).await.is_err(), "{bytes:?}");
        }
    }
}
