//! The client's half of WHIP (RFC 9725): sends a session to a server that serves it to others.
//!
//! ```text
//!            ┌────────── wait ◄──────────┐
//!            ▼                           │ refused for now, lost
//!  POST ── attempt ──► live ── Ended ────┤
//!                      │  ▲              └ refused for good: an error
//!                 Lost ▼  │ 200
//!                 PATCH (ICE restart)
//! ```
//!
//! The media is that of any viewer: a peer of the same driver, with the same rate control and recovery. What
//! differs is who offers. A [`Publisher`] belongs to one task, which asks it for [`News`]; nothing is lost
//! when a future of [`Publisher::next`] is dropped.
//!
//! All our addresses are in the offer, because none of them has to be found out first; so there is nothing to
//! trickle, and a `PATCH` is for ICE restarts alone. A server has an address that we can reach, and finds
//! ours by our checks; the STUN and TURN servers that it names (`Link: rel="ice-server"`) are not asked.

mod refusal;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE, IF_MATCH, LINK};
use http::{Method, StatusCode};
use spaceport_session::{Attach, Carrier, Cursor, Sessions};
use spaceport_types::{Cause, Codec, Error, Kind, Redacted, Result, SessionId};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use super::driver::{Ended, State};
use super::exchange::{self, Reply, place, request};
use super::offer::fragment;
use super::peer::Totals;
use super::{Config, Driver, Endpoint, Sending, bind};

/// Redirects followed from one offer to its answer; RFC 9725 §4.5 has load balancers in mind, of which two stand
/// in a row at most.
const MAX_REDIRECTS: usize = 5;

/// The first wait before another attempt, and the longest; jittered, so that publishers of one server do not
/// all come back at the same moment.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How long a stream has to hold for the next failure to count as the first.
const STABLE: Duration = Duration::from_secs(10);

/// How long the goodbye may take.
const GOODBYE: Duration = Duration::from_secs(3);

/// Where to publish.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Remote {
    /// The WHIP endpoint. Its path may be a secret.
    pub url: Redacted<Url>,
    /// The bearer token, if it wants one.
    pub token: Option<Redacted<String>>,
    /// How long to go on trying while it cannot be reached or the stream is lost.
    pub retry_for: Duration,
}

impl Remote {
    /// An endpoint that wants no token.
    ///
    /// # Errors
    ///
    /// `invalid_argument` when that is no address of one.
    pub fn new(url: &str) -> Result<Self> {
        let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.filter(Url::has_host).ok_or_else(|| {
            Error::new(Kind::InvalidArgument, "this is no address of a WHIP endpoint")
                .hint("Give an address such as `https://sfu.example/whip/my-stream`")
        })?;
        Ok(Self { url: Redacted::new(url), token: None, retry_for: Duration::from_secs(60) })
    }
}

/// What to publish.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Where the session is.
    pub sessions: Sessions,
    /// The session.
    pub session: SessionId,
    /// What can be encoded, the most wanted first.
    pub codecs: Vec<Codec>,
}

/// What came about.
#[derive(Debug)]
pub enum News {
    /// Media is sent.
    Connected {
        /// The codec that the endpoint takes.
        codec: Codec,
    },
    /// Nothing comes back any more. An ICE restart is under way.
    Lost,
    /// It did not work this time.
    Retrying {
        /// When the next attempt is made.
        after: Duration,
        /// Why there has to be one.
        error: Error,
    },
}

/// What was sent, over all attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Encoded frames.
    pub frames: u64,
    /// RTP packets, without those sent again.
    pub packets: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
}

/// One session that is published.
pub struct Publisher {
    shared: Arc<Shared>,
    phase: Phase,
    /// Failed attempts since the last that held, and when the first of them failed.
    failures: u32,
    failing_since: Option<Instant>,
    sent: Sent,
}

/// What an attempt needs.
struct Shared {
    endpoint: Endpoint,
    remote: Remote,
    stream: Stream,
}

enum Phase {
    Idle,
    Attempt(BoxFuture<'static, Result<Live>>),
    Wait(Instant),
    Live(Box<Live>),
}

/// A session that the endpoint has taken.
struct Live {
    sending: Arc<Sending>,
    state: watch::Receiver<State>,
    /// What to delete in the end.
    resource: Option<Url>,
    codec: Codec,
    /// The address that the endpoint was asked at.
    address: IpAddr,
    connected: Option<Instant>,
    restart: Option<BoxFuture<'static, Result<()>>>,
}

/// Binds a socket for `stream` and is ready to send it to `remote`. Give [`Driver::run`] a thread.
///
/// # Errors
///
/// `io` when no port can be had.
pub fn publish(remote: Remote, stream: Stream) -> Result<(Publisher, Driver)> {
    let config = Config {
        listen: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        // One that is sent to, and one that is being said goodbye to.
        max_viewers: 2,
        ..Config::default()
    };
    let (endpoint, driver) = bind(config)?;
    let shared = Arc::new(Shared { endpoint, remote, stream });
    let publisher = Publisher {
        shared,
        phase: Phase::Idle,
        failures: 0,
        failing_since: None,
        sent: Sent::default(),
    };
    Ok((publisher, driver))
}

impl Publisher {
    /// What comes next.
    ///
    /// # Errors
    ///
    /// Why it is over: the endpoint refuses the stream for good, what it shows is gone, or nothing has worked for
    /// [`Remote::retry_for`]. Call it no more then.
    pub async fn next(&mut self) -> Result<News> {
        loop {
            match &mut self.phase {
                Phase::Idle => {
                    let attempt = attempt(Arc::clone(&self.shared));
                    self.phase = Phase::Attempt(attempt.boxed());
                }
                Phase::Attempt(attempt) => match attempt.await {
                    Ok(live) => self.phase = Phase::Live(Box::new(live)),
                    Err(error) => {
                        self.phase = Phase::Idle;
                        return self.failed(error);
                    }
                },
                Phase::Wait(until) => {
                    sleep_until(*until).await;
                    self.phase = Phase::Idle;
                }
                Phase::Live(live) => match live.next(&self.shared).await {
                    Turn::News(news) => {
                        if matches!(news, News::Connected { .. }) {
                            self.failing_since = None;
                        }
                        return Ok(news);
                    }
                    Turn::Over(ended) => {
                        if live.connected.is_some_and(|at| at.elapsed() >= STABLE) {
                            self.failures = 0;
                        }
                        let resource = live.resource.take();
                        self.phase = Phase::Idle;
                        self.add(ended.totals);
                        self.shared.delete(resource).await;
                        return self.failed(over(&self.shared.remote, ended.reason));
                    }
                },
            }
        }
    }

    /// Ends it, and says so: the endpoint need not wait to find out.
    pub async fn leave(mut self) -> Sent {
        let live = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Live(live) => Some(*live),
            // What it asks for may have been made already.
            Phase::Attempt(attempt) => timeout(GOODBYE, attempt).await.ok().and_then(Result::ok),
            Phase::Idle | Phase::Wait(_) => None,
        };
        if let Some(Live { sending, mut state, resource, restart, .. }) = live {
            drop(restart);
            drop(sending);
            let ended = state.wait_for(|state| matches!(state, State::Ended(_)));
            if let Ok(Ok(ended)) = timeout(GOODBYE, ended).await
                && let State::Ended(Ended { totals, .. }) = &*ended
            {
                let totals = *totals;
                drop(ended);
                self.add(totals);
            }
            self.shared.delete(resource).await;
        }
        self.sent
    }

    fn add(&mut self, totals: Totals) {
        self.sent.frames += totals.frames;
        self.sent.packets += totals.packets;
        self.sent.bytes += totals.bytes;
    }

    /// Decides whether there is to be another attempt.
    fn failed(&mut self, error: Error) -> Result<News> {
        let report = error.report();
        if !report.retryable {
            return Err(error);
        }
        let now = Instant::now();
        let since = *self.failing_since.get_or_insert(now);
        let asked = report.retry_after_ms.map(Duration::from_millis).unwrap_or_default();
        let after = wait(self.failures).max(asked);
        self.failures = self.failures.saturating_add(1);
        if now + after > since + self.shared.remote.retry_for {
            return Err(error);
        }
        self.phase = Phase::Wait(now + after);
        Ok(News::Retrying { after, error })
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("sent", &self.sent).finish_non_exhaustive()
    }
}

/// What became of a live session.
enum Turn {
    News(News),
    Over(Ended),
}

impl Live {
    /// What comes next. Nothing is lost when the future is dropped.
    async fn next(&mut self, shared: &Arc<Shared>) -> Turn {
        loop {
            let restarted = async {
                match &mut self.restart {
                    Some(restart) => restart.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                restarted = restarted => {
                    self.restart = None;
                    if let Err(error) = restarted {
                        tracing::debug!(%error, "the ICE session ends with the path");
                        let reason = Some(Arc::new(error));
                        return Turn::Over(Ended { reason, totals: Totals::default() });
                    }
                }
                changed = self.state.changed() => {
                    if changed.is_err() {
                        return Turn::Over(Ended { reason: None, totals: Totals::default() });
                    }
                    let state = self.state.borrow_and_update().clone();
                    match state {
                        State::Connecting => {}
                        State::Connected => {
                            self.connected.get_or_insert_with(Instant::now);
                            return Turn::News(News::Connected { codec: self.codec });
                        }
                        State::Lost => {
                            if self.restart.is_none() {
                                self.restart = self.restarted(shared).map(FutureExt::boxed);
                            }
                            return Turn::News(News::Lost);
                        }
                        State::Ended(ended) => return Turn::Over(ended),
                    }
                }
            }
        }
    }

    /// Restarts ICE; `None` where there is no way to ask for it.
    fn restarted(&self, shared: &Arc<Shared>) -> Option<impl Future<Output = Result<()>> + use<>> {
        let url = self.resource.clone()?;
        let (sending, shared, address) =
            (Arc::clone(&self.sending), Arc::clone(shared), self.address);
        Some(async move {
            let offered = sending.offer_restart(address).await?;
            // RFC 9725 §4.3.3: whichever ICE session there is, this ends it.
            let request = request(Method::PATCH, &url, shared.remote.token.as_ref())?
                .header(CONTENT_TYPE, "application/trickle-ice-sdpfrag")
                .header(IF_MATCH, "*")
                .body(Body::from(offered));
            let mut connection = exchange::Connection::to(&url).await.map_err(unreachable)?;
            let reply = connection.ask(request).await.map_err(unreachable)?;
            if reply.status != StatusCode::OK {
                return Err(refusal::unavailable("the connection was lost".to_owned())
                    .with("restart_status", reply.status.as_u16()));
            }
            let answer = fragment(&String::from_utf8_lossy(&reply.body))?;
            if answer.credentials.is_none() {
                return Err(refusal::unavailable("the connection was lost".to_owned())
                    .with("reason", "the answer to an ICE restart has no credentials"));
            }
            sending.accept_restart(answer).await
        })
    }
}

/// One attempt, from the offer to the answer that was taken.
async fn attempt(shared: Arc<Shared>) -> Result<Live> {
    let Shared { endpoint, remote, stream } = &*shared;
    let mut url = remote.url.expose().clone();
    for _ in 0..=MAX_REDIRECTS {
        let mut connection = exchange::Connection::to(&url).await.map_err(unreachable)?;
        let address = connection.remote().ip();
        let offering = endpoint.offer(&stream.codecs, address)?;
        let request = request(Method::POST, &url, remote.token.as_ref())?
            .header(CONTENT_TYPE, "application/sdp")
            .header(ACCEPT, "application/sdp")
            .body(Body::from(offering.sdp.clone()));
        let reply = connection.ask(request).await.map_err(unreachable)?;
        match reply.status {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                url = redirected(&url, &reply)?;
                continue;
            }
            StatusCode::CREATED => {}
            _ => return Err(refusal::of_offer(&url, &reply)),
        }
        let resource = reply.location(&url);
        if resource.is_none() {
            tracing::warn!(
                "the endpoint does not say what it created, so it cannot be told of the end"
            );
        }
        let servers = reply.headers.get_all(LINK).iter().count();
        let accepted = String::from_utf8(reply.body.to_vec())
            .ok()
            .filter(|answer| answer.starts_with("v=0"))
            .ok_or_else(|| refusal::of_answer(&url, &reply))
            .and_then(|answer| {
                // The engine reads what is left of a stranger's answer here.
                let accept = std::panic::AssertUnwindSafe(|| offering.accept(&answer));
                let bug = |_| Err(Error::new(Kind::Internal, "the WebRTC engine failed"));
                std::panic::catch_unwind(accept).unwrap_or_else(bug)
            })
            .and_then(|negotiated| {
                let codec = negotiated.codec();
                let attach = Attach { codec, carrier: Carrier::Peer, cursor: Cursor::Baked };
                let subscriber = stream.sessions.attach(&stream.session, attach)?;
                let (told, state) = watch::channel(State::Connecting);
                let sending = Arc::new(endpoint.send(negotiated, subscriber, told)?);
                tracing::debug!(%codec, servers, "the offer was answered");
                Ok((sending, state, codec))
            });
        return match accepted {
            Ok((sending, state, codec)) => Ok(Live {
                sending,
                state,
                resource,
                codec,
                address,
                connected: None,
                restart: None,
            }),
            Err(error) => {
                shared.delete(resource).await;
                Err(error.with("address", place(&url)))
            }
        };
    }
    Err(Error::because(Cause::PublishRefused, "the endpoint leads elsewhere without end")
        .with("redirects", MAX_REDIRECTS)
        .with("address", place(&url))
        .hint("Give the address that takes the stream itself"))
}

impl Shared {
    /// Ends what an offer created. Best effort: an endpoint that does not hear it finds out by the silence.
    async fn delete(&self, resource: Option<Url>) {
        let Some(url) = resource else { return };
        let deleting = async {
            let request = request(Method::DELETE, &url, self.remote.token.as_ref())?;
            let mut connection = exchange::Connection::to(&url).await?;
            connection.ask(request.body(Body::empty())).await
        };
        match timeout(GOODBYE, deleting).await {
            Ok(Ok(reply)) => {
                tracing::debug!(status = %reply.status, "the endpoint was told of the end");
            }
            Ok(Err(error)) => tracing::debug!(%error, "the endpoint was not told of the end"),
            Err(_) => tracing::debug!("the endpoint was not told of the end in time"),
        }
    }
}

/// Where a redirect leads. The token goes along, for an endpoint that was trusted with it says where to; but
/// nothing that was sealed is sent in the open.
fn redirected(from: &Url, reply: &Reply) -> Result<Url> {
    let refused =
        |message| Error::because(Cause::PublishRefused, message).with("address", place(from));
    let to = reply.location(from).ok_or_else(|| {
        refused("the endpoint leads elsewhere, and does not say where")
            .hint("Give the address that takes the stream itself")
    })?;
    if from.scheme() == "https" && to.scheme() != "https" {
        return Err(refused("the endpoint leads from `https` to `http`")
            .hint("Have it lead to an address with `https`"));
    }
    Ok(to)
}

/// The endpoint could not be asked.
fn unreachable(error: Error) -> Error {
    match error.kind() {
        Kind::Io | Kind::Timeout => {
            let unavailable = refusal::unavailable(error.to_string())
                .hint("See that the endpoint runs, and that this machine reaches it");
            let address = error.context("address").map(str::to_owned);
            let unavailable = match address {
                Some(address) => unavailable.with("address", address),
                None => unavailable,
            };
            match error.context("reason").map(str::to_owned) {
                Some(reason) => unavailable.source(reason),
                None => unavailable,
            }
        }
        _ => error,
    }
}

/// Why a session that was taken is over, in the words of whoever publishes.
fn over(remote: &Remote, reason: Option<Arc<Error>>) -> Error {
    let place = place(remote.url.expose());
    let Some(reason) = reason else {
        return refusal::unavailable(format!("`{place}` ended the stream"))
            .with("address", place)
            .hint("See what the endpoint logs about it");
    };
    let (cause, message, hint) = match reason.cause() {
        Some(Cause::UdpBlocked | Cause::IceFailed) => (
            Cause::IceFailed,
            format!("no media gets through to `{place}`"),
            "Let UDP through from this machine to the endpoint's media port",
        ),
        Some(Cause::DtlsFailed) => (
            Cause::DtlsFailed,
            format!("`{place}` and this machine could not agree on keys"),
            "See what the endpoint logs about it",
        ),
        Some(cause) => {
            let error = Error::because(cause, reason.to_string());
            return match reason.report().hint {
                Some(hint) => error.hint(hint),
                None => error,
            };
        }
        None => return Error::new(reason.kind(), reason.to_string()),
    };
    Error::because(cause, message).with("address", place).hint(hint).source(reason.to_string())
}

/// How long to wait after so many failures: from half of it to all of it.
fn wait(failures: u32) -> Duration {
    let longest = FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(LONGEST_WAIT);
    let mut bits = [0];
    if getrandom::fill(&mut bits).is_err() {
        // They come together then, as they would without this.
        return longest;
    }
    longest / 2 + longest * u32::from(bits[0]) / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_are_jittered_and_have_an_end() {
        for failures in [0, 1, 2, 5, 40, u32::MAX] {
            let doubled = FIRST_WAIT.saturating_mul(1 << failures.min(16)).min(LONGEST_WAIT);
            let waits: Vec<_> = (0..200).map(|_| wait(failures)).collect();
            assert!(waits.iter().all(|&it| it >= doubled / 2 && it <= doubled), "{failures}");
            assert!(waits.iter().any(|&it| it != waits[0]), "{failures}");
        }
    }

    #[test]
    fn what_is_no_address_of_an_endpoint_is_refused_before_anything_is_asked() {
        for url in ["", "sfu.example/whip", "ftp://sfu.example/", "http://"] {
            assert_eq!(Remote::new(url).unwrap_err().kind(), Kind::InvalidArgument, "{url}");
        }
        let remote = Remote::new("https://sfu.example/whip/a-secret-key").unwrap();
        assert!(!format!("{remote:?}").contains("a-secret-key"));
    }
}
