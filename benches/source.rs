//! The programs under test, each a process of its own.
//!
//! A program writes every access unit to its stdout with the time it was done: nanoseconds of the
//! monotonic clock (8 bytes), length (4 bytes), both little-endian, then the unit. Writing comes
//! after the time is taken, so the pipe is in nobody's latency.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gstreamer as gst;
use gstreamer::prelude::*;
use gstreamer_app as gst_app;
use spaceport_media::pipeline;
use spaceport_media::windows::Windows;
use spaceport_session::{
    Attach, Carrier, Cursor, Event, Launch, Limits, Open, Policy, Publisher, Sessions,
};
use spaceport_testkit::Xvfb;
use spaceport_types::{Bitrate, Codec, Target};

use crate::process::now;
use crate::scene::{BLOCK, TITLE};
use crate::{Result, SCREEN};

/// Who captures and encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Spaceport's pipeline, up to a viewer's queue, reading an X server like any other.
    Spaceport,
    /// The same, reading the framebuffer file of a server that spaceport started.
    SpaceportFbdir,
    /// The same as the first, of the window that the scenes are drawn into.
    SpaceportWindow,
    /// GStreamer's elements in their usual order.
    Gstreamer,
    /// What selkies captures with.
    Pixelflux,
    /// Spaceport's pipeline with one of its encoders, at the rate of a session that asks for none.
    X264,
    Openh264,
    Vp8,
    Vp9,
    Av1,
    Png,
    Bgra,
}

/// One access unit, and when it was done.
pub(crate) struct Unit {
    pub(crate) at: u64,
    /// Its size.
    pub(crate) bytes: usize,
    /// All of it, or of raw pixels the rows that hold the number: the rest would be gigabytes.
    pub(crate) payload: Vec<u8>,
}

/// The most any of them is asked for. They follow damage or their own clock; nothing changes
/// faster than half of this.
const FPS: u32 = 60;

/// The quantizer of all of them, and a bitrate that does not get in its way.
const QUANTIZER: u32 = 23;
const KBPS: u32 = 100_000;

impl Source {
    pub(crate) const ALL: [Self; 12] = [
        Self::Spaceport,
        Self::SpaceportFbdir,
        Self::SpaceportWindow,
        Self::Gstreamer,
        Self::Pixelflux,
        Self::X264,
        Self::Openh264,
        Self::Vp8,
        Self::Vp9,
        Self::Av1,
        Self::Png,
        Self::Bgra,
    ];

    /// Those that do the same in different ways.
    pub(crate) fn programs() -> Vec<Self> {
        Self::ALL.into_iter().filter(|source| source.encoder().is_none()).collect()
    }

    /// Those that differ in the encoder.
    pub(crate) fn encoders() -> Vec<Self> {
        Self::ALL.into_iter().filter(|source| source.encoder().is_some()).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Spaceport => "spaceport",
            Self::SpaceportFbdir => "spaceport-fbdir",
            Self::SpaceportWindow => "spaceport-window",
            Self::Gstreamer => "gstreamer",
            Self::Pixelflux => "pixelflux",
            Self::X264 => "x264",
            Self::Openh264 => "openh264",
            Self::Vp8 => "vp8",
            Self::Vp9 => "vp9",
            Self::Av1 => "av1",
            Self::Png => "png",
            Self::Bgra => "bgra",
        }
    }

    pub(crate) fn codec(self) -> Codec {
        self.encoder().map_or(Codec::H264, |(codec, _)| codec)
    }

    /// What is asked for by name, and its codec.
    fn encoder(self) -> Option<(Codec, &'static str)> {
        Some(match self {
            Self::X264 => (Codec::H264, "x264"),
            Self::Openh264 => (Codec::H264, "openh264enc"),
            Self::Vp8 => (Codec::Vp8, "vp8enc"),
            Self::Vp9 => (Codec::Vp9, "vp9enc"),
            Self::Av1 => (Codec::Av1, "av1enc"),
            Self::Png => (Codec::Png, "png"),
            Self::Bgra => (Codec::Bgra, "raw"),
            _ => return None,
        })
    }

    /// Starts it on the display of `server`.
    pub(crate) fn start(self, server: &Xvfb, python: Option<&Path>) -> Result<Program> {
        let mut command = match self {
            Self::Pixelflux => {
                let mut command = Command::new(python.ok_or("pixelflux needs --python")?);
                command.args(["-c", include_str!("run_pixelflux.py")]);
                let size = [SCREEN.width, SCREEN.height, FPS, QUANTIZER];
                command.args(size.map(|number| number.to_string()));
                command
            }
            _ => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["source", self.name(), server.display()]);
                command.arg(server.framebuffer());
                command
            }
        };
        let mut child = command
            .env("DISPLAY", server.display())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let started = Arc::new((Mutex::new(false), Condvar::new()));
        let kept = match self.codec() {
            Codec::Bgra => SCREEN.width as usize * 4 * BLOCK as usize,
            _ => usize::MAX,
        };
        let reader = std::thread::spawn({
            let started = Arc::clone(&started);
            move || read_units(stdout, kept, &started)
        });
        Ok(Program { child, reader: Some(reader), started })
    }
}

/// A running program; killed when dropped.
pub(crate) struct Program {
    child: Child,
    reader: Option<JoinHandle<Vec<Unit>>>,
    started: Arc<(Mutex<bool>, Condvar)>,
}

impl Program {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its first access unit.
    pub(crate) fn first_frame(&self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(15);
        let (started, changed) = &*self.started;
        let started = started.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(started, PATIENCE, |started| !*started);
        match waited {
            Ok((started, _)) if *started => Ok(()),
            _ => Err("no frame came within 15 s".into()),
        }
    }

    /// Ends it and returns all that it encoded.
    pub(crate) fn stop(mut self) -> Result<Vec<Unit>> {
        self.child.kill()?;
        self.child.wait()?;
        let reader = self.reader.take().ok_or("stopped before")?;
        reader.join().map_err(|_| "the reader panicked".into())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may be gone already; then there is nothing to do.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Reads units until the program ends, and keeps that many bytes of each. The last may be cut off,
/// and is left out.
fn read_units(mut stdout: ChildStdout, kept: usize, started: &(Mutex<bool>, Condvar)) -> Vec<Unit> {
    let mut units = Vec::new();
    loop {
        let (mut at, mut length) = ([0; 8], [0; 4]);
        if stdout.read_exact(&mut at).is_err() || stdout.read_exact(&mut length).is_err() {
            return units;
        }
        let mut payload = vec![0; u32::from_le_bytes(length) as usize];
        if stdout.read_exact(&mut payload).is_err() {
            return units;
        }
        let bytes = payload.len();
        if kept < bytes {
            payload.truncate(kept);
            payload.shrink_to_fit();
        }
        units.push(Unit { at: u64::from_le_bytes(at), bytes, payload });
        *started.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        started.1.notify_all();
    }
}

/// Writes one unit that was done at `at`.
fn write_unit(at: u64, payload: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&at.to_le_bytes())?;
    stdout.write_all(&(payload.len() as u32).to_le_bytes())?;
    stdout.write_all(payload)?;
    stdout.flush()?;
    Ok(())
}

/// What a started process does, by its arguments: name, display, framebuffer.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let [name, display, framebuffer] = arguments else {
        return Err("started with what is not a source".into());
    };
    match Source::ALL.into_iter().find(|source| source.name() == name) {
        Some(Source::Gstreamer) => gstreamer(display),
        Some(source) if source != Source::Pixelflux => spaceport(source, display, framebuffer),
        _ => Err("started with what is not a source".into()),
    }
}

fn spaceport(source: Source, display: &str, framebuffer: &str) -> Result<()> {
    struct Start(Mutex<Sender<Publisher>>);
    impl Launch for Start {
        fn launch(&self, publisher: Publisher) {
            // The receiver lives as long as the process.
            drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).send(publisher));
        }
    }
    let (sender, publishers): (_, Receiver<Publisher>) = channel();
    let sessions = Sessions::new(Limits::default(), Arc::new(Start(Mutex::new(sender))));
    let mut config = pipeline::Config::default();
    config.capture.display = Some(display.to_owned());
    let mut target = Target::Display { display_id: display.to_owned() };
    match source {
        Source::SpaceportFbdir => config.capture.framebuffer = Some(framebuffer.into()),
        Source::SpaceportWindow => {
            let windows = Windows::new(Some(display));
            let list = windows.list()?;
            let window = list.into_iter().find(|window| window.title == TITLE);
            let window = window.ok_or("the window of the scenes is not there")?;
            target = Target::Window { handle: window.handle, epoch: window.epoch };
            config.capture.windows = Some(windows);
        }
        _ => {}
    }
    let codec = source.codec();
    let encoder = source.encoder().map(|(_, name)| name.to_owned());
    let bitrate = encoder.is_none().then(|| Bitrate::from_kbps(KBPS));
    config.encoder.encoder = encoder;
    #[expect(clippy::disallowed_methods, reason = "a session is opened once, here")]
    let now_instant = Instant::now();
    let opened = sessions.open(
        Open {
            target,
            bounds: SCREEN.bounds().into(),
            codec,
            max_fps: FPS,
            max_dimension: 0,
            bitrate,
            policy: Policy::ViewOnly,
            ticket_ttl: None,
            key: None,
        },
        now_instant,
    )?;
    let attach = Attach { codec, carrier: Carrier::Socket, cursor: Cursor::Apart };
    let mut viewer = sessions.attach(&opened.info.id, attach)?;
    let _pipeline = pipeline::spawn(publishers.recv()?, config)?;
    // A thread that sleeps until the viewer's queue has something, as a transport would.
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        viewer.set_waker(&waker);
        while let Some(event) = viewer.try_recv() {
            match event {
                Event::Packet(packet) => write_unit(now(), &packet.payload)?,
                Event::Ended(error) => return Err(error.to_string().into()),
                _ => {}
            }
        }
        std::thread::park();
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn gstreamer(display: &str) -> Result<()> {
    gst::init()?;
    // Without `format` it would negotiate 4:4:4, which most decoders refuse; without `bitrate`,
    // 2 Mbit/s would decide the quality, whatever the quantizer.
    let pipeline = gst::parse::launch(&format!(
        "ximagesrc display-name={display} ! video/x-raw,framerate={FPS}/1 ! videoconvert ! \
         video/x-raw,format=I420 ! x264enc tune=zerolatency speed-preset=ultrafast pass=qual \
         quantizer={QUANTIZER} bitrate={KBPS} key-int-max=2147483647 ! \
         video/x-h264,stream-format=byte-stream,alignment=au ! appsink name=sink sync=false"
    ))?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().map_err(|_| "not a pipeline")?;
    let sink = pipeline.by_name("sink").and_downcast::<gst_app::AppSink>().ok_or("no sink")?;
    pipeline.set_state(gst::State::Playing)?;
    loop {
        let sample = sink.pull_sample()?;
        let at = now();
        let map = sample.buffer().ok_or("no buffer")?.map_readable()?;
        write_unit(at, map.as_slice())?;
    }
}
