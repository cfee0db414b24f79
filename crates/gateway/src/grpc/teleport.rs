//! `TeleportService`: what others move into this Space.

use spaceport_wire::pb;
use tonic::{Request, Response, Status};

use super::Api;
use super::generated::teleport_service_server::TeleportService;

#[tonic::async_trait]
impl TeleportService for Api {
    async fn get_manifest(
        &self,
        request: Request<pb::GetManifestRequest>,
    ) -> Result<Response<pb::GetManifestResponse>, Status> {
        self.reception(request).await
    }

    async fn import_session(
        &self,
        request: Request<pb::ImportSessionRequest>,
    ) -> Result<Response<pb::ImportSessionResponse>, Status> {
        self.import(request).await
    }

    async fn wipe_import(
        &self,
        request: Request<pb::WipeImportRequest>,
    ) -> Result<Response<pb::WipeImportResponse>, Status> {
        self.wipe(request).await
    }

    async fn begin_receive_files(
        &self,
        request: Request<pb::BeginReceiveFilesRequest>,
    ) -> Result<Response<pb::BeginReceiveFilesResponse>, Status> {
        self.begin_receive(request).await
    }

    async fn receive_files_chunk(
        &self,
        request: Request<pb::ReceiveFilesChunkRequest>,
    ) -> Result<Response<pb::ReceiveFilesChunkResponse>, Status> {
        self.receive_chunk(request).await
    }

    async fn commit_receive_files(
        &self,
        request: Request<pb::CommitReceiveFilesRequest>,
    ) -> Result<Response<pb::CommitReceiveFilesResponse>, Status> {
        self.commit_receive(request).await
    }

    async fn abort_receive_files(
        &self,
        request: Request<pb::AbortReceiveFilesRequest>,
    ) -> Result<Response<pb::AbortReceiveFilesResponse>, Status> {
        self.abort_receive(request).await
    }
}
