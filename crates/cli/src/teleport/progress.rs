//! How far a teleport is: a bar on a terminal, lines in a pipe, nothing beside JSON.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use spaceport_teleport::push::Step;

use super::words::size;

#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    /// What was last said in a pipe: the step, and how many tenths of it.
    said: Option<Mutex<(&'static str, u64)>>,
}

impl Progress {
    pub(super) fn new(silent: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (!silent && terminal).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(spinner());
            bar
        });
        Self { bar, said: (!silent && !terminal).then(Mutex::default) }
    }

    pub(super) fn show(&self, step: Step) {
        let (name, share) = match step {
            Step::Capturing => ("Copying", None),
            Step::Sealing { done, total } => ("Sealing", Some((done, total))),
            Step::Sending { done, total } => ("Sending", Some((done, total))),
            Step::Importing => ("Importing", None),
        };
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

    pub(super) fn end(&self) {
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
