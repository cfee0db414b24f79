//! The windows of an X display: which there are, and how to change them.
//!
//! [`Windows`] is a handle; behind it one thread owns one connection to the X server, from the
//! first call on. The server tells it what changes, so a list costs one round trip (the fence after
//! which all that happened before is known), and a watcher costs nothing while nothing happens.
//!
//! Where a window manager runs, it is asked (EWMH), and its list of clients is the list of windows.
//! Where none does, the windows are the children of the root window that an app has shown, and
//! requests go straight to them. Names and numbers of X never leave: windows have handles of our
//! own, and no handle is ever used twice, not even after the X server was restarted.
//!
//! Calls wait for the X server and, bounded, for a window manager: keep them off an async runtime's
//! threads.

#[cfg(test)]
pub(crate) mod app;
mod desk;
pub(crate) mod native;
mod registry;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;

use spaceport_types::{Bounds, Error, Issue, Kind, Result};

pub use watch::{Change, Watch};

use registry::{Action, Registry};

/// One window as it was when the list was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Window {
    /// What a target calls it. Ours, not the window system's.
    pub handle: String,
    /// Tells apart what had the handle at different times.
    pub epoch: u64,
    /// Its title.
    pub title: String,
    /// The app's name, for people.
    pub app_name: String,
    /// The desktop's own id of the app: a desktop file, or the instance part of `WM_CLASS`.
    pub app_id: String,
    /// The app's process, where it says so and runs on this machine.
    pub pid: Option<u32>,
    /// Where its content lies, without the window manager's frame and without a border.
    pub bounds: Bounds,
    /// What was done with it.
    pub state: State,
    /// What it is for.
    pub kind: WindowKind,
    /// Whether it has the keyboard.
    pub focused: bool,
    /// Whether some part of it is shown inside the display, be it covered by others.
    pub on_screen: bool,
    /// How many windows are in front of it.
    pub z_order: u32,
    /// The display it is on, as [`crate::capture::x11::displays`] calls it.
    pub display_id: String,
}

/// What the window manager, or whoever plays its part, did with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Nothing.
    Normal,
    /// It is an icon, or less.
    Minimized,
    /// It fills the work area.
    Maximized,
    /// It fills the display.
    Fullscreen,
    /// It exists and is not shown: its app took it away, or it is on another workspace.
    Hidden,
}

/// What a window is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WindowKind {
    /// An app's window.
    Standard,
    /// Asks or tells something on behalf of another window.
    Dialog,
    /// Tools of another window.
    Panel,
    /// A menu, or the list of a combo box.
    Menu,
    /// Explains what the pointer is on, or tells of something.
    Tooltip,
    /// Belongs to the desktop itself: its background, a dock.
    System,
}

/// A new place or size; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// First column of the content.
    pub x: Option<i32>,
    /// First row of the content.
    pub y: Option<i32>,
    /// Columns of the content.
    pub width: Option<u32>,
    /// Rows of the content.
    pub height: Option<u32>,
}

/// The windows of one display. A handle: clones share everything.
#[derive(Clone, Debug)]
pub struct Windows {
    registry: Arc<Registry>,
}

impl Windows {
    /// The windows of an X display such as `:0`; `None` means `DISPLAY`. Nothing is opened before
    /// the first call.
    pub fn new(display: Option<&str>) -> Self {
        Self { registry: Arc::new(Registry::new(display)) }
    }

    /// The windows of apps, front to back.
    ///
    /// # Errors
    ///
    /// `stream` with cause `capture_failed` when the X server does not answer,
    /// `host_capability_missing` when there is none.
    pub fn list(&self) -> Result<Vec<Window>> {
        let mut windows = self.all()?;
        windows.retain(|window| window.kind != WindowKind::System);
        Ok(windows)
    }

    /// As [`Windows::list`], with those that belong to the desktop itself.
    ///
    /// # Errors
    ///
    /// As [`Windows::list`].
    pub fn all(&self) -> Result<Vec<Window>> {
        Ok(self.registry.look()?.to_vec())
    }

    /// One window as it is now. Epoch 0 means whichever has the handle now.
    ///
    /// # Errors
    ///
    /// `not_found` for a handle nothing has (any more), `precondition_failed` for another epoch
    /// than the current one, and as [`Windows::list`].
    pub fn get(&self, handle: &str, epoch: u64) -> Result<Window> {
        find(&self.registry.look()?, handle, epoch).cloned()
    }

    /// What changes, after a list of what there is.
    ///
    /// # Errors
    ///
    /// `io` when this process has no thread or descriptor left.
    pub fn watch(&self) -> Result<Watch> {
        Watch::new(Arc::clone(&self.registry))
    }

    /// Raises a window, restored if it was minimized, and gives it the keyboard.
    ///
    /// Like all that change a window, it waits up to a second for the effect and returns the
    /// window as it then is: a window manager may do less than it is asked.
    ///
    /// # Errors
    ///
    /// As [`Windows::get`].
    pub fn activate(&self, handle: &str, epoch: u64) -> Result<Window> {
        self.change(handle, epoch, Action::Activate)
    }

    /// Moves and resizes a window. One that is maximized or fullscreen no longer is.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a size or place that no X window can have, and as [`Windows::get`].
    pub fn set_bounds(&self, handle: &str, epoch: u64, to: Placement) -> Result<Window> {
        to.check()?;
        self.change(handle, epoch, Action::Place(to))
    }

    /// Takes a window off the screen, to come back with [`Windows::restore`].
    ///
    /// # Errors
    ///
    /// As [`Windows::get`].
    pub fn minimize(&self, handle: &str, epoch: u64) -> Result<Window> {
        self.change(handle, epoch, Action::Minimize)
    }

    /// Fills the work area with a window.
    ///
    /// # Errors
    ///
    /// As [`Windows::get`].
    pub fn maximize(&self, handle: &str, epoch: u64) -> Result<Window> {
        self.change(handle, epoch, Action::Maximize)
    }

    /// Undoes minimize, maximize and fullscreen.
    ///
    /// # Errors
    ///
    /// As [`Windows::get`].
    pub fn restore(&self, handle: &str, epoch: u64) -> Result<Window> {
        self.change(handle, epoch, Action::Restore)
    }

    /// Asks a window to close, or with `force` ends its app's connection to the X server, which
    /// takes all windows of that app. An app that cannot be asked is treated with force. `None`
    /// when the window is gone; it may be still there to ask whether to save.
    ///
    /// # Errors
    ///
    /// As [`Windows::get`].
    pub fn close(&self, handle: &str, epoch: u64, force: bool) -> Result<Option<Window>> {
        self.registry.change(handle, epoch, Action::Close { force })
    }

    /// Lets go of the X server, which is about to end. Nothing can be asked any more.
    pub fn end(&self) {
        self.registry.end();
    }

    /// The X server's id of a window, for whoever captures it.
    pub(crate) fn native(&self, handle: &str, epoch: u64) -> Result<u32> {
        self.registry.native(handle, epoch)
    }

    fn change(&self, handle: &str, epoch: u64, action: Action) -> Result<Window> {
        self.registry.change(handle, epoch, action)?.ok_or_else(|| unknown(handle))
    }
}

impl Placement {
    fn check(self) -> Result<()> {
        let mut issues = Vec::new();
        let mut side = |path: &str, side: Option<u32>| match side {
            Some(0) => issues.push((path.to_owned(), "minimum", "1".to_owned())),
            Some(side) if side > MAX_SIDE => {
                issues.push((path.to_owned(), "maximum", MAX_SIDE.to_string()));
            }
            _ => {}
        };
        side("width", self.width);
        side("height", self.height);
        for (path, place) in [("position.x", self.x), ("position.y", self.y)] {
            let Some(place) = place.filter(|&place| i16::try_from(place).is_err()) else {
                continue;
            };
            let (constraint, limit) =
                if place < 0 { ("minimum", i16::MIN) } else { ("maximum", i16::MAX) };
            issues.push((path.to_owned(), constraint, limit.to_string()));
        }
        if issues.is_empty() {
            return Ok(());
        }
        let error = Error::new(Kind::InvalidArgument, "no window can have these bounds");
        Err(issues.into_iter().fold(error, |error, (path, constraint, limit)| {
            error.issue(Issue { path, constraint: constraint.into(), limit: Some(limit) })
        }))
    }
}

/// The window that `handle` and `epoch` name.
fn find<'a>(windows: &'a [Window], handle: &str, epoch: u64) -> Result<&'a Window> {
    let window = windows.iter().find(|window| window.handle == handle);
    let window = window.ok_or_else(|| unknown(handle))?;
    if epoch == 0 || epoch == window.epoch {
        return Ok(window);
    }
    let message = format!("window `{handle}` is in epoch {}, not {epoch}", window.epoch);
    Err(Error::new(Kind::PreconditionFailed, message)
        .with("window", handle)
        .with("epoch", epoch)
        .with("current_epoch", window.epoch)
        .hint("List the windows again"))
}

fn unknown(handle: &str) -> Error {
    Error::new(Kind::NotFound, format!("this Space has no window `{handle}`"))
        .with("window", handle)
        .hint("List the windows to see their ids")
}

/// The longest side a window can have: what the server draws into it is placed by signed 16-bit
/// numbers.
const MAX_SIDE: u32 = i16::MAX as u32;
