//! Takes an import back, from its journal.

use std::fs;
use std::path::Path;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, ToSql, params_from_iter};
use sha2::{Digest as _, Sha256};
use spaceport_types::Result;

use super::local_storage::Store;
use super::stage;
use crate::digest::Digest;
use crate::journal::{Before, Change, Identity, Undone, Value};

/// Takes back what is in `changes`, the last first. The app must be closed.
///
/// What was never done, or is undone already, is passed over: a publication is told by the identity of
/// what is in its place, and everything within a folder that was never published counts for nothing.
pub(super) fn undo(changes: &[Change]) -> Result<Undone> {
    let mut undone = Undone::default();
    let unpublished: Vec<&Path> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Publish { target, identity, before, .. }
                if !is_published(target, identity, *before) =>
            {
                Some(target.as_path())
            }
            _ => None,
        })
        .collect();
    let counts = |path: &Path| !unpublished.iter().any(|target| path.starts_with(target));
    for change in changes.iter().rev() {
        match change {
            Change::Row { database, table, key, previous } if counts(database) => {
                undone.rows += row(database, table, key, previous.as_deref())?;
            }
            Change::Entry { store, key, previous } if counts(store) => {
                entry(store, key, previous.as_ref())?;
            }
            Change::File { path, sha256 } if counts(path) => file(path, *sha256, &mut undone)?,
            Change::Tree { path } if counts(path) => remove(path, &mut undone)?,
            Change::Row { .. }
            | Change::Entry { .. }
            | Change::File { .. }
            | Change::Tree { .. } => {}
            Change::Publish { stage, target, identity, before } => {
                publication(stage, target, identity, *before, &mut undone)?;
            }
            Change::Content { path, previous: Some(previous) } => {
                if previous.exists() {
                    fs::rename(previous, path)?;
                    undone.removed_paths.push(path.clone());
                }
            }
            Change::Content { path, previous: None } => remove(path, &mut undone)?,
            Change::Stage { path } => remove(path, &mut Undone::default())?,
            Change::Folder { path } => {
                // One that others use by now stays.
                if fs::remove_dir(path).is_ok() {
                    undone.removed_paths.push(path.clone());
                }
            }
        }
    }
    for change in changes {
        if let Change::Publish { target, identity, before: Before::Merged, .. } = change {
            remove(&target.join(stage::marker(identity)), &mut Undone::default())?;
        }
    }
    Ok(undone)
}

/// Whether what was published is in its place.
fn is_published(target: &Path, identity: &Identity, before: Before) -> bool {
    match before {
        Before::Merged => target.join(stage::marker(identity)).exists(),
        _ => stage::identity(target).is_ok_and(|found| found == *identity),
    }
}

fn publication(
    stage: &Path,
    target: &Path,
    identity: &Identity,
    before: Before,
    undone: &mut Undone,
) -> Result<()> {
    if is_published(target, identity, before) {
        match before {
            Before::Nothing => return remove(target, undone),
            // Goes last, so that a second attempt finds it; rows can be taken back twice.
            Before::Merged => {}
            Before::Kept if stage.symlink_metadata().is_ok() => {
                stage::exchange(stage, target, before)?;
                undone.removed_paths.push(target.to_owned());
            }
            Before::Kept => {
                let why = "what it replaced is gone".to_owned();
                undone.kept.push((target.to_owned(), why));
            }
        }
    }
    // What was never published, what it was made from, or what has just been taken back.
    remove(stage, &mut Undone::default())
}

/// Removes a file, or a folder with all that is in it.
fn remove(path: &Path, undone: &mut Undone) -> Result<()> {
    let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
    if metadata.is_dir() {
        fs::remove_dir_all(path)?;
    } else {
        fs::remove_file(path)?;
    }
    undone.removed_paths.push(path.to_owned());
    Ok(())
}

fn file(path: &Path, expected: Option<Digest>, undone: &mut Undone) -> Result<()> {
    let Some((mut bytes, _)) = crate::snapshot::file(path)? else { return Ok(()) };
    if let Some(expected) = expected {
        let mut hash = Sha256::new();
        std::io::copy(&mut bytes, &mut hash)?;
        if Digest(hash.finalize().into()) != expected {
            undone.kept.push((path.to_owned(), "it was changed since".to_owned()));
            return Ok(());
        }
    }
    remove(path, undone)
}

/// Brings a row back, or removes it. How many rows that was.
fn row(
    database: &Path,
    table: &str,
    key: &[(String, Value)],
    previous: Option<&[(String, Value)]>,
) -> Result<u64> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if !database.exists() {
        return Ok(0);
    }
    let failed = |error: rusqlite::Error| super::database_failed(database, error);
    let connection = Connection::open_with_flags(database, flags).map_err(failed)?;
    let table = quoted(table);
    let wanted: Vec<String> =
        key.iter().map(|(column, _)| format!("{} IS ?", quoted(column))).collect();
    let delete = format!("DELETE FROM {table} WHERE {}", wanted.join(" AND "));
    let transaction = connection.unchecked_transaction().map_err(failed)?;
    let mut rows = transaction
        .execute(&delete, params_from_iter(key.iter().map(|(_, value)| value)))
        .map_err(failed)?;
    if let Some(previous) = previous {
        let columns: Vec<String> = previous.iter().map(|(column, _)| quoted(column)).collect();
        let marks = vec!["?"; columns.len()].join(", ");
        let insert =
            format!("INSERT OR REPLACE INTO {table} ({}) VALUES ({marks})", columns.join(", "));
        rows = transaction
            .execute(&insert, params_from_iter(previous.iter().map(|(_, value)| value)))
            .map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    Ok(rows as u64)
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn entry(store: &Path, key: &[u8], previous: Option<&Value>) -> Result<()> {
    if !store.join("CURRENT").is_file() {
        return Ok(());
    }
    let mut store = Store::open(store)?;
    match previous {
        Some(Value::Bytes(value)) => store.put(key, value)?,
        _ => store.delete(key)?,
    }
    store.close()
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(value) => ValueRef::Integer(*value),
            Self::Real(value) => ValueRef::Real(*value),
            Self::Text(value) => ValueRef::Text(value.as_bytes()),
            Self::Bytes(value) => ValueRef::Blob(value),
        }))
    }
}

impl From<ValueRef<'_>> for Value {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(value) => Self::Integer(value),
            ValueRef::Real(value) => Self::Real(value),
            ValueRef::Text(value) => Self::Text(String::from_utf8_lossy(value).into_owned()),
            ValueRef::Blob(value) => Self::Bytes(value.to_vec()),
        }
    }
}
