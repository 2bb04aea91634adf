//! Checksums that a block carries itself: labels, uberblocks, gang headers and log blocks.
//!
//! These are found by position, not through a pointer that could hold their checksum, so they end in a
//! 40-byte trailer: a magic number, which also tells the byte order, and the four words.
//!
//! ```text
//! ┌──────────── region ────────────────┬───────┬──────────────────────────┐
//! │ payload                            │ magic │ checksum  w0 w1 w2 w3    │     log blocks of today: at 144,
//! └────────────────────────────────────┴───────┴──────────────────────────┘     inside the header at the start
//! ```
//! A checksum cannot cover itself. While hashing, its place holds a *verifier*: four words the reader
//! knows from elsewhere (the position of a label, the pointer to a gang header, the log chain's identity).
//! That is what makes a perfect copy of a label at another offset, or a stale log block, invalid.
//!
//! Nothing is copied: the bytes before, the verifier and the bytes after are fed to the hash in turn.
//!
//! Facts: docs/format/checksums.md, section 4; docs/format/zil.md for the log block header.

use super::{Checksum, Fletcher2, Fletcher4, Form, Order, sha256_words};
use sha2::{Digest, Sha256};

/// Marks a trailer, in the byte order of its writer.
pub const MAGIC: u64 = 0x0210_DA7A_B10C_7A11;
/// Bytes of a trailer: magic and four words.
pub const TRAILER_LEN: usize = 40;

/// Bytes of a log block's header, and where in it are the used length (u64) and the trailer.
const ZIL_HEADER_LEN: usize = 184;
const ZIL_NUSED_AT: usize = 136;
const ZIL_TRAILER_AT: usize = 144;
/// A log block is hashed up to its used length, rounded up to this.
const ZIL_GRAIN: u64 = 4096;

/// Which self-checking structure a region is; decides the hash, and where the trailer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A label part or an uberblock slot: SHA-256, trailer last.
    /// Verifier: (offset of the region on the leaf device in bytes, 0, 0, 0).
    Label,
    /// A gang header: SHA-256, trailer last.
    /// Verifier: (vdev of DVA 0, offset of DVA 0 in bytes, physical birth txg, 0) of the pointer to it.
    GangHeader,
    /// A log block of a pool older than version 26: fletcher2, trailer last.
    /// Verifier: the checksum words of the pointer to it.
    Zilog,
    /// A log block: fletcher4 over its used part, trailer inside the header at its start.
    /// Verifier: the checksum words of the pointer to it.
    Zilog2,
}

/// Why a region does not check out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither byte order gives the magic number: never written, or not this structure.
    #[error("no checksum trailer (magic number is {0:#x})")]
    Magic(u64),
    /// The region, or the used length a log block claims, cannot hold the structure.
    #[error("bad length {0} for a self-checking region")]
    Length(u64),
    /// Hashed, and different.
    #[error("embedded checksum mismatch: stored {stored}, computed {computed}")]
    Mismatch {
        /// What the trailer says.
        stored: Checksum,
        /// What the bytes give.
        computed: Checksum,
    },
}

/// Checks `region` against its trailer and tells the byte order of its writer. With [`Form::Truncated`]
/// (gang headers and log blocks of encrypted datasets) only the first two, folded words count.
///
/// # Errors
/// See [`Error`]. All of them mean that the region is not valid; for a log block, the end of the log.
pub fn verify(kind: Kind, region: &[u8], verifier: Checksum, form: Form) -> Result<Order, Error> {
    let trailer_at = trailer_offset(kind, region.len())?;
    let order = writer_of(region, trailer_at)?;
    let covered = covered(kind, region, order)?;
    let stored = stored(region, trailer_at, order);
    let computed = hash(kind, covered, trailer_at, verifier, order);
    let same = match form {
        Form::Whole => stored == computed,
        // Folded for every kind, SHA-256 included.
        Form::Truncated => computed.shortened(false) == [stored.0[0], stored.0[1]],
    };
    if same { Ok(order) } else { Err(Error::Mismatch { stored, computed }) }
}

/// Writes magic number and checksum into `region`, as a writer of byte order `order` does. The rest of a
/// log block's header, its used length above all, must be in place.
///
/// # Errors
/// [`Error::Length`] if the region cannot hold the structure; it is unchanged then.
pub fn seal(kind: Kind, region: &mut [u8], verifier: Checksum, order: Order) -> Result<(), Error> {
    let trailer_at = trailer_offset(kind, region.len())?;
    covered(kind, region, order)?;
    put(region, trailer_at, MAGIC, order);
    let covered = covered(kind, region, order)?;
    let computed = hash(kind, covered, trailer_at, verifier, order);
    store(region, trailer_at, computed, order);
    Ok(())
}

/// A region of labels that is written at several places: its text, all before the verifier, is hashed once.
#[derive(Clone, Debug)]
pub struct Template {
    region: Vec<u8>,
    text: Sha256,
    order: Order,
}

impl Template {
    /// What the regions say, and the byte order of their writer.
    ///
    /// # Errors
    /// [`Error::Length`] if there is no room for a trailer.
    pub fn new(mut region: Vec<u8>, order: Order) -> Result<Self, Error> {
        let trailer_at = trailer_offset(Kind::Label, region.len())?;
        put(&mut region, trailer_at, MAGIC, order);
        let text = Sha256::new_with_prefix(&region[..trailer_at + 8]);
        Ok(Self { region, text, order })
    }

    /// The region as [`seal`] leaves it with this verifier.
    #[must_use]
    pub fn sealed(&self, verifier: Checksum) -> Vec<u8> {
        let mut region = self.region.clone();
        let trailer_at = region.len() - TRAILER_LEN;
        store(&mut region, trailer_at, behind(self.text.clone(), verifier, self.order), self.order);
        region
    }
}

/// Checks regions of labels that are copies of each other as a rule: the text of such is hashed once.
#[derive(Debug, Default)]
pub struct Copies<'a>(Option<(&'a [u8], Sha256)>);

impl<'a> Copies<'a> {
    /// As [`verify`] of a [`Kind::Label`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn verify(&mut self, region: &'a [u8], verifier: Checksum) -> Result<Order, Error> {
        let trailer_at = trailer_offset(Kind::Label, region.len())?;
        let order = writer_of(region, trailer_at)?;
        let text = &region[..trailer_at + 8];
        let hashed = match &self.0 {
            Some((known, hashed)) if *known == text => hashed.clone(),
            _ => self.0.insert((text, Sha256::new_with_prefix(text))).1.clone(),
        };
        let (stored, computed) = (stored(region, trailer_at, order), behind(hashed, verifier, order));
        if stored == computed { Ok(order) } else { Err(Error::Mismatch { stored, computed }) }
    }
}

/// The byte order of its writer, by the magic number of the trailer at `trailer_at`.
fn writer_of(region: &[u8], trailer_at: usize) -> Result<Order, Error> {
    let magic: [u8; 8] = bytes_at(region, trailer_at);
    match (u64::from_le_bytes(magic), u64::from_be_bytes(magic)) {
        (MAGIC, _) => Ok(Order::Little),
        (_, MAGIC) => Ok(Order::Big),
        (neither, _) => Err(Error::Magic(neither)),
    }
}

/// What the trailer at `trailer_at` says.
fn stored(region: &[u8], trailer_at: usize, order: Order) -> Checksum {
    Checksum(std::array::from_fn(|i| get(region, trailer_at + 8 + 8 * i, order)))
}

fn store(region: &mut [u8], trailer_at: usize, checksum: Checksum, order: Order) {
    for (i, word) in checksum.0.into_iter().enumerate() {
        put(region, trailer_at + 8 + 8 * i, word, order);
    }
}

/// Where the trailer begins. Everything after this may index up to 40 bytes from there.
fn trailer_offset(kind: Kind, len: usize) -> Result<usize, Error> {
    let at = match kind {
        Kind::Label | Kind::GangHeader | Kind::Zilog => len.checked_sub(TRAILER_LEN),
        Kind::Zilog2 => (len >= ZIL_HEADER_LEN).then_some(ZIL_TRAILER_AT),
    };
    at.ok_or(Error::Length(len as u64))
}

/// The part of the region that is hashed: all of it, or what a log block says it uses.
fn covered(kind: Kind, region: &[u8], order: Order) -> Result<&[u8], Error> {
    if kind != Kind::Zilog2 {
        return Ok(region);
    }
    let nused = get(region, ZIL_NUSED_AT, order);
    let bad = Error::Length(nused);
    if nused < ZIL_HEADER_LEN as u64 {
        return Err(bad);
    }
    let hashed = nused.checked_next_multiple_of(ZIL_GRAIN).ok_or(bad)?;
    usize::try_from(hashed).ok().and_then(|len| region.get(..len)).ok_or(bad)
}

/// Hashes `covered` with the verifier in place of the words behind the magic at `trailer_at`.
fn hash(kind: Kind, covered: &[u8], trailer_at: usize, verifier: Checksum, order: Order) -> Checksum {
    let (before, rest) = covered.split_at(trailer_at + 8);
    let after = &rest[TRAILER_LEN - 8..];
    let words = words_of(verifier, order);
    let parts = [before, &words, after];
    match kind {
        Kind::Label | Kind::GangHeader => behind(Sha256::new_with_prefix(before), verifier, order),
        Kind::Zilog => {
            let mut sum = Fletcher2::new(order);
            parts.iter().for_each(|part| sum.update(part));
            sum.finish()
        }
        Kind::Zilog2 => {
            let mut sum = Fletcher4::new(order);
            parts.iter().for_each(|part| sum.update(part));
            sum.finish()
        }
    }
}

/// The hash of a text and, in the place of the checksum at its end, the verifier.
fn behind(text: Sha256, verifier: Checksum, order: Order) -> Checksum {
    sha256_words(&text.chain_update(words_of(verifier, order)).finalize().into())
}

fn words_of(verifier: Checksum, order: Order) -> [u8; TRAILER_LEN - 8] {
    let mut words = [0u8; TRAILER_LEN - 8];
    for (i, word) in verifier.0.into_iter().enumerate() {
        put(&mut words, 8 * i, word, order);
    }
    words
}

fn bytes_at(region: &[u8], at: usize) -> [u8; 8] {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&region[at..at + 8]);
    bytes
}

fn get(region: &[u8], at: usize, order: Order) -> u64 {
    match order {
        Order::Little => u64::from_le_bytes(bytes_at(region, at)),
        Order::Big => u64::from_be_bytes(bytes_at(region, at)),
    }
}

fn put(region: &mut [u8], at: usize, value: u64, order: Order) {
    let bytes = match order {
        Order::Little => value.to_le_bytes(),
        Order::Big => value.to_be_bytes(),
    };
    region[at..at + 8].copy_from_slice(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [Kind; 4] = [Kind::Label, Kind::GangHeader, Kind::Zilog, Kind::Zilog2];

    fn region(kind: Kind, order: Order, len: usize) -> Vec<u8> {
        let mut region: Vec<u8> = (0..len).map(|i| (i * 31 + (i >> 8)) as u8).collect();
        if kind == Kind::Zilog2 {
            put(&mut region, ZIL_NUSED_AT, 5000, order);
        }
        region
    }

    #[test]
    fn a_sealed_region_verifies_in_its_order_and_only_with_its_verifier() {
        for kind in KINDS {
            for order in [Order::Little, Order::Big] {
                let mut bytes = region(kind, order, 12288);
                let verifier = Checksum([0x23000, 1, 2, 3]);
                seal(kind, &mut bytes, verifier, order).unwrap();
                assert_eq!(verify(kind, &bytes, verifier, Form::Whole), Ok(order), "{kind:?}");
                let elsewhere = Checksum([0x63000, 1, 2, 3]);
                assert!(matches!(verify(kind, &bytes, elsewhere, Form::Whole), Err(Error::Mismatch { .. })));
                for at in (0..bytes.len()).step_by(97) {
                    bytes[at] ^= 4;
                    let hashed = kind != Kind::Zilog2 || at < 8192;
                    assert_eq!(verify(kind, &bytes, verifier, Form::Whole).is_err(), hashed, "{kind:?} {at}");
                    bytes[at] ^= 4;
                }
            }
        }
    }

    #[test]
    fn copies_that_are_hashed_once_are_as_if_each_had_been() {
        for order in [Order::Little, Order::Big] {
            let text = region(Kind::Label, order, 12288);
            let template = Template::new(text.clone(), order).unwrap();
            let places = [0x4000, 0x44000, 0x84000].map(|at| Checksum([at, 0, 0, 0]));
            let sealed = places.map(|place| template.sealed(place));
            for (place, sealed) in places.iter().zip(&sealed) {
                let mut alone = text.clone();
                seal(Kind::Label, &mut alone, *place, order).unwrap();
                assert!(*sealed == alone);
            }
            // Another text, and a copy whose end is damaged, between copies.
            let mut other = sealed[1].clone();
            other[7] ^= 1;
            let mut torn = sealed[1].clone();
            *torn.last_mut().unwrap() ^= 1;
            let regions = [&sealed[0], &sealed[1], &other, &torn, &sealed[2], &sealed[2]];
            let at = [0, 1, 1, 1, 2, 0].map(|place| places[place]);
            let mut copies = Copies::default();
            for (bytes, place) in regions.into_iter().zip(at) {
                assert_eq!(copies.verify(bytes, place), verify(Kind::Label, bytes, place, Form::Whole));
            }
        }
        assert_eq!(Template::new(vec![0; 39], Order::Little).unwrap_err(), Error::Length(39));
        assert_eq!(Copies::default().verify(&[0; 39], Checksum::default()), Err(Error::Length(39)));
    }

    #[test]
    fn a_folded_checksum_leaves_room_for_the_mac() {
        for kind in [Kind::GangHeader, Kind::Zilog2] {
            let mut bytes = region(kind, Order::Little, 8192);
            let verifier = Checksum([9, 8, 7, 6]);
            seal(kind, &mut bytes, verifier, Order::Little).unwrap();
            let at = trailer_offset(kind, bytes.len()).unwrap() + 8;
            let w: [u64; 4] = std::array::from_fn(|i| get(&bytes, at + 8 * i, Order::Little));
            for (i, word) in [w[0] ^ w[2], w[1] ^ w[3], 0xfeed, 0xbeef].into_iter().enumerate() {
                put(&mut bytes, at + 8 * i, word, Order::Little);
            }
            assert_eq!(verify(kind, &bytes, verifier, Form::Truncated), Ok(Order::Little));
            assert!(verify(kind, &bytes, verifier, Form::Whole).is_err());
        }
    }

    #[test]
    fn used_lengths_a_log_block_cannot_have_are_refused() {
        for nused in [0, 183, 8193, 1 << 40, u64::MAX, u64::MAX - 4095] {
            let mut bytes = vec![0; 8192];
            put(&mut bytes, ZIL_NUSED_AT, nused, Order::Little);
            put(&mut bytes, ZIL_TRAILER_AT, MAGIC, Order::Little);
            let got = verify(Kind::Zilog2, &bytes, Checksum::default(), Form::Whole);
            assert_eq!(got, Err(Error::Length(nused)));
            let got = seal(Kind::Zilog2, &mut bytes, Checksum::default(), Order::Little);
            assert_eq!(got, Err(Error::Length(nused)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_get_a_verdict(mut bytes in proptest::collection::vec(any::<u8>(), 0..9000), magic: bool) {
            for kind in KINDS {
                if magic && let Ok(at) = trailer_offset(kind, bytes.len()) {
                    put(&mut bytes, at, MAGIC, Order::Big);
                }
                prop_assert!(verify(kind, &bytes, Checksum::default(), Form::Whole).is_err());
            }
        }
    }
}
