//! Devices that turn out larger or smaller than they were.

use engine::{
    devices::Onlined,
    dsl::{self, Stored},
};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_mirror_of_larger_devices_grows() {
    let mut case = Case::new("mirror d0 d1", 8).await;
    let size = |case: &Case| case.engine().view().tree().tops[0].top.as_ref().unwrap().asize;
    let small = size(&case);
    for word in ["d0", "d1"] {
        let new = case.disk(2 * DISK + (3 << 20));
        case.engine().replace(case.guid(word), new).await.unwrap();
        case.settled().await;
    }
    assert_eq!((case.draw(), size(&case)), ("mirror-0(d2 d3)".to_owned(), small));
    let leaf = case.guid("d3");
    assert_eq!(case.engine().online(leaf, None, true).await.unwrap(), Onlined::Healthy);
    assert!(size(&case) > 2 * small, "{} {small}", size(&case));
    let mut pieces = Vec::new();
    let volume = case.running.as_ref().unwrap();
    let big = volume.volume(&format!("{POOL}/big"), 100 << 20, 128 << 10, Properties::new()).await;
    for at in (0..96_u64 << 20).step_by(1 << 20) {
        let bytes: Vec<u8> = (0..1 << 20).map(|_| case.random.random()).collect();
        pieces.push((at, bytes.clone()));
        big.write(at, data(bytes), Durability::Cached).await.unwrap();
    }
    case.engine().sync().await.unwrap();
    case.judge("grown and filled").await;
    let big = case.engine().volume(&format!("{POOL}/big")).await.unwrap();
    for (at, bytes) in pieces {
        let found = big.read(at, bytes.len()).await.unwrap();
        let found: Vec<u8> = found
            .iter()
            .flat_map(|segment| match segment {
                block::Segment::Data(bytes) => bytes.to_vec(),
                block::Segment::Zero(len) => vec![0; *len],
            })
            .collect();
        assert!(found == bytes, "at {at}");
    }
    let before = size(&case);
    case.engine().online(case.guid("d2"), None, true).await.unwrap();
    assert_eq!(size(&case), before, "nothing more to be had");
}

async fn autoexpand(case: &Case) {
    let properties = Properties::from([("autoexpand".to_owned(), Stored::Number(1))]);
    let set = case.engine().run(move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await }));
    set.await.unwrap();
}

/// Only what grew before the eyes of the pool counted: a disk that was enlarged while the pool was closed, or before the
/// property was set, was never used.
#[tokio::test(start_paused = true)]
async fn a_pool_that_grows_by_itself_does_so_whenever_its_devices_grew() {
    for is_set_first in [true, false] {
        let mut case = Case::new("mirror d0 d1", 19).await;
        let size = |case: &Case| case.engine().view().tree().tops[0].top.as_ref().unwrap().asize;
        let small = size(&case);
        if is_set_first {
            autoexpand(&case).await;
        }
        case.running.take().unwrap().export().await;
        case.world.media.iter().for_each(|media| media.resize(2 * DISK));
        case.running = Some(case.world.open().await);
        if !is_set_first {
            case.engine().look().await;
            assert_eq!(size(&case), small, "nobody asked it to");
            autoexpand(&case).await;
        }
        case.engine().look().await;
        let large = size(&case);
        assert!(large > small + DISK / 2, "set first: {is_set_first}: {large} {small}");
        case.engine().look().await;
        assert_eq!(size(&case), large, "nothing more to be had");
        case.write(20).await;
        case.judge("grown by itself").await;
    }
}

/// Bytes of the two labels at the end of a device.
const ENDS: u64 = 512 << 10;

/// What a long-lived pool left at the end of a device of twice the size.
async fn former_ends() -> Vec<u8> {
    let (former, running) = World::create("d0", 12, 2 * DISK, 20).await;
    for _ in 0..100 {
        running.engine.sync().await.unwrap();
    }
    running.export().await;
    former.media[0].snapshot(2 * DISK - ENDS..2 * DISK)
}

/// A partition that was a long-lived pool's once, and gets the size again that it had then. The labels behind the new end took
/// our configuration with the next commit, and what was left of the old pool's uberblocks beside it counted as ours: they were
/// the newest, and the pool could not be opened any more.
#[tokio::test(start_paused = true)]
async fn uberblocks_behind_the_new_end_of_a_device_are_not_taken_for_the_pools() {
    let ends = former_ends().await;
    let mut case = Case::new("d0", 21).await;
    case.running.take().unwrap().export().await;
    case.world.media[0].resize(2 * DISK);
    case.world.media[0].restore(2 * DISK - ENDS, &ends);
    case.running = Some(case.world.open().await);
    case.write(5).await;
    let running = case.running.take().unwrap();
    case.world.cut(running).await;
    case.running = Some(case.world.open().await);
    case.check().await;
    case.judge("as large as the pool before it").await;
}

/// Found by reading: the same of a device that was faulted when the pool was opened, pulled, and put back after it had grown.
/// Of the ways in which a device comes back not all looked whose the labels at its end are.
#[tokio::test(start_paused = true)]
async fn uberblocks_behind_the_new_end_of_a_device_that_was_put_back_are_not_taken_for_the_pools() {
    let ends = former_ends().await;
    let mut case = Case::new("mirror d0 d1", 22).await;
    let leaf = case.guid("d1");
    case.engine().fault(leaf).await.unwrap();
    case.running.take().unwrap().export().await;
    case.running = Some(case.world.open().await);
    let disk = Arc::clone(&case.running.as_ref().unwrap().disks[1]);
    disk.vanish();
    case.engine().look().await;
    case.world.media[1].resize(2 * DISK);
    case.world.media[1].restore(2 * DISK - ENDS, &ends);
    disk.come_back();
    drop(disk);
    case.engine().look().await;
    assert_eq!(case.state(leaf), State::Faulted, "an administrator decides");
    case.engine().clear(None).await.unwrap();
    assert_eq!(case.state(leaf), State::Healthy);
    case.settled().await;
    case.write(5).await;
    let running = case.running.take().unwrap();
    case.world.cut(running).await;
    case.running = Some(case.world.open().await);
    case.check().await;
    case.judge("grown while it was pulled").await;
}

/// The size of its metaslabs is that which a device was created with, and there are only so many. Where more would have fitted
/// the pool was suspended for good, and at each import anew with `autoexpand`.
#[tokio::test(start_paused = true)]
async fn a_device_grows_as_far_as_its_metaslabs_go() {
    let most = (1 << 17) * (16 << 20);
    for by_itself in [false, true] {
        let mut case = Case::new("d0", 18).await;
        let size = |case: &Case| case.engine().view().tree().tops[0].top.as_ref().unwrap().asize;
        let small = size(&case);
        if by_itself {
            autoexpand(&case).await;
        }
        let new = case.disk(3 << 40);
        case.engine().replace(case.guid("d0"), new).await.unwrap();
        case.settled().await;
        assert_eq!(case.draw(), "d1");
        if !by_itself {
            assert_eq!(size(&case), small);
            let leaf = case.guid("d1");
            assert_eq!(case.engine().online(leaf, None, true).await.unwrap(), Onlined::Healthy);
        }
        for _ in 0..2 {
            assert_eq!(size(&case), most, "by itself: {by_itself}");
            case.write(20).await;
            case.running.take().unwrap().export().await;
            case.running = Some(case.world.open().await);
            case.check().await;
            let leaf = case.guid("d1");
            assert_eq!(case.engine().online(leaf, None, true).await.unwrap(), Onlined::Healthy);
        }
        assert_eq!(size(&case), most, "nothing more to be had");
        case.write(5).await;
    }
}

/// A logical volume that was reduced by mistake: labels at its new end would lie over blocks, which are whole once it has
/// its size again.
#[tokio::test(start_paused = true)]
async fn a_device_that_shrinks_gets_no_labels_over_its_blocks() {
    let mut case = Case::new("mirror d0 d1", 13).await;
    let media = Arc::clone(&case.world.media[1]);
    let size = DISK;
    let less = size / 2;
    let (tail, end) = (media.snapshot(less..size), media.snapshot(less - (1 << 20)..less));
    media.resize(less);
    case.write(10).await;
    case.engine()
        .run(|cx| {
            Box::pin(async move {
                cx.config_dirty = true;
                Ok(())
            })
        })
        .await
        .unwrap();
    assert!(media.snapshot(less - (1 << 20)..less) == end, "nothing is written at its new end");
    assert_eq!(case.state(case.guid("d1")), State::CantOpen);
    case.check().await;
    media.resize(size);
    media.restore(less, &tail);
    let leaf = case.guid("d1");
    let disk = Arc::clone(&case.running.as_ref().unwrap().disks[1]);
    case.engine().online(leaf, Some(disk as Arc<dyn Disk>), false).await.unwrap();
    case.settled().await;
    assert_eq!(case.state(leaf), State::Healthy);
    case.write(5).await;
    case.judge("with its size again").await;
}
