//! Pools beside one that is served: nothing that a stranger's pool says of itself takes a volume, a target, an address or
//! discovery from another.

use super::*;

/// On a disk of its own.
async fn lake(world: &World) -> Arc<MemDisk> {
    let media = Arc::new(MemDisk::new(SIZE).named("/disks/b".to_owned()));
    let engine = created("lake", 2, Arc::clone(&media) as Arc<dyn Disk>).await;
    world.host.keep(Held::writing(engine));
    media
}

/// What is said of that.
async fn set(world: &World, pool: &str, name: &str, text: &str) -> Vec<String> {
    let property = (name.to_owned(), text.to_owned());
    world.run(Operation::PoolSet { pool: pool.to_owned(), property }).await.unwrap().warnings
}

/// Whoever wanted to discover was refused, also by pools whose own settings were right.
#[tokio::test]
async fn what_one_pool_says_of_discovery_and_cannot_be_understood_closes_no_others() {
    let world = World::new().await;
    let _media = lake(&world).await;
    let said = set(&world, "tank", property::DISCOVERY, r#"{"initiators":["iqn.a:x"]}"#).await;
    assert_eq!(said, Vec::<String>::new());
    for (name, text) in [
        (property::DISCOVERY, r#"{"networks":["192.0.2.0/33"]}"#),
        (property::CHAP, r#"[{"user":"u","secret":"hunter2"}]"#),
    ] {
        let said = set(&world, "lake", name, text).await;
        assert!(said.len() == 1 && said[0].contains("pool 'lake' admits nobody"), "{said:?}");
        assert!(said[0].contains(&format!("'{name}'")) && !said[0].contains("hunter"), "{said:?}");
        let (access, peer) = (world.serving.targets.discovery(), "192.0.2.1".parse().unwrap());
        assert!(access.admits("iqn.a:x", peer) && !access.admits("iqn.b:y", peer), "{name}");
        assert_eq!(set(&world, "lake", name, "").await, Vec::<String>::new());
    }
}
