//! What each kind and cause of error means, and which verbs can fail with it.

use spaceport_types::{Cause, Kind};

/// What there is to say besides the table in `spaceport-types`.
pub(crate) struct Words {
    /// What happened.
    pub(crate) meaning: &'static str,
    /// What to do about it, as far as the error's own hint does not say it better.
    pub(crate) remedy: &'static str,
    /// Who can fail with it, by the names that `operation` has.
    pub(crate) verbs: &'static str,
}

/// Every verb that asks a Space.
const ANY: &str = "every verb that names a Space";

/// Attaching to a media session.
const WATCH: &str =
    "`/media`, `/whep`, QUIC and WebTransport, and `stream --play`, `--snapshot` and `--record`";

const OPEN: &str = "`stream_endpoint`, `stream_space_window`, `open_space_viewer`";

const FILES: &str = "`send_file`, `upload`, `download`, `space_write`, and `spaceport send`";

const SENDS: &str = "`send_file`, `upload`, `space_write`, `teleport_app`";

const TELEPORT: &str = "`teleport_app`";

#[rustfmt::skip]
pub(crate) const fn of_kind(kind: Kind) -> Words {
    let (meaning, verbs) = match kind {
        Kind::InvalidArgument => ("The request is malformed or out of range.", "every verb that takes arguments"),
        Kind::ConfirmationRequired => ("It takes something away, and nobody confirmed it.", "`remove_space` of the command line"),
        Kind::PromptBlocked => ("A question needs an answer, and nobody is there to ask.", "`approvals` and `teleport` of the command line"),
        Kind::Unauthenticated => ("The token or ticket is missing, wrong or over.", "every verb that names a Space, and everything that a gateway serves"),
        Kind::PermissionDenied => ("The caller is known and may not do this.", "`upload`, `download`, `space_write`, `/mcp`"),
        Kind::NotFound => ("Nothing has that name.", ANY),
        Kind::AmbiguousSandbox => ("The name fits more than one Space.", ANY),
        Kind::PreconditionFailed => ("What the request was based on has changed.", "`stream_endpoint`, the calls of a transfer, `list_spaces`"),
        Kind::CapabilityMissing => ("This Space cannot do it.", "every verb that names a Space, and every call of the contract that is not served"),
        Kind::HostCapabilityMissing => ("This machine cannot do it.", "`teleport_manifest`, `teleport_app`, `serve`"),
        Kind::WrongProvider => ("The Space is of another kind than the verb is for.", "`relay_unregister_space`"),
        Kind::SpacesdNotAvailable => ("No Space answers at that address.", ANY),
        Kind::LimitExceeded => ("A limit is reached; `context.limit` says which.", "`stream_endpoint`, `send_file`, `upload`, `download`, `/mcp`"),
        Kind::Timeout => ("It took too long.", ANY),
        Kind::Cancelled => ("The caller took the request back.", "`send_file`, `upload`, `download`, `space_write`, and every question of the command line"),
        Kind::Stream => ("A stream could not be opened, or did not go on.", WATCH),
        Kind::TransferFailed => ("A transfer did not complete, and nothing of it was published.", FILES),
        Kind::TeleportRefused => ("A teleport was not allowed, and nothing has moved.", TELEPORT),
        Kind::Relay => ("The relay did not do its part, or the machine is not connected to it.", "every verb that names a Space behind a relay"),
        Kind::Env => ("The Space failed, in a way that has no kind of its own here.", ANY),
        Kind::Mcp => ("An MCP peer failed.", "`mcp`"),
        Kind::Io => ("A file, socket or process of this machine failed.", "every verb that uses files or ports of this machine"),
        Kind::Json => ("What a peer or a file says cannot be read.", "every verb that reads the list of Spaces; `open`"),
        Kind::Internal => ("A bug in spaceport.", "every verb"),
        _ => ("A kind of a later spaceport.", "none yet"),
    };
    Words { meaning, remedy: kind.remedy(), verbs }
}

#[rustfmt::skip]
pub(crate) const fn of_cause(cause: Cause) -> Words {
    let (meaning, verbs) = match cause {
        Cause::UdpBlocked => ("No UDP packet came through.", WATCH),
        Cause::RelayUnreachable => ("The relay of the Space cannot be reached.", "`stream_endpoint`, `stream_space_window`, `open_space_viewer`, the viewer's page"),
        Cause::IceFailed => ("WebRTC found no path between the two.", WATCH),
        Cause::DtlsFailed => ("WebRTC could not agree on keys.", WATCH),
        Cause::CodecUnavailable => ("The Space has no encoder for any codec that the viewer takes.", WATCH),
        Cause::NoDecoder => ("The viewer has no decoder for any codec of the Space.", WATCH),
        Cause::EncoderFailed => ("The encoder failed.", OPEN),
        Cause::CaptureFailed => ("The desktop cannot be read.", OPEN),
        Cause::DisplayBlanked => ("The display is switched off or locked.", OPEN),
        Cause::Minimized => ("The window is minimized.", OPEN),
        Cause::WindowUnavailable => ("The window is there, but not shown.", OPEN),
        Cause::TargetGone => ("The display or window is gone.", WATCH),
        Cause::SessionClosed => ("The media session was closed.", WATCH),
        Cause::TicketExpired => ("The ticket's time is over.", WATCH),
        Cause::ViewerTooSlow => ("The machine that plays the stream cannot decode it in time.", "`stream --play`"),
        Cause::TooManyViewers => ("The session has as many viewers as it may have.", WATCH),
        Cause::GuestOffline => ("The machine is not connected to the relay.", "watching through a relay"),
        Cause::PublishRefused => ("The endpoint that the stream was to be published to does not take it.", "`publish`"),
        Cause::PublishUnavailable => ("The endpoint that the stream is published to cannot be reached, or not take it now.", "`publish`"),
        Cause::DigestMismatch => ("What arrived does not have the SHA-256 that was promised.", FILES),
        Cause::SizeMismatch => ("More or fewer bytes arrived than were promised.", FILES),
        Cause::PathEscape => ("A path leads out of its folder.", FILES),
        Cause::NameUnusable => ("A name cannot be used where it should go.", FILES),
        Cause::DiskFull => ("No space is left.", FILES),
        Cause::Permission => ("The destination may not be written.", SENDS),
        Cause::Interrupted => ("The transfer stopped half-way.", "`download`, `teleport_app`"),
        Cause::PeerGone => ("The other machine went away.", TELEPORT),
        Cause::Conflict => ("Something of that name is there already.", "`upload`, `download`, `send_file`"),
        Cause::CorruptBundle => ("What arrived is damaged.", "`send_file`, `teleport_app`"),
        Cause::NotAcknowledged => ("Items that can sign someone in were chosen, and not acknowledged.", TELEPORT),
        Cause::Declined => ("A person said no.", TELEPORT),
        Cause::Expired => ("Nobody answered in time.", TELEPORT),
        Cause::NothingSelected => ("The selection is empty.", TELEPORT),
        Cause::NotImportable => ("The destination cannot take this in.", TELEPORT),
        Cause::AppRunning => ("The app runs, and may not be closed.", TELEPORT),
        Cause::ProfileNewer => ("The profile is newer than the app at the destination.", TELEPORT),
        Cause::KeyUnavailable => ("The key that protects the data cannot be had.", TELEPORT),
        Cause::RelayUnsealed => ("A relay is between, and the Space has no key that anything could be sealed to.", "`send_file`, `teleport_app`, and `spaceport send` and `download`"),
        Cause::ManifestChanged => ("What would move has changed since it was agreed to.", TELEPORT),
        _ => ("A cause of a later spaceport.", "none yet"),
    };
    Words { meaning, remedy: cause.remedy(), verbs }
}
