//! Where a Space takes in what others send: sealed bytes first, then one step that checks them,
//! opens them and puts them in place.
//!
//! Until the commit there is nothing but sealed bytes in a spool. The commit holds the app's lock,
//! so two of them never change one profile at a time; it opens the seal into a private folder,
//! checks every byte, and only then lets the app's provider import. What the provider changes goes
//! into a journal before it is changed. When it fails, or this process dies, the journal takes it
//! back; when it succeeds, the journal is kept, so that a person can take it back later.
//!
//! An import's name is used once. A commit that is repeated answers as it did the first time.

mod part;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use spaceport_types::{Cause, Error, Kind, Result};

pub use part::{MAX_CHUNK, Progress};

use crate::consent::How;
use crate::journal::{Change, Journal, Undone};
use crate::ledger::{Event, Ledger, millis};
use crate::manifest::App;
use crate::package::{self, Verified};
use crate::provider::{ImportOptions, Into, Provider};
use crate::receipt::Receipt;
use crate::seal::{Identity, Opener, PublicKey, Purpose};
use crate::staging::{self, Staging};
use crate::{Digest, Machine, id, private};
use part::{Parts, Whole, unknown};

/// How long an import's name is remembered after it was taken back, so that it is not used again.
const REMEMBERED: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The longest journal that is read back. One line a cookie comes to far less.
const MAX_JOURNAL: u64 = 256 << 20;

/// What a Space has received, and is receiving.
pub struct Inbox {
    folder: PathBuf,
    name: String,
    machine: Machine,
    providers: Vec<&'static dyn Provider>,
    identity: Identity,
    parts: Parts,
    ledger: Ledger,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Some bytes of a sealed bundle.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// Names the import; the sender chose it.
    pub import_id: &'a str,
    /// The app whose state it is.
    pub app: App,
    /// How many bytes come before these.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
}

/// The end of a transfer: check it, and put it in place.
#[derive(Clone, Copy, Debug)]
pub struct Commit<'a> {
    /// Names the import.
    pub import_id: &'a str,
    /// The app whose state it is.
    pub app: App,
    /// Of the whole sealed bundle.
    pub sha256: Digest,
    /// How to import it.
    pub how: How,
}

/// What was taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wiped {
    /// The imports.
    pub import_ids: Vec<String>,
    /// What became of each.
    pub undone: Undone,
}

/// One import, as it is remembered.
#[derive(Debug, Serialize, Deserialize)]
struct Import {
    id: String,
    app: App,
    state: State,
    sha256: Digest,
    how: How,
    changed_ms: u64,
    receipt: Option<Receipt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// The provider is at work, or died at it.
    Importing,
    /// It is in place.
    Imported,
    /// It was taken back.
    Wiped,
}

impl Inbox {
    /// The inbox of a teleport folder; `name` is what this machine is called.
    ///
    /// Takes back what an import has left that died half-way, and removes what lay open.
    ///
    /// # Errors
    ///
    /// What [`Identity::load`] says of the key.
    pub fn open(
        folder: &Path,
        name: &str,
        machine: Machine,
        providers: Vec<&'static dyn Provider>,
        now: SystemTime,
    ) -> Result<Self> {
        private::folder(folder)?;
        let inbox = Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
            machine,
            providers,
            identity: Identity::load(&folder.join("seal-key"))?,
            parts: Parts::at(folder),
            ledger: Ledger::at(folder),
        };
        staging::sweep(&inbox.machine, &inbox.folder);
        inbox.recover(now);
        inbox.sweep(now);
        Ok(inbox)
    }

    /// The key that senders seal to.
    pub fn public_key(&self) -> &PublicKey {
        self.identity.public()
    }

    /// That key, whole.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Where apps live here.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The apps that can be taken in.
    pub fn providers(&self) -> impl Iterator<Item = &dyn Provider> {
        self.providers.iter().copied()
    }

    /// The provider of an app.
    ///
    /// # Errors
    ///
    /// `capability_missing` with the feature's name.
    pub fn provider(&self, app: App) -> Result<&dyn Provider> {
        let known = self.providers().find(|provider| provider.app() == app);
        known.ok_or_else(|| {
            Error::new(
                Kind::CapabilityMissing,
                format!("this Space takes in no {}", app.display_name()),
            )
            .with("feature", format!("teleport.{app}"))
        })
    }

    /// Takes in some bytes.
    ///
    /// # Errors
    ///
    /// `precondition_failed` with `expected_offset` for a chunk out of order, `invalid_argument` for
    /// a name or a size, `limit_exceeded` for too many at a time, `transfer_failed` with `disk_full`.
    pub fn receive(&self, chunk: &Chunk<'_>) -> Result<Progress> {
        let id = id::check(chunk.import_id)?;
        self.provider(chunk.app)?;
        if let Some(import) = self.import(id)? {
            let length = import.receipt.map_or(0, |receipt| receipt.bundle_bytes);
            return match import.state {
                // Whoever asks again after an answer was lost goes on to the commit.
                State::Imported => Ok(Progress { received: length, duplicate: true }),
                State::Importing => Err(busy(import.app)),
                State::Wiped => Err(used(id)),
            };
        }
        self.parts.receive(id, chunk)
    }

    /// Checks everything, and puts it in place or changes nothing.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `digest_mismatch`, `size_mismatch` or `corrupt_bundle` for what
    /// arrived, with `conflict` when another import of this app goes on; `teleport_refused` for what
    /// the app's provider does not take; `not_found`; `precondition_failed` for a name used before.
    pub fn commit(&self, commit: &Commit<'_>, now: SystemTime) -> Result<Receipt> {
        let id = id::check(commit.import_id)?;
        let provider = self.provider(commit.app)?;
        let _held = self.hold(commit.app)?.ok_or_else(|| busy(commit.app))?;
        if let Some(import) = self.import(id)? {
            return match (import.state, import.receipt) {
                (State::Imported, Some(receipt)) if import.sha256 == commit.sha256 => Ok(receipt),
                _ => Err(used(id)),
            };
        }
        if commit.how.expires_at_ms > 0 && commit.how.expires_at_ms <= millis(now) {
            return Err(Error::new(Kind::InvalidArgument, "`expires_at_ms` is in the past")
                .with("expires_at_ms", commit.how.expires_at_ms));
        }
        let whole = self.parts.take(id, commit.app, commit.sha256)?;
        let staging = Staging::new(&self.machine, &self.folder, whole.length.saturating_mul(8))?;
        let verified = self.verify(commit, &whole, &staging).inspect_err(|_| {
            // It will not get better.
            self.parts.forget(id);
        })?;
        let receipt = self.put_in_place(commit, provider, &whole, &verified, now)?;
        self.parts.forget(id);
        Ok(receipt)
    }

    fn verify(&self, commit: &Commit<'_>, whole: &Whole, staging: &Staging) -> Result<Verified> {
        let purpose = Purpose { import_id: commit.import_id, app: commit.app.as_str() };
        let opener = Opener::new(BufReader::new(whole.open()?), &self.identity, &purpose)?;
        let verified = package::unpack(opener, staging.path())?;
        if verified.payload().head().app != commit.app {
            return Err(Error::because(Cause::CorruptBundle, "the bundle is of another app")
                .with("app", verified.payload().head().app));
        }
        Ok(verified)
    }

    fn put_in_place(
        &self,
        commit: &Commit<'_>,
        provider: &dyn Provider,
        whole: &Whole,
        verified: &Verified,
        now: SystemTime,
    ) -> Result<Receipt> {
        let id = commit.import_id;
        let facts = || {
            [
                ("app", commit.app.to_string()),
                ("sha256", commit.sha256.to_string()),
                ("manifest", verified.manifest().to_string()),
            ]
        };
        let mut import = Import {
            id: id.to_owned(),
            app: commit.app,
            state: State::Importing,
            sha256: commit.sha256,
            how: commit.how,
            changed_ms: millis(now),
            receipt: None,
        };
        self.ledger.record(Event::Importing, id, facts(), now)?;
        self.keep(&import)?;
        let mut journal = FileJournal::create(self.journal_path(id))?;
        let options = ImportOptions {
            into: if commit.how.replace_existing { Into::Replacing } else { Into::Existing },
            close_running_app: commit.how.close_running_app,
            launch_after: commit.how.launch_after,
        };
        let done = provider.import(&self.machine, verified.payload(), &options, &mut journal);
        let imported = match done {
            Ok(imported) => imported,
            Err(error) => {
                // The provider changes all or nothing, and says so; the journal makes sure.
                self.undo(&import, true)?;
                self.drop_import(id);
                self.ledger.record(Event::RolledBack, id, facts(), now)?;
                return Err(error);
            }
        };
        let receipt = Receipt::new(
            id,
            verified.payload(),
            imported,
            (whole.length, whole.sha256),
            self.name.clone(),
            millis(now),
            commit.how.expires_at_ms,
        );
        import.state = State::Imported;
        import.receipt = Some(receipt.clone());
        self.keep(&import)?;
        receipt.keep(&self.folder)?;
        self.ledger.record(Event::Imported, id, facts(), now)?;
        tracing::info!(import = id, app = %commit.app, "a session was imported");
        Ok(receipt)
    }

    /// Takes an import back: what it added goes, what it replaced comes back. One that is still on
    /// its way is given up.
    ///
    /// # Errors
    ///
    /// `not_found`; `teleport_refused` with `app_running`; `transfer_failed` with `conflict` when
    /// another import of the app goes on.
    pub fn wipe(&self, id: &str, close_running_app: bool, now: SystemTime) -> Result<Wiped> {
        let id = id::check(id)?;
        let import = match self.import(id)? {
            Some(import) if import.state != State::Wiped => import,
            Some(_) => return Err(unknown(id)),
            None if self.parts.forget(id) => {
                return Ok(Wiped { import_ids: vec![id.to_owned()], ..Wiped::default() });
            }
            None => return Err(unknown(id)),
        };
        let _held = self.hold(import.app)?.ok_or_else(|| busy(import.app))?;
        let undone = self.undo(&import, close_running_app)?;
        let how = How { expires_at_ms: 0, ..import.how };
        self.keep(&Import { state: State::Wiped, how, changed_ms: millis(now), ..import })?;
        // It holds earlier values, which may be secrets.
        drop(fs::remove_file(self.journal_path(id)));
        let facts = [
            ("removed_paths", undone.removed_paths.len().to_string()),
            ("rows", undone.rows.to_string()),
            ("kept", undone.kept.len().to_string()),
        ];
        self.ledger.record(Event::Wiped, id, facts, now)?;
        tracing::info!(import = id, "an import was taken back");
        Ok(Wiped { import_ids: vec![id.to_owned()], undone })
    }

    /// Takes every import back, and gives up what is on its way.
    ///
    /// # Errors
    ///
    /// The first that [`Inbox::wipe`] returns; the others were tried all the same.
    pub fn wipe_all(&self, close_running_app: bool, now: SystemTime) -> Result<Wiped> {
        let mut all = Wiped::default();
        let mut failed = None;
        let imports = self.imports().into_iter().filter(|import| import.state != State::Wiped);
        // The newest first: what one replaced may be what an older one had put there.
        let mut ids: Vec<_> = imports.map(|import| (import.changed_ms, import.id)).collect();
        ids.sort_by(|a, b| b.cmp(a));
        for id in ids.into_iter().map(|(_, id)| id).chain(self.parts.ids()) {
            match self.wipe(&id, close_running_app, now) {
                Ok(wiped) => {
                    all.import_ids.extend(wiped.import_ids);
                    all.undone.removed_paths.extend(wiped.undone.removed_paths);
                    all.undone.rows += wiped.undone.rows;
                    all.undone.kept.extend(wiped.undone.kept);
                }
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(all), Err)
    }

    /// Takes back what has expired and forgets what has rested too long. To be called every minute.
    pub fn sweep(&self, now: SystemTime) {
        self.parts.sweep(now);
        for import in self.imports() {
            let expires = import.how.expires_at_ms;
            if import.state == State::Imported && expires > 0 && expires <= millis(now) {
                // An expiry is kept also against an app that runs: that was agreed to.
                if let Err(error) = self.wipe(&import.id, true, now) {
                    tracing::warn!(import = import.id, %error, "an expired import is still there");
                }
            }
            let remembered = import.changed_ms.saturating_add(REMEMBERED.as_millis() as u64);
            if import.state == State::Wiped && remembered < millis(now) {
                self.drop_import(&import.id);
            }
        }
    }

    /// Takes back what imports have left that died half-way.
    fn recover(&self, now: SystemTime) {
        for import in self.imports() {
            // Another process of the same person may be at it right now.
            if import.state != State::Importing || !matches!(self.hold(import.app), Ok(Some(_))) {
                continue;
            }
            let undone = self.undo(&import, true).and_then(|_| {
                self.drop_import(&import.id);
                let facts = [("why", "interrupted".to_owned())];
                self.ledger.record(Event::RolledBack, &import.id, facts, now)
            });
            match undone {
                Ok(()) => tracing::warn!(import = import.id, "a broken import was taken back"),
                Err(error) => {
                    tracing::error!(import = import.id, %error, "a broken import is still there");
                }
            }
        }
    }

    fn undo(&self, import: &Import, close_running_app: bool) -> Result<Undone> {
        let changes = read_journal(&self.journal_path(&import.id))?;
        if changes.is_empty() {
            return Ok(Undone::default());
        }
        self.provider(import.app)?.wipe(&self.machine, &changes, close_running_app)
    }

    /// The lock of an app's profile, if nobody has it, in this process or another.
    fn hold(&self, app: App) -> Result<Option<File>> {
        let path = self.folder.join("locks").join(app.as_str());
        private::folder(&self.folder.join("locks"))?;
        let file = private::append(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(private::failed(&path, error.into())),
        }
    }

    fn import(&self, id: &str) -> Result<Option<Import>> {
        private::read_json(&self.import_folder(id).join("import.json"))
    }

    fn imports(&self) -> Vec<Import> {
        let Ok(entries) = fs::read_dir(self.folder.join("imports")) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names
            .filter_map(|id| {
                self.import(&id).unwrap_or_else(|error| {
                    tracing::error!(import = id, %error, "an import's record cannot be read");
                    None
                })
            })
            .collect()
    }

    fn keep(&self, import: &Import) -> Result<()> {
        private::replace_json(&self.import_folder(&import.id).join("import.json"), import)
    }

    fn drop_import(&self, id: &str) {
        let folder = self.import_folder(id);
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::warn!(%error, folder = %folder.display(), "an import's record stays");
        }
    }

    fn import_folder(&self, id: &str) -> PathBuf {
        self.folder.join("imports").join(id)
    }

    fn journal_path(&self, id: &str) -> PathBuf {
        self.import_folder(id).join("journal.jsonl")
    }
}

/// A journal of JSON lines, each on the disk before what it tells of is done.
struct FileJournal {
    path: PathBuf,
    file: File,
}

impl FileJournal {
    fn create(path: PathBuf) -> Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| private::failed(&path, error))?;
        private::sync_parent(&path)?;
        Ok(Self { path, file })
    }
}

impl Journal for FileJournal {
    fn record(&mut self, changes: Vec<Change>) -> Result<()> {
        let mut lines = Vec::new();
        for change in changes {
            serde_json::to_writer(&mut lines, &change).map_err(|error| {
                Error::new(Kind::Internal, "a change cannot be written down").source(error)
            })?;
            lines.push(b'\n');
        }
        let written = self.file.write_all(&lines).and_then(|()| self.file.sync_data());
        written.map_err(|error| private::failed(&self.path, error))
    }
}

/// Every complete line. What a crash left of the last one was not yet done.
fn read_journal(path: &Path) -> Result<Vec<Change>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let file = File::open(path).map_err(|error| private::failed(path, error))?;
    let mut lines = BufReader::new(file.take(MAX_JOURNAL));
    let (mut changes, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        lines.read_until(b'\n', &mut line)?;
        let Some(text) = line.strip_suffix(b"\n") else { return Ok(changes) };
        let change = serde_json::from_slice(text).map_err(|error| {
            Error::new(Kind::Io, "the journal of an import is damaged")
                .with("path", path.display())
                .hint("Look at what it lists, and undo the rest by hand")
                .source(error)
        })?;
        changes.push(change);
    }
}

fn busy(app: App) -> Error {
    let why = format!("another import of {} goes on here", app.display_name());
    Error::because(Cause::Conflict, why).with("app", app).hint("Wait for it to end, and try again")
}

fn used(id: &str) -> Error {
    Error::new(Kind::PreconditionFailed, format!("the name `{id}` was used for an import before"))
        .with("import_id", id)
        .hint("Send it under a new name")
}

#[cfg(test)]
mod tests;
