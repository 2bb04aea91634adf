//! Pools of OpenZFS's own stress tester: layouts and histories nobody here chose, with `zdb` as the judge.
//!
//! `MILLPOND_ZTEST_POOLS` names directories of pools that are there already (separated by `:`); without it one
//! pool is made. A pool that `zdb` cannot open is not held against us.

use std::{collections::BTreeMap, path::Path, process::Command};

use pool::import::open;

use crate::support::{anyhow, candidate, walk};

/// Objects of each dataset by its number, as `zdb -d` counts them.
fn objects_by_zdb(dir: &Path, name: &str) -> Option<BTreeMap<u64, u64>> {
    let out = Command::new("zdb").args(["-e", "-p"]).arg(dir).args(["-d", name]).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let number = |line: &str, before: &str, after: &str| -> Option<u64> {
        let from = line.find(before)? + before.len();
        let rest = &line[from..];
        rest[..rest.find(after)?].trim().parse().ok()
    };
    let lines = text.lines().filter(|line| line.starts_with("Dataset "));
    let counts: BTreeMap<u64, u64> = lines
        .filter_map(|line| {
            let objects = line.trim_end().strip_suffix(" objects")?.rsplit(' ').next()?.parse().ok()?;
            Some((number(line, ", ID ", ",")?, objects))
        })
        .collect();
    (!counts.is_empty()).then_some(counts)
}

async fn compare(dir: &Path) {
    let candidate = candidate(dir).await;
    let judged = objects_by_zdb(dir, &candidate.name);
    let pool = match open(&candidate, &anyhow()).await {
        Ok(pool) => pool,
        Err(error) => {
            println!("{}: {error}", dir.display());
            let known = error.to_string().contains("org.openzfs:draid");
            assert!(known || judged.is_none(), "{}: {error}", dir.display());
            return;
        }
    };
    let walk = walk(&pool).await;
    println!("{}: txg {} {walk:?}", dir.display(), pool.uberblock().txg);
    let Some(judged) = judged else {
        println!("{}: zdb cannot open it", dir.display());
        return;
    };
    assert_eq!(walk.errors, [""; 0], "{}", dir.display());
    // zdb names no snapshots that are hidden, and we walk those too.
    for (id, objects) in &judged {
        let ours = walk.objects.get(id).copied().unwrap_or(0);
        assert!(
            *id == 0 || ours == *objects,
            "{ours} of {objects} objects of dataset {id} in {}",
            dir.display()
        );
    }
    assert!(walk.objsets as usize >= judged.len());
    pool.space().await.unwrap();
    let dsl = pool.dsl().await.unwrap();
    let (_, errors) = dsl.tree(dsl.root().await.unwrap()).await;
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test]
async fn what_zdb_reads_in_a_stress_tested_pool_is_read() {
    if let Ok(given) = std::env::var("MILLPOND_ZTEST_POOLS") {
        for dir in given.split(':') {
            compare(Path::new(dir)).await;
        }
        return;
    }
    let dir = fixtures::scratch().join(format!("ztest-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let made = Command::new("ztest")
        .args(["-f"])
        .arg(&dir)
        .args([
            "-p", "ztested", "-s", "128m", "-T", "6", "-P", "3", "-t", "4", "-v", "2", "-m", "2", "-r", "3",
        ])
        .args(["-K", "raidz", "-C", "special=on"])
        .output();
    // What it thinks of its own run is not of interest here: the pool it leaves is.
    let pools = std::fs::read_dir(&dir).unwrap().count();
    if made.is_err() || pools == 0 {
        println!("NOT RUN: no ztest here");
        return;
    }
    compare(&dir).await;
    std::fs::remove_dir_all(&dir).unwrap();
}
