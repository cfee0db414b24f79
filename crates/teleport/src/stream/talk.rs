//! Messages over a sealed line, whatever carries it.
//!
//! On the wire, after the header or the answer of [`line`](crate::seal::line):
//!
//! ```text
//! chunk    length (u32, big-endian; its highest bit: the last of its kind)   sealed bytes
//! sealed   kind (u8)   length of the message (u32, little-endian)   message   zeros
//! ```
//!
//! Kinds: 0 a [`Frame`], 1 records, 2 records compressed, 3 the beginning of a frame that goes on in the
//! next chunk. The zeros make messages of many lengths the same one, so that a length says little
//! about a name or a file.
//!
//! One thread per transfer talks; it reads, hashes and seals, or opens, hashes and writes, with
//! nothing in between. Two queues connect it to the network, and [`listen`] cuts what comes into
//! chunks.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Buf as _, Bytes};
use futures_util::{Stream, StreamExt as _};
use prost::Message as _;
use spaceport_types::{Error, Kind, Result};
use spaceport_wire::pb::files::{self as pb, frame::Frame};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

use super::pack::{MAX_PACK, PACK, Packer, corrupt, unpack};
use super::slab::{Pool, Slab};
use crate::seal::line::{ANSWER_LEN, Call, OVERHEAD, Opening, Sealing, Taken};

/// Bytes in front of a message: of its chunk, and of what is sealed.
pub(super) const FRONT: usize = LENGTH + 5;

/// Bytes of a chunk's length.
const LENGTH: usize = 4;

/// Marks the last chunk of its kind.
const LAST: u32 = 1 << 31;

const FRAME: u8 = 0;
const RECORDS: u8 = 1;
const COMPRESSED: u8 = 2;
const MORE: u8 = 3;

/// Messages shorter than this are all of one length.
const SHORTEST: usize = 1024;

/// Zeros behind a message at most: those of the longest that is padded.
pub(super) const MAX_PADDING: usize = PACK / 16 + SHORTEST;

/// Sealed bytes of a chunk at most.
const MAX_CHUNK: usize = 5 + MAX_PACK + MAX_PADDING + OVERHEAD;

/// Bytes of a frame at most, in however many chunks: what the contract allows a message.
const MAX_FRAME: usize = 64 << 20;

/// Chunks that wait for the network, or for the disk. One more is at work; what else is on its way is
/// the connection's window.
pub const QUEUE: usize = 2;

/// A chunk that has come.
#[derive(Debug)]
pub struct Sealed {
    parts: Vec<Bytes>,
    length: usize,
    last: bool,
}

impl Sealed {
    /// How many bytes it has, sealed.
    pub const fn length(&self) -> usize {
        self.length
    }
}

/// What has come.
#[derive(Debug)]
pub enum Came {
    /// What the other side begins with.
    Start(Vec<u8>),
    /// A chunk.
    Chunk(Sealed),
}

/// Cuts what comes into chunks.
#[derive(Debug)]
pub struct Cutter {
    /// Bytes that the other side begins with, until they are there.
    start: usize,
    parts: VecDeque<Bytes>,
    length: usize,
}

impl Cutter {
    /// One for a side that begins with so many bytes.
    pub fn new(start: usize) -> Self {
        Self { start, parts: VecDeque::new(), length: 0 }
    }

    /// Adds what came.
    pub fn add(&mut self, bytes: Bytes) {
        self.length += bytes.len();
        if !bytes.is_empty() {
            self.parts.push_back(bytes);
        }
    }

    /// The next thing, once all of it is there.
    ///
    /// # Errors
    ///
    /// `transfer_failed` with `corrupt_bundle` for a chunk that cannot be.
    pub fn cut(&mut self) -> Result<Option<Came>> {
        if self.start > 0 {
            if self.length < self.start {
                return Ok(None);
            }
            let parts = self.take(self.start);
            self.start = 0;
            return Ok(Some(Came::Start(parts.concat())));
        }
        if self.length < LENGTH {
            return Ok(None);
        }
        let mut bytes = self.parts.iter().flat_map(|part| part.iter().copied());
        let word = u32::from_be_bytes(std::array::from_fn(|_| bytes.next().unwrap_or_default()));
        let length = (word & !LAST) as usize;
        if !(5 + OVERHEAD..=MAX_CHUNK).contains(&length) {
            return Err(corrupt("what came is no sealed line"));
        }
        if self.length < LENGTH + length {
            return Ok(None);
        }
        drop(self.take(LENGTH));
        let parts = self.take(length);
        Ok(Some(Came::Chunk(Sealed { parts, length, last: word & LAST != 0 })))
    }

    fn take(&mut self, mut length: usize) -> Vec<Bytes> {
        let mut taken = Vec::new();
        self.length -= length;
        while length > 0 {
            let Some(mut part) = self.parts.pop_front() else { break };
            if part.len() > length {
                self.parts.push_front(part.split_off(length));
            }
            length -= part.len();
            taken.push(part);
        }
        taken
    }
}

/// Passes on what comes, cut into chunks, until it ends or nobody listens.
pub async fn listen(
    mut cutter: Cutter,
    pieces: impl Stream<Item = Result<Bytes>>,
    to: mpsc::Sender<Result<Came>>,
) {
    let mut pieces = std::pin::pin!(pieces);
    loop {
        loop {
            match cutter.cut() {
                Ok(None) => break,
                Ok(Some(came)) => {
                    if to.send(Ok(came)).await.is_err() {
                        return;
                    }
                }
                Err(error) => return drop(to.send(Err(error)).await),
            }
        }
        match pieces.next().await {
            Some(Ok(bytes)) => cutter.add(bytes),
            Some(Err(error)) => return drop(to.send(Err(error)).await),
            None => return,
        }
    }
}

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

    pub(super) fn is_cancelled(&self) -> bool {
        self.shared.0.load(Ordering::Acquire)
    }

    pub(crate) async fn cancelled(&self) {
        loop {
            let notified = self.shared.1.notified();
            if self.is_cancelled() {
                return;
            }
            notified.await;
        }
    }
}

/// The two queues to the network.
#[derive(Debug)]
pub struct Queues {
    /// What is sent.
    pub out: mpsc::Sender<Bytes>,
    /// What comes, as [`listen`] cuts it.
    pub input: mpsc::Receiver<Result<Came>>,
}

/// One end of a line. Its calls block; they belong on a thread of their own.
pub struct Talk {
    runtime: Handle,
    queues: Queues,
    cancel: Cancel,
    seal: Sealing,
    /// What has not been answered yet, and whether all that can be said before that has been.
    call: Option<Call>,
    asked: bool,
    /// Opens what comes; none before the other side has answered.
    open: Option<Opening>,
    /// Opens what comes after the last chunk of the first kind.
    then: Option<Opening>,
    pool: Pool,
    /// What is being opened, and where in it the message is.
    opened: Vec<u8>,
    body: Range<usize>,
    /// A frame of which more is to come.
    unfinished: Vec<u8>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

impl std::fmt::Debug for Talk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Talk").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// What the other side says.
#[derive(Debug)]
pub enum Said<'a> {
    /// A message.
    Frame(Frame),
    /// Records of files.
    Records(std::borrow::Cow<'a, [u8]>),
}

impl Talk {
    /// The end that a call was made to. `runtime` runs what the queues lead to.
    pub fn taken(runtime: Handle, queues: Queues, taken: Taken) -> Self {
        let Taken { first, up, down, .. } = taken;
        Self { then: Some(up), ..Self::new(runtime, queues, Cancel::default(), down, Some(first)) }
    }

    /// The end that calls: says its header. What it wants follows, `last` with the last of that; the
    /// answer is waited for after it.
    pub(super) fn calling(
        runtime: Handle,
        queues: Queues,
        cancel: Cancel,
        call: Call,
        first: Sealing,
    ) -> Result<Self> {
        let header = Bytes::copy_from_slice(call.header());
        let talk = Self::new(runtime, queues, cancel, first, None);
        let talk = Self { call: Some(call), ..talk };
        let room = talk.room()?;
        drop(room.send(header));
        Ok(talk)
    }

    fn new(
        runtime: Handle,
        queues: Queues,
        cancel: Cancel,
        seal: Sealing,
        open: Option<Opening>,
    ) -> Self {
        Self {
            runtime,
            queues,
            cancel,
            seal,
            call: None,
            asked: false,
            open,
            then: None,
            pool: Pool::default(),
            opened: Vec::new(),
            body: 0..0,
            unfinished: Vec::new(),
            sent: Arc::default(),
            received: Arc::default(),
        }
    }

    /// Counts what is sent and what comes.
    pub(super) fn count(&mut self, sent: &Arc<AtomicU64>, received: &Arc<AtomicU64>) {
        (self.sent, self.received) = (Arc::clone(sent), Arc::clone(received));
    }

    /// Waits for the answer, where what is to be said cannot be sealed before it.
    fn be_answered(&mut self) -> Result<()> {
        if self.asked && self.call.is_some() {
            let came = self.next()?;
            self.open(came)?;
        }
        Ok(())
    }

    /// Says a message; `last` with the last of its kind.
    ///
    /// # Errors
    ///
    /// `cancelled`; `spacesd_not_available` when the connection is gone.
    pub fn say(&mut self, frame: Frame, last: bool) -> Result<()> {
        let frame = pb::Frame { frame: Some(frame) }.encode_to_vec();
        let mut rest = &frame[..];
        loop {
            let (now, later) = rest.split_at_checked(PACK).unwrap_or((rest, &[]));
            rest = later;
            let mut slab = self.pool.fresh();
            slab.grow(now.len()).copy_from_slice(now);
            if rest.is_empty() {
                return self.seal(slab, FRAME, last);
            }
            self.seal(slab, MORE, false)?;
        }
    }

    /// Sends what is packed. It is compressed, where that helps, while the network is what is waited
    /// for.
    ///
    /// # Errors
    ///
    /// As [`Talk::say`], and what the other side says when it does not want any more.
    pub(super) fn give(&mut self, packer: &mut Packer) -> Result<()> {
        let behind = self.queues.out.capacity() == 0;
        let (slab, compressed) = packer.take(self.pool.fresh(), behind);
        self.seal(slab, if compressed { COMPRESSED } else { RECORDS }, false)
    }

    fn seal(&mut self, mut slab: Slab, kind: u8, last: bool) -> Result<()> {
        self.be_answered()?;
        let room = self.room()?;
        self.asked |= last;
        let length = slab.body().len();
        let padding = padded(5 + length) - 5 - length;
        slab.grow(padding).fill(0);
        let whole = slab.whole();
        let sealed = (whole.len() - LENGTH + OVERHEAD) as u32;
        let bug = || Error::new(Kind::Internal, "a message has no front");
        let (word, plain) = whole.split_first_chunk_mut::<LENGTH>().ok_or_else(bug)?;
        *word = (sealed | if last { LAST } else { 0 }).to_be_bytes();
        let (front, _) = plain.split_first_chunk_mut::<5>().ok_or_else(bug)?;
        let [a, b, c, d] = (length as u32).to_le_bytes();
        *front = [kind, a, b, c, d];
        let tag = self.seal.seal(plain, last)?;
        slab.grow(OVERHEAD).copy_from_slice(&tag);
        let bytes = self.pool.send(slab);
        self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        drop(room.send(bytes));
        Ok(())
    }

    /// Waits for room for a message. It is sealed only then: one that is sealed has a number, and the
    /// other side waits for it.
    fn room(&self) -> Result<mpsc::OwnedPermit<Bytes>> {
        if self.cancel.is_cancelled() {
            return Err(cancelled());
        }
        let out = match self.queues.out.clone().try_reserve_owned() {
            Ok(room) => return Ok(room),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(gone()),
            Err(mpsc::error::TrySendError::Full(out)) => out,
        };
        self.runtime.block_on(async {
            tokio::select! {
                room = out.reserve_owned() => room.map_err(|_| gone()),
                () = self.cancel.cancelled() => Err(cancelled()),
            }
        })
    }

    /// The next thing the other side says.
    ///
    /// # Errors
    ///
    /// `cancelled`; `spacesd_not_available` when the connection is gone; `transfer_failed` with
    /// `corrupt_bundle` for what is not sealed as it should be.
    pub fn hear(&mut self) -> Result<Said<'_>> {
        loop {
            let came = self.next()?;
            if let Some(kind) = self.open(came)? {
                return self.said(kind);
            }
        }
    }

    /// The same for a message that is not followed by records.
    ///
    /// # Errors
    ///
    /// As [`Talk::hear`].
    pub fn hear_frame(&mut self) -> Result<Frame> {
        match self.hear()? {
            Said::Frame(frame) => Ok(frame),
            Said::Records(_) => Err(corrupt("there are records where a message should be")),
        }
    }

    /// What has come already, without waiting.
    pub(super) fn heard(&mut self) -> Result<Option<Frame>> {
        loop {
            let came = match self.queues.input.try_recv() {
                Ok(came) => came?,
                Err(mpsc::error::TryRecvError::Empty) => return Ok(None),
                Err(mpsc::error::TryRecvError::Disconnected) => return Err(gone()),
            };
            if let Some(kind) = self.open(came)? {
                return match self.said(kind)? {
                    Said::Frame(frame) => Ok(Some(frame)),
                    Said::Records(_) => Err(corrupt("records come from the side that takes them")),
                };
            }
        }
    }

    /// From here on nothing ends it before its time.
    pub(super) fn finish(&mut self) {
        self.cancel = Cancel::default();
    }

    fn next(&mut self) -> Result<Came> {
        if let Ok(came) = self.queues.input.try_recv() {
            return came;
        }
        let (input, cancel) = (&mut self.queues.input, &self.cancel);
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = cancel.cancelled() => Err(cancelled()),
                came = input.recv() => came.unwrap_or_else(|| Err(gone())),
            }
        })
    }

    /// Opens a chunk; `None` when more has to come.
    fn open(&mut self, came: Came) -> Result<Option<u8>> {
        let Sealed { parts, length, last } = match came {
            Came::Chunk(sealed) => sealed,
            Came::Start(answer) => {
                let twice = || corrupt("a line begins twice");
                let (seal, open) = self.call.take().ok_or_else(twice)?.answered(&answer)?;
                (self.seal, self.open) = (seal, Some(open));
                return Ok(None);
            }
        };
        self.received.fetch_add((LENGTH + length) as u64, Ordering::Relaxed);
        if self.opened.len() < length {
            self.opened.resize(length, 0);
        }
        let sealed = self.opened.get_mut(..length).unwrap_or_default();
        let mut at = &mut *sealed;
        for mut part in parts {
            let (place, rest) = at.split_at_mut_checked(part.len()).unwrap_or_default();
            part.copy_to_slice(place);
            at = rest;
        }
        let open = self.open.as_mut().ok_or_else(|| corrupt("an answer comes before its key"))?;
        let plain = open.open(sealed, last)?;
        let broken = || corrupt("a message is not as long as it says");
        let ([kind, size @ ..], body) = plain.split_first_chunk::<5>().ok_or_else(broken)?;
        let (kind, size) = (*kind, u32::from_le_bytes(*size) as usize);
        if size > body.len() {
            return Err(broken());
        }
        self.body = 5..5 + size;
        if last && let Some(then) = self.then.take() {
            self.open = Some(then);
        }
        if matches!(kind, FRAME | MORE) {
            let body = self.opened.get(self.body.clone()).unwrap_or_default();
            self.unfinished.extend_from_slice(body);
            if self.unfinished.len() > MAX_FRAME {
                return Err(Error::new(Kind::LimitExceeded, "a message is too large")
                    .with("limit", MAX_FRAME));
            }
        }
        Ok((kind != MORE).then_some(kind))
    }

    fn said(&mut self, kind: u8) -> Result<Said<'_>> {
        match kind {
            FRAME => {
                let frame = std::mem::take(&mut self.unfinished);
                let frame = pb::Frame::decode(Bytes::from(frame)).ok().and_then(|it| it.frame);
                Ok(Said::Frame(frame.ok_or_else(|| corrupt("a message is none"))?))
            }
            RECORDS | COMPRESSED => {
                let body = self.opened.get(self.body.clone()).unwrap_or_default();
                Ok(Said::Records(unpack(body, kind == COMPRESSED)?))
            }
            _ => Err(corrupt("a message is of no known kind")),
        }
    }
}

/// The length that a message gets by zeros behind it. A full pack has its own.
fn padded(length: usize) -> usize {
    if length >= PACK {
        return length;
    }
    crate::padding::padded(length as u64, SHORTEST as u64) as usize
}

/// Nothing comes any more, for a reason that others know better.
pub(super) fn gone() -> Error {
    Error::new(Kind::SpacesdNotAvailable, "the other side is gone")
}

pub(super) fn cancelled() -> Error {
    Error::new(Kind::Cancelled, "the transfer was given up, and nothing is left of it")
}

/// Bytes of what the called side begins with, for the caller's [`Cutter`].
pub(super) const START: usize = ANSWER_LEN;
