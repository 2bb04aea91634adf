//! Pools on image files: opened for writing, synced, exported, judged by other people's tools.

use std::{path::Path, process::Command, time::Duration};

use engine::{
    BoxFuture, open,
    sync::{Syncer, Work},
};
use ondisk::label::PoolState;
use pool::import::{self, Sources};

use crate::support::{NOW, going_on};

/// Syncs the transaction group the syncer is at, and goes to the next.
pub(crate) fn sync(cx: &mut Syncer) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        let (txg, now) = (cx.txg, cx.now);
        cx.sync_txg(txg, now, Work::default()).await.unwrap();
        cx.txg += 1;
    })
}

pub(crate) fn export(mut cx: Syncer) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        open::close(&mut cx, PoolState::Exported);
        sync(&mut cx).await;
    })
}

/// Opens the pool in `dir` for writing, as the host that had it last or whoever.
pub(crate) fn reopen(dir: &Path, seed: u64) -> BoxFuture<'_, Result<Syncer, String>> {
    Box::pin(async move {
        let found = import::scan(&Sources::paths([dir])).await;
        let candidate = found.pools.first().ok_or("no pool")?;
        let mut tries = 0;
        let writable = loop {
            match candidate.reopen(&import::writable()).await {
                // The thread that answered last lets go of the device when it gets a processor.
                Err(error) if tries < 50 && error.to_string().contains("in use by another process") => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                outcome => break outcome.map_err(|error| error.to_string())?,
            }
        };
        let options = import::OpenOptions { force: true, ..import::OpenOptions::default() };
        let pool = import::open(&writable, &options).await.map_err(|error| error.to_string())?;
        let options = open::OpenOptions { now: NOW + 100, seed, ..going_on() };
        open::open(pool, options).await.map_err(|error| error.to_string())
    })
}

/// What the reference checker and zdb say of the images in `dir`.
pub(crate) fn judge(dir: &Path) {
    judge_as(dir, "tank", &[]);
}

/// The same of a pool of another name; `options` are zdb-check's.
pub(crate) fn judge_as(dir: &Path, pool: &str, options: &[&str]) {
    check(dir).unwrap_or_else(|text| panic!("{pool}: {text}"));
    if fixtures::tool("zdb").is_some() {
        fixtures::zdb_check(options, dir, pool)
            .unwrap_or_else(|complaint| panic!("{pool}: zdb: {complaint}"));
    }
}

/// What the reference checker says.
pub(crate) fn check(dir: &Path) -> Result<(), String> {
    let Some(python) = fixtures::tool("python3") else { return Ok(()) };
    let mut images: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    images.sort();
    images.retain(|path| path.extension().is_some_and(|extension| extension == "img"));
    let script = fixtures::repository().join("docs/format/decode.py");
    let output = Command::new(python).arg(script).arg("--check").args(&images).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Err(format!("decode.py --check:\n{text}{}", String::from_utf8_lossy(&output.stderr)))
}
