//! `spaceport spaces`.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use spaceport_gateway::config::read_secret;
use spaceport_spaces::{SpaceInfo, Spaces, verbs};
use spaceport_types::{Error, Kind, Redacted, Result};

use super::args::{Add, Registered, Remove, Verb};
use super::{mine, now, wait};
use crate::args::Environment;
use crate::render::{self, typed};

/// The longest token that is read from stdin; a header could hold no more.
const LONGEST_TOKEN: u64 = 8 << 10;

/// The longest answer to a question that is looked at.
const LONGEST_ANSWER: u64 = 64;

pub(crate) fn run(registered: Registered, json: bool, agent: bool) -> Result<ExitCode> {
    let spaces = mine();
    let say = !json && !agent;
    match registered.verb.unwrap_or(Verb::List) {
        Verb::List => {
            let listed = wait(async { spaces.list().await })?;
            if json {
                render::json(&listed);
            } else if listed.is_empty() {
                render::hint("There is no Space yet; add one: `spaceport spaces add URL`");
            } else {
                render::table(["NAME", "ID", "SYSTEM", "VERSION", "RELAY"], listed.iter().map(row));
            }
        }
        Verb::Add(add) => {
            let info = wait(spaces.add(wanted(add)?, now()))?;
            show(&info, json, "Added");
            if say {
                let name = typed(info.shown_name());
                render::hint(&format!("Look at it: `spaceport open {name}`"));
            }
        }
        Verb::Remove(remove) => {
            let info = removed(&spaces, &remove, agent)?;
            show(&info, json, "Removed");
        }
        Verb::Rename(rename) => {
            let info = spaces.rename(&rename.name, &rename.new)?;
            show(&info, json, "Renamed to");
        }
        Verb::Status(status) => {
            let spaces = status.opened.spaces()?;
            let status = wait(spaces.status(&status.name))?;
            if json {
                render::json(&status);
            } else {
                describe(&status);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn wanted(add: Add) -> Result<verbs::Add> {
    let token = match (add.token_stdin, add.token_file) {
        (true, _) => Some(token_from_stdin()?),
        (false, Some(file)) => Some(read_secret(&file)?),
        (false, None) => Environment::read().token,
    };
    Ok(verbs::Add { url: add.url, token, name: add.name, service: add.service })
}

fn token_from_stdin() -> Result<Redacted<String>> {
    let mut text = String::new();
    let mut stdin = std::io::stdin().lock().take(LONGEST_TOKEN);
    stdin.read_line(&mut text).map_err(|error| {
        Error::new(Kind::Io, "the token cannot be read from stdin").source(error)
    })?;
    match text.trim() {
        "" => Err(Error::new(Kind::InvalidArgument, "stdin holds no token")
            .hint("Pipe it in: `spaceport spaces add URL --token-stdin < FILE`")),
        token => Ok(Redacted::new(token.to_owned())),
    }
}

fn removed(spaces: &Spaces, remove: &Remove, agent: bool) -> Result<SpaceInfo> {
    if remove.yes {
        return spaces.remove(&remove.name);
    }
    // Known first: there is no point in confirming what cannot be done.
    let info = spaces.resolve(&remove.name)?.info;
    let name = render::printable(info.shown_name());
    if agent || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Error::new(
            Kind::ConfirmationRequired,
            format!("removing `{name}` forgets its token, and was not confirmed"),
        )
        .with("space", &info.id)
        .hint("Add `--yes` to confirm it"));
    }
    let mut stderr = std::io::stderr().lock();
    let question = format!("Remove `{name}` ({}) and forget its token? [y/N] ", info.id);
    drop(stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()));
    let mut answer = String::new();
    std::io::stdin().lock().take(LONGEST_ANSWER).read_line(&mut answer)?;
    match &*answer.trim().to_ascii_lowercase() {
        // By its id: what was confirmed, whatever has been renamed meanwhile.
        "y" | "yes" => spaces.remove(&info.id),
        _ => Err(Error::new(Kind::Cancelled, format!("`{name}` was not removed"))),
    }
}

fn show(info: &SpaceInfo, json: bool, what: &str) {
    if json {
        render::json(info);
    } else {
        let name = render::printable(info.shown_name());
        render::line_out(&format!("{what} `{name}` ({})", render::printable(&info.id)));
    }
}

fn row(info: &SpaceInfo) -> [String; 5] {
    let version = info.spacesd_version.clone();
    [info.shown_name().to_owned(), info.id.clone(), system(info), version, relay(info).to_owned()]
}

/// Whether one behind a relay is there; nothing of the others, which were not asked.
fn relay(info: &SpaceInfo) -> &str {
    match (&*info.provider, &*info.stop_reason) {
        ("relay", "") => "connected",
        ("relay", why) => why,
        _ => "",
    }
}

/// What it runs, as far as it said.
fn system(info: &SpaceInfo) -> String {
    match &*info.os_pretty_name {
        "" => info.os.clone(),
        name => name.to_owned(),
    }
}

fn describe(status: &verbs::Status) {
    let info = &status.info;
    let system = system(info);
    render::facts(&[
        ("name", info.shown_name()),
        ("id", &info.id),
        ("state", &info.power_state),
        ("system", &system),
        ("kind", &info.kind),
        ("processor", &info.arch),
        ("version", &info.spacesd_version),
        ("services", &info.services.join(", ")),
        ("added", info.added_at.as_deref().unwrap_or_default()),
        ("can", &info.features.join(", ")),
    ]);
    let cannot: Vec<_> =
        status.limitations.iter().map(|it| [it.feature.clone(), it.limitation.clone()]).collect();
    if !cannot.is_empty() {
        render::line_out("");
        render::table(["CANNOT", "BECAUSE"], cannot);
    }
}
