//! Every block of every real pool at hand, read and verified.

use pool::import::open;

use crate::support::{anyhow, candidate, walk};

#[tokio::test]
async fn every_block_of_every_fixture_verifies() {
    for name in fixtures::ALL {
        let Some(fixture) = fixtures::try_pool(name) else { continue };
        let candidate = candidate(&fixture.dir).await;
        let pool = open(&candidate, &anyhow()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(pool.name(), fixture.manifest.pool);
        let walk = walk(&pool).await;
        println!("{name}: txg {} {:?}", pool.uberblock().txg, walk);
        assert_eq!(walk.errors, [""; 0], "{name}");
        assert!(walk.blocks > 50, "{name}: {walk:?}");
        // Of a pool with both kinds of gang headers every classic one counted against its device.
        if !name.starts_with("corrupt-") {
            let tree = pool.tree();
            let wrong: u64 = tree.leaves().iter().map(|leaf| leaf.counters.get().checksum).sum();
            assert_eq!(wrong, 0, "{name}: nobody answered wrongly");
        }
    }
}
