//! Space that is taken, added up: out of what volumes and directories have reserved, and out of what all share.
//!
//! What may not be given back is in a tally of its own (`room` says what that is), so there are two of everything.

use std::{borrow::Cow, collections::BTreeMap};

use super::Supply;

/// What was announced, added up.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// All of it.
    pub(super) total: u64,
    /// Out of what all share.
    pub(super) shared: u64,
    /// Out of what a directory has reserved, and what that does not hold.
    pub(super) reserved: BTreeMap<u64, u64>,
}

/// How much of another `bytes` goes beyond `own`, when `taken` were announced before.
pub(super) fn excess(taken: u64, own: u64, bytes: u64) -> u64 {
    taken.saturating_add(bytes).saturating_sub(own) - taken.saturating_sub(own)
}

impl Tally {
    /// How much of `bytes` comes out of what all share.
    pub(super) fn passed_on(&self, supply: &Supply, above: &[u64], bytes: u64) -> u64 {
        above.iter().fold(bytes, |bytes, dir| {
            let own = supply.reserved.get(dir).copied().unwrap_or(0);
            excess(self.reserved.get(dir).copied().unwrap_or(0), own, bytes)
        })
    }

    /// Counts `bytes` that nobody has reserved for himself.
    pub(super) fn add(&mut self, supply: &Supply, above: &[u64], bytes: u64) {
        let mut bytes = bytes;
        for dir in above {
            let own = supply.reserved.get(dir).copied().unwrap_or(0);
            let taken = self.reserved.entry(*dir).or_default();
            let rest = excess(*taken, own, bytes);
            *taken = taken.saturating_add(bytes);
            bytes = rest;
        }
        self.shared = self.shared.saturating_add(bytes);
    }

    /// Takes back what was [added](Self::add).
    pub(super) fn take_back(&mut self, supply: &Supply, above: &[u64], bytes: u64) {
        let mut bytes = bytes;
        for dir in above {
            let own = supply.reserved.get(dir).copied().unwrap_or(0);
            let taken = self.reserved.entry(*dir).or_default();
            *taken = taken.saturating_sub(bytes);
            bytes = excess(*taken, own, bytes);
        }
        self.shared = self.shared.saturating_sub(bytes);
    }
}

/// What is taken already in the eyes of a volume that asks for more.
#[derive(Debug, Default)]
pub(super) struct Taken<'a> {
    /// Of what devices have free.
    pub(super) devices: u64,
    /// For logs and sweeps, out of what all share.
    pub(super) lent: u64,
    /// By the volume itself, and the most that may be.
    pub(super) own: u64,
    pub(super) own_at_most: u64,
    /// By all, without what is lent, and the most that may be.
    pub(super) tally: Cow<'a, Tally>,
    pub(super) at_most: Cow<'a, Tally>,
}

impl Taken<'_> {
    /// How much all share beside it.
    pub(super) fn shared_left(&self, supply: &Supply) -> u64 {
        supply.shared.saturating_sub(self.tally.shared.saturating_add(self.lent))
    }

    /// How much of what nobody reserved is left for what a snapshot may keep.
    pub(super) fn unreserved_left(&self, supply: &Supply) -> u64 {
        let taken = self.at_most.shared.saturating_add(self.lent);
        supply.shared.saturating_add(supply.margin).saturating_sub(taken)
    }
}
