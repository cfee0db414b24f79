//! The tools that move files, told of progress and stopped by whoever called.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use serde::Serialize;
use spaceport_teleport::carry;
use spaceport_teleport::contract::{
    Download, Downloaded, SendFile, Sent, Upload, Uploaded, Watched, Write, Written,
};
use spaceport_teleport::receive::Conflict;
use spaceport_types::Result;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::User;
use super::consent::Asker;
use super::parameters as of;
use crate::args::Environment;
use crate::client::files::{keys, staged};
use crate::client::now;

/// How often a caller is told how far it is.
const REPORT: Duration = Duration::from_millis(200);

/// Where downloads go, as the public contract has it.
const DOWNLOADS: &str = "~/Downloads/cua-spaces";

/// The call that a tool runs for.
#[derive(Clone, Default)]
pub(crate) struct Call {
    /// Who wants to know of progress, and what they know it by.
    pub(crate) progress: Option<(Peer<RoleServer>, ProgressToken)>,
    /// When they no longer want it.
    pub(crate) stop: CancellationToken,
    /// The way to the person they work for, where there is one.
    pub(crate) asker: Option<Asker>,
}

pub(crate) async fn send_file(user: User, it: of::SendFile) -> Result<Sent> {
    let send = SendFile {
        path: local(&it.path),
        conflict: Conflict::Rename,
        target_directory: it.target_directory.unwrap_or_default(),
        respect_ignorefiles: it.respect_ignorefiles.unwrap_or(true),
    };
    let (space, _) = user.spaces.client(&it.space)?;
    let work =
        |watched| async move { carry::send_file(&space, send, &keys(None), &watched, now()).await };
    user.call.watch(work).await
}

pub(crate) async fn upload(user: User, it: of::Upload) -> Result<Uploaded> {
    let upload = Upload { path: local(&it.path), dest: it.dest };
    let (space, _) = user.spaces.client(&it.space)?;
    let work =
        |watched| async move { carry::upload(&space, upload, &keys(None), &watched, now()).await };
    user.call.watch(work).await
}

pub(crate) async fn download(user: User, it: of::Download) -> Result<Downloaded> {
    let dest = it.dest.filter(|dest| !dest.is_empty());
    let dest = local(dest.as_deref().unwrap_or(DOWNLOADS));
    let dest = std::path::absolute(dest)?;
    let download = Download { path: it.path, dest };
    let (space, _) = user.spaces.client(&it.space)?;
    let work = |watched| async move {
        carry::download(&space, download, staged(), &keys(None), &watched, now()).await
    };
    user.call.watch(work).await
}

pub(crate) async fn write(user: User, it: of::SpaceWrite) -> Result<SpaceWritten> {
    let write = Write { path: it.path, content: it.content };
    let (client, space) = user.spaces.client(&it.space)?;
    let work =
        |watched| async move { carry::write(&client, write, &keys(None), &watched, now()).await };
    Ok(SpaceWritten { space, written: user.call.watch(work).await? })
}

/// A text that was written, and where.
#[derive(Serialize)]
pub(crate) struct SpaceWritten {
    space: String,
    #[serde(flatten)]
    written: Written,
}

/// A path of this machine, from the home where it starts with `~`.
fn local(path: &str) -> PathBuf {
    match (path.strip_prefix('~'), Environment::read().home) {
        (Some(""), Some(home)) => home,
        (Some(below), Some(home)) if below.starts_with('/') => {
            home.join(below.trim_start_matches('/'))
        }
        _ => PathBuf::from(path),
    }
}

impl Call {
    /// Runs a transfer, and says how far it is to a caller who asked.
    pub(super) async fn watch<T, W>(self, work: impl FnOnce(Watched) -> W) -> Result<T>
    where
        W: Future<Output = Result<T>>,
    {
        let (told, known) = watch::channel((0, 0));
        let progress = Arc::new(move |moved, total| {
            told.send_replace((moved, total));
        });
        let mut work = std::pin::pin!(work(Watched { progress, stop: self.stop }));
        let Some((peer, token)) = self.progress else { return work.await };
        let mut told = None;
        let mut ticks = interval(REPORT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                _ = ticks.tick() => report(&peer, &token, &known, &mut told).await,
            }
        };
        if done.is_ok() {
            report(&peer, &token, &known, &mut told).await;
        }
        done
    }
}

/// Tells how far it is, if that is further than was `told` last: by the protocol it only grows.
async fn report(
    peer: &Peer<RoleServer>,
    token: &ProgressToken,
    known: &watch::Receiver<(u64, u64)>,
    told: &mut Option<u64>,
) {
    let (moved, total) = *known.borrow();
    if told.map_or(total == 0, |told| moved <= told) {
        return;
    }
    *told = Some(moved);
    let mut progress = ProgressNotificationParam::new(token.clone(), moved as f64);
    progress.total = Some(total as f64);
    // Who is gone needs no progress; that they are is told elsewhere.
    drop(peer.notify_progress(progress).await);
}
