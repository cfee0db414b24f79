use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::Path;

use rusqlite::Connection;
use spaceport_types::{Cause, Error, Result};

use super::cookies::Database;
use super::items::{BOUND, Form, Item};
use crate::manifest::{Manifest, Selection};
use crate::payload::{Entry, ItemPath, PayloadWriter, RecordKind, modified_ns};
use crate::provider::{cookies, database_failed, local_storage};
use crate::snapshot;
use crate::transcode::os_crypt::{Keys, Unreadable};

/// Copies what was chosen out of a profile that may be in use.
pub(super) fn capture(
    profile: &Path,
    manifest: &Manifest,
    selection: &Selection,
    keys: &Keys,
    payload: &mut PayloadWriter,
) -> Result<()> {
    for chosen in selection.items() {
        let Some(item) = Item::named(&chosen.relative_path) else {
            let why = format!("{} has no `{}`", manifest.display_name, chosen.relative_path);
            return Err(Error::because(Cause::ManifestChanged, why).hint("Read the manifest again"));
        };
        let scratch = payload.scratch()?;
        let source = profile.join(item.path);
        let copy = scratch.path().join("copy");
        match item.form {
            Form::Cookies => take_cookies(&source, &copy, item, selection, keys, payload)?,
            Form::LocalStorage => {
                if snapshot::leveldb(&source, &copy)? {
                    let mut lines = File::create_new(scratch.path().join("lines"))?;
                    local_storage::write(&copy, &|host| selection.has_site(host), &mut lines)?;
                    add_lines(item, RecordKind::LocalStorage, lines_from_start(lines)?, payload)?;
                }
            }
            Form::Sessions | Form::Folder => {
                let wanted = |name: &str| {
                    name.ends_with('/') || item.may_hold(&format!("{}/{name}", item.path))
                };
                for found in snapshot::tree(&source, &wanted)? {
                    add_file(item, &found.name, &found.path, payload)?;
                }
            }
            Form::Store => {
                if snapshot::leveldb(&source, &copy)? {
                    add_folder(item, "", &copy, payload)?;
                }
            }
            Form::Stores => take_stores(&source, scratch.path(), item, selection, payload)?,
            Form::Database(columns) => {
                if snapshot::sqlite(&source, &copy)?.is_some() {
                    unbind(&copy, item, columns, keys)?;
                    add_file_at(item, item.path, &copy, payload)?;
                }
            }
            Form::File => add_file_at(item, item.path, &source, payload)?,
        }
    }
    Ok(())
}

fn take_cookies(
    source: &Path,
    copy: &Path,
    item: &Item,
    selection: &Selection,
    keys: &Keys,
    payload: &mut PayloadWriter,
) -> Result<()> {
    if snapshot::sqlite(source, copy)?.is_none() {
        return Ok(());
    }
    let database = Database::open(copy)?;
    let (found, unread) = database.read(keys, &|host| selection.has_site(host))?;
    if let Some(host) = unread.without_key.first() {
        let count = unread.without_key.len();
        let why = format!("{count} cookies are encrypted with a keyring that cannot be used now");
        return Err(Error::because(Cause::KeyUnavailable, why)
            .with("site", cookies::bare(host))
            .with("cookies", count));
    }
    if !unread.damaged.is_empty() {
        // The browser would not send them either.
        tracing::warn!(cookies = unread.damaged.len(), "left out cookies that cannot be decrypted");
    }
    let head = cookies::Head { schema: database.version };
    let mut lines = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(copy.with_file_name("lines"))?;
    cookies::write(head, &found, &mut lines)?;
    add_lines(item, RecordKind::Cookies, lines_from_start(lines)?, payload)
}

fn lines_from_start(mut lines: File) -> Result<File> {
    lines.flush()?;
    lines.rewind()?;
    Ok(lines)
}

fn add_lines(
    item: &Item,
    kind: RecordKind,
    mut lines: File,
    payload: &mut PayloadWriter,
) -> Result<()> {
    let path = ItemPath::new(item.path)?;
    let item = item.path.to_owned();
    let entry = Entry { item, kind, path, is_executable: false, modified_ns: 0, is_secret: true };
    payload.add(entry, &mut lines)
}

/// Stores by origin or extension, each copied for itself, and what lies beside them.
fn take_stores(
    source: &Path,
    scratch: &Path,
    item: &Item,
    selection: &Selection,
    payload: &mut PayloadWriter,
) -> Result<()> {
    let Ok(folders) = source.read_dir() else { return Ok(()) };
    for (number, folder) in folders.flatten().enumerate() {
        let Ok(name) = folder.file_name().into_string() else { continue };
        let is_chosen = origin_host(&name).is_none_or(|host| selection.has_site(host));
        if !is_chosen || !folder.file_type()?.is_dir() {
            continue;
        }
        let copy = scratch.join(number.to_string());
        if snapshot::leveldb(&folder.path(), &copy)? {
            add_folder(item, &format!("{name}/"), &copy, payload)?;
        } else {
            let wanted = |file: &str| {
                file.ends_with('/') || item.may_hold(&format!("{}/{name}/{file}", item.path))
            };
            for found in snapshot::tree(&folder.path(), &wanted)? {
                add_file(item, &format!("{name}/{}", found.name), &found.path, payload)?;
            }
        }
    }
    Ok(())
}

/// The host in `https_a.example_0.indexeddb.leveldb`; `None` for what is not by origin.
fn origin_host(folder: &str) -> Option<&str> {
    let origin = folder
        .strip_suffix(".indexeddb.leveldb")
        .or_else(|| folder.strip_suffix(".indexeddb.blob"))?;
    let (_, rest) = origin.split_once('_')?;
    Some(rest.rsplit_once('_').map_or(rest, |(host, _port)| host))
}

fn add_folder(item: &Item, prefix: &str, folder: &Path, payload: &mut PayloadWriter) -> Result<()> {
    for found in snapshot::tree(folder, &|_| true)? {
        add_file(item, &format!("{prefix}{}", found.name), &found.path, payload)?;
    }
    Ok(())
}

fn add_file(item: &Item, name: &str, from: &Path, payload: &mut PayloadWriter) -> Result<()> {
    add_file_at(item, &format!("{}/{name}", item.path), from, payload)
}

fn add_file_at(item: &Item, path: &str, from: &Path, payload: &mut PayloadWriter) -> Result<()> {
    // Gone since it was listed: the browser replaced it.
    let Some((mut bytes, metadata)) = snapshot::file(from)? else { return Ok(()) };
    let entry = Entry {
        item: item.path.to_owned(),
        kind: RecordKind::File,
        path: ItemPath::new(path)?,
        is_executable: false,
        modified_ns: modified_ns(&metadata),
        is_secret: item.is_sensitive,
    };
    payload.add(entry, &mut bytes)
}

/// Takes out of a copied database what binds it to this machine: rows that only work here go, and
/// values under the keyring's key are encrypted with the one that everyone knows.
fn unbind(copy: &Path, item: &Item, columns: &[(&str, &str)], keys: &Keys) -> Result<()> {
    let failed = |error| database_failed(copy, error);
    let connection = Connection::open(copy).map_err(failed)?;
    let exists = |table: &str| {
        let sql = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?";
        connection.query_row(sql, [table], |row| row.get::<_, i64>(0)).map(|count| count > 0)
    };
    for table in BOUND {
        if !columns.is_empty() && exists(table).map_err(failed)? {
            connection.execute(&format!("DELETE FROM {table}"), []).map_err(failed)?;
        }
    }
    let mut locked = 0;
    for (table, column) in columns {
        if !exists(table).map_err(failed)? {
            continue;
        }
        let bound: Vec<(i64, Vec<u8>)> = {
            let sql = format!(
                "SELECT rowid, {column} FROM {table}
                 WHERE typeof({column}) = 'blob' AND substr({column}, 1, 1) = CAST('v' AS BLOB)
                 AND substr({column}, 1, 3) <> CAST('v10' AS BLOB)"
            );
            let mut query = connection.prepare(&sql).map_err(failed)?;
            let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
            rows.collect::<rusqlite::Result<_>>().map_err(failed)?
        };
        for (row, value) in bound {
            match keys.decrypt(&value) {
                Ok(plain) => {
                    let sql = format!("UPDATE {table} SET {column} = ? WHERE rowid = ?");
                    connection
                        .execute(&sql, (keys.encrypt(plain.expose()), row))
                        .map_err(failed)?;
                }
                Err(Unreadable::NoKey) => locked += 1,
                Err(Unreadable::Damaged) => {
                    let sql = format!("DELETE FROM {table} WHERE rowid = ?");
                    connection.execute(&sql, [row]).map_err(failed)?;
                }
            }
        }
    }
    if locked > 0 {
        let why = format!("{locked} values of `{}` are encrypted with a keyring", item.path);
        return Err(Error::because(Cause::KeyUnavailable, why).with("item", item.path));
    }
    // What was deleted is not to be found in free pages.
    connection.execute_batch("VACUUM").map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_origins_tell_their_host() {
        assert_eq!(origin_host("https_a.example_0.indexeddb.leveldb"), Some("a.example"));
        assert_eq!(origin_host("http_127.0.0.1_8080.indexeddb.blob"), Some("127.0.0.1"));
        assert_eq!(origin_host("abcdefghijklmnopabcdefghijklmnop"), None);
    }
}
