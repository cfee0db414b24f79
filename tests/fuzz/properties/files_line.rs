//! What comes over a line is cut the same however it is split on its way, and never into more than came;
//! what an unsealed message says is bounded before it is acted upon.

#![expect(clippy::disallowed_methods, reason = "nothing here waits for a time")]

use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use prost::Message as _;
use spaceport_teleport::receive::{Begin, Config, Receiver};
use spaceport_teleport::stream::{Came, Cutter, Declaring, begin};
use spaceport_wire::pb::files::{Frame, frame};

pub(crate) fn check(data: &[u8]) {
    let (&split, rest) = data.split_first().unwrap_or((&0, &[]));
    let whole = cut(rest, rest.len().max(1));
    assert_eq!(cut(rest, usize::from(split) + 1), whole, "another cut");

    // As the message of a sender who has the key.
    let Ok(Frame { frame: Some(frame) }) = Frame::decode(rest) else { return };
    let frame::Frame::Entries(mut entries) = frame else { return };
    entries.last = true;
    let mut declared = Declaring::default();
    if !declared.add(entries).unwrap_or(false) {
        return;
    }
    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .unwrap();
    let config = Config::new(folder.path().join("downloads"), folder.path().join("state"));
    let receiver = Receiver::open(config, Instant::now(), SystemTime::now()).unwrap();
    if let Ok(taker) = begin(&receiver, Begin::default(), &declared, Instant::now()) {
        // The same bytes as records.
        drop(taker.pack(rest, Instant::now()));
        taker.abort();
    }
    let left: Vec<_> =
        fs::read_dir(folder.path().join("downloads")).into_iter().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What it is cut into when it comes in pieces of `step` bytes.
fn cut(bytes: &[u8], step: usize) -> Vec<String> {
    let mut cutter = Cutter::new(3);
    let mut found = Vec::new();
    for piece in bytes.chunks(step) {
        cutter.add(Bytes::copy_from_slice(piece));
        loop {
            match cutter.cut() {
                Ok(Some(Came::Start(start))) => found.push(format!("{start:?}")),
                Ok(Some(Came::Chunk(sealed))) => found.push(format!("{}", sealed.length())),
                Ok(None) => break,
                Err(error) => {
                    found.push(error.to_string());
                    return found;
                }
            }
        }
    }
    found
}
