//! `teleport_manifest` and `teleport_app`.
//!
//! An agent asks; a person agrees, in the program that the agent runs in or in a terminal of their
//! own. Nothing here can agree for them.

use std::sync::Arc;

use serde::Serialize;
use spaceport_spaces::Client;
use spaceport_spaces::verbs::Receiver;
use spaceport_teleport::Manifest;
use spaceport_teleport::consent::How;
use spaceport_teleport::contract::Watched;
use spaceport_teleport::manifest::{App, Choice, Scope};
use spaceport_teleport::push::{Push, Pushed, Source, Step, Watch};
use spaceport_types::{Error, Issue, Kind, Result};

use super::User;
use super::consent::{Asked, Asker, taken_back};
use super::files::Call;
use super::parameters::{TeleportApp, TeleportManifest};
use super::tools::{Answer, Answered as _};
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

pub(crate) async fn app(user: User, it: TeleportApp) -> Result<Answer> {
    let mut push = Push {
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
    let source = source(&user.kept)?;
    let Call { asker, stop, .. } = user.call.clone();
    if let Some(id) = asker.as_ref().and_then(Asker::answers) {
        push.request_id = Some(id.to_owned());
    }
    let request = match moving(&source, &client, &push, user.call.clone()).await? {
        Pushed::Moved(receipt) => return moved_data(&receipt).answer(),
        Pushed::ConsentRequired(request) => request,
    };
    let asked = match asker {
        Some(asker) => asker.ask(&source.desk(), &request, &stop).await?,
        None => Asked::Open,
    };
    match asked {
        Asked::Open => return consent_data(&request).answer(),
        Asked::Again(question) => return Ok(Answer::Question(question)),
        Asked::Decided => push.request_id = Some(request.id),
    }
    match moving(&source, &client, &push, user.call).await? {
        Pushed::Moved(receipt) => moved_data(&receipt).answer(),
        Pushed::ConsentRequired(request) => consent_data(&request).answer(),
    }
}

/// Moves it as far as it goes, tells the caller how far that is, and leaves nothing behind when they
/// no longer want it.
async fn moving(source: &Source, client: &Client, push: &Push, call: Call) -> Result<Pushed> {
    call.watch(|Watched { progress, stop }| async move {
        let watch: Watch = Arc::new(move |step| {
            if let Step::Sending { done, total } = step {
                progress(done, total);
            }
        });
        tokio::select! {
            pushed = source.push(client, push, &watch, now()) => pushed,
            () = stop.cancelled() => {
                source.abandon(client, push, now()).await?;
                Err(taken_back())
            }
        }
    })
    .await
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
