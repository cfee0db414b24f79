//! `spaceport send` and `spaceport download` between the real program and a real gateway: what
//! arrives is what was sent, and what cannot arrive whole does not arrive at all.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use spaceport_tests::{
    Agent, Cut, Done, Folder, Gateway, Harm, Here, Start, TOKEN, Tap, Way, binary, call_at,
    downloads, names, noise, tree, wait_until,
};
use spaceport_wire::pb::{
    BeginUploadRequest, BeginUploadResponse, UploadChunkRequest, UploadChunkResponse,
    WriteFileHeader,
};

/// What a signal or a stall has to have done.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn any_name_mode_and_time_arrives_as_it_is_and_comes_back() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let top = here.files().join("tree");
    let odd: [&[u8]; 12] = [
        b"plain.txt",
        b"C:\\x",
        b"nul.txt",
        b"ends with space ",
        b"dots...",
        b"\xff\xfe not text",
        b"a\nline\r\ttab\x07bell\x1b[2J",
        "\u{202e}gpj.exe".as_bytes(),
        "e\u{301}\u{e9}".as_bytes(),
        b"-rf",
        b"*?\"<>|",
        &[b'n'; 255],
    ];
    fs::create_dir_all(top.join("deep/er")).unwrap();
    fs::create_dir(top.join("empty folder")).unwrap();
    for (number, name) in (0..).zip(odd) {
        for folder in [top.clone(), top.join("deep/er")] {
            let path = folder.join(OsStr::from_bytes(name));
            fs::write(&path, noise(usize::from(number) * 977, number)).unwrap();
            let mode = [0o644, 0o600, 0o755, 0o4755, 0o400][usize::from(number) % 5];
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
    fs::write(top.join("large"), noise(5_000_001, 9)).unwrap();
    let old = fs::File::open(top.join("large")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789)).unwrap();
    fs::set_permissions(top.join("deep"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("plain.txt", top.join("link")).unwrap();

    let sent = here.send(gateway.http(), &["tree"]).sent();
    assert_eq!(sent["names"][0], "tree");
    assert_eq!(sent["files"], 25);
    assert_eq!(sent["left_out"]["links"], 1);
    let mut expected = tree(&top);
    expected.remove(&b"link"[..]);
    for (mode, ..) in expected.values_mut() {
        *mode &= 0o777; // nobody runs as someone else because of what was sent
    }
    let arrived = downloads(&gateway).join("tree");
    assert_eq!(tree(&arrived), expected);
    assert_eq!(names(&downloads(&gateway)), ["tree"]);

    let from = format!("http://{}:~/Downloads/tree", gateway.http());
    let back = here.download(&[&from, "back"]).sent();
    assert_eq!(back["sha256"], sent["sha256"]);
    assert_eq!(tree(&here.files().join("back/tree")), expected);
    assert_eq!(names(&here.files().join("back")), ["tree"]);
}

#[test]
fn ignore_files_at_any_depth_say_what_stays() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let top = here.files().join("repo");
    let files = [
        (".gitignore", "*.log\nbuild/\n/only-here\n"),
        (".dockerignore", "secret\n"),
        ("a.log", ""),
        ("secret", ""),
        ("only-here", ""),
        ("kept", "x"),
        (".git/config", ""),
        ("build/x", ""),
        ("build/deep/.gitignore", "!x\n"),
        ("build/deep/x", ""),
        ("sub/.gitignore", "!keep.log\n"),
        ("sub/keep.log", "x"),
        ("sub/other.log", ""),
        ("sub/only-here", "x"),
        ("sub/.ignore", "own\n"),
        ("sub/own", ""),
        ("sub/own2", "x"),
    ];
    for (path, content) in files {
        let path = top.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    here.send(gateway.http(), &["repo"]).sent();
    let arrived: Vec<_> = tree(&downloads(&gateway).join("repo"))
        .into_keys()
        .map(|path| String::from_utf8(path).unwrap())
        .collect();
    let kept = [
        ".dockerignore",
        ".gitignore",
        "kept",
        "sub",
        "sub/.gitignore",
        "sub/.ignore",
        "sub/keep.log",
        "sub/only-here",
        "sub/own2",
    ];
    assert_eq!(arrived, kept);
    let all = here.send(gateway.http(), &["repo", "--no-ignore", "--into", "all"]).sent();
    assert_eq!(all["files"], files.len());
}

#[test]
fn a_taken_name_is_renamed_replaced_or_left() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let top = here.files().join("d");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("x"), "one").unwrap();
    here.send(gateway.http(), &["d"]).sent();
    fs::write(top.join("x"), "two").unwrap();
    fs::write(top.join("y"), "new").unwrap();
    let there = downloads(&gateway);
    let read = |path: &str| fs::read_to_string(there.join(path)).unwrap();

    let skipped = here.send(gateway.http(), &["d", "--conflict", "skip"]).sent();
    assert_eq!((read("d/x"), read("d/y")), ("one".to_owned(), "new".to_owned()));
    assert_eq!((&skipped["skipped"][0], &skipped["skipped_count"]), (&"d/x".into(), &1.into()));

    let renamed = here.send(gateway.http(), &["d"]).sent();
    assert_eq!((&renamed["names"][0], read("d (1)/x")), (&"d (1)".into(), "two".to_owned()));

    // What is there would be gone: somebody has to have said so.
    let refused = here.send(gateway.http(), &["d", "--conflict", "overwrite"]);
    assert_eq!(refused.0.status.code(), Some(2));
    assert_eq!(refused.value()["error"]["kind"], "confirmation_required");
    assert_eq!(read("d/x"), "one");
    here.send(gateway.http(), &["d", "--conflict", "overwrite", "--yes"]).sent();
    assert_eq!(read("d/x"), "two");
    // A folder is not put in the place of a file.
    fs::remove_dir_all(there.join("d")).unwrap();
    fs::write(there.join("d"), "a file").unwrap();
    let failed = here.send(gateway.http(), &["d", "--conflict", "overwrite", "--yes"]);
    assert_eq!(failed.failed(7, "conflict")["context"]["entry"], "d");
    assert_eq!(read("d"), "a file");
    assert_eq!(names(&there), ["d", "d (1)"]);
}

#[test]
fn a_wrong_request_says_what_is_wrong() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    fs::write(here.files().join("x"), "x").unwrap();
    symlink("x", here.files().join("link")).unwrap();
    let missing = here.send(gateway.http(), &["nothing"]);
    assert_eq!(missing.0.status.code(), Some(5), "{}", missing.text());
    let outside = here.send(gateway.http(), &["x", "--into", "../out"]);
    outside.failed(7, "path_escape");
    let twice = here.send(gateway.http(), &["x", "x"]);
    twice.failed(7, "conflict");
    let from = format!("http://{}:/etc/passwd", gateway.http());
    let elsewhere = here.download(&[&from]);
    assert_eq!(elsewhere.value()["error"]["kind"], "permission_denied");
    let nobody = here.command("send").args(["x", "--to", "127.0.0.1:9"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(4));
    let mut stranger = here.command("send");
    stranger.env("SPACEPORT_TOKEN", "wrong").args(["x", "--to", &gateway.http().to_string()]);
    assert_eq!(stranger.output().unwrap().status.code(), Some(3));
    assert_eq!(names(&downloads(&gateway)), Vec::<String>::new());
    // The link was named: what it leads to is sent, by the link's name.
    assert_eq!(here.send(gateway.http(), &["link"]).sent()["names"][0], "link");
}

/// A tree of some MiB: one large file, many small ones. Returns how many bytes that is.
fn some(here: &Here) -> u64 {
    let top = here.files().join("some");
    fs::create_dir(&top).unwrap();
    for number in 0..200_u8 {
        fs::write(top.join(format!("a{number}")), noise(2_000, number)).unwrap();
    }
    fs::write(top.join("large"), noise(LARGE, 77)).unwrap();
    (LARGE + 200 * 2_000) as u64
}

const LARGE: usize = 24 << 20;

/// What two packs hold: so much may come twice.
const TWO_PACKS: u64 = 2 << 20;

/// Starts a gateway whose files outlive it, below `folder`.
fn lasting(folder: &Path) -> Gateway {
    let (state, downloads) = (folder.join("state"), folder.join("downloads"));
    fs::create_dir_all(&state).unwrap();
    let arguments = ["--downloads-dir", downloads.to_str().unwrap()];
    Gateway::start(Start { state: Some(&state), arguments: &arguments, ..Start::default() })
}

/// Bytes that are staged in a folder, and not published yet.
fn staged(landing: &Path) -> u64 {
    let stages = names(landing).into_iter().filter(|name| name.starts_with(".spaceport-"));
    let mut left: Vec<_> = stages.map(|name| landing.join(name).join("files")).collect();
    let mut bytes = 0;
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => left.push(entry.path()),
                Ok(metadata) => bytes += metadata.len(),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Waits until what came through a path is in the stage, but for two packs: of those one has come in
/// part, and one is being written.
fn taken_in(landing: &Path, cut: &Cut, stall: u64) {
    wait_until("the stall", SOON, || cut.has_happened());
    wait_until("what came is staged", SOON, || staged(landing) + TWO_PACKS >= stall);
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_sender_that_is_killed_goes_on_where_it_was() {
    for percent in [10, 50, 99] {
        let (gateway, here) = (Gateway::start(Start::default()), Here::new());
        let bytes = some(&here);
        let stall = bytes * percent / 100;
        let cut = Cut::before(gateway.http(), Way::Up, Harm::Stall(stall));
        let mut command = here.command("send");
        let to = cut.address().to_string();
        let mut child = command.args(["some", "--to", &to]).spawn().unwrap();
        taken_in(&downloads(&gateway), &cut, stall);
        kill(child.id());
        child.wait().unwrap();
        assert!(!downloads(&gateway).join("some").exists());
        // The first stream hangs in a connection that nobody has closed: the next takes over.
        let sent = here.send(gateway.http(), &["some"]).sent();
        let resumed = sent["resumed_bytes"].as_u64().unwrap();
        assert!(resumed + TWO_PACKS >= stall, "{percent} %: {resumed}");
        assert!(sent["wire_bytes"].as_u64().unwrap() < bytes - resumed + (64 << 10), "{sent}");
        assert_eq!(tree(&downloads(&gateway).join("some")), tree(&here.files().join("some")));
        assert_eq!(names(&downloads(&gateway)), ["some"]);
    }
}

#[test]
fn a_receiver_that_is_killed_goes_on_where_it_was() {
    for percent in [10, 50, 99] {
        let (there, here) = (Folder::new("there"), Here::new());
        let bytes = some(&here);
        let gateway = lasting(there.path());
        let stall = bytes * percent / 100;
        let cut = Cut::before(gateway.http(), Way::Up, Harm::Stall(stall));
        let mut command = here.command("send");
        let to = cut.address().to_string();
        let child = command.args(["some", "--to", &to]).spawn().unwrap();
        let landing = there.path().join("downloads");
        taken_in(&landing, &cut, stall);
        kill(gateway.pid());
        drop(gateway);
        let failed = Done(child.wait_with_output().unwrap());
        failed.failed(7, "peer_gone");
        assert!(!landing.join("some").exists());

        let gateway = lasting(there.path());
        let sent = here.send(gateway.http(), &["some"]).sent();
        let resumed = sent["resumed_bytes"].as_u64().unwrap();
        assert!(resumed + TWO_PACKS >= stall, "{percent} %: {resumed}");
        assert_eq!(tree(&landing.join("some")), tree(&here.files().join("some")));
        assert_eq!(names(&landing), ["some"]);
    }
}

#[test]
fn a_download_that_is_killed_goes_on_where_it_was() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let bytes = some(&here);
    fs::rename(here.files().join("some"), gateway.home().join("some")).unwrap();
    let cut = Cut::before(gateway.http(), Way::Down, Harm::Stall(bytes / 2));
    let from = |address: std::net::SocketAddr| format!("http://{address}:some");
    let mut child = here.command("download").args([&from(cut.address()), "in"]).spawn().unwrap();
    let landing = here.files().join("in");
    taken_in(&landing, &cut, bytes / 2);
    kill(child.id());
    child.wait().unwrap();
    assert!(!landing.join("some").exists());
    let fetched = here.download(&[&from(cut.address()), "in"]).sent();
    let resumed = fetched["resumed_bytes"].as_u64().unwrap();
    assert!(resumed + TWO_PACKS >= bytes / 2, "{resumed}");
    assert_eq!(tree(&landing.join("some")), tree(&gateway.home().join("some")));
    assert_eq!(names(&landing), ["some"]);
}

#[test]
fn a_transfer_that_is_interrupted_leaves_nothing_on_either_side() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let bytes = some(&here);
    fs::create_dir(gateway.home().join("there")).unwrap();
    fs::write(gateway.home().join("there/large"), noise(LARGE, 3)).unwrap();
    for (way, verb) in [(Way::Up, "send"), (Way::Down, "download")] {
        let cut = Cut::before(gateway.http(), way, Harm::Slow(bytes / 3));
        let mut command = here.command(verb);
        match way {
            Way::Up => command.args(["some", "--to", &cut.address().to_string()]),
            Way::Down => command.args([&format!("http://{}:there", cut.address()), "in"]),
        };
        let child = command.spawn().unwrap();
        wait_until("the middle", SOON, || cut.has_happened());
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let ended = Done(child.wait_with_output().unwrap());
        assert_eq!(ended.0.status.code(), Some(130), "{verb}: {}", ended.text());
        assert_eq!(ended.value()["error"]["kind"], "cancelled");
        wait_until(&format!("nothing is left after {verb}"), SOON, || {
            names(&downloads(&gateway)).is_empty() && names(&here.files().join("in")).is_empty()
        });
    }
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let bytes = some(&here);
    let cut = Cut::before(gateway.http(), Way::Up, Harm::Cut(bytes / 2));
    let sent = here.send(cut.address(), &["some"]).sent();
    assert!(cut.has_happened());
    assert!(sent["resumed_bytes"].as_u64().unwrap() + TWO_PACKS >= bytes / 2, "{sent}");
    assert_eq!(tree(&downloads(&gateway).join("some")), tree(&here.files().join("some")));
}

#[test]
fn a_flipped_byte_is_refused_and_nothing_is_published() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let bytes = some(&here);
    let mut refused = 0;
    for (into, at) in [("one", bytes / 4), ("two", bytes / 2 + 1), ("three", bytes - 5_000)] {
        let cut = Cut::before(gateway.http(), Way::Up, Harm::Flip(at));
        let done = here.send(cut.address(), &["some", "--into", into]);
        assert!(cut.has_happened());
        let landing = downloads(&gateway).join(into);
        if done.0.status.success() {
            // It hit the framing: the connection broke, and the next one was whole.
            done.sent();
        } else {
            refused += 1;
            done.failed(7, "corrupt_bundle");
            assert!(!landing.join("some").exists());
            here.send(gateway.http(), &["some", "--into", into]).sent();
        }
        assert_eq!(tree(&landing.join("some")), tree(&here.files().join("some")));
        assert_eq!(names(&landing), ["some"]);
    }
    assert!(refused > 0, "no byte of a file was hit");
}

#[test]
fn a_file_that_changes_meanwhile_is_named() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let bytes = some(&here);
    let cut = Cut::before(gateway.http(), Way::Up, Harm::Slow(bytes / 4));
    let mut command = here.command("send");
    let child = command.args(["some", "--to", &cut.address().to_string()]).spawn().unwrap();
    wait_until("the middle", SOON, || cut.has_happened());
    let file = fs::OpenOptions::new().append(true).open(here.files().join("some/large")).unwrap();
    std::io::Write::write_all(&mut &file, b"more").unwrap();
    let failed = Done(child.wait_with_output().unwrap()).failed(7, "size_mismatch");
    assert_eq!(failed["context"]["entry"], "some/large");
    wait_until("nothing is left", SOON, || names(&downloads(&gateway)).is_empty());
}

#[test]
fn sparse_files_of_more_than_2_and_4_gib_arrive_whole_and_sparse_and_come_back() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    for (name, size) in [("two", (2_u64 << 30) + 1), ("four", (4_u64 << 30) + 1)] {
        let middle = size - (1 << 30) - 7; // over the edge that a signed or a short number has
        let file = fs::File::create(here.files().join(name)).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(b"in the middle", middle).unwrap();
        file.write_all_at(b"!", size - 1).unwrap();
        let sent = here.send(gateway.http(), &[name]).sent();
        assert_eq!(sent["bytes"], size);
        assert!(sent["wire_bytes"].as_u64().unwrap() < 1 << 20, "{sent}");
        let from = format!("http://{}:~/Downloads/{name}", gateway.http());
        let fetched = here.download(&[&from, "back"]).sent();
        assert_eq!(fetched["sha256"], sent["sha256"]);
        for arrived in [downloads(&gateway).join(name), here.files().join("back").join(name)] {
            let arrived = fs::File::open(arrived).unwrap();
            let metadata = arrived.metadata().unwrap();
            assert_eq!(metadata.len(), size);
            assert!(metadata.blocks() * 512 < 4 << 20, "{}", metadata.blocks());
            let mut end = [0; 14];
            arrived.read_exact_at(&mut end[..13], middle).unwrap();
            arrived.read_exact_at(&mut end[13..], size - 1).unwrap();
            assert_eq!(&end, b"in the middle!");
        }
    }
}

#[test]
fn twenty_thousand_small_files_arrive() {
    let there = Folder::in_memory("there");
    let here = Here::below(Folder::in_memory("send"));
    let gateway = lasting(there.path());
    let top = here.files().join("many");
    for number in 0..20_000_u32 {
        let folder = top.join(format!("d{}", number / 500));
        if number.is_multiple_of(500) {
            fs::create_dir_all(&folder).unwrap();
        }
        fs::write(folder.join(format!("f{number}")), number.to_le_bytes()).unwrap();
    }
    let sent = here.send(gateway.http(), &["many"]).sent();
    assert_eq!((&sent["files"], &sent["names"][0]), (&20_000.into(), &"many".into()));
    assert_eq!(tree(&there.path().join("downloads/many")), tree(&top));
}

#[test]
fn a_disk_that_fills_up_ends_it_and_leaves_nothing() {
    const ROLE: &str = "SPACEPORT_TEST_FULL";
    if std::env::var_os(ROLE).is_some() {
        let folder = PathBuf::from(std::env::var_os("SPACEPORT_TEST_FOLDER").unwrap());
        let (gateway, here) = (lasting(&folder), Here::new());
        let top = here.files().join("pages");
        fs::create_dir(&top).unwrap();
        // Few bytes, which would fit, and a page for each file, which do not.
        for number in 0..4_000 {
            fs::write(top.join(number.to_string()), b"x").unwrap();
        }
        let failed = here.send(gateway.http(), &["pages"]).failed(7, "disk_full");
        assert!(failed["context"]["entry"].as_str().unwrap().starts_with("pages"), "{failed}");
        let landing = folder.join("downloads");
        assert_eq!(names(&landing), Vec::<String>::new());
        fs::write(here.files().join("large"), noise(9 << 20, 1)).unwrap();
        here.send(gateway.http(), &["large"]).failed(7, "disk_full");
        fs::write(here.files().join("fits"), noise(1 << 20, 1)).unwrap();
        here.send(gateway.http(), &["fits"]).sent();
        assert_eq!(names(&landing), ["fits"]);
        fs::write(folder.join("passed"), "").unwrap();
        return;
    }
    let folder = Folder::new("full");
    fs::create_dir(folder.path().join("downloads")).unwrap();
    binary(); // built before the test is on its own
    // A file system of 8 MiB that nobody else sees.
    let mount =
        "mount -t tmpfs -o size=8m none \"$SPACEPORT_TEST_FOLDER/downloads\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", mount, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_disk_that_fills_up_ends_it_and_leaves_nothing", "--nocapture"])
        .env(ROLE, "fill")
        .env("SPACEPORT_TEST_FOLDER", folder.path())
        .output()
        .unwrap();
    assert!(
        folder.path().join("passed").exists(),
        "needs root for a mount of its own\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Something that nobody on the way may see: in names, and in files that are packed small, large and
/// compressed.
const CANARY: &str = "canary-51c0e7f2-sits-in-a-file";

#[test]
fn nobody_on_the_way_can_read_what_is_moved() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let top = here.files().join("secrets");
    fs::create_dir(&top).unwrap();
    fs::write(top.join(CANARY), CANARY).unwrap();
    fs::write(top.join("large"), CANARY.repeat(100_000)).unwrap();
    let tap = Tap::before(gateway.http());

    here.send(tap.address(), &["secrets"]).sent();
    assert_eq!(tree(&downloads(&gateway).join("secrets")), tree(&top));
    let from = |path: &str| format!("http://{}:{path}", tap.address());
    here.download(&[&from("~/Downloads/secrets"), "in"]).sent();
    assert_eq!(tree(&here.files().join("in/secrets")), tree(&top));
    // An error names what it is about, and so would a listing.
    let missing = here.download(&[&from(&format!("~/{CANARY}"))]);
    assert_eq!(missing.0.status.code(), Some(5), "{}", missing.text());
    assert!(tap.bytes() > 100_000, "it was listened to");
    assert!(!tap.heard(CANARY.as_bytes()));

    let mut agent = Agent::new("initialize");
    let url = tap.address().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    fs::write(agent.home().join(CANARY), CANARY).unwrap();
    agent.get("space_write", json!({ "space": "box", "path": "~/x", "content": CANARY }));
    let there = format!("~/{CANARY}");
    for (tool, dest) in [("upload", "~/up"), ("upload", ""), ("send_file", "")] {
        let mut arguments = json!({ "space": "box", "path": there });
        if !dest.is_empty() {
            arguments["dest"] = dest.into();
        }
        agent.get(tool, arguments);
    }
    agent.get("download", json!({ "space": "box", "path": "~/x", "dest": "~/in" }));
    assert_eq!(fs::read_to_string(agent.home().join("in/x")).unwrap(), CANARY);
    assert!(!tap.heard(CANARY.as_bytes()));

    // The contract's own calls are in the clear: the tap hears what can be heard.
    let path = "~/clear".to_owned();
    let header = Some(WriteFileHeader { path, ..WriteFileHeader::default() });
    let upload_id = "u".to_owned();
    let begin = BeginUploadRequest { header, upload_id: upload_id.clone(), ttl: None };
    let method = "FilesystemService/BeginUpload";
    drop(call_at::<BeginUploadResponse>(tap.address(), "", TOKEN, method, &begin).unwrap());
    let chunk = UploadChunkRequest { upload_id, data: CANARY.into(), ..Default::default() };
    let method = "FilesystemService/UploadChunk";
    let _: UploadChunkResponse = call_at(tap.address(), "", TOKEN, method, &chunk).unwrap();
    assert!(tap.heard(CANARY.as_bytes()));
}

#[test]
fn a_key_that_has_changed_is_refused_until_it_is_named() {
    let (there, here) = (Folder::new("there"), Here::new());
    fs::write(here.files().join("x"), "x").unwrap();
    let gateway = lasting(there.path());
    let tap = Tap::before(gateway.http());
    here.send(tap.address(), &["x"]).sent();
    drop(gateway);
    // Somebody else answers at the same address, who even has the token.
    fs::remove_file(there.path().join("state/teleport/seal-key")).unwrap();
    let gateway = lasting(there.path());
    tap.lead_to(gateway.http());
    let refused = here.send(tap.address(), &["x"]).failed(6, "key_unavailable");
    let offered = refused["context"]["offered"].as_str().unwrap();
    assert_ne!(refused["context"]["known"], offered);
    let landing = there.path().join("downloads");
    assert_eq!(names(&landing), ["x"]);
    here.send(tap.address(), &["x", "--trust-key", "0000-0000"]).failed(6, "key_unavailable");
    here.send(tap.address(), &["x", "--trust-key", offered]).sent();
    here.send(tap.address(), &["x"]).sent();
    assert_eq!(names(&landing), ["x", "x (1)", "x (2)"]);
}
