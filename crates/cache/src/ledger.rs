//! What the cache has hit beside what ARC would have, and how far from ARC that allows it to go.
//!
//! ```text
//!   lead − missing        only falls when a block is given up that ARC would hold
//! ```
//! *Lead* is hits less ARC's, *missing* the blocks that ARC would hold and the cache does not. A miss that ARC would hit
//! takes one off the lead and one off what is missing; nothing else takes anything off, but the cache's own choice of
//! whom to give up. So as long as it does not choose so beyond a bound, the lead does not fall below it, whatever is
//! asked: what may be missing is the lead, a small share of all accesses, and a part of what the rules have gained in
//! miniature. What is gained by the few blocks that this allows at first allows more: twice as many with each turn of a
//! loop.

/// What it may lose for nothing, as a share of the accesses.
const FREE: f64 = 0.005;
/// The part of what was promised that it may lose beside. With all of it a large cache becomes another sooner, and is a
/// point behind where the promise is not kept.
const TRUST: f64 = 0.25;
/// What it may have lost for other rules to get their turn, as a share of the accesses.
const OWED: f64 = 0.002;
/// After so many accesses for each block what was counted weighs half.
const TURNS: u64 = 256;

/// Hits less those that ARC would have had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ledger {
    /// Since somebody asked.
    since: i64,
    /// In its life, and of how many accesses.
    lead: i64,
    accesses: u64,
    /// What the rules it follows have gained on ARC in miniature.
    promised: i64,
}

impl Ledger {
    /// One access; `blocks` is how many the cache holds.
    #[inline]
    pub(crate) fn count(&mut self, is_hit: bool, would_hit: bool, blocks: u64) {
        let lead = i64::from(is_hit) - i64::from(would_hit);
        self.since += lead;
        self.lead += lead;
        self.accesses += 1;
        if self.accesses > TURNS * blocks.max(1024) {
            self.lead /= 2;
            self.accesses /= 2;
        }
    }

    /// The lead since this was last asked.
    pub(crate) const fn take(&mut self) -> i64 {
        let since = self.since;
        self.since = 0;
        since
    }

    /// What the rules that are followed have gained on ARC.
    pub(crate) const fn promise(&mut self, gain: i64) {
        self.promised = gain;
    }

    /// Whether it has lost too much to try other rules.
    pub(crate) fn owes(&self) -> bool {
        (self.lead as f64) < -OWED * self.accesses as f64
    }

    /// Whether one more block may go that ARC would hold, if so many are missing.
    #[inline]
    pub(crate) fn affords(&self, missing: u64) -> bool {
        let trusted = FREE * self.accesses as f64 + TRUST * self.promised as f64;
        (missing as i64) < trusted as i64 + self.lead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_may_be_without_what_was_promised_and_gained() {
        let mut ledger = Ledger::default();
        assert!(!ledger.affords(0), "nothing was gained yet");
        (0..1000).for_each(|_| ledger.count(true, true, 5000));
        assert!(ledger.affords(4) && !ledger.affords(5), "one access in 200 is free");
        ledger.promise(400);
        assert!(ledger.affords(104) && !ledger.affords(105));
        (0..50).for_each(|_| ledger.count(false, true, 5000));
        assert!(ledger.affords(54) && !ledger.affords(55), "what was lost is no longer there to lose");
        assert!(ledger.owes(), "50 of 1050");
        (0..60).for_each(|_| ledger.count(true, false, 5000));
        assert!(!ledger.owes());
        assert_eq!((ledger.take(), ledger.take()), (10, 0));
    }
}
