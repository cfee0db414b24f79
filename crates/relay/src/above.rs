//! The relay above: each machine that is here is one there, too.
//!
//! For the other relay nothing is new: a machine dials it, registers, and is there for as long as it is here.
//! So each machine has a connection of its own upwards, with a token that only this relay can make, and one
//! that is slow or hostile has no part in another's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use spaceport_types::{MachineId, Redacted};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::directory::Present;
use crate::hop::Hop;
use crate::server::Shared;
use crate::uplink::{self, Origin, Status, Uplink};

/// Where the next relay is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Its origin.
    pub relay: Origin,
    /// Its registration token; for machines that it has not seen yet.
    pub token: Option<Redacted<String>>,
}

impl Config {
    /// The relay at `relay`, which knows this one's machines already.
    pub fn new(relay: Origin) -> Self {
        Self { relay, token: None }
    }
}

/// Keeps machines at the relay above.
#[derive(Debug)]
pub(crate) struct Above {
    config: Config,
    /// What the machines' tokens there are made of.
    secret: Redacted<String>,
    /// This relay, in lists of hops.
    hop: String,
    machines: Mutex<BTreeMap<MachineId, Machine>>,
}

#[derive(Debug)]
struct Machine {
    uplink: Uplink,
    hops: Vec<String>,
    /// Dropped, it leaves there.
    _stay: oneshot::Sender<()>,
}

impl Above {
    pub(crate) fn new(config: Config, secret: Redacted<String>, hop: String) -> Self {
        Self { config, secret, hop, machines: Mutex::default() }
    }

    /// How a machine is there; `None` while it is not here.
    pub(crate) fn status(&self, machine: &MachineId) -> Option<Status> {
        self.lock().get(machine).map(|machine| machine.uplink.status())
    }

    /// Machines that are online there.
    pub(crate) fn online(&self) -> usize {
        let is_online = |it: &&Machine| matches!(it.uplink.status(), Status::Online { .. });
        self.lock().values().filter(is_online).count()
    }

    /// Follows who is here, until `stopping` says that nobody is any more.
    pub(crate) async fn run(&self, shared: Shared, mut stopping: watch::Receiver<bool>) {
        let mut changed = shared.directory.changed();
        let mut drivers = JoinSet::new();
        // What outlives a machine's connection: who watches it, and that it was removed there.
        let mut hops = BTreeMap::new();
        let mut removed = BTreeSet::new();
        loop {
            let present = shared.directory.present();
            self.lock().retain(|id, machine| {
                if machine.uplink.is_removed() {
                    removed.insert(id.clone());
                }
                present.get(id).is_some_and(|it| it.hops == machine.hops)
            });
            hops.retain(|id, _| shared.directory.knows(id));
            removed.retain(|id| shared.directory.knows(id));
            for (id, it) in present {
                if self.lock().contains_key(&id) {
                    continue;
                }
                let hop = hops.entry(id.clone());
                let hop = hop.or_insert_with(|| Hop::new(shared.clone(), id.clone()));
                let config = self.as_machine(&id, &it, removed.contains(&id));
                match uplink::prepare(config) {
                    Ok((uplink, driver)) => {
                        let (stay, left) = oneshot::channel::<()>();
                        let driver = driver.with_media(hop.media());
                        let router = hop.router();
                        drivers.spawn(driver.run(router, async { drop(left.await) }));
                        let machine = Machine { uplink, hops: it.hops, _stay: stay };
                        self.lock().insert(id, machine);
                    }
                    Err(error) => tracing::error!(%error, "a machine cannot join the next relay"),
                }
            }
            tokio::select! {
                changed = changed.changed() => if changed.is_err() { break },
                Some(_) = drivers.join_next() => {}
                _ = stopping.wait_for(|&stopping| stopping) => break,
            }
        }
        self.lock().clear();
        while drivers.join_next().await.is_some() {}
    }

    /// A machine, as the relay above is to know it.
    fn as_machine(&self, id: &MachineId, it: &Present, was_removed: bool) -> uplink::Config {
        let mut config = uplink::Config::new(self.config.relay.clone(), it.name.clone(), "");
        config.machine = Some(id.clone());
        config.machine_token = Some(token(&self.secret, &self.config.relay, id));
        config.software.clone_from(&it.software);
        config.hops = it.hops.iter().chain([&self.hop]).cloned().collect();
        config.token = self.config.token.clone().filter(|_| !was_removed);
        config
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MachineId, Machine>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A machine's token at another relay. It is made anew each time, so that there is one secret to keep.
fn token(secret: &Redacted<String>, relay: &Origin, machine: &MachineId) -> Redacted<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes())
        .expect("a key of any length will do");
    // Neither an origin nor an id has a space.
    mac.update(format!("uplink {relay} {machine}").as_bytes());
    Redacted::new(format!("cmt_{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_machines_at_one_relay() {
        let of = |secret: &str, relay: &str, machine: &str| {
            let secret = Redacted::new(secret.to_owned());
            token(&secret, &relay.parse().unwrap(), &machine.parse().unwrap()).expose().clone()
        };
        let one = of("s", "https://a.example", "machine-1");
        assert_eq!(one, of("s", "https://a.example", "machine-1"));
        assert_ne!(one, of("t", "https://a.example", "machine-1"));
        assert_ne!(one, of("s", "https://b.example", "machine-1"));
        assert_ne!(one, of("s", "https://a.example", "machine-2"));
        assert!(one.len() > 40 && one.starts_with("cmt_"));
    }
}
