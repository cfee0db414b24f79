//! The pointer of a machine, from messages back to what a session hands out.

use std::collections::VecDeque;
use std::io::Cursor as Bytes;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use png::{BitDepth, ColorType, Decoder, Limits};
use spaceport_session::PointerPublisher;
use spaceport_types::{CursorImage, CursorPosition, Geometry, Result, Size};
use spaceport_wire::control::{self, KEPT_CURSOR_IMAGES};

use super::machine::lie;

/// The most pixels across or down; the largest pointers for the largest screens have 256.
const MAX_SIDE: u32 = 512;

/// What is known of the pointer of one stream.
#[derive(Debug)]
pub(super) struct Pointer {
    publisher: PointerPublisher,
    /// The images that the machine takes for known here.
    kept: VecDeque<Arc<CursorImage>>,
    drawn: Option<u64>,
}

impl Pointer {
    pub(super) fn new(publisher: PointerPublisher) -> Self {
        Self { publisher, kept: VecDeque::new(), drawn: None }
    }

    /// An image came, to be drawn when a position names it.
    pub(super) fn image(&mut self, image: &control::CursorImage) -> Result<()> {
        let image = Arc::new(decode(image)?);
        if self.kept.len() == KEPT_CURSOR_IMAGES {
            self.kept.pop_front();
        }
        self.kept.push_back(image);
        Ok(())
    }

    /// The pointer is there, in a frame of `geometry`.
    pub(super) fn place(&mut self, cursor: &control::Cursor, geometry: Geometry) {
        if cursor.visible && self.drawn != Some(cursor.serial) {
            let known = self.kept.iter().rev().find(|image| image.serial == cursor.serial);
            if let Some(image) = known {
                self.drawn = Some(cursor.serial);
                self.publisher.cursor_image(Arc::clone(image));
            }
        }
        // The cast saturates, and what is no number is nowhere.
        let desktop = |frame: f64| (frame / geometry.scale).round() as i32;
        let (x, y) = (desktop(cursor.x), desktop(cursor.y));
        self.publisher.cursor_position(CursorPosition { visible: cursor.visible, x, y });
    }
}

fn decode(image: &control::CursorImage) -> Result<CursorImage> {
    let wrong = || lie("a pointer that is no picture");
    if image.width.max(image.height) > MAX_SIDE || image.width.min(image.height) == 0 {
        return Err(lie("a pointer of a size that none has"));
    }
    let file = STANDARD.decode(&image.png).map_err(|_| wrong())?;
    let mut decoder = Decoder::new(Bytes::new(file));
    decoder.set_limits(Limits { bytes: 4 << 20 });
    let mut reader = decoder.read_info().map_err(|_| wrong())?;
    let info = reader.info();
    let as_said = (info.width, info.height) == (image.width, image.height)
        && (info.color_type, info.bit_depth) == (ColorType::Rgba, BitDepth::Eight);
    let size = reader.output_buffer_size().filter(|_| as_said).ok_or_else(wrong)?;
    let mut rgba = vec![0; size];
    reader.next_frame(&mut rgba).map_err(|_| wrong())?;
    Ok(CursorImage {
        serial: image.serial,
        size: Size::new(image.width, image.height),
        hotspot: (image.hotspot_x, image.hotspot_y),
        rgba: rgba.into(),
    })
}
