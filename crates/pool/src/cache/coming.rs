//! Blocks that come in: one that was read, or many that were written.
//!
//! Nearly all that this touches is memory that nobody used lately. So what came together goes through each step together:
//! the processor waits for many lines of memory at once as long as no lock is between them. (A transaction group's
//! blocks, one after the other, were a tenth of the processor time of writes.)

use std::sync::{Arc, atomic::Ordering::Relaxed};

use ::cache::{Kind, Slot};
use bytes::Bytes;
use smallvec::SmallVec;

use super::{
    AT_ONCE, Access, BlockCache, Class, EXACT_BELOW, Feed, Gone, Key, LARGEST, OVERHEAD, Origin, Row,
    Transfer, footprint, play,
    ranks::{Going, Ranks, UNIT},
    shard::Entry,
    shard_of,
};

/// A block that comes in.
#[derive(Debug)]
pub(crate) struct Fresh<'a> {
    pub(crate) key: Key,
    pub(crate) origin: &'a Arc<Origin>,
    pub(crate) class: Class,
    pub(crate) lsize: u32,
    pub(crate) compress: u8,
    /// It is stored in another form than its content.
    pub(crate) is_compressed: bool,
    pub(crate) level: u8,
    /// The object set it is of.
    pub(crate) objset: u64,
    pub(crate) access: Access,
    /// The tier below may have it.
    pub(crate) is_eligible: bool,
    /// As it is stored.
    pub(crate) stored: Option<Bytes>,
    /// Its content, if that is another one and somebody may want it soon. One of the two is needed; beside the other that of an
    /// indirect block may be in a shorter form ([`Found::Packed`](super::Found::Packed)).
    pub(crate) content: Option<Bytes>,
    /// What shares the memory.
    pub(crate) memory: Memory<'a>,
}

/// Whose memory the stored form of a block lies in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory<'a> {
    /// Its own.
    Own,
    /// That of a transfer.
    Transfer(&'a Arc<Transfer>),
    /// That of a writer, who may have written other blocks from it.
    Writer,
    /// Somebody's: it must be copied.
    Foreign,
    /// The same, of a block that nobody asks for now: it was wanted before a restart.
    Warmed,
}

/// A block on its way in.
struct Coming {
    /// What it will be. Its slot is the policy's to give.
    entry: Entry,
    /// Its content, if it is held in another form.
    hot: Option<Bytes>,
    objset: u64,
    kind: Kind,
    /// It may lie in one memory with what else was written.
    is_written: bool,
}

impl Coming {
    /// Whether it lies right behind the other in memory, and both were written.
    fn follows(&self, other: &Self) -> bool {
        self.is_written && other.is_written && other.entry.held.as_ptr_range().end == self.entry.held.as_ptr()
    }
}

type Together = SmallVec<[Coming; 2]>;

impl BlockCache {
    /// Remembers a block. One larger than an eighth of the budget is not: it would push out too much.
    pub(crate) fn insert(&self, fresh: Fresh<'_>) {
        self.insert_all([fresh]);
    }

    /// Remembers blocks that came together, in order.
    pub(crate) fn insert_all<'a>(&self, fresh: impl IntoIterator<Item = Fresh<'a>>) {
        let mut coming = fresh.into_iter().filter_map(|fresh| self.receive(fresh)).peekable();
        while coming.peek().is_some() {
            self.take_in(coming.by_ref().take(AT_ONCE).collect());
        }
        self.rescue();
    }

    /// What a block will be held in; none if it is too large.
    fn receive(&self, fresh: Fresh<'_>) -> Option<Coming> {
        let is_stored = fresh.stored.is_some();
        let is_compressed = is_stored && fresh.is_compressed;
        let bytes = fresh.stored.as_ref().or(fresh.content.as_ref())?;
        if bytes.len() + OVERHEAD > self.budget() / LARGEST {
            return None;
        }
        let memory = fresh.memory;
        // What is compressed lies closely only in memory of its own.
        let is_part = !is_compressed && matches!(memory, Memory::Transfer(_) | Memory::Writer);
        let (held, takes) = match memory {
            _ if is_part => (bytes.clone(), bytes.len()),
            // A compressor gave it memory of its own, of just that size.
            Memory::Writer => (bytes.clone(), bytes.len()),
            Memory::Own if bytes.len() >= EXACT_BELOW => (bytes.clone(), footprint(bytes.len())),
            Memory::Own if disk::is_slot(bytes) => (bytes.clone(), bytes.len()),
            _ => (Bytes::copy_from_slice(bytes), bytes.len()),
        };
        let transfer = match memory {
            Memory::Transfer(transfer) if is_part => Some(Arc::clone(transfer)),
            _ => None,
        };
        let kind = match (fresh.access, memory) {
            (Access::Prefetch, _) | (_, Memory::Writer | Memory::Warmed) => Kind::Fill,
            (Access::Demand, _) => Kind::Miss,
        };
        let entry = Entry {
            key: fresh.key,
            origin: Arc::clone(fresh.origin),
            held,
            hot: None,
            transfer,
            slot: Slot(u32::MAX),
            units: ((takes + OVERHEAD).div_ceil(UNIT)) as u32,
            lsize: fresh.lsize,
            used: self.clock.now(),
            compress: fresh.compress,
            level: fresh.level,
            heat: 0,
            merged: 0,
            class: fresh.class,
            is_stored,
            is_content: !is_compressed,
            is_frequent: false,
            is_prefetched: fresh.access == Access::Prefetch,
            is_eligible: fresh.is_eligible,
        };
        let hot = fresh.content.filter(|_| is_compressed);
        let is_written = is_part && matches!(memory, Memory::Writer) && !disk::is_slot(&entry.held);
        Some(Coming { entry, hot, objset: fresh.objset, kind, is_written })
    }

    /// Puts at most [`AT_ONCE`] blocks where they belong.
    fn take_in(&self, mut coming: Together) {
        let (mut gone, mut is_due) = (Gone::new(), false);
        let mut hot: SmallVec<[(Key, Class, Bytes); 1]> = SmallVec::new();
        {
            let mut ranks = self.ranks.lock();
            self.clock.look();
            let mine = self.stripes.mine();
            play(&mut ranks, mine);
            let next = self.stripes.next();
            if !std::ptr::eq(mine, next) {
                play(&mut ranks, next);
            }
            self.leave_known(&mut ranks, &mut coming, &mut gone);
            self.rank(&mut ranks, &mut coming, &mut gone);
            for at in 0..coming.len() {
                // What comes behind the last is not known yet.
                let goes_on = coming.get(at + 1).is_none_or(|next| next.follows(&coming[at]));
                let fresh = &mut coming[at];
                is_due |= self.account_for(&mut ranks, fresh, goes_on);
                if let Some(content) = fresh.hot.take() {
                    hot.push((fresh.entry.key, fresh.entry.class, content));
                }
            }
            self.blocks_max.fetch_max(ranks.held.iter().map(|held| held.blocks).sum(), Relaxed);
            let mut entries = coming.into_iter().map(|fresh| fresh.entry).peekable();
            while let Some(shard) = entries.peek().map(|first| shard_of(first.key.id)) {
                let is_here = |entry: &Entry| shard_of(entry.key.id) == shard;
                self.resize(&mut self.shards[shard].lock(), |shard| {
                    while let Some(entry) = entries.next_if(is_here) {
                        shard.insert(entry);
                    }
                });
            }
            self.reclaim_hot(&mut ranks);
            self.fit(&mut ranks, &mut gone);
        }
        self.let_go(gone, true);
        if is_due {
            self.feed.play_soon(self.stripes.demand());
        }
        for (key, class, content) in hot {
            self.warm(&key, class, content);
        }
    }

    /// Leaves those out that are here (several readers may miss at the same time), or come twice. Others of their
    /// identities have to go.
    fn leave_known(&self, ranks: &mut Ranks, coming: &mut Together, gone: &mut Gone) {
        let mut known: Row<Option<bool>> = Row::with_capacity(coming.len());
        for row in coming.chunk_by(|one, next| shard_of(one.entry.key.id) == shard_of(next.entry.key.id)) {
            let shard = self.shard(row[0].entry.key.id).lock();
            known.extend(row.iter().map(|fresh| shard.knows(&fresh.entry.key)));
        }
        let ids: Row<u64> = coming.iter().map(|fresh| fresh.entry.key.id).collect();
        for (at, known) in known.iter_mut().enumerate() {
            if *known == Some(false) {
                self.remove(ranks, ids[at], gone);
            }
            if ids[..at].contains(&ids[at]) {
                *known = Some(true);
            }
        }
        let mut known = known.into_iter();
        coming.retain(|_| known.next().flatten() != Some(true));
    }

    /// Asks the policies, who may let something go for each, and have no room for some.
    fn rank(&self, ranks: &mut Ranks, coming: &mut Together, gone: &mut Gone) {
        let mut going = Going::new();
        let mut places: Row<Option<Slot>> = Row::with_capacity(coming.len());
        for Coming { entry, kind, .. } in coming.iter_mut() {
            let before = ranks.ghosts_met(entry.class);
            let slot = ranks.insert(entry.class, entry.key.id, entry.units, &mut going);
            // One that is read ahead or written meets its ghost, too, and nobody has missed it.
            if *kind == Kind::Miss && entry.class == Class::Data {
                ranks.missed += ranks.ghosts_met(entry.class) - before;
            }
            // One that comes back while it is remembered was used before. What comes after it may push it out.
            entry.is_frequent = slot.is_some_and(|slot| ranks.is_frequent(entry.class, slot));
            places.push(slot);
        }
        self.take_out(ranks, &going, gone);
        let mut places = places.into_iter();
        for mut fresh in std::mem::take(coming) {
            match places.next().flatten() {
                // One that came after it pushed it out.
                Some(_) if going.contains(&fresh.entry.key.id) => gone.push(fresh.entry),
                Some(slot) => {
                    fresh.entry.slot = slot;
                    coming.push(fresh);
                }
                None => {}
            }
        }
    }

    /// Counts a block that has its place; true if the advisor should look. `goes_on`: what comes next lies behind it.
    fn account_for(&self, ranks: &mut Ranks, fresh: &mut Coming, goes_on: bool) -> bool {
        let entry = &mut fresh.entry;
        if fresh.is_written {
            entry.transfer = self.written_together(&entry.held, goes_on);
        }
        if let Some(transfer) = &entry.transfer {
            self.pinned.attach(transfer, entry.key.id, entry.held.len());
        }
        let account = &mut ranks.held[entry.class as usize];
        account.blocks += 1;
        account.charged += u64::from(entry.units) * UNIT as u64;
        account.held += entry.held.len() as u64;
        account.content += u64::from(entry.lsize);
        self.clock.came(u64::from(entry.units), ranks.capacity());
        if !Feed::wants(entry.key.id) || entry.class != Class::Data {
            return false;
        }
        let (whose, capacity) = ((entry.origin.guid, fresh.objset), ranks.policy(Class::Data).capacity());
        let is_eligible = entry.is_eligible && entry.is_stored;
        self.feed.came(entry.key.id, entry.units, whose, fresh.kind, is_eligible, capacity)
    }
}
