//! Apps whose state can move: how to read it while they run, and how to put it in place.
//!
//! One module per app, all behind [`Provider`]. Everything here blocks on disks and processes.

mod chromium;
mod claude_code;
pub(crate) mod cookies;
mod firefox;
mod home_files;
mod keyring;
mod local_storage;
mod process;
mod stage;
mod undo;
mod vscode;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spaceport_types::{Error, Kind, Result};

use crate::journal::{Change, Journal, Undone};
use crate::machine::Machine;
use crate::manifest::{App, Manifest, Scope, Selection};
use crate::payload::{Payload, PayloadWriter};

/// One app, on any machine.
pub trait Provider: Send + Sync {
    /// Which app.
    fn app(&self) -> App;

    /// What this machine could take of it. Asked by whoever asks what a Space can do, so it starts no
    /// program.
    fn receiver(&self, machine: &Machine) -> Receiver;

    /// What could move from this machine. Changes nothing, and works while the app runs.
    ///
    /// # Errors
    ///
    /// `not_found` when the app has never run here, `capability_missing` for a scope that it does
    /// not have.
    fn manifest(&self, machine: &Machine, scope: Scope) -> Result<Manifest>;

    /// Copies what was chosen, consistently, also while the app runs.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `app_running` when a database never held still, `key_unavailable`
    /// when secrets cannot be decrypted, `profile_newer` for a format that is not known.
    fn capture(
        &self,
        machine: &Machine,
        manifest: &Manifest,
        selection: &Selection,
        payload: &mut PayloadWriter,
    ) -> Result<()>;

    /// Puts a payload in place, all or nothing.
    ///
    /// # Errors
    ///
    /// `corrupt_bundle` for a payload that this app cannot have made; `teleport_refused` with
    /// `not_importable`, `app_running` or `profile_newer`. Nothing was changed then.
    fn import(
        &self,
        machine: &Machine,
        payload: &Payload,
        options: &ImportOptions,
        journal: &mut dyn Journal,
    ) -> Result<Imported>;

    /// Takes an import back, or what a crash left of it: removes what it added, brings back what it
    /// replaced. What its journal says is enough; doing it twice changes nothing.
    ///
    /// # Errors
    ///
    /// `teleport_refused` with `app_running` when the app runs and may not be closed.
    fn wipe(
        &self,
        machine: &Machine,
        changes: &[Change],
        close_running_app: bool,
    ) -> Result<Undone>;
}

/// The provider of an app.
pub fn provider(app: App) -> &'static dyn Provider {
    match app {
        App::Firefox => &firefox::Firefox,
        App::Chromium => &chromium::Chromium(App::Chromium),
        App::Chrome => &chromium::Chromium(App::Chrome),
        App::VsCode => &vscode::VsCode,
        App::ClaudeCode => &claude_code::ClaudeCode,
    }
}

/// What a machine could take of an app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Receiver {
    /// Whether an import could work as things are.
    pub supported: bool,
    /// Why not, or what will be missing.
    pub limitation: Option<String>,
    /// Whether the app's program is there.
    pub app_installed: bool,
    /// Whether it runs with the profile that an import would change.
    pub app_running: bool,
    /// Scopes that can be imported.
    pub scopes: Vec<Scope>,
}

/// How an import is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Where it goes.
    pub into: Into,
    /// Close the app when it runs: asked first, forced after five seconds.
    pub close_running_app: bool,
    /// Start the app afterwards.
    pub launch_after: bool,
}

/// Where an import goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Into {
    /// Into the profile that a plain start opens; a new one where there is none.
    #[default]
    Existing,
    /// In place of the profile that a plain start opens, which is kept aside.
    Replacing,
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Imported {
    /// The profile it went into.
    pub profile: PathBuf,
    /// Items that are in place.
    pub imported: Vec<String>,
    /// What is not, and why.
    pub skipped: Vec<Skipped>,
    /// Cookies per site that were read back from the profile afterwards, and decrypted.
    pub readable: Vec<Readable>,
    /// Whether the app was started.
    pub launched: bool,
}

impl Imported {
    fn into(profile: &Path) -> Self {
        Self {
            profile: profile.to_owned(),
            imported: Vec::new(),
            skipped: Vec::new(),
            readable: Vec::new(),
            launched: false,
        }
    }
}

/// Something that was not imported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The item, or a site or file within it.
    pub what: String,
    /// Why, for people.
    pub why: String,
}

/// What the app can read of one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readable {
    /// The host as cookies name it, without a leading dot.
    pub host: String,
    /// How many cookies.
    pub cookies: u64,
}

/// The error of a database that cannot be used; what it says may not repeat what it holds.
fn database_failed(path: &Path, error: rusqlite::Error) -> Error {
    let code = error.sqlite_error_code();
    let why = format!("the database `{}` cannot be used: {code:?}", path.display());
    Error::new(Kind::Io, why).with("path", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const APPS: [App; 5] = [App::Firefox, App::Chromium, App::Chrome, App::VsCode, App::ClaudeCode];

    #[test]
    fn asking_what_a_machine_can_take_starts_no_program() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::create_dir(path("bin")).unwrap();
        // The shell's own `echo`, so that it works without a PATH that has more.
        let script = format!("#!/bin/sh\necho \"$0\" >> {}\n", path("started").display());
        for name in ["firefox", "chromium", "google-chrome-stable", "code", "claude"] {
            let program = path("bin").join(name);
            std::fs::write(&program, &script).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let variables = [("HOME", path("")), ("PATH", path("bin"))];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let machine = Machine::from_environment(variables).unwrap();
        for app in APPS {
            let receiver = provider(app).receiver(&machine);
            assert!(receiver.app_installed, "{app:?}");
            assert!(!receiver.app_running, "{app:?}");
        }
        assert!(!path("started").exists(), "{:?}", std::fs::read_to_string(path("started")));
        // The programs do tell when they are started.
        assert_eq!(process::version(&machine, &path("bin/chromium")), None);
        assert!(path("started").exists());
    }
}
