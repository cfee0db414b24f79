//! Putting files where a Space receives them: declared, sent, verified, and published at once.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use spaceport_spaces::Client;
use spaceport_types::{Cause, Error, Issue, Kind, Result};
use spaceport_wire::pb::{
    AbortReceiveFilesRequest, AbortReceiveFilesResponse, BeginReceiveFilesRequest,
    BeginReceiveFilesResponse, CommitReceiveFilesRequest, CommitReceiveFilesResponse,
    ConflictPolicy, ReceiveFilesChunkRequest, ReceiveFilesChunkResponse, TransferEntry,
};

use super::local::{Entry, Files, changed};
use super::{CHUNK, Count, Watched, What, fresh, verify};
use crate::digest::Digest;
use crate::receive::{Conflict, Total};

/// How long the Space may take to check and publish everything.
const COMMIT: Duration = Duration::from_secs(15 * 60);

/// The largest chunk that is sent, whatever the Space would take.
const LARGEST: usize = 4 << 20;

/// What to send.
#[derive(Clone, Debug)]
pub struct SendFile {
    /// A file or a folder of this machine.
    pub path: PathBuf,
    /// What to do with names that are taken.
    pub conflict: Conflict,
    /// Below the folder where the Space receives files; empty is that folder. `~/Downloads/…` is
    /// understood as the same.
    pub target_directory: String,
    /// Whether `.gitignore`, `.ignore` and `.dockerignore` leave things out.
    pub respect_ignorefiles: bool,
}

/// What has arrived.
#[derive(Clone, Debug, Serialize)]
pub struct Sent {
    /// What was sent.
    pub source: String,
    /// The folder of the Space in which it is now.
    pub destination: String,
    /// Where it is itself.
    pub dest: String,
    /// What it is.
    pub kind: What,
    /// Each file, as the Space has it.
    pub files: Vec<SentFile>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Whether ignore rules left things out.
    pub respect_ignorefiles: bool,
    /// What they left out; the first 200.
    pub skipped_by_ignorefiles: Vec<String>,
    /// How much they left out.
    pub skipped_count: u64,
    /// What the Space did not publish.
    pub skipped_by_guest: Vec<String>,
    /// Whether the Space has every byte; nothing else is answered.
    pub verified: bool,
}

/// One file that has arrived.
#[derive(Clone, Debug, Serialize)]
pub struct SentFile {
    /// Where it is in the Space.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Lower-case hex.
    pub sha256: String,
}

/// Sends a file or a folder to where a Space receives them. All of it arrives, or nothing does;
/// what is done where a name is taken is `send.conflict`.
///
/// # Errors
///
/// As [`Spaces::client`](spaceport_spaces::Client::call); `not_found` and `io` for the files of this
/// machine, `transfer_failed`, and `cancelled`.
pub async fn send(client: &Client, send: SendFile, watched: &Watched) -> Result<Sent> {
    send_summed(client, send, watched, &mut Total::default()).await
}

/// The same; adds what was sent to a sum of several.
pub(crate) async fn send_summed(
    client: &Client,
    send: SendFile,
    watched: &Watched,
    total: &mut Total,
) -> Result<Sent> {
    let subfolder = below_downloads(&send.target_directory)?;
    let source = Files::read(&send.path, send.respect_ignorefiles, &watched.stop);
    let source = watched.unless_stopped(source).await?;
    let id = format!("spaceport-{}", fresh()?);
    let request = BeginReceiveFilesRequest {
        transfer_id: id.clone(),
        destination_subdir: subfolder,
        entries: source.entries.iter().map(declared).collect(),
        conflict_policy: policy(send.conflict).into(),
        ..BeginReceiveFilesRequest::default()
    };
    // Whether it began is known, so that it is known what to take back.
    let begun: BeginReceiveFilesResponse =
        client.call("TeleportService/BeginReceiveFiles", request).await?;
    let sent = watched.unless_stopped(chunks(client, &source, &id, begun, watched)).await;
    if let Err(error) = sent {
        take_back(client, id).await;
        return Err(error);
    }
    // Not to be stopped: it happens at once, and then it has happened.
    let request = CommitReceiveFilesRequest { transfer_id: id.clone() };
    let committed: Result<CommitReceiveFilesResponse> =
        client.call_within(COMMIT, "TeleportService/CommitReceiveFiles", request).await;
    match committed {
        Ok(committed) => {
            for entry in &source.entries {
                let digest: Option<Digest> = entry.sha256.parse().ok();
                total.add(entry.relative.as_bytes(), digest.as_ref());
            }
            sent_as(&source, &send, committed)
        }
        Err(error) => {
            take_back(client, id).await;
            Err(error)
        }
    }
}

const fn policy(conflict: Conflict) -> ConflictPolicy {
    match conflict {
        Conflict::Overwrite => ConflictPolicy::Overwrite,
        Conflict::Skip => ConflictPolicy::Skip,
        Conflict::Rename | Conflict::Refuse => ConflictPolicy::Rename,
    }
}

async fn chunks(
    client: &Client,
    source: &Files,
    id: &str,
    begun: BeginReceiveFilesResponse,
    watched: &Watched,
) -> Result<()> {
    let most = match begun.max_chunk_bytes as usize {
        0 => CHUNK,
        most => most.min(LARGEST),
    };
    let count = Count::new(watched, source.bytes);
    let known: HashMap<&str, &Entry> =
        source.entries.iter().map(|entry| (&*entry.relative, entry)).collect();
    for (index, accepted) in (0..).zip(&begun.accepted) {
        let entry = known.get(&*accepted.relative_path).ok_or_else(|| {
            Error::because(Cause::CorruptBundle, "the Space accepted what was not offered")
                .with("path", &accepted.relative_path)
        })?;
        let mut at = 0;
        if entry.folder || entry.size == 0 {
            continue;
        }
        let mut reading = source.open(entry, 0)?;
        while at < entry.size {
            let room = usize::try_from(entry.size - at).unwrap_or(most).min(most);
            let (rest, data) = reading.next(room).await?;
            reading = rest;
            if data.is_empty() {
                return Err(changed(&entry.relative));
            }
            let length = data.len();
            let request =
                ReceiveFilesChunkRequest { transfer_id: id.to_owned(), index, offset: at, data };
            let received: ReceiveFilesChunkResponse =
                client.call("TeleportService/ReceiveFilesChunk", request).await?;
            at += length as u64;
            if received.received_bytes != at {
                return Err(Error::because(
                    Cause::SizeMismatch,
                    format!("the Space has {} bytes of {at} sent", received.received_bytes),
                )
                .with("path", &entry.relative));
            }
            count.add(length);
        }
    }
    Ok(())
}

/// Nobody is left who would hear that this failed; the Space forgets it by itself within the hour.
async fn take_back(client: &Client, transfer_id: String) {
    let request = AbortReceiveFilesRequest { transfer_id };
    let gone: Result<AbortReceiveFilesResponse> =
        client.call("TeleportService/AbortReceiveFiles", request).await;
    drop(gone);
}

fn declared(entry: &Entry) -> TransferEntry {
    let (seconds, nanos) = entry.modified;
    TransferEntry {
        relative_path: entry.relative.clone(),
        directory: entry.folder,
        size: entry.size,
        sha256: entry.sha256.clone(),
        mode: entry.mode,
        modified_at: Some(prost_types::Timestamp {
            seconds,
            nanos: i32::try_from(nanos).unwrap_or(0),
        }),
    }
}

/// Checks that every file is there as it was sent.
fn sent_as(source: &Files, send: &SendFile, done: CommitReceiveFilesResponse) -> Result<Sent> {
    let mut there: HashMap<&str, u32> = HashMap::new();
    for file in &done.files {
        *there.entry(&*file.sha256).or_default() += 1;
    }
    for entry in source.entries.iter().filter(|entry| !entry.folder) {
        if done.skipped.contains(&entry.relative) {
            continue;
        }
        match there.get_mut(&*entry.sha256) {
            Some(left @ 1..) => *left -= 1,
            _ => verify(&entry.relative, &entry.sha256, "")?,
        }
    }
    let dest = match (source.what, done.files.first()) {
        (What::File, Some(file)) => file.path.clone(),
        _ => published(&done, &source.name),
    };
    Ok(Sent {
        source: source.path.display().to_string(),
        destination: done.destination,
        dest,
        kind: source.what,
        files: done
            .files
            .into_iter()
            .map(|file| SentFile { path: file.path, size: file.size, sha256: file.sha256 })
            .collect(),
        bytes: source.bytes,
        respect_ignorefiles: send.respect_ignorefiles,
        skipped_by_ignorefiles: source.left_out.0.clone(),
        skipped_count: source.left_out.1,
        skipped_by_guest: done.skipped,
        verified: true,
    })
}

/// The folder as it was published, which may have got another name.
fn published(done: &CommitReceiveFilesResponse, name: &str) -> String {
    let below = done.files.first().and_then(|file| file.path.strip_prefix(&*done.destination));
    let top = below.map(|below| below.trim_start_matches('/'));
    let top = top.and_then(|below| below.split('/').next()).unwrap_or(name);
    format!("{}/{top}", done.destination.trim_end_matches('/'))
}

/// The part of a path below where files are received.
pub(crate) fn below_downloads(folder: &str) -> Result<String> {
    let folder = folder.trim_end_matches('/');
    let below = match folder.strip_prefix("~/Downloads") {
        Some("") => "",
        Some(below) if below.starts_with('/') => below.trim_start_matches('/'),
        _ => folder,
    };
    if below.starts_with(['/', '~']) {
        let issue = Issue {
            path: "target_directory".to_owned(),
            constraint: "below_downloads".into(),
            limit: None,
        };
        return Err(Error::new(
            Kind::InvalidArgument,
            "files are sent below the folder where the Space receives them",
        )
        .issue(issue)
        .hint("Give a path such as `reports/today`, or use `upload`, which takes any"));
    }
    Ok(below.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_below_the_downloads() {
        for (given, below) in
            [("", ""), ("a/b", "a/b"), ("a/b/", "a/b"), ("~/Downloads", ""), ("~/Downloads/a", "a")]
        {
            assert_eq!(below_downloads(given).unwrap(), below);
        }
        for wrong in ["/etc", "~", "~/Documents", "~/Downloadsx", "~root"] {
            let report = below_downloads(wrong).unwrap_err().report();
            assert_eq!(report.issues[0].path, "target_directory", "{wrong}");
        }
    }
}
