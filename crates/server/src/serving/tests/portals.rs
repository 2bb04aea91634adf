//! Portals: an address is in the group that a pool says before hosts come in there, also of a pool that comes back or is late,
//! and no pool moves one from under hosts that are there.

use engine::dsl::{self, Stored};

use super::*;
use crate::{
    late::{Late, Missing},
    shares::PortalConfig,
};

/// Until its datasets were listed, and then until all disks had come, the address was in the first group. A start goes on without
/// such a pool: hosts of others were let in, and in its way from then on; its own were told that there is no such target, and
/// gave it up, or were strangers to the reservations that they had made in the second.
#[tokio::test(start_paused = true)]
async fn portals_of_a_pool_are_in_their_groups_before_its_datasets_are_listed() {
    let world = World::with_volumes().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let portal = ShareChange::PortalAdd { address: free, group: 2, force: false };
    world.run(Operation::Share { pool: "tank".to_owned(), change: portal }).await.unwrap();
    world.set_much("tank/a").await;
    world.serving.portals.stop().await;
    let held = Arc::new(world.reopened().await);
    // A target that was set up is there once volumes are listed, and one of a volume's own takes logins as soon as that is read.
    for (block, is_listed) in [
        // First: what is set the pool knows once it was read.
        (world.settings_block("tank/a").await, true),
        (world.root_block("tank/a").await, false),
        (world.objects_block("tank/a").await, true),
    ] {
        let serving = serving();
        world.hang_block(&block);
        let following = begun(&serving, &held);
        tokio::time::sleep(LONG / 2).await;
        assert!(!following.is_finished(), "it hangs, at {block:?}");
        let is_ready = target(&serving, TARGET).map(|target| target.is_ready());
        assert_eq!(is_ready, is_listed.then_some(false), "at {block:?}");
        assert_eq!(serving.targets.list().is_empty(), !is_listed, "at {block:?}");
        assert_eq!(serving.targets.group_of(free), 2, "at {block:?}");
        assert_eq!(following.await.unwrap(), Vec::<String>::new(), "at {block:?}");
        serving.portals.stop().await;
        world.disk.heal();
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
    let set = engine.run(move |cx| Box::pin(async move { dsl::set_pool(cx, &properties).await }));
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
