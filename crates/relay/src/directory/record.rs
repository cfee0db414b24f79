//! What is kept of machines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_state::{Digest, private};
use spaceport_types::{MachineId, Result};

use super::short;

/// One machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) software: String,
    /// SHA-256 of its token. The token has 256 random bits, so there is nothing to guess it by.
    pub(crate) token: Digest,
    /// Seconds since 1970.
    pub(crate) registered: u64,
}

/// The file that has them all.
#[derive(Debug)]
pub(super) struct Records {
    path: PathBuf,
}

impl Record {
    pub(crate) fn new(name: &str, token: &str, now: SystemTime) -> Self {
        let (name, token) = (short(name), Digest(hash(token)));
        Self { name, software: String::new(), token, registered: seconds(now) }
    }

    /// Takes what a machine says of itself; says whether that is new.
    pub(super) fn described(&mut self, name: &str, software: &str) -> bool {
        let before = (self.name.clone(), self.software.clone());
        if !name.is_empty() {
            self.name = short(name);
        }
        self.software = short(software);
        before != (self.name.clone(), self.software.clone())
    }
}

impl Records {
    pub(super) fn at(folder: &Path) -> Self {
        Self { path: folder.join("machines.json") }
    }

    pub(super) fn read(&self) -> Result<BTreeMap<MachineId, Record>> {
        Ok(private::read_json(&self.path)?.unwrap_or_default())
    }

    pub(super) fn write<'a>(
        &self,
        records: impl Iterator<Item = (&'a MachineId, &'a Record)>,
    ) -> Result<()> {
        private::replace_json(&self.path, &records.collect::<BTreeMap<_, _>>())
    }
}

pub(super) fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

pub(super) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
