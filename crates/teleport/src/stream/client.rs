//! The client's half: sending to a Space, and fetching from one.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use spaceport_spaces::Client;
use spaceport_types::{Cause, Error, Kind, Result};
use spaceport_wire::pb::files::{self as pb, frame::Frame};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::give::{Giving, entries, give, standing};
use super::pack::corrupt;
use super::take::{Declaring, begin, begun, shown};
use super::talk::{Cancel, Cutter, Queues, START, Said, Talk, cancelled, listen};
use super::walk::{Item, LeftOut, Listing, Source};
use super::{FEATURE, MEDIA_TYPE, QUEUE, Verb};
use crate::digest::Digest;
use crate::receive::{Begin, Committed, Config, Conflict, DEFAULT_TTL, Receiver, Standing};
use crate::seal::PublicKey;
use crate::seal::line::Call;
use crate::trust::{Keys, known};
use crate::{hex, raw};

/// How often a stream that broke off is begun again before the caller is asked to.
const TRIES: u32 = 3;

/// The first delay between tries; it doubles.
const DELAY: Duration = Duration::from_millis(250);

/// How long the other side may take to hear that a transfer is given up.
const GIVE_UP: Duration = Duration::from_secs(3);

/// How long it is tried to tell them, once nobody waits for it any more.
const LINGER: Duration = Duration::from_secs(60);

/// Bytes that are handed to the network in one piece: the other side holds as many in one buffer.
const PIECE: usize = 64 << 10;

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
    /// Whether [`Sent::listed`] is wanted.
    pub listed: bool,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// How many folders.
    #[serde(skip)]
    pub folders: u64,
    /// Some of what ignore files left out.
    #[serde(skip)]
    pub ignored: Vec<String>,
    /// Every file, where that was wanted.
    #[serde(skip)]
    pub listed: Vec<Listed>,
}

/// A file that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// From the name of what was sent on.
    pub path: String,
    /// Its bytes.
    pub size: u64,
    /// Its SHA-256.
    pub sha256: Digest,
}

/// What came of a [`fetch`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// What the file hashes to, if it is one.
    #[serde(skip)]
    pub single: Option<Digest>,
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

/// Sends files and folders to a Space. The same again after it broke off goes on where it was.
///
/// # Errors
///
/// `transfer_failed` with the cause and the entry; with `peer_gone`, the same call can go on later.
/// `teleport_refused` with `key_unavailable` for another key than is known, or with `relay_unsealed`;
/// `capability_missing` with the feature [`FEATURE`] where the Space takes only what the contract has;
/// `cancelled`; what the Space says.
pub async fn send(
    space: &Client,
    wanted: &Send,
    keys: &Keys,
    watch: &Watch,
    cancel: &Cancel,
    wall: SystemTime,
) -> Result<Sent> {
    watch(Step::Looking);
    let key = key(space, FEATURE, keys, wall).await?;
    let (paths, everything) = (wanted.paths.clone(), wanted.everything);
    let listing = blocking(move || {
        let sources = paths.iter().map(|path| Source::at(path)).collect::<Result<_>>()?;
        Listing::walk(sources, everything)
    });
    let listing = listing.await?;
    let begin = pb::Begin {
        transfer_id: name("send", &listing.identity().0, &wanted.into, wanted.conflict),
        destination: wanted.into.clone(),
        conflict: conflict(wanted.conflict).into(),
        path: None,
    };
    let line = Line::new(space, &key, Verb::Send, cancel);
    line.send(begin, listing, wanted.listed, watch).await
}

/// The key that what crosses to the Space is sealed to, if it has the feature.
pub(super) async fn key(
    space: &Client,
    feature: &'static str,
    keys: &Keys,
    wall: SystemTime,
) -> Result<PublicKey> {
    let (known, key) = known(space).await?;
    let serves = known.features.iter().any(|it| it.name == feature && it.supported);
    let missing = || {
        Error::new(
            Kind::CapabilityMissing,
            format!(
                "the Space at {} takes files only as the public contract has it",
                space.address()
            ),
        )
        .with("feature", feature)
    };
    let Some(key) = key.filter(|_| serves) else {
        return Err(crate::trust::unsealed(space, missing));
    };
    let (url, keys) = (space.address().to_string(), keys.clone());
    blocking(move || keys.check(&url, key, wall).map(|()| key)).await
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
async fn again<T, F: Future<Output = Result<T, Broken>>>(
    space: &Client,
    cancel: &Cancel,
    once: impl Fn() -> F,
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
        if !is_gone(&error) || !was_begun {
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

/// A line to a Space, made anew for every try.
pub(super) struct Line {
    space: Client,
    key: PublicKey,
    verb: Verb,
    cancel: Cancel,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

/// What the thread has that talks.
struct Talking {
    talk: Talk,
    space: Client,
    verb: Verb,
    cancel: Cancel,
    has_begun: Arc<AtomicBool>,
}

impl Line {
    pub(super) fn new(space: &Client, key: &PublicKey, verb: Verb, cancel: &Cancel) -> Self {
        Self {
            space: space.clone(),
            key: *key,
            verb,
            cancel: cancel.clone(),
            sent: Arc::default(),
            received: Arc::default(),
        }
    }

    /// Sends what is listed, as often as it takes.
    pub(super) async fn send(
        &self,
        begin: pb::Begin,
        listing: Listing,
        listed: bool,
        watch: &Watch,
    ) -> Result<Sent> {
        let listing = Arc::new(listing);
        let (end, resumed, done, files) = again(&self.space, &self.cancel, || {
            let (begin, listing, watch) = (begin.clone(), Arc::clone(&listing), Arc::clone(watch));
            self.run(move |line| sending(line, begin, &listing, listed, &watch))
        })
        .await?;
        Ok(Sent {
            transfer_id: begin.transfer_id,
            destination: raw(&done.destination),
            names: shown(&done.names),
            files: done.files,
            folders: listing.items.len() as u64 - listing.files,
            bytes: done.bytes,
            resumed_bytes: resumed,
            wire_bytes: self.sent.load(Ordering::Relaxed),
            sha256: end,
            skipped: shown(&done.skipped),
            skipped_count: done.skipped_count,
            left_out: listing.left_out,
            ignored: listing.ignored.iter().map(|path| raw(path)).collect(),
            listed: files,
        })
    }

    /// Calls, and has `work` talk on a thread of its own: not one of the runtime's, which would be
    /// waited for at its end.
    async fn run<T: std::marker::Send + 'static>(
        &self,
        work: impl FnOnce(&mut Talking) -> Result<T> + std::marker::Send + 'static,
    ) -> Result<T, Broken> {
        let (out, to_network) = mpsc::channel(QUEUE);
        let (from_network, input) = mpsc::channel(QUEUE);
        let (call, first) = Call::new(&self.key, self.verb.purpose())?;
        let queues = Queues { out, input };
        let has_begun = Arc::new(AtomicBool::new(false));
        let (space, cancel) = (self.space.clone(), self.cancel.clone());
        let (verb, runtime, begun) = (self.verb, Handle::current(), Arc::clone(&has_begun));
        let counters = (Arc::clone(&self.sent), Arc::clone(&self.received));
        let (ended, mut end) = oneshot::channel();
        std::thread::Builder::new()
            .name("files".to_owned())
            .spawn(move || {
                let talk = Talk::calling(runtime, queues, cancel.clone(), call, first);
                let done = talk.and_then(|mut talk| {
                    talk.count(&counters.0, &counters.1);
                    let mut talking = Talking { talk, space, verb, cancel, has_begun: begun };
                    work(&mut talking).map_err(|error| talking.why(error))
                });
                drop(ended.send(done));
            })
            .map_err(Error::from)?;
        let broken = |error| Broken { error, begun: has_begun.load(Ordering::Acquire) };
        let answer = tokio::select! {
            answer = self.space.converse(self.verb.path(), MEDIA_TYPE, pieces(to_network)) => answer,
            () = self.given_up() => Err(cancelled()),
        };
        let answer = answer.map_err(broken)?;
        let mut listening = Box::pin(listen(Cutter::new(START), answer, from_network));
        let done = tokio::select! {
            done = &mut end => done,
            () = &mut listening => {
                match timeout(GIVE_UP, end).await {
                    Ok(done) => done,
                    // It has yet to find out.
                    Err(_) => Ok(Err(super::talk::gone())),
                }
            }
            () = self.given_up() => {
                // The other side may hear of it yet, where this process goes on.
                drop(tokio::spawn(timeout(LINGER, async move {
                    tokio::select! {
                        _ = end => {}
                        () = listening => {}
                    }
                })));
                Ok(Err(cancelled()))
            }
        };
        let done = done.unwrap_or_else(|_| Err(Error::new(Kind::Internal, "a thread ended early")));
        done.map_err(broken)
    }

    /// Resolves when it was given up, and the other side has had time to hear of it.
    async fn given_up(&self) {
        self.cancel.cancelled().await;
        sleep(GIVE_UP).await;
    }
}

/// What is sent, in pieces that the network takes one by one.
fn pieces(
    queue: mpsc::Receiver<Bytes>,
) -> impl stream::Stream<Item = Bytes> + std::marker::Send + 'static {
    stream::unfold((queue, Bytes::new()), |(mut queue, mut rest)| async move {
        if rest.is_empty() {
            rest = queue.recv().await?;
        }
        let piece = rest.split_to(rest.len().min(PIECE));
        Some((piece, (queue, rest)))
    })
}

impl Talking {
    /// The next message; what the Space says has failed is an error.
    fn hear(&mut self) -> Result<Said<'_>> {
        match self.talk.hear()? {
            Said::Frame(Frame::Failed(failed)) => Err(self.space.failure(
                self.verb.path(),
                failed.code,
                failed.message,
                failed.details,
            )),
            said => Ok(said),
        }
    }

    fn hear_frame(&mut self) -> Result<Frame> {
        match self.hear()? {
            Said::Frame(frame) => Ok(frame),
            Said::Records(_) => Err(unexpected()),
        }
    }

    /// What really happened where a message could not be said, or was not wanted.
    fn why(&mut self, error: Error) -> Error {
        if self.cancel.is_cancelled() {
            return cancelled();
        }
        if !is_gone(&error) {
            return error;
        }
        loop {
            match self.hear() {
                Ok(_) => {}
                Err(last) if is_gone(&last) => {
                    // The one that knows more.
                    return if std::error::Error::source(&last).is_some() { last } else { error };
                }
                Err(last) => return last,
            }
        }
    }

    /// Whether the Space has had enough.
    fn look(&mut self) -> Result<()> {
        match self.talk.heard()? {
            None => Ok(()),
            Some(Frame::Failed(failed)) => Err(self.space.failure(
                self.verb.path(),
                failed.code,
                failed.message,
                failed.details,
            )),
            Some(_) => Err(unexpected()),
        }
    }

    /// Has the Space forget what came.
    fn give_up(&mut self) {
        self.talk.finish();
        // It says that it has; what else it says is of no use any more.
        if self.talk.say(Frame::Abort(pb::Abort {}), true).is_ok() {
            while self.talk.hear_frame().is_ok() {}
        }
    }
}

fn sending(
    line: &mut Talking,
    begin: pb::Begin,
    listing: &Listing,
    listed: bool,
    watch: &Watch,
) -> Result<Whole> {
    let told = send_all(line, begin, listing, listed, watch);
    // Of a broken connection the Space hears nothing, and it keeps what came.
    if let Err((error, Fault::Ours)) = &told {
        tracing::debug!(%error, "a transfer is given up");
        line.give_up();
    }
    told.map_err(|(error, _)| error)
}

/// What was sent: what it hashes to, what had been there before, what the Space says, and the files.
type Whole = (Digest, u64, pb::Done, Vec<Listed>);

/// Whose fault it is that a transfer ends.
enum Fault {
    Ours,
    Theirs,
}

fn send_all(
    line: &mut Talking,
    begin: pb::Begin,
    listing: &Listing,
    listed: bool,
    watch: &Watch,
) -> Result<Whole, (Error, Fault)> {
    let of = |error: Error| match error.kind() {
        Kind::Cancelled => (error, Fault::Ours),
        _ => (error, Fault::Theirs),
    };
    line.talk.say(Frame::Begin(begin), false).map_err(of)?;
    for some in entries(listing) {
        let last = some.last;
        line.talk.say(Frame::Entries(some), last).map_err(of)?;
    }
    let Frame::Begun(begun) = line.hear_frame().map_err(of)? else {
        return Err(of(unexpected()));
    };
    line.has_begun.store(true, Ordering::Release);
    let standing = standing(&begun).map_err(of)?;
    let resumed = already(listing, &standing);
    let total = listing.bytes;
    let mut theirs = false;
    let mut sink = |packer: &mut _| {
        let given = line.talk.give(packer).and_then(|()| line.look());
        given.inspect_err(|error| theirs = error.kind() != Kind::Cancelled)
    };
    let mut told = |done| watch(Step::Moving { done, total });
    let mut files = Vec::new();
    let mut file = |item: &Item, sha256| {
        if listed {
            files.push(Listed { path: raw(&item.path), size: item.size, sha256 });
        }
    };
    let giving = Giving { sink: &mut sink, told: &mut told, file: &mut file };
    let given = give(listing, &standing, giving);
    let fault = if theirs { Fault::Theirs } else { Fault::Ours };
    let digest = given.map_err(|error| (error, fault))?;
    let end = pb::End { sha256: digest.0.to_vec().into() };
    line.talk.say(Frame::End(end), true).map_err(of)?;
    watch(Step::Publishing);
    match line.hear_frame().map_err(of)? {
        Frame::Done(done) => Ok((digest, resumed, done, files)),
        _ => Err(of(unexpected())),
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
    keys: &Keys,
    watch: &Watch,
    cancel: &Cancel,
    wall: SystemTime,
) -> Result<Fetched> {
    watch(Step::Looking);
    let key = key(space, FEATURE, keys, wall).await?;
    let config = Config::new(&wanted.into, &wanted.state);
    let receiver = blocking(move || Receiver::open(config, now(), wall)).await?;
    let line = &Line::new(space, &key, Verb::Fetch, cancel);
    let (end, resumed, done) = again(space, cancel, || {
        let (wanted, receiver, watch) = (wanted.clone(), receiver.clone(), Arc::clone(watch));
        line.run(move |line| fetching(line, &wanted, &receiver, &watch))
    })
    .await?;
    let single = match &done.files[..] {
        [file] => Some(file.digest),
        _ => None,
    };
    let done = super::take::done(&done);
    Ok(Fetched {
        single,
        destination: raw(&done.destination),
        names: shown(&done.names),
        files: done.files,
        bytes: done.bytes,
        resumed_bytes: resumed,
        wire_bytes: line.received.load(Ordering::Relaxed),
        sha256: end,
        skipped: shown(&done.skipped),
        skipped_count: done.skipped_count,
    })
}

fn fetching(
    line: &mut Talking,
    wanted: &Fetch,
    receiver: &Receiver,
    watch: &Watch,
) -> Result<(Digest, u64, Committed)> {
    let fetch = pb::Fetch { paths: wanted.paths.clone(), everything: wanted.everything };
    line.talk.say(Frame::Fetch(fetch), true)?;
    let mut declared = Declaring::default();
    loop {
        match line.hear_frame()? {
            Frame::Entries(some) => {
                if declared.add(some)? {
                    break;
                }
            }
            _ => return Err(unexpected()),
        }
    }
    let total = declared.bytes();
    let request = Begin {
        id: fetch_name(&line.space, wanted, &declared),
        conflict: wanted.conflict,
        ttl: Some(DEFAULT_TTL),
        ..Begin::default()
    };
    let taker = begin(receiver, request, &declared, now())?;
    let standing = taker.standing();
    let whole = standing.whole.iter();
    let whole = whole.filter_map(|&(index, _)| declared.entries().get(index as usize));
    let whole: u64 = whole.map(|entry| entry.size).sum();
    let resumed = whole + standing.parts.iter().map(|&(_, received)| received).sum::<u64>();
    drop(declared);
    let taken = (|| {
        line.talk.say(Frame::Begun(begun(&standing)), false)?;
        line.has_begun.store(true, Ordering::Release);
        let mut done = resumed;
        loop {
            match line.hear()? {
                Said::Records(records) => {
                    done += records.len() as u64;
                    watch(Step::Moving { done: done.min(total), total });
                    taker.pack(&records, now())?;
                }
                Said::Frame(Frame::End(end)) => {
                    watch(Step::Publishing);
                    let digest = <[u8; 32]>::try_from(&end.sha256[..]).map(Digest);
                    let digest = digest.map_err(|_| corrupt("the end has no digest"))?;
                    return Ok((digest, resumed, taker.commit(&end)?));
                }
                Said::Frame(_) => return Err(unexpected()),
            }
        }
    })();
    if line.cancel.is_cancelled() && taken.is_err() {
        taker.abort();
    }
    taken
}

/// Bytes that are there already.
fn already(listing: &Listing, standing: &Standing) -> u64 {
    let size = |index: u32| listing.items.get(index as usize).map_or(0, |item| item.size);
    let whole: u64 = standing.whole.iter().map(|&(index, _)| size(index)).sum();
    let parts = standing.parts.iter().map(|&(index, received)| received.min(size(index)));
    whole + parts.sum::<u64>()
}

/// The same for the same things, sent or fetched in the same way, as long as they do not change.
pub(super) fn name(what: &str, identity: &[u8], into: &str, policy: Conflict) -> String {
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
        hash.update(entry.mode.unwrap_or(u32::MAX).to_be_bytes());
        hash.update(entry.modified_seconds.to_be_bytes());
        hash.update(entry.modified_nanos.to_be_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    name("fetch", &digest, &wanted.into.display().to_string(), wanted.conflict)
}

pub(super) const fn conflict(policy: Conflict) -> pb::Conflict {
    match policy {
        Conflict::Overwrite => pb::Conflict::Overwrite,
        Conflict::Skip => pb::Conflict::Skip,
        Conflict::Rename => pb::Conflict::Rename,
        Conflict::Refuse => pb::Conflict::Refuse,
    }
}

/// Whether nothing is there any more that could say why: neither the Space, nor the relay before it.
fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), Kind::SpacesdNotAvailable | Kind::Relay)
}

fn unexpected() -> Error {
    Error::new(Kind::Env, "the Space answered what was not asked for")
        .hint("Use the same version of spaceport there")
}

pub(super) async fn blocking<T: std::marker::Send + 'static>(
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
