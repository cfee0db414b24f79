use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A TCP path to a gateway on which something happens to what passes one way. Ends with the test's
/// process.
#[derive(Debug)]
pub struct Cut {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    passed: AtomicU64,
    harmed: AtomicBool,
}

/// What happens after so many bytes of a connection that went the way it is about. Once: the next
/// connections are whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// One byte is not what it was.
    Flip(u64),
    /// The connection ends.
    Cut(u64),
    /// Nothing more comes through, and nobody is told.
    Stall(u64),
    /// What follows is slow.
    Slow(u64),
}

/// Which way it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To what the client sends.
    Up,
    /// To what the client receives.
    Down,
}

impl Cut {
    /// Puts one in front of `server`.
    pub fn before(server: SocketAddr, way: Way, harm: Harm) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(server) else { continue };
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let (harmed, plain) = match way {
                    Way::Up => ((client, server), back),
                    Way::Down => (back, (client, server)),
                };
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || pass(harmed.0, harmed.1, Some(harm), &seen));
                std::thread::spawn(move || pass(plain.0, plain.1, None, &Shared::default()));
            }
        });
        Self { address, shared }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that came through, the way it is about.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Acquire)
    }

    /// Whether it has happened.
    pub fn has_happened(&self) -> bool {
        self.shared.harmed.load(Ordering::Acquire)
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, harm: Option<Harm>, seen: &Shared) {
    let (mut buffer, mut passed, mut this) = (vec![0; 64 << 10], 0_u64, false);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let part = &mut buffer[..count];
        let here = passed..passed + count as u64;
        passed = here.end;
        let at = match harm {
            Some(Harm::Flip(at) | Harm::Cut(at) | Harm::Stall(at) | Harm::Slow(at)) => at,
            None => u64::MAX,
        };
        let first = here.contains(&at) && !seen.harmed.swap(true, Ordering::AcqRel);
        this |= first;
        match harm {
            Some(Harm::Flip(_)) if first => part[(at - here.start) as usize] ^= 0x20,
            Some(Harm::Cut(_)) if first => break,
            // Until the test is over, or one of the two is gone.
            Some(Harm::Stall(_)) if this => std::thread::sleep(Duration::from_secs(60)),
            Some(Harm::Slow(_)) if this => std::thread::sleep(Duration::from_millis(20)),
            _ => {}
        }
        if to.write_all(part).is_err() {
            break;
        }
        seen.passed.fetch_add(count as u64, Ordering::AcqRel);
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
