//! A client of Spaces and a real gateway: what the gateway means is what the client gets.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use spaceport_spaces::{Address, Client};
use spaceport_tests::{Gateway, TOKEN};
use spaceport_types::{Kind, Redacted, Result};
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
