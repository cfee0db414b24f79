//! Mozilla Firefox.
//!
//! Cookies move as fields and tabs without anything that pages stored in them. The hard part is the
//! destination: a plain start opens the imported profile only when the profile says that it belongs to
//! this installation, or the list of profiles does.

mod capture;
mod cookies;
mod import;
mod ini;
mod items;
mod place;

use std::path::Path;

use spaceport_types::{Error, Kind, Result};

use self::items::{Form, ITEMS, Item};
use self::place::{Installed, Root};
use super::{ImportOptions, Imported, Provider, Receiver, process, undo};
use crate::journal::{Change, Journal, Undone};
use crate::machine::Machine;
use crate::manifest::{self, App, Manifest, Scope, Selection};
use crate::payload::{Payload, PayloadWriter};
use crate::snapshot;

#[derive(Debug)]
pub(super) struct Firefox;

impl Provider for Firefox {
    fn app(&self) -> App {
        App::Firefox
    }

    fn receiver(&self, machine: &Machine) -> Receiver {
        let installed = Installed::find(machine);
        let root = Root::found(machine, installed.as_ref());
        let profile = root.and_then(|root| root.profile(installed.as_ref()));
        Receiver {
            supported: installed.is_some(),
            limitation: installed.is_none().then(|| "Firefox is not installed".to_owned()),
            app_installed: installed.is_some(),
            app_running: profile.is_some_and(|(_, folder)| place::holder(&folder).is_some()),
            scopes: vec![Scope::Tabs, Scope::Session, Scope::Full],
        }
    }

    fn manifest(&self, machine: &Machine, scope: Scope) -> Result<Manifest> {
        let (name, profile) = source(machine)?;
        let mut notes = Vec::new();
        let mut listed = Vec::new();
        for item in ITEMS.iter().filter(|item| item.scope <= scope) {
            let estimated_bytes = bytes(&profile, item);
            if estimated_bytes == 0 {
                continue;
            }
            listed.push(manifest::Item {
                relative_path: item.path.to_owned(),
                label: item.label.to_owned(),
                estimated_bytes,
                is_sensitive: item.is_sensitive,
                is_checked_by_default: !item.is_sensitive,
                sites: sites(machine, &profile, item, &mut notes),
            });
        }
        if place::holder(&profile).is_some() {
            notes.push(
                "Firefox is running: tabs of the last 15 seconds may be missing. Close it for an exact \
                 copy."
                    .to_owned(),
            );
        }
        if scope == Scope::Full {
            notes.push("Extensions do not move; install them again.".to_owned());
        }
        let version = place::version(&profile);
        let mut manifest = Manifest::new(App::Firefox, scope, &name, version, listed);
        manifest.notes = notes;
        Ok(manifest)
    }

    fn capture(
        &self,
        machine: &Machine,
        _manifest: &Manifest,
        selection: &Selection,
        payload: &mut PayloadWriter,
    ) -> Result<()> {
        let (_, profile) = source(machine)?;
        capture::capture(&profile, selection, payload)
    }

    fn import(
        &self,
        machine: &Machine,
        payload: &Payload,
        options: &ImportOptions,
        journal: &mut dyn Journal,
    ) -> Result<Imported> {
        import::import(machine, payload, options, journal)
    }

    fn wipe(
        &self,
        machine: &Machine,
        changes: &[Change],
        close_running_app: bool,
    ) -> Result<Undone> {
        let installed = Installed::find(machine);
        let root = Root::found(machine, installed.as_ref());
        process::make_closed(App::Firefox, close_running_app, &|| {
            place::holder(&root.as_ref()?.profile(installed.as_ref())?.1)
        })?;
        undo::undo(changes)
    }
}

/// The profile that a plain start opens.
fn source(machine: &Machine) -> Result<(String, std::path::PathBuf)> {
    let installed = Installed::find(machine);
    let root = Root::found(machine, installed.as_ref());
    root.and_then(|root| root.profile(installed.as_ref())).ok_or_else(|| {
        Error::new(Kind::NotFound, "Firefox has no profile here")
            .hint("Start it once, or name another app")
    })
}

/// How much an item takes on disk; 0 when it is not there.
fn bytes(profile: &Path, item: &Item) -> u64 {
    let len = |name: &str| profile.join(name).symlink_metadata().map_or(0, |file| file.len());
    match item.form {
        Form::Session => capture::session_file(profile).map_or(0, |(_, metadata)| metadata.len()),
        Form::Cookies | Form::Database | Form::File => len(item.path),
        // One of them alone tells nothing.
        Form::Logins if len(items::KEYS) == 0 || len(item.path) == 0 => 0,
        Form::Logins => len(item.path) + len(items::KEYS),
        Form::Folder(_) | Form::Origins(_) => {
            snapshot::tree_bytes(&profile.join(item.path), &|name| {
                name.ends_with('/') || item.may_hold(&format!("{}/{name}", item.path))
            })
        }
    }
}

/// What an item holds per site. Where that cannot be read now, the item is offered as a whole.
fn sites(
    machine: &Machine,
    profile: &Path,
    item: &Item,
    notes: &mut Vec<String>,
) -> Vec<manifest::Site> {
    let read = || -> Result<Vec<String>> {
        match item.form {
            Form::Cookies => {
                let scratch = crate::payload::scratch_in(&machine.runtime)?;
                let copy = scratch.path().join("copy");
                match snapshot::sqlite(&profile.join(item.path), &copy)? {
                    None => Ok(Vec::new()),
                    Some(_) => cookies::Database::open(&copy)?.hosts(),
                }
            }
            Form::Origins(starts) => {
                let folders = capture::origins(&profile.join(item.path), starts);
                let host = |folder: &String| items::origin_host(folder).map(str::to_owned);
                Ok(folders.iter().filter_map(host).collect())
            }
            _ => Ok(Vec::new()),
        }
    };
    match read() {
        Ok(hosts) => super::cookies::sites(hosts.iter().map(String::as_str)),
        Err(error) => {
            notes.push(format!("The sites of `{}` cannot be listed now: {error}.", item.path));
            Vec::new()
        }
    }
}
