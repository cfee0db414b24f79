//! A bundle never yields more than was declared, and what was packed comes out as it went in.

use std::io::Read as _;

use sha2::{Digest as _, Sha256};
use spaceport_teleport::bundle::{Expected, Reader, Writer};

/// The most that a hostile file may claim here.
const DECLARED: u64 = 4096;

pub(crate) fn check(data: &[u8]) {
    if let Ok((mut reader, _)) = Reader::new(data) {
        // The digest is one that no input has; every file ends with an error or at its size.
        let expected = Expected { len: DECLARED, sha256: [0; 32] };
        if let Ok(mut file) = reader.file(&expected) {
            let (mut total, mut buffer) = (0, [0; 512]);
            while let Ok(count @ 1..) = file.read(&mut buffer) {
                total += count as u64;
            }
            assert!(total <= DECLARED, "{total} bytes came out");
        }
        assert!(reader.finish().is_err(), "a bundle passed whose file was not checked");
    }

    let (contents, file) = data.split_at(data.len() / 2);
    let expected = Expected { len: file.len() as u64, sha256: Sha256::digest(file).into() };
    let mut writer = Writer::new(Vec::new(), contents).unwrap();
    writer.file(&expected, file).unwrap();
    let (bundle, _) = writer.finish().unwrap();
    let (mut reader, read) = Reader::new(&bundle[..]).unwrap();
    assert_eq!(read, contents);
    let mut read = Vec::new();
    reader.file(&expected).unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read, file);
    assert_eq!(reader.finish().unwrap().files, 1);
}
