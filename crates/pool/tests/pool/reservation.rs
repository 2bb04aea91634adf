//! What a volume would need if every block were written: for every volume of every fixture that real OpenZFS
//! reserved space for, to the byte what it reserved.

use pool::{
    dmu::Run,
    import::open,
    props::Value,
    space::{block_space, deflate, volume_reservation},
};

use crate::support::{anyhow, candidate};

#[tokio::test]
async fn the_reservation_of_a_volume_is_what_openzfs_reserved() {
    let mut compared = 0;
    for fixture in fixtures::all() {
        // Widened after some of its volumes were made, with devices missing, or logs that are not replayed.
        let changed = ["expansion", "crash-", "corrupt-", "missing-", "degraded-", "removal"];
        if changed.iter().any(|prefix| fixture.name.starts_with(prefix)) {
            continue;
        }
        let candidate = candidate(&fixture.dir).await;
        let Ok(pool) = open(&candidate, &anyhow()).await else { continue };
        let (volumes, _) = pool.dsl().await.unwrap().volumes().await.unwrap();
        for volume in volumes.iter().filter(|volume| !volume.name().contains('@')) {
            let set = volume.properties().await.unwrap();
            let number = |name: &str| match set.list().iter().find(|p| p.name == name).map(|p| &p.value) {
                Some(Value::Number(number)) => *number,
                _ => 0,
            };
            let reserved = number("refreservation");
            if reserved == 0 || volume.origin().await.unwrap().is_some() {
                continue;
            }
            let (size, block) = (number("volsize"), number("volblocksize"));
            let ours = volume_reservation(&pool.tree(), size, block, number("copies"));
            assert_eq!(ours, reserved, "{}: {} of {size} in {block}", fixture.name, volume.name());
            compared += 1;
        }
    }
    assert!(compared >= 10, "the repository's own fixtures have such volumes: {compared}");
}

#[tokio::test]
async fn no_block_counts_more_than_the_most_a_block_may_count() {
    let (mut compared, mut reached) = (0, 0);
    for fixture in fixtures::all() {
        // RAIDZ devices that were widened have blocks of their first width.
        if ["expansion", "corrupt-"].iter().any(|prefix| fixture.name.starts_with(prefix)) {
            continue;
        }
        let Ok(pool) = open(&candidate(&fixture.dir).await, &anyhow()).await else { continue };
        let (volumes, _) = pool.dsl().await.unwrap().volumes().await.unwrap();
        for volume in volumes {
            let Ok(open) = volume.open_volume().await else { continue };
            let data = open.data();
            let most = block_space(&pool.tree(), data.block_bytes());
            let mut runs = data.runs(0, 0..data.max_block_id() + 1);
            while let Ok(Some(run)) = runs.next().await {
                let Run::Block { pointer, .. } = run else { continue };
                for dva in pointer.dvas().filter(|dva| !dva.gang) {
                    let counts = deflate(&pool.tree().tops[dva.vdev as usize], dva.asize);
                    assert!(counts <= most, "{}: {} of {most} at {dva}", fixture.name, volume.name());
                    compared += 1;
                    reached += u64::from(counts == most);
                }
            }
        }
    }
    assert!(compared > 1000 && reached > 100, "{compared} compared, {reached} of them the largest there are");
}
