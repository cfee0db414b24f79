//! A connection whose client has not said yet what it speaks.
//!
//! HTTP/1.1 or HTTP/2 is decided by the first bytes, and both have time limits of their own from
//! there on. Before it nothing does: clients that connect and say nothing would hold their
//! connections for good, and a thousand of them everyone else's.

use std::future::Future as _;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How a connection that speaks HTTP/2 begins (RFC 9113 §3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A stream that fails when its first bytes do not come in time.
pub(super) struct Opening<S> {
    stream: S,
    /// How much of [`PREFACE`] has come.
    matched: usize,
    /// Gone as soon as it is clear what the client speaks.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Opening<S> {
    /// Gives the client `patience` to say what it speaks.
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, matched: 0, deadline: Some(Box::pin(sleep(patience))) }
    }

    fn heard(&mut self, bytes: &[u8]) {
        let expected = &PREFACE[self.matched..];
        let same = bytes.len().min(expected.len());
        self.matched += same;
        // Nothing more to come, something else, or all of it.
        if bytes.is_empty() || bytes[..same] != expected[..same] || self.matched == PREFACE.len() {
            self.deadline = None;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let Some(deadline) = &mut self.deadline else { return read };
        if read.is_pending() {
            return deadline.as_mut().poll(cx).map(|()| Err(ErrorKind::TimedOut.into()));
        }
        self.heard(&buffer.filled()[before..]);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Says `bytes`, one a second, and nothing more. What the other side reads until that ends, and
    /// how long it took.
    async fn says(bytes: &[u8]) -> (io::Result<usize>, Duration) {
        let (mut client, server) = duplex(64);
        let began = Instant::now();
        let read = async {
            let mut opening = Opening::new(server, PATIENCE);
            let mut all = Vec::new();
            opening.read_to_end(&mut all).await
        };
        let write = async {
            for byte in bytes {
                // The server may be gone.
                drop(client.write_all(&[*byte]).await);
                sleep(Duration::from_secs(1)).await;
            }
            sleep(Duration::from_secs(3600)).await;
            drop(client);
        };
        let read = async { (read.await, began.elapsed()) };
        tokio::join!(read, write).0
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_half_a_preface_end_in_time() {
        for bytes in [b"".as_slice(), b"P", b"PRI * HT", PREFACE] {
            let (read, took) = says(bytes).await;
            assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
            assert_eq!(took.as_secs(), PATIENCE.as_secs(), "a byte a second does not help");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_clear_is_left_to_the_protocol() {
        let (read, took) = says(b"PO").await;
        assert_eq!(read.unwrap(), 2);
        assert!(took > PATIENCE * 10);

        let (mut client, server) = duplex(64);
        client.write_all(PREFACE).await.unwrap();
        let mut opening = Opening::new(server, PATIENCE);
        opening.read_exact(&mut [0; 24]).await.unwrap();
        sleep(PATIENCE * 2).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(opening.read(&mut [0; 8]).await.unwrap(), 1);
    }
}
