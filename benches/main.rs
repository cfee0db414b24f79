//! Measures spaceport's capture and encode beside other programs that do the same, and its encoders
//! beside each other.
//!
//! One X server, scenes that are the same every time, and every program in turn, in rounds, so that
//! whatever else the machine does falls on all of them alike. What is measured and how is in
//! README.md.

mod process;
mod quality;
mod report;
mod scene;
mod source;
mod stream;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use spaceport_testkit::Xvfb;
use spaceport_types::Size;

use crate::report::{Report, Run};
use crate::scene::{Scene, Stage};
use crate::source::Source;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The screen all of it happens on.
const SCREEN: Size = Size::new(1920, 1080);

/// From a program's first frame until it is measured: long enough for what it sends a new viewer,
/// and for a picture that stands still to be as sharp as it gets.
const SETTLE: Duration = Duration::from_millis(2_000);

/// After the last change, for what is still on its way.
const TAIL: Duration = Duration::from_millis(500);

const USAGE: &str = "usage: spaceport-compare [--codecs | --quality] [--rounds N] [--seconds N] \
                     [--scenes a,b] [--sources a,b] [--python PATH] [--out FOLDER]";

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bench {
    /// Spaceport with other programs.
    Capture,
    /// Its encoders, streaming.
    Codecs,
    /// Its encoders, at the same sharpness.
    Quality,
}

struct Options {
    bench: Bench,
    rounds: u32,
    seconds: u32,
    scenes: Vec<Scene>,
    sources: Vec<Source>,
    python: Option<PathBuf>,
    out: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "source") {
        return source::run(&arguments[2..]);
    }
    let options = Options::read(&arguments[1..])?;
    let server = Xvfb::start(SCREEN)?;
    if options.bench == Bench::Quality {
        return quality::run(&options, &server);
    }
    let mut report = Report::new(&options, &options.sources);
    let stage = Stage::new(server.display())?;
    for round in 0..options.rounds {
        for &scene in &options.scenes {
            for position in 0..options.sources.len() {
                // Another one goes first in each round.
                let turn = (position + round as usize) % options.sources.len();
                let source = options.sources[turn];
                say(&format!("round {}: {}, {}", round + 1, scene.name(), source.name()));
                let run = measure(&options, &server, &stage, scene, source, round)?;
                report.add(run);
            }
        }
    }
    say("");
    report.finish(options.out.as_deref(), options.bench.name())
}

/// Has one program watch one scene.
fn measure(
    options: &Options,
    server: &Xvfb,
    stage: &Stage,
    scene: Scene,
    source: Source,
    round: u32,
) -> Result<Run> {
    let mut player = stage.set(scene, round)?;
    let program = source.start(server, options.python.as_deref())?;
    program.first_frame()?;
    sleep(SETTLE);
    let before = process::Usage::of(program.pid(), server.pid())?;
    let steps = player.play(Duration::from_secs(options.seconds.into()))?;
    sleep(TAIL);
    let after = process::Usage::of(program.pid(), server.pid())?;
    let units = program.stop()?;
    let seen = stream::read_counters(source.codec(), &units)?;
    Ok(Run::new(scene, source, round, &steps, &units, &seen, before, after))
}

impl Bench {
    /// How its results are called.
    fn name(self) -> &'static str {
        match self {
            Self::Capture => "capture",
            Self::Codecs => "codecs",
            Self::Quality => "quality",
        }
    }
}

impl Options {
    fn read(arguments: &[String]) -> Result<Self> {
        let mut options = Self {
            bench: Bench::Capture,
            rounds: 3,
            seconds: 5,
            scenes: Scene::ALL.to_vec(),
            sources: Source::programs(),
            python: None,
            out: None,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            match name.as_str() {
                "--codecs" => {
                    options.bench = Bench::Codecs;
                    options.sources = Source::encoders();
                    continue;
                }
                "--quality" => {
                    options.bench = Bench::Quality;
                    continue;
                }
                _ => {}
            }
            let value = arguments.next().ok_or(USAGE)?;
            match name.as_str() {
                "--rounds" => options.rounds = value.parse()?,
                "--seconds" => options.seconds = value.parse()?,
                "--scenes" => options.scenes = pick(value, &Scene::ALL, Scene::name)?,
                "--sources" => options.sources = pick(value, &Source::ALL, Source::name)?,
                "--python" => options.python = Some(value.into()),
                "--out" => options.out = Some(value.into()),
                _ => return Err(USAGE.into()),
            }
        }
        if options.python.is_none() {
            options.sources.retain(|&source| source != Source::Pixelflux);
        }
        Ok(options)
    }
}

/// Finds the named ones of `all`.
fn pick<T: Copy>(names: &str, all: &[T], name_of: fn(T) -> &'static str) -> Result<Vec<T>> {
    let find = |name| {
        let found = all.iter().copied().find(|&it| name_of(it) == name);
        found.ok_or_else(|| format!("there is no `{name}`").into())
    };
    names.split(',').map(find).collect()
}

/// Says on stderr what is being done; stdout is for the result.
fn say(line: &str) {
    // Nobody to hear it is no reason to stop.
    let _unheard = writeln!(std::io::stderr(), "{line}");
}
