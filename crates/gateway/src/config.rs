//! What a gateway is told before it starts, and the values that follow from it.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use spaceport_relay::uplink;
use spaceport_session::Limits;
use spaceport_state::private;
use spaceport_teleport::Machine;
use spaceport_transport::whep::IceServers;
use spaceport_types::{Error, Kind, Redacted, Result};

/// The TCP port of a Space, by the public contract.
pub const HTTP_PORT: u16 = 3211;

/// The UDP port for QUIC and WebTransport, by the public contract.
pub const QUIC_PORT: u16 = 3212;

/// The UDP port that all WebRTC peers share.
pub const WEBRTC_PORT: u16 = 3213;

/// Configuration of one gateway. Flags, environment and files end up here.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where HTTP, gRPC and the media socket listen. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The UDP port for QUIC and WebTransport, on the same address. 0 takes a free one.
    pub quic_port: u16,
    /// The UDP port for WebRTC, on the same address. 0 takes a free one.
    pub webrtc_port: u16,
    /// Further addresses at which WebRTC peers can reach this machine, for example its public one.
    pub advertise: Vec<IpAddr>,
    /// STUN and TURN servers that WebRTC viewers are told of.
    pub ice_servers: IceServers,
    /// The X display to show, for example `:0`. `None`: what the environment says.
    pub display: Option<String>,
    /// Start a virtual desktop with something moving on it, and show that.
    pub demo: bool,
    /// Offer the generated test pattern as a further display.
    pub test_pattern: bool,
    /// Where the token, the endpoints and everything else that outlives a run is kept.
    pub state_dir: PathBuf,
    /// The Space token. `None`: the one in the state directory, made when missing.
    pub token: Option<Redacted<String>>,
    /// The user's home, where relative paths of clients start. `None`: [`Config::files_root`], and
    /// without that no files are served.
    pub home: Option<PathBuf>,
    /// The folder that files may be read and written below. `None`: the home.
    pub files_root: Option<PathBuf>,
    /// Where files that are sent arrive. `None`: `Downloads` in the home.
    pub downloads_dir: Option<PathBuf>,
    /// Where apps live that sessions are moved into. `None`: none are.
    pub machine: Option<Machine>,
    /// Seal what the printed viewer page shows, from here to the page.
    pub sealed: bool,
    /// Media sessions at one time. Each takes a few sockets, so this is what bounds a crowd.
    pub max_sessions: usize,
    /// The relay by which others reach this machine. `None`: by its own address alone.
    pub relay: Option<uplink::Config>,
    /// Which encoder to use, by name; no video of another codec is offered then. `None`: for each codec
    /// the first that works.
    pub encoder: Option<String>,
}

impl Config {
    /// The defaults, with everything that outlives a run under `state_dir`.
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), HTTP_PORT),
            quic_port: QUIC_PORT,
            webrtc_port: WEBRTC_PORT,
            advertise: Vec::new(),
            ice_servers: IceServers::default(),
            display: None,
            demo: false,
            test_pattern: false,
            state_dir: state_dir.into(),
            token: None,
            home: None,
            files_root: None,
            downloads_dir: None,
            machine: None,
            sealed: false,
            relay: None,
            max_sessions: Limits::default().sessions,
            encoder: None,
        }
    }

    /// The token clients have to show: the configured one, or the one in the state directory.
    ///
    /// A token that nobody chose is only good enough where nobody else can reach it, so listening
    /// beyond loopback without one is refused.
    ///
    /// # Errors
    ///
    /// `precondition_failed` for a bind beyond loopback without a token; `io` when the state
    /// directory cannot be used.
    pub fn resolve_token(&self) -> Result<Redacted<String>> {
        if let Some(token) = &self.token {
            return check_token(token.clone());
        }
        if !self.listen.ip().is_loopback() {
            return Err(Error::new(
                Kind::PreconditionFailed,
                format!("listening on `{}` needs a token", self.listen),
            )
            .with("listen", self.listen)
            .hint("Set `SPACEPORT_TOKEN`, or give `--token-file`, or listen on 127.0.0.1"));
        }
        let path = self.token_path();
        match read_secret(&path) {
            Ok(token) => Ok(token),
            Err(error) if error.kind() == Kind::NotFound => {
                let token = random_token()?;
                // Another gateway may start on the same folder just now; both use what came first.
                if create_private(&path, token.expose())? { Ok(token) } else { read_secret(&path) }
            }
            Err(error) => Err(error),
        }
    }

    /// What teleport keeps: consent, keys, what is on its way, what was imported.
    pub fn teleport_dir(&self) -> PathBuf {
        self.state_dir.join("teleport")
    }

    /// Where it is kept as whom this machine has joined relays.
    pub fn relay_path(&self) -> PathBuf {
        self.state_dir.join("relay.json")
    }

    /// Where a generated token is kept.
    pub fn token_path(&self) -> PathBuf {
        self.state_dir.join("token")
    }
}

/// Reads a token from a file that nobody else can read.
///
/// # Errors
///
/// `not_found`, `permission_denied` when others can read it, `invalid_argument` when it is empty,
/// `io` otherwise.
pub fn read_secret(path: &Path) -> Result<Redacted<String>> {
    let text = read_private(path)?;
    let token = Redacted::new(text.expose().trim().to_owned());
    check_token(token).map_err(|error| error.with("path", path.display()))
}

/// Reads a file that nobody else can read.
pub(crate) fn read_private(path: &Path) -> Result<Redacted<String>> {
    let shown = path.display().to_string();
    let metadata = fs::metadata(path).map_err(|error| {
        let kind = match error.kind() {
            ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Io,
        };
        Error::new(kind, format!("`{shown}` cannot be read")).with("path", &shown).source(error)
    })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::new(
            Kind::PermissionDenied,
            format!("`{shown}` can be read by others (mode {mode:03o})"),
        )
        .with("path", &shown)
        .hint(format!("Run `chmod 600 {shown}`")));
    }
    let text = fs::read(path).map_err(|error| {
        Error::new(Kind::Io, format!("`{shown}` cannot be read")).with("path", &shown).source(error)
    })?;
    // What is not text fits nothing that is kept here, and is refused for that.
    Ok(Redacted::new(String::from_utf8_lossy(&text).into_owned()))
}

/// Writes a file that only its owner can read, whole or not at all.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<()> {
    private::replace(path, content.as_bytes()).map_err(|error| unwritable(path, error))
}

/// The same for a file that is not there yet; false when it is.
fn create_private(path: &Path, content: &str) -> Result<bool> {
    private::create(path, content.as_bytes()).map_err(|error| unwritable(path, error))
}

fn unwritable(path: &Path, error: Error) -> Error {
    Error::new(Kind::Io, format!("`{}` cannot be written", path.display()))
        .with("path", path.display())
        .hint("Give a folder you may write to with `--state-dir`, with room in it")
        .source(error)
}

/// A token must fit an HTTP header, and there must be one.
fn check_token(token: Redacted<String>) -> Result<Redacted<String>> {
    let text = token.expose();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::new(
            Kind::InvalidArgument,
            "the token is empty or has characters that do not fit a header",
        )
        .hint("Use letters, digits and punctuation, without spaces"));
    }
    Ok(token)
}

fn random_token() -> Result<Redacted<String>> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(Redacted::new(URL_SAFE_NO_PAD.encode(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir()
                .join(format!("spaceport-config-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn a_generated_token_is_kept_private_and_used_again() {
        let folder = Folder::new("generated");
        let config = Config::new(&folder.0);
        let first = config.resolve_token().unwrap();
        assert_eq!(config.resolve_token().unwrap(), first);
        let mode = fs::metadata(config.token_path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn of_two_generated_tokens_the_first_is_kept() {
        let folder = Folder::new("race");
        let path = folder.0.join("token");
        assert!(create_private(&path, "first").unwrap());
        assert!(!create_private(&path, "second").unwrap());
        assert_eq!(read_secret(&path).unwrap().expose(), "first");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing else stays");
    }

    #[test]
    fn a_token_file_that_holds_no_token_is_named() {
        let folder = Folder::new("unusable");
        let path = folder.0.join("token");
        for content in [b"".as_slice(), b"two words", b"\xff\xfe"] {
            write_private(&path, "").unwrap();
            fs::write(&path, content).unwrap();
            let error = read_secret(&path).unwrap_err();
            assert_eq!(error.kind(), Kind::InvalidArgument);
            assert_eq!(error.context("path"), path.to_str());
        }
    }

    #[test]
    fn a_token_file_that_others_can_read_is_refused() {
        let folder = Folder::new("readable");
        let path = folder.0.join("token");
        fs::write(&path, "secret\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_secret(&path).unwrap_err().kind(), Kind::PermissionDenied);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secret(&path).unwrap().expose(), "secret");
    }

    #[test]
    fn beyond_loopback_a_token_must_be_chosen() {
        let folder = Folder::new("beyond");
        let mut config = Config::new(&folder.0);
        config.listen = "0.0.0.0:0".parse().unwrap();
        let error = config.resolve_token().unwrap_err();
        assert_eq!(error.kind(), Kind::PreconditionFailed);
        assert!(error.report().hint.unwrap().contains("SPACEPORT_TOKEN"));
        config.token = Some(Redacted::new("chosen".to_owned()));
        assert_eq!(config.resolve_token().unwrap().expose(), "chosen");
    }
}
