//! Waking many viewers at once.
//!
//! A producer is a thread of its own. Each viewer that it wakes itself is a task that it puts into a
//! runtime from outside, which costs a lock and often a system call, for every viewer and every frame. Where
//! somebody rings ([`Ringing`]), the producer wakes them alone, and they wake the viewers from within.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::stream::lock;

/// Viewers that are to be woken, and who does it.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whoever rings, if somebody does.
    ringer: Option<Waker>,
    waiting: Vec<Waker>,
}

impl Bell {
    /// Wakes all of them, soon.
    pub(crate) fn ring(&self, mut wakers: Vec<Waker>) {
        match wakers.len() {
            0 => {}
            // Not worth another's time.
            1 => wakers.into_iter().for_each(Waker::wake),
            _ => {
                let mut state = lock(&self.state);
                let Some(ringer) = state.ringer.clone() else {
                    drop(state);
                    return wakers.into_iter().for_each(Waker::wake);
                };
                state.waiting.append(&mut wakers);
                drop(state);
                ringer.wake();
            }
        }
    }

    fn poll(&self, ringer: &Waker) {
        let waiting = {
            let mut state = lock(&self.state);
            match &mut state.ringer {
                Some(known) => known.clone_from(ringer),
                None => state.ringer = Some(ringer.clone()),
            }
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Producers wake viewers themselves from now on.
    fn stop(&self) {
        let waiting = {
            let mut state = lock(&self.state);
            state.ringer = None;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// Wakes viewers, for as long as it is polled; it never ends by itself. For one task of their runtime.
#[derive(Debug)]
#[must_use = "nobody rings unless it is polled"]
pub struct Ringing(pub(crate) Arc<Bell>);

impl Future for Ringing {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll(cx.waker());
        Poll::Pending
    }
}

impl Drop for Ringing {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn sleeper() -> (Arc<Woken>, Waker) {
        let woken = Arc::<Woken>::default();
        (Arc::clone(&woken), woken.into())
    }

    #[test]
    fn many_are_woken_by_whoever_rings_and_by_the_producer_where_nobody_does() {
        let bell = Arc::<Bell>::default();
        let (woken, waker) = sleeper();
        let (called, ringer) = sleeper();
        let counts = || [&woken, &called].map(|it| it.0.load(Ordering::Relaxed));
        bell.ring(vec![waker.clone(); 3]);
        assert_eq!(counts(), [3, 0]);
        let mut ringing = Ringing(Arc::clone(&bell));
        let poll = |it: &mut Ringing| Pin::new(it).poll(&mut Context::from_waker(&ringer));
        assert!(poll(&mut ringing).is_pending());
        bell.ring(vec![waker.clone(); 3]);
        assert_eq!(counts(), [3, 1]);
        bell.ring(vec![waker.clone()]);
        assert_eq!(counts(), [4, 1], "one alone");
        assert!(poll(&mut ringing).is_pending());
        assert_eq!(counts(), [7, 1]);
        // What waits when the ringer goes is not forgotten.
        bell.ring(vec![waker.clone(); 2]);
        drop(ringing);
        bell.ring(vec![waker; 2]);
        assert_eq!(counts(), [11, 2]);
    }
}
