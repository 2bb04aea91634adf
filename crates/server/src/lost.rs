//! What a pool's error log names, by name: objects of datasets, and of volumes the bytes.
//!
//! A scrub reads a block that several share only once, for the oldest snapshot that has it, and that is where the log has
//! it. Clients use what lives; so the live dataset of that snapshot and the snapshot's clones are named as well where they
//! still have the same block.
//!
//! With feature `head_errlog` the log has a block under the live dataset, whoever of it and its snapshots holds it, and
//! says when it was born. Then those are named that have a block of that birth there; what the live dataset has may be
//! good.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use pool::{
    Bookmark, Pool,
    dmu::{BlockSource, Cursor, Object, ObjectSet, ReadError, Step, Unblamed},
    dsl::{Dataset, DatasetKind},
    ondisk::blkptr::BlkPtr,
    status::LoggedError,
    text::clean,
};

use crate::api::LostBytes;

/// Entries of the log that are looked up at most: each may take reads of damaged devices.
const ENTRIES_MAX: usize = 1000;

/// Objects that are named at most, of which each has at least one entry looked up.
const OBJECTS_MAX: usize = ENTRIES_MAX;

/// Clones of one snapshot that are looked at at most.
const CLONES_MAX: usize = 16;

/// Snapshots that are looked at at most for one block.
const SNAPSHOTS_MAX: usize = 16;

/// What is said of an object that does not have the block of the log any more.
const GONE: &str = " (overwritten or freed since)";

/// What a log names.
#[derive(Debug)]
pub(crate) struct Named {
    /// The objects that have lost blocks.
    pub(crate) objects: Vec<String>,
    /// Of volumes which bytes; neighbours are one.
    pub(crate) bytes: Vec<LostBytes>,
    /// Blocks of the log that nobody looked up, as there are too many.
    pub(crate) more: u64,
}

/// Looks up what is lost.
pub(crate) async fn named(pool: &Pool, log: &[LoggedError]) -> Named {
    let turns = turns(log);
    let (mut look, mut names) = (Look::new(pool, &sets(&turns)).await, BTreeMap::new());
    // By object set, object, and whether nobody has what was lost any more: blocks of data.
    let mut found = BTreeMap::<(u64, u64, bool), BTreeSet<u64>>::new();
    let mut looked_up = 0;
    for (entries, is_all) in turns {
        looked_up += entries.len();
        for entry in entries {
            let at = entry.at;
            let mut having = look.having(entry).await;
            if !is_all {
                // Who has the rest is not known: at least the one that the log names is to be looked at.
                having.push((at.objset, look.datasets.get(&at.objset).cloned(), Holds::Unknown));
            }
            for (objset, dataset, holds) in having {
                if let Entry::Vacant(vacant) = names.entry(objset) {
                    let called = called(objset, dataset.as_ref()).await;
                    vacant.insert(called);
                }
                let blocks = found.entry((objset, at.object, holds == Holds::Gone)).or_default();
                blocks.extend((at.level == 0 && holds == Holds::It).then_some(at.blkid));
            }
        }
    }
    let (mut lines, mut ranges) = (Vec::new(), Vec::<LostBytes>::new());
    for ((objset, object, is_gone), blocks) in found {
        let (name, block) = &names[&objset];
        let mut line = format!("{name}:<0x{object:x}>");
        if is_gone {
            line.push_str(GONE);
        }
        // A volume's data are its object 1.
        if let Some(length) = block.filter(|_| object == 1) {
            for offset in blocks.iter().filter_map(|blkid| blkid.checked_mul(length)) {
                match ranges.last_mut() {
                    Some(last)
                        if last.object == line && last.offset.checked_add(last.length) == Some(offset) =>
                    {
                        last.length += length;
                    }
                    _ => ranges.push(LostBytes { object: line.clone(), offset, length }),
                }
            }
        }
        lines.push(line);
    }
    Named { objects: lines, bytes: ranges, more: (log.len() - looked_up) as u64 }
}

/// Entries of one object, and whether those are all it has.
type Turn<'a> = (&'a [LoggedError], bool);

/// What is looked up of a log that is sorted: of each object the first entries. An object
/// with many leaves the others their part, and an object set with many objects leaves the other sets theirs.
fn turns(log: &[LoggedError]) -> Vec<Turn<'_>> {
    let (mut objects, mut set, mut nth) = (Vec::new(), None, 0);
    for entries in log.chunk_by(|a, b| (a.at.objset, a.at.object) == (b.at.objset, b.at.object)) {
        let objset = entries.first().map(|entry| entry.at.objset);
        nth = if set == objset { nth + 1 } else { 0 };
        set = objset;
        objects.push((nth, entries));
    }
    objects.sort_by_key(|(nth, _)| *nth);
    objects.truncate(OBJECTS_MAX);
    // Those with few first: what they leave is for those with many.
    objects.sort_by_key(|(_, entries)| entries.len());
    let (mut room, mut left) = (ENTRIES_MAX, objects.len());
    let mut found = Vec::with_capacity(left);
    for (_, entries) in objects {
        let taken = entries.len().min(room / left);
        room -= taken;
        left -= 1;
        found.push((&entries[..taken], taken == entries.len()));
    }
    found
}

/// The object sets of those, each once.
fn sets(turns: &[Turn<'_>]) -> Vec<u64> {
    let all = turns.iter().filter_map(|(entries, _)| entries.first()).map(|entry| entry.at.objset);
    all.collect::<BTreeSet<u64>>().into_iter().collect()
}

/// Whether a dataset has the block that was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    /// It has; or the log says that very dataset.
    It,
    /// It is not known who has.
    Unknown,
    /// Neither it nor any other that may have it.
    Gone,
}

/// An object set that is named: its number, its dataset if it is there and one, and what it holds.
type Holder = (u64, Option<Dataset>, Holds);

/// A way to a block cannot be read, and is not tried again in this look.
#[derive(Debug)]
struct Unread;

/// One look at who has what the log names. Much of what leads there may be damaged, too; so nothing counts that goes wrong,
/// and what could not be read is not read again.
struct Look {
    source: Arc<dyn BlockSource>,
    /// Those that are looked up, as far as they are there.
    datasets: BTreeMap<u64, Dataset>,
    /// Of live datasets, oldest first.
    snapshots: BTreeMap<u64, Vec<Dataset>>,
    /// Of snapshots.
    clones: BTreeMap<u64, Vec<Dataset>>,
    sets: BTreeMap<u64, Result<Arc<ObjectSet>, ReadError>>,
    /// By object set and object. Only those of one object of the log: each holds blocks.
    ways: BTreeMap<(u64, u64), (Object, Cursor)>,
    /// The object set and object of the log that those are about.
    ways_of: (u64, u64),
    /// Objects, by set, with a way that could not be read.
    broken: BTreeSet<(u64, u64)>,
}

impl Look {
    /// `sets` are the object sets that the log names.
    async fn new(pool: &Pool, sets: &[u64]) -> Self {
        let datasets = match pool.dsl().await {
            Ok(dsl) => dsl.by_objects(sets).await,
            Err(_) => BTreeMap::new(),
        };
        Self {
            source: Arc::new(Unblamed(Arc::clone(pool.io()))),
            datasets,
            snapshots: BTreeMap::new(),
            clones: BTreeMap::new(),
            sets: BTreeMap::new(),
            ways: BTreeMap::new(),
            ways_of: (0, 0),
            broken: BTreeSet::new(),
        }
    }

    /// Which object sets are to be named for this entry. No dataset if what the log names is not there any more, or is
    /// none.
    async fn having(&mut self, entry: &LoggedError) -> Vec<Holder> {
        let at = entry.at;
        if self.ways_of != (at.objset, at.object) {
            self.ways_of = (at.objset, at.object);
            self.ways.clear();
        }
        let Some(logged) = self.datasets.get(&at.objset).cloned() else {
            return vec![(at.objset, None, Holds::It)];
        };
        match entry.birth {
            Some(birth) => self.of_birth(logged, at, birth).await,
            None => self.sharing(logged, at).await,
        }
    }

    /// Always the one that the log names; of a snapshot those in use as well that share the block.
    async fn sharing(&mut self, logged: Dataset, at: Bookmark) -> Vec<Holder> {
        let mut having = vec![(at.objset, Some(logged.clone()), Holds::It)];
        if logged.kind() != DatasetKind::Snapshot {
            return having;
        }
        if let Ok(Some(lost)) = self.pointer(&logged, at).await {
            let mut others = self.clones(&logged).await;
            others.insert(0, logged.live().clone());
            for other in others {
                if self.pointer(&other, at).await.is_ok_and(|found| found == Some(lost)) {
                    having.push((other.object(), Some(other), Holds::It));
                }
            }
        }
        having
    }

    /// Of a live dataset, its snapshots and their clones, those with a block of this birth there. If there is none, the
    /// live one, and what is to be said of it.
    async fn of_birth(&mut self, head: Dataset, at: Bookmark, birth: u64) -> Vec<Holder> {
        let (mut holders, mut others, mut is_unknown) = (Vec::new(), vec![head.clone()], false);
        for snapshot in self.snapshots(&head, birth).await {
            match self.has(&snapshot, at, birth).await {
                Ok(true) => {
                    let room = (1 + CLONES_MAX).saturating_sub(others.len());
                    others.extend(self.clones(&snapshot).await.into_iter().take(room));
                    holders.push(snapshot);
                }
                // What was overwritten once is in no later one.
                Ok(false) if !holders.is_empty() => break,
                Ok(false) => {}
                Err(Unread) => is_unknown = true,
            }
        }
        for other in others {
            match self.has(&other, at, birth).await {
                Ok(true) => holders.push(other),
                Ok(false) => {}
                Err(Unread) => is_unknown = true,
            }
        }
        if holders.is_empty() {
            let holds = if is_unknown { Holds::Unknown } else { Holds::Gone };
            return vec![(at.objset, Some(head), holds)];
        }
        holders.into_iter().map(|holder| (holder.object(), Some(holder), Holds::It)).collect()
    }

    /// Whether this dataset has a block of that birth there.
    async fn has(&mut self, dataset: &Dataset, at: Bookmark, birth: u64) -> Result<bool, Unread> {
        let found = self.pointer(dataset, at).await?;
        // Which of its births is logged depends on who wrote the log.
        Ok(found.is_some_and(|found| [found.birth(), found.physical_birth()].contains(&birth)))
    }

    /// The first snapshots of a live dataset that are young enough for a block of this birth.
    async fn snapshots(&mut self, head: &Dataset, birth: u64) -> Vec<Dataset> {
        let snapshots = match self.snapshots.entry(head.object()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                let all = head.readable_snapshots().await.map(|(all, _unreadable)| all);
                vacant.insert(all.unwrap_or_default())
            }
        };
        let may_have = snapshots.iter().filter(|snapshot| snapshot.create_txg() >= birth);
        may_have.take(SNAPSHOTS_MAX).cloned().collect()
    }

    async fn clones(&mut self, snapshot: &Dataset) -> Vec<Dataset> {
        if let Some(known) = self.clones.get(&snapshot.object()) {
            return known.clone();
        }
        let mut all = Vec::new();
        for clone in snapshot.clones().await.unwrap_or_default().iter().take(CLONES_MAX) {
            all.extend(snapshot.dsl().lookup(clone).await.ok());
        }
        self.clones.insert(snapshot.object(), all.clone());
        all
    }

    /// What leads to the block that this dataset has at that place, if it has one there.
    async fn pointer(&mut self, dataset: &Dataset, at: Bookmark) -> Result<Option<BlkPtr>, Unread> {
        let level = u8::try_from(at.level).map_err(|_| Unread)?;
        let key = (dataset.object(), at.object);
        if self.broken.contains(&key) {
            return Err(Unread);
        }
        match self.seek(dataset, at.object, level, at.blkid).await {
            Ok(Step::Block(pointer)) => Ok(Some(pointer)),
            Ok(Step::Hole { .. } | Step::Need { .. }) | Err(ReadError::NoObject { .. }) => Ok(None),
            Err(_) => {
                self.broken.insert(key);
                Err(Unread)
            }
        }
    }

    async fn seek(
        &mut self,
        dataset: &Dataset,
        object: u64,
        level: u8,
        blkid: u64,
    ) -> Result<Step, ReadError> {
        let set = self.set(dataset).await?;
        let (object, cursor) = match self.ways.entry((dataset.object(), object)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(vacant) => {
                // The dnodes are an object of their own, which has no dnode among them.
                let found = if object == 0 { set.meta().clone() } else { set.object(object).await? };
                vacant.insert((found, Cursor::default()))
            }
        };
        object.seek(cursor, level, blkid).await
    }

    /// Its object set, read as all else is here.
    async fn set(&mut self, dataset: &Dataset) -> Result<Arc<ObjectSet>, ReadError> {
        let objset = dataset.object();
        let no_data = ReadError::NoObject { objset: 0, object: objset };
        let phys = dataset.phys().ok_or(no_data)?;
        match self.sets.entry(objset) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(vacant) => {
                let opened = ObjectSet::open(Arc::clone(&self.source), objset, phys.bp).await;
                vacant.insert(opened).clone()
            }
        }
    }
}

/// What an object set is called, and of a volume the size of its blocks.
async fn called(objset: u64, dataset: Option<&Dataset>) -> (String, Option<u64>) {
    match dataset {
        Some(dataset) => {
            // A snapshot has that of its volume.
            let properties = dataset.live().properties().await.ok();
            (clean(dataset.name()), properties.and_then(|properties| properties.number("volblocksize")))
        }
        None if objset == 0 => ("<metadata>".to_owned(), None),
        None => (format!("<0x{objset:x}>"), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sorted, as [`pool::status::error_log`] gives it: object set, object, and how many blocks.
    fn log(objects: &[(u64, u64, u64)]) -> Vec<LoggedError> {
        let blocks = |&(objset, object, count): &(u64, u64, u64)| {
            (0..count).map(move |blkid| LoggedError {
                at: Bookmark { objset, object, level: 0, blkid },
                birth: None,
            })
        };
        objects.iter().flat_map(blocks).collect()
    }

    fn taken(log: &[LoggedError]) -> BTreeMap<(u64, u64), (usize, bool)> {
        let of = |(entries, is_all): (&[LoggedError], bool)| {
            let at = entries[0].at;
            assert_eq!(at.blkid, 0, "the first ones");
            ((at.objset, at.object), (entries.len(), is_all))
        };
        turns(log).into_iter().map(of).collect()
    }

    /// The first thousand were those of the volume with the lowest number: who restored what was named left guests on others
    /// with lost blocks.
    #[test]
    fn a_volume_that_lost_much_hides_no_other() {
        let found = taken(&log(&[(60, 1, 3000), (61, 1, 1), (62, 1, 2213)]));
        let is = [((60, 1), (500, false)), ((61, 1), (1, true)), ((62, 1), (499, false))];
        assert_eq!(found, BTreeMap::from(is));
        assert_eq!(taken(&log(&[(60, 1, 5214)])), BTreeMap::from([((60, 1), (ENTRIES_MAX, false))]));
        let whole = taken(&log(&[(60, 1, 998), (61, 1, 1), (62, 1, 1)]));
        assert!(whole.values().all(|(_, is_all)| *is_all), "{whole:?}");
        assert_eq!(taken(&[]), BTreeMap::new());
    }

    #[test]
    fn a_dataset_with_many_objects_hides_no_other() {
        let mut objects: Vec<_> = (0..5000).map(|object| (60, object, 2)).collect();
        objects.push((61, 1, 3000));
        let found = taken(&log(&objects));
        assert_eq!(
            (found.len(), found.values().map(|(taken, _)| taken).sum::<usize>()),
            (OBJECTS_MAX, ENTRIES_MAX)
        );
        assert_eq!(found[&(61, 1)], (1, false));
    }

    /// Each is read to learn its name: of a damaged pool with tens of thousands of snapshots all of them were, at each look.
    #[test]
    fn only_object_sets_that_have_a_turn_are_read() {
        let objects: Vec<_> = (0..5000).flat_map(|set| [(set, 1, 1), (set, 2, 1)]).collect();
        assert_eq!(sets(&turns(&log(&objects))), Vec::from_iter(0..OBJECTS_MAX as u64));
    }
}
