use std::ffi::OsString;
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use spaceport_teleport::Machine;
use spaceport_testkit::Xvfb;
use spaceport_types::Size;

use crate::{Browser, Folder, wait_until};

/// A home that nobody has used, and everything that is found by way of it.
#[derive(Debug)]
pub struct Home {
    keyring: Option<Keyring>,
    folder: Folder,
    screen: Xvfb,
}

/// A session bus and, on it, a keyring that is unlocked. Both end when dropped.
#[derive(Debug)]
struct Keyring {
    address: String,
    bus: Child,
    service: Child,
}

/// What a test's home runs as `chromium`.
const CHROMIUM: &str = "#!/bin/sh
exec /usr/bin/chromium --no-sandbox --disable-gpu --disable-background-networking \\
  --disable-component-update --disable-sync --no-first-run \"$@\"
";

/// How long a browser may take to close.
const CLOSE: Duration = Duration::from_secs(10);

impl Home {
    /// Makes one.
    pub fn new() -> Self {
        let folder = Folder::new("home");
        for name in ["run", "bin"] {
            DirBuilder::new().mode(0o700).create(folder.path().join(name)).unwrap();
        }
        // Tests run as root in containers.
        let chromium = folder.path().join("bin/chromium");
        std::fs::write(&chromium, CHROMIUM).unwrap();
        std::fs::set_permissions(&chromium, Permissions::from_mode(0o700)).unwrap();
        Self { keyring: None, folder, screen: Xvfb::start(Size::new(800, 600)).unwrap() }
    }

    /// Makes one with a keyring, which its programs keep their passwords in.
    pub fn with_keyring() -> Self {
        let mut home = Self::new();
        let address = format!("unix:path={}", home.path().join("run/bus").display());
        let bus = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--address", &address])
            .env_clear()
            .envs(home.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("no bus", CLOSE, || home.path().join("run/bus").exists());
        let mut service = Command::new("gnome-keyring-daemon")
            .args(["--foreground", "--unlock", "--components=secrets"])
            .env_clear()
            .envs(home.environment())
            .env("DBUS_SESSION_BUS_ADDRESS", &address)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut service.stdin.take().unwrap(), b"password").unwrap();
        home.keyring = Some(Keyring { address, bus, service });
        // It takes questions once it has unlocked what it keeps.
        let keeps = || {
            let mut store = Command::new("secret-tool")
                .args(["store", "--label=test", "test", "test"])
                .env_clear()
                .envs(home.environment())
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::io::Write::write_all(&mut store.stdin.take().unwrap(), b"test").unwrap();
            store.wait().unwrap().success()
        };
        wait_until("no keyring", CLOSE, keeps);
        home
    }

    /// Ends the keyring, as if its owner had locked it.
    pub fn lose_keyring(&mut self) {
        self.keyring = None;
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The environment of whoever lives there: a screen, and a session bus where there is a keyring.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let run = self.path().join("run");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.path().join("bin").display());
        [
            ("HOME", self.path().as_os_str().to_owned()),
            ("XDG_RUNTIME_DIR", run.into_os_string()),
            ("PATH", path.into()),
            ("DISPLAY", self.screen.display().into()),
            ("MOZ_HEADLESS", "1".into()),
        ]
        .into_iter()
        .chain(
            self.keyring
                .as_ref()
                .map(|keyring| ("DBUS_SESSION_BUS_ADDRESS", OsString::from(&keyring.address))),
        )
        .map(|(name, value)| (name.into(), value))
        .collect()
    }

    /// The machine as whoever lives there sees it.
    pub fn machine(&self) -> Machine {
        Machine::from_environment(self.environment()).unwrap()
    }

    /// Starts a browser as a click on its icon would, with these pages.
    pub fn start(&self, browser: Browser, urls: &[&str]) -> App {
        let program = match browser {
            Browser::Chromium => self.path().join("bin/chromium"),
            Browser::Firefox => "/usr/bin/firefox-esr".into(),
        };
        let child = Command::new(program)
            .args(urls)
            .env_clear()
            .envs(self.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        App { child }
    }
}

impl Drop for Keyring {
    fn drop(&mut self) {
        for child in [&mut self.service, &mut self.bus] {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

/// A browser that a test started. Closed when dropped.
#[derive(Debug)]
pub struct App {
    child: Child,
}

impl App {
    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let _ = kill_process(self.pid(), Signal::TERM);
        let pid = self.pid();
        if std::thread::panicking() {
            let _ = kill_process(pid, Signal::KILL);
        }
        wait_until("the browser does not close", CLOSE, || self.has_ended());
    }
}
