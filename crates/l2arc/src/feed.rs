//! The task that writes to one device: takes the most valuable blocks that wait, as many as the budget allows, makes
//! room for them, writes them in a row with what tells of them, and then the header.
//!
//! Several devices take from the same queue, so each gets what its speed allows. A write that failed is forgotten: its
//! blocks never were in the index, and the ring is as it was.
//!
//! What the index has no memory for is not written: nobody would find it. Then the ring is as long as the index allows: the
//! hand goes to the oldest block that is known instead of on to where nothing can be given up.
//!
//! What the index lost for want of memory the device still tells of. When there has been room for it for a while the log blocks
//! are walked through again, and ever more rarely if that is soon lost again.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    Block,
    budget::Budget,
    device::Device,
    evict, header,
    index::Hash,
    rebuild,
    ring::Ring,
    stats::add,
    tier::{Open, Shared},
};

/// How long blocks may wait for company, so that a round is worth its log block and header.
const GATHER: Duration = Duration::from_millis(200);
/// A round is worth it from here on; less is written only when nothing more comes.
pub(crate) const ROUND_MIN: u64 = 1 << 20;
/// The most that an idle device may save up.
const BURST: u64 = 64 << 20;
/// A round and what is written again with it take no larger part of the ring.
const PART: u64 = 8;
/// Waiting after a write that failed, or before the header could be read: from, to.
pub(crate) const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long less memory than the index would have taken for what it lost is thought to be for a while.
const LOST: Duration = Duration::from_secs(600);
/// How long the index has to have had room before what it lost is looked for: at first, and at most, where it is lost again and
/// again.
const ROOM: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_secs(5);
/// As fast as it can, in bytes per second.
const UNLIMITED: f64 = 1e15;
const DAY: f64 = 86_400.0;

/// Serves a device until it is stopped.
pub(crate) async fn run(shared: Arc<Shared>, device: Arc<Device>, open: Open) {
    let ring = tokio::select! {
        biased;
        () = device.stopped() => return,
        ring = rebuild::begin(&shared, &device, open) => ring,
    };
    Feeder::new(&shared, &device, ring).run().await;
}

struct Feeder<'a> {
    shared: &'a Shared,
    device: &'a Arc<Device>,
    ring: Ring,
    budget: Budget,
    retry: Duration,
    /// How long it has to have had room before that is looked for, and when it was last.
    room: Duration,
    looked: Option<Instant>,
    /// Since when the device has not given all that it was asked for then.
    unread_since: Option<Instant>,
}

impl<'a> Feeder<'a> {
    fn new(shared: &'a Shared, device: &'a Arc<Device>, ring: Ring) -> Self {
        let burst = BURST.min(device.geometry.ring() / 16);
        Self {
            shared,
            device,
            ring,
            budget: Budget::new(burst),
            retry: RETRY.0,
            room: ROOM.0,
            looked: None,
            unread_since: None,
        }
    }

    async fn run(mut self) {
        self.tell();
        while !self.device.stopping.load(Relaxed) {
            if self.device.failing.load(Relaxed) && !self.can_write().await {
                continue;
            }
            if self.has_room_again() {
                self.look_again().await;
                continue;
            }
            let rate = self.rate();
            match self.budget.wait(ROUND_MIN, rate) {
                Some(Duration::ZERO) => {}
                wait => {
                    // Looks again now and then: the rate may be another one by then.
                    let wait = wait.unwrap_or(RETRY.1).min(RETRY.1);
                    tokio::select! {
                        () = self.pause(wait) => {}
                        () = self.worth_a_look() => {}
                    }
                    continue;
                }
            }
            if self.shared.queue.lock().is_empty() {
                tokio::select! {
                    () = self.shared.more.notified() => {}
                    () = self.worth_a_look() => continue,
                    () = self.device.stopped() => return,
                }
            }
            let config = self.shared.config();
            self.gather(config.buffer / 2).await;
            if self.device.disk.is_silent() {
                // A round would fail, and its blocks be lost: they may be another's.
                self.shared.more.notify_one();
                self.heard().await;
                continue;
            }
            let most = self
                .shared
                .share()
                .min(self.budget.available(rate).max(ROUND_MIN))
                .min(self.ring.geometry.ring() / (2 * PART));
            let fresh = {
                let mut queue = self.shared.queue.lock();
                let fresh = queue.take(most);
                hold(self.device, &fresh);
                if !queue.is_empty() {
                    self.shared.more.notify_one();
                }
                fresh
            };
            self.write(fresh).await;
        }
    }

    /// Whether a device that failed can be written to again: what waits would be lost with it. Takes a while if not.
    async fn can_write(&mut self) -> bool {
        self.heard().await;
        let written = write_header(self.shared, self.device, &mut self.ring).await;
        self.device.failing.store(written.is_err(), Relaxed);
        if written.is_err() {
            self.back_off().await;
        }
        written.is_ok()
    }

    async fn back_off(&mut self) {
        self.pause(self.retry).await;
        self.retry = (self.retry * 2).min(RETRY.1);
    }

    /// Until enough waits to be worth a round, or for a while.
    async fn gather(&self, enough: u64) {
        let end = Instant::now() + GATHER;
        while self.shared.queue.lock().bytes() < enough {
            tokio::select! {
                () = sleep_until(end) => return,
                () = self.device.stopped() => return,
                () = self.shared.more.notified() => {}
            }
        }
    }

    /// Bytes per second that may be written now; 0: none.
    fn rate(&self) -> f64 {
        let config = self.shared.config();
        if self.ring.first_sweep {
            return if config.fill_rate == 0 { UNLIMITED } else { config.fill_rate as f64 };
        }
        let limit = config.dwpd_limit;
        let endurance = if limit > 0.0 { self.ring.geometry.ring() as f64 * limit / DAY } else { UNLIMITED };
        let most = if config.write_max == 0 { UNLIMITED } else { config.write_max as f64 };
        endurance.min(most)
    }

    async fn write(&mut self, mut fresh: Vec<(Hash, Block)>) {
        let device = self.device;
        let held = Held(&device.in_flight);
        let part = self.ring.geometry.ring() / PART;
        while self.ring.room_for(&fresh) > part {
            let Some((hash, block)) = fresh.pop() else { break };
            if fresh.is_empty() {
                // A block that is large beside the ring is not worth a good part of what it holds.
                add(&self.shared.counters.l2_skip_over_budget, block.lsize.into());
            } else {
                self.shared.wait_again(hash, block);
            }
        }
        if fresh.is_empty() {
            return;
        }
        let counters = &self.shared.counters;
        add(&counters.l2_feeds, 1);
        add(&counters.l2_writes_sent, 1);
        let before = self.device.written.load(Relaxed);
        let done = self.round(fresh).await;
        drop(held);
        self.budget.spend(self.device.written.load(Relaxed) - before);
        add(&counters.l2_writes_done, 1);
        match done {
            Ok(()) => self.retry = RETRY.0,
            Err(_) => {
                add(&counters.l2_writes_error, 1);
                self.device.failing.store(true, Relaxed);
                self.back_off().await;
            }
        }
        self.tell();
    }

    async fn round(&mut self, mut blocks: Vec<(Hash, Block)>) -> io::Result<()> {
        let turns = self.may_turn();
        let Self { shared, device, ring, .. } = self;
        if ring.geometry.log_entries > 0 && ring.is_empty() {
            // It has nothing to give up for them.
            turn_away(shared, &mut blocks);
            if blocks.is_empty() {
                return Ok(());
            }
        }
        let fresh = blocks.len();
        evict::make_room(shared, device, ring, &mut blocks).await?;
        let hot = blocks.split_off(fresh);
        turn_away(shared, &mut blocks);
        let first_hot = blocks.len();
        let is_cramped = first_hot < fresh / 2;
        blocks.extend(hot);
        while ring.room_for(&blocks) > ring.room() && blocks.len() > first_hot {
            blocks.pop();
        }
        let mut draft = ring.draft(&blocks);
        while draft.bytes() > ring.room() {
            // Log blocks took more than they ever should.
            blocks.truncate(blocks.len() / 2);
            draft = ring.draft(&blocks);
        }
        if blocks.is_empty() {
            if turns {
                ring.go_to_oldest();
            }
            return Ok(());
        }
        let hot = blocks.get(first_hot..).unwrap_or_default();
        let again: u64 = hot.iter().map(|(_, block)| u64::from(block.psize)).sum();
        wrote(shared, device, draft.bytes());
        device.write(draft.at, std::mem::take(&mut draft.pieces)).await?;
        let log_blocks = draft.logs.len() as u64;
        for (hash, entry) in ring.commit(draft) {
            let place = device.place(&entry);
            match shared.index.insert(hash, place) {
                Ok(before) => {
                    // Written again, it is held once: here.
                    if let Some(before) = before
                        && let Some(other) = shared.device_at(before.address)
                    {
                        other.holds(&entry, &before, false);
                    }
                    device.holds(&entry, &place, true);
                }
                Err(_full) => add(&shared.counters.l2_abort_lowmem, 1),
            }
        }
        shared.settle_displaced();
        if is_cramped && turns {
            ring.go_to_oldest();
        }
        add(&shared.counters.l2_reinserted, again);
        add(&shared.counters.l2_log_blk_writes, log_blocks);
        if log_blocks > 0 {
            write_header(shared, device, ring).await?;
        }
        Ok(())
    }

    /// Whether the hand may go to the oldest block where memory ends. If that is where it is because the limit was lowered, it
    /// may pass, and a device that was never full is not taken for full by it, unless it lasts. Nor is what the index lost passed
    /// over, as long as it may be found again. Each has its own time: what is lacking may be so for ever, and that says nothing of
    /// a limit that is lowered long after it was lost.
    fn may_turn(&self) -> bool {
        let was_lowered = self.ring.first_sweep && self.shared.index.is_cut_lately();
        let has_lost = self.device.short.borrow().is_some_and(|short| short.lost.elapsed() <= LOST);
        let may_pass = was_lowered || has_lost;
        !may_pass
    }

    /// Whether what the index lacks can be looked for: it has had room for long enough.
    fn has_room_again(&mut self) -> bool {
        let short = *self.device.short.borrow();
        let Some(short) = short else { return false };
        if !self.shared.index.is_roomy() {
            self.device.stays_short();
            return false;
        }
        if self.looked.is_none_or(|looked| looked.elapsed() > ROOM.1) {
            self.room = ROOM.0;
        }
        short.cramped.elapsed() >= self.room && self.device.is_usable()
    }

    /// Looks for it. Nothing is written meanwhile, as when the device was taken into use.
    async fn look_again(&mut self) {
        let device = self.device;
        let is_unread = tokio::select! {
            biased;
            () = device.stopped() => false,
            is_unread = rebuild::again(self.shared, device, &mut self.ring) => is_unread,
        };
        if is_unread {
            let since = *self.unread_since.get_or_insert_with(Instant::now);
            // What it never gives is not asked for for ever.
            if since.elapsed() < rebuild::LASTING {
                device.falls_short();
            }
        } else {
            self.unread_since = None;
        }
        self.room = (2 * self.room).min(ROOM.1);
        self.looked = Some(Instant::now());
        self.tell();
    }

    /// Until it is time to look whether the index has room for what it lacks.
    async fn worth_a_look(&self) {
        let mut short = self.device.short.subscribe();
        // The sender is this device's own.
        drop(short.wait_for(Option::is_some).await);
        sleep(LOOK).await;
    }

    /// Until the device owes no answer.
    async fn heard(&self) {
        tokio::select! {
            () = self.device.disk.answered() => {}
            () = self.device.stopped() => {}
        }
    }

    /// Others may know how it stands.
    fn tell(&self) {
        self.device.filling.store(self.ring.first_sweep, Relaxed);
        self.device.logs.0.store(self.ring.log_bytes(), Relaxed);
        self.device.logs.1.store(self.ring.logs.len() as u64, Relaxed);
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = sleep(time) => {}
            () = self.device.stopped() => {}
        }
    }
}

/// A round that holds blocks; none any more when this is dropped, wherever it ended.
struct Held<'a>(&'a AtomicU64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

/// A round of this device holds more blocks.
pub(crate) fn hold(device: &Device, blocks: &[(Hash, Block)]) {
    add(&device.in_flight, blocks.iter().map(|(_, block)| u64::from(block.psize)).sum());
}

/// Leaves those out that the index would not know.
fn turn_away(shared: &Shared, blocks: &mut Vec<(Hash, Block)>) {
    let before = blocks.len();
    blocks.retain(|(hash, _)| shared.index.takes(*hash));
    add(&shared.counters.l2_abort_lowmem, (before - blocks.len()) as u64);
}

/// Writes the header: everything that it tells of is on the device.
///
/// # Errors
/// The device's.
pub(crate) async fn write_header(shared: &Shared, device: &Device, ring: &mut Ring) -> io::Result<()> {
    ring.announced = false;
    let written = header::write(&device.disk, &device.geometry, &ring.header(device.who)).await?;
    wrote(shared, device, written);
    ring.announced = true;
    Ok(())
}

/// Bytes go to a device.
pub(crate) fn wrote(shared: &Shared, device: &Device, bytes: u64) {
    add(&shared.counters.l2_write_bytes, bytes);
    add(&device.written, bytes);
}
