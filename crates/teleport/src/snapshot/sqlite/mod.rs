//! One SQLite database, also while another program holds it in exclusive mode.
//!
//! Three ways, in this order: SQLite's own backup, where a reader is in no writer's way; a copy of the
//! file and its journal whose stamps are the same before and after; the same copy while the programs
//! that have it open are stopped, for at most [`freeze::LIMIT`](super::freeze::LIMIT). Whichever it was,
//! the result is checked by `PRAGMA integrity_check` and is one file without a journal.
//!
//! Only a log written ahead (WAL) lets others read and write at once. With a rollback journal a reader's
//! lock makes a commit of the app fail, and an app that does not try again loses what it wrote:
//! Chromium drops every cookie of that commit. So no lock is ever taken there.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use spaceport_types::Result;

use super::freeze::Frozen;
use super::{Stamp, TRIES, copy, file, never_still};

/// How long a reader waits for a lock before another way is taken.
const BUSY: Duration = Duration::from_millis(200);

/// How long between two looks at a database that is busy.
const PAUSE: Duration = Duration::from_millis(10);

/// Backup steps that may find the database busy: with [`PAUSE`], 200 ms. SQLite's own loop has no end.
const BUSY_STEPS: u32 = 20;

/// Pages copied in one backup step.
const PAGES: i32 = 512;

/// How a database was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sqlite {
    /// By SQLite itself.
    Backup,
    /// While it happened to hold still.
    Still,
    /// While the programs that have it open were stopped.
    Frozen,
}

/// Copies the database at `source` to `target`; `None` when there is none.
///
/// # Errors
///
/// `app_running` when it never held still.
pub(crate) fn sqlite(source: &Path, target: &Path) -> Result<Option<Sqlite>> {
    if file(source)?.is_none() {
        return Ok(None);
    }
    if may_back_up(source)? && back_up(source, target).is_ok() && is_whole(target) {
        return Ok(Some(Sqlite::Backup));
    }
    for attempt in 0..TRIES {
        if copy_still(source, target, Writers::Running)? && is_whole(target) {
            return Ok(Some(Sqlite::Still));
        }
        std::thread::sleep(PAUSE * attempt);
    }
    for _ in 0..TRIES {
        let Some(frozen) = Frozen::holders_of(source)? else { break };
        let still = copy_still(source, target, Writers::Stopped)?;
        if frozen.thaw() && still && is_whole(target) {
            return Ok(Some(Sqlite::Frozen));
        }
        std::thread::sleep(PAUSE);
    }
    clear(target)?;
    Err(never_still(source))
}

/// Whether SQLite can read it where it is, without a lock that stops the app from writing, and without
/// leaving files there: a log needs its index, which only the app should make.
fn may_back_up(source: &Path) -> Result<bool> {
    let mut header = [0; 20];
    let Some((mut bytes, _)) = file(source)? else { return Ok(false) };
    // The file format's header: bytes 18 and 19 are 2 in WAL mode.
    let in_wal_mode = bytes.read_exact(&mut header).is_ok() && header[18] == 2;
    Ok(in_wal_mode && beside(source, "-shm").exists())
}

fn back_up(source: &Path, target: &Path) -> rusqlite::Result<()> {
    drop(clear(target));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let from = Connection::open_with_flags(source, flags)?;
    from.busy_timeout(BUSY)?;
    // Takes the read lock now, or says that there is none to be had.
    from.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?;
    let mut to = Connection::open(target)?;
    {
        let backup = Backup::new(&from, &mut to)?;
        let mut busy = 0;
        loop {
            match backup.step(PAGES)? {
                StepResult::Done => break,
                StepResult::More => {}
                _ if busy == BUSY_STEPS => return Err(rusqlite::Error::InvalidQuery),
                _ => {
                    busy += 1;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writers {
    Running,
    Stopped,
}

/// Copies the database and its journals; whether none of them changed meanwhile.
fn copy_still(source: &Path, target: &Path, writers: Writers) -> Result<bool> {
    clear(target)?;
    let stamps = || -> Result<[Option<Stamp>; 3]> {
        Ok([
            Stamp::of(source)?,
            Stamp::of(&beside(source, "-wal"))?,
            Stamp::of(&beside(source, "-journal"))?,
        ])
    };
    let before = stamps()?;
    if writers == Writers::Running && before.iter().flatten().any(Stamp::is_fresh) {
        return Ok(false);
    }
    copy(source, target)?;
    for suffix in ["-wal", "-journal"] {
        copy(&beside(source, suffix), &beside(target, suffix))?;
    }
    Ok(stamps()? == before)
}

/// Whether the copy is sound; folds its journal into it.
fn is_whole(target: &Path) -> bool {
    let fold = || -> rusqlite::Result<bool> {
        let copy = Connection::open(target)?;
        let verdict: String = copy.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
        // Checkpoints what is left in a WAL, and takes the file out of WAL mode.
        let mode: String = copy.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))?;
        Ok(verdict == "ok" && mode == "delete")
    };
    fold().unwrap_or(false)
        && remove_spent(&beside(target, "-journal")).is_ok()
        && JOURNALS.iter().all(|suffix| !beside(target, suffix).exists())
}

/// Removes a rollback journal that is over. Who holds a database in exclusive mode empties it or
/// zeroes its header instead of deleting it; SQLite rolls none of these back, and leaves them lying.
fn remove_spent(journal: &Path) -> std::io::Result<()> {
    let mut file = match fs::File::open(journal) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut first = [0];
    match (file.read(&mut first)?, first) {
        (0, _) | (_, [0]) => fs::remove_file(journal),
        _ => Ok(()), // not over, and for the caller to see
    }
}

const JOURNALS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Removes what an earlier attempt left.
fn clear(target: &Path) -> Result<()> {
    let journals = JOURNALS.map(|suffix| beside(target, suffix));
    for path in journals.iter().map(PathBuf::as_path).chain([target]) {
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests;
