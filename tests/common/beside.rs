use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{Agent, Folder, binary};

/// `spaceport mcp --http` beside an agent, ended when dropped.
#[derive(Debug)]
pub struct Beside {
    child: Child,
    started: Value,
    folder: Folder,
}

impl Beside {
    /// Starts it for a user of its own, with these arguments more.
    pub fn start(more: &[&str]) -> Self {
        let folder = Folder::new("beside");
        let mut command = Command::new(binary());
        command.args(["mcp", "--http", "127.0.0.1:0", "--json"]).args(more);
        command.env("HOME", folder.path()).env("SPACEPORT_CONFIG_DIR", folder.path());
        command.env_remove("XDG_STATE_HOME").env_remove("SPACEPORT_STATE_DIR");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, started: serde_json::from_str(&line).unwrap(), folder }
    }

    /// The home of its user.
    pub fn home(&self) -> &Path {
        self.folder.path()
    }

    /// An agent that calls it.
    pub fn agent(&self, lifecycle: &str) -> Agent {
        let file = self.started["token_file"].as_str().unwrap();
        let token = std::fs::read_to_string(file).unwrap();
        Agent::over_http(lifecycle, self.started["url"].as_str().unwrap(), token.trim())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
