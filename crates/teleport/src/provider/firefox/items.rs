//! What a Firefox profile is made of.

use crate::manifest::Scope;

/// One item, and how it is to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Below the profile.
    pub(super) path: &'static str,
    pub(super) label: &'static str,
    /// The smallest scope that has it.
    pub(super) scope: Scope,
    pub(super) is_sensitive: bool,
    pub(super) form: Form,
}

/// How an item is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The last session; carried as tabs alone.
    Session,
    /// The cookie database; carried as fields.
    Cookies,
    /// A folder of databases and files for each origin whose name begins like this.
    Origins(&'static [&'static str]),
    /// A SQLite database.
    Database,
    /// A file that is replaced as a whole.
    File,
    /// Files of a folder with this ending.
    Folder(&'static str),
    /// Passwords, and the database of the key that they are encrypted with.
    Logins,
}

/// The database that passwords need.
pub(super) const KEYS: &str = "key4.db";

const fn item(
    scope: Scope,
    is_sensitive: bool,
    form: Form,
    path: &'static str,
    label: &'static str,
) -> Item {
    Item { path, label, scope, is_sensitive, form }
}

/// Every item, in the order in which people see them.
///
/// What is not here stays: locks, caches, telemetry, `user.js` and `pkcs11.txt`, which run or load what
/// they name, and lists of add-ons with absolute paths.
#[rustfmt::skip]
pub(super) const ITEMS: &[Item] = &[
    item(Scope::Tabs, false, Form::Session, "sessionstore.jsonlz4", "Open windows and tabs"),
    item(Scope::Session, true, Form::Cookies, "cookies.sqlite", "Cookies, which keep you signed in"),
    item(Scope::Session, true, Form::Origins(&["http+++", "https+++"]), "storage/default", "What sites store in this browser"),
    item(Scope::Full, false, Form::Folder(".jsonlz4"), "bookmarkbackups", "Bookmarks"),
    item(Scope::Full, false, Form::File, "prefs.js", "Settings"),
    item(Scope::Full, false, Form::File, "handlers.json", "What opens which kind of file"),
    item(Scope::Full, false, Form::File, "containers.json", "Container tabs"),
    item(Scope::Full, false, Form::File, "search.json.mozlz4", "Search engines"),
    item(Scope::Full, false, Form::Database, "permissions.sqlite", "Permissions of sites"),
    item(Scope::Full, false, Form::Database, "content-prefs.sqlite", "Settings for single sites"),
    item(Scope::Full, true, Form::Logins, "logins.json", "Saved passwords"),
    item(Scope::Full, true, Form::Database, "places.sqlite", "Browsing history and bookmarks"),
    item(Scope::Full, true, Form::Database, "favicons.sqlite", "Icons of visited sites"),
    item(Scope::Full, true, Form::Database, "formhistory.sqlite", "What was typed into forms"),
    item(Scope::Full, true, Form::Database, "cert9.db", "Certificates"),
    item(Scope::Full, true, Form::File, "signedInUser.json", "The account of Firefox Sync"),
];

impl Item {
    /// The item of this name.
    pub(super) fn named(path: &str) -> Option<&'static Self> {
        ITEMS.iter().find(|item| item.path == path)
    }

    /// Whether a file of this name, below the profile, can belong to the item.
    pub(super) fn may_hold(&self, path: &str) -> bool {
        let below = || path.strip_prefix(self.path)?.strip_prefix('/');
        match self.form {
            Form::Session | Form::Cookies | Form::Database | Form::File => path == self.path,
            Form::Logins => path == self.path || path == KEYS,
            Form::Folder(ending) => {
                below().is_some_and(|name| !name.contains('/') && name.ends_with(ending))
            }
            Form::Origins(starts) => {
                below().and_then(|rest| rest.split_once('/')).is_some_and(|(origin, file)| {
                    starts.iter().any(|start| origin.starts_with(start)) && is_origin_file(file)
                })
            }
        }
    }
}

/// Files of one origin: its local storage, its databases with their blobs, and what Firefox notes.
pub(super) fn is_origin_file(name: &str) -> bool {
    let is_database = |name: &str| !name.contains('/') && name.ends_with(".sqlite");
    match name.split_once('/') {
        None => matches!(name, ".metadata" | ".metadata-v2"),
        Some(("ls", file)) => matches!(file, "data.sqlite" | "usage"),
        Some(("idb", file)) => {
            is_database(file)
                || file.split_once(".files/").is_some_and(|(name, blob)| {
                    !name.contains('/')
                        && !blob.is_empty()
                        && blob.bytes().all(|b| b.is_ascii_digit())
                })
        }
        Some(_) => false,
    }
}

/// The host in `https+++a.example+8443^partitionKey=…`.
pub(super) fn origin_host(folder: &str) -> Option<&str> {
    let (_, rest) = folder.split_once("+++")?;
    rest.split(['+', '^']).next().filter(|host| !host.is_empty())
}

/// Whether a file or folder of a profile belongs into a copy of it.
pub(super) fn is_worth_cloning(name: &str) -> bool {
    let is_left = matches!(
        name.trim_end_matches('/'),
        "lock"
            | ".parentlock"
            | "parent.lock"
            | "MarionetteActivePort"
            | "WebDriverBiDiServer.json"
            | "cache2"
            | "startupCache"
            | "shader-cache"
            | "thumbnails"
            | "crashes"
            | "minidumps"
            | "storage/temporary"
    );
    !is_left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_the_browser_writes_belong_to_an_item() {
        let holds = |item: &str, path: &str| Item::named(item).unwrap().may_hold(path);
        for (item, path) in [
            ("storage/default", "storage/default/http+++127.0.0.1+18081/ls/data.sqlite"),
            ("storage/default", "storage/default/https+++a.example/.metadata-v2"),
            ("storage/default", "storage/default/https+++a.example/idb/1aet-es.sqlite"),
            ("storage/default", "storage/default/https+++a.example/idb/1aet-es.files/12"),
            ("logins.json", "key4.db"),
            ("bookmarkbackups", "bookmarkbackups/bookmarks-2026-11-30_12.jsonlz4"),
        ] {
            assert!(holds(item, path), "{item}: {path}");
        }
        for (item, path) in [
            ("storage/default", "storage/default/moz-extension+++x/ls/data.sqlite"),
            ("storage/default", "storage/default/https+++a.example/x.sh"),
            ("storage/default", "storage/default/https+++a.example/idb/../../user.js"),
            ("storage/default", "storage/default/https+++a.example"),
            ("prefs.js", "user.js"),
            ("cookies.sqlite", "key4.db"),
        ] {
            assert!(!holds(item, path), "{item}: {path}");
        }
        assert!(Item::named("user.js").is_none());
        assert_eq!(origin_host("http+++127.0.0.1+18081"), Some("127.0.0.1"));
        assert_eq!(
            origin_host("https+++a.example^partitionKey=%28https%2Cb%29"),
            Some("a.example")
        );
    }
}
