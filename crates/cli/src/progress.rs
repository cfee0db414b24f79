//! How far something that moves is: a bar on a terminal, lines in a pipe, nothing beside JSON.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    /// What was last said in a pipe: the step, and how many tenths of it.
    said: Option<Mutex<(&'static str, u64)>>,
}

impl Progress {
    pub(crate) fn new(silent: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (!silent && terminal).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(spinner());
            bar
        });
        Self { bar, said: (!silent && !terminal).then(Mutex::default) }
    }

    /// Shows a step by its name, and how much of how many bytes of it is done.
    pub(crate) fn show(&self, name: &'static str, share: Option<(u64, u64)>) {
        if let Some(bar) = &self.bar {
            draw(bar, name, share);
        }
        if let Some(said) = &self.said {
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            let tenths = share.map_or(0, |(done, total)| done * 10 / total.max(1));
            if *said == (name, tenths) {
                return;
            }
            *said = (name, tenths);
            let line = match share {
                Some((done, total)) => format!("{name}: {} of {}", size(done), size(total)),
                None => name.to_owned(),
            };
            crate::render::line_err(&line);
        }
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn draw(bar: &ProgressBar, name: &'static str, share: Option<(u64, u64)>) {
    if bar.message() != name {
        bar.reset();
        bar.set_message(name);
        match share {
            Some((done, total)) => {
                bar.set_style(bytes());
                bar.set_length(total);
                bar.set_position(done);
                // What had arrived before is no speed of this run.
                bar.reset_eta();
            }
            None => bar.set_style(spinner()),
        }
    }
    match share {
        Some((done, _)) => bar.set_position(done),
        None => bar.tick(),
    }
}

fn bytes() -> ProgressStyle {
    const TEMPLATE: &str = "{msg:10} [{bar:30}] {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
    ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{msg:10} {spinner}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Bytes in a unit that a person takes in.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} bytes");
    }
    let (mut value, mut unit) = (bytes as f64 / 1000.0, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}
