//! What the client halves have in common.

use bytes::Bytes;
use spaceport_types::{Cause, Error, Kind};
use spaceport_wire::close::CloseCode;
use spaceport_wire::control::ServerMessage;
use spaceport_wire::packet;

/// What came from the server.
#[derive(Debug)]
pub enum Received {
    /// A control message. Those of a type that this version does not know are passed over.
    Control(ServerMessage),
    /// A frame: what it is, and its bytes.
    Packet(packet::Header<'static>, Bytes),
    /// The connection is over, and why. Nothing follows.
    Closed(Error),
}

/// Why a server closes with `code`, in our words.
pub(crate) fn closed(code: CloseCode) -> Error {
    let text = code.reason();
    match code {
        CloseCode::Normal => Error::new(Kind::Cancelled, text),
        CloseCode::Malformed => Error::new(Kind::InvalidArgument, text),
        CloseCode::Unauthenticated => {
            Error::new(Kind::Unauthenticated, text).hint("Open the stream again for a fresh ticket")
        }
        CloseCode::SessionClosed => Error::because(Cause::SessionClosed, text),
        CloseCode::Unresponsive => Error::new(Kind::Timeout, text),
        CloseCode::TargetGone => Error::because(Cause::TargetGone, text),
        CloseCode::TooManyViewers => Error::because(Cause::TooManyViewers, text),
        _ => Error::new(Kind::Internal, text),
    }
}
