//! The X server of a demo desktop: a process, a private folder, and the end of both.

use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use spaceport_types::{Error, Kind, Result, Size};

use crate::clock;

/// How long the server may take to say which display it is. A cold start compiles a keyboard map.
const START: Duration = Duration::from_secs(15);

/// How long it may take to end when asked to, before it is killed.
const STOP: Duration = Duration::from_secs(2);

/// A running Xvfb. Stopped when dropped, and by the kernel when the thread that started it ends.
#[derive(Debug)]
pub(super) struct Server {
    process: Child,
    folder: Folder,
    display: String,
}

impl Server {
    /// Starts a server on a display number that is free, with one screen of `size`.
    pub(super) fn start(size: Size) -> Result<Self> {
        let folder = Folder::create(size)?;
        let Size { width, height } = size;
        let log = folder.log.try_clone()?;
        let mut command = Command::new("Xvfb");
        command
            .args(["-displayfd", "1", "-screen", "0", &format!("{width}x{height}x24")])
            // Nobody connects from outside, the desktop outlives its clients, and nobody sits in
            // front of it for whom it could be switched off.
            .args(["-nolisten", "tcp", "-noreset", "-s", "0", "-fbdir"])
            .arg(&folder.path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log);
        die_with_this_thread(&mut command);
        let process = command.spawn().map_err(|error| {
            let missing = error.kind() == io::ErrorKind::NotFound;
            let message = match missing {
                true => "Xvfb, which a demo desktop runs on, is not installed".to_owned(),
                false => format!("Xvfb cannot be started: {error}"),
            };
            Error::new(Kind::HostCapabilityMissing, message).hint(HINT).source(error)
        })?;
        let mut server = Self { process, folder, display: String::new() };
        match server.process.stdout.take().map(read_number) {
            Some(Ok(number)) => server.display = format!(":{number}"),
            Some(Err(reason)) => return Err(server.did_not_start(&reason)),
            None => return Err(server.did_not_start("it has no output")),
        }
        Ok(server)
    }

    pub(super) fn display(&self) -> &str {
        &self.display
    }

    pub(super) fn framebuffer(&self) -> PathBuf {
        self.folder.path.join("Xvfb_screen0")
    }

    fn did_not_start(&self, reason: &str) -> Error {
        // The server's own words, where it left any, tell more than ours.
        let log = std::fs::read_to_string(self.folder.path.join(LOG)).unwrap_or_default();
        let said = log.lines().rev().find(|line| !line.trim().is_empty());
        let message = format!("Xvfb did not start: {}", said.unwrap_or(reason));
        Error::new(Kind::HostCapabilityMissing, message).hint(HINT)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked nicely, it takes its socket and its lock file with it.
        let pid = Pid::from_child(&self.process);
        let _asked = rustix::process::kill_process(pid, Signal::TERM);
        let until = clock::now() + STOP;
        while clock::now() < until {
            match self.process.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        let _killed = self.process.kill();
        let _waited = self.process.wait();
    }
}

/// Has the kernel kill the process when the calling thread ends, whatever ends it.
///
/// It is the thread that counts, not the process: the thread that calls this must be the one that
/// lives as long as the server is to live.
#[expect(unsafe_code, reason = "std has no safe way to run code between fork and exec")]
fn die_with_this_thread(command: &mut Command) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If we died before the line above, no signal comes.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error()));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe things may happen; the closure makes
    // two system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Reads the display number that the server prints once it takes clients.
fn read_number(mut output: ChildStdout) -> Result<u16, String> {
    let until = clock::now() + START;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = until.saturating_sub(clock::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Err(format!("no answer within {} s", START.as_secs())),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.to_string()),
        }
        let mut byte = [0];
        match output.read(&mut byte) {
            Ok(0) => return Err("it ended at once".to_owned()),
            // A number has five digits at most; whatever is longer is not read to its end.
            Ok(_) if line.len() > 8 => return Err("it printed no display number".to_owned()),
            Ok(_) => line.push(byte[0]),
            Err(error) => return Err(error.to_string()),
        }
    }
    let line = String::from_utf8_lossy(&line);
    line.trim().parse().map_err(|_| format!("it printed `{}`", line.trim()))
}

/// A folder that nobody else can look into, removed when dropped.
///
/// The log in it is locked for as long as this process or the server has it open. A folder whose
/// log is not locked was left behind by a process that was killed, and the next one removes it.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    log: File,
}

impl Folder {
    /// Makes one with room for the framebuffer of a screen of `size`: in memory where possible,
    /// because the kernel writes a file on a disk back every few seconds.
    fn create(size: Size) -> Result<Self> {
        let needed = size.bounds().area() * 4 + SPARE;
        let memory = Path::new("/dev/shm");
        sweep(memory);
        let roomy = rustix::fs::statvfs(memory)
            .is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) > needed);
        if roomy && let Ok(folder) = Self::within(memory) {
            return Ok(folder);
        }
        let temporary = std::env::temp_dir();
        sweep(&temporary);
        Self::within(&temporary).map_err(|error| {
            Error::new(Kind::Io, format!("no folder for the demo desktop: {error}"))
                .hint("Set `TMPDIR` to a folder that this user may write")
                .source(error)
        })
    }

    fn within(parent: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{}-{number}", std::process::id());
            // Under its name only once it is locked, so that nobody takes it for a leftover.
            let making = parent.join(format!(".{name}"));
            // This fails for a name that exists, a symbolic link included, so whoever guesses the
            // name gains nothing.
            match DirBuilder::new().mode(0o700).create(&making) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            }
            let log = File::create(making.join(LOG))?;
            log.lock()?;
            let path = parent.join(name);
            match std::fs::rename(&making, &path) {
                Ok(()) => return Ok(Self { path, log }),
                // A leftover of an earlier process of our number has that name.
                Err(error) => {
                    std::fs::remove_dir_all(&making)?;
                    let taken = [io::ErrorKind::DirectoryNotEmpty, io::ErrorKind::AlreadyExists];
                    if !taken.contains(&error.kind()) {
                        return Err(error);
                    }
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::debug!(%error, folder = %self.path.display(), "demo folder stays");
        }
    }
}

/// Removes what killed processes of this user left behind. What fails is tried again next time.
fn sweep(parent: &Path) {
    let uid = rustix::process::getuid().as_raw();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
        if !ours {
            continue;
        }
        let path = entry.path();
        let unused = File::open(path.join(LOG)).is_ok_and(|log| log.try_lock().is_ok());
        if unused {
            tracing::debug!(folder = %path.display(), "demo folder of a killed process removed");
            let _removed = std::fs::remove_dir_all(path);
        }
    }
}

/// How the folders' names begin.
const PREFIX: &str = "spaceport-demo-";

/// The server's standard error.
const LOG: &str = "log";

/// Room beside the pixels: the header, the log.
const SPARE: u64 = 1 << 20;

const HINT: &str = "Install the Debian package `xvfb`, or show a desktop that already runs with \
                    `--display :0`";
