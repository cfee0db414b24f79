//! `spaceport send` and `spaceport download`.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use spaceport_spaces::Client;
use spaceport_teleport::receive::Conflict;
use spaceport_teleport::stream::{Cancel, Fetch, LeftOut, Send, Step, Watch};
use spaceport_teleport::{Keys, carry};
use spaceport_types::{Error, Kind, Result};

use super::args::{self, Policy};
use super::now;
use crate::args::Environment;
use crate::progress::{Progress, size};
use crate::render::{self, printable, typed};

/// The longest answer to a question that is looked at.
const LONGEST_ANSWER: u64 = 64;

pub(crate) fn send_files(wanted: args::Send, json: bool, agent: bool) -> Result<ExitCode> {
    confirm(wanted.how.conflict, wanted.how.yes, agent)?;
    let space = wanted.how.opened.spaces()?.resolve(&wanted.to)?;
    let send = Send {
        paths: wanted.paths,
        into: wanted.into.unwrap_or_default(),
        conflict: wanted.how.conflict.into(),
        everything: wanted.how.no_ignore,
        listed: false,
    };
    let keys = keys(wanted.how.trust_key);
    let sent = run("Sending", json || agent, async |watch, cancel| {
        let space = Client::new(&space.address, space.token.as_ref())?;
        carry::send(&space, &send, &keys, watch, cancel, now()).await
    })?;
    if json {
        render::json(&sent);
        return Ok(ExitCode::SUCCESS);
    }
    let counted = Counted {
        files: sent.files,
        bytes: sent.bytes,
        resumed: sent.resumed_bytes,
        destination: &sent.destination,
        skipped: sent.skipped_count,
    };
    done("Sent", &counted);
    names(&sent.destination, &sent.names);
    if !agent {
        left_out(&sent.left_out);
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn download(wanted: args::Download, json: bool, agent: bool) -> Result<ExitCode> {
    confirm(wanted.how.conflict, wanted.how.yes, agent)?;
    let (space, paths, into) = named(&wanted.what)?;
    let space = wanted.how.opened.spaces()?.resolve(&space)?;
    let into = std::path::absolute(into).map_err(|error| {
        Error::new(Kind::InvalidArgument, "the folder to download to is no path").source(error)
    })?;
    let fetch = Fetch {
        paths,
        into,
        state: staged(),
        conflict: wanted.how.conflict.into(),
        everything: wanted.how.no_ignore,
    };
    let keys = keys(wanted.how.trust_key);
    let fetched = run("Downloading", json || agent, async |watch, cancel| {
        let space = Client::new(&space.address, space.token.as_ref())?;
        carry::fetch(&space, &fetch, &keys, watch, cancel, now()).await
    })?;
    if json {
        render::json(&fetched);
        return Ok(ExitCode::SUCCESS);
    }
    let counted = Counted {
        files: fetched.files,
        bytes: fetched.bytes,
        resumed: fetched.resumed_bytes,
        destination: &fetched.destination,
        skipped: fetched.skipped_count,
    };
    done("Downloaded", &counted);
    names(&fetched.destination, &fetched.names);
    Ok(ExitCode::SUCCESS)
}

/// Where notes of what is staged are kept.
pub(crate) fn staged() -> PathBuf {
    Environment::read().state_dir.join("downloads")
}

/// The keys of Spaces that were seen before; `named` is the one that a person has compared.
pub(crate) fn keys(named: Option<String>) -> Keys {
    Keys { folder: Environment::read().state_dir.join("teleport"), named }
}

/// Runs a transfer with its progress shown. The first signal gives it up, and waits until nothing is
/// left of it.
fn run<T>(
    name: &'static str,
    silent: bool,
    work: impl AsyncFnOnce(&Watch, &Cancel) -> Result<T>,
) -> Result<T> {
    let progress = Arc::new(Progress::new(silent));
    let shown = Arc::clone(&progress);
    let watch: Watch = Arc::new(move |step| match step {
        Step::Looking => shown.show("Looking", None),
        Step::Moving { done, total } => shown.show(name, Some((done, total))),
        Step::Publishing => shown.show("Checking", None),
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(async {
        let cancel = Cancel::default();
        let interrupted = crate::serve::stop_signal()?;
        let work = work(&watch, &cancel);
        let mut work = std::pin::pin!(work);
        tokio::select! {
            done = &mut work => return done,
            () = interrupted => cancel.cancel(),
        }
        work.await
    });
    progress.end();
    // A disk that does not answer is not waited for.
    runtime.shutdown_background();
    done
}

/// What is downloaded and where to: the Space, its paths, and a folder here.
fn named(what: &[String]) -> Result<(String, Vec<String>, &str)> {
    let invalid = |message: String| {
        Error::new(Kind::InvalidArgument, message)
            .hint("Name them as `SPACE:PATH`, and last a folder of this machine")
    };
    let (remote, into) = match what {
        [remote @ .., last] if !remote.is_empty() && split(last).is_none() => (remote, &**last),
        remote => (remote, "."),
    };
    let (mut space, mut paths) = (None, Vec::new());
    for it in remote {
        let (from, path) = split(it).ok_or_else(|| match it.trim_end_matches(':') {
            // A file that is there is one of this machine.
            name if !Path::new(it).exists() && !name.is_empty() => {
                let name = name.escape_debug();
                invalid(format!("`{name}` is no path of a Space"))
                    .hint(format!("Say what of it: `{name}:Downloads/report.pdf`"))
            }
            name => invalid(format!("`{}` names no Space", name.escape_debug())),
        })?;
        if space.is_some_and(|space| space != from) {
            return Err(invalid("one download is from one Space".to_owned()));
        }
        space = Some(from);
        paths.push(path.to_owned());
    }
    let space = space.ok_or_else(|| invalid("nothing is named to download".to_owned()))?;
    Ok((space.to_owned(), paths, into))
}

/// `SPACE:PATH`, of which the Space may be an address with a port.
fn split(what: &str) -> Option<(&str, &str)> {
    if what.starts_with(['/', '.', '~']) {
        return None;
    }
    let authority = match what.find("://") {
        Some(at) => at + 3,
        None => 0,
    };
    let rest = what.get(authority..)?;
    // An IPv6 address is in brackets.
    let from = rest.strip_prefix('[').and_then(|_| rest.find(']')).unwrap_or(0);
    let mut at = from + rest.get(from..)?.find(':')?;
    let after = rest.get(at + 1..)?;
    let port = after.bytes().take_while(u8::is_ascii_digit).count();
    let named = authority > 0 || port > 0;
    if named && port > 0 && after.as_bytes().get(port).is_some_and(|&it| it == b':' || it == b'/') {
        at = at + 1 + port + after.get(port..)?.find(':')?;
    }
    let (space, path) = what.split_at_checked(authority + at)?;
    let path = path.get(1..)?;
    (!space.is_empty() && !path.is_empty()).then_some((space, path))
}

/// What is there is replaced for good: somebody has to want that.
fn confirm(conflict: Policy, yes: bool, agent: bool) -> Result<()> {
    if conflict != Policy::Overwrite || yes {
        return Ok(());
    }
    if agent || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Error::new(
            Kind::ConfirmationRequired,
            "`--conflict overwrite` replaces files, and was not confirmed",
        )
        .hint("Add `--yes` to confirm it"));
    }
    let mut stderr = std::io::stderr().lock();
    let question = "Replace files of the same name? [y/N] ";
    drop(stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush()));
    let mut answer = String::new();
    std::io::stdin().lock().take(LONGEST_ANSWER).read_line(&mut answer)?;
    match &*answer.trim().to_ascii_lowercase() {
        "y" | "yes" => Ok(()),
        _ => Err(Error::new(Kind::Cancelled, "nothing was replaced")),
    }
}

struct Counted<'a> {
    files: u64,
    bytes: u64,
    resumed: u64,
    destination: &'a str,
    skipped: u64,
}

fn done(what: &str, counted: &Counted<'_>) {
    let files = match counted.files {
        1 => "1 file".to_owned(),
        files => format!("{files} files"),
    };
    let mut line =
        format!("{what} {files}, {}, to {}", size(counted.bytes), printable(counted.destination));
    if counted.resumed > 0 {
        line.push_str(&format!("; {} had come before", size(counted.resumed)));
    }
    if counted.skipped > 0 {
        line.push_str(&format!("; {} were there and left as they are", counted.skipped));
    }
    render::line_out(&line);
}

fn names(destination: &str, names: &[String]) {
    for name in names.iter().take(NAMES) {
        render::line_out(&format!("  {}", typed(&printable(&format!("{destination}/{name}")))));
    }
    if let Some(more) = names.len().checked_sub(NAMES).filter(|&more| more > 0) {
        render::line_out(&format!("  and {more} more"));
    }
}

/// Names that are listed; the rest is counted.
const NAMES: usize = 20;

fn left_out(left_out: &LeftOut) {
    let LeftOut { ignored, links, special } = *left_out;
    let mut parts = Vec::new();
    for (count, what) in [
        (ignored, "that ignore files leave out (`--no-ignore` sends them)"),
        (links, "links"),
        (special, "pipes, sockets or devices"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    if !parts.is_empty() {
        render::hint(&format!("Not sent: {}", parts.join(", ")));
    }
}

impl From<Policy> for Conflict {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Rename => Self::Rename,
            Policy::Overwrite => Self::Overwrite,
            Policy::Skip => Self::Skip,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_ends_where_its_path_begins() {
        for (what, space, path) in [
            ("box:a/b", "box", "a/b"),
            ("box:~/x", "box", "~/x"),
            ("box:a:b", "box", "a:b"),
            ("10.0.0.7:3211:/tmp/x", "10.0.0.7:3211", "/tmp/x"),
            ("http://h:3211:/tmp/x", "http://h:3211", "/tmp/x"),
            ("http://h:x", "http://h", "x"),
            ("https://relay:443/m/id:x", "https://relay:443/m/id", "x"),
            ("http://[::1]:3211:x", "http://[::1]:3211", "x"),
            ("box:2024", "box", "2024"),
        ] {
            assert_eq!(split(what), Some((space, path)), "{what}");
        }
        for what in ["folder", "./a:b", "/a:b", "~/a:b", "box:", ":x", "http://h"] {
            assert_eq!(split(what), None, "{what}");
        }
    }

    #[test]
    fn the_last_one_is_a_folder_here_when_it_names_no_space() {
        let words = |it: &[&str]| it.iter().map(|&it| it.to_owned()).collect::<Vec<_>>();
        let two = words(&["box:a", "box:b", "here"]);
        let (space, paths, into) = named(&two).unwrap();
        assert_eq!((&*space, into), ("box", "here"));
        assert_eq!(paths, ["a", "b"]);
        assert_eq!(named(&words(&["box:a"])).unwrap().2, ".");
        for wrong in [&["a"][..], &["a", "b"], &["box:a", "other:b"], &["box:a", "b", "c"]] {
            assert_eq!(named(&words(wrong)).unwrap_err().kind(), Kind::InvalidArgument);
        }
    }
}
