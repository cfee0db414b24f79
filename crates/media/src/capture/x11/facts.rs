//! What an X server offers, for lists of displays and for diagnosis.

use spaceport_types::{Rect, Result, Size};
use x11rb::connection::{Connection, RequestConnection};
use x11rb::errors::ReplyError;
use x11rb::protocol::randr::{self, ConnectionExt as _};
use x11rb::protocol::xproto::Window;
use x11rb::protocol::{composite, damage, shm, xfixes};
use x11rb::rust_connection::RustConnection;

use super::pixels::{Method, Reader};
use super::{Options, check_format, connect, has, id_of, lost, parse, root_size};

/// One display that can be watched. For now that is a whole X screen, whatever monitors show of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DisplayInfo {
    /// What a target calls it, such as `:0.0`.
    pub id: String,
    /// For people.
    pub name: String,
    /// Whether it is the one that `primary` means.
    pub primary: bool,
    /// Its size, in pixels.
    pub bounds: Rect,
    /// How often its monitor is refreshed; 60 where the server does not know.
    pub refresh_hz: f64,
}

/// One protocol extension, and its version where the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extension {
    /// As the protocol calls it.
    pub name: &'static str,
    /// Whether the server has it.
    pub present: bool,
}

/// What there is to know about an X server, for `spaceport doctor`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// The id of the display.
    pub display: String,
    /// Who made the server.
    pub vendor: String,
    /// The server's release number.
    pub release: u32,
    /// The screen's size.
    pub size: Size,
    /// The screen's depth.
    pub depth: u8,
    /// The extensions that capture can use.
    pub extensions: Vec<Extension>,
    /// How pixels would be read.
    pub method: Method,
    /// The cheaper methods that cannot be used, and why.
    pub unusable: Vec<(Method, String)>,
    /// Whether changes are reported by the server; if not, the picture is compared by time.
    pub damage: bool,
}

/// Lists the displays of one X server; `None` means the one in `DISPLAY`.
///
/// # Errors
///
/// As [`super::Desktop::open`].
pub fn displays(display: Option<&str>) -> Result<Vec<DisplayInfo>> {
    let (conn, primary, id) = connect(display)?;
    let parsed = parse(display)?;
    let mut displays = Vec::new();
    for (index, screen) in conn.setup().roots.iter().enumerate() {
        let lost = |error| lost(&id, error);
        let size = root_size(&conn, screen.root).map_err(lost)?;
        let monitor = monitor(&conn, screen.root).map_err(lost)?;
        let (name, refresh_hz) = monitor.unwrap_or_default();
        displays.push(DisplayInfo {
            id: id_of(&parsed, index as u16),
            name: if name.is_empty() { format!("Screen {index}") } else { name },
            primary: index == primary,
            bounds: size.bounds(),
            // An invented mode, such as Xvfb's, has a rate of next to nothing.
            refresh_hz: if refresh_hz >= 1.0 { refresh_hz } else { 60.0 },
        });
    }
    Ok(displays)
}

/// Looks at an X server, and tries how its pictures can be read.
///
/// # Errors
///
/// As [`super::Desktop::open`].
pub fn check(display: Option<&str>, options: &Options) -> Result<Facts> {
    let (conn, screen, id) = connect(display)?;
    let setup = conn.setup();
    let screen = &setup.roots[screen];
    check_format(&conn, screen, &id)?;
    let lost = |error| lost(&id, error);

    let mut extensions = Vec::new();
    for name in EXTENSIONS {
        extensions.push(Extension { name, present: has(&conn, name).map_err(lost)? });
    }
    let present = |name| extensions.iter().any(|it: &Extension| it.name == name && it.present);
    let damage = !options.without_damage
        && present(damage::X11_EXTENSION_NAME)
        && present(xfixes::X11_EXTENSION_NAME);
    let size = root_size(&conn, screen.root).map_err(lost)?;
    let mut unusable = Vec::new();
    let mut method = None;
    for candidate in Method::ALL {
        let framebuffer = options.framebuffer.as_deref();
        match Reader::open(&conn, screen.root, screen.root_depth, size, candidate, framebuffer) {
            Ok(_) => {
                method = Some(candidate);
                break;
            }
            Err(reason) => unusable.push((candidate, reason)),
        }
    }
    Ok(Facts {
        display: id,
        vendor: String::from_utf8_lossy(&setup.vendor).into_owned(),
        release: setup.release_number,
        size,
        depth: screen.root_depth,
        extensions,
        // The last method needs nothing but the core protocol.
        method: method.unwrap_or(Method::Image),
        unusable,
        damage,
    })
}

/// The name and the refresh rate of the first monitor that shows something, where the server knows.
fn monitor(conn: &RustConnection, root: Window) -> Result<Option<(String, f64)>, ReplyError> {
    if conn.extension_information(randr::X11_EXTENSION_NAME)?.is_none() {
        return Ok(None);
    }
    // Without this the server answers in terms of RandR 1.0.
    conn.randr_query_version(1, 3)?.reply()?;
    let resources = conn.randr_get_screen_resources_current(root)?.reply()?;
    for output in resources.outputs {
        let output = conn.randr_get_output_info(output, resources.config_timestamp)?.reply()?;
        if output.crtc == x11rb::NONE {
            continue;
        }
        let crtc = conn.randr_get_crtc_info(output.crtc, resources.config_timestamp)?.reply()?;
        let mode = resources.modes.iter().find(|mode| mode.id == crtc.mode);
        let rate = mode.map_or(0.0, |mode| {
            let pixels = f64::from(mode.htotal) * f64::from(mode.vtotal);
            if pixels > 0.0 { f64::from(mode.dot_clock) / pixels } else { 0.0 }
        });
        return Ok(Some((String::from_utf8_lossy(&output.name).into_owned(), rate)));
    }
    Ok(None)
}

const EXTENSIONS: [&str; 5] = [
    damage::X11_EXTENSION_NAME,
    xfixes::X11_EXTENSION_NAME,
    shm::X11_EXTENSION_NAME,
    randr::X11_EXTENSION_NAME,
    composite::X11_EXTENSION_NAME,
];
