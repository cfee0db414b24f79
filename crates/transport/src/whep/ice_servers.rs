//! The STUN and TURN servers that viewers are told of.
//!
//! A file lists them as browsers take them (`RTCIceServer`): `urls`, and a `username` and a
//! `credential` where a server asks for them. In place of these a TURN server's shared `secret` can
//! stand; each viewer then gets credentials of its own that end after a while, in the form that
//! coturn's `use-auth-secret` takes (a REST API for access to TURN services).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac as _};
use serde::Deserialize;
use sha1::Sha1;
use spaceport_types::{Error, Issue, Kind, Redacted, Result};

use super::http::IceServer;

/// How long minted credentials hold. A viewer needs them when it connects, and again when it
/// restarts ICE on another network.
const LASTS: Duration = Duration::from_secs(12 * 3600);

/// Addresses handed out at most; with more, browsers gather no better, only longer.
const MAX_URLS: usize = 16;

/// The servers, as configured.
#[derive(Clone, Debug, Default)]
pub struct IceServers(Vec<Server>);

#[derive(Clone, Debug)]
struct Server {
    urls: Vec<String>,
    login: Login,
}

#[derive(Clone, Debug)]
enum Login {
    None,
    Fixed { username: String, credential: Redacted<String> },
    Minted { secret: Redacted<String> },
}

/// One entry of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    urls: Urls,
    username: Option<String>,
    credential: Option<String>,
    secret: Option<String>,
}

/// Browsers take one as well as a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Urls {
    One(String),
    Many(Vec<String>),
}

impl IceServers {
    /// Reads the file at `path`, which nobody else may read when it holds credentials.
    ///
    /// # Errors
    ///
    /// `not_found` or `io` when it cannot be read, `permission_denied` when others can read
    /// credentials in it, `invalid_argument` for what it says.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let failed = |error: std::io::Error| {
            let kind = if error.kind() == ErrorKind::NotFound { Kind::NotFound } else { Kind::Io };
            Error::new(kind, format!("`{shown}` cannot be read")).with("path", &shown).source(error)
        };
        let text = fs::read_to_string(path).map_err(failed)?;
        let servers = Self::parse(&text).map_err(|error| error.with("path", &shown))?;
        let secret = servers.0.iter().any(|server| !matches!(server.login, Login::None));
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if secret && mode & 0o077 != 0 {
            return Err(Error::new(
                Kind::PermissionDenied,
                format!("`{shown}` holds credentials and can be read by others (mode {mode:03o})"),
            )
            .with("path", &shown)
            .hint(format!("Run `chmod 600 {shown}`")));
        }
        Ok(servers)
    }

    fn parse(text: &str) -> Result<Self> {
        let entries: Vec<Entry> = serde_json::from_str(text).map_err(|error| {
            Error::new(Kind::InvalidArgument, "the list of ICE servers cannot be read")
                .hint(
                    "Write a JSON list such as [{\"urls\": \"turn:turn.example.org:3478\", \
                     \"secret\": \"…\"}]",
                )
                .source(error)
        })?;
        let servers = entries.into_iter().enumerate().map(|(at, entry)| entry.check(at));
        let servers = Self(servers.collect::<Result<_>>()?);
        let urls: usize = servers.0.iter().map(|server| server.urls.len()).sum();
        if urls > MAX_URLS {
            return Err(Error::new(Kind::InvalidArgument, "there are too many ICE servers")
                .with("limit", MAX_URLS));
        }
        Ok(servers)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What one viewer is told at `now`.
    ///
    /// # Errors
    ///
    /// `io` when the system gives no random bytes.
    pub fn for_viewer(&self, now: SystemTime) -> Result<Vec<IceServer>> {
        let mut all = Vec::new();
        for Server { urls, login } in &self.0 {
            let login = match login {
                Login::None => None,
                Login::Fixed { username, credential } => {
                    Some((username.clone(), credential.clone()))
                }
                Login::Minted { secret } => Some(mint(secret, now)?),
            };
            all.extend(urls.iter().map(|url| IceServer { url: url.clone(), login: login.clone() }));
        }
        Ok(all)
    }
}

impl Entry {
    fn check(self, at: usize) -> Result<Server> {
        let wrong = |path: &str, constraint: &'static str| {
            let issue = Issue {
                path: format!("[{at}].{path}"),
                constraint: constraint.into(),
                limit: None,
            };
            Error::new(Kind::InvalidArgument, "an ICE server cannot be used").issue(issue)
        };
        let urls = match self.urls {
            Urls::One(url) => vec![url],
            Urls::Many(urls) => urls,
        };
        let usable = |url: &String| {
            let scheme = url.split(':').next().unwrap_or_default();
            let known = ["stun", "stuns", "turn", "turns"].contains(&scheme);
            // What could end the header it travels in.
            let clean = url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'>');
            known && clean && url.len() > scheme.len() + 1 && url.len() <= 256
        };
        if urls.is_empty() || !urls.iter().all(usable) {
            return Err(wrong("urls", "`stun:`, `stuns:`, `turn:` or `turns:` and an address"));
        }
        let clean =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let login = match (self.username, self.credential, self.secret) {
            (None, None, None) => Login::None,
            (Some(username), Some(credential), None) => {
                if !clean(&username) || !clean(&credential) {
                    return Err(wrong("credential", "printable ASCII"));
                }
                Login::Fixed { username, credential: Redacted::new(credential) }
            }
            (None, None, Some(secret)) => Login::Minted { secret: Redacted::new(secret) },
            _ => return Err(wrong("credential", "with `username`, or `secret` alone")),
        };
        let asks = urls.iter().any(|url| url.starts_with("turn"));
        if asks && matches!(login, Login::None) {
            return Err(wrong("credential", "needed for TURN, or a `secret`"));
        }
        Ok(Server { urls, login })
    }
}

/// Credentials that hold until their name says.
fn mint(secret: &Redacted<String>, now: SystemTime) -> Result<(String, Redacted<String>)> {
    let mut id = [0; 9];
    getrandom::fill(&mut id).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    let ends = now.duration_since(UNIX_EPOCH).unwrap_or_default() + LASTS;
    let username = format!("{}:{}", ends.as_secs(), URL_SAFE_NO_PAD.encode(id));
    let credential = sign(secret, &username);
    Ok((username, credential))
}

fn sign(secret: &Redacted<String>, username: &str) -> Redacted<String> {
    let mut mac = Hmac::<Sha1>::new_from_slice(secret.expose().as_bytes())
        .expect("HMAC takes a key of any length");
    mac.update(username.as_bytes());
    Redacted::new(STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<IceServer> {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        IceServers::parse(text).unwrap().for_viewer(now).unwrap()
    }

    #[test]
    fn servers_are_told_of_as_they_are_written() {
        let all = told(
            r#"[{"urls": "stun:stun.example.org"},
                {"urls": ["turn:t.example.org?transport=udp", "turns:t.example.org:443"],
                 "username": "u", "credential": "p"}]"#,
        );
        let urls: Vec<_> = all.iter().map(|server| server.url.as_str()).collect();
        assert_eq!(
            urls,
            [
                "stun:stun.example.org",
                "turn:t.example.org?transport=udp",
                "turns:t.example.org:443"
            ]
        );
        assert!(all[0].login.is_none());
        let (username, credential) = all[2].login.as_ref().unwrap();
        assert_eq!((username.as_str(), credential.expose().as_str()), ("u", "p"));
        assert!(!format!("{all:?}").contains("\"p\""));
    }

    #[test]
    fn a_secret_makes_credentials_that_end_and_that_only_it_can_make() {
        let text = r#"[{"urls": "turn:t.example.org", "secret": "s"}]"#;
        let login = || told(text).remove(0).login.unwrap();
        let (username, credential) = login();
        let ends = 1_000_000 + LASTS.as_secs();
        assert!(username.starts_with(&format!("{ends}:")), "{username}");
        assert_ne!(login().0, username, "each viewer has its own");
        assert_eq!(sign(&Redacted::new("s".to_owned()), &username), credential);
        // By `openssl dgst -sha1 -hmac s -binary | base64`.
        let known = sign(&Redacted::new("s".to_owned()), "1043200:viewer");
        assert_eq!(known.expose(), "e4RqEIRrDQXgc1CdzBoHoct4WBw=");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        for (text, path) in [
            (r#"[{"urls": "http://example.org"}]"#, "[0].urls"),
            (r#"[{"urls": "stun:a"}, {"urls": []}]"#, "[1].urls"),
            (r#"[{"urls": "stun:a>; rel=x"}]"#, "[0].urls"),
            (r#"[{"urls": "turn:a"}]"#, "[0].credential"),
            (r#"[{"urls": "turn:a", "username": "u"}]"#, "[0].credential"),
            (r#"[{"urls": "turn:a", "username": "u", "secret": "s"}]"#, "[0].credential"),
            (
                "[{\"urls\": \"turn:a\", \"username\": \"u\\n\", \"credential\": \"p\"}]",
                "[0].credential",
            ),
        ] {
            let error = IceServers::parse(text).unwrap_err();
            assert_eq!(error.report().issues[0].path, path, "{text}");
        }
        for text in ["", "{}", r#"[{"url": "stun:a"}]"#] {
            assert_eq!(IceServers::parse(text).unwrap_err().kind(), Kind::InvalidArgument);
        }
        let many = format!("[{{\"urls\": [{}]}}]", ["\"stun:a\""; MAX_URLS + 1].join(","));
        assert!(IceServers::parse(&many).is_err());
    }

    #[test]
    fn a_file_with_credentials_is_for_nobody_else() {
        let path = std::env::temp_dir().join(format!("spaceport-ice-{}", std::process::id()));
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            IceServers::read(&path).map_err(|error| error.kind())
        };
        let secret = r#"[{"urls": "turn:a", "secret": "s"}]"#;
        assert_eq!(write(secret, 0o644).unwrap_err(), Kind::PermissionDenied);
        assert!(write(secret, 0o600).is_ok());
        assert!(write(r#"[{"urls": "stun:a"}]"#, 0o644).is_ok());
        fs::remove_file(&path).unwrap();
        assert_eq!(IceServers::read(&path).unwrap_err().kind(), Kind::NotFound);
    }
}
