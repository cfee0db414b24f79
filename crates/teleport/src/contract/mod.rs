//! Files between this machine and any Space of the public contract, by its own calls: each byte is hashed
//! at both ends, and what does not arrive whole does not arrive at all.
//!
//! [`send()`] puts something where the Space receives files; [`upload()`], [`write()`] and [`download()`] name a path in
//! the Space. A transfer that is stopped ends with `cancelled`, after what was staged at either end has been
//! taken away. Nothing is sealed here: a relay is between only where the caller has said that it may be.
//! Between two spaceports, [`stream`](crate::stream) does the same faster, sealed, and goes on where it broke off.

mod download;
mod local;
mod send;
mod upload;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Disposition, Error, Kind, Result};
use spaceport_wire::pb::{EntryInfo, FileType, StatRequest, StatResponse};
use tokio_util::sync::CancellationToken;

use spaceport_spaces::Client;

pub use download::{Download, Downloaded, download};
pub use send::{SendFile, Sent, SentFile, send};
pub(crate) use send::{below_downloads, send_summed};
pub use upload::{Upload, Uploaded, Write, Written, upload, write};

/// Bytes of one message. Larger ones are no faster, and a transfer is stopped between two.
const CHUNK: usize = 1 << 20;

/// Entries of one transfer, as the public contract has it.
const MAX_ENTRIES: usize = 200_000;

/// How often another name is looked for where one is taken.
const MAX_NAMES: u32 = 1_000;

/// How a transfer is watched, and how it is stopped.
#[derive(Clone)]
pub struct Watched {
    /// Is told of the bytes that have moved, and of how many there are.
    pub progress: Arc<dyn Fn(u64, u64) + Send + Sync>,
    /// Stops it.
    pub stop: CancellationToken,
}

impl Default for Watched {
    fn default() -> Self {
        Self { progress: Arc::new(|_, _| {}), stop: CancellationToken::new() }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("stop", &self.stop).finish_non_exhaustive()
    }
}

impl Watched {
    /// Does a part of a transfer that can be stopped at any moment.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => {
                Err(Error::new(Kind::Cancelled, "the transfer was stopped")
                    .disposition(Disposition::NotDispatched))
            }
            done = work => done,
        }
    }
}

/// What was transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// One file.
    File,
    /// A folder with what is in it.
    Folder,
}

/// Counts bytes for [`Watched::progress`].
#[derive(Clone)]
struct Count {
    progress: Arc<dyn Fn(u64, u64) + Send + Sync>,
    total: u64,
    moved: Arc<AtomicU64>,
}

impl Count {
    fn new(watched: &Watched, total: u64) -> Self {
        (watched.progress)(0, total);
        Self { progress: Arc::clone(&watched.progress), total, moved: Arc::default() }
    }

    fn add(&self, bytes: usize) {
        let moved = bytes as u64 + self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        (self.progress)(moved, self.total);
    }
}

/// What is at a path of the Space; `None` for nothing.
async fn stat(client: &Client, path: &str) -> Result<Option<EntryInfo>> {
    let request = StatRequest { path: path.to_owned(), ..StatRequest::default() };
    let said: Result<StatResponse> = client.call("FilesystemService/Stat", request).await;
    match said {
        Ok(said) => Ok(Some(said.entry.unwrap_or_default())),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_folder(entry: &EntryInfo) -> bool {
    entry.r#type() == FileType::Directory
}

/// `name`, then `name (1)`, with the extension kept at the end.
fn numbered(name: &str, number: u32) -> String {
    match (number, name.rsplit_once('.')) {
        (0, _) => name.to_owned(),
        (_, Some((stem, extension))) if !stem.is_empty() => {
            format!("{stem} ({number}).{extension}")
        }
        _ => format!("{name} ({number})"),
    }
}

fn no_free_name(path: impl fmt::Display) -> Error {
    Error::because(Cause::Conflict, format!("`{path}` and every name like it are taken"))
        .with("path", path)
        .hint("Give a `dest` that is free")
}

/// Random, for a name that nothing else has.
fn fresh() -> Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(Kind::Io, "there is no randomness").with("reason", error))?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(hash: Sha256) -> String {
    hex(&hash.finalize())
}

/// Compares what the Space says it has with what was sent.
fn verify(path: &str, expected: &str, received: &str) -> Result<()> {
    if expected == received {
        return Ok(());
    }
    Err(Error::because(Cause::DigestMismatch, format!("`{path}` has another SHA-256 there"))
        .with("path", path)
        .with("expected", expected)
        .with("received", received)
        .hint("Send it again"))
}

/// An error of this machine's files, with the path.
fn at(path: &Path, error: std::io::Error) -> Error {
    let shown = path.display();
    let (kind, what) = match error.kind() {
        std::io::ErrorKind::NotFound => (Kind::NotFound, "is not there"),
        std::io::ErrorKind::PermissionDenied => (Kind::Io, "may not be used"),
        std::io::ErrorKind::StorageFull => {
            return Error::because(Cause::DiskFull, format!("no space is left for `{shown}`"))
                .with("path", shown)
                .hint("Make room on this machine")
                .source(error);
        }
        _ => (Kind::Io, "cannot be used"),
    };
    Error::new(kind, format!("`{shown}` {what}")).with("path", shown).source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_name_gets_a_number_before_its_extension() {
        for (name, number, expected) in [
            ("a.txt", 0, "a.txt"),
            ("a.txt", 1, "a (1).txt"),
            ("a", 2, "a (2)"),
            (".profile", 1, ".profile (1)"),
            ("a.tar.gz", 1, "a.tar (1).gz"),
        ] {
            assert_eq!(numbered(name, number), expected);
        }
    }
}
