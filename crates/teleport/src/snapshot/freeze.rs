//! Stops the programs that have a file open, for a moment.
//!
//! The last resort for a database whose writer never pauses. Three things see to it that no app stays
//! stopped: dropping [`Frozen`], a thread that does the same after [`LIMIT`], and a process of its own
//! that waits for our end of a pipe to close, which it does however we end.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, getuid, kill_process};
use spaceport_types::Result;

/// Longest that an app is stopped: less than two pictures at 60 Hz, so nobody sees it.
pub(super) const LIMIT: Duration = Duration::from_millis(20);

/// Resumes the processes in its arguments when its input ends, or after a second, whichever is first:
/// a second, since whoever holds the other end could be stopped too.
const GUARD: &str =
    r#"trap "" HUP INT TERM; timeout 1 cat >/dev/null; kill -CONT "$@" 2>/dev/null"#;

/// Programs that are stopped until this is dropped, or [`LIMIT`] is over.
#[derive(Debug)]
pub(super) struct Frozen {
    over: Arc<AtomicBool>,
    /// Dropping it ends the thread.
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Its standard input is the pipe that it waits for.
    guard: Child,
}

impl Frozen {
    /// Stops every process of this user that has `path` open, except this one. `None` when there is
    /// none.
    pub(super) fn holders_of(path: &Path) -> Result<Option<Self>> {
        let pids = holders(path)?;
        if pids.is_empty() {
            return Ok(None);
        }
        let guard = Command::new("/bin/sh")
            .args(["-c", GUARD, "spaceport-resume"])
            .args(pids.iter().map(|pid| pid.as_raw_nonzero().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let over = Arc::new(AtomicBool::new(false));
        let (done, wait) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("thaw".to_owned()).spawn({
            let (over, pids) = (Arc::clone(&over), pids.clone());
            move || {
                if wait.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    over.store(true, Ordering::SeqCst);
                }
                resume(&pids);
            }
        });
        // From here on whatever happens resumes them.
        let frozen = Self { over, done: Some(done), thread: Some(thread?), guard };
        for pid in &pids {
            // One that is gone has nothing left to write.
            let _ = kill_process(*pid, Signal::STOP);
        }
        while !frozen.is_over() && !pids.iter().all(|pid| is_stopped(*pid)) {
            std::thread::yield_now();
        }
        Ok(Some(frozen))
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Resumes them; whether they were stopped until now.
    pub(super) fn thaw(self) -> bool {
        !self.is_over()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        // Its input ends, it resumes once more, and it ends.
        drop(self.guard.stdin.take());
        drop(self.guard.wait());
    }
}

fn resume(pids: &[Pid]) {
    for pid in pids {
        let _ = kill_process(*pid, Signal::CONT);
    }
}

/// This user's processes, except this one, that have `path` open.
fn holders(path: &Path) -> Result<Vec<Pid>> {
    let wanted = path.metadata()?;
    let is_wanted = |fd: &Path| {
        // Looking through the link asks the open file itself, whatever its name is by now.
        fd.metadata().is_ok_and(|open| (open.dev(), open.ino()) == (wanted.dev(), wanted.ino()))
    };
    let mut pids = Vec::new();
    for process in Path::new("/proc").read_dir()?.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| Pid::from_raw(name.parse().ok()?)) else {
            continue;
        };
        let is_ours = process.metadata().is_ok_and(|owner| owner.uid() == getuid().as_raw());
        if pid == getpid() || !is_ours {
            continue;
        }
        // Processes come and go while we look; one that cannot be read is not one we may stop.
        let Ok(open) = process.path().join("fd").read_dir() else { continue };
        if open.flatten().any(|fd| is_wanted(&fd.path())) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

/// Whether every thread of a process is stopped, or the process is gone.
fn is_stopped(pid: Pid) -> bool {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let Ok(tasks) = Path::new(&tasks).read_dir() else { return true };
    tasks.flatten().all(|task| match std::fs::read_to_string(task.path().join("stat")) {
        // proc(5): the state is the first field after the name in parentheses, which may itself
        // contain any character.
        Ok(stat) => {
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['T', 't', 'Z', 'X']))
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    })
}
