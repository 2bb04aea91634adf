//! One initiator port's view of a logical unit: its name and its queue of unit attentions.
//!
//! The name is the initiator name and ISID together, so two sessions of one host are two nexuses, and
//! the same session coming back after a cable pull is the same nexus (SPC-4 §5.13.7, RFC 7143 §4.4.3).

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::sense::Sense;

/// Unit attentions kept at most; more than this many different conditions do not exist here.
const QUEUE_MAX: usize = 16;

/// An I_T nexus as one logical unit sees it.
#[derive(Debug)]
pub struct Nexus {
    port: Arc<str>,
    /// True while the queue is not empty: the hot path looks at nothing else.
    pending: AtomicBool,
    queue: Mutex<VecDeque<Sense>>,
}

impl Nexus {
    pub(crate) fn new(port: Arc<str>) -> Self {
        let nexus = Self { port, pending: AtomicBool::new(false), queue: Mutex::default() };
        nexus.raise(Sense::POWER_ON);
        nexus
    }

    /// The initiator port's name: `iqn…,i,0x00023d000001`.
    pub fn port(&self) -> &Arc<str> {
        &self.port
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
}
