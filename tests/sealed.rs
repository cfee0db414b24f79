//! Pictures that only the link opens: sealed in the guest, opened in the page, read nowhere between.

use serde_json::{Value, json};
use spaceport_tests::{Browser, Gateway, Request, Script, Socket, Start, offer};
use spaceport_types::MediaKey;
use spaceport_wire::packet::Header;
use spaceport_wire::sealed::Opener;

/// How each unit of H.264 begins (ITU-T H.264 Annex B).
const START_CODE: &[u8] = &[0, 0, 0, 1];

fn sealed() -> Gateway {
    Gateway::start(Start { test_pattern: true, arguments: &["--sealed"], ..Start::default() })
}

fn plays(browser: Browser, transport: &str) {
    let gateway = sealed();
    let url = gateway.viewer_url(&format!("target=test-pattern&transport={transport}"));
    let seen = Script::browser("pattern.mjs", browser, &[&url, "2000"]).hear();
    assert_eq!(seen["transport"], transport);
    assert_eq!(seen["complaints"], json!([]), "the page or the browser complained");
    assert_eq!(seen["unreadable"], 0, "a picture came out damaged");
    let pictures = seen["pictures"].as_array().unwrap();
    assert!(pictures.len() > 20, "{} pictures in two seconds", pictures.len());
}

#[test]
fn chromium_opens_them_over_websocket() {
    plays(Browser::Chromium, "ws");
}

#[test]
fn chromium_opens_them_over_webtransport() {
    plays(Browser::Chromium, "webtransport");
}

#[test]
fn firefox_opens_them_over_websocket() {
    plays(Browser::Firefox, "ws");
}

#[test]
fn the_page_chooses_a_way_that_carries_them() {
    let gateway = sealed();
    let url = gateway.viewer_url("target=test-pattern");
    let seen = Script::browser("pattern.mjs", Browser::Chromium, &[&url, "1000"]).hear();
    assert_ne!(seen["transport"], "whep");
    assert_eq!(seen["unreadable"], 0, "a picture came out damaged");
}

/// What whoever carries the frames has: all that is sent, and not the key.
#[tokio::test]
async fn what_is_sent_is_no_picture_without_the_key() {
    let gateway = sealed();
    let (answer, key) = open(&gateway);
    assert_eq!(answer["sealed"], true);
    let ticket = answer["ticket"].as_str().unwrap();
    let mut socket = Socket::attach(gateway.http(), ticket).await.unwrap();
    let opened = socket.control("session_opened").await;
    let capabilities = opened["capabilities"].as_array().unwrap();
    assert!(capabilities.contains(&json!("sframe.v1")), "{opened}");
    let mut opener = Opener::new(MediaKey::from_text(&key).unwrap());
    for _ in 0..30 {
        let (header, payload) = socket.packet().await;
        let header: Header<'_> = serde_json::from_value(header).unwrap();
        assert!(!contains(&payload, START_CODE), "a picture in the open");
        let picture = opener.open(&header, &payload).unwrap();
        assert!(picture.starts_with(START_CODE) || picture.starts_with(&START_CODE[1..]));
    }
    socket.leave().await;
}

#[test]
fn webrtc_is_refused_because_it_would_show_nothing() {
    let gateway = sealed();
    let (answer, _) = open(&gateway);
    let bearer = format!("Bearer {}", answer["ticket"].as_str().unwrap());
    let headers = [("authorization", &*bearer), ("content-type", "application/sdp")];
    let offer = offer("H264");
    let request =
        Request { method: "POST", path: "/whep", headers: &headers, body: offer.as_bytes() };
    let refused = request.send(gateway.http()).unwrap();
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert_eq!(refused.json()["kind"], "capability_missing");
}

#[test]
fn a_link_without_its_key_or_with_another_says_so() {
    let gateway = sealed();
    let url = gateway.viewer_url("target=test-pattern&transport=ws");
    let (_, key) = open(&gateway);
    let without = url.replace(&format!("&key={key}"), "");
    let other = url.replace(&key, &"0".repeat(64));
    for link in [without, other] {
        assert_ne!(link, url);
        let seen = Script::browser("cards.mjs", Browser::Chromium, &["refused", &link]).hear();
        assert_eq!(seen["title"], "This link does not open what comes", "{seen}");
    }
}

#[test]
fn a_key_for_pictures_in_the_open_is_not_ignored() {
    let gateway = Gateway::with_test_pattern();
    let key = "0".repeat(64);
    let link = gateway.viewer_url(&format!("target=test-pattern&transport=ws&key={key}"));
    let seen = Script::browser("cards.mjs", Browser::Chromium, &["refused", &link]).hear();
    // Else somebody between could show this page what they like.
    assert_eq!(seen["title"], "This link does not open what comes", "{seen}");
}

/// Opens the page's session, as the page does. What the server answers, and the key in the link.
fn open(gateway: &Gateway) -> (Value, String) {
    let url = gateway.viewer_url("");
    let (_, secrets) = url.split_once("#ticket=").unwrap();
    let (ticket, key) = secrets.split_once("&key=").unwrap();
    let bearer = format!("Bearer {ticket}");
    let headers = [("authorization", &*bearer), ("content-type", "application/json")];
    let body = br#"{"display_id":"test-pattern"}"#;
    let request = Request { method: "POST", path: "/viewer/open", headers: &headers, body };
    (request.send(gateway.http()).unwrap().json(), key.to_owned())
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
