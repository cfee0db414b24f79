//! Whatever a sender of the contract's transfer messages says, in whatever order: nothing appears beside the
//! downloads folder, nothing in it before a commit that says so, and nothing of the stage stays.
//!
//! The input is the messages one after another, each with its length in front: the beginning, then
//! chunks.

#![expect(clippy::disallowed_methods, reason = "nothing here waits for a time")]

use std::fs;
use std::path::Path;
use std::time::{Instant, SystemTime};

use prost::Message as _;
use spaceport_teleport::receive::{Begin, Config, Conflict, Declared, Receiver};
use spaceport_wire::pb::{BeginReceiveFilesRequest, ReceiveFilesChunkRequest};
use spaceport_wire::transfer::{MAX_ENTRIES, MAX_PATTERNS};

/// Messages of one input that are looked at.
const MAX_MESSAGES: usize = 32;

pub(crate) fn check(mut data: &[u8]) {
    let Ok(begin) = BeginReceiveFilesRequest::decode_length_delimited(&mut data) else { return };
    assert!(begin.entries.len() <= MAX_ENTRIES && begin.ignore_patterns.len() <= MAX_PATTERNS);
    if begin.surplus == 0 {
        let again = BeginReceiveFilesRequest::decode(&begin.encode_to_vec()[..]).unwrap();
        assert_eq!(again.encode_to_vec(), begin.encode_to_vec());
    }
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    }
    .unwrap();
    let root = folder.path();
    fs::write(root.join("beside"), "untouched").unwrap();
    let downloads = root.join("downloads");
    let config = Config::new(&downloads, root.join("state"));
    let receiver = Receiver::open(config, Instant::now(), SystemTime::now()).unwrap();
    let entries = begin.entries.iter().map(|entry| Declared {
        path: entry.relative_path.as_bytes(),
        directory: entry.directory,
        size: entry.size,
        sha256: &entry.sha256,
        mode: Some(entry.mode),
        modified: entry.modified_at.as_ref().map(|time| (time.seconds, time.nanos)),
    });
    let wanted = Begin {
        id: begin.transfer_id,
        destination: begin.destination_subdir,
        ignore_patterns: begin.ignore_patterns,
        honor_gitignore: begin.honor_gitignore,
        conflict: match begin.conflict_policy {
            2 => Conflict::Overwrite,
            3 => Conflict::Skip,
            _ => Conflict::Rename,
        },
        ..Begin::default()
    };
    if let Ok(begun) = receiver.begin(wanted, entries, Instant::now()) {
        for _ in 0..MAX_MESSAGES {
            let Ok(chunk) = ReceiveFilesChunkRequest::decode_length_delimited(&mut data) else {
                break;
            };
            let (index, offset) = (chunk.index, chunk.offset);
            drop(receiver.chunk(&begun.id, index, offset, &chunk.data, Instant::now()));
        }
        assert!(published(&downloads).is_empty(), "before the commit");
        if let Ok(committed) = receiver.commit(&begun.id) {
            for file in &committed.files {
                assert!(file.path.starts_with(&downloads), "{}", file.path.display());
                assert_eq!(fs::metadata(&file.path).unwrap().len(), file.size);
            }
        } else {
            drop(receiver.abort(&begun.id));
            assert!(published(&downloads).is_empty(), "without a commit");
        }
    }
    drop(receiver);
    let mut there: Vec<_> = names(root);
    there.retain(|name| name != "downloads" && name != "state");
    assert_eq!(there, ["beside"]);
    assert_eq!(fs::read(root.join("beside")).unwrap(), b"untouched");
    assert!(staged(&downloads).is_empty(), "a stage is left");
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Files in a folder and below it, but for what is staged.
fn published(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in names(folder).into_iter().filter(|name| !name.starts_with(".spaceport-")) {
        let path = folder.join(&name);
        match path.is_dir() {
            true => found.extend(published(&path)),
            false => found.push(name),
        }
    }
    found
}

fn staged(folder: &Path) -> Vec<String> {
    names(folder).into_iter().filter(|name| name.starts_with(".spaceport-")).collect()
}
