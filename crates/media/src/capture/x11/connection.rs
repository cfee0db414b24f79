//! The connection to an X server, and how long its answers are waited for.
//!
//! A server may be stopped, or held by a program that grabbed it. Whoever waits for its answer waits for
//! ever then, and viewers are told nothing; so waiting ends, and what was asked for fails.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use x11rb::errors::{ConnectError, DisplayParsingError};
use x11rb::reexports::x11rb_protocol::parse_display::ParsedDisplay;
use x11rb::reexports::x11rb_protocol::xauth;
use x11rb::rust_connection::{DefaultStream, PollMode, RustConnection, Stream};
use x11rb::utils::RawFdContainer;

use crate::wake::timespec;

/// A connection that fails when the server does not answer in time.
pub(crate) type X11 = RustConnection<Patient>;

/// How long an answer is waited for: far longer than the slowest takes on a busy machine, and no longer
/// than a viewer should be without a picture or a reason.
const PATIENCE: Duration = Duration::from_secs(2);

/// Connects to the first of a display's addresses that answers.
pub(super) fn connect(display: &ParsedDisplay) -> std::result::Result<(X11, usize), ConnectError> {
    let mut refused = ConnectError::DisplayParsingError(DisplayParsingError::Unknown);
    for address in display.connect_instruction() {
        let (stream, (family, host)) = match DefaultStream::connect(&address) {
            Ok(connected) => connected,
            Err(error) => {
                refused = error.into();
                continue;
            }
        };
        // A server that asks for none is told none; one that asks says so by refusing.
        let authority = xauth::get_auth(family, &host, display.display).ok().flatten();
        let (name, data) = authority.unwrap_or_default();
        let screen = display.screen.into();
        let conn = X11::connect_to_stream_with_auth_info(Patient(stream), screen, name, data)?;
        return Ok((conn, screen));
    }
    Err(refused)
}

/// Whether a connection failed because the server said nothing for too long.
pub(super) fn is_silence(error: &Error) -> bool {
    error.kind() == ErrorKind::TimedOut
}

/// A stream whose reader and writer lose patience.
#[derive(Debug)]
pub(crate) struct Patient(DefaultStream);

impl AsFd for Patient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for Patient {
    fn poll(&self, mode: PollMode) -> Result<()> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, mode.readable());
        flags.set(PollFlags::OUT, mode.writable());
        let mut fds = [PollFd::new(&self.0, flags)];
        loop {
            return match rustix::event::poll(&mut fds, Some(&timespec(PATIENCE))) {
                Ok(0) => Err(Error::new(ErrorKind::TimedOut, "no answer")),
                Ok(_) => Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }

    fn read(&self, buf: &mut [u8], fds: &mut Vec<RawFdContainer>) -> Result<usize> {
        self.0.read(buf, fds)
    }

    fn write(&self, buf: &[u8], fds: &mut Vec<RawFdContainer>) -> Result<usize> {
        self.0.write(buf, fds)
    }

    fn write_vectored(&self, bufs: &[IoSlice<'_>], fds: &mut Vec<RawFdContainer>) -> Result<usize> {
        self.0.write_vectored(bufs, fds)
    }
}
