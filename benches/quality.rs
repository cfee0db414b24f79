//! Bits at the same sharpness: one sequence of pictures through every encoder.
//!
//! The pictures are those of the scenes, read from the screen by our own capture, with what it says
//! has changed. Each encoder gets them at several quantizers, one fixed for the whole sequence, so
//! that its rate control is in nobody's way; what comes out is decoded and compared with what went
//! in. Between quantizers values are interpolated, and encoders compared where they are equally
//! sharp.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use serde_json::{Value, json};
use spaceport_media::{Frame, capture, clock, encode};
use spaceport_testkit::Xvfb;
use spaceport_types::{Bitrate, Codec, Rect, Target};

use crate::report::{self, rounded};
use crate::scene::{Scene, Stage};
use crate::stream::{self, Luma};
use crate::{Options, Result, SCREEN, process, say};

/// Changes in a sequence: a second and a half of scrolling.
const CHANGES: usize = 45;

/// The time between two changes, as encoders are told.
const INTERVAL: Duration = Duration::from_nanos(33_333_333);

/// Where encoders are compared, in dB: text without a visible fault, and what all of them reach.
const SAME: f64 = 40.0;

/// Above this two pictures are the same to anybody.
const ALIKE: f64 = 60.0;

/// An encoder, and the quantizers it is tried at: some of them sharper than [`SAME`], some not.
struct Contender {
    name: &'static str,
    codec: Codec,
    quantizers: &'static [u8],
    /// Whether brightness is weighed as BT.709 says rather than BT.601. Decoders do not all pass on
    /// what the stream declares.
    bt709: bool,
}

const H264: &[u8] = &[17, 23, 29, 35, 41];
const LIBVPX: &[u8] = &[8, 20, 32, 44];
const NONE: &[u8] = &[0];

const CONTENDERS: [Contender; 7] = [
    Contender { name: "x264", codec: Codec::H264, quantizers: H264, bt709: false },
    Contender { name: "openh264enc", codec: Codec::H264, quantizers: H264, bt709: true },
    Contender { name: "vp8enc", codec: Codec::Vp8, quantizers: LIBVPX, bt709: false },
    Contender { name: "vp9enc", codec: Codec::Vp9, quantizers: LIBVPX, bt709: false },
    Contender { name: "av1enc", codec: Codec::Av1, quantizers: LIBVPX, bt709: false },
    Contender { name: "png", codec: Codec::Png, quantizers: NONE, bt709: false },
    Contender { name: "raw", codec: Codec::Bgra, quantizers: NONE, bt709: false },
];

/// A sequence of pictures.
struct Clip {
    scene: Scene,
    pictures: Vec<Picture>,
}

struct Picture {
    pixels: Vec<u8>,
    stride: usize,
    damage: Vec<Rect>,
}

/// What one encoder made of a sequence at one quantizer.
struct Coded {
    units: Vec<Vec<u8>>,
    keyframe_cpu: Duration,
    /// Of one later picture.
    cpu: Duration,
}

/// The same in numbers.
#[derive(Clone, Copy)]
struct Point {
    scene: Scene,
    contender: usize,
    quantizer: u8,
    /// Of what the scene changes, the mean of all pictures but the first; `None` for what loses
    /// nothing.
    psnr: Option<f64>,
    /// Bytes of one picture, but the first.
    bytes: f64,
    cpu_ms: f64,
    keyframe_bytes: f64,
    keyframe_cpu_ms: f64,
}

/// Runs it and reports.
pub(crate) fn run(options: &Options, server: &Xvfb) -> Result<()> {
    let mut points: Vec<Point> = Vec::new();
    let own = std::process::id();
    let before = process::Usage::of(own, server.pid())?;
    for &scene in options.scenes.iter().filter(|&&scene| scene != Scene::Idle) {
        let clip = Clip::record(scene, server)?;
        for round in 0..options.rounds {
            // Encoders take turns, so that whatever else the machine does falls on all of them.
            for turn in 0..H264.len() {
                for (index, contender) in CONTENDERS.iter().enumerate() {
                    let Some(&quantizer) = contender.quantizers.get(turn) else { continue };
                    let name = contender.name;
                    say(&format!("round {}: {}, {name}, {quantizer}", round + 1, scene.name()));
                    let coded = clip.encode_patiently(contender, quantizer)?;
                    let same = |point: &&mut Point| {
                        (point.scene, point.contender, point.quantizer) == (scene, index, quantizer)
                    };
                    match points.iter_mut().find(same) {
                        Some(point) => point.again(&coded),
                        None => points.push(clip.judge(index, quantizer, &coded)?),
                    }
                }
            }
        }
    }
    let after = process::Usage::of(own, server.pid())?;
    let seconds = (after.at - before.at) as f64 / 1e9;
    let spent = |of: fn(&process::Usage) -> Duration| {
        of(&after).saturating_sub(of(&before)).as_secs_f64() * 1e3 / seconds
    };
    let others = spent(|it| it.machine) - spent(|it| it.program) - spent(|it| it.server);
    let mut all = report::about();
    all["rounds"] = options.rounds.into();
    all["changes"] = CHANGES.into();
    all["everything_else_cpu_ms_per_s"] = json!(rounded(Some(others.max(0.0))));
    all["points"] = points.iter().map(Point::json).collect();
    let scenes = &options.scenes;
    let table = table(scenes, &points, others)?;
    report::write(options.out.as_deref(), options.bench.name(), &all, &table)
}

impl Clip {
    /// Plays a scene step by step and keeps every picture.
    fn record(scene: Scene, server: &Xvfb) -> Result<Self> {
        let mut config = capture::Config::default();
        config.display = Some(server.display().to_owned());
        config.framebuffer = Some(server.framebuffer());
        let target = Target::Display { display_id: server.display().to_owned() };
        let stage = Stage::new(server.display())?;
        let mut player = stage.set(scene, 0)?;
        let mut source = capture::open(&target, &config, 60)?;
        let mut pictures = Vec::new();
        for index in 0..=CHANGES {
            if index > 0 {
                player.advance()?;
            }
            while index > 0 && !source.has_damage(clock::now())? {
                let Some(fd) = source.wake_fd() else { continue };
                rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?;
            }
            let frame = source.grab(clock::now(), index == 0)?;
            pictures.push(Picture {
                pixels: frame.pixels.to_vec(),
                stride: frame.stride,
                damage: frame.damage.to_vec(),
            });
        }
        Ok(Self { scene, pictures })
    }

    /// As [`Clip::encode`], again where a busy machine made a picture take longer than an encoder
    /// may, which is two seconds.
    fn encode_patiently(&self, contender: &Contender, quantizer: u8) -> Result<Coded> {
        const TRIES: u32 = 4;
        for _ in 1..TRIES {
            match self.encode(contender, quantizer) {
                Ok(coded) => return Ok(coded),
                Err(error) => say(&format!("again, for {error}")),
            }
        }
        self.encode(contender, quantizer)
    }

    fn encode(&self, contender: &Contender, quantizer: u8) -> Result<Coded> {
        let config = encode::Config {
            codec: contender.codec,
            source: SCREEN,
            size: SCREEN,
            // In nobody's way; OpenH264 refuses what no level of H.264 allows.
            bitrate: Bitrate::from_kbps(200_000),
            max_fps: 30,
            latency: Duration::from_millis(100),
        };
        let mut preference = encode::Preference::default();
        preference.encoder = Some(contender.name.to_owned());
        preference.quantizer = Some(quantizer);
        let mut encoder = encode::open(&config, &preference)?;
        let mut units = Vec::new();
        let (start, mut first) = (process::own_cpu(), Duration::ZERO);
        for (index, picture) in self.pictures.iter().enumerate() {
            let mode = if index == 0 { encode::Mode::Keyframe } else { encode::Mode::Delta };
            let encoded = encoder.encode(&picture.frame(index as u32), mode)?;
            units.push(encoded.ok_or("a picture was left out")?.payload.to_vec());
            if index == 0 {
                first = process::own_cpu();
            }
        }
        let cpu = (process::own_cpu() - first) / (self.pictures.len() as u32 - 1);
        Ok(Coded { units, keyframe_cpu: first - start, cpu })
    }

    /// Decodes it and compares it with what it was.
    fn judge(&self, contender: usize, quantizer: u8, coded: &Coded) -> Result<Point> {
        let Contender { codec, bt709, .. } = CONTENDERS[contender];
        let psnr = if encode::lossy(codec) {
            let units: Vec<&[u8]> = coded.units.iter().map(Vec::as_slice).collect();
            let mut each = Vec::new();
            stream::decode(codec, &units, |index, luma| {
                if let Some(picture) = self.pictures.get(index).filter(|_| index > 0) {
                    each.push(picture.psnr(&luma, bt709, self.scene.area()));
                }
            })?;
            if each.len() + 1 != self.pictures.len() {
                return Err(format!("{} of {} came out", each.len(), self.pictures.len()).into());
            }
            Some(each.iter().sum::<f64>() / each.len() as f64)
        } else {
            None
        };
        let (keyframe, later) = coded.units.split_first().ok_or("nothing was encoded")?;
        let mut point = Point {
            scene: self.scene,
            contender,
            quantizer,
            psnr,
            bytes: later.iter().map(Vec::len).sum::<usize>() as f64 / later.len() as f64,
            cpu_ms: f64::MAX,
            keyframe_bytes: keyframe.len() as f64,
            keyframe_cpu_ms: f64::MAX,
        };
        point.again(coded);
        Ok(point)
    }
}

impl Picture {
    fn frame(&self, index: u32) -> Frame<'_> {
        Frame {
            pixels: &self.pixels,
            stride: self.stride,
            size: SCREEN,
            damage: &self.damage,
            captured_at: INTERVAL * index,
        }
    }

    /// How like this `luma` is within `area`, in dB.
    fn psnr(&self, luma: &Luma<'_>, bt709: bool, area: Rect) -> f64 {
        // ITU-R BT.601 2.5.1 and BT.709 3.2, of 8 bits and of limited range, times 65536.
        let [red, green, blue] =
            if bt709 { [11_966, 40_254, 4_064] } else { [16_829, 33_039, 6_416] };
        let mut error = 0u64;
        for y in area.y as usize..area.bottom() as usize {
            let (from, to) = (area.x as usize, area.right() as usize);
            let row = &self.pixels[y * self.stride + from * 4..y * self.stride + to * 4];
            let coded = &luma.rows[y * luma.stride + from..y * luma.stride + to];
            for (pixel, &coded) in row.as_chunks::<4>().0.iter().zip(coded) {
                let [b, g, r] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
                let luma = 16 + ((red * r + green * g + blue * b + 32_768) >> 16);
                error += u64::from(luma.abs_diff(coded.into()).pow(2));
            }
        }
        let mean = error as f64 / area.area() as f64;
        (10.0 * (255.0 * 255.0 / mean).log10()).min(ALIKE)
    }
}

impl Point {
    /// Takes in another round: the least CPU is what the machine disturbed least.
    fn again(&mut self, coded: &Coded) {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        self.cpu_ms = self.cpu_ms.min(ms(coded.cpu));
        self.keyframe_cpu_ms = self.keyframe_cpu_ms.min(ms(coded.keyframe_cpu));
    }

    fn json(&self) -> Value {
        json!({
            "scene": self.scene.name(),
            "encoder": CONTENDERS[self.contender].name,
            "quantizer": (self.psnr.is_some()).then_some(self.quantizer),
            "psnr_db": rounded(self.psnr),
            "bytes_per_picture": rounded(Some(self.bytes)),
            "cpu_ms_per_picture": rounded(Some(self.cpu_ms)),
            "keyframe_bytes": self.keyframe_bytes,
            "keyframe_cpu_ms": rounded(Some(self.keyframe_cpu_ms)),
        })
    }
}

/// What one encoder does in one scene, from the sharpest to the coarsest.
struct Curve(Vec<Point>);

impl Curve {
    fn of(points: &[Point], scene: Scene, contender: usize) -> Self {
        let of_it = |point: &&Point| point.scene == scene && point.contender == contender;
        let mut curve: Vec<Point> = points.iter().filter(of_it).copied().collect();
        curve.sort_by(|a, b| b.psnr.unwrap_or(ALIKE).total_cmp(&a.psnr.unwrap_or(ALIKE)));
        Self(curve)
    }

    /// A value at `psnr`, between the two points around it on a logarithmic scale.
    fn at(&self, psnr: f64, of: fn(&Point) -> f64) -> Option<f64> {
        if let [only] = self.0.as_slice()
            && only.psnr.is_none()
        {
            return Some(of(only));
        }
        self.0.windows(2).find_map(|pair| {
            let [sharp, coarse] = pair else { return None };
            let (high, low) = (sharp.psnr?, coarse.psnr?);
            let share = (psnr - low) / (high - low);
            let between = of(coarse).ln() * (1.0 - share) + of(sharp).ln() * share;
            (high > low && (0.0..=1.0).contains(&share)).then(|| between.exp())
        })
    }

    /// The bits of this in those of `other`, where both are equally sharp: the mean of the
    /// logarithms, as Bjøntegaard's, over all that both reach.
    fn bits_of(&self, other: &Self) -> Option<f64> {
        const STEPS: u32 = 200;
        let bounds = |curve: &Self| Some((curve.0.last()?.psnr?, curve.0.first()?.psnr?));
        let ((a, b), (c, d)) = (bounds(self)?, bounds(other)?);
        let (low, high) = (a.max(c), b.min(d));
        if high <= low {
            return None;
        }
        let mut sum = 0.0;
        for step in 0..STEPS {
            let psnr = low + (high - low) * (f64::from(step) + 0.5) / f64::from(STEPS);
            let bytes = |point: &Point| point.bytes;
            sum += (self.at(psnr, bytes)? / other.at(psnr, bytes)?).ln();
        }
        Some((sum / f64::from(STEPS)).exp())
    }
}

fn table(scenes: &[Scene], points: &[Point], others: f64) -> Result<String> {
    let mut table = String::from(
        "| scene | encoder | at dB | KB a picture | of x264's bits | at all both reach | CPU ms a picture | \
         keyframe KB | keyframe CPU ms |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for &scene in scenes.iter().filter(|&&scene| scene != Scene::Idle) {
        let x264 = Curve::of(points, scene, 0);
        for (index, contender) in CONTENDERS.iter().enumerate() {
            let curve = Curve::of(points, scene, index);
            let cell = |value: Option<f64>, digits: usize| {
                value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let bytes = |point: &Point| point.bytes;
            let same = curve.at(SAME, bytes);
            let ratio = same.zip(x264.at(SAME, bytes)).map(|(it, x264)| it / x264);
            let lossless = !encode::lossy(contender.codec);
            let cells = [
                if lossless { "all".to_owned() } else { format!("{SAME:.0}") },
                cell(same.map(|bytes| bytes / 1e3), 2),
                cell(ratio, 2),
                cell(curve.bits_of(&x264), 2),
                cell(curve.at(SAME, |point| point.cpu_ms), 1),
                cell(curve.at(SAME, |point| point.keyframe_bytes / 1e3), 0),
                cell(curve.at(SAME, |point| point.keyframe_cpu_ms), 0),
            ];
            writeln!(table, "| {} | {} | {} |", scene.name(), contender.name, cells.join(" | "))?;
        }
    }
    writeln!(
        table,
        "\n1920x1080, {CHANGES} changes after a keyframe; luma PSNR of the part of the screen that \
         the scene changes. `png` and `raw` lose nothing, and their columns are what that takes. All \
         other processes of the machine took {others:.0} ms/s of CPU meanwhile."
    )?;
    Ok(table)
}
