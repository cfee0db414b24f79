//! H.264 by libx264, called directly: the only way to say which macroblocks have not changed, and
//! to choose the motion search frame by frame.
//!
//! Ultrafast, zerolatency, no B-frames, no keyframe that was not asked for. What changed since the
//! frame before is known from capture, so unchanged macroblocks are skipped without a look
//! (`mb_info`), and the wide motion search runs only on frames in which
//! [`super::motion`] saw something move. The quantizer of each frame is decided in [`super::rate`].

#![expect(unsafe_code, reason = "libx264 is a C library")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{NonNull, null};

use bytes::Bytes;
use spaceport_types::{Bitrate, Cause, Codec, Error, Result, Size};

use super::convert::{Canvas, Layout, Matrix};
use super::motion::Detector;
use super::rate::Rate;
use super::{Config, Encoded, Encoder, Mode};
use crate::Frame;

/// Reach of the wide motion search, around the distance of the move, in pixels.
const SEARCH_MARGIN: u32 = 16;
const MIN_SEARCH: u32 = 32;
const MAX_SEARCH: u32 = 256;

/// libx264, made for one size.
#[derive(Debug)]
pub(super) struct X264 {
    library: Library,
    canvas: Canvas,
    detector: Detector,
    /// One byte a macroblock: 1 where nothing changed.
    unchanged: Vec<u8>,
    /// The last change was not encoded, for want of room on the path.
    waiting: bool,
    rate: Rate,
    /// The quantizer of every picture, if that is not for `rate` to say.
    fixed: Option<u8>,
}

impl X264 {
    pub(super) fn open(config: &Config, quantizer: Option<u8>) -> Result<Self> {
        let canvas = Canvas::new(Layout::Nv12, Matrix::Bt601, config.source, config.size);
        let coded = canvas.coded();
        let rate = Rate::new(coded, config.bitrate, config.latency, config.max_fps);
        let library = Library::open(&Settings {
            width: side(coded.width)?,
            height: side(coded.height)?,
            fps: config.max_fps.clamp(1, MAX_FPS) as c_int,
            level: level(coded, config.max_fps),
            threads: 1,
        })?;
        let macroblocks = coded.width.div_ceil(16) as usize * coded.height.div_ceil(16) as usize;
        Ok(Self {
            library,
            detector: Detector::new(coded),
            unchanged: vec![1; macroblocks],
            waiting: false,
            canvas,
            rate,
            fixed: quantizer.map(|it| it.clamp(1, MAX_QUANTIZER)),
        })
    }

    /// Marks what the last update changed, and what changed before and had to wait.
    fn mark(&mut self) {
        let columns = self.canvas.coded().width.div_ceil(16) as usize;
        if !std::mem::take(&mut self.waiting) {
            self.unchanged.fill(1);
        }
        for rect in self.canvas.damage() {
            let (left, right) = (rect.x as usize / 16, (rect.right() as usize).div_ceil(16));
            for row in rect.y / 16..rect.bottom().div_ceil(16) {
                let start = row as usize * columns;
                self.unchanged[start + left..start + right].fill(0);
            }
        }
    }
}

impl Encoder for X264 {
    fn codec(&self) -> Codec {
        Codec::H264
    }

    fn name(&self) -> &'static str {
        super::X264_NAME
    }

    fn encode(&mut self, frame: &Frame<'_>, mode: Mode) -> Result<Option<Encoded>> {
        self.detector.before(self.canvas.luma(), frame.damage);
        self.canvas.update(frame)?;
        let moved = self.detector.after(self.canvas.luma());
        self.mark();
        let width = self.canvas.coded().width as usize;
        let quantizer = self.rate.plan(
            frame.captured_at,
            self.canvas.luma(),
            width,
            &self.unchanged,
            mode,
            moved.is_some(),
        );
        let Some(quantizer) = self.fixed.or(quantizer) else {
            self.waiting = true;
            return Ok(None);
        };
        let search = match (mode, moved) {
            (Mode::Delta, Some((x, y))) => {
                let distance = x.unsigned_abs().max(y.unsigned_abs());
                (distance + SEARCH_MARGIN).clamp(MIN_SEARCH, MAX_SEARCH)
            }
            _ => 0,
        };
        let (luma, chroma) = self.canvas.planes().split_at(self.canvas.luma().len());
        let mut picture = Picture {
            luma: luma.as_ptr(),
            chroma: chroma.as_ptr(),
            mb_info: if mode == Mode::Delta { self.unchanged.as_ptr() } else { null() },
            pts: i64::try_from(frame.captured_at.as_micros()).unwrap_or(i64::MAX),
            idr: c_int::from(mode == Mode::Keyframe),
            search: search as c_int,
            quantizer: c_int::from(quantizer),
        };
        // SAFETY: the planes are those of the size the encoder was opened with, luma rows and
        // interleaved chroma rows `width` apart; `mb_info` has a byte for every macroblock. All
        // outlive the call, after which x264 reads none of them.
        let mut encoded = unsafe { self.library.encode(&picture) }?;
        if mode == Mode::Keyframe
            && self.fixed.is_none()
            && let Some(first) = &encoded
            && self.rate.is_too_much(first.payload.len())
            && let Some(coarser) = self.rate.plan(
                frame.captured_at,
                self.canvas.luma(),
                width,
                &self.unchanged,
                mode,
                moved.is_some(),
            )
            && coarser > quantizer
        {
            picture.quantizer = c_int::from(coarser);
            // Each picture of a stream is later than the one before.
            picture.pts = picture.pts.saturating_add(1);
            // SAFETY: as above; the planes are the same.
            encoded = unsafe { self.library.encode(&picture) }?;
        }
        if let Some(encoded) = &encoded {
            self.rate.spent(encoded.payload.len(), &self.unchanged);
        }
        Ok(encoded)
    }

    fn set_bitrate(&mut self, bitrate: Bitrate) -> Result<()> {
        self.rate.set_bitrate(bitrate);
        Ok(())
    }
}

/// The coarsest that H.264 has; 0 would be lossless, which its baseline profile has not.
const MAX_QUANTIZER: u8 = 51;

/// The highest frame rate that is worth telling apart.
const MAX_FPS: u32 = 240;

fn side(pixels: u32) -> Result<c_int> {
    /// The widest picture any level of H.264 has room for (ITU-T H.264 A.3.1: `8 * MaxFS`).
    const MAX_SIDE: u32 = 16_384;
    c_int::try_from(pixels).ok().filter(|_| (2..=MAX_SIDE).contains(&pixels)).ok_or_else(|| {
        Error::because(Cause::EncoderFailed, format!("H.264 has no pictures {pixels} pixels wide"))
            .hint("Set a smaller `max_dimension`")
    })
}

/// The lowest level that holds `size` at `fps`, but at least 3.1, the one that WebRTC offers name.
fn level(size: Size, fps: u32) -> c_int {
    /// Level times ten, `MaxMBPS`, `MaxFS` (ITU-T H.264 table A-1).
    const LEVELS: [(c_int, u32, u32); 11] = [
        (31, 108_000, 3_600),
        (32, 216_000, 5_120),
        (40, 245_760, 8_192),
        (42, 522_240, 8_704),
        (50, 589_824, 22_080),
        (51, 983_040, 36_864),
        (52, 2_073_600, 36_864),
        (60, 4_177_920, 139_264),
        (61, 8_355_840, 139_264),
        (62, 16_711_680, 139_264),
        (62, u32::MAX, u32::MAX),
    ];
    let frame = size.width.div_ceil(16) * size.height.div_ceil(16);
    let fits = |&&(_, rate, area): &&(c_int, u32, u32)| {
        // A.3.1 also bounds each side by the root of eight times the area.
        let longer = size.width.max(size.height).div_ceil(16);
        frame <= area
            && frame.saturating_mul(fps) <= rate
            && longer * longer <= area.saturating_mul(8)
    };
    LEVELS.iter().find(fits).map_or(62, |&(level, ..)| level)
}

/// `sp_settings` of x264_shim.c.
#[repr(C)]
struct Settings {
    width: c_int,
    height: c_int,
    fps: c_int,
    level: c_int,
    threads: c_int,
}

/// `sp_picture` of x264_shim.c.
#[repr(C)]
struct Picture {
    luma: *const u8,
    chroma: *const u8,
    mb_info: *const u8,
    pts: i64,
    idr: c_int,
    search: c_int,
    quantizer: c_int,
}

/// `sp_output` of x264_shim.c.
#[repr(C)]
struct Output {
    head: *const u8,
    head_len: usize,
    tail: *const u8,
    tail_len: usize,
    keyframe: c_int,
}

enum Handle {}

unsafe extern "C" {
    fn sp_x264_open(settings: *const Settings) -> *mut Handle;
    fn sp_x264_encode(handle: *mut Handle, picture: *const Picture, out: *mut Output) -> c_int;
    fn sp_x264_is_open(handle: *const Handle) -> c_int;
    fn sp_x264_message(handle: *const Handle) -> *const c_char;
    fn sp_x264_close(handle: *mut Handle);
}

/// An open encoder of libx264.
#[derive(Debug)]
struct Library(NonNull<Handle>);

// SAFETY: with one thread, x264 keeps nothing that belongs to the thread that opened it, and a
// `Library` is only used by whoever owns it.
unsafe impl Send for Library {}

impl Library {
    fn open(settings: &Settings) -> Result<Self> {
        // SAFETY: `settings` is laid out as the shim reads it, and read during the call only.
        let handle = unsafe { sp_x264_open(settings) };
        let library = NonNull::new(handle).map(Self).ok_or_else(|| {
            Error::because(Cause::EncoderFailed, "x264 could not be opened: out of memory")
        })?;
        // SAFETY: the handle is valid until `library` is dropped.
        match unsafe { sp_x264_is_open(handle) } {
            0 => Err(library.error("x264 could not be opened")),
            _ => Ok(library),
        }
    }

    /// # Safety
    ///
    /// The pointers in `picture` are valid, for the size the library was opened with.
    unsafe fn encode(&mut self, picture: &Picture) -> Result<Option<Encoded>> {
        let mut output =
            Output { head: null(), head_len: 0, tail: null(), tail_len: 0, keyframe: 0 };
        // SAFETY: the handle is open; the caller vouches for what `picture` points to.
        match unsafe { sp_x264_encode(self.0.as_ptr(), picture, &mut output) } {
            0 => {}
            1 => return Ok(None),
            _ => return Err(self.error("x264 could not encode a frame")),
        }
        // SAFETY: both parts lie within what x264 has just written, which stays until the next
        // call; when there is something, neither pointer is null.
        let (head, tail) = unsafe {
            (
                std::slice::from_raw_parts(output.head, output.head_len),
                std::slice::from_raw_parts(output.tail, output.tail_len),
            )
        };
        let mut payload = Vec::with_capacity(head.len() + tail.len());
        payload.extend_from_slice(head);
        payload.extend_from_slice(tail);
        Ok(Some(Encoded { payload: Bytes::from(payload), keyframe: output.keyframe != 0 }))
    }

    fn error(&self, what: &str) -> Error {
        // SAFETY: the shim returns its own zero-terminated buffer, which lives as long as it does.
        let message = unsafe { CStr::from_ptr(sp_x264_message(self.0.as_ptr())) };
        let why = match message.to_string_lossy() {
            message if message.is_empty() => "it did not say why".into(),
            message => message,
        };
        Error::because(Cause::EncoderFailed, format!("{what}: {why}"))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe { sp_x264_close(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::tests::{BLACK, Bits, Screen, config, decode, encode, open, payload};
    use crate::encode::{Preference, bitstream};
    use spaceport_types::Rect;
    use std::time::Duration;

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
        after.assert_color("x264", 120, 62, [40, 200, 90]);
        // Macroblocks of 16 that the declared rectangle touches.
        let touched = Rect::new(96, 48, 48, 32);
        let mut changed = 0;
        for (index, (old, new)) in before.luma.iter().zip(&after.luma).enumerate() {
            let (x, y) = (index as u32 % 640, index as u32 / 640);
            let inside = (touched.x..touched.right()).contains(&x)
                && (touched.y..touched.bottom()).contains(&y);
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

    /// A card crosses a page and then moves to and fro beside it, without a rest.
    #[test]
    fn what_moved_past_leaves_no_trace() {
        let mut page = Screen::new(640, 360);
        page.text(page.size.bounds());
        let mut card = Screen::new(120, 90);
        card.noise(card.size.bounds());
        let mut screen = Screen::new(640, 360);
        screen.pixels.copy_from_slice(&page.pixels);
        let mut encoder = open("x264", screen.size);
        let mut before = Rect::new(0, 20, 120, 90);
        let mut stream = Vec::new();
        for index in 0..100 {
            let (x, y) = match index {
                0..50 => (index * 8, 20 + index * 3),
                _ => (400 + index % 2 * 8, 170),
            };
            let now = Rect { x, y, ..before };
            screen.paste(&page, before, before);
            screen.paste(&card, card.size.bounds(), now);
            let (mode, damage) = match index {
                0 => (Mode::Keyframe, screen.whole().to_vec()),
                _ => (Mode::Delta, vec![before, now]),
            };
            stream.push(encode(&mut encoder, &mut screen, mode, &damage).payload);
            before = now;
        }
        let pictures = decode(Codec::H264, &stream);
        // Where it was until 450 ms before the end; at 23, text comes out at 39 dB.
        let quality = pictures[99].psnr_in(&screen, Rect::new(120, 60, 180, 120));
        assert!(quality > 44.0, "{quality} dB");
        // And it is made good once, not again and again.
        let sizes: Vec<_> = stream.iter().map(Bytes::len).collect();
        let (some, others) = (&sizes[70..], &sizes[40..70]);
        let sum = |sizes: &[usize]| sizes.iter().sum::<usize>();
        assert!(sum(some) <= sum(others), "{sizes:?}");
    }

    #[test]
    fn the_sps_promises_no_delay_and_says_the_colors() {
        for (size, level) in [
            (Size::new(640, 360), 31),
            (Size::new(1280, 720), 32),
            (Size::new(1920, 1080), 42),
            (Size::new(3839, 1080), 51),
        ] {
            let mut screen = Screen::new(size.width, size.height);
            let mut encoder = open("x264", size);
            let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &[]);
            let sps = bitstream::nal_units(&key.payload).next().unwrap();
            let sps = Sps::read(sps);
            assert_eq!(sps.profile, 66);
            assert_eq!(sps.constraints & 0xC0, 0xC0, "constrained baseline");
            assert_eq!(sps.level, level, "{size:?}");
            assert_eq!((sps.reorder_frames, sps.buffered_frames, sps.reference_frames), (0, 1, 1));
            assert_eq!((sps.colors, sps.full_range), ([1, 1, 6], false), "BT.601 weights, limited");
        }
    }

    #[test]
    fn scrolled_text_takes_a_fraction_of_new_text() {
        let mut screen = Screen::new(1280, 720);
        let window = Rect::new(0, 0, 1280, 720);
        screen.text(window);
        let mut encoder = open("x264", screen.size);
        let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &[window]);
        let mut stream = vec![key.payload];
        for _ in 0..5 {
            screen.scroll(window, 36);
            stream.push(encode(&mut encoder, &mut screen, Mode::Delta, &[window]).payload);
        }
        let sizes: Vec<_> = stream.iter().map(Bytes::len).collect();
        // A twentieth of each picture is new; a search that misses codes nearly all of it again.
        assert!(sizes[1..].iter().all(|&size| size < sizes[0] / 6), "{sizes:?}");
        let last = decode(Codec::H264, &stream).pop().unwrap();
        assert!(last.psnr(&screen) > 33.0, "{}", last.psnr(&screen));
    }

    #[test]
    fn a_change_that_waited_for_the_path_comes_later() {
        let mut screen = Screen::new(640, 360);
        let whole = [screen.size.bounds()];
        let config =
            Config { bitrate: Bitrate::from_kbps(1_000), ..config(Codec::H264, screen.size) };
        let mut encoder = crate::encode::open(&config, &Preference::default()).unwrap();
        screen.noise(whole[0]);
        let key = encode(&mut encoder, &mut screen, Mode::Keyframe, &whole);
        let mut stream = vec![key.payload];
        let corner = Rect::new(0, 0, 320, 180);
        screen.fill(corner, [40, 200, 90]);
        screen.noise(Rect::new(320, 180, 320, 180));
        let waited = encoder.encode(&screen.frame(&whole), Mode::Delta).unwrap();
        assert!(waited.is_none(), "the keyframe alone is more than a second's worth");
        // Long after, something else changes; what waited is not in the damage again.
        screen.now += Duration::from_secs(3);
        let caret = Rect::new(600, 20, 2, 16);
        stream.push(encode(&mut encoder, &mut screen, Mode::Delta, &[caret]).payload);
        let last = decode(Codec::H264, &stream).pop().unwrap();
        let green = last.color("x264", 160, 90)[1];
        assert!((green - 200.0).abs() < 10.0, "{green}");
    }

    #[test]
    fn a_slow_desktop_may_use_the_whole_rate() {
        let mut screen = Screen::new(640, 360);
        let whole = screen.whole();
        let config =
            Config { bitrate: Bitrate::from_kbps(4_000), ..config(Codec::H264, screen.size) };
        let mut encoder = crate::encode::open(&config, &Preference::default()).unwrap();
        let mut sizes = Vec::new();
        for index in 0..6 {
            // One change a second: the path was idle for all of it, and its 250 ms of burst are full.
            screen.now += Duration::from_millis(984);
            screen.noise(Rect::new(0, 0, 640, 180));
            let mode = if index == 0 { Mode::Keyframe } else { Mode::Delta };
            sizes.push(encode(&mut encoder, &mut screen, mode, &whole).payload.len());
        }
        let burst = 4_000_000 / 8 / 4;
        // The first two teach it what noise costs.
        assert!(sizes[0] < burst * 3, "{sizes:?}");
        for size in &sizes[2..] {
            assert!((burst / 2..burst * 5 / 4).contains(size), "{sizes:?} bytes of {burst}");
        }
    }

    /// Reads the syntax of an SPS (ITU-T H.264 7.3.2.1.1, E.1.1), as far as a decoder's delay and its
    /// colors depend on it.
    struct Sps {
        profile: u8,
        constraints: u8,
        level: u32,
        reference_frames: u32,
        /// Primaries, transfer, matrix.
        colors: [u32; 3],
        full_range: bool,
        reorder_frames: u32,
        buffered_frames: u32,
    }

    impl Sps {
        /// For the baseline profile, which has no scaling lists.
        fn read(unit: &[u8]) -> Self {
            let bytes = payload(unit);
            let mut bits = Bits(&bytes, 0);
            let (profile, constraints, level) = (bits.u(8) as u8, bits.u(8) as u8, bits.u(8));
            assert_eq!(profile, 66);
            bits.ue(); // seq_parameter_set_id
            bits.ue(); // log2_max_frame_num_minus4
            match bits.ue() {
                0 => skip_ue(&mut bits, 1),
                2 => {}
                other => panic!("pic_order_cnt_type {other}"),
            }
            let reference_frames = bits.ue();
            bits.flag(); // gaps_in_frame_num_value_allowed_flag
            bits.ue();
            bits.ue();
            assert!(bits.flag(), "frame_mbs_only_flag");
            bits.flag(); // direct_8x8_inference_flag
            if bits.flag() {
                skip_ue(&mut bits, 4);
            }
            assert!(bits.flag(), "vui_parameters_present_flag");
            assert!(!bits.flag(), "aspect_ratio_info_present_flag");
            assert!(!bits.flag(), "overscan_info_present_flag");
            assert!(bits.flag(), "video_signal_type_present_flag");
            bits.u(3); // video_format
            let full_range = bits.flag();
            assert!(bits.flag(), "colour_description_present_flag");
            let colors = [bits.u(8), bits.u(8), bits.u(8)];
            assert!(!bits.flag(), "chroma_loc_info_present_flag");
            if bits.flag() {
                bits.u(32);
                bits.u(32);
                bits.flag();
            }
            assert!(!bits.flag() && !bits.flag(), "no HRD");
            bits.flag(); // pic_struct_present_flag
            assert!(bits.flag(), "bitstream_restriction_flag");
            bits.flag();
            skip_ue(&mut bits, 4);
            let (reorder_frames, buffered_frames) = (bits.ue(), bits.ue());
            Self {
                profile,
                constraints,
                level,
                reference_frames,
                colors,
                full_range,
                reorder_frames,
                buffered_frames,
            }
        }
    }

    fn skip_ue(bits: &mut Bits<'_>, count: usize) {
        for _ in 0..count {
            bits.ue();
        }
    }
}
