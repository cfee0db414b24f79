//! What of an app could move: items that a person can read, choose and agree to.
//!
//! A manifest is read, never written: making one changes nothing on the machine. Its digest is what
//! consent is bound to, so a person's yes covers exactly the items they were shown.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};

use crate::digest::Digest;

/// An app whose state can move.
///
/// The serialized names are a contract with every client. Append; never rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum App {
    /// Mozilla Firefox, any channel.
    Firefox,
    /// Chromium.
    Chromium,
    /// Google Chrome.
    Chrome,
    /// Visual Studio Code.
    #[serde(rename = "vscode")]
    VsCode,
    /// Claude Code.
    ClaudeCode,
}

impl App {
    /// Every app, in declaration order.
    pub const ALL: [Self; 5] =
        [Self::Firefox, Self::Chromium, Self::Chrome, Self::VsCode, Self::ClaudeCode];

    /// Its name on the wire and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Firefox => "firefox",
            Self::Chromium => "chromium",
            Self::Chrome => "chrome",
            Self::VsCode => "vscode",
            Self::ClaudeCode => "claude-code",
        }
    }

    /// Its name for people.
    pub const fn display_name(self) -> &'static str {
        match self {
            Self::Firefox => "Firefox",
            Self::Chromium => "Chromium",
            Self::Chrome => "Google Chrome",
            Self::VsCode => "Visual Studio Code",
            Self::ClaudeCode => "Claude Code",
        }
    }

    /// The app called `name`.
    ///
    /// # Errors
    ///
    /// `capability_missing` naming the apps there are.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|app| app.as_str() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            Error::new(Kind::CapabilityMissing, format!("`{name}` is not an app that can move"))
                .hint(format!("Name one of: {known}"))
        })
    }
}

impl fmt::Display for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much of an app's state a manifest covers.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// What is open: tabs, windows, folders. No secrets.
    Tabs,
    /// What keeps a person signed in, and what is open.
    Session,
    /// The whole profile, without caches and locks.
    #[default]
    Full,
}

impl Scope {
    /// Its name on the wire and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tabs => "tabs",
            Self::Session => "session",
            Self::Full => "full",
        }
    }
}

/// One thing that can be chosen: a file, a folder, or a kind of record such as cookies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Names the item; below the profile, separated by `/`.
    pub relative_path: String,
    /// What it is, for people.
    pub label: String,
    /// How many bytes it takes on disk, before compression.
    pub estimated_bytes: u64,
    /// Whether it can sign someone in, or tells what they did. Moves only when acknowledged.
    pub is_sensitive: bool,
    /// Whether it moves when nothing was chosen.
    pub is_checked_by_default: bool,
    /// What it holds per site, where a person may choose among sites.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sites: Vec<Site>,
}

/// What an item holds of one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// The registrable part is not known here: this is the host as the app stores it, without a
    /// leading dot.
    pub host: String,
    /// How many records, such as cookies.
    pub records: u64,
}

/// Everything of one app that could move, as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The app.
    pub app: App,
    /// Its name for people.
    pub display_name: String,
    /// How much is covered.
    pub scope: Scope,
    /// The profile's name in the app, where it has several.
    pub profile: String,
    /// The version that last wrote the profile, as far as it is known.
    pub app_version: Option<String>,
    /// What can be chosen.
    pub items: Vec<Item>,
    /// The sum over all items.
    pub total_estimated_bytes: u64,
    /// What will not survive, and what a person should know. One sentence each.
    pub notes: Vec<String>,
}

impl Manifest {
    /// A manifest of these items.
    pub fn new(
        app: App,
        scope: Scope,
        profile: &str,
        app_version: Option<String>,
        items: Vec<Item>,
    ) -> Self {
        Self {
            app,
            display_name: app.display_name().to_owned(),
            scope,
            profile: profile.to_owned(),
            app_version,
            total_estimated_bytes: items.iter().map(|item| item.estimated_bytes).sum(),
            items,
            notes: Vec::new(),
        }
    }

    /// What consent is bound to: the app, the scope and, per item, its name and whether it is
    /// sensitive. Sizes are left out, since a running app changes them all the time.
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        let mut field = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        field(b"spaceport manifest 1");
        field(self.app.as_str().as_bytes());
        field(self.scope.as_str().as_bytes());
        field(self.profile.as_bytes());
        for item in &self.items {
            field(item.relative_path.as_bytes());
            field(&[u8::from(item.is_sensitive)]);
        }
        Digest(hash.finalize().into())
    }

    /// What was chosen of it: the named items, or those checked by default.
    ///
    /// # Errors
    ///
    /// `invalid_argument` for a name that is not in the manifest; `teleport_refused` with
    /// `nothing_selected` for an empty list, and with `not_acknowledged` when a sensitive item was
    /// chosen and `acknowledge_sensitive` is false.
    pub fn select(&self, choice: &Choice) -> Result<Selection> {
        let items: Vec<Item> = match &choice.include {
            None => self.items.iter().filter(|item| item.is_checked_by_default).cloned().collect(),
            Some(names) => {
                let unknown = names
                    .iter()
                    .find(|name| !self.items.iter().any(|item| item.relative_path == **name));
                if let Some(name) = unknown {
                    return Err(Error::new(
                        Kind::InvalidArgument,
                        format!("`{name}` is not in the manifest of {}", self.display_name),
                    )
                    .with("include", name)
                    .hint("Read the manifest, and name items by their `relative_path`"));
                }
                self.items
                    .iter()
                    .filter(|item| names.contains(&item.relative_path))
                    .cloned()
                    .collect()
            }
        };
        if items.is_empty() {
            return Err(Error::because(Cause::NothingSelected, "nothing was chosen to move")
                .hint("Leave the list out for what is chosen by default, or name items"));
        }
        if let Some(item) = items.iter().find(|item| item.is_sensitive)
            && !choice.acknowledge_sensitive
        {
            return Err(Error::because(
                Cause::NotAcknowledged,
                format!("`{}` is sensitive: {}", item.relative_path, item.label),
            )
            .with("item", &item.relative_path)
            .hint("Set `acknowledge_sensitive` to move it, or leave it out"));
        }
        if let Some(sites) = &choice.sites {
            if sites.is_empty() {
                return Err(Error::because(Cause::NothingSelected, "no site was chosen")
                    .hint("Leave the list of sites out for all of them, or name some"));
            }
            let chosen = Selection { items, sites: Some(sites.clone()) };
            let known = |host: &Site| chosen.has_site(&host.host);
            if !chosen.items.iter().flat_map(|item| &item.sites).any(known) {
                return Err(Error::new(
                    Kind::InvalidArgument,
                    format!("{} holds nothing of the sites named", self.display_name),
                )
                .with("sites", sites.join(" "))
                .hint("Read the manifest: each item lists the sites it holds"));
            }
            return Ok(chosen);
        }
        Ok(Selection { items, sites: None })
    }
}

/// What a caller asks to move.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Items by `relative_path`; `None` is what is checked by default.
    pub include: Option<Vec<String>>,
    /// Only the records of these hosts and of those below them; `None` is every site.
    pub sites: Option<Vec<String>>,
    /// Whether sensitive items may move.
    pub acknowledge_sensitive: bool,
}

/// Items of one manifest that were chosen, acknowledged where that is needed. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    items: Vec<Item>,
    sites: Option<Vec<String>>,
}

impl Selection {
    /// The chosen items.
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Whether the item of this name was chosen.
    pub fn has(&self, relative_path: &str) -> bool {
        self.items.iter().any(|item| item.relative_path == relative_path)
    }

    /// Whether records of this host move: it or a parent domain was chosen, or all were.
    pub fn has_site(&self, host: &str) -> bool {
        let host = host.trim_start_matches('.');
        self.sites.as_ref().is_none_or(|sites| {
            sites.iter().any(|site| {
                let site = site.trim_start_matches('.');
                host.strip_suffix(site).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            })
        })
    }

    /// The hosts that were chosen; `None` is every site.
    pub fn sites(&self) -> Option<&[String]> {
        self.sites.as_deref()
    }

    /// Whether any chosen item is sensitive.
    pub fn is_sensitive(&self) -> bool {
        self.items.iter().any(|item| item.is_sensitive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let item = |name: &str, is_sensitive, sites: &[&str]| Item {
            relative_path: name.to_owned(),
            label: format!("the {name}"),
            estimated_bytes: 10,
            is_sensitive,
            is_checked_by_default: !is_sensitive,
            sites: sites.iter().map(|host| Site { host: (*host).to_owned(), records: 1 }).collect(),
        };
        Manifest::new(
            App::Chromium,
            Scope::Session,
            "Default",
            Some("156.0".to_owned()),
            vec![item("Sessions", false, &[]), item("Cookies", true, &["a.example", "b.example"])],
        )
    }

    fn choice(include: &[&str], acknowledge_sensitive: bool) -> Choice {
        let include = Some(include.iter().map(|name| (*name).to_owned()).collect());
        Choice { include, acknowledge_sensitive, ..Choice::default() }
    }

    #[test]
    fn nothing_sensitive_moves_unasked() {
        let manifest = manifest();
        let default = manifest.select(&Choice::default()).unwrap();
        assert!(default.has("Sessions") && !default.has("Cookies") && !default.is_sensitive());
        let refused = manifest.select(&choice(&["Cookies"], false)).unwrap_err();
        assert_eq!(refused.cause(), Some(Cause::NotAcknowledged));
        assert!(manifest.select(&choice(&["Cookies"], true)).unwrap().has("Cookies"));
    }

    #[test]
    fn empty_and_unknown_choices_are_refused() {
        let manifest = manifest();
        let cause = |choice: &Choice| manifest.select(choice).unwrap_err().cause();
        assert_eq!(cause(&choice(&[], true)), Some(Cause::NothingSelected));
        let none = Choice { sites: Some(Vec::new()), ..choice(&["Cookies"], true) };
        assert_eq!(cause(&none), Some(Cause::NothingSelected));
        let unknown = manifest.select(&choice(&["Cookies", "../x"], true)).unwrap_err();
        assert_eq!(unknown.kind(), Kind::InvalidArgument);
        let other =
            Choice { sites: Some(vec!["c.example".to_owned()]), ..choice(&["Cookies"], true) };
        assert_eq!(manifest.select(&other).unwrap_err().kind(), Kind::InvalidArgument);
    }

    #[test]
    fn a_site_covers_the_hosts_below_it_and_no_lookalike() {
        let choice =
            Choice { sites: Some(vec![".a.example".to_owned()]), ..choice(&["Cookies"], true) };
        let selection = manifest().select(&choice).unwrap();
        for host in ["a.example", ".a.example", "www.a.example"] {
            assert!(selection.has_site(host), "{host}");
        }
        for host in ["nota.example", "b.example", "example", ""] {
            assert!(!selection.has_site(host), "{host}");
        }
    }

    #[test]
    fn consent_covers_what_moves_and_not_how_big_it_is() {
        let shown = manifest();
        let mut later = manifest();
        later.items[0].estimated_bytes += 1;
        assert_eq!(later.digest(), shown.digest());
        later.items[0].is_sensitive = true;
        assert_ne!(later.digest(), shown.digest());
    }
}
