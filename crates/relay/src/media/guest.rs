//! The machine's side: judges who comes to the relay, and gives the relay what it was shown a ticket for.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::BoxFuture;
use spaceport_session::{Attach, Carrier, Cursor, Hold, Policy};
use spaceport_transport::{Pass, relayed};
use spaceport_types::{Bitrate, Cause, Codec, Error, Kind, Redacted, Result, SessionId};
use spaceport_wire::control;
use spaceport_wire::relay::{Head, Refusal};
use spaceport_wire::relay_media::{Admit, Admitted, FromSession, Resume, Watch, Way};
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::tunnel::write;

/// How long a session is kept for a relay whose tunnel was lost: longer than a relay takes to start again, or a
/// network to come back, and no longer than viewers wait for it.
const KEPT: Duration = Duration::from_secs(60);

/// Judges secrets; the gateway implements it.
pub trait Host: Send + Sync + 'static {
    /// What `secret` opens for one who comes in this way.
    ///
    /// # Errors
    ///
    /// What the viewer is told.
    fn admit<'a>(&'a self, secret: &'a str, way: &'a Way) -> BoxFuture<'a, Result<Admission>>;

    /// A session that is not known here, by its key. Only who has it from elsewhere can know more.
    ///
    /// # Errors
    ///
    /// That it is over.
    fn resume<'a>(&'a self, resume: &'a Resume) -> BoxFuture<'a, Result<Admission>> {
        let _ = resume;
        Box::pin(async { Err(over()) })
    }
}

/// What somebody who is let in may watch.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The session.
    pub pass: Pass,
    /// What this machine can encode as video, the best first.
    pub codecs: Vec<Codec>,
    /// What takes the session up again, where it has a key already; or else one is made.
    pub key: Option<Redacted<String>>,
}

/// What one relay may watch of this machine. Cloning it makes another handle.
#[derive(Clone)]
pub struct Guest {
    inner: Arc<Inner>,
}

struct Inner {
    host: Arc<dyn Host>,
    /// The sessions that the relay was shown a ticket for.
    shown: Mutex<HashMap<SessionId, Shown>>,
}

#[derive(Clone)]
struct Shown {
    admission: Admission,
    /// Takes the session up again.
    key: Redacted<String>,
    /// Streams that hold it, and those that did before they were lost.
    holders: usize,
}

impl Guest {
    /// Lets in whom `host` does.
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { inner: Arc::new(Inner { host, shown: Mutex::default() }) }
    }

    /// Serves a stream that the relay has opened, after its head; returns it when it is not about media.
    pub async fn serve<S>(&self, head: Head, stream: S) -> Option<(Head, S)>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        match head {
            Head::Admit(admit) => {
                let admitted = self.admit(&admit).await;
                self.hold(admitted, stream).await;
            }
            Head::Resume(resume) => {
                let resumed = self.resume(&resume).await;
                self.hold(resumed, stream).await;
            }
            Head::Watch(watch) => self.watch(&watch, stream).await,
            other => return Some((other, stream)),
        }
        None
    }

    async fn admit(&self, Admit { secret, way }: &Admit) -> Result<Holding> {
        let admission = self.inner.host.admit(secret.expose(), way).await?;
        self.show(admission)
    }

    async fn resume(&self, resume: &Resume) -> Result<Holding> {
        let Resume { session_id, key } = resume;
        let id = SessionId::new(session_id.as_str());
        let known = self.shown().get(&id).cloned();
        let known = known
            .filter(|shown| shown.key.expose().as_bytes().ct_eq(key.expose().as_bytes()).into());
        match known {
            Some(shown) => self.show(shown.admission),
            None => self.show(self.inner.host.resume(resume).await?),
        }
    }

    /// Notes that the relay has a session, and holds that for it.
    fn show(&self, admission: Admission) -> Result<Holding> {
        let id = admission.pass.session.clone();
        let hold = admission.pass.sessions.hold(&id)?;
        let key = admission.key.clone().map_or_else(random_key, Ok)?;
        let mut shown = self.shown();
        let known = shown.entry(id).or_insert(Shown { admission, key, holders: 0 });
        known.holders += 1;
        Ok(Holding { guest: self.clone(), shown: known.clone(), hold: Some(hold) })
    }

    /// Answers, and holds the session for as long as the stream is there.
    async fn hold<S>(&self, admitted: Result<Holding>, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let described = admitted.and_then(|holding| Ok((holding.describe()?, holding)));
        let (admitted, holding) = match described {
            Ok(described) => described,
            Err(error) => {
                let refused = FromSession::Refused(Refusal::from(&error));
                drop(write(&mut stream, &refused).await);
                drop(stream.shutdown().await);
                return;
            }
        };
        if write(&mut stream, &FromSession::Admitted(Box::new(admitted))).await.is_err() {
            return;
        }
        let Some(hold) = &holding.hold else { return };
        let mut nothing = [0; 1];
        tokio::select! {
            reason = hold.closed() => {
                let closed = FromSession::Closed(Refusal::from(&*reason));
                drop(write(&mut stream, &closed).await);
                drop(stream.shutdown().await);
            }
            left = stream.read(&mut nothing) => match left {
                // The relay has let go of it.
                Ok(1..) => drop(stream.shutdown().await),
                // An end without a word: some carriers finish their streams when they are cut off.
                Ok(0) | Err(_) => return,
            },
        }
        holding.release();
    }

    async fn watch<S>(&self, watch: &Watch, mut stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let id = SessionId::new(watch.session_id.as_str());
        let shown = self.shown().get(&id).map(|shown| shown.admission.clone());
        let Some(admission) = shown else {
            tracing::warn!(session = id.short(), "a relay wants what it was shown no ticket for");
            drop(stream.shutdown().await);
            return;
        };
        let cursor = if watch.baked_cursor { Cursor::Baked } else { Cursor::Apart };
        let attach = Attach { codec: watch.codec, carrier: Carrier::Relay, cursor };
        let beyond = watch.beyond_kbps.map(Bitrate::from_kbps);
        relayed::serve(admission.pass, attach, beyond, stream).await;
    }

    fn shown(&self) -> MutexGuard<'_, HashMap<SessionId, Shown>> {
        self.inner.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("sessions", &self.shown().len()).finish_non_exhaustive()
    }
}

/// A session that is held for the relay.
struct Holding {
    guest: Guest,
    shown: Shown,
    /// Gone with [`Holding::release`].
    hold: Option<Hold>,
}

impl Holding {
    fn describe(&self) -> Result<Admitted> {
        let Admission { pass, codecs, .. } = &self.shown.admission;
        let info = pass.sessions.info(&pass.session)?;
        Ok(Admitted {
            session_id: info.id.to_string(),
            key: self.shown.key.clone(),
            target: info.target,
            codec: info.codec,
            codecs: codecs.clone(),
            max_fps: info.settings.max_fps,
            max_dimension: info.settings.max_dimension,
            bitrate_kbps: info.settings.bitrate.kbps(),
            policy: match info.policy {
                Policy::ViewOnly => control::Policy::ViewOnly,
                Policy::BackgroundOnly => control::Policy::BackgroundOnly,
                Policy::AllowActivation => control::Policy::AllowActivation,
            },
            geometry: info.geometry,
            sealed: info.sealed,
            clock_us: pass.clock.now().as_micros() as u64,
        })
    }

    /// Nobody comes back for it.
    fn release(mut self) {
        self.hold = None;
    }
}

impl Drop for Holding {
    /// Unless it was released, the tunnel was lost, whoever noticed first, and the relay may come back.
    fn drop(&mut self) {
        let id = self.shown.admission.pass.session.clone();
        let holder = Holder { guest: self.guest.clone(), id };
        if let Some(hold) = self.hold.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move {
                tokio::select! {
                    () = sleep(KEPT) => {}
                    _ = hold.closed() => {}
                }
                drop(holder);
            });
        }
    }
}

/// One of those for whom a session is known.
struct Holder {
    guest: Guest,
    id: SessionId,
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut shown = self.guest.shown();
        if let Some(known) = shown.get_mut(&self.id) {
            known.holders -= 1;
            if known.holders == 0 {
                shown.remove(&self.id);
            }
        }
    }
}

fn over() -> Error {
    Error::because(Cause::SessionClosed, "the session is not kept any more")
        .hint("Open the stream again")
}

/// 128 random bits as text.
fn random_key() -> Result<Redacted<String>> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::new(Kind::Io, "the system gave no random bytes").with("reason", error)
    })?;
    Ok(Redacted::new(URL_SAFE_NO_PAD.encode(bits)))
}
