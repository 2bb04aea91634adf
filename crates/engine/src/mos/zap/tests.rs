use std::collections::{BTreeMap, BTreeSet};

use ondisk::{
    Order,
    zap::{
        IntSize, NORM_UPPER,
        fat::{Header, Leaf, LeafEdit, Slot, Table, read_slot},
    },
};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};

use super::*;
use crate::mos::testing::{World, fresh};

async fn block(set: &mut MutSet, object: u64, blkid: u64) -> Bytes {
    set.block(object, blkid).await.unwrap().unwrap_or_else(|| panic!("block {blkid} is a hole"))
}

/// Checks every invariant of docs/format/zap.md §2 and returns the header; `None` for a microzap.
async fn verify(set: &mut MutSet, object: u64) -> Option<Header> {
    let first = block(set, object, 0).await;
    if let Form::Micro(micro) = form(set, object).await.unwrap() {
        let mut seen = BTreeSet::new();
        for (name, _, cd) in micro.entries() {
            let hash = micro.rule().hash(Key::Name(name)).unwrap();
            assert!(seen.insert((hash, cd)), "two entries have one hash and one cd");
        }
        assert_eq!(set.dnode(object).await.unwrap().max_block_id, 0);
        return None;
    }
    let header = Header::decode(&first, Order::Little).unwrap();
    assert_eq!(header.table_next_block, 0);
    let mut leaves: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for index in 0..header.slots() {
        let leaf = match header.slot(index).unwrap() {
            Slot::Embedded { byte } => read_slot(&first, byte, Order::Little).unwrap(),
            Slot::External { block: blkid, byte } => {
                read_slot(&block(set, object, blkid).await, byte, Order::Little).unwrap()
            }
        };
        leaves.entry(leaf).or_default().push(index);
    }
    let mut entries = 0;
    let mut used = BTreeSet::new();
    for (blkid, slots) in &leaves {
        let content = block(set, object, *blkid).await;
        let leaf = Leaf::decode(&content, header.key_shape(), Order::Little).unwrap();
        let span = leaf.table_span(header.table_shift).unwrap();
        let start = leaf.prefix() * span;
        assert_eq!(*slots, (start..start + span).collect::<Vec<_>>(), "leaf {blkid}");
        let mut ids = BTreeSet::new();
        let mut chunks = 0;
        for entry in leaf.entries() {
            let entry = entry.unwrap();
            assert!(ids.insert((entry.hash, entry.cd)), "two entries have one hash and one cd");
            assert_eq!(header.hash_rule().hash(entry.key.as_key()), Some(entry.hash));
            chunks += entry.chunks();
        }
        assert_eq!(ids.len(), usize::from(leaf.entry_count()));
        let whole = LeafEdit::new(header.block_shift, header.key_shape(), 0).unwrap().chunks_free();
        assert_eq!(usize::from(leaf.free_count()), whole - chunks);
        entries += u64::from(leaf.entry_count());
        used.insert(*blkid);
    }
    used.extend(header.table_block..header.table_block + header.table_blocks);
    assert_eq!(header.entries, entries);
    assert_eq!(header.leaves, leaves.len() as u64);
    assert!(used.iter().all(|blkid| *blkid < header.free_block));
    let last = set.dnode(object).await.unwrap().max_block_id;
    assert!(last < header.free_block);
    for blkid in (1..=last).filter(|blkid| !used.contains(blkid)) {
        assert_eq!(set.block(object, blkid).await.unwrap(), None, "block {blkid} is used by nothing");
    }
    Some(header)
}

async fn same_as(set: &mut MutSet, object: u64, model: &BTreeMap<Vec<u8>, Value>) {
    let mut all = BTreeMap::new();
    for (key, value) in entries(set, object).await.unwrap() {
        let OwnedKey::Name(name) = key else { panic!("a key of words") };
        assert!(all.insert(name, value).is_none(), "a name occurs twice");
    }
    assert!(all == *model, "{} entries instead of {}", all.len(), model.len());
    for (name, value) in model {
        assert_eq!(get(set, object, Key::Name(name)).await.unwrap().as_ref(), Some(value));
    }
}

/// A name of 1 to `max` bytes, few of which are long.
fn name(random: &mut StdRng, max: usize) -> Vec<u8> {
    let len = match random.random_range(0..10) {
        0 => random.random_range(1..=max),
        _ => random.random_range(3..=12.min(max)),
    };
    (0..len).map(|_| *b"abcdefghijklmnopqrstuvwxyz0123456789-_.:%@".iter().choose(random).unwrap()).collect()
}

fn value(random: &mut StdRng) -> Value {
    match random.random_range(0..12) {
        0 => Value::from_text("a string that is somewhat longer than one chunk of a leaf"),
        1 => Value::from_u64s(&vec![random.random(); random.random_range(0..12)]),
        2 => Value::from_u16s(&[random.random(), random.random(), random.random()]),
        3 => Value::from_be_bytes(IntSize::Four, vec![random.random(); 4 * random.random_range(1..20)])
            .unwrap(),
        4 => Value::from_be_bytes(IntSize::One, vec![7; random.random_range(0..3000)]).unwrap(),
        _ => Value::from_u64(random.random()),
    }
}

/// Random changes in several transaction groups, read back by the reading half of the pool after each.
async fn churn(
    world: &mut World,
    object: u64,
    random: &mut StdRng,
    steps: usize,
    name: impl Fn(&mut StdRng) -> Vec<u8>,
    value: impl Fn(&mut StdRng) -> Value,
) {
    let mut model = BTreeMap::new();
    for step in 0..steps {
        let set = &mut world.mos;
        match random.random_range(0..10) {
            0..7 => {
                let (name, value) = (name(random), value(random));
                self::set(set, object, Key::Name(&name), value.clone()).await.unwrap();
                model.insert(name, value);
            }
            7 => {
                let old = model.keys().choose(random).cloned().unwrap_or_else(|| b"x".to_vec());
                let value = value(random);
                self::set(set, object, Key::Name(&old), value.clone()).await.unwrap();
                model.insert(old, value);
            }
            8 => {
                let old = model.keys().choose(random).cloned().unwrap_or_else(|| b"x".to_vec());
                let there = model.remove(&old).is_some();
                assert_eq!(remove(set, object, Key::Name(&old)).await.unwrap(), there);
            }
            _ => {
                let other = name(random);
                let there = model.remove(&other).is_some();
                assert_eq!(remove(set, object, Key::Name(&other)).await.unwrap(), there);
            }
        }
        if step % 2000 == 1999 || step + 1 == steps {
            verify(set, object).await;
            same_as(set, object, &model).await;
            let committed = world.commit().await;
            verify(&mut world.mos, object).await;
            let zap = pool::zap::Zap::open_in(&committed, object).await.unwrap();
            let read = zap.to_vec().await.unwrap().into_iter();
            let read: BTreeMap<_, _> =
                read.map(|(key, value)| (key.name().unwrap().to_vec(), value)).collect();
            assert!(read == model, "{} entries instead of {}", read.len(), model.len());
            for (name, value) in &model {
                assert_eq!(zap.get(name.as_slice()).await.unwrap().as_ref(), Some(value));
            }
        }
    }
}

#[tokio::test]
async fn a_microzap_grows_by_512_bytes_to_128_kib_and_then_becomes_fat() {
    let mut set = fresh().await;
    let object = create(&mut set, ObjectType::DSL_PROPS, 0).await.unwrap();
    let mut sizes = BTreeSet::new();
    for number in 0..2100u64 {
        set_u64(&mut set, object, &format!("name {number}"), number).await.unwrap();
        sizes.insert(set.dnode(object).await.unwrap().data_block_bytes());
        if number == 6 || number == 7 {
            assert_eq!(sizes.last(), Some(if number == 6 { &512 } else { &1024 }));
        }
        if number == 2046 {
            assert_eq!(verify(&mut set, object).await, None);
            assert_eq!(
                sizes.iter().copied().collect::<Vec<_>>(),
                (1..=256).map(|n| n * 512).collect::<Vec<_>>()
            );
        }
    }
    let header = verify(&mut set, object).await.unwrap();
    assert_eq!((header.entries, header.block_shift), (2100, 14));
    for number in 0..2100u64 {
        assert_eq!(get_u64(&mut set, object, &format!("name {number}")).await.unwrap(), Some(number));
    }
    assert_eq!(get_u64(&mut set, object, "name 2100").await.unwrap(), None);
}

#[tokio::test]
async fn what_a_microzap_cannot_hold_makes_it_fat() {
    let long = "n".repeat(50);
    let fits = "n".repeat(49);
    let cases = [
        (long.as_str(), Value::from_u64(1), true),
        (fits.as_str(), Value::from_u64(1), false),
        ("text", Value::from_text("lz4"), true),
        ("two", Value::from_u64s(&[1, 2]), true),
    ];
    for (name, value, fat) in cases {
        let mut set = fresh().await;
        let object = create(&mut set, ObjectType::DSL_PROPS, NORM_UPPER).await.unwrap();
        set_u64(&mut set, object, "Before", 5).await.unwrap();
        let salt = match form(&mut set, object).await.unwrap() {
            Form::Micro(micro) => micro.rule().salt,
            _ => panic!("not micro"),
        };
        self::set(&mut set, object, name.into(), value.clone()).await.unwrap();
        let header = verify(&mut set, object).await;
        assert_eq!(header.is_some(), fat, "{name}");
        assert!(header.is_none_or(|header| header.salt == salt && header.normflags == NORM_UPPER));
        assert_eq!(get(&mut set, object, name.into()).await.unwrap(), Some(value));
        assert_eq!(get_u64(&mut set, object, "Before").await.unwrap(), Some(5));
        assert_eq!(get_u64(&mut set, object, "BEFORE").await.unwrap(), None, "names match exactly");
    }
}

#[tokio::test]
async fn random_changes_leave_what_a_map_would() {
    let mut random = StdRng::seed_from_u64(1);
    let mut world = World::new().await;
    let object = create(&mut world.mos, ObjectType::ZAP_METADATA, 0).await.unwrap();
    churn(&mut world, object, &mut random, 16_000, |r| name(r, 255), value).await;
    assert!(verify(&mut world.mos, object).await.unwrap().leaves > 20);
    let object = create(&mut world.mos, ObjectType::DSL_DATASET_SNAP_MAP, NORM_UPPER).await.unwrap();
    churn(&mut world, object, &mut random, 2000, |r| name(r, 49), |r| Value::from_u64(r.random())).await;
    assert_eq!(verify(&mut world.mos, object).await, None);
}

#[tokio::test]
async fn setting_what_is_there_leaves_the_set_clean() {
    for text in [false, true] {
        let mut world = World::new().await;
        let object = create(&mut world.mos, ObjectType::DSL_PROPS, 0).await.unwrap();
        let other = if text { Value::from_text("lz4") } else { Value::from_u64(15) };
        for _ in 0..2 {
            set_u64(&mut world.mos, object, "copies", 2).await.unwrap();
            set(&mut world.mos, object, "compression".into(), other.clone()).await.unwrap();
            assert!(!remove(&mut world.mos, object, "quota".into()).await.unwrap());
            world.commit().await;
            assert!(!world.mos.is_dirty());
            set_u64(&mut world.mos, object, "copies", 2).await.unwrap();
            set(&mut world.mos, object, "compression".into(), other.clone()).await.unwrap();
            assert!(!remove(&mut world.mos, object, "quota".into()).await.unwrap());
            assert!(!world.mos.is_dirty());
        }
        set_u64(&mut world.mos, object, "copies", 3).await.unwrap();
        assert!(world.mos.is_dirty());
    }
}

#[tokio::test]
async fn ten_thousand_entries_at_once_and_one_by_one_are_the_same() {
    let mut set = fresh().await;
    let all: Vec<(OwnedKey, Value)> =
        (0..10_000u64).map(|n| (OwnedKey::Name(format!("{n:x}").into_bytes()), Value::from_u64(n))).collect();
    let at_once = create(&mut set, ObjectType::DEADLIST, 0).await.unwrap();
    set_many(&mut set, at_once, all.clone()).await.unwrap();
    let one_by_one = create(&mut set, ObjectType::DEADLIST, 0).await.unwrap();
    for (key, value) in &all {
        self::set(&mut set, one_by_one, key.as_key(), value.clone()).await.unwrap();
    }
    let model = all.into_iter().map(|(key, value)| (key.name().unwrap().to_vec(), value)).collect();
    for object in [at_once, one_by_one] {
        verify(&mut set, object).await.unwrap();
        same_as(&mut set, object, &model).await;
    }
}

/// An empty fat ZAP as other software makes them for its tables.
async fn foreign(set: &mut MutSet, block_shift: u32) -> u64 {
    let object =
        set.allocate(NewObject::of(ObjectType::ZAP_METADATA).blocks(1 << block_shift)).await.unwrap();
    let header = Header::new(block_shift, 0x4003, 0, 0).unwrap();
    let table = Table::new(header.table_shift, 1).unwrap();
    set.put_block(object, 0, header.encode(&table, Order::Little).unwrap().into()).await.unwrap();
    let leaf = LeafEdit::new(block_shift, header.key_shape(), 0).unwrap();
    set.put_block(object, 1, leaf.encode(Order::Little).into()).await.unwrap();
    object
}

#[tokio::test]
async fn small_blocks_make_the_table_leave_the_header_and_double() {
    let mut random = StdRng::seed_from_u64(2);
    for block_shift in [10, 12, 13] {
        let mut world = World::new().await;
        let object = foreign(&mut world.mos, block_shift).await;
        churn(&mut world, object, &mut random, 4000, |r| name(r, 60), |r| Value::from_u64(r.random())).await;
        let header = verify(&mut world.mos, object).await.unwrap();
        assert_eq!(header.block_shift, block_shift);
        if block_shift == 10 {
            assert!(header.table_blocks >= 4, "{header:?}");
        }
    }
}

#[tokio::test]
async fn a_table_found_half_doubled_is_completed_first() {
    let mut set = fresh().await;
    let object = foreign(&mut set, 10).await;
    let mut model = BTreeMap::new();
    for number in 0..1500u64 {
        let name = format!("entry {number}").into_bytes();
        model.insert(name.clone(), Value::from_u64(number));
        self::set(&mut set, object, Key::Name(&name), Value::from_u64(number)).await.unwrap();
    }
    let header = verify(&mut set, object).await.unwrap();
    assert!(header.table_blocks > 0);
    // Blocks were set aside for the new table, and the first half of the old one was copied.
    let mut first = block(&mut set, object, 0).await.to_vec();
    let next = header.free_block;
    for (place, word) in [(40, next), (48, header.table_blocks / 2), (56, next + 2 * header.table_blocks)] {
        first[place..place + 8].copy_from_slice(&word.to_le_bytes());
    }
    set.put_block(object, 0, first.into()).await.unwrap();
    for blkid in next..next + header.table_blocks {
        set.put_block(object, blkid, vec![1; 1024].into()).await.unwrap();
    }
    // The old table counts until then.
    same_as(&mut set, object, &model).await;
    model.remove(b"entry 7".as_slice());
    assert!(remove(&mut set, object, "entry 7".into()).await.unwrap());
    let after = verify(&mut set, object).await.unwrap();
    assert_eq!((after.table_block, after.table_blocks), (next, 2 * header.table_blocks));
    assert_eq!(after.table_shift, header.table_shift + 1);
    same_as(&mut set, object, &model).await;
}

/// OpenZFS 2.3 gives up empty leaves, and with the last ones their ids, while the object keeps its size. The next leaf was
/// refused the id that the header says is free, which ended the transaction group.
#[tokio::test]
async fn ids_that_were_given_up_at_the_end_are_used_again() {
    let mut world = World::new().await;
    let object = foreign(&mut world.mos, 10).await;
    // Leaves up to 41 came, and all but the first went: the one before the last first of all.
    for blkid in 2..=41 {
        world.mos.put_block(object, blkid, vec![1; 1024].into()).await.unwrap();
    }
    world.commit().await;
    world.mos.punch(object, 2..41).await.unwrap();
    world.mos.truncate(object, 41).await.unwrap();
    world.commit().await;
    assert_eq!(world.mos.dnode(object).await.unwrap().max_block_id, 40);
    let mut model = BTreeMap::new();
    for number in 0..1500u64 {
        let name = format!("entry {number}").into_bytes();
        model.insert(name.clone(), Value::from_u64(number));
        set(&mut world.mos, object, Key::Name(&name), Value::from_u64(number)).await.unwrap();
    }
    let header = verify(&mut world.mos, object).await.unwrap();
    assert!(header.table_blocks > 0 && header.leaves > 40, "{header:?}");
    assert_eq!(header.free_block, 1 + world.mos.dnode(object).await.unwrap().max_block_id);
    world.commit().await;
    verify(&mut world.mos, object).await.unwrap();
    same_as(&mut world.mos, object, &model).await;
}

#[tokio::test]
async fn a_block_that_is_in_use_is_not_handed_out_whatever_the_header_says() {
    let mut set = fresh().await;
    let object = foreign(&mut set, 10).await;
    set.put_block(object, 2, vec![1; 1024].into()).await.unwrap();
    let mut numbers = 0..1500u64;
    let error = loop {
        let number = numbers.next().expect("the leaf has to be split");
        if let Err(error) = set_u64(&mut set, object, &format!("entry {number}"), number).await {
            break error.to_string();
        }
    };
    assert!(error.contains("is in use"), "{error}");
    assert_eq!(block(&mut set, object, 2).await, vec![1; 1024]);
}

#[tokio::test]
async fn names_of_one_hash_get_different_cds_and_keep_them() {
    let mut set = fresh().await;
    let object = create(&mut set, ObjectType::DSL_PROPS, 0).await.unwrap();
    let Form::Micro(micro) = form(&mut set, object).await.unwrap() else { panic!("not micro") };
    // 28 bits: among 2^16 random names some eight pairs have the same. (A CRC keeps names that differ in a few
    // bytes next to each other apart, so counting up finds none.)
    let mut random = StdRng::seed_from_u64(4);
    let mut by_hash: BTreeMap<u64, String> = BTreeMap::new();
    let pair = (0..1u32 << 17)
        .find_map(|_| {
            let name = format!("{:x}", random.random::<u128>());
            let hash = micro.rule().hash(name.as_str().into()).unwrap();
            by_hash.insert(hash, name.clone()).filter(|other| *other != name).map(|other| (other, name))
        })
        .expect("a pair of one hash");
    let cds = async |set: &mut MutSet| -> BTreeMap<Vec<u8>, u32> {
        match form(set, object).await.unwrap() {
            Form::Micro(micro) => micro.entries().map(|(name, _, cd)| (name.to_vec(), cd)).collect(),
            Form::Fat(_) => {
                let content = block(set, object, 1).await;
                let leaf = Leaf::decode(&content, ondisk::zap::fat::KeyShape::Names, Order::Little).unwrap();
                let entries = leaf.entries().map(Result::unwrap);
                entries.map(|entry| (entry.key.name().unwrap().to_vec(), entry.cd)).collect()
            }
            Form::Empty => BTreeMap::new(),
        }
    };
    let (first, second) = (pair.0.as_str(), pair.1.as_str());
    set_u64(&mut set, object, first, 1).await.unwrap();
    set_u64(&mut set, object, second, 2).await.unwrap();
    remove(&mut set, object, first.into()).await.unwrap();
    // The second keeps its place; the first comes back into the gap.
    assert_eq!(cds(&mut set).await[second.as_bytes()], 1);
    set_u64(&mut set, object, first, 3).await.unwrap();
    let expected = BTreeMap::from([(first.into(), 0), (second.into(), 1)]);
    assert_eq!(cds(&mut set).await, expected);
    remove(&mut set, object, first.into()).await.unwrap();
    self::set(&mut set, object, "fat".into(), Value::from_text("now")).await.unwrap();
    assert_eq!(cds(&mut set).await[second.as_bytes()], 1, "an upgrade keeps cds");
    self::set(&mut set, object, second.into(), Value::from_text("longer")).await.unwrap();
    assert_eq!(cds(&mut set).await[second.as_bytes()], 1, "a replacement keeps its cd");
    set_u64(&mut set, object, first, 4).await.unwrap();
    assert_eq!(cds(&mut set).await[first.as_bytes()], 0);
    verify(&mut set, object).await.unwrap();
}

#[tokio::test]
async fn what_no_zap_can_hold_is_refused_and_changes_nothing() {
    let mut set = fresh().await;
    let object = create(&mut set, ObjectType::DSL_PROPS, NORM_UPPER).await.unwrap();
    set_u64(&mut set, object, "here", 1).await.unwrap();
    self::set(&mut set, object, "text".into(), Value::from_text("fat")).await.unwrap();
    let before = block(&mut set, object, 1).await;
    let long = "n".repeat(256);
    let huge = Value::from_be_bytes(IntSize::One, vec![0; 8193]).unwrap();
    let refused = [
        ("", Value::from_u64(1)),
        (long.as_str(), Value::from_u64(1)),
        ("a\0b", Value::from_u64(1)),
        ("here", huge),
        ("Zoë", Value::from_u64(1)),
    ];
    for (name, value) in refused {
        let error = self::set(&mut set, object, name.into(), value).await.unwrap_err();
        assert!(error.to_string().contains(&format!("object {object}")), "{error}");
    }
    assert_eq!(block(&mut set, object, 1).await, before);
    assert!(set_many(&mut set, object, vec![(OwnedKey::Words(vec![1]), Value::from_u64(1))]).await.is_err());
    assert_eq!(entries(&mut set, object).await.unwrap().len(), 2);
    verify(&mut set, object).await.unwrap();
}

#[tokio::test]
async fn objects_with_a_bonus_and_objects_that_are_no_zap() {
    let mut set = fresh().await;
    let new = NewObject::of(ObjectType::DSL_DIR).bonus(ObjectType::DSL_DIR, &[1; 256]);
    let object = set.allocate(new).await.unwrap();
    assert_eq!(entries(&mut set, object).await.unwrap(), []);
    assert!(!remove(&mut set, object, "com.delphix:livelist".into()).await.unwrap());
    set.set_type(object, ObjectType::ZAP_METADATA).await.unwrap();
    init(&mut set, object, 0).await.unwrap();
    set_u64(&mut set, object, "com.delphix:livelist", 77).await.unwrap();
    assert_eq!(set.bonus(object).await.unwrap(), [1; 256]);
    assert_eq!(get_u64(&mut set, object, "com.delphix:livelist").await.unwrap(), Some(77));
    set_int(&mut set, object, 0xabc).await.unwrap();
    assert_eq!(get_u64(&mut set, object, "abc").await.unwrap(), Some(0xabc));
    assert!(remove_int(&mut set, object, 0xabc).await.unwrap());
    assert!(!remove_int(&mut set, object, 0xabc).await.unwrap());
    assert_eq!(numbers(&mut set, object).await.unwrap(), [("com.delphix:livelist".to_owned(), 77)]);

    let other = set.allocate(NewObject::of(ObjectType::HISTORY)).await.unwrap();
    set.write(other, 0, b"what is no zap must not become one").await.unwrap();
    assert!(get_u64(&mut set, other, "x").await.is_err());
    assert!(set_u64(&mut set, other, "x", 1).await.is_err());
}

#[tokio::test]
async fn a_forged_fat_zap_ends_in_an_error() {
    let mut random = StdRng::seed_from_u64(3);
    for round in 0..400 {
        let mut set = fresh().await;
        let object = foreign(&mut set, 10).await;
        for number in 0..200 {
            set_u64(&mut set, object, &format!("entry {number}"), number).await.unwrap();
        }
        let last = set.dnode(object).await.unwrap().max_block_id;
        let blkid = if round % 2 == 0 { 0 } else { random.random_range(0..=last) };
        let mut content = set.block(object, blkid).await.unwrap().unwrap_or(vec![0; 1024].into()).to_vec();
        // Counters and tables are more worth hitting than names.
        let at = if blkid == 0 { random.random_range(8..104) } else { random.random_range(8..1024) };
        content[at] ^= 1 << random.random_range(0..8);
        set.put_block(object, blkid, content.into()).await.unwrap();
        for number in 190..260 {
            // Either may fail; neither may panic, hang or eat the machine's memory.
            if set_u64(&mut set, object, &format!("entry {number}"), number).await.is_err() {
                break;
            }
        }
        drop(entries(&mut set, object).await);
        drop(remove(&mut set, object, "entry 3".into()).await);
    }
}
