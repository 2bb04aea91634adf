//! Reservations that are to survive a loss of power: what is kept before it is granted, and what is put right after a store
//! of which nobody knows what came.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use block::{Keeper, MemKeeper};
use bytes::Bytes;
use scsi::Status;

use crate::{commands::register, lab::Lab};

#[test]
fn reservations_that_were_to_survive_power_loss_do() {
    let lab = Lab::new();
    let keeper = Arc::new(MemKeeper::default());
    let start = || lab.kept(Arc::clone(&keeper) as _);
    let disk = start();
    let (one, two) = (lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2"));
    for (nexus, key) in [(&one, 1), (&two, 2)] {
        let (cdb, list) = register(0, 0, key, 1);
        disk.good(nexus, &cdb, &list);
    }
    let (cdb, list) = register(1, 1, 0, 0);
    disk.good(&one, &cdb, &list);
    drop((disk, one, two));

    // The power is gone. Another server has the pool.
    let disk = start();
    let [one, two, three] = ["iqn.node1", "iqn.node2", "iqn.node3"].map(|name| lab.attach(&disk, name));
    let write: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1];
    disk.good(&one, write, &[1; 512]);
    disk.good(&two, write, &[2; 512]);
    assert_eq!(disk.send(&three, write, &[3; 512]).status, Status::ReservationConflict);
    assert_eq!(disk.block(0)[0], 2);
    let keys = disk.good(&one, &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!((&keys[..8], keys[15], keys[23]), (&[0, 0, 0, 0, 0, 0, 0, 16][..], 1, 2));
    let capabilities = disk.good(&one, &[0x5e, 2, 0, 0, 0, 0, 0, 0, 8], &[]);
    assert_eq!((capabilities[2] & 1, capabilities[3] & 1), (1, 1), "capable, and active");
    // A preemption is durable before it is answered, too.
    let (cdb, list) = register(5, 2, 1, 0);
    disk.good(&two, &cdb, &list);
    let disk = start();
    let one = lab.attach(&disk, "iqn.node1");
    assert_eq!(disk.send(&one, write, &[1; 512]).status, Status::ReservationConflict);
}

/// Windows' MPIO registers a path that was gone for a moment by itself, and leaves APTPL out whatever its cluster had
/// asked for: the pool forgot all registrations, and with the next loss of power the fence.
#[test]
fn a_path_that_comes_back_does_not_unfence_who_was_fenced_before_the_power_went() {
    let lab = Lab::new();
    let keeper = Arc::new(MemKeeper::default());
    let start = || lab.kept(Arc::clone(&keeper) as _);
    let disk = start();
    let (one, two) = (lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2"));
    // Registered with APTPL, both; the first has the disk, and the second fences it.
    for (nexus, action, key, service_key, flags) in
        [(&one, 0, 0, 1, 1), (&two, 0, 0, 2, 1), (&one, 1, 1, 0, 0), (&two, 5, 2, 1, 0)]
    {
        let (cdb, list) = register(action, key, service_key, flags);
        disk.good(nexus, &cdb, &list);
    }
    // The session of the second is lost and comes back.
    disk.unit.detach(&two);
    let two = disk.unit.attach_at(two.id().clone(), None);
    assert_eq!(disk.sense(&two, &[0], &[]), (6, 0x29, 7));
    let (cdb, list) = register(6, 0, 2, 0);
    disk.good(&two, &cdb, &list);
    let capabilities = disk.good(&two, &[0x5e, 2, 0, 0, 0, 0, 0, 0, 8], &[]);
    assert_eq!(capabilities[3] & 1, 1, "what is kept is told");

    let disk = start();
    let (one, two) = (lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2"));
    let write: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(disk.send(&one, write, &[1; 512]).status, Status::ReservationConflict);
    disk.good(&two, write, &[2; 512]);
}

#[test]
fn a_reservation_that_cannot_be_kept_is_not_granted() {
    let lab = Lab::new();
    let keeper = Arc::new(MemKeeper::default());
    let disk = lab.kept(Arc::clone(&keeper) as _);
    let nexus = lab.attach(&disk, "iqn.node1");
    keeper.fail(true);
    let (cdb, list) = register(0, 0, 1, 1);
    assert_eq!(disk.sense(&nexus, &cdb, &list), (2, 4, 1), "to be tried again");
    let read_keys: &[u8] = &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(disk.good(&nexus, read_keys, &[]), [0; 8], "neither key nor generation");
    keeper.fail(false);
    disk.good(&nexus, &cdb, &list);
}

/// Keeps what it is given, and says that it did not: what a pool does whose devices go while it writes.
#[derive(Default)]
struct Doubtful {
    kept: MemKeeper,
    fails: AtomicBool,
}

impl Keeper for Doubtful {
    fn load(&self) -> Option<Bytes> {
        self.kept.load()
    }

    fn store(&self, value: Bytes) -> block::VolumeFuture<'_, ()> {
        Box::pin(async move {
            self.kept.store(value).await?;
            match self.fails.load(Ordering::Relaxed) {
                true => Err(block::VolumeError::NotReady("the pool is suspended".into())),
                false => Ok(()),
            }
        })
    }
}

#[test]
fn what_a_failed_store_may_have_left_is_put_right_by_the_next_command() {
    let lab = Lab::new();
    let keeper = Arc::new(Doubtful::default());
    let start = || lab.kept(Arc::clone(&keeper) as _);
    let disk = start();
    let (one, two) = (lab.attach(&disk, "iqn.node1"), lab.attach(&disk, "iqn.node2"));
    let (cdb, list) = register(0, 0, 1, 1);
    disk.good(&one, &cdb, &list);
    keeper.fails.store(true, Ordering::Relaxed);
    let (cdb, list) = register(0, 0, 2, 1);
    assert_eq!(disk.sense(&two, &cdb, &list), (2, 4, 1));
    keeper.fails.store(false, Ordering::Relaxed);
    // Registers as it is registered: the state is what it was, and what is kept is not.
    let (cdb, list) = register(0, 1, 1, 1);
    disk.good(&one, &cdb, &list);
    let disk = start();
    let one = lab.attach(&disk, "iqn.node1");
    let keys = disk.good(&one, &[0x5e, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!((keys[7], keys[15], keys.len()), (8, 1, 16), "whoever was refused is not registered");
}
