//! From runs to a table for people and a file for everybody else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::Usage;
use crate::scene::{Scene, Step};
use crate::source::{Source, Unit};
use crate::{Options, Result, say};

/// One program, one scene, one time.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    scene: Scene,
    source: Source,
    round: u32,
    /// From each change to the first access unit that shows it or a later one, in milliseconds.
    latencies: Vec<f64>,
    /// Changes that no access unit showed.
    missed: usize,
    /// Milliseconds of CPU in each second.
    program_cpu: f64,
    server_cpu: f64,
    /// The same of all other processes on the machine: how far the run was disturbed.
    other_cpu: f64,
    kbps: f64,
    fps: f64,
}

impl Run {
    #[expect(clippy::too_many_arguments, reason = "all that one run brings, in one place")]
    pub(crate) fn new(
        scene: Scene,
        source: Source,
        round: u32,
        steps: &[Step],
        units: &[Unit],
        numbers: &[Option<u16>],
        before: Usage,
        after: Usage,
    ) -> Self {
        let shown: Vec<(u64, u16)> = units
            .iter()
            .zip(numbers)
            .filter_map(|(unit, number)| Some((unit.at, (*number)?)))
            .collect();
        // A change that was drawn over before anybody looked is shown by what came after it.
        let first = |step: &Step| {
            let unit = shown.iter().find(|(at, number)| *at >= step.at && *number >= step.number);
            unit.map(|(at, _)| (at - step.at) as f64 / 1e6)
        };
        let latencies: Vec<f64> = steps.iter().filter_map(first).collect();
        let seconds = (after.at - before.at) as f64 / 1e9;
        let cpu = |of: fn(Usage) -> std::time::Duration| {
            (of(after).saturating_sub(of(before))).as_secs_f64() * 1e3 / seconds
        };
        let within = units.iter().filter(|unit| (before.at..after.at).contains(&unit.at));
        let (count, bytes) =
            within.fold((0, 0), |(count, bytes), unit| (count + 1, bytes + unit.bytes));
        let (program_cpu, server_cpu) = (cpu(|usage| usage.program), cpu(|usage| usage.server));
        Self {
            scene,
            source,
            round,
            missed: steps.len() - latencies.len(),
            latencies,
            program_cpu,
            server_cpu,
            other_cpu: (cpu(|usage| usage.machine) - program_cpu - server_cpu).max(0.0),
            kbps: bytes as f64 * 8.0 / 1e3 / seconds,
            fps: f64::from(count) / seconds,
        }
    }

    fn json(&self) -> Value {
        json!({
            "scene": self.scene.name(),
            "source": self.source.name(),
            "round": self.round + 1,
            "latency_ms": {
                "changes": self.latencies.len(),
                "p50": rounded(percentile(&self.latencies, 0.5)),
                "p95": rounded(percentile(&self.latencies, 0.95)),
                "missed": self.missed,
            },
            "cpu_ms_per_s": {
                "program": rounded(Some(self.program_cpu)),
                "x_server": rounded(Some(self.server_cpu)),
                "everything_else": rounded(Some(self.other_cpu)),
            },
            "kbps": rounded(Some(self.kbps)),
            "fps": rounded(Some(self.fps)),
        })
    }
}

/// All runs, as they come in.
pub(crate) struct Report {
    runs: Vec<Run>,
    about: Value,
    /// The source that others are compared with.
    base: Source,
}

/// What the runs of one program in one scene come to.
struct Summary {
    p50: Option<f64>,
    p95: Option<f64>,
    program_cpu: f64,
    server_cpu: f64,
    kbps: f64,
    fps: f64,
}

impl Report {
    pub(crate) fn new(options: &Options, sources: &[Source]) -> Self {
        let mut about = about();
        about["rounds"] = options.rounds.into();
        about["seconds"] = options.seconds.into();
        about["versions"]["pixelflux"] = options
            .python
            .as_deref()
            .and_then(|python| {
                let script = "import importlib.metadata as m; print(m.version('pixelflux'))";
                said_by(&python.to_string_lossy(), &["-c", script])
            })
            .into();
        let base = sources.first().copied().unwrap_or(Source::Spaceport);
        Self { runs: Vec::new(), about, base }
    }

    pub(crate) fn add(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// Prints the table, and writes the runs to a file in `folder`.
    pub(crate) fn finish(mut self, folder: Option<&Path>, name: &str) -> Result<()> {
        self.about["runs"] = self.runs.iter().map(Run::json).collect();
        write(folder, name, &self.about, &self.table()?)
    }

    fn table(&self) -> Result<String> {
        let mut groups: BTreeMap<(usize, usize), Vec<&Run>> = BTreeMap::new();
        for run in &self.runs {
            let scene = Scene::ALL.iter().position(|&scene| scene == run.scene);
            let source = Source::ALL.iter().position(|&source| source == run.source);
            groups.entry((scene.unwrap_or(0), source.unwrap_or(0))).or_default().push(run);
        }
        let summaries: BTreeMap<_, _> =
            groups.iter().map(|(&key, runs)| (key, Summary::of(runs))).collect();
        let base = Source::ALL.iter().position(|&source| source == self.base).unwrap_or(0);
        let mut table = String::from(
            "| scene | program | latency p50 ms | p95 ms | CPU ms/s | X server ms/s | kbit/s | frames/s |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for (&(scene, source), summary) in &summaries {
            let ours = summaries.get(&(scene, base)).filter(|_| source != base);
            let (name, program) = (Scene::ALL[scene].name(), Source::ALL[source].name());
            let cell = |of: fn(&Summary) -> Option<f64>| match (of(summary), ours.and_then(of)) {
                (Some(value), Some(ours)) if ours > 0.0 => {
                    format!("{value:.1} ({:.1}x)", value / ours)
                }
                (Some(value), _) => format!("{value:.1}"),
                (None, _) => "-".to_owned(),
            };
            let cells = [
                cell(|it| it.p50),
                cell(|it| it.p95),
                cell(|it| Some(it.program_cpu)),
                cell(|it| Some(it.server_cpu)),
                cell(|it| Some(it.kbps)),
                format!("{:.1}", summary.fps),
            ];
            writeln!(table, "| {name} | {program} | {} |", cells.join(" | "))?;
        }
        let others: Vec<f64> = self.runs.iter().map(|run| run.other_cpu).collect();
        let others = percentile(&others, 0.5).unwrap_or(0.0);
        writeln!(
            table,
            "\nIn brackets: how many times that of `{}`. All other processes of the machine took \
             {others:.0} ms/s of CPU meanwhile, at the median.",
            self.base.name()
        )?;
        Ok(table)
    }
}

impl Summary {
    /// Latencies are pooled; of the rest, the median of the rounds.
    fn of(runs: &[&Run]) -> Self {
        let latencies: Vec<f64> =
            runs.iter().flat_map(|run| run.latencies.iter().copied()).collect();
        let median = |of: fn(&Run) -> f64| {
            let values: Vec<f64> = runs.iter().map(|run| of(run)).collect();
            percentile(&values, 0.5).unwrap_or(0.0)
        };
        Self {
            p50: percentile(&latencies, 0.5),
            p95: percentile(&latencies, 0.95),
            program_cpu: median(|run| run.program_cpu),
            server_cpu: median(|run| run.server_cpu),
            kbps: median(|run| run.kbps),
            fps: median(|run| run.fps),
        }
    }
}

/// What was run, when, and on what.
pub(crate) fn about() -> Value {
    let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    json!({
        "command": format!("spaceport-compare {command}").trim_end(),
        "date": said_by("date", &["-u", "+%Y-%m-%dT%H:%MZ"]),
        "machine": {
            "cpu": field("/proc/cpuinfo", "model name"),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "kernel": said_by("uname", &["-sr"]),
        },
        "versions": {
            "commit": said_by("git", &["describe", "--always", "--dirty"]),
            "gstreamer": gstreamer::version_string().as_str(),
        },
    })
}

/// Prints a table, and writes it and all that is known to files in `folder`.
pub(crate) fn write(folder: Option<&Path>, name: &str, all: &Value, table: &str) -> Result<()> {
    std::io::stdout().write_all(table.as_bytes())?;
    let Some(folder) = folder else { return Ok(()) };
    fs::create_dir_all(folder)?;
    let file = folder.join(name).with_extension("json");
    fs::write(&file, serde_json::to_string_pretty(all)? + "\n")?;
    fs::write(file.with_extension("md"), table)?;
    say(&format!("written to {}", file.display()));
    Ok(())
}

fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied()
}

/// Two decimals are more than repeats.
pub(crate) fn rounded(value: Option<f64>) -> Option<f64> {
    value.map(|value| (value * 100.0).round() / 100.0)
}

fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
