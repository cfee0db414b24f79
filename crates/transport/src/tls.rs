//! TLS over TCP, both halves: a server with a certificate from files, and a client that trusts what the
//! system trusts.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use spaceport_types::{Error, Kind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::quic::provider;

/// How long connecting may take, the handshake included.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server's certificate and key. Cloning it makes another handle.
#[derive(Clone)]
pub struct Certificate {
    inner: Arc<Files>,
    acceptor: TlsAcceptor,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    /// When the files were last changed, as far as that was read.
    read: Mutex<[Option<SystemTime>; 2]>,
    certified: RwLock<Arc<CertifiedKey>>,
}

impl Certificate {
    /// Reads both from PEM files: the certificate with what leads to its authority, and the key.
    ///
    /// # Errors
    ///
    /// `io` for files that cannot be read, `invalid_argument` for what is in them.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self> {
        let files = Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            read: Mutex::new(changed(certificate, key)),
            certified: RwLock::new(Arc::new(certified(certificate, key)?)),
        };
        let inner = Arc::new(files);
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&inner) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { inner, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Reads the files again where they have changed, as they do when a certificate is renewed; says whether.
    /// What is in use stays when they are no good.
    ///
    /// # Errors
    ///
    /// As [`Certificate::load`].
    pub fn refresh(&self) -> Result<bool> {
        let files = &self.inner;
        let now = changed(&files.certificate, &files.key);
        {
            let mut read = files.read.lock().unwrap_or_else(PoisonError::into_inner);
            if *read == now {
                return Ok(false);
            }
            *read = now;
        }
        let renewed = certified(&files.certificate, &files.key)?;
        *files.certified.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(renewed);
        Ok(true)
    }

    /// The server's half of a handshake.
    pub(crate) async fn accept(&self, stream: TcpStream) -> std::io::Result<Stream> {
        Ok(Stream::Server(Box::new(self.acceptor.accept(stream).await?)))
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("file", &self.inner.certificate).finish_non_exhaustive()
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.certified.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// A connection, with TLS or without.
pub enum Stream {
    /// Without.
    Plain(TcpStream),
    /// A client's, with it.
    Client(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    /// A server's, with it.
    Server(Box<tokio_rustls::server::TlsStream<TcpStream>>),
}

impl Stream {
    /// The connection below.
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Client(stream) => stream.get_ref().0,
            Self::Server(stream) => stream.get_ref().0,
        }
    }
}

/// Connects to `host` (an IPv6 address without brackets), with TLS where that is `secure`. The server's
/// certificate is checked against what the system trusts; `SSL_CERT_FILE` names others.
///
/// # Errors
///
/// `io` when nobody answers, `timeout`, and `permission_denied` for a server
/// that cannot show that it is `host`.
pub async fn connect(host: &str, port: u16, secure: bool) -> Result<Stream> {
    let place =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let failed = |error: std::io::Error| {
        Error::new(Kind::Io, format!("cannot connect to `{place}`"))
            .with("address", &place)
            .with("reason", error)
    };
    let connecting = async {
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if !secure {
            return Ok(Stream::Plain(stream));
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            Error::new(Kind::InvalidArgument, format!("`{host}` cannot be a server's name"))
                .source(error)
        })?;
        let connector = TlsConnector::from(trusting()?);
        match connector.connect(name, stream).await {
            Ok(stream) => Ok(Stream::Client(Box::new(stream))),
            Err(error) if is_certificate(&error) => Err(Error::new(
                Kind::PermissionDenied,
                format!("`{place}` cannot show that it is `{host}`"),
            )
            .with("address", &place)
            .with("reason", error)
            .hint(
                "Set `SSL_CERT_FILE` to the certificate of its authority, if that is a private one",
            )),
            Err(error) => Err(failed(error)),
        }
    };
    timeout(PATIENCE, connecting).await.unwrap_or_else(|_| {
        Err(Error::new(Kind::Timeout, format!("`{place}` did not answer within {PATIENCE:?}"))
            .with("address", &place))
    })
}

/// What the system trusts. Read at each connection, of which there are few: certificates of authorities change
/// while a guest runs.
fn trusting() -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::new(Kind::HostCapabilityMissing, "this machine trusts no authority")
            .hint("Install `ca-certificates`, or set `SSL_CERT_FILE`"));
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn is_certificate(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

fn certified(certificate: &Path, key: &Path) -> Result<CertifiedKey> {
    let wrong = |path: &Path, what: &str| {
        Error::new(Kind::InvalidArgument, format!("`{}` holds no {what}", path.display()))
            .with("path", path.display())
            .hint("Give PEM files: the certificate with its chain, and its private key")
    };
    let read = |path: &Path| {
        fs::read(path).map_err(|error| {
            Error::new(Kind::Io, format!("`{}` cannot be read", path.display()))
                .with("path", path.display())
                .source(error)
        })
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(certificate)?)
        .collect::<Result<_, _>>()
        .map_err(|_| wrong(certificate, "certificate that can be read"))?;
    if chain.is_empty() {
        return Err(wrong(certificate, "certificate"));
    }
    // Without the source, which might quote from a key.
    let secret =
        PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| wrong(key, "private key"))?;
    let signing = provider()
        .key_provider
        .load_private_key(secret)
        .map_err(|_| wrong(key, "private key of a known kind"))?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(_) => Err(wrong(key, "key of that certificate")),
    }
}

fn changed(certificate: &Path, key: &Path) -> [Option<SystemTime>; 2] {
    [certificate, key].map(|path| fs::metadata(path).and_then(|it| it.modified()).ok())
}

fn unusable(error: rustls::Error) -> Error {
    Error::new(Kind::Internal, "TLS cannot be set up").source(error)
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Stream::Plain",
            Self::Client(_) => "Stream::Client",
            Self::Server(_) => "Stream::Server",
        })
    }
}

/// Calls the same method on whichever it is.
macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Plain($stream) => $call,
            Stream::Client($stream) => $call,
            Stream::Server($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(cx, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Client(stream) => stream.is_write_vectored(),
            Self::Server(stream) => stream.is_write_vectored(),
        }
    }
}
