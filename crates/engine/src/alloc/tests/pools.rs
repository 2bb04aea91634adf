//! Against a MOS: what `write_maps` leaves there is what the next to load it finds. And against pools made by
//! others: what is read of them, and what becomes of their logs.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva},
    dnode::{BlkPtrs, Bonus, Dnode, ObjectType},
    objset::ObjsetType,
    spacemap::{self, Header, Kind, MapEntry, Segment},
};
use pool::{
    BlockError, Bookmark, Pool,
    dmu::{BlockSource, DnodeAt, Object, ReadError, SourceFuture},
    import::{OpenOptions, Sources, open, scan},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    super::{
        Allocator, Purpose,
        load::replay,
        logs::{LOGS_MAX, Logs, Room, bytes_max, note},
        maps::PIECE,
        metaslab::apply,
        ranges::Change,
        top::Top,
        units::Units,
    },
    model::top,
};
use crate::{
    EngineError,
    dmu::{MutSet, NewObject},
    mos::{
        DIRECTORY, features,
        testing::{World, pointer},
        zap,
    },
    policy::TRAITS,
};

/// A pool without blocks: everything is in the set.
#[derive(Debug)]
struct Nothing;

impl BlockSource for Nothing {
    fn cached(&self, _: &BlkPtr) -> Option<bytes::Bytes> {
        None
    }
    fn read<'a>(&'a self, bp: &'a BlkPtr, _: Bookmark) -> SourceFuture<'a, Result<bytes::Bytes, BlockError>> {
        Box::pin(async move { panic!("nothing was written: {bp:?}") })
    }
    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<bytes::Bytes, BlockError>>> {
        Box::pin(async move { panic!("nothing was written: {blocks:?}") })
    }
}

/// A MOS with a directory and the features that are counted here.
pub(super) async fn new_mos() -> MutSet {
    let mut mos = MutSet::create(Arc::new(Nothing), 0, ObjsetType::Meta);
    let new = NewObject::of(ObjectType::OBJECT_DIRECTORY);
    mos.claim(DIRECTORY, new).await.unwrap();
    zap::init(&mut mos, DIRECTORY, 0).await.unwrap();
    count_features(&mut mos).await;
    mos
}

/// Gives a MOS the features that are counted here.
async fn count_features(mos: &mut MutSet) {
    for name in ["features_for_read", "features_for_write", "feature_descriptions"] {
        let object = zap::create(mos, ObjectType::ZAP_METADATA, 0).await.unwrap();
        zap::set_u64(mos, DIRECTORY, name, object).await.unwrap();
    }
    features::enable(mos, "com.delphix:spacemap_histogram", 4).await.unwrap();
}

/// The space map `object` as the MOS will have it.
async fn map_of(mos: &mut MutSet, object: u64) -> (Header, Vec<MapEntry>) {
    let bonus = mos.bonus(object).await.unwrap();
    let header = Header::decode(&bonus, Order::Little).unwrap();
    let bytes = mos.read(object, 0, header.length as usize).await.unwrap();
    (header, spacemap::entries(&bytes, Order::Little).map(Result::unwrap).collect())
}

/// Checks every metaslab against its map, and logs: bits, sums, counts. Returns bytes in use.
async fn check(alloc: &Allocator, mos: &mut MutSet) -> u64 {
    let mut logged: BTreeMap<(u64, u64), Vec<Change>> = BTreeMap::new();
    let mut logs = 0;
    if let Some(object) = zap::get_u64(mos, DIRECTORY, "com.delphix:log_spacemap_zap").await.unwrap() {
        for (_, value) in zap::entries(mos, object).await.unwrap() {
            logs += 1;
            for entry in map_of(mos, value.as_u64().unwrap()).await.1 {
                let MapEntry::Segment(segment) = entry else { continue };
                let top = alloc.tops[segment.vdev.unwrap() as usize].as_ref().unwrap();
                let range = segment.range(9).unwrap();
                let (index, units) = top.locate(range.start, range.end - range.start).unwrap();
                logged.entry((top.id, index as u64)).or_default().push(Change { kind: segment.kind, units });
            }
        }
        assert_eq!(logs, 1, "one log is kept");
    }
    let (mut used, mut objects) = (0, 0);
    for top in alloc.tops.iter().flatten() {
        let array = mos.read(top.array, 0, top.metaslabs.len() * 8).await.unwrap();
        for (index, object) in Order::Little.words(&array).enumerate() {
            let metaslab = &top.metaslabs[index];
            assert_eq!(object, metaslab.object);
            let mut bits = Units::none(metaslab.len);
            if object != 0 {
                objects += 1;
                let (header, entries) = map_of(mos, object).await;
                let mut sum = 0;
                for entry in entries {
                    let MapEntry::Segment(segment) = entry else { continue };
                    let units = segment.offset..segment.offset + segment.run;
                    sum += super::super::maps::net(&[Change { kind: segment.kind, units: units.clone() }]);
                    apply(&mut bits, &Change { kind: segment.kind, units }).expect("the map replays");
                }
                assert_eq!(header.alloc, sum << top.ashift);
                for change in logged.remove(&(top.id, index as u64)).unwrap_or_default() {
                    apply(&mut bits, &change).expect("the log replays");
                }
            }
            assert_eq!(bits.count(), metaslab.used, "vdev {} metaslab {index}", top.id);
            used += bits.count() << top.ashift;
            if let Some(loaded) = &metaslab.loaded {
                assert!(bits.runs(true).eq(loaded.used.runs(true)), "vdev {} metaslab {index}", top.id);
            }
        }
    }
    assert!(logged.is_empty(), "entries of metaslabs without maps");
    let counted = features::count(mos, "com.delphix:spacemap_histogram").await.unwrap();
    assert!(counted.unwrap() >= objects + logs, "{counted:?} counted, {objects} maps, {logs} logs");
    used
}

#[tokio::test]
async fn maps_in_the_mos_say_what_is_in_use() {
    let mut random = StdRng::seed_from_u64(7);
    let mut mos = new_mos().await;
    let mut alloc = Allocator::create(TRAITS, &[top(0, 200 << 20, 24), top(1, 100 << 20, 24)]);
    let mut blocks: Vec<Dva> = Vec::new();
    let (mut condensed, mut lengths) = (0, BTreeMap::new());
    for txg in 4..120 {
        alloc.begin(txg, None, &mut mos).await.unwrap();
        for pass in 0..3 {
            for _ in 0..random.random_range(0..200 >> (3 * pass)) {
                blocks.extend(alloc.allocate(4096, 1, Purpose::Data).await.unwrap());
                if blocks.len() > 8000 || random.random_bool(0.4) {
                    let at = random.random_range(0..blocks.len());
                    alloc.release(blocks.swap_remove(at));
                }
            }
            assert!(alloc.write_maps(&mut mos).await.unwrap() || pass > 0);
        }
        assert!(!alloc.write_maps(&mut mos).await.unwrap(), "nothing is new");
        for (number, top) in alloc.tops.iter().enumerate() {
            for (index, metaslab) in top.as_ref().unwrap().metaslabs.iter().enumerate() {
                let before = lengths.insert((number, index), metaslab.header.length).unwrap_or(0);
                condensed += u32::from(metaslab.header.length < before);
            }
        }
        alloc.committed();
        if txg % 8 == 0 {
            let used = check(&alloc, &mut mos).await;
            assert_eq!(used, blocks.len() as u64 * 4096);
        }
    }
    check(&alloc, &mut mos).await;
    assert!(condensed == 0, "maps of two blocks are not worth condensing");
    assert_eq!(alloc.arrays().len(), 2);
    assert!(alloc.arrays().iter().all(|(_, object)| *object != 0));
}

#[tokio::test]
async fn a_map_that_grew_long_is_written_anew() {
    let mut random = StdRng::seed_from_u64(8);
    let mut mos = new_mos().await;
    let mut alloc = Allocator::create(TRAITS, &[top(0, 100 << 20, 26)]);
    let mut blocks: Vec<Dva> = Vec::new();
    let (mut condensed, mut length) = (0, 0);
    for txg in 4..60 {
        alloc.begin(txg, None, &mut mos).await.unwrap();
        for _ in 0..1000 {
            blocks.extend(alloc.allocate(4096, 1, Purpose::Data).await.unwrap());
            if blocks.len() > 6000 {
                let at = random.random_range(0..blocks.len());
                alloc.release(blocks.swap_remove(at));
            }
        }
        alloc.write_maps(&mut mos).await.unwrap();
        alloc.committed();
        let now = alloc.tops[0].as_ref().unwrap().metaslabs[0].header.length;
        condensed += u32::from(now < length);
        length = now;
        // Twice what says it shortest, and what comes until that is looked at again.
        assert!(length <= 2 * 8 * 6000 + (64 << 10), "{length}");
        check(&alloc, &mut mos).await;
    }
    assert!(condensed >= 2, "{condensed}");
}

/// What a command frees was taken for segments of their own and stayed so, as a command loads nothing and nobody changed those
/// metaslabs again: a pool that was empty looked fragmented by half.
#[tokio::test]
async fn histograms_that_were_guessed_for_too_long_are_counted_a_few_in_each_group() {
    let mut world = World::new().await;
    count_features(&mut world.mos).await;
    let mut alloc = Allocator::create(TRAITS, &[top(0, 24 << 20, 22)]);
    let (mut blocks, mut committed): (Vec<Dva>, _) = (Vec::new(), None);
    let mut left = Vec::new();
    for txg in 4..11 {
        alloc.begin(txg, committed.take(), &mut world.mos).await.unwrap();
        let metaslabs = &mut alloc.tops[0].as_mut().unwrap().metaslabs;
        let loaded = metaslabs.iter().filter(|metaslab| metaslab.loaded.is_some()).count();
        assert!(txg <= 5 || loaded <= 2, "{loaded} loaded in {txg}");
        // As if each group was another process's.
        metaslabs.iter_mut().for_each(|metaslab| metaslab.unload());
        if txg == 4 {
            for _ in 0..6000 {
                blocks.extend(alloc.allocate(4096, 1, Purpose::Data).await.unwrap());
            }
        } else {
            let is_due = |dva: &Dva| txg == 6 || txg == 5 && (dva.offset >> 12).is_multiple_of(2);
            blocks.extract_if(.., |dva| is_due(dva)).for_each(|dva| alloc.release(dva));
        }
        alloc.write_maps(&mut world.mos).await.unwrap();
        alloc.committed();
        committed = Some(world.commit().await);
        let metaslabs = &alloc.tops[0].as_ref().unwrap().metaslabs;
        left.push(metaslabs.iter().filter(|metaslab| metaslab.is_doubtful()).count());
    }
    // Every second unit is free, then all are, each for itself as far as is known.
    assert_eq!(left[2..], [6, 4, 2, 0, 0], "{left:?}");
    let mut whole = [0; 32];
    whole[10] = 1;
    for object in alloc.tops[0].as_ref().unwrap().metaslabs.iter().map(|metaslab| metaslab.object) {
        assert_eq!(map_of(&mut world.mos, object).await.0.histogram, Some(whole));
    }
}

/// All that the logs of others had of a metaslab was made entries in one go, with three copies of it in memory beside.
#[tokio::test]
async fn changes_of_several_pieces_make_one_map() {
    let mut mos = new_mos().await;
    let mut alloc = Allocator::create(TRAITS, &[top(0, 1 << 30, 30)]);
    alloc.begin(4, None, &mut mos).await.unwrap();
    let first = alloc.allocate(4096, 1, Purpose::Data).await.unwrap()[0].offset >> 12;
    alloc.write_maps(&mut mos).await.unwrap();
    let count = PIECE as u64 + 1000;
    let units = (1..=count).map(|number| first + 2 * number);
    let changes = units.map(|unit| Change { kind: Kind::Alloc, units: unit..unit + 1 }).collect();
    alloc.append(0, 0, changes, &mut mos).await.unwrap();
    let metaslab = &alloc.tops[0].as_ref().unwrap().metaslabs[0];
    let (header, entries) = map_of(&mut mos, metaslab.object).await;
    assert_eq!((&header, header.alloc), (&metaslab.header, ((count + 1) << 12) as i64));
    let mut bits = Units::none(metaslab.len);
    for entry in entries {
        let MapEntry::Segment(segment) = entry else { continue };
        let units = segment.offset..segment.offset + segment.run;
        apply(&mut bits, &Change { kind: segment.kind, units }).expect("the map replays");
    }
    assert_eq!(bits.count(), count + 1);
}

#[tokio::test]
async fn a_double_free_is_told_by_write_maps() {
    let mut mos = new_mos().await;
    let mut alloc = Allocator::create(TRAITS, &[top(0, 100 << 20, 24)]);
    alloc.begin(4, None, &mut mos).await.unwrap();
    let dva = alloc.allocate(4096, 1, Purpose::Data).await.unwrap()[0];
    alloc.release(dva);
    alloc.release(dva);
    let error = alloc.write_maps(&mut mos).await.unwrap_err().to_string();
    assert!(error.contains("top-level device 0, metaslab 0"), "{error}");
}

/// A space map that says it has so many bytes, of which nothing is stored.
fn hollow(length: u64) -> Object {
    let header = Header { object: 7, length, alloc: 0, histogram: None };
    let dnode = Dnode {
        object_type: ObjectType::SPACE_MAP,
        indirect_shift: 14,
        levels: 1,
        bonus_type: ObjectType::SPACE_MAP_HEADER,
        checksum_id: 0,
        compression_id: 0,
        flags: 0,
        data_sectors: 256,
        extra_slots: 0,
        max_block_id: 1 << 40,
        used: 0,
        reserved: ([0; 3], [0; 32]),
        blkptrs: BlkPtrs::new(&[BlkPtr::EMPTY]).unwrap(),
        bonus: Bonus::new(&header.encode(Order::Little)),
        spill: None,
    };
    Object::new(Arc::new(Nothing), 0, DnodeAt { number: 7, dnode, order: Order::Little }).unwrap()
}

/// A forged map of holes, 2^62 bytes of them, kept the import in a loop that nothing could end.
#[tokio::test]
async fn a_map_longer_than_any_is_refused_and_read_only_up_to_a_contradiction() {
    let error = replay(&hollow(1 << 32), 3, 5, 1 << 20).await.unwrap_err();
    assert!(matches!(error, EngineError::Read(ReadError::TooLarge { object: 7, .. })), "{error}");
    // Not longer than it may be; its second entry is the first once more.
    let error = replay(&hollow(256 << 20), 3, 5, 1 << 20).await.unwrap_err().to_string();
    assert!(error.starts_with("top-level device 3, metaslab 5: space map 7 does not replay"), "{error}");
}

/// Padding in blocks of any size, and the most bytes of them that were asked for together.
#[derive(Debug, Default)]
struct Padding {
    most: AtomicU64,
}

impl BlockSource for Padding {
    fn cached(&self, _: &BlkPtr) -> Option<bytes::Bytes> {
        None
    }
    fn read<'a>(&'a self, bp: &'a BlkPtr, _: Bookmark) -> SourceFuture<'a, Result<bytes::Bytes, BlockError>> {
        Box::pin(async move { panic!("it has no indirect blocks: {bp:?}") })
    }
    fn read_many<'a>(
        &'a self,
        blocks: &'a [(BlkPtr, Bookmark)],
    ) -> SourceFuture<'a, Vec<Result<bytes::Bytes, BlockError>>> {
        self.most.fetch_max(blocks.iter().map(|(bp, _)| bp.lsize()).sum(), Relaxed);
        let words = |bp: &BlkPtr| (1_u64 << 63).to_le_bytes().repeat(bp.lsize() as usize / 8);
        let contents: Vec<Result<bytes::Bytes, BlockError>> =
            blocks.iter().map(|(bp, _)| Ok(words(bp).into())).collect();
        Box::pin(std::future::ready(contents))
    }
}

/// 64 blocks were read at a time, however large they were: a forged log took a gigabyte, which was one block 64 times.
#[tokio::test]
async fn only_some_bytes_of_a_map_are_in_memory_at_a_time() {
    let source = Arc::new(Padding::default());
    let blocks = [1, 2, 3].map(|unique| pointer(unique, 4096, 5));
    let dnode = Dnode {
        data_sectors: 8192,
        max_block_id: 2,
        blkptrs: BlkPtrs::new(&blocks).unwrap(),
        ..hollow(12 << 20).dnode().clone()
    };
    let found = DnodeAt { number: 7, dnode, order: Order::Little };
    let map = Object::new(Arc::clone(&source) as Arc<dyn BlockSource>, 0, found).unwrap();
    assert_eq!(replay(&map, 3, 5, 1 << 20).await.unwrap().count(), 0);
    assert_eq!(source.most.load(Relaxed), 8 << 20);
}

/// Logs were taken into memory however many there were, and one under each of its names: a small image filled it. Later such a
/// pool was not opened at all, not even for reading.
#[tokio::test]
async fn more_logs_than_a_pool_of_its_size_has_are_refused() {
    let mut world = World::new().await;
    let names = zap::create(&mut world.mos, ObjectType::ZAP_METADATA, 0).await.unwrap();
    let mut logs = Vec::new();
    for length in [0, LOGS_MAX / 2, LOGS_MAX / 2 + 8] {
        let bonus = Header { object: 0, length, alloc: 0, histogram: None }.encode(Order::Little);
        let new = NewObject::of(ObjectType::SPACE_MAP).bonus(ObjectType::SPACE_MAP_HEADER, &bonus);
        logs.push(world.mos.allocate(new).await.unwrap());
    }
    zap::set_u64(&mut world.mos, names, "5", logs[0]).await.unwrap();
    Logs::read(&*world.commit().await, names, &mut []).await.unwrap();
    zap::set_u64(&mut world.mos, names, "6", logs[0]).await.unwrap();
    let twice = Logs::read(&*world.commit().await, names, &mut []).await.unwrap_err();
    assert!(matches!(twice, EngineError::Read(ReadError::Inconsistent { .. })), "{twice}");
    zap::set_u64(&mut world.mos, names, "5", logs[1]).await.unwrap();
    zap::set_u64(&mut world.mos, names, "6", logs[2]).await.unwrap();
    let mos = world.commit().await;
    let long = Logs::read(&mos, names, &mut []).await.unwrap_err();
    assert!(matches!(long, EngineError::Unsupported(_)), "it can still be read: {long}");
    // Of a large one they are looked at, and found to be empty.
    let mut large = [Some(Top::empty(&top(0, 2048 << 29, 29)))];
    let short = Logs::read(&mos, names, &mut large).await.unwrap_err();
    assert!(matches!(short, EngineError::Read(ReadError::Inconsistent { .. })), "{short}");
}

/// Pools of OpenZFS with many metaslabs that had crashed were refused: it lets logs grow to four blocks for each of them.
/// After that there was no end: it took only a sparse file with many metaslabs.
#[test]
fn logs_may_hold_more_changes_the_more_metaslabs_there_are() {
    let most = |count: u64, shift: u32| {
        let tops = [Some(Top::empty(&top(0, count << shift, shift)))];
        (bytes_max(&tops) / 16, Room::of(&tops).left)
    };
    assert_eq!(most(16, 29), (1 << 26, 1 << 24));
    let (entries, changes) = most(4096, 29);
    assert!(entries >= 4096 * 4 * (128 << 10) / 16);
    assert_eq!(changes, 1 << 25);
    // Many of them are no large device.
    assert_eq!(most(4096, 16), (1 << 26, 1 << 24));
    assert_eq!(most(32768, 28), (1 << 30, 1 << 25));
}

/// Each entry of a log took memory, a third more than it has on disk, and there was no end to them.
#[test]
fn changes_are_taken_from_logs_only_as_long_as_there_is_room() {
    let mut tops = [Some(Top::empty(&top(0, 100 << 20, 24)))];
    tops[0].as_mut().unwrap().metaslabs[0].unflushed = 4;
    let segment = Segment { kind: Kind::Alloc, offset: 0, run: 8, vdev: Some(0) };
    let mut room = Room::of(&tops);
    room.left = 1;
    note(&mut tops, 5, &segment, &mut room).unwrap();
    // What is in the map already takes none.
    note(&mut tops, 3, &segment, &mut room).unwrap();
    let error = note(&mut tops, 6, &segment, &mut room).unwrap_err().to_string();
    assert!(error.starts_with("the log space maps hold more changes than can be managed"), "{error}");
}

/// One after the other, kinds and units of 4 KiB, to the first metaslab of a device.
fn note_all(
    tops: &mut [Option<Top>],
    changes: impl IntoIterator<Item = (Kind, u64)>,
    room: &mut Room,
) -> Result<(), EngineError> {
    changes.into_iter().try_for_each(|(kind, unit)| {
        note(tops, 5, &Segment { kind, offset: 8 * unit, run: 8, vdev: Some(0) }, room)
    })
}

/// What was allocated and freed again took memory as often as it was. As nothing is left of it that changes anything, it must
/// not be forgotten that it was once free.
#[test]
fn what_logs_free_again_is_taken_once_and_has_to_follow_from_the_map() {
    let mut tops = [Some(Top::empty(&top(0, 100 << 20, 24)))];
    tops[0].as_mut().unwrap().metaslabs[0].unflushed = 4;
    let mut room = Room::of(&tops);
    let all = room.left;
    // Every other unit, so that nothing is merged.
    let round =
        [Kind::Alloc, Kind::Free].into_iter().flat_map(|kind| (0..512_u64).map(move |at| (kind, 2 * at)));
    let count = 4 * PIECE;
    note_all(&mut tops, round.cycle().take(count), &mut room).unwrap();
    let metaslab = &mut tops[0].as_mut().unwrap().metaslabs[0];
    let kept = metaslab.since.len();
    assert!(kept < count / 2, "{kept} of {count}");
    assert_eq!(room.left + kept as u64, all);
    metaslab.load(Units::none(metaslab.len)).unwrap();
    let mut used = Units::none(metaslab.len);
    used.insert(6..7).unwrap();
    metaslab.used = 1;
    assert_eq!(metaslab.load(used).unwrap_err(), "changes that do not follow from its space map");
}

#[test]
fn logs_that_contradict_themselves_are_told_when_they_are_netted() {
    for kind in [Kind::Alloc, Kind::Free] {
        let mut tops = [Some(Top::empty(&top(0, 100 << 20, 24)))];
        tops[0].as_mut().unwrap().metaslabs[0].unflushed = 4;
        let mut room = Room::of(&tops);
        let error = note_all(&mut tops, std::iter::repeat_n((kind, 9), 4 * PIECE), &mut room).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("top-level device 0, metaslab 0: the log space maps"), "{text}");
        assert!(text.ends_with("units 9..10"), "{text}");
    }
}

async fn open_fixture(name: &str) -> Option<Arc<Pool>> {
    let fixture = fixtures::try_pool(name)?;
    let found = scan(&Sources::paths([&fixture.dir])).await;
    let options = OpenOptions { force: true, ..OpenOptions::default() };
    Some(open(&found.pools[0], &options).await.unwrap())
}

async fn mos_of(view: &Arc<Pool>) -> MutSet {
    MutSet::open(view.io().clone(), 0, view.uberblock().rootbp).await.unwrap()
}

const POOLS: [&str; 8] =
    ["single", "mirror2", "raidz1x3", "raidz2x6", "ashift9-raidz1x4", "manytxg", "volblocks", "nofeatures"];

#[tokio::test]
async fn pools_of_others_load_to_what_their_headers_say() {
    let mut logged = 0;
    for name in POOLS {
        let Some(view) = open_fixture(name).await else { continue };
        let mut mos = mos_of(&view).await;
        let traits = features::traits(&mut mos).await.unwrap();
        let mut alloc = Allocator::open(&view, traits).await.unwrap();
        let space = view.space().await.unwrap().clone();
        for (number, of) in space.tops.iter().enumerate() {
            let top = alloc.tops[number].as_ref().unwrap();
            assert_eq!((top.capacity(), top.used), (of.size, of.allocated), "{name}");
            for index in 0..top.metaslabs.len() {
                // Fails if sums or entries contradict each other.
                alloc.load(number, index).await.unwrap();
            }
        }
        logged += u32::from(alloc.logs.is_some());
        assert_eq!(alloc.totals().capacity, pool::space::deflated_size(&view.tree()), "{name}");
    }
    assert!(logged > 0, "some of them have logs");
}

#[tokio::test]
async fn logs_of_others_are_flushed_and_replaced_by_ours() {
    for name in POOLS {
        let Some(view) = open_fixture(name).await else { continue };
        let mut random = StdRng::seed_from_u64(9);
        let mut mos = mos_of(&view).await;
        let traits = features::traits(&mut mos).await.unwrap();
        let mut alloc = Allocator::open(&view, traits).await.unwrap();
        let used: u64 = alloc.tops.iter().flatten().map(|top| top.used).sum();
        let mut blocks: Vec<Dva> = Vec::new();
        let mut owned = 0;
        // Nothing is synced, so the committed state stays what it was, and only one transaction group is true to
        // life; the metaslabs stay loaded through the others.
        let first = view.uberblock().txg + 1;
        for txg in first..first + 4 {
            let committed = (txg == first).then(|| view.mos().clone());
            alloc.begin(txg, committed, &mut mos).await.unwrap();
            for _ in 0..3 {
                for _ in 0..40 {
                    let found =
                        alloc.allocate(random.random_range(1..100_000), 2, Purpose::Data).await.unwrap();
                    owned += found.iter().map(|dva| dva.asize).sum::<u64>();
                    blocks.extend(found);
                    if random.random_bool(0.5) {
                        let dva = blocks.swap_remove(random.random_range(0..blocks.len()));
                        owned -= dva.asize;
                        alloc.release(dva);
                    }
                }
                assert!(alloc.write_maps(&mut mos).await.unwrap());
            }
            if traits.spacemap_histogram {
                assert_eq!(check(&alloc, &mut mos).await, used + owned, "{name}");
            }
            alloc.committed();
        }
    }
}
