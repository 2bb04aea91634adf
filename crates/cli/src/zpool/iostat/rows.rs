//! `zpool iostat`'s table: a line for each pool, with `-v` for each device, in groups of columns.

use server::{
    api::{Device, iostat::PoolIo},
    pool::{
        props::value::count,
        vdev::{Tallied, Work},
    },
};

use super::{Line, Span, lines, name_width, time, work};
use crate::args::ZpoolIostat;

/// Columns that stand together: over how many each title stands, what is below it, and how wide exact numbers are.
pub(super) struct Group {
    pub(super) titles: &'static [(&'static str, usize)],
    pub(super) heads: &'static [&'static str],
    exact_width: usize,
}

const USUAL: Group = Group {
    titles: &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
    heads: &["alloc", "free", "read", "write", "read", "write"],
    exact_width: 15,
};
const LATENCY: Group = Group {
    titles: &[
        ("total_wait", 2),
        ("disk_wait", 2),
        ("syncq_wait", 2),
        ("asyncq_wait", 2),
        ("scrub", 1),
        ("trim", 1),
        ("rebuild", 1),
    ],
    heads: &["read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait", "wait"],
    exact_width: 10,
};
const QUEUES: Group = Group {
    titles: &[
        ("syncq_read", 2),
        ("syncq_write", 2),
        ("asyncq_read", 2),
        ("asyncq_write", 2),
        ("scrubq_read", 2),
        ("trimq_write", 2),
        ("rebuildq_write", 2),
    ],
    heads: &[
        "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ",
        "pend", "activ",
    ],
    exact_width: 6,
};

/// Kinds of work that have a column.
pub(super) const SHOWN: usize = Work::Rebuild as usize + 1;

/// Width of a column that is not exact.
pub(super) const WIDTH: usize = 5;

/// How long a pool has been open at least for averages to say something, in nanoseconds: before that they are of the reads
/// that opening it takes, by the thousand in a second.
const RATE_AFTER_NS: u64 = 1_000_000_000;

fn groups(args: &ZpoolIostat) -> Vec<(Group, usize)> {
    let mut groups = vec![USUAL];
    if args.latency {
        groups.push(LATENCY);
    }
    if args.queues {
        groups.push(QUEUES);
    }
    let width = |group: &Group| if args.exact { group.exact_width } else { WIDTH };
    groups
        .into_iter()
        .map(|group| {
            let width = width(&group);
            (group, width)
        })
        .collect()
}

/// The title of some columns, over their middle.
pub(super) fn title(name: &str, columns: usize, width: usize) -> String {
    let whole = width * columns + 2 * (columns - 1);
    let before = (whole / columns).saturating_sub(name.len() / columns);
    let text = format!("  {}{name}", " ".repeat(before));
    format!("{text:<0$}", whole + 2)
}

pub(super) fn render(
    out: &mut String,
    pools: &[&PoolIo],
    devices: &[&Device],
    args: &ZpoolIostat,
    span: Span,
    with_header: bool,
) {
    let groups = groups(args);
    let width = name_width(pools, devices, args);
    let rule = |out: &mut String| {
        out.push_str(&"-".repeat(width));
        for (group, width) in &groups {
            group.heads.iter().for_each(|_| out.push_str(&format!("  {}", "-".repeat(*width))));
        }
        out.push('\n');
    };
    if with_header && !args.scripted {
        out.push_str(&" ".repeat(width));
        for (group, width) in &groups {
            group.titles.iter().for_each(|(name, columns)| out.push_str(&title(name, *columns, *width)));
        }
        out.push_str(&format!("\n{:width$}", if devices.is_empty() { "pool" } else { "vdev" }));
        for (group, width) in &groups {
            group.heads.iter().for_each(|head| out.push_str(&format!("  {head:>width$}")));
        }
        out.push('\n');
        rule(out);
    }
    let line = |out: &mut String, name: &str, depth: usize, cells: Option<Vec<Vec<String>>>| {
        if args.scripted {
            out.push_str(name);
            cells.iter().flatten().flatten().for_each(|cell| out.push_str(&format!("\t{cell}")));
        } else {
            out.push_str(&format!("{:depth$}{name:1$}", "", width - depth.min(width)));
            for (at, (group, width)) in groups.iter().enumerate() {
                for column in 0..group.heads.len() {
                    let cell = cells.as_ref().map_or("-", |cells| &cells[at][column]);
                    out.push_str(&format!("  {cell:>width$}"));
                }
            }
        }
        out.push('\n');
    };
    for device in devices {
        line(out, &args.names.of(device), 0, Some(cells(device, args, span)));
    }
    if !devices.is_empty() {
        if !args.scripted {
            rule(out);
        }
        return;
    }
    for pool in pools {
        for each in lines(pool, args.verbose) {
            match each {
                Line::Device(device, depth) => {
                    line(out, &args.names.of(device), depth, Some(cells(device, args, span)));
                }
                Line::Section(_) if args.scripted => {}
                Line::Section(title) => line(out, title, 0, None),
            }
        }
        if args.verbose && !args.scripted {
            rule(out);
        }
    }
    if pools.len() > 1 && !args.verbose && !args.scripted {
        rule(out);
    }
}

/// What stands in the columns of each group.
fn cells(device: &Device, args: &ZpoolIostat, span: Span) -> Vec<Vec<String>> {
    let number = |number: u64| if args.exact { number.to_string() } else { count(number) };
    let work = work(device);
    let mut groups = Vec::new();
    let mut usual = match device.space.filter(|space| space.size > 0) {
        Some(space) => vec![number(space.allocated), number(space.free)],
        None => vec!["-".to_owned(), "-".to_owned()],
    };
    usual.extend(rates(&work, span).map(|rate| rate.map_or("-".to_owned(), number)));
    groups.push(usual);
    if args.latency {
        groups.push(latencies(&work).into_iter().map(|nanos| time(nanos, args.exact)).collect());
    }
    if args.queues {
        groups.push(depths(&work).into_iter().map(number).collect());
    }
    groups
}

/// Reads, writes and the bytes of each in a second of the time that was looked at, if that says something.
fn rates(work: &Tallied, span: Span) -> [Option<u64>; 4] {
    let is_long_enough = span == Span::Interval || work.age_ns >= RATE_AFTER_NS;
    let seconds = (work.age_ns as f64 / 1e9).max(1e-3);
    let ([reads, writes], [read, written]) = (work.operations, work.bytes);
    [reads, writes, read, written].map(|counted| is_long_enough.then_some((counted as f64 / seconds) as u64))
}

/// Mean times in the order of the columns, nanoseconds.
pub(super) fn latencies(work: &Tallied) -> Vec<u64> {
    waits(work).into_iter().map(mean).collect()
}

/// The histograms of times in the order of the columns.
pub(super) fn waits(work: &Tallied) -> Vec<&[u64]> {
    let total = (0..2).map(|at| list(&work.total, at));
    let disk = (0..2).map(|at| list(&work.disk, at));
    let queues = (0..SHOWN).map(|at| list(&work.waits, at));
    total.chain(disk).chain(queues).collect()
}

pub(super) fn list(lists: &[Vec<u64>], at: usize) -> &[u64] {
    lists.get(at).map_or(&[], |list| list)
}

/// Operations waiting and under way, by kind of work.
pub(super) fn depths(work: &Tallied) -> Vec<u64> {
    let at = |list: &[u64], at: usize| list.get(at).copied().unwrap_or(0);
    (0..SHOWN).flat_map(|kind| [at(&work.pending, kind), at(&work.active, kind)]).collect()
}

/// Of a histogram: each counts as the middle of its bucket.
fn mean(buckets: &[u64]) -> u64 {
    let counted: u64 = buckets.iter().sum();
    let sum: u128 =
        buckets.iter().enumerate().map(|(at, count)| u128::from(*count) * ((3_u128 << at) / 2)).sum();
    sum.checked_div(counted.into()).and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_stand_where_openzfs_has_them() {
        let all: String = USUAL.titles.iter().map(|(name, columns)| title(name, *columns, WIDTH)).collect();
        assert_eq!(all, "    capacity     operations     bandwidth ");
        let all: String = LATENCY.titles.iter().map(|(name, columns)| title(name, *columns, WIDTH)).collect();
        assert_eq!(all, "   total_wait     disk_wait    syncq_wait    asyncq_wait  scrub   trim  rebuild");
        let all: String = QUEUES.titles.iter().map(|(name, columns)| title(name, *columns, WIDTH)).collect();
        assert_eq!(
            all.trim_end(),
            "   syncq_read    syncq_write   asyncq_read  asyncq_write   scrubq_read   trimq_write  rebuildq_write"
        );
    }

    #[test]
    fn a_mean_is_that_of_the_middles() {
        let mut buckets = vec![0; 37];
        assert_eq!(mean(&buckets), 0);
        (buckets[10], buckets[12]) = (3, 1);
        assert_eq!(mean(&buckets), (3 * 1536 + 6144) / 4);
        buckets[36] = u64::MAX / 2;
        assert!(mean(&buckets) > 100_000_000_000);
    }

    #[test]
    fn a_pool_that_was_opened_a_moment_ago_has_no_rates() {
        let of = |age_ns, span| {
            rates(&Tallied { age_ns, operations: [84, 2], bytes: [4096, 0], ..Tallied::default() }, span)
        };
        assert_eq!(of(10_000_000, Span::SinceOpened), [None; 4]);
        assert_eq!(of(2_000_000_000, Span::SinceOpened), [42, 1, 2048, 0].map(Some));
        assert_eq!(of(500_000_000, Span::Interval), [168, 4, 8192, 0].map(Some), "so short was asked for");
    }

    #[test]
    fn times_are_whole_numbers() {
        let all = [0, 336, 6_900, 41_000_000, 2_500_000_000].map(|nanos| time(nanos, false));
        assert_eq!(all, ["-", "336ns", "6us", "41ms", "2s"]);
        assert_eq!([time(0, true), time(6_900, true)], ["-", "6900"]);
    }
}
