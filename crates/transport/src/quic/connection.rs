//! One viewer's connection as a carrier: messages on the control stream, frames beside it.

use std::time::Duration;

use spaceport_wire::attach::Video;
use spaceport_wire::close::CloseCode;
use spaceport_wire::stream;
use tokio::time::timeout;
use web_transport_quinn::{RecvStream, SendStream, Session};

use super::frames::{Frames, Sent};
use crate::viewer::{Carrier, End, Frame, Heard, Room};

/// How long a client may leave a control message unread. As on a WebSocket; QUIC itself notices in less when
/// nobody is there at all.
const UNREAD: Duration = Duration::from_secs(60);

/// How much of the control stream is taken at a time.
const PIECE: usize = 4 << 10;

pub(super) struct Connection {
    name: &'static str,
    session: Session,
    control: SendStream,
    requests: RecvStream,
    reader: stream::Reader,
    frames: Frames,
}

impl Connection {
    /// `reader` may hold what came behind the ticket.
    pub(super) fn new(
        name: &'static str,
        session: Session,
        (control, requests): (SendStream, RecvStream),
        reader: stream::Reader,
        video: Video,
    ) -> Self {
        let frames = Frames::new(session.clone(), video);
        Self { name, session, control, requests, reader, frames }
    }
}

impl Carrier for Connection {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn say(&mut self, text: String) -> Result<(), End> {
        match timeout(UNREAD, self.control.write_all(&stream::frame(&text))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Gone),
            Err(_) => Err(End::Close(CloseCode::Unresponsive)),
        }
    }

    async fn show(&mut self, frame: Frame) -> Result<(), End> {
        self.frames.send(frame).await
    }

    async fn hear(&mut self) -> Result<Heard, End> {
        loop {
            match self.reader.message() {
                Ok(Some(text)) => return Ok(Heard::Text(text)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "no control message");
                    return Err(End::Close(CloseCode::Malformed));
                }
            }
            tokio::select! {
                piece = self.requests.read_chunk(PIECE, true) => match piece {
                    Ok(Some(piece)) => self.reader.push(&piece.bytes),
                    // A client that has ended its side has left.
                    Ok(None) | Err(_) => return Err(End::Gone),
                },
                sent = self.frames.sent() => return Ok(match sent {
                    Sent::On => Heard::Nothing,
                    Sent::Arrived(arrived) => Heard::Arrived(arrived),
                    Sent::Lost => Heard::Lost,
                }),
            }
        }
    }

    fn room(&self, interval: Duration) -> Room {
        self.frames.room(interval)
    }

    /// QUIC does that itself, and more often.
    async fn keep_alive(&mut self) -> Result<(), End> {
        Ok(())
    }

    async fn close(mut self, code: CloseCode) {
        // What was said last is to be read first: why it ends.
        let _ = self.control.finish();
        drop(timeout(GOODBYE, self.control.stopped()).await);
        close(&self.session, code).await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The library keeps a session open that nobody holds any more. One that is closed stays as it is.
        self.session.close(CloseCode::Normal.quic(), b"");
    }
}

/// Closes a session with the code of its carrier.
pub(super) async fn close(session: &Session, code: CloseCode) {
    session.close(code.quic(), code.reason().as_bytes());
    drop(timeout(GOODBYE, session.closed()).await);
}

/// How long the last words may take. A few round trips; a shutdown waits for it.
const GOODBYE: Duration = Duration::from_secs(1);
