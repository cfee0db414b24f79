use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// A path that carries no more than it is told to, between a client and a server: a proxy that reads
/// from the server at that rate. What a narrow link queues is in its receive buffer, about 200 ms of
/// 1 Mbit/s; the rest waits with the server.
#[derive(Debug)]
pub struct Throttle {
    address: SocketAddr,
    rate: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Throttle {
    /// A path to `server` that carries anything for now.
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let rate = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&rate);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let rate = Arc::clone(&shared);
                tokio::spawn(async move { drop(carry(client, server, &rate).await) });
            }
        });
        Self { address, rate, accepting }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Carries so many bits a second from now on; `None` for as many as come.
    pub fn limit(&self, bits: Option<u64>) {
        self.rate.store(bits.unwrap_or_default(), Ordering::Relaxed);
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.accepting.abort(); // the connections end with their clients
    }
}

async fn carry(client: TcpStream, to: SocketAddr, rate: &AtomicU64) -> std::io::Result<()> {
    /// What is read at a time: 16 ms of 1 Mbit/s.
    const PIECE: usize = 2048;
    /// How late this task may be woken without the path carrying less.
    const LATE: Duration = Duration::from_millis(50);
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(24 << 10)?;
    // As on a real link: loopback's segments of 64 KiB would not fit into that buffer.
    socket2::SockRef::from(&socket).set_tcp_mss(1400)?;
    let server = socket.connect(to).await?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let down = async {
        let (mut piece, mut free_at) = (vec![0; PIECE], Instant::now());
        loop {
            let length = from_server.read(&mut piece).await?;
            if length == 0 {
                return std::io::Result::Ok(());
            }
            let bits = rate.load(Ordering::Relaxed);
            if bits > 0 {
                let takes = Duration::from_secs_f64(length as f64 * 8.0 / bits as f64);
                // What was not carried because this machine was busy is made up for.
                free_at = free_at.max(Instant::now() - LATE) + takes;
                sleep_until(free_at).await;
            }
            to_client.write_all(&piece[..length]).await?;
        }
    };
    tokio::select! {
        ended = down => ended,
        ended = tokio::io::copy(&mut from_client, &mut to_server) => ended.map(drop),
    }
}
