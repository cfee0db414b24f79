//! Files that only their owner reads, written whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use spaceport_types::{Cause, Error, Kind, Result};

/// The largest file of ours that is read whole. They are written by us and small; one that grew
/// beyond this was not.
const MAX_FILE: u64 = 64 << 20;

/// No file of ours takes longer to write.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// Makes a folder and its parents, for the owner alone.
///
/// # Errors
///
/// `io` naming the folder.
pub fn folder(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| failed(path, e))
}

/// Creates a file with `content`, unless one is there: whoever comes first is kept. Says whether it did.
///
/// # Errors
///
/// `io` naming the file.
pub fn create(path: &Path, content: &[u8]) -> Result<bool> {
    let partial = partial(path, content)?;
    let linked = fs::hard_link(&partial, path);
    drop(fs::remove_file(&partial));
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        // Some file systems have no links. What is lost there is only who came first.
        Err(_) if !path.exists() => replace(path, content).map(|()| true),
        Err(error) => Err(failed(path, error)),
    }
}

/// Puts a file with `content` in place of what is there, in one step that outlives a power cut.
///
/// # Errors
///
/// `io` naming the file.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let partial = partial(path, content)?;
    fs::rename(&partial, path).map_err(|error| {
        drop(fs::remove_file(&partial));
        failed(path, error)
    })?;
    sync_parent(path)
}

/// The same with a value as JSON.
///
/// # Errors
///
/// `io` naming the file.
pub fn replace_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec_pretty(value).map_err(|error| {
        Error::new(Kind::Internal, "a record of ours is not JSON").source(error)
    })?;
    replace(path, &text)
}

/// Reads what [`replace_json`] wrote; `None` when there is no such file.
///
/// # Errors
///
/// `io` naming the file, damaged ones included.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut text));
    match read {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, error)),
    }
    let value = serde_json::from_slice(&text).map_err(|error| {
        Error::new(Kind::Io, format!("`{}` is damaged", path.display()))
            .with("path", path.display())
            .hint("Move it away; it is made anew")
            .source(error)
    })?;
    Ok(Some(value))
}

/// Opens a file for appending, made private when it is new.
///
/// # Errors
///
/// `io` naming the file.
pub fn append(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options.open(path).map_err(|error| failed(path, error))
}

/// Refuses a secret that others can read.
///
/// # Errors
///
/// `permission_denied` for one that they can, `io` when there is none.
pub fn check_mode(path: &Path) -> Result<()> {
    let metadata = fs::metadata(path).map_err(|error| failed(path, error))?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    let shown = path.display();
    Err(Error::new(
        Kind::PermissionDenied,
        format!("`{shown}` can be read by others (mode {mode:03o})"),
    )
    .with("path", &shown)
    .hint(format!("Run `chmod 600 {shown}`")))
}

/// A file or folder of ours that could not be used.
pub fn failed(path: &Path, error: io::Error) -> Error {
    let shown = path.display();
    let full = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    let base = if full {
        Error::because(Cause::DiskFull, format!("there is no space left for `{shown}`"))
            .hint("Free some space and try again")
    } else {
        Error::new(Kind::Io, format!("`{shown}` cannot be used"))
            .hint("See that you may write there, or give another folder with `--state-dir`")
    };
    base.with("path", &shown).source(error)
}

/// Makes the names in a file's folder outlive a power cut.
///
/// # Errors
///
/// `io` naming the folder.
pub fn sync_parent(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| failed(folder, e))
}

fn partial(path: &Path, content: &[u8]) -> Result<PathBuf> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if let Some(parent) = path.parent() {
        folder(parent)?;
    }
    remove_partials(path);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let partial = path.with_extension(format!("partial-{}-{number}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&partial)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()));
    written.map_err(|error| {
        // It takes room where there may be none.
        drop(fs::remove_file(&partial));
        failed(&partial, error)
    })?;
    Ok(partial)
}

/// Removes what others began to write in place of this file, and did not live to finish.
fn remove_partials(path: &Path) {
    let (Some(folder), Some(stem)) = (path.parent(), path.file_stem()) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let partial = entry.path();
        let writer = partial.extension().and_then(|it| it.to_str()?.strip_prefix("partial-"));
        let writer = writer.and_then(|it| it.split('-').next()?.parse::<u32>().ok());
        let is_alive = |id: u32| Path::new("/proc").join(id.to_string()).exists();
        // A process of another container is not seen from here.
        let age = entry.metadata().and_then(|it| it.modified()).map(|at| at.elapsed());
        let is_old = matches!(age, Ok(Ok(age)) if age > ABANDONED);
        if partial.file_stem() == Some(stem) && is_old && writer.is_some_and(|id| !is_alive(id)) {
            drop(fs::remove_file(&partial));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_left_half_written_goes_with_the_next_write() {
        let folder =
            std::env::temp_dir().join(format!("spaceport-partials-{}", std::process::id()));
        let path = folder.join("machines.json");
        super::folder(&folder).unwrap();
        let (dead, alive) = (u32::MAX, std::process::id());
        let names = [
            format!("machines.partial-{dead}-0"),
            format!("machines.partial-{dead}"),
            format!("machines.partial-{alive}-99"),
            format!("others.partial-{dead}-0"),
            format!("machines.partial-{dead}-1"),
        ];
        for (number, name) in names.iter().enumerate() {
            let file = File::create(folder.join(name)).unwrap();
            if number < 4 {
                file.set_modified(std::time::UNIX_EPOCH).unwrap();
            }
        }
        replace(&path, b"whole").unwrap();
        assert!(!create(&path, b"another").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        let left: Vec<bool> = names.iter().map(|name| folder.join(name).exists()).collect();
        assert_eq!(left, [false, false, true, true, true]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
