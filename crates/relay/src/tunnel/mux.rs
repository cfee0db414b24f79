//! Many streams over one, by yamux.
//!
//! One task has the connection. Streams are opened by asking it, and those that the other side opens wait
//! in a short queue; what does not fit there is reset, which the other side sees as refused.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use spaceport_types::Result;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};
use yamux::{Config, Connection, ConnectionError, Mode, Stream};

use super::{Limits, Side, closed};

/// Streams that wait to be accepted. Many come in one read, before whoever accepts gets a turn: room for as many
/// requests as a machine takes at a time. At a relay there is one of the machine's, and what
/// somebody who has not said who it is can send on each is held in memory.
const fn unaccepted(side: Side) -> usize {
    match side {
        Side::Machine => UNACCEPTED,
        Side::Relay => 4,
    }
}

/// Their most.
const UNACCEPTED: usize = 256;

/// Streams that wait to be opened; each is a task that waits for it.
const UNOPENED: usize = 64;

/// How long the other side has to take the goodbye. Then the connection is dropped as it is.
const FAREWELL: Duration = Duration::from_secs(2);

/// Streams that the other side may have open, beyond those of this side.
const OF_OTHERS: usize = 256;

pub(super) struct Mux {
    open: mpsc::Sender<oneshot::Sender<Stream>>,
    accepted: Mutex<mpsc::Receiver<Stream>>,
    closing: watch::Sender<bool>,
    /// True once the connection is gone.
    ended: watch::Receiver<bool>,
    /// How many streams may wait to be accepted.
    room: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Mux {
    pub(super) fn start<T>(io: T, side: Side, limits: Limits) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mode = match side {
            Side::Machine => Mode::Client,
            Side::Relay => Mode::Server,
        };
        let connection = Connection::new(io.compat(), config(limits), mode);
        let (open, opening) = mpsc::channel(UNOPENED);
        let (accept, accepted) = mpsc::channel(UNACCEPTED);
        let room = Arc::new(AtomicUsize::new(unaccepted(side)));
        let (closing, asked) = watch::channel(false);
        let (end, ended) = watch::channel(false);
        let driver = Driver { connection, opening, waiting: None, accept, room: Arc::clone(&room) };
        let task = tokio::spawn(async move {
            driver.run(asked).await;
            end.send_replace(true);
        });
        let task = task.abort_handle();
        Self { open, accepted: Mutex::new(accepted), closing, ended, room, task }
    }

    pub(super) async fn open(&self) -> Result<Stream> {
        let (reply, stream) = oneshot::channel();
        self.open.send(reply).await.map_err(|_| closed())?;
        stream.await.map_err(|_| closed())
    }

    pub(super) async fn accept(&self) -> Option<Stream> {
        self.accepted.lock().await.recv().await
    }

    pub(super) async fn closed(&self) {
        // An error means that the task is gone, too.
        drop(self.ended.clone().wait_for(|&ended| ended).await);
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.ended.borrow() || self.ended.has_changed().is_err()
    }

    /// Lets as many streams wait as at a machine, now that it is known who is there.
    pub(super) fn admit(&self) {
        self.room.store(UNACCEPTED, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn config(limits: Limits) -> Config {
    let window = yamux::DEFAULT_CREDIT as usize;
    // A stream that was dropped counts until the connection gets to it; going over the limit would end
    // the connection. This is far beyond what `Tunnel` lets be open.
    let streams = limits.streams * 2 + OF_OTHERS;
    // Windows begin with what yamux prescribes and grow on a long path, all of them together by no more
    // than those of this side would have to.
    let growth = limits.streams * (limits.window as usize).saturating_sub(window);
    let mut config = Config::default();
    // The order matters: each is checked against the other.
    config.set_max_connection_receive_window(None);
    config.set_max_num_streams(streams);
    config.set_max_connection_receive_window(Some(streams * window + growth));
    config
}

struct Driver<T> {
    connection: Connection<Compat<T>>,
    opening: mpsc::Receiver<oneshot::Sender<Stream>>,
    /// Who asked for a stream that cannot be opened yet.
    waiting: Option<oneshot::Sender<Stream>>,
    accept: mpsc::Sender<Stream>,
    room: Arc<AtomicUsize>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    /// Runs until the connection is over, or is to be.
    async fn run(mut self, mut asked: watch::Receiver<bool>) {
        let asked = async move { drop(asked.wait_for(|&closing| closing).await) };
        let ended = tokio::select! {
            ended = poll_fn(|cx| self.poll(cx)) => Some(ended),
            () = asked => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            // Saying goodbye waits until the other side has taken all that was written, which it may never do.
            None => {
                let closing = timeout(FAREWELL, poll_fn(|cx| self.connection.poll_close(cx)));
                closing.await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "the connection of a tunnel failed");
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        loop {
            // This also moves everything that is written and read.
            match self.connection.poll_next_inbound(cx) {
                Poll::Ready(Some(Ok(stream))) => {
                    let waiting = self.accept.max_capacity() - self.accept.capacity();
                    let is_full = waiting >= self.room.load(Ordering::Relaxed);
                    if is_full || self.accept.try_send(stream).is_err() {
                        tracing::warn!("streams come faster than they are taken; one was refused");
                    }
                    continue;
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => {}
            }
            if self.waiting.is_none() {
                match Pin::new(&mut self.opening).poll_recv(cx) {
                    Poll::Ready(Some(reply)) => self.waiting = Some(reply),
                    // No handle is left; then there is no task either.
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
            match self.connection.poll_new_outbound(cx) {
                Poll::Ready(Ok(stream)) => {
                    if let Some(reply) = self.waiting.take() {
                        // Whoever asked may be gone: then it is reset.
                        drop(reply.send(stream));
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
