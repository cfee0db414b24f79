//! The one error type, and the one table that says what each kind means.
//!
//! Code that fails picks a [`Kind`] (and, for the three kinds that have them, a [`Cause`]) where
//! the failure is understood. Surfaces never look inside: they take [`Error::report`] and copy its
//! fields into their own envelope, so a kind cannot be a 404 on one surface and a 500 on another.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::remedy;

/// A [`Result`](std::result::Result) with spaceport's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed, in terms a caller can act on.
///
/// The serialized names are a contract with every client. Append; never rename or reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// The request is malformed or out of range; sending it again will not help.
    InvalidArgument,
    /// The operation destroys something and was not confirmed.
    ConfirmationRequired,
    /// A question has to be answered, and nobody is there to ask.
    PromptBlocked,
    /// The token or ticket is missing, wrong or expired.
    Unauthenticated,
    /// The caller is known and may not do this.
    PermissionDenied,
    /// Nothing has that name.
    NotFound,
    /// A name fits two Spaces.
    AmbiguousSandbox,
    /// The state the request was based on has moved on.
    PreconditionFailed,
    /// This Space cannot do it.
    CapabilityMissing,
    /// This machine cannot do it.
    HostCapabilityMissing,
    /// The Space is of another kind than the operation needs.
    WrongProvider,
    /// The Space does not answer.
    SpacesdNotAvailable,
    /// A limit is reached.
    LimitExceeded,
    /// It took too long.
    Timeout,
    /// The caller took the request back.
    Cancelled,
    /// A stream could not be opened or did not go on; the [`Cause`] says why.
    Stream,
    /// A transfer did not complete, and nothing was published; the [`Cause`] says why.
    TransferFailed,
    /// A teleport was not allowed; the [`Cause`] says why.
    TeleportRefused,
    /// The relay did not do its part.
    Relay,
    /// The Space answered with a failure of its own.
    Env,
    /// An MCP peer answered with a failure of its own.
    Mcp,
    /// A file, socket or process failed on this machine.
    Io,
    /// A peer's JSON could not be read.
    Json,
    /// A bug in spaceport.
    Internal,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The same request fails the same way.
    Never,
    /// The same request may succeed, with backoff.
    Backoff,
    /// After the time in `retry_after_ms`.
    AfterDelay,
    /// After reading the current state again.
    AfterRead,
    /// Once someone has acted on the hint.
    AfterAction,
    /// The cause decides; see [`Cause::retry`].
    ByCause,
}

/// What is known about the request's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disposition {
    /// Nothing happened.
    NotDispatched,
    /// The other side was asked and said no.
    ProviderReported,
    /// It may or may not have happened: read the state before trying again.
    UnknownAfterDispatch,
}

/// How a [`Kind`] looks from each surface.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// One line, the same for every error of this kind.
    pub title: &'static str,
    /// HTTP status.
    pub http: u16,
    /// gRPC status code.
    pub grpc: i32,
    /// Process exit code.
    pub exit: u8,
    /// Whether trying again can help.
    pub retry: Retry,
    /// What is known about the request's effect, unless the error says otherwise.
    pub disposition: Disposition,
}

impl Kind {
    /// Every kind, in declaration order.
    pub const ALL: [Self; 24] = [
        Self::InvalidArgument,
        Self::ConfirmationRequired,
        Self::PromptBlocked,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::NotFound,
        Self::AmbiguousSandbox,
        Self::PreconditionFailed,
        Self::CapabilityMissing,
        Self::HostCapabilityMissing,
        Self::WrongProvider,
        Self::SpacesdNotAvailable,
        Self::LimitExceeded,
        Self::Timeout,
        Self::Cancelled,
        Self::Stream,
        Self::TransferFailed,
        Self::TeleportRefused,
        Self::Relay,
        Self::Env,
        Self::Mcp,
        Self::Io,
        Self::Json,
        Self::Internal,
    ];

    /// Looks this kind up in the one table that maps kinds to surfaces.
    pub const fn spec(self) -> Spec {
        use Disposition::{NotDispatched, ProviderReported, UnknownAfterDispatch};
        use Retry::{AfterAction, AfterDelay, AfterRead, Backoff, ByCause, Never};
        #[rustfmt::skip]
        let (title, http, grpc, exit, retry, disposition) = match self {
            Self::InvalidArgument => ("The request is not valid", 400, 3, 2, Never, NotDispatched),
            Self::ConfirmationRequired => ("This needs to be confirmed", 428, 9, 2, AfterAction, NotDispatched),
            Self::PromptBlocked => ("A question has nobody to answer it", 428, 9, 2, AfterAction, NotDispatched),
            Self::Unauthenticated => ("The token or ticket was not accepted", 401, 16, 3, Never, NotDispatched),
            Self::PermissionDenied => ("Not allowed", 403, 7, 3, Never, NotDispatched),
            Self::NotFound => ("No such thing", 404, 5, 5, Never, NotDispatched),
            Self::AmbiguousSandbox => ("The name fits more than one Space", 409, 9, 2, Never, NotDispatched),
            Self::PreconditionFailed => ("The state has moved on", 412, 9, 4, AfterRead, NotDispatched),
            Self::CapabilityMissing => ("This Space cannot do that", 422, 12, 4, Never, NotDispatched),
            Self::HostCapabilityMissing => ("This machine cannot do that", 422, 12, 4, Never, NotDispatched),
            Self::WrongProvider => ("This Space is of another kind", 422, 12, 4, Never, NotDispatched),
            Self::SpacesdNotAvailable => ("The Space does not answer", 502, 14, 4, Backoff, NotDispatched),
            Self::LimitExceeded => ("A limit is reached", 429, 8, 4, AfterDelay, NotDispatched),
            Self::Timeout => ("It took too long", 504, 4, 4, AfterRead, UnknownAfterDispatch),
            Self::Cancelled => ("The request was cancelled", 499, 1, 130, Never, UnknownAfterDispatch),
            Self::Stream => ("The stream failed", 503, 14, 8, ByCause, NotDispatched),
            Self::TransferFailed => ("The transfer failed", 422, 9, 7, ByCause, NotDispatched),
            Self::TeleportRefused => ("The teleport was refused", 403, 9, 6, ByCause, NotDispatched),
            Self::Relay => ("The relay failed", 502, 14, 4, Backoff, NotDispatched),
            Self::Env => ("The Space reported a failure", 502, 13, 4, Never, ProviderReported),
            Self::Mcp => ("The MCP peer reported a failure", 502, 13, 4, Never, ProviderReported),
            Self::Io => ("This machine reported a failure", 500, 13, 1, Never, NotDispatched),
            Self::Json => ("The answer could not be read", 502, 13, 4, Never, UnknownAfterDispatch),
            Self::Internal => ("A bug in spaceport", 500, 13, 1, Never, UnknownAfterDispatch),
        };
        Spec { title, http, grpc, exit, retry, disposition }
    }
}

/// The exact reason behind a `stream`, `transfer_failed` or `teleport_refused` error.
///
/// The serialized names are a contract with every client. Append; never rename or reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// No UDP packet came through.
    UdpBlocked,
    /// The relay cannot be reached.
    RelayUnreachable,
    /// No candidate pair worked (RFC 8445).
    IceFailed,
    /// The DTLS handshake failed.
    DtlsFailed,
    /// This Space has no encoder for any codec the viewer takes.
    CodecUnavailable,
    /// The viewer has no decoder for any codec this Space has.
    NoDecoder,
    /// The encoder failed.
    EncoderFailed,
    /// The desktop cannot be read.
    CaptureFailed,
    /// The display is blanked or locked.
    DisplayBlanked,
    /// The window is minimized.
    Minimized,
    /// The window is there, but not shown.
    WindowUnavailable,
    /// The display or window is gone.
    TargetGone,
    /// The media session was closed.
    SessionClosed,
    /// The ticket's time is over.
    TicketExpired,
    /// The viewer could not keep up, even with the lowest rate.
    ViewerTooSlow,
    /// The session has as many viewers as it may have.
    TooManyViewers,
    /// The machine is not connected to the relay.
    GuestOffline,
    /// The endpoint that the stream was to be published to does not take it.
    PublishRefused,
    /// The endpoint that the stream is published to cannot be reached, or not take it now.
    PublishUnavailable,
    /// The received bytes do not hash to what was promised.
    DigestMismatch,
    /// More or fewer bytes than promised.
    SizeMismatch,
    /// A path leads out of its folder.
    PathEscape,
    /// A name the destination cannot hold.
    NameUnusable,
    /// No space left.
    DiskFull,
    /// The destination may not be written.
    Permission,
    /// The transfer stopped half-way and can be resumed.
    Interrupted,
    /// The other machine went away.
    PeerGone,
    /// The destination already has something of that name.
    Conflict,
    /// The bundle is damaged.
    CorruptBundle,
    /// Sensitive items were not acknowledged.
    NotAcknowledged,
    /// A person said no.
    Declined,
    /// Nobody answered in time.
    Expired,
    /// The selection is empty.
    NothingSelected,
    /// The destination cannot import this.
    NotImportable,
    /// The app is running and may not be closed.
    AppRunning,
    /// The profile is newer than the destination's app.
    ProfileNewer,
    /// The key that protects the data cannot be had.
    KeyUnavailable,
    /// A relay is between, and the bundle is not sealed.
    RelayUnsealed,
    /// The manifest changed after consent.
    ManifestChanged,
}

impl Cause {
    /// Every cause, in declaration order.
    pub const ALL: [Self; 39] = [
        Self::UdpBlocked,
        Self::RelayUnreachable,
        Self::IceFailed,
        Self::DtlsFailed,
        Self::CodecUnavailable,
        Self::NoDecoder,
        Self::EncoderFailed,
        Self::CaptureFailed,
        Self::DisplayBlanked,
        Self::Minimized,
        Self::WindowUnavailable,
        Self::TargetGone,
        Self::SessionClosed,
        Self::TicketExpired,
        Self::ViewerTooSlow,
        Self::TooManyViewers,
        Self::GuestOffline,
        Self::PublishRefused,
        Self::PublishUnavailable,
        Self::DigestMismatch,
        Self::SizeMismatch,
        Self::PathEscape,
        Self::NameUnusable,
        Self::DiskFull,
        Self::Permission,
        Self::Interrupted,
        Self::PeerGone,
        Self::Conflict,
        Self::CorruptBundle,
        Self::NotAcknowledged,
        Self::Declined,
        Self::Expired,
        Self::NothingSelected,
        Self::NotImportable,
        Self::AppRunning,
        Self::ProfileNewer,
        Self::KeyUnavailable,
        Self::RelayUnsealed,
        Self::ManifestChanged,
    ];

    /// The kind of error this is a cause of.
    pub const fn kind(self) -> Kind {
        match self {
            Self::UdpBlocked
            | Self::RelayUnreachable
            | Self::IceFailed
            | Self::DtlsFailed
            | Self::CodecUnavailable
            | Self::NoDecoder
            | Self::EncoderFailed
            | Self::CaptureFailed
            | Self::DisplayBlanked
            | Self::Minimized
            | Self::WindowUnavailable
            | Self::TargetGone
            | Self::SessionClosed
            | Self::TicketExpired
            | Self::ViewerTooSlow
            | Self::TooManyViewers
            | Self::GuestOffline
            | Self::PublishRefused
            | Self::PublishUnavailable => Kind::Stream,
            Self::DigestMismatch
            | Self::SizeMismatch
            | Self::PathEscape
            | Self::NameUnusable
            | Self::DiskFull
            | Self::Permission
            | Self::Interrupted
            | Self::PeerGone
            | Self::Conflict
            | Self::CorruptBundle => Kind::TransferFailed,
            Self::NotAcknowledged
            | Self::Declined
            | Self::Expired
            | Self::NothingSelected
            | Self::NotImportable
            | Self::AppRunning
            | Self::ProfileNewer
            | Self::KeyUnavailable
            | Self::RelayUnsealed
            | Self::ManifestChanged => Kind::TeleportRefused,
        }
    }

    /// Whether trying again can help, cause by cause.
    pub const fn retry(self) -> Retry {
        match self {
            Self::RelayUnreachable
            | Self::IceFailed
            | Self::DtlsFailed
            | Self::EncoderFailed
            | Self::CaptureFailed
            | Self::ViewerTooSlow
            | Self::GuestOffline
            | Self::PublishUnavailable
            | Self::DigestMismatch
            | Self::Interrupted
            | Self::PeerGone
            | Self::CorruptBundle => Retry::Backoff,
            Self::TooManyViewers => Retry::AfterDelay,
            Self::SessionClosed
            | Self::TicketExpired
            | Self::TargetGone
            | Self::ManifestChanged => Retry::AfterRead,
            Self::UdpBlocked
            | Self::PublishRefused
            | Self::DisplayBlanked
            | Self::Minimized
            | Self::WindowUnavailable
            | Self::DiskFull
            | Self::Permission
            | Self::Conflict
            | Self::NotAcknowledged
            | Self::Expired
            | Self::NothingSelected
            | Self::AppRunning
            | Self::KeyUnavailable
            | Self::RelayUnsealed => Retry::AfterAction,
            Self::CodecUnavailable
            | Self::NoDecoder
            | Self::SizeMismatch
            | Self::PathEscape
            | Self::NameUnusable
            | Self::Declined
            | Self::NotImportable
            | Self::ProfileNewer => Retry::Never,
        }
    }

    /// The HTTP status where the public contract or a draft wants another than the kind's:
    /// `/media` answers 401 and 410 before it upgrades, WHEP 406 when no codec fits.
    const fn http(self) -> Option<u16> {
        match self {
            Self::TicketExpired => Some(401),
            Self::SessionClosed | Self::TargetGone => Some(410),
            Self::CodecUnavailable | Self::NoDecoder => Some(406),
            Self::TooManyViewers => Some(429),
            _ => None,
        }
    }
}

/// One argument that is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// Which argument, as a dotted path.
    pub path: String,
    /// What must hold, for example `maximum` or `required`.
    pub constraint: Cow<'static, str>,
    /// The bound, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
}

/// Anything that went wrong. One pointer wide, so `Result<T>` stays small.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: Kind,
    cause: Option<Cause>,
    message: Cow<'static, str>,
    hint: Option<Cow<'static, str>>,
    operation: Option<&'static str>,
    retry_after: Option<Duration>,
    disposition: Option<Disposition>,
    context: BTreeMap<Cow<'static, str>, String>,
    issues: Vec<Issue>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Creates an error. `message` is lowercase, has no final period, and names the thing.
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            cause: None,
            message: message.into(),
            hint: None,
            operation: None,
            retry_after: None,
            disposition: None,
            context: BTreeMap::new(),
            issues: Vec::new(),
            source: None,
        }))
    }

    /// Creates an error of the kind that `cause` belongs to.
    pub fn because(cause: Cause, message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Self::new(cause.kind(), message);
        error.0.cause = Some(cause);
        error
    }

    /// Says what the reader can do about it, as an imperative sentence.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<Cow<'static, str>>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Attaches one fact as data, so no client has to parse it out of the message.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl fmt::Display) -> Self {
        self.0.context.insert(key.into(), value.to_string());
        self
    }

    /// Names the operation that failed, as its callers know it.
    #[must_use]
    pub fn operation(mut self, operation: &'static str) -> Self {
        self.0.operation = Some(operation);
        self
    }

    /// Says how long to wait before trying again.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// Says what is known about the effect, where the kind's own answer does not fit.
    #[must_use]
    pub fn disposition(mut self, disposition: Disposition) -> Self {
        self.0.disposition = Some(disposition);
        self
    }

    /// Names one argument that is wrong.
    #[must_use]
    pub fn issue(mut self, issue: Issue) -> Self {
        self.0.issues.push(issue);
        self
    }

    /// Records the lower-level cause.
    #[must_use]
    pub fn source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The kind, the only part most callers should branch on.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The exact reason, for the kinds that have one.
    pub fn cause(&self) -> Option<Cause> {
        self.0.cause
    }

    /// One fact that was attached with [`Error::with`].
    pub fn context(&self, key: &str) -> Option<&str> {
        self.0.context.get(key).map(String::as_str)
    }

    /// The HTTP status: the kind's, or the cause's where a public contract fixes it.
    pub fn http_status(&self) -> u16 {
        self.0.cause.and_then(Cause::http).unwrap_or(self.0.kind.spec().http)
    }

    /// Flattens the error for a surface.
    pub fn report(&self) -> Report {
        let spec = self.0.kind.spec();
        let retry = match (spec.retry, self.0.cause) {
            (Retry::ByCause, Some(cause)) => cause.retry(),
            (retry, _) => retry,
        };
        let causes = std::iter::successors(StdError::source(self), |&cause| cause.source());
        Report {
            kind: self.0.kind,
            title: spec.title,
            message: self.0.message.to_string(),
            hint: Some(self.next_step().to_owned()),
            cause: self.0.cause,
            operation: self.0.operation,
            retryable: matches!(retry, Retry::Backoff | Retry::AfterDelay),
            retry,
            retry_after_ms: self.0.retry_after.map(|delay| delay.as_millis() as u64),
            disposition: self.0.disposition.unwrap_or(spec.disposition),
            context: self.0.context.clone(),
            issues: self.0.issues.clone(),
            causes: causes.map(ToString::to_string).collect(),
        }
    }
}

impl Error {
    /// The hint, or what can be said in general.
    fn next_step(&self) -> &str {
        if let Some(hint) = &self.0.hint {
            return hint;
        }
        let mut sources = std::iter::successors(StdError::source(self), |&source| source.source());
        let io = sources.find_map(|source| source.downcast_ref::<std::io::Error>());
        match (self.0.cause, self.0.kind, io.and_then(remedy::of_io)) {
            (Some(cause), ..) => cause.remedy(),
            // What was asked for is of this machine, and not of a Space.
            (None, Kind::Io | Kind::NotFound | Kind::PermissionDenied, Some(remedy)) => remedy,
            (None, kind, _) => kind.remedy(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<std::io::Error> for Error {
    /// An error of ours that had to pass through a reader or writer comes back as it was.
    fn from(error: std::io::Error) -> Self {
        error
            .downcast()
            .unwrap_or_else(|error| Self::new(Kind::Io, error.to_string()).source(error))
    }
}

/// An error as every surface shows it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Stable machine name of the kind.
    pub kind: Kind,
    /// One line, the same for every error of this kind.
    pub title: &'static str,
    /// What happened this time, for people.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The exact reason, for `stream`, `transfer_failed` and `teleport_refused`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// The operation that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<&'static str>,
    /// Whether the very same request may succeed later, with nobody doing anything.
    pub retryable: bool,
    /// What has to happen before another try makes sense.
    pub retry: Retry,
    /// How long to wait first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What is known about the request's effect.
    pub disposition: Disposition,
    /// Facts about this occurrence: ids, limits, hashes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub context: BTreeMap<Cow<'static, str>, String>,
    /// The arguments that are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<Issue>,
    /// The chain of lower-level causes, outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    // Clients match on these; a rename must fail here before it fails in the field.
    #[test]
    fn kinds_are_stable() {
        let rows: Vec<String> = Kind::ALL
            .iter()
            .map(|kind| {
                let name = serde_json::to_value(kind).unwrap();
                let spec = kind.spec();
                format!("{} {} {} {}", name.as_str().unwrap(), spec.http, spec.grpc, spec.exit)
            })
            .collect();
        assert_eq!(
            rows,
            [
                "invalid_argument 400 3 2",
                "confirmation_required 428 9 2",
                "prompt_blocked 428 9 2",
                "unauthenticated 401 16 3",
                "permission_denied 403 7 3",
                "not_found 404 5 5",
                "ambiguous_sandbox 409 9 2",
                "precondition_failed 412 9 4",
                "capability_missing 422 12 4",
                "host_capability_missing 422 12 4",
                "wrong_provider 422 12 4",
                "spacesd_not_available 502 14 4",
                "limit_exceeded 429 8 4",
                "timeout 504 4 4",
                "cancelled 499 1 130",
                "stream 503 14 8",
                "transfer_failed 422 9 7",
                "teleport_refused 403 9 6",
                "relay 502 14 4",
                "env 502 13 4",
                "mcp 502 13 4",
                "io 500 13 1",
                "json 502 13 4",
                "internal 500 13 1",
            ]
        );
    }

    #[test]
    fn every_cause_is_in_the_list() {
        for (at, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, at, "{cause:?}");
        }
        assert_eq!(Cause::ALL.len(), Cause::ManifestChanged as usize + 1);
    }

    #[test]
    fn only_the_three_kinds_with_causes_leave_retry_to_them() {
        for kind in Kind::ALL {
            let by_cause =
                matches!(kind, Kind::Stream | Kind::TransferFailed | Kind::TeleportRefused);
            assert_eq!(kind.spec().retry == Retry::ByCause, by_cause, "{kind:?}");
        }
    }

    #[test]
    fn a_cause_decides_status_and_retry() {
        let closed = Error::because(Cause::SessionClosed, "session `m1` is closed");
        assert_eq!((closed.kind(), closed.http_status()), (Kind::Stream, 410));
        assert!(!closed.report().retryable);
        assert!(Error::because(Cause::GuestOffline, "x").report().retryable);
    }

    #[test]
    fn an_error_of_ours_comes_through_io_as_it_was() {
        let ours = Error::because(Cause::CorruptBundle, "the bundle ends early");
        let back = Error::from(std::io::Error::other(ours));
        assert_eq!(back.cause(), Some(Cause::CorruptBundle));
        let other = Error::from(std::io::Error::other("a disk failed"));
        assert_eq!((other.kind(), other.to_string()), (Kind::Io, "a disk failed".to_owned()));
    }

    #[test]
    fn every_report_says_what_to_do_next() {
        let hint = |error: Error| error.report().hint.unwrap();
        for kind in Kind::ALL {
            assert_eq!(hint(Error::new(kind, "x")), kind.remedy());
        }
        for cause in Cause::ALL {
            assert_eq!(hint(Error::because(cause, "x")), cause.remedy());
        }
        assert_eq!(hint(Error::new(Kind::Io, "x").hint("Do this")), "Do this");
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(hint(Error::new(Kind::NotFound, "x").source(missing())), "Check the path");
        let inner = Error::new(Kind::Io, "y").source(missing());
        assert_eq!(hint(Error::new(Kind::Io, "x").source(inner)), "Check the path");
    }

    #[test]
    fn a_report_carries_the_whole_chain() {
        let error = Error::because(Cause::DigestMismatch, "`notes.md` hashed to another digest")
            .with("path", "notes.md")
            .hint("Send it again")
            .operation("send_file")
            .source(std::io::Error::other("short read"));
        let json = serde_json::to_value(error.report()).unwrap();
        assert_eq!(json["kind"], "transfer_failed");
        assert_eq!(json["cause"], "digest_mismatch");
        assert_eq!(json["context"]["path"], "notes.md");
        assert_eq!(json["causes"][0], "short read");
        assert_eq!(json["retryable"], true);
        assert_eq!(json["disposition"], "not_dispatched");
    }
}
