//! Chromium's cookie database, version 24 and what came shortly before.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row, params, params_from_iter};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Result};

use crate::journal::{Change, Value};
use crate::provider::Readable;
use crate::provider::cookies::{self, Cookie, Extra, SameSite};
use crate::provider::database_failed;
use crate::transcode::os_crypt::{Keys, Unreadable};
use crate::transcode::secret::Secret;

/// The newest schema that is known here, which Chromium has written since version 130.
const NEWEST: i64 = 24;

/// From this schema on a value is encrypted together with the hash of its host.
const WITH_HOST_HASH: i64 = 24;

/// Microseconds from 1601, where Chromium's time begins, to 1970.
const EPOCH: i64 = 11_644_473_600_000_000;

/// An empty database, as Chromium makes it.
const EMPTY: &str = "
    CREATE TABLE meta(key LONGVARCHAR NOT NULL UNIQUE PRIMARY KEY, value LONGVARCHAR);
    INSERT INTO meta VALUES('mmap_status', '-1'), ('version', '24'), ('last_compatible_version', '24');
    CREATE TABLE cookies(creation_utc INTEGER NOT NULL, host_key TEXT NOT NULL,
        top_frame_site_key TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
        encrypted_value BLOB NOT NULL, path TEXT NOT NULL, expires_utc INTEGER NOT NULL,
        is_secure INTEGER NOT NULL, is_httponly INTEGER NOT NULL, last_access_utc INTEGER NOT NULL,
        has_expires INTEGER NOT NULL, is_persistent INTEGER NOT NULL, priority INTEGER NOT NULL,
        samesite INTEGER NOT NULL, source_scheme INTEGER NOT NULL, source_port INTEGER NOT NULL,
        last_update_utc INTEGER NOT NULL, source_type INTEGER NOT NULL,
        has_cross_site_ancestor INTEGER NOT NULL);
    CREATE UNIQUE INDEX cookies_unique_index ON cookies(host_key, top_frame_site_key,
        has_cross_site_ancestor, name, path, source_scheme, source_port);
";

/// Columns that tell one cookie from another.
const KEY: [&str; 7] = [
    "host_key",
    "top_frame_site_key",
    "has_cross_site_ancestor",
    "name",
    "path",
    "source_scheme",
    "source_port",
];

/// A cookie database that nobody else has open.
pub(super) struct Database<'a> {
    connection: Connection,
    path: &'a Path,
    /// `meta.version`.
    pub(super) version: i64,
}

/// What could not be carried, by host.
#[derive(Debug, Default)]
pub(super) struct Unread {
    pub(super) without_key: Vec<String>,
    pub(super) damaged: Vec<String>,
}

impl<'a> Database<'a> {
    /// Opens one; makes an empty one where there is none.
    ///
    /// # Errors
    ///
    /// `profile_newer` for a schema that is not known.
    pub(super) fn open(path: &'a Path) -> Result<Self> {
        let failed = |error| database_failed(path, error);
        let is_new = !path.exists();
        if is_new {
            // SQLite would make it readable for everyone, and gives its journal the same mode.
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        }
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_WRITE
                | OpenFlags::SQLITE_OPEN_CREATE
                | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )
        .map_err(failed)?;
        if is_new {
            connection.execute_batch(EMPTY).map_err(failed)?;
        }
        let meta = |key: &str| -> rusqlite::Result<i64> {
            let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?";
            connection.query_row(sql, [key], |row| row.get(0))
        };
        let version = meta("version").map_err(failed)?;
        let oldest_reader = meta("last_compatible_version").unwrap_or(version);
        if oldest_reader > NEWEST {
            let why = format!("the cookies have schema {version}; up to {NEWEST} is known");
            return Err(Error::because(Cause::ProfileNewer, why)
                .with("schema", version)
                .with("known", NEWEST)
                .hint("Update spaceport"));
        }
        Ok(Self { connection, path, version })
    }

    fn failed(&self, error: rusqlite::Error) -> Error {
        database_failed(self.path, error)
    }

    /// The host of every cookie.
    pub(super) fn hosts(&self) -> Result<Vec<String>> {
        let hosts = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare("SELECT host_key FROM cookies")?;
            query.query_map([], |row| row.get(0))?.collect()
        };
        hosts().map_err(|error| self.failed(error))
    }

    /// How many cookies need a key other than the one that everyone knows.
    pub(super) fn bound(&self) -> Result<u64> {
        let sql = "SELECT count(*) FROM cookies
            WHERE length(encrypted_value) > 0 AND substr(encrypted_value, 1, 3) <> CAST('v10' AS BLOB)";
        let count: i64 = self
            .connection
            .query_row(sql, [], |row| row.get(0))
            .map_err(|error| self.failed(error))?;
        Ok(count.unsigned_abs())
    }

    /// The cookies of chosen hosts, decrypted.
    pub(super) fn read(
        &self,
        keys: &Keys,
        chosen: &dyn Fn(&str) -> bool,
    ) -> Result<(Vec<Cookie>, Unread)> {
        let mut cookies = Vec::new();
        let mut unread = Unread::default();
        let failed = |error| self.failed(error);
        let mut query = self.connection.prepare("SELECT * FROM cookies").map_err(failed)?;
        let mut rows = query.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let host: String = row.get("host_key").map_err(failed)?;
            if !chosen(&host) {
                continue;
            }
            match self.value(row, &host, keys) {
                Ok(value) => cookies.push(cookie(row, host, value).map_err(failed)?),
                Err(Unreadable::NoKey) => unread.without_key.push(host),
                Err(Unreadable::Damaged) => unread.damaged.push(host),
            }
        }
        Ok((cookies, unread))
    }

    fn value(&self, row: &Row<'_>, host: &str, keys: &Keys) -> Result<Secret, Unreadable> {
        let encrypted: Vec<u8> = row.get("encrypted_value").map_err(|_| Unreadable::Damaged)?;
        if encrypted.is_empty() {
            let plain: String = row.get("value").map_err(|_| Unreadable::Damaged)?;
            return Ok(Secret::new(plain.into_bytes()));
        }
        let plain = keys.decrypt(&encrypted)?;
        if self.version < WITH_HOST_HASH {
            return Ok(plain);
        }
        // Without this check a row copied to another host would be taken for that host's.
        let hash = Sha256::digest(host.as_bytes());
        let value = plain.expose().strip_prefix(hash.as_slice()).ok_or(Unreadable::Damaged)?;
        Ok(Secret::new(value.to_vec()))
    }

    /// Puts cookies in, encrypted with the key that everyone knows: the browser reads them whatever
    /// keyring it has, and encrypts them anew as it writes them. `published` is where this database
    /// will be.
    pub(super) fn merge(
        &mut self,
        cookies: &[Cookie],
        keys: &Keys,
        published: &Path,
        changes: &mut Vec<Change>,
    ) -> Result<()> {
        let path = self.path;
        let failed = |error| database_failed(path, error);
        let columns: Vec<String> = {
            let query = self.connection.prepare("SELECT * FROM cookies LIMIT 0").map_err(failed)?;
            query.column_names().map(str::to_owned).collect()
        };
        let has = |name: &str| columns.iter().any(|column| column == name);
        let version = self.version;
        let transaction = self.connection.transaction().map_err(failed)?;
        for cookie in cookies {
            let fields: Vec<(&str, Value)> =
                fields(cookie, version, keys).into_iter().filter(|(name, _)| has(name)).collect();
            let key: Vec<(String, Value)> = fields
                .iter()
                .filter(|(name, _)| KEY.contains(name))
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect();
            let wanted: Vec<String> = key.iter().map(|(name, _)| format!("{name} = ?")).collect();
            let select = format!("SELECT * FROM cookies WHERE {}", wanted.join(" AND "));
            let previous = {
                let mut query = transaction.prepare(&select).map_err(failed)?;
                let mut rows = query
                    .query(params_from_iter(key.iter().map(|(_, value)| value)))
                    .map_err(failed)?;
                rows.next()
                    .map_err(failed)?
                    .map(|row| whole(row, &columns))
                    .transpose()
                    .map_err(failed)?
            };
            let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            let insert = format!(
                "INSERT OR REPLACE INTO cookies ({}) VALUES ({})",
                names.join(", "),
                vec!["?"; names.len()].join(", ")
            );
            transaction
                .prepare(&insert)
                .and_then(|mut insert| {
                    insert.execute(params_from_iter(fields.iter().map(|(_, value)| value)))
                })
                .map_err(failed)?;
            changes.push(Change::Row {
                database: published.to_owned(),
                table: "cookies".to_owned(),
                key,
                previous,
            });
        }
        transaction.commit().map_err(failed)
    }

    /// How many of these cookies can be read back, by host.
    pub(super) fn readable(&self, wanted: &[Cookie], keys: &Keys) -> Result<Vec<Readable>> {
        let failed = |error| self.failed(error);
        let mut query = self
            .connection
            .prepare("SELECT * FROM cookies WHERE host_key = ? AND name = ? AND path = ?")
            .map_err(failed)?;
        let mut hosts = Vec::new();
        for cookie in wanted {
            let mut rows =
                query.query(params![cookie.host, cookie.name, cookie.path]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                if self.value(row, &cookie.host, keys).is_ok_and(|value| value == cookie.value) {
                    hosts.push(cookie.host.as_str());
                    break;
                }
            }
        }
        let sites = cookies::sites(hosts.into_iter());
        Ok(sites
            .into_iter()
            .map(|site| Readable { host: site.host, cookies: site.records })
            .collect())
    }
}

fn whole(row: &Row<'_>, columns: &[String]) -> rusqlite::Result<Vec<(String, Value)>> {
    let values = columns
        .iter()
        .enumerate()
        .map(|(index, column)| Ok((column.clone(), row.get_ref(index).map(Value::from)?)));
    values.collect()
}

/// A column that older schemas do not have.
fn newer(row: &Row<'_>, name: &str, otherwise: i64) -> i64 {
    match row.get_ref(name) {
        Ok(ValueRef::Integer(value)) => value,
        _ => otherwise,
    }
}

fn cookie(row: &Row<'_>, host: String, value: Secret) -> rusqlite::Result<Cookie> {
    let since_1970 =
        |name| Ok::<_, rusqlite::Error>(row.get::<_, i64>(name)?.saturating_sub(EPOCH));
    let has_expires = row.get::<_, i64>("has_expires")? != 0;
    let is_persistent = row.get::<_, i64>("is_persistent")? != 0;
    Ok(Cookie {
        host,
        path: row.get("path")?,
        name: row.get("name")?,
        value,
        partition: row.get("top_frame_site_key").unwrap_or_default(),
        expires_us: is_persistent.then(|| since_1970("expires_utc")).transpose()?,
        created_us: since_1970("creation_utc")?,
        accessed_us: since_1970("last_access_utc")?,
        updated_us: newer(row, "last_update_utc", EPOCH).saturating_sub(EPOCH),
        is_secure: row.get::<_, i64>("is_secure")? != 0,
        is_http_only: row.get::<_, i64>("is_httponly")? != 0,
        same_site: match row.get::<_, i64>("samesite")? {
            0 => SameSite::None,
            1 => SameSite::Lax,
            2 => SameSite::Strict,
            _ => SameSite::Unspecified,
        },
        extra: Extra::Chromium {
            has_expires,
            priority: row.get("priority")?,
            source_scheme: newer(row, "source_scheme", 0),
            source_port: newer(row, "source_port", -1),
            source_type: newer(row, "source_type", 0),
            has_cross_site_ancestor: newer(row, "has_cross_site_ancestor", 0) != 0,
        },
    })
}

/// A cookie as columns of schema 24; a destination takes those that it has.
fn fields(cookie: &Cookie, version: i64, keys: &Keys) -> Vec<(&'static str, Value)> {
    let Extra::Chromium {
        has_expires,
        priority,
        source_scheme,
        source_port,
        source_type,
        has_cross_site_ancestor,
    } = cookie.extra
    else {
        return Vec::new();
    };
    let mut plain = zeroize::Zeroizing::new(Vec::new());
    if version >= WITH_HOST_HASH {
        plain.extend(Sha256::digest(cookie.host.as_bytes()));
    }
    plain.extend(cookie.value.expose());
    let time = |since_1970: i64| Value::Integer(since_1970.saturating_add(EPOCH));
    let text = |text: &str| Value::Text(text.to_owned());
    let flag = |is_set: bool| Value::Integer(is_set.into());
    vec![
        ("creation_utc", time(cookie.created_us)),
        ("host_key", text(&cookie.host)),
        ("top_frame_site_key", text(&cookie.partition)),
        ("name", text(&cookie.name)),
        ("value", text("")),
        ("encrypted_value", Value::Bytes(keys.encrypt(&plain))),
        ("path", text(&cookie.path)),
        ("expires_utc", cookie.expires_us.map_or(Value::Integer(0), time)),
        ("is_secure", flag(cookie.is_secure)),
        ("is_httponly", flag(cookie.is_http_only)),
        ("last_access_utc", time(cookie.accessed_us)),
        ("has_expires", flag(has_expires)),
        ("is_persistent", flag(cookie.expires_us.is_some())),
        ("priority", Value::Integer(priority)),
        (
            "samesite",
            Value::Integer(match cookie.same_site {
                SameSite::Unspecified => -1,
                SameSite::None => 0,
                SameSite::Lax => 1,
                SameSite::Strict => 2,
            }),
        ),
        ("source_scheme", Value::Integer(source_scheme)),
        ("source_port", Value::Integer(source_port)),
        ("last_update_utc", time(cookie.updated_us)),
        ("source_type", Value::Integer(source_type)),
        ("has_cross_site_ancestor", flag(has_cross_site_ancestor)),
    ]
}
