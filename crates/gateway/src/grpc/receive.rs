//! Files on their way in, the part of `TeleportService` that has to do with them.

use spaceport_teleport::raw;
use spaceport_teleport::receive::{
    Begin, Begun, Committed, Conflict, Declared, MAX_CHUNK, MAX_ENTRIES, kept_mode,
};
use spaceport_types::{Error, Kind, Result as Outcome};
use spaceport_wire::pb;
use tonic::{Request, Response, Status};

use super::{Api, convert, error};
use crate::service::blocking;
use crate::storage::{Storage, now};

/// What clients call a transfer.
const OPERATION: &str = "send_file";

impl Api {
    pub(super) async fn begin_receive(
        &self,
        request: Request<pb::BeginReceiveFilesRequest>,
    ) -> Result<Response<pb::BeginReceiveFilesResponse>, Status> {
        self.transfer(request, begin).await
    }

    pub(super) async fn receive_chunk(
        &self,
        request: Request<pb::ReceiveFilesChunkRequest>,
    ) -> Result<Response<pb::ReceiveFilesChunkResponse>, Status> {
        self.transfer(request, |storage, chunk| {
            let (id, index, offset) = (&chunk.transfer_id, chunk.index, chunk.offset);
            let received = storage.receiver.chunk(id, index, offset, &chunk.data, now())?;
            Ok(pb::ReceiveFilesChunkResponse {
                received_bytes: received.received,
                duplicate: received.duplicate,
            })
        })
        .await
    }

    pub(super) async fn commit_receive(
        &self,
        request: Request<pb::CommitReceiveFilesRequest>,
    ) -> Result<Response<pb::CommitReceiveFilesResponse>, Status> {
        self.transfer(request, |storage, commit| {
            storage.receiver.commit(&commit.transfer_id).map(committed)
        })
        .await
    }

    pub(super) async fn abort_receive(
        &self,
        request: Request<pb::AbortReceiveFilesRequest>,
    ) -> Result<Response<pb::AbortReceiveFilesResponse>, Status> {
        self.transfer(request, |storage, abort| {
            storage.receiver.abort(&abort.transfer_id)?;
            Ok(pb::AbortReceiveFilesResponse {})
        })
        .await
    }

    async fn transfer<Q: Send + 'static, A: Send + 'static>(
        &self,
        request: Request<Q>,
        work: impl FnOnce(&Storage, Q) -> Outcome<A> + Send + 'static,
    ) -> Result<Response<A>, Status> {
        let result = match self.service.storage() {
            Ok(storage) => blocking(move || work(&storage, request.into_inner())).await,
            Err(error) => Err(error),
        };
        result.map(Response::new).map_err(|error| error::status(&error.operation(OPERATION)))
    }
}

fn begin(
    storage: &Storage,
    request: pb::BeginReceiveFilesRequest,
) -> Outcome<pb::BeginReceiveFilesResponse> {
    if request.surplus > 0 {
        let entries = request.entries.len();
        return Err(Error::new(
            Kind::LimitExceeded,
            format!("{} entries and patterns more than allowed were declared", request.surplus),
        )
        .with("entries", entries)
        .with("limit", MAX_ENTRIES)
        .hint("Send it in several parts"));
    }
    let begin = Begin {
        id: request.transfer_id,
        destination: request.destination_subdir,
        root: None,
        ignore_patterns: request.ignore_patterns,
        honor_gitignore: request.honor_gitignore,
        conflict: conflict(request.conflict_policy)?,
        ttl: convert::duration("ttl", request.ttl)?,
        trailing: false,
    };
    let begun = storage.receiver.begin(begin, request.entries.iter().map(declared), now())?;
    Ok(answer(begun, request.entries))
}

fn declared(entry: &pb::TransferEntry) -> Declared<'_> {
    Declared {
        path: entry.relative_path.as_bytes(),
        directory: entry.directory,
        size: entry.size,
        sha256: &entry.sha256,
        mode: mode(entry),
        modified: entry.modified_at.map(|time| (time.seconds, time.nanos)),
    }
}

/// Zero is a mode, and also what a sender leaves that knows none. One that knows the mode knows the
/// time as well.
fn mode(entry: &pb::TransferEntry) -> Option<u32> {
    (entry.mode != 0 || entry.modified_at.is_some()).then_some(entry.mode)
}

/// Says back what is accepted, with the mode that it will have.
fn answer(begun: Begun, entries: Vec<pb::TransferEntry>) -> pb::BeginReceiveFilesResponse {
    let mut ignored = Vec::new();
    let mut accepted = Vec::with_capacity(entries.len() - begun.ignored.len());
    for (index, mut entry) in (0..).zip(entries) {
        if begun.ignored.binary_search(&index).is_ok() {
            ignored.push(entry.relative_path);
        } else {
            entry.mode = kept_mode(entry.mode);
            accepted.push(entry);
        }
    }
    let progress = begun.progress.into_iter().map(|progress| pb::TransferFileProgress {
        index: progress.index,
        received_bytes: progress.received,
    });
    pb::BeginReceiveFilesResponse {
        transfer_id: begun.id,
        accepted,
        ignored,
        progress: progress.collect(),
        max_chunk_bytes: MAX_CHUNK as u32,
    }
}

fn conflict(number: i32) -> Outcome<Conflict> {
    match pb::ConflictPolicy::try_from(number) {
        Ok(pb::ConflictPolicy::Unspecified | pb::ConflictPolicy::Rename) => Ok(Conflict::Rename),
        Ok(pb::ConflictPolicy::Overwrite) => Ok(Conflict::Overwrite),
        Ok(pb::ConflictPolicy::Skip) => Ok(Conflict::Skip),
        Err(_) => Err(convert::invalid("conflict_policy", "one_of", Some("0, 1, 2, 3"), number)),
    }
}

fn committed(done: Committed) -> pb::CommitReceiveFilesResponse {
    let files = done.files.into_iter().map(|file| pb::ReceivedFile {
        path: raw(file.path.as_os_str().as_encoded_bytes()),
        size: file.size,
        sha256: file.digest.to_string(),
    });
    pb::CommitReceiveFilesResponse {
        destination: raw(done.destination.as_os_str().as_encoded_bytes()),
        files: files.collect(),
        skipped: done.skipped.iter().map(|path| raw(path)).collect(),
    }
}
