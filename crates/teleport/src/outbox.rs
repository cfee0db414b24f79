//! Sealed bundles that are on their way out.
//!
//! A bundle is made from an [`Approval`], sealed once and kept until it has arrived. What is sent
//! again, after whatever went wrong, is the same bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::Result;

use crate::consent::{Approval, Terms};
use crate::ledger::{Event, Ledger, millis};
use crate::payload::Payload;
use crate::seal::{Purpose, Sealer};
use crate::{Digest, package, private};

/// How long a sealed bundle waits for its transfer to go on. As long as the destination keeps the
/// part it has.
const KEPT: Duration = Duration::from_secs(60 * 60);

/// The bundles of one teleport folder.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    folder: PathBuf,
    ledger: Ledger,
}

/// A bundle that a person has agreed to, sealed and at rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sealed {
    /// Names the import; the request that was approved.
    pub(crate) import_id: String,
    /// What was agreed to.
    pub(crate) terms: Terms,
    /// Bytes of the sealed bundle.
    pub(crate) length: u64,
    /// Its SHA-256.
    pub(crate) sha256: Digest,
    /// What was asked for, to find it again by.
    asked: Digest,
    sealed_ms: u64,
}

impl Outbox {
    pub(crate) fn at(folder: &Path) -> Self {
        Self { folder: folder.join("outbox"), ledger: Ledger::at(folder) }
    }

    /// Makes a bundle of a payload, for what was approved and nothing else.
    pub(crate) fn seal(
        &self,
        approval: &Approval,
        payload: &Payload,
        asked: Digest,
        now: SystemTime,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Sealed> {
        let id = approval.request_id();
        let terms = approval.terms();
        let folder = self.folder.join(id);
        private::folder(&folder)?;
        let path = folder.join("bundle");
        let failed = |error| private::failed(&path, error);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        let counting = Counting { out: BufWriter::new(file), hash: Sha256::new(), length: 0 };
        let purpose = Purpose { import_id: id, app: terms.app.as_str() };
        let sealed = Sealer::new(counting, &terms.destination.key, &purpose)
            .and_then(|sealer| package::pack(payload, terms.manifest, sealer, progress))
            .and_then(|(sealer, _)| sealer.finish());
        let counting = sealed.inspect_err(|_| self.forget(id))?;
        let Counting { out, hash, length } = counting;
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_data().map_err(failed)?;
        let sealed = Sealed {
            import_id: id.to_owned(),
            terms: terms.clone(),
            length,
            sha256: Digest(hash.finalize().into()),
            asked,
            sealed_ms: millis(now),
        };
        private::replace_json(&folder.join("sealed.json"), &sealed)?;
        let facts = [("bytes", length.to_string()), ("sha256", sealed.sha256.to_string())];
        self.ledger.record(Event::Sealed, id, facts, now)?;
        Ok(sealed)
    }

    /// The bundle that was made for this and has not arrived, if it is still good.
    pub(crate) fn find(&self, asked: Digest, now: SystemTime) -> Result<Option<Sealed>> {
        let mut found = None;
        let Ok(entries) = fs::read_dir(&self.folder) else { return Ok(None) };
        for entry in entries {
            let folder = entry.map_err(|error| private::failed(&self.folder, error))?.path();
            match private::read_json::<Sealed>(&folder.join("sealed.json"))? {
                Some(sealed) if sealed.sealed_ms + (KEPT.as_millis() as u64) < millis(now) => {
                    self.forget(&sealed.import_id);
                }
                Some(sealed) if sealed.asked == asked => found = Some(sealed),
                Some(_) => {}
                // Made by a process that died at it, or is at it now.
                None => {
                    let changed = fs::metadata(&folder).and_then(|it| it.modified()).ok();
                    let age = changed.and_then(|it| now.duration_since(it).ok());
                    if age.is_some_and(|age| age > KEPT) {
                        drop(fs::remove_dir_all(&folder));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Every bundle that has not arrived.
    pub(crate) fn all(&self) -> Result<Vec<Sealed>> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for entry in entries {
            let folder = entry.map_err(|error| private::failed(&self.folder, error))?.path();
            all.extend(private::read_json::<Sealed>(&folder.join("sealed.json"))?);
        }
        Ok(all)
    }

    pub(crate) fn open(&self, sealed: &Sealed) -> Result<File> {
        let path = self.folder.join(&sealed.import_id).join("bundle");
        File::open(&path).map_err(|error| private::failed(&path, error))
    }

    pub(crate) fn forget(&self, id: &str) {
        if let Err(error) = fs::remove_dir_all(self.folder.join(id)) {
            tracing::debug!(%error, import = id, "a bundle was not there to be forgotten");
        }
    }
}

struct Counting<W> {
    out: W,
    hash: Sha256,
    length: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let count = self.out.write(data)?;
        self.hash.update(data.get(..count).unwrap_or_default());
        self.length += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
