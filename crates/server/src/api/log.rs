//! What intent logs were asked for and what that took, as values: the shape of `/v1/log` and of `millpond zilstat`.
//!
//! Everything counts from when a volume was opened. Two answers give what happened between them:
//! [`VolumeLog::since`]; times are kept as counts in buckets, because quantiles cannot be subtracted.

use serde::{Deserialize, Serialize};

/// Answer of `/v1/log`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogList {
    /// Nanoseconds since the daemon was started: for the time between two answers.
    pub at_ns: u64,
    /// When that was, in nanoseconds since 1970: another daemon's is another. Older ones do not tell.
    #[serde(default)]
    pub started_ns: u64,
    /// Pools that are open for writing, by name.
    pub pools: Vec<PoolLog>,
}

/// The logs of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolLog {
    /// Name of the pool.
    pub pool: String,
    /// When it was opened, in nanoseconds since 1970: if that is another than before, everything was counted anew. Older
    /// ones do not tell.
    #[serde(default)]
    pub opened_ns: u64,
    /// Its log devices, top-level ones.
    pub log_devices: Vec<LogDevice>,
    /// Its open volumes, by name.
    pub volumes: Vec<VolumeLog>,
    /// What was replayed when it was opened, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
}

/// A log device, and what the logs of open volumes wrote to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogDevice {
    /// As `zpool status` names it.
    pub name: String,
    /// `ONLINE`, `DEGRADED`, …
    pub state: String,
    /// Log blocks.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// What was found in the logs of a pool after a crash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// Volumes that had records.
    pub volumes: u64,
    /// Records.
    pub records: u64,
    /// Bytes that were written again.
    pub bytes: u64,
    /// How long that took until it was durable, milliseconds.
    pub ms: u64,
    /// What could not be replayed, and what that means, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What one top-level device got of a volume's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// As `zpool status` names it, or named it before it was removed.
    pub name: String,
    /// It is a log device, or was one.
    pub log: bool,
    /// It is not in the pool any more.
    #[serde(default)]
    pub removed: bool,
    /// Log blocks.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// What happened to one volume's demands for stability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLog {
    /// Name.
    pub name: String,
    /// Guid of the volume, whatever it is called. Older daemons do not tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub guid: String,
    /// The property: `standard`, `always`, `disabled`.
    pub sync: String,
    /// The property: `latency`, `throughput`.
    pub logbias: String,
    /// Requests that changed something, stable or not.
    pub writes: u64,
    /// Asked for stability with the command itself.
    pub fua: u64,
    /// Flushes.
    pub flush: u64,
    /// Writes of clients that switched the write cache off.
    pub cache_off: u64,
    /// Writes under `sync=always`.
    pub always: u64,
    /// Of all that: acknowledged without being durable, because of `sync=disabled`.
    pub ignored: u64,
    /// Of all that: found nothing left to make durable.
    pub nothing: u64,
    /// Of all that: made durable by the log.
    pub commits: u64,
    /// Waited for their transaction group, and why.
    pub fallbacks: Fallbacks,
    /// Times the log wrote something; `commits / log_writes` is how many share one.
    pub log_writes: u64,
    /// Records.
    pub records: u64,
    /// Bytes of clients in them.
    pub payload_bytes: u64,
    /// Of these, bytes that were written to their final place and only pointed to.
    pub indirect_bytes: u64,
    /// Log blocks.
    pub log_blocks: u64,
    /// Bytes of them.
    pub log_bytes: u64,
    /// Who took them.
    pub devices: Vec<Share>,
    /// From a request to its acknowledgement, for each commit.
    pub total: Times,
    /// Of that: until its records were on their way.
    pub queue: Times,
    /// Devices with their flush, for each log write.
    pub device: Times,
    /// All of it in plain words.
    pub sentence: String,
}

/// Commits that waited for their transaction group, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallbacks {
    /// The log was not begun: the first commits after an import, or after a log was given up.
    pub not_begun: u64,
    /// There was no place for a log block.
    pub no_space: u64,
    /// A device failed.
    pub device_failed: u64,
    /// More was dirty than is worth writing twice.
    pub burst: u64,
}

impl Fallbacks {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.not_begun + self.no_space + self.device_failed + self.burst
    }

    /// Those that there were: a short word, what it means, and how many.
    #[must_use]
    pub fn reasons(&self) -> Vec<(&'static str, &'static str, u64)> {
        let all = [
            ("begin", "the log was not begun", self.not_begun),
            ("space", "there was no space for the log", self.no_space),
            ("device", "a device failed", self.device_failed),
            ("burst", "writing so much twice would have taken longer", self.burst),
        ];
        all.into_iter().filter(|(_, _, count)| *count > 0).collect()
    }
}

/// How long something took, counted in buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// All of them together, nanoseconds.
    pub sum_ns: u64,
    /// Pairs, ascending: the longest time that a bucket counts, in nanoseconds, and how many it counted.
    pub buckets: Vec<(u64, u64)>,
}

impl Times {
    /// Nanoseconds that `permille` of the times did not exceed, at most a quarter too high; 0 if there were none.
    #[must_use]
    pub fn quantile(&self, permille: u64) -> u64 {
        let all: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let rank = (all * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        found.map_or(0, |(upper, _)| *upper)
    }

    /// The mean, nanoseconds; 0 if there were none.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let old =
            |upper: u64| before.buckets.iter().find(|(other, _)| *other == upper).map_or(0, |(_, n)| *n);
        let buckets = self.buckets.iter().map(|(upper, count)| (*upper, count.saturating_sub(old(*upper))));
        Self {
            count: self.count.saturating_sub(before.count),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl VolumeLog {
    /// How often stability was asked for.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.fua + self.flush + self.cache_off + self.always
    }

    /// Commits that share one log write, on average.
    #[must_use]
    pub fn batching(&self) -> Option<f64> {
        (self.log_writes > 0).then(|| self.commits as f64 / self.log_writes as f64)
    }

    /// What happened since `before`, an earlier answer about the same volume. If it was opened anew in between it
    /// counts from there.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        if self.writes < before.writes || self.asked() < before.asked() {
            return self.clone();
        }
        let old = |share: &Share| {
            let mut of_name = before.devices.iter().filter(|old| old.name == share.name);
            // One may have been removed in between; and another may have come in its place.
            let same = of_name.clone().find(|old| old.removed == share.removed);
            same.or_else(|| of_name.next()).cloned().unwrap_or_default()
        };
        let shares = self.devices.iter().map(|share| {
            let old = old(share);
            Share {
                blocks: share.blocks.saturating_sub(old.blocks),
                bytes: share.bytes.saturating_sub(old.bytes),
                ..share.clone()
            }
        });
        let (now, then) = (&self.fallbacks, &before.fallbacks);
        Self {
            name: self.name.clone(),
            guid: self.guid.clone(),
            sync: self.sync.clone(),
            logbias: self.logbias.clone(),
            writes: self.writes - before.writes,
            fua: self.fua.saturating_sub(before.fua),
            flush: self.flush.saturating_sub(before.flush),
            cache_off: self.cache_off.saturating_sub(before.cache_off),
            always: self.always.saturating_sub(before.always),
            ignored: self.ignored.saturating_sub(before.ignored),
            nothing: self.nothing.saturating_sub(before.nothing),
            commits: self.commits.saturating_sub(before.commits),
            fallbacks: Fallbacks {
                not_begun: now.not_begun.saturating_sub(then.not_begun),
                no_space: now.no_space.saturating_sub(then.no_space),
                device_failed: now.device_failed.saturating_sub(then.device_failed),
                burst: now.burst.saturating_sub(then.burst),
            },
            log_writes: self.log_writes.saturating_sub(before.log_writes),
            records: self.records.saturating_sub(before.records),
            payload_bytes: self.payload_bytes.saturating_sub(before.payload_bytes),
            indirect_bytes: self.indirect_bytes.saturating_sub(before.indirect_bytes),
            log_blocks: self.log_blocks.saturating_sub(before.log_blocks),
            log_bytes: self.log_bytes.saturating_sub(before.log_bytes),
            devices: shares.filter(|share| share.blocks > 0).collect(),
            total: self.total.since(&before.total),
            queue: self.queue.since(&before.queue),
            device: self.device.since(&before.device),
            sentence: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `replayed` was a list there: whoever read it as one failed as soon as there was one.
    #[test]
    fn the_manual_shows_an_answer_as_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.md");
        let manual = std::fs::read_to_string(path).unwrap();
        let (_, section) = manual.split_once("\n## Intent logs\n\n").unwrap();
        let shown: String = section.lines().take_while(|line| line.starts_with("    ")).collect();
        let shown: LogList = serde_json::from_str(&shown.replace("VOLUME…", "")).unwrap();
        let pool = &shown.pools[0];
        assert_eq!((pool.log_devices.len(), pool.volumes.len()), (1, 0));
        assert!(pool.replayed.as_ref().is_some_and(|replayed| replayed.notes.len() == 1));
    }

    #[test]
    fn the_difference_of_two_answers_is_what_happened_between_them() {
        let times = |buckets: &[(u64, u64)]| Times {
            count: buckets.iter().map(|(_, n)| n).sum(),
            sum_ns: buckets.iter().map(|(upper, n)| upper * n).sum(),
            buckets: buckets.to_vec(),
        };
        let share = |blocks| {
            let bytes = blocks * 4096;
            Share { name: "log0".into(), log: true, removed: false, blocks, bytes }
        };
        let before = VolumeLog {
            writes: 10,
            fua: 3,
            total: times(&[(100, 2), (1000, 1)]),
            devices: vec![share(3), Share { name: "gone".into(), ..share(1) }],
            ..VolumeLog::default()
        };
        let after = VolumeLog {
            writes: 110,
            fua: 43,
            total: times(&[(50, 30), (100, 2), (1000, 11)]),
            devices: vec![share(23)],
            ..before.clone()
        };
        let between = after.since(&before);
        assert_eq!((between.writes, between.fua, between.total.count), (100, 40, 40));
        assert_eq!(between.total.buckets, [(50, 30), (1000, 10)]);
        assert_eq!((between.total.quantile(500), between.total.quantile(990)), (50, 1000));
        assert_eq!(between.total.mean(), 287);
        assert_eq!(between.devices, [share(20)]);
        let removed = VolumeLog { devices: vec![Share { removed: true, ..share(23) }], ..after.clone() };
        assert_eq!(removed.since(&after).devices, [], "it was removed, and took nothing more");
        assert_eq!(before.since(&after), before, "opened anew: it counts from there");
        assert_eq!((Times::default().quantile(500), Times::default().mean()), (0, 0));
    }
}
