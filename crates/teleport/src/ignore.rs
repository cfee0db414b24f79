//! Which entries ignore rules leave out.
//!
//! The rules are git's: a pattern without a slash fits at any depth, one with a slash is anchored
//! where it was written, a later one wins over an earlier one, `!` takes back, and what is below an
//! ignored folder cannot be taken back. A deeper file's rules come before a shallower one's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use spaceport_types::{Error, Issue, Kind, Result};

use crate::path::{Shown, split};

pub use spaceport_wire::transfer::MAX_PATTERNS;

/// Bytes of one pattern, or of one line of a file of patterns.
const MAX_PATTERN: usize = 1_024;

/// Bytes of one file of patterns that are read. More are no rules that anyone wrote.
pub(crate) const MAX_FILE: usize = 256 << 10;

/// The rules of one place: those of a request, or of one `.gitignore`.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The folder they were written in; empty for the top.
    folder: Vec<u8>,
    patterns: Gitignore,
}

impl Rules {
    /// Compiles the patterns of a request, which count from the top.
    pub(crate) fn of_request(patterns: &[String]) -> Result<Self> {
        if patterns.len() > MAX_PATTERNS {
            return Err(Error::new(
                Kind::LimitExceeded,
                format!("{} ignore patterns are more than {MAX_PATTERNS}", patterns.len()),
            )
            .with("limit", MAX_PATTERNS)
            .hint("Leave out at the sender what should not arrive"));
        }
        let mut builder = GitignoreBuilder::new("");
        for (index, pattern) in patterns.iter().enumerate() {
            let added = if pattern.len() > MAX_PATTERN {
                Err(format!("is longer than {MAX_PATTERN} bytes"))
            } else {
                builder.add_line(None, pattern).map(drop).map_err(|error| error.to_string())
            };
            added.map_err(|why| {
                let shown = Shown(pattern.as_bytes());
                Error::new(Kind::InvalidArgument, format!("`{shown}` is no ignore pattern: {why}"))
                    .issue(Issue {
                        path: format!("ignore_patterns.{index}"),
                        constraint: "a pattern as in .gitignore".into(),
                        limit: None,
                    })
            })?;
        }
        Self::build(Vec::new(), &builder)
    }

    /// Compiles a file of patterns that lies in `folder`. Lines that are no patterns are passed over,
    /// as git does.
    pub(crate) fn of_file(folder: &[u8], content: &[u8]) -> Result<Self> {
        let mut builder = GitignoreBuilder::new("");
        let content = content.get(..MAX_FILE).unwrap_or(content);
        let lines = content.split(|&byte| byte == b'\n').filter(|line| line.len() <= MAX_PATTERN);
        for line in lines.take(MAX_PATTERNS) {
            if let Ok(line) = std::str::from_utf8(line)
                && let Err(error) = builder.add_line(None, line)
            {
                tracing::debug!(%error, "a line of a .gitignore is no pattern");
            }
        }
        Self::build(folder.to_vec(), &builder)
    }

    fn build(folder: Vec<u8>, builder: &GitignoreBuilder) -> Result<Self> {
        let patterns = builder.build().map_err(|error| {
            Error::new(Kind::LimitExceeded, "the ignore patterns are too many to compile")
                .source(error)
        })?;
        Ok(Self { folder, patterns })
    }

    /// What they say about one path, or `None` when they say nothing.
    fn judge(&self, path: &[u8], directory: bool) -> Option<bool> {
        let below = if self.folder.is_empty() {
            path
        } else {
            path.strip_prefix(&self.folder[..])?.strip_prefix(b"/")?
        };
        match self.patterns.matched(Path::new(OsStr::from_bytes(below)), directory) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        }
    }

    fn covers(&self, path: &[u8]) -> bool {
        self.folder.is_empty()
            || path.strip_prefix(&self.folder[..]).is_some_and(|rest| rest.first() == Some(&b'/'))
    }
}

/// Judges the entries of a tree, which come parents first and children together (the order of
/// [`tree_order`]). Holds the rules of the folders around the current entry and no others.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    rules: Vec<Rules>,
    /// The folder whose content is being left out.
    inside: Option<Vec<u8>>,
    /// The last folder that was looked at and not left out, so that siblings do not ask again.
    clear: Vec<u8>,
}

impl Judge {
    /// Starts with the rules of the top.
    pub(crate) fn new(top: Option<Rules>) -> Self {
        Self { rules: top.into_iter().collect(), ..Self::default() }
    }

    /// Adds the rules of a folder that is being entered.
    pub(crate) fn enter(&mut self, rules: Rules) {
        self.rules.retain(|known| known.covers(&rules.folder) && known.folder != rules.folder);
        self.rules.push(rules);
    }

    /// Whether an entry is left out.
    pub(crate) fn ignores(&mut self, path: &[u8], directory: bool) -> bool {
        if let Some(folder) = &self.inside {
            if is_below(path, folder) {
                return true;
            }
            self.inside = None;
        }
        self.rules.retain(|rules| rules.covers(path));
        // A folder on the way that was never declared can be ignored as well.
        let parent = split(path).0.unwrap_or_default();
        if parent != self.clear {
            for end in (0..parent.len()).filter(|&at| parent.get(at) == Some(&b'/')) {
                if self.left_out(&parent[..end]) {
                    return true;
                }
            }
            if !parent.is_empty() && self.left_out(parent) {
                return true;
            }
            self.clear = parent.to_vec();
        }
        let ignored = self.judge(path, directory);
        if ignored && directory {
            self.inside = Some(path.to_vec());
        }
        ignored
    }

    fn left_out(&mut self, folder: &[u8]) -> bool {
        let ignored = self.judge(folder, true);
        if ignored {
            self.inside = Some(folder.to_vec());
        }
        ignored
    }

    fn judge(&self, path: &[u8], directory: bool) -> bool {
        self.rules.iter().rev().find_map(|rules| rules.judge(path, directory)).unwrap_or(false)
    }
}

/// Whether `path` is in `folder`, at any depth.
pub(crate) fn is_below(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// The order in which a folder comes before what is in it, and that before everything else.
pub(crate) fn tree_order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    let key = |byte: &u8| if *byte == b'/' { 0 } else { u16::from(*byte) + 1 };
    a.iter().map(key).cmp(b.iter().map(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(patterns: &[&str]) -> Rules {
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        Rules::of_request(&patterns).unwrap()
    }

    #[test]
    fn children_follow_their_folder_at_once() {
        let mut paths = ["a-b", "a/b", "a", "a/b/c", "ab", "a/b-c"].map(str::as_bytes);
        paths.sort_by(|a, b| tree_order(a, b));
        assert_eq!(paths, ["a", "a/b", "a/b/c", "a/b-c", "a-b", "ab"].map(str::as_bytes));
    }

    #[test]
    fn nested_rules_take_back_and_folders_are_final() {
        let mut judge = Judge::new(Some(request(&["*.log", "build/", "/top"])));
        let mut seen = Vec::new();
        let entries: [(&str, bool); 12] = [
            ("build", true),
            ("build/deep", true),
            ("build/deep/x", false),
            ("debug.log", false),
            ("sub", true),
            ("sub/keep.log", false),
            ("sub/other.log", false),
            ("sub/top", false),
            ("top", false),
            ("undeclared/build/x", false),
            ("undeclared/build/y", false),
            ("undeclared/x", false),
        ];
        for (path, directory) in entries {
            if path == "sub/keep.log" {
                judge.enter(Rules::of_file(b"sub", b"!keep.log\n[bad\n").unwrap());
            }
            if !judge.ignores(path.as_bytes(), directory) {
                seen.push(path);
            }
        }
        assert_eq!(seen, ["sub", "sub/keep.log", "sub/top", "undeclared/x"]);
    }

    #[test]
    fn rules_end_with_their_folder() {
        let mut judge = Judge::new(None);
        assert!(!judge.ignores(b"a", true));
        judge.enter(Rules::of_file(b"a", b"*.tmp\n").unwrap());
        assert!(judge.ignores(b"a/x.tmp", false));
        assert!(!judge.ignores(b"ab.tmp", false));
        assert!(!judge.ignores(b"b/x.tmp", false));
    }

    #[test]
    fn what_is_no_pattern_is_named() {
        let error = Rules::of_request(&["[z-a]".to_owned()]).unwrap_err();
        assert_eq!(error.report().issues[0].path, "ignore_patterns.0");
        let many = vec![String::new(); MAX_PATTERNS + 1];
        assert_eq!(Rules::of_request(&many).unwrap_err().kind(), Kind::LimitExceeded);
    }
}
