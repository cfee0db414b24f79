//! `spaceport.files.v1`: files and folders over one stream, either way.
//!
//! What is read and written, and what is checked, is the teleport crate's; here messages are passed
//! between it and the network. The disk is never waited for on an async thread.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, stream};
use spaceport_teleport::receive::{Begin, DEFAULT_TTL};
use spaceport_teleport::stream::{
    Declaring, Giving, Listing, Source, Taker, begin, begun, conflict_of, done, entries, give,
    standing,
};
use spaceport_types::{Cause, Error, Kind, Result as Outcome};
use spaceport_wire::pb::files::{self as pb, frame::Frame};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::generated_files::files_server::Files;
use super::{Api, error};
use crate::service::blocking;
use crate::storage::{Storage, now};

/// Messages that wait for the network; what else is on its way is the connection's window.
const QUEUE: usize = 2;

/// What the two are called in errors.
const SEND: &str = "send_files";
const FETCH: &str = "fetch_files";

type Frames = Pin<Box<dyn Stream<Item = Result<pb::Frame, Status>> + Send>>;

/// Where answers go.
type Answers = mpsc::Sender<Result<pb::Frame, Status>>;

#[tonic::async_trait]
impl Files for Api {
    async fn send(
        &self,
        request: Request<Streaming<pb::Frame>>,
    ) -> Result<Response<Frames>, Status> {
        let storage = self.storage(SEND)?;
        Ok(answered(SEND, |answers| receive(storage, request.into_inner(), answers)))
    }

    async fn fetch(
        &self,
        request: Request<Streaming<pb::Frame>>,
    ) -> Result<Response<Frames>, Status> {
        let storage = self.storage(FETCH)?;
        Ok(answered(FETCH, |answers| offer(storage, request.into_inner(), answers)))
    }
}

impl Api {
    fn storage(&self, operation: &'static str) -> Result<Storage, Status> {
        self.service.storage().map_err(|error| error::status(&error.operation(operation)))
    }
}

/// Runs one side of a stream on a task of its own; its error is the last answer.
fn answered<F>(operation: &'static str, work: impl FnOnce(Answers) -> F) -> Response<Frames>
where
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let (answers, queue) = mpsc::channel(QUEUE);
    let last = answers.clone();
    let work = work(answers);
    tokio::spawn(async move {
        if let Err(error) = work.await {
            drop(last.send(Err(error::status(&error.operation(operation)))).await);
        }
    });
    Response::new(Box::pin(stream::unfold(queue, |mut queue| async move {
        let answer = queue.recv().await?;
        Some((answer, queue))
    })))
}

/// Takes what a client sends.
async fn receive(
    storage: Storage,
    mut frames: Streaming<pb::Frame>,
    answers: Answers,
) -> Outcome<()> {
    let Frame::Begin(request) = next(&mut frames).await? else {
        return Err(out_of_order("the first message is not `begin`"));
    };
    let mut declared = Declaring::default();
    loop {
        match next(&mut frames).await? {
            Frame::Entries(some) => {
                if declared.add(some)? {
                    break;
                }
            }
            Frame::Abort(_) => return Err(given_up()),
            _ => return Err(out_of_order("`begin` is followed by something else than `entries`")),
        }
    }
    let wanted = Begin {
        conflict: conflict_of(request.conflict)?,
        id: request.transfer_id,
        destination: request.destination,
        // So that it outlives a restart: the same sender goes on with it.
        ttl: Some(DEFAULT_TTL),
        ..Begin::default()
    };
    let receiver = storage.receiver.clone();
    let (taker, standing) = blocking(move || {
        let taker = begin(&receiver, wanted, &declared, now())?;
        let standing = taker.standing();
        Ok((Arc::new(taker), standing))
    })
    .await?;
    say(&answers, Frame::Begun(begun(&standing))).await?;
    let mut writing: Option<tokio::task::JoinHandle<Outcome<()>>> = None;
    loop {
        let frame = next(&mut frames).await;
        if let Some(written) = writing.take() {
            joined(written.await)?;
        }
        match frame? {
            Frame::Pack(pack) => {
                let taker = Arc::clone(&taker);
                // One is written while the next one comes.
                writing = Some(tokio::task::spawn_blocking(move || taker.pack(&pack, now())));
            }
            Frame::End(end) => {
                let taker: Arc<Taker> = taker;
                let committed = blocking(move || taker.commit(&end)).await?;
                return say(&answers, Frame::Done(done(&committed))).await;
            }
            Frame::Abort(_) => {
                blocking(move || {
                    taker.abort();
                    Ok(())
                })
                .await?;
                return Err(given_up());
            }
            _ => return Err(out_of_order("`entries` are followed by something else than packs")),
        }
    }
}

/// Gives what a client fetches.
async fn offer(
    storage: Storage,
    mut frames: Streaming<pb::Frame>,
    answers: Answers,
) -> Outcome<()> {
    let Frame::Fetch(request) = next(&mut frames).await? else {
        return Err(out_of_order("the first message is not `fetch`"));
    };
    let listing = blocking(move || {
        let sources = request.paths.iter().map(|path| Source::of(&storage.files, path));
        Listing::walk(sources.collect::<Outcome<_>>()?, request.everything)
    })
    .await?;
    for some in entries(&listing) {
        say(&answers, Frame::Entries(some)).await?;
    }
    let Frame::Begun(begun) = next(&mut frames).await? else {
        return Err(out_of_order("`entries` are followed by something else than `begun`"));
    };
    blocking(move || {
        let standing = standing(&begun)?;
        let put = |frame| {
            answers.blocking_send(Ok(pb::Frame { frame: Some(frame) })).map_err(|_| interrupted())
        };
        let giving = Giving {
            sink: &mut |pack| put(Frame::Pack(pack)),
            compress: &mut || answers.capacity() == 0, // the network is behind
            told: &mut |_| {},
        };
        let digest = give(&listing, &standing, giving)?;
        put(Frame::End(pb::End { sha256: digest.0.to_vec().into() }))
    })
    .await
}

async fn say(answers: &Answers, frame: Frame) -> Outcome<()> {
    answers.send(Ok(pb::Frame { frame: Some(frame) })).await.map_err(|_| interrupted())
}

/// The next message of the other side. That the connection is gone is an error that nobody hears.
async fn next(frames: &mut Streaming<pb::Frame>) -> Outcome<Frame> {
    match frames.message().await {
        Ok(Some(pb::Frame { frame: Some(frame) })) => Ok(frame),
        Ok(Some(_)) => Err(out_of_order("a message is empty")),
        Ok(None) => Err(interrupted()),
        Err(status) => Err(interrupted().with("reason", status.code().description())),
    }
}

fn joined(written: Result<Outcome<()>, tokio::task::JoinError>) -> Outcome<()> {
    written.unwrap_or_else(|error| {
        Err(Error::new(Kind::Internal, "a background task failed").source(error))
    })
}

fn interrupted() -> Error {
    Error::because(Cause::Interrupted, "the stream ended in the middle of the transfer")
        .hint("Send it again: it goes on where it was")
}

fn given_up() -> Error {
    Error::new(Kind::Cancelled, "the transfer was given up, and nothing is left of it")
}

fn out_of_order(message: &'static str) -> Error {
    Error::new(Kind::InvalidArgument, message)
        .hint("`proto/spaceport/files/v1/files.proto` has the order")
}
