use std::fs::{File, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::Folder;

/// What lets clients in at every Redis here.
const PASSWORD: &str = "a-password-of-a-test";

/// A real `redis-server` of its own, with a password, ended when dropped.
#[derive(Debug)]
pub struct Redis {
    child: Option<Child>,
    folder: Folder,
    port: u16,
}

impl Redis {
    /// Starts one, and returns once it listens.
    pub fn start() -> Self {
        let folder = Folder::new("redis");
        // It takes no port of its own choice.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut redis = Self { child: None, folder, port };
        let url = redis.url_file();
        std::fs::write(&url, format!("redis://:{PASSWORD}@127.0.0.1:{port}/")).unwrap();
        std::fs::set_permissions(&url, Permissions::from_mode(0o600)).unwrap();
        redis.start_again();
        redis
    }

    /// Starts it again, with what it had.
    pub fn start_again(&mut self) {
        let mut child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "always"])
            .args(["--requirepass", PASSWORD])
            .arg("--dir")
            .arg(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(self.folder.path().join("errors")).unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("scripts/setup test installs redis-server: {error}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready =
            lines.by_ref().map_while(Result::ok).any(|line| line.contains("Ready to accept"));
        assert!(ready, "redis-server did not start");
        // It would wait for somebody to read the rest.
        std::thread::spawn(move || lines.for_each(drop));
        self.child = Some(child);
    }

    /// Ends it, of which it tells nobody.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A file that has its address and its password.
    pub fn url_file(&self) -> PathBuf {
        self.folder.path().join("url")
    }

    /// What `redis-cli` answers.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string(), "--no-auth-warning"])
            .env("REDISCLI_AUTH", PASSWORD)
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
