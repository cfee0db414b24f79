//! The pointer, which the X server draws elsewhere than in the picture.
//!
//! A [`Follower`] has a thread and a connection of its own, so that a pointer is not held up by a
//! picture that is being encoded, and it exists only while some viewer wants the pointer. The server
//! says when the pointer looks another way (XFIXES), and, where XInput 2 is there, that a device
//! moved it; then it is asked where. A program that moves the pointer without a device says nothing,
//! so it is also asked now and then, and more often once it has moved.
//!
//! Viewers who draw the pointer get what the follower tells as it is; for players that cannot,
//! [`Baked`] is a source that has it in the picture.

mod baked;
mod server;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use spaceport_types::{Bounds, CursorImage, CursorPosition, Error, Kind, Result, Target};

use crate::capture::{self, x11};
use crate::clock;
use crate::wake::{EventFd, timespec};

pub(crate) use baked::Baked;
use server::Server;

/// Between two looks at a pointer that moves: about sixty a second, as often as screens show it.
const MOVING: Duration = Duration::from_millis(16);

/// Between two looks at a pointer of which nobody says that it moves, but which did a moment ago.
const RESTLESS: Duration = Duration::from_millis(33);

/// The same when it has been still for [`SETTLED`]. What moves it without a device is a program, and
/// those look before they move it again.
const STILL: Duration = Duration::from_millis(100);

/// How long a pointer has to be still before it is looked at less often.
const SETTLED: Duration = Duration::from_secs(1);

/// What is new of a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It looks like this. Comes before the position that shows it.
    Image(Arc<CursorImage>),
    /// It is here.
    Position(CursorPosition),
}

/// Follows the pointer over one target. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Follower {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: EventFd,
    wanted: Mutex<Wanted>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// Where the target is; `None` while it is not shown.
    place: Option<Bounds>,
    ended: bool,
}

impl Follower {
    /// Starts to tell about the pointer of an X display. Nothing is over the target before
    /// [`Follower::place`] says where that is.
    ///
    /// # Errors
    ///
    /// `io` when this process has no thread or descriptor left. A display that has no pointer to
    /// tell of has nothing to tell; that it is gone, its pictures say.
    pub(crate) fn start(
        display: Option<String>,
        mut tell: impl FnMut(News) + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared { wake: EventFd::new()?, wanted: Mutex::default() });
        let seen = Arc::clone(&shared);
        let span = tracing::Span::current();
        let run = move || {
            let _entered = span.entered();
            if let Err(error) = follow(&seen, display.as_deref(), &mut tell) {
                tracing::info!(%error, "the pointer is not followed");
                tell(News::Position(CursorPosition::default()));
            }
        };
        let thread = std::thread::Builder::new().name("pointer".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Says where the target is now, `None` when it is not shown.
    pub(crate) fn place(&self, place: Option<Bounds>) {
        let mut wanted = self.shared.wanted();
        if wanted.place != place {
            wanted.place = place;
            self.shared.wake.call();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.wanted().ended = true;
        self.shared.wake.call();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that follows the pointer panicked");
        }
    }
}

impl Shared {
    /// A panic elsewhere leaves two plain values behind; going on is right.
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The X display whose pointer is over a target, as clients name it; `None` inside is `DISPLAY`.
/// There is none over a generated picture.
///
/// # Errors
///
/// As [`x11::resolve`].
pub(crate) fn display_of(
    target: &Target,
    config: &capture::Config,
) -> Result<Option<Option<String>>> {
    match target {
        Target::Display { display_id } => x11::resolve(config.display.as_deref(), display_id)
            .map(|place| Some(Some(place.screen))),
        Target::Window { .. } => Ok(Some(config.display.clone())),
        _ => Ok(None),
    }
}

/// Tells of the pointer until that is no longer wanted, or no longer possible.
fn follow(shared: &Shared, display: Option<&str>, tell: &mut impl FnMut(News)) -> Result<()> {
    let mut server = Server::open(display)?;
    let mut known = Known::default();
    let mut looked_at = None;
    let mut moved_at = clock::now();
    let mut place = None;
    loop {
        let wanted = *shared.wanted();
        if wanted.ended {
            return Ok(());
        }
        let now = clock::now();
        let happened = server.read()?;
        if happened.changed {
            match server.image()? {
                Some(image) => {
                    known.hidden = false;
                    tell(News::Image(Arc::new(image)));
                }
                None => known.hidden = true,
            }
        }
        let pause = match server.reports_motion() && now >= moved_at + SETTLED {
            true => STILL,
            false => RESTLESS,
        };
        let due = looked_at.is_none_or(|at| now >= at + pause);
        if happened.moved || due {
            looked_at = Some(now);
            let at = server.position()?;
            if at != known.at {
                known.at = at;
                moved_at = now;
            }
        }
        if happened.changed || happened.moved || due || wanted.place != place {
            place = wanted.place;
            if let Some(position) = known.news(place) {
                tell(News::Position(position));
            }
        }
        // A device may report a thousand times a second: for a moment it is not listened to.
        let busy = happened.moved;
        let until = looked_at.unwrap_or(now) + if busy { MOVING } else { pause };
        wait(shared, (!busy).then_some(&server), until.saturating_sub(clock::now()))?;
    }
}

/// Waits until it is time, or until there is news from here or from the server.
fn wait(shared: &Shared, server: Option<&Server>, time: Duration) -> Result<()> {
    let time = timespec(time);
    let news = PollFd::new(&shared.wake, PollFlags::IN);
    let polled = match server {
        Some(server) => {
            let events = PollFd::from_borrowed_fd(server.fd(), PollFlags::IN);
            poll(&mut [news, events], Some(&time))
        }
        None => poll(&mut [news], Some(&time)),
    };
    match polled {
        Ok(_) | Err(Errno::INTR) => shared.wake.empty(),
        Err(error) => {
            let message = format!("waiting for the pointer failed: {error}");
            return Err(Error::new(Kind::Internal, message).source(error));
        }
    }
    Ok(())
}

/// What is known of the pointer, and what of it was told.
#[derive(Debug, Default)]
struct Known {
    /// On the desktop; `None` when it is on another screen.
    at: Option<(i32, i32)>,
    /// Its image is empty.
    hidden: bool,
    told: Option<CursorPosition>,
}

impl Known {
    /// Its position over a target, when that is not what was told last.
    fn news(&mut self, place: Option<Bounds>) -> Option<CursorPosition> {
        let over = self.at.zip(place).filter(|_| !self.hidden).and_then(|((x, y), place)| {
            let inside = (place.x..place.right()).contains(&x);
            let inside = inside && (place.y..place.bottom()).contains(&y);
            inside.then(|| CursorPosition { visible: true, x: x - place.x, y: y - place.y })
        });
        // One that is elsewhere is nowhere: its moves are no news.
        let position = over.unwrap_or_default();
        (self.told.replace(position) != Some(position)).then_some(position)
    }
}
