//! Firefox's cookie database, schema 17 and what came shortly before. Nothing in it is encrypted.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, Row, params, params_from_iter};
use spaceport_types::{Cause, Error, Result};

use crate::journal::{Change, Value};
use crate::provider::cookies::{self, Cookie, Extra, SameSite};
use crate::provider::{Readable, database_failed};
use crate::transcode::secret::Secret;

/// The newest schema that is known here.
const NEWEST: i64 = 17;

/// From this schema on `expiry` counts milliseconds; seconds before.
const MILLISECONDS_SINCE: i64 = 16;

/// An empty database, as Firefox makes it.
const EMPTY: &str = "
    CREATE TABLE moz_cookies (id INTEGER PRIMARY KEY, originAttributes TEXT NOT NULL DEFAULT '',
        name TEXT, value TEXT, host TEXT, path TEXT, expiry INTEGER, lastAccessed INTEGER,
        creationTime INTEGER, isSecure INTEGER, isHttpOnly INTEGER,
        inBrowserElement INTEGER DEFAULT 0, sameSite INTEGER DEFAULT 0, schemeMap INTEGER DEFAULT 0,
        isPartitionedAttributeSet INTEGER DEFAULT 0, updateTime INTEGER,
        CONSTRAINT moz_uniqueid UNIQUE (name, host, path, originAttributes));
    PRAGMA user_version = 17;
";

/// Columns that tell one cookie from another.
const KEY: [&str; 4] = ["name", "host", "path", "originAttributes"];

/// A cookie database that nobody else has open.
pub(super) struct Database<'a> {
    connection: Connection,
    path: &'a Path,
    /// `user_version`.
    pub(super) version: i64,
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
        let version: i64 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        if version > NEWEST {
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

    fn expiry_unit(&self) -> i64 {
        if self.version < MILLISECONDS_SINCE { 1_000_000 } else { 1_000 }
    }

    /// The host of every cookie.
    pub(super) fn hosts(&self) -> Result<Vec<String>> {
        let hosts = || -> rusqlite::Result<Vec<String>> {
            let mut query = self.connection.prepare("SELECT host FROM moz_cookies")?;
            query.query_map([], |row| row.get(0))?.collect()
        };
        hosts().map_err(|error| self.failed(error))
    }

    /// The cookies of chosen hosts.
    pub(super) fn read(&self, chosen: &dyn Fn(&str) -> bool) -> Result<Vec<Cookie>> {
        let read = || -> rusqlite::Result<Vec<Cookie>> {
            let mut query = self.connection.prepare("SELECT * FROM moz_cookies")?;
            let mut rows = query.query([])?;
            let mut cookies = Vec::new();
            while let Some(row) = rows.next()? {
                let host: String = row.get("host")?;
                if chosen(&host) {
                    cookies.push(cookie(row, host, self.expiry_unit())?);
                }
            }
            Ok(cookies)
        };
        read().map_err(|error| self.failed(error))
    }

    /// Puts cookies in. `published` is where this database will be.
    pub(super) fn merge(
        &mut self,
        cookies: &[Cookie],
        published: &Path,
        changes: &mut Vec<Change>,
    ) -> Result<()> {
        let (path, unit) = (self.path, self.expiry_unit());
        let failed = |error| database_failed(path, error);
        let columns: Vec<String> = {
            let query =
                self.connection.prepare("SELECT * FROM moz_cookies LIMIT 0").map_err(failed)?;
            query.column_names().map(str::to_owned).collect()
        };
        let transaction = self.connection.transaction().map_err(failed)?;
        for cookie in cookies {
            let fields: Vec<(&str, Value)> = fields(cookie, unit)
                .into_iter()
                .filter(|(name, _)| columns.iter().any(|column| column == name))
                .collect();
            let key: Vec<(String, Value)> = fields
                .iter()
                .filter(|(name, _)| KEY.contains(name))
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect();
            let wanted: Vec<String> = key.iter().map(|(name, _)| format!("{name} = ?")).collect();
            let select = format!("SELECT * FROM moz_cookies WHERE {}", wanted.join(" AND "));
            let previous = {
                let mut query = transaction.prepare(&select).map_err(failed)?;
                let mut rows = query
                    .query(params_from_iter(key.iter().map(|(_, value)| value)))
                    .map_err(failed)?;
                let row = rows.next().map_err(failed)?;
                row.map(|row| whole(row, &columns)).transpose().map_err(failed)?
            };
            let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            let insert = format!(
                "INSERT OR REPLACE INTO moz_cookies ({}) VALUES ({})",
                names.join(", "),
                vec!["?"; names.len()].join(", ")
            );
            transaction
                .execute(&insert, params_from_iter(fields.iter().map(|(_, value)| value)))
                .map_err(failed)?;
            changes.push(Change::Row {
                database: published.to_owned(),
                table: "moz_cookies".to_owned(),
                key,
                previous,
            });
        }
        transaction.commit().map_err(failed)
    }

    /// How many of these cookies can be read back, by host.
    pub(super) fn readable(&self, wanted: &[Cookie]) -> Result<Vec<Readable>> {
        let failed = |error| self.failed(error);
        let sql = "SELECT count(*) FROM moz_cookies
            WHERE host = ? AND name = ? AND path = ? AND originAttributes = ? AND value = ?";
        let mut query = self.connection.prepare(sql).map_err(failed)?;
        let mut hosts = Vec::new();
        for cookie in wanted {
            let value = String::from_utf8_lossy(cookie.value.expose());
            let key = params![cookie.host, cookie.name, cookie.path, cookie.partition, value];
            if query.query_row(key, |row| row.get::<_, i64>(0)).map_err(failed)? > 0 {
                hosts.push(cookie.host.as_str());
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

fn cookie(row: &Row<'_>, host: String, expiry_unit: i64) -> rusqlite::Result<Cookie> {
    let created_us = row.get("creationTime")?;
    let value: String = row.get("value")?;
    Ok(Cookie {
        host,
        path: row.get("path")?,
        name: row.get("name")?,
        value: Secret::new(value.into_bytes()),
        partition: row.get("originAttributes")?,
        expires_us: Some(row.get::<_, i64>("expiry")?.saturating_mul(expiry_unit)),
        created_us,
        accessed_us: row.get("lastAccessed")?,
        updated_us: row.get("updateTime").unwrap_or(created_us),
        is_secure: row.get::<_, i64>("isSecure")? != 0,
        is_http_only: row.get::<_, i64>("isHttpOnly")? != 0,
        same_site: match row.get::<_, i64>("sameSite")? {
            0 => SameSite::None,
            1 => SameSite::Lax,
            2 => SameSite::Strict,
            _ => SameSite::Unspecified,
        },
        extra: Extra::Firefox {
            in_browser_element: row.get("inBrowserElement").unwrap_or(0),
            scheme_map: row.get("schemeMap").unwrap_or(0),
            is_partitioned: row.get("isPartitionedAttributeSet").unwrap_or(0) != 0,
        },
    })
}

/// A cookie as columns of schema 17; a destination takes those that it has.
fn fields(cookie: &Cookie, expiry_unit: i64) -> Vec<(&'static str, Value)> {
    let Extra::Firefox { in_browser_element, scheme_map, is_partitioned } = cookie.extra else {
        return Vec::new();
    };
    let text = |text: &str| Value::Text(text.to_owned());
    let flag = |is_set: bool| Value::Integer(is_set.into());
    vec![
        ("originAttributes", text(&cookie.partition)),
        ("name", text(&cookie.name)),
        ("value", text(&String::from_utf8_lossy(cookie.value.expose()))),
        ("host", text(&cookie.host)),
        ("path", text(&cookie.path)),
        ("expiry", Value::Integer(cookie.expires_us.unwrap_or(0) / expiry_unit)),
        ("lastAccessed", Value::Integer(cookie.accessed_us)),
        ("creationTime", Value::Integer(cookie.created_us)),
        ("isSecure", flag(cookie.is_secure)),
        ("isHttpOnly", flag(cookie.is_http_only)),
        ("inBrowserElement", Value::Integer(in_browser_element)),
        (
            "sameSite",
            Value::Integer(match cookie.same_site {
                SameSite::None => 0,
                SameSite::Lax => 1,
                SameSite::Strict => 2,
                // The same as Firefox has for a cookie that does not say.
                SameSite::Unspecified => 256,
            }),
        ),
        ("schemeMap", Value::Integer(scheme_map)),
        ("isPartitionedAttributeSet", flag(is_partitioned)),
        ("updateTime", Value::Integer(cookie.updated_us)),
    ]
}
