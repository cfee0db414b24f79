//! `spaceport doctor`.

use std::process::ExitCode;

use serde_json::json;
use spaceport_gateway::doctor::{examine, healthy};
use spaceport_types::Result;

use crate::args::Doctor;
use crate::render;

pub(crate) fn run(doctor: &Doctor, json: bool) -> Result<ExitCode> {
    let checks = examine(&doctor.config());
    let healthy = healthy(&checks);
    if json {
        render::json(&json!({ "healthy": healthy, "checks": checks }));
    } else {
        for check in &checks {
            let mark = match (check.works, check.optional) {
                (true, _) => "ok  ",
                (false, true) => "-   ",
                (false, false) => "FAIL",
            };
            render::line_out(&format!(
                "{mark}  {:<8} {:<24} {}",
                check.area, check.name, check.detail
            ));
            if let Some(hint) = check.hint.as_ref().filter(|_| !check.works) {
                render::line_out(&format!("      {:<8} {:<24} hint: {hint}", "", ""));
            }
        }
        let verdict = if healthy {
            "A desktop can be streamed from this machine."
        } else {
            "A desktop cannot be streamed from this machine yet; see the hints above."
        };
        render::line_out(&format!("\n{verdict}"));
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
