//! The grammar of `spaceport teleport` and `spaceport approvals`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use spaceport_teleport::manifest::{App, Scope};

use crate::client::args::Opened;

/// Move a signed-in app session to a Space, and back.
#[derive(Debug, Args)]
pub(crate) struct Teleport {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Say what of an app could move from this machine.
    Manifest(Manifest),
    /// Move an app's state to a Space, once a person has agreed. Run it again to go on.
    Push(Push),
    /// Let something move that was asked for. Needs a person at a terminal.
    Approve(Approve),
    /// Refuse something that was asked for. Needs a person at a terminal.
    Deny(Deny),
    /// Take back what was imported: what it added goes, what it replaced comes back.
    #[command(visible_alias = "rollback")]
    Wipe(Wipe),
    /// Say what has been moved from here and to here, and what became of it.
    Receipts(Kept),
    /// Show this machine's seal key, for a person to compare.
    Key(Kept),
    /// Check the record of every decision, and show it.
    Ledger(Kept),
}

#[derive(Debug, Args)]
pub(crate) struct Manifest {
    /// The app: firefox, chromium, chrome, vscode or claude-code.
    #[arg(value_parser = app)]
    pub(crate) app: App,
    /// How much of it: tabs, session or full.
    #[arg(long, default_value = "full", value_parser = scope)]
    pub(crate) scope: Scope,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

#[derive(Debug, Args)]
pub(crate) struct Push {
    #[command(flatten)]
    pub(crate) what: Manifest,
    #[command(flatten)]
    pub(crate) space: Space,
    /// Move this item, by the path that `manifest` shows; several times for several. Without it:
    /// what is chosen by default.
    #[arg(long, value_name = "PATH")]
    pub(crate) include: Vec<String>,
    /// Move only what belongs to this site; several times for several.
    #[arg(long, value_name = "HOST")]
    pub(crate) site: Vec<String>,
    /// Let items move that can sign someone in, or tell what they did.
    #[arg(long)]
    pub(crate) acknowledge_sensitive: bool,
    /// Put it in place of the profile that is there, which is kept aside.
    #[arg(long)]
    pub(crate) replace_existing: bool,
    /// Close the app there when it runs.
    #[arg(long)]
    pub(crate) close_running_app: bool,
    /// Start the app there afterwards.
    #[arg(long)]
    pub(crate) launch: bool,
    /// Take it back after this time, for example 30m, 8h or 7d.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) expires_in: Option<Duration>,
    /// Use the answer to this request and no other.
    #[arg(long, value_name = "ID")]
    pub(crate) request: Option<String>,
    /// The Space's key as `spaceport teleport key` shows it there. Needed when it has changed.
    #[arg(long, value_name = "FINGERPRINT")]
    pub(crate) trust_key: Option<String>,
}

/// A Space, and what opens it.
#[derive(Debug, Args)]
pub(crate) struct Space {
    /// The Space, by name, id or address.
    #[arg(long, value_name = "SPACE")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) opened: Opened,
}

#[derive(Debug, Args)]
pub(crate) struct Approve {
    /// The request, as `spaceport approvals` lists it.
    pub(crate) id: String,
    /// Show a link to a local page instead, which works once. Needs `spaceport serve` here.
    #[arg(long)]
    pub(crate) page: bool,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

#[derive(Debug, Args)]
pub(crate) struct Deny {
    /// The request, as `spaceport approvals` lists it.
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

#[derive(Debug, Args)]
pub(crate) struct Wipe {
    /// The import, as its receipt names it.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) id: Option<String>,
    /// Every import.
    #[arg(long)]
    pub(crate) all: bool,
    /// At this Space, by name, id or address; without it, on this machine.
    #[arg(long, value_name = "SPACE")]
    pub(crate) at: Option<String>,
    #[command(flatten)]
    pub(crate) opened: Opened,
    #[command(flatten)]
    pub(crate) kept: Kept,
}

/// Where things are kept.
#[derive(Clone, Debug, Args)]
pub(crate) struct Kept {
    /// Where keys, consent and receipts are kept.
    #[arg(long, value_name = "DIR", env = "SPACEPORT_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

fn app(name: &str) -> Result<App, String> {
    App::named(name).map_err(|_| format!("say {}", App::ALL.map(App::as_str).join(", ")))
}

fn scope(name: &str) -> Result<Scope, String> {
    [Scope::Tabs, Scope::Session, Scope::Full]
        .into_iter()
        .find(|scope| scope.as_str() == name)
        .ok_or_else(|| "say tabs, session or full".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    const HINT: &str = "say for example 30m, 8h or 7d";
    let unit = text.chars().last().map(|unit| match unit {
        's' => Ok(1),
        'm' => Ok(60),
        'h' => Ok(3600),
        'd' => Ok(86_400),
        _ => Err(HINT.to_owned()),
    });
    let unit: u64 = unit.unwrap_or_else(|| Err(HINT.to_owned()))?;
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| HINT.to_owned())?;
    match number.checked_mul(unit) {
        Some(seconds @ 1..=31_536_000) => Ok(Duration::from_secs(seconds)),
        _ => Err("say a time of at least a second and at most a year".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [("30m", 1800), ("8h", 28_800), ("7d", 604_800), ("1s", 1)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "8", "h", "0s", "-1h", "8 h", "9999999d", "8ü"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
