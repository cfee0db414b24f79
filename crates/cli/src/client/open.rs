//! `spaceport open`.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use spaceport_types::Result;

use super::args::Open;
use super::{handover, wait};
use crate::args::Environment;
use crate::render;

pub(crate) fn run(open: Open, json: bool, agent: bool) -> Result<ExitCode> {
    let spaces = open.what.opened.spaces()?;
    let endpoint = wait(spaces.stream_endpoint(open.what.watch()))?;
    if json {
        render::json(&endpoint);
        return Ok(ExitCode::SUCCESS);
    }
    // First, so that it can be typed into another browser whatever becomes of this one.
    render::line_out(&render::printable(&endpoint.viewer_url));
    let person = !agent && std::io::stdout().is_terminal() && Environment::read().desktop;
    if person && let Err(error) = handover::to_browser(&endpoint.viewer_url) {
        render::hint(&format!("No browser could be opened ({error}); open the address yourself"));
    }
    Ok(ExitCode::SUCCESS)
}
