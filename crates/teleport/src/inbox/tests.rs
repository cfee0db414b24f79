use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use sha2::{Digest as _, Sha256};

use super::*;
use crate::manifest::{Manifest, Scope, Selection};
use crate::payload::{Entry, Head, ItemPath, Payload, PayloadWriter, RecordKind};
use crate::provider::{Imported, Receiver};
use crate::seal::Sealer;

/// An app whose profile is one folder of files.
struct Notes {
    /// Whether an import stops after its first file.
    fails: Arc<AtomicBool>,
}

impl Notes {
    fn profile(machine: &Machine) -> PathBuf {
        machine.home.join("notes")
    }
}

impl Provider for Notes {
    fn app(&self) -> App {
        App::ClaudeCode
    }

    fn receiver(&self, _: &Machine) -> Receiver {
        unreachable!("an inbox does not ask")
    }

    fn manifest(&self, _: &Machine, _: Scope) -> Result<Manifest> {
        unreachable!("an inbox does not ask")
    }

    fn capture(
        &self,
        _: &Machine,
        _: &Manifest,
        _: &Selection,
        _: &mut PayloadWriter,
    ) -> Result<()> {
        unreachable!("an inbox does not ask")
    }

    fn import(
        &self,
        machine: &Machine,
        payload: &Payload,
        _: &ImportOptions,
        journal: &mut dyn Journal,
    ) -> Result<Imported> {
        let profile = Self::profile(machine);
        let mut imported = Vec::new();
        for (index, record) in payload.records().iter().enumerate() {
            if index > 0 && self.fails.load(Ordering::Relaxed) {
                return Err(Error::because(Cause::AppRunning, "the app was started meanwhile"));
            }
            let path = profile.join(record.path.as_str());
            journal.record(vec![Change::File { path: path.clone(), sha256: None }])?;
            let mut text = Vec::new();
            payload.open(index)?.read_to_end(&mut text)?;
            fs::write(path, text)?;
            imported.push(record.item.clone());
        }
        Ok(Imported {
            profile,
            imported,
            skipped: Vec::new(),
            readable: Vec::new(),
            launched: false,
        })
    }

    fn wipe(&self, _: &Machine, changes: &[Change], _: bool) -> Result<Undone> {
        let mut undone = Undone::default();
        for change in changes {
            let Change::File { path, .. } = change else { panic!("{change:?}") };
            if fs::remove_file(path).is_ok() {
                undone.removed_paths.push(path.clone());
            }
        }
        Ok(undone)
    }
}

struct Space {
    folder: tempfile::TempDir,
    fails: Arc<AtomicBool>,
    inbox: Inbox,
}

impl Space {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("home/notes")).unwrap();
        fs::write(folder.path().join("home/notes/mine"), "was here before").unwrap();
        let fails = Arc::new(AtomicBool::new(false));
        let inbox = open(folder.path(), &fails);
        Self { folder, fails, inbox }
    }

    fn restart(self) -> Self {
        let Self { folder, fails, inbox } = self;
        drop(inbox);
        let inbox = open(folder.path(), &fails);
        Self { folder, fails, inbox }
    }

    /// Everything in the home, by name.
    fn home(&self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.folder.path().join("home/notes")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(path).unwrap())
            })
            .collect()
    }

    fn send(&self, id: &str, bytes: &[u8]) -> Result<Receipt> {
        self.chunks(id, bytes)?;
        self.commit(id, bytes)
    }

    fn chunks(&self, id: &str, bytes: &[u8]) -> Result<()> {
        let mut offset = 0;
        for data in bytes.chunks(1000) {
            self.inbox.receive(&chunk(id, offset, data))?;
            offset += data.len() as u64;
        }
        Ok(())
    }

    fn commit(&self, id: &str, bytes: &[u8]) -> Result<Receipt> {
        self.inbox.commit(&commit(id, bytes), at(1))
    }

    /// Whether nothing of a bundle is left but what is remembered of imports.
    fn is_clean(&self) -> bool {
        let state = self.folder.path().join("state");
        let empty = |name: &str| fs::read_dir(state.join(name)).map_or(true, |it| it.count() == 0);
        empty("inbox") && empty("staging")
    }
}

fn open(folder: &Path, fails: &Arc<AtomicBool>) -> Inbox {
    let home = folder.join("home");
    let machine = Machine::from_environment([("HOME".into(), home.into())]).unwrap();
    let notes: &'static Notes = Box::leak(Box::new(Notes { fails: Arc::clone(fails) }));
    Inbox::open(&folder.join("state"), "box", machine, vec![notes], at(0)).unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds)
}

fn chunk<'a>(id: &'a str, offset: u64, data: &'a [u8]) -> Chunk<'a> {
    Chunk { import_id: id, app: App::ClaudeCode, offset, data }
}

fn commit<'a>(id: &'a str, bytes: &[u8]) -> Commit<'a> {
    let sha256 = Digest(Sha256::digest(bytes).into());
    Commit { import_id: id, app: App::ClaudeCode, sha256, how: How::default() }
}

const SECRET: &str = "correct horse battery staple";

/// A sealed bundle with two small files.
fn bundle(space: &Space, id: &str) -> Vec<u8> {
    bundle_of(space, id, App::ClaudeCode, &[("one", SECRET), ("two", "2")])
}

fn bundle_of(space: &Space, id: &str, app: App, files: &[(&str, &str)]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let head = Head {
        app,
        scope: Scope::Full,
        profile: "default".to_owned(),
        app_version: None,
        home: "/home/a".into(),
    };
    let mut writer = PayloadWriter::create(folder.path(), head).unwrap();
    for &(name, text) in files {
        let entry = Entry {
            item: format!("the {name}"),
            kind: RecordKind::File,
            path: ItemPath::new(name).unwrap(),
            is_executable: false,
            modified_ns: 0,
            is_secret: true,
        };
        writer.add(entry, &mut text.as_bytes()).unwrap();
    }
    let purpose = Purpose { import_id: id, app: "claude-code" };
    let sealer = Sealer::new(Vec::new(), space.inbox.public_key(), &purpose).unwrap();
    let (sealer, _) =
        package::pack(&writer.finish(), Digest([7; 32]), sealer, &mut |_| Ok(())).unwrap();
    sealer.finish().unwrap()
}

#[test]
fn what_arrives_is_put_in_place_and_taken_back() {
    let space = Space::new();
    let before = space.home();
    let bytes = bundle(&space, "imp-1");
    let receipt = space.send("imp-1", &bytes).unwrap();
    assert_eq!(receipt.imported, ["the one", "the two"]);
    assert_eq!(receipt.arrived[0].bytes, SECRET.len() as u64);
    assert_eq!(space.home().len(), 3);
    assert!(space.is_clean());
    // The answer may have been lost: the same again is the same answer.
    assert_eq!(space.commit("imp-1", &bytes).unwrap(), receipt);
    assert!(space.inbox.receive(&chunk("imp-1", 0, &bytes)).unwrap().duplicate);
    assert_eq!(crate::receipt::receipts(&space.folder.path().join("state")).unwrap(), [receipt]);

    let wiped = space.inbox.wipe("imp-1", false, at(2)).unwrap();
    assert_eq!(wiped.undone.removed_paths.len(), 2);
    assert_eq!(space.home(), before);
    assert_eq!(space.inbox.wipe("imp-1", false, at(3)).unwrap_err().kind(), Kind::NotFound);
    // A name is used once, so that nobody can send again what was taken back.
    assert_eq!(space.send("imp-1", &bytes).unwrap_err().kind(), Kind::PreconditionFailed);
    assert_eq!(space.home(), before);
}

// The seal, the bundle and everything between: whatever is changed, nothing is changed here.
#[test]
fn every_flipped_byte_is_refused_and_changes_nothing() {
    let space = Space::new();
    let before = space.home();
    let bytes = bundle(&space, "imp-1");
    for index in (0..bytes.len()).step_by(89).chain(0..64) {
        let mut flipped = bytes.clone();
        flipped[index] ^= 1;
        let error = space.send("imp-1", &flipped).expect_err(&format!("byte {index} passed"));
        assert!(
            matches!(error.kind(), Kind::TransferFailed | Kind::TeleportRefused),
            "byte {index}: {error}"
        );
        assert_eq!(space.home(), before, "byte {index}");
        assert!(space.is_clean(), "byte {index}");
    }
    space.send("imp-1", &bytes).unwrap();
}

#[test]
fn a_cut_swapped_or_foreign_bundle_is_refused() {
    let space = Space::new();
    let (before, bytes) = (space.home(), bundle(&space, "imp-1"));
    let refused = |id: &str, bytes: &[u8]| {
        let error = space.send(id, bytes).unwrap_err();
        assert_eq!(space.home(), before);
        assert!(space.is_clean());
        error.cause()
    };
    for end in [1, 47, 48, 49, bytes.len() / 2, bytes.len() - 1] {
        assert_eq!(refused("imp-1", &bytes[..end]), Some(Cause::CorruptBundle), "cut at {end}");
    }
    let more = [&bytes[..], b"x"].concat();
    assert_eq!(refused("imp-1", &more), Some(Cause::CorruptBundle));
    // Sealed for another import, or to another Space.
    assert_eq!(refused("imp-2", &bytes), Some(Cause::CorruptBundle));
    assert_eq!(refused("imp-1", &bundle(&Space::new(), "imp-1")), Some(Cause::KeyUnavailable));
    let other = bundle_of(&space, "imp-1", App::Firefox, &[("one", "1")]);
    assert_eq!(refused("imp-1", &other), Some(Cause::CorruptBundle));
    // Never sealed at all.
    assert_eq!(
        refused("imp-1", b"SPBUNDLE and so on, in the clear and long enough"),
        Some(Cause::CorruptBundle)
    );
}

#[test]
fn the_commit_holds_the_sender_to_its_digest() {
    let space = Space::new();
    let bytes = bundle(&space, "imp-1");
    space.chunks("imp-1", &bytes).unwrap();
    let wrong = Commit { sha256: Digest([1; 32]), ..commit("imp-1", &bytes) };
    let error = space.inbox.commit(&wrong, at(1)).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::DigestMismatch));
    assert_eq!(error.context("expected_sha256"), Some(&*"01".repeat(32)));
    assert!(error.context("actual_sha256").is_some());
    assert_eq!(space.commit("imp-1", &bytes).unwrap_err().kind(), Kind::NotFound);
    assert_eq!(space.commit("never", &bytes).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn offsets_follow_the_contract() {
    let space = Space::new();
    let receive = |offset, data: &[u8]| space.inbox.receive(&chunk("imp-1", offset, data));
    assert_eq!(receive(0, b"abcd").unwrap(), Progress { received: 4, duplicate: false });
    assert_eq!(receive(0, b"abcd").unwrap(), Progress { received: 4, duplicate: true });
    assert_eq!(receive(1, b"bc").unwrap(), Progress { received: 4, duplicate: true });
    assert_eq!(receive(0, b"").unwrap(), Progress { received: 4, duplicate: true });
    for (offset, data) in [(2, &b"cdef"[..]), (100 << 20, b"x"), (u64::MAX, b"x")] {
        let error = receive(offset, data).unwrap_err();
        assert_eq!(error.kind(), Kind::PreconditionFailed, "{offset}");
        assert_eq!(error.context("expected_offset"), Some("4"), "{offset}");
    }
    let large = vec![0; MAX_CHUNK + 1];
    assert_eq!(receive(4, &large).unwrap_err().kind(), Kind::InvalidArgument);
    for id in ["", "../x", "a/b", "a b", &"x".repeat(65)] {
        let error = space.inbox.receive(&chunk(id, 0, b"x")).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument, "{id}");
    }
}

#[test]
fn chunks_that_overtake_each_other_are_put_in_order() {
    let space = Space::new();
    let bytes = bundle(&space, "imp-1");
    let parts: Vec<_> = bytes.chunks(64).enumerate().collect();
    space.inbox.receive(&chunk("imp-1", 0, b"")).unwrap();
    std::thread::scope(|scope| {
        for group in parts.chunks(4) {
            let handles: Vec<_> = group
                .iter()
                .rev()
                .map(|&(number, data)| {
                    let inbox = &space.inbox;
                    scope.spawn(move || inbox.receive(&chunk("imp-1", 64 * number as u64, data)))
                })
                .collect();
            for handle in handles {
                handle.join().unwrap().unwrap();
            }
        }
    });
    space.commit("imp-1", &bytes).unwrap();
}

#[test]
fn a_transfer_goes_on_after_a_restart() {
    let space = Space::new();
    let bytes = bundle(&space, "imp-1");
    let (first, second) = bytes.split_at(bytes.len() / 2);
    space.chunks("imp-1", first).unwrap();
    let space = space.restart();
    let at = space.inbox.receive(&chunk("imp-1", 0, b"")).unwrap();
    assert_eq!(at.received, first.len() as u64);
    space.inbox.receive(&chunk("imp-1", at.received, second)).unwrap();
    space.commit("imp-1", &bytes).unwrap();
}

#[test]
fn an_import_that_fails_leaves_nothing_and_can_be_tried_again() {
    let space = Space::new();
    let (before, bytes) = (space.home(), bundle(&space, "imp-1"));
    space.fails.store(true, Ordering::Relaxed);
    assert_eq!(space.send("imp-1", &bytes).unwrap_err().cause(), Some(Cause::AppRunning));
    assert_eq!(space.home(), before);
    space.fails.store(false, Ordering::Relaxed);
    // The bytes are still there; the app was only running.
    space.commit("imp-1", &bytes).unwrap();
}

#[test]
fn what_a_crash_left_of_an_import_is_gone_after_the_next_start() {
    let space = Space::new();
    let before = space.home();
    let bytes = bundle(&space, "imp-1");
    let stray = space.folder.path().join("home/notes/one");
    // As a process leaves it that dies between two files of an import.
    let import = Import {
        id: "imp-1".to_owned(),
        app: App::ClaudeCode,
        state: State::Importing,
        sha256: Digest(Sha256::digest(&bytes).into()),
        how: How::default(),
        changed_ms: 0,
        receipt: None,
    };
    space.inbox.keep(&import).unwrap();
    let mut journal = FileJournal::create(space.inbox.journal_path("imp-1")).unwrap();
    journal.record(vec![Change::File { path: stray.clone(), sha256: None }]).unwrap();
    journal.file.write_all(b"{\"change\":\"fi").unwrap();
    fs::write(&stray, "half").unwrap();
    let staging = space.folder.path().join("state/staging/tp-dead");
    fs::create_dir_all(&staging).unwrap();
    fs::write(staging.join("plain"), SECRET).unwrap();

    let space = space.restart();
    assert_eq!(space.home(), before);
    assert!(space.is_clean());
    space.send("imp-1", &bytes).unwrap();
}

#[test]
fn an_expired_import_is_taken_back_also_after_a_stop() {
    let space = Space::new();
    let (before, bytes) = (space.home(), bundle(&space, "imp-1"));
    space.chunks("imp-1", &bytes).unwrap();
    let how = How { expires_at_ms: millis(at(60)), ..How::default() };
    space.inbox.commit(&Commit { how, ..commit("imp-1", &bytes) }, at(1)).unwrap();
    space.inbox.sweep(at(59));
    assert_ne!(space.home(), before);
    space.inbox.sweep(at(60));
    assert_eq!(space.home(), before);
    let past = Commit { how, ..commit("imp-2", &bytes) };
    assert_eq!(space.inbox.commit(&past, at(61)).unwrap_err().kind(), Kind::InvalidArgument);
}

#[test]
fn one_profile_takes_one_import_at_a_time() {
    let space = Space::new();
    let (before, bytes) = (space.home(), bundle(&space, "imp-1"));
    space.chunks("imp-1", &bytes).unwrap();
    let held = space.inbox.hold(App::ClaudeCode).unwrap().unwrap();
    assert_eq!(space.commit("imp-1", &bytes).unwrap_err().cause(), Some(Cause::Conflict));
    assert_eq!(space.home(), before);
    drop(held);
    space.commit("imp-1", &bytes).unwrap();
}

#[test]
fn what_was_given_up_is_forgotten_and_does_not_pile_up() {
    let space = Space::new();
    for number in 0..16 {
        space.inbox.receive(&chunk(&format!("imp-{number}"), 0, b"x")).unwrap();
    }
    let refused = space.inbox.receive(&chunk("imp-16", 0, b"x")).unwrap_err();
    assert_eq!(refused.kind(), Kind::LimitExceeded);
    let wiped = space.inbox.wipe_all(false, at(1)).unwrap();
    assert_eq!(wiped.import_ids.len(), 16);
    assert!(space.is_clean());
}

#[test]
fn nothing_that_is_kept_holds_a_secret() {
    let space = Space::new();
    let bytes = bundle(&space, "imp-1");
    space.chunks("imp-1", &bytes).unwrap();
    let state = space.folder.path().join("state");
    assert!(!holds(&state, SECRET), "while it is on its way");
    space.commit("imp-1", &bytes).unwrap();
    assert!(!holds(&state, SECRET), "when it has arrived");
    assert!(holds(&space.folder.path().join("home"), SECRET), "the search finds what is there");
}

fn holds(folder: &Path, text: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return holds(&path, text);
        }
        let content = fs::read(path).unwrap();
        content.windows(text.len()).any(|window| window == text.as_bytes())
    })
}
