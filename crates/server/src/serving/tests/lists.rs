//! Lists of what a pool has: what is read for them, and what they say of what cannot be read.

use super::*;
use crate::{
    answers::Pools,
    api::{self, DatasetQuery},
    listing::Listing,
    shares,
};

/// What is at and below `name`, with these properties.
fn query(name: &str, properties: &str) -> DatasetQuery {
    let (name, properties) = (Some(name.to_owned()), Some(properties.to_owned()));
    DatasetQuery { name, properties, ..DatasetQuery::default() }
}

fn only(held: &Arc<Held>) -> Pools {
    Pools::new(vec![Arc::clone(held)])
}

fn names(told: &[api::Dataset]) -> Vec<&str> {
    told.iter().map(|dataset| dataset.name.as_str()).collect()
}

/// No list had it, and nothing was said of it: whoever asked for it got an empty list, as if all were well.
#[tokio::test]
async fn what_nobody_can_tell_the_kind_of_is_a_problem_of_the_list() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/b@s"]).await;
    let held = Arc::new(world.reopened().await);
    world.break_block(&world.root_block("tank/b").await);
    let lists: [(&str, &[&str]); 3] = [("tank", &["tank", "tank/a"]), ("tank/b", &[]), ("tank/b@s", &[])];
    for (name, has) in lists {
        let list = only(&held).datasets(&query(name, "")).await.unwrap();
        assert_eq!(names(&list.datasets), has);
        let [problem] = &list.problems[..] else { panic!("{name}: {:?}", list.problems) };
        assert!(problem.starts_with("cannot open 'tank/b': I/O error: "), "{name}: {problem}");
    }
}

/// A list is told some time after it was begun.
#[tokio::test]
async fn what_cannot_be_read_by_the_time_it_is_told_is_one_problem_with_its_snapshots() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/a@s", "tank/b@s"]).await;
    world.snapshot(&["tank/b@t"]).await;
    let pools = only(&Arc::new(world.reopened().await));
    let mut listing = Listing::find(&pools, &query("tank", "guid"), usize::MAX).await.unwrap().unwrap();
    world.break_block(&world.root_block("tank/b").await);
    let told = listing.next_portion(&pools).await.unwrap();
    assert_eq!(names(&told), ["tank", "tank/a", "tank/a@s"]);
    assert!(listing.is_over());
    let problems = listing.into_end().problems;
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.starts_with("cannot open 'tank/b': I/O error: "), "{problem}");
}

/// It had 0 bytes, by default, and inventories and the users of a disk list believed it.
#[tokio::test]
async fn a_size_that_cannot_be_read_is_a_problem_and_no_number() {
    let world = World::with_volumes().await;
    world.snapshot(&["tank/a@s"]).await;
    // From here on the snapshot has another object set than its volume.
    let volume = world.engine.volume("tank/a").await.unwrap();
    let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
    volume.write(0, data, block::Durability::Cached).await.unwrap();
    let held = Arc::new(world.reopened().await);
    let of_snapshot = world.root_block("tank/a@s").await;
    assert_ne!(of_snapshot, world.root_block("tank/a").await);
    world.break_block(&of_snapshot);
    // Of the other it is what leads to its objects.
    world.break_block(&world.objects_block("tank/b").await);
    for (name, properties, is_known) in [
        ("tank/a", "volsize", true),
        ("tank/a@s", "volsize", false),
        ("tank/b", "volsize", false),
        ("tank/b", "used,volblocksize", false),
        // Who does not ask for it needs nobody to know it.
        ("tank/b", "used,sync", true),
    ] {
        let query = DatasetQuery { depth: Some(0), ..query(name, properties) };
        let list = only(&held).datasets(&query).await.unwrap();
        let problem = list.problems.first().map(String::as_str);
        assert_eq!(list.datasets.len(), usize::from(is_known), "{name} {properties}: {problem:?}");
        let is_told = |problem: &str| problem.starts_with(&format!("cannot open '{name}': "));
        assert_eq!(problem.map(is_told), (!is_known).then_some(true), "{name} {properties}: {problem:?}");
    }
    // A disk of somebody's it is all the same.
    let report = shares::report(&held.view()).await;
    assert!(report.volumes.iter().any(|volume| volume.name == "tank/b"));
    assert!(report.problems.iter().any(|problem| problem.starts_with("cannot read the size of 'tank/b': ")));
}

/// A list of names read what leads to each snapshot's size, what was written since the one before, holds and clones, and threw
/// all of it away: of thousands it was minutes, and whoever asked had given up by then.
#[tokio::test]
async fn nothing_is_read_for_what_nobody_asks_for() {
    let world = World::with_volumes().await;
    for number in 0..8 {
        world.snapshot(&[&format!("tank/a@{number}")]).await;
    }
    let held = Arc::new(world.reopened().await);
    let reads = async |properties: &str| {
        let query = query("tank", properties);
        let mut before = 0;
        // The first time the pool learns what it keeps of that.
        for _ in 0..2 {
            before = world.disk.counts().reads;
            let list = only(&held).datasets(&query).await.unwrap();
            assert_eq!((list.datasets.len(), list.problems.len()), (3 + 8, 0));
        }
        world.disk.counts().reads - before
    };
    assert_eq!(reads("name").await, reads("").await, "a name is known already");
    // For what each dataset has with itself it is only found again.
    let found = reads("guid").await;
    for properties in ["name,guid,createtxg,creation", "used,available,referenced,mountpoint"] {
        assert_eq!(reads(properties).await, found, "{properties}");
    }
    assert!(reads("volsize").await >= found + 8, "that has to be read of each");
}

/// To find out that there are too many for a list that is made beside others, all of them were read, by each who asked.
#[tokio::test]
async fn that_a_list_is_long_is_known_before_snapshots_are_read() {
    const SNAPSHOTS: u64 = 8;
    let world = World::with_volumes().await;
    for number in 0..SNAPSHOTS {
        world.snapshot(&[&format!("tank/a@{number}")]).await;
    }
    let pools = only(&Arc::new(world.reopened().await));
    let query = query("tank", "guid");
    let reads = async |most: usize| {
        let mut before = 0;
        // The first time the pool learns what it keeps of that.
        for _ in 0..2 {
            before = world.disk.counts().reads;
            let found = Listing::find(&pools, &query, most).await.unwrap();
            assert_eq!(found.is_some(), most == usize::MAX);
        }
        world.disk.counts().reads - before
    };
    let (few, all) = (reads(4).await, reads(usize::MAX).await);
    assert!(few + SNAPSHOTS <= all, "{few}, {all}");
}
