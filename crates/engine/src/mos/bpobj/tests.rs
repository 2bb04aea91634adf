use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::mos::testing::{TRAITS, World, fresh, objects, pointer};

/// What lists hold, in no particular order.
fn sorted(entries: impl IntoIterator<Item = BpobjEntry>) -> Vec<[u64; 16]> {
    let mut words: Vec<_> = entries.into_iter().map(|entry| *entry.blkptr.words()).collect();
    words.sort_unstable();
    words
}

fn stripped<'a>(pointers: impl IntoIterator<Item = &'a BlkPtr>) -> Vec<[u64; 16]> {
    sorted(pointers.into_iter().map(|bp| BpobjEntry::strip(bp, false).unwrap()))
}

/// Checks the totals of a list and of every part against what is in them.
async fn verify(mos: &mut MutSet, object: u64, model: &[BlkPtr]) {
    let deflate = Deflate::default();
    assert!(sorted(all(mos, object).await.unwrap()) == stripped(model), "the list holds other blocks");
    let mut waiting = vec![object];
    while let Some(object) = waiting.pop() {
        let mut space = Space::ZERO;
        for entry in all(mos, object).await.unwrap() {
            space += deflate.space(&entry.blkptr);
        }
        let list = header(mos, object).await.unwrap();
        assert_eq!(totals(&list), space, "totals of {object}");
        let dnode = mos.dnode(object).await.unwrap();
        let blocks = (list.blkptrs * 128).div_ceil(dnode.data_block_bytes());
        assert_eq!(dnode.max_block_id, blocks.saturating_sub(1), "no blocks behind the end");
        waiting.extend(parts(mos, object, &list).await.unwrap());
    }
}

#[tokio::test]
async fn random_lists_of_lists_hold_and_give_what_was_put_in() {
    let mut random = StdRng::seed_from_u64(1);
    let deflate = Deflate::default();
    for round in 0..12 {
        let mut world = World::new().await;
        let empty = objects(&mut world.mos).await;
        let mut unique = 0;
        let mut lists: Vec<(u64, Vec<BlkPtr>)> = Vec::new();
        for _ in 0..60 {
            let mos = &mut world.mos;
            let at = random.random_range(0..lists.len().max(1));
            match random.random_range(0..10) {
                0..3 => {
                    // Small blocks make parts that are linked rather than copied.
                    let block = if random.random_bool(0.5) { BLOCK } else { 16 << 10 };
                    lists.push((create(mos, &TRAITS, block).await.unwrap(), Vec::new()));
                }
                3..6 if !lists.is_empty() => {
                    let most = if random.random_bool(0.3) { 3000 } else { 20 };
                    let count = random.random_range(0..most);
                    let fresh: Vec<BlkPtr> = (0..count)
                        .map(|_| {
                            unique += 1;
                            pointer(unique, random.random_range(1..256), random.random_range(4..1000))
                        })
                        .collect();
                    append(mos, lists[at].0, &deflate, &fresh).await.unwrap();
                    lists[at].1.extend(fresh);
                }
                6..8 if lists.len() > 1 => {
                    let (part, held) = lists.swap_remove(at);
                    let into = random.random_range(0..lists.len());
                    append_list(mos, lists[into].0, part).await.unwrap();
                    lists[into].1.extend(held);
                }
                8 if !lists.is_empty() => {
                    let (object, held) = &mut lists[at];
                    let max = random.random_range(0..4000);
                    let taken = take(mos, *object, &deflate, max).await.unwrap();
                    assert_eq!(taken.len(), max.min(held.len()), "as many as asked for, if there are");
                    let taken = sorted(taken);
                    let before = held.len();
                    held.retain(|bp| {
                        taken.binary_search(BpobjEntry::strip(bp, false).unwrap().blkptr.words()).is_err()
                    });
                    assert_eq!(before - held.len(), taken.len(), "each was in the list, once");
                }
                _ => {
                    world.commit().await;
                }
            }
        }
        world.commit().await;
        let mos = &mut world.mos;
        for (object, held) in &lists {
            verify(mos, *object, held).await;
            let (after, until) = (random.random_range(0..500), random.random_range(500..1000));
            let mut space = Space::ZERO;
            for bp in held.iter().filter(|bp| after < bp.birth() && bp.birth() <= until) {
                space += deflate.space(bp);
            }
            assert_eq!(space_in(mos, *object, &deflate, after, until).await.unwrap(), space);
        }
        for (object, held) in lists {
            if round % 2 == 0 {
                destroy(mos, object).await.unwrap();
            } else {
                let mut left = held.len();
                while left > 0 {
                    let taken = take(mos, object, &deflate, 777).await.unwrap().len();
                    assert!(taken > 0);
                    left -= taken;
                }
                assert_eq!(take(mos, object, &deflate, 1).await.unwrap(), []);
                let list = header(mos, object).await.unwrap();
                assert_eq!(list, BpobjPhys::default(), "nothing is left, no parts either");
                mos.free(object).await.unwrap();
            }
        }
        assert_eq!(objects(mos).await, empty, "no object is left behind");
    }
}

#[tokio::test]
async fn a_hundred_thousand_pointers_go_in_and_out() {
    let deflate = Deflate::default();
    let mut world = World::new().await;
    let object = create(&mut world.mos, &TRAITS, BLOCK).await.unwrap();
    let pointers: Vec<BlkPtr> = (1..=100_000).map(|n| pointer(n, 8, 4 + n % 50)).collect();
    append(&mut world.mos, object, &deflate, &pointers).await.unwrap();
    world.commit().await;
    let held = space(&mut world.mos, object).await.unwrap();
    assert_eq!((held.used, held.uncompressed), (100_000 * 4096, 100_000 * 8192));
    let mut taken = Vec::new();
    while taken.len() < pointers.len() {
        taken.extend(take(&mut world.mos, object, &deflate, 30_000).await.unwrap());
        world.commit().await;
    }
    assert!(sorted(taken) == stripped(&pointers));
    assert_eq!(header(&mut world.mos, object).await.unwrap(), BpobjPhys::default());
}

#[tokio::test]
async fn short_parts_are_copied_and_parts_of_parts_move_up() {
    let deflate = Deflate::default();
    let mut mos = fresh().await;
    let top = create(&mut mos, &TRAITS, BLOCK).await.unwrap();
    // As when a thousand snapshots are destroyed one by one: each list joins the next.
    let mut below = create(&mut mos, &TRAITS, BLOCK).await.unwrap();
    let mut model = Vec::new();
    for number in 0..40u64 {
        let long: Vec<_> = (0..1100).map(|n| pointer(number * 2000 + n + 1, 3, 4)).collect();
        append(&mut mos, below, &deflate, &long).await.unwrap();
        model.extend(long);
        let next = create(&mut mos, &TRAITS, BLOCK).await.unwrap();
        append_list(&mut mos, next, below).await.unwrap();
        below = next;
    }
    append_list(&mut mos, top, below).await.unwrap();
    verify(&mut mos, top, &model).await;
    let list = header(&mut mos, top).await.unwrap();
    assert_eq!((list.subobj_count, list.blkptrs), (40, 0));
    for part in parts(&mut mos, top, &list).await.unwrap() {
        assert_eq!(header(&mut mos, part).await.unwrap().subobj_count, 0, "one level is all there is");
    }
    let short = create(&mut mos, &TRAITS, BLOCK).await.unwrap();
    let few = [pointer(1 << 30, 1, 9), pointer((1 << 30) + 1, 2, 9)];
    append(&mut mos, short, &deflate, &few).await.unwrap();
    append_list(&mut mos, top, short).await.unwrap();
    assert!(!mos.exists(short).await.unwrap());
    model.extend(few);
    verify(&mut mos, top, &model).await;
    assert!(append_list(&mut mos, top, top).await.is_err());
}

#[tokio::test]
async fn headers_have_the_length_the_pool_has_and_grow_where_they_must() {
    let mut mos = fresh().await;
    let plain = create(&mut mos, &TRAITS, 16 << 10).await.unwrap();
    assert_eq!(mos.bonus(plain).await.unwrap().len(), 48);
    let dnode = mos.dnode(plain).await.unwrap();
    assert_eq!((dnode.data_block_bytes(), dnode.compression_id), (16 << 10, 2));
    let traits = Traits { livelist: true, ..TRAITS };
    let longer = create(&mut mos, &traits, BLOCK).await.unwrap();
    assert_eq!(mos.bonus(longer).await.unwrap().len(), 56);
    assert_eq!(mos.dnode(longer).await.unwrap().compression_id, 0);
    // A list of a pool made before lists had parts.
    let new = NewObject::of(ObjectType::BPOBJ).blocks(BLOCK).bonus(ObjectType::BPOBJ_HEADER, &[0; 32]);
    let old = mos.allocate(new).await.unwrap();
    let pointers: Vec<BlkPtr> = (1..2000).map(|n| pointer(n, 1, 4)).collect();
    append(&mut mos, old, &Deflate::default(), &pointers[..1]).await.unwrap();
    assert_eq!(mos.bonus(old).await.unwrap().len(), 32);
    append(&mut mos, longer, &Deflate::default(), &pointers[1..]).await.unwrap();
    append_list(&mut mos, old, longer).await.unwrap();
    assert_eq!(mos.bonus(old).await.unwrap().len(), 48);
    verify(&mut mos, old, &pointers).await;
}

#[tokio::test]
async fn what_is_kept_of_pointers_is_what_accounting_needs() {
    let mut mos = fresh().await;
    let object = create(&mut mos, &TRAITS, BLOCK).await.unwrap();
    let embedded = BlkPtr::embed(&[1, 2, 3], 4096, 15, ObjectType::ZVOL, Order::Little, 77).unwrap();
    let pointers = [pointer(1, 2, 5), embedded, BlkPtr::EMPTY];
    append(&mut mos, object, &Deflate::default(), &pointers).await.unwrap();
    let entries = all(&mut mos, object).await.unwrap();
    assert_eq!(entries.len(), 2, "holes are left out");
    assert_eq!(entries[0].blkptr.checksum(), [0; 4]);
    assert_eq!((entries[1].blkptr.birth(), entries[1].blkptr.lsize()), (77, 4096));
    let list = header(&mut mos, object).await.unwrap();
    assert_eq!((list.bytes, list.compressed_bytes, list.uncompressed_bytes), (1024, 1024, 2048 + 4096));
}

#[tokio::test]
async fn a_list_that_is_its_own_part_ends_in_an_error() {
    let mut mos = fresh().await;
    let object = create(&mut mos, &TRAITS, BLOCK).await.unwrap();
    let other = create(&mut mos, &TRAITS, BLOCK).await.unwrap();
    for (list, part) in [(object, other), (other, object)] {
        let mut phys = header(&mut mos, list).await.unwrap();
        append_parts(&mut mos, &mut phys, &[part]).await.unwrap();
        set_header(&mut mos, list, &phys).await.unwrap();
    }
    assert!(all(&mut mos, object).await.is_err());
    assert!(take(&mut mos, object, &Deflate::default(), 10).await.is_err());
    assert!(destroy(&mut mos, object).await.is_err());
}
