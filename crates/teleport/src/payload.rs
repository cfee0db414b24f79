//! What is on its way: a private folder of neutral files, and one record for each.
//!
//! A provider fills a payload at the source; the bundle carries it; a provider reads it at the
//! destination. Cookies are fields, not rows of one browser's database, so what is encrypted for one
//! machine is carried in a form that another can encrypt for itself. The folder is 0700 and goes when
//! the payload does.
//!
//! Files lie in the folder by number. A name that a sender chose is data here and never a path; it
//! becomes one only at import, after the provider has held it against its own list.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};

use crate::digest::Digest;
use crate::manifest::{App, Scope};

/// Most files in one payload; a large browser profile has some thousands.
pub const MAX_RECORDS: usize = 200_000;

/// Most bytes of one name.
const MAX_PATH: usize = 1024;

/// Most bytes between two slashes: what Linux file systems hold.
const MAX_COMPONENT: usize = 255;

/// Most components of a name.
const MAX_DEPTH: usize = 64;

/// What was captured of one app, complete and at rest.
#[derive(Debug)]
pub struct Payload {
    head: Head,
    records: Vec<Record>,
    dir: tempfile::TempDir,
}

impl Payload {
    /// What it is of.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// What it holds, in the order in which it is carried.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The bytes of the record at this place in [`Payload::records`].
    ///
    /// # Errors
    ///
    /// `io` when the file cannot be opened; `internal` when there is no such record.
    pub fn open(&self, index: usize) -> Result<File> {
        if index >= self.records.len() {
            return Err(Error::new(Kind::Internal, format!("a payload has no record {index}")));
        }
        Ok(File::open(place(self.dir.path(), index))?)
    }

    /// How many bytes all records have together.
    pub fn bytes(&self) -> u64 {
        self.records.iter().map(|record| record.len).sum()
    }
}

/// What a payload is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The app.
    pub app: App,
    /// How much was asked for.
    pub scope: Scope,
    /// The profile's name at the source.
    pub profile: String,
    /// The version of the app that wrote it.
    pub app_version: Option<String>,
    /// The home directory at the source, which some apps write into their state.
    pub home: PathBuf,
}

/// One file of a payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The manifest's item it belongs to.
    pub item: String,
    /// What it is.
    pub kind: RecordKind,
    /// For a file, its place below the profile; for records, a name for people.
    pub path: ItemPath,
    /// Permission bits: 0600 or 0700, since a profile is its owner's.
    pub mode: u32,
    /// When it was last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Its length in bytes.
    pub len: u64,
    /// Its SHA-256.
    pub sha256: Digest,
    /// Whether it is compressed and sealed apart from others, since it holds secrets.
    pub is_secret: bool,
}

/// What a record's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecordKind {
    /// A file of the profile, in the app's own format.
    File,
    /// Cookies, one JSON object a line.
    Cookies,
    /// Entries of web pages' local storage, one JSON object a line.
    LocalStorage,
}

/// A name within an app's profile.
///
/// Stricter than a name of a person's file: apps name their files plainly, so whatever is odd was
/// put there by someone else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ItemPath(String);

impl ItemPath {
    /// Takes a name with `/` between its parts.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `path_escape` for a name that leads out of its folder, with
    /// `name_unusable` for one that no app writes.
    pub fn new(name: &str) -> Result<Self> {
        let fault = |cause, why: &str| {
            Err(Error::because(cause, format!("`{}` {why}", name.escape_debug()))
                .with("path", name.escape_debug()))
        };
        if name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return fault(Cause::PathEscape, "leads out of its folder");
        }
        if name.len() > MAX_PATH || name.split('/').count() > MAX_DEPTH {
            return fault(Cause::NameUnusable, "is too long");
        }
        for part in name.split('/') {
            if part.is_empty() || part == "." {
                return fault(Cause::NameUnusable, "has an empty part");
            }
            if part.len() > MAX_COMPONENT {
                return fault(Cause::NameUnusable, "has a part that is too long");
            }
            if part.ends_with(['.', ' ']) || part.starts_with(' ') {
                return fault(Cause::NameUnusable, "has a part that ends in a dot or a space");
            }
        }
        if name.chars().any(|c| c.is_control() || matches!(c, '\\' | ':') || is_invisible(c)) {
            return fault(Cause::NameUnusable, "has a character that no app writes");
        }
        Ok(Self(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ItemPath {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(&name)
    }
}

impl From<ItemPath> for String {
    fn from(path: ItemPath) -> Self {
        path.0
    }
}

/// Characters that change how the rest of a name is shown.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// What is known of a file before it is read.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The manifest's item it belongs to.
    pub item: String,
    /// What it is.
    pub kind: RecordKind,
    /// For a file, its place below the profile.
    pub path: ItemPath,
    /// Whether its owner may run it.
    pub is_executable: bool,
    /// When it was last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Whether it holds secrets.
    pub is_secret: bool,
}

/// A payload being filled: at the source by a provider, at the destination by what receives it.
#[derive(Debug)]
pub struct PayloadWriter {
    head: Head,
    records: Vec<Record>,
    /// Every name and every folder of one: no file may stand where another's folder does.
    files: BTreeSet<String>,
    folders: BTreeSet<String>,
    dir: tempfile::TempDir,
}

impl PayloadWriter {
    /// Begins one in a new private folder below `parent`, which is made when it is missing.
    ///
    /// # Errors
    ///
    /// `io` when the folder cannot be made.
    pub fn create(parent: &Path, head: Head) -> Result<Self> {
        let dir = scratch_in(parent)?;
        Ok(Self {
            head,
            records: Vec::new(),
            files: BTreeSet::new(),
            folders: BTreeSet::new(),
            dir,
        })
    }

    /// What it is of.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// A private folder for what a provider makes on its way; gone with the payload.
    ///
    /// # Errors
    ///
    /// `io` when it cannot be made.
    pub fn scratch(&self) -> Result<tempfile::TempDir> {
        Ok(tempfile::Builder::new().prefix("scratch-").tempdir_in(self.dir.path())?)
    }

    /// Takes a file in, to its end.
    ///
    /// # Errors
    ///
    /// `io` or `disk_full` when it cannot be read or written; `corrupt_bundle` for a name that is
    /// taken.
    pub fn add(&mut self, entry: Entry, bytes: &mut dyn Read) -> Result<()> {
        self.claim(&entry.path)?;
        let (len, sha256) = self.write(bytes, u64::MAX)?;
        self.records.push(Record {
            item: entry.item,
            kind: entry.kind,
            path: entry.path,
            mode: if entry.is_executable { 0o700 } else { 0o600 },
            modified_ns: entry.modified_ns,
            len,
            sha256,
            is_secret: entry.is_secret,
        });
        Ok(())
    }

    /// Takes a file in that was promised as `record`, and holds it to that.
    ///
    /// # Errors
    ///
    /// As [`PayloadWriter::add`]; `size_mismatch` and `digest_mismatch` for other bytes than
    /// promised.
    pub fn receive(&mut self, record: Record, bytes: &mut dyn Read) -> Result<()> {
        self.claim(&record.path)?;
        let (len, sha256) = self.write(bytes, record.len.saturating_add(1))?;
        let path = record.path.as_str().escape_debug();
        if len != record.len {
            let why = format!("`{path}` has {len} bytes or more, not {}", record.len);
            return Err(Error::because(Cause::SizeMismatch, why).with("path", path));
        }
        if sha256 != record.sha256 {
            let why = format!("`{path}` has another SHA-256 than promised");
            return Err(Error::because(Cause::DigestMismatch, why)
                .with("path", path)
                .with("expected", record.sha256)
                .with("received", sha256)
                .hint("Send it again"));
        }
        let mode = if record.mode & 0o100 == 0 { 0o600 } else { 0o700 };
        self.records.push(Record { mode, ..record });
        Ok(())
    }

    /// Ends it.
    pub fn finish(self) -> Payload {
        Payload { head: self.head, records: self.records, dir: self.dir }
    }

    /// Makes sure that the name is nobody else's.
    fn claim(&mut self, path: &ItemPath) -> Result<()> {
        if self.records.len() >= MAX_RECORDS {
            let why = format!("a payload has at most {MAX_RECORDS} files");
            return Err(Error::new(Kind::LimitExceeded, why).with("limit", MAX_RECORDS));
        }
        let name = path.as_str();
        let folders = || name.match_indices('/').map(|(end, _)| &name[..end]);
        let taken = self.files.contains(name)
            || self.folders.contains(name)
            || folders().any(|folder| self.files.contains(folder));
        if taken {
            let why = format!("`{}` is there twice", name.escape_debug());
            return Err(Error::because(Cause::CorruptBundle, why).with("path", name.escape_debug()));
        }
        self.folders.extend(folders().map(str::to_owned));
        self.files.insert(name.to_owned());
        Ok(())
    }

    /// Writes at most `limit` bytes into the next file.
    fn write(&self, bytes: &mut dyn Read, limit: u64) -> Result<(u64, Digest)> {
        let path = place(self.dir.path(), self.records.len());
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let mut file = Hashing { file, hash: Sha256::new() };
        let copied = io::copy(&mut bytes.take(limit), &mut file);
        let len = copied.map_err(|error| no_room(error, "the private folder for what moves"))?;
        Ok((len, Digest(file.hash.finalize().into())))
    }
}

/// A private folder below `parent`, which is made when it is missing; gone when dropped.
pub(crate) fn scratch_in(parent: &Path) -> Result<tempfile::TempDir> {
    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    // tempfile makes folders 0700.
    Ok(tempfile::Builder::new().prefix("spaceport-").tempdir_in(parent)?)
}

/// When a file was last changed, in nanoseconds since 1970.
pub(crate) fn modified_ns(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// Where the bytes of a record are.
fn place(dir: &Path, index: usize) -> PathBuf {
    dir.join(index.to_string())
}

/// An I/O error, told apart from a full disk.
pub(crate) fn no_room(error: io::Error, what: &str) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::because(Cause::DiskFull, format!("no space left for {what}"))
                .source(error)
                .hint("Free some space, and try again")
        }
        _ => error.into(),
    }
}

struct Hashing {
    file: File,
    hash: Sha256,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(dir: &Path) -> PayloadWriter {
        let head = Head {
            app: App::Chromium,
            scope: Scope::Session,
            profile: "Default".to_owned(),
            app_version: None,
            home: PathBuf::from("/home/a"),
        };
        PayloadWriter::create(dir, head).unwrap()
    }

    fn entry(path: &str) -> Entry {
        Entry {
            item: "x".to_owned(),
            kind: RecordKind::File,
            path: ItemPath::new(path).unwrap(),
            is_executable: false,
            modified_ns: 0,
            is_secret: true,
        }
    }

    #[test]
    fn a_payload_arrives_as_it_was_captured() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = writer(dir.path());
        source.add(entry("Sessions/Tabs_1"), &mut &b"tabs"[..]).unwrap();
        source.add(entry("Cookies"), &mut &b""[..]).unwrap();
        let source = source.finish();
        let mut destination = writer(dir.path());
        for (index, record) in source.records().iter().enumerate() {
            destination.receive(record.clone(), &mut source.open(index).unwrap()).unwrap();
        }
        let destination = destination.finish();
        assert_eq!(destination.records(), source.records());
        let mut bytes = String::new();
        destination.open(0).unwrap().read_to_string(&mut bytes).unwrap();
        assert_eq!((bytes.as_str(), destination.bytes()), ("tabs", 4));
        let kept = dir.path().read_dir().unwrap().count();
        drop((source, destination));
        assert_eq!((kept, dir.path().read_dir().unwrap().count()), (2, 0));
    }

    #[test]
    fn other_bytes_than_promised_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = writer(dir.path());
        source.add(entry("Cookies"), &mut &b"abc"[..]).unwrap();
        let record = source.finish().records()[0].clone();
        let cause = |bytes: &[u8]| {
            writer(dir.path()).receive(record.clone(), &mut &*bytes).unwrap_err().cause()
        };
        assert_eq!(cause(b"ab"), Some(Cause::SizeMismatch));
        assert_eq!(cause(b"abcd"), Some(Cause::SizeMismatch));
        assert_eq!(cause(b"abd"), Some(Cause::DigestMismatch));
    }

    #[test]
    fn one_name_is_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path());
        writer.add(entry("a/b"), &mut &b""[..]).unwrap();
        for taken in ["a", "a/b", "a/b/c"] {
            let refused = writer.add(entry(taken), &mut &b""[..]).unwrap_err();
            assert_eq!(refused.cause(), Some(Cause::CorruptBundle), "{taken}");
        }
        writer.add(entry("a/c"), &mut &b""[..]).unwrap();
    }

    #[test]
    fn odd_names_are_refused() {
        for name in
            ["", "/etc/passwd", "../x", "a/../../x", "a/..", "..", "./x", "a//b", "a/", "a\0b"]
        {
            assert!(ItemPath::new(name).is_err(), "{name:?}");
        }
        for name in ["a\u{1b}[2J", "a\u{202e}b", "C:\\x", "a:b", "x.", "x ", "a\nb"] {
            assert!(ItemPath::new(name).is_err(), "{name:?}");
        }
        assert!(ItemPath::new(&"a".repeat(256)).is_err());
        assert!(ItemPath::new(&"a/".repeat(64)).is_err());
        for name in [
            "Cookies",
            "Local Storage/leveldb",
            "storage/default/http+++a+1/ls/data.sqlite",
            "書類",
        ] {
            assert_eq!(ItemPath::new(name).unwrap().as_str(), name);
        }
        assert!(serde_json::from_str::<ItemPath>(r#""../x""#).is_err());
    }
}
