//! The processes of an app: is it running, close it, start it, ask it for its version.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use spaceport_types::{Cause, Error, Result};
use zeroize::Zeroizing;

use crate::machine::Machine;
use crate::manifest::App;

/// How long an app that was asked to close may take, as the public contract says.
const CLOSE: Duration = Duration::from_secs(5);

/// How long a program may take to answer. Debian's Chromium is a shell script before it is a browser, and
/// a locked keyring asks a person who may not be there.
const ANSWER: Duration = Duration::from_secs(5);

/// Longest answer that is read: less than a pipe holds, so nobody has to read along.
const MAX_ANSWER: u64 = 4096;

/// Waits until a process has ended; whether it did in time. Also true when it is gone already.
fn ends_within(pid: Pid, time: Duration) -> Result<bool> {
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(Errno::SRCH) => return Ok(true),
        Err(error) => return Err(std::io::Error::from(error).into()),
    };
    let limit = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)) {
            Err(Errno::INTR) => {}
            Ok(ready) => return Ok(ready > 0),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
    }
}

/// Closes an app: asks, and after five seconds insists.
fn close(pid: Pid) -> Result<()> {
    for signal in [Signal::TERM, Signal::KILL] {
        match kill_process(pid, signal) {
            Err(Errno::SRCH) => return Ok(()),
            Err(error) => return Err(std::io::Error::from(error).into()),
            Ok(()) if ends_within(pid, CLOSE)? => return Ok(()),
            Ok(()) => {}
        }
    }
    Err(Error::because(Cause::AppRunning, format!("process {} does not end", pid.as_raw_nonzero())))
}

/// Makes sure that an app does not run, or refuses.
///
/// `running` names the process that holds the profile; it is asked again, since an app may start
/// another process as it closes.
pub(super) fn make_closed(
    app: App,
    may_close: bool,
    running: &dyn Fn() -> Option<Pid>,
) -> Result<()> {
    while let Some(pid) = running() {
        if !may_close {
            let why = format!("{} is running", app.display_name());
            return Err(Error::because(Cause::AppRunning, why)
                .with("pid", pid.as_raw_nonzero())
                .hint("Close it, or allow it to be closed"));
        }
        close(pid)?;
    }
    Ok(())
}

/// The version that a program says it has: the first word of its answer that begins with a digit.
pub(super) fn version(machine: &Machine, program: &Path) -> Option<String> {
    let answer = answer(machine, program, &["--version"])?;
    first_version(std::str::from_utf8(&answer).ok()?)
}

/// What a program answers, where it does in time and succeeds.
pub(super) fn answer(
    machine: &Machine,
    program: &Path,
    arguments: &[&str],
) -> Option<Zeroizing<Vec<u8>>> {
    let mut child = command(machine, program)
        .args(arguments)
        .stdout(Stdio::piped())
        .process_group_of_its_own()
        .spawn()
        .ok()?;
    let pid = Pid::from_child(&child);
    let in_time = ends_within(pid, ANSWER).unwrap_or(false);
    if !in_time {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    let mut answer = Zeroizing::new(Vec::new());
    let read = child.stdout.take()?.take(MAX_ANSWER).read_to_end(&mut answer);
    let has_succeeded = child.wait().is_ok_and(|status| status.success());
    (in_time && has_succeeded && read.is_ok()).then_some(answer)
}

fn first_version(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    words.find(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
}

/// The leading number of a version.
pub(super) fn major(version: &str) -> Option<u64> {
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Starts an app and leaves it to itself.
pub(super) fn launch(machine: &Machine, program: &Path) -> Result<()> {
    let mut child = command(machine, program).process_group_of_its_own().spawn()?;
    // Someone has to take its exit status, whenever that is.
    std::thread::Builder::new()
        .name("app".to_owned())
        .spawn(move || drop(child.wait()))
        .map(drop)?;
    Ok(())
}

/// A program with the person's environment and no other.
fn command(machine: &Machine, program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(machine.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(&machine.home)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

trait OwnGroup {
    fn process_group_of_its_own(&mut self) -> &mut Self;
}

impl OwnGroup for Command {
    /// So that no signal meant for us reaches it, and one meant for it reaches its children.
    fn process_group_of_its_own(&mut self) -> &mut Self {
        std::os::unix::process::CommandExt::process_group(self, 0)
    }
}

/// The program that a process runs; `None` when it is gone or another person's.
pub(super) fn program_of(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        let chromium = "Chromium 156.0.8078.114 built on Debian GNU/Linux 12 (bookworm)\n";
        assert_eq!(first_version(chromium).unwrap(), "156.0.8078.114");
        assert_eq!(first_version("1.95.0\nabc\nx64\n").unwrap(), "1.95.0");
        assert_eq!(first_version("no version"), None);
        assert_eq!(major("156.0.8078.114"), Some(156));
        assert_eq!(major("x"), None);
    }
}
