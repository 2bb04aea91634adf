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

/// Each question passed over all snapshots, under the lock that everybody needs who changes what is offered: one client that
/// asked on and on kept a thread of the daemon for itself.
#[tokio::test]
async fn whoever_names_no_export_is_answered_at_once_however_many_snapshots_there_are() {
    let world = World::over(1, door().await).await;
    world.volume("tank/a").await;
    world.snapshot(&["tank/a@s"]).await;
    let snapshot = world.dataset("tank/a@s").await.unwrap();
    {
        let mut entries = world.serving.entries.lock();
        for number in 0..50_000 {
            entries.insert(format!("tank/a@{number:05}"), Entry::new(&snapshot));
        }
    }
    let unnamed = || world.serving.only_volume();
    let begun = tokio::time::Instant::now();
    for _ in 0..2000 {
        assert_eq!(unnamed().as_deref(), Some("tank/a"));
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    // What is called almost like it lies on both sides of its snapshots.
    for other in ["tank/a-1", "tank/aa", "tank/a/b", "tank/b"] {
        let entry = Entry::new(&world.dataset("tank/a").await.unwrap());
        world.serving.entries.lock().insert(other.to_owned(), entry);
        assert_eq!(unnamed(), None, "{other} is another volume");
        world.serving.entries.lock().remove(other);
        world.serving.entries.lock().insert(format!("{other}@s"), Entry::new(&snapshot));
        assert_eq!(unnamed().as_deref(), Some("tank/a"), "a snapshot of {other} is none");
    }
}
