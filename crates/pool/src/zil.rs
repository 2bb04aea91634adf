//! Reading an intent log: from the header in the object set along the chain of blocks to the records.
//!
//! ```text
//!   header ─▶ block ─▶ block ─▶ block ─▶ a place that was never written: the end, as it should be
//!               │ records: type, txg, sequence, what was done
//! ```
//!
//! The one place that decides what belongs to a log, for everybody who follows one: claiming, replaying, freeing,
//! verifying, showing. [`Chain`] does it without reading anything, [`Reader`] reads through the pool and has the
//! next block on its way while its caller works on the last one.
//!
//! Nothing in a block is believed before its checksum and its identity are right, and even then everything is
//! bounded: a chain that leads back to itself ends, and so does a record that would reach beyond its block.
//! Facts: docs/format/zil.md §2, §3.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva},
    zil::{Block, Body, ChainWords, Format, Header, Record, TxType, WriteData},
};
use tokio::task::JoinHandle;

use crate::{
    BoxFuture, Pool,
    dmu::ReadError,
    dsl::{Dataset, HeadKind},
    error::{BlockError, BlockErrorKind},
    io::{Bookmark, PoolIo, join::join_all},
    status::human,
    traverse::LEVEL_LOG,
    vdev::Vdev,
};

/// Blocks of one chain: at 4 KiB each, more than any pool lets a log grow to.
const BLOCKS_MAX: usize = 1 << 22;
/// Bytes that each record begins with: type, length, transaction group, sequence.
const RECORD_HEADER: usize = 32;

/// Why a chain goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Nothing is named: there is no log.
    Empty,
    /// It is another dataset's: a snapshot or clone shows a copy of a header.
    Foreign,
    /// This is how far the log was claimed.
    Claim,
    /// The block was allocated and never written: the usual end.
    Unwritten,
    /// It leads back to itself, or is longer than any log.
    Loop,
    /// The block does not name a successor of its own.
    Broken,
}

/// A chain of log blocks, followed block by block.
#[derive(Debug)]
pub struct Chain {
    objset: u64,
    header: Header,
    pointer: BlkPtr,
    seen: BTreeSet<(u32, u64)>,
    end: Option<End>,
    cut: bool,
}

impl Chain {
    /// The log of head `objset` (its object number in the MOS), which has this header.
    #[must_use]
    pub fn new(objset: u64, header: &Header) -> Self {
        let mut chain = Self {
            objset,
            pointer: header.log,
            header: header.clone(),
            seen: BTreeSet::new(),
            end: None,
            cut: false,
        };
        chain.admit();
        chain
    }

    /// Decides whether `pointer` is followed.
    fn admit(&mut self) {
        let words = ChainWords::from_words(self.pointer.checksum());
        let first = self.pointer.dvas().next();
        self.end = match first {
            None => Some(End::Empty),
            Some(_) if self.pointer.is_hole() => Some(End::Empty),
            Some(_) if words.objset != self.objset => Some(End::Foreign),
            Some(_) if !self.header.admits_block(words.sequence) => Some(End::Claim),
            Some(_) if self.seen.len() >= BLOCKS_MAX => Some(End::Loop),
            Some(dva) => (!self.seen.insert((dva.vdev, dva.offset))).then_some(End::Loop),
        };
    }

    /// The next block: its pointer, and what it is called. `None` at the end.
    #[must_use]
    pub fn next(&self) -> Option<(BlkPtr, Bookmark)> {
        let sequence = ChainWords::from_words(self.pointer.checksum()).sequence;
        let at = Bookmark { objset: self.objset, object: 0, level: LEVEL_LOG, blkid: sequence };
        self.end.is_none().then_some((self.pointer, at))
    }

    /// Goes on behind the next block, given its stored and verified bytes; without them, the log ends there.
    pub fn follow(&mut self, raw: Option<Bytes>) -> Option<LogBlock> {
        if self.end.is_some() {
            return None;
        }
        let words = ChainWords::from_words(self.pointer.checksum());
        let Some(block) = raw.and_then(|raw| LogBlock::new(&self.pointer, raw)) else {
            self.end = Some(End::Unwritten);
            self.cut = self.header.claim_txg != 0 && words.sequence < self.header.claim_block_seq;
            return None;
        };
        if block.continues {
            self.pointer = block.next;
            self.admit();
        } else {
            self.end = Some(End::Broken);
        }
        Some(block)
    }

    /// Why it goes no further, if it does not.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// It was claimed, should have gone on, and cannot be read: something that was there is lost.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The sequence of the place it is at.
    #[must_use]
    pub fn last(&self) -> u64 {
        ChainWords::from_words(self.pointer.checksum()).sequence
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }
}

/// One block of a log: verified, and whole.
#[derive(Clone, Debug)]
pub struct LogBlock {
    /// Who it is.
    pub words: ChainWords,
    /// What it names as its successor.
    pub next: BlkPtr,
    order: Order,
    records: Bytes,
    continues: bool,
}

impl LogBlock {
    fn new(pointer: &BlkPtr, raw: Bytes) -> Option<Self> {
        let words = ChainWords::from_words(pointer.checksum());
        let format = Format::from_checksum_id(pointer.checksum_id())?;
        let block = Block::decode(&raw, format, pointer.order()).ok()?;
        let (next, continues) = (block.next, block.continues(words));
        let records = raw.slice_ref(block.record_bytes());
        Some(Self { words, next, order: pointer.order(), records, continues })
    }

    /// Bytes of records.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.records.len()
    }

    /// Its records, up to the first that is not one: there the log ends.
    pub fn records(&self) -> impl Iterator<Item = LogRecord> + use<> {
        let (mut rest, order) = (self.records.clone(), self.order);
        std::iter::from_fn(move || {
            let word = |index: usize| order.u64_at("intent log record", &rest, index * 8).ok();
            let (kind, length, txg, sequence) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let length = usize::try_from(length).ok()?;
            if length < RECORD_HEADER || !length.is_multiple_of(8) || length > rest.len() {
                rest.clear();
                return None;
            }
            let bytes = rest.split_to(length);
            Some(LogRecord { kind: kind & !(1 << 63), txg, sequence, bytes, order })
        })
    }
}

/// One record, of which only the beginning was looked at.
#[derive(Clone, Debug)]
pub struct LogRecord {
    /// Its type as a number.
    pub kind: u64,
    /// The transaction group of what was done.
    pub txg: u64,
    /// Its sequence.
    pub sequence: u64,
    bytes: Bytes,
    order: Order,
}

impl LogRecord {
    /// Its type, if that is known.
    #[must_use]
    pub fn tx(&self) -> Option<TxType> {
        TxType::from_id(self.kind)
    }

    /// All of it.
    ///
    /// # Errors
    /// An unknown type, or lengths that contradict each other.
    pub fn decode(&self) -> ondisk::Result<Record<'_>> {
        Record::decode(&self.bytes, self.order)
    }

    /// The byte order it is in.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Bytes of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never: it has a beginning at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// A part of the record, which was borrowed from it, as bytes that keep its block in memory.
    #[must_use]
    pub fn share(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }

    /// The block that a write points to, if its data is not in the record itself.
    #[must_use]
    pub fn indirect(&self) -> Option<BlkPtr> {
        match self.decode().ok()?.body {
            Body::Write { data: WriteData::Indirect(pointer), .. } => Some(pointer),
            _ => None,
        }
    }
}

/// What was found at the next place of a chain.
#[derive(Debug)]
pub struct Found {
    /// The pointer to it.
    pub pointer: BlkPtr,
    /// What it is called.
    pub at: Bookmark,
    /// The block; why there is none where the log ends.
    pub block: Result<LogBlock, NoBlock>,
}

/// Why a place of a chain has no block.
#[derive(Clone, Debug)]
pub enum NoBlock {
    /// What is there is no block of this log: none was ever written, or none that still matters (its device was
    /// excluded, which is only written down when nothing depends on it).
    Unwritten,
    /// Devices did not answer: there may be one.
    Unreadable(BlockError),
}

/// Reads a chain through the pool.
#[derive(Debug)]
pub struct Reader {
    io: Arc<PoolIo>,
    chain: Chain,
    ahead: Option<JoinHandle<Result<Bytes, BlockError>>>,
}

impl Reader {
    /// The log of head `objset`, which has this header.
    #[must_use]
    pub fn new(io: &Arc<PoolIo>, objset: u64, header: &Header) -> Self {
        Self { io: Arc::clone(io), chain: Chain::new(objset, header), ahead: None }
    }

    /// How far it is.
    #[must_use]
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// What is at the next place; `None` at the end. The place after that is being read when this returns.
    pub async fn next(&mut self) -> Option<Found> {
        let (pointer, at) = self.chain.next()?;
        let read = match self.ahead.take() {
            Some(ahead) => ahead.await.ok(),
            None => None,
        };
        let read = match read {
            Some(read) => read,
            None => self.io.read_tentative(&pointer, at).await,
        };
        let (raw, why) = match read {
            Ok(raw) => (Some(raw), NoBlock::Unwritten),
            Err(error) if may_be_there(&self.io, &pointer, &error) => (None, NoBlock::Unreadable(error)),
            Err(_) => (None, NoBlock::Unwritten),
        };
        let block = self.chain.follow(raw);
        if let Some((pointer, at)) = self.chain.next() {
            let io = Arc::clone(&self.io);
            self.ahead = Some(tokio::spawn(async move { io.read_tentative(&pointer, at).await }));
        }
        Some(Found { pointer, at, block: block.ok_or(why) })
    }
}

/// Whether there may be a block of a log in a place that was [read](PoolIo::read_tentative) in vain: devices did not answer.
/// If they were excluded since, all that was logged there is in the pool.
pub(crate) fn may_be_there(io: &PoolIo, pointer: &BlkPtr, error: &BlockError) -> bool {
    let tree = io.tree();
    let is_excluded = |dva: Dva| tree.top(u64::from(dva.vdev)).is_some_and(Vdev::is_excluded);
    *error.kind() == BlockErrorKind::Device && !pointer.dvas().all(is_excluded)
}

/// The blocks a log has, each once: of the chain, and outside of it if only the log knows them. Collected by whoever
/// follows it.
#[derive(Debug, Default)]
pub struct Blocks {
    pointers: Vec<BlkPtr>,
    outside: BTreeSet<(u32, u64)>,
    is_over: bool,
}

impl Blocks {
    /// Adds what was found next in the log that has this header.
    pub fn add(&mut self, header: &Header, found: &Found) {
        if self.is_over {
            return;
        }
        self.pointers.push(found.pointer);
        let Ok(block) = &found.block else { return };
        for record in block.records() {
            if !header.admits_record(record.sequence) {
                self.is_over = true;
                return;
            }
            if let Some(pointer) = record.indirect()
                && is_owned(header, &pointer)
                && pointer.dvas().next().is_some_and(|dva| self.outside.insert((dva.vdev, dva.offset)))
            {
                self.pointers.push(pointer);
            }
        }
    }

    /// All of them.
    #[must_use]
    pub fn into_pointers(self) -> Vec<BlkPtr> {
        self.pointers
    }
}

/// Whether a block that a record points to is the log's: it was claimed with it. Older ones are in the dataset.
#[must_use]
pub fn is_owned(header: &Header, pointer: &BlkPtr) -> bool {
    header.claim_txg != 0
        && pointer.birth() >= header.claim_txg
        && pointer.level() == 0
        && !pointer.is_hole()
        && !pointer.is_embedded()
}

/// A head and the header of its intent log.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its dataset object.
    pub objset: u64,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: HeadKind,
    /// Its content is ciphertext.
    pub encrypted: bool,
    /// The header, which names a block.
    pub header: Header,
}

/// What is in a log and not in the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Name of the dataset.
    pub name: String,
    /// What it is.
    pub kind: HeadKind,
    /// Its content is ciphertext.
    pub encrypted: bool,
    /// Records that would have to be replayed.
    pub records: u64,
    /// Bytes that they write.
    pub bytes: u64,
}

impl Waiting {
    /// What that means for whoever looks at the dataset as of transaction group `txg`. In a pool that is written to
    /// (`is_written`) the log waits although volumes were replayed.
    #[must_use]
    pub fn sentence(&self, txg: u64, is_written: bool) -> String {
        let Self { name, kind, encrypted, records, bytes } = self;
        let records = if *records == 1 { "1 record".to_owned() } else { format!("{records} records") };
        let remedy = match kind {
            _ if *encrypted => "OpenZFS replays them once the key is loaded",
            HeadKind::Volume if is_written => "'zpool status' says why they could not be replayed",
            HeadKind::Volume => "import the pool for writing to replay them",
            _ => "OpenZFS replays them when it mounts the dataset",
        };
        format!(
            "'{name}' is shown as of txg {txg}: its intent log holds {records} ({}) that are not in the pool yet; {remedy}",
            human(*bytes)
        )
    }
}

/// The heads that name an intent log, as far as heads can be found.
///
/// # Errors
/// A head was found and cannot be read, or its header makes no sense.
pub fn heads(pool: &Pool) -> BoxFuture<'_, Result<Vec<Head>, ReadError>> {
    Box::pin(async move {
        let (live, unreadable) = pool.heads().await?;
        for error in unreadable {
            tracing::warn!(pool = pool.name(), %error, "whether it has an intent log cannot be told");
        }
        headers(&live).await.into_iter().filter_map(Result::transpose).collect()
    })
}

/// For each of these live datasets, in their order, whether it names an intent log.
pub fn headers(live: &[Dataset]) -> BoxFuture<'_, Vec<Result<Option<Head>, ReadError>>> {
    let headers = live.iter().map(|head| Box::pin(header_of(head)) as BoxFuture<'_, _>).collect();
    Box::pin(join_all(headers, HEADS_AT_ONCE))
}

/// Object sets read at a time.
const HEADS_AT_ONCE: usize = 64;

async fn header_of(dataset: &Dataset) -> Result<Option<Head>, ReadError> {
    let set = match dataset.objset().await {
        Ok(set) => set,
        // A dataset without an object set has no log.
        Err(ReadError::Inconsistent { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let at = Bookmark { objset: dataset.object(), object: 0, level: LEVEL_LOG, blkid: 0 };
    let header = Header::decode(&set.phys().zil_header, set.pointer().order());
    let header = header.map_err(ReadError::malformed(at))?;
    Ok((!header.log.is_hole()).then(|| Head {
        objset: dataset.object(),
        name: dataset.name().to_owned(),
        // The dataset does not know if its object set could not be read when it was found.
        kind: HeadKind::of(&set),
        encrypted: dataset.is_encrypted(),
        header,
    }))
}

/// What the intent logs of a pool hold that is not in it, by dataset. What is shown of them is as of the last
/// transaction group.
///
/// # Errors
/// As [`heads`].
pub fn waiting(pool: &Pool) -> BoxFuture<'_, Result<Vec<Waiting>, ReadError>> {
    Box::pin(async move {
        let mut all = Vec::new();
        for head in heads(pool).await? {
            all.extend(waiting_of(pool, head).await);
        }
        Ok(all)
    })
}

/// The same of one live dataset. In a pool that somebody writes to (`is_written`) a log waits only if it was claimed when the
/// pool was opened: any other is at work.
///
/// # Errors
/// It cannot be read, or its header makes no sense.
pub fn waiting_in<'a>(
    pool: &'a Pool,
    dataset: &'a Dataset,
    is_written: bool,
) -> BoxFuture<'a, Result<Option<Waiting>, ReadError>> {
    Box::pin(async move {
        match header_of(dataset).await? {
            Some(head) if !is_written || head.header.claim_txg != 0 => Ok(waiting_of(pool, head).await),
            _ => Ok(None),
        }
    })
}

async fn waiting_of(pool: &Pool, head: Head) -> Option<Waiting> {
    let (records, bytes) = pending(pool.io(), &head, pool.uberblock().txg).await;
    let Head { name, kind, encrypted, .. } = head;
    (records > 0).then_some(Waiting { name, kind, encrypted, records, bytes })
}

/// Records of a log, and bytes they write, that are not in the pool as of transaction group `synced`.
pub fn pending<'a>(io: &'a Arc<PoolIo>, head: &'a Head, synced: u64) -> BoxFuture<'a, (u64, u64)> {
    Box::pin(async move {
        let header = &head.header;
        let mut reader = Reader::new(io, head.objset, header);
        let (mut records, mut bytes) = (0, 0);
        while let Some(Found { block: Ok(block), .. }) = reader.next().await {
            for record in block.records() {
                if !header.admits_record(record.sequence) {
                    return (records, bytes);
                }
                if is_pending(header, &record, synced) {
                    records += 1;
                    bytes += written(&record);
                }
            }
        }
        (records, bytes)
    })
}

/// Whether a record is still to be replayed, `synced` being the last transaction group of the pool.
#[must_use]
pub fn is_pending(header: &Header, record: &LogRecord, synced: u64) -> bool {
    let from = if header.claim_txg == 0 { synced.saturating_add(1) } else { header.claim_txg };
    record.txg >= from && record.sequence > header.replay_seq && header.admits_record(record.sequence)
}

/// Bytes that a record writes.
#[must_use]
pub fn written(record: &LogRecord) -> u64 {
    match record.decode().map(|record| record.body) {
        Ok(Body::Write { length, .. }) => length,
        _ => 0,
    }
}
