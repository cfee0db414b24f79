use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::scratch::Scratch;

fn files(scratch: &Scratch) -> Files {
    let root = scratch.path().join("home");
    fs::create_dir_all(root.join("dir/inner")).unwrap();
    fs::write(root.join("dir/inner/file"), "0123456789").unwrap();
    fs::write(root.join(".hidden"), "").unwrap();
    fs::write(scratch.path().join("secret"), "secret").unwrap();
    symlink("dir", root.join("inside")).unwrap();
    symlink("../secret", root.join("outside")).unwrap();
    symlink("/etc/passwd", root.join("absolute")).unwrap();
    Files::new(&root, &root)
}

fn kind(files: &Files, path: &str) -> Result<EntryKind, Kind> {
    let stat = files.resolve(path).and_then(|path| files.stat(&path, true));
    stat.map(|entry| entry.kind).map_err(|error| error.kind())
}

#[test]
fn paths_are_taken_as_people_write_them_and_end_at_the_root() {
    let scratch = Scratch::new();
    let files = files(&scratch);
    let root = files.root().display().to_string();
    for path in ["dir/inner/file", "~/dir/inner/file", "./dir//inner/file", "inside/inner/file"] {
        assert_eq!(kind(&files, path), Ok(EntryKind::File), "{path}");
        assert_eq!(kind(&files, &format!("{root}/dir/inner/file")), Ok(EntryKind::File));
    }
    for path in ["", "~", ".", &root, &format!("{root}/")] {
        assert_eq!(kind(&files, path), Ok(EntryKind::Folder), "{path}");
    }
    for path in ["/etc/passwd", "../secret", "dir/../../secret", "/", "outside", "absolute"] {
        assert_eq!(kind(&files, path), Err(Kind::PermissionDenied), "{path}");
    }
    assert_eq!(kind(&files, "nothing"), Err(Kind::NotFound));
    assert_eq!(kind(&files, "dir/inner/file/x"), Err(Kind::PreconditionFailed));
    let link = files.stat(&files.resolve("outside").unwrap(), false).unwrap();
    assert_eq!((link.kind, link.link.as_deref()), (EntryKind::Link, Some(&b"../secret"[..])));
}

#[test]
fn pages_of_a_list_make_up_the_whole() {
    let scratch = Scratch::new();
    let files = files(&scratch);
    for n in 0..5 {
        fs::create_dir(files.root().join(format!("n{n}"))).unwrap();
        fs::write(files.root().join(format!("n{n}/x")), "").unwrap();
    }
    let all =
        |page| {
            let (mut paths, mut token) = (Vec::new(), String::new());
            loop {
                let list = List { depth: 64, hidden: false, page };
                let part = files.list(&None, list, &token).unwrap();
                assert!(part.entries.len() <= page as usize);
                paths.extend(part.entries.into_iter().map(|entry| {
                    entry.path.strip_prefix(files.root()).unwrap().display().to_string()
                }));
                match part.next {
                    Some(next) => token = next,
                    None => return paths,
                }
            }
        };
    let whole = all(1000);
    assert_eq!(whole[..4], ["absolute", "dir", "dir/inner", "dir/inner/file"]);
    assert_eq!(whole.len(), 16);
    for page in 1..17 {
        assert_eq!(all(page), whole, "{page} a page");
    }
    let flat = files.list(&None, List { hidden: true, ..List::default() }, "").unwrap();
    assert_eq!(flat.entries[0].name, b".hidden");
    assert_eq!(flat.entries.len(), 10);
    for token in ["x", "2e2e2f", "0"] {
        let error = files.list(&None, List::default(), token).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument, "{token}");
    }
}

#[test]
fn a_file_is_read_whole_or_in_part() {
    let scratch = Scratch::new();
    let files = files(&scratch);
    let path = files.resolve("dir/inner/file").unwrap();
    let read = |offset, length| {
        let mut reading = files.read(&path, offset, length).unwrap();
        let mut data = Vec::new();
        while let Some((at, chunk)) = reading.next(3).unwrap() {
            assert_eq!(at, offset + data.len() as u64);
            data.extend(chunk);
        }
        assert_eq!(reading.finish().0, data.len() as u64);
        String::from_utf8(data).unwrap()
    };
    assert_eq!(read(0, 0), "0123456789");
    assert_eq!(read(4, 3), "456");
    assert_eq!(read(20, 0), "");
    assert_eq!(files.read(&None, 0, 0).unwrap_err().kind(), Kind::PreconditionFailed);
    let outside = files.resolve("outside").unwrap();
    assert_eq!(files.read(&outside, 0, 0).unwrap_err().kind(), Kind::PermissionDenied);
}

#[test]
fn what_changes_something_follows_no_link() {
    let scratch = Scratch::new();
    let files = files(&scratch);
    let at = |path: &str| files.resolve_entry(path).unwrap();
    for path in ["inside/new", "outside/new"] {
        let error = files.make_folder(&at(path), true, None).unwrap_err();
        assert_eq!(error.kind(), Kind::PermissionDenied, "{path}");
        assert!(files.rename(&at("dir/inner/file"), &at(path), true, false).is_err());
    }
    assert!(files.make_folder(&at("a/b/c"), true, Some(0o700)).unwrap());
    assert!(!files.make_folder(&at("a/b/c"), false, None).unwrap());
    assert_eq!(files.make_folder(&at("x/y"), false, None).unwrap_err().kind(), Kind::NotFound);
    let taken = files.rename(&at("dir"), &at("a"), false, false).unwrap_err();
    assert_eq!(taken.cause(), Some(Cause::Conflict));
    files.rename(&at("dir"), &at("a/b/moved"), false, false).unwrap();
    let full = files.remove(&at("a"), false).unwrap_err();
    assert_eq!(full.kind(), Kind::PreconditionFailed);
    assert!(files.remove(&at("a"), true).unwrap());
    assert!(files.remove(&at("outside"), true).unwrap());
    assert!(!files.remove(&at("a"), true).unwrap());
    assert_eq!(fs::read_to_string(scratch.path().join("secret")).unwrap(), "secret");
    assert!(files.resolve_entry("~").is_err(), "the root stays");
}
