//! What comes down a tunnel: requests for this machine's own server.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use spaceport_wire::relay::{Head, Protocol};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use super::{MAX_REQUESTS, Via, WINDOW};
use crate::media::Guest;
use crate::tunnel::{Stream, Tunnel, read_head};

/// How long the relay may take to say what a stream is for, and over the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest head of a request; the relay takes none that is larger.
const MAX_HEAD: usize = 1 << 20;

/// How long a tunnel that was moved from is kept with nothing under way: longer than a request takes that was
/// on its way to it.
const IDLE: Duration = Duration::from_secs(2);

/// How long it is kept at most. What lasts longer, such as a session that is watched, is taken up again by
/// whoever wants it.
const DRAIN: Duration = Duration::from_secs(600);

/// Serves every stream of a tunnel until it is closed, or until it was `moved` from and is not needed any more.
/// Requests that are under way end with it.
pub(crate) async fn serve(
    tunnel: &Tunnel,
    router: Router,
    via: Via,
    media: Option<Guest>,
    mut moved: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    let mut requests = JoinSet::new();
    let mut draining = false;
    let mut drained = std::pin::pin!(async {
        // Who holds the other end says so or ends this.
        if moved.wait_for(|&moved| moved).await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    let mut limit = std::pin::pin!(sleep(Duration::MAX));
    loop {
        tokio::select! {
            () = &mut drained, if !draining => {
                draining = true;
                limit.set(sleep(DRAIN));
            }
            () = &mut limit, if draining => return,
            () = sleep(IDLE), if draining && requests.is_empty() => return,
            stream = tunnel.accept() => {
                let Some(stream) = stream else { return };
                let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
                    tracing::warn!("the relay sends more requests than are taken");
                    continue;
                };
                let (router, via, media) = (router.clone(), via.clone(), media.clone());
                requests.spawn(async move {
                    request(stream, router, via, media).await;
                    drop(permit);
                });
            }
            Some(_) = requests.join_next() => {}
        }
    }
}

async fn request(mut stream: Stream, router: Router, via: Via, media: Option<Guest>) {
    let http = match timeout(PATIENCE, read_head(&mut stream)).await {
        Ok(Ok(Head::Http(http))) => http,
        Ok(Ok(head)) => {
            let other = match media {
                Some(media) => media.serve(head, stream).await.is_some(),
                None => true,
            };
            if other {
                tracing::debug!("a stream for what is not served here");
            }
            return;
        }
        Ok(Err(error)) => return tracing::debug!(%error, "a stream without a head"),
        Err(_) => return tracing::debug!("a stream that says nothing"),
    };
    if http.protocol == Protocol::Http1 {
        stream.end_on_drop();
    }
    let via = via.entered(http.entry);
    let router = router.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(via.clone());
        request
    });
    let (io, service) = (TokioIo::new(stream), TowerToHyperService::new(router));
    let served = match http.protocol {
        Protocol::Http1 => {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .max_buf_size(MAX_HEAD)
                // One request is all that comes.
                .keep_alive(false);
            builder.serve_connection(io, service).with_upgrades().await
        }
        Protocol::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .max_frame_size(1 << 20)
                .max_concurrent_streams(1);
            builder.serve_connection(io, service).await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a request by the relay");
    }
}
