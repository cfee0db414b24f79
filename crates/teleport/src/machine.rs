//! The machine an app lives on, as one person sees it: folders, programs, environment.
//!
//! Always passed in. Nothing in this crate reads the environment of its own process, so one process
//! can act for several people, and a test can have a home of its own.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Where one person's apps live, and what they are started with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Machine {
    /// The person's home.
    pub home: PathBuf,
    /// `$XDG_CONFIG_HOME`.
    pub config: PathBuf,
    /// `$XDG_RUNTIME_DIR`, where secrets may lie for a moment: in memory, and the owner's alone.
    pub runtime: PathBuf,
    /// What an app is started with.
    pub environment: Vec<(OsString, OsString)>,
}

impl Machine {
    /// The machine that an environment describes; `None` without `HOME`.
    pub fn from_environment(
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Option<Self> {
        let environment: Vec<_> = environment.into_iter().collect();
        let folder = |name: &str| {
            let value = lookup(&environment, name)?;
            // The XDG base directory specification: a relative path is to be ignored.
            // Put together anew, it has no slash at its end.
            Some(Path::new(value).components().collect::<PathBuf>())
                .filter(|path| path.is_absolute())
        };
        let home = folder("HOME")?;
        let config = folder("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
        let runtime = folder("XDG_RUNTIME_DIR").unwrap_or_else(|| home.join(".cache/spaceport"));
        Some(Self { home, config, runtime, environment })
    }

    /// A variable of the environment.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        lookup(&self.environment, name)
    }

    /// The first program of these names that there is.
    pub fn program(&self, names: &[&str]) -> Option<PathBuf> {
        let path = self.variable("PATH").unwrap_or(OsStr::new(DEFAULT_PATH));
        let folders: Vec<PathBuf> = std::env::split_paths(path).collect();
        names.iter().find_map(|name| {
            folders.iter().map(|folder| folder.join(name)).find(|file| is_program(file))
        })
    }
}

/// Where programs are when the environment does not say.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/snap/bin";

fn lookup<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    let found = environment.iter().rev().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_os_str())
}

fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}
