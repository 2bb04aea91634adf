//! What a connection did so far: counted without atomics by the session that does it, published once
//! per batch for whoever asks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one connection, or of all there ever were; they only grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Adds another connection's.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }
        }

        /// The published copy. One writer, any number of readers.
        #[derive(Debug, Default)]
        pub(crate) struct Published {
            $($name: AtomicU64,)*
        }

        impl Published {
            pub(crate) fn publish(&self, now: &Counters) {
                $(self.$name.store(now.$name, Relaxed);)*
            }

            pub(crate) fn get(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// `READ` requests.
    reads,
    /// `READ` requests answered from memory without waiting.
    read_hits,
    /// Bytes of reads answered, holes included.
    read_bytes,
    /// `WRITE` requests.
    writes,
    /// Bytes of `WRITE` payloads accepted.
    write_bytes,
    /// `FLUSH` requests.
    flushes,
    /// `TRIM` and `WRITE_ZEROES` requests.
    discards,
    /// `BLOCK_STATUS` and `CACHE` requests.
    others,
    /// Requests answered with an error, whatever they were.
    errors,
    /// Bytes received.
    rx_bytes,
    /// Bytes sent.
    tx_bytes,
}

impl Counters {
    /// Requests of all kinds.
    pub(crate) fn requests(&self) -> u64 {
        [self.writes, self.flushes, self.discards, self.others]
            .into_iter()
            .fold(self.reads, u64::saturating_add)
    }
}

/// A connection as of now.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Unique in the life of a server, ascending.
    pub id: u64,
    /// Address of the client, or `unix`.
    pub peer: String,
    /// Chosen export; `None` in the handshake.
    pub export: Option<String>,
    /// What it did.
    pub counters: Counters,
}
