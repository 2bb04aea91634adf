//! One connection, as those know it who watch a gate: where it comes from, what it is called, and that it is to end.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use crate::bell::Bell;

/// Whose members they are: a connection may have several. See the module.
#[derive(Debug)]
pub struct Client {
    peer: Option<IpAddr>,
    name: String,
    /// What was found at the large gate, and in the hall: who stalls in one of them may be well in the other.
    pub(super) at_large: Standing,
    pub(super) in_hall: Standing,
    is_expelled: AtomicBool,
    end: Bell,
}

impl Client {
    /// One of the host at that address; without one (a socket of this machine) it has no share with anybody. What counts
    /// as one host is for the caller to say (`peers::host_of`). `name` is for people.
    #[must_use]
    pub fn new(peer: Option<IpAddr>, name: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            peer,
            name: name.into(),
            at_large: Standing::default(),
            in_hall: Standing::default(),
            is_expelled: AtomicBool::new(false),
            end: Bell::default(),
        })
    }

    /// Which host it is of.
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the connection is to be ended, because it holds what others wait for and does not go on. One may wait.
    pub async fn expelled(&self) {
        self.end.heard().await;
    }

    /// Tells it to end. False if it was told before.
    pub(super) fn expel(&self) -> bool {
        let is_first = !self.is_expelled.swap(true, Relaxed);
        if is_first {
            self.end.ring();
        }
        is_first
    }
}

/// How a client stands at a gate, as those saw it who looked last.
#[derive(Debug, Default)]
pub(super) struct Standing {
    is_aside: AtomicBool,
    is_heavy: AtomicBool,
}

impl Standing {
    /// Whether something of what the client holds there is set aside.
    pub(super) fn is_aside(&self) -> bool {
        self.is_aside.load(Relaxed)
    }

    /// Whether its address holds more than half of the gate.
    pub(super) fn is_heavy(&self) -> bool {
        self.is_heavy.load(Relaxed)
    }

    pub(super) fn judge(&self, is_aside: bool, is_heavy: bool) {
        self.is_aside.store(is_aside, Relaxed);
        self.is_heavy.store(is_heavy, Relaxed);
    }
}
