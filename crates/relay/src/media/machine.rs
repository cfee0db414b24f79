//! What the relay has of one machine: its sessions, for as long as somebody watches them here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use spaceport_session::{Adopt, Closing, Launch, Limits, Policy, Publisher, Sessions, Settings};
use spaceport_transport::{Clock, Pass};
use spaceport_types::{
    Bitrate, Cause, Codec, Error, Geometry, Kind, MachineId, Redacted, Result, SessionId, Size,
};
use spaceport_wire::control;
use spaceport_wire::relay::Head;
use spaceport_wire::relay_media::{Admit, Admitted, FromSession, Resume, Way};
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::edge::Machines;
use super::follow;
use crate::tunnel::{Reader, Stream, Tunnel};

/// How long a machine may take to judge a viewer: it may have to ask its X server.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two tries to take up a session at a machine that is away: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The longest side of a frame that anybody has a screen or a decoder for.
const MAX_SIDE: u32 = 32 << 10;

/// One machine, as the relay's viewers have it.
#[derive(Debug)]
pub(super) struct Machine {
    id: MachineId,
    directory: Arc<dyn Machines>,
    sessions: Sessions,
    held: Mutex<HashMap<SessionId, Held>>,
    clock: GuestClock,
    me: Weak<Self>,
}

/// A session that the machine holds for us.
#[derive(Debug)]
struct Held {
    /// The tunnel on which it does, while there is one.
    tunnel: watch::Receiver<Option<Tunnel>>,
}

/// What a viewer gets who is let in.
pub(super) struct Entry {
    pub(super) pass: Pass,
    pub(super) codecs: Vec<Codec>,
    /// Takes the session up again at the machine, from wherever.
    pub(super) key: Redacted<String>,
}

impl Machine {
    pub(super) fn new(id: MachineId, directory: Arc<dyn Machines>, limits: Limits) -> Arc<Self> {
        let runtime = Handle::current();
        Arc::new_cyclic(|me: &Weak<Self>| {
            let launch = Launcher { machine: me.clone(), runtime };
            Self {
                id,
                directory,
                sessions: Sessions::new(limits, Arc::new(launch)),
                held: Mutex::default(),
                clock: GuestClock::new(),
                me: me.clone(),
            }
        })
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(super) fn clock(&self) -> &GuestClock {
        &self.clock
    }

    /// The tunnel on which a session is held, now and later; `None` for one that is not.
    pub(super) fn held(&self, id: &SessionId) -> Option<watch::Receiver<Option<Tunnel>>> {
        self.lock().get(id).map(|held| held.tunnel.clone())
    }

    /// Has the machine judge a secret.
    pub(super) async fn admit(&self, secret: &str, way: Way) -> Result<Entry> {
        let secret = Redacted::new(secret.to_owned());
        self.enter(&Head::Admit(Admit { secret, way })).await
    }

    /// Takes up a session that another relay had through this one, before this one forgot it.
    pub(super) async fn resume(&self, resume: &Resume) -> Result<Entry> {
        self.enter(&Head::Resume(resume.clone())).await
    }

    async fn enter(&self, head: &Head) -> Result<Entry> {
        let tunnel = self.directory.find(&self.id).await?;
        let began = Instant::now();
        let (stream, admitted) = ask(&tunnel, head).await?;
        self.clock.learn(began, Instant::now(), admitted.clock_us);
        self.open(&admitted)?;
        let id = SessionId::new(admitted.session_id.as_str());
        let (codecs, key) = (admitted.codecs.clone(), admitted.key.clone());
        self.keep(&id, admitted.key, tunnel, stream).await?;
        let clock = self.me.clone();
        let clock =
            Clock::new(move || clock.upgrade().map(|me| me.clock.now()).unwrap_or_default());
        Ok(Entry {
            pass: Pass { sessions: self.sessions.clone(), session: id, clock },
            codecs,
            key,
        })
    }

    /// Opens what the machine says it has, unless it is open.
    fn open(&self, admitted: &Admitted) -> Result<()> {
        let geometry = sane(admitted.geometry)?;
        /// Ours have 28 characters.
        const LONGEST_ID: usize = 128;
        if admitted.session_id.len() > LONGEST_ID {
            return Err(lie("a session's name that is too long"));
        }
        let session = Adopt {
            id: SessionId::new(admitted.session_id.as_str()),
            target: admitted.target.clone(),
            codec: admitted.codec,
            settings: Settings {
                max_fps: admitted.max_fps,
                max_dimension: admitted.max_dimension,
                bitrate: Bitrate::from_kbps(admitted.bitrate_kbps),
            },
            policy: match admitted.policy {
                control::Policy::ViewOnly => Policy::ViewOnly,
                control::Policy::BackgroundOnly => Policy::BackgroundOnly,
                control::Policy::AllowActivation => Policy::AllowActivation,
            },
            geometry,
            sealed: admitted.sealed,
        };
        self.sessions.adopt(session, Instant::now().into_std()).map(drop)
    }

    /// Keeps the stream that holds a session, if it is the first. The others are not needed.
    async fn keep(
        &self,
        id: &SessionId,
        key: Redacted<String>,
        tunnel: Tunnel,
        mut stream: Reader<Stream, FromSession>,
    ) -> Result<()> {
        let closing = self.sessions.closing(id)?;
        let sender = {
            let mut held = self.lock();
            if held.contains_key(id) {
                None
            } else {
                let (sender, receiver) = watch::channel(Some(tunnel));
                held.insert(id.clone(), Held { tunnel: receiver });
                Some(sender)
            }
        };
        let Some(sender) = sender else {
            // Ended, and not broken off: that would mean that the tunnel is lost.
            let_go(&mut stream).await;
            return Ok(());
        };
        let first = sender.borrow().clone();
        let keeper = Keeper { id: id.clone(), key, closing, tunnel: sender };
        if let Some(me) = self.me.upgrade() {
            tokio::spawn(async move {
                let id = keeper.id.clone();
                keeper.run(&me, first, stream).await;
                me.lock().remove(&id);
            });
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds one session at the machine for as long as it is open here, over any number of tunnels.
struct Keeper {
    id: SessionId,
    key: Redacted<String>,
    closing: Closing,
    tunnel: watch::Sender<Option<Tunnel>>,
}

impl Keeper {
    async fn run(
        self,
        machine: &Machine,
        mut tunnel: Option<Tunnel>,
        mut stream: Reader<Stream, FromSession>,
    ) {
        loop {
            let said = tokio::select! {
                said = stream.next() => said,
                () = over(tunnel.as_ref()) => Ok(None),
                () = left(tunnel.as_ref()) => {
                    // The session goes over first. A stream that is watched stays where it is.
                    let resumed = tokio::select! {
                        resumed = self.resume(machine) => resumed,
                        _ = self.closing.closed() => return let_go(&mut stream).await,
                    };
                    match resumed {
                        Ok((again, resumed)) => {
                            drop(timeout(PATIENCE, let_go(&mut stream)).await);
                            stream = resumed;
                            tunnel = Some(again.clone());
                            self.tunnel.send_replace(Some(again));
                            continue;
                        }
                        Err(error) => return self.close(machine, error),
                    }
                }
                _ = self.closing.closed() => {
                    let_go(&mut stream).await;
                    return;
                }
            };
            if let Ok(Some(FromSession::Closed(reason) | FromSession::Refused(reason))) = said {
                return self.close(machine, Error::from(reason));
            }
            // Nothing else is said there, so that the stream is of no use any more.
            self.tunnel.send_replace(None);
            tracing::info!(session = self.id.short(), machine = %machine.id, "session is cut off");
            let resumed = tokio::select! {
                resumed = self.resume(machine) => resumed,
                _ = self.closing.closed() => return,
            };
            match resumed {
                Ok((again, resumed)) => {
                    stream = resumed;
                    tunnel = Some(again.clone());
                    self.tunnel.send_replace(Some(again));
                }
                Err(error) => return self.close(machine, error),
            }
        }
    }

    /// Takes the session up again, whenever the machine is back.
    async fn resume(&self, machine: &Machine) -> Result<(Tunnel, Reader<Stream, FromSession>)> {
        let mut wait = AGAIN.0;
        loop {
            let resume = Resume { session_id: self.id.to_string(), key: self.key.clone() };
            let found = machine.directory.find(&machine.id).await;
            let error = match found {
                Ok(tunnel) => match ask(&tunnel, &Head::Resume(resume)).await {
                    Ok((stream, admitted)) => {
                        machine.open(&admitted)?;
                        return Ok((tunnel, stream));
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if matches!(error.cause(), Some(Cause::SessionClosed)) || error.kind() == Kind::NotFound
            {
                return Err(error);
            }
            tracing::debug!(%error, session = self.id.short(), "not resumed yet");
            sleep(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        }
    }

    fn close(&self, machine: &Machine, reason: Error) {
        // It may be closed already.
        drop(machine.sessions.close_because(&self.id, reason));
    }
}

/// Tells the machine that the session is not needed any more. A stream that ends without this was lost.
async fn let_go(stream: &mut Reader<Stream, FromSession>) {
    if stream.get_mut().write_all(&[0]).await.is_ok() {
        drop(stream.get_mut().shutdown().await);
    }
}

/// Waits for the end of a tunnel: streams do not always tell of it when it comes from this side.
async fn over(tunnel: Option<&Tunnel>) {
    match tunnel {
        Some(tunnel) => tunnel.closed().await,
        None => std::future::pending().await,
    }
}

/// Waits until the machine has moved to a later tunnel.
async fn left(tunnel: Option<&Tunnel>) {
    match tunnel {
        Some(tunnel) => tunnel.left().await,
        None => std::future::pending().await,
    }
}

/// Opens a stream that holds a session, and reads the answer.
async fn ask(tunnel: &Tunnel, head: &Head) -> Result<(Reader<Stream, FromSession>, Admitted)> {
    let asking = async {
        let mut stream = Reader::new(tunnel.open(head).await?);
        match stream.next().await.map_err(broken_off)? {
            Some(FromSession::Admitted(admitted)) => Ok((stream, *admitted)),
            Some(FromSession::Refused(refusal)) => Err(Error::from(refusal)),
            Some(FromSession::Closed(_)) | None => Err(lie("no answer")),
        }
    };
    timeout(PATIENCE, asking).await.unwrap_or_else(|_| {
        Err(Error::new(Kind::Relay, "the machine did not answer in time")
            .hint("Try again in a moment"))
    })
}

/// What a viewer is told where the tunnel, or the machine, let go of its question.
fn broken_off(error: Error) -> Error {
    if error.kind() != Kind::Io {
        return error;
    }
    Error::new(Kind::Relay, "the connection to the machine broke off")
        .hint("Try again in a moment")
        .source(error)
}

/// A geometry that a frame can have.
pub(super) fn sane(geometry: Geometry) -> Result<Geometry> {
    let fits = |width: u32, height: u32| width <= MAX_SIDE && height <= MAX_SIDE;
    let Size { width, height } = geometry.frame_size;
    let bounds = geometry.logical_bounds;
    let scale = geometry.scale;
    if fits(width, height) && fits(bounds.width, bounds.height) && scale.is_finite() && scale >= 0.0
    {
        Ok(geometry)
    } else {
        Err(lie("a picture of a size that none has"))
    }
}

/// The machine did not keep to what is agreed.
pub(super) fn lie(what: &str) -> Error {
    Error::new(Kind::Relay, format!("the machine sent {what}"))
        .hint("Update spaceport on the machine, and report this if it happens again")
}

/// Starts what follows a stream of the machine.
struct Launcher {
    machine: Weak<Machine>,
    runtime: Handle,
}

impl Launch for Launcher {
    fn launch(&self, publisher: Publisher) {
        if let Some(machine) = self.machine.upgrade() {
            self.runtime.spawn(follow::run(machine, publisher));
        }
    }
}

/// The clock that a machine's packets are stamped with, told from what it says of it.
#[derive(Debug)]
pub(super) struct GuestClock {
    origin: Instant,
    /// How long the exchange took that the difference is from, that difference in microseconds, and when.
    known: Mutex<Option<(Duration, i64, Instant)>>,
}

/// What was learned so long ago is worth less than what is learned now: clocks drift.
const STALE: Duration = Duration::from_secs(60);

impl GuestClock {
    fn new() -> Self {
        Self { origin: Instant::now(), known: Mutex::default() }
    }

    /// The machine's clock stood at `clock_us` at some time between the two.
    pub(super) fn learn(&self, began: Instant, ended: Instant, clock_us: u64) {
        let took = ended.saturating_duration_since(began);
        let middle = began + took / 2;
        let difference =
            i64::try_from(clock_us).unwrap_or(i64::MAX).saturating_sub(self.at(middle));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let better = known.is_none_or(|(before, _, at)| took <= before || ended > at + STALE);
        if better {
            *known = Some((took, difference, ended));
        }
    }

    pub(super) fn now(&self) -> Duration {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let difference = known.map_or(0, |(_, difference, _)| difference);
        let time = self.at(Instant::now()).saturating_add(difference);
        Duration::from_micros(u64::try_from(time).unwrap_or_default())
    }

    fn at(&self, now: Instant) -> i64 {
        let passed = now.saturating_duration_since(self.origin).as_micros();
        i64::try_from(passed).unwrap_or(i64::MAX)
    }
}
