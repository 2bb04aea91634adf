//! From what was warm to what is read: names become places, of the last committed state, in the order of the devices.
//!
//! Level by level, from the top: the indirect blocks of a level are read in order before those below them are looked
//! for, so that finding a million blocks takes no million waits. Of data as many are planned at a time as memory for
//! their places is set aside; that is more than fit into the cache.

use std::{collections::BTreeMap, sync::Arc};

use ondisk::blkptr::BlkPtr;
use pool::{
    Bookmark, Pool,
    dmu::{Cursor, Object, Step},
};

use super::{
    heat::{Heat, STRETCH, Stretch},
    run::Job,
};
use crate::{engine::content, second};

/// A block to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Want {
    /// Top-level device of its first copy.
    pub(super) vdev: u32,
    /// Where it is there.
    pub(super) offset: u64,
    pub(super) volume: u64,
    pub(super) blkid: u64,
    pub(super) bytes: u32,
    pub(super) level: u8,
}

/// What is read in one go over the pool, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Indirect blocks of this level, into memory.
    Level(u8),
    /// Data that was in memory.
    Memory,
    /// Of that, what was used more than once.
    Frequent,
    /// What was on cache devices only.
    Device,
}

impl Pass {
    fn bits(self, stretch: &Stretch) -> u64 {
        match self {
            Self::Level(_) => stretch.memory | stretch.device,
            Self::Memory => stretch.memory,
            Self::Frequent => stretch.frequent & stretch.memory,
            Self::Device => stretch.device & !stretch.memory,
        }
    }
}

/// Where the plan of a pass goes on: volume and stretch.
pub(super) type Position = (u64, u64);

/// The data objects of volumes in one committed state.
pub(super) struct Objects {
    pub(super) view: Arc<Pool>,
    open: BTreeMap<u64, Option<Object>>,
}

impl Objects {
    pub(super) fn of(view: Arc<Pool>) -> Self {
        Self { view, open: BTreeMap::new() }
    }

    /// None if there is no such volume (any more), or it cannot be read.
    pub(super) async fn get(&mut self, volume: u64) -> Option<&Object> {
        if !self.open.contains_key(&volume) {
            let found = content(&self.view, volume).await.ok().map(|(object, _)| object);
            self.open.insert(volume, found);
        }
        self.open.get(&volume)?.as_ref()
    }
}

/// The pointer of a block, if it is one that lies on a device.
pub(super) async fn find(object: &Object, cursor: &mut Cursor, level: u8, blkid: u64) -> Option<BlkPtr> {
    match object.seek(cursor, level, blkid).await {
        Ok(Step::Block(bp)) if !bp.is_hole() && !bp.is_embedded() && !bp.is_encrypted() => Some(bp),
        _ => None,
    }
}

impl Job {
    /// What is to be read in a pass from `from` on, at most `most` blocks, in the order of the devices; and where it goes
    /// on. None: nowhere.
    pub(super) async fn plan(
        &self,
        heat: &Heat,
        pass: Pass,
        from: Position,
        most: usize,
    ) -> Option<(Vec<Want>, Option<Position>)> {
        let mut objects = Objects::of(self.view()?);
        let mut wants = Vec::new();
        let mut next = None;
        'volumes: for (volume, stretches) in heat.volumes() {
            if volume < from.0 {
                continue;
            }
            let first = if volume == from.0 { from.1 } else { 0 };
            let io = Arc::clone(objects.view.io());
            let Some(object) = objects.get(volume).await else {
                // Nothing of a volume that is gone need be read.
                let gone = stretches.range(first..).map(|(_, stretch)| pass.bits(stretch).count_ones());
                self.passed(pass, gone.map(u64::from).sum());
                continue;
            };
            let levels = object.levels();
            if matches!(pass, Pass::Level(level) if level >= levels) {
                continue;
            }
            let mut cursor = Cursor::default();
            let mut last = None;
            for (number, stretch) in stretches.range(first..) {
                if wants.len() + STRETCH as usize > most.max(STRETCH as usize) {
                    next = Some((volume, *number));
                    break 'volumes;
                }
                let (level, bits) = match pass {
                    Pass::Level(level) => (level, u64::from(pass.bits(stretch) != 0)),
                    _ => (0, pass.bits(stretch)),
                };
                for bit in (0..STRETCH).filter(|bit| bits >> bit & 1 == 1) {
                    let below = number.saturating_mul(STRETCH).saturating_add(bit);
                    let blkid = object.fanout().ancestor(below, level);
                    if level > 0 && last == Some(blkid) {
                        continue;
                    }
                    last = Some(blkid);
                    let found = find(object, &mut cursor, level, blkid).await;
                    let place = found.and_then(|bp| Some((bp, bp.dvas().next()?)));
                    let is_wanted = |bp: &BlkPtr| {
                        let on_device = || second::key(bp).is_some_and(|key| self.l2().holds(&key));
                        io.warmth(bp).is_none() && !(pass == Pass::Device && on_device())
                    };
                    match place {
                        Some((bp, dva)) if is_wanted(&bp) => wants.push(Want {
                            vdev: dva.vdev,
                            offset: dva.offset,
                            volume,
                            blkid,
                            bytes: bp.psize() as u32,
                            level,
                        }),
                        _ if level == 0 => self.passed(pass, 1),
                        _ => {}
                    }
                }
                tokio::task::consume_budget().await;
            }
        }
        wants.sort_unstable();
        Some((wants, next))
    }

    /// The pointers of now to what is wanted, in the order of the devices.
    pub(super) async fn resolve(&self, objects: &mut Objects, wants: &[Want]) -> Vec<(BlkPtr, Bookmark)> {
        let mut order: Vec<&Want> = wants.iter().collect();
        order.sort_unstable_by_key(|want| (want.volume, want.level, want.blkid));
        let mut found = Vec::with_capacity(order.len());
        let mut at = None;
        let mut cursor = Cursor::default();
        for want in order {
            let Some(object) = objects.get(want.volume).await else { continue };
            if at.replace(want.volume) != Some(want.volume) {
                cursor = Cursor::default();
            }
            if let Some(bp) = find(object, &mut cursor, want.level, want.blkid).await {
                found.push((bp, object.bookmark(want.level, want.blkid)));
            }
        }
        found.sort_by_key(|(bp, _)| bp.dvas().next().map(|dva| (dva.vdev, dva.offset)));
        found
    }
}
