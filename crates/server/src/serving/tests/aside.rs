//! Volumes that are rolled back, destroyed, promoted or renamed: nobody comes in meanwhile, what was written before does not
//! land later, and what is refused has destroyed nothing.

use engine::{
    dsl::{self, Stored},
    mos::zap,
};
use futures_util::FutureExt as _;

use super::*;
use crate::ops::{Destroy, LuChange};

/// A host that logged in while the snapshot's content came below what it had read wrote parts of the old content on top.
#[tokio::test]
async fn nobody_comes_in_while_a_volume_is_rolled_back_and_its_disk_stays_the_disk_it_is() {
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let own = iscsi::iqn::for_dataset("tank/b");
    let status = async || [log_in(address, TARGET).await.1, log_in(address, &own).await.1];
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    for (name, iqn, is_shut) in [("tank/a", TARGET, [true, false]), ("tank/b", &*own, [false, true])] {
        let snapshot = format!("{name}@s");
        world.snapshot(&[&snapshot]).await;
        let (before, export) = (unit(iqn), exported(&world.serving, name));
        assert_eq!(export.is_some(), name == "tank/b");
        let volume = world.engine.volume(name).await.unwrap();
        let data = [block::Segment::Data(vec![1; 8192].into())].into_iter().collect();
        volume.write(0, data, block::Durability::Cached).await.unwrap();
        world.engine.sync().await.unwrap();
        left(&world.serving, name).await;
        world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
        let rolling = world.begin(Operation::Rollback { snapshot, recursive: false, clones: false });
        tokio::time::sleep(LONG / 4).await;
        let expected = is_shut.map(|is_shut| if is_shut { (3, 1) } else { (0, 0) });
        assert_eq!(status().await, expected, "{name}: try again");
        assert_eq!(exported(&world.serving, name), None);
        // Whoever follows the pool meanwhile lets nobody in.
        world.serving.follow(&world.host.find("tank").unwrap()).await;
        assert_eq!((status().await, exported(&world.serving, name)), (expected, None));
        assert!(!rolling.is_finished());
        rolling.await.unwrap().unwrap();
        assert_eq!(status().await, [(0, 0); 2]);
        assert!(exported(&world.serving, name) == export && Arc::ptr_eq(&unit(iqn), &before));
        assert!(world.serving.list().served.iter().all(|served| served.refused.is_none()));
        let read = volume.read(0, 8192).await.unwrap();
        assert!(read.iter().all(|segment| !matches!(segment, block::Segment::Data(_))), "{read:?}");
    }
}

/// The snapshots in its way were gone for good when a rollback was refused because a host had logged in meanwhile.
#[tokio::test]
async fn nobody_comes_in_while_what_is_in_the_way_of_a_rollback_goes() {
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let own = iscsi::iqn::for_dataset("tank/b");
    for name in ["tank/b@s", "tank/b@t"] {
        world.snapshot(&[name]).await;
    }
    world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
    let snapshot = "tank/b@s".to_owned();
    let rolling = world.begin(Operation::Rollback { snapshot, recursive: true, clones: false });
    tokio::time::sleep(LONG / 4).await;
    assert_eq!(log_in(address, &own).await.1, (3, 1), "try again");
    assert_eq!(exported(&world.serving, "tank/b"), None);
    assert!(!rolling.is_finished());
    rolling.await.unwrap().unwrap();
    assert!(world.dataset("tank/b@s").await.is_ok());
    assert!(matches!(world.dataset("tank/b@t").await, Err(LookupError::NotFound { .. })));
    assert_eq!(log_in(address, &own).await.1, (0, 0));
    assert!(exported(&world.serving, "tank/b").is_some());
}

/// A host that logged in to one of several volumes while those before it were being destroyed lost it under its feet.
#[tokio::test]
async fn nobody_comes_in_to_what_will_be_destroyed_once_the_first_goes() {
    const NAMES: [&str; 2] = ["tank/x/1", "tank/x/2"];
    let world = World::over(1, door().await).await;
    for name in NAMES {
        world.volume(name).await;
    }
    let address = listen(&world.serving.targets).await;
    let held = world.host.find("tank").unwrap();
    let status = async |name: &str| log_in(address, &iscsi::iqn::for_dataset(name)).await.1;
    // Where somebody is in one, the others stay as they are.
    let (guest, _) = log_in(address, &iscsi::iqn::for_dataset(NAMES[1])).await;
    let used = world.serving.set_aside_all(&held, &NAMES.map(str::to_owned)).err();
    assert_eq!(used.as_deref(), Some(NAMES[1]));
    world.serving.follow(&held).await;
    assert!(exported(&world.serving, NAMES[0]).is_some());
    assert_eq!(status(NAMES[0]).await, (0, 0));
    drop(guest);
    for name in NAMES {
        left(&world.serving, name).await;
    }
    world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
    let destroy = Destroy { name: "tank/x".to_owned(), recursive: true, ..Destroy::default() };
    let destroying = world.begin(Operation::Destroy(destroy));
    tokio::time::sleep(LONG / 4).await;
    for name in NAMES {
        assert_eq!((status(name).await, exported(&world.serving, name)), ((3, 1), None), "{name}: try again");
    }
    assert!(!destroying.is_finished());
    destroying.await.unwrap().unwrap();
    assert!(matches!(world.dataset("tank/x").await, Err(LookupError::NotFound { .. })));
    assert!(NAMES.iter().all(|name| target(&world.serving, &iscsi::iqn::for_dataset(name)).is_none()));
}

/// A host that logged in to a snapshot while the clone that takes it over was being promoted was cut off when that was done.
#[tokio::test]
async fn nobody_comes_in_while_a_snapshot_goes_to_a_clone_that_is_promoted() {
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let status = async |name: &str| log_in(address, &iscsi::iqn::for_dataset(name)).await.1;
    world.snapshot(&["tank/b@s"]).await;
    let (snapshot, name) = ("tank/b@s".to_owned(), "tank/x".to_owned());
    let clone = Operation::Clone { snapshot, name: name.clone(), properties: Vec::new(), parents: false };
    world.run(clone).await.unwrap();
    world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
    let promoting = world.begin(Operation::Promote { name });
    tokio::time::sleep(LONG / 4).await;
    assert_eq!(status("tank/b@s").await, (3, 1), "try again");
    assert_eq!(exported(&world.serving, "tank/b@s"), None);
    assert!(!promoting.is_finished());
    promoting.await.unwrap().unwrap();
    assert_eq!(status("tank/x@s").await, (0, 0));
    assert!(exported(&world.serving, "tank/x@s").is_some());
}

/// A host that logged in while a volume was being renamed was cut off when it had its new name.
#[tokio::test]
async fn nobody_comes_in_while_a_volume_is_renamed() {
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let own = |name: &str| iscsi::iqn::for_dataset(name);
    let unit = |iqn: &str| target(&world.serving, iqn).unwrap().unit(0).expect("a disk");
    let shelf = unit(TARGET);
    for (from, iqn, to, new) in [
        ("tank/a", TARGET.to_owned(), "tank/c", TARGET.to_owned()),
        ("tank/b", own("tank/b"), "tank/d", own("tank/d")),
    ] {
        world.disk.inject(Fault::anywhere(On::Flush, Effect::Delay(LONG..=LONG)).times(1));
        let (from_name, to_name) = (from.to_owned(), to.to_owned());
        let renaming =
            world.begin(Operation::Rename { from: from_name, to: to_name, parents: false, recursive: false });
        tokio::time::sleep(LONG / 4).await;
        assert_eq!(log_in(address, &iqn).await.1, (3, 1), "{from}: try again");
        assert_eq!(exported(&world.serving, from), None);
        assert!(!renaming.is_finished());
        renaming.await.unwrap().unwrap();
        assert_eq!(log_in(address, &new).await.1, (0, 0), "{to}");
    }
    assert!(exported(&world.serving, "tank/d").is_some());
    assert!(Arc::ptr_eq(&unit(TARGET), &shelf));
}

/// Each was compared with each, twice, and all that was offered later with each again: a worker did nothing else for half a
/// minute, and hosts on it were not answered.
#[tokio::test]
async fn many_snapshots_are_set_aside_at_once() {
    const LIMIT: Duration = Duration::from_secs(10);
    let world = World::new().await;
    world.volume("tank/a").await;
    let (held, dataset) = (world.host.find("tank").unwrap(), world.dataset("tank/a").await.unwrap());
    let names: Vec<String> = (0..20_000).map(|number| format!("tank/a@{number}")).collect();
    let entries = names.iter().map(|name| (name.clone(), Entry::new(&dataset)));
    world.serving.entries.lock().extend(entries);
    let began = tokio::time::Instant::now();
    let asides = world.serving.set_aside_all(&held, &names).expect("nobody is there");
    assert_eq!(asides.len(), names.len());
    assert!(names.iter().all(|name| world.serving.is_aside(held.guid(), name)));
    let again = world.serving.set_aside_all(&held, &names[..1]).expect("nobody is there");
    drop(asides);
    let is_aside = |name: &String| world.serving.is_aside(held.guid(), name);
    assert!(is_aside(&names[0]) && !is_aside(&names[1]), "somebody else means to");
    drop(again);
    assert!(world.serving.asides.lock().is_empty());
    assert!(began.elapsed() < LIMIT, "{:?}", began.elapsed());
}

/// Of a rename or a destroy over which the pool was suspended hosts were told as of a rollback, that all that they had read
/// was another's.
#[tokio::test]
async fn hosts_are_told_of_other_content_only_where_it_may_be_other() {
    let world = World::with_volumes().await;
    let address = listen(&world.serving.targets).await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/b"));
    let visit = async || {
        let (mut guest, status) = log_in(address, &own).await;
        assert_eq!(status, (0, 0));
        let told = told(&mut guest).await;
        drop(guest);
        left(&world.serving, "tank/b").await;
        told.contains(&(0x28, 0))
    };
    assert!(!visit().await);
    // Whoever asked for it was answered before, and nobody says how it ended.
    drop(world.serving.set_aside_all(&held, &["tank/b".to_owned()]).expect("nobody is there"));
    world.serving.follow(&held).await;
    assert!(!visit().await, "it is about to get another name");
    drop(world.serving.set_aside(&held, "tank/b").await.expect("nobody is there"));
    world.serving.follow(&held).await;
    assert!(visit().await, "it is rolled back");
}

/// Of `tank/a`, which is ones, a part of a block is written to by its LUN, with nines. It stands still until it is polled:
/// it has to read the block.
async fn begun_write(world: &World) -> BoxFuture<'static, scsi::Response> {
    let volume = world.engine.volume("tank/a").await.unwrap();
    let data = [block::Segment::Data(vec![1; 64 << 10].into())].into_iter().collect();
    volume.write(0, data, block::Durability::Cached).await.unwrap();
    world.engine.sync().await.unwrap();
    let unit = target(&world.serving, TARGET).unwrap().unit(0).expect("a disk");
    let nexus = unit.attach("iqn.test,i,0x000000000001");
    // WRITE(10) of one block.
    let mut write = [0; 16];
    (write[0], write[8]) = (0x2a, 1);
    let begun = |_| match unit.begin(&nexus, &write, 512) {
        scsi::Begin::Job(job) => Some(job),
        scsi::Begin::Done(_) => None,
    };
    let job = (0..9).find_map(begun).expect("it has heard that the disk came up");
    let data = [block::Segment::Data(vec![9; 512].into())].into_iter().collect();
    world.disk.inject(Fault::anywhere(On::Read, Effect::Delay(LONG..=LONG)).times(1));
    let mut writing: BoxFuture<'static, scsi::Response> =
        Box::pin(async move { unit.run(&nexus, job, data).await });
    assert!(writing.as_mut().now_or_never().is_none());
    writing
}

/// Whether nothing of that write is there.
async fn has_ones(world: &World) -> bool {
    let read = world.engine.volume("tank/a").await.unwrap().read(0, 512).await.unwrap();
    let is_one = |byte: &u8| *byte == 1;
    read.iter().all(|segment| matches!(segment, block::Segment::Data(bytes) if bytes.iter().all(is_one)))
}

fn back_to_ones() -> Operation {
    Operation::Rollback { snapshot: "tank/a@s".to_owned(), recursive: false, clones: false }
}

/// Its LUN was taken away, as Proxmox does it for a rollback, and a write that a device had kept landed on top of the snapshot's
/// content.
#[tokio::test(start_paused = true)]
async fn a_rollback_waits_for_the_last_write_of_a_disk_that_was_taken_away() {
    let world = World::with_volumes().await;
    let writing = begun_write(&world).await;
    world.snapshot(&["tank/a@s"]).await;
    let delete = Operation::Lu { volume: "tank/a".to_owned(), change: LuChange::Delete };
    world.run(delete).await.unwrap();
    assert!(target(&world.serving, TARGET).unwrap().unit(0).is_none());
    assert!(world.serving.clients("tank/a").is_empty());
    let rolling = world.begin(back_to_ones());
    tokio::time::sleep(2 * LONG).await;
    assert!(!rolling.is_finished(), "it waits");
    assert_eq!(writing.await.status, scsi::Status::Good);
    rolling.await.unwrap().unwrap();
    assert!(has_ones(&world).await);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_is_refused_while_the_last_write_of_a_disk_that_was_taken_away_stands_still() {
    let world = World::with_volumes().await;
    let writing = begun_write(&world).await;
    world.snapshot(&["tank/a@s"]).await;
    let delete = Operation::Lu { volume: "tank/a".to_owned(), change: LuChange::Delete };
    world.run(delete).await.unwrap();
    let said = world.run(back_to_ones()).await.unwrap_err().message;
    assert!(said.starts_with("cannot rollback 'tank/a': dataset is busy: a write "), "{said}");
    assert!(said.contains("still on its way") && said.lines().count() == 1, "{said}");
    drop(writing);
    world.run(back_to_ones()).await.unwrap();
    assert!(has_ones(&world).await);
}

/// What the next one had compared, or fenced, was written over by whoever had the disk before.
#[tokio::test(start_paused = true)]
async fn a_volume_is_the_next_disk_when_the_last_write_of_one_that_was_taken_away_has_ended() {
    let world = World::with_volumes().await;
    let own = iscsi::iqn::for_dataset("tank/a");
    let has_disk = |iqn: &str| target(&world.serving, iqn).is_some_and(|target| target.unit(0).is_some());
    let share = |change| Operation::Share { pool: "tank".to_owned(), change };
    let remove = || share(ShareChange::LunRemove { target: TARGET.to_owned(), disk: "tank/a".to_owned() });
    let add = || {
        let (target, volume) = (TARGET.to_owned(), "tank/a".to_owned());
        share(ShareChange::LunAdd { target, volume, lun: Some(0) })
    };
    let writing = begun_write(&world).await;
    let removing = world.begin(remove());
    tokio::time::sleep(LONG).await;
    assert!(!removing.is_finished() && !has_disk(TARGET) && !has_disk(&own));
    assert_eq!(writing.await.status, scsi::Status::Good);
    removing.await.unwrap().unwrap();
    assert!(has_disk(&own));
    world.run(add()).await.unwrap();
    assert!(has_disk(TARGET) && !has_disk(&own));
    // One that stands still is not waited for for ever.
    let writing = begun_write(&world).await;
    let said = world.run(remove()).await.unwrap().warnings.concat();
    assert!(said.contains("cannot offer 'tank/a' yet") && said.contains("still on its way"), "{said}");
    assert!(!has_disk(&own) && world.serving.is_awaited(&own));
    assert!(world.serving.again.next().is_some(), "it is tried again");
    drop(writing);
    let held = world.host.find("tank").unwrap();
    assert_eq!(world.serving.follow(&held).await, Vec::<String>::new());
    assert!(has_disk(&own) && world.serving.again.next().is_none());
}

/// It was tried with all that is lasting in its pool, up to a quarter of an hour later.
#[tokio::test(start_paused = true)]
async fn a_volume_that_waits_for_a_last_write_is_offered_when_that_has_ended_whatever_its_pool_waits_for() {
    let world = World::with_volumes().await;
    let (own, taken) = (iscsi::iqn::for_dataset("tank/a"), iscsi::iqn::for_dataset("tank/c"));
    let is_offered = || target(&world.serving, &own).is_some_and(|target| target.unit(0).is_some());
    world.serving.targets.create(&taken, Offer::default()).unwrap();
    world.volume("tank/c").await;
    tokio::spawn(Arc::clone(&world.serving).try_again(Arc::downgrade(&world.host)));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let writing = begun_write(&world).await;
    let change = ShareChange::LunRemove { target: TARGET.to_owned(), disk: "tank/a".to_owned() };
    let removed = world.run(Operation::Share { pool: "tank".to_owned(), change }).await.unwrap();
    let said = removed.warnings.concat();
    assert!(said.contains("cannot offer 'tank/a' yet"), "{said}");
    tokio::time::sleep(LONG).await;
    let due = world.serving.again.next().expect("'tank/c' is not offered");
    assert!(!is_offered() && due > tokio::time::Instant::now() + 2 * LONG);
    drop(writing);
    tokio::time::sleep(LONG).await;
    assert!(is_offered());
}

/// Whoever is connected is not cut off by a rollback that is refused for it.
#[tokio::test]
async fn a_volume_that_is_not_rolled_back_after_all_is_offered_as_before() {
    let world = World::over(1, door().await).await.and_volumes().await;
    let address = listen(&world.serving.targets).await;
    let (held, own) = (world.host.find("tank").unwrap(), iscsi::iqn::for_dataset("tank/b"));
    let (guest, _) = log_in(address, &own).await;
    assert!(world.serving.set_aside(&held, "tank/b").await.is_err(), "somebody is there");
    assert!(exported(&world.serving, "tank/b").is_some());
    drop(guest);
    left(&world.serving, "tank/b").await;
    let aside = world.serving.set_aside(&held, "tank/b").await.expect("nobody is there");
    assert_eq!((log_in(address, &own).await.1, exported(&world.serving, "tank/b")), ((3, 1), None));
    drop(aside);
    world.serving.follow(&held).await;
    assert_eq!(log_in(address, &own).await.1, (0, 0));
    assert!(exported(&world.serving, "tank/b").is_some());
}

/// An NBD client of this export.
async fn attach(serving: &Serving, name: &str) -> TcpStream {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (server, (stop, stopping)) = (serving.nbd_server.clone(), tokio::sync::watch::channel(false));
    tokio::spawn(async move {
        let _stop = stop;
        server.serve(nbd::Listener::Tcp(listener), stopping).await
    });
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.read_exact(&mut [0; 18]).await.unwrap();
    // Its flags, and EXPORT_NAME.
    let len = (name.len() as u32).to_be_bytes();
    let hello = [&[0_u8, 0, 0, 3][..], b"IHAVEOPT", &1_u32.to_be_bytes(), &len, name.as_bytes()].concat();
    stream.write_all(&hello).await.unwrap();
    // Size and flags.
    stream.read_exact(&mut [0; 10]).await.unwrap();
    stream
}

/// The error number that the first 512 bytes are answered with.
async fn read_errno(client: &mut TcpStream) -> u32 {
    let request = [&0x2560_9513_u32.to_be_bytes()[..], &[0; 20], &512_u32.to_be_bytes()].concat();
    client.write_all(&request).await.unwrap();
    let mut answer = [0; 16];
    client.read_exact(&mut answer).await.unwrap();
    let errno = u32::from_be_bytes(answer[4..8].try_into().unwrap());
    if errno == 0 {
        client.read_exact(&mut [0; 512]).await.unwrap();
    }
    errno
}

/// A client that came in between the two looks was cut off by the very rollback that was refused for it.
#[tokio::test]
async fn a_client_that_came_in_at_the_last_moment_keeps_its_export() {
    let world = World::over(1, door().await).await.and_volumes().await;
    let held = world.host.find("tank").unwrap();
    let mut client = attach(&world.serving, "tank/b").await;
    // As if the first look had been before that.
    let asides = world.serving.shut_out(&held, &["tank/b".to_owned()], true);
    assert!(exported(&world.serving, "tank/b").is_none());
    assert_eq!(world.serving.clients("tank/b").len(), 1);
    assert_eq!(read_errno(&mut client).await, 0);
    world.serving.let_in(&held, &asides);
    assert!(exported(&world.serving, "tank/b").is_some());
    assert_eq!(read_errno(&mut client).await, 0);
}

/// The snapshots in its way were gone by the time it was refused.
#[tokio::test]
async fn a_rollback_that_the_quota_does_not_allow_destroys_nothing() {
    const BYTES: u64 = 512 << 10;
    let world = World::new().await;
    let wish = CreateVolume {
        name: "tank/a".to_owned(),
        size: 1 << 20,
        sparse: true,
        properties: vec![("compression".to_owned(), "off".to_owned())],
        ..CreateVolume::default()
    };
    world.run(Operation::CreateVolume(wish)).await.unwrap();
    let snapshot = async |name: &str| {
        world.engine.sync().await.unwrap();
        world.snapshot(&[name]).await;
    };
    let volume = world.engine.volume("tank/a").await.unwrap();
    let data = [block::Segment::Data(vec![1; BYTES as usize].into())].into_iter().collect();
    volume.write(0, data, block::Durability::Cached).await.unwrap();
    snapshot("tank/a@s").await;
    volume.unmap(0, BYTES, block::Durability::Cached).await.unwrap();
    snapshot("tank/a@t").await;
    let small = Properties::from([("refquota".to_owned(), Stored::Number(BYTES / 2))]);
    let set = world.engine.run(move |cx| Box::pin(async move { dsl::set(cx, "tank/a", &small).await }));
    set.await.unwrap();
    let rollback = Operation::Rollback { snapshot: "tank/a@s".to_owned(), recursive: true, clones: false };
    let said = world.run(rollback).await.unwrap_err().message;
    assert_eq!(said, "cannot rollback 'tank/a': dataset is over quota");
    assert!(world.dataset("tank/a@t").await.is_ok());
}

/// Its snapshots were gone by the time it was refused.
#[tokio::test]
async fn what_is_encrypted_keeps_its_snapshots_when_it_cannot_be_destroyed() {
    // Of a dataset, the byte with the bit that its object set's pointer has then.
    const CRYPT: (usize, u8) = (16 * 8 + 6 * 8 + 7, 1 << 5);
    let world = World::new().await;
    world.volume("tank/a").await;
    world.snapshot(&["tank/a@s"]).await;
    let object = world.dataset("tank/a").await.unwrap().object();
    let encrypt = world.engine.run(move |cx| {
        Box::pin(async move {
            let mut bonus = cx.mos.bonus(object).await?;
            bonus[CRYPT.0] |= CRYPT.1;
            Ok(cx.mos.set_bonus(object, &bonus).await?)
        })
    });
    encrypt.await.unwrap();
    assert!(world.dataset("tank/a").await.unwrap().is_encrypted());
    let destroy = Destroy { name: "tank/a".to_owned(), recursive: true, ..Destroy::default() };
    let said = world.run(Operation::Destroy(destroy)).await.unwrap_err().message;
    assert_eq!(said, "cannot destroy 'tank/a': encrypted datasets can only be read");
    assert!(world.dataset("tank/a@s").await.is_ok());
}

/// Its snapshots were gone by the time it was refused for a child that no list shows; and without any it was refused as well.
#[tokio::test]
async fn what_an_interrupted_receive_left_goes_with_its_dataset() {
    for recursive in [true, false] {
        let world = World::new().await;
        let make = world.engine.run(|cx| {
            Box::pin(async move { dsl::create_filesystem(cx, "tank/a/b", &Properties::new(), true).await })
        });
        make.await.unwrap();
        let children = world.dataset("tank/a").await.unwrap().dir().phys().child_map;
        let hide = world.engine.run(move |cx| {
            Box::pin(async move {
                let child = zap::get_u64(&mut cx.mos, children, "b").await?.unwrap();
                zap::remove(&mut cx.mos, children, "b".into()).await?;
                Ok(zap::set_u64(&mut cx.mos, children, "%recv", child).await?)
            })
        });
        hide.await.unwrap();
        let mut gone = vec!["tank/a/%recv", "tank/a"];
        if recursive {
            gone.insert(1, "tank/a@s");
            world.snapshot(&["tank/a@s"]).await;
        }
        let destroy = Destroy { name: "tank/a".to_owned(), recursive, ..Destroy::default() };
        assert_eq!(world.run(Operation::Destroy(destroy)).await.unwrap().destroyed, gone);
        assert!(matches!(world.dataset("tank/a").await, Err(LookupError::NotFound { .. })));
    }
}
