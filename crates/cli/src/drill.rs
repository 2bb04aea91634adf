//! `millpond drill`: what would happen if, tried on a simulated machine or on a copy of a pool, with a report card.
//!
//! Exit code 0 if nothing acknowledged was lost and no client was dropped, 1 otherwise. Of all drills, those that do not suit
//! the pool are left out.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use lab::{Drill, Grade, LabError, Layout, Place, Progress, ReportCard, layout::Hardware, report::time};
use serde_json::{Value, json};
use server::pool::import::{self, Sources};
use tokio::time::Instant;

use crate::{
    args::Rewind,
    context::{Context, FAILED, Usage, foreign, print},
    progress::{Amount, BAR, IN_WORDS, bar, beside, watch},
    table::{Column, render},
};

/// `millpond drill`
#[derive(Debug, Args)]
pub(crate) struct DrillArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Which drills there are
    List(List),
    /// Play drills and print a report card for each
    Run(Run),
}

/// `millpond drill list`
#[derive(Debug, Args)]
struct List {
    /// One tab between fields and no header, for scripts
    #[arg(short = 'H')]
    scripted: bool,
    /// JSON, one object a line
    #[arg(short = 'j', long = "json")]
    json: bool,
}

/// `millpond drill run`
#[derive(Debug, Args)]
#[command(after_help = "\
Without --on and --copy the machine is simulated: disks in memory that take as long as real ones (5400 turns a \
minute, as in a home lab of 2014), on a clock of its own: minutes pass in seconds, and a seed repeats itself.

With --on or --copy the files of a real pool are copied, holes as holes, and the drill is played on the copy in \
real time, ten times as fast as its script says. The originals are only read. Nobody may be writing to them.

Exit code 1 if anything acknowledged was lost, a client was dropped, or a drill could not be played.")]
struct Run {
    /// All drills that suit the pool
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// The simulated disks: stripe:N, mirror:N, raidz1:N, raidz2:N, raidz3:N, each with xM for M of them
    #[arg(long, default_value = "raidz2:6", value_name = "SHAPE:WIDTH[xCOUNT]")]
    layout: Layout,
    /// Decides all chance
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Play on a copy of the pool whose files are in this directory
    #[arg(long, value_name = "FILES-DIR", conflicts_with = "copy")]
    on: Option<PathBuf>,
    /// Play on a copy of this pool, which is made of files
    #[arg(long, value_name = "POOL")]
    copy: Option<String>,
    /// Where copies are made, and removed afterwards (default: the directory for temporary files)
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Tell what happened when, too
    #[arg(short = 'v')]
    verbose: bool,
    /// JSON, one object a line
    #[arg(short = 'j', long = "json")]
    json: bool,
    /// Drills by name
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// What a drill is played on.
enum Ground {
    Simulated,
    Copy { files: Vec<PathBuf>, pool: String, scratch: PathBuf },
}

pub(crate) async fn run(args: DrillArgs, context: &Context) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::List(args) => list(&args),
        Command::Run(args) => Box::pin(play(args, context)).await,
    }
}

fn list(args: &List) -> anyhow::Result<ExitCode> {
    if args.json {
        for drill in lab::all() {
            print(&format!("{}\n", json!({ "drill": drill.name, "about": drill.about })))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> =
        lab::all().iter().map(|drill| vec![drill.name.to_owned(), drill.about.to_owned()]).collect();
    print(&render(&[Column::left("DRILL"), Column::left("WHAT HAPPENS")], &rows, args.scripted))?;
    Ok(ExitCode::SUCCESS)
}

async fn play(args: Run, context: &Context) -> anyhow::Result<ExitCode> {
    let drills = chosen(&args)?;
    let ground = ground(&args, context).await?;
    let (mut passed, mut played, mut left_out) = (true, 0, None);
    for drill in drills {
        let start = Instant::now();
        let card = match Box::pin(rehearse(drill, &ground, &args)).await {
            Ok(card) => card,
            Err(error) if args.all && is_unfit(&error) => {
                say!("left out: {error:#}");
                left_out = Some(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        passed &= card.passed();
        let real = start.elapsed();
        if args.json {
            print(&format!("{}\n", in_json(&card, real)))?;
        } else {
            let gap = if played > 0 { "\n" } else { "" };
            print(&format!(
                "{gap}{}",
                in_words(&card, real, matches!(ground, Ground::Simulated), args.verbose)
            ))?;
        }
        played += 1;
    }
    match left_out {
        // Nothing was found to be well.
        Some(error) if played == 0 => Err(error),
        _ => Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }),
    }
}

/// Whether a drill needs more than the pool has.
fn is_unfit(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<LabError>(), Some(LabError::Unfit(_)))
}

fn chosen(args: &Run) -> Result<Vec<&'static Drill>, Usage> {
    if args.all {
        return Ok(lab::all().iter().collect());
    }
    if args.names.is_empty() {
        return Err(Usage(
            "millpond drill run: name drills, or --all; 'millpond drill list' has them".to_owned(),
        ));
    }
    let find = |name: &String| {
        let unknown =
            || Usage(format!("millpond drill run: no drill '{name}'; 'millpond drill list' has them"));
        lab::find(name).ok_or_else(unknown)
    };
    args.names.iter().map(find).collect()
}

/// Finds the files that are to be copied.
async fn ground(args: &Run, context: &Context) -> anyhow::Result<Ground> {
    let (files, pool) = match (&args.on, &args.copy) {
        (None, None) => return Ok(Ground::Simulated),
        (Some(dir), _) => {
            let found = import::scan(&Sources::paths([dir])).await;
            let [candidate] = &found.pools[..] else {
                bail!(
                    "'{}' holds {} pools: give a directory with the files of one",
                    dir.display(),
                    found.pools.len()
                );
            };
            let paths = candidate.devices.iter().map(|device| device.disk.info().path.into());
            (paths.collect::<Vec<PathBuf>>(), candidate.name.clone())
        }
        (None, Some(name)) => {
            let pool = context.open_pool(&[], name, foreign(true), &Rewind::default()).await?;
            let tree = pool.tree();
            let paths = tree.leaves().into_iter().filter_map(|leaf| leaf.leaf.as_ref()?.disk());
            (paths.map(|disk| disk.info().path.into()).collect(), pool.name().to_owned())
        }
    };
    for file in &files {
        if !file.is_file() {
            bail!("'{}' is no file: only pools made of files are copied for a drill", file.display());
        }
    }
    let scratch = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    Ok(Ground::Copy { files, pool, scratch })
}

async fn rehearse(drill: &'static Drill, ground: &Ground, args: &Run) -> anyhow::Result<ReportCard> {
    let progress = Arc::new(Progress::default());
    let seed = args.seed;
    match ground {
        Ground::Simulated => {
            let (layout, shared) = (args.layout.clone(), Arc::clone(&progress));
            let work = tokio::task::spawn_blocking(move || {
                lab::simulate(drill, &layout, Hardware::san2(), seed, &shared)
            });
            let card = show(drill.name, &progress, work).await?;
            card.with_context(|| format!("drill {}", drill.name))
        }
        Ground::Copy { files, pool, scratch } => {
            let copy = Copy::make(files, scratch).await?;
            let place = Place::Files { files: copy.files.clone(), pool: pool.clone() };
            let work = lab::rehearse(drill, &place, seed, &progress);
            show(drill.name, &progress, work).await.with_context(|| format!("drill {}", drill.name))
        }
    }
}

/// Copies of a pool's files; removed when dropped.
struct Copy {
    dir: PathBuf,
    files: Vec<PathBuf>,
}

impl Copy {
    async fn make(files: &[PathBuf], scratch: &Path) -> anyhow::Result<Self> {
        let dir = (0..1000)
            .map(|n| scratch.join(format!("millpond-drill-{}-{n}", std::process::id())))
            .find(|dir| std::fs::create_dir(dir).is_ok())
            .with_context(|| format!("cannot make a directory in '{}'", scratch.display()))?;
        let mut copy = Self { dir, files: Vec::new() };
        let total = files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        let done = Arc::new(AtomicU64::new(0));
        let (sources, target, counted) = (files.to_vec(), copy.dir.clone(), Arc::clone(&done));
        let work = tokio::task::spawn_blocking(move || lab::copies(&sources, &target, &counted));
        let amount = || Amount { done: done.load(Relaxed), total };
        copy.files = watch("copy", amount, work).await??;
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // What cannot be removed is in the directory for temporary files.
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// Does `work` and shows how far it is.
async fn show<T>(name: &str, progress: &Progress, work: impl Future<Output = T>) -> T {
    beside(bar(name, IN_WORDS, 100), BAR, work, |bar| {
        if let Some(bar) = bar {
            bar.set_length(progress.total.load(Relaxed).max(1));
            bar.set_position(progress.done.load(Relaxed));
            bar.set_message(progress.now.lock().clone());
        }
    })
    .await
}

fn in_words(card: &ReportCard, real: Duration, is_simulated: bool, verbose: bool) -> String {
    let mut text = format!("{}: {}\non {}\n\n", card.drill, card.about, card.machine);
    if verbose {
        for (at, what) in &card.story {
            text.push_str(&format!("{at:8.1} s  {what}\n"));
        }
        text.push('\n');
    }
    let columns =
        [Column::left("WHAT"), Column::left("VALUE"), Column::left("GRADE"), Column::left("MEANING")];
    let row = |line: &lab::Line| {
        vec![line.what.clone(), line.value.clone(), line.grade.word().to_owned(), line.sentence.clone()]
    };
    let rows: Vec<Vec<String>> = card.lines.iter().map(row).collect();
    text.push_str(&render(&columns, &rows, false));
    let verdict = match (card.passed(), card.grade()) {
        (false, _) => "FAILED",
        (true, Grade::Bad) => "passed, with something to be ashamed of",
        (true, _) => "passed",
    };
    let simulated = Duration::from_secs_f64(card.seconds);
    let clock = match is_simulated {
        true => format!("{} simulated in {} (seed {})", time(simulated), time(real), card.seed),
        false => format!("{} in real time", time(simulated)),
    };
    text.push_str(&format!("\n{}: {verdict}; {clock}\n", card.drill));
    text
}

fn in_json(card: &ReportCard, real: Duration) -> Value {
    let mut value = json!(card);
    if let Value::Object(object) = &mut value {
        object.insert("passed".to_owned(), json!(card.passed()));
        object.insert("real_seconds".to_owned(), json!((real.as_secs_f64() * 10.0).round() / 10.0));
    }
    value
}
