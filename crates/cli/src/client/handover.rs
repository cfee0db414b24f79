//! An address handed to a browser without anybody else seeing it.
//!
//! What a program is started with can be read by every user of the machine, and the viewer's address
//! has a ticket in it. So the browser is started with an address of this process, on the loopback
//! interface, which answers once with the real one: whoever else asked first would leave the browser
//! without, and be seen.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spaceport_types::{Error, Kind, Result};

/// How long a browser may take to start and ask.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long one that has connected may take to send its request.
const REQUEST: Duration = Duration::from_secs(2);

/// How often it is looked whether somebody has connected.
const POLL: Duration = Duration::from_millis(50);

/// More than a browser's first line has.
const LONGEST_REQUEST: usize = 4 << 10;

/// Opens `url` in the browser of this desktop; returns once the browser has it.
pub(crate) fn to_browser(url: &str) -> Result<()> {
    // It is put into a header, and came from a Space.
    if url.chars().any(char::is_control) {
        return Err(Error::new(Kind::Json, "the Space's viewer has no address that could be one"));
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)
        .map_err(|error| Error::new(Kind::Io, "there is no randomness").source(error))?;
    let path: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let local = format!("http://{}/{path}", listener.local_addr()?);
    let mut opener = Command::new("xdg-open")
        .arg(local)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| Error::new(Kind::Io, "`xdg-open` cannot be started").source(error))?;
    let handed = hand_over(&listener, &path, url, PATIENCE);
    // It may go on as the browser; what it has to say is of no use here.
    drop(opener.try_wait());
    handed
}

#[expect(clippy::disallowed_methods, reason = "I/O with a limit of time, and no runtime")]
fn hand_over(listener: &TcpListener, path: &str, url: &str, patience: Duration) -> Result<()> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + patience;
    while Instant::now() < end {
        match listener.accept() {
            Ok((stream, _)) => {
                // A connection made ahead of need, or by somebody else, is not the end.
                if let Ok(true) = answer(stream, path, url) {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(POLL),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::new(Kind::Timeout, "no browser came for it"))
}

/// Whether it was the browser, and has the address now.
fn answer(mut stream: TcpStream, path: &str, url: &str) -> std::io::Result<bool> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST))?;
    stream.set_write_timeout(Some(REQUEST))?;
    let mut request = Vec::new();
    let mut some = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST_REQUEST {
        match stream.read(&mut some)? {
            0 => break,
            read => request.extend(some.iter().take(read)),
        }
    }
    let ours = request.starts_with(format!("GET /{path} ").as_bytes());
    let head = if ours {
        format!("HTTP/1.1 303 See Other\r\nlocation: {url}\r\ncache-control: no-store\r\n")
    } else {
        "HTTP/1.1 404 Not Found\r\n".to_owned()
    };
    let rest = "referrer-policy: no-referrer\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all((head + rest).as_bytes())?;
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(to: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn only_who_knows_the_path_gets_the_address() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let url = "http://box/viewer/#ticket=t";
        let handed = std::thread::spawn(move || hand_over(&listener, "s3cret", url, PATIENCE));
        drop(TcpStream::connect(to).unwrap());
        let wrong = ask(to, "/favicon.ico");
        assert!(wrong.starts_with("HTTP/1.1 404 ") && !wrong.contains("ticket"), "{wrong}");
        assert!(!ask(to, "/s3cret.").contains("ticket"));
        let right = ask(to, "/s3cret");
        assert!(right.starts_with("HTTP/1.1 303 ") && right.contains(url), "{right}");
        handed.join().unwrap().unwrap();
        TcpStream::connect(to).unwrap_err();
    }

    #[test]
    fn a_browser_that_never_comes_is_not_waited_for_forever() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let error = hand_over(&listener, "s", "u", Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
    }
}
