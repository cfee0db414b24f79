use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// One HTTP/1.1 request on a connection of its own.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Headers besides `Host`, `Connection` and `Content-Length`.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body; an empty one is still announced.
    pub body: &'a [u8],
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Request<'_> {
    /// Sends it and reads the whole answer.
    pub fn send(&self, to: SocketAddr) -> std::io::Result<Answer> {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut head = format!(
            "{} {} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\nContent-Length: {}\r\n",
            self.method,
            self.path,
            self.body.len()
        );
        for (name, value) in self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.push_str("\r\n");
        stream.write_all(&[head.as_bytes(), self.body].concat())?;
        Answer::read(BufReader::new(stream))
    }
}

impl Answer {
    fn read(mut stream: BufReader<TcpStream>) -> std::io::Result<Self> {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("not HTTP: `{line}`")))?;
        let mut headers = BTreeMap::new();
        loop {
            line.clear();
            stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let mut body = Vec::new();
        if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            loop {
                line.clear();
                stream.read_line(&mut line)?;
                let length = u64::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
                (&mut stream).take(length).read_to_end(&mut body)?;
                stream.read_line(&mut String::new())?;
                if length == 0 {
                    break;
                }
            }
        } else if let Some(length) = headers.get("content-length") {
            stream.take(length.parse().map_err(std::io::Error::other)?).read_to_end(&mut body)?;
        } else {
            stream.read_to_end(&mut body)?;
        }
        Ok(Self { status, headers, body })
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{error} in `{}`", String::from_utf8_lossy(&self.body));
        })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Longer than any answer takes, shorter than a test may.
const TIMEOUT: Duration = Duration::from_secs(10);
