//! Who holds bytes and does not go on, and what is done about it.
//!
//! Each member has a seat, in which it alone writes what it holds and how far it is; a look goes over all of them, ten
//! times a second while somebody waits. Between two looks that both find room wanted (somebody waits, or has more than
//! there is already), a member that holds something and has not moved [`enough`] gets older by the time in between, but
//! by [`LOOK_MOST`] at most: if we did not run, neither could it.
//!
//! * From [`ASIDE_AFTER`] on what it holds is set aside: others may have that much more, up to once more the whole gate,
//!   as long as the process has room. Whatever it waits for, its client or a device: others need not wait with it.
//! * From [`EXPELLED_AFTER`] on a client that *owes* something (data that was asked for, answers to be taken) is expelled.
//!   One that waits for a device never is, however long that takes: a pool that stands still costs no client.
//! * Who holds next to nothing is in nobody's way: it stays ([`LITTLE_PART`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

use super::{Client, Gate, Queue};

/// Without progress for this long: what is held is set aside.
const ASIDE_AFTER: Duration = Duration::from_secs(1);
/// Without progress for this long: who owes something is expelled. Less than hosts wait before they give a path up.
const EXPELLED_AFTER: Duration = Duration::from_secs(10);
/// The most that one look counts. A process that is stopped, by a signal or a debugger, takes nothing of its clients and
/// sends them nothing: what it sees when it goes on is its own doing.
const LOOK_MOST: Duration = Duration::from_millis(500);
/// Progress is this much, or what is held if that is less: 64 KiB in ten seconds are slower than any link to a disk,
/// and signs of life (48 bytes each) are none.
const MOVED_LEAST: u64 = 64 << 10;
/// Of much that is held a part of that size: 16 MiB have to move at 6 KiB a second, 64 MiB at 25.
const MOVED_PART: u64 = 256;
/// Of the gate, what a client may owe without being expelled: all 2,048 connections together half of it.
const LITTLE_PART: u64 = 4096;

/// How much of what is held has to move.
fn enough(held: u64) -> u64 {
    (held / MOVED_PART).max(MOVED_LEAST).min(held)
}

/// What a member writes down. Only it does.
#[derive(Debug)]
pub(super) struct Seat {
    number: u64,
    client: Arc<Client>,
    held: AtomicU64,
    owed: AtomicU64,
    moved: AtomicU64,
    /// Bytes given back.
    gave: AtomicU64,
}

impl Seat {
    pub(super) fn holds(&self, bytes: u64) {
        self.held.store(bytes, Relaxed);
    }

    pub(super) fn gave(&self, bytes: u64) {
        self.gave.store(self.gave.load(Relaxed).wrapping_add(bytes), Relaxed);
    }

    pub(super) fn note(&self, owed: u64, moved: u64) {
        self.owed.store(owed, Relaxed);
        self.moved.store(moved, Relaxed);
    }

    fn progress(&self) -> u64 {
        self.moved.load(Relaxed).wrapping_add(self.gave.load(Relaxed))
    }
}

/// What was seen of a member.
#[derive(Debug)]
struct Seen {
    seat: Arc<Seat>,
    /// Its progress when it last had moved enough, and how long ago that is.
    progress: u64,
    still: Duration,
}

/// All members, by number.
#[derive(Debug, Default)]
pub(super) struct Seats {
    seats: BTreeMap<u64, Seen>,
    last: u64,
    /// Others wanted room at the last look.
    wanted: bool,
}

impl Seats {
    pub(super) fn enter(&mut self, client: Arc<Client>) -> Arc<Seat> {
        self.last = self.last.wrapping_add(1);
        let seat = Arc::new(Seat {
            number: self.last,
            client,
            held: AtomicU64::new(0),
            owed: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            gave: AtomicU64::new(0),
        });
        self.seats.insert(self.last, Seen { seat: Arc::clone(&seat), progress: 0, still: Duration::ZERO });
        seat
    }

    pub(super) fn leave(&mut self, seat: &Seat) {
        self.seats.remove(&seat.number);
    }
}

/// What came of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    /// Bytes that are set aside now.
    pub aside: u64,
    /// Who was expelled.
    pub expelled: Vec<Expelled>,
}

/// Somebody who was told to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expelled {
    /// What it is called.
    pub name: String,
    /// Bytes it held.
    pub held: u64,
    /// And how many of them waited for it.
    pub owed: u64,
    /// How long it did not go on.
    pub still: Duration,
}

impl Gate {
    /// Looks at all members, `elapsed` after the last time. `has_room`: the process may have more than it has.
    pub fn watch(&self, elapsed: Duration, has_room: bool) -> Watched {
        let mut watched = self.look(elapsed, has_room);
        if let Some(hall) = &self.hall {
            let in_hall = hall.look(elapsed, has_room);
            watched.aside = watched.aside.saturating_add(in_hall.aside);
            watched.expelled.extend(in_hall.expelled);
        }
        watched
    }

    fn look(&self, elapsed: Duration, has_room: bool) -> Watched {
        let mut seats = self.seats.lock();
        let is_over = self.aside() > 0 && self.used() > self.max();
        let wants = is_over || self.waiting.load(SeqCst) > 0;
        let wanted = std::mem::replace(&mut seats.wanted, wants);
        if !wants && !wanted && self.aside() == 0 {
            return Watched::default();
        }
        let (lone, is_mixed) = self.queue.lock().who_waits();
        let lone = lone.filter(|_| !is_over);
        let elapsed = if wants && wanted { elapsed.min(LOOK_MOST) } else { Duration::ZERO };
        let little = self.max() / LITTLE_PART;
        let (mut aside, mut watched) = (0_u64, Watched::default());
        let mut held_by: BTreeMap<IpAddr, u64> = BTreeMap::new();
        let mut stalled = BTreeSet::new();
        for Seen { seat, progress, still } in seats.seats.values_mut() {
            let (held, now) = (seat.held.load(Relaxed), seat.progress());
            if now.wrapping_sub(*progress) >= enough(held) {
                (*progress, *still) = (now, Duration::ZERO);
            } else {
                *still = still.saturating_add(elapsed);
            }
            if let Some(peer) = seat.client.peer() {
                let all = held_by.entry(peer).or_default();
                *all = all.saturating_add(held);
            }
            if *still < ASIDE_AFTER {
                continue;
            }
            aside = aside.saturating_add(held);
            stalled.insert(Arc::as_ptr(&seat.client));
            let owed = seat.owed.load(Relaxed);
            let others_wait = wants && lone != Some(Arc::as_ptr(&seat.client));
            if *still >= EXPELLED_AFTER && owed > little && others_wait && seat.client.expel() {
                let name = seat.client.name().to_owned();
                watched.expelled.push(Expelled { name, held, owed, still: *still });
            }
        }
        for Seen { seat, .. } in seats.seats.values() {
            let held = seat.client.peer().and_then(|peer| held_by.get(&peer)).copied().unwrap_or(0);
            let is_stalled = stalled.contains(&Arc::as_ptr(&seat.client));
            self.standing(&seat.client).judge(is_stalled, held > self.half());
        }
        drop(seats);
        watched.aside = if has_room { aside.min(self.max()) } else { 0 };
        self.aside.store(watched.aside, SeqCst);
        // One address alone has nobody to make way for.
        self.queue.lock().held = if is_mixed { held_by } else { BTreeMap::new() };
        self.grant();
        watched
    }
}

impl Queue {
    /// The client that waits, if there is one only, and whether those who wait come from several addresses.
    fn who_waits(&self) -> (Option<*const Client>, bool) {
        let Some(first) = self.wishes.front() else { return (None, false) };
        let is_lone = self.wishes.iter().all(|wish| Arc::ptr_eq(&wish.client, &first.client));
        let is_mixed = self.wishes.iter().any(|wish| wish.client.peer() != first.client.peer());
        (is_lone.then(|| Arc::as_ptr(&first.client)), is_mixed)
    }
}
