use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use super::*;
use crate::scratch::Scratch;

/// A receiver with a folder to receive into.
struct Desk {
    scratch: Scratch,
    receiver: Option<Receiver>,
    now: Instant,
}

/// An entry to send: its path, and the bytes of a file.
type Sent<'a> = (&'a [u8], Option<&'a [u8]>);

impl Desk {
    fn new() -> Self {
        let scratch = Scratch::new();
        fs::create_dir(scratch.path().join("in")).unwrap();
        let mut desk = Self { scratch, receiver: None, now: start() };
        desk.open();
        desk
    }

    /// Opens the receiver as another run would.
    fn open(&mut self) {
        self.receiver = None;
        let config = Config::new(self.downloads(), self.scratch.path().join("state"));
        self.receiver = Some(Receiver::open(config, self.now, wall()).unwrap());
    }

    /// Ends the receiver as a crash would: nothing is cleaned up.
    fn crash(&mut self) {
        let receiver = self.receiver.take().unwrap();
        for slot in receiver.shared.transfers().values() {
            if let Slot::Open(transfer) = slot {
                transfer.stage.leave();
            }
        }
    }

    fn downloads(&self) -> PathBuf {
        self.scratch.path().join("in")
    }

    fn receiver(&self) -> &Receiver {
        self.receiver.as_ref().unwrap()
    }

    fn begin(&self, begin: Begin, entries: &[Sent<'_>]) -> Result<Begun> {
        let digests: Vec<String> =
            entries.iter().map(|(_, data)| sha256(data.unwrap_or_default())).collect();
        let declared = entries.iter().zip(&digests).map(|((path, data), sha256)| Declared {
            path,
            directory: data.is_none(),
            size: data.map_or(0, |data| data.len() as u64),
            sha256,
            mode: None,
            modified: None,
        });
        self.receiver().begin(begin, declared, self.now)
    }

    fn chunk(&self, id: &str, index: u32, offset: u64, data: &[u8]) -> Result<Received> {
        self.receiver().chunk(id, index, offset, data, self.now)
    }

    /// All of it, in chunks of 5 bytes.
    fn send(&self, begin: Begin, entries: &[Sent<'_>]) -> Result<Committed> {
        let begun = self.begin(begin, entries)?;
        let mut index = 0;
        for (number, (_, data)) in (0..).zip(entries) {
            if begun.ignored.contains(&number) {
                continue;
            }
            for (at, piece) in data.unwrap_or_default().chunks(5).enumerate() {
                self.chunk(&begun.id, index, at as u64 * 5, piece)?;
            }
            index += 1;
        }
        self.receiver().commit(&begun.id)
    }

    /// Every path below the downloads folder with what it holds, staging folders included.
    fn tree(&self) -> BTreeMap<String, String> {
        tree(&self.downloads())
    }
}

fn tree(folder: &Path) -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = raw(std::os::unix::ffi::OsStrExt::as_bytes(&*entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            tree.insert(format!("{name}/"), String::new());
            let inner = tests::tree(&entry.path());
            tree.extend(inner.into_iter().map(|(path, data)| (format!("{name}/{path}"), data)));
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap();
            tree.insert(name, format!("-> {}", target.display()));
        } else if kind.is_file() {
            tree.insert(name, String::from_utf8_lossy(&fs::read(entry.path()).unwrap()).into());
        } else {
            tree.insert(name, "special".to_owned());
        }
    }
    tree
}

fn list(tree: &BTreeMap<String, String>) -> Vec<(&str, &str)> {
    tree.iter().map(|(path, data)| (&path[..], &data[..])).collect()
}

#[expect(clippy::disallowed_methods, reason = "any instant will do, and there is no other source")]
fn start() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "compared with the file system's own clock")]
fn wall() -> SystemTime {
    SystemTime::now()
}

fn sha256(data: &[u8]) -> String {
    hex::encode(&Sha256::digest(data))
}

fn named(id: &str) -> Begin {
    Begin { id: id.to_owned(), ..Begin::default() }
}

fn with(conflict: Conflict) -> Begin {
    Begin { conflict, ..Begin::default() }
}

#[test]
fn a_tree_arrives_with_empty_files_and_folders() {
    let desk = Desk::new();
    let done = desk
        .send(
            Begin { destination: "sub/dir/".to_owned(), ..Begin::default() },
            &[
                (b"top", None),
                (b"top/hello.txt", Some(b"hello, world")),
                (b"top/empty", Some(b"")),
                (b"top/none", None),
                (b"top/none/inner", None),
                (b"implied/x", Some(b"x")),
            ],
        )
        .unwrap();
    assert_eq!(
        list(&desk.tree()),
        [
            ("sub/", ""),
            ("sub/dir/", ""),
            ("sub/dir/implied/", ""),
            ("sub/dir/implied/x", "x"),
            ("sub/dir/top/", ""),
            ("sub/dir/top/empty", ""),
            ("sub/dir/top/hello.txt", "hello, world"),
            ("sub/dir/top/none/", ""),
            ("sub/dir/top/none/inner/", ""),
        ]
    );
    assert_eq!(done.destination, desk.downloads().join("sub/dir"));
    let paths: Vec<_> = done.files.iter().map(|file| file.path.clone()).collect();
    let at = |path: &str| done.destination.join(path);
    assert_eq!(paths, [at("top/hello.txt"), at("top/empty"), at("implied/x")]);
    assert_eq!(done.files[0].digest.to_string(), sha256(b"hello, world"));
    assert_eq!(desk.receiver().transfers(), 0);
    assert!(fs::read_dir(desk.scratch.path().join("state/receiving")).unwrap().next().is_none());
}

#[test]
fn odd_names_land_exactly() {
    let desk = Desk::new();
    let names: [&[u8]; 13] = [
        b"C:\\x",
        b"\\\\host\\share\\x",
        b"CON",
        b"nul.txt",
        b"x.",
        b"x ",
        b"a:b",
        b"\x1b[2J\x07",
        b"a\r\nb",
        b"\xff\xfe",
        "\u{202e}gpj.exe".as_bytes(),
        "caf\u{e9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
    ];
    let entries: Vec<Sent<'_>> = names.iter().map(|&name| (name, Some(name))).collect();
    desk.send(Begin::default(), &entries).unwrap();
    desk.send(Begin::default(), &[(b"A", Some(b"1")), (b"a", Some(b"2"))]).unwrap();
    for name in names {
        use std::os::unix::ffi::OsStrExt as _;
        let path = desk.downloads().join(std::ffi::OsStr::from_bytes(name));
        assert_eq!(fs::read(path).unwrap(), name);
    }
    assert_eq!(fs::read_dir(desk.downloads()).unwrap().count(), names.len() + 2);
}

#[test]
fn modes_and_times_are_kept_and_setuid_is_not() {
    let desk = Desk::new();
    let sha = sha256(b"x");
    let modes = [0o4755, 0o2755, 0o1777, 0o000, 0o600, 0o7777];
    let times =
        [(0, 0), (2_147_558_400, 1), (4_102_444_800, 5), (-86_400, 999_999_999), (1, 2), (7, 7)];
    let paths: Vec<String> = (0..6).flat_map(|n| [format!("d{n}"), format!("d{n}/f")]).collect();
    let entries = paths.iter().enumerate().map(|(number, path)| Declared {
        path: path.as_bytes(),
        directory: number % 2 == 0,
        size: 1,
        sha256: &sha,
        mode: Some(modes[number / 2]),
        modified: Some(times[number / 2]),
    });
    desk.receiver().begin(named("modes"), entries, desk.now).unwrap();
    for index in 0..6 {
        desk.chunk("modes", index * 2 + 1, 0, b"x").unwrap();
    }
    desk.receiver().commit("modes").unwrap();
    for (number, path) in paths.iter().enumerate() {
        let metadata = fs::symlink_metadata(desk.downloads().join(path)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, modes[number / 2] & 0o777, "{path}");
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), {
            let (seconds, nanos) = times[number / 2];
            (seconds, i64::from(nanos))
        });
    }
}

#[test]
fn what_leads_out_is_refused_and_leaves_nothing() {
    let desk = Desk::new();
    for (path, cause) in [
        (&b"../../.ssh/authorized_keys"[..], Cause::PathEscape),
        (b"a/../../x", Cause::PathEscape),
        (b"./../x", Cause::PathEscape),
        (b"..", Cause::PathEscape),
        (b"/etc/passwd", Cause::PathEscape),
        (b"//x", Cause::PathEscape),
        (b"a\0b", Cause::NameUnusable),
        (b"a//b", Cause::NameUnusable),
        (b"a/./b", Cause::NameUnusable),
        (&[b'n'; 256], Cause::NameUnusable),
    ] {
        let error = desk.send(named("t"), &[(b"good", Some(b"x")), (path, Some(b"x"))]);
        let error = error.unwrap_err();
        assert_eq!(error.cause(), Some(cause), "{error}");
        assert_eq!(error.report().issues[0].path, raw(path));
        assert!(desk.tree().is_empty(), "{:?}", desk.tree());
    }
    for destination in ["../x", "/etc", "a/../../b"] {
        let begin = Begin { destination: destination.to_owned(), ..Begin::default() };
        let error = desk.send(begin, &[(b"good", Some(b"x"))]).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::PathEscape), "{destination}");
    }
    assert!(desk.tree().is_empty());
    assert_eq!(desk.receiver().transfers(), 0);
}

#[test]
fn links_in_the_destination_are_neither_followed_nor_touched() {
    let desk = Desk::new();
    let outside = desk.scratch.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("victim"), "safe").unwrap();
    symlink(&outside, desk.downloads().join("dir")).unwrap();
    symlink(outside.join("victim"), desk.downloads().join("file")).unwrap();
    fs::create_dir(desk.downloads().join("real")).unwrap();
    symlink(&outside, desk.downloads().join("real/dir")).unwrap();
    let before = desk.tree();

    // As the destination.
    let begin = Begin { destination: "dir/sub".to_owned(), ..Begin::default() };
    let error = desk.send(begin, &[(b"x", Some(b"x"))]).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::PathEscape), "{error}");
    // Where a file, a folder, or a folder on the way should go.
    for entries in [
        &[(&b"file"[..], Some(&b"x"[..]))][..],
        &[(b"dir/x", Some(b"x"))],
        &[(b"real/dir/x", Some(b"x"))],
        &[(b"dir", None)],
    ] {
        let error = desk.send(with(Conflict::Overwrite), entries).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::Conflict), "{error}");
        assert_eq!(desk.tree(), before);
        let done = desk.send(with(Conflict::Skip), entries).unwrap();
        assert_eq!(done.skipped.len(), 1);
        assert_eq!(desk.tree(), before);
    }
    // Beside it there is room.
    let done = desk.send(Begin::default(), &[(b"dir/x", Some(b"x"))]).unwrap();
    assert_eq!(done.files[0].path, desk.downloads().join("dir (1)/x"));
    assert_eq!(tree(&outside).len(), 1);
    assert_eq!(fs::read(outside.join("victim")).unwrap(), b"safe");
}

#[test]
fn special_files_are_never_overwritten() {
    let desk = Desk::new();
    let _socket = UnixListener::bind(desk.downloads().join("socket")).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    let pipe = desk.downloads().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let before = desk.tree();
    for name in [&b"socket"[..], b"pipe"] {
        let error = desk.send(with(Conflict::Overwrite), &[(name, Some(b"x"))]).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::Conflict));
        assert_eq!(desk.tree(), before);
    }
}

#[test]
fn a_taken_name_gets_a_number() {
    let desk = Desk::new();
    for expected in ["notes.md", "notes (1).md", "notes (2).md"] {
        let done = desk.send(Begin::default(), &[(b"notes.md", Some(expected.as_bytes()))]);
        assert_eq!(done.unwrap().files[0].path, desk.downloads().join(expected));
        assert_eq!(fs::read_to_string(desk.downloads().join(expected)).unwrap(), expected);
    }
    for expected in ["dir/a.b", "dir (1)/a.b"] {
        let done = desk.send(Begin::default(), &[(b"dir", None), (b"dir/a.b", Some(b"x"))]);
        assert_eq!(done.unwrap().files[0].path, desk.downloads().join(expected));
    }
}

#[test]
fn overwriting_replaces_files_and_merges_folders() {
    let desk = Desk::new();
    let old: [Sent<'_>; 4] = [
        (b"d/a", Some(b"old a")),
        (b"d/keep", Some(b"kept")),
        (b"d/s/b", Some(b"old b")),
        (b"f", Some(b"old f")),
    ];
    desk.send(Begin::default(), &old).unwrap();
    let new: [Sent<'_>; 5] = [
        (b"d/a", Some(b"new a")),
        (b"d/s/b", Some(b"new b")),
        (b"d/s/c", Some(b"c")),
        (b"d/t/u", Some(b"u")),
        (b"f", Some(b"new f")),
    ];
    let done = desk.send(with(Conflict::Overwrite), &new).unwrap();
    assert_eq!((done.files.len(), done.skipped.len()), (5, 0));
    let expected = [
        ("d/", ""),
        ("d/a", "new a"),
        ("d/keep", "kept"),
        ("d/s/", ""),
        ("d/s/b", "new b"),
        ("d/s/c", "c"),
        ("d/t/", ""),
        ("d/t/u", "u"),
        ("f", "new f"),
    ];
    assert_eq!(list(&desk.tree()), expected);
    // A file in a folder's place and the other way round end all of it.
    let before = desk.tree();
    for entries in [
        &[(&b"a"[..], Some(&b"x"[..])), (b"d/t", Some(b"x")), (b"z", Some(b"x"))][..],
        &[(b"a", Some(b"x")), (b"d/a/x", Some(b"x"))],
    ] {
        let error = desk.send(with(Conflict::Overwrite), entries).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::Conflict), "{error}");
        assert_eq!(desk.tree(), before);
    }
}

#[test]
fn skipping_keeps_what_is_there_and_says_so() {
    let desk = Desk::new();
    desk.send(Begin::default(), &[(b"d/a", Some(b"old")), (b"f", Some(b"old"))]).unwrap();
    let done = desk
        .send(
            with(Conflict::Skip),
            &[
                (b"d/a", Some(b"new")),
                (b"d/b", Some(b"b")),
                (b"f/x", Some(b"x")),
                (b"f/y", Some(b"y")),
            ],
        )
        .unwrap();
    assert_eq!(done.skipped, [&b"d/a"[..], b"f/x", b"f/y"]);
    assert_eq!(done.files.len(), 1);
    assert_eq!(list(&desk.tree()), [("d/", ""), ("d/a", "old"), ("d/b", "b"), ("f", "old")]);
}

#[test]
fn offsets_follow_the_contract() {
    let desk = Desk::new();
    desk.begin(named("t"), &[(b"f", Some(b"0123456789")), (b"d", None)]).unwrap();
    let ok = |received, duplicate| Received { received, duplicate };
    assert_eq!(desk.chunk("t", 0, 0, b"01234").unwrap(), ok(5, false));
    assert_eq!(desk.chunk("t", 0, 0, b"01234").unwrap(), ok(5, true));
    assert_eq!(desk.chunk("t", 0, 2, b"23").unwrap(), ok(5, true));
    assert_eq!(desk.chunk("t", 0, 5, b"").unwrap(), ok(5, true));
    for (offset, data) in [(6, &b"6"[..]), (3, b"3456"), (9, b"9")] {
        let error = desk.chunk("t", 0, offset, data).unwrap_err();
        assert_eq!(error.kind(), Kind::PreconditionFailed);
        assert_eq!(error.context("expected_offset"), Some("5"));
    }
    for (offset, data) in [(5, &b"567890"[..]), (u64::MAX, b"x")] {
        let error = desk.chunk("t", 0, offset, data).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::SizeMismatch));
    }
    for index in [1, 2, u32::MAX] {
        assert_eq!(desk.chunk("t", index, 0, b"x").unwrap_err().kind(), Kind::InvalidArgument);
    }
    let large = vec![0; MAX_CHUNK + 1];
    assert_eq!(desk.chunk("t", 0, 5, &large).unwrap_err().kind(), Kind::LimitExceeded);
    let error = desk.receiver().commit("t").unwrap_err();
    assert_eq!(error.cause(), Some(Cause::SizeMismatch), "{error}");
    assert_eq!(desk.chunk("t", 0, 5, b"56789").unwrap(), ok(10, false));
    assert_eq!(desk.chunk("t", 0, 5, b"56789").unwrap(), ok(10, true));
    desk.receiver().commit("t").unwrap();
    for error in [
        desk.receiver().commit("t").unwrap_err(),
        desk.receiver().abort("t").unwrap_err(),
        desk.chunk("t", 0, 0, b"x").unwrap_err(),
    ] {
        assert_eq!(error.kind(), Kind::NotFound);
    }
}

#[test]
fn files_come_in_any_order_and_more_than_are_held_open() {
    let desk = Desk::new();
    let names: Vec<String> = (0..200).map(|n| format!("{n:03}")).collect();
    let entries: Vec<Sent<'_>> =
        names.iter().map(|name| (name.as_bytes(), Some(name.as_bytes()))).collect();
    desk.begin(named("t"), &entries).unwrap();
    for at in 0..3 {
        for index in (0..200_u32).rev() {
            let data = &names[index as usize].as_bytes()[at..=at];
            desk.chunk("t", index, at as u64, data).unwrap();
        }
    }
    assert_eq!(desk.receiver().commit("t").unwrap().files.len(), 200);
    assert!(desk.tree().iter().all(|(name, data)| name == data));
}

#[test]
fn one_wrong_byte_publishes_nothing() {
    let desk = Desk::new();
    desk.begin(named("t"), &[(b"a", Some(b"right")), (b"b", Some(b"right"))]).unwrap();
    desk.chunk("t", 0, 0, b"right").unwrap();
    desk.chunk("t", 1, 0, b"wrong").unwrap();
    let error = desk.receiver().commit("t").unwrap_err();
    assert_eq!(error.cause(), Some(Cause::DigestMismatch));
    assert_eq!(error.context("entry"), Some("b"));
    assert_eq!(error.context("expected_sha256"), Some(&*sha256(b"right")));
    assert_eq!(error.context("actual_sha256"), Some(&*sha256(b"wrong")));
    assert!(desk.tree().is_empty());
    assert_eq!(desk.receiver().transfers(), 0);
    // An empty file has a digest, too.
    let sha = sha256(b"x");
    let entry = Declared {
        path: b"e",
        directory: false,
        size: 0,
        sha256: &sha,
        mode: None,
        modified: None,
    };
    desk.receiver().begin(named("e"), [entry], desk.now).unwrap();
    let error = desk.receiver().commit("e").unwrap_err();
    assert_eq!(error.cause(), Some(Cause::DigestMismatch));
    assert!(desk.tree().is_empty());
}

#[test]
fn a_transfer_that_is_begun_again_goes_on() {
    let desk = Desk::new();
    let entries: [Sent<'_>; 2] = [(b"a", Some(b"0123456789")), (b"b", Some(b"x"))];
    desk.begin(named("t"), &entries).unwrap();
    desk.chunk("t", 0, 0, b"0123").unwrap();
    let begun = desk.begin(named("t"), &entries).unwrap();
    assert_eq!(begun.progress, [Progress { index: 0, received: 4 }]);
    let error = desk.begin(named("t"), &entries[..1]).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    desk.chunk("t", 0, 4, b"456789").unwrap();
    desk.chunk("t", 1, 0, b"x").unwrap();
    desk.receiver().commit("t").unwrap();
}

#[test]
fn aborting_and_resting_too_long_leave_nothing() {
    let mut desk = Desk::new();
    for id in ["a", "b", "c"] {
        desk.begin(named(id), &[(b"f", Some(b"0123456789"))]).unwrap();
        desk.chunk(id, 0, 0, b"0123").unwrap();
    }
    assert_eq!(desk.tree().keys().filter(|path| path.ends_with("/files/f")).count(), 3);
    desk.receiver().abort("a").unwrap();
    desk.now += DEFAULT_TTL / 2;
    desk.receiver().sweep(desk.now);
    desk.chunk("b", 0, 4, b"45").unwrap();
    desk.now += DEFAULT_TTL / 2;
    desk.receiver().sweep(desk.now);
    assert_eq!(desk.receiver().transfers(), 1, "the one with progress stays");
    desk.now += DEFAULT_TTL / 2;
    desk.receiver().sweep(desk.now);
    assert_eq!(desk.receiver().transfers(), 0);
    assert!(desk.tree().is_empty(), "{:?}", desk.tree());
}

#[test]
fn after_a_crash_what_was_asked_to_keep_goes_on_and_the_rest_is_gone() {
    let mut desk = Desk::new();
    let entries: [Sent<'_>; 3] =
        [(b"d/a", Some(b"0123456789")), (b"d/b", Some(b"whole")), (b"d/c", Some(b"never"))];
    let keep = Begin { ttl: Some(Duration::from_secs(600)), ..named("kept") };
    for begin in [keep.clone(), named("lost")] {
        let id = desk.begin(begin, &entries).unwrap().id;
        desk.chunk(&id, 0, 0, b"0123").unwrap();
        desk.chunk(&id, 1, 0, b"whole").unwrap();
    }
    let progress = |index, received| Progress { index, received };
    // However often: each time it is found again, and nothing else is left.
    for _ in 0..3 {
        desk.crash();
        desk.open();
        assert_eq!(desk.tree().keys().filter(|path| path.ends_with("/files/d/a")).count(), 1);
        let begun = desk.begin(keep.clone(), &entries).unwrap();
        assert_eq!(begun.progress, [progress(0, 4), progress(1, 5)]);
    }
    let begun = desk.begin(keep, &entries).unwrap();
    assert_eq!(begun.progress, [progress(0, 4), progress(1, 5)]);
    desk.chunk("kept", 0, 4, b"456789").unwrap();
    desk.chunk("kept", 2, 0, b"never").unwrap();
    desk.receiver().commit("kept").unwrap();
    assert_eq!(
        list(&desk.tree()),
        [("d/", ""), ("d/a", "0123456789"), ("d/b", "whole"), ("d/c", "never")]
    );
}

#[test]
fn what_a_crash_left_is_not_kept_for_ever_nor_for_another() {
    let mut desk = Desk::new();
    let keep = |id: &str| Begin { ttl: Some(Duration::from_secs(600)), ..named(id) };
    for id in ["rests", "other"] {
        desk.begin(keep(id), &[(b"f", Some(b"0123456789"))]).unwrap();
        desk.chunk(id, 0, 0, b"0123").unwrap();
    }
    desk.crash();
    desk.open();
    let begun = desk.begin(keep("other"), &[(b"g", Some(b"0123456789"))]).unwrap();
    assert_eq!(begun.progress, []);
    desk.receiver().abort("other").unwrap();
    assert_eq!(desk.tree().keys().filter(|path| path.ends_with("files/f")).count(), 1);
    desk.now += Duration::from_secs(601);
    desk.receiver().sweep(desk.now);
    assert!(desk.tree().is_empty(), "{:?}", desk.tree());
}

#[test]
fn what_only_looks_like_a_stage_is_not_touched() {
    let mut desk = Desk::new();
    desk.send(Begin::default(), &[(b".spaceport-0123456789abcdef/plan", Some(b"mine"))]).unwrap();
    let location = desk.downloads().join(".spaceport-0123456789abcdef");
    let note = desk.scratch.path().join("state/receiving/spaceport-0123456789abcdef");
    fs::write(note, location.as_os_str().as_encoded_bytes()).unwrap();
    desk.open();
    assert_eq!(fs::read(location.join("plan")).unwrap(), b"mine");
}

#[test]
fn ignore_patterns_are_left_out_before_and_gitignore_at_the_end() {
    let desk = Desk::new();
    let begin =
        Begin { ignore_patterns: vec!["*.tmp".to_owned()], honor_gitignore: true, ..named("t") };
    let entries: [Sent<'_>; 9] = [
        (b"p", None),
        (b"p/.gitignore", Some(b"*.log\n/build/\n")),
        (b"p/a.log", Some(b"1")),
        (b"p/a.tmp", Some(b"2")),
        (b"p/build/deep/x", Some(b"3")),
        (b"p/logs", None),
        (b"p/logs/.gitignore", Some(b"!keep.log\n")),
        (b"p/logs/keep.log", Some(b"5")),
        (b"p/logs/drop.log", Some(b"6")),
    ];
    let begun = desk.begin(begin.clone(), &entries).unwrap();
    assert_eq!(begun.ignored, [3]);
    desk.receiver().abort("t").unwrap();
    let done = desk.send(begin, &entries).unwrap();
    assert_eq!(done.skipped, [&b"p/a.log"[..], b"p/build/deep/x", b"p/logs/drop.log"]);
    assert_eq!(
        list(&desk.tree()),
        [
            ("p/", ""),
            ("p/.gitignore", "*.log\n/build/\n"),
            ("p/logs/", ""),
            ("p/logs/.gitignore", "!keep.log\n"),
            ("p/logs/keep.log", "5"),
        ]
    );
}

#[test]
fn too_much_is_refused_before_anything_is_made() {
    let desk = Desk::new();
    let sha = sha256(b"x");
    let entry = Declared {
        path: b"x",
        directory: false,
        size: 1 << 50,
        sha256: &sha,
        mode: None,
        modified: None,
    };
    let error = desk.receiver().begin(named("t"), [entry], desk.now).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::DiskFull), "{error}");
    assert!(error.context("free_bytes").is_some());
    for n in 0..MAX_TRANSFERS {
        desk.begin(named(&n.to_string()), &[]).unwrap();
    }
    let error = desk.begin(named("more"), &[]).unwrap_err();
    assert_eq!(error.kind(), Kind::LimitExceeded);
    assert!(error.report().retryable);
}

#[test]
fn a_failing_last_step_takes_everything_back() {
    let desk = Desk::new();
    desk.send(Begin::default(), &[(b"d/a", Some(b"old")), (b"f", Some(b"old"))]).unwrap();
    let before = desk.tree();
    let stage =
        Stage::create(&desk.receiver().shared.shelf, Root::open(&desk.downloads()).unwrap(), "t");
    let stage = stage.unwrap();
    for (path, data) in [("d/a", "new"), ("d/b", "new"), ("f", "new"), ("g", "new")] {
        let path = desk.downloads().join(format!("{}t", stage::PREFIX)).join(path);
        drop(path);
        let _ = data;
    }
    for path in [&b"d/a"[..], b"d/b", b"f", b"g"] {
        let mut spool = spool::Spool::create(stage.files(), path).unwrap();
        spool.append(b"new").unwrap();
        spool.finish(0o644, None).unwrap();
    }
    let root = Root::open(&desk.downloads()).unwrap();
    let place = publish::Place { root, folder: b"".to_vec() };
    let staged = |tree: BTreeMap<String, String>| {
        tree.into_iter()
            .filter(|(path, _)| !path.starts_with(".spaceport"))
            .collect::<BTreeMap<_, _>>()
    };
    let error = publish::publish(&stage, &place, Conflict::Overwrite, |_| {
        assert_ne!(staged(desk.tree()), before, "by now it is published");
        Err(Error::new(Kind::Io, "the last step failed"))
    });
    assert_eq!(error.unwrap_err().kind(), Kind::Io);
    assert_eq!(staged(desk.tree()), before);
    // And after a crash, the journal says the same.
    let location = desk.downloads();
    let crashed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        publish::publish(&stage, &place, Conflict::Overwrite, |_| panic!("as a crash would"))
    }));
    assert!(crashed.is_err());
    assert_ne!(staged(desk.tree()), before);
    publish::recover(&stage).unwrap();
    assert_eq!(staged(tree(&location)), before);
    publish::recover(&stage).unwrap();
    publish::publish(&stage, &place, Conflict::Overwrite, |_| Ok(())).unwrap();
    publish::recover(&stage).unwrap();
    drop(stage);
    assert_eq!(
        list(&desk.tree()),
        [("d/", ""), ("d/a", "new"), ("d/b", "new"), ("f", "new"), ("g", "new")]
    );
}
