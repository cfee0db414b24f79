//! Files and folders over one sealed line, either way: the two requests that carry it.
//!
//! What is said, read and written, and what is checked, is the teleport crate's; here its queues are
//! connected to the network. The disk is never waited for on an async thread.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware;
use axum::response::Response;
use axum::routing::post;
use futures_util::{Stream, StreamExt as _, stream};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use spaceport_teleport::seal::line::{HEADER_LEN, Taken};
use spaceport_teleport::stream::{
    Cutter, MEDIA_TYPE, QUEUE, Queues, Talk, Verb, listen, offer, receive,
};
use spaceport_types::{Cause, Error, Kind, Result};
use spaceport_wire::pb::files::{Failed, frame::Frame};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::http::problem;
use crate::service::Service;
use crate::storage::{Storage, now};
use crate::{auth, grpc};

/// Lines at one time; each has a thread.
const LINES: usize = 32;

/// How long a caller may take to say who it seals to.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Lines {
    service: Service,
    free: Arc<Semaphore>,
}

/// The two requests, behind the Space token.
pub(crate) fn routes(service: Service) -> Router {
    let auth = service.auth().clone();
    let lines = Lines { service, free: Arc::new(Semaphore::new(LINES)) };
    let line = |verb: Verb| {
        post(async move |State(lines): State<Lines>, request: Request| {
            let taken = lines.take(verb, request.into_body()).await;
            taken.unwrap_or_else(|error| problem(&error.operation(operation(verb))))
        })
    };
    Router::new()
        .route(Verb::Send.path(), line(Verb::Send))
        .route(Verb::Fetch.path(), line(Verb::Fetch))
        .with_state(lines)
        .layer(middleware::from_fn_with_state(auth, auth::require_token))
}

/// What the two are called in errors.
const fn operation(verb: Verb) -> &'static str {
    match verb {
        Verb::Send => "send_files",
        Verb::Fetch => "fetch_files",
    }
}

impl Lines {
    /// Takes a call, and answers with the other half of the line.
    async fn take(&self, verb: Verb, body: Body) -> Result<Response> {
        let storage = self.service.storage()?;
        let permit = Arc::clone(&self.free).try_acquire_owned().map_err(|_| {
            Error::new(Kind::LimitExceeded, format!("{LINES} transfers are under way already"))
                .with("limit", LINES)
                .retry_after(Duration::from_secs(1))
                .hint("Wait until one of them has ended")
        })?;
        let mut pieces =
            body.into_data_stream().map(|it| it.map_err(|error| broken().source(error)));
        let (header, rest) =
            timeout(PATIENCE, header(&mut pieces)).await.map_err(|_| broken())??;
        let taken = self.service.take_call(verb.purpose(), &header)?;
        let answer = Bytes::copy_from_slice(&taken.answer);
        let (out, to_network) = mpsc::channel(QUEUE);
        let (from_network, input) = mpsc::channel(QUEUE);
        let pieces = stream::iter([Ok(rest)]).chain(pieces);
        tokio::spawn(listen(Cutter::new(0), pieces, from_network));
        let line = Line { verb, storage, permit };
        let runtime = Handle::current();
        // Not one of the runtime's: it may wait for its client for as long as that is there.
        let thread = std::thread::Builder::new().name("files".to_owned());
        thread.spawn(move || line.talk(runtime, Queues { out, input }, taken))?;
        let said =
            stream::unfold(
                to_network,
                |mut queue| async move { Some((queue.recv().await?, queue)) },
            );
        let said = stream::iter([answer]).chain(said).map(Ok::<_, std::convert::Infallible>);
        let mut response = Response::new(Body::from_stream(said));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// What a caller begins with, and what came behind it.
async fn header(
    pieces: &mut (impl Stream<Item = Result<Bytes>> + Unpin),
) -> Result<([u8; HEADER_LEN], Bytes)> {
    let mut header = Vec::with_capacity(HEADER_LEN);
    loop {
        let mut piece = pieces.next().await.ok_or_else(broken)??;
        let part = piece.split_to(piece.len().min(HEADER_LEN - header.len()));
        header.extend_from_slice(&part);
        if let Ok(header) = header[..].try_into() {
            return Ok((header, piece));
        }
    }
}

/// One line, and what it needs.
struct Line {
    verb: Verb,
    storage: Storage,
    permit: OwnedSemaphorePermit,
}

impl Line {
    fn talk(self, runtime: Handle, queues: Queues, taken: Taken) {
        let mut talk = Talk::taken(runtime, queues, taken);
        let done = match self.verb {
            Verb::Send => receive(&self.storage.receiver, &self.storage.files, &mut talk, now),
            Verb::Fetch => offer(&self.storage.files, &mut talk),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "a transfer ended");
            let status = grpc::status(&error.operation(operation(self.verb)));
            let failed = Failed {
                code: status.code().into(),
                message: status.message().to_owned(),
                details: Bytes::copy_from_slice(status.details()),
            };
            // Sealed like everything else: it may name a file. Who is gone does not hear it.
            drop(talk.say(Frame::Failed(failed), true));
        }
        drop(self.permit);
    }
}

fn broken() -> Error {
    Error::because(Cause::Interrupted, "the line ended in the middle")
        .hint("Send it again: it goes on where it was")
}
