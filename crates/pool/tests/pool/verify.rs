//! `verify` against zdb: the same blocks and bytes per object type, and no problem on sound pools; damaged
//! pools verify with their damage named.
//!
//! zdb's answers are kept in `tests/zdb/NAME.txt` (its table, and nothing else of its output), because asking
//! takes seconds for each pool. `MILLPOND_ZDB=all` asks again for every fixture and rewrites them; otherwise a
//! handful of pools is asked live.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use pool::{
    import::open,
    verify::{Count, Kind, Progress, Report, SpaceReport, verify},
};

use crate::support::{anyhow, candidate};

/// Asked live in every run.
const LIVE: [&str; 2] = ["single", "raidz1x3"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/zdb/{name}.txt"))
}

/// Blocks, logical, physical and allocated bytes by zdb's name of the type; none where zdb prints dashes, which
/// it does for types that take no space.
type Table = BTreeMap<String, Option<Count>>;

fn parse(text: &str) -> Table {
    let mut table = Table::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
        let [blocks, lsize, psize, asize, _, _, _, name] = fields[..] else { continue };
        let numbers: Vec<u64> =
            [blocks, lsize, psize, asize].iter().filter_map(|field| field.parse().ok()).collect();
        match numbers[..] {
            [blocks, lsize, psize, asize] => {
                table.insert(name.to_owned(), Some(Count { blocks, lsize, psize, asize }))
            }
            _ if blocks == "-" => table.insert(name.to_owned(), None),
            _ => None,
        };
    }
    table
}

/// The lines of zdb's output that [`parse`] reads.
fn ask_zdb(dir: &Path, pool: &str) -> Option<String> {
    let zdb = fixtures::tool("zdb")?;
    let output =
        Command::new(zdb).args(["-e", "-p"]).arg(dir).args(["-Pbbcc", pool]).output().expect("zdb starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let mut kept = String::new();
    for line in text.lines().filter(|line| line.split('\t').count() == 8) {
        writeln!(kept, "{line}").unwrap();
    }
    assert!(!kept.is_empty(), "zdb -Pbbcc {pool}: {}", String::from_utf8_lossy(&output.stderr));
    Some(kept)
}

async fn check(name: &str) -> Option<Report> {
    let fixture = fixtures::try_pool(name)?;
    let pool =
        open(&candidate(&fixture.dir).await, &anyhow()).await.unwrap_or_else(|e| panic!("{name}: {e}"));
    let progress = Arc::new(Progress::default());
    let report = verify(&pool, &progress).await;
    for problem in report.problems.iter().take(20) {
        println!("{name}: {problem}");
    }
    Some(report)
}

/// What differs, a line each.
fn compare(name: &str, report: &Report, zdb: &Table) -> String {
    let mut ours: BTreeMap<String, Count> =
        report.counts.rows().into_iter().map(|(row, count)| (row.name().to_owned(), count)).collect();
    ours.insert("Total".to_owned(), report.counts.total());
    let mut differences = String::new();
    for (row, count) in &ours {
        match zdb.get(row) {
            Some(Some(theirs)) if theirs == count => {}
            Some(None) if count.asize == 0 => {}
            theirs => writeln!(differences, "{name}: {row}: {count:?}, zdb has {theirs:?}").unwrap(),
        }
    }
    for (row, theirs) in zdb {
        if theirs.is_some() && !ours.contains_key(row) && row != "Metadata Total" {
            writeln!(differences, "{name}: {row}: nothing, zdb has {theirs:?}").unwrap();
        }
    }
    differences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_agree_with_zdb() {
    let all = std::env::var("MILLPOND_ZDB").is_ok_and(|value| value == "all");
    let mut failures = String::new();
    for name in fixtures::ALL {
        // zdb 2.3 does not open pools of 2.4's feature, and `zdb -P` aborts on pools with removed devices.
        if ["gang-dynamic", "removal"].contains(&name) {
            continue;
        }
        let Some(report) = check(name).await else { continue };
        let fixture = fixtures::try_pool(name).unwrap();
        if (all || LIVE.contains(&name))
            && let Some(live) = ask_zdb(&fixture.dir, &fixture.manifest.pool)
        {
            if all {
                std::fs::write(golden(name), &live).unwrap();
            }
            failures += &compare(name, &report, &parse(&live));
        }
        let kept = std::fs::read_to_string(golden(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        failures += &compare(name, &report, &parse(&kept));
    }
    assert!(failures.is_empty(), "{failures}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sound_pools_have_no_problem_and_every_byte_is_accounted_for() {
    for name in fixtures::ALL {
        if ["corrupt-mirror2", "corrupt-raidz2x6"].contains(&name) {
            continue;
        }
        let Some(report) = check(name).await else { continue };
        assert_eq!(report.problems_total, 0, "{name}");
        let has_missing = ["degraded-", "missing-"].iter().any(|prefix| name.starts_with(prefix));
        assert_eq!(report.thin > 0, has_missing, "{name}: {} blocks are thin", report.thin);
        match &report.space {
            SpaceReport::Compared(tops) => {
                for top in tops {
                    assert_eq!((top.leaked, top.unallocated), (0, 0), "{name}: {top:?}");
                }
            }
            SpaceReport::Skipped(why) => panic!("{name}: {why}"),
        }
        assert_eq!(report.is_clean(), !has_missing, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_corruption_is_found_named_and_harmless() {
    for name in ["corrupt-mirror2", "corrupt-raidz2x6"] {
        let Some(report) = check(name).await else { continue };
        assert!(report.problems_total > 0, "{name}");
        assert!(report.is_intact() && !report.is_clean(), "{name}");
        let fixture = fixtures::try_pool(name).unwrap();
        for problem in &report.problems {
            assert_eq!(problem.kind, Kind::Repairable, "{name}: {problem}");
            assert!(!problem.evidence.is_empty(), "{name}: {problem}");
            // Each place that is named was really overwritten.
            for evidence in &problem.evidence {
                let hit = fixture.manifest.damage.iter().any(|(disk, start, len)| {
                    let image = &fixture.manifest.images[*disk].file;
                    let at = evidence.offset + (4 << 20);
                    evidence.device.ends_with(image.as_str()) && at < start + len && at + (16 << 20) > *start
                });
                assert!(hit, "{name}: {problem}");
            }
        }
    }
}
