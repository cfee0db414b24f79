//! A bundle whose frames and sums are right, and whose contents are anybody's: it unpacks to files below
//! its own private folder that are what they were said to be, or not at all.

use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use spaceport_teleport::bundle::{Expected, Writer};
use spaceport_teleport::package::unpack;

pub(crate) fn check(data: &[u8]) {
    let at = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let (contents, file) = data.split_at(at);
    let file = file.get(1..).unwrap_or_default();
    // Half of all inputs say what the file is; their contents have a place for it.
    let digest = Sha256::digest(file);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let contents = String::from_utf8_lossy(contents).replace("SHA", &hex);
    let contents = contents.replace("LEN", &file.len().to_string());
    let expected = Expected { len: file.len() as u64, sha256: digest.into() };
    let mut writer = Writer::new(Vec::new(), contents.as_bytes()).unwrap();
    writer.file(&expected, file).unwrap();
    let (bundle, _) = writer.finish().unwrap();

    let folder = match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .unwrap();
    let parent = folder.path().join("private");
    if let Ok(verified) = unpack(&bundle[..], &parent) {
        let payload = verified.payload();
        assert_eq!(payload.records().len(), 1);
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut payload.open(0).unwrap(), &mut read).unwrap();
        assert_eq!(read, file);
        assert_eq!(payload.records()[0].mode & !0o700, 0, "for its owner alone");
    }
    let there: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(there.len() <= 1, "{there:?}");
    drop(unpack(data, &parent));
}
