//! Putting files at a path of a Space.

use std::path::PathBuf;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use spaceport_spaces::Client;
use spaceport_types::{Cause, Error, Kind, Result};
use spaceport_wire::pb::{
    MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest, RemoveResponse,
    WriteFileHeader, WriteFileRequest, WriteFileResponse, WriteMode, write_file_request,
};

use super::local::{Entry, Files};
use super::{
    CHUNK, Count, MAX_NAMES, Watched, What, digest, fresh, is_folder, no_free_name, numbered, stat,
    verify,
};

/// The largest text that is written at once. What is larger is a file, which `upload` sends.
const LONGEST_TEXT: usize = 1 << 20;

/// What to upload.
#[derive(Clone, Debug)]
pub struct Upload {
    /// A file or a folder of this machine.
    pub path: PathBuf,
    /// Its path in the Space. A file that is there is written over. `None`: a free name in the
    /// downloads of the Space.
    pub dest: Option<String>,
}

/// What has been uploaded.
#[derive(Clone, Debug, Serialize)]
pub struct Uploaded {
    /// What was sent.
    pub source: String,
    /// Where it is in the Space.
    pub dest: String,
    /// What it is.
    pub kind: What,
    /// Files.
    pub files: usize,
    /// Folders, the whole one among them.
    pub directories: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Of a single file, in lower-case hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Whether the Space has every byte; nothing else is answered.
    pub verified: bool,
}

/// A text to write.
#[derive(Clone, Debug)]
pub struct Write {
    /// Its path in the Space. A file that is there is written over.
    pub path: String,
    /// The whole of it.
    pub content: String,
}

impl Write {
    /// Refuses what is too long.
    pub(crate) fn check(&self) -> Result<()> {
        let bytes = self.content.len();
        if bytes <= LONGEST_TEXT {
            return Ok(());
        }
        Err(Error::new(
            Kind::InvalidArgument,
            format!("the text has {bytes} bytes, and at most {LONGEST_TEXT} are written"),
        )
        .issue(spaceport_types::Issue {
            path: "content".to_owned(),
            constraint: "maximum".into(),
            limit: Some(LONGEST_TEXT.to_string()),
        })
        .hint("Put it into a file, and use `upload`"))
    }
}

/// A text that was written.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    /// Where it is in the Space.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
    /// In lower-case hex.
    pub sha256: String,
    /// Whether the Space has every byte; nothing else is answered.
    pub verified: bool,
}

/// Puts a file or a folder at a path of a Space, with every folder on the way there. A folder
/// comes to be at once, and where nothing was.
///
/// # Errors
///
/// As [`send`](fn@super::send).
pub async fn upload(client: &Client, upload: Upload, watched: &Watched) -> Result<Uploaded> {
    let source = Files::read(&upload.path, false, &watched.stop);
    let source = watched.unless_stopped(source).await?;
    let dest = match upload.dest.filter(|dest| !dest.is_empty()) {
        Some(dest) => dest.trim_end_matches('/').to_owned(),
        None => free(client, &source.name).await?,
    };
    let count = Count::new(watched, source.bytes);
    let dest = match (source.what, source.entries.first()) {
        (What::File, Some(file)) => {
            let written = write_file(client, (&source, file), &dest, &count);
            watched.unless_stopped(written).await?
        }
        _ => folder(client, &source, dest, watched, &count).await?,
    };
    let folders = source.entries.iter().filter(|entry| entry.folder).count();
    let single = source.entries.first().filter(|entry| !entry.folder);
    Ok(Uploaded {
        source: source.path.display().to_string(),
        dest,
        kind: source.what,
        files: source.entries.len() - folders,
        directories: folders,
        bytes: source.bytes,
        sha256: single.map(|entry| entry.sha256.clone()),
        verified: true,
    })
}

/// Writes a text to a file of a Space.
///
/// # Errors
///
/// As [`upload`], and `invalid_argument` for a text of more than 1 MiB.
pub async fn write(client: &Client, write: Write, watched: &Watched) -> Result<Written> {
    write.check()?;
    let bytes = write.content.len();
    let sha256 = digest(Sha256::new_with_prefix(write.content.as_bytes()));
    let header = WriteFileHeader {
        path: write.path,
        mode: WriteMode::Overwrite.into(),
        create_parents: true,
        expected_size: bytes as u64,
        expected_sha256: sha256.clone(),
        ..WriteFileHeader::default()
    };
    let data = Some(Bytes::from(write.content)).filter(|data| !data.is_empty());
    let messages = stream::iter(
        [Some(message(write_file_request::Message::Header(header))), data.map(data_message)]
            .into_iter()
            .flatten(),
    );
    let written = client.write("FilesystemService/WriteFile", messages);
    let written: WriteFileResponse = watched.unless_stopped(written).await?;
    let path = written.entry.unwrap_or_default().path;
    verify(&path, &sha256, &written.sha256)?;
    Ok(Written { path, bytes: bytes as u64, sha256, verified: true })
}

/// A name in the downloads that nothing has.
async fn free(client: &Client, name: &str) -> Result<String> {
    for number in 0..MAX_NAMES {
        let path = format!("~/Downloads/{}", numbered(name, number));
        if stat(client, &path).await?.is_none() {
            return Ok(path);
        }
    }
    Err(no_free_name(name))
}

/// Writes a folder beside its destination, and then gives it its name.
async fn folder(
    client: &Client,
    source: &Files,
    dest: String,
    watched: &Watched,
    count: &Count,
) -> Result<String> {
    if let Some(there) = stat(client, &dest).await? {
        let what = if is_folder(&there) { "folder" } else { "file" };
        return Err(Error::because(Cause::Conflict, format!("there is a {what} at `{dest}`"))
            .with("path", dest)
            .hint("Give a `dest` that is free"));
    }
    let staged = match dest.rsplit_once('/') {
        Some((parent, _)) => format!("{parent}/.spaceport-{}", fresh()?),
        None => format!(".spaceport-{}", fresh()?),
    };
    let filled = watched.unless_stopped(fill(client, source, &staged, count)).await;
    let named = match filled {
        // Not to be stopped: it happens at once, and then it has happened.
        Ok(()) => {
            let request = MoveRequest {
                source: staged.clone(),
                destination: dest.clone(),
                ..MoveRequest::default()
            };
            let moved: Result<MoveResponse> = client.call("FilesystemService/Move", request).await;
            moved.map(|moved| moved.entry.unwrap_or_default().path)
        }
        Err(error) => Err(error),
    };
    if named.is_err() {
        let request = RemoveRequest {
            path: staged,
            recursive: true,
            missing_ok: true,
            ..RemoveRequest::default()
        };
        let gone: Result<RemoveResponse> = client.call("FilesystemService/Remove", request).await;
        drop(gone);
    }
    named
}

async fn fill(client: &Client, source: &Files, staged: &str, count: &Count) -> Result<()> {
    for entry in &source.entries {
        let below = entry.relative.strip_prefix(&*source.name).unwrap_or_default();
        let path = format!("{staged}{below}");
        if entry.folder {
            let request =
                MakeDirRequest { path, parents: true, mode: entry.mode, ..Default::default() };
            let _made: MakeDirResponse = client.call("FilesystemService/MakeDir", request).await?;
        } else {
            write_file(client, (source, entry), &path, count).await?;
        }
    }
    Ok(())
}

/// Writes one file, and answers where it is.
async fn write_file(
    client: &Client,
    (source, entry): (&Files, &Entry),
    dest: &str,
    count: &Count,
) -> Result<String> {
    let header = WriteFileHeader {
        path: dest.to_owned(),
        mode: WriteMode::Overwrite.into(),
        permissions: entry.mode,
        create_parents: true,
        expected_size: entry.size,
        expected_sha256: entry.sha256.clone(),
        ..WriteFileHeader::default()
    };
    // What goes wrong on this side ends the messages, and is told here.
    let (failed, mut failure) = tokio::sync::oneshot::channel();
    let first = message(write_file_request::Message::Header(header));
    let state = (source.open(entry, 0)?, failed, count.clone());
    let rest = stream::unfold(Some(state), |state| async move {
        let (reading, failed, count) = state?;
        match reading.next(CHUNK).await {
            Ok((_, data)) if data.is_empty() => None,
            Ok((reading, data)) => {
                count.add(data.len());
                Some((data_message(data), Some((reading, failed, count))))
            }
            Err(error) => {
                drop(failed.send(error));
                None
            }
        }
    });
    let messages = stream::iter([first]).chain(rest);
    let written: Result<WriteFileResponse> =
        client.write("FilesystemService/WriteFile", messages).await;
    match (written, failure.try_recv()) {
        (_, Ok(error)) | (Err(error), _) => Err(error),
        (Ok(written), _) => {
            verify(dest, &entry.sha256, &written.sha256)?;
            Ok(written.entry.unwrap_or_default().path)
        }
    }
}

fn message(message: write_file_request::Message) -> WriteFileRequest {
    WriteFileRequest { message: Some(message) }
}

fn data_message(data: Bytes) -> WriteFileRequest {
    message(write_file_request::Message::Data(data))
}
