//! The client's half of WHEP: watches a session over WebRTC, as a load generator does.
//!
//! A player is one socket and one engine and belongs to one task; hundreds of them share a thread. Nothing
//! is decoded: what counts is which frames arrived whole, and when.

mod frames;
mod post;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{ErrorKind, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use spaceport_types::{Cause, Error, Kind, Redacted, Result};
use str0m::change::SdpAnswer;
use str0m::media::{Direction, KeyframeRequestKind, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::Extension;
use str0m::{Candidate, Event, IceConnectionState, Input, Output, Rtc};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

pub use self::frames::{Frame, TAIL};
use self::frames::{Frames, Piece};
use self::post::Resource;

/// How long a connection may take from the answer on. A server gives up sooner.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// The least time between two looks at the clock of an engine.
const TICK: Duration = Duration::from_millis(1);

/// The longest train of datagrams that the kernel hands over at once.
const TRAIN: usize = 64 << 10;

/// Bytes that may wait in the kernel, each packet counted with what it costs there: a large keyframe, which comes
/// all at once where no network lies between.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Trains that are read in one turn, before others have theirs.
const READS_PER_TURN: usize = 8;

/// Where to watch, and what opens it.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The WHEP endpoint, `http://host:port/whep`.
    pub url: String,
    /// The ticket.
    pub ticket: Redacted<String>,
}

/// What came.
#[derive(Debug)]
pub enum Played {
    /// A frame.
    Frame(Frame),
    /// It is over, and why. Nothing follows.
    Closed(Error),
}

/// One session that is watched. Dropping it is leaving without a word; see [`Player::leave`].
pub struct Player {
    rtc: Box<Rtc>,
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    mid: Mid,
    frames: Frames,
    ready: VecDeque<Frame>,
    resource: Resource,
    /// When it has to be connected; `None` once it is.
    connect_by: Option<Instant>,
    due: Instant,
}

impl Player {
    /// Asks for the stream. `route` is given the server's media address and says where to send to instead,
    /// such as a proxy's.
    ///
    /// # Errors
    ///
    /// What the server refuses it with, `capability_missing` for `https`, `io` and `timeout` when nobody
    /// answers, `stream` with cause `udp_blocked` when the answer has no UDP address.
    pub async fn connect(
        remote: &Remote,
        route: impl FnOnce(SocketAddr) -> Result<SocketAddr>,
    ) -> Result<Self> {
        let mut connection = post::Connection::to(&remote.url).await?;
        let socket = UdpSocket::bind(SocketAddr::new(connection.local().ip(), 0)).await?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Best effort: what a kernel gives by itself is a hundred packets, less than a large frame has.
        drop(state.set_recv_buffer_size(UdpSockRef::from(&socket), RECEIVE_BUFFER));
        let local = socket.local_addr()?;
        let now = Instant::now();
        // Making one costs a few milliseconds; it holds no state of a connection.
        thread_local! {
            static CRYPTO: Arc<str0m::config::CryptoProvider> =
                Arc::new(str0m::crypto::from_feature_flags());
        }
        let mut config = Rtc::builder()
            .set_crypto_provider(CRYPTO.with(Arc::clone))
            .set_rtp_mode(true)
            .clear_codecs()
            .set_extension(9, Extension::PlayoutDelay);
        config.codec_config().add_h264(108.into(), Some(109.into()), true, 0x42_e0_1f);
        let mut rtc = Box::new(config.build(now.into_std()));
        let broken = |what: &'static str| Error::new(Kind::Internal, what);
        let host = Candidate::host(local, "udp")
            .map_err(|error| broken("a socket's address is no candidate").source(error))?;
        rtc.add_local_candidate(host);
        let mut api = rtc.sdp_api();
        let mid = api.add_media(MediaKind::Video, Direction::RecvOnly, None, None, None);
        let (offer, pending) = api.apply().ok_or_else(|| broken("there is nothing to offer"))?;
        // Its address is for the server to find out from the checks it gets: by a `route` that is not the
        // direct one, it is another.
        let offer = offer.to_sdp_string();
        let offer: String =
            offer.split_inclusive('\n').filter(|line| !line.starts_with("a=candidate:")).collect();
        let (answer, resource) = connection.post(offer, &remote.ticket).await?;
        let answer = one_way(&answer, connection.remote(), route)?;
        let wrong = |error: &dyn fmt::Display| {
            Error::new(Kind::Json, "the server's answer is none").with("reason", error)
        };
        let answer = SdpAnswer::from_sdp_string(&answer).map_err(|error| wrong(&error))?;
        rtc.sdp_api().accept_answer(pending, answer).map_err(|error| wrong(&error))?;
        Ok(Self {
            rtc,
            socket,
            state,
            local,
            mid,
            frames: Frames::default(),
            ready: VecDeque::new(),
            resource,
            connect_by: Some(now + CONNECT_WITHIN),
            due: now,
        })
    }

    /// What comes next. Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Played {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Played::Frame(frame);
            }
            if let Err(error) = self.turn().await {
                return Played::Closed(error);
            }
        }
    }

    /// Frames that will never be whole.
    pub fn lost(&self) -> u64 {
        self.frames.lost()
    }

    /// Leaves, and says so: the server need not wait to find out.
    pub async fn leave(mut self) {
        // Best effort, in all of it: whoever does not hear it finds out by the silence.
        if self.rtc.close().is_ok() {
            drop(self.drain());
        }
        drop(self.resource.delete().await);
    }

    async fn turn(&mut self) -> Result<()> {
        let now = Instant::now();
        if self.connect_by.is_some_and(|by| now >= by) {
            return Err(Error::because(Cause::IceFailed, "no connection came about")
                .hint("Let UDP through to the server's WebRTC port"));
        }
        if now >= self.due {
            self.rtc.handle_input(Input::Timeout(now.into_std())).map_err(failed)?;
            self.drain()?;
        }
        tokio::select! {
            biased;
            ready = self.socket.readable() => {
                ready?;
                for _ in 0..READS_PER_TURN {
                    if !self.read()? {
                        break;
                    }
                }
            }
            () = sleep_until(self.due) => {}
        }
        Ok(())
    }

    /// Takes what has arrived; `false` when there was nothing.
    fn read(&mut self) -> Result<bool> {
        thread_local! {
            static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; TRAIN].into_boxed_slice());
        }
        BUFFER.with_borrow_mut(|buffer| {
            let mut meta = [RecvMeta::default()];
            let (socket, state) = (&self.socket, &self.state);
            let read = socket.try_io(Interest::READABLE, || {
                state.recv(UdpSockRef::from(socket), &mut [IoSliceMut::new(buffer)], &mut meta)
            });
            match read {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                // An ICMP error of an earlier send is reported here, too; ICE finds out by itself.
                Err(_) => return Ok(true),
            }
            let [RecvMeta { addr, len, stride, .. }] = meta;
            let now = Instant::now().into_std();
            for datagram in buffer.get(..len).unwrap_or_default().chunks(stride.max(1)) {
                let Ok(receive) = Receive::new(Protocol::Udp, addr, self.local, datagram) else {
                    continue;
                };
                self.rtc.handle_input(Input::Receive(now, receive)).map_err(failed)?;
                self.drain()?;
            }
            Ok(true)
        })
    }

    /// Lets the engine say all it has to say.
    fn drain(&mut self) -> Result<()> {
        loop {
            match self.rtc.poll_output().map_err(failed)? {
                Output::Timeout(at) => {
                    self.due = Instant::from_std(at).max(Instant::now() + TICK);
                    return Ok(());
                }
                Output::Transmit(transmit) => {
                    // As on a network: what cannot be sent is lost.
                    drop(self.socket.try_send_to(&transmit.contents, transmit.destination));
                }
                Output::Event(event) => self.event(event)?,
            }
        }
    }

    fn event(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Connected => self.connect_by = None,
            Event::RtpPacket(packet) => {
                let piece = Piece {
                    timestamp: packet.header.timestamp,
                    last: packet.header.marker,
                    payload: bytes::Bytes::from_owner(Arc::clone(&packet.payload)),
                };
                self.frames.push(*packet.seq_no, piece);
                let now = Instant::now().into_std();
                while let Some(frame) = self.frames.pop(now) {
                    self.ready.push_back(frame);
                }
                if self.frames.take_wants_keyframe() {
                    let mut api = self.rtc.direct_api();
                    if let Some(stream) = api.stream_rx_by_mid(self.mid, None) {
                        stream.request_keyframe(KeyframeRequestKind::Pli);
                    }
                }
            }
            Event::IceConnectionStateChange(IceConnectionState::Disconnected) => {
                return Err(Error::because(Cause::IceFailed, "the connection was lost")
                    .hint("Start the stream again"));
            }
            Event::Closed => {
                return Err(Error::because(Cause::SessionClosed, "the server closed the stream"));
            }
            _ => {}
        }
        Ok(())
    }
}

impl fmt::Debug for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Player").field("local", &self.local).finish_non_exhaustive()
    }
}

/// The answer with one way to the server: the UDP address at the host that was asked, or the first.
fn one_way(
    answer: &str,
    asked: SocketAddr,
    route: impl FnOnce(SocketAddr) -> Result<SocketAddr>,
) -> Result<String> {
    let is_candidate = |line: &&str| line.starts_with("a=candidate:");
    let address = |line: &&str| {
        // RFC 8839 §5.1: foundation, component, transport, priority, address, port.
        let fields: Vec<_> = line.split(' ').collect();
        let [_, _, transport, _, ip, port, ..] = fields[..] else { return None };
        let udp = transport.eq_ignore_ascii_case("udp");
        Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?)).filter(|_| udp)
    };
    let ways: Vec<SocketAddr> =
        answer.lines().filter(is_candidate).filter_map(|line| address(&line)).collect();
    let chosen = ways.iter().find(|way| way.ip() == asked.ip()).or(ways.first()).copied();
    let chosen = chosen.ok_or_else(|| {
        Error::because(Cause::UdpBlocked, "the server offers no UDP address")
            .hint("Watch over WebSocket")
    })?;
    let instead = route(chosen)?;
    let mut lines = Vec::new();
    let mut kept = false;
    for line in answer.lines() {
        if !is_candidate(&line) {
            lines.push(line.to_owned());
        } else if address(&line) == Some(chosen) && !std::mem::replace(&mut kept, true) {
            let text = |to: SocketAddr| format!(" {} {} typ ", to.ip(), to.port());
            lines.push(line.replace(&text(chosen), &text(instead)));
        }
    }
    Ok(lines.join("\r\n") + "\r\n")
}

#[expect(clippy::needless_pass_by_value, reason = "used as a function of map_err")]
fn failed(error: str0m::RtcError) -> Error {
    let cause = match &error {
        str0m::RtcError::Dtls(_) => Cause::DtlsFailed,
        _ => Cause::IceFailed,
    };
    Error::because(cause, "the connection to the server failed").source(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "v=0\r\na=candidate:1 1 TCP 9 10.0.0.1 3211 typ host tcptype passive\r\n\
                          a=candidate:2 1 UDP 8 10.0.0.1 3213 typ host\r\n\
                          a=candidate:3 1 udp 7 127.0.0.1 3213 typ host\r\na=end-of-candidates\r\n";

    #[test]
    fn one_udp_way_is_left_and_it_is_that_of_the_host_that_was_asked() {
        let instead = "127.0.0.1:9".parse().unwrap();
        let asked = "127.0.0.1:3211".parse().unwrap();
        let answer = one_way(ANSWER, asked, |media| {
            assert_eq!(media, "127.0.0.1:3213".parse().unwrap());
            Ok(instead)
        });
        let expected =
            "v=0\r\na=candidate:3 1 udp 7 127.0.0.1 9 typ host\r\na=end-of-candidates\r\n";
        assert_eq!(answer.unwrap(), expected);
        let elsewhere = "192.0.2.1:3211".parse().unwrap();
        assert!(one_way(ANSWER, elsewhere, Ok).unwrap().contains("10.0.0.1 3213"));
        let error = one_way("v=0\r\n", asked, Ok).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::UdpBlocked));
    }
}
