//! Transaction groups as the syncing task has them: when the open one is closed, that it is over, and what there is to be taken
//! from then on.
//!
//! It alone moves the open group on, and it alone tells what space there is. What it sets aside itself (for logs, for those who
//! work on free space, for commands) is taken out of what writers may be promised here.

use std::collections::BTreeMap;

use block::VolumeError;
use tokio::time::{Instant, sleep_until};

use super::{Claim, Group, Room, State, Supply, Txgs, slot, wish};

impl Txgs {
    /// Waits until the open group should be synced: enough is dirty, somebody waits, space comes to its end, or time is up.
    pub(crate) async fn next(&self) {
        loop {
            let reason = self.shared.reason.notified();
            let until = {
                let state = self.shared.state.lock();
                let group = &state.groups[slot(state.open)];
                let full = state.is_due(&self.shared.limits()) && group.touched;
                if full || state.wanted >= state.open || state.refusing.is_some() {
                    return;
                }
                state.opened_at + self.shared.limits.timeout
            };
            tokio::select! {
                () = reason => {}
                () = sleep_until(until) => return,
            }
        }
    }

    /// Closes the open group, opens the next one, waits until nobody holds the closed one. Returns the closed
    /// group and whether anybody changed anything in it.
    pub(crate) async fn close(&self) -> (u64, bool) {
        let txg = {
            let mut state = self.shared.state.lock();
            let txg = state.open;
            state.open += 1;
            state.opened_at = Instant::now();
            state.groups[slot(txg + 1)] = Group::default();
            state.space.next_group();
            txg
        };
        loop {
            let released = self.shared.released.notified();
            {
                let mut state = self.shared.state.lock();
                let Group { holds, dirty, touched, .. } = state.groups[slot(txg)];
                if holds == 0 {
                    state.syncing = Some((Instant::now(), dirty));
                    return (txg, touched);
                }
            }
            released.await;
        }
    }

    /// The open group is to be synced soon, even if nobody changes anything in it: there are commands to run, or
    /// work of the pool's own goes on in it.
    pub(crate) fn wake(&self) {
        let mut state = self.shared.state.lock();
        state.want_open();
        drop(state);
        self.shared.reason.notify_one();
    }

    /// Syncs the open group soon, and waits for it.
    pub(crate) async fn sync_open(&self) -> Result<(), VolumeError> {
        let target = {
            let mut state = self.shared.state.lock();
            state.goes_on()?;
            state.want_open();
            state.open
        };
        self.shared.reason.notify_one();
        self.wait_for(target).await
    }

    /// `txg` is durable. `supply` is what there is to be taken from now on, `rooms` what volumes, by their datasets, may
    /// take of it.
    pub(crate) fn synced(&self, txg: u64, supply: Supply, rooms: BTreeMap<u64, Room>) {
        let telling = self.shared.limits().telling();
        let forgotten = {
            let mut state = self.shared.state.lock();
            let group = std::mem::take(&mut state.groups[slot(txg)]);
            state.dirty -= group.dirty + group.above;
            if let Some((since, bytes)) = state.syncing.take().filter(|(_, bytes)| *bytes >= telling) {
                state.pace.wrote(bytes, since.elapsed());
            }
            self.shared.steps.is_now(state.dirty);
            let forgotten = state.space.synced(slot(txg), supply, rooms);
            state.synced = txg;
            state.tell(&self.shared.limits());
            forgotten
        };
        self.shared.synced.send_replace(txg);
        self.shared.space.notify_waiters();
        drop(forgotten);
    }

    /// Whether `txg` was asked for, and not only what may be in it.
    pub(crate) fn is_wanted(&self, txg: u64) -> bool {
        self.shared.state.lock().wanted >= txg
    }

    /// Nothing was in `txg`: it counts as synced, and nothing was written.
    pub(crate) fn skipped(&self, txg: u64) {
        {
            let mut state = self.shared.state.lock();
            state.groups[slot(txg)] = Group::default();
            state.synced = txg;
        }
        self.shared.synced.send_replace(txg);
        // It gave nothing back, and who waited for that has to ask for the open one.
        self.shared.space.notify_waiters();
    }

    /// Sets `bytes` aside for intent logs, of what anybody may take who has nothing reserved: not more than half of
    /// what is left, so that logs neither starve writers nor take what they were promised. Where little is left of it, the
    /// open group is not to wait for its time: it gives its log back.
    pub(crate) fn lend(&self, bytes: u64) -> bool {
        let mut state = self.shared.state.lock();
        let State { space, short, .. } = &mut *state;
        let is_lent = space.lend(bytes, wish(short));
        let is_scarce = state.wanted < state.open && state.space.is_scarce(self.volume, state.open);
        if is_scarce {
            state.want_open();
        }
        drop(state);
        if is_scarce {
            self.shared.reason.notify_one();
        }
        is_lent
    }

    /// Takes back `bytes` that were [lent](Self::lend) and not set aside. Only before the next supply is worked out, so by the
    /// task that does that: what it knows of comes back with it.
    pub(crate) fn unlend(&self, bytes: u64) {
        self.shared.state.lock().space.unlend(bytes);
    }

    /// Sets `bytes` aside for those who work on free space, and have `out` of it already: not more in all than a small
    /// part of what devices have free and nobody has announced. Where everything is reserved, they get of that, too:
    /// they give it back.
    pub(crate) fn lend_for_a_while(&self, bytes: u64, out: u64) -> bool {
        let State { space, short, .. } = &mut *self.shared.state.lock();
        space.lend_for_a_while(bytes, out, wish(short))
    }

    /// The next supply is being worked out: it knows of all that was lent up to now.
    pub(crate) fn counted(&self) {
        self.shared.state.lock().space.counted();
    }

    /// What there is to be taken, before anybody has announced anything.
    pub(crate) fn set_supply(&self, supply: Supply) {
        self.shared.state.lock().space.set_supply(supply);
    }

    /// Datasets of the volumes that write.
    pub(crate) fn datasets(&self) -> Vec<u64> {
        self.shared.state.lock().space.datasets()
    }

    /// A command sets space aside in group `txg`, which is being synced: all of `claims`, or nothing if what was
    /// announced for later groups needs it. `supply` and `rooms` say what there is after all that was done in the group
    /// so far. From now on nobody is promised what was claimed.
    pub(crate) fn claim(
        &self,
        txg: u64,
        supply: &Supply,
        rooms: &BTreeMap<u64, Room>,
        claims: &[Claim],
    ) -> bool {
        self.shared.state.lock().space.claim(slot(txg), supply, rooms, claims)
    }
}
