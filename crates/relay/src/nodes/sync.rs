//! Keeps this node's directory and Redis alike: says what is here, and learns what is not.
//!
//! Each round is the same, whatever has happened: a beat, what has changed here, and all of the rest if anything
//! has changed there. A round that fails changes nothing here, and the first one after it says everything again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use spaceport_types::{MachineId, Result};
use spaceport_wire::relay_nodes::{Held, MAX_SERIAL};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::{Holder, Nodes};
use crate::metrics::Counters;

/// How often Redis is asked what has changed.
const ROUND: Duration = Duration::from_millis(500);

/// How long the goodbye to the others may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the last rounds have left.
#[derive(Default)]
struct Told {
    /// Machines that were said to be here, and by which connection.
    announced: BTreeMap<MachineId, (u64, u64)>,
    version: Option<i64>,
    nodes: Vec<(String, crate::uplink::Origin)>,
    held: Vec<(MachineId, Held)>,
}

/// Runs until `stopping` says so.
pub(crate) async fn run(
    nodes: &Nodes,
    counters: &Arc<Counters>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut told = Told::default();
    let mut changed = nodes.directory.changed();
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = rounds.tick() => {}
            changed = changed.changed() => if changed.is_err() { break },
            _ = stopping.wait_for(|&stopping| stopping) => break,
        }
        let done = round(nodes, &mut told).await;
        match &done {
            Ok(()) => counters.renewals.add(1),
            Err(_) => {
                counters.renewals_failed.add(1);
                told = Told::default();
            }
        }
        nodes.note(done);
    }
    nodes.stop();
    let leaving = async {
        for (machine, (_, serial)) in &told.announced {
            nodes.commons.release(machine, &nodes.me, *serial).await?;
        }
        nodes.commons.leave(&nodes.me).await
    };
    drop(timeout(FAREWELL, leaving).await);
}

async fn round(nodes: &Nodes, told: &mut Told) -> Result<()> {
    let (commons, directory, me) = (&nodes.commons, &nodes.directory, &nodes.me);
    let beat = commons.beat(me, &nodes.url).await?;
    if beat.fresh {
        // Others did not believe in this one: what it had may be theirs.
        told.announced.clear();
    }
    nodes.count.store(beat.nodes.len(), std::sync::atomic::Ordering::Relaxed);
    told.nodes = beat.nodes;
    if told.version != Some(beat.version) {
        let known = commons.machines(directory.most()).await?;
        let ids: BTreeSet<MachineId> = known.iter().map(|(id, _)| id.clone()).collect();
        directory.learn(known);
        for (id, record) in directory.beyond(&ids) {
            // Known here alone: from before there were nodes, or from before Redis lost it.
            if !commons.claim(&id, &record).await? {
                directory.learn([(id, None)]);
            }
        }
        told.held = commons.held(directory.most()).await?;
        told.version = Some(beat.version);
    }
    let present = directory.present();
    let gone: Vec<_> = told
        .announced
        .iter()
        .filter(|(id, (number, _))| present.get(*id).is_none_or(|it| it.number != *number))
        .map(|(id, (_, serial))| (id.clone(), *serial))
        .collect();
    for (id, serial) in gone {
        if !present.contains_key(&id) {
            commons.release(&id, me, serial).await?;
        }
        told.announced.remove(&id);
    }
    for (id, it) in &present {
        let serial = it.serial.min(MAX_SERIAL);
        let later = told.held.iter().find(|(held, other)| {
            held == id && other.node != *me && other.serial > serial && told.is_alive(&other.node)
        });
        let is_ours = match told.announced.get(id) {
            Some(_) => later.is_none(),
            None => {
                // What it says of itself may be new, and so may the machine.
                if let Some(record) = directory.record(id)
                    && !commons.claim(id, &record).await?
                {
                    directory.learn([(id.clone(), None)]);
                    continue;
                }
                let held = Held { node: me.clone(), serial, since: it.since };
                commons.announce(id, &held).await?
            }
        };
        if is_ours {
            told.announced.insert(id.clone(), (it.number, serial));
        } else {
            tracing::info!(machine = %id, "a machine is at another node now");
            told.announced.remove(id);
            directory.replaced(id, it.number);
        }
    }
    directory.place(told.elsewhere(me));
    Ok(())
}

impl Told {
    fn is_alive(&self, node: &str) -> bool {
        self.nodes.iter().any(|(id, _)| id == node)
    }

    /// Machines that other nodes have which are believed in.
    fn elsewhere(&self, me: &str) -> BTreeMap<MachineId, Holder> {
        let held = self.held.iter().filter(|(_, held)| held.node != me);
        held.filter_map(|(id, held)| {
            let (node, url) = self.nodes.iter().find(|(node, _)| *node == held.node)?;
            let holder = Holder { node: node.clone(), url: url.clone(), since: held.since };
            Some((id.clone(), holder))
        })
        .collect()
    }
}

impl Nodes {
    /// Notes how a round went, and says what is new about that.
    fn note(&self, done: Result<()>) {
        match done {
            Ok(()) => {
                let before = self.away.send_replace(None);
                if let Some((since, _)) = before {
                    tracing::info!(lasted = ?since.elapsed(), "the directory of the nodes is back");
                }
            }
            Err(error) => {
                let why = error.to_string();
                let why = match error.context("reason") {
                    Some(reason) => format!("{why}: {reason}"),
                    None => why,
                };
                let is_news = self.away.send_if_modified(|away| {
                    let is_news = away.is_none();
                    let since = away.take().map_or_else(Instant::now, |(since, _)| since);
                    *away = Some((since, why.clone()));
                    is_news
                });
                if is_news {
                    tracing::warn!(
                        why,
                        "the directory is away; the machines of this node are served on"
                    );
                }
            }
        }
    }
}
