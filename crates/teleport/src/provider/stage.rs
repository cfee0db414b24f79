//! One import, prepared beside its destination and put in place by one rename.
//!
//! Killed at any point, the destination is what it was or what it was to become. What is left over
//! then is in the journal.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, RenameFlags, StatxFlags, renameat_with, statx, syncfs};
use spaceport_types::{Cause, Error, Kind, Result};

use crate::journal::{Before, Change, Identity, Journal};
use crate::payload::{ItemPath, no_room};
use crate::snapshot;

/// Names a private folder of ours, beside a profile.
const PREFIX: &str = ".spaceport-import-";

/// Folders that one parent may hold at a time; one is usual.
const MAX_STAGES: u32 = 1000;

/// A private folder, on the file system of its destination. Goes when dropped unpublished.
#[derive(Debug)]
pub(super) struct Stage {
    path: PathBuf,
    published: bool,
}

impl Stage {
    /// Makes one in `parent`, which is made when it is missing.
    pub(super) fn new(parent: &Path, journal: &mut dyn Journal) -> Result<Self> {
        folders(parent, journal)?;
        for number in 0..MAX_STAGES {
            let path = parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            if path.symlink_metadata().is_ok() {
                continue;
            }
            journal.record(vec![Change::Stage { path: path.clone() }])?;
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, published: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(no_room(error, "the import")),
            }
        }
        Err(Error::new(
            Kind::LimitExceeded,
            format!("`{}` holds too many imports", parent.display()),
        ))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts files into the places of others, or where there are none, one after the other. What fails
    /// half-way is taken back.
    pub(super) fn publish_files(
        mut self,
        files: &[(PathBuf, PathBuf)],
        journal: &mut dyn Journal,
    ) -> Result<()> {
        syncfs(File::open(&self.path)?).map_err(io::Error::from)?;
        let mut changes = Vec::new();
        for (number, (_, target)) in files.iter().enumerate() {
            let previous = self.path.join(format!("previous-{number}"));
            let was_there = match fs::hard_link(target, &previous) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                Err(error) => return Err(error.into()),
            };
            let previous = was_there.then_some(previous);
            changes.push(Change::Content { path: target.clone(), previous });
        }
        // As long as they may have to come back.
        self.published =
            changes.iter().any(|c| matches!(c, Change::Content { previous: Some(_), .. }));
        journal.record(changes.clone())?;
        let place = || -> Result<()> {
            for (staged, target) in files {
                fs::rename(staged, target)?;
                if let Some(parent) = target.parent() {
                    File::open(parent)?.sync_all()?;
                }
            }
            Ok(())
        };
        place().inspect_err(|_| drop(super::undo::undo(&changes)))
    }

    /// Takes the place of `target`; `within` says what is new in it.
    ///
    /// # Errors
    ///
    /// `conflict` when something is there that should not be, or nothing is where something should.
    pub(super) fn publish(
        mut self,
        target: &Path,
        before: Before,
        within: Vec<Change>,
        journal: &mut dyn Journal,
    ) -> Result<()> {
        publish(&self.path, target, before, within, journal)?;
        self.published = true;
        if before == Before::Merged {
            // Everything in it is in the new one too.
            fs::remove_dir_all(&self.path)?;
        }
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.published {
            // What cannot be removed now is in the journal.
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

/// Puts a finished file or folder in place of `target`, in one step that is durable on return.
fn publish(
    stage: &Path,
    target: &Path,
    before: Before,
    mut within: Vec<Change>,
    journal: &mut dyn Journal,
) -> Result<()> {
    let identity = identity(stage)?;
    if before == Before::Merged {
        File::create_new(stage.join(marker(&identity)))?;
    }
    within.push(Change::Publish {
        stage: stage.to_owned(),
        target: target.to_owned(),
        identity,
        before,
    });
    syncfs(File::open(stage)?).map_err(io::Error::from)?;
    journal.record(within)?;
    exchange(stage, target, before)
}

/// Renames, in exchange where there is something; and makes that durable.
pub(super) fn exchange(stage: &Path, target: &Path, before: Before) -> Result<()> {
    let flags = match before {
        Before::Nothing => RenameFlags::NOREPLACE,
        Before::Merged | Before::Kept => RenameFlags::EXCHANGE,
    };
    renameat_with(CWD, stage, CWD, target, flags).map_err(|error| {
        let place = target.display();
        match error {
            rustix::io::Errno::EXIST | rustix::io::Errno::NOENT => {
                Error::because(Cause::Conflict, format!("`{place}` came or went meanwhile"))
                    .hint("Try again")
            }
            rustix::io::Errno::INVAL => {
                let why = format!("the file system of `{place}` cannot exchange two folders");
                Error::because(Cause::NotImportable, why)
            }
            _ => io::Error::from(error).into(),
        }
        .with("path", place)
    })?;
    if let Some(parent) = target.parent() {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Names an empty file within a profile that was merged. A later import clones it along with the rest, so
/// it says that this import is in there, whichever folder the profile is by then.
pub(super) fn marker(identity: &Identity) -> String {
    format!("{PREFIX}{}-{}", identity.inode, identity.born_ns.unwrap_or_default())
}

/// What tells a file or folder from another that later has its place, and perhaps its inode.
pub(super) fn identity(path: &Path) -> Result<Identity> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted).map_err(io::Error::from)?;
    let born = StatxFlags::from_bits_retain(found.stx_mask)
        .contains(StatxFlags::BTIME)
        .then(|| found.stx_btime.tv_sec * 1_000_000_000 + i64::from(found.stx_btime.tv_nsec));
    Ok(Identity { inode: found.stx_ino, born_ns: born })
}

/// Makes a folder and those above it, 0700, each written down first.
pub(super) fn folders(path: &Path, journal: &mut dyn Journal) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        folders(parent, journal)?;
    }
    journal.record(vec![Change::Folder { path: path.to_owned() }])?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(no_room(error, "the import").with("path", path.display()))
        }
        _ => Ok(()),
    }
}

/// The place of an item's file below a folder, with the folders above it made.
pub(super) fn place(folder: &Path, name: &ItemPath) -> Result<PathBuf> {
    let path = folder.join(name.as_str());
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    Ok(path)
}

/// Writes a new file, 0600 or 0700.
pub(super) fn write(
    path: &Path,
    mode: u32,
    modified_ns: i64,
    bytes: &mut dyn io::Read,
) -> Result<()> {
    let mode = if mode & 0o100 == 0 { 0o600 } else { 0o700 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    io::copy(bytes, &mut file).map_err(|error| no_room(error, "the import"))?;
    // A time from the future or from before there were such files tells nothing.
    if let Ok(since @ 1..) = u64::try_from(modified_ns)
        && let Some(time) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(since))
    {
        file.set_modified(time)?;
    }
    Ok(())
}

/// Replaces a file within a stage, which nobody else sees yet.
pub(super) fn rewrite(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    write(path, 0o600, 0, &mut &*bytes)
}

/// Copies a profile at rest into a stage, without what `wanted` says no to.
pub(super) fn clone_tree(from: &Path, to: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<()> {
    for found in snapshot::tree(from, wanted)? {
        let copy = to.join(&found.name);
        if let Some(parent) = copy.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        // Shares blocks where the file system can.
        fs::copy(&found.path, &copy).map_err(|error| no_room(error, "a copy of the profile"))?;
        let file = OpenOptions::new().append(true).open(&copy);
        if let (Ok(file), Ok(modified)) = (file, found.metadata.modified()) {
            file.set_modified(modified)?;
        }
    }
    Ok(())
}
