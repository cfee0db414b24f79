//! Removing a folder with everything in it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Root, kind_of};

/// Removes what has a name in `folder`, whatever it is. Links are removed and not followed; a
/// folder whose mode forbids it is opened up first. That it is gone already is no error.
///
/// Works its way down with one handle a level, which `MAX_DEPTH` bounds for what we made
/// ourselves; what is deeper is left to whoever made it, with `EMFILE`.
pub(crate) fn remove_tree(folder: &Root, name: &[u8]) -> Result<(), Errno> {
    let Some(stat) = folder.look(name)? else { return Ok(()) };
    if kind_of(&stat) != FileType::Directory {
        return gone(folder.unlink(name));
    }
    let inner = match folder.folder(name) {
        Ok(inner) => inner,
        Err(Errno::ACCESS) => {
            open_up(folder, name)?;
            folder.folder(name)?
        }
        // Swapped for something else meanwhile: that is removed, not followed.
        Err(Errno::LOOP | Errno::NOTDIR) => return gone(folder.unlink(name)),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    for entry in inner.names()? {
        match remove_tree(&inner, &entry) {
            Err(Errno::ACCESS) => {
                rustix::fs::fchmod(&inner.handle, Mode::RWXU)?;
                remove_tree(&inner, &entry)?;
            }
            result => result?,
        }
    }
    gone(folder.remove_folder(name))
}

/// Gives the owner back what a mode like 0000 took.
fn open_up(folder: &Root, name: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let handle = super::open_beneath(
        std::os::fd::AsFd::as_fd(folder),
        name,
        flags,
        Mode::empty(),
        super::Links::Refused,
    )?;
    // A handle for its path alone takes no fchmod; through /proc it does, and it cannot be swapped.
    use std::os::fd::AsRawFd as _;
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    rustix::fs::chmod(OsStr::from_bytes(path.as_bytes()), Mode::RWXU)
}

fn gone(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}
