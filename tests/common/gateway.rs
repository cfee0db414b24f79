use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use prost::Message;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use spaceport_wire::pb::{
    CloseMediaRequest, CloseMediaResponse, MediaTarget, OpenMediaRequest, OpenMediaResponse,
    media_target,
};

use super::{Answer, Folder, Refused, Request, grpc};

/// The Space token of every gateway here.
pub const TOKEN: &str = "the-token-of-a-test";

/// A real `spaceport serve` of its own, stopped when dropped.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    folder: Folder,
    endpoints: Value,
    http: SocketAddr,
}

/// How a gateway is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start<'a> {
    /// The X display to show.
    pub display: Option<&'a str>,
    /// Whether it offers the test pattern.
    pub test_pattern: bool,
    /// Where it listens; on loopback when not given.
    pub host: Option<IpAddr>,
    /// Where its state outlives it; nowhere when not given.
    pub state: Option<&'a Path>,
    /// The network namespace that it runs in; that of the test when not given.
    pub namespace: Option<&'a str>,
    /// More arguments.
    pub arguments: &'a [&'a str],
}

impl Gateway {
    /// Starts one that has the test pattern to show and nothing else.
    pub fn with_test_pattern() -> Self {
        Self::start(Start { test_pattern: true, ..Start::default() })
    }

    /// Starts one that shows an X display.
    pub fn with_display(display: &str) -> Self {
        Self::start(Start { display: Some(display), ..Start::default() })
    }

    /// Starts one and returns once it listens.
    pub fn start(start: Start<'_>) -> Self {
        let folder = Folder::new("gateway");
        let log = File::create(folder.path().join("log")).unwrap();
        let home = folder.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let host = start.host.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let mut command = match start.namespace {
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={namespace}")).arg(binary());
                command
            }
            None => Command::new(binary()),
        };
        command
            .args(["serve", "--listen", &SocketAddr::new(host, 0).to_string()])
            .args(["--quic-port", "0"])
            .args(["--webrtc-port", "0", "--json"])
            .arg("--state-dir")
            .arg(start.state.map_or_else(|| folder.path().join("state"), Path::to_owned))
            .args(start.arguments)
            .env_remove("DISPLAY")
            .env("HOME", home)
            .env("SPACEPORT_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        if let Some(display) = start.display {
            command.args(["--display", display]);
        }
        if start.test_pattern {
            command.arg("--test-pattern");
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let endpoints: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
            drop(child.kill());
            drop(child.wait());
            let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
            panic!("the gateway did not start: {error} in `{line}`\n{log}");
        });
        let http = endpoints["http"].as_str().unwrap().parse().unwrap();
        Self { child, folder, endpoints, http }
    }

    /// Its address.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The home of the user whose Space it is.
    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// What it printed when it was ready.
    pub fn endpoints(&self) -> &Value {
        &self.endpoints
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Address of the viewer page, with a ticket that opens it and `parameters` behind that.
    pub fn viewer_url(&self, parameters: &str) -> String {
        let url = self.endpoints["viewer_url"].as_str().unwrap();
        if parameters.is_empty() { url.to_owned() } else { format!("{url}&{parameters}") }
    }

    /// Sends a request that carries the token.
    pub fn get(&self, path: &str) -> Answer {
        let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
        Request { method: "GET", path, headers: &headers, body: b"" }.send(self.http).unwrap()
    }

    /// One number of `/metrics`.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric `{name}` in:\n{text}")).trim().parse().unwrap()
    }

    /// One unary gRPC call, `method` without the package.
    pub fn call<A: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<A, Refused> {
        grpc::call(self.http, TOKEN, method, request)
    }

    /// The same with another token.
    pub fn call_as<A: Message + Default>(
        &self,
        token: &str,
        method: &str,
        request: &impl Message,
    ) -> Result<A, Refused> {
        grpc::call(self.http, token, method, request)
    }

    /// Opens a media session of a display; of the primary one for an empty id.
    pub fn open(&self, display: &str) -> OpenMediaResponse {
        let target = media_target::Target::DisplayId(display.to_owned());
        let request = OpenMediaRequest {
            target: Some(MediaTarget { target: Some(target) }),
            ..OpenMediaRequest::default()
        };
        self.call("StreamService/OpenMedia", &request).unwrap()
    }

    /// Closes a media session.
    pub fn close(&self, media_session_id: &str) {
        let request = CloseMediaRequest { media_session_id: media_session_id.to_owned() };
        let _: CloseMediaResponse = self.call("StreamService/CloseMedia", &request).unwrap();
    }

    /// Whether its process still runs.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Asked first, as an operator would; one that does not listen is not waited for.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        for _ in 0..100 {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            // nextest shows it with the failure.
            print_log(&self.log());
        }
    }
}

#[expect(clippy::print_stderr, reason = "a failed test shows what the gateway said")]
fn print_log(log: &str) {
    eprintln!("---- gateway ----\n{log}-----------------");
}

/// The program under test, built as the tests were. `SPACEPORT_BIN` names another.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = env::var_os("SPACEPORT_BIN") {
            return path.into();
        }
        // target/<profile>/deps/<test>-<hash>
        let test = env::current_exe().unwrap();
        let profile = test.parent().and_then(Path::parent).unwrap();
        // Cargo has no way to say that a test needs another package's program. Building it here
        // takes a moment when there is nothing to do, and keeps an old one from being tested.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--offline", "--package", "spaceport-cli"]);
        // What cargo told this test about itself would have it build half of the crates anew.
        for (name, _) in env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_") && name != "CARGO_TARGET_DIR" && name != "CARGO_HOME" {
                build.env_remove(&*name);
            }
        }
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the program does not build");
        profile.join("spaceport")
    })
}
