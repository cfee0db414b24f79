//! Where Chromium keeps its profiles, and whether it has them open.

use std::path::{Path, PathBuf};

use rustix::process::Pid;
use serde_json::Value;
use spaceport_types::Result;

use crate::machine::Machine;
use crate::manifest::App;
use crate::provider::process;
use crate::snapshot;

/// Largest `Local State` or `Preferences` that is read.
const MAX_JSON: u64 = 64 << 20;

/// The names of its program.
pub(super) fn program(app: App, machine: &Machine) -> Option<PathBuf> {
    machine.program(match app {
        App::Chrome => &["google-chrome", "google-chrome-stable", "chrome"],
        _ => &["chromium", "chromium-browser"],
    })
}

/// The folder of all profiles.
#[derive(Clone, Debug)]
pub(super) struct Root(pub(super) PathBuf);

impl Root {
    /// The one in use; the one that a first start would make when there is none.
    pub(super) fn of(app: App, machine: &Machine) -> Self {
        let (name, flatpak) = match app {
            App::Chrome => ("google-chrome", "com.google.Chrome"),
            _ => ("chromium", "org.chromium.Chromium"),
        };
        let config = machine.variable("CHROME_CONFIG_HOME").map(PathBuf::from);
        let native =
            config.filter(|path| path.is_absolute()).unwrap_or_else(|| machine.config.clone());
        let native = native.join(name);
        let snap = machine.home.join("snap").join(name).join("common").join(name);
        let flatpak = machine.home.join(".var/app").join(flatpak).join("config").join(name);
        let is_snap = program(app, machine).is_some_and(|program| program.starts_with("/snap"));
        let first = if is_snap { snap.clone() } else { native.clone() };
        let known = [native, snap, flatpak];
        Self(known.into_iter().find(|root| Self(root.clone()).is_used()).unwrap_or(first))
    }

    /// Whether the app has ever run with it.
    pub(super) fn is_used(&self) -> bool {
        self.0.join("Local State").is_file() || self.0.join("Default").is_dir()
    }

    /// The profile that a plain start opens.
    pub(super) fn profile(&self) -> String {
        let last_used = || {
            let state = read_json(&self.0.join("Local State")).ok().flatten()?;
            let profile = state.get("profile")?;
            let active = profile.get("last_active_profiles").and_then(|list| list.get(0));
            let name = profile.get("last_used").or(active)?.as_str()?.to_owned();
            // It is a folder beside the file that names it, and nothing else.
            let is_plain = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
            (is_plain && self.0.join(&name).is_dir()).then_some(name)
        };
        last_used().unwrap_or_else(|| "Default".to_owned())
    }

    /// The version that last wrote the profiles.
    pub(super) fn version(&self) -> Option<String> {
        use std::io::Read as _;
        let (bytes, _) = snapshot::file(&self.0.join("Last Version")).ok().flatten()?;
        let mut text = String::new();
        bytes.take(64).read_to_string(&mut text).ok()?;
        Some(text.trim().to_owned()).filter(|version| process::major(version).is_some())
    }

    /// The browser that has it open: named by a link `<host>-<pid>` that stays behind after a crash.
    pub(super) fn holder(&self) -> Option<Pid> {
        let link = std::fs::read_link(self.0.join("SingletonLock")).ok()?;
        let (host, pid) = link.to_str()?.rsplit_once('-')?;
        let uname = rustix::system::uname();
        let pid = Pid::from_raw(pid.parse().ok()?)?;
        let is_here = uname.nodename().to_bytes() == host.as_bytes();
        let program = process::program_of(pid)?;
        // The number may be another program's by now.
        let is_browser = program.file_name()?.to_string_lossy().contains("chrom");
        (is_here && is_browser).then_some(pid)
    }
}

/// A JSON file; `None` when there is none.
pub(super) fn read_json(path: &Path) -> Result<Option<Value>> {
    use std::io::Read as _;
    let Some((bytes, _)) = snapshot::file(path)? else { return Ok(None) };
    let mut text = Vec::new();
    bytes.take(MAX_JSON).read_to_end(&mut text)?;
    // Broken settings are as good as none: the browser starts with new ones.
    Ok(serde_json::from_slice(&text).ok())
}
