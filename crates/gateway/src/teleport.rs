//! The receiving half of teleport, as every surface has it.
//!
//! What arrives is handled by [`Inbox`], which blocks on disks and programs; here it is called off
//! the async threads.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use spaceport_teleport::consent::{How, Link, Request};
use spaceport_teleport::inbox::{Chunk, Commit, Inbox, Progress, Wiped};
use spaceport_teleport::manifest::App;
use spaceport_teleport::provider::Receiver;
use spaceport_teleport::receipt::Receipt;
use spaceport_teleport::seal::line;
use spaceport_teleport::{Digest, bundle};
use spaceport_types::{Error, Kind, Result};

use crate::service::{Feature, Service, blocking};

/// Whether this Space can take in an app, and what else a sender wants to know.
#[derive(Clone, Debug)]
pub struct Reception {
    /// What the app's provider says; `None` for an app that has none.
    pub receiver: Option<Receiver>,
    /// The version of bundles that are taken.
    pub bundle_version: u32,
    /// Every app there is a provider for.
    pub apps: Vec<App>,
}

impl Service {
    /// Whether this Space can take in an app, by its name.
    ///
    /// # Errors
    ///
    /// `host_capability_missing` where nobody's home is served.
    pub async fn reception(&self, app: String) -> Result<Reception> {
        let inbox = self.inbox()?;
        blocking(move || {
            let apps: Vec<App> = inbox.providers().map(|provider| provider.app()).collect();
            let receiver = App::named(&app).and_then(|app| inbox.provider(app));
            let receiver = receiver.ok().map(|provider| provider.receiver(inbox.machine()));
            Ok(Reception { receiver, bundle_version: bundle::VERSION, apps })
        })
        .await
    }

    /// Takes in some bytes of a sealed bundle.
    ///
    /// # Errors
    ///
    /// As [`Inbox::receive`].
    pub async fn receive_bundle(
        &self,
        import_id: String,
        app: String,
        offset: u64,
        data: Bytes,
    ) -> Result<Progress> {
        let inbox = self.inbox()?;
        blocking(move || {
            let app = App::named(&app)?;
            inbox.receive(&Chunk { import_id: &import_id, app, offset, data: &data })
        })
        .await
    }

    /// Checks a bundle and imports it.
    ///
    /// # Errors
    ///
    /// As [`Inbox::commit`].
    pub async fn import_bundle(
        &self,
        import_id: String,
        app: String,
        sha256: Digest,
        how: How,
    ) -> Result<Receipt> {
        let inbox = self.inbox()?;
        blocking(move || {
            let app = App::named(&app)?;
            inbox.commit(&Commit { import_id: &import_id, app, sha256, how }, wall_clock())
        })
        .await
    }

    /// Takes an import back, or every one.
    ///
    /// # Errors
    ///
    /// As [`Inbox::wipe`].
    pub async fn wipe_import(&self, import_id: Option<String>) -> Result<Wiped> {
        let inbox = self.inbox()?;
        blocking(move || match import_id {
            Some(id) => inbox.wipe(&id, true, wall_clock()),
            None => inbox.wipe_all(true, wall_clock()),
        })
        .await
    }

    /// The key that senders seal to; empty where nothing can be taken in.
    pub fn seal_key(&self) -> Bytes {
        let key = self.inbox().map(|inbox| inbox.public_key().as_bytes().to_vec());
        key.unwrap_or_default().into()
    }

    /// Takes a call that is sealed to this Space's key.
    ///
    /// # Errors
    ///
    /// As [`line::take`]; `host_capability_missing` where there is no key.
    pub(crate) fn take_call(
        &self,
        purpose: &str,
        header: &[u8; line::HEADER_LEN],
    ) -> Result<line::Taken> {
        line::take(self.inbox()?.identity(), purpose, header)
    }

    /// The request behind a link to the consent page.
    ///
    /// # Errors
    ///
    /// `unauthenticated` for a link that is not good any more.
    pub async fn consent_request(&self, secret: String) -> Result<Request> {
        let desk = self.desk();
        blocking(move || {
            let now = wall_clock();
            desk.request(&Link::look(&desk, &secret, now)?, now)
        })
        .await
    }

    /// Answers the request behind a link to the consent page.
    ///
    /// # Errors
    ///
    /// `unauthenticated` for a link that is not good any more, and as
    /// [`Desk::decide`](spaceport_teleport::consent::Desk::decide).
    pub async fn answer_request(&self, secret: String, yes: bool) -> Result<Request> {
        let desk = self.desk();
        blocking(move || {
            let now = wall_clock();
            let (id, person) = Link::redeem(&desk, &secret, now)?;
            desk.decide(&id, yes, &person, now)
        })
        .await
    }

    /// Which apps can be taken in, as features of the public contract.
    pub(crate) fn teleport_features(&self) -> Vec<Feature> {
        let inbox = self.inbox();
        let missing = inbox.as_ref().err().map(ToString::to_string);
        let mut features: Vec<Feature> = App::ALL
            .into_iter()
            .map(|app| {
                let receiver = inbox
                    .as_ref()
                    .ok()
                    .and_then(|inbox| Some(inbox.provider(app).ok()?.receiver(inbox.machine())));
                let unknown = || "this version has no provider for it".to_owned();
                Feature {
                    name: feature(app),
                    supported: receiver.as_ref().is_some_and(|receiver| receiver.supported),
                    limitation: match receiver {
                        Some(receiver) => receiver.limitation.unwrap_or_default(),
                        None => missing.clone().unwrap_or_else(unknown),
                    },
                }
            })
            .collect();
        features.push(Feature {
            name: "teleport.wipe",
            supported: missing.is_none(),
            limitation: missing.unwrap_or_default(),
        });
        features
    }

    /// Takes back what has expired. To be called every minute.
    pub(crate) fn sweep_imports(&self) {
        let Ok(inbox) = self.inbox() else { return };
        // Closing an app can take seconds.
        drop(tokio::task::spawn_blocking(move || inbox.sweep(wall_clock())));
    }

    fn inbox(&self) -> Result<Arc<Inbox>> {
        self.teleport().inbox.clone().ok_or_else(|| {
            Error::new(Kind::HostCapabilityMissing, "there is no home to import an app into")
                .with("feature", "teleport")
                .hint("Start `spaceport serve` with HOME set")
        })
    }

    fn desk(&self) -> spaceport_teleport::consent::Desk {
        self.teleport().desk.clone()
    }
}

/// What a gateway keeps of teleport.
#[derive(Debug)]
pub(crate) struct Teleport {
    pub(crate) inbox: Option<Arc<Inbox>>,
    pub(crate) desk: spaceport_teleport::consent::Desk,
}

fn feature(app: App) -> &'static str {
    match app {
        App::Firefox => "teleport.firefox",
        App::Chromium => "teleport.chromium",
        App::Chrome => "teleport.chrome",
        App::VsCode => "teleport.vscode",
        App::ClaudeCode => "teleport.claude-code",
        _ => "teleport",
    }
}

#[expect(clippy::disallowed_methods, reason = "what people agree to ends at a time of day")]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}
