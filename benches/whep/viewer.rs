//! A viewer with a socket and a thread of its own.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use str0m::change::SdpAnswer;
use str0m::media::{Direction, KeyframeRequestKind, MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::Extension;
use str0m::{Candidate, Event, Input, Output, Rtc};

use crate::producer::{MADE, lock, number};
use crate::server::Server;
use crate::{Result, now};

/// A frame that arrived whole, after all those before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) at: Instant,
    /// From when it was made.
    pub(crate) latency: Duration,
    pub(crate) bytes: usize,
}

/// A viewer that plays until it is dropped.
pub(crate) struct Viewer {
    frames: Arc<Mutex<Vec<Frame>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Viewer {
    /// Joins; packets go by `through`, if that is given.
    pub(crate) fn start(
        server: &Server,
        through: Option<SocketAddr>,
        feedback: bool,
    ) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        let local = socket.local_addr()?;
        let crypto = Arc::new(str0m::crypto::from_feature_flags());
        let mut config = Rtc::builder()
            .set_crypto_provider(crypto)
            .set_rtp_mode(true)
            .clear_codecs()
            .set_extension(9, Extension::PlayoutDelay);
        config.codec_config().add_h264(108.into(), Some(109.into()), true, 0x42_e0_1f);
        let mut rtc = config.build(now());
        rtc.add_local_candidate(Candidate::host(local, "udp")?);
        let mut api = rtc.sdp_api();
        let mid = api.add_media(MediaKind::Video, Direction::RecvOnly, None, None, None);
        let (offer, pending) = api.apply().ok_or("nothing to offer")?;
        // Its own address is known to nobody where there is a link in between.
        let hidden = |line: &&str| through.is_some() && line.starts_with("a=candidate");
        let unwanted = |line: &&str| hidden(line) || !feedback && line.ends_with(" transport-cc");
        let offer = offer.to_sdp_string();
        let offer: Vec<_> = offer.lines().filter(|line| !unwanted(line)).collect();
        let mut answer = server.answer(offer.join("\r\n") + "\r\n")?;
        if let Some(through) = through {
            let (direct, through) = (server.media(), through);
            let text = |to: SocketAddr| format!(" {} {} typ host", to.ip(), to.port());
            answer = answer.replace(&text(direct), &text(through));
        }
        let answer = SdpAnswer::from_sdp_string(&answer)?;
        rtc.sdp_api().accept_answer(pending, answer)?;
        let (frames, stop) = (Arc::new(Mutex::default()), Arc::new(AtomicBool::new(false)));
        let mut player = Player {
            rtc,
            socket,
            local,
            mid,
            packets: BTreeMap::new(),
            next: None,
            stuck: None,
            current: (None, 0),
            frames: Arc::clone(&frames),
        };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = player.turn() {
                    tracing::warn!(%error, "a viewer gave up");
                    return;
                }
            }
        });
        Ok(Self { frames, stop, thread: Some(thread) })
    }

    pub(crate) fn since(&self, at: Instant) -> Vec<Frame> {
        lock(&self.frames).iter().filter(|frame| frame.at >= at).copied().collect()
    }

    pub(crate) fn wait_for_picture(&self) -> Result<()> {
        for _ in 0..1000 {
            if !lock(&self.frames).is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("no picture within ten seconds".into())
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

struct Player {
    rtc: Rtc,
    socket: UdpSocket,
    local: SocketAddr,
    mid: Mid,
    /// What came out of order: whether it ends a frame, the frame's number, its bytes, and whether
    /// it begins a keyframe.
    packets: BTreeMap<u64, (bool, Option<u32>, usize, bool)>,
    next: Option<u64>,
    /// Since when a packet has been missing.
    stuck: Option<Instant>,
    current: (Option<u32>, usize),
    frames: Arc<Mutex<Vec<Frame>>>,
}

impl Player {
    fn turn(&mut self) -> Result<()> {
        let wait = loop {
            match self.rtc.poll_output()? {
                Output::Timeout(at) => break at.saturating_duration_since(now()),
                Output::Transmit(transmit) => {
                    self.socket.send_to(&transmit.contents, transmit.destination)?;
                }
                Output::Event(Event::RtpPacket(packet)) => {
                    let place = *packet.seq_no;
                    let payload = &packet.payload;
                    // Parameter sets travel together in one packet (STAP-A).
                    let keyframe = payload.first().is_some_and(|first| first & 0x1f == 24);
                    let entry = (packet.header.marker, number(payload), payload.len(), keyframe);
                    self.next.get_or_insert(place);
                    self.packets.insert(place, entry);
                    self.advance();
                }
                Output::Event(_) => {}
            }
        };
        let wait = wait.clamp(Duration::from_millis(1), Duration::from_millis(20));
        self.socket.set_read_timeout(Some(wait))?;
        let mut buffer = [0; 2048];
        match self.socket.recv_from(&mut buffer) {
            Ok((length, source)) => {
                if let Ok(receive) =
                    Receive::new(Protocol::Udp, source, self.local, &buffer[..length])
                {
                    self.rtc.handle_input(Input::Receive(now(), receive))?;
                }
            }
            Err(_) => self.rtc.handle_input(Input::Timeout(now()))?,
        }
        Ok(())
    }

    /// A whole keyframe makes up for what is missing before it. Without one, a packet that does not
    /// come is waited for a second, and then a keyframe asked for.
    fn give_up_after_a_while(&mut self) {
        let since = *self.stuck.get_or_insert_with(now);
        let keyframes = self.packets.iter().filter(|(_, packet)| packet.3);
        let whole = keyframes.map(|(&place, _)| place).find(|&first| {
            let after = self.packets.range(first..).zip(first..);
            let unbroken = after.take_while(|((place, _), expected)| **place == *expected);
            unbroken.map(|(entry, _)| entry).skip(1).any(|(_, packet)| packet.0)
        });
        if let Some(place) = whole {
            self.packets = self.packets.split_off(&place);
            self.next = Some(place);
            self.stuck = None;
            self.current = (None, 0);
        } else if since.elapsed() >= Duration::from_secs(1) {
            let mut api = self.rtc.direct_api();
            if let Some(stream) = api.stream_rx_by_mid(self.mid, None) {
                stream.request_keyframe(KeyframeRequestKind::Pli);
            }
        }
    }

    /// Takes what has no gap before it.
    fn advance(&mut self) {
        while let Some((&place, &(last, number, bytes, _))) = self.packets.first_key_value() {
            let Some(next) = self.next else { return };
            if place > next {
                self.give_up_after_a_while();
                return;
            }
            self.packets.pop_first();
            if place < next {
                continue;
            }
            self.next = Some(next + 1);
            self.current.0 = self.current.0.or(number);
            self.current.1 += bytes;
            self.stuck = None;
            if last {
                let (number, bytes) = std::mem::take(&mut self.current);
                let made = lock(&MADE).clone();
                let made = made.zip(number);
                let made = made.and_then(|(made, it)| lock(&made).get(it as usize).copied());
                if let Some(made) = made {
                    let at = now();
                    lock(&self.frames).push(Frame { at, latency: at - made, bytes });
                }
            }
        }
    }
}
