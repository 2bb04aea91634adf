//! Doubly linked lists in one array, by index.
//!
//! A policy moves entries between lists at every access and there are as many as cached blocks. So an entry is
//! an element of one vector, its links are two `u32`, and a move writes at most five elements. No pointer, no
//! `unsafe`, no allocation per entry; four billion entries are enough (16 TiB of 4 KiB blocks).
//!
//! Invariant: every occupied entry is on exactly one list; free ones are chained through `next`, unless entries are being
//! moved together: then those are in the chain that became free since the last step, and the others will be filled.

use std::hint::black_box;

/// Entries asked for before those beside them are.
const ASKED_AT_ONCE: usize = 16;

/// Free places that are worth nobody's while.
const FEW: usize = 1024;

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// An entry's links and what it holds.
#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    prev: u32,
    next: u32,
    item: T,
}

/// The array that lists live in.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
    /// All places below are in use.
    low: usize,
    /// Entries are being moved together.
    is_moving: bool,
}

/// One list: where it begins and ends, how many entries, what they weigh together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    /// Entries.
    pub(crate) len: u64,
    /// Their sizes together.
    pub(crate) size: u64,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0, size: 0 };

    /// The most recently put entry.
    pub(crate) fn head(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// The entry that has been here longest.
    pub(crate) fn tail(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }
}

impl<T: Copy> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new(), free: NONE, len: 0, low: 0, is_moving: false }
    }

    /// Asks for the memory of entries that are about to be moved, and of those beside them: what is used here and there is
    /// not in the processor's caches, and it waits for many lines together as long as none says where the next one is.
    pub(crate) fn ask_for(&self, places: impl Iterator<Item = u32>) {
        let mut beside = [(NONE, NONE); ASKED_AT_ONCE];
        let mut places = places.peekable();
        while places.peek().is_some() {
            let mut count = 0;
            for (at, links) in places.by_ref().zip(&mut beside).take(ASKED_AT_ONCE) {
                *links = self.entries.get(at as usize).map_or((NONE, NONE), |entry| (entry.prev, entry.next));
                count += 1;
            }
            for (prev, next) in &beside[..count] {
                black_box(self.entries.get(*prev as usize).map(|entry| entry.next));
                black_box(self.entries.get(*next as usize).map(|entry| entry.prev));
            }
        }
    }

    /// Entries in use.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory behind it.
    pub(crate) const fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<Entry<T>>()
    }

    /// Indices ever given out are below this.
    pub(crate) const fn bound(&self) -> usize {
        self.entries.len()
    }

    /// Whether a good part of its memory is for entries that are gone, or was when they began to be moved together.
    pub(crate) const fn is_loose(&self) -> bool {
        self.is_moving || self.entries.capacity() > self.len + self.len / 4 + FEW
    }

    /// Moves entries from the end of the array to free places, at most `most` of them, and gives the memory behind the last
    /// one back; true if no free place is left. `list_of` is an entry's list in `lists`, none of a free one; `moved` is
    /// told of each: from where, and to where. All steps together look at each place a few times.
    pub(crate) fn compact(
        &mut self,
        lists: &mut [List],
        most: usize,
        list_of: impl Fn(&T) -> Option<usize>,
        mut moved: impl FnMut(&T, u32, u32),
    ) -> bool {
        // Places that were free before are found as they are reached.
        self.free = NONE;
        let (mut low, mut end, mut moves) = (self.low, self.entries.len(), 0);
        let is_done = loop {
            while end > 0 && list_of(&self.entries[end - 1].item).is_none() {
                end -= 1;
            }
            while low < end && list_of(&self.entries[low].item).is_some() {
                low += 1;
            }
            if low >= end || moves == most {
                break low >= end;
            }
            end -= 1;
            let Entry { prev, next, item } = self.entries[end];
            let (from, to) = (end as u32, low as u32);
            self.entries[low] = Entry { prev, next, item };
            if let Some(list) = list_of(&item).map(|list| &mut lists[list]) {
                match prev {
                    NONE => list.head = to,
                    prev => self.entries[prev as usize].next = to,
                }
                match next {
                    NONE => list.tail = to,
                    next => self.entries[next as usize].prev = to,
                }
            }
            moved(&item, from, to);
            moves += 1;
        };
        self.entries.truncate(end);
        (self.low, self.is_moving) = (low.min(end), !is_done);
        if is_done {
            self.entries.shrink_to_fit();
        }
        is_done
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> &T {
        &self.entries[at as usize].item
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut T {
        &mut self.entries[at as usize].item
    }

    /// The next entry of its list, towards the head.
    pub(crate) fn newer(&self, at: u32) -> Option<u32> {
        let prev = self.entries[at as usize].prev;
        (prev != NONE).then_some(prev)
    }

    /// A place for an item; it is on no list yet.
    pub(crate) fn take(&mut self, item: T) -> u32 {
        self.len += 1;
        let entry = Entry { prev: NONE, next: NONE, item };
        if self.free != NONE {
            let at = self.free;
            self.free = self.entries[at as usize].next;
            self.entries[at as usize] = entry;
            return at;
        }
        if self.entries.len() == self.entries.capacity() {
            // An eighth, not the usual doubling: what a policy holds is charged to the memory it manages.
            self.entries.reserve_exact(self.entries.len() / 8 + 64);
        }
        self.entries.push(entry);
        let at = u32::try_from(self.entries.len() - 1).expect("fewer than four billion blocks are cached");
        assert!(at != NONE, "fewer than four billion blocks are cached");
        at
    }

    /// Gives a place back; it must be on no list.
    pub(crate) fn give(&mut self, at: u32) {
        self.len -= 1;
        self.entries[at as usize].next = self.free;
        self.free = at;
        self.low = self.low.min(at as usize);
    }

    /// Puts an entry that is on no list to the head of one.
    #[inline]
    pub(crate) fn push_head(&mut self, list: &mut List, at: u32, size: u64) {
        let old = list.head;
        let entry = &mut self.entries[at as usize];
        (entry.prev, entry.next) = (NONE, old);
        if old == NONE {
            list.tail = at;
        } else {
            self.entries[old as usize].prev = at;
        }
        list.head = at;
        list.len += 1;
        list.size += size;
    }

    /// Puts an entry that is on no list to the tail of one.
    pub(crate) fn push_tail(&mut self, list: &mut List, at: u32, size: u64) {
        let old = list.tail;
        let entry = &mut self.entries[at as usize];
        (entry.prev, entry.next) = (old, NONE);
        if old == NONE {
            list.head = at;
        } else {
            self.entries[old as usize].next = at;
        }
        list.tail = at;
        list.len += 1;
        list.size += size;
    }

    /// Takes an entry off the list it is on.
    #[inline]
    pub(crate) fn unlink(&mut self, list: &mut List, at: u32, size: u64) {
        let Entry { prev, next, .. } = self.entries[at as usize];
        if prev == NONE {
            debug_assert_eq!(list.head, at, "the entry is on another list");
            list.head = next;
        } else {
            self.entries[prev as usize].next = next;
        }
        if next == NONE {
            debug_assert_eq!(list.tail, at, "the entry is on another list");
            list.tail = prev;
        } else {
            self.entries[next as usize].prev = prev;
        }
        list.len -= 1;
        list.size -= size;
    }

    /// A list's entries from head to tail.
    #[cfg(test)]
    pub(crate) fn walk(&self, list: &List) -> Vec<u32> {
        let mut found = Vec::new();
        let mut at = list.head;
        while at != NONE {
            found.push(at);
            at = self.entries[at as usize].next;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_order_and_places_are_used_again() {
        let mut slab = Slab::new();
        let mut list = List::EMPTY;
        let [a, b, c] = ['a', 'b', 'c'].map(|name| slab.take(name));
        slab.push_head(&mut list, a, 1);
        slab.push_head(&mut list, b, 2);
        slab.push_tail(&mut list, c, 3);
        assert_eq!((slab.walk(&list), list.len, list.size), (vec![b, a, c], 3, 6));
        slab.unlink(&mut list, a, 1);
        slab.give(a);
        assert_eq!((slab.walk(&list), list.size, slab.len()), (vec![b, c], 5, 2));
        assert_eq!(slab.take('d'), a, "the free place comes first");
        slab.unlink(&mut list, c, 3);
        slab.unlink(&mut list, b, 2);
        assert_eq!((list.head(), list.tail(), list.len), (None, None, 0));
    }

    /// Its memory was for good what it had been for the most entries.
    #[test]
    fn what_is_left_of_many_is_moved_together_in_steps_and_keeps_its_order() {
        let mut slab = Slab::new();
        let mut lists = [List::EMPTY; 2];
        let places: Vec<u32> = (0..10_000_u32).map(|n| slab.take(Some((n % 2) as usize))).collect();
        for (n, at) in places.iter().enumerate() {
            slab.push_head(&mut lists[n % 2], *at, 1);
        }
        for (n, at) in places.iter().enumerate().filter(|(n, _)| n % 7 != 0) {
            slab.unlink(&mut lists[n % 2], *at, 1);
            *slab.get_mut(*at) = None;
            slab.give(*at);
        }
        assert!(slab.is_loose());
        let mut now: Vec<u32> = places;
        let mut steps = 0;
        loop {
            steps += 1;
            let is_done = slab.compact(
                &mut lists,
                500,
                |item| *item,
                |_, from, to| {
                    let n = now.iter().position(|at| *at == from).unwrap();
                    now[n] = to;
                },
            );
            if is_done {
                break;
            }
            // It is whole between two steps.
            let at = slab.take(Some(0));
            slab.push_head(&mut lists[0], at, 1);
            slab.unlink(&mut lists[0], at, 1);
            *slab.get_mut(at) = None;
            slab.give(at);
        }
        assert!(steps > 2 && !slab.is_loose(), "{steps}");
        assert_eq!((slab.len(), slab.bound()), (1429, 1429));
        for (which, list) in lists.iter().enumerate() {
            let expected = (0..10_000).rev().filter(|n| n % 7 == 0 && n % 2 == which);
            assert_eq!(slab.walk(list), expected.map(|n| now[n]).collect::<Vec<_>>());
        }
        assert_eq!(slab.take(None), 1429, "no free place is left");
    }

    /// Each step looked at all places, and misses waited for it: with tens of millions of blocks that are minutes.
    #[test]
    fn many_entries_are_moved_together_with_work_for_each_of_them_once() {
        const COUNT: usize = 1_000_000;
        let mut slab = Slab::new();
        let mut lists = [List::EMPTY];
        for _ in 0..COUNT {
            let at = slab.take(Some(0));
            slab.push_head(&mut lists[0], at, 1);
        }
        for at in (0..COUNT as u32).filter(|at| at % 3 != 0) {
            slab.unlink(&mut lists[0], at, 1);
            *slab.get_mut(at) = None;
            slab.give(at);
        }
        let looks = std::cell::Cell::new(0);
        let mut steps = 1;
        while !slab.compact(
            &mut lists,
            1000,
            |item| {
                looks.set(looks.get() + 1);
                *item
            },
            |_, _, _| {},
        ) {
            steps += 1;
        }
        assert_eq!(slab.bound(), COUNT.div_ceil(3));
        assert!(steps > 100 && looks.get() < 3 * COUNT, "{steps} steps, {} looks", looks.get());
    }
}
