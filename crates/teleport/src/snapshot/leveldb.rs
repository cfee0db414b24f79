//! One LevelDB store, while its owner writes.
//!
//! Tables never change once written, and the log only grows. So a copy is sound when the set of files
//! was the same before and after, and only logs grew: what the log gained meanwhile is cut off, and a
//! reader passes over a record that is cut.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Duration;

use spaceport_types::Result;

use super::{Stamp, TRIES, copy, never_still};

/// How long between two looks at a store that is being compacted.
const PAUSE: Duration = Duration::from_millis(20);

/// Copies the store at `source` into the new folder `target`. Whether there was one.
///
/// # Errors
///
/// `app_running` when it never held still.
pub(crate) fn leveldb(source: &Path, target: &Path) -> Result<bool> {
    if !source.join("CURRENT").is_file() {
        return Ok(false);
    }
    for attempt in 0..TRIES {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
            std::fs::remove_dir_all(target)?;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(target)?;
        let before = list(source)?;
        let (logs, others): (Vec<_>, Vec<_>) = before.keys().partition(|name| is_log(name));
        // What the manifest names is copied before the logs, so no log is older than its manifest.
        let mut whole = true;
        for name in others.into_iter().chain(logs) {
            whole &= copy(&source.join(name), &target.join(name))?;
        }
        if whole && is_same(&before, &list(source)?) {
            return Ok(true);
        }
    }
    std::fs::remove_dir_all(target)?;
    Err(never_still(source))
}

fn is_log(name: &str) -> bool {
    name.ends_with(".log")
}

/// The files that make up the store; not its lock, and not what it tells people.
fn list(source: &Path) -> Result<BTreeMap<String, Stamp>> {
    let mut files = BTreeMap::new();
    for entry in source.read_dir()? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let belongs = name == "CURRENT"
            || name.starts_with("MANIFEST-")
            || [".ldb", ".sst", ".log"].iter().any(|ending| name.ends_with(ending));
        // One that is gone by now shows as a difference in the next list.
        if belongs && let Some(stamp) = Stamp::of(&entry.path())? {
            files.insert(name, stamp);
        }
    }
    Ok(files)
}

fn is_same(before: &BTreeMap<String, Stamp>, after: &BTreeMap<String, Stamp>) -> bool {
    before.len() == after.len()
        && before.iter().zip(after).all(|((name, was), (now_name, is))| {
            let grew = is_log(name) && was.inode == is.inode && was.len <= is.len;
            name == now_name && (was == is || grew)
        })
}
