//! Reading: what is in memory over what is committed.
//!
//! Memory is asked first and the committed state is loaded after that: a transaction group is forgotten only
//! after the state that contains it has taken the place of the one before, so whatever happens between the two
//! steps, every block is found in one of them. The other order would lose a group between them.
//!
//! The committed state may be replaced while it is read from. What it pointed to may then be freed, and later be
//! written over; the checksum tells, and the read begins again in the new state. Where there is no checksum the new state
//! tells: what it still has was nobody else's meanwhile.

use std::{ops::Range, sync::atomic::Ordering};

use block::{BlockVolume as _, Extent, Segment, Segments, VolumeError};
use futures_util::future::join_all;
use ondisk::blkptr::BlkPtr;
use smallvec::SmallVec;

use super::{LiveVolume, memory::Run};

/// How often a read begins again because the committed state was replaced under it. A block is written over
/// three groups after it was freed at the earliest, so one is rare and two in a row are a slow disk.
pub(super) const RETRIES: usize = 8;

impl LiveVolume {
    /// What memory has of these blocks; `None` if it is nothing.
    fn overlay(&self, offset: u64, len: u64) -> Option<SmallVec<[Run; 4]>> {
        // The pair of this is the store in `committed`, after the new state was put in place.
        if self.groups.load(Ordering::Acquire) == 0 {
            return None;
        }
        let blocks = offset / self.block..offset.saturating_add(len).div_ceil(self.block);
        self.memory.read().runs(blocks)
    }

    /// The part of a run of blocks that lies in the range: first byte and bytes.
    fn part(&self, run: &Run, offset: u64, len: u64) -> (u64, usize) {
        let blocks = match run {
            Run::Data(blkid, _) => *blkid..*blkid + 1,
            Run::Hole(blocks) | Run::Clean(blocks) => blocks.clone(),
        };
        let start = blocks.start.saturating_mul(self.block).max(offset);
        let end = blocks.end.saturating_mul(self.block).min(offset + len);
        (start, (end - start) as usize)
    }

    /// The segment of a run in memory.
    fn segment(&self, run: Run, start: u64, len: usize) -> Option<Segment> {
        match run {
            Run::Data(_, content) => {
                let within = (start % self.block) as usize;
                Some(Segment::Data(content.slice(within..within + len)))
            }
            Run::Hole(_) => Some(Segment::Zero(len)),
            Run::Clean(_) => None,
        }
    }

    pub(super) fn read_each_at_hand(
        &self,
        reads: &[(u64, usize)],
        found: &mut dyn FnMut(usize, Option<Segments>),
    ) {
        if self.check_open().is_err() {
            return (0..reads.len()).for_each(|number| found(number, None));
        }
        // What memory knows nothing of; the committed state is loaded after that.
        let mut clean: SmallVec<[(u64, usize); 16]> = SmallVec::new();
        let mut numbers: SmallVec<[usize; 16]> = SmallVec::new();
        for (number, (offset, len)) in reads.iter().enumerate() {
            if let Some(runs) = self.overlay(*offset, *len as u64) {
                let is_inside = self.check(*offset, *len as u64).is_ok();
                found(number, is_inside.then(|| self.over_committed(runs, *offset, *len)).flatten());
            } else {
                clean.push((*offset, *len));
                numbers.push(number);
            }
        }
        if clean.is_empty() {
            return;
        }
        let current = self.current.load();
        current.volume.read_cached_each(&clean, &mut |number, segments| found(numbers[number], segments));
    }

    pub(super) fn read_at_hand(&self, offset: u64, len: usize) -> Option<Segments> {
        self.check(offset, len as u64).ok()?;
        let Some(runs) = self.overlay(offset, len as u64) else {
            return self.current.load().volume.read_cached(offset, len);
        };
        self.over_committed(runs, offset, len)
    }

    /// A range of which memory has something, if the rest is at hand.
    fn over_committed(&self, runs: SmallVec<[Run; 4]>, offset: u64, len: usize) -> Option<Segments> {
        let current = self.current.load();
        let mut segments = Segments::new();
        for run in runs {
            let (start, len) = self.part(&run, offset, len as u64);
            match self.segment(run, start, len) {
                Some(segment) => segments.push(segment),
                None => segments.extend(current.volume.read_cached(start, len)?),
            }
        }
        Some(segments)
    }

    pub(super) async fn read_pieces(&self, offset: u64, len: usize) -> Result<Segments, VolumeError> {
        self.check(offset, len as u64)?;
        let Some(runs) = self.overlay(offset, len as u64) else {
            return Ok(self.read_committed(offset, len).await?.1);
        };
        // All that is not in memory is read at once.
        let clean = runs.iter().filter(|run| matches!(run, Run::Clean(_))).map(|run| {
            let (start, len) = self.part(run, offset, len as u64);
            self.read_committed(start, len)
        });
        let mut read = join_all(clean).await.into_iter();
        let mut segments = Segments::new();
        for run in runs {
            let (start, len) = self.part(&run, offset, len as u64);
            match self.segment(run, start, len) {
                Some(segment) => segments.push(segment),
                None => segments.extend(read.next().transpose()?.map(|(_, data)| data).unwrap_or_default()),
            }
        }
        Ok(segments)
    }

    /// Reads from what is committed, and says which state that was.
    pub(super) async fn read_committed(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<(u64, Segments), VolumeError> {
        self.read_state(offset, len, false).await
    }

    /// The same through what waits for devices that are away, as transaction groups do.
    pub(super) async fn read_patiently(
        &self,
        offset: u64,
        len: usize,
    ) -> Result<(u64, Segments), VolumeError> {
        self.read_state(offset, len, true).await
    }

    async fn read_state(
        &self,
        offset: u64,
        len: usize,
        is_patient: bool,
    ) -> Result<(u64, Segments), VolumeError> {
        let mut tries = 0;
        loop {
            let current = self.current.load_full();
            let volume = if is_patient { &current.patient } else { &current.volume };
            let outcome = volume.read_judged(offset, len).await;
            let is_replaced = self.current.load().generation != current.generation;
            let is_stale = is_replaced
                && match &outcome {
                    Ok((_, unverified)) => !self.still_has(unverified, is_patient).await,
                    Err(error) => matches!(error, VolumeError::Unreadable { .. } | VolumeError::Failed(_)),
                };
            match outcome {
                _ if is_stale && tries < RETRIES => tries += 1,
                // Of no block: hosts take one that is named for bad, and nothing is known of this one.
                Ok(_) if is_stale => {
                    let why = "what has no checksum was replaced whenever it was read: try again";
                    return Err(VolumeError::Failed(why.to_owned()));
                }
                outcome => return outcome.map(|(segments, _)| (current.generation, segments)),
            }
        }
    }

    /// Whether these blocks are there now; if that cannot be found out they have to be read again in any case.
    async fn still_has(&self, blocks: &[(u64, BlkPtr)], is_patient: bool) -> bool {
        if blocks.is_empty() {
            return true;
        }
        let now = self.current.load_full();
        let volume = if is_patient { &now.patient } else { &now.volume };
        matches!(volume.has(blocks).await, Ok(true))
    }

    pub(super) async fn list_extents(
        &self,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Result<Vec<Extent>, VolumeError> {
        self.check(offset, len)?;
        let end = offset + len;
        let blocks = offset / self.block..end.div_ceil(self.block);
        let mut list = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            // What is dirty comes one block at a time, and nothing of it waits: others have their turn in between.
            tokio::task::coop::consume_budget().await;
            let run = self.memory.read().run(at, blocks.end);
            let (start, bytes) = self.part(&run, offset, len);
            let bytes = bytes as u64;
            let room = match &run {
                Run::Data(..) => push(&mut list, max, Extent { len: bytes, hole: false }),
                Run::Hole(_) => push(&mut list, max, Extent { len: bytes, hole: true }),
                Run::Clean(_) => self.push_committed(&mut list, max, start..start + bytes).await?,
            };
            if !room {
                break;
            }
            at = run.end();
        }
        Ok(list)
    }

    /// Appends the extents of what is committed; false if there were too many.
    async fn push_committed(
        &self,
        list: &mut Vec<Extent>,
        max: usize,
        bytes: Range<u64>,
    ) -> Result<bool, VolumeError> {
        let len = bytes.end - bytes.start;
        let mut tries = 0;
        let extents = loop {
            let current = self.current.load_full();
            // One more than there is room for: the first may continue the last of the list.
            match current.volume.extents(bytes.start, len, max.saturating_add(1)).await {
                Err(VolumeError::Unreadable { .. } | VolumeError::Failed(_))
                    if tries < RETRIES && self.current.load().generation != current.generation =>
                {
                    tries += 1;
                }
                result => break result?,
            }
        };
        let covered: u64 = extents.iter().map(|extent| extent.len).sum();
        let room = extents.into_iter().all(|extent| push(list, max, extent));
        Ok(room && covered == len)
    }
}

/// Appends an extent, to the last one where it continues it; false if it is one too many.
fn push(list: &mut Vec<Extent>, max: usize, extent: Extent) -> bool {
    let room = list.len() < max;
    match list.last_mut() {
        Some(last) if last.hole == extent.hole => last.len += extent.len,
        _ if room => list.push(extent),
        _ => return false,
    }
    true
}
