//! `millpond arc-summary`: the ARC on one page, in the sections of OpenZFS's `arc_summary`.
//!
//! The daemon counts ([`server::arc`]); this divides and prints. Formulas: docs/format/arc.md §5.2.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Map, Value, json};
use server::{api::arc::Arc, pool::cache::ArcStats};

use crate::{
    args::{ArcSection, ArcSummary},
    context::{Context, FAILED, print},
    json,
};

/// Characters of a line.
const WIDTH: usize = 72;
/// All, of shares in fixed point.
const ALL: f64 = 4_294_967_296.0;

pub(crate) async fn run(args: ArcSummary, context: &Context) -> anyhow::Result<ExitCode> {
    let Some(daemon) = context
        .serving_daemon("show the ARC", "it is in the memory of the process that serves the volumes")
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    let arc = daemon.arc().await?;
    print(&match () {
        () if args.json => object(&arc),
        () if args.raw => raw(&arc.stats),
        () => page(&arc, args.section),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The page in the making.
#[derive(Default)]
struct Page(String);

impl Page {
    /// A section begins.
    fn section(&mut self, title: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        let line = format!("{title}{value:>0$}", WIDTH - title.chars().count());
        writeln!(self.0, "{}", line.trim_end()).expect("a String takes any text");
    }

    fn row(&mut self, label: &str, percent: Option<f64>, value: &str) {
        let label = format!("        {label}");
        let percent = percent.map_or_else(String::new, share);
        let both = format!("{percent:>8}{value:>12}");
        writeln!(self.0, "{label}{both:>0$}", WIDTH.saturating_sub(label.chars().count()))
            .expect("a String takes any text");
    }

    fn bytes(&mut self, label: &str, value: u64) {
        self.row(label, None, &bytes(value));
    }

    fn bytes_of(&mut self, label: &str, value: u64, whole: u64) {
        self.row(label, Some(percent(value, whole)), &bytes(value));
    }

    fn hits(&mut self, label: &str, value: u64) {
        self.row(label, None, &hits(value));
    }

    fn hits_of(&mut self, label: &str, value: u64, whole: u64) {
        self.row(label, Some(percent(value, whole)), &hits(value));
    }

    /// Hits, hits on their way and misses of a kind of access, of all there were.
    fn accesses(&mut self, title: &str, [found, waiting, missed]: [u64; 3], of: Option<u64>) {
        let all = found + waiting + missed;
        match of {
            Some(of) => {
                let value = format!("{:>8}{:>12}", share(percent(all, of)), hits(all));
                self.section(title, &value);
            }
            None => self.section(title, &hits(all)),
        }
        self.hits_of("hits:", found, all);
        self.hits_of("I/O hits:", waiting, all);
        self.hits_of("misses:", missed, all);
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { f64::NAN } else { part as f64 * 100.0 / whole as f64 }
}

fn share(percent: f64) -> String {
    match percent {
        percent if percent.is_nan() => "n/a".to_owned(),
        percent if percent > 0.0 && percent < 0.05 => "< 0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

fn bytes(value: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (value.max(1).ilog2() / 10) as usize;
    match power.checked_sub(1).and_then(|at| units.get(at)) {
        Some(unit) => format!("{:.1} {unit}", value as f64 / (1_u64 << (10 * power)) as f64),
        None => format!("{value} Bytes"),
    }
}

fn hits(value: u64) -> String {
    let (mut scaled, mut unit) = (value as f64, "");
    for next in ["k", "M", "G", "T", "P"] {
        if scaled < 1000.0 {
            break;
        }
        (scaled, unit) = (scaled / 1000.0, next);
    }
    if unit.is_empty() { value.to_string() } else { format!("{scaled:.1}{unit}") }
}

/// The whole page, or only a section.
fn page(arc: &Arc, only: Option<ArcSection>) -> String {
    let s = &arc.stats;
    let mut page = Page::default();
    let is_wanted = |section| only.is_none_or(|only| only == section);
    if is_wanted(ArcSection::Arc) {
        sizes(&mut page, arc);
    }
    if is_wanted(ArcSection::Archits) {
        accesses(&mut page, s);
    }
    if is_wanted(ArcSection::L2arc) {
        match s.l2_ndev > 0 || s.l2_hits + s.l2_misses > 0 {
            true => second(&mut page, s),
            false if only.is_some() => page.section("L2ARC not detected, skipping section", ""),
            false => {}
        }
    }
    page.0
}

/// For `grep`.
fn raw(s: &ArcStats) -> String {
    let mut page = Page::default();
    page.section("ARCSTATS:", "");
    let mut rows = s.rows();
    rows.sort_unstable();
    rows.iter().for_each(|(name, value)| page.row(name, None, &value.to_string()));
    page.0
}

fn sizes(page: &mut Page, arc: &Arc) {
    let s = &arc.stats;
    page.section("ARC status:", if s.memory_throttle_count == 0 { "HEALTHY" } else { "THROTTLED" });
    page.bytes("Total memory size:", s.memory_all_bytes);
    page.bytes_of("Min target size:", s.c_min, s.memory_all_bytes);
    page.bytes_of("Max target size:", s.c_max, s.memory_all_bytes);
    page.bytes_of("Target size (adaptive):", s.c, s.c_max);
    page.bytes_of("Current size:", s.size, s.c_max);
    page.bytes("Free memory size:", s.memory_free_bytes);
    page.bytes("Available memory size:", s.memory_available_bytes);

    // What finds blocks on cache devices is beside the ARC's size here, and no part of it.
    let all = s.size + s.l2_hdr_size;
    page.section("ARC structural breakdown (current size):", &bytes(all));
    page.bytes_of("Compressed size:", s.compressed_size, all);
    page.bytes_of("Overhead size:", s.overhead_size, all);
    page.bytes_of("Header size:", s.hdr_size, all);
    page.bytes_of("L2 header size:", s.l2_hdr_size, all);

    let caches = s.data_size + s.metadata_size;
    page.section("ARC types breakdown (compressed + overhead):", &bytes(caches));
    page.bytes_of("Data size:", s.data_size, caches);
    page.bytes_of("Metadata size:", s.metadata_size, caches);

    page.section("ARC states breakdown (compressed + overhead):", &bytes(caches));
    let [meta, pd, pm] = [s.meta, s.pd, s.pm].map(|share| share as f64 / ALL);
    for (label, target, size, ghosts) in [
        ("MFU data", (1.0 - pd) * (1.0 - meta), s.mfu_data, s.mfu_ghost_data),
        ("MFU metadata", (1.0 - pm) * meta, s.mfu_metadata, s.mfu_ghost_metadata),
        ("MRU data", pd * (1.0 - meta), s.mru_data, s.mru_ghost_data),
        ("MRU metadata", pm * meta, s.mru_metadata, s.mru_ghost_metadata),
    ] {
        page.row(&format!("{label} target:"), Some(target * 100.0), &bytes((target * caches as f64) as u64));
        page.bytes_of(&format!("{label} size:"), size, caches);
        page.bytes(&format!("{label} ghost size:"), ghosts);
    }

    page.section("ARC misc:", "");
    page.bytes_of("Uncompressed size:", s.uncompressed_size, s.compressed_size);
    page.hits("Blocks:", s.hash_elements);
    page.row("Rules for data:", None, &arc.rules_data);
    page.row("Rules for metadata:", None, &arc.rules_metadata);
    page.hits("Changes of rules:", s.mp_switches);
    page.hits("Memory throttles:", s.memory_throttle_count);
    page.hits("Deleted:", s.deleted);
    page.hits("Mutex misses:", s.mutex_miss);
    page.hits("Eviction skips:", s.evict_skip);
    page.bytes("L2 cached evictions:", s.evict_l2_cached);
    page.bytes("L2 eligible evictions:", s.evict_l2_eligible);
    page.bytes_of("L2 eligible MFU evictions:", s.evict_l2_eligible_mfu, s.evict_l2_eligible);
    page.bytes_of("L2 eligible MRU evictions:", s.evict_l2_eligible_mru, s.evict_l2_eligible);
    page.bytes("L2 ineligible evictions:", s.evict_l2_ineligible);
}

fn accesses(page: &mut Page, s: &ArcStats) {
    let kinds = [
        ("ARC demand data accesses:", [s.demand_data_hits, s.demand_data_iohits, s.demand_data_misses]),
        (
            "ARC demand metadata accesses:",
            [s.demand_metadata_hits, s.demand_metadata_iohits, s.demand_metadata_misses],
        ),
        (
            "ARC prefetch data accesses:",
            [s.prefetch_data_hits, s.prefetch_data_iohits, s.prefetch_data_misses],
        ),
        (
            "ARC prefetch metadata accesses:",
            [s.prefetch_metadata_hits, s.prefetch_metadata_iohits, s.prefetch_metadata_misses],
        ),
    ];
    let sum = |at: usize| kinds.iter().map(|(_, counted)| counted[at]).sum::<u64>();
    let all = [sum(0), sum(1), sum(2)];
    page.accesses("ARC total accesses:", all, None);
    let total = all.iter().sum();
    for (title, counted) in kinds {
        page.accesses(title, counted, Some(total));
    }

    page.section("ARC predictive prefetches:", &hits(s.predictive_prefetch));
    let useful = s.demand_hit_predictive_prefetch.min(s.predictive_prefetch);
    page.hits_of("Demand hits after predictive:", useful, s.predictive_prefetch);
    page.hits_of("Never demanded after predictive:", s.predictive_prefetch - useful, s.predictive_prefetch);

    let listed = s.mfu_hits + s.mru_hits + s.mfu_ghost_hits + s.mru_ghost_hits;
    page.section("ARC states hits of all accesses:", "");
    for (label, counted) in [
        ("Most frequently used (MFU):", s.mfu_hits),
        ("Most recently used (MRU):", s.mru_hits),
        ("Most frequently used (MFU) ghost:", s.mfu_ghost_hits),
        ("Most recently used (MRU) ghost:", s.mru_ghost_hits),
        ("Uncached:", s.uncached_hits),
    ] {
        page.hits_of(label, counted, total.max(listed.min(1)));
    }
}

fn second(page: &mut Page, s: &ArcStats) {
    let faults = s.l2_writes_error + s.l2_cksum_bad + s.l2_io_error;
    page.section("L2ARC status:", if faults == 0 { "HEALTHY" } else { "DEGRADED" });
    page.hits("Cache devices:", s.l2_ndev);
    page.hits("Low memory aborts:", s.l2_abort_lowmem);
    page.hits("Overwritten while being read:", s.l2_evict_reading);
    page.hits("Write errors:", s.l2_writes_error);
    page.hits("Bad checksums:", s.l2_cksum_bad);
    page.hits("Read errors:", s.l2_io_error);

    page.section("L2ARC size (adaptive):", &bytes(s.l2_size));
    page.bytes_of("Compressed:", s.l2_asize, s.l2_size);
    page.bytes_of("Header size:", s.l2_hdr_size, s.l2_size);
    page.bytes_of("MFU allocated size:", s.l2_mfu_asize, s.l2_asize);
    page.bytes_of("MRU allocated size:", s.l2_mru_asize, s.l2_asize);
    page.bytes_of("Prefetch allocated size:", s.l2_prefetch_asize, s.l2_asize);
    page.bytes_of("Data (buf_contents) allocated size:", s.l2_bufc_data_asize, s.l2_asize);
    page.bytes_of("Metadata (buf_contents) allocated size:", s.l2_bufc_metadata_asize, s.l2_asize);

    let asked = s.l2_hits + s.l2_misses;
    page.section("L2ARC breakdown:", &hits(asked));
    page.hits_of("Hit ratio:", s.l2_hits, asked);
    page.hits_of("Miss ratio:", s.l2_misses, asked);

    page.section("L2ARC I/O:", "");
    page.row("Reads:", None, &bytes(s.l2_read_bytes));
    page.row("Writes:", None, &bytes(s.l2_write_bytes));
    page.hits("Rounds of writing:", s.l2_feeds);

    page.section("L2ARC rebuild:", "");
    page.hits("Devices taken over:", s.l2_rebuild_success);
    page.hits("Devices begun afresh:", s.l2_rebuild_unsupported);
    page.hits("Blocks:", s.l2_rebuild_bufs);
    page.bytes("Size:", s.l2_rebuild_size);
    page.hits("Log blocks:", s.l2_rebuild_log_blks);
    page.hits("Log blocks in error:", s.l2_rebuild_io_errors + s.l2_rebuild_cksum_lb_errors);
}

fn object(arc: &Arc) -> String {
    let mut entries: Map<String, Value> =
        arc.stats.rows().into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    entries.insert("rules_data".to_owned(), json!(arc.rules_data));
    entries.insert("rules_metadata".to_owned(), json!(arc.rules_metadata));
    json::envelope("millpond arc-summary", "arcstats", entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_sections_and_divides_by_what_it_says() {
        let stats = ArcStats {
            memory_all_bytes: 16 << 30,
            c: 4 << 30,
            c_max: 8 << 30,
            size: 2 << 30,
            compressed_size: 1 << 30,
            demand_data_hits: 900,
            demand_data_misses: 100,
            predictive_prefetch: 40,
            demand_hit_predictive_prefetch: 30,
            mfu_hits: 600,
            meta: 1 << 30,
            ..ArcStats::default()
        };
        let arc = Arc { stats, rules_data: "twice-30".to_owned(), ..Arc::default() };
        let text = page(&arc, None);
        let row = |label: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(label));
            line.unwrap_or_else(|| panic!("{label} in {text}"))
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(row("Target size"), "Target size (adaptive): 50.0 % 4.0 GiB");
        assert_eq!(row("Current size"), "Current size: 25.0 % 2.0 GiB");
        assert_eq!(row("Compressed size"), "Compressed size: 50.0 % 1.0 GiB");
        assert_eq!(row("ARC demand data accesses"), "ARC demand data accesses: 100.0 % 1.0k");
        assert_eq!(row("Demand hits after predictive"), "Demand hits after predictive: 75.0 % 30");
        assert_eq!(row("Most frequently used (MFU):"), "Most frequently used (MFU): 60.0 % 600");
        assert_eq!(row("Rules for data"), "Rules for data: twice-30");
        assert_eq!(row("ARC prefetch data accesses"), "ARC prefetch data accesses: 0.0 % 0");
        assert!(!text.contains("L2ARC"), "there is none");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let with = Arc { stats: ArcStats { l2_ndev: 1, l2_hits: 3, l2_misses: 1, ..stats }, ..arc };
        let sections = [ArcSection::Arc, ArcSection::Archits, ArcSection::L2arc];
        assert!(page(&with, None).contains("L2ARC status:"), "{}", page(&with, None));
        assert_eq!(sections.map(|section| page(&with, Some(section))).join("\n"), page(&with, None));
        assert!(raw(&with.stats).lines().any(|line| line.split_whitespace().eq(["l2_hits", "3"])));
    }

    /// With a large cache device in a small container it was 132 % of the size, and several hundred where memory was short.
    #[test]
    fn the_parts_of_the_breakdown_are_no_more_than_all() {
        let stats = ArcStats {
            size: 4 << 30,
            compressed_size: 3 << 30,
            hdr_size: 1 << 30,
            l2_hdr_size: 2 << 30,
            ..ArcStats::default()
        };
        let text = page(&Arc { stats, ..Arc::default() }, None);
        let (_, breakdown) = text.split_once("ARC structural breakdown (current size):").unwrap();
        let (breakdown, _) = breakdown.split_once("\n\n").unwrap();
        assert_eq!(breakdown.lines().next().unwrap().trim(), "6.0 GiB");
        let shares = breakdown.lines().filter_map(|line| line.split_once(" %")?.0.split(' ').next_back());
        let shares: Vec<f64> = shares.map(|share| share.parse().unwrap()).collect();
        assert_eq!(shares, [50.0, 0.0, 16.7, 33.3], "{breakdown}");
    }

    #[test]
    fn numbers_are_as_arc_summary_has_them() {
        assert_eq!([999, 1000, 1_234_567].map(hits), ["999", "1.0k", "1.2M"]);
        assert_eq!([512, 1536, 3 << 30].map(bytes), ["512 Bytes", "1.5 KiB", "3.0 GiB"]);
        assert_eq!([f64::NAN, 0.0, 0.01, 12.34].map(share), ["n/a", "0.0 %", "< 0.1 %", "12.3 %"]);
    }
}
