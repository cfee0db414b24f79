//! What is encoded is decoded again, by decoders nobody here wrote, and compared by pixel.

use std::time::Duration;

use bytes::Bytes;
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;
use gstreamer_video::prelude::*;
use spaceport_types::{Bitrate, Codec, Rect, Size};

use super::{Config, Encoded, Encoder, Mode, Preference};
use crate::Frame;

/// The picture 16 ms apart that tests draw on.
pub(super) struct Screen {
    pub(super) size: Size,
    pub(super) pixels: Vec<u8>,
    now: Duration,
    random: u64,
}

type Color = [u8; 3]; // blue, green, red

const BLACK: Color = [0, 0, 0];
const WHITE: Color = [255, 255, 255];

/// White, yellow, cyan, green, magenta, red, blue, black.
const BARS: [Color; 8] = [
    [255, 255, 255],
    [0, 255, 255],
    [255, 255, 0],
    [0, 255, 0],
    [255, 0, 255],
    [0, 0, 255],
    [255, 0, 0],
    [0, 0, 0],
];

impl Screen {
    pub(super) fn new(width: u32, height: u32) -> Self {
        let pixels = vec![0; width as usize * height as usize * 4];
        Self { size: Size::new(width, height), pixels, now: Duration::ZERO, random: 0x5EED }
    }

    pub(super) fn stride(&self) -> usize {
        self.size.width as usize * 4
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn pixel(&mut self, x: u32, y: u32) -> &mut [u8] {
        let at = y as usize * self.stride() + x as usize * 4;
        &mut self.pixels[at..at + 4]
    }

    pub(super) fn fill(&mut self, rect: Rect, [b, g, r]: Color) {
        for y in rect.y..rect.bottom() {
            for x in rect.x..rect.right() {
                self.pixel(x, y).copy_from_slice(&[b, g, r, 0]);
            }
        }
    }

    fn bars(&mut self) {
        let Size { width, height } = self.size;
        for (index, color) in BARS.into_iter().enumerate() {
            let (left, right) = (width * index as u32 / 8, width * (index as u32 + 1) / 8);
            self.fill(Rect::new(left, 0, right - left, height), color);
        }
    }

    pub(super) fn noise(&mut self, rect: Rect) {
        for y in rect.y..rect.bottom() {
            for x in rect.x..rect.right() {
                let value = self.random().to_le_bytes();
                self.pixel(x, y).copy_from_slice(&value[..4]);
            }
        }
    }

    /// Lines of something like text: 8x16 cells, each with a random 6x10 glyph or nothing.
    pub(super) fn text(&mut self, rect: Rect) {
        self.fill(rect, WHITE);
        for y in (rect.y..rect.bottom().saturating_sub(16)).step_by(16) {
            let length = rect.width / 8 * (20 + self.random() as u32 % 80) / 100;
            for column in 0..length {
                let glyph = self.random();
                for bit in 0..60 {
                    if glyph & 3 != 0 && glyph >> (bit + 3) & 1 == 1 {
                        let (x, y) = (rect.x + column * 8 + bit % 6, y + bit / 6 + 3);
                        self.pixel(x, y).fill(0);
                    }
                }
            }
        }
    }

    /// Moves what is in `rect` up by `rows` and draws new text below.
    pub(super) fn scroll(&mut self, rect: Rect, rows: u32) {
        let bytes = rect.width as usize * 4;
        for y in rect.y..rect.bottom() - rows {
            let from = (y + rows) as usize * self.stride() + rect.x as usize * 4;
            let to = y as usize * self.stride() + rect.x as usize * 4;
            self.pixels.copy_within(from..from + bytes, to);
        }
        self.text(Rect::new(rect.x, rect.bottom() - rows, rect.width, rows));
    }

    pub(super) fn frame<'a>(&'a mut self, damage: &'a [Rect]) -> Frame<'a> {
        self.now += Duration::from_millis(16);
        let (stride, size) = (self.stride(), self.size);
        Frame { pixels: &self.pixels, stride, size, damage, captured_at: self.now }
    }

    fn whole(&self) -> [Rect; 1] {
        [self.size.bounds()]
    }
}

/// A decoded picture.
pub(super) struct Picture {
    size: Size,
    luma: Vec<u8>,
    chroma: [Vec<u8>; 2],
}

impl Picture {
    /// The color at a pixel, by the definition of the matrix in the limited range.
    fn color(&self, codec: Codec, x: u32, y: u32) -> [f64; 3] {
        let (kr, kb) = match codec {
            Codec::Vp8 => (0.299, 0.114),
            _ => (0.2126, 0.0722),
        };
        let width = self.size.width as usize;
        let luma = f64::from(self.luma[y as usize * width + x as usize]);
        let half = y as usize / 2 * width.div_ceil(2) + x as usize / 2;
        let [cb, cr] = [0, 1].map(|plane| f64::from(self.chroma[plane][half]) - 128.0);
        let luma = (luma - 16.0) * 255.0 / 219.0;
        let (cb, cr) = (cb * 255.0 / 112.0, cr * 255.0 / 112.0);
        let (b, r) = (luma + (1.0 - kb) * cb, luma + (1.0 - kr) * cr);
        [b, (luma - kr * r - kb * b) / (1.0 - kr - kb), r]
    }

    fn assert_color(&self, codec: Codec, x: u32, y: u32, expected: Color) {
        let color = self.color(codec, x, y);
        for (&value, &expected) in color.iter().zip(&expected) {
            let off = (value - f64::from(expected)).abs();
            assert!(off <= 3.0, "{color:?} at {x},{y} of {:?}, not {expected:?}", self.size);
        }
    }

    /// Quality of the luma against `screen`, in dB.
    fn psnr(&self, screen: &Screen) -> f64 {
        let mut squares = 0.0;
        for (index, &value) in self.luma.iter().enumerate() {
            let pixel = &screen.pixels[index * 4..index * 4 + 3];
            let [b, g, r] = [0, 1, 2].map(|channel| f64::from(pixel[channel]));
            let luma = 16.0 + (0.0722 * b + 0.7152 * g + 0.2126 * r) * 219.0 / 255.0;
            squares += (f64::from(value) - luma).powi(2);
        }
        10.0 * (255.0f64.powi(2) * self.luma.len() as f64 / squares.max(1e-9)).log10()
    }
}

/// Decodes a stream with a decoder of GStreamer.
pub(super) fn decode(codec: Codec, stream: &[Bytes]) -> Vec<Picture> {
    gst::init().unwrap();
    let (caps, decoders) = match codec {
        Codec::Vp8 => ("video/x-vp8", ["vp8dec", "avdec_vp8"].as_slice()),
        _ => (
            "video/x-h264,stream-format=byte-stream,alignment=au",
            ["avdec_h264 max-threads=1", "openh264dec"].as_slice(),
        ),
    };
    let decoder = decoders.iter().find_map(|decoder| {
        gst::parse::launch(&format!(
            "appsrc name=src format=time caps={caps} ! {decoder} ! \
             appsink name=sink sync=false max-buffers=0 caps=video/x-raw,format=I420"
        ))
        .ok()
    });
    let pipeline = decoder.expect("a decoder: install gstreamer1.0-libav or -plugins-good");
    let pipeline = pipeline.downcast::<gst::Pipeline>().unwrap();
    let source = pipeline.by_name("src").unwrap().downcast::<gst_app::AppSrc>().unwrap();
    let sink = pipeline.by_name("sink").unwrap().downcast::<gst_app::AppSink>().unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    for (index, unit) in stream.iter().enumerate() {
        let mut buffer = gst::Buffer::from_slice(unit.clone());
        let time = gst::ClockTime::from_mseconds(index as u64 * 16);
        buffer.get_mut().unwrap().set_pts(time);
        source.push_buffer(buffer).unwrap();
    }
    source.end_of_stream().unwrap();
    let mut pictures = Vec::new();
    while let Ok(sample) = sink.pull_sample() {
        let info = gst_video::VideoInfo::from_caps(sample.caps().unwrap()).unwrap();
        let frame =
            gst_video::VideoFrameRef::from_buffer_ref_readable(sample.buffer().unwrap(), &info)
                .unwrap();
        let plane = |plane: u32| -> Vec<u8> {
            let (width, height) =
                (frame.comp_width(plane) as usize, frame.comp_height(plane) as usize);
            let rows = frame.plane_data(plane).unwrap();
            let stride = frame.plane_stride()[plane as usize] as usize;
            rows.chunks(stride).take(height).flat_map(|row| &row[..width]).copied().collect()
        };
        pictures.push(Picture {
            size: Size::new(info.width(), info.height()),
            luma: plane(0),
            chroma: [plane(1), plane(2)],
        });
    }
    pipeline.set_state(gst::State::Null).unwrap();
    pictures
}

fn config(codec: Codec, size: Size) -> Config {
    Config {
        codec,
        source: size,
        size,
        bitrate: Bitrate::from_kbps(50_000),
        max_fps: 60,
        latency: Duration::from_millis(250),
    }
}

fn open(name: &str, size: Size) -> Box<dyn Encoder> {
    let codec = if name == "vp8enc" { Codec::Vp8 } else { Codec::H264 };
    let preference = Preference { encoder: Some(name.to_owned()) };
    super::open(&config(codec, size), &preference).unwrap()
}

/// All implementations; each has to do right by every test.
fn encoders() -> Vec<&'static str> {
    super::CANDIDATES.iter().map(|candidate| candidate.name).collect()
}

fn encode(
    encoder: &mut Box<dyn Encoder>,
    screen: &mut Screen,
    mode: Mode,
    damage: &[Rect],
) -> Encoded {
    encoder.encode(&screen.frame(damage), mode).unwrap().expect("a frame came out")
}

#[test]
fn colors_survive_within_three_levels() {
    for name in encoders() {
        for draw in [
            |screen: &mut Screen| screen.fill(screen.size.bounds(), BLACK),
            |screen: &mut Screen| screen.fill(screen.size.bounds(), WHITE),
            |screen: &mut Screen| screen.bars(),
        ] {
            let mut screen = Screen::new(640, 360);
            draw(&mut screen);
            let mut encoder = open(name, screen.size);
            let damage = screen.whole();
            let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &damage);
            let pictures = decode(encoder.codec(), &[key.payload]);
            assert_eq!(pictures[0].size, screen.size, "{name}");
            for index in 0..8 {
                for y in [0, 180, 359] {
                    let x = index * 80 + 40;
                    let pixel = screen.pixel(x, y);
                    let expected = [pixel[0], pixel[1], pixel[2]];
                    pictures[0].assert_color(encoder.codec(), x, y, expected);
                }
            }
        }
    }
}

#[test]
fn odd_sizes_are_padded_to_even() {
    for name in encoders() {
        for (width, height) in [(789, 595), (1, 1), (3839, 1080), (17, 2)] {
            let mut screen = Screen::new(width, height);
            screen.fill(screen.size.bounds(), [200, 120, 40]);
            let mut encoder = open(name, screen.size);
            let damage = screen.whole();
            let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &damage);
            let pictures = decode(encoder.codec(), &[key.payload]);
            let picture = &pictures[0];
            assert_eq!(picture.size, screen.size.padded_to_even(), "{name}");
            for (x, y) in [(0, 0), (picture.size.width - 1, picture.size.height - 1)] {
                picture.assert_color(encoder.codec(), x, y, [200, 120, 40]);
            }
        }
    }
}

#[test]
fn a_smaller_size_shows_the_whole_picture() {
    for name in encoders() {
        let mut screen = Screen::new(1280, 721);
        screen.bars();
        let codec = if name == "vp8enc" { Codec::Vp8 } else { Codec::H264 };
        let config = Config { size: screen.size.fitted(639), ..config(codec, screen.size) };
        let preference = Preference { encoder: Some(name.to_owned()) };
        let mut encoder = super::open(&config, &preference).unwrap();
        let damage = screen.whole();
        let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &damage);
        let blue = Rect::new(160, 360, 160, 361);
        screen.fill(blue, [255, 0, 0]);
        let delta = encode(&mut encoder, &mut screen, Mode::Delta, &[blue]);
        let pictures = decode(codec, &[key.payload, delta.payload]);
        assert_eq!(pictures[1].size, Size::new(640, 360), "{name}");
        for (index, color) in BARS.into_iter().enumerate() {
            let x = index as u32 * 80 + 40;
            pictures[0].assert_color(codec, x, 358, color);
            pictures[1].assert_color(codec, x, 100, color);
            pictures[1].assert_color(codec, x, 358, if index == 1 { [255, 0, 0] } else { color });
        }
    }
}

#[test]
fn a_delta_changes_its_damage_and_nothing_else() {
    let mut screen = Screen::new(640, 360);
    screen.text(screen.size.bounds());
    let mut encoder = open("x264", screen.size);
    let damage = screen.whole();
    let mut stream = vec![encode(&mut encoder, &mut screen, Mode::Keyframe, &damage).payload];
    // Only the first rectangle is declared; the second must not show.
    let (declared, hidden) = (Rect::new(101, 51, 37, 23), Rect::new(400, 200, 64, 64));
    screen.fill(declared, [40, 200, 90]);
    screen.fill(hidden, BLACK);
    let delta = encode(&mut encoder, &mut screen, Mode::Delta, &[declared]);
    assert!(!delta.keyframe);
    stream.push(delta.payload);
    let pictures = decode(Codec::H264, &stream);
    let (before, after) = (&pictures[0], &pictures[1]);
    after.assert_color(Codec::H264, 120, 62, [40, 200, 90]);
    // Macroblocks of 16 that the declared rectangle touches.
    let touched = Rect::new(96, 48, 48, 32);
    let mut changed = 0;
    for (index, (old, new)) in before.luma.iter().zip(&after.luma).enumerate() {
        let (x, y) = (index as u32 % 640, index as u32 / 640);
        let inside =
            (touched.x..touched.right()).contains(&x) && (touched.y..touched.bottom()).contains(&y);
        assert!(inside || old == new, "{x},{y} changed");
        changed += u32::from(old != new);
    }
    assert!(changed >= 37 * 23 / 2, "{changed}");
}

#[test]
fn refining_a_still_picture_sharpens_it() {
    let mut screen = Screen::new(640, 360);
    screen.text(screen.size.bounds());
    let mut encoder = open("x264", screen.size);
    let damage = screen.whole();
    let mut stream = vec![encode(&mut encoder, &mut screen, Mode::Keyframe, &damage).payload];
    stream.push(encode(&mut encoder, &mut screen, Mode::Delta, &[]).payload);
    stream.push(encode(&mut encoder, &mut screen, Mode::Refine, &[]).payload);
    let quality: Vec<_> =
        decode(Codec::H264, &stream).iter().map(|picture| picture.psnr(&screen)).collect();
    assert!(stream[1].len() < 200, "an unchanged picture took {} bytes", stream[1].len());
    assert!((quality[1] - quality[0]).abs() < 0.1, "{quality:?}");
    assert!(quality[2] > quality[0] + 3.0, "{quality:?}");
}
