//! The pointer of one X screen.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use spaceport_types::{CursorImage, Error, Kind, Result, Size};
use x11rb::connection::Connection as _;
use x11rb::errors::ReplyError;
use x11rb::protocol::xfixes::{self, ConnectionExt as _, CursorNotifyMask};
use x11rb::protocol::xinput::{self, ConnectionExt as _, XIEventMask};
use x11rb::protocol::xproto::{ConnectionExt as _, Window};
use x11rb::protocol::{ErrorKind, Event};

use crate::capture::x11::{X11, connect, has, lost};

/// The longest side of an image that is told. Ten times what is usual; one that a desktop blows up to
/// be found is cut to what lies around the pixel that points.
const MAX_SIDE: u32 = 512;

/// XInput's name for all devices that move a pointer of their own.
const ALL_MASTER_DEVICES: u16 = 1;

/// Serials of an X server start over with the server. Which connection an image came by, in the upper
/// bits, tells them apart; 53 bits in all, so that a script's numbers hold them exactly.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
const CONNECTION_BITS: u32 = 21;

/// A connection that is told what happens to the pointer.
#[derive(Debug)]
pub(super) struct Server {
    conn: X11,
    /// The display's id, for messages.
    id: String,
    root: Window,
    reports_motion: bool,
    /// Number of this connection, in the upper bits of serials.
    number: u64,
    /// Nothing has been read yet, so everything is news.
    fresh: bool,
}

/// What happened since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Happened {
    /// The pointer looks another way.
    pub(super) changed: bool,
    /// A device moved it.
    pub(super) moved: bool,
}

impl Server {
    /// Opens a display; `None` means `DISPLAY`.
    ///
    /// # Errors
    ///
    /// `host_capability_missing` without XFIXES, otherwise as for pictures.
    pub(super) fn open(display: Option<&str>) -> Result<Self> {
        let (conn, screen, id) = connect(display)?;
        let root = conn.setup().roots[screen].root;
        let lost = |error: ReplyError| lost(&id, error);
        if !has(&conn, xfixes::X11_EXTENSION_NAME).map_err(lost)? {
            let message = format!("the X display `{id}` does not say what its pointer looks like");
            return Err(Error::new(Kind::HostCapabilityMissing, message)
                .hint("Use an X server with the XFIXES extension"));
        }
        let reports_motion = listen(&conn, root).map_err(lost)?;
        let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed) % (1 << CONNECTION_BITS);
        Ok(Self { conn, id, root, reports_motion, number, fresh: true })
    }

    /// Readable when something happened.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.conn.stream().as_fd()
    }

    /// Whether it is told when a device moves the pointer.
    pub(super) fn reports_motion(&self) -> bool {
        self.reports_motion
    }

    /// Takes what the server has said, without waiting.
    pub(super) fn read(&mut self) -> Result<Happened> {
        let fresh = std::mem::take(&mut self.fresh);
        let mut happened = Happened { changed: fresh, moved: fresh };
        loop {
            match self.conn.poll_for_event() {
                Ok(Some(Event::XfixesCursorNotify(_))) => happened.changed = true,
                Ok(Some(Event::XinputRawMotion(_))) => happened.moved = true,
                Ok(Some(_)) => {}
                Ok(None) => return Ok(happened),
                Err(error) => return Err(lost(&self.id, error.into())),
            }
        }
    }

    /// What the pointer looks like; `None` when nothing of it can be seen.
    pub(super) fn image(&self) -> Result<Option<CursorImage>> {
        let request = self.conn.xfixes_get_cursor_image();
        let reply = match request.map_err(ReplyError::from).and_then(|cookie| cookie.reply()) {
            Ok(reply) => reply,
            // The server shows none to anyone.
            Err(ReplyError::X11Error(error)) if error.error_kind == ErrorKind::Cursor => {
                return Ok(None);
            }
            Err(error) => return Err(lost(&self.id, error)),
        };
        let size = Size::new(reply.width.into(), reply.height.into());
        let hotspot = (reply.xhot.into(), reply.yhot.into());
        let (pixels, size, hotspot) = cut(&reply.cursor_image, size, hotspot);
        if !pixels.iter().any(|pixel| pixel >> 24 != 0) {
            return Ok(None);
        }
        let serial = self.number << 32 | u64::from(reply.cursor_serial);
        let rgba = pixels.into_iter().flat_map(straight).collect::<Vec<u8>>().into();
        Ok(Some(CursorImage { serial, size, hotspot, rgba }))
    }

    /// Where the pixel that points is; `None` when that is on another screen.
    pub(super) fn position(&self) -> Result<Option<(i32, i32)>> {
        let request = self.conn.query_pointer(self.root);
        let reply = request.map_err(ReplyError::from).and_then(|cookie| cookie.reply());
        let reply = reply.map_err(|error| lost(&self.id, error))?;
        Ok(reply.same_screen.then(|| (reply.root_x.into(), reply.root_y.into())))
    }
}

/// Asks to be told of what happens to the pointer, and says whether that includes motion.
fn listen(conn: &X11, root: Window) -> Result<bool, ReplyError> {
    conn.xfixes_query_version(5, 0)?.reply()?;
    conn.xfixes_select_cursor_input(root, CursorNotifyMask::DISPLAY_CURSOR)?.check()?;
    if !has(conn, xinput::X11_EXTENSION_NAME)? {
        return Ok(false);
    }
    // From 2.1 on, what a device does is told even while an app has grabbed it.
    let version = conn.xinput_xi_query_version(2, 2)?.reply();
    if !version.is_ok_and(|it| (it.major_version, it.minor_version) >= (2, 1)) {
        return Ok(false);
    }
    let mask = vec![XIEventMask::RAW_MOTION];
    let masks = [xinput::EventMask { deviceid: ALL_MASTER_DEVICES, mask }];
    Ok(conn.xinput_xi_select_events(root, &masks)?.check().is_ok())
}

/// What of an image is told: all of it, or what lies around the pixel that points.
fn cut(pixels: &[u32], size: Size, hotspot: (u32, u32)) -> (Vec<u32>, Size, (u32, u32)) {
    if size.width <= MAX_SIDE && size.height <= MAX_SIDE {
        return (pixels.to_vec(), size, hotspot);
    }
    let first =
        |side: u32, hot: u32| hot.saturating_sub(MAX_SIDE / 2).min(side.saturating_sub(MAX_SIDE));
    let (x, y) = (first(size.width, hotspot.0), first(size.height, hotspot.1));
    let cut = Size::new(size.width.min(MAX_SIDE), size.height.min(MAX_SIDE));
    let rows = pixels.chunks_exact(size.width as usize).skip(y as usize).take(cut.height as usize);
    let columns = x as usize..(x + cut.width) as usize;
    let kept = rows.flat_map(|row| row.get(columns.clone()).unwrap_or_default());
    (kept.copied().collect(), cut, (hotspot.0.saturating_sub(x), hotspot.1.saturating_sub(y)))
}

/// A pixel of X, whose colours are multiplied by its alpha, as R, G, B, A that are not.
fn straight(pixel: u32) -> [u8; 4] {
    let [alpha, red, green, blue] = pixel.to_be_bytes();
    let divided = |colour: u8| {
        let divided = (u32::from(colour) * 255 + u32::from(alpha) / 2).checked_div(alpha.into());
        // Only a pixel that was not multiplied gets beyond 255.
        divided.unwrap_or_default().min(255) as u8
    };
    [divided(red), divided(green), divided(blue), alpha]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_come_out_as_they_were_before_they_were_multiplied() {
        assert_eq!(straight(0xff12_3456), [0x12, 0x34, 0x56, 0xff]);
        assert_eq!(straight(0x8080_4000), [0xff, 0x80, 0, 0x80]);
        assert_eq!(straight(0x0000_0000), [0, 0, 0, 0]);
        assert_eq!(straight(0x0010_2030), [0, 0, 0, 0], "multiplied by nothing it has no colour");
        assert_eq!(straight(0x10ff_0000), [255, 0, 0, 0x10], "was not multiplied at all");
    }

    #[test]
    fn an_image_too_large_is_cut_around_the_pixel_that_points() {
        let size = Size::new(600, 3);
        let pixels: Vec<u32> = (0..1800).collect();
        for (hot, first) in [(0, 0), (300, 44), (599, 88)] {
            let (kept, cut_size, hotspot) = cut(&pixels, size, (hot, 2));
            assert_eq!((cut_size, hotspot), (Size::new(512, 3), (hot - first, 2)));
            assert_eq!((kept.len(), kept[0], kept[512]), (1536, first, 600 + first));
        }
        let small = cut(&pixels[..6], Size::new(2, 3), (1, 1));
        assert_eq!(small, (pixels[..6].to_vec(), Size::new(2, 3), (1, 1)));
    }
}
