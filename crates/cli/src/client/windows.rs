//! `spaceport windows`.

use std::process::ExitCode;

use spaceport_spaces::verbs::Window;
use spaceport_types::Result;

use super::args::Windows;
use super::wait;
use crate::render::{self, typed};

pub(crate) fn run(windows: &Windows, json: bool, agent: bool) -> Result<ExitCode> {
    let spaces = windows.opened.spaces()?;
    let listed = wait(spaces.windows(&windows.space, windows.app.as_deref()))?;
    if json {
        render::json(&listed);
        return Ok(ExitCode::SUCCESS);
    }
    if !listed.is_empty() {
        let headings = ["WINDOW", "APP", "SIZE", "AT", "FOCUSED", "TITLE"];
        render::table(headings, listed.iter().map(row));
    }
    if !agent {
        let space = windows.opened.again(&windows.space);
        render::hint(&match listed.first() {
            Some(Window { window_id, .. }) => {
                format!("Look at one: `spaceport open {space} --window {}`", typed(window_id))
            }
            None => {
                let none = match windows.app {
                    Some(_) => "That app has no window",
                    None => "No window is open",
                };
                format!("{none}; look at the whole desktop: `spaceport open {space}`")
            }
        });
    }
    Ok(ExitCode::SUCCESS)
}

fn row(window: &Window) -> [String; 6] {
    let [x, y, width, height] = window.bounds;
    [
        window.window_id.clone(),
        window.app_name.clone(),
        format!("{width}x{height}"),
        format!("{x},{y}"),
        if window.focused { "yes" } else { "no" }.to_owned(),
        window.title.clone(),
    ]
}
