//! The client's half: sending to a Space, and fetching from one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as wait;
use std::time::{Duration, SystemTime};

use futures_util::stream;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use spaceport_spaces::Client;
use spaceport_types::{Cause, Error, Kind, Result};
use spaceport_wire::pb::files as pb;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::give::{Giving, entries, give, standing};
use super::pack::corrupt;
use super::take::{Declaring, Taker, begin, begun, shown};
use super::walk::{LeftOut, Listing, Source};
use crate::digest::Digest;
use crate::receive::{Begin, Committed, Config, Conflict, DEFAULT_TTL, Receiver, Standing};
use crate::{hex, raw};

const SEND: &str = "spaceport.files.v1.Files/Send";
const FETCH: &str = "spaceport.files.v1.Files/Fetch";

/// Packs that wait for the network. One more is being filled; what else is on its way is the
/// connection's window.
const QUEUE: usize = 2;

/// How often a stream that broke off is begun again before the caller is asked to.
const TRIES: u32 = 3;

/// The first delay between tries; it doubles.
const DELAY: Duration = Duration::from_millis(250);

/// How long the other side may take to hear that a transfer is given up.
const GIVE_UP: Duration = Duration::from_secs(3);

/// How often a thread that waits looks whether it still should.
const LOOK: Duration = Duration::from_millis(50);

/// What is sent, and how.
#[derive(Clone, Debug, Default)]
pub struct Send {
    /// Files and folders of this machine.
    pub paths: Vec<PathBuf>,
    /// The folder below the Space's downloads folder; empty is that folder itself.
    pub into: String,
    /// What to do with names that are taken.
    pub conflict: Conflict,
    /// Whether what ignore files leave out is sent all the same.
    pub everything: bool,
}

/// What is fetched, and how.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Files and folders of the Space.
    pub paths: Vec<String>,
    /// The folder of this machine that they go to.
    pub into: PathBuf,
    /// Where notes of what is staged are kept.
    pub state: PathBuf,
    /// What to do with names that are taken.
    pub conflict: Conflict,
    /// Whether what ignore files leave out is fetched all the same.
    pub everything: bool,
}

/// What came of a [`send`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// The transfer's name.
    pub transfer_id: String,
    /// The folder of the Space that everything went to.
    pub destination: String,
    /// What is there now, by the names it has there.
    pub names: Vec<String>,
    /// How many files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that an earlier run had brought there.
    pub resumed_bytes: u64,
    /// Bytes that went over the network, without its own framing.
    pub wire_bytes: u64,
    /// SHA-256 of the whole.
    pub sha256: Digest,
    /// What was not published because something was there: some paths.
    pub skipped: Vec<String>,
    /// How many of them there are.
    pub skipped_count: u64,
    /// What was not sent.
    pub left_out: LeftOut,
}

/// What came of a [`fetch`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fetched {
    /// The folder that everything went to.
    pub destination: String,
    /// What is there now, by the names it has.
    pub names: Vec<String>,
    /// How many files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that an earlier run had fetched.
    pub resumed_bytes: u64,
    /// Bytes that came over the network, without its own framing.
    pub wire_bytes: u64,
    /// SHA-256 of the whole.
    pub sha256: Digest,
    /// What was not published because something was there: some paths.
    pub skipped: Vec<String>,
    /// How many of them there are.
    pub skipped_count: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Looking at what there is.
    Looking,
    /// Of so many bytes, so many are through. What an earlier run had brought counts.
    Moving {
        /// Through.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// The receiving side checks and publishes.
    Publishing,
}

/// Who is told.
pub type Watch = Arc<dyn Fn(Step) + std::marker::Send + Sync>;

/// Gives a transfer up. Cloning it makes another handle.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    shared: Arc<(AtomicBool, Notify)>,
}

impl Cancel {
    /// The transfer is to end, and leave nothing behind.
    pub fn cancel(&self) {
        self.shared.0.store(true, Ordering::Release);
        self.shared.1.notify_waiters();
    }

    fn is_cancelled(&self) -> bool {
        self.shared.0.load(Ordering::Acquire)
    }

    async fn cancelled(&self) {
        loop {
            let notified = self.shared.1.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}

/// Sends files and folders to a Space. The same again after it broke off goes on where it was.
///
/// # Errors
///
/// `transfer_failed` with the cause and the entry; with `peer_gone`, the same call can go on later.
/// `cancelled`; what the Space says.
pub async fn send(space: &Client, wanted: &Send, watch: &Watch, cancel: &Cancel) -> Result<Sent> {
    watch(Step::Looking);
    let (paths, everything) = (wanted.paths.clone(), wanted.everything);
    let listing = blocking(move || {
        let sources = paths.iter().map(|path| Source::at(path)).collect::<Result<_>>()?;
        Listing::walk(sources, everything)
    });
    let listing = Arc::new(listing.await?);
    let begin = pb::Begin {
        transfer_id: name("send", &listing.identity().0, &wanted.into, wanted.conflict),
        destination: wanted.into.clone(),
        conflict: conflict(wanted.conflict).into(),
    };
    let bytes = Arc::new(AtomicU64::new(0));
    let (end, resumed, done) = again(space, cancel, async || {
        send_once(space, &begin, &listing, watch, cancel, &bytes).await
    })
    .await?;
    Ok(Sent {
        transfer_id: begin.transfer_id,
        destination: raw(&done.destination),
        names: shown(&done.names),
        files: done.files,
        bytes: done.bytes,
        resumed_bytes: resumed,
        wire_bytes: bytes.load(Ordering::Relaxed),
        sha256: end,
        skipped: shown(&done.skipped),
        skipped_count: done.skipped_count,
        left_out: listing.left_out,
    })
}

/// A step of a stream: what failed, and whether the other side had already begun.
struct Broken {
    error: Error,
    begun: bool,
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self { error, begun: false }
    }
}

/// Begins again what broke off.
async fn again<T>(
    space: &Client,
    cancel: &Cancel,
    once: impl AsyncFn() -> Result<T, Broken>,
) -> Result<T> {
    let (mut tries, mut was_begun) = (0, false);
    loop {
        let Broken { error, begun } = match once().await {
            Ok(done) => return Ok(done),
            Err(broken) => broken,
        };
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        was_begun |= begun;
        if error.kind() != Kind::SpacesdNotAvailable || !was_begun {
            return Err(error);
        }
        if tries == TRIES {
            return Err(Error::because(
                Cause::PeerGone,
                format!("the connection to the Space at {} broke off", space.address()),
            )
            .hint("Run the same command again within the hour: it goes on where it was")
            .source(error));
        }
        tracing::debug!(%error, tries, "a transfer broke off");
        tokio::select! {
            () = sleep(DELAY * 2_u32.pow(tries)) => {}
            () = cancel.cancelled() => return Err(cancelled()),
        }
        tries += 1;
    }
}

async fn send_once(
    space: &Client,
    begin: &pb::Begin,
    listing: &Arc<Listing>,
    watch: &Watch,
    cancel: &Cancel,
    bytes: &Arc<AtomicU64>,
) -> Result<(Digest, u64, pb::Done), Broken> {
    let (frames, queue) = mpsc::channel(QUEUE);
    let (standing_to, standing_from) = wait::channel();
    let (ended, end) = oneshot::channel();
    let producer = Producer {
        begin: begin.clone(),
        listing: Arc::clone(listing),
        frames,
        standing: standing_from,
        watch: Arc::clone(watch),
        cancel: cancel.clone(),
        bytes: Arc::clone(bytes),
    };
    // Not one of the runtime's threads, which would be waited for at its end.
    std::thread::Builder::new()
        .name("send".to_owned())
        .spawn(move || {
            drop(ended.send(producer.run()));
        })
        .map_err(Error::from)?;
    let mut answers = space.exchange::<_, pb::Frame>(SEND, frames_of(queue)).await?;
    let (mut resumed, mut has_begun) = (0, false);
    let answer = async {
        loop {
            match next(space, SEND, &mut answers).await? {
                pb::frame::Frame::Begun(begun) => {
                    let standing = standing(&begun)?;
                    resumed = already(listing, &standing);
                    has_begun = true;
                    // Gone only when it has failed, which it says itself.
                    drop(standing_to.send(standing));
                }
                pb::frame::Frame::Done(done) => return Ok(done),
                _ => return Err(unexpected()),
            }
        }
    };
    let answer = tokio::select! {
        answer = answer => answer,
        // The producer tells the other side; what comes of that is not waited for long.
        () = async { cancel.cancelled().await; sleep(GIVE_UP).await } => Err(cancelled()),
    };
    drop(answers);
    let broken = |error| Broken { error, begun: has_begun };
    match (timeout(GIVE_UP, end).await, answer) {
        (Ok(Ok(Err(Some(error)))), _) => Err(broken(error)),
        (Ok(Ok(Ok(total))), Ok(done)) => Ok((total, resumed, done)),
        (_, Err(error)) => Err(broken(error)),
        (_, Ok(_)) => Err(broken(unexpected())),
    }
}

/// Reads the files on a thread of its own.
struct Producer {
    begin: pb::Begin,
    listing: Arc<Listing>,
    frames: mpsc::Sender<pb::Frame>,
    standing: wait::Receiver<Standing>,
    watch: Watch,
    cancel: Cancel,
    bytes: Arc<AtomicU64>,
}

impl Producer {
    /// What it was in all; no error where only the connection is gone, of which others know more.
    fn run(self) -> Result<Digest, Option<Error>> {
        let produced = self.produce();
        if let Err(Some(_)) = &produced {
            drop(self.put(pb::frame::Frame::Abort(pb::Abort {})));
        }
        produced
    }

    fn put(&self, frame: pb::frame::Frame) -> Result<(), Option<Error>> {
        self.frames.blocking_send(pb::Frame { frame: Some(frame) }).map_err(|_| None)
    }

    fn produce(&self) -> Result<Digest, Option<Error>> {
        self.put(pb::frame::Frame::Begin(self.begin.clone()))?;
        for some in entries(&self.listing) {
            self.put(pb::frame::Frame::Entries(some))?;
        }
        let standing = loop {
            match self.standing.recv_timeout(LOOK) {
                Ok(standing) => break standing,
                Err(wait::RecvTimeoutError::Disconnected) => return Err(None),
                Err(wait::RecvTimeoutError::Timeout) if self.cancel.is_cancelled() => {
                    return Err(Some(cancelled()));
                }
                Err(wait::RecvTimeoutError::Timeout) => {}
            }
        };
        let total = self.listing.bytes;
        let mut lost = false;
        let mut sink = |pack: pb::Pack| {
            if self.cancel.is_cancelled() {
                return Err(cancelled());
            }
            self.bytes.fetch_add(pack.records.len() as u64, Ordering::Relaxed);
            self.put(pb::frame::Frame::Pack(pack)).map_err(|_| {
                lost = true;
                Error::new(Kind::Cancelled, "the connection is gone")
            })
        };
        let mut compress = || self.frames.capacity() == 0; // the network is behind
        let mut told = |done| (self.watch)(Step::Moving { done, total });
        let giving = Giving { sink: &mut sink, compress: &mut compress, told: &mut told };
        let given = give(&self.listing, &standing, giving);
        let digest = given.map_err(|error| (!lost).then_some(error))?;
        self.put(pb::frame::Frame::End(pb::End { sha256: digest.0.to_vec().into() }))?;
        (self.watch)(Step::Publishing);
        Ok(digest)
    }
}

/// Fetches files and folders from a Space. The same again after it broke off goes on where it was.
///
/// # Errors
///
/// As [`send`].
pub async fn fetch(
    space: &Client,
    wanted: &Fetch,
    watch: &Watch,
    cancel: &Cancel,
    wall: SystemTime,
) -> Result<Fetched> {
    watch(Step::Looking);
    let config = Config::new(&wanted.into, &wanted.state);
    let receiver = blocking(move || Receiver::open(config, now(), wall)).await?;
    let bytes = AtomicU64::new(0);
    let (end, resumed, done) = again(space, cancel, async || {
        fetch_once(space, wanted, &receiver, watch, cancel, &bytes).await
    })
    .await?;
    let done = super::take::done(&done);
    Ok(Fetched {
        destination: raw(&done.destination),
        names: shown(&done.names),
        files: done.files,
        bytes: done.bytes,
        resumed_bytes: resumed,
        wire_bytes: bytes.load(Ordering::Relaxed),
        sha256: end,
        skipped: shown(&done.skipped),
        skipped_count: done.skipped_count,
    })
}

async fn fetch_once(
    space: &Client,
    wanted: &Fetch,
    receiver: &Receiver,
    watch: &Watch,
    cancel: &Cancel,
    bytes: &AtomicU64,
) -> Result<(Digest, u64, Committed), Broken> {
    let (frames, queue) = mpsc::channel(QUEUE);
    let put = async |frame| drop(frames.send(pb::Frame { frame: Some(frame) }).await);
    let fetch = pb::Fetch { paths: wanted.paths.clone(), everything: wanted.everything };
    put(pb::frame::Frame::Fetch(fetch)).await;
    let mut answers = space.exchange::<_, pb::Frame>(FETCH, frames_of(queue)).await?;
    let mut declared = Declaring::default();
    loop {
        let answer = tokio::select! {
            answer = next(space, FETCH, &mut answers) => answer?,
            () = cancel.cancelled() => return Err(cancelled().into()),
        };
        match answer {
            pb::frame::Frame::Entries(some) => {
                if declared.add(some)? {
                    break;
                }
            }
            _ => return Err(unexpected().into()),
        }
    }
    let total = declared.bytes();
    let id = fetch_name(space, wanted, &declared);
    let receiver = receiver.clone();
    let request =
        Begin { id, conflict: wanted.conflict, ttl: Some(DEFAULT_TTL), ..Begin::default() };
    let (taker, sizes) = blocking(move || {
        let taker = begin(&receiver, request, &declared, now())?;
        let sizes = taker.standing();
        let whole =
            sizes.whole.iter().filter_map(|&(index, _)| declared.entries().get(index as usize));
        let whole: u64 = whole.map(|entry| entry.size).sum();
        let parts: u64 = sizes.parts.iter().map(|&(_, received)| received).sum();
        Ok((taker, whole + parts))
    })
    .await?;
    let (taker, resumed) = (Arc::new(taker), sizes);
    put(pb::frame::Frame::Begun(begun(&taker.standing()))).await;
    let taken = take_all(space, &mut answers, &taker, (watch, resumed, total), cancel, bytes).await;
    if cancel.is_cancelled() {
        let taker = Arc::clone(&taker);
        blocking(move || {
            taker.abort();
            Ok(())
        })
        .await?;
        return Err(cancelled().into());
    }
    let (end, done) = taken.map_err(|error| Broken { error, begun: true })?;
    Ok((end, resumed, done))
}

async fn take_all(
    space: &Client,
    answers: &mut tonic::Streaming<pb::Frame>,
    taker: &Arc<Taker>,
    (watch, resumed, total): (&Watch, u64, u64),
    cancel: &Cancel,
    bytes: &AtomicU64,
) -> Result<(Digest, Committed)> {
    let mut done = resumed;
    // One pack is written while the next one comes.
    let mut writing: Option<tokio::task::JoinHandle<Result<()>>> = None;
    loop {
        let answer = tokio::select! {
            answer = next(space, FETCH, answers) => answer,
            () = cancel.cancelled() => return Err(cancelled()),
        };
        if let Some(written) = writing.take() {
            joined(written.await)?;
        }
        match answer? {
            pb::frame::Frame::Pack(pack) => {
                bytes.fetch_add(pack.records.len() as u64, Ordering::Relaxed);
                done += u64::from(pack.unpacked).max(pack.records.len() as u64);
                watch(Step::Moving { done: done.min(total), total });
                let taker = Arc::clone(taker);
                writing = Some(tokio::task::spawn_blocking(move || taker.pack(&pack, now())));
            }
            pb::frame::Frame::End(end) => {
                watch(Step::Publishing);
                let taker = Arc::clone(taker);
                let digest = <[u8; 32]>::try_from(&end.sha256[..]).map(Digest);
                let digest = digest.map_err(|_| corrupt("the end has no digest"))?;
                let done = blocking(move || taker.commit(&end)).await?;
                return Ok((digest, done));
            }
            _ => return Err(unexpected()),
        }
    }
}

/// The next message; what is not one is the Space's error, or the connection's.
async fn next(
    space: &Client,
    method: &'static str,
    answers: &mut tonic::Streaming<pb::Frame>,
) -> Result<pb::frame::Frame> {
    match answers.message().await {
        Ok(Some(pb::Frame { frame: Some(frame) })) => Ok(frame),
        Ok(Some(_)) => Err(unexpected()),
        Ok(None) => Err(Error::new(Kind::SpacesdNotAvailable, "the Space ended the stream")),
        Err(status) => Err(space.error(method, &status)),
    }
}

fn frames_of(queue: mpsc::Receiver<pb::Frame>) -> impl stream::Stream<Item = pb::Frame> {
    stream::unfold(queue, |mut queue| async move {
        let frame = queue.recv().await?;
        Some((frame, queue))
    })
}

/// Bytes that are there already.
fn already(listing: &Listing, standing: &Standing) -> u64 {
    let size = |index: u32| listing.items.get(index as usize).map_or(0, |item| item.size);
    let whole: u64 = standing.whole.iter().map(|&(index, _)| size(index)).sum();
    let parts = standing.parts.iter().map(|&(index, received)| received.min(size(index)));
    whole + parts.sum::<u64>()
}

/// The same for the same things, sent or fetched in the same way, as long as they do not change.
fn name(what: &str, identity: &[u8], into: &str, policy: Conflict) -> String {
    let mut hash = Sha256::new();
    for text in [what.as_bytes(), identity, into.as_bytes(), &[conflict(policy) as u8]] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let digest = hash.finalize();
    format!("{what}-{}", hex::encode(digest.get(..16).unwrap_or_default()))
}

fn fetch_name(space: &Client, wanted: &Fetch, declared: &Declaring) -> String {
    let mut hash = Sha256::new();
    hash.update(space.address().to_string());
    for path in &wanted.paths {
        hash.update((path.len() as u64).to_be_bytes());
        hash.update(path);
    }
    for entry in declared.entries() {
        hash.update((entry.path.len() as u64).to_be_bytes());
        hash.update(&entry.path);
        hash.update([u8::from(entry.directory)]);
        hash.update(entry.size.to_be_bytes());
        hash.update(entry.mode.to_be_bytes());
        hash.update(entry.modified_seconds.to_be_bytes());
        hash.update(entry.modified_nanos.to_be_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    name("fetch", &digest, &wanted.into.display().to_string(), wanted.conflict)
}

const fn conflict(policy: Conflict) -> pb::Conflict {
    match policy {
        Conflict::Overwrite => pb::Conflict::Overwrite,
        Conflict::Skip => pb::Conflict::Skip,
        Conflict::Rename | Conflict::Refuse => pb::Conflict::Rename,
    }
}

fn cancelled() -> Error {
    Error::new(Kind::Cancelled, "the transfer was given up, and nothing is left of it")
}

fn unexpected() -> Error {
    Error::new(Kind::Env, "the Space answered what was not asked for")
        .hint("Use the same version of spaceport there")
}

async fn blocking<T: std::marker::Send + 'static>(
    work: impl FnOnce() -> Result<T> + std::marker::Send + 'static,
) -> Result<T> {
    joined(tokio::task::spawn_blocking(work).await)
}

fn joined<T>(joined: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    joined.unwrap_or_else(|error| {
        Err(Error::new(Kind::Internal, "a background task failed").source(error))
    })
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
