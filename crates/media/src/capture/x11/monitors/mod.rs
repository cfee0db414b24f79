//! The monitors that show parts of an X screen.

#[cfg(test)]
mod tests;

use spaceport_types::{Bounds, Rect, Size};
use x11rb::connection::RequestConnection;
use x11rb::errors::{ConnectionError, ReplyError};
use x11rb::protocol::Event;
use x11rb::protocol::randr::{self, ConnectionExt as _, NotifyMask};
use x11rb::protocol::xproto::{ConnectionExt as _, Window};

use super::X11;

/// Monitors of one screen that are looked at; more are on nobody's desk.
const MAX_MONITORS: usize = 64;

/// A rectangle of a screen that is shown somewhere, or that somebody has set apart as if it were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Monitor {
    /// Its output's name, or what it was called by whoever set it apart. No two of a screen have
    /// the same.
    pub(crate) name: String,
    pub(crate) area: Rect,
    primary: bool,
    outputs: Vec<randr::Output>,
}

/// The monitors of a screen of `size`, the primary one first, the others from left to right. None
/// where the server does not tell of monitors, which is before RandR 1.5.
pub(crate) fn monitors(conn: &X11, root: Window, size: Size) -> Result<Vec<Monitor>, ReplyError> {
    if conn.extension_information(randr::X11_EXTENSION_NAME)?.is_none() {
        return Ok(Vec::new());
    }
    let version = conn.randr_query_version(1, 5)?.reply()?;
    if (version.major_version, version.minor_version) < (1, 5) {
        return Ok(Vec::new());
    }
    let mut found = conn.randr_get_monitors(root, true)?.reply()?.monitors;
    found.truncate(MAX_MONITORS);
    let mut names = Vec::with_capacity(found.len());
    for monitor in &found {
        names.push(conn.get_atom_name(monitor.name)?);
    }
    let mut monitors = Vec::with_capacity(found.len());
    for (monitor, name) in found.into_iter().zip(names) {
        let name = String::from_utf8_lossy(&name.reply()?.name).into_owned();
        let (x, y) = (monitor.x.into(), monitor.y.into());
        let bounds = Bounds::new(x, y, monitor.width.into(), monitor.height.into());
        // Whoever sets monitors apart may do so anywhere.
        let Some(shown) = bounds.intersection(size.into()) else { continue };
        let (x, y) = (shown.x.unsigned_abs(), shown.y.unsigned_abs());
        let area = Rect::new(x, y, shown.width, shown.height);
        monitors.push(Monitor { name, area, primary: monitor.primary, outputs: monitor.outputs });
    }
    // Where none is the primary one, the first is as good as any; which is first must not depend on
    // the order in which they were plugged in.
    monitors.sort_by_key(|it| (!it.primary, it.area.x, it.area.y, it.name.clone()));
    Ok(monitors)
}

/// Asks to be told when monitors come, go or change. [`is_change`] knows what is told then.
pub(crate) fn follow(conn: &X11, root: Window) -> Result<(), ReplyError> {
    if conn.extension_information(randr::X11_EXTENSION_NAME)?.is_none() {
        return Ok(());
    }
    conn.randr_query_version(1, 5)?.reply()?;
    let mask = NotifyMask::SCREEN_CHANGE | NotifyMask::CRTC_CHANGE | NotifyMask::OUTPUT_CHANGE;
    drop(conn.randr_select_input(root, mask)?);
    Ok(())
}

/// Whether an event says that a screen or its monitors are others now. A monitor that somebody sets
/// apart makes the server tell of the root window only.
pub(crate) fn is_change(event: &Event, root: Window) -> bool {
    match event {
        Event::RandrScreenChangeNotify(_) | Event::RandrNotify(_) => true,
        Event::ConfigureNotify(event) => event.window == root,
        _ => false,
    }
}

/// How often what is on the screen is shown in a second, by monitor; 60 where nobody knows.
pub(super) fn rates(
    conn: &X11,
    root: Window,
    monitors: &[Monitor],
) -> Result<Vec<f64>, ReplyError> {
    if monitors.is_empty() {
        return Ok(Vec::new());
    }
    let resources = conn.randr_get_screen_resources_current(root)?.reply()?;
    let rate_of = |output: randr::Output| -> Result<f64, ConnectionError> {
        let now = resources.config_timestamp;
        // An output may be unplugged at any time.
        let Ok(output) = conn.randr_get_output_info(output, now)?.reply() else { return Ok(0.0) };
        if output.crtc == x11rb::NONE {
            return Ok(0.0);
        }
        let Ok(crtc) = conn.randr_get_crtc_info(output.crtc, now)?.reply() else { return Ok(0.0) };
        let mode = resources.modes.iter().find(|mode| mode.id == crtc.mode);
        Ok(mode.map_or(0.0, |mode| {
            let pixels = f64::from(mode.htotal) * f64::from(mode.vtotal);
            if pixels > 0.0 { f64::from(mode.dot_clock) / pixels } else { 0.0 }
        }))
    };
    let mut rates = Vec::with_capacity(monitors.len());
    for monitor in monitors {
        let mut fastest = 0.0_f64;
        for &output in &monitor.outputs {
            fastest = fastest.max(rate_of(output)?);
        }
        // An invented mode, such as Xvfb's, has a rate of next to nothing.
        rates.push(if fastest >= 1.0 { fastest } else { USUAL_RATE });
    }
    Ok(rates)
}

/// What a monitor has that does not say.
pub(super) const USUAL_RATE: f64 = 60.0;
