//! Devices that are far slower than their peers sit out: others answer for them, as long as there are enough.
//!
//! A disk that takes a second for what its neighbours do in ten milliseconds (it retries, or it is about to fail) makes
//! the whole device as slow as itself, for nothing: parity, or the other side, has the same bytes. So it is not read from
//! for ten minutes, and for another ten as long as it does not answer quickly. It is written to as before.
//!
//! What is compared is what reads typically took ([`pool::vdev::Pulse`]), among the leaves of one device: they get the
//! same work. But not at the same moment: a healthy disk that turns, busy with a transaction group, answers in 200 ms what
//! its neighbour, done with its part, answers in 20. So it takes more than that, again and again, before a leaf is too slow.
//! Nothing of it is on disk; there is no property for it.
//!
//! So a leaf is judged anew when its pool was opened, and until then nothing is said of it. What opening reads says too little:
//! it takes as many looks as it takes to find it too slow. If nobody reads from it, it is tried.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use disk::Disk;
use futures_util::future::join_all;
use pool::vdev::{Kind, Tree, Vdev};
use tokio::time::{Instant, timeout};

use super::find;
use crate::{engine::Engine, events::Event};

/// How long a slow leaf is not read from, and one is waited for that hardly anybody reads from.
const SITS_OUT: Duration = Duration::from_secs(600);
/// Reads without which nothing is concluded: the average knows about as many. One must be new.
const SAMPLES: u64 = 16;
/// So many times as slow as its peers is too slow,
const TIMES: u32 = 8;
/// and what is faster than this is never: twice what the queue of a healthy disk holds while a transaction group is written.
const HARMLESS: Duration = Duration::from_millis(400);
/// Looks in a row at which it must be too slow. At as many it must not be to be judged well.
const LOOKS: u32 = 3;
/// Reads that must be quick before a leaf is used again, or judged without others' reads.
const TRIALS: usize = 3;

/// What is remembered between two looks.
#[derive(Debug, Default)]
pub(super) struct Slow {
    /// Reads of each leaf at the last look.
    samples: BTreeMap<u64, u64>,
    /// Leaves that were too slow at the last looks: at how many.
    suspected: BTreeMap<u64, u32>,
    /// Leaves that were not too slow at any of the last looks at which they were compared: at how many.
    well: BTreeMap<u64, u32>,
    /// Leaves that are not judged so far: when they are tried.
    tries: BTreeMap<u64, Instant>,
    /// Leaves that sit out: until when, and what their peers took.
    out: BTreeMap<u64, (Instant, Duration)>,
}

impl Slow {
    /// Compares, lets leaves sit out, and lets them come back.
    pub(super) async fn look(&mut self, engine: &Engine) {
        let tree = engine.view().tree();
        self.come_back(engine, &tree).await;
        self.try_quiet(&tree).await;
        let mut suspected = BTreeMap::new();
        for top in &tree.tops {
            suspected.extend(self.compare(engine, &tree, top));
        }
        self.suspected = suspected;
        self.samples = tree
            .leaves()
            .into_iter()
            .filter_map(|vdev| Some((vdev.guid, vdev.leaf.as_ref()?.pulse.samples())))
            .collect();
    }

    /// Looks for an outlier among the leaves below `vdev`: who is suspected, and at how many looks it has been.
    fn compare(&mut self, engine: &Engine, tree: &Tree, vdev: &Vdev) -> Option<(u64, u32)> {
        let spare = match &vdev.kind {
            Kind::Mirror => vdev.children.len().saturating_sub(1),
            Kind::Raidz(geometry) => geometry.parity,
            _ => return None,
        };
        let unusable = vdev.children.iter().filter(|child| !child.is_readable() || child.sits_out()).count();
        if unusable >= spare {
            return None;
        }
        let mut latencies: Vec<(Duration, u64)> = vdev
            .children
            .iter()
            .filter(|child| child.is_readable() && !child.sits_out())
            .filter_map(|child| {
                let pulse = &child.leaf.as_ref()?.pulse;
                let before = self.samples.get(&child.guid).copied().unwrap_or(0);
                let enough = pulse.samples() > before.max(SAMPLES);
                let typical = pulse.typical().max(pulse.typical_of_scans())?;
                enough.then_some((typical, child.guid))
            })
            .collect();
        latencies.sort_unstable();
        let (&(latency, guid), others) = latencies.split_last()?;
        let (peers, _) = others.get(others.len() / 2).copied()?;
        let is_too_slow = |latency: Duration| latency >= HARMLESS && latency >= peers * TIMES;
        for (latency, guid) in &latencies {
            let looks = self.well.entry(*guid).or_default();
            *looks = if is_too_slow(*latency) { 0 } else { *looks + 1 };
            if *looks >= LOOKS {
                self.well.remove(guid);
                judge(tree, *guid);
            }
        }
        if !is_too_slow(latency) {
            return None;
        }
        let looks = self.suspected.get(&guid).map_or(1, |looks| looks + 1);
        if looks < LOOKS {
            return Some((guid, looks));
        }
        self.out.insert(guid, (Instant::now() + SITS_OUT, peers));
        set(tree, guid, true);
        judge(tree, guid);
        let device = find::name(tree, guid);
        tracing::warn!(device = device.name, ?latency, ?peers, "a slow device sits out");
        engine.events().tell(Event::Slow { device, latency, peers, sits_out: true });
        None
    }

    /// Those of which too little was read for so long to judge them are tried.
    async fn try_quiet(&mut self, tree: &Tree) {
        let unknown: BTreeMap<u64, Arc<dyn Disk>> = tree
            .leaves()
            .into_iter()
            .filter(|vdev| vdev.is_readable())
            .filter_map(|vdev| {
                let leaf = vdev.leaf.as_ref().filter(|leaf| !leaf.pulse.is_judged())?;
                Some((vdev.guid, leaf.disk()?))
            })
            .collect();
        self.tries.retain(|guid, _| unknown.contains_key(guid));
        let now = Instant::now();
        let mut trials = Vec::new();
        for (guid, disk) in unknown {
            if *self.tries.entry(guid).or_insert(now + SITS_OUT) <= now {
                trials.push(async move { (guid, trial(&disk, HARMLESS).await.is_some()) });
            }
        }
        for (guid, is_quick) in join_all(trials).await {
            if is_quick {
                judge(tree, guid);
            } else {
                self.tries.insert(guid, now + SITS_OUT);
            }
        }
    }

    /// Those whose time is over are tried.
    async fn come_back(&mut self, engine: &Engine, tree: &Tree) {
        let now = Instant::now();
        let over: Vec<(u64, Duration)> = self
            .out
            .iter()
            .filter(|(_, (until, _))| *until <= now)
            .map(|(guid, (_, peers))| (*guid, *peers))
            .collect();
        for (guid, peers) in over {
            let leaf = find::locate(tree, guid).and_then(|place| place.vdev.leaf.clone());
            let Some((leaf, disk)) = leaf.and_then(|leaf| leaf.disk().map(|disk| (leaf, disk))) else {
                self.out.remove(&guid);
                continue;
            };
            let limit = (peers * TIMES).max(HARMLESS);
            let Some(latency) = trial(&disk, limit).await else {
                self.out.insert(guid, (Instant::now() + SITS_OUT, peers));
                continue;
            };
            self.out.remove(&guid);
            leaf.pulse.forget();
            set(tree, guid, false);
            let device = find::name(tree, guid);
            engine.events().tell(Event::Slow { device, latency, peers, sits_out: false });
        }
    }
}

/// What a read takes, if it takes no more than `limit` on an average of several.
async fn trial(disk: &Arc<dyn Disk>, limit: Duration) -> Option<Duration> {
    let begun = Instant::now();
    let trials = async {
        for _ in 0..TRIALS {
            disk.probe().await?;
        }
        Ok::<(), std::io::Error>(())
    };
    let is_quick = matches!(timeout(limit * TRIALS as u32, trials).await, Ok(Ok(())));
    is_quick.then(|| begun.elapsed() / TRIALS as u32)
}

/// It was found out how fast this leaf is.
fn judge(tree: &Tree, guid: u64) {
    if let Some(leaf) = find::locate(tree, guid).and_then(|place| place.vdev.leaf.as_ref()) {
        leaf.pulse.judge();
    }
}

fn set(tree: &Tree, guid: u64, sits_out: bool) {
    if let Some(leaf) = find::locate(tree, guid).and_then(|place| place.vdev.leaf.as_ref()) {
        leaf.condition.update(|now| now.sits_out = sits_out);
    }
}
