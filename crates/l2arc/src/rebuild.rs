//! What a device remembers: its header, and the log blocks from the newest back, as long as all is well.
//!
//! Reads are answered while this goes on, from the first log block on. Two log blocks are being read at any time, one of
//! each chain. Anything that is not as it should be ends the walk: what was found is used, and the report says why there
//! is not more.
//!
//! What there was no memory for, or was shed, is found in the same way when there is memory again, while the device is in use.
//! Then the ring knows where most of the log blocks are, and one that cannot be used costs what it tells of and no more.
//!
//! Facts: docs/format/l2arc.md, section 5.

use std::{
    fmt, io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use disk::{Disk, IoBuf};
use ondisk::l2arc::{Entry, Header, LogPointer, in_ring};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::{
    budget::Budget,
    device::Device,
    evict::hash_of,
    feed::{RETRY, write_header},
    header::{self, Mismatch, Refused},
    index::{Full, Place},
    ring::{self, Ring},
    stats::add,
    tier::{Open, Shared},
};

/// How much of a device's memory was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Blocks that are in the index again.
    pub blocks: u64,
    /// Blocks that the header tells of.
    pub of_blocks: u64,
    /// Log blocks read.
    pub log_blocks: u64,
    /// Log blocks that the header tells of.
    pub of_log_blocks: u64,
    /// Stored bytes of the blocks.
    pub bytes: u64,
    /// Why it is not more.
    pub because: Stopped,
}

/// Why the walk through the log blocks ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// There are no more.
    End,
    /// There are no more, and what else they told of had been written again since: it is in the index once.
    Again,
    /// There are no more, and what else they told of is encrypted.
    Encrypted,
    /// The rest is overwritten.
    Overtaken,
    /// A log block is not as it should be.
    LogBlock {
        /// Where it is.
        daddr: u64,
        /// What about it, in words.
        what: String,
    },
    /// The index may not take more memory.
    Memory,
    /// Nobody asked for it, or nothing was ever there.
    Fresh,
    /// The header is another device's: nothing of this one was there.
    Foreign(String),
    /// Devices of this size have no log blocks.
    TooSmall,
    /// The header does not fit: nothing was used.
    Refused(String),
}

impl Recovered {
    /// A walk that came to its end and found less than the header tells of has to say where the others are.
    fn explained(self, again: u64, encrypted: u64) -> Self {
        let is_all = self.log_blocks >= self.of_log_blocks;
        let because = match self.because {
            // What the oldest one leads to was given up before the header was written.
            Stopped::Overtaken if is_all => Stopped::End,
            because => because,
        };
        let because = match because {
            Stopped::End if !is_all => Stopped::Overtaken,
            Stopped::End if self.blocks < self.of_blocks && encrypted > again => Stopped::Encrypted,
            Stopped::End if self.blocks < self.of_blocks && again > 0 => Stopped::Again,
            because => because,
        };
        Self { because, ..self }
    }
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, of_blocks, log_blocks, of_log_blocks, bytes, because } = self;
        write!(
            f,
            "recovered {blocks} of {of_blocks} blocks ({log_blocks} of {of_log_blocks} log blocks, {bytes} bytes), \
             because {because}"
        )
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => write!(f, "there are no more"),
            Self::Again => write!(f, "the others had been written again since"),
            Self::Encrypted => write!(f, "the others are encrypted"),
            Self::Overtaken => write!(f, "the ring had overwritten the rest"),
            Self::LogBlock { daddr, what } => write!(f, "the log block at {daddr:#x} {what}"),
            Self::Memory => write!(f, "the index may not take more memory"),
            Self::Fresh => write!(f, "it is used afresh"),
            Self::TooSmall => write!(f, "it is too small to remember what it holds"),
            Self::Foreign(why) | Self::Refused(why) => write!(f, "{why}"),
        }
    }
}

/// A trim that is complete, in a header.
const TRIMMED: u64 = 4;
/// Bytes trimmed at a time.
const TRIM: u64 = 1 << 30;
/// How long is tried to be read what the device refuses: longer than one that comes back by itself takes.
pub(crate) const LASTING: Duration = Duration::from_secs(600);
/// Seconds in which the index may grow to all that it may take when what it lost is found again: whoever looks after memory looks
/// every few seconds where nothing happens, and has kept no room for it.
const GROW_WITHIN: f64 = 32.0;
/// By that much, and by no more than such a part of it, it may grow at once.
const GROWTH: (u64, u64) = (1 << 20, 64);

/// The ring of a device that is taken into use.
pub(crate) async fn begin(shared: &Shared, device: &Arc<Device>, open: Open) -> Ring {
    let config = shared.config();
    let header = match open {
        Open::Remember if config.rebuild => remembered(shared, device).await,
        _ => Err(Refused::Fresh),
    };
    let header = header.and_then(|header| {
        let is_usable = config.trim_ahead == 0 || header.trim_state == TRIMMED;
        if is_usable { Ok(header) } else { Err(Refused::Untrimmed) }
    });
    let counters = &shared.counters;
    let (mut ring, recovered) = match header {
        Ok(header) => {
            let mut ring = Ring::of_header(device.geometry, &header);
            let recovered = Walk::new(shared, device, &header, &mut ring).done().await;
            // Nothing found: it is as good as new, and filled faster if it counts as that.
            if recovered.log_blocks == 0 {
                (None, recovered)
            } else {
                add(&counters.l2_rebuild_success, 1);
                (Some(ring), recovered)
            }
        }
        Err(why) => {
            match &why {
                Refused::Fresh => {}
                // Counted when it failed first.
                Refused::Io(_) => {}
                Refused::Checksum(_) => add(&counters.l2_rebuild_dh_errors, 1),
                _ => add(&counters.l2_rebuild_unsupported, 1),
            }
            let nothing = Recovered {
                blocks: 0,
                of_blocks: 0,
                log_blocks: 0,
                of_log_blocks: 0,
                bytes: 0,
                because: match why {
                    Refused::Fresh => Stopped::Fresh,
                    Refused::Other(Mismatch::Device(_)) => Stopped::Foreign(why.to_string()),
                    why => Stopped::Refused(why.to_string()),
                },
            };
            (None, nothing)
        }
    };
    if ring.is_none() {
        ring = Some(afresh(shared, device, config.trim_ahead > 0).await);
    }
    device.recovered.send_replace(Some(recovered));
    ring.unwrap_or_else(|| Ring::new(device.geometry))
}

/// Looks again for what the device tells of, because the index lacks some of it and has room now. Whether it did not give all
/// that it was asked for, and may in a while.
pub(crate) async fn again(shared: &Shared, device: &Arc<Device>, ring: &mut Ring) -> bool {
    // What is lost from now on is looked for the next time.
    device.short.send_replace(None);
    for entry in ring.pending.iter().chain(&ring.victims) {
        // If there is no memory for it, there is none for what the log blocks tell of.
        let _known_or_full = put(shared, device, entry);
    }
    if ring.logs.is_empty() {
        // The chain begins with what is overtaken.
        return false;
    }
    // As it would be found now by whoever opens it.
    let (header, known) = (ring.header(device.who), ring.logs.len() as u64);
    let (most, part) = GROWTH;
    let growth = Budget::new(most.min(shared.config().index_max / part));
    let mut walk = Walk { known, growth: Some(growth), ..Walk::new(shared, device, &header, ring) };
    let recovered = walk.done().await;
    let path = device.disk.info().path;
    tracing::info!(path, "cache device, looked through again: {recovered}");
    device.recovered.send_if_modified(|before| {
        let was_cut_short = before
            .as_ref()
            .is_some_and(|before| matches!(before.because, Stopped::Memory | Stopped::LogBlock { .. }));
        if was_cut_short {
            *before = Some(recovered);
        }
        was_cut_short
    });
    walk.is_unread
}

/// Puts a block into the index where the device tells of it, unless it is known already: where.
///
/// # Errors
/// There is no memory.
fn put(shared: &Shared, device: &Device, entry: &Entry) -> Result<Option<Place>, Full> {
    let place = device.place(entry);
    let known = shared.index.insert_new(hash_of(entry), place)?;
    if known.is_none() {
        device.holds(entry, &place, true);
    }
    Ok(known)
}

/// The header. One that cannot be read now is tried again: after it everything would be lost that the device holds. As long as
/// the device does not answer, always; where it refuses, what is written to that place may make it good.
async fn remembered(shared: &Shared, device: &Device) -> Result<Header, Refused> {
    let (began, mut pause) = (Instant::now(), RETRY.0);
    loop {
        let read = header::read(&device.disk, &device.geometry, device.who).await;
        let was_failing = device.failing.swap(matches!(read, Err(Refused::Io(_))), Relaxed);
        let lasts = |error: &io::Error| error.kind() != io::ErrorKind::TimedOut && began.elapsed() >= LASTING;
        match read {
            Err(Refused::Io(error)) if !lasts(&error) => {}
            read => return read,
        }
        add(&shared.counters.l2_rebuild_dh_errors, (!was_failing).into());
        sleep(pause).await;
        pause = (2 * pause).min(RETRY.1);
    }
}

/// An empty ring, and a header that says so: an old chain is never believed again.
async fn afresh(shared: &Shared, device: &Device, trim: bool) -> Ring {
    let mut ring = Ring::new(device.geometry);
    if trim {
        let mut at = ring.geometry.start;
        while at < ring.geometry.end {
            let len = TRIM.min(ring.geometry.end - at);
            // Advisory: a device that cannot is as good as one that did.
            let _unsupported = device.disk.trim(at, len).await;
            at += len;
        }
        ring.trim = (0, TRIMMED);
    }
    if write_header(shared, device, &mut ring).await.is_err() {
        add(&shared.counters.l2_writes_error, 1);
        device.failing.store(true, Relaxed);
    }
    ring
}

struct Walk<'a> {
    shared: &'a Shared,
    device: &'a Arc<Device>,
    header: &'a Header,
    ring: &'a mut Ring,
    /// So many of the newest log blocks are the ring's already.
    known: u64,
    /// How much the index may grow now; as much as it likes, if nobody says.
    growth: Option<Budget>,
    log_blocks: u64,
    /// Blocks that are in the index where it is told.
    blocks: u64,
    bytes: u64,
    /// Blocks that were told of and are not in the index by that.
    again: u64,
    encrypted: u64,
    /// The device did not give a log block.
    is_unread: bool,
}

/// A log block that is being read.
struct Reading {
    pointer: LogPointer,
    /// `None`: the pointer leads nowhere.
    task: Option<JoinHandle<io::Result<IoBuf>>>,
}

impl<'a> Walk<'a> {
    fn new(shared: &'a Shared, device: &'a Arc<Device>, header: &'a Header, ring: &'a mut Ring) -> Self {
        Self {
            shared,
            device,
            header,
            ring,
            known: 0,
            growth: None,
            log_blocks: 0,
            blocks: 0,
            bytes: 0,
            again: 0,
            encrypted: 0,
            is_unread: false,
        }
    }

    async fn run(&mut self) -> Stopped {
        // Each log block takes a sector, and so does what it tells of: there cannot be more, whatever a chain says.
        let geometry = self.ring.geometry;
        let most = geometry.ring() / geometry.sector / (geometry.log_entries + 1);
        let [newest, before] = self.header.newest;
        let (mut this, mut next) = (self.read(newest), self.read(before));
        // The newest of those that could not be used.
        let mut failed = None;
        for number in 0..=most {
            let Some(task) = this.task.take() else {
                let end = if this.pointer.aligned_size() == 0 { Stopped::End } else { Stopped::Overtaken };
                return failed.unwrap_or(end);
            };
            let log = self.log(&this.pointer, task).await;
            // Without what it leads to one of the two chains ends, unless the ring knows how it goes on.
            let previous = log.as_ref().map(|(previous, _)| *previous).unwrap_or_default();
            let after = self.read(self.pointer(number + 2).unwrap_or(previous));
            match log {
                Ok((_, entries)) => {
                    let had = self.shared.index.memory();
                    if !self.insert(&this.pointer, number, &entries) {
                        return Stopped::Memory;
                    }
                    self.grew(self.shared.index.memory().saturating_sub(had)).await;
                }
                Err(why) if number < self.known => {
                    failed.get_or_insert(why);
                }
                Err(why) => return failed.unwrap_or(why),
            }
            let (low, high) = (next.pointer.payload_start, this.pointer.payload_start);
            if !self.header.first_sweep() && in_ring(self.ring.evict, low, high) {
                return failed.unwrap_or(Stopped::Overtaken);
            }
            (this, next) = (next, after);
        }
        failed.unwrap_or(Stopped::End)
    }

    /// Where the log block is that is so many older than the newest, if the ring knows that.
    fn pointer(&self, number: u64) -> Option<LogPointer> {
        let older = usize::try_from(number).ok().filter(|_| number < self.known)?;
        let at = self.ring.logs.len().checked_sub(older)?.checked_sub(1)?;
        self.ring.logs.get(at).copied()
    }

    /// What a log block leads to, and its entries. One that cannot be used is counted.
    async fn log(
        &mut self,
        pointer: &LogPointer,
        task: JoinHandle<io::Result<IoBuf>>,
    ) -> Result<(LogPointer, Vec<Entry>), Stopped> {
        let decoded = match task.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stored) => ring::decode_log(pointer, &stored, self.ring.geometry.log_entries),
            Err(error) => {
                self.is_unread = true;
                Err(format!("cannot be read: {error}"))
            }
        };
        decoded.map_err(|what| {
            let counters = &self.shared.counters;
            let counter = match what.ends_with("checksum") {
                true => &counters.l2_rebuild_cksum_lb_errors,
                false => &counters.l2_rebuild_io_errors,
            };
            add(counter, 1);
            Stopped::LogBlock { daddr: pointer.daddr, what }
        })
    }

    /// Begins to read a log block, if the pointer leads to one that was not overwritten.
    fn read(&self, pointer: LogPointer) -> Reading {
        // A device too small for log blocks has none, whatever it says.
        let geometry = self.ring.geometry;
        let leads_somewhere = self.header.log_entries > 0
            && pointer.is_intact(self.header)
            && pointer.payload_start <= geometry.end
            && pointer.payload_start.is_multiple_of(512)
            && pointer.daddr.is_multiple_of(512);
        let task = leads_somewhere.then(|| {
            let device = Arc::clone(self.device);
            let len = pointer.aligned_size() as usize;
            tokio::spawn(async move { device.read_in_the_end(pointer.daddr, len).await })
        });
        Reading { pointer, task }
    }

    /// Puts the blocks of a log block, so many older than the newest, into the index, the newest first; false if there is no
    /// memory.
    fn insert(&mut self, log: &LogPointer, number: u64, entries: &[Entry]) -> bool {
        let (counters, geometry) = (&self.shared.counters, self.ring.geometry);
        let extent = self.ring.extent(log);
        let mut is_taken = true;
        for entry in entries.iter().rev() {
            let is_told_rightly = extent.iter().any(|part| part.contains(&entry.daddr))
                && entry.daddr.is_multiple_of(512)
                && entry
                    .daddr
                    .checked_add(geometry.aligned(entry.psize))
                    .is_some_and(|end| end <= geometry.end);
            // Ciphertext has no reader here.
            if !is_told_rightly || entry.protected {
                self.encrypted += u64::from(entry.protected);
                continue;
            }
            match put(self.shared, self.device, entry) {
                Ok(Some(known)) if known.address != self.device.base + entry.daddr => {
                    self.again += 1;
                    add(&counters.l2_rebuild_bufs_precached, 1);
                    continue;
                }
                Ok(Some(_here)) => {}
                Ok(None) => {
                    add(&counters.l2_rebuild_bufs, 1);
                    add(&counters.l2_rebuild_size, entry.lsize);
                    add(&counters.l2_rebuild_asize, entry.psize);
                }
                Err(_full) => {
                    is_taken = false;
                    break;
                }
            }
            self.blocks += 1;
            self.bytes += entry.psize;
        }
        self.shared.settle_displaced();
        // Also of one that was taken in part: whoever overwrites it has to know what it tells of.
        if number >= self.known {
            // It tells of these again: each block is told of once.
            self.ring.victims.retain(|entry| !extent.iter().any(|part| part.contains(&entry.daddr)));
            self.ring.logs.push_front(*log);
        }
        self.log_blocks += 1;
        add(&counters.l2_rebuild_log_blks, 1);
        is_taken
    }

    /// The index grew by so many bytes: waits if that is faster than it may.
    async fn grew(&mut self, bytes: u64) {
        let Some(growth) = &mut self.growth else { return };
        growth.spend(bytes);
        let rate = self.shared.config().index_max as f64 / GROW_WITHIN / self.shared.sharers() as f64;
        match growth.wait(0, rate) {
            None | Some(Duration::ZERO) => {}
            Some(wait) => sleep(wait).await,
        }
    }

    /// Walks, and says what came of it.
    async fn done(&mut self) -> Recovered {
        let because = self.run().await;
        if because == Stopped::Memory {
            add(&self.shared.counters.l2_rebuild_lowmem, 1);
            self.device.falls_short();
        }
        let log_blocks = self.log_blocks;
        // The chain leads on to what a header does not tell of that was written after a walk that ended early.
        let of_log_blocks = self.header.log_blocks.max(log_blocks);
        let of_blocks = of_log_blocks.saturating_mul(self.header.log_entries);
        self.ring.unread = match &because {
            Stopped::Memory => {
                let bytes = self.header.log_bytes.saturating_sub(self.ring.log_bytes());
                (of_log_blocks.saturating_sub(self.ring.logs.len() as u64), bytes)
            }
            _ => (0, 0),
        };
        let recovered = Recovered {
            blocks: self.blocks,
            of_blocks,
            log_blocks,
            of_log_blocks,
            bytes: self.bytes,
            because,
        };
        match self.header.log_entries {
            0 => Recovered { because: Stopped::TooSmall, ..recovered },
            _ => recovered.explained(self.again, self.encrypted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_to_the_end_says_where_the_blocks_are_that_it_did_not_find() {
        let all = Recovered {
            blocks: 100,
            of_blocks: 100,
            log_blocks: 10,
            of_log_blocks: 10,
            bytes: 0,
            because: Stopped::End,
        };
        let why = |found: Recovered, again, encrypted| found.explained(again, encrypted).because.to_string();
        assert_eq!(why(all.clone(), 0, 0), "there are no more");
        let fewer = Recovered { blocks: 90, ..all.clone() };
        assert_eq!(why(fewer.clone(), 10, 0), "the others had been written again since");
        assert_eq!(why(fewer.clone(), 1, 9), "the others are encrypted");
        assert_eq!(
            why(Recovered { log_blocks: 9, ..fewer.clone() }, 0, 0),
            "the ring had overwritten the rest"
        );
        // The oldest log block of a ring that has turned leads to one that is no more, and that is nothing lost.
        let turned = Recovered { because: Stopped::Overtaken, ..fewer };
        assert_eq!(why(turned.clone(), 10, 0), "the others had been written again since");
        assert_eq!(why(Recovered { log_blocks: 9, ..turned }, 10, 0), "the ring had overwritten the rest");
        let memory = Recovered { because: Stopped::Memory, blocks: 9, ..all };
        assert_eq!(why(memory, 10, 0), "the index may not take more memory", "what stopped it comes first");
    }
}
