//! Sessions of real browsers move house while the browsers run.
//!
//! What is asserted is what the site sees: who comes signed in, and which pages are opened by a plain
//! start of the destination's browser, in a home where it has never run.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use spaceport_teleport::manifest::{App, Choice, Scope};
use spaceport_teleport::payload::{Head, RecordKind};
use spaceport_teleport::provider::{ImportOptions, Imported, provider};
use spaceport_teleport::{Manifest, Payload, PayloadWriter, Provider};
use spaceport_tests::{Browser, Folder, Home, Site, TOKEN, Tap, binary, measured, wait_until};
use spaceport_types::Cause;

/// Longest until a browser has written down what a page did.
const WRITTEN: Duration = Duration::from_secs(60);

fn of(app: App) -> &'static dyn Provider {
    provider(app)
}

fn everything(manifest: &Manifest) -> Choice {
    Choice {
        include: Some(manifest.items.iter().map(|item| item.relative_path.clone()).collect()),
        acknowledge_sensitive: true,
        ..Choice::default()
    }
}

fn head(app: App, home: &Home, scope: Scope, manifest: &Manifest) -> Head {
    Head {
        app,
        scope,
        profile: manifest.profile.clone(),
        app_version: manifest.app_version.clone(),
        home: home.path().to_owned(),
    }
}

fn capture(app: App, home: &Home, scope: Scope, into: &Path) -> Payload {
    let machine = home.machine();
    let manifest = of(app).manifest(&machine, scope).unwrap();
    let selection = manifest.select(&everything(&manifest)).unwrap();
    let head = head(app, home, scope, &manifest);
    let mut payload = PayloadWriter::create(into, head).unwrap();
    of(app).capture(&machine, &manifest, &selection, &mut payload).unwrap();
    payload.finish()
}

fn import(app: App, home: &Home, payload: &Payload) -> Imported {
    let mut journal = Vec::new();
    of(app).import(&home.machine(), payload, &ImportOptions::default(), &mut journal).unwrap()
}

/// Signs in with a running browser, and waits until that is on its disk.
fn signed_in(app: App, home: &Home, browser: Browser, site: &Site) -> spaceport_tests::App {
    signed_in_with(&[], app, home, browser, site)
}

/// The same with switches for the browser.
fn signed_in_with(
    switches: &[&str],
    app: App,
    home: &Home,
    browser: Browser,
    site: &Site,
) -> spaceport_tests::App {
    let pages = [&*site.other_url("/write"), &site.url("/login"), &site.url("/second")];
    let started = home.start(browser, &[switches, &pages].concat());
    assert!(site.visit("/home").is_signed_in());
    let machine = home.machine();
    wait_until("the cookie is not written down", WRITTEN, || {
        let Ok(manifest) = of(app).manifest(&machine, Scope::Session) else { return false };
        let sites = |path: &str| {
            let item = manifest.items.iter().find(|item| item.relative_path.ends_with(path));
            item.is_some_and(|item| item.sites.iter().any(|site| site.host == "127.0.0.1"))
        };
        let has = |paths: [&str; 2]| paths.iter().any(|path| sites(path));
        has(["Cookies", "cookies.sqlite"])
            && has(["Local Storage/leveldb", "storage/default"])
            && session_files(&home.path().join(".config")).iter().any(|session| {
                // The tabs' addresses are there in clear.
                session.windows(6).any(|word| word == b"second")
            })
    });
    started
}

/// What the browsers write about their open tabs.
fn session_files(below: &Path) -> Vec<Vec<u8>> {
    let mut files = Vec::new();
    for entry in below.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            files.extend(session_files(&entry.path()));
        } else if name == "recovery.jsonlz4" || name.starts_with("Session_") {
            files.extend(std::fs::read(entry.path()));
        }
    }
    files
}

#[test]
fn chromium_moves_while_it_runs_and_stays_signed_in() {
    let (site, from, to, payloads) =
        (Site::open(), Home::new(), Home::new(), Folder::new("payloads"));
    let _running = signed_in(App::Chromium, &from, Browser::Chromium, &site);
    let payload = capture(App::Chromium, &from, Scope::Session, payloads.path());
    let imported = import(App::Chromium, &to, &payload);
    assert!(imported.readable.iter().any(|site| site.host == "127.0.0.1" && site.cookies >= 1));
    site.forget();
    let _arrived = to.start(Browser::Chromium, &[]);
    let visit = site.visit("/home");
    assert!(visit.is_signed_in(), "{visit:?}");
    assert!(visit.cookies.contains("passing=1"), "{visit:?}");
    site.visit("/second");
}

#[test]
fn firefox_moves_while_it_runs_and_stays_signed_in() {
    let (site, from, to, payloads) =
        (Site::open(), Home::new(), Home::new(), Folder::new("payloads"));
    let _running = signed_in(App::Firefox, &from, Browser::Firefox, &site);
    let payload = capture(App::Firefox, &from, Scope::Session, payloads.path());
    let imported = import(App::Firefox, &to, &payload);
    assert!(imported.readable.iter().any(|site| site.host == "127.0.0.1" && site.cookies >= 1));
    // Otherwise it opens a tab when someone looks at it.
    let mut preferences =
        OpenOptions::new().append(true).open(imported.profile.join("prefs.js")).unwrap();
    writeln!(preferences, "user_pref(\"browser.sessionstore.restore_on_demand\", false);").unwrap();
    site.forget();
    let _arrived = to.start(Browser::Firefox, &[]);
    let visit = site.visit("/home");
    assert!(visit.is_signed_in(), "{visit:?}");
    // A cookie that ends with the browser is in the file of tabs, and stays there.
    assert!(!visit.cookies.contains("passing"), "{visit:?}");
    site.visit("/second");
}

/// A `spaceport` command as whoever lives in a home runs it, without a terminal.
fn run(home: &Home, arguments: &[&str]) -> Value {
    let output = Command::new("setsid")
        .args(["--wait", binary().to_str().unwrap(), "--json"])
        .args(arguments)
        .env_clear()
        .envs(home.environment())
        .env("SPACEPORT_STATE_DIR", home.path().join("state"))
        .env("SPACEPORT_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Has whoever lives in a home agree at their terminal.
fn approve(home: &Home, id: &str) {
    let line = format!("{} teleport approve {id}", binary().display());
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env_clear()
        .envs(home.environment())
        .env("SPACEPORT_STATE_DIR", home.path().join("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut screen, mut some, mut answered) = (String::new(), [0; 4096], false);
    while let Ok(count @ 1..) = output.read(&mut some) {
        screen.push_str(&String::from_utf8_lossy(&some[..count]));
        if !answered && screen.contains("Type `yes`") {
            input.write_all(b"yes\n").unwrap();
            answered = true;
        }
    }
    assert!(child.wait().unwrap().success(), "{screen}");
}

/// A `spaceport serve` in a home. Killed when dropped.
struct Serving(Child, SocketAddr);

impl Serving {
    fn of(home: &Home) -> Self {
        let ports = ["--listen", "127.0.0.1:0", "--webrtc-port", "0", "--quic-port", "0"];
        let mut child = Command::new(binary())
            .args(["serve", "--json"])
            .args(ports)
            .env_clear()
            .envs(home.environment())
            .env("SPACEPORT_STATE_DIR", home.path().join("state"))
            .env("SPACEPORT_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let endpoints: Value = serde_json::from_str(&line).unwrap();
        Self(child, endpoints["http"].as_str().unwrap().parse().unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Bytes of all files below a folder.
fn bytes_below(folder: &Path) -> u64 {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// By the command, over the wire, with a person who agrees: as a user does it, with everything there is.
fn moves_to_a_second_spaceport(app: App, browser: Browser, profiles: &str) {
    let (site, from, to) = (Site::open(), Home::new(), Home::new());
    let serving = Serving::of(&to);
    let tap = Tap::before(serving.1);
    let mut running = signed_in(app, &from, browser, &site);
    let name = app.to_string();
    let manifest = run(&from, &["teleport", "manifest", &name, "--scope", "full"]);
    let items = manifest["items"].as_array().unwrap_or_else(|| panic!("{manifest}"));
    let url = format!("http://{}", tap.address());
    let mut push = vec!["teleport", "push", &name, "--to", &url, "--scope", "full"];
    for item in items {
        push.extend(["--include", item["relative_path"].as_str().unwrap()]);
    }
    push.push("--acknowledge-sensitive");
    let asked = run(&from, &push);
    assert_eq!(asked["consent_required"], true, "{asked}");
    approve(&from, asked["request_id"].as_str().unwrap());
    let before = tap.bytes();
    let moved = run(&from, &push);
    assert_eq!(moved["moved"], true, "{moved}");
    assert!(!running.has_ended(), "it was closed");
    let (crossed, whole) =
        ((tap.bytes() - before) as u64, bytes_below(&from.path().join(profiles)));
    measured(format_args!("{app}: {crossed} bytes crossed for a profile of {whole}"));
    site.forget();
    let prefs = to.path().join(profiles);
    for profile in prefs.read_dir().unwrap().flatten().map(|it| it.path().join("prefs.js")) {
        // Otherwise Firefox opens a tab when someone looks at it.
        if let Ok(mut file) = OpenOptions::new().append(true).open(profile) {
            writeln!(file, "user_pref(\"browser.sessionstore.restore_on_demand\", false);")
                .unwrap();
        }
    }
    let _arrived = to.start(browser, &[]);
    let visit = site.visit("/home");
    assert!(visit.is_signed_in(), "{visit:?}");
    site.visit("/second");
}

#[test]
fn a_running_chromium_moves_to_a_second_spaceport_and_stays_signed_in() {
    moves_to_a_second_spaceport(App::Chromium, Browser::Chromium, ".config/chromium");
}

#[test]
fn a_running_firefox_moves_to_a_second_spaceport_and_stays_signed_in() {
    moves_to_a_second_spaceport(App::Firefox, Browser::Firefox, ".config/mozilla/firefox");
}

/// Chromium's switch for the keyring, which it would look for a desktop to find.
const WITH_KEYRING: &str = "--password-store=gnome-libsecret";

/// How the cookies of a Chromium are encrypted: the first bytes of each.
fn encryptions(home: &Home) -> BTreeSet<String> {
    let database = home.path().join(".config/chromium/Default/Cookies");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(database, flags).unwrap();
    let sql = "SELECT DISTINCT CAST(substr(encrypted_value, 1, 3) AS TEXT) FROM cookies";
    let mut query = connection.prepare(sql).unwrap();
    query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn cookies_under_a_keyring_move_to_machines_with_another_and_with_none() {
    let (site, mut from, payloads) = (Site::open(), Home::with_keyring(), Folder::new("payloads"));
    let running = signed_in_with(&[WITH_KEYRING], App::Chromium, &from, Browser::Chromium, &site);
    assert!(encryptions(&from).contains("v11"), "{:?}", encryptions(&from));
    let payload = capture(App::Chromium, &from, Scope::Session, payloads.path());
    for (to, switches) in [(Home::new(), &[][..]), (Home::with_keyring(), &[WITH_KEYRING])] {
        let imported = import(App::Chromium, &to, &payload);
        assert!(imported.readable.iter().any(|site| site.host == "127.0.0.1" && site.cookies >= 1));
        assert_eq!(encryptions(&to), BTreeSet::from(["v10".to_owned()]));
        site.forget();
        let _arrived = to.start(Browser::Chromium, switches);
        let visit = site.visit("/home");
        assert!(visit.is_signed_in(), "{visit:?}");
    }
    drop(running);
    // Without the keyring nobody can read them, and nobody is told that they moved.
    from.lose_keyring();
    let machine = from.machine();
    let manifest = of(App::Chromium).manifest(&machine, Scope::Session).unwrap();
    assert!(manifest.notes.iter().any(|note| note.contains("keyring")), "{:?}", manifest.notes);
    let selection = manifest.select(&everything(&manifest)).unwrap();
    let head = head(App::Chromium, &from, Scope::Session, &manifest);
    let mut payload = PayloadWriter::create(payloads.path(), head).unwrap();
    let refused = of(App::Chromium).capture(&machine, &manifest, &selection, &mut payload);
    let refused = refused.unwrap_err();
    assert_eq!(refused.cause(), Some(Cause::KeyUnavailable), "{refused}");
    let hint = refused.report().hint.unwrap();
    assert!(hint.contains("session bus"), "{hint}");
}

/// Copies of a profile that is written all the time.
const COPIES: usize = 20;

#[test]
fn every_copy_of_a_busy_chromium_is_whole() {
    let (site, from, payloads) = (Site::open(), Home::new(), Folder::new("payloads"));
    let mut running = signed_in(App::Chromium, &from, Browser::Chromium, &site);
    let database = payloads.path().join("database");
    let mut checked = 0;
    for _ in 0..COPIES {
        let payload = capture(App::Chromium, &from, Scope::Full, payloads.path());
        let records = payload.records();
        assert!(records.iter().any(|record| record.kind == RecordKind::Cookies));
        let stored = records.iter().find(|record| record.kind == RecordKind::LocalStorage);
        assert!(stored.is_some_and(|record| record.len > 0), "local storage is not there");
        for (index, record) in records.iter().enumerate() {
            let mut bytes = Vec::new();
            payload.open(index).unwrap().read_to_end(&mut bytes).unwrap();
            if bytes.starts_with(b"SQLite format 3\0") {
                std::fs::write(&database, bytes).unwrap();
                let copy = rusqlite::Connection::open(&database).unwrap();
                let verdict: String =
                    copy.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
                assert_eq!(verdict, "ok", "{}", record.path);
                checked += 1;
            }
        }
    }
    assert!(checked >= 4 * COPIES, "only {checked} databases");
    assert!(!running.has_ended());
}

#[test]
fn a_session_joins_the_profile_of_a_chromium_that_was_closed_and_leaves_it_again() {
    let (site, from, to, payloads) =
        (Site::open(), Home::new(), Home::new(), Folder::new("payloads"));
    // The destination has a profile of its own, with a browser that runs.
    let mut own = to.start(Browser::Chromium, &[&site.other_url("/home")]);
    site.visit("/home");
    let machine = to.machine();
    wait_until("no cookies at the destination", WRITTEN, || {
        to.path().join(".config/chromium/Default/Cookies").exists()
    });
    let payload = {
        let _running = signed_in(App::Chromium, &from, Browser::Chromium, &site);
        capture(App::Chromium, &from, Scope::Session, payloads.path())
    };
    let mut journal = Vec::new();
    let mut options = ImportOptions::default();
    let refused = of(App::Chromium).import(&machine, &payload, &options, &mut journal).unwrap_err();
    assert_eq!(refused.cause(), Some(Cause::AppRunning));
    assert!(!own.has_ended());
    options.close_running_app = true;
    // Someone has to take its exit status, as its parent would.
    let parent = std::thread::spawn(move || wait_until("it runs", WRITTEN, || own.has_ended()));
    of(App::Chromium).import(&machine, &payload, &options, &mut journal).unwrap();
    parent.join().unwrap();

    site.forget();
    let arrived = to.start(Browser::Chromium, &[&site.url("/home")]);
    assert!(site.visit("/home").is_signed_in());
    drop(arrived);
    of(App::Chromium).wipe(&machine, &journal, false).unwrap();
    site.forget();
    let _later = to.start(Browser::Chromium, &[&site.url("/home")]);
    let visit = site.visit("/home");
    assert!(visit.cookies.is_empty() && visit.local.is_empty(), "{visit:?}");
}
