//! The endpoint from outside: our own client, and a QUIC client that keeps to nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use spaceport_session::{Launch, Limits, Open, Policy, Published, Publisher, Sessions};
use spaceport_types::{Bounds, Cause, Codec, Error, Kind, Redacted, SessionId, Target};
use spaceport_wire::control::{ClientMessage, GetStats, LifecycleEvent, ServerMessage};
use spaceport_wire::packet::Header;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::{
    Client, Config, Connection, Driver, Endpoint, Identity, Received, Remote, Video, bind,
};
use crate::Media;

const BOUNDS: Bounds = Bounds::new(0, 0, 64, 48);

/// How long a test waits for one thing.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Launched(Mutex<Vec<Publisher>>);

impl Launch for Launched {
    fn launch(&self, publisher: Publisher) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(publisher);
    }
}

/// An endpoint on loopback, and one session of one stream.
struct Server {
    sessions: Sessions,
    launched: Arc<Launched>,
    endpoint: Endpoint,
    driver: JoinHandle<()>,
    session: SessionId,
    ticket: Redacted<String>,
}

impl Server {
    fn start() -> Self {
        Self::with(Config::default())
    }

    fn with(config: Config) -> Self {
        let launched = Arc::new(Launched::default());
        let sessions = Sessions::new(Limits::default(), Arc::<Launched>::clone(&launched));
        let media = Media { sessions: sessions.clone(), clock: || Duration::ZERO };
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let identity = Identity::generate(now).unwrap();
        let (endpoint, driver): (_, Driver) = bind(config, identity, media).unwrap();
        let driver = tokio::spawn(driver.run());
        let opened = sessions.open(open(), Instant::now().into_std()).unwrap();
        let (session, ticket) = (opened.info.id, opened.ticket.secret);
        Self { sessions, launched, endpoint, driver, session, ticket }
    }

    fn remote(&self) -> Remote {
        Remote {
            address: self.endpoint.local_addr(),
            certificates: self.endpoint.identity().hashes(),
        }
    }

    async fn connect(&self, video: Video) -> Connection {
        let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        client.connect(&self.remote(), &self.ticket, video).await.unwrap()
    }

    /// Publishes a frame, once somebody watches.
    fn publish(&self, keyframe: bool, payload: impl Into<Bytes>) {
        let launched = self.launched.0.lock().unwrap_or_else(PoisonError::into_inner);
        let publisher = launched.first().expect("nobody has attached");
        let frame = Published {
            keyframe,
            codec_epoch: 1,
            geometry: publisher.geometry(BOUNDS, 0),
            captured_at: Duration::ZERO,
            encode_duration: Duration::ZERO,
            payload: payload.into(),
        };
        publisher.publish(frame, Instant::now().into_std());
    }

    async fn stop(self) {
        self.sessions.close_all();
        self.endpoint.shut_down();
        timeout(PATIENCE, self.driver).await.expect("it did not end").unwrap();
    }
}

fn open() -> Open {
    Open {
        target: Target::Display { display_id: "test".to_owned() },
        bounds: BOUNDS,
        codec: Codec::H264,
        max_fps: 30,
        max_dimension: 0,
        bitrate: None,
        policy: Policy::ViewOnly,
        ticket_ttl: None,
    }
}

async fn next(connection: &mut Connection) -> Received {
    timeout(PATIENCE, connection.recv()).await.expect("nothing came")
}

async fn message(connection: &mut Connection) -> ServerMessage {
    match next(connection).await {
        Received::Control(message) => message,
        other => panic!("{other:?}"),
    }
}

async fn packet(connection: &mut Connection) -> (Header<'static>, Bytes) {
    match next(connection).await {
        Received::Packet(header, payload) => (header, payload),
        other => panic!("{other:?}"),
    }
}

async fn closed(connection: &mut Connection) -> Error {
    loop {
        if let Received::Closed(error) = next(connection).await {
            return error;
        }
    }
}

/// Attaches, and returns once the server serves.
async fn attached(server: &Server, video: Video) -> Connection {
    let mut connection = server.connect(video).await;
    assert!(matches!(message(&mut connection).await, ServerMessage::Hello(_)));
    let ServerMessage::SessionOpened(opened) = message(&mut connection).await else {
        panic!("no session");
    };
    assert_eq!(opened.session_id, server.session.as_str());
    connection
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_on_streams_come_whole_and_in_order() {
    frames(Video::Streams).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_in_datagrams_come_whole_and_in_order() {
    frames(Video::Datagrams).await;
}

async fn frames(video: Video) {
    let server = Server::start();
    let mut connection = attached(&server, video).await;
    let sizes = [30_000, 1, 1_200, 5_000, 0, 60_000, 77];
    for (index, size) in sizes.into_iter().enumerate() {
        server.publish(index == 0, vec![index as u8; size]);
        let (header, payload) = packet(&mut connection).await;
        assert_eq!((header.keyframe, payload.len()), (index == 0, size));
        assert!(payload.iter().all(|&byte| byte == index as u8));
    }
    connection.say(&ClientMessage::GetStats(GetStats::default())).await.unwrap();
    let ServerMessage::Stats(stats) = message(&mut connection).await else { panic!("no stats") };
    assert_eq!(stats.frames_since_attach, sizes.len() as u64);

    server.sessions.close(&server.session).unwrap();
    let ServerMessage::Lifecycle(closing) = message(&mut connection).await else { panic!() };
    assert!(matches!(closing.event, LifecycleEvent::Closed { .. }));
    assert_eq!(closed(&mut connection).await.cause(), Some(Cause::SessionClosed));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_frames_loses_none_towards_a_viewer_that_keeps_up() {
    let server = Server::start();
    let mut connection = attached(&server, Video::Streams).await;
    server.publish(true, vec![0; 50_000]);
    packet(&mut connection).await;
    for round in 0..20 {
        for index in 0..10 {
            server.publish(false, vec![round * 10 + index; 4_000]);
        }
        for index in 0..10 {
            assert_eq!(packet(&mut connection).await.1[0], round * 10 + index);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_is_none_is_refused_and_says_so() {
    let server = Server::start();
    let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    for ticket in ["AAAAAAAAAAAAAAAAAAAAAA", "", &"A".repeat(1_000)] {
        let ticket = Redacted::new(ticket.to_owned());
        let mut refused = client.connect(&server.remote(), &ticket, Video::Streams).await.unwrap();
        assert_eq!(closed(&mut refused).await.kind(), Kind::Unauthenticated);
    }
    assert_eq!(server.sessions.counters().viewers.get(), 0);
    server.stop().await;
}
