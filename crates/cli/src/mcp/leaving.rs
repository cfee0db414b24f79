//! When the agent's host has left: nothing more comes from it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::sync::CancellationToken;

/// What an agent's host says, until it has left.
///
/// The SDK lets calls go on for seconds after that, and tells them too late: a transfer that nobody
/// waits for would be published by then.
pub(super) struct UntilItLeaves<R> {
    pub(super) input: R,
    /// Told once, at the end.
    pub(super) left: CancellationToken,
}

impl<R: AsyncRead + Unpin> AsyncRead for UntilItLeaves<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.input).poll_read(context, buffer));
        if read.is_err() || (buffer.filled().len() == before && buffer.remaining() > 0) {
            self.left.cancel();
        }
        Poll::Ready(read)
    }
}
