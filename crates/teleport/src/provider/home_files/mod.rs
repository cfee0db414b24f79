//! Apps whose state is plain files below one folder: copied one by one, put in place one by one, and all
//! of them taken back when one cannot be.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use spaceport_types::{Cause, Error, Result};

use super::stage::{self, Stage};
use super::{Imported, Skipped};
use crate::journal::Journal;
use crate::machine::Machine;
use crate::manifest::{self, App, Scope, Selection};
use crate::payload::{Entry, ItemPath, Payload, PayloadWriter, Record, RecordKind, modified_ns};
use crate::snapshot;

/// Largest file that is rewritten on its way, which happens in memory.
const MAX_REWRITTEN: u64 = 64 << 20;

/// One item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Below the app's folder.
    pub(super) path: &'static str,
    pub(super) label: &'static str,
    /// The smallest scope that has it.
    pub(super) scope: Scope,
    pub(super) is_sensitive: bool,
    pub(super) form: Form,
}

/// How an item is stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// A file that is replaced as a whole, or only grows.
    File,
    /// A SQLite database.
    Database,
    /// A folder; says which files in it belong to the item.
    Folder(fn(&str) -> bool),
}

impl Item {
    fn may_hold(&self, path: &str) -> bool {
        match self.form {
            Form::File | Form::Database => path == self.path,
            Form::Folder(belongs) => path
                .strip_prefix(self.path)
                .and_then(|rest| rest.strip_prefix('/'))
                .is_some_and(belongs),
        }
    }

    /// How much it takes on disk; 0 when it is not there.
    fn bytes(&self, place: &Path) -> u64 {
        match self.form {
            Form::File | Form::Database => {
                place.symlink_metadata().ok().filter(|m| m.is_file()).map_or(0, |m| m.len())
            }
            Form::Folder(belongs) => {
                snapshot::tree_bytes(place, &|name| name.ends_with('/') || belongs(name))
            }
        }
    }
}

/// An app of this kind.
pub(super) trait Files {
    fn app(&self) -> App;

    fn items(&self) -> &'static [Item];

    /// Where the item of this name is on a machine, or a file of it.
    fn place(&self, machine: &Machine, path: &str) -> PathBuf;

    /// Whether what the item holds now makes it sensitive, though it usually is not.
    fn is_sensitive(&self, _item: &Item, _place: &Path) -> bool {
        false
    }

    /// Changes a copied database before it is carried.
    fn unbind(&self, _machine: &Machine, _item: &Item, _copy: &Path) -> Result<()> {
        Ok(())
    }

    /// Where a carried file goes, when its name tells of the source's home.
    fn renamed(&self, path: &str, _from: &Path, _to: &Path) -> String {
        path.to_owned()
    }

    /// What a carried file becomes beside what is there; `None` when it stays as it is.
    fn merged(
        &self,
        _path: &str,
        _carried: &[u8],
        _present: Option<&[u8]>,
        _homes: (&Path, &Path),
    ) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Whether an item that is there already is replaced, and not left alone.
    fn replaces(&self, item: &Item) -> bool {
        item.is_sensitive
    }
}

/// What can be chosen.
pub(super) fn list(app: &dyn Files, machine: &Machine, scope: Scope) -> Vec<manifest::Item> {
    let items = app.items().iter().filter(|item| item.scope <= scope);
    let listed = items.filter_map(|item| {
        let place = app.place(machine, item.path);
        let estimated_bytes = item.bytes(&place);
        let is_sensitive = item.is_sensitive || app.is_sensitive(item, &place);
        (estimated_bytes > 0).then(|| manifest::Item {
            relative_path: item.path.to_owned(),
            label: item.label.to_owned(),
            estimated_bytes,
            is_sensitive,
            is_checked_by_default: !is_sensitive,
            sites: Vec::new(),
        })
    });
    listed.collect()
}

/// Copies what was chosen.
pub(super) fn capture(
    app: &dyn Files,
    machine: &Machine,
    selection: &Selection,
    payload: &mut PayloadWriter,
) -> Result<()> {
    for chosen in selection.items() {
        let Some(item) = app.items().iter().find(|item| item.path == chosen.relative_path) else {
            let why = format!("{} has no `{}`", app.app().display_name(), chosen.relative_path);
            return Err(Error::because(Cause::ManifestChanged, why).hint("Read the manifest again"));
        };
        let place = app.place(machine, item.path);
        if app.is_sensitive(item, &place) && !chosen.is_sensitive {
            let why = format!("`{}` holds secrets since it was listed", item.path);
            return Err(Error::because(Cause::ManifestChanged, why).hint("Read the manifest again"));
        }
        let is_secret = chosen.is_sensitive;
        match item.form {
            Form::File => add(item, item.path, &place, is_secret, payload)?,
            Form::Database => database(app, machine, item, item.path, &place, is_secret, payload)?,
            Form::Folder(belongs) => {
                let wanted = |name: &str| name.ends_with('/') || belongs(name);
                for found in snapshot::tree(&place, &wanted)? {
                    let path = format!("{}/{}", item.path, found.name);
                    if path.ends_with(".vscdb") {
                        database(app, machine, item, &path, &found.path, is_secret, payload)?;
                    } else {
                        add(item, &path, &found.path, is_secret, payload)?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn database(
    app: &dyn Files,
    machine: &Machine,
    item: &Item,
    path: &str,
    place: &Path,
    is_secret: bool,
    payload: &mut PayloadWriter,
) -> Result<()> {
    let scratch = payload.scratch()?;
    let copy = scratch.path().join("copy");
    if snapshot::sqlite(place, &copy)?.is_some() {
        app.unbind(machine, item, &copy)?;
        add(item, path, &copy, is_secret, payload)?;
    }
    Ok(())
}

fn add(
    item: &Item,
    path: &str,
    from: &Path,
    is_secret: bool,
    payload: &mut PayloadWriter,
) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    // Gone since it was listed: the app replaced it.
    let Some((mut bytes, metadata)) = snapshot::file(from)? else { return Ok(()) };
    let entry = Entry {
        item: item.path.to_owned(),
        kind: RecordKind::File,
        path: ItemPath::new(path)?,
        is_executable: metadata.permissions().mode() & 0o100 != 0,
        modified_ns: modified_ns(&metadata),
        is_secret,
    };
    if !path.ends_with(".jsonl") {
        return payload.add(entry, &mut bytes);
    }
    // It only grows; the last line may be half written.
    let mut lines = Vec::new();
    bytes.take(MAX_REWRITTEN).read_to_end(&mut lines)?;
    let whole = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    lines.truncate(whole);
    payload.add(entry, &mut &*lines)
}

/// Puts a payload in place.
pub(super) fn import(
    app: &dyn Files,
    machine: &Machine,
    payload: &Payload,
    replaces_all: bool,
    root: &Path,
    journal: &mut dyn Journal,
) -> Result<Imported> {
    let records = check(app, payload)?;
    let mut done = Imported::into(root);
    let parent = root.parent().unwrap_or(root);
    let stage = Stage::new(parent, journal)?;
    let homes = (payload.head().home.as_path(), machine.home.as_path());
    let mut files = Vec::new();
    let mut folders = Vec::new();
    for (item, records) in records {
        let mut any = false;
        for (index, record) in records {
            let path = ItemPath::new(&app.renamed(record.path.as_str(), homes.0, homes.1))?;
            let target = app.place(machine, path.as_str());
            let staged = stage.path().join(files.len().to_string());
            let present = snapshot::file(&target)?;
            let is_there = present.is_some() || target.symlink_metadata().is_ok();
            let mut bytes = payload.open(index)?;
            let merged = if record.len <= MAX_REWRITTEN {
                let mut carried = Vec::new();
                bytes.read_to_end(&mut carried)?;
                let mut own = Vec::new();
                if let Some((file, _)) = present {
                    file.take(MAX_REWRITTEN).read_to_end(&mut own)?;
                }
                let own = is_there.then_some(own.as_slice());
                let merged = app.merged(path.as_str(), &carried, own, homes)?;
                let is_merged = merged.is_some();
                (Box::new(Cursor::new(merged.unwrap_or(carried))) as Box<dyn Read>, is_merged)
            } else {
                (Box::new(bytes) as Box<dyn Read>, false)
            };
            let (mut bytes, is_merged) = merged;
            if is_there && !is_merged && !replaces_all && !app.replaces(item) {
                let why = "there is one already; replace it to have this one".to_owned();
                done.skipped.push(Skipped { what: path.as_str().to_owned(), why });
                continue;
            }
            stage::write(&staged, record.mode, record.modified_ns, &mut bytes)?;
            folders.extend(target.parent().map(Path::to_owned));
            files.push((staged, target));
            any = true;
        }
        if any {
            done.imported.push(item.path.to_owned());
        }
    }
    for folder in folders {
        stage::folders(&folder, journal)?;
    }
    stage.publish_files(&files, journal)?;
    Ok(done)
}

/// Records with their numbers in the payload.
type Numbered<'a> = Vec<(usize, &'a Record)>;

/// Holds a payload against what the app can have made, and sorts it by item.
fn check<'a>(app: &dyn Files, payload: &'a Payload) -> Result<Vec<(&'static Item, Numbered<'a>)>> {
    let name = app.app().display_name();
    if payload.head().app != app.app() {
        let why = format!("the bundle is of {}, not of {}", payload.head().app, app.app());
        return Err(Error::because(Cause::NotImportable, why));
    }
    let mut items = BTreeMap::<usize, Vec<_>>::new();
    for (index, record) in payload.records().iter().enumerate() {
        let position = app.items().iter().position(|item| {
            item.path == record.item
                && record.kind == RecordKind::File
                && item.may_hold(record.path.as_str())
        });
        let Some(position) = position else {
            let path = record.path.as_str().escape_debug();
            let why = format!("`{path}` does not belong to {name}");
            return Err(Error::because(Cause::CorruptBundle, why).with("path", path));
        };
        items.entry(position).or_default().push((index, record));
    }
    let sorted = items.into_iter();
    Ok(sorted.filter_map(|(index, records)| Some((app.items().get(index)?, records))).collect())
}

#[cfg(test)]
mod tests;
