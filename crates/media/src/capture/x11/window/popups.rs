//! Which menus, tooltips and lists belong to a window.
//!
//! They are children of the root window that the window manager leaves alone, so nothing but
//! convention says whose they are: most name the window they are for, the others are made by the
//! same client or process and appear next to it.

use spaceport_types::Bounds;
use x11rb::connection::Connection;
use x11rb::errors::ReplyError;
use x11rb::protocol::xproto::{
    AtomEnum, ConnectionExt as _, GetGeometryReply, MapState, Window, WindowClass,
};

use super::layer::Layer;
use super::{Toplevel, native, unless_gone};

/// Popups that are shown with one window; nobody opens submenus so deep.
const MAX_POPUPS: usize = 32;

/// How far from the window or another of its popups one may appear that does not say whose it is.
/// A tooltip keeps clear of the pointer; a drag icon that leaves must not take the canvas along.
const NEAR: u32 = 64;

/// What a window that may be a popup says about itself.
struct Candidate {
    window: Window,
    geometry: GetGeometryReply,
    transient_for: Option<Window>,
    pid: Option<u32>,
    dragged: bool,
}

impl Candidate {
    /// Where it lies, with its border: for a menu that is the line around it.
    fn bounds(&self) -> Bounds {
        let GetGeometryReply { x, y, width, height, border_width, .. } = self.geometry;
        let around = 2 * u32::from(border_width);
        Bounds::new(x.into(), y.into(), u32::from(width) + around, u32::from(height) + around)
    }
}

impl Toplevel {
    /// Takes over which popups there are now, where, and in which order.
    pub(super) fn refresh_popups(&mut self) -> Result<(), ReplyError> {
        let candidates = self.candidates()?;
        let owner = self.conn.get_selection_owner(self.compositing)?.reply()?.owner;
        let composited = owner != x11rb::NONE;
        let mut old = std::mem::take(&mut self.popups);
        let order: Vec<Window> = old.iter().map(|popup| popup.window).collect();
        for candidate in candidates {
            if self.popups.len() == MAX_POPUPS || !self.owns(&candidate) {
                continue;
            }
            let known = old.iter().position(|popup| popup.window == candidate.window);
            let layer = match known {
                Some(at) => Some(old.swap_remove(at)),
                None => Layer::open(&self.conn, candidate.window, candidate.geometry.depth)?,
            };
            let Some(mut layer) = layer else { continue };
            let bounds = candidate.bounds();
            let border = candidate.geometry.border_width;
            // It may have been away and back since: what it is drawn into is then new, too.
            let named = layer.pixmap != x11rb::NONE
                && layer.bounds.size() == bounds.size()
                && layer.border == border
                && !self.stale_pixmaps.contains(&layer.window);
            (layer.bounds, layer.border, layer.bordered) = (bounds, border, true);
            if (named || layer.name_pixmap(&self.conn)?)
                && layer.fit(&self.conn, &self.canvas, self.render, composited)?
            {
                self.popups.push(layer);
            } else {
                layer.close(&self.conn)?;
            }
        }
        self.stale_pixmaps.clear();
        for popup in old {
            popup.close(&self.conn)?;
        }
        self.everything |= !self.popups.iter().map(|popup| popup.window).eq(order);
        Ok(())
    }

    /// Shown children of the root window that no window manager manages, bottom first.
    fn candidates(&self) -> Result<Vec<Candidate>, ReplyError> {
        let conn = &self.conn;
        let children = conn.query_tree(self.root)?.reply()?.children;
        let mut asked = Vec::with_capacity(children.len());
        for window in children {
            asked.push((window, conn.get_window_attributes(window)?));
        }
        let mut shown = Vec::new();
        for (window, attributes) in asked {
            let Some(attributes) = unless_gone(attributes.reply())? else { continue };
            let popup = attributes.override_redirect
                && attributes.map_state == MapState::VIEWABLE
                && attributes.class == WindowClass::INPUT_OUTPUT;
            if popup && window != self.main.window && !self.ancestors.contains(&window) {
                shown.push(window);
            }
        }
        let mut asked = Vec::with_capacity(shown.len());
        for window in shown {
            let geometry = conn.get_geometry(window)?;
            let transient_for = native::ask(conn, window, AtomEnum::WM_TRANSIENT_FOR)?;
            let pid = native::ask(conn, window, self.atoms._NET_WM_PID)?;
            let kinds = native::ask(conn, window, self.atoms._NET_WM_WINDOW_TYPE)?;
            asked.push((window, geometry, transient_for, pid, kinds));
        }
        let mut candidates = Vec::new();
        for (window, geometry, transient_for, pid, kinds) in asked {
            let Some(geometry) = unless_gone(geometry.reply())? else { continue };
            let kinds = unless_gone(native::numbers(kinds))?.unwrap_or_default();
            let candidate = Candidate {
                window,
                geometry,
                transient_for: unless_gone(native::number(transient_for))?.flatten(),
                pid: unless_gone(native::number(pid))?.flatten(),
                dragged: kinds.contains(&self.atoms._NET_WM_WINDOW_TYPE_DND),
            };
            if matches!(candidate.geometry.depth, 24 | 32) {
                candidates.push(candidate);
            }
        }
        Ok(candidates)
    }

    /// Whether a popup is for this window, or for one of its popups below.
    fn owns(&self, candidate: &Candidate) -> bool {
        if candidate.dragged {
            return false;
        }
        let main = self.main.window;
        match candidate.transient_for {
            // For an app's windows in general, or so it says.
            None | Some(x11rb::NONE) => {}
            Some(window) if window == self.root => {}
            Some(window) => {
                return window == main || self.ancestors.contains(&window) || self.is_popup(window);
            }
        }
        let client = !self.conn.setup().resource_id_mask;
        let same_client = candidate.window & client == main & client;
        let same_process = candidate.pid.is_some() && candidate.pid == self.pid;
        (same_client || same_process) && self.is_near(candidate.bounds())
    }

    fn is_near(&self, bounds: Bounds) -> bool {
        let near = NEAR.cast_signed();
        let around = Bounds::new(
            bounds.x - near,
            bounds.y - near,
            bounds.width + 2 * NEAR,
            bounds.height + 2 * NEAR,
        );
        self.layers().any(|layer| layer.bounds.intersection(around).is_some())
    }
}
