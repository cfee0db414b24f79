//! Files that an agent moves, and takes back half-way.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use spaceport_tests::{Agent, Folder, Gateway, Script, TOKEN, binary, wait_until};

fn agent_of(gateway: SocketAddr) -> Agent {
    let mut agent = Agent::new("initialize");
    let url = gateway.to_string();
    agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
    agent
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap_or_else(|error| panic!("{:?}: {error}", path.as_ref()))
}

/// Every entry below a folder, hidden ones included; but not caches, which programs write when they like.
fn everything(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        if entry.file_name() == ".cache" {
            continue;
        }
        found.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            found.extend(everything(&entry.path()));
        }
    }
    found
}

/// Bytes that neither are holes nor shrink.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn fields(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn an_agent_sends_a_folder_and_is_told_what_stayed_behind() {
    let gateway = Gateway::with_test_pattern();
    let mut agent = agent_of(gateway.http());
    let home = agent.home().to_owned();
    let project = home.join("project");
    for (path, content) in [
        (".gitignore", "*.log\nbuild/\n"),
        (".dockerignore", "secret.txt\n"),
        ("sub/.ignore", "!keep.log\n"),
        ("a.txt", "same"),
        ("b.txt", "same"),
        ("empty", ""),
        ("debug.log", "x"),
        ("secret.txt", "x"),
        ("build/out", "x"),
        (".git/HEAD", "x"),
        ("sub/keep.log", "kept"),
        ("sub/other.log", "x"),
    ] {
        let path = project.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", project.join("link")).unwrap();

    let arguments = json!({ "space": "box", "path": "~/project", "target_directory": "in/box" });
    let (sent, progress) = agent.get_watched("send_file", arguments);
    assert_eq!(
        fields(&sent),
        [
            "bytes",
            "dest",
            "destination",
            "files",
            "kind",
            "respect_ignorefiles",
            "skipped_by_guest",
            "skipped_by_ignorefiles",
            "skipped_count",
            "source",
            "verified",
        ]
    );
    let there = gateway.home().canonicalize().unwrap().join("Downloads/in/box");
    assert_eq!(sent["destination"], there.to_str().unwrap());
    assert_eq!(sent["dest"], there.join("project").to_str().unwrap());
    assert_eq!((&sent["kind"], &sent["verified"]), (&json!("folder"), &json!(true)));
    assert_eq!(
        sent["skipped_by_ignorefiles"],
        json!([
            "project/.git",
            "project/build",
            "project/debug.log",
            "project/secret.txt",
            "project/sub/other.log"
        ])
    );
    assert_eq!(sent["skipped_count"], 5);
    assert_eq!(sent["files"].as_array().unwrap().len(), 7, "{sent}");
    assert_eq!(text(there.join("project/a.txt")), "same");
    assert_eq!(text(there.join("project/empty")), "");
    assert_eq!(text(there.join("project/sub/keep.log")), "kept");
    assert!(!there.join("project/link").exists());
    let total = sent["bytes"].as_u64().unwrap() as f64;
    assert!(progress.iter().all(|&(_, of)| of == total), "{progress:?}");
    assert_eq!(progress.last(), Some(&(total, total)));
    assert!(progress.is_sorted_by(|a, b| a.0 < b.0), "it only grows: {progress:?}");

    // A taken name stays as it is.
    let arguments =
        json!({ "space": "box", "path": "~/project/a.txt", "respect_ignorefiles": false });
    let first = agent.get("send_file", arguments.clone());
    let second = agent.get("send_file", arguments);
    assert_ne!(first["dest"], second["dest"]);
    assert_eq!(text(second["dest"].as_str().unwrap()), "same");
    for (arguments, kind) in [
        (json!({ "space": "box", "path": "~/nothing" }), "not_found"),
        (json!({ "space": "box", "path": "/dev/null" }), "invalid_argument"),
        (
            json!({ "space": "box", "path": "~/project", "target_directory": "/etc" }),
            "invalid_argument",
        ),
        (
            json!({ "space": "box", "path": "~/project", "target_directory": "../up" }),
            "transfer_failed",
        ),
        (json!({ "space": "none", "path": "~/project" }), "not_found"),
    ] {
        assert_eq!(agent.fail("send_file", arguments.clone())["kind"], kind, "{arguments}");
    }
}

#[test]
fn an_agent_uploads_and_downloads_at_any_path() {
    let gateway = Gateway::with_test_pattern();
    let mut agent = agent_of(gateway.http());
    let home = agent.home().to_owned();
    fs::create_dir_all(home.join("tree/deep/empty")).unwrap();
    fs::write(home.join("tree/deep/file"), "below").unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|it| (it * 7) as u8).collect();
    fs::write(home.join("large.bin"), &large).unwrap();

    let file = json!({ "space": "box", "path": "~/large.bin", "dest": "~/desk/large.bin" });
    let (uploaded, progress) = agent.get_watched("upload", file.clone());
    let there = gateway.home().canonicalize().unwrap();
    assert_eq!(uploaded["dest"], there.join("desk/large.bin").to_str().unwrap());
    assert_eq!(
        fields(&uploaded),
        ["bytes", "dest", "directories", "files", "kind", "sha256", "source", "verified"]
    );
    let sha256 = uploaded["sha256"].clone();
    assert_eq!(progress.last(), Some(&(3e6, 3e6)));
    assert_eq!(fs::read(there.join("desk/large.bin")).unwrap(), large);
    agent.get("upload", file); // over itself
    let named = agent.get("upload", json!({ "space": "box", "path": "~/large.bin" }));
    assert_eq!(named["dest"], there.join("Downloads/large.bin").to_str().unwrap());
    let named = agent.get("upload", json!({ "space": "box", "path": "~/large.bin" }));
    assert_eq!(named["dest"], there.join("Downloads/large (1).bin").to_str().unwrap());

    let tree = json!({ "space": "box", "path": "~/tree", "dest": "~/desk/tree" });
    let uploaded = agent.get("upload", tree.clone());
    assert_eq!((&uploaded["files"], &uploaded["directories"]), (&json!(1), &json!(3)));
    assert_eq!(text(there.join("desk/tree/deep/file")), "below");
    assert!(there.join("desk/tree/deep/empty").is_dir());
    let taken = agent.fail("upload", tree);
    assert_eq!((&taken["kind"], &taken["cause"]), (&json!("transfer_failed"), &json!("conflict")));

    let down = json!({ "space": "box", "path": "~/desk/large.bin" });
    let (got, progress) = agent.get_watched("download", down.clone());
    assert_eq!(fields(&got), ["bytes", "dest", "files", "kind", "sha256", "source", "verified"]);
    let into = home.canonicalize().unwrap().join("Downloads/cua-spaces");
    assert_eq!(got["dest"], into.join("large.bin").to_str().unwrap());
    assert_eq!(got["sha256"], sha256);
    assert_eq!(fs::read(into.join("large.bin")).unwrap(), large);
    assert_eq!(progress.last(), Some(&(3e6, 3e6)));
    let again = agent.get("download", down);
    assert_eq!(again["dest"], into.join("large (1).bin").to_str().unwrap());
    let tree = agent.get("download", json!({ "space": "box", "path": "~/desk", "dest": "~/in" }));
    assert_eq!((&tree["kind"], &tree["files"]), (&json!("folder"), &json!(2)));
    assert_eq!(text(home.join("in/desk/tree/deep/file")), "below");
    assert!(home.join("in/desk/tree/deep/empty").is_dir());
    let missing = agent.fail("download", json!({ "space": "box", "path": "~/nothing" }));
    assert_eq!(missing["kind"], "not_found");

    let written = agent.get(
        "space_write",
        json!({ "space": "box", "path": "~/new/folder/note.md", "content": "# Ü\n" }),
    );
    assert_eq!(fields(&written), ["bytes", "path", "sha256", "space", "verified"]);
    assert_eq!(text(there.join("new/folder/note.md")), "# Ü\n");
    // Every byte of it is six in JSON.
    let content = "\u{1}".repeat(1 << 20);
    agent.get("space_write", json!({ "space": "box", "path": "~/long", "content": content }));
    let longer = json!({ "space": "box", "path": "~/long", "content": "x".repeat(15 << 20) });
    let refused = agent.fail("space_write", longer);
    assert_eq!(refused["issues"][0]["limit"], "1048576", "{refused}");
    let outside = json!({ "space": "box", "path": "/etc/motd", "content": "x" });
    assert_eq!(agent.fail("space_write", outside)["kind"], "permission_denied");
}

#[test]
fn what_an_agent_takes_back_leaves_nothing_behind() {
    let gateway = Gateway::with_test_pattern();
    let path = Way::to(gateway.http());
    let mut agent = agent_of(path.address);
    let home = agent.home().to_owned();
    fs::create_dir(home.join("folder")).unwrap();
    fs::write(home.join("folder/small"), "x").unwrap();
    for name in ["large", "folder/large"] {
        fs::write(home.join(name), noise(32 << 20)).unwrap();
    }
    let before = everything(&gateway.home());
    for (tool, arguments) in [
        ("send_file", json!({ "space": "box", "path": "~/large" })),
        ("send_file", json!({ "space": "box", "path": "~/folder" })),
        ("upload", json!({ "space": "box", "path": "~/large", "dest": "~/large" })),
        ("upload", json!({ "space": "box", "path": "~/folder", "dest": "~/folder" })),
    ] {
        path.hold_after(16 << 20);
        agent.take_back(tool, arguments.clone());
        path.let_go();
        // It answers what comes next, and the file is not on its way any more.
        agent.get("stream_status", json!({ "space": "box" }));
        let gone = || everything(&gateway.home()).iter().all(|it| is_folder_of(it, &before));
        wait_until("nothing is left of it", Duration::from_secs(30), gone);
    }
    fs::write(gateway.home().join("there"), noise(32 << 20)).unwrap();
    fs::write(gateway.home().join("small"), "x").unwrap();
    // One that arrives, so that what is kept for all of them is there.
    agent.get("download", json!({ "space": "box", "path": "~/small", "dest": "~/in" }));
    let mine = everything(&home);
    path.hold_back_after(16 << 20);
    agent.take_back("download", json!({ "space": "box", "path": "~/there", "dest": "~/in" }));
    path.let_go();
    agent.get("stream_status", json!({ "space": "box" }));
    let clean = || everything(&home).iter().all(|it| is_folder_of(it, &mine));
    wait_until("nothing is left of it here", Duration::from_secs(30), clean);
}

#[test]
fn a_host_that_leaves_takes_back_what_was_on_its_way() {
    let gateway = Gateway::with_test_pattern();
    let path = Way::to(gateway.http());
    let home = Folder::new("host");
    fs::write(home.path().join("large"), noise(32 << 20)).unwrap();
    let before = everything(&gateway.home());
    for (tool, leave) in [
        ("send_file", Script::leave as fn(&mut Script)),
        ("upload", Script::leave),
        ("send_file", |host| host.signal(Signal::TERM)),
    ] {
        let mut command = Command::new(binary());
        command.arg("mcp").env("HOME", home.path()).env("SPACEPORT_CONFIG_DIR", home.path());
        let mut host = Script::spawn(command);
        let mut ask = |id, method: &str, mut params: Value| {
            params["_meta"] = json!({ "progressToken": id });
            host.tell(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
            host.hear()
        };
        let client = json!({ "name": "host", "version": "0" });
        let hello =
            json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
        ask(1, "initialize", hello);
        let space = json!({ "url": path.address.to_string(), "token": TOKEN, "name": "box" });
        ask(2, "tools/call", json!({ "name": "add_space", "arguments": space }));
        path.hold_after(16 << 20);
        let file = json!({ "space": "box", "path": "~/large", "dest": "~/large" });
        let moving = ask(3, "tools/call", json!({ "name": tool, "arguments": file }));
        assert_eq!(moving["method"], "notifications/progress", "{moving}");
        leave(&mut host);
        path.let_go();
        assert!(host.ended().success());
        let gone = || everything(&gateway.home()).iter().all(|it| is_folder_of(it, &before));
        wait_until("nothing is left of it", Duration::from_secs(30), gone);
    }
}

/// Whether it was there before, or is no more than the folder where files arrive.
fn is_folder_of(entry: &str, before: &[String]) -> bool {
    let empty_folder = Path::new(entry).is_dir() && everything(Path::new(entry)).is_empty();
    before.iter().any(|known| known == entry) || empty_folder
}

/// A way to a server that stops when so many bytes have passed in one direction, until it is let go.
struct Way {
    address: SocketAddr,
    gates: Arc<[Gate; 2]>,
}

#[derive(Default)]
struct Gate {
    /// What may pass before it closes; not closed at all when there is no limit.
    left: Mutex<Option<u64>>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, left: Option<u64>) {
        *self.left.lock().unwrap() = left;
        self.opened.notify_all();
    }

    fn pass(&self, bytes: u64) {
        let mut left = self.left.lock().unwrap();
        if let Some(left) = &mut *left {
            *left = left.saturating_sub(bytes);
        }
        drop(self.opened.wait_while(left, |left| *left == Some(0)).unwrap());
    }
}

impl Way {
    fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gates = Arc::new([Gate::default(), Gate::default()]);
        let shared = Arc::clone(&gates);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(server).unwrap();
                let (up, down) = (Arc::clone(&shared), Arc::clone(&shared));
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || carry(from, to, &up[0]));
                std::thread::spawn(move || carry(server, client, &down[1]));
            }
        });
        Self { address, gates }
    }

    fn hold_after(&self, bytes: u64) {
        self.gates[0].set(Some(bytes));
    }

    fn hold_back_after(&self, bytes: u64) {
        self.gates[1].set(Some(bytes));
    }

    fn let_go(&self) {
        self.gates.iter().for_each(|gate| gate.set(None));
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, gate: &Gate) {
    let mut some = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut some) {
        gate.pass(read as u64);
        if to.write_all(&some[..read]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}
