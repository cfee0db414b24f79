//! Why a media connection ends, as a number both sides know.

use spaceport_types::{Cause, Error, Kind};

/// The close code of a media socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum CloseCode {
    /// Either side is done (RFC 6455 §7.4.1).
    Normal = 1000,
    /// A control message could not be read.
    Malformed = 4400,
    /// The ticket is invalid, or the token it was minted under has been replaced.
    Unauthenticated = 4401,
    /// The session was closed or has expired.
    SessionClosed = 4404,
    /// The viewer did not answer pings.
    Unresponsive = 4408,
    /// The display or window is gone. A `lifecycle` message has said so before.
    TargetGone = 4410,
    /// The session has as many viewers as it may have.
    TooManyViewers = 4429,
    /// A fault of the server.
    Internal = 4500,
}

impl CloseCode {
    /// Every code, in ascending order.
    pub const ALL: [Self; 8] = [
        Self::Normal,
        Self::Malformed,
        Self::Unauthenticated,
        Self::SessionClosed,
        Self::Unresponsive,
        Self::TargetGone,
        Self::TooManyViewers,
        Self::Internal,
    ];

    /// The number in a WebSocket Close frame.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The code with that number.
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }

    /// The application error code of a QUIC connection: the three digits of a 4xxx code read as
    /// hexadecimal, and 0 for a normal end.
    pub const fn quic(self) -> u32 {
        match self {
            Self::Normal => 0,
            Self::Malformed => 0x400,
            Self::Unauthenticated => 0x401,
            Self::SessionClosed => 0x404,
            Self::Unresponsive => 0x408,
            Self::TargetGone => 0x410,
            Self::TooManyViewers => 0x429,
            Self::Internal => 0x500,
        }
    }

    /// The reason phrase for the Close frame.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Normal => "done",
            Self::Malformed => "malformed control message",
            Self::Unauthenticated => "ticket is not valid",
            Self::SessionClosed => "session is closed",
            Self::Unresponsive => "no answer to pings",
            Self::TargetGone => "target is gone",
            Self::TooManyViewers => "too many viewers",
            Self::Internal => "internal error",
        }
    }

    /// The code with which a connection ends because of `error`.
    pub fn for_error(error: &Error) -> Self {
        match (error.cause(), error.kind()) {
            (Some(Cause::TicketExpired), _) | (_, Kind::Unauthenticated) => Self::Unauthenticated,
            (Some(Cause::SessionClosed), _) | (_, Kind::NotFound) => Self::SessionClosed,
            (Some(Cause::TargetGone), _) => Self::TargetGone,
            (Some(Cause::TooManyViewers), _) | (_, Kind::LimitExceeded) => Self::TooManyViewers,
            (_, Kind::InvalidArgument | Kind::Json) => Self::Malformed,
            (_, Kind::Timeout) => Self::Unresponsive,
            (_, Kind::Cancelled) => Self::Normal,
            _ => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_contract_and_quic_mirrors_them() {
        let codes: Vec<_> = CloseCode::ALL.iter().map(|code| code.code()).collect();
        assert_eq!(codes, [1000, 4400, 4401, 4404, 4408, 4410, 4429, 4500]);
        for code in CloseCode::ALL {
            assert_eq!(CloseCode::from_code(code.code()), Some(code));
            // RFC 6455 §5.5: a control frame carries 125 bytes, two of which are the code.
            assert!(code.reason().len() <= 123, "{code:?}");
            if code != CloseCode::Normal {
                assert_eq!(format!("{:x}", code.quic()), (code.code() - 4000).to_string());
            }
        }
        assert_eq!(CloseCode::from_code(4402), None);
    }

    #[test]
    fn an_error_ends_a_connection_with_the_code_of_its_cause() {
        let by_cause = |cause| CloseCode::for_error(&Error::because(cause, "x"));
        assert_eq!(by_cause(Cause::TicketExpired), CloseCode::Unauthenticated);
        assert_eq!(by_cause(Cause::SessionClosed), CloseCode::SessionClosed);
        assert_eq!(by_cause(Cause::TargetGone), CloseCode::TargetGone);
        assert_eq!(by_cause(Cause::TooManyViewers), CloseCode::TooManyViewers);
        assert_eq!(by_cause(Cause::EncoderFailed), CloseCode::Internal);
        let malformed = Error::from(crate::DecodeError::Truncated { needed: 8, received: 1 });
        assert_eq!(CloseCode::for_error(&malformed), CloseCode::Malformed);
    }
}
