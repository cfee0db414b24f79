//! The endpoint that is measured.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use futures_util::future::{BoxFuture, ready};
use spaceport_session::{Launch, Limits, Open, Policy, Publisher, Sessions};
use spaceport_transport::whep::http::{Call, Gate, Grant, State};
use spaceport_transport::whep::{self, Endpoint, bind};
use spaceport_types::{Bounds, Codec, SessionId, Target};
use tower::ServiceExt as _;

use crate::{Result, now};

struct Launcher(mpsc::SyncSender<Publisher>);

impl Launch for Launcher {
    fn launch(&self, publisher: Publisher) {
        self.0.try_send(publisher).ok();
    }
}

struct Open4All {
    sessions: Sessions,
    session: SessionId,
}

impl Gate for Open4All {
    fn authorize<'a>(&'a self, _: Call<'a>) -> BoxFuture<'a, spaceport_types::Result<Grant>> {
        let (sessions, session) = (self.sessions.clone(), self.session.clone());
        Box::pin(ready(Ok(Grant { sessions, session, codecs: vec![Codec::H264] })))
    }
}

/// An endpoint with one session, and its driver's thread.
pub(crate) struct Server {
    router: Router,
    endpoint: Endpoint,
    publishers: mpsc::Receiver<Publisher>,
    runtime: tokio::runtime::Runtime,
    driver: Option<JoinHandle<spaceport_types::Result<()>>>,
}

impl Server {
    /// `paced` also towards this machine, for a link in between.
    pub(crate) fn start(paced: bool) -> Result<Self> {
        let mut config = whep::Config::default();
        config.pace_here = paced;
        let (sender, publishers) = mpsc::sync_channel(64);
        let sessions = Sessions::new(Limits::default(), Arc::new(Launcher(sender)));
        let open = Open {
            target: Target::TestPattern,
            bounds: Bounds::new(0, 0, 1280, 720),
            codec: Codec::H264,
            max_fps: 30,
            max_dimension: 0,
            bitrate: None,
            policy: Policy::default(),
            ticket_ttl: None,
            key: None,
        };
        let session = sessions.open(open, now())?.info.id;
        let (endpoint, driver) = bind(config)?;
        let driver =
            std::thread::Builder::new().name("whep".to_owned()).spawn(move || driver.run())?;
        let state = State::new(endpoint.clone(), Arc::new(Open4All { sessions, session }));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let router = whep::http::router(state);
        Ok(Self { router, endpoint, publishers, runtime, driver: Some(driver) })
    }

    /// Where viewers send to.
    pub(crate) fn media(&self) -> SocketAddr {
        self.endpoint.local_addr()
    }

    /// Posts an offer and returns the answer.
    pub(crate) fn answer(&self, offer: String) -> Result<String> {
        let request = Request::post("/whep")
            .header("content-type", "application/sdp")
            .body(Body::from(offer))?;
        let answer = self.runtime.block_on(async {
            let response: Response<Body> = self.router.clone().oneshot(request).await?;
            let status = response.status();
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await?;
            let text = String::from_utf8_lossy(&body).into_owned();
            if status.as_u16() == 201 { Ok(text) } else { Err(format!("{status}: {text}").into()) }
        });
        answer.map_err(|error: Box<dyn std::error::Error + Send + Sync>| error.to_string().into())
    }

    /// The producer's end of the stream that the first viewer started.
    pub(crate) fn publisher(&self) -> Result<Publisher> {
        Ok(self.publishers.recv_timeout(Duration::from_secs(5))?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.endpoint.shut_down();
        if let Some(driver) = self.driver.take() {
            drop(driver.join());
        }
    }
}

/// The CPU time of this process's threads of that name.
pub(crate) fn thread_time(name: &str) -> Result<Duration> {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim() == name {
            let stat = std::fs::read_to_string(task.join("schedstat"))?;
            total += stat.split(' ').next().ok_or("no time")?.parse::<u64>()?;
        }
    }
    Ok(Duration::from_nanos(total))
}
