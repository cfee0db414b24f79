//! Whether a screen is switched off.
//!
//! Its saver switches it off, or power saving does; a server that saves power has its saver on, too
//! (`DPMSSet` in X.Org's), so one extension tells of both, by events. What is drawn meanwhile is
//! drawn all the same, and where there is no monitor at all, as in a virtual machine, somebody may
//! well be working with it: a screen that is off is still read.

use x11rb::errors::ReplyError;
use x11rb::protocol::Event;
use x11rb::protocol::screensaver::{self, ConnectionExt as _, State};
use x11rb::protocol::xproto::Window;

use super::{X11, has};

/// Asks to be told when a screen is switched on or off, and says whether it is off now. Without
/// MIT-SCREEN-SAVER nobody knows, and it counts as on.
pub(super) fn follow(conn: &X11, root: Window) -> Result<bool, ReplyError> {
    if !has(conn, screensaver::X11_EXTENSION_NAME)? {
        return Ok(false);
    }
    conn.screensaver_query_version(1, 1)?.reply()?;
    // Events first, so that no change falls between them and the answer.
    drop(conn.screensaver_select_input(root, screensaver::Event::NOTIFY_MASK)?);
    Ok(is_off(conn.screensaver_query_info(root)?.reply()?.state.into()))
}

/// What an event says: off, on, or nothing about it.
pub(super) fn news(event: &Event, root: Window) -> Option<bool> {
    match event {
        Event::ScreensaverNotify(event) if event.root == root => Some(is_off(event.state)),
        _ => None,
    }
}

fn is_off(state: State) -> bool {
    state == State::ON || state == State::CYCLE
}
