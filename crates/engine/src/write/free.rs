//! Giving back the space of blocks.
//!
//! Of a block that was written in this very transaction group the writer knows all places. Of an older one the pointer tells
//! them, unless it is a gang: then its headers have to be read, which may take long, and may fail.

use ondisk::blkptr::BlkPtr;
use pool::BlockError;

use super::{
    BlockWriter, Extents, gang,
    overlay::{Parts, place_of},
};
use crate::EngineError;

/// Headers of gangs that are read at a time to free these: two queues of a disk.
const HEADERS_AT_ONCE: usize = 64;

impl<S: Extents> BlockWriter<S> {
    /// Gives back the space of a block: all copies, all members of a gang. Embedded blocks and holes have none. A gang
    /// whose parts nobody can tell any more stays allocated: it is lost to the pool, which goes on. As long as a device that
    /// left may tell, it is waited for: nobody comes back to this block. One that was deduplicated is like any other: a pool with
    /// dedup tables is not written to, and what no table has an entry of nobody shares.
    ///
    /// # Errors
    /// The pool was given up while devices were waited for.
    pub async fn free(&mut self, bp: &BlkPtr) -> Result<(), EngineError> {
        self.free_all(std::slice::from_ref(bp)).await
    }

    /// The same for many. Where the parts of gangs are is read side by side: a group may free thousands of them.
    ///
    /// # Errors
    /// As those of [`free`](Self::free).
    pub async fn free_all(&mut self, blocks: &[BlkPtr]) -> Result<(), EngineError> {
        let mut gangs = Vec::new();
        for bp in blocks {
            if !self.free_if_known(bp).await {
                gangs.push(*bp);
            }
        }
        let mut rest = &gangs[..];
        while !rest.is_empty() {
            let (some, others) = rest.split_at(self.at_once(rest));
            rest = others;
            let told = self.overlay.all_gang_extents(some, true).await;
            for (bp, parts) in some.iter().zip(told) {
                match parts? {
                    Ok(parts) => parts.into_iter().for_each(|part| self.alloc.release(part)),
                    Err(error) => tracing::error!(
                        %error,
                        bytes = bp.asize(),
                        "space of a freed block is lost: what says where its parts are cannot be read"
                    ),
                }
            }
        }
        Ok(())
    }

    /// Of how many of these blocks, the first, the parts may be looked up side by side: of one at least. A gang of a megabyte
    /// may have more headers than two queues of a disk hold, and disks have clients.
    pub(crate) fn at_once<'a>(&self, blocks: impl IntoIterator<Item = &'a BlkPtr>) -> usize {
        let sector = self.alloc.granularity().0;
        let mut headers = 0;
        let fit = blocks.into_iter().take_while(|bp| {
            headers += gang::headers(bp, sector);
            headers <= HEADERS_AT_ONCE
        });
        fit.count().max(1)
    }

    /// How many headers of gangs were read to free them since the pool was opened.
    pub(crate) fn headers_read(&self) -> usize {
        self.overlay.headers_read()
    }

    /// What is read to free these blocks with [`try_free`](Self::try_free), side by side, as many as [go](Self::at_once): for
    /// each where its parts are, if that has to be read.
    pub(crate) async fn parts(&self, blocks: &[BlkPtr]) -> Vec<Option<Parts>> {
        let is_asked = |bp: &BlkPtr| bp.is_gang() && bp.physical_birth() != self.txg;
        let asked: Vec<BlkPtr> = blocks.iter().filter(|bp| is_asked(bp)).copied().collect();
        let mut told = self.overlay.all_gang_extents(&asked, false).await.into_iter();
        blocks.iter().map(|bp| if is_asked(bp) { told.next() } else { None }).collect()
    }

    /// As [`free`](Self::free); `parts` if they were [read](Self::parts) already. Returns why nothing of it was given back, if
    /// what says where its parts are cannot be read although devices are there.
    ///
    /// # Errors
    /// As those of [`free`](Self::free).
    pub(crate) async fn try_free(
        &mut self,
        bp: &BlkPtr,
        parts: Option<Parts>,
    ) -> Result<Option<BlockError>, EngineError> {
        if self.free_if_known(bp).await {
            return Ok(None);
        }
        let parts = match parts {
            Some(parts) => parts,
            None => self.overlay.gang_extents(bp, false).await,
        };
        match parts? {
            Ok(parts) => parts.into_iter().for_each(|part| self.alloc.release(part)),
            Err(error) => return Ok(Some(error)),
        }
        Ok(None)
    }

    /// Gives back a block if it is known where all of it is: false for a gang of another transaction group.
    async fn free_if_known(&mut self, bp: &BlkPtr) -> bool {
        let Some(place) = place_of(bp) else { return true };
        if bp.physical_birth() == self.txg {
            self.io.forget(bp);
            if self.pending.get(&place).is_some_and(|pending| pending.bp == *bp) {
                self.forget(place);
                return true;
            }
            if self.moved.get(&place).is_some_and(|moved| moved.contains(bp)) {
                return true;
            }
            // The pool's allocator keeps its space until the commit; what would give it out again at once must not make new
            // bytes meet the old ones on the way.
            self.devices.leaves.drain().await;
            self.overlay.remove(place);
            if let Some(shape) = self.gangs.remove(&place) {
                shape.release(&mut self.alloc);
                return true;
            }
        } else {
            self.io.forget_later(bp);
        }
        if bp.is_gang() {
            return false;
        }
        bp.dvas().for_each(|dva| self.alloc.release(dva));
        true
    }
}
