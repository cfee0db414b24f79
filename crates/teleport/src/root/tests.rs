use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::open::step_by_step;
use super::*;
use crate::scratch::Scratch;

/// Both ways to open a path: whatever holds for one must hold for the other.
fn open(root: &Root, path: &str) -> [Result<OwnedFd, Errno>; 2] {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    [
        open_beneath(root.as_fd(), path.as_bytes(), flags, Mode::empty(), Links::Refused),
        step_by_step(root.as_fd(), path.as_bytes(), flags, Mode::empty()),
    ]
}

#[test]
fn what_is_beneath_is_opened() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path().join("a/b")).unwrap();
    fs::write(scratch.path().join("a/b/file"), "x").unwrap();
    let root = Root::open(scratch.path()).unwrap();
    for opened in open(&root, "a/b/file").into_iter().chain(open(&root, "a/b")) {
        opened.unwrap();
    }
}

#[test]
fn no_link_is_followed_wherever_it_stands() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("dir")).unwrap();
    fs::write(scratch.path().join("dir/x"), "x").unwrap();
    symlink("dir", scratch.path().join("inside")).unwrap();
    symlink("/etc", scratch.path().join("outside")).unwrap();
    symlink("/etc/passwd", scratch.path().join("file")).unwrap();
    let root = Root::open(scratch.path()).unwrap();
    for path in ["inside/x", "outside/passwd", "file", "inside", "outside"] {
        for opened in open(&root, path) {
            assert_eq!(opened.unwrap_err(), Errno::LOOP, "{path}");
        }
    }
}

#[test]
fn nothing_leads_out() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path().join("a")).unwrap();
    let root = Root::open(&scratch.path().join("a")).unwrap();
    for path in ["..", "../a", "b/../../x"] {
        for opened in open(&root, path) {
            assert!(matches!(opened.unwrap_err(), Errno::XDEV | Errno::NOENT), "{path}");
        }
    }
    // A checked path never is absolute; the kernel would refuse one too.
    let flags = OFlags::RDONLY;
    let absolute = open_beneath(root.as_fd(), b"/etc/passwd", flags, Mode::empty(), Links::Refused);
    assert_eq!(absolute.unwrap_err(), Errno::XDEV);
}

#[test]
fn a_pipe_is_not_waited_for() {
    let scratch = Scratch::new();
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, scratch.path().join("pipe"), FileType::Fifo, mode, 0)
        .unwrap();
    let _socket = UnixListener::bind(scratch.path().join("socket")).unwrap();
    let root = Root::open(scratch.path()).unwrap();
    for opened in open(&root, "pipe") {
        opened.unwrap(); // and the test ends
    }
    for opened in open(&root, "socket") {
        assert_eq!(opened.unwrap_err(), Errno::NXIO);
    }
}

#[test]
fn a_tree_is_removed_and_what_it_links_to_stays() {
    let scratch = Scratch::new();
    let kept = scratch.path().join("kept");
    fs::write(&kept, "x").unwrap();
    fs::create_dir_all(scratch.path().join("tree/a/b")).unwrap();
    fs::write(scratch.path().join("tree/a/b/file"), "x").unwrap();
    symlink("../kept", scratch.path().join("tree/link")).unwrap();
    symlink("..", scratch.path().join("tree/a/up")).unwrap();
    let root = Root::open(scratch.path()).unwrap();
    remove_tree(&root, b"tree").unwrap();
    remove_tree(&root, b"tree").unwrap();
    assert_eq!(root.names().unwrap(), [b"kept"]);
}

#[test]
fn a_folder_is_found_as_deep_as_it_goes() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path().join("a/b")).unwrap();
    symlink("a", scratch.path().join("link")).unwrap();
    let root = Root::open(scratch.path()).unwrap();
    let descend = |path: &str| {
        let (folder, depth) = root.descend(&RelativePath::parse(path).unwrap())?;
        Ok::<_, Errno>((folder.location().unwrap(), depth))
    };
    assert_eq!(descend("a/b/c/d").unwrap(), (scratch.path().join("a/b"), 2));
    assert_eq!(descend("x").unwrap(), (scratch.path().to_owned(), 0));
    assert_eq!(descend("link/b").unwrap_err(), Errno::LOOP);
}
