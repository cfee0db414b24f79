//! A source with the pointer in its pictures.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use spaceport_types::{Bounds, CursorImage, CursorPosition, Error, Kind, Rect, Result, Size};

use super::{Follower, News};
use crate::Frame;
use crate::capture::{Hidden, Source};
use crate::wake::EventFd;

/// Draws the pointer over the pictures of another source, in a copy of its own: where that one has
/// its pixels, the X server writes the next ones.
pub(crate) struct Baked {
    source: Box<dyn Source>,
    follower: Follower,
    newest: Arc<Newest>,
    /// Readable when the source or the pointer has news.
    wake: OwnedFd,
    picture: Picture,
    damage: Vec<Rect>,
}

impl Baked {
    /// Puts the pointer of an X display over what `source` shows of it.
    ///
    /// # Errors
    ///
    /// `io` when this process has no thread or descriptor left.
    pub(crate) fn over(source: Box<dyn Source>, display: Option<String>) -> Result<Self> {
        let newest = Arc::new(Newest { wake: EventFd::new()?, pointer: Mutex::default() });
        let told = Arc::clone(&newest);
        let follower = Follower::start(display, move |news| told.take(news))?;
        let wake = both(newest.wake.as_fd(), source.wake_fd()).map_err(|error| {
            Error::new(Kind::Io, format!("no descriptor for a pointer: {error}")).source(error)
        })?;
        let (picture, damage) = (Picture::default(), Vec::new());
        Ok(Self { source, follower, newest, wake, picture, damage })
    }
}

/// One descriptor that is readable while one of two is.
fn both(one: BorrowedFd<'_>, other: Option<BorrowedFd<'_>>) -> Result<OwnedFd, Errno> {
    let both = epoll::create(CreateFlags::CLOEXEC)?;
    for fd in [Some(one), other].into_iter().flatten() {
        epoll::add(&both, fd, EventData::new_u64(0), EventFlags::IN)?;
    }
    Ok(both)
}

impl Source for Baked {
    fn bounds(&self) -> Bounds {
        self.source.bounds()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }

    fn next_due(&self) -> Option<Duration> {
        self.source.next_due()
    }

    fn hidden(&self) -> Option<Hidden> {
        self.source.hidden()
    }

    fn new_title(&mut self) -> Option<String> {
        self.source.new_title()
    }

    fn has_damage(&mut self, now: Duration) -> Result<bool> {
        self.newest.wake.empty();
        let changed = self.source.has_damage(now)?;
        let shown = self.source.hidden().is_none();
        self.follower.place(shown.then(|| self.source.bounds()));
        Ok(changed || self.picture.drawn != self.newest.mark())
    }

    fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>> {
        let frame = self.source.grab(now, full)?;
        self.damage.clear();
        self.damage.extend_from_slice(frame.damage);
        self.picture.draw(&frame, self.newest.mark(), &mut self.damage);
        let (pixels, stride) = (&*self.picture.pixels, self.picture.stride());
        Ok(Frame { pixels, stride, damage: &self.damage, ..frame })
    }
}

/// The pointer as it was last told.
#[derive(Debug)]
struct Newest {
    wake: EventFd,
    pointer: Mutex<(Option<Arc<CursorImage>>, CursorPosition)>,
}

impl Newest {
    fn take(&self, news: News) {
        let mut pointer = self.pointer();
        match news {
            News::Image(image) => pointer.0 = Some(image),
            News::Position(position) => pointer.1 = position,
        }
        drop(pointer);
        self.wake.call();
    }

    /// What is to be drawn.
    fn mark(&self) -> Option<Mark> {
        let pointer = self.pointer();
        let (Some(image), CursorPosition { visible: true, x, y }) = &*pointer else { return None };
        let (hot_x, hot_y) = image.hotspot;
        let (x, y) = (x.saturating_sub_unsigned(hot_x), y.saturating_sub_unsigned(hot_y));
        Some(Mark { image: Arc::clone(image), x, y })
    }

    /// A panic elsewhere leaves plain values behind; going on is right.
    fn pointer(&self) -> MutexGuard<'_, (Option<Arc<CursorImage>>, CursorPosition)> {
        self.pointer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An image and where its first pixel is to be, which may be beyond an edge.
#[derive(Clone, Debug)]
struct Mark {
    image: Arc<CursorImage>,
    x: i32,
    y: i32,
}

impl PartialEq for Mark {
    fn eq(&self, other: &Self) -> bool {
        (self.image.serial, self.x, self.y) == (other.image.serial, other.x, other.y)
    }
}

impl Mark {
    /// The part of a picture of `size` that it covers.
    fn covers(&self, size: Size) -> Option<Rect> {
        let Size { width, height } = self.image.size;
        let part = Bounds::new(self.x, self.y, width, height).intersection(size.into())?;
        let (x, y) = (part.x.unsigned_abs(), part.y.unsigned_abs());
        Some(Rect::new(x, y, part.width, part.height))
    }
}

/// A copy of the source's picture with the pointer in it.
#[derive(Debug, Default)]
struct Picture {
    pixels: Vec<u8>,
    size: Size,
    drawn: Option<Mark>,
}

/// Bytes a pixel.
const PIXEL: usize = 4;

impl Picture {
    fn stride(&self) -> usize {
        self.size.width as usize * PIXEL
    }

    /// Takes over what changed in `frame` and moves the pointer; adds to `damage` what that changed.
    fn draw(&mut self, frame: &Frame<'_>, mark: Option<Mark>, damage: &mut Vec<Rect>) {
        if self.size != frame.size {
            self.size = frame.size;
            self.pixels = vec![0; self.stride() * self.size.height as usize];
            self.drawn = None;
            damage.clear();
            damage.push(self.size.bounds());
        }
        for &rect in &*damage {
            self.copy(frame, rect);
        }
        let place = |mark: &Option<Mark>| mark.as_ref().and_then(|mark| mark.covers(frame.size));
        let (old, new) = (place(&self.drawn), place(&mark));
        if let Some(old) = old {
            self.copy(frame, old);
        }
        if self.drawn != mark {
            damage.extend(old);
            damage.extend(new);
        }
        if let Some((mark, place)) = mark.as_ref().zip(new) {
            self.blend(mark, place);
        }
        self.drawn = mark;
    }

    fn copy(&mut self, frame: &Frame<'_>, rect: Rect) {
        let stride = self.stride();
        let bytes = rect.width as usize * PIXEL;
        for row in rect.y as usize..rect.bottom() as usize {
            let (to, from) = (row * stride, row * frame.stride);
            let column = rect.x as usize * PIXEL;
            let from = &frame.pixels[from + column..][..bytes];
            self.pixels[to + column..][..bytes].copy_from_slice(from);
        }
    }

    fn blend(&mut self, mark: &Mark, place: Rect) {
        let stride = self.stride();
        let row_bytes = mark.image.size.width as usize * PIXEL;
        // How much of the image lies beyond the left and the upper edge.
        let hidden = |first: i32| first.min(0).unsigned_abs() as usize;
        let (left, top) = (hidden(mark.x) * PIXEL, hidden(mark.y));
        let bytes = place.width as usize * PIXEL;
        for row in 0..place.height as usize {
            let from = &mark.image.rgba[(top + row) * row_bytes + left..][..bytes];
            let to = (place.y as usize + row) * stride + place.x as usize * PIXEL;
            let to = &mut self.pixels[to..][..bytes];
            for (to, from) in to.as_chunks_mut::<PIXEL>().0.iter_mut().zip(from.as_chunks().0) {
                let [red, green, blue, alpha] = *from;
                for (to, from) in to.iter_mut().zip([blue, green, red]) {
                    *to = mix(from, *to, alpha);
                }
            }
        }
    }
}

/// `over`, as opaque as `alpha`, on `under`.
fn mix(over: u8, under: u8, alpha: u8) -> u8 {
    let [over, under, alpha] = [over, under, alpha].map(u32::from);
    // At most 255, so nothing is lost.
    ((over * alpha + under * (255 - alpha) + 127) / 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size::new(7, 5);

    fn frame<'a>(pixels: &'a [u8], damage: &'a [Rect]) -> Frame<'a> {
        let stride = SIZE.width as usize * PIXEL + 8; // rows are padded
        Frame { pixels, stride, size: SIZE, damage, captured_at: Duration::ZERO }
    }

    fn filled(value: u8) -> Vec<u8> {
        vec![value; (SIZE.width as usize * PIXEL + 8) * SIZE.height as usize]
    }

    /// A mark of two columns and three rows, half transparent in its second column.
    fn mark(serial: u64, x: i32, y: i32) -> Option<Mark> {
        let row = [[200, 100, 50, 255], [200, 100, 50, 128]].concat();
        let rgba = row.repeat(3).into();
        let (size, hotspot) = (Size::new(2, 3), (0, 0));
        Some(Mark { image: Arc::new(CursorImage { serial, size, hotspot, rgba }), x, y })
    }

    /// What a picture of one colour with a mark in it has at a place.
    fn expected(ground: u8, mark: Option<(i32, i32)>, x: i32, y: i32) -> [u8; 3] {
        match mark.map(|(left, top)| (x - left, y - top)) {
            Some((0, 0..3)) => [50, 100, 200],
            Some((1, 0..3)) => [50, 100, 200].map(|colour| mix(colour, ground, 128)),
            _ => [ground; 3],
        }
    }

    fn assert_shows(picture: &Picture, ground: u8, mark: Option<(i32, i32)>) {
        for (index, pixel) in picture.pixels.as_chunks::<PIXEL>().0.iter().enumerate() {
            let (x, y) = (index as u32 % SIZE.width, index as u32 / SIZE.width);
            let (x, y) = (x.cast_signed(), y.cast_signed());
            assert_eq!(pixel[..3], expected(ground, mark, x, y), "{x},{y}");
        }
    }

    #[test]
    fn a_pointer_moves_over_every_edge_and_leaves_nothing_behind() {
        let mut picture = Picture::default();
        let pixels = filled(90);
        let mut damage = Vec::new();
        picture.draw(&frame(&pixels, &[]), None, &mut damage);
        assert_eq!(damage, [SIZE.bounds()], "all of the first picture is news");
        let mut before = None;
        for y in -3..=5 {
            for x in -2..=7 {
                damage.clear();
                let here = mark(1, x, y);
                let rects = [before, here.clone()].map(|mark| mark?.covers(SIZE));
                picture.draw(&frame(&pixels, &[]), here.clone(), &mut damage);
                assert_shows(&picture, 90, Some((x, y)));
                assert_eq!(damage, rects.into_iter().flatten().collect::<Vec<_>>());
                before = here;
            }
        }
        damage.clear();
        picture.draw(&frame(&pixels, &[]), None, &mut damage);
        assert_shows(&picture, 90, None);
    }

    #[test]
    fn what_changes_under_a_pointer_that_stands_still_shows_around_and_through_it() {
        let mut picture = Picture::default();
        picture.draw(&frame(&filled(90), &[]), mark(1, 2, 1), &mut Vec::new());
        let pixels = filled(10);
        for _ in 0..2 {
            let mut damage = vec![SIZE.bounds()];
            picture.draw(&frame(&pixels, &[]), mark(1, 2, 1), &mut damage);
            assert_eq!(damage, [SIZE.bounds()]);
            assert_shows(&picture, 10, Some((2, 1)));
        }
        // Nothing changed, nothing is news.
        let mut damage = Vec::new();
        picture.draw(&frame(&pixels, &[]), mark(1, 2, 1), &mut damage);
        assert_eq!(damage, []);
        // Another image in the same place is.
        picture.draw(&frame(&pixels, &[]), mark(2, 2, 1), &mut damage);
        assert_eq!(damage, [Rect::new(2, 1, 2, 3); 2]);
    }
}
