use std::io::Read as _;

use sha2::{Digest as _, Sha256};
use spaceport_types::{Cause, Error, Kind, Result};

use super::{BLOCK, Expected, Reader, Writer};

fn expected(data: &[u8]) -> Expected {
    Expected { len: data.len() as u64, sha256: Sha256::digest(data).into() }
}

fn pack(contents: &[u8], files: &[&[u8]]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), contents).unwrap();
    for data in files {
        writer.file(&expected(data), *data).unwrap();
    }
    writer.finish().unwrap().0
}

fn unpack(bundle: &[u8], files: &[Expected]) -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let (mut reader, contents) = Reader::new(bundle)?;
    let mut read = Vec::new();
    for file in files {
        let mut data = Vec::new();
        reader.file(file)?.read_to_end(&mut data)?;
        read.push(data);
    }
    reader.finish()?;
    Ok((contents, read))
}

#[test]
fn what_was_packed_comes_out() {
    let large: Vec<u8> = (0..3 * BLOCK).map(|i| (i * i % 253) as u8).collect();
    let files: [&[u8]; 4] = [b"", b"one", &large, &[0; 100_000]];
    let bundle = pack(b"{}", &files);
    let (contents, read) = unpack(&bundle, &files.map(expected)).unwrap();
    assert_eq!(contents, b"{}");
    assert_eq!(read, files);
}

// Version, lengths, frames, markers, trailer: a bundle is small enough to try every byte.
#[test]
fn every_changed_byte_and_every_cut_is_refused() {
    let files: [&[u8]; 2] = [b"cookies=1; cookies=1", b"tabs"];
    let bundle = pack(b"{\"app\":\"firefox\"}", &files);
    let wanted = files.map(expected);
    assert!(unpack(&bundle, &wanted).is_ok());
    for index in 0..bundle.len() {
        for bit in [1, 0x80] {
            let mut changed = bundle.clone();
            changed[index] ^= bit;
            let error = unpack(&changed, &wanted).expect_err(&format!("byte {index} passed"));
            assert!(
                matches!(error.kind(), Kind::TransferFailed | Kind::TeleportRefused),
                "byte {index}: {error} is {:?}",
                error.kind()
            );
        }
        assert_eq!(
            unpack(&bundle[..index], &wanted).unwrap_err().cause(),
            Some(Cause::CorruptBundle),
            "cut at {index}"
        );
    }
    // Zeros behind it are padding, which hides how long it is; nothing else is.
    assert!(unpack(&[&bundle[..], b"\0\0"].concat(), &wanted).is_ok());
    assert!(unpack(&[&bundle[..], b"\0\x01"].concat(), &wanted).is_err());
}

#[test]
fn a_file_is_what_the_contents_say_or_nothing() {
    let bundle = pack(b"{}", &[b"four"]);
    let cause = |file: Expected| unpack(&bundle, &[file]).unwrap_err().cause();
    let right = expected(b"four");
    assert_eq!(cause(Expected { len: 3, ..right }), Some(Cause::SizeMismatch));
    assert_eq!(cause(Expected { len: 5, ..right }), Some(Cause::SizeMismatch));
    assert_eq!(cause(expected(b"five")), Some(Cause::DigestMismatch));
    assert_eq!(unpack(&bundle, &[]).unwrap_err().cause(), Some(Cause::CorruptBundle));
    assert_eq!(unpack(&bundle, &[right, right]).unwrap_err().cause(), Some(Cause::CorruptBundle));
}

#[test]
fn a_bomb_stops_at_the_declared_size() {
    let zeros = vec![0; 8 << 20];
    let bundle = pack(b"{}", &[&zeros]);
    assert!(bundle.len() < 100_000, "{} bytes", bundle.len());
    let (mut reader, _) = Reader::new(&bundle[..]).unwrap();
    let mut file = reader.file(&Expected { len: 1000, sha256: [0; 32] }).unwrap();
    let (mut data, mut buffer) = (0, [0; 100]);
    let error = loop {
        match file.read(&mut buffer) {
            Ok(count) => data += count,
            Err(error) => break Error::from(error),
        }
    };
    assert_eq!(error.cause(), Some(Cause::SizeMismatch));
    assert!(data <= 1000, "{data} bytes came out");
}

#[test]
fn a_file_that_changes_while_it_is_packed_is_not_packed() {
    let mut writer = Writer::new(Vec::new(), b"{}").unwrap();
    let cause = |result: Result<()>| result.unwrap_err().cause();
    assert_eq!(cause(writer.file(&expected(b"before"), &b"after"[..])), Some(Cause::SizeMismatch));
    assert_eq!(cause(writer.file(&expected(b"one"), &b"two"[..])), Some(Cause::DigestMismatch));
}

#[test]
fn another_version_is_named() {
    let mut bundle = pack(b"{}", &[]);
    bundle[8..12].copy_from_slice(&1_u32.to_be_bytes());
    let error = unpack(&bundle, &[]).unwrap_err();
    assert_eq!(error.cause(), Some(Cause::NotImportable));
    assert_eq!(error.context("bundle_version"), Some("1"));
}
