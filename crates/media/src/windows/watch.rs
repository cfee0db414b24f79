//! What changes among the windows, for many watchers.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spaceport_types::Result;

use super::Window;
use super::registry::Registry;

/// Something that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// All windows, front to back: at the start, and again for a watcher that fell behind.
    Snapshot(Vec<Window>),
    /// A window is new.
    Created(Window),
    /// Something about a window is different now.
    Updated(Window),
    /// A window is gone.
    Closed {
        /// Its handle.
        handle: String,
        /// Its epoch.
        epoch: u64,
    },
}

/// Tells what changes among the windows. Dropping it ends that.
///
/// While the X server is gone there are no windows, and none come before it is back.
pub struct Watch {
    registry: Arc<Registry>,
    id: u64,
}

impl Watch {
    pub(super) fn new(registry: Arc<Registry>) -> Result<Self> {
        registry.start()?;
        let id = registry.published().watchers.add();
        // With somebody watching, the thread connects by itself.
        registry.call();
        Ok(Self { registry, id })
    }

    /// Waits for the next change.
    pub async fn next(&mut self) -> Change {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next change, or a wake-up when there is one.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Change> {
        let mut published = self.registry.published();
        match published.take_change(self.id) {
            Some(change) => Poll::Ready(change),
            None => {
                published.watchers.set_waker(self.id, cx.waker());
                Poll::Pending
            }
        }
    }

    /// The next change if there is one.
    pub fn try_next(&mut self) -> Option<Change> {
        self.registry.published().take_change(self.id)
    }

    /// Waits for the next change on this thread, up to `time`.
    pub fn next_within(&mut self, time: Duration) -> Option<Change> {
        self.registry.wait(time, |published| published.take_change(self.id))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.registry.published().watchers.remove(self.id);
    }
}

/// Everyone who watches.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    mailboxes: BTreeMap<u64, Mailbox>,
    next: u64,
}

#[derive(Debug)]
struct Mailbox {
    queue: VecDeque<Change>,
    /// Gets all windows next: it is new, or fell behind.
    stale: bool,
    waker: Option<Waker>,
}

impl Watchers {
    fn add(&mut self) -> u64 {
        self.next += 1;
        let mailbox = Mailbox { queue: VecDeque::new(), stale: true, waker: None };
        self.mailboxes.insert(self.next, mailbox);
        self.next
    }

    fn remove(&mut self, id: u64) {
        self.mailboxes.remove(&id);
    }

    fn set_waker(&mut self, id: u64, waker: &Waker) {
        if let Some(mailbox) = self.mailboxes.get_mut(&id) {
            mailbox.waker = Some(waker.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mailboxes.is_empty()
    }

    /// Gives everyone the changes between two lists.
    pub(super) fn tell(&mut self, old: &[Window], new: &[Window]) {
        let changes = changes(old, new);
        for mailbox in self.mailboxes.values_mut() {
            if mailbox.queue.len() + changes.len() > WATCH_QUEUE {
                mailbox.queue.clear();
                mailbox.stale = true;
            } else if !mailbox.stale {
                mailbox.queue.extend(changes.iter().cloned());
            }
            if let Some(waker) = mailbox.waker.take() {
                waker.wake();
            }
        }
    }

    pub(super) fn take(&mut self, id: u64, windows: &[Window]) -> Option<Change> {
        let mailbox = self.mailboxes.get_mut(&id)?;
        if std::mem::take(&mut mailbox.stale) {
            return Some(Change::Snapshot(windows.to_vec()));
        }
        mailbox.queue.pop_front()
    }
}

/// What happened between two lists: what closed, then the rest front to back.
fn changes(old: &[Window], new: &[Window]) -> Vec<Change> {
    let before: BTreeMap<&str, &Window> =
        old.iter().map(|window| (window.handle.as_str(), window)).collect();
    let gone = |window: &&Window| !new.iter().any(|it| it.handle == window.handle);
    let closed = old
        .iter()
        .filter(gone)
        .map(|window| Change::Closed { handle: window.handle.clone(), epoch: window.epoch });
    let rest = new.iter().filter_map(|window| match before.get(window.handle.as_str()) {
        None => Some(Change::Created(window.clone())),
        Some(&old) if old != window => Some(Change::Updated(window.clone())),
        Some(_) => None,
    });
    closed.chain(rest).collect()
}

/// Changes a watcher may lag before it gets a list instead, which is then the shorter answer.
const WATCH_QUEUE: usize = 256;
