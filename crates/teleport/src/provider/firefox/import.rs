use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use spaceport_types::{Cause, Error, Result};

use super::cookies::Database;
use super::ini::{Ini, Section};
use super::items::{Form, ITEMS, Item, is_worth_cloning};
use super::place::{self, Installed, Root};
use crate::journal::{Before, Change, Journal};
use crate::machine::Machine;
use crate::manifest::{App, Scope};
use crate::payload::{Payload, Record, RecordKind};
use crate::provider::stage::{self, Stage};
use crate::provider::{ImportOptions, Imported, Into, Skipped, cookies, process};
use crate::snapshot;
use crate::transcode::{mozlz4, session_store};

/// The folder and the name of a profile that an import makes.
const NEW_FOLDER: &str = "spaceport.default";
const NEW_NAME: &str = "default";

/// Opens the tabs of the last session at a start.
const RESTORE_TABS: &str = "user_pref(\"browser.startup.page\", 3);\n";

/// Puts a payload in place.
pub(super) fn import(
    machine: &Machine,
    payload: &Payload,
    options: &ImportOptions,
    journal: &mut dyn Journal,
) -> Result<Imported> {
    let records = check(payload)?;
    let Some(firefox) = Installed::find(machine) else {
        let why = "Firefox is not installed";
        return Err(Error::because(Cause::NotImportable, why).hint("Install it, and try again"));
    };
    refuse_newer(payload, firefox.version(machine).as_deref())?;
    let root = Root::of(machine, Some(&firefox));
    let present = root.profile(Some(&firefox)).map(|(_, folder)| folder);
    let running = || present.as_deref().and_then(place::holder);
    process::make_closed(App::Firefox, options.close_running_app, &running)?;

    // In place of the profile there is; else beside others; else with the whole folder of profiles.
    let (published, profile, parent) = match &present {
        Some(folder) => {
            (folder.clone(), folder.clone(), folder.parent().unwrap_or(&root.0).to_owned())
        }
        None if root.0.exists() => {
            let folder = unused(&root.0);
            (folder.clone(), folder, root.0.clone())
        }
        None => {
            let parent = root.0.parent().unwrap_or(&root.0).to_owned();
            (root.0.clone(), root.0.join(NEW_FOLDER), parent)
        }
    };
    let stage = Stage::new(&parent, journal)?;
    let staged = if published == profile {
        stage.path().to_owned()
    } else {
        let profiles = listed(Ini::default(), NEW_FOLDER).to_string();
        stage::rewrite(&stage.path().join("profiles.ini"), profiles.as_bytes())?;
        stage.path().join(NEW_FOLDER)
    };
    let before = match (&present, options.into) {
        (None, _) => Before::Nothing,
        (Some(_), Into::Existing) => Before::Merged,
        (Some(_), Into::Replacing) => Before::Kept,
    };
    if staged != stage.path() {
        DirBuilder::new().mode(0o700).create(&staged)?;
    }
    if before == Before::Merged {
        stage::clone_tree(&profile, &staged, &is_worth_cloning)?;
    }
    let mut work = Work {
        payload,
        staged: &staged,
        target: &profile,
        before,
        done: Imported::into(&profile),
        changes: Vec::new(),
    };
    for (item, records) in records {
        work.item(item, &records)?;
    }
    let Work { mut done, changes, .. } = work;
    // What is new in a whole new profile goes with it.
    let changes = if before == Before::Merged { changes } else { Vec::new() };
    if done.imported.iter().any(|item| item == "sessionstore.jsonlz4") {
        let preferences = staged.join("prefs.js");
        let mut text = std::fs::read(&preferences).unwrap_or_default();
        text.extend(RESTORE_TABS.as_bytes());
        stage::rewrite(&preferences, &text)?;
    }
    // Without this file a start takes the profile for another installation's, and makes a new one; with
    // a newer version in it than its own it refuses to start.
    if let Some(compatibility) = firefox.compatibility() {
        stage::rewrite(&staged.join("compatibility.ini"), compatibility.as_bytes())?;
    }

    // It may have been started while we worked.
    process::make_closed(App::Firefox, options.close_running_app, &running)?;
    stage.publish(&published, before, changes, journal)?;
    if present.is_none() && published == profile {
        list_profile(&root, &profile, journal)?;
    }
    if options.launch_after {
        process::launch(machine, &firefox.program)?;
        done.launched = true;
    }
    Ok(done)
}

/// A folder that is not there yet.
fn unused(root: &Path) -> PathBuf {
    let mut names = (1..).map(|number| root.join(format!("spaceport-{number}.default")));
    names.find(|path| path.symlink_metadata().is_err()).unwrap_or_else(|| root.join(NEW_FOLDER))
}

/// The list of profiles with one more, which a plain start opens.
fn listed(mut profiles: Ini, folder: &str) -> Ini {
    let mut number = 0;
    for section in &mut profiles.sections {
        if section.name.starts_with("Profile") {
            section.remove("Default");
            number += 1;
        }
    }
    // What an installation had chosen is gone, or a profile would have been found.
    profiles.sections.retain(|section| !section.name.starts_with("Install"));
    while profiles.section(&format!("Profile{number}")).is_some() {
        number += 1;
    }
    let entries = [("Name", NEW_NAME), ("IsRelative", "1"), ("Path", folder), ("Default", "1")];
    profiles.sections.push(Section::new(&format!("Profile{number}"), &entries));
    if profiles.section("General").is_none() {
        let entries = [("StartWithLastProfile", "1"), ("Version", "2")];
        profiles.sections.push(Section::new("General", &entries));
    }
    profiles
}

/// Puts a profile that is in place on the list.
fn list_profile(root: &Root, profile: &Path, journal: &mut dyn Journal) -> Result<()> {
    let Some(folder) = profile.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    let target = root.0.join("profiles.ini");
    let stage = Stage::new(&root.0, journal)?;
    let file = stage.path().join("profiles.ini");
    stage::rewrite(&file, listed(root.profiles(), folder).to_string().as_bytes())?;
    stage.publish_files(&[(file, target)], journal)
}

/// A whole profile of a newer Firefox makes an older one refuse to start.
fn refuse_newer(payload: &Payload, version: Option<&str>) -> Result<()> {
    let head = payload.head();
    let source = head.app_version.as_deref().and_then(process::major);
    let (Some(source), Some(here)) = (source, version.and_then(process::major)) else {
        return Ok(());
    };
    if head.scope == Scope::Full && source > here {
        let why =
            format!("the profile is of Firefox {source}, and Firefox {here} is installed here");
        return Err(Error::because(Cause::ProfileNewer, why)
            .with("version", source)
            .with("destination_version", here)
            .hint("Update Firefox at the destination, or move the scope `session`"));
    }
    Ok(())
}

/// Records with their numbers in the payload.
type Numbered<'a> = Vec<(usize, &'a Record)>;

/// Holds a payload against what Firefox can have made, and sorts it by item.
fn check(payload: &Payload) -> Result<Vec<(&'static Item, Numbered<'_>)>> {
    if payload.head().app != App::Firefox {
        let why = format!("the bundle is of {}, not of firefox", payload.head().app);
        return Err(Error::because(Cause::NotImportable, why));
    }
    let mut items = BTreeMap::<usize, Vec<_>>::new();
    for (index, record) in payload.records().iter().enumerate() {
        let position = ITEMS.iter().position(|item| item.path == record.item);
        let fits = position.and_then(|position| ITEMS.get(position)).is_some_and(|item| {
            let kind = match item.form {
                Form::Cookies => RecordKind::Cookies,
                _ => RecordKind::File,
            };
            record.kind == kind && item.may_hold(record.path.as_str())
        });
        let (Some(position), true) = (position, fits) else {
            let path = record.path.as_str().escape_debug();
            let why = format!("`{path}` does not belong to Firefox");
            return Err(Error::because(Cause::CorruptBundle, why).with("path", path));
        };
        items.entry(position).or_default().push((index, record));
    }
    let sorted = items.into_iter();
    Ok(sorted.filter_map(|(position, records)| Some((ITEMS.get(position)?, records))).collect())
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
    fn item(&mut self, item: &Item, records: &[(usize, &Record)]) -> Result<()> {
        let is_in_place = match item.form {
            Form::Session => self.session(records)?,
            Form::Cookies => self.cookies(item, records)?,
            Form::Origins(_) => {
                let unit = |path: &str| path.split('/').take(3).collect::<Vec<_>>().join("/");
                self.files(item, records, &unit)?
            }
            _ => self.files(item, records, &|_| item.path.to_owned())?,
        };
        if is_in_place {
            self.done.imported.push(item.path.to_owned());
        }
        Ok(())
    }

    /// Adds windows to those of the last session.
    fn session(&self, records: &[(usize, &Record)]) -> Result<bool> {
        for (index, record) in records {
            let mut session =
                session_store::only_tabs(&self.unpacked(&mut self.payload.open(*index)?)?)?;
            if let Some((path, _)) = super::capture::session_file(self.staged)
                && let Some((mut own, _)) = snapshot::file(&path)?
                // What cannot be read would not be restored either.
                && let Ok(own) = self.unpacked(&mut own)
            {
                session = session_store::joined(&own, &session)?;
            }
            let file = self.staged.join(record.path.as_str());
            stage::rewrite(&file, &mozlz4::encode(&session))?;
        }
        Ok(true)
    }

    fn unpacked(&self, from: &mut dyn std::io::Read) -> Result<Vec<u8>> {
        let mut packed = Vec::new();
        from.read_to_end(&mut packed)?;
        mozlz4::decode(&packed)
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
            if self.before == Before::Merged && self.staged.join(&unit).exists() {
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
                if path.exists() {
                    std::fs::remove_file(&path)?;
                }
                stage::write(&path, record.mode, record.modified_ns, &mut bytes)?;
            }
        }
        Ok(any)
    }

    fn cookies(&mut self, item: &Item, records: &[(usize, &Record)]) -> Result<bool> {
        for (index, _) in records {
            let (head, carried) = cookies::read(self.payload.open(*index)?)?;
            let path = self.staged.join(item.path);
            let mut database = Database::open(&path)?;
            if head.schema > database.version {
                let (newer, older) = (head.schema, database.version);
                let why = format!("the cookies have schema {newer}, and Firefox here has {older}");
                return Err(Error::because(Cause::ProfileNewer, why)
                    .with("schema", newer)
                    .with("destination_schema", older)
                    .hint("Update Firefox at the destination, and start it once"));
            }
            let is_own = |cookie: &cookies::Cookie| {
                matches!(cookie.extra, cookies::Extra::Firefox { .. })
                    && std::str::from_utf8(cookie.value.expose()).is_ok()
            };
            if let Some(foreign) = carried.iter().find(|cookie| !is_own(cookie)) {
                let why = format!("a cookie of `{}` is another app's", foreign.host.escape_debug());
                return Err(Error::because(Cause::CorruptBundle, why));
            }
            let published = self.target.join(item.path);
            database.merge(&carried, &published, &mut self.changes)?;
            drop(database);
            // From the disk, as the browser will.
            let readable = Database::open(&path)?.readable(&carried)?;
            self.done.readable.extend(readable);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_start_opens_the_profile_that_was_added() {
        let present = "[Install3B60]\nDefault=gone.default\nLocked=1\n\n\
            [Profile0]\nName=a\nIsRelative=1\nPath=a.default\nDefault=1\n\n[General]\nVersion=2\n";
        let after = listed(Ini::parse(present), "b.default");
        assert_eq!(after.section("Install3B60"), None);
        assert_eq!(after.get("Profile0", "Default"), None);
        assert_eq!(after.get("Profile0", "Path"), Some("a.default"));
        assert_eq!(after.get("Profile1", "Path"), Some("b.default"));
        assert_eq!(after.get("Profile1", "Default"), Some("1"));
        assert_eq!(Ini::parse(&after.to_string()), after);
    }
}
