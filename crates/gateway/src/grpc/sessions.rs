//! The part of `TeleportService` that takes in app sessions, and takes them back.

use spaceport_teleport::consent::How;
use spaceport_teleport::manifest::Scope;
use spaceport_teleport::receipt::Receipt;
use spaceport_types::{Error, Issue, Kind, Result};
use spaceport_wire::pb;
use tonic::{Request, Response, Status};

use super::{Api, error};
use crate::teleport::Reception;

impl Api {
    pub(super) async fn reception(
        &self,
        request: Request<pb::GetManifestRequest>,
    ) -> Result<Response<pb::GetManifestResponse>, Status> {
        let wanted = request.into_inner();
        let app = wanted.app.clone();
        let reception = self.service.reception(wanted.app).await;
        let reception = reception.map_err(|error| error::status(&error))?;
        Ok(Response::new(manifest(&app, wanted.scope, reception)))
    }

    pub(super) async fn import(
        &self,
        request: Request<pb::ImportSessionRequest>,
    ) -> Result<Response<pb::ImportSessionResponse>, Status> {
        let answer = self.take_in(request.into_inner()).await;
        answer.map(Response::new).map_err(|error| error::status(&error.operation("import_session")))
    }

    pub(super) async fn wipe(
        &self,
        request: Request<pb::WipeImportRequest>,
    ) -> Result<Response<pb::WipeImportResponse>, Status> {
        let wanted = request.into_inner();
        let id = match (wanted.all, wanted.import_id) {
            (true, _) => None,
            (false, id) => Some(id),
        };
        let wiped = self.service.wipe_import(id).await;
        let wiped = wiped.map_err(|error| error::status(&error.operation("wipe_import")))?;
        let paths = wiped.undone.removed_paths.iter().map(|path| path.display().to_string());
        Ok(Response::new(pb::WipeImportResponse {
            wiped_import_ids: wiped.import_ids,
            removed_paths: paths.collect(),
            keychain_items_removed: 0,
            cookie_rows_removed: u32::try_from(wiped.undone.rows).unwrap_or(u32::MAX),
        }))
    }

    async fn take_in(&self, wanted: pb::ImportSessionRequest) -> Result<pb::ImportSessionResponse> {
        let (id, app) = (wanted.import_id, wanted.app);
        let progress = self
            .service
            .receive_bundle(id.clone(), app.clone(), wanted.offset, wanted.data)
            .await?;
        let mut answer = pb::ImportSessionResponse {
            received_bytes: progress.received,
            duplicate: progress.duplicate,
            result: None,
        };
        if wanted.commit {
            let digest = wanted.sha256.parse().map_err(|error: Error| {
                error.issue(Issue {
                    path: "sha256".to_owned(),
                    constraint: "required with `commit`".into(),
                    limit: None,
                })
            })?;
            let how = how(wanted.options.unwrap_or_default());
            let receipt = self.service.import_bundle(id, app, digest, how).await?;
            answer.result = Some(result(&receipt)?);
        }
        Ok(answer)
    }
}

fn how(options: pb::ImportOptions) -> How {
    How {
        replace_existing: options.replace_existing,
        close_running_app: options.close_running_app,
        launch_after: options.launch_after,
        expires_at_ms: options.expires_at_ms,
    }
}

fn result(receipt: &Receipt) -> Result<pb::ImportResult> {
    let whole = serde_json::to_vec(receipt)
        .map_err(|error| Error::new(Kind::Internal, "a receipt is not JSON").source(error))?;
    let skipped = receipt.skipped.iter().map(|it| format!("{}: {}", it.what, it.why));
    Ok(pb::ImportResult {
        imported: receipt.imported.clone(),
        skipped: skipped.collect(),
        launched: receipt.launched,
        receipt: whole.into(),
    })
}

fn manifest(app: &str, scope: i32, reception: Reception) -> pb::GetManifestResponse {
    let mut answer = pb::GetManifestResponse {
        bundle_version: reception.bundle_version,
        supported_apps: reception.apps.iter().map(ToString::to_string).collect(),
        ..pb::GetManifestResponse::default()
    };
    let Some(receiver) = reception.receiver else {
        answer.limitation = format!("`{}` is not an app that can be taken in", app.escape_debug());
        return answer;
    };
    for scope in &receiver.scopes {
        let scope = i32::from(match scope {
            Scope::Tabs | Scope::Session => pb::TeleportScope::Session,
            Scope::Full => pb::TeleportScope::Profile,
        });
        if !answer.scopes.contains(&scope) {
            answer.scopes.push(scope);
        }
    }
    let wanted = if scope == 0 { i32::from(pb::TeleportScope::Session) } else { scope };
    let fits = answer.scopes.contains(&wanted);
    answer.supported = receiver.supported && fits;
    answer.limitation = match receiver.limitation {
        None if !fits => "it cannot take in so much of the app".to_owned(),
        limitation => limitation.unwrap_or_default(),
    };
    answer.app_installed = receiver.app_installed;
    answer.app_running = receiver.app_running;
    answer
}
