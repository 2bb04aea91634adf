//! Pools whose host was cut off, with what was acknowledged in their intent logs: claimed, replayed, and judged by what
//! the real module made of a copy.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use crate::{
    files::{check, judge_as},
    support::{content, quiet},
};
use engine::{
    engine::{Ending, Engine},
    open,
};
use fixtures::Fixture;
use pool::{
    Pool,
    dsl::HeadKind,
    import::{self, Sources},
    zil,
};
use sha2::{Digest as _, Sha256};

const CRASHED: [&str; 4] = ["crash-main", "crash-slog", "crash-raidz1x3", "crash-kill-slog"];

async fn pool_in(dir: &Path, writable: bool, missing_log: bool) -> Result<Arc<Pool>, String> {
    let found = import::scan(&Sources::paths([dir])).await;
    let mut candidate = found.pools.first().ok_or("no pool")?.clone();
    if writable {
        candidate = candidate.reopen(&import::writable()).await.map_err(|error| error.to_string())?;
    }
    let options = import::OpenOptions { force: true, missing_log, ..import::OpenOptions::default() };
    import::open(&candidate, &options).await.map_err(|error| error.to_string())
}

fn going_on() -> open::OpenOptions {
    open::OpenOptions {
        rename: None,
        hostid: 7,
        hostname: "here".to_owned(),
        now: 1_800_000_000,
        seed: 3,
        workers: 0,
    }
}

async fn start(pool: Arc<Pool>) -> Result<Arc<Engine>, String> {
    let syncer = open::open(pool, going_on()).await.map_err(|error| error.to_string())?;
    Engine::start(syncer, quiet()).await.map_err(|error| error.to_string())
}

fn hash(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Live volumes of the manifest with the sums of their content.
fn expected(fixture: &Fixture) -> BTreeMap<String, String> {
    let live = fixture.manifest.zvols.iter().filter(|zvol| !zvol.name.contains('@'));
    live.map(|zvol| (zvol.name.clone(), zvol.sha256.clone())).collect()
}

async fn sums(engine: &Engine, names: impl IntoIterator<Item = &String>) -> BTreeMap<String, String> {
    let mut sums = BTreeMap::new();
    for name in names {
        let volume = engine.volume(name).await.unwrap();
        sums.insert(name.clone(), hash(&content(&*volume).await));
    }
    sums
}

async fn exported(engine: Arc<Engine>) {
    engine.end(Ending::Export).await.unwrap();
}

/// What logs hold, as of the state on the devices.
async fn waiting(dir: &Path) -> Vec<zil::Waiting> {
    zil::waiting(&*pool_in(dir, false, false).await.unwrap()).await.unwrap()
}

#[tokio::test]
async fn what_was_acknowledged_before_a_crash_is_there_again() {
    for fixture in CRASHED.iter().filter_map(|name| fixtures::try_pool(name)) {
        let name = &fixture.name;
        let copy = fixture.copy();
        let dir = copy.path();
        let before = waiting(dir).await;
        assert!(before.iter().any(|log| log.kind == HeadKind::Volume), "{name}: {before:?}");
        let mut files: Vec<_> =
            before.iter().filter(|log| log.kind == HeadKind::Filesystem).cloned().collect();
        let expected = expected(&fixture);

        let engine = start(pool_in(dir, true, false).await.unwrap()).await.unwrap();
        let replayed = engine.replayed();
        let volumes = before.iter().filter(|log| log.kind == HeadKind::Volume);
        assert_eq!(replayed.volumes, volumes.clone().count() as u64, "{name}");
        assert_eq!(replayed.records, volumes.map(|log| log.records).sum::<u64>(), "{name}");
        assert!(replayed.failed.is_empty() && replayed.lost.is_empty(), "{name}: {replayed:?}");
        assert_eq!(sums(&engine, expected.keys()).await, expected, "{name}");
        exported(engine).await;

        // Logs of file systems are as they were, and ours are gone.
        let mut after = waiting(dir).await;
        for logs in [&mut files, &mut after] {
            logs.sort_by(|a, b| a.name.cmp(&b.name));
        }
        assert_eq!(after, files, "{name}");
        let heads = zil::heads(&*pool_in(dir, false, false).await.unwrap()).await.unwrap();
        for head in &heads {
            assert_ne!(head.kind, HeadKind::Volume, "{name}: '{}' still has a log", head.name);
            let has_records = files.iter().any(|log| log.name == head.name);
            assert!(!has_records || head.header.claim_txg != 0, "{name}: '{}' was not claimed", head.name);
        }
        judge_as(dir, &fixture.manifest.pool, &[]);

        // And once more, with nothing to do.
        let engine = start(pool_in(dir, true, false).await.unwrap()).await.unwrap();
        assert_eq!((engine.replayed().records, engine.replayed().kept), (0, files), "{name}");
        assert_eq!(sums(&engine, expected.keys()).await, expected, "{name}");
        exported(engine).await;
        check(dir).unwrap_or_else(|text| panic!("{name}: {text}"));
    }
}
