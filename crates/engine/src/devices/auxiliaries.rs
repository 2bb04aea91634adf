//! Cache devices and spares at rest of an open pool: noticed when they are gone, opened when they are there (again).
//!
//! They are no part of the device tree, nothing waits for them and no transaction group tells of them. So none of what a
//! leaf needs is needed here: their condition says which disk they are, and [`crate::second::Second`] follows that of cache
//! devices. A spare that does not work is noticed before it is needed; it is let go, and taken back when it answers again.
//!
//! Whether a spare is there is seen at every look, and that does not wake it. It is read from once in a while, or when there
//! is a reason: somebody asks for a look, as the system does when devices change, or it has just failed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use disk::Disk;
use ondisk::label::PoolState;
use pool::{
    import::Device,
    vdev::{Aux, Kind, Standing, Vdev},
};
use tokio::time::{Instant, timeout};

use super::{
    Opener, find,
    probe::{PROBE, PROBES_FAILED, Probed, answers, glance, open, probe},
    whose,
};
use crate::{
    engine::Engine,
    events::{DeviceName, Event},
    write::{labels, ours::Ours},
};

/// Between two reads of a spare at rest that answers: it may sleep meanwhile.
const REST: Duration = Duration::from_secs(3600);
/// Before one that can be opened and does not answer is opened again: when it is closed all of the machine hears that a device
/// changed.
const PAUSE: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Auxiliaries {
    /// Disks of devices that are away, which may be back as they were: where nobody can open them anew.
    parked: BTreeMap<u64, Arc<dyn Disk>>,
    /// Probes in a row that a spare failed.
    failed: BTreeMap<u64, u32>,
    /// Spares that are neither read from nor opened before, unless there is a reason.
    left_alone: BTreeMap<u64, Instant>,
}

/// What a look at one of them came to.
enum Found {
    /// As it was: there, or not.
    Same,
    /// It is there and answers.
    Works,
    Gone,
    Failing(String),
    Back(Arc<dyn Disk>),
    /// It can be opened again, and does not answer.
    Unfit,
    /// Something else is in its place, or it is not to be used; and the path of that.
    Other(Aux, String),
}

impl Auxiliaries {
    /// The disk of a spare that went back to rest while it was away.
    pub(super) fn park(&mut self, guid: u64, disk: Arc<dyn Disk>) {
        self.parked.insert(guid, disk);
    }

    /// Every cache device, every spare at rest, and every place where one should be. They are looked at together: each that
    /// does not answer would keep the pool from being watched for a while.
    pub(super) async fn look(&mut self, engine: &Engine, opener: Option<&Arc<dyn Opener>>, is_asked: bool) {
        let view = engine.view();
        let tree = view.tree();
        let at_rest = |vdev: &&Vdev| find::locate(&tree, vdev.guid).is_none();
        let spares = view.spares().iter().filter(at_rest);
        let all: Vec<Vdev> = view.l2cache().iter().chain(spares).cloned().collect();
        let is_here = |guid: &u64| all.iter().any(|vdev| vdev.guid == *guid);
        self.failed.retain(|guid, _| is_here(guid));
        self.left_alone.retain(|guid, _| is_here(guid));
        // Nobody waits for one that left the pool while it was away.
        self.parked.retain(|guid, _| is_here(guid));
        let looks: Vec<_> = all
            .iter()
            .map(|vdev| {
                let parked = self.parked.get(&vdev.guid).cloned();
                let is_due = is_asked || self.is_due(vdev);
                look_at(vdev.clone(), parked, opener.cloned(), view.guid(), is_due)
            })
            .collect();
        let found = futures_util::future::join_all(looks).await;
        for (vdev, found) in all.iter().zip(found) {
            let now = engine.view();
            let is_in = |list: &[Vdev]| list.iter().any(|listed| listed.guid == vdev.guid);
            let (is_cache, is_spare) = (is_in(now.l2cache()), is_in(now.spares()));
            // It may have stepped in meanwhile, or have left the pool.
            if (is_cache || is_spare) && find::locate(&now.tree(), vdev.guid).is_none() {
                self.note(engine, vdev, is_spare, opener.is_some(), found).await;
            }
        }
        engine.second().follow(|| engine.view());
        view.l2cache().iter().for_each(|vdev| tell_if_slow(engine, vdev));
    }

    /// Whether one is to be read from, or to be opened if it is away, although nobody asks.
    fn is_due(&self, vdev: &Vdev) -> bool {
        // What becomes of it is an administrator's to decide.
        let is_newer = vdev.leaf.as_ref().is_some_and(|leaf| leaf.condition.get().refused == Aux::NewerState);
        let until = self.left_alone.get(&vdev.guid);
        !is_newer
            && (self.failed.contains_key(&vdev.guid) || until.is_none_or(|until| *until <= Instant::now()))
    }

    async fn note(&mut self, engine: &Engine, vdev: &Vdev, is_spare: bool, can_open: bool, found: Found) {
        if !matches!(found, Found::Failing(_)) {
            self.failed.remove(&vdev.guid);
        }
        let pause = match &found {
            Found::Works | Found::Back(_) if is_spare => Some(REST),
            Found::Unfit => Some(PAUSE),
            _ => None,
        };
        if let Some(pause) = pause {
            self.left_alone.insert(vdev.guid, Instant::now() + pause);
        } else if !matches!(found, Found::Same) {
            self.left_alone.remove(&vdev.guid);
        }
        match found {
            Found::Same | Found::Works | Found::Unfit => {}
            Found::Gone => {
                self.let_go(vdev, can_open);
                change(engine, vdev, "it is gone", |now| (now.disk, now.removed) = (None, true));
            }
            // A cache device is left alone by who writes to it.
            Found::Failing(_) if !is_spare => {}
            Found::Failing(why) => {
                let failed = self.failed.entry(vdev.guid).or_default();
                *failed += 1;
                if *failed >= PROBES_FAILED {
                    self.let_go(vdev, can_open);
                    change(engine, vdev, &why, |now| (now.disk, now.refused) = (None, Aux::OpenFailed));
                }
            }
            Found::Back(disk) => {
                if is_spare {
                    make_spare(engine, vdev.guid, &disk).await;
                }
                self.parked.remove(&vdev.guid);
                change(engine, vdev, "it is back", |now| {
                    now.disk = Some(Arc::clone(&disk));
                    (now.refused, now.removed, now.not_present) = (Aux::None, false, false);
                });
            }
            Found::Other(aux, at) => {
                change(engine, vdev, "another device is there", |now| {
                    (now.refused, now.refused_at) = (aux, Some(at.clone()));
                });
            }
        }
    }

    /// An open block device keeps its name from whoever comes next; a file has it for good.
    fn let_go(&mut self, vdev: &Vdev, can_open: bool) {
        if !can_open || vdev.kind == Kind::File {
            let disk = vdev.leaf.as_ref().and_then(|leaf| leaf.disk());
            self.parked.extend(disk.map(|disk| (vdev.guid, disk)));
        }
    }
}

/// How a device is, or what is where it should be. `parked` is the disk that it was; `pool` the pool. One that is not due is
/// neither read from nor opened.
async fn look_at(
    vdev: Vdev,
    parked: Option<Arc<dyn Disk>>,
    opener: Option<Arc<dyn Opener>>,
    pool: u64,
    is_due: bool,
) -> Found {
    let Some(leaf) = &vdev.leaf else { return Found::Same };
    let standing = Arc::clone(&leaf.condition.get());
    if let Some(disk) = standing.timed() {
        let probed = if is_due { probe(disk).await } else { glance(disk).await };
        return match probed {
            Probed::Here if is_due => Found::Works,
            Probed::Here => Found::Same,
            Probed::Gone => Found::Gone,
            Probed::Failing(why) => Found::Failing(why),
            Probed::Silent => Found::Failing("it does not answer".to_owned()),
        };
    }
    // What it was given before it went may still land.
    if !is_due || standing.offline || standing.faulted || leaf.condition.deadline().owes_writes() {
        return Found::Same;
    }
    let is_parked_here = match &parked {
        Some(parked) => answers(parked).await,
        None => false,
    };
    let disk = match (parked.filter(|_| is_parked_here), opener) {
        (Some(parked), _) => Some(parked),
        (None, Some(opener)) => open(&*opener, &name(&vdev)).await,
        (None, None) => None,
    };
    let Some(disk) = disk else { return Found::Same };
    // Its labels may be readable where a probe fails, for which it would be let go again.
    if !is_parked_here && !answers(&disk).await {
        return Found::Unfit;
    }
    // The label of one at rest names no pool; that of a spare which was away when it went back to rest still has ours.
    match whose::identify(&disk, vdev.guid, &[0, pool], leaf.condition.newest()).await {
        Ok(_) => Found::Back(disk),
        Err(aux) => Found::Other(aux, disk.info().path),
    }
}

/// Changes how such a device is, and tells of it.
fn change(engine: &Engine, vdev: &Vdev, why: &str, how: impl Fn(&mut Standing)) {
    let Some(leaf) = &vdev.leaf else { return };
    let before = leaf.state();
    leaf.condition.update(how);
    let (to, aux) = leaf.state();
    if before == (to, aux) {
        return;
    }
    let device = name(vdev);
    tracing::warn!(device = device.name, state = to.word(aux), why, "a device beside the tree changed");
    engine.events().tell(Event::DeviceState { device, from: before.0, to, aux, why: why.to_owned() });
}

/// Tells of one that began to be slow, or is no longer. Its reads are the pool's most of the time.
fn tell_if_slow(engine: &Engine, vdev: &Vdev) {
    let (Some(leaf), slow) = (&vdev.leaf, engine.second().slow(vdev.guid)) else { return };
    let sits_out = slow.is_some();
    if leaf.condition.get().sits_out == sits_out {
        return;
    }
    leaf.condition.update(|now| now.sits_out = sits_out);
    let (device, (latency, peers)) = (name(vdev), slow.unwrap_or_default());
    if sits_out {
        tracing::warn!(device = device.name, ?latency, ?peers, "a slow cache device is left alone");
    }
    engine.events().tell(Event::Slow { device, latency, peers, sits_out });
}

/// What a person finds it by.
fn name(vdev: &Vdev) -> DeviceName {
    DeviceName { guid: vdev.guid, path: vdev.path.clone(), name: vdev.display_name(), parent: None }
}

/// Gives a spare the labels of one at rest, which it could not get while it was away: by those of a member nobody would find
/// it.
async fn make_spare(engine: &Engine, guid: u64, disk: &Arc<dyn Disk>) {
    let read = timeout(PROBE, Device::read(Arc::clone(disk))).await;
    let is_marked = matches!(&read, Ok(Ok(Some(device))) if device.guids() == Some((guid, 0)));
    if is_marked || disk.info().read_only {
        return;
    }
    let path = disk.info().path;
    let disk = Ours::over(Arc::clone(disk), engine.suspension());
    match timeout(PROBE, labels::initialize_auxiliary(&disk, guid, PoolState::Spare)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(path, %error, "not labelled as a spare"),
        Err(_) => tracing::warn!(path, "not labelled as a spare: the device does not answer"),
    }
}
