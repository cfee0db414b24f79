//! A viewer in the test plays from a served endpoint over loopback UDP, with losses of its choice.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use futures_util::future::{BoxFuture, ready};
use spaceport_session::{Launch, Limits, Open, Policy, Published, Publisher, Sessions};
use spaceport_testkit::link::{Profile, Proxy};
use spaceport_types::{Bounds, Cause, Codec, Error, Kind, Result, SessionId, Suspension, Target};
use str0m::change::{SdpAnswer, SdpPendingOffer};
use str0m::config::DtlsCert;
use str0m::media::{Direction, Frequency, KeyframeRequestKind, MediaKind, MediaTime, Mid};
use str0m::net::{Protocol, Receive, TcpType};
use str0m::rtp::{Extension, RtpPacket, Vp8Descriptor};
use str0m::{Candidate, Event, Input, Output, Rtc};
use tower::ServiceExt as _;

use super::demux::{Deframer, is_framed};
use super::driver::now;
use super::http::{Call, Gate, Grant, State};
use super::packetize::tests::{depacketize_av1, depacketize_h264, depacketize_vp9};
use super::{Config, Endpoint, bind, http};

/// Longer than any step takes on a busy machine; nothing waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(10);

/// Hands publishers to the test.
struct Launcher(mpsc::SyncSender<Publisher>);

impl Launch for Launcher {
    fn launch(&self, publisher: Publisher) {
        self.0.try_send(publisher).unwrap();
    }
}

/// Lets `Bearer good` in.
struct Doorman {
    sessions: Sessions,
    session: SessionId,
    codecs: Vec<Codec>,
}

impl Gate for Doorman {
    fn authorize<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Grant>> {
        let good = call.headers.get("authorization").is_some_and(|value| value == "Bearer good");
        let grant = || Grant {
            sessions: self.sessions.clone(),
            session: self.session.clone(),
            codecs: self.codecs.clone(),
        };
        let refused = || Error::new(Kind::Unauthenticated, "no ticket");
        Box::pin(ready(good.then(grant).ok_or_else(refused)))
    }

    fn ice_servers<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Vec<http::IceServer>> {
        Box::pin(async move {
            let url = "stun:stun.example.org".to_owned();
            let known = self.authorize(call).await.is_ok();
            known.then_some(http::IceServer { url, login: None }).into_iter().collect()
        })
    }
}

/// An endpoint, its driver's thread, and one session.
pub(super) struct Server {
    pub(super) router: Router,
    pub(super) endpoint: Endpoint,
    pub(super) sessions: Sessions,
    pub(super) session: SessionId,
    publishers: mpsc::Receiver<Publisher>,
    driver: Option<JoinHandle<Result<()>>>,
    runtime: tokio::runtime::Runtime,
}

impl Server {
    pub(super) fn start(codecs: &[Codec]) -> Self {
        Self::with(codecs, Config::default())
    }

    pub(super) fn with(codecs: &[Codec], config: Config) -> Self {
        let (sender, publishers) = mpsc::sync_channel(4);
        let sessions = Sessions::new(Limits::default(), Arc::new(Launcher(sender)));
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
        let session = sessions.open(open, now()).unwrap().info.id;
        let (endpoint, driver) = bind(config).unwrap();
        let driver = std::thread::spawn(|| driver.run());
        let gate = Doorman {
            sessions: sessions.clone(),
            session: session.clone(),
            codecs: codecs.to_vec(),
        };
        let state = State::new(endpoint.clone(), Arc::new(gate));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self {
            router: http::router(state),
            endpoint,
            sessions,
            session,
            publishers,
            driver: Some(driver),
            runtime,
        }
    }

    /// The same below another path.
    pub(super) fn nested(mut self, path: &str) -> Self {
        self.router = Router::new().nest(path, std::mem::take(&mut self.router));
        self
    }

    pub(super) fn send(&self, request: Request<Body>) -> Response<Body> {
        self.runtime.block_on(self.router.clone().oneshot(request)).unwrap()
    }

    pub(super) fn text(&self, response: Response<Body>) -> String {
        let body = axum::body::to_bytes(response.into_body(), 1 << 20);
        String::from_utf8(self.runtime.block_on(body).unwrap().to_vec()).unwrap()
    }

    fn publisher(&self) -> Publisher {
        self.publishers.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.endpoint.shut_down();
        let ended = self.driver.take().unwrap().join();
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

pub(super) fn offering(sdp: impl Into<Body>) -> Request<Body> {
    Request::post("/whep")
        .header("authorization", "Bearer good")
        .header("content-type", "application/sdp")
        .body(sdp.into())
        .unwrap()
}

/// A frame of `size` bytes that no other `index` has.
fn access_unit(index: u8, keyframe: bool, size: usize) -> Vec<Vec<u8>> {
    let body = |header: u8, size: usize| {
        let mut unit = vec![header];
        unit.extend((1..size).map(|at| ((at * 7 + usize::from(index) * 31) % 255 + 1) as u8));
        unit
    };
    if keyframe {
        vec![body(0x67, 20), body(0x68, 5), body(0x65, size)]
    } else {
        vec![body(0x41, size)]
    }
}

fn publish(publisher: &Publisher, keyframe: bool, at: Duration, payload: Vec<u8>) {
    let geometry = publisher.geometry(Bounds::new(0, 0, 64, 64), 0);
    let frame = Published {
        keyframe,
        codec_epoch: 1,
        geometry,
        captured_at: at,
        encode_duration: Duration::ZERO,
        payload: Bytes::from(payload),
    };
    publisher.publish(frame, now());
}

fn publish_h264(publisher: &Publisher, index: u8, keyframe: bool, size: usize) {
    let mut stream = Vec::new();
    for unit in access_unit(index, keyframe, size) {
        stream.extend_from_slice(&[0, 0, 0, 1]);
        stream.extend_from_slice(&unit);
    }
    publish(publisher, keyframe, Duration::from_millis(33 * u64::from(index)), stream);
}

/// A viewer with a socket of its own.
struct Client {
    rtc: Rtc,
    socket: UdpSocket,
    local: SocketAddr,
    tcp: Option<(TcpStream, Deframer)>,
    mid: Mid,
    pending: Option<SdpPendingOffer>,
    offer: String,
    answer: String,
    resource: String,
    etag: String,
    packets: BTreeMap<u64, RtpPacket>,
    /// How many RTP datagrams came, and which of them get lost.
    arrived: usize,
    loses: fn(usize, &[u8]) -> bool,
    closed: bool,
    connected: bool,
}

impl Client {
    fn new(codec: Codec) -> Self {
        Self::with_certificate(codec, None)
    }

    fn with_certificate(codec: Codec, certificate: Option<DtlsCert>) -> Self {
        Self::with(codec, certificate, None)
    }

    /// One that has nothing but this connection.
    fn over_tcp(codec: Codec, stream: TcpStream) -> Self {
        Self::with(codec, None, Some(stream))
    }

    fn with(codec: Codec, certificate: Option<DtlsCert>, stream: Option<TcpStream>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut local = socket.local_addr().unwrap();
        let mut candidate = Candidate::host(local, "udp").unwrap();
        let tcp = stream.map(|stream| {
            stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            local = stream.local_addr().unwrap();
            let active = Candidate::builder().tcp().host(local).tcptype(TcpType::Active);
            candidate = active.build().unwrap();
            (stream, Deframer::default())
        });
        let crypto = Arc::new(str0m::crypto::from_feature_flags());
        let mut config = Rtc::builder()
            .set_crypto_provider(crypto)
            .set_rtp_mode(true)
            .clear_codecs()
            .set_extension(9, Extension::PlayoutDelay);
        if let Some(certificate) = certificate {
            config = config.set_dtls_cert(certificate);
        }
        match codec {
            Codec::H264 => {
                config.codec_config().add_h264(108.into(), Some(109.into()), true, 0x42_e0_1f);
            }
            _ => config.codec_config().add_config(
                101.into(),
                Some(102.into()),
                match codec {
                    Codec::Vp9 => str0m::format::Codec::Vp9,
                    Codec::Av1 => str0m::format::Codec::Av1,
                    _ => str0m::format::Codec::Vp8,
                },
                Frequency::NINETY_KHZ,
                None,
                str0m::format::FormatParams::default(),
            ),
        }
        let mut rtc = config.build(now());
        rtc.add_local_candidate(candidate);
        let mut api = rtc.sdp_api();
        let mid = api.add_media(MediaKind::Video, Direction::RecvOnly, None, None, None);
        let (offer, pending) = api.apply().unwrap();
        Self {
            rtc,
            socket,
            local,
            tcp,
            mid,
            pending: Some(pending),
            offer: offer.to_sdp_string(),
            answer: String::new(),
            resource: String::new(),
            etag: String::new(),
            packets: BTreeMap::new(),
            arrived: 0,
            loses: |_, _| false,
            closed: false,
            connected: false,
        }
    }

    /// Joins with nothing but a link in between, which the server knows nothing of.
    fn join_through(&mut self, server: &Server, link: SocketAddr) {
        let told = |line: &&str| !line.starts_with("a=candidate");
        self.offer = self.offer.lines().filter(told).collect::<Vec<_>>().join("\r\n") + "\r\n";
        self.join_at(server, Some(link));
    }

    /// Posts the offer and takes the answer.
    fn join(&mut self, server: &Server) {
        self.join_at(server, None);
    }

    fn join_at(&mut self, server: &Server, link: Option<SocketAddr>) {
        let response = server.send(offering(self.offer.clone()));
        assert_eq!(response.status(), 201);
        self.resource = response.headers()["location"].to_str().unwrap().to_owned();
        self.etag = response.headers()["etag"].to_str().unwrap().to_owned();
        self.answer = server.text(response);
        if let Some(link) = link {
            let at = |address: SocketAddr| format!(" {} {} typ", address.ip(), address.port());
            self.answer = self.answer.replace(&at(server.endpoint.local_addr()), &at(link));
        }
        let answer = SdpAnswer::from_sdp_string(&self.answer).unwrap();
        self.rtc.sdp_api().accept_answer(self.pending.take().unwrap(), answer).unwrap();
    }

    /// Plays until `done`.
    fn play(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let until = now() + PATIENCE;
        while !done(self) {
            assert!(now() < until, "{what}: {}", self.missing());
            self.turn();
        }
    }

    /// What came and what did not, for when a test gives up.
    fn missing(&self) -> String {
        let numbers: Vec<u64> = self.packets.keys().copied().collect();
        let gaps = numbers.windows(2).filter(|pair| pair[1] - pair[0] > 1);
        let gaps: Vec<_> = gaps.map(|pair| pair[0] + 1..pair[1]).collect();
        format!("{} packets of {} datagrams, without {gaps:?}", numbers.len(), self.arrived)
    }

    fn turn(&mut self) {
        self.drain();
        if self.tcp.is_some() {
            return self.read();
        }
        let mut buffer = [0; 2048];
        match self.socket.recv_from(&mut buffer) {
            Ok((length, source)) => {
                let datagram = &buffer[..length];
                // RTP, and not RTCP on the same port.
                if matches!(datagram, [128..=191, second, ..] if second & 0x7f >= 96) {
                    self.arrived += 1;
                    if (self.loses)(self.arrived, datagram) {
                        return;
                    }
                }
                let receive = Receive::new(Protocol::Udp, source, self.local, datagram).unwrap();
                self.rtc.handle_input(Input::Receive(now(), receive)).unwrap();
            }
            Err(_) => self.rtc.handle_input(Input::Timeout(now())).unwrap(),
        }
    }

    fn drain(&mut self) {
        loop {
            match self.rtc.poll_output().unwrap() {
                Output::Timeout(_) => break,
                Output::Transmit(transmit) if transmit.proto == Protocol::Tcp => {
                    let (stream, _) = self.tcp.as_mut().unwrap();
                    let length = u16::try_from(transmit.contents.len()).unwrap();
                    let frame = [&length.to_be_bytes()[..], &transmit.contents].concat();
                    // The other side may have said goodbye.
                    stream.write_all(&frame).ok();
                }
                Output::Transmit(transmit) => {
                    self.socket.send_to(&transmit.contents, transmit.destination).unwrap();
                }
                Output::Event(Event::Connected) => self.connected = true,
                Output::Event(Event::Closed) => self.closed = true,
                Output::Event(Event::RtpPacket(packet)) => {
                    self.packets.insert(*packet.seq_no, packet);
                }
                Output::Event(_) => {}
            }
        }
    }

    fn read(&mut self) {
        let (stream, deframer) = self.tcp.as_mut().unwrap();
        let mut buffer = [0; 16 << 10];
        let length = stream.read(&mut buffer).unwrap_or(0);
        let source = stream.peer_addr().unwrap_or(self.local);
        let mut arrived = Vec::new();
        assert!(deframer.push(&buffer[..length], |frame| arrived.push(frame.to_vec())));
        for frame in arrived {
            let receive = Receive::new(Protocol::Tcp, source, self.local, &frame).unwrap();
            self.rtc.handle_input(Input::Receive(now(), receive)).unwrap();
            self.drain();
        }
        self.rtc.handle_input(Input::Timeout(now())).unwrap();
    }

    /// The whole frames among the packets, oldest first.
    fn frames(&self) -> Vec<Vec<&RtpPacket>> {
        let mut frames: BTreeMap<u64, Vec<&RtpPacket>> = BTreeMap::new();
        for packet in self.packets.values() {
            frames.entry(packet.time.numer()).or_default().push(packet);
        }
        let mut before: Option<u64> = None;
        let mut whole = Vec::new();
        for packets in frames.into_values() {
            let (first, last) = (*packets[0].seq_no, *packets.last().unwrap().seq_no);
            let follows = before.is_none_or(|before| before + 1 == first);
            let complete = last - first + 1 == packets.len() as u64;
            if follows && complete && packets.last().unwrap().header.marker {
                whole.push(packets);
            }
            before = Some(last);
        }
        whole
    }

    fn units(&self) -> Vec<Vec<Vec<u8>>> {
        let units = |frame: &Vec<&RtpPacket>| depacketize_h264(frame.iter().map(|p| &*p.payload));
        self.frames().iter().map(units).collect()
    }
}

#[test]
fn frames_arrive_whole_and_in_order_beginning_with_a_keyframe() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    let publisher = server.publisher();
    // What came before the handshake is replayed after it.
    publish_h264(&publisher, 0, true, 40_000);
    publish_h264(&publisher, 1, false, 900);
    client.play("two frames", |client| client.frames().len() == 2);
    for index in 2..20 {
        publish_h264(&publisher, index, false, 100 + 700 * usize::from(index));
        client.play("a frame", |client| client.frames().len() > usize::from(index));
    }
    let units = client.units();
    for (index, frame) in units.iter().enumerate() {
        let size = match index {
            0 => 40_000,
            1 => 900,
            index => 100 + 700 * index,
        };
        assert_eq!(*frame, access_unit(index as u8, index == 0, size), "frame {index}");
    }
    let zero = Some(MediaTime::ZERO);
    for packet in client.packets.values() {
        let delay = &packet.header.ext_vals;
        assert_eq!((delay.play_delay_min, delay.play_delay_max), (zero, zero));
    }
    let times: Vec<_> = client.frames().iter().map(|frame| frame[0].time.numer()).collect();
    assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    // The two frames of before were captured 33 ms apart and sent at once.
    assert!(times[1] - times[0] < 33 * 90, "{times:?}");
}

#[test]
fn lost_packets_are_sent_again() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.loses = |arrived, _| arrived % 20 == 0;
    client.join(&server);
    let publisher = server.publisher();
    // Slowly enough for the viewer's own window of a hundred packets.
    for index in 0..60 {
        publish_h264(&publisher, index, index == 0, 6_000);
        let next = now() + Duration::from_millis(10);
        client.play("the next frame's time", |_| now() >= next);
    }
    client.play("all frames, whole", |client| client.frames().len() == 60);
    assert!(client.arrived / 20 > 10, "only {} packets came", client.arrived);
    for (index, frame) in client.units().iter().enumerate() {
        assert_eq!(*frame, access_unit(index as u8, index == 0, 6_000), "frame {index}");
    }
}

/// A server that takes this machine for one far away, with a link to it.
fn far_away(down: Profile) -> (Server, Proxy) {
    let config = Config { pace_here: true, ..Config::default() };
    let server = Server::with(&[Codec::H264], config);
    let up = Profile { delay: down.delay, loss: down.loss, ..Profile::CLEAR };
    let link = Proxy::start(server.endpoint.local_addr(), up, down, 7).unwrap();
    (server, link)
}

#[test]
fn every_frame_arrives_where_one_packet_in_twenty_is_lost_each_way() {
    let (server, link) = far_away(Profile::LOSSY5);
    let mut client = Client::new(Codec::H264);
    client.join_through(&server, link.address());
    let publisher = server.publisher();
    for index in 0..60 {
        publish_h264(&publisher, index, index == 0, 6_000);
        let next = now() + Duration::from_millis(20);
        client.play("the next frame's time", |_| now() >= next);
    }
    client.play("all frames, whole", |client| client.frames().len() == 60);
    for (index, frame) in client.units().iter().enumerate() {
        assert_eq!(*frame, access_unit(index as u8, index == 0, 6_000), "frame {index}");
    }
    let [up, down] = link.counts();
    assert!(up.lost > 0 && down.lost > 10, "{up:?} {down:?}");
}

#[test]
fn a_path_that_is_full_keeps_frames_from_being_made() {
    let path = Profile { delay: Duration::from_millis(10), ..Profile::CLEAR };
    let (server, link) = far_away(path.capped(1_000_000));
    let mut client = Client::new(Codec::H264);
    client.join_through(&server, link.address());
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 10_000);
    client.play("a frame", |client| client.frames().len() == 1);
    // Six times what passes, from a producer that does as it is told.
    let (mut made, mut held) = (1, 0);
    for _ in 0..60 {
        let demand = publisher.demand(now());
        if demand.ready {
            publish_h264(&publisher, made, demand.keyframe.is_some(), 25_000);
            made += 1;
        } else {
            held += 1;
        }
        let next = now() + Duration::from_millis(33);
        client.play("the next frame's time", |_| now() >= next);
    }
    assert!(held > made, "{made} were made, {held} were not");
}

#[test]
fn the_end_of_a_picture_that_stands_still_is_not_lost_for_good() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    // The only frame has 5 packets; the last two never come at first.
    client.loses = |arrived, _| matches!(arrived, 4 | 5);
    client.join(&server);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 4_000);
    client.play("the frame, whole", |client| client.frames().len() == 1);
    assert_eq!(client.units(), [access_unit(0, true, 4_000)]);
    assert_eq!(publisher.demand(now()).keyframe, None, "no keyframe was needed");
}

#[test]
fn a_picture_loss_asks_the_producer_for_a_keyframe() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 1_000);
    client.play("a frame", |client| client.frames().len() == 1);
    assert_eq!(publisher.demand(now()).keyframe, None);
    let mid = client.mid;
    let mut api = client.rtc.direct_api();
    api.stream_rx_by_mid(mid, None).unwrap().request_keyframe(KeyframeRequestKind::Pli);
    client.play("the request", |_| publisher.demand(now()).keyframe.is_some());
}

#[test]
fn a_late_viewer_of_a_picture_that_stands_still_sees_it() {
    let server = Server::start(&[Codec::H264]);
    let mut first = Client::new(Codec::H264);
    first.join(&server);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 30_000);
    publish_h264(&publisher, 1, false, 500);
    first.play("both frames", |first| first.frames().len() == 2);
    let mut late = Client::new(Codec::H264);
    late.join(&server);
    late.play("both frames, with nothing new published", |late| late.frames().len() == 2);
    assert_eq!(late.units(), first.units());
}

#[test]
fn two_viewers_of_one_stream_get_the_same_frames() {
    let server = Server::start(&[Codec::H264]);
    let mut clients = [Client::new(Codec::H264), Client::new(Codec::H264)];
    for client in &mut clients {
        client.join(&server);
    }
    assert_eq!(server.endpoint.viewers(), 2);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 9_000);
    let [one, other] = &mut clients;
    one.play("the first", |one| {
        other.turn();
        one.frames().len() == 1 && other.frames().len() == 1
    });
    publish_h264(&publisher, 1, false, 9_000);
    one.play("the second", |one| {
        other.turn();
        one.frames().len() == 2 && other.frames().len() == 2
    });
    assert_eq!(one.units(), other.units());
    let ssrc = |client: &Client| client.packets.values().next().unwrap().header.ssrc;
    assert_ne!(ssrc(one), ssrc(other));
}

#[test]
fn vp8_pictures_are_counted_per_viewer() {
    let server = Server::start(&[Codec::H264, Codec::Vp8]);
    let mut client = Client::new(Codec::Vp8);
    client.join(&server);
    let publisher = server.publisher();
    assert_eq!(publisher.codec(), Codec::Vp8);
    for index in 0..3 {
        let frame = vec![index; 3_000];
        publish(&publisher, index == 0, Duration::from_millis(20 * u64::from(index)), frame);
        client.play("a frame", |client| client.frames().len() > usize::from(index));
    }
    let mut pictures = Vec::new();
    for (index, frame) in client.frames().iter().enumerate() {
        let descriptors: Vec<_> =
            frame.iter().map(|packet| Vp8Descriptor::parse(&packet.payload).unwrap()).collect();
        let picture = descriptors[0].picture_id().unwrap();
        assert!(descriptors.iter().all(|descriptor| descriptor.picture_id() == Some(picture)));
        pictures.push(picture);
        let whole: Vec<u8> = frame.iter().flat_map(|packet| packet.payload[4..].to_vec()).collect();
        assert_eq!(whole, vec![index as u8; 3_000]);
    }
    let next = |picture: u16| (picture + 1) & 0x7fff;
    assert_eq!(pictures, [pictures[0], next(pictures[0]), next(next(pictures[0]))]);
}

#[test]
fn vp9_pictures_are_counted_per_viewer_and_keyframes_say_their_size() {
    let server = Server::start(&[Codec::H264, Codec::Vp9]);
    let mut clients = [Client::new(Codec::Vp9), Client::new(Codec::Vp9)];
    for client in &mut clients {
        client.join(&server);
    }
    assert!(clients[0].answer.contains("a=rtpmap:101 VP9/90000\r\n"), "{}", clients[0].answer);
    let publisher = server.publisher();
    assert_eq!(publisher.codec(), Codec::Vp9);
    let [one, other] = &mut clients;
    for index in 0..3 {
        let frame = vec![index; 3_000];
        publish(&publisher, index == 0, Duration::from_millis(20 * u64::from(index)), frame);
        one.play("a frame", |one| {
            other.turn();
            let count = usize::from(index) + 1;
            one.frames().len() == count && other.frames().len() == count
        });
    }
    let ids = clients.map(|client| {
        let frames = client.frames().into_iter().enumerate().map(|(index, packets)| {
            let (id, predicted, size, frame) =
                depacketize_vp9(packets.iter().map(|packet| &*packet.payload));
            assert_eq!(frame, vec![index as u8; 3_000]);
            assert_eq!(predicted, index > 0);
            let said = (index == 0).then_some(spaceport_types::Size::new(64, 64));
            assert_eq!(size, said);
            id
        });
        frames.collect::<Vec<_>>()
    });
    let next = |picture: u16| (picture + 1) & 0x7fff;
    for ids in &ids {
        assert_eq!(ids[1..], [next(ids[0]), next(next(ids[0]))]);
    }
}

#[test]
fn av1_arrives_without_its_delimiters() {
    let server = Server::start(&[Codec::Av1]);
    let mut client = Client::new(Codec::Av1);
    client.join(&server);
    assert!(client.answer.contains("a=rtpmap:101 AV1/90000\r\n"), "{}", client.answer);
    let publisher = server.publisher();
    let obu = |kind: u8, body: &[u8]| [&[kind << 3 | 2, body.len() as u8][..], body].concat();
    let unit = [obu(2, &[]), obu(1, &[7; 11]), obu(6, &[9; 100])].concat();
    publish(&publisher, true, Duration::ZERO, unit);
    client.play("the keyframe", |client| client.frames().len() == 1);
    let frames = client.frames();
    let read = depacketize_av1(frames[0].iter().map(|packet| &*packet.payload));
    let bare = |kind: u8, body: &[u8]| [&[kind << 3][..], body].concat();
    assert_eq!(read, (true, vec![bare(1, &[7; 11]), bare(6, &[9; 100])]));
}

#[test]
fn a_closed_session_closes_the_connection_and_the_resource_tells_why() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 1_000);
    client.play("a frame", |client| client.frames().len() == 1);
    server.sessions.close(&server.session).unwrap();
    client.play("the goodbye", |client| client.closed);
    client.play("the end of the viewer", |_| server.endpoint.viewers() == 0);
    let response = server.send(Request::get(&client.resource).body(Body::empty()).unwrap());
    assert_eq!(response.status(), 410);
    let problem: serde_json::Value = serde_json::from_str(&server.text(response)).unwrap();
    assert_eq!(problem["cause"], "session_closed");
}

#[test]
fn a_stream_that_stands_still_says_why_and_keeps_its_viewer() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 1_000);
    client.play("a frame", |client| client.frames().len() == 1);
    let asked = |client: &Client| {
        let response = server.send(Request::get(&client.resource).body(Body::empty()).unwrap());
        (response.status().as_u16(), server.text(response))
    };
    assert_eq!(asked(&client).0, 204);
    let why = Error::because(Cause::CaptureFailed, "the window is minimized");
    publisher.suspend(Suspension::Minimized, why);
    client.play("the news", |client| asked(client).0 == 200);
    let problem: serde_json::Value = serde_json::from_str(&asked(&client).1).unwrap();
    assert_eq!(problem["cause"], "capture_failed");
    assert!(problem["detail"].as_str().unwrap().contains("minimized"), "{problem}");
    // Who comes now sees what was last seen, and later what comes next.
    let mut late = Client::new(Codec::H264);
    late.join(&server);
    late.play("the still picture", |late| late.frames().len() == 1);
    publish_h264(&publisher, 1, false, 1_000);
    client.play("the next frame", |client| client.frames().len() == 2);
    late.play("the next frame", |late| late.frames().len() == 2);
    assert!(!client.closed && !late.closed);
    assert_eq!(asked(&client).0, 204);
}

#[test]
fn a_deleted_resource_lets_the_viewer_go_and_nobody_is_encoded_for() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 1_000);
    client.play("a frame", |client| client.frames().len() == 1);
    assert_eq!(publisher.demand(now()).viewers, 1);
    let delete = || Request::delete(&client.resource).body(Body::empty()).unwrap();
    assert_eq!(server.send(delete()).status(), 200);
    assert_eq!(server.send(delete()).status(), 410);
    client.play("the goodbye", |client| client.closed);
    client.play("the end of demand", |_| publisher.demand(now()).viewers == 0);
}

#[test]
fn a_viewer_that_leaves_is_noticed() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    client.play("the connection", |client| client.connected);
    client.rtc.close().unwrap();
    client.play("its departure", |_| server.endpoint.viewers() == 0);
}

/// GStreamer identifies itself by RSA, browsers by ECDSA.
#[test]
fn a_viewer_may_have_an_rsa_certificate() {
    let certificate = DtlsCert {
        certificate: include_bytes!("testdata/rsa-certificate.der").to_vec(),
        private_key: include_bytes!("testdata/rsa-key.der").to_vec(),
    };
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::with_certificate(Codec::H264, Some(certificate));
    client.join(&server);
    client.play("the connection", |client| client.connected);
}

#[test]
fn candidates_may_come_after_the_offer() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    let (candidates, offer): (Vec<&str>, Vec<&str>) =
        client.offer.lines().partition(|line| line.starts_with("a=candidate"));
    assert_eq!(candidates.len(), 1);
    let fragment = format!("a=mid:{}\r\n{}\r\na=end-of-candidates\r\n", client.mid, candidates[0]);
    client.offer = offer.join("\r\n") + "\r\n";
    client.join(&server);
    // The viewer itself waits, so only the server's checks can bring the two together.
    let patch = Request::patch(&client.resource)
        .header("content-type", "application/trickle-ice-sdpfrag")
        .header("if-match", &client.etag)
        .body(Body::from(fragment))
        .unwrap();
    assert_eq!(server.send(patch).status(), 204);
    let mut buffer = [0; 2048];
    client.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let (length, source) = client.socket.recv_from(&mut buffer).unwrap();
    assert_eq!((buffer[0], length > 20), (0, true), "not a STUN request");
    assert_eq!(source, server.endpoint.local_addr());
    client.socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    client.play("the connection", |client| client.connected);
}

#[test]
fn ice_can_be_restarted_while_the_picture_goes_on() {
    let server = Server::start(&[Codec::H264]);
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    let publisher = server.publisher();
    publish_h264(&publisher, 0, true, 1_000);
    client.play("a frame", |client| client.frames().len() == 1);

    let mut api = client.rtc.sdp_api();
    api.ice_restart(true);
    let (offer, pending) = api.apply().unwrap();
    let offer = offer.to_sdp_string();
    let is_ice = |line: &&str| {
        ["a=ice-ufrag", "a=ice-pwd", "a=candidate"].iter().any(|name| line.starts_with(name))
    };
    let fragment = offer.lines().filter(is_ice).collect::<Vec<_>>().join("\r\n");
    let patch = Request::patch(&client.resource)
        .header("content-type", "application/trickle-ice-sdpfrag")
        .header("if-match", "*")
        .body(Body::from(fragment))
        .unwrap();
    let response = server.send(patch);
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/trickle-ice-sdpfrag");
    let etag = response.headers()["etag"].to_str().unwrap().to_owned();
    assert_ne!(etag, client.etag);
    let fragment = server.text(response);

    // The viewer's side of the fragment: the old answer with the new credentials.
    let new = |name: &str| fragment.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let answer: Vec<String> = client
        .answer
        .lines()
        .map(|line| match line.split(':').next() {
            Some(name @ ("a=ice-ufrag" | "a=ice-pwd")) => new(name),
            _ => line.to_owned(),
        })
        .collect();
    let answer = SdpAnswer::from_sdp_string(&(answer.join("\r\n") + "\r\n")).unwrap();
    client.rtc.sdp_api().accept_answer(pending, answer).unwrap();
    for index in 1..10 {
        publish_h264(&publisher, index, false, 3_000);
        client.play("a frame", |client| client.frames().len() > usize::from(index));
    }
    // The old session's tag no longer fits.
    let stale = Request::patch(&client.resource)
        .header("content-type", "application/trickle-ice-sdpfrag")
        .header("if-match", &client.etag)
        .body(Body::empty())
        .unwrap();
    assert_eq!(server.send(stale).status(), 412);
}

/// A server that viewers reach by TCP, and the listener that whoever embeds it would have.
fn behind_tcp() -> (Server, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config { tcp: Some(listener.local_addr().unwrap()), ..Config::default() };
    (Server::with(&[Codec::H264], config), listener)
}

#[test]
fn a_viewer_that_has_nothing_but_tcp_sees_every_frame() {
    let (server, listener) = behind_tcp();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut client = Client::over_tcp(Codec::H264, stream);
    client.join(&server);
    let port = listener.local_addr().unwrap().port();
    assert!(client.answer.contains(&format!("127.0.0.1 {port} typ host tcptype passive")));
    let (accepted, _) = listener.accept().unwrap();
    let (freed, guard) = mpsc::channel::<()>();
    accepted.set_nonblocking(true).unwrap();
    let mut first = [0];
    client.play("a check", |_| accepted.peek(&mut first).is_ok());
    assert!(is_framed(first[0]), "a check, in a frame");
    server.endpoint.adopt(accepted, freed).unwrap();

    client.play("the connection", |client| client.connected);
    let publisher = server.publisher();
    for index in 0..10 {
        publish_h264(&publisher, index, index == 0, 30_000);
        client.play("a frame", |client| client.frames().len() > usize::from(index));
    }
    for (index, frame) in client.units().iter().enumerate() {
        assert_eq!(*frame, access_unit(index as u8, index == 0, 30_000), "frame {index}");
    }
    // The connection goes with the viewer.
    let delete = Request::delete(&client.resource).body(Body::empty()).unwrap();
    assert_eq!(server.send(delete).status(), 200);
    client.play("the goodbye", |client| client.closed);
    assert_eq!(guard.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn a_connection_of_nobody_gets_no_answer_and_what_no_viewer_sends_ends_it() {
    let (server, listener) = behind_tcp();
    let mut client = Client::new(Codec::H264);
    client.join(&server);
    let ufrag = client.answer.lines().find_map(|line| line.strip_prefix("a=ice-ufrag:")).unwrap();
    // A check that names the viewer, and is not signed by it.
    let name = format!("{ufrag}:abcd");
    let mut check = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
    check.extend_from_slice(&[7; 12]);
    check.extend_from_slice(&[0, 6, 0, name.len() as u8]);
    check.extend_from_slice(name.as_bytes());
    check.resize(check.len().next_multiple_of(4), 0);
    check[3] = (check.len() - 20) as u8;
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    server.endpoint.adopt(accepted, ()).unwrap();
    let frame = [&[0, check.len() as u8][..], &check].concat();
    for _ in 0..100 {
        stream.write_all(&frame).unwrap();
    }
    let silent = stream.read(&mut [0; 64]).unwrap_err();
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock);
    // Longer than any frame of a viewer.
    stream.write_all(&[0xff; 64]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        Ok(_) => panic!("it got an answer"),
    }
    client.play("the viewer's own connection", |client| client.connected);
}
