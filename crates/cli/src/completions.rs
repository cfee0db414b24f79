//! `spaceport completions`.

use std::process::ExitCode;

use clap::CommandFactory as _;
use spaceport_types::Result;

use crate::args::{Args, Completions};
use crate::render;

#[expect(clippy::unnecessary_wraps, reason = "a verb like the others")]
pub(crate) fn run(completions: &Completions) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut Args::command(), "spaceport", &mut script);
    render::text_out(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}
