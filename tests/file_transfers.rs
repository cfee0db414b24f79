//! Transfers and uploads call by call, with everything that the contract says can go wrong.

use std::fs;

use prost::Message;
use spaceport_tests::{Gateway, Refused};
use spaceport_wire::pb::{
    AbortReceiveFilesRequest, AbortReceiveFilesResponse, BeginReceiveFilesRequest,
    BeginReceiveFilesResponse, BeginUploadRequest, BeginUploadResponse, CommitReceiveFilesRequest,
    CommitReceiveFilesResponse, CommitUploadRequest, CommitUploadResponse, ErrorReason,
    ListDirRequest, ListDirResponse, ReceiveFilesChunkRequest, ReceiveFilesChunkResponse,
    StatRequest, StatResponse, TransferEntry, UploadChunkRequest, UploadChunkResponse,
    WriteFileHeader,
};

const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn hello(path: &str) -> TransferEntry {
    TransferEntry {
        relative_path: path.to_owned(),
        size: 5,
        sha256: HELLO.to_owned(),
        mode: 0o4750,
        modified_at: Some(prost_types::Timestamp { seconds: -1, nanos: 5 }),
        ..TransferEntry::default()
    }
}

struct Transfer<'a>(&'a Gateway);

impl Transfer<'_> {
    fn begin(
        &self,
        id: &str,
        entries: Vec<TransferEntry>,
    ) -> Result<BeginReceiveFilesResponse, Refused> {
        let request = BeginReceiveFilesRequest {
            transfer_id: id.to_owned(),
            entries,
            ..BeginReceiveFilesRequest::default()
        };
        self.0.call("TeleportService/BeginReceiveFiles", &request)
    }

    fn chunk(
        &self,
        id: &str,
        index: u32,
        offset: u64,
        data: &'static [u8],
    ) -> Result<ReceiveFilesChunkResponse, Refused> {
        let (transfer_id, data) = (id.to_owned(), data.into());
        let request = ReceiveFilesChunkRequest { transfer_id, index, offset, data };
        self.0.call("TeleportService/ReceiveFilesChunk", &request)
    }

    fn commit(&self, id: &str) -> Result<CommitReceiveFilesResponse, Refused> {
        let request = CommitReceiveFilesRequest { transfer_id: id.to_owned() };
        self.0.call("TeleportService/CommitReceiveFiles", &request)
    }

    fn abort(&self, id: &str) -> Result<AbortReceiveFilesResponse, Refused> {
        let request = AbortReceiveFilesRequest { transfer_id: id.to_owned() };
        self.0.call("TeleportService/AbortReceiveFiles", &request)
    }
}

/// The code, the reason, and one thing that the error knows.
fn what<T: std::fmt::Debug>(result: Result<T, Refused>, key: &str) -> (i32, ErrorReason, String) {
    let refused = result.unwrap_err();
    let info = refused.info.expect("a final error has its detail");
    let fact = info.metadata.get(key).cloned().unwrap_or_default();
    (refused.code, info.reason(), fact)
}

#[test]
fn a_transfer_follows_the_contract_and_errors_say_what_it_says() {
    let gateway = Gateway::with_test_pattern();
    let transfer = Transfer(&gateway);
    let home = gateway.home().canonicalize().unwrap();

    let begun = transfer.begin("t", vec![hello("d/a"), hello("b")]).unwrap();
    assert_eq!(begun.transfer_id, "t");
    assert_eq!(begun.accepted.len(), 2);
    assert_eq!(begun.accepted[0].mode, 0o750, "what is stripped is said");
    assert_eq!(begun.max_chunk_bytes, 4 << 20);
    assert_eq!(transfer.chunk("t", 0, 0, b"he").unwrap().received_bytes, 2);
    assert!(transfer.chunk("t", 0, 0, b"he").unwrap().duplicate);
    let mismatch = (9, ErrorReason::OffsetMismatch, "2".to_owned());
    assert_eq!(what(transfer.chunk("t", 0, 3, b"l"), "expected_offset"), mismatch);
    let again = transfer.begin("t", vec![hello("d/a"), hello("b")]).unwrap();
    assert_eq!((again.progress[0].index, again.progress[0].received_bytes), (0, 2));
    let early = what(transfer.commit("t"), "entry");
    assert_eq!(early, (9, ErrorReason::ChecksumMismatch, "d/a".to_owned()));
    transfer.chunk("t", 0, 2, b"llo").unwrap();
    transfer.chunk("t", 1, 0, b"hello").unwrap();
    let done = transfer.commit("t").unwrap();
    assert_eq!(done.destination, home.join("Downloads").display().to_string());
    assert_eq!(done.files[0].path, home.join("Downloads/d/a").display().to_string());
    assert_eq!((done.files[1].size, &*done.files[1].sha256), (5, HELLO));

    let unknown = (5, ErrorReason::SessionNotFound, "t".to_owned());
    assert_eq!(what(transfer.chunk("t", 0, 0, b"x"), "transfer_id"), unknown);
    assert_eq!(what(transfer.commit("t"), "transfer_id"), unknown);
    assert_eq!(what(transfer.abort("t"), "transfer_id"), unknown);

    transfer.begin("w", vec![hello("w")]).unwrap();
    transfer.chunk("w", 0, 0, b"jello").unwrap();
    let wrong = what(transfer.commit("w"), "expected_sha256");
    assert_eq!(wrong, (9, ErrorReason::ChecksumMismatch, HELLO.to_owned()));
    let escape = transfer.begin("e", vec![hello("ok"), hello("../../.ssh/authorized_keys")]);
    let escaped = (9, ErrorReason::PermissionDenied, "path_escape".to_owned());
    assert_eq!(what(escape, "cause"), escaped);
    let unusable = what(transfer.begin("n", vec![hello("a//b")]), "cause");
    assert_eq!((unusable.0, &*unusable.2), (9, "name_unusable"));
    let clash = what(transfer.begin("c", vec![hello("a"), hello("a/b")]), "cause");
    assert_eq!(clash, (9, ErrorReason::PathExists, "conflict".to_owned()));
    let huge = TransferEntry { size: 1 << 50, ..hello("huge") };
    let full = what(transfer.begin("h", vec![huge]), "cause");
    assert_eq!(full, (9, ErrorReason::DiskFull, "disk_full".to_owned()));
    transfer.begin("x", vec![hello("x")]).unwrap();
    transfer.abort("x").unwrap();
    let mut left: Vec<_> =
        fs::read_dir(home.join("Downloads")).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["b", "d"], "nothing else came, and no staging stayed");
}

#[test]
fn two_hundred_thousand_entries_begin_and_more_are_refused_as_they_are_read() {
    let gateway = Gateway::with_test_pattern();
    let empty = |n: u32| TransferEntry {
        relative_path: format!("{n}"),
        sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".to_owned(),
        ..TransferEntry::default()
    };
    let entries: Vec<_> = (0..200_000).map(empty).collect();
    let begun = Transfer(&gateway).begin("many", entries).unwrap();
    assert_eq!(begun.accepted.len(), 200_000);
    Transfer(&gateway).abort("many").unwrap();
    // Twenty million empty entries, in less than 64 MiB.
    let request = Raw([0x1a, 0].repeat(20_000_000));
    let result: Result<BeginReceiveFilesResponse, _> =
        gateway.call("TeleportService/BeginReceiveFiles", &request);
    assert_eq!(what(result, "limit"), (8, ErrorReason::LimitExceeded, "200000".to_owned()));
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 512 << 10, "{peak} KiB at most"); // as messages they would be 2 GiB and more
}

#[test]
fn an_upload_goes_on_where_it_is_and_is_checked() {
    let gateway = Gateway::with_test_pattern();
    let home = gateway.home().canonicalize().unwrap();
    let begin = |path: &str| -> Result<BeginUploadResponse, Refused> {
        let header = WriteFileHeader {
            path: path.to_owned(),
            create_parents: true,
            ..WriteFileHeader::default()
        };
        let request =
            BeginUploadRequest { header: Some(header), upload_id: "u".to_owned(), ttl: None };
        gateway.call("FilesystemService/BeginUpload", &request)
    };
    let chunk = |offset, data: &'static [u8]| -> Result<UploadChunkResponse, Refused> {
        let request = UploadChunkRequest {
            upload_id: "u".to_owned(),
            offset,
            data: data.into(),
            ..UploadChunkRequest::default()
        };
        gateway.call("FilesystemService/UploadChunk", &request)
    };
    assert_eq!(begin("new/file").unwrap().received_bytes, 0);
    assert_eq!(chunk(0, b"hel").unwrap().received_bytes, 3);
    assert_eq!(begin("new/file").unwrap().received_bytes, 3);
    let mismatch = (9, ErrorReason::OffsetMismatch, "3".to_owned());
    assert_eq!(what(chunk(1, b"ello"), "expected_offset"), mismatch);
    chunk(3, b"lo").unwrap();
    let commit = |sha256: &str| -> Result<CommitUploadResponse, Refused> {
        let request = CommitUploadRequest { upload_id: "u".to_owned(), sha256: sha256.to_owned() };
        gateway.call("FilesystemService/CommitUpload", &request)
    };
    assert_eq!(commit(HELLO).unwrap().sha256, HELLO);
    assert_eq!(fs::read(home.join("new/file")).unwrap(), b"hello");
    assert_eq!(what(commit(HELLO), "").1, ErrorReason::SessionNotFound);
    begin("new/file").unwrap();
    chunk(0, b"wrong").unwrap();
    let wrong = what(commit(HELLO), "expected_sha256");
    assert_eq!(wrong, (9, ErrorReason::ChecksumMismatch, HELLO.to_owned()));
    assert_eq!(fs::read(home.join("new/file")).unwrap(), b"hello", "the old one stays");

    let stat = |path: &str| -> Result<StatResponse, Refused> {
        let request = StatRequest { path: path.to_owned(), ..StatRequest::default() };
        gateway.call("FilesystemService/Stat", &request)
    };
    assert_eq!(stat("new/file").unwrap().entry.unwrap().size, 5);
    assert_eq!(what(stat("none"), "path").1, ErrorReason::PathNotFound);
    assert_eq!(what(stat("new/file/x"), "path").1, ErrorReason::NotADirectory);
    assert_eq!(what(stat("/etc/passwd"), "path").1, ErrorReason::PermissionDenied);
    assert_eq!(what(begin("new"), "path").1, ErrorReason::IsADirectory);
    let list = ListDirRequest { depth: 9, page_size: 1, ..ListDirRequest::default() };
    let page: ListDirResponse = gateway.call("FilesystemService/ListDir", &list).unwrap();
    assert_eq!((page.entries.len(), &*page.entries[0].name), (1, "new"));
    assert!(!page.next_page_token.is_empty());
}

/// A message by its bytes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Raw(Vec<u8>);

impl Message for Raw {
    fn encode_raw(&self, buf: &mut impl bytes::BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: prost::encoding::WireType,
        _: &mut impl bytes::Buf,
        _: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
