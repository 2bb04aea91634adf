//! Who is connected and what they do, as values: the shape of `/v1/initiators` and of `millpond initiators`.
//!
//! Everything counts from login. Two answers give what happened between them.

use serde::{Deserialize, Serialize};

/// Answer of `/v1/initiators`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitiatorList {
    /// Nanoseconds since the daemon was started: for the time between two answers.
    pub at_ns: u64,
    /// When that was, in nanoseconds since 1970: another daemon's is another. Older ones do not tell.
    #[serde(default)]
    pub started_ns: u64,
    /// Upper ends of the buckets of latencies, microseconds, exclusive; the last one has no end.
    pub latency_bounds: Vec<u64>,
    /// iSCSI sessions, by initiator.
    pub sessions: Vec<Session>,
    /// NBD connections.
    pub nbd: Vec<NbdClient>,
    /// Registrations for persistent reservations that are shown with no session. Older ones do not tell.
    #[serde(default)]
    pub absent: Vec<Absent>,
}

/// An iSCSI session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Initiator name.
    pub initiator: String,
    /// Where it came from.
    pub address: String,
    /// The portal it came in by.
    pub portal: String,
    /// That portal's group.
    pub group: u16,
    /// Target; empty of a discovery.
    pub target: String,
    /// The initiator's part of the session's identity, hexadecimal.
    pub isid: String,
    /// When it logged in, seconds since 1970.
    pub since: u64,
    /// The CHAP name it proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// SCSI commands taken.
    pub commands: u64,
    /// Bytes received and sent, as data of commands.
    pub bytes_in: u64,
    /// See `bytes_in`.
    pub bytes_out: u64,
    /// By disk, those it has sent commands to.
    pub luns: Vec<LunUse>,
}

/// What a session does with one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LunUse {
    /// Number.
    pub lun: u16,
    /// The volume or snapshot.
    pub volume: String,
    /// READ commands that were answered from memory, or that had to wait and ended: answered, failed or aborted.
    pub reads: u64,
    /// WRITE commands, the same way.
    pub writes: u64,
    /// All others, with the reads and writes that were refused at once.
    pub others: u64,
    /// Reads that were answered from memory at once.
    pub from_memory: u64,
    /// Bytes read, by those that did not fail.
    pub read_bytes: u64,
    /// Bytes written, the same way.
    pub write_bytes: u64,
    /// Commands under way now.
    pub under_way: u64,
    /// How long commands have been under way, nanoseconds, each for itself, those that still are until now: what two answers
    /// differ by, divided by the time between them, is the average number under way. Older ones do not tell.
    #[serde(default)]
    pub queue_ns: u64,
    /// Sum of the latencies of reads and writes that were not answered from memory at once, nanoseconds, from the request
    /// to its answer or abort.
    pub busy_ns: u64,
    /// The same reads and writes by latency, see `latency_bounds`.
    pub latency: Vec<u64>,
    /// This session's port is registered for persistent reservations.
    pub registered: bool,
    /// And holds one, of this type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<String>,
}

/// A registration for persistent reservations of an initiator port that is not logged in, or has not used the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// Initiator name, and the initiator's part of the session's identity: `iqn…,i,0x00023d000001`.
    pub port: String,
    /// Portal group.
    pub group: u16,
    /// Target.
    pub target: String,
    /// Number.
    pub lun: u16,
    /// The volume or snapshot.
    pub volume: String,
    /// It holds a reservation, of this type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<String>,
}

/// An NBD connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NbdClient {
    /// Ascending in the life of the daemon.
    pub id: u64,
    /// Where it came from.
    pub address: String,
    /// The volume; nothing while it has not chosen one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// READ requests.
    pub reads: u64,
    /// WRITE requests.
    pub writes: u64,
    /// All others.
    pub others: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl LunUse {
    /// What happened since an earlier answer.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |now: u64, then: u64| now.saturating_sub(then);
        let then = |at: usize| before.latency.get(at).copied().unwrap_or(0);
        Self {
            reads: less(self.reads, before.reads),
            writes: less(self.writes, before.writes),
            others: less(self.others, before.others),
            from_memory: less(self.from_memory, before.from_memory),
            read_bytes: less(self.read_bytes, before.read_bytes),
            write_bytes: less(self.write_bytes, before.write_bytes),
            queue_ns: less(self.queue_ns, before.queue_ns),
            busy_ns: less(self.busy_ns, before.busy_ns),
            latency: self.latency.iter().enumerate().map(|(at, now)| less(*now, then(at))).collect(),
            ..self.clone()
        }
    }

    /// Average latency of reads and writes that were not answered from memory at once, nanoseconds.
    #[must_use]
    pub fn average_ns(&self) -> Option<u64> {
        self.busy_ns.checked_div(self.latency.iter().sum())
    }

    /// How many percent of the reads were answered from memory at once.
    #[must_use]
    pub fn from_memory_percent(&self) -> Option<u64> {
        (self.from_memory.min(self.reads) * 100).checked_div(self.reads)
    }

    /// The latency, in microseconds, that so many percent of those reads and writes stay below. Of the last bucket, which has
    /// no end, the larger of its bound and the average.
    #[must_use]
    pub fn quantile_us(&self, bounds: &[u64], percent: u64) -> Option<u64> {
        let total: u64 = self.latency.iter().sum();
        let wanted = (total * percent).div_ceil(100);
        let mut seen = 0;
        for (at, (count, bound)) in self.latency.iter().zip(bounds).enumerate() {
            seen += count;
            if total > 0 && seen >= wanted {
                let is_last = at + 1 == bounds.len();
                let average = self.average_ns().filter(|_| is_last).map_or(0, |nanos| nanos / 1000);
                return Some(average.max(*bound));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_what_happened_between_two_answers() {
        let bounds = [1, 2, 4];
        let before = LunUse { reads: 1, latency: vec![1, 0, 0], ..LunUse::default() };
        let now = LunUse { reads: 101, busy_ns: 5000, latency: vec![1, 98, 2], ..LunUse::default() };
        let between = now.since(&before);
        assert_eq!((between.reads, between.average_ns()), (100, Some(50)));
        assert_eq!((between.quantile_us(&bounds, 50), between.quantile_us(&bounds, 99)), (Some(2), Some(4)));
        assert_eq!(LunUse::default().quantile_us(&bounds, 99), None);
    }

    /// It was never more than the bound of the last bucket, and 99 % were faster than the average.
    #[test]
    fn a_quantile_in_the_last_bucket_is_not_less_than_the_average() {
        let bounds = [1, 2, 4];
        let slow = LunUse { busy_ns: 120_000_000_000, latency: vec![0, 0, 1], ..LunUse::default() };
        assert_eq!(slow.quantile_us(&bounds, 99), Some(120_000_000));
        let mixed = LunUse { busy_ns: 103_000, latency: vec![100, 0, 3], ..LunUse::default() };
        assert_eq!((mixed.quantile_us(&bounds, 50), mixed.quantile_us(&bounds, 99)), (Some(1), Some(4)));
    }

    #[test]
    fn what_was_answered_from_memory_makes_no_latency_look_better() {
        let lun =
            LunUse { reads: 100, from_memory: 99, busy_ns: 3000, latency: vec![0, 1], ..LunUse::default() };
        assert_eq!((lun.average_ns(), lun.from_memory_percent()), (Some(3000), Some(99)));
        let cached = LunUse { reads: 7, from_memory: 7, ..LunUse::default() };
        assert_eq!((cached.average_ns(), cached.quantile_us(&[1, 2], 99)), (None, None));
        assert_eq!(
            (cached.from_memory_percent(), LunUse::default().from_memory_percent()),
            (Some(100), None)
        );
    }
}
