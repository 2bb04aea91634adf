//! Every state that a power cut can leave, at every moment of a recording.
//!
//! Between two events that change what may be on the media, all cuts are alike, and the last of them owes most:
//! there the states are examined. They form a tree: at each node an import asks what became of one more write
//! ([`Crash`]). Leaves are imports; what an import found is remembered, and holds as long as nothing that it looked
//! at changes. So a write into free space costs nothing, and a flush only takes states away.
//!
//! Up to a bound the tree is walked completely; beyond it, leaves are drawn by chance.

use std::{collections::BTreeMap, sync::Arc};

use disk::{Disk, MemDisk};
use futures_util::FutureExt;
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    recorder::{Event, Recording, Write},
    twin::Recovered,
    wreck::{Crash, Fate, Looked, Pending, Question, materialise, pages},
};

/// A promise that a simulated disk breaks. (The product is not told, and has no such switch.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// This disk acknowledges flushes and write-throughs, and keeps everything in its cache.
    NothingIsDurable(usize),
    /// A flush of this disk leaves out the write that finished last.
    LastWriteOvertakesFlush(usize),
}

/// How far to go.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Leaves of one tree that are all visited.
    pub leaves: usize,
    /// Leaves that are drawn of a larger tree.
    pub drawn: usize,
    /// Crashed states that are handed back for other judges, per thousand imports.
    pub kept_per_mille: u32,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Moments at which the power was cut.
    pub cuts: u64,
    /// Trees too large to be visited completely.
    pub sampled: u64,
    /// States that were judged: leaves, at every cut.
    pub states: u64,
    /// Imports that this took.
    pub imports: u64,
    /// Log records that these replayed.
    pub replayed: u64,
    /// Images of the media that these states stand for.
    pub images: f64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.cuts += more.cuts;
        self.sampled += more.sampled;
        self.states += more.states;
        self.imports += more.imports;
        self.replayed += more.replayed;
        self.images += more.images;
    }
}

/// A state that must not be.
#[derive(Debug)]
pub struct Violation {
    /// Events before the cut.
    pub cut: usize,
    /// What became of the writes that were looked at.
    pub answers: Vec<(Question, u8)>,
    /// What is wrong.
    pub what: String,
}

/// A crashed state, for further judges.
#[derive(Debug)]
pub struct Kept {
    pub cut: usize,
    pub media: Vec<Arc<MemDisk>>,
}

struct Outcome {
    looked: Looked,
    found: Result<Recovered, String>,
}

/// What is owed at a cut: compares what an import found.
pub type Judge<'a> = &'a dyn Fn(usize, &Recovered) -> Result<(), String>;
/// Imports what is on disks.
pub type Import =
    fn(Vec<Arc<dyn Disk>>) -> futures_util::future::BoxFuture<'static, Result<Recovered, String>>;

/// The walk over one recording.
pub struct Explorer<'a> {
    recording: &'a Recording,
    import: Import,
    judge: Judge<'a>,
    lie: Option<Lie>,
    bounds: Bounds,
    chance: StdRng,
    /// What is durable.
    media: Vec<Arc<MemDisk>>,
    pending: Arc<Pending>,
    /// Pending writes that returned, oldest first.
    finished: Vec<usize>,
    /// Per flush, what it will make durable.
    flushing: BTreeMap<usize, Vec<usize>>,
    memo: Vec<Outcome>,
    /// The leaves of the current tree, as indexes of `memo`; none if the tree has changed.
    leaves: Option<Vec<usize>>,
    pub counts: Counts,
    pub kept: Vec<Kept>,
}

impl<'a> Explorer<'a> {
    /// `media` are what the disks held when the recording began; they are not changed.
    pub fn new(
        recording: &'a Recording,
        media: &[Arc<MemDisk>],
        import: Import,
        judge: Judge<'a>,
        (lie, bounds, seed): (Option<Lie>, Bounds, u64),
    ) -> Self {
        Self {
            recording,
            import,
            judge,
            lie,
            bounds,
            chance: StdRng::seed_from_u64(seed),
            media: media.iter().map(|disk| Arc::new(disk.fork())).collect(),
            pending: Arc::default(),
            finished: Vec::new(),
            flushing: BTreeMap::new(),
            memo: Vec::new(),
            leaves: None,
            counts: Counts::default(),
            kept: Vec::new(),
        }
    }

    /// Cuts everywhere.
    pub async fn run(&mut self) -> Result<(), Violation> {
        for (cut, event) in self.recording.events.iter().enumerate() {
            self.counts.cuts += 1;
            if self.changes_media(*event) {
                self.examine(cut).await?;
            }
            self.play(*event).await;
        }
        self.counts.cuts += 1;
        self.examine(self.recording.events.len()).await
    }

    fn changes_media(&self, event: Event) -> bool {
        match event {
            Event::WriteBegin(_) => true,
            Event::WriteEnd(id) => self.becomes_durable_alone(id),
            Event::FlushEnd(flush) => self.made_durable_by(flush).next().is_some(),
            Event::WriteFailed(_) | Event::FlushBegin(_) | Event::FlushFailed(_) | Event::Mark => false,
        }
    }

    fn becomes_durable_alone(&self, id: usize) -> bool {
        let write = &self.recording.writes[id];
        write.through && self.lie != Some(Lie::NothingIsDurable(write.disk))
    }

    fn made_durable_by(&self, flush: usize) -> impl Iterator<Item = usize> {
        let disk = self.recording.flushes[flush];
        let mut ids = self.flushing.get(&flush).cloned().unwrap_or_default();
        match self.lie {
            Some(Lie::NothingIsDurable(liar)) if liar == disk => ids.clear(),
            Some(Lie::LastWriteOvertakesFlush(liar)) if liar == disk => drop(ids.pop()),
            _ => {}
        }
        ids.into_iter().filter(|id| self.pending.writes.contains_key(id))
    }

    async fn play(&mut self, event: Event) {
        match event {
            Event::WriteBegin(id) => {
                let write = self.recording.writes[id].clone();
                self.began(id, &write);
                Arc::make_mut(&mut self.pending).add(id, write);
            }
            Event::WriteEnd(id) if self.becomes_durable_alone(id) => self.durable(&[id]).await,
            Event::WriteEnd(id) => self.finished.push(id),
            Event::FlushBegin(flush) => {
                let disk = self.recording.flushes[flush];
                let its = self.finished.iter().copied().filter(|id| self.recording.writes[*id].disk == disk);
                self.flushing.insert(flush, its.collect());
            }
            Event::FlushEnd(flush) => {
                let mut ids: Vec<usize> = self.made_durable_by(flush).collect();
                ids.sort_unstable();
                self.durable(&ids).await;
            }
            Event::WriteFailed(_) | Event::FlushFailed(_) | Event::Mark => {}
        }
    }

    /// Imports that looked where this write goes saw that it was not there.
    fn began(&mut self, id: usize, write: &Write) {
        for outcome in &mut self.memo {
            if pages(write).any(|page| outcome.looked.pages.contains(&(write.disk, page))) {
                outcome.looked.answers.push((Question::Write(id), Fate::LOST));
                self.leaves = None;
            }
        }
    }

    /// These writes are on the media from here on, in this order: imports that saw them otherwise are history.
    async fn durable(&mut self, ids: &[usize]) {
        let pending = Arc::make_mut(&mut self.pending);
        let before = self.memo.len();
        for &id in ids {
            self.finished.retain(|other| *other != id);
            let alone = !pending.overlaps(id);
            let Some(write) = pending.remove(id) else { continue };
            self.media[write.disk].write(write.offset, write.data).await.unwrap();
            let concerns = |question: &Question| match question {
                Question::Write(other) => *other == id,
                Question::Order(a, b) => *a == id || *b == id,
            };
            self.memo.retain_mut(|outcome| {
                let stays = alone
                    && outcome.looked.answer(Question::Write(id)).is_none_or(|answer| answer == Fate::KEPT);
                outcome.looked.answers.retain(|(question, _)| !concerns(question));
                stays
            });
        }
        if self.memo.len() != before {
            self.leaves = None;
        }
    }

    /// All states at this cut.
    async fn examine(&mut self, cut: usize) -> Result<(), Violation> {
        if self.leaves.is_none() {
            self.grow().await;
        }
        let leaves = self.leaves.clone().unwrap_or_default();
        for leaf in leaves {
            let Outcome { looked, found } = &self.memo[leaf];
            let outcome = match found {
                Ok(recovered) => (self.judge)(cut, recovered),
                Err(error) => Err(error.clone()),
            };
            if let Err(what) = outcome {
                return Err(Violation { cut, answers: looked.answers.clone(), what });
            }
            self.counts.states += 1;
            let others = self.pending.writes.keys().map(|id| Question::Write(*id));
            let others = others.filter(|question| looked.answer(*question).is_none());
            self.counts.images +=
                others.map(|question| f64::from(self.pending.answers(question))).product::<f64>();
        }
        // A moment of which a state is handed on: any leaf, as the crash left it.
        if self.chance.random_range(0..1000) < self.bounds.kept_per_mille
            && let Some(leaf) = self.leaves.as_ref().filter(|leaves| !leaves.is_empty())
        {
            let leaf = leaf[self.chance.random_range(0..leaf.len())];
            let given = self.memo[leaf].looked.answers.iter().copied().collect();
            let crash = Crash::new(self.media.clone(), Arc::clone(&self.pending), given);
            self.kept.push(Kept { cut, media: materialise(&crash.disks()).await });
        }
        Ok(())
    }

    /// Finds the leaves of the tree as it is now.
    async fn grow(&mut self) {
        /// A node on the way down: what was asked, the answer tried first, how many were tried before this one.
        struct Node {
            question: Question,
            first: u8,
            tried: u8,
            answers: u8,
        }
        let mut path: Vec<Node> = Vec::new();
        let mut leaves = Vec::new();
        loop {
            let given: BTreeMap<Question, u8> =
                path.iter().map(|node| (node.question, (node.first + node.tried) % node.answers)).collect();
            let leaf = self.leaf(given).await;
            leaves.push(leaf);
            for (question, answer) in &self.memo[leaf].looked.answers {
                if !path.iter().any(|node| node.question == *question) {
                    let answers = self.pending.answers(*question);
                    path.push(Node { question: *question, first: *answer, tried: 0, answers });
                }
            }
            while path.last().is_some_and(|node| node.tried + 1 == node.answers) {
                path.pop();
            }
            let Some(node) = path.last_mut() else { break };
            node.tried += 1;
            if leaves.len() == self.bounds.leaves {
                self.counts.sampled += 1;
                for _ in 0..self.bounds.drawn {
                    let given = self.draw();
                    let leaf = self.leaf(given).await;
                    leaves.push(leaf);
                }
                break;
            }
        }
        leaves.sort_unstable();
        leaves.dedup();
        self.leaves = Some(leaves);
    }

    /// Fates by chance, with another mood each time.
    fn draw(&mut self) -> BTreeMap<Question, u8> {
        let kept = [10, 50, 90][self.chance.random_range(0..3)];
        let mut given = BTreeMap::new();
        for id in self.pending.writes.keys() {
            let question = Question::Write(*id);
            let answer = match self.chance.random_range(0..100) {
                roll if roll < kept => Fate::KEPT,
                roll if roll % 4 == 0 => self.chance.random_range(0..self.pending.answers(question)),
                _ => Fate::LOST,
            };
            given.insert(question, answer);
        }
        given
    }

    /// What an import finds if these answers are given: remembered, or tried.
    async fn leaf(&mut self, given: BTreeMap<Question, u8>) -> usize {
        let agrees = |outcome: &Outcome| {
            outcome
                .looked
                .answers
                .iter()
                .all(|(question, answer)| given.get(question).is_none_or(|g| g == answer))
        };
        if let Some(known) = self.memo.iter().position(agrees) {
            return known;
        }
        let crash = Crash::new(self.media.clone(), Arc::clone(&self.pending), given);
        let import = std::panic::AssertUnwindSafe((self.import)(crash.disks())).catch_unwind();
        let found = match import.await {
            Ok(found) => found,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Err(format!("panic: {}", text.unwrap_or_default()))
            }
        };
        self.counts.imports += 1;
        self.counts.replayed += found.as_ref().map_or(0, |found| found.replayed);
        self.memo.push(Outcome { looked: crash.looked(), found });
        self.memo.len() - 1
    }
}
