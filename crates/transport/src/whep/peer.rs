//! One viewer: a WebRTC connection and the stream it watches.
//!
//! Sans-I/O, as the engine beneath it: the driver passes `now`, what was received and a socket to
//! write to, and asks for the next deadline. After every change the engine is drained until it has
//! nothing more to say, which is the one rule it has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use spaceport_session::{self as session, Event as StreamEvent, Subscriber};
use spaceport_types::{Cause, Codec, Error, Kind, Packet, Result};
use str0m::bwe::Bitrate;
use str0m::change::{SdpAnswer, SdpOffer, SdpPendingOffer};
use str0m::config::{CryptoProvider, DtlsCert};
use str0m::format::{Codec as RtpCodec, FormatParams};
use str0m::media::{Direction, Frequency, MediaKind, MediaTime, Mid, Pt};
use str0m::net::{Protocol, Receive, TcpType, Transmit};
use str0m::rtp::{Extension, ExtensionMap, ExtensionValues, RtpWrite, Vp8Descriptor};
use str0m::{Candidate, Event, IceConnectionState, Input, Output, Rtc, RtcConfig};

use super::clock::Clock;
use super::driver::Route;
use super::offer::{Choice, Credentials, Fragment, Offer, inspect, restart_answer};
use super::packetize::{Packetizer, with_vp9_picture_id};
use super::path::{self, Measured, Path, Queue};
use super::socket::Socket;

/// How long a viewer may take from its offer to the end of the DTLS handshake. ICE gives up on a
/// pair sooner; what takes longer is a viewer that went away.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// How long a connection may be lost before it is given up: longer than a change of network takes,
/// and than a browser needs to find out and restart ICE.
const LOST_FOR: Duration = Duration::from_secs(20);

/// The least time between two keyframe requests of one viewer. The session merges those of all
/// viewers and has a limit of its own; this one keeps a single viewer from using it up.
const KEYFRAME_EVERY: Duration = Duration::from_millis(500);

/// When the last packet is sent again, counted from when it was sent, if none came after it.
///
/// A receiver notices a lost packet by the next one. After the last packet of a picture that then
/// stands still there is none, and the picture would stay broken. The same packet again is
/// recognised as a duplicate if it had arrived, and otherwise shows what is missing. Both times
/// are longer than the frames of a moving picture are apart.
const REPEAT_AFTER: [Duration; 2] = [Duration::from_millis(60), Duration::from_millis(160)];

/// Packets that can be sent again on request, and for how long: some round trips, and the frames that a viewer
/// waits through before it finds that one is missing. A packet that is kept takes 432 bytes beside its
/// payload, which all viewers share.
const RESEND_NEAR: Resend = Resend { packets: 512, age: Duration::from_millis(600) };
const RESEND_FAR: Resend = Resend { packets: 2048, age: Duration::from_secs(2) };

/// A viewer is far away from this round trip on, without queues.
const FAR: Duration = Duration::from_millis(120);

/// The share of the last second that retransmissions may take; beyond it they are forgotten. A
/// still desktop sends a few packets now and then, where resending two of them twice is most of
/// the second, and a viewer on a bad path must not cost four times its stream.
const RESEND_SHARE: f32 = 0.8;

/// How often the engine may ask to be called again at once. It releases one paced packet a call;
/// taking them together is what lets them leave in one batch. The rest comes a millisecond later.
const AT_ONCE: usize = 512;

/// How often what the engine measured is looked at: as often as viewers give feedback when much is sent.
const MEASURE_EVERY: Duration = Duration::from_millis(50);

/// What the engine calls at once: a microsecond after the last call.
const SOON: Duration = Duration::from_micros(2);

/// How much is kept for those who miss it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resend {
    packets: usize,
    age: Duration,
}

/// What every peer of an endpoint has in common.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    crypto: Arc<CryptoProvider>,
    certificate: DtlsCert,
}

impl Identity {
    /// Makes a certificate; its fingerprint travels in every answer.
    pub(super) fn generate() -> Result<Self> {
        let crypto = Arc::new(str0m::crypto::from_feature_flags());
        let certificate = crypto.dtls_provider.generate_certificate().ok_or_else(|| {
            Error::new(Kind::Io, "no DTLS certificate could be made")
                .hint("Check that the machine's libssl is complete")
        })?;
        Ok(Self { crypto, certificate })
    }
}

/// An address of this endpoint, and how viewers reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Local {
    protocol: Protocol,
    address: SocketAddr,
}

impl Local {
    pub(super) fn udp(address: SocketAddr) -> Self {
        Self { protocol: Protocol::Udp, address }
    }

    pub(super) fn tcp(address: SocketAddr) -> Self {
        Self { protocol: Protocol::Tcp, address }
    }

    pub(super) fn is_udp(self) -> bool {
        self.protocol == Protocol::Udp
    }

    fn candidate(self) -> Option<Candidate> {
        let candidate = if self.protocol == Protocol::Udp {
            Candidate::host(self.address, Protocol::Udp)
        } else {
            Candidate::builder().tcp().host(self.address).tcptype(TcpType::Passive).build()
        };
        candidate.ok()
    }
}

/// What was agreed on, and the connection that stands behind it.
pub(super) struct Negotiated {
    /// How it was agreed on: `whep` or `whip`.
    pub(super) protocol: &'static str,
    /// Our side's ICE user fragment, by which the first packets are recognised.
    pub(super) ufrag: String,
    rtc: Box<Rtc>,
    /// What the viewer said of itself.
    offer: Offer,
    choice: Choice,
    candidates: Vec<Local>,
    pub(super) pace_here: bool,
}

/// An engine that is about to send one stream of video. `feedback` says whether the path's rate is to be
/// estimated.
fn engine(identity: &Identity, feedback: bool) -> RtcConfig {
    let mut extensions = ExtensionMap::empty();
    extensions.set(1, Extension::RtpMid);
    extensions.set(2, Extension::PlayoutDelay);
    extensions.set(3, Extension::TransportSequenceNumber);
    // Without feedback there is nothing to estimate from; then nothing is paced either.
    let start = feedback.then(|| Bitrate::bps(path::START));
    Rtc::builder()
        .set_crypto_provider(Arc::clone(&identity.crypto))
        .set_dtls_cert(identity.certificate.clone())
        .set_rtp_mode(true)
        .enable_bwe(start)
        .set_stats_interval(start.map(|_| MEASURE_EVERY))
        .clear_codecs()
        .set_extension_map(extensions)
}

/// Has an engine agree to a codec, under `pt` and with retransmissions under `rtx`.
fn add_codec(config: &mut RtcConfig, codec: Codec, pt: Pt, rtx: Option<Pt>, profile: u32) {
    let config = config.codec_config();
    let mut add = |codec, format| {
        config.add_config(pt, rtx, codec, Frequency::NINETY_KHZ, None, format);
    };
    match codec {
        Codec::H264 => config.add_h264(pt, rtx, true, profile),
        Codec::Vp9 => {
            add(RtpCodec::Vp9, FormatParams { profile_id: Some(0), ..FormatParams::default() });
        }
        Codec::Av1 => add(RtpCodec::Av1, FormatParams::default()),
        _ => add(RtpCodec::Vp8, FormatParams::default()),
    }
}

/// Answers `offer` with `choice`, reachable at `candidates`. `None` when the engine will not send
/// that codec after all.
pub(super) fn negotiate(
    identity: &Identity,
    offer: &Offer,
    choice: &Choice,
    candidates: &[Local],
    now: Instant,
) -> Result<Option<(String, Negotiated)>> {
    let mut config = engine(identity, choice.feedback());
    let (pt, rtx) = (choice.payload_type().into(), choice.rtx().map(Pt::from));
    add_codec(&mut config, choice.codec(), pt, rtx, choice.profile());
    let mut rtc = config.build(now);
    for candidate in candidates.iter().filter_map(|local| local.candidate()) {
        rtc.add_local_candidate(candidate);
    }
    let answer = accept(&mut rtc, offer, choice, None)?;
    let Some(answer) = offer.answer(choice, &answer) else { return Ok(None) };
    let negotiated = Negotiated {
        protocol: "whep",
        ufrag: rtc.direct_api().local_ice_credentials().ufrag,
        rtc: Box::new(rtc),
        offer: offer.clone(),
        choice: choice.clone(),
        candidates: candidates.to_vec(),
        pace_here: false,
    };
    Ok(Some((answer, negotiated)))
}

/// The payload types of what we offer, and of their retransmissions.
const OFFERED: [(Codec, u8, u8); 4] =
    [(Codec::H264, 102, 103), (Codec::Vp8, 96, 97), (Codec::Vp9, 98, 99), (Codec::Av1, 100, 101)];

/// Constrained baseline, level 3.1: what every receiver takes (RFC 7742 §6.2).
const BASELINE: u32 = 0x42_e0_1f;

/// An offer of our own to send, until it is answered.
pub(super) struct Offering {
    /// The SDP.
    pub(super) sdp: String,
    rtc: Box<Rtc>,
    pending: SdpPendingOffer,
    mid: Mid,
    codecs: Vec<Codec>,
    candidates: Vec<Local>,
}

/// Offers to send in one of `codecs`, the first of which is the most wanted, from `candidates`.
pub(super) fn offer(
    identity: &Identity,
    codecs: &[Codec],
    candidates: &[Local],
    now: Instant,
) -> Result<Offering> {
    let mut config = engine(identity, true);
    let mut offered = Vec::new();
    for codec in codecs {
        if let Some(&(codec, pt, rtx)) = OFFERED.iter().find(|(known, ..)| known == codec) {
            add_codec(&mut config, codec, pt.into(), Some(rtx.into()), BASELINE);
            offered.push(codec);
        }
    }
    let mut rtc = config.build(now);
    for candidate in candidates.iter().filter_map(|local| local.candidate()) {
        rtc.add_local_candidate(candidate);
    }
    let mut api = rtc.sdp_api();
    let mid = api.add_media(MediaKind::Video, Direction::SendOnly, None, None, None);
    let (sdp, pending) =
        api.apply().ok_or_else(|| Error::new(Kind::Internal, "there is nothing to offer"))?;
    let (sdp, rtc, candidates) = (sdp.to_sdp_string(), Box::new(rtc), candidates.to_vec());
    Ok(Offering { sdp, rtc, pending, mid, codecs: offered, candidates })
}

impl Offering {
    /// Takes the answer.
    ///
    /// # Errors
    ///
    /// `stream` with cause `no_decoder` when it takes none of the codecs, and with cause
    /// `publish_refused` when it is no answer to this.
    pub(super) fn accept(self, answer: &str) -> Result<Negotiated> {
        let Self { mut rtc, pending, mid, codecs, candidates, .. } = self;
        let refused = |error: &dyn std::fmt::Display| {
            // What reads it is made for offers.
            let reason = error.to_string().replace("the offer", "the answer");
            Error::because(Cause::PublishRefused, "the endpoint's answer is none to the offer")
                .with("reason", reason)
                .hint("See what the endpoint logs; it has to accept the one video section")
        };
        let mut answer = inspect(answer).map_err(|error| refused(&error))?;
        if !answer.answers(&mid) {
            return Err(refused(&"it is about other sections"));
        }
        let offered = |choice: &&Choice| {
            let (codec, pt) = (choice.codec(), choice.payload_type());
            codecs.contains(&codec)
                && OFFERED.iter().any(|&(known, ours, _)| (known, ours) == (codec, pt))
        };
        let choice = answer.choices().find(offered).cloned().ok_or_else(|| {
            let names: Vec<_> = codecs.iter().map(|codec| codec.name()).collect();
            Error::because(Cause::NoDecoder, "the endpoint takes none of the codecs offered")
                .with("offered", names.join(", "))
                .hint("Have the endpoint take H.264, constrained baseline")
        })?;
        take_answer(&mut rtc, pending, &answer, &choice, None).map_err(|error| refused(&error))?;
        Ok(Negotiated {
            protocol: "whip",
            ufrag: rtc.direct_api().local_ice_credentials().ufrag,
            rtc,
            offer: answer,
            choice,
            candidates,
            pace_here: false,
        })
    }
}

/// Gives the engine an answer that was read and reduced, with other credentials after an ICE restart.
fn take_answer(
    rtc: &mut Rtc,
    pending: SdpPendingOffer,
    answer: &Offer,
    choice: &Choice,
    restart: Option<&Fragment>,
) -> Result<(), String> {
    let reduced = SdpAnswer::from_sdp_string(&answer.reduced(choice, restart))
        .map_err(|error| error.to_string())?;
    rtc.sdp_api().accept_answer(pending, reduced).map_err(|error| error.to_string())
}

impl Negotiated {
    /// The codec that was agreed on.
    pub(super) fn codec(&self) -> Codec {
        self.choice.codec()
    }
}

/// Gives the engine a reduced offer and returns its answer.
fn accept(
    rtc: &mut Rtc,
    offer: &Offer,
    choice: &Choice,
    restart: Option<&Fragment>,
) -> Result<String> {
    let refused = |error: String| {
        Error::new(Kind::InvalidArgument, "the offer cannot be answered").source(error)
    };
    let reduced = SdpOffer::from_sdp_string(&offer.reduced(choice, restart))
        .map_err(|error| refused(error.to_string()))?;
    let answer = rtc.sdp_api().accept_offer(reduced).map_err(|error| refused(error.to_string()))?;
    Ok(answer.to_sdp_string())
}

/// Why a peer is no more.
#[derive(Debug)]
pub(super) enum End {
    /// The viewer left.
    Left,
    /// Something ended it that the viewer is told when it asks.
    Because(Arc<Error>),
}

impl End {
    pub(super) fn because(error: Error) -> Self {
        Self::Because(Arc::new(error))
    }
}

/// Whether media can be sent, and until when it must be possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Connecting { until: Instant },
    Connected,
    Lost { until: Instant },
}

/// One viewer.
pub(super) struct Peer {
    rtc: Box<Rtc>,
    offer: Offer,
    choice: Choice,
    candidates: Vec<Local>,
    subscriber: Subscriber,
    waker: Waker,
    mid: Mid,
    pt: Pt,
    clock: Clock,
    sequence: u64,
    picture: u16,
    connection: Connection,
    /// Whether the handshake is done; what was sent before it is lost.
    handshaken: bool,
    /// Whether anything arrived, and whether a candidate pair works.
    heard: bool,
    paired: bool,
    has_media: bool,
    deadline: Instant,
    /// The engine's time, which every paced packet moves on a little.
    latest: Instant,
    /// What the path carries, if the viewer tells. Then the engine paces what it sends, which takes
    /// a call for each packet.
    path: Option<Path>,
    /// Whether the viewer is on this machine, and whether that makes no difference.
    here: bool,
    pace_here: bool,
    /// Whether deltas are passed over because it was cut to the next keyframe.
    cut: bool,
    /// Until when nothing is sent, and when a path has room again that had none.
    drains: Option<Instant>,
    clears: Option<Instant>,
    keyframe: Throttle,
    tail: Option<Tail>,
    resend: Resend,
    /// Where media goes, if it goes by TCP.
    over_tcp: Option<SocketAddr>,
    /// News of why the stream stands still, or that it goes on.
    suspended: Option<Option<Arc<Error>>>,
    routes: Vec<SocketAddr>,
    /// An ICE restart that we have offered.
    restarting: Option<SdpPendingOffer>,
    totals: Totals,
}

/// What one viewer was sent, for the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) frames: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) keyframe_requests: u64,
    /// Times it was cut to a keyframe because its path was behind.
    pub(super) cuts: u64,
}

/// The last packet sent, and when it is sent again.
struct Tail {
    transmit: Transmit,
    sent: Instant,
    repeats: usize,
}

impl Tail {
    fn due(&self) -> Option<Instant> {
        REPEAT_AFTER.get(self.repeats).map(|&after| self.sent + after)
    }
}

/// Lets one request pass per [`KEYFRAME_EVERY`], and the last of those that came too early after
/// that time.
#[derive(Debug, Default)]
struct Throttle {
    last: Option<Instant>,
    waiting: bool,
}

impl Throttle {
    fn due(&self) -> Option<Instant> {
        self.last.filter(|_| self.waiting).map(|last| last + KEYFRAME_EVERY)
    }

    fn passes(&mut self, now: Instant) -> bool {
        let passes = self.last.is_none_or(|last| now >= last + KEYFRAME_EVERY);
        self.waiting = !passes;
        if passes {
            self.last = Some(now);
        }
        passes
    }
}

impl Peer {
    /// A viewer of `subscriber` behind `negotiated`; `seed` starts its RTP counters.
    pub(super) fn new(
        negotiated: Negotiated,
        subscriber: Subscriber,
        waker: Waker,
        seed: u64,
        now: Instant,
    ) -> Self {
        let Negotiated { rtc, offer, choice, candidates, pace_here, .. } = negotiated;
        let [a, b, c, d, e, f, g, h] = seed.to_be_bytes();
        Self {
            mid: Mid::from(offer.mid(choice.section()).as_str()),
            pt: Pt::from(choice.payload_type()),
            rtc,
            offer,
            candidates,
            subscriber,
            waker,
            clock: Clock::new(now, u32::from_be_bytes([a, b, c, d])),
            // The upper half stays free: a receiver that misses the wrap soon after the start
            // would count the packet index wrongly ever after (RFC 3711 §3.3.1).
            sequence: u64::from(u16::from_be_bytes([e, f]) & 0x7fff),
            picture: u16::from_be_bytes([g, h]) & PICTURE_ID,
            connection: Connection::Connecting { until: now + CONNECT_WITHIN },
            handshaken: false,
            heard: false,
            paired: false,
            has_media: false,
            deadline: now,
            latest: now,
            path: choice.feedback().then(|| Path::new(now)),
            here: false,
            pace_here,
            cut: false,
            drains: None,
            clears: None,
            choice,
            keyframe: Throttle::default(),
            tail: None,
            resend: RESEND_NEAR,
            over_tcp: None,
            suspended: None,
            routes: Vec::new(),
            restarting: None,
            totals: Totals::default(),
        }
    }

    /// Whether media can be sent.
    pub(super) fn connection(&self) -> Connection {
        self.connection
    }

    /// When [`Peer::timeout`] is due.
    pub(super) fn deadline(&self) -> Instant {
        let connection = match self.connection {
            Connection::Connecting { until } | Connection::Lost { until } => Some(until),
            Connection::Connected => None,
        };
        let tail = self.tail.as_ref().and_then(Tail::due);
        let others = [connection, tail, self.keyframe.due(), self.drains, self.clears];
        others.into_iter().flatten().fold(self.deadline, Instant::min)
    }

    /// What was sent so far.
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// The stream's end of this viewer.
    pub(super) fn subscriber(&self) -> &Subscriber {
        &self.subscriber
    }

    /// Addresses that were sent to, and may answer, since the last call.
    pub(super) fn routes(&mut self) -> std::vec::Drain<'_, SocketAddr> {
        self.routes.drain(..)
    }

    /// Why the stream stands still, or that it goes on, if that is news since the last call.
    pub(super) fn suspended(&mut self) -> Option<Option<Arc<Error>>> {
        self.suspended.take()
    }

    /// Whether frames may be waiting that [`Peer::send_media`] was not asked for yet.
    pub(super) fn has_media(&self) -> bool {
        self.has_media && self.handshaken
    }

    /// Says that the stream has something new.
    pub(super) fn media_waits(&mut self) {
        self.has_media = true;
    }

    /// Whether a datagram is this peer's by its message integrity.
    pub(super) fn accepts(&self, now: Instant, route: Route, datagram: &[u8]) -> bool {
        let local = self.local_for(route);
        Receive::new(route.protocol, route.remote, local, datagram)
            .is_ok_and(|receive| self.rtc.accepts(&Input::Receive(now, receive)))
    }

    /// The local address a datagram was received on, as the engine knows it.
    ///
    /// Behind a NAT or an unlisted interface it is none of the candidates; then it is taken for
    /// the first of its family, which is the one viewers were told.
    fn local_for(&self, route: Route) -> SocketAddr {
        let Route { protocol, local, .. } = route;
        let candidates = || {
            let same = move |other: &&Local| other.protocol == protocol;
            self.candidates.iter().filter(same).map(|other| other.address)
        };
        candidates()
            .find(|&candidate| candidate == local)
            .or_else(|| candidates().find(|other| other.is_ipv4() == local.is_ipv4()))
            .unwrap_or(local)
    }

    /// Takes a datagram.
    pub(super) fn receive(
        &mut self,
        now: Instant,
        route: Route,
        datagram: &[u8],
        socket: &mut Socket,
    ) -> Result<(), End> {
        // What cannot be read is not worth more than being ignored.
        let local = self.local_for(route);
        let Ok(receive) = Receive::new(route.protocol, route.remote, local, datagram) else {
            return Ok(());
        };
        self.heard = true;
        let at = self.at(now);
        self.rtc.handle_input(Input::Receive(at, receive)).map_err(failed)?;
        self.drain(now, socket)
    }

    /// Does what is due.
    pub(super) fn timeout(&mut self, now: Instant, socket: &mut Socket) -> Result<(), End> {
        match self.connection {
            Connection::Connecting { until } if now >= until => {
                return Err(self.not_connected());
            }
            Connection::Lost { until } if now >= until => {
                let lost =
                    Error::because(Cause::IceFailed, "the connection to the viewer was lost")
                        .hint("Start the stream again");
                return Err(End::because(lost));
            }
            _ => {}
        }
        if self.keyframe.due().is_some_and(|due| now >= due) {
            self.request_keyframe(now);
        }
        // What waited is sent after this.
        if self.drains.take_if(|until| now >= *until).is_some() {
            self.follow_path(now);
        }
        self.clears = self.clears.filter(|&at| now < at);
        if let Some(tail) = &mut self.tail
            && tail.due().is_some_and(|due| now >= due)
        {
            tail.repeats += 1;
            let Transmit { proto, source, destination, contents } = &tail.transmit;
            socket.send_by(*proto, source.ip(), *destination, contents);
            socket.flush();
        }
        if now >= self.deadline {
            self.advance(now)?;
            self.drain(now, socket)?;
        }
        Ok(())
    }

    /// `now` in the engine's time, which does not go back.
    fn at(&mut self, now: Instant) -> Instant {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Moves the engine's time on.
    fn advance(&mut self, now: Instant) -> Result<(), End> {
        let at = self.at(now);
        self.rtc.handle_input(Input::Timeout(at)).map_err(failed)
    }

    /// Why nothing came of an offer.
    fn not_connected(&mut self) -> End {
        // The stream may have ended first; then that is the reason the viewer should hear.
        while let Some(event) = self.subscriber.try_recv() {
            if let StreamEvent::Ended(reason) = event {
                return End::Because(reason);
            }
        }
        let (cause, message) = match (self.heard, self.paired) {
            (false, _) => (Cause::UdpBlocked, "no packet of the viewer came through"),
            (true, false) => (Cause::IceFailed, "no candidate pair worked"),
            (true, true) => (Cause::DtlsFailed, "the DTLS handshake did not complete"),
        };
        let ports = |protocol| {
            let same = self.candidates.iter().filter(move |local| local.protocol == protocol);
            same.map(|local| local.address.port()).next()
        };
        let mut error = Error::because(cause, message)
            .with("candidates_of_viewer", self.offer.candidates())
            .with("candidates_of_server", self.candidates.len());
        let mut open = Vec::new();
        for (protocol, name) in [(Protocol::Udp, "UDP"), (Protocol::Tcp, "TCP")] {
            if let Some(port) = ports(protocol) {
                error = error.with(if name == "UDP" { "udp_port" } else { "tcp_port" }, port);
                open.push(format!("{name} port {port}"));
            }
        }
        let open = open.join(" or ");
        End::because(error.hint(match cause {
            Cause::DtlsFailed => "Try again, or watch over WebSocket".to_owned(),
            _ => format!(
                "Allow {open} between the viewer and this machine, give viewers a TURN server, or \
                 watch over WebSocket"
            ),
        }))
    }

    /// Sends the frames that wait, as long as the socket takes them.
    pub(super) fn send_media(
        &mut self,
        now: Instant,
        packetizer: &mut Packetizer,
        socket: &mut Socket,
    ) -> Result<(), End> {
        let mut waiting = false;
        while !socket.is_blocked() {
            if self.must_wait(now, socket) {
                break;
            }
            match self.subscriber.try_recv() {
                Some(StreamEvent::Packet(packet)) if self.cut && !packet.keyframe => {}
                Some(StreamEvent::Packet(packet)) => {
                    self.cut = false;
                    self.send(&packet, now, packetizer, socket)?;
                }
                Some(StreamEvent::Ended(reason)) => return Err(End::Because(reason)),
                // WHEP has no words for it, and what was last seen stays on the viewer's screen.
                // Whoever asks the resource is told.
                Some(StreamEvent::Suspended(reason, error)) => {
                    tracing::debug!(?reason, %error, "the stream is suspended");
                    self.suspended = Some(Some(error));
                }
                Some(StreamEvent::Resumed) => {
                    tracing::debug!("the stream goes on");
                    self.suspended = Some(None);
                }
                // WHEP has no words for it; the pointer is in the picture where that is wanted.
                Some(
                    StreamEvent::Titled(_)
                    | StreamEvent::CursorImage(_)
                    | StreamEvent::CursorPosition(_),
                ) => {}
                None if waiting => {
                    self.has_media = false;
                    break;
                }
                None => {
                    // Once more after this: something may have come just before.
                    self.subscriber.set_waker(&self.waker);
                    waiting = true;
                }
            }
        }
        Ok(())
    }

    /// Whether what was sent has to leave first. A frame that waits for that keeps the encoder from
    /// making another; if others keep it going, there comes a point where a keyframe is less than
    /// all that waits.
    fn must_wait(&mut self, now: Instant, socket: &Socket) -> bool {
        let waiting = self.subscriber.backlog();
        if waiting == 0 {
            return false;
        }
        if self.drains.is_some_and(|until| now < until) {
            return true;
        }
        let full = self.over_tcp.is_some_and(|remote| socket.tcp.is_full(remote));
        let queue = self.queued(now);
        let Some(path) = &mut self.path else { return full };
        if full || path.is_full(queue, now) {
            path.held(now);
            self.clears = path.clears(now);
            return true;
        }
        if !self.cut && path.is_behind(waiting, self.subscriber.backlog_bytes()) {
            self.cut = true;
            self.totals.cuts += 1;
            self.request_keyframe(now);
        }
        false
    }

    /// What the engine holds to pace it.
    fn queued(&mut self, now: Instant) -> Queue {
        let mut api = self.rtc.direct_api();
        let stream = api.stream_tx_by_mid(self.mid, None);
        let Some(info) = stream.as_ref().and_then(|stream| stream.queue_info()) else {
            return Queue::default();
        };
        let age = info.first_unsent().map(|first| now.saturating_duration_since(first));
        Queue { bytes: info.byte_size(), age: age.unwrap_or_default() }
    }

    fn send(
        &mut self,
        packet: &Packet,
        now: Instant,
        packetizer: &mut Packetizer,
        socket: &mut Socket,
    ) -> Result<(), End> {
        let payloads = packetizer.payloads(packet);
        let Some(last) = payloads.len().checked_sub(1) else { return Ok(()) };
        let time = self.clock.stamp(packet.captured_at, now);
        self.picture = (self.picture + 1) & PICTURE_ID;
        let mut api = self.rtc.direct_api();
        let Some(stream) = api.stream_tx_by_mid(self.mid, None) else { return Ok(()) };
        // Zero delay on every packet: what is shown is a desktop someone works on.
        let extensions = ExtensionValues {
            play_delay_min: Some(MediaTime::ZERO),
            play_delay_max: Some(MediaTime::ZERO),
            ..ExtensionValues::default()
        };
        for (index, payload) in payloads.iter().enumerate() {
            let bytes = match packet.codec {
                Codec::Vp9 => with_vp9_picture_id(payload, self.picture),
                _ => Arc::clone(payload),
            };
            let mut write = RtpWrite::new(self.pt, self.sequence.into(), time, now, bytes)
                .marker(index == last)
                .ext_vals(extensions.clone())
                .nackable(true);
            if packet.codec == Codec::Vp8
                && let Ok(descriptor) = Vp8Descriptor::parse(payload)
                && let Ok(patch) = descriptor.patch().picture_id(self.picture).build()
            {
                write = write.vp8_patch(patch);
            }
            stream.write_rtp(write);
            self.sequence += 1;
            self.totals.packets += 1;
            self.totals.bytes += payload.len() as u64;
        }
        self.totals.frames += 1;
        if let Some(path) = &mut self.path {
            path.sent(packet.payload.len(), packet.keyframe, now);
        }
        self.advance(now)?;
        self.drain(now, socket)
    }

    /// Takes candidates that came after the offer.
    pub(super) fn add_candidates(
        &mut self,
        candidates: &[String],
        now: Instant,
        socket: &mut Socket,
    ) -> Result<(), End> {
        for candidate in candidates {
            match Candidate::from_sdp_string(&format!("candidate:{candidate}")) {
                Ok(candidate) => {
                    self.rtc.add_remote_candidate(candidate);
                    self.advance(now)?;
                    self.drain(now, socket)?;
                }
                Err(error) => tracing::debug!(%error, "a candidate is ignored"),
            }
        }
        Ok(())
    }

    /// Restarts ICE with the viewer's new credentials. Returns our new user fragment and the
    /// fragment that answers.
    pub(super) fn restart(
        &mut self,
        fragment: &Fragment,
        now: Instant,
        socket: &mut Socket,
    ) -> Result<(String, String), End> {
        let answer = accept(&mut self.rtc, &self.offer, &self.choice, Some(fragment))
            .map_err(End::because)?;
        let candidates: Vec<String> = answer
            .lines()
            .filter_map(|line| line.strip_prefix("a="))
            .filter(|line| line.starts_with("candidate:"))
            .map(str::to_owned)
            .collect();
        let credentials = self.rtc.direct_api().local_ice_credentials();
        let credentials = Credentials { ufrag: credentials.ufrag, pwd: credentials.pass };
        self.advance(now)?;
        self.drain(now, socket)?;
        let answer = restart_answer(&credentials, &candidates);
        Ok((credentials.ufrag, answer))
    }

    /// Begins an ICE restart of our own, on the addresses that we have now. Returns the fragment that asks
    /// for it; nothing changes before [`Peer::accept_restart`].
    pub(super) fn offer_restart(&mut self, candidates: Vec<Local>) -> Result<String, End> {
        for candidate in candidates.iter().filter(|local| !self.candidates.contains(local)) {
            if let Some(candidate) = candidate.candidate() {
                self.rtc.add_local_candidate(candidate);
            }
        }
        self.candidates = candidates;
        let mut api = self.rtc.sdp_api();
        let credentials = api.ice_restart(true);
        let nothing = || End::because(Error::new(Kind::Internal, "there is nothing to restart"));
        let (offer, pending) = api.apply().ok_or_else(nothing)?;
        self.restarting = Some(pending);
        let offer = offer.to_sdp_string();
        // RFC 8840 §9: pseudo media lines tell a bundled fragment's section.
        let of_fragment = |line: &&str| {
            ["m=", "a=mid:", "a=candidate:"].iter().any(|start| line.starts_with(start))
        };
        let mut fragment = vec!["a=ice-options:ice2".to_owned()];
        fragment.push(format!("a=ice-ufrag:{}", credentials.ufrag));
        fragment.push(format!("a=ice-pwd:{}", credentials.pass));
        fragment.extend(offer.lines().filter(of_fragment).map(str::to_owned));
        fragment.push("a=end-of-candidates\r\n".to_owned());
        Ok(fragment.join("\r\n"))
    }

    /// Takes the fragment that answers [`Peer::offer_restart`]. Returns our new user fragment.
    pub(super) fn accept_restart(
        &mut self,
        fragment: &Fragment,
        now: Instant,
        socket: &mut Socket,
    ) -> Result<String, End> {
        let refused = |reason: String| {
            End::because(
                Error::because(Cause::IceFailed, "ICE could not be restarted")
                    .with("reason", reason),
            )
        };
        let pending = self.restarting.take();
        let pending = pending.ok_or_else(|| refused("nothing was asked".to_owned()))?;
        take_answer(&mut self.rtc, pending, &self.offer, &self.choice, Some(fragment))
            .map_err(refused)?;
        self.advance(now)?;
        self.drain(now, socket)?;
        Ok(self.rtc.direct_api().local_ice_credentials().ufrag)
    }

    /// Says goodbye (RTCP BYE, DTLS close_notify), so that the viewer need not wait to find out.
    pub(super) fn close(&mut self, now: Instant, socket: &mut Socket) {
        let closed = self.rtc.close().map_err(failed).and_then(|()| self.drain(now, socket));
        if let Err(end) = closed {
            tracing::debug!(?end, "the viewer could not be told");
        }
    }

    /// Lets the engine say all it has to say.
    fn drain(&mut self, now: Instant, socket: &mut Socket) -> Result<(), End> {
        let mut calls = 0;
        let drained = loop {
            match self.rtc.poll_output() {
                Ok(Output::Timeout(deadline))
                    if self.path.is_some()
                        && self.handshaken
                        && calls < AT_ONCE
                        && deadline <= self.latest + SOON =>
                {
                    calls += 1;
                    if let Err(end) = self.advance(deadline) {
                        break Err(end);
                    }
                }
                Ok(Output::Timeout(deadline)) => {
                    self.deadline = deadline;
                    self.follow_path(now);
                    break Ok(());
                }
                Ok(Output::Transmit(transmit)) => self.transmit(transmit, now, socket),
                Ok(Output::Event(event)) => {
                    if let Err(end) = self.event(event, now) {
                        break Err(end);
                    }
                }
                Err(error) => break Err(failed(error)),
            }
        };
        socket.flush();
        drained
    }

    fn transmit(&mut self, transmit: Transmit, now: Instant, socket: &mut Socket) {
        let Transmit { proto, source, destination, contents } = &transmit;
        socket.send_by(*proto, source.ip(), *destination, contents);
        let over_tcp = *proto != Protocol::Udp;
        match contents.get(..2) {
            // RFC 7983 §7: STUN begins with 0 to 3, DTLS with 20 to 63, RTP with 128 to 191.
            Some([20..=63, _]) => self.here = !over_tcp && socket.is_here(destination.ip()),
            Some([0..=3, _]) if !over_tcp => self.routes.push(transmit.destination),
            Some([128..=191, second]) if second & 0x7f == *self.pt => {
                self.over_tcp = over_tcp.then_some(*destination);
                // Nothing of what TCP took gets lost.
                self.tail = (!over_tcp).then_some(Tail { transmit, sent: now, repeats: 0 });
            }
            _ => {}
        }
    }

    /// Forgets what was sent, and goes on with a keyframe that the path carries.
    ///
    /// Sent again, what was lost when a path collapsed takes as long as it took to find that out, times
    /// the factor by which the path became narrower; a keyframe takes its own time.
    fn start_over(&mut self, now: Instant) {
        self.forget_sent();
        self.cut = true;
        self.totals.cuts += 1;
        self.drains = self.path.as_ref().map(|path| path.drained(now));
        // The encoder has to know the rate before it makes the keyframe.
        self.tell_path(now);
        self.request_keyframe(now);
    }

    /// Has nothing sent again that was sent before this: a new cache is an empty one.
    fn forget_sent(&mut self) {
        let Resend { packets, age } = self.resend;
        if let Some(stream) = self.rtc.direct_api().stream_tx_by_mid(self.mid, None) {
            stream.set_rtx_cache(packets, age, Some(RESEND_SHARE));
        }
    }

    /// Tells the session what the path carries, if that is news.
    fn tell_path(&mut self, now: Instant) {
        let queue = self.queued(now);
        if let Some(told) = self.path.as_mut().and_then(|path| path.report(queue, now)) {
            let capacity = Some(told.capacity);
            let told = session::Path { capacity, queued: told.queued, arrival: None };
            self.subscriber.path(told, now);
        }
    }

    /// Tells the engine what to look for.
    fn follow_path(&mut self, now: Instant) {
        self.tell_path(now);
        let queue = self.queued(now);
        let Some(path) = &mut self.path else { return };
        self.deadline = path.deadline(self.deadline, queue, now);
        let advice = path.advise(queue, now);
        if let Some(estimate) = advice.restart {
            tracing::debug!(estimate, "looking for more");
            self.rtc.bwe().reset(Bitrate::bps(estimate));
        }
        // After that, because it sets the pace, too.
        if let Some(desired) = advice.desired {
            self.rtc.bwe().set_desired_bitrate(Bitrate::bps(desired));
        }
    }

    fn event(&mut self, event: Event, now: Instant) -> Result<(), End> {
        match event {
            Event::Connected => {
                self.handshaken = true;
                self.has_media = true;
                self.connection = Connection::Connected;
                if let Some(stream) = self.rtc.direct_api().stream_tx_by_mid(self.mid, None) {
                    let Resend { packets, age } = self.resend;
                    stream.set_rtx_cache(packets, age, Some(RESEND_SHARE));
                    if let Some(path) = &mut self.path
                        && self.here
                        && !self.pace_here
                    {
                        stream.set_unpaced(true);
                        path.open();
                    }
                }
                tracing::debug!("connected");
            }
            Event::PeerStats(stats) => {
                // Not the event of its own, which is a mean over seconds.
                if let (Some(path), Some(estimate)) = (&mut self.path, stats.bwe_tx) {
                    let measured = Measured {
                        estimate: estimate.as_u64(),
                        round_trip: stats.rtt,
                        lost: stats.egress_loss_fraction.unwrap_or_default(),
                    };
                    tracing::trace!(?measured, "the path carries");
                    let collapsed = path.measured(measured, now);
                    let far = path.round_trip().is_some_and(|shortest| shortest >= FAR);
                    if collapsed {
                        tracing::debug!(?measured, "the path collapsed");
                        self.start_over(now);
                    }
                    if far && self.resend == RESEND_NEAR {
                        self.resend = RESEND_FAR;
                        self.forget_sent();
                    }
                }
            }
            Event::IceConnectionStateChange(state) => {
                tracing::debug!(?state, "ICE");
                self.paired |= state.is_connected();
                match (state, self.connection) {
                    (IceConnectionState::Disconnected, Connection::Connected) => {
                        self.connection = Connection::Lost { until: now + LOST_FOR };
                    }
                    (
                        IceConnectionState::Connected | IceConnectionState::Completed,
                        Connection::Lost { .. },
                    ) => self.connection = Connection::Connected,
                    _ => {}
                }
            }
            Event::KeyframeRequest(_) => {
                self.totals.keyframe_requests += 1;
                self.request_keyframe(now);
            }
            Event::Closed => return Err(End::Left),
            // Data channels are opened by viewers that talk to other servers, too; nothing is
            // said on them yet.
            _ => {}
        }
        Ok(())
    }

    fn request_keyframe(&mut self, now: Instant) {
        if self.keyframe.passes(now) {
            self.subscriber.request_keyframe();
        }
    }
}

/// The error of an engine that gave up.
#[expect(clippy::needless_pass_by_value, reason = "used as a function of map_err")]
fn failed(error: str0m::RtcError) -> End {
    let cause = match &error {
        str0m::RtcError::Dtls(_) => Cause::DtlsFailed,
        _ => Cause::IceFailed,
    };
    End::because(
        Error::because(cause, "the connection to the viewer failed")
            .hint("Try again, or watch over WebSocket")
            .source(error.to_string()),
    )
}

/// The 15 bits of a picture id of VP8 and VP9.
const PICTURE_ID: u16 = 0x7fff;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::mpsc;

    use spaceport_session::{
        Attach, Carrier, Cursor, Launch, Limits, Open, Policy, Publisher, Sessions,
    };
    use spaceport_types::{Bounds, Target};

    use super::super::driver::now;
    use super::super::offer::inspect;
    use super::super::offer::tests::{AUDIO, CHROMIUM, DATA, FIREFOX, best, browser};
    use super::*;

    const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);

    /// The answer's sections, each as its lines.
    fn answer(sdp: &str) -> Option<Vec<Vec<String>>> {
        let offer = inspect(sdp).unwrap();
        let choice = best(sdp)?;
        let identity = Identity::generate().unwrap();
        let (answer, _) =
            negotiate(&identity, &offer, &choice, &[Local::udp(HERE)], now()).unwrap()?;
        let mut sections = vec![Vec::new()];
        for line in answer.lines() {
            if line.starts_with("m=") {
                sections.push(Vec::new());
            }
            sections.last_mut().unwrap().push(line.to_owned());
        }
        Some(sections)
    }

    fn has(section: &[String], start: &str) -> bool {
        section.iter().any(|line| line.starts_with(start))
    }

    #[test]
    fn an_unused_first_section_keeps_the_transport_alive() {
        let gstreamer = AUDIO.replace("opus/48000/2", "OPUS/48000");
        for (audio, mapping) in [(AUDIO, "opus/48000/2"), (&gstreamer, "OPUS/48000")] {
            let sections = answer(&browser(&[audio, CHROMIUM])).unwrap();
            let [session, audio, video] = &sections[..] else { panic!("{sections:?}") };
            assert!(has(session, "a=group:BUNDLE 0 1"));
            assert_eq!(audio[0], "m=audio 9 UDP/TLS/RTP/SAVPF 111");
            assert_eq!(video[0], "m=video 9 UDP/TLS/RTP/SAVPF 109 114");
            let mapping = format!("a=rtpmap:111 {mapping}");
            for line in ["a=mid:0", "a=inactive", mapping.as_str()] {
                assert!(has(audio, line), "{line} is not in {audio:?}");
            }
            for line in ["a=mid:1", "a=sendonly", "a=msid:", "a=rtpmap:109 H264/90000"] {
                assert!(has(video, line), "{line} is not in {video:?}");
            }
            let transport = ["a=ice-ufrag:", "a=ice-pwd:", "a=fingerprint:sha-256 "];
            for line in transport.iter().chain(&["a=setup:passive", "a=rtcp-mux", "a=candidate:"]) {
                assert!(has(audio, line) && has(video, line), "{line}: {audio:?} {video:?}");
            }
            assert!(video.iter().any(|line| line.contains("127.0.0.1 4000 typ host")));
        }
    }

    #[test]
    fn an_unused_section_with_a_transport_of_its_own_is_rejected() {
        let sdp = browser(&[AUDIO, CHROMIUM]).replace("a=group:BUNDLE 0 1\r\n", "");
        let sections = answer(&sdp).unwrap();
        let [session, audio, video] = &sections[..] else { panic!("{sections:?}") };
        assert!(!has(session, "a=group"));
        assert_eq!(audio[0], "m=audio 0 UDP/TLS/RTP/SAVPF 111");
        assert!(!has(audio, "a=ice-") && !has(audio, "a=candidate") && !has(audio, "a=finger"));
        assert!(has(video, "a=ice-ufrag:") && has(video, "a=candidate:"));
    }

    #[test]
    fn the_order_of_sections_is_the_offers() {
        let sections = answer(&browser(&[DATA, FIREFOX, AUDIO, CHROMIUM])).unwrap();
        let lines: Vec<_> = sections[1..].iter().map(|section| section[0].as_str()).collect();
        assert_eq!(
            lines,
            [
                "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
                "m=video 0 UDP/TLS/RTP/SAVPF 120",
                "m=audio 0 UDP/TLS/RTP/SAVPF 111",
                "m=video 9 UDP/TLS/RTP/SAVPF 109 114",
            ]
        );
        // Candidates stand in the first section of the bundle that is used.
        assert!(has(&sections[1], "a=candidate:") && !has(&sections[4], "a=candidate:"));
        assert!(has(&sections[0], "a=group:BUNDLE 0 3"));
    }

    #[test]
    fn what_was_not_bundled_is_not_bundled_in_the_answer() {
        let sdp = browser(&[CHROMIUM]).replace("a=group:BUNDLE 0\r\n", "");
        assert!(!has(&answer(&sdp).unwrap()[0], "a=group"));
    }

    #[test]
    fn every_profile_that_can_be_chosen_is_answered_as_offered() {
        for profile in [
            "42e01f", "42001f", "42c00a", "42000a", "4d001f", "4d401f", "64001f", "640c1f",
            "f4001f",
        ] {
            let sdp = browser(&[&CHROMIUM.replace("42e01f", profile)]);
            let sections = answer(&sdp).unwrap_or_else(|| panic!("{profile} is not answered"));
            let video = &sections[1];
            let fmtp = video.iter().find(|line| line.starts_with("a=fmtp:109")).map(String::as_str);
            let best = best(&sdp).unwrap();
            if best.payload_type() == 109 {
                assert!(fmtp.is_some_and(|fmtp| fmtp.contains(profile)), "{profile}: {video:?}");
            }
        }
        assert_eq!(
            answer(&browser(&[FIREFOX])).unwrap()[1][0],
            "m=video 9 UDP/TLS/RTP/SAVPF 120 124"
        );
    }

    #[test]
    fn an_offer_of_ours_is_answered_and_its_ice_session_restarted() {
        let (start, identity) = (now(), Identity::generate().unwrap());
        let codecs = [Codec::H264, Codec::Vp8];
        let offer_of_ours = || offer(&identity, &codecs, &[Local::udp(HERE)], start).unwrap();
        let offering = offer_of_ours();
        let mut far = Rtc::builder().build(start);
        let there = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5000);
        far.add_local_candidate(Candidate::host(there, Protocol::Udp).unwrap());
        let offered = SdpOffer::from_sdp_string(&offering.sdp).unwrap();
        let answer = far.sdp_api().accept_offer(offered).unwrap().to_sdp_string();
        let negotiated = offering.accept(&answer).unwrap();
        assert_eq!(negotiated.codec(), Codec::H264);
        assert!(negotiated.choice.rtx().is_some() && negotiated.choice.feedback());
        assert_eq!(negotiated.offer.candidates(), 1);
        // The same answer is none to another offer: it is about another section.
        let Err(error) = offer_of_ours().accept(&answer) else { panic!("it is another's") };
        assert_eq!(error.cause(), Some(Cause::PublishRefused));

        let before = negotiated.ufrag.clone();
        let (mut peer, mut socket, _publishers) = peer_of(negotiated, start);
        peer.timeout(start, &mut socket).unwrap();
        let asked = peer.offer_restart(vec![Local::udp(HERE)]).unwrap();
        let asked = super::super::offer::fragment(&asked).unwrap();
        let ours = asked.credentials.unwrap().ufrag;
        assert!(ours != before && asked.candidates.len() == 1, "{ours}");
        let theirs = Credentials { ufrag: "efgh".into(), pwd: "0123456789012345678901".into() };
        let text = restart_answer(&theirs, &["candidate:1 1 udp 1 127.0.0.1 5001 typ host".into()]);
        let answered = super::super::offer::fragment(&text).unwrap();
        assert_eq!(peer.accept_restart(&answered, start, &mut socket).unwrap(), ours);
        assert!(peer.accept_restart(&answered, start, &mut socket).is_err(), "nothing was asked");
    }

    struct Drop(mpsc::Sender<Publisher>);

    impl Launch for Drop {
        fn launch(&self, publisher: Publisher) {
            // The test ends with its receiver.
            self.0.send(publisher).ok();
        }
    }

    /// A datagram from here to `local`.
    fn from(local: SocketAddr) -> Route {
        Route { protocol: Protocol::Udp, remote: HERE, local }
    }

    fn peer(now: Instant) -> (Peer, Socket, mpsc::Receiver<Publisher>) {
        let sdp = browser(&[CHROMIUM]);
        let (offer, choice) = (inspect(&sdp).unwrap(), best(&sdp).unwrap());
        let nat = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 4000);
        let identity = Identity::generate().unwrap();
        let (_, negotiated) =
            negotiate(&identity, &offer, &choice, &[Local::udp(nat), Local::udp(HERE)], now)
                .unwrap()
                .unwrap();
        peer_of(negotiated, now)
    }

    fn peer_of(negotiated: Negotiated, now: Instant) -> (Peer, Socket, mpsc::Receiver<Publisher>) {
        let (sender, publishers) = mpsc::channel();
        let sessions = Sessions::new(Limits::default(), Arc::new(Drop(sender)));
        let open = Open {
            target: Target::TestPattern,
            bounds: Bounds::new(0, 0, 64, 64),
            codec: Codec::H264,
            max_fps: 0,
            max_dimension: 0,
            bitrate: None,
            policy: Policy::default(),
            ticket_ttl: None,
            key: None,
        };
        let session = sessions.open(open, now).unwrap().info.id;
        let attach = Attach { codec: Codec::H264, carrier: Carrier::Peer, cursor: Cursor::Apart };
        let subscriber = sessions.attach(&session, attach).unwrap();
        let socket =
            Socket::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), Vec::new()).unwrap();
        let peer = Peer::new(negotiated, subscriber, Waker::noop().clone(), 7, now);
        (peer, socket, publishers)
    }

    #[test]
    fn a_viewer_that_never_comes_is_given_up_with_a_reason() {
        let start = now();
        let (mut peer, mut socket, _publishers) = peer(start);
        peer.timeout(start, &mut socket).unwrap();
        assert!(peer.deadline() <= start + CONNECT_WITHIN);
        peer.timeout(start + CONNECT_WITHIN - Duration::from_millis(1), &mut socket).unwrap();
        let end = peer.timeout(start + CONNECT_WITHIN, &mut socket).unwrap_err();
        assert!(matches!(end, End::Because(why) if why.cause() == Some(Cause::UdpBlocked)));
    }

    #[test]
    fn a_stream_that_ends_before_its_viewer_comes_is_the_reason_given() {
        let start = now();
        let (mut peer, mut socket, publishers) = peer(start);
        let publisher = publishers.recv().unwrap();
        publisher.fail(Error::because(Cause::CaptureFailed, "the display is gone"));
        let end = peer.timeout(start + CONNECT_WITHIN, &mut socket).unwrap_err();
        assert!(matches!(end, End::Because(why) if why.cause() == Some(Cause::CaptureFailed)));
    }

    #[test]
    fn a_viewer_that_got_no_further_than_one_packet_had_its_ice_fail() {
        let start = now();
        let (mut peer, mut socket, _publishers) = peer(start);
        // What no engine can read is ignored; that something came is not.
        peer.receive(start, from(HERE), &[0, 1, 2], &mut socket).unwrap();
        peer.receive(start, from(HERE), &[22; 100], &mut socket).unwrap();
        let end = peer.timeout(start + CONNECT_WITHIN, &mut socket).unwrap_err();
        assert!(matches!(end, End::Because(why) if why.cause() == Some(Cause::IceFailed)));
    }

    #[test]
    fn a_lost_connection_is_waited_for_and_then_given_up() {
        let start = now();
        let (mut peer, mut socket, _publishers) = peer(start);
        peer.connection = Connection::Connected;
        let lost = Event::IceConnectionStateChange(IceConnectionState::Disconnected);
        peer.event(lost, start).unwrap();
        let back = Event::IceConnectionStateChange(IceConnectionState::Connected);
        peer.event(back, start + LOST_FOR / 2).unwrap();
        peer.timeout(start + LOST_FOR, &mut socket).unwrap();
        let lost = Event::IceConnectionStateChange(IceConnectionState::Disconnected);
        peer.event(lost, start + LOST_FOR).unwrap();
        let end = peer.timeout(start + 2 * LOST_FOR, &mut socket).unwrap_err();
        assert!(matches!(end, End::Because(why) if why.cause() == Some(Cause::IceFailed)));
    }

    #[test]
    fn a_packet_to_another_address_of_ours_is_for_the_one_viewers_know() {
        let (peer, _socket, _publishers) = peer(now());
        let private = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 5).into(), 4000);
        assert_eq!(peer.local_for(from(HERE)), HERE);
        assert_eq!(peer.local_for(from(private)).ip(), Ipv4Addr::new(192, 0, 2, 1));
        let six = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 4000);
        assert_eq!(peer.local_for(from(six)), six);
    }

    #[test]
    fn a_viewer_that_asks_for_keyframes_without_end_is_heard_twice_a_second() {
        let start = now();
        let mut throttle = Throttle::default();
        let mut passed = 0;
        for millis in (0..2_000).step_by(10) {
            let now = start + Duration::from_millis(millis);
            passed += usize::from(throttle.passes(now));
        }
        assert_eq!(passed, 4);
        // The last one is not forgotten, it comes when its time has come.
        assert_eq!(throttle.due(), Some(start + Duration::from_millis(2_000)));
        assert!(throttle.passes(start + Duration::from_millis(2_000)));
        assert_eq!(throttle.due(), None);
    }
}
