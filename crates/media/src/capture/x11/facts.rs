//! What an X server offers, for lists of displays and for diagnosis.

use spaceport_types::{Rect, Result, Size};
use x11rb::connection::Connection;
use x11rb::protocol::{composite, damage, randr, shm, xfixes};

use super::monitors::{USUAL_RATE, monitors, rates};
use super::pixels::{Method, Reader};
use super::place::monitor_id;
use super::{Options, check_format, connect, has, id_of, lost, parse, root_size};

/// One display that can be watched: what a monitor shows, or a whole X screen.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DisplayInfo {
    /// What a target calls it, such as `:0.0` or `:0.0/HDMI-1`.
    pub id: String,
    /// For people.
    pub name: String,
    /// Whether it is the one that `primary` means.
    pub primary: bool,
    /// What it is to a list of displays.
    pub role: Role,
    /// Where it lies on the screen, in pixels.
    pub bounds: Rect,
    /// How often it is shown in a second; 60 where the server does not know.
    pub refresh_hz: f64,
}

/// What a display is to a list of displays. Two of a list show no pixel both, unless monitors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One of them: a monitor among several, or a screen with one monitor or none.
    Display,
    /// All of those of a screen together: a screen with several monitors.
    Desktop,
    /// Another name of one of them: the only monitor of a screen. What was opened by that name is
    /// found by it when other monitors come and go.
    Alias,
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

/// Lists the displays of one X server, those that a list is made of first, the primary one before
/// all; `None` means the server in `DISPLAY`.
///
/// # Errors
///
/// As [`super::Desktop::open`].
pub fn displays(display: Option<&str>) -> Result<Vec<DisplayInfo>> {
    let (conn, default, id) = connect(display)?;
    let parsed = parse(display)?;
    let mut displays = Vec::new();
    for (index, screen) in conn.setup().roots.iter().enumerate() {
        let lost = |error| lost(&id, error);
        let size = root_size(&conn, screen.root).map_err(lost)?;
        let monitors = monitors(&conn, screen.root, size).map_err(lost)?;
        let rates = rates(&conn, screen.root, &monitors).map_err(lost)?;
        let screen_id = id_of(&parsed, index as u16);
        let several = monitors.len() > 1;
        displays.push(DisplayInfo {
            name: match monitors.first() {
                Some(_) if several && index == default => "Whole desktop".to_owned(),
                Some(monitor) if !several => monitor.name.clone(),
                _ => format!("Screen {index}"),
            },
            primary: index == default && !several,
            role: if several { Role::Desktop } else { Role::Display },
            bounds: size.bounds(),
            refresh_hz: rates.iter().copied().reduce(f64::max).unwrap_or(USUAL_RATE),
            id: screen_id.clone(),
        });
        for ((number, monitor), refresh_hz) in monitors.into_iter().enumerate().zip(rates) {
            displays.push(DisplayInfo {
                id: monitor_id(&screen_id, &monitor.name),
                primary: index == default && several && number == 0,
                role: if several { Role::Display } else { Role::Alias },
                bounds: monitor.area,
                refresh_hz,
                name: monitor.name,
            });
        }
    }
    displays.sort_by_key(|display| (display.role != Role::Display, !display.primary));
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
        let (root, depth) = (screen.root, screen.root_depth);
        match Reader::open(&conn, root, depth, size.bounds(), candidate, framebuffer) {
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

const EXTENSIONS: [&str; 5] = [
    damage::X11_EXTENSION_NAME,
    xfixes::X11_EXTENSION_NAME,
    shm::X11_EXTENSION_NAME,
    randr::X11_EXTENSION_NAME,
    composite::X11_EXTENSION_NAME,
];
