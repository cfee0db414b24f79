use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use spaceport_types::{Cause, Error, Result};

use super::cookies::Database;
use super::items::{Form, Item, is_worth_cloning};
use super::{Root, keys, place};
use crate::journal::{Before, Change, Journal};
use crate::machine::Machine;
use crate::manifest::App;
use crate::payload::{Payload, Record, RecordKind};
use crate::provider::cookies::Cookie;
use crate::provider::stage::{self, Stage};
use crate::provider::{
    ImportOptions, Imported, Into, Readable, Skipped, cookies, local_storage, process,
};
use crate::transcode::preferences;

/// Puts a payload in place.
pub(super) fn import(
    app: App,
    machine: &Machine,
    payload: &Payload,
    options: &ImportOptions,
    journal: &mut dyn Journal,
) -> Result<Imported> {
    let records = check(app, payload)?;
    let Some(program) = place::program(app, machine) else {
        let why = format!("{} is not installed", app.display_name());
        return Err(Error::because(Cause::NotImportable, why).hint("Install it, and try again"));
    };
    let root = Root::of(app, machine);
    let name = root.profile();
    let target = root.0.join(&name);
    process::make_closed(app, options.close_running_app, &|| root.holder())?;

    // A place for the profile alone, or for the whole folder of profiles where there is none.
    let is_first = !root.0.exists();
    let parent = if is_first { root.0.parent().unwrap_or(&root.0) } else { &root.0 };
    let stage = Stage::new(parent, journal)?;
    let staged = if is_first { stage.path().join(&name) } else { stage.path().to_owned() };
    let before = match options.into {
        _ if !target.exists() => Before::Nothing,
        Into::Existing => Before::Merged,
        Into::Replacing => Before::Kept,
    };
    if staged != stage.path() {
        DirBuilder::new().mode(0o700).create(&staged)?;
    }
    if before == Before::Merged {
        stage::clone_tree(&target, &staged, &is_worth_cloning)?;
    }
    let mut work = Work {
        payload,
        staged: &staged,
        target: &target,
        before,
        done: Imported::into(&target),
        changes: Vec::new(),
    };
    for (item, records) in records {
        work.item(app, machine, item, &records)?;
    }
    let Work { mut done, changes, .. } = work;
    // What is new in a whole new profile goes with it.
    let changes = if before == Before::Merged { changes } else { Vec::new() };

    if done.imported.iter().any(|item| item == "Sessions") {
        let preferences = staged.join("Preferences");
        let present = std::fs::read(&preferences).ok();
        stage::rewrite(&preferences, &preferences::restore_tabs(present.as_deref())?)?;
    }

    // It may have been started while we worked.
    process::make_closed(app, options.close_running_app, &|| root.holder())?;
    let published = if is_first { &root.0 } else { &target };
    stage.publish(published, before, changes, journal)?;
    if options.launch_after {
        process::launch(machine, &program)?;
        done.launched = true;
    }
    Ok(done)
}

/// Records with their numbers in the payload.
type Numbered<'a> = Vec<(usize, &'a Record)>;

/// Holds a payload against what this app can have made, and sorts it by item.
fn check(app: App, payload: &Payload) -> Result<Vec<(&'static Item, Numbered<'_>)>> {
    if payload.head().app != app {
        let why = format!("the bundle is of {}, not of {app}", payload.head().app);
        return Err(Error::because(Cause::NotImportable, why));
    }
    let mut items = BTreeMap::<usize, Vec<_>>::new();
    for (index, record) in payload.records().iter().enumerate() {
        let position = super::ITEMS.iter().position(|item| item.path == record.item);
        let fits = position.and_then(|position| super::ITEMS.get(position)).is_some_and(|item| {
            let kind = match item.form {
                Form::Cookies => RecordKind::Cookies,
                Form::LocalStorage => RecordKind::LocalStorage,
                _ => RecordKind::File,
            };
            record.kind == kind && item.may_hold(record.path.as_str())
        });
        let (Some(position), true) = (position, fits) else {
            let path = record.path.as_str().escape_debug();
            let why = format!("`{path}` does not belong to {}", app.display_name());
            return Err(Error::because(Cause::CorruptBundle, why).with("path", path));
        };
        items.entry(position).or_default().push((index, record));
    }
    let sorted = items.into_iter();
    Ok(sorted
        .filter_map(|(position, records)| Some((super::ITEMS.get(position)?, records)))
        .collect())
}

/// A profile being prepared.
struct Work<'a> {
    payload: &'a Payload,
    staged: &'a Path,
    /// Where it will be.
    target: &'a Path,
    before: Before,
    done: Imported,
    /// What is new in it, compared with what was merged.
    changes: Vec<Change>,
}

impl Work<'_> {
    fn item(
        &mut self,
        app: App,
        machine: &Machine,
        item: &Item,
        records: &[(usize, &Record)],
    ) -> Result<()> {
        match item.form {
            Form::Cookies => self.cookies(app, machine, item, records)?,
            Form::LocalStorage => {
                let store = self.staged.join(item.path);
                std::fs::create_dir_all(&store)?;
                for (index, _) in records {
                    local_storage::merge(
                        self.payload.open(*index)?,
                        &store,
                        &self.target.join(item.path),
                        &mut self.changes,
                    )?;
                }
            }
            Form::Sessions => {
                if !self.files(item, records, &|_| item.path.to_owned())? {
                    return Ok(());
                }
            }
            // One folder of it is one origin's or one extension's; the others are none of its business.
            Form::Stores | Form::Folder => {
                let unit = |path: &str| {
                    let depth = item.path.matches('/').count() + 2;
                    path.split('/').take(depth).collect::<Vec<_>>().join("/")
                };
                if !self.files(item, records, &unit)? {
                    return Ok(());
                }
            }
            Form::Store | Form::Database(_) | Form::File => {
                if !self.files(item, records, &|_| item.path.to_owned())? {
                    return Ok(());
                }
            }
        }
        self.done.imported.push(item.path.to_owned());
        Ok(())
    }

    /// Puts files in place, unit by unit: a unit that the profile has already stays as it is. Whether
    /// any is in place.
    fn files(
        &mut self,
        item: &Item,
        records: &[(usize, &Record)],
        unit: &dyn Fn(&str) -> String,
    ) -> Result<bool> {
        let mut units = BTreeMap::<String, Vec<_>>::new();
        for record in records {
            units.entry(unit(record.1.path.as_str())).or_default().push(record);
        }
        let mut any = false;
        for (unit, records) in units {
            let is_taken = self.before == Before::Merged && is_filled(&self.staged.join(&unit));
            if is_taken {
                let what = if unit == item.path { item.path.to_owned() } else { unit };
                let why =
                    "the profile has its own; replace the profile to have this one".to_owned();
                self.done.skipped.push(Skipped { what, why });
                continue;
            }
            any = true;
            if self.before == Before::Merged {
                self.changes.push(Change::Tree { path: self.target.join(&unit) });
            }
            for (index, record) in records {
                let path = stage::place(self.staged, &record.path)?;
                let mut bytes = self.payload.open(*index)?;
                stage::write(&path, record.mode, record.modified_ns, &mut bytes)?;
            }
        }
        Ok(any)
    }

    fn cookies(
        &mut self,
        app: App,
        machine: &Machine,
        item: &Item,
        records: &[(usize, &Record)],
    ) -> Result<()> {
        let has_tabs = self.payload.records().iter().any(|record| record.item == "Sessions");
        let keys = keys(app, machine);
        for (index, _) in records {
            let (head, carried) = cookies::read(self.payload.open(*index)?)?;
            let path = self.staged.join(item.path);
            let mut database = Database::open(&path)?;
            if head.schema > database.version {
                let (newer, older) = (head.schema, database.version);
                let why = format!(
                    "the cookies have schema {newer}, and {} here has {older}",
                    app.display_name()
                );
                return Err(Error::because(Cause::ProfileNewer, why)
                    .with("schema", newer)
                    .with("destination_schema", older)
                    .hint("Update the app at the destination, and start it once"));
            }
            if let Some(foreign) = carried
                .iter()
                .find(|cookie| !matches!(cookie.extra, cookies::Extra::Chromium { .. }))
            {
                let why = format!("a cookie of `{}` is another app's", foreign.host.escape_debug());
                return Err(Error::because(Cause::CorruptBundle, why));
            }
            // Without the tabs the browser deletes at its start what lives as long as it runs.
            let (kept, gone): (Vec<Cookie>, Vec<Cookie>) =
                carried.into_iter().partition(|cookie| has_tabs || cookie.expires_us.is_some());
            if !gone.is_empty() {
                self.done.skipped.push(Skipped {
                    what: item.path.to_owned(),
                    why: format!(
                        "{} cookies end with the browser; they move with the tabs",
                        gone.len()
                    ),
                });
            }
            let published = self.target.join(item.path);
            database.merge(&kept, &keys, &published, &mut self.changes)?;
            drop(database);
            // From the disk, as the browser will.
            let readable: Vec<Readable> = Database::open(&path)?.readable(&kept, &keys)?;
            self.done.readable.extend(readable);
        }
        Ok(())
    }
}

/// Whether there is a file, or a folder with something in it.
fn is_filled(path: &Path) -> bool {
    match path.read_dir() {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => {
            let mut byte = [0];
            std::fs::File::open(path)
                .is_ok_and(|mut file| file.read(&mut byte).is_ok_and(|n| n > 0))
        }
    }
}
