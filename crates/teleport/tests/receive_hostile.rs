//! Receiving while everything is done to stop it: links that appear under its feet, a disk that
//! fills up, a process that is killed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sha2::Digest as _;
use spaceport_teleport::receive::{Begin, Config, Conflict, Declared, Receiver};
use spaceport_types::{Cause, Result};

/// Set in a process that one of these tests starts: what it is to do.
const ROLE: &str = "SPACEPORT_TEST_ROLE";

#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a test has no clock of its own")]
fn open(folder: &Path) -> Receiver {
    let config = Config::new(folder.join("in"), folder.join("state"));
    Receiver::open(config, now(), SystemTime::now()).unwrap()
}

fn sha256(data: &[u8]) -> String {
    sha2::Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends files of one content.
fn send(receiver: &Receiver, begin: Begin, paths: &[String], data: &[u8]) -> Result<()> {
    let sha256 = sha256(data);
    let entries = paths.iter().map(|path| Declared {
        path: path.as_bytes(),
        directory: false,
        size: data.len() as u64,
        sha256: &sha256,
        mode: None,
        modified: None,
    });
    let id = receiver.begin(begin, entries, now())?.id;
    for index in 0..paths.len() as u32 {
        for (number, chunk) in data.chunks(1 << 20).enumerate() {
            receiver.chunk(&id, index, (number as u64) << 20, chunk, now())?;
        }
    }
    receiver.commit(&id).map(drop)
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("spaceport-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("in")).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Runs one test of this file in a process of its own, which plays a role.
fn spawn(test: &str, role: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env("SPACEPORT_TEST_FOLDER", folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Where a process with a role is to play it.
fn role() -> Option<PathBuf> {
    std::env::var_os(ROLE)?;
    std::env::var_os("SPACEPORT_TEST_FOLDER").map(PathBuf::from)
}

/// Swaps `a` and a link to `outside`, as fast as it can, until it is killed.
fn attack(folder: &Path) -> ! {
    let victim = folder.join("in/a");
    let link = folder.join("in/link");
    loop {
        let _ = renameat_with(CWD, &victim, CWD, &link, RenameFlags::EXCHANGE);
    }
}

/// What a careful programmer writes who does not know about handles: looks whether each folder is
/// one, then opens the path.
fn naive(folder: &Path, name: &str) -> std::io::Result<()> {
    let target = folder.join("in/a");
    if !fs::symlink_metadata(&target)?.is_dir() {
        return Err(std::io::Error::other("a link"));
    }
    let canonical = target.canonicalize()?;
    if !canonical.starts_with(folder.canonicalize()?.join("in")) {
        return Err(std::io::Error::other("leads out"));
    }
    fs::write(target.join(name), "x")
}

#[test]
fn no_byte_leaves_while_folders_are_swapped_for_links() {
    if let Some(folder) = role() {
        attack(&folder);
    }
    let folder = Folder::new("race");
    let outside = folder.0.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::create_dir(folder.0.join("in/a")).unwrap();
    symlink(&outside, folder.0.join("in/link")).unwrap();
    let count = || fs::read_dir(&outside).unwrap().count();
    let test = "no_byte_leaves_while_folders_are_swapped_for_links";
    let mut attacker = spawn(test, "attack", &folder.0);

    // First the naive way, until it is caught: that shows that the attack is one.
    let limit = now() + Duration::from_secs(20);
    let mut tries = 0_u32;
    while count() == 0 && now() < limit {
        drop(naive(&folder.0, &format!("naive-{tries}")));
        tries += 1;
    }
    let escaped = count();
    fs::remove_dir_all(&outside).unwrap();
    fs::create_dir(&outside).unwrap();

    // Then ours, over the same folder: as a destination, and to merge with.
    let receiver = open(&folder.0);
    let end = now() + Duration::from_secs(3);
    let (mut sent, mut refused) = (0_u32, 0_u32);
    while now() < end {
        let number = sent + refused;
        let (destination, path) = match number % 2 {
            0 => ("a".to_owned(), format!("f{number}")),
            _ => (String::new(), format!("a/f{number}")),
        };
        let begin = Begin { destination, conflict: Conflict::Overwrite, ..Begin::default() };
        match send(&receiver, begin, &[path], b"x") {
            Ok(()) => sent += 1,
            Err(_) => refused += 1,
        }
    }
    attacker.kill().unwrap();
    attacker.wait().unwrap();
    assert_eq!(count(), 0, "of {sent} sent and {refused} refused");
    assert!(sent > 0 && refused > 0, "{sent} sent, {refused} refused: there was no race");
    assert!(escaped > 0, "the naive way was not caught in {tries} tries");
}

/// The names of a merge in which everything is overwritten or new.
fn merged() -> Vec<String> {
    (0..60).map(|n| format!("tree/{}/{n}", n % 7)).collect()
}

#[test]
fn killed_at_any_moment_it_leaves_the_old_or_the_new() {
    if let Some(folder) = role() {
        let begin = Begin { conflict: Conflict::Overwrite, ..Begin::default() };
        let result = send(&open(&folder), begin, &merged(), b"the new content");
        fs::write(folder.join("result"), format!("{result:?}")).unwrap();
        return;
    }
    let test = "killed_at_any_moment_it_leaves_the_old_or_the_new";
    let (mut old, mut new) = (0, 0);
    // Once to the end, to know how long that takes.
    let mut whole = Duration::from_millis(50);
    for round in 0..25_u32 {
        let folder = Folder::new(&format!("kill-{round}"));
        for path in merged().iter().step_by(2) {
            let path = folder.0.join("in").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "old").unwrap();
        }
        let started = now();
        let mut child = spawn(test, "send", &folder.0);
        if round == 0 {
            assert!(child.wait().unwrap().success());
            assert_eq!(fs::read_to_string(folder.0.join("result")).unwrap(), "Ok(())");
            whole = started.elapsed();
        } else {
            // Somewhere on the way; the moment itself is what is tried.
            std::thread::sleep(whole.mul_f64(0.5 + f64::from(round * 37 % 100) / 180.0));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        drop(open(&folder.0)); // the next start
        let read = |path: &String| fs::read_to_string(folder.0.join("in").join(path)).ok();
        let found: Vec<_> = merged().iter().map(read).collect();
        let is_new = |it: &Option<String>| it.as_deref() == Some("the new content");
        if found.iter().all(is_new) {
            new += 1;
        } else {
            let is_old = |(n, it): (usize, &Option<String>)| match n % 2 {
                0 => it.as_deref() == Some("old"),
                _ => it.is_none(),
            };
            assert!(found.iter().enumerate().all(is_old), "round {round}: {found:?}");
            old += 1;
        }
        let left: Vec<_> =
            fs::read_dir(folder.0.join("in")).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["tree"], "round {round}: staging was left");
        assert_eq!(fs::read_dir(folder.0.join("state/receiving")).unwrap().count(), 0);
    }
    assert!(new > 0, "{old} old, {new} new");
}

#[test]
fn a_full_disk_ends_the_transfer_and_leaves_nothing() {
    if let Some(folder) = role() {
        let receiver = open(&folder);
        let before = fs::read_dir(folder.join("in")).unwrap().count();
        // It fits when it begins, and no more when it comes.
        let data = vec![7; 3 << 20];
        let (sha, path) = (sha256(&data), b"big");
        let size = data.len() as u64;
        let entry =
            Declared { path, directory: false, size, sha256: &sha, mode: None, modified: None };
        receiver.begin(Begin { id: "t".into(), ..Begin::default() }, [entry], now()).unwrap();
        fs::write(folder.join("in/hog"), vec![1; 2 << 20]).unwrap();
        let mut failed = None;
        for (number, chunk) in data.chunks(1 << 20).enumerate() {
            if let Err(error) = receiver.chunk("t", 0, (number as u64) << 20, chunk, now()) {
                failed = Some(error);
                break;
            }
        }
        let error = failed.expect("the disk was full");
        assert_eq!(error.cause(), Some(Cause::DiskFull), "{error}");
        assert_eq!(error.context("entry"), Some("big"));
        assert_eq!(receiver.transfers(), 0);
        fs::remove_file(folder.join("in/hog")).unwrap();
        assert_eq!(fs::read_dir(folder.join("in")).unwrap().count(), before);
        // With room again, it works; a file larger than the disk is refused at once.
        send(&receiver, Begin::default(), &["big".to_owned()], &data).unwrap();
        let huge = Declared { size: 1 << 40, ..entry };
        let error = receiver.begin(Begin::default(), [huge], now()).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::DiskFull));
        // Read-only: nothing can be staged.
        assert!(
            Command::new("mount")
                .args(["-o", "remount,ro"])
                .arg(folder.join("in"))
                .status()
                .unwrap()
                .success()
        );
        let error = send(&receiver, Begin::default(), &["x".to_owned()], b"x").unwrap_err();
        assert_eq!(error.cause(), Some(Cause::Permission), "{error}");
        fs::write(folder.join("passed"), "").unwrap();
        return;
    }
    let folder = Folder::new("full");
    // A file system of 4 MiB that nobody else sees.
    let mount = "mount -t tmpfs -o size=4m none \"$SPACEPORT_TEST_FOLDER/in\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", mount, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_ends_the_transfer_and_leaves_nothing", "--nocapture"])
        .env(ROLE, "fill")
        .env("SPACEPORT_TEST_FOLDER", &folder.0)
        .output()
        .unwrap();
    assert!(
        folder.0.join("passed").exists(),
        "needs root for a mount of its own\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn two_that_race_for_one_name_both_land() {
    let folder = Folder::new("names");
    let receiver = open(&folder.0);
    let go = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let (receiver, go) = (receiver.clone(), Arc::clone(&go));
            std::thread::spawn(move || {
                while !go.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                for _ in 0..10 {
                    send(&receiver, Begin::default(), &["name.txt".to_owned()], b"x").unwrap();
                }
            })
        })
        .collect();
    go.store(true, Ordering::Release);
    for sender in senders {
        sender.join().unwrap();
    }
    assert_eq!(fs::read_dir(folder.0.join("in")).unwrap().count(), 40);
}

#[test]
fn any_names_land_exactly_or_are_refused_by_name() {
    let folder = Folder::new("any");
    let receiver = open(&folder.0);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |limit: u64| {
        // xorshift64: the same names in every run.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % limit
    };
    let (mut landed, mut refused) = (0, 0);
    for round in 0..400 {
        let length = random(40) + 1;
        let path: Vec<u8> = (0..length)
            .map(|_| match random(6) {
                0 => b"/.\\\0~:"[random(6) as usize],
                1 => b'/',
                2 => random(32) as u8,
                _ => random(256) as u8,
            })
            .collect();
        let sha = sha256(b"x");
        let entry = Declared {
            path: &path,
            directory: false,
            size: 1,
            sha256: &sha,
            mode: None,
            modified: None,
        };
        let destination = round.to_string();
        let begin = Begin { destination: destination.clone(), ..Begin::default() };
        match receiver.begin(begin, [entry], now()) {
            Ok(begun) => {
                receiver.chunk(&begun.id, 0, 0, b"x", now()).unwrap();
                receiver.commit(&begun.id).unwrap();
                use std::os::unix::ffi::OsStrExt as _;
                let path = Path::new(std::ffi::OsStr::from_bytes(&path));
                assert_eq!(
                    fs::read(folder.0.join("in").join(&destination).join(path)).unwrap(),
                    b"x"
                );
                landed += 1;
            }
            Err(error) => {
                let cause = error.cause().unwrap();
                assert!(matches!(cause, Cause::PathEscape | Cause::NameUnusable), "{error}");
                assert!(!error.to_string().contains(char::is_control), "{error}");
                assert!(!folder.0.join("in").join(&destination).exists());
                refused += 1;
            }
        }
    }
    assert!(landed > 20 && refused > 20, "{landed} landed, {refused} refused");
}

#[test]
fn a_sparse_file_of_more_than_four_gibibytes_lands_sparse() {
    use std::os::unix::fs::MetadataExt as _;
    let folder = Folder::new("sparse");
    let receiver = open(&folder.0);
    let size = (4_u64 << 30) + 1;
    let zeros = vec![0; 4 << 20];
    let mut hash = sha2::Sha256::new();
    for _ in 0..1024 {
        hash.update(&zeros);
    }
    hash.update(b"x");
    let sha: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let entry = Declared {
        path: b"sparse",
        directory: false,
        size,
        sha256: &sha,
        mode: None,
        modified: None,
    };
    let id = receiver.begin(Begin::default(), [entry], now()).unwrap().id;
    for number in 0..1024 {
        receiver.chunk(&id, 0, number * (4 << 20), &zeros, now()).unwrap();
    }
    receiver.chunk(&id, 0, size - 1, b"x", now()).unwrap();
    receiver.commit(&id).unwrap();
    let metadata = fs::metadata(folder.0.join("in/sparse")).unwrap();
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() < 1024, "{} blocks", metadata.blocks());
}
