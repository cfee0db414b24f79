use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A private folder, removed with everything in it when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a new one; `name` is for people who look.
    pub fn new(name: &str) -> Self {
        Self::make(&std::env::temp_dir(), name)
    }

    /// The same in memory, where there is a place for that: for very many files.
    pub fn in_memory(name: &str) -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::make(memory, name) } else { Self::new(name) }
    }

    fn make(place: &Path, name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = place.join(format!("spaceport-{name}-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                // A test of that process id was killed here once.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made.unwrap();
                    return Self(path);
                }
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A process that is only just gone may still have left something; what stays is in /tmp.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
