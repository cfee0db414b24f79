//! Frames on their way to one viewer.
//!
//! On streams: each frame has one, and a frame counts as on its way until the client has acknowledged all of
//! it; in datagrams, until the last of them has room in QUIC's buffer. Whether the path takes another is told by
//! those on their way ([`Flying`]) and, before any of them is late, by acknowledgements ([`Flight`]). What cannot be
//! sent in time so stays in the subscriber's queue, where a newer frame replaces it, and not in here, where it would
//! only delay what is newer.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, poll};
use spaceport_wire::attach::Video;
use spaceport_wire::close::CloseCode;
use spaceport_wire::datagram::{Header, pieces};
use tokio::time::Instant;
use web_transport_quinn::{SendStream, Session};

use super::congestion;
use super::flight::Flight;
use crate::flying::Flying;
use crate::viewer::{Arrived, End, Frame, Room};

/// What a client may take to acknowledge what it has, by RFC 9000 §18.2 (`max_ack_delay`).
pub(super) const ACK_DELAY: Duration = Duration::from_millis(25);

/// Frames on their way at one time, however fast they come.
const MAX_BEGUN: usize = 64;

/// The code that the stream of a frame is reset with when a newer keyframe has made it worthless.
pub(super) const SUPERSEDED: u32 = 1;

/// The priority of the control stream: before any frame.
pub(super) const CONTROL_PRIORITY: i32 = i32::MAX;

/// Frames after a keyframe that have a priority each.
const GROUP: i32 = 1 << 12;

/// Keyframes in a row that have priorities in the order they came in; then it starts again.
const GROUPS: i32 = 1 << 18;

pub(super) struct Frames {
    session: Session,
    video: Video,
    next_id: u64,
    /// The keyframe since the start, and the frame since that.
    place: (i32, i32),
    /// The frames that have not arrived.
    begun: Flying,
    /// The one that QUIC has not taken all of yet. Only one at a time: of several QUIC would take from any
    /// what the client has room for, and the newest might use up what the oldest waits for.
    writing: Option<(u64, BoxFuture<'static, Option<Written>>)>,
    arriving: FuturesUnordered<BoxFuture<'static, (u64, Sent)>>,
    flight: Arc<Flight>,
    /// Where the client was when that was found: with a new address it gets another.
    remote: SocketAddr,
}

/// What there is to wait for once QUIC has taken a frame.
enum Written {
    Stream(Stream),
    Datagrams,
}

/// News of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is a step further.
    On,
    /// It has arrived.
    Arrived(Arrived),
    /// It will not arrive, because the client did not want it or the path lets none so long through.
    Lost,
}

impl Frames {
    pub(super) fn new(session: Session, video: Video) -> Self {
        let remote = session.remote_address();
        let flight = congestion::flight(&session).unwrap_or_default();
        Self {
            session,
            video,
            next_id: 0,
            place: (0, 0),
            begun: Flying::default(),
            writing: None,
            arriving: FuturesUnordered::new(),
            flight,
            remote,
        }
    }

    /// How long the way there and back is when nothing waits on it.
    ///
    /// What QUIC measures grows with the queues that its own packets make, and would let them grow.
    fn way(&self) -> Duration {
        self.flight.way().unwrap_or_else(|| self.session.rtt())
    }

    /// Starts to send a frame. [`Frames::sent`] goes on with it.
    pub(super) async fn send(&mut self, frame: Frame) -> Result<(), End> {
        if frame.supersedes {
            // Dropped, their streams are reset.
            self.writing = None;
            self.arriving = FuturesUnordered::new();
            self.begun.clear();
        }
        // Usually there is none: nobody sends before this is ready.
        while self.writing.is_some() {
            self.sent().await;
        }
        let remote = self.session.remote_address();
        if remote != self.remote {
            self.remote = remote;
            self.flight = congestion::flight(&self.session).unwrap_or_default();
        }
        let id = self.next_id;
        self.next_id += 1;
        let session = self.session.clone();
        let bytes = frame.packet.header.len() + frame.packet.payload.len();
        let writing: BoxFuture<'static, Option<Written>> = match self.video {
            Video::Streams => {
                let priority = self.priority(frame.keyframe);
                let header = Header::whole(id, frame.keyframe, &frame.packet)
                    .map_err(|_| End::Close(CloseCode::Internal))?;
                Box::pin(on_stream(session, header, priority, frame))
            }
            Video::Datagrams => Box::pin(in_datagrams(session, id, frame)),
        };
        self.begun.begin(id, bytes, Instant::now().into_std());
        self.writing = Some((id, writing));
        // A path with room takes it at once.
        let lost = poll!(pin!(self.sent())) == Poll::Ready(Sent::Lost);
        if lost {
            self.arriving.push(Box::pin(std::future::ready((id, Sent::Lost))));
        }
        Ok(())
    }

    /// The newest picture that can be shown goes first: what follows a keyframe in the order of time, and
    /// all of it before what came earlier.
    fn priority(&mut self, keyframe: bool) -> i32 {
        let (group, index) = self.place;
        self.place = if keyframe { ((group + 1) % GROUPS, 0) } else { (group, index + 1) };
        let (group, index) = self.place;
        group * GROUP + (GROUP - 1 - index.min(GROUP - 1))
    }

    /// Whether the path takes another frame, when one comes every `interval`.
    pub(super) fn room(&self, interval: Duration) -> Room {
        if self.writing.is_some() || self.begun.len() >= MAX_BEGUN {
            return Room::Waits(None);
        }
        room(&self.begun, &self.flight, self.way(), interval, Instant::now().into_std())
    }

    /// Works on what is being sent, and waits for news of it. Never returns when there is none.
    pub(super) async fn sent(&mut self) -> Sent {
        let usual = usual(self.way());
        let Self { begun, writing, arriving, flight, .. } = self;
        let write = async {
            match writing {
                Some((id, future)) => (*id, future.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            (id, written) = write => {
                *writing = None;
                let Some(Written::Stream(stream)) = written else {
                    begun.lose(id);
                    return if written.is_some() { Sent::On } else { Sent::Lost };
                };
                arriving.push(Box::pin(arrival(id, stream)));
                Sent::On
            }
            Some((id, sent)) = arriving.next() => {
                let now = Instant::now().into_std();
                match sent {
                    Sent::On => begun.arrive(id, usual, now).map_or(sent, Sent::Arrived),
                    _ => {
                        begun.lose(id);
                        sent
                    }
                }
            }
            () = flight.changed() => Sent::On,
        }
    }
}

/// How long a frame takes that finds the path free.
pub(super) fn usual(way: Duration) -> Duration {
    way + ACK_DELAY
}

/// Whether a path that has `begun` takes another frame, when one comes every `interval`.
///
/// The path's rate is told by its packets. When frames arrive tells none: they do so independently of each other,
/// and one of which a packet was lost takes longer on the widest path.
pub(super) fn room(
    begun: &Flying,
    flight: &Flight,
    way: Duration,
    interval: Duration,
    now: std::time::Instant,
) -> Room {
    if !begun.is_empty() && flight.is_behind() {
        return Room::Waits(None);
    }
    begun.room(flight.rate(), usual(way), interval, now)
}

/// Hands a frame to QUIC.
async fn on_stream(
    session: Session,
    header: Header,
    priority: i32,
    frame: Frame,
) -> Option<Written> {
    let mut stream = Stream(Some(session.open_uni().await.ok()?));
    let writing = stream.0.as_mut()?;
    writing.set_priority(priority).ok()?;
    writing.write_all(&header.to_bytes()).await.ok()?;
    let mut chunks = [frame.packet.header, frame.packet.payload];
    writing.write_all_chunks(&mut chunks).await.ok()?;
    writing.finish().ok()?;
    Some(Written::Stream(stream))
}

/// Waits until the client has all of a frame.
async fn arrival(id: u64, mut stream: Stream) -> (u64, Sent) {
    let stopped = match &stream.0 {
        Some(stream) => stream.stopped().await,
        None => Ok(None),
    };
    stream.0 = None;
    (id, if matches!(stopped, Ok(None)) { Sent::On } else { Sent::Lost })
}

/// A stream that ends as it should, or is reset: one that is only dropped looks whole to its reader.
struct Stream(Option<SendStream>);

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            // Fails when it is over anyhow.
            let _ = stream.reset(SUPERSEDED);
        }
    }
}

async fn in_datagrams(session: Session, id: u64, frame: Frame) -> Option<Written> {
    let longest = session.max_datagram_size();
    for piece in pieces(id, frame.keyframe, &frame.packet, longest).ok()? {
        session.send_datagram_wait(piece).await.ok()?;
    }
    Some(Written::Datagrams)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_fit_and_never_reach_that_of_the_control_stream() {
        let highest = i64::from(GROUPS - 1) * i64::from(GROUP) + i64::from(GROUP - 1);
        assert!(highest < i64::from(CONTROL_PRIORITY));
    }
}
