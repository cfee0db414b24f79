//! The UDP socket all peers share, and the TCP connections of those it does not reach.
//!
//! Packets of one peer leave in batches: consecutive datagrams of equal size become one system
//! call (UDP segmentation offload), which for a video frame is most of them. What the kernel will
//! not take now waits here, in order and bounded; meanwhile nobody is given new frames to send.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use spaceport_types::Result;
use str0m::net::Protocol;

use super::tcp::Connections;

/// Bytes of socket buffer asked for in each direction: a keyframe to each of a hundred viewers.
/// The kernel gives what its own limits allow.
const SOCKET_BUFFER: usize = 8 << 20;

/// Bytes that wait while the kernel takes no more. Beyond that datagrams are dropped, as a router
/// would; viewers ask for them again.
const BACKLOG_BYTES: usize = 4 << 20;

/// Buffers filled by one read; each can take a whole train of coalesced datagrams.
const READS: usize = 8;

/// The most bytes one datagram, or one train of them, can have.
const TRAIN: usize = 64 << 10;

/// The most bytes of one batch: what fits one segmented send with its headers.
const BATCH_BYTES: usize = 60_000;

/// A bound socket, and what is on its way out.
pub(super) struct Socket {
    pub(super) tcp: Connections,
    /// The TCP connection that was last written to.
    unflushed: Option<SocketAddr>,
    udp: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    /// This machine's addresses when the socket was bound.
    own: Vec<IpAddr>,
    /// Addresses that viewers know and this machine does not have: a NAT's.
    foreign: Vec<IpAddr>,
    batch: Batch,
    backlog: VecDeque<Batch>,
    backlog_bytes: usize,
    dropped: u64,
}

/// Consecutive datagrams of one size, the last of which may be shorter, from and to one address.
struct Batch {
    source: Option<IpAddr>,
    destination: SocketAddr,
    segment: usize,
    closed: bool,
    bytes: Vec<u8>,
}

impl Socket {
    /// Binds `listen`; port 0 takes any. Nothing is sent from a `foreign` address.
    pub(super) fn bind(listen: SocketAddr, foreign: Vec<IpAddr>) -> Result<Self> {
        let udp = UdpSocket::bind(listen)?;
        let state = UdpSocketState::new(UdpSockRef::from(&udp))?;
        udp.set_nonblocking(true)?;
        let local = udp.local_addr()?;
        for resized in [
            state.set_send_buffer_size((&udp).into(), SOCKET_BUFFER),
            state.set_recv_buffer_size((&udp).into(), SOCKET_BUFFER),
        ] {
            if let Err(error) = resized {
                tracing::debug!(%error, "the socket keeps its default buffer");
            }
        }
        let batch = Batch {
            source: None,
            destination: local,
            segment: 0,
            closed: true,
            bytes: Vec::with_capacity(BATCH_BYTES),
        };
        Ok(Self {
            tcp: Connections::default(),
            unflushed: None,
            udp,
            state,
            local,
            own: interface_addresses(),
            foreign,
            batch,
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            dropped: 0,
        })
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) fn udp(&self) -> &UdpSocket {
        &self.udp
    }

    /// Whether `address` is this machine's.
    pub(super) fn is_here(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }

    /// Whether the kernel has enough for now.
    pub(super) fn is_blocked(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// How many datagrams were dropped because the kernel took no more.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Sends a datagram by whatever it is meant to go by, now or with the next [`Socket::flush`].
    pub(super) fn send_by(
        &mut self,
        protocol: Protocol,
        source: IpAddr,
        destination: SocketAddr,
        datagram: &[u8],
    ) {
        if protocol == Protocol::Udp {
            return self.push(source, destination, datagram);
        }
        if self.unflushed != Some(destination) {
            self.flush();
            self.unflushed = Some(destination);
        }
        self.tcp.push(destination, datagram);
    }

    /// Adds a datagram to the batch, after sending the batch if it does not belong there.
    pub(super) fn push(&mut self, source: IpAddr, destination: SocketAddr, datagram: &[u8]) {
        // From a loopback address to another machine the kernel answers EINVAL, which would be
        // taken for a lack of offload. A browser here may well use another address of its own.
        if source.is_loopback() && !self.is_here(destination.ip()) {
            return;
        }
        // A socket bound to one address has no other to send from.
        let chosen = self.local.ip().is_unspecified() && !self.foreign.contains(&source);
        let source = chosen.then_some(source);
        let batch = &self.batch;
        let segments = batch.bytes.len().checked_div(batch.segment).unwrap_or(0);
        let joins = !batch.closed
            && batch.destination == destination
            && batch.source == source
            && datagram.len() <= batch.segment
            && segments < self.state.max_gso_segments()
            && batch.bytes.len() + datagram.len() <= BATCH_BYTES;
        if !joins {
            self.flush();
            self.batch.source = source;
            self.batch.destination = destination;
            self.batch.segment = datagram.len();
            self.batch.closed = false;
        }
        self.batch.closed = datagram.len() < self.batch.segment;
        self.batch.bytes.extend_from_slice(datagram);
    }

    /// Sends the batch, or queues it behind what already waits.
    pub(super) fn flush(&mut self) {
        if let Some(remote) = self.unflushed.take() {
            self.tcp.flush(remote);
        }
        if self.batch.bytes.is_empty() {
            return;
        }
        let blocked = self.is_blocked() || self.send(&self.batch) == Sent::Blocked;
        if blocked {
            if self.backlog_bytes + self.batch.bytes.len() > BACKLOG_BYTES {
                self.dropped += self.batch.bytes.len().div_ceil(self.batch.segment) as u64;
            } else {
                self.backlog_bytes += self.batch.bytes.len();
                self.backlog.push_back(Batch {
                    source: self.batch.source,
                    destination: self.batch.destination,
                    segment: self.batch.segment,
                    closed: true,
                    bytes: self.batch.bytes.clone(),
                });
            }
        }
        self.batch.bytes.clear();
        self.batch.closed = true;
    }

    /// Sends what waits, as far as the kernel takes it.
    pub(super) fn drain(&mut self) {
        while let Some(batch) = self.backlog.front() {
            if self.send(batch) == Sent::Blocked {
                return;
            }
            self.backlog_bytes -= batch.bytes.len();
            self.backlog.pop_front();
        }
    }

    /// Hands a batch to the kernel. An address that cannot be reached is not an error here: ICE
    /// tries many, and finds out by itself.
    fn send(&self, batch: &Batch) -> Sent {
        let several = batch.bytes.len() > batch.segment;
        if several && self.state.max_gso_segments() > 1 {
            match self.transmit(batch, &batch.bytes, Some(batch.segment)) {
                Ok(()) => return Sent::Done,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
                // Without offload the same bytes go one datagram at a time.
                Err(error) => tracing::debug!(%error, "a segmented send failed"),
            }
        }
        for datagram in batch.bytes.chunks(batch.segment) {
            match self.transmit(batch, datagram, None) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
                Err(error) => tracing::trace!(%error, "a datagram was not sent"),
            }
        }
        Sent::Done
    }

    fn transmit(
        &self,
        batch: &Batch,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let destination = mapped(batch.destination, self.local);
        let src_ip = batch.source;
        let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip };
        self.state.try_send((&self.udp).into(), &transmit)
    }

    /// Reads what has arrived and calls `receive(source, destination, datagram)` for each
    /// datagram. `false` when there was nothing.
    pub(super) fn receive(
        &self,
        buffers: &mut Buffers,
        mut receive: impl FnMut(SocketAddr, SocketAddr, &[u8]),
    ) -> bool {
        let mut metas = [RecvMeta::default(); READS];
        let count = {
            let mut slices = buffers.0.each_mut().map(|buffer| IoSliceMut::new(buffer));
            match self.state.recv((&self.udp).into(), &mut slices, &mut metas) {
                Ok(count) => count,
                Err(error) => {
                    // An ICMP error of an earlier send (ECONNREFUSED) is reported here, too.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::trace!(%error, "nothing was received");
                    }
                    return false;
                }
            }
        };
        for (buffer, meta) in buffers.0.iter().zip(&metas).take(count) {
            let source = canonical(meta.addr);
            let local = meta.dst_ip.filter(|ip| !ip.is_unspecified()).unwrap_or(self.local.ip());
            let destination = canonical(SocketAddr::new(local, self.local.port()));
            if meta.stride > 0 {
                for datagram in buffer[..meta.len].chunks(meta.stride) {
                    receive(source, destination, datagram);
                }
            }
        }
        true
    }
}

/// What became of a batch.
#[derive(PartialEq, Eq)]
enum Sent {
    Done,
    Blocked,
}

/// Memory that datagrams are read into.
pub(super) struct Buffers([Box<[u8]>; READS]);

impl Buffers {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| vec![0; TRAIN].into_boxed_slice()))
    }
}

/// An IPv4 address as such, where a dual-stack socket shows it as an IPv6 one.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// `destination` in the family of the socket that sends to it.
fn mapped(destination: SocketAddr, local: SocketAddr) -> SocketAddr {
    match (destination.ip(), local) {
        (IpAddr::V4(ip), SocketAddr::V6(_)) => {
            let ip: Ipv6Addr = ip.to_ipv6_mapped();
            SocketAddr::new(ip.into(), destination.port())
        }
        _ => destination,
    }
}

/// The addresses of this machine that viewers may reach it at, the likely ones first.
pub(super) fn interface_addresses() -> Vec<IpAddr> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        tracing::warn!(%error, "the machine's addresses cannot be listed");
        Vec::new()
    });
    let mut addresses: Vec<IpAddr> = interfaces
        .iter()
        .map(if_addrs::Interface::ip)
        // A link-local address means nothing without its interface, which SDP cannot name.
        .filter(|ip| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local()))
        .collect();
    addresses.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    addresses.dedup();
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

/// Addresses offered at most: a machine with fifty bridges is not found any faster by fifty times
/// as many checks.
const MAX_ADDRESSES: usize = 16;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn pair() -> (Socket, UdpSocket, SocketAddr) {
        let socket = Socket::bind(SocketAddr::new(HERE, 0), Vec::new()).unwrap();
        let viewer = UdpSocket::bind("127.0.0.1:0").unwrap();
        viewer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let address = viewer.local_addr().unwrap();
        (socket, viewer, address)
    }

    fn receive(viewer: &UdpSocket) -> Vec<u8> {
        let mut buffer = [0; 2048];
        let length = viewer.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    }

    #[test]
    fn datagrams_keep_their_bounds_and_order_whatever_leaves_together() {
        let (mut socket, viewer, address) = pair();
        let sizes = [500, 1100, 1100, 1100, 700, 700, 20, 1100, 1];
        for (index, size) in sizes.into_iter().enumerate() {
            socket.push(HERE, address, &vec![index as u8; size]);
        }
        socket.flush();
        for (index, size) in sizes.into_iter().enumerate() {
            assert_eq!(receive(&viewer), vec![index as u8; size], "{index}");
        }
    }

    #[test]
    fn a_batch_has_one_destination() {
        let (mut socket, one, to_one) = pair();
        let (_, other, to_other) = pair();
        for index in 0..4_u8 {
            socket.push(HERE, if index % 2 == 0 { to_one } else { to_other }, &[index; 100]);
        }
        socket.flush();
        assert_eq!((receive(&one)[0], receive(&one)[0]), (0, 2));
        assert_eq!((receive(&other)[0], receive(&other)[0]), (1, 3));
    }

    #[test]
    fn a_long_frame_is_more_than_one_batch() {
        let (mut socket, viewer, address) = pair();
        // More than the kernel takes at once, and less than the viewer's buffer holds.
        for index in 0..100_u8 {
            socket.push(HERE, address, &[index; 700]);
        }
        socket.flush();
        for index in 0..100 {
            assert_eq!(receive(&viewer), [index; 700]);
        }
        assert_eq!(socket.dropped(), 0);
    }

    #[test]
    fn an_address_out_of_reach_does_not_cost_the_offload() {
        let (mut socket, viewer, address) = pair();
        let before = socket.state.max_gso_segments();
        // From a loopback address there is no way to this one (RFC 5737).
        let away = SocketAddr::new(Ipv4Addr::new(198, 51, 100, 1).into(), 9);
        socket.push(HERE, away, &[1; 100]);
        socket.push(HERE, address, &[2; 100]);
        socket.flush();
        assert_eq!(receive(&viewer), [2; 100]);
        assert_eq!(socket.state.max_gso_segments(), before);
        assert!(!socket.is_blocked());
    }

    #[test]
    fn what_arrives_is_read_with_both_addresses() {
        let (socket, viewer, address) = pair();
        for size in [10, 20] {
            viewer.send_to(&vec![7; size], socket.local()).unwrap();
        }
        let mut buffers = Buffers::new();
        let mut arrived = Vec::new();
        while arrived.len() < 2 {
            socket.receive(&mut buffers, |source, destination, datagram| {
                arrived.push((source, destination, datagram.len()));
            });
        }
        assert_eq!(arrived, [(address, socket.local(), 10), (address, socket.local(), 20)]);
    }

    #[test]
    fn a_dual_stack_socket_shows_and_reaches_ipv4_as_ipv4() {
        let wildcard = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        let mut socket = Socket::bind(wildcard, Vec::new()).unwrap();
        let (_, viewer, address) = pair();
        let port = socket.local().port();
        viewer.send_to(&[1], SocketAddr::new(HERE, port)).unwrap();
        let mut buffers = Buffers::new();
        let mut arrived = Vec::new();
        while arrived.is_empty() {
            socket.receive(&mut buffers, |source, destination, _| {
                arrived.push((source, destination));
            });
        }
        assert_eq!(arrived, [(address, SocketAddr::new(HERE, port))]);
        socket.push(HERE, address, &[2]);
        socket.flush();
        assert_eq!(receive(&viewer), [2]);
    }
}
