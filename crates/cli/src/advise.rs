//! `millpond advise`: what more memory or a cache device would be worth, in sentences people can act on.
//!
//! The daemon follows a sample of what is used ([`server::advice`]); this prints. Every ratio that is expected has what it
//! may be off by beside it, a dataset's own of now where that is more than a few points (that of everything is counted). The
//! ghost lists, which know only about twice the memory there is, are quoted as a second witness.

use std::{fmt::Write as _, process::ExitCode};

use serde_json::{Map, Value, json};
use server::{
    api::{
        DatasetQuery,
        advice::{AdviceList, Named, Outlook, Point},
    },
    pool::props::value::{bytes, count},
};

use crate::{
    args::Advise,
    context::{Context, FAILED, print},
    json,
    table::{Column, render},
    zpool::finish,
};

/// Fewer sampled accesses than this prove nothing.
const ENOUGH: f64 = 1000.0;
/// What the ratio of now may be off by without a word.
const A_FEW: f64 = 0.05;

pub(crate) async fn run(args: Advise, context: &Context) -> anyhow::Result<ExitCode> {
    let Some(daemon) = context
        .serving_daemon("advise", "what is used is seen by the process that serves the volumes")
        .await?
    else {
        return Ok(ExitCode::from(FAILED));
    };
    let mut failures = Vec::new();
    for name in &args.names {
        let query = DatasetQuery { name: Some(name.clone()), depth: Some(0), ..DatasetQuery::default() };
        match daemon.datasets(&query).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {
                failures
                    .push(format!("cannot advise on '{name}': there is no such pool, file system or volume"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if !failures.is_empty() {
        return Ok(finish(&failures));
    }
    let list = daemon.advice().await?;
    if let Some(why) = list.refused.as_ref().filter(|_| !args.json) {
        say!("cannot advise: {why}");
        return Ok(ExitCode::from(FAILED));
    }
    failures.extend(list.problems.iter().cloned());
    let all = || list.pools.iter().chain(&list.datasets);
    for name in &args.names {
        if !all().any(|named| named.name == *name) {
            failures.push(format!("cannot advise on '{name}': too little of it was used lately"));
        }
    }
    let chosen: Vec<&Named> =
        all().filter(|named| args.names.is_empty() || args.names.contains(&named.name)).collect();
    print(&match args.json {
        true => object(&list, &chosen, &failures),
        false => text(&list, &chosen, &args),
    })?;
    Ok(finish(&failures))
}

fn text(list: &AdviceList, chosen: &[&Named], args: &Advise) -> String {
    let mut out = String::new();
    let Some(whole) = list.whole.as_ref().filter(|whole| whole.accesses >= ENOUGH) else {
        return format!(
            "{} of {} sampled accesses so far: too few to judge by\n",
            list.whole.as_ref().map_or(0.0, |whole| whole.accesses).round(),
            ENOUGH
        );
    };
    if args.names.is_empty() {
        line(
            &mut out,
            format_args!(
                "{} of memory for data: hit ratio {} ({} sampled accesses, of one block in {})",
                bytes(list.memory),
                percent(whole.hit_ratio),
                count(whole.accesses as u64),
                list.one_in
            ),
        );
        if list.second > 0 {
            line(
                &mut out,
                format_args!(
                    "there is {} of cache device; SSD lines are about one instead of it",
                    bytes(list.second)
                ),
            );
        }
        sentences(&mut out, list.memory, list.second, whole);
        line(
            &mut out,
            format_args!(
                "ghost lists: {} of all accesses missed what had just been evicted; twice the memory is expected to hit {} more",
                percent(list.ghosts),
                percent((more(whole, list.memory, 2.0) - whole.hit_ratio).max(0.0))
            ),
        );
        if args.verbose {
            curve(&mut out, whole);
        }
    }
    // With one pool and one dataset the lines would repeat each other.
    let pools = list.pools.len();
    let shown = chosen.iter().filter(|named| {
        !args.names.is_empty() || pools > 1 || list.pools.iter().all(|pool| pool.name != named.name)
    });
    for named in shown {
        let share = named.outlook.accesses / whole.accesses.max(1.0);
        // It is the sample's, in which a few hot blocks are or are not.
        let error = match named.outlook.error > A_FEW {
            true => format!(" ± {}", points(named.outlook.error)),
            false => String::new(),
        };
        line(
            &mut out,
            format_args!(
                "\n{}: {} of the accesses, hit ratio {}{error}",
                named.name,
                percent(share.min(1.0)),
                percent(named.outlook.hit_ratio)
            ),
        );
        sentences(&mut out, list.memory, named.second, &named.outlook);
        if args.verbose {
            curve(&mut out, &named.outlook);
        }
    }
    if args.names.is_empty() {
        line(
            &mut out,
            format_args!(
                "\nthe samples take {} of memory and {:.2} % of one processor",
                bytes(list.cost_bytes),
                list.cost_cpu * 100.0
            ),
        );
    }
    out.trim_start_matches('\n').to_owned()
}

/// `+8G RAM: hit ratio 71 → 83 % ± 2`
fn sentences(out: &mut String, memory: u64, second: u64, outlook: &Outlook) {
    let error = |point: &Point| points(error_of(outlook, point));
    let now = whole_percent(outlook.hit_ratio);
    for point in &outlook.memory {
        let then = whole_percent(point.hit_ratio);
        if point.size == memory {
            continue;
        }
        let (sign, change) = match point.size > memory {
            true => ('+', point.size - memory),
            false => ('-', memory - point.size),
        };
        let (change, error) = (bytes(change), error(point));
        line(out, format_args!("  {sign}{change} RAM: hit ratio {now} → {then} % ± {error}"));
    }
    // What is there already is no advice, and what would replace it has to be larger.
    for point in outlook.second.iter().filter(|point| point.size > second) {
        let then = whole_percent(point.hit_ratio);
        let useless = if then <= now { ": buys nothing" } else { "" };
        let (size, error) = (bytes(point.size), error(point));
        line(out, format_args!("  +{size} SSD: hit ratio {now} → {then} % ± {error}{useless}"));
    }
}

/// What one size may be off by: smaller caches are known from fewer blocks.
fn error_of(outlook: &Outlook, point: &Point) -> f64 {
    outlook.error.max(point.error)
}

/// What is expected of `times` the memory there is.
fn more(outlook: &Outlook, memory: u64, times: f64) -> f64 {
    let wanted = memory as f64 * times;
    let off = |point: &&Point| (point.size as f64 - wanted).abs() as u64;
    outlook.memory.iter().min_by_key(off).map_or(outlook.hit_ratio, |point| point.hit_ratio)
}

/// All sizes, with what LRU would do.
fn curve(out: &mut String, outlook: &Outlook) {
    let mut rows = Vec::new();
    for (what, points) in
        [("memory", &outlook.memory), ("memory + SSD", &outlook.second), ("memory, LRU", &outlook.lru)]
    {
        for point in points {
            rows.push(vec![
                what.to_owned(),
                bytes(point.size),
                format!("{:.1}%", point.hit_ratio * 100.0),
                if what == "memory, LRU" {
                    "-".to_owned()
                } else {
                    format!("{:.1}", error_of(outlook, point) * 100.0)
                },
            ]);
        }
    }
    let columns =
        [Column::left("OF"), Column::right("SIZE", 5), Column::right("HIT", 6), Column::right("±", 4)];
    for row in render(&columns, &rows, false).lines() {
        line(out, format_args!("    {row}"));
    }
}

/// An error as it is printed.
fn points(error: f64) -> f64 {
    (error * 100.0).ceil().max(1.0)
}

fn whole_percent(ratio: f64) -> f64 {
    (ratio * 100.0).round()
}

fn percent(ratio: f64) -> String {
    let percent = ratio * 100.0;
    if percent > 0.0 && percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes any text");
    out.push('\n');
}

fn object(list: &AdviceList, chosen: &[&Named], failures: &[String]) -> String {
    let mut entries = Map::new();
    let mut whole = json!({
        "memory_bytes": list.memory,
        "cache_device_bytes": list.second,
        "one_in": list.one_in,
        "cost_bytes": list.cost_bytes,
        "cost_cpu": list.cost_cpu,
        "ghost_hit_ratio": list.ghosts,
        "outlook": list.whole,
    });
    if let (Some(why), Value::Object(whole)) = (&list.refused, &mut whole) {
        whole.insert("refused".to_owned(), json!(why));
    }
    entries.insert("arc".to_owned(), whole);
    let named: Map<String, Value> =
        chosen.iter().map(|named| (named.name.clone(), json!(named.outlook))).collect();
    entries.insert("datasets".to_owned(), Value::Object(named));
    json::partial("millpond advise", "advice", entries, failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(verbose: bool, names: &[&str]) -> Advise {
        Advise { verbose, json: false, names: names.iter().map(|name| (*name).to_owned()).collect() }
    }

    fn outlook(accesses: f64) -> Outlook {
        let point = |size: u64, hit_ratio: f64| Point {
            size: size << 30,
            hit_ratio,
            error: if size < 8 { 0.031 } else { 0.018 },
        };
        Outlook {
            accesses,
            hit_ratio: 0.71,
            error: 0.018,
            memory: vec![point(4, 0.6), point(8, 0.71), point(16, 0.83)],
            second: vec![point(128, 0.92), point(64, 0.71)],
            lru: vec![point(8, 0.68)],
        }
    }

    fn list() -> AdviceList {
        let named = |name: &str, accesses: f64| Named {
            name: name.to_owned(),
            second: 0,
            outlook: outlook(accesses),
        };
        AdviceList {
            memory: 8 << 30,
            one_in: 256,
            cost_bytes: 12 << 20,
            cost_cpu: 0.0012,
            whole: Some(outlook(20_000.0)),
            ghosts: 0.09,
            pools: vec![named("tank", 20_000.0)],
            datasets: vec![named("tank/vm1", 8000.0)],
            ..AdviceList::default()
        }
    }

    #[test]
    fn the_sentences_are_those_that_people_can_act_on() {
        let list = list();
        let chosen: Vec<&Named> = list.pools.iter().chain(&list.datasets).collect();
        let said = text(&list, &chosen, &args(false, &[]));
        for wanted in [
            "8G of memory for data: hit ratio 71 % (19.5K sampled accesses, of one block in 256)\n",
            "\n  +8G RAM: hit ratio 71 → 83 % ± 2\n",
            "\n  -4G RAM: hit ratio 71 → 60 % ± 4\n",
            "\n  +128G SSD: hit ratio 71 → 92 % ± 2\n",
            "\n  +64G SSD: hit ratio 71 → 71 % ± 2: buys nothing\n",
            "ghost lists: 9.0 % of all accesses missed what had just been evicted; twice the memory is expected to hit 12 % more\n",
            "\ntank/vm1: 40 % of the accesses, hit ratio 71 %\n",
            "the samples take 12M of memory and 0.12 % of one processor\n",
        ] {
            assert!(said.contains(wanted), "{wanted:?} in {said}");
        }
        assert!(!said.contains("\ntank: "), "the one pool is everything: {said}");
        let verbose = text(&list, &chosen, &args(true, &[]));
        assert!(verbose.contains("memory, LRU"), "{verbose}");
    }

    /// "everything: 91 %" stood beside "100 % of the accesses, hit ratio 0 %" of the one volume that there was: its hot blocks
    /// were not in the sample, and only the lines below said how far that may be off.
    #[test]
    fn a_ratio_of_now_that_is_far_off_says_so() {
        for (error, wanted) in [(0.905, "hit ratio 71 % ± 91\n"), (0.047, "hit ratio 71 %\n")] {
            let outlook = Outlook { error, ..outlook(8000.0) };
            let datasets = vec![Named { name: "tank/vm1".into(), second: 0, outlook }];
            let list = AdviceList { datasets, ..list() };
            let chosen: Vec<&Named> = list.datasets.iter().collect();
            let said = text(&list, &chosen, &args(false, &["tank/vm1"]));
            let wanted = format!("tank/vm1: 40 % of the accesses, {wanted}");
            assert!(said.starts_with(&wanted), "{wanted:?} in {said}");
        }
    }

    #[test]
    fn who_has_a_cache_device_is_told_of_larger_ones_only() {
        let list = AdviceList { second: 64 << 30, ..list() };
        let said = text(&list, &[], &args(false, &[]));
        assert!(
            said.contains("\nthere is 64G of cache device; SSD lines are about one instead of it\n"),
            "{said}"
        );
        assert!(said.contains("+128G SSD") && !said.contains("+64G SSD"), "{said}");
    }

    /// A pool without a cache device was told of devices larger than another pool's, or of none.
    #[test]
    fn a_pool_is_told_of_devices_larger_than_its_own() {
        let named =
            |name: &str, second: u64| Named { name: name.to_owned(), second, outlook: outlook(8000.0) };
        let list = AdviceList {
            second: 64 << 30,
            pools: vec![named("fast", 64 << 30), named("slow", 0)],
            datasets: vec![named("slow/vm1", 0)],
            ..list()
        };
        let chosen: Vec<&Named> = list.pools.iter().chain(&list.datasets).collect();
        let said = text(&list, &chosen, &args(false, &[]));
        let of = |name: &str| said.split("\n\n").find(|part| part.starts_with(&format!("{name}: "))).unwrap();
        assert!(of("fast").contains("+128G SSD") && !of("fast").contains("+64G SSD"), "{said}");
        assert!(of("slow").contains("+64G SSD") && of("slow/vm1").contains("+64G SSD"), "{said}");
    }

    #[test]
    fn nothing_is_said_of_what_nobody_used() {
        let list = AdviceList { whole: Some(outlook(12.0)), ..list() };
        assert_eq!(
            text(&list, &[], &args(false, &[])),
            "12 of 1000 sampled accesses so far: too few to judge by\n"
        );
    }
}
