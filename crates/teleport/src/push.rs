//! Moving an app's state from this machine to a Space: from the manifest to the receipt.
//!
//! One call does what can be done now. Without a person's yes it ends with a question and has
//! captured nothing; called again, it goes on from where it was: with the answer, or in the middle
//! of a transfer that broke off. Whatever fails leaves both machines as they were.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use spaceport_spaces::Client;
use spaceport_types::{Cause, Error, Kind, Result, Retry};
use spaceport_wire::pb;

use crate::bundle;
use crate::consent::{Answer, Approval, Desk, Destination, How, Request, Terms};
use crate::ledger::{Event, Ledger};
use crate::manifest::{App, Choice, Manifest, Scope, Selection};
use crate::outbox::{Outbox, Sealed};
use crate::payload::{Head, PayloadWriter};
use crate::provider::Provider;
use crate::receipt::Receipt;
use crate::staging::{self, Staging};
use crate::trust::Trust;
use crate::{Digest, Machine};

/// Bytes of a chunk: large enough that its costs do not show, small enough that little is sent again.
const CHUNK: usize = 1 << 20;

/// Chunks on their way at one time: 8 MiB fill 1.6 Gbit/s at 40 ms. Well below the window in which a
/// receiver of ours puts them in order.
const IN_FLIGHT: usize = 8;

/// How often a broken connection is tried again before the sender is asked to; with the delays
/// below that is about half a minute.
const TRIES: u32 = 7;

/// The first delay between tries; it doubles.
const DELAY: Duration = Duration::from_millis(250);

/// How long a destination may take to check and import a bundle.
const IMPORT: Duration = Duration::from_secs(15 * 60);

/// The machine that things are moved from.
#[derive(Clone)]
pub struct Source {
    folder: PathBuf,
    machine: Machine,
    providers: Vec<&'static dyn Provider>,
    outbox: Outbox,
    ledger: Ledger,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// What is to be moved, and how.
#[derive(Clone, Debug)]
pub struct Push {
    /// The app.
    pub app: App,
    /// How much of it.
    pub scope: Scope,
    /// Which items.
    pub choice: Choice,
    /// How it is put in place.
    pub how: How,
    /// The request that a person has answered, where a caller wants that and no other.
    pub request_id: Option<String>,
    /// What the destination's key is, when a person has compared it.
    pub trust_key: Option<String>,
}

/// What came of it.
#[derive(Debug)]
pub enum Pushed {
    /// A person has to say yes first; then the same call goes on.
    ConsentRequired(Request),
    /// It is there.
    Moved(Receipt),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copying the app's state.
    Capturing,
    /// Packing and sealing: of so many bytes, so many are done.
    Sealing {
        /// Done.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// Sending: of so many bytes, so many have arrived. What had arrived before counts.
    Sending {
        /// Arrived.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// The destination checks and imports.
    Importing,
}

/// Who is told.
pub type Watch = Arc<dyn Fn(Step) + Send + Sync>;

impl Source {
    /// The source of a teleport folder. Removes what a process left open that is no more.
    pub fn new(folder: &Path, machine: Machine, providers: Vec<&'static dyn Provider>) -> Self {
        staging::sweep(&machine, folder);
        Self {
            folder: folder.to_owned(),
            machine,
            providers,
            outbox: Outbox::at(folder),
            ledger: Ledger::at(folder),
        }
    }

    /// Where consent is asked for.
    pub fn desk(&self) -> Desk {
        Desk::at(&self.folder)
    }

    /// What of an app could move from here.
    ///
    /// # Errors
    ///
    /// As [`Provider::manifest`]; `host_capability_missing` for an app that is not known here.
    pub fn manifest(&self, app: App, scope: Scope) -> Result<Manifest> {
        self.provider(app)?.manifest(&self.machine, scope)
    }

    fn provider(&self, app: App) -> Result<&dyn Provider> {
        let known = self.providers.iter().find(|provider| provider.app() == app);
        known.copied().ok_or_else(|| {
            Error::new(
                Kind::HostCapabilityMissing,
                format!("{} cannot be read on this machine", app.display_name()),
            )
            .with("app", app)
        })
    }

    /// Moves it, as far as that goes now.
    ///
    /// # Errors
    ///
    /// `teleport_refused` when something was not agreed to or the destination does not take it,
    /// `transfer_failed` with `interrupted` or `peer_gone` when the same call can go on later, and
    /// what the destination says.
    pub async fn push(
        &self,
        space: &Client,
        push: &Push,
        watch: &Watch,
        now: SystemTime,
    ) -> Result<Pushed> {
        let destination = self.destination(space, push, now).await?;
        let asked = asked(push, &destination);
        let sealed = match self.blocking(move |it| it.outbox.find(asked, now)).await? {
            Some(sealed) => sealed,
            None => {
                let (push, watch) = (push.clone(), Arc::clone(watch));
                let cancel = Cancel::default();
                let flag = Arc::clone(&cancel.0);
                let made = self
                    .blocking(move |it| it.prepare(&push, destination, asked, &watch, &flag, now))
                    .await?;
                match made {
                    Prepared::Ask(request) => return Ok(Pushed::ConsentRequired(*request)),
                    Prepared::Sealed(sealed) => *sealed,
                }
            }
        };
        let receipt = self.send(space, &sealed, watch).await;
        let receipt = receipt.inspect_err(|error| {
            // What will not be taken later either need not be kept.
            let report = error.report();
            let again = [Retry::Backoff, Retry::AfterDelay, Retry::AfterAction, Retry::AfterRead];
            if !again.contains(&report.retry) || report.cause == Some(Cause::CorruptBundle) {
                self.outbox.forget(&sealed.import_id);
            }
        })?;
        self.blocking(move |it| {
            receipt.keep(&it.folder)?;
            let facts = [
                ("destination", sealed.terms.destination.url.clone()),
                ("sha256", sealed.sha256.to_string()),
            ];
            it.ledger.record(Event::Sent, &sealed.import_id, facts, now)?;
            it.outbox.forget(&sealed.import_id);
            Ok(Pushed::Moved(receipt))
        })
        .await
    }

    /// Gives up what [`Source::push`] has begun: here, and as far as it can be reached, there.
    ///
    /// # Errors
    ///
    /// `io` when the ledger cannot be written.
    pub async fn abandon(&self, space: &Client, push: &Push, now: SystemTime) -> Result<()> {
        let url = space.address().to_string();
        let found =
            self.outbox.all()?.into_iter().filter(|sealed| {
                sealed.terms.app == push.app && sealed.terms.destination.url == url
            });
        for sealed in found {
            self.outbox.forget(&sealed.import_id);
            self.ledger.record(Event::Abandoned, &sealed.import_id, [], now)?;
            let wipe = pb::WipeImportRequest { import_id: sealed.import_id.clone(), all: false };
            let told =
                space.call_within::<_, pb::WipeImportResponse>(DELAY * 20, WIPE_IMPORT, wipe).await;
            if let Err(error) = told {
                tracing::debug!(%error, "the destination forgets it by itself within the hour");
            }
        }
        Ok(())
    }

    /// What the Space is, and that it can take this.
    async fn destination(
        &self,
        space: &Client,
        push: &Push,
        now: SystemTime,
    ) -> Result<Destination> {
        let (known, key) = crate::trust::known(space).await?;
        let request =
            pb::GetManifestRequest { app: push.app.to_string(), scope: scope(push.scope).into() };
        let receiver: pb::GetManifestResponse =
            space.call("TeleportService/GetManifest", request).await?;
        let address = space.address();
        let name = push.app.display_name();
        if !receiver.supported {
            let why = match &*receiver.limitation {
                "" => "it does not say why".to_owned(),
                why => why.to_owned(),
            };
            return Err(Error::because(
                Cause::NotImportable,
                format!("the Space at {address} cannot take in {name}: {why}"),
            )
            .with("supported_apps", receiver.supported_apps.join(" ")));
        }
        if receiver.bundle_version != bundle::VERSION {
            return Err(Error::because(
                Cause::NotImportable,
                format!("the Space at {address} takes bundles of another kind"),
            )
            .with("bundle_version", receiver.bundle_version)
            .with("expected", bundle::VERSION)
            .hint("Use the same version of spaceport there"));
        }
        let Some(key) = key else {
            return Err(crate::trust::unsealed(space, || {
                Error::because(Cause::KeyUnavailable, "the Space has no key to seal to")
                    .hint("Use a version of spaceport there that has a seal key")
            }));
        };
        let url = address.to_string();
        let (trust, named) = (Trust::at(&self.folder), push.trust_key.clone());
        let space = url.clone();
        self.blocking(move |_| trust.check(&space, key, named.as_deref(), now)).await?;
        // A name that somebody else chose is shown to a person: one line, nothing that moves a cursor.
        let name = known.hostname.escape_debug().take(100).collect();
        Ok(Destination { url, name, key })
    }

    /// Asks for consent, and with it makes the bundle.
    fn prepare(
        &self,
        push: &Push,
        destination: Destination,
        asked: Digest,
        watch: &Watch,
        cancelled: &AtomicBool,
        now: SystemTime,
    ) -> Result<Prepared> {
        let provider = self.provider(push.app)?;
        let manifest = provider.manifest(&self.machine, push.scope)?;
        let selection = manifest.select(&push.choice)?;
        let terms = Terms::new(&manifest, &selection, destination, push.how);
        let approval = match self.desk().ask(terms, push.request_id.as_deref(), now)? {
            Answer::Ask(request) => return Ok(Prepared::Ask(Box::new(request))),
            Answer::Yes(approval) => approval,
        };
        watch(Step::Capturing);
        let staging =
            Staging::new(&self.machine, &self.folder, approval.terms().estimated_bytes())?;
        let payload = self.capture(provider, &manifest, &selection, &approval, &staging)?;
        let total = payload.bytes();
        let mut progress = |done| {
            watch(Step::Sealing { done, total });
            if cancelled.load(Ordering::Relaxed) {
                return Err(Error::new(Kind::Cancelled, "the transfer was given up"));
            }
            Ok(())
        };
        let sealed = self.outbox.seal(&approval, &payload, asked, now, &mut progress)?;
        Ok(Prepared::Sealed(Box::new(sealed)))
    }

    fn capture(
        &self,
        provider: &dyn Provider,
        manifest: &Manifest,
        selection: &Selection,
        approval: &Approval,
        staging: &Staging,
    ) -> Result<crate::Payload> {
        let head = Head {
            app: approval.terms().app,
            scope: approval.terms().scope,
            profile: manifest.profile.clone(),
            app_version: manifest.app_version.clone(),
            home: self.machine.home.clone(),
        };
        let mut writer = PayloadWriter::create(staging.path(), head)?;
        provider.capture(&self.machine, manifest, selection, &mut writer)?;
        Ok(writer.finish())
    }

    /// Sends what the destination does not have yet, and has it imported.
    async fn send(&self, space: &Client, sealed: &Sealed, watch: &Watch) -> Result<Receipt> {
        let file = Arc::new(self.outbox.open(sealed)?);
        let mut tries = 0;
        let mut best = 0;
        loop {
            let result = self.attempt(space, sealed, &file, watch, &mut best).await;
            let error = match result {
                Ok(receipt) => return Ok(receipt),
                Err(Attempt::Refused(error)) => return Err(error),
                Err(Attempt::Moved { progressed }) => {
                    tries = if progressed { 0 } else { tries + 1 };
                    Error::because(Cause::Interrupted, "the transfer does not get ahead")
                }
                Err(Attempt::Broken { error, progressed }) => {
                    tries = if progressed { 1 } else { tries + 1 };
                    Error::because(
                        Cause::PeerGone,
                        format!("the Space at {} went away during the transfer", space.address()),
                    )
                    .source(error)
                }
            };
            if tries >= TRIES {
                return Err(error
                    .with("import_id", &sealed.import_id)
                    .with("sent_bytes", best)
                    .with("bytes", sealed.length)
                    .hint("Run the same command again within the hour: it goes on from there"));
            }
            tokio::time::sleep(DELAY * 2_u32.pow(tries.min(6))).await;
        }
    }

    /// One connection's worth of sending.
    async fn attempt(
        &self,
        space: &Client,
        sealed: &Sealed,
        file: &Arc<std::fs::File>,
        watch: &Watch,
        best: &mut u64,
    ) -> std::result::Result<Receipt, Attempt> {
        let before = *best;
        // Where the destination is; nothing is sent with it.
        let at = space.call::<_, pb::ImportSessionResponse>(IMPORT_SESSION, sealed.request(0));
        let at = at.await.map_err(|error| Attempt::of(error, false))?.received_bytes;
        let total = sealed.length;
        if at > total {
            return Err(Attempt::Refused(Error::because(
                Cause::SizeMismatch,
                "the Space has more of this import than there is",
            )));
        }
        *best = at.max(*best);
        watch(Step::Sending { done: at, total });
        let offsets = (at..total).step_by(CHUNK);
        let mut answers = stream::iter(offsets)
            .map(|offset| {
                let mut data = vec![0; CHUNK.min((total - offset) as usize)];
                let read = file.read_exact_at(&mut data, offset);
                let request =
                    pb::ImportSessionRequest { data: data.into(), ..sealed.request(offset) };
                async move {
                    read?;
                    space.call::<_, pb::ImportSessionResponse>(IMPORT_SESSION, request).await
                }
            })
            .buffered(IN_FLIGHT);
        while let Some(answer) = answers.next().await {
            let progressed = *best > before;
            let received = answer.map_err(|error| Attempt::of(error, progressed))?.received_bytes;
            *best = received.min(total).max(*best);
            watch(Step::Sending { done: *best, total });
        }
        watch(Step::Importing);
        let request = pb::ImportSessionRequest {
            commit: true,
            sha256: sealed.sha256.to_string(),
            ..sealed.request(total)
        };
        let done = space
            .call_within::<_, pb::ImportSessionResponse>(IMPORT, IMPORT_SESSION, request)
            .await
            .map_err(|error| Attempt::of(error, *best > before))?;
        let receipt = done.result.map(|result| result.receipt).unwrap_or_default();
        serde_json::from_slice(&receipt).map_err(|error| {
            Attempt::Refused(
                Error::new(Kind::Json, "the Space's receipt cannot be read")
                    .hint("Use the same version of spaceport there")
                    .source(error),
            )
        })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let source = self.clone();
        match tokio::task::spawn_blocking(move || work(&source)).await {
            Ok(result) => result,
            Err(error) => Err(Error::new(Kind::Internal, "a background task failed").source(error)),
        }
    }
}

const IMPORT_SESSION: &str = "TeleportService/ImportSession";
const WIPE_IMPORT: &str = "TeleportService/WipeImport";

enum Prepared {
    Ask(Box<Request>),
    Sealed(Box<Sealed>),
}

/// Why a connection's worth of sending ended.
enum Attempt {
    /// For good.
    Refused(Error),
    /// The destination is somewhere else than was thought.
    Moved { progressed: bool },
    /// The connection is gone, or the destination.
    Broken { error: Error, progressed: bool },
}

impl Attempt {
    fn of(error: Error, progressed: bool) -> Self {
        match error.kind() {
            Kind::PreconditionFailed if error.context("expected_offset").is_some() => {
                Self::Moved { progressed }
            }
            Kind::SpacesdNotAvailable | Kind::Timeout | Kind::Relay => {
                Self::Broken { error, progressed }
            }
            _ => Self::Refused(error),
        }
    }
}

impl Sealed {
    fn request(&self, offset: u64) -> pb::ImportSessionRequest {
        let How { replace_existing, close_running_app, launch_after, expires_at_ms } =
            self.terms.how;
        pb::ImportSessionRequest {
            import_id: self.import_id.clone(),
            app: self.terms.app.to_string(),
            scope: scope(self.terms.scope).into(),
            offset,
            options: Some(pb::ImportOptions {
                replace_existing,
                close_running_app,
                launch_after,
                expires_at_ms,
                broker_grant: String::new(),
            }),
            ..pb::ImportSessionRequest::default()
        }
    }
}

/// Stops the work of a call that nobody waits for any more.
#[derive(Default)]
struct Cancel(Arc<AtomicBool>);

impl Drop for Cancel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a Space has taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WipedThere {
    /// The imports.
    pub import_ids: Vec<String>,
    /// Files and folders that are gone, or back as they were.
    pub removed_paths: Vec<String>,
    /// Rows of databases that are gone, or back as they were.
    pub rows: u64,
}

/// Has a Space take an import back, or every one.
///
/// # Errors
///
/// `not_found` for an unknown import, and what else the Space says.
pub async fn wipe_at(space: &Client, import_id: Option<&str>) -> Result<WipedThere> {
    let request = pb::WipeImportRequest {
        import_id: import_id.unwrap_or_default().to_owned(),
        all: import_id.is_none(),
    };
    let wiped: pb::WipeImportResponse = space.call(WIPE_IMPORT, request).await?;
    Ok(WipedThere {
        import_ids: wiped.wiped_import_ids,
        removed_paths: wiped.removed_paths,
        rows: wiped.cookie_rows_removed.into(),
    })
}

/// The contract's word for a scope.
fn scope(scope: Scope) -> pb::TeleportScope {
    match scope {
        Scope::Tabs | Scope::Session => pb::TeleportScope::Session,
        Scope::Full => pb::TeleportScope::Profile,
    }
}

/// What a call asks for, to know one that was asked before.
fn asked(push: &Push, destination: &Destination) -> Digest {
    let mut hash = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    field(push.app.as_str().as_bytes());
    field(push.scope.as_str().as_bytes());
    for list in [&push.choice.include, &push.choice.sites] {
        match list {
            None => field(b"all"),
            Some(list) => {
                field(&(list.len() as u64).to_be_bytes());
                list.iter().for_each(|name| field(name.as_bytes()));
            }
        }
    }
    let How { replace_existing, close_running_app, launch_after, expires_at_ms } = push.how;
    field(&[replace_existing, close_running_app, launch_after, expires_at_ms > 0].map(u8::from));
    field(destination.url.as_bytes());
    field(destination.key.as_bytes());
    Digest(hash.finalize().into())
}
