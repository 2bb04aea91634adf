//! An allocator through many transaction groups, beside a model that knows who owns each unit.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ondisk::{
    Order,
    blkptr::Dva,
    spacemap::{self, Encoder, Kind, MapEntry},
};
use pool::vdev::{Class, raidz::Geometry};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::timeout;

use super::{
    super::{Allocator, NewTop, Pin, Purpose, ranges::Change},
    pools::new_mos,
};
use crate::{EngineError, policy::TRAITS, suspend::Suspension};

const MIB: u64 = 1 << 20;

pub(super) fn top(id: u64, asize: u64, metaslab_shift: u32) -> NewTop {
    NewTop { id, ashift: 12, asize, metaslab_shift, raidz: None, class: Class::Normal }
}

pub(super) fn raidz(id: u64, asize: u64, children: usize, parity: usize) -> NewTop {
    let geometry = Geometry { children, parity, ashift: 12, expand_txgs: Vec::new(), reflow: None };
    NewTop { raidz: Some(geometry), ..top(id, asize, 24) }
}

/// What the maps of a pool say: entries as bytes, by device and metaslab.
#[derive(Clone, Default)]
pub(super) struct Maps(BTreeMap<(usize, usize), Vec<u8>>);

impl Maps {
    fn append(&mut self, number: usize, index: usize, changes: &[Change]) {
        let bytes = self.0.entry((number, index)).or_default();
        let mut encoder = Encoder::new(bytes.len() as u64, 16 << 10, Order::Little).unwrap();
        for change in changes {
            encoder.segment(change.kind, change.units.clone(), spacemap::Encoding::Shortest).unwrap();
        }
        bytes.extend(encoder.finish());
    }

    /// Units in use by replay, which must not contradict itself.
    pub(super) fn replay(&self, number: usize, index: usize, len: u64) -> Vec<bool> {
        let mut used = vec![false; len as usize];
        for entry in spacemap::entries(self.0.get(&(number, index)).map_or(&[], Vec::as_slice), Order::Little)
        {
            let MapEntry::Segment(segment) = entry.unwrap() else { continue };
            for unit in segment.offset..segment.offset + segment.run {
                let allocates = segment.kind == Kind::Alloc;
                assert_ne!(used[unit as usize], allocates, "unit {unit} of metaslab {index}: {segment:?}");
                used[unit as usize] = allocates;
            }
        }
        used
    }
}

/// An allocator, the maps it wrote, and who owns what.
pub(super) struct Lake {
    pub(super) alloc: Allocator,
    pub(super) maps: Maps,
    /// By device and offset.
    pub(super) owned: BTreeMap<(u32, u64), Dva>,
    /// Freed, with the number of commits there had been.
    pub(super) freed: Vec<(u64, Dva)>,
    pub(super) commits: u64,
}

impl Lake {
    pub(super) fn new(tops: &[NewTop]) -> Self {
        let alloc = Allocator::create(TRAITS, tops);
        let (owned, freed) = (BTreeMap::new(), Vec::new());
        Self { alloc, maps: Maps::default(), owned, freed, commits: 0 }
    }

    pub(super) async fn allocate(
        &mut self,
        psize: u64,
        copies: u8,
        purpose: Purpose,
    ) -> Result<Vec<Dva>, EngineError> {
        let waiting = self.waiting();
        let found = self.alloc.allocate(psize, copies, purpose).await;
        // Short of space, it may take what is only one commit old.
        if self.waiting() < waiting {
            self.freed.retain(|(since, _)| *since == self.commits);
        }
        let found = found?;
        found.iter().for_each(|dva| self.own(*dva));
        Ok(found.to_vec())
    }

    /// Somebody got this place: it must not be anybody else's, nor have been lately.
    pub(super) fn own(&mut self, dva: Dva) {
        let end = dva.offset + dva.asize;
        let metaslab = |offset: u64| offset >> self.alloc.tops[dva.vdev as usize].as_ref().unwrap().shift;
        assert_eq!(metaslab(dva.offset), metaslab(end - 1), "{dva:?} crosses a border");
        assert!(dva.offset.is_multiple_of(4096));
        let before = self.owned.range(..(dva.vdev, end)).next_back();
        assert!(
            before.is_none_or(|(_, o)| o.vdev != dva.vdev || o.offset + o.asize <= dva.offset),
            "{dva:?} overlaps {before:?}"
        );
        for (since, old) in &self.freed {
            let overlaps = old.vdev == dva.vdev && old.offset < end && dva.offset < old.offset + old.asize;
            assert!(!overlaps || self.commits >= since + 3, "{dva:?} handed out too early");
        }
        self.owned.insert((dva.vdev, dva.offset), dva);
    }

    pub(super) fn waiting(&self) -> u64 {
        self.alloc.tops.iter().flatten().map(|top| top.waiting).sum()
    }

    pub(super) fn release(&mut self, dva: Dva) {
        assert!(self.owned.remove(&(dva.vdev, dva.offset)).is_some());
        self.freed.push((self.commits, dva));
        self.alloc.release(dva);
    }

    /// One round of writing maps.
    pub(super) fn write_maps(&mut self) {
        for (number, index, changes) in self.alloc.drain().unwrap() {
            self.maps.append(number, index, &changes);
            let top = self.alloc.tops[number].as_mut().unwrap();
            top.metaslabs[index].flushed.extend(changes);
        }
    }

    pub(super) fn commit(&mut self) {
        self.write_maps();
        self.alloc.committed();
        self.commits += 1;
        self.freed.retain(|(since, _)| since + 3 > self.commits);
        assert!(self.alloc.poison.is_none());
    }

    /// Maps, memory and owners agree.
    pub(super) fn check(&mut self) {
        let mut used = 0;
        for (number, top) in self.alloc.tops.iter().enumerate() {
            let top = top.as_ref().unwrap();
            for (index, metaslab) in top.metaslabs.iter().enumerate() {
                let replayed = self.maps.replay(number, index, metaslab.len);
                let count = replayed.iter().filter(|used| **used).count() as u64;
                assert_eq!(metaslab.used, count);
                used += count << top.ashift;
                if let Some(loaded) = &metaslab.loaded {
                    for (unit, is_used) in replayed.iter().enumerate() {
                        let unit = unit as u64..unit as u64 + 1;
                        assert_eq!(loaded.used.contains(unit.clone()), *is_used);
                        assert!(!is_used || !loaded.free.contains(unit));
                    }
                    assert_eq!(loaded.free.count(), metaslab.free_units());
                }
            }
        }
        assert_eq!(used, self.owned.values().map(|dva| dva.asize).sum::<u64>());
        let totals = self.alloc.totals();
        let data = || self.alloc.tops.iter().flatten().filter(|top| top.class != Class::Log);
        let capacity: u64 = data().map(|top| top.capacity()).sum();
        let used: u64 = data().map(|top| top.used).sum();
        assert_eq!(totals.free_now + totals.deferred + used, capacity);
    }

    /// Forgets all bits, and makes them again from what was written.
    pub(super) async fn reload(&mut self) {
        for number in 0..self.alloc.tops.len() {
            for index in 0..self.alloc.tops[number].as_ref().unwrap().metaslabs.len() {
                self.alloc.tops[number].as_mut().unwrap().metaslabs[index].loaded = None;
                self.alloc.load(number, index).await.unwrap();
            }
        }
    }
}

async fn random_life(seed: u64, tops: &[NewTop], txgs: u32, fill: f64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut lake = Lake::new(tops);
    let mut blocks: Vec<Vec<Dva>> = Vec::new();
    let capacity: u64 = lake.alloc.tops.iter().flatten().map(|top| top.capacity()).sum();
    for txg in 0..txgs {
        for _ in 0..random.random_range(0..120) {
            let used: u64 = lake.alloc.tops.iter().flatten().map(|top| top.used).sum();
            let grow = (used as f64) < capacity as f64 * fill;
            if random.random_bool(if grow { 0.7 } else { 0.3 }) || blocks.is_empty() {
                let psize = *[512, 4096, 8192, 5000, 16384, 70_000, 131_072, MIB]
                    .get(random.random_range(0..8))
                    .unwrap();
                let purpose = if random.random_bool(0.3) { Purpose::Metadata } else { Purpose::Data };
                let copies = if purpose == Purpose::Metadata { random.random_range(1..=3) } else { 1 };
                match lake.allocate(psize, copies, purpose).await {
                    Ok(found) => blocks.push(found),
                    Err(EngineError::NoSpace { .. }) => {
                        assert!(fill > 0.9 || psize == MIB, "no space for {psize} at {used} of {capacity}")
                    }
                    Err(error) => panic!("{error}"),
                }
            } else {
                let block = blocks.swap_remove(random.random_range(0..blocks.len()));
                block.into_iter().for_each(|dva| lake.release(dva));
            }
            if random.random_bool(0.02) {
                lake.write_maps();
            }
        }
        lake.commit();
        if txg % 10 == 9 {
            lake.check();
        }
        if txg % 25 == 24 {
            lake.reload().await;
            lake.check();
        }
    }
    lake.reload().await;
    lake.check();
}

#[tokio::test]
async fn owners_maps_and_memory_agree_through_many_transaction_groups() {
    for seed in 0..8 {
        random_life(seed, &[top(0, 200 * MIB, 24)], 100, 0.6).await;
        random_life(seed, &[top(0, 100 * MIB, 24), top(1, 64 * MIB, 24), top(2, 80 * MIB, 25)], 100, 0.7)
            .await;
        random_life(seed, &[raidz(0, 120 * MIB, 5, 2), top(1, 64 * MIB, 24)], 100, 0.6).await;
    }
}

#[tokio::test]
async fn a_full_pool_says_so_and_recovers() {
    for seed in 100..106 {
        random_life(seed, &[top(0, 40 * MIB, 24)], 120, 2.0).await;
        random_life(seed, &[raidz(0, 40 * MIB, 3, 1), top(1, 33 * MIB, 24)], 120, 2.0).await;
    }
}

/// A device whose whole space was released, and is held back by a pin; and who suspends the pool if that is waited for in vain.
async fn held_back() -> (Lake, Pin, Arc<Suspension>) {
    let suspension = Arc::<Suspension>::default();
    suspension.begin(Box::new(|_| {}), Box::new(|| {}), Arc::default());
    let mut lake = Lake::new(&[top(0, 16 * MIB, 22)]);
    lake.alloc.wait_through(Arc::clone(&suspension));
    let mut all = Vec::new();
    while let Ok(found) = lake.allocate(64 << 10, 1, Purpose::Data).await {
        all.extend(found);
    }
    lake.commit();
    let pin = lake.alloc.horizon().pin();
    all.into_iter().for_each(|dva| lake.release(dva));
    lake.commit();
    (lake, pin, suspension)
}

/// Somebody repairs a block from a device that does not answer, and holds back what is needed to write anything.
#[tokio::test(start_paused = true)]
async fn whoever_holds_back_the_last_space_suspends_the_pool_until_he_lets_go() {
    for is_given_up in [false, true] {
        let (mut lake, pin, suspension) = held_back().await;
        let mut allocating = Box::pin(lake.alloc.allocate(64 << 10, 1, Purpose::Data));
        let told = timeout(Duration::from_secs(3600), async {
            tokio::select! {
                biased;
                found = &mut allocating => panic!("{found:?}"),
                why = suspension.suspended() => why,
            }
        });
        told.await.expect("nobody waits for ever without a word");
        if is_given_up {
            suspension.give_up();
            assert!(matches!(allocating.await, Err(EngineError::Suspended(_))));
        } else {
            drop(pin);
            assert_eq!(allocating.await.unwrap().len(), 1, "nobody has to clear it");
        }
    }
}

/// A scan of a slow device was waited for as long as it took to read a whole batch, and after a minute the pool was
/// suspended although its other devices were well.
#[tokio::test(start_paused = true)]
async fn who_only_reads_what_is_waited_for_is_told_and_lets_go() {
    let (mut lake, pin, suspension) = held_back().await;
    tokio::spawn(async move {
        pin.wanted().await;
        drop(pin);
    });
    let begun = tokio::time::Instant::now();
    let found = tokio::select! {
        biased;
        found = lake.alloc.allocate(64 << 10, 1, Purpose::Data) => found,
        why = suspension.suspended() => panic!("{why}"),
    };
    assert_eq!(found.unwrap().len(), 1);
    let took = begun.elapsed();
    assert!((Duration::from_secs(1)..Duration::from_secs(30)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_stream_of_data_is_contiguous_whatever_metadata_comes_between() {
    let mut lake = Lake::new(&[top(0, 4096 * MIB, 28)]);
    let (mut breaks, mut last) = (0, 0);
    for _ in 0..2000 {
        let data = lake.allocate(131_072, 1, Purpose::Data).await.unwrap()[0];
        lake.allocate(4096, 3, Purpose::Metadata).await.unwrap();
        breaks += u32::from(data.offset != last);
        last = data.offset + data.asize;
    }
    assert!(breaks <= 2, "{breaks} breaks in 250 MiB");
    let touched = lake.alloc.changed.len();
    assert!(touched <= 5, "{touched} metaslabs touched");
}

#[tokio::test]
async fn copies_are_on_other_devices_or_far_apart() {
    let mut one = Lake::new(&[top(0, 1024 * MIB, 26)]);
    let mut tiny = Lake::new(&[top(0, 20 * MIB, 24)]);
    let mut three = Lake::new(&[top(0, 512 * MIB, 25), top(1, 512 * MIB, 25), top(2, 512 * MIB, 25)]);
    for _ in 0..500 {
        let dvas = one.allocate(8192, 3, Purpose::Metadata).await.unwrap();
        assert_eq!(dvas.len(), 3);
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            assert!(dvas[a].offset.abs_diff(dvas[b].offset) >= 128 * MIB, "{dvas:?}");
        }
        let dvas = tiny.allocate(8192, 3, Purpose::Metadata).await.unwrap();
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            assert!(dvas[a].offset.abs_diff(dvas[b].offset) >= 2 * MIB, "{dvas:?}");
        }
        let mut vdevs: Vec<u32> =
            three.allocate(8192, 3, Purpose::Metadata).await.unwrap().iter().map(|dva| dva.vdev).collect();
        vdevs.sort_unstable();
        assert_eq!(vdevs, [0, 1, 2]);
    }
}

#[tokio::test]
async fn equal_devices_fill_equally_and_an_empty_one_catches_up() {
    let tops: Vec<NewTop> = (0..4).map(|id| top(id, 2048 * MIB, 26)).collect();
    let mut lake = Lake::new(&tops);
    for _ in 0..8000 {
        lake.allocate(131_072, 1, Purpose::Data).await.unwrap();
        lake.allocate(4096, 2, Purpose::Metadata).await.unwrap();
    }
    let used: Vec<u64> = lake.alloc.tops.iter().flatten().map(|top| top.used).collect();
    let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
    assert!(most * 100 <= least * 103, "{used:?}");
    lake.alloc.add(&top(4, 2048 * MIB, 26));
    for _ in 0..8000 {
        lake.allocate(131_072, 1, Purpose::Data).await.unwrap();
    }
    let more: Vec<u64> = lake.alloc.tops.iter().flatten().map(|top| top.used).collect();
    assert!(more[4] > more[0] - used[0], "the new one gets more than the others: {used:?} {more:?}");
}

/// Every other unit of 16 metaslabs is free, nothing is loaded, and there is memory for the bits of four. The units in use.
async fn fragmented() -> (Lake, Vec<Dva>) {
    let mut lake = Lake::new(&[top(0, 64 * MIB, 22)]);
    let mut blocks = Vec::new();
    while let Ok(found) = lake.allocate(4096, 1, Purpose::Data).await {
        blocks.extend(found);
    }
    lake.commit();
    blocks.sort_by_key(|dva| dva.offset);
    let (freed, kept): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|dva| dva.offset.is_multiple_of(8192));
    freed.into_iter().for_each(|dva| lake.release(dva));
    (0..4).for_each(|_| lake.commit());
    let top = lake.alloc.tops[0].as_mut().unwrap();
    top.lanes = Default::default();
    top.metaslabs.iter_mut().for_each(|metaslab| metaslab.loaded = None);
    // A page each, and its bits, in both sets.
    lake.alloc.bits.set_most(4 * 2 * (16 + 512));
    (lake, kept)
}

/// Bytes of memory for what is loaded.
fn loaded(lake: &Lake) -> u64 {
    lake.alloc.tops.iter().flatten().flat_map(|top| &top.metaslabs).map(|metaslab| metaslab.bytes()).sum()
}

/// For a block that none of them had a run for, all metaslabs with room were loaded, in each transaction group again, and
/// stayed until its end: gigabytes in a large fragmented pool.
#[tokio::test]
async fn metaslabs_loaded_in_vain_are_not_kept_beyond_the_budget_and_not_loaded_again() {
    let (mut lake, kept) = fragmented().await;
    let block = 64 << 10;
    assert!(matches!(lake.allocate(block, 1, Purpose::Data).await, Err(EngineError::NoSpace { .. })));
    assert!((1..=lake.alloc.bits.most()).contains(&loaded(&lake)), "{}", loaded(&lake));
    lake.alloc.tops[0].as_mut().unwrap().metaslabs.iter_mut().for_each(|metaslab| metaslab.unload());
    assert!(lake.allocate(block, 1, Purpose::Data).await.is_err());
    assert_eq!(loaded(&lake), 0, "what they lack is known");
    // Until something is free that was not.
    kept.into_iter().filter(|dva| dva.offset < 4 * MIB).for_each(|dva| lake.release(dva));
    (0..4).for_each(|_| lake.commit());
    lake.allocate(block, 1, Purpose::Data).await.unwrap();
    lake.commit();
    lake.reload().await;
    lake.check();
}

/// They stayed if something had been released in them in the same transaction group: nearly all of them, when a pool is
/// rewritten at random, and they did not count either.
#[tokio::test]
async fn metaslabs_loaded_in_vain_are_not_kept_because_of_what_was_released_in_them() {
    let (mut lake, kept) = fragmented().await;
    let one_in_each = kept.into_iter().filter(|dva| dva.offset % (4 * MIB) == 4096);
    one_in_each.for_each(|dva| lake.release(dva));
    assert_eq!(lake.alloc.changed.len(), 16);
    assert!(matches!(lake.allocate(64 << 10, 1, Purpose::Data).await, Err(EngineError::NoSpace { .. })));
    assert!((1..=lake.alloc.bits.most()).contains(&loaded(&lake)), "{}", loaded(&lake));
    // They are loaded again with what was released, which nobody gets yet.
    for _ in 0..4000 {
        lake.allocate(4096, 1, Purpose::Data).await.unwrap();
    }
    lake.commit();
    lake.check();
    lake.reload().await;
    lake.check();
}

/// Metaslabs that are wholly free took nothing, by what was counted: after a sweep over a large pool all of them stayed loaded,
/// with a gigabyte or two.
#[tokio::test]
async fn metaslabs_that_are_wholly_free_take_memory_too_and_are_unloaded() {
    // 256 pages in each of both sets.
    let mut lake = Lake::new(&[top(0, 256 << 32, 32)]);
    lake.alloc.bits.set_most(64 << 10);
    for index in 0..256 {
        lake.alloc.load(0, index).await.unwrap();
    }
    assert_eq!((loaded(&lake), lake.alloc.bits.held()), (2 * MIB, 2 * MIB));
    lake.alloc.unload();
    let metaslabs = &lake.alloc.tops[0].as_ref().unwrap().metaslabs;
    assert_eq!(metaslabs.iter().filter(|metaslab| metaslab.loaded.is_some()).count(), 8);
    assert_eq!((loaded(&lake), lake.alloc.bits.held()), (64 << 10, 64 << 10));
}

/// Metaslabs of [`crumbled`].
const CRUMBLED: u64 = 640;

/// Unit `number` of a metaslab of 1 MiB.
fn unit(metaslab: u64, number: u64) -> Dva {
    Dva { vdev: 0, offset: metaslab * MIB + number * 4096, asize: 4096, gang: false }
}

/// Every 16th unit is free, of enough metaslabs that space is not scarce, and nothing is loaded.
async fn crumbled() -> Lake {
    let mut lake = Lake::new(&[top(0, CRUMBLED * MIB, 20)]);
    for metaslab in 0..CRUMBLED {
        lake.alloc.claim(Dva { asize: MIB, ..unit(metaslab, 0) }).await.unwrap();
    }
    lake.commit();
    for metaslab in 0..CRUMBLED {
        (0..256).step_by(16).for_each(|number| lake.alloc.release(unit(metaslab, number)));
    }
    (0..4).for_each(|_| lake.commit());
    lake.alloc.tops[0].as_mut().unwrap().metaslabs.iter_mut().for_each(|metaslab| metaslab.loaded = None);
    lake
}

/// All of them were loaded for a block that fits nowhere, one after the other, and in the next transaction group again, as
/// something had been released in them: minutes without a commit in a large pool.
#[tokio::test]
async fn a_block_that_fits_nowhere_loads_few_metaslabs_in_each_group_and_others_in_the_next() {
    let mut lake = crumbled().await;
    let mut mos = new_mos().await;
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        lake.alloc.begin(10 + round, None, &mut mos).await.unwrap();
        let mut found = Vec::new();
        for _ in 0..3 {
            let refused = lake.alloc.allocate(64 << 10, 1, Purpose::Data).await;
            assert!(matches!(refused, Err(EngineError::NoSpace { .. })), "{refused:?}");
            let metaslabs = &lake.alloc.tops[0].as_ref().unwrap().metaslabs;
            found = (0..metaslabs.len()).filter(|index| metaslabs[*index].loaded.is_some()).collect();
            assert!((1..=64).contains(&found.len()), "{} loaded in group {round}", found.len());
        }
        assert!(found.into_iter().all(|index| seen.insert(index)), "the same again in group {round}");
        lake.alloc.tops[0].as_mut().unwrap().metaslabs.iter_mut().for_each(|metaslab| metaslab.unload());
        (0..CRUMBLED).for_each(|metaslab| lake.alloc.release(unit(metaslab, 8 + 16 * round)));
        (0..4).for_each(|_| lake.commit());
    }
    // What cannot be put in pieces has all there is.
    assert!(lake.alloc.allocate(64 << 10, 1, Purpose::Data).await.is_err());
    for _ in 0..lake.alloc.totals().free_now / 4096 {
        lake.alloc.allocate(4096, 1, Purpose::Data).await.unwrap();
    }
    assert!(lake.alloc.allocate(4096, 1, Purpose::Data).await.is_err());
    lake.commit();
    lake.reload().await;
}

/// The second copy was left out where there was room for all of its pieces.
#[tokio::test]
async fn a_block_has_all_its_copies_or_goes_in_pieces_unless_space_is_scarce() {
    let mut lake = crumbled().await;
    lake.alloc.release(Dva { asize: 15 * 4096, ..unit(0, 1) });
    (0..4).for_each(|_| lake.commit());
    let used = lake.alloc.used();
    let refused = lake.alloc.allocate(64 << 10, 2, Purpose::Metadata).await;
    assert!(matches!(refused, Err(EngineError::NoSpace { .. })), "{refused:?}");
    assert_eq!(lake.alloc.used(), used, "the first is free again");
    assert_eq!(lake.alloc.allocate(4096, 3, Purpose::Metadata).await.unwrap().len(), 3);
    let once = lake.alloc.allocate(64 << 10, 1, Purpose::Data).await.unwrap()[0];
    lake.commit();
    lake.reload().await;
    while lake.alloc.totals().free_now > 16 * MIB {
        lake.alloc.allocate(4096, 1, Purpose::Data).await.unwrap();
    }
    lake.alloc.release(once);
    (0..4).for_each(|_| lake.commit());
    assert_eq!(lake.alloc.allocate(64 << 10, 2, Purpose::Metadata).await.unwrap().len(), 1);
}

/// Each block that fitted nowhere made scrubs and resilvers begin again, with any amount of space free in pieces: in a
/// fragmented pool in each transaction group, for ever.
#[tokio::test]
async fn a_view_gives_way_when_space_is_scarce_and_it_holds_some_back() {
    let mut lake = crumbled().await;
    let mut mos = new_mos().await;
    lake.alloc.begin(7, None, &mut mos).await.unwrap();
    lake.commit();
    let pin = lake.alloc.horizon().pin_view(7).unwrap();
    lake.alloc.release(Dva { asize: 15 * 4096, ..unit(0, 1) });
    (0..4).for_each(|_| lake.commit());
    let mut refused = 0;
    while let Err(error) = lake.alloc.allocate(32 << 10, 1, Purpose::Data).await {
        assert!(matches!(error, EngineError::NoSpace { .. }), "{error}");
        assert!(!pin.is_broken(), "there is room for pieces");
        refused += 1;
        for _ in 0..256 {
            lake.alloc.allocate(4096, 1, Purpose::Data).await.unwrap();
        }
    }
    assert!(refused > 0 && pin.is_broken());
    assert!(lake.alloc.totals().free_now > 16 * MIB, "some is left for what is under way");

    lake.alloc.begin(8, None, &mut mos).await.unwrap();
    lake.commit();
    let pin = lake.alloc.horizon().pin_view(8).unwrap();
    let mut last = None;
    while let Ok(found) = lake.alloc.allocate(4096, 1, Purpose::Data).await {
        last = found.first().copied();
    }
    lake.alloc.release(last.unwrap());
    assert!(lake.alloc.allocate(4096, 1, Purpose::Data).await.is_err());
    assert!(!pin.is_broken(), "what was released in this group is nobody's yet");
}

#[tokio::test]
async fn what_is_born_and_killed_between_two_writings_leaves_no_trace() {
    let mut lake = Lake::new(&[top(0, 64 * MIB, 24)]);
    let keep = lake.allocate(8192, 1, Purpose::Data).await.unwrap()[0];
    let gone = lake.allocate(8192, 1, Purpose::Data).await.unwrap()[0];
    lake.release(gone);
    let changes = lake.alloc.drain().unwrap();
    assert_eq!(changes.len(), 1);
    let units = keep.offset >> 12..(keep.offset + keep.asize) >> 12;
    assert_eq!(changes[0].2, [Change { kind: Kind::Alloc, units }]);
    assert!(lake.alloc.drain().unwrap().is_empty(), "told once");
}

#[tokio::test]
async fn a_double_free_is_found_and_stops_everything() {
    let tops = [top(0, 64 * MIB, 24)];
    for late in [false, true] {
        let mut alloc = Allocator::create(TRAITS, &tops);
        let dva = alloc.allocate(8192, 1, Purpose::Data).await.unwrap()[0];
        if late {
            alloc.drain().unwrap();
            alloc.committed();
        }
        alloc.release(dva);
        assert!(alloc.poison.is_none());
        alloc.release(Dva { asize: 4096, ..dva });
        assert!(matches!(alloc.poison, Some(EngineError::SpaceMap { vdev: 0, metaslab: 0, .. })));
    }
    for (vdev, offset, asize) in
        [(0, 12 << 20, 4096), (7, 0, 4096), (0, 16 * MIB - 4096, 8192), (0, 100, 4096), (0, 1 << 60, 4096)]
    {
        let mut alloc = Allocator::create(TRAITS, &tops);
        alloc.allocate(8192, 1, Purpose::Data).await.unwrap();
        alloc.release(Dva { vdev, offset, asize, gang: false });
        assert!(alloc.poison.is_some(), "{vdev} {offset} {asize}");
    }
}

#[tokio::test]
async fn intent_log_blocks_go_to_log_devices_and_from_there_to_others() {
    let mut log = top(1, 32 * MIB, 24);
    log.class = Class::Log;
    let mut lake = Lake::new(&[top(0, 64 * MIB, 24), log]);
    for _ in 0..256 {
        assert_eq!(lake.allocate(131_072, 1, Purpose::Log).await.unwrap()[0].vdev, 1);
        assert_eq!(lake.allocate(4096, 1, Purpose::Data).await.unwrap()[0].vdev, 0);
    }
    assert_eq!(lake.allocate(131_072, 1, Purpose::Log).await.unwrap()[0].vdev, 0, "the log device is full");
    assert_eq!(lake.alloc.totals().capacity, 64 * MIB, "what a log device holds is no room for data");
}

#[tokio::test]
async fn sizes_on_raidz_are_those_everyone_computes() {
    let mut alloc = Allocator::create(TRAITS, &[raidz(0, 200 * MIB, 6, 2), top(1, 64 * MIB, 24)]);
    assert_eq!(alloc.granularity(), (4096, 4096));
    assert_eq!(alloc.deflate().bytes(1, 4096), 4096);
    // 128 KiB on 4 + 2: 32 data sectors, 8 rows, 48 sectors. The ratio of 341 per 512 bytes is rounded down.
    assert_eq!(alloc.deflate().bytes(0, 48 * 4096), 384 * 341);
    for _ in 0..100 {
        for dva in alloc.allocate(4096, 2, Purpose::Data).await.unwrap() {
            assert_eq!(dva.asize, if dva.vdev == 0 { 12288 } else { 4096 });
        }
    }
    let alone = Allocator::create(TRAITS, &[raidz(0, 200 * MIB, 6, 2)]);
    assert_eq!(alone.granularity(), (4096, 4096), "or 8 KiB blocks would never be compressed");
}

#[tokio::test]
async fn a_claim_takes_what_is_free_and_nothing_else() {
    let mut alloc = Allocator::create(TRAITS, &[top(0, 64 * MIB, 24)]);
    let block = Dva { vdev: 0, offset: 5 * MIB, asize: 131_072, gang: false };
    alloc.claim(block).await.unwrap();
    assert!(alloc.claim(block).await.is_err());
    assert!(alloc.claim(Dva { offset: 1 << 50, ..block }).await.is_err());
    assert_eq!(alloc.totals().allocated, 131_072);
    alloc.release(block);
    assert!(alloc.poison.is_none());
}
