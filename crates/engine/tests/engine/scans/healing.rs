//! Self-heal: a wrong block that is read is made right at once, and each wound is attended to, whatever became of those before it.

use disk::{Effect, Fault, On};
use ondisk::blkptr::BlkPtr;
use pool::{Bookmark, Ear as _, Pool, Wrong};

use super::*;

const BLOCK: u64 = 16384;

/// The blocks that the volume of a pool has, in order.
async fn blocks(view: &Arc<Pool>) -> Vec<(Bookmark, BlkPtr)> {
    let volume = view.open_volume(&format!("{POOL}/v")).await.unwrap();
    let data = volume.data();
    let mut blocks = Vec::new();
    let mut runs = data.runs(0, 0..8 * MIB / BLOCK);
    while let Some(run) = runs.next().await.unwrap() {
        let Run::Block { blkid, pointer } = run else { continue };
        blocks.push((data.bookmark(0, blkid), pointer));
    }
    blocks
}

/// Where it is on each side of a mirror.
fn place(bp: &BlkPtr) -> u64 {
    DATA_OFFSET + bp.dvas().next().unwrap().offset
}

fn count(engine: &Engine, which: impl Fn(&Event) -> bool) -> usize {
    engine.events().since(0).iter().filter(|record| which(&record.event)).count()
}

#[tokio::test(start_paused = true)]
async fn a_wrong_block_that_is_read_is_healed_at_once() {
    for (layout, bad) in [("mirror d0 d1", 0), ("raidz2 d0 d1 d2 d3", 2)] {
        let (world, running, volume) = filled(layout, 8 * MIB).await;
        let expected = content(&*volume).await;
        drop(volume);
        running.export().await;
        corrupt(&world.media[bad], 2, 1).await;
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert_eq!(content(&*volume).await, expected, "{layout}");
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let first = checksum_errors(&running.engine).values().sum::<u64>();
        let events = running.engine.events().since(0);
        let repaired: u64 = events
            .iter()
            .map(|record| match &record.event {
                Event::Repaired { device, bytes } => {
                    assert_eq!(device.path.as_deref(), Some(&*format!("/disks/d{bad}")), "{layout}");
                    *bytes
                }
                _ => 0,
            })
            .sum();
        assert!(repaired > 0, "{layout}");
        drop(volume);
        running.export().await;
        // What was read once is right now, also without the others.
        let running = world.open().await;
        let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
        assert_eq!(content(&*volume).await, expected, "{layout}");
        let left = checksum_errors(&running.engine).values().sum::<u64>();
        // What was read before errors count, while the pool was opened, is met again.
        assert!(left * 10 <= first, "{layout}: {first} wrong answers, {left} after all was read and healed");
        drop(volume);
        running.export().await;
    }
}

/// All of a batch were looked up in one state. When the first of them took longer than some commits the others were forgotten:
/// neither repaired, nor told as lost where nobody had them.
#[tokio::test(start_paused = true)]
async fn wounds_are_healed_however_long_those_before_them_take() {
    let (world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    drop(volume);
    running.export().await;
    let blocks = blocks(&world.look().await.unwrap()).await;
    let (rest, lost) = blocks.split_at(blocks.len() - 3);
    // Far from those that are lost: nothing is read ahead up to there.
    let wrong: Vec<&(Bookmark, BlkPtr)> = rest[..rest.len() / 2].iter().step_by(4).collect();
    for (_, bp) in &wrong {
        world.media[0].restore(place(bp), &[0xee; 512]);
    }
    for (_, bp) in lost {
        world.media.iter().for_each(|media| media.restore(place(bp), &[0xee; 512]));
    }
    let running = world.open().await;
    let engine = &running.engine;
    let volume = engine.volume(&format!("{POOL}/v")).await.unwrap();
    // Each repair takes as long as four commits.
    for (_, bp) in &wrong {
        let late = Duration::from_secs(20);
        let slow = Fault::new(On::Write, place(bp)..place(bp) + BLOCK, Effect::Delay(late..=late));
        running.disks[0].inject(slow);
    }
    for (at, _) in &wrong {
        volume.read(at.blkid * BLOCK, BLOCK as usize).await.unwrap();
    }
    for (at, _) in lost {
        assert!(volume.read(at.blkid * BLOCK, BLOCK as usize).await.is_err(), "nobody has it");
    }
    for round in 0..200 {
        let bytes = noise(round, BLOCK);
        volume.write(rest[1].0.blkid * BLOCK, data(bytes), Durability::Cached).await.unwrap();
        engine.sync().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let repaired = count(engine, |event| matches!(event, Event::Repaired { .. }));
    assert!(repaired > 5, "only {repaired} were read from where they are wrong");
    assert_eq!(count(engine, |event| matches!(event, Event::DataLost { .. })), lost.len());
    assert_eq!(engine.ear().dropped(), 0);
    drop(volume);
    running.export().await;
    // Whoever was read from is read from again.
    let running = world.open().await;
    let volume = running.engine.volume(&format!("{POOL}/v")).await.unwrap();
    for (at, _) in &wrong {
        volume.read(at.blkid * BLOCK, BLOCK as usize).await.unwrap();
    }
    let left = checksum_errors(&running.engine);
    assert!(left.values().all(|count| *count == 0), "{left:?}");
    drop(volume);
    running.export().await;
}

/// Commits had overtaken a read: its block was gone, and whoever had got another one for the place was charged with it. After ten
/// of them healthy devices were called degraded. If the block is there, all that have it are wrong indeed.
#[tokio::test(start_paused = true)]
async fn a_block_that_is_gone_is_in_nobodys_diagnosis() {
    let (_world, running, volume) = filled("mirror d0 d1", 8 * MIB).await;
    let engine = &running.engine;
    let leaves: Vec<u64> = engine.view().tree().leaves().iter().map(|leaf| leaf.guid).collect();
    let tell = |(at, bp): &(Bookmark, BlkPtr)| {
        let (corrupt, refused) = (leaves.clone(), Vec::new());
        engine.ear().wrong(Wrong { bp: *bp, at: *at, corrupt, refused, is_lost: true });
    };
    let charged = async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        count(engine, |event| matches!(event, Event::IoFailed { .. }))
    };
    let gone = blocks(&engine.view()).await;
    for number in 0..8 * MIB / BLOCK {
        let bytes = noise(number, BLOCK);
        volume.write(number * BLOCK, data(bytes), Durability::Cached).await.unwrap();
    }
    engine.sync().await.unwrap();
    gone.iter().for_each(&tell);
    assert_eq!(charged().await, 0);
    blocks(&engine.view()).await.iter().take(1).for_each(&tell);
    assert_eq!(charged().await, leaves.len());
    drop(volume);
    running.export().await;
}
