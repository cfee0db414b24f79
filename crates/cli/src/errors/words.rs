//! What each kind and cause of error asks of whoever reads it, and which verbs can fail with it.

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
    let (meaning, remedy, verbs) = match kind {
        Kind::InvalidArgument => ("The request is malformed or out of range.", "Mend the arguments that `issues` names.", "every verb that takes arguments"),
        Kind::ConfirmationRequired => ("It takes something away, and nobody confirmed it.", "Ask a person, and call again with the flag that the hint names.", "`remove_space` of the command line"),
        Kind::PromptBlocked => ("A question needs an answer, and nobody is there to ask.", "Answer it by the flag that the hint names, or run the command on a terminal.", "`approvals` and `teleport` of the command line"),
        Kind::Unauthenticated => ("The token or ticket is missing, wrong or over.", "Give the Space's token; for a ticket, open the stream again.", "every verb that names a Space, and everything that a gateway serves"),
        Kind::PermissionDenied => ("The caller is known and may not do this.", "Ask whoever runs the Space; `serve --files-root` says which files are reached.", "`upload`, `download`, `space_write`, `/mcp`"),
        Kind::NotFound => ("Nothing has that name.", "List what there is: `list_spaces`, `list_space_windows`.", ANY),
        Kind::AmbiguousSandbox => ("The name fits more than one Space.", "Use one of the full ids in `context.ids`.", ANY),
        Kind::PreconditionFailed => ("What the request was based on has changed.", "Read the state again, then decide.", "`stream_endpoint`, the calls of a transfer, `list_spaces`"),
        Kind::CapabilityMissing => ("This Space cannot do it.", "`stream_status` says why in `limitations`.", "every verb that names a Space, and every call of the contract that is not served"),
        Kind::HostCapabilityMissing => ("This machine cannot do it.", "Install what the hint names.", "`teleport_manifest`, `teleport_app`, `serve`"),
        Kind::WrongProvider => ("The Space is of another kind than the verb is for.", "Use `remove_space`.", "`relay_unregister_space`"),
        Kind::SpacesdNotAvailable => ("No Space answers at that address.", "Check that `spaceport serve` runs there, and try again.", ANY),
        Kind::LimitExceeded => ("A limit is reached; `context.limit` says which.", "Give something back, or wait `retry_after_ms`.", "`stream_endpoint`, `send_file`, `upload`, `download`, `/mcp`"),
        Kind::Timeout => ("It took too long.", "Read the state first: it may have happened.", ANY),
        Kind::Cancelled => ("The caller took the request back.", "Nothing, unless it is wanted after all.", "`send_file`, `upload`, `download`, `space_write`, and every question of the command line"),
        Kind::Stream => ("A stream could not be opened, or did not go on.", "The `cause` says what to do.", WATCH),
        Kind::TransferFailed => ("A transfer did not complete, and nothing of it was published.", "The `cause` says what to do.", FILES),
        Kind::TeleportRefused => ("A teleport was not allowed, and nothing has moved.", "The `cause` says what to do.", TELEPORT),
        Kind::Relay => ("The relay did not do its part, or the machine is not connected to it.", "See that the machine runs `spaceport serve --relay`, and try again.", "every verb that names a Space behind a relay"),
        Kind::Env => ("The Space failed, in a way that has no kind of its own here.", "Read `message`; it is the Space's.", ANY),
        Kind::Mcp => ("An MCP peer failed.", "Look at the log of the agent's host.", "`mcp`"),
        Kind::Io => ("A file, socket or process of this machine failed.", "Mend what `caused by` names.", "every verb that uses files or ports of this machine"),
        Kind::Json => ("What a peer or a file says cannot be read.", "Mend the file that `context.path` names; for a peer, check what answers there.", "every verb that reads the list of Spaces; `open`"),
        Kind::Internal => ("A bug in spaceport.", "Report it, with the message and the log.", "every verb"),
        _ => ("A kind of a later spaceport.", "Update spaceport.", "none yet"),
    };
    Words { meaning, remedy, verbs }
}

#[rustfmt::skip]
pub(crate) const fn of_cause(cause: Cause) -> Words {
    let (meaning, remedy, verbs) = match cause {
        Cause::UdpBlocked => ("No UDP packet came through.", "Use the media socket, or open the ports.", WATCH),
        Cause::RelayUnreachable => ("The relay of the Space cannot be reached.", "Try again later, or reach the Space without it.", "`stream_endpoint`, `stream_space_window`, `open_space_viewer`, the viewer's page"),
        Cause::IceFailed => ("WebRTC found no path between the two.", "Open the WebRTC port, give `serve --advertise`, or name a TURN server.", WATCH),
        Cause::DtlsFailed => ("WebRTC could not agree on keys.", "Connect again.", WATCH),
        Cause::CodecUnavailable => ("The Space has no encoder for any codec that the viewer takes.", "Use a player that takes H.264; `spaceport doctor` there lists what it has.", WATCH),
        Cause::NoDecoder => ("The viewer has no decoder for any codec of the Space.", "Use another browser or player.", WATCH),
        Cause::EncoderFailed => ("The encoder failed.", "Try again; `spaceport doctor` there says which work.", OPEN),
        Cause::CaptureFailed => ("The desktop cannot be read.", "See that its X server runs, then try again.", OPEN),
        Cause::DisplayBlanked => ("The display is switched off or locked.", "Wake or unlock it.", OPEN),
        Cause::Minimized => ("The window is minimized.", "Restore it, then open the stream again.", OPEN),
        Cause::WindowUnavailable => ("The window is there, but not shown.", "Bring it to the desktop that is shown.", OPEN),
        Cause::TargetGone => ("The display or window is gone.", "List the windows again.", WATCH),
        Cause::SessionClosed => ("The media session was closed.", "Open the stream again.", WATCH),
        Cause::TicketExpired => ("The ticket's time is over.", "Open the stream again, and connect sooner.", WATCH),
        Cause::ViewerTooSlow => ("The machine that plays the stream cannot decode it in time.", "Ask for less with `--fps`, or for a window instead of the desktop.", "`stream --play`"),
        Cause::TooManyViewers => ("The session has as many viewers as it may have.", "Wait `retry_after_ms`, or open another session.", WATCH),
        Cause::GuestOffline => ("The machine is not connected to the relay.", "Start it, then try again.", "watching through a relay"),
        Cause::PublishRefused => ("The endpoint that the stream was to be published to does not take it.", "See its address and its settings; the error says what it answered.", "`publish`"),
        Cause::PublishUnavailable => ("The endpoint that the stream is published to cannot be reached, or not take it now.", "Try again once it is up, after `retry_after_ms` if the error has that.", "`publish`"),
        Cause::DigestMismatch => ("What arrived does not have the SHA-256 that was promised.", "Send it again, once nothing writes to it.", FILES),
        Cause::SizeMismatch => ("More or fewer bytes arrived than were promised.", "Send it again, once nothing writes to it.", FILES),
        Cause::PathEscape => ("A path leads out of its folder.", "Name a path within it, without `..`.", FILES),
        Cause::NameUnusable => ("A name cannot be used where it should go.", "Rename it.", FILES),
        Cause::DiskFull => ("No space is left.", "Make room where it should go.", FILES),
        Cause::Permission => ("The destination may not be written.", "Give the Space's user that right, or choose another place.", SENDS),
        Cause::Interrupted => ("The transfer stopped half-way.", "Start it again.", "`download`, `teleport_app`"),
        Cause::PeerGone => ("The other machine went away.", "Try again once it is back.", TELEPORT),
        Cause::Conflict => ("Something of that name is there already.", "Choose another name, or take it away.", "`upload`, `download`, `send_file`"),
        Cause::CorruptBundle => ("What arrived is damaged.", "Send it again.", "`send_file`, `teleport_app`"),
        Cause::NotAcknowledged => ("Items that can sign someone in were chosen, and not acknowledged.", "Ask the person, then set `acknowledge_sensitive`.", TELEPORT),
        Cause::Declined => ("A person said no.", "Do not ask again unless they say so.", TELEPORT),
        Cause::Expired => ("Nobody answered in time.", "Ask again, with somebody there.", TELEPORT),
        Cause::NothingSelected => ("The selection is empty.", "Choose items of `teleport_manifest`, or leave `include` out.", TELEPORT),
        Cause::NotImportable => ("The destination cannot take this in.", "Choose what `receiver.supported_apps` of `teleport_manifest` has.", TELEPORT),
        Cause::AppRunning => ("The app runs, and may not be closed.", "Close it, or let it be closed.", TELEPORT),
        Cause::ProfileNewer => ("The profile is newer than the app at the destination.", "Update the app there.", TELEPORT),
        Cause::KeyUnavailable => ("The key that protects the data cannot be had.", "Unlock the keyring of this machine.", TELEPORT),
        Cause::RelayUnsealed => ("A relay is between, and the Space has no key that anything could be sealed to.", "Use a version of spaceport there that has one, or go there without the relay.", "`send_file`, `teleport_app`, and `spaceport send` and `download`"),
        Cause::ManifestChanged => ("What would move has changed since it was agreed to.", "Read the manifest again, and ask again.", TELEPORT),
        _ => ("A cause of a later spaceport.", "Update spaceport.", "none yet"),
    };
    Words { meaning, remedy, verbs }
}
