//! Memory that the X server writes and we read. All of capture's `unsafe` is here.

#![expect(unsafe_code, reason = "memory shared with another process is mapped by hand")]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A read-only view of memory shared with the X server.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned, is not tied to the thread that made it, and hands out nothing but
// shared slices of plain bytes.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Makes `len` bytes of anonymous shared memory; the descriptor is for the X server.
    ///
    /// The size is sealed: whoever holds the descriptor cannot shrink the memory under us, which
    /// would turn our next read into a SIGBUS.
    pub(super) fn shared(len: usize) -> rustix::io::Result<(OwnedFd, Self)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("spaceport-frame", flags)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Self::of(&fd, len)?;
        Ok((fd, mapping))
    }

    /// Maps the first `len` bytes of a file. The caller vouches that it is at least that long and
    /// that nobody shortens it: it is the framebuffer of a server we started, in a directory that
    /// is ours alone.
    pub(super) fn of(fd: impl AsFd, len: usize) -> rustix::io::Result<Self> {
        // SAFETY: the kernel chooses the address, so no existing memory is affected.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { start, len })
    }

    /// The bytes.
    ///
    /// Another process writes them. They are only ever read as pixels, for which every value is
    /// valid: at worst a picture shows half of a change, and the damage that goes with the other
    /// half repairs it. Nothing is decided by a byte that is then read a second time.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` maps `len` readable bytes until `self` is dropped, and any bytes are
        // valid `u8`s. A write by the X server while the slice exists is outside Rust's memory
        // model, as with all shared memory; between a fence and the next request it does not
        // happen for a pixmap of ours, and readers of a framebuffer accept what is said above.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `mmap` returned, unmapped once; no slice outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap fails only for an address that was never mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_shows_what_the_other_side_writes_and_cannot_shrink() {
        let (fd, mapping) = Mapping::shared(5000).unwrap();
        assert_eq!(mapping.bytes().len(), 5000);
        rustix::io::pwrite(&fd, b"pixel", 4990).unwrap();
        assert_eq!(&mapping.bytes()[4990..4995], b"pixel");
        assert!(rustix::fs::ftruncate(&fd, 10).is_err());
    }
}
