//! Doubly linked lists in one array, by index.
//!
//! A policy moves entries between lists at every access and there are as many as cached blocks. So an entry is
//! an element of one vector, its links are two `u32`, and a move writes at most five elements. No pointer, no
//! `unsafe`, no allocation per entry; four billion entries are enough (16 TiB of 4 KiB blocks).
//!
//! Invariant: every occupied entry is on exactly one list; free ones are chained through `next`.

use std::hint::black_box;

/// Entries asked for before those beside them are.
const ASKED_AT_ONCE: usize = 16;

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
        Self { entries: Vec::new(), free: NONE, len: 0 }
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
}
