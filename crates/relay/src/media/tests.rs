//! Both sides over a tunnel in memory: a machine whose packets the test makes, and viewers at the relay.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use spaceport_session::{
    Attach, Carrier, Cursor, Event, Launch, Limits, Open, Path, Policy, Preferences, Published,
    Publisher, Sessions, Subscriber,
};
use spaceport_transport::quic::{self, Client, Identity, Remote, Video};
use spaceport_transport::whep::IceServers;
use spaceport_transport::{Clock, Door as _, Pass, Received};
use spaceport_types::{
    Bitrate, Bounds, Cause, Codec, CursorImage, CursorPosition, Error, Kind, MachineId, Packet,
    Redacted, Result, SessionId, Size, Suspension, Target,
};
use spaceport_wire::control::ServerMessage;
use spaceport_wire::packet;
use spaceport_wire::relay::Head;
use spaceport_wire::relay_media::{FromSession, Way};
use tokio::io::{AsyncWriteExt as _, copy, split};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{Admission, Attached, Edge, Guest, Host, Machines};
use crate::tunnel::{self, Reader, Tunnel, read_head};

const MACHINE: &str = "build-box-7";
const BOUNDS: Bounds = Bounds::new(0, 0, 640, 360);

/// How long a test waits for one thing.
const PATIENCE: Duration = Duration::from_secs(10);

/// Hands publishers of the machine to the test.
#[derive(Default)]
struct Launched(Mutex<Vec<Publisher>>);

impl Launch for Launched {
    fn launch(&self, publisher: Publisher) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(publisher);
    }
}

/// Lets in who has a ticket; and over WHEP, who has the token, to one session.
struct Doorman {
    sessions: Sessions,
    whep: SessionId,
}

impl Host for Doorman {
    fn admit<'a>(&'a self, secret: &'a str, way: &'a Way) -> BoxFuture<'a, Result<Admission>> {
        let now = Instant::now().into_std();
        let session = match way {
            Way::Whep { .. } if secret == "token" => Ok(self.whep.clone()),
            _ => self.sessions.redeem(secret, now),
        };
        let admission = session.map(|session| Admission {
            pass: Pass {
                sessions: self.sessions.clone(),
                session,
                clock: Clock::new(|| Duration::from_secs(5_000)),
            },
            codecs: vec![Codec::H264, Codec::Vp8],
            key: None,
        });
        Box::pin(std::future::ready(admission))
    }
}

/// The machines that are connected.
#[derive(Debug)]
struct Board(watch::Sender<HashMap<MachineId, Tunnel>>);

impl Machines for Board {
    fn find<'a>(&'a self, machine: &'a MachineId) -> BoxFuture<'a, Result<Tunnel>> {
        let tunnel = self.0.borrow().get(machine).cloned();
        let offline = || Error::new(Kind::Relay, "the machine is not connected");
        Box::pin(std::future::ready(match tunnel {
            Some(tunnel) if !tunnel.is_closed() => Ok(tunnel),
            _ if machine.as_str() == MACHINE => Err(offline()),
            _ => Err(Error::new(Kind::NotFound, "no such machine")),
        }))
    }

    fn attached<'a>(&'a self, _: &'a MachineId, _: Attached) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }
}

struct World {
    sessions: Sessions,
    launched: Arc<Launched>,
    guest: Guest,
    edge: Edge,
    board: Arc<Board>,
    session: SessionId,
    ticket: Redacted<String>,
}

impl World {
    fn new() -> Self {
        let launched = Arc::new(Launched::default());
        let sessions = Sessions::new(Limits::default(), Arc::<Launched>::clone(&launched));
        let opened = sessions.open(open(), Instant::now().into_std()).unwrap();
        let (session, ticket) = (opened.info.id, opened.ticket.secret);
        let host = Doorman { sessions: sessions.clone(), whep: session.clone() };
        let guest = Guest::new(Arc::new(host));
        let board = Arc::new(Board(watch::channel(HashMap::new()).0));
        let edge = Edge::new(Arc::<Board>::clone(&board), Edge::limits(), IceServers::default());
        let world = Self { sessions, launched, guest, edge, board, session, ticket };
        world.connect();
        world
    }

    /// Connects the machine; returns its end of the tunnel.
    fn connect(&self) -> Tunnel {
        let (machine, relay) = Tunnel::pair(tunnel::Limits::default());
        let (guest, accepting) = (self.guest.clone(), machine.clone());
        tokio::spawn(async move {
            while let Some(mut stream) = accepting.accept().await {
                let guest = guest.clone();
                tokio::spawn(async move {
                    let head = read_head(&mut stream).await.unwrap();
                    assert!(guest.serve(head, stream).await.is_none());
                });
            }
        });
        self.board.0.send_modify(|board| drop(board.insert(MACHINE.parse().unwrap(), relay)));
        machine
    }

    fn cut(&self) {
        let relay = self.board.0.send_replace(HashMap::new()).remove(&MACHINE.parse().unwrap());
        relay.unwrap().close();
    }

    async fn pass(&self) -> Pass {
        self.edge.redeem(Some(MACHINE), self.ticket.expose()).await.unwrap()
    }

    /// A viewer at the relay.
    async fn viewer(&self) -> Subscriber {
        let pass = self.pass().await;
        pass.sessions.attach(&pass.session, SOCKET).unwrap()
    }

    /// The next stream that the machine is to make.
    async fn publisher(&self) -> Publisher {
        let launched = async {
            loop {
                let publisher = self.launched.0.lock().unwrap().pop();
                match publisher {
                    Some(publisher) => return publisher,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        timeout(PATIENCE, launched).await.expect("nothing is wanted of the machine")
    }
}

const SOCKET: Attach =
    Attach { codec: Codec::H264, carrier: Carrier::Socket, cursor: Cursor::Apart };

fn open() -> Open {
    Open {
        target: Target::Display { display_id: "1".to_owned() },
        bounds: BOUNDS,
        codec: Codec::H264,
        max_fps: 30,
        max_dimension: 0,
        bitrate: None,
        policy: Policy::ViewOnly,
        ticket_ttl: None,
        key: None,
    }
}

fn publish(publisher: &Publisher, keyframe: bool, payload: &'static [u8]) {
    let frame = Published {
        keyframe,
        codec_epoch: 1,
        geometry: publisher.geometry(BOUNDS, 0),
        captured_at: Duration::from_millis(7),
        encode_duration: Duration::from_millis(1),
        payload: Bytes::from_static(payload),
    };
    publisher.publish(frame, Instant::now().into_std());
}

async fn next(viewer: &mut Subscriber) -> Event {
    timeout(PATIENCE, viewer.recv()).await.expect("nothing came")
}

async fn frame(viewer: &mut Subscriber) -> Packet {
    match next(viewer).await {
        Event::Packet(packet) => packet,
        other => panic!("{other:?}"),
    }
}

/// Waits until something holds that nothing tells of.
async fn eventually(mut holds: impl FnMut() -> bool) {
    let until = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, until).await.expect("it never came to hold");
}

#[tokio::test]
async fn many_viewers_get_every_frame_and_the_machine_sends_each_once() {
    let world = World::new();
    let mut viewers = vec![world.viewer().await];
    let publisher = world.publisher().await;
    for _ in 0..20 {
        viewers.push(world.viewer().await);
    }
    publish(&publisher, true, b"key");
    publish(&publisher, false, b"delta");
    for viewer in &mut viewers {
        let (first, second) = (frame(viewer).await, frame(viewer).await);
        assert_eq!((first.sequence, first.keyframe, &*first.payload), (1, true, &b"key"[..]));
        assert_eq!((second.sequence, &*second.payload), (2, &b"delta"[..]));
        assert_eq!(first.geometry, publisher.geometry(BOUNDS, 0));
        assert_eq!(first.captured_at, Duration::from_millis(7));
    }
    assert_eq!(world.sessions.counters().viewers.get(), 1, "the relay, once");
    assert_eq!(world.sessions.counters().delivered.get(), 2);

    // Who comes late is served here, and the machine is asked for nothing.
    let mut late = world.viewer().await;
    assert_eq!(frame(&mut late).await.sequence, 1);
    assert_eq!(frame(&mut late).await.sequence, 2);
    assert!(publisher.demand(Instant::now().into_std()).keyframe.is_none());
    assert_eq!(world.sessions.counters().delivered.get(), 2);
    assert!(world.launched.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn viewers_of_every_sort_of_pictures_have_a_stream_each() {
    let world = World::new();
    let pass = world.pass().await;
    let h264 = pass.sessions.attach(&pass.session, SOCKET).unwrap();
    assert_eq!(world.publisher().await.codec(), Codec::H264);
    let baked = Attach { codec: Codec::Vp8, carrier: Carrier::Peer, cursor: Cursor::Baked };
    let mut vp8 = pass.sessions.attach(&pass.session, baked).unwrap();
    let publisher = world.publisher().await;
    assert_eq!((publisher.codec(), publisher.cursor()), (Codec::Vp8, Cursor::Baked));
    publish(&publisher, true, b"vp8");
    assert_eq!(frame(&mut vp8).await.codec, Codec::Vp8);
    drop(h264);
}

#[tokio::test]
async fn a_ticket_is_judged_by_the_machine_each_time() {
    let world = World::new();
    let refused = |ticket: &'static str| {
        let edge = world.edge.clone();
        async move { edge.redeem(Some(MACHINE), ticket).await.unwrap_err() }
    };
    assert_eq!(refused("guess").await.kind(), Kind::Unauthenticated);
    // The token opens a session to WHEP players, and to nobody else.
    assert_eq!(refused("token").await.kind(), Kind::Unauthenticated);
    let ticket = world.ticket.expose().as_str();
    let named = |machine: Option<&'static str>| {
        let edge = world.edge.clone();
        async move { edge.redeem(machine, ticket).await.unwrap_err().kind() }
    };
    assert_eq!(named(Some("another-box")).await, Kind::NotFound);
    assert_eq!(named(Some("../../etc")).await, Kind::InvalidArgument);
    assert_eq!(named(None).await, Kind::InvalidArgument);
    assert!(world.edge.sessions().is_empty() || world.edge.sessions()[0].is_empty());

    // One that opened the session once opens nothing any more when the machine has closed it.
    world.pass().await;
    world.sessions.close(&world.session).unwrap();
    let error = world.edge.redeem(Some(MACHINE), ticket).await.unwrap_err();
    assert_eq!(error.cause(), Some(Cause::SessionClosed));
}

#[tokio::test]
async fn a_session_that_the_machine_closes_is_over_for_everyone_at_the_relay_at_once() {
    let world = World::new();
    let mut viewers = [world.viewer().await, world.viewer().await];
    let publisher = world.publisher().await;
    publish(&publisher, true, b"key");
    for viewer in &mut viewers {
        frame(viewer).await;
    }
    world.sessions.close(&world.session).unwrap();
    for viewer in &mut viewers {
        let Event::Ended(error) = next(viewer).await else { panic!("it goes on") };
        assert_eq!(error.cause(), Some(Cause::SessionClosed));
    }
    let sessions = world.edge.sessions().remove(0);
    eventually(|| sessions.is_empty()).await;
}

#[tokio::test]
async fn a_session_is_held_at_the_machine_while_the_relay_has_it_and_no_longer() {
    let world = World::new();
    let pass = world.pass().await;
    let long_after = Instant::now().into_std() + Duration::from_secs(3_600);
    world.sessions.sweep(long_after);
    assert_eq!(world.sessions.len(), 1, "the relay holds it");
    pass.sessions.close(&pass.session).unwrap();
    eventually(|| {
        world.sessions.sweep(long_after);
        world.sessions.is_empty()
    })
    .await;
}

#[tokio::test]
async fn viewers_are_told_that_the_machine_is_away_and_see_it_when_it_is_back() {
    let world = World::new();
    let mut viewer = world.viewer().await;
    let publisher = world.publisher().await;
    publish(&publisher, true, b"one");
    publish(&publisher, false, b"two");
    let before = [frame(&mut viewer).await, frame(&mut viewer).await];
    world.cut();
    let Event::Suspended(Suspension::CaptureFailed, error) = next(&mut viewer).await else {
        panic!("nothing was said")
    };
    assert_eq!(error.cause(), Some(Cause::GuestOffline));
    // Whoever comes meanwhile is told, too, if it is one of those who are in.
    let sessions = world.edge.sessions().remove(0);
    let mut meanwhile = sessions.attach(&world.session, SOCKET).unwrap();
    assert!(matches!(next(&mut meanwhile).await, Event::Suspended(..)));
    let error = world.edge.redeem(Some(MACHINE), world.ticket.expose()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Relay);

    world.connect();
    // What the machine has kept is what viewers have seen: it is asked for a keyframe.
    let due = || publisher.demand(Instant::now().into_std()).keyframe.is_some();
    eventually(due).await;
    publish(&publisher, true, b"three");
    for viewer in [&mut viewer, &mut meanwhile] {
        let resumed = loop {
            match next(viewer).await {
                Event::Suspended(..) => {}
                other => break other,
            }
        };
        assert!(matches!(resumed, Event::Resumed), "{resumed:?}");
        let after = frame(viewer).await;
        assert_eq!((after.sequence, after.keyframe, &*after.payload), (3, true, &b"three"[..]));
        assert!(after.codec_epoch >= before[1].codec_epoch);
    }
}

#[tokio::test]
async fn a_session_that_a_machine_no_longer_has_ends_when_it_is_back() {
    let world = World::new();
    let mut viewer = world.viewer().await;
    let publisher = world.publisher().await;
    publish(&publisher, true, b"one");
    frame(&mut viewer).await;
    world.cut();
    world.sessions.close(&world.session).unwrap();
    world.connect();
    let ended = async {
        loop {
            if let Event::Ended(error) = next(&mut viewer).await {
                return error;
            }
        }
    };
    let error = timeout(PATIENCE, ended).await.expect("it did not end");
    assert_eq!(error.cause(), Some(Cause::SessionClosed));
}

#[tokio::test]
async fn what_viewers_want_goes_up() {
    let world = World::new();
    let pass = world.pass().await;
    let mut viewer = pass.sessions.attach(&pass.session, SOCKET).unwrap();
    let publisher = world.publisher().await;
    let wanted = || publisher.demand(Instant::now().into_std());
    publish(&publisher, true, b"key");
    frame(&mut viewer).await;

    viewer.want_cursor(true);
    eventually(|| wanted().cursor).await;
    let rgba = Bytes::from_static(&[255, 0, 0, 255, 0, 255, 0, 128]);
    let image = CursorImage { serial: 4, size: Size::new(1, 2), hotspot: (0, 1), rgba };
    publisher.pointer().cursor_image(Arc::new(image.clone()));
    let pointer = publisher.pointer();
    pointer.cursor_image(Arc::new(image.clone()));
    pointer.cursor_position(CursorPosition { visible: true, x: 31, y: 17 });
    let Event::CursorImage(shown) = next(&mut viewer).await else { panic!("no image") };
    assert_eq!((shown.serial, &shown.rgba), (4, &image.rgba));
    let Event::CursorPosition(position) = next(&mut viewer).await else { panic!("no position") };
    assert_eq!((position.visible, position.x, position.y), (true, 31, 17));

    viewer.request_keyframe();
    eventually(|| wanted().keyframe.is_some()).await;
    publish(&publisher, true, b"again");
    frame(&mut viewer).await;

    let limits = Preferences { max_fps: Some(5), ..Preferences::default() };
    pass.sessions.set_preferences(&pass.session, limits, Instant::now().into_std()).unwrap();
    eventually(|| wanted().settings.max_fps == 5).await;
    assert_eq!(world.sessions.info(&world.session).unwrap().settings.max_fps, 5);

    drop(viewer);
    eventually(|| wanted().viewers == 0).await;
    assert_eq!(world.sessions.len(), 1, "it is held still");
    let mut again = pass.sessions.attach(&pass.session, SOCKET).unwrap();
    eventually(|| wanted().viewers == 1).await;
    frame(&mut again).await;
}

#[tokio::test]
async fn a_rung_at_the_relay_is_a_rung_at_the_machine() {
    let world = World::new();
    let pass = world.pass().await;
    let [mut fast, mut slow] =
        [(); 2].map(|()| pass.sessions.attach(&pass.session, SOCKET).unwrap());
    let full = world.publisher().await;
    publish(&full, true, b"full");
    frame(&mut fast).await;
    frame(&mut slow).await;
    let path = Path {
        capacity: Some(Bitrate::from_kbps(3_000)),
        queued: Duration::from_millis(300),
        ..Path::default()
    };
    let began = Instant::now().into_std();
    for step in [0, 150, 300] {
        slow.path(path, began + Duration::from_millis(step));
    }
    let rung = world.publisher().await;
    assert!(!rung.is_whole());
    eventually(|| {
        let rate = rung.demand(Instant::now().into_std()).settings.bitrate;
        rate == Bitrate::from_kbps(2_700)
    })
    .await;
    publish(&rung, true, b"less");
    publish(&full, false, b"more");
    assert_eq!(&*frame(&mut slow).await.payload, b"less");
    assert_eq!(&*frame(&mut fast).await.payload, b"more");
    assert_eq!(full.demand(Instant::now().into_std()).settings.bitrate.kbps(), 8_000);
    assert_eq!(world.sessions.counters().viewers.get(), 2, "the relay, once for each");
}

#[tokio::test]
async fn who_does_not_read_costs_itself_alone() {
    let world = World::new();
    let pass = world.pass().await;
    let [mut reads, stuck] = [(); 2].map(|()| pass.sessions.attach(&pass.session, SOCKET).unwrap());
    let publisher = world.publisher().await;
    publish(&publisher, true, b"key");
    assert_eq!(frame(&mut reads).await.sequence, 1);
    for sequence in 2..=200 {
        eventually(|| publisher.demand(Instant::now().into_std()).ready).await;
        publish(&publisher, false, b"delta");
        assert_eq!(frame(&mut reads).await.sequence, sequence);
    }
    assert_eq!((stuck.stats().cuts, reads.stats().lost), (1, 0));
    assert!(stuck.backlog() <= 64);
}

#[tokio::test]
async fn quic_and_webtransport_viewers_name_their_machine() {
    let world = World::new();
    let identity = Identity::generate(UNIX_EPOCH + Duration::from_secs(1_800_000_000)).unwrap();
    let (endpoint, driver) =
        quic::bind(quic::Config::default(), identity, world.edge.media()).unwrap();
    let driver = tokio::spawn(driver.run());
    let remote =
        Remote { address: endpoint.local_addr(), certificates: endpoint.identity().hashes() };
    let anywhere = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let client = anywhere.at_machine(MACHINE);
    let mut native = client.connect(&remote, &world.ticket, Video::Streams).await.unwrap();
    let publisher = world.publisher().await;
    publish(&publisher, true, b"key");
    let mut web =
        client.connect_webtransport(&remote, &world.ticket, Video::Streams).await.unwrap();
    for connection in [&mut native, &mut web] {
        loop {
            match timeout(PATIENCE, connection.recv()).await.expect("nothing came") {
                Received::Packet(header, payload) => {
                    assert_eq!(
                        (header.session_id.as_ref(), &*payload),
                        (world.session.as_str(), &b"key"[..])
                    );
                    break;
                }
                Received::Control(ServerMessage::SessionOpened(opened)) => {
                    assert_eq!(opened.session_id, world.session.as_str());
                }
                Received::Control(_) => {}
                Received::Closed(error) => panic!("{error}"),
            }
        }
    }
    let mut lost = anywhere.connect(&remote, &world.ticket, Video::Streams).await.unwrap();
    let Received::Closed(error) = timeout(PATIENCE, lost.recv()).await.unwrap() else {
        panic!("it was let in without a machine")
    };
    assert_eq!(error.kind(), Kind::InvalidArgument);
    world.edge.close_all();
    endpoint.shut_down();
    timeout(PATIENCE, driver).await.expect("it did not end").unwrap();
}

/// A machine that changes what it sends on streams of pictures.
async fn lying(change: impl Fn(&mut [u8]) + Clone + Send + 'static) -> Event {
    let world = World::new();
    let (machine, relay) = Tunnel::pair(tunnel::Limits::default());
    let guest = world.guest.clone();
    tokio::spawn(async move {
        while let Some(mut stream) = machine.accept().await {
            let (guest, change) = (guest.clone(), change.clone());
            tokio::spawn(async move {
                let head = read_head(&mut stream).await.unwrap();
                if !matches!(head, Head::Watch(_)) {
                    guest.serve(head, stream).await;
                    return;
                }
                let (near, far) = tokio::io::duplex(64 << 10);
                tokio::spawn(async move { guest.serve(head, far).await.is_none() });
                let (mut up, mut down) = split(stream);
                let (mut from, mut to) = split(near);
                tokio::spawn(async move { copy(&mut up, &mut to).await });
                let mut connection = Whole::new(&mut from);
                while let Some(mut whole) = connection.next().await {
                    if whole[4..8] != [0; 4] {
                        change(&mut whole);
                    }
                    if down.write_all(&whole).await.is_err() || down.flush().await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    world.board.0.send_modify(|board| drop(board.insert(MACHINE.parse().unwrap(), relay)));
    let mut viewer = world.viewer().await;
    let publisher = world.publisher().await;
    publish(&publisher, true, b"key");
    next(&mut viewer).await
}

/// Takes packets and messages as they are.
struct Whole<'a, R>(&'a mut R);

impl<'a, R: tokio::io::AsyncRead + Unpin> Whole<'a, R> {
    fn new(from: &'a mut R) -> Self {
        Self(from)
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        use tokio::io::AsyncReadExt as _;
        let mut whole = vec![0; 8];
        self.0.read_exact(&mut whole).await.ok()?;
        let lengths = packet::Lengths::parse(whole[..8].try_into().unwrap()).unwrap();
        whole.resize(lengths.total(), 0);
        self.0.read_exact(&mut whole[8..]).await.ok()?;
        Some(whole)
    }
}

fn replace(whole: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let text = String::from_utf8_lossy(whole).into_owned();
    let at = text.find(from).expect("it is in the header");
    whole[at..at + from.len()].copy_from_slice(to.as_bytes());
}

#[tokio::test]
async fn a_machine_that_lies_about_its_frames_is_refused() {
    assert!(matches!(lying(|_| {}).await, Event::Packet(_)), "the way itself changes nothing");
    type Lie = fn(&mut [u8]);
    let lies: [(&str, Lie); 6] = [
        ("another width", |it| replace(it, r#""width_px":640"#, r#""width_px":641"#)),
        ("another epoch", |it| replace(it, r#""geometry_epoch":1"#, r#""geometry_epoch":9"#)),
        ("another codec", |it| replace(it, r#""codec":"h264""#, r#""codec":"bgra""#)),
        ("a sequence that stands", |it| replace(it, r#""sequence":1"#, r#""sequence":0"#)),
        ("more than is allowed", |it| it[4..8].copy_from_slice(&(60u32 << 20).to_be_bytes())),
        ("more than anything may be", |it| it[4..8].copy_from_slice(&u32::MAX.to_be_bytes())),
    ];
    for (what, change) in lies {
        let Event::Ended(error) = lying(change).await else { panic!("{what} was taken") };
        assert!(matches!(error.kind(), Kind::Relay | Kind::InvalidArgument), "{what}: {error:?}");
    }
}

#[tokio::test]
async fn a_relay_gets_nothing_that_it_was_shown_no_ticket_for() {
    let world = World::new();
    let tunnel = world.board.find(&MACHINE.parse().unwrap()).await.unwrap();
    let watch = |session: &SessionId| {
        let codec = Codec::H264;
        let session_id = session.to_string();
        let (baked_cursor, beyond_kbps) = (false, None);
        Head::Watch(spaceport_wire::relay_media::Watch {
            session_id,
            codec,
            baked_cursor,
            beyond_kbps,
        })
    };
    let mut stream = tunnel.open(&watch(&world.session)).await.unwrap();
    let mut read = Vec::new();
    let ended = timeout(PATIENCE, tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut read));
    drop(ended.await.expect("it goes on"));
    assert!(read.is_empty());
    let resume = spaceport_wire::relay_media::Resume {
        session_id: world.session.to_string(),
        key: Redacted::new("guess".into()),
    };
    world.pass().await;
    let stream = tunnel.open(&Head::Resume(resume)).await.unwrap();
    let answer = Reader::<_, FromSession>::new(stream).next().await.unwrap();
    assert!(matches!(answer, Some(FromSession::Refused(_))), "{answer:?}");
}

#[tokio::test]
async fn packets_have_the_machines_clock_here_too() {
    let world = World::new();
    let pass = world.pass().await;
    let now = pass.clock.now();
    let there = Duration::from_secs(5_000);
    assert!(now >= there && now < there + PATIENCE, "{now:?}");
}
