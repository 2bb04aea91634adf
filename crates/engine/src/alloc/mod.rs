//! Where blocks go: metaslabs, their free space, and the space maps that remember it.
//!
//! ```text
//!   allocate ─▶ place: device ▸ stream ▸ metaslab ▸ run        release ─▶ waits until three commits have passed
//!                         │                                         │
//!                     metaslab: units in use, units free (loaded by replaying the map, when needed)
//!                         │
//!   write_maps ─▶ maps: entries appended, or logs: one map for all   (what was both allocated and freed: nothing)
//! ```
//!
//! What a transaction group frees is free on disk at once, but its bytes are part of older uberblocks, so they are
//! handed out again only when the transaction group is durable, and two more: so long an import can go back.
//!
//! What the intent log will need is set aside in advance (`aside`), because it is written while this is busy.
//!
//! Owned by the syncing task: no locks. Facts: docs/format/spacemap.md, overview.md §6–7.

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use block::Quiet;
use ondisk::blkptr::Dva;
use pool::{
    Pool,
    dmu::ObjectSet,
    vdev::{Class, deadline},
};
use smallvec::SmallVec;

use self::place::Effort;
use crate::{EngineError, dmu::MutSet, policy::Traits, space::Deflate, suspend::Suspension, zil::LogSpace};

mod aside;
mod bits;
mod borrow;
mod footprint;
mod horizon;
mod leave;
mod load;
mod logs;
mod maps;
mod metaslab;
mod netting;
mod place;
mod ranges;
mod top;
mod units;

#[cfg(test)]
mod tests;

pub(crate) use bits::BitsMemory;
pub use borrow::Borrowed;
pub use footprint::Footprint;
pub use horizon::{Horizon, Pin, Releases};
pub use leave::Notice;

/// How long space is waited for that somebody reads before he is told: longer than a handful of transfers takes.
const PINNED: Duration = Duration::from_secs(5);

/// What a block is for; decides the class of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Content of volumes and files.
    Data,
    /// Everything else of the tree.
    Metadata,
    /// Blocks of the intent log.
    Log,
}

/// A top-level device without content, as created or added.
#[derive(Clone, Debug)]
pub struct NewTop {
    /// Its id.
    pub id: u64,
    /// log2 of its sector.
    pub ashift: u32,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of a metaslab.
    pub metaslab_shift: u32,
    /// Shape if it is a RAIDZ.
    pub raidz: Option<pool::vdev::raidz::Geometry>,
    /// Which allocations it is for.
    pub class: Class,
}

/// How full the pool is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Metaslabs of the devices that volume data may go to, deflated: what dataset sizes are measured against.
    pub capacity: u64,
    /// Allocated on them, deflated.
    pub allocated: u64,
    /// Allocatable now on them, raw: neither allocated nor waiting to be reusable. Space set aside for the intent
    /// log is: it is given up before anything fails.
    pub free_now: u64,
    /// Set aside on them for intent logs, deflated.
    pub aside: u64,
    /// Freed, and waiting for later transaction groups to be reusable, raw.
    pub deferred: u64,
    /// Allocated on devices for metadata and dedup tables, deflated: datasets use it, and it is not of the capacity.
    pub elsewhere: u64,
}

/// All free space of a pool.
#[derive(Debug)]
pub struct Allocator {
    traits: Traits,
    /// By id; none for ids without metaslabs.
    tops: Vec<Option<top::Top>>,
    /// By [`Class`].
    groups: [place::Group; 4],
    deflate: Deflate,
    txg: u64,
    /// Commits since the pool was opened.
    commits: u64,
    /// What was released before there had been so many is usable.
    matured: u64,
    committed: Option<Arc<ObjectSet>>,
    /// Maps have not been written in this transaction group.
    first: bool,
    /// Metaslabs loaded in this transaction group only to look whether to condense their maps, or to count their histograms.
    condense_loads: u32,
    /// Metaslabs whose histograms may be [doubtful](metaslab::Metaslab::is_doubtful): device, index.
    doubtful: BTreeSet<(usize, usize)>,
    /// What loaded metaslabs may take of memory.
    bits: Arc<BitsMemory>,
    /// Bytes of those that were loaded in this transaction group and had nothing.
    in_vain: u64,
    /// Metaslabs with changes that are not written: device, index.
    changed: Vec<(usize, usize)>,
    /// Why nothing may be written any more.
    poison: Option<EngineError>,
    /// Present on pools with log space maps.
    logs: Option<logs::Logs>,
    log_space: Arc<LogSpace>,
    horizon: Arc<Horizon>,
    returned: Arc<borrow::Returned>,
    /// Bytes of what may be promised, free of parity, that are [`Borrowed`].
    borrowed: u64,
    suspension: Arc<Suspension>,
    quiet: Quiet,
}

impl Drop for Allocator {
    fn drop(&mut self) {
        // Nobody is to wait for what will not come.
        self.log_space.close();
    }
}

impl Allocator {
    fn build(traits: Traits, tops: Vec<Option<top::Top>>, deflate: Deflate) -> Self {
        let mut this = Self {
            traits,
            tops,
            groups: Default::default(),
            deflate,
            txg: 0,
            commits: 0,
            matured: 0,
            committed: None,
            first: true,
            condense_loads: 0,
            doubtful: BTreeSet::new(),
            bits: Arc::default(),
            in_vain: 0,
            changed: Vec::new(),
            poison: None,
            logs: None,
            log_space: Arc::default(),
            horizon: Arc::default(),
            returned: Arc::default(),
            borrowed: 0,
            suspension: Arc::default(),
            quiet: Quiet::default(),
        };
        for top in this.tops.iter_mut().flatten() {
            top.used = top.metaslabs.iter().map(|metaslab| metaslab.used << top.ashift).sum();
        }
        this.regroup();
        this.renew_looks();
        this
    }

    /// The allocator of an open pool. Space maps are loaded when first needed.
    ///
    /// # Errors
    /// Metaslab arrays, headers or logs cannot be read, or make no sense.
    pub async fn open(view: &Pool, traits: Traits) -> Result<Self, EngineError> {
        let mut tops = Vec::new();
        for vdev in &view.tree().tops {
            let mut top = top::Top::of(vdev)?;
            if let Some(top) = &mut top {
                load::read_top(view, top).await?;
            }
            tops.push(top);
        }
        let logs = if view.is_active("com.delphix:log_spacemap") {
            Some(logs::Logs::open(view, &mut tops).await?)
        } else {
            None
        };
        let mut this = Self::build(traits, tops, Deflate::of(&view.tree()));
        this.doubt();
        this.logs = logs;
        this.committed = Some(view.mos().clone());
        Ok(this)
    }

    /// The allocator of a pool that is being created.
    #[must_use]
    pub fn create(traits: Traits, tops: &[NewTop]) -> Self {
        let mut this = Self::build(traits, Vec::new(), Deflate::default());
        tops.iter().for_each(|top| this.add(top));
        this
    }

    /// Takes a new top-level device into use.
    pub fn add(&mut self, new: &NewTop) {
        let top = top::Top::empty(new);
        let index = new.id as usize;
        // What a block takes at the device's first width, as everyone recomputes it.
        self.deflate.set(new.id, (128 << 10) / (top.asize(128 << 10) >> 9).max(1));
        while self.tops.len() <= index {
            self.tops.push(None);
        }
        self.tops[index] = Some(top);
        self.regroup();
        self.renew_looks();
    }

    /// Bytes for blocks that a device can have at most: more metaslabs of its size cannot be managed.
    #[must_use]
    pub fn limit(&self, vdev: u64) -> u64 {
        self.tops.get(vdev as usize).and_then(Option::as_ref).map_or(0, top::Top::limit)
    }

    /// A device has more bytes for blocks from now on, its [limit](Self::limit) at most, which become metaslabs. Nothing
    /// happens if there are not enough for another one.
    pub fn grow(&mut self, vdev: u64, asize: u64) {
        if let Some(Some(top)) = self.tops.get_mut(vdev as usize) {
            top.grow(asize);
        }
    }

    /// Other features are enabled.
    pub fn set_traits(&mut self, traits: Traits) {
        self.traits = traits;
    }

    /// Devices by class, for the rotors.
    fn regroup(&mut self) {
        for (class, group) in [Class::Normal, Class::Dedup, Class::Special, Class::Log].into_iter().zip(0..) {
            let member = |(index, top): (usize, &Option<top::Top>)| {
                top.as_ref().filter(|top| top.class == class && top.allocatable).map(|_| index)
            };
            let group: &mut place::Group = &mut self.groups[group];
            group.tops = self.tops.iter().enumerate().filter_map(member).collect();
        }
        let log = &self.groups[Class::Log as usize].tops;
        let ids: BTreeSet<u32> =
            log.iter().filter_map(|index| Some(self.tops[*index].as_ref()?.id as u32)).collect();
        self.log_space.set_log_devices(ids);
    }

    /// Deflate ratios of its devices.
    #[must_use]
    pub fn deflate(&self) -> &Deflate {
        &self.deflate
    }

    /// Devices that hold what datasets refer to, special ones included.
    fn data_tops(&self) -> impl Iterator<Item = &top::Top> {
        self.tops.iter().flatten().filter(|top| top.class != Class::Log)
    }

    /// Devices that data of volumes can be placed on now ([`Purpose::classes`]). What others have free is no room for
    /// it: whoever promised that would find none when it has to be written.
    fn room_tops(&self) -> impl Iterator<Item = &top::Top> {
        self.tops.iter().flatten().filter(|top| top.class == Class::Normal && top.allocatable)
    }

    /// Smallest stored size and greatest common divisor of stored sizes that waste nothing, over the devices for data, in
    /// bytes: sectors. (A RAIDZ allocates more than one for a sector; what it adds is not the block's.)
    #[must_use]
    pub fn granularity(&self) -> (u64, u64) {
        let sectors: Vec<u64> = self.data_tops().map(top::Top::sector).collect();
        let smallest = sectors.iter().copied().min().unwrap_or(512);
        (smallest, sectors.into_iter().reduce(gcd).unwrap_or(512))
    }

    /// Begins transaction group `txg`. Log devices that nobody wants to leave any more are used again. `committed` is the
    /// MOS of the last one, from which space maps are loaded; none while a pool is created. On pools with log space maps:
    /// flushes what is unflushed, starts the log of `txg`, drops older ones (docs/format/spacemap.md §6, the "simplest"
    /// policy). Counts some of the histograms that were guessed for too long.
    ///
    /// # Errors
    /// A map cannot be read or written.
    pub async fn begin(
        &mut self,
        txg: u64,
        committed: Option<Arc<ObjectSet>>,
        mos: &mut MutSet,
    ) -> Result<(), EngineError> {
        self.txg = txg;
        self.first = true;
        self.condense_loads = 0;
        self.in_vain = 0;
        self.reclaim();
        self.reinstate_unwanted();
        if let Some(committed) = committed {
            for metaslab in self.tops.iter_mut().flatten().flat_map(|top| &mut top.metaslabs) {
                metaslab.flushed = Vec::new();
                metaslab.fresh = metaslab.object == 0;
            }
            self.committed = Some(committed);
            self.unload();
        }
        self.begin_log(mos).await?;
        self.recount(mos).await
    }

    /// Places for a block of `psize` stored bytes: one DVA per copy, spread over devices, or far apart.
    /// Fewer copies than asked for (but at least one) if there is no room for all.
    ///
    /// What can be put in pieces (of [`granularity`](Self::granularity)) is refused although there may be room, as long as
    /// enough is free for those: if some copies have none, the search keeps the transaction group waiting for too long, or
    /// what there is is held back for somebody who reads it.
    ///
    /// # Errors
    /// No room for a single copy, or a space map that was needed cannot be read. The pool was given up while space was
    /// waited for that somebody still reads.
    pub async fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        purpose: Purpose,
    ) -> Result<SmallVec<[Dva; 3]>, EngineError> {
        if self.log_space.is_wanted() {
            self.restock().await;
        }
        let mut found = SmallVec::new();
        let copies = usize::from(copies.clamp(1, 3));
        let has_no_pieces = purpose == Purpose::Log || self.data_tops().all(|top| psize <= top.sector());
        let effort = if has_no_pieces { Effort::Utmost } else { Effort::Moderate };
        self.place_copies(psize, copies, purpose, effort, &mut found).await?;
        if found.len() < copies && (self.reclaim() | self.take_back()) {
            self.place_copies(psize, copies, purpose, effort, &mut found).await?;
        }
        // At the price of uberblocks to go back to.
        if found.len() < copies && self.mature(self.commits) {
            self.place_copies(psize, copies, purpose, effort, &mut found).await?;
        }
        if found.len() < copies {
            if has_no_pieces || self.is_scarce(psize, purpose) {
                if self.hurry().await? || effort != Effort::Utmost {
                    self.place_copies(psize, copies, purpose, Effort::Utmost, &mut found).await?;
                }
            } else {
                // Its pieces have as many copies as it was to have.
                found.drain(..).try_for_each(|dva| self.put_back(dva))?;
            }
        }
        if found.is_empty() { Err(EngineError::NoSpace { psize }) } else { Ok(found) }
    }

    /// Marks an extent as allocated that no space map knows of: a block of the intent log found after a crash.
    ///
    /// # Errors
    /// It is in use already, or lies nowhere.
    pub async fn claim(&mut self, dva: Dva) -> Result<(), EngineError> {
        let number = dva.vdev as usize;
        let place =
            self.tops.get(number).and_then(Option::as_ref).and_then(|t| t.locate(dva.offset, dva.asize));
        let Some((index, units)) = place else {
            return Err(EngineError::Unsupported(format!("cannot claim {dva:?}: there is no such place")));
        };
        self.load(number, index).await?;
        let Some(top) = &mut self.tops[number] else { return Ok(()) };
        let metaslab = &mut top.metaslabs[index];
        let is_free = metaslab.loaded.as_ref().is_some_and(|loaded| loaded.free.contains(units.clone()));
        if !is_free || metaslab.take(units).is_err() {
            let detail = format!("cannot claim {dva:?}: it is in use");
            return Err(EngineError::SpaceMap { vdev: top.id, metaslab: index as u64, detail });
        }
        top.used += dva.asize;
        if !std::mem::replace(&mut metaslab.listed, true) {
            self.changed.push((number, index));
        }
        Ok(())
    }

    /// Takes back one extent (a DVA that is no gang: offset and asize as allocated). If it was allocated in this
    /// transaction group, the two cancel out; else it is free on disk from this one on. In memory it is
    /// free after the defer period.
    ///
    /// What was not allocated cannot be released: that is a contradiction between the pool's trees and its space
    /// maps. It is logged, and [`write_maps`](Self::write_maps) fails from then on.
    pub fn release(&mut self, dva: Dva) {
        let number = dva.vdev as usize;
        let Some(top) = self.tops.get_mut(number).and_then(Option::as_mut) else {
            let why = format!("cannot free {dva:?}: its device was removed from the pool");
            self.fail(EngineError::Unsupported(why));
            return;
        };
        let Some((index, units)) = top.locate(dva.offset, dva.asize) else {
            let metaslab = dva.offset >> top.shift;
            let detail = format!("cannot free {dva:?}: no block can lie there");
            self.fail(EngineError::SpaceMap { vdev: dva.vdev.into(), metaslab, detail });
            return;
        };
        let metaslab = &mut top.metaslabs[index];
        if metaslab.give(units).is_err() {
            let detail = format!("cannot free {dva:?}: it is not in use");
            self.fail(EngineError::SpaceMap { vdev: dva.vdev.into(), metaslab: index as u64, detail });
            return;
        }
        self.horizon.released(&dva);
        metaslab.last_use = self.txg;
        top.used -= dva.asize;
        top.waiting += dva.asize;
        if !std::mem::replace(&mut metaslab.listed, true) {
            self.changed.push((number, index));
        }
    }

    /// The transaction group is durable: deferred frees age.
    pub fn committed(&mut self) {
        self.commits += 1;
        self.horizon.committed(self.txg, self.commits);
        self.mature((self.commits + 1).saturating_sub(metaslab::DEFER));
        self.renew_looks();
        self.log_space.committed();
    }

    /// Makes usable what was released before there had been `before` commits, as far as nobody may still read it. True
    /// if there was any.
    fn mature(&mut self, before: u64) -> bool {
        let before = self.horizon.grant(before);
        // What was released since then waits since a later commit.
        if before <= self.matured {
            return false;
        }
        self.matured = before;
        let mut wrong = None;
        let mut any = false;
        for top in self.tops.iter_mut().flatten() {
            for (index, metaslab) in top.metaslabs.iter_mut().enumerate() {
                if metaslab.waiting.is_empty() {
                    continue;
                }
                match metaslab.mature(before) {
                    Ok(units) => {
                        any |= units > 0;
                        top.waiting -= units << top.ashift;
                    }
                    Err(units::Clash) => {
                        let detail = "space that waits to be free is free already".to_owned();
                        wrong = Some(EngineError::SpaceMap { vdev: top.id, metaslab: index as u64, detail });
                    }
                }
            }
        }
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
        any
    }

    /// There is no other space: what was released in transaction groups that are durable can be used whoever reads it. True
    /// if there was any. Those who walk old states begin again, and whoever only reads lets go of it after a while. If whoever
    /// reads or repairs what was there does not come to an end, as its device does not answer, the pool is suspended meanwhile.
    async fn hurry(&mut self) -> Result<bool, EngineError> {
        let commits = self.commits;
        let is_held = |metaslab: &metaslab::Metaslab| {
            metaslab.waiting.front().is_some_and(|(since, _)| *since < commits)
        };
        // Or nobody has to lose what he did.
        if !self.tops.iter().flatten().flat_map(|top| &top.metaslabs).any(is_held) {
            return Ok(false);
        }
        self.horizon.give_way();
        let (horizon, suspension) = (Arc::clone(&self.horizon), Arc::clone(&self.suspension));
        let mut unpinned = pin!(horizon.unpinned());
        loop {
            let before = suspension.before();
            if deadline::within(&mut unpinned, PINNED).await.is_some() {
                break;
            }
            horizon.demand();
            if deadline::within(&mut unpinned, deadline::WRITE).await.is_some() {
                break;
            }
            let why =
                EngineError::Device("devices do not answer, and what they are read for is needed".into());
            tokio::select! {
                biased;
                () = &mut unpinned => break,
                again = suspension.wait(before, why) => again?,
            }
        }
        Ok(self.mature(self.commits))
    }

    /// Who waits when space cannot be had for now.
    pub fn wait_through(&mut self, suspension: Arc<Suspension>) {
        self.suspension = suspension;
    }

    /// Who holds released space back.
    #[must_use]
    pub fn horizon(&self) -> &Arc<Horizon> {
        &self.horizon
    }

    /// What the bits of its loaded metaslabs take of memory, and may.
    pub(crate) fn bits(&self) -> &Arc<BitsMemory> {
        &self.bits
    }

    /// Bytes in use on all devices, parity included.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.tops.iter().flatten().map(|top| top.used).sum()
    }

    /// Remembers that nothing may be written any more.
    fn fail(&mut self, error: EngineError) -> EngineError {
        if self.poison.is_none() {
            tracing::error!(%error, "space maps and trees contradict each other; nothing more is written");
        }
        self.poison.get_or_insert(error).clone()
    }

    /// How full it is.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for top in self.room_tops() {
            totals.capacity += self.deflate.bytes(top.id, top.capacity());
            totals.allocated += self.deflate.bytes(top.id, top.used);
            totals.aside += self.deflate.bytes(top.id, top.aside);
            totals.free_now += top.free() + top.aside;
            totals.deferred += top.waiting;
        }
        for top in self.data_tops().filter(|top| top.class != Class::Normal) {
            totals.elsewhere += self.deflate.bytes(top.id, top.used);
        }
        totals
    }

    /// Metaslab array objects by top-level id, for the configuration: (id, object). Changes make it dirty.
    #[must_use]
    pub fn arrays(&self) -> Vec<(u64, u64)> {
        self.tops.iter().flatten().map(|top| (top.id, top.array)).collect()
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
