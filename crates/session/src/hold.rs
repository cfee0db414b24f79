//! How long a session lives beyond its viewers and its tickets, and who learns of its end.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use spaceport_types::Error;

use crate::stream::lock;

/// Keeps a session open while it is there, though nobody watches and no ticket opens it any more. It may be
/// closed nonetheless.
#[derive(Debug)]
pub struct Hold {
    closing: Closing,
}

/// Tells of the end of a session, and does not keep it.
#[derive(Clone, Debug)]
pub struct Closing {
    life: Arc<Life>,
}

/// What a session shares with those who hold it.
#[derive(Debug, Default)]
pub(crate) struct Life {
    holds: AtomicUsize,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    reason: Option<Arc<Error>>,
    wakers: Vec<Waker>,
}

impl Life {
    pub(crate) fn hold(self: &Arc<Self>) -> Hold {
        self.holds.fetch_add(1, Ordering::Relaxed);
        Hold { closing: self.closing() }
    }

    pub(crate) fn closing(self: &Arc<Self>) -> Closing {
        Closing { life: Arc::clone(self) }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn end(&self, reason: &Arc<Error>) {
        let mut end = lock(&self.end);
        end.reason.get_or_insert_with(|| Arc::clone(reason));
        end.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Hold {
    /// Waits for the end of the session, and says why it came.
    pub async fn closed(&self) -> Arc<Error> {
        self.closing.closed().await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.closing.life.holds.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Closing {
    /// Waits for the end of the session, and says why it came.
    pub async fn closed(&self) -> Arc<Error> {
        poll_fn(|cx| self.poll_closed(cx)).await
    }

    fn poll_closed(&self, cx: &Context<'_>) -> Poll<Arc<Error>> {
        let mut end = lock(&self.life.end);
        if let Some(reason) = &end.reason {
            return Poll::Ready(Arc::clone(reason));
        }
        if !end.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            end.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
