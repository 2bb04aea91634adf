//! A volume in memory: the model the protocol tests run against, with holes, writes and trims.
//!
//! Blocks that were never written are holes, as in a thin volume.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use bytes::Bytes;

use crate::{
    BlockVolume, Durability, Extent, Geometry, Identity, Keeper, Segment, Segments, Space, VolumeError,
    VolumeFuture, flatten,
};

/// A thin volume whose blocks live in a map.
pub struct MemVolume {
    identity: Identity,
    block: u32,
    read_only: bool,
    keeper: Option<Arc<dyn Keeper>>,
    state: Mutex<State>,
}

impl fmt::Debug for MemVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemVolume").field("identity", &self.identity).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    size: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
    flushes: u64,
    space: Option<Space>,
}

impl MemVolume {
    /// An empty volume of `size` bytes in blocks of `block` bytes.
    pub fn new(name: &str, size: u64, block: u32) -> Self {
        let guid = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self {
            identity: Identity { name: name.to_owned(), guid, pool_guid: 0x4d49_4c4c_504f_4e44 },
            block,
            read_only: false,
            keeper: None,
            state: Mutex::new(State { size, blocks: BTreeMap::new(), flushes: 0, space: None }),
        }
    }

    /// The same, refusing writes.
    pub fn read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// The same, with a place for what must survive power loss.
    pub fn with_keeper(mut self, keeper: Arc<dyn Keeper>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// What to say of the room there is.
    pub fn set_space(&self, space: Space) {
        self.lock().space = Some(space);
    }

    /// Changes the size; blocks beyond the new end are forgotten.
    pub fn resize(&self, size: u64) {
        let mut state = self.lock();
        state.size = size;
        let first_gone = size.div_ceil(u64::from(self.block));
        state.blocks.retain(|index, _| *index < first_gone);
    }

    /// How many flushes and stable writes were asked for.
    pub fn flushes(&self) -> u64 {
        self.lock().flushes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }

    fn check(&self, state: &State, offset: u64, len: u64) -> Result<(), VolumeError> {
        match offset.checked_add(len) {
            Some(end) if end <= state.size => Ok(()),
            _ => Err(VolumeError::OutOfRange { offset, len, size: state.size }),
        }
    }

    fn check_write(&self, state: &State, offset: u64, len: u64) -> Result<(), VolumeError> {
        if self.read_only {
            return Err(VolumeError::ReadOnly);
        }
        self.check(state, offset, len)
    }

    /// The blocks a range touches: (index, first byte in block, bytes).
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> + use<> {
        let block = u64::from(self.block);
        let end = offset + len;
        let mut at = offset;
        std::iter::from_fn(move || {
            (at < end).then(|| {
                let within = at % block;
                let take = (block - within).min(end - at);
                let piece = (at / block, within as usize, take as usize);
                at += take;
                piece
            })
        })
    }

    fn zero(&self, state: &mut State, offset: u64, len: u64, allocate: bool, partial: bool) {
        for (index, within, take) in self.pieces(offset, len) {
            let whole = take == self.block as usize;
            if whole && !allocate {
                state.blocks.remove(&index);
            } else if (whole && allocate)
                || (partial && state.blocks.contains_key(&index))
                || (partial && allocate)
            {
                let block = state.blocks.entry(index).or_insert_with(|| vec![0; self.block as usize].into());
                block[within..within + take].fill(0);
            }
        }
    }
}

impl BlockVolume for MemVolume {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.lock().size, block: self.block, read_only: self.read_only }
    }

    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn read(&self, offset: u64, len: usize) -> VolumeFuture<'_, Segments> {
        let state = self.lock();
        let result = self.check(&state, offset, len as u64).map(|()| {
            self.pieces(offset, len as u64)
                .map(|(index, within, take)| match state.blocks.get(&index) {
                    Some(block) => Segment::Data(Bytes::copy_from_slice(&block[within..within + take])),
                    None => Segment::Zero(take),
                })
                .collect()
        });
        Box::pin(async move { result })
    }

    fn extents(&self, offset: u64, len: u64, max_extents: usize) -> VolumeFuture<'_, Vec<Extent>> {
        let state = self.lock();
        let result = self.check(&state, offset, len).map(|()| {
            let mut extents: Vec<Extent> = Vec::new();
            for (index, _, take) in self.pieces(offset, len) {
                let hole = !state.blocks.contains_key(&index);
                let full = extents.len() == max_extents;
                match extents.last_mut() {
                    Some(last) if last.hole == hole => last.len += take as u64,
                    _ if full => break,
                    _ => extents.push(Extent { len: take as u64, hole }),
                }
            }
            extents
        });
        Box::pin(async move { result })
    }

    fn write(&self, offset: u64, data: Segments, durability: Durability) -> VolumeFuture<'_, ()> {
        let mut state = self.lock();
        let len: usize = data.iter().map(Segment::len).sum();
        let result = self.check_write(&state, offset, len as u64).map(|()| {
            let flat = flatten(&data);
            let mut from = 0;
            for (index, within, take) in self.pieces(offset, len as u64) {
                let block = state.blocks.entry(index).or_insert_with(|| vec![0; self.block as usize].into());
                block[within..within + take].copy_from_slice(&flat[from..from + take]);
                from += take;
            }
            state.flushes += u64::from(matches!(durability, Durability::Stable(_)));
        });
        Box::pin(async move { result })
    }

    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        allocate: bool,
        durability: Durability,
    ) -> VolumeFuture<'_, ()> {
        let mut state = self.lock();
        let result = self.check_write(&state, offset, len).map(|()| {
            self.zero(&mut state, offset, len, allocate, true);
            state.flushes += u64::from(matches!(durability, Durability::Stable(_)));
        });
        Box::pin(async move { result })
    }

    fn unmap(&self, offset: u64, len: u64, durability: Durability) -> VolumeFuture<'_, ()> {
        let mut state = self.lock();
        let result = self.check_write(&state, offset, len).map(|()| {
            self.zero(&mut state, offset, len, false, false);
            state.flushes += u64::from(matches!(durability, Durability::Stable(_)));
        });
        Box::pin(async move { result })
    }

    fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        self.keeper.clone()
    }

    fn space(&self) -> Option<Space> {
        self.lock().space
    }

    fn flush(&self) -> VolumeFuture<'_, ()> {
        self.lock().flushes += 1;
        Box::pin(async { Ok(()) })
    }
}
