//! One window that the server draws into memory of its own.

use spaceport_types::Bounds;
use x11rb::connection::SequenceNumber;
use x11rb::errors::{ConnectionError, ReplyError};
use x11rb::protocol::composite::{ConnectionExt as _, Redirect};
use x11rb::protocol::damage::{ConnectionExt as _, Damage, ReportLevel};
use x11rb::protocol::render::{ConnectionExt as _, PictOp, Picture};
use x11rb::protocol::xfixes::{ConnectionExt as _, Region};
use x11rb::protocol::xproto::{ConnectionExt as _, Pixmap, Window};

use super::super::{X11, generate_id};
use super::{Canvas, Formats, unless_gone};

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) window: Window,
    pub(super) depth: u8,
    /// Where what is shown of it lies on the desktop.
    pub(super) bounds: Bounds,
    pub(super) border: u16,
    /// Whether its border is shown.
    pub(super) bordered: bool,
    /// What it is drawn into, border included; none while it is not shown.
    pub(super) pixmap: Pixmap,
    /// Draws it where copying does not do: another depth, or see-through.
    source: Option<Source>,
    pub(super) damage: Damage,
    part: Region,
    /// The request that last emptied `damage`. What was reported before it has been grabbed.
    emptied: SequenceNumber,
    /// Where on the canvas it was drawn last.
    pub(super) drawn_at: Option<(i32, i32)>,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    picture: Picture,
    operator: PictOp,
}

impl Layer {
    /// Has the server draw a window into memory from now on. `None`: it is gone.
    pub(super) fn open(conn: &X11, window: Window, depth: u8) -> Result<Option<Self>, ReplyError> {
        let redirected = conn.composite_redirect_window(window, Redirect::AUTOMATIC)?;
        let (damage, part) = (generate_id(conn)?, generate_id(conn)?);
        let damaged = conn.damage_create(damage, window, ReportLevel::NON_EMPTY)?;
        conn.xfixes_create_region(part, &[])?;
        let checked = redirected.check().and_then(|()| damaged.check());
        Ok(unless_gone(checked)?.map(|()| Self {
            window,
            depth,
            bounds: Bounds::default(),
            border: 0,
            bordered: false,
            pixmap: x11rb::NONE,
            source: None,
            damage,
            part,
            emptied: 0,
            drawn_at: None,
        }))
    }

    /// Gets hold of what the window is drawn into, which is new after a change of size and after it
    /// was mapped. `false`: it is not shown now.
    pub(super) fn name_pixmap(&mut self, conn: &X11) -> Result<bool, ReplyError> {
        self.release(conn)?;
        let pixmap = generate_id(conn)?;
        let named = conn.composite_name_window_pixmap(self.window, pixmap)?.check();
        let named = unless_gone(named)?.is_some();
        self.pixmap = if named { pixmap } else { x11rb::NONE };
        self.drawn_at = None;
        Ok(named)
    }

    fn release(&mut self, conn: &X11) -> Result<(), ConnectionError> {
        if let Some(source) = self.source.take() {
            conn.render_free_picture(source.picture)?;
        }
        if self.pixmap != x11rb::NONE {
            conn.free_pixmap(self.pixmap)?;
            self.pixmap = x11rb::NONE;
        }
        Ok(())
    }

    /// Gives everything back. A window that is gone took some of it along; those requests fail,
    /// and nothing follows from that.
    pub(super) fn close(mut self, conn: &X11) -> Result<(), ConnectionError> {
        self.release(conn)?;
        conn.damage_destroy(self.damage)?;
        conn.xfixes_destroy_region(self.part)?;
        drop(conn.composite_unredirect_window(self.window, Redirect::AUTOMATIC)?);
        Ok(())
    }

    /// Whether damage that was reported while the server worked on request number `sequence`
    /// (modulo 65,536) is still to be taken.
    pub(super) fn still_to_grab(&self, sequence: u16) -> bool {
        sequence.wrapping_sub(self.emptied as u16) < 1 << 15
    }

    /// Where on the canvas it begins.
    pub(super) fn offset(&self, canvas: Bounds) -> (i32, i32) {
        (self.bounds.x - canvas.x, self.bounds.y - canvas.y)
    }

    /// Adds what changed in it to what changed on the canvas.
    pub(super) fn take_damage(
        &mut self,
        conn: &X11,
        canvas: &Canvas,
    ) -> Result<(), ConnectionError> {
        let (x, y) = self.offset(canvas.bounds);
        // Damage counts from the content.
        let inset = if self.bordered { i32::from(self.border) } else { 0 };
        let subtract = conn.damage_subtract(self.damage, x11rb::NONE, self.part)?;
        self.emptied = subtract.sequence_number();
        drop(subtract);
        conn.xfixes_translate_region(self.part, (x + inset) as i16, (y + inset) as i16)?;
        conn.xfixes_union_region(canvas.changes, self.part, canvas.changes)?;
        Ok(())
    }

    /// Draws it in its place.
    pub(super) fn draw(&mut self, conn: &X11, canvas: &Canvas) -> Result<(), ConnectionError> {
        let (x, y) = self.offset(canvas.bounds);
        self.drawn_at = Some((x, y));
        let (x, y) = (x as i16, y as i16);
        // What it is drawn into begins with the border.
        let crop = if self.bordered { 0 } else { self.border.cast_signed() };
        let (width, height) = (self.bounds.width as u16, self.bounds.height as u16);
        match self.source.zip(canvas.picture) {
            None => {
                let (from, to) = (self.pixmap, canvas.pixmap);
                conn.copy_area(from, to, canvas.gc, crop, crop, x, y, width, height)?;
            }
            Some((Source { picture, operator }, to)) => {
                let mask = x11rb::NONE;
                conn.render_composite(
                    operator, picture, mask, to, crop, crop, 0, 0, x, y, width, height,
                )?;
            }
        }
        Ok(())
    }

    /// Whether the canvas must be open for RENDER to draw this.
    pub(super) fn needs_picture(&self) -> bool {
        self.source.is_some()
    }

    /// Makes it fit the canvas: another depth is converted, and with `blend` what is below shines
    /// through. `false`: this server cannot.
    pub(super) fn fit(
        &mut self,
        conn: &X11,
        canvas: &Canvas,
        formats: Option<Formats>,
        blend: bool,
    ) -> Result<bool, ConnectionError> {
        let blend = blend && self.depth == 32;
        if self.depth == canvas.depth && !blend {
            if let Some(source) = self.source.take() {
                conn.render_free_picture(source.picture)?;
            }
            return Ok(true);
        }
        let Some(formats) = formats else { return Ok(false) };
        let picture = match self.source {
            Some(source) => source.picture,
            None => {
                let picture = generate_id(conn)?;
                let format = formats.of(self.depth);
                conn.render_create_picture(picture, self.pixmap, format, &Default::default())?;
                picture
            }
        };
        let operator = if blend { PictOp::OVER } else { PictOp::SRC };
        self.source = Some(Source { picture, operator });
        Ok(true)
    }
}
