//! What a hostile or confused other side can say.

use std::fs;
use std::time::{Instant, SystemTime};

use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Kind, Result};
use spaceport_wire::pb::files as pb;

use super::pack::{Packer, Record};
use super::*;
use crate::Digest;
use crate::receive::{Begin, Config, Receiver, Total};
use crate::scratch::Scratch;

fn open(scratch: &Scratch) -> Receiver {
    let config = Config::new(scratch.path().join("in"), scratch.path().join("state"));
    #[expect(clippy::disallowed_methods, reason = "a test")]
    Receiver::open(config, now(), SystemTime::now()).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test")]
fn now() -> Instant {
    Instant::now()
}

fn declared(entries: &[(&[u8], u64)]) -> Declaring {
    let entries = entries.iter().map(|&(path, size)| pb::Entry {
        path: path.to_vec().into(),
        size,
        mode: 0o644,
        ..pb::Entry::default()
    });
    let mut declaring = Declaring::default();
    assert!(declaring.add(pb::Entries { entries: entries.collect(), last: true }).unwrap());
    declaring
}

fn begin_with(receiver: &Receiver, entries: &[(&[u8], u64)]) -> Result<Taker> {
    begin(receiver, Begin { id: "t".to_owned(), ..Begin::default() }, &declared(entries), now())
}

fn say(taker: &Taker, records: &[Record<'_>]) -> Result<()> {
    let mut packer = Packer::default();
    records.iter().for_each(|&record| packer.push(record));
    taker.pack(&packer.take(false), now())
}

fn hash(data: &[u8]) -> Digest {
    Digest(Sha256::digest(data).into())
}

#[test]
fn names_that_lead_out_or_cannot_be_are_refused_before_the_first_byte() {
    let scratch = Scratch::new();
    let receiver = open(&scratch);
    for (path, cause) in [
        (&b"../x"[..], Cause::PathEscape),
        (b"/etc/passwd", Cause::PathEscape),
        (b"a/../../x", Cause::PathEscape),
        (b"a//b", Cause::NameUnusable),
        (b"a\0b", Cause::NameUnusable),
        (b"", Cause::NameUnusable),
        (&[b'n'; 256], Cause::NameUnusable),
    ] {
        let error = begin_with(&receiver, &[(b"fine", 1), (path, 1)]).unwrap_err();
        assert_eq!(error.cause(), Some(cause), "{error}");
        assert!(error.context("entry").is_some());
    }
    assert_eq!(receiver.transfers(), 0);
    assert_eq!(fs::read_dir(scratch.path().join("in")).unwrap().count(), 0);
}

#[test]
fn a_wrong_file_is_named_and_received_anew_and_the_rest_stays() {
    let scratch = Scratch::new();
    let receiver = open(&scratch);
    let taker = begin_with(&receiver, &[(b"a", 3), (b"b", 6)]).unwrap();
    say(&taker, &[Record::Whole { index: 0, data: b"abc", digest: hash(b"abc") }]).unwrap();
    let wrong = [
        Record::Part { index: 1, offset: 0, data: b"gar" },
        Record::Part { index: 1, offset: 3, data: b"ble" },
        Record::End { index: 1, digest: hash(b"right!") },
    ];
    let error = say(&taker, &wrong).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::DigestMismatch));
    assert_eq!(error.context("entry"), Some("b"));
    let taker = begin_with(&receiver, &[(b"a", 3), (b"b", 6)]).unwrap();
    let standing = taker.standing();
    assert_eq!((standing.whole, standing.parts), (vec![(0, hash(b"abc"))], vec![]));

    // All is there; the whole has to fit, too.
    say(&taker, &[Record::Whole { index: 1, data: b"right!", digest: hash(b"right!") }]).unwrap();
    let end = |digest: Digest| pb::End { sha256: digest.0.to_vec().into() };
    let error = taker.commit(&end(hash(b"another whole"))).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::DigestMismatch));
    assert!(!scratch.path().join("in/a").exists());
    let mut total = Total::default();
    total.add(b"a", Some(&hash(b"abc")));
    total.add(b"b", Some(&hash(b"right!")));
    taker.commit(&end(total.finish())).unwrap();
    assert_eq!(fs::read(scratch.path().join("in/b")).unwrap(), b"right!");
}

#[test]
fn records_that_fit_nothing_are_refused() {
    let scratch = Scratch::new();
    let receiver = open(&scratch);
    let taker = begin_with(&receiver, &[(b"a", 10)]).unwrap();
    for (record, kind) in [
        (Record::Part { index: 1, offset: 0, data: b"x" }, Kind::InvalidArgument),
        (Record::Part { index: 0, offset: 5, data: b"x" }, Kind::PreconditionFailed),
        (Record::Part { index: 0, offset: 0, data: b"eleven byte" }, Kind::TransferFailed),
        (Record::Hole { index: 0, offset: 0, length: u64::MAX }, Kind::TransferFailed),
        (Record::Hole { index: 0, offset: u64::MAX, length: 2 }, Kind::TransferFailed),
        (Record::End { index: 0, digest: hash(b"") }, Kind::TransferFailed),
        (Record::Whole { index: 0, data: b"short", digest: hash(b"short") }, Kind::TransferFailed),
    ] {
        assert_eq!(say(&taker, &[record]).unwrap_err().kind(), kind, "{record:?}");
    }
    let nothing = pb::End { sha256: vec![0; 32].into() };
    assert_eq!(taker.commit(&nothing).unwrap_err().kind(), Kind::TransferFailed);
    taker.abort();
    assert_eq!(fs::read_dir(scratch.path().join("in")).unwrap().count(), 0);
}

#[test]
fn a_stream_that_begins_takes_over_from_one_that_hangs() {
    let scratch = Scratch::new();
    let receiver = open(&scratch);
    let first = begin_with(&receiver, &[(b"a", 6)]).unwrap();
    say(&first, &[Record::Part { index: 0, offset: 0, data: b"abc" }]).unwrap();
    let second = begin_with(&receiver, &[(b"a", 6)]).unwrap();
    assert_eq!(second.standing().parts, [(0, 3)]);
    let late = say(&first, &[Record::Part { index: 0, offset: 3, data: b"xyz" }]).unwrap_err();
    assert_eq!(late.cause(), Some(Cause::Interrupted));
    first.abort();
    say(&second, &[Record::Part { index: 0, offset: 3, data: b"def" }]).unwrap();
    say(&second, &[Record::End { index: 0, digest: hash(b"abcdef") }]).unwrap();
}

#[test]
fn what_the_other_side_says_it_has_was_declared() {
    let begun = |count: u32, digests: usize| pb::Begun {
        whole: vec![pb::Span { first: u32::MAX - 1, count }],
        digests: vec![0; 32 * digests].into(),
        ..pb::Begun::default()
    };
    assert_eq!(standing(&begun(1, 1)).unwrap().whole.len(), 1);
    for (count, digests) in [(2, 1), (u32::MAX, 0), (3, 3)] {
        let error = standing(&begun(count, digests)).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::CorruptBundle));
    }
}
