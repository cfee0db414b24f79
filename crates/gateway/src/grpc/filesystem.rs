//! `FilesystemService`: single files and folders of this Space.

use std::pin::Pin;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::{Stream, stream};
use spaceport_teleport::files::{Entry, EntryKind, List, Reading};
use spaceport_teleport::raw;
use spaceport_teleport::receive::{Existing, MAX_CHUNK, Uploaded, Write};
use spaceport_types::{Error, Kind, Result as Outcome};
use spaceport_wire::pb;
use tonic::{Request, Response, Status, Streaming};

use super::generated::filesystem_service_server::FilesystemService;
use super::{Api, convert, error};
use crate::service::blocking;
use crate::storage::{Storage, now};

/// Bytes of a chunk when the reader does not say.
const CHUNK: usize = 1 << 20;

type Chunks = Pin<Box<dyn Stream<Item = Result<pb::ReadFileResponse, Status>> + Send>>;

#[tonic::async_trait]
impl FilesystemService for Api {
    async fn stat(
        &self,
        request: Request<pb::StatRequest>,
    ) -> Result<Response<pb::StatResponse>, Status> {
        self.files(request, |storage, wanted| {
            plain(&wanted.run_as, &wanted.xattr_namespace)?;
            let path = storage.files.resolve(&wanted.path)?;
            let found = storage.files.stat(&path, !wanted.no_follow_symlinks)?;
            Ok(pb::StatResponse { entry: Some(entry(found)) })
        })
        .await
    }

    async fn list_dir(
        &self,
        request: Request<pb::ListDirRequest>,
    ) -> Result<Response<pb::ListDirResponse>, Status> {
        self.files(request, |storage, wanted| {
            plain(&wanted.run_as, &wanted.xattr_namespace)?;
            let path = storage.files.resolve(&wanted.path)?;
            let (depth, hidden) = (wanted.depth, wanted.include_hidden);
            let list = List { depth, hidden, page: wanted.page_size };
            let page = storage.files.list(&path, list, &wanted.page_token)?;
            Ok(pb::ListDirResponse {
                entries: page.entries.into_iter().map(entry).collect(),
                next_page_token: page.next.unwrap_or_default(),
            })
        })
        .await
    }

    async fn make_dir(
        &self,
        request: Request<pb::MakeDirRequest>,
    ) -> Result<Response<pb::MakeDirResponse>, Status> {
        self.files(request, |storage, wanted| {
            plain(&wanted.run_as, "")?;
            let mode = (wanted.mode != 0).then_some(wanted.mode);
            // The root is there.
            let Some(path) = storage.files.resolve(&wanted.path)? else {
                let found = storage.files.stat(&None, true)?;
                return Ok(pb::MakeDirResponse { entry: Some(entry(found)), created: false });
            };
            let created = storage.files.make_folder(&path, wanted.parents, mode)?;
            let found = storage.files.stat(&Some(path), false)?;
            Ok(pb::MakeDirResponse { entry: Some(entry(found)), created })
        })
        .await
    }

    async fn r#move(
        &self,
        request: Request<pb::MoveRequest>,
    ) -> Result<Response<pb::MoveResponse>, Status> {
        self.files(request, |storage, wanted| {
            plain(&wanted.run_as, "")?;
            let from = storage.files.resolve_entry(&wanted.source)?;
            let to = storage.files.resolve_entry(&wanted.destination)?;
            storage.files.rename(&from, &to, wanted.overwrite, wanted.create_parents)?;
            let found = storage.files.stat(&Some(to), false)?;
            Ok(pb::MoveResponse { entry: Some(entry(found)) })
        })
        .await
    }

    async fn remove(
        &self,
        request: Request<pb::RemoveRequest>,
    ) -> Result<Response<pb::RemoveResponse>, Status> {
        self.files(request, |storage, wanted| {
            plain(&wanted.run_as, "")?;
            let path = storage.files.resolve_entry(&wanted.path)?;
            if !storage.files.remove(&path, wanted.recursive)? && !wanted.missing_ok {
                return Err(Error::new(Kind::NotFound, format!("there is no `{}`", path.shown()))
                    .with("path", raw(path.as_bytes()))
                    .hint("Pass `missing_ok` where that is fine"));
            }
            Ok(pb::RemoveResponse {})
        })
        .await
    }

    async fn read_file(
        &self,
        request: Request<pb::ReadFileRequest>,
    ) -> Result<Response<Chunks>, Status> {
        let size = match request.get_ref().chunk_size as usize {
            0 => CHUNK,
            size => size.min(MAX_CHUNK),
        };
        let reading = self
            .files(request, |storage, wanted| {
                plain(&wanted.run_as, &wanted.xattr_namespace)?;
                let path = storage.files.resolve(&wanted.path)?;
                storage.files.read(&path, wanted.offset, wanted.length)
            })
            .await?
            .into_inner();
        Ok(Response::new(chunks(reading, size)))
    }

    async fn write_file(
        &self,
        request: Request<Streaming<pb::WriteFileRequest>>,
    ) -> Result<Response<pb::WriteFileResponse>, Status> {
        use pb::write_file_request::Message;
        let storage = self.service.storage().map_err(|error| error::status(&error))?;
        let mut messages = request.into_inner();
        let first = messages.message().await?.and_then(|first| first.message);
        let Some(Message::Header(header)) = first else {
            return Err(error::status(&Error::new(
                Kind::InvalidArgument,
                "the first message of a write has to be its header",
            )));
        };
        let files = storage.clone();
        let started = blocking(move || {
            let write = write(&files, header)?;
            files.uploads.write(write)
        });
        let mut upload = started.await.map_err(|error| error::status(&error))?;
        // Whatever ends this early drops the upload, and with it what was staged.
        while let Some(message) = messages.message().await? {
            let Some(Message::Data(data)) = message.message else {
                return Err(error::status(&Error::new(
                    Kind::InvalidArgument,
                    "after its header, a write has only data",
                )));
            };
            let appended = blocking(move || upload.append(&data).map(|()| upload)).await;
            upload = appended.map_err(|error| error::status(&error))?;
        }
        let answer = blocking(move || uploaded(&storage, upload.commit(None)?)).await;
        let (entry, sha256) = answer.map_err(|error| error::status(&error))?;
        Ok(Response::new(pb::WriteFileResponse { entry: Some(entry), sha256 }))
    }

    async fn begin_upload(
        &self,
        request: Request<pb::BeginUploadRequest>,
    ) -> Result<Response<pb::BeginUploadResponse>, Status> {
        self.files(request, |storage, wanted| {
            let header = wanted.header.unwrap_or_default();
            let ttl = convert::duration("ttl", wanted.ttl)?;
            let write = write(storage, header)?;
            let (upload_id, received_bytes, ttl) =
                storage.uploads.begin(&wanted.upload_id, write, ttl, now())?;
            Ok(pb::BeginUploadResponse {
                upload_id,
                received_bytes,
                max_chunk_bytes: MAX_CHUNK as u32,
                expires_at: Some(expires(ttl)),
            })
        })
        .await
    }

    async fn upload_chunk(
        &self,
        request: Request<pb::UploadChunkRequest>,
    ) -> Result<Response<pb::UploadChunkResponse>, Status> {
        self.files(request, |storage, chunk| {
            let (id, offset) = (&chunk.upload_id, chunk.offset);
            let (received, ttl) = storage.uploads.chunk(id, offset, &chunk.data, now())?;
            Ok(pb::UploadChunkResponse {
                received_bytes: received.received,
                duplicate: received.duplicate,
                expires_at: Some(expires(ttl)),
            })
        })
        .await
    }

    async fn commit_upload(
        &self,
        request: Request<pb::CommitUploadRequest>,
    ) -> Result<Response<pb::CommitUploadResponse>, Status> {
        self.files(request, |storage, commit| {
            let expected = Some(&*commit.sha256).filter(|sha256| !sha256.is_empty());
            let done = storage.uploads.commit(&commit.upload_id, expected)?;
            let (entry, sha256) = uploaded(storage, done)?;
            Ok(pb::CommitUploadResponse { entry: Some(entry), sha256 })
        })
        .await
    }

    async fn abort_upload(
        &self,
        request: Request<pb::AbortUploadRequest>,
    ) -> Result<Response<pb::AbortUploadResponse>, Status> {
        self.files(request, |storage, abort| {
            storage.uploads.abort(&abort.upload_id)?;
            Ok(pb::AbortUploadResponse {})
        })
        .await
    }
}

impl Api {
    async fn files<Q: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<Q>,
        work: impl FnOnce(&Storage, Q) -> Outcome<A> + Send + 'static,
    ) -> Result<Response<A>, Status> {
        let result = match self.service.storage() {
            Ok(storage) => blocking(move || work(&storage, request.into_inner())).await,
            Err(error) => Err(error),
        };
        result.map(Response::new).map_err(|error| error::status(&error))
    }
}

/// Refuses what would silently be something else: acting as another user, and extended attributes.
fn plain(run_as: &str, xattr_namespace: &str) -> Outcome<()> {
    for (asked, feature) in [(run_as, "fs.run_as"), (xattr_namespace, "fs.xattr")] {
        if !asked.is_empty() {
            return Err(Error::new(
                Kind::CapabilityMissing,
                format!("this Space does not serve `{feature}`"),
            )
            .with("feature", feature)
            .hint("Leave it out"));
        }
    }
    Ok(())
}

fn write(storage: &Storage, header: pb::WriteFileHeader) -> Outcome<Write> {
    plain(&header.run_as, &header.xattr_namespace)?;
    let mut write = Write::new(storage.files.resolve_entry(&header.path)?);
    write.existing = match pb::WriteMode::try_from(header.mode) {
        Ok(pb::WriteMode::Unspecified | pb::WriteMode::Overwrite) => Existing::Replace,
        Ok(pb::WriteMode::CreateNew) => Existing::Keep,
        Ok(pb::WriteMode::Append) => Existing::Append,
        Err(_) => return Err(convert::invalid("mode", "one_of", Some("0, 1, 2, 3"), header.mode)),
    };
    write.mode = (header.permissions != 0).then_some(header.permissions);
    write.create_parents = header.create_parents;
    write.expected_size = (header.expected_size != 0).then_some(header.expected_size);
    write.expected_sha256 = Some(header.expected_sha256).filter(|sha256| !sha256.is_empty());
    Ok(write)
}

/// The entry that was written, and its digest in hex.
fn uploaded(storage: &Storage, done: Uploaded) -> Outcome<(pb::EntryInfo, String)> {
    let found = storage.files.stat(&Some(done.path), false)?;
    Ok((entry(found), done.digest.to_string()))
}

/// The entry, its bytes, then how many they were and their digest. One piece is read when the one
/// before has been taken.
fn chunks(reading: Reading, size: usize) -> Chunks {
    use pb::read_file_response::Message;
    let first = Message::Entry(entry(reading.entry().clone()));
    let message = |message| pb::ReadFileResponse { message: Some(message) };
    let rest = stream::try_unfold(Some(reading), move |reading| async move {
        let Some(mut reading) = reading else { return Ok(None) };
        let next = blocking(move || reading.next(size).map(|chunk| (chunk, reading))).await;
        let (chunk, reading) = next.map_err(|error| error::status(&error))?;
        Ok(Some(match chunk {
            Some((offset, data)) => {
                let chunk = pb::FileChunk { offset, data: Bytes::from(data) };
                (message(Message::Chunk(chunk)), Some(reading))
            }
            None => {
                let (bytes_read, digest) = reading.finish();
                let end = pb::ReadFileEnd { bytes_read, sha256: digest.to_string() };
                (message(Message::End(end)), None)
            }
        }))
    });
    use futures_util::StreamExt as _;
    Box::pin(stream::iter([Ok(message(first))]).chain(rest))
}

fn entry(entry: Entry) -> pb::EntryInfo {
    let (seconds, nanos) = entry.modified;
    pb::EntryInfo {
        name: raw(&entry.name),
        path: raw(entry.path.as_os_str().as_encoded_bytes()),
        r#type: match entry.kind {
            EntryKind::File => pb::FileType::File,
            EntryKind::Folder => pb::FileType::Directory,
            EntryKind::Link => pb::FileType::Symlink,
            _ => pb::FileType::Other,
        }
        .into(),
        size: entry.size,
        mode: entry.mode,
        owner: entry.owner.to_string(),
        group: entry.group.to_string(),
        modified_at: Some(prost_types::Timestamp { seconds, nanos: nanos as i32 }),
        symlink_target: entry.link.map(|link| raw(&link)).unwrap_or_default(),
        metadata: Default::default(),
    }
}

fn expires(ttl: std::time::Duration) -> prost_types::Timestamp {
    #[expect(clippy::disallowed_methods, reason = "the contract wants the time of day")]
    let now = SystemTime::now();
    convert::timestamp(now + ttl)
}
