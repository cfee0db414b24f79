//! One file on its way in: written where it is staged, hashed as it comes.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;

use rustix::fs::{Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, fchmod, ftruncate, futimens};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
use crate::root::Root;

/// Zeros of this length become a hole. Shorter ones are not worth the extra write.
const HOLE: usize = 64 << 10;
static ZEROS: [u8; HOLE] = [0; HOLE];

/// A file that is being received, in order from its first byte.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    hash: Sha256,
    received: u64,
}

impl Spool {
    /// Makes the file, and the folders it is in.
    pub(crate) fn create(files: &Root, path: &[u8]) -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = match files.open_file(path, flags, mode) {
            Err(Errno::NOENT) => {
                make_parents(files, path)?;
                files.open_file(path, flags, mode)?
            }
            file => file?,
        };
        Ok(Self { file, hash: Sha256::new(), received: 0 })
    }

    /// Goes on with a file whose first bytes are there; they are read once more, to hash them.
    pub(crate) fn resume(files: &Root, path: &[u8], received: u64) -> Result<Self, Errno> {
        let file = files.open_file(path, OFlags::RDWR, Mode::empty())?;
        let mut hash = Sha256::new();
        let mut left = received;
        let mut buffer = vec![0; HOLE];
        while left > 0 {
            let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let part = buffer.get_mut(..wanted).unwrap_or_default();
            let count = match (&file).read(part) {
                Ok(0) => return Err(Errno::IO), // shorter than it was
                Ok(count) => count,
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            };
            hash.update(part.get(..count).unwrap_or_default());
            left -= count as u64;
        }
        ftruncate(&file, received)?;
        Ok(Self { file, hash, received })
    }

    /// How many bytes there are.
    pub(crate) const fn received(&self) -> u64 {
        self.received
    }

    /// Appends. Long runs of zeros are left out of the file and read as zeros all the same.
    pub(crate) fn append(&mut self, data: &[u8]) -> Result<(), Errno> {
        let base = self.received;
        let (mut settled, mut at, mut hole) = (0, 0, false);
        while at < data.len() {
            let end = data.len().min(at + HOLE);
            hole = data.get(at..end) == Some(&ZEROS[..]);
            if hole {
                let before = data.get(settled..at).unwrap_or_default();
                self.write_at(before, base + settled as u64)?;
                settled = end;
            }
            at = end;
        }
        self.write_at(data.get(settled..).unwrap_or_default(), base + settled as u64)?;
        let received = base + data.len() as u64;
        if hole {
            ftruncate(&self.file, received)?; // so that the length says how far it is
        }
        self.hash.update(data);
        self.received = received;
        Ok(())
    }

    /// Appends so many zeros as a hole.
    pub(crate) fn skip(&mut self, length: u64) -> Result<(), Errno> {
        let mut left = length;
        while left > 0 {
            let part = ZEROS.get(..HOLE.min(usize::try_from(left).unwrap_or(HOLE)));
            let part = part.unwrap_or_default();
            self.hash.update(part);
            left -= part.len() as u64;
        }
        self.received += length;
        ftruncate(&self.file, self.received)
    }

    /// Makes a file with everything that is in it. It may be there already, of an earlier run.
    pub(crate) fn write(
        files: &Root,
        path: &[u8],
        data: &[u8],
        mode: u32,
        modified: Option<(i64, u32)>,
    ) -> Result<(), Errno> {
        let spool = match Self::create(files, path) {
            Err(Errno::EXIST) => Self::resume(files, path, 0)?,
            spool => spool?,
        };
        spool.write_at(data, 0)?;
        fchmod(&spool.file, Mode::from_raw_mode(mode))?;
        set_modified(spool.file.as_fd(), modified)
    }

    /// What came before is no part of the digest.
    pub(crate) fn hash_from_here(&mut self) {
        self.hash.reset();
    }

    /// [`Spool::finish`], and all of it is on the disk.
    pub(crate) fn finish_durably(self, mode: u32) -> Result<Digest, Errno> {
        fchmod(&self.file, Mode::from_raw_mode(mode))?;
        rustix::fs::fsync(&self.file)?;
        Ok(Digest(self.hash.finalize().into()))
    }

    fn write_at(&self, mut data: &[u8], mut offset: u64) -> Result<(), Errno> {
        while !data.is_empty() {
            match rustix::io::pwrite(&self.file, data, offset) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => {
                    data = data.get(count..).unwrap_or_default();
                    offset += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Gives the file its mode and time, and says what it hashed to.
    pub(crate) fn finish(self, mode: u32, modified: Option<(i64, u32)>) -> Result<Digest, Errno> {
        fchmod(&self.file, Mode::from_raw_mode(mode))?;
        set_modified(self.file.as_fd(), modified)?;
        Ok(Digest(self.hash.finalize().into()))
    }
}

/// The folders on the way to `path`. Those that nobody declared have the usual mode.
pub(crate) fn make_parents(files: &Root, path: &[u8]) -> Result<(), Errno> {
    for end in path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at) {
        make_folder(files, path.get(..end).unwrap_or_default())?;
    }
    Ok(())
}

/// One folder; its parent is there.
pub(crate) fn make_folder(files: &Root, path: &[u8]) -> Result<(), Errno> {
    let (holder, name) = files.holder(path)?;
    holder.make_folder(name, Mode::from_raw_mode(0o755)).map(drop)
}

/// Sets the time of the last change, as near as the file system holds it.
pub(crate) fn set_modified(
    file: std::os::fd::BorrowedFd<'_>,
    modified: Option<(i64, u32)>,
) -> Result<(), Errno> {
    let Some((seconds, nanos)) = modified else { return Ok(()) };
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanos.into() },
    };
    futimens(file, &times)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn zeros_are_holes_and_the_digest_is_of_every_byte() {
        let scratch = Scratch::new();
        let root = Root::open(scratch.path()).unwrap();
        let mut whole = vec![7; 100];
        whole.extend(vec![0; 5 * HOLE]);
        whole.extend([8; 10]);
        whole.extend(vec![0; 2 * HOLE]);
        for step in [HOLE, 3 * HOLE, 1_000_003, 7_777] {
            let name = format!("d/{step}");
            let mut spool = Spool::create(&root, name.as_bytes()).unwrap();
            for chunk in whole.chunks(step) {
                spool.append(chunk).unwrap();
                let length = fs::metadata(scratch.path().join(&name)).unwrap().len();
                assert_eq!(length, spool.received());
            }
            let digest = spool.finish(0o640, Some((-5, 999_999_999))).unwrap();
            assert_eq!(digest, Digest(Sha256::digest(&whole).into()));
            let path = scratch.path().join(&name);
            assert_eq!(fs::read(&path).unwrap(), whole);
            let metadata = fs::metadata(&path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o640);
            assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-5, 999_999_999));
        }
        let sparse = fs::metadata(scratch.path().join(format!("d/{HOLE}"))).unwrap();
        assert!(sparse.blocks() * 512 < whole.len() as u64 / 2, "{}", sparse.blocks());
    }

    #[test]
    fn a_file_goes_on_where_it_stopped() {
        let scratch = Scratch::new();
        let root = Root::open(scratch.path()).unwrap();
        let mut spool = Spool::create(&root, b"x").unwrap();
        spool.append(b"hello ").unwrap();
        drop(spool);
        let mut spool = Spool::resume(&root, b"x", 6).unwrap();
        spool.append(b"world").unwrap();
        assert_eq!(
            spool.finish(0o600, None).unwrap(),
            Digest(Sha256::digest("hello world").into())
        );
        assert_eq!(Spool::resume(&root, b"x", 12).unwrap_err(), Errno::IO);
    }
}
