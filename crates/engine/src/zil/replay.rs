//! The second step after a crash: what the claimed logs say is done again.
//!
//! ```text
//!   log of a volume ─▶ blocks, the next being read ─▶ records in order ─▶ changes of the open transaction group
//!                                                                                      │
//!   all volumes done ─▶ one command: the blocks of the logs are free, their headers empty ─▶ clients are served
//! ```
//!
//! The command runs in a transaction group that is not earlier than the last change. A crash before it is durable
//! finds the logs as they were, and they are replayed again: the records are absolute, in order, and nobody was served
//! in between, so twice is as good as once.
//!
//! A volume whose log cannot be replayed is not served, keeps its log, and says why; the others are.
//!
//! Facts: docs/format/zil.md §3, §5.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use block::VolumeError;
use bytes::Bytes;
use futures_util::future::join_all;
use ondisk::{
    blkptr::BlkPtr,
    zil::{Body, WriteData},
};
use pool::{
    BlockError, Bookmark, Pool,
    traverse::LEVEL_LOG,
    zil::{self, Blocks, Head, LogBlock, LogRecord, NoBlock, Reader, Waiting},
};

use super::{
    claim::{Crashed, GivenUp},
    outside::{Budget, portions},
};
use crate::{
    EngineError,
    dsl::{self, OpError},
    engine::{Engine, OpenedBy},
    volume::{
        LiveVolume,
        replay::{Content, Redo},
    },
};

/// Volumes that are replayed at a time.
const VOLUMES_AT_ONCE: usize = 8;

/// What an import found in the intent logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Volumes with something to replay.
    pub volumes: u64,
    /// Records replayed.
    pub records: u64,
    /// Bytes they changed.
    pub bytes: u64,
    /// The transaction group that was the last before.
    pub txg: u64,
    /// How long that took, until it was durable.
    pub took: Duration,
    /// Volumes that are not served because their logs cannot be replayed: by dataset object, the sentence.
    pub failed: BTreeMap<u64, String>,
    /// Logs of file systems (and of what is encrypted), claimed and left for OpenZFS to replay.
    pub kept: Vec<Waiting>,
    /// Datasets that lost writes, and why.
    pub lost: Vec<(String, String)>,
    /// Datasets that are damaged: whether they, or what is below them, lost writes cannot be told, and why.
    pub untold: Vec<(String, String)>,
}

impl Replayed {
    /// Volume `name` has a log that nobody found when the pool was opened. It was damaged then, or what leads to it, and others
    /// have been given what the log had since.
    pub(crate) fn missed(&mut self, name: &str) {
        // Where everything was found there is nothing that could have been missed.
        if self.untold.is_empty() {
            return;
        }
        let why = "its intent log could not be found when the pool was imported";
        tracing::warn!(dataset = name, why, "writes that were acknowledged are lost");
        self.lost.push((name.to_owned(), why.to_owned()));
    }

    /// What an administrator has to know, a sentence each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let lost = self.lost.iter().map(|(name, why)| {
            format!("the last writes to '{name}' that were acknowledged as stable are lost: {why}")
        });
        let untold = self.untold.iter().map(|(name, why)| {
            format!(
                "whether the last writes to '{name}' or to what is below it are lost cannot be told: {why}"
            )
        });
        let failed = self.failed.values().cloned();
        let kept = self.kept.iter().map(|waiting| waiting.sentence(self.txg, true));
        lost.chain(untold).chain(failed).chain(kept).collect()
    }
}

/// What replaying one volume came to.
#[derive(Debug, Default)]
struct Tally {
    records: u64,
    bytes: u64,
    /// What its log has, and is given back.
    blocks: Vec<BlkPtr>,
    /// Why it was not followed to its end, which was given up.
    lost: Option<String>,
}

/// Replays the logs of volumes, and gives them back. When this returns, that is durable.
///
/// # Errors
/// The pool cannot be written to any more.
pub(crate) async fn replay(engine: &Engine, crashed: Crashed) -> Result<Replayed, EngineError> {
    let start = tokio::time::Instant::now();
    let Crashed { volumes, kept, lost, untold, gives_up, txg, .. } = crashed;
    let mut replayed = Replayed { kept, lost, untold, txg, ..Replayed::default() };
    let (mut done, budget) = (Vec::new(), Budget::new());
    for some in volumes.chunks(VOLUMES_AT_ONCE) {
        let replays = some.iter().map(|head| replay_volume(engine, &budget, head, &gives_up));
        // A change that is done again waits for devices, and nobody would hear why.
        let outcomes = tokio::select! {
            biased;
            outcomes = join_all(replays) => outcomes,
            why = engine.suspension().suspended() => return Err(why),
        };
        for (head, outcome) in some.iter().zip(outcomes) {
            if let Some(error) = engine.suspended() {
                return Err(error);
            }
            match outcome {
                Ok(Tally { records, bytes, blocks, lost }) => {
                    replayed.volumes += u64::from(records > 0);
                    replayed.records += records;
                    replayed.bytes += bytes;
                    done.push((head.objset, blocks));
                    // Whoever claimed it may have met the same.
                    if let Some(why) = lost
                        && replayed.lost.iter().all(|(name, _)| *name != head.name)
                    {
                        tracing::warn!(dataset = head.name, why, "writes that were acknowledged are lost");
                        replayed.lost.push((head.name.clone(), why));
                    }
                }
                Err(why) => {
                    let why = format!(
                        "volume '{}' is not served: its intent log cannot be replayed: {why}",
                        head.name
                    );
                    tracing::error!("{why}");
                    replayed.failed.insert(head.objset, why);
                }
            }
        }
    }
    if !done.is_empty() {
        let ended = engine.run(move |cx| {
            Box::pin(async move {
                for (dataset, blocks) in done {
                    dsl::end_replayed_log(cx, dataset, blocks).await?;
                }
                Ok(())
            })
        });
        ended.await.map_err(|error| match error {
            OpError::Engine(error) => error,
            other => EngineError::Unsupported(format!("replayed intent logs cannot be given back: {other}")),
        })?;
    }
    replayed.took = start.elapsed();
    if replayed.records > 0 {
        let Replayed { volumes, records, bytes, took, .. } = replayed;
        tracing::info!(pool = engine.view().name(), volumes, records, bytes, ?took, "replayed intent logs");
    }
    Ok(replayed)
}

/// Replays the log of one volume; why not, if it cannot be.
async fn replay_volume(
    engine: &Engine,
    budget: &Budget,
    head: &Head,
    gives_up: &GivenUp,
) -> Result<Tally, String> {
    let view = engine.view();
    let mut reader = Reader::new(view.io(), head.objset, &head.header);
    let mut volume = None;
    let (mut tally, mut blocks) = (Tally::default(), Blocks::default());
    let mut place = head.header.log;
    while let Some(found) = reader.next().await {
        place = found.pointer;
        blocks.add(&head.header, &found);
        let block = match found.block {
            Ok(block) => block,
            Err(NoBlock::Unreadable(error)) if !gives_up.has(&place) => return Err(error.to_string()),
            Err(NoBlock::Unreadable(error)) => {
                tally.lost = Some(format!("the intent log cannot be read: {error}"));
                break;
            }
            Err(NoBlock::Unwritten) => break,
        };
        let admitted = |record: &LogRecord| head.header.admits_record(record.sequence);
        let records: Vec<LogRecord> = block
            .records()
            .take_while(admitted)
            .filter(|record| zil::is_pending(&head.header, record, view.uberblock().txg))
            .collect();
        if records.is_empty() {
            continue;
        }
        let volume = match &volume {
            Some(volume) => volume,
            None => volume.insert(open(engine, &view, head).await?),
        };
        let redone = redo_all(engine, &view, budget, head, volume, &block, &records).await;
        match redone {
            Ok(bytes) => tally.bytes += bytes,
            Err(why) => {
                volume.close();
                return Err(why);
            }
        }
        tally.records += records.len() as u64;
    }
    if reader.chain().is_cut() {
        let last = reader.chain().last();
        if !gives_up.has(&place) {
            if let Some(volume) = volume {
                volume.close();
            }
            return Err(format!(
                "it is damaged behind block {last}; import the pool with -m to go on without what comes there, roll \
                 the volume back or destroy it, or import the pool with OpenZFS"
            ));
        }
        tally.lost.get_or_insert_with(|| format!("the intent log is damaged behind block {last}"));
    }
    tally.blocks = blocks.into_pointers();
    Ok(tally)
}

/// Opens the volume of a log, whatever it is called by now.
async fn open(engine: &Engine, view: &Pool, head: &Head) -> Result<Arc<LiveVolume>, String> {
    let name = async { view.dsl().await?.head_name(head.objset).await };
    let name = name.await.map_err(|error| error.to_string())?.unwrap_or_else(|| head.name.clone());
    engine.open_volume(&name, OpenedBy::Replay).await.map_err(|error| error.to_string())
}

/// Does the records of one block again; returns the bytes changed.
async fn redo_all(
    engine: &Engine,
    view: &Pool,
    budget: &Budget,
    head: &Head,
    volume: &LiveVolume,
    block: &LogBlock,
    records: &[LogRecord],
) -> Result<u64, String> {
    let at = Bookmark { objset: head.objset, object: 1, level: LEVEL_LOG, blkid: block.words.sequence };
    // Any other record may change parts of two blocks, which are read for that.
    let parts = 2 * u64::from(volume.service().block);
    let needed = |record: &LogRecord| outside(record).map_or(parts, |pointer| pointer.lsize());
    let mut changed = 0;
    for (some, bytes) in portions(records, needed) {
        // Data outside of the log is read for all of them at once, and so is what changed parts of blocks need.
        let blocks: Vec<(BlkPtr, Bookmark)> =
            some.iter().filter_map(outside).map(|pointer| (pointer, at)).collect();
        let _held = budget.take(bytes).await;
        let changes = changes_of(some, view.io().read_blocks(&blocks).await)?;
        volume.prepare(&changes).await;
        for change in &changes {
            changed += match volume.redo(change).await {
                // What was announced is more than what was taken: a transaction group tells the truth.
                Err(VolumeError::NoSpace) => {
                    engine.sync().await.map_err(|error| error.to_string())?;
                    volume.redo(change).await.map_err(|error| refused(&error))?
                }
                Err(error) => return Err(refused(&error)),
                Ok(bytes) => bytes,
            };
        }
    }
    Ok(changed)
}

/// The block outside of the log that holds the data of a record, if there is one.
fn outside(record: &LogRecord) -> Option<BlkPtr> {
    record.indirect().filter(|pointer| !pointer.is_hole())
}

/// What records change; `data` is what was read of those that have it outside of the log.
fn changes_of(records: &[LogRecord], data: Vec<Result<Bytes, BlockError>>) -> Result<Vec<Redo>, String> {
    let mut data = data.into_iter();
    let mut changes = Vec::with_capacity(records.len());
    for record in records {
        let decoded = record.decode().map_err(|error| format!("record {}: {error}", record.sequence))?;
        let change = match decoded.body {
            Body::Write { offset, data: WriteData::Inline(bytes), .. } => {
                Redo { offset, what: Content::Data(record.share(bytes)) }
            }
            Body::Write { offset, length, data: WriteData::Indirect(pointer), .. } if pointer.is_hole() => {
                let (offset, length) = widened(offset, length, pointer.lsize());
                Redo { offset, what: Content::Zeroes(length) }
            }
            Body::Write { offset, length, data: WriteData::Indirect(pointer), .. } => {
                let bytes = match data.next() {
                    Some(Ok(bytes)) => bytes,
                    Some(Err(error)) => {
                        return Err(format!(
                            "record {}: {error}; import the pool again when its devices answer, or else roll the \
                             volume back or destroy it, or import the pool with OpenZFS (-m is no help: what is \
                             missing is not in the log)",
                            record.sequence
                        ));
                    }
                    None => return Err(format!("record {}: its data was not read", record.sequence)),
                };
                let (offset, length) = widened(offset, length, pointer.lsize());
                if length != bytes.len() as u64 {
                    return Err(format!(
                        "record {}: {length} bytes in a block of {}",
                        record.sequence,
                        bytes.len()
                    ));
                }
                Redo { offset, what: Content::Data(bytes) }
            }
            Body::Truncate { offset, length, .. } => Redo { offset, what: Content::Zeroes(length) },
            // Its data reached the pool some other way.
            Body::Write2 { .. } => continue,
            Body::CloneRange { .. } => {
                let why = "it holds cloned blocks; import the pool once with OpenZFS, which replays them (as long as a clone \
                           of them is left then, the pool can only be opened read-only here)";
                return Err(why.to_owned());
            }
            _ => {
                let kind = record.kind;
                return Err(format!("record {} is of type {kind}, which no volume has", record.sequence));
            }
        };
        changes.push(change);
    }
    Ok(changes)
}

fn refused(error: &VolumeError) -> String {
    match error {
        VolumeError::NoSpace => {
            "the pool has no room for it; destroy something, export the pool and import it again".to_owned()
        }
        error => error.to_string(),
    }
}

/// A record that points to a block stands for all of the block, even if less of it was written.
fn widened(offset: u64, length: u64, block: u64) -> (u64, u64) {
    if length < block { (offset - offset % block, block) } else { (offset, length) }
}
