//! Blocks and bytes of objects: what is staged over what is on disk.

use std::{ops::Range, sync::Arc};

use bytes::{Bytes, BytesMut};
use ondisk::{
    Order,
    blkptr::BlkPtr,
    dnode::{Byteswap, ObjectType},
};
use pool::dmu::{DnodeAt, Object, ReadError, Run};

use super::{MutSet, commit::to_little, object::Known};
use crate::{BoxFuture, EngineError, write::summed::Summed};

/// Blocks read in one go.
const BATCH: usize = 64;

/// Content as a little-endian writer would have stored it.
fn native(content: Bytes, order: Order, object_type: ObjectType) -> Result<Bytes, EngineError> {
    match (order, object_type.byteswap()) {
        (Order::Little, _) | (Order::Big, Some(Byteswap::U8)) => Ok(content),
        (Order::Big, Some(Byteswap::U64)) => {
            let mut words = content.to_vec();
            to_little(&mut words);
            Ok(words.into())
        }
        (Order::Big, _) => Err(EngineError::Unsupported(format!(
            "the pool has a big-endian {object_type}: it can be read, but not written to"
        ))),
    }
}

impl MutSet {
    /// An object with its present header over the tree of the last sync.
    async fn object_now(&mut self, number: u64) -> Result<Object, EngineError> {
        let dnode = self.dnode(number).await?.clone();
        Ok(Object::new(Arc::clone(&self.source), self.id, DnodeAt { number, dnode, order: Order::Little })?)
    }

    fn known(&self, number: u64, blkid: u64) -> Known {
        match self.objects.get(&number) {
            Some(Some(staged)) => staged.known(blkid),
            _ => Known::OnDisk,
        }
    }

    /// One data block as it is now; a hole is `None`. Its length is the object's block size.
    pub async fn block(&mut self, number: u64, blkid: u64) -> Result<Option<Bytes>, EngineError> {
        match self.known(number, blkid) {
            Known::Content(content) => Ok(Some(content)),
            Known::Hole => Ok(None),
            Known::OnDisk => self.stored_block(number, blkid).await,
        }
    }

    /// The same as of the last sync. Boxed, because so much of this crate asks for blocks.
    fn stored_block(&mut self, number: u64, blkid: u64) -> BoxFuture<'_, Result<Option<Bytes>, EngineError>> {
        Box::pin(async move {
            let object = self.object_now(number).await?;
            let block = object.read_block(blkid).await?;
            block.content.map(|found| native(found, block.order, object.dnode().object_type)).transpose()
        })
    }

    /// Replaces a data block.
    pub async fn put_block(&mut self, number: u64, blkid: u64, content: Bytes) -> Result<(), EngineError> {
        self.staged(number).await?.put(blkid, content)
    }

    /// Replaces many data blocks of one object, in ascending order: the way of a volume's transaction group.
    pub async fn put_blocks<C: Into<Summed>>(
        &mut self,
        number: u64,
        blocks: impl IntoIterator<Item = (u64, C)>,
    ) -> Result<(), EngineError> {
        let blocks = blocks.into_iter().map(|(blkid, content)| (blkid, content.into())).collect();
        self.staged(number).await?.put_many(blocks)
    }

    /// Blocks that were just [put](Self::put_blocks) have been at these places since they were
    /// [written ahead](crate::write::ahead::Ahead): they are not written again, unless they are
    /// changed once more before the next sync.
    ///
    /// # Errors
    /// One of them was not put.
    pub async fn put_ahead(&mut self, number: u64, blocks: Vec<(u64, BlkPtr)>) -> Result<(), EngineError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let staged = self.staged(number).await?;
        if let Some((blkid, _)) = blocks.iter().find(|(blkid, _)| !staged.blocks.contains_key(blkid)) {
            let detail = format!("block {blkid} of object {number} has a place, but no content");
            return Err(EngineError::Encode { what: "object", detail });
        }
        staged.ahead.extend(blocks);
        Ok(())
    }

    /// Makes blocks holes.
    pub async fn punch(&mut self, number: u64, blocks: Range<u64>) -> Result<(), EngineError> {
        self.staged(number).await?.punch(blocks);
        Ok(())
    }

    /// Frees all blocks from `blkid` on and lowers the highest block id.
    pub async fn truncate(&mut self, number: u64, blkid: u64) -> Result<(), EngineError> {
        self.staged(number).await?.truncate(blkid);
        Ok(())
    }

    /// Changes its block size; it must have at most one block.
    pub async fn set_block_bytes(&mut self, number: u64, bytes: u32) -> Result<(), EngineError> {
        if self.dnode(number).await?.data_block_bytes() == u64::from(bytes) {
            return Ok(());
        }
        let first = self.block(number, 0).await?;
        self.staged(number).await?.resize(bytes, first)
    }

    /// Bytes of an object; holes and what lies beyond the end are zeroes.
    pub async fn read(&mut self, number: u64, offset: u64, len: usize) -> Result<Vec<u8>, EngineError> {
        let object = self.object_now(number).await?;
        let mut out = vec![0; len];
        let size = object.block_bytes();
        let end = offset.saturating_add(len as u64).min(object.bytes());
        if offset >= end {
            return Ok(out);
        }
        let blocks = offset / size..end.div_ceil(size);
        // The part of a block that was asked for, to its place in the buffer.
        let mut copy = |blkid: u64, content: &[u8]| {
            let start = blkid * size;
            let skip = offset.saturating_sub(start) as usize;
            let place = start.saturating_sub(offset) as usize;
            let count = content.len().saturating_sub(skip).min(len - place);
            out[place..place + count].copy_from_slice(&content[skip..skip + count]);
        };
        let staged = self.objects.get(&number).and_then(Option::as_deref);
        let on_disk = |blkid| staged.is_none_or(|staged| matches!(staged.known(blkid), Known::OnDisk));
        if staged.is_none_or(|staged| !staged.resized) {
            let mut runs = object.runs(0, blocks.clone());
            let mut batch = Vec::new();
            loop {
                let run = runs.next().await?;
                let done = run.is_none();
                if let Some(Run::Block { blkid, pointer }) = run
                    && on_disk(blkid)
                {
                    batch.push((pointer, object.bookmark(0, blkid)));
                }
                if batch.len() >= BATCH || (done && !batch.is_empty()) {
                    let contents = self.source.read_many(&batch).await;
                    for (content, (pointer, at)) in contents.into_iter().zip(&batch) {
                        let content = content?;
                        if content.len() as u64 != size {
                            let what = "the block's content is of another size than its object's blocks";
                            return Err(ReadError::Inconsistent { at: *at, what }.into());
                        }
                        copy(at.blkid, &native(content, pointer.order(), object.dnode().object_type)?);
                    }
                    batch.clear();
                }
                if done {
                    break;
                }
            }
        }
        if let Some(staged) = staged {
            for (blkid, content) in staged.blocks.range(blocks) {
                copy(*blkid, content);
            }
        }
        Ok(out)
    }

    /// Changes bytes of an object.
    pub async fn write(&mut self, number: u64, offset: u64, data: &[u8]) -> Result<(), EngineError> {
        let size = self.dnode(number).await?.data_block_bytes();
        if offset.checked_add(data.len() as u64).is_none() {
            let detail = format!("object {number} cannot be written at {offset}");
            return Err(EngineError::Encode { what: "object", detail });
        }
        let (mut offset, mut data) = (offset, data);
        while !data.is_empty() {
            let (blkid, skip) = (offset / size, (offset % size) as usize);
            let (now, rest) = data.split_at(data.len().min(size as usize - skip));
            if now.len() as u64 == size {
                self.put_block(number, blkid, Bytes::copy_from_slice(now)).await?;
            } else {
                let old = match self.staged(number).await?.blocks.remove(&blkid) {
                    Some(staged) => Some(staged.into_parts().0),
                    None => self.block(number, blkid).await?,
                };
                // A block that was staged is ours alone and is changed where it is: appending to a list or a map
                // must not copy its last block each time.
                let mut content = match old.map(Bytes::try_into_mut) {
                    Some(Ok(content)) => content,
                    Some(Err(shared)) => BytesMut::from(&shared[..]),
                    None => BytesMut::zeroed(size as usize),
                };
                content[skip..skip + now.len()].copy_from_slice(now);
                self.put_block(number, blkid, content.freeze()).await?;
            }
            (offset, data) = (offset + now.len() as u64, rest);
        }
        Ok(())
    }
}
