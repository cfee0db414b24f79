//! Cookies as fields: what two browsers, or two machines' encryptions, have in common.
//!
//! One JSON object a line, after a line that says which schema they were read from.

use std::io::{BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};
use spaceport_types::{Cause, Error, Kind, Result};
use zeroize::Zeroizing;

use crate::manifest::Site;
use crate::transcode::secret::Secret;

/// Longest line: a cookie has at most 4 KiB of name and value, and browsers bound the rest likewise.
const MAX_LINE: u64 = 64 << 10;

/// Most cookies of one profile. Browsers keep some thousands.
const MAX_COOKIES: usize = 200_000;

/// The first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Head {
    /// The version of the source's database: a destination that is older would lose some of it.
    pub(crate) schema: i64,
}

/// One cookie. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cookie {
    /// The host as the browser stores it; a leading dot means hosts below it too.
    pub(crate) host: String,
    pub(crate) path: String,
    pub(crate) name: String,
    pub(crate) value: Secret,
    /// The partition it is kept in, in the browser's own notation; empty for none.
    pub(crate) partition: String,
    /// `None` for one that lives as long as the browser runs.
    pub(crate) expires_us: Option<i64>,
    pub(crate) created_us: i64,
    pub(crate) accessed_us: i64,
    pub(crate) updated_us: i64,
    pub(crate) is_secure: bool,
    pub(crate) is_http_only: bool,
    pub(crate) same_site: SameSite,
    pub(crate) extra: Extra,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SameSite {
    Unspecified,
    None,
    Lax,
    Strict,
}

/// What only one family of browsers keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Extra {
    Chromium {
        has_expires: bool,
        priority: i64,
        source_scheme: i64,
        source_port: i64,
        source_type: i64,
        has_cross_site_ancestor: bool,
    },
    Firefox {
        in_browser_element: i64,
        scheme_map: i64,
        is_partitioned: bool,
    },
}

/// A host without the dot that stands for the hosts below it.
pub(crate) fn bare(host: &str) -> &str {
    host.strip_prefix('.').unwrap_or(host)
}

/// Counts records per host.
pub(crate) fn sites<'a>(hosts: impl Iterator<Item = &'a str>) -> Vec<Site> {
    let mut counted = std::collections::BTreeMap::<&str, u64>::new();
    for host in hosts {
        *counted.entry(bare(host)).or_default() += 1;
    }
    counted.into_iter().map(|(host, records)| Site { host: host.to_owned(), records }).collect()
}

/// Writes cookies down, to be carried.
pub(crate) fn write(head: Head, cookies: &[Cookie], to: &mut dyn Write) -> Result<()> {
    let mut line = Zeroizing::new(serde_json::to_vec(&head).map_err(internal)?);
    line.push(b'\n');
    to.write_all(&line)?;
    for cookie in cookies {
        line.clear();
        serde_json::to_writer(&mut *line, cookie).map_err(internal)?;
        line.push(b'\n');
        to.write_all(&line)?;
    }
    Ok(())
}

/// Reads what [`write`] wrote.
///
/// # Errors
///
/// `corrupt_bundle` for anything else.
pub(crate) fn read(from: impl Read) -> Result<(Head, Vec<Cookie>)> {
    let mut lines = Lines { from: BufReader::new(from), number: 0 };
    let head: Head = lines.next()?.ok_or_else(|| damaged(1))?;
    let mut cookies = Vec::new();
    while let Some(cookie) = lines.next()? {
        if cookies.len() >= MAX_COOKIES {
            let why = format!("more than {MAX_COOKIES} cookies");
            return Err(Error::new(Kind::LimitExceeded, why).with("limit", MAX_COOKIES));
        }
        cookies.push(cookie);
    }
    Ok((head, cookies))
}

/// Lines of JSON, each bounded.
pub(crate) struct Lines<R> {
    from: BufReader<R>,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from: BufReader::new(from), number: 0 }
    }

    /// The next one; `None` at the end.
    pub(crate) fn next<T: serde::de::DeserializeOwned>(&mut self) -> Result<Option<T>> {
        self.next_within(MAX_LINE)
    }

    /// The next one, of at most `max` bytes.
    pub(crate) fn next_within<T: serde::de::DeserializeOwned>(
        &mut self,
        max: u64,
    ) -> Result<Option<T>> {
        self.number += 1;
        let mut line = Zeroizing::new(Vec::new());
        let read = (&mut self.from).take(max).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            return Err(damaged(self.number));
        }
        // Without serde's own words: they may repeat a value.
        serde_json::from_slice(&line).map(Some).map_err(|_| damaged(self.number))
    }
}

fn damaged(line: u64) -> Error {
    Error::because(Cause::CorruptBundle, format!("line {line} of the records is damaged"))
        .with("line", line)
        .hint("Send it again")
}

fn internal(error: serde_json::Error) -> Error {
    Error::new(Kind::Internal, "a record could not be written").source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(name: &str) -> Cookie {
        Cookie {
            host: ".a.example".to_owned(),
            path: "/".to_owned(),
            name: name.to_owned(),
            value: Secret::new(b"s3cr3t".to_vec()),
            partition: String::new(),
            expires_us: Some(1),
            created_us: 2,
            accessed_us: 3,
            updated_us: 4,
            is_secure: true,
            is_http_only: true,
            same_site: SameSite::Lax,
            extra: Extra::Firefox { in_browser_element: 0, scheme_map: 2, is_partitioned: false },
        }
    }

    #[test]
    fn cookies_arrive_as_they_were_and_their_values_are_not_shown() {
        let cookies = [cookie("a"), cookie("b")];
        let mut bytes = Vec::new();
        write(Head { schema: 17 }, &cookies, &mut bytes).unwrap();
        assert_eq!(read(&*bytes).unwrap(), (Head { schema: 17 }, cookies.to_vec()));
        assert!(!format!("{cookies:?}").contains("s3cr3t"));
    }

    #[test]
    fn damage_is_named_by_line_and_repeats_no_value() {
        let mut bytes = Vec::new();
        write(Head { schema: 17 }, &[cookie("a")], &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        for damaged in [
            String::new(),
            text.replace("schema", "sachem"),
            text.replace("czNjcjN0", "s3cr3t-!"),
            text.replace("is_secure\":true", "is_secure\":\"s3cr3t\""),
            text.trim_end().to_owned(),
            format!("{text}{}\n", "x".repeat(1 << 20)),
        ] {
            let error = read(damaged.as_bytes()).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::CorruptBundle));
            assert!(!format!("{error:?}").contains("s3cr3t"), "{error:?}");
        }
    }
}
