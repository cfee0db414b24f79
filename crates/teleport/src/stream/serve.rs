//! The Space's half of the two calls.

use std::time::Instant;

use spaceport_types::{Cause, Error, Kind, Result};
use spaceport_wire::pb::files::{self as pb, frame::Frame};

use super::give::{Giving, entries, give, standing};
use super::take::{Declaring, begin, begun, conflict_of, done};
use super::talk::{Said, Talk};
use super::walk::{Listing, Source};
use crate::files::{EntryKind, Files};
use crate::receive::{Begin, DEFAULT_TTL, Receiver, kept_mode};

/// Takes what a client sends.
///
/// # Errors
///
/// What the client is to be told of, and `spacesd_not_available` when it is gone.
pub fn receive(
    receiver: &Receiver,
    files: &Files,
    talk: &mut Talk,
    now: impl Fn() -> Instant,
) -> Result<()> {
    let Frame::Begin(request) = talk.hear_frame()? else {
        return Err(out_of_order("the first message is not `begin`"));
    };
    let mut declared = Declaring::default();
    loop {
        match talk.hear_frame()? {
            Frame::Entries(some) => {
                if declared.add(some)? {
                    break;
                }
            }
            Frame::Abort(_) => return Err(given_up()),
            _ => return Err(out_of_order("`begin` is followed by something else than `entries`")),
        }
    }
    let wanted = Begin {
        conflict: conflict_of(request.conflict)?,
        id: request.transfer_id,
        destination: request.destination,
        // So that it outlives a restart: the same sender goes on with it.
        ttl: Some(DEFAULT_TTL),
        ..Begin::default()
    };
    let wanted = match request.path {
        Some(path) => at(files, &path, wanted, &mut declared)?,
        None => wanted,
    };
    let taker = begin(receiver, wanted, &declared, now())?;
    drop(declared);
    talk.say(Frame::Begun(begun(&taker.standing())), false)?;
    loop {
        match talk.hear()? {
            Said::Records(records) => taker.pack(&records, now())?,
            Said::Frame(Frame::End(end)) => {
                let committed = taker.commit(&end)?;
                return talk.say(Frame::Done(done(&committed)), true);
            }
            Said::Frame(Frame::Abort(_)) => {
                taker.abort();
                return Err(given_up());
            }
            Said::Frame(_) => {
                return Err(out_of_order("`entries` are followed by something else than packs"));
            }
        }
    }
}

/// Has a transfer go to where a path leads, which its entries begin with.
fn at(files: &Files, path: &str, wanted: Begin, declared: &mut Declaring) -> Result<Begin> {
    let to = files.resolve_entry(path)?;
    let is_it = |entry: &pb::Entry| split_first(&entry.path) == to.name();
    if !wanted.destination.is_empty() || !declared.entries().iter().all(is_it) {
        return Err(Error::new(Kind::InvalidArgument, "what is sent is not what the path names")
            .with("path", path));
    }
    let there = files.stat(&Some(to.clone()), false).ok();
    let mode = there.filter(|it| it.kind == EntryKind::File).map(|it| kept_mode(it.mode));
    if let Some(mode) = mode {
        declared.default_mode(mode);
    }
    let folder = to.parent().map(|parent| parent.as_bytes().to_vec()).unwrap_or_default();
    let destination = String::from_utf8(folder).map_err(|_| {
        Error::because(Cause::NameUnusable, "the folder has a name that is not UTF-8")
            .with("path", path)
            .hint("Choose another folder")
    })?;
    Ok(Begin { destination, root: Some(files.root().to_owned()), ..wanted })
}

/// The first name of a path.
fn split_first(path: &[u8]) -> &[u8] {
    path.split(|&byte| byte == b'/').next().unwrap_or_default()
}

/// Gives what a client fetches.
///
/// # Errors
///
/// As [`receive`].
pub fn offer(files: &Files, talk: &mut Talk) -> Result<()> {
    let Frame::Fetch(request) = talk.hear_frame()? else {
        return Err(out_of_order("the first message is not `fetch`"));
    };
    let sources = request.paths.iter().map(|path| Source::of(files, path));
    let listing = Listing::walk(sources.collect::<Result<_>>()?, request.everything)?;
    for some in entries(&listing) {
        talk.say(Frame::Entries(some), false)?;
    }
    let Frame::Begun(begun) = talk.hear_frame()? else {
        return Err(out_of_order("`entries` are followed by something else than `begun`"));
    };
    let standing = standing(&begun)?;
    let mut sink = |packer: &mut _| talk.give(packer);
    let digest = give(
        &listing,
        &standing,
        Giving { sink: &mut sink, told: &mut |_| {}, file: &mut |_, _| {} },
    )?;
    talk.say(Frame::End(pb::End { sha256: digest.0.to_vec().into() }), true)
}

fn given_up() -> Error {
    Error::new(Kind::Cancelled, "the transfer was given up, and nothing is left of it")
}

fn out_of_order(message: &'static str) -> Error {
    Error::new(Kind::InvalidArgument, message)
        .hint("`proto/spaceport/files/v1/files.proto` has the order")
}
