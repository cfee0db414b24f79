//! Local storage of Chromium and Electron: one LevelDB store for all origins.
//!
//! Keys are `_<origin>\0<name>` for what pages stored, `META:<origin>` and `METAACCESS:<origin>` for
//! what the browser notes about them, and `VERSION`. Carried as entries, so that a person can choose
//! sites and a destination keeps its own.

use std::io::{Read, Write};
use std::path::Path;

use rusty_leveldb::{DB, LdbIterator as _, Options, Status};
use serde::{Deserialize, Serialize};
use spaceport_types::{Cause, Error, Kind, Result};
use zeroize::Zeroizing;

use super::cookies::Lines;
use crate::journal::{Change, Value};
use crate::transcode::secret::Secret;

/// Longest line of a carried entry. A page may store 10 MB, all of it in one value; base64 and the
/// quotes around it make that 14.
const MAX_LINE: u64 = 16 << 20;

/// Most entries in one payload.
const MAX_ENTRIES: usize = 1_000_000;

/// The schema of the store that Chromium has written since 2016.
const VERSION: (&[u8], &[u8]) = (b"VERSION", b"1");

/// A LevelDB store with the usual order of keys, which no app has open.
pub(super) struct Store {
    db: DB,
    path: std::path::PathBuf,
}

impl Store {
    /// Opens one.
    ///
    /// # Errors
    ///
    /// `corrupt_bundle` for a store whose keys have another order: to open it would destroy it.
    pub(super) fn open(path: &Path) -> Result<Self> {
        if path.join("CURRENT").is_file() && !has_usual_order(path)? {
            let why = format!("`{}` has an order of its own", path.display());
            return Err(Error::because(Cause::CorruptBundle, why));
        }
        let options = Options { create_if_missing: true, ..Options::default() };
        let db = DB::open(path, options).map_err(|status| failed(path, &status))?;
        Ok(Self { db, path: path.to_owned() })
    }

    pub(super) fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.db.get(key).map(|value| value.to_vec())
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.db.put(key, value).map_err(|status| failed(&self.path, &status))
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.db.delete(key).map_err(|status| failed(&self.path, &status))
    }

    pub(super) fn close(mut self) -> Result<()> {
        self.db.flush().map_err(|status| failed(&self.path, &status))?;
        self.db.close().map_err(|status| failed(&self.path, &status))
    }

    /// Calls `each` with every entry, in order.
    fn each(&mut self, mut each: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut entries = self.db.new_iter().map_err(|status| failed(&self.path, &status))?;
        while entries.advance() {
            if let Some((key, value)) = entries.current() {
                each(&key, &value)?;
            }
        }
        Ok(())
    }
}

/// The manifest of a store names its order of keys at the beginning.
fn has_usual_order(store: &Path) -> Result<bool> {
    let current = std::fs::read_to_string(store.join("CURRENT"))?;
    let mut start = Vec::new();
    if let Some((manifest, _)) = crate::snapshot::file(&store.join(current.trim_end()))? {
        manifest.take(256).read_to_end(&mut start)?;
    }
    Ok(start.windows(26).any(|name| name == b"leveldb.BytewiseComparator"))
}

fn failed(path: &Path, status: &Status) -> Error {
    // The status' text may quote what is stored.
    let why = format!("the store `{}` cannot be used: {:?}", path.display(), status.code);
    Error::new(Kind::Io, why).with("path", path.display())
}

/// One entry on its way.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Carried {
    key: Secret,
    value: Secret,
}

/// The host of the origin that a key belongs to; `None` for keys of the store itself.
fn host(key: &[u8]) -> Option<&str> {
    let origin = [&b"_"[..], b"META:", b"METAACCESS:"].iter().find_map(|p| key.strip_prefix(*p))?;
    let origin = origin.split(|byte| *byte == 0).next()?;
    let (_, rest) = std::str::from_utf8(origin).ok()?.split_once("://")?;
    // A partitioned origin goes on with `^` and the site that embeds it.
    let end = rest.find(['/', '^']).unwrap_or(rest.len());
    let authority = &rest[..end];
    // A port, but not the last part of an IPv6 address.
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    (!host.is_empty()).then_some(host)
}

/// Hosts that have something in the store, one per entry.
pub(super) fn hosts(store: &Path) -> Result<Vec<String>> {
    let mut store = Store::open(store)?;
    let mut hosts = Vec::new();
    store.each(|key, _| {
        if key.starts_with(b"_") {
            hosts.extend(host(key).map(str::to_owned));
        }
        Ok(())
    })?;
    Ok(hosts)
}

/// Writes the entries of the chosen sites down; how many.
pub(super) fn write(
    store: &Path,
    chosen: &dyn Fn(&str) -> bool,
    to: &mut dyn Write,
) -> Result<usize> {
    let mut written = 0;
    let mut store = Store::open(store)?;
    store.each(|key, value| {
        if host(key).is_some_and(chosen) {
            let entry =
                Carried { key: Secret::new(key.to_vec()), value: Secret::new(value.to_vec()) };
            let mut line = Zeroizing::new(serde_json::to_vec(&entry).map_err(|error| {
                Error::new(Kind::Internal, "an entry could not be written").source(error)
            })?);
            line.push(b'\n');
            to.write_all(&line)?;
            written += 1;
        }
        Ok(())
    })?;
    Ok(written)
}

/// Puts entries that [`write`] wrote into the store at `staged`, which will be at `published`.
pub(super) fn merge(
    from: impl Read,
    staged: &Path,
    published: &Path,
    changes: &mut Vec<Change>,
) -> Result<()> {
    let mut lines = Lines::new(from);
    let mut store = Store::open(staged)?;
    if store.get(VERSION.0).is_none() {
        store.put(VERSION.0, VERSION.1)?;
    }
    let mut count = 0;
    while let Some(Carried { key, value }) = lines.next_within(MAX_LINE)? {
        count += 1;
        if count > MAX_ENTRIES {
            let why = format!("more than {MAX_ENTRIES} entries of local storage");
            return Err(Error::new(Kind::LimitExceeded, why).with("limit", MAX_ENTRIES));
        }
        if host(key.expose()).is_none() {
            let why = "an entry of local storage belongs to no site";
            return Err(Error::because(Cause::CorruptBundle, why));
        }
        changes.push(Change::Entry {
            store: published.to_owned(),
            key: key.expose().to_vec(),
            previous: store.get(key.expose()).map(Value::Bytes),
        });
        store.put(key.expose(), value.expose())?;
    }
    store.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_their_host() {
        let keys: [(&[u8], Option<&str>); 9] = [
            (b"_https://a.example\0\x01k", Some("a.example")),
            (b"_http://127.0.0.1:8080\0\x01k", Some("127.0.0.1")),
            (b"_http://[::1]:8080\0\x01k", Some("[::1]")),
            (b"META:https://a.example", Some("a.example")),
            (b"METAACCESS:https://a.example", Some("a.example")),
            (b"_https://a.example/^0https://b.example\0\x01k", Some("a.example")),
            (b"VERSION", None),
            (b"_nothing", None),
            (b"", None),
        ];
        for (key, expected) in keys {
            assert_eq!(host(key), expected, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn entries_of_chosen_sites_arrive_beside_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut store = Store::open(&from).unwrap();
        for key in
            ["_https://a.example\0\x01k", "META:https://a.example", "_https://b.example\0\x01k"]
        {
            store.put(key.as_bytes(), b"new").unwrap();
        }
        store.close().unwrap();
        let mut store = Store::open(&to).unwrap();
        store.put(b"_https://a.example\0\x01k", b"old").unwrap();
        store.put(b"_https://c.example\0\x01k", b"own").unwrap();
        store.close().unwrap();

        let mut carried = Vec::new();
        assert_eq!(write(&from, &|host| host == "a.example", &mut carried).unwrap(), 2);
        let mut journal = Vec::new();
        merge(&*carried, &to, &to, &mut journal).unwrap();
        let mut store = Store::open(&to).unwrap();
        assert_eq!(store.get(b"_https://a.example\0\x01k").unwrap(), b"new");
        assert_eq!(store.get(b"_https://c.example\0\x01k").unwrap(), b"own");
        assert_eq!(store.get(b"_https://b.example\0\x01k"), None);
        assert_eq!(store.get(b"VERSION").unwrap(), b"1");
        store.close().unwrap();

        for _ in 0..2 {
            crate::provider::undo::undo(&journal).unwrap();
            let mut store = Store::open(&to).unwrap();
            assert_eq!(store.get(b"_https://a.example\0\x01k").unwrap(), b"old");
            assert_eq!(store.get(b"META:https://a.example"), None);
            assert_eq!(store.get(b"_https://c.example\0\x01k").unwrap(), b"own");
            store.close().unwrap();
        }
    }
}
