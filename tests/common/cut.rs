use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A TCP path to a gateway on which something happens to what the client sends. Ends with the test's
/// process.
#[derive(Debug)]
pub struct Cut {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
}

/// What happens after so many bytes of a client.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// Nothing, ever.
    None,
    /// One byte is not what it was.
    Flip(u64),
    /// The connection ends. Once: the next connections are whole.
    Cut(u64),
    /// Every connection ends there.
    CutEach(u64),
}

impl Cut {
    /// Puts one in front of `server`.
    pub fn before(server: SocketAddr, harm: Harm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sent);
        let once = Arc::new(AtomicI64::new(1));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(server) else { continue };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (counted, once) = (Arc::clone(&counted), Arc::clone(&once));
                std::thread::spawn(move || up(from, to, harm, &counted, &once));
                std::thread::spawn(move || down(server, client));
            }
        });
        Self { address, sent }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that clients have sent through it.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

fn up(mut from: TcpStream, mut to: TcpStream, harm: Harm, counted: &AtomicU64, once: &AtomicI64) {
    let (mut buffer, mut passed) = (vec![0; 64 << 10], 0_u64);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let part = &mut buffer[..count];
        let here = passed..passed + count as u64;
        passed = here.end;
        counted.fetch_add(count as u64, Ordering::Relaxed);
        match harm {
            Harm::Flip(at) if here.contains(&at) => part[(at - here.start) as usize] ^= 0x20,
            Harm::Cut(at) if here.contains(&at) && once.fetch_sub(1, Ordering::Relaxed) > 0 => {
                break;
            }
            Harm::CutEach(at) if here.contains(&at) => break,
            _ => {}
        }
        if to.write_all(part).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}

fn down(mut from: TcpStream, mut to: TcpStream) {
    drop(std::io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Both));
}
