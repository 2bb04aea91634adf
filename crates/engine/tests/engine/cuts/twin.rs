//! What a history did, and what of it must be found after a cut at any place.
//!
//! A volume is a sequence of operations in the order they were issued. After a cut each of its blocks must be as it
//! was after some operation: not before the last that had to be durable, not after the last that was issued. A
//! rollback begins a new epoch: the volume is of one epoch as a whole. Snapshots are what they were when taken.
//!
//! Places are those of the tape: how many events there were when something was asked for, and when it was answered.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
};

use super::recorder::SECTOR;

/// What an import found.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// Hashes of the sectors of every volume and snapshot, by name.
    pub content: BTreeMap<String, Vec<u64>>,
    /// Log records that were replayed.
    pub replayed: u64,
}

/// Hashes of the sectors of some content.
pub fn sectors(content: &[u8]) -> Vec<u64> {
    let hash = |sector: &[u8]| {
        let mut hasher = DefaultHasher::new();
        sector.hash(&mut hasher);
        hasher.finish()
    };
    content.chunks(SECTOR as usize).map(hash).collect()
}

/// From the request to its answer, if it was answered.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub issued: usize,
    pub done: Option<usize>,
}

impl Span {
    fn begun(self, cut: usize) -> bool {
        self.issued <= cut
    }
    fn over(self, cut: usize) -> bool {
        self.done.is_some_and(|done| done <= cut)
    }
}

/// How a volume treats what must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    Standard,
    Always,
    Disabled,
}

/// One change of a volume.
#[derive(Clone, Debug)]
struct Op {
    /// First sector, and the hashes of what they hold afterwards.
    at: usize,
    after: Vec<u64>,
    span: Span,
    stable: bool,
    volume: usize,
    /// The place from which on it is durable.
    durable: Option<usize>,
}

impl Op {
    fn covers(&self, sectors: &Range<usize>) -> bool {
        self.at < sectors.end && sectors.start < self.at + self.after.len()
    }

    fn apply(&self, sectors: &Range<usize>, content: &mut [u64]) {
        for sector in sectors.start.max(self.at)..sectors.end.min(self.at + self.after.len()) {
            content[sector - sectors.start] = self.after[sector - self.at];
        }
    }
}

#[derive(Clone, Debug)]
struct Epoch {
    span: Span,
    base: Vec<u64>,
    ops: Vec<usize>,
    /// So many of the first operations were under way with the rollback: it may have come after them.
    optional: usize,
}

#[derive(Clone, Debug)]
struct Volume {
    name: String,
    /// Sectors of a block.
    block: usize,
    sync: Sync,
    created: Span,
    destroyed: Option<Span>,
    epochs: Vec<Epoch>,
}

#[derive(Clone, Debug)]
struct Snapshot {
    name: String,
    span: Span,
    destroyed: Option<Span>,
    content: Vec<u64>,
}

/// Everything acknowledged before `issued` is durable at `done`: of one volume, or of all.
#[derive(Clone, Copy, Debug)]
struct Barrier {
    volume: Option<usize>,
    span: Span,
}

/// The whole history.
#[derive(Clone, Debug, Default)]
pub struct Twin {
    ops: Vec<Op>,
    volumes: Vec<Volume>,
    snapshots: Vec<Snapshot>,
    barriers: Vec<Barrier>,
    /// Which operation wrote a sector with this hash, for whoever reads what went wrong.
    writers: BTreeMap<u64, String>,
}

impl Twin {
    /// A volume that holds `base` (hashes of sectors), asked for at `issued`.
    pub fn volume(&mut self, name: &str, block: u64, sync: Sync, base: Vec<u64>, created: Span) -> usize {
        let first = Epoch { span: created, base, ops: Vec::new(), optional: 0 };
        self.volumes.push(Volume {
            name: name.to_owned(),
            block: (block / SECTOR) as usize,
            sync,
            created,
            destroyed: None,
            epochs: vec![first],
        });
        self.volumes.len() - 1
    }

    /// A change is asked for: from byte `offset` on, sectors become `after`.
    pub fn issue(
        &mut self,
        volume: usize,
        offset: u64,
        after: Vec<u64>,
        stable: bool,
        position: usize,
    ) -> usize {
        let id = self.ops.len();
        for (sector, hash) in after.iter().enumerate() {
            self.writers.entry(*hash).or_insert_with(|| format!("{id}.{sector}"));
        }
        let Volume { sync, epochs, .. } = &mut self.volumes[volume];
        let stable = (stable && *sync != Sync::Disabled) || *sync == Sync::Always;
        let span = Span { issued: position, done: None };
        let at = (offset / SECTOR) as usize;
        self.ops.push(Op { at, after, span, stable, volume, durable: None });
        let count = epochs.len();
        epochs[count - 1].ops.push(id);
        if count > 1 && epochs[count - 1].span.done.is_none() {
            epochs[count - 1].optional += 1;
            epochs[count - 2].ops.push(id);
        }
        id
    }

    /// It was acknowledged.
    pub fn acknowledge(&mut self, op: usize, position: usize) {
        self.ops[op].span.done = Some(position);
    }

    /// A flush of a volume, or of everything, that returned. One of a volume that ignores flushes says nothing.
    pub fn barrier(&mut self, volume: Option<usize>, issued: usize, done: usize) {
        if volume.is_some_and(|volume| self.volumes[volume].sync == Sync::Disabled) {
            return;
        }
        self.barriers.push(Barrier { volume, span: Span { issued, done: Some(done) } });
    }

    /// A snapshot with this content, which must be one that the volume could have then.
    pub fn snapshot(
        &mut self,
        name: &str,
        volume: usize,
        content: Vec<u64>,
        span: Span,
    ) -> Result<(), String> {
        let done = span.done.unwrap_or(usize::MAX);
        let epoch = self.volumes[volume].epochs.len() - 1;
        let acknowledged = |op: &Op| op.span.over(span.issued);
        self.check_content(name, volume, epoch, done, &acknowledged, &content)?;
        self.snapshots.push(Snapshot { name: name.to_owned(), span, destroyed: None, content });
        Ok(())
    }

    /// What a snapshot holds.
    pub fn content(&self, snapshot: &str) -> Vec<u64> {
        self.snapshots.iter().find(|s| s.name == snapshot).map(|s| s.content.clone()).unwrap_or_default()
    }

    /// A rollback to this content is asked for.
    pub fn roll_back(&mut self, volume: usize, base: Vec<u64>, issued: usize) {
        let span = Span { issued, done: None };
        self.volumes[volume].epochs.push(Epoch { span, base, ops: Vec::new(), optional: 0 });
    }

    /// It returned.
    pub fn rolled_back(&mut self, volume: usize, done: usize) {
        if let Some(epoch) = self.volumes[volume].epochs.last_mut() {
            epoch.span.done = Some(done);
        }
    }

    /// A volume or snapshot was destroyed.
    pub fn destroyed(&mut self, name: &str, span: Span) {
        for volume in self.volumes.iter_mut().filter(|volume| volume.name == name) {
            volume.destroyed = Some(span);
        }
        for snapshot in self.snapshots.iter_mut().filter(|snapshot| snapshot.name == name) {
            snapshot.destroyed = Some(span);
        }
    }

    /// How a volume is treated from now on.
    pub fn set_sync(&mut self, volume: usize, sync: Sync) {
        self.volumes[volume].sync = sync;
    }

    /// How a volume is treated.
    pub fn sync(&self, volume: usize) -> Sync {
        self.volumes[volume].sync
    }

    /// The creation of a volume returned.
    pub fn created(&mut self, volume: usize, done: usize) {
        self.volumes[volume].created.done = Some(done);
        self.volumes[volume].epochs[0].span.done = Some(done);
    }

    /// The history is over: finds out from where on each operation was durable.
    pub fn settle(&mut self) {
        let barriers = &self.barriers;
        for op in &mut self.ops {
            let Some(done) = op.span.done else { continue };
            let covers = |barrier: &&Barrier| barrier.volume.is_none_or(|volume| volume == op.volume);
            let by_barrier = barriers.iter().filter(covers).filter(|b| done <= b.span.issued);
            let by_barrier = by_barrier.filter_map(|barrier| barrier.span.done).min();
            let alone = op.stable.then_some(done);
            op.durable = by_barrier.into_iter().chain(alone).min();
        }
    }

    /// Whether what was found after a cut may be.
    pub fn check(&self, cut: usize, Recovered { content: found, .. }: &Recovered) -> Result<(), String> {
        let mut known = 0;
        for (number, volume) in self.volumes.iter().enumerate() {
            let content = found.get(&volume.name);
            known += usize::from(content.is_some());
            exists(&volume.name, volume.created, volume.destroyed, cut, content.is_some())?;
            if let Some(content) = content {
                self.check_volume(number, cut, content)?;
            }
        }
        for snapshot in &self.snapshots {
            let content = found.get(&snapshot.name);
            known += usize::from(content.is_some());
            exists(&snapshot.name, snapshot.span, snapshot.destroyed, cut, content.is_some())?;
            if content.is_some_and(|content| *content != snapshot.content) {
                return Err(format!("snapshot {} has changed", snapshot.name));
            }
        }
        if known < found.len() {
            return Err(format!("nobody made all of these: {:?}", found.keys().collect::<Vec<_>>()));
        }
        Ok(())
    }

    fn check_volume(&self, number: usize, cut: usize, content: &[u64]) -> Result<(), String> {
        let Volume { name, epochs, .. } = &self.volumes[number];
        let mut why = format!("{name}: no epoch is possible");
        for (epoch, Epoch { span, .. }) in epochs.iter().enumerate() {
            let replaced = epochs.get(epoch + 1).is_some_and(|next| next.span.over(cut));
            if !span.begun(cut) || replaced {
                continue;
            }
            let durable = |op: &Op| op.durable.is_some_and(|durable| durable <= cut);
            match self.check_content(name, number, epoch, cut, &durable, content) {
                Ok(()) => return Ok(()),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Whether each block is as after one of the operations issued until `cut`, and not before the last that `must`
    /// be there.
    fn check_content(
        &self,
        name: &str,
        volume: usize,
        epoch: usize,
        cut: usize,
        must: &dyn Fn(&Op) -> bool,
        content: &[u64],
    ) -> Result<(), String> {
        let block = self.volumes[volume].block;
        let Epoch { base, ops, optional, .. } = &self.volumes[volume].epochs[epoch];
        if content.len() != base.len() {
            return Err(format!("{name}: {} sectors instead of {}", content.len(), base.len()));
        }
        for start in (0..base.len()).step_by(block) {
            let sectors = start..start + block;
            let found = &content[sectors.clone()];
            let mut legal = Vec::new();
            for skipped in 0..=*optional {
                let mut versions = vec![(None, base[sectors.clone()].to_vec())];
                let mut first = 0;
                let its = ops[skipped..].iter().enumerate();
                for (at, id) in
                    its.filter(|(_, id)| self.ops[**id].span.begun(cut) && self.ops[**id].covers(&sectors))
                {
                    let mut next = versions[versions.len() - 1].1.clone();
                    self.ops[*id].apply(&sectors, &mut next);
                    versions.push((Some(*id), next));
                    if skipped + at >= *optional && must(&self.ops[*id]) {
                        first = versions.len() - 1;
                    }
                }
                legal.extend(versions.drain(first..));
            }
            if legal.iter().any(|(_, version)| version[..] == *found) {
                continue;
            }
            let after: Vec<String> = legal
                .iter()
                .map(|(op, version)| format!("after {op:?}: {}", self.describe(version)))
                .collect();
            return Err(format!(
                "{name}, block {} (epoch {epoch}): found {}, legal are\n    {}",
                start / block,
                self.describe(found),
                after.join("\n    ")
            ));
        }
        Ok(())
    }

    /// Which operations wrote these sectors: `3.0` is the first sector of operation 3, `-` is what was there before.
    fn describe(&self, sectors: &[u64]) -> String {
        let who = |hash: &u64| self.writers.get(hash).map_or("-", String::as_str);
        sectors.iter().map(who).collect::<Vec<_>>().join(" ")
    }
}

fn exists(name: &str, made: Span, destroyed: Option<Span>, cut: usize, found: bool) -> Result<(), String> {
    let may = made.begun(cut) && !destroyed.is_some_and(|span| span.over(cut));
    let must = made.over(cut) && !destroyed.is_some_and(|span| span.begun(cut));
    match found {
        true if !may => Err(format!("{name} is there")),
        false if must => Err(format!("{name} is missing")),
        _ => Ok(()),
    }
}
