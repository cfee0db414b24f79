//! Every verb once. `grpc` and `http` translate to and from what stands here, and add nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use spaceport_media::encode;
use spaceport_media::windows::{Placement, Watch, Window, Windows};
use spaceport_relay::uplink::Status as Uplinked;
use spaceport_relay::{Uplink, Via};
use spaceport_session::{
    Counters, Open, Policy, Preferences, SessionInfo, Sessions, Settings, Ticket,
};
use spaceport_teleport::stream::{ANYWHERE, FEATURE};
use spaceport_transport::quic;
use spaceport_types::{
    Bitrate, Bounds, Cause, Codec, Error, Geometry, Kind, MediaKey, Redacted, Result, SessionId,
    Target,
};
use tokio::time::Instant;

pub use crate::machine::{Facts, Load};
pub use crate::targets::{Display, Role, TEST_PATTERN};

use crate::auth::{Auth, ViewerGrant};
use crate::producer;
use crate::storage::Storage;
use crate::targets::Targets;
use crate::teleport::Teleport;

/// How long a viewer ticket lives when nothing is asked for.
const VIEWER_TICKET_TTL: Duration = Duration::from_secs(600);

/// The part of a gateway that a relay is reached by.
pub(crate) const RELAY: &str = "relay";

/// What clients can ask of one gateway. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    sessions: Sessions,
    auth: Arc<Auth>,
    encoder: encode::Preference,
    targets: Targets,
    windows: Windows,
    quic: quic::Endpoint,
    uplink: OnceLock<Uplink>,
    storage: Option<Storage>,
    teleport: Teleport,
    facts: Facts,
    started: Instant,
    /// Sessions opened for viewer pages, so that a page that is reloaded comes back to its own.
    viewer_sessions: Mutex<HashMap<ViewerKey, SessionId>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ViewerKey {
    target: Target,
    max_fps: u32,
    max_dimension: u32,
    key: Option<MediaKey>,
}

/// What this Space is and can do.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Version of spaceport.
    pub version: &'static str,
    /// The machine it runs on.
    pub facts: Facts,
    /// What it can show now.
    pub displays: Vec<Display>,
    /// What works, and what does not and why.
    pub features: Vec<Feature>,
    /// The UDP port for QUIC.
    pub quic_port: u16,
    /// When the gateway started.
    pub started_at: SystemTime,
}

/// The way in for viewers over QUIC and WebTransport.
#[derive(Clone, Debug)]
pub struct QuicWay {
    /// The UDP port, on the host that the viewer has reached already.
    pub port: u16,
    /// What that host is where the viewer calls it `localhost`.
    pub loopback: IpAddr,
    /// What comes before the path of a WebTransport session: empty, or `/m/<id>` at a relay.
    pub prefix: String,
    /// SHA-256 of the certificates that a viewer may meet, in lower-case hexadecimal: the one that it
    /// meets now first.
    pub certificates: Vec<String>,
}

/// One thing a Space can do, or not.
#[derive(Clone, Debug)]
pub struct Feature {
    /// Its name in the public contract.
    pub name: &'static str,
    /// Whether it works here.
    pub supported: bool,
    /// Why not, or within which limits.
    pub limitation: String,
}

/// How one part of the gateway is.
#[derive(Clone, Debug)]
pub struct Component {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with it, if something is.
    pub fault: Option<String>,
}

/// A request to open a media session, as clients make it. Zeros and `None` mean the default.
#[derive(Clone, Debug, Default)]
pub struct OpenRequest {
    /// The display, or the primary one.
    pub display: Option<String>,
    /// A window by id and epoch, instead of a display.
    pub window: Option<(String, u64)>,
    /// Codecs the client takes, the best first. Empty: any.
    pub codecs: Vec<Codec>,
    /// Frames per second at most.
    pub max_fps: u32,
    /// The longer side of a frame at most, in pixels.
    pub max_dimension: u32,
    /// Upper bound of the rate, in kilobits per second.
    pub bitrate_kbps: u32,
    /// The life of the ticket.
    pub ticket_ttl: Option<Duration>,
    /// Whether the client wants to resize the target.
    pub bidirectional: bool,
    /// What viewers may do.
    pub policy: Policy,
    /// Seals the frames between here and the viewers.
    pub key: Option<MediaKey>,
}

/// Something to do with a window.
#[derive(Clone, Copy, Debug)]
pub enum WindowAction {
    /// Raise it and give it the keyboard.
    Activate,
    /// Move or resize it.
    Place(Placement),
    /// Take it off the screen.
    Minimize,
    /// Fill the work area with it.
    Maximize,
    /// Undo either.
    Restore,
    /// Ask it to close, or make it.
    Close {
        /// Without asking.
        force: bool,
    },
}

/// An open media session, and the way in.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Names the session.
    pub session_id: SessionId,
    /// What it shows.
    pub target: Target,
    /// Opens attaches to it.
    pub ticket: Redacted<String>,
    /// When the ticket stops doing so.
    pub expires_at: SystemTime,
    /// How long that is from now; zero when the ticket was the caller's own.
    pub expires_in: Duration,
    /// Where the media socket is, relative to the gateway's origin and prefix, ticket included.
    pub ws_path: Redacted<String>,
    /// What sockets get.
    pub codec: Codec,
    /// The limits in force.
    pub settings: Settings,
    /// What frames show.
    pub geometry: Geometry,
    /// What viewers may do.
    pub policy: Policy,
    /// Whether frames are sealed from end to end.
    pub sealed: bool,
}

/// A way into the viewer page.
#[derive(Clone, Debug)]
pub struct ViewerTicket {
    /// The ticket alone.
    pub ticket: Redacted<String>,
    /// When it stops opening the page.
    pub expires_at: SystemTime,
    /// Path of the page with the ticket in the fragment, where no server or proxy logs it.
    pub viewer_path: Redacted<String>,
}

impl Service {
    #[expect(clippy::too_many_arguments, reason = "the parts of a Space, each named once")]
    pub(crate) fn new(
        sessions: Sessions,
        auth: Arc<Auth>,
        encoder: encode::Preference,
        targets: Targets,
        windows: Windows,
        quic: quic::Endpoint,
        storage: Option<Storage>,
        teleport: Teleport,
    ) -> Self {
        // Trying the encoders takes a moment, which should not be that of the first who asks.
        let probe = std::thread::Builder::new().name("probe".to_owned()).spawn(encode::probe);
        if let Err(error) = probe {
            tracing::debug!(%error, "encoders are tried later");
        }
        Self {
            inner: Arc::new(Inner {
                sessions,
                auth,
                encoder,
                targets,
                windows,
                quic,
                uplink: OnceLock::new(),
                storage,
                teleport,
                facts: Facts::read(),
                started: Instant::now(),
                viewer_sessions: Mutex::default(),
            }),
        }
    }

    /// The media sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.inner.sessions
    }

    /// The files of this Space.
    ///
    /// # Errors
    ///
    /// `capability_missing` where there is no home to serve.
    pub fn storage(&self) -> Result<Storage> {
        self.inner.storage.clone().ok_or_else(|| {
            Error::new(Kind::CapabilityMissing, "this Space serves no files")
                .with("feature", "filesystem")
                .hint("Start `spaceport serve` with `HOME` set, or with `--files-root`")
        })
    }

    /// Totals over everything that was captured, encoded and delivered.
    pub fn counters(&self) -> &Counters {
        self.inner.sessions.counters()
    }

    /// The way in for viewers over QUIC and WebTransport.
    ///
    /// Whoever came by a relay goes in there, where that is possible: this machine is out of reach.
    pub fn quic(&self, via: Option<&Via>) -> Option<QuicWay> {
        let Some(via) = via else {
            let quic = &self.inner.quic;
            let (address, certificates) = (quic.local_addr(), quic.identity().hashes());
            let loopback = match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            return Some(QuicWay {
                port: address.port(),
                loopback,
                prefix: String::new(),
                certificates,
            });
        };
        let quic = via.quic.clone()?;
        Some(QuicWay {
            port: quic.port,
            // Which family the relay listens on is not known here.
            loopback: Ipv4Addr::LOCALHOST.into(),
            prefix: via.prefix.clone(),
            certificates: quic.certificates,
        })
    }

    /// Takes note of the relay by which others reach this machine.
    pub(crate) fn reached_by(&self, uplink: Uplink) {
        // There is one, from the start.
        drop(self.inner.uplink.set(uplink));
    }

    /// The relay by which others reach this machine.
    pub fn uplink(&self) -> Option<&Uplink> {
        self.inner.uplink.get()
    }

    pub(crate) fn teleport(&self) -> &Teleport {
        &self.inner.teleport
    }

    /// Lets go of the X server, which may be about to end. Nothing of it can be asked any more.
    pub(crate) fn end_windows(&self) {
        self.inner.windows.end();
    }

    pub(crate) fn auth(&self) -> &Arc<Auth> {
        &self.inner.auth
    }

    /// Whether files are taken over a sealed line, for a feature that is no more than that.
    fn sealed(&self, name: &'static str) -> Feature {
        let limitation = match (&self.inner.storage, self.seal_key().is_empty()) {
            (Some(_), false) => "",
            (Some(_), true) => "there is no key that it could be sealed to",
            (None, _) => "started without a home",
        };
        Feature { name, supported: limitation.is_empty(), limitation: limitation.to_owned() }
    }

    /// What this Space is and can do.
    pub async fn capabilities(&self) -> Capabilities {
        let displays = self.displays().await;
        let screen = displays.as_ref().err().map(explain);
        let desktop = displays.as_ref().err().map(explain);
        let missing = |name, why: &str| Feature { name, supported: false, limitation: why.into() };
        let service = self.clone();
        let teleport = blocking(move || Ok(service.teleport_features())).await.unwrap_or_default();
        let mut features = vec![
            Feature {
                name: "desktop_stream",
                supported: desktop.is_none(),
                limitation: desktop.clone().unwrap_or_default(),
            },
            h264_feature("h264_sw", false, &self.inner.encoder),
            h264_feature("h264_hw", true, &self.inner.encoder),
            Feature {
                name: "window_stream",
                supported: desktop.is_none(),
                limitation: desktop.unwrap_or_default(),
            },
            Feature {
                name: "windows",
                supported: screen.is_none(),
                limitation: screen.unwrap_or_default(),
            },
            match &self.inner.storage {
                Some(_) => {
                    Feature { name: "filesystem", supported: true, limitation: String::new() }
                }
                None => missing("filesystem", "started without a home"),
            },
            self.sealed(FEATURE),
            self.sealed(ANYWHERE),
            missing("fs_watch", "changes are not watched"),
            missing("process", "no processes are run for clients"),
            missing("audio.desktop", "this version streams pictures only"),
            Feature { name: "quic_media", supported: true, limitation: String::new() },
        ];
        features.extend(teleport);
        Capabilities {
            version: env!("CARGO_PKG_VERSION"),
            facts: self.inner.facts.clone(),
            displays: displays.unwrap_or_default(),
            features,
            quic_port: self.inner.quic.local_addr().port(),
            started_at: wall_clock(self.inner.started),
        }
    }

    /// How the gateway's parts are, and how long it has run.
    pub async fn health(&self) -> (Vec<Component>, Duration) {
        let display = self.displays().await.err().map(|error| explain(&error));
        let encoder = self.video_codecs().is_empty().then(|| "no encoder works".to_owned());
        let mut components = vec![
            Component { name: "display", fault: display },
            Component { name: "encoder", fault: encoder },
        ];
        if let Some(uplink) = self.uplink() {
            let fault = match uplink.status() {
                Uplinked::Online { .. } => None,
                Uplinked::Connecting => Some("not connected yet".to_owned()),
                Uplinked::Offline { reason } => Some(reason),
            };
            components.push(Component { name: RELAY, fault });
        }
        (components, self.inner.started.elapsed())
    }

    /// How busy the machine is; `disk` names the file system to look at.
    pub fn load(&self, disk: &Path) -> Load {
        Load::read(disk)
    }

    /// What can be shown now, the primary display first.
    ///
    /// # Errors
    ///
    /// `stream` with cause `capture_failed` when there is no display to show.
    pub async fn displays(&self) -> Result<Vec<Display>> {
        let targets = self.inner.targets.clone();
        blocking(move || targets.displays()).await
    }

    /// The displays, the primary one first, and where there are several, the desktop that they make
    /// up.
    ///
    /// # Errors
    ///
    /// As [`Service::displays`].
    pub async fn displays_and_desktop(&self) -> Result<Vec<Display>> {
        let targets = self.inner.targets.clone();
        let mut displays = blocking(move || targets.all()).await?;
        displays.retain(|display| display.role != Role::Alias);
        Ok(displays)
    }

    /// What this machine can encode as video, the best first.
    pub fn video_codecs(&self) -> Vec<Codec> {
        producer::video_codecs(&self.inner.encoder)
    }

    /// What this machine can encode, the best first; at the end, what it can send without encoding.
    pub fn codecs(&self) -> Vec<Codec> {
        self.inner.encoder.codecs()
    }

    /// Opens a media session.
    ///
    /// # Errors
    ///
    /// `not_found` for an unknown display or window, `precondition_failed` for a window of another
    /// epoch, `stream` with cause `codec_unavailable` or `capture_failed`, and what
    /// [`Sessions::open`] returns.
    pub async fn open(&self, request: OpenRequest) -> Result<Opened> {
        let (info, ticket) = self.open_session(request).await?;
        Ok(opened(info, &ticket))
    }

    async fn open_session(&self, request: OpenRequest) -> Result<(SessionInfo, Ticket)> {
        let codec = self.choose_codec(&request.codecs)?;
        let (target, bounds) = self.find_target(&request).await?;
        let bitrate = match request.bitrate_kbps {
            0 => None,
            kbps => Some(Bitrate::from_kbps(kbps)),
        };
        let open = Open {
            target,
            bounds,
            codec,
            max_fps: request.max_fps,
            max_dimension: request.max_dimension,
            bitrate,
            policy: Policy::ViewOnly,
            ticket_ttl: request.ticket_ttl,
            key: request.key,
        };
        let opened = self.inner.sessions.open(open, Instant::now().into_std())?;
        tracing::info!(session = opened.info.id.short(), %codec, "session opened");
        Ok((opened.info, opened.ticket))
    }

    /// What a request means, and where that is now.
    async fn find_target(&self, request: &OpenRequest) -> Result<(Target, Bounds)> {
        if let Some((handle, epoch)) = request.window.clone() {
            let window = self.window(handle, epoch).await?;
            let target = Target::Window { handle: window.handle, epoch: window.epoch };
            return Ok((target, window.bounds));
        }
        let display = self.find_display(request.display.clone()).await?;
        Ok((display.target, display.bounds.into()))
    }

    fn choose_codec(&self, wanted: &[Codec]) -> Result<Codec> {
        /// What sockets carry, by the public contract. Who has no preference gets the first that
        /// works: raw pixels are last, for no network is made for them.
        const SOCKETS: [Codec; 3] = [Codec::H264, Codec::Png, Codec::Bgra];
        let available = self.codecs();
        let order = if wanted.is_empty() { &SOCKETS } else { wanted };
        let fits = |codec: &&Codec| SOCKETS.contains(codec) && available.contains(codec);
        let choice = order.iter().find(fits).copied();
        choice.ok_or_else(|| {
            let names = |codecs: &[Codec]| {
                codecs.iter().map(|codec| codec.name()).collect::<Vec<_>>().join(", ")
            };
            let carried = SOCKETS.into_iter().filter(|codec| available.contains(codec));
            let instead = match &*carried.collect::<Vec<_>>() {
                [] => "Watch by WHEP".to_owned(),
                carried => format!("Ask for {}, or watch by WHEP", names(carried)),
            };
            Error::because(Cause::CodecUnavailable, "none of the wanted codecs can be encoded here")
                .with("wanted", names(wanted))
                .with("available", names(&available))
                .hint(format!("{instead}; `spaceport doctor` says which encoders work and why not"))
        })
    }

    /// The windows that can be shown, front to back; with `system`, also those of the desktop
    /// itself.
    ///
    /// # Errors
    ///
    /// As [`Windows::list`].
    pub async fn windows(&self, system: bool) -> Result<Vec<Window>> {
        let windows = self.inner.windows.clone();
        blocking(move || if system { windows.all() } else { windows.list() }).await
    }

    /// One window; epoch 0 means the current one.
    ///
    /// # Errors
    ///
    /// As [`Windows::get`].
    pub async fn window(&self, handle: String, epoch: u64) -> Result<Window> {
        let windows = self.inner.windows.clone();
        blocking(move || windows.get(&handle, epoch)).await
    }

    /// What changes among the windows.
    ///
    /// # Errors
    ///
    /// As [`Windows::watch`].
    pub fn watch_windows(&self) -> Result<Watch> {
        self.inner.windows.watch()
    }

    /// Does something with a window and returns it as it then is; `None` when it is gone.
    ///
    /// # Errors
    ///
    /// `not_found` and `precondition_failed` for the window, `invalid_argument` for a place that no
    /// window can have.
    pub async fn change_window(
        &self,
        handle: String,
        epoch: u64,
        action: WindowAction,
    ) -> Result<Option<Window>> {
        let windows = self.inner.windows.clone();
        blocking(move || match action {
            WindowAction::Activate => windows.activate(&handle, epoch).map(Some),
            WindowAction::Place(place) => windows.set_bounds(&handle, epoch, place).map(Some),
            WindowAction::Minimize => windows.minimize(&handle, epoch).map(Some),
            WindowAction::Maximize => windows.maximize(&handle, epoch).map(Some),
            WindowAction::Restore => windows.restore(&handle, epoch).map(Some),
            WindowAction::Close { force } => windows.close(&handle, epoch, force),
        })
        .await
    }

    /// The display that a client means: by its id, as `primary` (also by no id at all), or, for all of
    /// them together, as `desktop`.
    ///
    /// # Errors
    ///
    /// `not_found` for an id that is none of them; otherwise as [`Service::displays`].
    pub async fn find_display(&self, id: Option<String>) -> Result<Display> {
        let targets = self.inner.targets.clone();
        blocking(move || targets.find(id.as_deref())).await
    }

    /// Changes the limits of a session; zeros keep what is. Returns what is in force then.
    ///
    /// # Errors
    ///
    /// As [`Sessions::set_preferences`].
    pub fn set_preferences(
        &self,
        id: &SessionId,
        max_fps: u32,
        max_dimension: u32,
        bitrate_kbps: u32,
    ) -> Result<Settings> {
        let set = |value: u32| (value > 0).then_some(value);
        let wanted = Preferences {
            max_fps: set(max_fps),
            max_dimension: set(max_dimension),
            bitrate: set(bitrate_kbps).map(Bitrate::from_kbps),
        };
        self.inner.sessions.set_preferences(id, wanted, Instant::now().into_std())
    }

    /// Asks for a keyframe for every viewer of a session.
    ///
    /// # Errors
    ///
    /// `not_found`.
    pub fn request_keyframe(&self, id: &SessionId) -> Result<()> {
        self.inner.sessions.request_keyframe(id)
    }

    /// Closes a session.
    ///
    /// # Errors
    ///
    /// `not_found`.
    pub fn close(&self, id: &SessionId) -> Result<()> {
        self.inner.sessions.close(id)
    }

    /// A ticket for the viewer page. With a `key`, what it shows is sealed, and whoever opens the page
    /// needs that key, too.
    ///
    /// # Errors
    ///
    /// `limit_exceeded` when too many are out.
    pub fn viewer_ticket(
        &self,
        ttl: Option<Duration>,
        policy: Policy,
        key: Option<MediaKey>,
    ) -> Result<ViewerTicket> {
        let now = Instant::now();
        let ttl = ttl.unwrap_or(VIEWER_TICKET_TTL);
        let sealed = key.as_ref().map(MediaKey::to_text);
        let grant = ViewerGrant { policy, key };
        let ticket = self.inner.auth.viewer_ticket(grant, ttl, now.into_std())?;
        let mut viewer_path = format!("/viewer/#ticket={}", ticket.secret.expose());
        if let Some(key) = sealed {
            viewer_path = format!("{viewer_path}&key={}", key.expose());
        }
        Ok(ViewerTicket {
            expires_at: wall_clock(ticket.expires_at.into()),
            ticket: ticket.secret,
            viewer_path: Redacted::new(viewer_path),
        })
    }

    /// Opens a media session for the holder of a viewer ticket, or returns the one it has. A media
    /// ticket returns its own session.
    ///
    /// # Errors
    ///
    /// `unauthenticated` or `stream` for the ticket, and as [`Service::open`].
    pub async fn open_viewer(&self, ticket: &str, request: OpenRequest) -> Result<Opened> {
        match self.way(ticket)? {
            Way::Page(grant) => {
                let request = OpenRequest { policy: grant.policy, key: grant.key, ..request };
                let (info, ticket) = self.shared_session(request).await?;
                Ok(opened(info, &ticket))
            }
            Way::Session(info) => {
                let secret = Redacted::new(ticket.to_owned());
                Ok(opened(info, &Ticket { secret, expires_at: Instant::now().into_std() }))
            }
        }
    }

    /// What the holder of a viewer ticket can watch now: displays, the primary one first, and
    /// windows front to back. For a media ticket that is what its session shows, and it learns of
    /// nothing else.
    ///
    /// # Errors
    ///
    /// `unauthenticated` or `stream` for the ticket, and as [`Service::displays`].
    pub async fn viewer_targets(&self, ticket: &str) -> Result<(Vec<Display>, Vec<Window>)> {
        match self.way(ticket)? {
            Way::Page(_) => {
                let displays = self.displays_and_desktop().await?;
                // A Space may have something to show and yet no windows.
                let windows = self.windows(false).await.unwrap_or_else(|error| {
                    tracing::debug!(%error, "no windows to list");
                    Vec::new()
                });
                Ok((displays, windows))
            }
            Way::Session(info) => self.shown(&info.target).await,
        }
    }

    /// The display or the window that a target is.
    ///
    /// # Errors
    ///
    /// As [`Service::displays`] and [`Service::window`].
    pub async fn shown(&self, target: &Target) -> Result<(Vec<Display>, Vec<Window>)> {
        if let Target::Window { handle, epoch } = target {
            return Ok((Vec::new(), vec![self.window(handle.clone(), *epoch).await?]));
        }
        let targets = self.inner.targets.clone();
        let mut displays = blocking(move || targets.all()).await?;
        displays.retain(|display| display.target == *target);
        Ok((displays, Vec::new()))
    }

    /// What a ticket opens.
    fn way(&self, ticket: &str) -> Result<Way> {
        let now = Instant::now().into_std();
        match self.inner.auth.viewer(ticket, now) {
            Ok(grant) => Ok(Way::Page(grant)),
            Err(error) if error.kind() == Kind::Unauthenticated => {
                let id = self.inner.sessions.redeem(ticket, now)?;
                self.inner.sessions.info(&id).map(Way::Session)
            }
            Err(error) => Err(error),
        }
    }

    /// The session that viewers of a display share, for a viewer that brings no ticket of its own.
    ///
    /// # Errors
    ///
    /// As [`Service::open`].
    pub async fn open_shared(&self, request: OpenRequest) -> Result<SessionId> {
        Ok(self.shared_session(request).await?.0.id)
    }

    /// An open session with room for a further viewer, and a ticket to it.
    async fn shared_session(&self, request: OpenRequest) -> Result<(SessionInfo, Ticket)> {
        let (target, _) = self.find_target(&request).await?;
        let key = ViewerKey {
            target,
            max_fps: request.max_fps,
            max_dimension: request.max_dimension,
            key: request.key.clone(),
        };
        let known = self.viewer_sessions().get(&key).cloned();
        let now = Instant::now().into_std();
        if let Some(id) = known
            && let Ok(info) = self.inner.sessions.info(&id)
            && info.sockets < self.inner.sessions.limits().sockets_per_session
            && let Ok(ticket) = self.inner.sessions.ticket(&id, request.ticket_ttl, now)
        {
            return Ok((info, ticket));
        }
        let (info, ticket) = self.open_session(request).await?;
        let mut sessions = self.viewer_sessions();
        sessions.retain(|_, id| self.inner.sessions.info(id).is_ok());
        sessions.insert(key, info.id.clone());
        drop(sessions);
        Ok((info, ticket))
    }

    fn viewer_sessions(&self) -> std::sync::MutexGuard<'_, HashMap<ViewerKey, SessionId>> {
        self.inner.viewer_sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what has expired. To be called every few seconds.
    pub(crate) fn sweep(&self) {
        let now = Instant::now().into_std();
        self.inner.sessions.sweep(now);
        self.inner.auth.sweep(now);
        if let Some(storage) = self.inner.storage.clone() {
            // Removing what has rested takes the disk as long as it takes.
            drop(tokio::task::spawn_blocking(move || storage.sweep()));
        }
    }
}

/// What a ticket opens.
enum Way {
    /// The viewer page, and whatever that shows.
    Page(ViewerGrant),
    /// One session.
    Session(SessionInfo),
}

fn opened(info: SessionInfo, ticket: &Ticket) -> Opened {
    Opened {
        ws_path: Redacted::new(format!("/media?ticket={}", ticket.secret.expose())),
        ticket: ticket.secret.clone(),
        expires_at: wall_clock(ticket.expires_at.into()),
        expires_in: Instant::from_std(ticket.expires_at).saturating_duration_since(Instant::now()),
        session_id: info.id,
        target: info.target,
        codec: info.codec,
        settings: info.settings,
        geometry: info.geometry,
        policy: info.policy,
        sealed: info.key.is_some(),
    }
}

/// Whether H.264 can be encoded in hardware, or in software: with what, or why not.
fn h264_feature(name: &'static str, hardware: bool, preference: &encode::Preference) -> Feature {
    let other = preference.encoder_for(Codec::H264).filter(|&name| {
        !encode::probe()
            .iter()
            .any(|it| it.name == name && it.codec == Codec::H264 && it.hardware == hardware)
    });
    if let Some(other) = other {
        let limitation = format!("started to encode with `{other}` only");
        return Feature { name, supported: false, limitation };
    }
    let kind =
        |result: &&encode::ProbeResult| result.codec == Codec::H264 && result.hardware == hardware;
    let results: Vec<_> = encode::probe().iter().filter(kind).collect();
    let supported = results.iter().any(|result| result.works);
    let limitation = match results.iter().find(|result| result.works) {
        Some(best) => best.limitation.as_ref().map(|why| format!("{} {why}", best.name)),
        None => {
            // Several of them need the same device; once is enough.
            let mut reasons: Vec<&str> =
                results.iter().filter_map(|result| result.limitation.as_deref()).collect();
            reasons.dedup();
            Some(reasons.join("; "))
        }
    };
    Feature { name, supported, limitation: limitation.unwrap_or_default() }
}

/// An error as one line of text, for a capability's limitation.
fn explain(error: &Error) -> String {
    let report = error.report();
    match report.hint {
        Some(hint) => format!("{}; {hint}", report.message),
        None => report.message,
    }
}

/// What the wall clock says at `instant`.
#[expect(clippy::disallowed_methods, reason = "the public contract speaks in wall-clock time")]
fn wall_clock(instant: Instant) -> SystemTime {
    let (now, wall) = (Instant::now(), SystemTime::now());
    if instant >= now { wall + (instant - now) } else { wall - (now - instant) }
}

/// Runs what waits for the X server or a device where waiting stops nobody else.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(Kind::Internal, "a background task failed").source(error)),
    }
}
