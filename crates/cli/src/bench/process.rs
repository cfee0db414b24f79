//! What processes use, as /proc has it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// What a process has used so far, and what it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time of each of its threads, those of one name together, to the nanosecond. Threads that have
    /// ended are not in it.
    pub(crate) threads: BTreeMap<String, Duration>,
    /// Memory that is its own, and of files.
    pub(crate) resident: u64,
    pub(crate) descriptors: usize,
}

impl Usage {
    /// `None` when there is no such process, or it is another user's.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
            let read = |name| fs::read_to_string(task.path().join(name)).ok();
            // One may end while its folder is read.
            let (Some(name), Some(used)) = (read("comm"), read("schedstat")) else { continue };
            let nanos = used.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0);
            *threads.entry(name.trim().to_owned()).or_default() += Duration::from_nanos(nanos);
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = resident?.split_whitespace().next()?.parse().ok()?;
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        Some(Self { threads, resident: kib << 10, descriptors })
    }

    pub(crate) fn cpu(&self) -> Duration {
        self.threads.values().sum()
    }
}

/// The process that listens at a TCP address of this machine; `Err` says why it is not known.
pub(crate) fn listening(address: SocketAddr) -> Result<u32, &'static str> {
    if !is_here(address.ip()) {
        return Err("the server is on another machine");
    }
    let inodes = sockets(address.port());
    if inodes.is_empty() {
        return Err("nobody in this network namespace listens at the server's port");
    }
    let names: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = fs::read_dir("/proc").map_err(|_| "there is no /proc")?;
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        for file in files.flatten() {
            let Ok(target) = fs::read_link(file.path()) else { continue };
            if names.iter().any(|name| target.as_os_str() == name.as_str()) {
                return Ok(pid);
            }
        }
    }
    Err("the server is another user's process")
}

/// Whether an address is one of this machine's: only those can be bound.
fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// The inodes of sockets that listen at a port.
fn sockets(port: u16) -> Vec<String> {
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            // proc(5): slot, local address, remote address, state (0A: listening), …, inode.
            if let (Some(local), Some(&"0A"), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
                && local.ends_with(&format!(":{port:04X}"))
            {
                inodes.push((*inode).to_owned());
            }
        }
    }
    inodes
}

/// Processes that wanted to run, on average of the last minute.
pub(crate) fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_found_by_the_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listening(address), Ok(std::process::id()));
        drop(listener);
        listening(address).unwrap_err();
        let elsewhere = "192.0.2.1:3211".parse().unwrap();
        assert_eq!(listening(elsewhere), Err("the server is on another machine"));
    }

    #[test]
    fn a_process_has_threads_and_memory() {
        let usage = Usage::of(std::process::id()).unwrap();
        assert!(usage.cpu() > Duration::ZERO && usage.resident > 0 && usage.descriptors > 2);
        assert!(Usage::of(u32::MAX).is_none());
    }
}
