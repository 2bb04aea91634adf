//! Pools beside one that is served: nothing that a stranger's pool says of itself takes a target, an address or discovery from
//! another.

use engine::dsl::{self, Stored};

use super::*;
use crate::{
    late::{Late, Missing},
    shares::{PortalConfig, report},
};

/// On a disk of its own.
async fn lake(world: &World) {
    let media = Arc::new(MemDisk::new(SIZE).named("/disks/b".to_owned()));
    let engine = created("lake", 2, media as Arc<dyn Disk>).await;
    world.host.keep(Held::writing(engine));
}

/// What is said of that.
async fn set(world: &World, pool: &str, name: &str, text: &str) -> Vec<String> {
    let property = (name.to_owned(), text.to_owned());
    world.run(Operation::PoolSet { pool: pool.to_owned(), property }).await.unwrap().warnings
}

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
    lake(&world).await;
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

/// Hosts of a volume that was not there for a moment, or came after the stranger's pool, found that one's disks under its name.
#[tokio::test]
async fn a_target_has_no_name_that_is_kept_for_anothers_volume() {
    let world = World::new().await;
    lake(&world).await;
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
    lake(&world).await;
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
    lake(&world).await;
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

/// Targets, one of them [`TARGET`], with portals at an address that the daemon was given.
async fn given() -> (Arc<iscsi::Targets>, Arc<Portals>, SocketAddr) {
    given_at([127, 0, 0, 1]).await
}

async fn given_at(ip: [u8; 4]) -> (Arc<iscsi::Targets>, Arc<Portals>, SocketAddr) {
    let targets = iscsi::Targets::new(iscsi::Config::default());
    let here = SocketAddr::from((ip, 0));
    let server = iscsi::Server::bind(Arc::clone(&targets), &[here]).await.unwrap();
    let portals = Portals::new(Arc::clone(&targets), vec![server]).unwrap();
    portals.start().await;
    let fixed = portals.list()[0].address;
    targets.create(TARGET, Offer::default()).unwrap();
    (targets, portals, fixed)
}

/// A pool that came had the daemon's own address in another group at once: hosts of other pools were strangers to their
/// reservations when they logged in again.
#[tokio::test]
async fn an_address_stays_in_its_group_as_long_as_somebody_is_logged_in_there() {
    let (targets, portals, fixed) = given().await;
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
                // Nobody has to ask for it.
                let portals = Arc::clone(&portals);
                tokio::time::pause();
                let retry = tokio::spawn(async move { portals.retry().await });
                tokio::time::sleep(Duration::from_secs(20)).await;
                retry.abort();
                tokio::time::resume();
                assert_eq!(targets.group_of(fixed), 7);
            }
        }
        assert_eq!(portals.want("lake", &wanted).await, Vec::<String>::new());
        assert_eq!(targets.group_of(fixed), 7);
        drop(guest);
        portals.want("lake", &[]).await;
    }
    portals.stop().await;
}

/// What was settled between the command and its transaction group forgot that it was forced.
#[tokio::test]
async fn a_group_that_is_forced_is_so_whatever_is_settled_before_the_pool_says_it() {
    let (targets, portals, fixed) = given().await;
    let (guest, status) = log_in(fixed, TARGET).await;
    assert_eq!(status, (0, 0));
    portals.give("lake", fixed).await;
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (pool, address, group) in [("tank", other, 2), ("lake", fixed, 7)] {
        assert_eq!(portals.want(pool, &[PortalConfig { address, group }]).await, Vec::<String>::new());
    }
    assert_eq!(targets.group_of(fixed), 7);
    drop(guest);
    portals.stop().await;
}

/// Hosts of others that came in while it was exported were in another group than they had registered in, and in its way for good
/// when it was back.
#[tokio::test]
async fn a_pool_that_comes_back_finds_the_daemons_address_in_its_group() {
    finds_its_group([127, 0, 0, 1]).await;
}

/// With a daemon that listens at all addresses it was so still: the one that the pool names has no listener of its own.
#[tokio::test]
async fn a_pool_that_comes_back_finds_one_of_all_the_daemons_addresses_in_its_group() {
    finds_its_group([0, 0, 0, 0]).await;
}

/// The same where the daemon listens at this address.
async fn finds_its_group(ip: [u8; 4]) {
    let (targets, portals, given) = given_at(ip).await;
    let fixed = SocketAddr::from(([127, 0, 0, 1], given.port()));
    let wanted = [PortalConfig { address: fixed, group: 7 }];
    assert_eq!(portals.want("tank", &wanted).await, Vec::<String>::new());
    portals.leave("tank").await;
    let is_named = targets.portals().iter().any(|portal| portal.address == fixed);
    assert_eq!(is_named, fixed == given, "it may have gone with the pool");
    let (guest, status) = log_in(fixed, TARGET).await;
    assert_eq!(status, (0, 0));
    assert_eq!(targets.sessions()[0].portal.group, 7);
    assert_eq!(portals.want("tank", &wanted).await, Vec::<String>::new());
    // Nor does one that said another, and did not get it, take it meanwhile.
    let said = portals.want("lake", &[PortalConfig { address: fixed, group: 3 }]).await;
    assert!(said.len() == 1 && said[0].contains("as pool 'tank' says"), "{said:?}");
    portals.leave("tank").await;
    assert_eq!(targets.group_of(fixed), 7);
    assert_eq!(portals.want("tank", &wanted).await, Vec::<String>::new());
    portals.want("lake", &[]).await;
    portals.want("tank", &[]).await;
    assert_eq!(targets.group_of(fixed), 1, "it does not say so any more");
    drop(guest);
    portals.stop().await;
}

/// A daemon with these portals, and the pool `tank`, which it does not have yet and which says that the address is in group 7.
async fn daemon_with_tank(
    targets: &Arc<iscsi::Targets>,
    portals: &Arc<Portals>,
    address: SocketAddr,
) -> (Arc<Host>, Arc<Engine>, tempfile::TempDir) {
    let registry = Arc::new(nbd::Registry::new());
    let exports = Arc::clone(&registry) as Arc<dyn nbd::Exports>;
    let nbd = nbd::Server::new(exports, nbd::ServeLimits::default());
    let serving = Serving::new(registry, nbd, Arc::clone(targets), Vec::new(), Arc::clone(portals));
    let state = tempfile::tempdir().unwrap();
    let places = Places::new(Vec::new(), State::at(state.path()));
    let host = Host::new(places, Mode::Daemon, Settings::default()).with_serving(Arc::new(serving));
    let media = Arc::new(MemDisk::new(SIZE).named("/disks/a".to_owned()));
    let engine = created("tank", 1, media as Arc<dyn Disk>).await;
    let says = format!(r#"[{{"address":"{address}","group":7}}]"#);
    let properties = Properties::from([(property::PORTALS.to_owned(), Stored::Text(says))]);
    let set = engine.run(false, move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await }));
    set.await.unwrap();
    (Arc::new(host), engine, state)
}

/// Said once more it was taken for done, and what was to be said instead named no pool where there are two.
#[tokio::test]
async fn whoever_adds_a_portal_that_is_not_in_its_group_is_told_what_helps() {
    let (targets, portals, fixed) = given().await;
    let (host, engine, _state) = daemon_with_tank(&targets, &portals, fixed).await;
    let (guest, status) = log_in(fixed, TARGET).await;
    assert_eq!(status, (0, 0));
    host.keep(Held::writing(engine));
    let add = async |force| {
        let change = ShareChange::PortalAdd { address: fixed, group: 7, force };
        let operation = Operation::Share { pool: "tank".to_owned(), change };
        run(&host, Request { operation, command: None, user: 0 }).await.unwrap().warnings
    };
    for _ in 0..2 {
        let said = add(false).await;
        assert!(said.len() == 1 && said[0].contains("stays in group 1"), "{said:?}");
        assert!(said[0].contains("add -f --pool tank --group 7"), "{said:?}");
    }
    assert_eq!(add(true).await, Vec::<String>::new());
    assert_eq!(targets.group_of(fixed), 7);
    drop(guest);
    portals.stop().await;
}

/// The group of an address where a host of others had come in before `tank` did, which is late, and what is said of that host.
async fn with_tank_late(is_imported: bool) -> (u16, Option<String>) {
    let (targets, portals, fixed) = given().await;
    let (host, engine, _state) = daemon_with_tank(&targets, &portals, fixed).await;
    let (guest, status) = log_in(fixed, TARGET).await;
    assert_eq!(status, (0, 0));
    let held = Held::writing(engine);
    if is_imported {
        host.remember(&held, &Settings::default(), None).unwrap();
    }
    let missing =
        Missing { name: "tank".to_owned(), guid: held.guid(), is_imported, why: "it is late".to_owned() };
    let late = Late::new(Arc::downgrade(&host), vec![missing.clone()]);
    let (_stop, stopping) = tokio::sync::watch::channel(false);
    late.receive(&missing, Ok((held, Vec::new())), &stopping).await;
    assert!(host.find("tank").is_some());
    let found = (targets.group_of(fixed), portals.strangers(&PortalConfig { address: fixed, group: 7 }));
    drop(guest);
    portals.stop().await;
    found
}

/// Its drives came after the daemon, and hosts of others had come in meanwhile: they were in its way for good, in another group
/// than they had registered in. Then it had its group, and nobody was told of the hosts.
#[tokio::test]
async fn a_pool_that_is_late_has_the_group_that_it_would_have_had_in_time() {
    let (group, said) = with_tank_late(true).await;
    assert_eq!(group, 7);
    assert!(said.is_some_and(|said| said.starts_with("1 initiators came in at ")));
}

/// One that was only there at the start, and could not be opened, had the daemon's own address in another group when it could:
/// under hosts of others that were logged in.
#[tokio::test]
async fn a_strangers_pool_that_is_late_takes_no_address_from_hosts_that_are_there() {
    assert_eq!(with_tank_late(false).await, (1, None));
}
