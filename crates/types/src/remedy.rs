//! What to do about an error that does not say so itself.

use std::io::ErrorKind;

use crate::{Cause, Kind};

impl Kind {
    /// What to do about it, as far as the error's own hint does not say it better.
    #[rustfmt::skip]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::InvalidArgument => "Mend the arguments that `issues` names.",
            Self::ConfirmationRequired => "Ask a person, and call again with the flag that the hint names.",
            Self::PromptBlocked => "Answer it by the flag that the hint names, or run the command on a terminal.",
            Self::Unauthenticated => "Give the Space's token; for a ticket, open the stream again.",
            Self::PermissionDenied => "Ask whoever runs the Space; `serve --files-root` says which files are reached.",
            Self::NotFound => "List what there is: `list_spaces`, `list_space_windows`.",
            Self::AmbiguousSandbox => "Use one of the full ids in `context.ids`.",
            Self::PreconditionFailed => "Read the state again, then decide.",
            Self::CapabilityMissing => "`stream_status` says why in `limitations`.",
            Self::HostCapabilityMissing => "Install what the hint names.",
            Self::WrongProvider => "Use `remove_space`.",
            Self::SpacesdNotAvailable => "Check that `spaceport serve` runs there, and try again.",
            Self::LimitExceeded => "Give something back, or wait `retry_after_ms`.",
            Self::Timeout => "Read the state first: it may have happened.",
            Self::Cancelled => "Nothing, unless it is wanted after all.",
            Self::Stream => "The `cause` says what to do.",
            Self::TransferFailed => "The `cause` says what to do.",
            Self::TeleportRefused => "The `cause` says what to do.",
            Self::Relay => "See that the machine runs `spaceport serve --relay`, and try again.",
            Self::Env => "Read `message`; it is the Space's.",
            Self::Mcp => "Look at the log of the agent's host.",
            Self::Io => "Mend what `caused by` names.",
            Self::Json => "Mend the file that `context.path` names; for a peer, check what answers there.",
            Self::Internal => "Report it, with the message and the log.",
        }
    }
}

impl Cause {
    /// What to do about it, as far as the error's own hint does not say it better.
    #[rustfmt::skip]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::UdpBlocked => "Use the media socket, or open the ports.",
            Self::RelayUnreachable => "Try again later, or reach the Space without it.",
            Self::IceFailed => "Open the WebRTC port, give `serve --advertise`, or name a TURN server.",
            Self::DtlsFailed => "Connect again.",
            Self::CodecUnavailable => "Use a player that takes H.264; `spaceport doctor` there lists what it has.",
            Self::NoDecoder => "Use another browser or player.",
            Self::EncoderFailed => "Try again; `spaceport doctor` there says which work.",
            Self::CaptureFailed => "See that its X server runs, then try again.",
            Self::DisplayBlanked => "Wake or unlock it.",
            Self::Minimized => "Restore it, then open the stream again.",
            Self::WindowUnavailable => "Bring it to the desktop that is shown.",
            Self::TargetGone => "List the windows again.",
            Self::SessionClosed => "Open the stream again.",
            Self::TicketExpired => "Open the stream again, and connect sooner.",
            Self::ViewerTooSlow => "Ask for less with `--fps`, or for a window instead of the desktop.",
            Self::TooManyViewers => "Wait `retry_after_ms`, or open another session.",
            Self::GuestOffline => "Start it, then try again.",
            Self::PublishRefused => "See its address and its settings; the error says what it answered.",
            Self::PublishUnavailable => "Try again once it is up, after `retry_after_ms` if the error has that.",
            Self::DigestMismatch => "Send it again, once nothing writes to it.",
            Self::SizeMismatch => "Send it again, once nothing writes to it.",
            Self::PathEscape => "Name a path within it, without `..`.",
            Self::NameUnusable => "Rename it.",
            Self::DiskFull => "Make room where it should go.",
            Self::Permission => "Give the Space's user that right, or choose another place.",
            Self::Interrupted => "Start it again.",
            Self::PeerGone => "Try again once it is back.",
            Self::Conflict => "Choose another name, or take it away.",
            Self::CorruptBundle => "Send it again.",
            Self::NotAcknowledged => "Ask the person, then set `acknowledge_sensitive`.",
            Self::Declined => "Do not ask again unless they say so.",
            Self::Expired => "Ask again, with somebody there.",
            Self::NothingSelected => "Choose items of `teleport_manifest`, or leave `include` out.",
            Self::NotImportable => "Choose what `receiver.supported_apps` of `teleport_manifest` has.",
            Self::AppRunning => "Close it, or let it be closed.",
            Self::ProfileNewer => "Update the app there.",
            Self::KeyUnavailable => "Unlock the keyring of this machine.",
            Self::RelayUnsealed => "Use a version of spaceport there that has one, or go there without the relay.",
            Self::ManifestChanged => "Read the manifest again, and ask again.",
        }
    }
}

/// What to do about what the system said.
pub(crate) fn of_io(error: &std::io::Error) -> Option<&'static str> {
    Some(match error.kind() {
        ErrorKind::NotFound => "Check the path",
        ErrorKind::PermissionDenied => "Ask for the right to use it, or name another place",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "Make room there, then try again",
        ErrorKind::ReadOnlyFilesystem => "Name a place that can be written to",
        ErrorKind::NotADirectory => "A file stands where a folder has to be: name another place",
        ErrorKind::IsADirectory => "It is a folder: name a file",
        ErrorKind::InvalidFilename => "Use a shorter name",
        ErrorKind::AddrInUse => "Choose another port, or 0 for a free one",
        _ => return None,
    })
}
