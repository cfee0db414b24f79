//! Follows one stream of a machine: opens it while somebody watches, publishes what comes, and says what is
//! wanted.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use spaceport_session::{Cursor, Demand, Publisher};
use spaceport_transport::Received;
use spaceport_transport::relayed::Connection;
use spaceport_types::{
    Bitrate, Cause, Codec, Error, Geometry, Kind, Packet, Result, SessionId, Size, Suspension,
};
use spaceport_wire::control::{
    ClientMessage, CursorMode, GetStats, LifecycleEvent, Preferences, ServerMessage, SessionRef,
    SetCursor,
};
use spaceport_wire::packet::{Header, MAX_PAYLOAD};
use spaceport_wire::relay::Head;
use spaceport_wire::relay_media::{self, Watch};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::machine::{Machine, lie, sane};
use super::pointer::Pointer;
use crate::tunnel::{Stream, Tunnel};

/// How long a stream is kept after its last viewer: longer than a browser takes to load a page again.
const LINGER: Duration = Duration::from_secs(3);

/// How long a keyframe that was asked for may take before it is asked for again.
const KEYFRAME_PATIENCE: Duration = Duration::from_secs(1);

/// Between two tries to open a stream: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How often the machine's clock is read.
const CLOCK: Duration = Duration::from_secs(10);

/// The longest encoded frame. An uncompressed one may be as long as any.
const LONGEST: usize = 16 << 20;

/// The longest title that is passed on.
const LONGEST_TITLE: usize = 512;

/// Serves a stream's viewers until nobody can come any more.
pub(super) async fn run(machine: Arc<Machine>, publisher: Publisher) {
    let Some(session) = publisher.session().cloned() else { return };
    let Some(mut held) = machine.held(&session) else { return };
    let asked = publisher.demand(now());
    let mut line = Line {
        session,
        epochs: (0, 0),
        limits: (asked.settings.max_fps, asked.settings.max_dimension),
        ceiling: asked.settings.bitrate,
    };
    let mut wait = AGAIN.0;
    loop {
        let wanted = demand(&publisher, |demand| demand.closed || demand.viewers > 0).await;
        if wanted.closed {
            return;
        }
        let Some(tunnel) = tunnel(&publisher, &mut held).await else { return };
        let began = Instant::now();
        let ended = line.watch(&machine, &publisher, &tunnel).await;
        publisher.restart();
        match ended {
            Ended::Closed => return,
            Ended::Unwatched => continue,
            Ended::Because(error) => return publisher.fail(error),
            Ended::Lost(error) => {
                tracing::debug!(%error, session = line.session.short(), "stream was lost");
                suspend(&publisher);
            }
        }
        if began.elapsed() > AGAIN.1 {
            wait = AGAIN.0;
        }
        tokio::select! {
            () = sleep(wait) => {}
            _ = demand(&publisher, |demand| demand.closed) => return,
        }
        wait = (wait * 2).min(AGAIN.1);
    }
}

/// The tunnel on which the session is held, when there is one; `None` when there will be none. Meanwhile
/// viewers are told.
async fn tunnel(
    publisher: &Publisher,
    held: &mut watch::Receiver<Option<Tunnel>>,
) -> Option<Tunnel> {
    loop {
        let tunnel = held.borrow_and_update().clone();
        match tunnel.filter(|tunnel| !tunnel.is_closed()) {
            Some(tunnel) => return Some(tunnel),
            None => suspend(publisher),
        }
        tokio::select! {
            changed = held.changed() => changed.ok()?,
            _ = demand(publisher, |demand| demand.closed) => return None,
        }
    }
}

fn suspend(publisher: &Publisher) {
    let error = Error::because(Cause::GuestOffline, "the machine is not connected at the moment")
        .hint("It goes on by itself when the machine is back");
    publisher.suspend(Suspension::for_error(&error), error);
}

/// Waits until what viewers want is of some sort.
async fn demand(publisher: &Publisher, mut is: impl FnMut(&Demand) -> bool) -> Demand {
    poll_fn(|cx| {
        publisher.set_waker(cx.waker().clone());
        let demand = publisher.demand(now());
        if is(&demand) { Poll::Ready(demand) } else { Poll::Pending }
    })
    .await
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// How a stream ended.
enum Ended {
    /// Nobody watches, for the time being.
    Unwatched,
    /// Nobody can watch any more.
    Closed,
    /// The machine ended it, or does not keep to what is agreed.
    Because(Error),
    /// It broke.
    Lost(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        match error.kind() {
            Kind::Io | Kind::Cancelled => Self::Lost(error),
            _ => Self::Because(error),
        }
    }
}

/// What outlives the streams that follow each other.
struct Line {
    session: SessionId,
    /// What is added to the machine's codec epochs, which begin anew with each stream, and the last one so far.
    epochs: (u32, u32),
    /// The frames per second and the size that viewers asked for last.
    limits: (u32, u32),
    /// The most bits a second.
    ceiling: Bitrate,
}

impl Line {
    /// What viewers take, if that is not all there is.
    fn beyond(&self, publisher: &Publisher, wanted: &Demand) -> Option<Bitrate> {
        let rate = wanted.settings.bitrate;
        (!publisher.is_whole() || rate < self.ceiling).then_some(rate)
    }

    async fn watch(&mut self, machine: &Machine, publisher: &Publisher, tunnel: &Tunnel) -> Ended {
        let beyond = self.beyond(publisher, &publisher.demand(now()));
        let head = Head::Watch(Watch {
            session_id: self.session.to_string(),
            codec: publisher.codec(),
            baked_cursor: publisher.cursor() == Cursor::Baked,
            beyond_kbps: beyond.map(Bitrate::kbps),
        });
        let stream = match tunnel.open(&head).await {
            Ok(stream) => stream,
            Err(error) => return Ended::Lost(error),
        };
        let longest = match publisher.codec() {
            Codec::Bgra | Codec::Png => MAX_PAYLOAD,
            _ => LONGEST,
        };
        // What is sealed says of which packet it is, as that is there.
        let sealed = machine.sessions().info(&self.session).is_ok_and(|info| info.sealed);
        self.epochs.0 = if sealed { 0 } else { self.epochs.1 };
        let mut watching = Watching {
            line: self,
            machine,
            publisher,
            tunnel,
            connection: Connection::new(stream, longest),
            geometry: None,
            sequence: 0,
            awaits_keyframe: true,
            suspended: false,
            pointer: Pointer::new(publisher.pointer()),
            told: Told::new(beyond),
        };
        watching.run().await.unwrap_or_else(|ended| ended)
    }
}

/// One stream that is open.
struct Watching<'a> {
    line: &'a mut Line,
    machine: &'a Machine,
    publisher: &'a Publisher,
    tunnel: &'a Tunnel,
    connection: Connection<Stream>,
    /// What the next frames show.
    geometry: Option<Geometry>,
    /// Of the last frame that came.
    sequence: u64,
    awaits_keyframe: bool,
    /// The machine has nothing new to show for now.
    suspended: bool,
    pointer: Pointer,
    told: Told,
}

/// What the machine was told of what is wanted here.
struct Told {
    cursor: bool,
    beyond: Option<Bitrate>,
    /// When a keyframe was asked for that has not come. An attach asks for one by itself.
    keyframe: Option<Instant>,
    /// Frames came that were not said to have arrived.
    owes: bool,
    unwatched: Option<Instant>,
    /// When the clock is to be read, and when it was asked for.
    clock: (Instant, Instant),
}

impl Told {
    fn new(beyond: Option<Bitrate>) -> Self {
        let now = Instant::now();
        Self {
            cursor: false,
            beyond,
            keyframe: Some(now),
            owes: false,
            unwatched: None,
            clock: (now, now),
        }
    }
}

impl Watching<'_> {
    async fn run(&mut self) -> Result<Ended, Ended> {
        loop {
            let wanted = self.publisher.demand(now());
            if wanted.closed {
                return Ok(Ended::Closed);
            }
            let look_again = self.tell(&wanted)?;
            if self.told.unwatched.is_some_and(|since| since.elapsed() >= LINGER) {
                return Ok(Ended::Unwatched);
            }
            tokio::select! {
                received = self.connection.recv() => match received {
                    Received::Control(message) => self.heard(message)?,
                    Received::Packet(header, payload) => self.packet(&header, payload)?,
                    Received::Closed(error) => return Err(Ended::from(error)),
                },
                _ = demand(self.publisher, |demand| differs(demand, &wanted)) => {}
                () = self.tunnel.closed() => return Err(Ended::Lost(lost())),
                () = sleep_until(look_again) => {}
            }
        }
    }

    /// Says what has changed of what is wanted. Returns when to look again, if nothing happens.
    fn tell(&mut self, wanted: &Demand) -> Result<Instant> {
        let now = Instant::now();
        let (connection, told, line) = (&mut self.connection, &mut self.told, &mut *self.line);
        let mut look_again = told.clock.0;
        if told.clock.0 <= now {
            told.clock = (now + CLOCK, now);
            look_again = now + CLOCK;
            connection.say(&ClientMessage::GetStats(GetStats::default()))?;
        }
        if wanted.cursor != told.cursor {
            told.cursor = wanted.cursor;
            let mode = if wanted.cursor { CursorMode::OutOfBand } else { CursorMode::None };
            connection.say(&ClientMessage::SetCursor(SetCursor { mode }))?;
        }
        let limits = (wanted.settings.max_fps, wanted.settings.max_dimension);
        if self.publisher.is_whole() && limits != line.limits {
            line.limits = limits;
            let (max_fps, max_dimension) = (Some(limits.0), Some(limits.1));
            let wanted = Preferences { max_fps, max_dimension, ..Preferences::default() };
            connection.say(&ClientMessage::SetStreamPreferences(wanted))?;
        }
        let beyond = line.beyond(self.publisher, wanted);
        if beyond != told.beyond {
            told.beyond = beyond;
            connection.beyond(beyond)?;
        }
        match wanted.keyframe.map(Instant::from_std) {
            None => told.keyframe = None,
            Some(due) => {
                let due = told.keyframe.map_or(due, |asked| due.max(asked + KEYFRAME_PATIENCE));
                if due <= now {
                    told.keyframe = Some(now);
                    connection.say(&ClientMessage::RequestKeyframe(SessionRef::default()))?;
                } else {
                    look_again = look_again.min(due);
                }
            }
        }
        if told.owes && wanted.ready {
            told.owes = false;
            connection.arrived()?;
        }
        if wanted.viewers > 0 {
            told.unwatched = None;
        } else {
            look_again = look_again.min(*told.unwatched.get_or_insert(now) + LINGER);
        }
        Ok(look_again)
    }

    fn heard(&mut self, message: ServerMessage) -> Result<(), Ended> {
        match message {
            ServerMessage::SessionOpened(opened) => self.geometry = Some(sane(opened.geometry)?),
            ServerMessage::Lifecycle(lifecycle) => return self.lifecycle(lifecycle.event),
            ServerMessage::CursorImage(image) => self.pointer.image(&image)?,
            ServerMessage::Cursor(cursor) => {
                if let Some(geometry) = self.geometry {
                    self.pointer.place(&cursor, geometry);
                }
            }
            ServerMessage::Stats(stats) => {
                let asked = self.told.clock.1;
                self.machine.clock().learn(asked, Instant::now(), stats.server_time_us);
            }
            _ => {}
        }
        Ok(())
    }

    fn lifecycle(&mut self, event: LifecycleEvent) -> Result<(), Ended> {
        match event {
            LifecycleEvent::GeometryChanged { geometry } => self.geometry = Some(sane(geometry)?),
            LifecycleEvent::TitleChanged { title } => {
                self.publisher.retitle(title.chars().take(LONGEST_TITLE).collect());
            }
            LifecycleEvent::Suspended { reason, error } => {
                self.suspended = true;
                let unsaid = || Error::new(Kind::Stream, "the machine has nothing to show");
                let error = error.map_or_else(unsaid, |error| relay_media::error(&error));
                self.publisher.suspend(reason, error);
            }
            LifecycleEvent::Resumed => self.suspended = false,
            LifecycleEvent::Closed { error } => {
                let closed = || Error::because(Cause::SessionClosed, "the session is closed");
                let error = error.map_or_else(closed, |error| relay_media::error(&error));
                return Err(Ended::Because(error));
            }
            _ => {}
        }
        Ok(())
    }

    fn packet(&mut self, header: &Header<'_>, payload: Bytes) -> Result<(), Ended> {
        let geometry = self.geometry.ok_or_else(|| lie("a frame before its size"))?;
        let size = Size::new(header.width_px, header.height_px);
        if (size, header.geometry_epoch) != (geometry.frame_size, geometry.geometry_epoch) {
            return Err(lie("a frame of another size than it said").into());
        }
        if header.codec != self.publisher.codec() || header.session_id != self.line.session.as_str()
        {
            return Err(lie("a frame of another stream").into());
        }
        if header.sequence <= self.sequence {
            return Err(lie("frames out of order").into());
        }
        self.sequence = header.sequence;
        self.told.owes = true;
        // Of the machine's encoder, as there is none here.
        self.machine.sessions().counters().encoded_bytes.add(payload.len() as u64);
        if header.keyframe {
            // Another one may be wanted still: this one may be what viewers here have seen.
            self.told.keyframe = None;
            self.awaits_keyframe = false;
        } else if self.awaits_keyframe {
            return Err(lie("no keyframe first").into());
        }
        self.line.epochs.1 = self.line.epochs.0.saturating_add(header.codec_epoch);
        let packet = Packet {
            sequence: header.sequence,
            codec: header.codec,
            keyframe: header.keyframe,
            codec_epoch: self.line.epochs.1,
            geometry,
            captured_at: Duration::from_micros(header.capture_timestamp_us),
            encode_duration: Duration::from_micros(header.encode_duration_us.unwrap_or_default()),
            payload,
        };
        self.publisher.forward(&packet, now(), !self.suspended);
        Ok(())
    }
}

fn lost() -> Error {
    Error::new(Kind::Io, "the tunnel to the machine is closed")
}

/// Whether anything is wanted that was not, or no more. When a keyframe is due changes by itself.
fn differs(one: &Demand, other: &Demand) -> bool {
    let parts = |demand: &Demand| {
        let Demand { viewers, ready, keyframe, cursor, settings, closed, .. } = demand;
        (*viewers > 0, *ready, keyframe.is_some(), *cursor, *settings, *closed)
    };
    parts(one) != parts(other)
}
