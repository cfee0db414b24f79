//! Networks that drop most of what is sent, or all of it: who can still watch does so within two
//! seconds, and who cannot is told why within five.
//!
//! Real ones: the gateway and the browser are in network namespaces with a cable between, and what is
//! blocked is dropped by the kernel without a word.

use std::process::Command;

use serde_json::{Value, json};
use spaceport_tests::{Browser, Gateway, Network, Script, Start, measured};

/// Within this, in milliseconds, there is a picture.
const PICTURE: u64 = 2_000;

/// Within this, in milliseconds, there is a reason.
const REASON: u64 = 5_000;

fn gateway(network: &Network) -> Gateway {
    Gateway::start(Start { test_pattern: true, host: Some(network.near()), ..Start::default() })
}

/// The page in a browser on the far machine.
fn page(network: &Network, scenario: &str, url: &str, secure: bool) -> Script {
    let mut node = network.far("node");
    if secure {
        let origin = url.split("/viewer").next().unwrap();
        node.env("SECURE", origin);
    }
    Script::browser_by(node, "blocked.mjs", Browser::Chromium, &[scenario, url])
}

fn url(gateway: &Gateway, parameters: &str) -> String {
    gateway.viewer_url(&format!("target=test-pattern{parameters}"))
}

/// How the page gets its picture on a network that was prepared by `block`.
fn starts(block: impl FnOnce(&Network, &Gateway), parameters: &str, secure: bool) -> Option<Value> {
    let network = Network::new()?;
    let gateway = gateway(&network);
    block(&network, &gateway);
    let mut page = page(&network, "starts", &url(&gateway, parameters), secure);
    let said = page.hear();
    measured(format_args!("{said}"));
    assert_eq!(said["secure"], secure);
    assert!(said["after"].as_u64().unwrap() <= PICTURE, "{said}");
    Some(said)
}

#[test]
fn a_page_on_an_open_network_takes_webtransport() {
    let Some(said) = starts(|_, _| {}, "", true) else { return };
    assert!(["webtransport", "ws"].contains(&said["transport"].as_str().unwrap()), "{said}");
}

#[test]
fn without_udp_the_page_takes_the_socket() {
    let Some(said) = starts(|network, _| network.block("udp"), "", true) else { return };
    assert_eq!(said["transport"], "ws");
}

#[test]
fn without_udp_webrtc_goes_by_tcp() {
    let udp = |network: &Network, _: &Gateway| network.block("udp");
    let Some(said) = starts(udp, "&transport=whep", false) else { return };
    assert_eq!(said["transport"], "whep");
}

#[test]
fn where_one_tcp_port_passes_the_page_takes_the_socket() {
    let Some(said) = starts(only_the_tcp_port, "", true) else { return };
    assert_eq!(said["transport"], "ws");
}

/// A page that is not secure has no WebCodecs, so WebRTC is all there is.
#[test]
fn where_one_tcp_port_passes_webrtc_goes_by_it() {
    let Some(said) = starts(only_the_tcp_port, "", false) else { return };
    assert_eq!(said["transport"], "whep");
}

fn only_the_tcp_port(network: &Network, gateway: &Gateway) {
    network.allow_tcp(gateway.http().port());
    network.cut();
}

#[test]
fn behind_a_proxy_that_passes_http_alone_the_page_says_that_udp_is_blocked() {
    let Some(network) = Network::new() else { return };
    let gateway = gateway(&network);
    let mut proxy = Command::new("node");
    proxy.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/http_only.mjs"));
    proxy.arg(gateway.http().to_string());
    let mut proxy = Script::spawn(proxy);
    let port = proxy.hear()["port"].as_u64().unwrap();
    network.allow_tcp(port.try_into().unwrap());
    network.cut();
    let url =
        url(&gateway, "").replace(&format!(":{}", gateway.http().port()), &format!(":{port}"));
    for secure in [true, false] {
        let said = page(&network, "refused", &url, secure).hear();
        measured(format_args!("{said}"));
        let failure = &said["failure"];
        assert_eq!((&failure["kind"], &failure["code"]), (&json!("stream"), &json!("udp_blocked")));
        assert_ne!(failure["hint"], "");
        assert!(said["card"].as_str().unwrap().contains("udp_blocked"), "{said}");
        assert!(said["after"].as_u64().unwrap() <= REASON, "{said}");
    }
}

#[test]
fn where_nothing_passes_any_more_the_page_says_so_and_goes_on_once_it_does() {
    let Some(network) = Network::new() else { return };
    let gateway = gateway(&network);
    let mut page = page(&network, "cut", &url(&gateway, ""), true);
    let playing = page.hear();
    network.cut();
    page.go_on();
    let said = page.hear();
    measured(format_args!("{playing} {said}"));
    let failure = &said["failure"];
    assert_eq!((&failure["kind"], &failure["code"]), (&json!("stream"), &json!("guest_offline")));
    assert_ne!(failure["hint"], "");
    assert!(said["after"].as_u64().unwrap() <= REASON, "{said}");
    network.mend();
    page.go_on();
    assert_eq!(page.hear()["card"], false, "the card stayed");
}
