use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

/// A program of the distribution on an X display: ended, with what it started, when dropped.
#[derive(Debug)]
pub struct Program(Child);

impl Program {
    /// Starts it.
    pub fn start(display: &str, name: &str, arguments: &[&str]) -> Self {
        let child = Command::new(name)
            .args(arguments)
            .env("DISPLAY", display)
            // The same look and no messages to a desktop's bus, whoever runs the test.
            .env_remove("DBUS_SESSION_BUS_ADDRESS")
            .envs([("NO_AT_BRIDGE", "1"), ("LC_ALL", "C.UTF-8")])
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("`{name}`: {error}; run scripts/setup test"));
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::TERM);
        for _ in 0..50 {
            if self.0.try_wait().is_ok_and(|status| status.is_some()) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let _ = kill_process_group(group, Signal::KILL);
        drop(self.0.wait());
    }
}
