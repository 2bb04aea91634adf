//! `millpond verify`: every allocated block, read from every place it is in.
//!
//! Exit code 0 if everything is as it was written, in every copy; 1 if anything is not.

use std::{
    process::ExitCode,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use serde_json::{Value, json};
use server::pool::{
    Pool,
    status::human,
    verify::{Count, Kind, Progress, Report, SpaceReport, verify},
};

use crate::{
    args::Verify,
    context::{Context, FAILED, foreign, print},
    progress::{Amount, watch},
    table::{Column, render},
};

/// Problems listed; the rest is counted. `-j` has all that are kept.
const LISTED: usize = 100;

pub(crate) async fn run(args: Verify, context: &Context) -> anyhow::Result<ExitCode> {
    let pool = context.open_pool(&args.search.search, &args.pool, foreign(args.force), &args.rewind).await?;
    let progress = Arc::new(Progress::default());
    let amount = || Amount { done: progress.done.load(Relaxed), total: progress.total.load(Relaxed) };
    let report = watch(&format!("verify {}", pool.name()), amount, verify(&pool, &progress)).await;
    // What is verified is the last transaction group; what a crash left beside it is not.
    let notes = server::logs::unreplayed(&pool).await;
    print(&if args.json { in_json(&pool, &report, &notes) } else { in_words(&pool, &report, &notes) })?;
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn in_words(pool: &Pool, report: &Report, notes: &[String]) -> String {
    let total = report.counts.total();
    let row = |name: &str, count: &Count| {
        let percent = count.asize as f64 * 100.0 / total.asize.max(1) as f64;
        let mut cells = vec![count.blocks.to_string()];
        cells.extend([count.lsize, count.psize, count.asize].map(human));
        cells.extend([format!("{percent:.2}"), name.to_owned()]);
        cells
    };
    let mut rows: Vec<Vec<String>> =
        report.counts.rows().iter().map(|(kind, count)| row(kind.name(), count)).collect();
    rows.push(row("Total", &total));
    let mut columns: Vec<Column> =
        ["BLOCKS", "LSIZE", "PSIZE", "ASIZE", "%"].iter().map(|header| Column::right(header, 5)).collect();
    columns.push(Column::left("TYPE"));
    let mut text = render(&columns, &rows, false);

    text.push('\n');
    for problem in report.problems.iter().take(LISTED) {
        text.push_str(&format!("{}: {problem}\n", problem.kind.word()));
    }
    match report.problems_total.saturating_sub(LISTED as u64) {
        0 => {}
        more => text.push_str(&format!("… and {more} more problems\n")),
    }
    notes.iter().for_each(|note| text.push_str(&format!("log: {note}\n")));
    match &report.space {
        SpaceReport::Skipped(why) => text.push_str(&format!("space: not compared: {why}\n")),
        SpaceReport::Compared(tops) => {
            for top in tops {
                let name = pool
                    .tree()
                    .top(top.vdev)
                    .map_or_else(|| top.vdev.to_string(), |vdev| vdev.display_name());
                if top.leaked > 0 {
                    text.push_str(&format!(
                        "space: {name}: {} bytes are allocated and belong to nothing\n",
                        top.leaked
                    ));
                }
                if top.unallocated > 0 {
                    text.push_str(&format!(
                        "space: {name}: {} bytes are in use and not allocated\n",
                        top.unallocated
                    ));
                }
            }
        }
    }
    if report.thin > 0 {
        text.push_str(&format!(
            "redundancy: {} blocks have fewer copies than they should: devices are missing or outdated (see zpool status)\n",
            report.thin
        ));
    }
    let seconds = report.elapsed.as_secs_f64();
    let rate = human((total.asize as f64 / seconds.max(0.001)) as u64);
    text.push_str(&format!(
        "{}: txg {}: {} blocks, {} allocated, in {seconds:.1} s ({rate}/s)\n{}: {}\n",
        pool.name(),
        pool.uberblock().txg,
        total.blocks,
        human(total.asize),
        pool.name(),
        verdict(report)
    ));
    text
}

fn verdict(report: &Report) -> String {
    if report.is_clean() {
        return "all right: every copy of every block verifies".to_owned();
    }
    let mut parts = Vec::new();
    for (kind, word) in [
        (Kind::Lost, "blocks are lost"),
        (Kind::Malformed, "structures are malformed"),
        (Kind::Space, "blocks are in the wrong space"),
        (Kind::Repairable, "blocks have bad copies and are intact"),
    ] {
        match report.count(kind) {
            0 => {}
            count => parts.push(format!("{count} {word}")),
        }
    }
    if report.leaked() > 0 {
        parts.push("space is leaked".to_owned());
    }
    if report.thin > 0 {
        parts.push("redundancy is reduced".to_owned());
    }
    let data = if report.is_intact() { "all data can be read" } else { "DATA IS LOST" };
    format!("{data}: {}", parts.join(", "))
}

fn count(count: &Count) -> Value {
    json!({ "blocks": count.blocks, "lsize": count.lsize, "psize": count.psize, "asize": count.asize })
}

fn in_json(pool: &Pool, report: &Report, notes: &[String]) -> String {
    let types: Vec<Value> = report
        .counts
        .levels()
        .map(|(row, level, counted)| {
            let mut object = count(&counted);
            object["type"] = json!(row.name());
            object["level"] = json!(level);
            object
        })
        .collect();
    let problems: Vec<Value> = report
        .problems
        .iter()
        .map(|problem| {
            let evidence: Vec<Value> = problem
                .evidence
                .iter()
                .map(|one| json!({ "device": one.device, "offset": one.offset, "fault": one.fault }))
                .collect();
            json!({
                "kind": problem.kind.word(),
                "dataset": problem.location.dataset,
                "path": problem.location.path,
                "offset": problem.location.offset,
                "objset": problem.at.map(|at| at.objset),
                "object": problem.at.map(|at| at.object),
                "level": problem.at.map(|at| at.level),
                "blkid": problem.at.map(|at| at.blkid),
                "what": problem.what,
                "evidence": evidence,
            })
        })
        .collect();
    let space = match &report.space {
        SpaceReport::Skipped(why) => json!({ "skipped": why }),
        SpaceReport::Compared(tops) => {
            let device = |top: &server::pool::verify::TopClaims| {
                json!({
                    "vdev": top.vdev, "allocated": top.allocated, "claimed": top.claimed,
                    "leaked": top.leaked, "unallocated": top.unallocated,
                })
            };
            Value::Array(tops.iter().map(device).collect())
        }
    };
    let all = json!({
        "pool": pool.name(),
        "guid": pool.guid().to_string(),
        "txg": pool.uberblock().txg,
        "clean": report.is_clean(),
        "intact": report.is_intact(),
        "seconds": report.elapsed.as_secs_f64(),
        "total": count(&report.counts.total()),
        "types": types,
        "problems_total": report.problems_total,
        "problems": problems,
        "space": space,
        "thin_blocks": report.thin,
        "logs": notes,
    });
    format!("{all}\n")
}
