//! Media on a stream of bytes to a relay, which has viewers of its own: both halves.
//!
//! The machine's half is a carrier like any other. Packets and messages share the stream, in the framing of
//! [`spaceport_wire::packet`]: what has no payload is a message. How far the stream is behind is told from what
//! the relay has: it says so of each frame, once somebody there can take the next one.

use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use spaceport_session::Attach;
use spaceport_types::{Bitrate, Error, Kind, Result};
use spaceport_wire::close::CloseCode;
use spaceport_wire::control::{ClientMessage, ServerMessage};
use spaceport_wire::packet::{self, Lengths};
use spaceport_wire::relay::Message as _;
use spaceport_wire::relay_media::Upward;
use spaceport_wire::stream;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split,
};
use tokio::time::{Instant, timeout};

use crate::client::{Received, closed};
use crate::door::Pass;
use crate::echo::Echo;
use crate::viewer::{self, Carrier, End, Frame, Heard, Room, Wanted};

/// How long a relay may leave what is sent unread. It reads always, so this is a matter of the network.
const UNREAD: Duration = Duration::from_secs(20);

/// How much of the stream is taken at a time.
const PIECE: usize = 4 << 10;

/// Serves a relay's viewers of one sort of pictures, who take so much or whatever there is, until either side
/// has had enough.
pub async fn serve<S>(pass: Pass, attach: Attach, beyond: Option<Bitrate>, stream: S)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let reader = stream::Reader::of_client();
    let carrier = Relay { stream, reader, echo: Echo::default() };
    viewer::serve(pass, Some(Wanted { attach, beyond }), carrier).await;
}

struct Relay<S> {
    stream: S,
    reader: stream::Reader,
    echo: Echo,
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Carrier for Relay<S> {
    fn name(&self) -> &'static str {
        "relay"
    }

    async fn say(&mut self, text: String) -> Result<(), End> {
        self.push(&[&stream::frame(&text)]).await
    }

    async fn show(&mut self, frame: Frame) -> Result<(), End> {
        let (began, bytes) = (Instant::now().into_std(), frame.packet.len());
        self.push(&[&frame.packet.header, &frame.packet.payload]).await?;
        drop(self.echo.sent(bytes, began));
        Ok(())
    }

    async fn hear(&mut self) -> Result<Heard, End> {
        loop {
            match self.reader.message() {
                Ok(Some(text)) => return Ok(self.heard(text)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "no message of a relay");
                    return Err(End::Close(CloseCode::Malformed));
                }
            }
            let mut piece = [0; PIECE];
            match self.stream.read(&mut piece).await {
                Ok(read @ 1..) => self.reader.push(&piece[..read]),
                Ok(0) | Err(_) => return Err(End::Gone),
            }
        }
    }

    fn room(&self, interval: Duration) -> Room {
        self.echo.room(interval, Instant::now().into_std())
    }

    /// The tunnel does that itself.
    async fn keep_alive(&mut self) -> Result<(), End> {
        Ok(())
    }

    async fn close(mut self, code: CloseCode) {
        // The lengths of no header and no payload, and the code: nothing else begins so.
        let [high, low] = code.code().to_be_bytes();
        let goodbye = async {
            self.stream.write_all(&[0, 0, 0, 0, 0, 0, 0, 0, high, low]).await?;
            self.stream.shutdown().await
        };
        drop(timeout(UNREAD, goodbye).await);
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Relay<S> {
    fn heard(&mut self, text: String) -> Heard {
        match Upward::parse(&text) {
            Ok(Upward::Arrived(number)) => {
                let arrived = self.echo.pong(&number.to_be_bytes(), Instant::now().into_std());
                arrived.map_or(Heard::Nothing, Heard::Arrived)
            }
            Ok(Upward::Beyond(kbps)) => Heard::Beyond(kbps.map(Bitrate::from_kbps)),
            Err(_) => Heard::Text(text),
        }
    }

    async fn push(&mut self, pieces: &[&[u8]]) -> Result<(), End> {
        let writing = async {
            for piece in pieces {
                self.stream.write_all(piece).await?;
            }
            self.stream.flush().await
        };
        match timeout(UNREAD, writing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(End::Gone),
        }
    }
}

/// The relay's half: what comes for its viewers.
pub struct Connection<S> {
    stream: ReadHalf<S>,
    control: WriteHalf<S>,
    read: BytesMut,
    unsent: BytesMut,
    /// Whether something was written that may not be on its way.
    unflushed: bool,
    /// The longest payload that is taken.
    longest: usize,
    /// Frames that have come.
    frames: u32,
}

/// What waits to be said; a machine that reads none of it for so long is not there.
const MAX_UNSENT: usize = 64 << 10;

/// How much is read at a time.
const READ: usize = 64 << 10;

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    /// Takes packets of at most `longest` bytes from `stream`.
    pub fn new(stream: S, longest: usize) -> Self {
        let (stream, control) = split(stream);
        let (read, unsent) = (BytesMut::new(), BytesMut::new());
        Self { stream, control, read, unsent, unflushed: false, longest, frames: 0 }
    }

    /// What comes next. Works on what is to be said meanwhile. Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Received {
        loop {
            match self.next() {
                Ok(Some(received)) => return received,
                Ok(None) => {}
                Err(error) => return Received::Closed(error),
            }
            let Self { stream, control, read, unsent, unflushed, .. } = self;
            read.reserve(READ);
            let busy = *unflushed || !unsent.is_empty();
            let write = async {
                if unsent.is_empty() {
                    control.flush().await?;
                    *unflushed = false;
                } else {
                    control.write_buf(unsent).await?;
                    *unflushed = true;
                }
                Ok(())
            };
            let step: std::io::Result<()> = tokio::select! {
                read = stream.read_buf(read) => match read {
                    Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                },
                written = write, if busy => written,
            };
            if let Err(error) = step {
                return Received::Closed(lost().source(error));
            }
        }
    }

    /// Says something, while [`Connection::recv`] is waited for.
    ///
    /// # Errors
    ///
    /// `relay` when the machine takes nothing.
    pub fn say(&mut self, message: &ClientMessage) -> Result<()> {
        self.push(&message.to_json())
    }

    /// Says that all frames that have come are there, and that somebody can take the next one.
    ///
    /// # Errors
    ///
    /// As [`Connection::say`].
    pub fn arrived(&mut self) -> Result<()> {
        self.push(&Upward::Arrived(self.frames).to_json())
    }

    /// Says what the viewers take.
    ///
    /// # Errors
    ///
    /// As [`Connection::say`].
    pub fn beyond(&mut self, rate: Option<Bitrate>) -> Result<()> {
        self.push(&Upward::Beyond(rate.map(Bitrate::kbps)).to_json())
    }

    fn push(&mut self, text: &str) -> Result<()> {
        if self.unsent.len() > MAX_UNSENT {
            return Err(lost());
        }
        self.unsent.extend_from_slice(&stream::frame(text));
        Ok(())
    }

    /// Takes the next whole thing out of what was read.
    fn next(&mut self) -> Result<Option<Received>> {
        loop {
            let Some(&prefix) = self.read.first_chunk() else { return Ok(None) };
            let lengths = Lengths::parse(prefix)?;
            if lengths.payload > self.longest {
                return Err(Error::new(Kind::Relay, "the machine sends a frame that is too long")
                    .with("length", lengths.payload)
                    .with("limit", self.longest)
                    .hint("Set a smaller `max_dimension`, or choose a compressed codec"));
            }
            if (lengths.header, lengths.payload) == (0, 0) {
                let Some(&code) = self.read[Lengths::SIZE..].first_chunk() else { return Ok(None) };
                let code = CloseCode::from_code(u16::from_be_bytes(code));
                return Err(code.map_or_else(lost, closed));
            }
            if self.read.len() < lengths.total() {
                return Ok(None);
            }
            let mut whole = self.read.split_to(lengths.total());
            if lengths.payload > 0 {
                self.frames = self.frames.wrapping_add(1);
                let (header, payload) = packet::decode(whole.freeze())?;
                return Ok(Some(Received::Packet(header, payload)));
            }
            whole.advance(Lengths::SIZE);
            let text = std::str::from_utf8(&whole)
                .map_err(|_| Error::new(Kind::InvalidArgument, "a message is not UTF-8"))?;
            if let Some(message) = ServerMessage::parse(text)? {
                return Ok(Some(Received::Control(message)));
            }
        }
    }
}

impl<S> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("frames", &self.frames).finish_non_exhaustive()
    }
}

fn lost() -> Error {
    Error::new(Kind::Io, "the stream from the machine was lost")
}
