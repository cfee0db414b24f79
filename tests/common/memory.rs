//! What a process has in its memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

/// Whether a process has `wanted` anywhere in the memory that it writes to.
pub fn memory_holds(pid: u32, wanted: &[u8]) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let ranges = maps.lines().filter(|line| line.contains(" rw")).filter_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(from)?, number(to)?))
    });
    ranges.into_iter().any(|(from, to)| {
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        // Some of it may be gone by now.
        let read = memory.read_at(&mut bytes, from).unwrap_or_default();
        bytes[..read].windows(wanted.len()).any(|window| window == wanted)
    })
}
