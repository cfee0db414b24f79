//! Waking a thread that waits in `poll`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::{EventfdFlags, Timespec};
use spaceport_types::{Error, Kind, Result};

/// Wakes one thread from any other: a descriptor that is readable once somebody called.
#[derive(Debug)]
pub(crate) struct EventFd {
    fd: OwnedFd,
}

impl EventFd {
    pub(crate) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = rustix::event::eventfd(0, flags).map_err(|error| {
            Error::new(Kind::Io, format!("no descriptor for a thread: {error}")).source(error)
        })?;
        Ok(Self { fd })
    }

    /// Forgets earlier calls. Whoever calls does so after what it changed, so emptying the
    /// descriptor before looking at that loses nothing.
    pub(crate) fn empty(&self) {
        // Nothing to read means nobody called.
        let _count = rustix::io::read(&self.fd, &mut [0; 8]);
    }

    pub(crate) fn call(&self) {
        // It can only be refused because the counter is full, and then the thread is awake anyway.
        let _written = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Wake for EventFd {
    fn wake(self: Arc<Self>) {
        self.call();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.call();
    }
}

/// A time to wait, as `poll` takes it.
pub(crate) fn timespec(time: std::time::Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}
