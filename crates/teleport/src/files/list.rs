//! What is in a folder, page by page.

use std::cmp::Ordering;

use rustix::io::Errno;
use spaceport_types::{Error, Issue, Kind, Result};

use super::{Below, Entry, EntryKind, Files, failed};
use crate::hex;
use crate::ignore::is_below;
use crate::path::{MAX_DEPTH, RelativePath};
use crate::root::Root;

/// Entries of a page when the caller does not say, and at most.
const PAGE: (usize, usize) = (1_000, 10_000);

/// What to list.
#[derive(Clone, Copy, Debug, Default)]
pub struct List {
    /// Folders within folders; 0 and 1 are the folder alone.
    pub depth: u32,
    /// Names that start with a dot as well.
    pub hidden: bool,
    /// Entries of one page at most; 0 leaves that open.
    pub page: u32,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries, folders before what is in them.
    pub entries: Vec<Entry>,
    /// Gets the next page; `None` at the end.
    pub next: Option<String>,
}

impl Files {
    /// What is in a folder. `token` is the one of the page before, or empty.
    ///
    /// The order is fixed and the token says where in it the page ended, so what changes between
    /// two pages neither repeats nor hides what does not.
    ///
    /// # Errors
    ///
    /// As [`Files::stat`]; `invalid_argument` for a token that is none.
    pub fn list(&self, path: &Below, list: List, token: &str) -> Result<Page> {
        let shown = path.as_ref().map_or(&b"."[..], RelativePath::as_bytes);
        let fail = |errno| failed(errno, "listed", shown);
        let root = self.open()?;
        let folder = self.folder(&root, path).map_err(fail)?;
        let after = match token {
            "" => None,
            token => Some(read_token(token)?),
        };
        let limit = match list.page as usize {
            0 => PAGE.0,
            page => page.min(PAGE.1),
        };
        let mut walk = Walk {
            files: self,
            base: path,
            hidden: list.hidden,
            after: after.as_ref().map_or(&[], RelativePath::as_bytes),
            limit,
            entries: Vec::new(),
            last: None,
            more: false,
        };
        let depth = (list.depth.max(1) as usize).min(MAX_DEPTH);
        walk.folder(&folder, b"", depth).map_err(fail)?;
        let next = walk.last.filter(|_| walk.more).map(|last| hex::encode(&last));
        Ok(Page { entries: walk.entries, next })
    }
}

struct Walk<'a> {
    files: &'a Files,
    base: &'a Below,
    hidden: bool,
    /// Relative to the folder that is listed, like all paths here.
    after: &'a [u8],
    limit: usize,
    entries: Vec<Entry>,
    last: Option<Vec<u8>>,
    more: bool,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &Root, path: &[u8], depth: usize) -> Result<(), Errno> {
        let mut names = folder.names()?;
        names.sort_unstable();
        for name in names {
            if !self.hidden && name.first() == Some(&b'.') {
                continue;
            }
            let below = if path.is_empty() { name.clone() } else { [path, b"/", &name].concat() };
            // Names sort as their bytes do, and a folder's content comes right behind it.
            let order = crate::ignore::tree_order(&below, self.after);
            let leads_there = is_below(self.after, &below) || below == self.after;
            if order != Ordering::Greater && !leads_there {
                continue;
            }
            let Ok(relative) = RelativePath::parse(below.as_slice()) else { continue };
            let whole = match self.base {
                Some(base) => match base.join(&relative) {
                    Ok(whole) => whole,
                    Err(_) => continue, // too deep or too long to be named
                },
                None => relative,
            };
            let entry = match self.files.entry_in(folder, &whole) {
                Ok(entry) => entry,
                Err(Errno::NOENT) => continue, // gone meanwhile
                Err(errno) => return Err(errno),
            };
            let inner = entry.kind == EntryKind::Folder && depth > 1;
            if order == Ordering::Greater {
                if self.entries.len() == self.limit {
                    self.more = true;
                    return Ok(());
                }
                self.entries.push(entry);
                self.last = Some(below.clone());
            }
            if inner {
                match folder.folder(&name) {
                    Ok(inner) => self.folder(&inner, &below, depth - 1)?,
                    // Listed, and what is in it is not for us.
                    Err(Errno::ACCESS | Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => {}
                    Err(errno) => return Err(errno),
                }
                if self.more {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

fn read_token(token: &str) -> Result<RelativePath> {
    let bytes = hex::decode(token);
    bytes.and_then(|bytes| RelativePath::parse(bytes).ok()).ok_or_else(|| {
        Error::new(Kind::InvalidArgument, "that page token is not one of ours")
            .issue(Issue {
                path: "page_token".to_owned(),
                constraint: "`next_page_token` of the page before".into(),
                limit: None,
            })
            .hint("Start again without a token")
    })
}
