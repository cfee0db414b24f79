//! WHEP as draft-ietf-wish-whep-04 has it, with what it takes over from RFC 9725 (WHIP), and as
//! deployed players use it, on a real gateway and over real HTTP.
//!
//! Each test names the section it holds the gateway to, or the habit of players it allows for.

use std::collections::BTreeSet;

use serde_json::Value;
use spaceport_tests::{Answer, Gateway, Request, TOKEN, offer};

const SDP: &str = "application/sdp";
const FRAGMENT: &str = "application/trickle-ice-sdpfrag";

const ICE: &str =
    "a=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901\r\nm=video 9 RTP/AVP 0\r\na=mid:0\r\n";

fn send(
    gateway: &Gateway,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    Request { method, path, headers, body: body.as_bytes() }.send(gateway.http()).unwrap()
}

/// The endpoint's address. The test pattern needs no display.
const ENDPOINT: &str = "/whep?display=test-pattern";

fn post(gateway: &Gateway, kind: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {TOKEN}");
    send(gateway, "POST", ENDPOINT, &[("Authorization", &bearer), ("Content-Type", kind)], body)
}

/// A resource and its entity tag.
fn play(gateway: &Gateway) -> (String, String) {
    let answer = post(gateway, SDP, &offer("H264"));
    assert_eq!(answer.status, 201, "{}", answer.text());
    (answer.headers["location"].clone(), answer.headers["etag"].clone())
}

fn patch(gateway: &Gateway, resource: &str, tag: Option<&str>, body: &str) -> Answer {
    let mut headers = vec![("Content-Type", FRAGMENT)];
    headers.extend(tag.map(|tag| ("If-Match", tag)));
    send(gateway, "PATCH", resource, &headers, body)
}

/// RFC 9457, and every member that the gateway's errors have elsewhere.
fn problem(answer: &Answer) -> Value {
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["status"], answer.status);
    for member in ["type", "title", "detail", "kind", "retryable"] {
        assert!(!problem[member].is_null(), "{member} is missing: {problem}");
    }
    problem
}

/// Draft §4.1 and §4.4; RFC 9725 §4.2 and §4.3.1.
#[test]
fn an_offer_gets_an_answer_a_location_and_a_tag() {
    let gateway = Gateway::with_test_pattern();
    let answer = post(&gateway, SDP, &offer("H264"));
    assert_eq!(answer.status, 201);
    assert_eq!(answer.headers["content-type"], SDP);
    assert_eq!(answer.headers["accept-patch"], FRAGMENT);
    assert!(answer.headers["etag"].starts_with('"'));
    // Players resolve it against the request, or take it as it is if it begins with a slash.
    assert!(answer.headers["location"].starts_with("/whep/"));
    let sdp = answer.text();
    assert!(sdp.contains("a=sendonly") && sdp.contains("a=setup:passive"), "{sdp}");
    assert!(sdp.contains("a=rtcp-mux") && sdp.contains("a=group:BUNDLE 0"), "{sdp}");
    // The server may not trickle, so all ways to reach it are there: UDP, and the port of HTTP.
    let tcp = format!(" {} typ host tcptype passive", gateway.http().port());
    let port = gateway.endpoints()["webrtc"].as_str().unwrap().rsplit(':').next().unwrap();
    assert!(sdp.contains(&format!(" {port} typ host")) && sdp.contains(&tcp), "{sdp}");
}

/// RFC 9725 §4.7: 401 names the scheme. Draft §4.1: 406 when nothing in the offer can be sent.
#[test]
fn what_cannot_be_served_has_a_status_of_its_own_and_says_why() {
    let gateway = Gateway::with_test_pattern();
    let anonymous = send(&gateway, "POST", ENDPOINT, &[("Content-Type", SDP)], &offer("H264"));
    assert_eq!((anonymous.status, &*anonymous.headers["www-authenticate"]), (401, "Bearer"));
    assert_eq!(problem(&anonymous)["kind"], "unauthenticated");
    let wrong = [("Authorization", "Bearer wrong"), ("Content-Type", SDP)];
    assert_eq!(send(&gateway, "POST", ENDPOINT, &wrong, &offer("H264")).status, 401);

    let nothing = post(&gateway, SDP, &offer("H263"));
    assert_eq!(nothing.status, 406);
    assert_eq!(problem(&nothing)["cause"], "no_decoder");

    let kind = post(&gateway, "application/json", "{}");
    assert_eq!((kind.status, &*kind.headers["accept-post"]), (415, SDP));
    problem(&kind);
    // A player takes 400 to mean that the server should make the offer, so nothing else gets it.
    for body in ["", "{}", "v=0\r\n"] {
        assert_eq!(post(&gateway, SDP, body).status, 400, "{body:?}");
    }
    assert_eq!(post(&gateway, SDP, &"a=x\r\n".repeat(20_000)).status, 413);
    let put = send(&gateway, "PUT", "/whep", &[], "");
    assert_eq!((put.status, &*put.headers["allow"]), (405, "GET, HEAD, OPTIONS, POST"));
}

/// Draft §4.8 (OPTIONS) and its discovery by HEAD; a real OPTIONS is no preflight.
#[test]
fn the_endpoint_says_what_it_is_to_who_asks_without_a_token() {
    let gateway = Gateway::with_test_pattern();
    for path in ["/whep", "/whep/"] {
        let options = send(&gateway, "OPTIONS", path, &[], "");
        assert_eq!((options.status, &*options.headers["accept-post"]), (204, SDP), "{path}");
        let head = send(&gateway, "HEAD", path, &[], "");
        assert_eq!((head.status, &*head.headers["content-type"]), (200, SDP), "{path}");
        let get = send(&gateway, "GET", path, &[], "");
        assert_eq!((get.status, get.body.len()), (204, 0), "{path}");
    }
}

/// RFC 9725 §4.3.1: the tag, any tag; and players that leave it out. A 204 has no tag.
#[test]
fn candidates_are_taken_by_tag_and_from_players_that_know_of_none() {
    let gateway = Gateway::with_test_pattern();
    let (resource, tag) = play(&gateway);
    let candidate = "a=candidate:1 1 udp 1 127.0.0.1 9 typ host\r\n";
    let hidden = "a=candidate:1 1 udp 1 5b1f7c52-0000-4000-8000-1c2f3a4b5c6d.local 9 typ host\r\n";
    let many = candidate.repeat(200);
    for (tag, body) in [
        (Some(&*tag), candidate),
        (Some("*"), candidate),
        (None, candidate),
        (None, hidden),
        (None, "a=end-of-candidates\r\n"),
        (Some(&*tag), &*many),
    ] {
        let answer = patch(&gateway, &resource, tag, &format!("{ICE}{body}"));
        assert_eq!(answer.status, 204, "{tag:?} {}", answer.text());
        assert!(!answer.headers.contains_key("etag"));
    }
    let stale = patch(&gateway, &resource, Some("\"other\""), &format!("{ICE}{candidate}"));
    assert_eq!(stale.status, 412);
    assert_eq!(problem(&stale)["kind"], "precondition_failed");
    let kind = send(&gateway, "PATCH", &resource, &[("Content-Type", SDP)], &offer("H264"));
    assert_eq!((kind.status, &*kind.headers["accept-patch"]), (415, FRAGMENT));
    assert_eq!(patch(&gateway, &resource, None, "{}").status, 400);
}

/// RFC 9725 §4.3.3: 200, our new credentials and candidates, a new tag; the old one is stale then.
#[test]
fn new_credentials_restart_ice() {
    let gateway = Gateway::with_test_pattern();
    let (resource, tag) = play(&gateway);
    let fresh = ICE.replace("abcd", "efgh").replace("0123456789", "9876543210");
    // §4.3.1 asks for a tag; players that have none only ever add candidates.
    let untagged = patch(&gateway, &resource, None, &fresh);
    assert_eq!(untagged.status, 428);
    assert_eq!(problem(&untagged)["kind"], "precondition_failed");
    let answer = patch(&gateway, &resource, Some("*"), &fresh);
    assert_eq!((answer.status, &*answer.headers["content-type"]), (200, FRAGMENT));
    let fragment = answer.text();
    for line in ["a=ice-ufrag:", "a=ice-pwd:", "a=candidate:", "a=end-of-candidates"] {
        assert!(fragment.contains(line), "{line} is not in {fragment}");
    }
    let new = &answer.headers["etag"];
    assert_ne!(*new, tag);
    assert_eq!(patch(&gateway, &resource, Some(&tag), &fresh).status, 412);
    assert_eq!(patch(&gateway, &resource, Some(new), &fresh).status, 204, "nothing is new");
}

/// Draft §4.6: DELETE, whatever the tag. Players send no token with it.
#[test]
fn a_resource_ends_once() {
    let gateway = Gateway::with_test_pattern();
    let (resource, _) = play(&gateway);
    assert_eq!(send(&gateway, "GET", &resource, &[], "").status, 204);
    assert_eq!(send(&gateway, "HEAD", &resource, &[], "").status, 204);
    assert_eq!(send(&gateway, "POST", &resource, &[], "").status, 405);
    let other = [("If-Match", "\"other\"")];
    assert_eq!(send(&gateway, "DELETE", &resource, &other, "").status, 200);
    let again = send(&gateway, "DELETE", &resource, &[], "");
    assert_eq!(again.status, 410);
    assert_eq!(problem(&again)["cause"], "session_closed");
    for path in ["/whep/0123456789abcdef0123456789abcdef", "/whep/%ff"] {
        let unknown = send(&gateway, "DELETE", path, &[], "");
        assert_eq!(unknown.status, 404, "{path}");
        problem(&unknown);
    }
    let later = patch(&gateway, &resource, None, ICE);
    assert_eq!(later.status, 410);
}

/// RFC 9725 §4.8 leaves origins to the server: pages of any may play, and read every header they
/// need, of errors and preflights alike.
#[test]
fn pages_of_any_origin_may_play() {
    let gateway = Gateway::with_test_pattern();
    let (resource, _) = play(&gateway);
    let origin = ("Origin", "https://player.example");
    let asks = ("Access-Control-Request-Method", "PATCH");
    for (method, path, headers) in [
        ("OPTIONS", "/whep", vec![origin, asks]),
        ("OPTIONS", &*resource, vec![origin, asks]),
        ("POST", ENDPOINT, vec![origin]),
        ("GET", &*resource, vec![origin]),
        ("DELETE", "/whep/0123", vec![origin]),
    ] {
        let answer = send(&gateway, method, path, &headers, "");
        let lists = |name: &str| -> BTreeSet<String> {
            answer.headers[name].split(',').map(|item| item.trim().to_ascii_lowercase()).collect()
        };
        assert_eq!(answer.headers["access-control-allow-origin"], "*", "{method} {path}");
        for name in ["authorization", "content-type", "if-match"] {
            assert!(lists("access-control-allow-headers").contains(name), "{name}");
        }
        for name in ["location", "link", "etag", "accept-patch", "www-authenticate", "retry-after"]
        {
            assert!(lists("access-control-expose-headers").contains(name), "{name}");
        }
    }
}
