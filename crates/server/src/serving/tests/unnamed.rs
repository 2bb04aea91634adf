//! What NBD clients get that name no export: the volume that is the only one when it is first asked for, and never another,
//! which would be another guest's disk.

use super::*;

/// Its guest had no disk until the daemon was started again: it was another one by its name.
#[tokio::test]
async fn the_export_without_a_name_stays_the_volume_that_is_renamed() {
    let world = World::over(1, door().await).await;
    world.volume("tank/a").await;
    assert_eq!(world.serving.only_volume().as_deref(), Some("tank/a"));
    let (from, to) = ("tank/a".to_owned(), "tank/b".to_owned());
    world.run(Operation::Rename { from, to, parents: false, recursive: false }).await.unwrap();
    assert_eq!(world.serving.only_volume().as_deref(), Some("tank/b"));
    assert!(world.serving.is_export_awaited(""));
}

/// A guest that had come by the empty name came back, when its pool was exported or its settings could not be understood, to
/// another guest's disk, which was the only one then.
#[tokio::test]
async fn the_export_without_a_name_is_no_other_when_the_first_is_gone() {
    let world = World::over(1, door().await).await;
    world.volume("tank/a").await;
    let unnamed = || world.serving.only_volume();
    assert_eq!(unnamed().as_deref(), Some("tank/a"));
    world.lake().await;
    world.volume("lake/b").await;
    assert_eq!(unnamed(), None);
    let (tank, dataset) = (world.host.find("tank").unwrap(), world.dataset("tank/a").await.unwrap());
    let mut plan = Err(NoPlan::Strange("its settings cannot be understood".to_owned()));
    assert!(world.serving.leave(&tank, &dataset, &mut plan).is_ok());
    assert!(world.serving.entries.lock().contains_key("tank/a"), "it is known all the time");
    world.serving.follow(&tank).await;
    world.serving.withdraw_pool(&tank).await;
    assert_eq!(unnamed(), None, "what is left is another disk");
}

/// With one of two volumes set aside for a rollback, clients that name no export were given the other one.
#[tokio::test]
async fn the_export_without_a_name_is_no_other_while_one_is_set_aside() {
    let world = World::over(1, door().await).await;
    let known = Arc::downgrade(&world.serving);
    world.serving.registry.set_unnamed(move || known.upgrade()?.only_volume());
    let unnamed = || exported(&world.serving, "").map(|identity| identity.name);
    let held = world.host.find("tank").unwrap();
    world.volume("tank/a").await;
    world.snapshot(&["tank/a@s"]).await;
    assert_eq!(unnamed().as_deref(), Some("tank/a"), "snapshots are no other volumes");
    world.serving.expect(&held);
    assert_eq!(unnamed(), None, "there may be others");
    world.serving.follow(&held).await;
    let aside = world.serving.set_aside(&held, "tank/a").await.expect("nobody is there");
    assert_eq!(unnamed(), None, "it is rolled back");
    drop(aside);
    assert!(world.serving.is_export_awaited("tank/a") && world.serving.is_export_awaited(""));
    world.serving.follow(&held).await;
    assert_eq!(unnamed().as_deref(), Some("tank/a"));
    world.volume("tank/b").await;
    let aside = world.serving.set_aside(&held, "tank/a").await.expect("nobody is there");
    assert!(exported(&world.serving, "tank/b").is_some());
    assert_eq!(unnamed(), None, "the other one is another disk");
    drop(aside);
}
