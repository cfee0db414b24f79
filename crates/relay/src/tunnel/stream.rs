//! One stream of a tunnel.

use std::fmt;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use spaceport_transport::quic;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt as _};

use super::Tunnel;

/// Bytes there and back. Dropped before it was shut down, it is reset.
pub struct Stream {
    io: Io,
    /// This side has said all.
    shut: bool,
    /// Counts it, when this side opened it.
    _permit: Option<OwnedSemaphorePermit>,
    /// A tunnel is there for as long as its streams are.
    _tunnel: Tunnel,
}

pub(super) enum Io {
    Mux(Compat<yamux::Stream>),
    Link(quic::Stream),
}

impl From<yamux::Stream> for Io {
    fn from(stream: yamux::Stream) -> Self {
        Self::Mux(stream.compat())
    }
}

impl From<quic::Stream> for Io {
    fn from(stream: quic::Stream) -> Self {
        Self::Link(stream)
    }
}

impl Stream {
    pub(super) fn new(
        io: impl Into<Io>,
        tunnel: Tunnel,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { io: io.into(), shut: false, _permit: permit, _tunnel: tunnel }
    }

    /// From now on, a stream that is dropped loses nothing that was said before: HTTP/1.1 shows by itself
    /// whether an answer is whole, and hyper drops a connection that was not upgraded.
    pub(crate) fn end_on_drop(&mut self) {
        match &mut self.io {
            // A reset comes after what was said, and takes nothing of it away.
            Io::Mux(_) => {}
            Io::Link(stream) => stream.end_on_drop(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let shut = self.shut;
        match &mut self.io {
            Io::Mux(stream) => {
                ready!(Pin::new(&mut *stream).poll_read(cx, buffer))?;
                let ended = buffer.filled().len() == before && buffer.remaining() > 0;
                // yamux tells an end and a reset apart by its state alone: this side has not closed, so
                // a stream that is closed has been reset, or its tunnel is gone.
                if ended && !shut && stream.get_ref().is_closed() {
                    return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
                }
                Poll::Ready(Ok(()))
            }
            Io::Link(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Mux(stream) => Pin::new(stream).poll_write(cx, bytes),
            Io::Link(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Mux(stream) => Pin::new(stream).poll_flush(cx),
            Io::Link(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Mux(stream) => ready!(Pin::new(stream).poll_shutdown(cx))?,
            Io::Link(stream) => ready!(Pin::new(stream).poll_shutdown(cx))?,
        }
        self.shut = true;
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("shut", &self.shut).finish_non_exhaustive()
    }
}
