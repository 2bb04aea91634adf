//! Block pointers: where a block lives, how big it is, what it must hash to.
//!
//! ```text
//!  word 0─5   three DVAs: (vdev, offset, allocated size), the copies of the block
//!       6     prop: sizes, codecs, type, level, flags
//!       9, 10 physical and logical birth txg        11  fill        12─15  checksum
//! ```
//!
//! Other forms share the 16 words: a *hole* (no DVA: reads as zeroes), an *embedded* block (112 bytes
//! of payload where DVAs and checksum would be), an *encrypted* one (DVA 2 holds salt and IV).
//! Every [`BlkPtr`] that exists has passed the rules of [`BlkPtr::from_words`], so code further up
//! may use its sizes and offsets without thinking about overflow. What only the pool can know (does
//! this vdev exist, does the offset lie inside) is checked there.
//!
//! All words are kept as stored, so decode and encode are inverse to each other bit by bit.
//!
//! Facts: docs/format/blkptr.md.

use std::fmt;

pub mod packed;

use crate::dnode::ObjectType;
use crate::{Error, Order, Reason, Result};

const STRUCTURE: &str = "block pointer";

/// Log2 of a sector: 512 bytes, the unit of sizes and offsets in block pointers whatever the ashift.
pub const SECTOR_SHIFT: u32 = 9;
/// Largest legal logical or physical size of a block, in bytes.
pub const BLOCK_BYTES_MAX: u64 = 16 << 20;
/// Most bytes an embedded block pointer can carry.
pub const EMBEDDED_BYTES_MAX: usize = 112;

/// First number that is not a compression id.
const COMPRESSION_END: u8 = 17;
/// First number that is not a checksum id.
const CHECKSUM_END: u8 = 15;
/// `off`: what an embedded block pointer has.
const CHECKSUM_OFF: u8 = 2;

const PROP: usize = 6;
const FLAGS: usize = 7;
const BIRTH_PHYSICAL: usize = 9;
const BIRTH: usize = 10;
const FILL: usize = 11;
/// The words that carry payload in an embedded block pointer.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

const EMBEDDED: u32 = 39;
const CRYPT: u32 = 61;
const DEDUP: u32 = 62;
const LITTLE: u32 = 63;
/// In word 7.
const REWRITTEN: u32 = 63;
const GANG: u32 = 63;

/// `len` bits of `word` from bit `low` up; callers pass constants.
const fn bits(word: u64, low: u32, len: u32) -> u64 {
    (word >> low) & (1_u64 << len).saturating_sub(1)
}

/// One copy of a block: `dva_t` to OpenZFS.
///
/// ```text
///       63        56 55              32 31     24 23               0
/// [0]  |    pad     |      vdev        |   pad   |  asize, sectors  |
/// [1]  |G|                     offset, sectors                      |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Dva {
    /// Id of the top-level vdev.
    pub vdev: u32,
    /// Byte offset in the vdev's allocatable space (byte 0 is device byte 4 MiB of a leaf).
    pub offset: u64,
    /// Allocated bytes: with parity and padding, and of the whole gang if it is one.
    pub asize: u64,
    /// The place holds a gang header, not the data.
    pub gang: bool,
}

impl Dva {
    /// Highest `offset + asize` accepted, in bytes: leaves room to add label sizes.
    pub const END_MAX: u64 = 1 << 62;

    /// The address in the two words.
    #[must_use]
    pub const fn from_words(words: [u64; 2]) -> Self {
        let [low, high] = words;
        Self {
            vdev: bits(low, 32, 24) as u32,
            offset: high << SECTOR_SHIFT,
            asize: bits(low, 0, 24) << SECTOR_SHIFT,
            gang: bits(high, GANG, 1) != 0,
        }
    }

    /// The two words, if each field fits and sits on a sector.
    #[must_use]
    pub fn to_words(self) -> Option<[u64; 2]> {
        let sector = (1_u64 << SECTOR_SHIFT) - 1;
        let asize = self.asize >> SECTOR_SHIFT;
        let fits = self.asize & sector == 0
            && self.offset & sector == 0
            && asize < 1 << 24
            && self.vdev < 1 << 24
            && self.offset <= Self::END_MAX;
        let low = asize | u64::from(self.vdev) << 32;
        let high = self.offset >> SECTOR_SHIFT | u64::from(self.gang) << GANG;
        fits.then_some([low, high])
    }
}

/// `vdev:offset:asize` in hexadecimal, as `zdb` prints and reads it.
impl fmt::Display for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}:{:x}", self.vdev, self.offset, self.asize)
    }
}

/// What protects a block of an encrypted dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protection {
    /// Not of an encrypted dataset.
    None,
    /// Ciphertext; the last two checksum words hold a MAC, DVA 2 salt and IV.
    Encrypted,
    /// Plain text with a MAC in the last two checksum words.
    Authenticated,
    /// An indirect block: the last two checksum words are a MAC over the MACs below.
    IndirectMac,
}

/// What an embedded block pointer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EmbeddedKind {
    /// The block's stored form.
    Data,
    /// Reserved by OpenZFS.
    Reserved,
    /// Nothing: the block was redacted from a received stream, and reading it is an error.
    Redacted,
}

/// The payload of an embedded block pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// What it is.
    pub kind: EmbeddedKind,
    /// Bytes after decompression.
    pub lsize: u64,
    /// Compression id of the payload.
    pub compression_id: u8,
    len: usize,
    bytes: [u8; EMBEDDED_BYTES_MAX],
}

impl Embedded {
    /// The stored (compressed) bytes.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// What a writer knows of a block it has stored; see [`BlkPtr::stored`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Copies, filled from the front; [`Dva::default`] means unused.
    pub dvas: [Dva; 3],
    /// Logical bytes.
    pub lsize: u64,
    /// Stored bytes.
    pub psize: u64,
    /// Compression id.
    pub compression_id: u8,
    /// Checksum id.
    pub checksum_id: u8,
    /// Object type.
    pub object_type: ObjectType,
    /// Level: 0 for data.
    pub level: u8,
    /// The block is listed in the dedup table.
    pub dedup: bool,
    /// Byte order of the block's content.
    pub order: Order,
    /// Logical birth txg.
    pub birth: u64,
    /// Physical birth txg; equal to `birth` for a freshly written block.
    pub physical_birth: u64,
    /// Fill count.
    pub fill: u64,
    /// Checksum words.
    pub checksum: [u64; 4],
}

/// A validated block pointer: 16 words, small enough to copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlkPtr {
    words: [u64; 16],
}

impl BlkPtr {
    /// Size on disk.
    pub const BYTES: usize = 128;
    /// Log2 of [`BYTES`](Self::BYTES).
    pub const SHIFT: u32 = 7;
    /// A hole that was never written: all zero.
    pub const EMPTY: Self = Self { words: [0; 16] };

    /// Reads the first 128 bytes of `data`; `order` is that of the block that contains the pointer.
    ///
    /// # Errors
    /// Short input, or a pointer that breaks a rule of [`from_words`](Self::from_words).
    #[inline]
    pub fn decode(data: &[u8], order: Order) -> Result<Self> {
        let Some(words) = data.as_chunks::<8>().0.first_chunk::<16>() else {
            let reason = Reason::Truncated { need: Self::BYTES, have: data.len() };
            return Err(Error::new(STRUCTURE, 0, reason));
        };
        Self::from_words(words.map(|word| order.u64(word)))
    }

    /// Reads an indirect block or any other array of pointers: entry `index`.
    ///
    /// # Errors
    /// As [`decode`](Self::decode); an index beyond the end is a truncated block.
    #[inline]
    pub fn decode_at(block: &[u8], index: usize, order: Order) -> Result<Self> {
        let start = index.saturating_mul(Self::BYTES);
        let decoded = Self::decode(block.get(start..).unwrap_or_default(), order);
        decoded.map_err(|error| Error { offset: error.offset.saturating_add(start), ..error })
    }

    /// Checks the words of a pointer.
    ///
    /// Rules: the type is known; compression and checksum ids exist; sizes are at most 16 MiB; an
    /// embedded payload fits; otherwise the first DVA has a size, no DVA reaches beyond 2^62 bytes,
    /// and all DVAs are gangs or none is.
    ///
    /// # Errors
    /// The first rule that is broken, with the byte offset of the word.
    #[inline]
    pub fn from_words(words: [u64; 16]) -> Result<Self> {
        let pointer = Self { words };
        if words == [0; 16] {
            return Ok(pointer); // the common case in sparse indirect blocks
        }
        match pointer.flaw() {
            None => Ok(pointer),
            Some((word, reason)) => Err(Error::new(STRUCTURE, word.saturating_mul(8), reason)),
        }
    }

    /// The first broken rule: (word, reason).
    fn flaw(&self) -> Option<(usize, Reason)> {
        let range = |field, value| Some((PROP, Reason::OutOfRange { field, value }));
        if !self.object_type().is_valid() {
            return range("type", u64::from(self.object_type().0));
        }
        if self.compression_id() >= COMPRESSION_END {
            return range("compression", u64::from(self.compression_id()));
        }
        if self.lsize() > BLOCK_BYTES_MAX {
            return range("lsize", self.lsize());
        }
        if self.is_embedded() {
            let etype = bits(self.prop(), 40, 8);
            if etype > 2 {
                return range("embedded type", etype);
            }
            let psize = bits(self.prop(), 25, 7).saturating_add(1);
            return if psize > EMBEDDED_BYTES_MAX as u64 { range("embedded psize", psize) } else { None };
        }
        if bits(self.prop(), 40, 8) >= u64::from(CHECKSUM_END) {
            return range("checksum", bits(self.prop(), 40, 8));
        }
        if self.is_hole() {
            return None;
        }
        if self.psize() > BLOCK_BYTES_MAX {
            return range("psize", self.psize());
        }
        self.flaw_in_dvas()
    }

    fn flaw_in_dvas(&self) -> Option<(usize, Reason)> {
        let [a, b, c, d, e, f, ..] = self.words;
        if bits(a, 0, 24) == 0 {
            return Some((0, Reason::OutOfRange { field: "asize of the first DVA", value: 0 }));
        }
        let dvas = [([a, b], 0), ([c, d], 2), ([e, f], 4)];
        for (words, at) in dvas.into_iter().take(self.dva_slots()) {
            let [low, high] = words;
            let (asize, offset) = (bits(low, 0, 24), bits(high, 0, 63));
            if asize == 0 {
                continue;
            }
            if asize.saturating_add(offset) > Dva::END_MAX >> SECTOR_SHIFT {
                return Some((at, Reason::OutOfRange { field: "DVA offset in sectors", value: offset }));
            }
            if bits(high, GANG, 1) != bits(b, GANG, 1) {
                return Some((at, Reason::Inconsistent("some DVAs are gangs, some are not")));
            }
        }
        None
    }

    /// The 128 bytes, in the order of the block that will contain the pointer.
    #[must_use]
    pub fn encode(&self, order: Order) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.words) {
            *place = order.put_u64(word);
        }
        bytes
    }

    /// The 16 words as stored.
    #[must_use]
    pub const fn words(&self) -> &[u64; 16] {
        &self.words
    }

    /// A pointer to a block that was just stored.
    ///
    /// # Errors
    /// A size that is no multiple of 512 or too large, a DVA that does not fit, or any rule of
    /// [`from_words`](Self::from_words).
    pub fn stored(block: &Stored) -> Result<Self> {
        let bad = |offset, field, value| Error::new(STRUCTURE, offset, Reason::OutOfRange { field, value });
        let mut words = [0; 16];
        for ((place, dva), at) in words.as_chunks_mut::<2>().0.iter_mut().zip(block.dvas).zip([0, 16, 32]) {
            *place = dva.to_words().ok_or_else(|| bad(at, "DVA", dva.offset))?;
        }
        let lsize = size_field(block.lsize).ok_or_else(|| bad(48, "lsize", block.lsize))?;
        let psize = size_field(block.psize).ok_or_else(|| bad(48, "psize", block.psize))?;
        let prop = lsize
            | psize << 16
            | u64::from(block.checksum_id) << 40
            | codec_bits(block.compression_id, block.object_type, block.level, block.order)?
            | u64::from(block.dedup) << DEDUP;
        let physical = if block.physical_birth == block.birth { 0 } else { block.physical_birth };
        let [c0, c1, c2, c3] = block.checksum;
        let [a, b, c, d, e, f, ..] = words;
        let all = [a, b, c, d, e, f, prop, 0, 0, physical, block.birth, block.fill, c0, c1, c2, c3];
        Self::from_words(all)
    }

    /// A hole that was punched at `birth` (feature `hole_birth`).
    ///
    /// # Errors
    /// `lsize` is no multiple of 512 or too large, or the type or level does not exist.
    pub fn punched(lsize: u64, object_type: ObjectType, level: u8, birth: u64) -> Result<Self> {
        let bad = || Error::new(STRUCTURE, 48, Reason::OutOfRange { field: "lsize", value: lsize });
        let lsize = size_field(lsize).ok_or_else(bad)?;
        let prop = lsize | codec_bits(0, object_type, level, Order::Big)?;
        let mut words = [0; 16];
        (words[PROP], words[BIRTH]) = (prop, birth);
        Self::from_words(words)
    }

    /// A pointer that carries its block: `payload` is the stored form, 1–112 bytes, of `lsize` bytes.
    ///
    /// # Errors
    /// A payload of another length, an `lsize` that does not fit, or an unknown id.
    pub fn embed(
        payload: &[u8],
        lsize: u64,
        compression_id: u8,
        object_type: ObjectType,
        order: Order,
        birth: u64,
    ) -> Result<Self> {
        let bad = |field, value| Error::new(STRUCTURE, 48, Reason::OutOfRange { field, value });
        let len = payload.len() as u64;
        if payload.is_empty() || payload.len() > EMBEDDED_BYTES_MAX {
            return Err(bad("embedded psize", len));
        }
        if lsize == 0 || lsize > 1 << 25 {
            return Err(bad("lsize", lsize));
        }
        let mut bytes = [0; EMBEDDED_BYTES_MAX];
        for (place, byte) in bytes.iter_mut().zip(payload) {
            *place = *byte;
        }
        let mut words = [0; 16];
        for (index, chunk) in PAYLOAD_WORDS.into_iter().zip(bytes.as_chunks::<8>().0) {
            if let Some(word) = words.get_mut(index) {
                *word = u64::from_le_bytes(*chunk);
            }
        }
        words[PROP] = lsize.wrapping_sub(1)
            | len.wrapping_sub(1) << 25
            | 1 << EMBEDDED
            | codec_bits(compression_id, object_type, 0, order)?;
        words[BIRTH] = birth;
        Self::from_words(words)
    }

    const fn prop(&self) -> u64 {
        self.words[PROP]
    }

    /// Never written, punched, or beyond the end: reads as zeroes.
    #[inline]
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// The payload is in the pointer itself.
    #[inline]
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        bits(self.prop(), EMBEDDED, 1) != 0
    }

    /// The DVAs lead to gang headers.
    #[must_use]
    pub const fn is_gang(&self) -> bool {
        !self.is_embedded() && bits(self.words[1], GANG, 1) != 0
    }

    /// The block is listed in the dedup table.
    #[must_use]
    pub const fn is_dedup(&self) -> bool {
        !self.is_embedded() && bits(self.prop(), DEDUP, 1) != 0
    }

    /// The block was allocated anew at its physical birth while keeping its logical birth.
    #[must_use]
    pub const fn is_rewritten(&self) -> bool {
        !self.is_embedded() && bits(self.words[FLAGS], REWRITTEN, 1) != 0
    }

    /// The content was redacted: reading it is an error.
    #[must_use]
    pub const fn is_redacted(&self) -> bool {
        self.is_embedded() && bits(self.prop(), 40, 8) == 2
    }

    /// The block belongs to an encrypted dataset, whatever its own [`protection`](Self::protection).
    #[must_use]
    pub const fn uses_crypt(&self) -> bool {
        !self.is_embedded() && bits(self.prop(), CRYPT, 1) != 0
    }

    /// What protects the block beyond its checksum.
    #[must_use]
    pub fn protection(&self) -> Protection {
        match (self.uses_crypt(), self.level(), self.object_type().is_encrypted()) {
            (false, ..) => Protection::None,
            (true, 0, true) => Protection::Encrypted,
            (true, 0, false) => Protection::Authenticated,
            (true, ..) => Protection::IndirectMac,
        }
    }

    /// The content is ciphertext.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.protection() == Protection::Encrypted
    }

    /// Salt and initialisation vector words (5 and the upper half of word 11) of an encrypted block.
    #[must_use]
    pub fn crypt_params(&self) -> Option<(u64, [u8; 12])> {
        if !self.is_encrypted() || self.is_hole() {
            return None;
        }
        let mut iv = [0; 12];
        let low = self.words[5].to_le_bytes();
        let high = (bits(self.words[FILL], 32, 32) as u32).to_le_bytes();
        for (place, byte) in iv.iter_mut().zip(low.into_iter().chain(high)) {
            *place = byte;
        }
        Some((self.words[4], iv))
    }

    /// How many of the three DVA slots hold DVAs.
    fn dva_slots(&self) -> usize {
        if self.is_encrypted() { 2 } else { 3 }
    }

    /// The copies; none for holes and embedded blocks.
    #[inline]
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + Clone + use<> {
        let [a, b, c, d, e, f, ..] = self.words;
        let slots = if self.is_hole() || self.is_embedded() { 0 } else { self.dva_slots() };
        let dvas = [[a, b], [c, d], [e, f]].map(Dva::from_words);
        dvas.into_iter().take(slots).filter(|dva| dva.asize != 0)
    }

    /// Bytes allocated for all copies; 0 for holes and embedded blocks.
    #[must_use]
    pub fn asize(&self) -> u64 {
        self.dvas().map(|dva| dva.asize).fold(0, u64::saturating_add)
    }

    /// Logical size in bytes. A hole that was never written says 512: the dnode knows better.
    #[inline]
    #[must_use]
    pub const fn lsize(&self) -> u64 {
        if self.is_embedded() {
            bits(self.prop(), 0, 25).saturating_add(1)
        } else {
            bits(self.prop(), 0, 16).saturating_add(1) << SECTOR_SHIFT
        }
    }

    /// Stored size in bytes, over which the checksum is taken; 0 for holes and embedded blocks.
    #[inline]
    #[must_use]
    pub const fn psize(&self) -> u64 {
        if self.is_embedded() || self.is_hole() {
            0
        } else {
            bits(self.prop(), 16, 16).saturating_add(1) << SECTOR_SHIFT
        }
    }

    /// Compression id, below 17.
    #[must_use]
    pub const fn compression_id(&self) -> u8 {
        bits(self.prop(), 32, 7) as u8
    }

    /// Checksum id, below 15; `off` (2) for embedded blocks, which their parent's checksum covers.
    #[must_use]
    pub const fn checksum_id(&self) -> u8 {
        if self.is_embedded() { CHECKSUM_OFF } else { bits(self.prop(), 40, 8) as u8 }
    }

    /// The checksum, four words; zero for embedded blocks.
    #[must_use]
    pub const fn checksum(&self) -> [u64; 4] {
        if self.is_embedded() {
            return [0; 4];
        }
        let [.., a, b, c, d] = self.words;
        [a, b, c, d]
    }

    /// Type of the object the block is part of.
    #[must_use]
    pub const fn object_type(&self) -> ObjectType {
        ObjectType(bits(self.prop(), 48, 8) as u8)
    }

    /// Level in the object's tree; 0 is data.
    #[must_use]
    pub const fn level(&self) -> u8 {
        bits(self.prop(), 56, 5) as u8
    }

    /// Byte order of the content pointed to.
    #[must_use]
    pub const fn order(&self) -> Order {
        if bits(self.prop(), LITTLE, 1) != 0 { Order::Little } else { Order::Big }
    }

    /// Logical birth: the txg that wrote this block as part of its object. 0 for virgin holes.
    #[inline]
    #[must_use]
    pub const fn birth(&self) -> u64 {
        self.words[BIRTH]
    }

    /// Physical birth: the txg that allocated the space.
    #[must_use]
    pub const fn physical_birth(&self) -> u64 {
        match self.words[BIRTH_PHYSICAL] {
            _ if self.is_embedded() => self.birth(),
            0 => self.birth(),
            txg => txg,
        }
    }

    /// The birth that counts for snapshots and accounting: physical for rewritten blocks.
    #[must_use]
    pub const fn space_birth(&self) -> u64 {
        if self.is_rewritten() { self.physical_birth() } else { self.birth() }
    }

    /// How many level-0 blocks (or objects) lie below: 0 for holes, 1 for embedded blocks.
    #[must_use]
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_hole() {
            0
        } else if self.is_encrypted() {
            bits(self.words[FILL], 0, 32)
        } else {
            self.words[FILL]
        }
    }

    /// The payload, if the pointer carries it.
    #[must_use]
    pub fn embedded(&self) -> Option<Embedded> {
        if !self.is_embedded() {
            return None;
        }
        let kind = match bits(self.prop(), 40, 8) {
            0 => EmbeddedKind::Data,
            2 => EmbeddedKind::Redacted,
            _ => EmbeddedKind::Reserved,
        };
        let mut bytes = [0; EMBEDDED_BYTES_MAX];
        for (place, index) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(PAYLOAD_WORDS) {
            // Payload bytes are the words' bytes from the least significant up, in either order.
            *place = self.words.get(index).copied().unwrap_or(0).to_le_bytes();
        }
        let len = bits(self.prop(), 25, 7).saturating_add(1) as usize;
        Some(Embedded { kind, lsize: self.lsize(), compression_id: self.compression_id(), len, bytes })
    }

    /// Whether both point to the same block: same copies, same births.
    #[must_use]
    pub fn same_block(&self, other: &Self) -> bool {
        self.birth() == other.birth()
            && self.physical_birth() == other.physical_birth()
            && self.dvas().eq(other.dvas())
    }
}

/// A size in the form of prop: sectors minus 1.
fn size_field(bytes: u64) -> Option<u64> {
    let fits = bytes & ((1 << SECTOR_SHIFT) - 1) == 0 && bytes <= BLOCK_BYTES_MAX;
    (bytes >> SECTOR_SHIFT).checked_sub(1).filter(|_| fits)
}

/// Compression, type, level and byte order in the form of prop.
fn codec_bits(compression_id: u8, object_type: ObjectType, level: u8, order: Order) -> Result<u64> {
    let bad = |field, value| Error::new(STRUCTURE, 48, Reason::OutOfRange { field, value });
    if compression_id >= COMPRESSION_END {
        return Err(bad("compression", u64::from(compression_id)));
    }
    if level > 31 {
        return Err(bad("level", u64::from(level)));
    }
    Ok(u64::from(compression_id) << 32
        | u64::from(object_type.0) << 48
        | u64::from(level) << 56
        | u64::from(order == Order::Little) << LITTLE)
}

/// Checksum names by id.
const CHECKSUM_NAMES: [&str; CHECKSUM_END as usize] = [
    "inherit",
    "on",
    "off",
    "label",
    "gang_header",
    "zilog",
    "fletcher2",
    "fletcher4",
    "sha256",
    "zilog2",
    "noparity",
    "sha512",
    "skein",
    "edonr",
    "blake3",
];
/// Compression names by id.
const COMPRESSION_NAMES: [&str; COMPRESSION_END as usize] = [
    "inherit",
    "on",
    "uncompressed",
    "lzjb",
    "empty",
    "gzip-1",
    "gzip-2",
    "gzip-3",
    "gzip-4",
    "gzip-5",
    "gzip-6",
    "gzip-7",
    "gzip-8",
    "gzip-9",
    "zle",
    "lz4",
    "zstd",
];

/// One line with the words of `zdb`.
impl fmt::Display for BlkPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (level, kind) = (self.level(), self.object_type());
        let compression = COMPRESSION_NAMES.get(usize::from(self.compression_id())).unwrap_or(&"?");
        if let Some(embedded) = self.embedded() {
            let (lsize, psize) = (embedded.lsize, embedded.payload().len());
            let birth = self.birth();
            return write!(
                f,
                "EMBEDDED [L{level} {kind}] et={} {compression} size={lsize:x}L/{psize:x}P birth={birth}L",
                bits(self.prop(), 40, 8)
            );
        }
        if self.is_hole() {
            return write!(f, "HOLE [L{level} {kind}] size={:x}L birth={}L", self.lsize(), self.birth());
        }
        for (index, dva) in self.dvas().enumerate() {
            write!(f, "DVA[{index}]=<{dva}> ")?;
        }
        let checksum = CHECKSUM_NAMES.get(usize::from(self.checksum_id())).unwrap_or(&"?");
        let crypt = match self.protection() {
            Protection::None => "unencrypted",
            Protection::Encrypted => "encrypted",
            Protection::Authenticated => "authenticated",
            Protection::IndirectMac => "indirect-MAC",
        };
        let order = if self.order() == Order::Little { "LE" } else { "BE" };
        let gang = if self.is_gang() { "gang" } else { "contiguous" };
        let dedup = if self.is_dedup() { "dedup" } else { "unique" };
        let copies = ["zero", "single", "double", "triple"].get(self.dvas().count()).unwrap_or(&"?");
        write!(f, "[L{level} {kind}] {checksum} {compression} {crypt} {order} {gang} {dedup} {copies} ")?;
        write!(f, "size={:x}L/{:x}P ", self.lsize(), self.psize())?;
        write!(f, "birth={}L/{}P fill={} ", self.birth(), self.physical_birth(), self.fill())?;
        let [a, b, c, d] = self.checksum();
        write!(f, "cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}")
    }
}

impl fmt::Debug for BlkPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlkPtr({self})")
    }
}

#[cfg(test)]
mod tests;
