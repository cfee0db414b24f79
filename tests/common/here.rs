use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Folder, Gateway, TOKEN, binary};

/// The machine that sends: its files, its state, and the gateway that it sends to.
#[derive(Debug)]
pub struct Here {
    folder: Folder,
}

impl Default for Here {
    fn default() -> Self {
        Self::new()
    }
}

impl Here {
    /// One with an empty folder `files`.
    pub fn new() -> Self {
        Self::below(Folder::new("send"))
    }

    /// The same below a folder.
    pub fn below(folder: Folder) -> Self {
        fs::create_dir(folder.path().join("files")).unwrap();
        Self { folder }
    }

    /// Where its files are, and where its commands run.
    pub fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    /// A command that has yet to be started.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(binary());
        command
            .arg(verb)
            .arg("--json")
            .current_dir(self.files())
            .env("SPACEPORT_TOKEN", TOKEN)
            .env("SPACEPORT_CONFIG_DIR", self.folder.path().join("config"))
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Sends.
    pub fn send(&self, to: impl std::fmt::Display, arguments: &[&str]) -> Done {
        let mut command = self.command("send");
        Done(command.args(["--to", &to.to_string()]).args(arguments).output().unwrap())
    }

    /// Downloads.
    pub fn download(&self, arguments: &[&str]) -> Done {
        Done(self.command("download").args(arguments).output().unwrap())
    }
}

/// What the command said.
#[derive(Debug)]
pub struct Done(pub Output);

impl Done {
    /// The JSON on its stdout.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.0.stdout)
            .unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    /// Everything that it said.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
            + &String::from_utf8_lossy(&self.0.stderr)
    }

    /// What it says of itself when it went well.
    #[track_caller]
    pub fn sent(&self) -> Value {
        assert!(self.0.status.success(), "{}", self.text());
        self.value()
    }

    /// The error, whose exit code is that of its kind.
    #[track_caller]
    pub fn failed(&self, code: i32, cause: &str) -> Value {
        assert_eq!(self.0.status.code(), Some(code), "{}", self.text());
        let error = self.value()["error"].take();
        assert_eq!(error["cause"].as_str().unwrap_or_default(), cause, "{error}");
        error
    }
}

/// Mode, time and SHA-256 of a file; a folder has zeros for the last.
pub type Looks = (u32, i64, i64, [u8; 32]);

/// A tree as it is: paths, modes, times and contents.
pub fn tree(root: &Path) -> BTreeMap<Vec<u8>, Looks> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let digest = if metadata.is_dir() {
                left.push(path.clone());
                [0; 32]
            } else {
                Sha256::digest(fs::read(&path).unwrap()).into()
            };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            let mode = metadata.permissions().mode() & 0o7777;
            found.insert(name, (mode, metadata.mtime(), metadata.mtime_nsec(), digest));
        }
    }
    found
}

/// Bytes that neither are holes nor shrink.
pub fn noise(length: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend(((state >> 24) as u32).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Where a gateway receives files.
pub fn downloads(gateway: &Gateway) -> PathBuf {
    gateway.home().join("Downloads")
}

/// What is in a folder, hidden things and all.
pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
