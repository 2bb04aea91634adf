//! Space set aside for the intent log: nobody else gets it, no map knows of it, a crash forgets it, and a pool that
//! becomes full has it back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ondisk::{blkptr::Dva, spacemap::Kind};
use pool::vdev::Class;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    super::{Allocator, NewTop, Purpose, ranges, ranges::Change},
    model::{Lake, Maps, raidz, top},
};
use crate::{
    EngineError,
    policy::TRAITS,
    txg::{self, Limits, Txgs},
    zil::{LogSpace, Supply},
};

const MIB: u64 = 1 << 20;

fn log_device(id: u64, asize: u64) -> NewTop {
    NewTop { class: Class::Log, ..top(id, asize, 24) }
}

/// A lake with logs: places that were taken and belong to no transaction group yet.
struct Logged {
    lake: Lake,
    tops: Vec<NewTop>,
    places: Vec<Dva>,
    blocks: Vec<Vec<Dva>>,
    committed: (Maps, BTreeMap<(u32, u64), Dva>),
}

impl Logged {
    fn new(tops: &[NewTop]) -> Self {
        Self {
            lake: Lake::new(tops),
            tops: tops.to_vec(),
            places: Vec::new(),
            blocks: Vec::new(),
            committed: Default::default(),
        }
    }

    fn take(&mut self, psize: u64, supply: Supply) {
        let Some(dva) = self.lake.alloc.log_space().try_take(psize, supply) else { return };
        let asize = self.lake.alloc.tops[dva.vdev as usize].as_ref().unwrap().asize(psize);
        assert_eq!(dva.asize, asize, "as everyone computes it");
        self.lake.own(dva);
        self.places.push(dva);
    }

    fn adopt(&mut self, place: Dva) {
        self.lake.alloc.adopt(place).unwrap();
        self.blocks.push(vec![place]);
    }

    fn forget(&mut self, place: Dva) {
        self.lake.owned.remove(&(place.vdev, place.offset)).unwrap();
    }

    fn commit(&mut self) {
        self.lake.commit();
        self.committed.0 = self.lake.maps.clone();
        self.committed.1 = self.lake.owned.clone();
        // What was only taken is not durable.
        for place in &self.places {
            self.committed.1.remove(&(place.vdev, place.offset)).unwrap();
        }
    }

    /// What every map, every owner and every place say about each other.
    fn check(&mut self) {
        // The model counts places as owned, the allocator does not yet.
        for place in &self.places {
            self.lake.owned.remove(&(place.vdev, place.offset)).unwrap();
        }
        self.lake.check();
        for place in &self.places {
            self.lake.owned.insert((place.vdev, place.offset), *place);
            let top = self.lake.alloc.tops[place.vdev as usize].as_ref().unwrap();
            let (index, units) = top.locate(place.offset, place.asize).unwrap();
            let loaded = top.metaslabs[index].loaded.as_ref().expect("stays loaded");
            for unit in units {
                assert!(!loaded.free.contains(unit..unit + 1) && !loaded.used.contains(unit..unit + 1));
            }
        }
        for top in self.lake.alloc.tops.iter().flatten() {
            let units: u64 = top.metaslabs.iter().map(|metaslab| metaslab.aside_units).sum();
            assert_eq!(top.aside, units << top.ashift);
            assert!(top.metaslabs.iter().all(|m| ranges::total(&m.aside) == m.aside_units));
        }
    }

    /// The process ends, and another one opens what was committed.
    fn crash(&mut self) {
        let (maps, owned) = self.committed.clone();
        let mut lake = Lake::new(&self.tops);
        for (number, top) in lake.alloc.tops.iter_mut().enumerate() {
            let Some(top) = top else { continue };
            for (index, metaslab) in top.metaslabs.iter_mut().enumerate() {
                for (unit, _) in maps.replay(number, index, metaslab.len).iter().enumerate().filter(|u| *u.1)
                {
                    let unit = unit as u64;
                    metaslab.flushed.push(Change { kind: Kind::Alloc, units: unit..unit + 1 });
                    metaslab.used += 1;
                }
                top.used += metaslab.used << top.ashift;
            }
        }
        self.blocks = owned.values().map(|dva| vec![*dva]).collect();
        (lake.maps, lake.owned) = (maps, owned);
        self.lake = lake;
        self.places.clear();
    }
}

async fn random_life(seed: u64, tops: &[NewTop], txgs: u32, fill: f64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pool = Logged::new(tops);
    let data = || tops.iter().filter(|top| top.class == Class::Normal);
    let capacity: u64 = data().map(|top| top.asize >> top.metaslab_shift << top.metaslab_shift).sum();
    let sizes = [512, 4096, 8192, 5000, 36_864, 131_072];
    let mut got = 0;
    for txg in 0..txgs {
        for _ in 0..random.random_range(0..100) {
            match random.random_range(0..10) {
                0..3 => {
                    let supply = if random.random_bool(0.6) { Supply::Log } else { Supply::Pool };
                    let before = pool.places.len();
                    pool.take(sizes[random.random_range(0..sizes.len())], supply);
                    got += pool.places.len() - before;
                }
                3 if !pool.places.is_empty() => {
                    let place = pool.places.swap_remove(random.random_range(0..pool.places.len()));
                    match random.random_range(0..6) {
                        0 => {
                            pool.forget(place);
                            pool.lake.alloc.unreserve(place);
                        }
                        1 => {
                            pool.forget(place);
                            pool.lake.alloc.log_space().give_back(place);
                        }
                        _ => pool.adopt(place),
                    }
                }
                4 if random.random_bool(0.3) => pool.lake.alloc.restock().await,
                _ => {
                    let used = pool.lake.alloc.totals().allocated;
                    let grow = (used as f64) < capacity as f64 * fill;
                    if random.random_bool(if grow { 0.7 } else { 0.3 }) || pool.blocks.is_empty() {
                        let psize = [4096, 16_384, 131_072, MIB][random.random_range(0..4)];
                        match pool.lake.allocate(psize, 1, Purpose::Data).await {
                            Ok(found) => pool.blocks.push(found),
                            Err(EngineError::NoSpace { .. }) => {
                                let aside: u64 = pool.lake.alloc.tops.iter().flatten().map(|t| t.aside).sum();
                                let places: u64 = pool.places.iter().map(|dva| dva.asize).sum();
                                let log: u64 = pool
                                    .lake
                                    .alloc
                                    .tops
                                    .iter()
                                    .flatten()
                                    .filter(|top| top.class == Class::Log)
                                    .map(|top| top.aside)
                                    .sum();
                                assert!(aside <= places + log, "it kept {aside} from those who need it");
                            }
                            Err(error) => panic!("{error}"),
                        }
                    } else {
                        let block = pool.blocks.swap_remove(random.random_range(0..pool.blocks.len()));
                        block.into_iter().for_each(|dva| pool.lake.release(dva));
                    }
                }
            }
            if random.random_bool(0.02) {
                pool.lake.write_maps();
            }
        }
        // At the end of a group its log blocks are allocations, or were not needed.
        while let Some(place) = pool.places.pop() {
            if random.random_bool(0.1) {
                pool.places.push(place);
                break;
            }
            pool.adopt(place);
        }
        if random.random_bool(0.05) {
            pool.crash();
        } else {
            pool.commit();
        }
        if txg % 10 == 9 {
            pool.check();
        }
        if txg % 25 == 24 {
            pool.lake.reload().await;
            pool.check();
        }
    }
    assert!(got > 100, "{got} places");
}

#[tokio::test]
async fn what_is_set_aside_belongs_to_nobody_else_through_commits_and_crashes() {
    for seed in 0..6 {
        random_life(seed, &[top(0, 256 * MIB, 24)], 80, 0.6).await;
        let tops = [top(0, 128 * MIB, 24), log_device(1, 48 * MIB), log_device(2, 64 * MIB)];
        random_life(seed, &tops, 80, 0.6).await;
        random_life(seed, &[raidz(0, 240 * MIB, 5, 2), top(1, 64 * MIB, 24)], 80, 0.5).await;
        random_life(seed, &[top(0, 96 * MIB, 24), log_device(1, 32 * MIB)], 80, 2.0).await;
    }
}

/// Takes places on log devices until `enough`, at most all there are; how many bytes that were.
async fn take_log_places(
    alloc: &mut Allocator,
    space: &LogSpace,
    enough: impl Fn(&Allocator, u64) -> bool,
) -> u64 {
    let (mut taken, mut fruitless) = (0, 0);
    while fruitless < 3 && !enough(alloc, taken) {
        match space.try_take(131_072, Supply::Log).filter(|dva| dva.vdev > 0) {
            Some(dva) => {
                taken += dva.asize;
                fruitless = 0;
            }
            None => {
                alloc.restock().await;
                fruitless += 1;
            }
        }
    }
    taken
}

/// Writes in one place make little dirty and fill the log: what came after that was logged among the data.
#[tokio::test]
async fn log_devices_that_come_to_their_end_are_a_reason_to_close_a_group() {
    let tops = [top(0, 1024 * MIB, 26), log_device(1, 64 * MIB), log_device(2, 32 * MIB)];
    let (mut alloc, space) = stocked(&tops, Supply::Log).await;
    let all: u64 = alloc.tops[1..].iter().flatten().map(|top| top.capacity()).sum();
    let taken = take_log_places(&mut alloc, &space, |alloc, _| alloc.is_log_running_out()).await;
    assert!((all / 2 - 131_072..=all / 2 + 131_072).contains(&taken), "{taken} of {all}");
    // While that group is being synced the next one takes what is left, of which nothing comes back with the commit.
    space.next_group();
    assert!(!alloc.is_log_running_out(), "the next group has taken nothing yet");
    take_log_places(&mut alloc, &space, |_, _| false).await;
    alloc.committed();
    alloc.restock().await;
    assert!(alloc.is_log_running_out());
    // What is too little for a group of its own is no reason.
    space.next_group();
    assert!(!alloc.is_log_running_out());
    // One that failed has nothing left to give.
    let (mut alloc, space) = stocked(&tops, Supply::Log).await;
    take_log_places(&mut alloc, &space, |_, taken| taken >= 24 * MIB).await;
    let before = alloc.is_log_running_out();
    space.forget_device(1);
    alloc.restock().await;
    assert_eq!((before, alloc.is_log_running_out()), (false, true));
}

/// An allocator, and somebody who asks it.
async fn stocked(tops: &[NewTop], supply: Supply) -> (Allocator, Arc<LogSpace>) {
    let mut alloc = Allocator::create(TRAITS, tops);
    let space = Arc::clone(alloc.log_space());
    assert!(space.try_take(131_072, supply).is_none());
    alloc.restock().await;
    (alloc, space)
}

#[tokio::test]
async fn nothing_is_set_aside_before_somebody_asks() {
    let mut alloc = Allocator::create(TRAITS, &[top(0, 1024 * MIB, 26), log_device(1, 64 * MIB)]);
    alloc.allocate(4096, 1, Purpose::Data).await.unwrap();
    assert!(alloc.tops.iter().flatten().all(|top| top.aside == 0));
    let space = Arc::clone(alloc.log_space());
    assert!(space.try_take(4096, Supply::Log).is_none());
    tokio::time::timeout(Duration::from_secs(1), space.asked()).await.expect("it is wanted");
    alloc.restock().await;
    let aside: Vec<u64> = alloc.tops.iter().flatten().map(|top| top.aside).collect();
    assert_eq!(aside, [4 * MIB, 4 * MIB], "in the pool too, in case the log device fails");
    assert!(space.try_take(4096, Supply::Log).is_some_and(|dva| dva.vdev == 1));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_served_when_the_allocator_comes_by() {
    let mut alloc = Allocator::create(TRAITS, &[top(0, 1024 * MIB, 26)]);
    let space = Arc::clone(alloc.log_space());
    let waiting: Vec<_> = [4096, 131_072, 8192]
        .into_iter()
        .map(|psize| {
            let space = Arc::clone(&space);
            tokio::spawn(async move { space.take(psize, Supply::Log).await })
        })
        .collect();
    space.asked().await;
    tokio::task::yield_now().await;
    // It allocates for others, and sees the request.
    alloc.allocate(4096, 1, Purpose::Data).await.unwrap();
    for task in waiting {
        assert!(task.await.unwrap().is_some());
    }
    // At hand from now on, next to each other.
    let first = space.take(4096, Supply::Pool).await.unwrap();
    let second = space.take(65_536, Supply::Log).await.unwrap();
    assert_eq!((second.vdev, second.offset), (0, first.offset + 4096));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_allocator_that_is_gone_or_has_nothing() {
    let mut alloc = Allocator::create(TRAITS, &[top(0, 32 * MIB, 24)]);
    while alloc.allocate(131_072, 1, Purpose::Data).await.is_ok() {}
    let space = Arc::clone(alloc.log_space());
    let task = tokio::spawn({
        let space = Arc::clone(&space);
        async move { space.take(4096, Supply::Log).await }
    });
    space.asked().await;
    alloc.restock().await;
    assert_eq!(task.await.unwrap(), None);
    assert_eq!(space.take(131_072, Supply::Log).await, None, "it is known, nobody waits");
    alloc.committed();
    let task = tokio::spawn({
        let space = Arc::clone(&space);
        async move { space.take(4096, Supply::Log).await }
    });
    tokio::task::yield_now().await;
    assert!(!task.is_finished(), "a commit may have freed something");
    drop(alloc);
    assert_eq!(task.await.unwrap(), None);
    assert_eq!(space.take(4096, Supply::Pool).await, None);
}

#[tokio::test]
async fn log_devices_take_turns_and_the_pool_stands_in_for_them() {
    let tops = [top(0, 1024 * MIB, 26), log_device(1, 256 * MIB), log_device(2, 256 * MIB)];
    let (mut alloc, space) = stocked(&tops, Supply::Log).await;
    assert!(space.has_log_device());
    let vdevs: Vec<u32> = (0..6).map(|_| space.try_take(4096, Supply::Log).unwrap().vdev).collect();
    assert_eq!(vdevs.iter().filter(|vdev| **vdev == 1).count(), 3, "{vdevs:?}");
    assert!(vdevs.windows(2).all(|pair| pair[0] != pair[1]) && !vdevs.contains(&0));
    space.forget_device(1);
    assert!((0..8).all(|_| space.try_take(4096, Supply::Log).unwrap().vdev == 2));
    space.forget_device(2);
    assert!(!space.has_log_device());
    assert_eq!(space.try_take(4096, Supply::Log).unwrap().vdev, 0);
    alloc.restock().await;
    // What they had set aside is free again, but for the places that were taken.
    let aside: u64 = alloc.tops.iter().flatten().filter(|top| top.id > 0).map(|top| top.aside).sum();
    assert_eq!(aside, 14 * 4096);
    space.readmit();
    alloc.restock().await;
    assert!(space.has_log_device() && space.try_take(4096, Supply::Log).unwrap().vdev > 0);
}

#[tokio::test]
async fn a_full_log_device_is_stood_in_for() {
    let (mut alloc, space) = stocked(&[top(0, 1024 * MIB, 26), log_device(1, 16 * MIB)], Supply::Log).await;
    let mut places = Vec::new();
    for _ in 0..400 {
        match space.try_take(131_072, Supply::Log) {
            Some(dva) => places.push(dva),
            None => alloc.restock().await,
        }
    }
    let on_log = places.iter().filter(|dva| dva.vdev == 1).count();
    assert!((40..=128).contains(&on_log), "{on_log} of {}", places.len());
    assert!(places.len() > 200 && places.last().unwrap().vdev == 0);
}

#[tokio::test]
async fn what_is_set_aside_follows_demand() {
    let (mut alloc, space) = stocked(&[top(0, 256 << 30, 32)], Supply::Log).await;
    let aside = |alloc: &Allocator| alloc.tops.iter().flatten().map(|top| top.aside).sum::<u64>();
    assert_eq!(aside(&alloc), 4 * MIB);
    let mut dry = 0;
    for _ in 0..12 {
        for _ in 0..4096 {
            let dva = match space.try_take(131_072, Supply::Log) {
                Some(dva) => dva,
                None => {
                    dry += 1;
                    alloc.restock().await;
                    space.try_take(131_072, Supply::Log).unwrap()
                }
            };
            alloc.adopt(dva).unwrap();
        }
        alloc.drain().unwrap();
        alloc.committed();
        alloc.restock().await;
    }
    assert!(dry < 40, "{dry} times dry while 6 GiB were written");
    assert!(aside(&alloc) >= 200 * MIB && aside(&alloc) <= 384 * MIB, "{}", aside(&alloc) >> 20);
    for _ in 0..200 {
        alloc.committed();
        alloc.restock().await;
    }
    assert!(aside(&alloc) <= 6 * MIB, "{} MiB after a long silence", aside(&alloc) >> 20);
}

#[tokio::test]
async fn the_pool_is_not_starved_for_the_log() {
    let (mut alloc, space) = stocked(&[top(0, 64 * MIB, 24)], Supply::Log).await;
    let aside: u64 = alloc.tops.iter().flatten().map(|top| top.aside).sum();
    assert!(aside > 0 && aside <= MIB, "a 64th of what is free: {aside}");
    let mut blocks = 0;
    while alloc.allocate(131_072, 1, Purpose::Data).await.is_ok() {
        blocks += 1;
        space.try_take(131_072, Supply::Log).into_iter().for_each(|dva| alloc.unreserve(dva));
    }
    assert_eq!(blocks, 512, "every block that fits");
    assert!(space.try_take(4096, Supply::Log).is_none());
    alloc.restock().await;
    assert_eq!(space.take(4096, Supply::Log).await, None, "nobody waits for what cannot be");
    alloc.committed();
    assert!(space.try_take(4096, Supply::Log).is_none());
    alloc.restock().await;
    assert!(alloc.tops.iter().flatten().all(|top| top.aside == 0), "scarce");
}

/// For each length that was tried in vain so much was kept from writers until the next commit.
#[tokio::test]
async fn what_was_lent_for_a_run_that_is_not_found_is_given_back_at_once() {
    let mut lake = Lake::new(&[top(0, 256 * MIB, 24)]);
    let mut places = Vec::new();
    while let Ok(found) = lake.allocate(64 << 10, 1, Purpose::Data).await {
        places.extend(found);
    }
    places.sort_unstable_by_key(|dva| dva.offset);
    places.into_iter().step_by(2).for_each(|dva| lake.release(dva));
    (0..4).for_each(|_| lake.commit());
    let txgs = Txgs::new(4, Limits::default());
    txgs.set_supply(txg::Supply { shared: 100 * MIB, free: 100 * MIB, ..txg::Supply::default() });
    let space = Arc::clone(lake.alloc.log_space());
    space.set_promises(Arc::clone(&txgs));
    assert!(space.try_take(4096, Supply::Pool).is_none());
    lake.alloc.restock().await;
    assert!(space.try_take(4096, Supply::Pool).is_some(), "a place for the one who waits");
    let aside = lake.alloc.deflate.bytes(0, 4096);
    assert_eq!(txgs.available(), 100 * MIB - aside, "and nothing for runs that there are not");
}

#[tokio::test]
async fn what_was_not_set_aside_is_not_adopted() {
    let (mut alloc, space) = stocked(&[top(0, 1024 * MIB, 26)], Supply::Log).await;
    let dva = space.try_take(4096, Supply::Log).unwrap();
    alloc.adopt(dva).unwrap();
    assert!(alloc.adopt(dva).is_err());
    assert!(alloc.poison.is_some(), "a contradiction stops everything");
    let (mut alloc, space) = stocked(&[top(0, 1024 * MIB, 26)], Supply::Log).await;
    let dva = space.try_take(4096, Supply::Log).unwrap();
    alloc.unreserve(dva);
    assert!(alloc.poison.is_none());
    alloc.unreserve(dva);
    assert!(alloc.poison.is_some());
}

#[test]
fn ranges_come_and_go() {
    let mut random = StdRng::seed_from_u64(3);
    let (mut list, mut model) = (Vec::new(), [false; 64]);
    for _ in 0..20_000 {
        let start = random.random_range(0..60_usize);
        let end = random.random_range(start + 1..=64.min(start + 9));
        let range = start as u64..end as u64;
        if random.random_bool(0.5) {
            let fits = model[start..end].iter().all(|unit| !unit);
            if fits {
                assert!(ranges::insert(&mut list, range));
                model[start..end].fill(true);
            } else {
                assert!(!ranges::insert(&mut list.clone(), range));
            }
        } else if model[start..end].iter().all(|unit| *unit) {
            assert!(ranges::remove(&mut list, range));
            model[start..end].fill(false);
        } else {
            assert!(!ranges::remove(&mut list, range));
        }
        let units: Vec<u64> = list.iter().cloned().flatten().collect();
        let expected: Vec<u64> = (0..64).filter(|unit| model[*unit as usize]).collect();
        assert_eq!(units, expected);
        assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start), "merged");
    }
}
