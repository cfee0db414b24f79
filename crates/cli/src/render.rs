//! Words for people, JSON for programs.

use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use spaceport_types::Error;
use tracing_subscriber::EnvFilter;

/// Sends logs to stderr; stdout is for data.
pub(crate) fn init_logs(verbose: u8) {
    let default = match verbose {
        0 => "warn,spaceport=info",
        1 => "info,spaceport=debug",
        // At debug, the ICE agent logs passwords.
        _ => "debug,str0m=info,is=info,spaceport=trace",
    };
    let filter = EnvFilter::try_from_env("SPACEPORT_LOG").unwrap_or_else(|_| default.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Prints one line of JSON on stdout.
pub(crate) fn json(value: &impl Serialize) {
    if let Ok(line) = serde_json::to_string(value) {
        line_out(&line);
    }
}

/// Prints one line on stdout. A reader that has gone away is not an error.
pub(crate) fn line_out(line: &str) {
    let mut stdout = std::io::stdout().lock();
    drop(writeln!(stdout, "{line}").and_then(|()| stdout.flush()));
}

/// Prints one line on stderr, for people.
pub(crate) fn line_err(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Prints what went wrong and returns the exit code of its kind.
pub(crate) fn failure(error: &Error, as_json: bool) -> ExitCode {
    let report = error.report();
    if as_json {
        json(&json!({ "error": report }));
    } else {
        let mut stderr = std::io::stderr().lock();
        let mut text = format!("error: {}\n", report.message);
        for cause in &report.causes {
            text.push_str(&format!("caused by: {cause}\n"));
        }
        if let Some(hint) = &report.hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
        drop(stderr.write_all(text.as_bytes()));
    }
    ExitCode::from(report.kind.spec().exit)
}
