//! PNG, one file a picture, for which only what changed is compressed.
//!
//! The picture is cut into bands of rows, and each is compressed on its own, ending on a byte and
//! without a reference beyond its edge. A file is the bands one after the other, each in a chunk:
//! to a decoder that is one stream of data like any other. A caret costs one band of 32 rows, not
//! 1080; cutting costs less than a hundredth of the size.

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use spaceport_types::{Bitrate, Codec, Error, Kind, Result, Size};

use super::pixels::Pixels;
use super::{Config, Encoded, Encoder, Mode};
use crate::Frame;

/// Rows in a band. Fewer would not save time: the tables of each band's codes are its least cost.
const BAND: usize = 32;

/// Half the size of level 1 for a quarter more time, on text; what comes after costs twice as much.
const LEVEL: u32 = 2;

/// How many pixels are compressed in a second: 30 pictures of 1920x1080, when all of them change.
const PIXELS: u64 = 30 * 1920 * 1080;

const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Eight bits a channel, RGB, the only compression, filters and order there are (PNG 11.2.1).
const FORMAT: [u8; 5] = [8, 2, 0, 0, 0];

/// The header of a zlib stream with a window of 32 KiB (RFC 1950 §2.2).
const ZLIB: [u8; 2] = [0x78, 0x01];

/// A last block of data with nothing in it (RFC 1951 §3.2.6).
const LAST_BLOCK: [u8; 2] = [0x03, 0x00];

/// Each pixel is told by the one to its left (PNG 9.2).
const FILTER_SUB: u8 = 1;

/// `png`: every picture as a file.
#[derive(Debug)]
pub(super) struct Png {
    size: Size,
    pixels: Pixels,
    /// The picture: of every row, the number of its filter and its pixels.
    rows: Vec<u8>,
    bands: Vec<Band>,
    compressor: Compress,
}

/// A band, compressed.
#[derive(Debug)]
struct Band {
    changed: bool,
    /// The whole chunk.
    chunk: Vec<u8>,
    check: Adler,
}

impl Png {
    pub(super) fn open(config: &Config) -> Result<Self> {
        let pixels = Pixels::open(config)?;
        let Size { width, height } = config.size;
        let row = 1 + width as usize * 3;
        let mut rows = vec![0; row * height as usize];
        for row in rows.chunks_exact_mut(row) {
            row[0] = FILTER_SUB;
        }
        let bands = (0..(height as usize).div_ceil(BAND)).map(|_| Band {
            changed: true,
            chunk: Vec::new(),
            check: Adler::default(),
        });
        Ok(Self {
            size: config.size,
            pixels,
            rows,
            bands: bands.collect(),
            compressor: Compress::new(Compression::new(LEVEL), false),
        })
    }

    /// The most pictures of `size` that are worth compressing in a second.
    pub(super) fn max_fps(size: Size) -> u32 {
        u32::try_from(PIXELS / size.bounds().area().max(1)).unwrap_or(u32::MAX).max(1)
    }

    /// Takes over what changed, filtered.
    fn update(&mut self, frame: &Frame<'_>) -> Result<()> {
        let width = self.size.width as usize;
        let changed = self.pixels.update(frame)?;
        for rect in changed.damage {
            let (left, right) = (rect.x as usize, rect.right() as usize);
            // The pixel after the last that changed is told by it.
            let end = (right + 1).min(width);
            for y in rect.y as usize..rect.bottom() as usize {
                let start = y * (1 + width * 3) + 1 + left * 3;
                let (target, _) = self.rows[start..][..(end - left) * 3].as_chunks_mut();
                let mut before = match left {
                    0 => [0; 4],
                    left => changed.row(y, left - 1, 1)[0],
                };
                for (target, &pixel) in target.iter_mut().zip(changed.row(y, left, end - left)) {
                    *target = [2, 1, 0].map(|channel| {
                        let (now, before): (u8, u8) = (pixel[channel], before[channel]);
                        now.wrapping_sub(before)
                    });
                    before = pixel;
                }
                self.bands[y / BAND].changed = true;
            }
        }
        Ok(())
    }

    fn compress(&mut self) -> Result<()> {
        let row = 1 + self.size.width as usize * 3;
        for (band, rows) in self.bands.iter_mut().zip(self.rows.chunks(row * BAND)) {
            if !std::mem::take(&mut band.changed) {
                continue;
            }
            band.check = Adler::of(rows);
            band.chunk.clear();
            // The most that blocks of stored data take (RFC 1951 §3.2.4), and the flush.
            band.chunk.reserve(rows.len() + rows.len() / 1_000 + 128);
            band.chunk.extend_from_slice(&[0; 4]);
            band.chunk.extend_from_slice(b"IDAT");
            self.compressor.reset();
            let done = self.compressor.compress_vec(rows, &mut band.chunk, FlushCompress::Full);
            let whole = self.compressor.total_in() == rows.len() as u64;
            // With room to spare, what is to be flushed has been.
            if !matches!(done, Ok(Status::Ok))
                || !whole
                || band.chunk.len() == band.chunk.capacity()
            {
                return Err(Error::new(Kind::Internal, "a picture could not be compressed"));
            }
            close(&mut band.chunk);
        }
        Ok(())
    }

    fn file(&self) -> Bytes {
        let length = self.bands.iter().map(|band| band.chunk.len()).sum::<usize>();
        let mut file = Vec::with_capacity(length + 128);
        file.extend_from_slice(&SIGNATURE);
        let sides = [self.size.width, self.size.height].map(u32::to_be_bytes);
        chunk(&mut file, *b"IHDR", &[sides.as_flattened(), &FORMAT]);
        chunk(&mut file, *b"IDAT", &[&ZLIB]);
        let mut check = Adler::default();
        for band in &self.bands {
            file.extend_from_slice(&band.chunk);
            check = check.then(band.check);
        }
        chunk(&mut file, *b"IDAT", &[&LAST_BLOCK, &check.sum().to_be_bytes()]);
        chunk(&mut file, *b"IEND", &[]);
        file.into()
    }
}

impl Encoder for Png {
    fn codec(&self) -> Codec {
        Codec::Png
    }

    fn name(&self) -> &'static str {
        super::PNG_NAME
    }

    fn encode(&mut self, frame: &Frame<'_>, mode: Mode) -> Result<Option<Encoded>> {
        self.update(frame)?;
        if mode == Mode::Refine {
            return Ok(None);
        }
        self.compress()?;
        Ok(Some(Encoded { payload: self.file(), keyframe: true }))
    }

    fn set_bitrate(&mut self, _: Bitrate) -> Result<()> {
        // There is nothing to leave out.
        Ok(())
    }
}

/// Appends a chunk (PNG 5.3).
fn chunk(file: &mut Vec<u8>, name: [u8; 4], parts: &[&[u8]]) {
    let start = file.len();
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(&name);
    for part in parts {
        file.extend_from_slice(part);
    }
    let mut whole = file.split_off(start);
    close(&mut whole);
    file.append(&mut whole);
}

/// Writes the length into a chunk that is otherwise whole, and its checksum after it.
fn close(chunk: &mut Vec<u8>) {
    let length = (chunk.len() - 8) as u32;
    chunk[..4].copy_from_slice(&length.to_be_bytes());
    let mut crc = Crc::new();
    crc.update(&chunk[4..]);
    chunk.extend_from_slice(&crc.sum().to_be_bytes());
}

/// The checksum of a zlib stream (RFC 1950 §8.2), which can be put together from those of its parts.
#[derive(Clone, Copy, Debug)]
struct Adler {
    sum: u32,
    length: u64,
}

impl Default for Adler {
    fn default() -> Self {
        Self { sum: 1, length: 0 }
    }
}

impl Adler {
    const MODULUS: u64 = 65_521;

    fn of(data: &[u8]) -> Self {
        Self { sum: simd_adler32::adler32(&data), length: data.len() as u64 }
    }

    /// The checksum of what this one is of, and after it what `next` is of.
    ///
    /// The lower half counts bytes from 1, the upper half adds up the lower after each byte. So
    /// `next` begins with a lower half that is off by what came before, and adds that up as often as
    /// it has bytes.
    fn then(self, next: Self) -> Self {
        let halves = |sum: u32| (u64::from(sum & 0xffff), u64::from(sum >> 16));
        let ((low, high), (next_low, next_high)) = (halves(self.sum), halves(next.sum));
        let offset = low + Self::MODULUS - 1;
        let added = (next.length % Self::MODULUS) * (offset % Self::MODULUS);
        let low = (offset + next_low) % Self::MODULUS;
        let high = (high + next_high + added) % Self::MODULUS;
        Self { sum: (high << 16 | low) as u32, length: self.length + next.length }
    }

    fn sum(self) -> u32 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::tests::{Screen, config, encode};
    use spaceport_types::Rect;

    #[test]
    fn a_checksum_is_that_of_its_parts() {
        let data: Vec<u8> = (0..300_000u32).map(|index| (index * 7 % 253) as u8).collect();
        for at in [0, 1, 65_520, 65_521, 65_522, 299_999, 300_000] {
            let (head, tail) = data.split_at(at);
            let both = Adler::of(head).then(Adler::of(tail));
            assert_eq!(both.sum(), simd_adler32::adler32(&&data[..]), "{at}");
        }
        assert_eq!(Adler::default().then(Adler::of(&data)).sum(), Adler::of(&data).sum());
    }

    #[test]
    fn only_what_changed_is_compressed_again() {
        let mut screen = Screen::new(300, 200);
        screen.noise(screen.size.bounds());
        let mut png = Png::open(&config(Codec::Png, screen.size)).unwrap();
        let whole = screen.whole();
        png.encode(&screen.frame(&whole), Mode::Keyframe).unwrap();
        let before: Vec<_> = png.bands.iter().map(|band| band.chunk.clone()).collect();
        let changed = Rect::new(290, 60, 10, 10);
        screen.noise(screen.size.bounds());
        png.encode(&screen.frame(&[changed]), Mode::Delta).unwrap();
        let same = png.bands.iter().zip(before).map(|(band, before)| band.chunk == before);
        assert_eq!(same.collect::<Vec<_>>(), [true, false, false, true, true, true, true]);
    }

    #[test]
    fn a_picture_that_was_changed_is_the_one_that_is_new() {
        for (size, to) in
            [(Size::new(131, 97), Size::new(131, 97)), (Size::new(300, 201), Size::new(149, 101))]
        {
            let mut screen = Screen::new(size.width, size.height);
            screen.noise(screen.size.bounds());
            let config = Config { size: to, ..config(Codec::Png, size) };
            let open = || -> Box<dyn Encoder> { Box::new(Png::open(&config).unwrap()) };
            let mut encoder = open();
            let whole = screen.whole();
            encode(&mut encoder, &mut screen, Mode::Keyframe, &whole);
            for rect in [
                Rect::new(0, 0, 1, 1),
                Rect::new(size.width - 1, 40, 1, 57),
                Rect::new(50, 31, 64, 2),
            ] {
                screen.noise(rect);
                let delta = encode(&mut encoder, &mut screen, Mode::Delta, &[rect]);
                let fresh = encode(&mut open(), &mut screen, Mode::Keyframe, &whole);
                assert!(delta.payload == fresh.payload, "{rect:?}");
            }
        }
    }
}
