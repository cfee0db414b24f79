//! Files by the best way that a Space has: a sealed line where it takes one, and the calls of the public
//! contract where it does not and nobody is between.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use spaceport_spaces::Client;
use spaceport_types::{Error, Kind, Result};
use tokio_util::sync::CancellationToken;

use crate::contract::{
    self, Download, Downloaded, SendFile, SentFile, Upload, Uploaded, Watched, What, Write, Written,
};
use crate::receive::{Conflict, Total};
use crate::stream::{
    self, ANYWHERE, Cancel, FEATURE, Fetch, Fetched, LeftOut, Put, Send, Sent, Step, Thing, Watch,
};
use crate::trust::Keys;

/// Sends files and folders.
///
/// # Errors
///
/// As [`stream::send`](fn@stream::send) and [`contract::send`](fn@contract::send).
pub async fn send(
    space: &Client,
    wanted: &Send,
    keys: &Keys,
    watch: &Watch,
    cancel: &Cancel,
    wall: SystemTime,
) -> Result<Sent> {
    match stream::send(space, wanted, keys, watch, cancel, wall).await {
        Err(error) if is_missing(&error) => {}
        done => return done,
    }
    let watched = watched(watch, cancel);
    let mut total = Total::default();
    let mut sent = Sent::default();
    for path in &wanted.paths {
        let one = SendFile {
            path: path.clone(),
            conflict: wanted.conflict,
            target_directory: wanted.into.clone(),
            respect_ignorefiles: !wanted.everything,
        };
        let done = contract::send_summed(space, one, &watched, &mut total).await?;
        sent.destination = done.destination;
        let name = std::path::Path::new(&done.dest).file_name().unwrap_or_default();
        sent.names.push(name.to_string_lossy().into_owned());
        sent.files += done.files.len() as u64;
        sent.bytes += done.bytes;
        sent.wire_bytes += done.bytes;
        sent.skipped_count += done.skipped_by_guest.len() as u64;
        sent.skipped.extend(done.skipped_by_guest);
        sent.left_out =
            LeftOut { ignored: sent.left_out.ignored + done.skipped_count, ..sent.left_out };
    }
    sent.sha256 = total.finish();
    Ok(sent)
}

/// Fetches files and folders.
///
/// # Errors
///
/// As [`stream::fetch`](fn@stream::fetch) and [`contract::download`](fn@contract::download).
pub async fn fetch(
    space: &Client,
    wanted: &Fetch,
    keys: &Keys,
    watch: &Watch,
    cancel: &Cancel,
    wall: SystemTime,
) -> Result<Fetched> {
    match stream::fetch(space, wanted, keys, watch, cancel, wall).await {
        Err(error) if is_missing(&error) => {}
        done => return done,
    }
    if !matches!(wanted.conflict, Conflict::Rename) {
        return Err(Error::new(
            Kind::CapabilityMissing,
            "this Space's files can only be put beside what is there",
        )
        .with("feature", FEATURE)
        .hint(
            "Leave out `--conflict`, or use a version of spaceport there that has `files_stream`",
        ));
    }
    let watched = watched(watch, cancel);
    let mut fetched = Fetched::default();
    for path in &wanted.paths {
        let one = Download { path: path.clone(), dest: wanted.into.clone() };
        let done = contract::download(space, one, &watched).await?;
        let dest = PathBuf::from(&done.dest);
        let name = dest.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fetched.destination = dest.parent().unwrap_or(&dest).display().to_string();
        fetched.names.push(name);
        fetched.files += done.files as u64;
        fetched.bytes += done.bytes;
        fetched.wire_bytes += done.bytes;
    }
    Ok(fetched)
}

/// Sends one file or folder, and says of each file what became of it.
///
/// # Errors
///
/// As [`send`].
pub async fn send_file(
    space: &Client,
    wanted: SendFile,
    keys: &Keys,
    watched: &Watched,
    wall: SystemTime,
) -> Result<contract::Sent> {
    let line = Send {
        paths: vec![wanted.path.clone()],
        into: contract::below_downloads(&wanted.target_directory)?,
        conflict: wanted.conflict,
        everything: !wanted.respect_ignorefiles,
        listed: true,
    };
    let (watch, cancel) = (watch(watched), Cancel::default());
    let sent = stopped_by(&watched.stop, &cancel, async {
        stream::send(space, &line, keys, &watch, &cancel, wall).await
    });
    let sent = match sent.await {
        Err(error) if is_missing(&error) => return contract::send(space, wanted, watched).await,
        sent => sent?,
    };
    let top = sent.names.first().cloned().unwrap_or_default();
    let place = |path: &str| {
        let rest = path.split_once('/').map(|(_, rest)| format!("/{rest}")).unwrap_or_default();
        format!("{}/{top}{rest}", sent.destination.trim_end_matches('/'))
    };
    let path = wanted.path.canonicalize().unwrap_or(wanted.path);
    Ok(contract::Sent {
        source: path.display().to_string(),
        dest: place(""),
        kind: if path.is_dir() { What::Folder } else { What::File },
        files: sent
            .listed
            .iter()
            .map(|file| SentFile {
                path: place(&file.path),
                size: file.size,
                sha256: file.sha256.to_string(),
            })
            .collect(),
        bytes: sent.bytes,
        respect_ignorefiles: wanted.respect_ignorefiles,
        skipped_by_ignorefiles: sent.ignored,
        skipped_count: sent.left_out.ignored,
        skipped_by_guest: sent.skipped,
        verified: true,
        destination: sent.destination,
    })
}

/// Gets one file or folder. `state` is where notes of what is staged are kept.
///
/// # Errors
///
/// As [`fetch`].
pub async fn download(
    space: &Client,
    wanted: Download,
    state: PathBuf,
    keys: &Keys,
    watched: &Watched,
    wall: SystemTime,
) -> Result<Downloaded> {
    let line = Fetch {
        paths: vec![wanted.path.clone()],
        into: wanted.dest.clone(),
        state,
        conflict: Conflict::Rename,
        everything: true,
    };
    let (watch, cancel) = (watch(watched), Cancel::default());
    let fetched = stopped_by(&watched.stop, &cancel, async {
        stream::fetch(space, &line, keys, &watch, &cancel, wall).await
    });
    let fetched = match fetched.await {
        Err(error) if is_missing(&error) => {
            return contract::download(space, wanted, watched).await;
        }
        fetched => fetched?,
    };
    let dest = PathBuf::from(&fetched.destination);
    let dest = dest.join(fetched.names.first().map(String::as_str).unwrap_or_default());
    let kind = if dest.is_dir() { What::Folder } else { What::File };
    Ok(Downloaded {
        source: wanted.path,
        dest: dest.display().to_string(),
        kind,
        files: usize::try_from(fetched.files).unwrap_or(usize::MAX),
        bytes: fetched.bytes,
        sha256: fetched.single.filter(|_| kind == What::File).map(|digest| digest.to_string()),
        verified: true,
    })
}

/// Puts a file or a folder at a path of a Space, with every folder on the way there.
///
/// # Errors
///
/// As [`send`] and [`contract::upload`](fn@contract::upload).
pub async fn upload(
    space: &Client,
    wanted: Upload,
    keys: &Keys,
    watched: &Watched,
    wall: SystemTime,
) -> Result<Uploaded> {
    let dest = wanted.dest.as_deref().map(|dest| dest.trim_end_matches('/'));
    let dest = dest.filter(|dest| !dest.is_empty()).map(str::to_owned);
    let path = wanted.path.canonicalize().unwrap_or_else(|_| wanted.path.clone());
    let is_file = path.is_file();
    let (watch, cancel) = (watch(watched), Cancel::default());
    let sent = stopped_by(&watched.stop, &cancel, async {
        match dest {
            Some(path) => {
                let put = Put { thing: Thing::Path(wanted.path.clone()), path };
                stream::put(space, put, keys, &watch, &cancel, wall).await
            }
            None => {
                let send = Send {
                    paths: vec![wanted.path.clone()],
                    everything: true,
                    listed: is_file,
                    ..Send::default()
                };
                stream::send(space, &send, keys, &watch, &cancel, wall).await
            }
        }
    });
    let sent = match sent.await {
        Err(error) if is_missing(&error) => return contract::upload(space, wanted, watched).await,
        sent => sent?,
    };
    Ok(Uploaded {
        source: path.display().to_string(),
        dest: whole(&sent),
        kind: if is_file { What::File } else { What::Folder },
        files: usize::try_from(sent.files).unwrap_or(usize::MAX),
        directories: usize::try_from(sent.folders).unwrap_or(usize::MAX),
        bytes: sent.bytes,
        sha256: sent.listed.first().filter(|_| is_file).map(|file| file.sha256.to_string()),
        verified: true,
    })
}

/// Writes a text to a file of a Space.
///
/// # Errors
///
/// As [`send`] and [`contract::write`](fn@contract::write).
pub async fn write(
    space: &Client,
    wanted: Write,
    keys: &Keys,
    watched: &Watched,
    wall: SystemTime,
) -> Result<Written> {
    wanted.check()?;
    let (watch, cancel) = (watch(watched), Cancel::default());
    let sent = stopped_by(&watched.stop, &cancel, async {
        let put = Put { thing: Thing::Text(wanted.content.clone()), path: wanted.path.clone() };
        stream::put(space, put, keys, &watch, &cancel, wall).await
    });
    let sent = match sent.await {
        Err(error) if is_missing(&error) => return contract::write(space, wanted, watched).await,
        sent => sent?,
    };
    Ok(Written {
        path: whole(&sent),
        bytes: sent.bytes,
        sha256: sent.listed.first().map(|file| file.sha256.to_string()).unwrap_or_default(),
        verified: true,
    })
}

/// Where the one thing is that was sent.
fn whole(sent: &Sent) -> String {
    let top = sent.names.first().map(String::as_str).unwrap_or_default();
    format!("{}/{top}", sent.destination.trim_end_matches('/'))
}

/// Whether the Space only lacks the sealed line.
fn is_missing(error: &Error) -> bool {
    let feature = error.context("feature");
    error.kind() == Kind::CapabilityMissing && [Some(FEATURE), Some(ANYWHERE)].contains(&feature)
}

/// Gives a transfer up when `stop` says so, and waits until nothing is left of it.
async fn stopped_by<T>(
    stop: &CancellationToken,
    cancel: &Cancel,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => return done,
        () = stop.cancelled() => cancel.cancel(),
    }
    work.await
}

/// One who is told of steps, from one who is told of bytes: those only grow.
fn watch(watched: &Watched) -> Watch {
    let (progress, told) = (Arc::clone(&watched.progress), AtomicU64::new(0));
    let whole = AtomicU64::new(0);
    let tell = move |done, total| {
        if done > told.fetch_max(done, Ordering::Relaxed) {
            progress(done, total);
        }
    };
    Arc::new(move |step| match step {
        Step::Looking => {}
        Step::Moving { done, total } => {
            whole.store(total, Ordering::Relaxed);
            tell(done, total);
        }
        Step::Publishing => {
            let total = whole.load(Ordering::Relaxed);
            tell(total, total);
        }
    })
}

/// The other way round.
fn watched(watch: &Watch, cancel: &Cancel) -> Watched {
    let (watch, stop) = (Arc::clone(watch), CancellationToken::new());
    let (cancel, stops) = (cancel.clone(), stop.clone());
    drop(tokio::spawn(async move {
        tokio::select! {
            () = cancel.cancelled() => stops.cancel(),
            () = stops.cancelled() => {}
        }
    }));
    Watched { progress: Arc::new(move |done, total| watch(Step::Moving { done, total })), stop }
}
