//! Getting files of a Space.
//!
//! They are written beside where they go, under a name of their own that goes with them if they do
//! not arrive. What a Space calls them is not trusted: only plain names below the destination are
//! written.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use spaceport_spaces::Client;
use spaceport_types::{Cause, Error, Kind, Result};
use spaceport_wire::pb::{
    EntryInfo, FileType, ListDirRequest, ListDirResponse, ReadFileRequest, ReadFileResponse,
    read_file_response,
};

use super::{
    CHUNK, Count, MAX_ENTRIES, MAX_NAMES, Watched, What, at, digest, fresh, is_folder,
    no_free_name, numbered, stat, verify,
};

/// Folders within folders that are listed, as the public contract's clients do.
const DEPTH: u32 = 64;

/// Entries of one page of a listing; well below the largest message.
const PAGE: u32 = 1_000;

/// What to download.
#[derive(Clone, Debug)]
pub struct Download {
    /// A file or a folder of the Space.
    pub path: String,
    /// The folder of this machine that it goes to, which is made if it is not there.
    pub dest: PathBuf,
}

/// What has been downloaded.
#[derive(Clone, Debug, Serialize)]
pub struct Downloaded {
    /// What was read, as the Space names it.
    pub source: String,
    /// Where it is on this machine.
    pub dest: String,
    /// What it is.
    pub kind: What,
    /// Files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Of a single file, in lower-case hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Whether what is here is what the Space read; nothing else is answered.
    pub verified: bool,
}

/// Takes what was staged away, unless it has got its name.
struct Staged(PathBuf);

impl Drop for Staged {
    fn drop(&mut self) {
        // One of the two, or neither when it has moved on.
        drop(fs::remove_file(&self.0).or_else(|_| fs::remove_dir_all(&self.0)));
    }
}

/// Gets a file or a folder of a Space. What has its name already stays, and it gets another.
///
/// # Errors
///
/// As [`send`](fn@super::send).
pub async fn download(client: &Client, wanted: Download, watched: &Watched) -> Result<Downloaded> {
    watched.unless_stopped(fetch(client, wanted, watched)).await
}

async fn fetch(client: &Client, download: Download, watched: &Watched) -> Result<Downloaded> {
    let there = stat(client, &download.path).await?.ok_or_else(|| {
        Error::new(Kind::NotFound, format!("there is no `{}` in the Space", download.path))
            .with("path", &download.path)
    })?;
    let name = plain(OsStr::new(&there.name))?;
    let folder = &download.dest;
    fs::create_dir_all(folder).map_err(|error| at(folder, error))?;
    let folder = fs::canonicalize(folder).map_err(|error| at(folder, error))?;
    let staged = Staged(folder.join(format!(".spaceport-{}", fresh()?)));
    let (what, files, bytes, sha256) = match there.r#type() {
        FileType::File => {
            let count = Count::new(watched, there.size);
            let sha256 = read(client, &there, &staged.0, &count).await?;
            (What::File, 1, there.size, Some(sha256))
        }
        FileType::Directory => {
            let (files, bytes) = read_folder(client, &there, &staged.0, watched).await?;
            (What::Folder, files, bytes, None)
        }
        _ => {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("`{}` is neither a file nor a folder", there.path),
            )
            .with("path", there.path));
        }
    };
    let dest = publish(&staged.0, &folder, name)?;
    Ok(Downloaded {
        source: there.path,
        dest: dest.display().to_string(),
        kind: what,
        files,
        bytes,
        sha256,
        verified: true,
    })
}

/// Gives what was staged the first name that is free.
fn publish(staged: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    for number in 0..MAX_NAMES {
        let dest = folder.join(numbered(name, number));
        match renameat_with(CWD, staged, CWD, &dest, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(dest),
            Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOTEMPTY) => {}
            Err(error) => return Err(at(&dest, error.into())),
        }
    }
    Err(no_free_name(folder.join(name).display()))
}

async fn read_folder(
    client: &Client,
    top: &EntryInfo,
    staged: &Path,
    watched: &Watched,
) -> Result<(usize, u64)> {
    let entries = listed(client, &top.path).await?;
    let total = entries.iter().filter(|it| !is_folder(it)).map(|it| it.size).sum();
    let count = Count::new(watched, total);
    make_folder(staged, 0o700)?;
    let (mut files, mut bytes) = (0, 0);
    for entry in &entries {
        let path = staged.join(below(&top.path, &entry.path)?);
        if is_folder(entry) {
            make_folder(&path, 0o700)?;
        } else if entry.r#type() == FileType::File {
            read(client, entry, &path, &count).await?;
            (files, bytes) = (files + 1, bytes + entry.size);
        }
    }
    Ok((files, bytes))
}

/// Everything in a folder, folders before what is in them.
async fn listed(client: &Client, path: &str) -> Result<Vec<EntryInfo>> {
    let mut entries = Vec::new();
    let mut request = ListDirRequest {
        path: path.to_owned(),
        depth: DEPTH,
        include_hidden: true,
        page_size: PAGE,
        ..ListDirRequest::default()
    };
    loop {
        let page: ListDirResponse =
            client.call("FilesystemService/ListDir", request.clone()).await?;
        // A page of nothing that has a next one would go on forever.
        let last = page.next_page_token.is_empty() || page.entries.is_empty();
        entries.extend(page.entries);
        if entries.len() > MAX_ENTRIES {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("`{path}` has more than {MAX_ENTRIES} entries"),
            )
            .with("limit", MAX_ENTRIES)
            .hint("Download it in several parts"));
        }
        if last {
            break;
        }
        request.page_token = page.next_page_token;
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// Reads one file of the Space into a new one here, and answers its SHA-256.
async fn read(client: &Client, entry: &EntryInfo, path: &Path, count: &Count) -> Result<String> {
    const METHOD: &str = "FilesystemService/ReadFile";
    let request = ReadFileRequest {
        path: entry.path.clone(),
        chunk_size: CHUNK as u32,
        compute_sha256: true,
        ..ReadFileRequest::default()
    };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600 | entry.mode & 0o777);
    let mut file = options.open(path).map_err(|error| at(path, error))?;
    let (mut hash, mut length) = (Sha256::new(), 0);
    let mut messages = client.read::<_, ReadFileResponse>(METHOD, request).await?;
    let cut = || {
        Error::because(Cause::Interrupted, format!("`{}` ended early", entry.path))
            .with("path", &entry.path)
            .hint("Download it again")
    };
    loop {
        let next = messages.message().await.map_err(|status| client.error(METHOD, &status))?;
        match next.ok_or_else(cut)?.message {
            Some(read_file_response::Message::Chunk(chunk)) => {
                if chunk.offset != length {
                    return Err(cut());
                }
                let read = chunk.data.len();
                length += read as u64;
                if length > entry.size {
                    return Err(Error::because(
                        Cause::SizeMismatch,
                        format!("`{}` grew while it was read", entry.path),
                    )
                    .with("path", &entry.path)
                    .hint("Download it again once nothing writes to it"));
                }
                hash.update(&chunk.data);
                file = append(file, chunk.data, path).await?;
                count.add(read);
            }
            Some(read_file_response::Message::End(end)) => {
                let sha256 = digest(hash);
                if length != entry.size {
                    return Err(cut());
                }
                verify(&entry.path, &end.sha256, &sha256)?;
                return Ok(sha256);
            }
            _ => {}
        }
    }
}

async fn append(mut file: File, data: bytes::Bytes, path: &Path) -> Result<File> {
    let written = tokio::task::spawn_blocking(move || file.write_all(&data).map(|()| file));
    let written = written.await.map_err(|error| {
        Error::new(Kind::Internal, "the file could not be written").source(error)
    })?;
    written.map_err(|error| at(path, error))
}

fn make_folder(path: &Path, mode: u32) -> Result<()> {
    let mut folders = DirBuilder::new();
    folders.mode(mode).create(path).map_err(|error| at(path, error))
}

/// A name that leads nowhere else.
fn plain(name: &OsStr) -> Result<&str> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next(), name.to_str()) {
        (Some(std::path::Component::Normal(only)), None, Some(name)) if only == name => Ok(name),
        _ => Err(escapes(&name.to_string_lossy())),
    }
}

/// What of `path` is below `top`.
fn below(top: &str, path: &str) -> Result<PathBuf> {
    let rest = path.strip_prefix(top.trim_end_matches('/')).and_then(|it| it.strip_prefix('/'));
    let rest = rest.ok_or_else(|| escapes(path))?;
    rest.split('/').map(|name| plain(OsStr::new(name))).collect()
}

fn escapes(path: &str) -> Error {
    let shown: String = path.chars().take(200).collect();
    let shown = shown.escape_debug();
    Error::because(Cause::PathEscape, format!("the Space named `{shown}`, which leads elsewhere"))
        .with("path", shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_below_is_written() {
        assert_eq!(below("/home/a", "/home/a/b/c").unwrap(), Path::new("b/c"));
        assert_eq!(below("/", "/b").unwrap(), Path::new("b"));
        for wrong in ["/home/ab", "/home/a/../b", "/home/a//b", "/home/a/./b", "/home/a", "b", ""] {
            let error = below("/home/a", wrong).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::PathEscape), "{wrong}");
        }
        assert_eq!(plain(OsStr::new("a b")).unwrap(), "a b");
        for wrong in ["", ".", "..", "a/b", "/", "a/"] {
            assert!(plain(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
