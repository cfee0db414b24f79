//! Opening a path beneath a folder.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// What to do with a link on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    /// It is an error.
    Refused,
    /// It is followed as long as it stays beneath the folder.
    Beneath,
    /// It is followed, and the folder is where `/` is.
    Within,
}

/// Kernels before 5.6 have no openat2, and some sandboxes refuse what they do not know.
static MISSING: AtomicBool = AtomicBool::new(false);

/// A rename elsewhere can make the kernel unsure of where it is; it then wants to be asked again.
const ATTEMPTS: usize = 64;

/// Opens `path`, which is relative, beneath `folder`. What is opened is never a terminal that takes
/// over the process, nor a pipe that waits for its other end.
pub(crate) fn open_beneath(
    folder: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let mut flags = flags | OFlags::CLOEXEC;
    // openat2 takes neither for a path alone, and nothing is waited for there.
    if !flags.contains(OFlags::PATH) {
        flags |= OFlags::NOCTTY | OFlags::NONBLOCK;
    }
    let resolve = ResolveFlags::NO_MAGICLINKS
        | match links {
            Links::Refused => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            Links::Beneath => ResolveFlags::BENEATH,
            Links::Within => ResolveFlags::IN_ROOT,
        };
    if !MISSING.load(Ordering::Relaxed) {
        for _ in 0..ATTEMPTS {
            match openat2(folder, OsStr::from_bytes(path), flags, mode, resolve) {
                Err(Errno::AGAIN) => {}
                Err(Errno::NOSYS) => {
                    MISSING.store(true, Ordering::Relaxed);
                    return step_by_step(folder, path, flags, mode);
                }
                result => return result,
            }
        }
    }
    step_by_step(folder, path, flags, mode)
}

/// The same with nothing but openat(2): each name is opened in the folder before it, and none of
/// them may be a link.
pub(super) fn step_by_step(
    folder: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let mut segments = path.split(|&byte| byte == b'/').peekable();
    let mut held: Option<OwnedFd> = None;
    while let Some(segment) = segments.next() {
        if segment == b".." || segment.is_empty() {
            return Err(Errno::XDEV);
        }
        let at = held.as_ref().map_or(folder, |held| held.as_fd());
        let (flags, mode) = match segments.peek() {
            Some(_) => (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()),
            None => (flags, mode),
        };
        let opened = openat(at, OsStr::from_bytes(segment), flags | OFlags::NOFOLLOW, mode);
        held = Some(match opened {
            // A link where a folder is wanted is "not a directory" to openat; say what it is.
            Err(Errno::NOTDIR) if is_link(at, segment) => return Err(Errno::LOOP),
            result => result?,
        });
    }
    held.ok_or(Errno::NOENT)
}

fn is_link(folder: BorrowedFd<'_>, name: &[u8]) -> bool {
    use rustix::fs::{AtFlags, FileType, statat};
    statat(folder, OsStr::from_bytes(name), AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}
