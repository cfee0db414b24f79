//! Sessions of real browsers move house while the browsers run.
//!
//! What is asserted is what the site sees: who comes signed in, and which pages are opened by a plain
//! start of the destination's browser, in a home where it has never run.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use spaceport_teleport::manifest::{App, Choice, Scope};
use spaceport_teleport::payload::Head;
use spaceport_teleport::provider::{ImportOptions, Imported, provider};
use spaceport_teleport::{Manifest, Payload, PayloadWriter, Provider};
use spaceport_tests::{Browser, Folder, Home, Site, wait_until};

/// Longest until a browser has written down what a page did.
const WRITTEN: Duration = Duration::from_secs(40);

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

fn capture(app: App, home: &Home, scope: Scope, into: &Path) -> Payload {
    let machine = home.machine();
    let manifest = of(app).manifest(&machine, scope).unwrap();
    let selection = manifest.select(&everything(&manifest)).unwrap();
    let head = Head {
        app,
        scope,
        profile: manifest.profile.clone(),
        app_version: manifest.app_version.clone(),
        home: home.path().to_owned(),
    };
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
    let started = home
        .start(browser, &[&site.url("/login"), &site.url("/second"), &site.other_url("/write")]);
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
