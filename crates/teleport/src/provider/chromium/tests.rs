use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rusqlite::Connection;
use sha2::Digest as _;

use super::*;
use crate::digest::Digest;
use crate::manifest::Choice;
use crate::payload::{Entry, Head, ItemPath, RecordKind};
use crate::provider::cookies::{Cookie, Extra, SameSite};
use crate::provider::{Into, Readable};
use crate::transcode::secret::Secret;
use spaceport_types::Cause;

const CHROMIUM: Chromium = Chromium(App::Chromium);

/// A home in which something called `chromium` is installed, that is never run here.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let bin = home.path("bin");
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("chromium"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(bin.join("chromium"), Permissions::from_mode(0o700)).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn profile(&self) -> PathBuf {
        self.path(".config/chromium/Default")
    }

    fn machine(&self) -> Machine {
        let variables = [
            ("HOME", self.path("")),
            ("XDG_RUNTIME_DIR", self.path("run")),
            ("PATH", self.path("bin")),
        ];
        Machine::from_environment(variables.map(|(name, path)| (name.into(), path.into()))).unwrap()
    }

    /// A profile that holds these cookies.
    fn with_cookies(cookies: &[Cookie]) -> Self {
        let home = Self::new();
        DirBuilder::new().recursive(true).mode(0o700).create(home.profile()).unwrap();
        let path = home.profile().join("Cookies");
        let mut database = cookies::Database::open(&path).unwrap();
        database.merge(cookies, &Keys::new(None), &path, &mut Vec::new()).unwrap();
        home
    }

    fn cookies(&self) -> Vec<Cookie> {
        let path = self.profile().join("Cookies");
        let database = cookies::Database::open(&path).unwrap();
        database.read(&Keys::new(None), &|_| true).unwrap().0
    }

    fn sql(&self, sql: &str) {
        Connection::open(self.profile().join("Cookies")).unwrap().execute_batch(sql).unwrap();
    }

    /// Every file, with what it holds.
    fn state(&self) -> Vec<(String, Digest)> {
        let files = snapshot::tree(&self.path(".config"), &|_| true).unwrap_or_default();
        files
            .into_iter()
            .map(|file| {
                (file.name, Digest(sha2::Sha256::digest(fs::read(file.path).unwrap()).into()))
            })
            .collect()
    }
}

fn cookie(host: &str, value: &str) -> Cookie {
    Cookie {
        host: host.to_owned(),
        path: "/".to_owned(),
        name: "sid".to_owned(),
        value: Secret::new(value.as_bytes().to_vec()),
        partition: String::new(),
        expires_us: Some(2_000_000_000_000_000),
        created_us: 1_700_000_000_000_000,
        accessed_us: 1_700_000_000_000_000,
        updated_us: 1_700_000_000_000_000,
        is_secure: true,
        is_http_only: true,
        same_site: SameSite::Lax,
        extra: Extra::Chromium {
            has_expires: true,
            priority: 1,
            source_scheme: 2,
            source_port: 443,
            source_type: 1,
            has_cross_site_ancestor: false,
        },
    }
}

fn head(app: App) -> Head {
    Head {
        app,
        scope: Scope::Session,
        profile: "Default".to_owned(),
        app_version: None,
        home: PathBuf::from("/home/a"),
    }
}

fn capture(home: &Home, sites: Option<&[&str]>) -> Result<Payload> {
    let machine = home.machine();
    let manifest = CHROMIUM.manifest(&machine, Scope::Session)?;
    let choice = Choice {
        include: Some(vec!["Cookies".to_owned()]),
        sites: sites.map(|sites| sites.iter().map(|site| (*site).to_owned()).collect()),
        acknowledge_sensitive: true,
    };
    let selection = manifest.select(&choice)?;
    let mut payload = PayloadWriter::create(&machine.runtime, head(App::Chromium))?;
    CHROMIUM.capture(&machine, &manifest, &selection, &mut payload)?;
    Ok(payload.finish())
}

fn import(
    home: &Home,
    payload: &Payload,
    into: Into,
    journal: &mut Vec<Change>,
) -> Result<Imported> {
    let options = ImportOptions { into, ..ImportOptions::default() };
    CHROMIUM.import(&home.machine(), payload, &options, journal)
}

#[test]
fn cookies_of_chosen_sites_arrive_in_a_home_that_has_no_profile_and_are_wiped_without_a_trace() {
    let from = Home::with_cookies(&[cookie("a.example", "one"), cookie(".b.example", "two")]);
    let to = Home::new();
    let payload = capture(&from, Some(&["b.example"])).unwrap();
    let mut journal = Vec::new();
    let imported = import(&to, &payload, Into::Existing, &mut journal).unwrap();
    assert_eq!(to.cookies(), [cookie(".b.example", "two")]);
    assert_eq!(imported.readable, [Readable { host: "b.example".to_owned(), cookies: 1 }]);
    assert_eq!(imported.profile, to.profile());
    let mode =
        |name: &str| to.profile().join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("Cookies")), (0o700, 0o600));
    for _ in 0..2 {
        CHROMIUM.wipe(&to.machine(), &journal, false).unwrap();
        assert!(!to.path(".config").exists());
    }
}

#[test]
fn merged_cookies_leave_others_alone_and_wiping_brings_back_what_they_replaced() {
    let from = Home::with_cookies(&[cookie("a.example", "new"), cookie("b.example", "new")]);
    let to = Home::with_cookies(&[cookie("a.example", "old"), cookie("c.example", "own")]);
    let payload = capture(&from, None).unwrap();
    let mut journal = Vec::new();
    import(&to, &payload, Into::Existing, &mut journal).unwrap();
    let values = |home: &Home| -> Vec<(String, Vec<u8>)> {
        let mut values: Vec<_> =
            home.cookies().into_iter().map(|c| (c.host, c.value.expose().to_vec())).collect();
        values.sort();
        values
    };
    let expected = |list: &[(&str, &str)]| -> Vec<(String, Vec<u8>)> {
        list.iter().map(|(host, value)| ((*host).to_owned(), value.as_bytes().to_vec())).collect()
    };
    assert_eq!(
        values(&to),
        expected(&[("a.example", "new"), ("b.example", "new"), ("c.example", "own")])
    );
    // The site refreshed the cookie since: it goes all the same.
    to.sql("UPDATE cookies SET last_update_utc = 1 WHERE host_key = 'b.example'");
    // What a journal keeps on disk is enough.
    let journal: Vec<Change> =
        serde_json::from_str(&serde_json::to_string(&journal).unwrap()).unwrap();
    for _ in 0..2 {
        CHROMIUM.wipe(&to.machine(), &journal, false).unwrap();
        assert_eq!(values(&to), expected(&[("a.example", "old"), ("c.example", "own")]));
    }
    assert_eq!(fs::read_dir(to.path(".config/chromium")).unwrap().count(), 1);
}

#[test]
fn each_of_two_imports_into_one_profile_can_be_taken_back() {
    let homes = ["a.example", "b.example"].map(|host| Home::with_cookies(&[cookie(host, host)]));
    let [one, two] = homes.each_ref().map(|home| capture(home, None).unwrap());
    let to = Home::with_cookies(&[cookie("own.example", "own")]);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    import(&to, &one, Into::Existing, &mut first).unwrap();
    import(&to, &two, Into::Existing, &mut second).unwrap();
    let hosts = || -> Vec<String> {
        let mut hosts: Vec<_> = to.cookies().into_iter().map(|cookie| cookie.host).collect();
        hosts.sort();
        hosts
    };
    assert_eq!(hosts(), ["a.example", "b.example", "own.example"]);
    CHROMIUM.wipe(&to.machine(), &first, false).unwrap();
    assert_eq!(hosts(), ["b.example", "own.example"]);
    CHROMIUM.wipe(&to.machine(), &second, false).unwrap();
    assert_eq!(hosts(), ["own.example"]);
    assert_eq!(fs::read_dir(to.profile()).unwrap().count(), 1, "a marker is left");
}

#[test]
fn a_replaced_profile_comes_back() {
    let from = Home::with_cookies(&[cookie("a.example", "new")]);
    let to = Home::with_cookies(&[cookie("a.example", "old"), cookie("c.example", "own")]);
    let before = to.state();
    let payload = capture(&from, None).unwrap();
    let mut journal = Vec::new();
    import(&to, &payload, Into::Replacing, &mut journal).unwrap();
    assert_eq!(to.cookies(), [cookie("a.example", "new")]);
    for _ in 0..2 {
        CHROMIUM.wipe(&to.machine(), &journal, false).unwrap();
        assert_eq!(to.state(), before);
    }
}

#[test]
fn an_import_that_never_happened_is_taken_back_as_nothing() {
    let from = Home::with_cookies(&[cookie("a.example", "new")]);
    let to = Home::with_cookies(&[cookie("a.example", "old")]);
    let payload = capture(&from, None).unwrap();
    let mut journal = Vec::new();
    import(&to, &payload, Into::Existing, &mut journal).unwrap();
    // The same journal, in a home where the crash came before the last step.
    let moved = |text: &str| text.replace(to.path("").to_str().unwrap(), "");
    let untouched = Home::with_cookies(&[cookie("a.example", "mine")]);
    let text = moved(&serde_json::to_string(&journal).unwrap());
    let text = text.replace("\".config", &format!("\"{}.config", untouched.path("").display()));
    let journal: Vec<Change> = serde_json::from_str(&text).unwrap();
    CHROMIUM.wipe(&untouched.machine(), &journal, false).unwrap();
    assert_eq!(untouched.cookies(), [cookie("a.example", "mine")]);
}

#[test]
fn cookies_under_a_keyring_that_is_not_there_are_refused_and_not_shown() {
    let from = Home::with_cookies(&[cookie("a.example", "one"), cookie("b.example", "two")]);
    from.sql("UPDATE cookies SET encrypted_value = CAST(CAST('v11' AS BLOB) || substr(encrypted_value, 4) AS BLOB) WHERE host_key = 'a.example'");
    let refused = capture(&from, None).unwrap_err();
    assert_eq!(refused.cause(), Some(Cause::KeyUnavailable));
    assert_eq!(refused.context("site"), Some("a.example"));
    // Another site does not need it.
    assert_eq!(capture(&from, Some(&["b.example"])).unwrap().records().len(), 1);
    let manifest = CHROMIUM.manifest(&from.machine(), Scope::Session).unwrap();
    assert!(manifest.notes.iter().any(|note| note.contains("keyring")), "{:?}", manifest.notes);
}

#[test]
fn cookies_under_the_keyring_are_carried_for_any_machine() {
    let home = Home::with_cookies(&[]);
    let path = home.profile().join("Cookies");
    let ring = Keys::new(Some(b"password of the keyring"));
    let mut database = cookies::Database::open(&path).unwrap();
    database.merge(&[cookie("a.example", "one")], &ring, &path, &mut Vec::new()).unwrap();
    // What the merge wrote is under the key that everyone knows.
    assert_eq!(database.read(&Keys::new(None), &|_| true).unwrap().0.len(), 1);
    assert_eq!(database.bound().unwrap(), 0);
}

#[test]
fn newer_cookies_than_either_side_knows_are_refused_by_name_and_nothing_changes() {
    let from = Home::with_cookies(&[cookie("a.example", "one")]);
    let payload = capture(&from, None).unwrap();
    let newer = Home::with_cookies(&[]);
    newer.sql("UPDATE meta SET value = '99'");
    let older = Home::with_cookies(&[]);
    older.sql("UPDATE meta SET value = '23'");
    for (home, schema) in [(&newer, "99"), (&older, "24")] {
        let before = home.state();
        let refused = import(home, &payload, Into::Existing, &mut Vec::new()).unwrap_err();
        assert_eq!(refused.cause(), Some(Cause::ProfileNewer));
        assert_eq!(refused.context("schema"), Some(schema));
        assert_eq!(home.state(), before);
    }
    from.sql("UPDATE meta SET value = '99'");
    assert_eq!(capture(&from, None).unwrap_err().cause(), Some(Cause::ProfileNewer));
}

#[test]
fn a_bundle_cannot_write_what_is_not_the_apps() {
    let to = Home::with_cookies(&[cookie("a.example", "own")]);
    let before = to.state();
    for (item, kind, path) in [
        ("Cookies", RecordKind::File, "Cookies"),
        ("Sessions", RecordKind::File, "Sessions/.bashrc"),
        ("Preferences", RecordKind::File, "Secure Preferences"),
        ("SingletonLock", RecordKind::File, "SingletonLock"),
        ("IndexedDB", RecordKind::File, "IndexedDB/x.leveldb/evil.so"),
        ("Bookmarks", RecordKind::Cookies, "Bookmarks"),
    ] {
        let mut payload = PayloadWriter::create(&to.path("run"), head(App::Chromium)).unwrap();
        let entry = Entry {
            item: item.to_owned(),
            kind,
            path: ItemPath::new(path).unwrap(),
            is_executable: true,
            modified_ns: 0,
            is_secret: false,
        };
        payload.add(entry, &mut &b"x"[..]).unwrap();
        let payload = payload.finish();
        let refused = import(&to, &payload, Into::Existing, &mut Vec::new()).unwrap_err();
        assert_eq!(refused.cause(), Some(Cause::CorruptBundle), "{path}");
        assert_eq!(to.state(), before, "{path}");
    }
    let other = PayloadWriter::create(&to.path("run"), head(App::Chrome)).unwrap().finish();
    let refused = import(&to, &other, Into::Existing, &mut Vec::new()).unwrap_err();
    assert_eq!(refused.cause(), Some(Cause::NotImportable));
}

#[test]
fn a_running_app_is_left_alone_unless_it_may_be_closed() {
    let from = Home::with_cookies(&[cookie("a.example", "new")]);
    let to = Home::with_cookies(&[cookie("a.example", "old")]);
    let payload = capture(&from, None).unwrap();
    // A process whose program has the browser's name.
    let program = to.path("bin/chromium-process");
    fs::copy("/bin/sleep", &program).unwrap();
    let mut running = Command::new(program).arg("600").stdin(Stdio::null()).spawn().unwrap();
    let uname = rustix::system::uname();
    let lock = format!("{}-{}", uname.nodename().to_str().unwrap(), running.id());
    std::os::unix::fs::symlink(lock, to.path(".config/chromium/SingletonLock")).unwrap();
    assert!(CHROMIUM.receiver(&to.machine()).app_running);

    let refused = import(&to, &payload, Into::Existing, &mut Vec::new()).unwrap_err();
    assert_eq!(refused.cause(), Some(Cause::AppRunning));
    assert_eq!(to.cookies(), [cookie("a.example", "old")]);
    assert!(running.try_wait().unwrap().is_none());

    // Someone has to take its exit status, as its parent would.
    let parent = std::thread::spawn(move || running.wait().unwrap());
    let options = ImportOptions { close_running_app: true, ..ImportOptions::default() };
    CHROMIUM.import(&to.machine(), &payload, &options, &mut Vec::new()).unwrap();
    assert!(!parent.join().unwrap().success());
    assert_eq!(to.cookies(), [cookie("a.example", "new")]);
}

#[test]
fn a_lock_of_another_machine_or_of_a_dead_process_is_nobodys() {
    let home = Home::with_cookies(&[]);
    let root = Root(home.path(".config/chromium"));
    let lock = |text: &str| {
        let path = root.0.join("SingletonLock");
        drop(fs::remove_file(&path));
        std::os::unix::fs::symlink(text, &path).unwrap();
        root.holder()
    };
    let uname = rustix::system::uname();
    let here = uname.nodename().to_str().unwrap();
    assert_eq!(lock(&format!("elsewhere.example-{}", std::process::id())), None);
    assert_eq!(lock(&format!("{here}-{}", i32::MAX)), None);
    // Alive, and no browser.
    assert_eq!(lock(&format!("{here}-{}", std::process::id())), None);
    for odd in ["x", "-", &format!("{here}-0"), &format!("{here}--1")] {
        assert_eq!(lock(odd), None, "{odd}");
    }
    let _: &Path = &root.0;
}

/// Names a home whose profile [`importer`] takes, the home it imports into, and how.
const IMPORTER: &str = "SPACEPORT_TEST_IMPORTER";

#[test]
fn importer() {
    let Some(homes) = std::env::var_os(IMPORTER) else { return };
    let homes = homes.into_string().unwrap();
    let [from, to, mode]: [&str; 3] = homes.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let machine = |home: &str| {
        let path = Path::new(home);
        let variables = [("HOME", path.to_owned()), ("PATH", path.join("bin"))];
        Machine::from_environment(variables.map(|(name, path)| (name.into(), path.into()))).unwrap()
    };
    let (from, to) = (machine(from), machine(to));
    let manifest = CHROMIUM.manifest(&from, Scope::Session).unwrap();
    let choice = Choice {
        include: Some(vec!["Cookies".to_owned()]),
        acknowledge_sensitive: true,
        ..Choice::default()
    };
    let selection = manifest.select(&choice).unwrap();
    let mut payload = PayloadWriter::create(&from.runtime, head(App::Chromium)).unwrap();
    CHROMIUM.capture(&from, &manifest, &selection, &mut payload).unwrap();
    let payload = payload.finish();
    let mut journal = File(to.home.join("journal"));
    let into = if mode == "merge" { Into::Existing } else { Into::Replacing };
    let options = ImportOptions { into, ..ImportOptions::default() };
    CHROMIUM.import(&to, &payload, &options, &mut journal).unwrap();
}

/// A journal that outlives its process: one line for each change.
struct File(PathBuf);

impl Journal for File {
    fn record(&mut self, changes: Vec<Change>) -> Result<()> {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&self.0)?;
        for change in changes {
            let line = format!("{}\n", serde_json::to_string(&change).unwrap());
            std::io::Write::write_all(&mut file, line.as_bytes())?;
        }
        Ok(())
    }
}

#[test]
fn an_import_that_is_killed_anywhere_leaves_a_whole_profile_and_can_be_taken_back() {
    let from = Home::with_cookies(&[cookie("a.example", "new")]);
    let before = [cookie("a.example", "old"), cookie("c.example", "own")];
    for step in 0..16 {
        let mode = if step % 2 == 0 { "merge" } else { "replace" };
        let delay = std::time::Duration::from_millis(step / 2 * 4);
        let to = Home::with_cookies(&before);
        let homes = format!("{}\n{}\n{mode}", from.path("").display(), to.path("").display());
        let mut importer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "provider::chromium::tests::importer"])
            .env(IMPORTER, homes)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From when it begins to change things.
        while !to.path("journal").exists() {
            assert!(importer.try_wait().unwrap().is_none(), "it changed nothing");
            std::thread::yield_now();
        }
        std::thread::sleep(delay);
        importer.kill().unwrap();
        importer.wait().unwrap();
        let values = || {
            let mut values: Vec<_> =
                to.cookies().iter().map(|c| c.value.expose().to_vec()).collect();
            values.sort();
            values
        };
        let now = values();
        let whole = [&[&b"new"[..], b"own"][..], &[b"old", b"own"], &[b"new"]];
        assert!(whole.iter().any(|whole| now == *whole), "{now:?}");
        // The last line may be half written; what it says was not done then.
        let text = fs::read_to_string(to.path("journal")).unwrap();
        let journal: Vec<Change> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        CHROMIUM.wipe(&to.machine(), &journal, false).unwrap();
        assert_eq!(values(), [b"old", b"own"], "{mode} after {delay:?}");
        let left = fs::read_dir(to.path(".config/chromium")).unwrap().count();
        assert_eq!(left, 1, "staging was left behind");
    }
}
