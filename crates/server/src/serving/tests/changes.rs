//! What changes of a disk under its hosts: its block size, its name, what else its target has. Each finds the disk that it
//! means, or is told to try again.

use engine::dsl::{self, Stored};

use super::*;
use crate::ops::LuChange;

/// Hosts look once whether there is a write cache. Those that had found none went on without flushes, and their writes were
/// answered from memory.
#[tokio::test]
async fn a_write_cache_comes_on_under_hosts_by_force_only_and_then_they_are_counted() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    let share = |text: &str, force| {
        let (dataset, options) = ("tank/a".to_owned(), vec![("write-cache".to_owned(), text.to_owned())]);
        Operation::Share { pool: "tank".to_owned(), change: ShareChange::Options { dataset, options, force } }
    };
    let set = |name: &str| {
        let properties = vec![(property::WRITE_CACHE.to_owned(), "on".to_owned())];
        Operation::Set { name: name.to_owned(), properties, force: false }
    };
    let inherit = |name: &str, recursive| {
        let (name, property) = (name.to_owned(), property::WRITE_CACHE.to_owned());
        Operation::Inherit { name, property, recursive, received: false, force: false }
    };
    let modify = Operation::Lu {
        volume: "tank/a".to_owned(),
        change: LuChange::Modify { size: None, write_cache: Some(true) },
    };
    world.run(share("off", false)).await.unwrap();
    let (mut guest, status) = log_in(address, TARGET).await;
    assert_eq!((status, told(&mut guest).await), ((0, 0), vec![(0x29, 0)]));
    let refused = [
        share("on", false),
        share("", false),
        set("tank/a"),
        inherit("tank/a", false),
        inherit("tank", true),
    ];
    for operation in refused.into_iter().chain([modify]) {
        let said = world.run(operation).await.unwrap_err().message;
        assert!(said.contains("1 client uses tank/a and found no write cache"), "{said}");
    }
    // What does not reach it, or leaves it as it is.
    for operation in [set("tank"), inherit("tank", false), share("off", false)] {
        assert_eq!(world.run(operation).await.unwrap().warnings, Vec::<String>::new());
    }
    assert_eq!(told(&mut guest).await, Vec::<(u8, u8)>::new());
    let warned = world.run(share("", true)).await.unwrap().warnings.concat();
    assert!(warned.contains("1 client uses tank/a and found no write cache, which there is now"), "{warned}");
    assert_eq!(told(&mut guest).await, vec![(0x2a, 0x01)]);
    assert_eq!(world.run(share("on", false)).await.unwrap().warnings, Vec::<String>::new());
    // Nor is anybody in the way who is not there.
    world.run(share("off", false)).await.unwrap();
    drop(guest);
    left(&world.serving, "tank/a").await;
    assert_eq!(world.run(share("on", false)).await.unwrap().warnings, Vec::<String>::new());
}

/// Who logged in while the block size was being set learned the old one, and wrote elsewhere by it once the disk had the other.
#[tokio::test]
async fn a_disk_gets_another_block_size_when_nobody_is_logged_in() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/b"));
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    for (name, iqn) in [("tank/a", TARGET), ("tank/b", &*own)] {
        let before = unit(iqn);
        let (guest, status) = log_in(address, iqn).await;
        assert_eq!(status, (0, 0));
        let block = Properties::from([(property::BLOCK.to_owned(), Stored::Text("4096".to_owned()))]);
        let set = world.engine.run(move |cx| Box::pin(async move { dsl::set(cx, name, &block).await }));
        set.await.unwrap();
        let said = world.serving.follow(&held).await.concat();
        assert!(said.contains("keeps its block size of 512 bytes"), "{said}");
        assert!(Arc::ptr_eq(&unit(iqn), &before) && world.serving.again.next().is_some(), "{name}");
        // That it waits was taken for what every other setting would cut the host off by.
        let properties = vec![(property::WRITE_CACHE.to_owned(), "off".to_owned())];
        world.run(Operation::Set { name: name.to_owned(), properties, force: false }).await.unwrap();
        assert!(Arc::ptr_eq(&unit(iqn), &before), "{name}");
        drop(guest);
        left(&world.serving, name).await;
        assert_eq!(world.serving.follow(&held).await, Vec::<String>::new());
        assert!(!Arc::ptr_eq(&unit(iqn), &before) && world.serving.again.next().is_none(), "{name}");
    }
}

/// It was missing meanwhile: hosts that came back just then were told that it was removed, or found its target without it.
#[tokio::test]
async fn a_host_that_comes_while_a_disk_gets_another_block_size_is_told_to_try_again() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    let awaited = Arc::clone(&world.serving);
    world.serving.targets.set_awaited(move |target| awaited.is_awaited(target));
    let own = iscsi::iqn::for_dataset("tank/b");
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    for (name, iqn) in [("tank/a", TARGET), ("tank/b", &*own)] {
        let before = unit(iqn);
        let options = Properties::from([
            (property::BLOCK.to_owned(), Stored::Text("4096".to_owned())),
            (property::WRITE_CACHE.to_owned(), Stored::Text("off".to_owned())),
        ]);
        let set = world.engine.run(move |cx| Box::pin(async move { dsl::set(cx, name, &options).await }));
        set.await.unwrap();
        // What was written before has to be stable before the disk is offered.
        let volume = world.engine.volume(name).await.unwrap();
        let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
        volume.write(0, data, block::Durability::Cached).await.unwrap();
        world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)));
        let following = tokio::spawn({
            let (serving, host) = (Arc::clone(&world.serving), Arc::clone(&world.host));
            async move { serving.follow(&host.find("tank").unwrap()).await }
        });
        tokio::time::sleep(LONG / 4).await;
        assert_eq!(log_in(address, iqn).await.1, (3, 1), "{name}: try again");
        assert!(!following.is_finished());
        world.disk.heal();
        assert_eq!(following.await.unwrap(), Vec::<String>::new());
        let (guest, status) = log_in(address, iqn).await;
        assert_eq!(status, (0, 0), "{name}");
        assert!(!Arc::ptr_eq(&unit(iqn), &before), "{name}");
        drop(guest);
        left(&world.serving, name).await;
    }
}

/// A host that came to another of its disks just then was told to try again, and its virtual machine did not start; copies that
/// named one ended half done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_takes_logins_while_one_of_its_disks_is_taken_away() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    // To tell so many takes a while.
    let unit = target(&world.serving, TARGET).unwrap().unit(0).expect("a disk");
    let hosts: Vec<_> = (0..10_000).map(|host| unit.attach(&format!("iqn.{host},i,0x1"))).collect();
    let (over, is_over) = tokio::sync::watch::channel(false);
    let logins = tokio::spawn(async move {
        let mut answers = BTreeSet::new();
        while !*is_over.borrow() {
            answers.insert(log_in(address, TARGET).await.1);
        }
        answers
    });
    let share = |change| Operation::Share { pool: "tank".to_owned(), change };
    for _ in 0..20 {
        let (target, volume) = (TARGET.to_owned(), "tank/b".to_owned());
        world.run(share(ShareChange::LunAdd { target, volume, lun: Some(1) })).await.unwrap();
        let (target, disk) = (TARGET.to_owned(), "tank/b".to_owned());
        world.run(share(ShareChange::LunRemove { target, disk })).await.unwrap();
    }
    over.send(true).unwrap();
    assert_eq!(logins.await.unwrap(), BTreeSet::from([(0, 0)]));
    drop(hosts);
}

/// Its export led to the volume that had its name before, and its disk was not offered.
#[tokio::test]
async fn a_volume_that_gets_the_name_of_another_is_what_clients_find_by_it() {
    let world = World::over(1, door().await).await;
    for name in ["tank/a", "tank/b"] {
        world.volume(name).await;
    }
    let who = async |name: &str| world.engine.volume(name).await.unwrap().identity().guid;
    let (first, second) = (who("tank/a").await, who("tank/b").await);
    // Whoever was to follow this was given up.
    let rename = world.engine.run(|cx| dsl::rename(cx, "tank/a", "tank/c", false, false));
    rename.await.unwrap();
    let (from, to) = ("tank/b".to_owned(), "tank/a".to_owned());
    world.run(Operation::Rename { from, to, parents: false, recursive: false }).await.unwrap();
    let found = |name: &str| exported(&world.serving, name).map(|identity| identity.guid);
    assert_eq!([found("tank/a"), found("tank/b"), found("tank/c")], [Some(second), None, Some(first)]);
    for (name, guid) in [("tank/a", second), ("tank/c", first)] {
        let target = target(&world.serving, &iscsi::iqn::for_dataset(name)).expect(name);
        assert_eq!(target.unit(0).unwrap().volume().identity().guid, guid, "{name}");
    }
}

/// An export of this name kept the disk from being offered.
#[tokio::test]
async fn a_protocol_that_cannot_have_a_volume_is_in_no_others_way() {
    let world = World::over(1, door().await).await;
    world.volume("tank/a").await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/a"));
    {
        let mut entries = world.serving.entries.lock();
        let entry = entries.get_mut("tank/a").unwrap();
        entry.is_in_nbd = false;
        world.serving.take(&entry.disk.take().unwrap());
    }
    assert!(target(&world.serving, &own).is_none());
    world.serving.follow(&held).await;
    assert!(target(&world.serving, &own).is_some());
    assert!(world.serving.list().served[0].refused.is_some());
    world.serving.registry.remove("tank/a");
    world.serving.follow(&held).await;
    assert!(exported(&world.serving, "tank/a").is_some());
    assert_eq!(world.serving.list().served[0].refused, None);
}
