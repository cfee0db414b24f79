//! The `spaceport` command's client verbs, run as people, scripts and agents run them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use spaceport_testkit::Xvfb;
use spaceport_tests::{Folder, Gateway, Screen, Socket, TOKEN, Via, Window, binary, wait_until};
use spaceport_types::{Bounds, Rect, Size};

/// A user with a registry of their own.
struct User(Folder);

#[derive(Debug)]
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl User {
    fn new() -> Self {
        Self(Folder::new("cli"))
    }

    /// Without a terminal, as everything here: what is printed is what a pipe gets.
    fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, "", &[])
    }

    fn run_with(&self, arguments: &[&str], stdin: &str, environment: &[(&str, &str)]) -> Ran {
        let mut command = Command::new(binary());
        command.args(arguments);
        self.finish(command, stdin, environment)
    }

    fn finish(&self, mut command: Command, stdin: &str, environment: &[(&str, &str)]) -> Ran {
        command
            .env_remove("SPACEPORT_TOKEN")
            .env_remove("NO_COLOR")
            .env_remove("DISPLAY")
            .env_remove("WAYLAND_DISPLAY")
            .env("SPACEPORT_CONFIG_DIR", self.0.path())
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // One that does not read has ended, which is not what is tested by this.
        drop(child.stdin.take().unwrap().write_all(stdin.as_bytes()));
        let output = child.wait_with_output().unwrap();
        Ran {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The same at a terminal: what is printed on stderr is among what is printed on stdout.
    fn run_at_a_terminal(
        &self,
        arguments: &[&str],
        typed: &str,
        environment: &[(&str, &str)],
    ) -> Ran {
        let line = format!("{} {}", binary().display(), arguments.join(" "));
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        self.finish(command, typed, &[&[("TERM", "xterm")], environment].concat())
    }

    fn add(&self, gateway: &Gateway, name: &str) -> Value {
        let url = gateway.http().to_string();
        let added = ["spaces", "add", &url, "--name", name, "--token-stdin", "--json"];
        self.run_with(&added, TOKEN, &[]).data()
    }
}

impl Ran {
    /// What was printed as data, by a run that went well and had nothing else to say.
    fn data(&self) -> Value {
        assert_eq!((self.code, &*self.stderr), (0, ""), "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// The error that an agent gets.
    fn envelope(&self) -> Value {
        assert_eq!(self.stdout, "", "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
        let mut envelope: Value = serde_json::from_str(&self.stderr).unwrap();
        envelope["error"].take()
    }

    fn rows(&self) -> Vec<Vec<&str>> {
        self.stdout.lines().map(|line| line.split_whitespace().collect()).collect()
    }
}

#[test]
fn spaces_are_added_listed_renamed_examined_and_removed() {
    let gateway = Gateway::with_test_pattern();
    let user = User::new();
    let none = user.run(&["spaces"]);
    assert_eq!((none.code, &*none.stdout), (0, ""));
    assert!(none.stderr.contains("spaceport spaces add"), "{none:?}");
    assert_eq!(user.run(&["spaces", "--json"]).data(), json!([]));

    let id = format!("direct:{}", gateway.http());
    let added = user.add(&gateway, "my box");
    assert_eq!((&added["id"], &added["name"]), (&json!(id), &json!("my box")));
    assert_eq!(user.run(&["spaces", "list", "--json"]).data(), json!([added]));
    let listed = user.run(&["spaces"]);
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{listed:?}");
    // Aligned, and no colour in a pipe.
    assert_eq!(lines[0].find("ID"), lines[1].find("direct:"), "{listed:?}");
    assert!(!listed.stdout.contains('\u{1b}'), "{listed:?}");

    let renamed = user.run(&["spaces", "rename", "my box", "desk", "--json"]).data();
    assert_eq!(renamed["display_name"], "desk");
    let status = user.run(&["spaces", "status", "desk", "--json"]).data();
    assert_eq!(
        (&status["power_state"], &status["display_name"]),
        (&json!("running"), &json!("desk"))
    );
    assert!(status["features"].as_array().unwrap().contains(&json!("desktop_stream")));
    let told = user.run(&["spaces", "status", "desk"]);
    assert!(told.stdout.contains("CANNOT") && told.stdout.contains("desktop_stream"), "{told:?}");

    let kept = user.run(&["spaces", "remove", "desk", "--agent"]);
    let error = kept.envelope();
    assert_eq!((kept.code, &error["code"]), (2, &json!("CONFIRMATION_REQUIRED")), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("--yes"), "{error}");
    // Without a terminal nobody can be asked, either.
    let kept = user.run_with(&["spaces", "remove", "desk"], "y\n", &[]);
    assert_eq!(kept.code, 2, "{kept:?}");
    assert_eq!(user.run(&["spaces", "remove", "desk", "--yes", "--json"]).data()["id"], json!(id));
    assert_eq!(user.run(&["spaces", "--json"]).data(), json!([]));
}

#[test]
fn a_person_at_a_terminal_is_asked() {
    let gateway = Gateway::with_test_pattern();
    let user = User::new();
    let added = user.add(&gateway, "box");
    let kept = user.run_at_a_terminal(&["spaces", "remove", "box"], "n\n", &[]);
    assert_eq!(kept.code, 130, "{kept:?}");
    assert!(kept.stdout.contains("Remove `box`"), "{kept:?}");
    assert!(kept.stdout.contains("\u{1b}["), "no colour on a terminal: {kept:?}");
    let plain = user.run_at_a_terminal(&["spaces"], "", &[("NO_COLOR", "1")]);
    assert!(plain.stdout.contains("box") && !plain.stdout.contains('\u{1b}'), "{plain:?}");

    let kept = user.run_at_a_terminal(&["spaces", "remove", "box", "--agent"], "y\n", &[]);
    assert!(
        kept.code == 2 && !kept.stdout.contains("Remove `box`"),
        "an agent was asked: {kept:?}"
    );
    assert_eq!(user.run(&["spaces", "--json"]).data(), json!([added]));
    let removed = user.run_at_a_terminal(&["spaces", "remove", "box"], "y\n", &[]);
    assert_eq!(removed.code, 0, "{removed:?}");
    assert_eq!(user.run(&["spaces", "--json"]).data(), json!([]));
}

#[test]
fn a_browser_is_given_a_ticket_that_no_list_of_processes_shows() {
    let gateway = Gateway::with_test_pattern();
    let user = User::new();
    user.add(&gateway, "box");
    // In the place of a desktop's: it says what it was started with, and where that led.
    let (opener, said) = (user.0.path().join("xdg-open"), user.0.path().join("said"));
    let script = "\
#!/usr/bin/env python3
import http.client, os, signal, sys, urllib.parse
signal.signal(signal.SIGHUP, signal.SIG_IGN)
url = urllib.parse.urlsplit(sys.argv[1])
asked = http.client.HTTPConnection(url.netloc)
asked.request('GET', url.path)
with open(os.environ['SAID'] + '.partial', 'w') as said:
    print(sys.argv[1], asked.getresponse().getheader('location'), file=said)
os.rename(os.environ['SAID'] + '.partial', os.environ['SAID'])
";
    fs::write(&opener, script).unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o700)).unwrap();
    let path =
        format!("{}:{}", user.0.path().display(), std::env::var_os("PATH").unwrap().display());
    let environment = [("PATH", &*path), ("SAID", said.to_str().unwrap()), ("DISPLAY", ":nowhere")];
    let opened = user.run_at_a_terminal(&["open", "box"], "", &environment);
    assert_eq!(opened.code, 0, "{opened:?}");
    wait_until("the opener said something", Duration::from_secs(30), || said.exists());
    let said = fs::read_to_string(said).unwrap();
    let (argument, led_to) = said.trim().split_once(' ').unwrap();
    assert!(argument.starts_with("http://127.0.0.1:") && !argument.contains("ticket"), "{said}");
    assert!(opened.stdout.contains(led_to), "{said} and {opened:?}");
    assert!(led_to.contains("/viewer/#ticket="), "{said}");
}

#[test]
fn a_token_comes_from_where_nobody_else_sees_it() {
    let gateway = Gateway::with_test_pattern();
    let user = User::new();
    let url = gateway.http().to_string();
    let by_environment =
        user.run_with(&["spaces", "add", &url, "--json"], "", &[("SPACEPORT_TOKEN", TOKEN)]);
    assert_eq!(by_environment.data()["id"], json!(format!("direct:{url}")));

    let file = user.0.path().join("token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let file = file.to_str().unwrap();
    let shown = user.run(&["spaces", "add", &url, "--token-file", file, "--agent"]);
    assert_eq!((shown.code, &shown.envelope()["code"]), (3, &json!("PERMISSION_DENIED")));
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    user.run(&["spaces", "add", &url, "--token-file", file, "--json"]).data();

    let none = user.run(&["spaces", "add", &url, "--token-stdin", "--agent"]);
    assert_eq!((none.code, &none.envelope()["code"]), (2, &json!("INVALID_ARGUMENT")));
    let wrong = user.run_with(&["spaces", "add", &url, "--token-stdin", "--agent"], "wrong", &[]);
    assert_eq!((wrong.code, &wrong.envelope()["kind"]), (3, &json!("unauthenticated")));
    // There is no flag for it.
    let flag = user.run(&["spaces", "add", &url, "--token", TOKEN, "--agent"]);
    assert_eq!((flag.code, &flag.envelope()["code"]), (2, &json!("INVALID_ARGUMENT")));
}

#[tokio::test]
async fn windows_are_listed_streamed_and_looked_at() {
    let server = Xvfb::start(Size::new(800, 600)).unwrap();
    let _small = Window::open(server.display(), "Find\u{202e}", "Editor", (20, 30), (90, 60));
    let _large = Window::open(server.display(), "Notes", "Editor", (120, 90), (333, 201));
    let gateway = Gateway::with_display(server.display());
    let user = User::new();
    user.add(&gateway, "box");

    let windows = user.run(&["windows", "box", "--json"]).data();
    assert_eq!(windows.as_array().unwrap().len(), 2, "{windows}");
    let largest = windows[0]["window_id"].as_str().unwrap();
    let told = user.run(&["windows", "box", "--app", "editor"]);
    let rows = told.rows();
    assert_eq!(rows[0], ["WINDOW", "APP", "SIZE", "AT", "FOCUSED", "TITLE"]);
    assert_eq!(rows[1][..3], [largest, "Editor", "333x201"], "{told:?}");
    assert!(!told.stdout.contains('\u{202e}'), "a title turns the line around: {told:?}");
    assert!(told.stderr.contains("spaceport open box --window"), "{told:?}");
    assert_eq!(user.run(&["windows", "box", "--app", "Browser", "--json"]).data(), json!([]));

    let asked = ["stream", "box", "--window", largest, "--fps", "10", "--ttl", "30", "--json"];
    let endpoint = user.run(&asked).data();
    assert_eq!(endpoint["frame_size"], json!([333, 201]), "{endpoint}");
    let at = format!("ws://{}", gateway.http());
    let path = endpoint["ws_url"].as_str().unwrap().strip_prefix(&at).unwrap();
    let mut socket = Socket::open(gateway.http(), path, Via::Query, None).await.unwrap();
    assert_eq!(socket.packet().await.0["width_px"], 333);
    let id = endpoint["media_session_id"].as_str().unwrap();
    let closed = user.run(&["stream", "box", "--close", id, "--json"]).data();
    assert_eq!(closed, json!({ "space": "box", "closed": id }));
    assert_eq!(socket.closed().await.0, 4404);
    let again = user.run(&["stream", "box", "--close", id, "--agent"]);
    assert_eq!((again.code, &again.envelope()["code"]), (5, &json!("NOT_FOUND")));

    let told = user.run(&["stream", "box", "--app", "Editor"]);
    for way in ["viewer", "socket", "WHEP", "QUIC", "ws://", "/whep", "#ticket="] {
        assert!(told.stdout.contains(way), "{way} in {told:?}");
    }
    let opened = user.run(&["open", "box"]);
    let page = format!("http://{}/viewer/#ticket=", gateway.http());
    assert!(opened.code == 0 && opened.stdout.starts_with(&page), "{opened:?}");
    let opened = user.run(&["open", "box", "--json"]).data();
    assert!(opened["viewer_url"].as_str().unwrap().starts_with(&page), "{opened}");

    let missing = user.run(&["stream", "box", "--app", "Browser"]);
    assert_eq!((missing.code, &*missing.stdout), (5, ""));
    assert!(missing.stderr.contains("error: no window of `Browser`\n"), "{missing:?}");
    assert!(missing.stderr.contains("hint: There are windows of: Editor"), "{missing:?}");
}

#[test]
fn a_space_that_was_not_added_is_named_by_its_address() {
    let server = Xvfb::start(Size::new(800, 600)).unwrap();
    let _notes = Window::open(server.display(), "Notes", "Editor", (120, 90), (333, 201));
    let gateway = Gateway::with_display(server.display());
    let user = User::new();
    let space = format!("http://{}", gateway.http());
    let file = user.0.path().join("token");
    fs::write(&file, TOKEN).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let report = user.0.path().join("report");
    fs::write(&report, "hello").unwrap();
    let here = user.0.path().join("here");
    fs::create_dir(&here).unwrap();
    let (report, here) = (report.to_str().unwrap(), here.to_str().unwrap());
    let (picture, there) = (format!("{here}/picture.png"), format!("{space}:~/Downloads/report"));
    let verbs = [
        &["spaces", "status", &space][..],
        &["windows", &space],
        &["stream", &space],
        &["stream", &space, "--snapshot", &picture],
        &["open", &space],
        &["send", report, "--to", &space],
        &["download", &there, here],
    ];
    let environment = [("SPACEPORT_TOKEN", TOKEN)];
    for verb in verbs {
        let verb = [verb, &["--json"]].concat();
        // By the environment, by a file whatever the environment has, and not at all without a token.
        user.run_with(&verb, "", &environment).data();
        let by_file = [&*verb, &["--token-file", file]].concat();
        user.run_with(&by_file, "", &[("SPACEPORT_TOKEN", "wrong")]).data();
        let denied = user.run_with(&[&*verb, &["--agent"]].concat(), "", &[]);
        assert_eq!(denied.envelope()["kind"], "unauthenticated", "{denied:?}");
    }
    assert_eq!(user.run(&["spaces", "--json"]).data(), json!([]), "nothing was added");
    let session = user.run_with(&["stream", &space, "--json"], "", &environment).data();
    let id = session["media_session_id"].as_str().unwrap();
    user.run_with(&["stream", &space, "--close", id, "--json"], "", &environment).data();

    // What is said to do next can be done.
    let windows = user.run(&["windows", &space, "--token-file", file]);
    let hint = format!("spaceport open {space} --token-file {file} --window ");
    assert!(windows.stderr.contains(&hint), "{windows:?}");

    // A name is none, and an address with a user in it is refused before anything is sent.
    let unknown = user.run(&["windows", "nowhere", "--agent"]).envelope();
    assert_eq!(unknown["kind"], "not_found");
    assert!(unknown["hint"].as_str().unwrap().contains("http://host:3211"), "{unknown}");
    let secret = space.replacen("://", "://me:s3cret@", 1);
    let refused = user.run(&["windows", &secret, "--agent"]).envelope();
    assert_eq!(refused["kind"], "invalid_argument");
    assert!(refused["hint"].as_str().unwrap().contains("--token-file"), "{refused}");

    // One that was added is opened by its own token, by its address, too.
    user.add(&gateway, "box");
    user.run(&["windows", &space, "--json"]).data();
    let moved = user.run(&["teleport", "push", "claude-code", "--to", "box", "--agent"]);
    assert_ne!(moved.envelope()["kind"], "unauthenticated");
}

/// A window on a real X server, which shows what another one has.
#[test]
fn a_stream_is_played_in_a_window() {
    let (there, here) = (Xvfb::start(Size::new(320, 240)), Xvfb::start(Size::new(640, 480)));
    let (there, here) = (there.unwrap(), here.unwrap());
    let red = 0x00_dc_28_28;
    Screen::connect(there.display()).fill(red, [Rect::new(0, 0, 320, 240)]);
    let gateway = Gateway::with_display(there.display());
    let user = User::new();
    user.add(&gateway, "box");
    let mut command = Command::new(binary());
    command.args(["stream", "box", "--play", "--json"]).env("SPACEPORT_CONFIG_DIR", user.0.path());
    command.env("DISPLAY", here.display()).env_remove("WAYLAND_DISPLAY").stdout(Stdio::piped());
    let eyes = Screen::connect(here.display());
    let player = command.spawn().unwrap();
    let shows = |wanted: u32| {
        let seen = eyes.read(Bounds::new(100, 100, 1, 1));
        let wanted = wanted.to_le_bytes();
        seen.iter().zip(wanted).take(3).all(|(&is, wanted)| is.abs_diff(wanted) < 24)
    };
    wait_until("the window shows the screen", Duration::from_secs(20), || shows(red));
    let green = 0x00_28_b4_28;
    Screen::connect(there.display()).fill(green, [Rect::new(0, 0, 320, 240)]);
    wait_until("the window follows it", Duration::from_secs(20), || shows(green));

    let pid = rustix::process::Pid::from_child(&player);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = player.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let said: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(said["frame_size"], json!([320, 240]));
    assert!(said["frames"].as_u64().unwrap() >= 2, "{said}");

    // Where there is no desktop, it says what else can be done, and opens nothing.
    let nowhere = user.run(&["stream", "box", "--play", "--agent"]).envelope();
    assert_eq!(nowhere["kind"], "host_capability_missing");
    assert!(nowhere["hint"].as_str().unwrap().contains("spaceport open"), "{nowhere}");
}

/// A display that takes no pictures any more, as one that cannot keep up takes too few.
#[test]
fn a_window_that_cannot_keep_up_says_so() {
    let here = Xvfb::start(Size::new(640, 480)).unwrap();
    let gateway = Gateway::with_test_pattern();
    let user = User::new();
    user.add(&gateway, "box");
    let mut command = Command::new(binary());
    command.args(["stream", "box", "--display", "test-pattern", "--play", "--agent"]);
    command.env("SPACEPORT_CONFIG_DIR", user.0.path()).env("DISPLAY", here.display());
    command.env_remove("WAYLAND_DISPLAY").stderr(Stdio::piped());
    let eyes = Screen::connect(here.display());
    let player = command.spawn().unwrap();
    let is_lit = || eyes.read(Bounds::new(100, 100, 1, 1)).iter().take(3).any(|&level| level > 0);
    wait_until("the window shows something", Duration::from_secs(20), is_lit);
    let display = rustix::process::Pid::from_raw(here.pid().try_into().unwrap()).unwrap();
    rustix::process::kill_process(display, rustix::process::Signal::STOP).unwrap();
    let ended = player.wait_with_output().unwrap();
    let said: Value = serde_json::from_slice(&ended.stderr).unwrap();
    let error = &said["error"];
    assert_eq!(
        (&error["cause"], ended.status.code()),
        (&json!("viewer_too_slow"), Some(8)),
        "{said}"
    );
    assert!(error["hint"].as_str().unwrap().contains("--fps"), "{said}");
}

/// Something that is no Space, and answers all the same.
fn a_web_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            drop(client.read(&mut [0; 4096]));
            let page =
                b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nhello";
            drop(client.write_all(page));
        }
    });
    address
}

#[test]
fn an_error_has_one_envelope_and_its_own_exit_code() {
    let user = User::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let of_another = a_web_server().to_string();
    let state = user.0.path().to_str().unwrap();
    for (arguments, code, exit) in [
        (&["windows", "nowhere"][..], "NOT_FOUND", 5),
        (&["spaces", "add", "ws://box"], "INVALID_ARGUMENT", 2),
        (&["spaces", "add", "127.0.0.1:1"], "SPACESD_NOT_AVAILABLE", 4),
        (&["spaces", "remove", "", "--yes"], "INVALID_ARGUMENT", 2),
        (&["spaces", "rename", " ", "x"], "INVALID_ARGUMENT", 2),
        (&["windows", ""], "INVALID_ARGUMENT", 2),
        (&["stream", "box", "--window", ""], "INVALID_ARGUMENT", 2),
        (&["open", "box", "--app", ""], "INVALID_ARGUMENT", 2),
        (&["stream", "box", "--display="], "INVALID_ARGUMENT", 2),
        // What the system says.
        (&["serve", "--listen", &taken, "--state-dir", state], "IO", 1),
        (&["spaces", "add", &of_another], "SPACESD_NOT_AVAILABLE", 4),
        // What clap has to say.
        (&["windows"], "INVALID_ARGUMENT", 2),
        (&["widnows", "box"], "INVALID_ARGUMENT", 2),
        (&["windows", "box", "--colour"], "INVALID_ARGUMENT", 2),
        (&["stream", "box", "--fps", "many"], "INVALID_ARGUMENT", 2),
        (&["stream", "box", "--window", "w1", "--app", "x"], "INVALID_ARGUMENT", 2),
        (&["stream", "box", "--close", "m1", "--app", "x"], "INVALID_ARGUMENT", 2),
        (&[], "INVALID_ARGUMENT", 2),
    ] {
        let with = |flag| [arguments, &[flag]].concat();
        let ran = user.run(&with("--agent"));
        let error = ran.envelope();
        assert_eq!((ran.code, &error["code"]), (exit, &json!(code)), "{arguments:?}: {error}");
        assert_eq!(error["kind"].as_str().unwrap().to_uppercase(), code);
        for field in ["message", "hint", "retryable", "retry", "disposition", "title"] {
            assert!(!error[field].is_null(), "no `{field}` in {error}");
        }
        assert!(!error["message"].as_str().unwrap().contains('\n'), "{error}");

        // `--json` says the same on stdout, and words say it on stderr.
        let ran = user.run(&with("--json"));
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!((ran.code, &report["error"]["message"]), (exit, &error["message"]));
        let ran = user.run(arguments);
        assert_eq!((ran.code, &*ran.stdout), (exit, ""), "{ran:?}");
        assert!(arguments.is_empty() || ran.stderr.starts_with("error: "), "{ran:?}");
    }
    let near = user.run(&["widnows", "box", "--agent"]).envelope();
    assert!(near["hint"].as_str().unwrap().contains("`windows`"), "{near}");
    let help = user.run(&["windows", "--help", "--agent"]);
    assert!(help.code == 0 && help.stdout.contains("Usage:"), "{help:?}");
}

#[test]
fn every_kind_of_error_is_explained() {
    let user = User::new();
    let kinds = user.run(&["errors", "--json"]).data();
    let kinds = kinds.as_array().unwrap();
    assert_eq!(user.run(&["errors"]).rows().len(), kinds.len() + 1);
    for kind in kinds {
        let code = kind["code"].as_str().unwrap();
        assert_eq!(&user.run(&["errors", code, "--json"]).data(), kind);
    }
    let told = user.run(&["errors", "not_found"]);
    assert!(told.stdout.contains("exit code") && told.stdout.contains("404"), "{told:?}");
    assert_eq!(user.run(&["errors", "sunspots"]).code, 5);
}

#[test]
fn a_registry_cut_in_half_is_said_and_left_as_it_is() {
    let gateway = Gateway::with_test_pattern();
    let user = User::new();
    user.add(&gateway, "box");
    let file = user.0.path().join("spaces.json");
    let whole = fs::read(&file).unwrap();
    let half = &whole[..whole.len() / 2];
    fs::write(&file, half).unwrap();
    for arguments in [
        &["spaces"][..],
        &["windows", "box"],
        &["spaces", "remove", "box", "--yes"],
        &["spaces", "add", &gateway.http().to_string()],
    ] {
        let ran =
            user.run_with(&[arguments, &["--agent"]].concat(), "", &[("SPACEPORT_TOKEN", TOKEN)]);
        let error = ran.envelope();
        assert_eq!((ran.code, &error["code"]), (4, &json!("JSON")), "{arguments:?}: {error}");
        assert!(error["message"].as_str().unwrap().contains("spaces.json"), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), half);
}

#[test]
fn what_a_space_shows_is_kept_in_a_file() {
    let gateway = Gateway::with_test_pattern();
    let user = User::new();
    user.add(&gateway, "box");
    let (png, mp4) = (user.0.path().join("a.png"), user.0.path().join("a.mp4"));
    let (png, mp4) = (png.to_str().unwrap(), mp4.to_str().unwrap());
    let kept = user.run(&["stream", "box", "--snapshot", png, "--json"]).data();
    assert_eq!(kept, json!({ "file": png, "frame_size": [1280, 720] }));
    assert_eq!(probe(png), json!(["png", 1280, 720]));

    let kept = user.run(&["stream", "box", "--record", mp4, "--for", "2", "--json"]).data();
    assert_eq!(probe(mp4), json!(["h264", 1280, 720]));
    let frames = kept["frames"].as_u64().unwrap();
    assert!(frames > 1, "{kept}");
    // Every frame can be decoded, and it lasts as long as it took.
    let arguments = ["-count_frames", "-show_entries", "stream=nb_read_frames:format=duration"];
    let counted = ffprobe(mp4, &arguments);
    assert_eq!(counted["streams"][0]["nb_read_frames"], frames.to_string());
    let lasts: f64 = counted["format"]["duration"].as_str().unwrap().parse().unwrap();
    assert!(lasts > 1.0, "{counted}");

    let before = fs::read(mp4).unwrap();
    let taken = user.run(&["stream", "box", "--record", mp4, "--agent"]).envelope();
    assert_eq!(taken["kind"], "invalid_argument");
    assert_eq!(fs::read(mp4).unwrap(), before);
    let gone = user.run(&["stream", "box", "--display", "no", "--snapshot", png, "--agent"]);
    assert_eq!(gone.envelope()["kind"], "not_found");
    wait_until("no session stays open", Duration::from_secs(10), || {
        gateway.metric("spaceport_media_sessions") == 0
    });
}

fn ffprobe(file: &str, arguments: &[&str]) -> Value {
    let mut probe = Command::new("ffprobe");
    probe.args(["-v", "error", "-of", "json"]).args(arguments).arg(file);
    let said = probe.output().unwrap();
    assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
    serde_json::from_slice(&said.stdout).unwrap()
}

/// How a file's picture is encoded, and its size.
fn probe(file: &str) -> Value {
    let entries = ["-show_entries", "stream=codec_name,width,height"];
    let stream = ffprobe(file, &entries)["streams"][0].take();
    json!([stream["codec_name"], stream["width"], stream["height"]])
}

#[test]
fn a_shell_completes_verbs_and_flags() {
    let user = User::new();
    for (shell, word) in [("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete -c")] {
        let script = user.run(&["completions", shell]);
        assert!(script.code == 0 && script.stdout.contains(word), "{shell}: {script:?}");
        for known in ["windows", "completions", "token-file"] {
            assert!(script.stdout.contains(known), "{shell} does not know `{known}`");
        }
    }
    // As a shell runs it: what begins with `win` is `windows`.
    let script = user.run(&["completions", "bash"]).stdout;
    let file = user.0.path().join("completions");
    fs::write(&file, script).unwrap();
    let line = "COMP_WORDS=(spaceport win); COMP_CWORD=1; _spaceport spaceport win spaceport; \
                echo ${COMPREPLY[@]}";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &format!("source {}; {line}", file.display())]);
    let said = String::from_utf8(bash.output().unwrap().stdout).unwrap();
    assert_eq!(said.trim(), "windows");
}

/// Every verb has its place in `docs/cli.md`, and nothing else has; so have the exit codes.
#[test]
fn the_documentation_has_every_verb_and_no_other() {
    let user = User::new();
    let help = user.run(&["--help"]).stdout;
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // What goes on in a further line stands deeper.
    let names = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let mut verbs: Vec<_> = names.filter(|name| !name.is_empty()).collect();
    verbs.retain(|verb| *verb != "help");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = fs::read_to_string(root.join("docs/cli.md")).unwrap();
    let documented: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("## spaceport ")).collect();
    assert_eq!(documented, verbs);
    let example = user.run(&["windows", "box", "--agent"]).stderr;
    assert!(text.contains(&example), "the error in the documentation should be:\n{example}");
    let codes: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok())
        .collect();
    let kinds = user.run(&["errors", "--json"]).data();
    let exits = kinds.as_array().unwrap().iter().map(|kind| kind["exit"].as_u64().unwrap());
    assert_eq!(codes, exits.chain([0]).collect());
}
