//! Visual Studio Code: what is open and unsaved, who is signed in, and the settings.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rustix::process::Pid;
use serde_json::{Value, json};
use spaceport_types::{Cause, Error, Kind, Result};

use super::home_files::{self, Files, Form, Item};
use super::{ImportOptions, Imported, Into, Provider, Receiver, database_failed, process, undo};
use crate::journal::{Change, Journal, Undone};
use crate::machine::Machine;
use crate::manifest::{App, Manifest, Scope, Selection};
use crate::payload::{Payload, PayloadWriter};
use crate::transcode::os_crypt::{Keys, Unreadable};
use crate::transcode::secret::Secret;

#[rustfmt::skip]
const ITEMS: &[Item] = &[
    Item { scope: Scope::Tabs, is_sensitive: false, form: Form::File, path: "User/globalStorage/storage.json", label: "Open windows and folders" },
    Item { scope: Scope::Tabs, is_sensitive: false, form: Form::Folder(is_workspace), path: "User/workspaceStorage", label: "Open editors and layout of each folder" },
    Item { scope: Scope::Tabs, is_sensitive: true, form: Form::Folder(is_plain), path: "Backups", label: "Files that were never saved" },
    Item { scope: Scope::Session, is_sensitive: true, form: Form::Database, path: STATE, label: "Sign-ins of the editor and its extensions" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::File, path: "User/settings.json", label: "Settings" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::File, path: "User/keybindings.json", label: "Keyboard shortcuts" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::File, path: "User/tasks.json", label: "Tasks" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::Folder(is_plain), path: "User/snippets", label: "Snippets" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::Folder(is_profile), path: "User/profiles", label: "Profiles" },
];

const STATE: &str = "User/globalStorage/state.vscdb";

/// How the names of secrets in the state begin.
const SECRET: &str = "secret://";

/// Words within the names of settings that hold secrets.
const TELLING: [&str; 5] = ["token", "password", "secret", "apikey", "api_key"];

fn is_plain(name: &str) -> bool {
    !name.split('/').any(|part| part.ends_with(".lock"))
}

/// What extensions put beside these may be anything.
fn is_workspace(name: &str) -> bool {
    name.split_once('/').is_some_and(|(_, file)| matches!(file, "workspace.json" | "state.vscdb"))
}

fn is_profile(name: &str) -> bool {
    let end = name.rsplit('/').next().unwrap_or(name);
    matches!(end, "settings.json" | "keybindings.json" | "tasks.json" | "extensions.json")
        || name.contains("/snippets/")
}

#[derive(Debug)]
pub(super) struct VsCode;

impl VsCode {
    fn folder(machine: &Machine) -> PathBuf {
        let native = machine.config.join("Code");
        let flatpak = machine.home.join(".var/app/com.visualstudio.code/config/Code");
        if !native.is_dir() && flatpak.is_dir() { flatpak } else { native }
    }

    /// The editor that has the folder open, which writes its number into a file there.
    fn holder(folder: &Path) -> Option<Pid> {
        let text = std::fs::read_to_string(folder.join("code.lock")).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        // The number may be another program's by now.
        let program = process::program_of(pid)?;
        program.file_name()?.to_string_lossy().contains("code").then_some(pid)
    }
}

impl Files for VsCode {
    fn app(&self) -> App {
        App::VsCode
    }

    fn items(&self) -> &'static [Item] {
        ITEMS
    }

    fn place(&self, machine: &Machine, path: &str) -> PathBuf {
        Self::folder(machine).join(path)
    }

    fn is_sensitive(&self, item: &Item, place: &Path) -> bool {
        item.path == "User/settings.json"
            && std::fs::read_to_string(place).is_ok_and(|text| {
                // With comments in it, it is not JSON.
                let text = text.to_ascii_lowercase();
                TELLING.iter().any(|word| text.contains(word))
            })
    }

    fn unbind(&self, machine: &Machine, item: &Item, copy: &Path) -> Result<()> {
        if item.path != STATE {
            return Ok(());
        }
        let keys = super::keyring::keys(machine, "code");
        let failed = |error| database_failed(copy, error);
        let connection = Connection::open(copy).map_err(failed)?;
        let secrets: Vec<(String, String)> = {
            let sql = "SELECT key, CAST(value AS TEXT) FROM ItemTable WHERE substr(key, 1, 9) = ?";
            let mut query = connection.prepare(sql).map_err(failed)?;
            let rows =
                query.query_map([SECRET], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
            rows.collect::<rusqlite::Result<_>>().map_err(failed)?
        };
        let mut locked = 0;
        for (key, value) in secrets {
            match unbound(&value, &keys) {
                Ok(value) => {
                    let sql = "UPDATE ItemTable SET value = ? WHERE key = ?";
                    connection.execute(sql, (value, key)).map_err(failed)?;
                }
                Err(Unreadable::NoKey) => locked += 1,
                Err(Unreadable::Damaged) => {
                    connection
                        .execute("DELETE FROM ItemTable WHERE key = ?", [key])
                        .map_err(failed)?;
                }
            }
        }
        if locked > 0 {
            let why = format!("{locked} secrets of `{STATE}` are encrypted with a keyring");
            let error = Error::because(Cause::KeyUnavailable, why).with("item", STATE);
            return Err(super::keyring::explain(error, machine));
        }
        connection.execute_batch("VACUUM").map_err(failed)
    }
}

/// A secret, which the editor keeps as a buffer in JSON, under the key that everyone knows.
fn unbound(value: &str, keys: &Keys) -> Result<String, Unreadable> {
    let buffer: Value = serde_json::from_str(value).map_err(|_| Unreadable::Damaged)?;
    let bytes: Option<Vec<u8>> = buffer
        .get("data")
        .and_then(Value::as_array)
        .and_then(|bytes| bytes.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect());
    let plain: Secret = keys.decrypt(&bytes.ok_or(Unreadable::Damaged)?)?;
    Ok(json!({"type": "Buffer", "data": keys.encrypt(plain.expose())}).to_string())
}

impl Provider for VsCode {
    fn app(&self) -> App {
        App::VsCode
    }

    fn receiver(&self, machine: &Machine) -> Receiver {
        let program = machine.program(&["code"]);
        Receiver {
            // The files are of use as soon as it is installed.
            supported: true,
            limitation: program
                .is_none()
                .then(|| "Visual Studio Code is not installed yet".to_owned()),
            app_installed: program.is_some(),
            app_running: Self::holder(&Self::folder(machine)).is_some(),
            scopes: vec![Scope::Tabs, Scope::Session, Scope::Full],
        }
    }

    fn manifest(&self, machine: &Machine, scope: Scope) -> Result<Manifest> {
        let items = home_files::list(self, machine, scope);
        if items.is_empty() {
            let why = "Visual Studio Code has never been used here";
            return Err(Error::new(Kind::NotFound, why).hint("Start it once, or name another app"));
        }
        let mut manifest = Manifest::new(App::VsCode, scope, "default", None, items);
        manifest.notes.push(
            "Editors open as they were where their folder is in the same place on both machines."
                .to_owned(),
        );
        if scope == Scope::Full {
            manifest.notes.push("Extensions do not move; install them again.".to_owned());
        }
        Ok(manifest)
    }

    fn capture(
        &self,
        machine: &Machine,
        _manifest: &Manifest,
        selection: &Selection,
        payload: &mut PayloadWriter,
    ) -> Result<()> {
        home_files::capture(self, machine, selection, payload)
    }

    fn import(
        &self,
        machine: &Machine,
        payload: &Payload,
        options: &ImportOptions,
        journal: &mut dyn Journal,
    ) -> Result<Imported> {
        let folder = Self::folder(machine);
        process::make_closed(App::VsCode, options.close_running_app, &|| Self::holder(&folder))?;
        let replaces = options.into == Into::Replacing;
        let mut done = home_files::import(self, machine, payload, replaces, &folder, journal)?;
        if options.launch_after
            && let Some(program) = machine.program(&["code"])
        {
            process::launch(machine, &program)?;
            done.launched = true;
        }
        Ok(done)
    }

    fn wipe(
        &self,
        machine: &Machine,
        changes: &[Change],
        close_running_app: bool,
    ) -> Result<Undone> {
        let folder = Self::folder(machine);
        process::make_closed(App::VsCode, close_running_app, &|| Self::holder(&folder))?;
        undo::undo(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_change_their_key_and_not_their_form() {
        let keys = Keys::new(Some(b"ring"));
        let kept = json!({"type": "Buffer", "data": keys.encrypt(b"t0ken")}).to_string();
        assert_eq!(unbound(&kept, &keys).unwrap(), kept);
        let foreign = json!({"type": "Buffer", "data": b"v11aaaaaaaaaaaaaaaa"}).to_string();
        assert_eq!(unbound(&foreign, &Keys::new(None)), Err(Unreadable::NoKey));
        assert_eq!(unbound("{}", &keys), Err(Unreadable::Damaged));
        assert_eq!(unbound(r#"{"data":[300]}"#, &keys), Err(Unreadable::Damaged));
    }
}
