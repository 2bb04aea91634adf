//! Pools beside one that is served: nothing that a stranger's pool says of itself takes a target or discovery from another;
//! for addresses see [`portals`](super::portals).

use engine::dsl::{self, Stored};

use super::*;
use crate::{events::observe::News, shares::report};

/// Sets a property of a pool, and gives back what is said of that.
async fn set(world: &World, pool: &str, name: &str, text: &str) -> Vec<String> {
    let property = (name.to_owned(), text.to_owned());
    world.run(Operation::PoolSet { pool: pool.to_owned(), property }).await.unwrap().warnings
}

/// The same for what no command sets, and other software may.
async fn forge(world: &World, pool: &str, name: &str, text: &str) -> Vec<String> {
    let held = world.host.find(pool).unwrap();
    let properties = Properties::from([(name.to_owned(), Stored::Text(text.to_owned()))]);
    let engine = held.engine().unwrap();
    let set = engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await }));
    set.await.unwrap();
    world.serving.follow(&held).await
}

/// Hosts of a volume that was not there for a moment, or came after the stranger's pool, found that one's disks under its name.
#[tokio::test]
async fn a_target_has_no_name_that_is_kept_for_anothers_volume() {
    let world = World::new().await;
    world.lake().await;
    let iqn = iscsi::iqn::for_dataset("tank/c");
    let said = set(&world, "lake", &property::target(&iqn), "{}").await;
    assert!(said.len() == 1 && said[0].contains("is kept for 'tank/c'"), "{said:?}");
    assert!(target(&world.serving, &iqn).is_none());
    let held = world.host.find("lake").unwrap();
    assert_eq!(report(&held.view()).await.problems, said, "a list says it, too");
    assert!(report(&held.view()).await.targets.is_empty());
    world.volume("tank/c").await;
    assert!(target(&world.serving, &iqn).is_some_and(|target| target.unit(0).is_some()));
}

/// One capital letter led past that: the name was compared as it was written, and the target was made in lower case.
#[tokio::test]
async fn a_name_that_is_kept_for_anothers_volume_is_so_in_capitals_as_well() {
    let world = World::new().await;
    world.lake().await;
    let iqn = iscsi::iqn::for_dataset("tank/c");
    let forged = iqn.replace("tank:c", "TANK:c");
    let said = forge(&world, "lake", &property::target(&forged), "{}").await;
    assert!(said.len() == 1 && said[0].contains("is not in lower case"), "{said:?}");
    assert!(world.serving.targets.list().is_empty());
    let change = ShareChange::TargetDestroy { target: forged, force: false };
    let answer = world.run(Operation::Share { pool: "lake".to_owned(), change }).await.unwrap();
    assert_eq!(answer.warnings, Vec::<String>::new());
}

/// Whoever wanted to discover was refused, also where another pool said whom it admits.
#[tokio::test]
async fn what_one_pool_says_of_discovery_and_cannot_be_understood_takes_nothing_from_what_another_says() {
    let world = World::new().await;
    world.lake().await;
    let said = set(&world, "tank", property::DISCOVERY, r#"{"initiators":["iqn.a:x"]}"#).await;
    assert_eq!(said, Vec::<String>::new());
    for (name, text) in [
        (property::DISCOVERY, r#"{"networks":["192.0.2.0/33"]}"#),
        (property::CHAP, r#"[{"user":"u","secret":"hunter2"}]"#),
    ] {
        let said = forge(&world, "lake", name, text).await;
        assert!(said.len() == 1 && said[0].contains("pool 'lake' admits nobody"), "{said:?}");
        assert!(said[0].contains(&format!("'{name}'")) && !said[0].contains("hunter"), "{said:?}");
        let (access, peer) = (world.serving.targets.discovery(), "192.0.2.1".parse().unwrap());
        assert!(access.admits("iqn.a:x", peer) && !access.admits("iqn.b:y", peer), "{name}");
        assert_eq!(set(&world, "lake", name, "").await, Vec::<String>::new());
    }
}

/// Of a command that was carried out when nobody waited for it any more only its own pool was followed: another that waited for the
/// name had it up to a quarter of an hour later.
#[tokio::test]
async fn a_name_that_is_free_by_what_nobody_saw_to_is_given_to_who_waits_for_it_at_once() {
    let world = World::with_volumes().await;
    world.lake().await;
    let said = forge(&world, "lake", &property::target(TARGET), "{}").await;
    assert!(said.len() == 1 && said[0].contains("pool 'tank' has one of this name"), "{said:?}");
    forge(&world, "tank", &property::target(TARGET), "").await;
    let is_due = || world.serving.again.next().is_some_and(|at| at <= tokio::time::Instant::now());
    assert!(!is_due(), "nobody was told of that");
    let [tank, lake] = ["tank", "lake"].map(|name| world.host.find(name).unwrap().guid());
    world.serving.hear(tank, News::Changed);
    world.serving.try_pool(&world.host, tank, &[]).await;
    assert!(is_due());
    world.serving.try_pool(&world.host, lake, &[]).await;
    assert!(world.serving.shared_target("lake", TARGET).is_ok());
}

/// Pools are read side by side at a start: hosts of the first would find the stranger's disks whenever that is read sooner.
#[tokio::test(start_paused = true)]
async fn of_two_pools_that_want_one_name_it_is_the_first_that_gets_it_however_slow_it_is() {
    let world = World::with_volumes().await;
    world.lake().await;
    let said = forge(&world, "lake", &property::target(TARGET), "{}").await;
    assert!(said.len() == 1 && said[0].contains("pool 'tank' has one of this name"), "{said:?}");
    let slow = Effect::Delay(Duration::from_millis(10)..=Duration::from_millis(10));
    world.disk.inject(Fault::anywhere(On::Read, slow));
    for [first, second] in [["tank", "lake"], ["lake", "tank"]] {
        let serving = serving();
        let pools = [first, second].map(|name| world.host.find(name).unwrap());
        let mut told = Vec::new();
        serving.begin(pools.into(), |sentence| told.push(sentence)).await;
        assert!(
            told.iter().any(|why| why.contains(&format!("pool '{first}' has one of this name"))),
            "{told:?}"
        );
        assert!(serving.shared_target(first, TARGET).is_ok(), "{first}");
        assert!(serving.shared_target(second, TARGET).is_err(), "{second}");
    }
}
