//! Puts what is staged where it belongs: all of it, or nothing.
//!
//! First every step is decided, then (where there is more than one) written down, then taken. A
//! step is one rename, so each is done or not done. A step that fails takes back those before it;
//! what a crash interrupts is taken back by the next start, from the journal. Which steps were
//! taken shows in the inodes, so taking back what was not done does nothing.

use std::collections::BTreeMap;

use rustix::fs::{AtFlags, FileType, Mode, RenameFlags, Stat};
use rustix::io::Errno;
use spaceport_types::{Cause, Error, Result};

use super::journal::{self, Step};
use super::stage::Stage;
use crate::path::{MAX_NAME, Shown, raw};
use crate::root::{Root, io_error, kind_of};

/// Names that are tried for `name (1)`, `name (2)` and so on.
const MAX_NUMBER: u32 = 10_000;

/// How often everything is decided anew because something else took a name meanwhile.
const ATTEMPTS: usize = 16;

/// What to do where the destination already has a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Conflict {
    /// What arrives is called `name (1).ext`.
    #[default]
    Rename,
    /// Files take the place of files; folders are merged.
    Overwrite,
    /// What is there stays; folders are merged.
    Skip,
    /// Nothing is published.
    Refuse,
}

/// Where something is published: below a root, some names deep.
#[derive(Debug)]
pub(crate) struct Place {
    /// Everything happens beneath it.
    pub(crate) root: Root,
    /// The folder, relative to the root; empty for the root itself.
    pub(crate) folder: Vec<u8>,
}

impl Place {
    /// The path of `name` in the folder, from the root.
    pub(crate) fn at(&self, name: &[u8]) -> Vec<u8> {
        if self.folder.is_empty() {
            name.to_vec()
        } else {
            [&self.folder, &b"/"[..], name].concat()
        }
    }
}

/// What became of it.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Names at the top that were changed to avoid a conflict.
    pub(crate) renamed: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Folders that were there before, and have been merged with. Paths as staged.
    pub(crate) merged: Vec<Vec<u8>>,
    /// What was left out because something was there. Paths as staged.
    pub(crate) skipped: Vec<Vec<u8>>,
}

/// Publishes everything in the stage. `finish` sees to what can only be done in place; when it
/// fails, everything is taken back.
pub(crate) fn publish(
    stage: &Stage,
    place: &Place,
    conflict: Conflict,
    finish: impl Fn(&Published) -> Result<()>,
) -> Result<Published> {
    let mut last = Errno::EXIST;
    for _ in 0..ATTEMPTS {
        let mut decision =
            Decision { stage, place, conflict, steps: Vec::new(), published: Published::default() };
        decision.make_folders()?;
        decision.decide_all()?;
        let Decision { steps, published, .. } = decision;
        if steps.len() > 1 {
            let root = place.root.location().map_err(|errno| io_error(errno, "found", b"."))?;
            stage
                .write(b"journal", &journal::encode(&root, &steps))
                .map_err(|errno| io_error(errno, "written", b"journal"))?;
        }
        match take(stage, place, &steps) {
            Ok(()) => {}
            Err((done, step_failed)) => {
                undo(stage.files(), &place.root, steps.get(..=done).unwrap_or_default());
                match step_failed {
                    Failed::Taken(errno) => last = errno,
                    Failed::For(error) => return Err(error),
                }
                continue;
            }
        }
        if let Err(error) = finish(&published).and_then(|()| settle(stage, place, &steps)) {
            undo(stage.files(), &place.root, &steps);
            return Err(error);
        }
        return Ok(published);
    }
    Err(io_error(last, "published", &place.at(b"")))
}

/// Takes back what a crash interrupted. To be called on a stage that an earlier run left.
pub(crate) fn recover(stage: &Stage) -> Result<(), Errno> {
    if stage.read(b"done", 0)?.is_some() {
        return Ok(());
    }
    let Some(bytes) = stage.read(b"journal", journal::MAX_BYTES)? else { return Ok(()) };
    if let Some((location, steps)) = journal::decode(&bytes) {
        match Root::open(&location) {
            Ok(root) => {
                tracing::info!(place = %location.display(), "a publication is taken back that a crash interrupted");
                undo(stage.files(), &root, &steps);
            }
            Err(error) => tracing::warn!(%error, "a destination is gone"),
        }
    }
    stage.root().unlink(b"journal")
}

/// Makes it last: from here on, the next start finds it done.
fn settle(stage: &Stage, place: &Place, steps: &[Step]) -> Result<()> {
    let failed = |errno| io_error(errno, "written", &place.folder);
    if steps.len() > 1 {
        stage
            .root()
            .rename(b"journal", stage.root(), b"done", RenameFlags::empty())
            .map_err(failed)?;
    }
    let folder = match place.folder.is_empty() {
        true => place.root.again(),
        false => place.root.folder(&place.folder),
    };
    folder.and_then(|folder| rustix::fs::fsync(&folder)).map_err(failed)
}

/// Decides the steps of one publication.
struct Decision<'a> {
    stage: &'a Stage,
    place: &'a Place,
    conflict: Conflict,
    steps: Vec<Step>,
    published: Published,
}

impl Decision<'_> {
    /// The folders on the way to the destination that are not there yet.
    fn make_folders(&mut self) -> Result<()> {
        let folder = &self.place.folder;
        let ends = folder.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
        let mut missing = false;
        for end in ends.chain((!folder.is_empty()).then_some(folder.len())) {
            let path = folder.get(..end).unwrap_or_default();
            missing = missing
                || match self.place.root.folder(path) {
                    Ok(_) => false,
                    Err(Errno::NOENT) => true,
                    Err(errno) => return Err(io_error(errno, "opened", path)),
                };
            if missing {
                self.steps.push(Step::Make { to: path.to_vec() });
            }
        }
        Ok(())
    }

    fn decide_all(&mut self) -> Result<()> {
        let mut names =
            self.stage.files().names().map_err(|errno| io_error(errno, "read", b"."))?;
        names.sort_unstable();
        let new = matches!(self.steps.last(), Some(Step::Make { .. }));
        for name in names {
            if new {
                self.go(&name, &self.place.at(&name))?;
            } else {
                self.decide(&name, true)?;
            }
        }
        Ok(())
    }

    /// Decides about one staged path. Folders that are there on both sides are merged, one by one.
    fn decide(&mut self, path: &[u8], top: bool) -> Result<()> {
        let to = self.place.at(path);
        let failed = |errno| io_error(errno, "looked at", &to);
        let Some(there) = self.look(&to).map_err(failed)? else { return self.go(path, &to) };
        let staged = self.staged(path).map_err(failed)?;
        let folders = [&there, &staged].map(|stat| kind_of(stat) == FileType::Directory);
        let files = [&there, &staged].map(|stat| kind_of(stat) == FileType::RegularFile);
        match self.conflict {
            Conflict::Rename if top => {
                let name = self.free_name(path, folders[1])?;
                let to = self.place.at(&name);
                self.published.renamed.insert(path.to_vec(), name);
                self.go(path, &to)
            }
            Conflict::Overwrite | Conflict::Skip if folders == [true, true] => {
                self.published.merged.push(path.to_vec());
                let inner = self.stage.files().folder(path).map_err(failed)?;
                let mut names = inner.names().map_err(failed)?;
                drop(inner);
                names.sort_unstable();
                for name in names {
                    self.decide(&[path, b"/", &name].concat(), false)?;
                }
                Ok(())
            }
            Conflict::Overwrite if files == [true, true] => {
                let inode = staged.st_ino;
                self.steps.push(Step::Swap { from: path.to_vec(), to, inode });
                Ok(())
            }
            Conflict::Skip => {
                self.published.skipped.push(path.to_vec());
                Ok(())
            }
            Conflict::Rename | Conflict::Overwrite | Conflict::Refuse => {
                Err(in_the_way(&to, &there))
            }
        }
    }

    fn go(&mut self, path: &[u8], to: &[u8]) -> Result<()> {
        let staged = self.staged(path).map_err(|errno| io_error(errno, "looked at", to))?;
        let inode = staged.st_ino;
        self.steps.push(Step::Move { from: path.to_vec(), to: to.to_vec(), inode });
        Ok(())
    }

    fn look(&self, to: &[u8]) -> Result<Option<Stat>, Errno> {
        let (holder, name) = self.place.root.holder(to)?;
        holder.look(name)
    }

    fn staged(&self, path: &[u8]) -> Result<Stat, Errno> {
        let (holder, name) = self.stage.files().holder(path)?;
        holder.stat(name)
    }

    fn free_name(&self, name: &[u8], folder: bool) -> Result<Vec<u8>> {
        for number in 1..=MAX_NUMBER {
            let candidate = numbered(name, number, folder);
            let to = self.place.at(&candidate);
            if self.look(&to).map_err(|errno| io_error(errno, "looked at", &to))?.is_none() {
                return Ok(candidate);
            }
        }
        Err(Error::because(
            Cause::Conflict,
            format!("`{}` is there {MAX_NUMBER} times already", Shown(name)),
        )
        .with("entry", raw(name))
        .hint("Choose another folder"))
    }
}

/// `name (1).ext`; a folder's name has no extension, and neither has `.profile`. What would be too
/// long loses the end of its stem.
fn numbered(name: &[u8], number: u32, folder: bool) -> Vec<u8> {
    let dot = name.iter().rposition(|&byte| byte == b'.').filter(|&at| at > 0 && !folder);
    let (stem, extension) = name.split_at(dot.unwrap_or(name.len()));
    let suffix = format!(" ({number})");
    let room = MAX_NAME.saturating_sub(suffix.len() + extension.len());
    let mut end = stem.len().min(room);
    // Not in the middle of a character.
    while end < stem.len() && end > 0 && stem.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
        end -= 1;
    }
    let mut numbered = stem.get(..end).unwrap_or_default().to_vec();
    numbered.extend(suffix.as_bytes());
    numbered.extend(extension);
    numbered.truncate(MAX_NAME);
    numbered
}

fn in_the_way(path: &[u8], there: &Stat) -> Error {
    let what = match kind_of(there) {
        FileType::Directory => "a folder",
        FileType::RegularFile => "a file",
        FileType::Symlink => "a link",
        _ => "something that is no file",
    };
    Error::because(Cause::Conflict, format!("{what} is in the place of `{}`", Shown(path)))
        .with("entry", raw(path))
        .hint("Move it away, or choose another folder")
}

/// Why a step was not taken.
enum Failed {
    /// Something took the name since it was decided: decide again.
    Taken(Errno),
    /// For good.
    For(Error),
}

/// Takes the steps in order; the number of the one that failed, and why.
fn take(stage: &Stage, place: &Place, steps: &[Step]) -> Result<(), (usize, Failed)> {
    for (number, step) in steps.iter().enumerate() {
        take_one(stage.files(), &place.root, step).map_err(|failed| (number, failed))?;
    }
    Ok(())
}

fn take_one(files: &Root, root: &Root, step: &Step) -> Result<(), Failed> {
    match step {
        Step::Make { to } => {
            let (holder, name) = root.holder(to).map_err(|errno| gave(errno, to))?;
            match holder.make_folder(name, Mode::from_raw_mode(0o755)) {
                Ok(true) => Ok(()),
                Ok(false) => Err(Failed::Taken(Errno::EXIST)),
                Err(errno) => Err(gave(errno, to)),
            }
        }
        Step::Move { from, to, .. } => {
            let (source, old) = files.holder(from).map_err(|errno| gave(errno, from))?;
            let (target, new) = root.holder(to).map_err(|errno| gave(errno, to))?;
            move_to_free(&source, old, &target, new).map_err(|errno| match errno {
                Errno::EXIST | Errno::NOTEMPTY => Failed::Taken(errno),
                errno => gave(errno, to),
            })
        }
        Step::Swap { from, to, .. } => {
            let (source, old) = files.holder(from).map_err(|errno| gave(errno, from))?;
            let (target, new) = root.holder(to).map_err(|errno| gave(errno, to))?;
            source.rename(old, &target, new, RenameFlags::EXCHANGE).map_err(
                |errno| match errno {
                    Errno::NOENT => Failed::Taken(errno),
                    errno => gave(errno, to),
                },
            )?;
            // What came back is removed with the stage. It has to be what was decided about.
            match source.stat(old) {
                Ok(stat) if kind_of(&stat) == FileType::RegularFile => Ok(()),
                Ok(stat) => Err(Failed::For(in_the_way(to, &stat))),
                Err(errno) => Err(gave(errno, to)),
            }
        }
    }
}

fn gave(errno: Errno, path: &[u8]) -> Failed {
    Failed::For(match errno {
        Errno::XDEV => {
            Error::because(Cause::Conflict, format!("`{}` is on another file system", Shown(path)))
                .with("entry", raw(path))
                .hint("Send to that folder itself")
        }
        errno => io_error(errno, "published", path),
    })
}

/// Renames to a name that nothing has. Some file systems cannot promise that in one call; there a
/// file is linked, and a folder takes the place of an empty one, which only we can have made.
fn move_to_free(source: &Root, old: &[u8], target: &Root, new: &[u8]) -> Result<(), Errno> {
    match source.rename(old, target, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {}
        result => return result,
    }
    if kind_of(&source.stat(old)?) == FileType::Directory {
        if !target.make_folder(new, Mode::RWXU)? {
            return Err(Errno::EXIST);
        }
        return source.rename(old, target, new, RenameFlags::empty());
    }
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let (from, to) = (OsStr::from_bytes(old), OsStr::from_bytes(new));
    match rustix::fs::linkat(source, from, target, to, AtFlags::empty()) {
        Ok(()) => source.unlink(old),
        // No links either. What is left is a look first.
        Err(Errno::PERM | Errno::OPNOTSUPP) => match target.look(new)? {
            Some(_) => Err(Errno::EXIST),
            None => source.rename(old, target, new, RenameFlags::empty()),
        },
        Err(errno) => Err(errno),
    }
}

/// Takes steps back, the last first. What was not done, or has been changed by someone else since,
/// stays as it is.
fn undo(files: &Root, root: &Root, steps: &[Step]) {
    for step in steps.iter().rev() {
        match undo_one(files, root, step) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => {
                let (Step::Make { to } | Step::Move { to, .. } | Step::Swap { to, .. }) = step;
                tracing::error!(%error, entry = %Shown(to), "a step of a publication cannot be taken back");
            }
        }
    }
}

fn undo_one(files: &Root, root: &Root, step: &Step) -> Result<(), Errno> {
    match step {
        Step::Make { to } => {
            let (holder, name) = root.holder(to)?;
            match holder.remove_folder(name) {
                // Someone else's by now.
                Err(Errno::NOTEMPTY | Errno::NOTDIR) => Ok(()),
                result => result,
            }
        }
        Step::Move { from, to, inode } => {
            let (target, new) = root.holder(to)?;
            let (source, old) = files.holder(from)?;
            let published = target.look(new)?.is_some_and(|stat| stat.st_ino == *inode);
            if published && source.look(old)?.is_none() {
                move_to_free(&target, new, &source, old)?;
            }
            Ok(())
        }
        Step::Swap { from, to, inode } => {
            let (target, new) = root.holder(to)?;
            let (source, old) = files.holder(from)?;
            let published = target.look(new)?.is_some_and(|stat| stat.st_ino == *inode);
            if published && source.look(old)?.is_some_and(|stat| stat.st_ino != *inode) {
                source.rename(old, &target, new, RenameFlags::EXCHANGE)?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_goes_before_the_extension() {
        let names =
            |name: &str, folder| String::from_utf8(numbered(name.as_bytes(), 1, folder)).unwrap();
        assert_eq!(names("notes.md", false), "notes (1).md");
        assert_eq!(names("archive.tar.gz", false), "archive.tar (1).gz");
        assert_eq!(names("README", false), "README (1)");
        assert_eq!(names(".profile", false), ".profile (1)");
        assert_eq!(names("my.app", true), "my.app (1)");
        let long = "\u{e9}".repeat(126) + ".md";
        let numbered = names(&long, false);
        assert!(numbered.len() <= MAX_NAME && numbered.ends_with("\u{e9} (1).md"), "{numbered}");
        let extension = format!("a.{}", "x".repeat(253));
        assert!(names(&extension, false).len() <= MAX_NAME);
    }
}
