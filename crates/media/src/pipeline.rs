//! One stream's thread: it waits for change, reads it, encodes it and publishes it.
//!
//! With no viewer nothing is open and the thread is parked on an event descriptor, its only
//! connection to the rest of the program: what viewers want is a value it reads when woken
//! ([`Demand`]). With viewers it waits on that and on the source at once.
//!
//! A picture is made when there is a reason (something changed, a keyframe is wanted, a standing
//! picture can be made sharper), a viewer can take it, and the frame rate allows it: the first
//! change after a pause at once, later ones a frame apart. Until then changes gather in the source,
//! so nothing is queued and what is sent is always the newest.

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use spaceport_session::{Cursor, Demand, Published, Publisher, Settings};
use spaceport_types::{Bounds, Cause, Codec, Error, Geometry, Kind, Result, Suspension, Target};

use crate::capture::{self, Source};
use crate::clock;
use crate::cursor::{self, Baked, Follower, News};
use crate::encode::{self, Encoder, Mode};
use crate::memory;
use crate::wake::{EventFd, timespec};

/// What a pipeline is made of.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Config {
    /// Where pictures come from.
    pub capture: capture::Config,
    /// Which encoder to use.
    pub encoder: encode::Preference,
}

/// How long the source and the encoder stay open after the last viewer leaves.
///
/// Longer than a browser takes to reload a page, shorter than anyone wants their screen read for
/// nobody.
pub const LINGER: Duration = Duration::from_secs(3);

/// How long a source may be gone while viewers wait for it before the stream ends: a desktop that
/// restarts is back by then.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a picture stands still before it is made sharper. Between two key strokes of someone
/// who types it stands still for less.
const STILL: Duration = Duration::from_millis(200);

/// Time between two sharper pictures, so that they never compete with a change for the path.
const REFINE_INTERVAL: Duration = Duration::from_millis(100);

/// Sharper pictures at most after a change.
const REFINES: u32 = 3;

/// A sharper picture of fewer bytes brought nothing that can be seen; it is the last.
const REFINED: usize = 400;

/// How much the path may be behind for one picture, at the rate that is the upper bound. A third of
/// the 300 ms within which a remote desktop still feels like one.
const LATENCY: Duration = Duration::from_millis(100);

/// The first and the longest wait before a lost source is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// An encoder that fails twice within this time is not tried again.
const ENCODER_FAILURES: Duration = Duration::from_secs(10);

/// Starts the thread that produces one stream. It ends when nobody can attach to the stream any
/// more, or when the stream fails; `publisher` then says why.
///
/// # Errors
///
/// `io` when this process has no thread or descriptor left.
pub fn spawn(publisher: Publisher, config: Config) -> Result<JoinHandle<()>> {
    start(publisher, config, Timing::default())
}

/// What a pipeline is built from, so that tests can put in sources and encoders that fail.
trait Parts: Send + 'static {
    fn source(&self, publisher: &Publisher, max_fps: u32) -> Result<Box<dyn Source>>;

    /// What follows the pointer for the viewers that draw it; `None` where there is no pointer.
    fn follower(&self, publisher: &Publisher) -> Result<Option<Follower>>;

    /// The encoders to try, best first.
    fn encoders(&self, codec: Codec) -> Vec<String>;

    fn encoder(&self, config: &encode::Config, name: Option<String>) -> Result<Box<dyn Encoder>>;
}

impl Parts for Config {
    fn source(&self, publisher: &Publisher, max_fps: u32) -> Result<Box<dyn Source>> {
        let target = publisher.target();
        let source = capture::open(target, &self.capture, max_fps)?;
        match (publisher.cursor(), cursor::display_of(target, &self.capture)?) {
            (Cursor::Baked, Some(display)) => Ok(Box::new(Baked::over(source, display)?)),
            _ => Ok(source),
        }
    }

    fn follower(&self, publisher: &Publisher) -> Result<Option<Follower>> {
        let Some(display) = cursor::display_of(publisher.target(), &self.capture)? else {
            return Ok(None);
        };
        let pointer = publisher.pointer();
        let tell = move |news| match news {
            News::Image(image) => pointer.cursor_image(image),
            News::Position(position) => pointer.cursor_position(position),
        };
        Follower::start(display, tell).map(Some)
    }

    fn encoders(&self, codec: Codec) -> Vec<String> {
        match self.encoder.encoder_for(codec) {
            Some(name) => vec![name.to_owned()],
            None => encode::ranked(codec).iter().map(|it| it.name.to_owned()).collect(),
        }
    }

    fn encoder(&self, config: &encode::Config, name: Option<String>) -> Result<Box<dyn Encoder>> {
        encode::open(config, &encode::Preference { encoder: name, quantizer: None })
    }
}

#[derive(Clone, Copy, Debug)]
struct Timing {
    linger: Duration,
    patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { linger: LINGER, patience: PATIENCE }
    }
}

fn start(publisher: Publisher, parts: impl Parts, timing: Timing) -> Result<JoinHandle<()>> {
    let wake = Arc::new(EventFd::new()?);
    publisher.set_waker(Waker::from(Arc::clone(&wake)));
    let run = move || {
        let target = publisher.target().to_string();
        let span = tracing::info_span!("pipeline", %target, codec = %publisher.codec());
        let _entered = span.entered();
        let codec = publisher.codec();
        let encoders = parts.encoders(codec);
        let mut pipeline = Pipeline {
            publisher,
            parts,
            timing,
            wake,
            live: None,
            idle_since: None,
            lost: None,
            encoders: Encoders { names: encoders, current: 0, failed_at: None },
            codec_epoch: 0,
            frames: 0,
        };
        let ended = pipeline.run();
        pipeline.close();
        let frames = pipeline.frames;
        match ended {
            Ok(()) => tracing::info!(frames, "stream closed"),
            Err(error) => {
                tracing::warn!(frames, %error, "stream failed");
                pipeline.publisher.fail(error);
            }
        }
    };
    Ok(std::thread::Builder::new().name("pipeline".to_owned()).spawn(run)?)
}

struct Pipeline<P> {
    publisher: Publisher,
    parts: P,
    timing: Timing,
    wake: Arc<EventFd>,
    live: Option<Live>,
    /// Since when nobody has been watching.
    idle_since: Option<Duration>,
    lost: Option<Lost>,
    encoders: Encoders,
    /// The number of the current encoder; 0 before the first.
    codec_epoch: u32,
    frames: u64,
}

/// What is open while somebody watches.
struct Live {
    source: Box<dyn Source>,
    /// What follows the pointer while somebody wants that; `Some(None)` where nothing can.
    pointer: Option<Option<Follower>>,
    encoding: Option<Encoding>,
    pace: Pace,
    refine: Option<Refine>,
    /// Why viewers were told that there is nothing to show, while that is so.
    hidden: Option<Suspension>,
}

/// An encoder and what it was made for.
struct Encoding {
    encoder: Box<dyn Encoder>,
    bounds: Bounds,
    geometry: Geometry,
    /// The target has moved since the last picture.
    moved: bool,
    settings: Settings,
    /// It has not put out its first keyframe.
    fresh: bool,
}

/// A source that is gone, and when it is tried again.
#[derive(Clone, Copy, Debug)]
struct Lost {
    since: Duration,
    backoff: Duration,
    retry_at: Duration,
}

/// The encoders of the stream's codec, and which of them has not failed yet.
#[derive(Debug)]
struct Encoders {
    names: Vec<String>,
    current: usize,
    failed_at: Option<Duration>,
}

/// Sharper pictures still to come.
#[derive(Clone, Copy, Debug)]
struct Refine {
    due: Duration,
    left: u32,
}

/// What went wrong with a picture, by who is to deal with it.
enum Trouble {
    /// The source may come back.
    Source(Error),
    /// Another encoder may do it.
    Encoder(Error),
    /// Nothing helps.
    Fatal(Error),
}

/// When to go on, if nothing happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Now,
    At(Duration),
    WhenWoken,
}

impl<P: Parts> Pipeline<P> {
    fn run(&mut self) -> Result<()> {
        loop {
            let instant = clock::instant();
            let now = clock::at(instant);
            let demand = self.publisher.demand(instant);
            if demand.closed {
                return Ok(());
            }
            if !demand.cursor {
                self.unfollow();
            }
            let next = if demand.viewers == 0 {
                self.idle(now)
            } else {
                self.idle_since = None;
                match self.serve(now, &demand) {
                    Ok(next) => next,
                    Err(Trouble::Source(error)) => self.source_lost(error, now)?,
                    Err(Trouble::Encoder(error)) => self.encoder_failed(error, now)?,
                    Err(Trouble::Fatal(error)) => return Err(error),
                }
            };
            self.wait(next, demand.viewers > 0)?;
        }
    }

    /// Nobody watches: lets go of everything after a while.
    fn idle(&mut self, now: Duration) -> Next {
        self.lost = None;
        if self.live.is_none() {
            return Next::WhenWoken;
        }
        let until = *self.idle_since.get_or_insert(now) + self.timing.linger;
        if now < until {
            return Next::At(until);
        }
        self.close();
        Next::WhenWoken
    }

    /// Somebody watches: makes the next picture if there is reason to.
    fn serve(&mut self, now: Duration, demand: &Demand) -> Result<Next, Trouble> {
        if let Some(lost) = self.lost
            && now < lost.retry_at
        {
            return Ok(Next::At(lost.retry_at));
        }
        let settings = demand.settings;
        if self.live.is_none() {
            let source = self.parts.source(&self.publisher, settings.max_fps);
            let source = source.map_err(|error| self.of_reopening(error))?;
            self.publisher.counters().pipelines.add(1);
            tracing::info!(bounds = ?source.bounds(), "source opened");
            let pace = Pace::default();
            let (pointer, encoding, refine, hidden) = (None, None, None, None);
            self.live = Some(Live { source, pointer, encoding, pace, refine, hidden });
        }
        let Some(live) = &mut self.live else { return Ok(Next::Now) };

        let changed = live.source.has_damage(now).map_err(Trouble::of_source)?;
        if demand.cursor {
            live.follow(&self.parts, &self.publisher);
        }
        if let Some(title) = live.source.new_title() {
            self.publisher.retitle(title);
        }
        live.apply(settings, &self.publisher)?;
        if !live.shown(&self.publisher) {
            return Ok(Next::WhenWoken);
        }
        let keyframe_at = match &live.encoding {
            Some(encoding) if !encoding.fresh => demand.keyframe.map(clock::at),
            _ => Some(now),
        };
        let refine_at = live.refine.map(|refine| refine.due);
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let mode = if due(keyframe_at) {
            Mode::Keyframe
        } else if changed || live.encoding.as_ref().is_some_and(|encoding| encoding.moved) {
            Mode::Delta
        } else if due(refine_at) {
            Mode::Refine
        } else {
            let times = [keyframe_at, refine_at, live.source.next_due()];
            return Ok(times.into_iter().flatten().min().map_or(Next::WhenWoken, Next::At));
        };
        if !demand.ready {
            // Becoming ready wakes us.
            return Ok(Next::WhenWoken);
        }
        let slot = live.pace.next(live.max_fps(self.publisher.codec(), settings));
        if now < slot {
            return Ok(Next::At(slot));
        }
        self.picture(now, mode, settings)
    }

    /// Reads, encodes and publishes one picture.
    fn picture(&mut self, now: Duration, mode: Mode, settings: Settings) -> Result<Next, Trouble> {
        let codec = self.publisher.codec();
        let Some(live) = &mut self.live else { return Ok(Next::Now) };
        if live.encoding.is_none() {
            let bounds = live.source.bounds();
            let geometry = self.publisher.geometry(bounds, settings.max_dimension);
            let config = encode::Config {
                codec,
                source: bounds.size(),
                size: geometry.frame_size,
                bitrate: settings.bitrate,
                max_fps: settings.max_fps,
                latency: LATENCY,
            };
            let encoder = self.encoders.open(&self.parts, &config).map_err(Trouble::Fatal)?;
            self.codec_epoch += 1;
            let (name, epoch) = (encoder.name(), self.codec_epoch);
            tracing::info!(encoder = name, epoch, size = ?config.size, "encoder opened");
            let moved = false;
            live.encoding =
                Some(Encoding { encoder, bounds, geometry, moved, settings, fresh: true });
        }
        let Some(encoding) = &mut live.encoding else { return Ok(Next::Now) };

        let counters = self.publisher.counters();
        // Opening an encoder takes time. Read now, and say so: a stamp that is too early would make
        // every viewer seem slower than it is.
        let frame = live.source.grab(clock::now(), encoding.fresh).map_err(Trouble::of_source)?;
        counters.captured.add(1);
        if frame.size != encoding.bounds.size() {
            // It changed size while it was read. The next look says so, too.
            live.encoding = None;
            return Ok(Next::Now);
        }
        let max_fps = encode::max_fps(codec, encoding.geometry.frame_size);
        // Also when nothing has changed: what is drawn on another monitor must not have us look at
        // this one each time.
        live.pace.took(now, settings.max_fps.min(max_fps));
        // A picture that is the same in another place is a picture: it tells viewers the place.
        if mode == Mode::Delta && frame.damage.is_empty() && !encoding.moved {
            return Ok(Next::Now);
        }
        encoding.moved = false;

        let began = clock::instant();
        let encoded = encoding.encoder.encode(&frame, mode).map_err(Trouble::Encoder)?;
        let captured_at = frame.captured_at;
        let ended = clock::instant();
        let bytes = encoded.as_ref().map_or(0, |encoded| encoded.payload.len());
        live.refine = match (mode, live.refine) {
            _ if !encode::lossy(codec) => None,
            (Mode::Delta | Mode::Keyframe, _) => Some(Refine { due: now + STILL, left: REFINES }),
            (Mode::Refine, Some(Refine { left, .. })) if left > 1 && bytes >= REFINED => {
                Some(Refine { due: now + REFINE_INTERVAL, left: left - 1 })
            }
            (Mode::Refine, _) => None,
        };
        let Some(encoded) = encoded else { return Ok(Next::Now) };

        counters.encoded.add(1);
        counters.keyframes.add(encoded.keyframe.into());
        counters.encoded_bytes.add(bytes as u64);
        self.frames += 1;
        encoding.fresh &= !encoded.keyframe;
        self.lost = None;
        let published = Published {
            keyframe: encoded.keyframe,
            codec_epoch: self.codec_epoch,
            geometry: encoding.geometry,
            captured_at,
            encode_duration: ended.saturating_duration_since(began),
            payload: encoded.payload,
        };
        tracing::trace!(?mode, bytes, took = ?published.encode_duration, "frame");
        match live.hidden {
            None => self.publisher.publish(published, ended),
            Some(_) => self.publisher.publish_held(published, ended),
        }
        Ok(Next::Now)
    }

    /// Tells viewers that the source is gone, and when to try again; or that it is over.
    fn source_lost(&mut self, error: Error, now: Duration) -> Result<Next> {
        self.close();
        let (first, longest) = BACKOFF;
        let lost = match self.lost {
            None => {
                tracing::warn!(%error, "source lost");
                self.publisher.suspend(Suspension::for_error(&error), error);
                Lost { since: now, backoff: first, retry_at: now + first }
            }
            Some(lost) if now >= lost.since + self.timing.patience => {
                let message = format!(
                    "{} did not come back within {} s",
                    self.publisher.target(),
                    self.timing.patience.as_secs()
                );
                return Err(Error::because(Cause::TargetGone, message)
                    .hint("Start the desktop again, then open a new stream")
                    .source(error));
            }
            Some(Lost { since, backoff, .. }) => {
                let backoff = (backoff * 2).min(longest);
                Lost { since, backoff, retry_at: now + backoff }
            }
        };
        self.lost = Some(lost);
        Ok(Next::At(lost.retry_at))
    }

    /// What it means that the source does not open.
    fn of_reopening(&self, error: Error) -> Trouble {
        if self.lost.is_none() || error.kind() != Kind::NotFound {
            return Trouble::of_source(error);
        }
        let message = format!("{} did not come back with its desktop", self.publisher.target());
        Trouble::Fatal(
            Error::because(Cause::TargetGone, message)
                .hint("List what there is now, then open a new stream")
                .source(error),
        )
    }

    /// Has the encoder replaced: by a new one of its kind, and if that fails soon, by the next kind.
    /// One that never made a picture is not tried again where there is another.
    fn encoder_failed(&mut self, error: Error, now: Duration) -> Result<Next> {
        let encoding = self.live.as_mut().and_then(|live| live.encoding.take());
        let useless = encoding.is_some_and(|encoding| encoding.fresh);
        tracing::warn!(%error, encoder = self.encoders.name(), "encoder failed");
        self.encoders.failed(error, useless, now)?;
        Ok(Next::Now)
    }

    /// Nobody draws the pointer: nothing follows it.
    fn unfollow(&mut self) {
        if let Some(live) = &mut self.live {
            live.pointer = None;
        }
    }

    /// Lets go of the source and the encoder.
    fn close(&mut self) {
        if self.live.take().is_some() {
            self.publisher.counters().pipelines.sub(1);
            // The next encoder does not continue what late viewers would be served from.
            self.publisher.forget();
            memory::give_back();
            tracing::info!(frames = self.frames, "source closed");
        }
    }

    /// Waits until it is time, or until viewers or the source have news.
    fn wait(&self, next: Next, watched: bool) -> Result<()> {
        let timeout = match next {
            Next::Now => return Ok(()),
            Next::WhenWoken => None,
            Next::At(at) => Some(at.saturating_sub(clock::now())),
        };
        let timeout = timeout.map(timespec);
        let source = self.live.as_ref().filter(|_| watched);
        let source = source.and_then(|live| live.source.wake_fd());
        let news = PollFd::new(&*self.wake, PollFlags::IN);
        let polled = match source {
            Some(fd) => {
                let mut fds = [news, PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                rustix::event::poll(&mut fds, timeout.as_ref())
            }
            None => rustix::event::poll(&mut [news], timeout.as_ref()),
        };
        match polled {
            // Whoever wakes us does so after what it changed, so emptying the descriptor before
            // reading the demand loses nothing.
            Ok(_) | Err(rustix::io::Errno::INTR) => self.wake.empty(),
            Err(error) => {
                let message = format!("waiting for the source failed: {error}");
                return Err(Error::new(Kind::Internal, message).source(error));
            }
        }
        Ok(())
    }
}

impl Live {
    /// How many pictures are made in a second: no more than viewers want, and the codec allows.
    fn max_fps(&self, codec: Codec, settings: Settings) -> u32 {
        let size = self.encoding.as_ref().map(|encoding| encoding.geometry.frame_size);
        size.map_or(settings.max_fps, |size| settings.max_fps.min(encode::max_fps(codec, size)))
    }

    /// Takes over new limits; what an encoder cannot be told, a new one is made for.
    fn apply(&mut self, settings: Settings, publisher: &Publisher) -> Result<(), Trouble> {
        let bounds = self.source.bounds();
        let Some(encoding) = &mut self.encoding else { return Ok(()) };
        // A display in another place shows something else; a window takes its picture along.
        let display = matches!(publisher.target(), Target::Display { .. });
        let stays = encoding.bounds == bounds || !display;
        let fits = stays
            && encoding.bounds.size() == bounds.size()
            && encoding.settings.max_dimension == settings.max_dimension
            && encoding.settings.max_fps >= settings.max_fps;
        if !fits {
            self.encoding = None;
            return Ok(());
        }
        if encoding.bounds != bounds {
            encoding.bounds = bounds;
            encoding.geometry = publisher.geometry(bounds, settings.max_dimension);
            encoding.moved = true;
        }
        if encoding.settings.bitrate != settings.bitrate {
            encoding.encoder.set_bitrate(settings.bitrate).map_err(Trouble::Encoder)?;
            encoding.settings.bitrate = settings.bitrate;
        }
        Ok(())
    }

    /// Has the pointer followed, and says where the target is.
    fn follow(&mut self, parts: &impl Parts, publisher: &Publisher) {
        let follower = self.pointer.get_or_insert_with(|| {
            parts.follower(publisher).unwrap_or_else(|error| {
                tracing::warn!(%error, "the pointer is not followed");
                None
            })
        });
        if let Some(follower) = follower {
            let shown = self.source.hidden().is_none();
            follower.place(shown.then(|| self.source.bounds()));
        }
    }

    /// Tells viewers when there is nothing to show, and says whether pictures can be made anyway.
    fn shown(&mut self, publisher: &Publisher) -> bool {
        let Some(hidden) = self.source.hidden() else {
            self.hidden = None;
            return true;
        };
        if self.hidden != Some(hidden.reason) {
            self.hidden = Some(hidden.reason);
            tracing::debug!(reason = ?hidden.reason, "nothing to show");
            let target = publisher.target();
            let error = match hidden.reason {
                Suspension::DisplayBlanked => {
                    Error::because(Cause::DisplayBlanked, format!("{target} is switched off"))
                        .hint("Move its pointer or press a key to wake it up")
                }
                Suspension::Minimized => {
                    Error::because(Cause::Minimized, format!("{target} is minimized"))
                        .hint("Restore it; the stream then goes on")
                }
                _ => Error::because(Cause::WindowUnavailable, format!("{target} is not shown"))
                    .hint("The stream goes on when its app shows it again"),
            };
            publisher.suspend(hidden.reason, error);
        }
        hidden.held
    }
}

impl Encoders {
    fn name(&self) -> &str {
        self.names.get(self.current).map_or("", String::as_str)
    }

    /// Opens the first encoder, from the current one on, that opens.
    fn open(&mut self, parts: &impl Parts, config: &encode::Config) -> Result<Box<dyn Encoder>> {
        let mut refusal = None;
        while let Some(name) = self.names.get(self.current) {
            match parts.encoder(config, Some(name.clone())) {
                Ok(encoder) => return Ok(encoder),
                Err(error) => {
                    tracing::warn!(%error, encoder = name, "encoder did not open");
                    refusal.get_or_insert(error);
                    self.current += 1;
                }
            }
        }
        match refusal {
            Some(error) => Err(error),
            // There never was one; whoever opens encoders says why.
            None => parts.encoder(config, None),
        }
    }

    /// Decides which encoder comes after a failure.
    fn failed(&mut self, error: Error, useless: bool, now: Duration) -> Result<()> {
        let again = self.failed_at.is_some_and(|at| now < at + ENCODER_FAILURES);
        let given_up = again || useless && self.current + 1 < self.names.len();
        self.failed_at = if given_up { None } else { Some(now) };
        if given_up {
            self.current += 1;
        }
        if self.current < self.names.len() { Ok(()) } else { Err(error) }
    }
}

impl Trouble {
    fn of_source(error: Error) -> Self {
        match error.cause() {
            Some(Cause::CaptureFailed) => Self::Source(error),
            _ => Self::Fatal(error),
        }
    }
}

/// Spreads pictures over time.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// The slot that the last picture was made in. Not when it was made: being woken a little late
    /// every time would add up, and now and then swallow a picture of a source that runs as fast as
    /// we do.
    slot: Option<Duration>,
}

impl Pace {
    /// From when on the next picture may be made.
    fn next(self, max_fps: u32) -> Duration {
        self.slot.map_or(Duration::ZERO, |slot| slot + interval(max_fps))
    }

    /// A picture was made.
    fn took(&mut self, now: Duration, max_fps: u32) {
        let next = self.next(max_fps);
        // On time, give or take: the slots go on. Later than that: they start over.
        let on_time = self.slot.is_some() && now < next + interval(max_fps) / 2;
        self.slot = Some(if on_time { next } else { now });
    }
}

fn interval(max_fps: u32) -> Duration {
    Duration::from_secs(1) / max_fps.max(1)
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use rustix::process::{Pid, Signal, kill_process};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::task::Wake;
    use std::thread::Thread;

    use bytes::Bytes;
    use spaceport_session::{
        Attach, Carrier, Event, Launch, Limits, Open, Policy, Preferences, Sessions, Subscriber,
    };
    use spaceport_testkit::Xvfb;
    use spaceport_types::{Bitrate, Packet, Rect, SessionId, Size};

    use super::*;
    use crate::Frame;
    use crate::capture::pattern;
    use crate::capture::x11::tests::{Painter, draw_unseen};
    use crate::cursor::tests::{Hand, threads};
    use crate::encode::Encoded;
    use crate::windows::app::{App, PLAIN, POPUP, Painted, own_display};
    use crate::windows::{Placement, Windows};

    const SHORT: Timing =
        Timing { linger: Duration::from_millis(100), patience: Duration::from_millis(400) };

    /// Starts every stream with the same parts, in threads that the test can wait for.
    struct Starter<P> {
        parts: P,
        threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    }

    impl<P: Parts + Clone + Sync> Launch for Starter<P> {
        fn launch(&self, publisher: Publisher) {
            let thread = start(publisher, self.parts.clone(), SHORT).unwrap();
            self.threads.lock().unwrap().push(thread);
        }
    }

    /// A gateway's worth of sessions with one session open.
    struct Space {
        sessions: Sessions,
        session: SessionId,
        threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    }

    impl Space {
        fn with(parts: impl Parts + Clone + Sync, target: Target, max_fps: u32) -> Self {
            let threads = Arc::default();
            let launch = Arc::new(Starter { parts, threads: Arc::clone(&threads) });
            let sessions = Sessions::new(Limits::default(), launch);
            let open = Open {
                target,
                bounds: Bounds::new(0, 0, 640, 480),
                codec: Codec::H264,
                max_fps,
                max_dimension: 0,
                bitrate: Some(Bitrate::from_kbps(8_000)),
                policy: Policy::default(),
                ticket_ttl: None,
                key: None,
            };
            let session = sessions.open(open, clock::instant()).unwrap().info.id;
            Self { sessions, session, threads }
        }

        fn on(server: &Xvfb) -> Self {
            let mut config = Config::default();
            config.capture.display = Some(server.display().to_owned());
            let target = Target::Display { display_id: "primary".to_owned() };
            Self::with(config, target, 60)
        }

        fn attach(&self) -> Viewer {
            self.attach_with(Cursor::Apart)
        }

        fn attach_with(&self, cursor: Cursor) -> Viewer {
            let attach = Attach { codec: Codec::H264, carrier: Carrier::Socket, cursor };
            Viewer(self.sessions.attach(&self.session, attach).unwrap())
        }

        /// Closes the session and waits for the threads: one that hangs fails the test.
        fn end(self) {
            self.sessions.close_all();
            for thread in std::mem::take(&mut *self.threads.lock().unwrap()) {
                thread.join().unwrap();
            }
            assert_eq!(self.sessions.counters().pipelines.get(), 0);
        }

        fn captured(&self) -> u64 {
            self.sessions.counters().captured.get()
        }
    }

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    struct Viewer(Subscriber);

    impl Viewer {
        /// The next event, or `None` when there is none for a while.
        fn event_within(&mut self, time: Duration) -> Option<Event> {
            let until = clock::instant() + time;
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            loop {
                self.0.set_waker(&waker);
                if let Some(event) = self.0.try_recv() {
                    return Some(event);
                }
                let left = until.saturating_duration_since(clock::instant());
                if left.is_zero() {
                    return None;
                }
                std::thread::park_timeout(left);
            }
        }

        fn event(&mut self) -> Event {
            self.event_within(Duration::from_secs(5)).expect("nothing came for five seconds")
        }

        fn packet(&mut self) -> Packet {
            match self.event() {
                Event::Packet(packet) => packet,
                other => panic!("{other:?} instead of a packet"),
            }
        }

        /// Takes what comes until nothing does for half a second.
        fn until_still(&mut self) -> usize {
            let mut packets = 0;
            while let Some(event) = self.event_within(Duration::from_millis(500)) {
                assert!(matches!(event, Event::Packet(_)), "{event:?}");
                packets += 1;
            }
            packets
        }
    }

    /// A source that changes when told so by nobody: always.
    #[derive(Clone, Default)]
    struct Fakes {
        /// How often sources fail to open from now on.
        source_fails: Arc<AtomicUsize>,
        /// A running source fails while this is not zero, once for each.
        source_breaks: Arc<AtomicUsize>,
        /// Which encoders were opened.
        opened: Arc<Mutex<Vec<String>>>,
        /// Encoders of these names fail at every picture.
        broken: Vec<&'static str>,
        /// Encoders fail at a later picture while this is not zero, once for each.
        encoder_dies: Arc<AtomicUsize>,
    }

    fn take_one(counter: &AtomicUsize) -> bool {
        counter.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    impl Parts for Fakes {
        fn source(&self, _: &Publisher, _: u32) -> Result<Box<dyn Source>> {
            if take_one(&self.source_fails) {
                return Err(Error::because(Cause::CaptureFailed, "not there"));
            }
            let source = pattern::TestPattern::new(pattern::Config::default());
            Ok(Box::new(FakeSource { source, breaks: Arc::clone(&self.source_breaks) }))
        }

        fn follower(&self, _: &Publisher) -> Result<Option<Follower>> {
            Ok(None)
        }

        fn encoders(&self, _: Codec) -> Vec<String> {
            vec!["first".to_owned(), "second".to_owned()]
        }

        fn encoder(&self, _: &encode::Config, name: Option<String>) -> Result<Box<dyn Encoder>> {
            let name = name.unwrap();
            let broken = self.broken.contains(&name.as_str());
            self.opened.lock().unwrap().push(name);
            let dies = Arc::clone(&self.encoder_dies);
            Ok(Box::new(FakeEncoder { broken, dies }))
        }
    }

    struct FakeSource {
        source: pattern::TestPattern,
        breaks: Arc<AtomicUsize>,
    }

    impl Source for FakeSource {
        fn bounds(&self) -> Bounds {
            self.source.bounds()
        }

        fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn next_due(&self) -> Option<Duration> {
            self.source.next_due()
        }

        fn has_damage(&mut self, now: Duration) -> Result<bool> {
            if take_one(&self.breaks) {
                return Err(Error::because(Cause::CaptureFailed, "gone"));
            }
            self.source.has_damage(now)
        }

        fn grab(&mut self, now: Duration, full: bool) -> Result<Frame<'_>> {
            self.source.grab(now, full)
        }
    }

    struct FakeEncoder {
        broken: bool,
        dies: Arc<AtomicUsize>,
    }

    impl Encoder for FakeEncoder {
        fn codec(&self) -> Codec {
            Codec::H264
        }

        fn name(&self) -> &'static str {
            "fake"
        }

        fn encode(&mut self, _: &Frame<'_>, mode: Mode) -> Result<Option<Encoded>> {
            if self.broken || mode == Mode::Delta && take_one(&self.dies) {
                return Err(Error::because(Cause::EncoderFailed, "broken"));
            }
            let payload = Bytes::from_static(&[0; 1000]);
            Ok(Some(Encoded { payload, keyframe: mode == Mode::Keyframe }))
        }

        fn set_bitrate(&mut self, _: Bitrate) -> Result<()> {
            Ok(())
        }
    }

    fn pattern_of(fps: u32) -> Config {
        let mut config = Config::default();
        config.capture.pattern = pattern::Config { fps, ..pattern::Config::default() };
        config
    }

    #[test]
    fn nothing_is_read_before_somebody_watches_nor_after_everybody_left() {
        let space = Space::with(pattern_of(60), Target::TestPattern, 60);
        let pipelines = || space.sessions.counters().pipelines.get();
        assert_eq!((space.captured(), pipelines()), (0, 0));
        let mut viewer = space.attach();
        let first = viewer.packet();
        assert!(first.keyframe && first.codec_epoch == 1 && !first.payload.is_empty());
        assert_eq!(first.geometry.frame_size, Size::new(1280, 720));
        for _ in 0..5 {
            assert!(!viewer.packet().keyframe);
        }
        assert_eq!(pipelines(), 1);

        drop(viewer);
        while pipelines() > 0 {
            std::thread::yield_now();
        }
        let captured = space.captured();
        std::thread::park_timeout(Duration::from_millis(100));
        assert_eq!(space.captured(), captured);
        let first = space.attach().packet();
        assert!(first.keyframe, "a new encoder starts with a keyframe");
        space.end();
    }

    #[test]
    fn a_viewer_that_does_not_read_stops_the_capture() {
        let space = Space::with(Fakes::default(), Target::TestPattern, 120);
        let mut reader = space.attach();
        reader.packet();
        drop(reader);
        let mut idle = space.attach();
        // Two pictures wait, a third may have been on its way; at 30 a second, 300 ms bring more.
        std::thread::park_timeout(Duration::from_millis(300));
        let captured = space.captured();
        std::thread::park_timeout(Duration::from_millis(300));
        assert_eq!(space.captured(), captured, "captured for nobody");
        while space.captured() < captured + 5 {
            idle.packet();
        }
        space.end();
    }

    #[test]
    fn the_frame_rate_is_an_upper_bound_that_can_be_changed() {
        let space = Space::with(pattern_of(60), Target::TestPattern, 10);
        let mut viewer = space.attach();
        let mut last = viewer.packet().captured_at;
        let start = last;
        for _ in 0..8 {
            let next = viewer.packet().captured_at;
            assert!(next > last);
            last = next;
        }
        // Eight slots are 800 ms; on a busy machine the first frame is late for its own. Without a
        // bound, eight frames of the source take 133 ms.
        assert!(last - start >= Duration::from_millis(600), "eight frames in {:?}", last - start);
        let preferences = Preferences { max_fps: Some(60), ..Preferences::default() };
        space.sessions.set_preferences(&space.session, preferences, clock::instant()).unwrap();
        while !viewer.packet().keyframe {}
        let start = viewer.packet().captured_at;
        let last = (0..30).map(|_| viewer.packet().captured_at).last().unwrap();
        assert!(last - start < Duration::from_millis(1500), "thirty frames in {:?}", last - start);
        space.end();
    }

    #[test]
    fn a_smaller_picture_is_a_new_encoder_and_a_keyframe() {
        let space = Space::with(pattern_of(30), Target::TestPattern, 30);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        let preferences = Preferences { max_dimension: Some(640), ..Preferences::default() };
        space.sessions.set_preferences(&space.session, preferences, clock::instant()).unwrap();
        loop {
            let packet = viewer.packet();
            if packet.geometry.frame_size == Size::new(640, 360) {
                assert!(packet.keyframe && packet.codec_epoch == 2);
                break;
            }
        }
        space.end();
    }

    #[test]
    fn a_still_desktop_is_made_sharp_and_then_costs_nothing() {
        let server = Xvfb::start(Size::new(640, 480)).unwrap();
        let space = Space::on(&server);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        let refined = viewer.until_still();
        assert!(refined <= REFINES as usize, "{refined} packets of a still picture");
        let captured = space.captured();
        let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let before = cpu();
        assert!(viewer.event_within(Duration::from_secs(1)).is_none());
        assert_eq!(space.captured(), captured);
        let used = Duration::try_from(cpu() - before).unwrap();
        assert!(used < Duration::from_millis(2), "a still picture took {used:?} of a second");

        // A keyframe that somebody asks for comes although nothing changes, once.
        space.sessions.request_keyframe(&space.session).unwrap();
        assert!(viewer.packet().keyframe);
        assert!(viewer.until_still() <= REFINES as usize);
        space.end();
    }

    #[test]
    fn a_change_after_a_pause_is_sent_at_once() {
        let server = Xvfb::start(Size::new(641, 479)).unwrap();
        let painter = Painter::on(&server);
        let mut config = Config::default();
        config.capture.display = Some(server.display().to_owned());
        let target = Target::Display { display_id: "primary".to_owned() };
        let space = Space::with(config, target, 1);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        while viewer.event_within(Duration::from_millis(1500)).is_some() {}
        let before = clock::now();
        painter.fill(painter.root, 0xff_8000, 100, 100, 50, 50);
        painter.finish();
        assert!(!viewer.packet().keyframe);
        // It is a few milliseconds on an idle machine; one that waits for the next of the slots,
        // a second apart, takes half a second on average.
        let took = clock::now() - before;
        assert!(took < Duration::from_millis(400), "{took:?}");
        space.end();
    }

    #[test]
    fn the_pointer_moves_without_pictures_and_is_followed_for_nobody_but_who_asks() {
        let server = Xvfb::start(Size::new(640, 480)).unwrap();
        let hand = Hand::on(&server);
        hand.warp(300, 200);
        let space = Space::on(&server);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        viewer.until_still();
        assert_eq!(threads("pointer"), 0, "nobody asked");

        let captured = space.captured();
        viewer.0.want_cursor(true);
        let Event::CursorImage(image) = viewer.event() else { panic!("no image first") };
        let mut at = |wanted: (i32, i32)| loop {
            match viewer.event() {
                Event::CursorPosition(at)
                    if (at.visible, at.x, at.y) == (true, wanted.0, wanted.1) =>
                {
                    return;
                }
                Event::CursorPosition(_) => {}
                other => panic!("{other:?}"),
            }
        };
        at((300, 200));
        for step in 0..50 {
            hand.warp(300 + step, 200);
        }
        at((349, 200));
        assert_eq!(space.captured(), captured, "a picture of a pointer that is not in it");

        // One who comes late is told at once; a picture it needs comes as ever.
        let mut late = space.attach();
        late.0.want_cursor(true);
        let Event::CursorImage(same) = late.event() else { panic!("no image first") };
        assert_eq!(same.serial, image.serial);
        assert!(matches!(late.event(), Event::CursorPosition(_)));
        assert!(late.packet().keyframe);

        assert_eq!(threads("pointer"), 1, "one for both");
        late.0.want_cursor(false);
        drop(viewer);
        while threads("pointer") > 0 {
            std::thread::yield_now();
        }
        space.end();
    }

    #[test]
    fn a_pointer_in_the_picture_makes_pictures_when_it_moves_and_only_there() {
        let server = Xvfb::start(Size::new(640, 480)).unwrap();
        let hand = Hand::on(&server);
        let space = Space::on(&server);
        let mut plain = space.attach();
        assert!(plain.packet().keyframe);
        let mut baked = space.attach_with(Cursor::Baked);
        assert!(baked.packet().keyframe);
        plain.until_still();
        baked.until_still();
        for step in 0..3 {
            hand.warp(100 + 50 * step, 100);
            assert!(!baked.packet().keyframe);
            baked.until_still();
        }
        assert_eq!(plain.until_still(), 0);
        space.end();
    }

    #[test]
    fn a_desktop_that_is_resized_again_and_again_is_followed() {
        let start = Size::new(800, 600);
        let server = Xvfb::start(start).unwrap();
        let painter = Painter::on(&server);
        let space = Space::on(&server);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let mut epoch = 0;
        for step in 1..=20 {
            let size = Size::new(800 - 13 * step, 600 - 7 * step);
            painter.resize(size);
            let changed = clock::now();
            let packet = loop {
                let packet = viewer.packet();
                if packet.geometry.frame_size == size {
                    break packet;
                }
            };
            assert!(packet.keyframe, "{size:?} does not start with a keyframe");
            assert!(packet.geometry.geometry_epoch > epoch);
            assert!(packet.captured_at < changed + Duration::from_millis(300));
            epoch = packet.geometry.geometry_epoch;
        }
        assert_eq!(open(), before, "descriptors left behind");
        space.end();
    }

    /// A stream of one window.
    struct WindowSpace {
        app: App,
        window: Painted,
        windows: Windows,
        handle: String,
        space: Space,
    }

    impl WindowSpace {
        fn on(server: &Xvfb, bounds: Bounds) -> Self {
            let app = App::on(server);
            let mut window = app.shown(bounds, PLAIN);
            app.paint(&mut window, 1);
            let windows = Windows::new(Some(server.display()));
            let handle = windows.list().unwrap()[0].handle.clone();
            let mut config = Config::default();
            config.capture.display = Some(server.display().to_owned());
            config.capture.windows = Some(windows.clone());
            let target = Target::Window { handle: handle.clone(), epoch: 1 };
            let space = Space::with(config, target, 60);
            Self { app, window, windows, handle, space }
        }
    }

    #[test]
    fn a_display_that_is_switched_off_says_so_and_says_when_it_is_on_again() {
        let server = Xvfb::start(Size::new(320, 240)).unwrap();
        let painter = Painter::on(&server);
        let space = Space::on(&server);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        viewer.until_still();
        painter.switch_off(true);
        let blanked = |event| match event {
            Event::Suspended(reason, error) => {
                assert_eq!(error.cause(), Some(Cause::DisplayBlanked));
                assert!(error.report().hint.is_some());
                reason == Suspension::DisplayBlanked
            }
            _ => false,
        };
        assert!(blanked(viewer.event()));
        let mut late = space.attach();
        assert!(blanked(late.event()), "told at once");
        assert!(late.packet().keyframe, "and not black");
        late.until_still();
        // Somebody may be working with it.
        painter.fill(painter.root, 0xff_8000, 100, 100, 50, 50);
        painter.finish();
        late.packet();
        late.until_still();

        painter.switch_off(false);
        for viewer in [&mut viewer, &mut late] {
            let resumed = |event| matches!(event, Event::Resumed);
            assert!((0..20).any(|_| resumed(viewer.event())), "it does not go on");
        }
        drop((viewer, late));

        // Nobody has been watching when it went off.
        while space.sessions.counters().pipelines.get() > 0 {
            std::thread::yield_now();
        }
        painter.switch_off(true);
        let mut first = space.attach();
        assert!(blanked(first.event()));
        assert!(first.packet().keyframe);
        space.end();
    }

    #[test]
    fn a_change_that_the_server_did_not_report_is_sent_all_the_same() {
        let server = Xvfb::start(Size::new(320, 240)).unwrap();
        let space = Space::on(&server);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        viewer.until_still();
        draw_unseen(&server, 0x33_99ff, Rect::new(10, 20, 100, 50));
        // The longest there can be between two looks.
        let event = viewer.event_within(Duration::from_secs(60));
        assert!(matches!(event, Some(Event::Packet(_))), "{event:?}");
        space.end();
    }

    #[test]
    fn a_window_is_followed_until_it_is_closed() {
        let server = Xvfb::start(Size::new(640, 480)).unwrap();
        let WindowSpace { app, mut window, windows, handle, space } =
            WindowSpace::on(&server, Bounds::new(20, 30, 301, 201));
        let mut viewer = space.attach();
        let first = viewer.packet();
        assert!(first.keyframe);
        assert_eq!(first.geometry.logical_bounds, Bounds::new(20, 30, 301, 201));
        viewer.until_still();

        // Moved: another place, the same encoder, and no keyframe.
        let to = Placement { x: Some(-40), ..Placement::default() };
        windows.set_bounds(&handle, 1, to).unwrap();
        let moved = viewer.packet();
        assert!(!moved.keyframe && moved.codec_epoch == first.codec_epoch);
        assert_eq!(moved.geometry.logical_bounds, Bounds::new(-40, 30, 301, 201));
        assert_eq!(moved.geometry.geometry_epoch, first.geometry.geometry_epoch + 1);
        viewer.until_still();

        app.set_text(&window, "WM_NAME", "STRING", b"renamed");
        let Event::Titled(title) = viewer.event() else { panic!("no title") };
        assert_eq!(&*title, "renamed");

        // A menu that reaches beyond the window: a larger picture.
        let menu = app.shown(Bounds::new(250, 200, 60, 50), POPUP);
        let grown = viewer.packet();
        assert!(grown.keyframe && grown.codec_epoch == first.codec_epoch + 1);
        assert_eq!(grown.geometry.logical_bounds, Bounds::new(-40, 30, 350, 220));
        app.destroy(&menu);
        let shrunk = viewer.packet();
        assert!(shrunk.keyframe && shrunk.geometry.frame_size == Size::new(301, 201));
        viewer.until_still();

        // Minimized: said so, to late viewers, too, who see what was last seen.
        windows.minimize(&handle, 1).unwrap();
        let minimized = |event| match event {
            Event::Suspended(reason, error) => {
                (reason, error.cause()) == (Suspension::Minimized, Some(Cause::Minimized))
            }
            _ => false,
        };
        loop {
            match viewer.event() {
                // Between unmapping and being told why.
                Event::Suspended(Suspension::WindowUnavailable, _) => {}
                event => break assert!(minimized(event)),
            }
        }
        let mut late = space.attach();
        assert!(minimized(late.event()));
        assert!(late.packet().keyframe);
        late.0.request_keyframe();
        while !late.packet().keyframe {}

        windows.restore(&handle, 1).unwrap();
        app.paint(&mut window, 2);
        for viewer in [&mut viewer, &mut late] {
            let resumed = |event| matches!(event, Event::Resumed);
            assert!((0..20).any(|_| resumed(viewer.event())), "it does not go on");
        }
        viewer.packet();
        app.destroy(&window);
        loop {
            match viewer.event() {
                Event::Packet(_) => {}
                Event::Ended(reason) => {
                    break assert_eq!(reason.cause(), Some(Cause::TargetGone));
                }
                other => panic!("{other:?}"),
            }
        }
        space.end();
    }

    #[test]
    fn a_window_that_is_never_shown_is_said_to_be_so() {
        let server = Xvfb::start(Size::new(640, 480)).unwrap();
        let WindowSpace { app, window, space, .. } =
            WindowSpace::on(&server, Bounds::new(20, 30, 301, 201));
        app.unmap(&window);
        let mut viewer = space.attach();
        let Event::Suspended(reason, error) = viewer.event() else { panic!("not suspended") };
        assert_eq!(reason, Suspension::WindowUnavailable);
        assert_eq!(error.cause(), Some(Cause::WindowUnavailable));
        assert!(error.report().hint.is_some());
        assert!(viewer.event_within(Duration::from_millis(300)).is_none(), "nothing to see");
        app.map(&window);
        assert!(matches!(viewer.event(), Event::Resumed));
        assert!(viewer.packet().keyframe);
        space.end();
    }

    #[test]
    fn a_window_that_is_resized_again_and_again_is_followed() {
        let server = Xvfb::start(Size::new(1600, 1000)).unwrap();
        let WindowSpace { app, mut window, space, .. } =
            WindowSpace::on(&server, Bounds::new(3, 5, 640, 480));
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let sizes = [(789, 595), (1, 1), (1512, 949), (333, 2), (640, 480)];
        for (seed, (width, height)) in (0..).zip(sizes.into_iter().cycle().take(30)) {
            let size = Size::new(width, height);
            let resized = clock::now();
            app.resize(&mut window, size);
            app.paint(&mut window, seed);
            let packet = loop {
                let packet = viewer.packet();
                if packet.geometry.frame_size == size {
                    break packet;
                }
            };
            assert!(packet.keyframe, "{size:?} does not start with a keyframe");
            let took = packet.captured_at.saturating_sub(resized);
            assert!(took < Duration::from_millis(300), "{size:?} took {took:?}");
        }
        assert_eq!(open(), before, "descriptors left behind");
        space.end();
    }

    #[test]
    fn a_window_ends_with_its_desktop() {
        for comes_back in [false, true] {
            let (display, size) = (own_display(), Size::new(320, 240));
            let mut server = Xvfb::with(size, 24, &[&display]).unwrap();
            let WindowSpace { app, space, .. } =
                WindowSpace::on(&server, Bounds::new(0, 0, 100, 100));
            let mut viewer = space.attach();
            assert!(viewer.packet().keyframe);
            viewer.until_still();
            server.kill().unwrap();
            let Event::Suspended(reason, _) = viewer.event() else { panic!("not suspended") };
            assert_eq!(reason, Suspension::CaptureFailed);
            let again = comes_back.then(|| Xvfb::with(size, 24, &[&display]).unwrap());
            let Event::Ended(reason) = viewer.event() else { panic!("not ended") };
            assert_eq!(reason.cause(), Some(Cause::TargetGone));
            space.end();
            drop((app, again));
        }
    }

    #[test]
    fn a_killed_server_suspends_the_stream() {
        let mut server = Xvfb::with(Size::new(320, 240), 24, &[&own_display()]).unwrap();
        let space = Space::on(&server);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        viewer.until_still();
        server.kill().unwrap();
        let Event::Suspended(_, reason) = viewer.event() else { panic!("not suspended") };
        assert_eq!(reason.cause(), Some(Cause::CaptureFailed));
        space.end();
    }

    #[test]
    fn a_server_that_hangs_suspends_the_stream_until_it_answers() {
        let server = Xvfb::with(Size::new(320, 240), 24, &[&own_display()]).unwrap();
        let pid = Pid::from_raw(server.pid().cast_signed()).unwrap();
        let space = Space::on(&server);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        viewer.until_still();
        kill_process(pid, Signal::STOP).unwrap();
        let Event::Suspended(_, reason) = viewer.event() else { panic!("not suspended") };
        assert_eq!(reason.cause(), Some(Cause::CaptureFailed));
        assert!(reason.to_string().ends_with("does not answer"), "{reason}");
        // It hangs while it is connected to anew, too.
        std::thread::sleep(Duration::from_secs(1));
        kill_process(pid, Signal::CONT).unwrap();
        assert!(matches!(viewer.event(), Event::Resumed));
        assert!(viewer.packet().keyframe);
        space.end();
    }

    #[test]
    fn a_source_that_stays_away_ends_the_stream() {
        let fakes = Fakes::default();
        fakes.source_fails.store(usize::MAX, SeqCst);
        let space = Space::with(fakes, Target::TestPattern, 30);
        let mut viewer = space.attach();
        let Event::Suspended(_, reason) = viewer.event() else { panic!("not suspended") };
        assert_eq!(reason.cause(), Some(Cause::CaptureFailed));
        let Event::Ended(reason) = viewer.event() else { panic!("not ended") };
        assert_eq!(reason.cause(), Some(Cause::TargetGone));
        space.end();
    }

    #[test]
    fn a_source_that_comes_back_resumes_with_a_keyframe() {
        let fakes = Fakes::default();
        let space = Space::with(fakes.clone(), Target::TestPattern, 30);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        fakes.source_fails.store(1, SeqCst);
        fakes.source_breaks.store(1, SeqCst);
        loop {
            match viewer.event() {
                Event::Packet(_) => {}
                Event::Suspended(_, reason) => {
                    assert_eq!(reason.cause(), Some(Cause::CaptureFailed));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(viewer.event(), Event::Resumed));
        let packet = viewer.packet();
        assert!(packet.keyframe && packet.codec_epoch == 2);
        space.end();
    }

    #[test]
    fn an_encoder_that_dies_is_replaced_by_its_like_and_then_by_the_next() {
        let fakes = Fakes::default();
        let space = Space::with(fakes.clone(), Target::TestPattern, 120);
        let mut viewer = space.attach();
        assert!(viewer.packet().keyframe);
        for (epoch, opened) in [(2, vec!["first", "first"]), (3, vec!["first", "first", "second"])]
        {
            fakes.encoder_dies.store(1, SeqCst);
            let next = loop {
                let packet = viewer.packet();
                if packet.codec_epoch == epoch {
                    break packet;
                }
            };
            assert!(next.keyframe, "the first of a new encoder");
            assert_eq!(*fakes.opened.lock().unwrap(), opened);
        }
        drop(viewer);
        space.end();
    }

    #[test]
    fn an_encoder_that_fails_at_its_first_picture_gives_way_to_the_next() {
        let fakes = Fakes { broken: vec!["first"], ..Fakes::default() };
        let space = Space::with(fakes.clone(), Target::TestPattern, 120);
        assert!(space.attach().packet().keyframe);
        assert_eq!(*fakes.opened.lock().unwrap(), ["first", "second"]);
        space.end();

        let fakes = Fakes { broken: vec!["first", "second"], ..Fakes::default() };
        let space = Space::with(fakes.clone(), Target::TestPattern, 120);
        let Event::Ended(reason) = space.attach().event() else { panic!("not ended") };
        assert_eq!(reason.cause(), Some(Cause::EncoderFailed));
        assert_eq!(*fakes.opened.lock().unwrap(), ["first", "second", "second"]);
        space.end();
    }

    #[test]
    fn a_display_that_is_not_ours_ends_the_stream_at_once() {
        let server = Xvfb::start(Size::new(320, 240)).unwrap();
        let mut config = Config::default();
        config.capture.display = Some(server.display().to_owned());
        let target = Target::Display { display_id: "elsewhere:0".to_owned() };
        let space = Space::with(config, target, 60);
        let Event::Ended(reason) = space.attach().event() else { panic!("not ended") };
        assert_eq!(reason.kind(), Kind::NotFound);
        space.end();
    }

    #[test]
    fn slots_neither_drift_nor_bunch() {
        let millis = Duration::from_millis;
        let mut pace = Pace::default();
        assert_eq!(pace.next(100), Duration::ZERO, "the first picture comes at once");
        pace.took(millis(1000), 100);
        for frame in 1..1000 {
            // Always woken a millisecond late, yet as many pictures as slots.
            assert_eq!(pace.next(100), millis(1000 + 10 * frame));
            pace.took(millis(1001 + 10 * frame), 100);
        }
        let pause = millis(60_000);
        pace.took(pause, 100);
        assert_eq!(pace.next(100), pause + millis(10), "slots missed in a pause are not made up");
    }
}
