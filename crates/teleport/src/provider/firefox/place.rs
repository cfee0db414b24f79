//! Where Firefox keeps its profiles, which one a plain start opens, and whether it has it open.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::process::{Flock, FlockType, Pid, fcntl_getlk};

use super::ini::{Ini, Section};
use crate::machine::Machine;
use crate::provider::process;
use crate::snapshot;

/// From this version on a first start makes its folder below `$XDG_CONFIG_HOME`.
const XDG_SINCE: u64 = 147;

/// The names of its program.
const PROGRAMS: [&str; 3] = ["firefox", "firefox-esr", "firefox-bin"];

/// Where distributions install it whose `firefox` is a script.
const FOLDERS: [&str; 4] = [
    "/usr/lib/firefox",
    "/usr/lib64/firefox",
    "/usr/lib/firefox-esr",
    "/snap/firefox/current/usr/lib/firefox",
];

/// Largest `.ini` file that is read.
const MAX_INI: u64 = 1 << 20;

/// A Firefox that is installed.
#[derive(Clone, Debug)]
pub(super) struct Installed {
    pub(super) program: PathBuf,
    /// Its own folder, which it writes into the profiles that are its own.
    folder: Option<PathBuf>,
    /// As its files have it; not every installation has them where its program is.
    written: Option<String>,
    /// `version_build/platform build`, as it writes it into a profile.
    full_version: Option<String>,
}

impl Installed {
    /// The one that a plain start runs.
    pub(super) fn find(machine: &Machine) -> Option<Self> {
        let folder_of = |program: &PathBuf| {
            let folder = program.canonicalize().ok()?.parent()?.to_owned();
            folder.join("application.ini").is_file().then_some(folder)
        };
        let programs: Vec<PathBuf> =
            PROGRAMS.iter().filter_map(|name| machine.program(&[name])).collect();
        let known = programs.iter().find_map(|program| Some((program, Some(folder_of(program)?))));
        // Some distributions start it by a script, which is elsewhere.
        let usual =
            || FOLDERS.iter().map(PathBuf::from).find(|f| f.join("application.ini").is_file());
        let (program, folder) = known.or_else(|| Some((programs.first()?, usual())))?;
        let program = program.clone();
        let ini = |name: &str| folder.as_ref().and_then(|folder| read_ini(&folder.join(name)));
        let (application, platform) = (ini("application.ini"), ini("platform.ini"));
        let of = |ini: &Option<Ini>, section: &str, key: &str| {
            ini.as_ref().and_then(|ini| ini.get(section, key)).map(str::to_owned)
        };
        let version = of(&application, "App", "Version");
        let full_version = version.as_ref().and_then(|version| {
            let build = of(&application, "App", "BuildID")?;
            let platform = of(&platform, "Build", "BuildID").unwrap_or_else(|| build.clone());
            Some(format!("{version}_{build}/{platform}"))
        });
        Some(Self { program, folder, written: version, full_version })
    }

    /// Its version. The program is started and asked where no file says it.
    pub(super) fn version(&self, machine: &Machine) -> Option<String> {
        self.written.clone().or_else(|| process::version(machine, &self.program))
    }

    /// What a profile says that belongs to this installation. Without it a plain start passes the
    /// profile over and silently makes a new one.
    pub(super) fn compatibility(&self) -> Option<String> {
        let folder = self.folder.as_ref()?.to_str()?;
        let browser = format!("{folder}/browser");
        let system = format!("Linux_{}-gcc3", std::env::consts::ARCH);
        let entries = [
            ("LastVersion", self.full_version.as_deref()?),
            ("LastOSABI", &system),
            ("LastPlatformDir", folder),
            ("LastAppDir", &browser),
        ];
        Some(Ini { sections: vec![Section::new("Compatibility", &entries)] }.to_string())
    }
}

/// Where it keeps its profiles below a home: until some version, and since then.
fn below(home: &Path, config: &Path) -> [PathBuf; 2] {
    [home.join(".mozilla/firefox"), config.join("mozilla/firefox")]
}

fn plain(machine: &Machine) -> [PathBuf; 2] {
    below(&machine.home, &machine.config)
}

fn snaps(machine: &Machine) -> [PathBuf; 2] {
    let snap = machine.home.join("snap/firefox/common");
    below(&snap, &snap.join(".config"))
}

fn is_snap(installed: Option<&Installed>) -> bool {
    installed.is_some_and(|firefox| firefox.program.starts_with("/snap"))
}

/// A folder of profiles.
#[derive(Clone, Debug)]
pub(super) struct Root(pub(super) PathBuf);

impl Root {
    /// The one in use; the one that a first start of `installed` would make when there is none.
    pub(super) fn of(machine: &Machine, installed: Option<&Installed>) -> Self {
        let first = || {
            let [legacy, xdg] = plain(machine);
            let version = installed.and_then(|firefox| firefox.version(machine));
            match version.and_then(|version| process::major(&version)) {
                _ if is_snap(installed) => snaps(machine)[0].clone(),
                Some(major) if major < XDG_SINCE => legacy,
                _ => xdg,
            }
        };
        Self::found(machine, installed).unwrap_or_else(|| Self(first()))
    }

    /// The one in use.
    pub(super) fn found(machine: &Machine, installed: Option<&Installed>) -> Option<Self> {
        let flatpak = machine.home.join(".var/app/org.mozilla.firefox");
        // The old place wins where both are.
        let mut known = Vec::from(plain(machine));
        known.extend(below(&flatpak, &flatpak.join("config")));
        known.splice(if is_snap(installed) { 0..0 } else { 2..2 }, snaps(machine));
        known.into_iter().find(|root| root.join("profiles.ini").is_file()).map(Self)
    }

    /// Its list of profiles.
    pub(super) fn profiles(&self) -> Ini {
        read_ini(&self.0.join("profiles.ini")).unwrap_or_default()
    }

    /// The profile that a plain start of `installed` opens: its name and its folder.
    pub(super) fn profile(&self, installed: Option<&Installed>) -> Option<(String, PathBuf)> {
        let profiles = self.profiles();
        let sections = || profiles.sections.iter();
        let of_install = |section: &&Section| section.name.starts_with("Install");
        let place = |section: &Section| {
            let path = section.get("Default")?;
            Some((path.to_owned(), self.0.join(path)))
        };
        let here = installed.and_then(|firefox| firefox.folder.as_deref());
        // Installations are known by a hash of their folder; a profile says which folder that is.
        let own = sections().filter(of_install).filter_map(place).find(|(_, folder)| {
            here.is_none_or(|here| {
                let ini = read_ini(&folder.join("compatibility.ini"));
                let written =
                    ini.as_ref().and_then(|ini| ini.get("Compatibility", "LastPlatformDir"));
                written.map(Path::new) == Some(here)
            })
        });
        let only = || {
            let mut installs = sections().filter(of_install);
            installs.next().filter(|_| installs.next().is_none()).and_then(place)
        };
        let old_default = || {
            let mut listed = sections().filter(|section| section.name.starts_with("Profile"));
            let section =
                listed.clone().find(|s| s.get("Default") == Some("1")).or(listed.next())?;
            let path = section.get("Path")?;
            // An absolute path replaces the root.
            Some((path.to_owned(), self.0.join(path)))
        };
        let (path, folder) = own.or_else(only).or_else(old_default)?;
        let listed = sections().find(|section| section.get("Path") == Some(&path));
        let name = listed.and_then(|section| section.get("Name")).unwrap_or("default").to_owned();
        folder.is_dir().then_some((name, folder))
    }
}

/// The Firefox that has a profile open. What counts is its lock on a file; the link `lock` says nothing.
pub(super) fn holder(profile: &Path) -> Option<Pid> {
    let file = std::fs::File::open(profile.join(".parentlock")).ok()?;
    fcntl_getlk(&file, &Flock::from(FlockType::WriteLock)).ok()??.pid
}

/// The version that last wrote a profile.
pub(super) fn version(profile: &Path) -> Option<String> {
    let ini = read_ini(&profile.join("compatibility.ini"))?;
    let full = ini.get("Compatibility", "LastVersion")?;
    Some(full.split('_').next().unwrap_or(full).to_owned())
}

fn read_ini(path: &Path) -> Option<Ini> {
    let (bytes, _) = snapshot::file(path).ok()??;
    let mut text = String::new();
    bytes.take(MAX_INI).read_to_string(&mut text).ok()?;
    Some(Ini::parse(&text))
}
