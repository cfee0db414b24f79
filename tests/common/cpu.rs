use std::time::Duration;

use tokio::time::Instant;

/// The processor time a process uses from now on, as the kernel counts it.
#[derive(Debug)]
pub struct Cpu {
    pid: u32,
    started: Instant,
    ticks: u64,
}

impl Cpu {
    /// Starts to count.
    pub fn of(pid: u32) -> Self {
        Self { pid, started: Instant::now(), ticks: ticks(pid) }
    }

    /// Percent of one core since the start. The kernel counts in ticks of 10 ms, so over ten seconds one tick
    /// is 0.1 %.
    pub fn percent(&self) -> f64 {
        let used = Duration::from_millis(10) * u32::try_from(ticks(self.pid) - self.ticks).unwrap();
        100.0 * used.as_secs_f64() / self.started.elapsed().as_secs_f64()
    }
}

/// User and system time of all threads, proc(5) fields 14 and 15, in USER_HZ: 100 a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name, field 2, is in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    // A count that stays at zero would make every promise about idleness come true.
    #[test]
    fn work_is_counted() {
        let cpu = Cpu::of(std::process::id());
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {}
        assert!(cpu.percent() > 10.0, "{}", cpu.percent());
    }
}
