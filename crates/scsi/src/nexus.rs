//! One I_T nexus's view of a logical unit: who it is, what waits to be told to it, and what it may not do now.
//!
//! A nexus is an initiator port (initiator name and ISID together) at a target port (a portal group). Two sessions of
//! one host are two nexuses; the same session coming back after a cable pull is the same nexus (SPC-4 §5.13.7,
//! RFC 7143 §4.4.3).
//!
//! What reservations and access states forbid is worked out when they change and left here as a few bits, so that the
//! path of a read or write looks at one byte instead of taking a lock.

use std::{
    collections::VecDeque,
    fmt,
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
};

use crate::{identity::Naa, sense::Sense, unit::LogicalUnit};

/// Unit attentions kept at most; more than this many different conditions do not exist here.
const QUEUE_MAX: usize = 16;

/// What a nexus may not do: bits of [`Nexus::limits`].
pub(crate) mod limit {
    /// A persistent reservation refuses what reads.
    pub(crate) const READ: u8 = 1;
    /// A persistent reservation refuses what writes.
    pub(crate) const WRITE: u8 = 2;
    /// Another initiator's RESERVE(6) refuses nearly everything.
    pub(crate) const RESERVED: u8 = 4;
    /// The target port is not active (ALUA).
    pub(crate) const INACTIVE: u8 = 8;
    /// The volume cannot be had yet.
    pub(crate) const COMING: u8 = 16;
}

/// Who a nexus is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId {
    /// Initiator port name: `iqn…,i,0x00023d000001`.
    pub initiator: Arc<str>,
    /// Relative target port identifier: the tag of the portal group.
    pub port: u16,
}

impl NexusId {
    /// The initiator's name without its ISID.
    pub fn initiator_name(&self) -> &str {
        self.initiator.split_once(",i,").map_or(&*self.initiator, |(name, _)| name)
    }
}

/// Which nexuses a logical unit has had since it came up: one that begins again had been lost (SAM-5 §6.3.4), however its
/// session ended (RFC 7143 §6.3.5.1: by a logout as well), and its initiator is told so.
///
/// Names come from strangers, so only the last [`SEEN_MAX`] are known, by a hash. Should two ever have the same one, or a name
/// be forgotten, a host is told of the other event, and does the same: to clear what it believed of the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(VecDeque<u64>);

fn hash(id: &NexusId) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// 32 KiB of hashes: twice the sessions that a server has at a time by default.
const SEEN_MAX: usize = 4096;

impl Seen {
    /// What a nexus is told that begins now.
    pub(crate) fn greeting(&mut self, id: &NexusId) -> Sense {
        let hash = hash(id);
        let before = self.0.iter().position(|seen| *seen == hash);
        match before {
            // Who comes back is forgotten last.
            Some(at) => drop(self.0.remove(at)),
            None if self.0.len() >= SEEN_MAX => drop(self.0.pop_front()),
            None => {}
        }
        self.0.push_back(hash);
        if before.is_some() { Sense::NEXUS_LOSS } else { Sense::POWER_ON }
    }

    /// Whether it was among them; from here on it is not.
    pub(crate) fn take(&mut self, id: &NexusId) -> bool {
        let hash = hash(id);
        let at = self.0.iter().position(|seen| *seen == hash);
        at.is_some_and(|at| self.0.remove(at).is_some())
    }

    /// As after power on.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The logical units that the initiator of a nexus may name in a copy (by NAA), besides the one it speaks to.
///
/// The transport knows who may see what; a copy manager that did not ask it would be a way around access lists.
pub trait Neighbours: Send + Sync + 'static {
    /// The unit of that name, if the initiator may reach it.
    fn unit(&self, name: &Naa) -> Option<Arc<LogicalUnit>>;
}

/// An I_T nexus as one logical unit sees it.
pub struct Nexus {
    id: NexusId,
    /// True while the queue is not empty: the hot path looks at nothing else.
    pending: AtomicBool,
    limits: AtomicU8,
    /// Counts how often others cleared this nexus's commands; a job of an older count is not run.
    cleared: AtomicU32,
    queue: Mutex<VecDeque<Sense>>,
    neighbours: Option<Arc<dyn Neighbours>>,
}

impl fmt::Debug for Nexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nexus").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Nexus {
    /// A nexus that is told `first` before anything else.
    pub(crate) fn new(id: NexusId, neighbours: Option<Arc<dyn Neighbours>>, first: Sense) -> Self {
        let nexus = Self {
            id,
            pending: AtomicBool::new(false),
            limits: AtomicU8::new(0),
            cleared: AtomicU32::new(0),
            queue: Mutex::default(),
            neighbours,
        };
        nexus.raise(first);
        nexus
    }

    /// Who it is.
    pub fn id(&self) -> &NexusId {
        &self.id
    }

    /// The initiator port's name: `iqn…,i,0x00023d000001`.
    pub fn port(&self) -> &Arc<str> {
        &self.id.initiator
    }

    pub(crate) fn neighbour(&self, name: &Naa) -> Option<Arc<LogicalUnit>> {
        self.neighbours.as_ref()?.unit(name)
    }

    /// Bits of [`limit`].
    pub(crate) fn limits(&self) -> u8 {
        self.limits.load(Ordering::Acquire)
    }

    pub(crate) fn limit(&self, limits: u8) {
        self.limits.store(limits, Ordering::Release);
    }

    /// Which generation of commands begins now.
    pub(crate) fn generation(&self) -> u32 {
        self.cleared.load(Ordering::Acquire)
    }

    /// Commands that have begun and not yet run are not run any more; they end with TASK ABORTED.
    pub(crate) fn clear(&self) {
        self.cleared.fetch_add(1, Ordering::AcqRel);
    }

    /// Queues a unit attention; one that is already waiting is not told twice.
    pub(crate) fn raise(&self, attention: Sense) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() < QUEUE_MAX && !queue.contains(&attention) {
            queue.push_back(attention);
        }
        self.pending.store(!queue.is_empty(), Ordering::Release);
    }

    /// The oldest unit attention, which is thereby told.
    pub(crate) fn take_attention(&self) -> Option<Sense> {
        if !self.pending.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = queue.pop_front();
        self.pending.store(!queue.is_empty(), Ordering::Release);
        oldest
    }

    /// The initiator has just been given the list of logical units: it need not be told that there is a new one.
    pub fn luns_told(&self) {
        self.forget(Sense::LUNS_CHANGED);
    }

    /// Forgets one kind of unit attention: what it would tell has just been asked for (REPORT LUNS).
    pub(crate) fn forget(&self, attention: Sense) {
        if !self.pending.load(Ordering::Acquire) {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.retain(|waiting| *waiting != attention);
        self.pending.store(!queue.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_without_end_take_no_memory_without_end_and_who_comes_back_is_remembered() {
        let id = |number: usize| NexusId { initiator: format!("iqn.t,i,{number}").into(), port: 1 };
        let mut seen = Seen::default();
        assert_eq!(seen.greeting(&id(0)), Sense::POWER_ON);
        assert_eq!(seen.greeting(&id(1)), Sense::POWER_ON);
        for number in 2..=SEEN_MAX {
            assert_eq!(seen.greeting(&id(0)), Sense::NEXUS_LOSS);
            assert_eq!(seen.greeting(&id(number)), Sense::POWER_ON);
        }
        assert_eq!(seen.0.len(), SEEN_MAX);
        assert_eq!(seen.greeting(&id(1)), Sense::POWER_ON, "the oldest is forgotten");
        assert_eq!(
            seen.greeting(&NexusId { port: 2, ..id(0) }),
            Sense::POWER_ON,
            "at another port it is another"
        );
        assert_eq!(seen.greeting(&id(0)), Sense::NEXUS_LOSS);
        seen.clear();
        assert_eq!(seen.greeting(&id(0)), Sense::POWER_ON);
    }
}
