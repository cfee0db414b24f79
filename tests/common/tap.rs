use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A TCP path to a server on which somebody listens: every byte, either way, is kept. Ends with the
/// test's process.
#[derive(Debug)]
pub struct Tap {
    address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Tap {
    /// Puts one in front of `server`.
    pub fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let kept = Arc::clone(&heard);
        let to = Arc::new(Mutex::new(server));
        let leads_to = Arc::clone(&to);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = *leads_to.lock().unwrap();
                let Ok(server) = TcpStream::connect(server) else { continue };
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                for (from, to) in [(client, server), back] {
                    let kept = Arc::clone(&kept);
                    std::thread::spawn(move || pass(from, to, &kept));
                }
            }
        });
        Self { address, to, heard }
    }

    /// Connections that are made from here on lead to another server.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.to.lock().unwrap() = server;
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many bytes crossed, both ways and over all connections.
    pub fn bytes(&self) -> usize {
        self.heard.lock().unwrap().iter().map(Vec::len).sum()
    }

    /// Whether these bytes crossed in one direction of one connection.
    pub fn heard(&self, what: &[u8]) -> bool {
        let heard = self.heard.lock().unwrap();
        heard.iter().any(|bytes| bytes.windows(what.len()).any(|window| window == what))
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, kept: &Mutex<Vec<Vec<u8>>>) {
    let number = {
        let mut kept = kept.lock().unwrap();
        kept.push(Vec::new());
        kept.len() - 1
    };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        kept.lock().unwrap()[number].extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    drop(from.shutdown(Shutdown::Both));
    drop(to.shutdown(Shutdown::Both));
}
