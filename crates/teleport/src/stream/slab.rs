//! The buffers that what is sent lies in, from where it is read to where the network takes it.
//!
//! A message is put together, sealed and sent in one place. Its buffer comes back when the network
//! has let go of it, so a transfer of any size goes through the same few.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::pack::PACK;
use super::talk::{FRONT, MAX_PADDING};
use crate::seal::line::OVERHEAD;

/// Bytes of a buffer: a full pack, the heads of its last records, and what sealing adds.
const CAPACITY: usize = FRONT + PACK + 4096 + MAX_PADDING + OVERHEAD;

/// Buffers that are kept. More are on their way only when the network takes its time.
const KEPT: usize = 8;

/// A message in its buffer.
#[derive(Debug)]
pub(super) struct Slab {
    /// All of it can be written to; what has been is up to `end`.
    bytes: BytesMut,
    end: usize,
}

impl Default for Slab {
    fn default() -> Self {
        Self { bytes: BytesMut::new(), end: FRONT }
    }
}

impl Slab {
    pub(super) fn push(&mut self, byte: u8) {
        if let [place] = self.grow(1) {
            *place = byte;
        }
    }

    /// The next `length` bytes. What is in them is to be written over.
    pub(super) fn grow(&mut self, length: usize) -> &mut [u8] {
        let start = self.end;
        self.end += length;
        if self.end > self.bytes.len() {
            self.bytes.resize(self.end.max(CAPACITY), 0);
        }
        self.bytes.get_mut(start..self.end).unwrap_or_default()
    }

    pub(super) const fn clear(&mut self) {
        self.end = FRONT;
    }

    /// The message itself.
    pub(super) fn body(&self) -> &[u8] {
        self.bytes.get(FRONT..self.end).unwrap_or_default()
    }

    /// All of it, with the place in front of the message.
    pub(super) fn whole(&mut self) -> &mut [u8] {
        if self.bytes.len() < self.end {
            self.bytes.resize(CAPACITY, 0);
        }
        self.bytes.get_mut(..self.end).unwrap_or_default()
    }
}

/// Buffers that are sent from, again and again.
#[derive(Debug, Default)]
pub(super) struct Pool {
    sent: VecDeque<Bytes>,
}

impl Pool {
    /// A buffer that nothing is in.
    pub(super) fn fresh(&mut self) -> Slab {
        match self.sent.pop_front().map(Bytes::try_into_mut) {
            Some(Ok(bytes)) => return Slab { bytes, end: FRONT },
            Some(Err(bytes)) => self.sent.push_front(bytes), // on its way
            None => {}
        }
        Slab::default()
    }

    /// Takes a message that is to be sent.
    pub(super) fn send(&mut self, slab: Slab) -> Bytes {
        let bytes = slab.bytes.freeze();
        if self.sent.len() < KEPT && bytes.len() >= CAPACITY {
            self.sent.push_back(bytes.clone());
        }
        bytes.slice(..slab.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_once_the_network_has_let_go() {
        let mut pool = Pool::default();
        let mut slab = pool.fresh();
        slab.grow(3).copy_from_slice(b"abc");
        assert_eq!(slab.body(), b"abc");
        let first = slab.whole().as_ptr();
        let sent = pool.send(slab);
        assert_eq!(&sent[FRONT..], b"abc");
        let mut other = pool.fresh();
        assert_ne!(other.whole().as_ptr(), first, "it is on its way");
        drop(sent);
        assert_eq!(pool.fresh().whole().as_ptr(), first);
    }
}
