//! One simulated viewer, whatever carries its stream. It counts; nothing is decoded.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use spaceport_transport::quic::{self, Video};
use spaceport_transport::whep::player::{Played, Player};
use spaceport_transport::{Received, websocket};
use spaceport_types::{Error, Kind, Result};
use spaceport_wire::control::{ClientMessage, GetStats, ServerMessage};
use spaceport_wire::packet::Header;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::args::Carrier;
use super::session::{Network, Session};
use super::tally::{Clock, Matches, Seen, Tail, Tally};

/// How long a viewer waits for its first picture.
const FIRST_FRAME: Duration = Duration::from_secs(20);

/// Frames whose capture time is not known yet. The reference is rarely a frame behind.
const UNRESOLVED: usize = 8;

/// Questions about the server's clock; the quickest answer counts.
const CLOCK_READINGS: usize = 8;

/// What all viewers of a run share.
pub(crate) struct Shared {
    pub(crate) tally: Tally,
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    /// Becomes true when it is time to leave.
    pub(crate) stop: watch::Receiver<bool>,
}

/// How a viewer did.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// From when it began to connect.
    pub(crate) first_frame: Option<Duration>,
    /// Why it has no picture, or lost it before it was to leave.
    pub(crate) failed: Option<Error>,
    /// The longest it stood still while it was watching.
    pub(crate) longest_gap: Duration,
}

/// What is common to the ways a stream comes.
enum Feed {
    Quic(Box<quic::Connection>),
    Socket(Box<websocket::client::Connection>),
    Whep(Box<Player>),
}

/// One frame, as it came.
struct Frame {
    sequence: Option<u64>,
    captured: Option<Duration>,
    tail: Option<(Tail, u32)>,
    bytes: usize,
}

/// Watches from `at` until told to stop.
pub(crate) async fn watch(
    at: Instant,
    transport: Carrier,
    session: Session,
    client: Option<quic::Client>,
    shared: Arc<Shared>,
) -> Outcome {
    let mut stop = shared.stop.clone();
    let mut outcome = Outcome::default();
    tokio::select! {
        () = sleep_until(at) => {}
        _ = stop.wait_for(|stop| *stop) => return outcome,
    }
    let began = Instant::now();
    let mut feed = match connect(transport, &session, client.as_ref(), &shared.network).await {
        Ok(feed) => feed,
        Err(error) => {
            outcome.failed = Some(error);
            return outcome;
        }
    };
    let mut watching = Watching::new(&shared);
    loop {
        let by = began + FIRST_FRAME;
        let frame = tokio::select! {
            frame = feed.next() => frame,
            () = sleep_until(by), if watching.last.is_none() => {
                Err(Error::new(Kind::Timeout, format!("no picture within {FIRST_FRAME:?}")))
            }
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match frame {
            Ok(frame) => {
                if watching.last.is_none() {
                    outcome.first_frame = Some(began.elapsed());
                    shared.tally.joined(began.elapsed());
                }
                watching.take(&frame, feed.lost(), &mut outcome.longest_gap);
            }
            Err(error) => {
                outcome.failed = Some(error);
                break;
            }
        }
    }
    if let Some(last) = watching.last {
        outcome.longest_gap = outcome.longest_gap.max(last.elapsed());
        shared.tally.left();
    }
    feed.leave().await;
    outcome
}

async fn connect(
    transport: Carrier,
    session: &Session,
    client: Option<&quic::Client>,
    network: &Network,
) -> Result<Feed> {
    match (transport, client) {
        (Carrier::Ws, _) => {
            let socket = websocket::client::connect(&session.socket).await?;
            Ok(Feed::Socket(Box::new(socket)))
        }
        (Carrier::Whep, _) => {
            let player = Player::connect(&session.whep, |server| network.towards(server)).await?;
            Ok(Feed::Whep(Box::new(player)))
        }
        (Carrier::Quic | Carrier::WebTransport, Some(client)) => {
            let mut remote = session.quic.clone().ok_or_else(|| {
                Error::new(Kind::CapabilityMissing, "the Space offers no QUIC")
                    .hint("Measure another transport")
            })?;
            remote.address = network.towards(remote.address)?;
            let named = session.machine.as_ref().map(|machine| client.at_machine(machine));
            let client = named.as_ref().unwrap_or(client);
            let connected = if transport == Carrier::Quic {
                client.connect(&remote, &session.ticket, Video::Streams).await
            } else {
                client.connect_webtransport(&remote, &session.ticket, Video::Streams).await
            };
            Ok(Feed::Quic(Box::new(connected?)))
        }
        (Carrier::Quic | Carrier::WebTransport, None) => {
            Err(Error::new(Kind::Internal, "a QUIC viewer without a socket"))
        }
    }
}

impl Feed {
    async fn next(&mut self) -> Result<Frame> {
        loop {
            let received = match self {
                Self::Quic(connection) => connection.recv().await,
                Self::Socket(socket) => socket.recv().await,
                Self::Whep(player) => {
                    return match player.recv().await {
                        Played::Frame(frame) => Ok(Frame {
                            sequence: None,
                            captured: None,
                            tail: tail(&frame.tail).map(|tail| (tail, frame.timestamp)),
                            bytes: frame.bytes,
                        }),
                        Played::Closed(error) => Err(error),
                    };
                }
            };
            match received {
                Received::Packet(header, payload) => {
                    return Ok(Frame {
                        sequence: Some(header.sequence),
                        captured: Some(captured(&header)),
                        tail: None,
                        bytes: payload.len(),
                    });
                }
                Received::Control(_) => {}
                Received::Closed(error) => return Err(error),
            }
        }
    }

    /// Frames that it knows it will not get, where the stream's own numbers do not tell.
    fn lost(&self) -> u64 {
        match self {
            Self::Whep(player) => player.lost(),
            Self::Quic(_) | Self::Socket(_) => 0,
        }
    }

    async fn leave(self) {
        match self {
            Self::Quic(connection) => connection.close(),
            // Closing the TCP connection says it.
            Self::Socket(_) => {}
            Self::Whep(player) => player.leave().await,
        }
    }
}

fn captured(header: &Header<'_>) -> Duration {
    Duration::from_micros(header.capture_timestamp_us)
}

/// The last bytes of a frame; nothing for one too short to tell it by them.
fn tail(bytes: &[u8]) -> Option<Tail> {
    // The first two of the last packet may be the packetiser's.
    bytes.get(2..)?.last_chunk().copied()
}

/// What a viewer remembers from frame to frame.
struct Watching<'a> {
    shared: &'a Shared,
    last: Option<Instant>,
    sequence: Option<u64>,
    lost: u64,
    /// Frames that came, until the reference says when they were captured.
    unresolved: VecDeque<(Tail, i64, Instant)>,
    matches: Matches,
}

impl<'a> Watching<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            last: None,
            sequence: None,
            lost: 0,
            unresolved: VecDeque::new(),
            matches: Matches::default(),
        }
    }

    fn take(&mut self, frame: &Frame, lost: u64, longest: &mut Duration) {
        let now = Instant::now();
        let interval = self.last.map(|last| now - last);
        if let Some(interval) = interval {
            *longest = (*longest).max(interval);
        }
        self.last = Some(now);
        let skipped = match (frame.sequence, self.sequence) {
            (Some(now), Some(last)) => now.saturating_sub(last).saturating_sub(1),
            _ => 0,
        };
        self.sequence = frame.sequence.or(self.sequence);
        let missing = skipped + (lost - self.lost);
        self.lost = lost;
        let latency = frame.captured.and_then(|at| self.shared.clock.since(at, now));
        let seen = Seen { sequence: frame.sequence, bytes: frame.bytes, missing, interval };
        self.shared.tally.seen(seen, latency);
        self.resolve();
        if let Some((tail, timestamp)) = frame.tail {
            if self.unresolved.len() == UNRESOLVED {
                self.unresolved.pop_front();
            }
            self.unresolved.push_back((tail, self.matches.unwrap(timestamp), now));
        }
    }

    /// Looks up those that came before; the reference may be a little later than a viewer.
    fn resolve(&mut self) {
        let tally = &self.shared.tally;
        let matches = &mut self.matches;
        self.unresolved.retain(|(tail, stamp, came)| {
            let Some(captured) = tally.captured(*tail) else { return true };
            if matches.confirm(*stamp, captured)
                && let Some(latency) = self.shared.clock.since(captured, *came)
            {
                tally.took(latency);
            }
            false
        });
    }
}

/// The viewer that no result counts: it starts the stream, reads the server's clock, and, for transports that
/// do not say when a frame was captured, goes on to say it for them.
pub(crate) struct Reference {
    socket: websocket::client::Connection,
}

impl Reference {
    /// Watches, and has a picture.
    pub(crate) async fn start(session: &Session, origin: Instant) -> Result<(Self, Clock)> {
        let mut socket = websocket::client::connect(&session.socket).await?;
        let first = async {
            loop {
                match socket.recv().await {
                    Received::Packet(..) => return Ok(()),
                    Received::Control(_) => {}
                    Received::Closed(error) => return Err(error),
                }
            }
        };
        timeout(FIRST_FRAME, first).await.map_err(|_| {
            Error::new(Kind::Timeout, format!("the stream has no picture within {FIRST_FRAME:?}"))
                .hint("Look whether it has one: `spaceport doctor` on that machine")
        })??;
        let clock = read_clock(&mut socket, origin).await?;
        Ok((Self { socket }, clock))
    }

    /// Says of each frame when it was captured, until told to stop.
    pub(crate) async fn tell(mut self, shared: Arc<Shared>) {
        let mut stop = shared.stop.clone();
        loop {
            let received = tokio::select! {
                received = self.socket.recv() => received,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match received {
                Received::Packet(header, payload) => {
                    if let Some(tail) = payload.last_chunk() {
                        shared.tally.refer(*tail, header.sequence, captured(&header));
                    }
                }
                Received::Control(_) => {}
                Received::Closed(_) => return,
            }
        }
    }
}

/// How far the server's media clock is ahead of ours: half a round trip before its answer came.
async fn read_clock(socket: &mut websocket::client::Connection, origin: Instant) -> Result<Clock> {
    let mut best: Option<Clock> = None;
    for _ in 0..CLOCK_READINGS {
        let asked = origin.elapsed();
        let client_time_us = u64::try_from(asked.as_micros()).ok();
        socket
            .say(&ClientMessage::GetStats(GetStats { client_time_us, ..GetStats::default() }))
            .await?;
        let stats = loop {
            match socket.recv().await {
                Received::Control(ServerMessage::Stats(stats)) => break stats,
                Received::Closed(error) => return Err(error),
                Received::Control(_) | Received::Packet(..) => {}
            }
        };
        let heard = origin.elapsed();
        let middle = i64::try_from((asked + heard).as_micros() / 2).unwrap_or(i64::MAX);
        let ahead = i64::try_from(stats.server_time_us).unwrap_or(i64::MAX).saturating_sub(middle);
        let within = (heard - asked) / 2;
        if best.is_none_or(|best| within < best.within) {
            best = Some(Clock { origin, ahead, within });
        }
    }
    best.ok_or_else(|| Error::new(Kind::Internal, "the server's clock was not read"))
}
