//! Clocks, and what processes have used.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::Result;

/// Nanoseconds of the clock that all processes of this machine share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// CPU time that this process has used so far, in all its threads.
pub(crate) fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time that processes have used so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) at: u64,
    /// The measured program, in all its threads.
    pub(crate) program: Duration,
    /// The X server.
    pub(crate) server: Duration,
    /// All of the machine.
    pub(crate) machine: Duration,
}

impl Usage {
    pub(crate) fn of(program: u32, server: u32) -> Result<Self> {
        Ok(Self { at: now(), program: used(program)?, server: used(server)?, machine: busy()? })
    }
}

/// To the nanosecond, where /proc/PID/stat counts in hundredths of a second: an idle program uses
/// less than one of those in a whole run. Threads that have ended are not in it; none of the
/// programs here starts and ends threads as it goes.
fn used(pid: u32) -> Result<Duration> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while its folder is read.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        total += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

/// What all processors have done that was not waiting.
fn busy() -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|it| it.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user already.
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|&index| ticks.get(index)).sum();
    // USER_HZ, which has been 100 on every architecture of ours since before Linux 2.6.
    Ok(Duration::from_millis(busy * 10))
}
