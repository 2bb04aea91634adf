//! `zpool iostat -w` and `-r`: for each pool or device a table of how long things took, or how large they were.

use server::{
    api::{Device, iostat::PoolIo},
    pool::{
        props::value::count,
        text::PAD_MAX,
        vdev::{SIZES, TIMES, Tallied},
    },
};

use super::{
    Line, lines, name_width,
    rows::{SHOWN, WIDTH, list, title, waits},
    time, work,
};
use crate::args::ZpoolIostat;

/// Titles, heads, and the first row: of how long things took.
const TIMES_TITLES: [(&str, usize); 4] =
    [("total_wait", 2), ("disk_wait", 2), ("syncq_wait", 2), ("asyncq_wait", 2)];
const TIMES_HEADS: [&str; 11] =
    ["read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim", "rebuild"];
/// The same of how large they were.
const SIZES_TITLES: [(&str, usize); SHOWN] = [
    ("sync_read", 2),
    ("sync_write", 2),
    ("async_read", 2),
    ("async_write", 2),
    ("scrub", 2),
    ("trim", 2),
    ("rebuild", 2),
];
/// The smallest size that has a row: a sector of 512 bytes.
const SIZES_FROM: usize = 9;

/// One table.
struct Histogram {
    corner: &'static str,
    titles: &'static [(&'static str, usize)],
    heads: Vec<&'static str>,
    /// What stands at the left, exactly and for people.
    labels: Vec<(u64, String)>,
    /// By column, then row.
    columns: Vec<Vec<u64>>,
}

pub(super) fn render(out: &mut String, pools: &[&PoolIo], devices: &[&Device], args: &ZpoolIostat) {
    let width = name_width(pools, devices, args);
    let mut one = |device: &Device| {
        let work = work(device);
        let name = args.names.of(device);
        if args.latency_histogram {
            table(out, &name, width, &of_times(&work), args);
        }
        if args.size_histogram {
            table(out, &name, width, &of_sizes(&work), args);
        }
    };
    if !devices.is_empty() {
        devices.iter().for_each(|device| one(device));
        return;
    }
    for line in pools.iter().flat_map(|pool| lines(pool, args.verbose)) {
        if let Line::Device(device, _) = line {
            one(device);
        }
    }
}

fn of_times(work: &Tallied) -> Histogram {
    let label = |at: usize| {
        let most = (2_u64 << at) - 1;
        (most, time(most, false))
    };
    let columns = waits(work).into_iter();
    Histogram {
        corner: "latency",
        titles: &TIMES_TITLES,
        heads: TIMES_HEADS.to_vec(),
        labels: (0..TIMES).map(label).collect(),
        columns: columns.map(|column| rows(column, 0, TIMES)).collect(),
    }
}

fn of_sizes(work: &Tallied) -> Histogram {
    let columns = (0..SHOWN).flat_map(|kind| [list(&work.alone, kind), list(&work.joined, kind)]);
    Histogram {
        corner: "req_size",
        titles: &SIZES_TITLES,
        heads: ["ind", "agg"].repeat(SHOWN),
        labels: (SIZES_FROM..SIZES).map(|at| (1 << at, count(1 << at))).collect(),
        columns: columns.map(|column| rows(column, SIZES_FROM, SIZES)).collect(),
    }
}

/// The rows of a column, however many were sent.
fn rows(column: &[u64], from: usize, to: usize) -> Vec<u64> {
    (from..to).map(|at| column.get(at).copied().unwrap_or(0)).collect()
}

fn table(out: &mut String, name: &str, name_width: usize, histogram: &Histogram, args: &ZpoolIostat) {
    let number = |number: u64| if args.exact { number.to_string() } else { count(number) };
    let widest = histogram.columns.iter().flatten().map(|counted| number(*counted).len()).max();
    let width = widest.unwrap_or(0).max(WIDTH);
    let name_width = name_width.max(name.chars().count()).min(PAD_MAX);
    out.push('\n');
    if !args.scripted {
        out.push_str(&format!("{name:name_width$}"));
        histogram.titles.iter().for_each(|(name, columns)| out.push_str(&title(name, *columns, width)));
        out.push_str(&format!("\n{:name_width$}", histogram.corner));
        histogram.heads.iter().for_each(|head| out.push_str(&format!("  {head:>width$}")));
        out.push_str(&format!("\n{}", "-".repeat(name_width)));
        histogram.heads.iter().for_each(|_| out.push_str(&format!("  {}", "-".repeat(width))));
        out.push('\n');
    }
    for (at, (exact, label)) in histogram.labels.iter().enumerate() {
        let cells = histogram.columns.iter().map(|column| number(column[at]));
        if args.scripted {
            out.push_str(&exact.to_string());
            cells.for_each(|cell| out.push_str(&format!("\t{cell}")));
        } else {
            out.push_str(&format!("{label:name_width$}"));
            cells.for_each(|cell| out.push_str(&format!("  {cell:>width$}")));
        }
        out.push('\n');
    }
    if !args.scripted {
        out.push_str(&"-".repeat(name_width + histogram.columns.len() * (width + 2)));
        out.push('\n');
    }
}
