//! What is encoded is decoded again, by decoders nobody here wrote, and compared by pixel.

use std::time::Duration;

use bytes::Bytes;
use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_app as gst_app;
use gstreamer_video as gst_video;
use gstreamer_video::prelude::*;
use spaceport_types::{Bitrate, Cause, Codec, Rect, Size};

use super::{CANDIDATES, Config, Encoded, Encoder, Mode, Preference};
use crate::Frame;
use crate::capture::counter;

/// The picture 16 ms apart that tests draw on.
pub(super) struct Screen {
    pub(super) size: Size,
    pub(super) pixels: Vec<u8>,
    pub(super) now: Duration,
    random: u64,
}

/// How far a flat color may be off, of 255. The fallbacks choose their own quantizer.
fn tolerance(name: &str) -> f64 {
    if name == "x264" { 3.0 } else { 10.0 }
}

fn codec(name: &str) -> Codec {
    let known = CANDIDATES.iter().find(|candidate| candidate.name == name);
    known.expect("a candidate of that name").codec
}

pub(super) type Color = [u8; 3]; // blue, green, red

pub(super) const BLACK: Color = [0, 0, 0];
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
    #[cfg(feature = "x264")]
    pub(super) fn scroll(&mut self, rect: Rect, rows: u32) {
        let bytes = rect.width as usize * 4;
        for y in rect.y..rect.bottom() - rows {
            let from = (y + rows) as usize * self.stride() + rect.x as usize * 4;
            let to = y as usize * self.stride() + rect.x as usize * 4;
            self.pixels.copy_within(from..from + bytes, to);
        }
        self.text(Rect::new(rect.x, rect.bottom() - rows, rect.width, rows));
    }

    /// Draws `from` of another picture at `to`, which is as large.
    #[cfg(feature = "x264")]
    pub(super) fn paste(&mut self, other: &Self, from: Rect, to: Rect) {
        let bytes = from.width as usize * 4;
        for row in 0..from.height {
            let source = (from.y + row) as usize * other.stride() + from.x as usize * 4;
            let target = (to.y + row) as usize * self.stride() + to.x as usize * 4;
            self.pixels[target..][..bytes].copy_from_slice(&other.pixels[source..][..bytes]);
        }
    }

    /// Moves what is in `from` to `to`, and draws noise where it was.
    #[cfg(feature = "x264")]
    pub(super) fn drag(&mut self, from: Rect, to: Rect) {
        let bytes = from.width as usize * 4;
        let at = |screen: &Self, rect: Rect, row: u32| {
            (rect.y + row) as usize * screen.stride() + rect.x as usize * 4
        };
        let rows = (0..from.height).map(|row| {
            let start = at(self, from, row);
            self.pixels[start..start + bytes].to_vec()
        });
        let rows: Vec<_> = rows.collect();
        self.noise(from);
        for (row, pixels) in rows.into_iter().enumerate() {
            let start = at(self, to, row as u32);
            self.pixels[start..start + bytes].copy_from_slice(&pixels);
        }
    }

    pub(super) fn frame<'a>(&'a mut self, damage: &'a [Rect]) -> Frame<'a> {
        self.now += Duration::from_millis(16);
        let (stride, size) = (self.stride(), self.size);
        Frame { pixels: &self.pixels, stride, size, damage, captured_at: self.now }
    }

    pub(super) fn whole(&self) -> [Rect; 1] {
        [self.size.bounds()]
    }
}

/// A decoded picture.
pub(super) struct Picture {
    pub(super) size: Size,
    pub(super) luma: Vec<u8>,
    chroma: [Vec<u8>; 2],
}

impl Picture {
    /// The color at a pixel, by the definition of the matrix in the limited range.
    pub(super) fn color(&self, name: &str, x: u32, y: u32) -> [f64; 3] {
        let (kr, kb) = match name {
            "openh264enc" => (0.2126, 0.0722),
            _ => (0.299, 0.114),
        };
        let width = self.size.width as usize;
        let luma = f64::from(self.luma[y as usize * width + x as usize]);
        let half = y as usize / 2 * width.div_ceil(2) + x as usize / 2;
        let [cb, cr] = [0, 1].map(|plane| f64::from(self.chroma[plane][half]) - 128.0);
        let luma = (luma - 16.0) * 255.0 / 219.0;
        let (cb, cr) = (cb * 255.0 / 112.0, cr * 255.0 / 112.0);
        let (b, r) = (luma + (1.0 - kb) * cb, luma + (1.0 - kr) * cr);
        [b, (luma - kr * r - kb * b) / (1.0 - kr - kb), r].map(|value| value.clamp(0.0, 255.0))
    }

    pub(super) fn assert_color(&self, name: &str, x: u32, y: u32, expected: Color) {
        let color = self.color(name, x, y);
        for (&value, &expected) in color.iter().zip(&expected) {
            let off = (value - f64::from(expected)).abs();
            assert!(
                off <= tolerance(name),
                "{name}: {color:?} at {x},{y} of {:?}, not {expected:?}",
                self.size
            );
        }
    }

    /// Quality of the luma against `screen`, in dB.
    #[cfg(feature = "x264")]
    pub(super) fn psnr(&self, screen: &Screen) -> f64 {
        self.psnr_in(screen, screen.size.bounds())
    }

    /// The same of a part.
    #[cfg(feature = "x264")]
    pub(super) fn psnr_in(&self, screen: &Screen, rect: Rect) -> f64 {
        let mut squares = 0.0;
        for (x, y) in
            (rect.y..rect.bottom()).flat_map(|y| (rect.x..rect.right()).map(move |x| (x, y)))
        {
            let index = (y * screen.size.width + x) as usize;
            let pixel = &screen.pixels[index * 4..index * 4 + 3];
            let [b, g, r] = [0, 1, 2].map(|channel| f64::from(pixel[channel]));
            let luma = 16.0 + (0.114 * b + 0.587 * g + 0.299 * r) * 219.0 / 255.0;
            squares += (f64::from(self.luma[index]) - luma).powi(2);
        }
        let pixels = f64::from(rect.width) * f64::from(rect.height);
        10.0 * (255.0f64.powi(2) * pixels / squares.max(1e-9)).log10()
    }
}

/// Decodes a stream with a decoder of GStreamer.
pub(super) fn decode(codec: Codec, stream: &[Bytes]) -> Vec<Picture> {
    gst::init().unwrap();
    let (caps, decoders) = match codec {
        Codec::Vp8 => ("video/x-vp8", ["avdec_vp8", "vp8dec"].as_slice()),
        Codec::Vp9 => ("video/x-vp9", ["avdec_vp9", "vp9dec"].as_slice()),
        Codec::Av1 => {
            ("video/x-av1,stream-format=obu-stream,alignment=tu", ["dav1ddec", "av1dec"].as_slice())
        }
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

pub(super) fn config(codec: Codec, size: Size) -> Config {
    Config {
        codec,
        source: size,
        size,
        bitrate: Bitrate::from_kbps(50_000),
        max_fps: 60,
        latency: Duration::from_millis(250),
    }
}

pub(super) fn open(name: &str, size: Size) -> Box<dyn Encoder> {
    let preference = Preference { encoder: Some(name.to_owned()), ..Preference::default() };
    super::open(&config(codec(name), size), &preference).unwrap()
}

/// All implementations in software that leave something out; each has to do right by every test.
fn encoders() -> Vec<&'static str> {
    let lossy = CANDIDATES.iter().filter(|candidate| !LOSSLESS.contains(&candidate.codec));
    lossy.filter(|candidate| candidate.device.is_none()).map(|candidate| candidate.name).collect()
}

const LOSSLESS: [Codec; 2] = [Codec::Png, Codec::Bgra];

pub(super) fn encode(
    encoder: &mut Box<dyn Encoder>,
    screen: &mut Screen,
    mode: Mode,
    damage: &[Rect],
) -> Encoded {
    encoder.encode(&screen.frame(damage), mode).unwrap().expect("a frame came out")
}

#[test]
fn colors_survive() {
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
                    pictures[0].assert_color(name, x, y, expected);
                }
            }
        }
    }
}

#[test]
fn odd_sizes_are_padded_to_even() {
    for name in encoders() {
        for (width, height) in [(789, 595), (1, 1), (3839, 1080), (17, 3)] {
            let least = match name {
                "openh264enc" => 16,
                "av1enc" => 4,
                _ => 1,
            };
            if height < least {
                continue; // refused, see `what_an_encoder_cannot_do_is_said`
            }
            let mut screen = Screen::new(width, height);
            screen.fill(screen.size.bounds(), [200, 120, 40]);
            let mut encoder = open(name, screen.size);
            let damage = screen.whole();
            let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &damage);
            let pictures = decode(encoder.codec(), &[key.payload]);
            let picture = &pictures[0];
            assert_eq!(picture.size, screen.size.padded_to_even(), "{name}");
            for (x, y) in [(0, 0), (picture.size.width - 1, picture.size.height - 1)] {
                picture.assert_color(name, x, y, [200, 120, 40]);
            }
        }
    }
}

#[test]
fn a_smaller_size_shows_the_whole_picture() {
    for name in encoders() {
        let mut screen = Screen::new(1280, 721);
        screen.bars();
        let config = Config { size: screen.size.fitted(639), ..config(codec(name), screen.size) };
        let preference = Preference { encoder: Some(name.to_owned()), ..Preference::default() };
        let mut encoder = super::open(&config, &preference).unwrap();
        let damage = screen.whole();
        let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &damage);
        let blue = Rect::new(160, 360, 160, 361);
        screen.fill(blue, [255, 0, 0]);
        let delta = encode(&mut encoder, &mut screen, Mode::Delta, &[blue]);
        let pictures = decode(codec(name), &[key.payload, delta.payload]);
        assert_eq!(pictures[1].size, Size::new(640, 360), "{name}");
        for (index, color) in BARS.into_iter().enumerate() {
            let x = index as u32 * 80 + 40;
            pictures[0].assert_color(name, x, 358, color);
            pictures[1].assert_color(name, x, 100, color);
            pictures[1].assert_color(name, x, 358, if index == 1 { [255, 0, 0] } else { color });
        }
    }
}

#[test]
fn what_an_encoder_cannot_do_is_said() {
    let refuse = |name: &str, size| {
        let preference = Preference { encoder: Some(name.to_owned()), ..Preference::default() };
        let codec = if name == "av1enc" { Codec::Av1 } else { Codec::H264 };
        super::open(&config(codec, size), &preference).err().unwrap()
    };
    for name in ["openh264enc", "av1enc"] {
        let tiny = refuse(name, Size::new(1, 1));
        assert_eq!(tiny.cause(), Some(Cause::EncoderFailed), "{tiny}");
    }
    if cfg!(feature = "x264") {
        let huge = refuse("x264", Size::new(20_000, 100));
        assert_eq!(huge.cause(), Some(Cause::EncoderFailed), "{huge}");
    }
    let unknown = refuse("nvh265enc", Size::new(640, 360));
    assert_eq!(unknown.cause(), Some(Cause::CodecUnavailable), "{unknown}");
    assert!(unknown.report().hint.unwrap().contains("openh264enc"));
    for codec in LOSSLESS {
        let large = super::open(&config(codec, Size::new(7680, 4320)), &Preference::default());
        let large = large.err().unwrap();
        assert_eq!(large.cause(), Some(Cause::EncoderFailed), "{large}");
        assert!(large.report().hint.unwrap().contains("max_dimension"));
    }
}

/// The pixels of a picture that lost nothing, without what is beside the colors.
fn pixels(codec: Codec, size: Size, payload: &Bytes) -> Vec<Color> {
    if codec == Codec::Bgra {
        let (pixels, rest) = payload.as_chunks::<4>();
        assert!(rest.is_empty() && pixels.iter().all(|pixel| pixel[3] == 255), "opaque");
        return pixels.iter().map(|&[b, g, r, _]| [b, g, r]).collect();
    }
    gst::init().unwrap();
    let pipeline = gst::parse::launch(
        "appsrc name=src caps=image/png ! pngdec ! appsink name=sink sync=false \
         caps=video/x-raw,format=RGB",
    );
    let pipeline = pipeline.unwrap().downcast::<gst::Pipeline>().unwrap();
    let source = pipeline.by_name("src").unwrap().downcast::<gst_app::AppSrc>().unwrap();
    let sink = pipeline.by_name("sink").unwrap().downcast::<gst_app::AppSink>().unwrap();
    pipeline.set_state(gst::State::Playing).unwrap();
    source.push_buffer(gst::Buffer::from_slice(payload.clone())).unwrap();
    source.end_of_stream().unwrap();
    let sample = sink.pull_sample().expect("libpng takes the file");
    let info = gst_video::VideoInfo::from_caps(sample.caps().unwrap()).unwrap();
    assert_eq!((info.width(), info.height()), (size.width, size.height));
    let frame = gst_video::VideoFrameRef::from_buffer_ref_readable(sample.buffer().unwrap(), &info)
        .unwrap();
    let rows = frame.plane_data(0).unwrap().chunks(frame.plane_stride()[0] as usize);
    let pixels = rows.flat_map(|row| row.as_chunks::<3>().0[..size.width as usize].to_vec());
    let pixels = pixels.map(|[r, g, b]| [b, g, r]).collect();
    pipeline.set_state(gst::State::Null).unwrap();
    pixels
}

#[test]
fn what_loses_nothing_is_the_same_to_the_last_pixel() {
    for codec in LOSSLESS {
        for (width, height) in [(640, 360), (789, 595), (1, 1), (17, 33)] {
            let mut screen = Screen::new(width, height);
            screen.noise(screen.size.bounds());
            let mut encoder =
                super::open(&config(codec, screen.size), &Preference::default()).unwrap();
            let mut damage = screen.whole();
            for mode in [Mode::Keyframe, Mode::Delta, Mode::Delta, Mode::Keyframe] {
                let encoded = encode(&mut encoder, &mut screen, mode, &damage);
                assert!(encoded.keyframe, "every picture is whole");
                let expected =
                    screen.pixels.as_chunks::<4>().0.iter().map(|&[b, g, r, _]| [b, g, r]);
                let seen = pixels(codec, screen.size, &encoded.payload);
                assert!(expected.eq(seen), "{codec}, {width}x{height}, {mode:?}");
                damage = [Rect::new(width / 3, height / 2, width / 2 + 1, height / 3 + 1)];
                damage[0] = damage[0].clamped(screen.size).unwrap();
                screen.text(damage[0]);
                screen.noise(Rect::new(damage[0].x, damage[0].y, 1, 1));
            }
            assert!(encoder.encode(&screen.frame(&[]), Mode::Refine).unwrap().is_none());
        }
    }
}

#[test]
fn what_loses_nothing_can_be_smaller_than_the_screen() {
    for codec in LOSSLESS {
        let mut screen = Screen::new(1280, 721);
        screen.bars();
        let size = screen.size.fitted(639);
        let config = Config { size, ..config(codec, screen.size) };
        let mut encoder = super::open(&config, &Preference::default()).unwrap();
        let whole = screen.whole();
        encode(&mut encoder, &mut screen, Mode::Keyframe, &whole);
        let blue = Rect::new(160, 360, 160, 361);
        screen.fill(blue, [255, 0, 0]);
        let delta = encode(&mut encoder, &mut screen, Mode::Delta, &[blue]);
        let pixels = pixels(codec, size, &delta.payload);
        for (index, color) in BARS.into_iter().enumerate() {
            let x = size.width as usize * (index * 2 + 1) / 16;
            let at = |y: usize| pixels[y * size.width as usize + x];
            assert_eq!(at(100), color, "{codec}");
            assert_eq!(at(350), if index == 1 { [255, 0, 0] } else { color }, "{codec}");
        }
    }
}

#[test]
fn what_loses_nothing_is_not_sent_as_often_as_it_changes() {
    let full_hd = Size::new(1920, 1080);
    for codec in LOSSLESS {
        assert_eq!(super::max_fps(codec, full_hd), 30);
        assert!(super::max_fps(codec, Size::new(640, 360)) > 240);
        assert_eq!(super::max_fps(codec, Size::new(30_000, 30_000)), 1);
    }
    assert_eq!(super::max_fps(Codec::H264, full_hd), u32::MAX);
}

#[test]
fn every_encoder_here_passes_its_probe() {
    let results = super::probe();
    assert_eq!(results.len(), CANDIDATES.len());
    for result in results {
        if result.hardware {
            // Whether it works is up to the machine; that it is said, is not.
            assert!(result.limitation.is_some(), "{result:?}");
        } else {
            assert!(result.works, "{result:?}");
        }
    }
    assert!(std::ptr::eq(results, super::probe()), "probed again");
}

/// Reads bits and Exp-Golomb codes (9.1).
pub(super) struct Bits<'a>(pub(super) &'a [u8], pub(super) usize);

impl Bits<'_> {
    pub(super) fn u(&mut self, count: u32) -> u32 {
        (0..count).fold(0, |value, _| {
            let bit = self.0[self.1 / 8] >> (7 - self.1 % 8) & 1;
            self.1 += 1;
            value << 1 | u32::from(bit)
        })
    }

    pub(super) fn flag(&mut self) -> bool {
        self.u(1) == 1
    }

    pub(super) fn ue(&mut self) -> u32 {
        let mut zeros = 0;
        while !self.flag() {
            zeros += 1;
        }
        (1 << zeros) - 1 + self.u(zeros)
    }
}

/// Takes out the bytes that keep a payload from looking like a start code (7.4.1).
pub(super) fn payload(unit: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &byte in &unit[1..] {
        if byte != 3 || !bytes.ends_with(&[0, 0]) {
            bytes.push(byte);
        }
    }
    bytes
}

fn kinds(stream: &[u8]) -> Vec<u8> {
    super::bitstream::nal_units(stream).map(|unit| unit[0] & 0x1f).collect()
}

#[test]
fn keyframes_come_when_asked_and_never_else() {
    for name in encoders() {
        let mut screen = Screen::new(640, 360);
        let mut encoder = open(name, screen.size);
        let asked = [0, 7, 8, 29];
        for index in 0..30 {
            // A cut to something else, which is no reason for a keyframe.
            let damage = screen.whole();
            if index % 10 == 5 {
                screen.noise(screen.size.bounds());
            } else {
                screen.text(screen.size.bounds());
            }
            let mode = if asked.contains(&index) { Mode::Keyframe } else { Mode::Delta };
            let encoded = encode(&mut encoder, &mut screen, mode, &damage);
            let key = encoded.keyframe;
            // For screens, openh264 takes a cut for a reason, whatever it is told.
            if name != "openh264enc" || mode == Mode::Keyframe {
                assert_eq!(key, mode == Mode::Keyframe, "{name}, frame {index}");
            }
            if codec(name) != Codec::H264 {
                continue;
            }
            let kinds = kinds(&encoded.payload);
            if key {
                assert_eq!(kinds, [7, 8, 5], "{name}: SPS, PPS, IDR and nothing else");
            } else {
                assert_eq!(kinds, [1], "{name}: one slice and nothing else");
            }
            for unit in super::bitstream::nal_units(&encoded.payload) {
                if matches!(unit[0] & 0x1f, 1 | 5) {
                    let bytes = payload(unit);
                    let mut bits = Bits(&bytes, 0);
                    assert_eq!(bits.ue(), 0, "first_mb_in_slice");
                    assert!(
                        [0, 2].contains(&(bits.ue() % 5)),
                        "{name}: a slice that is not P or I"
                    );
                }
            }
        }
    }
}

#[test]
fn the_rate_stays_below_the_cap_and_follows_it() {
    // For screens, openh264 does not go beyond quantizer 35, whatever the rate; VP8 ends sooner
    // than H.264, too.
    for name in encoders().into_iter().filter(|&name| name != "openh264enc") {
        let lower = if name == "x264" { 1_000 } else { 2_000 };
        let mut screen = Screen::new(640, 360);
        let config = Config {
            bitrate: Bitrate::from_kbps(4_000),
            latency: Duration::from_millis(200),
            ..config(codec(name), screen.size)
        };
        let preference = Preference { encoder: Some(name.to_owned()), ..Preference::default() };
        let mut encoder = super::open(&config, &preference).unwrap();
        // Each frame is 16 ms, so this is two seconds at either rate.
        for (kbps, first) in [(4_000, Mode::Keyframe), (lower, Mode::Delta)] {
            encoder.set_bitrate(Bitrate::from_kbps(kbps)).unwrap();
            let mut bits = 0;
            for index in 0..125 {
                let noisy = Rect::new(index % 7 * 40, 40, 200, 200);
                screen.noise(noisy);
                let mode = if index == 0 { first } else { Mode::Delta };
                let encoded = encoder.encode(&screen.frame(&[noisy]), mode).unwrap();
                bits += encoded.map_or(0, |encoded| encoded.payload.len() * 8);
            }
            let rate = bits as f64 / 2.0 / 1000.0;
            // What was saved up, 200 ms of it, may be spent once.
            assert!(rate < f64::from(kbps) * 1.25, "{name}: {rate} kbit/s of {kbps}");
            assert!(rate > f64::from(kbps) * 0.5, "{name}: {rate} kbit/s of {kbps}");
        }
    }
}

#[test]
fn a_small_change_shows_in_the_very_next_picture() {
    for name in encoders() {
        let mut screen = Screen::new(1280, 720);
        screen.bars();
        let mut encoder = open(name, screen.size);
        let mut damage = screen.whole();
        let mut stream = Vec::new();
        for number in 0..60 {
            for (cell, white) in counter::cells(number) {
                screen.fill(cell, if white { WHITE } else { BLACK });
            }
            let mode = if number == 0 { Mode::Keyframe } else { Mode::Delta };
            stream.push(encode(&mut encoder, &mut screen, mode, &damage).payload);
            damage = [counter::BOUNDS];
        }
        for (number, picture) in decode(codec(name), &stream).iter().enumerate() {
            let luma = |x, y| picture.luma[(y * picture.size.width + x) as usize];
            assert_eq!(counter::decode(luma), Some(number as u16), "{name}, {number}");
        }
    }
}

/// People choose by that list, so it is this one.
#[test]
fn the_document_names_exactly_the_encoders_there_are() {
    let document = include_str!("../../../../docs/codecs.md");
    let (_, section) = document.split_once("## The encoders").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let mut named: Vec<(&str, &str)> = section
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('`');
            Some((cells.next()?, cells.nth(1)?))
        })
        .collect();
    if cfg!(not(feature = "x264")) {
        named.retain(|&(name, _)| name != "x264");
    }
    let there_are: Vec<_> =
        CANDIDATES.iter().map(|candidate| (candidate.name, candidate.codec.name())).collect();
    assert_eq!(named, there_are);
}

#[test]
fn a_caret_is_no_reason_to_sharpen_everything_and_rest_is() {
    // x264 sharpens what has settled in between; OpenH264 and libaom have ideas of their own.
    for name in encoders().into_iter().filter(|name| ["vp8enc", "vp9enc"].contains(name)) {
        let mut screen = Screen::new(640, 360);
        screen.text(screen.size.bounds());
        let mut encoder = open(name, screen.size);
        let damage = screen.whole();
        let mut stream = vec![encode(&mut encoder, &mut screen, Mode::Keyframe, &damage).payload];
        let caret = Rect::new(301, 170, 2, 16);
        for index in 0..20 {
            screen.fill(caret, if index % 2 == 0 { WHITE } else { BLACK });
            stream.push(encode(&mut encoder, &mut screen, Mode::Delta, &[caret]).payload);
        }
        // At 50 Mbit/s there would be room for 100 KB in each.
        let carets: Vec<_> = stream[11..].iter().map(Bytes::len).collect();
        assert!(carets.iter().sum::<usize>() < stream[0].len() / 2, "{name}: {carets:?}");
        for _ in 0..3 {
            stream.push(encode(&mut encoder, &mut screen, Mode::Refine, &[]).payload);
        }
        let pictures = decode(codec(name), &stream);
        let (before, after) = (pictures[20].psnr(&screen), pictures[23].psnr(&screen));
        assert!(after > before + 2.0, "{name}: {before} dB, then {after} dB");
    }
}
