//! How pixels get from the X server to us.

use std::fmt::Write;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::net::AddressFamily;
use spaceport_types::{Cause, Error, Rect, Result, Size};
use x11rb::errors::{ConnectionError, ReplyError};
use x11rb::protocol::shm::{self, ConnectionExt as _};
use x11rb::protocol::xfixes::{ConnectionExt as _, Region};
use x11rb::protocol::xproto::{
    ConnectionExt as _, CreateGCAux, Gcontext, ImageFormat, Pixmap, SubwindowMode, Window,
};

use super::{Options, X11, generate_id, has};
use crate::capture::map::Mapping;

/// A way for pixels to get from the X server to us. Measured on a 1920x1080 screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The server's own framebuffer, mapped: nothing is copied. Needs a server we started.
    Framebuffer,
    /// The server copies what changed into memory that is shared: 0.03 to 0.8 ms.
    SharedPixmap,
    /// As above, one request for each rectangle, and we copy once more: for servers that draw
    /// with a GPU, which have no shared pixmaps.
    SharedImage,
    /// Through the socket, 36 ms for a whole picture: for servers on another machine.
    Image,
}

impl Method {
    /// All methods, cheapest first.
    pub const ALL: [Self; 4] =
        [Self::Framebuffer, Self::SharedPixmap, Self::SharedImage, Self::Image];

    /// The name used in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Framebuffer => "framebuffer",
            Self::SharedPixmap => "shared_pixmap",
            Self::SharedImage => "shared_image",
            Self::Image => "image",
        }
    }
}

/// An up-to-date picture of an area of a drawable, and the way it is kept so.
#[derive(Debug)]
pub(super) struct Reader {
    area: Rect,
    pixels: Pixels,
}

#[derive(Debug)]
enum Pixels {
    Framebuffer { map: Mapping, layout: Layout },
    SharedPixmap { map: Mapping, segment: shm::Seg, pixmap: Pixmap, gc: Gcontext },
    SharedImage { map: Mapping, segment: shm::Seg, picture: Vec<u8> },
    Image { picture: Vec<u8> },
}

impl Reader {
    /// Opens the cheapest method that works here, or the one that `options` insists on.
    pub(super) fn choose(
        conn: &X11,
        root: Window,
        depth: u8,
        area: Rect,
        options: &Options,
        id: &str,
    ) -> Result<Self> {
        let mut reasons = String::new();
        for method in Method::ALL {
            if options.method.is_some_and(|wanted| wanted != method) {
                continue;
            }
            match Self::open(conn, root, depth, area, method, options.framebuffer.as_deref()) {
                Ok(reader) => return Ok(reader),
                Err(reason) => {
                    let separator = if reasons.is_empty() { "" } else { "; " };
                    // Writing to a string cannot fail.
                    let _ok = write!(reasons, "{separator}{}: {reason}", method.name());
                }
            }
        }
        let message = format!("no way to read the X display `{id}` works ({reasons})");
        Err(Error::because(Cause::CaptureFailed, message)
            .with("display", id)
            .hint("Run `spaceport doctor` to see what the X server offers"))
    }

    /// Opens one method, or says why it cannot be used.
    pub(super) fn open(
        conn: &X11,
        root: Window,
        depth: u8,
        area: Rect,
        method: Method,
        framebuffer: Option<&Path>,
    ) -> Result<Self, String> {
        let size = area.size();
        let pixels = match method {
            Method::Framebuffer => {
                let path = framebuffer.ok_or("the server was not started by us")?;
                let (map, layout) = map_framebuffer(path, area)?;
                Pixels::Framebuffer { map, layout }
            }
            Method::SharedPixmap => {
                let (map, segment) = share(conn, size, true)?;
                match shared_pixmap(conn, root, depth, size, segment) {
                    Ok((pixmap, gc)) => Pixels::SharedPixmap { map, segment, pixmap, gc },
                    Err(error) => {
                        // Should this fail too, the connection is gone, and the next request says so.
                        let _detached = conn.shm_detach(segment);
                        return Err(error.to_string());
                    }
                }
            }
            Method::SharedImage => {
                let (map, segment) = share(conn, size, false)?;
                Pixels::SharedImage { map, segment, picture: vec![0; bytes(size)] }
            }
            Method::Image => Pixels::Image { picture: vec![0; bytes(size)] },
        };
        Ok(Self { area, pixels })
    }

    /// The size of its picture.
    pub(super) fn size(&self) -> Size {
        self.area.size()
    }

    pub(super) fn method(&self) -> Method {
        match self.pixels {
            Pixels::Framebuffer { .. } => Method::Framebuffer,
            Pixels::SharedPixmap { .. } => Method::SharedPixmap,
            Pixels::SharedImage { .. } => Method::SharedImage,
            Pixels::Image { .. } => Method::Image,
        }
    }

    /// The memory itself, where it can be drawn on, and something to draw with.
    pub(super) fn canvas(&self) -> Option<(Pixmap, Gcontext)> {
        match self.pixels {
            Pixels::SharedPixmap { pixmap, gc, .. } => Some((pixmap, gc)),
            _ => None,
        }
    }

    /// Gives back what the server holds for us.
    pub(super) fn close(&self, conn: &X11) -> Result<(), ConnectionError> {
        match &self.pixels {
            Pixels::SharedPixmap { segment, pixmap, gc, .. } => {
                conn.free_gc(*gc)?;
                conn.free_pixmap(*pixmap)?;
                conn.shm_detach(*segment)?;
            }
            Pixels::SharedImage { segment, .. } => drop(conn.shm_detach(*segment)?),
            Pixels::Framebuffer { .. } | Pixels::Image { .. } => {}
        }
        Ok(())
    }

    /// Asks for what lies in `clip`, a region of the drawable, to be copied without waiting; without
    /// a region for everything.
    /// Methods that need to know the rectangles first do nothing yet.
    pub(super) fn queue_copy(
        &self,
        conn: &X11,
        root: Window,
        clip: Region,
    ) -> Result<(), ConnectionError> {
        if let Pixels::SharedPixmap { pixmap, gc, .. } = &self.pixels {
            let Rect { x, y, width, height } = self.area;
            let (x, y) = (x as i16, y as i16);
            let (width, height) = (width as u16, height as u16);
            // The region counts from where the drawable begins, the copy from where the area does.
            conn.xfixes_set_gc_clip_region(*gc, clip, -x, -y)?;
            conn.copy_area(root, *pixmap, *gc, x, y, 0, 0, width, height)?;
        }
        Ok(())
    }

    /// Reads `rects` of the area by methods that go rectangle by rectangle. To be called behind a
    /// fence.
    pub(super) fn read(
        &mut self,
        conn: &X11,
        root: Window,
        rects: &[Rect],
    ) -> Result<(), ReplyError> {
        let stride = self.area.width as usize * 4;
        let (left, top) = (self.area.x, self.area.y);
        match &mut self.pixels {
            Pixels::Framebuffer { .. } | Pixels::SharedPixmap { .. } => {}
            Pixels::SharedImage { map, segment, picture } => {
                // Rectangles of a region do not overlap, so together they fit the segment.
                let mut offset = 0;
                let mut pending = Vec::with_capacity(rects.len());
                for rect in rects {
                    let Rect { x, y, width, height } = *rect;
                    let (x, y) = ((left + x) as i16, (top + y) as i16);
                    let (width, height) = (width as u16, height as u16);
                    let format = u8::from(ImageFormat::Z_PIXMAP);
                    let (all_planes, at) = (!0, offset as u32);
                    let image = conn.shm_get_image(
                        root, x, y, width, height, all_planes, format, *segment, at,
                    )?;
                    pending.push((image, offset));
                    offset += rect.area() as usize * 4;
                }
                for (rect, (image, offset)) in rects.iter().zip(pending) {
                    image.reply()?;
                    blit(&map.bytes()[offset..], *rect, picture, stride);
                }
            }
            Pixels::Image { picture } => {
                let mut pending = Vec::with_capacity(rects.len());
                for rect in rects {
                    let Rect { x, y, width, height } = *rect;
                    let (x, y) = ((left + x) as i16, (top + y) as i16);
                    let (width, height) = (width as u16, height as u16);
                    let format = ImageFormat::Z_PIXMAP;
                    pending.push(conn.get_image(format, root, x, y, width, height, !0)?);
                }
                for (rect, image) in rects.iter().zip(pending) {
                    let image = image.reply()?;
                    if image.data.len() >= rect.area() as usize * 4 {
                        blit(&image.data, *rect, picture, stride);
                    }
                }
            }
        }
        Ok(())
    }

    /// The picture, and the bytes from one of its rows to the next.
    pub(super) fn pixels(&self) -> (&[u8], usize) {
        let Rect { x, y, width, height } = self.area;
        let stride = width as usize * 4;
        match &self.pixels {
            Pixels::Framebuffer { map, layout } => {
                let pixels = &map.bytes()[layout.offset..];
                let start = y as usize * layout.stride + x as usize * 4;
                // Of an area on the right, the last row ends before its stride does.
                let end = pixels.len().min(start + layout.stride * height as usize);
                (&pixels[start..end], layout.stride)
            }
            Pixels::SharedPixmap { map, .. } => (&map.bytes()[..bytes(self.area.size())], stride),
            Pixels::SharedImage { picture, .. } | Pixels::Image { picture } => (picture, stride),
        }
    }
}

/// Copies tightly packed rows into their place in the picture.
fn blit(rows: &[u8], rect: Rect, picture: &mut [u8], stride: usize) {
    let width = rect.width as usize * 4;
    let start = rect.y as usize * stride + rect.x as usize * 4;
    for (row, line) in
        rows.chunks_exact(width).zip(picture[start..].chunks_mut(stride)).take(rect.height as usize)
    {
        line[..width].copy_from_slice(row);
    }
}

const fn bytes(size: Size) -> usize {
    size.width as usize * size.height as usize * 4
}

/// Shares memory for one picture with the server.
fn share(conn: &X11, size: Size, pixmaps: bool) -> Result<(Mapping, shm::Seg), String> {
    let local = rustix::net::getsockname(conn.stream()).map(|addr| addr.address_family());
    if local != Ok(AddressFamily::UNIX) {
        return Err("the server is on another machine".to_owned());
    }
    if !has(conn, shm::X11_EXTENSION_NAME).map_err(|error| error.to_string())? {
        return Err("the server has no MIT-SHM".to_owned());
    }
    let version = conn.shm_query_version().map_err(ReplyError::from).and_then(|it| it.reply());
    let version = version.map_err(|error| error.to_string())?;
    if (version.major_version, version.minor_version) < (1, 2) {
        return Err("the server's MIT-SHM takes no file descriptors".to_owned());
    }
    if pixmaps
        && !(version.shared_pixmaps && version.pixmap_format == u8::from(ImageFormat::Z_PIXMAP))
    {
        return Err("the server has no shared pixmaps".to_owned());
    }
    let (fd, map) = Mapping::shared(bytes(size)).map_err(|error| error.to_string())?;
    let segment = attach(conn, fd).map_err(|error| error.to_string())?;
    Ok((map, segment))
}

fn attach(conn: &X11, fd: OwnedFd) -> Result<shm::Seg, ReplyError> {
    let segment = generate_id(conn)?;
    conn.shm_attach_fd(segment, fd, false)?.check()?;
    Ok(segment)
}

fn shared_pixmap(
    conn: &X11,
    root: Window,
    depth: u8,
    size: Size,
    segment: shm::Seg,
) -> Result<(Pixmap, Gcontext), ReplyError> {
    let (pixmap, gc) = (generate_id(conn)?, generate_id(conn)?);
    let (width, height) = (size.width as u16, size.height as u16);
    conn.shm_create_pixmap(pixmap, root, width, height, depth, segment, 0)?.check()?;
    // Without IncludeInferiors the root window's children would be cut out of the copy.
    let values =
        CreateGCAux::new().subwindow_mode(SubwindowMode::INCLUDE_INFERIORS).graphics_exposures(0);
    conn.create_gc(gc, pixmap, &values)?;
    Ok((pixmap, gc))
}

/// Where the pixels are in a framebuffer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    offset: usize,
    stride: usize,
    size: Size,
}

/// Maps the file that `Xvfb -fbdir` keeps, an X window dump that is always up to date.
fn map_framebuffer(path: &Path, area: Rect) -> Result<(Mapping, Layout), String> {
    let file = File::open(path).map_err(|error| format!("`{}`: {error}", path.display()))?;
    let mut header = [0; XWD_HEADER];
    file.read_exact_at(&mut header, 0).map_err(|error| error.to_string())?;
    let layout = Layout::parse(&header)?;
    if area.right() > layout.size.width || area.bottom() > layout.size.height {
        return Err("the framebuffer file is smaller than the screen".to_owned());
    }
    let len = layout.offset + layout.stride * layout.size.height as usize;
    let found = file.metadata().map_err(|error| error.to_string())?.len();
    if found < len as u64 {
        return Err(format!("the framebuffer file has {found} bytes instead of {len}"));
    }
    let map = Mapping::of(&file, len).map_err(|error| error.to_string())?;
    Ok((map, layout))
}

impl Layout {
    /// Reads the header of an X window dump, version 7: 25 big-endian words. The screen's first
    /// size and stride stay in it when the screen is made smaller.
    fn parse(header: &[u8; XWD_HEADER]) -> Result<Self, String> {
        let (words, _) = header.as_chunks::<4>();
        let word = |index: usize| u32::from_be_bytes(words[index]);
        let format = (word(1), word(2), word(7), word(11));
        let (version, z_pixmap, lsb_first, bits_per_pixel) = (7, 2, 0, 32);
        if format != (version, z_pixmap, lsb_first, bits_per_pixel) {
            return Err(format!("the framebuffer file has another format: {format:?}"));
        }
        let (size, stride) = (Size::new(word(4), word(5)), word(12));
        let colours = word(19);
        // An X screen's sides are 16-bit numbers; with that, nothing below can overflow.
        let sane = [size.width, size.height, word(0), colours].iter().all(|&it| it <= 0xffff)
            && (size.width * 4..=0x4_0000).contains(&stride);
        if !sane {
            return Err("the framebuffer file has a damaged header".to_owned());
        }
        let offset = word(0) as usize + colours as usize * XWD_COLOUR;
        Ok(Self { offset, stride: stride as usize, size })
    }
}

const XWD_HEADER: usize = 100;
const XWD_COLOUR: usize = 12;
