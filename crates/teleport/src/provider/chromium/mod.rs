//! Chromium and Google Chrome: one implementation, two places.
//!
//! Cookies and local storage move as records, and are encrypted for the destination there; the rest
//! moves as files. An import prepares a whole profile beside the old one and exchanges the two.

mod capture;
mod cookies;
mod import;
mod items;
mod place;

use std::path::Path;

use spaceport_types::{Error, Kind, Result};

use self::items::{Form, ITEMS, Item};
use self::place::Root;
use super::{ImportOptions, Imported, Provider, Receiver, keyring, process, undo};
use crate::journal::{Change, Journal, Undone};
use crate::machine::Machine;
use crate::manifest::{self, App, Manifest, Scope, Selection};
use crate::payload::{Payload, PayloadWriter};
use crate::snapshot;
use crate::transcode::os_crypt::Keys;

/// One of the two.
#[derive(Debug)]
pub(super) struct Chromium(pub(super) App);

impl Provider for Chromium {
    fn app(&self) -> App {
        self.0
    }

    fn receiver(&self, machine: &Machine) -> Receiver {
        let is_installed = place::program(self.0, machine).is_some();
        Receiver {
            supported: is_installed,
            limitation: (!is_installed)
                .then(|| format!("{} is not installed", self.0.display_name())),
            app_installed: is_installed,
            app_running: Root::of(self.0, machine).holder().is_some(),
            scopes: vec![Scope::Tabs, Scope::Session, Scope::Full],
        }
    }

    fn manifest(&self, machine: &Machine, scope: Scope) -> Result<Manifest> {
        let root = Root::of(self.0, machine);
        if !root.is_used() {
            let why = format!("{} has no profile here", self.0.display_name());
            return Err(Error::new(Kind::NotFound, why).hint("Start it once, or name another app"));
        }
        let name = root.profile();
        let profile = root.0.join(&name);
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
        if root.holder().is_some() {
            notes.push(format!(
                "{} is running: what sites set in the last 30 seconds may be missing. Close it for an \
                 exact copy.",
                self.0.display_name()
            ));
        }
        if profile.join("Device Bound Sessions").exists() {
            notes.push(
                "Sessions that sites have bound to this machine do not move; sign in to those again."
                    .to_owned(),
            );
        }
        let mut manifest = Manifest::new(self.0, scope, &name, root.version(), listed);
        manifest.notes = notes;
        Ok(manifest)
    }

    fn capture(
        &self,
        machine: &Machine,
        manifest: &Manifest,
        selection: &Selection,
        payload: &mut PayloadWriter,
    ) -> Result<()> {
        let root = Root::of(self.0, machine);
        let profile = root.0.join(root.profile());
        capture::capture(&profile, manifest, selection, &keys(self.0, machine), payload)
            .map_err(|error| keyring::explain(error, machine))
    }

    fn import(
        &self,
        machine: &Machine,
        payload: &Payload,
        options: &ImportOptions,
        journal: &mut dyn Journal,
    ) -> Result<Imported> {
        import::import(self.0, machine, payload, options, journal)
    }

    fn wipe(
        &self,
        machine: &Machine,
        changes: &[Change],
        close_running_app: bool,
    ) -> Result<Undone> {
        let root = Root::of(self.0, machine);
        process::make_closed(self.0, close_running_app, &|| root.holder())?;
        undo::undo(changes)
    }
}

/// The keys that this machine has.
fn keys(app: App, machine: &Machine) -> Keys {
    let name = if app == App::Chrome { "chrome" } else { "chromium" };
    keyring::keys(machine, name)
}

/// How much an item takes on disk; 0 when it is not there.
fn bytes(profile: &Path, item: &Item) -> u64 {
    let place = profile.join(item.path);
    match item.form {
        Form::Cookies | Form::Database(_) | Form::File => {
            place.symlink_metadata().map_or(0, |metadata| metadata.len())
        }
        _ => snapshot::tree_bytes(&place, &|name| {
            name.ends_with('/') || item.may_hold(&format!("{}/{name}", item.path)) || {
                item.form == Form::LocalStorage && items::is_store_file(name)
            }
        }),
    }
}

/// What an item holds per site. Where that cannot be read now, the item is offered as a whole.
fn sites(
    machine: &Machine,
    profile: &Path,
    item: &Item,
    notes: &mut Vec<String>,
) -> Vec<manifest::Site> {
    let mut read = || -> Result<Vec<String>> {
        let scratch = crate::payload::scratch_in(&machine.runtime)?;
        let copy = scratch.path().join("copy");
        match item.form {
            Form::Cookies => {
                if snapshot::sqlite(&profile.join(item.path), &copy)?.is_none() {
                    return Ok(Vec::new());
                }
                let cookies = cookies::Database::open(&copy)?;
                let bound = cookies.bound()?;
                if bound > 0 {
                    notes.push(format!(
                        "{bound} cookies are encrypted with this machine's keyring, which has to be \
                         unlocked for them to move."
                    ));
                }
                cookies.hosts()
            }
            Form::LocalStorage if snapshot::leveldb(&profile.join(item.path), &copy)? => {
                super::local_storage::hosts(&copy)
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

#[cfg(test)]
mod tests;
