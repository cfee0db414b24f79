//! Messages at the beginning of a stream, or all along one.

use std::marker::PhantomData;

use spaceport_types::{Error, Kind, Result};
use spaceport_wire::packet::Lengths;
use spaceport_wire::relay::{Head, MAX_TEXT, Message};
use spaceport_wire::stream;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Reads what a stream is for, and nothing of what follows.
///
/// # Errors
///
/// `invalid_argument` for what is no head, `io` when it does not come.
pub async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<Head> {
    let mut prefix = [0; Lengths::SIZE];
    stream.read_exact(&mut prefix).await?;
    let lengths = Lengths::parse(prefix)?;
    if lengths.header > MAX_TEXT || lengths.payload > 0 {
        return Err(Error::new(Kind::InvalidArgument, "the head of a stream is too long"));
    }
    let mut text = vec![0; lengths.header];
    stream.read_exact(&mut text).await?;
    let text = String::from_utf8(text)
        .map_err(|_| Error::new(Kind::InvalidArgument, "the head of a stream is not text"))?;
    Ok(Head::parse(&text)?)
}

/// Writes a head or another message.
///
/// # Errors
///
/// `io` when the stream is over.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &impl Message) -> Result<()> {
    stream.write_all(&stream::frame(&message.to_json())).await?;
    Ok(stream.flush().await?)
}

/// Reads messages of one kind, one after the other.
#[derive(Debug)]
pub struct Reader<R, M> {
    stream: R,
    reader: stream::Reader,
    message: PhantomData<fn() -> M>,
}

impl<R: AsyncRead + Unpin, M: Message> Reader<R, M> {
    /// Reads them from `stream`.
    pub fn new(stream: R) -> Self {
        Self { stream, reader: stream::Reader::new(MAX_TEXT), message: PhantomData }
    }

    /// What they are read from, to write to it or to end it.
    pub fn get_mut(&mut self) -> &mut R {
        &mut self.stream
    }

    /// The next one; `None` at the end. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for what is no such message, `io` when the stream is broken.
    pub async fn next(&mut self) -> Result<Option<M>> {
        let mut piece = [0; 4096];
        loop {
            if let Some(text) = self.reader.message()? {
                return Ok(Some(M::parse(&text)?));
            }
            match self.stream.read(&mut piece).await? {
                0 if self.reader.is_midway() => {
                    return Err(Error::new(Kind::Io, "the stream ends within a message"));
                }
                0 => return Ok(None),
                read => self.reader.push(&piece[..read]),
            }
        }
    }
}
