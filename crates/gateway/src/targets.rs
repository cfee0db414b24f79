//! What this Space can show.

use spaceport_media::capture::{self, x11};
use spaceport_types::{Error, Kind, Rect, Result, Target};

/// The id by which clients ask for the generated test pattern.
pub const TEST_PATTERN: &str = "test-pattern";

/// The id that stands for whatever display comes first.
const PRIMARY: &str = "primary";

/// A display a client can open.
#[derive(Clone, Debug, PartialEq)]
pub struct Display {
    /// Its id on the wire.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// Whether `primary` means this one.
    pub primary: bool,
    /// Where it is, in desktop pixels.
    pub bounds: Rect,
    /// Refreshes per second.
    pub refresh_hz: f64,
    /// What a stream of it shows.
    pub target: Target,
}

/// Finds displays. Asks the X server every time: it may have come, gone or been resized.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    pub(crate) capture: capture::Config,
    pub(crate) test_pattern: bool,
}

impl Targets {
    /// Every display, the primary first. Blocks for a round trip or two to the X server.
    ///
    /// # Errors
    ///
    /// `stream` with cause `capture_failed` when there is no X server and nothing else to show.
    pub(crate) fn displays(&self) -> Result<Vec<Display>> {
        let mut displays = match x11::displays(self.capture.display.as_deref()) {
            Ok(found) => found
                .into_iter()
                .map(|display| Display {
                    target: Target::Display { display_id: display.id.clone() },
                    id: display.id,
                    name: display.name,
                    primary: display.primary,
                    bounds: display.bounds,
                    refresh_hz: display.refresh_hz,
                })
                .collect(),
            Err(_) if self.test_pattern => Vec::new(),
            Err(error) => return Err(error),
        };
        if self.test_pattern {
            displays.push(Display {
                id: TEST_PATTERN.to_owned(),
                name: "Test pattern".to_owned(),
                primary: displays.is_empty(),
                bounds: self.capture.pattern.size.bounds(),
                refresh_hz: f64::from(self.capture.pattern.fps),
                target: Target::TestPattern,
            });
        }
        Ok(displays)
    }

    /// The display a client means; no id, an empty one and `primary` are the primary display.
    ///
    /// # Errors
    ///
    /// `not_found` for an id that is none of them; otherwise as [`Targets::displays`].
    pub(crate) fn find(&self, id: Option<&str>) -> Result<Display> {
        let displays = self.displays()?;
        let known = displays.iter().map(|display| display.id.as_str()).collect::<Vec<_>>();
        let found = match id {
            None | Some("" | PRIMARY) => displays.iter().find(|display| display.primary),
            Some(id) => displays.iter().find(|display| display.id == id),
        };
        found.cloned().ok_or_else(|| {
            let id = id.unwrap_or(PRIMARY);
            Error::new(Kind::NotFound, format!("there is no display `{id}`"))
                .with("display", id)
                .with("known", known.join(", "))
                .hint("Take an id from the list of displays, or `primary`")
        })
    }
}
