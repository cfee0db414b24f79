//! `teleport_manifest` and `teleport_app`.
//!
//! An agent asks; a person agrees, in a terminal of their own. Nothing here can agree for them.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use spaceport_spaces::verbs::Receiver;
use spaceport_teleport::Manifest;
use spaceport_teleport::consent::How;
use spaceport_teleport::manifest::{App, Choice, Scope};
use spaceport_teleport::push::{Push, Pushed, Watch};
use spaceport_types::{Error, Issue, Kind, Result};

use super::User;
use super::parameters::{TeleportApp, TeleportManifest};
use crate::client::now;
use crate::teleport::{consent_data, moved_data, source};

#[derive(Serialize)]
pub(crate) struct Offered {
    #[serde(flatten)]
    manifest: Manifest,
    #[serde(skip_serializing_if = "Option::is_none")]
    receiver: Option<Receiver>,
}

pub(crate) async fn manifest(user: User, it: TeleportManifest) -> Result<Offered> {
    let (app, scope) = (App::named(&it.app)?, scope(it.scope.as_deref())?);
    let kept = user.kept;
    // It reads the app's files.
    let read = tokio::task::spawn_blocking(move || source(&kept)?.manifest(app, scope));
    let manifest = read.await.map_err(|error| {
        Error::new(Kind::Internal, "the manifest could not be made").source(error)
    })??;
    let receiver = match it.space.filter(|space| !space.is_empty()) {
        Some(space) => {
            Some(user.spaces.receiver(&space, app.as_str(), scope == Scope::Full).await?)
        }
        None => None,
    };
    Ok(Offered { manifest, receiver })
}

pub(crate) async fn app(user: User, it: TeleportApp) -> Result<Value> {
    let push = Push {
        app: App::named(&it.app)?,
        scope: scope(it.scope.as_deref())?,
        choice: Choice {
            include: it.include,
            sites: None,
            acknowledge_sensitive: it.acknowledge_sensitive.unwrap_or_default(),
        },
        how: How::default(),
        request_id: it.request_id.filter(|id| !id.is_empty()),
        trust_key: None,
    };
    let (client, _) = user.spaces.client(&it.space)?;
    let watch: Watch = Arc::new(|_| {});
    match source(&user.kept)?.push(&client, &push, &watch, now()).await? {
        Pushed::ConsentRequired(request) => Ok(consent_data(&request)),
        Pushed::Moved(receipt) => Ok(moved_data(&receipt)),
    }
}

fn scope(name: Option<&str>) -> Result<Scope> {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Scope::Full) };
    let scopes = [Scope::Tabs, Scope::Session, Scope::Full];
    scopes.into_iter().find(|scope| scope.as_str() == name).ok_or_else(|| {
        let name: String = name.chars().take(40).collect();
        Error::new(Kind::InvalidArgument, format!("`{}` is no scope", name.escape_debug()))
            .issue(Issue {
                path: "scope".to_owned(),
                constraint: "enum".into(),
                limit: Some(scopes.map(Scope::as_str).join(" ")),
            })
            .hint("Say tabs, session or full")
    })
}
