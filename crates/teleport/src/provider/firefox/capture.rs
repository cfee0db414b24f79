use std::fs::{File, Metadata};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};

use spaceport_types::{Cause, Error, Result};

use super::cookies::Database;
use super::items::{Form, Item, KEYS, is_origin_file, origin_host};
use crate::manifest::Selection;
use crate::payload::{Entry, ItemPath, PayloadWriter, RecordKind, modified_ns};
use crate::provider::cookies;
use crate::snapshot;
use crate::transcode::{mozlz4, session_store};

/// Copies what was chosen out of a profile that may be in use.
pub(super) fn capture(
    profile: &Path,
    selection: &Selection,
    payload: &mut PayloadWriter,
) -> Result<()> {
    for chosen in selection.items() {
        let Some(item) = Item::named(&chosen.relative_path) else {
            let why = format!("Firefox has no `{}`", chosen.relative_path);
            return Err(Error::because(Cause::ManifestChanged, why).hint("Read the manifest again"));
        };
        let scratch = payload.scratch()?;
        let scratch = scratch.path();
        let source = profile.join(item.path);
        match item.form {
            Form::Session => {
                if let Some((path, metadata)) = session_file(profile) {
                    let Some((mut bytes, _)) = snapshot::file(&path)? else { continue };
                    let mut packed = Vec::new();
                    bytes.read_to_end(&mut packed)?;
                    let tabs = session_store::only_tabs(&mozlz4::decode(&packed)?)?;
                    add(item, item.path, &metadata, &mut &*mozlz4::encode(&tabs), payload)?;
                }
            }
            Form::Cookies => {
                let copy = scratch.join("copy");
                if snapshot::sqlite(&source, &copy)?.is_some() {
                    let database = Database::open(&copy)?;
                    let found = database.read(&|host| selection.has_site(host))?;
                    let mut lines = File::options()
                        .read(true)
                        .write(true)
                        .create_new(true)
                        .open(scratch.join("lines"))?;
                    cookies::write(cookies::Head { schema: database.version }, &found, &mut lines)?;
                    lines.rewind()?;
                    let entry = Entry {
                        item: item.path.to_owned(),
                        kind: RecordKind::Cookies,
                        path: ItemPath::new(item.path)?,
                        is_executable: false,
                        modified_ns: 0,
                        is_secret: true,
                    };
                    payload.add(entry, &mut lines)?;
                }
            }
            Form::Origins(starts) => {
                for origin in origins(&source, starts) {
                    if !origin_host(&origin).is_some_and(|host| selection.has_site(host)) {
                        continue;
                    }
                    let folder = source.join(&origin);
                    let wanted = |name: &str| name.ends_with('/') || is_origin_file(name);
                    for found in snapshot::tree(&folder, &wanted)? {
                        let name = format!("{}/{origin}/{}", item.path, found.name);
                        take(item, &name, &found.path, scratch, payload)?;
                    }
                }
            }
            Form::Folder(_) => {
                let wanted = |name: &str| item.may_hold(&format!("{}/{name}", item.path));
                for found in snapshot::tree(&source, &wanted)? {
                    take(
                        item,
                        &format!("{}/{}", item.path, found.name),
                        &found.path,
                        scratch,
                        payload,
                    )?;
                }
            }
            Form::Logins => {
                take(item, item.path, &source, scratch, payload)?;
                take(item, KEYS, &profile.join(KEYS), scratch, payload)?;
            }
            Form::Database | Form::File => take(item, item.path, &source, scratch, payload)?,
        }
    }
    Ok(())
}

/// The newest file that tells which tabs are open: one while Firefox runs, another when it is closed.
pub(super) fn session_file(profile: &Path) -> Option<(PathBuf, Metadata)> {
    let files = ["sessionstore-backups/recovery.jsonlz4", "sessionstore.jsonlz4"];
    let found = files.iter().filter_map(|name| {
        let path = profile.join(name);
        let metadata = path.symlink_metadata().ok().filter(Metadata::is_file)?;
        Some((path, metadata))
    });
    found.max_by_key(|(_, metadata)| modified_ns(metadata))
}

/// The folders of origins whose name begins like this, in order.
pub(super) fn origins(storage: &Path, starts: &[&str]) -> Vec<String> {
    let folders = storage.read_dir().into_iter().flatten().flatten();
    let names = folders.filter_map(|folder| folder.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter(|name| starts.iter().any(|start| name.starts_with(start))).collect();
    names.sort();
    names
}

/// Takes a file; a database by way of a consistent copy.
fn take(
    item: &Item,
    name: &str,
    from: &Path,
    scratch: &Path,
    payload: &mut PayloadWriter,
) -> Result<()> {
    let copy = scratch.join("taken");
    let is_database = name.ends_with(".sqlite") || name.ends_with(".db");
    if is_database && snapshot::sqlite(from, &copy)?.is_none() {
        return Ok(());
    }
    let from = if is_database { &copy } else { from };
    // Gone since it was listed: the browser replaced it.
    let Some((mut bytes, metadata)) = snapshot::file(from)? else { return Ok(()) };
    add(item, name, &metadata, &mut bytes, payload)
}

fn add(
    item: &Item,
    name: &str,
    metadata: &Metadata,
    bytes: &mut dyn std::io::Read,
    payload: &mut PayloadWriter,
) -> Result<()> {
    let entry = Entry {
        item: item.path.to_owned(),
        kind: RecordKind::File,
        path: ItemPath::new(name)?,
        is_executable: false,
        modified_ns: modified_ns(metadata),
        is_secret: item.is_sensitive,
    };
    payload.add(entry, bytes)
}
