//! A connection that carries streams of bytes and no viewer: between a relay and a machine behind it.
//!
//! The port is the one that viewers have; the protocol in the TLS handshake tells them apart. What the
//! streams are for is not known here.

use std::fmt;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use quinn::{ConnectionError, RecvStream, SendStream, VarInt};
use spaceport_types::{Error, Kind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

/// What links take of a port that viewers have, too.
#[derive(Clone, Debug)]
pub struct Links {
    /// Their protocol, in the TLS handshake.
    pub alpn: &'static str,
    /// Where they go. One that finds no room there is closed.
    pub taken: mpsc::Sender<Link>,
    /// How much one may hold.
    pub windows: Windows,
}

/// How much a link may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Streams that the other side may have open.
    pub streams: u32,
    /// Bytes that the other side may send on one stream before anyone has read them.
    pub stream: u32,
    /// The same on all of them together.
    pub all: u32,
}

/// One connection. Dropping it, with its last stream, closes it.
pub struct Link {
    connection: quinn::Connection,
    windows: Windows,
}

/// Bytes there and back. Dropped before it was shut down, it is reset.
pub struct Stream {
    send: SendStream,
    receive: RecvStream,
    shut: bool,
}

impl Links {
    pub(super) fn takes(&self, alpn: Option<&[u8]>) -> bool {
        alpn == Some(self.alpn.as_bytes())
    }

    pub(super) fn take(&self, connection: quinn::Connection) {
        if self.taken.try_send(Link::new(connection, self.windows)).is_err() {
            tracing::debug!("a link that nobody takes");
        }
    }
}

impl Link {
    pub(super) fn new(connection: quinn::Connection, windows: Windows) -> Self {
        Self { connection, windows }
    }

    /// Gives the other side all the room it is to have. Until then it has what a viewer has, which is for
    /// control messages alone: who it is has to be told first.
    pub fn admit(&self) {
        self.connection.set_max_concurrent_bi_streams(self.windows.streams.into());
        self.connection.set_receive_window(self.windows.all.into());
        self.connection.set_send_window(SEND_WINDOW);
    }

    /// Opens a stream. The other side sees it once something is written.
    ///
    /// # Errors
    ///
    /// `io` when the connection is over.
    pub async fn open(&self) -> Result<Stream> {
        match self.connection.open_bi().await {
            Ok((send, receive)) => Ok(Stream { send, receive, shut: false }),
            Err(error) => Err(over(&error)),
        }
    }

    /// The next stream that the other side opens; `None` when there will be none.
    pub async fn accept(&self) -> Option<Stream> {
        let (send, receive) = self.connection.accept_bi().await.ok()?;
        Some(Stream { send, receive, shut: false })
    }

    /// Returns once the connection is over.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }

    /// Whether it is over.
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }

    /// Closes it, with every stream on it.
    pub fn close(&self) {
        self.connection.close(VarInt::from_u32(0), b"");
    }
}

impl Stream {
    /// From now on, a stream that is dropped ends as if all had been said: what is said on it shows by itself
    /// whether it is whole.
    pub fn end_on_drop(&mut self) {
        // quinn ends a stream that is dropped.
        self.shut = true;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Dropped as it is, quinn would end it as if all had been said.
        if !self.shut {
            drop(self.send.reset(VarInt::from_u32(0)));
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.receive), cx, buffer).map_err(reset)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, bytes).map_err(reset)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut = true;
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx).map_err(reset)
    }
}

/// The same error whatever has ended the stream before its end.
fn reset(error: io::Error) -> io::Error {
    io::Error::new(ErrorKind::ConnectionReset, error)
}

fn over(error: &ConnectionError) -> Error {
    Error::new(Kind::Io, "the connection was lost").with("reason", error)
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("shut", &self.shut).finish_non_exhaustive()
    }
}

/// Bytes sent and not acknowledged. A gigabit over 130 ms: all that go to a machine share it.
const SEND_WINDOW: u64 = 16 << 20;
