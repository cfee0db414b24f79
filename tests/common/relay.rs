use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Answer, Folder, Request, binary, wait_until};

/// The registration token of every relay here.
pub const RELAY_TOKEN: &str = "the-registration-token-of-a-test";

/// A real `spaceport relay` of its own, stopped when dropped.
#[derive(Debug)]
pub struct Relay {
    child: Child,
    folder: Folder,
    arguments: Vec<String>,
    http: SocketAddr,
    quic: SocketAddr,
}

impl Relay {
    /// Starts one on loopback, and returns once it listens.
    pub fn start(arguments: &[&str]) -> Self {
        Self::at(Ipv4Addr::LOCALHOST.into(), arguments)
    }

    /// Starts one that listens on `host`.
    pub fn at(host: IpAddr, arguments: &[&str]) -> Self {
        let folder = Folder::new("relay");
        let token = folder.path().join("registration");
        std::fs::write(&token, RELAY_TOKEN).unwrap();
        std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        let (child, http, quic) = spawn(&folder, SocketAddr::new(host, 0), 0, &arguments);
        Self { child, folder, arguments, http, quic }
    }

    /// Its TCP address.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Its UDP address.
    pub fn quic(&self) -> SocketAddr {
        self.quic
    }

    /// Its origin.
    pub fn url(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Where a machine is reached.
    pub fn machine_url(&self, id: &str) -> String {
        format!("{}/m/{id}", self.url())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it keeps its state.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A file that has the registration token.
    pub fn token_file(&self) -> PathBuf {
        self.folder.path().join("registration")
    }

    /// What lets a machine `id` join it, as arguments of `spaceport serve`.
    pub fn joining(&self, id: &str) -> Vec<String> {
        let token_file = self.token_file().display().to_string();
        ["--relay", &self.url(), "--relay-token-file", &token_file, "--machine-id", id]
            .map(str::to_owned)
            .into()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Sends a request that carries the registration token.
    pub fn ask(&self, method: &str, path: &str) -> Answer {
        let headers = [("authorization", &*format!("Bearer {RELAY_TOKEN}"))];
        Request { method, path, headers: &headers, body: b"" }.send(self.http).unwrap()
    }

    /// What it says of a machine; null where it does not answer.
    pub fn status(&self, id: &str) -> Value {
        let headers = [("authorization", &*format!("Bearer {RELAY_TOKEN}"))];
        let path = format!("/v1/machines/{id}");
        let request = Request { method: "GET", path: &path, headers: &headers, body: b"" };
        match request.send(self.http) {
            Ok(answer) if answer.status == 200 => answer.json(),
            _ => Value::Null,
        }
    }

    /// Waits until it says that a machine is online, or is not.
    pub fn wait(&self, id: &str, online: bool, limit: Duration) {
        wait_until(&format!("online is {online}"), limit, || self.status(id)["online"] == online);
    }

    /// One number of `/metrics`.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.ask("GET", "/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no metric `{name}` in:\n{text}")).trim().parse().unwrap()
    }

    /// Ends it without a warning.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }

    /// Waits until it has ended by itself; whether that went well.
    pub fn ended(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }

    /// What it is to be started with the next time.
    pub fn set_arguments(&mut self, arguments: &[&str]) {
        self.arguments = arguments.iter().map(|&it| it.to_owned()).collect();
    }

    /// What has another relay join this one, as arguments of `spaceport relay`.
    pub fn above(&self) -> Vec<String> {
        let token_file = self.token_file().display().to_string();
        ["--uplink", &self.url(), "--uplink-token-file", &token_file].map(str::to_owned).into()
    }

    /// Starts it again, with the same state and at the same ports.
    pub fn start_again(&mut self) {
        let (child, http, quic) = spawn(&self.folder, self.http, self.quic.port(), &self.arguments);
        assert_eq!((http, quic), (self.http, self.quic));
        self.child = child;
    }
}

fn spawn(
    folder: &Folder,
    listen: SocketAddr,
    quic_port: u16,
    arguments: &[String],
) -> (Child, SocketAddr, SocketAddr) {
    let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
    let mut child = Command::new(binary())
        .args(["relay", "--json", "--listen", &listen.to_string()])
        .args(["--quic-port", &quic_port.to_string(), "--webrtc-port", "0"])
        .arg("--state-dir")
        .arg(folder.path().join("state"))
        .arg("--token-file")
        .arg(folder.path().join("registration"))
        .args(arguments)
        .env("HOME", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let endpoints: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
        drop(child.kill());
        drop(child.wait());
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        panic!("the relay did not start: {error} in `{line}`\n{log}");
    });
    let address = |name: &str| endpoints[name].as_str().unwrap().parse().unwrap();
    (child, address("http"), address("quic"))
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The drain would wait for what a failed test has left open.
        self.kill();
        if std::thread::panicking() {
            print_log(&self.log());
        }
    }
}

#[expect(clippy::print_stderr, reason = "a failed test shows what the relay said")]
fn print_log(log: &str) {
    eprintln!("---- relay ----\n{log}---------------");
}
