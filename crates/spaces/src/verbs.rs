//! What can be asked of Spaces, each verb once. The command line and MCP translate to and from what
//! stands here, and add nothing.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::{StreamExt as _, stream};
use serde::Serialize;
use spaceport_types::{Codec, Error, Kind, MachineId, Redacted, Result};
use spaceport_wire::pb::{
    CloseMediaRequest, CloseMediaResponse, GetCapabilitiesRequest, GetCapabilitiesResponse,
    GetManifestRequest, GetManifestResponse, ListTargetsRequest, ListTargetsResponse, MediaCodec,
    MediaTarget, OpenMediaRequest, OpenMediaResponse, OsFamily, Runtime, StreamTarget,
    TeleportScope, WindowInfo, WindowRef, media_target, stream_target,
};

use crate::{Address, Client, Entry, Registry, Route, SpaceInfo};

/// Frames per second of a stream, when nothing is asked for.
const MAX_FPS: u32 = 30;

/// The longest life of a ticket, in seconds; what asks for more gets this.
const LONGEST_TICKET: u32 = 600;

/// Of how many Spaces relays are asked at a time.
const ASKED_AT_A_TIME: usize = 16;

/// The narrowest window that a person would call one, in logical units.
const SMALLEST_WINDOW: f64 = 40.0;

/// Windows of the desktop itself, by the lower-case names of their apps.
const SYSTEM_APPS: [&str; 10] = [
    "window server",
    "windowmanager",
    "dock",
    "control center",
    "notification center",
    "notificationcenter",
    "systemuiserver",
    "spotlight",
    "cursoruiviewservice",
    "textinputmenuagent",
];

/// Apps that drive a desktop, and are never meant by a name.
const DRIVERS: [&str; 3] = ["cua driver", "cua-spacesd", "spaceport"];

/// The Spaces a user has, and what can be asked of each. Cloning it makes another handle.
#[derive(Clone, Debug)]
pub struct Spaces {
    listed: Listed,
    /// Where whoever asks sees the Space, when that is not where this process calls it.
    seen_at: Option<Address>,
    /// Whether a Space that is not listed is found by its address.
    unlisted: bool,
    tokens: Tokens,
}

/// What opens Spaces beside what is kept for them.
#[derive(Clone, Debug, Default)]
struct Tokens {
    /// Any, whatever is kept.
    given: Option<Redacted<String>>,
    /// One that is named by its address.
    unlisted: Option<Redacted<String>>,
}

/// Where Spaces are known from.
#[derive(Clone, Debug)]
enum Listed {
    Registry(Registry),
    /// A Space that speaks of itself: there is one, and it answers to every name.
    Itself(Arc<Entry>),
}

/// A Space to add.
#[derive(Clone, Debug, Default)]
pub struct Add {
    /// Where it is, in any form that [`Address::parse`] takes.
    pub url: String,
    /// What opens it.
    pub token: Option<Redacted<String>>,
    /// What to call it; its host name otherwise.
    pub name: Option<String>,
    /// A service it is declared to have.
    pub service: Option<String>,
}

/// A machine behind a relay, to add as a Space.
#[derive(Clone, Debug, Default)]
pub struct Relayed {
    /// Where the relay is.
    pub relay: String,
    /// The machine's id there.
    pub machine: String,
    /// What opens the Space; the relay does not know it.
    pub token: Option<Redacted<String>>,
    /// What to call it; its host name otherwise.
    pub name: Option<String>,
}

/// What to stream, and how. A window's id wins over an app's name, which wins over a display.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// The Space, by name or id.
    pub space: String,
    /// A window, as [`Spaces::windows`] names it.
    pub window_id: Option<String>,
    /// The largest window of the app of this name.
    pub app_name: Option<String>,
    /// A display; the primary one when nothing is named.
    pub display: Option<String>,
    /// Frames per second at most; 0 is the default.
    pub max_fps: u32,
    /// The life of the ticket in seconds; 0 is the Space's default.
    pub ticket_ttl: u32,
    /// How its frames have to be encoded; `None` leaves that to the Space.
    pub codec: Option<Codec>,
}

/// A window of a Space.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// Names it.
    pub window_id: String,
    /// Which use of that name.
    pub epoch: u64,
    /// Its title.
    pub title: String,
    /// Its app, for people.
    pub app_name: String,
    /// Its app, for programs.
    pub app_id: String,
    /// Its process.
    pub pid: u32,
    /// `[x, y, width, height]` on the desktop, in logical units.
    pub bounds: [f64; 4],
    /// Whether any of it can be seen.
    pub on_screen: bool,
    /// Whether it has the keyboard.
    pub focused: bool,
    /// Whether it can be streamed now.
    pub available: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limitation: String,
}

/// An open media session, and every way in.
#[derive(Clone, Debug, Serialize)]
pub struct StreamEndpoint {
    /// The Space's id.
    pub space: String,
    /// Names the session in that Space.
    pub media_session_id: String,
    /// The media socket, ticket included.
    pub ws_url: String,
    /// For WebRTC players: WHEP, with the ticket as bearer.
    pub whep_url: String,
    /// The viewer page, the ticket in the fragment where nobody logs it.
    pub viewer_url: String,
    /// For browsers: WebTransport, whose certificate `quic` names. The ticket is the first message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webtransport_url: Option<String>,
    /// The QUIC port, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quic: Option<Quic>,
    /// Opens attaches to the session.
    pub ticket: String,
    /// When it stops doing so, by RFC 3339.
    pub ticket_expires_at: String,
    /// `h264`, `bgra`, `png`, or `unspecified`.
    pub codec: &'static str,
    /// The version of the media socket's messages.
    pub wire_version: u32,
    /// Width and height of a frame, in pixels.
    pub frame_size: [u32; 2],
    /// Whether whoever connects has to send headers for something in between; not here.
    pub needs_gateway_headers: bool,
}

/// How native viewers and WebTransport reach a session.
#[derive(Clone, Debug, Serialize)]
pub struct Quic {
    /// The UDP port, on the Space's host.
    pub port: u32,
    /// What to pin: lower-case hex of the SHA-256 of the certificate.
    pub certificate_sha256: String,
    /// The application protocol.
    pub alpn: String,
}

/// How a Space is, now.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// What is known of it, renewed by asking.
    #[serde(flatten)]
    pub info: SpaceInfo,
    /// What it cannot do, and why not.
    pub limitations: Vec<Limitation>,
}

/// One thing a Space cannot do.
#[derive(Clone, Debug, Serialize)]
pub struct Limitation {
    /// The feature's name in the public contract.
    pub feature: String,
    /// Why not.
    pub limitation: String,
}

/// Whether a Space can take in an app's session.
#[derive(Clone, Debug, Serialize)]
pub struct Receiver {
    /// Whether it can.
    pub supported: bool,
    /// Why not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limitation: String,
    /// Whether the app is there.
    pub app_installed: bool,
    /// Whether it runs.
    pub app_running: bool,
    /// The apps that can be taken in.
    pub supported_apps: Vec<String>,
}

impl Spaces {
    /// The Spaces of a registry.
    pub fn new(registry: Registry) -> Self {
        Self::of(Listed::Registry(registry))
    }

    fn of(listed: Listed) -> Self {
        Self { listed, seen_at: None, unlisted: false, tokens: Tokens::default() }
    }

    /// One Space, which is in no registry: the one that a server within it speaks for. Whatever name
    /// is asked for is this one, and nothing is added, renamed or removed.
    pub fn itself(address: Address, token: Option<Redacted<String>>) -> Self {
        Self::of(Listed::Itself(Arc::new(alone(address, token))))
    }

    /// The same, and Spaces that are not listed, each named by its address. This token opens them; one
    /// that is listed at that address is opened by its own where there is none.
    #[must_use]
    pub fn or_at_address(mut self, token: Option<Redacted<String>>) -> Self {
        self.unlisted = true;
        self.tokens.unlisted = token;
        self
    }

    /// The same, opened by this token, whatever is kept.
    #[must_use]
    pub fn opened_by(mut self, token: Redacted<String>) -> Self {
        self.tokens.given = Some(token);
        self
    }

    /// The same Spaces, for somebody who sees them at another address than they are called at here:
    /// what is answered leads there.
    #[must_use]
    pub fn seen_at(mut self, address: Address) -> Self {
        self.seen_at = Some(address);
        self
    }

    /// Finds a Space by its id, by a name that fits it alone, or, where that was asked for, by its
    /// address.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`] and [`Address::parse`].
    pub fn resolve(&self, space: &str) -> Result<Entry> {
        self.find(space).map(|(entry, _)| entry)
    }

    /// The same, and whether it is in the registry.
    fn find(&self, space: &str) -> Result<(Entry, bool)> {
        let registry = match &self.listed {
            Listed::Registry(registry) => registry,
            Listed::Itself(entry) => return Ok((Entry::clone(entry), false)),
        };
        let Tokens { given, unlisted } = &self.tokens;
        match registry.resolve(space) {
            Ok(mut entry) => {
                entry.token = given.clone().or(entry.token);
                Ok((entry, true))
            }
            Err(error) if error.kind() == Kind::NotFound && self.unlisted => {
                if !Address::is_meant(space) {
                    let hint = error.report().hint.unwrap_or_default();
                    return Err(
                        error.hint(format!("{hint}; or give its address, as `http://host:3211`"))
                    );
                }
                let address = Address::parse(space)?;
                let listed = registry.resolve(&address.id()).ok();
                let kept = listed.filter(|it| it.address == address).and_then(|it| it.token);
                let mut entry = alone(address, None);
                entry.token = given.clone().or_else(|| unlisted.clone()).or(kept);
                Ok((entry, false))
            }
            Err(error) => Err(error),
        }
    }

    fn registry(&self) -> Result<&Registry> {
        match &self.listed {
            Listed::Registry(registry) => Ok(registry),
            Listed::Itself(_) => {
                Err(Error::new(Kind::CapabilityMissing, "a Space keeps no list of Spaces")
                    .hint("Ask `spaceport mcp` beside the agent, which has one"))
            }
        }
    }

    /// Asks a Space what it is, and adds it.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for the address or the name, `unauthenticated` for the token, and
    /// `spacesd_not_available` when no Space is there; nothing is added then.
    pub async fn add(&self, add: Add, now: SystemTime) -> Result<SpaceInfo> {
        let address = Address::parse(&add.url)?;
        let client = Client::new(&address, add.token.as_ref())?;
        let capabilities = handshake(&client).await?;
        let name = add.name.filter(|name| !name.is_empty());
        let hostname = Some(capabilities.hostname.clone()).filter(|name| !name.is_empty());
        let info = SpaceInfo {
            name: hostname.unwrap_or_else(|| address.authority()),
            services: add.service.into_iter().collect(),
            added_at: Some(prost_types::Timestamp::from(now).to_string()),
            created_at_unix: prost_types::Timestamp::from(now).seconds,
            ..learned(SpaceInfo::default(), &capabilities)
        };
        self.registry()?.add(&address, add.token.as_ref(), name.as_deref(), info)
    }

    /// Adds a machine that is behind a relay, as `relay:<machine-id>`. It is asked what it is, through
    /// the relay.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for the relay's address or the machine's id, `relay` when the machine is not
    /// connected to it; otherwise as [`Spaces::add`].
    pub async fn add_relayed(&self, relayed: Relayed, now: SystemTime) -> Result<SpaceInfo> {
        let Relayed { relay, machine, token, name } = relayed;
        let relay = Address::parse(&relay)?;
        if relay.route() != Route::Direct {
            return Err(Error::new(
                Kind::InvalidArgument,
                format!("`{relay}` is a machine's address, not a relay's"),
            )
            .hint("Give what comes before `/m/`, and the machine by its id"));
        }
        let machine: MachineId = machine.parse()?;
        let url = format!("{relay}/m/{machine}");
        self.add(Add { url, token, name, service: None }, now).await
    }

    /// Forgets a Space that is behind a relay. The machine stays connected there.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`], and `wrong_provider` for a Space that is not behind a relay.
    pub fn remove_relayed(&self, space: &str) -> Result<SpaceInfo> {
        let entry = self.resolve(space)?;
        if entry.address.route() == Route::Direct {
            let name = entry.info.shown_name();
            return Err(Error::new(
                Kind::WrongProvider,
                format!("`{}` is not behind a relay", name.escape_debug()),
            )
            .with("space", &entry.info.id)
            .with("provider", &entry.info.provider)
            .hint("Remove it with `remove_space`, or `spaceport spaces remove`"));
        }
        // By its id: the name may have come to fit another.
        self.remove(&entry.info.id)
    }

    /// Every Space, as it was known when it was last asked. None is asked now; but of those behind a relay
    /// the relay is, whether they are connected: [`SpaceInfo::power_state`] is empty for one that is not,
    /// and [`SpaceInfo::stop_reason`] says why.
    ///
    /// # Errors
    ///
    /// As [`Registry::list`].
    pub async fn list(&self) -> Result<Vec<SpaceInfo>> {
        let registry = match &self.listed {
            Listed::Registry(registry) => registry,
            Listed::Itself(entry) => return Ok(vec![entry.info.clone()]),
        };
        let rows = stream::iter(registry.addressed()?).map(|(info, address)| async move {
            match address.filter(|address| address.route() != Route::Direct) {
                Some(address) => present(info, &address).await,
                None => info,
            }
        });
        Ok(rows.buffered(ASKED_AT_A_TIME).collect().await)
    }

    /// Forgets a Space. The Space itself is not touched.
    ///
    /// # Errors
    ///
    /// As [`Registry::remove`].
    pub fn remove(&self, space: &str) -> Result<SpaceInfo> {
        self.registry()?.remove(space)
    }

    /// Gives a Space another name.
    ///
    /// # Errors
    ///
    /// As [`Registry::rename`].
    pub fn rename(&self, space: &str, display_name: &str) -> Result<SpaceInfo> {
        self.registry()?.rename(space, display_name)
    }

    /// Asks a Space how it is.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`] and [`Client::call`].
    pub async fn status(&self, space: &str) -> Result<Status> {
        let (entry, listed) = self.find(space)?;
        let client = Client::new(&entry.address, entry.token.as_ref())?;
        let capabilities = handshake(&client).await?;
        let limitations = capabilities
            .features
            .iter()
            .filter(|feature| !feature.supported)
            .map(|feature| Limitation {
                feature: feature.name.clone(),
                limitation: feature.limitation.clone(),
            })
            .collect();
        let info = learned(entry.info, &capabilities);
        let info = match &self.listed {
            Listed::Registry(registry) if listed => registry.renew(info)?,
            _ => info,
        };
        Ok(Status { info, limitations })
    }

    /// The windows of a Space that a person would call one, front to back; those of an app, where
    /// one is named.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`] and [`Client::call`].
    pub async fn windows(&self, space: &str, app_name: Option<&str>) -> Result<Vec<Window>> {
        let (client, _) = self.client(space)?;
        let mut windows = windows(&client).await?;
        if let Some(app) = app_name.filter(|app| !app.is_empty()) {
            windows.retain(|window| is_of(window, app));
        }
        Ok(windows)
    }

    /// Opens a media session in a Space and says how to get at it.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`] and [`Client::call`]; `not_found` for an app without a window, and
    /// what the Space says of a target that is not there or cannot be shown.
    pub async fn stream_endpoint(&self, watch: Watch) -> Result<StreamEndpoint> {
        let (client, id) = self.client(&watch.space)?;
        let target = target(&client, &watch).await?;
        let ticket_ttl = Some(watch.ticket_ttl.min(LONGEST_TICKET))
            .filter(|&seconds| seconds > 0)
            .map(|seconds| prost_types::Duration { seconds: seconds.into(), nanos: 0 });
        let request = OpenMediaRequest {
            target: Some(MediaTarget { target: Some(target) }),
            max_fps: if watch.max_fps == 0 { MAX_FPS } else { watch.max_fps },
            ticket_ttl,
            codecs: watch.codec.and_then(media_codec).map(Into::into).into_iter().collect(),
            ..OpenMediaRequest::default()
        };
        let opened: OpenMediaResponse = client.call("StreamService/OpenMedia", request).await?;
        let at = self.seen_at.as_ref().unwrap_or_else(|| client.address());
        let base = at.to_string();
        let ticket = &opened.ticket;
        let ws_path = match &*opened.ws_path {
            "" => format!("/media?ticket={ticket}"),
            path => path.to_owned(),
        };
        let quic = opened.quic.as_ref().filter(|quic| quic.port != 0);
        let size = opened.geometry.as_ref().and_then(|it| it.frame_size).unwrap_or_default();
        Ok(StreamEndpoint {
            space: id,
            // `http` becomes `ws`, and `https` becomes `wss`.
            ws_url: base.replacen("http", "ws", 1) + &ws_path,
            whep_url: format!("{base}/whep"),
            viewer_url: format!("{base}/viewer/#ticket={ticket}"),
            webtransport_url: quic.map(|quic| format!("https://{}:{}/media", at.host(), quic.port)),
            quic: quic.map(|quic| Quic {
                port: quic.port,
                certificate_sha256: quic.certificate_sha256.clone(),
                alpn: quic.alpn.clone(),
            }),
            ticket: ticket.clone(),
            ticket_expires_at: opened
                .ticket_expires_at
                .map_or_else(String::new, |at| at.to_string()),
            codec: match opened.codec() {
                MediaCodec::H264 => "h264",
                MediaCodec::Bgra => "bgra",
                MediaCodec::Png => "png",
                MediaCodec::Unspecified => "unspecified",
            },
            wire_version: opened.wire_version,
            frame_size: [size.width, size.height],
            needs_gateway_headers: false,
            media_session_id: opened.media_session_id,
        })
    }

    /// Closes a media session: its ticket opens nothing more, and its viewers are told.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`] and [`Client::call`]; `not_found` when it is not open.
    pub async fn close_stream(&self, space: &str, media_session_id: &str) -> Result<()> {
        let (client, _) = self.client(space)?;
        let request = CloseMediaRequest { media_session_id: media_session_id.to_owned() };
        let _closed: CloseMediaResponse = client.call("StreamService/CloseMedia", request).await?;
        Ok(())
    }

    /// Asks a Space whether it can take in an app's session: its whole profile, or what keeps a
    /// person signed in.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`] and [`Client::call`].
    pub async fn receiver(&self, space: &str, app: &str, whole: bool) -> Result<Receiver> {
        let (client, _) = self.client(space)?;
        let scope = if whole { TeleportScope::Profile } else { TeleportScope::Session };
        let request = GetManifestRequest { app: app.to_owned(), scope: scope.into() };
        let said: GetManifestResponse = client.call("TeleportService/GetManifest", request).await?;
        Ok(Receiver {
            supported: said.supported,
            limitation: said.limitation,
            app_installed: said.app_installed,
            app_running: said.app_running,
            supported_apps: said.supported_apps,
        })
    }

    /// A client of a Space, and the Space's id.
    ///
    /// # Errors
    ///
    /// As [`Registry::resolve`].
    pub fn client(&self, space: &str) -> Result<(Client, String)> {
        let entry = self.resolve(space)?;
        Ok((Client::new(&entry.address, entry.token.as_ref())?, entry.info.id))
    }
}

/// A row of a Space behind a relay, and whether it is connected there now.
async fn present(mut info: SpaceInfo, address: &Address) -> SpaceInfo {
    // Without a token: that is the Space's, and the relay does not need it.
    let absence = match Client::new(address, None) {
        Ok(client) => client.absence().await,
        Err(error) => Some(error),
    };
    let running = if absence.is_none() { "running" } else { "" };
    running.clone_into(&mut info.power_state);
    info.stop_reason = absence.map_or_else(String::new, |absence| absence.to_string());
    info
}

/// A Space that nobody has listed.
fn alone(address: Address, token: Option<Redacted<String>>) -> Entry {
    let provider = address.route().provider().to_owned();
    let (id, name) = (address.id(), address.authority());
    Entry { info: SpaceInfo { id, name, provider, ..SpaceInfo::default() }, address, token }
}

/// What the contract calls a codec that the media socket can carry.
fn media_codec(codec: Codec) -> Option<MediaCodec> {
    match codec {
        Codec::H264 => Some(MediaCodec::H264),
        Codec::Bgra => Some(MediaCodec::Bgra),
        Codec::Png => Some(MediaCodec::Png),
        _ => None,
    }
}

async fn handshake(client: &Client) -> Result<GetCapabilitiesResponse> {
    client.call("SystemService/GetCapabilities", GetCapabilitiesRequest::default()).await
}

/// What a Space says of itself, put into its row.
fn learned(mut info: SpaceInfo, said: &GetCapabilitiesResponse) -> SpaceInfo {
    let supported = said.features.iter().filter(|feature| feature.supported);
    info.spacesd_version.clone_from(&said.version);
    info.features = supported.map(|feature| feature.name.clone()).collect();
    if let Some(os) = &said.os {
        let family = match os.family() {
            OsFamily::Linux => "linux",
            OsFamily::Macos => "macos",
            OsFamily::Windows => "windows",
            OsFamily::Unspecified => "",
        };
        family.clone_into(&mut info.os);
        info.os_name.clone_from(&os.name);
        info.os_pretty_name.clone_from(&os.pretty_name);
    }
    let kind = match said.runtime() {
        Runtime::Container | Runtime::Gvisor => "container",
        Runtime::Kubevirt | Runtime::Lume | Runtime::Qemu | Runtime::Hyperv => "vm",
        Runtime::Unspecified | Runtime::Unknown | Runtime::Bare => "",
    };
    kind.clone_into(&mut info.kind);
    let arch = match said.arch() {
        spaceport_wire::pb::Architecture::X8664 => "amd64",
        spaceport_wire::pb::Architecture::Arm64 => "arm64",
        _ => "",
    };
    arch.clone_into(&mut info.arch);
    "running".clone_into(&mut info.power_state); // it has just answered
    info
}

async fn target(client: &Client, watch: &Watch) -> Result<media_target::Target> {
    let given = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    if let Some(id) = given(&watch.window_id) {
        return Ok(media_target::Target::Window(WindowRef { id, epoch: 0 }));
    }
    let Some(app) = given(&watch.app_name) else {
        let display = given(&watch.display).unwrap_or_else(|| "primary".to_owned());
        return Ok(media_target::Target::DisplayId(display));
    };
    let windows = windows(client).await?;
    let area = |window: &Window| window.bounds[2] * window.bounds[3];
    let of_app = windows.iter().filter(|window| is_of(window, &app));
    let largest = of_app.max_by(|a, b| area(a).total_cmp(&area(b)));
    match largest {
        Some(window) => {
            let (id, epoch) = (window.window_id.clone(), window.epoch);
            Ok(media_target::Target::Window(WindowRef { id, epoch }))
        }
        None => {
            let mut apps: Vec<_> = windows.iter().map(|window| &*window.app_name).collect();
            apps.sort_unstable();
            apps.dedup();
            let hint = match apps[..] {
                [] => "There is no window at all; start the app first".to_owned(),
                _ => format!("There are windows of: {}", apps.join(", ")),
            };
            Err(Error::new(Kind::NotFound, format!("no window of `{}`", app.escape_debug()))
                .with("app_name", app.escape_debug())
                .hint(hint))
        }
    }
}

/// The windows that a person would call one.
async fn windows(client: &Client) -> Result<Vec<Window>> {
    let request = ListTargetsRequest { include_windows: true, window_filter: None };
    let listed: ListTargetsResponse = client.call("StreamService/ListTargets", request).await?;
    Ok(listed.targets.into_iter().filter_map(shown).collect())
}

fn shown(target: StreamTarget) -> Option<Window> {
    let Some(stream_target::Target::Window(window)) = target.target else { return None };
    let WindowInfo { r#ref, title, app, bounds, focused, on_screen, .. } = window;
    let (handle, app, bounds) = (r#ref?, app.unwrap_or_default(), bounds.unwrap_or_default());
    let large = bounds.width >= SMALLEST_WINDOW && bounds.height >= SMALLEST_WINDOW;
    let system = SYSTEM_APPS.contains(&&*app.name.to_lowercase());
    (on_screen && target.available && large && !system).then_some(Window {
        window_id: handle.id,
        epoch: handle.epoch,
        title,
        app_name: app.name,
        app_id: app.app_id,
        pid: app.pid,
        bounds: [bounds.x, bounds.y, bounds.width, bounds.height],
        on_screen,
        focused,
        available: target.available,
        limitation: target.limitation,
    })
}

/// Whether a person who says `app` means this window.
fn is_of(window: &Window, app: &str) -> bool {
    let (name, wanted) = (window.app_name.to_lowercase(), app.to_lowercase());
    let driver = DRIVERS.iter().any(|driver| name.contains(driver));
    !driver && (name.contains(&wanted) || window.app_id.to_lowercase() == wanted)
}
