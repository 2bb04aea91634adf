//! What hosts and operators are to hear of disks without asking: that the room for a thin one runs short, that it has
//! another size, that the reservations kept with it cannot be read.
//!
//! Every ten seconds each disk is looked at: a few numbers in memory, microseconds for a hundred disks.
//!
//! A thin disk has less room than its hosts think. They are warned (unit attention 38h/07h) when less than a tenth of
//! the disk can still be written, or less than what the disk may still ask for, whichever is smaller: a disk whose space
//! is reserved never warns, and one that snapshots share may ask for all of that once more. What
//! `millpond share set thin-threshold=…` says comes before that.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Duration,
};

use block::{Identity, Space};
use iscsi::{LogicalUnit, Targets};
use serde_json::{Map, json};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    events::{About, Journal, names},
    hostid,
    ops::pool_of,
    serving::Serving,
    shares::Threshold,
};

/// How often.
const EVERY: Duration = Duration::from_secs(10);

/// Looks until nothing is served any more.
pub(crate) async fn run(serving: Weak<Serving>, journal: Arc<Journal>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = BTreeSet::new();
    loop {
        ticks.tick().await;
        let Some(serving) = serving.upgrade() else { return };
        look(serving.targets(), &|name| serving.threshold(name), &journal, &mut told);
    }
}

/// Looks once. `wished` is what was set for a volume; `told` are the disks whose reservations were found unreadable before.
fn look(targets: &Targets, wished: &dyn Fn(&str) -> Threshold, journal: &Journal, told: &mut BTreeSet<u64>) {
    let mut unreadable = BTreeSet::new();
    for (_, unit) in targets.list().iter().flat_map(|target| target.luns()) {
        let volume = unit.volume();
        unit.announce();
        warn_below(&unit, wished(&volume.identity().name));
        if unit.reservations_unreadable() {
            let identity = volume.identity();
            if unreadable.insert(identity.guid) && !told.contains(&identity.guid) {
                tell(&identity, journal);
            }
        }
    }
    *told = unreadable;
}

/// Hosts of a disk are warned as is wished, measured by what the disk holds now.
pub(crate) fn warn_below(unit: &LogicalUnit, wished: Threshold) {
    let volume = unit.volume();
    let Some(space) = volume.space() else { return };
    let size = volume.geometry().size;
    unit.set_threshold(wished.bytes(size, threshold(size, space)));
}

/// Bytes available below which hosts are warned.
fn threshold(size: u64, space: Space) -> u64 {
    (size / 10).min(space.wanted)
}

fn tell(identity: &Identity, journal: &Journal) {
    let name = &identity.name;
    let message = format!(
        "the persistent reservations kept with '{name}' cannot be read: a newer version wrote them, or they were damaged. \
         Every initiator is refused with RESERVATION CONFLICT, because nobody knows who was fenced. Serve the pool with the \
         version that wrote them; or make sure that no fenced host can still write, and clear them from any host: \
         sg_persist --out --register-ignore --param-sark=0x1 DISK; sg_persist --out --clear --param-rk=0x1 DISK"
    );
    tracing::error!("{message}");
    let mut pairs = Map::new();
    pairs.insert("dataset".to_owned(), json!(name));
    pairs.insert("message".to_owned(), json!(message));
    let (class, pairs) = names::millpond("sysevent", "reservations_unreadable", pairs);
    let about = About { pool: pool_of(name).to_owned(), guid: identity.pool_guid };
    journal.add(&about, &class, (hostid::now(), 0), pairs, None);
}

#[cfg(test)]
mod tests {
    use block::{Keeper as _, MemKeeper, MemVolume};
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_thin_disk_warns_at_a_tenth_and_one_that_has_all_it_may_want_never() {
        let warned =
            |wanted, available| available < threshold(1000, Space { used: 1000 - wanted, available, wanted });
        assert!(warned(1000, 99) && !warned(1000, 100));
        assert!(warned(50, 49) && !warned(50, 50), "no more than 50 can be asked for");
        assert!(!warned(0, 0));
    }

    /// It held as much as its size, and hosts heard nothing before the pool was full.
    #[test]
    fn a_disk_that_snapshots_share_is_warned_like_an_empty_one() {
        let full = Space { used: 1000, available: 99, wanted: 1000 };
        assert!(full.available < threshold(1000, full));
    }

    #[tokio::test]
    async fn reservations_that_cannot_be_read_are_told_once_with_the_remedy() {
        let targets = Targets::new(iscsi::Config::default());
        let keeper = Arc::new(MemKeeper::default());
        keeper.store(Bytes::from_static(b"of another version")).await.unwrap();
        let volume = MemVolume::new("tank/csv", 1 << 20, 8192).with_keeper(keeper);
        targets.add("iqn.2026-11.io.millpond:tank:csv", Arc::new(volume)).unwrap();
        targets
            .add("iqn.2026-11.io.millpond:tank:other", Arc::new(MemVolume::new("tank/other", 1 << 20, 8192)))
            .unwrap();
        let (journal, mut told) = (Journal::default(), BTreeSet::new());
        let usual = |_: &str| Threshold::Auto;
        look(&targets, &usual, &journal, &mut told);
        look(&targets, &usual, &journal, &mut told);
        let said = journal.since(0, None);
        assert_eq!(said.len(), 1);
        assert_eq!(said[0].zevent.class, "sysevent.io.millpond.reservations_unreadable");
        assert_eq!(said[0].zevent.pairs["dataset"], json!("tank/csv"));
        assert!(said[0].zevent.pairs["message"].as_str().unwrap().contains("--clear"));
    }
}
