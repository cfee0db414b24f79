//! X11 displays: whole screens, and what single monitors show of them.
//!
//! The server is told to keep a region of what was drawn (DAMAGE) and to say only that the region
//! is no longer empty. A grab is one pipelined round trip: take the region, copy it from the root
//! window into memory we share with the server, and ask what it was; that last answer is also the
//! fence behind which the pixels are good. What is not grabbed stays in the server's region, so
//! nothing is queued here. How pixels travel when shared pixmaps are missing is [`Method`]; without
//! DAMAGE the whole picture is read by time and its rows are compared.
//!
//! A change that the server does not report is found all the same, if late (`verify`).
//!
//! The pointer is not in the picture: the X server draws it elsewhere.

mod blanking;
mod connection;
mod facts;
pub(crate) mod monitors;
mod pixels;
mod place;
mod rows;
#[cfg(test)]
pub(crate) mod tests;
mod verify;
mod window;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use spaceport_types::{Bounds, Cause, Error, Kind, Rect, Result, Size, Suspension};
use x11rb::connection::{Connection, SequenceNumber};
use x11rb::errors::{ConnectError, ConnectionError, ReplyError};
use x11rb::protocol::Event;
use x11rb::protocol::damage::{self, ConnectionExt as _, ReportLevel};
use x11rb::protocol::xfixes::{self, ConnectionExt as _};
use x11rb::protocol::xproto::{
    ChangeWindowAttributesAux, ConnectionExt as _, EventMask, ImageOrder, Screen, Window,
};

pub(crate) use connection::X11;
pub use facts::{DisplayInfo, Extension, Facts, Role, check, displays};
pub use pixels::Method;
pub(crate) use place::monitor_id;
pub use place::{Part, Place, resolve};
pub(crate) use window::Toplevel;

use super::{Hidden, Source};
use crate::{Frame, clock};
use connection::is_silence;
use pixels::Reader;
use place::{NO_DISPLAY, id_of, parse};
use rows::Rows;
use verify::Verify;

/// How a display is read; the defaults choose what is cheapest.
#[derive(Clone, Debug)]
pub struct Options {
    /// What of the screen is shown.
    pub part: Part,
    /// The server's framebuffer file, where we started it with `-fbdir`.
    pub framebuffer: Option<PathBuf>,
    /// Use this method or fail, to diagnose one.
    pub method: Option<Method>,
    /// Do not use DAMAGE even where it is there, to diagnose polling.
    pub without_damage: bool,
    /// How often the picture is compared where there is no DAMAGE.
    pub poll_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            part: Part::Whole,
            framebuffer: None,
            method: None,
            without_damage: false,
            poll_interval: Duration::from_secs(1) / 30,
        }
    }
}

/// A monitor that is gone for longer than this does not come back. Whoever changes its mode switches
/// it off in between.
const GRACE: Duration = Duration::from_secs(2);

/// An X screen, or what one monitor shows of it, as a [`Source`].
#[derive(Debug)]
pub struct Desktop {
    conn: X11,
    /// The display's id, for messages.
    id: String,
    options: Options,
    root: Window,
    depth: u8,
    /// The name of the monitor that is shown; without one it is the whole screen.
    monitor: Option<String>,
    /// What of the screen is shown.
    area: Rect,
    /// Since when the monitor has not been there.
    missing_since: Option<Duration>,
    /// The screen is switched off.
    off: bool,
    reader: Reader,
    changes: Changes,
    verify: Verify,
    /// The rows as they were when it was last looked for unreported changes, where the picture is
    /// not a copy that tells. Those of which a part was captured since are marked: whether all that
    /// changed in them was reported, nobody knows, and so they are sent once more.
    seen: Option<Rows>,
    /// What changed without having been reported.
    missed: Vec<Rect>,
    /// Something changed since the last grab.
    changed: bool,
    /// All of it did, as far as the next grab is concerned.
    everything: bool,
    /// What the last grab found.
    rects: Vec<Rect>,
}

/// How changes are found.
#[derive(Debug)]
enum Changes {
    /// The server collects them in its own `damage`; a grab takes them into `region`.
    Damage {
        damage: damage::Damage,
        region: xfixes::Region,
        /// The request that last emptied `damage`. What was reported before it has been grabbed.
        emptied: SequenceNumber,
    },
    /// By reading the picture every `poll_interval` and comparing the hashes of its rows.
    Compare { rows: Rows, due: Duration },
}

impl Desktop {
    /// Opens a display, such as `:0` or `:0.1`; `None` means `DISPLAY`.
    ///
    /// # Errors
    ///
    /// `stream` with cause `capture_failed` when the server does not answer, `not_found` when it has
    /// no such monitor, `host_capability_missing` when its pictures have another format than 32 bits
    /// a pixel.
    pub fn open(display: Option<&str>, options: &Options) -> Result<Self> {
        let (conn, screen, id) = connect(display)?;
        let screen = &conn.setup().roots[screen];
        check_format(&conn, screen, &id)?;
        let (root, depth) = (screen.root, screen.root_depth);
        let lost = |error| lost(&id, error);

        // Events are asked for first, so that no change falls between them and the questions.
        monitors::follow(&conn, root).map_err(lost)?;
        let events = ChangeWindowAttributesAux::new().event_mask(EventMask::STRUCTURE_NOTIFY);
        drop(conn.change_window_attributes(root, &events).map_err(|error| lost(error.into()))?);
        let off = blanking::follow(&conn, root).map_err(lost)?;
        let monitor = match &options.part {
            Part::Whole => None,
            Part::Primary => primary(&conn, root).map_err(lost)?,
            Part::Monitor(name) => Some(name.clone()),
        };
        let area = area_of(&conn, root, monitor.as_deref()).map_err(lost)?;
        let id = match &monitor {
            Some(name) => monitor_id(&id, name),
            None => id.clone(),
        };
        let area = area.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("there is no display `{id}` now"))
                .with("display", &id)
                .hint("List the displays to see which there are")
        })?;
        let changes = Changes::open(&conn, root, area.size(), options);
        let changes = changes.map_err(|error| self::lost(&id, error))?;
        let reader = Reader::choose(&conn, root, depth, area, options, &id)?;
        tracing::debug!(
            display = id,
            method = reader.method().name(),
            damage = matches!(changes, Changes::Damage { .. }),
            ?area,
            "display opened"
        );
        Ok(Self {
            conn,
            id,
            options: options.clone(),
            root,
            depth,
            monitor,
            area,
            missing_since: None,
            off,
            seen: seen(&reader, &changes),
            reader,
            changes,
            verify: Verify::default(),
            missed: Vec::new(),
            changed: true,
            everything: true,
            rects: Vec::new(),
        })
    }

    /// How pixels are read.
    pub fn method(&self) -> Method {
        self.reader.method()
    }

    /// Reads what changed into the reader's picture, and which rectangles that were into `rects`.
    fn read(&mut self) -> Result<(), ReplyError> {
        let (area, all) = (self.area, self.area.size().bounds());
        self.rects.clear();
        match &mut self.changes {
            Changes::Damage { damage, region, emptied } => {
                let clip = if self.everything { x11rb::NONE } else { *region };
                let subtract = self.conn.damage_subtract(*damage, x11rb::NONE, *region)?;
                *emptied = subtract.sequence_number();
                drop(subtract);
                self.reader.queue_copy(&self.conn, self.root, clip)?;
                let damaged = self.conn.xfixes_fetch_region(*region)?.reply()?;
                if self.everything {
                    self.rects.push(all);
                } else if damaged.rectangles.len() > MAX_RECTS {
                    self.rects.extend(rect(damaged.extents).within(area));
                } else {
                    let rects = damaged.rectangles.into_iter().map(rect);
                    self.rects.extend(rects.filter_map(|rect| rect.within(area)));
                }
                self.reader.read(&self.conn, self.root, &self.rects)?;
                if let Some(rows) = &mut self.seen {
                    let (pixels, stride) = self.reader.pixels();
                    rows.take_over(pixels, stride, area.width, &self.rects);
                }
                // These have been read when they were found.
                self.rects.extend(self.missed.drain(..).filter(|_| !self.everything));
            }
            Changes::Compare { rows, .. } => {
                if self.everything || !rows.any_changed() {
                    scan(&self.conn, self.root, &mut self.reader, rows, all)?;
                }
                rows.take_changed(all.width, &mut self.rects);
                if self.everything {
                    self.rects.clear();
                    self.rects.push(all);
                }
            }
        }
        self.everything = false;
        self.changed = false;
        Ok(())
    }

    /// Takes over what of the screen is to be shown now.
    fn refresh(&mut self, now: Duration) -> Result<()> {
        let area = area_of(&self.conn, self.root, self.monitor.as_deref());
        let Some(area) = area.map_err(|error| lost(&self.id, error))? else {
            if self.missing_since.is_none() {
                tracing::debug!(display = self.id, "monitor is gone");
                self.missing_since = Some(now);
            }
            return Ok(());
        };
        self.missing_since = None;
        self.everything = true;
        self.changed = true;
        if area == self.area {
            return Ok(());
        }
        tracing::debug!(display = self.id, from = ?self.area, to = ?area, "display changed");
        self.reader.close(&self.conn).map_err(|error| lost(&self.id, error.into()))?;
        self.reader =
            Reader::choose(&self.conn, self.root, self.depth, area, &self.options, &self.id)?;
        self.area = area;
        self.seen = seen(&self.reader, &self.changes);
        self.missed.clear();
        if let Changes::Compare { rows, .. } = &mut self.changes {
            *rows = Rows::new(area.size());
        }
        Ok(())
    }

    /// Compares all of the picture with what was captured.
    fn look_again(&mut self, now: Duration) -> Result<()> {
        let began = clock::now();
        let size = self.area.size();
        let mut rows = self.seen.take().unwrap_or_else(|| {
            let (pixels, stride) = self.reader.pixels();
            Rows::of(pixels, stride, size)
        });
        match scan(&self.conn, self.root, &mut self.reader, &mut rows, size.bounds()) {
            Ok(()) => rows.take_changed(size.width, &mut self.missed),
            Err(ReplyError::X11Error(_)) => self.refresh(now)?,
            Err(error) => return Err(lost(&self.id, error)),
        }
        if !self.missed.is_empty() {
            tracing::debug!(display = self.id, rects = ?self.missed, "changed unreported");
            self.changed = true;
        }
        if self.reader.method() == Method::Framebuffer {
            self.seen.get_or_insert(rows);
        }
        let took = clock::now().saturating_sub(began);
        tracing::trace!(display = self.id, ?took, "looked again");
        self.verify.looked(now, took);
        Ok(())
    }

    /// The monitor was taken away, and not only for a moment.
    fn gone(&self) -> Error {
        Error::because(Cause::TargetGone, format!("the display `{}` was taken away", self.id))
            .with("display", &self.id)
            .hint("List the displays to see which there are")
    }
}

impl Source for Desktop {
    fn bounds(&self) -> Bounds {
        self.area.into()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.conn.stream().as_fd())
    }

    fn next_due(&self) -> Option<Duration> {
        if let Some(since) = self.missing_since {
            return Some(since + GRACE);
        }
        match &self.changes {
            Changes::Damage { .. } => self.verify.due(),
            Changes::Compare { due, .. } => Some(*due),
        }
    }

    fn hidden(&self) -> Option<Hidden> {
        let off = self.off || self.missing_since.is_some();
        off.then_some(Hidden { reason: Suspension::DisplayBlanked, held: true })
    }

    fn has_damage(&mut self, now: Duration) -> Result<bool> {
        let mut stale = false;
        loop {
            match self.conn.poll_for_event() {
                Ok(Some(Event::DamageNotify(event))) => {
                    self.changed |= self.changes.still_to_grab(event.sequence);
                }
                // Requests that need no answer report their errors here. Whatever went wrong, the
                // next grab asks for answers and finds out.
                Ok(Some(Event::Error(error))) => {
                    tracing::debug!(display = self.id, ?error, "X11 error");
                }
                Ok(Some(event)) => {
                    stale |= monitors::is_change(&event, self.root);
                    if let Some(off) = blanking::news(&event, self.root) {
                        // Viewers are told that it is on again by a picture.
                        self.everything |= self.off && !off;
                        self.changed |= self.everything;
                        self.off = off;
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(lost(&self.id, error.into())),
            }
        }
        if stale {
            self.refresh(now)?;
        }
        if let Some(since) = self.missing_since {
            return if now < since + GRACE { Ok(false) } else { Err(self.gone()) };
        }
        if let Changes::Compare { rows, due } = &mut self.changes
            && now >= *due
        {
            *due = now + self.options.poll_interval;
            let all = self.area.size().bounds();
            match scan(&self.conn, self.root, &mut self.reader, rows, all) {
                Ok(()) => self.changed |= rows.any_changed(),
                Err(ReplyError::X11Error(_)) => self.refresh(now)?,
                Err(error) => return Err(lost(&self.id, error)),
            }
        }
        if matches!(self.changes, Changes::Damage { .. })
            && self.verify.is_due(now)
            && !self.everything
        {
            self.look_again(now)?;
        }
        Ok(self.changed)
    }

    fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>> {
        self.everything |= full;
        if self.missing_since.is_none() {
            match self.read() {
                Ok(()) => {}
                Err(ReplyError::X11Error(error)) => {
                    // The screen shrank after we last looked: a rectangle lies outside of it now.
                    tracing::debug!(display = self.id, ?error, "grab refused, trying once more");
                    self.refresh(now)?;
                    if self.missing_since.is_none() {
                        self.read().map_err(|error| lost(&self.id, error))?;
                    }
                }
                Err(error) => return Err(lost(&self.id, error)),
            }
        }
        let size = self.area.size();
        if self.missing_since.is_some() {
            // The picture that was there last.
            self.rects.clear();
            self.rects.extend(full.then_some(size.bounds()));
        }
        if !self.rects.is_empty() {
            self.verify.changed(now);
        }
        let (pixels, stride) = self.reader.pixels();
        Ok(Frame { pixels, stride, size, damage: &self.rects, captured_at: now })
    }
}

/// Room for the rows as they were seen, where the picture itself is not what was captured: it is the
/// server's own, and shows what was drawn since.
fn seen(reader: &Reader, changes: &Changes) -> Option<Rows> {
    let own = reader.method() == Method::Framebuffer && matches!(changes, Changes::Damage { .. });
    own.then(|| Rows::new(reader.size()))
}

/// The name of the primary monitor, where there are several.
fn primary(conn: &X11, root: Window) -> Result<Option<String>, ReplyError> {
    let mut found = monitors::monitors(conn, root, root_size(conn, root)?)?;
    Ok((found.len() > 1).then(|| found.swap_remove(0).name))
}

/// Where on the screen a monitor is now; without one, the whole screen.
fn area_of(conn: &X11, root: Window, monitor: Option<&str>) -> Result<Option<Rect>, ReplyError> {
    let size = root_size(conn, root)?;
    let Some(name) = monitor else { return Ok(Some(size.bounds())) };
    let found = monitors::monitors(conn, root, size)?;
    Ok(found.into_iter().find(|monitor| monitor.name == name).map(|monitor| monitor.area))
}

impl Changes {
    fn open(conn: &X11, root: Window, size: Size, options: &Options) -> Result<Self, ReplyError> {
        let usable = !options.without_damage
            && has(conn, damage::X11_EXTENSION_NAME)?
            && has(conn, xfixes::X11_EXTENSION_NAME)?;
        // Regions came with version 2 of XFIXES.
        if !usable || conn.xfixes_query_version(5, 0)?.reply()?.major_version < 2 {
            return Ok(Self::Compare { rows: Rows::new(size), due: Duration::ZERO });
        }
        conn.damage_query_version(1, 1)?.reply()?;
        let (damage, region) = (generate_id(conn)?, generate_id(conn)?);
        conn.damage_create(damage, root, ReportLevel::NON_EMPTY)?;
        conn.xfixes_create_region(region, &[])?;
        Ok(Self::Damage { damage, region, emptied: 0 })
    }

    /// Whether damage that was reported while the server worked on request number `sequence`
    /// (modulo 65,536) is still in its region.
    fn still_to_grab(&self, sequence: u16) -> bool {
        match self {
            Self::Damage { emptied, .. } => sequence.wrapping_sub(*emptied as u16) < 1 << 15,
            Self::Compare { .. } => false,
        }
    }
}

/// Reads the whole picture and compares its rows.
fn scan(
    conn: &X11,
    root: Window,
    reader: &mut Reader,
    rows: &mut Rows,
    all: Rect,
) -> Result<(), ReplyError> {
    reader.queue_copy(conn, root, x11rb::NONE)?;
    // A fence: requests are answered in order.
    conn.get_input_focus()?.reply()?;
    reader.read(conn, root, &[all])?;
    let (pixels, stride) = reader.pixels();
    rows.compare(pixels, stride, all.width);
    Ok(())
}

/// Connects, and says which screen is meant and what its id is.
pub(crate) fn connect(display: Option<&str>) -> Result<(X11, usize, String)> {
    let parsed = parse(display)?;
    let id = id_of(&parsed, parsed.screen);
    let (conn, screen) = connection::connect(&parsed).map_err(|error| match error {
        ConnectError::InvalidScreen => {
            Error::new(Kind::NotFound, format!("the X server has no screen `{id}`"))
                .hint("List the displays to see their ids")
        }
        error => {
            let hangs = matches!(&error, ConnectError::IoError(error) if is_silence(error));
            let message = format!("the X display `{id}` does not answer");
            Error::because(Cause::CaptureFailed, message)
                .with("display", &id)
                .hint(if hangs { HELD } else { NO_DISPLAY })
                .source(error)
        }
    })?;
    Ok((conn, screen, id))
}

/// Refuses pictures that are not four bytes a pixel in the order blue, green, red.
fn check_format(conn: &X11, screen: &Screen, id: &str) -> Result<()> {
    let setup = conn.setup();
    let depth = screen.root_depth;
    let bits = setup.pixmap_formats.iter().find(|format| format.depth == depth);
    let bits = bits.map_or(0, |format| format.bits_per_pixel);
    let visual = (screen.allowed_depths.iter().flat_map(|depth| &depth.visuals))
        .find(|visual| visual.visual_id == screen.root_visual);
    let masks = visual.map(|visual| (visual.red_mask, visual.green_mask, visual.blue_mask));
    let plain =
        setup.image_byte_order == ImageOrder::LSB_FIRST && masks == Some((0xff_0000, 0xff00, 0xff));
    if matches!(depth, 24 | 32) && bits == 32 && plain {
        return Ok(());
    }
    let message = format!("the X display `{id}` has depth {depth} at {bits} bits a pixel");
    Err(Error::new(Kind::HostCapabilityMissing, message)
        .with("depth", depth)
        .with("bits_per_pixel", bits)
        .hint("Start the X server with depth 24, for example `Xvfb :1 -screen 0 1920x1080x24`"))
}

pub(crate) fn root_size(conn: &X11, root: Window) -> Result<Size, ReplyError> {
    let geometry = conn.get_geometry(root)?.reply()?;
    Ok(Size::new(geometry.width.into(), geometry.height.into()))
}

pub(crate) fn has(conn: &X11, extension: &'static str) -> Result<bool, ReplyError> {
    use x11rb::connection::RequestConnection;
    Ok(conn.extension_information(extension)?.is_some())
}

pub(crate) fn generate_id(conn: &X11) -> Result<u32, ConnectionError> {
    use x11rb::errors::ReplyOrIdError;
    conn.generate_id().map_err(|error| match error {
        ReplyOrIdError::ConnectionError(error) => error,
        // A connection that made two billion resources.
        _ => ConnectionError::UnknownError,
    })
}

/// What to do about a server that went away.
const AGAIN: &str = "Start the desktop again; viewers see it once it is back";

/// What to do about a server that hangs.
const HELD: &str =
    "It is stopped, or a program holds it for itself; viewers see it once it answers";

/// What a failed request means: nearly always, that the server is gone.
pub(crate) fn lost(id: &str, error: ReplyError) -> Error {
    let (message, hint) = match &error {
        ReplyError::X11Error(error) => {
            let kind = &error.error_kind;
            (format!("the X display `{id}` refused a request ({kind:?})"), AGAIN)
        }
        ReplyError::ConnectionError(ConnectionError::IoError(error)) if is_silence(error) => {
            (format!("the X display `{id}` does not answer"), HELD)
        }
        ReplyError::ConnectionError(_) => (format!("the X display `{id}` went away"), AGAIN),
    };
    Error::because(Cause::CaptureFailed, message).with("display", id).hint(hint).source(error)
}

/// Negative coordinates lie outside of the screen, where nothing is drawn.
fn rect(rect: x11rb::protocol::xproto::Rectangle) -> Rect {
    let (x, width) = from_origin(rect.x, rect.width);
    let (y, height) = from_origin(rect.y, rect.height);
    Rect::new(x, y, width, height)
}

/// The part of a span that is not negative.
fn from_origin(start: i16, length: u16) -> (u32, u32) {
    let (start, end) = (i32::from(start), i32::from(start) + i32::from(length));
    (start.max(0).unsigned_abs(), (end.max(0) - start.max(0)).unsigned_abs())
}

/// Beyond this many rectangles a grab takes the one around them all: converting a few more pixels
/// is cheaper than starting over for every line of text.
const MAX_RECTS: usize = 256;
