//! Devices that do not answer for a moment while a pool is opened after a crash: it is not opened for writing as if there had
//! been no more to read, and what was acknowledged is there as soon as they answer again.

use std::{collections::BTreeMap, io::ErrorKind, ops::Range, slice, sync::Arc};

use block::{Asked, BlockVolume, Durability};
use disk::{Disk, Effect, Fault, FaultDisk, On};
use engine::{
    dsl::{self, NewVolume, Properties, Stored},
    engine::{Ending, Engine, OpenError},
};
use ondisk::{
    blkptr::{BlkPtr, Dva},
    label::DATA_OFFSET,
};
use pool::{
    dmu::{Cursor, Step},
    dsl::HeadKind,
    import::{self, Sources},
    verify::{self, Kind},
    zil,
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    crashed::{assert_holds, chain_of, only_claim, pool_on, start, start_on},
    support::{World, as_disks, content, data, noise},
};

const FUA: Durability = Durability::Stable(Asked::Fua);
const SIZE: u64 = 1 << 20;
/// Name of the volume, below a file system.
const VOLUME: &str = "tank/fs/v";
/// One right below the root, whose log is empty.
const OTHER: &str = "tank/other";
const SECTOR: u64 = 4096;

/// What volumes must hold.
type Twins = BTreeMap<String, Vec<u8>>;

/// A pool whose power was cut while the last writes to the volume were in its log only.
async fn crashed(layout: &str, block: u32, properties: &Properties) -> (World, Twins) {
    let (mut world, running) = World::create(layout, 12, 64 << 20, 5).await;
    // With few children their map is in its pointer.
    let siblings =
        (1..16_u64).map(|number| format!("tank/fs/{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    for name in [VOLUME, OTHER].map(str::to_owned).into_iter().chain(siblings) {
        let new = NewVolume { name, size: SIZE, block, properties: properties.clone(), parents: true };
        running
            .engine
            .run(move |cx| Box::pin(async move { Box::pin(dsl::create_volume(cx, &new)).await }))
            .await
            .unwrap();
    }
    let mut volumes = Vec::new();
    for name in [VOLUME, OTHER] {
        let volume = running.engine.volume(name).await.unwrap();
        // The log begins with a transaction group, so the first of them is not in it.
        for _ in 0..2 {
            volume.write(0, data(noise(1, 512)), FUA).await.unwrap();
        }
        volumes.push(volume);
    }
    running.engine.sync().await.unwrap();
    let mut random = StdRng::seed_from_u64(6);
    for number in 0..8 {
        let at = random.random_range(0..SIZE / u64::from(block)) * u64::from(block);
        volumes[0].write(at, data(noise(10 + number, block.into())), FUA).await.unwrap();
    }
    let mut twins = Twins::new();
    for (name, volume) in [VOLUME, OTHER].into_iter().zip(&volumes) {
        twins.insert(name.to_owned(), content(&**volume).await);
    }
    drop(volumes);
    world.cut(running).await;
    (world, twins)
}

/// A disk that does not answer for these ranges.
fn refusing(world: &World, number: usize, ranges: &[Range<u64>]) -> Arc<FaultDisk> {
    let disk = FaultDisk::new(Arc::clone(&world.media[number]) as Arc<dyn Disk>, 1);
    for range in ranges {
        disk.inject(Fault::new(On::Read, range.clone(), Effect::Error(ErrorKind::Other)));
    }
    Arc::new(disk)
}

/// Opens the pool on disks of which one is another.
async fn start_with(world: &World, number: usize, disk: &Arc<FaultDisk>) -> Result<Arc<Engine>, String> {
    let mut disks = as_disks(&world.media);
    disks[number] = Arc::clone(disk) as Arc<dyn Disk>;
    start(pool_on(disks).await?).await
}

/// Opens the pool on its first disk alone, which may lack its log device: what is said of it now, and not only remembered, is
/// `gives_up_log`.
async fn start_lacking_log(disk: &Arc<FaultDisk>, gives_up_log: bool) -> Result<Arc<Engine>, String> {
    let found = import::scan(&Sources::disks(vec![Arc::clone(disk) as Arc<dyn Disk>])).await;
    let options = import::OpenOptions {
        force: true,
        missing_log: true,
        unreadable_log: gives_up_log,
        ..import::OpenOptions::default()
    };
    start(import::open(&found.pools[0], &options).await.unwrap()).await
}

/// Volumes whose logs are among the data, and not on the log device.
fn apart() -> Properties {
    Properties::from([("logbias".to_owned(), Stored::Number(1))])
}

/// The pool is refused as long as the disk does not answer, because of `name`, and complete when it does.
async fn is_waited_for(world: &World, twins: &Twins, number: usize, ranges: &[Range<u64>], name: &str) {
    let disk = refusing(world, number, ranges);
    let error = start_with(world, number, &disk).await.expect_err("what may be there is not given up");
    assert!(error.contains(name) && error.contains("try again when its devices answer"), "{error}");
    disk.heal();
    let engine = start_with(world, number, &disk).await.unwrap();
    let replayed = engine.replayed();
    assert!(replayed.volumes == 1 && replayed.lost.is_empty(), "{replayed:?}");
    assert_holds(&engine, twins, name).await;
    engine.end(Ending::Export).await.unwrap();
}

fn place(dva: &Dva) -> Range<u64> {
    DATA_OFFSET + dva.offset..DATA_OFFSET + dva.offset + dva.asize
}

async fn spoil(world: &World, number: usize, range: Range<u64>) {
    let len = range.end - range.start;
    world.media[number].write(range.start, noise(99, len).into()).await.unwrap();
}

/// The second block of the volume's log, which holds records and is not where the log ends.
async fn log_block(world: &World) -> BlkPtr {
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (_, blocks) = chain_of(&pool, VOLUME).await;
    assert!(blocks.len() > 3, "{} blocks", blocks.len());
    blocks[1].0
}

/// The blocks that records of the volume's log point to.
async fn written_ahead(world: &World) -> Vec<BlkPtr> {
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let head = zil::heads(&pool).await.unwrap().into_iter().find(|head| head.name == VOLUME).unwrap();
    let mut reader = zil::Reader::new(pool.io(), head.objset, &head.header);
    let mut found = Vec::new();
    while let Some(zil::Found { block: Ok(block), .. }) = reader.next().await {
        found.extend(block.records().filter_map(|record| record.indirect()).filter(|bp| !bp.is_hole()));
    }
    assert!(found.len() > 3, "{} blocks", found.len());
    found
}

/// Where the map of the file system's children is, without which nobody finds the volume.
async fn child_map(world: &World) -> Vec<Range<u64>> {
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (live, _) = pool.heads().await.unwrap();
    let fs = live.iter().find(|head| head.name() == "tank/fs").unwrap();
    let map = pool.mos().object(fs.dir().phys().child_map).await.unwrap();
    let Step::Block(pointer) = map.seek(&mut Cursor::default(), 0, 0).await.unwrap() else { panic!("a map") };
    let places: Vec<_> = pointer.dvas().map(|dva| place(&dva)).collect();
    assert!(!places.is_empty());
    places
}

/// Where the object set of the volume is.
async fn object_set(world: &World) -> Vec<Range<u64>> {
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (live, _) = pool.heads().await.unwrap();
    let volume = live.iter().find(|head| head.name() == VOLUME).unwrap();
    volume.phys().unwrap().bp.dvas().map(|dva| place(&dva)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_log_block_that_one_side_does_not_give_and_the_other_never_had_is_waited_for() {
    for (layout, silent, other) in [("mirror d0 d1", 0, 1), ("d0 log mirror d1 d2", 1, 2)] {
        let (world, twins) = crashed(layout, 8192, &Properties::new()).await;
        let range = place(&log_block(&world).await.dvas().next().unwrap());
        spoil(&world, other, range.clone()).await;
        is_waited_for(&world, &twins, silent, &[range], VOLUME).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_block_of_which_a_stripe_lacks_one_cell_and_does_not_give_another_is_waited_for() {
    const DISKS: u64 = 3;
    let (world, twins) = crashed("raidz1 d0 d1 d2", 8192, &Properties::new()).await;
    let dva = log_block(&world).await.dvas().next().unwrap();
    // Parity comes first, then data.
    let cell = |sector: u64| {
        let start = DATA_OFFSET + sector / DISKS * SECTOR;
        ((sector % DISKS) as usize, start..start + SECTOR)
    };
    let (silent, parity) = cell(dva.offset / SECTOR);
    let (other, first) = cell(dva.offset / SECTOR + 1);
    spoil(&world, other, first).await;
    is_waited_for(&world, &twins, silent, &[parity], VOLUME).await;
}

/// Where a log ends something else is found on every device. One that is not there is no reason to wait for it.
#[tokio::test(start_paused = true)]
async fn a_side_that_is_gone_is_not_waited_for() {
    let (world, twins) = crashed("mirror d0 d1", 8192, &Properties::new()).await;
    let engine = start(pool_on(as_disks(&world.media[1..])).await.unwrap()).await.unwrap();
    assert_holds(&engine, &twins, "one side").await;
    engine.end(Ending::Close).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn data_of_the_log_that_no_device_gives_is_waited_for() {
    let (world, twins) = crashed("mirror d0 d1", 64 << 10, &Properties::new()).await;
    let range = place(&written_ahead(&world).await[1].dvas().next().unwrap());
    // Never written on one side, or just as silent there.
    for is_spoilt in [true, false] {
        let world = world.fork();
        let one = refusing(&world, 0, slice::from_ref(&range));
        let other = match is_spoilt {
            true => refusing(&world, 1, &[]),
            false => refusing(&world, 1, slice::from_ref(&range)),
        };
        if is_spoilt {
            spoil(&world, 1, range.clone()).await;
        }
        let disks = || -> Vec<Arc<dyn Disk>> { vec![Arc::clone(&one) as _, Arc::clone(&other) as _] };
        let error = start(pool_on(disks()).await.unwrap()).await.expect_err("data that may be there");
        assert!(error.contains(VOLUME) && error.contains("try again when its devices answer"), "{error}");
        one.heal();
        other.heal();
        let engine = start(pool_on(disks()).await.unwrap()).await.unwrap();
        assert_holds(&engine, &twins, "its data is given again").await;
        engine.end(Ending::Export).await.unwrap();
    }
}

/// The end of every log that was cut off while data of it was on its way.
#[tokio::test(start_paused = true)]
async fn data_of_the_log_that_was_never_written_ends_it() {
    let (world, twins) = crashed("mirror d0 d1", 64 << 10, &Properties::new()).await;
    let range = place(&written_ahead(&world).await[1].dvas().next().unwrap());
    for number in 0..2 {
        spoil(&world, number, range.clone()).await;
    }
    let engine = start_on(&world.media).await;
    let replayed = engine.replayed();
    assert!(replayed.records == 1 && replayed.lost.is_empty(), "{replayed:?}");
    assert!(content(&*engine.volume(VOLUME).await.unwrap()).await != twins[VOLUME]);
    engine.end(Ending::Export).await.unwrap();
    world.verify("ended early").await;
}

/// With `-m` whoever opens the pool has said that what cannot be read is given up. It was, and nobody was told.
#[tokio::test(start_paused = true)]
async fn data_of_the_log_that_is_given_up_with_a_log_device_is_told_of() {
    let (world, _) = crashed("d0 log d1", 64 << 10, &apart()).await;
    let range = place(&written_ahead(&world).await[1].dvas().next().unwrap());
    let disk = refusing(&world, 0, &[range]);
    let engine = start_lacking_log(&disk, true).await.unwrap();
    let replayed = engine.replayed();
    assert!(
        replayed.lost.iter().any(|(name, why)| name == VOLUME && why.contains("cannot be read")),
        "{replayed:?}"
    );
    assert_eq!(replayed.records, 1, "what is before it is not given up");
    engine.end(Ending::Export).await.unwrap();
}

/// A block of a log that a drive did not give was taken for the end of the log, and the pool called clean though nobody could
/// import it for writing.
#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_read_to_its_end_is_no_clean_pool() {
    for layout in ["d0", "mirror d0 d1"] {
        let (world, _) = crashed(layout, 8192, &Properties::new()).await;
        let verified = async |disks: Vec<Arc<dyn Disk>>| {
            let pool = pool_on(disks).await.unwrap();
            verify::verify(&pool, &Arc::default()).await
        };
        let report = verified(as_disks(&world.media)).await;
        assert!(report.is_clean(), "{layout}: {report:#?}");
        // One that is allocated as of the last transaction group: what comes behind is not verified.
        let pool = pool_on(as_disks(&world.media)).await.unwrap();
        let (_, blocks) = chain_of(&pool, VOLUME).await;
        let synced = pool.uberblock().txg;
        let (pointer, _) = blocks.iter().rfind(|(pointer, _)| pointer.birth() <= synced).expect("a block");
        let range = place(&pointer.dvas().next().unwrap());
        // Others never had it.
        for other in 1..world.media.len() {
            spoil(&world, other, range.clone()).await;
        }
        let mut disks = as_disks(&world.media);
        disks[0] = refusing(&world, 0, slice::from_ref(&range));
        let report = verified(disks).await;
        let is_told = |what: &str| what.contains("whether the intent log goes on");
        let told = report.problems.iter().any(|problem| problem.kind == Kind::Lost && is_told(&problem.what));
        assert!(told && !report.is_clean(), "{layout}: {report:#?}");
    }
}

/// Where a drive had a bad sector for good at a block of a log, nobody could import the pool for writing ever again. `-m` goes
/// on without it, and what a start remembers of an earlier `-m` does not.
#[tokio::test(start_paused = true)]
async fn a_log_that_is_unreadable_for_good_is_given_up_by_whoever_says_so() {
    let (world, twins) = crashed("d0", 8192, &Properties::new()).await;
    let (_, blocks) = chain_of(&pool_on(as_disks(&world.media)).await.unwrap(), VOLUME).await;
    // Nothing that a space map has is behind it, which nobody could give back.
    let range = place(&blocks[blocks.len() - 3].0.dvas().next().unwrap());
    let bad = refusing(&world, 0, slice::from_ref(&range));
    let error = start_lacking_log(&bad, false).await.expect_err("no log device is missing");
    assert!(error.contains(VOLUME) && error.contains("import the pool with -m"), "{error}");
    let engine = start_lacking_log(&bad, true).await.unwrap();
    let replayed = engine.replayed();
    assert!(
        replayed.lost.iter().any(|(name, why)| name == VOLUME && why.contains("cannot be read")),
        "{replayed:?}"
    );
    let volume = engine.volume(VOLUME).await.unwrap();
    assert!(content(&*volume).await != twins[VOLUME], "there was something to lose");
    assert!(content(&*engine.volume(OTHER).await.unwrap()).await == twins[OTHER], "nothing of others");
    volume.write(0, data(noise(3, 8192)), FUA).await.unwrap();
    drop(volume);
    engine.end(Ending::Export).await.unwrap();
    world.verify("given up").await;
}

/// A log device that was gone for long, or that an administrator had taken offline, was reason enough for each start to give up
/// what other devices did not give just then: what clients had been told is stable was lost by devices that came back.
#[tokio::test(start_paused = true)]
async fn a_log_device_that_is_missing_is_no_reason_to_give_up_what_others_do_not_give() {
    let blocks = [(8192, false), (64 << 10, true)];
    for (block, is_outside) in blocks {
        let (world, twins) = crashed("d0 log d1", block, &apart()).await;
        let pointer = match is_outside {
            true => written_ahead(&world).await[1],
            false => log_block(&world).await,
        };
        let dva = pointer.dvas().next().unwrap();
        assert_eq!(dva.vdev, 0, "it is among the data");
        let disk = refusing(&world, 0, &[place(&dva)]);
        let error = start_lacking_log(&disk, false).await.expect_err("nobody said that it is given up");
        assert!(error.contains(VOLUME) && error.contains("import the pool with -m"), "{error}");
        disk.heal();
        let engine = start_lacking_log(&disk, false).await.unwrap();
        let replayed = engine.replayed();
        assert!(replayed.volumes == 1 && replayed.lost.is_empty(), "{replayed:?}");
        assert_holds(&engine, &twins, "it is given again").await;
        engine.end(Ending::Export).await.unwrap();
    }
}

/// A volume that was not served, and kept its damaged log for whoever decides about it, gave it up by itself at the first start
/// without the log device.
#[tokio::test(start_paused = true)]
async fn a_claimed_log_that_is_damaged_is_kept_also_where_a_log_device_is_missing() {
    let (world, _) = crashed("d0 log d1", 8192, &apart()).await;
    only_claim(&world).await;
    let dva = log_block(&world).await.dvas().next().unwrap();
    assert_eq!(dva.vdev, 0, "it is among the data");
    spoil(&world, 0, place(&dva)).await;
    let engine = start_lacking_log(&refusing(&world, 0, &[]), false).await.unwrap();
    let replayed = engine.replayed();
    let is_told = replayed.failed.values().any(|why| why.contains(VOLUME) && why.contains("with -m"));
    assert!(is_told && replayed.lost.is_empty(), "{replayed:?}");
    engine.end(Ending::Export).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn datasets_that_no_device_gives_are_waited_for_before_their_logs_are_given_away() {
    let (world, twins) = crashed("d0", 8192, &Properties::new()).await;
    let (map, set) = (child_map(&world).await, object_set(&world).await);
    is_waited_for(&world.fork(), &twins, 0, &map, "'tank/fs'").await;
    is_waited_for(&world.fork(), &twins, 0, &set, VOLUME).await;
}

/// A volume whose object set was read only the second time was taken for none: its log was claimed and not replayed.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_read_only_the_second_time_is_a_volume() {
    let (world, _) = crashed("d0", 8192, &Properties::new()).await;
    let disk = refusing(&world, 0, &object_set(&world).await);
    let pool = pool_on(vec![Arc::clone(&disk) as Arc<dyn Disk>]).await.unwrap();
    let (live, _) = pool.heads().await.unwrap();
    let kind = live.iter().find(|head| head.name() == VOLUME).unwrap().head_kind();
    assert_eq!(kind, HeadKind::Other, "not read when it was found");
    disk.heal();
    let heads = zil::headers(&live).await.into_iter().filter_map(|header| header.unwrap());
    let kinds: Vec<_> = heads.map(|head| (head.name, head.kind)).collect();
    assert!(kinds.contains(&(VOLUME.to_owned(), HeadKind::Volume)), "{kinds:?}");
}

/// Nothing was claimed of its log, and others got what that had taken since its header was written. To give that back once more
/// was to free what is theirs. If it was the object set that was damaged, the whole pool could not even be read. And nobody was
/// told that writes were lost.
#[tokio::test(start_paused = true)]
async fn a_log_that_was_left_out_because_its_dataset_was_damaged_takes_nothing_from_others_later() {
    let (crashed, twins) = crashed("d0", 8192, &Properties::new()).await;
    let (map, set) = (child_map(&crashed).await, object_set(&crashed).await);
    for (is_reopened, damaged) in [(false, &map), (true, &map), (false, &set), (true, &set)] {
        let world = crashed.fork();
        for range in damaged {
            spoil(&world, 0, range.clone()).await;
        }
        let mut engine = start_on(&world.media).await;
        let notes = engine.replayed().notes();
        assert!(
            notes.iter().any(|note| note.contains("'tank/fs") && note.contains("cannot be told")),
            "{notes:?}"
        );
        assert!(engine.volume(VOLUME).await.is_err(), "it is not found");
        let other = engine.volume(OTHER).await.unwrap();
        assert!(content(&*other).await == twins[OTHER], "others are served");
        for round in 0..24 {
            other.write(0, data(noise(round, SIZE)), Durability::Cached).await.unwrap();
            engine.sync().await.unwrap();
        }
        if is_reopened {
            engine.end(Ending::Close).await.unwrap();
        }
        for range in damaged {
            let bytes = crashed.media[0].snapshot(range.clone()).to_vec();
            world.media[0].write(range.start, bytes.into()).await.unwrap();
        }
        if is_reopened {
            engine = start_on(&world.media).await;
        }
        let volume = engine.volume(VOLUME).await.unwrap();
        assert!(content(&*volume).await != twins[VOLUME], "what was in its log only is lost");
        let lost: Vec<String> = engine.replayed().lost.into_iter().map(|(name, _)| name).collect();
        // The next import takes the records for old ones; it was told at the one that left them out.
        assert_eq!(lost.contains(&VOLUME.to_owned()), !is_reopened, "{lost:?}");
        volume.write(0, data(noise(7, 8192)), FUA).await.unwrap();
        engine.sync().await.unwrap();
        let other = engine.volume(OTHER).await.unwrap();
        assert!(content(&*other).await == noise(23, SIZE));
        engine.end(Ending::Export).await.unwrap();
        world.verify("given back").await;
    }
}

/// It was served without what its clients had been told is stable, and the next import did the old log again over what they
/// had written since.
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_not_found_while_logs_were_replayed_is_not_served_before_its_own_is() {
    let (world, twins) = crashed("d0", 8192, &Properties::new()).await;
    only_claim(&world).await;
    let (before, map) = (world.fork(), child_map(&world).await);
    for range in &map {
        spoil(&world, 0, range.clone()).await;
    }
    let engine = start_on(&world.media).await;
    assert!(engine.volume(VOLUME).await.is_err(), "it is not found");
    for range in &map {
        let bytes = before.media[0].snapshot(range.clone()).to_vec();
        world.media[0].write(range.start, bytes.into()).await.unwrap();
    }
    let refused = engine.volume(VOLUME).await.unwrap_err();
    assert!(matches!(&refused, OpenError::Unreplayed(why) if why.contains(VOLUME)), "{refused}");
    assert!(content(&*engine.volume(OTHER).await.unwrap()).await == twins[OTHER], "others are served");
    engine.end(Ending::Close).await.unwrap();
    let engine = start_on(&world.media).await;
    let replayed = engine.replayed();
    assert!(replayed.volumes == 1 && replayed.failed.is_empty(), "{replayed:?}");
    assert_holds(&engine, &twins, "found again").await;
    engine.end(Ending::Export).await.unwrap();
    world.verify("found again").await;
}

/// One sector of a pool that was exported kept it from being written to for ever, though there was nothing in its logs.
#[tokio::test(start_paused = true)]
async fn an_object_set_that_no_device_gives_keeps_nobody_from_a_pool_that_was_exported() {
    let (world, twins) = crashed("d0", 8192, &Properties::new()).await;
    start_on(&world.media).await.end(Ending::Export).await.unwrap();
    let disk = refusing(&world, 0, &object_set(&world).await);
    let engine = start_with(&world, 0, &disk).await.unwrap();
    assert!(engine.volume(VOLUME).await.is_err(), "it cannot be read");
    let other = engine.volume(OTHER).await.unwrap();
    assert!(content(&*other).await == twins[OTHER]);
    drop(other);
    disk.heal();
    assert!(content(&*engine.volume(VOLUME).await.unwrap()).await == twins[VOLUME], "nothing was lost");
    engine.end(Ending::Export).await.unwrap();
    world.verify("exported").await;
}
