//! Sources of pictures.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use spaceport_types::{Rect, Result};

use crate::Frame;

/// Something that can be watched: a display, a window, a generated pattern.
///
/// The pipeline waits on [`Source::wake_fd`] (or until [`Source::next_due`]), asks
/// [`Source::has_damage`], and only when viewers can take a frame calls [`Source::grab`]. Until
/// then damage gathers in the source, so the next picture is always the newest.
pub trait Source: Send {
    /// What the target shows now, in desktop pixels. A change starts a new geometry epoch.
    fn bounds(&self) -> Rect;

    /// Becomes readable when something may have changed; `None` for a source that runs by time.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// For a source that runs by time: when, on the media clock, its next picture is due.
    fn next_due(&self) -> Option<Duration> {
        None
    }

    /// Reads pending events without blocking and says whether a grab would bring a change.
    ///
    /// # Errors
    ///
    /// `stream` with cause `capture_failed` when the X server is gone, `target_gone` when only
    /// the target is.
    fn has_damage(&mut self, now: Duration) -> Result<bool>;

    /// Reads what changed since the last grab and returns the whole picture. `full` marks all of
    /// it as damaged, whatever happened, for a viewer that starts from nothing.
    ///
    /// # Errors
    ///
    /// As [`Source::has_damage`].
    fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>>;
}
