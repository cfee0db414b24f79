//! From a packet of somebody unknown to a viewer with a ticket.
//!
//! All of it has one deadline. What a client costs before it has shown a ticket is bounded by the number of
//! those who are in here.

use std::time::Duration;

use quinn::Incoming;
use spaceport_types::{Error, Kind, Result};
use spaceport_wire::attach::{self, Attach, Video};
use spaceport_wire::close::CloseCode;
use spaceport_wire::stream::Reader;
use tokio::time::{Instant, timeout_at};
use web_transport_quinn::{Request, Session};

use super::connection::{Connection, close};
use super::frames::CONTROL_PRIORITY;
use super::link::Links;
use crate::door::{Media, Pass, machine};

/// Takes a client in, or sends it away. One that is no viewer goes to `links`.
pub(super) async fn open(
    incoming: Incoming,
    media: &Media,
    links: Option<&Links>,
    patience: Duration,
) -> Option<(Pass, Connection)> {
    let deadline = Instant::now() + patience;
    let connecting = incoming.accept().ok()?;
    let connection = match timeout_at(deadline, connecting).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::debug!(%error, "no handshake");
            return None;
        }
        Err(_) => return None,
    };
    if let Some(links) = links
        && links.takes(alpn(&connection).as_deref())
    {
        links.take(connection);
        return None;
    }
    let opened = timeout_at(deadline, async {
        let Coming { name, session, video, machine } = session(&connection).await.ok()??;
        Some((name, video, attach(&session, machine, media).await, session))
    });
    match opened.await {
        Ok(Some((name, default, Ok(attached), session))) => {
            let Attached { pass, streams, reader, video } = attached;
            let video = video.unwrap_or(default);
            Some((pass, Connection::new(name, session, streams, reader, video)))
        }
        Ok(Some((_, _, Err(error), session))) => {
            tracing::debug!(%error, "not attached");
            close(&session, CloseCode::for_error(&error)).await;
            None
        }
        Ok(None) => None,
        Err(_) => {
            tracing::debug!("a client that said nothing");
            let code = CloseCode::Unauthenticated;
            connection.close(code.quic().into(), code.reason().as_bytes());
            None
        }
    }
}

/// What a connection turns out to be.
struct Coming {
    name: &'static str,
    session: Session,
    /// How it carries video unless the client says otherwise.
    video: Video,
    /// The machine that the client has named already.
    machine: Option<String>,
}

async fn session(
    connection: &quinn::Connection,
) -> Result<Option<Coming>, web_transport_quinn::ServerError> {
    if alpn(connection).as_deref() == Some(super::ALPN.as_bytes()) {
        let session = Session::raw(connection.clone());
        return Ok(Some(Coming { name: "quic", session, video: Video::Datagrams, machine: None }));
    }
    // The handshake agrees on one of two names, and it was not the other.
    let request = Request::accept(connection.clone()).await?;
    let (machine, path) = machine(request.url.path());
    if path != super::PATH {
        request.reject(http::StatusCode::NOT_FOUND).await?;
        return Ok(None);
    }
    let machine = machine.map(str::to_owned);
    let session = request.ok().await?;
    Ok(Some(Coming { name: "webtransport", session, video: Video::Streams, machine }))
}

fn alpn(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let data = connection.handshake_data()?;
    data.downcast::<quinn::crypto::rustls::HandshakeData>().ok()?.protocol
}

struct Attached {
    pass: Pass,
    streams: (web_transport_quinn::SendStream, web_transport_quinn::RecvStream),
    reader: Reader,
    video: Option<Video>,
}

/// Reads the ticket.
async fn attach(session: &Session, machine: Option<String>, media: &Media) -> Result<Attached> {
    let gone = || Error::new(Kind::Cancelled, "the client left");
    let (send, mut receive) = session.accept_bi().await.map_err(|_| gone())?;
    send.set_priority(CONTROL_PRIORITY).map_err(|_| gone())?;
    let mut reader = Reader::new(attach::MAX_TEXT);
    let text = loop {
        match reader.message() {
            Ok(Some(text)) => break text,
            Ok(None) => {}
            Err(error) => return Err(no_ticket().source(error)),
        }
        // No more than the ticket: what follows may be longer than a ticket is.
        match receive.read_chunk(attach::MAX_TEXT, true).await {
            Ok(Some(piece)) => reader.push(&piece.bytes),
            Ok(None) => return Err(no_ticket()),
            Err(_) => return Err(gone()),
        }
    };
    let Attach { ticket, video, machine: said } =
        Attach::parse(&text).map_err(|error| no_ticket().source(error))?;
    let machine = machine.or(said);
    let pass = media.redeem(machine.as_deref(), Some(ticket.expose())).await?;
    let reader = reader.of_length(spaceport_wire::control::MAX_TEXT);
    Ok(Attached { pass, streams: (send, receive), reader, video })
}

fn no_ticket() -> Error {
    Error::new(Kind::Unauthenticated, "the first message is no ticket")
        .hint("Send the ticket first, as `docs/wire.md` has it")
}
