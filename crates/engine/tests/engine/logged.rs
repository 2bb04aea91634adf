//! Pools made by OpenZFS, written to by us, judged by our own verification and by `zdb`. They have log space maps,
//! which pools of ours have not: what is unflushed in them must survive our taking over, and the logs we
//! write must say what theirs would. (What else can be met in pools of others is in `foreign.rs`.)
#![allow(clippy::unwrap_used, reason = "a test may fail loudly, its helpers too")]

use std::sync::Arc;

use crate::support::{content, data, going_on, quiet};
use block::{BlockVolume, Durability};
use engine::{
    dsl::{self, NewVolume, Properties},
    engine::{Ending, Engine},
    open,
};
use pool::{
    Pool,
    import::{self, Sources},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

const SIZE: u64 = 4 << 20;
const BLOCK: u64 = 8192;

/// Pools without anything we refuse to write to. The intent logs of all were replayed.
const POOLS: [&str; 4] = ["single", "raidz1x3", "ashift9-raidz1x4", "manytxg"];

async fn import(dir: &std::path::Path) -> Arc<Pool> {
    let found = import::scan(&Sources::paths([dir])).await;
    let candidate = found.pools[0].reopen(&import::writable()).await.unwrap();
    let options = import::OpenOptions { force: true, ..import::OpenOptions::default() };
    import::open(&candidate, &options).await.unwrap()
}

/// Three transaction groups of random writes to `volume`, noted in `twin`.
async fn write(engine: &Engine, volume: &dyn BlockVolume, twin: &mut [u8], random: &mut StdRng) {
    for _ in 0..3 {
        for _ in 0..100 {
            let at = random.random_range(0..SIZE / BLOCK) * BLOCK;
            let bytes: Vec<u8> = (0..BLOCK).map(|_| random.random()).collect();
            twin[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            volume.write(at, data(bytes), Durability::Cached).await.unwrap();
        }
        engine.sync().await.unwrap();
    }
}

#[tokio::test]
async fn pools_of_others_stay_whole_when_written_to() {
    let mut logs = 0;
    for name in POOLS {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let dir = fixture.copy();
        let mut random = StdRng::seed_from_u64(11);
        let mut twin = vec![0; SIZE as usize];
        let mut tank = String::new();
        for session in 0..2 {
            let pool = import(dir.path()).await;
            pool.name().clone_into(&mut tank);
            logs += u32::from(session == 0 && pool.is_active("com.delphix:log_spacemap"));
            let syncer = open::open(pool, going_on()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
            let engine = Engine::start(syncer, quiet()).await.unwrap();
            let path = format!("{tank}/mine");
            if session == 0 {
                let new = NewVolume {
                    name: path.clone(),
                    size: SIZE,
                    block: BLOCK as u32,
                    properties: Properties::new(),
                    parents: false,
                };
                engine
                    .run(move |cx| Box::pin(async move { Box::pin(dsl::create_volume(cx, &new)).await }))
                    .await
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            let volume = engine.volume(&path).await.unwrap();
            write(&engine, &*volume, &mut twin, &mut random).await;
            assert!(content(&*volume).await == twin, "{name}: the volume holds what was written");
            drop(volume);
            let ending = if session == 0 { Ending::Close } else { Ending::Export };
            engine.end(ending).await.unwrap();
        }
        let found = import::scan(&Sources::paths([dir.path()])).await;
        let options = import::OpenOptions { force: true, ..import::OpenOptions::default() };
        let pool = import::open(&found.pools[0], &options).await.unwrap();
        let report = pool::verify::verify(&pool, &Arc::new(pool::verify::Progress::default())).await;
        assert!(report.is_clean(), "{name}: {report:#?}");
        drop(pool);
        if fixtures::tool("zdb").is_some()
            && let Err(text) = fixtures::zdb_check(&[], dir.path(), &tank)
        {
            panic!("{name}: {text}");
        }
    }
    assert!(logs >= 3, "{logs} of the pools have logs");
}
