//! One block from where it is stored: the second tier, or the first of its copies that is right. Nobody reads a block that
//! somebody else is reading.

use bytes::Bytes;
use codec::checksum::{self, Checksum, Form, embedded};
use ondisk::{
    Order,
    blkptr::{BlkPtr, Dva, EmbeddedKind},
    dnode::ObjectType,
};

use super::{
    Bookmark, Check, Reader,
    content::{decompress, is_compressed, zeroes},
    ear::Wrong,
    flights::{Followed, Following, Turn as Flight, follow},
    join::first_of,
    trail::{Guilty, Trail},
};
use crate::{
    BoxFuture,
    cache::{Access, BelowFuture, Class, Memory},
    error::{BlockError, BlockErrorKind},
};

impl Reader {
    pub(super) async fn read_block(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        self.read_missing(bp, at, Access::Demand).await
    }

    /// Reads a block that is not in the cache, and puts it there; or waits for somebody who is doing that.
    pub(super) async fn read_missing(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
    ) -> Result<Bytes, BlockError> {
        let Some(key) = self.key(bp) else { return self.read_now(bp, at, access, None).await };
        loop {
            match self.flights.join(key) {
                Flight::Lead(lead) => {
                    // Another's read may have landed since the cache was asked.
                    if let Some(found) = self.cache.has(&key).then(|| self.find(bp, access)).flatten() {
                        return Ok(found);
                    }
                    let answer = self.read_now(bp, at, access, self.ask_below(bp, at)).await;
                    lead.landed(&answer, access);
                    return answer;
                }
                Flight::Follow(following) => {
                    if let Some(answer) = self.read_following(bp, at, access, following).await {
                        return answer;
                    }
                }
            }
        }
    }

    /// What another's read comes to, or one's own if that takes too long. None: it was given up.
    pub(super) async fn read_following(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        following: Following,
    ) -> Option<Result<Bytes, BlockError>> {
        match follow(following).await {
            Followed::Answer(answer) => {
                self.cache.count_wait(access, Class::of(bp));
                Some(answer)
            }
            Followed::Gone => None,
            Followed::Late => Some(self.read_now(bp, at, access, self.ask_below(bp, at)).await),
        }
    }

    /// Reads a block from the second tier, if that has an `answer`, or from the devices, and puts it into the cache.
    pub(super) async fn read_now(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        answer: Option<BelowFuture>,
    ) -> Result<Bytes, BlockError> {
        if bp.is_hole() {
            return Ok(zeroes(bp.lsize()));
        }
        self.readable(bp, at)?;
        if !bp.is_embedded() {
            self.count_miss(bp, at, access);
        }
        if let Some(answer) = answer
            && let Some((raw, content)) = self.read_below(bp, answer).await
        {
            self.keep_read(bp, at, access, raw, &content, Memory::Foreign);
            return Ok(content);
        }
        self.read_along(bp, at, access, Trail::default().ahead(access == Access::Prefetch)).await
    }

    /// Reads a block that is not in the cache, and puts it there, without blame for what goes wrong. Not together with
    /// others who want it: they count.
    pub(super) async fn read_unblamed(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        if bp.is_hole() {
            return Ok(zeroes(bp.lsize()));
        }
        self.readable(bp, at)?;
        self.read_along(bp, at, Access::Demand, Trail::unblamed()).await
    }

    /// From the devices, and into the cache.
    async fn read_along(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        trail: Trail,
    ) -> Result<Bytes, BlockError> {
        let raw = self.read_raw_along(bp, at, trail).await?;
        let content = self.content(bp, at, &raw)?;
        self.keep_read(bp, at, access, raw, &content, Memory::Own);
        Ok(content)
    }

    /// Puts what was read into the cache.
    pub(super) fn keep_read(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        access: Access,
        raw: Bytes,
        content: &Bytes,
        memory: Memory<'_>,
    ) {
        let content = is_compressed(bp).then(|| content.clone());
        self.keep(bp, at, access, Some(raw), content, memory);
    }

    /// The answer of the second tier, on its way, if it has the block.
    pub(super) fn ask_below(&self, bp: &BlkPtr, at: Bookmark) -> Option<BelowFuture> {
        if bp.is_hole() || bp.is_embedded() {
            return None;
        }
        let below = self.origin.below()?;
        let is_metadata = Class::of(bp) == Class::Metadata;
        let is_eligible = self.wishes.of(at.objset).caching.secondary.wants(is_metadata);
        below.read(self.origin.guid, bp, is_eligible)
    }

    /// Stored bytes and content from the second tier, if it gives them and they are right.
    pub(super) async fn read_below(&self, bp: &BlkPtr, answer: BelowFuture) -> Option<(Bytes, Bytes)> {
        let raw = answer.await?;
        if raw.len() as u64 == bp.psize()
            && self.is_right(bp, &raw)
            && let Ok(content) = decompress(bp, raw.clone())
        {
            return Some((raw, content));
        }
        if let Some(below) = self.origin.below() {
            below.lied(self.origin.guid, bp);
        }
        None
    }

    pub(super) async fn read_block_uncached(&self, bp: &BlkPtr, at: Bookmark) -> Result<Bytes, BlockError> {
        if bp.is_hole() {
            return Ok(zeroes(bp.lsize()));
        }
        self.readable(bp, at)?;
        let raw = self.read_raw_along(bp, at, Trail::default()).await?;
        self.content(bp, at, &raw)
    }

    pub(super) fn content(&self, bp: &BlkPtr, at: Bookmark, raw: &Bytes) -> Result<Bytes, BlockError> {
        decompress(bp, raw.clone()).map_err(|kind| BlockError::new(kind, bp, Some(at), Vec::new()))
    }

    pub(super) async fn read_raw_along(
        &self,
        bp: &BlkPtr,
        at: Bookmark,
        trail: Trail,
    ) -> Result<Bytes, BlockError> {
        let tell = |is_lost| {
            if let Some(ear) = self.ear.get()
                && let Some(Guilty { corrupt, refused }) = trail.take_guilty()
            {
                let (corrupt, refused) = (corrupt.into_vec(), refused.into_vec());
                ear.wrong(Wrong { bp: *bp, at, corrupt, refused, is_lost });
            }
        };
        let mut found = self.read_stored_once(bp, 0, &trail).await;
        if found.is_none() && trail.has_to_wait() {
            tell(false);
            found = self.read_stored_once(bp, 0, &trail).await;
        }
        let is_given_up = found.is_none() && trail.is_given_up();
        tell(found.is_none() && !is_given_up);
        if let Some(raw) = found {
            return Ok(raw);
        }
        let counts = self.counts() && trail.counts() && !is_given_up;
        let (kind, evidence) = trail.conclude();
        if counts {
            let count = |counters: &crate::vdev::Counters| match kind {
                BlockErrorKind::Checksum => counters.count_checksum(),
                BlockErrorKind::Device => counters.count_read(),
                _ => {}
            };
            count(&self.tree.counters);
            for dva in bp.dvas() {
                // A leaf at the top has counted already.
                if let Some(top) = self.tree.top(dva.vdev.into()).filter(|top| top.leaf.is_none()) {
                    count(&top.counters);
                }
            }
        }
        Err(BlockError::new(kind, bp, Some(at), evidence))
    }

    /// Refuses what cannot be decompressed, because it is ciphertext. (Blocks of dnodes are an
    /// exception: only their bonus areas are encrypted.)
    pub(super) fn readable(&self, bp: &BlkPtr, at: Bookmark) -> Result<(), BlockError> {
        if bp.is_encrypted() && bp.object_type() != ObjectType::DNODE {
            return Err(BlockError::new(BlockErrorKind::Encrypted, bp, Some(at), Vec::new()));
        }
        Ok(())
    }

    /// The stored bytes from wherever they can be had; devices that do not answer are waited for only if nobody else has
    /// them. `depth` counts gangs inside gangs.
    pub(super) async fn read_stored(&self, bp: &BlkPtr, depth: usize, trail: &Trail) -> Option<Bytes> {
        match self.read_stored_once(bp, depth, trail).await {
            None if depth == 0 && trail.has_to_wait() => self.read_stored_once(bp, depth, trail).await,
            found => found,
        }
    }

    pub(super) async fn read_stored_once(&self, bp: &BlkPtr, depth: usize, trail: &Trail) -> Option<Bytes> {
        if bp.is_hole() {
            return Some(Bytes::new());
        }
        if let Some(embedded) = bp.embedded() {
            if embedded.kind != EmbeddedKind::Data {
                trail.unsupported("the block was redacted");
                return None;
            }
            return Some(Bytes::copy_from_slice(embedded.payload()));
        }
        let algorithm = self.algorithm(bp, trail)?;
        let check = |data: &[u8]| self.verifies(bp, algorithm, data);
        if bp.is_gang() {
            return self.read_gang(bp, depth, &check, trail).await;
        }
        if !algorithm.is_verified() {
            trail.be_blind();
        }
        self.read_places(bp, bp.psize(), &check, trail).await
    }

    /// `len` bytes of a block, verified by `check`, from the first of its places that has them.
    pub(super) async fn read_places(
        &self,
        bp: &BlkPtr,
        len: u64,
        check: &Check<'_>,
        trail: &Trail,
    ) -> Option<Bytes> {
        let birth = bp.physical_birth();
        let dvas = self.by_preference(bp);
        if trail.is_endless() {
            let mut reads: Vec<BoxFuture<'_, Option<Bytes>>> = Vec::with_capacity(dvas.len());
            for dva in dvas {
                let read = self.read_place(dva.vdev.into(), dva.offset, len, birth, check, trail);
                reads.push(Box::pin(read));
            }
            return first_of(reads).await;
        }
        for dva in dvas {
            let read = self.read_place(dva.vdev.into(), dva.offset, len, birth, check, trail);
            if let Some(data) = read.await {
                return Some(data);
            }
        }
        None
    }

    /// The copies, those on devices in good order first.
    pub(super) fn by_preference(&self, bp: &BlkPtr) -> smallvec::SmallVec<[Dva; 3]> {
        let mut dvas: smallvec::SmallVec<[_; 3]> = bp.dvas().collect();
        if dvas.len() > 1 {
            let birth = bp.physical_birth();
            dvas.sort_by_key(|dva| {
                self.tree.top(dva.vdev.into()).is_none_or(|top| !top.is_readable() || top.missed(birth))
            });
        }
        dvas
    }

    pub(super) fn algorithm(&self, bp: &BlkPtr, trail: &Trail) -> Option<checksum::Algorithm> {
        let Some(algorithm) = checksum::Algorithm::from_id(bp.checksum_id()) else {
            trail.malformed(format!("checksum id {}", bp.checksum_id()));
            return None;
        };
        if algorithm.is_salted() && self.salt.get().is_none() {
            trail.malformed(format!("checksum {} in a pool without a salt", algorithm.name()));
            return None;
        }
        Some(algorithm)
    }

    /// Whether `data` is what `bp` points to.
    pub(super) fn verifies(&self, bp: &BlkPtr, algorithm: checksum::Algorithm, data: &[u8]) -> bool {
        let expected = Checksum(bp.checksum());
        let form = form(bp);
        let kind = match algorithm {
            checksum::Algorithm::Zilog => embedded::Kind::Zilog,
            checksum::Algorithm::Zilog2 => embedded::Kind::Zilog2,
            _ => {
                return checksum::verify(
                    algorithm,
                    codec_order(bp.order()),
                    self.salt.get(),
                    form,
                    data,
                    expected,
                )
                .is_ok();
            }
        };
        embedded::verify(kind, data, expected, form).is_ok()
    }
}

/// How the checksum words of an encrypted dataset's blocks are shortened.
pub(super) fn form(bp: &BlkPtr) -> Form {
    if bp.uses_crypt() && bp.object_type() != ObjectType::OBJSET { Form::Truncated } else { Form::Whole }
}

fn codec_order(order: Order) -> codec::Order {
    match order {
        Order::Little => codec::Order::Little,
        Order::Big => codec::Order::Big,
    }
}
