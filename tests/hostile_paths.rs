//! Paths and trees that are out to hurt whoever takes them in, by every call that does.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use spaceport_tests::{
    Agent, Cut, Folder, Gateway, Harm, Here, Refused, Start, TOKEN, Way, downloads, names, tree,
    wait_until,
};
use spaceport_wire::pb::{
    BeginReceiveFilesRequest, BeginReceiveFilesResponse, BeginUploadRequest, BeginUploadResponse,
    CommitReceiveFilesRequest, CommitReceiveFilesResponse, CommitUploadRequest,
    CommitUploadResponse, ReceiveFilesChunkRequest, ReceiveFilesChunkResponse, TransferEntry,
    UploadChunkRequest, UploadChunkResponse, WriteFileHeader,
};

/// What becomes of a path that leads out, or that nothing can be called. A path in `link` goes through a
/// link, and one to `pipe` is where a pipe is.
const REFUSED: [&str; 15] = [
    "../../.ssh/authorized_keys",
    "a/../../x",
    "./../x",
    "..",
    "/etc/spaceport-hostile",
    "//x",
    "link/x",
    "link",
    "pipe",
    "socket",
    "a\0b",
    "a//b",
    "a/./b",
    LONG,
    "",
];

/// One byte more than a name may have.
const LONG: &str = concat!(
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn",
);

/// What is an ordinary name on Linux, whatever it is elsewhere.
const EXACT: [&str; 14] = [
    "C:\\x",
    "\\\\host\\share\\x",
    "CON",
    "nul.txt",
    "x.",
    "x ",
    "a:b",
    "-rf",
    ".profile",
    "\x1b[2J\r\n\x07",
    "\u{202e}gpj.exe",
    "cafe\u{301}",
    "caf\u{e9}",
    "Caf\u{e9}",
];

/// A gateway whose downloads hold a link to `outside`, a pipe and a socket; and so does its home.
struct Trap {
    gateway: Gateway,
    outside: Folder,
    _sockets: [UnixListener; 2],
}

impl Trap {
    fn new() -> Self {
        let gateway = Gateway::start(Start::default());
        let outside = Folder::new("outside");
        fs::write(outside.path().join("victim"), "safe").unwrap();
        fs::create_dir_all(downloads(&gateway)).unwrap();
        let sockets = [gateway.home(), downloads(&gateway)].map(|folder| {
            symlink(outside.path(), folder.join("link")).unwrap();
            mknodat(CWD, folder.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
            UnixListener::bind(folder.join("socket")).unwrap()
        });
        Self { gateway, outside, _sockets: sockets }
    }

    /// Nothing outside has changed, and nothing half is left in `folder`, which has what it had and `new`.
    #[track_caller]
    fn holds(&self, folder: &Path, new: &[&str]) {
        assert_eq!(names(self.outside.path()), ["victim"]);
        assert_eq!(fs::read_to_string(self.outside.path().join("victim")).unwrap(), "safe");
        assert!(!Path::new("/etc/spaceport-hostile").exists());
        let own = ["link", "pipe", "socket", "Downloads", ".cache"];
        let found: Vec<_> = names(folder).into_iter().filter(|it| !own.contains(&&**it)).collect();
        let mut new: Vec<_> = new.iter().map(|it| (*it).to_owned()).collect();
        new.sort();
        assert_eq!(found, new);
        assert!(folder.join("link").is_symlink());
    }

    /// One file by the contract's calls, into the downloads.
    fn transfer(&self, path: &str) -> Result<(), Refused> {
        let entry = TransferEntry {
            relative_path: path.to_owned(),
            size: 1,
            sha256: sha256(b"x"),
            ..TransferEntry::default()
        };
        let begin = BeginReceiveFilesRequest {
            transfer_id: "t".to_owned(),
            entries: vec![entry],
            // Overwrite: what is there would be in danger.
            conflict_policy: 2,
            ..BeginReceiveFilesRequest::default()
        };
        let transfer_id = "t".to_owned();
        let _begun: BeginReceiveFilesResponse =
            self.gateway.call("TeleportService/BeginReceiveFiles", &begin)?;
        let data = "x".into();
        let chunk = ReceiveFilesChunkRequest {
            transfer_id: transfer_id.clone(),
            index: 0,
            offset: 0,
            data,
        };
        let _: ReceiveFilesChunkResponse =
            self.gateway.call("TeleportService/ReceiveFilesChunk", &chunk)?;
        let commit = CommitReceiveFilesRequest { transfer_id };
        let _done: CommitReceiveFilesResponse =
            self.gateway.call("TeleportService/CommitReceiveFiles", &commit)?;
        Ok(())
    }

    /// One file by the contract's calls, to a path.
    fn upload(&self, path: &str) -> Result<(), Refused> {
        let header = WriteFileHeader {
            path: path.to_owned(),
            create_parents: true,
            ..WriteFileHeader::default()
        };
        let upload_id = "u".to_owned();
        let begin =
            BeginUploadRequest { header: Some(header), upload_id: upload_id.clone(), ttl: None };
        let _begun: BeginUploadResponse =
            self.gateway.call("FilesystemService/BeginUpload", &begin)?;
        let data = "x".into();
        let chunk = UploadChunkRequest {
            upload_id: upload_id.clone(),
            data,
            ..UploadChunkRequest::default()
        };
        let _: UploadChunkResponse = self.gateway.call("FilesystemService/UploadChunk", &chunk)?;
        let commit = CommitUploadRequest { upload_id, sha256: sha256(b"x") };
        let _done: CommitUploadResponse =
            self.gateway.call("FilesystemService/CommitUpload", &commit)?;
        Ok(())
    }
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a file manager or a terminal is told holds nothing that moves a cursor.
fn is_plain(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() || c == '\u{202e}')
}

#[test]
fn a_transfer_by_the_contract_takes_in_nothing_that_it_should_not() {
    let trap = Trap::new();
    for path in REFUSED {
        let refused = trap.transfer(path).expect_err(path);
        let cause = refused.info.as_ref().and_then(|it| it.metadata.get("cause")).cloned();
        let cause = cause.unwrap_or_default();
        let known = ["path_escape", "name_unusable", "conflict"].contains(&&*cause);
        assert!(known && is_plain(&refused.message), "{path:?}: {refused:?}");
        trap.holds(&downloads(&trap.gateway), &[]);
    }
    for path in EXACT {
        trap.transfer(path).unwrap();
    }
    trap.holds(&downloads(&trap.gateway), &EXACT);
}

#[test]
fn an_upload_by_the_contract_takes_in_nothing_that_it_should_not() {
    let trap = Trap::new();
    for path in REFUSED {
        // What is only written in another way than it has to be is where it would be without.
        if matches!(path, "a//b" | "a/./b") {
            continue;
        }
        let refused = trap.upload(path).expect_err(path);
        assert!(is_plain(&refused.message), "{path:?}: {refused:?}");
        trap.holds(&trap.gateway.home(), &[]);
    }
    for path in EXACT {
        trap.upload(path).unwrap();
    }
    trap.holds(&trap.gateway.home(), &EXACT);
}

#[test]
fn an_agents_tools_put_nothing_where_it_should_not_be() {
    let trap = Trap::new();
    let mut agent = Agent::new("initialize");
    let url = trap.gateway.http().to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    fs::create_dir(agent.home().join("folder")).unwrap();
    for path in REFUSED {
        if matches!(path, "a//b" | "a/./b") {
            continue;
        }
        let text = json!({ "space": "box", "path": path, "content": "x" });
        let error = agent.fail("space_write", text);
        assert!(is_plain(error["message"].as_str().unwrap()), "{error}");
        if !path.is_empty() {
            agent.fail("upload", json!({ "space": "box", "path": "~/folder", "dest": path }));
        }
        trap.holds(&trap.gateway.home(), &[]);
    }
    for path in EXACT {
        agent.get("space_write", json!({ "space": "box", "path": path, "content": "x" }));
    }
    trap.holds(&trap.gateway.home(), &EXACT);
}

#[test]
fn every_name_that_cannot_be_is_listed_at_once() {
    let gateway = Gateway::start(Start::default());
    let entry = |path: &str| TransferEntry {
        relative_path: path.to_owned(),
        size: 1,
        sha256: sha256(b"x"),
        ..TransferEntry::default()
    };
    let deep = "d/".repeat(300) + "x";
    let long = format!("{}x", "name/".repeat(1_000));
    let wrong = ["a//b", LONG, &deep, &long, "c/./d"];
    let mut entries: Vec<_> = wrong.iter().map(|path| entry(path)).collect();
    entries.push(entry("fine"));
    let begin = BeginReceiveFilesRequest { entries, ..BeginReceiveFilesRequest::default() };
    let refused: Result<BeginReceiveFilesResponse, _> =
        gateway.call("TeleportService/BeginReceiveFiles", &begin);
    let info = refused.unwrap_err().info.unwrap();
    assert_eq!(info.metadata["cause"], "name_unusable");
    assert_eq!(info.metadata["entries"], wrong.len().to_string(), "{info:?}");
    assert!(names(&downloads(&gateway)).is_empty());
}

#[test]
fn what_is_no_file_stays_behind_and_is_counted() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let top = here.files().join("odd");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("one"), "x").unwrap();
    fs::hard_link(top.join("one"), top.join("other")).unwrap();
    mknodat(CWD, top.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let _socket = UnixListener::bind(top.join("socket")).unwrap();
    symlink("/etc/passwd", top.join("link")).unwrap();
    let sent = here.send(gateway.http(), &["odd"]).sent();
    assert_eq!((&sent["files"], &sent["left_out"]["special"]), (&json!(2), &json!(2)), "{sent}");
    assert_eq!(sent["left_out"]["links"], 1);
    let arrived = downloads(&gateway).join("odd");
    assert_eq!(names(&arrived), ["one", "other"]);
    // Two files: what is written to one of them is not in the other.
    fs::write(arrived.join("one"), "changed").unwrap();
    assert_eq!(fs::read_to_string(arrived.join("other")).unwrap(), "x");
}

#[test]
fn what_is_sent_has_a_sensible_name() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    for folder in ["empty", "folders/a/b", "folders/c"] {
        fs::create_dir_all(here.files().join(folder)).unwrap();
    }
    let landing = downloads(&gateway);
    for (path, name) in [("empty", "empty"), ("folders/", "folders"), ("folders/a/.", "a")] {
        let sent = here.send(gateway.http(), &[path]).sent();
        assert_eq!((&sent["names"][0], &sent["files"]), (&json!(name), &json!(0)), "{path}");
        assert!(landing.join(name).is_dir(), "{path}");
    }
    assert_eq!(tree(&landing.join("folders")), tree(&here.files().join("folders")));
    // Where the command runs, by the name that the folder has.
    let sent = here.send(gateway.http(), &["."]).sent();
    assert_eq!(sent["names"][0], "files");
    assert_eq!(names(&landing.join("files")), ["empty", "folders"]);
    let whole = here.send(gateway.http(), &["/"]);
    assert_eq!(whole.value()["error"]["kind"], "invalid_argument", "{}", whole.text());
    assert_eq!(names(&landing), ["a", "empty", "files", "folders"]);
}

#[test]
fn a_file_that_is_written_over_while_it_is_read_is_never_a_mix() {
    const LENGTH: usize = 8 << 20;
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let path = here.files().join("file");
    fs::write(&path, vec![b'a'; LENGTH]).unwrap();
    let cut = Cut::before(gateway.http(), Way::Up, Harm::Slow(1));
    // It would shrink to nothing, and be gone before it can be changed.
    let noise = spaceport_tests::noise(LENGTH, 5);
    fs::write(&path, &noise).unwrap();
    let mut command = here.command("send");
    let child = command.args(["file", "--to", &cut.address().to_string()]).spawn().unwrap();
    wait_until("the middle", std::time::Duration::from_secs(30), || {
        cut.passed() > LENGTH as u64 / 8
    });
    // The same length, in the same file: only its time tells.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::io::Write::write_all(&mut &file, &vec![b'b'; LENGTH]).unwrap();
    drop(file);
    let done = spaceport_tests::Done(child.wait_with_output().unwrap());
    let failed = done.failed(7, "size_mismatch");
    assert_eq!(failed["context"]["entry"], "file");
    wait_until("nothing is left", std::time::Duration::from_secs(30), || {
        names(&downloads(&gateway)).is_empty()
    });
    here.send(gateway.http(), &["file"]).sent();
    assert!(fs::read(downloads(&gateway).join("file")).unwrap() == vec![b'b'; LENGTH]);
}

/// Bytes that decide for themselves, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// A name of Linux: any bytes but two, and not one of two.
    fn name(&mut self) -> Vec<u8> {
        let length = match self.below(8) {
            0 => 255,
            1 => 1,
            _ => self.below(40) + 1,
        };
        let like = self.below(5);
        let name: Vec<u8> = (0..length)
            .map(|_| match like {
                0 => self.below(256) as u8,
                1 => b"-.~ \\:*?\"<>|%$`'&;\n\r\t\x1b\x7f"[self.below(23) as usize],
                2 => b"aAbB"[self.below(4) as usize],
                3 => "e\u{301}\u{e9}".as_bytes()[self.below(5) as usize],
                _ => b"readme.txt"[self.below(10) as usize],
            })
            .map(|byte| if matches!(byte, 0 | b'/') { b'_' } else { byte })
            .collect();
        if matches!(&name[..], b"." | b"..") { b".x".to_vec() } else { name }
    }
}

#[test]
fn whatever_linux_can_name_arrives_and_comes_back() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let top = here.files().join("names");
    fs::create_dir(&top).unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut folders = vec![top.clone()];
    for name in ["A", "a", "caf\u{e9}", "cafe\u{301}", "-", "--to", ".hidden", "~", "$HOME"] {
        fs::write(top.join(name), name).unwrap();
    }
    while folders.len() < 60 {
        let parent = folders[random.below(folders.len() as u64) as usize].clone();
        let folder = parent.join(OsStr::from_bytes(&random.name()));
        // As deep as a path may be, where it goes as well.
        if folder.as_os_str().len() < 2_000 && fs::create_dir(&folder).is_ok() {
            folders.push(folder);
        }
    }
    for folder in &folders {
        for _ in 0..6 {
            let name = random.name();
            let path = folder.join(OsStr::from_bytes(&name));
            if !path.exists() {
                fs::write(&path, &name).unwrap();
            }
        }
    }
    let expected = tree(&top);
    assert!(expected.len() > 300, "{}", expected.len());
    here.send(gateway.http(), &["names"]).sent();
    assert!(tree(&downloads(&gateway).join("names")) == expected, "what arrived is another tree");
    let from = format!("http://{}:~/Downloads/names", gateway.http());
    here.download(&[&from, "back"]).sent();
    assert!(tree(&here.files().join("back/names")) == expected, "what came back is another tree");
    // By name, and not only within a folder: what the command line and JSON make of them.
    let odd: [&[u8]; 5] = [b"\n", b"-rf", b"\xff", b".", &[b'n'; 255]];
    for name in odd {
        let path = here.files().join(OsStr::from_bytes(name));
        if name != b"." {
            fs::write(&path, name).unwrap();
            let mut command = here.command("send");
            command.args(["--to", &gateway.http().to_string(), "--into", "odd", "--"]);
            let done =
                spaceport_tests::Done(command.arg(OsStr::from_bytes(name)).output().unwrap());
            done.sent();
            let landed = downloads(&gateway).join("odd").join(OsStr::from_bytes(name));
            assert_eq!(fs::read(landed).unwrap(), name);
        }
    }
}
