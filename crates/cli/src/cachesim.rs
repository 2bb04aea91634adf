//! `millpond cachesim`: what a cache of this size would have made of that trace.
//!
//! Runs the product's own replacement policies, not a model of them. All policies and sizes asked for are played in
//! one pass; sizes in permille of the footprint need a pass before it that counts distinct blocks. Nothing of the
//! trace is kept, so it may be longer than memory.
//!
//! With `--l2` a cache device stands below each cache: it gets what the cache evicts, and decides by the rules of the
//! product what of it to write and what to keep.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::unix::fs::FileTypeExt as _,
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use anyhow::{Context as _, anyhow, bail};
use cache::{
    Index, Policy, SecondTier,
    trace::{BLOCK_BYTES, HEADER, Request, Score, Simulation},
};
use serde_json::json;
use server::pool::status::human;

use crate::{
    args::Cachesim,
    context::{Context, print},
    progress::{Amount, watch},
    table::{Column, render},
};

/// A frame of zstd begins with this, whatever the file is called.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of a line: four numbers need fewer than 70.
const LINE_BYTES_MAX: u64 = 4096;
/// Sizes looked at if none is given, in permille of the footprint.
const USUAL_PERMILLE: [u64; 7] = [1, 3, 10, 30, 100, 200, 400];

pub(crate) async fn run(args: Cachesim, context: &Context) -> anyhow::Result<ExitCode> {
    if let Some(bad) = args.policy.iter().find(|name| cache::policy_named(name, 1).is_none()) {
        let known = cache::POLICIES.join(", ");
        return Err(context.usage(&["cachesim"], &format!("no policy '{bad}': there are {known}")).into());
    }
    let name = args.trace.display().to_string();
    let json = args.json;
    let progress = Arc::new(Progress::default());
    let seen = progress.clone();
    let work = tokio::task::spawn_blocking(move || simulate(&args, &progress));
    let amount = || Amount { done: seen.done.load(Relaxed), total: seen.total.load(Relaxed) };
    let results = watch(&format!("cachesim {name}"), amount, work).await??;
    print(&if json { in_json(&results) } else { in_words(&results) })?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes of the file read, of all passes.
#[derive(Debug, Default)]
struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

/// One policy at one size.
#[derive(Debug)]
struct Outcome {
    policy: String,
    capacity: u64,
    score: Score,
    /// What the policy allocated at the end.
    memory: usize,
    /// Of a cache device below it: blocks it may hold, blocks written to it.
    second: Option<(u64, u64)>,
}

fn simulate(args: &Cachesim, progress: &Arc<Progress>) -> anyhow::Result<Vec<Outcome>> {
    let permille: &[u64] = match (args.size.is_empty(), args.permille.is_empty()) {
        (true, true) => &USUAL_PERMILLE,
        _ => &args.permille,
    };
    let metadata =
        std::fs::metadata(&args.trace).with_context(|| format!("cannot open '{}'", args.trace.display()))?;
    let is_relative = !permille.is_empty() || !args.l2_permille.is_empty();
    let kind = metadata.file_type();
    if is_relative && (kind.is_fifo() || kind.is_char_device()) {
        bail!(
            "{}: sizes in thousandths of the footprint take two passes, and this can be read only once: \
             give a file, or sizes in blocks (--size, --l2)",
            args.trace.display()
        );
    }
    let passes = if is_relative { 2 } else { 1 };
    progress.total.store(metadata.len().saturating_mul(passes), Relaxed);

    let (mut sizes, mut devices) = (args.size.clone(), args.l2.clone());
    if is_relative {
        let footprint = footprint(&args.trace, progress)?;
        let part = |permille: &u64| (footprint * permille / 1000).max(1);
        sizes.extend(permille.iter().map(part));
        devices.extend(args.l2_permille.iter().map(part));
    }
    let devices: Vec<Option<u64>> =
        if devices.is_empty() { vec![None] } else { devices.into_iter().map(Some).collect() };
    let mut runs: Vec<(String, Simulation<Box<dyn Policy>>)> = Vec::new();
    for size in sizes {
        for name in &args.policy {
            for device in &devices {
                let policy = cache::policy_named(name, size).ok_or_else(|| anyhow!("no policy '{name}'"))?;
                let simulation = match device {
                    Some(blocks) => Simulation::with_second(policy, SecondTier::new(*blocks)),
                    None => Simulation::new(policy),
                };
                runs.push((name.clone(), simulation));
            }
        }
    }
    for_each_request(&args.trace, progress, |request| {
        runs.iter_mut().for_each(|(_, simulation)| simulation.request(request));
    })?;
    Ok(runs
        .into_iter()
        .map(|(policy, simulation)| Outcome {
            policy,
            capacity: simulation.policy().capacity(),
            score: simulation.score(),
            memory: simulation.policy().memory(),
            second: simulation.second().map(|second| (second.capacity(), second.written().0)),
        })
        .collect())
}

/// Distinct blocks of a trace.
fn footprint(trace: &Path, progress: &Arc<Progress>) -> anyhow::Result<u64> {
    let mut blocks = Index::default();
    for_each_request(trace, progress, |request| {
        for block in request.blocks() {
            blocks.insert(block, 0);
        }
    })?;
    Ok(blocks.len() as u64)
}

/// Reads a trace from its first request to its last.
fn for_each_request(
    trace: &Path,
    progress: &Arc<Progress>,
    mut each: impl FnMut(Request),
) -> anyhow::Result<()> {
    let mut lines = open(trace, progress).with_context(|| format!("cannot open '{}'", trace.display()))?;
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let at = || format!("{}: line {number}", trace.display());
        let read = (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).with_context(at)?;
        if read == 0 {
            if number == 1 {
                bail!("{}: the file is empty: the first line of a trace is '{HEADER}'", trace.display());
            }
            break;
        }
        let text = str::from_utf8(&line).map_err(|_| anyhow!("{}: this is not text", at()))?;
        if number == 1 {
            if text.trim_end() != HEADER {
                bail!("{}: the first line of a trace is '{HEADER}'", at());
            }
            continue;
        }
        each(Request::parse(text).with_context(at)?);
    }
    Ok(())
}

/// The text of a trace, decompressed if it is compressed.
fn open(trace: &Path, progress: &Arc<Progress>) -> io::Result<Box<dyn BufRead>> {
    let mut file =
        BufReader::with_capacity(1 << 16, Counted { file: File::open(trace)?, progress: progress.clone() });
    if file.fill_buf()?.starts_with(&ZSTD_MAGIC) {
        return Ok(Box::new(BufReader::with_capacity(1 << 16, zstd::Decoder::with_buffer(file)?)));
    }
    Ok(Box::new(file))
}

/// A file whose reading is seen in the progress.
struct Counted {
    file: File,
    progress: Arc<Progress>,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buf)?;
        self.progress.done.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

/// One object a line, one line for each policy and size.
fn in_json(results: &[Outcome]) -> String {
    let mut text = String::new();
    for Outcome { policy, capacity, score, memory, second } in results {
        let mut object = json!({
            "policy": policy,
            "capacity_blocks": capacity,
            "requests": score.requests,
            "accesses": score.accesses,
            "block_misses": score.block_misses,
            "block_miss_ratio": score.block_miss_ratio(),
            "request_miss_ratio": score.request_miss_ratio(),
            "byte_miss_ratio": score.byte_miss_ratio(),
            "policy_bytes": memory,
        });
        if let (Some((blocks, written)), Some(object)) = (second, object.as_object_mut()) {
            for (name, value) in [
                ("l2_capacity_blocks", json!(blocks)),
                ("l2_hits", json!(score.second_hits)),
                ("l2_hit_ratio", json!(score.block_miss_ratio() - score.both_miss_ratio())),
                ("l2_written_blocks", json!(written)),
                ("both_miss_ratio", json!(score.both_miss_ratio())),
            ] {
                object.insert(name.to_owned(), value);
            }
        }
        text.push_str(&object.to_string());
        text.push('\n');
    }
    text
}

fn in_words(results: &[Outcome]) -> String {
    let percent = |ratio: f64| format!("{:.2}%", ratio * 100.0);
    let rows: Vec<Vec<String>> = results
        .iter()
        .map(|Outcome { policy, capacity, score, second, .. }| {
            let mut row = vec![
                policy.clone(),
                capacity.to_string(),
                human(capacity.saturating_mul(BLOCK_BYTES)),
                score.block_misses.to_string(),
                percent(score.block_miss_ratio()),
                percent(score.request_miss_ratio()),
                percent(score.byte_miss_ratio()),
            ];
            if let Some((blocks, written)) = second {
                let writes = *written as f64 / score.accesses.max(1) as f64;
                row.extend([
                    blocks.to_string(),
                    score.second_hits.to_string(),
                    percent(score.both_miss_ratio()),
                    format!("{writes:.3}"),
                ]);
            }
            row
        })
        .collect();
    let mut columns = vec![Column::left("POLICY")];
    columns.extend(
        ["BLOCKS", "SIZE", "MISSES", "MISS", "REQUESTS", "BYTES"].map(|header| Column::right(header, 6)),
    );
    let with_second = results.iter().any(|outcome| outcome.second.is_some());
    if with_second {
        columns.extend(["L2", "L2HITS", "BOTH", "WRITES"].map(|header| Column::right(header, 6)));
    }
    let mut text = render(&columns, &rows, false);
    if let Some(Outcome { score, .. }) = results.first() {
        text.push_str(&format!(
            "\n{} requests, {} block accesses. MISS of these, REQUESTS with a missed block, BYTES in missed blocks\n",
            score.requests, score.accesses
        ));
        if with_second {
            text.push_str(
                "L2 blocks of the cache device, BOTH misses of the two together, WRITES blocks written to it per access\n",
            );
        }
    }
    text
}
