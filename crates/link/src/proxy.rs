//! A link between real UDP sockets.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Fate, Link, Profile};

/// Clients a proxy remembers; a load test has a few thousand at most.
const CLIENTS: usize = 4096;

/// Larger than any datagram of a stream.
const DATAGRAM: usize = 2048;

/// The least time between two looks at changes that the test asked for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What happened to the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets put on the link, and the bytes of those that were neither lost nor dropped.
    pub packets: u64,
    /// Bytes that passed.
    pub bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that came to a full queue.
    pub dropped: u64,
    /// The longest the queue was.
    pub longest: Duration,
}

/// Sits between UDP clients and one server. Clients send to [`Proxy::address`]; each has an
/// address of its own towards the server, and a link of its own: they share no bottleneck, and what
/// happens to one follows from the seed and the place it came in. Ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    changes: Sender<(Profile, Profile)>,
    counts: Arc<Mutex<[Counts; 2]>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one in front of `server`. `up` is what happens from client to server, `down` from
    /// server to client.
    ///
    /// # Errors
    ///
    /// When a socket cannot be had.
    pub fn start(server: SocketAddr, up: Profile, down: Profile, seed: u64) -> io::Result<Self> {
        let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        front.set_nonblocking(true)?;
        let address = front.local_addr()?;
        let (changes, receiver) = mpsc::channel();
        let counts = Arc::new(Mutex::default());
        let mut shell = Shell {
            front,
            server,
            clients: Vec::new(),
            by_address: HashMap::new(),
            profiles: (up, down),
            seed,
            counts: Arc::clone(&counts),
        };
        let run = move || shell.run(&receiver);
        let thread = std::thread::Builder::new().name("link".into()).spawn(run)?;
        Ok(Self { address, changes, counts, thread: Some(thread) })
    }

    /// Where clients send to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes it another link from now on.
    pub fn change(&self, up: Profile, down: Profile) {
        // Its thread runs until this handle is dropped.
        self.changes.send((up, down)).ok();
    }

    /// What happened so far, up and down.
    pub fn counts(&self) -> [Counts; 2] {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let (closed, _) = mpsc::channel();
        self.changes = closed;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// What the proxy's thread owns.
struct Shell {
    front: UdpSocket,
    server: SocketAddr,
    clients: Vec<Client>,
    by_address: HashMap<SocketAddr, usize>,
    profiles: (Profile, Profile),
    seed: u64,
    counts: Arc<Mutex<[Counts; 2]>>,
}

/// A client's address, the socket that stands for it towards the server, and its way there and
/// back.
struct Client {
    address: SocketAddr,
    socket: UdpSocket,
    links: [Link<Vec<u8>>; 2],
}

impl Shell {
    fn run(&mut self, changes: &Receiver<(Profile, Profile)>) {
        loop {
            loop {
                match changes.try_recv() {
                    Ok((up, down)) => {
                        self.profiles = (up, down);
                        for Client { links: [there, back], .. } in &mut self.clients {
                            there.change(up, now());
                            back.change(down, now());
                        }
                    }
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            self.wait();
            self.read();
            let now = now();
            for Client { address, socket, links: [up, down] } in &mut self.clients {
                while let Some(datagram) = up.receive(now) {
                    // As on a network: what cannot be sent is lost.
                    socket.send_to(&datagram, self.server).ok();
                }
                while let Some(datagram) = down.receive(now) {
                    self.front.send_to(&datagram, *address).ok();
                }
            }
        }
    }

    fn wait(&self) {
        let links = self.clients.iter().flat_map(|client| &client.links);
        let due = links.filter_map(Link::due).min();
        let left = due.map_or(LOOK_EVERY, |due| due.saturating_duration_since(now()));
        let left = left.min(LOOK_EVERY);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let sockets = self.clients.iter().map(|client| &client.socket).chain([&self.front]);
        let mut sources: Vec<_> =
            sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        // Interrupted or not, everything is looked at next.
        poll(&mut sources, Some(&timeout)).ok();
    }

    fn read(&mut self) {
        let mut buffer = [0; DATAGRAM];
        while let Ok((length, source)) = self.front.recv_from(&mut buffer) {
            let Some(client) = self.client(source) else { continue };
            self.put(0, client, buffer[..length].to_vec());
        }
        for client in 0..self.clients.len() {
            while let Ok((length, _)) = self.clients[client].socket.recv_from(&mut buffer) {
                self.put(1, client, buffer[..length].to_vec());
            }
        }
    }

    fn client(&mut self, source: SocketAddr) -> Option<usize> {
        if let Some(&client) = self.by_address.get(&source) {
            return Some(client);
        }
        if self.clients.len() >= CLIENTS {
            return None;
        }
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        socket.set_nonblocking(true).ok()?;
        let place = self.clients.len();
        self.by_address.insert(source, place);
        let seed = self.seed.wrapping_add(2 * place as u64);
        let (up, down) = self.profiles;
        let links = [Link::new(up, seed), Link::new(down, seed.wrapping_add(1))];
        self.clients.push(Client { address: source, socket, links });
        Some(place)
    }

    fn put(&mut self, direction: usize, client: usize, datagram: Vec<u8>) {
        let link = &mut self.clients[client].links[direction];
        let bytes = datagram.len();
        let fate = link.send(datagram, bytes, now());
        let backlog = link.backlog();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = &mut counts[direction];
        counts.packets += 1;
        counts.longest = counts.longest.max(backlog);
        match fate {
            Fate::Sent => counts.bytes += bytes as u64,
            Fate::Lost => counts.lost += 1,
            Fate::Dropped => counts.dropped += 1,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one clock of a thread that does I/O")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_server_talk_through_it_and_keep_their_addresses_apart() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let profile = Profile { delay: Duration::from_millis(3), ..Profile::CLEAR };
        let proxy = Proxy::start(server.local_addr().unwrap(), profile, profile, 1).unwrap();
        let clients = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let patience = Some(Duration::from_secs(10));
        for socket in clients.iter().chain([&server]) {
            socket.set_read_timeout(patience).unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            client.send_to(&[index as u8; 100], proxy.address()).unwrap();
        }
        let mut buffer = [0; 200];
        for _ in 0..2 {
            let (length, source) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..length], source).unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            let (length, source) = client.recv_from(&mut buffer).unwrap();
            assert_eq!((length, buffer[0], source), (100, index as u8, proxy.address()));
        }
        assert_eq!(proxy.counts().map(|counts| counts.bytes), [200, 200]);
    }
}
