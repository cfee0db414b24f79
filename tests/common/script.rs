use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A browser of the distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Browser {
    /// Debian's chromium.
    Chromium,
    /// Debian's firefox-esr.
    Firefox,
}

impl Browser {
    const fn name(self) -> &'static str {
        match self {
            Self::Chromium => "chromium",
            Self::Firefox => "firefox",
        }
    }
}

/// A running script of `tests/e2e`, ended when dropped.
///
/// It speaks in lines of JSON. Where it has to wait for something the test does, it says so and reads
/// a line.
#[derive(Debug)]
pub struct Script {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Until it is told nothing more.
    input: Option<ChildStdin>,
}

impl Script {
    /// Runs a Node script that drives `browser`.
    pub fn browser(name: &str, browser: Browser, arguments: &[&str]) -> Self {
        Self::browser_by(Command::new("node"), name, browser, arguments)
    }

    /// The same by another `node`: one on another machine, or with another environment.
    pub fn browser_by(mut node: Command, name: &str, browser: Browser, arguments: &[&str]) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e");
        assert!(
            folder.join("node_modules/playwright-core").exists(),
            "run `npm ci --ignore-scripts` in tests/e2e first"
        );
        node.arg(folder.join(name)).arg(browser.name()).args(arguments);
        Self::spawn(node)
    }

    /// Runs any program that speaks like that.
    pub fn spawn(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap_or_else(|error| {
                panic!("{command:?}: {error}");
            });
        let output = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        Self { child, output, input }
    }

    /// The next thing it says. A script that fails ends, and says why on stderr.
    pub fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the script ended without a result");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in `{line}`"))
    }

    /// Tells it something, as a line of JSON.
    pub fn tell(&mut self, what: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    /// Ends what it is told.
    pub fn leave(&mut self) {
        drop(self.input.take());
    }

    /// How it ended, once it has.
    pub fn ended(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Tells it to go on.
    pub fn go_on(&mut self) {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // Playwright closes its browser on SIGTERM; killed outright it would leave it behind.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        drop(self.child.wait());
    }
}
