//! What a transfer declared, checked before its first byte, and kept small.
//!
//! Paths lie in one block, everything else in one row an entry, so that 200,000 entries are some
//! tens of megabytes. The entries keep their numbers (chunks name them by it); beside them is the
//! order of the tree, in which every check and the commit go.

use spaceport_types::{Cause, Error, Issue, Kind, Result};

use super::names::{Collisions, Names, holdable};
use crate::digest::Digest;
use crate::ignore::{Judge, Rules, is_below, tree_order};
use crate::path::{Flaw, MAX_PATH, Shown, check, raw};

pub use spaceport_wire::transfer::MAX_ENTRIES;

/// Bytes that the list of what was published may have. It is one message, of 64 MiB at most.
const MAX_LISTING: u64 = 60 << 20;

/// What an entry adds to that list besides its path: the digest in hex, and the framing.
const LISTING_OVERHEAD: u64 = 96;

/// Problems that one error lists. It says how many there are.
const MAX_ISSUES: usize = 100;

/// Permission bits that are kept: rwx for everyone. What lets a program run as someone else is
/// not a sender's to give.
pub(crate) const KEPT_MODE: u32 = 0o777;

/// One entry as its sender declares it.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    /// Where it goes, below the destination.
    pub path: &'a [u8],
    /// Whether it is a folder.
    pub directory: bool,
    /// Bytes of a file.
    pub size: u64,
    /// SHA-256 of a file, in hex.
    pub sha256: &'a str,
    /// Permission bits; `None` for the usual ones.
    pub mode: Option<u32>,
    /// When it was changed last: seconds since 1970, and nanoseconds.
    pub modified: Option<(i64, i32)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Where its path starts, in the block of paths.
    start: u32,
    length: u16,
    pub(crate) directory: bool,
    mode: u16,
    pub(crate) size: u64,
    pub(crate) digest: Digest,
    pub(crate) modified: Option<(i64, u32)>,
}

impl Entry {
    /// The mode that it gets.
    pub(crate) const fn mode(&self) -> u32 {
        self.mode as u32
    }
}

/// The entries of a transfer that are accepted.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    paths: Vec<u8>,
    entries: Vec<Entry>,
    /// Entry numbers in the order of the tree.
    order: Vec<u32>,
    bytes: u64,
}

impl Plan {
    /// Checks every entry and keeps those that `rules` do not leave out; the numbers of those left
    /// out come second. All that is wrong is found before anything is refused.
    ///
    /// `room` is how many bytes of a path the destination itself takes.
    pub(crate) fn new<'a>(
        declared: impl IntoIterator<Item = Declared<'a>>,
        rules: Option<Rules>,
        names: Names,
        room: usize,
    ) -> Result<(Self, Vec<u32>)> {
        let mut plan = Self::default();
        let mut problems = Problems::default();
        let mut listing = 0_u64;
        for entry in declared {
            if plan.entries.len() == MAX_ENTRIES {
                return Err(too_many(MAX_ENTRIES + 1));
            }
            problems.check(&entry, names, room);
            let size = if entry.directory { 0 } else { entry.size };
            listing += entry.path.len() as u64 + room as u64 + LISTING_OVERHEAD;
            let bytes = plan.bytes.checked_add(size).filter(|&bytes| bytes <= i64::MAX as u64);
            let (Some(bytes), true) = (bytes, listing <= MAX_LISTING) else {
                return Err(too_large(entry.path));
            };
            plan.bytes = bytes;
            plan.push(&entry);
        }
        plan.order = (0..plan.entries.len() as u32).collect();
        let mut order = std::mem::take(&mut plan.order);
        order.sort_unstable_by(|&a, &b| tree_order(plan.path(a), plan.path(b)));
        plan.order = order;
        plan.find_clashes(&mut problems);
        if names.fold_case {
            plan.find_collisions(&mut problems);
        }
        problems.finish()?;
        let ignored = plan.leave_out(rules);
        Ok((plan, ignored))
    }

    fn push(&mut self, entry: &Declared<'_>) {
        let usual = if entry.directory { 0o755 } else { 0o644 };
        self.entries.push(Entry {
            start: self.paths.len() as u32,  // MAX_LISTING bounds it
            length: entry.path.len() as u16, // and `check` this, or there is a problem
            directory: entry.directory,
            mode: (entry.mode.unwrap_or(usual) & KEPT_MODE) as u16,
            size: if entry.directory { 0 } else { entry.size },
            digest: parse_digest(entry.sha256).unwrap_or(Digest([0; 32])),
            modified: entry.modified.map(|(seconds, nanos)| (seconds, nanos.unsigned_abs())),
        });
        let length = usize::from(entry.path.len() as u16);
        self.paths.extend_from_slice(entry.path.get(..length).unwrap_or_default());
    }

    /// Two entries with one path, or one that is a file and a folder at once.
    fn find_clashes(&self, problems: &mut Problems) {
        for pair in self.order.windows(2) {
            let &[first, second] = pair else { continue };
            let (a, b) = (self.path(first), self.path(second));
            if a == b {
                problems.clash(b, "declared once");
            } else if is_below(b, a) && !self.entry(first).is_some_and(|entry| entry.directory) {
                problems.clash(b, "not below a file");
            }
        }
    }

    /// Entries that the destination takes for one.
    fn find_collisions(&self, problems: &mut Problems) {
        let mut known = Collisions::default();
        for &index in &self.order {
            let path = self.path(index);
            let ends = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/');
            for end in ends.map(|(at, _)| at).chain([path.len()]) {
                if let Some(other) = known.insert(&path[..end]) {
                    problems.collision(path, &other);
                    break;
                }
            }
        }
    }

    /// Drops what the rules leave out, and returns the numbers those entries had.
    fn leave_out(&mut self, rules: Option<Rules>) -> Vec<u32> {
        let Some(rules) = rules else { return Vec::new() };
        let mut judge = Judge::new(Some(rules));
        let mut ignored: Vec<u32> = Vec::new();
        for &index in &self.order {
            let directory = self.entry(index).is_some_and(|entry| entry.directory);
            if judge.ignores(self.path(index), directory) {
                ignored.push(index);
            }
        }
        if ignored.is_empty() {
            return ignored;
        }
        ignored.sort_unstable();
        let mut renumbered = Vec::with_capacity(self.entries.len());
        let mut kept = 0;
        for index in 0..self.entries.len() as u32 {
            let stays = ignored.binary_search(&index).is_err();
            renumbered.push(stays.then_some(kept));
            kept += u32::from(stays);
        }
        let stays = |index: &u32| renumbered.get(*index as usize).copied().flatten();
        self.order = self.order.iter().filter_map(stays).collect();
        let mut index = 0;
        self.entries.retain(|_| {
            index += 1;
            stays(&(index - 1)).is_some()
        });
        self.bytes = self.entries.iter().map(|entry| entry.size).sum();
        ignored
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all files.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&Entry> {
        self.entries.get(index as usize)
    }

    pub(crate) fn path(&self, index: u32) -> &[u8] {
        let Some(entry) = self.entry(index) else { return &[] };
        let start = entry.start as usize;
        self.paths.get(start..start + usize::from(entry.length)).unwrap_or_default()
    }

    /// Every entry, in the order it was declared.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry)> {
        (0..).zip(&self.entries)
    }

    /// Every entry, folders before what is in them.
    pub(crate) fn in_order(&self) -> impl DoubleEndedIterator<Item = (u32, &[u8], &Entry)> {
        self.order.iter().filter_map(|&index| Some((index, self.path(index), self.entry(index)?)))
    }

    /// The entries at and below `path`.
    pub(crate) fn below(&self, path: &[u8]) -> impl Iterator<Item = (u32, &[u8], &Entry)> {
        let start = self.order.partition_point(|&index| {
            tree_order(self.path(index), path) == std::cmp::Ordering::Less
        });
        let rest = self.order.get(start..).unwrap_or_default();
        rest.iter()
            .filter_map(|&index| Some((index, self.path(index), self.entry(index)?)))
            .take_while(move |&(_, found, _)| found == path || is_below(found, path))
    }

    /// A number that tells this plan from another.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        use sha2::Digest as _;
        let mut hash = sha2::Sha256::new();
        for (index, entry) in self.iter() {
            let (seconds, nanos) = entry.modified.unwrap_or((i64::MIN, 0));
            hash.update(u32::from(entry.length).to_be_bytes());
            hash.update(self.path(index));
            hash.update([u8::from(entry.directory)]);
            hash.update(entry.mode.to_be_bytes());
            hash.update(entry.size.to_be_bytes());
            hash.update(entry.digest.0);
            hash.update(seconds.to_be_bytes());
            hash.update(nanos.to_be_bytes());
        }
        hash.finalize().into()
    }
}

/// Everything that is wrong with a request, as far as an error can hold it.
#[derive(Debug, Default)]
struct Problems {
    cause: Option<Cause>,
    invalid: bool,
    /// Whether other names are offered.
    offered: bool,
    first: String,
    issues: Vec<Issue>,
    count: usize,
}

impl Problems {
    fn check(&mut self, entry: &Declared<'_>, names: Names, room: usize) {
        let long = entry.path.len() + room + 1 > MAX_PATH;
        let flaw = match check(entry.path) {
            Ok(()) if long => Some(Flaw::PathTooLong),
            Ok(()) => names.flaw(entry.path),
            Err(flaw) => Some(flaw),
        };
        if let Some(flaw) = flaw {
            let mut issue = flaw.issue(entry.path);
            if flaw == Flaw::Unholdable {
                self.offered = true;
                issue.limit = Some(format!("for example `{}`", holdable(entry.path)));
            }
            self.add(flaw.cause(), issue, entry.path);
            return;
        }
        if entry.modified.is_some_and(|(_, nanos)| !(0..1_000_000_000).contains(&nanos)) {
            self.add_invalid(entry.path, "nanoseconds of its time at most", "999999999");
        }
        if !entry.directory && entry.size > i64::MAX as u64 {
            self.add_invalid(entry.path, "bytes at most", "9223372036854775807");
        }
        if !entry.directory && parse_digest(entry.sha256).is_none() {
            self.add_invalid(entry.path, "hex digits of its SHA-256", "64");
        }
    }

    fn clash(&mut self, path: &[u8], constraint: &'static str) {
        self.add(
            Cause::Conflict,
            Issue { path: raw(path), constraint: constraint.into(), limit: None },
            path,
        );
    }

    fn collision(&mut self, path: &[u8], other: &[u8]) {
        let mut issue = Flaw::SameName.issue(path);
        issue.limit = Some(raw(other));
        self.add(Cause::NameUnusable, issue, path);
    }

    fn add_invalid(&mut self, path: &[u8], constraint: &'static str, limit: &str) {
        self.invalid = true;
        self.list(
            Issue { path: raw(path), constraint: constraint.into(), limit: Some(limit.to_owned()) },
            path,
        );
    }

    /// What leads out of the folder decides what the error is called, then unusable names.
    fn add(&mut self, cause: Cause, issue: Issue, path: &[u8]) {
        let weight = |cause| match cause {
            Some(Cause::PathEscape) => 3,
            Some(Cause::NameUnusable) => 2,
            Some(_) => 1,
            None => 0,
        };
        if weight(Some(cause)) > weight(self.cause) {
            self.cause = Some(cause);
            self.first.clear();
        }
        self.list(issue, path);
    }

    fn list(&mut self, issue: Issue, path: &[u8]) {
        if self.first.is_empty() {
            self.first = format!("`{}`: {}", Shown(path), issue.constraint);
            if let Some(limit) = &issue.limit {
                self.first.push_str(&format!(" ({})", Shown(limit.as_bytes())));
            }
        }
        self.count += 1;
        if self.issues.len() < MAX_ISSUES {
            self.issues.push(issue);
        }
    }

    fn finish(self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let others = match self.count - 1 {
            0 => String::new(),
            1 => ", and one more".to_owned(),
            more => format!(", and {more} more"),
        };
        let message = format!("{}{others}", self.first);
        let mut error = match self.cause {
            Some(cause) => Error::because(cause, message),
            None => Error::new(Kind::InvalidArgument, message),
        };
        if let Some(issue) = self.issues.first() {
            error = error.with("entry", &issue.path);
        }
        error = error.with("entries", self.count).hint(match self.cause {
            Some(Cause::PathEscape) => "Send paths below the folder that is sent",
            Some(Cause::NameUnusable) if self.offered => {
                "Rename them as is offered for each, or send to another file system"
            }
            Some(Cause::NameUnusable) => "Rename them, and send again",
            Some(_) => "Declare every path once",
            None => "Declare for every file its size, SHA-256 and time",
        });
        Err(self.issues.into_iter().fold(error, Error::issue))
    }
}

/// The error for a transfer of `count` entries.
pub(crate) fn too_many(count: usize) -> Error {
    Error::new(Kind::LimitExceeded, format!("{count} entries are more than {MAX_ENTRIES}"))
        .with("limit", MAX_ENTRIES)
        .hint("Send it in several parts")
}

fn too_large(path: &[u8]) -> Error {
    Error::new(Kind::LimitExceeded, format!("the transfer is too large from `{}` on", Shown(path)))
        .with("entry", raw(path))
        .with("limit", MAX_LISTING)
        .hint("Send it in several parts")
}

/// Reads a digest in hex, of either case.
pub(crate) fn parse_digest(text: &str) -> Option<Digest> {
    let text = text.as_bytes();
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            b'A'..=b'F' => Some(digit - b'A' + 10),
            _ => None,
        };
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(Digest(digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn file(path: &str) -> Declared<'_> {
        let path = path.as_bytes();
        Declared { path, directory: false, size: 1, sha256: SHA, mode: None, modified: None }
    }

    fn folder(path: &str) -> Declared<'_> {
        Declared { directory: true, size: 0, sha256: "", ..file(path) }
    }

    fn plan(entries: &[Declared<'_>]) -> Result<Plan> {
        Plan::new(entries.iter().copied(), None, Names::default(), 10).map(|(plan, _)| plan)
    }

    #[test]
    fn entries_keep_their_numbers_and_have_an_order() {
        let plan = plan(&[file("b"), file("a/x"), folder("a"), file("a-")]).unwrap();
        assert_eq!(plan.path(1), b"a/x");
        let order: Vec<_> = plan.in_order().map(|(_, path, _)| path).collect();
        assert_eq!(order, [&b"a"[..], b"a/x", b"a-", b"b"]);
        let below: Vec<_> = plan.below(b"a").map(|(index, ..)| index).collect();
        assert_eq!(below, [2, 1]);
        assert_eq!((plan.len(), plan.bytes()), (4, 3));
    }

    #[test]
    fn every_offender_is_listed_and_the_worst_names_the_error() {
        let error = plan(&[file("a//b"), file("ok"), file("../x"), file("/y")]).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::PathEscape));
        assert_eq!(error.to_string(), "`../x`: no `..`, and 2 more");
        let listed: Vec<_> = error.report().issues.into_iter().map(|issue| issue.path).collect();
        assert_eq!(listed, ["a//b", "../x", "/y"]);
    }

    #[test]
    fn one_path_is_one_entry() {
        for entries in [
            &[file("a"), file("a")][..],
            &[file("a"), folder("a")],
            &[folder("a"), folder("a")],
            &[file("a"), file("a/b")],
            &[file("a/b"), file("c"), file("a/b/c/d")],
        ] {
            assert_eq!(plan(entries).unwrap_err().cause(), Some(Cause::Conflict), "{entries:?}");
        }
        plan(&[folder("a"), file("a/b"), file("a-b"), file("ab")]).unwrap();
    }

    #[test]
    fn sizes_are_bounded_before_anything_is_reserved() {
        let huge = Declared { size: 1 << 63, ..file("huge") };
        assert_eq!(plan(&[huge]).unwrap_err().kind(), Kind::LimitExceeded);
        let half = Declared { size: 1 << 62, ..file("half") };
        let other = Declared { path: b"other", ..half };
        assert_eq!(plan(&[half, other]).unwrap_err().kind(), Kind::LimitExceeded);
        // Ten million entries end at the first that is too many.
        let endless = (0..10_000_000_u32).map(|_| file("x"));
        let error = Plan::new(endless, None, Names::default(), 10).unwrap_err();
        assert_eq!(error.kind(), Kind::LimitExceeded);
        let longest = "n/".repeat(120) + "n";
        let names: Vec<String> = (0..MAX_ENTRIES).map(|n| format!("{longest}{n}")).collect();
        let error = Plan::new(names.iter().map(|name| file(name)), None, Names::default(), 10);
        assert_eq!(error.unwrap_err().kind(), Kind::LimitExceeded, "the answer would not fit");
    }

    #[test]
    fn what_is_no_digest_or_time_is_named() {
        let none = Declared { sha256: "", ..file("a") };
        let odd = Declared { modified: Some((0, -1)), ..file("b") };
        let error = plan(&[none, odd]).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert_eq!(error.report().issues.len(), 2);
        assert_eq!(parse_digest(&SHA.to_uppercase()), parse_digest(SHA));
        assert_eq!(parse_digest(SHA).unwrap().to_string(), SHA);
        assert_eq!(parse_digest(&"\u{e9}".repeat(32)), None);
    }

    #[test]
    fn what_rules_leave_out_does_not_count() {
        let entries = [file("a.log"), file("b"), folder("build"), file("build/x"), file("c")];
        let rules = Rules::of_request(&["*.log".to_owned(), "build/".to_owned()]).unwrap();
        let (plan, ignored) = Plan::new(entries, Some(rules), Names::default(), 10).unwrap();
        assert_eq!(ignored, [0, 2, 3]);
        assert_eq!((plan.path(0), plan.path(1), plan.bytes()), (&b"b"[..], &b"c"[..], 2));
        assert_eq!(plan.in_order().count(), 2);
    }

    #[test]
    fn a_destination_that_lacks_names_offers_others() {
        let names = Names { windows: true, ..Names::default() };
        let entries = [file("CON"), file("fine"), file("d/a:b")];
        let error = Plan::new(entries, None, names, 10).unwrap_err();
        assert_eq!(error.cause(), Some(Cause::NameUnusable));
        let report = error.report();
        let offered: Vec<_> = report.issues.iter().filter_map(|it| it.limit.as_deref()).collect();
        assert_eq!(offered, ["for example `_CON`", "for example `d/a_b`"]);
        assert!(report.hint.unwrap().contains("offered"));
    }

    #[test]
    fn a_destination_that_folds_case_names_the_pair() {
        let names = Names { fold_case: true, ..Names::default() };
        for (one, other) in [
            ("A", "a"),
            ("stra\u{df}e", "STRASSE"),
            ("\u{212a}elvin", "kelvin"),
            ("caf\u{e9}", "cafe\u{301}"),
            ("dir/x", "DIR/y"),
        ] {
            let error = Plan::new([file(one), file(other)], None, names, 10).unwrap_err();
            assert_eq!(error.cause(), Some(Cause::NameUnusable));
            let issue = error.report().issues.remove(0);
            let named = [issue.path, issue.limit.unwrap()];
            assert!(named[0].starts_with(one) || named[0].starts_with(other), "{named:?}");
            plan(&[file(one), file(other)]).unwrap();
        }
        let (tree, _) =
            Plan::new([folder("D"), file("D/a"), file("D/b")], None, names, 10).unwrap();
        assert_eq!(tree.len(), 3);
    }
}
