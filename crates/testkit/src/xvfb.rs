//! A real X server for one test.

use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use spaceport_types::Size;

/// An Xvfb on a display number that was free, stopped when dropped.
///
/// It also stops when the test process is killed: it runs with `-terminate`, and the guard is the
/// client that keeps it from having none.
#[derive(Debug)]
pub struct Xvfb {
    server: Child,
    display: String,
    folder: PathBuf,
    _client: UnixStream,
}

impl Xvfb {
    /// Starts a server with one screen of `size` and depth 24, and returns once it takes clients.
    ///
    /// # Errors
    ///
    /// When Xvfb is not installed (Debian: `xvfb`) or does not start.
    pub fn start(size: Size) -> io::Result<Self> {
        Self::with(size, 24, &[])
    }

    /// Starts a server with a screen of another depth, and with more arguments.
    ///
    /// # Errors
    ///
    /// As [`Xvfb::start`].
    pub fn with(size: Size, depth: u8, arguments: &[&str]) -> io::Result<Self> {
        let folder = private_folder()?;
        let started = Self::spawn(size, depth, arguments, &folder);
        if started.is_err() {
            // The test fails for the first reason; an empty folder left behind is not one.
            drop(std::fs::remove_dir_all(&folder));
        }
        started
    }

    fn spawn(size: Size, depth: u8, arguments: &[&str], folder: &Path) -> io::Result<Self> {
        let Size { width, height } = size;
        let mut server = Command::new("Xvfb")
            .args(["-displayfd", "1", "-screen", "0", &format!("{width}x{height}x{depth}")])
            .args(["-terminate", "-nolisten", "tcp", "-fbdir"])
            .arg(folder)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut number = String::new();
        if let Some(stdout) = server.stdout.take() {
            BufReader::new(stdout).read_line(&mut number)?;
        }
        let number = number.trim();
        let client = connect(number);
        if client.is_err() {
            drop(server.kill());
            drop(server.wait());
        }
        let (display, folder) = (format!(":{number}"), folder.to_owned());
        Ok(Self { server, display, folder, _client: client? })
    }

    /// What clients set `DISPLAY` to.
    pub fn display(&self) -> &str {
        &self.display
    }

    /// The server's framebuffer, an X window dump that is always up to date.
    pub fn framebuffer(&self) -> PathBuf {
        self.folder.join("Xvfb_screen0")
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// Kills the server as a crash would.
    ///
    /// # Errors
    ///
    /// When the process cannot be signalled or waited for.
    pub fn kill(&mut self) -> io::Result<()> {
        self.server.kill()?;
        self.server.wait()?;
        Ok(())
    }
}

impl Drop for Xvfb {
    fn drop(&mut self) {
        // Asked nicely, it takes its socket and its lock file with it. A server that is gone
        // already is what we want.
        if self.server.try_wait().is_ok_and(|status| status.is_none()) {
            let pid = rustix::process::Pid::from_child(&self.server);
            let _asked = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            // One that a test has stopped hears nothing until it goes on.
            let _goes_on = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
        }
        drop(self.server.wait());
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Says hello as a client that wants nothing: byte order, protocol 11.0, no authorization.
fn connect(number: &str) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(format!("/tmp/.X11-unix/X{number}"))?;
    stream.write_all(&[b'l', 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    if answer[0] != 1 {
        return Err(io::Error::other("the X server refused the first client"));
    }
    Ok(stream)
}

/// A folder that nobody else can look into.
fn private_folder() -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spaceport-xvfb-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|()| folder),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_starts_and_is_gone_when_dropped() {
        let server = Xvfb::start(Size::new(64, 48)).unwrap();
        let (folder, pid) = (server.folder.clone(), server.pid());
        let socket = format!("/tmp/.X11-unix/X{}", &server.display()[1..]);
        assert!(server.framebuffer().metadata().unwrap().len() > 64 * 48 * 4);
        connect(&server.display()[1..]).unwrap();
        drop(server);
        assert!(!folder.exists());
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        assert!(!Path::new(&socket).exists());
    }
}
