//! An app session moves between two real gateways: agreed to by a person, whole or not at all.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_tests::{Folder, Relay, Request, TOKEN, Tap, binary, memory_holds, wait_until};

/// Something that must not be found where it has no business.
const SECRET: &str = "canary-7f3d9b52-in-a-bookmark";

/// Bytes of the large extension; they do not compress, so a bundle is as long.
const LARGE: usize = 48 << 20;

/// The slowest that a step of these tests may be on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// One machine: a home, a state directory, and programs that have both.
struct Machine {
    folder: Folder,
}

impl Machine {
    fn new(name: &str) -> Self {
        let machine = Self { folder: Folder::new(name) };
        for folder in ["home", "runtime"] {
            fs::create_dir(machine.path(folder)).unwrap();
        }
        machine
    }

    /// One that Chromium was used on, as far as a provider sees.
    fn with_profile(name: &str, large: bool) -> Self {
        let machine = Self::new(name);
        let profile = machine.profile();
        fs::create_dir_all(&profile).unwrap();
        fs::write(profile.join("Bookmarks"), json!({ "note": SECRET }).to_string()).unwrap();
        fs::write(profile.join("Preferences"), "{}").unwrap();
        if large {
            let folder = profile.join("Extensions/abcdefghijklmnopabcdefghijklmnop/1.0_0");
            fs::create_dir_all(&folder).unwrap();
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            let bytes: Vec<u8> = (0..LARGE / 8)
                .flat_map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state.to_le_bytes()
                })
                .collect();
            fs::write(folder.join("data.bin"), bytes).unwrap();
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn profile(&self) -> PathBuf {
        self.path("home/.config/chromium/Default")
    }

    /// A `spaceport` command as this machine's person runs it.
    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .env("SPACEPORT_STATE_DIR", self.path("state"))
            .env("SPACEPORT_TOKEN", TOKEN)
            .stdin(Stdio::null());
        command
    }

    /// Runs one with `--json`, without a terminal, as an agent does.
    fn run(&self, arguments: &[&str]) -> (i32, Value) {
        let arguments = [&["--json"], arguments].concat();
        // A session of its own has no terminal, whatever the tests were started from.
        let wrapped = [&["--wait", binary().to_str().unwrap()], &arguments[..]].concat();
        let output = self.command(Path::new("setsid"), &wrapped).output().unwrap();
        (output.status.code().unwrap(), parse(&output))
    }

    /// Runs one at a terminal, answers its question, and returns what was on the screen.
    fn at_terminal(&self, arguments: &str, question: &str, answer: &str) -> String {
        let line = format!("{} {arguments}", binary().display());
        let mut child = self
            .command(Path::new("script"), &["--quiet", "--return", "--command", &line, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut screen = Vec::new();
        let mut answered = question.is_empty();
        let mut buffer = [0; 4096];
        loop {
            match output.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => screen.extend_from_slice(&buffer[..count]),
            }
            if !answered && String::from_utf8_lossy(&screen).contains(question) {
                input.write_all(answer.as_bytes()).unwrap();
                answered = true;
            }
        }
        child.wait().unwrap();
        let screen = String::from_utf8_lossy(&screen).into_owned();
        assert!(answered, "no question came: {screen}");
        screen
    }

    fn approve(&self, id: &str) {
        let screen = self.at_terminal(&format!("teleport approve {id}"), "Type `yes`", "yes\n");
        assert!(screen.contains("Agreed"), "{screen}");
    }

    /// Every file below `name` that holds the text.
    fn holding(&self, name: &str, text: &str) -> Vec<PathBuf> {
        let found = Command::new("grep")
            .args(["--recursive", "--files-with-matches", "--text", "--fixed-strings", text])
            .arg(self.path(name))
            .output()
            .unwrap();
        String::from_utf8(found.stdout).unwrap().lines().map(PathBuf::from).collect()
    }
}

fn parse(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        panic!("{error}\n{}\n{}", text(&output.stdout), text(&output.stderr))
    })
}

/// A `spaceport serve` on a machine, behind a wire that counts and that outlives it.
struct Space {
    machine: Machine,
    child: Child,
    wire: Wire,
}

impl Space {
    fn new(name: &str) -> Self {
        let machine = Machine::new(name);
        let (child, address) = serve(&machine);
        Self { machine, child, wire: Wire::new(address) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.wire.address)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        let (child, address) = serve(&self.machine);
        self.child = child;
        *self.wire.to.lock().unwrap() = address;
    }

    /// Bytes of the sealed bundle that have arrived and are not imported yet.
    fn spooled(&self) -> u64 {
        let inbox = self.machine.path("state/teleport/inbox");
        let Ok(entries) = fs::read_dir(inbox) else { return 0 };
        entries.filter_map(|it| Some(it.ok()?.path().join("bundle").metadata().ok()?.len())).sum()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn serve(machine: &Machine) -> (Child, SocketAddr) {
    serve_with(machine, &[])
}

fn serve_with(machine: &Machine, more: &[&str]) -> (Child, SocketAddr) {
    let log = fs::File::options().create(true).append(true).open(machine.path("log")).unwrap();
    let ports = ["--listen", "127.0.0.1:0", "--webrtc-port", "0", "--quic-port", "0"];
    let mut child = machine
        .command(binary(), &[&["serve", "--json", "--test-pattern"], &ports[..], more].concat())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let endpoints: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
        panic!("{error} in `{line}`\n{}", fs::read_to_string(machine.path("log")).unwrap())
    });
    (child, endpoints["http"].as_str().unwrap().parse().unwrap())
}

/// A TCP relay on one address to wherever the Space is now.
struct Wire {
    address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    sent: Arc<AtomicU64>,
}

impl Wire {
    fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Self {
            address: listener.local_addr().unwrap(),
            to: Arc::new(Mutex::new(to)),
            sent: Arc::default(),
        };
        let (to, sent) = (Arc::clone(&wire.to), Arc::clone(&wire.sent));
        std::thread::spawn(move || {
            for near in listener.incoming().filter_map(Result::ok) {
                let address = *to.lock().unwrap();
                let Ok(far) = TcpStream::connect(address) else { continue };
                let (near2, far2) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let sent = Arc::clone(&sent);
                std::thread::spawn(move || forward(near, far, &sent));
                std::thread::spawn(move || forward(far2, near2, &AtomicU64::new(0)));
            }
        });
        wire
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
        count.fetch_add(length as u64, Ordering::Relaxed);
    }
    drop(from.shutdown(std::net::Shutdown::Both));
    drop(to.shutdown(std::net::Shutdown::Both));
}

fn push<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["teleport", "push", "chromium", "--to", url], more].concat()
}

/// Asks, has a person agree, and returns the request's name.
fn agreed(source: &Machine, arguments: &[&str]) -> String {
    let (code, answer) = source.run(arguments);
    assert_eq!((code, &answer["consent_required"]), (2, &Value::Bool(true)), "{answer}");
    let id = answer["request_id"].as_str().unwrap().to_owned();
    source.approve(&id);
    id
}

#[test]
fn a_session_moves_once_a_person_agrees_and_can_be_taken_back() {
    let source = Machine::with_profile("source", false);
    let space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Bookmarks"]);

    // Asked by an agent: a question, and nothing moves, however often it asks.
    let (code, asked) = source.run(&arguments);
    assert_eq!((code, &asked["consent_required"]), (2, &json!(true)), "{asked}");
    assert_eq!(asked["would_send"], json!(["Bookmarks"]));
    let id = asked["request_id"].as_str().unwrap();
    assert_eq!(source.run(&arguments).1["request_id"], id);
    let (code, refused) = source.run(&["teleport", "approve", id]);
    assert_eq!((code, &refused["error"]["kind"]), (2, &json!("prompt_blocked")), "{refused}");
    assert!(!space.machine.profile().exists());
    assert_eq!(source.run(&["approvals"]).1[0]["standing"], "pending");

    source.approve(id);
    let (code, moved) = source.run(&arguments);
    assert_eq!((code, &moved["moved"]), (0, &json!(true)), "{moved}");
    assert_eq!(moved["import_ids"], json!([id]));
    let receipt = &moved["receipt"];
    assert_eq!(receipt["imported"], json!(["Bookmarks"]));
    assert_eq!(receipt["arrived"][0]["files"], 1);
    let arrived = space.machine.profile().join("Bookmarks");
    assert!(fs::read_to_string(&arrived).unwrap().contains(SECRET));
    // Both sides keep the same receipt.
    for machine in [&source, &space.machine] {
        assert_eq!(machine.run(&["teleport", "receipts"]).1, json!([receipt]));
    }

    // A yes is good once.
    let (code, again) = source.run(&arguments);
    assert_eq!(code, 2, "{again}");
    assert_ne!(again["request_id"], *id);
    let (code, used) = source.run(&[&arguments[..], &["--request", id]].concat());
    assert_eq!((code, &used["error"]["cause"]), (6, &json!("expired")), "{used}");

    let (code, wiped) = source.run(&["teleport", "wipe", id, "--at", &url]);
    assert_eq!((code, &wiped["wiped_import_ids"]), (0, &json!([id])), "{wiped}");
    assert!(!arrived.exists());
    assert_eq!(source.run(&["teleport", "wipe", id, "--at", &url]).0, 5, "the second time");

    let (code, ledger) = source.run(&["teleport", "ledger"]);
    assert_eq!(code, 0, "{ledger}");
    let events: Vec<_> =
        ledger["entries"].as_array().unwrap().iter().map(|it| &it["event"]).collect();
    assert_eq!(events, ["trusted", "asked", "approved", "used", "sealed", "sent", "asked"]);
    assert_eq!(space.machine.run(&["teleport", "ledger"]).0, 0);
}

#[test]
fn a_no_is_a_no() {
    let source = Machine::with_profile("source", false);
    let space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Bookmarks"]);
    let (_, asked) = source.run(&arguments);
    let id = asked["request_id"].as_str().unwrap();
    source.at_terminal(&format!("teleport deny {id}"), "Type `yes`", "yes\n");
    let (code, declined) = source.run(&arguments);
    assert_eq!((code, &declined["error"]["cause"]), (6, &json!("declined")), "{declined}");
    assert!(!space.machine.profile().exists());
}

#[test]
fn a_yes_does_not_cover_what_came_later() {
    let source = Machine::with_profile("source", false);
    let (space, other) = (Space::new("space"), Space::new("other"));
    let (url, elsewhere) = (space.url(), other.url());
    let id = agreed(&source, &push(&url, &["--include", "Bookmarks"]));
    let with_request = ["--include", "Bookmarks", "--request", &id];
    let cause = |arguments: &[&str]| source.run(arguments).1["error"]["cause"].clone();
    assert_eq!(cause(&push(&elsewhere, &with_request)), "not_acknowledged");
    let more = push(&url, &["--include", "Preferences", "--request", &id]);
    assert_eq!(cause(&more), "not_acknowledged");
    // The profile has something now that the person was not shown.
    fs::write(source.profile().join("Secure Preferences"), "{}").unwrap();
    assert_eq!(cause(&push(&url, &with_request)), "manifest_changed");
    assert!(!space.machine.profile().exists() && !other.machine.profile().exists());
}

#[test]
fn a_changed_key_is_refused_until_a_person_names_it() {
    let source = Machine::with_profile("source", false);
    let mut space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Bookmarks"]);
    assert_eq!(source.run(&arguments).0, 2);
    space.kill();
    fs::remove_file(space.machine.path("state/teleport/seal-key")).unwrap();
    space.restart();
    let (code, refused) = source.run(&arguments);
    assert_eq!((code, &refused["error"]["cause"]), (6, &json!("key_unavailable")), "{refused}");
    let (_, key) = space.machine.run(&["teleport", "key"]);
    let named = [&arguments[..], &["--trust-key", key["fingerprint"].as_str().unwrap()]].concat();
    assert_eq!(source.run(&named).1["consent_required"], true);
}

#[test]
fn a_person_agrees_on_the_local_page_and_a_token_does_not() {
    let source = Machine::with_profile("source", false);
    let (mut local, address) = serve(&source);
    let space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Bookmarks"]);
    let (_, asked) = source.run(&arguments);
    let id = asked["request_id"].as_str().unwrap();
    // Nobody but a terminal gets the link.
    let (code, refused) = source.run(&["teleport", "approve", "--page", id]);
    assert_eq!((code, &refused["error"]["kind"]), (2, &json!("prompt_blocked")));
    let screen = source.at_terminal(&format!("teleport approve --page {id}"), "", "");
    let link = screen.split("#link=").nth(1).unwrap().split_whitespace().next().unwrap();
    assert!(screen.contains(&format!("http://{address}/viewer/consent.html#link=")), "{screen}");

    let post = |path: &str, secret: &str, body: &str| {
        let headers = [("authorization", &*format!("Bearer {secret}"))];
        Request { method: "POST", path, headers: &headers, body: body.as_bytes() }
            .send(address)
            .unwrap()
    };
    let shown = post("/consent/request", link, "{}").json();
    assert_eq!(shown["terms"]["items"][0]["relative_path"], "Bookmarks");
    assert_eq!(shown["standing"], "pending");
    for path in ["/consent/request", "/consent/answer"] {
        let refused = post(path, TOKEN, r#"{"approve":true}"#);
        assert_eq!(refused.status, 401, "the Space token opened {path}");
    }
    assert_eq!(post("/consent/answer", link, "yes").status, 400);
    // A page elsewhere that reaches here by a name of its own is not this machine's person.
    let mut elsewhere = TcpStream::connect(address).unwrap();
    let request = format!(
        "POST /consent/answer HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\
         Authorization: Bearer {link}\r\nContent-Length: 16\r\n\r\n{{\"approve\":true}}"
    );
    elsewhere.write_all(request.as_bytes()).unwrap();
    let mut refused = String::new();
    elsewhere.read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    let answered = post("/consent/answer", link, r#"{"approve":true}"#);
    assert_eq!((answered.status, answered.json()["standing"].clone()), (200, json!("approved")));
    assert_eq!(post("/consent/answer", link, r#"{"approve":true}"#).status, 401);
    assert_eq!(source.run(&arguments).1["moved"], true);
    local.kill().unwrap();
    local.wait().unwrap();
}

#[test]
fn a_receiver_that_dies_again_and_again_gets_it_whole() {
    let source = Machine::with_profile("source", true);
    let mut space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Extensions", "--include", "Bookmarks"]);
    agreed(&source, &arguments);
    let before = space.wire.sent();
    let arguments = [&["--json"], &arguments[..]].concat();
    let child = source
        .command(binary(), &arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let percents = [10, 50, 99];
    for percent in percents {
        let enough = LARGE as u64 * percent / 100;
        wait_until("it does not arrive", PATIENCE, || {
            space.spooled() >= enough || space.machine.profile().exists()
        });
        space.kill();
        space.restart();
    }
    let output = child.wait_with_output().unwrap();
    let moved = parse(&output);
    assert_eq!(moved["moved"], true, "{moved}");
    let path = "Extensions/abcdefghijklmnopabcdefghijklmnop/1.0_0/data.bin";
    let same = fs::read(source.profile().join(path)).unwrap()
        == fs::read(space.machine.profile().join(path)).unwrap();
    assert!(same, "what arrived is not what was sent");
    // What was on its way at each kill may go again: the chunks in flight, and what lies in sockets.
    let again = (space.wire.sent() - before).saturating_sub(LARGE as u64);
    spaceport_tests::measured(format_args!("{again} bytes were sent again after 3 kills"));
    assert!(again < percents.len() as u64 * (24 << 20), "{again} bytes were sent again");
}

#[test]
fn a_sender_that_dies_goes_on_without_asking_again() {
    let source = Machine::with_profile("source", true);
    let space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Extensions"]);
    agreed(&source, &arguments);
    let before = space.wire.sent();
    for percent in [10, 50, 90] {
        let mut child = source
            .command(binary(), &arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let enough = LARGE as u64 * percent / 100;
        wait_until("it does not arrive", PATIENCE, || {
            space.spooled() >= enough || space.machine.profile().exists()
        });
        let line = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(TOKEN), "the token is an argument");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (code, moved) = source.run(&arguments);
    assert_eq!((code, &moved["moved"]), (0, &json!(true)), "{moved}");
    let again = (space.wire.sent() - before).saturating_sub(LARGE as u64);
    spaceport_tests::measured(format_args!("{again} bytes were sent again after 3 kills"));
    assert!(again < 3 * (24 << 20), "{again} bytes were sent again");
    let outbox = source.path("state/teleport/outbox");
    assert_eq!(fs::read_dir(outbox).unwrap().count(), 0, "the bundle stayed");
}

#[test]
fn giving_up_leaves_nothing_behind() {
    let source = Machine::with_profile("source", true);
    let space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Extensions"]);
    agreed(&source, &arguments);
    let child = source
        .command(binary(), &[&["--json"], &arguments[..]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it does not arrive", PATIENCE, || space.spooled() > 1 << 20);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", parse(&output));
    assert_eq!(fs::read_dir(source.path("state/teleport/outbox")).unwrap().count(), 0);
    assert_eq!(space.spooled(), 0);
    assert!(!space.machine.profile().exists());
}

#[test]
fn secrets_are_where_they_belong_and_nowhere_else() {
    let source = Machine::with_profile("source", true);
    let mut space = Space::new("space");
    let url = space.url();
    let arguments = push(&url, &["--include", "Bookmarks", "--include", "Extensions"]);
    agreed(&source, &arguments);
    let mut child = source
        .command(binary(), &[&["-vv"], &arguments[..]].concat())
        .stdout(Stdio::null())
        .stderr(fs::File::create(source.path("log")).unwrap())
        .spawn()
        .unwrap();
    wait_until("it does not arrive", PATIENCE, || space.spooled() > LARGE as u64 / 2);
    // Both die with a bundle half-way: what lies on the disks now is what a thief would find.
    child.kill().unwrap();
    child.wait().unwrap();
    space.kill();
    for machine in [&source, &space.machine] {
        for name in ["state", "log"] {
            assert_eq!(machine.holding(name, SECRET), Vec::<PathBuf>::new());
            assert_eq!(machine.holding(name, TOKEN), Vec::<PathBuf>::new());
        }
    }
    assert_eq!(source.holding("home", SECRET).len(), 1, "the search finds what is there");
    space.restart();
    assert_eq!(source.run(&arguments).1["moved"], true);
    for (machine, name) in [
        (&source, "state"),
        (&source, "runtime"),
        (&space.machine, "state"),
        (&space.machine, "runtime"),
    ] {
        assert_eq!(machine.holding(name, SECRET), Vec::<PathBuf>::new());
    }
}

/// The relay carries the bundle and everything else that is said, and the canary is nowhere in its memory.
#[test]
fn a_session_crosses_a_relay_that_cannot_read_it() {
    let source = Machine::with_profile("source", false);
    let relay = Relay::start(&[]);
    let machine = Machine::new("space");
    let joining = relay.joining("machine-1");
    let joining: Vec<&str> = joining.iter().map(String::as_str).collect();
    let (child, address) = serve_with(&machine, &joining);
    let space = Space { machine, child, wire: Wire::new(address) };
    relay.wait("machine-1", true, PATIENCE);
    let url = relay.machine_url("machine-1");
    let arguments = push(&url, &["--include", "Bookmarks"]);
    let id = agreed(&source, &arguments);
    let (code, moved) = source.run(&[&arguments[..], &["--request", &id]].concat());
    assert_eq!(code, 0, "{moved}");
    assert!(!space.machine.holding("home", SECRET).is_empty(), "it has arrived");
    assert!(relay.metric("spaceport_relay_to_machines_bytes_total") > 0, "and came this way");
    assert!(memory_holds(relay.pid(), b"machine-1"), "its memory can be looked into");
    assert!(!memory_holds(relay.pid(), SECRET.as_bytes()));
}

#[test]
fn nobody_on_the_way_can_read_a_session() {
    let source = Machine::with_profile("source", false);
    let space = Space::new("space");
    let tap = Tap::before(space.wire.address);
    let url = format!("http://{}", tap.address());
    let arguments = push(&url, &["--include", "Bookmarks"]);
    agreed(&source, &arguments);
    let (code, moved) = source.run(&arguments);
    assert_eq!((code, &moved["moved"]), (0, &json!(true)), "{moved}");
    let arrived = space.machine.profile().join("Bookmarks");
    assert!(fs::read_to_string(&arrived).unwrap().contains(SECRET));
    assert!(tap.bytes() > 1_000, "it was listened to");
    assert!(!tap.heard(SECRET.as_bytes()));
}
