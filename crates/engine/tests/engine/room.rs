//! What a pool promises of its space: whoever is told that there is room gets it, whoever asks for more is told so, and
//! the pool goes on. A transaction group that finds no place for what was acknowledged would take every volume with it.

use block::{BlockVolume, Durability, VolumeError};
use engine::{
    dsl::{self, OpError, Properties, Stored},
    engine::OpFuture,
    sync::Syncer,
    volume::LiveVolume,
};

use crate::support::{POOL, Running, World, data};

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 128 << 10;

/// Properties of a volume whose bytes are stored as they are.
fn plain(more: &[(&str, u64)]) -> Properties {
    let all = [("compression", 2)].into_iter().chain(more.iter().copied());
    all.map(|(name, value)| (name.to_owned(), Stored::Number(value))).collect()
}

async fn write(volume: &LiveVolume, at: u64, bytes: u64) -> Result<(), VolumeError> {
    volume.write(at, data(vec![0x5a; bytes as usize]), Durability::Cached).await
}

/// Writes until there is no more room. Bytes written.
async fn fill(volume: &LiveVolume) -> u64 {
    let mut at = 0;
    loop {
        match write(volume, at, MIB).await {
            Ok(()) => at += MIB,
            Err(error) => {
                assert_eq!(error, VolumeError::NoSpace);
                return at;
            }
        }
    }
}

async fn command<F>(running: &Running, op: F) -> Result<(), OpError>
where
    F: for<'a> FnOnce(&'a mut Syncer) -> OpFuture<'a, ()> + Clone + Send + 'static,
{
    running.engine.run(false, op).await
}

/// The pool does all it did before: it commits, takes commands, is left, and everything in it is whole.
async fn goes_on(world: &World, running: Running, what: &str) {
    running.engine.sync().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    command(&running, |cx| {
        let sync = Properties::from([("sync".to_owned(), Stored::Number(2))]);
        Box::pin(async move { dsl::set(cx, POOL, &sync).await })
    })
    .await
    .unwrap_or_else(|error| panic!("{what}: {error}"));
    running.export().await;
    world.verify(what).await;
}

async fn usable(running: &Running) -> u64 {
    running.engine.view().dsl().await.unwrap().space().usable()
}

#[tokio::test(start_paused = true)]
async fn devices_for_metadata_and_dedup_tables_are_no_room_for_volumes() {
    let mut offered = Vec::new();
    for layout in ["d0", "d0 special d1", "d0 special d1 dedup d2"] {
        let (world, running) = World::create(layout, 12, 256 * MIB, 31).await;
        let volume = running.volume("tank/thin", 1 << 30, BLOCK, plain(&[])).await;
        running.engine.sync().await.unwrap();
        let capacity = running
            .engine
            .run(false, |cx| Box::pin(async move { Ok(cx.out.alloc.totals().capacity) }))
            .await
            .unwrap();
        offered.push((usable(&running).await, capacity, volume.space().unwrap().available / (4 * MIB)));
        let written = fill(&volume).await;
        assert!((96 * MIB..128 * MIB).contains(&written), "{layout}: {written}");
        goes_on(&world, running, layout).await;
    }
    assert!(offered.iter().all(|room| *room == offered[0]), "{offered:?}");
}
