//! What a hostile or confused other side can say.

use std::fs;
use std::time::{Instant, SystemTime};

use futures_util::{StreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Kind, Result};
use spaceport_wire::pb::files::{self as pb, frame::Frame};
use tokio::sync::mpsc;

use super::give::standing;
use super::pack::{Packer, Record};
use super::*;
use crate::Digest;
use crate::files::Files;
use crate::receive::{Begin, Config, Receiver, Total};
use crate::scratch::Scratch;
use crate::seal::Identity;
use crate::seal::line::{Call, take};

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
        mode: Some(0o644),
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
    taker.pack(&packer.packed(false).0, now())
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

/// Both ends of a line on one machine, and what the other end is served with.
fn line(
    scratch: &Scratch,
    identity: &Identity,
    verb: Verb,
) -> (Talk, std::thread::JoinHandle<Result<()>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let runtime: &'static tokio::runtime::Runtime = Box::leak(Box::new(runtime));
    let (call, first) = Call::new(identity.public(), verb.purpose()).unwrap();
    let taken = take(identity, verb.purpose(), call.header()).unwrap();
    let answer = taken.answer.to_vec();
    let pipe = |start: Option<Vec<u8>>, length: usize| {
        let (out, mut wire) = mpsc::channel::<bytes::Bytes>(QUEUE);
        let (to, input) = mpsc::channel(QUEUE);
        let pieces = stream::iter(start.map(|it| Ok(it.into())))
            .chain(stream::poll_fn(move |cx| wire.poll_recv(cx).map(|piece| piece.map(Ok))));
        runtime.spawn(listen(Cutter::new(length), pieces, to));
        (out, input)
    };
    let (up, here) = pipe(None, crate::seal::line::HEADER_LEN);
    let (down, there) = pipe(Some(answer), crate::seal::line::ANSWER_LEN);
    let handle = runtime.handle().clone();
    let queues = Queues { out: up, input: there };
    let client = Talk::calling(handle.clone(), queues, Cancel::default(), call, first).unwrap();
    let (receiver, files) = (open(scratch), Files::new(scratch.path().to_owned(), scratch.path()));
    let server = std::thread::spawn(move || {
        let mut queues = Queues { out: down, input: here };
        // The header, which the gateway has taken out.
        assert!(matches!(queues.input.blocking_recv(), Some(Ok(Came::Start(_)))));
        let mut talk = Talk::taken(handle, queues, taken);
        match verb {
            Verb::Send => receive(&receiver, &files, &mut talk, now),
            Verb::Fetch => offer(&files, &mut talk),
        }
    });
    (client, server)
}

/// Paths that a sender may choose, and what becomes of them: nothing for those that land as they are.
const CHOSEN: [(&[u8], Option<Cause>); 26] = [
    (b"../../.ssh/authorized_keys", Some(Cause::PathEscape)),
    (b"a/../../x", Some(Cause::PathEscape)),
    (b"./../x", Some(Cause::PathEscape)),
    (b"..", Some(Cause::PathEscape)),
    (b"/etc/passwd", Some(Cause::PathEscape)),
    (b"//x", Some(Cause::PathEscape)),
    (b"link/x", Some(Cause::Conflict)),
    (b"link", Some(Cause::Conflict)),
    (b"pipe", Some(Cause::Conflict)),
    (b"a\0b", Some(Cause::NameUnusable)),
    (b"a//b", Some(Cause::NameUnusable)),
    (b"a/./b", Some(Cause::NameUnusable)),
    (b"a/", Some(Cause::NameUnusable)),
    (b"", Some(Cause::NameUnusable)),
    (&[b'n'; 256], Some(Cause::NameUnusable)),
    (b"C:\\x", None),
    (b"\\\\host\\share\\x", None),
    (b"CON", None),
    (b"x.", None),
    (b"x ", None),
    (b"a:b", None),
    (b"\x1b[2J\r\n\x07", None),
    (b"\xff\xfe", None),
    ("\u{202e}gpj.exe".as_bytes(), None),
    ("cafe\u{301}/caf\u{e9}".as_bytes(), None),
    (&[b'n'; 255], None),
];

/// Sends one file with an honest digest over a line; what the Space's half says.
fn sent_over(scratch: &Scratch, begin: pb::Begin, path: &[u8]) -> Result<()> {
    let (mut client, server) = line(scratch, &Identity::generate(), Verb::Send);
    let entry = pb::Entry { path: path.to_vec().into(), size: 1, ..pb::Entry::default() };
    client.say(Frame::Begin(begin), false).unwrap();
    let entries = pb::Entries { entries: vec![entry], last: true };
    client.say(Frame::Entries(entries), true).unwrap();
    if let Ok(Frame::Begun(_)) = client.hear_frame() {
        let mut packer = Packer::default();
        packer.push(Record::Whole { index: 0, data: b"x", digest: hash(b"x") });
        client.give(&mut packer).unwrap();
        let mut total = Total::default();
        total.add(path, Some(&hash(b"x")));
        let end = pb::End { sha256: total.finish().0.to_vec().into() };
        client.say(Frame::End(end), true).unwrap();
    }
    drop(client);
    server.join().unwrap()
}

#[test]
fn a_path_lands_exactly_or_is_refused_by_name_over_the_line() {
    use std::os::unix::ffi::OsStrExt as _;
    for (path, cause) in CHOSEN {
        let scratch = Scratch::new();
        let outside = Scratch::new();
        let downloads = scratch.path().join("in");
        fs::create_dir_all(&downloads).unwrap();
        std::os::unix::fs::symlink(outside.path(), downloads.join("link")).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, downloads.join("pipe"), fifo, mode, 0).unwrap();
        let begin = pb::Begin {
            transfer_id: "t".to_owned(),
            conflict: pb::Conflict::Overwrite.into(),
            ..pb::Begin::default()
        };
        let done = sent_over(&scratch, begin, path);
        let found = fs::read_dir(&downloads).unwrap().count() - 2;
        match (done, cause) {
            (Ok(()), None) => {
                let landed = downloads.join(std::ffi::OsStr::from_bytes(path));
                assert_eq!(fs::read(landed).unwrap(), b"x");
                assert_eq!(found, 1, "nothing else");
            }
            (Err(error), Some(cause)) => {
                assert_eq!(error.cause(), Some(cause), "{error}");
                assert!(error.context("entry").is_some(), "{error}");
                assert!(!error.to_string().contains(char::is_control), "{error}");
                assert_eq!(found, 0, "{error}");
            }
            (done, cause) => panic!("{path:?}: {done:?} where {cause:?} was expected"),
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{path:?}");
    }
}

#[test]
fn a_path_in_the_space_is_where_it_goes_and_nowhere_else() {
    let outside = Scratch::new();
    let run = |to: &str, entry: &[u8]| {
        let scratch = Scratch::new();
        fs::create_dir_all(scratch.path().join("real")).unwrap();
        std::os::unix::fs::symlink(outside.path(), scratch.path().join("link")).unwrap();
        let begin = pb::Begin {
            transfer_id: "t".to_owned(),
            conflict: pb::Conflict::Overwrite.into(),
            path: Some(to.to_owned()),
            ..pb::Begin::default()
        };
        let done = sent_over(&scratch, begin, entry);
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{to}");
        let landed = ["real", "link", "in", "state"];
        let new = fs::read_dir(scratch.path()).unwrap().map(|it| it.unwrap().file_name());
        let new: Vec<_> = new.filter(|it| !landed.contains(&&*it.to_string_lossy())).collect();
        (done, new, scratch)
    };
    for (to, entry) in [("~/new/deep/x", "x"), ("real/x", "x"), ("./x", "x"), ("a\\b ", "a\\b ")] {
        let (done, _, scratch) = run(to, entry.as_bytes());
        done.unwrap();
        let landed = scratch.path().join(to.trim_start_matches("~/"));
        assert_eq!(fs::read(landed).unwrap(), b"x", "{to}");
    }
    for (to, entry) in [
        ("/etc/x", "x"),
        ("../x", "x"),
        ("real/../../x", "x"),
        ("~", "~"),
        ("", ""),
        ("/", ""),
        ("link/x", "x"),
        ("link", "link"),
        ("real", "real"),
        ("x", "y"),
        ("x", "x/../y"),
        ("x", "../x"),
        ("x/..", ".."),
        ("real/x\0", "x\0"),
    ] {
        let (done, new, scratch) = run(to, entry.as_bytes());
        let error = done.unwrap_err();
        assert!(!error.to_string().contains(char::is_control), "{error}");
        assert!(new.is_empty(), "{to}: {error}: {new:?}");
        assert_eq!(fs::read_dir(scratch.path().join("real")).unwrap().count(), 0, "{to}: {error}");
    }
}

#[test]
fn what_is_said_out_of_order_is_refused() {
    let abort = || Frame::Abort(pb::Abort {});
    let begin = || Frame::Begin(pb::Begin { transfer_id: "t".to_owned(), ..pb::Begin::default() });
    let entries = |last| {
        let entry = pb::Entry { path: "a".into(), size: 1, ..pb::Entry::default() };
        Frame::Entries(pb::Entries { entries: vec![entry], last })
    };
    for (verb, said) in [
        (Verb::Send, vec![entries(true)]),
        (Verb::Send, vec![begin(), begin()]),
        (Verb::Send, vec![begin(), entries(true), entries(true)]),
        (Verb::Fetch, vec![begin()]),
        (Verb::Fetch, vec![abort()]),
    ] {
        let (scratch, identity) = (Scratch::new(), Identity::generate());
        let (mut client, server) = line(&scratch, &identity, verb);
        for frame in said {
            let last = matches!(&frame, Frame::Entries(entries) if entries.last);
            client.say(frame, last).unwrap();
        }
        assert_eq!(server.join().unwrap().unwrap_err().kind(), Kind::InvalidArgument);
    }
}

#[test]
fn messages_of_any_length_cross_the_line() {
    let (scratch, identity) = (Scratch::new(), Identity::generate());
    fs::create_dir_all(scratch.path().join("in/many")).unwrap();
    for number in 0..5_000_u32 {
        let name = format!("in/many/{}{number}", "n".repeat(200));
        fs::write(scratch.path().join(name), number.to_le_bytes()).unwrap();
    }
    let (mut client, server) = line(&scratch, &identity, Verb::Fetch);
    let fetch = pb::Fetch { paths: vec!["in/many".to_owned()], everything: true };
    client.say(Frame::Fetch(fetch), true).unwrap();
    let mut declared = Declaring::default();
    while let Frame::Entries(some) = client.hear_frame().unwrap() {
        if declared.add(some).unwrap() {
            break;
        }
    }
    assert_eq!(declared.entries().len(), 5_001);
    // All of it is there already: a message of more than a chunk's length.
    let whole = vec![pb::Span { first: 1, count: 5_000 }];
    let digests = vec![7; 5_000 * 32].into();
    let parts = (0..100_000).map(|index| pb::Part { index: index + 10_000, received: 1 << 40 });
    let begun = pb::Begun { whole, digests, parts: parts.collect() };
    client.say(Frame::Begun(begun), false).unwrap();
    assert!(matches!(client.hear_frame().unwrap(), Frame::End(_)));
    server.join().unwrap().unwrap();
}

#[test]
fn what_comes_in_pieces_is_cut_where_it_was_sealed() {
    let identity = Identity::generate();
    let (call, mut first) = Call::new(identity.public(), "x").unwrap();
    let mut taken = take(&identity, "x", call.header()).unwrap();
    let mut wire = call.header().to_vec();
    for text in [&b"one"[..], &[9; 2_000], b""] {
        let mut chunk = [&[0; 5][..], text].concat();
        let tag = first.seal(&mut chunk, false).unwrap();
        wire.extend(((chunk.len() + tag.len()) as u32).to_be_bytes());
        wire.extend(chunk);
        wire.extend(tag);
    }
    for step in [1, 7, 81, 100, wire.len()] {
        let mut cutter = Cutter::new(call.header().len());
        let (mut starts, mut chunks) = (0, 0);
        for piece in wire.chunks(step) {
            cutter.add(bytes::Bytes::copy_from_slice(piece));
            while let Some(came) = cutter.cut().unwrap() {
                match came {
                    Came::Start(start) => {
                        assert_eq!(start, call.header());
                        starts += 1;
                    }
                    Came::Chunk(_) => chunks += 1,
                }
            }
        }
        assert_eq!((starts, chunks), (1, 3), "{step}");
    }
    drop(taken.first.open(&mut [0; 40], false).unwrap_err());
    for length in [0_u32, 20, 2 << 20, u32::MAX] {
        let mut cutter = Cutter::new(0);
        cutter.add(length.to_be_bytes().to_vec().into());
        assert_eq!(cutter.cut().unwrap_err().cause(), Some(Cause::CorruptBundle), "{length}");
    }
}
