use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use spaceport_types::Size;

/// An Xvfb on a display of the test's choice: one that had another server before. Stopped when dropped.
#[derive(Debug)]
pub struct Server(Child);

impl Server {
    /// Starts it, and returns once it takes clients.
    pub fn start(display: &str, size: Size) -> Self {
        let Size { width, height } = size;
        let mut server = Command::new("Xvfb")
            .args([display, "-displayfd", "1", "-nolisten", "tcp", "-noreset"])
            .args(["-screen", "0", &format!("{width}x{height}x24")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut number = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut number).unwrap();
        let server = Self(server);
        assert_eq!(format!(":{}", number.trim()), display, "another server has the display");
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked, it takes its socket and its lock file with it.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        drop(self.0.wait());
    }
}
