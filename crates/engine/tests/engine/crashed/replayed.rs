//! What a replay makes of what became of a volume since: of another size, read-only, rolled back, gone, refused; and of more
//! than is in memory at a time.

use engine::{
    dsl::{NewVolume, Stored},
    engine::OpenError,
    sync::{Syncer, Task, TaskFuture},
};
use ondisk::zil::{Body, CHAIN_BYTES, Record, TxType, WriteData};
use pool::dmu::{Cursor, Step};

use super::*;
use crate::support::plain;

/// A volume that may not be written to, or has become smaller, is what its clients left it as far as it goes.
#[tokio::test(start_paused = true)]
async fn neither_readonly_nor_another_size_is_in_the_way() {
    let (world, mut twins) = cut_off("d0", 8).await;
    // Claimed and changed in one transaction group, and cut off before anything was replayed.
    let mut cx = open::open(pool_on(as_disks(&world.media)).await.unwrap(), going_on()).await.unwrap();
    let mut tasks = Vec::new();
    for (name, property, value) in [("tank/a", "readonly", 1), ("tank/b", "volsize", 128 << 10)] {
        let properties: Properties = [(property.to_owned(), Stored::Number(value))].into();
        tasks.push(Task {
            is_snapshot: false,
            run: Box::new(move |cx| {
                Box::pin(async move {
                    dsl::set(cx, name, &properties).await.unwrap();
                    Ok(())
                })
            }),
            done: Box::new(|outcome| outcome.unwrap()),
        });
    }
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work { tasks, ..Work::default() }).await.unwrap();
    drop(cx);
    twins.get_mut("tank/b").unwrap().truncate(128 << 10);

    let engine = start_on(&world.media).await;
    assert_eq!(engine.replayed().volumes, 2, "{:?}", engine.replayed());
    let geometry = engine.volume("tank/a").await.unwrap().geometry();
    assert!(geometry.read_only && geometry.size == 256 << 10);
    assert_holds(&engine, &twins, "readonly=on, smaller").await;
    engine.end(Ending::Export).await.unwrap();
    world.verify("replayed").await;
}

/// A log whose replay was not tried goes with its dataset, or with a rollback, and leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_log_that_was_not_replayed_goes_with_its_content() {
    let (world, _) = cut_off("d0", 9).await;
    let mut cx = open::open(pool_on(as_disks(&world.media)).await.unwrap(), going_on()).await.unwrap();
    let (txg, now) = (cx.txg, cx.now);
    cx.sync_txg(txg, now, Work::default()).await.unwrap();
    let step = async |cx: &mut Syncer, is_snapshot: bool, name: &'static str| {
        let run: Box<dyn for<'a> FnOnce(&'a mut Syncer) -> TaskFuture<'a> + Send> = match is_snapshot {
            true => Box::new(move |cx| {
                Box::pin(async move {
                    dsl::snapshot(cx, &[name.to_owned()], &Properties::new()).await.unwrap();
                    Ok(())
                })
            }),
            false => Box::new(move |cx| {
                Box::pin(async move {
                    match name.contains('@') {
                        true => dsl::rollback(cx, name).await.unwrap(),
                        false => dsl::destroy_head(cx, name).await.unwrap(),
                    }
                    Ok(())
                })
            }),
        };
        let task = Task { is_snapshot, run, done: Box::new(|outcome| outcome.unwrap()) };
        let (txg, now) = (cx.txg + 1, cx.now);
        cx.sync_txg(txg, now, Work { tasks: vec![task], ..Work::default() }).await.unwrap();
    };
    step(&mut cx, true, "tank/a@s").await;
    step(&mut cx, false, "tank/a@s").await;
    step(&mut cx, false, "tank/b").await;
    drop(cx);
    let engine = start_on(&world.media).await;
    assert_eq!(engine.replayed().records, 0, "nothing is left to be replayed");
    for _ in 0..3 {
        engine.sync().await.unwrap();
    }
    engine.end(Ending::Export).await.unwrap();
    world.verify("given up").await;
}

/// Either is what an administrator is told to do about it. Neither helped: the volume was refused until the next import, and
/// another one that got its number as well.
#[tokio::test(start_paused = true)]
async fn a_volume_is_refused_no_longer_than_the_log_that_could_not_be_replayed_is_there() {
    let (world, _) = cut_off("d0", 15).await;
    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let (head, blocks) = chain_of(&pool, "tank/a").await;
    drop(pool);
    // What no volume has, behind what can be replayed.
    let (pointer, raw) = blocks.last().unwrap();
    let mut bytes = raw.to_vec();
    let kind = u64::from(TxType::Create.id());
    bytes[CHAIN_BYTES..CHAIN_BYTES + 8].copy_from_slice(&kind.to_le_bytes());
    put_sealed(&world, pointer, bytes).await;
    for is_rolled_back in [true, false] {
        let world = world.fork();
        let engine = start_on(&world.media).await;
        assert!(engine.replayed().failed.contains_key(&head.objset), "{:?}", engine.replayed());
        assert!(matches!(engine.volume("tank/a").await, Err(OpenError::Unreplayed(_))));
        if is_rolled_back {
            let size = Properties::from([("volsize".to_owned(), Stored::Number(512 << 10))]);
            engine.run(move |cx| Box::pin(async move { dsl::set(cx, "tank/a", &size).await })).await.unwrap();
            let opened = engine.volume("tank/a").await;
            assert!(matches!(opened, Err(OpenError::Unreplayed(_))), "another size is no other content");
            let names = vec!["tank/a@s".to_owned()];
            engine
                .run_snapshot(move |cx| {
                    Box::pin(async move { dsl::snapshot(cx, &names, &Properties::new()).await })
                })
                .await
                .unwrap();
            engine.run(|cx| Box::pin(async move { dsl::rollback(cx, "tank/a@s").await })).await.unwrap();
        } else {
            engine.run(|cx| Box::pin(async move { dsl::destroy_head(cx, "tank/a").await })).await.unwrap();
            assert!(engine.replayed().failed.is_empty(), "its number is anybody's now");
            let new = NewVolume {
                name: "tank/a".to_owned(),
                size: 256 << 10,
                block: 8192,
                properties: Properties::new(),
                parents: false,
            };
            engine.run(move |cx| Box::pin(async move { dsl::create_volume(cx, &new).await })).await.unwrap();
        }
        let notes = engine.replayed().notes();
        assert!(notes.is_empty(), "{notes:?}");
        let volume = engine.volume("tank/a").await.unwrap();
        volume.write(0, data(vec![9; 8192]), Durability::Stable(Asked::Fua)).await.unwrap();
        assert!(content(&*volume).await[..8192] == [9; 8192]);
        drop(volume);
        engine.end(Ending::Export).await.unwrap();
        world.verify("the log is gone").await;
    }
}

/// A log block that points to more data than is in memory at a time. What is read later was written later.
#[tokio::test(start_paused = true)]
async fn the_records_of_a_block_that_points_to_much_data_are_replayed_in_their_order() {
    const LARGE: u64 = 128 << 10;
    const RECORDS: u64 = 600;
    const PLACES: u64 = 50;
    const START: u64 = 8 << 20;
    let fua = Durability::Stable(Asked::Fua);
    let (mut world, running) = World::create("d0", 12, 96 << 20, 16).await;
    let source = running.volume("tank/source", 3 * LARGE, LARGE as u32, plain()).await;
    for number in 0..3_u8 {
        let bytes = vec![number + 1; LARGE as usize];
        source.write(u64::from(number) * LARGE, data(bytes), Durability::Cached).await.unwrap();
    }
    let volume = running.volume("tank/a", 16 << 20, 8192, plain()).await;
    volume.write(0, data(vec![1; 512]), fua).await.unwrap();
    running.engine.sync().await.unwrap();
    // So much at once gets the longest log blocks.
    for _ in 0..4 {
        volume.write(0, data(vec![1; 1 << 20]), fua).await.unwrap();
    }
    drop((source, volume));
    world.cut(running).await;

    let pool = pool_on(as_disks(&world.media)).await.unwrap();
    let source = pool.open_volume("tank/source").await.unwrap();
    let mut sources = Vec::new();
    for number in 0..3 {
        let found = source.data().seek(&mut Cursor::default(), 0, number).await.unwrap();
        let Step::Block(pointer) = found else { panic!("{found:?}") };
        sources.push(pointer);
    }
    let (_, blocks) = chain_of(&pool, "tank/a").await;
    drop((source, pool));
    let (pointer, raw) = blocks.iter().rfind(|(pointer, _)| pointer.psize() == LARGE).unwrap();
    let word = |at: usize| u64::from_le_bytes(raw[CHAIN_BYTES + at..][..8].try_into().unwrap());
    let (txg, sequence) = (word(16), word(24));
    let mut bytes = raw[..CHAIN_BYTES].to_vec();
    for number in 0..RECORDS {
        let to = WriteData::Indirect(sources[number as usize % 3]);
        let offset = START + number % PLACES * LARGE;
        let body = Body::Write { object: 1, offset, length: LARGE, data: to };
        let record = Record { case_insensitive: false, txg, sequence: sequence + number, body };
        bytes.extend(record.encode(Order::Little).unwrap());
    }
    let used = bytes.len() as u64;
    bytes[136..144].copy_from_slice(&used.to_le_bytes());
    bytes.resize(LARGE as usize, 0);
    put_sealed(&world, pointer, bytes).await;

    let engine = start_on(&world.media).await;
    let replayed = engine.replayed();
    assert!(replayed.failed.is_empty() && replayed.records >= RECORDS, "{replayed:?}");
    let volume = engine.volume("tank/a").await.unwrap();
    let all = content(&*volume).await;
    for place in 0..PLACES {
        let last = RECORDS - PLACES + place;
        let at = (START + place * LARGE) as usize;
        let expected = (last % 3) as u8 + 1;
        assert!(all[at..at + LARGE as usize].iter().all(|byte| *byte == expected), "place {place}");
    }
    drop(volume);
    engine.end(Ending::Export).await.unwrap();
    world.verify("replayed").await;
}
