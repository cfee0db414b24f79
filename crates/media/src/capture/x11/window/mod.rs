//! One window of an X11 display, with the popups that belong to it.
//!
//! The server draws a redirected window (COMPOSITE) into memory of its own, whole, whatever covers
//! it and wherever it lies. From there it is put together with its popups, which are windows next
//! to it, not in it: on a canvas as large as all of them, in the place and order they have on the
//! screen. What changed is added up over all of them on the server, so that a grab is one pipelined
//! round trip here, too.
//!
//! What is shown is the window as its app made it: without the frame a window manager put around
//! it, without a border, and without transparency, for which there is nothing behind. Popups keep
//! their border, and are see-through where the desktop shows them so. The canvas reaches beyond the
//! window only while a popup does; where it then shows neither, it is black.

mod layer;
mod popups;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use spaceport_types::{Bounds, Cause, Error, Kind, Rect, Result, Size, Suspension};
use x11rb::connection::Connection;
use x11rb::errors::{ConnectionError, ReplyError};
use x11rb::protocol::composite::{self, ConnectionExt as _};
use x11rb::protocol::damage::{self, ConnectionExt as _};
use x11rb::protocol::render::{self, ConnectionExt as _, PictType, Pictformat, Picture};
use x11rb::protocol::xfixes::{self, ConnectionExt as _, Region};
use x11rb::protocol::xproto::{
    Atom, ChangeWindowAttributesAux, ConnectionExt as _, CreateGCAux, EventMask, Gcontext,
    MapState, Pixmap, Rectangle, Window,
};
use x11rb::protocol::{ErrorKind, Event};

use super::pixels::Reader;
use super::rows::Rows;
use super::verify::Verify;
use super::{MAX_RECTS, Options, X11, connect, generate_id, has, lost, rect, root_size};
use crate::capture::{Hidden, Source};
use crate::windows::native::{self, AskedTitle, Atoms, ICONIC, unless_gone};
use crate::{Frame, clock};
use layer::Layer;

/// One window, as a [`Source`].
#[derive(Debug)]
pub(crate) struct Toplevel {
    conn: X11,
    /// The display's id, and what the target calls the window, for messages.
    id: String,
    handle: String,
    options: Options,
    root: Window,
    screen: Size,
    atoms: Atoms,
    /// Owned by the compositing manager, where one runs.
    compositing: Atom,
    render: Option<Formats>,
    pid: Option<u32>,
    /// What the window is in, up to the root window.
    ancestors: Vec<Window>,
    main: Layer,
    /// Bottom first.
    popups: Vec<Layer>,
    canvas: Canvas,
    title: String,
    new_title: bool,
    /// Why there is nothing to show now.
    hidden: Option<Suspension>,
    /// The canvas holds a picture.
    pictured: bool,
    stale: Stale,
    /// Popups that were mapped since they were last looked at.
    stale_pixmaps: Vec<Window>,
    /// The window was moved since the last grab.
    moved: bool,
    verify: Verify,
    /// The next grab looks for changes that the server did not report.
    look_again: bool,
    changed: bool,
    everything: bool,
    rects: Vec<Rect>,
}

/// What is put together, and where on the desktop it lies.
#[derive(Debug)]
struct Canvas {
    bounds: Bounds,
    depth: u8,
    reader: Reader,
    /// What the layers are drawn on: the reader's own memory where it can be drawn on.
    pixmap: Pixmap,
    gc: Gcontext,
    /// The pixmap is not the reader's.
    owned: bool,
    picture: Option<Picture>,
    /// What changed, in coordinates of the canvas.
    changes: Region,
}

/// RENDER's words for the two kinds of pixels that windows have.
#[derive(Clone, Copy, Debug)]
struct Formats {
    opaque: Pictformat,
    alpha: Pictformat,
}

/// What events say is to be asked again.
#[derive(Clone, Copy, Debug, Default)]
struct Stale {
    place: bool,
    /// The window was mapped: what it is drawn into is new.
    remapped: bool,
    popups: bool,
    title: bool,
    gone: bool,
}

impl Toplevel {
    /// Opens a window by the server's id for it.
    ///
    /// # Errors
    ///
    /// `stream` with cause `capture_failed` when the server does not answer, `target_gone` when
    /// the window is gone, `host_capability_missing` when this server or this window cannot be
    /// captured.
    pub(crate) fn open(
        display: Option<&str>,
        handle: &str,
        window: Window,
        options: &Options,
    ) -> Result<Self> {
        let (conn, screen, id) = connect(display)?;
        for extension in
            [composite::X11_EXTENSION_NAME, damage::X11_EXTENSION_NAME, xfixes::X11_EXTENSION_NAME]
        {
            if !has(&conn, extension).map_err(|error| lost(&id, error))? {
                let message = format!("the X display `{id}` has no {extension}");
                return Err(Error::new(Kind::HostCapabilityMissing, message)
                    .with("extension", extension)
                    .hint("Start the X server with it, or stream the whole display"));
            }
        }
        let root = conn.setup().roots[screen].root;
        let options = Options { framebuffer: None, ..options.clone() };
        let set_up = SetUp { conn, screen, root, id: id.clone(), handle, window, options };
        set_up.finish().map_err(|error| failed(&id, handle, error))
    }

    /// Reads events, and asks about everything they touched.
    fn catch_up(&mut self) -> Result<(), Failure> {
        loop {
            while let Some(event) = self.conn.poll_for_event()? {
                self.note(event);
            }
            let stale = std::mem::take(&mut self.stale);
            if stale.gone {
                return Err(Failure::Gone);
            }
            if stale.title {
                let title = AskedTitle::of(&self.conn, &self.atoms, self.main.window)?;
                let title = title.title(&self.atoms)?;
                self.new_title |= title != self.title;
                self.title = title;
            }
            if stale.place || stale.popups || stale.remapped {
                self.refresh(stale)?;
            } else if !stale.title {
                return Ok(());
            }
        }
    }

    fn note(&mut self, event: Event) {
        let main = self.main.window;
        let ours = |window| window == main || self.ancestors.contains(&window);
        match event {
            Event::DamageNotify(event) => {
                let mut layers = std::iter::once(&self.main).chain(&self.popups);
                if let Some(layer) = layers.find(|layer| layer.damage == event.damage) {
                    self.changed |= layer.still_to_grab(event.sequence);
                }
            }
            Event::ConfigureNotify(event) if event.window == self.root => {
                self.screen = Size::new(event.width.into(), event.height.into());
                self.stale.popups = true;
            }
            Event::ConfigureNotify(event) => {
                self.stale.place |= ours(event.window);
                self.stale.popups |= event.event == self.root && event.override_redirect;
            }
            Event::GravityNotify(event) => self.stale.place |= ours(event.window),
            Event::MapNotify(event) => {
                self.stale.remapped |= ours(event.window);
                if self.is_popup(event.window) {
                    self.stale_pixmaps.push(event.window);
                }
                self.stale.popups |= event.event == self.root && event.override_redirect;
            }
            Event::UnmapNotify(event) => {
                self.stale.place |= ours(event.window);
                self.stale.popups |= self.is_popup(event.window);
            }
            Event::ReparentNotify(event) => {
                self.stale.place |= ours(event.window);
                self.stale.popups |= self.is_popup(event.window);
            }
            Event::CirculateNotify(event) => self.stale.popups |= self.is_popup(event.window),
            Event::DestroyNotify(event) => {
                self.stale.gone |= event.window == main;
                self.stale.popups |= self.is_popup(event.window);
            }
            Event::PropertyNotify(event) if event.window == main => {
                let name = u32::from(x11rb::protocol::xproto::AtomEnum::WM_NAME);
                self.stale.title |= event.atom == self.atoms._NET_WM_NAME || event.atom == name;
                let states = [self.atoms.WM_STATE, self.atoms._NET_WM_STATE];
                self.stale.place |= self.hidden.is_some() && states.contains(&event.atom);
            }
            // Requests that need no answer report their errors here: a popup that went away while
            // it was looked at. Its own events say so, too.
            Event::Error(error) => {
                tracing::debug!(display = self.id, window = self.handle, ?error, "X11 error");
            }
            _ => {}
        }
    }

    fn is_popup(&self, window: Window) -> bool {
        self.popups.iter().any(|popup| popup.window == window)
    }

    /// Takes over where the window and its popups are now.
    fn refresh(&mut self, stale: Stale) -> Result<(), Failure> {
        let (conn, window) = (&self.conn, self.main.window);
        let attributes = conn.get_window_attributes(window)?;
        let geometry = conn.get_geometry(window)?;
        let origin = conn.translate_coordinates(window, self.root, 0, 0)?;
        let tree = conn.query_tree(window)?;
        let attributes = unless_gone(attributes.reply())?.ok_or(Failure::Gone)?;
        let geometry = unless_gone(geometry.reply())?.ok_or(Failure::Gone)?;
        let origin = unless_gone(origin.reply())?.ok_or(Failure::Gone)?;
        let parent = unless_gone(tree.reply())?.ok_or(Failure::Gone)?.parent;

        if self.ancestors.first().copied().unwrap_or(self.root) != parent {
            self.ancestors = follow_ancestors(&self.conn, self.root, parent)?;
        }
        let size = Size::new(geometry.width.into(), geometry.height.into());
        if u64::from(size.width) * u64::from(size.height) > MAX_PIXELS {
            return Err(Failure::TooLarge(size));
        }
        let was = (self.main.bounds, self.hidden.is_some());
        let place = Bounds::new(origin.dst_x.into(), origin.dst_y.into(), size.width, size.height);
        let mut shown = attributes.map_state == MapState::VIEWABLE;
        if shown {
            let renamed = stale.remapped || was.0.size() != size || self.main.pixmap == x11rb::NONE;
            self.main.bounds = place;
            self.main.border = geometry.border_width;
            self.moved |= !renamed && was.0 != place;
            if renamed {
                shown = self.main.name_pixmap(&self.conn)?;
                self.everything = true;
            }
        }
        if !shown {
            // What was drawn last stays on the canvas, popups and all.
            self.hidden = Some(self.why_hidden()?);
            return Ok(());
        }
        self.hidden = None;
        if was.1 || stale.popups {
            self.refresh_popups()?;
        }
        self.lay_out()
    }

    /// Why a window that exists is not shown.
    fn why_hidden(&self) -> Result<Suspension, ReplyError> {
        let state = native::ask(&self.conn, self.main.window, self.atoms.WM_STATE)?;
        let states = native::ask(&self.conn, self.main.window, self.atoms._NET_WM_STATE)?;
        let state = unless_gone(native::number(state))?.flatten();
        let states = unless_gone(native::numbers(states))?.unwrap_or_default();
        let iconic = state == Some(ICONIC) || states.contains(&self.atoms._NET_WM_STATE_HIDDEN);
        Ok(if iconic { Suspension::Minimized } else { Suspension::WindowUnavailable })
    }

    /// Makes the canvas hold the window and its popups.
    fn lay_out(&mut self) -> Result<(), Failure> {
        let screen = Bounds::from(self.screen);
        let reach = self.popups.iter().filter_map(|popup| popup.bounds.intersection(screen));
        let bounds = reach.fold(self.main.bounds, Bounds::union);
        let before = std::mem::replace(&mut self.canvas.bounds, bounds);
        let see_through = self.popups.iter().any(Layer::needs_picture);
        if before.size() != bounds.size() {
            self.canvas.close(&self.conn)?;
            let depth = self.canvas.depth;
            self.canvas =
                Canvas::open(&self.conn, self.root, depth, bounds, &self.options, &self.id)?;
            self.pictured = false;
        }
        if let Some(formats) = self.render.filter(|_| see_through) {
            self.canvas.open_picture(&self.conn, formats)?;
        }
        let offsets = self.layers().map(|layer| layer.offset(bounds)).collect::<Vec<_>>();
        if !self.layers().map(|layer| layer.drawn_at).eq(offsets.iter().copied().map(Some)) {
            self.everything = true;
        }
        self.changed |= self.everything;
        Ok(())
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        std::iter::once(&self.main).chain(&self.popups)
    }

    /// Draws what changed on the canvas, and says which rectangles that was.
    fn read(&mut self) -> Result<(), ReplyError> {
        let Self { conn, canvas, main, popups, .. } = self;
        let size = canvas.bounds.size();
        // The server takes a window that moves for one that is drawn anew. The rows of what is
        // there already tell what really was; that costs less than encoding it all.
        let moved = std::mem::take(&mut self.moved) | self.look_again;
        let compared = moved && self.pictured && !self.everything;
        let all = self.everything || self.look_again;
        let rows = compared.then(|| {
            let (pixels, stride) = canvas.reader.pixels();
            Rows::of(pixels, stride, size)
        });
        let whole = Rectangle { x: 0, y: 0, width: size.width as u16, height: size.height as u16 };
        let from_the_start = if all { &[whole][..] } else { &[] };
        conn.xfixes_set_region(canvas.changes, from_the_start)?;
        for layer in std::iter::once(&mut *main).chain(&mut *popups) {
            layer.take_damage(conn, canvas)?;
        }
        let clip = if all { x11rb::NONE } else { canvas.changes };
        conn.xfixes_set_gc_clip_region(canvas.gc, clip, 0, 0)?;
        if let Some(picture) = canvas.picture {
            conn.xfixes_set_picture_clip_region(picture, clip, 0, 0)?;
        }
        if canvas.bounds != main.bounds {
            conn.poly_fill_rectangle(canvas.pixmap, canvas.gc, &[whole])?;
        }
        for layer in std::iter::once(main).chain(popups) {
            layer.draw(conn, canvas)?;
        }
        let changes = conn.xfixes_fetch_region(canvas.changes)?.reply()?;
        self.rects.clear();
        if self.everything {
            self.rects.push(size.bounds());
        } else if changes.rectangles.len() > MAX_RECTS {
            self.rects.extend(rect(changes.extents).clamped(size));
        } else {
            let rects = changes.rectangles.into_iter().map(rect);
            self.rects.extend(rects.filter_map(|rect| rect.clamped(size)));
        }
        canvas.reader.read(conn, canvas.pixmap, &self.rects)?;
        if let Some(mut rows) = rows {
            let (pixels, stride) = canvas.reader.pixels();
            rows.compare(pixels, stride, size.width);
            self.rects.clear();
            rows.take_changed(size.width, &mut self.rects);
        }
        self.everything = false;
        self.changed = false;
        self.pictured = true;
        Ok(())
    }

    fn failed(&self, failure: Failure) -> Error {
        failed(&self.id, &self.handle, failure)
    }
}

impl Source for Toplevel {
    fn bounds(&self) -> Bounds {
        self.canvas.bounds
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.conn.stream().as_fd())
    }

    fn hidden(&self) -> Option<Hidden> {
        self.hidden.map(|reason| Hidden { reason, held: self.pictured })
    }

    fn next_due(&self) -> Option<Duration> {
        self.verify.due().filter(|_| self.hidden.is_none())
    }

    fn new_title(&mut self) -> Option<String> {
        std::mem::take(&mut self.new_title).then(|| self.title.clone())
    }

    fn has_damage(&mut self, now: Duration) -> Result<bool> {
        self.catch_up().map_err(|failure| self.failed(failure))?;
        self.look_again |= self.verify.is_due(now);
        Ok((self.changed || self.look_again) && self.hidden.is_none())
    }

    fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>> {
        if self.hidden.is_none() {
            self.everything |= full;
            let began = clock::now();
            self.read().map_err(|error| self.failed(error.into()))?;
            if std::mem::take(&mut self.look_again) {
                self.verify.looked(now, clock::now().saturating_sub(began));
            }
            if !self.rects.is_empty() {
                self.verify.changed(now);
            }
        } else {
            self.rects.clear();
            if full {
                self.rects.push(self.canvas.bounds.size().bounds());
            }
        }
        let (pixels, stride) = self.canvas.reader.pixels();
        let size = self.canvas.bounds.size();
        Ok(Frame { pixels, stride, size, damage: &self.rects, captured_at: now })
    }
}

/// What opening a window takes.
struct SetUp<'a> {
    conn: X11,
    screen: usize,
    root: Window,
    id: String,
    handle: &'a str,
    window: Window,
    options: Options,
}

impl SetUp<'_> {
    fn finish(self) -> Result<Toplevel, Failure> {
        let Self { conn, screen, root, id, handle, window, options } = self;
        conn.composite_query_version(0, 4)?.reply()?;
        conn.damage_query_version(1, 1)?.reply()?;
        conn.xfixes_query_version(5, 0)?.reply()?;
        let atoms = Atoms::new(&conn)?.reply()?;
        let manager = format!("_NET_WM_CM_S{screen}");
        let compositing = conn.intern_atom(false, manager.as_bytes())?.reply()?.atom;
        let render = Formats::ask(&conn)?;

        // Events first, so that no change falls between them and the questions.
        let mask = EventMask::SUBSTRUCTURE_NOTIFY | EventMask::STRUCTURE_NOTIFY;
        select(&conn, root, mask)?;
        let mask = EventMask::STRUCTURE_NOTIFY | EventMask::PROPERTY_CHANGE;
        select(&conn, window, mask)?;
        let geometry = conn.get_geometry(window)?;
        let pid = native::ask(&conn, window, atoms._NET_WM_PID)?;
        let title = AskedTitle::of(&conn, &atoms, window)?;
        let geometry = unless_gone(geometry.reply())?.ok_or(Failure::Gone)?;
        let pid = unless_gone(native::number(pid))?.flatten();
        let title = unless_gone(title.title(&atoms))?.ok_or(Failure::Gone)?;
        let depth = geometry.depth;
        if geometry.root != root || !matches!(depth, 24 | 32) {
            return Err(Failure::Depth(depth));
        }
        let main = Layer::open(&conn, window, depth)?.ok_or(Failure::Gone)?;
        let bounds = Bounds::new(0, 0, geometry.width.into(), geometry.height.into());
        if u64::from(bounds.width) * u64::from(bounds.height) > MAX_PIXELS {
            return Err(Failure::TooLarge(bounds.size()));
        }
        let mut toplevel = Toplevel {
            canvas: Canvas::open(&conn, root, depth, bounds, &options, &id)?,
            screen: root_size(&conn, root)?,
            conn,
            id,
            handle: handle.to_owned(),
            options,
            root,
            atoms,
            compositing,
            render,
            pid,
            ancestors: Vec::new(),
            main,
            popups: Vec::new(),
            title,
            new_title: false,
            hidden: None,
            pictured: false,
            stale: Stale { place: true, popups: true, ..Stale::default() },
            stale_pixmaps: Vec::new(),
            moved: false,
            verify: Verify::default(),
            look_again: false,
            changed: true,
            everything: true,
            rects: Vec::new(),
        };
        toplevel.catch_up()?;
        tracing::debug!(
            display = toplevel.id,
            window = handle,
            method = toplevel.canvas.reader.method().name(),
            bounds = ?toplevel.canvas.bounds,
            "window opened"
        );
        Ok(toplevel)
    }
}

impl Canvas {
    fn open(
        conn: &X11,
        root: Window,
        depth: u8,
        bounds: Bounds,
        options: &Options,
        id: &str,
    ) -> Result<Self, Failure> {
        let size = bounds.size();
        let reader = Reader::choose(conn, root, depth, size.bounds(), options, id)
            .map_err(Failure::Other)?;
        let (pixmap, gc, owned) = match reader.canvas() {
            Some((pixmap, gc)) => (pixmap, gc, false),
            None => {
                let (pixmap, gc) = (generate_id(conn)?, generate_id(conn)?);
                let (width, height) = (size.width as u16, size.height as u16);
                conn.create_pixmap(depth, pixmap, root, width, height)?;
                conn.create_gc(gc, pixmap, &CreateGCAux::new().graphics_exposures(0))?;
                (pixmap, gc, true)
            }
        };
        let changes = generate_id(conn)?;
        conn.xfixes_create_region(changes, &[])?;
        Ok(Self { bounds, depth, reader, pixmap, gc, owned, picture: None, changes })
    }

    fn close(&self, conn: &X11) -> Result<(), ConnectionError> {
        conn.xfixes_destroy_region(self.changes)?;
        if let Some(picture) = self.picture {
            conn.render_free_picture(picture)?;
        }
        if self.owned {
            conn.free_gc(self.gc)?;
            conn.free_pixmap(self.pixmap)?;
        }
        self.reader.close(conn)
    }

    /// Lets RENDER draw on it.
    fn open_picture(&mut self, conn: &X11, formats: Formats) -> Result<(), ConnectionError> {
        if self.picture.is_none() {
            let picture = generate_id(conn)?;
            let format = formats.of(self.depth);
            conn.render_create_picture(picture, self.pixmap, format, &Default::default())?;
            self.picture = Some(picture);
        }
        Ok(())
    }
}

impl Formats {
    fn ask(conn: &X11) -> Result<Option<Self>, ReplyError> {
        if !has(conn, render::X11_EXTENSION_NAME)? {
            return Ok(None);
        }
        conn.render_query_version(0, 11)?.reply()?;
        let formats = conn.render_query_pict_formats()?.reply()?.formats;
        let find = |depth, alpha_mask| {
            let found = formats.iter().find(|format| {
                let direct = &format.direct;
                let shifts = (direct.red_shift, direct.green_shift, direct.blue_shift);
                format.type_ == PictType::DIRECT
                    && format.depth == depth
                    && direct.alpha_mask == alpha_mask
                    && shifts == (16, 8, 0)
            });
            found.map(|format| format.id)
        };
        let (opaque, alpha) = (find(24, 0), find(32, 0xff));
        Ok(opaque.zip(alpha).map(|(opaque, alpha)| Self { opaque, alpha }))
    }

    const fn of(self, depth: u8) -> Pictformat {
        if depth == 32 { self.alpha } else { self.opaque }
    }
}

/// Asks for events of a window, in addition to what others asked for.
fn select(conn: &X11, window: Window, mask: EventMask) -> Result<(), ConnectionError> {
    let events = ChangeWindowAttributesAux::new().event_mask(mask);
    drop(conn.change_window_attributes(window, &events)?);
    Ok(())
}

/// Everything between a window and the root window, and from now on its events.
fn follow_ancestors(conn: &X11, root: Window, parent: Window) -> Result<Vec<Window>, ReplyError> {
    let mut ancestors = Vec::new();
    let mut next = parent;
    while next != root && next != x11rb::NONE && ancestors.len() < MAX_ANCESTORS {
        ancestors.push(next);
        select(conn, next, EventMask::STRUCTURE_NOTIFY)?;
        let tree = unless_gone(conn.query_tree(next)?.reply())?;
        next = tree.map_or(x11rb::NONE, |tree| tree.parent);
    }
    Ok(ancestors)
}

/// Why a window cannot be read.
#[derive(Debug)]
enum Failure {
    /// The window is gone.
    Gone,
    /// The server is, or refuses what no server refuses.
    Server(ReplyError),
    Depth(u8),
    TooLarge(Size),
    Other(Error),
}

impl From<ReplyError> for Failure {
    fn from(error: ReplyError) -> Self {
        Self::Server(error)
    }
}

impl From<ConnectionError> for Failure {
    fn from(error: ConnectionError) -> Self {
        Self::Server(error.into())
    }
}

fn failed(id: &str, handle: &str, failure: Failure) -> Error {
    let error = match failure {
        // A question about the window that crossed with its end.
        Failure::Server(ReplyError::X11Error(error))
            if matches!(error.error_kind, ErrorKind::Window | ErrorKind::Drawable) =>
        {
            gone(handle).source(ReplyError::X11Error(error))
        }
        Failure::Gone => gone(handle),
        Failure::Server(error) => return lost(id, error),
        Failure::Depth(depth) => {
            let message = format!("window `{handle}` has {depth} bits a pixel");
            Error::new(Kind::HostCapabilityMissing, message)
                .with("depth", depth)
                .hint("Stream the whole display")
        }
        Failure::TooLarge(size) => {
            let message =
                format!("window `{handle}` has {} times {} pixels", size.width, size.height);
            Error::because(Cause::CaptureFailed, message)
                .with("max_pixels", MAX_PIXELS)
                .hint("Make it smaller")
        }
        Failure::Other(error) => return error,
    };
    error.with("window", handle)
}

fn gone(handle: &str) -> Error {
    Error::because(Cause::TargetGone, format!("window `{handle}` was closed"))
        .hint("List the windows to see what there is")
}

/// The largest window that is captured: 256 MiB of pixels. None that a person works in has so many.
const MAX_PIXELS: u64 = 8192 * 8192;

/// Windows in windows; a window manager uses one or two.
const MAX_ANCESTORS: usize = 16;
