//! The ARC as the control socket shows it: its own counters, and beside them those of the pools' second tiers and the
//! machine's memory.

use std::fs;

use crate::{api, clock, governor::Governor, ops::Host};

/// What the cache counted and holds now, and what the second tiers of all pools did and hold, all together.
#[must_use]
pub fn report(host: &Host, governor: &Governor) -> api::arc::Arc {
    let at_ns = clock::nanos();
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let cache = host.cache();
    let mut stats = cache.stats();
    stats.memory_all_bytes = field(&memory, "MemTotal:");
    stats.memory_free_bytes = field(&memory, "MemFree:");
    stats.memory_available_bytes = field(&memory, "MemAvailable:");
    governor.tell(&mut stats);
    for (name, value) in host.second_tiers().pairs() {
        // What leaves memory is counted by the ARC, for all pools.
        if name.starts_with("l2_") {
            stats.add(name, value);
        }
    }
    // A mean of all is no sum of means.
    stats.l2_log_blk_avg_asize = stats.l2_log_blk_asize.checked_div(stats.l2_log_blk_count).unwrap_or(0);
    let [data, metadata] = cache.rules();
    api::arc::Arc {
        at_ns,
        started_ns: clock::started(),
        rules_data: data.to_owned(),
        rules_metadata: metadata.to_owned(),
        stats,
    }
}

/// A line of `/proc/meminfo`, in bytes; 0 if it is not there.
fn field(memory: &str, name: &str) -> u64 {
    let line = memory.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(0, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotal:       16384 kB\nMemFree:        1 kB\nMemAvailable:   x kB\n";
        assert_eq!(
            ["MemTotal:", "MemFree:", "MemAvailable:", "Swap:"].map(|name| field(text, name)),
            [16 << 20, 1024, 0, 0]
        );
    }
}
