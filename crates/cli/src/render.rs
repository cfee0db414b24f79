//! Words for people, JSON for programs.

use std::io::Write;
use std::process::ExitCode;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::Value;
use spaceport_types::{Error, Kind, Report};
use tracing_subscriber::EnvFilter;
use unicode_width::UnicodeWidthStr as _;

/// Between two columns.
const GAP: &str = "  ";

/// Sends logs to stderr; stdout is for data.
pub(crate) fn init_logs(verbose: u8, serves: bool, agent: bool) {
    let default = match verbose {
        // What an agent reads there is the one error.
        0 if agent => "off",
        // A verb that ends says itself what it did.
        0 if !serves => "warn",
        0 => "warn,spaceport=info",
        1 => "info,spaceport=debug",
        // At debug, the ICE agent logs passwords.
        _ => "debug,str0m=info,is=info,spaceport=trace",
    };
    let filter = EnvFilter::try_from_env("SPACEPORT_LOG").unwrap_or_else(|_| default.into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(AutoStream::choice(&std::io::stderr()) != ColorChoice::Never)
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

/// Prints a text on stdout as it is.
pub(crate) fn text_out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    drop(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()));
}

/// Prints one line on stderr, for people.
pub(crate) fn line_err(line: &str) {
    drop(writeln!(std::io::stderr().lock(), "{line}"));
}

/// Prints rows below their headings, each column as wide as its widest cell.
pub(crate) fn table<const N: usize>(
    headings: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) {
    let rows: Vec<[String; N]> =
        rows.into_iter().map(|row| row.map(|cell| printable(&cell))).collect();
    let mut widths = headings.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let mut stdout = AutoStream::auto(std::io::stdout().lock());
    let bold = Style::new().bold();
    let heading = line(&headings.map(str::to_owned), &widths);
    let mut written = writeln!(stdout, "{bold}{heading}{bold:#}");
    for row in &rows {
        written = written.and_then(|()| writeln!(stdout, "{}", line(row, &widths)));
    }
    drop(written.and_then(|()| stdout.flush()));
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        line.push_str(cell);
        line.extend(std::iter::repeat_n(' ', width - cell.width()));
        line.push_str(GAP);
    }
    line.truncate(line.trim_end().len());
    line
}

/// Prints what is known of one thing, a fact on a line. What is empty is left out.
pub(crate) fn facts(facts: &[(&str, &str)]) {
    let widest = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let mut stdout = AutoStream::auto(std::io::stdout().lock());
    let bold = Style::new().bold();
    let mut written = Ok(());
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let value = printable(value);
        written =
            written.and_then(|()| writeln!(stdout, "{bold}{name:<widest$}{bold:#}{GAP}{value}"));
    }
    drop(written.and_then(|()| stdout.flush()));
}

/// Says on stderr what could come next, so that stdout stays what was asked for.
pub(crate) fn hint(hint: &str) {
    let mut stderr = AutoStream::auto(std::io::stderr().lock());
    let cyan = AnsiColor::Cyan.on_default();
    drop(writeln!(stderr, "{cyan}hint:{cyan:#} {}", printable(hint)));
}

/// An error for programs.
#[derive(Serialize)]
struct Envelope<'a> {
    error: Coded<'a>,
}

#[derive(Serialize)]
struct Coded<'a> {
    code: String,
    #[serde(flatten)]
    report: &'a Report,
}

/// Prints what went wrong and returns the exit code of its kind.
pub(crate) fn failure(error: &Error, as_json: bool, agent: bool) -> ExitCode {
    let report = error.report();
    let coded = || Envelope { error: Coded { code: code_of(report.kind), report: &report } };
    if agent {
        if let Ok(line) = serde_json::to_string(&coded()) {
            line_err(&line);
        }
    } else if as_json {
        json(&coded());
    } else {
        let mut stderr = AutoStream::auto(std::io::stderr().lock());
        let red = AnsiColor::Red.on_default().bold();
        let mut text = format!("{red}error:{red:#} {}\n", printable(&report.message));
        for cause in &report.causes {
            text.push_str(&format!("caused by: {}\n", printable(cause)));
        }
        drop(stderr.write_all(text.as_bytes()));
        drop(stderr);
        if let Some(text) = &report.hint {
            hint(text);
        }
    }
    ExitCode::from(report.kind.spec().exit)
}

/// The name of a kind as programs of the command line know it: `NOT_FOUND`.
pub(crate) fn code_of(kind: Kind) -> String {
    word(kind).to_ascii_uppercase()
}

/// The word that a value is in JSON.
pub(crate) fn word(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A text from elsewhere that can neither move the cursor nor turn the line around.
pub(crate) fn printable(text: &str) -> String {
    let turns = |it| matches!(it, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|it| if it.is_control() || turns(it) { '\u{fffd}' } else { it }).collect()
}

/// A name as it can be typed into a shell.
pub(crate) fn typed(name: &str) -> String {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-_.:/".contains(it);
    if !name.is_empty() && name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_whatever_is_in_them() {
        let cells = |cells: [&str; 3]| line(&cells.map(str::to_owned), &[6, 4, 2]);
        assert_eq!(cells(["a", "b", "c"]), "a       b     c");
        assert_eq!(cells(["文字", "b", ""]), "文字    b");
    }

    #[test]
    fn a_title_cannot_drive_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{202e}d"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d");
    }

    #[test]
    fn a_name_in_a_hint_can_be_typed_as_it_stands() {
        assert_eq!(typed("direct:box:3211"), "direct:box:3211");
        assert_eq!(typed("my box"), "'my box'");
        assert_eq!(typed("it's; rm -rf ~"), r"'it'\''s; rm -rf ~'");
    }
}
