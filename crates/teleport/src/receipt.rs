//! What became of a teleport, in numbers that can be checked on both machines.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::Result;

use crate::manifest::{App, Scope};
use crate::payload::Payload;
use crate::provider::{Imported, Readable, Skipped};
use crate::{Digest, private};

/// What arrived, and what the app there can make of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Names the import; `spaceport teleport wipe` takes it back by this.
    pub import_id: String,
    /// The app.
    pub app: App,
    /// How much of it.
    pub scope: Scope,
    /// The profile at the source.
    pub source_profile: String,
    /// The folder it went into.
    pub profile: String,
    /// The machine it went to, as it calls itself.
    pub machine: String,
    /// When it was in place, in milliseconds since 1970.
    pub imported_ms: u64,
    /// When it is taken back, in milliseconds since 1970; 0 is never.
    pub expires_at_ms: u64,
    /// Bytes of the sealed bundle.
    pub bundle_bytes: u64,
    /// SHA-256 of the sealed bundle.
    pub bundle_sha256: Digest,
    /// What arrived, item by item.
    pub arrived: Vec<Arrived>,
    /// Items that are in place.
    pub imported: Vec<String>,
    /// What is not in place, and why.
    pub skipped: Vec<Skipped>,
    /// What was read back afterwards, as the app will read it, site by site.
    pub readable: Vec<Readable>,
    /// Whether the app was started.
    pub launched: bool,
}

/// What arrived of one item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// The item, by the manifest's name.
    pub item: String,
    /// How many files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// SHA-256 over the SHA-256s of its files, in the order in which they were carried.
    pub sha256: Digest,
}

/// Adds up a payload's records by item, in the order in which items first come.
pub(crate) fn arrived(payload: &Payload) -> Vec<Arrived> {
    let mut items: Vec<(Arrived, Sha256)> = Vec::new();
    for record in payload.records() {
        let known = items.iter().position(|(it, _)| it.item == record.item);
        let index = known.unwrap_or_else(|| {
            let item = record.item.clone();
            let none = Arrived { item, files: 0, bytes: 0, sha256: Digest([0; 32]) };
            items.push((none, Sha256::new()));
            items.len() - 1
        });
        if let Some((item, hash)) = items.get_mut(index) {
            item.files += 1;
            item.bytes += record.len;
            hash.update(record.sha256.0);
        }
    }
    let finish = |(item, hash): (Arrived, Sha256)| Arrived {
        sha256: Digest(hash.finalize().into()),
        ..item
    };
    items.into_iter().map(finish).collect()
}

impl Receipt {
    /// Puts together what is known after an import.
    pub(crate) fn new(
        import_id: &str,
        payload: &Payload,
        imported: Imported,
        bundle: (u64, Digest),
        machine: String,
        imported_ms: u64,
        expires_at_ms: u64,
    ) -> Self {
        let head = payload.head();
        Self {
            import_id: import_id.to_owned(),
            app: head.app,
            scope: head.scope,
            source_profile: head.profile.clone(),
            profile: imported.profile.display().to_string(),
            machine,
            imported_ms,
            expires_at_ms,
            bundle_bytes: bundle.0,
            bundle_sha256: bundle.1,
            arrived: arrived(payload),
            imported: imported.imported,
            skipped: imported.skipped,
            readable: imported.readable,
            launched: imported.launched,
        }
    }

    /// Keeps it among the receipts of a teleport folder.
    pub(crate) fn keep(&self, folder: &Path) -> Result<()> {
        let path = folder.join("receipts").join(format!("{}.json", self.import_id));
        private::replace_json(&path, self)
    }
}

/// Every receipt of a teleport folder, the newest first.
///
/// # Errors
///
/// `io` when one cannot be read.
pub fn receipts(folder: &Path) -> Result<Vec<Receipt>> {
    let folder = folder.join("receipts");
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
    let mut receipts: Vec<Receipt> = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| private::failed(&folder, error))?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            receipts.extend(private::read_json(&path)?);
        }
    }
    receipts.sort_by_key(|receipt| std::cmp::Reverse(receipt.imported_ms));
    Ok(receipts)
}
