//! Viewers that UDP does not reach: ICE over TCP (RFC 6544), in frames of RFC 4571.
//!
//! Only passive: viewers connect. Whoever listens on the port looks at a connection's first byte
//! and hands it over when [`is_framed`](super::demux::is_framed) says so. Until a connection has sent a check that its peer
//! verified, it is a stranger's: a few of those are kept, for a while, with room for one frame each.
//! After that it belongs to that peer and goes when the peer goes.

use std::any::Any;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::demux::Deframer;
use super::driver::Key;

/// Bytes read at once.
const READ: usize = 16 << 10;

/// Reads from one connection in one turn, so that a flood does not keep others waiting.
const READS_PER_TURN: usize = 4;

/// Connections that have not shown yet whose they are. Beyond this the oldest goes.
const STRANGERS: usize = 64;

/// How long a connection may take to show whose it is. A browser's first bytes are its check.
const STRANGER_FOR: Duration = Duration::from_secs(10);

/// Connections of one peer: a browser opens one for each of its interfaces and each of our
/// addresses. Beyond this, more are refused.
const PER_PEER: usize = 32;

/// Bytes that wait for a viewer before it gets no further frame: an eighth of a second of 1 Mbit/s. What
/// the kernel has taken comes on top.
const ENOUGH: usize = 16 << 10;

/// Bytes that wait for a viewer at most: a keyframe of a 4K desktop. Beyond this datagrams are
/// dropped, as a router would.
const BACKLOG: usize = 4 << 20;

/// A connection as it is handed over. What counts it elsewhere is let go of with it.
pub(super) struct Incoming {
    pub(super) stream: TcpStream,
    pub(super) guard: Box<dyn Any + Send>,
}

/// All connections, by the viewer's address.
#[derive(Default)]
pub(super) struct Connections {
    all: HashMap<SocketAddr, Connection>,
}

struct Connection {
    stream: TcpStream,
    local: SocketAddr,
    deframer: Deframer,
    /// What waits to be written, and how much of its front has been.
    out: Vec<u8>,
    written: usize,
    /// Whether the kernel took less than it was given.
    blocked: bool,
    owner: Option<Key>,
    since: Instant,
    _guard: Box<dyn Any + Send>,
}

impl Connections {
    /// Takes a connection from a stranger.
    pub(super) fn add(&mut self, incoming: Incoming, now: Instant) -> io::Result<()> {
        let Incoming { stream, guard } = incoming;
        stream.set_nonblocking(true)?;
        let (remote, local) = (stream.peer_addr()?, stream.local_addr()?);
        let strangers = self.all.iter().filter(|(_, connection)| connection.owner.is_none());
        if strangers.clone().count() >= STRANGERS
            && let Some((&oldest, _)) = strangers.min_by_key(|(_, connection)| connection.since)
        {
            self.all.remove(&oldest);
        }
        let connection = Connection {
            stream,
            local: super::socket::canonical(local),
            deframer: Deframer::default(),
            out: Vec::new(),
            written: 0,
            blocked: false,
            owner: None,
            since: now,
            _guard: guard,
        };
        self.all.insert(super::socket::canonical(remote), connection);
        Ok(())
    }

    /// What to wait for.
    pub(super) fn sources(&self) -> impl Iterator<Item = (SocketAddr, &TcpStream, PollFlags)> {
        self.all.iter().map(|(&remote, connection)| {
            let writable = if connection.blocked { PollFlags::OUT } else { PollFlags::empty() };
            (remote, &connection.stream, PollFlags::IN | writable)
        })
    }

    /// When a stranger's time is up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let strangers = self.all.values().filter(|connection| connection.owner.is_none());
        strangers.map(|connection| connection.since + STRANGER_FOR).min()
    }

    /// Lets strangers go whose time is up.
    pub(super) fn expire(&mut self, now: Instant) {
        self.all.retain(|_, connection| {
            connection.owner.is_some() || now < connection.since + STRANGER_FOR
        });
    }

    /// Reads what has come from `remote`, and calls `frame(local, frame)` with each frame. A
    /// connection that has ended, or sends what no viewer sends, is let go.
    pub(super) fn receive(&mut self, remote: SocketAddr, mut frame: impl FnMut(SocketAddr, &[u8])) {
        let Some(connection) = self.all.get_mut(&remote) else { return };
        let mut buffer = [0; READ];
        for _ in 0..READS_PER_TURN {
            let goes_on = match connection.stream.read(&mut buffer) {
                Ok(0) => false,
                Ok(length) => {
                    let local = connection.local;
                    connection.deframer.push(&buffer[..length], |bytes| frame(local, bytes))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => error.kind() == ErrorKind::Interrupted,
            };
            if !goes_on {
                self.all.remove(&remote);
                return;
            }
        }
    }

    /// Whose connection it is, if that is known.
    pub(super) fn owner(&self, remote: SocketAddr) -> Option<Key> {
        self.all.get(&remote)?.owner
    }

    /// Makes it `key`'s; false when that peer has enough.
    pub(super) fn claim(&mut self, remote: SocketAddr, key: Key) -> bool {
        let theirs = self.all.values().filter(|connection| connection.owner == Some(key)).count();
        let Some(connection) = self.all.get_mut(&remote).filter(|_| theirs < PER_PEER) else {
            return false;
        };
        connection.owner = Some(key);
        true
    }

    /// Lets go of a peer's connections.
    pub(super) fn remove(&mut self, key: Key) {
        self.all.retain(|_, connection| connection.owner != Some(key));
    }

    /// Adds a frame to what waits for `remote`.
    pub(super) fn push(&mut self, remote: SocketAddr, frame: &[u8]) {
        let Some(connection) = self.all.get_mut(&remote) else { return };
        let Ok(length) = u16::try_from(frame.len()) else { return };
        if connection.waiting() + frame.len() > BACKLOG {
            return;
        }
        connection.out.extend_from_slice(&length.to_be_bytes());
        connection.out.extend_from_slice(frame);
    }

    /// Whether so much waits for `remote` that it should get no further frame.
    pub(super) fn is_full(&self, remote: SocketAddr) -> bool {
        self.all.get(&remote).is_some_and(|connection| connection.waiting() > ENOUGH)
    }

    /// Writes what waits for `remote`, as far as the kernel takes it.
    pub(super) fn flush(&mut self, remote: SocketAddr) {
        let Some(connection) = self.all.get_mut(&remote) else { return };
        if connection.flush().is_err() {
            self.all.remove(&remote);
        }
    }
}

impl Connection {
    fn waiting(&self) -> usize {
        self.out.len() - self.written
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.waiting() > 0 {
            match self.stream.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    // Half of it gone is worth moving the rest.
                    if self.written > self.out.len() / 2 {
                        self.out.drain(..self.written);
                        self.written = 0;
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.blocked = false;
        self.out.clear();
        self.written = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::driver::now;
    use super::*;

    /// A connection from a viewer, on both sides.
    fn pair(listener: &TcpListener) -> (TcpStream, Incoming) {
        let viewer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        (viewer, Incoming { stream, guard: Box::new(()) })
    }

    #[test]
    fn strangers_are_few_and_do_not_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut connections, start) = (Connections::default(), now());
        let mut viewers = Vec::new();
        for index in 0..STRANGERS as u64 + 3 {
            let (viewer, incoming) = pair(&listener);
            connections.add(incoming, start + Duration::from_millis(index)).unwrap();
            viewers.push(viewer);
        }
        assert_eq!(connections.all.len(), STRANGERS);
        let last = viewers.last().unwrap().local_addr().unwrap();
        assert!(connections.claim(last, 7));
        assert_eq!(connections.owner(viewers[0].local_addr().unwrap()), None);
        let first_left = start + Duration::from_millis(3);
        assert_eq!(connections.deadline(), Some(first_left + STRANGER_FOR));
        connections.expire(first_left + STRANGER_FOR * 2);
        assert_eq!(connections.sources().count(), 1, "the one that showed whose it is");
        connections.remove(7);
        assert_eq!(connections.sources().count(), 0);
        // The first was let go of, and its viewer sees that.
        assert_eq!(viewers[0].read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn what_the_kernel_does_not_take_waits_and_is_bounded() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut viewer, incoming) = pair(&listener);
        let mut connections = Connections::default();
        connections.add(incoming, now()).unwrap();
        let remote = viewer.local_addr().unwrap();
        let frame = [7; 1000];
        let mut pushed = 0;
        // Nobody reads, so at some point the kernel has enough, and then so have we.
        while connections.all[&remote].waiting() + frame.len() <= BACKLOG {
            connections.push(remote, &frame);
            connections.flush(remote);
            pushed += 1;
        }
        connections.push(remote, &frame);
        assert!(connections.is_full(remote));
        assert!(connections.sources().all(|(_, _, flags)| flags.contains(PollFlags::OUT)));
        // All that was taken arrives, in order, and what was not is missing whole.
        let mut deframer = Deframer::default();
        let (mut arrived, mut buffer) = (0, vec![0; 1 << 20]);
        while arrived < pushed {
            let length = viewer.read(&mut buffer).unwrap();
            assert!(deframer.push(&buffer[..length], |bytes| {
                assert_eq!(bytes, frame);
                arrived += 1;
            }));
            connections.flush(remote);
        }
        assert_eq!((arrived, connections.all[&remote].waiting()), (pushed, 0));
    }
}
