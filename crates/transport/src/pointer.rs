//! The pointer as one socket's viewer is told of it.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use spaceport_types::{CursorImage, CursorPosition, Error, Geometry, Kind, Result};
use spaceport_wire::control::{self, KEPT_CURSOR_IMAGES, ServerMessage};

/// What a viewer knows of the pointer.
#[derive(Debug, Default)]
pub(crate) struct Pointer {
    /// Serials of the images it keeps, the oldest first.
    kept: VecDeque<u64>,
    /// The one that is drawn now.
    serial: Option<u64>,
    position: Option<CursorPosition>,
}

impl Pointer {
    /// It looks another way: the image, if the viewer does not keep it, and that it is to be drawn.
    pub(crate) fn image(&mut self, image: &CursorImage, geometry: Geometry) -> Vec<ServerMessage> {
        let mut messages = Vec::new();
        if !self.kept.contains(&image.serial) {
            match picture(image) {
                Ok(png) => messages.push(png),
                Err(error) => {
                    // The one before stays.
                    tracing::warn!(%error, ?image, "a pointer's image could not be sent");
                    return messages;
                }
            }
            if self.kept.len() == KEPT_CURSOR_IMAGES {
                self.kept.pop_front();
            }
            self.kept.push_back(image.serial);
        }
        self.serial = Some(image.serial);
        messages.extend(self.place(geometry));
        messages
    }

    /// It is elsewhere.
    pub(crate) fn moved(&mut self, position: CursorPosition, geometry: Geometry) -> ServerMessage {
        self.position = Some(position);
        message(position, self.serial, geometry)
    }

    /// Where it is, in a frame of `geometry`; `None` when that is not known.
    pub(crate) fn place(&self, geometry: Geometry) -> Option<ServerMessage> {
        Some(message(self.position?, self.serial, geometry))
    }

    /// The viewer starts or stops to listen. The images it has it keeps.
    pub(crate) fn forget_place(&mut self) {
        self.position = None;
    }
}

fn message(position: CursorPosition, serial: Option<u64>, geometry: Geometry) -> ServerMessage {
    // A hundredth of a pixel is finer than any screen.
    let place = |desktop: i32| (f64::from(desktop) * geometry.scale * 100.0).round() / 100.0;
    ServerMessage::Cursor(control::Cursor {
        visible: position.visible && serial.is_some(),
        x: place(position.x),
        y: place(position.y),
        serial: serial.unwrap_or_default(),
    })
}

fn picture(image: &CursorImage) -> Result<ServerMessage> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, image.size.width, image.size.height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(&image.rgba)?;
        writer.finish()
    });
    written.map_err(|error| {
        Error::new(Kind::Internal, "the image could not be written as PNG").source(error)
    })?;
    Ok(ServerMessage::CursorImage(control::CursorImage {
        serial: image.serial,
        width: image.size.width,
        height: image.size.height,
        hotspot_x: image.hotspot.0,
        hotspot_y: image.hotspot.1,
        png: STANDARD.encode(file),
    }))
}

#[cfg(test)]
mod tests {
    use spaceport_types::{Bounds, Size};

    use super::*;

    fn geometry(max_dimension: u32) -> Geometry {
        let bounds = Bounds::new(100, 50, 640, 360);
        let frame_size = bounds.size().fitted(max_dimension);
        let scale = f64::from(frame_size.width) / 640.0;
        Geometry { frame_size, scale, logical_bounds: bounds, geometry_epoch: 1 }
    }

    fn image(serial: u64) -> CursorImage {
        let rgba = [[255, 0, 0, 255], [0, 255, 0, 128]].concat().into();
        CursorImage { serial, size: Size::new(1, 2), hotspot: (0, 1), rgba }
    }

    const AT: CursorPosition = CursorPosition { visible: true, x: 631, y: 359 };

    fn cursor(message: &ServerMessage) -> (bool, f64, f64, u64) {
        let ServerMessage::Cursor(it) = message else { panic!("{message:?}") };
        (it.visible, it.x, it.y, it.serial)
    }

    #[test]
    fn an_image_travels_as_png_and_comes_out_as_it_was() {
        let messages = Pointer::default().image(&image(5), geometry(0));
        let [ServerMessage::CursorImage(sent)] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!((sent.serial, sent.width, sent.height), (5, 1, 2));
        assert_eq!((sent.hotspot_x, sent.hotspot_y), (0, 1));
        let file = STANDARD.decode(&sent.png).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(info.color_type, png::ColorType::Rgba);
        assert_eq!(pixels, image(5).rgba);
    }

    #[test]
    fn a_position_is_scaled_as_the_frame_is_and_follows_its_geometry() {
        let mut pointer = Pointer::default();
        pointer.image(&image(5), geometry(0));
        assert_eq!(pointer.place(geometry(0)), None, "nobody has said where it is");
        let full = pointer.moved(AT, geometry(0));
        assert_eq!(cursor(&full), (true, 631.0, 359.0, 5));
        let half = pointer.place(geometry(320)).unwrap();
        assert_eq!(cursor(&half), (true, 315.5, 179.5, 5));
        let hidden = pointer.moved(CursorPosition { visible: false, ..AT }, geometry(0));
        assert!(!cursor(&hidden).0);
    }

    #[test]
    fn nothing_is_visible_before_there_is_an_image() {
        assert!(!cursor(&Pointer::default().moved(AT, geometry(0))).0);
    }

    #[test]
    fn an_image_the_viewer_keeps_is_not_sent_again() {
        let mut pointer = Pointer::default();
        pointer.moved(AT, geometry(0));
        let mut sent = |serial| {
            let messages = pointer.image(&image(serial), geometry(0));
            assert_eq!(cursor(messages.last().unwrap()).3, serial);
            messages.len() - 1
        };
        let kept = KEPT_CURSOR_IMAGES as u64;
        for round in 0..3 {
            for serial in 0..kept {
                assert_eq!(sent(serial), usize::from(round == 0), "image {serial}");
            }
        }
        assert_eq!(sent(kept), 1);
        assert_eq!(sent(0), 1, "the oldest went when another came");
        assert_eq!(sent(2), 0);
    }

    #[test]
    fn an_image_that_is_none_is_not_sent_and_the_last_one_stays() {
        let mut pointer = Pointer::default();
        pointer.image(&image(1), geometry(0));
        let broken = CursorImage { rgba: image(2).rgba.slice(1..), ..image(2) };
        assert_eq!(pointer.image(&broken, geometry(0)), []);
        assert_eq!(cursor(&pointer.moved(AT, geometry(0))).3, 1);
    }
}
