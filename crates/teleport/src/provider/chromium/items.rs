//! What a Chromium profile is made of.

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
    /// The cookie database; carried as fields.
    Cookies,
    /// The local storage of all origins; carried as entries.
    LocalStorage,
    /// The files of the last session, which only grow.
    Sessions,
    /// One LevelDB store.
    Store,
    /// LevelDB stores and folders of files, by origin or extension.
    Stores,
    /// A SQLite database; these columns of these tables are encrypted.
    Database(&'static [(&'static str, &'static str)]),
    /// A file that is replaced as a whole.
    File,
    /// A folder of files that do not change.
    Folder,
}

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
/// What is not here stays: locks, caches, crash reports, components that the browser downloads again,
/// and keys that are bound to the machine (`Device Bound Sessions`).
#[rustfmt::skip]
pub(super) const ITEMS: &[Item] = &[
    item(Scope::Tabs, false, Form::Sessions, "Sessions", "Open windows and tabs"),
    item(Scope::Session, true, Form::Cookies, "Cookies", "Cookies, which keep you signed in"),
    item(Scope::Session, true, Form::LocalStorage, "Local Storage/leveldb", "What sites store in this browser (local storage)"),
    item(Scope::Session, true, Form::Stores, "IndexedDB", "Databases of sites (IndexedDB)"),
    item(Scope::Session, true, Form::Store, "Session Storage", "What open tabs store (session storage)"),
    item(Scope::Full, false, Form::File, "Bookmarks", "Bookmarks"),
    item(Scope::Full, false, Form::File, "Preferences", "Settings"),
    item(Scope::Full, false, Form::File, "Secure Preferences", "Settings of extensions and search"),
    item(Scope::Full, false, Form::Folder, "Extensions", "Extensions"),
    item(Scope::Full, false, Form::Store, "Extension State", "State of extensions"),
    item(Scope::Full, false, Form::Store, "Extension Rules", "Rules of extensions"),
    item(Scope::Full, false, Form::Store, "Extension Scripts", "Scripts of extensions"),
    item(Scope::Full, true, Form::Stores, "Local Extension Settings", "Data of extensions, such as wallets and password managers"),
    item(Scope::Full, true, Form::Stores, "Sync Extension Settings", "Synchronized data of extensions"),
    item(Scope::Full, true, Form::Database(&[("logins", "password_value")]), "Login Data", "Saved passwords"),
    item(Scope::Full, true, Form::Database(WEB_DATA), "Web Data", "Addresses, payment cards and other form data"),
    item(Scope::Full, true, Form::Database(&[]), "History", "Browsing history"),
    item(Scope::Full, true, Form::Database(&[]), "Favicons", "Icons of visited sites"),
    item(Scope::Full, true, Form::Database(&[]), "Top Sites", "Most visited sites"),
    item(Scope::Full, true, Form::Database(&[]), "Shortcuts", "What was typed into the address bar"),
];

const WEB_DATA: &[(&str, &str)] = &[
    ("credit_cards", "card_number_encrypted"),
    ("local_ibans", "value_encrypted"),
    ("local_stored_cvc", "value_encrypted"),
    ("server_stored_cvc", "value_encrypted"),
];

/// Tables whose rows are bound to the machine or to the browser's own account, and do not move.
pub(super) const BOUND: &[&str] = &["token_service"];

impl Item {
    /// The item of this name.
    pub(super) fn named(path: &str) -> Option<&'static Self> {
        ITEMS.iter().find(|item| item.path == path)
    }

    /// Whether a file of this name, below the profile, can belong to the item.
    pub(super) fn may_hold(&self, path: &str) -> bool {
        let below = || path.strip_prefix(self.path)?.strip_prefix('/');
        match self.form {
            Form::Cookies | Form::LocalStorage | Form::Database(_) | Form::File => {
                path == self.path
            }
            Form::Sessions => below().is_some_and(is_session_file),
            Form::Store => below().is_some_and(is_store_file),
            Form::Stores => below().is_some_and(|rest| match rest.split_once('/') {
                Some((folder, file)) if folder.ends_with(".blob") => {
                    file.split('/').all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
                }
                Some((_, file)) => is_store_file(file),
                None => false,
            }),
            Form::Folder => below().is_some_and(|rest| {
                let id = rest.split('/').next().unwrap_or_default();
                id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'a'..=b'p'))
            }),
        }
    }
}

fn is_session_file(name: &str) -> bool {
    ["Session_", "Tabs_"].iter().any(|start| {
        name.strip_prefix(start)
            .is_some_and(|time| !time.is_empty() && time.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// The names that LevelDB gives its files, without its lock and its own log.
pub(super) fn is_store_file(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    name == "CURRENT"
        || name.strip_prefix("MANIFEST-").is_some_and(number)
        || [".ldb", ".sst", ".log"]
            .iter()
            .any(|ending| name.strip_suffix(ending).is_some_and(number))
}

/// Whether a file or folder of a profile belongs into a copy of it: not locks, caches, and what the
/// browser makes again.
pub(super) fn is_worth_cloning(name: &str) -> bool {
    let name = name.trim_end_matches('/');
    let last = name.rsplit('/').next().unwrap_or(name);
    let is_cache = last.ends_with("Cache") || last.starts_with("Cache") || last == "CacheStorage";
    !is_cache && !last.starts_with("Singleton") && !matches!(last, "LOCK" | "LOG" | "LOG.old")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_the_browser_writes_belong_to_an_item() {
        let holds = |item: &str, path: &str| Item::named(item).unwrap().may_hold(path);
        for (item, path) in [
            ("Cookies", "Cookies"),
            ("Sessions", "Sessions/Session_13440541641985593"),
            ("Sessions", "Sessions/Tabs_1"),
            ("IndexedDB", "IndexedDB/https_a.example_0.indexeddb.leveldb/000003.log"),
            ("IndexedDB", "IndexedDB/https_a.example_0.indexeddb.blob/1/00/a"),
            ("Session Storage", "Session Storage/MANIFEST-000001"),
            ("Extensions", "Extensions/abcdefghijklmnopabcdefghijklmnop/1.0_0/manifest.json"),
        ] {
            assert!(holds(item, path), "{item}: {path}");
        }
        for (item, path) in [
            ("Cookies", "Cookies-journal"),
            ("Cookies", "Preferences"),
            ("Sessions", "Sessions/.bashrc"),
            ("Sessions", "SessionsX"),
            ("Sessions", "Sessions/Session_1/x"),
            ("IndexedDB", "IndexedDB/x.leveldb/LOCK"),
            ("IndexedDB", "IndexedDB/000003.log"),
            ("IndexedDB", "IndexedDB/x.blob/../../a"),
            ("Session Storage", "Session Storage/x.so"),
            ("Extensions", "Extensions/x/manifest.json"),
        ] {
            assert!(!holds(item, path), "{item}: {path}");
        }
        assert!(Item::named("SingletonLock").is_none());
    }
}
