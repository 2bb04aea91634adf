//! What a pool that is written to as fast as it takes it holds in memory: dirty data, and beside it no more than it was allowed,
//! however small the blocks are and however much parity they get.

use std::{sync::Arc, time::Duration};

use block::{BlockVolume, Durability};
use disk::{Disk, ModelDisk, Profile};
use engine::{
    engine::{Ending, Options},
    txg::Limits,
};

use crate::support::{POOL, World, data, noise, plain, quiet, start_on};

const MIB: u64 = 1 << 20;
const DIRTY: u64 = 4 * MIB;
const BESIDE: u64 = 4 * MIB;
const REQUEST: u64 = 256 << 10;

/// Several times what is dirty was kept beside it until the commit, counted by nobody, and a small cgroup killed the daemon.
#[tokio::test(start_paused = true)]
async fn small_blocks_are_written_within_the_memory_that_there_is_for_them() {
    for (layout, block, volume_bytes) in
        [("d0", 512, 6 * MIB), ("raidz3 d0 d1 d2 d3 d4 d5 d6", 4096, 12 * MIB), ("d0", 16 << 10, 32 * MIB)]
    {
        let (world, running) = World::create(layout, 12, 256 * MIB, 1).await;
        let name = format!("{POOL}/v");
        drop(running.volume(&name, volume_bytes, block, plain()).await);
        running.export().await;
        let models = world.media.iter().zip(1..).map(|(media, seed)| {
            let media = Arc::clone(media) as Arc<dyn Disk>;
            Arc::new(ModelDisk::new(media, Profile::hdd_7200(), seed)) as Arc<dyn Disk>
        });
        let limits = Limits { dirty_max: DIRTY, ..Limits::default() };
        let engine = start_on(models.collect(), 1, Options { limits, ..quiet() }).await.unwrap();
        engine.set_write_memory(BESIDE);
        let volume = engine.volume(&name).await.unwrap();
        let writers = (0..4).map(|writer| {
            let volume = Arc::clone(&volume);
            tokio::spawn(async move {
                for at in (0..volume_bytes / REQUEST).filter(|number| number % 4 == writer) {
                    let request = data(noise(at, REQUEST));
                    volume.write(at * REQUEST, request, Durability::Cached).await.unwrap();
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let (mut dirty, mut beside) = (0, 0);
        while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            dirty = dirty.max(engine.txgs().dirty());
            beside = beside.max(engine.write_memory().0);
        }
        for writer in writers {
            writer.await.unwrap();
        }
        engine.sync().await.unwrap();
        println!("{layout}, {block}: {dirty} dirty, {beside} beside, {:?}", engine.statistics());
        assert!((DIRTY / 3..=DIRTY).contains(&dirty), "{layout}, {block}: {dirty}");
        // A block more, and a transfer of each leaf: looked at after them.
        let most = engine.write_memory().1;
        assert!(most <= BESIDE);
        assert!((1..=most + MIB).contains(&beside), "{layout}, {block}: {beside} of {most}");
        assert_eq!(engine.write_memory().0, 0, "{layout}, {block}: all of it is durable");
        drop(volume);
        engine.end(Ending::Export).await.unwrap();
        world.verify(layout).await;
    }
}
