use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A web site that signs visitors in, and hears from its pages what the browser kept.
///
/// `/login` sets a persistent HttpOnly cookie and one that ends with the browser, stores a token in
/// local storage, and goes on to `/home`. Every page tells the site what it finds. `/write` does
/// nothing but write, all the time. The site ends with the test.
#[derive(Debug)]
pub struct Site {
    address: SocketAddr,
    elsewhere: SocketAddr,
    visits: Receiver<Visit>,
    earlier: RefCell<Vec<Visit>>,
}

/// What a page found when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The page.
    pub path: String,
    /// The cookies that came with the request for it.
    pub cookies: String,
    /// What the page found in local storage.
    pub local: String,
}

impl Visit {
    /// Whether the visitor is signed in: cookie and token are there.
    pub fn is_signed_in(&self) -> bool {
        self.cookies.contains(&format!("sid={SECRET}")) && self.local == TOKEN
    }
}

/// The value of the cookie that keeps a visitor signed in.
const SECRET: &str = "s3cr3t-of-the-session";

/// What `/login` stores in local storage.
const TOKEN: &str = "t0ken-of-the-page";

/// Longest that a visit may take to come: a browser starts on a busy machine.
const VISIT: Duration = Duration::from_secs(50);

const LOGIN: &str = "
<script>localStorage.setItem('token', 'TOKEN'); location.replace('/home');</script>";

const PAGE: &str = "
<title>PATH</title>
<script>
fetch('/found', {method: 'POST', body: JSON.stringify({
  path: location.pathname, cookies: COOKIES, local: localStorage.getItem('token') ?? ''})});
</script>";

/// Enough cookies at a time that Chromium writes them out at once, and not after half a minute.
const WRITE: &str = "
<title>write</title>
<script>
let turn = 0;
setInterval(() => {
  turn++;
  for (let i = 0; i < 150; i++) document.cookie = `w${i}=${turn}; Max-Age=3600; path=/p${turn % 8}`;
  for (let i = 0; i < 20; i++) localStorage.setItem(`k${i}`, 'v'.repeat(500) + turn);
  if (turn === 8) fetch('/found', {method: 'POST', body: JSON.stringify({
    path: location.pathname, cookies: '', local: ''})});
}, 50);
</script>";

impl Site {
    /// Opens it.
    pub fn open() -> Self {
        let (found, visits) = channel();
        let listen = |address: &str| {
            let listener = TcpListener::bind((address, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let found = found.clone();
            std::thread::spawn(move || {
                for visitor in listener.incoming().flatten() {
                    let found = found.clone();
                    std::thread::spawn(move || drop(serve(visitor, &found)));
                }
            });
            address
        };
        Self {
            address: listen("127.0.0.1"),
            elsewhere: listen("127.0.0.2"),
            visits,
            earlier: RefCell::default(),
        }
    }

    /// The address of a page.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The address of a page of another site.
    pub fn other_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.elsewhere)
    }

    /// The next visit of this page, or one that came while another was awaited.
    pub fn visit(&self, path: &str) -> Visit {
        let mut earlier = self.earlier.borrow_mut();
        if let Some(at) = earlier.iter().position(|visit| visit.path == path) {
            return earlier.remove(at);
        }
        loop {
            let next = self.visits.recv_timeout(VISIT);
            let visit = next.unwrap_or_else(|_| panic!("nobody opened `{path}` in {VISIT:?}"));
            if visit.path == path {
                return visit;
            }
            earlier.push(visit);
        }
    }

    /// Forgets who came until now.
    pub fn forget(&self) {
        self.earlier.borrow_mut().clear();
        while self.visits.try_recv().is_ok() {}
    }
}

fn serve(visitor: TcpStream, found: &Sender<Visit>) -> std::io::Result<()> {
    visitor.set_read_timeout(Some(VISIT))?;
    let mut reader = BufReader::new(visitor.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut cookies, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        let (name, value) = line.trim_end().split_once(": ").unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "cookie" => value.clone_into(&mut cookies),
            "content-length" => length = value.parse().unwrap_or(0),
            _ => {}
        }
    }
    let mut headers = String::new();
    let body = match path.as_str() {
        "/found" => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let report: serde_json::Value = serde_json::from_slice(&body)?;
            let text = |name: &str| report[name].as_str().unwrap_or_default().to_owned();
            let visit =
                Visit { path: text("path"), cookies: text("cookies"), local: text("local") };
            drop(found.send(visit));
            String::new()
        }
        "/login" => {
            headers = format!(
                "Set-Cookie: sid={SECRET}; Max-Age=86400; HttpOnly; SameSite=Lax\r\n\
                 Set-Cookie: passing=1; HttpOnly\r\n"
            );
            LOGIN.replace("TOKEN", TOKEN)
        }
        "/write" => WRITE.to_owned(),
        "/home" | "/second" => PAGE
            .replace("PATH", &path)
            .replace("COOKIES", &serde_json::Value::from(cookies).to_string()),
        _ => String::new(),
    };
    let length = body.len();
    write!(
        &visitor,
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n{headers}\r\n{body}"
    )
}
