//! Speaking with a Space: gRPC calls that fail with the error the Space meant.
//!
//! What a spaceport says in the details of a status comes back as the very [`Error`] it was there:
//! kind, cause, hint and facts. What another server of the contract says is translated by its
//! reason, so that callers need to know one set of kinds.

use std::convert::Infallible;
use std::fmt;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Body as _, Frame};
use prost::Message;
use spaceport_types::{Cause, Disposition, Error, Issue, Kind, Redacted, Result};
use spaceport_wire::pb::{self, ErrorReason};
use spaceport_wire::status;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::Service;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, IntoStreamingRequest, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::Address;
use crate::address::Route;

/// How long a Space may take to accept a connection, and then to answer a call that only asks.
const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);

/// How long a relay may take to say whether a machine is there: it waits three seconds for one that has
/// only just gone.
const PRESENCE: Duration = Duration::from_secs(5);

/// The call that opens a stream, whose errors have causes of a stream.
const OPEN_MEDIA: &str = "StreamService/OpenMedia";

/// The header by which a relay's own errors are told from what a machine answers.
const RELAYS_ERROR: &str = "x-cua-relay-error";

/// The largest message either way, as the contract has it: a manifest of 200,000 entries is one.
const LARGEST: usize = 64 << 20;

/// The package of methods that do not name their own, and how those begin that do.
const CONTRACT: &str = "cua.env.v1.";
const OWN: &str = "spaceport.";

/// How often a connection with something under way shows that it lives, and how soon it has to.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// Flow-control windows that fill a fast link, the same as the server's.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A connection to a Space. Cloning it makes another handle of the same one; a broken one is made
/// again by the next call.
#[derive(Clone)]
pub struct Client {
    address: Address,
    channel: Channel,
    grpc: Grpc<Channel>,
    authorization: Option<MetadataValue<tonic::metadata::Ascii>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client. Nothing is sent before the first call.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a token that no header can carry.
    pub fn new(address: &Address, token: Option<&Redacted<String>>) -> Result<Self> {
        let unusable =
            || Error::new(Kind::InvalidArgument, format!("`{address}` cannot be called by gRPC"));
        let origin: Uri = address.to_string().parse().map_err(|error| unusable().source(error))?;
        let mut endpoint = Endpoint::from_shared(address.origin())
            .map_err(|error| unusable().source(error))?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        if address.is_secure() {
            let tls = ClientTlsConfig::new().with_native_roots();
            endpoint = endpoint.tls_config(tls).map_err(|error| unusable().source(error))?;
        }
        let authorization = match token {
            None => None,
            Some(token) => {
                let mut value: MetadataValue<_> =
                    format!("Bearer {}", token.expose()).parse().map_err(|_| {
                        Error::new(Kind::InvalidArgument, "the token holds what no header can")
                            .hint("A token is one line of visible ASCII characters")
                    })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let channel = endpoint.connect_lazy();
        let grpc = Grpc::with_origin(channel.clone(), origin)
            .max_decoding_message_size(LARGEST)
            .max_encoding_message_size(LARGEST);
        Ok(Self { address: address.clone(), channel, grpc, authorization })
    }

    /// Where the Space is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// One call with one answer. `method` is without the contract's package: `StreamService/OpenMedia`.
    ///
    /// # Errors
    ///
    /// What the Space said, `unauthenticated`, `spacesd_not_available` when nobody answers, and
    /// `timeout` after half a minute.
    pub async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.call_within(ANSWER, method, request).await
    }

    /// The same for a call that may take longer, such as a commit of a large transfer.
    ///
    /// # Errors
    ///
    /// As [`Client::call`], with another limit.
    pub async fn call_within<Q, A>(
        &self,
        limit: Duration,
        method: &'static str,
        request: Q,
    ) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (mut grpc, path) = self.ready(method).await?;
        let request = self.signed(Request::new(request));
        let answer = grpc.unary(request, path, ProstCodec::<Q, A>::default());
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => Ok(answer.map_err(|status| self.error(method, &status))?.into_inner()),
            Err(_) => Err(Error::new(
                Kind::Timeout,
                format!("the Space at {} did not answer within {limit:?}", self.address),
            )
            .operation(method)),
        }
    }

    /// A call with many answers.
    ///
    /// # Errors
    ///
    /// As [`Client::call`]; each answer may fail, too, and is turned into an [`Error`] by
    /// [`Client::error`].
    pub async fn read<Q, A>(&self, method: &'static str, request: Q) -> Result<Streaming<A>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (mut grpc, path) = self.ready(method).await?;
        let request = self.signed(Request::new(request));
        let answer = grpc.server_streaming(request, path, ProstCodec::<Q, A>::default()).await;
        Ok(answer.map_err(|status| self.error(method, &status))?.into_inner())
    }

    /// A call with many requests and one answer.
    ///
    /// # Errors
    ///
    /// As [`Client::call`], without a limit of time.
    pub async fn write<Q, A>(
        &self,
        method: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (mut grpc, path) = self.ready(method).await?;
        let request = self.signed(requests.into_streaming_request());
        let answer = grpc.client_streaming(request, path, ProstCodec::<Q, A>::default()).await;
        Ok(answer.map_err(|status| self.error(method, &status))?.into_inner())
    }

    /// A call with many requests and many answers, which may cross.
    ///
    /// # Errors
    ///
    /// As [`Client::read`].
    pub async fn exchange<Q, A>(
        &self,
        method: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (mut grpc, path) = self.ready(method).await?;
        let request = self.signed(requests.into_streaming_request());
        let answer = grpc.streaming(request, path, ProstCodec::<Q, A>::default()).await;
        Ok(answer.map_err(|status| self.error(method, &status))?.into_inner())
    }

    /// A request whose body and whose answer go on side by side, with the Space's token: `path` comes
    /// after the Space's address. What comes back ends with an error when the connection does.
    ///
    /// # Errors
    ///
    /// What the Space refused it with; `spacesd_not_available`.
    pub async fn converse(
        &self,
        path: &'static str,
        media_type: &'static str,
        body: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let unusable = |error: http::Error| {
            Error::new(Kind::Internal, format!("`{path}` is no path")).source(error)
        };
        let body = StreamBody::new(body.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes))));
        let mut request = http::Request::post(format!("{}{path}", self.address))
            .header(CONTENT_TYPE, media_type)
            .body(Body::new(body))
            .map_err(unusable)?;
        if let Some(authorization) = &self.authorization {
            let mut value = HeaderValue::from_bytes(authorization.as_bytes())
                .map_err(|error| unusable(error.into()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let mut channel = self.channel.clone();
        let ready = std::future::poll_fn(|cx| Service::poll_ready(&mut channel, cx)).await;
        ready.map_err(|error| self.unavailable("", &error).operation(path))?;
        let answer = Service::call(&mut channel, request).await;
        let answer = answer.map_err(|error| self.unavailable("", &error).operation(path))?;
        let (head, mut body) = answer.into_parts();
        if head.status != http::StatusCode::OK {
            let problem = Limited::new(body, LARGEST_PROBLEM).collect().await;
            let problem = problem.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return Err(refused(head.status, &problem).operation(path));
        }
        let client = self.clone();
        Ok(Box::pin(futures_util::stream::poll_fn(move |cx| {
            let frame = ready!(std::pin::Pin::new(&mut body).poll_frame(cx));
            Poll::Ready(match frame {
                None => None,
                Some(Ok(frame)) => Some(Ok(frame.into_data().unwrap_or_default())),
                Some(Err(status)) => Some(Err(client
                    .unavailable(path, &status)
                    .disposition(Disposition::UnknownAfterDispatch)
                    .operation(path))),
            })
        })))
    }

    /// Why a Space behind a relay cannot be reached there now; nothing where it can. It takes no token.
    pub(crate) async fn absence(&self) -> Option<Error> {
        let health = http::Request::get(format!("{}/health", self.address)).body(Body::empty());
        let health = match health {
            Ok(health) => health,
            Err(error) => return Some(self.unavailable("", &error)),
        };
        let mut channel = self.channel.clone();
        let answer = async {
            std::future::poll_fn(|cx| Service::poll_ready(&mut channel, cx)).await?;
            Service::call(&mut channel, health).await
        };
        let late = || {
            let message = format!("the relay at {} did not answer", self.address.origin());
            Some(Error::new(Kind::Timeout, message))
        };
        let answer = match tokio::time::timeout(PRESENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Some(self.unavailable("", &error)),
            Err(_) => return late(),
        };
        // What the machine answers is the machine's, and it is there; this header the relay's own.
        if !answer.headers().contains_key(RELAYS_ERROR) {
            return None;
        }
        let (head, body) = answer.into_parts();
        let problem = tokio::time::timeout(PRESENCE, Limited::new(body, LARGEST_PROBLEM).collect());
        let Ok(problem) = problem.await else { return late() };
        let problem = problem.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        Some(refused(head.status, &problem))
    }

    /// What a Space means that says in the middle of something why it goes no further: the parts of a
    /// gRPC status.
    pub fn failure(
        &self,
        method: &'static str,
        code: i32,
        message: String,
        details: Bytes,
    ) -> Error {
        self.error(method, &Status::with_details(Code::from(code), message, details))
    }

    async fn ready(&self, method: &'static str) -> Result<(Grpc<Channel>, PathAndQuery)> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|error| self.unavailable(method, &error).operation(method))?;
        let package = if method.starts_with(OWN) { "" } else { CONTRACT };
        let path = format!("/{package}{method}").parse().map_err(|error| {
            Error::new(Kind::Internal, format!("`{method}` is not a method")).source(error)
        })?;
        Ok((grpc, path))
    }

    fn signed<T>(&self, mut request: Request<T>) -> Request<T> {
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        request
    }

    /// What a status means. For the answers of [`Client::read`].
    pub fn error(&self, method: &'static str, status: &Status) -> Error {
        let detail = status::Status::decode(status.details()).ok().and_then(|it| it.info());
        let error = match detail {
            Some(info) => of_info(&info),
            // Nobody said this: the connection failed, in one of many ways.
            None if std::error::Error::source(status).is_some() => {
                self.unavailable(method, status).disposition(Disposition::UnknownAfterDispatch)
            }
            None => match status.code() {
                Code::Unauthenticated => Error::new(Kind::Unauthenticated, said(status)),
                Code::PermissionDenied => Error::new(Kind::PermissionDenied, said(status)),
                Code::NotFound => Error::new(Kind::NotFound, said(status)),
                Code::InvalidArgument => Error::new(Kind::InvalidArgument, said(status)),
                Code::ResourceExhausted => Error::new(Kind::LimitExceeded, said(status)),
                Code::DeadlineExceeded => Error::new(Kind::Timeout, said(status)),
                Code::Unimplemented => Error::new(
                    Kind::SpacesdNotAvailable,
                    format!("what answers at {} does not serve `{method}`", self.address),
                )
                .hint("Check the address: another program may have that port"),
                // Sent, and then nothing: it may have happened.
                Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Aborted => {
                    self.unavailable(method, status).disposition(Disposition::UnknownAfterDispatch)
                }
                _ => Error::new(Kind::Env, said(status)),
            },
        };
        error.operation(method)
    }

    fn unavailable(&self, method: &str, source: &(dyn std::error::Error + 'static)) -> Error {
        // A status prints itself with all its metadata; the innermost cause is what happened.
        let innermost = std::iter::successors(Some(source), |error| error.source()).last();
        let error = match self.address.route() {
            Route::Direct if has_answered(source) => Error::new(
                Kind::SpacesdNotAvailable,
                format!("the connection to {} broke off", self.address),
            )
            .hint("Check that it is `spaceport serve` that has this port, and that it runs"),
            Route::Direct => {
                let message = format!("no Space answers at {}", self.address);
                Error::new(Kind::SpacesdNotAvailable, message)
                    .hint("Check that `spaceport serve` runs there and that the address is right")
            }
            Route::Relay { .. } => {
                let message = format!("the relay at {} cannot be reached", self.address.origin());
                let error = match method {
                    OPEN_MEDIA => Error::because(Cause::RelayUnreachable, message),
                    _ => Error::new(Kind::Relay, message),
                };
                error.hint("Check that `spaceport relay` runs there, or reach the Space without it")
            }
        };
        match innermost.map(|error| error.to_string()) {
            Some(why) if why.len() < LONGEST_REASON => error.source(std::io::Error::other(why)),
            _ => error,
        }
    }
}

/// Whether somebody was there: a Space that went, or one that is none.
fn has_answered(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::ErrorKind as Io;
    let mut sources = std::iter::successors(Some(error), |error| error.source());
    // Without one, what came over the connection was not understood.
    sources.find_map(|error| error.downcast_ref::<std::io::Error>()).is_none_or(|error| {
        matches!(
            error.kind(),
            Io::BrokenPipe | Io::ConnectionReset | Io::ConnectionAborted | Io::UnexpectedEof
        )
    })
}

/// Bytes of an error's document that are read.
const LARGEST_PROBLEM: usize = 64 << 10;

/// What a Space means that refuses a request over plain HTTP.
pub(crate) fn refused(status: http::StatusCode, body: &[u8]) -> Error {
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let word = |name: &str| problem.get(name).cloned().unwrap_or_default();
    let said = word("message").as_str().map(|it| it.chars().take(LONGEST_REASON).collect());
    let message: String =
        said.unwrap_or_else(|| format!("the Space answered with status {status}"));
    let kind = serde_json::from_value(word("kind")).unwrap_or(match status.as_u16() {
        401 => Kind::Unauthenticated,
        403 => Kind::PermissionDenied,
        404 => Kind::NotFound,
        429 => Kind::LimitExceeded,
        502..=504 => Kind::SpacesdNotAvailable,
        _ => Kind::Env,
    });
    let cause = serde_json::from_value::<Cause>(word("cause")).ok();
    let error = match cause.filter(|cause| cause.kind() == kind) {
        Some(cause) => Error::because(cause, message),
        None => Error::new(kind, message),
    };
    match word("hint").as_str() {
        Some(hint) => error.hint(hint.chars().take(LONGEST_REASON).collect::<String>()),
        None => error,
    }
}

/// Above this it is no reason but somebody's page.
const LONGEST_REASON: usize = 200;

fn said(status: &Status) -> String {
    match status.message() {
        "" => format!("the Space answered: {}", status.code().description()),
        message => message.to_owned(),
    }
}

/// The error a Space meant. Its own words for kind and cause, where it has them, and otherwise
/// what the contract's reason comes to.
fn of_info(info: &pb::ErrorInfo) -> Error {
    let word = |key: &str| info.metadata.get(key).cloned();
    let kind = word("kind").and_then(known::<Kind>);
    let cause = word("cause").and_then(known::<Cause>);
    let kind = kind.unwrap_or_else(|| match info.reason() {
        ErrorReason::Unauthenticated => Kind::Unauthenticated,
        ErrorReason::PermissionDenied => Kind::PermissionDenied,
        ErrorReason::FeatureUnsupported => Kind::CapabilityMissing,
        ErrorReason::PathNotFound | ErrorReason::ProcessNotFound | ErrorReason::SessionNotFound => {
            Kind::NotFound
        }
        ErrorReason::OffsetMismatch
        | ErrorReason::SequenceGap
        | ErrorReason::StaleHandle
        | ErrorReason::StaleGeometry => Kind::PreconditionFailed,
        ErrorReason::RateLimited | ErrorReason::LimitExceeded => Kind::LimitExceeded,
        _ => Kind::Env,
    });
    let message = info.message.clone();
    let mut error = match cause {
        Some(cause) if cause.kind() == kind => Error::because(cause, message),
        _ => Error::new(kind, message),
    };
    if kind == Kind::Env {
        error = error
            .disposition(Disposition::ProviderReported)
            .with("reason", info.reason().as_str_name());
    }
    if !info.feature.is_empty() {
        error = error.with("feature", &info.feature);
    }
    for (key, value) in &info.metadata {
        error = match key.as_str() {
            "kind" | "cause" | "operation" | "retryable" => error,
            "hint" => error.hint(value.clone()),
            "retry_after_ms" => match value.parse() {
                Ok(delay) => error.retry_after(Duration::from_millis(delay)),
                Err(_) => error,
            },
            key => match key.strip_prefix("issue.") {
                Some(path) => {
                    let (constraint, limit) = match value.rsplit_once(' ') {
                        Some((constraint, limit)) => (constraint, Some(limit.to_owned())),
                        None => (value.as_str(), None),
                    };
                    let constraint = constraint.to_owned().into();
                    error.issue(Issue { path: path.to_owned(), constraint, limit })
                }
                None => error.with(key.to_owned(), value),
            },
        };
    }
    error
}

/// A kind or cause by its serialized name; nothing for one of a later spaceport.
fn known<T: serde::de::DeserializeOwned>(name: String) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(name)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        Client::new(&Address::parse("127.0.0.1:9").unwrap(), None).unwrap()
    }

    fn status_of(info: &pb::ErrorInfo) -> Status {
        let details = status::Status::with_info(9, info).encode_to_vec();
        Status::with_details(Code::FailedPrecondition, "less", details.into())
    }

    #[tokio::test]
    async fn what_a_spaceport_said_comes_back_whole() {
        let metadata = [
            ("kind", "transfer_failed"),
            ("cause", "disk_full"),
            ("hint", "Make room"),
            ("retry_after_ms", "1500"),
            ("retryable", "false"),
            ("path", "a/b"),
            ("issue.entries.7.size", "maximum 9"),
        ];
        let info = pb::ErrorInfo {
            reason: ErrorReason::DiskFull.into(),
            message: "no space for `a/b`".into(),
            feature: String::new(),
            metadata: metadata.map(|(key, value)| (key.into(), value.into())).into(),
        };
        let report =
            client().error("TeleportService/BeginReceiveFiles", &status_of(&info)).report();
        assert_eq!((report.kind, report.cause), (Kind::TransferFailed, Some(Cause::DiskFull)));
        assert_eq!(report.message, "no space for `a/b`");
        assert_eq!(report.hint.as_deref(), Some("Make room"));
        assert_eq!(report.retry_after_ms, Some(1500));
        assert_eq!(report.context.len(), 1);
        assert_eq!(report.context["path"], "a/b");
        let issue = &report.issues[0];
        assert_eq!((&*issue.path, &*issue.constraint), ("entries.7.size", "maximum"));
        assert_eq!(issue.limit.as_deref(), Some("9"));
    }

    #[tokio::test]
    async fn what_another_server_said_is_translated_by_its_reason() {
        for (reason, kind) in [
            (ErrorReason::Unauthenticated, Kind::Unauthenticated),
            (ErrorReason::FeatureUnsupported, Kind::CapabilityMissing),
            (ErrorReason::SessionNotFound, Kind::NotFound),
            (ErrorReason::OffsetMismatch, Kind::PreconditionFailed),
            (ErrorReason::DiskFull, Kind::Env),
        ] {
            let info = pb::ErrorInfo { reason: reason.into(), ..pb::ErrorInfo::default() };
            assert_eq!(client().error("X/Y", &status_of(&info)).kind(), kind, "{reason:?}");
        }
        // A kind of the future is not ours, and a cause of another kind does not fit.
        let info = pb::ErrorInfo {
            reason: ErrorReason::DiskFull.into(),
            metadata: [("kind", "sunspots"), ("cause", "ice_failed")]
                .map(|(key, value)| (key.into(), value.into()))
                .into(),
            ..pb::ErrorInfo::default()
        };
        let error = client().error("X/Y", &status_of(&info));
        assert_eq!((error.kind(), error.cause()), (Kind::Env, None));
    }
}
