//! What happened, in the order it did.
//!
//! JSON lines, each with the hash of the one before, so a line that is changed, taken out or put in
//! shows. Every line is on the disk before what it tells of goes on. Several processes of one person
//! may write at once; a lock on the file keeps their lines apart. There are names and sizes in it,
//! never contents.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use spaceport_types::{Error, Kind, Result};

use crate::Digest;
use crate::private;

/// The longest line that is read. Ours are shorter by far: names are bounded.
const MAX_LINE: u64 = 256 << 10;

/// What a chain begins with.
const FIRST: Digest = Digest([0; 32]);

/// The audit trail of one state directory. `E` is what can happen there.
pub struct Ledger<E> {
    path: PathBuf,
    event: PhantomData<fn() -> E>,
}

impl<E> Clone for Ledger<E> {
    fn clone(&self) -> Self {
        Self { path: self.path.clone(), event: PhantomData }
    }
}

impl<E> fmt::Debug for Ledger<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("path", &self.path).finish()
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<E> {
    /// Its number, from 0.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What happened.
    pub event: E,
    /// To whom or what.
    pub id: String,
    /// Facts about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    /// The hash of the line before.
    pub previous: Digest,
}

/// What is to be a line.
#[derive(Clone, Debug)]
pub struct Record<E> {
    event: E,
    id: String,
    facts: BTreeMap<String, String>,
    at: SystemTime,
}

impl<E> Record<E> {
    /// An event, to whom or what, facts about it, and when.
    pub fn new<const N: usize>(
        event: E,
        id: &str,
        facts: [(&str, String); N],
        at: SystemTime,
    ) -> Self {
        let facts = facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { event, id: id.to_owned(), facts, at }
    }
}

#[derive(Serialize, Deserialize)]
struct Line<E> {
    #[serde(flatten)]
    entry: Entry<E>,
    hash: Digest,
}

/// What a check of the whole ledger found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// How many lines.
    pub entries: u64,
    /// The hash of the last. Whoever has noted it knows that nothing before it was changed since.
    pub head: Digest,
}

impl<E: Serialize + DeserializeOwned> Ledger<E> {
    /// The ledger of a folder; made with its first line.
    pub fn at(folder: &Path) -> Self {
        Self { path: folder.join("ledger.jsonl"), event: PhantomData }
    }

    /// Adds a line, and returns once it is on the disk.
    ///
    /// # Errors
    ///
    /// `io` when the file cannot be written or its last line is damaged.
    pub fn record<const N: usize>(
        &self,
        event: E,
        id: &str,
        facts: [(&str, String); N],
        now: SystemTime,
    ) -> Result<()> {
        self.record_all([Record::new(event, id, facts, now)])
    }

    /// Adds lines, and returns once all of them are on the disk: it is waited for once.
    ///
    /// # Errors
    ///
    /// As [`Ledger::record`].
    pub fn record_all(&self, records: impl IntoIterator<Item = Record<E>>) -> Result<()> {
        if let Some(folder) = self.path.parent() {
            private::folder(folder)?;
        }
        let failed = |error| private::failed(&self.path, error);
        let mut file = private::append(&self.path)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        let last = self.last(&mut file)?;
        let is_first = last.is_none();
        let (mut number, mut previous) =
            last.map_or((0, FIRST), |line| (line.entry.number + 1, line.hash));
        let mut text = Vec::new();
        for Record { event, id, facts, at } in records {
            let entry = Entry { number, at_ms: millis(at), event, id, facts, previous };
            let line = Line { hash: hash(&entry)?, entry };
            text.extend(json(&line)?);
            text.push(b'\n');
            (number, previous) = (number + 1, line.hash);
        }
        file.write_all(&text).and_then(|()| file.sync_data()).map_err(failed)?;
        if is_first {
            private::sync_parent(&self.path)?;
        }
        Ok(())
    }

    /// Reads every line, and that nothing was changed, taken out or put in.
    ///
    /// # Errors
    ///
    /// `precondition_failed` naming the first line that does not fit, `io`.
    pub fn verify(&self, mut each: impl FnMut(Entry<E>)) -> Result<Verified> {
        let mut verified = Verified { entries: 0, head: FIRST };
        if !self.path.exists() {
            return Ok(verified);
        }
        let file = File::open(&self.path).map_err(|error| private::failed(&self.path, error))?;
        let mut lines = BufReader::new(file);
        let mut text = Vec::new();
        loop {
            text.clear();
            (&mut lines).take(MAX_LINE).read_until(b'\n', &mut text)?;
            if text.is_empty() {
                return Ok(verified);
            }
            let broken = |why| {
                Error::new(
                    Kind::PreconditionFailed,
                    format!("line {} of the ledger {why}", verified.entries + 1),
                )
                .with("path", self.path.display())
                .with("line", verified.entries + 1)
                .hint("Someone or something has changed the file: compare it with a backup")
            };
            let Some(text) = text.strip_suffix(b"\n") else {
                return Err(broken("is not complete"));
            };
            let line: Line<E> =
                serde_json::from_slice(text).map_err(|error| broken("is damaged").source(error))?;
            if line.hash != hash(&line.entry)? || json(&line)? != text {
                return Err(broken("was changed"));
            }
            if line.entry.number != verified.entries || line.entry.previous != verified.head {
                return Err(broken("does not follow the one before"));
            }
            verified = Verified { entries: verified.entries + 1, head: line.hash };
            each(line.entry);
        }
    }

    /// The last complete line. What a crash left of one behind it is cut off.
    fn last(&self, file: &mut File) -> Result<Option<Line<E>>> {
        let length = file.metadata()?.len();
        let from = length.saturating_sub(MAX_LINE);
        file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        file.take(MAX_LINE).read_to_end(&mut tail)?;
        let complete = tail.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        if complete < tail.len() {
            file.set_len(from + complete as u64)?;
        }
        let Some(text) = tail[..complete].strip_suffix(b"\n") else { return Ok(None) };
        let start = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let line = serde_json::from_slice(&text[start..]).map_err(|error| {
            Error::new(Kind::Io, "the last line of the ledger is damaged")
                .with("path", self.path.display())
                .hint("Move the file away, and keep it: a new one is begun")
                .source(error)
        })?;
        Ok(Some(line))
    }
}

fn hash<E: Serialize>(entry: &Entry<E>) -> Result<Digest> {
    Ok(Digest(Sha256::digest(json(entry)?).into()))
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::new(Kind::Internal, "a ledger line is not JSON").source(error))
}

/// Milliseconds since 1970; times before that are not told apart.
pub fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Event {
        Asked,
        Approved,
        Denied,
        Used,
    }

    fn filled(folder: &Path) -> Ledger<Event> {
        let ledger = Ledger::at(folder);
        for (number, event) in [Event::Asked, Event::Approved, Event::Used].into_iter().enumerate()
        {
            let now = UNIX_EPOCH + Duration::from_secs(number as u64);
            ledger.record(event, "tp-1", [("to", "http://b".to_owned())], now).unwrap();
        }
        ledger
    }

    #[test]
    fn lines_are_chained_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = filled(folder.path());
        let mut events = Vec::new();
        let verified = ledger.verify(|entry| events.push((entry.number, entry.event))).unwrap();
        assert_eq!(events, [(0, Event::Asked), (1, Event::Approved), (2, Event::Used)]);
        assert_eq!(verified.entries, 3);
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&ledger.path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn several_lines_at_once_are_those_that_come_one_by_one() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one_by_one, at_once] = folders.each_ref().map(|folder| filled(folder.path()));
        for at in [1, 2] {
            let now = UNIX_EPOCH + Duration::from_secs(at);
            one_by_one.record(Event::Denied, "tp-2", [], now).unwrap();
        }
        let records = [1, 2]
            .map(|at| Record::new(Event::Denied, "tp-2", [], UNIX_EPOCH + Duration::from_secs(at)));
        at_once.record_all(records).unwrap();
        let [a, b] = [one_by_one, at_once].map(|ledger| fs::read_to_string(&ledger.path).unwrap());
        assert_eq!(a, b);
    }

    #[test]
    fn a_line_changed_removed_or_moved_shows() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = filled(folder.path());
        let text = fs::read_to_string(&ledger.path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let changed = [
            text.replace("approved", "denied"),
            text.replacen("\"at_ms\":1000", "\"at_ms\":1001", 1),
            text.replacen("{\"number\"", "{ \"number\"", 1),
            format!("{}\n{}\n", lines[0], lines[2]),
            format!("{}\n{}\n{}\n", lines[1], lines[0], lines[2]),
            format!("{}\n{}\n", lines[1], lines[2]),
            format!("{text}{}\n", lines[2]),
            text.trim_end().to_owned(),
        ];
        for text in changed {
            fs::write(&ledger.path, &text).unwrap();
            let error = ledger.verify(drop).expect_err(&text);
            assert_eq!(error.kind(), Kind::PreconditionFailed);
        }
    }

    #[test]
    fn what_a_crash_left_of_a_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = filled(folder.path());
        let mut file = private::append(&ledger.path).unwrap();
        file.write_all(b"{\"number\":3,\"at").unwrap();
        ledger.record(Event::Denied, "tp-2", [], UNIX_EPOCH).unwrap();
        assert_eq!(ledger.verify(drop).unwrap().entries, 4);
    }

    #[test]
    fn several_writers_keep_one_chain() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..8).for_each(|_| drop(filled(folder.path()))));
            }
        });
        assert_eq!(Ledger::<Event>::at(folder.path()).verify(drop).unwrap().entries, 96);
    }
}
