//! Sources of pictures.

pub mod counter;
mod map;
pub mod pattern;
pub mod x11;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use spaceport_types::{Bounds, Error, Kind, Result, Suspension, Target};

use crate::Frame;
use crate::windows::Windows;

/// Something that can be watched: a display, a window, a generated pattern.
///
/// The pipeline waits on [`Source::wake_fd`] (or until [`Source::next_due`]), asks
/// [`Source::has_damage`], and only when viewers can take a frame calls [`Source::grab`]. Until
/// then damage gathers in the source, so the next picture is always the newest.
pub trait Source: Send {
    /// Where on the desktop what it shows lies now. A change starts a new geometry epoch; a change
    /// of size also a new encoder.
    fn bounds(&self) -> Bounds;

    /// Becomes readable when something may have changed; `None` for a source that runs by time.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// For a source that runs by time: when, on the media clock, its next picture is due.
    fn next_due(&self) -> Option<Duration> {
        None
    }

    /// Whether the target has nothing to show now, though it may again.
    fn hidden(&self) -> Option<Hidden> {
        None
    }

    /// The target's title, once after every change.
    fn new_title(&mut self) -> Option<String> {
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
    /// The frame can be of another size than [`Source::bounds`] said before the call: the target
    /// changed size while it was read.
    ///
    /// # Errors
    ///
    /// As [`Source::has_damage`].
    fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>>;
}

/// A target that has nothing to show for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// Why.
    pub reason: Suspension,
    /// A grab still gives the picture that was last seen.
    pub held: bool,
}

/// Where pictures come from on this machine.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// The X display of this Space, such as `:0`. Unset: `DISPLAY`.
    pub display: Option<String>,
    /// The framebuffer file of that display's server, where we started it with `-fbdir`.
    pub framebuffer: Option<PathBuf>,
    /// The windows of that display; without them no window can be captured.
    pub windows: Option<Windows>,
    /// What the test pattern looks like.
    pub pattern: pattern::Config,
}

/// Opens what `target` names. `max_fps` is how often a source that has to poll does so.
///
/// # Errors
///
/// `not_found` for a display or window that is not this Space's, `precondition_failed` for another
/// epoch of a window than the current one, `host_capability_missing` for one that
/// cannot be read at all, `stream` with cause `capture_failed` for one that cannot be read now.
pub fn open(target: &Target, config: &Config, max_fps: u32) -> Result<Box<dyn Source>> {
    match target {
        Target::Display { display_id } => {
            let place = x11::resolve(config.display.as_deref(), display_id)?;
            let options = x11::Options {
                part: place.part,
                framebuffer: config.framebuffer.clone(),
                poll_interval: Duration::from_secs(1) / max_fps.max(1),
                ..x11::Options::default()
            };
            Ok(Box::new(x11::Desktop::open(Some(&place.screen), &options)?))
        }
        Target::Window { handle, epoch } => {
            let Some(windows) = &config.windows else {
                let message = format!("{target} cannot be captured: this Space has no windows");
                return Err(
                    Error::new(Kind::CapabilityMissing, message).hint("Stream the whole display")
                );
            };
            let native = windows.native(handle, *epoch)?;
            let options = x11::Options::default();
            let display = config.display.as_deref();
            Ok(Box::new(x11::Toplevel::open(display, handle, native, &options)?))
        }
        Target::TestPattern => Ok(Box::new(pattern::TestPattern::new(config.pattern))),
        other => Err(Error::new(Kind::CapabilityMissing, format!("{other} cannot be captured"))),
    }
}
