//! What this Space can show.

pub use spaceport_media::capture::x11::Role;
use spaceport_media::capture::{self, x11};
use spaceport_types::{Error, Kind, Rect, Result, Target};

/// The id by which clients ask for the generated test pattern.
pub const TEST_PATTERN: &str = "test-pattern";

/// The id that stands for whatever display comes first.
const PRIMARY: &str = "primary";

/// The id that stands for all displays together.
const DESKTOP: &str = "desktop";

/// A display a client can open.
#[derive(Clone, Debug, PartialEq)]
pub struct Display {
    /// Its id on the wire.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// Whether `primary` means this one.
    pub primary: bool,
    /// Whether it is one of the displays, all of them together, or another name of one.
    pub role: Role,
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
    /// Every display, the primary first.
    ///
    /// # Errors
    ///
    /// As [`Targets::all`].
    pub(crate) fn displays(&self) -> Result<Vec<Display>> {
        let mut displays = self.all()?;
        displays.retain(|display| display.role == Role::Display);
        Ok(displays)
    }

    /// Everything that can be opened as a display, the displays themselves first, the primary one
    /// before all. Blocks for some round trips to the X server.
    ///
    /// # Errors
    ///
    /// `stream` with cause `capture_failed` when there is no X server and nothing else to show.
    pub(crate) fn all(&self) -> Result<Vec<Display>> {
        let mut displays = match x11::displays(self.capture.display.as_deref()) {
            Ok(found) => found
                .into_iter()
                .map(|display| Display {
                    target: Target::Display { display_id: display.id.clone() },
                    id: display.id,
                    name: display.name,
                    primary: display.primary,
                    role: display.role,
                    bounds: display.bounds,
                    refresh_hz: display.refresh_hz,
                })
                .collect(),
            Err(_) if self.test_pattern => Vec::new(),
            Err(error) => return Err(error),
        };
        if self.test_pattern {
            let place = displays.iter().take_while(|it| it.role == Role::Display).count();
            let pattern = Display {
                id: TEST_PATTERN.to_owned(),
                name: "Test pattern".to_owned(),
                primary: displays.is_empty(),
                role: Role::Display,
                bounds: self.capture.pattern.size.bounds(),
                refresh_hz: f64::from(self.capture.pattern.fps),
                target: Target::TestPattern,
            };
            displays.insert(place, pattern);
        }
        Ok(displays)
    }

    /// The display a client means; no id, an empty one and `primary` are the primary display,
    /// `desktop` is all of them together.
    ///
    /// # Errors
    ///
    /// `not_found` for an id that is none of them; otherwise as [`Targets::displays`].
    pub(crate) fn find(&self, id: Option<&str>) -> Result<Display> {
        let displays = self.all()?;
        let known = displays.iter().filter(|display| display.role != Role::Alias);
        let known = known.map(|display| display.id.as_str()).collect::<Vec<_>>();
        let primary = || displays.iter().find(|display| display.primary);
        let found = match id {
            None | Some("" | PRIMARY) => primary(),
            // The screen with the primary display comes first. A single display is all there is.
            Some(DESKTOP) => {
                displays.iter().find(|display| display.role == Role::Desktop).or_else(primary)
            }
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
