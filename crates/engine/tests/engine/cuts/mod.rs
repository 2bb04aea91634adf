//! Power cuts everywhere: small histories of volumes, cut at every write and flush of every device, with what was
//! not flushed kept, lost, torn and reordered in every way (`states`), imported, and compared with what the history
//! owed at that moment (`twin`).
//!
//! All words up to a length are played on every layout, and longer ones from seeds. Some crashed states are handed
//! to other judges: `zdb` before and after the import; they are imported once more with a device less, and the import
//! itself is cut off in the same way.
//!
//! `MILLPOND_CUTS=log/^Fgw2g` plays one word on one layout; `MILLPOND_CUTS=500` that many seeded words per layout and
//! all of two letters (`make sim`). `MILLPOND_SEED` is where the seeds begin.

#![allow(unreachable_pub, reason = "the parts of one test")]

mod history;
pub mod recorder;
mod states;
mod twin;
mod wreck;

use std::sync::Arc;

use disk::{Disk, MemDisk};
use engine::engine::Ending;
use futures_util::{FutureExt, future::BoxFuture};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::{POOL, World, content, number, quiet, start_on};
use history::{FAILURES, History, LETTERS, Layout};
use recorder::{Recording, Tape};
use states::{Bounds, Counts, Explorer, Judge, Lie, Violation};
use twin::{Recovered, Sync};

const LAYOUTS: [Layout; 4] = [
    Layout { name: "single", words: "d0", log: None, spare: &[], sync: Sync::Standard },
    Layout { name: "log", words: "d0 log d1", log: Some(1), spare: &[], sync: Sync::Always },
    Layout {
        name: "mirror-log",
        words: "d0 log mirror d1 d2",
        log: Some(2),
        spare: &[2],
        sync: Sync::Disabled,
    },
    Layout { name: "raidz", words: "raidz d0 d1 d2", log: None, spare: &[0, 1, 2], sync: Sync::Always },
];

/// What is explored of each history.
const BOUNDS: Bounds = Bounds { leaves: 12, drawn: 2, kept_per_mille: 0 };
const BOUNDS_LONG: Bounds = Bounds { leaves: 256, drawn: 64, kept_per_mille: 3 };
/// What is explored of an import that is cut off itself.
const BOUNDS_AGAIN: Bounds = Bounds { leaves: 6, drawn: 2, kept_per_mille: 0 };

/// Imports for writing, reads everything, exports, and verifies every block.
fn import(disks: Vec<Arc<dyn Disk>>) -> BoxFuture<'static, Result<Recovered, String>> {
    async move {
        let engine = start_on(disks, 2, quiet()).await.map_err(|error| format!("not imported: {error}"))?;
        let mut found = Recovered { replayed: engine.replayed().records, ..Recovered::default() };
        let view = engine.view();
        let dsl = view.dsl().await.map_err(|error| error.to_string())?;
        let (volumes, unreadable) = dsl.volumes().await.map_err(|error| error.to_string())?;
        if !unreadable.is_empty() {
            return Err(format!("{unreadable:?}"));
        }
        for dataset in volumes {
            let name = dataset.name().to_owned();
            let bytes = if name.contains('@') {
                content(&*view.open_volume(&name).await.map_err(|error| error.to_string())?).await
            } else {
                content(&*engine.volume(&name).await.map_err(|error| error.to_string())?).await
            };
            found.content.insert(name, twin::sectors(&bytes));
        }
        engine.end(Ending::Export).await.map_err(|error| format!("not exported: {error}"))?;
        let view = engine.view();
        let report = pool::verify::verify(&view, &Arc::default()).await;
        // Without one of the devices everything has a copy less.
        let is_whole = view.tree().leaves().iter().all(|leaf| leaf.is_readable());
        if report.problems_total == 0 && report.leaked() == 0 && (report.thin == 0 || !is_whole) {
            return Ok(found);
        }
        let problem = |problem: &pool::verify::Problem| {
            format!("\n  {:?} {:?}: {} {:?}", problem.kind, problem.at, problem.what, problem.evidence)
        };
        let problems: String = report.problems.iter().take(4).map(problem).collect();
        Err(format!("not clean: {} problems, {:?}{problems}", report.problems_total, report.space))
    }
    .boxed()
}

/// All words of exactly `length` letters.
fn words(letters: &'static [u8], length: usize) -> impl Iterator<Item = Vec<u8>> {
    let count = letters.len().pow(length as u32);
    (0..count).map(move |mut number| {
        let mut word = Vec::with_capacity(length);
        for _ in 0..length {
            word.push(letters[number % letters.len()]);
            number /= letters.len();
        }
        word
    })
}

/// A longer word.
fn seeded(letters: &[u8], seed: u64) -> Vec<u8> {
    let mut chance = StdRng::seed_from_u64(seed);
    let length = chance.random_range(4..12);
    let mut word = if chance.random_range(0..4) > 0 { vec![b'^'] } else { Vec::new() };
    word.extend((0..length).map(|_| letters[chance.random_range(0..letters.len())]));
    word
}

fn letters(layout: &Layout) -> &'static [u8] {
    if layout.log.is_some() { LETTERS } else { &LETTERS[..LETTERS.len() - FAILURES] }
}

/// What one campaign did.
#[derive(Default)]
struct Total {
    histories: u64,
    counts: Counts,
    /// Cuts of imports.
    again: Counts,
    judged: u64,
}

impl Total {
    fn print(&self, name: &str) {
        let Counts { cuts, states, imports, images, sampled, replayed } = self.counts;
        println!(
            "{name}: {} histories, {cuts} cuts, {states} states (for {images:.2e} images; sampled {sampled} times) by \
             {imports} imports, which replayed {replayed} records; {} cuts of imports, {} states; zdb judged {}",
            self.histories, self.again.cuts, self.again.states, self.judged
        );
    }
}

struct Campaign {
    layout: Layout,
    template: World,
    bounds: Bounds,
    /// Crashed states that zdb sees at most.
    judged_max: u64,
    total: Total,
}

impl Campaign {
    async fn new(layout: Layout, bounds: Bounds, judged_max: u64) -> Self {
        let template = history::template(&layout).await;
        Self { layout, template, bounds, judged_max, total: Total::default() }
    }

    /// Plays a word, and cuts it everywhere.
    async fn word(&mut self, word: &[u8], lie: Option<Lie>) -> Result<(), String> {
        let title = format!("MILLPOND_CUTS='{}/{}'", self.layout.name, String::from_utf8_lossy(word));
        let seed = word.iter().fold(7, |seed: u64, letter| seed.wrapping_mul(31) + u64::from(*letter));
        let playing = history::play(&self.template, &self.layout, word, seed);
        let History { recording, media, twin } =
            match std::panic::AssertUnwindSafe(playing).catch_unwind().await {
                Ok(history) => history,
                Err(panic) => {
                    eprintln!("{title}");
                    std::panic::resume_unwind(panic);
                }
            };
        let judge = |cut: usize, found: &Recovered| twin.check(cut, found);
        let mut explorer = Explorer::new(&recording, &media, import, &judge, (lie, self.bounds, seed));
        let outcome = explorer.run().await;
        self.total.histories += 1;
        self.total.counts += explorer.counts;
        let kept = std::mem::take(&mut explorer.kept);
        outcome.map_err(|violation| format!("{title}: {}", told(&violation, &recording)))?;
        for state in kept {
            self.further(&title, &state.media, &|found| twin.check(state.cut, found)).await?;
        }
        Ok(())
    }

    /// Lets others judge a crashed state, and cuts its import off.
    async fn further(
        &mut self,
        title: &str,
        media: &[Arc<MemDisk>],
        check: &dyn Fn(&Recovered) -> Result<(), String>,
    ) -> Result<(), String> {
        let fork = || -> Vec<Arc<MemDisk>> { media.iter().map(|disk| Arc::new(disk.fork())).collect() };
        let world = World::on(fork());
        let tape = Tape::new(media.len(), None);
        tape.start();
        let zdb = self.total.judged < self.judged_max && fixtures::tool("zdb").is_some();
        if zdb {
            zdb_check(&world, &["--crashed"]).map_err(|text| format!("{title}: crashed: {text}"))?;
        }
        let found = import(tape.disks(&world.media)).await.map_err(|error| format!("{title}: {error}"))?;
        check(&found).map_err(|error| format!("{title}: once more: {error}"))?;
        world.verify("after the import").await;
        // With one device less it has to be the same.
        for &missing in self.layout.spare {
            let world = World::on(fork());
            let there = world.media.iter().enumerate().filter(|(number, _)| *number != missing);
            let disks = there.map(|(_, disk)| Arc::clone(disk) as Arc<dyn Disk>).collect();
            let found =
                import(disks).await.map_err(|error| format!("{title}: without d{missing}: {error}"))?;
            check(&found).map_err(|error| format!("{title}: without d{missing}: {error}"))?;
        }
        if zdb {
            zdb_check(&world, &[]).map_err(|text| format!("{title}: exported: {text}"))?;
            self.total.judged += 1;
        }
        let recording = tape.stop();
        let judge: Judge<'_> = &|_, found| check(found);
        let mut explorer = Explorer::new(&recording, media, import, judge, (None, BOUNDS_AGAIN, 3));
        let outcome = explorer.run().await;
        self.total.again += explorer.counts;
        outcome.map_err(|violation| format!("{title}: the import cut off: {}", told(&violation, &recording)))
    }
}

fn zdb_check(world: &World, options: &[&str]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    world.save(dir.path());
    fixtures::zdb_check(options, dir.path(), POOL)
}

/// A violation, with what led to it.
fn told(violation: &Violation, recording: &Recording) -> String {
    let Violation { cut, answers, what } = violation;
    let mut text = format!("cut after {cut} of {} events: {what}\n", recording.events.len());
    for (question, answer) in answers {
        let place = match question {
            wreck::Question::Write(id) => recording.writes.get(*id).map(|write| {
                let sort = if write.through { " through" } else { "" };
                format!(" (disk {}, {} bytes{sort} at {:#x})", write.disk, write.data.len(), write.offset)
            }),
            wreck::Question::Order(..) => None,
        };
        text += &format!("  {question:?}: {answer}{}\n", place.unwrap_or_default());
    }
    text
}

/// What one layout is put through.
async fn campaign(layout: Layout) {
    let chosen = std::env::var("MILLPOND_CUTS").ok();
    if let Some((name, word)) = chosen.as_deref().and_then(|text| text.split_once('/')) {
        if name == layout.name {
            let mut campaign = Campaign::new(layout, BOUNDS_LONG, 8).await;
            campaign.bounds.kept_per_mille = 100;
            campaign.word(word.as_bytes(), None).await.unwrap_or_else(|violation| panic!("{violation}"));
            campaign.total.print(layout.name);
        }
        return;
    }
    let long = number("MILLPOND_CUTS");
    let bounds = if long.is_some() { BOUNDS_LONG } else { BOUNDS };
    let mut campaign = Campaign::new(layout, bounds, if long.is_some() { 50 } else { 1 }).await;
    let letters = letters(&layout);
    let first = number("MILLPOND_SEED").unwrap_or(1);
    let depth = if long.is_some() { 2 } else { 1 };
    let short = (1..=depth).flat_map(|length| words(letters, length));
    // One letter both with a new log and with one that has begun; the short dose takes turns, with another one in each
    // layout.
    let turn = layout.words.len();
    let short = short.enumerate().flat_map(|(number, word)| {
        let begun = [b"^", &word[..]].concat();
        match (long, (number + turn) % 2) {
            (Some(_), _) if word.len() == 1 => vec![word, begun],
            (Some(_), _) => vec![begun],
            (None, 0) => vec![word],
            (None, _) => vec![begun],
        }
    });
    let seeded = (first..first + long.unwrap_or(DOSE)).map(|seed| seeded(letters, seed));
    let all: Vec<Vec<u8>> = short.chain(seeded).collect();
    for (number, word) in all.iter().enumerate() {
        // In the short dose a few moments of the last histories, which are long.
        campaign.bounds.kept_per_mille = match long {
            Some(_) => bounds.kept_per_mille,
            None if number + 2 >= all.len() => 30,
            None => 0,
        };
        campaign.word(word, None).await.unwrap_or_else(|violation| panic!("{violation}"));
    }
    campaign.total.print(layout.name);
    assert!(campaign.total.counts.replayed > 0, "no log was replayed: nothing was shown of it");
}

/// Seeded words per layout in `cargo test`.
const DOSE: u64 = 6;

#[tokio::test(start_paused = true)]
async fn power_cuts_on_a_single_device() {
    campaign(LAYOUTS[0]).await;
}

#[tokio::test(start_paused = true)]
async fn power_cuts_with_a_log_device() {
    campaign(LAYOUTS[1]).await;
}

#[tokio::test(start_paused = true)]
async fn power_cuts_with_a_mirrored_log() {
    campaign(LAYOUTS[2]).await;
}

#[tokio::test(start_paused = true)]
async fn power_cuts_on_raidz() {
    campaign(LAYOUTS[3]).await;
}

/// A log device that failed is written down as failed only when nothing on it is needed any more: then the pool opens
/// without it, and without being told to.
#[tokio::test(start_paused = true)]
async fn a_log_device_that_failed_is_not_missed() {
    let mut campaign = Campaign::new(LAYOUTS[1], BOUNDS, 0).await;
    campaign.word(b"vkuFpLjMu", None).await.unwrap_or_else(|violation| panic!("{violation}"));
}

/// A disk that lies is found out, whatever the lie: the explorer sees what a wrong order would do.
#[tokio::test(start_paused = true)]
async fn an_order_that_is_not_kept_is_found() {
    let lies = [
        (LAYOUTS[0], Lie::NothingIsDurable(0)),
        (LAYOUTS[0], Lie::LastWriteOvertakesFlush(0)),
        (LAYOUTS[1], Lie::NothingIsDurable(1)),
    ];
    for (layout, lie) in lies {
        let mut campaign = Campaign::new(layout, BOUNDS, 0).await;
        let mut violation = None;
        for seed in 1..200 {
            let word = seeded(letters(&layout), seed);
            violation = campaign.word(&word, Some(lie)).await.err();
            if violation.is_some() {
                break;
            }
        }
        let violation = violation.unwrap_or_else(|| panic!("{lie:?} was not noticed"));
        let Counts { cuts, states, imports, .. } = campaign.total.counts;
        println!(
            "{}, {lie:?}: found after {cuts} cuts, {states} states, {imports} imports: {violation}",
            layout.name
        );
    }
}
