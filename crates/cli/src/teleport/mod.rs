//! `spaceport teleport` and `spaceport approvals`.

pub(crate) mod args;
pub(crate) mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use spaceport_spaces::{Address, Client, Entry};
use spaceport_teleport::consent::{Desk, How, Link, Person, Request, Standing, Terminal};
use spaceport_teleport::inbox::{Inbox, Wiped};
use spaceport_teleport::manifest::Choice;
use spaceport_teleport::push::{Push, Pushed, Source, Step, wipe_at};
use spaceport_teleport::receipt::{Receipt, receipts};
use spaceport_teleport::seal::Identity;
use spaceport_teleport::{Ledger, Machine, providers};
use spaceport_types::{Error, Kind, Redacted, Result};
use tokio::runtime::Runtime;

use crate::args::Environment;
use crate::client::args::Opened;
use crate::progress::Progress;
use crate::{render, usage};
use args::{Approve, Deny, Kept, Teleport, Verb, Wipe};

pub(crate) fn run(teleport: &Teleport, json: bool) -> Result<ExitCode> {
    match &teleport.verb {
        Verb::Manifest(manifest) => {
            let manifest = source(&manifest.kept)?.manifest(manifest.app, manifest.scope)?;
            if json {
                render::json(&manifest);
            } else {
                render::line_out(&words::manifest(&manifest));
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Push(wanted) => push(wanted, json),
        Verb::Approve(approve) => decide_yes(approve, json),
        Verb::Deny(Deny { id, kept }) => answer(&folder(kept), id, Some(false), json),
        Verb::Wipe(wanted) => wipe(wanted, json),
        Verb::Receipts(kept) => {
            let receipts = receipts(&folder(kept))?;
            if json {
                render::json(&receipts);
            } else if receipts.is_empty() {
                render::line_out("Nothing was moved from here or to here.");
            } else {
                receipts.iter().for_each(|it| render::line_out(&words::receipt(it)));
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Key(kept) => {
            let identity = Identity::load(&folder(kept).join("seal-key"))?;
            let fingerprint = identity.public().fingerprint();
            if json {
                render::json(&json!({ "fingerprint": fingerprint, "key": identity.public() }));
            } else {
                render::line_out(&fingerprint);
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Ledger(kept) => ledger(&folder(kept), json),
    }
}

/// `spaceport approvals`: what was asked for in the last day.
pub(crate) fn approvals(kept: &Kept, json: bool) -> Result<ExitCode> {
    let now = now();
    let requests = Desk::at(&folder(kept)).requests(now)?;
    if json {
        render::json(&requests);
    } else if requests.is_empty() {
        render::line_out("Nothing was asked for in the last day.");
    } else {
        requests.iter().for_each(|it| render::line_out(&words::request_line(it, now)));
    }
    Ok(ExitCode::SUCCESS)
}

fn push(wanted: &args::Push, as_json: bool) -> Result<ExitCode> {
    let now = now();
    let list = |names: &[String]| (!names.is_empty()).then(|| names.to_vec());
    let expires = wanted.expires_in.map(|after| millis(now + after));
    let mut push = Push {
        app: wanted.what.app,
        scope: wanted.what.scope,
        choice: Choice {
            include: list(&wanted.include),
            sites: list(&wanted.site),
            acknowledge_sensitive: wanted.acknowledge_sensitive,
        },
        how: How {
            replace_existing: wanted.replace_existing,
            close_running_app: wanted.close_running_app,
            launch_after: wanted.launch,
            expires_at_ms: expires.unwrap_or_default(),
        },
        request_id: wanted.request.clone(),
        trust_key: wanted.trust_key.clone(),
    };
    let source = source(&wanted.what.kept)?;
    let (address, token) = named(&wanted.space.to, &wanted.space.opened)?;
    runtime()?.block_on(async {
        let space = Client::new(&address, Some(&token))?;
        let request = match until_interrupted(&source, &space, &push, as_json, now).await? {
            Pushed::Moved(receipt) => return Ok(moved(&receipt, as_json)),
            Pushed::ConsentRequired(request) => request,
        };
        let Some(terminal) = (!as_json).then(terminal).and_then(Result::ok) else {
            return Ok(consent_required(&request, as_json));
        };
        ask(terminal, &source.desk(), &request, None)?;
        push.request_id = Some(request.id);
        match until_interrupted(&source, &space, &push, as_json, self::now()).await? {
            Pushed::Moved(receipt) => Ok(moved(&receipt, as_json)),
            Pushed::ConsentRequired(request) => Ok(consent_required(&request, as_json)),
        }
    })
}

/// Moves it, and gives up without leaving anything behind when the person says so.
async fn until_interrupted(
    source: &Source,
    space: &Client,
    push: &Push,
    as_json: bool,
    now: SystemTime,
) -> Result<Pushed> {
    let progress = Arc::new(Progress::new(as_json));
    let shown = Arc::clone(&progress);
    let watch: spaceport_teleport::push::Watch = Arc::new(move |step| match step {
        Step::Capturing => shown.show("Copying", None),
        Step::Sealing { done, total } => shown.show("Sealing", Some((done, total))),
        Step::Sending { done, total } => shown.show("Sending", Some((done, total))),
        Step::Importing => shown.show("Importing", None),
    });
    let interrupted = crate::serve::stop_signal()?;
    tokio::select! {
        pushed = source.push(space, push, &watch, now) => {
            progress.end();
            pushed
        }
        () = interrupted => {
            progress.end();
            source.abandon(space, push, now).await?;
            Err(Error::new(Kind::Cancelled, "the teleport was given up, and nothing is left of it"))
        }
    }
}

/// What programs are told of a move that is done.
pub(crate) fn moved_data(receipt: &Receipt) -> Value {
    json!({
        "moved": true,
        "transferred_paths": receipt.imported,
        "import_ids": [receipt.import_id],
        "expires_ms": receipt.expires_at_ms,
        "receipt": receipt,
    })
}

/// What programs are told where a person has to agree first.
pub(crate) fn consent_data(request: &Request) -> Value {
    let terms = &request.terms;
    let would_send: Vec<_> = terms.items.iter().map(|item| &item.relative_path).collect();
    json!({
        "consent_required": true,
        "request_id": request.id,
        "would_send": would_send,
        "estimated_bytes": terms.estimated_bytes(),
        "destination": terms.destination.url,
        "approve": approve_line(request),
    })
}

fn approve_line(request: &Request) -> String {
    format!("spaceport teleport approve {}", request.id)
}

fn moved(receipt: &Receipt, as_json: bool) -> ExitCode {
    if as_json {
        render::json(&moved_data(receipt));
    } else {
        render::line_out(&words::receipt(receipt));
    }
    ExitCode::SUCCESS
}

fn consent_required(request: &Request, as_json: bool) -> ExitCode {
    if as_json {
        render::json(&consent_data(request));
    } else {
        let approve = approve_line(request);
        render::line_out(&format!(
            "A person has to agree first. In a terminal on this machine, run\n\n    {approve}\n\n\
             and then this command again."
        ));
    }
    ExitCode::from(Kind::ConfirmationRequired.spec().exit)
}

fn decide_yes(approve: &Approve, json: bool) -> Result<ExitCode> {
    let folder = folder(&approve.kept);
    if !approve.page {
        return answer(&folder, &approve.id, None, json);
    }
    let mut terminal = terminal()?;
    let link = Link::new(&terminal, &Desk::at(&folder), &approve.id, now())?;
    let page = page(&folder)?;
    terminal.show(&format!(
        "Open this on this machine within 10 minutes; it works once.\n\n    {page}#link={}\n\n",
        link.secret.expose()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The consent page of the gateway that runs on the same state directory.
fn page(folder: &Path) -> Result<String> {
    let missing = || {
        Error::new(Kind::PreconditionFailed, "the page is served by `spaceport serve`")
            .hint("Start it on this state directory, or leave `--page` out and answer here")
    };
    let path = folder.with_file_name("endpoints.json");
    let text = std::fs::read(path).map_err(|error| missing().source(error))?;
    let endpoints: Value =
        serde_json::from_slice(&text).map_err(|error| missing().source(error))?;
    let address = endpoints["http"].as_str().and_then(|it| it.parse().ok()).ok_or_else(missing)?;
    let mut address: std::net::SocketAddr = address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    Ok(format!("http://{address}/viewer/consent.html"))
}

/// Answers a request at the terminal: with what the person says, or with the no they came to say.
fn answer(folder: &Path, id: &str, answer: Option<bool>, json: bool) -> Result<ExitCode> {
    let desk = Desk::at(folder);
    let request = desk.request(id, now())?;
    if request.standing != Standing::Pending {
        // Says what it is, in the words that everyone gets.
        render::line_out(&words::request_line(&request, now()));
    }
    let decided = ask(terminal()?, &desk, &request, answer)?;
    if json {
        render::json(&decided);
    } else if decided.standing == Standing::Approved {
        render::line_out("Agreed. It moves when it is asked for again within 5 minutes.");
    } else {
        render::line_out("Refused. Nothing moves.");
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(
    mut terminal: Terminal,
    desk: &Desk,
    request: &Request,
    answer: Option<bool>,
) -> Result<Request> {
    let question = words::terms(&request.terms);
    let (yes, person): (bool, Person) = match answer {
        None => terminal.confirm(&format!("{question}\nType `yes` to let this move: "))?,
        Some(_) => {
            let question = format!("{question}\nType `yes` to refuse it: ");
            let (refuse, person) = terminal.confirm(&question)?;
            if !refuse {
                return Err(Error::new(Kind::Cancelled, "the request was left as it is"));
            }
            (false, person)
        }
    };
    desk.decide(&request.id, yes, &person, now())
}

fn wipe(wanted: &Wipe, as_json: bool) -> Result<ExitCode> {
    let (ids, paths, rows, kept) = match &wanted.at {
        Some(url) => {
            let (address, token) = named(url, &wanted.opened)?;
            let wiped = runtime()?.block_on(async {
                let space = Client::new(&address, Some(&token))?;
                wipe_at(&space, wanted.id.as_deref()).await
            })?;
            (wiped.import_ids, wiped.removed_paths, wiped.rows, Vec::new())
        }
        None => {
            let name = "this machine";
            let inbox = Inbox::open(&folder(&wanted.kept), name, machine()?, providers(), now())?;
            let Wiped { import_ids, undone } = match &wanted.id {
                Some(id) => inbox.wipe(id, true, now())?,
                None => inbox.wipe_all(true, now())?,
            };
            let paths = undone.removed_paths.iter().map(|path| path.display().to_string());
            let kept = undone.kept.iter().map(|(path, why)| format!("{}: {why}", path.display()));
            (import_ids, paths.collect(), undone.rows, kept.collect())
        }
    };
    if as_json {
        render::json(&json!({
            "wiped_import_ids": ids, "removed_paths": paths, "rows": rows, "kept": kept,
        }));
    } else {
        render::line_out(&words::wiped(&ids, &paths, rows, &kept));
    }
    Ok(ExitCode::SUCCESS)
}

fn ledger(folder: &Path, as_json: bool) -> Result<ExitCode> {
    let mut entries = Vec::new();
    let verified = Ledger::at(folder).verify(|entry| entries.push(entry))?;
    if as_json {
        render::json(&json!({ "verified": verified, "entries": entries }));
    } else {
        entries.iter().for_each(|entry| render::line_out(&words::entry(entry)));
        render::line_out(&format!(
            "\n{} lines, each following the one before. Head: {}",
            verified.entries, verified.head
        ));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn source(kept: &Kept) -> Result<Source> {
    Ok(Source::new(&folder(kept), machine()?, providers()))
}

fn machine() -> Result<Machine> {
    Machine::from_environment(std::env::vars_os()).ok_or_else(|| {
        Error::new(Kind::HostCapabilityMissing, "there is no home directory")
            .hint("Set HOME to the folder of the person whose apps these are")
    })
}

fn folder(kept: &Kept) -> PathBuf {
    kept.state_dir.clone().unwrap_or_else(|| Environment::read().state_dir).join("teleport")
}

/// A Space, and its token: the one that is kept, from a file or the environment, or from a person;
/// never from an argument, which everyone on the machine could read.
fn named(space: &str, opened: &Opened) -> Result<(Address, Redacted<String>)> {
    let Entry { address, token, .. } = opened.spaces()?.resolve(space)?;
    if let Some(token) = token {
        return Ok((address, token));
    }
    let terminal = terminal().map_err(|error| {
        Error::new(Kind::Unauthenticated, format!("there is no token for {address}"))
            .hint("Set `SPACEPORT_TOKEN`, or give `--token-file`")
            .source(error)
    });
    let token = terminal?.secret(&format!("Token of {address}: "))?;
    Ok((address, token))
}

/// The person at the terminal, unless this was started by an agent: it would ask them in its name.
fn terminal() -> Result<Terminal> {
    if usage::asked_for("--agent") {
        return Err(Error::new(Kind::PromptBlocked, "a person has to answer this")
            .hint("Leave it to them: the same command without `--agent`, in their terminal"));
    }
    Terminal::open()
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

fn millis(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |passed| passed.as_millis() as u64)
}

#[expect(clippy::disallowed_methods, reason = "consent and receipts have a time of day")]
fn now() -> SystemTime {
    SystemTime::now()
}
