//! The UDP socket that all connections of an endpoint share.

use std::io::Result;
use std::net::{SocketAddr, UdpSocket};

use quinn_udp::{UdpSockRef, UdpSocketState};

/// Bytes that may wait in the kernel in each direction, each packet counted with what it costs there. By itself a
/// kernel gives room for a hundred packets. When as many connect at once what has none is lost, and a handshake
/// that lost its first packet waits a second. What no limit of the kernel allows is not given.
const BUFFER: usize = 8 << 20;

/// Binds `local`; port 0 takes any.
pub(super) fn bind(local: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(local)?;
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    for resized in [
        state.set_send_buffer_size((&socket).into(), BUFFER),
        state.set_recv_buffer_size((&socket).into(), BUFFER),
    ] {
        if let Err(error) = resized {
            tracing::debug!(%error, "the socket keeps its default buffer");
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_all_the_room_that_the_kernel_gives() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let room = |socket: &UdpSocket| {
            let state = UdpSocketState::new(UdpSockRef::from(socket)).unwrap();
            let received = state.recv_buffer_size(socket.into()).unwrap();
            (received, state.send_buffer_size(socket.into()).unwrap())
        };
        let asked = UdpSocket::bind(any).unwrap();
        let state = UdpSocketState::new(UdpSockRef::from(&asked)).unwrap();
        state.set_recv_buffer_size((&asked).into(), BUFFER).unwrap();
        state.set_send_buffer_size((&asked).into(), BUFFER).unwrap();
        assert_eq!(room(&bind(any).unwrap()), room(&asked));
    }
}
