use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rusqlite::Connection;
use serde_json::{Value, json};

use super::*;
use crate::journal::Change;
use crate::manifest::{Choice, Manifest};
use crate::payload::Head;
use crate::provider::{ImportOptions, Into, provider};

struct Home(tempfile::TempDir);

impl Home {
    fn new(files: &[(&str, &str)]) -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        for (name, text) in files {
            let path = home.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn machine(&self) -> Machine {
        let variables = [("HOME", self.path("")), ("XDG_RUNTIME_DIR", self.path("run"))];
        Machine::from_environment(variables.map(|(name, path)| (name.into(), path.into()))).unwrap()
    }

    fn manifest(&self, app: App, scope: Scope) -> Manifest {
        provider(app).manifest(&self.machine(), scope).unwrap()
    }

    /// Everything but what the provider excludes.
    fn capture(&self, app: App) -> Result<Payload> {
        let manifest = self.manifest(app, Scope::Full);
        let names = manifest.items.iter().map(|item| item.relative_path.clone()).collect();
        let choice =
            Choice { include: Some(names), acknowledge_sensitive: true, ..Choice::default() };
        let selection = manifest.select(&choice)?;
        let machine = self.machine();
        let head = Head {
            app,
            scope: Scope::Full,
            profile: "default".to_owned(),
            app_version: None,
            home: machine.home.clone(),
        };
        let mut payload = PayloadWriter::create(&machine.runtime, head)?;
        provider(app).capture(&machine, &manifest, &selection, &mut payload)?;
        Ok(payload.finish())
    }

    fn import(&self, app: App, payload: &Payload, into: Into) -> (Imported, Vec<Change>) {
        let mut journal = Vec::new();
        let options = ImportOptions { into, ..ImportOptions::default() };
        let imported = provider(app).import(&self.machine(), payload, &options, &mut journal);
        (imported.unwrap(), journal)
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        let files = snapshot::tree(self.0.path(), &|name| name != "run/").unwrap();
        files.into_iter().map(|file| (file.name, fs::read(file.path).unwrap())).collect()
    }
}

fn claude(home: &Home) -> Vec<(String, String)> {
    let slug = home.0.path().to_str().unwrap().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let state = json!({
        "oauthAccount": {"emailAddress": "a@a.example"},
        "mcpServers": {"x": {"env": {"KEY": "s3cr3t"}}},
        "projects": {home.path("work").to_str().unwrap(): {"allowedTools": ["Bash"]}},
    });
    [
        (".claude/.credentials.json".to_owned(), r#"{"claudeAiOauth":{}}"#.to_owned()),
        (".claude.json".to_owned(), state.to_string()),
        (".claude/settings.json".to_owned(), r#"{"model":"x"}"#.to_owned()),
        (".claude/agents/a.md".to_owned(), "agent".to_owned()),
        (".claude/statsig/x.json".to_owned(), "{}".to_owned()),
        (".claude/ide/1.lock".to_owned(), "{}".to_owned()),
        (format!(".claude/projects/{slug}-work/1.jsonl"), "{\"a\":1}\n{\"half".to_owned()),
    ]
    .into()
}

fn claude_home() -> Home {
    let home = Home::new(&[]);
    for (name, text) in claude(&home) {
        fs::create_dir_all(home.path(&name).parent().unwrap()).unwrap();
        fs::write(home.path(&name), text).unwrap();
    }
    home
}

#[test]
fn claude_code_moves_to_another_home_and_is_wiped_from_it() {
    let from = claude_home();
    let to = Home::new(&[("other", "own")]);
    let before = to.files();
    let payload = from.capture(App::ClaudeCode).unwrap();
    assert!(payload.records().iter().all(|record| {
        !record.path.as_str().contains("statsig") && !record.path.as_str().ends_with(".lock")
    }));
    let (imported, journal) = to.import(App::ClaudeCode, &payload, Into::Existing);
    assert_eq!(imported.skipped, []);
    let mode = to.path(".claude/.credentials.json").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Projects are where they are in the new home, and a half-written line is not carried.
    let state: Value = serde_json::from_str(&to.text(".claude.json")).unwrap();
    assert_eq!(state["oauthAccount"]["emailAddress"], "a@a.example");
    assert!(state["projects"].get(to.path("work").to_str().unwrap()).is_some(), "{state}");
    let conversations = snapshot::tree(&to.path(".claude/projects"), &|_| true).unwrap();
    let slug = to.0.path().to_str().unwrap().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    assert_eq!(conversations[0].name, format!("{slug}-work/1.jsonl"));
    assert_eq!(fs::read_to_string(&conversations[0].path).unwrap(), "{\"a\":1}\n");
    // The app refreshed the login since: it goes all the same.
    fs::write(to.path(".claude/.credentials.json"), "refreshed").unwrap();
    for _ in 0..2 {
        provider(App::ClaudeCode).wipe(&to.machine(), &journal, false).unwrap();
        assert_eq!(to.files(), before);
        assert!(!to.path(".claude").exists());
    }
}

#[test]
fn claude_codes_state_joins_what_is_there_and_comes_back() {
    let from = claude_home();
    let own = json!({"oauthAccount": {"emailAddress": "b@b.example"}, "theme": "dark",
        "mcpServers": {"y": {}}, "projects": {"/p": {}}});
    let to = Home::new(&[
        (".claude.json", &own.to_string()),
        (".claude/settings.json", r#"{"own":true}"#),
        (".claude/.credentials.json", "own"),
    ]);
    let before = to.files();
    let payload = from.capture(App::ClaudeCode).unwrap();
    let (imported, journal) = to.import(App::ClaudeCode, &payload, Into::Existing);
    let state: Value = serde_json::from_str(&to.text(".claude.json")).unwrap();
    assert_eq!(state["oauthAccount"]["emailAddress"], "a@a.example");
    assert_eq!(state["theme"], "dark");
    assert!(state["mcpServers"].get("x").is_some() && state["mcpServers"].get("y").is_some());
    assert!(state["projects"].get("/p").is_some());
    assert_eq!(imported.skipped[0].what, "settings.json");
    assert_eq!(to.text(".claude/settings.json"), r#"{"own":true}"#);
    provider(App::ClaudeCode).wipe(&to.machine(), &journal, false).unwrap();
    assert_eq!(to.files(), before);
    let (imported, _) = to.import(App::ClaudeCode, &payload, Into::Replacing);
    assert_eq!(imported.skipped, []);
    assert_eq!(to.text(".claude/settings.json"), r#"{"model":"x"}"#);
}

#[test]
fn settings_that_hold_a_secret_or_run_a_program_do_not_move_unasked() {
    let sensitive = |app, name: &str, text: &str| {
        let home = Home::new(&[(name, text)]);
        let manifest = home.manifest(app, Scope::Full);
        (manifest.items[0].is_sensitive, manifest.items[0].is_checked_by_default)
    };
    let claude = |text| sensitive(App::ClaudeCode, ".claude/settings.json", text);
    assert_eq!(claude(r#"{"model":"x"}"#), (false, true));
    for telling in [r#"{"env":{}}"#, r#"{"apiKeyHelper":"x"}"#, r#"{"hooks":{}}"#, "{"] {
        assert_eq!(claude(telling), (true, false), "{telling}");
    }
    let code = |text| sensitive(App::VsCode, ".config/Code/User/settings.json", text);
    assert_eq!(code("{\"editor.tabSize\": 2, // two\n}"), (false, true));
    assert_eq!(code(r#"{"x.apiKey": "s3cr3t"}"#), (true, false));
}

#[test]
fn vs_code_moves_with_its_sign_ins_and_without_its_caches() {
    let from = Home::new(&[
        (".config/Code/User/settings.json", "{}"),
        (".config/Code/User/globalStorage/storage.json", "{}"),
        (".config/Code/User/workspaceStorage/abc/workspace.json", "{}"),
        (".config/Code/User/workspaceStorage/abc/some.extension/cache.bin", "x"),
        (".config/Code/Cache/x", "x"),
        (".config/Code/logs/x.log", "x"),
    ]);
    let state = from.path(".config/Code/User/globalStorage/state.vscdb");
    let keys = crate::transcode::os_crypt::Keys::new(None);
    let secret = json!({"type": "Buffer", "data": keys.encrypt(b"t0ken")}).to_string();
    let database = Connection::open(&state).unwrap();
    database
        .execute_batch("CREATE TABLE ItemTable (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)")
        .unwrap();
    let insert = "INSERT INTO ItemTable VALUES (?, ?)";
    database.execute(insert, (r#"secret://{"key":"x"}"#, &secret)).unwrap();
    database.execute(insert, ("theme", "dark")).unwrap();

    let tabs: Vec<_> = from.manifest(App::VsCode, Scope::Tabs).items;
    assert!(tabs.iter().all(|item| !item.relative_path.contains("state.vscdb")));
    let payload = from.capture(App::VsCode).unwrap();
    let mut names: Vec<_> = payload.records().iter().map(|record| record.path.as_str()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "User/globalStorage/state.vscdb",
            "User/globalStorage/storage.json",
            "User/settings.json",
            "User/workspaceStorage/abc/workspace.json",
        ]
    );
    let to = Home::new(&[]);
    let (_, journal) = to.import(App::VsCode, &payload, Into::Existing);
    let arrived = Connection::open(to.path(".config/Code/User/globalStorage/state.vscdb")).unwrap();
    let sql = "SELECT CAST(value AS TEXT) FROM ItemTable WHERE key LIKE 'secret://%'";
    assert_eq!(arrived.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap(), secret);
    drop(arrived);
    provider(App::VsCode).wipe(&to.machine(), &journal, false).unwrap();
    assert!(!to.path(".config").exists());

    // Under a keyring that cannot be asked, it stays.
    let bound = secret.replace("118,49,48", "118,49,49");
    assert_ne!(bound, secret);
    database.execute(insert, (r#"secret://{"key":"x"}"#, &bound)).unwrap();
    let refused = from.capture(App::VsCode).unwrap_err();
    assert_eq!(refused.cause(), Some(Cause::KeyUnavailable));
}

#[test]
fn a_bundle_cannot_write_what_is_not_the_apps() {
    let to = Home::new(&[("own", "x")]);
    for (app, item, path) in [
        (App::ClaudeCode, "settings.json", "settings.local.json"),
        (App::ClaudeCode, "agents", "agents/x.sh"),
        (App::ClaudeCode, "projects", "projects/a/b/c.jsonl"),
        (App::ClaudeCode, ".bashrc", ".bashrc"),
        (App::VsCode, "User/workspaceStorage", "User/workspaceStorage/x/evil.js"),
        (App::VsCode, "User/globalStorage/storage.json", "User/globalStorage/state.vscdb"),
    ] {
        let head = Head {
            app,
            scope: Scope::Full,
            profile: "default".to_owned(),
            app_version: None,
            home: PathBuf::from("/home/a"),
        };
        let mut payload = PayloadWriter::create(&to.path("run"), head).unwrap();
        let entry = Entry {
            item: item.to_owned(),
            kind: RecordKind::File,
            path: ItemPath::new(path).unwrap(),
            is_executable: false,
            modified_ns: 0,
            is_secret: false,
        };
        payload.add(entry, &mut &b"x"[..]).unwrap();
        let options = ImportOptions::default();
        let payload = payload.finish();
        let refused = provider(app).import(&to.machine(), &payload, &options, &mut Vec::new());
        assert_eq!(refused.unwrap_err().cause(), Some(Cause::CorruptBundle), "{path}");
        assert_eq!(to.files(), [("own".to_owned(), b"x".to_vec())], "{path}");
    }
}
