//! A client of Spaces and a real gateway: what the gateway means is what the client gets.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use spaceport_spaces::verbs::{Add, Watch};
use spaceport_spaces::{Address, Client, Registry, Spaces};
use spaceport_testkit::Xvfb;
use spaceport_tests::{Folder, Gateway, Socket, TOKEN, Via, Window};
use spaceport_types::{Kind, Redacted, Result, Size};
use spaceport_wire::pb::{
    GetCapabilitiesRequest, GetCapabilitiesResponse, MediaTarget, OpenMediaRequest,
    OpenMediaResponse, media_target,
};

fn client(at: impl std::fmt::Display, token: &str) -> Client {
    let address = Address::parse(&format!("http://{at}")).unwrap();
    Client::new(&address, Some(&Redacted::new(token.to_owned()))).unwrap()
}

async fn capabilities(client: &Client) -> Result<GetCapabilitiesResponse> {
    client.call("SystemService/GetCapabilities", GetCapabilitiesRequest::default()).await
}

#[tokio::test]
async fn a_space_answers_and_its_refusals_come_back_whole() {
    let gateway = Gateway::with_test_pattern();
    let space = client(gateway.http(), TOKEN);
    assert!(capabilities(&space).await.unwrap().features.iter().any(|it| it.supported));

    let target = media_target::Target::DisplayId("nowhere".to_owned());
    let request = OpenMediaRequest {
        target: Some(MediaTarget { target: Some(target) }),
        ..OpenMediaRequest::default()
    };
    let opened: Result<OpenMediaResponse> = space.call("StreamService/OpenMedia", request).await;
    let report = opened.unwrap_err().report();
    assert_eq!(report.kind, Kind::NotFound);
    assert_eq!(report.context["display"], "nowhere");
    assert!(report.hint.is_some());

    let stranger = client(gateway.http(), "wrong");
    assert_eq!(capabilities(&stranger).await.unwrap_err().kind(), Kind::Unauthenticated);
}

#[tokio::test]
async fn a_space_is_added_listed_watched_and_removed() {
    let server = Xvfb::start(Size::new(800, 600)).unwrap();
    let _small = Window::open(server.display(), "Find", "Editor", (20, 30), (90, 60));
    let _large = Window::open(server.display(), "Notes", "Editor", (120, 90), (333, 201));
    let gateway = Gateway::with_display(server.display());
    let folder = Folder::new("spaces");
    let spaces = Spaces::new(Registry::new(folder.path()));
    let now = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_800_000_000);
    let add = |token: &str| Add {
        url: gateway.http().to_string(),
        token: Some(Redacted::new(token.to_owned())),
        name: Some("box".to_owned()),
        service: None,
    };
    let refused = spaces.add(add("wrong"), now).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Unauthenticated);
    assert_eq!(spaces.list().await.unwrap(), [], "nothing is added that does not open");

    let added = spaces.add(add(TOKEN), now).await.unwrap();
    assert_eq!(added.id, format!("direct:{}", gateway.http()));
    assert_eq!(added.added_at.as_deref(), Some("2027-01-15T08:00:00Z"));
    assert_eq!((&*added.os, &*added.power_state), ("linux", "running"));
    assert!(added.features.iter().any(|feature| feature == "desktop_stream"), "{added:?}");
    assert_eq!(spaces.list().await.unwrap(), std::slice::from_ref(&added));

    let windows = spaces.windows("box", Some("editor")).await.unwrap();
    let titles: Vec<_> = windows.iter().map(|window| &*window.title).collect();
    assert_eq!(titles, ["Notes", "Find"], "front to back");
    let watch = |app: &str| Watch {
        space: "box".to_owned(),
        app_name: Some(app.to_owned()),
        ticket_ttl: 999,
        ..Watch::default()
    };
    let endpoint = spaces.stream_endpoint(watch("EDITOR")).await.unwrap();
    assert_eq!(endpoint.frame_size, [333, 201], "the largest window of the app");
    let quic = endpoint.quic.unwrap();
    let webtransport = format!("https://127.0.0.1:{}/media", quic.port);
    assert_eq!(endpoint.webtransport_url, Some(webtransport));
    assert_eq!(quic.certificate_sha256.len(), 64);
    let path = endpoint.ws_url.strip_prefix(&format!("ws://{}", gateway.http())).unwrap();
    let mut socket = Socket::open(gateway.http(), path, Via::Query, None).await.unwrap();
    let (header, _) = socket.packet().await;
    assert_eq!((&header["width_px"], &header["keyframe"]), (&333.into(), &true.into()));

    let missing = spaces.stream_endpoint(watch("Browser")).await.unwrap_err().report();
    assert_eq!(missing.kind, Kind::NotFound);
    assert_eq!(missing.hint.as_deref(), Some("There are windows of: Editor"));

    spaces.close_stream("box", &endpoint.media_session_id).await.unwrap();
    assert_eq!(socket.closed().await.0, 4404);
    let status = spaces.status("box").await.unwrap();
    assert!(status.limitations.iter().all(|it| !it.limitation.is_empty()), "{status:?}");
    spaces.rename("box", "Desk").unwrap();
    assert_eq!(spaces.remove("Desk").unwrap().id, added.id);
    assert_eq!(spaces.status("box").await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn where_no_space_is_the_address_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = capabilities(&client(address, TOKEN)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::SpacesdNotAvailable);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(!format!("{error:?}").contains(TOKEN));

    // Something that speaks HTTP/1.1 and is no Space.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let page = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut some = [0; 24];
        stream.read_exact(&mut some).unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").unwrap();
    });
    let error = capabilities(&client(address, TOKEN)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::SpacesdNotAvailable, "{error:?}");
    page.join().unwrap();
}
