//! Claude Code: its login, its settings, and its conversations.

use std::path::{Path, PathBuf};

use serde_json::Value;
use spaceport_types::{Cause, Error, Kind, Result};

use super::home_files::{self, Files, Form, Item};
use super::{ImportOptions, Imported, Into, Provider, Receiver, undo};
use crate::journal::{Change, Journal, Undone};
use crate::machine::Machine;
use crate::manifest::{App, Manifest, Scope, Selection};
use crate::payload::{Payload, PayloadWriter};

/// The file beside the folder, unless `CLAUDE_CONFIG_DIR` names a folder for both.
const STATE: &str = ".claude.json";

const PROJECTS: &str = "projects";

#[rustfmt::skip]
const ITEMS: &[Item] = &[
    Item { scope: Scope::Session, is_sensitive: true, form: Form::File, path: ".credentials.json", label: "The login" },
    Item { scope: Scope::Session, is_sensitive: true, form: Form::File, path: STATE, label: "The account, MCP servers with their secrets, and what is trusted" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::File, path: "settings.json", label: "Settings" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::File, path: "CLAUDE.md", label: "Instructions for every project" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::Folder(is_text), path: "agents", label: "Agents" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::Folder(is_text), path: "commands", label: "Commands" },
    Item { scope: Scope::Full, is_sensitive: false, form: Form::Folder(is_any), path: "skills", label: "Skills, which may run programs" },
    Item { scope: Scope::Full, is_sensitive: true, form: Form::Folder(is_conversation), path: PROJECTS, label: "Conversations" },
];

/// Words in settings that name a secret, or a program to be run.
const TELLING: [&str; 4] = ["env", "apiKeyHelper", "hooks", "awsAuthRefresh"];

fn is_text(name: &str) -> bool {
    name.ends_with(".md")
}

fn is_any(name: &str) -> bool {
    !name.split('/').any(|part| part.starts_with('.') || part == "node_modules")
}

fn is_conversation(name: &str) -> bool {
    name.ends_with(".jsonl") && name.split('/').count() == 2
}

#[derive(Debug)]
pub(super) struct ClaudeCode;

impl ClaudeCode {
    fn folder(machine: &Machine) -> PathBuf {
        let named = machine.variable("CLAUDE_CONFIG_DIR").map(PathBuf::from);
        named.filter(|path| path.is_absolute()).unwrap_or_else(|| machine.home.join(".claude"))
    }
}

impl Files for ClaudeCode {
    fn app(&self) -> App {
        App::ClaudeCode
    }

    fn items(&self) -> &'static [Item] {
        ITEMS
    }

    fn place(&self, machine: &Machine, path: &str) -> PathBuf {
        if path == STATE && machine.variable("CLAUDE_CONFIG_DIR").is_none() {
            return machine.home.join(STATE);
        }
        Self::folder(machine).join(path)
    }

    /// Settings may hold a key, or name a program that is run.
    fn is_sensitive(&self, item: &Item, place: &Path) -> bool {
        item.path == "settings.json"
            && std::fs::read(place).is_ok_and(|text| match serde_json::from_slice::<Value>(&text) {
                Ok(settings) => TELLING.iter().any(|name| settings.get(name).is_some()),
                // What cannot be read cannot be known to be harmless.
                Err(_) => true,
            })
    }

    /// A conversation's folder is named after the project's, with every odd character a dash.
    fn renamed(&self, path: &str, from: &Path, to: &Path) -> String {
        let (from, to) = (slug(from), slug(to));
        let project = path.strip_prefix("projects/").and_then(|rest| rest.strip_prefix(&from));
        match project {
            Some(rest) if rest.starts_with(['-', '/']) => format!("projects/{to}{rest}"),
            _ => path.to_owned(),
        }
    }

    /// The account and the MCP servers go into what is there; projects are known by their folders.
    fn merged(
        &self,
        path: &str,
        carried: &[u8],
        present: Option<&[u8]>,
        homes: (&Path, &Path),
    ) -> Result<Option<Vec<u8>>> {
        if path != STATE {
            return Ok(None);
        }
        let damaged = || Error::because(Cause::CorruptBundle, format!("`{STATE}` holds no JSON"));
        let mut state: Value = serde_json::from_slice(carried).map_err(|_| damaged())?;
        let fields = state.as_object_mut().ok_or_else(damaged)?;
        if let Some(Value::Object(projects)) = fields.get_mut(PROJECTS) {
            let moved = std::mem::take(projects).into_iter().map(|(folder, project)| {
                let moved = Path::new(&folder).strip_prefix(homes.0).map(|rest| homes.1.join(rest));
                (
                    moved.ok().and_then(|path| path.to_str().map(str::to_owned)).unwrap_or(folder),
                    project,
                )
            });
            *projects = moved.collect();
        }
        // What cannot be read is of no use to the app either.
        let own = present.and_then(|present| serde_json::from_slice::<Value>(present).ok());
        if let Some(Value::Object(mut own)) = own {
            for (name, value) in std::mem::take(fields) {
                match (own.get_mut(&name), value) {
                    (Some(Value::Object(here)), Value::Object(added))
                        if matches!(name.as_str(), "mcpServers" | PROJECTS) =>
                    {
                        for (key, value) in added {
                            here.entry(key).or_insert(value);
                        }
                    }
                    (Some(_), value) if name == "oauthAccount" => drop(own.insert(name, value)),
                    (Some(_), _) => {}
                    (None, value) => drop(own.insert(name, value)),
                }
            }
            *fields = own;
        }
        Ok(Some(state.to_string().into_bytes()))
    }
}

/// A folder's name as Claude Code writes it.
fn slug(folder: &Path) -> String {
    let folder = folder.to_string_lossy();
    folder.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

impl Provider for ClaudeCode {
    fn app(&self) -> App {
        App::ClaudeCode
    }

    fn receiver(&self, machine: &Machine) -> Receiver {
        let program = machine.program(&["claude"]);
        Receiver {
            // The files are of use as soon as it is installed.
            supported: true,
            limitation: program.is_none().then(|| "Claude Code is not installed yet".to_owned()),
            app_installed: program.is_some(),
            app_running: false,
            scopes: vec![Scope::Session, Scope::Full],
        }
    }

    fn manifest(&self, machine: &Machine, scope: Scope) -> Result<Manifest> {
        if scope == Scope::Tabs {
            let why = "Claude Code has no tabs";
            return Err(Error::new(Kind::CapabilityMissing, why).hint("Name the scope `session`"));
        }
        let items = home_files::list(self, machine, scope);
        if items.is_empty() {
            let why = "Claude Code has never been used here";
            return Err(Error::new(Kind::NotFound, why).hint("Start it once, or name another app"));
        }
        let has_login = items.iter().any(|item| item.relative_path == ".credentials.json");
        let mut manifest = Manifest::new(App::ClaudeCode, scope, "default", None, items);
        if has_login {
            manifest.notes.push(
                "Two machines with one login may sign each other out; sign in again there if so."
                    .to_owned(),
            );
        }
        if scope == Scope::Full {
            manifest.notes.push(
                "Plugins do not move, and paths within conversations stay as they were.".to_owned(),
            );
        }
        Ok(manifest)
    }

    fn capture(
        &self,
        machine: &Machine,
        _manifest: &Manifest,
        selection: &Selection,
        payload: &mut PayloadWriter,
    ) -> Result<()> {
        home_files::capture(self, machine, selection, payload)
    }

    fn import(
        &self,
        machine: &Machine,
        payload: &Payload,
        options: &ImportOptions,
        journal: &mut dyn Journal,
    ) -> Result<Imported> {
        let replaces = options.into == Into::Replacing;
        home_files::import(self, machine, payload, replaces, &Self::folder(machine), journal)
    }

    fn wipe(&self, _: &Machine, changes: &[Change], _: bool) -> Result<Undone> {
        undo::undo(changes)
    }
}
