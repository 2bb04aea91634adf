//! Copying an object's content out of a pool, holes kept: what `image`, `cat` and `get` have in common.

use std::io;

use bytes::Bytes;
use server::pool::{
    dmu::{Object, ReadError, Run},
    io::PoolIo,
};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Blocks of one batch, and bytes at most: two batches are in memory.
const BATCH_BLOCKS: usize = 256;
const BATCH_BYTES: u64 = 8 << 20;

/// Where content goes: blocks that hold something other than zeroes, in ascending order.
pub(crate) trait Sink: Send {
    /// Takes `data`, which belongs at `offset`.
    fn put(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Says how far the copy is, in bytes of content.
    fn reached(&mut self, offset: u64) {
        let _ = offset;
    }
}

type Blocks = Vec<(u64, Result<Bytes, server::pool::BlockError>)>;

/// Feeds the first `size` bytes of `object` to `sink`. The next blocks are read while the last are written.
pub(crate) async fn copy(
    object: &Object,
    io: &Arc<PoolIo>,
    size: u64,
    sink: &mut dyn Sink,
) -> anyhow::Result<()> {
    let block = object.block_bytes();
    let mut runs = object.runs(0, 0..size.div_ceil(block));
    let mut reading: Option<JoinHandle<Blocks>> = None;
    loop {
        let (mut batch, mut bytes, mut end) = (Vec::new(), 0, false);
        while batch.len() < BATCH_BLOCKS && bytes < BATCH_BYTES {
            match runs.next().await? {
                Some(Run::Block { blkid, pointer }) => {
                    batch.push((pointer, object.bookmark(0, blkid)));
                    bytes += block;
                }
                Some(Run::Hole { .. }) => {}
                None => {
                    end = true;
                    break;
                }
            }
        }
        let io = Arc::clone(io);
        let next = tokio::spawn(async move {
            let contents = io.read_blocks_uncached(&batch).await;
            batch.iter().map(|(_, at)| at.blkid).zip(contents).collect()
        });
        if let Some(last) = reading.replace(next) {
            write(last.await?, block, size, sink)?;
        }
        if end {
            if let Some(last) = reading {
                write(last.await?, block, size, sink)?;
            }
            sink.reached(size);
            return Ok(());
        }
    }
}

fn write(blocks: Blocks, block: u64, size: u64, sink: &mut dyn Sink) -> anyhow::Result<()> {
    for (blkid, content) in blocks {
        let content = content.map_err(ReadError::from)?;
        let offset = blkid.saturating_mul(block);
        let len = size.saturating_sub(offset).min(content.len() as u64);
        let data = &content[..len as usize];
        if !is_zero(data) {
            sink.put(offset, data)?;
        }
        sink.reached(offset.saturating_add(len));
    }
    Ok(())
}

/// Whether there are only zeroes, a cache line at a time.
fn is_zero(data: &[u8]) -> bool {
    let (chunks, rest) = data.as_chunks::<64>();
    chunks.iter().all(|chunk| chunk.iter().fold(0, |any, byte| any | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

/// A stream, which cannot skip: holes are written as zeroes.
pub(crate) struct Stream<W> {
    out: W,
    at: u64,
}

impl<W: io::Write + Send> Stream<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, at: 0 }
    }

    /// Writes zeroes up to `offset`.
    pub(crate) fn fill(&mut self, offset: u64) -> io::Result<()> {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        while self.at < offset {
            let len = (offset - self.at).min(ZEROES.len() as u64);
            self.out.write_all(&ZEROES[..len as usize])?;
            self.at += len;
        }
        Ok(())
    }

    /// Ends the stream at `size` bytes.
    pub(crate) fn finish(mut self, size: u64) -> io::Result<()> {
        self.fill(size)?;
        self.out.flush()
    }
}

impl<W: io::Write + Send> Sink for Stream<W> {
    fn put(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fill(offset)?;
        self.out.write_all(data)?;
        self.at = offset + data.len() as u64;
        Ok(())
    }
}

/// A new file, in which what is not written is a hole.
impl Sink for std::fs::File {
    fn put(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, data, offset)
    }
}
