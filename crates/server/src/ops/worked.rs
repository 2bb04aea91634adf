//! What all disks of a pool have done since it was opened, those that have left since included: it only grows.
//!
//! Leaves count, and their counters go with them. So each look keeps what it saw, and what is not there any more in the
//! next one is added up.

use std::collections::BTreeMap;

use pool::vdev::{Tallied, Tree, Vdev};
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub(super) struct Worked {
    opened: Instant,
    /// As the last look saw them, by guid.
    leaves: BTreeMap<u64, Tallied>,
    /// Those that left.
    gone: Tallied,
}

impl Worked {
    /// Of a pool that has just been opened.
    pub(super) fn new() -> Self {
        Self { opened: Instant::now(), leaves: BTreeMap::new(), gone: Tallied::default() }
    }

    /// What was done by now.
    pub(super) fn look(&mut self, tree: &Tree) -> Tallied {
        let tallied = |vdev: &Vdev| Some((vdev.guid, vdev.leaf.as_ref()?.pulse.tally.get()));
        self.add(tree.leaves().into_iter().filter_map(tallied).collect())
    }

    fn add(&mut self, leaves: BTreeMap<u64, Tallied>) -> Tallied {
        for (guid, mut before) in std::mem::replace(&mut self.leaves, leaves) {
            // One that is back may be counted anew.
            let goes_on = self.leaves.get(&guid).is_some_and(|now| now.age_ns >= before.age_ns);
            if !goes_on {
                // Nothing is under way there any more.
                before.pending.clear();
                before.active.clear();
                self.gone.add(&before);
            }
        }
        let mut all = self.gone.clone();
        self.leaves.values().for_each(|leaf| all.add(leaf));
        let opened = disk::nanos(self.opened.elapsed());
        all.age_ns = all.age_ns.max(opened);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a replaced disk left, what the pool had done in its life was half as much.
    #[tokio::test(start_paused = true)]
    async fn what_a_disk_did_that_left_stays_done() {
        let leaf = |age_ns: u64, reads: u64| Tallied {
            age_ns,
            operations: [reads, 0],
            pending: vec![2],
            ..Tallied::default()
        };
        let mut worked = Worked::new();
        let mut look = |leaves: &[(u64, Tallied)]| {
            let all = worked.add(leaves.iter().cloned().collect());
            (all.operations[0], all.pending[0])
        };
        assert_eq!(look(&[(1, leaf(100, 500)), (2, leaf(100, 500))]), (1000, 4));
        assert_eq!(look(&[(2, leaf(160, 560)), (3, leaf(50, 60))]), (1120, 4));
        assert_eq!(look(&[(2, leaf(170, 561)), (3, leaf(60, 60))]), (1121, 4), "counted once");
        // Away and back, and counted anew.
        assert_eq!(look(&[(2, leaf(10, 1)), (3, leaf(70, 60))]), (1122, 4));
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
        assert_eq!(worked.add(BTreeMap::new()).age_ns, 60_000_000_000);
    }
}
