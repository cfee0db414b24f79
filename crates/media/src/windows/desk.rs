//! One connection to an X server, and what it says about windows.
//!
//! Events only mark what to ask again; when they are all read, it is asked, in one pipelined round
//! trip. So a window that is dragged costs one question however many events its way makes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};

use spaceport_types::{Bounds, Error, Result, Size};
use x11rb::connection::Connection;
use x11rb::errors::{ConnectionError, ReplyError};
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    AtomEnum, ChangeWindowAttributesAux, ConfigureWindowAux, ConnectionExt as _, EventMask,
    InputFocus, MapState, StackMode, Window as Native, WindowClass,
};

use super::native::{self, AskedTitle, Atoms, ICONIC, NORMAL, request, unless_gone};
use super::registry::Action;
use super::{State, Window, WindowKind};
use crate::capture::x11::{self, X11, monitors};

/// Windows that are looked at, front to back; a client that opens more is not listed in full.
const MAX_WINDOWS: usize = 1024;

/// How often in a row what happened is asked about before callers get their turn.
const MAX_ROUNDS: usize = 8;

/// How far up the tree a window's frame, or the window that has the focus, is looked for.
const MAX_ANCESTORS: usize = 16;

/// Gives out names that nothing had before.
#[derive(Debug, Default)]
pub(super) struct Handles {
    last: u64,
    /// Of windows there are now.
    given: BTreeMap<Native, String>,
}

impl Handles {
    fn of(&mut self, native: Native) -> String {
        let last = &mut self.last;
        let handle = self.given.entry(native).or_insert_with(|| {
            *last += 1;
            format!("w{last}")
        });
        handle.clone()
    }

    /// What is called so next is another window.
    fn release(&mut self, native: Native) {
        self.given.remove(&native);
    }

    /// The X server is gone, and all windows with it.
    pub(super) fn forget(&mut self) {
        self.given.clear();
    }
}

/// The epoch of every window: an id of the X server gets a new handle whenever it is used anew.
const EPOCH: u64 = 1;

#[derive(Debug)]
pub(super) struct Desk {
    conn: X11,
    root: Native,
    screen: Size,
    /// The id of the screen.
    screen_id: String,
    /// The displays that the screen is made of, the primary one first.
    displays: Vec<Display>,
    displays_stale: bool,
    host: Vec<u8>,
    atoms: Atoms,
    manager: Option<Manager>,
    entries: BTreeMap<Native, Entry>,
    /// Listed windows, front first.
    order: Vec<Native>,
    focus: Native,
    /// Which windows there are, their order or the focus may be others now.
    order_stale: bool,
    dirty: BTreeMap<Native, Dirty>,
}

/// A part of the screen that windows can be on.
#[derive(Debug)]
struct Display {
    id: String,
    bounds: Bounds,
}

/// A window manager that speaks EWMH.
#[derive(Debug)]
struct Manager {
    check: Native,
    tells_hidden: bool,
}

/// What is known of one window.
#[derive(Debug)]
struct Entry {
    handle: String,
    /// The child of the root window that it is in; itself without a window manager.
    frame: Native,
    border: u16,
    viewable: bool,
    bounds: Bounds,
    facts: Facts,
    /// It is or was on a window manager's list.
    adopted: bool,
    /// Where it was before we maximized it.
    restore: Option<Bounds>,
}

/// What a window's properties say.
#[derive(Debug, Default)]
struct Facts {
    title: String,
    app_name: String,
    app_id: String,
    pid: Option<u32>,
    kind: Option<WindowKind>,
    iconic: bool,
    states: Vec<u32>,
}

/// What is to be asked about a window again.
#[derive(Clone, Copy, Debug, Default)]
struct Dirty {
    place: bool,
    facts: bool,
}

impl Desk {
    pub(super) fn open(display: Option<&str>) -> Result<Self> {
        let (conn, screen, id) = x11::connect(display)?;
        let root = conn.setup().roots[screen].root;
        Self::set_up(conn, root, id.clone()).map_err(|error| x11::lost(&id, error))
    }

    fn set_up(conn: X11, root: Native, screen_id: String) -> Result<Self, ReplyError> {
        let atoms = Atoms::new(&conn)?.reply()?;
        let mask = EventMask::SUBSTRUCTURE_NOTIFY
            | EventMask::STRUCTURE_NOTIFY
            | EventMask::PROPERTY_CHANGE
            | EventMask::FOCUS_CHANGE;
        let events = ChangeWindowAttributesAux::new().event_mask(mask);
        drop(conn.change_window_attributes(root, &events)?);
        monitors::follow(&conn, root)?;
        let screen = x11::root_size(&conn, root)?;
        Ok(Self {
            conn,
            root,
            screen,
            screen_id,
            displays: Vec::new(),
            displays_stale: true,
            host: rustix::system::uname().nodename().to_bytes().to_vec(),
            atoms,
            manager: None,
            entries: BTreeMap::new(),
            order: Vec::new(),
            focus: x11rb::NONE,
            order_stale: true,
            dirty: BTreeMap::new(),
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.conn.stream().as_fd()
    }

    /// Whether changes are up to a window manager.
    pub(super) fn is_managed(&self) -> bool {
        self.manager.is_some()
    }

    /// Waits until the X server has told what happened before now.
    pub(super) fn fence(&self) -> Result<()> {
        let asked = self.conn.get_input_focus().map_err(ReplyError::from);
        asked.and_then(|asked| asked.reply()).map_err(|error| self.lost(error))?;
        Ok(())
    }

    /// Reads all events, and asks about everything they touched.
    /// `false`: more happens than can be asked about, and others want to be served, too.
    pub(super) fn catch_up(&mut self, handles: &mut Handles) -> Result<bool> {
        for _ in 0..MAX_ROUNDS {
            if self.round(handles).map_err(|error| self.lost(error))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether nothing was left to ask about.
    fn round(&mut self, handles: &mut Handles) -> Result<bool, ReplyError> {
        while let Some(event) = self.conn.poll_for_event()? {
            self.note(event, handles);
        }
        if self.displays_stale {
            self.refresh_displays()?;
        } else if self.order_stale {
            self.refresh_order(handles)?;
        } else if !self.dirty.is_empty() {
            self.refresh_dirty(handles)?;
        } else {
            return Ok(true);
        }
        Ok(false)
    }

    /// All windows, front to back; those that are not shown come last.
    pub(super) fn windows(&self) -> Vec<Window> {
        let listed: BTreeSet<_> = self.order.iter().copied().collect();
        let rest = self.entries.keys().copied().filter(|native| !listed.contains(native));
        let mut found: Vec<_> = (self.order.iter().copied().chain(rest))
            .filter_map(|native| Some((native, self.entries.get(&native)?)))
            // Before a window manager has a window on its list, it may be one of its own.
            .filter(|(_, entry)| self.manager.is_none() || entry.adopted)
            .map(|(native, entry)| self.window(native, entry, listed.contains(&native)))
            .collect();
        found.sort_by_key(|window| matches!(window.state, State::Minimized | State::Hidden));
        for (z_order, window) in (0..).zip(&mut found) {
            window.z_order = z_order;
        }
        found
    }

    fn window(&self, native: Native, entry: &Entry, listed: bool) -> Window {
        let facts = &entry.facts;
        let screen = Bounds::from(self.screen);
        Window {
            handle: entry.handle.clone(),
            epoch: EPOCH,
            title: facts.title.clone(),
            app_name: facts.app_name.clone(),
            app_id: facts.app_id.clone(),
            pid: facts.pid,
            bounds: entry.bounds,
            state: self.state(entry, listed),
            kind: facts.kind.unwrap_or(WindowKind::Standard),
            focused: native == self.focus,
            on_screen: listed && entry.viewable && entry.bounds.intersection(screen).is_some(),
            z_order: 0, // known once all are
            display_id: match self.display_of(entry.bounds) {
                Some(display) => display.id.clone(),
                None => self.screen_id.clone(),
            },
        }
    }

    /// The display that shows most of a window; the primary one when none does.
    fn display_of(&self, window: Bounds) -> Option<&Display> {
        let shown = |display: &Display| {
            display.bounds.intersection(window).map_or(0, |part| part.size().bounds().area())
        };
        // Of several that show the same, `max_by_key` takes the last.
        self.displays.iter().rev().max_by_key(|display| shown(display))
    }

    /// What a window covers that fills its display.
    fn filled(&self, window: Bounds) -> Bounds {
        self.display_of(window).map_or(self.screen.into(), |display| display.bounds)
    }

    /// Asks which displays the screen is made of.
    fn refresh_displays(&mut self) -> Result<(), ReplyError> {
        self.displays_stale = false;
        self.screen = x11::root_size(&self.conn, self.root)?;
        let monitors = monitors::monitors(&self.conn, self.root, self.screen)?;
        self.displays = match monitors.len() {
            0 | 1 => {
                vec![Display { id: self.screen_id.clone(), bounds: self.screen.into() }]
            }
            _ => (monitors.into_iter())
                .map(|monitor| Display {
                    id: x11::monitor_id(&self.screen_id, &monitor.name),
                    bounds: monitor.area.into(),
                })
                .collect(),
        };
        Ok(())
    }

    fn state(&self, entry: &Entry, listed: bool) -> State {
        let has = |state| entry.facts.states.contains(&state);
        let atoms = &self.atoms;
        let iconic = match &self.manager {
            // It calls windows of other workspaces iconic, too, and hidden only those that are.
            Some(manager) if manager.tells_hidden => has(atoms._NET_WM_STATE_HIDDEN),
            _ => entry.facts.iconic && !entry.viewable,
        };
        if iconic {
            return State::Minimized;
        }
        if !entry.viewable || !listed {
            return State::Hidden;
        }
        let maximized = match self.manager {
            Some(_) => {
                has(atoms._NET_WM_STATE_MAXIMIZED_HORZ) && has(atoms._NET_WM_STATE_MAXIMIZED_VERT)
            }
            None => entry.restore.is_some() && entry.bounds == self.filled(entry.bounds),
        };
        if self.manager.is_some() && has(atoms._NET_WM_STATE_FULLSCREEN) {
            State::Fullscreen
        } else if maximized {
            State::Maximized
        } else {
            State::Normal
        }
    }

    /// The X server's id of a listed window.
    pub(super) fn native(&self, handle: &str) -> Native {
        let found = self.entries.iter().find(|(_, entry)| entry.handle == handle);
        found.map_or(x11rb::NONE, |(&native, _)| native)
    }

    /// Marks what an event says may be different now.
    fn note(&mut self, event: Event, handles: &mut Handles) {
        self.displays_stale |= monitors::is_change(&event, self.root);
        match event {
            Event::ConfigureNotify(event) if event.window == self.root => {
                self.screen = Size::new(event.width.into(), event.height.into());
                self.order_stale = true;
            }
            Event::ConfigureNotify(event) => {
                self.mark(event.window, Dirty { place: true, facts: false });
                // It may have been raised. A window manager tells that through its list.
                self.order_stale |= event.event == self.root && self.manager.is_none();
            }
            Event::MapNotify(event) => self.mark_shown(event.window),
            Event::UnmapNotify(event) => self.mark_shown(event.window),
            Event::ReparentNotify(event) => self.mark_shown(event.window),
            Event::GravityNotify(event) => {
                self.mark(event.window, Dirty { place: true, facts: false });
            }
            Event::CreateNotify(_) | Event::CirculateNotify(_) => {
                self.order_stale |= self.manager.is_none();
            }
            Event::DestroyNotify(event) => {
                self.forget(event.window, handles);
                let check = self.manager.as_ref().map(|manager| manager.check);
                self.order_stale |= check.is_none() || check == Some(event.window);
            }
            Event::PropertyNotify(event) if event.window == self.root => {
                self.order_stale |= self.is_order(event.atom);
            }
            Event::PropertyNotify(event) => {
                self.mark(event.window, Dirty { place: false, facts: true });
            }
            Event::FocusIn(_) | Event::FocusOut(_) => self.order_stale |= self.manager.is_none(),
            Event::Error(error) => tracing::debug!(?error, "X11 error"),
            _ => {}
        }
    }

    fn is_order(&self, property: u32) -> bool {
        let atoms = &self.atoms;
        [
            atoms._NET_SUPPORTING_WM_CHECK,
            atoms._NET_SUPPORTED,
            atoms._NET_CLIENT_LIST,
            atoms._NET_CLIENT_LIST_STACKING,
            atoms._NET_ACTIVE_WINDOW,
        ]
        .contains(&property)
    }

    fn mark_shown(&mut self, native: Native) {
        self.mark(native, Dirty { place: true, facts: true });
        self.order_stale |= self.manager.is_none();
    }

    /// Marks a window, or the one in a frame.
    fn mark(&mut self, native: Native, what: Dirty) {
        let known = self.entries.iter();
        let known = known.filter(|&(&it, entry)| it == native || entry.frame == native);
        for (&native, _) in known {
            let dirty = self.dirty.entry(native).or_default();
            dirty.place |= what.place;
            dirty.facts |= what.facts;
        }
    }

    fn forget(&mut self, native: Native, handles: &mut Handles) {
        self.entries.remove(&native);
        self.dirty.remove(&native);
        self.order.retain(|&it| it != native);
        handles.release(native);
    }

    /// Asks which windows there are, in which order, and which has the focus.
    fn refresh_order(&mut self, handles: &mut Handles) -> Result<(), ReplyError> {
        self.order_stale = false;
        let (conn, root, atoms) = (&self.conn, self.root, &self.atoms);
        let check = native::ask(conn, root, atoms._NET_SUPPORTING_WM_CHECK)?;
        let supported = native::ask(conn, root, atoms._NET_SUPPORTED)?;
        let stacking = native::ask(conn, root, atoms._NET_CLIENT_LIST_STACKING)?;
        let list = native::ask(conn, root, atoms._NET_CLIENT_LIST)?;
        let active = native::ask(conn, root, atoms._NET_ACTIVE_WINDOW)?;
        let focus = conn.get_input_focus()?;
        let tree = conn.query_tree(root)?;

        let supported = native::numbers(supported)?;
        let (stacking, list) = (native::numbers(stacking)?, native::numbers(list)?);
        let active = native::number(active)?;
        let focus = focus.reply()?.focus;
        let mut tree = tree.reply()?.children;
        self.manager = match native::number(check)? {
            // A manager that died leaves its properties, but not the window that they name.
            Some(check) if self.is_check(check)? && !supported.is_empty() => Some(Manager {
                check,
                tells_hidden: supported.contains(&self.atoms._NET_WM_STATE_HIDDEN),
            }),
            _ => None,
        };
        let mut order = match &self.manager {
            Some(_) if !stacking.is_empty() => stacking,
            Some(_) => list,
            None => {
                tree.drain(..tree.len().saturating_sub(MAX_WINDOWS));
                self.apps_among(tree)?
            }
        };
        order.reverse();
        order.truncate(MAX_WINDOWS);
        let new: Vec<_> =
            order.iter().copied().filter(|native| !self.entries.contains_key(native)).collect();
        self.adopt(&new, handles)?;
        order.retain(|native| self.entries.contains_key(native));
        if self.manager.is_some() {
            for native in &order {
                if let Some(entry) = self.entries.get_mut(native) {
                    entry.adopted = true;
                }
            }
        }
        self.order = order;
        self.focus = match (&self.manager, active) {
            (Some(_), Some(active)) => active,
            _ => self.toplevel_of(focus)?,
        };
        Ok(())
    }

    fn is_check(&self, window: Native) -> Result<bool, ReplyError> {
        let named = native::ask(&self.conn, window, self.atoms._NET_SUPPORTING_WM_CHECK)?;
        Ok(unless_gone(native::number(named))?.flatten() == Some(window))
    }

    /// Those of the root window's children that an app shows, or has as an icon.
    fn apps_among(&self, children: Vec<Native>) -> Result<Vec<Native>, ReplyError> {
        let mut asked = Vec::with_capacity(children.len());
        for child in children {
            let state = native::ask(&self.conn, child, self.atoms.WM_STATE)?;
            asked.push((child, self.conn.get_window_attributes(child)?, state));
        }
        let mut apps = Vec::new();
        for (child, attributes, state) in asked {
            let (attributes, state) = (attributes.reply(), native::number(state));
            let (Some(attributes), Some(state)) = (unless_gone(attributes)?, unless_gone(state)?)
            else {
                continue;
            };
            let shown = attributes.map_state == MapState::VIEWABLE || state == Some(ICONIC);
            let app =
                attributes.class == WindowClass::INPUT_OUTPUT && !attributes.override_redirect;
            if shown && app {
                apps.push(child);
            }
        }
        Ok(apps)
    }

    /// Takes up windows that were not known.
    fn adopt(&mut self, new: &[Native], handles: &mut Handles) -> Result<(), ReplyError> {
        let mask =
            EventMask::STRUCTURE_NOTIFY | EventMask::PROPERTY_CHANGE | EventMask::FOCUS_CHANGE;
        let events = ChangeWindowAttributesAux::new().event_mask(mask);
        for &native in new {
            // Before it is asked anything, so that no change falls between the two.
            drop(self.conn.change_window_attributes(native, &events)?);
            let entry = Entry {
                handle: handles.of(native),
                frame: native,
                border: 0,
                viewable: false,
                bounds: Bounds::default(),
                facts: Facts::default(),
                adopted: false,
                restore: None,
            };
            self.entries.insert(native, entry);
            self.dirty.insert(native, Dirty { place: true, facts: true });
        }
        if new.is_empty() { Ok(()) } else { self.refresh_dirty(handles) }
    }

    /// Asks about the windows that were marked.
    fn refresh_dirty(&mut self, handles: &mut Handles) -> Result<(), ReplyError> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut asked = Vec::with_capacity(dirty.len());
        for (&native, what) in &dirty {
            let place = what.place.then(|| AskedPlace::of(&self.conn, self.root, native));
            let facts = what.facts.then(|| AskedFacts::of(&self.conn, &self.atoms, native));
            asked.push((native, place.transpose()?, facts.transpose()?));
        }
        let mut gone = Vec::new();
        let mut places = Vec::new();
        for (native, place, facts) in asked {
            let place = place.map(|place| unless_gone(place.reply())).transpose()?;
            let facts = facts.map(|facts| unless_gone(facts.reply(&self.atoms, &self.host)));
            match (place, facts.transpose()?) {
                (Some(None), _) | (_, Some(None)) => gone.push(native),
                (place, facts) => places.push((native, place.flatten(), facts.flatten())),
            }
        }
        for (native, place, facts) in places {
            let frame = match &place {
                Some(place) => Some(self.frame_of(native, place.parent)?),
                None => None,
            };
            let Some(entry) = self.entries.get_mut(&native) else { continue };
            if let (Some(place), Some(frame)) = (place, frame) {
                entry.frame = frame;
                entry.border = place.border;
                entry.viewable = place.viewable;
                entry.bounds = place.bounds;
            }
            if let Some(facts) = facts {
                entry.facts = facts;
            }
        }
        for native in gone {
            self.forget(native, handles);
        }
        Ok(())
    }

    /// The child of the root window that `native` is in.
    fn frame_of(&self, native: Native, parent: Native) -> Result<Native, ReplyError> {
        let (mut window, mut parent) = (native, parent);
        for _ in 0..MAX_ANCESTORS {
            if parent == self.root || parent == x11rb::NONE {
                break;
            }
            window = parent;
            let tree = self.conn.query_tree(window)?.reply();
            parent = unless_gone(tree)?.map_or(x11rb::NONE, |tree| tree.parent);
        }
        Ok(window)
    }

    /// The listed window that `focus` is, or is in.
    fn toplevel_of(&self, focus: Native) -> Result<Native, ReplyError> {
        let mut window = focus;
        // Below 2 are "nothing" and "whatever is under the pointer".
        for _ in 0..MAX_ANCESTORS {
            if window < 2 || window == self.root || self.entries.contains_key(&window) {
                break;
            }
            let tree = self.conn.query_tree(window)?.reply();
            window = unless_gone(tree)?.map_or(x11rb::NONE, |tree| tree.parent);
        }
        Ok(window)
    }

    /// Asks for a change, of the window manager or of the X server.
    pub(super) fn change(&mut self, window: &Window, action: Action) -> Result<()> {
        let native = self.native(&window.handle);
        let asked = match self.manager {
            Some(_) => self.ask_manager(native, window, action),
            None => self.change_directly(native, window, action),
        };
        asked.map_err(|error| self.lost(error))
    }

    fn ask_manager(
        &self,
        native: Native,
        window: &Window,
        action: Action,
    ) -> Result<(), ReplyError> {
        let (conn, root, atoms) = (&self.conn, self.root, &self.atoms);
        let ask = |message, data| -> Result<(), ConnectionError> {
            drop(native::ask_manager(conn, root, native, message, data)?);
            Ok(())
        };
        let undo_fullscreen =
            || ask(atoms._NET_WM_STATE, request::state(false, atoms._NET_WM_STATE_FULLSCREEN, 0));
        match action {
            Action::Activate => ask(atoms._NET_ACTIVE_WINDOW, request::ACTIVATE)?,
            Action::Place(to) => {
                if window.state == State::Fullscreen {
                    undo_fullscreen()?;
                }
                if window.state == State::Maximized {
                    ask(atoms._NET_WM_STATE, request::maximized(atoms, false))?;
                }
                ask(atoms._NET_MOVERESIZE_WINDOW, request::place(to, window.bounds))?;
            }
            Action::Minimize => ask(atoms.WM_CHANGE_STATE, [ICONIC, 0, 0, 0, 0])?,
            Action::Maximize => {
                if window.state == State::Minimized {
                    ask(atoms._NET_ACTIVE_WINDOW, request::ACTIVATE)?;
                }
                if window.state == State::Fullscreen {
                    undo_fullscreen()?;
                }
                ask(atoms._NET_WM_STATE, request::maximized(atoms, true))?;
            }
            Action::Restore => match window.state {
                State::Minimized | State::Hidden => {
                    ask(atoms._NET_ACTIVE_WINDOW, request::ACTIVATE)?;
                }
                State::Fullscreen => undo_fullscreen()?,
                State::Maximized => ask(atoms._NET_WM_STATE, request::maximized(atoms, false))?,
                State::Normal => {}
            },
            Action::Close { force: false } => ask(atoms._NET_CLOSE_WINDOW, request::CLOSE)?,
            Action::Close { force: true } => drop(conn.kill_client(native)?),
        }
        Ok(())
    }

    fn change_directly(
        &mut self,
        native: Native,
        window: &Window,
        action: Action,
    ) -> Result<(), ReplyError> {
        let border = self.entries.get(&native).map_or(0, |entry| entry.border);
        let filled = self.filled(window.bounds);
        match action {
            Action::Activate => {
                self.show(native)?;
                let raise = ConfigureWindowAux::new().stack_mode(StackMode::ABOVE);
                drop(self.conn.configure_window(native, &raise)?);
                let (back_to, now) = (InputFocus::POINTER_ROOT, x11rb::CURRENT_TIME);
                drop(self.conn.set_input_focus(back_to, native, now)?);
            }
            Action::Place(to) => {
                self.place(native, to.applied_to(window.bounds), border)?;
                self.keep(native, None);
            }
            Action::Minimize => {
                native::set_wm_state(&self.conn, &self.atoms, native, ICONIC)?;
                drop(self.conn.unmap_window(native)?);
            }
            Action::Maximize => {
                self.show(native)?;
                if window.bounds != filled {
                    self.keep(native, Some(window.bounds));
                }
                self.place(native, filled, border)?;
            }
            Action::Restore if matches!(window.state, State::Minimized | State::Hidden) => {
                self.show(native)?;
            }
            Action::Restore => {
                let before = self.entries.get(&native).and_then(|entry| entry.restore);
                if let Some(before) = before {
                    self.place(native, before, border)?;
                    self.keep(native, None);
                }
            }
            Action::Close { force } => {
                let protocols = native::ask(&self.conn, native, self.atoms.WM_PROTOCOLS)?;
                let protocols = unless_gone(native::numbers(protocols))?.unwrap_or_default();
                if !force && protocols.contains(&self.atoms.WM_DELETE_WINDOW) {
                    native::ask_to_close(&self.conn, &self.atoms, native)?;
                } else {
                    drop(self.conn.kill_client(native)?);
                }
            }
        }
        Ok(())
    }

    fn show(&self, native: Native) -> Result<(), ConnectionError> {
        native::set_wm_state(&self.conn, &self.atoms, native, NORMAL)?;
        drop(self.conn.map_window(native)?);
        Ok(())
    }

    fn place(&self, native: Native, to: Bounds, border: u16) -> Result<(), ConnectionError> {
        let border = i32::from(border);
        let to = ConfigureWindowAux::new()
            .x(to.x - border)
            .y(to.y - border)
            .width(to.width)
            .height(to.height);
        drop(self.conn.configure_window(native, &to)?);
        Ok(())
    }

    fn keep(&mut self, native: Native, restore: Option<Bounds>) {
        if let Some(entry) = self.entries.get_mut(&native) {
            entry.restore = restore;
        }
    }

    fn lost(&self, error: impl Into<ReplyError>) -> Error {
        x11::lost(&self.screen_id, error.into())
    }
}

/// Where a window is, asked for.
struct AskedPlace<'a> {
    attributes: x11rb::cookie::Cookie<'a, X11, x11rb::protocol::xproto::GetWindowAttributesReply>,
    geometry: x11rb::cookie::Cookie<'a, X11, x11rb::protocol::xproto::GetGeometryReply>,
    origin: x11rb::cookie::Cookie<'a, X11, x11rb::protocol::xproto::TranslateCoordinatesReply>,
    tree: x11rb::cookie::Cookie<'a, X11, x11rb::protocol::xproto::QueryTreeReply>,
}

struct Place {
    parent: Native,
    border: u16,
    viewable: bool,
    bounds: Bounds,
}

impl<'a> AskedPlace<'a> {
    fn of(conn: &'a X11, root: Native, native: Native) -> Result<Self, ConnectionError> {
        Ok(Self {
            attributes: conn.get_window_attributes(native)?,
            geometry: conn.get_geometry(native)?,
            origin: conn.translate_coordinates(native, root, 0, 0)?,
            tree: conn.query_tree(native)?,
        })
    }

    fn reply(self) -> Result<Place, ReplyError> {
        let attributes = self.attributes.reply()?;
        let (geometry, origin) = (self.geometry.reply()?, self.origin.reply()?);
        Ok(Place {
            parent: self.tree.reply()?.parent,
            border: geometry.border_width,
            viewable: attributes.map_state == MapState::VIEWABLE,
            bounds: Bounds::new(
                origin.dst_x.into(),
                origin.dst_y.into(),
                geometry.width.into(),
                geometry.height.into(),
            ),
        })
    }
}

/// What a window's properties say, asked for.
struct AskedFacts<'a> {
    title: AskedTitle<'a>,
    class: native::Asked<'a>,
    desktop_files: [native::Asked<'a>; 2],
    pid: native::Asked<'a>,
    machine: native::Asked<'a>,
    kinds: native::Asked<'a>,
    transient_for: native::Asked<'a>,
    wm_state: native::Asked<'a>,
    states: native::Asked<'a>,
}

impl<'a> AskedFacts<'a> {
    fn of(conn: &'a X11, atoms: &Atoms, native: Native) -> Result<Self, ConnectionError> {
        let ask = |property| native::ask(conn, native, property);
        Ok(Self {
            title: AskedTitle::of(conn, atoms, native)?,
            class: native::ask(conn, native, AtomEnum::WM_CLASS)?,
            desktop_files: [ask(atoms._KDE_NET_WM_DESKTOP_FILE)?, ask(atoms._GTK_APPLICATION_ID)?],
            pid: ask(atoms._NET_WM_PID)?,
            machine: ask(atoms.WM_CLIENT_MACHINE)?,
            kinds: ask(atoms._NET_WM_WINDOW_TYPE)?,
            transient_for: native::ask(conn, native, AtomEnum::WM_TRANSIENT_FOR)?,
            wm_state: ask(atoms.WM_STATE)?,
            states: ask(atoms._NET_WM_STATE)?,
        })
    }

    fn reply(self, atoms: &Atoms, host: &[u8]) -> Result<Facts, ReplyError> {
        let mut class = native::texts(atoms, self.class)?.into_iter();
        let (instance, name) = (class.next().unwrap_or_default(), class.next());
        let [kde, gtk] = self.desktop_files;
        let desktop_file = native::text(atoms, kde)?.or(native::text(atoms, gtk)?);
        let machine = self.machine.reply()?.value;
        let machine = machine.strip_suffix(&[0]).unwrap_or(&machine);
        let pid = native::number(self.pid)?;
        let here = machine.is_empty() || machine == host;
        let transient = native::number(self.transient_for)?.is_some_and(|it| it != x11rb::NONE);
        let kinds = native::numbers(self.kinds)?;
        let kind = kinds.into_iter().find_map(|kind| kind_of(atoms, kind));
        Ok(Facts {
            title: self.title.title(atoms)?,
            app_name: name.unwrap_or_else(|| instance.clone()),
            app_id: desktop_file.unwrap_or(instance),
            pid: pid.filter(|_| here),
            kind: kind.or(transient.then_some(WindowKind::Dialog)),
            iconic: native::number(self.wm_state)? == Some(ICONIC),
            states: native::numbers(self.states)?,
        })
    }
}

/// What a value of `_NET_WM_WINDOW_TYPE` means; `None` for one we do not know.
fn kind_of(atoms: &Atoms, kind: u32) -> Option<WindowKind> {
    let kinds = [
        (atoms._NET_WM_WINDOW_TYPE_NORMAL, WindowKind::Standard),
        (atoms._NET_WM_WINDOW_TYPE_DIALOG, WindowKind::Dialog),
        (atoms._NET_WM_WINDOW_TYPE_SPLASH, WindowKind::Dialog),
        (atoms._NET_WM_WINDOW_TYPE_UTILITY, WindowKind::Panel),
        (atoms._NET_WM_WINDOW_TYPE_TOOLBAR, WindowKind::Panel),
        (atoms._NET_WM_WINDOW_TYPE_MENU, WindowKind::Menu),
        (atoms._NET_WM_WINDOW_TYPE_DROPDOWN_MENU, WindowKind::Menu),
        (atoms._NET_WM_WINDOW_TYPE_POPUP_MENU, WindowKind::Menu),
        (atoms._NET_WM_WINDOW_TYPE_COMBO, WindowKind::Menu),
        (atoms._NET_WM_WINDOW_TYPE_TOOLTIP, WindowKind::Tooltip),
        (atoms._NET_WM_WINDOW_TYPE_NOTIFICATION, WindowKind::Tooltip),
        (atoms._NET_WM_WINDOW_TYPE_DOCK, WindowKind::System),
        (atoms._NET_WM_WINDOW_TYPE_DESKTOP, WindowKind::System),
    ];
    kinds.into_iter().find(|&(known, _)| known == kind).map(|(_, kind)| kind)
}
