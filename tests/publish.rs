//! `spaceport publish` sends a session to WHIP endpoints that others wrote, on WebRTC stacks of their own
//! (aiortc, Chromium), and says in one typed error why an endpoint does not take it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{Browser, Script, Window, assert_shows_the_pattern, binary};
use spaceport_types::Size;

const WHIP_TOKEN: &str = "the-token-of-an-endpoint";

/// `spaceport publish` to a port of this machine.
fn command(port: u16, path: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .args(["publish", "--json", "--whip", &format!("http://127.0.0.1:{port}{path}")])
        .args(arguments)
        .env("SPACEPORT_WHIP_TOKEN", WHIP_TOKEN)
        .env("SPACEPORT_LOG", "warn,spaceport=debug")
        .env_remove("DISPLAY");
    command
}

fn publish(port: u16, arguments: &[&str]) -> Script {
    Script::spawn(command(port, "/whip/a-secret-path", arguments))
}

/// What is published until it is told to end says so, and what it has sent.
fn end(mut publishing: Script) -> Value {
    publishing.signal(Signal::INT);
    publishing.hear()
}

fn aiortc(port: u16, token: &str, codec: &str) -> (Script, u16) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../target/venv-aiortc/bin/python");
    assert!(python.exists(), "aiortc is missing: run `scripts/setup test`");
    let mut command = Command::new(python);
    command.arg(root.join("e2e/aiortc_whip.py")).args([&port.to_string(), token, codec]);
    let mut script = Script::spawn(command);
    let port = script.hear()["port"].as_u64().unwrap();
    (script, port.try_into().unwrap())
}

#[test]
fn aiortc_decodes_what_is_published_and_hears_of_its_end() {
    let (mut endpoint, port) = aiortc(0, WHIP_TOKEN, "h264");
    let mut publishing = publish(port, &["--test-pattern"]);
    let offered = endpoint.hear();
    assert_eq!(offered["directions"], json!(["a=sendonly"]), "{offered}");
    assert_eq!(offered["codecs"][0], "H264/90000", "{offered}");
    assert_eq!(offered["content_type"], "application/sdp", "{offered}");
    assert_eq!(publishing.hear()["codec"], "h264");
    let playing = endpoint.hear();
    assert_shows_the_pattern(&playing);
    // The number in the corner of each picture can be read, and counts up.
    let counters: Vec<u64> = serde_json::from_value(playing["counters"].clone()).unwrap();
    assert!(counters.is_sorted() && counters.first() < counters.last(), "{counters:?}");
    let ended = end(publishing);
    assert_eq!(ended["state"], "ended");
    assert!(ended["frames"].as_u64().unwrap() >= 10, "{ended}");
    let said = [endpoint.hear(), endpoint.hear()];
    assert!(said.iter().any(|said| said["event"] == "deleted"), "{said:?}");
}

#[test]
fn an_endpoint_without_h264_gets_what_it_takes() {
    let (mut endpoint, port) = aiortc(0, WHIP_TOKEN, "vp8");
    let mut publishing = publish(port, &["--test-pattern"]);
    endpoint.hear();
    assert_eq!(publishing.hear()["codec"], "vp8");
    assert_shows_the_pattern(&endpoint.hear());
}

#[test]
fn chromium_shows_what_is_published() {
    let mut endpoint = Script::browser("whip_receiver.mjs", Browser::Chromium, &[]);
    let port = endpoint.hear()["port"].as_u64().unwrap().try_into().unwrap();
    let mut publishing = publish(port, &["--test-pattern"]);
    assert_eq!(publishing.hear()["codec"], "h264");
    assert_shows_the_pattern(&endpoint.hear());
    assert_eq!(end(publishing)["state"], "ended");
    assert!(endpoint.hear()["deleted"].is_string());
    endpoint.go_on();
}

#[test]
fn one_window_is_published_at_its_own_size() {
    let server = Xvfb::start(Size::new(800, 600)).unwrap();
    let _window =
        Window::open(server.display(), "The one that is meant", "Meant", (50, 60), (320, 240));
    let (mut endpoint, port) = aiortc(0, WHIP_TOKEN, "h264");
    let arguments = ["--x-display", server.display(), "--window", "is meant"];
    let mut publishing = publish(port, &arguments);
    endpoint.hear();
    assert_eq!(publishing.hear()["shows"], "The one that is meant");
    let last = &endpoint.hear()["last"];
    assert_eq!((&last["width"], &last["height"]), (&json!(320), &json!(240)), "{last}");
    drop(publishing);
    let nothing = run(port, "/whip", &["--x-display", server.display(), "--window", "another"]);
    assert_eq!(nothing["error"]["kind"], "not_found", "{nothing}");
    assert!(nothing["error"]["context"]["known"].as_str().unwrap().contains("is meant"));
}

#[test]
fn a_stream_comes_back_to_an_endpoint_that_vanished_and_returned() {
    let (mut endpoint, port) = aiortc(0, WHIP_TOKEN, "h264");
    let mut publishing = publish(port, &["--test-pattern"]);
    assert_eq!(publishing.hear()["state"], "connected");
    endpoint.hear();
    assert_eq!(endpoint.hear()["event"], "playing");
    // Killed, it says goodbye to nobody.
    endpoint.signal(Signal::KILL);
    drop(endpoint);
    let mut states = Vec::new();
    while states.last() != Some(&json!("retrying")) {
        states.push(publishing.hear()["state"].clone());
    }
    assert_eq!(states[0], "lost", "{states:?}");
    let (mut endpoint, _) = aiortc(port, WHIP_TOKEN, "h264");
    while publishing.hear()["state"] != "connected" {}
    assert_eq!(endpoint.hear()["event"], "offered");
    assert_shows_the_pattern(&endpoint.hear());
}

#[test]
fn an_endpoint_that_refuses_the_token_is_not_asked_again() {
    let (_endpoint, port) = aiortc(0, "another-token", "h264");
    let said = run(port, "/whip/a-secret-path", &["--test-pattern"]);
    assert_eq!(said["error"]["kind"], "unauthenticated", "{said}");
    assert_eq!(said["error"]["context"]["status"], "401", "{said}");
}

/// Runs it to its end, and returns the last thing it says. No secret is in any of it.
fn run(port: u16, path: &str, arguments: &[&str]) -> Value {
    let output = command(port, path, arguments).stdin(Stdio::null()).output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for secret in ["a-secret-path", WHIP_TOKEN] {
        assert!(!stdout.contains(secret) && !stderr.contains(secret), "{stdout}{stderr}");
    }
    assert!(!output.status.success(), "{stdout}");
    serde_json::from_str(stdout.lines().last().unwrap_or_else(|| panic!("{stderr}"))).unwrap()
}

/// An endpoint that says what it is told to, whatever it is asked. It ends with the test.
struct Canned {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    /// `answer` makes an answer of a whole request; `None` is none.
    fn start(answer: impl Fn(&str) -> Option<String> + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            // Those that are not answered are kept open.
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = read(&mut stream);
                log.lock().unwrap().push(request.clone());
                match answer(&request) {
                    Some(answer) => drop(stream.write_all(answer.as_bytes())),
                    None => kept.push(stream),
                }
            }
        });
        Self { port, asked }
    }

    fn fixed(answer: &str) -> Self {
        let answer = answer.to_owned();
        Self::start(move |_| Some(answer.clone()))
    }

    /// The first line of each request.
    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|request| request.lines().next().unwrap().to_owned()).collect()
    }
}

fn read(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request).unwrap() == 0 {
            return request;
        }
    }
    let length = request.to_lowercase().lines().find_map(|line| {
        line.strip_prefix("content-length:").and_then(|length| length.trim().parse().ok())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    request + &String::from_utf8(body).unwrap()
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// Tries once.
fn refused(endpoint: &Canned) -> Value {
    let said = run(endpoint.port, "/whip/a-secret-path", &["--test-pattern", "--retry-for", "0"]);
    let error = said["error"].clone();
    assert!(error["hint"].is_string() && error["message"].is_string(), "{said}");
    error
}

#[test]
fn each_refusal_has_its_cause_and_its_next_step() {
    for (status, kind, cause) in [
        ("403 Forbidden", "permission_denied", Value::Null),
        ("404 Not Found", "not_found", Value::Null),
        ("406 Not Acceptable", "stream", json!("no_decoder")),
        ("415 Unsupported Media Type", "stream", json!("publish_refused")),
        ("422 Unprocessable", "stream", json!("publish_refused")),
    ] {
        let endpoint = Canned::fixed(&response(status, "", ""));
        let error = refused(&endpoint);
        assert_eq!((&error["kind"], &error["cause"]), (&json!(kind), &cause), "{error}");
        assert_eq!(endpoint.asked(), ["POST /whip/a-secret-path HTTP/1.1"]);
    }
}

#[test]
fn an_endpoint_that_is_busy_says_when_to_come_back() {
    let busy = response("503 Service Unavailable", "Retry-After: 7\r\n", "");
    let error = refused(&Canned::fixed(&busy));
    assert_eq!(error["cause"], "publish_unavailable", "{error}");
    assert_eq!((&error["retry_after_ms"], &error["retryable"]), (&json!(7_000), &json!(true)));
}

#[test]
fn a_page_is_no_endpoint() {
    let page = response("201 Created", "Content-Type: text/html\r\n", "<!doctype html>");
    let error = refused(&Canned::fixed(&page));
    assert_eq!(error["cause"], "publish_refused", "{error}");
    assert!(error["message"].as_str().unwrap().contains("text/html"), "{error}");
}

#[test]
fn an_answer_that_is_none_is_refused_and_what_it_created_is_deleted() {
    let sdp = "Content-Type: application/sdp\r\nLocation: /made/1\r\n";
    for body in ["v=0\r\n", "v=0\r\nm=\r\n", "v=0\r\nno line\r\n"] {
        let answer = response("201 Created", sdp, body);
        let endpoint = Canned::fixed(&answer);
        let error = refused(&endpoint);
        assert_eq!(error["cause"], "publish_refused", "{body:?}: {error}");
        assert_eq!(
            endpoint.asked(),
            ["POST /whip/a-secret-path HTTP/1.1", "DELETE /made/1 HTTP/1.1"]
        );
        let deleted = endpoint.asked.lock().unwrap()[1].to_lowercase();
        assert!(deleted.contains(&format!("authorization: bearer {WHIP_TOKEN}")), "{deleted}");
    }
}

#[test]
fn an_endpoint_that_never_answers_is_given_up() {
    let error = refused(&Canned::start(|_| None));
    assert_eq!(error["cause"], "publish_unavailable", "{error}");
}

#[test]
fn nobody_there_is_said_so_with_the_address_and_not_the_path() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let said = run(port, "/whip/a-secret-path", &["--test-pattern", "--retry-for", "0"]);
    assert_eq!(said["error"]["cause"], "publish_unavailable", "{said}");
    assert_eq!(said["error"]["context"]["address"], format!("127.0.0.1:{port}"), "{said}");
}

#[test]
fn redirects_without_end_have_one() {
    let round = response("307 Temporary Redirect", "Location: /whip/again\r\n", "");
    let endpoint = Canned::fixed(&round);
    let error = refused(&endpoint);
    assert_eq!(error["cause"], "publish_refused", "{error}");
    assert_eq!(endpoint.asked().len(), 6);
}

#[test]
fn a_redirect_is_followed_with_the_offer_and_the_token() {
    let (mut receiver, port) = aiortc(0, WHIP_TOKEN, "h264");
    let there = format!("Location: http://127.0.0.1:{port}/whip/there\r\n");
    let first = Canned::fixed(&response("308 Permanent Redirect", &there, ""));
    let mut publishing = publish(first.port, &["--test-pattern"]);
    assert_eq!(receiver.hear()["event"], "offered");
    assert_eq!(publishing.hear()["state"], "connected");
    assert_shows_the_pattern(&receiver.hear());
}

/// Checks go to the first few addresses of an answer, however many it names.
#[test]
fn an_answer_with_a_thousand_addresses_sends_checks_to_few() {
    let socket = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (first, last) = (socket(), socket());
    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let mut ports = vec![port(&first)];
    ports.extend((0..998).map(|at| 20_000 + at));
    ports.push(port(&last));
    let endpoint = Canned::start(move |offer| {
        let mid = offer.lines().find_map(|line| line.strip_prefix("a=mid:"));
        let Some(mid) = mid else { return Some(response("200 OK", "", "")) };
        let fingerprint = ["AB"; 32].join(":");
        let mut sdp = format!(
            "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\na=group:BUNDLE {mid}\r\n\
             m=video 9 UDP/TLS/RTP/SAVPF 102\r\nc=IN IP4 0.0.0.0\r\na=mid:{mid}\r\na=recvonly\r\n\
             a=rtcp-mux\r\na=rtpmap:102 H264/90000\r\na=fmtp:102 packetization-mode=1;profile-level-id=42e01f\r\n\
             a=ice-ufrag:abcd\r\na=ice-pwd:0123456789012345678901\r\na=setup:active\r\n\
             a=fingerprint:sha-256 {fingerprint}\r\n"
        );
        for (at, port) in ports.iter().enumerate() {
            sdp += &format!("a=candidate:{at} 1 udp 9 127.0.0.1 {port} typ host\r\n");
        }
        let headers = "Content-Type: application/sdp\r\nLocation: /made/1\r\n";
        Some(response("201 Created", headers, &sdp))
    });
    let error = refused(&endpoint);
    assert_eq!(error["cause"], "ice_failed", "{error}");
    assert_eq!(endpoint.asked().last().unwrap(), "DELETE /made/1 HTTP/1.1");
    let checked = |socket: &UdpSocket| {
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.recv(&mut [0; 2048]).is_ok()
    };
    assert!(checked(&first) && !checked(&last));
}
