//! Pools beside one that is served: nothing that a stranger's pool says of itself takes a volume, a target, an address or
//! discovery from another.

use engine::dsl::{self, Stored};

use super::*;
use crate::shares::{PortalConfig, report};

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

/// What had clients was taken from them for a pool that a stranger had called `tank/x`, or the stranger's was in its place.
#[tokio::test]
async fn a_pool_that_is_called_as_anothers_dataset_takes_nothing_from_it() {
    const NAME: &str = "tank/x/b";
    let world = World::over(1, door().await).await;
    world.volume(NAME).await;
    let iqn = iscsi::iqn::for_dataset(NAME);
    let address = listen(&world.serving.targets).await;
    let (_guest, status) = log_in(address, &iqn).await;
    assert_eq!(status, (0, 0));
    let before = target(&world.serving, &iqn).unwrap();

    let media = lake(&world).await;
    world.volume("lake/b").await;
    world.run(Operation::PoolExport { pool: "lake".to_owned(), force: false }).await.unwrap();
    let found = import::scan(&Sources::disks([Arc::clone(&media) as Arc<dyn Disk>])).await;
    let options = import::OpenOptions { force: true, ..import::OpenOptions::default() };
    let pool = import::open(&found.pools[0], &options).await.unwrap();
    let options = engine::open::OpenOptions {
        rename: Some("tank/x".to_owned()),
        hostid: 7,
        hostname: "simulation".to_owned(),
        now: 1_700_000_000,
        seed: 3,
        workers: 0,
    };
    let syncer = engine::open::open(pool, options).await.unwrap();
    let stranger = Engine::start(syncer, Options::default()).await.unwrap();
    for is_written in [true, false] {
        let held = match is_written {
            true => Held::writing(Arc::clone(&stranger)),
            false => {
                stranger.end(Ending::Close).await.unwrap();
                Held::reading(stranger.view(), "it is to be looked at")
            }
        };
        assert_eq!(held.name(), "tank/x");
        let said = world.serving.follow(&held).await;
        assert!(said.len() == 1 && said[0].contains("'zpool import"), "{said:?}");
        world.serving.withdraw_pool(&held).await;
        assert!(target(&world.serving, &iqn).is_some_and(|now| Arc::ptr_eq(&now, &before)), "{is_written}");
        assert_eq!(exported(&world.serving, NAME).unwrap().pool_guid, world.engine.view().guid());
        assert_eq!(world.serving.clients(NAME), 1);
    }
}

/// Hosts of a volume that was not there for a moment, or came after the stranger's pool, found that one's disks under its name.
#[tokio::test]
async fn a_target_has_no_name_that_is_kept_for_anothers_volume() {
    let world = World::new().await;
    let _media = lake(&world).await;
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
    let _media = lake(&world).await;
    let iqn = iscsi::iqn::for_dataset("tank/c");
    let forged = iqn.replace("tank:c", "TANK:c");
    // No command sets that.
    let held = world.host.find("lake").unwrap();
    let properties = Properties::from([(property::target(&forged), Stored::Text("{}".to_owned()))]);
    let engine = held.engine().unwrap();
    let set = engine.run(false, move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await }));
    set.await.unwrap();
    let said = world.serving.follow(&held).await;
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

/// A pool that came had the daemon's own address in another group at once: hosts of other pools were strangers to their
/// reservations when they logged in again.
#[tokio::test]
async fn an_address_stays_in_its_group_as_long_as_somebody_is_logged_in_there() {
    let targets = iscsi::Targets::new(iscsi::Config::default());
    let here = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = iscsi::Server::bind(Arc::clone(&targets), &[here]).await.unwrap();
    let portals = Portals::new(Arc::clone(&targets), vec![server]).unwrap();
    portals.start().await;
    let fixed = portals.list()[0].address;
    targets.create(TARGET, Offer::default()).unwrap();
    let wanted = [PortalConfig { address: fixed, group: 7 }];
    for is_forced in [false, true] {
        let (guest, status) = log_in(fixed, TARGET).await;
        assert_eq!(status, (0, 0));
        let said = portals.want("lake", &wanted).await;
        assert!(said.len() == 1 && said[0].contains("stays in group 1"), "{said:?}");
        assert_eq!(targets.group_of(fixed), 1);
        let guest = Some(guest).filter(|_| is_forced);
        match is_forced {
            true => portals.give("lake", fixed).await,
            false => {
                while !targets.sessions().is_empty() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
        assert_eq!(portals.want("lake", &wanted).await, Vec::<String>::new());
        assert_eq!(targets.group_of(fixed), 7);
        drop(guest);
        portals.want("lake", &[]).await;
    }
    portals.stop().await;
}
