//! The thread behind [`Windows`](super::Windows), and how callers reach it.
//!
//! Callers put a [`Call`] into a queue and wait for the answer. The thread publishes the list after
//! everything that changes it; those who wait for an effect, and watchers, wait for that.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use spaceport_types::{Bounds, Cause, Error, Kind, Result};

use super::desk::{Desk, Handles};
use super::watch::{Change, Watchers};
use super::{Placement, State, Window, find};
use crate::clock;
use crate::wake::{EventFd, timespec};

/// How long an answer of the X server may take. It takes a millisecond; one that is stopped never
/// answers, and callers must not hang with it.
const ANSWER: Duration = Duration::from_secs(2);

/// How long a change waits for its effect: a window manager under load, an app that draws.
const EFFECT: Duration = Duration::from_secs(1);

/// A window that has stopped changing for this long is where its window manager wants it.
const SETTLED: Duration = Duration::from_millis(60);

/// How often a lost X server is tried again while somebody watches.
const RETRY: Duration = Duration::from_secs(1);

/// Calls that wait at most; more than a gateway has threads to wait with.
const MAX_CALLS: usize = 256;

/// What is to be done with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Activate,
    Place(Placement),
    Minimize,
    Maximize,
    Restore,
    Close { force: bool },
}

impl Action {
    /// Whether `window`, which was `before`, is as it should be.
    fn done(self, before: &Window, window: &Window) -> bool {
        let shown = !matches!(window.state, State::Minimized | State::Hidden);
        match self {
            Self::Activate => window.focused && shown,
            Self::Place(to) => to.applied_to(before.bounds) == window.bounds,
            Self::Minimize => window.state == State::Minimized,
            Self::Maximize => window.state == State::Maximized,
            Self::Restore => window.state == State::Normal,
            Self::Close { .. } => false,
        }
    }
}

impl Placement {
    pub(super) fn applied_to(self, bounds: Bounds) -> Bounds {
        Bounds {
            x: self.x.unwrap_or(bounds.x),
            y: self.y.unwrap_or(bounds.y),
            width: self.width.unwrap_or(bounds.width),
            height: self.height.unwrap_or(bounds.height),
        }
    }
}

#[derive(Debug)]
pub(super) struct Registry {
    shared: Arc<Shared>,
    started: Mutex<bool>,
}

#[derive(Debug)]
struct Shared {
    display: Option<String>,
    published: Mutex<Published>,
    news: Condvar,
    calls: Mutex<VecDeque<Call>>,
    /// Set before the thread starts.
    wake: OnceLock<EventFd>,
    closed: AtomicBool,
}

/// What is known of the windows.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Front to back.
    windows: Arc<[Window]>,
    /// The X server was asked at least once.
    ready: bool,
    /// The X server is there.
    up: bool,
    pub(super) watchers: Watchers,
}

#[derive(Debug)]
struct Call {
    what: What,
    reply: SyncSender<Result<Answer>>,
}

#[derive(Debug)]
enum What {
    Look,
    Native { handle: String, epoch: u64 },
    Change { handle: String, epoch: u64, action: Action },
}

#[derive(Debug)]
enum Answer {
    Windows(Arc<[Window]>),
    Native(u32),
    /// It was asked for; the window was like this before. A window manager does it in its own time
    /// and steps; without one it is done.
    Changing {
        before: Window,
        managed: bool,
    },
}

impl Registry {
    pub(super) fn new(display: Option<&str>) -> Self {
        let shared = Shared {
            display: display.map(str::to_owned),
            published: Mutex::default(),
            news: Condvar::new(),
            calls: Mutex::default(),
            wake: OnceLock::new(),
            closed: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), started: Mutex::new(false) }
    }

    /// All windows as they are now.
    pub(super) fn look(&self) -> Result<Arc<[Window]>> {
        match self.ask(What::Look)? {
            Answer::Windows(windows) => Ok(windows),
            _ => Err(mixed_up()),
        }
    }

    pub(super) fn native(&self, handle: &str, epoch: u64) -> Result<u32> {
        match self.ask(What::Native { handle: handle.to_owned(), epoch })? {
            Answer::Native(native) => Ok(native),
            _ => Err(mixed_up()),
        }
    }

    /// Has something done and waits for the effect. `None`: the window is gone.
    pub(super) fn change(
        &self,
        handle: &str,
        epoch: u64,
        action: Action,
    ) -> Result<Option<Window>> {
        let what = What::Change { handle: handle.to_owned(), epoch, action };
        let Answer::Changing { before, managed } = self.ask(what)? else {
            return Err(mixed_up());
        };
        let until = clock::instant() + EFFECT;
        let mut seen = before.clone();
        let mut settled_at: Option<Instant> = None;
        let mut published = self.published();
        loop {
            if !published.up {
                return Err(gone(self.shared.display.as_deref()));
            }
            let window = published.windows.iter().find(|window| window.handle == before.handle);
            let Some(window) = window else { return Ok(None) };
            let now = clock::instant();
            if *window != seen {
                seen = window.clone();
                settled_at = Some(now + SETTLED);
            }
            let still = !managed || settled_at.is_none_or(|at| at <= now);
            // Some windows only have sizes of whole characters, and never the one asked for.
            let placed = matches!(action, Action::Place(_)) && window.bounds != before.bounds;
            if still && (placed || action.done(&before, window)) || now >= until {
                return Ok(Some(seen));
            }
            let wake_at = settled_at.filter(|&at| at > now).map_or(until, |at| at.min(until));
            let wait = wake_at.saturating_duration_since(now);
            let waited = self.shared.news.wait_timeout(published, wait);
            published = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Starts the thread if it does not run.
    pub(super) fn start(&self) -> Result<()> {
        let mut started = lock(&self.started);
        if *started {
            return Ok(());
        }
        let fd = EventFd::new()?;
        // Whoever tried before and failed to start the thread has left one that is as good.
        let _kept = self.shared.wake.set(fd);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("windows".to_owned());
        drop(thread.spawn(move || run(&shared))?);
        *started = true;
        Ok(())
    }

    /// Ends the thread, which also happens when nobody has a handle any more. It is not waited for: a
    /// server that does not answer would hold us here, and the thread has nothing of anyone else's.
    pub(super) fn end(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.call();
    }

    /// Has the thread look around.
    pub(super) fn call(&self) {
        self.shared.call();
    }

    pub(super) fn published(&self) -> MutexGuard<'_, Published> {
        lock(&self.shared.published)
    }

    /// Waits until `look` finds something, up to `time`.
    pub(super) fn wait<T>(
        &self,
        time: Duration,
        mut look: impl FnMut(&mut Published) -> Option<T>,
    ) -> Option<T> {
        let until = clock::instant() + time;
        let mut published = self.published();
        loop {
            if let Some(found) = look(&mut published) {
                return Some(found);
            }
            let left = until.saturating_duration_since(clock::instant());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.news.wait_timeout(published, left);
            published = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask(&self, what: What) -> Result<Answer> {
        self.start()?;
        let (reply, answer) = sync_channel(1);
        {
            let mut calls = lock(&self.shared.calls);
            if calls.len() >= MAX_CALLS {
                return Err(silent(self.shared.display.as_deref()));
            }
            calls.push_back(Call { what, reply });
        }
        self.shared.call();
        match answer.recv_timeout(ANSWER) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(silent(self.shared.display.as_deref())),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(Kind::Internal, "the thread that knows the windows has ended"))
            }
        }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.end();
    }
}

impl Published {
    /// What `id` is told next.
    pub(super) fn take_change(&mut self, id: u64) -> Option<Change> {
        if !self.ready {
            return None;
        }
        self.watchers.take(id, &self.windows)
    }
}

impl Shared {
    fn call(&self) {
        if let Some(wake) = self.wake.get() {
            wake.call();
        }
    }

    /// Tells everyone what there is now.
    fn publish(&self, windows: Vec<Window>, up: bool) {
        let mut published = lock(&self.published);
        let first = !std::mem::replace(&mut published.ready, true);
        if *published.windows == *windows && published.up == up && !first {
            return;
        }
        let old = std::mem::replace(&mut published.windows, windows.into());
        published.up = up;
        let Published { windows, watchers, .. } = &mut *published;
        watchers.tell(&old, windows);
        drop(published);
        self.news.notify_all();
    }

    fn windows(&self) -> Arc<[Window]> {
        Arc::clone(&lock(&self.published).windows)
    }
}

/// The thread.
fn run(shared: &Shared) {
    let mut handles = Handles::default();
    let mut desk: Option<Desk> = None;
    let mut retry_at: Option<Instant> = None;
    while !shared.closed.load(Ordering::Acquire) {
        let calls = std::mem::take(&mut *lock(&shared.calls));
        let watched = !lock(&shared.published).watchers.is_empty();
        let now = clock::instant();
        if desk.is_none() && (!calls.is_empty() || watched && retry_at.is_none_or(|at| at <= now)) {
            match Desk::open(shared.display.as_deref()) {
                Ok(opened) => desk = Some(opened),
                Err(error) => {
                    shared.publish(Vec::new(), false);
                    for call in calls {
                        call.answer(Err(again(&error)));
                    }
                    retry_at = Some(clock::instant() + RETRY);
                    wait(shared, None, watched.then_some(RETRY));
                    continue;
                }
            }
        }
        let served = desk.as_mut().map(|desk| serve(shared, desk, &mut handles, calls));
        match served {
            Some(Ok(true)) | None => wait(shared, desk.as_ref(), None),
            Some(Ok(false)) => {}
            Some(Err(error)) => {
                if shared.closed.load(Ordering::Acquire) {
                    return;
                }
                tracing::warn!(%error, "the X server went away");
                desk = None;
                handles.forget();
                shared.publish(Vec::new(), false);
                retry_at = None;
            }
        }
    }
}

/// Takes note of what happened, and does what is asked. `false`: more has happened meanwhile.
fn serve(
    shared: &Shared,
    desk: &mut Desk,
    handles: &mut Handles,
    calls: VecDeque<Call>,
) -> Result<bool> {
    let mut calls = calls.into_iter();
    let outcome = (|| {
        if calls.len() > 0 {
            desk.fence()?;
        }
        let mut done = desk.catch_up(handles)?;
        shared.publish(desk.windows(), true);
        for call in calls.by_ref() {
            let answer = match &call.what {
                What::Look => Ok(Answer::Windows(shared.windows())),
                What::Native { handle, epoch } => find(&shared.windows(), handle, *epoch)
                    .map(|window| Answer::Native(desk.native(&window.handle))),
                What::Change { handle, epoch, action } => {
                    match find(&shared.windows(), handle, *epoch) {
                        Ok(window) => {
                            let changed = desk.change(window, *action).and_then(|()| {
                                desk.fence()?;
                                desk.catch_up(handles)
                            });
                            match changed {
                                Ok(caught_up) => done = caught_up,
                                Err(error) => {
                                    call.answer(Err(again(&error)));
                                    return Err(error);
                                }
                            }
                            shared.publish(desk.windows(), true);
                            Ok(Answer::Changing {
                                before: window.clone(),
                                managed: desk.is_managed(),
                            })
                        }
                        Err(error) => Err(error),
                    }
                }
            };
            call.answer(answer);
        }
        Ok(done)
    })();
    if let Err(error) = &outcome {
        for call in calls {
            call.answer(Err(again(error)));
        }
    }
    outcome
}

impl Call {
    fn answer(self, answer: Result<Answer>) {
        // Whoever asked may have given up waiting.
        let _taken = self.reply.send(answer);
    }
}

/// Waits until somebody calls or the X server has news.
fn wait(shared: &Shared, desk: Option<&Desk>, timeout: Option<Duration>) {
    let Some(wake) = shared.wake.get() else { return };
    let timeout = timeout.map(timespec);
    let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
    fds.extend(desk.map(|desk| PollFd::from_borrowed_fd(desk.fd(), PollFlags::IN)));
    // Interrupted or not: the next round looks at everything.
    let _ready = rustix::event::poll(&mut fds, timeout.as_ref());
    wake.empty();
}

/// The same error for one more caller.
fn again(error: &Error) -> Error {
    let copy = match error.cause() {
        Some(cause) => Error::because(cause, error.to_string()),
        None => Error::new(error.kind(), error.to_string()),
    };
    let report = error.report();
    let copy = report.context.into_iter().fold(copy, |copy, (key, value)| copy.with(key, value));
    match report.hint {
        Some(hint) => copy.hint(hint),
        None => copy,
    }
}

fn gone(display: Option<&str>) -> Error {
    failed(display, "went away")
}

fn silent(display: Option<&str>) -> Error {
    failed(display, "does not answer")
}

fn failed(display: Option<&str>, what: &str) -> Error {
    let display = display.unwrap_or("DISPLAY");
    Error::because(Cause::CaptureFailed, format!("the X display `{display}` {what}"))
        .with("display", display)
        .hint("Start the desktop again")
}

fn mixed_up() -> Error {
    Error::new(Kind::Internal, "an answer about windows fits no question")
}

/// A panic while the lock was held leaves a list and queues behind, all of them valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
