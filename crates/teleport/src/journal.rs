//! What an import changes, written down before it is done.
//!
//! Whoever keeps the journal can take an import back: when a person asks, when its time is over, or
//! after a crash half-way. Each [`Change`] is recorded first and made durable, then done, so
//! [`Provider::wipe`](crate::Provider::wipe) works from any prefix of what happened.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use spaceport_types::Result;

use crate::digest::Digest;

/// Where an import writes down what it is about to change.
pub trait Journal {
    /// Keeps `changes`, which are about to be made. Returns once they would survive a crash.
    ///
    /// # Errors
    ///
    /// Whatever keeps them from being written; the import stops before it makes them.
    fn record(&mut self, changes: Vec<Change>) -> Result<()>;
}

impl Journal for Vec<Change> {
    fn record(&mut self, changes: Vec<Change>) -> Result<()> {
        self.extend(changes);
        Ok(())
    }
}

/// One thing that an import changes. Holds earlier values, which may be secrets: keep it 0600.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Change {
    /// A private folder in which the import is prepared. Goes when it is still there.
    Stage {
        /// The folder.
        path: PathBuf,
    },
    /// A file or folder takes its place in one step: a new one, or in exchange for what was there.
    Publish {
        /// What was prepared; after an exchange, what was there before.
        stage: PathBuf,
        /// Where it goes.
        target: PathBuf,
        /// What was prepared: its being at the target says that the step was taken.
        identity: Identity,
        /// What becomes of what was there before.
        before: Before,
    },
    /// A single file is replaced, or made. Taken back whatever the app has written since.
    Content {
        /// The file.
        path: PathBuf,
        /// Where what was there before is kept; `None` when there was nothing.
        previous: Option<PathBuf>,
    },
    /// A folder that was made on the way to another. Goes when it is empty.
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// A file within something that was published. Goes unless it was changed since.
    File {
        /// The file.
        path: PathBuf,
        /// What it was published with; `None` where the app is expected to change it.
        sha256: Option<Digest>,
    },
    /// A folder within something that was published, not there before. Goes with all that is in it.
    Tree {
        /// The folder.
        path: PathBuf,
    },
    /// A row of a database.
    Row {
        /// The database file.
        database: PathBuf,
        /// The table.
        table: String,
        /// Columns that identify the row, with their values.
        key: Vec<(String, Value)>,
        /// All its columns before; `None` when there was no such row.
        previous: Option<Vec<(String, Value)>>,
    },
    /// An entry of a LevelDB store.
    Entry {
        /// The store's folder.
        store: PathBuf,
        /// The key.
        #[serde(with = "base64_bytes")]
        key: Vec<u8>,
        /// Its value before; `None` when there was none.
        previous: Option<Value>,
    },
}

/// Tells a file or folder from another that later has its place, and perhaps its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its inode.
    pub inode: u64,
    /// When it was made, in nanoseconds since 1970, where the file system knows.
    pub born_ns: Option<i64>,
}

/// What becomes of what was in a place before something was published there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Before {
    /// There was nothing.
    Nothing,
    /// It is what the new one was made from, and is not needed any more: undo goes by rows and files.
    Merged,
    /// It is kept aside, and comes back on undo.
    Kept,
}

/// A value of a database.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// NULL.
    Null,
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    #[serde(with = "base64_bytes")]
    Bytes(Vec<u8>),
}

impl std::fmt::Debug for Value {
    /// Without the value: it may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Null => "Null",
            Self::Integer(_) => "Integer(..)",
            Self::Real(_) => "Real(..)",
            Self::Text(_) => "Text(..)",
            Self::Bytes(_) => "Bytes(..)",
        })
    }
}

/// What was taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undone {
    /// Files and folders that are gone, or back as they were.
    pub removed_paths: Vec<PathBuf>,
    /// Rows of databases, such as cookies, that are gone or back as they were.
    pub rows: u64,
    /// What was left, and why.
    pub kept: Vec<(PathBuf, String)>,
}

mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::{Deserialize as _, Deserializer, Error as _};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        STANDARD.decode(text.as_bytes()).map_err(D::Error::custom)
    }
}
