//! One viewer, whatever carries it: what is said to it, and what it can ask.
//!
//! One task serves one viewer. It alone reads the subscriber and the carrier, and what the carrier does
//! not take stays in the subscriber's queue, where the slow-viewer rule sees it. A [`Carrier`] turns
//! messages and frames into bytes; it knows neither sessions nor what a message means.

use std::future::Future;
use std::time::Duration;

use spaceport_session::{
    Arrival, Attach, Carrier as Sort, Cursor, Event, Path, Policy, Preferences, SessionInfo,
    Sessions, Subscriber,
};
use spaceport_types::{Bitrate, Error, Geometry, Kind, MediaKey, Packet, Result, SessionId};
use spaceport_wire::close::CloseCode;
use spaceport_wire::control::{
    ActionResult, AppliedPreferences, ClientMessage, CursorMode, Failure, GeometryControl,
    InputAcknowledgement, Lifecycle, LifecycleEvent, Policy as WirePolicy, ServerMessage,
    SessionOpened, Stats, capability,
};
use spaceport_wire::packet::{self, Encoded};
use spaceport_wire::sealed::Sealer;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::door::{Clock, Pass};
use crate::pointer::Pointer;

/// How often a carrier is asked to show that both ends live. Shorter than the idle limit of any proxy
/// worth the name (60 s).
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// What a viewer is served over.
pub(crate) trait Carrier: Send {
    /// Its name in logs.
    fn name(&self) -> &'static str;

    /// Sends a control message, after those before it.
    fn say(&mut self, text: String) -> impl Future<Output = Result<(), End>> + Send;

    /// Sends a frame, or starts to.
    fn show(&mut self, frame: Frame) -> impl Future<Output = Result<(), End>> + Send;

    /// Waits for what the client says, and works on what is being sent meanwhile. Nothing is lost when
    /// it is dropped.
    fn hear(&mut self) -> impl Future<Output = Result<Heard, End>> + Send;

    /// Whether it takes another frame, when one comes every `interval`. When that changes otherwise than
    /// with time, [`Carrier::hear`] returns.
    fn room(&self, interval: Duration) -> Room;

    /// Finds out whether the client lives. Called every [`KEEP_ALIVE`].
    fn keep_alive(&mut self) -> impl Future<Output = Result<(), End>> + Send;

    /// Says goodbye.
    fn close(self, code: CloseCode) -> impl Future<Output = ()> + Send;
}

/// Whether a carrier takes another frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It does, for so long from now.
    Takes(Duration),
    /// It does not, or not before so long from now.
    Waits(Option<Duration>),
}

/// What a viewer wants that is none of the usual ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) attach: Attach,
    /// What those take whom it passes its packets on to.
    pub(crate) beyond: Option<Bitrate>,
}

/// One frame on its way to a viewer.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) packet: Encoded,
    pub(crate) keyframe: bool,
    /// The viewer was cut: what of earlier frames has not arrived is worth nothing any more.
    pub(crate) supersedes: bool,
}

/// What came from a client.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A control message.
    Text(String),
    /// Nothing to answer.
    Nothing,
    /// A frame has arrived, so much later than one that finds the path free.
    Arrived(Arrived),
    /// Those whom the client passes frames on to take so much, or whatever there is.
    Beyond(Option<Bitrate>),
    /// A frame will not arrive, and those after it can not be decoded.
    Lost,
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) bytes: usize,
    /// How much longer it took than the quickest.
    pub(crate) waited: Duration,
    /// How much of that the path was busy with it and not with those before it.
    pub(crate) took: Duration,
}

impl Arrived {
    /// What this tells of the path.
    fn path(self) -> Path {
        let Self { bytes, waited, took } = self;
        Path { capacity: None, queued: waited, arrival: Some(Arrival { bytes, took }) }
    }
}

/// Why a viewer's task ends.
#[derive(Debug)]
pub(crate) enum End {
    /// We close, with this code.
    Close(CloseCode),
    /// The client has closed, or the connection is broken.
    Gone,
}

/// Serves one viewer, from attach to close. It gets what sockets of its session do, unless something else is
/// `wanted`.
#[tracing::instrument("viewer", skip_all, fields(session = pass.session.short(), transport = carrier.name()))]
pub(crate) async fn serve<C: Carrier>(pass: Pass, wanted: Option<Wanted>, mut carrier: C) {
    let Pass { sessions, session, clock } = pass;
    let attached = sessions.info(&session).and_then(|info| {
        let cursor = Cursor::Apart;
        let usual = Attach { codec: info.codec, carrier: Sort::Socket, cursor };
        let Wanted { attach, beyond } = wanted.unwrap_or(Wanted { attach: usual, beyond: None });
        let subscriber = sessions.attach(&session, attach)?;
        if beyond.is_some() {
            subscriber.beyond(beyond, Instant::now().into_std());
        }
        Ok((subscriber, info))
    });
    let (subscriber, info) = match attached {
        Ok(attached) => attached,
        Err(error) => return carrier.close(CloseCode::for_error(&error)).await,
    };
    let sealer = match info.key.as_ref().map(sealer).transpose() {
        Ok(sealer) => sealer,
        Err(error) => return carrier.close(CloseCode::for_error(&error)).await,
    };
    let mut viewer = Viewer {
        sessions,
        session,
        clock,
        subscriber,
        geometry: info.geometry,
        pointer: Pointer::default(),
        sent: Sent::default(),
        interval: interval(info.settings.max_fps),
        cuts: 0,
        sealer,
    };
    tracing::info!(id = %viewer.subscriber.id(), "viewer attached");
    let ended = match viewer.greet(&mut carrier, &info).await {
        Ok(()) => viewer.run(&mut carrier).await,
        Err(end) => end,
    };
    let stats = viewer.subscriber.stats();
    drop(viewer);
    match ended {
        End::Close(code) => carrier.close(code).await,
        End::Gone => {}
    }
    tracing::info!(
        delivered = stats.delivered,
        lost = stats.lost,
        cuts = stats.cuts,
        "viewer left"
    );
}

/// A sender that is told apart from every other that has the key, those of earlier runs included.
fn sealer(key: &MediaKey) -> Result<Sealer> {
    let mut id = [0; 8];
    getrandom::fill(&mut id)
        .map_err(|error| Error::new(Kind::Io, "no random bytes").source(error.to_string()))?;
    Sealer::new(key, u64::from_be_bytes(id))
}

fn interval(max_fps: u32) -> Duration {
    Duration::from_secs(1) / max_fps.max(1)
}

#[derive(Default)]
struct Sent {
    frames: u64,
    bytes: u64,
    last_at: Option<Instant>,
}

struct Viewer {
    sessions: Sessions,
    session: SessionId,
    clock: Clock,
    subscriber: Subscriber,
    geometry: Geometry,
    pointer: Pointer,
    sent: Sent,
    /// The least time between two frames.
    interval: Duration,
    /// Cuts of this viewer that its carrier knows of.
    cuts: u64,
    /// Seals what only the viewer is to open.
    sealer: Option<Sealer>,
}

impl Viewer {
    /// What the server says unprompted, before the first packet.
    async fn greet<C: Carrier>(&self, carrier: &mut C, info: &SessionInfo) -> Result<(), End> {
        let capabilities =
            [capability::DESKTOP, capability::KEYFRAME_ON_ATTACH, capability::CURSOR];
        self.say(carrier, &ServerMessage::hello(capabilities)).await?;
        let mut here = capabilities.to_vec();
        here.extend(info.sealed.then_some(capability::SEALED));
        let opened = SessionOpened {
            session_id: self.session.to_string(),
            target: info.target.clone(),
            codec: self.subscriber.codec(),
            geometry_epoch: info.geometry.geometry_epoch,
            codec_epoch: 1,
            geometry: info.geometry,
            max_fps: info.settings.max_fps,
            max_dimension: info.settings.max_dimension,
            bitrate_kbps: info.settings.bitrate.kbps(),
            policy: wire_policy(info.policy),
            geometry_control: GeometryControl::ObserveOnly,
            capabilities: here.into_iter().map(Into::into).collect(),
            actions: Vec::new(),
        };
        self.say(carrier, &ServerMessage::SessionOpened(Box::new(opened))).await
    }

    async fn run<C: Carrier>(&mut self, carrier: &mut C) -> End {
        let mut keep_alives = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        keep_alives.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = carrier.room(self.interval);
            let takes = matches!(room, Room::Takes(_));
            self.subscriber.take(takes);
            let passes = match room {
                Room::Takes(passes) => Some(passes),
                Room::Waits(passes) => passes,
            };
            // Without an end in sight there is nothing to look at later.
            let passes = passes.filter(|passes| *passes < KEEP_ALIVE);
            let step = tokio::select! {
                heard = carrier.hear() => match heard {
                    Ok(Heard::Text(text)) => self.hear(carrier, &text).await,
                    Ok(Heard::Nothing) => Ok(()),
                    Ok(Heard::Arrived(arrived)) => {
                        self.subscriber.path(arrived.path(), Instant::now().into_std());
                        Ok(())
                    }
                    Ok(Heard::Beyond(rate)) => {
                        self.subscriber.beyond(rate, Instant::now().into_std());
                        Ok(())
                    }
                    Ok(Heard::Lost) => {
                        self.subscriber.request_keyframe();
                        Ok(())
                    }
                    Err(end) => Err(end),
                },
                event = self.subscriber.recv(), if takes => self.show(carrier, event).await,
                () = sleep(passes.unwrap_or_default()), if passes.is_some() => Ok(()),
                _ = keep_alives.tick() => carrier.keep_alive().await,
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    async fn show<C: Carrier>(&mut self, carrier: &mut C, event: Event) -> Result<(), End> {
        match event {
            Event::Packet(packet) => self.send_packet(carrier, &packet).await,
            Event::Suspended(reason, error) => {
                let error = Some(Failure::from(&*error));
                self.tell(carrier, LifecycleEvent::Suspended { reason, error }).await
            }
            Event::Resumed => self.tell(carrier, LifecycleEvent::Resumed).await,
            Event::Titled(title) => {
                let title = title.to_string();
                self.tell(carrier, LifecycleEvent::TitleChanged { title }).await
            }
            Event::CursorImage(image) => {
                for message in self.pointer.image(&image, self.geometry) {
                    self.say(carrier, &message).await?;
                }
                Ok(())
            }
            Event::CursorPosition(position) => {
                let message = self.pointer.moved(position, self.geometry);
                self.say(carrier, &message).await
            }
            Event::Ended(error) => {
                let failure = Some(Failure::from(&*error));
                self.tell(carrier, LifecycleEvent::Closed { error: failure }).await?;
                Err(End::Close(CloseCode::for_error(&error)))
            }
        }
    }

    async fn send_packet<C: Carrier>(
        &mut self,
        carrier: &mut C,
        packet: &Packet,
    ) -> Result<(), End> {
        if packet.geometry != self.geometry {
            self.geometry = packet.geometry;
            let geometry = packet.geometry;
            self.tell(carrier, LifecycleEvent::GeometryChanged { geometry }).await?;
            if let Some(message) = self.pointer.place(geometry) {
                self.say(carrier, &message).await?;
            }
        }
        let encoded = match self.encode(packet) {
            Ok(encoded) => encoded,
            Err(error) => {
                tracing::error!(%error, "a packet could not be framed");
                return Err(End::Close(CloseCode::Internal));
            }
        };
        let bytes = encoded.payload.len() as u64;
        // A cut shows in the first packet after it.
        let cuts = self.subscriber.stats().cuts;
        let supersedes = packet.keyframe && cuts != self.cuts;
        if supersedes {
            self.cuts = cuts;
        }
        let frame = Frame { packet: encoded, keyframe: packet.keyframe, supersedes };
        carrier.show(frame).await?;
        self.subscriber.sent(Instant::now().into_std());
        self.sent.frames += 1;
        self.sent.bytes += bytes;
        self.sent.last_at = Some(Instant::now());
        Ok(())
    }

    /// A packet as it is sent: framed, and sealed if it is to be.
    fn encode(&mut self, packet: &Packet) -> Result<Encoded> {
        let Some(sealer) = &mut self.sealer else { return packet::encode(&self.session, packet) };
        let header = packet::Header::new(&self.session, packet);
        let payload = sealer.seal(&header, &packet.payload)?;
        packet::encode_parts(header, payload)
    }

    async fn hear<C: Carrier>(&mut self, carrier: &mut C, text: &str) -> Result<(), End> {
        match ClientMessage::parse(text) {
            Ok(message) => self.answer(carrier, message).await,
            Err(error) => {
                tracing::debug!(%error, "malformed control message");
                Err(End::Close(CloseCode::Malformed))
            }
        }
    }

    async fn answer<C: Carrier>(
        &mut self,
        carrier: &mut C,
        message: ClientMessage,
    ) -> Result<(), End> {
        let session_id = self.session.to_string();
        let answer = match message {
            ClientMessage::RequestKeyframe(_) => {
                self.subscriber.request_keyframe();
                ServerMessage::KeyframeRequested { session_id }
            }
            ClientMessage::SetStreamPreferences(wanted) => {
                let set = |value: Option<u32>| value.filter(|value| *value > 0);
                let wanted = Preferences {
                    max_fps: set(wanted.max_fps),
                    max_dimension: set(wanted.max_dimension),
                    bitrate: set(wanted.bitrate_kbps).map(Bitrate::from_kbps),
                };
                let now = Instant::now().into_std();
                match self.sessions.set_preferences(&self.session, wanted, now) {
                    Ok(settings) => {
                        self.interval = interval(settings.max_fps);
                        ServerMessage::StreamPreferencesApplied(AppliedPreferences {
                            session_id,
                            max_fps: settings.max_fps,
                            max_dimension: settings.max_dimension,
                            bitrate_kbps: settings.bitrate.kbps(),
                        })
                    }
                    Err(error) => ServerMessage::Error(Failure::from(&error)),
                }
            }
            ClientMessage::GetStats(request) => ServerMessage::Stats(Stats {
                session_id,
                server_time_us: self.clock.now().as_micros() as u64,
                client_time_us: request.client_time_us,
                frames_since_attach: self.sent.frames,
                frames_dropped: self.subscriber.stats().lost,
                bytes_since_attach: self.sent.bytes,
                queued_frames: self.subscriber.backlog() as u64,
                last_frame_age_ms: self.sent.last_at.map(|at| at.elapsed().as_millis() as u64),
                target_idle: self.subscriber.backlog() == 0,
                audio_tracks: Vec::new(),
            }),
            ClientMessage::InteractiveInput(input) => {
                let last = input.first_sequence.saturating_add(input.events.len() as u64);
                ServerMessage::InteractiveInputAcknowledgement(InputAcknowledgement {
                    session_id,
                    through_sequence: last.saturating_sub(1),
                    delivered: false,
                    error: Some(view_only()),
                })
            }
            ClientMessage::Action(action) => ServerMessage::ActionResult(ActionResult {
                action_id: action.action_id,
                delivered: false,
                error: Some(view_only()),
            }),
            // What is known of the pointer is the answer, and comes as what changes does.
            ClientMessage::SetCursor(wanted) => {
                self.pointer.forget_place();
                self.subscriber.want_cursor(wanted.mode == CursorMode::OutOfBand);
                return Ok(());
            }
            ClientMessage::Unknown { kind } => ServerMessage::unsupported(&kind),
            other => {
                tracing::debug!(?other, "a message that is not served");
                ServerMessage::unsupported("this message")
            }
        };
        self.say(carrier, &answer).await
    }

    async fn tell<C: Carrier>(&self, carrier: &mut C, event: LifecycleEvent) -> Result<(), End> {
        let lifecycle = Lifecycle { session_id: self.session.to_string(), event };
        self.say(carrier, &ServerMessage::Lifecycle(lifecycle)).await
    }

    async fn say<C: Carrier>(&self, carrier: &mut C, message: &ServerMessage) -> Result<(), End> {
        carrier.say(message.to_json()).await
    }
}

fn view_only() -> Failure {
    let error = Error::new(Kind::PermissionDenied, "this session is view only")
        .hint("Open the stream with a policy that allows input");
    Failure::from(&error)
}

fn wire_policy(policy: Policy) -> WirePolicy {
    match policy {
        Policy::ViewOnly => WirePolicy::ViewOnly,
        Policy::BackgroundOnly => WirePolicy::BackgroundOnly,
        Policy::AllowActivation => WirePolicy::AllowActivation,
    }
}
