//! PERSISTENT RESERVE OUT takes as long as it takes to store: what waits for it meanwhile, and what becomes of it when its
//! disk is reset or taken away.

use std::{pin::Pin, sync::Arc};

use block::{Keeper, MemKeeper, Segment, VolumeFuture};
use bytes::Bytes;
use scsi::{Begin, Nexus, Response, Sense, Status};
use tokio::sync::Semaphore;

use crate::{
    commands::register,
    lab::{Disk, Lab},
    paced::Running,
};

/// Stores what is let through.
struct Slow {
    kept: MemKeeper,
    permits: Semaphore,
}

impl Slow {
    fn new() -> Arc<Self> {
        Arc::new(Self { kept: MemKeeper::default(), permits: Semaphore::new(0) })
    }
}

impl Keeper for Slow {
    fn load(&self) -> Option<Bytes> {
        self.kept.load()
    }

    fn store(&self, value: Bytes) -> VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.permits.acquire().await.unwrap().forget();
            self.kept.store(value).await
        })
    }
}

impl Disk {
    /// A PERSISTENT RESERVE OUT that registers for good, and has to wait.
    fn registering(&self, nexus: &Arc<Nexus>, key: u64) -> Running<'_, Response> {
        let (cdb, list) = register(0, 0, key, 1);
        let job = self.job(nexus, &cdb, &list);
        let (nexus, data) = (Arc::clone(nexus), [Segment::Data(Bytes::from(list))].into_iter().collect());
        let mut run = Running(Box::pin(async move { self.unit.run(&nexus, job, data).await })
            as Pin<Box<dyn Future<Output = Response>>>);
        assert!(run.poll().is_none());
        run
    }

    fn keys(&self, nexus: &Arc<Nexus>) -> Vec<u8> {
        let keys = self.good(nexus, &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
        keys[8..].chunks(8).map(|key| key[7]).collect()
    }
}

/// It registered, or preempted somebody, after the host was told that the command was gone.
#[test]
fn a_reservation_that_waits_for_another_is_not_made_once_it_was_cleared() {
    for is_reset in [true, false] {
        let (lab, keeper) = (Lab::new(), Slow::new());
        let disk = lab.kept(Arc::clone(&keeper) as _);
        let [one, two, by] = ["iqn.node1", "iqn.node2", "iqn.node3"].map(|name| lab.attach(&disk, name));
        let (mut first, mut second) = (disk.registering(&one, 1), disk.registering(&two, 2));
        let mut ending: Running<'_, ()> = Running(match is_reset {
            true => Box::pin(disk.unit.reset(Sense::DEVICE_RESET)),
            false => Box::pin(disk.unit.clear_task_set(&by)),
        });
        assert!(ending.poll().is_none(), "one is on its way");
        keeper.permits.add_permits(1);
        assert_eq!(first.poll().unwrap().status, Status::Good);
        assert!(ending.poll().is_none(), "the other has its turn first");
        assert_eq!(second.poll().unwrap().status, Status::TaskAborted);
        assert!(ending.poll().is_some());
        if is_reset {
            assert_eq!(disk.sense(&by, &[0], &[]), (6, 0x29, 3));
        }
        assert_eq!(disk.keys(&by), [1]);
    }
}

/// The one that was offered next did not know of them; after a power cut they were there.
#[test]
fn reservations_that_are_made_while_their_disk_is_taken_away_are_made_nowhere() {
    let (lab, keeper) = (Lab::new(), Slow::new());
    let old = lab.kept(Arc::clone(&keeper) as _);
    let (one, two) = (lab.attach(&old, "iqn.node1"), lab.attach(&old, "iqn.node2"));
    let (mut first, mut second) = (old.registering(&one, 1), old.registering(&two, 2));
    old.unit.retire();
    let new = lab.kept(Arc::clone(&keeper) as _);
    keeper.permits.add_permits(10);
    for (which, refused) in [first.poll(), second.poll()].into_iter().enumerate() {
        assert_eq!(refused.unwrap().sense.as_slice()[12..14], [0x25, 0], "{which}");
    }
    assert!(keeper.load().is_some(), "the first was stored: it could not be called back");
    let here = lab.attach(&new, "iqn.node1");
    assert_eq!(new.keys(&here), []);
    // Whatever is asked for next puts it right, though there is nothing to take back.
    let (cdb, list) = register(0, 0, 0, 1);
    new.good(&here, &cdb, &list);
    assert!(keeper.load().is_none());
}

#[test]
fn a_reservation_that_is_stored_when_its_disk_is_taken_away_is_found_by_the_next_one() {
    let (lab, keeper) = (Lab::new(), Slow::new());
    let old = lab.kept(Arc::clone(&keeper) as _);
    let one = lab.attach(&old, "iqn.node1");
    let mut first = old.registering(&one, 1);
    old.unit.retire();
    keeper.permits.add_permits(1);
    assert_eq!(first.poll().unwrap().status, Status::Good);
    let new = lab.kept(Arc::clone(&keeper) as _);
    assert_eq!(new.keys(&lab.attach(&new, "iqn.node1")), [1]);
}

/// It had looked whether there is one before it was stored, and then there were reservations of both kinds.
#[test]
fn nobody_gets_reserve_6_while_a_first_registration_is_being_stored() {
    let (lab, keeper) = (Lab::new(), Slow::new());
    let disk = lab.kept(Arc::clone(&keeper) as _);
    let [one, two] = ["iqn.node1", "iqn.node2"].map(|name| lab.attach(&disk, name));
    let reserve = |nexus: &Arc<Nexus>| {
        let mut cdb = [0; 16];
        cdb[0] = 0x16;
        let Begin::Done(response) = disk.unit.begin(nexus, &cdb, 0) else { panic!() };
        response.status
    };
    let mut first = disk.registering(&one, 1);
    assert_eq!(reserve(&two), Status::Busy);
    keeper.permits.add_permits(1);
    assert_eq!(first.poll().unwrap().status, Status::Good);
    assert_eq!(
        [reserve(&two), reserve(&one)],
        [Status::ReservationConflict; 2],
        "one is registered, nobody holds the disk"
    );
    disk.good(&two, &[0], &[]);
}
