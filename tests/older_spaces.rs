//! Spaces that cannot seal, or not yet everything: files go there as the public contract has it, whole.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;
use spaceport_tests::{
    Agent, Gateway, Here, Lacks, Older, Start, TOKEN, downloads, names, noise, tree,
};

const ALL: [Lacks; 3] = [Lacks::Key, Lacks::Line, Lacks::Anywhere];

#[test]
fn files_and_folders_are_sent_and_downloaded() {
    for lacks in ALL {
        let (gateway, here) = (Gateway::start(Start::default()), Here::new());
        let older = Older::before(gateway.http(), lacks);
        let top = here.files().join("tree");
        fs::create_dir_all(top.join("deep/empty")).unwrap();
        fs::write(top.join("deep/large"), noise(5_000_001, 1)).unwrap();
        fs::write(top.join("empty"), "").unwrap();
        fs::write(top.join("run"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(top.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
        let sent = here.send(older.address(), &["tree"]).sent();
        assert_eq!((&sent["files"], &sent["names"][0]), (&json!(3), &json!("tree")), "{lacks:?}");
        assert_eq!(tree(&downloads(&gateway).join("tree")), tree(&top), "{lacks:?}");
        let direct = here.send(gateway.http(), &["tree"]).sent();
        assert_eq!(sent["sha256"], direct["sha256"], "the same whole, whichever way it went");

        let from = format!("http://{}:~/Downloads/tree", older.address());
        let fetched = here.download(&[&from, "in"]).sent();
        assert_eq!(fetched["files"], 3);
        let contents = |folder| tree(folder).into_iter().map(|(path, it)| (path, it.3));
        let arrived = here.files().join("in/tree");
        assert!(contents(&arrived).eq(contents(&top)), "{lacks:?}");
        assert_eq!(names(&here.files().join("in")), ["tree"]);
        assert_eq!(names(&downloads(&gateway)), ["tree", "tree (1)"]);
    }
}

#[test]
fn an_agents_tools_do_the_same_there() {
    for lacks in ALL {
        let gateway = Gateway::start(Start::default());
        let older = Older::before(gateway.http(), lacks);
        let mut agent = Agent::new("initialize");
        let url = older.address().to_string();
        agent.get("add_space", json!({ "url": url, "token": TOKEN, "name": "box" }));
        let (home, there) = (agent.home().to_owned(), gateway.home());
        fs::create_dir_all(home.join("tree/deep/empty")).unwrap();
        fs::write(home.join("tree/file"), noise(3_000_000, 2)).unwrap();
        let same = |path: &str| fs::read(there.join(path)).unwrap() == noise(3_000_000, 2);

        let file = json!({ "space": "box", "path": "~/tree/file", "dest": "~/desk/file" });
        let up = agent.get("upload", file.clone());
        assert_eq!(up["dest"], there.canonicalize().unwrap().join("desk/file").to_str().unwrap());
        assert!(same("desk/file"), "{lacks:?}");
        fs::write(there.join("desk/file"), "old").unwrap();
        assert_eq!(agent.get("upload", file)["sha256"], up["sha256"], "over what is there");
        assert!(same("desk/file"), "{lacks:?}");
        let tree = json!({ "space": "box", "path": "~/tree", "dest": "~/desk/tree" });
        let up = agent.get("upload", tree.clone());
        assert_eq!((&up["files"], &up["directories"]), (&json!(1), &json!(3)), "{lacks:?}");
        assert!(same("desk/tree/file") && there.join("desk/tree/deep/empty").is_dir());
        assert_eq!(agent.fail("upload", tree)["cause"], "conflict", "{lacks:?}");
        for name in ["file", "file (1)"] {
            let up = agent.get("upload", json!({ "space": "box", "path": "~/tree/file" }));
            assert!(up["dest"].as_str().unwrap().ends_with(&format!("Downloads/{name}")), "{up}");
        }

        // What replaces a script can still be run.
        fs::write(there.join("script"), "old").unwrap();
        fs::set_permissions(there.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
        for path in ["script", "new/note"] {
            let text = json!({ "space": "box", "path": path, "content": "text" });
            assert_eq!(agent.get("space_write", text)["bytes"], 4, "{lacks:?}");
            assert_eq!(fs::read_to_string(there.join(path)).unwrap(), "text");
        }
        let mode = |path: &str| there.join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("script"), mode("new/note")), (0o755, 0o644), "{lacks:?}");

        let down = json!({ "space": "box", "path": "~/desk", "dest": "~/in" });
        assert_eq!(agent.get("download", down)["files"], 2, "{lacks:?}");
        assert_eq!(fs::read(home.join("in/desk/file")).unwrap(), noise(3_000_000, 2));
    }
}

#[test]
fn what_cannot_be_done_without_a_line_is_refused_by_name() {
    let (gateway, here) = (Gateway::start(Start::default()), Here::new());
    let older = Older::before(gateway.http(), Lacks::Line);
    fs::write(gateway.home().join("x"), "x").unwrap();
    let from = format!("http://{}:x", older.address());
    let refused = here.download(&[&from, "in", "--conflict", "skip"]).value();
    assert_eq!(refused["error"]["kind"], "capability_missing", "{refused}");
    assert_eq!(refused["error"]["context"]["feature"], "files_stream");
    // Names that are not text are nothing that the contract can say.
    use std::os::unix::ffi::OsStrExt as _;
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    fs::write(here.files().join(odd), "x").unwrap();
    here.send(older.address(), &["."]).failed(7, "name_unusable");
    assert!(names(&downloads(&gateway)).is_empty());
}
