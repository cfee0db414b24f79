//! Media over QUIC from outside: a real gateway, and our own client on the way in that `OpenMedia` names.

use std::time::Duration;

use spaceport_testkit::Xvfb;
use spaceport_tests::{Folder, Gateway, Screen, Socket, Start, measured};
use spaceport_transport::quic::{Client, Connection, Received, Remote, Video};
use spaceport_types::{Cause, Codec, Redacted, Size};
use spaceport_wire::control::{ClientMessage, GetStats, ServerMessage, SessionRef};
use spaceport_wire::packet::Header;
use spaceport_wire::pb::{GetCapabilitiesRequest, GetCapabilitiesResponse, OpenMediaResponse};
use tokio::time::{Instant, timeout};

/// How long a test waits for one thing.
const PATIENCE: Duration = Duration::from_secs(5);

async fn watch(gateway: &Gateway, opened: &OpenMediaResponse, video: Video) -> Connection {
    let quic = opened.quic.as_ref().expect("no way in over QUIC");
    assert_eq!(quic.alpn, "rcdp/2");
    let remote = Remote {
        address: (gateway.http().ip(), u16::try_from(quic.port).unwrap()).into(),
        certificates: vec![quic.certificate_sha256.clone()],
    };
    let client = Client::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let ticket = Redacted::new(opened.ticket.clone());
    client.connect(&remote, &ticket, video).await.unwrap()
}

async fn next(connection: &mut Connection) -> Received {
    timeout(PATIENCE, connection.recv()).await.expect("nothing came")
}

async fn packet(connection: &mut Connection) -> (Header<'static>, bytes::Bytes) {
    loop {
        match next(connection).await {
            Received::Packet(header, payload) => return (header, payload),
            Received::Control(_) => {}
            Received::Closed(error) => panic!("closed instead: {error}"),
        }
    }
}

#[tokio::test]
async fn the_pattern_comes_on_streams() {
    pattern(Video::Streams).await;
}

#[tokio::test]
async fn the_pattern_comes_in_datagrams() {
    pattern(Video::Datagrams).await;
}

async fn pattern(video: Video) {
    let gateway = Gateway::with_test_pattern();
    let opened = gateway.open("");
    let began = Instant::now();
    let mut connection = watch(&gateway, &opened, video).await;
    let Received::Control(ServerMessage::Hello(hello)) = next(&mut connection).await else {
        panic!("no hello");
    };
    assert_eq!(hello.selected_version, 2);
    let Received::Control(ServerMessage::SessionOpened(session)) = next(&mut connection).await
    else {
        panic!("no session");
    };
    assert_eq!(session.session_id, opened.media_session_id);

    let (first, payload) = packet(&mut connection).await;
    measured(format_args!("{video:?}: first frame {:?} after connecting", began.elapsed()));
    assert!(first.keyframe);
    assert_eq!((first.codec, &*first.session_id), (Codec::H264, &*opened.media_session_id));
    // Annex B with its parameter sets (ITU-T H.264, table 7-1).
    assert!(payload.windows(5).any(|unit| unit[..4] == [0, 0, 0, 1] && unit[4] & 0x1f == 7));
    let mut last = first.sequence;
    for _ in 0..30 {
        let (header, _) = packet(&mut connection).await;
        assert!(header.sequence > last, "{} after {last}", header.sequence);
        last = header.sequence;
    }

    connection.say(&ClientMessage::RequestKeyframe(SessionRef::default())).await.unwrap();
    let keyframe = async { while !packet(&mut connection).await.0.keyframe {} };
    timeout(PATIENCE, keyframe).await.expect("no keyframe came");

    gateway.close(&opened.media_session_id);
    let error = loop {
        if let Received::Closed(error) = next(&mut connection).await {
            break error;
        }
    };
    assert_eq!(error.cause(), Some(Cause::SessionClosed));
}

#[tokio::test]
async fn a_socket_and_a_quic_viewer_share_one_encode() {
    let xvfb = Xvfb::start(Size::new(640, 480)).unwrap();
    Screen::connect(xvfb.display()).paint(0x20_60_a0, 1);
    let gateway = Gateway::with_display(xvfb.display());
    let opened = gateway.open("");
    let mut socket = Socket::attach(gateway.http(), &opened.ticket).await.unwrap();
    let (header, _) = socket.packet().await;
    assert_eq!(header["keyframe"], true);
    let mut connection = watch(&gateway, &opened, Video::Streams).await;
    let (header, _) = packet(&mut connection).await;
    assert!(header.keyframe);
    assert_eq!(gateway.metric("spaceport_pipelines"), 1);
    assert_eq!(gateway.metric("spaceport_viewers"), 2);
    connection.say(&ClientMessage::GetStats(GetStats::default())).await.unwrap();
    loop {
        match next(&mut connection).await {
            Received::Control(ServerMessage::Stats(stats)) => {
                assert!(stats.frames_since_attach >= 1);
                break;
            }
            Received::Closed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_certificate_outlives_a_restart_and_its_file_is_private() {
    let folder = Folder::new("state");
    let start = Start { state: Some(folder.path()), test_pattern: true, ..Start::default() };
    let gateway = Gateway::start(start);
    let capabilities: GetCapabilitiesResponse =
        gateway.call("SystemService/GetCapabilities", &GetCapabilitiesRequest::default()).unwrap();
    let quic = gateway.open("").quic.unwrap();
    assert_eq!(capabilities.side_channels.unwrap().media_quic_port, quic.port);
    let feature = capabilities.features.iter().find(|feature| feature.name == "quic_media");
    assert!(feature.unwrap().supported);
    let path = folder.path().join("quic-certificate.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let kept = std::fs::read_to_string(&path).unwrap();

    drop(gateway);
    let again = Gateway::start(start);
    assert_eq!(again.open("").quic.unwrap().certificate_sha256, quic.certificate_sha256);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), kept);
    assert!(!again.log().contains("anew"), "{}", again.log());
}
