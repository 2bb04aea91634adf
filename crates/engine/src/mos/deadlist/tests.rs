use std::collections::BTreeSet;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::mos::testing::{TRAITS, World, objects, pointer};

/// A pool whose feature is enabled, as [`features::create`] and the commands leave it.
async fn enabled() -> World {
    let mut world = World::new().await;
    features::enable(&mut world.mos, FEATURE, 4).await.unwrap();
    world
}

/// Checks one list: each bucket holds what its keys say, header and headers add up.
async fn verify(mos: &mut MutSet, object: u64, keys: &BTreeSet<u64>, model: &[BlkPtr]) {
    let buckets = buckets(mos, object).await.unwrap();
    assert_eq!(
        buckets.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
        keys.iter().copied().collect::<Vec<_>>()
    );
    let deflate = Deflate::default();
    let mut whole = Space::ZERO;
    let mut found = Vec::new();
    for (index, (key, bucket)) in buckets.iter().enumerate() {
        let next = buckets.get(index + 1).map_or(u64::MAX, |(next, _)| *next);
        let mut space = Space::ZERO;
        for entry in bpobj::all(mos, *bucket).await.unwrap() {
            let birth = entry.blkptr.birth();
            assert!(*key < birth && birth <= next, "{birth} in bucket {key}, the next of which is {next}");
            space += deflate.space(&entry.blkptr);
            found.push(*entry.blkptr.words());
        }
        assert_eq!(bpobj::space(mos, *bucket).await.unwrap(), space);
        if index < 20 {
            assert_eq!(space_range(mos, object, &deflate, *key, next).await.unwrap(), space);
        }
        whole += space;
    }
    assert_eq!(totals(&header(mos, object).await.unwrap()), whole);
    let strip = |bp: &BlkPtr| *ondisk::bpobj::BpobjEntry::strip(bp, false).unwrap().blkptr.words();
    let mut expected: Vec<_> = model.iter().map(strip).collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert!(found == expected, "the list holds other blocks");
}

/// The feature counts the references there are, and the shared list exists exactly while there are any.
async fn verify_shared(mos: &mut MutSet, lists: impl Iterator<Item = u64>) {
    let shared = shared(mos).await.unwrap();
    let mut references = 0;
    for list in lists {
        references +=
            buckets(mos, list).await.unwrap().iter().filter(|(_, bucket)| Some(*bucket) == shared).count();
    }
    assert_eq!(features::count(mos, FEATURE).await.unwrap(), Some(references as u64));
    assert_eq!(shared.is_some(), references > 0);
    if let Some(shared) = shared {
        assert_eq!(bpobj::header(mos, shared).await.unwrap(), ondisk::bpobj::BpobjPhys::default());
    }
}

struct List {
    object: u64,
    keys: BTreeSet<u64>,
    held: Vec<BlkPtr>,
}

#[tokio::test]
async fn random_deadlists_keep_every_block_in_the_bucket_of_its_birth() {
    let mut random = StdRng::seed_from_u64(1);
    let deflate = Deflate::default();
    for traits in [TRAITS, Traits { empty_bpobj: false, ..TRAITS }] {
        for _ in 0..8 {
            let mut world = enabled().await;
            let before = objects(&mut world.mos).await;
            let target = bpobj::create(&mut world.mos, &traits, bpobj::BLOCK).await.unwrap();
            let mut freed: Vec<BlkPtr> = Vec::new();
            let mut lists: Vec<List> = Vec::new();
            let mut unique = 0;
            for _ in 0..120 {
                let mos = &mut world.mos;
                let at = random.random_range(0..lists.len().max(1));
                match random.random_range(0..12) {
                    0..2 => {
                        let mut keys: BTreeSet<u64> =
                            (0..random.random_range(0..6)).map(|_| random.random_range(1..100)).collect();
                        keys.insert(0);
                        let list: Vec<u64> = keys.iter().copied().collect();
                        let object = create(mos, &traits, &list).await.unwrap();
                        lists.push(List { object, keys, held: Vec::new() });
                    }
                    2..6 if !lists.is_empty() => {
                        let list = &mut lists[at];
                        let fresh: Vec<BlkPtr> = (0..random.random_range(0..30))
                            .map(|_| {
                                unique += 1;
                                pointer(unique, random.random_range(1..9), random.random_range(1..110))
                            })
                            .collect();
                        insert(mos, &traits, list.object, &deflate, &fresh).await.unwrap();
                        list.held.extend(fresh);
                    }
                    6 if !lists.is_empty() => {
                        // Only above all births: a finer key in the middle would need its blocks sorted.
                        let list = &mut lists[at];
                        let born = list.held.iter().map(BlkPtr::birth).max().unwrap_or(0);
                        let key =
                            born.max(list.keys.last().copied().unwrap_or(0)) + random.random_range(0..2);
                        add_key(mos, &traits, list.object, key).await.unwrap();
                        list.keys.insert(key);
                    }
                    7 if !lists.is_empty() => {
                        // Some of them, neighbours among these, and one that is not there.
                        let list = &mut lists[at];
                        let mut gone = list.keys.clone();
                        gone.retain(|key| *key > 0 && random.random());
                        list.keys.retain(|key| !gone.contains(key));
                        gone.insert(1_000_000);
                        remove_keys(mos, &traits, list.object, &gone).await.unwrap();
                    }
                    8 if !lists.is_empty() => {
                        let list = &mut lists[at];
                        let from =
                            list.keys.iter().copied().nth(random.random_range(0..list.keys.len())).unwrap();
                        let moved =
                            move_to_bpobj(mos, &traits, list.object, &deflate, from, target).await.unwrap();
                        // As whoever destroys a snapshot.
                        add_key(mos, &traits, list.object, 0).await.unwrap();
                        list.keys.retain(|key| *key < from);
                        list.keys.insert(0);
                        let (out, stay) = list.held.drain(..).partition(|bp| bp.birth() > from);
                        list.held = stay;
                        let mut space = Space::ZERO;
                        for bp in &out {
                            space += deflate.space(bp);
                        }
                        assert_eq!(moved, space);
                        freed.extend::<Vec<_>>(out);
                    }
                    9 if lists.len() > 1 => {
                        // As when a snapshot goes: the later list has all keys of the earlier one, and more above.
                        let earlier = lists.swap_remove(at);
                        let born = earlier.held.iter().map(BlkPtr::birth).max().unwrap_or(0);
                        let last = earlier.keys.last().copied().unwrap_or(0);
                        let mut keys = earlier.keys.clone();
                        keys.insert(born.max(last) + 1);
                        let list: Vec<u64> = keys.iter().copied().collect();
                        let object = create(mos, &traits, &list).await.unwrap();
                        let fresh: Vec<BlkPtr> = (0..random.random_range(0..9))
                            .map(|_| {
                                unique += 1;
                                pointer(unique, 2, random.random_range(1..110))
                            })
                            .collect();
                        insert(mos, &traits, object, &deflate, &fresh).await.unwrap();
                        merge(mos, &traits, object, &deflate, earlier.object).await.unwrap();
                        let held = earlier.held.into_iter().chain(fresh).collect();
                        lists.push(List { object, keys, held });
                    }
                    10 if !lists.is_empty() => {
                        let list = &mut lists[at];
                        clear(mos, &traits, list.object).await.unwrap();
                        list.held.clear();
                    }
                    11 if !lists.is_empty() => {
                        let list = lists.swap_remove(at);
                        destroy(mos, &traits, list.object).await.unwrap();
                    }
                    _ => {
                        world.commit().await;
                    }
                }
                let mos = &mut world.mos;
                verify_shared(mos, lists.iter().map(|list| list.object)).await;
            }
            world.commit().await;
            let mos = &mut world.mos;
            for list in &lists {
                verify(mos, list.object, &list.keys, &list.held).await;
            }
            let mut out = bpobj::all(mos, target).await.unwrap().len();
            assert_eq!(out, freed.len());
            while out > 0 {
                out -= bpobj::take(mos, target, &deflate, 100).await.unwrap().len();
            }
            for list in &lists {
                destroy(mos, &traits, list.object).await.unwrap();
            }
            bpobj::destroy(mos, target).await.unwrap();
            verify_shared(mos, [].into_iter()).await;
            assert_eq!(objects(mos).await, before, "no object is left behind");
        }
    }
}

#[tokio::test]
async fn the_lists_of_the_examples_have_the_keys_and_counts_they_should() {
    let mut world = enabled().await;
    let mos = &mut world.mos;
    let none = create(mos, &TRAITS, &[]).await.unwrap();
    assert_eq!((buckets(mos, none).await.unwrap(), shared(mos).await.unwrap()), (Vec::new(), None));
    let head = create(mos, &TRAITS, &[0]).await.unwrap();
    assert_eq!(features::count(mos, FEATURE).await.unwrap(), Some(1));
    let deflate = Deflate::default();
    // A block exactly as old as a key belongs below it.
    add_key(mos, &TRAITS, head, 12).await.unwrap();
    insert(mos, &TRAITS, head, &deflate, &[pointer(1, 8, 12), pointer(2, 8, 13)]).await.unwrap();
    assert_eq!(features::count(mos, FEATURE).await.unwrap(), Some(0));
    assert_eq!(shared(mos).await.unwrap(), None);
    let space = |used: i64| Space { used, compressed: used, uncompressed: 2 * used };
    assert_eq!(space_range(mos, head, &deflate, 0, 12).await.unwrap(), space(4096));
    assert_eq!(space_range(mos, head, &deflate, 12, u64::MAX).await.unwrap(), space(4096));
    assert_eq!(space_range(mos, head, &deflate, 0, u64::MAX).await.unwrap(), space(8192));
    assert_eq!(mos.bonus(head).await.unwrap().len(), 320);
    assert!(insert(mos, &TRAITS, none, &deflate, &[pointer(3, 1, 5)]).await.is_err());
    let first = BTreeSet::from([0]);
    assert!(remove_keys(mos, &TRAITS, head, &first).await.is_err(), "the first bucket has none to join");
}

#[tokio::test]
async fn a_list_of_ten_thousand_keys_is_made_at_once() {
    let mut world = enabled().await;
    let keys: Vec<u64> = (0..10_000).map(|n| n * 7).collect();
    let object = create(&mut world.mos, &TRAITS, &keys).await.unwrap();
    assert_eq!(features::count(&mut world.mos, FEATURE).await.unwrap(), Some(10_000));
    world.commit().await;
    let blocks = [pointer(1, 1, 1), pointer(2, 1, 69_993), pointer(3, 1, 70_000)];
    insert(&mut world.mos, &TRAITS, object, &Deflate::default(), &blocks).await.unwrap();
    verify(&mut world.mos, object, &keys.into_iter().collect(), &blocks).await;
    verify_shared(&mut world.mos, [object].into_iter()).await;
}

/// A list of the old form with these blocks.
async fn old_list(mos: &mut MutSet, blocks: &[BlkPtr]) -> u64 {
    let object = bpobj::create(mos, &TRAITS, bpobj::BLOCK).await.unwrap();
    insert(mos, &TRAITS, object, &Deflate::default(), blocks).await.unwrap();
    object
}

#[tokio::test]
async fn a_list_of_the_old_form_counts_what_one_with_buckets_does() {
    let mut world = enabled().await;
    let mos = &mut world.mos;
    let deflate = Deflate::default();
    let blocks: Vec<BlkPtr> = (1..100).map(|n| pointer(n, 1 + n % 7, n % 30 + 1)).collect();
    let old = old_list(mos, &blocks).await;
    let new = create(mos, &TRAITS, &[0, 4, 12, 20]).await.unwrap();
    insert(mos, &TRAITS, new, &deflate, &blocks).await.unwrap();
    assert!(is_old(mos, old).await.unwrap() && !is_old(mos, new).await.unwrap());
    assert_eq!(moved_singly(mos, old).await.unwrap(), 99);
    assert_eq!(moved_singly(mos, new).await.unwrap(), 0);
    assert_eq!(header(mos, old).await.unwrap(), header(mos, new).await.unwrap());
    for (from, until) in [(0, 4), (0, u64::MAX), (4, 20), (20, u64::MAX)] {
        let found = space_range(mos, old, &deflate, from, until).await.unwrap();
        assert_eq!(found, space_range(mos, new, &deflate, from, until).await.unwrap(), "{from}..{until}");
    }
    // Nothing is told apart by keys in it.
    remove_keys(mos, &TRAITS, old, &BTreeSet::from([0, 4])).await.unwrap();
    add_key(mos, &TRAITS, old, 7).await.unwrap();
    let error = buckets(mos, old).await.unwrap_err().to_string();
    assert!(error.contains(&format!("deadlist {old}")), "{error}");
    destroy(mos, &TRAITS, old).await.unwrap();
    assert!(!mos.exists(old).await.unwrap());
}

/// As many blocks as are not moved at once.
#[tokio::test]
async fn blocks_of_a_list_of_the_old_form_go_where_their_births_belong() {
    const COUNT: u64 = 20_000;
    let mut world = enabled().await;
    let mos = &mut world.mos;
    let deflate = Deflate::default();
    let before = objects(mos).await;
    let target = bpobj::create(mos, &TRAITS, bpobj::BLOCK).await.unwrap();
    let blocks: Vec<BlkPtr> = (0..COUNT).map(|n| pointer(n + 1, 1, n % 40 + 1)).collect();
    let (stay, go): (Vec<BlkPtr>, Vec<BlkPtr>) = blocks.iter().copied().partition(|bp| bp.birth() <= 12);
    // The snapshot before one with such a list goes, which has such a list itself.
    let old = old_list(mos, &blocks).await;
    let gone = move_to_bpobj(mos, &TRAITS, old, &deflate, 12, target).await.unwrap();
    assert_eq!(gone, bpobj::space(mos, target).await.unwrap());
    let found: BTreeSet<u64> =
        bpobj::all(mos, target).await.unwrap().iter().map(|entry| entry.blkptr.birth()).collect();
    assert_eq!((found.first(), found.last()), (Some(&13), Some(&40)));
    assert_eq!(bpobj::all(mos, target).await.unwrap().len(), go.len());
    assert_eq!(moved_singly(mos, old).await.unwrap(), stay.len() as u64);
    let earlier = [pointer(COUNT + 1, 1, 3), pointer(COUNT + 2, 1, 12)];
    let other = old_list(mos, &earlier).await;
    merge(mos, &TRAITS, old, &deflate, other).await.unwrap();
    assert_eq!(moved_singly(mos, old).await.unwrap(), stay.len() as u64 + 2);
    // And now that one, before a list with buckets.
    let keys = BTreeSet::from([0, 3, 12]);
    let later = create(mos, &TRAITS, &[0, 3, 12]).await.unwrap();
    let fresh = [pointer(COUNT + 3, 1, 3), pointer(COUNT + 4, 1, 4)];
    insert(mos, &TRAITS, later, &deflate, &fresh).await.unwrap();
    merge(mos, &TRAITS, later, &deflate, old).await.unwrap();
    let all: Vec<BlkPtr> = stay.iter().chain(&earlier).chain(&fresh).copied().collect();
    verify(mos, later, &keys, &all).await;
    destroy(mos, &TRAITS, later).await.unwrap();
    bpobj::destroy(mos, target).await.unwrap();
    assert_eq!(objects(mos).await, before, "no object is left behind");
}
