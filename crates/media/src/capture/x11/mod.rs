//! X11 displays.
//!
//! The server is told to keep a region of what was drawn (DAMAGE) and to say only that the region
//! is no longer empty. A grab is one pipelined round trip: take the region, copy it from the root
//! window into memory we share with the server, and ask what it was; that last answer is also the
//! fence behind which the pixels are good. What is not grabbed stays in the server's region, so
//! nothing is queued here. How pixels travel when shared pixmaps are missing is [`Method`]; without
//! DAMAGE the whole picture is read by time and its rows are compared.
//!
//! The pointer is not in the picture: the X server draws it elsewhere.

mod facts;
mod pixels;
#[cfg(test)]
pub(crate) mod tests;
mod window;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use spaceport_types::{Bounds, Cause, Error, Kind, Rect, Result, Size};
use x11rb::connection::{Connection, SequenceNumber};
use x11rb::errors::{ConnectError, ConnectionError, ReplyError};
use x11rb::protocol::Event;
use x11rb::protocol::damage::{self, ConnectionExt as _, ReportLevel};
use x11rb::protocol::randr::{self, ConnectionExt as _, NotifyMask};
use x11rb::protocol::xfixes::{self, ConnectionExt as _};
use x11rb::protocol::xproto::{ConnectionExt as _, ImageOrder, Screen, Window};
use x11rb::reexports::x11rb_protocol::parse_display::{ParsedDisplay, parse_display};
use x11rb::rust_connection::RustConnection;

pub use facts::{DisplayInfo, Extension, Facts, check, displays};
pub use pixels::Method;
pub(crate) use window::Toplevel;

use super::Source;
use crate::Frame;
use pixels::Reader;

/// How a display is read; the defaults choose what is cheapest.
#[derive(Clone, Debug)]
pub struct Options {
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
            framebuffer: None,
            method: None,
            without_damage: false,
            poll_interval: Duration::from_secs(1) / 30,
        }
    }
}

/// A whole X screen, as a [`Source`].
#[derive(Debug)]
pub struct Desktop {
    conn: RustConnection,
    /// The display's id, for messages.
    id: String,
    options: Options,
    root: Window,
    depth: u8,
    size: Size,
    reader: Reader,
    changes: Changes,
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
    /// `stream` with cause `capture_failed` when the server does not answer,
    /// `host_capability_missing` when its pictures have another format than 32 bits a pixel.
    pub fn open(display: Option<&str>, options: &Options) -> Result<Self> {
        let (conn, screen, id) = connect(display)?;
        let screen = &conn.setup().roots[screen];
        check_format(&conn, screen, &id)?;
        let (root, depth) = (screen.root, screen.root_depth);
        let lost = |error| lost(&id, error);

        if has(&conn, randr::X11_EXTENSION_NAME).map_err(lost)? {
            conn.randr_query_version(1, 2).map_err(|error| lost(error.into()))?;
            conn.randr_select_input(root, NotifyMask::SCREEN_CHANGE)
                .map_err(|error| lost(error.into()))?;
        }
        // Asked for after the events, so that no change of size falls between the two.
        let size = root_size(&conn, root).map_err(lost)?;
        let changes = Changes::open(&conn, root, size, options).map_err(lost)?;
        let reader = Reader::choose(&conn, root, depth, size, options, &id)?;
        tracing::debug!(
            display = id,
            method = reader.method().name(),
            damage = matches!(changes, Changes::Damage { .. }),
            ?size,
            "display opened"
        );
        Ok(Self {
            conn,
            id,
            options: options.clone(),
            root,
            depth,
            size,
            reader,
            changes,
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
        let all = self.size.bounds();
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
                    self.rects.extend(rect(damaged.extents).clamped(self.size));
                } else {
                    let rects = damaged.rectangles.into_iter().map(rect);
                    self.rects.extend(rects.filter_map(|rect| rect.clamped(self.size)));
                }
                self.reader.read(&self.conn, self.root, &self.rects)?;
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

    /// Takes over the size the root window has now.
    fn refresh_size(&mut self) -> Result<()> {
        let size = root_size(&self.conn, self.root).map_err(|error| lost(&self.id, error))?;
        self.everything = true;
        self.changed = true;
        if size == self.size {
            return Ok(());
        }
        tracing::debug!(display = self.id, from = ?self.size, to = ?size, "display changed size");
        self.reader.close(&self.conn).map_err(|error| lost(&self.id, error.into()))?;
        self.reader =
            Reader::choose(&self.conn, self.root, self.depth, size, &self.options, &self.id)?;
        self.size = size;
        if let Changes::Compare { rows, .. } = &mut self.changes {
            *rows = Rows::new(size);
        }
        Ok(())
    }
}

impl Source for Desktop {
    fn bounds(&self) -> Bounds {
        self.size.into()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.conn.stream().as_fd())
    }

    fn next_due(&self) -> Option<Duration> {
        match &self.changes {
            Changes::Damage { .. } => None,
            Changes::Compare { due, .. } => Some(*due),
        }
    }

    fn has_damage(&mut self, now: Duration) -> Result<bool> {
        let mut resized = false;
        loop {
            match self.conn.poll_for_event() {
                Ok(Some(Event::DamageNotify(event))) => {
                    self.changed |= self.changes.still_to_grab(event.sequence);
                }
                Ok(Some(Event::RandrScreenChangeNotify(_))) => resized = true,
                // Requests that need no answer report their errors here. Whatever went wrong, the
                // next grab asks for answers and finds out.
                Ok(Some(Event::Error(error))) => {
                    tracing::debug!(display = self.id, ?error, "X11 error");
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return Err(lost(&self.id, error.into())),
            }
        }
        if resized {
            self.refresh_size()?;
        }
        if let Changes::Compare { rows, due } = &mut self.changes
            && now >= *due
        {
            *due = now + self.options.poll_interval;
            match scan(&self.conn, self.root, &mut self.reader, rows, self.size.bounds()) {
                Ok(()) => self.changed |= rows.any_changed(),
                Err(ReplyError::X11Error(_)) => self.refresh_size()?,
                Err(error) => return Err(lost(&self.id, error)),
            }
        }
        Ok(self.changed)
    }

    fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>> {
        self.everything |= full;
        match self.read() {
            Ok(()) => {}
            Err(ReplyError::X11Error(error)) => {
                // The screen shrank after we last looked: a rectangle lies outside of it now.
                tracing::debug!(display = self.id, ?error, "grab refused, trying once more");
                self.refresh_size()?;
                self.read().map_err(|error| lost(&self.id, error))?;
            }
            Err(error) => return Err(lost(&self.id, error)),
        }
        let (pixels, stride) = self.reader.pixels();
        Ok(Frame { pixels, stride, size: self.size, damage: &self.rects, captured_at: now })
    }
}

impl Changes {
    fn open(
        conn: &RustConnection,
        root: Window,
        size: Size,
        options: &Options,
    ) -> Result<Self, ReplyError> {
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

/// The hashes of a picture's rows, and which of them changed since they were last taken.
#[derive(Debug)]
struct Rows {
    hashes: Vec<u64>,
    changed: Vec<bool>,
}

impl Rows {
    fn new(size: Size) -> Self {
        let height = size.height as usize;
        Self { hashes: vec![0; height], changed: vec![false; height] }
    }

    /// The rows of a picture, none of them changed.
    fn of(pixels: &[u8], stride: usize, size: Size) -> Self {
        let mut rows = Self::new(size);
        rows.compare(pixels, stride, size.width);
        rows.changed.fill(false);
        rows
    }

    /// Compares the rows of `pixels`, of which the first `width` pixels count.
    fn compare(&mut self, pixels: &[u8], stride: usize, width: u32) {
        let rows = self.hashes.iter_mut().zip(&mut self.changed);
        for ((hash, changed), row) in rows.zip(pixels.chunks(stride)) {
            let new = hash_row(&row[..width as usize * 4]);
            *changed |= new != *hash;
            *hash = new;
        }
    }

    fn any_changed(&self) -> bool {
        self.changed.contains(&true)
    }

    /// Appends the changed rows, neighbours joined, and forgets them.
    fn take_changed(&mut self, width: u32, rects: &mut Vec<Rect>) {
        let mut y = 0;
        for run in self.changed.chunk_by(|a, b| a == b) {
            let height = run.len() as u32;
            if run[0] {
                rects.push(Rect::new(0, y, width, height));
            }
            y += height;
        }
        self.changed.fill(false);
    }
}

/// Multiplicative hashing, eight bytes at a time: it runs at the speed of memory, and nobody gains
/// by forging a collision with their own screen.
fn hash_row(row: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = row.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(MULTIPLIER);
    let hash = words.iter().fold(1, |hash, word| mix(hash, u64::from_ne_bytes(*word)));
    rest.iter().fold(hash, |hash, &byte| mix(hash, u64::from(byte)))
}

/// Reads the whole picture and compares its rows.
fn scan(
    conn: &RustConnection,
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

/// Which display of this Space `id` means: `primary`, or an id that [`displays`] gave.
///
/// A display of any other server is refused: a viewer may not have us connect to wherever it likes.
///
/// # Errors
///
/// `not_found` for a display that is not this Space's, `host_capability_missing` when this Space
/// has none.
pub fn resolve(configured: Option<&str>, id: &str) -> Result<String> {
    let own = parse(configured)?;
    if matches!(id, "" | "primary") {
        return Ok(id_of(&own, own.screen));
    }
    match parse_display(Some(id)) {
        Ok(asked) if (&asked.host, asked.display) == (&own.host, own.display) => {
            Ok(id_of(&own, asked.screen))
        }
        _ => Err(Error::new(Kind::NotFound, format!("this Space has no display `{id}`"))
            .with("display_id", id)
            .hint("Ask for `primary`, or list the displays to see their ids")),
    }
}

fn parse(display: Option<&str>) -> Result<ParsedDisplay> {
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

fn id_of(display: &ParsedDisplay, screen: u16) -> String {
    // A path names a socket; the screen follows it directly.
    match display.host.starts_with('/') {
        true => format!("{}.{screen}", display.host),
        false => format!("{}:{}.{screen}", display.host, display.display),
    }
}

/// Connects, and says which screen is meant and what its id is.
pub(crate) fn connect(display: Option<&str>) -> Result<(RustConnection, usize, String)> {
    let parsed = parse(display)?;
    let id = id_of(&parsed, parsed.screen);
    let (conn, screen) = RustConnection::connect(Some(&id)).map_err(|error| match error {
        ConnectError::InvalidScreen => {
            Error::new(Kind::NotFound, format!("the X server has no screen `{id}`"))
                .hint("List the displays to see their ids")
        }
        error => {
            let message = format!("the X display `{id}` does not answer");
            Error::because(Cause::CaptureFailed, message)
                .with("display", &id)
                .hint(NO_DISPLAY)
                .source(error)
        }
    })?;
    Ok((conn, screen, id))
}

/// Refuses pictures that are not four bytes a pixel in the order blue, green, red.
fn check_format(conn: &RustConnection, screen: &Screen, id: &str) -> Result<()> {
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

pub(crate) fn root_size(conn: &RustConnection, root: Window) -> Result<Size, ReplyError> {
    let geometry = conn.get_geometry(root)?.reply()?;
    Ok(Size::new(geometry.width.into(), geometry.height.into()))
}

pub(crate) fn has(conn: &RustConnection, extension: &'static str) -> Result<bool, ReplyError> {
    use x11rb::connection::RequestConnection;
    Ok(conn.extension_information(extension)?.is_some())
}

pub(crate) fn generate_id(conn: &RustConnection) -> Result<u32, ConnectionError> {
    use x11rb::errors::ReplyOrIdError;
    conn.generate_id().map_err(|error| match error {
        ReplyOrIdError::ConnectionError(error) => error,
        // A connection that made two billion resources.
        _ => ConnectionError::UnknownError,
    })
}

/// What a failed request means: nearly always, that the server is gone.
pub(crate) fn lost(id: &str, error: ReplyError) -> Error {
    let message = match &error {
        ReplyError::X11Error(error) => {
            format!("the X display `{id}` refused a request ({:?})", error.error_kind)
        }
        ReplyError::ConnectionError(_) => format!("the X display `{id}` went away"),
    };
    Error::because(Cause::CaptureFailed, message)
        .with("display", id)
        .hint("Start the desktop again; viewers see it once it is back")
        .source(error)
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

const NO_DISPLAY: &str = "Set `DISPLAY` to a running X server that this user may use, or start \
                          `spaceport serve --demo`, which brings a desktop of its own";

/// Beyond this many rectangles a grab takes the one around them all: converting a few more pixels
/// is cheaper than starting over for every line of text.
const MAX_RECTS: usize = 256;
