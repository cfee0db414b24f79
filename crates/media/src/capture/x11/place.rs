//! What the ids of displays mean.
//!
//! `:0.1` is a whole X screen, and `:0.1/HDMI-1` what one monitor shows of it: the monitor's name,
//! and so the id, is the same whenever that output is connected. Which of them there are, and which
//! of them `primary` is, only the server knows.

use spaceport_types::{Error, Kind, Result};
use x11rb::reexports::x11rb_protocol::parse_display::{ParsedDisplay, parse_display};

/// A part of an X server that can be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The screen, as clients of the X server name it: `:0.1`.
    pub screen: String,
    /// What of it.
    pub part: Part,
}

/// What of an X screen is watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it, whatever monitors show of it.
    #[default]
    Whole,
    /// What the primary monitor shows, where there are several; otherwise all of it.
    Primary,
    /// What one monitor shows, by the monitor's name.
    Monitor(String),
}

/// What `id` means in this Space: `primary` or nothing, `desktop` for the whole screen, or an id that
/// [`super::displays`] gave.
///
/// A display of any other server is refused: a viewer may not have us connect to wherever it likes.
///
/// # Errors
///
/// `not_found` for a display that is not this Space's, `host_capability_missing` when this Space
/// has none.
pub fn resolve(configured: Option<&str>, id: &str) -> Result<Place> {
    let own = parse(configured)?;
    let own_screen = |part| Place { screen: id_of(&own, own.screen), part };
    match id {
        "" | "primary" => return Ok(own_screen(Part::Primary)),
        "desktop" => return Ok(own_screen(Part::Whole)),
        _ => {}
    }
    if let Ok(asked) = parse_display(Some(id))
        && (&asked.host, asked.display) == (&own.host, own.display)
    {
        return Ok(Place { screen: id_of(&own, asked.screen), part: Part::Whole });
    }
    monitor_of(&own, id).ok_or_else(|| {
        Error::new(Kind::NotFound, format!("this Space has no display `{id}`"))
            .with("display_id", id)
            .hint("Ask for `primary`, or list the displays to see their ids")
    })
}

/// Takes apart the id of a monitor. Both the server and the monitor may have a `/` in their names.
fn monitor_of(own: &ParsedDisplay, id: &str) -> Option<Place> {
    let (screen, monitor) = id.strip_prefix(&server_of(own))?.split_once('/')?;
    let screen = match screen {
        "" => 0,
        screen => screen.strip_prefix('.')?.parse().ok()?,
    };
    let monitor = Some(monitor).filter(|monitor| !monitor.is_empty())?;
    Some(Place { screen: id_of(own, screen), part: Part::Monitor(monitor.to_owned()) })
}

/// The id of what one monitor shows of a screen.
pub(crate) fn monitor_id(screen: &str, monitor: &str) -> String {
    format!("{screen}/{monitor}")
}

/// Understands the name of an X display; `None` is the one in `DISPLAY`.
pub(super) fn parse(display: Option<&str>) -> Result<ParsedDisplay> {
    let invalid = || {
        let message = match display {
            Some(display) => format!("`{display}` is not the name of an X display"),
            None => "no X display is set".to_owned(),
        };
        Error::new(Kind::HostCapabilityMissing, message).hint(NO_DISPLAY)
    };
    let parsed = parse_display(display).map_err(|error| invalid().source(error))?;
    // Display n is TCP port 6000 + n, which x11rb adds up without looking.
    if parsed.display > u16::MAX - 6000 { Err(invalid()) } else { Ok(parsed) }
}

/// The id of a whole screen.
pub(super) fn id_of(display: &ParsedDisplay, screen: u16) -> String {
    format!("{}.{screen}", server_of(display))
}

fn server_of(display: &ParsedDisplay) -> String {
    // A path names a socket; the screen follows it directly.
    match display.host.starts_with('/') {
        true => display.host.clone(),
        false => format!("{}:{}", display.host, display.display),
    }
}

pub(super) const NO_DISPLAY: &str = "Set `DISPLAY` to a running X server that this user may use, or start `spaceport serve --demo`, \
     which brings a desktop of its own";

#[cfg(test)]
mod tests {
    use super::*;

    fn place(screen: &str, part: Part) -> Place {
        Place { screen: screen.to_owned(), part }
    }

    #[test]
    fn an_id_is_a_screen_or_a_monitor_of_this_space() {
        let monitor = |name: &str| Part::Monitor(name.to_owned());
        for (id, expected) in [
            ("", place(":7.0", Part::Primary)),
            ("primary", place(":7.0", Part::Primary)),
            ("desktop", place(":7.0", Part::Whole)),
            (":7", place(":7.0", Part::Whole)),
            (":7.1", place(":7.1", Part::Whole)),
            (":7.0/HDMI-1", place(":7.0", monitor("HDMI-1"))),
            (":7/HDMI-1", place(":7.0", monitor("HDMI-1"))),
            (":7.1/a / b.2:9", place(":7.1", monitor("a / b.2:9"))),
        ] {
            assert_eq!(resolve(Some(":7"), id).unwrap(), expected, "{id}");
        }
        let id = monitor_id(":7.0", "DP-2");
        assert_eq!(resolve(Some(":7.0"), &id).unwrap(), place(":7.0", monitor("DP-2")));
    }

    #[test]
    fn only_displays_of_this_space_are_opened() {
        for id in [
            ":8",
            ":8/HDMI-1",
            ":77/HDMI-1",
            ":7.x/HDMI-1",
            ":7.0/",
            ":7.99999/HDMI-1",
            "elsewhere:7",
            "elsewhere:7.0/HDMI-1",
            "/tmp/.X11-unix/X7",
            "HDMI-1",
            "nonsense",
            ":7.x",
        ] {
            assert_eq!(resolve(Some(":7"), id).unwrap_err().kind(), Kind::NotFound, "{id}");
        }
        for display in ["what", ":60000", ":-1", ""] {
            let error = resolve(Some(display), "primary").unwrap_err();
            assert_eq!(error.kind(), Kind::HostCapabilityMissing, "{display}");
        }
    }
}
