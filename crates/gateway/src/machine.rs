//! Facts about the machine, read from where Linux keeps them.

use std::fs;
use std::path::Path;

/// What the machine runs on.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// `ID` of os-release, for example `debian`.
    pub os_id: String,
    /// `VERSION_ID` of os-release.
    pub os_version: String,
    /// `PRETTY_NAME` of os-release.
    pub os_pretty_name: String,
    /// Kernel release.
    pub kernel: String,
    /// Host name.
    pub hostname: String,
    /// `x86_64`, `aarch64`.
    pub arch: &'static str,
    /// Whether this is a container.
    pub container: bool,
    /// When the kernel started, in seconds since 1970.
    pub boot_time: Option<i64>,
}

impl Facts {
    /// Reads them; what cannot be read stays empty.
    pub fn read() -> Self {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let field = |name: &str| os_release_field(&release, name).unwrap_or_default();
        let uname = rustix::system::uname();
        Self {
            os_id: field("ID"),
            os_version: field("VERSION_ID"),
            os_pretty_name: field("PRETTY_NAME"),
            kernel: uname.release().to_string_lossy().into_owned(),
            hostname: uname.nodename().to_string_lossy().into_owned(),
            arch: std::env::consts::ARCH,
            container: in_container(),
            boot_time: fs::read_to_string("/proc/stat").ok().as_deref().and_then(boot_time),
        }
    }
}

/// How busy the machine is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Processors this process may use.
    pub cpus: u32,
    /// Share of all processors' time that was not idle since the machine started, in percent.
    pub cpu_percent: f64,
    /// Load average over one minute.
    pub load_average: f64,
    /// Memory of the machine, in bytes.
    pub memory_total: u64,
    /// Memory that is not available, in bytes.
    pub memory_used: u64,
    /// Size of the file system, in bytes.
    pub disk_total: u64,
    /// Of that, taken.
    pub disk_used: u64,
    /// Bytes received on all interfaces but loopback.
    pub network_rx: u64,
    /// Bytes sent on all interfaces but loopback.
    pub network_tx: u64,
}

impl Load {
    /// Reads it; what cannot be read stays zero.
    pub fn read(disk: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory = read("/proc/meminfo");
        let (disk_total, disk_used) = rustix::fs::statvfs(disk).map_or((0, 0), |stat| {
            (stat.f_blocks * stat.f_frsize, (stat.f_blocks - stat.f_bfree) * stat.f_frsize)
        });
        let total = meminfo(&memory, "MemTotal");
        let (network_rx, network_tx) = network(&read("/proc/net/dev"));
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            cpu_percent: busy_percent(&read("/proc/stat")),
            load_average: first_number(&read("/proc/loadavg")),
            memory_total: total,
            memory_used: total.saturating_sub(meminfo(&memory, "MemAvailable")),
            disk_total,
            disk_used,
            network_rx,
            network_tx,
        }
    }
}

fn os_release_field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.trim_matches(['"', '\'']).to_owned())
}

fn in_container() -> bool {
    let marked = ["/run/.containerenv", "/.dockerenv"].iter().any(|path| Path::new(path).exists());
    marked
        || fs::read_to_string("/run/systemd/container").is_ok()
        || fs::read_to_string("/proc/1/cgroup").is_ok_and(|groups| {
            ["docker", "containerd", "kubepods", "lxc"].iter().any(|name| groups.contains(name))
        })
}

fn boot_time(stat: &str) -> Option<i64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn meminfo(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map_or(0.0, first_number) as u64 * 1024
}

fn first_number(text: &str) -> f64 {
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn busy_percent(stat: &str) -> f64 {
    let Some(line) = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")) else {
        return 0.0;
    };
    let ticks: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Fields 4 and 5 are idle and iowait (proc_stat(5)).
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    let total: f64 = ticks.iter().take(8).sum();
    if total > 0.0 { (total - idle) / total * 100.0 } else { 0.0 }
}

fn network(text: &str) -> (u64, u64) {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.trim() != "lo")
        .map(|(_, counters)| {
            let field =
                |index| counters.split_whitespace().nth(index).and_then(|word| word.parse().ok());
            (field(0).unwrap_or(0), field(8).unwrap_or(0))
        })
        .fold((0, 0), |(rx, tx): (u64, u64), (more_rx, more_tx): (u64, u64)| {
            (rx.saturating_add(more_rx), tx.saturating_add(more_tx))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_among_others_of_a_like_name() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(os_release_field(text, "ID").as_deref(), Some("debian"));
        assert_eq!(os_release_field(text, "VERSION_ID").as_deref(), Some("12"));
        assert_eq!(meminfo("MemTotal:  2048 kB\nMemFree: 1 kB\n", "MemTotal"), 2 << 20);
        let stat = "cpu  10 0 10 70 10 0 0 0 0 0\n";
        assert!((busy_percent(stat) - 20.0).abs() < 1e-9);
        assert_eq!(boot_time("cpu 1\nbtime 1700000000\n"), Some(1_700_000_000));
        let net = "  lo: 9 0 0 0 0 0 0 0 9 0\n eth0: 5 1 0 0 0 0 0 0 7 1\n";
        assert_eq!(network(net), (5, 7));
    }

    #[test]
    fn this_machine_has_memory_and_a_kernel() {
        assert!(Load::read(Path::new("/")).memory_total > 0);
        assert!(!Facts::read().kernel.is_empty());
    }
}
